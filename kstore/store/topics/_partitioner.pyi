"""Which partition of a topic a record goes to."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.codec._pack import Packer

def murmur2(key: ReadableBuffer, /) -> int:
    """Kafka's hash of a serialized key, signed as Kafka's `Utils.murmur2` gives it; any buffer."""

def partition_of(key: ReadableBuffer, partitions: int, /) -> int:
    """The partition of `partitions` that Kafka's default partitioner sends a serialized key to; an empty key has one."""

@final
class Router:
    """Says where the next record of a topic goes, as Kafka's default partitioner does.

    A key is hashed over all `partitions`. Records without one stick to a partition until `sticky_bytes` were given to
    it; then another is drawn, uniformly, from `available` (default: all; the same one may be drawn again). The draw
    repeats with `seed`. Thread-safe.
    """
    @property
    def partitions(self) -> int: ...
    @property
    def sticky_bytes(self) -> int: ...
    def __init__(
        self, partitions: int, *, sticky_bytes: int, seed: int | None = None, available: Iterable[int] | None = None
    ) -> None: ...
    def route(self, key: ReadableBuffer | None, value: ReadableBuffer | None, /) -> int:
        """The partition of one record that is a batch of its own."""

@disjoint_base
class BaseSplitter:
    """What a splitter of records and one of columns have in common: a router, and a packer for each partition.

    `make(partition)` gives a new `Packer` when a partition gets its first record. Batches fill up as the packers say; once
    `limit_bytes` of them are finished they are `ready`, and when all buffers together hold `max_bytes`, the open batches
    are closed early, however many partitions there are. Records without a key stick to a partition for `sticky_bytes`;
    with `partition` all records go there. Not thread-safe: a second call at the same time, or from code that a first call
    runs, is a `RuntimeError`.
    """
    def __init__(
        self,
        router: Router,
        make: Callable[[int], Packer],
        *,
        limit_bytes: int,
        max_bytes: int,
        sticky_bytes: int,
        partition: int | None = None,
    ) -> None: ...
    def close(self) -> None:
        """Finish all open batches."""
    @property
    def ready(self) -> list[tuple[int, Packer]]:
        """(partition, packer) of each partition with finished batches, which the caller takes away."""

@final
class Splitter(BaseSplitter):
    """Packs one iterable's records for all partitions of a topic."""
    @property
    def records(self) -> int:
        """Records taken in."""
    def pack(self, iterator: Iterator[Any]) -> bool:
        """Take records until enough batches are `ready`; False once `iterator` has ended.

        Takes and raises what `Packer.pack` does, records counted over all partitions. What was ready is to be taken
        away first. A refused record drops every open batch; the finished ones stay `ready`.
        """
