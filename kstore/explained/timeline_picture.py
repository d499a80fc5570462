"""Draws the segments of a partition over time or over offsets: why each was rolled, what keeps it, when it goes.

`picture` turns facts into SVG and does no I/O. A log of many segments is drawn with its oldest and its newest segments
one by one, and groups of those between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from kstore.base.numbers import size
from kstore.explained import segment_words, svg
from kstore.explained.timeline_scales import BAR, LEFT, MARGIN, RIGHT, ROW, WIDTH, OverOffsets, OverTime, Row, is_set

if TYPE_CHECKING:
    from kstore.explained.explanation import Explanation

__all__ = ["picture"]

_OLDEST, _GROUPS, _NEWEST = 7, 5, 8  # rows of a log of many segments
_NAMES = {
    "sealed": "sealed",
    "active": "active: appends go here",
    "going": "the next check deletes it",
    "future": "record of the future",
    "before": "below the log start",
    "clean": "compacted",
    "dirty": "to be compacted",
}


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
    plot = (OverTime if axis == "time" else OverOffsets)(explanation, rows)
    top = plot.top
    bottom = top + ROW * len(rows)
    sheet = svg.Sheet(WIDTH, bottom + 84, prefix)
    title = f"{explanation.topic}-{explanation.partition}"
    return svg.document(
        (
            svg.text(MARGIN, 38, svg.fitted(title, 900, 22, bold=True), size=22, bold=True),
            svg.text(MARGIN, 60, svg.fitted(_about(explanation), 912, 14), "soft", size=14),
            svg.text(MARGIN, 80, svg.fitted(plot.about(), 912), "soft"),
            *plot.scale(bottom),
            *(part for number, row in enumerate(rows) for part in _draw(row, top + ROW * number, plot, link)),
            *plot.front(bottom),
            *_legend(plot.kinds(), bottom + 62),
        ),
        sheet,
        title=f"{title}: its segments over {'time' if axis == 'time' else 'offsets'}",
        description=f"{_about(explanation)} {plot.about()}",
        heads=("nowline",),
        styled=styled,
        has_links=link is not None,
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(explanation: Explanation) -> list[Row]:
    """Return what is drawn: each segment, or of many those in the middle in groups."""
    segments = explanation.segments
    if len(segments) <= _OLDEST + _GROUPS + _NEWEST:
        return [Row.of([segment]) for segment in segments]
    middle = segments[_OLDEST:-_NEWEST]
    cuts = [len(middle) * number // _GROUPS for number in range(_GROUPS + 1)]
    return [
        *(Row.of([segment]) for segment in segments[:_OLDEST]),
        *(Row.of(middle[start:end]) for start, end in pairwise(cuts)),
        *(Row.of([segment]) for segment in segments[-_NEWEST:]),
    ]


def _draw(row: Row, y: float, plot: OverTime | OverOffsets, link: Callable[[int], str] | None) -> Iterator[str]:
    """Draw a row: its offsets and size, its bar, what keeps it and when it goes."""
    one = row.segments[0] if len(row.segments) == 1 else None
    name = segment_words.offsets(row.base_offset, row.next_offset)
    rolled = segment_words.roll_words(one) if one else f"{len(row.segments):,} segments"
    room = LEFT - MARGIN - 12
    yield svg.text(MARGIN, y + 14, svg.fitted(name, room, bold=True), bold=True)
    about = f"{size(row.size_bytes)}{', ' if rolled else ''}{rolled.removeprefix('rolled ').removeprefix('rolled: ')}"
    yield svg.text(MARGIN, y + 30, svg.fitted(about, room, 11), "soft", size=11)
    yield from plot.behind(row, y)
    left, right = plot.span(row)
    bar = svg.box(left, y + 5, right - left, BAR, f"{row.kind} edge", dashed=bool(one and one.is_active))
    bar += "".join(plot.inside(row, y))
    yield bar if link is None else svg.linked(link(row.base_offset), f"Segment {name}, {size(row.size_bytes)}", bar)
    held, goes = _fate(row, plot)
    room = WIDTH - MARGIN - RIGHT - 14
    yield svg.text(RIGHT + 14, y + 14, svg.fitted(goes, room, bold=True), bold=True)
    yield svg.text(RIGHT + 14, y + 30, svg.fitted(held, room, 11), "soft", size=11)


def _fate(row: Row, plot: OverTime | OverOffsets) -> tuple[str, str]:
    """Return what keeps the segments of a row, and when they go."""
    clock, at_ms = plot.clock, plot.explanation.at_ms
    first, last = row.segments[0], row.segments[-1]
    causes = Counter(segment.holds for segment in row.segments)
    held = segment_words.hold_words(causes.most_common(1)[0][0])
    if len(causes) > 1:
        held += f", and {len(causes) - 1} other cause{'s' if len(causes) > 2 else ''}"
    goes = segment_words.fate(first, clock, at_ms)
    if len(row.segments) > 1 and (other := segment_words.fate(last, clock, at_ms)) != goes:
        goes = f"{goes}; {other}" if last.latest_ms is None else f"all by {clock(last.latest_ms)}"
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
    if is_set(settings.get("retention.ms")):
        parts.append(f"retention.ms is {segment_words.value_words('retention.ms', settings['retention.ms'])}")
    if is_set(settings.get("retention.bytes")):
        parts.append(f"retention.bytes is {segment_words.value_words('retention.bytes', settings['retention.bytes'])}")
    if "compact" in str(settings.get("cleanup.policy", "")):
        parts.append(f"cleanup.policy is {settings['cleanup.policy']}")
    if not parts:
        return "no limit is set"
    return " and ".join(parts)


def _legend(kinds: Sequence[str], y: float) -> Iterator[str]:
    """Explain the colours that occur."""
    x: float = MARGIN
    for kind, name in _NAMES.items():
        if kind in kinds:
            yield svg.box(x, y, 16, 12, f"{kind} edge")
            yield svg.text(x + 22, y + 10, name, "soft", size=12)
            x += 22 + svg.width_of(name, 12) + 12
