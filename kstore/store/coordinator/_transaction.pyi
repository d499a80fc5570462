"""The steps of a transaction, in C: add a partition, append a record, end the transaction."""

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import Final, final
from weakref import ReferenceType

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.codec.coordinator.transaction_records import TransactionState
from kstore.log.log import Log
from kstore.log.writing._appender import Appender
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.store.coordinator.producer import TransactionalProducer
from kstore.store.coordinator.transaction_log import TransactionEntry
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.read_only_logs import Logs
from kstore.store.topics.idempotent import SequenceNumbers
from kstore.store.topics.topic_append import TopicAppender
from kstore.types import Headers, RecordMetadata

VERSION: Final[int]
"""The version of Kafka's transactions in which each transaction increments the producer's epoch."""
LAST_EPOCH: Final[int]
"""The greatest epoch of a producer id; the next transaction uses another producer id."""

@final
class StepLock:
    """A reentrant lock like `threading.RLock`, which C acquires and releases without calling Python.

    In this code an interrupt can come only during the wait for the lock. The fields change under the GIL.
    """
    def renew(self) -> None:
        """Free the lock in a child process, where the thread that held it may not exist."""
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@disjoint_base
class IdSteps:
    """The state of a transactional id, its log, and its present producer. `lock` guards all of it.

    A subclass defines `_look_back`, which is called after a write that failed.
    """
    @property
    def transactional_id(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def log(self) -> Log: ...
    @property
    def lock(self) -> StepLock: ...
    owner: ReferenceType[object] | None
    state: TransactionState | None
    @property
    def _end(self) -> int: ...
    def __init__(
        self,
        transactional_id: str,
        key: bytes,
        log: Log,
        appender: Appender,
        logs: Logs,
        state: TransactionState | None,
    ) -> None: ...
    def now(self) -> int:
        """Return milliseconds since the epoch, by the store's clock; raise `LogClosedError` if the store is closed."""
    @property
    def coordinator_epoch(self) -> int:
        """The epoch of the coordinator, which is the leader epoch of the id's log."""
    def write(self, state: TransactionState) -> None:
        """Write a state to the log; it is in force from then on, even if an interrupt comes before this returns."""
    def remove(self) -> None:
        """Write a tombstone, which deletes the state of the id."""
    def add_partitions(self, places: Iterable[tuple[str, int]]) -> None:
        """Add partitions to the transaction, before a record is written to them."""
    def decide(self, commit: bool, epoch: int, next_producer_id: int, now_ms: int) -> None:
        """Write the decision to commit or to abort, with the epoch of the markers."""
    def done(self, now_ms: int) -> None:
        """Write that the decided transaction has ended in all partitions."""

def append_marker(log: Log, state: TransactionState, commit: bool, coordinator_epoch: int, now_ms: int) -> None:
    """Append a marker as `Log.append_marker` does, without checking each argument again."""

@disjoint_base
class RecordTransaction:
    """A transaction's records and its end. A subclass defines `_check`, which raises if no more may be written."""
    @property
    def _producer(self) -> TransactionalProducer: ...
    @property
    def _coordinator(self) -> TransactionCoordinator: ...
    @property
    def _groups(self) -> GroupCoordinator: ...
    @property
    def _owner(self) -> ReferenceType[object] | None: ...
    @property
    def _entry(self) -> TransactionEntry: ...
    @property
    def _appender(self) -> TopicAppender: ...
    @property
    def _numbers(self) -> SequenceNumbers: ...
    @property
    def _sync(self) -> bool: ...
    ended: bool
    def __init__(self, producer: TransactionalProducer, numbers: SequenceNumbers, sync: bool) -> None: ...
    def _enter(self, places: Iterable[tuple[str, int]]) -> None:
        """Add to the transaction the partitions that it does not have yet."""
    def _finish(self, commit: bool, sync: bool) -> None:
        """Decide the transaction, and end it in all partitions."""

def append(
    self: RecordTransaction,
    topic: str,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None = None,
    *,
    partition: int | None = None,
    timestamp: int | datetime | None = None,
    headers: Headers | None = None,
    expected_offset: int | None = None,
) -> RecordMetadata:
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
