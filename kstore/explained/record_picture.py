"""Draws the life of one record: written, its segment filled, retention, the check that deletes it, its bytes gone.

`picture` turns facts into SVG and does no I/O. Each phase begins where the one before ends. Durations are written on
the bars, which are not to scale: a minute must be seen beside a week.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import segment_words, svg
from kstore.explained.record_words import headline, record_clock, segment_of, total
from kstore.explained.time_scale import TimeScale, duration

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["picture"]

_WIDTH, _MARGIN = 960, 24
_LEFT, _RIGHT = 384, 918  # the edges of the scale
_ROW, _BAR = 76, 26
_WORDS = _LEFT - _MARGIN - 44  # the room for the words of a phase


@dataclass(frozen=True)
class _Phase:
    """A part of a record's life."""

    title: str
    words: str
    start: int | None
    end: int | None
    """None: it does not end."""
    kind: str
    on_bar: str = ""
    is_point: bool = False
    earliest: int | None = None
    """When the phase ends at the earliest, if that is not certain."""


def picture(explanation: Explanation, *, titled: bool = True, styled: bool = True, prefix: str = "record") -> str:
    """Return the SVG of the life of an explanation's record as text.

    Args:
        explanation: The facts; its `record` must not be None.
        titled: Whether the sentence that says why the record is there stands above; without, the page has it.
        styled: Whether the picture holds its rules of CSS; see `svg.document`.
        prefix: The beginning of the identifiers in the picture, which differ on a page with several pictures.
    """
    record = explanation.record
    if record is None:
        raise ValueError("the explanation has no record: ask for one by offset or timestamp")
    said = headline(explanation, record)
    lines = svg.wrapped(said, _WIDTH - 2 * _MARGIN, 19, bold=True) if titled else []
    phases = _phases(explanation, record)
    head = 13 + 27 * len(lines) if titled else -5
    top = head + 99
    bottom = top + _ROW * len(phases)
    last = svg.wrapped(total(explanation, record), _WIDTH - 2 * _MARGIN, 14, bold=True)
    name = f"{explanation.topic}-{explanation.partition}"
    at = show(explanation.at_ms)
    about = f"{name}, record {record.offset:,}, at {at[:10]} {at[11:19]} UTC"
    return svg.document(
        (
            *(svg.text(_MARGIN, 40 + 27 * number, line, size=19, bold=True) for number, line in enumerate(lines)),
            svg.text(_MARGIN, head + 27, svg.fitted(about, _WIDTH - 2 * _MARGIN), "soft"),
            *_draw(explanation, record, phases, top, prefix),
            *(
                svg.text(_MARGIN, bottom + 26 + 20 * number, line, size=14, bold=True)
                for number, line in enumerate(last)
            ),
        ),
        svg.Sheet(_WIDTH, bottom + 20 + 20 * len(last), prefix),
        title=said,
        description=" ".join(f"{number}. {each.title}: {each.words}" for number, each in enumerate(phases, 1)),
        heads=("edge", "nowline"),
        styled=styled,
    )


# --- the phases -------------------------------------------------------------------------------------------------------


def _phases(explanation: Explanation, record: ExplainedRecord) -> list[_Phase]:
    """Return the parts of a record's life, in their order."""
    segment, clock = segment_of(explanation, record), record_clock(explanation, record)
    at_ms = explanation.at_ms
    held = segment_words.offsets(segment.base_offset, segment.next_offset)
    first = segment.first_timestamp
    first_offset, last_offset = record.batch_offsets
    of = f"Record {record.offset:,}, in the batch of offsets {first_offset:,} \u2013 {last_offset:,}."
    if first_offset == last_offset:
        of = f"Record {record.offset:,}, alone in its batch."
    if record.timestamp is None:
        title = "Written, without a timestamp"
    elif record.timestamp > at_ms:
        title = f"Written as of {clock(record.timestamp)}"
    else:
        title = f"Written {clock(record.timestamp)}"
    phases = [_Phase(title, of, record.timestamp, record.timestamp, "found", is_point=True)]
    end = _filled(segment, at_ms)
    words = f"Offsets {held}, {size(segment.size_bytes)}. "
    if segment.is_active:
        words += "It is the active segment: appends go there, and each keeps its older records longer."
        phases.append(_Phase("Its segment fills", words, first, end, "active", _between(first, end)))
    else:
        rolled = segment_words.roll_words(segment)
        words += f"The log {rolled.replace(':', ': its', 1) if ':' in rolled else rolled}." if rolled else ""
        title = f"Its segment ends {clock(end)}" if end is not None else "Its segment ends"
        phases.append(_Phase(title, words, first, end, "sealed", _between(first, end)))
    phases.append(_retention(explanation, record))
    if record.earliest_ms is None:
        return phases
    phases.append(_check(explanation, record))
    if record.latest_ms is None or record.freed_ms is None:
        return phases
    title = f"Off the disk {_by(record)}{clock(record.freed_ms)}"
    words = "The deleted files are renamed, and unlinked after file.delete.delay.ms."
    gone = _between(record.latest_ms, record.freed_ms)
    return [*phases, _Phase(title, words, record.latest_ms, record.freed_ms, "before", gone)]


