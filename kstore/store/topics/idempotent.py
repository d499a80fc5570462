"""`NumberedAppender`: a producer's records, with the sequence numbers that their logs compare with what they know.

`SequenceNumbers` counts each partition's records for one producer id and epoch. The hardest rule: a number is used for
one record alone. An append that ended so that its batch may or may not be in the log makes the count doubtful, and the
log is asked before the next append.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

from kstore.base import times
from kstore.codec import header
from kstore.codec._pack import Packer
from kstore.errors import LogClosedError, StorageError
from kstore.log import batch_packer
from kstore.log.appended import Stored
from kstore.log.batch_packer import ProducerFields
from kstore.log.batch_pipeline import BatchPipeline, OrderedWork
from kstore.log.log import Log
from kstore.log.segments._producer_state import Origin
from kstore.log.segments.producer_state import ProducerInfo
from kstore.log.writing import producer_append
from kstore.log.writing.writer import Writer
from kstore.store.catalog import Catalog
from kstore.store.read_only_logs import Logs
from kstore.store.topics._idempotent import NumberingAppender, Sequences
from kstore.store.topics._partitioner import Splitter
from kstore.store.topics.append_source import ColumnArguments, ColumnLoad
from kstore.store.topics.route_cache import Routes
from kstore.store.topics.topic_append import AppendOptions, Load, TopicCall
from kstore.types import AppendInfo, RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.types import Headers

Place = tuple[str, int]
Enter = Callable[[list[Place]], None]
_WRAP = 1 << 31  # sequence numbers go on at 0 behind 2^31 - 1
_CLIENT = int(Origin.CLIENT)
_AS_GIVEN = ("producer", "uncompressed")
_BY_CLIENT = "CreateTime"

_new_tuple = tuple.__new__


class SequenceNumbers(Sequences):
    """The sequence numbers of one producer id and epoch, by partition. One thread at a time uses it."""

    def take(self, place: Place, writer: Writer) -> int:
        """The number of the next record; in doubt from here until `used` or `unused`."""
        partition = self.partition(place)
        if partition.doubtful:
            partition.sequence = self.known(place, writer)
        partition.doubtful = True
        self.taken = place, partition.sequence
        return partition.sequence

    def used(self, place: Place, sequence: int, count: int) -> None:
        """So many records are in the log from this number on."""
        partition = self.partition(place)
        partition.sequence = (sequence + count) % _WRAP
        partition.doubtful = False

    def unused(self, place: Place, sequence: int) -> None:
        """Nothing was appended: the next record gets this number."""
        self.used(place, sequence, 0)

    def known(self, place: Place, writer: Writer) -> int:
        """The number after the log's last batch of the producer; the counted one, where the log has no batch."""
        info = self.info(writer)
        if info is None or not info.batches:
            return self.partition(place).sequence
        return (info.batches[-1].last_sequence + 1) % _WRAP

    def info(self, writer: Writer) -> ProducerInfo | None:
        """What the log knows of this producer in this epoch."""
        info = writer.producer_info(self.producer_id)
        return info if info is not None and info.producer_epoch == self.producer_epoch else None

    def fields(self, sequence: int) -> ProducerFields:
        """What the first of the next batches says of its producer."""
        return ProducerFields(self.producer_id, self.producer_epoch, sequence, self.transactional)


class Numbered:
    """The records of one call in one partition: numbers from `first` on, `next` is that of the record to come.

    `known` is what the log knew of the producer when a call is repeated: the records that it has are left out.
    """

    __slots__ = ("_known", "first", "next")

    def __init__(self, first: int, known: ProducerInfo | None = None) -> None:
        self.first = self.next = first
        self._known = known if known is not None and known.batches else None

    def write(self, writer: Writer, packer: Packer, stored: Stored) -> None:
        """Append the packer's batches, but those that the log has; `stored` has where all of them are."""
        info, sequence = self._known, self.next
        before = 0 if info is None else (info.batches[-1].last_sequence + 1 - sequence) % _WRAP
        # A difference of half the circle and more is a negative one: the last batch is from before this call.
        if info is None or before == 0 or before >= _WRAP // 2:
            first, last = batch_packer.store(writer, packer, stored, numbered=True)
            count = last - first + 1
        else:
            first, last, count = self._write_rest(writer, packer, info, before, stored)
            stored.add(first, last, packer.max_timestamp)
        self.next = (sequence + count) % _WRAP

    def _write_rest(
        self, writer: Writer, packer: Packer, info: ProducerInfo, stored_before: int, stored: Stored
    ) -> tuple[int, int, int]:
        """Write the batches after the records that the log already has; returns (first, last offset, records)."""
        first, last = info.batches[0].first_offset, info.batches[-1].last_offset
        for batch in info.batches:  # the log keeps five batches; if ours is older, report the oldest that it has
            if batch.first_sequence <= self.next <= batch.last_sequence:
                first = batch.first_offset + self.next - batch.first_sequence
        with packer.buffer as encoded:
            at = count = skipped = 0
            while at < len(encoded):
                count += header.records_of(encoded, at)
                at += header.size_of(encoded, at)
                if count <= stored_before:
                    skipped = at
            if skipped < at:
                rest = encoded[skipped:]
                try:
                    last = _store_rest(writer, rest, stored, packer.max_timestamp)
                finally:
                    rest.release()
        return first, last, count


