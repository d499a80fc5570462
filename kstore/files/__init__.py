"""One module for each kind of file in a log directory: its format, and how it is read, searched and written.

`log.segments` knows which files belong together. Invariant: a file may come from an untrusted source, so each field is
checked before it is used.
"""
