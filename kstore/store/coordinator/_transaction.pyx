# cython: language_level=3, auto_pickle=False, autotestdict=False, embedsignature=False, annotation_typing=False, nonecheck=True
"""The steps of a transaction, in C: add a partition, append a record, end the transaction.

`IdSteps` writes the states of a transactional id, `RecordTransaction` appends and ends, `StepLock` excludes other
threads. Invariant: a state is in force when its record is in the id's log, not before.
"""

cimport cython
from libc.stdint cimport int64_t

from kstore.log.writing._appender cimport Appender
from kstore.store.topics._idempotent cimport NumberingAppender, Sequences

from kstore.base import arguments
from kstore.codec.coordinator._states import state_value
from kstore.codec.coordinator.transaction_records import Status, TransactionState
from kstore.errors import KStoreError
from kstore.log._append import append_commit

# stub: from kstore.store.read_only_logs import Logs

VERSION = 2
"""The version of Kafka's transactions in which each transaction increments the producer's epoch."""

LAST_EPOCH = 2**15 - 1  # type: int
"""The greatest epoch of a producer id; the next transaction uses another producer id."""

cdef int64_t FEW_LEFT = LAST_EPOCH - 1
cdef object ONGOING = Status.ONGOING
cdef object PREPARE_COMMIT = Status.PREPARE_COMMIT, PREPARE_ABORT = Status.PREPARE_ABORT
cdef object COMPLETE_COMMIT = Status.COMPLETE_COMMIT, COMPLETE_ABORT = Status.COMPLETE_ABORT
cdef type STATE = TransactionState

cdef extern from *:
    """
    #include "tuples.h"
    static inline PyObject *ks_tuple_as(PyTypeObject *type, PyObject *items) {
        Py_ssize_t n = PyTuple_GET_SIZE(items);
        PyObject *made = ks_new_tuple(type, n);
        if (!made) return NULL;
        for (Py_ssize_t i = 0; i < n; i++)
            PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(items, i)));
        return made;
    }
    """
    object ks_tuple_as(type tuple_type, tuple items)


cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    enum:
        NOWAIT_LOCK
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    unsigned long PyThread_get_thread_ident()
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef extern from "Python.h":
    int Py_MakePendingCalls() except -1


@cython.final
cdef class StepLock:
    """A reentrant lock like `threading.RLock`, which C acquires and releases without calling Python.

    In this code an interrupt can come only during the wait for the lock. The fields change under the GIL.
    """

    cdef PyThread_type_lock _lock
    cdef unsigned long _owner          # the thread that holds it, if `_depth` is not 0
    cdef int _depth

    def __cinit__(self):
        self.renew()

    def __dealloc__(self):
        if self._lock != NULL:
            PyThread_free_lock(self._lock)

    def renew(self) -> None:
        """Free the lock in a child process, where the thread that held it may not exist."""
        self._lock = PyThread_allocate_lock()  # nothing uses the old one, which may be locked
        if self._lock == NULL:
            raise MemoryError
        self._depth = 0

    cdef int take(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef PyLockStatus status
        if self._depth == 0 or self._owner != me:
            if not PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
                while True:
                    with nogil:
                        status = PyThread_acquire_lock_timed(self._lock, -1, 1)
                    if status == PY_LOCK_ACQUIRED:
                        break
                    Py_MakePendingCalls()      # a signal: its handler may raise
            self._owner = me
        self._depth += 1
        return 0

    cdef void give(self) noexcept:
        if self._depth == 0 or self._owner != PyThread_get_thread_ident():
            return                     # renewed in a child process that was forked while this thread held the lock
        self._depth -= 1
        if self._depth == 0:
            PyThread_release_lock(self._lock)

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, kind, error, trace):
        self.give()


