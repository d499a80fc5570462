"""The types of the results of `stats`: plain dictionaries of texts and numbers, fit for JSON (docs/metrics.md)."""

from __future__ import annotations

from typing import TypedDict


class HistogramStats(TypedDict):
    """A histogram of durations or sizes, since the log or the store was opened."""

    count: int
    """The number of values."""
    sum: float
    """The sum of the values."""
    buckets: list[list[float]]
    """Pairs of a bound and the number of values at or below it, by rising bounds."""


class CompactionStateStats(TypedDict, total=False):
    """The state of the compaction of one log."""

    size_bytes: int
    """The size of the batches in all `.log` files."""
    first_dirty_offset: int
    """The offset below which the log is cleaned; -1 if `cleanup.policy` does not include `compact`."""
    dirty_ratio: float
    """The cleanable bytes divided by the clean and cleanable bytes."""
    compacted_ms: int
    """The end of the last compaction since the log was opened, in milliseconds since the epoch; -1 if none."""
    compacted_records_before: int
    """The number of records that the last compaction read."""
    compacted_records_after: int
    """The number of records that the last compaction kept."""
    compaction_failure: str
    """The error of the last compaction since the log was opened; "" if it did not fail."""
    error: str
    """The error if the state of the log cannot be read; all other keys are then missing."""


class LogStats(TypedDict):
    """The result of `Log.stats`."""

    path: str
    """The partition's directory."""
    mode: str
    """The mode in which the log was opened: "a" or "r"."""
    log_start_offset: int
    """The lowest offset that can be read."""
    log_end_offset: int
    """The offset of the next record. A truncation lowers it."""
    recovery_point: int
    """The offset below which a power failure loses nothing; in mode "r" an older one, from the checkpoint file."""
    segments: int
    """The number of segments, including the active one."""
    size_bytes: int
    """The size of the batches in all `.log` files."""
    offset_index_entries: int
    """The number of entries in all `.index` files."""
    time_index_entries: int
    """The number of entries in all `.timeindex` files."""
    full: str
    """The error of the last write if the disk was full; "" otherwise, and after the next successful write."""
    libraries: dict[str, str]
    """The library of each compression type, with its version. It does not change."""
    first_dirty_offset: int
    """The offset below which the log is cleaned; -1 if `cleanup.policy` does not include `compact`."""
    dirty_ratio: float
    """The cleanable bytes divided by the clean and cleanable bytes."""
    compacted_ms: int
    """The end of the last compaction since the log was opened, in milliseconds since the epoch; -1 if none."""
    compacted_records_before: int
    """The number of records that the last compaction read."""
    compacted_records_after: int
    """The number of records that the last compaction kept."""
    compaction_failure: str
    """The error of the last compaction since the log was opened; "" if it did not fail."""


class AnyStoreStats(TypedDict):
    """The keys of `Store.stats` in both modes."""

    paths: list[str]
    """The log directories."""
    mode: str
    """The mode in which the store was opened: "a" or "r"."""
    role: str
    """Either "leader" or "follower"."""
    source: list[str]
    """The directories of a follower's leader; empty for a leader."""
    topics: int
    """The number of topics, including internal ones."""
    partitions: int
    """The number of partitions of all topics."""
    open_logs: int
    """The number of open partitions."""
    refused: dict[str, str]
    """The partitions that cannot be written, and why, until they are opened again after `kstore repair`."""
    passed_over: list[str]
    """The directories in the log directories that are not partitions."""
    compaction: dict[str, CompactionStateStats]
    """The state of the compaction of each open log that is compacted, by `topic-partition`."""
    group_lag: dict[str, dict[str, int]]
    """The lag of each consumer group in each partition of its topics: the log end offset minus the position.

    Partitions that cannot be read are left out.
    """
    libraries: dict[str, str]
    """The library of each compression type, with its version. It does not change."""