class NumberedLoad(Load):
    """An `append_many` whose batches are numbered.

    `again` is the load of an earlier attempt at the same call: the records that it has stored are left out.
    """

    def __init__(
        self,
        call: TopicCall,
        numbers: SequenceNumbers,
        *,
        enter: Enter | None = None,
        lock: AbstractContextManager[object] | None = None,
        again: NumberedLoad | None = None,
    ) -> None:
        super().__init__(call)
        self._numbers = numbers
        self._enter = enter
        self._lock = nullcontext() if lock is None else lock
        self.parts: dict[int, Numbered] = {}
        if again is not None:
            self.now_ms = again.now_ms
            self.stored = {number: copy(stored) for number, stored in again.stored.items()}
            self.parts = parts_again(call, numbers, again.parts)
            self.writers = {number: call.writer(number) for number in self.parts}

    def store(self, splitter: Splitter) -> None:
        """Append the batches that are ready, after `enter` has their partitions; both under `lock`."""
        ready = splitter.ready
        if ready:
            with self._lock:
                if self._enter is not None:
                    self._enter([(self.call.topic, number) for number, _ in ready])
                super().store(splitter)

    def _make(self, number: int, writer: Writer) -> Packer:
        call = self.call
        part = self.parts.get(number)
        if part is None:
            place = (call.topic, number)
            part = self.parts[number] = Numbered(self._numbers.take(place, writer))
            self._numbers.unused(place, part.first)
        producer = self._numbers.fields(part.first)
        codec = batch_packer.codec_of(writer.config, call.compression)
        return batch_packer.packer(writer, codec, call.batch_bytes, self.now_ms, producer=producer)

    def _write(self, number: int, writer: Writer, packer: Packer, stored: Stored) -> None:
        place, part = (self.call.topic, number), self.parts[number]
        self._numbers.take(place, writer)
        part.write(writer, packer, stored)
        self._numbers.used(place, part.next, 0)


class NumberedColumnLoad(ColumnLoad):
    """An `append_columns` whose batches are numbered; `again` as for a `NumberedLoad`.

    `enter` is called before a partition's first row is appended. A call that is broken off leaves the numbers of its
    partitions in doubt: the logs are asked before the next.
    """

    def __init__(
        self,
        call: TopicCall,
        threads: int,
        numbers: SequenceNumbers,
        *,
        enter: Enter | None = None,
        again: NumberedColumnLoad | None = None,
    ) -> None:
        super().__init__(call, threads)
        self._numbers = numbers
        self._enter = enter
        self.parts: dict[int, Numbered] = {}
        if again is not None:
            self.now_ms = again.now_ms
            self.stored = {number: copy(stored) for number, stored in again.stored.items()}
            self.parts = parts_again(call, numbers, again.parts)
            self.writers = {number: call.writer(number) for number in self.parts}

    def run(self, columns: ColumnArguments, sync: bool) -> dict[int, AppendInfo]:
        """Append a record for each row; what each partition got."""
        appended = super().run(columns, sync)
        for number, part in self.parts.items():
            self._numbers.used((self.call.topic, number), part.next, 0)
        return appended

    def _pipeline(self, number: int, writer: Writer) -> BatchPipeline:
        call = self.call
        place = (call.topic, number)
        if self._enter is not None:
            self._enter([place])
        sequence = self._numbers.take(place, writer)
        part = self.parts.get(number)
        if part is None:
            part = self.parts[number] = Numbered(sequence)
        fields = self._numbers.fields(part.first)
        return _NumberedPipeline(part, writer, self._work, **self._options(number, writer), producer=fields)


class _NumberedPipeline(BatchPipeline):
    """Numbered batches on their way into one log."""

    def __init__(self, part: Numbered, writer: Writer, work: OrderedWork, **options: Any) -> None:
        super().__init__(writer, work, **options)
        self._part = part

    def store(self, packer: Packer) -> None:
        """Append the packer's batches to the log, and empty it."""
        self._part.write(self.writer, packer, self.stored)
        packer.clear()


def parts_again(call: TopicCall, numbers: SequenceNumbers, parts: dict[int, Numbered]) -> dict[int, Numbered]:
    """The partitions of a call that is repeated, with what their logs know of it."""
    return {number: Numbered(part.first, numbers.info(call.writer(number))) for number, part in parts.items()}