cdef class IdSteps:
    """The state of a transactional id, its log, and its present producer. `lock` guards all of it.

    A subclass defines `_look_back`, which is called after a write that failed.
    """

    cdef readonly str transactional_id
    cdef readonly bytes key
    cdef readonly object log  # type: Log
    cdef readonly StepLock lock
    cdef public object owner  # type: ReferenceType[object] | None
    cdef public object state  # type: TransactionState | None
    cdef readonly int64_t _end         # the id's records below it have been read
    cdef object _logs
    cdef Appender _appender

    def __cinit__(self, *_, **__):
        self.lock = StepLock()

    def __init__(self, str transactional_id not None, bytes key not None, log: Log, Appender appender not None,
                 logs: Logs, state: TransactionState | None):
        self.transactional_id = transactional_id
        self.key = key
        self.log = log
        self._appender = appender
        self._logs = logs
        self._end = log.log_end_offset
        self.state = state

    def now(self) -> int:
        """Return milliseconds since the epoch, by the store's clock; raise `LogClosedError` if the store is closed."""
        cdef Appender appender = <Appender?> self._appender
        if appender.busy:  # `busy` is also set if the log is closed
            return self._logs.writing().now()
        return appender._now()

    @property
    def coordinator_epoch(self) -> int:
        """The epoch of the coordinator, which is the leader epoch of the id's log."""
        return max((<Appender?> self._appender).leader_epoch, 0)

    def write(self, state: TransactionState) -> None:
        """Write a state to the log; it is in force from then on, even if an interrupt comes before this returns."""
        self._write(state_value(state), state)

    def remove(self) -> None:
        """Write a tombstone, which deletes the state of the id."""
        self._write(None, None)

    cdef int _write(self, object value, object state) except -1:
        try:
            self._end = self.log.append(value, self.key) + 1
            self.state = state
        except BaseException:
            self._look_back(state)
            raise
        return 0

    def add_partitions(self, places: Iterable[tuple[str, int]]) -> None:
        """Add partitions to the transaction, before a record is written to them."""
        producer_id, epoch, timeout_ms, status, partitions, _, start_ms, _, _, _ = fields(self.state)
        now_ms = self.now()
        if status is not ONGOING:
            start_ms = now_ms
        else:  # an interrupted call may have added some of them
            places = [place for place in places if place not in partitions]
            if not places:
                return
        self.write(ks_tuple_as(STATE, (
            producer_id, epoch, timeout_ms, ONGOING, (*partitions, *places), now_ms, start_ms, producer_id, -1, VERSION)))

    def decide(self, bint commit, epoch: int, next_producer_id: int, now_ms: int) -> None:
        """Write the decision to commit or to abort, with the epoch of the markers."""
        producer_id, _, timeout_ms, _, partitions, _, start_ms, _, _, _ = fields(self.state)
        self.write(ks_tuple_as(STATE, (
            producer_id, epoch, timeout_ms, PREPARE_COMMIT if commit else PREPARE_ABORT, partitions, now_ms, start_ms,
            producer_id, next_producer_id, VERSION)))

    def done(self, now_ms: int) -> None:
        """Write that the decided transaction has ended in all partitions."""
        producer_id, epoch, timeout_ms, status, _, _, start_ms, _, next_producer_id, version = fields(self.state)
        previous = producer_id
        if next_producer_id != -1:
            producer_id, epoch = next_producer_id, 0
        self.write(ks_tuple_as(STATE, (
            producer_id, epoch, timeout_ms, COMPLETE_COMMIT if status is PREPARE_COMMIT else COMPLETE_ABORT, (), now_ms,
            start_ms, previous, -1, version)))

    cdef bint _end_at_once(self, coordinator, bint commit) except -1:
        """Decide and end the transaction; do nothing and return False if this needs more than appends to open logs."""
        cdef dict by_topic = coordinator.logs_by_topic
        cdef list logs = []
        cdef dict numbers
        _, epoch, _, _, partitions, _, _, _, _, _ = fields(self.state)
        if <int64_t> epoch >= FEW_LEFT:
            return False
        for topic, number in <tuple?> partitions:
            numbers = by_topic.get(topic)
            where = None if numbers is None else numbers.get(number)
            log = None if where is None else where.log
            if log is None or log.closed:
                return False
            logs.append(log)
        now_ms = self.now()
        self.decide(commit, epoch + 1, -1, now_ms)
        state, coordinator_epoch = self.state, self.coordinator_epoch
        try:
            for log in logs:
                append_marker(log, state, commit, coordinator_epoch, now_ms)
        except KStoreError:  # the topic may be deleted; `complete` raises any other error again
            coordinator.complete(self, only_open=True)
            return True
        self.done(now_ms)
        return True


cdef tuple fields(object state):
    """Return a `TransactionState` as a tuple, whose items C reads directly."""
    if not isinstance(state, tuple):
        raise TypeError(f"{state!r} is no TransactionState")
    return <tuple> state