class StoreStats(AnyStoreStats, total=False):
    """The result of `Store.stats`; the keys here exist if the store is open for writing."""

    offline: dict[str, str]
    """The log directories that have failed, and why. Opening the store again restores one that works."""
    full: dict[str, str]
    """The log directories whose disk was full at the last write, and the error, until a write succeeds."""
    failures: dict[str, str]
    """The failed tasks of housekeeping, and why; "retention orders-0" is a task for one partition.

    The next successful run removes the failure for a partition; the failure of a whole task stays until the store is
    closed.
    """
    tasks: dict[str, int]
    """When each task of housekeeping is due next, in milliseconds since the epoch."""
    to_be_removed: list[str]
    """The directories of deleted partitions that wait for `file.delete.delay.ms`."""
    sync_seconds: dict[str, HistogramStats]
    """The durations of successful syncs of logs in seconds, by log directory."""
    sync_callers: dict[str, HistogramStats]
    """The number of calls of `flush` that each sync served (group commit), by log directory."""
    task_seconds: dict[str, HistogramStats]
    """The durations of successful runs of a task in seconds, by task."""
    cleaning_seconds: HistogramStats
    """The durations in seconds of cleanings of one log, without abandoned ones."""


class BackupLag(TypedDict):
    """The state of the backup of one partition."""

    end_offset: int
    """The offset below which every record is backed up."""
    log_end_offset: int
    """The log end offset at the last round."""
    lag_records: int
    """The number of offsets that are not backed up."""
    unflushed_records: int
    """The part of `lag_records` that another process has not flushed, if its files cannot be synced."""


class BackupStats(TypedDict):
    """The result of `Backup.stats`."""

    url: str
    """The backup's URL, without credentials."""
    backup: str
    """The backup's id."""
    generation: int
    """The number of writers that the backup has had."""
    rounds: int
    """The number of rounds since the backup was opened."""
    round: int
    """The number of the last round, counted over all writers."""
    requests: dict[str, int]
    """The number of requests since the backup was opened, by kind: get, put, list, delete."""
    sent_bytes: int
    """The number of bytes sent since the backup was opened."""
    caught_up: bool
    """Whether the backup had every record of the logs after the last round."""
    last_backup_ms: int | None
    """When everything was last backed up since the backup was opened, in milliseconds since the epoch."""
    partitions: dict[str, BackupLag]
    """The state of each partition after the last round, by `topic-partition`."""
    unknown: dict[str, str]
    """The partitions that cannot be backed up, and why."""
    failure: str | None
    """The error of the last round; None if it did not fail."""
    fenced: bool
    """Whether another writer has taken over."""


class TruncationStats(TypedDict):
    """One truncation of a follower."""

    offset: int
    """The first offset that was cut."""
    end_offset: int
    """The log end offset before the truncation."""
    records: int
    """The number of records that were cut."""
    saved: list[str]
    """The files that keep the cut records; none without `save_truncated`."""


class FollowerStats(TypedDict, total=False):
    """The lag of one partition of a follower. Before its first check a partition has only `failure`."""

    log_start_offset: int
    """The follower's log start offset."""
    log_end_offset: int
    """The follower's log end offset."""
    leader_log_end_offset: int
    """The leader's log end offset at the last check."""
    lag_records: int
    """The number of offsets that the follower does not have yet."""
    lag_bytes: int
    """The bytes that the follower does not have yet."""
    lag_ms: int
    """The milliseconds since the follower last had all records; 0 if it has them."""
    truncations: list[TruncationStats]
    """The truncations since the replication was started."""
    failure: str
    """Why the partition is not copied; "" if it is."""


class ReplicationStats(TypedDict):
    """The result of `Replication.stats`."""

    source: str
    """Either "followed" (a process writes it), "no writer" or "gone"."""
    source_paths: list[str]
    """The leader's directories."""
    target_paths: list[str]
    """The follower's directories."""
    following: bool
    """Whether a thread follows the leader."""
    failure: str
    """Why copying has stopped; "" if it has not."""
    partitions: dict[str, FollowerStats]
    """The lag of each partition, by `topic-partition`."""
    failures: dict[str, str]
    """The topics that are not copied, and why."""
