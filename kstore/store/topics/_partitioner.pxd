# cython: language_level=3
"""Declarations of the partitioner for the module that splits columns."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from kstore.codec._pack cimport Packer


cdef class Router:
    cdef readonly int32_t partitions
    cdef readonly int64_t sticky_bytes
    cdef tuple _available
    cdef uint64_t _random
    cdef int32_t _sticky               # -1 if the next one must be drawn
    cdef int64_t _added                # bytes added to the sticky partition

    cdef int32_t route_one(self, object key, object value) except -1
    cdef int32_t sticky(self) except -1
    cdef void add(self, int64_t size, int64_t enough) noexcept


cdef class BaseSplitter:
    cdef Router _router
    cdef int32_t _partitions
    cdef uint64_t _inverse
    cdef object _make
    cdef int64_t _limit_bytes
    cdef int64_t _max_bytes
    cdef int64_t _sticky_bytes
    cdef int32_t _only                 # the partition of every record; -1 if the router decides
    cdef list _packers                 # by partition; None if it has no record
    cdef list _made                    # the partitions that have a packer, in order
    cdef bint _busy
    cdef int64_t _finished             # bytes of finished batches in all packers
    cdef int64_t _held                 # bytes of finished and open batches in all packers

    cdef int _enter(self) except -1
    cdef int _keep(self, int32_t partition, Packer packer) except -1
    cdef int _close_all(self) except -1
    cdef int _drop_all(self) except -1
    cdef int _count(self) except -1
