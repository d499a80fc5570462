"""The life of a record as phases, each with its words: written, its segment filled, kept, deleted, off the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained import segment_words, svg
from kstore.explained.record_words import bytes_newer, cleaning_words, record_clock, segment_of
from kstore.explained.time_scale import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["Phase", "SizeLimit", "phases_of"]


@dataclass(frozen=True)
class SizeLimit:
    """What `retention.bytes` lacks, in bytes: those of the segments up to the record's, of the others, and to come."""

    through: int
    newer: int
    missing: int
    limit: int


@dataclass(frozen=True)
class Phase:
    """A part of a record's life. Without a kind it has no place in time."""

    title: str
    words: str
    start: int | None = None
    end: int | None = None
    """None: it does not end."""
    kind: str = ""
    on_bar: str = ""
    is_point: bool = False
    earliest: int | None = None
    """When the phase ends at the earliest, if that is not certain."""
    limit: SizeLimit | None = None
    """What is drawn instead of a time."""


def phases_of(explanation: Explanation, record: ExplainedRecord) -> list[Phase]:
    """Return the parts of a record's life, in their order."""
    return _Life(explanation, record).phases()


class _Life:
    def __init__(self, explanation: Explanation, record: ExplainedRecord) -> None:
        self.explanation, self.record = explanation, record
        self.at_ms = explanation.at_ms
        self.segment = segment_of(explanation, record)
        self.clock: Callable[[int | None], str] = record_clock(explanation, record)
        self.filled = _filled(self.segment, self.at_ms)

    def phases(self) -> list[Phase]:
        found = [self._written(), self._filling(), *self._kept()]
        if self.record.earliest_ms is None:
            return found
        found.append(self._check())
        latest, freed = self.record.latest_ms, self.record.freed_ms
        if latest is None or freed is None:
            return found
        title = f"Off the disk {self._by}{self.clock(freed)}"
        words = "The deleted files are renamed, and unlinked after file.delete.delay.ms."
        return [*found, Phase(title, words, latest, freed, "before", _between(latest, freed))]

    def _written(self) -> Phase:
        record = self.record
        first, last = record.batch_offsets
        batch = "alone in its batch" if first == last else f"in the batch of offsets {first:,}\u2013{last:,}"
        words = f"The record at offset {record.offset:,}, {batch}."
        if record.key is not None and record.searched_offset is not None:
            words += f" Its key: {svg.fitted(record.key, 150, 12)}"
        title = "Written, without a timestamp"
        if record.timestamp is not None:
            as_of = " as of" if record.timestamp > self.at_ms else ""
            title = f"Written{as_of} {self.clock(record.timestamp)}"
        return Phase(title, words, record.timestamp, record.timestamp, "found", "this record", is_point=True)

    def _filling(self) -> Phase:
        segment, end, start = self.segment, self.filled, self._began()
        held = segment_words.offsets(segment.base_offset, segment.next_offset).replace(" ", "")
        whole = "" if "policy" in segment.holds else ", deleted as a whole"
        words = f"A file of records{whole}: offsets {held}, {size(segment.size_bytes)}. "
        if segment.is_active:
            grows = segment.due_ms is not None
            words += "Each new record there keeps the older ones longer." if grows else "New records go there."
            return Phase("Its segment is still filling", words, start, end, "active", _between(start, end))
        rolled = segment_words.roll_words(segment)
        words += f"The log {rolled.replace(':', ': its', 1) if ':' in rolled else rolled}." if rolled else ""
        title = f"Segment ends {self.clock(end)}" if end is not None else "Segment ends"
        return Phase(title, words, start, end, "sealed", _between(start, end))

    def _began(self) -> int | None:
        """Return about when the segment's first record was written; a timestamp ahead of now is no such time."""
        before = [each.max_timestamp for each in self.explanation.segments if each.next_offset <= self._base]
        found = [self.segment.first_timestamp, *before[-1:], self.record.timestamp]
        start = next((time for time in found if time is not None and time <= self.at_ms), self.segment.first_timestamp)
        return start if start is None or self.filled is None else min(start, self.filled)

    @property
    def _base(self) -> int:
        return self.segment.base_offset

    def _kept(self) -> list[Phase]:
        """Return the phases in which rules keep the record."""
        segment = self.segment
        start = self.filled if self.filled is not None else self.at_ms
        kept, due = self.explanation.settings.get("retention.ms"), segment.due_ms
        if due is not None and isinstance(kept, int) and "policy" not in segment.holds:
            return self._aging(start, due, kept)
        if segment.bytes_left:
            return self._growing(segment.bytes_left)
        if "no_limit" in segment.holds:
            words = "Neither retention.ms nor retention.bytes is set, so nothing deletes the segment."
            return [Phase("Kept without a limit", words, start, None, "kept")]
        if "policy" in segment.holds:
            return self._compacted(start)
        end = self.record.earliest_ms
        why = segment_words.sentence(segment.explanation)
        return [Phase("Kept", why, start, end, "kept", "" if end is None else _between(start, end))]

    def _aging(self, start: int, due: int, kept: int) -> list[Phase]:
        segment, clock, newest = self.segment, self.clock, self.segment.max_timestamp
        limit = f"retention.ms, {duration(kept, is_short=True)},"
        before: list[Phase] = []
        words = f"{limit} counts from the newest record of the segment, not from this one."
        if newest is None:
            words = f"No record of the segment has a timestamp: {limit} counts from the last write of its file."
        elif newest > self.at_ms and newest >= start:
            where = self._holder()
            title, words = f"Timestamp {clock(newest)}", f"A record of the segment is from the future{where}."
            before = [Phase(title, words, start, newest, "future", _between(start, newest))]
            start, words = newest, f"{limit} counts from that timestamp."
        elif newest + kept + 1 < due:
            words = f"{limit} counted from the newest record of the segments before: they go first."
        if segment.bytes_left:
            words += f" Earlier, if {size(segment.bytes_left)} more are appended (retention.bytes)."
        if self.record.superseded_by is not None:
            words += f" Earlier, if a cleaning reads offset {self.record.superseded_by:,}, which has its key."
        return [*before, Phase(f"Old enough {clock(due)}", words, start, due, "kept", _between(start, due))]

    def _holder(self) -> str:
        """Return which record has the greatest timestamp, as exactly as it is known."""
        offset = self.segment.max_timestamp_offset
        if self.record.timestamp == self.segment.max_timestamp:
            return ": that of this record"
        return "" if offset is None else f", in the batch that ends at offset {offset:,}"

    def _growing(self, missing: int) -> list[Phase]:
        """Return the phases of a segment that only the growth of the log deletes."""
        explanation, segment = self.explanation, self.segment
        kept = explanation.settings.get("retention.bytes")
        newer = bytes_newer(explanation, segment)
        through = sum(each.size_bytes for each in explanation.segments) - newer
        limit = SizeLimit(through, newer, missing, kept if isinstance(kept, int) and kept >= 0 else newer + missing)
        age = explanation.settings.get("retention.ms")
        words = f"The log has {size(through + newer)} now. "
        words += "Age deletes nothing: retention.ms sets no limit." if age in (None, -1) else ""
        delay = explanation.settings.get("file.delete.delay.ms")
        gone = f" Off the disk {duration(delay)} later." if isinstance(delay, int) else ""
        return [
            Phase(f"Until {size(missing)} more are appended", words, limit=limit),
            Phase("Deleted at the first check after that", f"{self._checks()} No reader sees it from then on.{gone}"),
        ]

    def _compacted(self, start: int) -> list[Phase]:
        """Return the phases of a record that only a cleaning removes."""
        record, policy = self.record, self.explanation.settings.get("cleanup.policy")
        by, cleaning = record.superseded_by, cleaning_words(self.explanation, record)
        if by is not None:
            time = record.superseded_timestamp
            when = "" if time is None else f" {self.clock(time)}"
            words = f"Offset {by:,} has the same key. The cleaner rewrites segments without such older records."
            now = self.at_ms if time is None else max(time, start)
            return [
                Phase(f"Superseded{when}", words, time, time, "future", f"offset {by:,}", is_point=True),
                Phase("Until the cleaner rewrites its segment", cleaning, now, None, "kept"),
            ]
        if record.searched_offset is None:
            words = "Neither age nor size deletes the segment."
            if record.key is None and record.future:
                words = record.future[-1]
            return [Phase(f"cleanup.policy = {policy}", words, start, None, "kept")]
        if record.searched_offset >= self.explanation.log_end_offset:
            none = "No newer record of its key is in the log."
        else:
            none = f"No newer record of its key was found below offset {record.searched_offset:,}."
        if record.is_tombstone:
            after = "delete.retention.ms after the first cleaning that keeps it"
            if record.tombstone_ms is not None:
                after = f"from {self.clock(record.tombstone_ms)} on"
            words = f"It says that its key is deleted. A cleaning drops it {after}."
            return [Phase("A tombstone", words, start, None, "kept")]
        return [Phase("The newest of its key", f"{none} Compaction keeps it until there is one.", start, None, "kept")]

    def _checks(self) -> str:
        """Return who checks, as a sentence."""
        checks = self.explanation.checks
        if checks.by == "caller":
            return "The log is open alone: it deletes when apply_retention is called."
        every = f" every {duration(checks.interval_ms)}" if checks.interval_ms else ""
        who = {"cleaner": "The cleaner", "broker": "The broker or store"}.get(checks.by, "The store")
        return f"{who} checks{every}."

    def _check(self) -> Phase:
        """Return the phase in which nothing but a check is missing."""
        earliest, latest = self.record.earliest_ms, self.record.latest_ms
        start = self.segment.due_ms if self.segment.due_ms is not None else earliest
        words = f"It waits for a check. {self._checks()} No reader sees it from then on."
        if latest is None:
            return Phase(f"Deleted after {self.clock(earliest)}", words, start, None, "going")
        title = f"Deleted {self._by}{self.clock(latest)}"
        return Phase(title, words, start, latest, "going", _between(start, latest), earliest=earliest)

    @property
    def _by(self) -> str:
        return "" if self.record.earliest_ms == self.record.latest_ms else "by "


def _filled(segment: ExplainedSegment, at_ms: int) -> int | None:
    """Return when the newest record of a segment was written."""
    newest = segment.max_timestamp
    if segment.is_active or (newest is not None and newest > at_ms and segment.rolled_ms is None):
        return at_ms
    return min(segment.rolled_ms or at_ms, at_ms) if newest is not None and newest > at_ms else newest


def _between(start: int | None, end: int | None) -> str:
    return "" if start is None or end is None or end <= start else duration(end - start, is_short=True)
