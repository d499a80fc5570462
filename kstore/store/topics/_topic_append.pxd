# cython: language_level=3
"""Declarations of the append of one record for the module that appends numbered records."""

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

    # Return the topic's route; None if there is none, or if the topic's partitions have changed since.
    cdef Route _current(self, object topic)
    cdef object _append(self, object topic, object value, object key, object partition, object timestamp,
                        object headers, object sync, object expected_offset)


# Make a `RecordMetadata`; `metadata` is its type.
cdef object new_metadata(type metadata, object topic, object partition, object offset, object timestamp)
