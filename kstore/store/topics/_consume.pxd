# cython: language_level=3
"""Declarations of `ConsumerRecord`."""

from libc.stdint cimport int32_t, int64_t


cdef class ConsumerRecord:
    cdef str topic  # type: str  # readable from Python, as key, value and headers are: see _add_members
    """The topic."""
    cdef readonly int32_t partition
    """The partition's number."""
    cdef readonly int64_t offset
    """The record's offset in its partition."""
    cdef readonly int64_t timestamp
    """Milliseconds since the epoch; -1 if the record has no timestamp."""
    cdef bytes key  # type: bytes | None
    """The key; None if the record has none."""
    cdef bytes value  # type: bytes | None
    """The value; None for a tombstone."""
    cdef tuple headers  # type: tuple[tuple[str, bytes | None], ...]
    """(name, value) pairs; a value is `bytes` or None."""
