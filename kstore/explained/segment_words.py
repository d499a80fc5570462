"""The words of pictures and pages: why a segment was rolled, what keeps it, when it goes; the values of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kstore.base.numbers import NEVER, size
from kstore.base.times import show
from kstore.explained.time_scale import duration

if TYPE_CHECKING:
    from kstore.explained.explanation import CheckTimes, ExplainedSegment

__all__ = [
    "check_words",
    "fate",
    "hold_words",
    "kind_of",
    "offsets",
    "roll_name",
    "roll_words",
    "sentence",
    "setting_words",
    "value_words",
]

_ROLLS = {
    "size": "rolled by segment.bytes",
    "time": "rolled by segment.ms",
    "offset_index_full": "rolled: .index full",
    "time_index_full": "rolled: .timeindex full",
    "offset_range": "rolled: offset range",
    "explicit": "rolled by a call",
    "retention": "rolled by retention",
    "compaction": "written by compaction",
}
"""Why a log rolled from a segment, by the names of `ExplainedSegment.roll_reason`."""

_HOLDS = {
    "log_start": "kept by the log start",
    "policy": "kept by cleanup.policy",
    "high_watermark": "kept by the high watermark",
    "retention.ms": "kept by retention.ms",
    "retention.bytes": "kept by retention.bytes",
    "no_limit": "kept: no limit is set",
    "future_record": "kept by a record of the future",
    "earlier_segment": "goes after an earlier segment",
    "only_segment": "empty and active",
    "check": "waits for the next check",
}
_KINDS = {"check": "going", "future_record": "future"}


def roll_name(reason: str) -> str:
    """Return what made a log roll, without a verb: "segment.bytes" for "size"."""
    return _ROLLS.get(reason, reason).removeprefix("rolled by ").removeprefix("rolled: ")


def roll_words(segment: ExplainedSegment) -> str:
    """Return why the log rolled from the segment; empty if it is active or no reason is known."""
    if segment.roll_reason is None:
        return "active" if segment.is_active else ""
    words = _ROLLS.get(segment.roll_reason, f"rolled: {segment.roll_reason}")
    return f"{words}, inferred" if segment.is_roll_inferred else words


def hold_words(holds: tuple[str, ...]) -> str:
    """Return what keeps a segment; of several causes the one that keeps it longest, or the first two."""
    for hold in ("future_record", "earlier_segment"):
        if hold in holds:
            return _HOLDS[hold]
    words = [_HOLDS.get(hold, f"kept by {hold}") for hold in holds[:2]]
    if len(words) > 1:
        words[1] = words[1].removeprefix("kept by ").removeprefix("kept: ")
    return " and ".join(words)


def fate(segment: ExplainedSegment, clock: Callable[[int | None], str], at_ms: int) -> str:
    """Return when the segment is deleted."""
    earliest, latest = segment.earliest_ms, segment.latest_ms
    if earliest is None:
        if segment.bytes_left is not None:
            return f"after {segment.bytes_left:,} more bytes"
        return "is not deleted"
    if latest is None:
        return "at the next call" if earliest <= at_ms else f"from {clock(earliest)} on"
    if earliest == latest or clock(earliest) == clock(latest):
        return f"goes {clock(latest)}"
    if " " in clock(latest):
        return f"goes by {clock(latest)}"
    return f"goes {clock(earliest)} to {clock(latest)}"


def offsets(base_offset: int, next_offset: int) -> str:
    """Return the offsets of a segment."""
    if next_offset <= base_offset:
        return f"{base_offset:,}, empty"
    return f"{base_offset:,} \u2013 {next_offset - 1:,}"


def kind_of(segment: ExplainedSegment) -> str:
    """Return the colour of a segment: of the next check's, of one with a record of the future, active, or sealed."""
    for hold, kind in _KINDS.items():
        if hold in segment.holds:
            return kind
    return "active" if segment.is_active else "sealed"


def setting_words(name: str, value: object) -> str:
    """Return a setting and its value, with its unit."""
    return f"{name} = {value_words(name, value)}"


def value_words(name: str, value: object) -> str:
    """Return the value of a setting in words: bytes and times with their units, and no limit as such."""
    if not isinstance(value, int) or isinstance(value, bool):
        return "-" if value is None else ", ".join(value) if isinstance(value, tuple | list) else str(value)
    if not 0 <= value < NEVER and name.endswith((".ms", ".bytes")):
        return "no limit"
    if name.endswith(".ms"):
        return duration(value)
    return size(value) if name.endswith(".bytes") else f"{value:,}"


def check_words(checks: CheckTimes) -> str:
    """Return who checks what may be deleted, and when."""
    if checks.by == "caller":
        return "no store has the log open: only kstore retain or a call of apply_retention deletes segments"
    who = {
        "store": "the store checks what may be deleted",
        "broker": "a broker or store that has the directory open checks what may be deleted",
        "cleaner": "each pass of the cleaner checks what may be deleted",
    }.get(checks.by, f"{checks.by} checks what may be deleted")
    period = "" if checks.interval_ms is None else f" every {duration(checks.interval_ms)}"
    following = "" if checks.next_ms is None else f", next at {show(checks.next_ms)}"
    return f"{who}{period}{following}"


def sentence(text: str) -> str:
    """Return words of the facts as a sentence; a setting's name at the beginning stays as it is."""
    first = text.partition(" ")[0]
    start = text[:1] if "." in first or "_" in first else text[:1].upper()
    return f"{start}{text[1:]}{'' if text.endswith(('.', ':')) or not text else '.'}"
