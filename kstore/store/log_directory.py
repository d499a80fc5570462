"""One log directory of a store that writes: its lock, its checkpoint files, and the housekeeper of its logs.

The lines of the checkpoint files are kept in memory: no other process writes the files while the store holds the lock.
One write of a file serves all logs (SEMANTICS 12.7, 13.4). Invariant: a directory whose disk has failed is not written
any more: no checkpoint, no marker of a clean shutdown (SEMANTICS 13.9).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kstore.base.numbers import NEVER
from kstore.base.threads import Bell
from kstore.base.timings import Timings
from kstore.disk import fs
from kstore.errors import LogClosedError, StorageError, refusal
from kstore.files import checkpoint

if TYPE_CHECKING:
    from kstore.explained.explanation import CheckTimes
    from kstore.log.writing.housekeeping import Housekeeping

logger = logging.getLogger("kstore")


class LogDirectory:
    """A log directory that is locked for writing; the `housekeeping.Housekeeper` of the logs in it. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        hurry: Callable[[int], object],
        now: Callable[[], int],
        due_in_appends: Callable[[], int],
        stand_in: Callable[[], object],
        checks: Callable[[checkpoint.Partition, bool], CheckTimes],
    ) -> None:
        """Lock the directory and read its checkpoint files.

        `hurry(ms)` makes the owner of this object call `run_due` within `ms` milliseconds. If no thread can be started,
        `due_in_appends` says when an append should call `stand_in`, which runs the due tasks. `checks` says when
        retention checks a partition.

        Raises `LogLockedError` if a broker, another store or a single log has locked the directory, and `StorageError`
        if the disk fails or a checkpoint file is malformed: its offsets are unknown, so no log here may be opened.
        """
        self.path = path
        self.offline: StorageError | None = None
        self.full: StorageError | None = None  # why the checkpoint files are behind: the disk has no space for them
        self.failures: dict[str, str] = {}
        self.timings = Timings()
        self.watermarks: dict[checkpoint.Partition, int] | None = None  # in a follower: the leader's high watermarks
        self._hurry = hurry
        self._due_in_appends = due_in_appends
        self._stand_in = stand_in
        self._checks = checks
        self._now = now
        self._writing = threading.Lock()
        self._deferring = threading.local()
        self._attending = threading.Lock()
        self._attended = Bell()
        self._owing: dict[Housekeeping, None] = {}
        self._working: Housekeeping | None = None
        self._next_due = NEVER
        fs.make_directories(path)
        self._lock = fs.lock_root(path, shared=False)
        try:
            self._lines = {name: checkpoint.read_offsets(path, name) for name in checkpoint.ROOT_CHECKPOINTS}
            self._changed: set[str] = set()
            self.was_clean = checkpoint.find_clean_marker(path) is not None
            if self.was_clean and (higher := checkpoint.flushed_high_watermarks(path)):
                for partition, offset in higher.items():
                    self._set(checkpoint.RECOVERY_POINTS, partition, offset)
                self._write_changed()
            checkpoint.remove_clean_marker(path)
        except BaseException:
            self._lock.release()
            raise

    # The housekeeper of its logs.

    def attend(self, housekeeping: Housekeeping) -> int:
        """Note that a log has work due, and make sure that `run_due` is called in time.

        Returns when the next append has to call `housekeep`: never, unless no thread can be started.
        """
        due = 0 if housekeeping.roll_to_flush else housekeeping.due_ms
        if due >= NEVER:
            self._owing.pop(housekeeping, None)
            return self._due_in_appends()
        self._owing[housekeeping] = None
        if due < self._next_due:
            self._next_due = due
            self._hurry(max(due - self._now(), 0) if due else 0)
        return self._due_in_appends()

    def housekeep(self, housekeeping: Housekeeping) -> None:
        """Run the due work of one log; without a background thread, of all logs."""
        housekeeping.run_due()
        self._stand_in()
        housekeeping.set_due()

    def checks(self, partition: checkpoint.Partition, *, compacts: bool) -> CheckTimes:
        """Return when the store's retention checks a log."""
        return self._checks(partition, compacts)

    def stop(self, housekeeping: Housekeeping) -> None:
        """Wait for running work on a log, and start no more of it."""
        with self._attending:
            self._owing.pop(housekeeping, None)
        self._attended.wait(lambda: self._working is not housekeeping)
        self._owing.pop(housekeeping, None)

    def run_due(self) -> int | None:
        """Run the due work of all logs here; return the milliseconds until more is due, None if no more is planned.

        If the work of a log fails, the error is logged and kept in `failures`; the work of the other logs continues.
        """
        with suppress(fs.FullDiskError), self.deferring():  # the next pass writes the checkpoint files
            self._next_due = 0  # no log has to ask for an earlier pass during this one
            for housekeeping in list(self._owing):
                if housekeeping.roll_to_flush or housekeeping.due_ms <= self._now():
                    self._run_one(housekeeping)
        due = min((housekeeping.due_ms for housekeeping in list(self._owing)), default=NEVER)
        if any(housekeeping.roll_to_flush for housekeeping in list(self._owing)):
            due = self._now() + (1000 if self.failures else 1)  # a failed flush is retried
        self._next_due = due
        return None if due >= NEVER else max(due - self._now(), 1)

    def _run_one(self, housekeeping: Housekeeping) -> None:
        topic, partition = housekeeping.writer.partition
        try:  # from before the start: an interrupt must not leave `_working` set
            with self._attending:
                if housekeeping not in self._owing:
                    return
                self._working = housekeeping
            housekeeping.run_due()
            self.failures.pop(f"{topic}-{partition}", None)
        except LogClosedError:
            self._owing.pop(housekeeping, None)
        except Exception as error:
            if housekeeping.writer.failure is not None:
                self._owing.pop(housekeeping, None)
            text = f"{type(error).__name__}: {error}"
            if self.failures.get(f"{topic}-{partition}") != text:  # otherwise an earlier pass has logged it
                logger.exception("%s: housekeeping failed", housekeeping.writer.directory)
            self.failures[f"{topic}-{partition}"] = text
        finally:
            if self._working is housekeeping:
                self._working = None
            self._attended.ring()

    # Checkpoints.

    def mark(self, name: str, partition: checkpoint.Partition) -> int | None:
        """Return a partition's line of a checkpoint file."""
        return self._lines[name].get(partition)

    def write_marks(self, housekeeping: Housekeeping, *, keep_start: bool = False) -> None:
        """Write a log's lines into the files, immediately unless this thread is `deferring`."""
        with self._writing:
            self._note(housekeeping, keep_start)
            if not getattr(self._deferring, "on", False):
                self._write_changed()

    def first_dirty(self, partition: checkpoint.Partition) -> int | None:
        """Return a partition's line of the cleaner's checkpoint; None if there is none."""
        return self.mark(checkpoint.CLEANER_OFFSETS, partition)

    def write_first_dirty(self, partition: checkpoint.Partition, offset: int | None) -> None:
        """Write a partition's line of the cleaner's checkpoint into the file, or remove it (None)."""
        with self._writing:
            self._set(checkpoint.CLEANER_OFFSETS, partition, offset)
            self._write_changed()

    def keep_first_dirty(self, partitions: Container[checkpoint.Partition]) -> None:
        """Remove all other partitions' lines from the cleaner's checkpoint, when it is next written (SEMANTICS 7.7)."""
        with self._writing:
            for partition in list(self._lines[checkpoint.CLEANER_OFFSETS]):
                if partition not in partitions:
                    self._set(checkpoint.CLEANER_OFFSETS, partition, None)

    @contextmanager
    def deferring(self, *, write: bool = True) -> Iterator[None]:
        """Collect the lines that this thread writes during the block; at the end of the block, write each file once.

        If `write` is false, the lines wait for the next write.
        """
        self._deferring.on = True
        try:
            yield
        finally:
            self._deferring.on = False
            if write:
                with self._writing:
                    self._write_changed()

    def write_all_marks(self, all_housekeeping: Iterable[Housekeeping]) -> None:
        """Write the changed recovery points and log start offsets of these logs (SEMANTICS 12.7, 11.12)."""
        all_housekeeping = [housekeeping for housekeeping in all_housekeeping if housekeeping.writer.failure is None]
        for housekeeping in all_housekeeping:
            with suppress(LogClosedError):
                try:
                    housekeeping.flush_indexes()
                except StorageError as error:
                    if not error.is_full:
                        raise
                    # This log refuses writes from now on; the others continue.
                    logger.error("%s: not flushed: %s", housekeeping.writer.directory, error)
        with self._writing:
            for housekeeping in all_housekeeping:
                if housekeeping.writer.failure is None:
                    self._note(housekeeping, False)
            self._write_changed()

    def write_high_watermarks(self, all_housekeeping: Iterable[Housekeeping]) -> None:
        """Write the high watermarks of these logs, which are the log ends or, in gaps, the data ends (SEMANTICS 0.4).

        A follower has the leader's high watermarks, but at most the ends of its own logs (SEMANTICS 10.23).
        """
        with self._writing:
            for housekeeping in all_housekeeping:
                if housekeeping.writer.closed:
                    continue
                key, end = housekeeping.writer.partition, housekeeping.data_end
                if self.watermarks is not None:
                    end = min(end, self.watermarks.get(key, self._lines[checkpoint.HIGH_WATERMARKS].get(key, 0)))
                self._set(checkpoint.HIGH_WATERMARKS, key, end)
            self._write_changed()

    def lower(self, partition: checkpoint.Partition, offset: int) -> None:
        """Lower a recovery point to `offset`, durably, before the log is opened."""
        with self._writing:
            if (self._lines[checkpoint.RECOVERY_POINTS].get(partition) or 0) > offset:
                self._set(checkpoint.RECOVERY_POINTS, partition, offset)
            self._write_changed()

    def bound_high_watermark(self, partition: checkpoint.Partition, end_offset: int) -> None:
        """Lower a high watermark to the end of its log, with the next write of its file."""
        with self._writing:
            self._bound_high_watermark(partition, end_offset)

    def _bound_high_watermark(self, partition: checkpoint.Partition, end_offset: int) -> None:
        if self._lines[checkpoint.HIGH_WATERMARKS].get(partition, 0) > end_offset:
            self._set(checkpoint.HIGH_WATERMARKS, partition, end_offset)

    def write_leader_epochs(self, epochs: Mapping[checkpoint.Partition, int]) -> None:
        """Write the least leader epochs of partitions, durably."""
        with self._writing:
            for partition, epoch in epochs.items():
                self._set(checkpoint.LEADER_EPOCHS, partition, epoch)
            self._write_changed()

    def forget(self, partitions: Iterable[checkpoint.Partition]) -> None:
        """Remove partitions from all files (SEMANTICS 13.8)."""
        with self._writing:
            for partition in partitions:
                for name in self._lines:
                    self._set(name, partition, None)
                if self.watermarks is not None:
                    self.watermarks.pop(partition, None)
            self._write_changed()

    def _note(self, housekeeping: Housekeeping, keep_start: bool) -> None:
        if housekeeping.writer.closed:
            return  # its topic may be deleted and created again: the lines may belong to the next log
        recovery_point, log_start = housekeeping.marks(keep_start)
        self._set(checkpoint.RECOVERY_POINTS, housekeeping.writer.partition, recovery_point)
        self._set(checkpoint.LOG_STARTS, housekeeping.writer.partition, log_start)
        self._bound_high_watermark(housekeeping.writer.partition, housekeeping.data_end)

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
        if self.offline is not None or not self._lock.held:  # without the lock the files may be another store's
            return
        # Recovery points first: the disk must never have a new log start above all data together with the old recovery
        # point.
        for name in sorted(self._changed, key=checkpoint.ROOT_CHECKPOINTS.index):
            try:
                checkpoint.write_offsets(self.path, name, self._lines[name])
            except fs.FullDiskError as error:
                if self.full is None:
                    logger.warning("%s: the checkpoint files are behind until there is room: %s", self.path, error)
                self.full = error
                raise
            self.full = None
            self._changed.discard(name)

    # Going offline and closing.

    def fail(self, error: StorageError) -> None:
        """Take the directory out of service permanently (SEMANTICS 13.9); no error if it is already offline."""
        if self.offline is None:
            what = (
                "the log directory is offline until the store is reopened; its logs that are open can still be read, "
                "the others with mode='r'"
            )
            self.offline = refusal(error, self.path, what)
            logger.error("%s: offline: %s", self.path, self.offline)

    def refuse_if_offline(self) -> None:
        """Raise the error that took the directory out of service, if one did."""
        if self.offline is not None:
            raise refusal(self.offline, self.path, "")

    @property
    def is_locked(self) -> bool:
        return self._lock.held

    def close(self, *, clean: bool) -> None:
        """Write the remaining checkpoints and, if all is `clean`, the marker, then release the lock (SEMANTICS 13.5).

        Idempotent.
        """
        if not self._lock.held:
            return
        try:
            if self.offline is None:
                with self._writing:
                    self._write_changed()
                if clean:
                    checkpoint.write_clean_marker(self.path)
        finally:
            self._lock.release()
