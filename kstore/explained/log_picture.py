"""Draws a log as SVG: its segments along the offsets, and how the two indexes of a segment lead into its `.log` file.

`picture` turns facts into text and does no I/O. The text is ASCII, and its colours follow the reader's choice of light
or dark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import svg
from kstore.explained.time_scale import clock_of
from kstore.types import SegmentInfo

__all__ = ["LogFacts", "close_up_of", "picture"]

_WIDTH, _MARGIN = 960, 24
_NEWEST = 12  # segments that are drawn one by one; one bar stands for all before them
_ENTRIES = 6  # index entries that are drawn, with their values
_BATCHES = 40  # with more batches the borders between them are not drawn
_BAR, _BAR_Y = 74, 118
_PANEL_Y = 246
_LANES = {"time": _PANEL_Y + 74, "offset": _PANEL_Y + 158, "log": _PANEL_Y + 242}
_FILES_X = 236  # the lanes' files begin here; their names stand on the left
_LANE, _BOX = 44, 30
_HEIGHT = _PANEL_Y + 400


@dataclass(frozen=True)
class LogFacts:
    """What a picture shows of a log: its segments, and the content of the segment `close_up`."""

    name: str
    log_start_offset: int
    log_end_offset: int
    segments: Sequence[SegmentInfo]
    """All segments in order, at least one."""
    close_up: SegmentInfo
    offset_entries: Sequence[tuple[int, int]]
    """The entries of its `.index` file: an offset, the position of its batch."""
    time_entries: Sequence[tuple[int, int]]
    """The entries of its `.timeindex` file: a timestamp, the offset of its batch."""
    batches: Sequence[tuple[int, int, int, int]]
    """The batches of its `.log` file: position, first and last offset, greatest timestamp."""


def close_up_of(segments: Sequence[SegmentInfo], log_start_offset: int) -> SegmentInfo:
    """Return the segment to show in detail: of those drawn the newest sealed one with index entries, or the newest."""
    return next(
        (
            segment
            for segment in reversed(segments[-_NEWEST:])
            if not segment.is_active and segment.offset_index_entries and segment.next_offset > log_start_offset
        ),
        segments[-1],
    )


def picture(facts: LogFacts, *, styled: bool = True, prefix: str = "log") -> str:
    """Return the SVG of a log as text; see `svg.document` for `styled`, and `svg.Sheet` for `prefix`."""
    records = f"offsets {facts.log_start_offset:,} to {facts.log_end_offset - 1:,}"
    if facts.log_start_offset == facts.log_end_offset:
        records = "no records"
    counted = f"{len(facts.segments):,} segment{'s' if len(facts.segments) > 1 else ''}"
    total = size(sum(segment.size_bytes for segment in facts.segments))
    about = f"{records[0].upper()}{records[1:]}, in {counted}, {total}"
    room = _WIDTH - 2 * _MARGIN
    return svg.document(
        (
            svg.text(_MARGIN, 40, svg.fitted(facts.name, room, 22, bold=True), size=22, bold=True),
            svg.text(_MARGIN, 62, f"{about}. Appends go to the last, active one. {_days(facts)}", "soft", size=14),
            *_segments(facts),
            *_close_up(facts, prefix),
        ),
        svg.Sheet(_WIDTH, _HEIGHT, prefix),
        title=f"The log {facts.name}: its segments and their two indexes",
        description=(
            f"{about}. Segment {facts.close_up.base_offset} is three files: the .timeindex leads from a time to an "
            "offset, the .index from an offset to a byte of the .log, which holds the records."
        ),
        heads=("timeline", "offsetline"),
        styled=styled,
    )


# --- the segments -----------------------------------------------------------------------------------------------------


def _segments(facts: LogFacts) -> Iterator[str]:
    """Draw the segments as bars, with the log's start and end, and lead from one of them to its close-up."""
    edges = _edges(facts)
    shown = facts.segments[-_NEWEST:]
    hidden = facts.segments[:-_NEWEST]
    when = clock_of([facts.segments[0].first_timestamp, facts.segments[-1].max_timestamp])
    if hidden:
        yield svg.box(_MARGIN, _BAR_Y, edges[0][0] - _MARGIN, _BAR, "before edge")
        yield svg.text(_MARGIN + 8, _BAR_Y + 26, f"{len(hidden):,} before", "ink")
        yield svg.text(_MARGIN + 8, _BAR_Y + 46, size(sum(each.size_bytes for each in hidden)), "soft", size=12)
    for segment, (left, right) in zip(shown, edges, strict=True):
        kind = "active" if segment.is_active else "sealed"
        yield svg.box(left, _BAR_Y, right - left, _BAR, f"{kind} edge", dashed=segment.is_active)
        if segment.base_offset < facts.log_start_offset:
            deleted = min(right, _place(facts, edges)) - left
            yield svg.box(left, _BAR_Y, deleted, _BAR, "before edge")
        first, *others = [line if right - left > 6.6 * len(line) + 12 else "" for line in _lines(segment, when)]
        fitting = [first or f"{segment.base_offset:,}", *filter(None, others)]
        for number, line in enumerate(fitting):
            yield svg.text(left + 8, _BAR_Y + 23 + 20 * number, line, "soft" if number else "ink", bold=not number)
    at = next(edge for segment, edge in zip(shown, edges, strict=True) if segment is facts.close_up)
    bottom = _BAR_Y + _BAR
    edge = f"L{_MARGIN} {_PANEL_Y}H{_WIDTH - _MARGIN}L{at[1]:g} {bottom + 3}z"
    yield f'<path class="panel" d="M{at[0]:g} {bottom + 3}{edge}"/>'
    if facts.log_start_offset == facts.log_end_offset:
        yield _mark(facts.log_end_offset, "log start and log end, the next offset", edges[-1][1], 0)
        return
    start = _place(facts, edges)
    grey = " (grey: deleted)" if facts.segments[0].base_offset < facts.log_start_offset else ""
    yield _mark(facts.log_start_offset, "log start", start, 18 if start > _WIDTH / 2 else 0, grey)
    yield _mark(facts.log_end_offset, "log end, the next offset", edges[-1][1], 0)


