# cython: language_level=3
"""`ActiveEnd`, which says to the search by time where the active segment ends."""

from libc.stdint cimport int64_t


cdef class ActiveEnd:
    cpdef int64_t published_bytes(self, int64_t base_offset)