def _filled(segment: ExplainedSegment, at_ms: int) -> int | None:
    """Return when the newest record of a segment was written."""
    newest = segment.max_timestamp
    if segment.is_active or (newest is not None and newest > at_ms and segment.rolled_ms is None):
        return at_ms
    return min(segment.rolled_ms or at_ms, at_ms) if newest is not None and newest > at_ms else newest


def _retention(explanation: Explanation, record: ExplainedRecord) -> _Phase:
    """Return the phase in which rules keep the record."""
    segment, clock = segment_of(explanation, record), record_clock(explanation, record)
    at_ms, newest, kept = explanation.at_ms, segment.max_timestamp, explanation.settings.get("retention.ms")
    filled = _filled(segment, at_ms)
    start = filled if filled is not None else at_ms
    due = segment.due_ms
    if due is not None and isinstance(kept, int) and "policy" not in segment.holds:
        words = "retention.ms counts from the newest record of the segment, not from this one."
        if newest is None:
            words = "No record of the segment has a timestamp: retention.ms counts from the last write of its file."
        elif newest > at_ms:
            words = f"A record of the segment has the timestamp {clock(newest)}: retention.ms counts from there."
        elif newest + kept + 1 < due:
            words = "retention.ms, counted from the newest record of the segments before: they go first."
        if segment.bytes_left:
            words += f" Earlier, if {size(segment.bytes_left)} more are appended (retention.bytes)."
        return _Phase(f"Old enough {clock(due)}", words, start, due, "kept", _between(start, due))
    if segment.bytes_left:
        words = f"Until {size(segment.bytes_left)} more are appended. Nobody knows when that is."
        return _Phase("retention.bytes keeps it", words, start, None, "kept")
    if "no_limit" in segment.holds:
        words = "Neither retention.ms nor retention.bytes is set, so nothing deletes the segment."
        return _Phase("Kept without a limit", words, start, None, "kept")
    if "policy" in segment.holds:
        words = (
            segment_words.sentence(segment.compaction or "")
            or "cleanup.policy has no delete: neither age nor size deletes the segment."
        )
        return _Phase(f"cleanup.policy = {explanation.settings.get('cleanup.policy')}", words, start, None, "kept")
    end = record.earliest_ms
    return _Phase(
        "Kept",
        segment_words.sentence(segment.explanation),
        start,
        end,
        "kept",
        "" if end is None else _between(start, end),
    )


def _check(explanation: Explanation, record: ExplainedRecord) -> _Phase:
    """Return the phase in which nothing but a check is missing."""
    segment, clock = segment_of(explanation, record), record_clock(explanation, record)
    checks, earliest, latest = explanation.checks, record.earliest_ms, record.latest_ms
    start = segment.due_ms if segment.due_ms is not None else earliest
    if checks.by == "caller":
        words = "The log is open alone: it deletes when apply_retention is called."
    else:
        every = f" every {duration(checks.interval_ms)}" if checks.interval_ms else ""
        who = {"cleaner": "The cleaner", "broker": "The broker"}.get(checks.by, "The store")
        words = f"{who} checks{every}, and deletes whole segments."
    if latest is None:
        return _Phase(f"Deleted after {clock(earliest)}", words, start, None, "going")
    title = f"Deleted {_by(record)}{clock(latest)}"
    return _Phase(title, words, start, latest, "going", _between(start, latest), earliest=earliest)


def _between(start: int | None, end: int | None) -> str:
    return "" if start is None or end is None or end <= start else duration(end - start, is_short=True)


def _by(record: ExplainedRecord) -> str:
    return "" if record.earliest_ms == record.latest_ms else "by "


# --- the drawing ------------------------------------------------------------------------------------------------------


