# cython: language_level=3
"""A log that this process alone changes, as a compiled search sees it."""

from libc.stdint cimport int64_t

from kstore._core cimport Guard


cdef class ActiveEnd:
    cpdef int64_t published_bytes(self, int64_t base_offset)


cdef class OwnView:
    cdef public Guard guard
    cdef public ActiveEnd appender
    cdef public object segments
    cdef public object max_decompressed_bytes
    cdef public int64_t log_start_offset
    cdef public bint closed
