"""`Store.append` in C, like `Log.append`, so that the usual append of one record is one step."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Self

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.log.writing.writer import Writer
from kstore.store.catalog import Catalog, Entry
from kstore.store.topics._partitioner import Router
from kstore.types import Headers, RecordMetadata

@disjoint_base
class Route:
    """A topic's partitions, its router, the store's clock, and the writers of logs, attached at the first append."""
    @property
    def topic(self) -> str: ...
    @property
    def entries(self) -> Mapping[int, Entry]: ...
    @property
    def now(self) -> Callable[[], int]: ...
    @property
    def router(self) -> Router: ...
    @property
    def writers(self) -> list[Writer | None]: ...
    def __new__(cls, topic: str, entries: Mapping[int, Entry], router: Router, now: Callable[[], int]) -> Self: ...
    def attach(self, number: int, writer: Writer) -> None:
        """Use this writer for appends to partition `number` from now on."""

@disjoint_base
class RecordAppender:
    """Appends records one by one; a derived class defines `append_slowly` and `reason`.

    `by_topic` contains the routes of a store's topics; a route is valid while `catalog` has the same partitions.
    """
    def __init__(self, catalog: Catalog, by_topic: dict[str, Route]) -> None: ...
    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
        sync: bool,
        expected_offset: int | None,
    ) -> RecordMetadata:
        """Append one record; see `Store.append`."""

def append(
    self: Any,
    topic: str,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None = None,
    *,
    partition: int | None = None,
    timestamp: int | datetime | None = None,
    headers: Headers | None = None,
    sync: bool = False,
    expected_offset: int | None = None,
) -> RecordMetadata:
    """Append one record to a topic in its own batch.

    If this call raises, the log is unchanged. But if the sync of `sync=True` fails, the record is in the log.

    Args:
        topic: The topic.
        value: The record's value; `None` is a tombstone.
        key: The record's key. Without a `partition`, Kafka's default partitioner (murmur2) chooses the partition by the
            key, even if it is empty. Records without a key go to one partition until it has got 16 KiB; then one is
            drawn from the partitions in service.
        partition: The partition's number.
        timestamp: Milliseconds since the epoch, or an aware `datetime`, rounded down to milliseconds; now if None. -1
            is no timestamp.
        headers: A mapping, or (name, value) pairs, in which a name may occur more than once.
        sync: Return only when the record is on the disk.
        expected_offset: Append the record only if it gets this offset; needs a `partition`.

    Returns:
        The record's partition, and its offset and timestamp there.

    Raises:
        UnknownTopicOrPartitionError: If the store has no such topic or partition.
        UnexpectedOffsetError: If the record would not get the `expected_offset`.
        TypeError: If the value or the key is a `str`.
        ValueError: If an `expected_offset` is given without a `partition`.
        KStoreError: Any other error of `Log.append`.

    Example:
        >>> place = store.append("orders", b"2 plums", key=b"carol", sync=True)
        >>> place.partition, place.offset
        (0, 1)
    """
