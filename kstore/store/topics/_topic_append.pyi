"""`Store.append` in C, for the same reason as `Log.append`: the usual append of one record in one step."""

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
    """A topic's partitions, its router, the store's clock, and the writers of the logs that were appended to."""
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
        """Append to the log of this writer from now on."""

@disjoint_base
class RecordAppender:
    """Appends records one by one. Whoever derives from it has `append_slowly` and `reason`.

    It knows the routes of a store's topics, and the catalog, which says whether they hold.
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
    """Append one record as a batch of its own; where it went, and its timestamp there.

    It goes to `partition`, else where Kafka's default partitioner sends its key (murmur2; an empty key is one),
    else, without a key, to the partition that such records stick to until 16 KiB have gone there; then another is
    drawn from those in service. An `expected_offset` is as in `Log.append`, and needs a `partition`. Otherwise as
    `Log.append`, also in what it raises;
    `UnknownTopicOrPartitionError` for what is not there.
    """
