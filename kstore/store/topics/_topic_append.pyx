# cython: language_level=3, auto_pickle=False, autotestdict=False, embedsignature=False, annotation_typing=False
"""`Store.append` in C, like `Log.append`, so that the usual append of one record is one step.

Invariant: a record goes to the partition that was drawn for it, even if `append_slowly` appends it.
"""

cimport cython
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t

from kstore.log.writing._appender cimport Appender
from kstore.store.topics._partitioner cimport Router

from kstore.errors import LogClosedError, StorageError
from kstore.types import RecordMetadata

cdef extern from "tuples.h":
    object ks_new_tuple(type tuple_type, Py_ssize_t n)

# stub: from kstore.log.writing.writer import Writer

cdef type METADATA = RecordMetadata


cdef object new_metadata(type metadata, object topic, object partition, object offset, object timestamp):
    cdef object made = ks_new_tuple(metadata, 4)
    Py_INCREF(topic)
    PyTuple_SET_ITEM(made, 0, topic)
    Py_INCREF(partition)
    PyTuple_SET_ITEM(made, 1, partition)
    Py_INCREF(offset)
    PyTuple_SET_ITEM(made, 2, offset)
    Py_INCREF(timestamp)
    PyTuple_SET_ITEM(made, 3, timestamp)
    return made


cdef class Route:
    """A topic's partitions, its router, the store's clock, and the writers of logs, attached at the first append."""

    def __cinit__(self, str topic not None, entries: Mapping[int, Entry], Router router not None,
                  now: Callable[[], int]):
        self.topic = topic
        self.entries = entries
        self.router = router
        self.now = now
        self.writers = [None] * router.partitions
        self.appenders = [None] * router.partitions

    def attach(self, Py_ssize_t number, writer: Writer) -> None:
        """Use this writer for appends to partition `number` from now on."""
        cdef Appender appender = writer.appender
        if not 0 <= number < len(self.appenders):
            raise IndexError(f"partition {number} of {len(self.appenders)}")
        self.writers[number] = writer
        self.appenders[number] = appender


cdef class RecordAppender:
    """Appends records one by one; a derived class defines `append_slowly` and `reason`.

    `by_topic` contains the routes of a store's topics; a route is valid while `catalog` has the same partitions.
    """

    def __init__(self, catalog: Catalog, dict by_topic not None: dict[str, Route]):
        self._catalog = catalog
        self._by_topic = by_topic

    cdef Route _current(self, object topic):
        found = self._by_topic.get(topic)
        if found is not None and (<Route?> found).entries is (<dict?> self._catalog.by_topic).get(topic):
            return <Route> found
        return None


    def append(self, topic: str, value: ReadableBuffer | None, key: ReadableBuffer | None, partition: int | None,
               timestamp: int | datetime | None, headers: Headers | None, sync: bool,
               expected_offset: int | None) -> RecordMetadata:
        """Append one record; see `Store.append`."""
        return self._append(topic, value, key, partition, timestamp, headers, sync, expected_offset)

    cdef object _append(self, object topic, object value, object key, object partition, object timestamp,
                        object headers, object sync, object expected_offset):
        cdef Route route
        cdef Appender appender
        cdef int64_t offset, stamp = 0
        cdef long number = -1
        cdef int overflow = 0
        route = self._current(topic) if not sync and type(topic) is str else None
        if route is not None:
            if type(partition) is int:
                number = PyLong_AsLongAndOverflow(partition, &overflow)
            elif partition is None and expected_offset is None:
                partition = number = route.router.route_one(key, value)
            if 0 <= number < len(route.appenders):
                appender = route.appenders[number]
                if appender is not None and not appender.log_append_time:
                    try:
                        offset = appender._append(value, key, timestamp, headers, expected_offset, &stamp)
                    except (StorageError, LogClosedError) as error:
                        raise self.reason(topic, error)
                    if offset >= 0:
                        return new_metadata(METADATA, topic, partition, offset, stamp)
        return self.append_slowly(None, None, topic, value, key, partition, timestamp, headers, sync, expected_offset)


@cython.binding(True)                    # a method of a class of Python
def append(self, topic: str, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *,
           partition: int | None = None, timestamp: int | datetime | None = None,
           headers: Headers | None = None, sync: bool = False,
           expected_offset: int | None = None) -> RecordMetadata:
    """Append one record to a topic in its own batch.

    If this call raises, the log is unchanged. But if the sync of `sync=True` fails, the record is in the log.

    Args:
        topic: The topic.
        value: The record's value; `None` is a tombstone.
        key: The record's key. Without a `partition`, Kafka's default partitioner (murmur2) chooses the partition by the
            key, even if it is empty. Records without a key go to one partition until it has got 16 KiB; then one is
            drawn from the partitions in service.
        partition: The partition's number.
        timestamp: Milliseconds since the epoch, or an aware `datetime`, rounded down to milliseconds; now if None. -1
            is no timestamp.
        headers: A mapping, or (name, value) pairs, in which a name may occur more than once.
        sync: Return only when the record is on the disk.
        expected_offset: Append the record only if it gets this offset; needs a `partition`.

    Returns:
        The record's partition, and its offset and timestamp there.

    Raises:
        UnknownTopicOrPartitionError: If the store has no such topic or partition.
        UnexpectedOffsetError: If the record would not get the `expected_offset`.
        TypeError: If the value or the key is a `str`.
        ValueError: If an `expected_offset` is given without a `partition`.
        KStoreError: Any other error of `Log.append`.

    Example:
        >>> place = store.append("orders", b"2 plums", key=b"carol", sync=True)
        >>> place.partition, place.offset
        (0, 1)
    """
    return (<RecordAppender?> self._appender)._append(
        topic, value, key, partition, timestamp, headers, sync, expected_offset)
