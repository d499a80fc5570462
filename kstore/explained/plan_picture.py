"""Draws a plan: the disk over time, the first segments and why the log rolls, and how long a record lives.

`picture` turns facts into SVG and does no I/O. A second plan is drawn beside the first, on the same scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained import svg
from kstore.explained.segment_words import roll_name, setting_words
from kstore.explained.time_scale import duration, even_steps

if TYPE_CHECKING:
    from kstore.explained.explained_plan import Plan, PlannedRange, PlannedSegment

__all__ = ["differences", "picture"]

_WIDTH, _MARGIN = 960, 24
_LEFT, _RIGHT = 250, 900  # the edges of all scales
_GRAPH = 170  # the height of the disk
_ROW, _BAR = 30, 18
_SEGMENTS = 8
_POINTS = 300  # of a line; between two of them the least and the greatest value count
_KINDS = (("sealed", "nowline", "nowink"), ("dirty", "offsetline", "offsetindex"))


@dataclass(frozen=True)
class _Drawn:
    """A plan with its name and its colours: of areas, of lines, of text."""

    plan: Plan
    name: str
    fill: str
    line: str
    ink: str


def picture(plan: Plan, other: Plan | None = None, *, styled: bool = True, prefix: str = "plan") -> str:
    """Return the SVG of a plan as text.

    Args:
        plan: The facts.
        other: A second plan to compare with.
        styled: Whether the picture holds its rules of CSS; see `svg.document`.
        prefix: The beginning of the identifiers in the picture, which differ on a page with several pictures.
    """
    drawn = [_Drawn(each, name, *kinds) for (each, name), kinds in zip(_named(plan, other), _KINDS, strict=False)]
    parts: list[str] = []
    y: float = 34
    for each in drawn:
        if len(drawn) > 1:
            parts.append(svg.box(_MARGIN, y - 12, 16, 14, f"{each.fill} {each.line}"))
        x = _MARGIN + (24 if len(drawn) > 1 else 0)
        for line in svg.wrapped(f"{each.name}: {_about(each.plan)}", _WIDTH - _MARGIN - x, 15, bold=True, most=3):
            parts.append(svg.text(x, y, line, size=15, bold=True))
            y += 22
    for section in (_disk, _segments, _lives):
        lines, y = section(drawn, y + 18)
        parts += lines
    return svg.document(
        parts,
        svg.Sheet(_WIDTH, int(y) + 10, prefix),
        title="A plan" if other is None else "Two plans side by side",
        description=" ".join(f"{each.name}: {_about(each.plan)}" for each in drawn),
        heads=[each.line for each in drawn],
        styled=styled,
    )


def differences(plan: Plan, other: Plan) -> tuple[str, str]:
    """Return names for two plans: the settings that differ, or the loads if no setting does."""
    different = sorted(
        name
        for name in {*plan.settings, *other.settings}
        if plan.settings.get(name) != other.settings.get(name) and (name in plan.given or name in other.given)
    )
    if not different:
        return "first plan", "second plan"

    named = [
        ", ".join(setting_words(each, settings.get(each)) for each in different[:4])
        for settings in (plan.settings, other.settings)
    ]
    return named[0], named[1]


def _named(plan: Plan, other: Plan | None) -> list[tuple[Plan, str]]:
    if other is None:
        given = ", ".join(setting_words(name, plan.settings.get(name)) for name in sorted(plan.given)[:4])
        return [(plan, given or "Defaults")]
    return list(zip((plan, other), differences(plan, other), strict=True))


def _about(plan: Plan) -> str:
    """Return what the plan leads to, as a sentence."""
    disk = f"{size(plan.disk_bytes.least)} to {size(plan.disk_bytes.most)} on the disk"
    if plan.life_ms is None:
        return f"{disk}; no record is deleted."
    least, _, most = plan.life_ms
    return f"{disk}; a record stays readable for {_span(least)} to {_span(most)}."


# --- the disk ---------------------------------------------------------------------------------------------------------


def _disk(drawn: Sequence[_Drawn], y: float) -> tuple[list[str], float]:
    """Draw the size of the log over time."""
    end = _end(drawn)
    most = max((value for each in drawn for _, value in each.plan.disk), default=0) or 1
    top, bottom = y + 56, y + 56 + _GRAPH
    lines = [svg.text(_MARGIN, y + 14, "Bytes on the disk over time", size=15, bold=True)]
    for part in (0, 0.5, 1):
        at = bottom - _GRAPH * part
        lines.append(svg.line(_LEFT, at, _RIGHT, at, "grid", width=1))
        lines.append(svg.text(_LEFT - 8, at + 4, size(int(most * part)), "soft", size=12, anchor="end"))
    lines += _axis(end, top, bottom)
    for number, each in enumerate(drawn):
        points = _thinned(each.plan.disk, end)
        if not points:
            continue
        corners = (f"{_x(time, end):.1f} {bottom - _GRAPH * value / most:.1f}" for time, value in points)
        along = f"M{'L'.join(corners)}"
        steady, x = each.plan.steady_ms, _x(points[-1][0], end)
        if steady is None:
            along += f"H{_x(end, end):.1f}"
        elif x < _RIGHT - 4:
            high, low = (bottom - _GRAPH * min(value / most, 1) for value in _most_and_least(each.plan))
            lines.append(svg.box(x, high, _RIGHT - x, low - high, each.fill))
        lines.append(svg.path(along, each.line, width=2))
        if steady is not None and 0 < steady < end:
            x = _x(steady, end)
            lines.append(svg.line(x, top - 6 - 15 * number, x, bottom, each.line, width=1.2, dash="2 4"))
            words = f"first files gone after {_span(steady)}"
            lines.append(svg.label(x, top - 10 - 15 * number, words, each.ink, left=_LEFT, right=_RIGHT + 40))
    return lines, bottom + 28


def _most_and_least(plan: Plan) -> tuple[int, int]:
    """Return the greatest and the least size of the log once it is steady."""
    values = [value for time, value in plan.disk if time >= (plan.steady_ms or 0)]
    return max(values, default=0), min(values, default=0)


def _thinned(disk: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return at most so many points of a line that the least and the greatest values are still seen."""
    shown = [point for point in disk if point[0] <= end]
    if len(shown) <= _POINTS:
        return shown
    kept: list[tuple[int, int]] = []
    for number in range(_POINTS // 2):
        part = shown[len(shown) * number // (_POINTS // 2) : len(shown) * (number + 1) // (_POINTS // 2)]
        ends = (min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1]))
        kept += [part[at] for at in sorted(set(map(part.index, ends)))]
    return kept


