"""One task attempt: rows in, private segment files out, with offsets from 0 and their indexes.

Rows go over the partitions as `Store.append_columns` sends them; batches fill up across everything that the attempt is
given. Needs neither Spark nor PyArrow. The hardest rule: what an attempt is made of lies in its own directory, durably
before it is handed over, and an attempt that fails takes the directory with it.

Memory: the caller's rows at hand, and once more as records; the batches of all topics and partitions, `BATCHES_BYTES`
between two calls; what a codec makes of one partition's; some 25 KiB for each partition that gets rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kstore import _columnpack, fs, names
from kstore._columnroute import ColumnSplitter
from kstore._pack import Packer
from kstore._route import Router
from kstore.adopt import TASK_PREFIX, Staged
from kstore.appends import PACK_BYTES
from kstore.columnappends import Line, Works, told
from kstore.columnsources import Columns
from kstore.config import LogConfig
from kstore.errors import InvalidRecordError, KStoreError, StorageError
from kstore.log import Log
from kstore.producer import DEFAULT_EXPIRY
from kstore.topicwrites import LEAST_BATCH_BYTES, MOST_BATCH_BYTES, READY_BYTES, SPREAD_BYTES
from kstore.upkeep import NEVER, Upkeep
from kstore.writer import Writer

SYNC_THREADS = 8
WRITE_BYTES = 1 << 20  # of a file: when so many have come, the disk begins with them
OPEN_BYTES = 16 << 20  # of a topic's batches that are being filled: of many partitions' they are written smaller
BATCHES_BYTES = 16 << 20  # memory that the batches of all topics may take between two calls


@dataclass(frozen=True, slots=True)
class Topic:
    """What a task must know of a topic: its partitions, what holds for its logs, what it is to have of its own."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    config: str | None = None  # of a topic that is to be made, as JSON

    def log_config(self) -> LogConfig:
        """The settings that staged logs go by: the topic's, without what is done to a log later."""
        config = LogConfig.from_kafka(self.settings)
        return config.replace(
            flush_messages=NEVER, flush_ms=NEVER, preallocate=False, segment_jitter_ms=0, retention_ms=-1
        )


class _Nobody:
    """The host of a staged log: nothing is due of it before it is handed over."""

    def attend(self, upkeep: Upkeep) -> int:
        return NEVER

    def write_marks(self, upkeep: Upkeep, *, keep_start: bool = False) -> None:
        pass

    def housekeep(self, upkeep: Upkeep) -> None:
        pass

    def stop(self, upkeep: Upkeep) -> None:
        pass


class _CountingLine(Line):
    """A line into a staged log that counts its batches, and the memory that they take."""

    count = 0
    memory = 0
    _waiting = 0  # bytes that the disk has not been told of

    def measure(self) -> int:
        """See how much memory the batches take now; by how much that is more than the last time."""
        before = self.memory
        self.memory = _columnpack.memory(self.packer)
        if self._compressed is not None:
            self.memory += _columnpack.memory(self._compressed)
        return self.memory - before

    def shrink(self, *, close: bool = False) -> int:
        """Give back memory that holds nothing; with `close` what is open is written first. As `measure`."""
        if close:
            _columnpack.close(self.packer)
            self.send()
        self._compressed = None  # it is empty between two calls
        _columnpack.shrink(self.packer)
        return self.measure()

    def _store(self, packer: Packer) -> None:
        self.count += packer.batches
        writer = self._writer
        with writer.gate(), packer.buffer as batches:
            self._waiting += len(batches)
            writer.append_locked(batches)  # and no epoch is entered: the commit assigns one
            if self._waiting >= WRITE_BYTES:
                self._waiting = 0
                fs.start_writing(writer.active.file.fd)
        packer.clear()


@dataclass(slots=True)
class _Lane:
    """What an attempt has of one topic."""

    topic: Topic
    config: LogConfig
    batch_bytes: int
    splitter: ColumnSplitter
    lines: dict[int, _CountingLine] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=dict)


