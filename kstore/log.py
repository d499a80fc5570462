"""`Log`: one topic-partition directory, laid out byte for byte as a Kafka broker would.

The face of everything below: opening and its locks, what a caller may pass, what comes back. The state of a writable
log is in writer.py, that of a read-only one in readonly.py; how both are read in reading.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from kstore import _core, arguments, checkpoint, compression, fs, names, reading, recovery, validation
from kstore._pack import Packer
from kstore.config import ConfigSource, LogConfig
from kstore.errors import (
    InvalidRecordError,
    InvalidTopicError,
    KStoreError,
    LogClosedError,
    PolicyViolationError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from kstore.reading import FetchResult
from kstore.readonly import ReadOnlyView
from kstore.recovery import Recovery
from kstore.segment import SegmentInfo
from kstore.writer import Writer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PACK_BYTES = 512 * 1024  # what append_many encodes before it writes
DEFAULT_BATCH_BYTES = 1 << 20
Isolation = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append stored: `[first_offset, last_offset]`, both -1 when it stored nothing.

    `max_timestamp` is the greatest of its records, `log_append_time` the time of the append for a topic whose
    `message.timestamp.type` is LogAppendTime, else -1.
    """

    first_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = -1
    log_append_time: int = -1


class TimestampOffset(NamedTuple):
    """A record's timestamp in milliseconds and its offset."""

    timestamp: int
    offset: int


