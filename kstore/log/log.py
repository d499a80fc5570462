"""`Log`: one topic-partition directory, laid out byte for byte as a Kafka broker would.

Here are opening and its locks, marks, and administration; appends and reads are in append.py and read.py. The state of
a writable log is a `Writer`, that of a read-only log a `ReadOnlyView`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from errno import EBADMSG
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from kstore.base import arguments, times
from kstore.base.closing import Closing
from kstore.base.numbers import INT_MAX
from kstore.base.stats import LogStats
from kstore.codec._compression import ZSTD_OF_COLUMNS
from kstore.config import cautions
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.disk import fs
from kstore.errors import InvalidTopicError, KStoreError, PolicyViolationError, StorageError, as_storage_error
from kstore.files import checkpoint, follower_file, load_files, names, restore_mark
from kstore.files.follower_file import FollowerRole
from kstore.log.async_calls import Awaits
from kstore.log.compaction import compact_log, compaction_stats
from kstore.log.compaction.compaction_outlook import CompactionOutlook
from kstore.log.compaction.compaction_outlook import outlook as compaction_outlook
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import describe_all, steadily
from kstore.log.segments import recovery
from kstore.log.segments.producer_state import DEFAULT_EXPIRY, Expiry
from kstore.log.segments.recovery import Recovery, Seen
from kstore.log.writing import retention_run, truncation
from kstore.log.writing.housekeepers import InlineHousekeeper, ThreadHousekeeper
from kstore.log.writing.housekeeping import Housekeeper
from kstore.log.writing.retention import Deletion, Outlook
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo, CompactionStats, SegmentInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.config.keywords import LogSettings


class Log(Closing, Awaits):
    """One partition of a topic: appended to at its end, read from anywhere. Open it with `Log.open`.

    Any method may be called from any thread. Appends of one call to `append_many` may interleave with those of other
    threads between batches. Reading takes no lock; a read of committed records waits for a truncation. In a forked
    child the log is closed; a read-only log can be pickled and opens again where it is unpickled. One that is collected
    while it is open gives a `ResourceWarning`, as a file does.
    """

    def __init__(self, *arguments: object, **settings: object) -> None:
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
        **settings: Unpack[LogSettings],
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
        `StorageError`, also while a bulk load into the partition is not finished (`Store.open` does that), or a restore
        into its root.
        """
        if mode not in ("a", "r"):
            raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
        directory = os.path.abspath(arguments.path("path", path))
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        checked = times.checked_clock(clock)
        if max_decompressed_bytes is not None:
            max_decompressed_bytes = arguments.integer("max_decompressed_bytes", max_decompressed_bytes, low=1)
        parsed = names.parse_partition_name(os.path.basename(directory))
        if mode == "a" and names.partition_name(parsed.topic, parsed.partition) != os.path.basename(directory):
            raise InvalidTopicError(
                f"{os.path.basename(directory)!r} is not the name of a live partition; "
                f"{names.partition_name(parsed.topic, parsed.partition)!r} would be (FORMAT 1.2)"
            )
        names.check_topic(parsed.topic)
        restore_mark.refuse_unfinished(os.path.dirname(directory))
        refuse_unknown(Log.open, settings, LogConfig)
        resolved = LogConfig.resolve(config, settings)
        if mode == "a":
            resolved.check_for_writing()
            cautions.issue(resolved.warnings(housekeeping=False))
        log = cls._begin(directory, parsed.topic, parsed.partition, mode, resolved)
        log._arguments = {"config": config, "max_decompressed_bytes": max_decompressed_bytes, **settings}
        log._clock = checked
        if mode == "r":
            log._open_for_reading()
        else:
            log._open_for_writing(clock)
        log._view.max_decompressed_bytes = max_decompressed_bytes
        log._is_own = True
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
        log.config = config
        fs.register(log)
        return log

    path: str
    """The partition's directory, as an absolute path."""

    topic: str
    """The topic, from the directory's name."""

    partition: int
    """The partition's number, from the directory's name."""

    mode: str
    """How it was opened: "a" (create or append) or "r" (read only)."""

    recovery: Recovery
    """What opening the log found and did."""

    config: LogConfig
    """The settings that are in force; `update_config` changes them."""
    _arguments: dict[str, Any]
    _clock: Callable[[], int] | None
    _locks: tuple[fs.Lock, ...]
    _view: Writer | ReadOnlyView
    _is_own = False  # opened by the user, who closes it; not by a store

    def _open_for_reading(self) -> None:
        if not fs.exists(self.path):
            raise fs.MissingFileError(2, "no such partition directory; mode 'r' creates nothing", self.path)
        view = ReadOnlyView(self.path, (self.topic, self.partition))
        self.recovery = Recovery()
        self._view = view
        self._append_ready = self._refuse_append

    def _open_for_writing(self, clock: Callable[[], int] | None) -> None:
        root = os.path.dirname(self.path)
        partition = (self.topic, self.partition)
        fs.make_directories(root)
        self._locks = (fs.lock_root(root, shared=True),)
        try:
            load_files.refuse_pending(root, *partition)
            if not fs.exists(self.path):
                checkpoint.forget_partitions(root, [partition])
                fs.mkdir(self.path)
            self._locks += (fs.lock_partition(self.path),)
            marked_clean = checkpoint.remove_clean_marker(root)
            if marked_clean and (higher := checkpoint.flushed_high_watermarks(root)):
                checkpoint.update_offsets(root, checkpoint.RECOVERY_POINTS, higher)
            recovery_point = checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS).get(partition, 0)
            log_start_offset = checkpoint.read_offsets(root, checkpoint.LOG_STARTS).get(partition, 0)
            housekeeper = ThreadHousekeeper(root) if clock is None else InlineHousekeeper(root)
            leader_epoch = checkpoint.read_offsets(root, checkpoint.LEADER_EPOCHS).get(partition, -1)
            self._load(clock, housekeeper, recovery_point, log_start_offset, marked_clean)
            _take_role(self._writable(), follower_file.read_role(root), leader_epoch)
        except BaseException:
            self._unlock()
            raise

    def _load(
        self,
        clock: Callable[[], int] | None,
        housekeeper: Housekeeper,
        recovery_point: int,
        log_start_offset: int,
        marked_clean: bool,
        expiry: Expiry = DEFAULT_EXPIRY,
        seen: Seen | None = None,
    ) -> None:
        now_ms = time.time_ns() // 1_000_000 if clock is None else times.milliseconds("what the clock gives", clock())
        loaded = recovery.load(
            self.path,
            self.config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            marked_clean=marked_clean,
            now_ms=now_ms,
            expiry=expiry,
            seen=seen,
        )
        self.recovery = loaded.recovery
        self._writer = self._view = Writer(
            self.path, (self.topic, self.partition), self.config, loaded, clock, housekeeper
        )
        self._appender = self._writer.appender
        self._append_ready = self._writer.appender.append_ready
        self._flush = self._writer.housekeeping.flush

    def _unlock(self) -> None:
        for lock in reversed(self._locks):
            lock.release()

    def _after_fork(self) -> None:
        """Be closed in a child process: its copies of the locks must not outlive the parent's."""
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)
        if view is None:
            return  # the log was being opened
        view.closed, view.opened_in = True, fs.opener()
        view.guard.version += 1
        if self._writer is not None:
            self._writer.appender.busy = True
            self._writer.appender.detach()

    def close(self) -> None:
        """Leave the files as a broker's clean shutdown does, write the checkpoints, give the locks back. Idempotent.

        Everything appended is on the disk when this returns. Raises `StorageError` when that failed; the log is closed
        all the same.
        """
        if self._view.closed and not any(lock.held for lock in self._locks):
            return
        try:
            self._view.close()  # again after an interrupt, or beside another thread that closes it: then this waits
        finally:
            if self._writer is not None and self._writer.closed:  # not so if we were interrupted while we waited
                self._unlock()

    @property
    def failed(self) -> StorageError | None:
        """Why the log refuses to be written, None if it does not."""
        failure = None if self._writer is None else self._writer.failure
        return None if failure is None else as_storage_error(failure, self.path)

    def __del__(self) -> None:
        # The log is not used any more: its records are in the files, and its locks are released with this object.
        view, writer = getattr(self, "_view", None), getattr(self, "_writer", None)
        was_open = self._is_own and view is not None and not view.closed
        if writer is not None and not writer.closed:
            writer.abandon()
        if was_open:
            warnings.warn(f"unclosed log {self.path!r} mode={self.mode!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)  # none yet while it is opened
        if view is None or view.closed:
            state = "closed"
        else:
            with suppress(KStoreError):  # a directory that has gone, say: what was known last is shown
                self._marks()
            state = f"[{view.log_start_offset}, {view.log_end_offset})"
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
        """The end for readers of committed records; the high watermark in a log without open transactions.

        An open transaction that began below the log start keeps it there (SEMANTICS 9.16). A writer that recovers
        or truncates the log may forget such a transaction, as Kafka does; mode "r" knows it until the log is closed.
        Where all records were deleted, only the writer that was open then knows it.
        """
        return self._marks().decided_end_offset()

    def _marks(self) -> Writer | ReadOnlyView:
        if isinstance(self._view, ReadOnlyView):
            self._view.refresh()
        return self._view

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments in order, the active one last."""
        return steadily(describe_all, self._view, view=self._view)

    def update_config(self, **settings: Unpack[LogSettings]) -> None:
        """Change settings of the open log; each takes effect when it does in Kafka (SEMANTICS 13.13)."""
        if self._writer is None:
            self.config = self.config.replace(**settings)
            return
        before, after = self.config, self.config.replace(**settings)
        after.check_for_writing()
        warned = before.warnings(housekeeping=False)
        cautions.issue(warning for warning in after.warnings(housekeeping=False) if warning not in warned)
        with _config_change(self._writable(), after):
            self._configure_locked(self.config.replace(**settings))

    def _configure_locked(self, config: LogConfig) -> None:
        writer = self._writable()
        self.config = config
        writer.configure(config)
        writer.limit()

    @property
    def closed(self) -> bool:
        """Whether the log has been closed, or belongs to the process that this one was forked from."""
        return self._view.closed

    def stats(self) -> LogStats:
        """Numbers to watch the log by: marks, sizes, entries, the recovery point, compaction; docs/metrics.md has each.

        `full` says why the last write failed, if the disk had no room for it; "" else. `first_dirty_offset` is -1 where
        `cleanup.policy` has not `compact`, and `compaction_failure` says why the last compaction failed; "" else.
        `zstd_of_columns` says which library decompresses zstd.
        """
        segments = self.segments
        view = self._view
        return {
            "path": self.path,
            "mode": self.mode,
            "log_start_offset": view.log_start_offset,
            "log_end_offset": view.log_end_offset,
            "recovery_point": (view if isinstance(view, ReadOnlyView) else view.housekeeping).recovery_point,
            "segments": len(segments),
            "size_bytes": sum(segment.size_bytes for segment in segments),
            "offset_index_entries": sum(segment.offset_index_entries for segment in segments),
            "time_index_entries": sum(segment.time_index_entries for segment in segments),
            "full": "" if self._writer is None or self._writer.full is None else str(self._writer.full),
            "zstd_of_columns": ZSTD_OF_COLUMNS,
            **compaction_stats.numbers(view, self.config, self._now()),
        }

    # Changing the log otherwise.

    def roll(self) -> int:
        """Start a new segment at the log end, and return its base offset.

        Where the active segment is empty, it stays, and its age by `segment.ms` begins again.
        """
        writer = self._writable()
        with writer.gate():
            if writer.appender.size > 0 or writer.log_end_offset > writer.active.base_offset:
                writer.roll_locked("explicit", writer.log_end_offset)
            else:
                writer.renew_locked()
            return writer.active.base_offset

    def truncate_to(self, offset: int) -> bool:
        """Drop the records at and above `offset`; whether there were any. A batch that holds `offset` goes whole."""
        return truncation.truncate_to(self._leading(), arguments.integer("offset", offset, low=0))

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Drop every record and let the log go on at `offset` (SEMANTICS 11.8)."""
        offset = arguments.integer("offset", offset, low=0)
        start = offset
        if log_start_offset is not None:
            start = arguments.integer("log_start_offset", log_start_offset, 0, offset)
        truncation.restart(self._leading(), offset, start)

    def delete_records(self, before_offset: int) -> int:
        """Make everything below `before_offset` (-1: the high watermark) unreadable; the log start after it.

        On the disk when this returns. Raises `OffsetOutOfRangeError` beyond the high watermark, `PolicyViolationError`
        for a compacted log.
        """
        writer = self._leading()
        policy = self.config.cleanup_policy
        if self.topic in names.INTERNAL_TOPICS:
            raise InvalidTopicError(f"records of the internal topic {self.topic} are deleted by its coordinator alone")
        if policy and "delete" not in policy:
            raise PolicyViolationError(
                f"cleanup.policy is {','.join(policy)}; records are deleted only where it has 'delete' or is empty"
            )
        retention_run.raise_start(writer, arguments.whole("before_offset", before_offset))
        return writer.log_start_offset

    def apply_retention(self) -> list[SegmentInfo]:
        """Delete the oldest segments that neither settings nor log start keep (SEMANTICS 6); those that went.

        Their files are renamed to `.deleted` now and unlinked when `file.delete.delay.ms` has passed. The log start
        is on the disk before the first of them goes. A log whose `cleanup.policy` lacks "delete" loses only what lies
        below its log start.
        """
        return retention_run.apply(self._writable())

    def plan_retention(self) -> list[Deletion]:
        """Say which segments `apply_retention` would delete now, oldest first, and why; changes nothing."""
        return self._survey()[0]

    def retention_outlook(self) -> Outlook | None:
        """Say why the oldest segment that `apply_retention` would leave stays, and when it goes."""
        return self._survey()[1]

    def _survey(self) -> tuple[list[Deletion], Outlook | None]:
        return retention_run.survey(self._view, self.config, self._now())

    def _now(self) -> int:
        if self._writer is not None:
            return self._writer.now()
        return self._clock() if self._clock is not None else time.time_ns() // 1_000_000

    def compact(
        self, *, roll: bool = False, dry_run: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> CompactionStats:
        """Drop superseded records below the active segment and the last stable offset (SEMANTICS 7), whatever the dirty
        ratio and the lags say; with `roll` the active segment is rolled before.

        Offsets stay what they were; retention does not follow. With `dry_run` nothing is written, which mode "r" may
        do, too, and the numbers say what would be. `progress(done, total)` is called with bytes. Raises
        `PolicyViolationError` where `cleanup.policy` has not `compact`, `CorruptRecordError`, and `StorageError`; then
        the log is as it was before the round that failed. What `progress` raises ends the compaction in the same way.
        """
        if dry_run:
            if roll:
                raise ValueError("roll and dry_run exclude each other: a dry run rolls nothing")
            return compact_log.try_compact(self._view, self.config, self._now(), progress=progress)
        writer = self._writable()
        compact_log.refuse_policy(self.config)
        if roll:
            self.roll()
        return compact_log.compact(writer, progress=progress)

    def compaction_outlook(self) -> CompactionOutlook:
        """Say why nothing of the log is cleaned, or what will be and when; changes nothing."""
        return compaction_outlook(self._view, self.config, self._now())

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: delayed unlinks, flushes, checkpoints."""
        writer = self._writable()
        writer.refuse_if_unusable()
        writer.housekeeping.housekeep()


def _reopen(path: str, arguments: dict[str, Any]) -> Log:
    return Log.open(path, "r", **arguments)


# For a store: what it needs of its logs beside their public methods.


def open_to_read(path: str, config: LogConfig) -> Log:
    """Open a partition for reading in a store, which closes it."""
    log = Log.open(path, "r", config=config)
    log._is_own = False
    return log


def open_hosted(
    path: str,
    config: LogConfig,
    *,
    housekeeper: Housekeeper,
    clock: Callable[[], int] | None,
    recovery_point: int,
    log_start_offset: int,
    marked_clean: bool,
    expiry: Expiry,
    on_storage_error: Callable[[StorageError], object],
    follows: FollowerRole | None = None,
    leader_epoch: int = -1,
    seen: Seen | None = None,
) -> Log:
    """Open a partition for writing in a store, which has the locks and the checkpoint files; `housekeeper` is its part.

    Makes files that are missing. `seen` is what a look at the directory has found just before. A follower `follows` its
    leader; a leader goes on with `leader_epoch` at least. Raises what `Log.open` raises.
    """
    config.check_for_writing()
    parsed = names.parse_partition_name(os.path.basename(path))
    log = Log._begin(path, parsed.topic, parsed.partition, "a", config)
    if seen is None:
        fs.mkdir(path)
    log._load(clock, housekeeper, recovery_point, log_start_offset, marked_clean, expiry, seen)
    writer = log._writable()
    writer.on_storage_error = on_storage_error
    try:
        _take_role(writer, follows, leader_epoch)
    except BaseException:
        abandon(log)
        raise
    return log


def _take_role(writer: Writer, follows: FollowerRole | None, leader_epoch: int) -> None:
    """Be a follower's log, or a leader's, which has its epoch again where the opening has cut the entry at the end.

    Kafka's broker is told the epoch by its controller at every start.
    """
    latest = writer.epochs.latest_epoch
    if leader_epoch > INT_MAX:
        what = (
            f"the leader epoch of {writer.partition[0]}-{writer.partition[1]} is {leader_epoch}; {INT_MAX} is allowed"
        )
        raise StorageError(EBADMSG, what, os.path.join(writer.root, checkpoint.LEADER_EPOCHS))
    if follows is not None:
        writer.append_epochs.follow(follows)
    elif leader_epoch > (-1 if latest is None else latest):
        with writer.gate():
            writer.append_epochs.begin(leader_epoch, writer.log_end_offset)


@contextmanager
def _config_change(writer: Writer, config: LogConfig) -> Iterator[None]:
    """The gate, for a change to `config`; a cleaning is aborted where the policy loses `compact` (SEMANTICS 7.8)."""
    stops = writer.config.compacts and not config.compacts
    with writer.cleaning.paused() if stops else nullcontext(), writer.gate():
        yield


def writer_of(log: Log) -> Writer:
    """The writable half of a log; raises `LogClosedError` where the log is closed or open for reading."""
    return log._writable()


def view_of(log: Log) -> Writer | ReadOnlyView:
    """The log as its readers see it."""
    return log._view


def dirty_ratio_of(log: Log) -> float:
    """The share of a compacted log that is dirty, as `Log.stats` says it, without a look at each segment's files."""
    return compaction_stats.numbers(log._view, log.config, log._now())["dirty_ratio"]


def configure(log: Log, config: LogConfig) -> None:
    """Give a log another configuration as a whole; otherwise as `Log.update_config`."""
    with _config_change(log._writable(), config):
        log._configure_locked(config)


def set_role(log: Log, follows: FollowerRole | None) -> None:
    """Have an open log be a follower's, or a leader's (None)."""
    writer = log._writable()
    with writer.gate():
        writer.append_epochs.follow(follows)


def begin_epoch(log: Log, leader_epoch: int) -> None:
    """Begin a leader epoch at the log end, durably (SEMANTICS 10.24)."""
    writer = log._writable()
    with writer.gate():
        writer.append_epochs.begin(leader_epoch, writer.log_end_offset)


def append_as_follower(log: Log, data: ReadableBuffer, leader_epoch: int | None = None) -> AppendInfo:
    """Append fetched batches as `Log.append_as_follower` does, in a follower of a store too."""
    return log._append_as_follower(data, leader_epoch)


def fail(log: Log, error: StorageError) -> None:
    """Have a log refuse writes from now on: the disk has failed, for this log or for another in its directory."""
    if log._writer is not None:
        log._writer.fail(error)


def abandon(log: Log) -> None:
    """Close a log at once and leave its files as they are, as the death of the process would."""
    writer = log._writer
    if writer is not None and not writer.closed:
        with writer.mutex:
            writer.housekeeping.stop()
            writer.abandon()
            for segment in writer.segments.items:
                segment.close()
            writer.housekeeping.release()
