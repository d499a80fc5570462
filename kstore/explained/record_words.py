"""Says in one or two sentences why a record is still there and when it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained.time_scale import clock_of, duration

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["headline", "record_clock", "segment_of", "total"]


def segment_of(explanation: Explanation, record: ExplainedRecord) -> ExplainedSegment:
    """Return the segment that holds a record."""
    return next(each for each in explanation.segments if each.base_offset == record.segment_base_offset)


def record_clock(explanation: Explanation, record: ExplainedRecord) -> Callable[[int | None], str]:
    """Return the function that writes the times of a record's life."""
    segment = segment_of(explanation, record)
    return clock_of(
        time
        for time in (
            *(explanation.at_ms, record.timestamp, segment.first_timestamp, segment.max_timestamp),
            *(record.earliest_ms, record.latest_ms, record.freed_ms),
        )
    )


def headline(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return why a record is still there, and when it goes at the latest."""
    segment, clock = segment_of(explanation, record), record_clock(explanation, record)
    name = f"Record {record.offset:,}"
    if "check" in segment.holds:
        by = explanation.checks.by
        wait = "nobody has called apply_retention" if by == "caller" else "no check has come since"
        return f"{name} may be deleted and is still there because {wait}; {_goes(explanation, record, clock)}."
    if segment.holds[0] in ("no_limit", "policy") and record.earliest_ms is None:
        return f"{name} stays: {_stays(explanation, segment)}."
    return (
        f"{name} is still there because {_because(explanation, segment, clock)}; {_goes(explanation, record, clock)}."
    )


def total(explanation: Explanation, record: ExplainedRecord) -> str:
    """Return how long a record lives, as a sentence; empty if nobody knows."""
    if record.timestamp is None or record.latest_ms is None or record.latest_ms < record.timestamp:
        return ""
    readable = duration(record.latest_ms - record.timestamp, is_short=True)
    disk = ""
    if record.freed_ms is not None:
        disk = f", on the disk for {duration(record.freed_ms - record.timestamp, is_short=True)}"
    kept = explanation.settings.get("retention.ms")
    than = f" (retention.ms: {duration(kept, is_short=True)})" if isinstance(kept, int) and kept >= 0 else ""
    return f"In all at most: readable for {readable}{disk}{than}."


def _goes(explanation: Explanation, record: ExplainedRecord, clock: Callable[[int | None], str]) -> str:
    segment = segment_of(explanation, record)
    grows = ", if nothing more is appended" if segment.is_active else ""
    if record.earliest_ms is None:
        if segment.bytes_left:
            return f"it goes when the log has grown by {size(segment.bytes_left)}"
        return "nothing deletes it"
    if record.latest_ms is None:
        if explanation.checks.by == "caller":
            when = "now" if record.earliest_ms <= explanation.at_ms else f"from {clock(record.earliest_ms)}"
            return f"a call of apply_retention {when} on deletes it{grows}"
        return f"the first check from {clock(record.earliest_ms)} on deletes it{grows}"
    if clock(record.earliest_ms) == clock(record.latest_ms):
        return f"it goes at {clock(record.latest_ms)}{grows}"
    return f"it goes at {clock(record.latest_ms)} at the latest{grows}"


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
        kept = explanation.settings.get("retention.bytes")
        return f"the log without its segment would be less than {size(int(kept or 0))} (retention.bytes)"
    if "high_watermark" in holds:
        return "the high watermark is below the end of its segment"
    if "earlier_segment" in holds:
        return "an earlier segment is kept, and segments are deleted in their order"
    return _stays(explanation, segment)


def _stays(explanation: Explanation, segment: ExplainedSegment) -> str:
    """Return why nothing deletes a segment."""
    if "no_limit" in segment.holds:
        return "neither retention.ms nor retention.bytes sets a limit"
    if "policy" in segment.holds:
        policy = explanation.settings.get("cleanup.policy") or "empty"
        rest = ", until compaction finds a newer record of its key" if "compact" in str(policy) else ""
        return f"cleanup.policy is {policy}, so neither age nor size deletes it{rest}"
    return segment.explanation.rstrip(".") or "its segment is kept"
