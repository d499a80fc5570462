"""What a store that writes keeps going: its directories, the logs that are open in them, and when what is due.

Logs are opened when they are first needed; at an opening after a crash those that were not left in order are recovered
at once, in parallel (SEMANTICS.md 8.2). One scheduler does retention, flushes, checkpoints and deletions with Kafka's
periods (13.4). The hardest rule: a directory is marked as cleanly left only if every log in it is (13.5).
"""

from __future__ import annotations

import logging
import os
import stat
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import EEXIST
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kstore import checkpoint, fs, names, recovery
from kstore.brokerconfig import BrokerConfig
from kstore.catalog import Catalog, Entry, is_deleted
from kstore.config import LogConfig
from kstore.errors import (
    KStoreError,
    LogClosedError,
    LogLockedError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.log import Log
from kstore.logdir import LogDirectory
from kstore.placement import EVERY, spread
from kstore.producer import Expiry
from kstore.scheduler import Scheduler

if TYPE_CHECKING:
    from kstore.upkeep import Upkeep

logger = logging.getLogger("kstore")

T = TypeVar("T")

FLUSH = "flush"
RETENTION = "retention"
RECOVERY_POINTS = "recovery point checkpoint"
LOG_STARTS = "log start checkpoint"
HIGH_WATERMARKS = "high watermark checkpoint"
DELETION = "deletion"
LEFTOVERS = "leftovers"
_LOOK_MS = 60_000  # what has not hurried a task is looked at this often


class Keeper:
    """The directories of a store, held for writing, and the logs in them. Thread-safe."""

    def __init__(
        self,
        roots: Sequence[str],
        broker: BrokerConfig,
        clock: Callable[[], int] | None,
        config_of: Callable[[str], LogConfig],
        file_delete_delay_ms: int,
    ) -> None:
        """Take the directories; those that cannot be had are offline, unless none can.

        Raises `LogLockedError` for one that somebody else has, and `StorageError` when there is none to use.
        """
        self.broker = broker
        self.scheduler = Scheduler(clock)
        self.closed = False
        self.failures: dict[str, str] = {}
        self._clock = clock
        self._config_of = config_of
        self._file_delete_delay_ms = file_delete_delay_ms
        self._expiry = Expiry(broker.producer_id_expiration_ms, broker.producer_id_expiration_check_interval_ms)
        self._doomed: list[tuple[int, str]] = []
        self._open: dict[Entry, Log] = {}
        self._distrusted: set[Entry] = set()
        self.offline: dict[str, StorageError] = {}
        self.directories: dict[str, LogDirectory] = {}
        hurry, now = weakref.WeakMethod(self.hurry_flush), self.now
        try:
            for root in roots:
                self._take(root, lambda ms: (call := hurry()) is not None and call(ms), weakly(now))
            if not self.directories:
                raise next(iter(self.offline.values()))
        except BaseException:
            self._release()
            raise

    def _take(self, root: str, hurry: Callable[[int], object], now: Callable[[], int]) -> None:
        try:
            self.directories[root] = LogDirectory(root, hurry=hurry, now=now)
        except LogLockedError:
            raise
        except StorageError as error:
            logger.error("%s: offline: %s", root, error)
            self.offline[root] = error

    def _release(self) -> None:
        for directory in self.directories.values():
            directory.close(clean=False)

    def now(self) -> int:
        """Milliseconds since the epoch, by the store's clock."""
        return time.time_ns() // 1_000_000 if self._clock is None else self._clock()

    @property
    def roots(self) -> list[str]:
        """The directories that are in service."""
        return [directory.path for directory in self._live()]

    # Opening logs.

    def recover(self, entries: Iterable[Entry], progress: Callable[[int, int], None] | None) -> None:
        """Open the logs that no clean shutdown left in order, and with them do what recovery does (8.9).

        As many at a time for each directory as `num.recovery.threads.per.data.dir` says. What cannot be opened is
        refused alone: its entry has the error.
        """
        work: dict[str, list[Entry]] = {}
        for entry in entries:
            entry.trusted = self.directories[entry.root].was_clean and entry not in self._distrusted
            if not entry.trusted and entry.failure is None:
                work.setdefault(entry.root, []).append(entry)
        total = sum(map(len, work.values()))
        for done, _ in enumerate(self._in_parallel(self._recover_one, work), 1):
            if progress is not None:
                progress(done, total)

    def distrust(self, entry: Entry, offset: int) -> None:
        """Have a log recovered from `offset` on, durably said: what stands there is new."""
        self._distrusted.add(entry)
        self.directories[entry.root].lower(entry.key, offset)

    def _recover_one(self, entry: Entry) -> None:
        recovery_point = self.directories[entry.root].mark(checkpoint.RECOVERY_POINTS, entry.key) or 0
        try:
            if not recovery.needs_nothing(entry.path, recovery_point):
                self.log(entry)
        except KStoreError as error:
            entry.failure = error
            logger.error("%s: refused: %s", entry.path, error)

    def _in_parallel(self, act: Callable[[Entry], T], work: dict[str, list[Entry]]) -> Iterator[T]:
        """Do something to many partitions, with threads of its own for each directory; the results as they come."""
        if sum(map(len, work.values())) < 2:
            yield from (act(entry) for entries in work.values() for entry in entries)
            return
        threads = self.broker.num_recovery_threads_per_data_dir
        pools = [ThreadPoolExecutor(threads, thread_name_prefix="kstore-logs") for _ in work]
        try:
            for results in [pool.map(act, entries) for pool, entries in zip(pools, work.values(), strict=True)]:
                yield from results
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)

    def log(self, entry: Entry) -> Log:
        """The open log of a partition, opened if it is not.

        Raises what kept it from being opened before, and `StorageError` in a directory that is offline.
        """
        log = entry.log
        if log is not None and not log.closed:
            return log
        with entry.opening:
            log = entry.log
            if log is not None and not log.closed:
                return log
            if self.closed:
                raise LogClosedError("the store is closed")
            if entry.failure is not None:
                raise entry.failure
            directory = self.directories[entry.root]
            directory.refuse_if_offline()
            log = Log.open_hosted(
                entry.path,
                self._config_of(entry.topic),
                host=directory,
                clock=self._clock,
                recovery_point=directory.mark(checkpoint.RECOVERY_POINTS, entry.key) or 0,
                log_start_offset=directory.mark(checkpoint.LOG_STARTS, entry.key) or 0,
                marked_clean=entry.trusted,
                expiry=self._expiry,
                on_storage_error=partial(weakly(self.take_offline), directory),
            )
            entry.trusted = False
            entry.log = log
            self._open[entry] = log
            return log

    @property
    def open_logs(self) -> list[Log]:
        """The logs that are open."""
        return [log for log in list(self._open.values()) if not log.closed]

    def _upkeeps(self, directory: LogDirectory) -> list[Upkeep]:
        found = []
        for entry, log in list(self._open.items()):
            if entry.root == directory.path and not log.closed:
                try:
                    found.append(log.upkeep)
                except LogClosedError:  # just now
                    continue
        return found

    # Housekeeping (13.4).

    def schedule(self, catalog: Catalog, *, background: bool) -> None:
        """Set the tasks, and with `background` have a thread do them."""
        broker, scheduler = self.broker, self.scheduler
        delay = broker.log_initial_task_delay_ms
        scheduler.every(FLUSH, weakly(self._flush_due), _LOOK_MS, 0)
        scheduler.every(DELETION, weakly(self._remove_due), _LOOK_MS, 0)
        retain = weakly(self._retain)
        scheduler.every(RETENTION, lambda: retain(catalog), broker.log_retention_check_interval_ms, delay)
        scheduler.every(
            RECOVERY_POINTS, weakly(self._checkpoint), broker.log_flush_offset_checkpoint_interval_ms, delay
        )
        scheduler.every(
            LOG_STARTS, weakly(self._checkpoint), broker.log_flush_start_offset_checkpoint_interval_ms, delay
        )
        clear = weakly(self._clear_leftovers)
        scheduler.once(LEFTOVERS, lambda: clear(catalog), delay)
        interval = broker.replica_high_watermark_checkpoint_interval_ms
        scheduler.every(HIGH_WATERMARKS, weakly(self._checkpoint_high_watermarks), interval, interval)
        if background:
            scheduler.start()

    def hurry_flush(self, delay_ms: int) -> None:
        """Have what is due of the logs looked at in so many milliseconds."""
        self.scheduler.hurry(FLUSH, delay_ms)

    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.offline is None]

    def _flush_due(self) -> int | None:
        waits = [
            wait for directory in self._live() if (wait := self._guarded(directory, directory.run_due)) is not None
        ]
        return min(waits, default=None)

    def _checkpoint(self) -> None:
        for directory in self._live():
            upkeeps = self._upkeeps(directory)
            self._guarded(directory, partial(directory.write_all_marks, upkeeps))

    def _checkpoint_high_watermarks(self) -> None:
        for directory in self._live():
            upkeeps = self._upkeeps(directory)
            self._guarded(directory, partial(directory.write_high_watermarks, upkeeps))

    def _guarded(self, directory: LogDirectory, act: Callable[[], T]) -> T | None:
        """Do something with a directory's own files; a failing disk takes that directory offline and no other."""
        try:
            return act()
        except StorageError as error:
            self.take_offline(directory, error)
            return None

    def take_offline(self, directory: LogDirectory, error: StorageError) -> None:
        """Take a directory out of service (13.9): its logs refuse to be written from now on."""
        directory.fail(error)
        assert directory.offline is not None
        for entry, log in list(self._open.items()):
            if entry.root == directory.path:
                log.fail(directory.offline)

    def _retain(self, catalog: Catalog) -> None:
        """One pass of retention over all logs (6.17)."""
        self._each(RETENTION, catalog, lambda entry: self._may_retire(entry) and self.log(entry).apply_retention())

    def _clear_leftovers(self, catalog: Catalog) -> None:
        """Open the logs in which an earlier life left files to be deleted: that removes them (6.15)."""
        self._each(LEFTOVERS, catalog, lambda entry: self._has_leftovers(entry) and self.log(entry))

    def _each(self, what: str, catalog: Catalog, act: Callable[[Entry], object]) -> None:
        """Do something to every log that is in service; one that fails is noted and stops no other."""
        for entry in catalog.entries():
            directory = self.directories.get(entry.root)
            if directory is None or directory.offline is not None or entry.failure is not None:
                continue
            name = f"{what} {entry.topic}-{entry.partition}"
            try:
                act(entry)
                self.failures.pop(name, None)
            except LogClosedError:
                pass
            except Exception as error:
                if is_deleted(entry):  # while we were at it
                    self.failures.pop(name, None)
                    continue
                self.failures[name] = f"{type(error).__name__}: {error}"
                logger.exception("%s: %s failed", entry.path, what)

    @staticmethod
    def _has_leftovers(entry: Entry) -> bool:
        return entry.log is None and any(name.endswith(names.DELETED) for name in fs.listdir(entry.path))

    def _may_retire(self, entry: Entry) -> bool:
        """Whether retention has anything to do with a log; one that is not open is looked at from outside first."""
        if entry.log is not None and not entry.log.closed:
            return True
        config = self._config_of(entry.topic)
        by_rule = config.deletes and (config.retention_ms >= 0 or config.retention_bytes >= 0)
        if not by_rule and not self.directories[entry.root].mark(checkpoint.LOG_STARTS, entry.key):
            return False
        with Log.open(entry.path, "r", config=config, clock=self._clock) as log:
            return bool(log.plan_retention())

    def flush(self) -> None:
        """Flush every log that has something to flush."""
        first: KStoreError | None = None
        for log in self.open_logs:
            try:
                upkeep = log.upkeep
                if upkeep.owes_anything:
                    upkeep.flush()
            except LogClosedError:  # just now: it was flushed, or deleted
                continue
            except KStoreError as error:
                first = first or error
        if first is not None:
            raise first

    def stats(self) -> dict[str, Any]:
        """What `Store.stats` says of a store that writes."""
        failures = {name: failure.error for name, failure in self.scheduler.failures.items()}
        for directory in self.directories.values():
            failures |= {f"{FLUSH} {name}": text for name, text in directory.failures.items()}
        offline = {root: str(error) for root, error in self.offline.items()}
        offline |= {d.path: str(d.offline) for d in self.directories.values() if d.offline is not None}
        return {
            "offline": offline,
            "failures": failures | self.failures,
            "tasks": dict(self.scheduler.schedule),
            "to_be_removed": [path for _, path in self._doomed],
        }

    # Making and deleting partitions.

    def _roots_in_service(self) -> list[str]:
        """The directories that can be written; the error of the first if there is none."""
        roots = self.roots
        if not roots:
            for directory in self.directories.values():
                directory.refuse_if_offline()
        return roots

    def on_each_root(self, act: Callable[[list[str]], T]) -> T:
        """Do something in all directories; one that fails goes offline, and it is done again in the others."""
        while True:
            roots = self._roots_in_service()
            try:
                return act(roots)
            except StorageError as error:
                failed = [root for root in roots if str(error.filename).startswith(root + os.sep)]
                if not failed:
                    raise
                self.take_offline(self.directories[max(failed, key=len)], error)

    def make(self, topic: str, numbers: Iterable[int], topic_id: uuid.UUID, known: Iterable[Entry]) -> list[Entry]:
        """Make the directories of new partitions, durably, each with its topic's id (13.7) and no stale mark.

        Each goes to the directory that has the fewest of the `known` partitions and is not cordoned; one that fails
        goes offline, and what was to be in it goes elsewhere (13.3). Raises `StorageError` when none is left.
        """
        cordoned = [each if each == EVERY else os.path.realpath(each) for each in self.broker.cordoned_log_dirs]
        counts = Counter(entry.root for entry in known)
        made: list[Entry] = []
        while numbers:
            numbers = list(numbers)
            roots = spread(len(numbers), self._roots_in_service(), counts, cordoned=cordoned)
            by_root: dict[str, list[Entry]] = {}
            for number, root in zip(numbers, roots, strict=True):
                by_root.setdefault(root, []).append(Entry(topic, number, root))
            numbers = []
            for root, entries in by_root.items():
                try:
                    self._make_in(self.directories[root], entries, topic_id)
                except StorageError as error:
                    self._unmake(entries)
                    self.take_offline(self.directories[root], error)
                    numbers += [entry.partition for entry in entries]
                else:
                    counts[root] += len(entries)
                    made += entries
        return made

    def refuse_files_in_the_way(self, topic: str, numbers: Iterable[int]) -> None:
        """Raise `StorageError` where a file has the name of a partition's directory: the disk is sound, and stays."""
        for root in self._roots_in_service():
            for number in numbers:
                path = f"{root}/{topic}-{number}"
                with suppress(fs.MissingFileError):
                    if not stat.S_ISDIR(fs.stat(path).st_mode):
                        raise StorageError(EEXIST, "a file has the name of the partition's directory", path)

    @staticmethod
    def _make_in(directory: LogDirectory, entries: Sequence[Entry], topic_id: uuid.UUID) -> None:
        directory.forget([entry.key for entry in entries])
        for entry in entries:
            fs.make_directory(entry.path)
        fs.sync_directory(directory.path)
        for entry in entries:
            checkpoint.ensure_partition_metadata(entry.path, topic_id)

    @staticmethod
    def _unmake(entries: Iterable[Entry]) -> None:
        """Take new partitions' directories away again, as far as the disk lets us: each must be in one place alone."""
        for entry in entries:
            with suppress(StorageError):
                fs.remove_tree(entry.path)

    def delete(self, entries: Iterable[Entry]) -> bool:
        """Rename the directories of partitions, durably, and remove them later (6.16); whether that was all of them.

        What is in a directory that is offline, or fails now, has to wait for an opening with it. May be repeated after
        an interrupt.
        """
        by_root: dict[str, list[Entry]] = {}
        for entry in entries:
            by_root.setdefault(entry.root, []).append(entry)
            with entry.opening:
                log, entry.log = self._open.pop(entry, None), None
                entry.failure = UnknownTopicOrPartitionError(f"{entry.topic}-{entry.partition} has been deleted")
                if log is not None:
                    log.abandon()
            gone = f" {entry.topic}-{entry.partition}"
            for name in [name for name in self.failures if name.endswith(gone)]:
                self.failures.pop(name, None)
        for root, group in by_root.items():
            directory = self.directories[root]
            if directory.offline is None:
                self._guarded(directory, partial(self._rename_deleted, directory, group))
        return not self.any_offline

    def _rename_deleted(self, directory: LogDirectory, entries: Sequence[Entry]) -> None:
        for entry in entries:
            path = f"{directory.path}/{names.delete_directory_name(entry.topic, entry.partition)}"
            with suppress(fs.MissingFileError):  # an earlier call came so far
                fs.rename(entry.path, path)
                self.doom(path)
        fs.sync_directory(directory.path)
        directory.forget([entry.key for entry in entries])

    @property
    def any_offline(self) -> bool:
        """Whether there is a directory of which nobody can say what is in it, or do anything about it."""
        return bool(self.offline) or any(directory.offline is not None for directory in self.directories.values())

    def doom(self, path: str) -> None:
        """Remove a renamed partition directory when `file.delete.delay.ms` has passed."""
        self._doomed.append((self.now() + self._file_delete_delay_ms, path))
        self.scheduler.hurry(DELETION, self._file_delete_delay_ms)

    def _remove_due(self) -> int | None:
        now = self.now()
        first: StorageError | None = None
        for doomed in list(self._doomed):
            if doomed[0] <= now:
                try:
                    fs.remove_tree(doomed[1])
                    fs.sync_directory(os.path.dirname(doomed[1]))
                except StorageError as error:  # the others go all the same
                    first = first or error
                else:
                    self._doomed.remove(doomed)
        if first is not None:
            raise first
        return min((at - now for at, _ in self._doomed), default=None)

    # Closing (13.5).

    def give_up(self) -> None:
        """Leave everything as the death of the process would, and give the locks back."""
        self.scheduler.stop()
        self.closed = True
        for log in self.open_logs:
            log.abandon()
        self._release()

    def close(self, entries: Iterable[Entry]) -> None:
        """Close every log, write the checkpoints, mark what was left in order, give the locks back.

        Raises the first error there was, after all that could be done.
        """
        self.scheduler.stop()
        self.closed = True
        self._checkpoint_high_watermarks()
        refused = {entry.root for entry in entries if entry.failure is not None}
        errors: list[KStoreError] = []
        work: dict[str, list[Entry]] = {}
        for entry in list(self._open):
            work.setdefault(entry.root, []).append(entry)
        for root, error in self._in_parallel(self._close_one, work):
            if error is not None:
                refused.add(root)
                errors.append(error)
        for root, directory in self.directories.items():
            try:
                directory.close(clean=root not in refused)
            except KStoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _close_one(self, entry: Entry) -> tuple[str, KStoreError | None]:
        with entry.opening:
            log = entry.log
            if log is None or log.closed:
                return entry.root, None
            try:
                failed = log.failed
                with self.directories[entry.root].deferring(write=False):
                    log.close()
                return entry.root, failed
            except KStoreError as error:
                logger.error("%s: not closed cleanly: %s", entry.path, error)
                return entry.root, error


def weakly(method: Callable[..., T]) -> Callable[..., T]:
    """The bound method without its hold on the object; does nothing when that has gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: object) -> T:
        bound = reference()
        return None if bound is None else bound(*arguments)  # type: ignore[return-value]  # nobody asks then

    return call
