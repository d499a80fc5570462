"""Kafka's default partitioner, and the splitting of records over one packer for each partition."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.codec._pack import Packer

def murmur2(key: ReadableBuffer, /) -> int:
    """Return Kafka's hash of a serialized key (any buffer), signed as by Kafka's `Utils.murmur2`."""

def partition_of(key: ReadableBuffer, partitions: int, /) -> int:
    """Return the partition, of `partitions`, to which Kafka's default partitioner sends a key, even an empty one."""

@final
class Router:
    """Chooses the partition of the next record of a topic as Kafka's default partitioner does.

    A key is hashed over all `partitions`. Records without a key go to one partition until it has got `sticky_bytes`;
    then one is drawn uniformly from `available` (default: all), which may be the same again. Equal seeds draw the
    same partitions. Thread-safe.
    """
    @property
    def partitions(self) -> int: ...
    @property
    def sticky_bytes(self) -> int: ...
    def __init__(
        self, partitions: int, *, sticky_bytes: int, seed: int | None = None, available: Iterable[int] | None = None
    ) -> None: ...
    def route(self, key: ReadableBuffer | None, value: ReadableBuffer | None, /) -> int:
        """Return the partition of one record that is appended as a batch."""

@disjoint_base
class BaseSplitter:
    """Base of the splitters of records and of columns: a router, and a packer for each partition.

    `make(partition)` returns a new `Packer`; it is called when a partition gets its first record. Batches are `ready`
    once `limit_bytes` of them are finished. The open batches are closed early if all buffers together hold `max_bytes`.
    Records without a key go to one partition for `sticky_bytes`; with `partition`, all records go there. Not
    thread-safe: a concurrent or reentrant call raises `RuntimeError`.
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
        """(partition, packer) of each partition with finished batches, which the caller takes from the packer."""

@final
class Splitter(BaseSplitter):
    """Packs the records of one iterable for all partitions of a topic."""
    @property
    def records(self) -> int:
        """Records packed so far."""
    def pack(self, iterator: Iterator[Any]) -> bool:
        """Pack records until enough batches are `ready`; return False when `iterator` has ended.

        Accepts the records of `Packer.pack` and raises its errors, with records numbered over all partitions. The
        caller must have taken the batches that were ready. If a record is refused, all open batches are dropped, and
        finished ones stay `ready`.
        """
