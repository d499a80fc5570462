"""One task attempt: writes rows to private segment files, with offsets from 0 and with indexes.

Invariant: an attempt writes only into its own directory, syncs the files before it returns them, and removes the
directory if it fails. Memory: the caller's rows, a copy of them as records, the batches of all partitions
(`BATCHES_BYTES` between two calls), and about 25 KiB for each partition that gets rows.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kstore.base.numbers import NEVER
from kstore.base.threads import Workers
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.config.cautions import TimestampCaution
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import InvalidRecordError, RecordTooLargeError, StorageError
from kstore.log.batch_packer import PACK_BYTES, batch_bytes_of, codec_of, too_large
from kstore.log.batch_pipeline import OrderedWork, Pipeline
from kstore.log.segment_writer import SegmentWriter
from kstore.store.bulk_loads.load_manifest import TASK_PREFIX, Staged
from kstore.store.topics._column_partitioner import ColumnSplitter
from kstore.store.topics._partitioner import Router
from kstore.store.topics.topic_append import READY_BYTES

SYNC_THREADS = 8
OPEN_BYTES = 16 << 20  # limit of a topic's open batches; with many partitions, batches are smaller
BATCHES_BYTES = 16 << 20  # memory that the batches of all topics may take between two calls


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: int
    settings: Mapping[str, str]
    config: str | None = None  # for a topic that the commit creates: its own settings, as JSON

    def log_config(self) -> LogConfig:
        """Return the settings for staged segments: the topic's settings except those that only an open log needs."""
        left_out: dict[str, Any] = {"flush_messages": NEVER, "flush_ms": NEVER, "preallocate": False}
        return LogConfig.from_kafka(self.settings).replace(**left_out, segment_jitter_ms=0, retention_ms=-1)


class _StagedPipeline(Pipeline):
    """Writes batches to the staged segments of one partition; counts the batches and their memory."""

    def __init__(
        self,
        segments: SegmentWriter,
        work: OrderedWork,
        *,
        codec: int,
        batch_bytes: int,
        now_ms: int,
        caution: TimestampCaution,
    ) -> None:
        super().__init__(segments, work, self._append, caution.say, codec=codec, batch_bytes=batch_bytes, now_ms=now_ms)
        self.segments = segments
        self.count = 0
        self.memory = 0

    def measure(self) -> int:
        """Measure the memory that the batches take now; return the growth since the last call."""
        before = self.memory
        self.memory = _column_encoder.memory(self.packer)
        if self.compressed is not None:
            self.memory += _column_encoder.memory(self.compressed)
        return self.memory - before

    def shrink(self, *, close: bool = False) -> int:
        """Release unused memory and return the growth as `measure` does. If `close`, first write the open batch."""
        if close:
            self.end_batch()
        if self.compressed is not None:
            _column_encoder.shrink(self.compressed)  # it is empty between two calls
            self.compressed = None
        _column_encoder.shrink(self.packer)
        return self.measure()

    def end_batch(self) -> None:
        _column_encoder.close(self.packer)
        self.send()

    def _append(self, packer: Packer) -> None:
        """Append the packer's batches to the segments."""
        self.count += packer.batches
        with packer.buffer as batches:
            self.segments.append(batches)


@dataclass(slots=True)
class _TopicPipelines:
    """The pipelines of one topic's partitions, and the splitter that distributes rows over them."""

    topic: Topic
    config: LogConfig
    batch_bytes: int
    splitter: ColumnSplitter
    by_partition: dict[int, _StagedPipeline] = field(default_factory=dict)