def _lines(segment: SegmentInfo, when: Callable[[int], str]) -> list[str]:
    """Return what a bar says: offsets, size, times."""
    about = f"{size(segment.size_bytes)}{', active' if segment.is_active else ''}"
    if not _count(segment):
        return ["empty", about]
    offsets = f"{segment.base_offset:,} to {segment.next_offset - 1:,}"
    return [offsets, about, f"{when(segment.first_timestamp)} to {when(segment.max_timestamp)}"]


def _edges(facts: LogFacts) -> list[tuple[float, float]]:
    """Return the left and right edge of the bar of each segment that is drawn; a wide one has many offsets."""
    shown = facts.segments[-_NEWEST:]
    left: float = _MARGIN + (110 if len(facts.segments) > _NEWEST else 0)
    room = _WIDTH - _MARGIN - left
    total = sum(map(_count, shown)) or 1
    least = min(56, room / len(shown))
    widths = [max(least, room * _count(segment) / total) for segment in shown]
    scale = room / sum(widths)
    edges: list[tuple[float, float]] = []
    for width in widths:
        edges.append((left, left + width * scale))
        left = edges[-1][1]
    return edges


def _place(facts: LogFacts, edges: Sequence[tuple[float, float]]) -> float:
    """Return where the log start is on the bars."""
    for segment, (left, right) in zip(facts.segments[-_NEWEST:], edges, strict=True):
        if segment.base_offset <= facts.log_start_offset < segment.next_offset:
            return left + (right - left) * (facts.log_start_offset - segment.base_offset) / _count(segment)
    return _MARGIN if facts.log_start_offset < facts.segments[-1].base_offset else edges[-1][1]


def _mark(offset: int, name: str, x: float, up: int, note: str = "") -> str:
    anchor, side = ("end", -8) if x > _WIDTH / 2 else ("start", 8)
    tip = f'<path class="ink" d="M{x:g} {_BAR_Y - 3}l-5 -9h10z"/>'
    return tip + svg.text(x + side, _BAR_Y - 7 - up, f"{name}: {offset:,}{note}", "ink", anchor=anchor)


