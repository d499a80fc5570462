"""Producers: `Producer` numbers its batches, `TransactionalProducer` writes to several partitions atomically.

`topics.idempotent` appends with sequence numbers, `transactions` is the coordinator. Invariant: if a failed call is
repeated, each record is in the log exactly once: the producer asks the log which records it has.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kstore._core import Record
from kstore.base import arguments
from kstore.base.closing import Closing
from kstore.codec.coordinator.transaction_records import Status
from kstore.config.settings import shortened
from kstore.disk import fs
from kstore.errors import InvalidTxnStateError, KStoreError, StorageError, closed
from kstore.log.hosted_log import HostedLog
from kstore.store.coordinator import _transaction
from kstore.store.coordinator._transaction import RecordTransaction, StepLock
from kstore.store.coordinator.consumer import Positions
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.store.coordinator.transaction_log import draw_producer_id
from kstore.store.coordinator.transactions import TransactionCoordinator, check_transactional_id, fenced
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics._idempotent import RecordProducer, SequenceLock, append_at_once
from kstore.store.topics.append_source import ColumnArguments, Records
from kstore.store.topics.idempotent import SequenceNumbers
from kstore.store.topics.topic_append import AppendOptions, TopicAppender
from kstore.types import RecordMetadata

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.types import AppendInfo, Headers

logger = logging.getLogger("kstore")

Place = tuple[str, int]

TIMEOUT_MS = 60_000  # transaction.timeout.ms of Kafka's producer

_COMPLETE = Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT, Status.EMPTY


class Producer(RecordProducer, Closing):
    """Appends records with sequence numbers, created by `Store.producer()`.

    A call that raised may be repeated. If the same method is called next with equal records and equal arguments, the
    call is a retry, and records that the first attempt has stored are not stored again. Any other call abandons the
    failed one. Each producer has its own id, and knows only the records that it has appended itself. To continue after
    a restart use transactions: the position that a transaction commits says where to continue.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> producer = store.producer()
        >>> producer.append("orders", b"3 apples", key=b"alice", sync=True).offset
        0

    Thread-safe: any method may be called from any thread.
    """

    _appender: TopicAppender
    _numbers: SequenceNumbers

    def __init__(self, appender: TopicAppender) -> None:
        self._appender = appender
        self._closed = False
        self._opened_in = 0
        self._numbers = SequenceNumbers(draw_producer_id(), 0, transactional=False)
        self._lock = SequenceLock(self._numbers)
        self._failed: _Attempt | None = None  # the last attempt, if it raised
        self._running: object = None  # the attempt that started last
        fs.register(self)

    @property
    def producer_id(self) -> int:
        """The producer id in the batches of this producer."""
        return self._numbers.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch, always 0."""
        return self._numbers.producer_epoch

    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        sync: bool = False,
    ) -> RecordMetadata:
        """Append one record as `Store.append` does; a retry does not store the record again.

        Args:
            topic: The topic.
            value: The record's value; None is a tombstone.
            key: The record's key.
            partition: The partition to append to; by default the partitioner chooses one, as in `Store.append`.
            timestamp: Milliseconds since the epoch, or a `datetime` with a time zone; now by default.
            headers: The record's headers.
            sync: Whether the record is on the disk when this returns.

        Returns:
            The record's partition, offset and timestamp.

        Raises:
            OutOfOrderSequenceError: If the log has lost records of this producer.
            KStoreError: The errors of `Store.append`.

        Example:
            >>> producer.append("orders", b"1 pear", key=b"bob", headers={"trace": b"1"}).offset
            1
        """
        chosen = partition
        if headers is None and not sync and self._failed is None:
            taken: list[Any] = [None]
            try:
                appended = append_at_once(self, taken, topic, partition, value, key, timestamp)
                if taken[0] is not None:
                    return appended  # type: ignore[return-value]
                chosen = appended  # type: ignore[assignment]
            except BaseException as error:  # also an interrupt right after the append
                if isinstance(error, StorageError):
                    self._appender.forget_route(topic)
                if (stored := taken[0]) is not None:  # the record is in the log
                    call = ("append", topic, value, key, partition, timestamp, None)
                    with self._lock:
                        self._running, self._failed = stored, _Attempt(_frozen(call), stored)
                raise
        headers = None if headers is None else arguments.header_pairs(headers)
        attempt = _Attempt(("append", topic, value, key, partition, timestamp, headers))
        try:
            with self._lock:
                self._begin(attempt)
                appended = None
                if attempt.known is not None:
                    (_, chosen), _ = attempt.known
                    appended = self._stored(*attempt.known)
                if appended is None:
                    appended = self._appender.append_numbered(
                        self._numbers, None, topic, value, key, chosen, timestamp, headers
                    )
                if sync:
                    self._appender.log(topic, appended.partition).flush()
                return appended
        except BaseException:
            self._keep(attempt)
            raise

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append many records as `Store.append_many` does; a retry does not store records again.

        A retry must pass the same `list` or `tuple`. A call with any other iterable is never a retry, since the
        iterable may yield other records.

        Args:
            topic: The topic.
            records: The records, in a form that `Store.append_many` takes.
            partition: The partition for all records; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            sync: Whether all records are on the disk when this returns.
            batch_bytes: The size up to which batches are filled, as in `Store.append_many`.
            seed: With the same seed, a repeated call sends records without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            OutOfOrderSequenceError: If a log has lost records of this producer.
            KStoreError: The errors of `Store.append_many`.

        Example:
            >>> appended = producer.append_many("orders", [(b"bob", b"1 pear"), (b"alice", b"4 apples")], sync=True)
            >>> appended[0].last_offset
            2
        """
        identity = records if isinstance(records, list | tuple) else object()
        attempt = _Attempt(("append_many", topic, identity, partition, compression, batch_bytes, seed))
        options = AppendOptions(partition, compression, batch_bytes, sync, seed)
        return self._load(attempt, topic, options, Records(records))

    def append_columns(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append a record for each row of `values`; a retry does not store records again.

        Appends as `Store.append_columns` does. A retry passes equal rows, in the same columns or in others. A stream of
        Arrow data that can be read only once (it has no length) cannot be passed again. If a call raised, its rows are
        encoded once more to compare them with the next call's rows; a call that did not raise has no extra cost.

        Args:
            topic: The topic.
            values: The values, or all columns at the same time, in a form that `Log.append_columns` takes.
            keys: The column of keys.
            timestamps: The column of timestamps, or one timestamp for all rows.
            headers: The column of headers.
            partition: The partition for all rows; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            sync: Whether all records are on the disk when this returns.
            batch_bytes: The size up to which batches are filled, as in `Store.append_many`.
            threads: How many threads compress batches, as in `Log.append_columns`.
            seed: With the same seed, a repeated call sends rows without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            OutOfOrderSequenceError: If a log has lost records of this producer.
            KStoreError: The errors of `Store.append_columns`.

        Example:
            >>> appended = producer.append_columns("orders", [b"1 pear", b"4 apples"], keys=[b"bob", b"alice"])
            >>> appended[0].last_offset
            2
        """
        columns = ColumnArguments(values, keys, timestamps, headers, threads)
        attempt = _Attempt(("append_columns", topic, columns, partition, compression, batch_bytes, seed))
        options = AppendOptions(partition, compression, batch_bytes, sync, seed)
        return self._load(attempt, topic, options, columns)

    def _load(
        self, attempt: _Attempt, topic: str, options: AppendOptions, rows: Records | ColumnArguments
    ) -> dict[int, AppendInfo]:
        """Append the rows that no earlier attempt at the same call has stored."""
        seed, load = options.seed, None
        try:
            with self._lock:
                self._begin(attempt)
                seed, before = (secrets.randbits(32) if seed is None else seed, None)
                if attempt.known is not None:
                    seed, before = attempt.known
                load = self._appender.load(topic, options._replace(seed=seed), self._numbers, again=before)
                return load.run(rows)
        except BaseException:
            self._keep(attempt, None if load is None else (seed, load))
            raise

    def _begin(self, attempt: _Attempt) -> None:
        """Start an attempt; if the previous one was the same call and raised, take over its state."""
        if self._closed:
            raise closed("the producer", self._opened_in)
        failed = self._failed
        if failed is not None and failed.call == _frozen(attempt.call):
            attempt.known = failed.known
        # One statement, so that no interrupt comes between the assignments.
        self._failed, self._running, self._numbers.taken = None, attempt, None

    def _keep(self, attempt: _Attempt, known: Any = None) -> None:
        """Keep the state of a failed attempt, unless another one has started since.

        The attempt may have released the lock already: an interrupt may come then, too.
        """
        with self._lock:
            known = known or self._numbers.taken or attempt.known
            if self._running is attempt and known is not None:
                self._failed = _Attempt(_frozen(attempt.call), known)

    def _stored(self, place: Place, sequence: int) -> RecordMetadata | None:
        """Return where the record with this sequence number is, or None if it is not in the log."""
        topic, partition = place
        info = self._numbers.info(HostedLog(self._appender.log(topic, partition)).writer)
        for batch in () if info is None else info.batches:
            if batch.first_sequence <= sequence <= batch.last_sequence:
                self._numbers.used(place, sequence, 1)
                offset = batch.first_offset + sequence - batch.first_sequence
                return RecordMetadata(topic, partition, offset, batch.timestamp)
        return None

    def _after_fork(self) -> None:
        """Close the producer in a child process, like the store; the thread that held the lock may not exist."""
        self._lock = SequenceLock(self._numbers)
        self._opened_in = fs.opener()
        self.close()

    def close(self) -> None:
        """Close the producer; there is nothing to wait for. Idempotent.

        Example:
            >>> producer.close()
            >>> producer.append("orders", b"1 pear", key=b"bob")
            Traceback (most recent call last):
            ...
            kstore.errors.LogClosedError: ...
        """
        self._closed = True
        self._lock.close()
        self._failed = None

    def __repr__(self) -> str:
        return f"<kstore.Producer{' closed' if self._closed else ''} id={self.producer_id}>"


