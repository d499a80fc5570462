"""The appending half of `Store`: which partition a record goes to, and what comes back.

Routing is `_route`'s, appending the log's; here they meet. What is known of a topic (its router, its open logs) is kept
until its partitions change. The hardest rule: a call that refuses a record says in the error's `appended` what it
stored before, partition by partition.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore import arguments
from kstore._route import Router, Splitter
from kstore.appends import AppendInfo
from kstore.catalog import is_deleted
from kstore.errors import KStoreError, LogClosedError, RecordTooLargeError, StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore._pack import Packer
    from kstore.catalog import Catalog, Entry
    from kstore.config import LogConfig
    from kstore.keeper import Keeper
    from kstore.log import Log
    from kstore.topics import TopicTable

STICKY_BYTES = 16_384  # batch.size of Kafka's producer: what `append` gives a partition before another is drawn
READY_BYTES = 1 << 20  # what append_many encodes, over all partitions, before it writes
OPEN_BYTES = 64 << 20  # what append_many holds at the most, however many partitions it fills at once
SPREAD_BYTES = 2 << 20  # what the batches that are filled at once may take by default: more leaves the caches behind
LEAST_BATCH_BYTES, MOST_BATCH_BYTES = 65_536, 1 << 20

_new = tuple.__new__


class RecordMetadata(NamedTuple):
    """Where a record was appended, and its timestamp there."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Route:
    """What appending to a topic needs; made anew when its partitions change, or one of them goes out of service."""

    __slots__ = ("entries", "logs", "now", "router")

    def __init__(self, entries: Mapping[int, Entry], router: Router, now: Callable[[], int]) -> None:
        self.entries = entries
        self.router = router
        self.now = now
        self.logs: list[Log | None] = [None] * router.partitions


class TopicWrites:
    """What can be appended to a `Store`; see there about threads."""

    _catalog: Catalog
    _keeper: Keeper | None
    _routes: dict[str, Route]
    _seed: int | None
    _table: TopicTable
    _id_on_disk: Callable[[Mapping[int, Entry]], uuid.UUID | None]
    _open_log: Callable[[Entry], Log]
    _writing: Callable[[], Keeper]
    topic_config: Callable[[str], LogConfig]

    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None = None,
        sync: bool = False,
    ) -> RecordMetadata:
        """Append one record as a batch of its own; where it went, and its timestamp there.

        It goes to `partition`, else where Kafka's default partitioner sends its key (murmur2; an empty key is one),
        else, without a key, to the partition that such records stick to until 16 KiB have gone there; then another is
        drawn from those in service. Otherwise as `Log.append`, also in what it raises;
        `UnknownTopicOrPartitionError` for what is not there.
        """
        try:
            route = self._routes[topic]
            if route.entries is not self._catalog.partitions(topic):
                route = self._find_route(topic)
        except (KeyError, TypeError):
            route = self._find_route(topic)
        if partition is None:
            partition = route.router.route(key, value)
        elif type(partition) is not int or not 0 <= partition < len(route.logs):
            partition = self._catalog.find(topic, arguments.whole("partition", partition)).partition
        try:
            log = route.logs[partition] or self._log_on(route, topic, partition)
            if log._config.message_timestamp_type == "LogAppendTime":
                info = log.append_many([(key, value, timestamp, headers)], sync=sync)
                return RecordMetadata(topic, partition, info.last_offset, info.log_append_time)
            if timestamp is None:
                timestamp = route.now()
            offset = log.append(value, key, timestamp=timestamp, headers=headers, sync=sync)
        except StorageError:
            self._routes.pop(topic, None)  # to see which partitions are still in service
            raise
        except LogClosedError as error:
            raise self._closed_or_gone(topic, error) from None
        return _new(RecordMetadata, (topic, partition, offset, timestamp))

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append an iterable of what `Log.append_many` takes, or of `ConsumerRecord`s; what each partition got.

        Records go where `append` would send them, but those without a key stick to a partition for `batch_bytes`, and
        with a `seed` they go there again in a repeated call. Each partition's batches are filled up to `batch_bytes`
        (by default between 64 KiB and 1 MiB, so that the batches of all partitions take 2 MiB); they are closed early
        where all that are open would take more than 64 MiB. `compression` and `sync` are as in `Log.append_many`.

        When a record is refused, the batches finished before it stay, and the error's `appended` tells them in the
        form of the result. Raises what `Log.append_many` raises, a record's number being that in the iterable, and
        `UnknownTopicOrPartitionError`. Appends of other threads may come between any two batches.
        """
        return self._append_many(topic, records, partition, compression, sync, batch_bytes, seed)

    def _append_many(
        self,
        topic: str,
        records: Iterable[Any],
        partition: int | None,
        compression: str | None,
        sync: bool,
        batch_bytes: int | None,
        seed: int | None,
        make: Callable[..., Load] | None = None,
    ) -> dict[int, AppendInfo]:
        route = self._find_route(topic)
        if partition is not None:
            partition = self._catalog.find(topic, arguments.whole("partition", partition)).partition
        iterator = arguments.iterator("records", records)
        router = route.router
        if seed is not None:
            router = self._router(topic, route.entries, arguments.whole("seed", seed))
        batch_bytes = self._batch_bytes(topic, batch_bytes, 1 if partition is not None else len(route.entries))
        load = (make or Load)(self, route, topic, compression, batch_bytes)
        splitter = Splitter(
            router,
            load.packer,
            limit_bytes=READY_BYTES,
            most_bytes=OPEN_BYTES,
            sticky_bytes=batch_bytes,
            partition=partition,
        )
        try:
            more = True
            while more:
                try:
                    more = splitter.pack(iterator)
                except RecordTooLargeError as error:
                    raise load.too_large(error) from None
                finally:
                    load.store(splitter)
        except StorageError:
            self._routes.pop(topic, None)
            raise
        except LogClosedError as error:
            raise self._closed_or_gone(topic, error) from None
        except KStoreError as error:
            if hasattr(error, "appended"):
                error.appended = load.appended
            raise
        if sync:
            load.flush()
        return load.appended

    def _batch_bytes(self, topic: str, asked: int | None, partitions: int) -> int:
        """How far batches are filled when those of so many partitions are filled at once."""
        config = self.topic_config(topic)
        if asked is None:
            asked = min(max(SPREAD_BYTES // partitions, LEAST_BATCH_BYTES), MOST_BATCH_BYTES)
        asked = arguments.integer("batch_bytes", asked, low=1)
        return min(asked, config.max_message_bytes, config.effective_segment_bytes)

    # What is known of a topic.

    def _find_route(self, topic: str) -> Route:
        """What appending to a topic needs, as its partitions are now."""
        self._writing()
        entries = self._catalog.partitions(topic)
        route = self._routes.get(topic)
        if route is None or route.entries is not entries:
            seed = None if self._seed is None else self._seed + zlib.crc32(topic.encode())
            route = self._routes[topic] = Route(entries, self._router(topic, entries, seed), self._writing().now)
        return route

    def _router(self, topic: str, entries: Mapping[int, Entry], seed: int | None) -> Router:
        """A topic's router: keys go by the number of all its partitions, also of those that are not here."""
        count = max(entries) + 1
        record = self._table.topics.get(topic)
        if record is not None and record is self._table.find(topic, self._id_on_disk(entries)):
            count = max(count, record.partitions)
        usable = [number for number, entry in entries.items() if self._is_usable(entry)] or list(entries)
        return Router(count, sticky_bytes=STICKY_BYTES, seed=seed, available=usable if len(usable) < count else None)

    def _is_usable(self, entry: Entry) -> bool:
        """Whether nothing is known that keeps a partition from being appended to."""
        log = entry.log
        if entry.failure is not None or (log is not None and log.failed is not None):
            return False
        directory = self._writing().directories.get(entry.root)
        return directory is not None and directory.offline is None

    def _log_on(self, route: Route, topic: str, number: int) -> Log:
        entry = route.entries.get(number) or self._catalog.find(topic, number)
        log = route.logs[number] = self._open_log(entry)
        return log

    def _closed_or_gone(self, topic: str, error: LogClosedError) -> KStoreError:
        """Why a log was closed under an append: with the store, or with its topic."""
        self._routes.pop(topic, None)
        try:
            self._writing()
            for entry in self._catalog.partitions(topic).values():
                if entry.failure is not None and is_deleted(entry):
                    return entry.failure
        except KStoreError as reason:
            return reason
        return error


