"""`TopicAppender`: records go to the partitions of a topic, each batch through its log (`log.batch_packer`).

The hardest rule: a call that ends with an exception says in it what it stored before, partition by partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.base import arguments, times
from kstore.codec._pack import Packer
from kstore.config.cautions import TimestampCaution
from kstore.errors import KStoreError, LogClosedError, RecordTooLargeError, StorageError
from kstore.log import batch_packer
from kstore.log.appended import Stored, with_appended
from kstore.log.hosted_log import HostedLog
from kstore.log.writing.writer import Writer
from kstore.store.catalog import Catalog
from kstore.store.read_only_logs import Logs
from kstore.store.topics._partitioner import Router, Splitter
from kstore.store.topics._topic_append import RecordAppender, Route
from kstore.store.topics.route_cache import Routes
from kstore.types import AppendInfo, RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.types import Headers

READY_BYTES = 1 << 20  # what append_many encodes, over all partitions, before it writes
OPEN_BYTES = 64 << 20  # what append_many holds at the most, however many partitions it fills at once


class AppendOptions(NamedTuple):
    """What a caller of `append_many` or `append_columns` says beside the records."""

    partition: int | None = None
    compression: str | None = None
    batch_bytes: int | None = None
    sync: bool = False
    seed: int | None = None


class TopicCall:
    """One call that appends to a topic: its partitions, its router, how far it fills batches, and its time."""

    __slots__ = ("batch_bytes", "compression", "now_ms", "partition", "route", "router", "routes", "topic")

    def __init__(self, routes: Routes, topic: str, options: AppendOptions) -> None:
        self.routes = routes
        self.topic = topic
        self.compression = options.compression
        self.route: Route = routes.find(topic)
        partition = options.partition
        self.partition = None if partition is None else routes.partition(topic, partition)
        router = self.route.router
        if options.seed is not None:
            router = routes.router(topic, self.route.entries, arguments.whole("seed", options.seed))
        self.router: Router = router
        filled_at_once = 1 if partition is not None else len(self.route.entries)
        self.batch_bytes = batch_packer.batch_bytes_of(routes.config_of(topic), options.batch_bytes, filled_at_once)
        self.now_ms = self.route.now()

    def writer(self, number: int) -> Writer:
        """The writer of a partition's log, opened if it is not open."""
        return self.routes.writer(self.route, number)

    def flush(self, partitions: Iterable[int]) -> None:
        """Sync the logs of these partitions."""
        for number in partitions:
            self.routes.log(self.topic, number).flush()

    def reason(self, error: BaseException, appended: dict[int, AppendInfo]) -> BaseException:
        """What the call raises in place of this error; it says what was stored."""
        return with_appended(self.routes.reason(self.topic, error), appended, f"topic {self.topic}")


class Load:
    """One call of `append_many`: the packers it makes, and what it has stored by now."""

    def __init__(self, call: TopicCall) -> None:
        self.call = call
        self.now_ms = call.now_ms
        self.writers: dict[int, Writer] = {}
        self.stored: dict[int, Stored] = {}
        self._caution = TimestampCaution()

    def run(self, records: Iterable[Any], sync: bool) -> dict[int, AppendInfo]:
        """Append an iterable of records; what each partition got."""
        call = self.call
        iterator = arguments.iterator("records", records)
        splitter = Splitter(
            call.router,
            self.packer,
            limit_bytes=READY_BYTES,
            max_bytes=OPEN_BYTES,
            sticky_bytes=call.batch_bytes,
            partition=call.partition,
        )
        try:
            more = True
            while more:
                try:
                    more = splitter.pack(iterator)
                except RecordTooLargeError as error:
                    raise self.too_large(error) from None
                finally:
                    self.store(splitter)
            if sync:
                call.flush(self.appended)
        except BaseException as error:
            reason = call.reason(error, self.appended)
            if reason is not error:
                raise reason from None
            raise
        return self.appended

    def packer(self, number: int) -> Packer:
        """Make a packer for a partition that gets its first record."""
        writer = self.writers[number] = self.call.writer(number)
        return self._make(number, writer)

    def _make(self, number: int, writer: Writer) -> Packer:
        call = self.call
        codec = batch_packer.codec_of(writer.config, call.compression)
        return batch_packer.packer(writer, codec, call.batch_bytes, self.now_ms)

    def _write(self, number: int, writer: Writer, packer: Packer, stored: Stored) -> None:
        batch_packer.store(writer, packer, stored)

    def store(self, splitter: Splitter) -> None:
        """Append the batches that are ready, partition by partition."""
        for number, packer in splitter.ready:
            stored = self.stored.get(number)
            if stored is None:
                stored = self.stored[number] = Stored(self._caution)
            self._write(number, self.writers[number], packer, stored)
            splitter.taken(number)

    @property
    def appended(self) -> dict[int, AppendInfo]:
        """What each partition has got, in their order."""
        return {
            number: stored.info(self.writers[number].config, self.now_ms)
            for number, stored in sorted(self.stored.items())
            if stored.last >= 0
        }

    def too_large(self, error: RecordTooLargeError) -> KStoreError:
        """The refusal of a record, named after the limit that binds."""
        writer = next(iter(self.writers.values()), None)
        return error if writer is None else batch_packer.too_large(writer.config, error)


class TopicAppender(RecordAppender):
    """Appends records to the topics of a store. Thread-safe."""

    def __init__(self, catalog: Catalog, logs: Logs, routes: Routes) -> None:
        super().__init__(catalog, routes.by_topic)
        self._catalog = catalog
        self._logs = logs
        self._routes = routes

    def append_slowly(
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
        """Append one record where there is more to do than to write it."""
        routes = self._routes
        try:
            route = routes.by_topic[topic]
            if route.entries is not self._catalog.by_topic.get(topic):
                route = routes.find(topic)
        except (KeyError, TypeError):
            route = routes.find(topic)
        if partition is None:
            if expected_offset is not None:
                raise ValueError("expected_offset needs a partition: offsets are those of one log")
            partition = route.router.route(key, value)
        elif type(partition) is not int or not 0 <= partition < len(route.writers):
            partition = routes.partition(topic, partition)
        try:
            log = self._logs.log(route.entries.get(partition) or self._catalog.find(topic, partition))
            writer = HostedLog(log).writer
            if route.writers[partition] is not writer:
                route.attach(partition, writer)  # the first, or another one, if its caller has closed the log
            if writer.config.message_timestamp_type == "LogAppendTime":
                record = (key, value, timestamp, headers)
                info = log.append_many([record], atomic=True, sync=sync, expected_offset=expected_offset)
                return RecordMetadata(topic, partition, info.last_offset, info.log_append_time)
            if timestamp is None:
                timestamp = route.now()
            elif type(timestamp) is not int:
                timestamp = times.milliseconds("timestamp", timestamp)
            offset = log.append(
                value, key, timestamp=timestamp, headers=headers, sync=sync, expected_offset=expected_offset
            )
        except (StorageError, LogClosedError) as error:
            reason = self.reason(topic, error)
            if reason is not error:
                raise reason from None
            raise
        return RecordMetadata(topic, partition, offset, timestamp)

    def reason(self, topic: str, error: BaseException) -> BaseException:
        """What an append raises in place of this error; see `Routes.reason`."""
        return self._routes.reason(topic, error)

    def append_many(self, topic: str, records: Iterable[Any], options: AppendOptions) -> dict[int, AppendInfo]:
        """Append an iterable of records; see `Store.append_many`."""
        self._logs.leading().stand_in()
        return Load(TopicCall(self._routes, topic, options)).run(records, options.sync)
