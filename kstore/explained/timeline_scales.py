"""The two scales of a partition's timeline: over time and over offsets, with the marks of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kstore.base.numbers import NEVER, size
from kstore.base.times import show
from kstore.explained import segment_words, svg
from kstore.explained.time_scale import TimeScale, clock_of, duration

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedSegment, Explanation

__all__ = ["BAR", "LEFT", "MARGIN", "RIGHT", "ROW", "WIDTH", "OverOffsets", "OverTime", "Row", "is_set"]

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 250, 712
"""The edges of the scale."""
ROW, BAR = 40, 22

_LEAST = 14  # each row is at least so wide over offsets
_LONG_BAR = 20  # a segment of so many times the usual length has a wrong timestamp: its bar may be broken


@dataclass(frozen=True)
class Row:
    """A segment, or several that follow each other, as one bar."""

    segments: Sequence[ExplainedSegment]
    base_offset: int
    next_offset: int
    size_bytes: int
    first: int | None
    newest: int | None
    kind: str

    @classmethod
    def of(cls, segments: Sequence[ExplainedSegment]) -> Row:
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


# --- over time --------------------------------------------------------------------------------------------------------


class OverTime:
    """Bars from a segment's first to its newest timestamp, and when it goes."""

    top = 132

    def __init__(self, explanation: Explanation, rows: Sequence[Row]) -> None:
        self.explanation = explanation
        self._rows = rows
        times = {explanation.at_ms}
        for row in rows:
            last = row.segments[-1]
            times |= {time for time in (row.first, row.newest, row.segments[0].latest_ms, last.latest_ms) if time}
        times |= {file.gone_ms for file in explanation.deleted if file.gone_ms is not None}
        bars = [(row.first, row.newest) for row in rows if row.first is not None and row.newest is not None]
        usual = sorted(newest - first for first, newest in bars)[len(bars) // 2] if bars else 0
        whole = [(first, newest) for first, newest in bars if newest - first <= _LONG_BAR * max(usual, 1)]
        self._scale = TimeScale(times, LEFT, RIGHT, whole=whole)
        self.clock = clock_of(time for time in times if time < explanation.at_ms + 366 * 86_400_000)

    def about(self) -> str:
        """Say what the picture shows."""
        at = show(self.explanation.at_ms)
        checks = self.explanation.checks
        every = f" What may be deleted is checked every {duration(checks.interval_ms)}." if checks.interval_ms else ""
        return f"At {at[:10]} {at[11:19]} UTC.{every}{_waiting(self.explanation, self.clock)}"

    def span(self, row: Row) -> tuple[float, float]:
        """Return the edges of a bar."""
        if row.first is None and row.newest is None:
            now = self._scale.x(self.explanation.at_ms)
            return now - 3, now
        first = row.newest if row.first is None else row.first
        newest = first if row.newest is None else row.newest
        assert first is not None
        assert newest is not None
        left, right = self._scale.x(min(first, newest)), self._scale.x(newest)
        return min(left, RIGHT - 3), max(right, left + 3)

    def behind(self, row: Row, y: float) -> Iterator[str]:
        """Draw how long the row is kept after its newest record, and the checks that can delete it."""
        one = row.segments[0]
        if one.earliest_ms is None and one.due_ms is None:
            return
        start = self.span(row)[1]
        due = self._scale.x(one.due_ms) if one.due_ms is not None else start
        if due > start:
            yield svg.line(start, y + 5 + BAR / 2, due, y + 5 + BAR / 2, "edge", dash="2 3")
        if one.earliest_ms is not None and row.segments[-1].latest_ms is not None:
            left, right = self._scale.x(one.earliest_ms), self._scale.x(row.segments[-1].latest_ms)
            yield svg.box(left - 1.5, y + 9, max(right - left, 0) + 3, BAR - 8, "going goingline")

    def inside(self, row: Row, y: float) -> Iterator[str]:
        """Draw an arrow into the bar of a record of the future."""
        if row.newest is not None and row.kind == "future":
            left, right = self.span(row)
            tip = min(right, RIGHT) - 4
            if right - left > 20:
                yield svg.polygon([(tip - 9, y + 10), (tip, y + 16), (tip - 9, y + 22)], "futureink")

    def kinds(self) -> list[str]:
        """Return the colours that occur."""
        return [*{row.kind: None for row in self._rows}]

    def scale(self, bottom: float) -> Iterator[str]:
        """Draw the scale behind the bars; where it is broken, say how long the way is."""
        yield svg.line(LEFT, bottom, RIGHT, bottom, "grid", width=1)
        taken: list[tuple[float, float]] = []
        for x, length in self._scale.breaks():
            for at in (x - 3, x + 3):
                yield svg.line(at - 3, bottom + 6, at + 3, bottom - 6, "edge")
                yield svg.line(at + 3, bottom - 6, at + 3, self.top - 4, "grid", width=1, dash="1 4")
            words = duration(length, is_short=True)
            half = svg.width_of(words, 11) / 2 + 4
            if all(x + half < low or x - half > high for low, high in taken):
                taken.append((x - half, x + half))
                yield svg.text(x, bottom + 18, words, "soft", size=11, anchor="middle")
        day_end = 0.0
        for tick in self._scale.ticks():
            yield svg.line(tick.x, self.top - 4, tick.x, bottom, "grid", width=1)
            half = svg.width_of(tick.time, 11) / 2 + 4
            if any(tick.x + half > low and tick.x - half < high for low, high in taken):
                continue
            yield svg.text(tick.x, bottom + 18, tick.time, "soft", size=11, anchor="middle")
            half = svg.width_of(tick.day, 11) / 2 + 4
            if tick.day and tick.x - half > day_end:
                yield svg.text(tick.x, bottom + 33, tick.day, "soft", size=11, anchor="middle")
                day_end = tick.x + half

    def front(self, bottom: float) -> Iterator[str]:
        """Draw now, and the age limit."""
        now = self._scale.x(self.explanation.at_ms)
        yield svg.line(now, self.top - 8, now, bottom, "nowline", width=2)
        yield svg.label(now, self.top - 14, "now", "nowink", left=LEFT, right=RIGHT, size=13)
        kept = self.explanation.settings.get("retention.ms")
        if not is_set(kept) or "delete" not in str(self.explanation.settings.get("cleanup.policy", "delete")):
            return
        assert isinstance(kept, int)
        limit = self._scale.x(self.explanation.at_ms - kept)
        if LEFT < limit < now - 24:
            yield svg.line(limit, self.top - 8, limit, bottom, "goingline", width=1.6, dash="5 4")
            words = svg.fitted(f"older than {duration(kept)}", limit - 4 - MARGIN, 12)
            yield svg.text(limit - 4, self.top - 14, words, "goingink", size=12, anchor="end")


# --- over offsets -----------------------------------------------------------------------------------------------------


class OverOffsets:
    """Bars from a segment's first to its next offset, with the marks of the log."""

    def __init__(self, explanation: Explanation, rows: Sequence[Row]) -> None:
        self.explanation = explanation
        self._rows = rows
        self._is_compacted = "compact" in str(explanation.settings.get("cleanup.policy", ""))
        counts = [row.next_offset - row.base_offset for row in rows]
        least = min(_LEAST, (RIGHT - LEFT) / max(len(rows), 1) / 2)
        scale = (RIGHT - LEFT - least * len(rows)) / (sum(counts) or 1)
        self._edges: list[float] = [LEFT]
        for count in counts:
            self._edges.append(self._edges[-1] + least + count * scale)
        times = [explanation.at_ms]
        for row in rows:
            times += [time for time in (row.segments[0].earliest_ms, row.segments[-1].latest_ms) if time is not None]
        self.clock = clock_of(times)
        self._marks = self._placed_marks()
        self.top = 124 + 15 * max((level for *_, level in self._marks), default=0)

    def about(self) -> str:
        """Say what the picture shows."""
        at = show(self.explanation.at_ms)
        return f"At {at[:10]} {at[11:19]} UTC.{_waiting(self.explanation, self.clock)}"

    def span(self, row: Row) -> tuple[float, float]:
        """Return the edges of a bar."""
        left, right = self._x(row.base_offset), self._x(row.next_offset)
        return min(left, RIGHT - 3), max(right, left + 3)

    def behind(self, row: Row, y: float) -> Iterator[str]:
        """Draw nothing: a row has no more than its bar."""
        return iter(())

    def inside(self, row: Row, y: float) -> Iterator[str]:
        """Draw which part of the bar is below the log start, and which compaction has cleaned or can clean."""
        left, right = self.span(row)
        if row.base_offset < self.explanation.log_start_offset:
            end = min(right, self._x(self.explanation.log_start_offset))
            yield svg.box(left, y + 5, end - left, BAR, "before edge")
        if not self._is_compacted:
            return
        dirty = self._x(self.explanation.compaction.first_dirty_offset)
        end = max(self._x(self.explanation.compaction.first_uncleanable_offset), dirty)
        for kind, low, high in (("clean", left, min(right, dirty)), ("dirty", max(left, dirty), min(right, end))):
            if high - low > 0.5:
                yield svg.box(low, y + 5 + BAR - 7, high - low, 7, f"{kind} edge")

    def kinds(self) -> list[str]:
        """Return the colours that occur."""
        facts = self.explanation
        kinds = [*{row.kind: None for row in self._rows}]
        if self._rows and self._rows[0].base_offset < facts.log_start_offset:
            kinds.append("before")
        if self._is_compacted:
            first, dirty, end = (
                facts.log_start_offset,
                facts.compaction.first_dirty_offset,
                facts.compaction.first_uncleanable_offset,
            )
            kinds += [kind for kind, is_there in (("clean", first < dirty), ("dirty", dirty < end)) if is_there]
        return kinds

    def scale(self, bottom: float) -> Iterator[str]:
        """Draw the first offset of each row, and the next one of the log, behind the bars."""
        last = LEFT - 80.0
        offsets = [row.base_offset for row in self._rows] + [row.next_offset for row in self._rows[-1:]]
        for offset, x in zip(offsets, self._edges, strict=False):
            yield svg.line(x, self.top - 4, x, bottom, "grid", width=1)
            half = svg.width_of(f"{offset:,}", 11) / 2
            if x - half > last + 10 and (x == self._edges[-1] or x + half < self._edges[-1] - 2 * half):
                yield svg.text(x, bottom + 18, f"{offset:,}", "soft", size=11, anchor="middle")
                last = x + half

    def front(self, bottom: float) -> Iterator[str]:
        """Draw the marks of the log; marks at one offset have one line."""
        for x, start, words, level in self._marks:
            y = self.top - 10 - 15 * level
            yield svg.line(x, y + 3, x, bottom, "nowline", width=1.6, dash="6 3")
            yield svg.box(start - 2, y - 11, svg.width_of(words, 12) + 4, 14, "paper")
            yield svg.text(start, y, words, "nowink", size=12)

    def _placed_marks(self) -> list[tuple[float, float, str, int]]:
        """Return for each mark where its line is, where its words begin, the words, and how far up they stand."""
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
        placed: list[tuple[float, float, str, int]] = []
        ends: list[float] = []
        for offset, names in sorted(marks.items()):
            x = self._x(offset)
            words = f"{', '.join(names)}: {offset:,}"
            wide = svg.width_of(words, 12)
            start = min(max(x - wide / 2, MARGIN), WIDTH - MARGIN - wide)
            level = next((level for level, end in enumerate(ends) if start > end + 10), len(ends))
            ends[level : level + 1] = [start + wide]
            placed.append((x, start, words, level))
        return sorted(placed, key=lambda mark: -mark[3])

    def _x(self, offset: int) -> float:
        """Return where an offset is: each row is as wide as its offsets are many, and a bit wider, to be seen."""
        if not self._rows or offset <= self._rows[0].base_offset:
            return LEFT
        at = bisect_right(self._rows, offset, key=lambda row: row.base_offset) - 1
        row, left, right = self._rows[at], self._edges[at], self._edges[at + 1]
        part = (offset - row.base_offset) / max(row.next_offset - row.base_offset, 1)
        return left + (right - left) * min(part, 1.0)


# --- parts ------------------------------------------------------------------------------------------------------------


def is_set(limit: object) -> bool:
    return isinstance(limit, int) and 0 <= limit < NEVER


def _waiting(explanation: Explanation, clock: Callable[[int | None], str]) -> str:
    """Return a sentence about deleted files that still take space."""
    files = explanation.deleted
    if not files:
        return ""
    gone = [file.gone_ms for file in files if file.gone_ms is not None]
    until = f", until {clock(max(gone))}" if gone else ""
    count = f"{len(files):,} deleted file{'s' if len(files) > 1 else ''}"
    return f" {count} still take{'s' if len(files) == 1 else ''} {size(sum(file.size_bytes for file in files))}{until}."
