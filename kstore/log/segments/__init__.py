"""Segments: opening and recovering them, when to roll, which to delete, and the producers that they carry.

Owns the decisions about segments, most of them without I/O, and the state of producers. It leaves who may write to
`log.writing`. Invariant: records below the recovery point were flushed, so recovery never cuts them.
"""
