"""Draws a log as SVG: its segments along the offsets, and how the two indexes of a segment lead into its `.log` file.

`picture` turns facts into text and does no I/O. The text is ASCII, and its colours follow the reader's choice of light
or dark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import NamedTuple

from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.base.times import show
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

# Class, attribute and colour, in light and in dark surroundings.
_COLOURS = (
    ("paper", "fill", "#ffffff", "#14181d"),
    ("ink", "fill", "#1b2430", "#e6eaf0"),
    ("soft", "fill", "#566273", "#a3afbf"),
    ("sealed", "fill", "#d6e4f7", "#2b4160"),
    ("active", "fill", "#fdeac2", "#5a4719"),
    ("before", "fill", "#e7e9ec", "#2a2f36"),
    ("panel", "fill", "#f5f7fa", "#1b2128"),
    ("edge", "stroke", "#7d93ad", "#6f89a8"),
    ("timeindex", "fill", "#0b7a6f", "#5fd0c2"),
    ("timeline", "stroke", "#0b7a6f", "#5fd0c2"),
    ("offsetindex", "fill", "#b1460f", "#f2a071"),
    ("offsetline", "stroke", "#b1460f", "#f2a071"),
    ("found", "fill", "#ffd36b", "#8a6a12"),
)


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


def picture(facts: LogFacts) -> str:
    """Return the SVG of a log as text."""
    title = escape(escaped(facts.name))
    records = f"offsets {facts.log_start_offset:,} to {facts.log_end_offset - 1:,}"
    if facts.log_start_offset == facts.log_end_offset:
        records = "no records"
    counted = f"{len(facts.segments):,} segment{'s' if len(facts.segments) > 1 else ''}"
    total = size(sum(segment.size_bytes for segment in facts.segments))
    about = f"{records[0].upper()}{records[1:]}, in {counted}, {total}"
    described = (
        f"{about}. Segment {facts.close_up.base_offset} is three files: the .timeindex leads from a time to an offset, "
        "the .index from an offset to a byte of the .log, which holds the records."
    )
    drawn = (*_segments(facts), *_close_up(facts))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" class="kstore-log" role="img" '
            'font-family="system-ui, sans-serif" font-size="13" aria-labelledby="kstore-title kstore-desc">',
            f'<title id="kstore-title">The log {title}: its segments and their two indexes</title>',
            f'<desc id="kstore-desc">{escape(described)}</desc>',
            f"<style>{_style()}</style>",
            f"<defs>{_arrow_head('timeline', 'timeindex')}{_arrow_head('offsetline', 'offsetindex')}</defs>",
            f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
            _text(_MARGIN, 40, title, "ink", size=22, bold=True, is_escaped=True),
            _text(_MARGIN, 62, f"{about}. Appends go to the last, active one. {_days(facts)}", "soft", size=14),
            *drawn,
            "</svg>",
            "",
        )
    )


def _style() -> str:
    light = "".join(f".kstore-log .{name}{{{where}:{colour}}}" for name, where, colour, _ in _COLOURS)
    dark = "".join(f".kstore-log .{name}{{{where}:{colour}}}" for name, where, _, colour in _COLOURS)
    return f"{light}@media (prefers-color-scheme: dark){{{dark}}}"


# --- the segments -----------------------------------------------------------------------------------------------------


def _segments(facts: LogFacts) -> Iterator[str]:
    """Draw the segments as bars, with the log's start and end, and lead from one of them to its close-up."""
    edges = _edges(facts)
    shown = facts.segments[-_NEWEST:]
    hidden = facts.segments[:-_NEWEST]
    when = _clock([facts.segments[0].first_timestamp, facts.segments[-1].max_timestamp])
    if hidden:
        yield _box(_MARGIN, _BAR_Y, edges[0][0] - _MARGIN, _BAR, "before edge")
        yield _text(_MARGIN + 8, _BAR_Y + 26, f"{len(hidden):,} before", "ink")
        yield _text(_MARGIN + 8, _BAR_Y + 46, size(sum(each.size_bytes for each in hidden)), "soft", size=12)
    for segment, (left, right) in zip(shown, edges, strict=True):
        kind = "active" if segment.is_active else "sealed"
        yield _box(left, _BAR_Y, right - left, _BAR, f"{kind} edge", dashed=segment.is_active)
        if segment.base_offset < facts.log_start_offset:
            deleted = min(right, _place(facts, edges)) - left
            yield _box(left, _BAR_Y, deleted, _BAR, "before edge")
        first, *others = [line if right - left > 6.6 * len(line) + 12 else "" for line in _lines(segment, when)]
        fitting = [first or f"{segment.base_offset:,}", *filter(None, others)]
        for number, line in enumerate(fitting):
            yield _text(left + 8, _BAR_Y + 23 + 20 * number, line, "soft" if number else "ink", bold=not number)
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
    return tip + _text(x + side, _BAR_Y - 7 - up, f"{name}: {offset:,}{note}", "ink", anchor=anchor)


# --- one segment and its files ----------------------------------------------------------------------------------------


