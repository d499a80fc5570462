"""One log, that is one partition directory: the public class `Log`, with modules for appends, reads and columns.

The packages below do the work: `segments` (the files of a segment), `reading`, `writing` (the one writer) and
`compaction`. Invariant: appended records survive a crash of the process, and flushed records a crash of the machine.
"""
