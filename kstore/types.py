"""The small immutable values that calls of `Log` and `Store` return.

Invariant: this module imports nothing of kstore, so that errors can carry these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Headers: TypeAlias = Mapping[str, ReadableBuffer | None] | Iterable[tuple[str, ReadableBuffer | None]]
    """The headers that an append accepts: a mapping, or pairs, in which a name may occur more than once."""


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append stored: the offsets `[first_offset, last_offset]`, both -1 if it stored nothing."""

    first_offset: int = -1
    """Offset of the first record."""
    last_offset: int = -1
    """Offset of the last record."""
    max_timestamp: int = -1
    """The greatest timestamp of the records, in milliseconds."""
    log_append_time: int = -1
    """The time of the append in milliseconds if `message.timestamp.type` is LogAppendTime; else -1."""


class TimestampOffset(NamedTuple):
    """The timestamp and offset of a record that a search by time found."""

    timestamp: int
    """Milliseconds since the epoch."""
    offset: int
    """The record's offset."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of a log: the offsets `[base_offset, next_offset)`."""

    base_offset: int
    """The offset in the names of the segment's files."""
    next_offset: int
    """One past the last offset."""
    size_bytes: int
    """Bytes of batches in the `.log` file."""
    offset_index_entries: int
    """Entries in use in the `.index` file."""
    time_index_entries: int
    """Entries in use in the `.timeindex` file."""
    max_timestamp: int
    """The greatest timestamp of the segment's batches in milliseconds, which retention compares with the clock. Batches
    whose records a compaction has removed count, too. -1 if there is none."""
    first_timestamp: int
    """The greatest timestamp of the first batch, from which `segment.ms` counts; -1 if there is none."""
    is_active: bool
    """Whether appends go to this segment."""
    path: str
    """The `.log` file."""
    roll_reason: str | None
    """Why the log rolled to this segment: "size", "time", "offset_index_full", "time_index_full", "offset_range",
    "explicit", ...; None if it is not known, since no file holds it."""

    def __repr__(self) -> str:
        return (
            f"SegmentInfo(base_offset={self.base_offset}, next_offset={self.next_offset}, "
            f"size_bytes={self.size_bytes}, is_active={self.is_active}, path={self.path!r})"
        )


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What a compaction did, or with `dry_run` would do."""

    first_dirty_offset_before: int
    """The first offset of the dirty part before the compaction."""
    first_dirty_offset: int
    """The first offset of the dirty part now: all records below it are clean."""
    records_before: int
    """Records in the cleaned segments; a transaction marker counts as one."""
    records_after: int
    """Records of the cleaned segments that were kept."""
    bytes_before: int
    """Size of the `.log` files of the cleaned segments."""
    bytes_after: int
    """Size of the `.log` files that replaced them."""
    keys: int
    """Different keys in the dirty part, summed over the rounds."""
    tombstones_kept: int
    """Tombstones that were kept: each is the newest record of its key, and its delete horizon has not passed."""
    tombstones_removed: int
    """Tombstones that were removed: superseded, or their delete horizon has passed."""
    keyless_dropped: int
    """Records without a key that were dropped: no record can supersede them, so a cleaner drops them immediately."""
    segments_before: int
    """Segments that were cleaned."""
    segments_after: int
    """Segments that replaced them."""
    rounds: int
    """How often dirty records were read into an offset map and the log was cleaned with it."""
    map_full: bool
    """Whether an offset map had no space for a key, so that its round ended early."""
    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True, slots=True)
class CompactionOutlook:
    """Says why nothing of a log is cleaned, or which part will be cleaned, and when.

    Immutable, so threads may share it.
    """

    explanation: str
    """What is cleaned and what is not, and why, in words."""

    due_ms: int | None
    """When a cleaner's pass first selects the log if nothing more is appended, in milliseconds since the epoch; None if
    none does. If the next pass selects it, the time of the call.
    """

    first_dirty_offset: int
    """Everything below it has been cleaned."""

    first_uncleanable_offset: int
    """Nothing at or above it is cleaned now."""

    clean_bytes: int
    """Bytes of the segments that start below the first dirty offset."""

    cleanable_bytes: int
    """Bytes of the segments that are dirty and may be cleaned now."""

    ratio: float | None
    """`cleanable_bytes` divided by the sum of both; must exceed `min.cleanable.dirty.ratio`. None if both are 0."""

    held_offset: int | None
    """The offset of the record that `min.compaction.lag.ms` waits for; None if it waits for none."""

    held_timestamp: int | None
    """The timestamp of that record, or the time of its segment's file if no record there has a timestamp."""

    forced_ms: int | None
    """The time from which `max.compaction.lag.ms` forces a cleaning at any ratio; None if it never does."""

    transaction_producer_id: int | None
    """The producer id of the open transaction that ends the cleanable part; None if none does."""

    transaction_offset: int | None
    """The first offset of that transaction."""

    transaction_since_ms: int | None
    """The timestamp of its first record."""

    failure: str | None
    """Why the last cleaning failed; None if it did not, or if the log is open for reading only."""


class RecordMetadata(NamedTuple):
    """Where a store appended a record."""

    topic: str
    """The topic."""
    partition: int
    """The partition's number."""
    offset: int
    """The record's offset in the partition."""
    timestamp: int
    """The record's timestamp there, in milliseconds."""


class RestoredPartition(NamedTuple):
    """One partition that was (with `dry_run`: would be) restored, with offsets `[log_start_offset, log_end_offset)`."""

    log_start_offset: int
    """The log start offset."""
    log_end_offset: int
    """The log end offset; in a dry run without the transaction markers that the first opening writes."""
    bytes: int
    """Size of the fetched files, before the last one is cut."""
    files: tuple[tuple[str, int], ...]
    """The names and sizes of these files."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, or with `dry_run` would do."""

    url: str
    """The backup's address."""
    backup: str
    """The backup's id."""
    round: int
    """The round that was restored."""
    time_ms: int
    """When that round was backed up, in milliseconds since the epoch."""
    caught_up: bool
    """Whether the round has everything that the source had then; False if the backup's first round was not complete."""
    together: bool
    """Whether the round has all partitions as they were at one time; False if another process was writing the source.

    Each partition then ends where it had been flushed, and a transaction may be in one partition but not in another.
    """
    partitions: Mapping[tuple[str, int], RestoredPartition]
    """What was restored of each partition, by topic and number."""
    files: int
    """How many files were fetched, including those that an earlier call had fetched."""
    bytes: int
    """The size of these files."""
    fetched_bytes: int
    """How many bytes this call fetched."""
    dry_run: bool
    """Whether this was a dry run, which writes nothing."""
    seconds: float
    """How long it took."""
