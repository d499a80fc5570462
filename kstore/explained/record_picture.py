"""Draws the life of one record: written, its segment filled, retention, the check that deletes it, its bytes gone.

`picture` turns facts into SVG and does no I/O. Each phase begins where the one before ends. Durations are written on
the bars, which are not to scale: a minute must be seen beside a week.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import svg
from kstore.explained.record_phases import Phase, SizeLimit, phases_of
from kstore.explained.record_words import headline, record_clock, total
from kstore.explained.time_scale import TimeScale

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, Explanation

__all__ = ["picture"]

_WIDTH, _MARGIN = 960, 24
_LEFT, _RIGHT = 384, 918  # the edges of the scale
_ROW, _BAR, _AXIS = 76, 26, 26
_WORDS = _LEFT - _MARGIN - 44  # the room for the words of a phase


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
    phases = phases_of(explanation, record)
    head = 13 + 27 * len(lines) if titled else -5
    top = head + 99
    bottom = top + _ROW * len(phases) + _AXIS
    last = svg.wrapped(total(explanation, record), _WIDTH - 2 * _MARGIN, 14, bold=True)
    at = show(explanation.at_ms)
    about = f"Partition {explanation.partition} of topic {explanation.topic}, at {at[:10]} {at[11:19]} UTC"
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


# --- the drawing ------------------------------------------------------------------------------------------------------


def _draw(
    explanation: Explanation, record: ExplainedRecord, phases: list[Phase], top: float, prefix: str
) -> Iterator[str]:
    """Draw the phases one below the other, and now."""
    clock, at_ms = record_clock(explanation, record), explanation.at_ms
    timed = [each for each in phases if each.kind]
    times = {at_ms} | {time for each in timed for time in (each.start, each.end, each.earliest) if time is not None}
    is_open = any(each.end is None for each in timed)
    scale = TimeScale(times, _LEFT, _RIGHT - (110 if is_open else 0), power=0.5, least=36)
    axis, now = top + _ROW * len(timed), scale.x(at_ms)
    here = _now_in(phases, at_ms)
    labels: list[str] = []
    for number, phase in enumerate(phases):
        y = top + _ROW * number + (0 if phase.kind else _AXIS)
        if number == here:
            yield svg.box(_MARGIN - 8, y - 2, _WIDTH - 2 * _MARGIN + 16, _ROW - 2, "panel")
        yield from _words(number, phase, y, is_here=number == here)
        if phase.limit is not None:
            yield from _size(phase.limit, y)
        if not phase.kind:
            continue
        start = phase.start if phase.start is not None else at_ms
        yield from _bar(replace(phase, start=start), y, scale, prefix)
        labels += _on_bar(replace(phase, start=start), y, scale, now, "panel" if number == here else "paper")
        if number + 1 < len(timed) and phase.end is not None and not phase.is_point and not phases[number + 1].is_point:
            x = max(scale.x(phase.end), scale.x(start) + 4)
            yield svg.line(x, y + 6 + _BAR, x, y + _ROW + 6, "edge", width=1.2, dash="2 3")
    yield svg.line(now, top - 12, now, axis - 6, "nowline", width=2)
    yield from labels
    yield svg.label(now, top - 18, f"now {clock(at_ms)}", "nowink", left=_LEFT - 20, right=_WIDTH - 12, size=13)
    yield svg.line(_LEFT, axis - 4, _RIGHT, axis - 4, "edge", width=1.2, head=prefix)
    yield svg.text(_RIGHT, axis + 11, "time, not to scale", "soft", size=11, anchor="end")


def _words(number: int, phase: Phase, y: float, *, is_here: bool) -> Iterator[str]:
    """Draw the number, the title and the words of a phase; without a place in time they may be wide."""
    room = _WORDS if phase.kind or phase.limit else _RIGHT - _MARGIN - 34
    yield f'<circle class="{"nowink" if is_here else "before"}" cx="{_MARGIN + 12}" cy="{y + 17:g}" r="12"/>'
    kind = "paper" if is_here else "ink"
    yield svg.text(_MARGIN + 12, y + 22, f"{number + 1}", kind, size=13, bold=True, anchor="middle")
    yield svg.text(_MARGIN + 34, y + 19, svg.fitted(phase.title, room, 14, bold=True), size=14, bold=True)
    for row, text in enumerate(svg.wrapped(phase.words, room, 12, most=3)):
        yield svg.text(_MARGIN + 34, y + 36 + 15 * row, text, "soft", size=12)


def _size(limit: SizeLimit, y: float) -> Iterator[str]:
    """Draw the log as a bar of bytes: the segments that go first, the newer ones, and what they lack to the limit."""
    parts = (
        (limit.through, "going edge", f"old: {size(limit.through)}"),
        (limit.newer, "sealed edge", f"newer: {size(limit.newer)}"),
        (limit.missing, "paper edge", f"to come: {size(limit.missing)}"),
    )
    room, least = _RIGHT - _LEFT, 6.0
    whole = max(sum(count for count, _, _ in parts), 1)
    widths = [least + (room - 3 * least) * count / whole for count, _, _ in parts]
    x: float = _LEFT
    for (_, kind, words), wide in zip(parts, widths, strict=True):
        yield svg.box(x, y + 6, wide, _BAR, kind, dashed=kind.startswith("paper"))
        if svg.width_of(words, 12) < wide - 6:
            yield svg.text(x + wide / 2, y + 24, words, size=12, anchor="middle")
        x += wide
    left = _LEFT + widths[0]
    yield svg.path(f"M{left:.1f} {y + 38:g}v6H{_RIGHT:g}v-6", "inkline", width=1.2)
    words = f"retention.bytes keeps {size(limit.limit)}"
    yield svg.label((left + _RIGHT) / 2, y + 60, words, left=_LEFT, right=_RIGHT, size=12)


def _bar(phase: Phase, y: float, scale: TimeScale, prefix: str) -> Iterator[str]:
    """Draw the bar of a phase."""
    assert phase.start is not None
    left = scale.x(phase.start)
    if phase.is_point:
        yield f'<circle class="{phase.kind} edge" cx="{left:.1f}" cy="{y + 6 + _BAR / 2:g}" r="9"/>'
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


def _on_bar(phase: Phase, y: float, scale: TimeScale, now: float, ground: str) -> Iterator[str]:
    """Write how long a phase is: on its bar, on the larger part beside a line that cuts it, or else beside the bar."""
    assert phase.start is not None
    if not phase.on_bar or (phase.end is None and not phase.is_point):
        return
    words, wide = phase.on_bar, svg.width_of(phase.on_bar, 12)
    left = scale.x(phase.start)
    right = max(scale.x(phase.end), left + 4) if phase.end is not None else left
    if phase.is_point:
        left, right = left - 8, left + 8
    cut = now if phase.earliest is None else scale.x(phase.earliest)
    low, high = (left, right) if not left < cut < right else (left, cut) if cut - left > right - cut else (cut, right)
    if wide > high - low - 6:
        low, high = left, right
    if wide <= high - low - 6:
        yield svg.text((low + high) / 2, y + 24, words, size=12, anchor="middle")
        return
    start = right + 8 if right + wide + 8 < _WIDTH - 8 else left - 8 - wide
    if start - 3 < now < start + wide + 3:
        yield svg.box(start - 3, y + 9, wide + 6, _BAR - 6, ground)
    yield svg.text(start, y + 24, words, size=12)


def _now_in(phases: list[Phase], at_ms: int) -> int:
    """Return the phase that is going on: the first that has not ended."""
    for number, phase in enumerate(phases):
        if phase.end is None and phase.is_point:
            continue
        if phase.end is None or phase.end > at_ms or (number == 1 and phase.kind == "active"):
            return number
    return len(phases) - 1
