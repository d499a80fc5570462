"""Verification and repair: batches against headers, indexes and snapshots against batches, a root against its logs.

Owns findings and plans of repair. Invariant: nothing that kstore itself does is reported as an error, and a
repair says what it would lose before it changes a byte.
"""
