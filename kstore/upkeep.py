"""What a writable log owes: syncs, checkpoint lines, unlinks; and when each is due.

`Upkeep` belongs to one `Writer` and looks at its segments; it changes no records. Syncs run beside appends and take
no lock of the log. Who sees to what is due, and writes the checkpoint lines, is the log's `Host`: hosts.py has those of
a log that is open by itself, a store has its own. The hardest rule: the recovery point moves only after everything
below it, names included, is on the disk, and reaches its file only after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from kstore import fs
from kstore._turn import Turn
from kstore.errors import StorageError

if TYPE_CHECKING:
    from kstore.segment import Segment
    from kstore.writer import Writer

NEVER = 2**63 - 1


class Host(Protocol):
    """Who keeps a writable log."""

    def attend(self, upkeep: Upkeep) -> int:
        """Hear that something may be due; answers when an append is to see to it, `NEVER` when none is."""

    def write_marks(self, upkeep: Upkeep, *, keep_start: bool = False) -> None:
        """Bring `upkeep.marks(keep_start)` into the checkpoint files, durably.

        The marks are read under the lock that orders the writes, so that the last write has the last values.
        """

    def housekeep(self, upkeep: Upkeep) -> None:
        """Do what the log itself was asked to do: everything that is due by the clock."""

    def stop(self, upkeep: Upkeep) -> None:
        """Let go of a log that is being closed: nothing of it is begun any more when this returns."""


class Upkeep:
    """The debts of one writable log. `flush` may be called from any thread; the rest says what it wants.

    `recovery_point` is the offset below which every record is on the disk, with the names of its files. The active
    segment's indexes follow when the checkpoint file is to say so: what is above its line is recovered after a crash,
    indexes and all, and syncing three files takes three times as long as syncing one. `gap` is (end of the data, log
    end offset) after a truncation inside a batch, which leaves offsets that no record has (11.4).
    """

    def __init__(self, writer: Writer, recovery_point: int, host: Host) -> None:
        self.writer = writer
        self.host = host
        self.recovery_point = recovery_point
        self._indexed = recovery_point  # the offset below which the indexes are on the disk, too
        self.gap: tuple[int, int] | None = None
        self._unlinks: list[tuple[int, list[str]]] = []
        self._names_made = 1  # how often directory entries were made
        self._names_synced = 0  # and how many times of those a sync has covered
        self._start_made = 0  # how many had been made when segments last went from the log's front
        self._start_point = recovery_point  # and the recovery point before that
        self._turn = Turn()
        self._flushed_ms = self._expired_ms = writer.now()
        self._watches_producers = len(writer.producers.table) > 0
        self.roll_to_flush = False  # a segment was left, and what is below the new one is not yet flushed

    # Syncs.

    def owe_names(self) -> None:
        """Note that directory entries have been made that no sync has covered."""
        self._names_made += 1

    def flush(self, offset: int | None = None, *, indexes: bool = False) -> None:
        """Put every record below `offset` (None: the log end) on the disk, the directory's names included (12.2).

        With `indexes` those of the active segment, too; those of the others always. Concurrent callers share one sync.
        When a sync fails the log refuses writes from then on.
        """
        writer = self.writer
        target = writer.log_end_offset if offset is None else offset
        turn = self._turn
        try:
            while not self._is_flushed(target, indexes):
                if turn.take_or_wait(target):
                    if not self._is_flushed(target, indexes):  # it may be since we looked
                        turn.gather()
                        self.sync(writer.log_end_offset if offset is None else target, indexes=indexes)
                    turn.give(self.recovery_point)
        finally:
            turn.give(self.recovery_point)

    @property
    def owes_anything(self) -> bool:
        """Whether a flush has anything to do."""
        return self.recovery_point < self.writer.log_end_offset or self._names_synced != self._names_made

    def _is_flushed(self, target: int, indexes: bool) -> bool:
        """Whether there is nothing to sync for who wants everything below `target` on the disk."""
        writer = self.writer
        writer.refuse_if_unusable()
        point = self._indexed if indexes else self.recovery_point
        return (point >= target or point >= writer.log_end_offset) and self._names_synced == self._names_made

    def flush_indexes(self) -> None:
        """Put the indexes of what was flushed on the disk, before a checkpoint says that all of it is."""
        if self._indexed < self.recovery_point:
            self.flush(self.recovery_point, indexes=True)

    def sync(self, target: int, *, indexes: bool = True) -> None:
        """Sync the segments from the recovery point's to that of `target`; for one thread at a time."""
        writer = self.writer
        segments, names_made = writer.segments, self._names_made
        try:
            # The segment that ends at the recovery point too: it may have been sealed since.
            first = max(segments.floor(min(self.recovery_point, target) - 1), 0)
            for segment in segments.items[first:]:
                if segment.base_offset < target or (segment is segments.items[-1] and target >= writer.log_end_offset):
                    self._sync_segment(segment, indexes=indexes or segment is not segments.items[-1])
            writer.producers.sync()
            if names_made != self._names_synced:
                fs.sync_directory(writer.directory)
                fs.sync_directory(writer.root)
        except StorageError as error:
            writer.fail(error)
            writer.report(error)
            raise
        self._names_synced = names_made
        if self.gap is not None and segments.bases[-1] >= self.gap[1]:
            self.gap = None  # the last segment's name holds the log's end
        target = min(target, writer.log_end_offset)
        self.recovery_point = max(self.recovery_point, target)
        self._indexed = max(self._indexed, target if indexes else min(target, segments.bases[-1]))
        self._flushed_ms = writer.now()
        self.set_due()
        writer.flushed()

    def took_in(self, end_offset: int) -> None:
        """Note that the log is on the disk up to `end_offset`, but for the names and the producers' snapshots."""
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
            # Retention took it out meanwhile, below a log start that is on the disk: nobody asks for it any more.

    @contextmanager
    def cutting(self, offset: int, *, keep_start: bool = False) -> Iterator[None]:
        """Cut records: no sync runs meanwhile, and the recovery point is down at `offset`, in its file, before that.

        With `keep_start` the log start is in its file too, for a moment in which no segment may tell it.
        """
        try:
            self._turn.take()
            self.recovery_point = min(self._safe_recovery_point(), offset)
            self._indexed = min(self._indexed, self.recovery_point)
            self.write_checkpoints(keep_start=keep_start)
            yield
        finally:
            self._turn.give(self.recovery_point)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Take segments from the log's front, which a power cut may bring back until a sync has covered it.

        So long the log start keeps its line, and the recovery point in its file stays below what was never synced.
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
        """Note that the log starts at `offset` now: nothing below it is owed."""
        self.recovery_point = max(self.recovery_point, offset)
        self._indexed = max(self._indexed, offset)

    # Checkpoints.

    def _safe_recovery_point(self) -> int:
        """The recovery point; in a gap, its start: were all above it lost, the log would be found to end there."""
        gap, recovery_point = self.gap, self.recovery_point
        return min(recovery_point, gap[0]) if gap is not None and recovery_point <= gap[1] else recovery_point

    def marks(self, keep_start: bool = False) -> tuple[int, int | None]:
        """What the checkpoint files should say (12.7): the recovery point, and the log start.

        A log start that the first segment's name tells, durably, has no line (None), unless `keep_start` asks for it.
        """
        writer = self.writer
        log_start: int | None = writer.log_start_offset
        recovery_point = min(self._safe_recovery_point(), self._indexed)
        if self._names_synced < self._start_made:
            return min(recovery_point, self._start_point), log_start
        if not keep_start and writer.segments.bases[:1] == (log_start,):
            log_start = None
        return recovery_point, log_start

    def write_checkpoints(self, *, keep_start: bool = False) -> None:
        """Write this partition's lines of the recovery-point and log-start checkpoints, where they changed (12.7)."""
        try:
            self.host.write_marks(self, keep_start=keep_start)
        except StorageError as error:
            self.writer.report(error)
            raise

    # Later.

    def unlink_later(self, paths: list[str]) -> None:
        """Unlink renamed files when `file.delete.delay.ms` has passed (6.13)."""
        if paths:
            self._unlinks.append((self.writer.now() + self.writer.config.file_delete_delay_ms, paths))
            self.set_due()

    def set_due(self) -> None:
        """Tell host and appender when the next upkeep is due, by the clock and by the number of records (12.4)."""
        writer = self.writer
        every = writer.config.flush_messages
        writer.appender.flush_at = NEVER if every >= NEVER else self.recovery_point + every
        writer.appender.due_ms = self.host.attend(self)

    @property
    def due_ms(self) -> int:
        """When something is next due by the clock (12.5, 6.13), `NEVER` for nothing; a roll's flush is due at once."""
        due = min((at for at, _ in self._unlinks), default=NEVER)
        if self._watches_producers:
            due = min(due, self._expired_ms + self.writer.producers.expiry.check_ms)
        flush_ms = self.writer.config.flush_ms
        return due if flush_ms >= NEVER else min(due, self._flushed_ms + flush_ms)

    def run_due(self) -> None:
        """Do what is due by the clock: delayed unlinks, the flush after a roll, timed flushes."""
        now = self.writer.now()
        for entry in list(self._unlinks):
            if entry[0] <= now:
                try:
                    for path in entry[1]:
                        fs.unlink(path)
                except StorageError as error:
                    self.writer.report(error)
                    raise
                with suppress(ValueError):  # another thread was faster
                    self._unlinks.remove(entry)
        self.flush_rolled()
        self.flush_timed()
        self._expire_producers(now)
        self.set_due()

    def watch_producers(self) -> None:
        """Look at the producers from now on, whether they have expired (9.21)."""
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
        """Flush when the last flush is `flush.ms` ago (12.5); the milliseconds until the next, None for never."""
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
        """Have everything below the new segment flushed and the recovery point written (2.12), after this append."""
        self.roll_to_flush = True
        self.set_due()

    def flush_rolled(self) -> None:
        """Flush everything below the newest segment if a roll asked for it.

        A roll that comes meanwhile waits for the next time: else appends that roll as fast as the disk syncs would
        keep the host from everything else it has to do.
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
        """Let the host finish what it does for this log, and keep every other sync out from then on."""
        self.host.stop(self)
        self._turn.take()

    def release(self) -> None:
        """Wake whoever wanted a sync of a log that is closed now."""
        self._turn.give(self.recovery_point)