class Attempt:
    """Stages the rows of one task attempt; a context manager that removes its files after an error. Not thread-safe."""

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
        self._topics: dict[str, _TopicPipelines] = {}
        self._work = OrderedWork(1)
        self._memory = 0  # of all batches
        self._caution = TimestampCaution()

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for pipeline in self._pipelines():
            pipeline.segments.close()
        if kind is not None:
            self._remove()

    def _remove(self) -> None:
        try:
            fs.remove_tree(self.directory)
        except StorageError:  # the clean-up of the job removes the rest
            return

    def _pipelines(self) -> list[_StagedPipeline]:
        return [pipeline for pipelines in self._topics.values() for pipeline in pipelines.by_partition.values()]

    def columns(self, values: Any, keys: Any = None, timestamps: Any = None, headers: Any = None) -> ColumnInput:
        """Return columns for `append`; rows without `timestamps` get the time at which the attempt started."""
        return ColumnInput(values, keys, timestamps, headers, self.now_ms)

    def append(self, topic: Topic, columns: ColumnInput, partition: int | None = None) -> None:
        """Stage rows in one partition; if None, choose it by key, and vary it for rows without a key.

        Raises the errors of `Store.append_columns` if the topic refuses a row; the attempt must then be dropped.
        """
        pipelines = self._topics.get(topic.name) or self._add_topic(topic)
        splitter = pipelines.splitter
        try:
            for rows in columns:
                if partition is None:
                    while splitter.pack(rows):
                        for ready, _ in splitter.ready:
                            pipelines.by_partition[ready].send()
                    self._memory += sum(pipeline.measure() for pipeline in pipelines.by_partition.values())
                else:
                    pipeline = self._pipeline(pipelines, partition)
                    while _column_encoder.pack(pipeline.packer, rows, PACK_BYTES):
                        pipeline.send()
                    pipeline.send()
                    self._memory += pipeline.measure()
                if self._memory > BATCHES_BYTES:
                    self._shrink()
        except RecordTooLargeError as error:
            raise too_large(pipelines.config, error) from None

    def _shrink(self) -> None:
        """Release unused memory; if less than half is free afterwards, close open batches, the largest first."""
        pipelines = self._pipelines()
        self._memory += sum(pipeline.shrink() for pipeline in pipelines)
        if self._memory <= BATCHES_BYTES // 2:
            return
        for pipeline in sorted(pipelines, key=lambda pipeline: pipeline.memory, reverse=True):
            self._memory += pipeline.shrink(close=True)
            if self._memory <= BATCHES_BYTES // 4:
                return

    def _add_topic(self, topic: Topic) -> _TopicPipelines:
        config = topic.log_config()
        batch_bytes = batch_bytes_of(config, self._batch_bytes, topic.partitions)
        # The task's number is the seed, so that a repeated attempt sends rows without a key to the same partitions.
        router = Router(topic.partitions, sticky_bytes=batch_bytes, seed=self._task)

        def packer(partition: int) -> Packer:
            return self._pipeline(pipelines, partition).packer

        splitter = ColumnSplitter(
            router, packer, limit_bytes=READY_BYTES, max_bytes=OPEN_BYTES, sticky_bytes=batch_bytes
        )
        pipelines = self._topics[topic.name] = _TopicPipelines(topic, config, batch_bytes, splitter)
        return pipelines

    def _pipeline(self, pipelines: _TopicPipelines, partition: int) -> _StagedPipeline:
        pipeline = pipelines.by_partition.get(partition)
        if pipeline is None:
            topic = pipelines.topic
            if not 0 <= partition < topic.partitions:
                raise InvalidRecordError(f"partition {partition} of topic {topic.name}, which has {topic.partitions}")
            if not fs.exists(self.directory):
                self._make_directory()
            path = f"{self.directory}/{topic.name}-{partition}"
            fs.make_directory(path)  # `finish` makes it durable
            pipeline = pipelines.by_partition[partition] = _StagedPipeline(
                SegmentWriter(path, pipelines.config),
                self._work,
                codec=codec_of(pipelines.config, self._compression),
                batch_bytes=pipelines.batch_bytes,
                now_ms=self.now_ms,
                caution=self._caution,
            )
        return pipeline

    def _make_directory(self) -> None:
        """Make the attempt's directory and that of its job; `finish` makes them durable."""
        job = os.path.dirname(self.directory)
        fs.make_directories(os.path.dirname(job))
        fs.make_directory(job)
        fs.make_directory(self.directory)

    def finish(self) -> list[Staged]:
        """Sync everything to the disk; return the manifest rows, sorted by topic and partition."""
        staged = []
        filled = []
        for _, pipelines in sorted(self._topics.items()):
            try:
                pipelines.splitter.close()
                for partition, pipeline in sorted(pipelines.by_partition.items()):
                    pipeline.end_batch()
                    if pipeline.count:
                        staged.append(self._seal(pipelines.topic, partition, pipeline))
                        filled.append(pipeline.segments)
            except RecordTooLargeError as error:
                raise too_large(pipelines.config, error) from None
        # Use several threads: a file system combines the writes of files that are synced at the same time.
        with Workers(SYNC_THREADS, "kstore-stage") as pool:
            list(pool.map(SegmentWriter.flush, filled))
        for segments in filled:
            segments.close()
        if filled:
            job = os.path.dirname(self.directory)
            for directory in (self.directory, job, os.path.dirname(job)):
                fs.sync_directory(directory)
        elif self._topics:
            self._remove()
        return staged

    def _seal(self, topic: Topic, partition: int, pipeline: _StagedPipeline) -> Staged:
        segments = pipeline.segments.seal()
        return Staged(
            job=self._job,
            directory=self.directory,
            task=self._task,
            topic=topic.name,
            partition=partition,
            partitions=topic.partitions,
            records=segments[-1].next_offset,
            batches=pipeline.count,
            bytes=sum(segment.size_bytes for segment in segments),
            max_timestamp=max(segment.max_timestamp for segment in segments),
            segments=json.dumps([[each.base_offset, each.next_offset, each.size_bytes] for each in segments]),
            config=topic.config,
            query=self._query,
            batch=self._batch,
        )
