"""Numbered appends: what a producer's records are before a log compares their numbers with what it knows.

`Numbers` counts each partition's records for one producer id and epoch; `NumberedWrites` is the part of `Store` that
appends with them. The hardest rule: a number is used for one record alone. An append that ended in a way that leaves
it open whether its batch is in the log makes the count doubtful, and the log is asked before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from kstore import arguments
from kstore._numbered import Line, Sequences
from kstore._producers import Origin
from kstore.appends import AppendInfo, Numbering
from kstore.errors import LogClosedError, StorageError
from kstore.topicwrites import Load, RecordMetadata, TopicWrites

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore._pack import Packer
    from kstore._route import Splitter
    from kstore.log import Log
    from kstore.producer import ProducerInfo
    from kstore.topicwrites import Route

Place = tuple[str, int]
Enter = Callable[[list[Place]], None]
_WRAP = 1 << 31  # sequence numbers go on at 0 behind 2^31 - 1
_BEFORE_LENGTH, _LAST_OFFSET_DELTA = 12, 23  # in a batch's header
_CLIENT = int(Origin.CLIENT)
_AS_GIVEN = ("producer", "uncompressed")
_BY_CLIENT = "CreateTime"

_new = tuple.__new__


class Numbers(Sequences):
    """The sequence numbers of one producer id and epoch, by partition. Whoever uses it excludes others."""

    def __init__(self, producer_id: int, producer_epoch: int, *, transactional: bool) -> None:
        super().__init__(producer_id, producer_epoch, transactional=transactional, metadata=RecordMetadata)
        self.entered: set[Place] = set()  # the partitions that are known to the coordinator
        self.taken: tuple[Place, int] | None = None
        """The number that was given last, whatever has become of it."""

    def line(self, place: Place) -> Line:
        """The numbers of one partition."""
        found = self.lines.get(place)
        if found is None:
            found = self.lines[place] = Line()
        return found

    def take(self, place: Place, log: Log) -> int:
        """The number of the next record; in doubt from here until `used` or `unused`."""
        line = self.line(place)
        if line.doubtful:
            line.sequence = self.known(place, log)
        line.doubtful = True
        self.taken = place, line.sequence
        return line.sequence

    def used(self, place: Place, sequence: int, count: int) -> None:
        """So many records are in the log from this number on."""
        line = self.line(place)
        line.sequence = (sequence + count) % _WRAP
        line.doubtful = False

    def unused(self, place: Place, sequence: int) -> None:
        """The log is as it was."""
        self.used(place, sequence, 0)

    def known(self, place: Place, log: Log) -> int:
        """The next number by what the log has; by what was counted where the log knows nothing."""
        info = self.info(log)
        if info is None or not info.batches:
            return self.line(place).sequence
        return (info.batches[-1].last_sequence + 1) % _WRAP

    def info(self, log: Log) -> ProducerInfo | None:
        """What the log knows of this producer in this epoch."""
        info = log._producer_state(self.producer_id)
        return info if info is not None and info.producer_epoch == self.producer_epoch else None

    def numbering(self, sequence: int) -> Numbering:
        """What the log is to be told."""
        return Numbering(self.producer_id, self.producer_epoch, sequence, self.transactional)


class NumberedLoad(Load):
    """An `append_many` whose batches are numbered.

    `known` tells of a repeated call what each partition has of this producer: batches that are in a log are left out.
    """

    def __init__(
        self,
        store: TopicWrites,
        route: Route,
        topic: str,
        compression: str | None,
        batch_bytes: int,
        *,
        numbers: Numbers,
        enter: Enter | None,
        lock: AbstractContextManager[object],
        again: NumberedLoad | None = None,
    ) -> None:
        super().__init__(store, route, topic, compression, batch_bytes)
        self._numbers = numbers
        self._enter = enter
        self._lock = lock
        self._sequences: dict[int, int] = {}
        self._known: dict[int, ProducerInfo] = {}
        self.started: dict[int, int] = {}
        """Each partition's first number in this call."""
        if again is not None:
            self._now_ms = again._now_ms
            self._found = dict(again._found)
            self._sequences = dict(again.started)
            self.started = again.started
            for number in again._logs:
                log = self._logs[number] = store._log_on(route, topic, number)
                info = numbers.info(log)
                if info is not None and info.batches:
                    self._known[number] = info

    def store(self, splitter: Splitter) -> None:
        """Append what is ready, after it was written down where it goes; `lock` is held so long, and no longer."""
        ready = splitter.ready
        if ready:
            with self._lock:
                if self._enter is not None:
                    self._enter([(self._topic, number) for number, _ in ready])
                super().store(splitter)

    def _make(self, number: int, log: Log) -> Packer:
        if number not in self._sequences:
            place = (self._topic, number)
            self._sequences[number] = self.started[number] = self._numbers.take(place, log)
            self._numbers.unused(place, self._sequences[number])
        return log._packer(
            log._compression_id(self._compression),
            self._batch_bytes,
            self._now_ms,
            numbers=self._numbers.numbering(self._sequences[number]),
        )

    def _write(self, number: int, log: Log, packer: Packer) -> tuple[int, int]:
        place = (self._topic, number)
        sequence = self._sequences[number]
        self._numbers.take(place, log)
        info = self._known.get(number)
        left = 0 if info is None else (info.batches[-1].last_sequence + 1 - sequence) % _WRAP
        if info is None or left == 0 or left >= _WRAP // 2:  # of the other half of the circle: from before this call
            first, last = log._store(log._writable(), packer, None, numbered=True)
            count = last - first + 1
        else:
            first, last, count = self._write_rest(log, packer, info, left, sequence)
        self._sequences[number] = (sequence + count) % _WRAP
        self._numbers.used(place, sequence, count)
        return first, last

    @staticmethod
    def _write_rest(log: Log, packer: Packer, info: ProducerInfo, known: int, sequence: int) -> tuple[int, int, int]:
        """Write the batches behind the first `known` records, which are in the log; first and last offset, records."""
        first, last = info.batches[0].first_offset, info.batches[-1].last_offset
        for batch in info.batches:  # where the log does not remember it the first that it does stands for it
            if batch.first_sequence <= sequence <= batch.last_sequence:
                first = batch.first_offset + sequence - batch.first_sequence
        with packer.buffer as batches:
            at = count = skipped = 0
            while at < len(batches):
                count += 1 + int.from_bytes(batches[at + _LAST_OFFSET_DELTA : at + _LAST_OFFSET_DELTA + 4], "big")
                at += _BEFORE_LENGTH + int.from_bytes(batches[at + 8 : at + _BEFORE_LENGTH], "big")
                if count <= known:
                    skipped = at
            if skipped < at:
                rest = batches[skipped:]
                try:
                    last = _store_rest(log, rest)
                finally:
                    rest.release()
        return first, last, count


