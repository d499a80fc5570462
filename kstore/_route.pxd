# cython: language_level=3
"""Where records go, for the module that splits columns."""

from libc.stdint cimport int32_t, int64_t, uint64_t


cdef class Router:
    cdef readonly int32_t partitions
    cdef readonly int64_t sticky_bytes
    cdef tuple _available
    cdef uint64_t _random
    cdef int32_t _sticky               # -1: to be drawn
    cdef int64_t _given                # bytes, to the sticky partition

    cdef int32_t sticky(self) except -1
    cdef void give(self, int64_t size, int64_t enough) noexcept
