"""Producers: `Producer` numbers its batches, `TransactionalProducer` writes to several partitions as one.

What users of a `Store` hold. Numbers are in producerwrites.py, the coordinator's part in transactions.py. The hardest
rule: after an error nothing is appended twice and nothing is passed over as if it had been: the log is asked.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from kstore import fs
from kstore._consume import ConsumerRecord
from kstore._core import Record
from kstore._numbered import Hold
from kstore.closing import Closing
from kstore.errors import InvalidTxnStateError, KStoreError, LogClosedError, StorageError
from kstore.groups import Groups
from kstore.producerwrites import NumberedWrites, Numbers
from kstore.topiccolumns import TopicColumnWrites
from kstore.topicwrites import RecordMetadata
from kstore.transactionlog import draw_producer_id
from kstore.transactionrecords import Status
from kstore.transactions import Transactions, check_timeout, check_transactional_id, fenced

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.appends import AppendInfo
    from kstore.brokerconfig import BrokerConfig
    from kstore.keeper import Keeper
    from kstore.log import Log
    from kstore.producerwrites import NumberedLoad

logger = logging.getLogger("kstore")

Headers = Iterable[tuple[str, "ReadableBuffer | None"]] | None
Place = tuple[str, int]

TIMEOUT_MS = 60_000  # transaction.timeout.ms of Kafka's producer


class Producer(Closing):
    """Appends with numbered batches, made by `Store.producer()`. Safe from any thread.

    A call that raised may be repeated: equal records, given to the same method with equal arguments, are then a
    retry, and what the first attempt has stored is not stored again. Any other call gives the failed one up. Each
    producer has an id of its own; what another has appended before, or this one in an earlier life, it knows nothing
    of: across restarts a transaction, with the position it commits, says where to go on.
    """

    def __init__(self, store: Producers) -> None:
        self._store = store
        self._closed = False
        self._numbers = Numbers(draw_producer_id(), 0, transactional=False)
        self._lock = Hold(self._numbers)
        self._failed: tuple[Any, Any] | None = None  # a call that raised, and what is known of it
        self._again: Any = None  # what was known of it as it was repeated
        self._running: object = None  # the call that began last
        fs.register(self)

    @property
    def producer_id(self) -> int:
        """The id under which the logs know it."""
        return self._numbers.producer_id

    @property
    def producer_epoch(self) -> int:
        """Its epoch, 0."""
        return self._numbers.producer_epoch

    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = None,
        sync: bool = False,
    ) -> RecordMetadata:
        """Append one record as `Store.append` does, once, however often it is retried.

        Raises what `Store.append` raises, and `OutOfOrderSequenceError` when the log has lost what it had.
        """
        chosen = partition
        if headers is None and not sync and self._failed is None:
            taken: list[Any] = [None]
            try:
                route = self._store._routes.get(topic)
                if route is not None and route.entries is self._store._catalog.partitions(topic):
                    done = self._numbers.append(taken, route, topic, partition, value, key, timestamp)
                    if isinstance(done, RecordMetadata):
                        self._running = taken
                        return done
                    chosen = done
            except BaseException as error:
                self._keep_quick(taken, ("append", topic, value, key, partition, timestamp, None), error)
                raise
        return self._append(topic, value, key, partition, chosen, timestamp, headers, sync)

    def _append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        chosen: int | None,
        timestamp: int | None,
        headers: Headers,
        sync: bool,
    ) -> RecordMetadata:
        """Append one record under the lock, to the `chosen` partition of a call that asked for `partition`."""
        headers = headers if headers is None else list(headers)
        call = ("append", topic, value, key, partition, timestamp, headers)
        mine = object()
        try:
            with self._lock:
                found = None
                again = self._begin(mine, call)
                if again is not None:
                    (_, chosen), _ = again
                    found = self._stored(*again)
                if found is None:
                    found = self._store._append_numbered(
                        self._numbers, None, topic, value, key, chosen, timestamp, headers
                    )
                if sync:
                    self._store.log(found.topic, found.partition).flush()
                return found
        except BaseException:
            self._keep(mine, call)
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
        """Append many records as `Store.append_many` does, each once, however often the call is retried.

        Only a list or tuple can be given again: an iterator that was gone through cannot.
        """
        whose = records if isinstance(records, list | tuple) else object()
        call = ("append_many", topic, whose, partition, compression, batch_bytes, seed)
        mine = object()
        loads: list[NumberedLoad] = []
        try:
            with self._lock:
                again = self._begin(mine, call)
                chosen, load = (secrets.randbits(32) if seed is None else seed, None) if again is None else again
                return self._store._append_many_numbered(
                    self._numbers,
                    None,
                    topic,
                    records,
                    partition=partition,
                    compression=compression,
                    batch_bytes=batch_bytes,
                    sync=sync,
                    seed=chosen,
                    again=load,
                    loads=loads,
                )
        except BaseException:
            self._keep(mine, call, (chosen, loads[-1]) if loads else None)
            raise

    def _begin(self, mine: object, call: tuple[Any, ...]) -> Any:
        """What is known of an attempt at the same call that failed just now, None for another call."""
        if self._closed:
            raise LogClosedError("the producer is closed")
        failed = self._failed
        known = failed[1] if failed is not None and failed[0] == _frozen(call) else None
        # In one step: no interrupt comes between assignments.
        self._again, self._failed, self._running, self._numbers.taken = known, None, mine, None
        return known

    def _keep(self, mine: object, call: tuple[Any, ...], known: Any = None) -> None:
        """Keep what is known of a call that was broken off, unless another has begun since.

        Also of one whose lock has been given back: an interrupt may come there, too.
        """
        with self._lock:
            if self._running is mine:
                known = known or self._numbers.taken or self._again
                if known is not None:
                    self._failed = (_frozen(call), known)

    def _keep_quick(self, taken: list[Any], call: tuple[Any, ...], error: BaseException) -> None:
        """Keep what is known of a call that was broken off without the lock: whether its record is in."""
        if isinstance(error, StorageError):
            self._store._routes.pop(call[1], None)
        if taken[0] is not None:
            with self._lock:
                self._running, self._failed = taken, (_frozen(call), taken[0])

    def _stored(self, place: Place, sequence: int) -> RecordMetadata | None:
        """Where the record of this number is, if it is in the log."""
        topic, partition = place
        info = self._numbers.info(self._store.log(topic, partition))
        for batch in () if info is None else info.batches:
            if batch.first_sequence <= sequence <= batch.last_sequence:
                self._numbers.used(place, sequence, 1)
                offset = batch.first_offset + sequence - batch.first_sequence
                return RecordMetadata(topic, partition, offset, batch.timestamp)
        return None

    def _after_fork(self) -> None:
        """Be closed in a child process, like the store; the thread that had the lock may not be there."""
        self._lock = Hold(self._numbers)
        self.close()

    def close(self) -> None:
        """End it; there is nothing to wait for. Idempotent."""
        self._closed = True
        self._lock.close()
        self._failed = None

    def __repr__(self) -> str:
        return f"<kstore.Producer{' closed' if self._closed else ''} id={self.producer_id}>"


_DEEPEST = 6  # a call's records, a record, its headers, a header, its value


def _frozen(item: Any, depth: int = _DEEPEST) -> Any:
    """What a call was given, as it is now: buffers and lists may be filled anew before the next."""
    if item is None or isinstance(item, bytes | str | int | Record | ConsumerRecord):
        return item
    if isinstance(item, list | tuple):
        return tuple(_frozen(each, depth - 1) for each in item) if depth else object()
    try:
        return bytes(memoryview(item))
    except (TypeError, ValueError, NotImplementedError):
        return object()  # no record can be made of it


class TransactionalProducer(Closing):
    """Writes transactions under an id that outlives it, made by `Store.producer(transactional_id=...)`.

    Whoever asks for the same id later fences it: its transaction is aborted, and it can do nothing more. It holds one
    transaction at a time. Safe from any thread, but threads that share a transaction commit it for each other.
    """

    def __init__(self, store: Producers, transactional_id: str, timeout_ms: int) -> None:
        self._store = store
        self._lock = threading.RLock()  # one append or end at a time; taken before the entry's
        self._closed = False
        self._current: Transaction | None = None
        self._entry = store._init_transactions(transactional_id, timeout_ms, self)
        fs.register(self)

    @property
    def transactional_id(self) -> str:
        """The id."""
        return self._entry.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id that belongs to it now."""
        return -1 if self._entry.state is None else self._entry.state.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the transaction that is open, or of the next."""
        return -1 if self._entry.state is None else self._entry.state.producer_epoch

    def transaction(self, *, sync: bool = False) -> Transaction:
        """Begin a transaction: `with producer.transaction() as txn:` commits it, or aborts it on an exception.

        With `sync=True` its commit is on the disk when the block ends. Raises `InvalidTxnStateError` while another is
        open, `InvalidProducerEpochError` for a producer that was fenced.
        """
        with self._lock, self._entry.lock:
            self._check()
            if self._current is not None and not self._current.ended:
                raise InvalidTxnStateError(
                    f"a transaction of {self.transactional_id} is open: commit or abort it first"
                )
            state = self._entry.state
            assert state is not None
            if state.status.is_prepared:  # a marker could not be written
                self._store._complete(self._entry, only_open=True)
            elif state.status == Status.ONGOING:  # what failed before it was decided
                self._store._end(self._entry, commit=False, sync=False)
            state = self._entry.state
            assert state is not None
            numbers = Numbers(state.producer_id, state.producer_epoch, transactional=True)
            self._current = Transaction(self, numbers, sync)
            return self._current

    def _check(self) -> None:
        if self._closed:
            raise LogClosedError(f"the producer of {self.transactional_id} is closed")
        owner = self._entry.owner
        if owner is None or owner() is not self:
            raise fenced(self._entry)

    @property
    def _is_owner(self) -> bool:
        owner = self._entry.owner
        return owner is not None and owner() is self

    def _after_fork(self) -> None:
        """Be closed in a child process, like the store; the threads that had the locks may not be there."""
        self._lock = threading.RLock()
        self._entry.lock = threading.RLock()
        self._closed = True

    def close(self) -> None:
        """Abort the transaction that is open, and give the id back. Idempotent."""
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
        return f"<kstore.TransactionalProducer{state} of {self.transactional_id!r} id={self.producer_id}>"


class Transaction:
    """What is written between beginning and end: readers of committed records see all of it, or nothing.

    After an error that leaves here it is still open: abort it, as a `with` block does.
    """

    def __init__(self, producer: TransactionalProducer, numbers: Numbers, sync: bool) -> None:
        self._producer = producer
        self._entry = producer._entry
        self._store = producer._store
        self._numbers = numbers
        self._sync = sync
        self._whose = self._entry.owner
        self._append_numbered = producer._store._append_numbered
        self._partitions = numbers.entered
        self.ended = False
        """Whether it was committed or aborted."""

    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = None,
    ) -> RecordMetadata:
        """Append one record as `Store.append` does; where it is."""
        headers = headers if headers is None else list(headers)
        entry = self._entry
        with self._producer._lock, entry.lock:
            if entry.owner is not self._whose or self.ended or self._producer._closed:
                self._check()
            return self._append_numbered(self._numbers, self._enter, topic, value, key, partition, timestamp, headers)

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
        """Append many records as `Store.append_many` does; what each partition got."""
        with self._producer._lock:
            with self._entry.lock:
                self._check()
            return self._store._append_many_numbered(
                self._numbers,
                self._check_and_enter,
                topic,
                records,
                partition=partition,
                compression=compression,
                batch_bytes=batch_bytes,
                sync=False,
                seed=seed,
                lock=self._entry.lock,  # not while records are made: the timeout and the next producer want it
            )

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
        """Append a record for each row of `values` as `Store.append_columns` does; what each partition got."""
        with self._producer._lock:
            with self._entry.lock:
                self._check()
            return self._store._append_columns(
                topic,
                values,
                keys,
                timestamps,
                headers,
                partition,
                compression,
                False,
                batch_bytes,
                threads,
                seed,
                self._numbers,
                self._enter_locked,
            )

    def _enter_locked(self, places: Iterable[Place]) -> None:
        with self._entry.lock:
            self._check_and_enter(places)

    def commit_offsets(self, group: str, offsets: Mapping[Place, int], metadata: str = "") -> None:
        """Write down where a group goes on, as `Store.commit_offsets` does, if and when this is committed."""
        with self._producer._lock, self._entry.lock:
            self._check()
            self._store._commit_offsets_in(self._numbers, self._enter, group, offsets, metadata)

    def commit(self, *, sync: bool | None = None) -> None:
        """Commit: everything written is there for readers of committed records.

        With `sync=True` all of it and the decision are on the disk before any marker, and the markers when this
        returns; without, all or nothing holds for the death of the process, not of the machine. When this raises
        after the decision was written, the commit is completed by the next transaction, the housekeeping or the next
        opening; before, the transaction is still open.
        """
        self._end(commit=True, sync=self._sync if sync is None else sync)

    def abort(self) -> None:
        """Abort: nothing of it was ever there for readers of committed records."""
        self._end(commit=False, sync=False)

    def _end(self, *, commit: bool, sync: bool) -> None:
        with self._producer._lock, self._entry.lock:
            self._check()
            try:
                if self._is_ongoing:
                    self._store._end(self._entry, commit=commit, sync=sync)
            finally:
                self.ended = not self._is_ongoing

    @property
    def _is_ongoing(self) -> bool:
        state = self._entry.state
        return state is not None and state.status == Status.ONGOING

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

    def _enter(self, places: Iterable[Place]) -> None:
        known = self._partitions
        new = [place for place in places if place not in known]
        if new:
            self._store._add_partitions(self._entry, new)
            known.update(new)

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

    def _give_up(self) -> None:
        """Abort if that can be done now; the error that is on its way is the one to tell."""
        try:
            self.abort()
        except KStoreError as failure:
            logger.error("transaction of %s: not aborted: %s", self._entry.transactional_id, failure)
        self.ended = True

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<kstore.Transaction of {self._entry.transactional_id!r}, {state}, {len(self._partitions)} partitions>"


class Producers(TopicColumnWrites, NumberedWrites, Groups, Transactions):
    """How a `Store` is given producers, and what these use of it."""

    _broker: BrokerConfig
    _writing: Callable[[], Keeper]
    log: Callable[[str, int], Log]

    @overload
    def producer(self) -> Producer: ...
    @overload
    def producer(self, *, transactional_id: str, transaction_timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer: ...
    def producer(
        self, *, transactional_id: str | None = None, transaction_timeout_ms: int = TIMEOUT_MS
    ) -> Producer | TransactionalProducer:
        """Make a producer: one that numbers its batches, or, with a `transactional_id`, one that writes transactions.

        For an id another producer may have: it is fenced, and what it left open is aborted. A transaction that stays
        open for `transaction_timeout_ms` is aborted by the housekeeping, and its producer fenced. Raises `ValueError`
        for an empty id or a timeout above `transaction.max.timeout.ms`.
        """
        self._writing()
        if transactional_id is None:
            return Producer(self)
        check_transactional_id(transactional_id)
        timeout_ms = check_timeout(transaction_timeout_ms, self._broker.transaction_max_timeout_ms)
        return TransactionalProducer(self, transactional_id, timeout_ms)
