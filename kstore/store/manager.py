"""`LogManager`: the locked directories of a store that writes, the logs open in them, and their housekeeping.

A log is opened when it is first needed. After a crash the opening of the store recovers, in parallel, the logs that
were not closed cleanly (SEMANTICS 8.2). One scheduler runs retention, flushes, checkpoints and deletions with Kafka's
periods (SEMANTICS 13.4), and the cleaner has its own threads. Invariant: a directory gets the marker of a clean
shutdown only if every log in it was closed cleanly (SEMANTICS 13.5).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from copy import copy
from errno import EIO
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kstore.base import times
from kstore.base.helpers import PATIENCE_S, with_helpers
from kstore.base.numbers import NEVER
from kstore.base.weak import weak_method
from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError, LogClosedError, StorageError, UnknownTopicOrPartitionError
from kstore.explained.explanation import CheckTimes
from kstore.files import checkpoint, names
from kstore.files.follower_file import FollowerRole
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.opening import Marks
from kstore.log.segments import recovery
from kstore.log.segments.producer_state import Expiry
from kstore.store.catalog import Entry, is_deleted
from kstore.store.cleaner import CLEANER, Cleaner
from kstore.store.log_directories import Disks
from kstore.store.log_directory import LogDirectory
from kstore.store.metadata import Metadata
from kstore.store.partition_directories import DELETION, PartitionDirectories
from kstore.store.scheduler import Scheduler

if TYPE_CHECKING:
    from kstore.base.stats import StoreStats
    from kstore.log.writing.housekeeping import Housekeeping

logger = logging.getLogger("kstore")

T = TypeVar("T")

FLUSH = "flush"
RETENTION = "retention"
RECOVERY_POINTS = "recovery point checkpoint"
LOG_STARTS = "log start checkpoint"
HIGH_WATERMARKS = "high watermark checkpoint"
LEFTOVERS = "leftovers"
IN_APPENDS = frozenset((FLUSH, RETENTION, RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, DELETION, LEFTOVERS))
"""The tasks that an append may run if there is no background thread: they take no lock that an append may hold."""
_FALLBACK_MS = 60_000  # a task that nothing wakes runs once a minute


class LogManager:
    """The directories of a store, locked for writing, and the logs in them. Thread-safe."""

    def __init__(self, metadata: Metadata, clock: Callable[[], int] | None) -> None:
        """Lock the directories; those that cannot be used are offline.

        Raises `LogLockedError` if another process or log has locked a directory, and `StorageError` if no directory can
        be used.
        """
        checked = times.checked_clock(clock)
        broker = metadata.broker
        self.broker = broker
        self.scheduler = Scheduler(checked)
        self._metadata = metadata
        self.closed = False
        self.failures: dict[str, str] = {}
        self._given_clock = clock  # for the logs: an appender converts the clock's results itself
        self._clock = checked
        self._expiry = Expiry(broker.producer_id_expiration_ms, broker.producer_id_expiration_check_interval_ms)
        self._open: dict[Entry, HostedLog] = {}
        self._distrusted: set[Entry] = set()
        self._not_in_order: set[str] = set()  # the roots in which a log could not be opened, or closed
        self._follows: FollowerRole | None = None
        self._stands_in = False  # whether callers run the due tasks, since no thread could be started
        self.disks = Disks(metadata.paths, self._lock, weak_method(self._fail_logs))
        self.partitions = PartitionDirectories(
            self.disks,
            self.scheduler,
            weak_method(self.now),
            cordoned=broker.cordoned_log_dirs,
            delay_ms=metadata.config.file_delete_delay_ms,
        )
        self.cleaner = Cleaner(metadata, self, clock=checked)
        fs.register(self)

    def _lock(self, root: str) -> LogDirectory:
        stand_in, due = weak_method(self.stand_in), weak_method(self.due_in_appends)
        return LogDirectory(
            root,
            hurry=weak_method(self.wake_flush),
            now=weak_method(self.now),
            due_in_appends=lambda: NEVER if (due_ms := due()) is None else due_ms,
            stand_in=lambda: stand_in(IN_APPENDS),
            checks=weak_method(self.checks),
        )

    def _fail_logs(self, directory: LogDirectory, error: StorageError) -> None:
        """Make the logs in a directory that went offline refuse writes."""
        for entry, hosted in list(self._open.items()):
            if entry.root == directory.path:
                hosted.fail(error)

    def _after_fork(self) -> None:
        """Close the manager in a child process; the logs, locks and the scheduler have their own handlers."""
        self.closed = True

    def writing(self) -> LogManager:
        """Return this manager, for a change of the store; raise `LogClosedError` if the store is closed."""
        self._metadata.refuse_if_closed()
        return self

    def leading(self) -> LogManager:
        """Return this manager, for a client's change; raise as `writing` does, and `NotLeaderError` in a follower."""
        self._metadata.refuse_if_closed()
        self._metadata.refuse_if_follower()
        return self

    def take_role(self, follows: FollowerRole | None) -> None:
        """Make the logs a follower's or (None) a leader's; called before any log is opened or after all are."""
        self._follows = follows
        for directory in self.disks.directories.values():
            directory.watermarks = None if follows is None else {}
        for hosted in self.open_logs:
            with suppress(LogClosedError):
                hosted.follow(follows)

    def now(self) -> int:
        """Return milliseconds since the epoch, by the store's clock."""
        return time.time_ns() // 1_000_000 if self._clock is None else self._clock()

    # Opening logs.

    def recover(self, entries: Iterable[Entry], progress: Callable[[int, int], None] | None) -> None:
        """Open and recover the logs that were not closed cleanly (SEMANTICS 8.9).

        After a clean shutdown only the end of each log is checked: the marker says that no recovery is due, not that
        the files are long enough. `num.recovery.threads.per.data.dir` logs are opened at the same time in each
        directory. If a log cannot be opened, only that log is refused: its entry has the error. If the disk has no
        space for a recovery, the recovery is retried when the log is next needed.
        """
        work: dict[bool, dict[str, list[Entry]]] = {True: {}, False: {}}
        for entry in entries:
            entry.trusted = self.disks.directories[entry.root].was_clean and entry not in self._distrusted
            if entry.failure is None:
                work[entry.trusted].setdefault(entry.root, []).append(entry)
        for _ in self._by_directory(self._recover_one, work[True], patience_s=PATIENCE_S):
            pass
        total = sum(map(len, work[False].values()))
        for done, _ in enumerate(self._by_directory(self._recover_one, work[False], patience_s=PATIENCE_S), 1):
            if progress is not None:
                progress(done, total)

    def distrust(self, entry: Entry, offset: int) -> None:
        """Durably make sure that a log is recovered from `offset` on, because it has new data there."""
        self._distrusted.add(entry)
        self.disks.directories[entry.root].lower(entry.key, offset)

    def _recover_one(self, entry: Entry) -> None:
        directory = self.disks.directories[entry.root]
        recovery_point = directory.mark(checkpoint.RECOVERY_POINTS, entry.key) or 0
        log_start_offset = directory.mark(checkpoint.LOG_STARTS, entry.key) or 0
        try:
            if entry.trusted:
                if not recovery.reaches_its_end(entry.path, recovery_point, log_start_offset):
                    self.log(entry)
                return
            seen = recovery.look(entry.path, recovery_point, log_start_offset)
            if seen.needs_nothing:  # not opened; a clean shutdown makes its high watermark the recovery point
                directory.bound_high_watermark(entry.key, max(recovery_point, log_start_offset))
            else:
                self.log(entry, seen)
        except fs.FullDiskError as error:
            logger.error("%s: not opened for want of room: %s", entry.path, error)
        except KStoreError as error:
            entry.failure = error
            logger.error("%s: refused: %s", entry.path, error)

    def _by_directory(
        self, act: Callable[[Entry], T], work: dict[str, list[Entry]], *, patience_s: float = 0.0
    ) -> Iterator[T]:
        """Call `act` with many partitions, in parallel by directory; yield the results as they come."""
        at_once = self.broker.num_recovery_threads_per_data_dir
        return with_helpers(act, work.values(), at_once, "kstore-logs", patience_s=patience_s)

    def log(self, entry: Entry, seen: recovery.Seen | None = None) -> Log:
        """Return the open log of a partition, opened if necessary; `seen` is the result of a check of its directory.

        Raises the error that prevented an earlier opening, and `StorageError` if the directory is offline.
        """
        log = entry.log
        if log is not None and not log.closed:
            return log
        with entry.opening:
            log = entry.log
            if log is not None and not log.closed:
                return log
            if self.closed:
                self._metadata.refuse_if_closed()
                raise LogClosedError("the store is closed")
            if entry.failure is not None:
                raise copy(entry.failure)  # a copy: an append adds to it which batches it has stored
            directory = self.disks.directories[entry.root]
            directory.refuse_if_offline()
            try:
                hosted = self._open_hosted(entry, directory, seen)
            except fs.FullDiskError as error:
                entry.waits = error
                raise
            except BaseException as error:
                self._not_in_order.add(entry.root)
                if isinstance(error, CorruptRecordError):
                    entry.failure = error
                elif isinstance(error, StorageError):
                    entry.waits = error
                raise
            entry.trusted, entry.waits = False, None
            entry.log = hosted.log
            self._open[entry] = hosted
            return hosted.log

    def _open_hosted(self, entry: Entry, directory: LogDirectory, seen: recovery.Seen | None) -> HostedLog:
        leader_epoch = directory.mark(checkpoint.LEADER_EPOCHS, entry.key)
        return HostedLog.open(
            entry.path,
            self._metadata.config_of(entry.topic),
            housekeeper=directory,
            clock=self._given_clock,
            marks=Marks(
                directory.mark(checkpoint.RECOVERY_POINTS, entry.key) or 0,
                directory.mark(checkpoint.LOG_STARTS, entry.key) or 0,
                entry.trusted,
                -1 if leader_epoch is None else leader_epoch,
            ),
            expiry=self._expiry,
            on_storage_error=partial(weak_method(self.disks.take_offline), directory),
            broker=self.broker,
            follows=self._follows,
            seen=seen,
        )

    @property
    def open_logs(self) -> list[HostedLog]:
        return [hosted for hosted in list(self._open.values()) if not hosted.log.closed]

    def _all_housekeeping(self, directory: LogDirectory) -> list[Housekeeping]:
        found = []
        for entry, hosted in list(self._open.items()):
            if entry.root == directory.path and not hosted.log.closed:
                try:
                    found.append(hosted.writer.housekeeping)
                except LogClosedError:  # closed just now
                    continue
        return found

    # Housekeeping (SEMANTICS 13.4).

    def schedule(self, *, background: bool) -> None:
        """Schedule the tasks, and with `background` start a thread that runs them."""
        broker, scheduler = self.broker, self.scheduler
        delay = broker.log_initial_task_delay_ms
        scheduler.every(FLUSH, weak_method(self._flush_due), _FALLBACK_MS, 0)
        scheduler.every(DELETION, weak_method(self.partitions.remove_due), _FALLBACK_MS, 0)
        scheduler.every(RETENTION, weak_method(self._retain), broker.log_retention_check_interval_ms, delay)
        scheduler.every(
            RECOVERY_POINTS, weak_method(self._checkpoint), broker.log_flush_offset_checkpoint_interval_ms, delay
        )
        scheduler.every(
            LOG_STARTS, weak_method(self._checkpoint), broker.log_flush_start_offset_checkpoint_interval_ms, delay
        )
        scheduler.once(LEFTOVERS, weak_method(self._clear_leftovers), delay)
        interval = broker.replica_high_watermark_checkpoint_interval_ms
        scheduler.every(HIGH_WATERMARKS, weak_method(self._checkpoint_high_watermarks), interval, interval)
        self.cleaner.start(scheduler, background=background, delay_ms=delay)
        if background and not scheduler.start():
            self._stand_in_from_now_on(True)

    def run_due(self) -> None:
        """Run the tasks that are due by the clock, in this thread."""
        self.scheduler.run_due()
        self.cleaner.run_due()

    def checks(self, partition: checkpoint.Partition, compacts: bool) -> CheckTimes:
        """Return when retention next checks a log: by its task, or after a pass of the cleaner (SEMANTICS 6.18)."""
        if compacts and self.cleaner.threads:
            schedule = {**self.scheduler.schedule, **self.cleaner.schedule}
            return CheckTimes("cleaner", schedule.get(CLEANER), max(self.broker.log_cleaner_backoff_ms, 1))
        interval_ms = self.broker.log_retention_check_interval_ms
        return CheckTimes("store", self.scheduler.schedule.get(RETENTION), interval_ms)

    # Without a thread.

    def _stand_in_from_now_on(self, stands_in: bool) -> None:
        self._stands_in = stands_in
        for hosted in self.open_logs:
            with suppress(LogClosedError):
                hosted.writer.housekeeping.set_due()

    def due_in_appends(self) -> int:
        """Return when an append has a task to run: never, unless no background thread could be started."""
        return self.scheduler.due_among(IN_APPENDS) if self._stands_in else NEVER

    def stand_in(self, names: Container[str] | None = None) -> None:
        """If no background thread could be started, try again; if that fails, run the due tasks with these `names`.

        Without names the calling thread must hold no lock of the store.
        """
        if not self._stands_in or self.scheduler.due_among(names) > self.now():
            return
        if self.scheduler.start():
            self._stand_in_from_now_on(False)
        else:
            self.scheduler.run_due(names)

    def wake_flush(self, delay_ms: int) -> None:
        """Run the logs' due work within `delay_ms`."""
        self.scheduler.hurry(FLUSH, delay_ms)

    def _flush_due(self) -> int | None:
        waits = [
            wait
            for directory in self.disks.live()
            if (wait := self.disks.guarded(directory, directory.run_due)) is not None
        ]
        return min(waits, default=None)

    def _checkpoint(self) -> None:
        for directory in self.disks.live():
            all_housekeeping = self._all_housekeeping(directory)
            self.disks.guarded(directory, partial(directory.write_all_marks, all_housekeeping))

    def _checkpoint_high_watermarks(self) -> None:
        for directory in self.disks.live():
            all_housekeeping = self._all_housekeeping(directory)
            self.disks.guarded(directory, partial(directory.write_high_watermarks, all_housekeeping))

    def _retain(self) -> None:
        """Run retention on the logs that the cleaner's passes leave out (SEMANTICS 6.17, 6.18)."""
        self.retain(lambda entry: not self.cleaner.retains(entry))

    def retain(self, is_wanted: Callable[[Entry], bool]) -> None:
        """Run retention on the logs of the entries for which `is_wanted` is true."""
        entries = filter(is_wanted, self._metadata.catalog.entries())
        self._each(RETENTION, lambda entry: self._may_retire(entry) and self.log(entry).apply_retention(), entries)

    def _clear_leftovers(self) -> None:
        """Open the logs in which an earlier process left files to be deleted: opening removes them (SEMANTICS 6.15)."""
        entries = self._metadata.catalog.entries()
        self._each(LEFTOVERS, lambda entry: self._has_leftovers(entry) and self.log(entry), entries)

    def _each(self, task: str, act: Callable[[Entry], object], entries: Iterable[Entry]) -> None:
        """Call `act` with each of these entries that is in service; note a failure, and continue with the others."""
        for entry in entries:
            directory = self.disks.directories.get(entry.root)
            if directory is None or directory.offline is not None or entry.failure is not None:
                continue
            name = f"{task} {entry.topic}-{entry.partition}"
            try:
                act(entry)
                self.failures.pop(name, None)
            except LogClosedError:
                pass
            except Exception as error:
                if is_deleted(entry):  # during the call
                    self.failures.pop(name, None)
                    continue
                if self.note(name, error):
                    logger.exception("%s: %s failed", entry.path, task)

    def note(self, name: str, error: Exception) -> bool:
        """Keep a failure for `stats`; return whether to log it, because it differs from that of the last pass."""
        text = f"{type(error).__name__}: {error}"
        before, self.failures[name] = self.failures.get(name), text
        return before != text

    @staticmethod
    def _has_leftovers(entry: Entry) -> bool:
        return entry.log is None and any(name.endswith(names.DELETED) for name in fs.listdir(entry.path))

    def _may_retire(self, entry: Entry) -> bool:
        """Return whether retention may delete from a log; a log that is not open is opened read-only to check."""
        if entry.log is not None and not entry.log.closed:
            return True
        config = self._metadata.config_of(entry.topic)
        by_rule = config.deletes and (config.retention_ms >= 0 or config.retention_bytes >= 0)
        if not by_rule and not self.disks.directories[entry.root].mark(checkpoint.LOG_STARTS, entry.key):
            return False
        with Log.open(entry.path, "r", config=config, clock=self._clock) as log:
            return bool(log.plan_retention())

    def flush(self) -> None:
        """Flush every log that has unflushed data; raise the first error after all were tried."""
        first: KStoreError | None = None
        for hosted in self.open_logs:
            try:
                housekeeping = hosted.writer.housekeeping
                if housekeeping.owes_anything:
                    housekeeping.flush()
            except LogClosedError:  # closed just now: it was flushed, or deleted
                continue
            except KStoreError as error:
                first = first or error
        if first is not None:
            raise first

    def add_stats(self, stats: StoreStats) -> None:
        """Add the statistics that only a store that writes has."""
        in_tasks = {**self.scheduler.failures, **self.cleaner.failures}
        failures = {name: failure.error for name, failure in in_tasks.items()}
        for directory in self.disks.directories.values():
            failures |= {f"{FLUSH} {name}": text for name, text in directory.failures.items()}
        full = {root: str(error) for root in self.disks.roots if (error := self.full(root)) is not None}
        timings = {root: directory.timings for root, directory in self.disks.directories.items()}
        stats["offline"] = self.disks.failures()
        stats["full"] = full
        stats["failures"] = failures | self.failures
        stats["tasks"] = {**self.scheduler.schedule, **self.cleaner.schedule}
        stats["to_be_removed"] = self.partitions.to_be_removed
        stats["sync_seconds"] = {root: timing.sync.stats() for root, timing in timings.items()}
        stats["sync_callers"] = {root: timing.callers.stats() for root, timing in timings.items()}
        stats["task_seconds"] = {name: seconds.stats() for name, seconds in self.scheduler.seconds.items()}
        stats["cleaning_seconds"] = self.cleaner.seconds.stats()

    def full(self, root: str) -> StorageError | None:
        """Return why writes in a directory wait for disk space, or None if no write waits."""
        found = [self.disks.directories[root].full]
        for entry, hosted in list(self._open.items()):
            if entry.root == root and not hosted.log.closed:
                with suppress(LogClosedError):  # closed just now
                    found.append(hosted.writer.full)
        return next((error for error in found if error is not None), None)

    def delete(self, entries: Iterable[Entry], *, at_once: bool = False) -> bool:
        """Close the logs of partitions, rename their directories durably, and remove these later (SEMANTICS 6.16).

        Returns whether all were renamed. If a log directory is offline or fails, an opening that can use it deletes its
        partitions. In a full log directory, and with `at_once`, the renamed directories are removed now to make space.
        May be repeated after an interrupt.
        """
        entries = list(entries)
        full = [root for root in self.disks.roots if at_once or self.full(root) is not None]
        for entry in entries:
            with entry.opening:
                hosted, entry.log = self._open.pop(entry, None), None
                entry.failure = UnknownTopicOrPartitionError(f"{entry.topic}-{entry.partition} has been deleted")
                if hosted is not None:
                    hosted.abandon()
            gone = f" {entry.topic}-{entry.partition}"
            for name in [name for name in self.failures if name.endswith(gone)]:
                self.failures.pop(name, None)
        return self.partitions.delete(entries, at_once=full)

    # Closing (SEMANTICS 13.5).

    def stop(self) -> None:
        """Start no more housekeeping, and wait for the running tasks."""
        self._stands_in = False
        self.cleaner.stop()
        self.scheduler.stop()

    def abandon(self) -> None:
        """Release the locks, and leave all else as if the process had died."""
        self.stop()
        self.closed = True
        for hosted in self.open_logs:
            hosted.abandon()
        self.disks.release()

    def close(self) -> None:
        """Close every log, write the checkpoints, write the markers of a clean shutdown, release the locks. Idempotent.

        Raises the first error after doing all that is possible. Called again after an interrupt, it does the rest.
        """
        if not self.disks.are_locked:
            return
        self.stop()
        self.closed = True
        self._checkpoint_high_watermarks()
        entries = self._metadata.catalog.entries()
        errors: list[Exception] = []
        work: dict[str, list[Entry]] = {}
        for entry in list(self._open):
            work.setdefault(entry.root, []).append(entry)
        errors += [error for error in self._by_directory(self._close_one, work) if error is not None]
        refused = {entry.root for entry in entries if entry.failure is not None or entry.waits is not None}
        refused |= self._not_in_order
        for root, directory in self.disks.directories.items():
            try:
                directory.close(clean=root not in refused)
            except Exception as error:  # the other directories' locks are released all the same
                errors.append(error)
        if errors:
            raise _as_kstore_error(errors[0])

    def _close_one(self, entry: Entry) -> Exception | None:
        with entry.opening:
            log = entry.log
            if log is None or log.closed:
                return None
            failed: Exception | None = log.failed
            if failed is not None:
                self._not_in_order.add(entry.root)
            try:
                with self.disks.directories[entry.root].deferring(write=False):
                    log.close()
                return failed
            except Exception as error:  # the other logs are closed all the same
                self._not_in_order.add(entry.root)
                logger.error("%s: not closed cleanly: %s", entry.path, error)
                return error
            except BaseException:  # an interrupt during the close: the log may count as closed by now
                self._not_in_order.add(entry.root)
                raise


def _as_kstore_error(error: Exception) -> KStoreError:
    """Return a `KStoreError` unchanged; wrap any other error in a `StorageError`."""
    if isinstance(error, KStoreError):
        return error
    made = StorageError(EIO, f"not closed cleanly: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
