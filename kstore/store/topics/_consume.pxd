# cython: language_level=3
"""A record of a topic, for modules that take it apart."""

from libc.stdint cimport int32_t, int64_t


cdef class ConsumerRecord:
    cdef str topic                 # readable from Python, as key, value and headers are: see _add_members
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef bytes key
    cdef bytes value
    cdef tuple headers
