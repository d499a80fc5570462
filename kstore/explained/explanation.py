"""The facts of `Log.explain`: why each segment was rolled, why it is kept, when it goes; where a record lies.

Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.types import CompactionOutlook

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

_html = optional.Late("kstore.explained.explanation_html")  # it imports this module
_text = optional.Late("kstore.explained.explanation_text")  # and so does this

__all__ = ["CheckTimes", "DeletedFile", "ExplainedRecord", "ExplainedSegment", "Explanation", "LookupStep"]


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """When housekeeping checks which segments may be deleted.

    Immutable, so threads may share it.
    """

    by: str
    """Who checks: "store" (the store that has the log open), "broker" (a broker, or a store in another process),
    "caller" (a log that is opened alone: only a call of `apply_retention`), "cleaner" (after each pass of the cleaner,
    if `cleanup.policy` contains compact).
    """

    next_ms: int | None
    """When the next check is, in milliseconds since the epoch; None if it is not known, because another process makes
    it or a caller does.
    """

    interval_ms: int | None
    """The milliseconds between two checks; None if only a caller checks."""


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file that was renamed to `.deleted`, and is unlinked later.

    Immutable, so threads may share it.
    """

    path: str
    """The file."""
    size_bytes: int
    """Its size."""
    gone_ms: int | None
    """When it is unlinked, in milliseconds since the epoch; None if that is not known, because another process deleted
    it.
    """


@dataclass(frozen=True, slots=True)
class ExplainedSegment:
    """A segment: why the log rolled from it to the next, why it is kept, and when it is deleted.

    Times are in milliseconds since the epoch. Immutable, so threads may share it.
    """

    base_offset: int
    """Its first offset."""
    next_offset: int
    """One past its last offset."""
    size_bytes: int
    """Bytes of the batches in its `.log` file."""
    offset_index_entries: int
    """Entries of its `.index` file."""
    time_index_entries: int
    """Entries of its `.timeindex` file."""
    first_timestamp: int | None
    """The greatest timestamp of its first batch, from which `segment.ms` counts; None if there is none."""
    max_timestamp: int | None
    """Its greatest timestamp; None if no record has one."""
    max_timestamp_offset: int | None
    """The last offset of the first batch that has the greatest timestamp; None if no record has one."""
    is_active: bool
    """Whether appends go to this segment."""
    path: str
    """The `.log` file."""

    roll_reason: str | None
    """Why the log rolled to the next segment: "size", "time", "offset_index_full", "time_index_full", "offset_range",
    "explicit", "retention", "compaction" (a cleaning wrote the segment); None for the active segment, and if no rule
    explains it.
    """
    is_roll_inferred: bool
    """Whether the reason was inferred from sizes, times and index entries, because the roll was before the opening."""
    rolled_ms: int | None
    """The timestamp of the first batch of the next segment: about when the log rolled; None if there is none."""
    roll_explanation: str
    """The reason in words, with the values found and the limits."""

    holds: tuple[str, ...]
    """What keeps it now, under fixed names: "log_start", "policy" (`cleanup.policy` has no delete), "high_watermark",
    "retention.ms", "retention.bytes", "no_limit" (neither is set), "future_record" (a timestamp ahead of the clock),
    "earlier_segment" (only a prefix of the log is deleted), "only_segment" (it is active and empty), "check" (the next
    check deletes it). Never empty; if there are several, the first decides when it is deleted.
    """
    explanation: str
    """Why it is kept and when it is deleted, in words."""
    due_ms: int | None
    """From when on age allows its deletion, earlier segments included; None if it never does."""
    bytes_left: int | None
    """How many bytes the log has to grow until `retention.bytes` allows its deletion; None if it never does."""
    earliest_ms: int | None
    """The earliest check that can delete it if nothing more is appended; None if none does."""
    latest_ms: int | None
    """The latest time of that check; None if none does, or if nobody is known to check."""
    freed_ms: int | None
    """When its bytes have left the disk at the latest: `file.delete.delay.ms` after `latest_ms`."""

    compaction: str | None
    """What compaction waits for in this segment, in words; None if `cleanup.policy` has no compact."""


@dataclass(frozen=True, slots=True)
class LookupStep:
    """One step of the lookup of a record.

    Immutable, so threads may share it.
    """

    what: str
    """"segment" (the choice of the segment), "time_index", "offset_index", "scan" or "batch" (the record's batch)."""
    path: str
    """The file that is read; for "segment" the directory."""
    found: tuple[int, int] | None
    """The entry that is taken: (timestamp, offset) of a time index, (offset, position) of an offset index; for "scan"
    and "batch" the positions from which and to which the log is read; for "segment" its first and last offset; None if
    an index has no entry at or before the target.
    """
    following: tuple[int, int] | None
    """The next entry of the index; None if there is none."""
    bytes_read: int
    """Bytes of the log that the step reads."""
    explanation: str
    """The step in words."""