class Log:
    """One partition of a topic: appended to at its end, read from anywhere. Open it with `Log.open`.

    Any method may be called from any thread. Appends of one call to `append_many` may interleave with those of other
    threads between batches. Reading takes no lock. In a forked child the log is closed; a read-only log can be pickled
    and opens again where it is unpickled.
    """

    _writer: Writer | None

    def __init__(self) -> None:
        raise TypeError("a log is opened with Log.open(path)")

    # Opening and closing.

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["a", "r"] = "a",
        *,
        config: ConfigSource = None,
        clock: Callable[[], int] | None = None,
        max_decompressed_bytes: int | None = None,
        **settings: Any,
    ) -> Self:
        """Open the partition directory at `path`, named `topic-partition`.

        Mode "a" creates what is missing, takes the writer's locks, and recovers what a crash left (`recovery` says
        what it did). Mode "r" takes no lock and never changes a byte; any number of processes may do it while the log
        is written. `config` and `settings` (`segment_bytes=...`) are not stored: give them at each opening. `clock`
        gives milliseconds since the epoch and stands in for the system's in everything the log decides by time.
        A batch that would decompress to more than `max_decompressed_bytes` (256 MiB unless given) is a
        `CorruptRecordError`: no producer makes one, and a few kilobytes can be made to claim gigabytes.

        Raises `LogLockedError` while another writer or a broker has the directory, `CorruptRecordError` for a fault in
        what had been flushed (nothing is cut), `InvalidTopicError` for a name that Kafka forbids, `ConfigError`, and
        `StorageError`.
        """
        if mode not in ("a", "r"):
            raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
        arguments.path("path", path)
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be callable, not {type(clock).__name__}")
        if max_decompressed_bytes is not None:
            max_decompressed_bytes = arguments.integer("max_decompressed_bytes", max_decompressed_bytes, low=1)
        log = cls.__new__(cls)
        directory = os.path.abspath(os.fspath(path))
        parsed = names.parse_partition_name(os.path.basename(directory))
        if mode == "a" and names.partition_name(parsed.topic, parsed.partition) != os.path.basename(directory):
            raise InvalidTopicError(
                f"{os.path.basename(directory)!r} is not the name of a live partition; "
                f"{names.partition_name(parsed.topic, parsed.partition)!r} would be (FORMAT.md 1.2)"
            )
        names.check_topic(parsed.topic)
        log.path = directory
        log.topic, log.partition = parsed.topic, parsed.partition
        log.mode = mode
        log._writer = None
        log._arguments = {"config": config, "max_decompressed_bytes": max_decompressed_bytes, **settings}
        fs.register(log)
        log._config = LogConfig.resolve(config, settings)
        if mode == "r":
            log._open_for_reading()
        else:
            log._open_for_writing(clock)
        log._view.max_decompressed_bytes = max_decompressed_bytes
        return log

    path: str
    topic: str
    partition: int
    mode: str
    recovery: Recovery
    _arguments: dict[str, Any]
    _append_one: Callable[..., int]
    _config: LogConfig
    _view: Writer | ReadOnlyView

    def _open_for_reading(self) -> None:
        if not fs.exists(self.path):
            raise fs.MissingFileError(2, "no such partition directory; mode 'r' creates nothing", self.path)
        view = ReadOnlyView(self.path, (self.topic, self.partition))
        self.recovery = Recovery()
        self._view = view
        self._append_one = self._refuse_append

    def _open_for_writing(self, clock: Callable[[], int] | None) -> None:
        root = os.path.dirname(self.path)
        partition = (self.topic, self.partition)
        fs.make_directories(root)
        self._root_lock = fs.lock_root(root, shared=True)
        try:
            existed = fs.exists(self.path)
            if not existed:
                checkpoint.forget_partitions(root, [partition])
                fs.mkdir(self.path)
            self._partition_lock = fs.lock_partition(self.path)
            try:
                self._load(root, partition, clock)
            except BaseException:
                self._partition_lock.release()
                raise
        except BaseException:
            self._root_lock.release()
            raise

    def _load(self, root: str, partition: tuple[str, int], clock: Callable[[], int] | None) -> None:
        now_ms = clock() if clock is not None else time.time_ns() // 1_000_000
        marked_clean = checkpoint.remove_clean_marker(root)
        loaded = recovery.load(
            self.path,
            self._config,
            recovery_point=checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS).get(partition, 0),
            log_start_offset=checkpoint.read_offsets(root, checkpoint.LOG_STARTS).get(partition, 0),
            marked_clean=marked_clean,
            now_ms=now_ms,
        )
        self.recovery = loaded.recovery
        self._writer = self._view = Writer(self.path, partition, self._config, loaded, clock)
        self._append_one = self._writer.appender.append

    def _after_fork(self) -> None:
        """Be closed in a child process: its copies of the locks must not outlive the parent's."""
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)
        if view is None:
            return  # it was being opened
        view.closed = True
        view.guard.version += 1
        if self._writer is not None:
            self._writer.appender.busy = True
            self._writer.appender.detach()

    def close(self) -> None:
        """Leave the files as a broker's clean shutdown does, write the checkpoints, give the locks back. Idempotent.

        Everything appended is on the disk when this returns. Raises `StorageError` when that failed; the log is closed
        all the same.
        """
        if self._view.closed:
            return
        try:
            self._view.close()
        finally:
            if self._writer is not None and self._writer.closed:  # not so if we were interrupted while we waited
                self._partition_lock.release()
                self._root_lock.release()

    def __del__(self) -> None:
        # Nobody holds the log: what was appended is in the files, and the locks go with this object.
        writer = getattr(self, "_writer", None)
        if writer is not None and not writer.closed:
            writer.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._view.closed else f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<kstore.Log {self.topic}-{self.partition} {state} mode={self.mode!r} at {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a log that is open for writing cannot be pickled: it holds the writer's locks")
        return _reopen, (self.path, self._arguments)

    # Appending.

    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None = None,
        sync: bool = False,
        leader_epoch: int | None = None,
    ) -> int:
        """Append one record as a batch of its own and return its offset.

        `timestamp` is in milliseconds (None: now; -1: none). With `sync=True` it is on the disk when this returns.
        Raises `TypeError` for a `str`, `RecordTooLargeError`, `RecordBatchTooLargeError`, `InvalidTimestampError`,
        `InvalidRecordError`, `StorageError`, `LogClosedError`; the log is then as it was.
        """
        if headers is None and leader_epoch is None:
            offset: int = self._append_one(value, key, timestamp)
            if offset >= 0:
                if sync:
                    self.flush()
                return offset
        return self._append_slowly(value, key, timestamp, headers, leader_epoch, sync)

    def _append_slowly(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None,
        leader_epoch: int | None,
        sync: bool,
    ) -> int:
        """Append one record when there is more to do than to write it: a roll, headers, compression, housekeeping."""
        writer = self._writable()
        self._run_due(writer)
        self._check_epoch(leader_epoch)
        if headers is None and self._compression_id(None) == 0:
            batch = writer.appender.encode(value, key, timestamp)
            with writer.gate():
                writer.assign_epoch_locked(leader_epoch)
                writer.append_locked(batch)
                offset = writer.log_end_offset - 1
        else:
            record = (key, value, timestamp, headers)
            offset = self.append_many([record], leader_epoch=leader_epoch).last_offset
        if sync:
            self.flush()
        return offset

    def append_many(
        self,
        records: Iterable[Any],
        *,
        compression: str | None = None,
        atomic: bool = False,
        sync: bool = False,
        batch_bytes: int | None = None,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Append an iterable of values, (key, value), (key, value, timestamp, headers) or `Record`s.

        Batches are filled up to `batch_bytes` (header and records before compression; by default the least of 1 MiB,
        `max.message.bytes` and `segment.bytes`); each is one leader append to Kafka's rules. `compression` names a
        codec for this call where the topic's `compression.type` is "producer". `atomic=True` stores one batch or
        nothing. Otherwise, when a record is refused, the batches before it stay and the error's `appended` tells them.

        Raises what `append` raises; `InvalidRecordError` names the record by its number in the iterable.
        """
        writer = self._writable()
        config = self._config
        limit = min(config.max_message_bytes, config.effective_segment_bytes)
        if batch_bytes is None:
            batch_bytes = min(DEFAULT_BATCH_BYTES, limit)
        else:
            batch_bytes = min(arguments.integer("batch_bytes", batch_bytes, low=1), limit)
        codec = self._compression_id(compression)
        self._check_epoch(leader_epoch)
        log_append_time = config.message_timestamp_type == "LogAppendTime"
        now_ms = writer.now()
        packer = Packer(
            batch_bytes,
            limit,
            codec,
            config.compression_level if config.compression_type != "producer" else None,
            timestamp_type=config.message_timestamp_type,
            now_ms=now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            require_key=config.compacts,
            single=atomic,
        )
        iterator = arguments.iterator("records", records)
        first = last = maximum = -1
        more = True
        try:
            while more:
                try:
                    more = packer.pack(iterator, PACK_BYTES)
                except RecordTooLargeError as error:
                    raise self._too_large(error) from None
                finally:
                    if packer.batches:
                        begin, last = self._store(writer, packer, leader_epoch)
                        first = begin if first < 0 else first
                        maximum = max(maximum, now_ms if log_append_time else packer.max_timestamp)
                        packer.clear()
        except KStoreError as error:
            if hasattr(error, "appended"):
                error.appended = AppendInfo(first, last, maximum, now_ms if log_append_time and last >= 0 else -1)
            raise
        if sync:
            self.flush()
        return AppendInfo(first, last, maximum, now_ms if log_append_time and last >= 0 else -1)

    def _store(self, writer: Writer, packer: Packer, leader_epoch: int | None) -> tuple[int, int]:
        self._run_due(writer)
        with writer.gate():
            writer.assign_epoch_locked(leader_epoch)
            first = writer.log_end_offset
            with packer.buffer as batches:
                writer.append_locked(batches)
            return first, writer.log_end_offset - 1

    def _too_large(self, error: RecordTooLargeError) -> KStoreError:
        """Name the limit that binds: `segment.bytes` has an error of its own."""
        if self._config.effective_segment_bytes < self._config.max_message_bytes:
            return RecordBatchTooLargeError(str(error).replace("max.message.bytes", "segment.bytes"))
        return error

    def append_batch(
        self,
        data: ReadableBuffer,
        *,
        origin: Literal["client", "coordinator"] = "client",
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Append one encoded batch as a producer sends it: checked, given its offsets, stored (SEMANTICS.md 1).

        The caller's bytes are not changed. Raises `CorruptRecordError`, `InvalidRecordError` (with `record_errors`),
        `InvalidTimestampError`, `RecordTooLargeError`, `RecordBatchTooLargeError`; the log is then as it was.
        """
        writer = self._writable()
        if origin not in ("client", "coordinator"):
            raise ValueError(f"origin is {origin!r}; 'client' and 'coordinator' are allowed")
        self._check_epoch(leader_epoch)
        analysis = validation.analyze(data, origin=origin, max_message_bytes=self._config.max_message_bytes)
        self._run_due(writer)
        with writer.gate():
            epoch = writer.appender.leader_epoch if leader_epoch is None else leader_epoch
            checked = validation.validate_leader(
                analysis,
                next_offset=writer.log_end_offset,
                leader_epoch=epoch,
                now_ms=writer.now(),
                config=self._config,
                origin=origin,
            )
            self._refuse_larger_than_segment(len(checked.data))
            writer.assign_epoch_locked(leader_epoch)
            writer.note_producers(analysis)
            writer.append_locked(checked.data)
        return AppendInfo(checked.first_offset, checked.last_offset, checked.max_timestamp, checked.log_append_time)

    def append_as_follower(self, data: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append encoded batches that already have offsets and leader epochs, as a replica fetches them (1.23 to 1.25).

        From the first batch on whose epoch is above `leader_epoch` everything is left out (1.5). Raises
        `UnexpectedAppendOffsetError` below the log end, `OffsetsOutOfOrderError`, `CorruptRecordError`,
        `RecordBatchTooLargeError`; the log is then as it was.
        """
        writer = self._writable()
        self._check_epoch(leader_epoch)
        analysis = validation.analyze(data, origin="follower", max_message_bytes=None, leader_epoch=leader_epoch)
        self._run_due(writer)
        with writer.gate():
            if not analysis.batches:
                return AppendInfo()
            validation.validate_follower(analysis, next_offset=writer.log_end_offset)
            if analysis.last_offset >= arguments.LONG_MAX:
                raise InvalidRecordError(f"offset {analysis.last_offset} leaves no number for the log end")
            self._refuse_larger_than_segment(analysis.valid_bytes)
            writer.note_producers(analysis)
            writer.append_as_follower_locked(analysis)
        return AppendInfo(analysis.first_offset, analysis.last_offset, analysis.max_timestamp)

    def _refuse_larger_than_segment(self, size: int) -> None:
        allowed = self._config.effective_segment_bytes
        if size > allowed:
            raise RecordBatchTooLargeError(f"the append has {size} bytes; segment.bytes allows {allowed}")

    @staticmethod
    def _check_epoch(leader_epoch: int | None) -> None:
        if leader_epoch is not None:
            arguments.integer("leader_epoch", leader_epoch, 0, arguments.INT_MAX)

    def _compression_id(self, named: str | None) -> int:
        """The codec of an append: the topic's, else the one named for the call, else none (1.10)."""
        asked = compression.type_id(named) if named is not None else 0
        topic = self._config.compression_type
        if topic == "producer":
            return asked
        return compression.type_id("none" if topic == "uncompressed" else topic)

    def _run_due(self, writer: Writer) -> None:
        if writer.now() >= writer.appender.due_ms:
            writer.upkeep.run_due()

    def _writable(self) -> Writer:
        if self._writer is None:
            raise self._not_writable()
        if self._writer.closed:  # before any lock: in a forked child nobody may be left to give it back
            raise LogClosedError(f"{self.path}: the log is closed")
        return self._writer

    def _refuse_append(self, *_: object) -> int:
        raise self._not_writable()

    def _not_writable(self) -> KStoreError:
        return LogClosedError(f"{self.path} is open with mode='r' and takes no appends; open it with mode='a'")

    # Reading.

    def read(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[_core.Record]:
        """Iterate over the records of `[offset, end_offset)`, over segment borders.

        Starts at `offset`, or at the first record at or after `start_timestamp`, or at the log start; ends where the
        log ends now, unless `follow`, which waits for more and ends after `timeout` seconds without a new record.
        Control records are left out. Raises `OffsetOutOfRangeError` at once for an offset outside the log, and from
        the iterator when retention, `delete_records` or a truncation overtakes it; `CorruptRecordError` for a batch
        whose CRC does not hold; `LogClosedError`. One iterator belongs to one thread at a time.
        """
        stretch, start, end = self._stretch(offset, end_offset, start_timestamp, isolation, follow, timeout)
        view = self._view
        return _core.RecordIterator(
            stretch, start, end, guard=view.guard, max_decompressed_bytes=view.max_decompressed_bytes
        )

    def read_batches(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[_core.RecordBatch]:
        """Iterate over the batches that hold records of `[offset, end_offset)`, control batches included.

        The first may begin below `offset` and the last reach past `end_offset`. Each batch owns its bytes. Otherwise
        as `read`.
        """
        stretch, start, end = self._stretch(offset, end_offset, start_timestamp, isolation, follow, timeout)
        view = self._view
        return _core.BatchIterator(
            stretch, start, end, guard=view.guard, max_decompressed_bytes=view.max_decompressed_bytes
        )

    def _stretch(
        self,
        offset: int | None,
        end_offset: int | None,
        start_timestamp: int | None,
        isolation: Isolation,
        follow: bool,
        timeout: float | None,
    ) -> tuple[reading.Stretch, int, int]:
        self._check_isolation(isolation)
        timeout = arguments.seconds("timeout", timeout)
        if offset is not None:
            offset = arguments.whole("offset", offset)
        if end_offset is not None:
            end_offset = arguments.integer("end_offset", end_offset)
        if start_timestamp is not None:
            if offset is not None:
                raise ValueError("give an offset or a start_timestamp, not both")
            start_timestamp = arguments.integer("start_timestamp", start_timestamp)
            found = reading.offset_for_timestamp(self._view, start_timestamp)
            offset = found[1] if found is not None else self._view.log_end_offset
        stretch, start, end = reading.stretch(self._view, offset, end_offset, follow, timeout)
        stretch.owner = self
        return stretch, start, end

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: Isolation = "read_uncommitted",
        min_one_message: bool = True,
    ) -> FetchResult:
        """Read raw batches from the one that holds `offset` on, `max_bytes` of one segment at the most.

        With `min_one_message` the first batch comes whole even if it is larger; the last may be cut off. Raises
        `OffsetOutOfRangeError`.
        """
        committed = self._check_isolation(isolation)
        offset = arguments.whole("offset", offset)
        max_bytes = arguments.whole("max_bytes", max_bytes)
        return reading.fetch(self._view, offset, max_bytes, min_one_message=min_one_message, committed=committed)

    def _check_isolation(self, isolation: Isolation) -> bool:
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation is {isolation!r}; 'read_uncommitted' and 'read_committed' are allowed")
        if isolation == "read_committed":
            raise NotImplementedError("read_committed needs the producers' state, which this release does not keep")
        return False

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Find the lowest offset whose timestamp is at or after `timestamp`; None when there is none."""
        found = reading.offset_for_timestamp(self._view, arguments.integer("timestamp", timestamp))
        return None if found is None else TimestampOffset(*found)

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the greatest timestamp and the first record that has it; None in a log without timestamps."""
        found = reading.max_timestamp(self._view)
        return None if found is None else TimestampOffset(*found)

    # Marks and facts.

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._marks().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last record: the next offset to be given out."""
        return self._marks().log_end_offset

    @property
    def high_watermark(self) -> int:
        """The end for ordinary readers; with one replica it follows every append."""
        return self._marks().log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end for readers of committed records; the high watermark in a log without open transactions."""
        return self._marks().log_end_offset

    def _marks(self) -> Writer | ReadOnlyView:
        if isinstance(self._view, ReadOnlyView):
            self._view.refresh()
        return self._view

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments in order, the active one last."""
        view = self._view
        view.refresh()
        items = view.segments.items
        found = []
        for number, segment in enumerate(items):
            is_last = number == len(items) - 1
            size_bytes = view.readable_bytes(segment)
            first_timestamp = segment.first_timestamp(size_bytes) if size_bytes else None
            found.append(
                SegmentInfo(
                    base_offset=segment.base_offset,
                    next_offset=view.log_end_offset if is_last else items[number + 1].base_offset,
                    size_bytes=size_bytes,
                    offset_index_entries=segment.offset_index.entries,
                    time_index_entries=segment.time_index.entries,
                    max_timestamp=view.maximum(segment)[0],
                    first_timestamp=-1 if first_timestamp is None else first_timestamp,
                    is_active=is_last,
                    path=segment.path,
                    roll_reason=segment.roll_reason,
                )
            )
        return tuple(found)

    @property
    def config(self) -> LogConfig:
        """The settings that are in force."""
        return self._config

    def update_config(self, **settings: Any) -> None:
        """Change settings of the open log; each takes effect when it does in Kafka (SEMANTICS.md 13.13)."""
        if self._writer is None:
            self._config = self._config.replace(**settings)
            return
        with self._writable().gate():
            self._config = config = self._config.replace(**settings)
            self._writer.configure(config)
            self._writer.limit()

    def stats(self) -> dict[str, int | str]:
        """Numbers for whoever watches the log: marks, sizes, entries, the recovery point."""
        segments = self.segments
        view = self._view
        return {
            "path": self.path,
            "mode": self.mode,
            "log_start_offset": view.log_start_offset,
            "log_end_offset": view.log_end_offset,
            "recovery_point": (view if isinstance(view, ReadOnlyView) else view.upkeep).recovery_point,
            "segments": len(segments),
            "size_bytes": sum(segment.size_bytes for segment in segments),
            "offset_index_entries": sum(segment.offset_index_entries for segment in segments),
            "time_index_entries": sum(segment.time_index_entries for segment in segments),
        }

    # Changing the log otherwise.

    def roll(self) -> int:
        """Start a new segment at the log end, unless the active one is empty; the base offset of the active one."""
        writer = self._writable()
        with writer.gate():
            if writer.appender.size > 0 or writer.log_end_offset > writer.active.base_offset:
                writer.roll_locked("explicit", writer.log_end_offset)
            return writer.active.base_offset

    def flush(self) -> None:
        """Return once everything appended before the call is on the disk, its directory entries included.

        Concurrent callers share one sync. After a failed sync the log refuses writes until it is reopened.
        """
        self._writable().upkeep.flush()

    def truncate_to(self, offset: int) -> bool:
        """Drop the records at and above `offset`; whether there were any. A batch that holds `offset` goes whole."""
        return self._writable().truncate_to(arguments.integer("offset", offset, low=0))

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Drop every record and let the log go on at `offset` (SEMANTICS.md 11.8)."""
        offset = arguments.integer("offset", offset, low=0)
        start = offset
        if log_start_offset is not None:
            start = arguments.integer("log_start_offset", log_start_offset, 0, offset)
        self._writable().restart(offset, start)

    def delete_records(self, before_offset: int) -> int:
        """Make everything below `before_offset` (-1: the high watermark) unreadable; the log start after it.

        On the disk when this returns. Raises `OffsetOutOfRangeError` beyond the high watermark, `PolicyViolationError`
        for a compacted log.
        """
        writer = self._writable()
        policy = self._config.cleanup_policy
        if self.topic in names.INTERNAL_TOPICS:
            raise InvalidTopicError(f"records of the internal topic {self.topic} are deleted by its coordinator alone")
        if policy and "delete" not in policy:
            raise PolicyViolationError(
                f"cleanup.policy is {','.join(policy)}; records are deleted only where it has 'delete' or is empty"
            )
        end = writer.log_end_offset
        offset = arguments.whole("before_offset", before_offset)
        offset = end if offset == -1 else offset
        if not 0 <= offset <= end:
            raise reading.out_of_range(offset, writer.log_start_offset, end)
        if offset > writer.log_start_offset:
            writer.raise_log_start(offset)
        return writer.log_start_offset

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: delayed unlinks, flushes, checkpoints."""
        writer = self._writable()
        writer.refuse_if_unusable()
        writer.upkeep.run_due()


def _reopen(path: str, arguments: dict[str, Any]) -> Log:
    return Log.open(path, "r", **arguments)
