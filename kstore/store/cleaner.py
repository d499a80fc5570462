"""`Cleaner`: decides which logs of a store are cleaned and when, as Kafka's cleaner threads do (SEMANTICS 7.1 to 7.6).

Selects the dirtiest log, has `log.compaction` clean it, and runs retention on the logs whose policy has `compact`.
Invariant: a pass delays nothing else: background passes have their own threads, and closing the store ends a pass
within one chunk of a file.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kstore.base._histogram import Histogram
from kstore.base.numbers import INT_MAX
from kstore.base.weak import weak_method
from kstore.disk import fs
from kstore.errors import KStoreError, LogClosedError
from kstore.files import names
from kstore.log.compaction import passes
from kstore.log.compaction.dirtiness import Dirtiness, survey
from kstore.log.compaction.passes import CleanerLimits
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.writing.cleaning_guard import CleaningAbortedError, State
from kstore.store.catalog import Entry, is_deleted
from kstore.store.cleaner_throttle import Throttle
from kstore.store.scheduler import RUN_SECONDS, Failure, Scheduler

if TYPE_CHECKING:
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.store.log_directories import Disks
    from kstore.store.metadata import Metadata

logger = logging.getLogger("kstore")

CLEANER = "cleaner"
"""The scheduler's task that runs a pass of the cleaner."""

_EXIT_SECONDS = 10.0  # how long the interpreter's exit waits for a cleaning to be aborted
KEY_BYTES = 24  # per key in Kafka's offset map: 16 bytes of hash, 8 of offset (SEMANTICS 7.9)


class Host(Protocol):
    """The part of a `LogManager` that the cleaner uses."""

    disks: Disks
    broker: BrokerConfig
    failures: dict[str, str]

    def now(self) -> int: ...
    def log(self, entry: Entry) -> Log: ...
    def note(self, name: str, error: Exception) -> bool: ...
    def retain(self, is_wanted: Callable[[Entry], bool]) -> None: ...


class Selected(NamedTuple):
    """A log that a thread is about to clean."""

    entry: Entry
    log: Log
    dirtiness: Dirtiness


