# cython: language_level=3, auto_pickle=False, autotestdict=False, embedsignature=False, annotation_typing=False
"""The sequence numbers of a producer, and the append of one numbered record in one step.

The usual append (an open log that knows the producer, a plain record) takes no lock: it holds the GIL throughout.
Invariant: a number is counted in the step that writes its record to the log, so that no interrupt can come between the
count and the write.
"""

cimport cython
from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport int16_t, int32_t, int64_t

from kstore.log.segments._producer_state cimport ProducerTable
from kstore.log.writing._appender cimport SLOW, Stamp
from kstore.store.topics._topic_append cimport RecordAppender, Route, new_metadata

import threading

from kstore.errors import LogClosedError, StorageError
from kstore.types import RecordMetadata


cdef enum:
    MOST_LISTED = 4096                 # partitions of a topic whose numbers are found in a list


# stub: from kstore.log.writing.writer import Writer
# stub: _Place: TypeAlias = tuple[str, int]


@cython.final
cdef class PartitionSequence:
    """The sequence numbers of one partition; `doubtful` while it is unknown if the log has the last one's record."""

    def attach(self, writer: Writer) -> None:
        """Use this writer's log for appends from now on."""
        self.appender = writer.appender
        self.producers = writer.producers
        self.writer = writer


cdef class Sequences:
    """The sequence numbers of one producer id and epoch, by `(topic, partition)`.

    While `busy`, a thread uses them under their owner's lock and `append` appends nothing. `entered` contains the
    partitions that the coordinator knows. `taken` is the last number that was used, with its partition: its record may
    or may not be in the log.
    """

    def __init__(self, int64_t producer_id, int16_t producer_epoch, *, bint transactional,
                 type metadata not None: type[RecordMetadata] = RecordMetadata):
        if not issubclass(metadata, tuple):
            raise TypeError(f"metadata is {metadata.__name__}; a tuple of four is wanted")
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transactional = transactional
        self.partitions = {}
        self._by_topic = {}
        self.entered = set()
        self._metadata = metadata

    def partition(self, tuple place not None: _Place) -> PartitionSequence:
        """Return the numbers of one partition; create them if there are none."""
        return self._of(place)

    cdef PartitionSequence _of(self, tuple place):
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions[place] = PartitionSequence()
            (<PartitionSequence> found).place = place
        return <PartitionSequence?> found

    cdef PartitionSequence _known(self, object topic, object partition, Py_ssize_t number):
        """Return the numbers of a partition; None if there are none yet."""
        cdef PartitionSequence sequence
        cdef list numbered = self._by_topic.get(topic)
        if numbered is not None and 0 <= number < len(numbered):
            sequence = numbered[number]
            if sequence is not None:
                return sequence
        sequence = self.partitions.get((topic, partition))
        if sequence is not None and sequence.place is not None and 0 <= number < MOST_LISTED:
            if numbered is None:
                numbered = self._by_topic[topic] = []
            numbered.extend([None] * (number + 1 - len(numbered)))
            numbered[number] = sequence
        return sequence

    def append(self, list taken: list[Any] | None, Route route not None, topic: str, partition: int | None,
               value: ReadableBuffer | None, key: ReadableBuffer | None,
               timestamp: int | datetime | None) -> RecordMetadata | int:
        """Append one record in one step and return its metadata; else return the partition for `append_numbered`.

        `route` is the topic's. If `taken` is a list, `taken[0]` becomes the partition and sequence number once the
        record is in the log: an interrupt may come before the caller has the result. Raises if the record is refused.
        """
        return self._append_to(taken, route, topic, partition, value, key, timestamp)

    cdef object _append_to(self, list taken, Route route, object topic, object partition, object value, object key,
                           object timestamp):
        cdef int64_t stamp = 0, offset
        cdef long number
        cdef int overflow = 0
        cdef PartitionSequence sequence
        if partition is None:
            partition = number = route.router.route_one(key, value)
        elif type(partition) is int:
            number = PyLong_AsLongAndOverflow(partition, &overflow)   # -1 on overflow, which is in no list
        else:
            return partition
        sequence = self._known(topic, partition, number)
        if sequence is None or self.busy:
            return partition
        offset = self._append(sequence, taken, sequence.place or (topic, partition), value, key, timestamp, &stamp)
        if offset < 0:
            return partition
        return new_metadata(self._metadata, topic, partition, offset, stamp)

    cdef int64_t _append(self, PartitionSequence partition, list taken, object place, object value, object key,
                         object timestamp, int64_t *stamp) except? -99:
        cdef Stamp numbers = Stamp(self.producer_id, self.producer_epoch, partition.sequence, self.transactional,
                                   &self.busy)
        cdef int64_t offset
        cdef object table, mine
        if partition.doubtful or partition.writer is None:
            return SLOW
        table = partition.producers.table
        mine = None if taken is None else (place, partition.sequence)
        offset = partition.appender._append_numbered(<ProducerTable?> table, value, key, timestamp, &numbers, stamp)
        if offset >= 0:
            # The same step as the write: these lines run no Python code.
            partition.sequence = <int32_t> ((<int64_t> numbers.sequence + 1) & 0x7fffffff)
            if taken is not None:
                taken[0] = mine
            partition.appender._tell()
        return offset


