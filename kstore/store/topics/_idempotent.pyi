"""A producer's sequence numbers, and the append of one numbered record in one step."""

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
    """The sequence numbers of one partition. `doubtful` while it is open whether the last one given is in the log."""
    @property
    def writer(self) -> Writer | None: ...
    sequence: int
    doubtful: bool
    def attach(self, writer: Writer) -> None:
        """Append to the log of this writer from now on."""

@disjoint_base
class Sequences:
    """The numbers of one producer id and epoch, by `(topic, partition)`.

    While `busy` a thread uses them under their owner's lock, and `append` appends nothing. `entered` are the partitions
    that are known to the coordinator. `taken` is the number that was given last, with its place: its record may or may
    not be in the log.
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
        """The numbers of one partition."""
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
        """Append one record in one step: its metadata, else the partition that it is to go to, where more is to be done.

        `route` is the topic's. `taken[0]`, if there is such a list, becomes the place and sequence number of a record
        that is in the log: an interrupt may come before the caller has the result. Raises what refuses the record.
        """

class NumberingAppender(RecordAppender):
    """Appends records one by one, also numbered ones."""
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
        """Append one record, numbered, once `enter` has its partition. Raises what `Store.append` and the log raise."""

@disjoint_base
class RecordProducer:
    """What `append_at_once` asks of a producer, where C finds it at once."""

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
    """Append one record in one step, as `Sequences.append` does; where it is to go if the topic has no route yet, too.

    The caller is a function in Python: behind a call of C the interpreter looks for interrupts, and whoever called has
    to note then that the record is in the log.
    """

@final
class SequenceLock:
    """The lock on `Sequences`, reentrant: while it is held they are `busy`; once it is closed they stay so.

    Compiled, so that no interrupt comes between taking the lock and setting `busy`.
    """
    def __init__(self, sequences: Sequences) -> None: ...
    def acquire(self) -> None:
        """Take the lock."""
    def release(self) -> None:
        """Give it back."""
    def close(self) -> None:
        """Append nothing without the lock any more."""
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
