# cython: language_level=3
"""One record for a topic, for the module that appends with a producer's numbers."""

from kstore.store.topics._partitioner cimport Router


cdef class Route:
    cdef readonly str topic
    cdef readonly object entries  # type: Mapping[int, Entry]
    cdef readonly object now  # type: Callable[[], int]
    cdef readonly Router router
    cdef readonly list writers  # type: list[Writer | None]
    cdef list appenders                # of the writers, with the same numbers


cdef class RecordAppender:
    cdef object _catalog
    cdef dict _by_topic

    # The topic's route, None if none is known or its partitions are others by now.
    cdef Route _current(self, object topic)
    cdef object _append(self, object topic, object value, object key, object partition, object timestamp,
                        object headers, object sync, object expected_offset)


# A `RecordMetadata`, which is what `type` has to be.
cdef object new_metadata(type metadata, object topic, object partition, object offset, object timestamp)
