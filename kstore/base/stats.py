"""What `stats` answers: plain dictionaries of texts and numbers, fit for JSON. docs/metrics.md has each key."""

from __future__ import annotations

from typing import TypedDict


class HistogramStats(TypedDict):
    """How often something was how long or how large, since the log or the store was opened."""

    count: int
    """How many values there were."""
    sum: float
    """Their sum."""
    buckets: list[list[float]]
    """Pairs of a bound and how many values were at or below it, by rising bounds."""


class CompactionStateStats(TypedDict, total=False):
    """How far the compaction of one log is."""

    size_bytes: int
    """Batches in all `.log` files."""
    first_dirty_offset: int
    """The cleaner has been at all below it; -1 where `cleanup.policy` has not `compact`."""
    dirty_ratio: float
    """The cleanable bytes' share of clean and cleanable ones."""
    compacted_ms: int
    """When the last compaction since the opening ended; -1 without one."""
    compacted_records_before: int
    """How many records that compaction read."""
    compacted_records_after: int
    """How many of them it kept."""
    compaction_failure: str
    """Why the last compaction since the opening failed; "" where it did not."""
    error: str
    """Why the log cannot be looked at; all else is missing then."""


class LogStats(TypedDict):
    """What `Log.stats` answers."""

    path: str
    """The partition's directory."""
    mode: str
    """How it was opened: "a" or "r"."""
    log_start_offset: int
    """The lowest offset that can be read."""
    log_end_offset: int
    """The offset of the next record. A truncation lowers it."""
    recovery_point: int
    """Below it a power failure loses nothing. In mode "r" it is the one in the checkpoint file, which is behind."""
    segments: int
    """How many there are, with the active one."""
    size_bytes: int
    """Batches in all `.log` files."""
    offset_index_entries: int
    """Entries of all `.index` files."""
    time_index_entries: int
    """Entries of all `.timeindex` files."""
    full: str
    """Why the last write failed, if the disk had no room for it; "" else, and once a write has found room."""
    zstd_of_columns: str
    """Which library decompresses zstd. It does not change."""
    first_dirty_offset: int
    """The cleaner has been at all below it; -1 where `cleanup.policy` has not `compact`."""
    dirty_ratio: float
    """The cleanable bytes' share of clean and cleanable ones."""
    compacted_ms: int
    """When the last compaction since the opening ended; -1 without one."""
    compacted_records_before: int
    """How many records that compaction read."""
    compacted_records_after: int
    """How many of them it kept."""
    compaction_failure: str
    """Why the last compaction since the opening failed; "" where it did not."""


class AnyStoreStats(TypedDict):
    """What `Store.stats` answers in both modes."""

    paths: list[str]
    """The log directories."""
    mode: str
    """How it was opened: "a" or "r"."""
    role: str
    """Either "leader" or "follower"."""
    source: list[str]
    """The directories of a follower's leader; empty for a leader."""
    topics: int
    """How many there are, internal ones included."""
    partitions: int
    """How many there are in all topics."""
    open_logs: int
    """How many partitions are open."""
    refused: dict[str, str]
    """The partitions that cannot be written, and why. One that is opened again after `kstore repair` is not here any
    more.
    """
    passed_over: list[str]
    """Directories in the roots that are no partitions."""
    compaction: dict[str, CompactionStateStats]
    """How far the compaction of each open log is that is compacted, by `topic-partition`."""
    zstd_of_columns: str
    """As in `Log.stats()`."""


class StoreStats(AnyStoreStats, total=False):
    """What `Store.stats` answers; the keys here are those of a store that is open for writing."""

    offline: dict[str, str]
    """The log directories that have failed, and why. Opening the store again brings back one that works."""
    full: dict[str, str]
    """Those in which the last write found no room, until one does."""
    failures: dict[str, str]
    """What housekeeping could not do, and why; "retention orders-0" is a task for one partition. Gone when the next
    run works; the failure of a task as a whole stays until the store is closed.
    """
    tasks: dict[str, int]
    """When each task of housekeeping is due next."""
    to_be_removed: list[str]
    """Directories of deleted partitions that wait for `file.delete.delay.ms`."""
    sync_seconds: dict[str, HistogramStats]
    """How long each sync of a log took that did not fail."""
    sync_callers: dict[str, HistogramStats]
    """How many calls of `flush` each sync served (group commit)."""
    task_seconds: dict[str, HistogramStats]
    """How long each run of a task took that did not fail."""
    cleaning_seconds: HistogramStats
    """How long each cleaning of one log took that was not given up."""


class BackupLag(TypedDict):
    """How far the backup of one partition is."""

    end_offset: int
    """Everything below is backed up."""
    log_end_offset: int
    """Where the log ended at the last round."""
    lag_records: int
    """How many offsets are missing."""
    unflushed_records: int
    """How many of them another process has not flushed, where its files cannot be synced."""


class BackupStats(TypedDict):
    """What `Backup.stats` answers."""

    url: str
    """Where it goes, without credentials."""
    backup: str
    """The backup's id."""
    generation: int
    """How many writers the backup has had."""
    rounds: int
    """Since it was opened."""
    round: int
    """The number of the last round, over all writers."""
    requests: dict[str, int]
    """Since it was opened, by get, put, list, delete."""
    sent_bytes: int
    """Since it was opened."""
    caught_up: bool
    """Whether the last round sent all there was."""
    last_backup_ms: int | None
    """When everything was backed up last since it was opened."""
    partitions: dict[str, BackupLag]
    """How far each partition is backed up, by `topic-partition`, as of the last round."""
    unknown: dict[str, str]
    """Those that cannot be backed up, and why."""
    failure: str | None
    """Why the last round failed; None where it did not."""
    fenced: bool
    """Whether another writer has taken over."""


class TruncationStats(TypedDict):
    """One truncation of a follower: what was cut, and the files that keep it."""

    offset: int
    """The first offset that was cut."""
    end_offset: int
    """Where the log ended before."""
    records: int
    """How many records were cut."""
    saved: list[str]
    """The files that keep them; none without `save_truncated`."""


class FollowerStats(TypedDict, total=False):
    """How far behind one partition of a follower is. A partition that was not looked at yet has `failure` alone."""

    log_start_offset: int
    """Of the follower."""
    log_end_offset: int
    """Of the follower."""
    leader_log_end_offset: int
    """Of the leader, at the last look."""
    lag_records: int
    """How many the follower has not yet."""
    lag_bytes: int
    """Their size."""
    lag_ms: int
    """Since when the follower has not had all; 0 where it has."""
    truncations: list[TruncationStats]
    """Each truncation since the replication began: `offset`, `end_offset`, `records`, and the files in `saved`."""
    failure: str
    """Why it is not copied; "" else."""


class ReplicationStats(TypedDict):
    """What `Replication.stats` answers."""

    source: str
    """Either "followed" (a process writes it), "no writer" or "gone"."""
    source_paths: list[str]
    """The leader's directories."""
    target_paths: list[str]
    """The follower's."""
    following: bool
    """Whether a thread follows."""
    failure: str
    """Why nothing is copied any more; "" else."""
    partitions: dict[str, FollowerStats]
    """How far behind each partition is, by `topic-partition`."""
    failures: dict[str, str]
    """The topics that are not copied, and why."""
