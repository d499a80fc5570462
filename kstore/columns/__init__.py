"""Columns: batches are encoded from Arrow and NumPy memory, and decoded into Arrow memory.

Invariant: columns and records never disagree; `kstore._core` decodes each batch that the fast decoder rejects.
"""
