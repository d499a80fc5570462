"""The records of a topic for readers: `ConsumerRecord`, and one iterator over the records of many partitions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

from _typeshed import ReadableBuffer

from kstore._core import Record

@final
class ConsumerRecord:
    """One record of a topic; unpacks as `topic, partition, offset, timestamp, key, value, headers`.

    The last five are as in `Record`. Immutable, compared by value; holds no cycle, hence has no part in garbage
    collection. Thread-safe.
    """
    @property
    def topic(self) -> str:
        """The topic."""
    @property
    def partition(self) -> int:
        """The partition's number."""
    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1 without one."""
    @property
    def key(self) -> bytes | None:
        """The key; None without one."""
    @property
    def value(self) -> bytes | None:
        """The value; None for a tombstone."""
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """(name, value) pairs; a value is `bytes` or None."""
    __match_args__: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: ReadableBuffer | None = None,
        value: ReadableBuffer | None = None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] = (),
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ConsumerIterator:
    """`ConsumerRecord`s of a topic from `rounds`, an iterator of lists of `(partition, iterator of Records)`.

    Each round is read to its end before the next one: one partition after the other, or, `by_timestamp`, always the
    record with the least timestamp among the partitions' next records, the lower partition first among equals; each
    partition keeps its own order. One record of each partition is then read ahead. An error of the iterators is raised
    (or the error that `explain` makes of it), and ends this iterator. Not thread-safe: a second call at the same time
    is a `ValueError`.
    """
    def __init__(
        self,
        topic: str,
        rounds: Iterable[list[tuple[int, Iterator[Record]]]],
        *,
        by_timestamp: bool,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None: ...
    def __iter__(self) -> ConsumerIterator: ...
    def __next__(self) -> ConsumerRecord: ...
    @property
    def needs_bytes(self) -> bool:
        """Whether the next record is not in memory: to get it, the next piece of a file is read."""
