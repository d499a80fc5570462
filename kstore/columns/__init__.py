"""Records as columns, in both directions: Arrow and NumPy memory into batches, batches into Arrow memory.

Owns the memory of columns and the Arrow C interface; its C is in `c/columns`. It leaves which batches to read to
`log.read_columns`. The hardest rule: columns and records never disagree; a batch that the fast decoder doubts is
decided by `kstore._core`.
"""