# --- one segment and its files ----------------------------------------------------------------------------------------


def _close_up(facts: LogFacts, prefix: str) -> Iterator[str]:
    """Draw the three files of a segment, and how a lookup goes from one to the next."""
    segment = facts.close_up
    area = f'width="{_WIDTH - 2 * _MARGIN}" height="{_HEIGHT - _PANEL_Y - 16}"'
    yield f'<rect class="panel" x="{_MARGIN}" y="{_PANEL_Y}" {area}/>'
    title = f"Segment {segment.base_offset:,} is three files: {segment.base_offset:020d}.log, .index, .timeindex"
    yield svg.text(_MARGIN + 16, _PANEL_Y + 28, title, "ink", size=16, bold=True)
    sparse = "The indexes are sparse: a read takes the entry at or before its target, and scans the .log from there."
    yield svg.text(_MARGIN + 16, _PANEL_Y + 48, sparse, "soft")
    when = clock_of([timestamp for timestamp, _ in facts.time_entries])
    room = _WIDTH - _MARGIN - 16 - _FILES_X
    longest = max(
        (len(when(timestamp)) + len(f"{offset:,}") for timestamp, offset in facts.time_entries[-1:]), default=9
    )
    fit = min(_ENTRIES, int(room / (7.2 * longest + 48)))
    times, offsets = _thinned(facts.time_entries, fit), _thinned(facts.offset_entries, fit)
    columns = max(len(times), len(offsets), 1)

    def middle(number: int) -> float:
        return _FILES_X + room * (number + 0.5) / columns

    def byte(position: int) -> float:
        return _FILES_X + room * position / max(segment.size_bytes, 1)

    yield from _lane("time", ".timeindex", "time \u2192 offset", len(times), facts.time_entries, "entries")
    yield from _lane(
        "offset", ".index", "offset \u2192 byte of its batch", len(offsets), facts.offset_entries, "entries"
    )
    yield from _lane("log", ".log", "the records, in batches", len(facts.batches), facts.batches, "batches")
    wide = min(room / columns - 12, 7.2 * longest + 40)
    for number, (timestamp, offset) in enumerate(times):
        below = [at for at, (first, _) in enumerate(offsets) if first <= offset]
        if below:
            yield svg.line(
                middle(number), _LANES["time"] + 37, middle(below[-1]), _LANES["offset"] + 5, "timeline", head=prefix
            )
        yield _entry(middle(number), _LANES["time"], wide, f"{when(timestamp)} \u2192 {offset:,}", "timeline")
    yield svg.box(_FILES_X, _LANES["log"], room, _LANE, "sealed edge")
    found = _example(facts, offsets)
    if len(facts.batches) <= _BATCHES:
        ends = (*(position for position, *_ in facts.batches[1:]), segment.size_bytes)
        for (position, first, last, _), end in zip(facts.batches, ends, strict=False):
            left, width = byte(position), byte(end) - byte(position)
            is_found = found is not None and position == found.position
            yield svg.box(left, _LANES["log"], width, _LANE, f"{'found' if is_found else 'sealed'} edge")
            label = f"{first}" if first == last else f"{first}\u2013{last}"
            if width > 6.4 * len(label) + 4:
                yield svg.text(left + width / 2, _LANES["log"] + 27, label, "ink", size=12, anchor="middle")
    if found is not None and byte(found.position) - byte(found.entry[1]) > 16:
        y = _LANES["log"] + _LANE - 7
        yield svg.line(byte(found.entry[1]) + 3, y, byte(found.position) - 1, y, "offsetline", head=prefix)
    below_log = _LANES["log"] + _LANE + 15
    for number, (offset, position) in enumerate(offsets):
        yield svg.line(
            middle(number), _LANES["offset"] + 37, byte(position), _LANES["log"] - 2, "offsetline", head=prefix
        )
        yield _entry(middle(number), _LANES["offset"], wide, f"{offset:,} \u2192 {position:,}", "offsetline")
        if _FILES_X + 60 < byte(position) < _FILES_X + room - 60:
            yield svg.text(byte(position), below_log, f"{position:,}", "soft", size=11, anchor="middle")
    yield svg.text(_FILES_X, below_log, "byte 0", "soft", size=11)
    yield svg.text(_FILES_X + room, below_log, f"{segment.size_bytes:,}", "soft", size=11, anchor="end")
    for number, line in enumerate(_sentences(facts, found)):
        yield svg.text(_MARGIN + 16, _LANES["log"] + _LANE + 46 + 22 * number, line, "ink", size=14)


