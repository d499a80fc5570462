"""Draws the segments of a partition over time or over offsets: why each was rolled, what keeps it, when it goes.

`picture` turns facts into SVG and does no I/O. A log of many segments is drawn with its oldest and its newest segments
one by one, and groups of those between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import segment_words, svg
from kstore.explained.time_scale import TimeScale, clock_of, duration

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedSegment, Explanation

__all__ = ["picture"]

_WIDTH, _MARGIN = 960, 24
_LEFT, _RIGHT = 208, 718  # the edges of the scale
_TOP, _ROW, _BAR = 132, 40, 22
_OLDEST, _GROUPS, _NEWEST = 7, 5, 8  # rows of a log of many segments
_INFINITE = 1 << 62


@dataclass(frozen=True)
class _Row:
    """A segment, or several that follow each other, as one bar."""

    segments: Sequence[ExplainedSegment]
    base_offset: int
    next_offset: int
    size_bytes: int
    first: int | None
    newest: int | None
    kind: str

    @classmethod
    def of(cls, segments: Sequence[ExplainedSegment]) -> _Row:
        """Return the row of these segments."""
        firsts = [each.first_timestamp for each in segments if each.first_timestamp is not None]
        newest = [each.max_timestamp for each in segments if each.max_timestamp is not None]
        kinds = {segment_words.kind_of(each) for each in segments}
        return cls(
            segments,
            segments[0].base_offset,
            segments[-1].next_offset,
            sum(each.size_bytes for each in segments),
            min(firsts, default=None),
            max(newest, default=None),
            next((kind for kind in ("future", "going") if kind in kinds), min(kinds)),
        )


def picture(
    explanation: Explanation,
    *,
    axis: Literal["time", "offset"] = "time",
    link: Callable[[int], str] | None = None,
    styled: bool = True,
    prefix: str = "timeline",
) -> str:
    """Return the SVG of a partition's segments as text.

    Args:
        explanation: The facts.
        axis: What the bars are drawn over. Over time, the picture also shows the moments at which segments are deleted;
            over offsets, the marks of the log.
        link: Returns the address for a segment, from its base offset; without it nothing is a link.
        styled: Whether the picture holds its rules of CSS; see `svg.document`.
        prefix: The beginning of the identifiers in the picture, which differ on a page with several pictures.
    """
    rows = _rows(explanation)
    plot = (_OverTime if axis == "time" else _OverOffsets)(explanation, rows)
    bottom = _TOP + _ROW * len(rows)
    sheet = svg.Sheet(_WIDTH, bottom + 84, prefix)
    title = f"{explanation.topic}-{explanation.partition}"
    return svg.document(
        (
            svg.text(_MARGIN, 38, svg.fitted(title, 900, 22, bold=True), size=22, bold=True),
            svg.text(_MARGIN, 60, svg.fitted(_about(explanation), 912, 14), "soft", size=14),
            svg.text(_MARGIN, 80, svg.fitted(plot.about(), 912), "soft"),
            *plot.scale(bottom),
            *(part for number, row in enumerate(rows) for part in _draw(row, _TOP + _ROW * number, plot, link)),
            *plot.front(bottom),
            *_legend(explanation, rows, bottom + 62),
        ),
        sheet,
        title=f"{title}: its segments over {'time' if axis == 'time' else 'offsets'}",
        description=f"{_about(explanation)} {plot.about()}",
        heads=("nowline",),
        styled=styled,
        has_links=link is not None,
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(explanation: Explanation) -> list[_Row]:
    """Return what is drawn: each segment, or of many those in the middle in groups."""
    segments = explanation.segments
    if len(segments) <= _OLDEST + _GROUPS + _NEWEST:
        return [_Row.of([segment]) for segment in segments]
    middle = segments[_OLDEST:-_NEWEST]
    cuts = [len(middle) * number // _GROUPS for number in range(_GROUPS + 1)]
    return [
        *(_Row.of([segment]) for segment in segments[:_OLDEST]),
        *(_Row.of(middle[start:end]) for start, end in pairwise(cuts)),
        *(_Row.of([segment]) for segment in segments[-_NEWEST:]),
    ]


def _draw(row: _Row, y: float, plot: _OverTime | _OverOffsets, link: Callable[[int], str] | None) -> Iterator[str]:
    """Draw a row: its offsets and size, its bar, what keeps it and when it goes."""
    one = row.segments[0] if len(row.segments) == 1 else None
    name = segment_words.offsets(row.base_offset, row.next_offset)
    rolled = segment_words.roll_words(one) if one else f"{len(row.segments):,} segments"
    room, bytes_ = _LEFT - _MARGIN - 12, size(row.size_bytes)
    wide = svg.width_of(bytes_, 11)
    yield svg.text(_MARGIN, y + 14, svg.fitted(name, room - wide - 8, bold=True), bold=True)
    yield svg.text(_MARGIN + room, y + 14, bytes_, "soft", size=11, anchor="end")
    yield svg.text(_MARGIN, y + 30, svg.fitted(rolled, room, 11), "soft", size=11)
    yield from plot.behind(row, y)
    left, right = plot.span(row)
    bar = svg.box(left, y + 5, right - left, _BAR, f"{row.kind} edge", dashed=bool(one and one.is_active))
    bar += "".join(plot.inside(row, y))
    yield bar if link is None else svg.linked(link(row.base_offset), f"Segment {name}, {size(row.size_bytes)}", bar)
    held, goes = _fate(row, plot)
    room = _WIDTH - _MARGIN - _RIGHT - 14
    yield svg.text(_RIGHT + 14, y + 14, svg.fitted(goes, room, bold=True), bold=True)
    yield svg.text(_RIGHT + 14, y + 30, svg.fitted(held, room, 11), "soft", size=11)


def _fate(row: _Row, plot: _OverTime | _OverOffsets) -> tuple[str, str]:
    """Return what keeps the segments of a row, and when they go."""
    clock, at_ms = plot.clock, plot.explanation.at_ms
    first, last = row.segments[0], row.segments[-1]
    causes = Counter(segment.holds for segment in row.segments)
    held = segment_words.hold_words(causes.most_common(1)[0][0])
    if len(causes) > 1:
        held += f", and {len(causes) - 1} other cause{'s' if len(causes) > 2 else ''}"
    goes = segment_words.fate(first, clock, at_ms)
    if len(row.segments) > 1 and (other := segment_words.fate(last, clock, at_ms)) != goes:
        ends = [each for each in (first.earliest_ms, last.latest_ms) if each is not None]
        goes = f"go {clock(ends[0])} to {clock(ends[1])}" if len(ends) == 2 else f"{goes}; {other}"
    return held, goes


def _about(explanation: Explanation) -> str:
    """Return what the log is, as a sentence."""
    total = size(sum(segment.size_bytes for segment in explanation.segments))
    count = len(explanation.segments)
    start, end = explanation.log_start_offset, explanation.log_end_offset
    records = f"Offsets {start:,} to {end - 1:,}" if start < end else f"No records, next offset {end:,}"
    return f"{records}, in {count:,} segment{'s' if count != 1 else ''}, {total}; {_limits(explanation)}."


def _limits(explanation: Explanation) -> str:
    """Return the settings that limit the log."""
    settings = explanation.settings
    parts = []
    if _is_set(settings.get("retention.ms")):
        parts.append(f"retention.ms is {segment_words.value_words('retention.ms', settings['retention.ms'])}")
    if _is_set(settings.get("retention.bytes")):
        parts.append(f"retention.bytes is {segment_words.value_words('retention.bytes', settings['retention.bytes'])}")
    if "compact" in str(settings.get("cleanup.policy", "")):
        parts.append(f"cleanup.policy is {settings['cleanup.policy']}")
    if not parts:
        return "no limit is set"
    return " and ".join(parts)


def _is_set(limit: object) -> bool:
    return isinstance(limit, int) and 0 <= limit < _INFINITE


# --- over time --------------------------------------------------------------------------------------------------------


class _OverTime:
    """Bars from a segment's first to its newest timestamp, and when it goes."""

    def __init__(self, explanation: Explanation, rows: Sequence[_Row]) -> None:
        self.explanation = explanation
        self._rows = rows
        times = {explanation.at_ms}
        for row in rows:
            last = row.segments[-1]
            times |= {time for time in (row.first, row.newest, row.segments[0].latest_ms, last.latest_ms) if time}
        times |= {file.gone_ms for file in explanation.deleted if file.gone_ms is not None}
        self._scale = TimeScale(times, _LEFT, _RIGHT)
        self.clock = clock_of(time for time in times if time < explanation.at_ms + 366 * 86_400_000)

    def about(self) -> str:
        """Say what the picture shows."""
        at = show(self.explanation.at_ms)
        checks = self.explanation.checks
        every = f" A check every {duration(checks.interval_ms)} deletes segments." if checks.interval_ms else ""
        return f"At {at[:10]} {at[11:19]} UTC.{every}{_waiting(self.explanation, self.clock)}"

    def span(self, row: _Row) -> tuple[float, float]:
        """Return the edges of a bar."""
        if row.first is None and row.newest is None:
            now = self._scale.x(self.explanation.at_ms)
            return now - 3, now
        first = row.newest if row.first is None else row.first
        newest = first if row.newest is None else row.newest
        assert first is not None
        assert newest is not None
        left, right = self._scale.x(min(first, newest)), self._scale.x(newest)
        return min(left, _RIGHT - 3), max(right, left + 3)

    def behind(self, row: _Row, y: float) -> Iterator[str]:
        """Draw how long the row is kept after its newest record, and the checks that can delete it."""
        one = row.segments[0]
        if one.earliest_ms is None and one.due_ms is None:
            return
        start = self.span(row)[1]
        due = self._scale.x(one.due_ms) if one.due_ms is not None else start
        if due > start:
            yield svg.line(start, y + 5 + _BAR / 2, due, y + 5 + _BAR / 2, "edge", dash="2 3")
        if one.earliest_ms is not None and row.segments[-1].latest_ms is not None:
            left, right = self._scale.x(one.earliest_ms), self._scale.x(row.segments[-1].latest_ms)
            yield svg.box(left - 1.5, y + 9, max(right - left, 0) + 3, _BAR - 8, "going goingline")

    def inside(self, row: _Row, y: float) -> Iterator[str]:
        """Draw an arrow into the bar of a record of the future."""
        if row.newest is not None and row.kind == "future":
            left, right = self.span(row)
            tip = min(right, _RIGHT) - 4
            if right - left > 20:
                yield svg.polygon([(tip - 9, y + 10), (tip, y + 16), (tip - 9, y + 22)], "futureink")

    def scale(self, bottom: float) -> Iterator[str]:
        """Draw the scale behind the bars."""
        for tick in self._scale.ticks():
            yield svg.line(tick.x, _TOP - 4, tick.x, bottom, "grid", width=1)
            yield svg.label(tick.x, bottom + 16, tick.time, "soft", left=_LEFT - 30, right=_RIGHT + 30, size=11)
            yield svg.label(tick.x, bottom + 30, tick.day, "soft", left=_LEFT - 40, right=_RIGHT + 40, size=11)
        for x, length in self._scale.breaks():
            yield svg.path(f"M{x - 6:.1f} {bottom}l4 -8v{_TOP - bottom + 12}", "grid", width=1, dash="1 4")
            yield svg.path(f"M{x + 2:.1f} {bottom}l4 -8v{_TOP - bottom + 12}", "grid", width=1, dash="1 4")
            yield svg.label(
                x, bottom + 16, f"\u2026 {duration(length)} \u2026", "soft", left=_LEFT, right=_WIDTH, size=11
            )

    def front(self, bottom: float) -> Iterator[str]:
        """Draw now, and the age limit."""
        now = self._scale.x(self.explanation.at_ms)
        yield svg.line(now, _TOP - 8, now, bottom, "nowline", width=2)
        yield svg.label(now, _TOP - 14, "now", "nowink", left=_LEFT, right=_RIGHT, size=13)
        kept = self.explanation.settings.get("retention.ms")
        if not _is_set(kept) or "delete" not in str(self.explanation.settings.get("cleanup.policy", "delete")):
            return
        assert isinstance(kept, int)
        limit = self._scale.x(self.explanation.at_ms - kept)
        if _LEFT < limit < now - 40:
            yield svg.line(limit, _TOP - 8, limit, bottom, "goingline", width=1.6, dash="5 4")
            words = f"older than {duration(kept)}"
            if limit - _LEFT > svg.width_of(words, 12) + 4:
                yield svg.text(limit - 4, _TOP - 14, words, "goingink", size=12, anchor="end")
            elif now - limit > svg.width_of(words, 12) + 30:
                yield svg.text(limit - 4, _TOP - 14, words, "goingink", size=12)