class _Attempt:
    """One call of a producer. `known` is its record's place and sequence number, or its rows' seed and load."""

    __slots__ = ("call", "known")

    def __init__(self, call: Any, known: Any = None) -> None:
        self.call = call
        self.known = known


_DEEPEST = 6  # a call's records, a record, its headers, a header, its value


def _frozen(item: Any, depth: int = _DEEPEST) -> Any:
    """Return a copy of a call's arguments: the caller may change buffers and lists before the next call."""
    if item is None or isinstance(item, bytes | str | int | datetime | Record | ConsumerRecord):
        return item
    if isinstance(item, ColumnArguments):
        return item.digest()
    if isinstance(item, list | tuple):
        return tuple(_frozen(part, depth - 1) for part in item) if depth else object()
    try:
        return bytes(memoryview(item))
    except (TypeError, ValueError, NotImplementedError):
        return object()  # not a valid record


class TransactionalProducer(Closing):
    """Writes transactions under an id that outlives the producer, created by `Store.producer(transactional_id=...)`.

    A later producer with the same id fences this producer: the open transaction is aborted, and all later calls of this
    producer fail. A producer has one transaction at a time.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> producer = store.producer(transactional_id="loader-7")
        >>> with producer.transaction() as txn:
        ...     place = txn.append("orders", b"3 apples", key=b"alice")
        >>> [record.value for record in store.read("orders", isolation="read_committed")]
        [b'3 apples']

    Thread-safe, but threads that share a transaction commit it for each other.
    """

    def __init__(self, parts: TransactionParts, transactional_id: str, timeout_ms: int) -> None:
        self._parts = parts
        self._lock = StepLock()  # one append or end at a time; taken before the entry's lock
        self._closed = False
        self._opened_in = 0
        self._current: Transaction | None = None
        self._entry = parts.coordinator.begin(transactional_id, timeout_ms, self)
        fs.register(self)

    @property
    def transactional_id(self) -> str:
        """The transactional id."""
        return self._entry.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id that the transactional id has now."""
        return -1 if self._entry.state is None else self._entry.state.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch of the open transaction, or of the next one."""
        return -1 if self._entry.state is None else self._entry.state.producer_epoch

    def transaction(self, *, sync: bool = False) -> Transaction:
        """Start a transaction.

        `with producer.transaction() as txn:` commits the transaction at the end of the block, or aborts it on an
        exception. `async with` does the same in a task of an event loop: a cancellation inside the block aborts the
        transaction.

        Args:
            sync: Whether the commit is on the disk when the block ends.

        Returns:
            The transaction.

        Raises:
            InvalidTxnStateError: If another transaction of this producer is open.
            InvalidProducerEpochError: If the producer has been fenced.

        Example:
            >>> with producer.transaction(sync=True) as txn:
            ...     place = txn.append("orders", b"1 pear", key=b"bob")
            ...     txn.commit_offsets("loaders", {("files", 0): 17})
            >>> [record.value for record in store.read("orders", isolation="read_committed")]
            [b'3 apples', b'1 pear']
        """
        self._parts.logs.leading().stand_in()
        with self._lock, self._entry.lock:
            self._check()
            if self._current is not None and not self._current.ended:
                raise InvalidTxnStateError(
                    f"a transaction of {self.transactional_id} is open: commit or abort it first"
                )
            state = self._entry.state
            assert state is not None
            if state.status not in _COMPLETE:  # a marker was not written, or the end failed before the decision
                self._parts.coordinator.settle(self._entry)
                state = self._entry.state
                assert state is not None
            numbers = SequenceNumbers(state.producer_id, state.producer_epoch, transactional=True)
            self._current = Transaction(self, numbers, sync)
            return self._current

    def _check(self) -> None:
        if self._closed:
            raise closed(f"the producer of {self.transactional_id}", self._opened_in)
        owner = self._entry.owner
        if owner is None or owner() is not self:
            raise fenced(self._entry)

    @property
    def _is_owner(self) -> bool:
        owner = self._entry.owner
        return owner is not None and owner() is self

    def _after_fork(self) -> None:
        """Close the producer in a child process, like the store; the threads that held the locks may not exist."""
        self._lock.renew()
        self._entry.lock.renew()
        self._closed, self._opened_in = True, fs.opener()

    def close(self) -> None:
        """Abort the open transaction, and release the id. Idempotent.

        Example:
            >>> txn = producer.transaction()
            >>> place = txn.append("orders", b"1 pear", key=b"bob")
            >>> producer.close()
            >>> [record.value for record in store.read("orders", isolation="read_committed")]
            [b'3 apples']
        """
        with self._lock, self._entry.lock:
            if self._closed:
                return
            try:
                if self._current is not None and not self._current.ended and self._is_owner:
                    self._current.abort()
            finally:
                self._closed = True
                if self._is_owner:
                    self._entry.owner = None

    def __repr__(self) -> str:
        state = " closed" if self._closed else "" if self._is_owner else " fenced"
        return f"<kstore.TransactionalProducer{state} of {shortened(self.transactional_id)} id={self.producer_id}>"


