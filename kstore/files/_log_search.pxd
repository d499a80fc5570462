# cython: language_level=3
"""Declares the search for a time after an index entry, for the module that chooses the segment."""

from libc.stdint cimport int32_t, int64_t

from kstore.files._index_search cimport OffsetEntries, TimeEntries


cdef struct Found:                 # a record found by timestamp
    int64_t timestamp
    int64_t offset
    int32_t leader_epoch           # -1 if it is unknown


cdef bint look_behind(int fd, int64_t end, int64_t timestamp, int64_t min_offset, TimeEntries times,
                      OffsetEntries offsets, object max_decompressed_bytes, bint between, Found *found) except? True
