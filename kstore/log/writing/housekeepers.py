"""Background work of a log that is opened without a store, done by a thread or by the log's next call.

With the system's clock, a thread flushes after rolls and by `flush.ms`. With a clock that was passed in, the next
append or housekeeping does so, so that a test controls when. Both write only this partition's lines of the checkpoint
files, as other logs may write theirs. A store has its own housekeeper (store/log_directory.py).
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from kstore.base import threads
from kstore.base.numbers import NEVER
from kstore.base.timings import Timings
from kstore.errors import KStoreError, LogClosedError
from kstore.explained.explanation import CheckTimes
from kstore.files import checkpoint

if TYPE_CHECKING:
    from kstore.log.writing.housekeeping import Housekeeping

logger = logging.getLogger("kstore")

RETRY_SECONDS = 1.0
CHECKPOINT_INTERVAL_MS = 60_000  # log.flush.offset.checkpoint.interval.ms (SEMANTICS 12.7)


class InlineHousekeeper:
    """Does the due work of a log without a store in its next append or housekeeping.

    Belongs to one log. Thread-safe.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.timings = Timings()
        self._checkpointed: tuple[int, int | None] = (-1, -1)
        self._high_watermark = -1  # from the checkpoint line of a store or a broker; -1 until it is read
        self._checkpointing = threading.Lock()
        self._checkpoint_ms: int | None = None

    def first_dirty(self, partition: checkpoint.Partition) -> int | None:
        """Return the partition's offset in the cleaner's checkpoint, or None if it has no line there."""
        return checkpoint.read_offsets(self._root, checkpoint.CLEANER_OFFSETS).get(partition)

    def write_first_dirty(self, partition: checkpoint.Partition, offset: int | None) -> None:
        """Set the partition's line of the cleaner's checkpoint, or remove it (None), durably."""
        checkpoint.update_offsets(self._root, checkpoint.CLEANER_OFFSETS, {partition: offset})

    def attend(self, housekeeping: Housekeeping) -> int:
        """Return the time at which the next append has to do the work."""
        if self._checkpoint_ms is None:
            self._checkpoint_ms = housekeeping.writer.now()
        return 0 if housekeeping.roll_to_flush else housekeeping.due_ms

    def write_marks(self, housekeeping: Housekeeping, *, keep_start: bool = False) -> None:
        """Write this partition's two lines if they have changed, and lower its high watermark to the log's end."""
        writer = housekeeping.writer
        with self._checkpointing:
            recovery_point, log_start = housekeeping.marks(keep_start)
            written = self._checkpointed
            if recovery_point != written[0]:
                lines = {writer.partition: recovery_point}
                checkpoint.update_offsets(writer.root, checkpoint.RECOVERY_POINTS, lines)
                if self._high_watermark < 0:
                    high_watermarks = checkpoint.read_offsets(writer.root, checkpoint.HIGH_WATERMARKS)
                    self._high_watermark = high_watermarks.get(writer.partition, 0)
                self._checkpointed = (recovery_point, written[1])
            if log_start != written[1]:
                checkpoint.update_offsets(writer.root, checkpoint.LOG_STARTS, {writer.partition: log_start})
            self._checkpointed = (recovery_point, log_start)
            end = housekeeping.data_end
            if self._high_watermark > end:
                checkpoint.update_offsets(writer.root, checkpoint.HIGH_WATERMARKS, {writer.partition: end})
                self._high_watermark = end
            self._checkpoint_ms = writer.now()

    def housekeep(self, housekeeping: Housekeeping) -> None:
        """Do the due work, and write the checkpoint lines once a minute (SEMANTICS 12.7)."""
        housekeeping.run_due()
        if self._checkpoint_ms is None or housekeeping.writer.now() - self._checkpoint_ms >= CHECKPOINT_INTERVAL_MS:
            housekeeping.flush_indexes()
            self.write_marks(housekeeping)

    def checks(self, partition: checkpoint.Partition, *, compacts: bool) -> CheckTimes:
        """Return that only a caller checks: nothing calls `apply_retention` by itself."""
        return CheckTimes("caller", None, None)

    def stop(self, housekeeping: Housekeeping) -> None:
        """Do nothing: no work is under way."""


class ThreadHousekeeper(InlineHousekeeper):
    """Does the due work of a log without a store, by the system's clock: a daemon thread flushes, appends unlink files.

    If no thread can be started, appends flush, too; each roll tries again to start one.

    Belongs to one log. Thread-safe.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._wanted: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._flush_ms = NEVER  # as the thread has last seen it
        self._logged = ""  # the last failure, to log it only once

    def attend(self, housekeeping: Housekeeping) -> int:
        """Wake the thread for a flush; leave other work to appends."""
        due_ms = super().attend(housekeeping)
        flush_ms = housekeeping.writer.config.flush_ms
        if (housekeeping.roll_to_flush or flush_ms < NEVER) and not self._has_thread(housekeeping):
            return due_ms
        if housekeeping.roll_to_flush or flush_ms < self._flush_ms:
            self._wanted.put(None)
        return housekeeping.due_ms

    def _has_thread(self, housekeeping: Housekeeping) -> bool:
        """Return whether the thread is running, after trying to start it."""
        if self._thread is None and not self._stopping:
            thread = threading.Thread(
                target=_work,
                args=(weakref.ref(housekeeping), weakref.ref(self), self._wanted),
                name="kstore-housekeeping",
                daemon=True,
            )
            try:
                self._thread = thread
                if not threads.start(thread):
                    self._thread = None
            except BaseException:  # an interrupt
                if thread.ident is None:
                    self._thread = None
                raise
        return self._thread is not None

    def work_once(self, housekeeping: Housekeeping) -> float | None:
        """Flush if it is due. Return the seconds until the thread must call this again, or None for never."""
        writer = housekeeping.writer
        if self._stopping or writer.closed or writer.failure is not None:
            return None
        try:
            self._flush_ms = writer.config.flush_ms
            housekeeping.flush_rolled()
            left = housekeeping.flush_timed()
            self._logged = ""
            return threading.TIMEOUT_MAX if left is None else max(left, 1) / 1000
        except LogClosedError:
            return None
        except KStoreError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.exception("%s: a flush in the background failed", writer.directory)
            return RETRY_SECONDS  # a full disk may have free space by then

    def stop(self, housekeeping: Housekeeping) -> None:
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._wanted.put(None)
            with suppress(RuntimeError):  # not started, because an interrupt came: it will see `_stopping` and end
                thread.join()


def _work(
    log: weakref.ref[Housekeeping], housekeeper: weakref.ref[ThreadHousekeeper], wanted: SimpleQueue[None]
) -> None:
    """Run the thread. It holds no log while it waits, so that an unused log can be collected."""
    pause: float | None = 0.0
    while pause is not None:
        with suppress(Empty):
            wanted.get(timeout=min(pause, 1.0 if pause < threading.TIMEOUT_MAX else 5.0))
        housekeeping, worker = log(), housekeeper()
        if housekeeping is None or worker is None:
            return
        pause = worker.work_once(housekeeping)
        del housekeeping, worker