class Transaction(RecordTransaction):
    """A transaction: readers of committed records see all of its records, or none.

    If an append raises, the transaction is still open: abort it, as a `with` block does.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> producer = store.producer(transactional_id="loader-7")
        >>> txn = producer.transaction()
        >>> txn.append("orders", b"3 apples", key=b"alice").offset
        0
        >>> [record.value for record in store.read("orders", isolation="read_committed")]
        []

    Thread-safe, but threads that share a transaction commit it for each other.
    """

    ended: bool
    """Whether the transaction was committed or aborted."""

    append = _transaction.append

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        partition: int | None = None,
        compression: str | None = None,
        batch_bytes: int | None = None,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append many records as `Store.append_many` does.

        Args:
            topic: The topic.
            records: The records, in a form that `Store.append_many` takes.
            partition: The partition for all records; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            batch_bytes: The size up to which batches are filled, as in `Store.append_many`.
            seed: With the same seed, a repeated call sends records without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            InvalidTxnStateError: If the transaction has ended.
            InvalidProducerEpochError: If the producer has been fenced.
            KStoreError: The errors of `Store.append_many`.

        Example:
            >>> appended = txn.append_many("orders", [(b"bob", b"1 pear"), (b"alice", b"4 apples")], compression="zstd")
            >>> appended[0].last_offset
            2
        """
        with self._producer._lock:
            with self._entry.lock:
                self._check()
            options = AppendOptions(partition, compression, batch_bytes, False, seed)
            # The entry's lock is not held while records are encoded: the timeout and the next producer need it.
            load = self._appender.load(
                topic, options, self._numbers, enter=self._check_and_enter, lock=self._entry.lock
            )
            return load.run(Records(records))

    def append_columns(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        partition: int | None = None,
        compression: str | None = None,
        batch_bytes: int | None = None,
        threads: int = 1,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append a record for each row of `values` as `Store.append_columns` does.

        Args:
            topic: The topic.
            values: The values, or all columns at the same time, in a form that `Log.append_columns` takes.
            keys: The column of keys.
            timestamps: The column of timestamps, or one timestamp for all rows.
            headers: The column of headers.
            partition: The partition for all rows; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            batch_bytes: The size up to which batches are filled, as in `Store.append_many`.
            threads: How many threads compress batches, as in `Log.append_columns`.
            seed: With the same seed, a repeated call sends rows without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            InvalidTxnStateError: If the transaction has ended.
            InvalidProducerEpochError: If the producer has been fenced.
            KStoreError: The errors of `Store.append_columns`.

        Example:
            >>> appended = txn.append_columns("orders", [b"1 pear", b"4 apples"], keys=[b"bob", b"alice"])
            >>> appended[0].last_offset
            2
        """
        with self._producer._lock:
            with self._entry.lock:
                self._check()
            columns = ColumnArguments(values, keys, timestamps, headers, threads)
            options = AppendOptions(partition, compression, batch_bytes, False, seed)
            load = self._appender.load(topic, options, self._numbers, enter=self._enter_locked)
            return load.run(columns)

    def _enter_locked(self, places: Iterable[Place]) -> None:
        with self._entry.lock:
            self._check_and_enter(places)

    def commit_offsets(self, group: str, offsets: Mapping[Place, int], metadata: str = "") -> None:
        """Commit a group's positions as `Store.commit_offsets` does, if and when the transaction is committed.

        Args:
            group: The group's name.
            offsets: For each `(topic, partition)` the offset of the next record to read.
            metadata: A text that is stored with each position.

        Raises:
            InvalidTxnStateError: If the transaction has ended.
            InvalidProducerEpochError: If the producer has been fenced.
            KStoreError: The errors of `Store.commit_offsets`.

        Example:
            >>> txn.commit_offsets("loaders", {("files", 0): 17})
            >>> store.committed_offsets("loaders")
            {}
            >>> txn.commit()
            >>> store.committed_offsets("loaders")
            {('files', 0): 17}
        """
        with self._producer._lock, self._entry.lock:
            self._check()
            self._groups.commit_in_transaction(Positions(group, offsets, metadata), self._numbers, self._enter)

    def commit(self, *, sync: bool | None = None) -> None:
        """Commit the transaction: readers of committed records now see all of its records.

        If this raises after the decision was written, the next transaction, the housekeeping or the next opening
        completes the commit. If it raises before, the transaction is still open.

        Args:
            sync: If true, all records and the decision are on the disk before any marker is written, and the markers
                are on the disk when this returns. If false, the transaction is atomic if the process crashes, but not
                if the machine does. By default the `sync` that `transaction` got.

        Raises:
            InvalidTxnStateError: If the transaction has ended.
            InvalidProducerEpochError: If the producer has been fenced.
            StorageError: If the disk fails.

        Example:
            >>> txn.commit(sync=True)
            >>> [record.value for record in store.read("orders", isolation="read_committed")]
            [b'3 apples']
        """
        self._finish(True, self._sync if sync is None else sync)

    def abort(self) -> None:
        """Abort the transaction: readers of committed records never see any of its records.

        Raises:
            InvalidTxnStateError: If the transaction has ended.
            InvalidProducerEpochError: If the producer has been fenced.
            StorageError: If the disk fails.

        Example:
            >>> txn.abort()
            >>> [record.value for record in store.read("orders", isolation="read_committed")]
            []
        """
        self._finish(False, False)

    def _check(self) -> None:
        self._producer._check()
        if self.ended:
            raise InvalidTxnStateError(f"the transaction of {self._entry.transactional_id} has ended")
        state = self._entry.state
        if state is not None and state.status.is_prepared:
            raise InvalidTxnStateError(
                f"the transaction of {self._entry.transactional_id} is decided ({state.status.name}), and not done yet"
            )

    def _check_and_enter(self, places: Iterable[Place]) -> None:
        self._check()
        self._enter(places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended:
            return
        try:
            if kind is None:
                self.commit()
        finally:
            if not self.ended:
                self._give_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block as `with` does; a thread of the loop's executor makes a commit with `sync=True`.

        If the task is cancelled inside the block, the transaction is aborted. If the task is cancelled during the
        commit, the cancellation takes effect after the commit. `ended` is true in all cases.
        """
        if kind is None and self._sync and not self.ended:
            from kstore.base import loops

            await loops.finished(partial(self.__exit__, None, None, None))
        else:
            self.__exit__(kind, error, trace)

    def _give_up(self) -> None:
        """Abort if possible; a failure is only logged, so that the error that ends the block is raised."""
        try:
            self.abort()
        except KStoreError as failure:
            logger.error("transaction of %s: not aborted: %s", self._entry.transactional_id, failure)
        self.ended = True

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        name = shortened(self._entry.transactional_id)
        return f"<kstore.Transaction of {name}, {state}, {len(self._numbers.entered)} partitions>"


class TransactionParts(NamedTuple):
    """The parts that a transactional producer needs."""

    coordinator: TransactionCoordinator
    groups: GroupCoordinator
    appender: TopicAppender
    logs: Logs


class Producers:
    """Creates the producers of a store. Thread-safe."""

    def __init__(self, metadata: Metadata, parts: TransactionParts) -> None:
        self._metadata = metadata
        self._parts = parts

    def producer(self, transactional_id: str | None, transaction_timeout_ms: int) -> Producer | TransactionalProducer:
        self._parts.logs.leading().stand_in()
        if transactional_id is None:
            return Producer(self._parts.appender)
        check_transactional_id(transactional_id)
        most_ms = max(self._metadata.broker.transaction_max_timeout_ms, 1)
        timeout_ms = arguments.integer("transaction_timeout_ms", transaction_timeout_ms, 1, most_ms)
        return TransactionalProducer(self._parts, transactional_id, timeout_ms)
