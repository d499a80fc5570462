"""Takes the samples of a log, a store, a replication or a backup. Any thread may take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from kstore.copies.backups.backup import Backup
from kstore.copies.replication.replicate import Replication
from kstore.errors import KStoreError
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.metrics import metric_families as f
from kstore.metrics.metric_families import Sample
from kstore.store.store import Store, group_lags_of, metadata_of, overview_of

Source: TypeAlias = Log | Store | Replication | Backup


def samples_of(source: Source) -> Iterator[Sample]:
    """Yield the current samples of a source; stop when the source is or becomes closed."""
    if not source.closed:
        with suppress(KStoreError):  # it is being closed
            if isinstance(source, Log):
                yield from _of_lone_log(source)
            elif isinstance(source, Store):
                yield from _of_store(source)
            elif isinstance(source, Replication):
                yield from _of_replication(source)
            else:
                yield from _of_backup(source)


def _of_lone_log(log: Log) -> Iterator[Sample]:
    view = HostedLog(log).view
    view.refresh()
    yield from _of_log(log)
    if not isinstance(view, ReadOnlyView):
        timings = view.housekeeping.housekeeper.timings
        yield Sample(f.SYNC, (view.root,), timings.sync.stats())
        yield Sample(f.SYNC_CALLERS, (view.root,), timings.callers.stats())


def _of_log(log: Log) -> Iterator[Sample]:
    """Yield the offsets and the size of a log as its readers know them, without access to the disk."""
    view, place = HostedLog(log).view, (log.topic, str(log.partition))
    segments = view.segments.items
    point = view.recovery_point if isinstance(view, ReadOnlyView) else view.housekeeping.recovery_point
    yield Sample(f.LOG_START, place, view.log_start_offset)
    yield Sample(f.LOG_END, place, view.log_end_offset)
    yield Sample(f.LOG_RECOVERY_POINT, place, point)
    yield Sample(f.LOG_SEGMENTS, place, len(segments))
    yield Sample(f.LOG_SIZE, place, sum(map(view.readable_bytes, segments)))
    if log.config.compacts:
        yield Sample(f.LOG_DIRTY, place, HostedLog(log).dirty_ratio)


def _of_store(store: Store) -> Iterator[Sample]:
    stats = overview_of(store)
    yield Sample(f.STORE_TOPICS, (), stats["topics"])
    yield Sample(f.STORE_PARTITIONS, (), stats["partitions"])
    yield Sample(f.STORE_OPEN_LOGS, (), stats["open_logs"])
    yield Sample(f.STORE_FOLLOWER, (), stats["role"] == "follower")
    for name in stats["refused"]:
        yield Sample(f.LOG_FAILED, _place(name), 1)
    for entry in metadata_of(store).current().entries():
        log = entry.log
        if log is not None and not log.closed:
            with suppress(KStoreError):  # this log is being closed or was deleted
                yield from list(_of_log(log))
    if "offline" in stats:
        yield Sample(f.STORE_FAILURES, (), len(stats["failures"]))
        for path in store.paths:
            yield Sample(f.DIRECTORY_OFFLINE, (path,), path in stats["offline"])
            yield Sample(f.DIRECTORY_FULL, (path,), path in stats["full"])
        for path, seconds in stats["sync_seconds"].items():
            yield Sample(f.SYNC, (path,), seconds)
        for path, callers in stats["sync_callers"].items():
            yield Sample(f.SYNC_CALLERS, (path,), callers)
        for task, seconds in stats["task_seconds"].items():
            yield Sample(f.TASK, (task,), seconds)
        yield Sample(f.CLEANING, (), stats["cleaning_seconds"])
    yield from _of_groups(store)


def _of_groups(store: Store) -> Iterator[Sample]:
    """Yield the lag of each group in each partition of its topics that can be read."""
    for group, lags in group_lags_of(store):
        for each in lags:
            if each.lag is not None:
                yield Sample(f.GROUP_LAG, (group, each.topic, str(each.partition)), each.lag)


def _of_replication(replication: Replication) -> Iterator[Sample]:
    for name, lag in replication.stats()["partitions"].items():
        place = _place(name)
        yield Sample(f.FOLLOWER_FAILED, place, lag.get("failure", "") != "")
        if "lag_records" in lag:
            yield Sample(f.FOLLOWER_LAG, place, lag["lag_records"])
            yield Sample(f.FOLLOWER_LAG_BYTES, place, lag["lag_bytes"])
            yield Sample(f.FOLLOWER_LAG_TIME, place, lag["lag_ms"] / 1000)


def _of_backup(backup: Backup) -> Iterator[Sample]:
    stats = backup.stats()
    for name, lag in stats["partitions"].items():
        yield Sample(f.BACKUP_LAG, _place(name), lag["lag_records"])
    yield Sample(f.BACKUP_ROUNDS, (), stats["rounds"])
    for kind, count in stats["requests"].items():
        yield Sample(f.BACKUP_REQUESTS, (kind,), count)
    yield Sample(f.BACKUP_SENT, (), stats["sent_bytes"])
    yield Sample(f.BACKUP_FAILED, (), stats["failure"] is not None)
    if stats["last_backup_ms"] is not None:
        yield Sample(f.BACKUP_LAST, (), stats["last_backup_ms"] / 1000)


def _place(name: str) -> tuple[str, str]:
    topic, _, partition = name.rpartition("-")
    return topic, partition
