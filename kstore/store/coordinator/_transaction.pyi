"""The steps of a transaction, in C: each partition that it goes to, each record, and its end are some of them."""

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
"""Of Kafka's transactions: with each of them the producer's epoch goes up by one."""
LAST_EPOCH: Final[int]
"""The greatest epoch of a producer id; its last transaction goes on under another id."""

@final
class StepLock:
    """A reentrant lock as `threading.RLock`, which C takes and gives back without a call of Python's.

    An interrupt ends the wait for it, and comes at no other place. Its fields change under the GIL.
    """
    def renew(self) -> None:
        """Be free in a child process: the thread that held it may not exist there."""
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@disjoint_base
class IdSteps:
    """The state of a transactional id, its log, and its present producer. `lock` guards all of it.

    Whoever derives from it has `_look_back`, for a write that was broken off.
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
        """Milliseconds since the epoch, by the store's clock; `LogClosedError` once the store is closed."""
    @property
    def coordinator_epoch(self) -> int:
        """The epoch of the coordinator, which is the leader epoch of the id's log."""
    def write(self, state: TransactionState) -> None:
        """Write a state down; from then on it holds, also when an interrupt comes before this returns."""
    def remove(self) -> None:
        """Write a tombstone: nothing is known of the id from then on."""
    def add_partitions(self, places: Iterable[tuple[str, int]]) -> None:
        """Write down that the transaction goes to these partitions too, before anything is written there."""
    def decide(self, commit: bool, epoch: int, next_producer_id: int, now_ms: int) -> None:
        """Write down how the transaction ends, with the epoch of its markers."""
    def done(self, now_ms: int) -> None:
        """Write down that the transaction, which was decided, has ended everywhere."""

def append_marker(log: Log, state: TransactionState, commit: bool, coordinator_epoch: int, now_ms: int) -> None:
    """Append a marker as `Log.append_marker` does, without checking each argument again."""

@disjoint_base
class RecordTransaction:
    """A transaction's records and its end. Whoever derives from it has `_check`, which says why it cannot go on."""
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
        """Have the coordinator know these partitions."""
    def _finish(self, commit: bool, sync: bool) -> None:
        """Decide the transaction, and do it everywhere."""

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
    """Append one record as `Store.append` does; where it is. The marker of a transaction takes an offset, too."""
