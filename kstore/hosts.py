"""Who keeps a log that is open by itself: its own thread, or its next call.

By the system's clock a thread flushes after rolls and by `flush.ms`; with a clock passed in, the next append or
housekeeping does, so that a test sees everything happen where it looks. Both write the partition's lines of the
checkpoint files one by one, as other logs beside it may. A store's host is in logdir.py.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from kstore import checkpoint
from kstore.errors import KStoreError, LogClosedError
from kstore.upkeep import NEVER

if TYPE_CHECKING:
    from kstore.upkeep import Upkeep

logger = logging.getLogger("kstore")

RETRY_SECONDS = 1.0
CHECKPOINT_INTERVAL_MS = 60_000  # log.flush.offset.checkpoint.interval.ms (12.7)


class NextCall:
    """The host of a lone log whose clock was passed in: the next append or housekeeping does what is due.

    Belongs to one log. Thread-safe.
    """

    def __init__(self) -> None:
        self._checkpointed: tuple[int, int | None] = (-1, -1)
        self._checkpointing = threading.Lock()
        self._checkpoint_ms: int | None = None

    def attend(self, upkeep: Upkeep) -> int:
        """Have an append do it."""
        if self._checkpoint_ms is None:
            self._checkpoint_ms = upkeep.writer.now()
        return 0 if upkeep.roll_to_flush else upkeep.due_ms

    def write_marks(self, upkeep: Upkeep, *, keep_start: bool = False) -> None:
        """Write what changed of this partition's two lines."""
        writer = upkeep.writer
        with self._checkpointing:
            recovery_point, log_start = upkeep.marks(keep_start)
            written = self._checkpointed
            if recovery_point != written[0]:
                lines = {writer.partition: recovery_point}
                checkpoint.update_offsets(writer.root, checkpoint.RECOVERY_POINTS, lines)
                self._checkpointed = (recovery_point, written[1])
            if log_start != written[1]:
                checkpoint.update_offsets(writer.root, checkpoint.LOG_STARTS, {writer.partition: log_start})
            self._checkpointed = (recovery_point, log_start)
            self._checkpoint_ms = writer.now()

    def housekeep(self, upkeep: Upkeep) -> None:
        """Do what is due, and write the lines once a minute (12.7)."""
        upkeep.run_due()
        if self._checkpoint_ms is None or upkeep.writer.now() - self._checkpoint_ms >= CHECKPOINT_INTERVAL_MS:
            upkeep.flush_indexes()
            self.write_marks(upkeep)

    def stop(self, upkeep: Upkeep) -> None:
        """Nothing is under way."""


class OwnThread(NextCall):
    """The host of a lone log by the system's clock: one daemon thread flushes, and appends unlink what is due.

    Belongs to one log. Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wanted: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._flush_ms = NEVER  # that the thread has last seen

    def attend(self, upkeep: Upkeep) -> int:
        """Wake the thread for a flush; an append does the rest."""
        super().attend(upkeep)
        if upkeep.roll_to_flush or upkeep.writer.config.flush_ms < NEVER:
            self._start_thread(upkeep)
        if upkeep.roll_to_flush or upkeep.writer.config.flush_ms < self._flush_ms:
            self._wanted.put(None)
        return upkeep.due_ms

    def _start_thread(self, upkeep: Upkeep) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(
                target=_work,
                args=(weakref.ref(upkeep), weakref.ref(self), self._wanted),
                name="kstore-upkeep",
                daemon=True,
            )
            self._thread.start()

    def work_once(self, upkeep: Upkeep) -> float | None:
        """Do what the thread is for; the seconds until it wants to look again, None for never."""
        writer = upkeep.writer
        if self._stopping or writer.closed or writer.failure is not None:
            return None
        try:
            self._flush_ms = writer.config.flush_ms
            upkeep.flush_rolled()
            left = upkeep.flush_timed()
            return threading.TIMEOUT_MAX if left is None else max(left, 1) / 1000
        except LogClosedError:
            return None
        except KStoreError:
            logger.exception("%s: a flush in the background failed", writer.directory)
            return RETRY_SECONDS  # a disk that is full now may have room then

    def stop(self, upkeep: Upkeep) -> None:
        """Let the thread finish what it does."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._wanted.put(None)
            thread.join()


def _work(log: weakref.ref[Upkeep], host: weakref.ref[OwnThread], wanted: SimpleQueue[None]) -> None:
    """The thread: it keeps no log alive that nobody else holds."""
    pause: float | None = 0.0
    while pause is not None:
        with suppress(Empty):
            wanted.get(timeout=min(pause, 1.0 if pause < threading.TIMEOUT_MAX else 5.0))
        upkeep, worker = log(), host()
        if upkeep is None or worker is None:
            return
        pause = worker.work_once(upkeep)
        del upkeep, worker