# --- over offsets -----------------------------------------------------------------------------------------------------


class _OverOffsets:
    """Bars from a segment's first to its next offset, with the marks of the log."""

    def __init__(self, explanation: Explanation, rows: Sequence[_Row]) -> None:
        self.explanation = explanation
        self._rows = rows
        self._first = rows[0].base_offset if rows else 0
        self._last = max(rows[-1].next_offset if rows else 0, self._first + 1)
        times = [explanation.at_ms]
        for row in rows:
            times += [time for time in (row.segments[0].earliest_ms, row.segments[-1].latest_ms) if time is not None]
        self.clock = clock_of(times)

    def about(self) -> str:
        """Say what the picture shows."""
        at = show(self.explanation.at_ms)
        return f"At {at[:10]} {at[11:19]} UTC.{_waiting(self.explanation, self.clock)}"

    def span(self, row: _Row) -> tuple[float, float]:
        """Return the edges of a bar."""
        left, right = self._x(row.base_offset), self._x(row.next_offset)
        return min(left, _RIGHT - 3), max(right, left + 3)

    def behind(self, row: _Row, y: float) -> Iterator[str]:
        """Draw nothing: a row has no more than its bar."""
        return iter(())

    def inside(self, row: _Row, y: float) -> Iterator[str]:
        """Draw which part of the bar is below the log start, and which compaction has cleaned or can clean."""
        start = self.explanation.log_start_offset
        left, right = self.span(row)
        if row.base_offset < start:
            yield svg.box(left, y + 5, min(right, self._x(start)) - left, _BAR, "before edge")
        if "compact" not in str(self.explanation.settings.get("cleanup.policy", "")):
            return
        dirty = self._x(self.explanation.compaction.first_dirty_offset)
        end = max(self._x(self.explanation.compaction.first_uncleanable_offset), dirty)
        for kind, low, high in (("clean", left, min(right, dirty)), ("dirty", max(left, dirty), min(right, end))):
            if high - low > 0.5:
                yield svg.box(low, y + 5 + _BAR - 7, high - low, 7, f"{kind} edge")

    def scale(self, bottom: float) -> Iterator[str]:
        """Draw the first and the last offset of each row behind the bars."""
        last = _LEFT - 80.0
        for offset in sorted({row.base_offset for row in self._rows} | {self._last}):
            x = self._x(offset)
            yield svg.line(x, _TOP - 4, x, bottom, "grid", width=1)
            half = svg.width_of(f"{offset:,}", 11) / 2
            if x - half > last + 10 and (offset == self._last or x + half < _RIGHT - 60):
                yield svg.text(x, bottom + 16, f"{offset:,}", "soft", size=11, anchor="middle")
                last = x + half

    def front(self, bottom: float) -> Iterator[str]:
        """Draw the marks of the log; marks at one offset have one line."""
        facts = self.explanation
        marks: dict[int, list[str]] = {}
        for offset, name in (
            (facts.log_start_offset, "log start"),
            (facts.recovery_point, "recovery point"),
            (facts.last_stable_offset, "last stable offset"),
            (facts.high_watermark, "high watermark"),
            (facts.log_end_offset, "log end"),
        ):
            marks.setdefault(offset, []).append(name)
        used = [_LEFT - 999.0, _LEFT - 999.0]
        for offset, names in sorted(marks.items()):
            x = self._x(offset)
            words = f"{', '.join(names)}: {offset:,}"
            wide = svg.width_of(words, 12)
            start = min(max(x - wide / 2, _MARGIN), _WIDTH - _MARGIN - wide)
            level = next((level for level, end in enumerate(used) if start > end + 10), len(used) - 1)
            if start > used[level] + 10:
                used[level] = start + wide
                yield svg.text(start, _TOP - 12 - 15 * level, words, "nowink", size=12)
            yield svg.line(x, _TOP - 8, x, bottom, "nowline", width=1.6, dash="" if len(names) > 1 else "6 3")

    def _x(self, offset: int) -> float:
        part = (offset - self._first) / (self._last - self._first)
        return _LEFT + (_RIGHT - _LEFT) * min(max(part, 0.0), 1.0)


# --- parts ------------------------------------------------------------------------------------------------------------


def _waiting(explanation: Explanation, clock: Callable[[int | None], str]) -> str:
    """Return a sentence about deleted files that still take space."""
    files = explanation.deleted
    if not files:
        return ""
    gone = [file.gone_ms for file in files if file.gone_ms is not None]
    until = f", until {clock(max(gone))}" if gone else ""
    count = f"{len(files):,} deleted file{'s' if len(files) > 1 else ''}"
    return f" {count} still take{'s' if len(files) == 1 else ''} {size(sum(file.size_bytes for file in files))}{until}."


def _legend(explanation: Explanation, rows: Sequence[_Row], y: float) -> Iterator[str]:
    """Explain the colours that occur."""
    kinds = {row.kind for row in rows}
    names = [
        ("sealed", "sealed segment"),
        ("active", "active segment: appends go here"),
        ("going", "deleted by the next check"),
        ("future", "has a record of the future"),
    ]
    x: float = _MARGIN
    for kind, name in names:
        if kind in kinds:
            yield svg.box(x, y, 16, 12, f"{kind} edge")
            yield svg.text(x + 22, y + 10, name, "soft", size=12)
            x += 22 + svg.width_of(name, 12) + 18