def _store_rest(writer: Writer, encoded: memoryview, stored: Stored, max_timestamp: int) -> int:
    with writer.gate():
        writer.assign_epoch_locked(None)
        end = writer.log_end_offset
        try:
            _, last, _ = producer_append.append_locked(writer, encoded, Origin.CLIENT)
            return last
        finally:
            if writer.log_end_offset > end:
                stored.add(end, writer.log_end_offset - 1, max_timestamp)


def _append_one(
    writer: Writer,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None,
    timestamp: int,
    fields: ProducerFields,
    expected_offset: int | None,
) -> int:
    """Append one plain record, numbered, when there is more to do than to write it; its offset."""
    writer.housekeeping.before_append()
    batch = writer.appender.encode(value, key, timestamp, *fields)
    with writer.gate():
        batch_packer.refuse_unexpected_locked(writer, expected_offset)
        writer.assign_epoch_locked(None)
        offset, _, _ = producer_append.append_one_locked(writer, memoryview(batch), _CLIENT, None)
        writer.published()
        return offset


class NumberedAppender(NumberingAppender):
    """Appends what producers give it to the topics of a store. Thread-safe; each `SequenceNumbers` is one thread's."""

    def __init__(self, catalog: Catalog, logs: Logs, routes: Routes) -> None:
        super().__init__(catalog, routes.by_topic)
        self._logs = logs
        self._routes = routes

    def forget_route(self, topic: str) -> None:
        """Make the topic's route anew: one of its partitions may be out of service."""
        self._routes.forget(topic)

    def log(self, topic: str, partition: int) -> Log:
        """The log of a partition."""
        return self._routes.log(topic, partition)

    def append_slowly(
        self,
        numbers: SequenceNumbers,
        enter: Enter | None,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
        expected_offset: int | None,
    ) -> RecordMetadata:
        """Append one record, numbered, where there is more to do than to write it."""
        routes = self._routes
        route = self.current_route(topic) or routes.find(topic)
        expected_offset = batch_packer.checked_expectation(expected_offset)
        if partition is None:
            if expected_offset is not None:
                raise ValueError("expected_offset needs a partition: offsets are those of one log")
            partition = route.router.route(key, value)
        elif type(partition) is not int or not 0 <= partition < len(route.writers):
            partition = routes.partition(topic, partition)
        place = (topic, partition)
        try:
            writer = route.writers[partition] or routes.writer(route, partition)
            if enter is not None and place not in numbers.entered:
                enter([place])
            sequence = numbers.partition(place)
            if sequence.writer is not writer:
                sequence.attach(writer)
            number = numbers.take(place, writer)
            if timestamp is None:
                timestamp = route.now()
            elif type(timestamp) is not int:
                timestamp = times.milliseconds("timestamp", timestamp)
            config = writer.config
            if headers is None and config.compression_type in _AS_GIVEN and config.message_timestamp_type == _BY_CLIENT:
                offset = _append_one(writer, value, key, timestamp, numbers.fields(number), expected_offset)
                numbers.used(place, number, 1)
                return _new_tuple(RecordMetadata, (topic, partition, offset, timestamp))
            info = self._logs.log(route.entries[partition]).append_many(
                [(key, value, timestamp, headers)],
                atomic=True,
                expected_offset=expected_offset,
                **numbers.fields(number)._asdict(),
            )
        except (StorageError, LogClosedError) as error:
            reason = self.reason(topic, error)
            if reason is not error:
                raise reason from None
            raise
        numbers.used(place, number, 1)
        if info.log_append_time >= 0:
            timestamp = info.log_append_time
        return RecordMetadata(topic, partition, info.last_offset, timestamp)

    def reason(self, topic: str, error: BaseException) -> BaseException:
        """What an append raises in place of this error; see `Routes.reason`."""
        return self._routes.reason(topic, error)

    def load(
        self,
        numbers: SequenceNumbers,
        topic: str,
        options: AppendOptions,
        *,
        enter: Enter | None = None,
        lock: AbstractContextManager[object] | None = None,
        again: NumberedLoad | None = None,
    ) -> NumberedLoad:
        """Begin an `append_many`, numbered.

        `lock` is held and `enter` called while something is appended, not while records are taken from the iterable.
        With `again`, the load of an attempt at the same call that did not finish, what that has stored is left out.
        """
        return NumberedLoad(TopicCall(self._routes, topic, options), numbers, enter=enter, lock=lock, again=again)

    def load_columns(
        self,
        numbers: SequenceNumbers,
        topic: str,
        options: AppendOptions,
        threads: int,
        *,
        enter: Enter | None = None,
        again: NumberedColumnLoad | None = None,
    ) -> NumberedColumnLoad:
        """Begin an `append_columns`, numbered; `enter` and `again` as for `load`."""
        call = TopicCall(self._routes, topic, options)
        return NumberedColumnLoad(call, threads, numbers, enter=enter, again=again)
