"""The small answers of `Log` and `Store`: immutable values that say where a record is and what a segment holds.

They import nothing of kstore, so that errors can carry them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Headers: TypeAlias = Mapping[str, ReadableBuffer | None] | Iterable[tuple[str, ReadableBuffer | None]]
    """What an append takes as a record's headers: a mapping, or pairs where a name comes more than once."""


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append stored: the offsets `[first_offset, last_offset]`, both -1 when it stored nothing."""

    first_offset: int = -1
    """Offset of the first record."""
    last_offset: int = -1
    """Offset of the last record."""
    max_timestamp: int = -1
    """The greatest timestamp of the records, in milliseconds."""
    log_append_time: int = -1
    """The time of the append in milliseconds, where `message.timestamp.type` is LogAppendTime; else -1."""


class TimestampOffset(NamedTuple):
    """A record's timestamp and offset: what a search by time finds."""

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
    """The greatest timestamp of the segment's batches in milliseconds, by which retention goes; that of a batch whose
    records a compaction has removed counts, too. -1 without one."""
    first_timestamp: int
    """The greatest timestamp of the first batch, from which `segment.ms` counts; -1 without one."""
    is_active: bool
    """Whether appends go to this segment."""
    path: str
    """The `.log` file."""
    roll_reason: str | None
    """Why the segment before this one was left: "size", "time", "offset_index_full", "time_index_full", "offset_range",
    "explicit", ...; None where it is not known, since no file holds it.
    """

    def __repr__(self) -> str:
        return (
            f"SegmentInfo(base_offset={self.base_offset}, next_offset={self.next_offset}, "
            f"size_bytes={self.size_bytes}, is_active={self.is_active}, path={self.path!r})"
        )


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What a compaction did, or with `dry_run` would do."""

    first_dirty_offset_before: int
    """Where the dirty part of the log began."""
    first_dirty_offset: int
    """Where it begins now: everything below is clean."""
    records_before: int
    """Records in the segments that were cleaned; markers of transactions count as one each."""
    records_after: int
    """Those of them that were kept."""
    bytes_before: int
    """Size of the `.log` files that were cleaned."""
    bytes_after: int
    """Size of the `.log` files that took their place."""
    keys: int
    """Different keys in the dirty part; the sum over the rounds."""
    tombstones_kept: int
    """Tombstones that were kept: newest of their keys, and their delete horizon is to come."""
    tombstones_removed: int
    """Tombstones that were removed, as superseded or since their delete horizon has passed."""
    keyless_dropped: int
    """Records without a key that were dropped: no record can supersede them, so a cleaner drops them at once."""
    segments_before: int
    """Segments that were cleaned."""
    segments_after: int
    """Segments that took their place."""
    rounds: int
    """How often dirty records were read into an offset map, and the log was cleaned with it."""
    map_full: bool
    """Whether an offset map had no room for a key, so that its round ended early."""
    dry_run: bool
    """Whether nothing was changed."""
    seconds: float
    """How long it took."""


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
    """One partition that was restored, or with `dry_run` would be: the offsets `[log_start_offset, log_end_offset)`."""

    log_start_offset: int
    """Where the log starts."""
    log_end_offset: int
    """Where it ends; in a dry run without the markers of transactions that the first opening writes."""
    bytes: int
    """Size of the files that are fetched, before the last one is cut."""
    files: tuple[tuple[str, int], ...]
    """Their names and sizes."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, or with `dry_run` would do."""

    url: str
    """Where the backup is."""
    backup: str
    """The backup's id."""
    round: int
    """The round that was restored."""
    time_ms: int
    """When that round was backed up, in milliseconds since the epoch."""
    caught_up: bool
    """Whether all is there that the source had then; not if the first round of the backup was still under way."""
    together: bool
    """Whether all partitions are as of one moment; not if another process was writing the directory that was backed up.

    Each partition then ends where it had been flushed, and a transaction may be in one of them and not in another.
    """
    partitions: Mapping[tuple[str, int], RestoredPartition]
    """What was restored of each partition, by topic and number."""
    files: int
    """How many files were fetched, those included that an earlier call had fetched."""
    bytes: int
    """Their size."""
    fetched_bytes: int
    """How many bytes this call fetched."""
    dry_run: bool
    """Whether nothing was written."""
    seconds: float
    """How long it took."""