class Attempt:
    """What one task attempt stages. Not thread-safe; a context manager, which removes everything if its block fails."""

    def __init__(
        self,
        job_directory: str,
        job: str,
        task: int,
        *,
        compression: str | None = None,
        batch_bytes: int | None = None,
        query: str | None = None,
        batch: int | None = None,
        now_ms: int | None = None,
    ) -> None:
        self.directory = f"{job_directory}/{TASK_PREFIX}{task}-{uuid.uuid4().hex}"
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._job, self._task = job, task
        self._compression, self._batch_bytes = compression, batch_bytes
        self._query, self._batch = query, batch
        self._lanes: dict[str, _Lane] = {}
        self._works = Works(1)
        self._memory = 0  # of all batches

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for lane in self._lanes.values():
            for log in lane.logs.values():
                log.abandon()
        if kind is not None:
            self._remove()

    def _remove(self) -> None:
        try:
            fs.remove_tree(self.directory)
        except StorageError:  # the job's clean-up takes what is left
            return

    # Rows in.

    def columns(self, values: Any, keys: Any = None, timestamps: Any = None, headers: Any = None) -> Columns:
        """Columns in step, for `append`; without `timestamps` rows have the time at which the attempt began."""
        return Columns(values, keys, timestamps, headers, self.now_ms)

    def append(self, topic: Topic, columns: Columns, partition: int | None = None) -> None:
        """Take in rows: to one partition, else each by its key, those without one in turns of a batch's bytes.

        A row that the topic refuses raises what `Store.append_columns` raises, with nothing of the attempt to be used.
        """
        lane = self._lanes.get(topic.name) or self._lane(topic)
        try:
            for rows in columns:
                if partition is None:
                    while lane.splitter.pack(rows):
                        self._send(lane)
                    self._memory += sum(line.measure() for line in lane.lines.values())
                else:
                    line = self._line(lane, partition)
                    while _columnpack.pack(line.packer, rows, PACK_BYTES):
                        line.send()
                    if line.packer.batches:
                        line.send()
                    self._memory += line.measure()
                if self._memory > BATCHES_BYTES:
                    self._relieve()
        except KStoreError as error:
            log = next((line.log for line in lane.lines.values()), None)
            raise told(log, error, None) from None

    def _relieve(self) -> None:
        """Give back memory: what holds nothing, and where that is not enough, the fullest batches, which end here.

        Half of the budget is free afterwards, three quarters where batches had to end: so this is seldom done.
        """
        lines = [line for lane in self._lanes.values() for line in lane.lines.values()]
        self._memory += sum(line.shrink() for line in lines)
        if self._memory <= BATCHES_BYTES // 2:
            return
        for line in sorted(lines, key=lambda line: line.memory, reverse=True):
            self._memory += line.shrink(close=True)
            if self._memory <= BATCHES_BYTES // 4:
                return

    def _lane(self, topic: Topic) -> _Lane:
        config = topic.log_config()
        batch_bytes = self._batch_bytes
        if batch_bytes is None:
            batch_bytes = min(max(SPREAD_BYTES // topic.partitions, LEAST_BATCH_BYTES), MOST_BATCH_BYTES)
        batch_bytes = min(batch_bytes, config.max_message_bytes, config.effective_segment_bytes)
        # The task's own number decides where rows without a key begin: a repeated attempt sends them the same way.
        router = Router(topic.partitions, sticky_bytes=batch_bytes, seed=self._task)

        def make(number: int) -> Packer:
            return self._line(lane, number).packer

        splitter = ColumnSplitter(
            router, make, limit_bytes=READY_BYTES, most_bytes=OPEN_BYTES, sticky_bytes=batch_bytes
        )
        lane = self._lanes[topic.name] = _Lane(topic, config, batch_bytes, splitter)
        return lane

    def _line(self, lane: _Lane, number: int) -> _CountingLine:
        line = lane.lines.get(number)
        if line is None:
            topic = lane.topic
            if not 0 <= number < topic.partitions:
                raise InvalidRecordError(f"partition {number} of topic {topic.name}, which has {topic.partitions}")
            fs.make_directories(self.directory)
            path = f"{self.directory}/{topic.name}-{number}"
            fs.make_directory(path)  # durable once all of the attempt is
            log = Log.open_hosted(
                path,
                lane.config,
                host=_Nobody(),
                clock=None,
                recovery_point=0,
                log_start_offset=0,
                marked_clean=False,
                expiry=DEFAULT_EXPIRY,
                on_storage_error=lambda error: None,
            )
            lane.logs[number] = log
            codec = log._compression_id(self._compression)
            line = lane.lines[number] = _CountingLine(log, codec, lane.batch_bytes, self.now_ms, None, self._works)
        return line

    @staticmethod
    def _send(lane: _Lane) -> None:
        for number, _ in lane.splitter.ready:
            lane.lines[number].send()

    # Files out.

    def finish(self) -> list[Staged]:
        """Put everything on the disk; what has been staged, by topic and partition."""
        filled = []
        for _, lane in sorted(self._lanes.items()):
            try:
                lane.splitter.close()
                for number, line in sorted(lane.lines.items()):
                    _columnpack.close(line.packer)
                    line.send()
                    if line.count:
                        filled.append((lane, number, line))
            except KStoreError as error:
                raise told(next((line.log for line in lane.lines.values()), None), error, None) from None
        for lane, number, _ in filled:
            _seal(lane.logs[number]._writable())
        # Side by side: a file system puts what is asked for at the same time on the disk in one go.
        with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="kstore-stage") as pool:
            list(pool.map(lambda each: _sync(each[0].logs[each[1]]._writable()), filled))
        found = [self._hand_over(*each) for each in filled]
        if found:
            fs.sync_directory(self.directory)
        elif self._lanes:
            self._remove()
        return found

    def _hand_over(self, lane: _Lane, number: int, line: _CountingLine) -> Staged:
        log = lane.logs[number]
        segments = [each for each in log.segments if each.size_bytes]
        log.abandon()
        return Staged(
            job=self._job,
            directory=self.directory,
            task=self._task,
            topic=lane.topic.name,
            partition=number,
            partitions=lane.topic.partitions,
            records=sum(each.next_offset - each.base_offset for each in segments),
            batches=line.count,
            bytes=sum(each.size_bytes for each in segments),
            max_timestamp=max(each.max_timestamp for each in segments),
            segments=json.dumps([[each.base_offset, each.next_offset, each.size_bytes] for each in segments]),
            config=lane.topic.config,
            query=self._query,
            batch=self._batch,
        )


def _seal(writer: Writer) -> None:
    """Give a staged log's files their last form: a commit has only renames left to do, and no files to remove."""
    with writer.gate():
        writer.settle()
        writer.active.seal()
        writer.appender.detach()
        for name in fs.listdir(writer.directory):
            if not name.endswith((names.LOG, names.OFFSET_INDEX, names.TIME_INDEX)):
                fs.unlink(f"{writer.directory}/{name}")


def _sync(writer: Writer) -> None:
    """Put a sealed log on the disk."""
    for segment in writer.segments.items:
        segment.flush()
    fs.sync_directory(writer.directory)
