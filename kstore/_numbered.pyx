# cython: language_level=3, auto_pickle=False, autotestdict=False
"""A producer's sequence numbers, and the append of one numbered record in one step.

`Sequences` counts each partition's records for one producer id and epoch. What is usual (a log that is open, a
producer that it knows, a plain record) is done here without a lock: the whole step holds the GIL. The hardest rule: a
number is counted in the same step that puts its record into the log, so that nothing can come between the two.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kstore._producers cimport ProducerTable
from kstore._writer cimport SLOW, Appender, Stamp

import threading


@cython.final
cdef class Line:
    """The numbers of one partition. `doubtful` while it is open whether the last one given is in the log."""

    cdef readonly object log
    cdef Appender appender
    cdef object producers
    cdef public int32_t sequence
    cdef public bint doubtful

    def attach(self, log, writer):
        """Append to this log from now on."""
        self.appender = writer.appender
        self.producers = writer.producers
        self.log = log


cdef object _new = tuple.__new__


cdef class Sequences:
    """The numbers of one producer id and epoch, by `(topic, partition)`.

    `busy` says that somebody uses them under their owner's lock: `append` then leaves a record to that lock.
    """

    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly bint transactional
    cdef readonly dict lines
    cdef public bint busy
    cdef type _metadata

    def __init__(self, int64_t producer_id, int16_t producer_epoch, *, bint transactional, type metadata not None):
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transactional = transactional
        self.lines = {}
        self._metadata = metadata

    def append(self, list taken, route, topic, partition, value, key, timestamp):
        """Append one record without the owner's lock: where it is, else the partition that it is to go to.

        `route` is the topic's. `taken[0]` becomes the place and number of a record that is in: its caller may be
        interrupted before the result is there. Raises what refuses the record.
        """
        cdef int64_t stamp = 0, offset
        if partition is None:
            partition = route.router.route(key, value)
        elif type(partition) is not int:
            return partition
        place = (topic, partition)
        line = self.lines.get(place)
        if line is None or self.busy:
            return partition
        offset = self._append(<Line> line, taken, place, value, key, timestamp, &self.busy, &stamp)
        if offset < 0:
            return partition
        return _new(self._metadata, (topic, partition, offset, stamp))

    def append_locked(self, Line line not None, value, key, timestamp):
        """Append one record for the owner of the lock: its (offset, timestamp), None for one that takes more."""
        cdef int64_t stamp = 0, offset
        offset = self._append(line, None, None, value, key, timestamp, NULL, &stamp)
        return None if offset < 0 else (offset, stamp)

    cdef int64_t _append(self, Line line, list taken, object place, object value, object key, object timestamp,
                         const bint *held, int64_t *stamp) except? -99:
        cdef Stamp numbers = Stamp(self.producer_id, self.producer_epoch, line.sequence, self.transactional, held)
        cdef int64_t offset
        cdef object table, mine
        if line.doubtful or line.log is None:
            return SLOW
        table = line.producers.table
        mine = None if taken is None else (place, line.sequence)
        offset = line.appender._append_numbered(<ProducerTable?> table, value, key, timestamp, &numbers, stamp)
        if offset >= 0:
            # In the same step: nothing in these lines runs Python code.
            line.sequence = <int32_t> ((<int64_t> numbers.sequence + 1) & 0x7fffffff)
            if taken is not None:
                taken[0] = mine
            line.appender._tell()
        return offset


@cython.final
cdef class Hold:
    """The lock of who owns `Sequences`, reentrant: while it is held, their `append` stands back; once closed, for good.

    Compiled, so that no interrupt comes between the lock and what it says.
    """

    cdef object _lock
    cdef Sequences _sequences
    cdef int _depth
    cdef bint _closed

    def __init__(self, Sequences sequences not None):
        self._lock = threading.RLock()
        self._sequences = sequences

    def acquire(self):
        """Take the lock."""
        self._lock.acquire()
        self._depth += 1
        self._sequences.busy = True

    def release(self):
        """Give it back."""
        self._depth -= 1
        self._sequences.busy = self._closed or self._depth > 0
        self._lock.release()

    def close(self):
        """Let nothing be appended without the lock any more."""
        self._closed = self._sequences.busy = True

    def __enter__(self):
        self.acquire()

    def __exit__(self, kind, error, trace):
        self.release()