cdef class NumberingAppender(RecordAppender):
    """Appends records one by one, with or without sequence numbers."""

    def append_numbered(self, Sequences numbers not None, enter: Callable[[list[_Place]], None] | None, topic: str,
                        value: ReadableBuffer | None, key: ReadableBuffer | None, partition: int | None,
                        timestamp: int | datetime | None, headers: Headers | None,
                        expected_offset: int | None = None) -> RecordMetadata:
        """Append one numbered record; first call `enter` if the coordinator does not know its partition yet."""
        return self._append_numbered(numbers, enter, topic, value, key, partition, timestamp, headers, expected_offset)

    cdef object _append_numbered(self, Sequences numbers, object enter, object topic, object value, object key,
                                 object partition, object timestamp, object headers, object expected_offset):
        cdef Route route = None
        cdef PartitionSequence sequence
        cdef int64_t offset, stamp = 0
        cdef long number = -1
        cdef int overflow = 0
        if headers is None and expected_offset is None and type(topic) is str:
            route = self._current(topic)
        if route is not None:
            if type(partition) is int:
                number = PyLong_AsLongAndOverflow(partition, &overflow)
            elif partition is None:
                partition = number = route.router.route_one(key, value)
            writer = route.writers[number] if 0 <= number < len(route.writers) else None
            if writer is not None:
                place = (topic, partition)
                try:
                    if enter is not None and place not in numbers.entered:
                        enter([place])
                    sequence = numbers._of(place)
                    if sequence.writer is not writer:
                        sequence.attach(writer)
                    offset = numbers._append(sequence, None, place, value, key, timestamp, &stamp)
                except (StorageError, LogClosedError) as error:
                    raise self.reason(topic, error)
                if offset >= 0:
                    return new_metadata(numbers._metadata, topic, partition, offset, stamp)
        return self.append_slowly(
            numbers, enter, topic, value, key, partition, timestamp, headers, False, expected_offset)


cdef class RecordProducer:
    """The attributes of a producer that `append_at_once` uses, as C fields."""

    cdef public object _appender  # type: TopicAppender
    cdef public object _numbers  # type: Sequences
    cdef public object _failed, _running  # type: Any  # the last attempt, if it raised; the attempt that began last


def append_at_once(RecordProducer producer not None, list taken not None: list[Any], topic: str, partition: int | None,
                   value: ReadableBuffer | None, key: ReadableBuffer | None,
                   timestamp: int | datetime | None) -> RecordMetadata | int | None:
    """Append one record as `Sequences.append` does; also return `partition` if the topic has no route yet.

    The caller must be a Python function: the interpreter checks for interrupts after a call of C, and the caller must
    then note that the record is in the log.
    """
    cdef Sequences numbers
    cdef Route route = (<RecordAppender?> producer._appender)._current(topic)
    if route is None:
        return partition
    numbers = <Sequences?> producer._numbers
    appended = numbers._append_to(taken, route, topic, partition, value, key, timestamp)
    if type(appended) is numbers._metadata:
        producer._running = taken
    return appended


@cython.final
cdef class SequenceLock:
    """The reentrant lock on `Sequences`: they are `busy` while it is held, and forever once it is closed.

    Compiled, so that no interrupt comes between taking the lock and setting `busy`.
    """

    cdef object _lock
    cdef Sequences _sequences
    cdef int _depth
    cdef bint _closed

    def __init__(self, Sequences sequences not None):
        self._lock = threading.RLock()
        self._sequences = sequences

    def acquire(self) -> None:
        """Take the lock, and make the sequences `busy`."""
        self._lock.acquire()
        self._depth += 1
        self._sequences.busy = True

    def release(self) -> None:
        """Release the lock; the sequences are not `busy` after the last release, unless it is closed."""
        self._depth -= 1
        self._sequences.busy = self._closed or self._depth > 0
        self._lock.release()

    def close(self) -> None:
        """Make appends without the lock impossible from now on."""
        self._closed = self._sequences.busy = True

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind, error, trace):
        self.release()