def limits_of(broker: BrokerConfig, max_batch_bytes: int) -> CleanerLimits:
    """Return the memory limits of one cleaner thread (SEMANTICS 7.9, 7.11, 7.23)."""
    threads = max(broker.log_cleaner_threads, 1)
    slots = min(broker.log_cleaner_dedupe_buffer_size // threads, INT_MAX) // KEY_BYTES
    keys = int(slots * broker.log_cleaner_io_buffer_load_factor)
    io_buffer_bytes = broker.log_cleaner_io_buffer_size // threads // 2
    limits = CleanerLimits(max(keys, 1), max(io_buffer_bytes, 1), max_batch_bytes)
    is_paced = broker.log_cleaner_io_max_bytes_per_second < sys.float_info.max
    return limits._replace(buffers_at_once=1) if is_paced else limits


class Cleaner:
    """The cleaner of a store. Thread-safe; each of its threads cleans one log at a time.

    If a cleaning fails, the manager's `failures` and the log keep the error. The next pass tries the log again; no
    other log is delayed.
    """

    def __init__(self, metadata: Metadata, host: Host, *, clock: Callable[[], int] | None) -> None:
        """`host` is held weakly. `clock` is the store's clock; None is the system's."""
        broker = host.broker
        self.threads = broker.log_cleaner_threads if broker.log_cleaner_enable else 0
        self._metadata = metadata
        self._host = weakref.ref(host)
        self._broker = broker
        self._backoff_ms = max(broker.log_cleaner_backoff_ms, 1)
        self._clock = clock
        self._throttle = Throttle(broker.log_cleaner_io_max_bytes_per_second)
        self._lock = threading.Lock()  # held while a log is selected, never while one is cleaned
        self._in_progress: set[Entry] = set()
        self._one_segment: set[Entry] = set()
        self._schedulers: list[Scheduler] = []
        self._stopping = False
        self.seconds = Histogram(RUN_SECONDS)  # the durations of successful cleanings
        _all.add(self)

    # Running.

    def start(self, shared: Scheduler, *, background: bool, delay_ms: int) -> None:
        """Schedule the passes, the first after `delay_ms`: in the cleaner's threads, or else in `shared`."""
        for _ in range(self.threads if background else 0):
            scheduler = Scheduler(self._clock, name="kstore-cleaner")
            scheduler.every(CLEANER, weak_method(self.run), self._backoff_ms, delay_ms)
            if scheduler.start():
                self._schedulers.append(scheduler)
        if self.threads and not self._schedulers:
            shared.every(CLEANER, weak_method(self.run), self._backoff_ms, delay_ms)

    def run_due(self) -> None:
        """Run the due tasks of the cleaner's own threads in this thread, unless they are running already."""
        for scheduler in list(self._schedulers):
            scheduler.run_due()

    def stop(self, timeout: float | None = None) -> None:
        """Start no more cleanings, abort the running ones, and wait until the cleaner's threads have ended.

        Waits at most `timeout` seconds for each thread.
        """
        self._stopping = True
        self._throttle.stop()
        for scheduler in list(self._schedulers):
            scheduler.stop(timeout)

    @property
    def failures(self) -> Mapping[str, Failure]:
        """The failures in the cleaner's own threads, except failed cleanings of a log."""
        return {name: failure for scheduler in self._schedulers for name, failure in scheduler.failures.items()}

    @property
    def schedule(self) -> Mapping[str, int]:
        """When the next pass is due, if the cleaner has its own threads."""
        due = [due_ms for scheduler in self._schedulers for due_ms in scheduler.schedule.values()]
        return {CLEANER: min(due)} if due else {}

    def run(self) -> int | None:
        """Run one pass: clean the dirtiest log until no log is eligible, then run retention (SEMANTICS 7.5).

        Returns the milliseconds until the next pass. If the cleaning of a log fails, or another thread pauses it, the
        log waits for the next pass.
        """
        host = self._host()
        left: set[Entry] = set()
        while host is not None and not self._stopping:
            selected = self._take(host, left)
            if selected is None:
                host.retain(lambda entry: self.retains(entry) and entry not in self._in_progress)
                return self._backoff_ms
            try:
                if not self._clean(host, selected):
                    left.add(selected.entry)
            finally:
                self._in_progress.discard(selected.entry)
        return None

    def retains(self, entry: Entry) -> bool:
        """Return whether the cleaner's passes run retention on a log: if it is open and its policy has `compact`.

        The retention task handles all other logs (SEMANTICS 6.18).
        """
        if not self.threads or entry.log is None or entry.log.closed:
            return False
        return self._metadata.config_of(entry.topic).compacts

    # Selecting (SEMANTICS 7.2, 7.3).

    def _take(self, host: Host, left: set[Entry]) -> Selected | None:
        """Select the eligible log with the greatest dirty ratio, and mark it as in progress; None if there is none."""
        with self._lock:
            eligible = list(self._eligible(host, left))
            if not eligible:
                return None
            selected = max(eligible, key=lambda one: one.dirtiness.ratio or 0.0)  # of equal ratios, the first
            self._in_progress.add(selected.entry)
            return selected

    def _eligible(self, host: Host, left: set[Entry]) -> Iterable[Selected]:
        now_ms = host.now()
        entries = self._metadata.catalog.entries()
        self._one_segment.intersection_update(entries)
        for entry in entries:
            if self._stopping:
                return
            if entry in left or entry in self._in_progress or entry.failure is not None:
                continue
            directory = host.disks.directories.get(entry.root)
            if directory is None or directory.offline is not None:
                continue
            try:
                config = self._metadata.config_of(entry.topic)
                if not self._metadata.is_compacted(entry.topic) or (log := self._open(host, entry)) is None:
                    continue
                dirtiness = self._survey(log, config, now_ms)
            except LogClosedError:
                continue
            except Exception as error:
                left.add(entry)
                self._failed(host, entry, error)
                continue
            if dirtiness is not None and dirtiness.is_eligible(config.min_cleanable_dirty_ratio):
                yield Selected(entry, log, dirtiness)

    def _open(self, host: Host, entry: Entry) -> Log | None:
        """Return the log of a partition, opened if necessary; None if it is not open and has only one segment."""
        if entry.log is None or entry.log.closed:
            if entry in self._one_segment:
                return None
            kinds = [names.parse_file_name(name) for name in fs.listdir(entry.path)]
            if sum(kind is not None and kind.kind == names.LOG and not kind.state for kind in kinds) < 2:
                self._one_segment.add(entry)  # nothing changes the log while it is closed
                return None
        self._one_segment.discard(entry)
        return host.log(entry)

    def _survey(self, log: Log, config: LogConfig, now_ms: int) -> Dirtiness | None:
        """Return how dirty a log is; None if it is clean, if it is being cleaned or paused, or if it refuses writes.

        If the log's line in the cleaner's checkpoint has an offset outside of the log, the line is rewritten
        immediately.
        """
        writer = HostedLog(log).writer
        if writer.cleaning.state is not State.NONE or writer.failure is not None:
            return None
        housekeeper = writer.housekeeping.housekeeper
        line = housekeeper.first_dirty(writer.partition)
        first_dirty = writer.log_start_offset if line is None else line
        if max(writer.segments.bases[-1], writer.log_start_offset) <= first_dirty <= writer.log_end_offset:
            return None  # no closed segment is dirty, as in most logs at most times
        dirtiness = survey(writer, config, now_ms, line)
        if dirtiness.reset:
            # After retention has moved the start of a log with `compact,delete`, no warning is due (SEMANTICS 7.29).
            if not (config.deletes and line is not None and line < dirtiness.first_dirty_offset):
                logger.warning("%s: %s; cleaning begins at the log start", writer.directory, dirtiness.reset)
            housekeeper.write_first_dirty(writer.partition, dirtiness.first_dirty_offset)
        return dirtiness

    # Cleaning.

    def _clean(self, host: Host, selected: Selected) -> bool:
        """Clean a log; return whether its first dirty offset has moved."""
        entry, log, dirtiness = selected
        try:
            # The next write of the checkpoint drops lines of partitions that are not in this directory (SEMANTICS 7.7).
            hosted = {each.key for each in self._metadata.catalog.entries() if each.root == entry.root}
            host.disks.directories[entry.root].keep_first_dirty(hosted)
            config = self._metadata.config_of(entry.topic)
            limits = self.limits(config.max_message_bytes)
            begun = time.perf_counter()
            stats = passes.compact(HostedLog(log).writer, dirtiness, limits, throttle=self.pace)
        except (CleaningAbortedError, LogClosedError) as error:
            logger.info("%s: the cleaning was given up: %s", entry.path, error)
            return False
        except Exception as error:
            self._failed(host, entry, error)
            return False
        self.seconds.observe(time.perf_counter() - begun)
        host.failures.pop(_name(entry), None)
        logger.info(
            "%s: cleaned from offset %d to %d: %d of %d records stay, %d of %d bytes",
            entry.path,
            dirtiness.first_dirty_offset,
            stats.first_dirty_offset,
            stats.records_after,
            stats.records_before,
            stats.bytes_after,
            stats.bytes_before,
        )
        return stats.first_dirty_offset > dirtiness.first_dirty_offset

    def _failed(self, host: Host, entry: Entry, error: Exception) -> None:
        if is_deleted(entry):
            host.failures.pop(_name(entry), None)
        elif host.note(_name(entry), error):
            logger.error("%s: not cleaned: %s", entry.path, error, exc_info=not isinstance(error, KStoreError))

    def limits(self, max_message_bytes: int) -> CleanerLimits:
        """Return the memory limits of one thread for a log with this `max.message.bytes`."""
        return limits_of(self._broker, max(max_message_bytes, self._metadata.config.max_message_bytes))

    def pace(self, count: int) -> None:
        """Count bytes that were read or written: sleep if they exceed the limit, raise if the store is being closed."""
        if not self._stopping:
            self._throttle(count)
        if self._stopping:
            raise CleaningAbortedError("the store is being closed")


def _name(entry: Entry) -> str:
    return f"{CLEANER} {entry.topic}-{entry.partition}"


_all: weakref.WeakSet[Cleaner] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the threads at the interpreter's exit while they can still run, before the schedulers wait for them."""
    for cleaner in list(_all):
        cleaner.stop(_EXIT_SECONDS)
