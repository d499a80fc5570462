# cython: language_level=3
"""`ActiveEnd`, which the search by time asks where the active segment ends."""

from libc.stdint cimport int64_t


cdef class ActiveEnd:
    cpdef int64_t published_bytes(self, int64_t base_offset)
