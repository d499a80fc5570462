# cython: language_level=3
"""The last stable offset, for the table of producers and the appender."""

from libc.stdint cimport int64_t


cdef struct Open:
    # An open transaction.
    int64_t first
    int64_t producer_id


cdef class OpenTransactions:
    cdef Open *_open               # sorted by first offset
    cdef Py_ssize_t _count, _room

    cdef int reserve(self) except -1
    cdef int begin(self, int64_t first, int64_t producer_id) except -1
    cdef void begin_last(self, int64_t first, int64_t producer_id) noexcept
    cdef void end(self, int64_t first) noexcept
    cdef void clear(self) noexcept
    cdef int64_t stable_after(self, int64_t producer_id, int64_t last, object ended) except? -1