def append_marker(log: Log, state: TransactionState, commit: bool, coordinator_epoch: int, now_ms: int) -> None:
    """Append a marker as `Log.append_marker` does, without checking each argument again."""
    producer_id, epoch, _, _, _, _, _, _, _, version = fields(state)
    if not (commit and append_commit(log, now_ms, producer_id, epoch, coordinator_epoch, version)):
        log.append_marker(
            producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch, transaction_version=version)


cdef class RecordTransaction:
    """A transaction's records and its end. A subclass defines `_check`, which raises if no more may be written."""

    cdef readonly object _producer  # type: TransactionalProducer
    cdef readonly object _coordinator  # type: TransactionCoordinator
    cdef readonly object _groups  # type: GroupCoordinator
    cdef readonly object _owner  # type: ReferenceType[object] | None
    cdef readonly IdSteps _entry  # type: TransactionEntry
    cdef StepLock _lock
    cdef readonly NumberingAppender _appender  # type: TopicAppender
    cdef readonly Sequences _numbers  # type: SequenceNumbers
    cdef readonly bint _sync
    cdef public bint ended

    def __init__(self, producer: TransactionalProducer, Sequences numbers not None: SequenceNumbers, bint sync):
        self._coordinator, self._groups, appender, _ = producer._parts
        self._appender = <NumberingAppender?> appender
        self._entry = <IdSteps?> producer._entry
        self._owner = self._entry.owner
        self._numbers = numbers
        self._sync = sync
        self._lock = <StepLock?> producer._lock
        self._producer = producer  # last: nothing uses the transaction before this is set

    cdef int _refuse_if_over(self) except -1:
        if self._entry.owner is not self._owner or self.ended or self._producer._closed:
            self._check()
        return 0

    def _enter(self, places: Iterable[tuple[str, int]]) -> None:
        """Add to the transaction the partitions that it does not have yet."""
        cdef set entered = self._numbers.entered
        new = [place for place in places if place not in entered]
        if new:
            self._entry.add_partitions(new)
            for place in new:
                entered.add(place)

    def _finish(self, bint commit, bint sync) -> None:
        """Decide the transaction, and end it in all partitions."""
        self._take()
        try:
            self._refuse_if_over()
            try:
                if self._is_ongoing() and (
                        sync or not self._entry._end_at_once(self._coordinator, commit)):
                    self._coordinator.end(self._entry, commit=commit, sync=sync)
            finally:
                self.ended = not self._is_ongoing()
        finally:
            self._give()

    cdef int _take(self) except -1:
        """Take the locks of the producer and of the id."""
        self._lock.take()
        try:
            self._entry.lock.take()
        except BaseException:
            self._lock.give()
            raise
        return 0

    cdef void _give(self) noexcept:
        self._entry.lock.give()
        self._lock.give()

    cdef bint _is_ongoing(self) except -1:
        return self._entry.state is not None and self._entry.state.status is ONGOING


@cython.binding(True)                    # becomes a method of a Python class
def append(RecordTransaction self not None, topic: str, value: ReadableBuffer | None,
           key: ReadableBuffer | None = None, *, partition: int | None = None, timestamp: int | datetime | None = None,
           headers: Headers | None = None,
           expected_offset: int | None = None) -> RecordMetadata:
    """Append one record as `Store.append` does. The marker of a transaction takes an offset, too.

    Args:
        topic: The topic.
        value: The record's value; None is a tombstone.
        key: The record's key.
        partition: The partition to append to; by default the partitioner chooses one, as in `Store.append`.
        timestamp: Milliseconds since the epoch, or a `datetime` with a time zone; now by default.
        headers: The record's headers.
        expected_offset: Append only if the record gets this offset. Needs a `partition`.

    Returns:
        The record's partition, offset and timestamp.

    Raises:
        InvalidTxnStateError: If the transaction has ended.
        InvalidProducerEpochError: If the producer has been fenced.
        KStoreError: The errors of `Store.append`.

    Example:
        >>> txn.append("orders", b"1 pear", key=b"bob", headers={"trace": b"1"}).offset
        1
    """
    headers = headers if headers is None else arguments.header_pairs(headers)
    self._take()
    try:
        self._refuse_if_over()
        return self._appender._append_numbered(
            self._numbers, self._enter, topic, value, key, partition, timestamp, headers, expected_offset)
    finally:
        self._give()