def _lane(lane: str, name: str, what: str, drawn: int, of: Sequence[object], noun: str) -> Iterator[str]:
    """Write the name of a file, what it holds, and how much of that is drawn."""
    y = _LANES[lane]
    kind = {"time": "timeindex", "offset": "offsetindex", "log": "ink"}[lane]
    yield svg.text(_MARGIN + 16, y + 13, name, kind, size=15, bold=True)
    yield svg.text(_MARGIN + 16, y + 30, what, "soft")
    count = f"{len(of):,} {noun if len(of) != 1 else {'entries': 'entry', 'batches': 'batch'}[noun]}"
    yield svg.text(_MARGIN + 16, y + 46, count if drawn == len(of) else f"{drawn} of {count}", "soft", size=12)


def _entry(x: float, y: int, width: float, label: str, line: str) -> str:
    return svg.box(x - width / 2, y + 6, width, _BOX, f"paper {line}") + svg.text(
        x, y + 26, label, "ink", anchor="middle"
    )


class _Example(NamedTuple):
    """A batch that no index entry names, and the entry from which a read scans to it."""

    offset: int
    timestamp: int
    position: int
    entry: tuple[int, int]


def _example(facts: LogFacts, entries: Sequence[tuple[int, int]]) -> _Example | None:
    """Return a batch that lies two batches behind one of the entries, before the next; None if there is none."""
    named = {position for _, position in facts.offset_entries}
    half = len(entries) // 2
    for entry in (*entries[half:], *entries[:half]):
        at = bisect_right(facts.batches, entry[1], key=itemgetter(0))
        behind = facts.batches[at : at + 2]
        if behind and not named & {position for position, *_ in behind}:
            position, first, _, timestamp = behind[-1]
            return _Example(first, timestamp, position, entry)
    return None


def _sentences(facts: LogFacts, found: _Example | None) -> list[str]:
    """Return the walk of two reads in words, with the numbers of the picture."""
    if found is None:
        return []
    offset, position = found.entry
    scan = f"{offset:,} \u2192 byte {position:,}, and a scan from there"
    lines = [f"Read offset {found.offset:,}: segment {facts.close_up.base_offset:,}; its .index says {scan}."]
    before = [entry for entry in facts.time_entries if entry[0] <= found.timestamp]
    if before and before[-1][1] == offset and before[-1][0] < found.timestamp:
        when = clock_of([timestamp for timestamp, _ in facts.time_entries])
        way = f"{when(before[-1][0])} \u2192 offset {offset:,}"
        lines.append(
            f"Read from {when(found.timestamp)} on: its .timeindex says {way}; then as above, up to that time."
        )
    return lines


# --- parts ------------------------------------------------------------------------------------------------------------


def _thinned(entries: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    """Return at most so many entries, spread evenly over all of them, the last one included."""
    if len(entries) <= most:
        return entries
    return [entries[(number + 1) * len(entries) // most - 1] for number in range(most)]


def _days(facts: LogFacts) -> str:
    """Return the zone of the times, and their day if it is one."""
    times = [facts.segments[0].first_timestamp, *(segment.max_timestamp for segment in facts.segments)]
    days = {show(timestamp)[:10] for timestamp in times if timestamp >= 0}
    return f"Times are of {days.pop()}, UTC." if len(days) == 1 else "Times are UTC." if days else ""


def _count(segment: SegmentInfo) -> int:
    return segment.next_offset - segment.base_offset
