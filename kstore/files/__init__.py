"""One module for each kind of file in a log directory: its format, how it is read, searched and written.

Owns the format of each file and the walks over batches in a `.log` file. It leaves how files belong together to
`log.segments`. Invariant: a file may come from a stranger, so each field is checked before it is used.
"""
