"""The sequence numbers of a producer, and the append of one numbered record in one step."""

from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, TypeAlias, final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.log.writing.writer import Writer
from kstore.store.topics._topic_append import RecordAppender, Route
from kstore.store.topics.topic_append import TopicAppender
from kstore.types import Headers, RecordMetadata

_Place: TypeAlias = tuple[str, int]

@final
class PartitionSequence:
    """The sequence numbers of one partition; `doubtful` while it is unknown if the log has the last one's record."""
    @property
    def writer(self) -> Writer | None: ...
    sequence: int
    doubtful: bool
    def attach(self, writer: Writer) -> None:
        """Use this writer's log for appends from now on."""

@disjoint_base
class Sequences:
    """The sequence numbers of one producer id and epoch, by `(topic, partition)`.

    While `busy`, a thread uses them under their owner's lock and `append` appends nothing. `entered` contains the
    partitions that the coordinator knows. `taken` is the last number that was used, with its partition: its record may
    or may not be in the log.
    """
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def partitions(self) -> dict[_Place, PartitionSequence]: ...
    @property
    def entered(self) -> set[_Place]: ...
    taken: tuple[_Place, int] | None
    busy: bool
    def __init__(
        self, producer_id: int, producer_epoch: int, *, transactional: bool, metadata: type[RecordMetadata] = ...
    ) -> None: ...
    def partition(self, place: _Place) -> PartitionSequence:
        """Return the numbers of one partition; create them if there are none."""
    def append(
        self,
        taken: list[Any] | None,
        route: Route,
        topic: str,
        partition: int | None,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | datetime | None,
    ) -> RecordMetadata | int:
        """Append one record in one step and return its metadata; else return the partition for `append_numbered`.

        `route` is the topic's. If `taken` is a list, `taken[0]` becomes the partition and sequence number once the
        record is in the log: an interrupt may come before the caller has the result. Raises if the record is refused.
        """

class NumberingAppender(RecordAppender):
    """Appends records one by one, with or without sequence numbers."""
    def append_numbered(
        self,
        numbers: Sequences,
        enter: Callable[[list[_Place]], None] | None,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one numbered record; first call `enter` if the coordinator does not know its partition yet."""

@disjoint_base
class RecordProducer:
    """The attributes of a producer that `append_at_once` uses, as C fields."""

    _appender: TopicAppender
    _numbers: Sequences
    _failed: Any
    _running: Any

def append_at_once(
    producer: RecordProducer,
    taken: list[Any],
    topic: str,
    partition: int | None,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None,
    timestamp: int | datetime | None,
) -> RecordMetadata | int | None:
    """Append one record as `Sequences.append` does; also return `partition` if the topic has no route yet.

    The caller must be a Python function: the interpreter checks for interrupts after a call of C, and the caller must
    then note that the record is in the log.
    """

@final
class SequenceLock:
    """The reentrant lock on `Sequences`: they are `busy` while it is held, and forever once it is closed.

    Compiled, so that no interrupt comes between taking the lock and setting `busy`.
    """
    def __init__(self, sequences: Sequences) -> None: ...
    def acquire(self) -> None:
        """Take the lock, and make the sequences `busy`."""
    def release(self) -> None:
        """Release the lock; the sequences are not `busy` after the last release, unless it is closed."""
    def close(self) -> None:
        """Make appends without the lock impossible from now on."""
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
