# cython: language_level=3
"""What a segment has opened, for the module that chooses the segment of a search."""

from libc.stdint cimport int64_t

from kstore.files._index cimport OffsetEntries, TimeEntries
from kstore.files._scan cimport Found


cdef class Opened:
    cdef public int64_t base_offset
    cdef public object _file
    cdef public object _size
    cdef public TimeEntries _time_index
    cdef public OffsetEntries _offset_index
    cdef public bint _used

    cdef bint find_near(self, int64_t timestamp, int64_t start_offset, int64_t end, object max_decompressed_bytes,
                        Found *found) except? True
