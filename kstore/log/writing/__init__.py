"""The one writer of a log: its gate, appends, group commit, truncation, deletion, and work owed to the disk.

Owns every change of a log's files. It leaves decisions to `log.segments`. Invariant: an append that fails leaves no
trace, and after an unknown state of the disk the log refuses writes until it is opened again.
"""
