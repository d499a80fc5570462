"""Background work of a log (fsync, checkpoint lines, delayed unlinks) and the times at which each is due.

Syncs run concurrently with appends and take no lock of the log. A `Housekeeper` runs due work and writes checkpoint
lines; housekeepers.py has those of a log without a store. Invariant: the recovery point rises only after everything
below it, directory entries included, is on the disk, and is written to its file only after that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EMFILE, ENFILE
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kstore.base.numbers import NEVER
from kstore.base.timings import Timings
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.log.writing._sync_turn import Turn

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import CheckTimes
    from kstore.files.epochs import LeaderEpochCache
    from kstore.log.reading.view import SegmentList
    from kstore.log.segments.producer_state import ProducerState
    from kstore.log.segments.segment import Segment
    from kstore.log.writing._appender import Appender

logger = logging.getLogger("kstore")

NOTHING_OPENED = (EMFILE, ENFILE)  # a file could not be opened, so no sync of it has failed


class Gap(NamedTuple):
    """Offsets that no record has, after a truncation inside a batch (SEMANTICS 11.4)."""

    start: int  # one past the last record
    end: int  # the log end offset at the truncation


class Housekeeper(Protocol):
    """Runs the background work of a writable log when it is due."""

    timings: Timings

    def attend(self, housekeeping: Housekeeping) -> int:
        """Called when work may be due. Return when the next append has to call `housekeep`, `NEVER` for not at all."""

    def write_marks(self, housekeeping: Housekeeping, *, keep_start: bool = False) -> None:
        """Write `housekeeping.marks(keep_start)` to the checkpoint files, durably.

        The marks are read under the lock that serializes the writes, so the last write has the latest values.
        """

    def housekeep(self, housekeeping: Housekeeping) -> None:
        """Do the work that is due by the clock, in the calling thread."""

    def first_dirty(self, partition: tuple[str, int]) -> int | None:
        """Return the partition's offset in the cleaner's checkpoint, below which the log is clean; None without one."""

    def write_first_dirty(self, partition: tuple[str, int], offset: int | None) -> None:
        """Set the partition's line of the cleaner's checkpoint, or remove it (None), durably."""

    def checks(self, partition: tuple[str, int], *, compacts: bool) -> CheckTimes:
        """Return when retention checks a log, whose policy has `compact` if `compacts`."""

    def stop(self, housekeeping: Housekeeping) -> None:
        """Forget a log that is being closed: no work on it starts after this returns."""


class Owner(Protocol):
    """The members of a `Writer` that this module uses."""

    appender: Appender
    config: LogConfig
    directory: str
    epochs: LeaderEpochCache
    failure: BaseException | None
    log_start_offset: int
    partition: tuple[str, int]
    producers: ProducerState
    root: str
    segments: SegmentList

    @property
    def closed(self) -> bool: ...
    @property
    def full(self) -> StorageError | None: ...
    @property
    def log_end_offset(self) -> int: ...
    def fail(self, error: BaseException) -> None: ...
    def flushed(self) -> None: ...
    def found_room(self) -> None: ...
    def gate(self) -> AbstractContextManager[object]: ...
    def now(self) -> int: ...
    def refuse_if_unusable(self) -> None: ...
    def report(self, error: BaseException) -> None: ...


class Housekeeping:
    """The background work of one writable log. `flush` may be called from any thread.

    `recovery_point` is the offset below which every record is on the disk, with the names of its files. The active
    segment's indexes are synced later, before the recovery point is written to its file: above the written point,
    recovery rebuilds indexes, and syncing three files takes three times as long as syncing one. `gap` is the gap that a
    truncation inside a batch has left at the end of the log.
    """

    def __init__(self, writer: Owner, recovery_point: int, housekeeper: Housekeeper) -> None:
        self.writer = writer
        self.housekeeper = housekeeper
        self.recovery_point = recovery_point
        self._indexed = recovery_point  # the offset below which the indexes are on the disk, too
        self._opened_at = recovery_point
        self._marks_wait = False  # the last write of the checkpoint lines failed on a full disk
        self.gap: Gap | None = None
        self.keeps_start = False  # while a log is restarted: perhaps no segment starts at its log start
        self._start_line = 0  # the old log start while a truncation lowers it: the file may still have it
        self._unlinks: list[tuple[int, list[str]]] = []
        self._names_made = 1  # how often directory entries have changed
        self._names_synced = 0  # `_names_made` at the last sync of the directories
        self._start_made = 0  # `_names_made` when segments were last deleted at the log start
        self._start_point = recovery_point  # the recovery point before that deletion
        self._turn = Turn()
        self._flushed_ms = self._expired_ms = writer.now()
        self._watches_producers = len(writer.producers.table) > 0
        self.roll_to_flush = False  # set by a roll, until everything below the new segment is flushed

    # Syncs.

    def owe_names(self) -> None:
        """Note that directory entries have changed and are not synced."""
        self._names_made += 1

    def flush(self, offset: int | None = None, *, indexes: bool = False) -> None:
        """Sync every record below `offset` (None: the log end), and the directory's names (SEMANTICS 12.2).

        With `indexes`, sync the active segment's indexes, too; those of other segments are always synced. Concurrent
        callers share a sync: one that starts after the call is enough, however fast other threads append and roll. If
        it fails, the log refuses writes from then on. A batch or a segment must end at `offset`, which becomes the
        recovery point: an opening treats a recovery point inside a gap as damage.
        """
        # An append with sync=True waits for this function. During a sync its code drops out of the processor's caches,
        # and each call that it makes then takes half a microsecond. So it makes few calls.
        writer, turn = self.writer, self._turn
        names = self._names_made
        target = writer.log_end_offset if offset is None else offset
        has_synced = False
        try:
            while not (has_synced or self.has_flushed(target, indexes, names)):
                if turn.take_or_wait(target):
                    writer.refuse_if_unusable()
                    turn.gather()
                    self.sync(offset, indexes=indexes)
                    has_synced = True
        finally:
            served = turn.give(self.recovery_point)
        if has_synced:
            self.housekeeper.timings.callers.observe(1 + served)

    @property
    def owes_anything(self) -> bool:
        """Whether a flush has anything to do."""
        return self.recovery_point < self.writer.log_end_offset or self._names_synced != self._names_made

    def has_flushed(self, target: int, indexes: bool, names: int = 0) -> bool:
        """Return whether everything below `target` is on the disk, and the first `names` changes of directories.

        The invariant of the recovery point covers the names of the segments that hold records below `target`.
        """
        self.writer.refuse_if_unusable()
        point = self._indexed if indexes else self.recovery_point
        return (point >= target or point >= self.writer.log_end_offset) and self._names_synced >= names

    def flush_indexes(self) -> None:
        """Sync the indexes of flushed records before a checkpoint covers them; then call `write_later`."""
        if self._indexed < self.recovery_point:
            self.flush(self.recovery_point, indexes=True)
        self.write_later()

    def sync(self, offset: int | None = None, *, indexes: bool = True) -> None:
        """Sync the segments from the one with the recovery point to the one with `offset` (None: the log end).

        Called by one thread at a time, and while nothing is cut.
        """
        writer = self.writer
        end = writer.log_end_offset
        target = end if offset is None or offset > end else offset
        segments, recovery_point = writer.segments, self.recovery_point
        last = segments.items[-1]
        begun = perf_counter()
        try:
            if last.base_offset >= recovery_point or last.base_offset >= target:
                # Includes the segment that ends at the recovery point: it may have been sealed since the last sync.
                first = max(segments.floor(min(recovery_point, target) - 1), 0)
                for segment in segments.items[first:-1]:
                    if segment.base_offset < target:
                        self._sync_segment(segment, indexes=True)
            if last.base_offset < target or target == end:
                self._sync_segment(last, indexes=indexes)
            if writer.producers.unsynced:
                writer.producers.sync()
            if self._names_made != self._names_synced:
                self._sync_names()
        except StorageError as error:
            self._sync_failed(error)
            raise
        self.housekeeper.timings.sync.observe(perf_counter() - begun)
        if self.gap is not None and last.base_offset >= self.gap.end:
            self.gap = None  # the last segment's name gives the log's end
        if target > self.recovery_point:
            self.recovery_point = target
        indexed = target if indexes or target < last.base_offset else last.base_offset
        if indexed > self._indexed:
            self._indexed = indexed
        self._flushed_ms = writer.now()
        config = writer.config
        if config.flush_messages < NEVER or config.flush_ms < NEVER:
            self.set_due()
        if writer.appender.waiters:
            writer.flushed()

    def sync_names(self) -> None:
        """Sync the directories if they have unsynced entries. Safe from any thread."""
        if self._names_made != self._names_synced:
            try:
                self._sync_names()
            except StorageError as error:
                self._sync_failed(error)
                raise

    def _sync_names(self) -> None:
        writer, names_made = self.writer, self._names_made
        fs.sync_directory(writer.directory)
        fs.sync_directory(writer.root)
        self._names_synced = max(self._names_synced, names_made)

    def _sync_failed(self, error: StorageError) -> None:
        if error.errno not in NOTHING_OPENED:
            self.writer.fail(error)
        self.writer.report(error)

    def took_in(self, end_offset: int) -> None:
        """Sync names and snapshots of a log that is on the disk up to `end_offset`, and raise the recovery point."""
        writer, names_made = self.writer, self._names_made
        try:
            writer.producers.sync()
            fs.sync_directory(writer.directory)
        except StorageError as error:
            writer.fail(error)
            writer.report(error)
            raise
        self._names_synced = max(self._names_synced, names_made)
        self.recovery_point = max(self.recovery_point, end_offset)
        self._indexed = max(self._indexed, end_offset)
        self.roll_to_flush = True  # to have the checkpoint written
        self.set_due()
        writer.flushed()

    def _sync_segment(self, segment: Segment, *, indexes: bool) -> None:
        try:
            if indexes:
                segment.flush()
            else:
                segment.flush_log()
        except fs.MissingFileError:
            if segment in self.writer.segments.items:
                raise
            # Retention has deleted the segment since, below a log start that is on the disk.

    @contextmanager
    def cutting(self, offset: int, *, log_start_offset: int | None = None) -> Iterator[None]:
        """Run a block that cuts records: no sync runs in it, and before it the recovery point is lowered to `offset`.

        The lower recovery point is written to its file. With `log_start_offset`, for a log that is restarted, the log
        start is first raised to it and written, too: for a time, perhaps no segment starts there. The log end rises
        with it, so a sync in the block would promise records that do not exist. If the files cannot be written, the old
        log start is restored.
        """
        writer, start = self.writer, self.writer.log_start_offset
        try:
            self._turn.take()
            if log_start_offset is not None:
                self.keeps_start = True
                writer.log_start_offset = max(start, log_start_offset)
            self._start_line = max(self._start_line, writer.log_start_offset)
            self.recovery_point = min(self._safe_recovery_point(), offset)
            self._indexed = min(self._indexed, self.recovery_point)
            try:
                self.write_checkpoints()
            except BaseException:
                writer.log_start_offset = start
                raise
            yield
        finally:
            self.keeps_start = False
            self._turn.give(self.recovery_point)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Run a block that deletes segments at the log start; a power cut may bring them back until the next sync.

        Until then the log start keeps its line, and the written recovery point does not rise.
        """
        if self._names_synced >= self._start_made:
            self._start_point = self.recovery_point
        self._start_made = NEVER
        try:
            yield
        finally:
            self.owe_names()
            self._start_made = self._names_made

    def start_at(self, offset: int) -> None:
        """Note that the log starts at `offset` now, so nothing below it needs a sync."""
        self.recovery_point = max(self.recovery_point, offset)
        self._indexed = max(self._indexed, offset)

    # Checkpoints.

    @property
    def data_end(self) -> int:
        """The log end; if a truncation has left a gap there, the gap's start: one past the last record."""
        gap, end = self.gap, self.writer.appender.next_offset
        return gap.start if gap is not None and gap.end == end else end

    def _safe_recovery_point(self) -> int:
        """Return the recovery point; in a gap, its start: an opening finds the log end there if all above is lost."""
        gap, recovery_point = self.gap, self.recovery_point
        return min(recovery_point, gap.start) if gap is not None and recovery_point <= gap.end else recovery_point

    def marks(self, keep_start: bool = False) -> tuple[int, int | None]:
        """Return the recovery point and the log start for the checkpoint files (SEMANTICS 12.7).

        A log start that is durably the first segment's base offset has no line (None), unless with `keep_start`. A
        recovery point below the log start is written as 0: all below the start is deleted, so nothing is promised, and
        an opening that finds the log ending below its start may start over there (SEMANTICS 8.11). While the log start
        is lowered, either start may be in the file, so the recovery point is compared with the higher one.
        """
        writer = self.writer
        start = writer.log_start_offset
        recovery_point = min(self._safe_recovery_point(), self._indexed)
        if writer.epochs.lacks_entries:
            recovery_point = min(recovery_point, self._opened_at)  # recovery finds the entries again above it
        may_come_back = self._names_synced < self._start_made
        if may_come_back:
            recovery_point = min(recovery_point, self._start_point)
        if recovery_point < max(start, self._start_line):
            recovery_point = 0
        keeps_start = keep_start or self.keeps_start or may_come_back
        is_told = not keeps_start and writer.segments.bases[:1] == (start,)
        return recovery_point, None if is_told else start

    def write_checkpoints(self, *, keep_start: bool = False) -> None:
        """Write this partition's lines of the recovery-point and log-start checkpoints, if changed (SEMANTICS 12.7).

        A log start that was lowered is written first, and the recovery point after it.
        """
        start = self.writer.log_start_offset
        try:
            self.housekeeper.write_marks(self, keep_start=keep_start)
            before, self._start_line = self._start_line, start
            if before > start:
                self.housekeeper.write_marks(self, keep_start=keep_start)
        except StorageError as error:
            self._marks_wait = isinstance(error, fs.FullDiskError)
            self.writer.report(error)
            raise
        if self._marks_wait:
            self._marks_wait = False
            self.writer.found_room()

    def write_later(self) -> None:
        """Write the snapshot and the leader epochs that a full disk has delayed. Ignore a disk that is still full."""
        writer = self.writer
        if writer.producers.owes_snapshot or writer.epochs.lacks_entries:
            with writer.gate(), suppress(fs.FullDiskError):
                writer.producers.write_later()
                writer.epochs.flush()

    # Work that is due later.

    def unlink_later(self, paths: list[str]) -> None:
        """Unlink renamed files after `file.delete.delay.ms` (SEMANTICS 6.13)."""
        if paths:
            self._unlinks.append((self.writer.now() + self.writer.config.file_delete_delay_ms, paths))
            self.set_due()

    def unlinks(self) -> dict[str, int]:
        """Return the files that wait for their unlinking, and when each is due."""
        return {path: due_ms for due_ms, paths in list(self._unlinks) for path in paths}

    def set_due(self) -> None:
        """Update when the housekeeper and the appender act next, by time and by number of records (SEMANTICS 12.4)."""
        writer = self.writer
        every = writer.config.flush_messages
        writer.appender.flush_at = NEVER if every >= NEVER else self.recovery_point + every
        writer.appender.due_ms = self.housekeeper.attend(self)

    @property
    def due_ms(self) -> int:
        """Return the time when work is next due by the clock (SEMANTICS 12.5, 6.13), or `NEVER`.

        A roll's flush is not counted: it is due immediately.
        """
        due = min((due_ms for due_ms, _ in self._unlinks), default=NEVER)
        if self._watches_producers:
            due = min(due, self._expired_ms + self.writer.producers.expiry.check_ms)
        flush_ms = self.writer.config.flush_ms
        return due if flush_ms >= NEVER else min(due, self._flushed_ms + flush_ms)

    def run_due(self) -> None:
        """Do the work that is due by the clock: delayed unlinks, the flush after a roll, timed flushes."""
        now = self.writer.now()
        try:
            self._unlink(now)
            self.write_later()
            self.flush_rolled()
            self.flush_timed()
            self._expire_producers(now)
        finally:
            self.set_due()

    def housekeep(self) -> None:
        """Make the housekeeper do the due work now, in this thread."""
        self.housekeeper.housekeep(self)

    def before_append(self) -> None:
        """Do due work before an append of this thread. On a full disk this does not raise; the append itself does."""
        writer = self.writer
        appender = writer.appender
        if appender.now() >= appender.due_ms:
            was_full = writer.full is not None
            try:
                self.housekeep()
            except fs.FullDiskError as error:
                if not was_full:
                    logger.warning("%s: housekeeping waits for room on the disk: %s", writer.directory, error)

    def unlink_now(self) -> None:
        """Unlink immediately the files that wait for `file.delete.delay.ms`, to free space on a full disk."""
        self._unlink(NEVER)
        self.set_due()

    def _unlink(self, now: int) -> None:
        for entry in list(self._unlinks):
            due_ms, paths = entry
            if due_ms <= now:
                try:
                    for path in paths:
                        fs.unlink(path)
                except StorageError as error:
                    self.writer.report(error)
                    raise
                with suppress(ValueError):  # another thread has removed it
                    self._unlinks.remove(entry)

    def watch_producers(self) -> None:
        """Check for expired producers from now on (SEMANTICS 9.21)."""
        if not self._watches_producers:
            self._watches_producers = True
            self.set_due()

    def _expire_producers(self, now: int) -> None:
        if now >= self._expired_ms + self.writer.producers.expiry.check_ms:
            self._expired_ms = now
            if self._watches_producers:
                with self.writer.gate():
                    self.writer.producers.expire(now)
                    self._watches_producers = len(self.writer.producers.table) > 0

    def flush_timed(self) -> int | None:
        """Flush if `flush.ms` have passed (SEMANTICS 12.5). Return the milliseconds to the next flush; None: never."""
        writer = self.writer
        flush_ms = writer.config.flush_ms
        if flush_ms >= NEVER:
            return None
        left = self._flushed_ms + flush_ms - writer.now()
        if left <= 0:
            if writer.log_end_offset > self.recovery_point:
                self.flush()
            self._flushed_ms = writer.now()
            left = flush_ms
        return left

    def flush_after_roll(self) -> None:
        """Schedule a flush of all records below the new segment, and a write of the recovery point (SEMANTICS 2.12)."""
        self.roll_to_flush = True
        self.set_due()

    def flush_rolled(self) -> None:
        """Flush everything below the newest segment if a roll requested it.

        A roll during the flush is left to the next call. Otherwise appends that roll as fast as the disk syncs would
        keep the housekeeper from its other work.
        """
        if self.roll_to_flush:
            self.roll_to_flush = False
            try:
                self.flush(max(self.writer.segments.bases, default=0), indexes=True)
                self.write_checkpoints()
            except BaseException:
                self.roll_to_flush = True
                raise

    def stop(self) -> None:
        """Wait for the housekeeper's work on this log, and prevent any later sync."""
        self.housekeeper.stop(self)
        self._turn.take()

    def release(self) -> None:
        """Wake the threads that wait for a sync; called when the log has been closed."""
        self._turn.give(self.recovery_point)