def _close_up(facts: LogFacts) -> Iterator[str]:
    """Draw the three files of a segment, and how a lookup goes from one to the next."""
    segment = facts.close_up
    area = f'width="{_WIDTH - 2 * _MARGIN}" height="{_HEIGHT - _PANEL_Y - 16}"'
    yield f'<rect class="panel" x="{_MARGIN}" y="{_PANEL_Y}" {area}/>'
    title = f"Segment {segment.base_offset:,} is three files: {segment.base_offset:020d}.log, .index, .timeindex"
    yield _text(_MARGIN + 16, _PANEL_Y + 28, title, "ink", size=16, bold=True)
    sparse = "The indexes are sparse: a read takes the entry at or before its target, and scans the .log from there."
    yield _text(_MARGIN + 16, _PANEL_Y + 48, sparse, "soft")
    when = _clock([timestamp for timestamp, _ in facts.time_entries])
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
            yield _arrow(middle(number), _LANES["time"] + 37, middle(below[-1]), _LANES["offset"] + 5, "timeline")
        yield _entry(middle(number), _LANES["time"], wide, f"{when(timestamp)} \u2192 {offset:,}", "timeline")
    yield _box(_FILES_X, _LANES["log"], room, _LANE, "sealed edge")
    found = _example(facts, offsets)
    if len(facts.batches) <= _BATCHES:
        ends = (*(position for position, *_ in facts.batches[1:]), segment.size_bytes)
        for (position, first, last, _), end in zip(facts.batches, ends, strict=False):
            left, width = byte(position), byte(end) - byte(position)
            is_found = found is not None and position == found.position
            yield _box(left, _LANES["log"], width, _LANE, f"{'found' if is_found else 'sealed'} edge")
            label = f"{first}" if first == last else f"{first}\u2013{last}"
            if width > 6.4 * len(label) + 4:
                yield _text(left + width / 2, _LANES["log"] + 27, label, "ink", size=12, anchor="middle")
    if found is not None and byte(found.position) - byte(found.entry[1]) > 16:
        y = _LANES["log"] + _LANE - 7
        yield _arrow(byte(found.entry[1]) + 3, y, byte(found.position) - 1, y, "offsetline")
    for number, (offset, position) in enumerate(offsets):
        yield _arrow(middle(number), _LANES["offset"] + 37, byte(position), _LANES["log"] - 2, "offsetline")
        yield _entry(middle(number), _LANES["offset"], wide, f"{offset:,} \u2192 {position:,}", "offsetline")
        if _FILES_X + 60 < byte(position) < _FILES_X + room - 60:
            yield _text(byte(position), _LANES["log"] + _LANE + 15, f"{position:,}", "soft", size=11, anchor="middle")
    yield _text(_FILES_X, _LANES["log"] + _LANE + 15, "byte 0", "soft", size=11)
    yield _text(_FILES_X + room, _LANES["log"] + _LANE + 15, f"{segment.size_bytes:,}", "soft", size=11, anchor="end")
    for number, line in enumerate(_sentences(facts, found)):
        yield _text(_MARGIN + 16, _LANES["log"] + _LANE + 46 + 22 * number, line, "ink", size=14)


def _lane(lane: str, name: str, what: str, drawn: int, of: Sequence[object], noun: str) -> Iterator[str]:
    """Write the name of a file, what it holds, and how much of that is drawn."""
    y = _LANES[lane]
    kind = {"time": "timeindex", "offset": "offsetindex", "log": "ink"}[lane]
    yield _text(_MARGIN + 16, y + 13, name, kind, size=15, bold=True)
    yield _text(_MARGIN + 16, y + 30, what, "soft")
    count = f"{len(of):,} {noun if len(of) != 1 else {'entries': 'entry', 'batches': 'batch'}[noun]}"
    yield _text(_MARGIN + 16, y + 46, count if drawn == len(of) else f"{drawn} of {count}", "soft", size=12)


def _entry(x: float, y: int, width: float, label: str, line: str) -> str:
    return _box(x - width / 2, y + 6, width, _BOX, f"paper {line}") + _text(x, y + 26, label, "ink", anchor="middle")


def _arrow(x1: float, y1: float, x2: float, y2: float, line: str) -> str:
    along = f'd="M{x1:.1f} {y1:g}L{x2:.1f} {y2:g}"'
    return f'<path class="{line}" fill="none" stroke-width="1.6" marker-end="url(#kstore-{line})" {along}/>'


def _arrow_head(line: str, fill: str) -> str:
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse"'
    return f'<marker id="kstore-{line}" orient="auto" {size}><path class="{fill}" d="M0 0L8 4L0 8z"/></marker>'


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
        when = _clock([timestamp for timestamp, _ in facts.time_entries])
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


def _clock(timestamps: Sequence[int]) -> Callable[[int], str]:
    """Return a function that writes a time: as the time of the day if all of `timestamps` are of one day."""
    shown = [show(timestamp) for timestamp in timestamps]
    is_one_day = len({text[:10] for text in shown}) == 1
    is_whole = all(text.endswith(":00.000Z") for text in shown)

    def write(timestamp: int) -> str:
        text = show(timestamp)
        if not text.endswith("Z"):
            return text
        return text[11 : 16 if is_whole else 19] if is_one_day else f"{text[:10]} {text[11:16]}"

    return write


def _box(x: float, y: float, width: float, height: float, kind: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="3"{dash}/>'


def _text(
    x: float,
    y: float,
    text: str,
    kind: str,
    *,
    size: int = 13,
    bold: bool = False,
    anchor: str = "",
    is_escaped: bool = False,
) -> str:
    attributes = (' font-weight="bold"' if bold else "") + (f' text-anchor="{anchor}"' if anchor else "")
    text = (text if is_escaped else escape(text)).encode("ascii", "xmlcharrefreplace").decode()
    return f'<text class="{kind}" x="{x:.1f}" y="{y:g}" font-size="{size}"{attributes}>{text}</text>'
