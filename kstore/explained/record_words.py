"""Says in one or two sentences why a record is still there and when it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained import segment_words
from kstore.explained.time_scale import bound, clock_of, duration

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["bytes_newer", "cleaning_words", "headline", "record_clock", "segment_of", "total"]


def segment_of(explanation: Explanation, record: ExplainedRecord) -> ExplainedSegment:
    """Return the segment that holds a record."""
    return next(each for each in explanation.segments if each.base_offset == record.segment_base_offset)


def record_clock(explanation: Explanation, record: ExplainedRecord) -> Callable[[int | None], str]:
    """Return the function that writes the times of a record's life."""
    segment = segment_of(explanation, record)
    return clock_of(
        (
            *(explanation.at_ms, record.timestamp, segment.first_timestamp, segment.max_timestamp, segment.due_ms),
            *(record.earliest_ms, record.latest_ms, record.freed_ms, record.superseded_timestamp),
        ),
        is_even=True,
    )


def bytes_newer(explanation: Explanation, segment: ExplainedSegment) -> int:
    """Return the bytes of the segments after this one, which count for `retention.bytes`."""
    return sum(each.size_bytes for each in explanation.segments if each.base_offset > segment.base_offset)


def headline(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return why a record is still there, and when it goes at the latest."""
    segment, clock = segment_of(explanation, record), record_clock(explanation, record)
    name = f"Record {record.offset:,}"
    if "check" in segment.holds:
        by = explanation.checks.by
        wait = "nobody has called apply_retention" if by == "caller" else "no check has come since"
        return f"{name} may be deleted and is still there because {wait}; {_goes(explanation, record, clock)}."
    if "policy" in segment.holds and record.earliest_ms is None:
        return f"{name} {_of_compaction(explanation, record)}."
    if segment.holds[0] == "no_limit" and record.earliest_ms is None:
        return f"{name} stays for ever: {_stays(segment)}."
    return (
        f"{name} is still there because {_because(explanation, segment, clock)}; {_goes(explanation, record, clock)}."
    )


def total(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return how long a record lives, as a sentence; empty if nobody knows, or if years hide the difference."""
    written, earliest, latest, freed = record.timestamp, record.earliest_ms, record.latest_ms, record.freed_ms
    if written is None or earliest is None or latest is None or freed is None or earliest < written:
        return ""
    is_active = segment_of(explanation, record).is_active
    end = earliest if is_active else latest
    written, gone, end = (time // 1000 * 1000 for time in (written, end + freed - latest, end))  # as clocks show them
    readable, disk = bound(end - written, is_least=is_active), bound(gone - written, is_least=is_active)
    if readable == disk:
        return ""
    kept = explanation.settings.get("retention.ms")
    than = f" (retention.ms: {duration(kept, is_short=True)})" if isinstance(kept, int) and kept >= 0 else ""
    if is_active:
        longer = "; longer if more is appended to its segment"
        return f"In all at least: readable for {readable}, on the disk for {disk}{longer}{than}."
    most = "" if earliest == latest else " at most"
    return f"In all{most}: readable for {readable}, on the disk for {disk}{than}."


def cleaning_words(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return when a cleaning reads a record together with the newer record of its key, as a sentence."""
    outlook, clock = explanation.compaction, record_clock(explanation, record)
    newer = record.offset if record.superseded_by is None else record.superseded_by
    last = explanation.segments[-1]
    if newer >= last.base_offset:
        whose = "Its segment" if record.offset >= last.base_offset else "The newer record's segment"
        return f"{whose} is the active one: no cleaning reads that before the log rolls."
    if newer >= outlook.first_uncleanable_offset:
        holder = next(each for each in reversed(explanation.segments) if each.base_offset <= newer)
        return segment_words.sentence(holder.compaction or f"no cleaning reads offset {newer:,} now")
    if outlook.due_ms is None:
        if outlook.ratio is None:
            return "No cleaning is due."
        least = explanation.settings.get("min.cleanable.dirty.ratio")
        above = f", and one needs more than {least:.0%}" if isinstance(least, float) else ""
        return f"No cleaning is due: {outlook.ratio:.0%} of the log is new since the last one{above}."
    if outlook.due_ms > explanation.at_ms:
        return f"The first pass of the cleaner from {clock(outlook.due_ms)} on cleans this log."
    if explanation.checks.by == "caller":
        return "The log is open alone: a call of compact cleans it."
    return "The next pass of the cleaner cleans this log."


# --- causes -----------------------------------------------------------------------------------------------------------


def _goes(explanation: Explanation, record: ExplainedRecord, clock: Callable[[int | None], str]) -> str:
    segment = segment_of(explanation, record)
    grows = ", if nothing more is appended" if segment.is_active else ""
    if record.earliest_ms is None:
        if segment.bytes_left:
            return f"it is deleted at the first check after {size(segment.bytes_left)} more are appended"
        return "nothing deletes it"
    if record.latest_ms is None:
        if explanation.checks.by == "caller":
            when = "now" if record.earliest_ms <= explanation.at_ms else f"from {clock(record.earliest_ms)}"
            return f"a call of apply_retention {when} on deletes it{grows}"
        return f"the first check from {clock(record.earliest_ms)} on deletes it{grows}"
    if clock(record.earliest_ms) == clock(record.latest_ms):
        return f"no reader sees it from {clock(record.latest_ms)} on{grows}"
    return f"no reader sees it from {clock(record.latest_ms)} on, at the latest{grows}"


def _because(explanation: Explanation, segment: ExplainedSegment, clock: Callable[[int | None], str]) -> str:
    """Return the first cause in words."""
    holds, at_ms, newest = segment.holds, explanation.at_ms, segment.max_timestamp
    if "future_record" in holds:
        return f"a record of its segment has a timestamp in the future, {clock(newest)}, and age counts from there"
    if "earlier_segment" in holds and segment.due_ms is not None and newest is not None:
        kept = explanation.settings.get("retention.ms")
        if isinstance(kept, int) and newest + kept < at_ms:
            return "an earlier segment is kept, and segments are deleted in their order"
    if "retention.ms" in holds:
        kept = explanation.settings.get("retention.ms")
        limited = f", and retention.ms is {duration(kept)}" if isinstance(kept, int) else ""
        if newest is None:
            return f"its segment was written a short time ago{limited}"
        if at_ms - newest < 1000:
            return f"the newest record of its segment was written just now{limited}"
        return f"the newest record of its segment is only {duration(at_ms - newest)} old{limited}"
    if "retention.bytes" in holds:
        kept = size(int(explanation.settings.get("retention.bytes") or 0))
        newer = size(bytes_newer(explanation, segment))
        return f"only {newer} of the log are newer than its segment, and retention.bytes keeps {kept}"
    if "high_watermark" in holds:
        return "the high watermark is below the end of its segment"
    if "earlier_segment" in holds:
        return "an earlier segment is kept, and segments are deleted in their order"
    return _stays(segment)


def _of_compaction(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return why a record is there that only a cleaning removes."""
    policy = explanation.settings.get("cleanup.policy") or "empty"
    if record.superseded_by is not None:
        stays = "it stays until the cleaner rewrites its segment without it"
        return f"is superseded by the record at offset {record.superseded_by:,}, which has the same key; {stays}"
    rule = f"cleanup.policy is {policy}, so neither age nor size deletes it"
    if record.searched_offset is None:
        return f"stays: {rule}"
    if record.is_tombstone:
        return "is a tombstone, which tells that its key is deleted: a cleaning drops it after delete.retention.ms"
    return f"stays: it is the newest record of its key that was found, and {rule}"


def _stays(segment: ExplainedSegment) -> str:
    """Return why nothing deletes a segment."""
    if "no_limit" in segment.holds:
        return "neither retention.ms nor retention.bytes is set"
    if "policy" in segment.holds:
        return "cleanup.policy has no delete"
    return segment.explanation.rstrip(".") or "its segment is kept"
