"""`Log`: one topic-partition directory, laid out byte for byte as a Kafka broker would.

The face of everything below: opening and its locks, marks, administration. Its appending half is in appends.py, its
reading half in reads.py; the state of a writable log is in writer.py, that of a read-only one in readonly.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from errno import EIO
from typing import Any, Literal, Self

from kstore import arguments, cautions, checkpoint, deletion, fs, loads, names, reading, recovery
from kstore.closing import Closing
from kstore.columnappends import ColumnAppends
from kstore.columnreads import ColumnReads
from kstore.config import ConfigSource, LogConfig
from kstore.errors import InvalidTopicError, PolicyViolationError, StorageError
from kstore.hosts import NextCall, OwnThread
from kstore.producer import DEFAULT_EXPIRY, Expiry
from kstore.readonly import ReadOnlyView
from kstore.recovery import Recovery
from kstore.retention import Deletion, Outlook
from kstore.segment import SegmentInfo
from kstore.upkeep import Host, Upkeep
from kstore.writer import Writer


class Log(Closing, ColumnAppends, ColumnReads):
    """One partition of a topic: appended to at its end, read from anywhere. Open it with `Log.open`.

    Any method may be called from any thread. Appends of one call to `append_many` may interleave with those of other
    threads between batches. Reading takes no lock. In a forked child the log is closed; a read-only log can be pickled
    and opens again where it is unpickled.
    """

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
        `StorageError`, also while a bulk load into the partition is not finished: `Store.open` does that.
        """
        if mode not in ("a", "r"):
            raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
        arguments.path("path", path)
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be callable, not {type(clock).__name__}")
        if max_decompressed_bytes is not None:
            max_decompressed_bytes = arguments.integer("max_decompressed_bytes", max_decompressed_bytes, low=1)
        directory = os.path.abspath(os.fspath(path))
        parsed = names.parse_partition_name(os.path.basename(directory))
        if mode == "a" and names.partition_name(parsed.topic, parsed.partition) != os.path.basename(directory):
            raise InvalidTopicError(
                f"{os.path.basename(directory)!r} is not the name of a live partition; "
                f"{names.partition_name(parsed.topic, parsed.partition)!r} would be (FORMAT.md 1.2)"
            )
        names.check_topic(parsed.topic)
        resolved = LogConfig.resolve(config, settings)
        if mode == "a":
            resolved.check_for_writing()
            cautions.issue(resolved.warnings(housekeeping=False))
        log = cls._begin(directory, parsed.topic, parsed.partition, mode, resolved)
        log._arguments = {"config": config, "max_decompressed_bytes": max_decompressed_bytes, **settings}
        log._clock = clock
        if mode == "r":
            log._open_for_reading()
        else:
            log._open_for_writing(clock)
        log._view.max_decompressed_bytes = max_decompressed_bytes
        return log

    @classmethod
    def _begin(cls, path: str, topic: str, partition: int, mode: str, config: LogConfig) -> Self:
        log = cls.__new__(cls)
        log.path = path
        log.topic, log.partition = topic, partition
        log.mode = mode
        log._writer = None
        log._locks = ()
        log._clock = None
        log._arguments = {}
        log._config = config
        fs.register(log)
        return log

    @classmethod
    def open_hosted(
        cls,
        path: str,
        config: LogConfig,
        *,
        host: Host,
        clock: Callable[[], int] | None,
        recovery_point: int,
        log_start_offset: int,
        marked_clean: bool,
        expiry: Expiry,
        on_storage_error: Callable[[StorageError], object],
    ) -> Self:
        """Open a partition for writing on behalf of a store: it has the locks and the checkpoint files, and is `host`.

        Makes what is missing. Raises what `open` raises.
        """
        config.check_for_writing()
        parsed = names.parse_partition_name(os.path.basename(path))
        log = cls._begin(path, parsed.topic, parsed.partition, "a", config)
        fs.mkdir(path)
        log._load(clock, host, recovery_point, log_start_offset, marked_clean, expiry)
        log._writable().on_storage_error = on_storage_error
        return log

    path: str
    topic: str
    partition: int
    mode: str
    recovery: Recovery
    _arguments: dict[str, Any]
    _clock: Callable[[], int] | None
    _locks: tuple[fs.Lock, ...]
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
        self._locks = (fs.lock_root(root, shared=True),)
        try:
            loads.refuse_pending(root, *partition)
            if not fs.exists(self.path):
                checkpoint.forget_partitions(root, [partition])
                fs.mkdir(self.path)
            self._locks += (fs.lock_partition(self.path),)
            marked_clean = checkpoint.remove_clean_marker(root)
            recovery_point = checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS).get(partition, 0)
            log_start_offset = checkpoint.read_offsets(root, checkpoint.LOG_STARTS).get(partition, 0)
            host = OwnThread() if clock is None else NextCall()
            self._load(clock, host, recovery_point, log_start_offset, marked_clean)
        except BaseException:
            self._unlock()
            raise

    def _load(
        self,
        clock: Callable[[], int] | None,
        host: Host,
        recovery_point: int,
        log_start_offset: int,
        marked_clean: bool,
        expiry: Expiry = DEFAULT_EXPIRY,
    ) -> None:
        now_ms = clock() if clock is not None else time.time_ns() // 1_000_000
        loaded = recovery.load(
            self.path,
            self._config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            marked_clean=marked_clean,
            now_ms=now_ms,
            expiry=expiry,
        )
        self.recovery = loaded.recovery
        self._writer = self._view = Writer(self.path, (self.topic, self.partition), self._config, loaded, clock, host)
        self._append_one = self._writer.appender.append

    def _unlock(self) -> None:
        for lock in reversed(self._locks):
            lock.release()

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
                self._unlock()

    def fail(self, error: StorageError) -> None:
        """Refuse to be written from now on: the disk has failed, for this log or another in its directory."""
        if self._writer is not None:
            self._writer.fail(error)

    @property
    def failed(self) -> StorageError | None:
        """Why the log refuses to be written, None if it does not."""
        failure = None if self._writer is None else self._writer.failure
        return (
            failure
            if failure is None or isinstance(failure, StorageError)
            else StorageError(EIO, str(failure), self.path)
        )

    def abandon(self) -> None:
        """Be closed at once, as the death of the process would, and leave the files as they are."""
        writer = self._writer
        if writer is not None and not writer.closed:
            with writer.mutex:
                writer.upkeep.stop()
                writer.abandon()
                for segment in writer.segments.items:
                    segment.close()
                writer.upkeep.release()

    def __del__(self) -> None:
        # Nobody holds the log: what was appended is in the files, and the locks go with this object.
        writer = getattr(self, "_writer", None)
        if writer is not None and not writer.closed:
            writer.abandon()

    def __repr__(self) -> str:
        state = "closed" if self._view.closed else f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<kstore.Log {self.topic}-{self.partition} {state} mode={self.mode!r} at {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a log that is open for writing cannot be pickled: it holds the writer's locks")
        return _reopen, (self.path, self._arguments)

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
        return self._marks().stable_end_offset

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
        ends = [*view.segments.bases[1:], view.log_end_offset][: len(items)]  # none yet in a new directory
        return tuple(
            reading.describe(view, segment, end, is_active=segment is items[-1])
            for segment, end in zip(items, ends, strict=True)
        )

    @property
    def config(self) -> LogConfig:
        """The settings that are in force."""
        return self._config

    def update_config(self, **settings: Any) -> None:
        """Change settings of the open log; each takes effect when it does in Kafka (SEMANTICS.md 13.13)."""
        if self._writer is None:
            self._config = self._config.replace(**settings)
            return
        before, after = self._config, self._config.replace(**settings)
        after.check_for_writing()
        known = before.warnings(housekeeping=False)
        cautions.issue(each for each in after.warnings(housekeeping=False) if each not in known)
        with self._writable().gate():
            self._configure_locked(self._config.replace(**settings))

    def configure(self, config: LogConfig) -> None:
        """Take other settings as a whole; otherwise as `update_config`."""
        with self._writable().gate():
            self._configure_locked(config)

    def _configure_locked(self, config: LogConfig) -> None:
        writer = self._writable()
        self._config = config
        writer.configure(config)
        writer.limit()

    @property
    def closed(self) -> bool:
        """Whether the log has been closed, or belongs to the process that this one was forked from."""
        return self._view.closed

    @property
    def upkeep(self) -> Upkeep:
        """What the log owes, for its host; `LogClosedError` when it is not open for writing."""
        return self._writable().upkeep

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

    def apply_retention(self) -> list[SegmentInfo]:
        """Delete the oldest segments that neither settings nor log start keep (SEMANTICS.md 6); those that went.

        Their files are renamed to `.deleted` now and unlinked when `file.delete.delay.ms` has passed. The log start
        is on the disk before the first of them goes. A log whose `cleanup.policy` lacks "delete" loses only what lies
        below its log start.
        """
        return deletion.apply(self._writable())

    def plan_retention(self) -> list[Deletion]:
        """Say which segments `apply_retention` would delete now, oldest first, and why; changes nothing."""
        return self._survey()[0]

    def retention_outlook(self) -> Outlook | None:
        """Say why the oldest segment that `apply_retention` would leave stays, and when it goes."""
        return self._survey()[1]

    def _survey(self) -> tuple[list[Deletion], Outlook | None]:
        if self._writer is not None:
            now_ms = self._writer.now()
        else:
            now_ms = self._clock() if self._clock is not None else time.time_ns() // 1_000_000
        return deletion.survey(self._view, self._config, now_ms)

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: delayed unlinks, flushes, checkpoints."""
        writer = self._writable()
        writer.refuse_if_unusable()
        writer.upkeep.host.housekeep(writer.upkeep)


def _reopen(path: str, arguments: dict[str, Any]) -> Log:
    return Log.open(path, "r", **arguments)
