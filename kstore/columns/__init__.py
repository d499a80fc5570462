"""Records as columns, in both directions: Arrow and NumPy memory into batches, batches into Arrow memory.

Invariant: columns and records never disagree; `kstore._core` decides about a batch that the fast decoder doubts.
"""
