"""`TopicAppender`: appends records to the partitions of a topic, each batch with the gate (the writer's lock) held.

Invariant: if a call for many records raises, the exception says what the call has stored, partition by partition.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.base import arguments, times
from kstore.codec._pack import Packer
from kstore.config.cautions import TimestampCaution
from kstore.errors import KStoreError, LogClosedError, RecordTooLargeError, StorageError
from kstore.log import batch_packer
from kstore.log.appended import Stored, with_appended
from kstore.log.batch_packer import NO_PRODUCER, ProducerFields
from kstore.log.batch_pipeline import OrderedWork, Pipeline
from kstore.log.column_append import MAX_THREADS
from kstore.log.segments._producer_state import Origin
from kstore.log.writing import producer_append
from kstore.log.writing.writer import Writer
from kstore.store.catalog import Catalog
from kstore.store.read_only_logs import Logs
from kstore.store.topics._column_partitioner import ColumnSplitter
from kstore.store.topics._idempotent import NumberingAppender
from kstore.store.topics._partitioner import Splitter
from kstore.store.topics._topic_append import Route
from kstore.store.topics.append_source import ColumnArguments, Records
from kstore.store.topics.idempotent import Enter, Numbering, SequenceNumbers
from kstore.store.topics.route_cache import Routes
from kstore.types import AppendInfo, RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.types import Headers

READY_BYTES = 1 << 20  # bytes that append_many encodes, over all partitions, before it writes
OPEN_BYTES = 64 << 20  # the most bytes that append_many holds in memory, however many partitions it fills

_CLIENT = int(Origin.CLIENT)
_AS_GIVEN = ("producer", "uncompressed")
_AT_APPEND = "LogAppendTime"

_Store = Callable[[Writer, Packer, Stored], object]


class AppendOptions(NamedTuple):
    """The options of `append_many` and `append_columns`."""

    partition: int | None = None
    compression: str | None = None
    batch_bytes: int | None = None
    sync: bool = False
    seed: int | None = None


class Load:
    """One call of `append_many` or `append_columns`: its pipelines, and what it has stored so far.

    With a `numbering` its batches get a producer's numbers. `again` is the load of an earlier attempt at the same call:
    records that the earlier attempt stored are skipped.
    """

    def __init__(
        self,
        routes: Routes,
        topic: str,
        options: AppendOptions,
        numbering: Numbering | None = None,
        again: Load | None = None,
    ) -> None:
        self._routes = routes
        self._topic = topic
        self._options = options
        self._numbering = numbering
        self._route: Route = routes.find(topic)
        partition = options.partition
        self._partition = None if partition is None else routes.partition(topic, partition)
        self._router = self._route.router
        if options.seed is not None:
            self._router = routes.router(topic, self._route.entries, arguments.whole("seed", options.seed))
        filled_at_once = 1 if partition is not None else len(self._route.entries)
        self._batch_bytes = batch_packer.batch_bytes_of(routes.config_of(topic), options.batch_bytes, filled_at_once)
        self._now_ms = self._route.now()
        self._caution = TimestampCaution()
        self._writers: dict[int, Writer] = {}
        self._stored: dict[int, Stored] = {}
        self._sends: dict[int, Callable[[], None]] = {}  # by partition: writes its finished batches to its log
        if again is not None and again._numbering is not None and numbering is not None:
            self._now_ms = again._now_ms
            self._stored = {number: copy(stored) for number, stored in again._stored.items()}
            self._writers = {number: routes.open(self._route, number)[1] for _, number in again._numbering.parts}
            numbering.resume(again._numbering, self._writers)

    def run(self, rows: Records | ColumnArguments) -> dict[int, AppendInfo]:
        """Append a record for each of these rows; return the offsets that each partition got."""
        work = OrderedWork(arguments.integer("threads", rows.threads, 1, MAX_THREADS))
        blocks = rows.blocks(self._now_ms)
        splitter: Any = rows.splitter(
            self._router,
            partial(self._packer, work, rows.packs_compressed),
            limit_bytes=READY_BYTES,
            max_bytes=OPEN_BYTES,
            sticky_bytes=self._batch_bytes,
            partition=self._partition,
        )
        send = work.send_rest = partial(self._send, work, splitter)
        try:
            with work:
                for block in blocks:
                    while splitter.pack(block):
                        send()
                splitter.close()
            if self._options.sync:
                for number in self.appended:
                    self._routes.log(self._topic, number).flush()
        except BaseException as error:
            named = self._too_large(error) if isinstance(error, RecordTooLargeError) else error
            reason = with_appended(self._routes.reason(self._topic, named), self.appended, f"topic {self._topic}")
            if reason is not error:
                raise reason from None
            raise
        finally:
            self._sends.clear()
        return self.appended

    def _packer(self, work: OrderedWork, packs_compressed: bool, number: int) -> Packer:
        """Make a packer for a partition that gets its first row."""
        _, writer = self._routes.open(self._route, number)
        self._writers[number] = writer
        stored = self._stored.setdefault(number, Stored(self._caution))
        store: _Store = batch_packer.store
        producer = NO_PRODUCER
        if self._numbering is not None:
            store, producer = self._numbering.store, self._numbering.begin(writer)
        codec = batch_packer.codec_of(writer.config, self._options.compression)
        if packs_compressed:
            packer = batch_packer.packer(writer, codec, self._batch_bytes, self._now_ms, producer=producer)
            self._sends[number] = partial(_store_now, work, store, writer, packer, stored)
            return packer
        pipeline = Pipeline(
            writer,
            work,
            lambda packer: store(writer, packer, stored),
            partial(batch_packer.warn_of_seconds, writer, stored),
            codec=codec,
            batch_bytes=self._batch_bytes,
            now_ms=self._now_ms,
            producer=producer,
        )
        self._sends[number] = pipeline.send
        return pipeline.packer

    def _send(self, work: OrderedWork, splitter: Splitter | ColumnSplitter) -> None:
        """Write the batches that are ready to their logs, partition by partition."""
        ready = [number for number, _ in splitter.ready]
        numbering = self._numbering
        if numbering is None or not ready:
            for number in ready:
                self._sends[number]()
            return
        with numbering.lock:
            work.guard(partial(numbering.enter, [self._writers[number] for number in ready]))
            for number in ready:
                self._sends[number]()

    @property
    def appended(self) -> dict[int, AppendInfo]:
        """The offsets that each partition has got so far, sorted by partition."""
        return {
            number: stored.info(self._writers[number].config, self._now_ms)
            for number, stored in sorted(self._stored.items())
            if stored.last >= 0
        }

    def _too_large(self, error: RecordTooLargeError) -> KStoreError:
        """Return the error for a record that is too large, with the name of the limit that it exceeds."""
        writer = next(iter(self._writers.values()), None)
        return error if writer is None else batch_packer.too_large(writer.config, error)


def _store_now(work: OrderedWork, store: _Store, writer: Writer, packer: Packer, stored: Stored) -> None:
    work.broken = True  # stays true unless all steps are done
    store(writer, packer, stored)
    packer.clear()
    work.broken = False


def _append_one(
    writer: Writer,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None,
    timestamp: int,
    fields: ProducerFields,
    expected_offset: int | None,
) -> int:
    """Append one plain numbered record that `Sequences.append` did not append; return its offset."""
    writer.housekeeping.before_append()
    batch = writer.appender.encode(value, key, timestamp, *fields)
    with writer.gate():
        batch_packer.refuse_unexpected_locked(writer, expected_offset)
        writer.assign_epoch_locked(None)
        offset, _, _ = producer_append.append_one_locked(writer, memoryview(batch), _CLIENT, None)
        writer.published()
        return offset


class TopicAppender(NumberingAppender):
    """Appends records and columns to the topics of a store, with or without a producer's numbers.

    Thread-safe, but each `SequenceNumbers` is for one thread at a time.
    """

    def __init__(self, catalog: Catalog, logs: Logs, routes: Routes) -> None:
        super().__init__(catalog, routes.by_topic)
        self._logs = logs
        self._routes = routes
        self.forget_route = routes.forget
        self.log = routes.log
        self.reason = routes.reason

    def append_slowly(
        self,
        numbers: SequenceNumbers | None,
        enter: Enter | None,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
        sync: bool,
        expected_offset: int | None,
    ) -> RecordMetadata:
        """Append one record that the fast path did not append; numbered if there are `numbers`."""
        routes = self._routes
        route = routes.find(topic)
        if partition is None:
            if expected_offset is not None:
                raise ValueError("expected_offset needs a partition: offsets are those of one log")
            partition = route.router.route(key, value)
        elif type(partition) is not int or not 0 <= partition < len(route.writers):
            partition = routes.partition(topic, partition)
        place, producer, number = (topic, partition), NO_PRODUCER, 0
        try:
            log, writer = routes.open(route, partition)  # a new log and writer if a caller has closed the log
            config = writer.config
            if numbers is not None:
                expected_offset = batch_packer.checked_expectation(expected_offset)
                if enter is not None and place not in numbers.entered:
                    enter([place])
                sequence = numbers.partition(place)
                if sequence.writer is not writer:
                    sequence.attach(writer)
                number = numbers.take(place, writer)
                producer = numbers.fields(number)
            stamped_here = config.message_timestamp_type == _AT_APPEND
            stamp: Any = timestamp
            if numbers is not None or not stamped_here:
                stamp = route.now() if timestamp is None else times.milliseconds("timestamp", timestamp)
            if numbers is not None and headers is None and not stamped_here and config.compression_type in _AS_GIVEN:
                offset = _append_one(writer, value, key, stamp, producer, expected_offset)
            elif stamped_here or numbers is not None:
                info = log.append_many(
                    [(key, value, stamp, headers)],
                    atomic=True,
                    sync=sync,
                    expected_offset=expected_offset,
                    **producer._asdict(),
                )
                offset = info.last_offset
                if info.log_append_time >= 0:
                    stamp = info.log_append_time
            else:
                offset = log.append(
                    value, key, timestamp=stamp, headers=headers, sync=sync, expected_offset=expected_offset
                )
        except (StorageError, LogClosedError) as error:
            raise self.reason(topic, error)  # noqa: B904
        if numbers is not None:
            numbers.used(place, number, 1)
        return RecordMetadata(topic, partition, offset, stamp)

    def append_many(self, topic: str, rows: Records | ColumnArguments, options: AppendOptions) -> dict[int, AppendInfo]:
        """Append a record for each row; see `Store.append_many` and `Store.append_columns`."""
        self._logs.leading().stand_in()
        return Load(self._routes, topic, options).run(rows)

    def load(
        self,
        topic: str,
        options: AppendOptions,
        numbers: SequenceNumbers,
        *,
        enter: Enter | None = None,
        lock: AbstractContextManager[object] | None = None,
        again: Load | None = None,
    ) -> Load:
        """Start a numbered call of `append_many` or `append_columns`; `enter` and `lock` are as in `Numbering`."""
        return Load(self._routes, topic, options, Numbering(numbers, enter, lock), again)
