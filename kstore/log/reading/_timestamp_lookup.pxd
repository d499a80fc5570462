# cython: language_level=3
"""Where the active segment ends, as a compiled search asks for it."""

from libc.stdint cimport int64_t


cdef class ActiveEnd:
    cpdef int64_t published_bytes(self, int64_t base_offset)