@dataclass(frozen=True, slots=True)
class ExplainedRecord:
    """One record: where it lies, how a lookup finds it, and when it is deleted.

    Times are in milliseconds since the epoch. Immutable, so threads may share it.
    """

    offset: int
    """Its offset."""
    timestamp: int | None
    """Its timestamp; None if it has none."""
    key: str | None
    r"""Its key as text, in which bytes that are not UTF-8 are `\xff`, cut after 100 bytes; None if it has none."""
    is_tombstone: bool
    """Whether it has a key and no value."""
    segment_base_offset: int
    """The segment that holds it."""
    batch_offsets: tuple[int, int]
    """First and last offset of its batch."""
    batch_position: int
    """The batch's first byte in the `.log` file."""
    batch_bytes: int
    """The batch's size."""
    compression: str
    """The batch's codec."""
    steps: tuple[LookupStep, ...]
    """How a lookup finds it, with the real entries of the indexes."""
    bytes_scanned: int
    """Bytes of the log that the lookup reads before the batch."""
    superseded_by: int | None
    """The offset of the next committed record with its key; None if `cleanup.policy` has no compact, if the record has
    no key, or if none was found below `searched_offset`.
    """
    superseded_timestamp: int | None
    """The timestamp of that record; None if there is no such record, or if it has none."""
    searched_offset: int | None
    """The offset at which the search for that record ended: it reads at most 64 MiB. None if none was looked for."""
    tombstone_ms: int | None
    """From when on a cleaning drops it as a tombstone; None if it is none, or if no cleaning has kept it yet."""
    future: tuple[str, ...]
    """What happens to it from now on, as sentences."""
    earliest_ms: int | None
    """The earliest check that can delete it if nothing more is appended; None if none does."""
    latest_ms: int | None
    """The latest time of that check; None if none does, or if nobody is known to check."""
    freed_ms: int | None
    """When its bytes have left the disk at the latest."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why each segment of a log is there and when it goes; with `offset` or `timestamp` also one record.

    `str()` gives text, `to_dict()` what JSON can hold, `to_arrow()` a table, `to_html()` a page; notebooks show a
    picture. Immutable, so threads may share it.

    Example:
        >>> log = kstore.Log.open("data/events-0", retention_ms=600_000)
        >>> explanation = log.explain(offset=log.append(b"started"))
        >>> [(segment.base_offset, segment.holds) for segment in explanation.segments]
        [(0, ('retention.ms',))]
    """

    topic: str
    """The topic."""
    partition: int
    """The partition's number."""
    path: str
    """The log's directory."""
    at_ms: int
    """The moment that is explained, in milliseconds since the epoch."""
    log_start_offset: int
    """The log start offset."""
    log_end_offset: int
    """The log end offset."""
    high_watermark: int
    """The high watermark."""
    last_stable_offset: int
    """The last stable offset."""
    recovery_point: int
    """Everything below it was flushed."""
    settings: Mapping[str, Any]
    """The settings that decide about rolls, deletion and compaction, under Kafka's names."""
    given: frozenset[str]
    """The names of those settings that were given; the others have defaults."""
    note: str | None
    """What to know about the settings: for the directory of a broker, that its own are not known, what Kafka's defaults
    would do, and how to give them. None if there is nothing to note.
    """
    checks: CheckTimes
    """When segments are checked for deletion."""
    segments: tuple[ExplainedSegment, ...]
    """All segments, in the order of their offsets."""
    deleted: tuple[DeletedFile, ...]
    """The deleted files that still take space."""
    compaction: CompactionOutlook
    """What compaction does next, and what it waits for."""
    record: ExplainedRecord | None
    """The record that was asked for."""

    def __str__(self) -> str:
        return str(_text.explanation_text(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dictionaries, lists, texts and numbers.

        Returns:
            A dictionary that `json.dumps` takes.

        Example:
            >>> explanation.to_dict()["topic"]
            'events'
        """
        return {**asdict(self), "given": sorted(self.given), "settings": dict(self.settings)}

    def to_arrow(self) -> pyarrow.Table:
        """Return the segments as an Arrow table.

        Returns:
            A row for each segment, a column for each attribute of `ExplainedSegment`. Times are timestamps of UTC in
            milliseconds.

        Raises:
            ConfigError: PyArrow is not installed.

        Example:
            >>> explanation.to_arrow().num_rows
            1
        """
        pa = optional.pyarrow("to_arrow()")
        kinds = {
            "int": pa.int64(),
            "bool": pa.bool_(),
            "str": pa.string(),
            "tuple[str, ...]": pa.list_(pa.string()),
        }
        moment = pa.timestamp("ms", "UTC")
        columns = [
            pa.field(
                field.name,
                moment if field.name.endswith(("_ms", "timestamp")) else kinds[str(field.type).removesuffix(" | None")],
                nullable=str(field.type).endswith("None"),
            )
            for field in fields(ExplainedSegment)
        ]
        return pa.Table.from_pylist([asdict(segment) for segment in self.segments], schema=pa.schema(columns))

    def to_html(self) -> str:
        """Return a page that needs no other file, with pictures.

        Returns:
            The HTML of the page.

        Example:
            >>> explanation.to_html().startswith("<!DOCTYPE html>")
            True
        """
        return str(_html.log_page(self))

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows."""
        return str(_html.log_fragment(self))