def _end(drawn: Sequence[_Drawn]) -> int:
    """Return until when the plans are drawn: until all have repeated at least once."""
    ends = []
    for each in drawn:
        last = max((time for time, _ in each.plan.disk), default=each.plan.duration_ms)
        steady = each.plan.steady_ms
        ends.append(last if steady is None else min(last, 2 * steady) if steady else last)
    return max(*ends, 1)


# --- the segments -----------------------------------------------------------------------------------------------------


def _segments(drawn: Sequence[_Drawn], y: float) -> tuple[list[str], float]:
    """Draw the first segments: their appends, and until when they are kept."""
    most = _SEGMENTS if len(drawn) == 1 else _SEGMENTS // 2
    lines = [svg.text(_MARGIN, y + 14, "The first segments, and when each is deleted", size=15, bold=True)]
    shown = [segment for each in drawn for segment in each.plan.segments[:most]]
    end = max((_last(segment) for segment in shown), default=1) or 1
    top = y + 28
    count = sum(min(len(each.plan.segments), most) for each in drawn)
    bottom = top + _ROW * count
    lines += _axis(end, top, bottom)
    y = top
    for each in drawn:
        for segment in each.plan.segments[:most]:
            lines += _segment(each, segment, y, end)
            y += _ROW
    return lines, bottom + 28


