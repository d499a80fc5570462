"""The records of a topic for readers: `ConsumerRecord`, and an iterator that merges the records of partitions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

from _typeshed import ReadableBuffer

from kstore._core import Record

@final
class ConsumerRecord:
    """One record of a topic; it unpacks as `topic, partition, offset, timestamp, key, value, headers`.

    The last five are as in `Record`. Records are immutable and compared by value. They hold no reference cycle, so the
    garbage collector does not track them. Thread-safe.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> for topic, partition, offset, timestamp, key, value, headers in store.read("orders"):
        ...     print(topic, partition, offset, key, value, headers)
        orders 0 0 b'alice' b'3 apples' ()
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
        """Milliseconds since the epoch; -1 if the record has no timestamp."""
    @property
    def key(self) -> bytes | None:
        """The key; None if the record has none."""
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
    """Iterate over the `ConsumerRecord`s of a topic in `rounds`.

    A round is a list of `(partition, iterator of Records)`. It is read to its end before the next one, partition by
    partition. If `by_timestamp`, the partitions are merged: the next record is the one with the least timestamp among
    the partitions' next records, or the lowest partition's record among equal timestamps. Each partition keeps its
    order, and one record of each partition is read ahead. An error of an iterator, replaced by the result of `explain`
    if given, is raised and ends this iterator. Not thread-safe: a concurrent call raises `ValueError`.
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
        """Whether the next record is not in memory, so that `next` reads from a file."""
    @property
    def in_memory(self) -> int:
        """How many of the next records are in memory, as far as is known without looking at the next batch."""
