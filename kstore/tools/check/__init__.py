"""Verifies and repairs batches, indexes, snapshots, partitions and data directories.

Invariant: nothing that kstore itself does is reported as an error, and a repair says what it would lose before it
changes a byte.
"""
