"""What a writable log owes: syncs, checkpoint lines, unlinks; and when each is due.

`Upkeep` belongs to one `Writer` and looks at its segments; it changes no records. Syncs run beside appends and take
no lock of the log. The hardest rule: the recovery point moves only after everything below it, names included, is on
the disk, and reaches its file only after that.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from kstore import checkpoint, fs
from kstore.errors import KStoreError, LogClosedError, StorageError

if TYPE_CHECKING:
    from kstore.writer import Writer

logger = logging.getLogger("kstore")

NEVER = 2**63 - 1
RETRY_SECONDS = 1.0
CHECKPOINT_INTERVAL_MS = 60_000  # log.flush.offset.checkpoint.interval.ms (12.7)


class Upkeep:
    """The debts of one writable log. `flush` may be called from any thread; the rest says what it wants.

    `recovery_point` is the offset below which everything is on the disk. `gap` is (end of the data, log end offset)
    after a truncation inside a batch, which leaves offsets that no record has (11.4).
    """

    def __init__(self, writer: Writer, recovery_point: int, *, real_time: bool) -> None:
        self._writer = writer
        self._real_time = real_time
        self.recovery_point = recovery_point
        self.gap: tuple[int, int] | None = None
        self._unlinks: list[tuple[int, list[str]]] = []
        self._names_made = 1  # how often directory entries were made
        self._names_synced = 0  # and how many times of those a sync has covered
        self._flusher: int | None = None  # the thread whose turn it is to sync, or to keep others from it
        # The lock is entered itself, not by way of its condition: an interrupt in there would leave it taken.
        self._flush_lock = threading.Lock()
        self._flush_state = threading.Condition(self._flush_lock)
        self._flushed_ms = writer.now()
        self._checkpointed: tuple[int, int | None] = (-1, -1)
        self._checkpointing = threading.Lock()
        self._checkpoint_ms = writer.now()
        self._roll_to_flush = False
        self._wanted: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._thread: threading.Thread | None = None
        self._stopping = False

    # Syncs.

    def owe_names(self) -> None:
        """Note that directory entries have been made that no sync has covered."""
        self._names_made += 1

    def flush(self, offset: int | None = None) -> None:
        """Put everything below `offset` (None: the log end) on the disk, the directory's names included (12.2).

        Concurrent callers share one sync. When a sync fails the log refuses writes from then on.
        """
        writer = self._writer
        target = writer.log_end_offset if offset is None else offset
        try:
            while self._owes(target):
                self.sync(writer.log_end_offset if offset is None else target)
                self._give_turn()
        finally:
            self._give_turn()

    def _owes(self, target: int) -> bool:
        """Whether the caller is to sync up to `target` now; waits while another thread's sync may do it."""
        writer = self._writer
        with self._flush_lock:
            while True:
                writer.refuse_if_unusable()
                covered = self.recovery_point >= min(target, writer.log_end_offset)
                if covered and self._names_synced == self._names_made:
                    return False
                if self._flusher is None:
                    self._flusher = threading.get_ident()
                    return True
                self._flush_state.wait()

    def _take_turn(self) -> None:
        with self._flush_lock:
            while self._flusher is not None:
                self._flush_state.wait()
            self._flusher = threading.get_ident()

    def _give_turn(self) -> None:
        """Let the next one sync, if it was this thread's turn: an interrupt may come before it or after it."""
        with self._flush_lock:
            if self._flusher == threading.get_ident():
                self._flusher = None
                self._flush_state.notify_all()

    def sync(self, target: int) -> None:
        """Sync the segments from the recovery point's to that of `target`; for one thread at a time."""
        writer = self._writer
        segments, names_made = writer.segments, self._names_made
        try:
            # The segment that ends at the recovery point too: it may have been sealed since.
            first = max(segments.floor(min(self.recovery_point, target) - 1), 0)
            for segment in segments.items[first:]:
                if segment.base_offset < target or segment is segments.items[-1]:
                    segment.flush()
            if names_made != self._names_synced:
                writer.producers.sync()
                fs.sync_directory(writer.directory)
                fs.sync_directory(writer.root)
        except StorageError as error:
            writer.fail(error)
            raise
        self._names_synced = names_made
        if self.gap is not None and segments.bases[-1] >= self.gap[1]:
            self.gap = None  # the last segment's name holds the log's end
        self.recovery_point = max(self.recovery_point, min(target, writer.log_end_offset))
        self._flushed_ms = writer.now()
        self.set_due()

    @contextmanager
    def cutting(self, offset: int, *, keep_start: bool = False) -> Iterator[None]:
        """Cut records: no sync runs meanwhile, and the recovery point is down at `offset`, in its file, before that.

        With `keep_start` the log start is in its file too, for a moment in which no segment may tell it.
        """
        try:
            self._take_turn()
            self.recovery_point = min(self._safe_recovery_point(), offset)
            self.write_checkpoints(keep_start=keep_start)
            yield
        finally:
            self._give_turn()

    # Checkpoints.

    def _safe_recovery_point(self) -> int:
        """The recovery point; in a gap, its start: were all above it lost, the log would be found to end there."""
        gap, recovery_point = self.gap, self.recovery_point
        return min(recovery_point, gap[0]) if gap is not None and recovery_point <= gap[1] else recovery_point

    def write_checkpoints(self, *, keep_start: bool = False) -> None:
        """Write this partition's lines of the recovery-point and log-start checkpoints, where they changed (12.7).

        A log start that the first segment's name tells has no line, unless `keep_start` asks for it.

        The values are read under the lock that orders the writes, so that the last write has the last values.
        """
        writer = self._writer
        with self._checkpointing:
            recovery_point = self._safe_recovery_point()
            log_start: int | None = writer.log_start_offset
            if not keep_start and writer.segments.bases[:1] == (log_start,):
                log_start = None
            written = self._checkpointed
            if recovery_point != written[0]:
                lines = {writer.partition: recovery_point}
                checkpoint.update_offsets(writer.root, checkpoint.RECOVERY_POINTS, lines)
                written = (recovery_point, written[1])
            if log_start != written[1]:
                checkpoint.update_offsets(writer.root, checkpoint.LOG_STARTS, {writer.partition: log_start})
            self._checkpointed = (recovery_point, log_start)
            self._checkpoint_ms = writer.now()

    # Later.

    def unlink_later(self, paths: list[str]) -> None:
        """Unlink renamed files when `file.delete.delay.ms` has passed (6.13)."""
        if paths:
            self._unlinks.append((self._writer.now() + self._writer.config.file_delete_delay_ms, paths))
            self.set_due()

    def set_due(self) -> None:
        """Tell the appender when the next upkeep is due, by the clock and by the number of records (12.4, 12.5)."""
        writer = self._writer
        config = writer.config
        due = min((at for at, _ in self._unlinks), default=NEVER)
        if config.flush_ms < NEVER:
            due = min(due, self._flushed_ms + config.flush_ms)
            if self._real_time:
                self._start_thread()
        if self._roll_to_flush and not self._real_time:
            due = 0
        writer.appender.due_ms = due
        every = config.flush_messages
        writer.appender.flush_at = NEVER if every >= NEVER else self.recovery_point + every

    def run_due(self) -> None:
        """Do what is due by the clock: delayed unlinks, the flush after a roll, timed flushes, checkpoints."""
        writer = self._writer
        now = writer.now()
        for entry in list(self._unlinks):
            if entry[0] <= now:
                for path in entry[1]:
                    fs.unlink(path)
                with suppress(ValueError):  # another thread was faster
                    self._unlinks.remove(entry)
        self._flush_rolled()
        if now - self._flushed_ms >= writer.config.flush_ms:
            if writer.log_end_offset > self.recovery_point:
                self.flush()
            self._flushed_ms = now
        if now - self._checkpoint_ms >= CHECKPOINT_INTERVAL_MS:
            self.write_checkpoints()
        self.set_due()

    def flush_after_roll(self) -> None:
        """Have everything below the new segment flushed and the recovery point written (2.12), off the append's path.

        By the system's clock a thread does it at once; with a clock passed in, the next upkeep does.
        """
        self._roll_to_flush = True
        if self._real_time:
            self._start_thread()
            self._wanted.put(None)
        self.set_due()

    def _flush_rolled(self) -> None:
        while self._roll_to_flush:
            self._roll_to_flush = False
            try:
                self.flush(max(self._writer.segments.bases, default=0))
                self.write_checkpoints()
            except BaseException:
                self._roll_to_flush = True
                raise

    def _start_thread(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(
                target=_work, args=(weakref.ref(self), self._wanted), name="kstore-upkeep", daemon=True
            )
            self._thread.start()

    def _work_once(self) -> float | None:
        """Do what the thread is for; the seconds until it wants to look again."""
        writer = self._writer
        if writer.closed or writer.failure is not None:
            return None
        try:
            self._flush_rolled()
            flush_ms = writer.config.flush_ms
            if flush_ms >= NEVER:
                return threading.TIMEOUT_MAX
            left = self._flushed_ms + flush_ms - writer.now()
            if left <= 0:
                if writer.log_end_offset > self.recovery_point:
                    self.flush()
                self._flushed_ms = writer.now()
                left = flush_ms
            return max(left, 1) / 1000
        except LogClosedError:
            return None
        except KStoreError:
            logger.exception("%s: a flush in the background failed", writer.directory)
            return RETRY_SECONDS  # a disk that is full now may have room then

    def stop(self) -> None:
        """Let the thread finish what it does, and keep every other sync out from then on."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._wanted.put(None)
            thread.join()
        self._take_turn()

    def release(self) -> None:
        """Wake whoever wanted a sync of a log that is closed now."""
        self._give_turn()


def _work(reference: weakref.ref[Upkeep], wanted: SimpleQueue[None]) -> None:
    """The thread: it keeps no log alive that nobody else holds."""
    pause: float | None = 0.0
    while pause is not None:
        with suppress(Empty):
            wanted.get(timeout=min(pause, 1.0 if pause < threading.TIMEOUT_MAX else 5.0))
        upkeep = reference()
        if upkeep is None or upkeep._stopping:
            return
        pause = upkeep._work_once()
        del upkeep