def _append_one(
    log: Log,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None,
    timestamp: int,
    numbers: Numbers,
    sequence: int,
) -> int:
    """Append one record as `Log.append` does, with its numbers, when there is more to do than to write it."""
    writer = log._writable()
    appender = writer.appender
    if appender.now() >= appender.due_ms:
        writer.upkeep.host.housekeep(writer.upkeep)
    known = numbers.producer_id, numbers.producer_epoch, sequence, numbers.transactional
    batch = memoryview(appender.encode(value, key, timestamp, *known))
    with writer.gate():
        writer.assign_epoch_locked(None)
        offset = writer._append_one_produced(batch, _CLIENT, None)[0]
        writer._published()
    return offset


def _store_rest(log: Log, batches: memoryview) -> int:
    writer = log._writable()
    with writer.gate():
        writer.assign_epoch_locked(None)
        return writer.append_produced_locked(batches, Origin.CLIENT)[1]


class NumberedWrites(TopicWrites):
    """What producers append to a `Store`; see there about threads."""

    def _append_numbered(
        self,
        numbers: Numbers,
        enter: Enter | None,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        partition: int | None,
        timestamp: int | None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None,
    ) -> RecordMetadata:
        """Append one record, numbered; where it went. Raises what `Store.append` and the log raise."""
        route = self._routes.get(topic)
        if route is None or route.entries is not self._catalog.partitions(topic):
            route = self._find_route(topic)
        if partition is None:
            partition = route.router.route(key, value)
        elif type(partition) is not int or not 0 <= partition < len(route.logs):
            partition = self._catalog.find(topic, arguments.whole("partition", partition)).partition
        place = (topic, partition)
        try:
            log = route.logs[partition] or self._log_on(route, topic, partition)
            if enter is not None and place not in numbers.entered:
                enter([place])
            line = numbers.line(place)
            if line.log is not log:
                line.attach(log, log._writable())
            if headers is None and not line.doubtful:
                numbers.taken = place, line.sequence
                found = numbers.append_locked(line, value, key, timestamp)
                if found is not None:
                    return _new(RecordMetadata, (topic, partition, *found))
            sequence = numbers.take(place, log)
            if timestamp is None:
                timestamp = route.now()
            config = log._config
            if headers is None and config.compression_type in _AS_GIVEN and config.message_timestamp_type == _BY_CLIENT:
                offset = _append_one(log, value, key, timestamp, numbers, sequence)
                numbers.used(place, sequence, 1)
                return _new(RecordMetadata, (topic, partition, offset, timestamp))
            info = log.append_many(
                [(key, value, timestamp, headers)],
                producer_id=numbers.producer_id,
                producer_epoch=numbers.producer_epoch,
                base_sequence=sequence,
                transactional=numbers.transactional,
            )
        except StorageError:
            self._routes.pop(topic, None)
            raise
        except LogClosedError as error:
            raise self._closed_or_gone(topic, error) from None
        numbers.used(place, sequence, 1)
        if info.log_append_time >= 0:
            timestamp = info.log_append_time
        return RecordMetadata(topic, partition, info.last_offset, timestamp)

    def _append_many_numbered(
        self,
        numbers: Numbers,
        enter: Enter | None,
        topic: str,
        records: Iterable[Any],
        *,
        partition: int | None,
        compression: str | None,
        batch_bytes: int | None,
        sync: bool,
        seed: int | None,
        again: NumberedLoad | None = None,
        loads: list[NumberedLoad] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> dict[int, AppendInfo]:
        """Append an iterable of records, numbered; the load is left in `loads`, also when it raises.

        `lock` is held and `enter` asked while something is appended, not while records are taken from the iterable.
        With `again`, the load of a call with the same arguments that was not finished, what it has stored is left out.
        """

        def make(*where: Any) -> NumberedLoad:
            load = NumberedLoad(*where, numbers=numbers, enter=enter, lock=lock or nullcontext(), again=again)
            if loads is not None:
                loads.append(load)
            return load

        return self._append_many(topic, records, partition, compression, sync, batch_bytes, seed, make)