def _segment(each: _Drawn, segment: PlannedSegment, y: float, end: int) -> Iterator[str]:
    rolled = roll_name(segment.roll_reason) if segment.roll_reason else "active at the end"
    room = _LEFT - _MARGIN - 12
    words = f"{size(segment.size_bytes)}, {rolled}"
    yield svg.text(_MARGIN, y + 18, svg.fitted(words, room, 12), "soft", size=12)
    left, right = _x(segment.first_ms, end), max(_x(segment.last_ms, end), _x(segment.first_ms, end) + 3)
    if segment.deleted_ms is not None:
        gone = _x(segment.deleted_ms, end)
        yield svg.line(right, y + 5 + _BAR / 2, gone, y + 5 + _BAR / 2, each.line, width=1.4, dash="2 3")
        yield svg.line(gone, y + 5, gone, y + 5 + _BAR, "goingline", width=2.4)
        by = {"time": "retention.ms", "size": "retention.bytes"}.get(segment.delete_reason or "", "")
        words = f"{_span(segment.deleted_ms)}{f', {by}' if by else ''}"
        if gone + 8 + svg.width_of(words, 11) < _WIDTH - 8:
            yield svg.text(gone + 7, y + 18, words, "goingink", size=11)
        elif gone - right > svg.width_of(words, 11) + 16:
            yield svg.box(gone - svg.width_of(words, 11) - 8, y + 6, svg.width_of(words, 11) + 4, _BAR - 2, "paper")
            yield svg.text(gone - 7, y + 18, words, "goingink", size=11, anchor="end")
    yield svg.box(left, y + 5, right - left, _BAR, f"{each.fill} {each.line}", dashed=segment.roll_reason is None)


def _last(segment: PlannedSegment) -> int:
    return segment.last_ms if segment.deleted_ms is None else max(segment.deleted_ms, segment.last_ms)


# --- the life of a record ---------------------------------------------------------------------------------------------


def _lives(drawn: Sequence[_Drawn], y: float) -> tuple[list[str], float]:
    """Draw how long a record is readable, and how long its bytes stay."""
    lines = [svg.text(_MARGIN, y + 14, "How long a record stays: least, typical, most", size=15, bold=True)]
    y += 28
    ranges: list[tuple[_Drawn, str, PlannedRange | None]] = []
    for each in drawn:
        ranges += [(each, "readable", each.plan.life_ms), (each, "on the disk", each.plan.freed_ms)]
    end = max((found.most for _, _, found in ranges if found is not None), default=1) or 1
    bottom = y + _ROW * len(ranges)
    if all(found is None for _, _, found in ranges):
        return [*lines, svg.text(_MARGIN, y + 18, "No record is deleted in the planned time.", "soft")], y + 34
    lines += _axis(end, y, bottom)
    for each, what, found in ranges:
        lines.append(svg.text(_MARGIN, y + 18, what, "soft", size=12))
        if found is None:
            lines.append(svg.text(_LEFT, y + 18, "without an end: nothing is deleted", "soft", size=12))
        else:
            lines += _range(each, found, y, end)
        y += _ROW
    return lines, bottom + 28


def _range(each: _Drawn, found: PlannedRange, y: float, end: int) -> Iterator[str]:
    left, middle, right = (_x(value, end) for value in found)
    yield svg.box(left, y + 5, max(right - left, 3), _BAR, f"{each.fill} {each.line}")
    yield svg.line(middle, y + 3, middle, y + _BAR + 7, each.line, width=3)
    words = " \u2013 ".join(dict.fromkeys(_span(value) for value in found))
    wide = svg.width_of(words, 12)
    if right + wide + 10 < _WIDTH - 8:
        yield svg.text(right + 8, y + 18, words, size=12)
    elif left - wide - 10 > _LEFT:
        yield svg.text(left - 8, y + 18, words, size=12, anchor="end")
    else:
        low, high = (left, middle) if middle - left > right - middle else (middle, right)
        words = svg.fitted(words, high - low - 12, 12)
        yield svg.text((low + high) / 2, y + 18, words, size=12, anchor="middle")


# --- parts ------------------------------------------------------------------------------------------------------------


def _axis(end: int, top: float, bottom: float) -> Iterator[str]:
    """Draw a scale of time that begins with the plan."""
    for time in even_steps(end, int((_RIGHT - _LEFT) / 80)):
        x = _x(time, end)
        yield svg.line(x, top, x, bottom, "grid", width=1)
        yield svg.text(x, bottom + 16, _span(time) if time else "0", "soft", size=11, anchor="middle")


def _x(time: int, end: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * min(time, end) / end


def _span(milliseconds: int) -> str:
    return duration(milliseconds, is_short=True)