class Load:
    """One call of `append_many`: the packers it makes, and what it has stored by now."""

    def __init__(self, store: TopicWrites, route: Route, topic: str, compression: str | None, batch_bytes: int) -> None:
        self._store = store
        self._route = route
        self._topic = topic
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._logs: dict[int, Log] = {}
        self._found: dict[int, AppendInfo] = {}
        self._now_ms = route.now()

    def packer(self, number: int) -> Packer:
        """A packer for a partition that gets its first record."""
        log = self._store._log_on(self._route, self._topic, number)
        self._logs[number] = log
        return self._make(number, log)

    def _make(self, number: int, log: Log) -> Packer:
        return log._packer(log._compression_id(self._compression), self._batch_bytes, self._now_ms)

    def _write(self, number: int, log: Log, packer: Packer) -> tuple[int, int]:
        return log._store(log._writable(), packer, None)

    def store(self, splitter: Splitter) -> None:
        """Append what is ready, partition by partition."""
        for number, packer in splitter.ready:
            log = self._logs[number]
            first, last = self._write(number, log, packer)
            at_append = log._config.message_timestamp_type == "LogAppendTime"
            before = self._found.get(number)
            self._found[number] = AppendInfo(
                first if before is None else before.first_offset,
                last,
                max(packer.max_timestamp, -1 if before is None else before.max_timestamp),
                self._now_ms if at_append else -1,
            )
            splitter.taken(number)

    @property
    def appended(self) -> dict[int, AppendInfo]:
        """What each partition has got, in their order."""
        return dict(sorted(self._found.items()))

    def too_large(self, error: RecordTooLargeError) -> KStoreError:
        """The refusal, named after the limit that binds."""
        log = next(iter(self._logs.values()), None)
        return error if log is None else log._too_large(error)

    def flush(self) -> None:
        """Have all that was stored on the disk."""
        for number in self._found:
            self._logs[number].flush()
