"""One log directory of a store that writes: its lock, its checkpoint files, and the host of its logs.

The lines of the four checkpoint files are kept in memory, since nobody else may write them while the store holds the
directory, and go to the disk in one write for all logs (12.7, 13.4). The hardest rule: a directory whose disk has
failed is written to no more: no checkpoint, no marker of a clean shutdown (13.9).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EIO
from typing import TYPE_CHECKING

from kstore import checkpoint, fs
from kstore.errors import LogClosedError, StorageError
from kstore.upkeep import NEVER

if TYPE_CHECKING:
    from kstore.upkeep import Upkeep

logger = logging.getLogger("kstore")


class LogDirectory:
    """A log directory that is held for writing; the `upkeep.Host` of the logs in it. Thread-safe."""

    def __init__(self, path: str, *, hurry: Callable[[int], object], now: Callable[[], int]) -> None:
        """`hurry(ms)` has `run_due` called after so many milliseconds at the latest.

        Raises `LogLockedError` while a broker, another store or a lone log has the directory, and `StorageError`,
        also for a checkpoint file that is malformed: what it said is not known, so nothing here may be opened.
        """
        self.path = path
        self.offline: StorageError | None = None
        self.failures: dict[str, str] = {}
        self._hurry = hurry
        self._now = now
        self._writing = threading.Lock()
        self._deferring = threading.local()
        self._attending = threading.Lock()
        self._attended = threading.Condition(self._attending)
        self._owing: dict[Upkeep, None] = {}
        self._working: Upkeep | None = None
        self._next_due = NEVER
        fs.make_directories(path)
        self._lock = fs.lock_root(path, shared=False)
        try:
            self._lines = {name: checkpoint.read_offsets(path, name) for name in checkpoint.OFFSET_CHECKPOINTS}
            self._changed: set[str] = set()
            self.was_clean = checkpoint.remove_clean_marker(path)
        except BaseException:
            self._lock.release()
            raise

    # The host of its logs.

    def attend(self, upkeep: Upkeep) -> int:
        """Note that a log has something due, and be called in time; no append of a store's log sees to it itself."""
        due = 0 if upkeep.roll_to_flush else upkeep.due_ms
        if due >= NEVER:
            self._owing.pop(upkeep, None)
            return NEVER
        self._owing[upkeep] = None
        if due < self._next_due:
            self._next_due = due
            self._hurry(max(due - self._now(), 0) if due else 0)
        return NEVER

    def housekeep(self, upkeep: Upkeep) -> None:
        """Do what is due of one log."""
        upkeep.run_due()

    def stop(self, upkeep: Upkeep) -> None:
        """Wait for what is being done of a log, and do no more of it."""
        with self._attending:
            self._owing.pop(upkeep, None)
            while self._working is upkeep:
                self._attended.wait()
            self._owing.pop(upkeep, None)

    def run_due(self) -> int | None:
        """Do what is due of every log here; the milliseconds until more is, None for nothing.

        A log that fails is logged and noted in `failures`, and stops no other.
        """
        with self.deferring():
            self._next_due = 0  # nobody need hurry us while we look
            for upkeep in list(self._owing):
                if upkeep.roll_to_flush or upkeep.due_ms <= self._now():
                    self._run_one(upkeep)
        due = min((upkeep.due_ms for upkeep in list(self._owing)), default=NEVER)
        if any(upkeep.roll_to_flush for upkeep in list(self._owing)):
            due = self._now() + (1000 if self.failures else 1)  # a flush that failed is tried again
        self._next_due = due
        return None if due >= NEVER else max(due - self._now(), 1)

    def _run_one(self, upkeep: Upkeep) -> None:
        with self._attending:
            if upkeep not in self._owing:
                return
            self._working = upkeep
        topic, partition = upkeep.writer.partition
        try:
            upkeep.run_due()
            self.failures.pop(f"{topic}-{partition}", None)
        except LogClosedError:
            self._owing.pop(upkeep, None)
        except Exception as error:
            if upkeep.writer.failure is not None:
                self._owing.pop(upkeep, None)
            self.failures[f"{topic}-{partition}"] = f"{type(error).__name__}: {error}"
            logger.exception("%s: housekeeping failed", upkeep.writer.directory)
        finally:
            with self._attending:
                self._working = None
                self._attended.notify_all()

    # Checkpoints.

    def mark(self, name: str, partition: checkpoint.Partition) -> int | None:
        """A partition's line of a checkpoint file."""
        return self._lines[name].get(partition)

    def write_marks(self, upkeep: Upkeep, *, keep_start: bool = False) -> None:
        """Bring a log's lines into the files, at once unless many logs' are being brought (`deferring`)."""
        with self._writing:
            self._note(upkeep, keep_start)
            if not getattr(self._deferring, "on", False):
                self._write_changed()

    @contextmanager
    def deferring(self, *, write: bool = True) -> Iterator[None]:
        """Bring the lines of many logs, as far as this thread does, into the files with one write at the end.

        Without `write` they wait for the next.
        """
        self._deferring.on = True
        try:
            yield
        finally:
            self._deferring.on = False
            if write:
                with self._writing:
                    self._write_changed()

    def write_all_marks(self, upkeeps: Iterable[Upkeep]) -> None:
        """Write the recovery points and log starts of these logs, where they changed (12.7, 11.12)."""
        upkeeps = list(upkeeps)
        for upkeep in upkeeps:
            with suppress(LogClosedError):
                upkeep.flush_indexes()
        with self._writing:
            for upkeep in upkeeps:
                if upkeep.writer.failure is None:
                    self._note(upkeep, False)
            self._write_changed()

    def write_high_watermarks(self, upkeeps: Iterable[Upkeep]) -> None:
        """Write the high watermarks of these logs, which are their ends (0.4)."""
        with self._writing:
            for upkeep in upkeeps:
                self._set(checkpoint.HIGH_WATERMARKS, upkeep.writer.partition, upkeep.writer.log_end_offset)
            self._write_changed()

    def lower(self, partition: checkpoint.Partition, offset: int) -> None:
        """Bring a recovery point down to `offset`, in its file, before anybody opens the log."""
        with self._writing:
            if (self._lines[checkpoint.RECOVERY_POINTS].get(partition) or 0) > offset:
                self._set(checkpoint.RECOVERY_POINTS, partition, offset)
            self._write_changed()

    def forget(self, partitions: Iterable[checkpoint.Partition]) -> None:
        """Take partitions out of all four files (13.8)."""
        with self._writing:
            for partition in partitions:
                for name in self._lines:
                    self._set(name, partition, None)
            self._write_changed()

    def _note(self, upkeep: Upkeep, keep_start: bool) -> None:
        recovery_point, log_start = upkeep.marks(keep_start)
        self._set(checkpoint.RECOVERY_POINTS, upkeep.writer.partition, recovery_point)
        self._set(checkpoint.LOG_STARTS, upkeep.writer.partition, log_start)

    def _set(self, name: str, partition: checkpoint.Partition, offset: int | None) -> None:
        lines = self._lines[name]
        if lines.get(partition) == offset:
            return
        if offset is None:
            del lines[partition]
        else:
            lines[partition] = offset
        self._changed.add(name)

    def _write_changed(self) -> None:
        if self.offline is not None:
            return
        for name in sorted(self._changed):
            checkpoint.write_offsets(self.path, name, self._lines[name])
            self._changed.discard(name)

    # The end.

    def fail(self, error: StorageError) -> None:
        """Take the directory out of service for good (13.9); again is no error."""
        if self.offline is None:
            reason = str(error) or type(error).__name__
            self.offline = StorageError(
                error.errno or EIO,
                f"the log directory is offline until the store is reopened, because {reason}",
                self.path,
            )
            logger.error("%s: offline: %s", self.path, reason)

    def refuse_if_offline(self) -> None:
        """Raise the error that took the directory out of service, if one did."""
        if self.offline is not None:
            raise StorageError(self.offline.errno, self.offline.strerror, self.path)

    def close(self, *, clean: bool) -> None:
        """Write what is left of the checkpoints and, if all is `clean`, the marker (13.5); give the lock back."""
        try:
            if self.offline is None:
                with self._writing:
                    self._write_changed()
                if clean:
                    checkpoint.write_clean_marker(self.path)
        finally:
            self._lock.release()
