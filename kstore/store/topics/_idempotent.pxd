# cython: language_level=3
"""Declarations of a producer's sequence numbers."""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kstore.log.writing._appender cimport Appender
from kstore.store.topics._topic_append cimport RecordAppender, Route


@cython.final
cdef class PartitionSequence:
    cdef readonly object writer  # type: Writer | None
    cdef tuple place
    cdef Appender appender
    cdef object producers
    cdef public int32_t sequence
    cdef public bint doubtful


cdef class Sequences:
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly bint transactional
    cdef readonly dict partitions  # type: dict[_Place, PartitionSequence]
    cdef dict _by_topic            # the same as lists by partition number: a lookup makes and hashes no tuple
    cdef readonly set entered  # type: set[_Place]
    cdef public object taken  # type: tuple[_Place, int] | None
    cdef public bint busy
    cdef type _metadata

    cdef PartitionSequence _of(self, tuple place)
    cdef PartitionSequence _known(self, object topic, object partition, Py_ssize_t number)
    cdef object _append_to(self, list taken, Route route, object topic, object partition, object value, object key,
                           object timestamp)
    cdef int64_t _append(self, PartitionSequence partition, list taken, object place, object value, object key,
                         object timestamp, int64_t *stamp) except? -99


cdef class NumberingAppender(RecordAppender):
    cdef object _append_numbered(self, Sequences numbers, object enter, object topic, object value, object key,
                                 object partition, object timestamp, object headers, object expected_offset)