def _draw(
    explanation: Explanation, record: ExplainedRecord, phases: list[_Phase], top: float, prefix: str
) -> Iterator[str]:
    """Draw the phases one below the other, and now."""
    clock, at_ms = record_clock(explanation, record), explanation.at_ms
    times = {at_ms} | {time for each in phases for time in (each.start, each.end, each.earliest) if time is not None}
    is_open = any(each.end is None for each in phases)
    scale = TimeScale(times, _LEFT, _RIGHT - (110 if is_open else 0), power=0.5, least=36)
    bottom, now = top + _ROW * len(phases), scale.x(at_ms)
    here = _now_in(phases, at_ms)
    for number, phase in enumerate(phases):
        y = top + _ROW * number
        if number == here:
            yield svg.box(_MARGIN - 8, y - 2, _WIDTH - 2 * _MARGIN + 16, _ROW - 2, "panel")
        yield f'<circle class="{"nowink" if number == here else "before"}" cx="{_MARGIN + 12}" cy="{y + 17:g}" r="12"/>'
        kind = "paper" if number == here else "ink"
        yield svg.text(_MARGIN + 12, y + 22, f"{number + 1}", kind, size=13, bold=True, anchor="middle")
        yield svg.text(_MARGIN + 34, y + 19, svg.fitted(phase.title, _WORDS, 14, bold=True), size=14, bold=True)
        for row, text in enumerate(svg.wrapped(phase.words, _WORDS, 12, most=3)):
            yield svg.text(_MARGIN + 34, y + 36 + 15 * row, text, "soft", size=12)
        yield from _bar(replace(phase, start=phase.start if phase.start is not None else at_ms), y, scale, now, prefix)
        if number + 1 < len(phases) and phase.end is not None and not phase.is_point:
            x = scale.x(phase.end)
            yield svg.line(x, y + 6 + _BAR, x, y + _ROW + 6, "edge", width=1.2, dash="2 3")
    yield svg.line(now, top - 12, now, bottom - 8, "nowline", width=2)
    yield svg.label(now, top - 18, f"now {clock(at_ms)}", "nowink", left=_LEFT - 20, right=_WIDTH - 12, size=13)


def _bar(phase: _Phase, y: float, scale: TimeScale, now: float, prefix: str) -> Iterator[str]:
    """Draw the bar of a phase, with its duration."""
    assert phase.start is not None
    left = scale.x(phase.start)
    if phase.is_point:
        yield f'<circle class="found edge" cx="{left:.1f}" cy="{y + 6 + _BAR / 2:g}" r="9"/>'
        return
    if phase.end is None:
        yield svg.box(left, y + 6, _RIGHT - left - 30, _BAR, f"{phase.kind} edge", dashed=True)
        yield svg.line(_RIGHT - 28, y + 6 + _BAR / 2, _RIGHT, y + 6 + _BAR / 2, "edge", width=2, head=prefix)
        return
    right = max(scale.x(phase.end), left + 4)
    yield svg.box(left, y + 6, right - left, _BAR, f"{phase.kind} edge")
    if phase.earliest is not None and scale.x(phase.earliest) < right - 1:
        start = scale.x(phase.earliest)
        yield svg.box(start, y + 6, right - start, _BAR, "going goingline", dashed=True)
    cut = now if phase.earliest is None else scale.x(phase.earliest)
    yield from _label(phase.on_bar, left, right, y + 24, cut)


def _label(words: str, left: float, right: float, y: float, cut: float) -> Iterator[str]:
    """Write on a bar: on its larger part beside a line that cuts it, on the whole bar, or else beside it."""
    wide = svg.width_of(words, 12)
    low, high = (left, right) if not left < cut < right else (left, cut) if cut - left > right - cut else (cut, right)
    if wide > high - low - 6:
        low, high = left, right
    if wide <= high - low - 6:
        yield svg.text((low + high) / 2, y, words, size=12, anchor="middle")
    elif right + wide + 8 < _WIDTH - 8:
        yield svg.text(right + 8, y, words, size=12)
    else:
        yield svg.text(left - 8, y, words, size=12, anchor="end")


def _now_in(phases: list[_Phase], at_ms: int) -> int:
    """Return the phase that is going on: the first that has not ended."""
    for number, phase in enumerate(phases):
        if phase.end is None or phase.end > at_ms or (number == 1 and phase.kind == "active"):
            return number
    return len(phases) - 1
