"""Draws how a lookup finds a record: its segment, the entries of the indexes, the bytes that are scanned, its batch.

`picture` turns facts into SVG and does no I/O.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained import svg
from kstore.explained.record_words import segment_of
from kstore.explained.segment_words import sentence
from kstore.explained.time_scale import clock_of

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, Explanation, LookupStep

__all__ = ["picture"]

_WIDTH, _MARGIN = 960, 24
_TOP, _ROW, _BOX = 96, 78, 30
_LEFT, _RIGHT = 384, 936  # where what is read is drawn
_WORDS = _LEFT - _MARGIN - 44
_NAMES = {"segment": "The segment", "time_index": ".timeindex", "offset_index": ".index", "scan": ".log"}
_NAMES |= {"batch": "The batch"}
_EDGES = {"time_index": "timeline", "offset_index": "offsetline"}


def picture(explanation: Explanation, *, styled: bool = True, prefix: str = "lookup") -> str:
    """Return the SVG of the lookup of an explanation's record as text.

    Args:
        explanation: The facts; its `record` must not be None.
        styled: Whether the picture holds its rules of CSS; see `svg.document`.
        prefix: The beginning of the identifiers in the picture, which differ on a page with several pictures.
    """
    record = explanation.record
    if record is None:
        raise ValueError("the explanation has no record: ask for one by offset or timestamp")
    title = f"How a lookup finds the record at offset {record.offset:,}"
    read = f"It reads {size(record.bytes_scanned)} of the .log before the batch, which has {size(record.batch_bytes)}."
    clock = clock_of(
        timestamp
        for step in record.steps
        if step.what == "time_index"
        for timestamp, _ in filter(None, (step.found, step.following))
    )
    return svg.document(
        (
            svg.text(_MARGIN, 38, title, size=19, bold=True),
            svg.text(_MARGIN, 62, read, "soft", size=14),
            *(
                part
                for number, step in enumerate(record.steps)
                for part in _draw(explanation, record, number, step, clock, prefix)
            ),
        ),
        svg.Sheet(_WIDTH, _TOP + _ROW * len(record.steps) + 6, prefix),
        title=title,
        description=" ".join(f"{number}. {sentence(step.explanation)}" for number, step in enumerate(record.steps, 1)),
        heads=("edge", "timeline", "offsetline"),
        styled=styled,
    )


def _draw(
    explanation: Explanation,
    record: ExplainedRecord,
    number: int,
    step: LookupStep,
    clock: Callable[[int | None], str],
    prefix: str,
) -> Iterator[str]:
    """Draw a step: its number, what it does, and what it finds."""
    y = _TOP + _ROW * number
    yield f'<circle class="before" cx="{_MARGIN + 12}" cy="{y + 17:g}" r="12"/>'
    yield svg.text(_MARGIN + 12, y + 22, f"{number + 1}", size=13, bold=True, anchor="middle")
    name = svg.fitted(_NAMES.get(step.what, step.what), _WORDS, 14, bold=True)
    yield svg.text(_MARGIN + 34, y + 19, name, size=14, bold=True)
    for row, text in enumerate(svg.wrapped(sentence(step.explanation), _WORDS, 12, most=3)):
        yield svg.text(_MARGIN + 34, y + 36 + 15 * row, text, "soft", size=12)
    if step.what in ("scan", "batch"):
        yield from _log(explanation, record, step, y, prefix)
    else:
        yield from _entries(step, y, clock)
    if number + 1 < len(record.steps):
        start = _place(explanation, record, step, leaves=True)
        end = _place(explanation, record, record.steps[number + 1], leaves=False)
        yield svg.line(start, y + 6 + _BOX + 2, end, y + _ROW + 2, _EDGES.get(step.what, "edge"), head=prefix)


def _entries(step: LookupStep, y: float, clock: Callable[[int | None], str]) -> Iterator[str]:
    """Draw the entry that is taken, and the next one, which is beyond the target."""
    kind = _EDGES.get(step.what, "edge")
    if step.found is None:
        yield svg.box(_LEFT, y + 6, 240, _BOX, f"paper {kind}", dashed=True)
        yield svg.text(_LEFT + 120, y + 26, "no entry before it: the beginning", "soft", size=12, anchor="middle")
        return
    x: float = _LEFT
    for entry, fill, words in ((step.found, "found", ""), (step.following, "paper", "beyond it")):
        if entry is None:
            continue
        if step.what == "segment":
            shown = f"offsets {entry[0]:,} \u2013 {entry[1]:,}"
        elif step.what == "time_index":
            shown = f"{clock(entry[0])} \u2192 offset {entry[1]:,}"
        else:
            shown = f"offset {entry[0]:,} \u2192 byte {entry[1]:,}"
        wide = min(max(svg.width_of(shown, 13) + 20, 120), _RIGHT - x)
        yield svg.box(x, y + 6, wide, _BOX, f"{fill} {kind}", dashed=fill == "paper")
        label = svg.fitted(shown, wide - 8)
        yield svg.text(x + wide / 2, y + 26, label, "soft" if words else "ink", anchor="middle")
        x += wide + 14
        if _RIGHT - x < 80:
            return
    if x + 60 < _RIGHT:
        yield svg.text(x, y + 26, svg.fitted(os.path.basename(step.path), _RIGHT - x, 11), "soft", size=11)


def _place(explanation: Explanation, record: ExplainedRecord, step: LookupStep, *, leaves: bool) -> float:
    """Return where the arrow to a step ends, or where the arrow from it begins."""
    if step.what not in ("scan", "batch"):
        return _LEFT + 60
    is_start = step.what == "scan" and not leaves and step.found is not None
    position = step.found[0] if is_start and step.found is not None else record.batch_position
    return min(_byte(explanation, record, position), _RIGHT - 6) + 3


def _byte(explanation: Explanation, record: ExplainedRecord, position: int) -> float:
    """Return where a byte of the `.log` file is."""
    total = max(segment_of(explanation, record).size_bytes, record.batch_position + record.batch_bytes, 1)
    return _LEFT + (_RIGHT - _LEFT) * position / total


def _log(explanation: Explanation, record: ExplainedRecord, step: LookupStep, y: float, prefix: str) -> Iterator[str]:
    """Draw the `.log` file from the position at which the scan begins, and the batch."""
    yield svg.box(_LEFT, y + 6, _RIGHT - _LEFT, _BOX, "sealed edge")
    left = min(_byte(explanation, record, record.batch_position), _RIGHT - 6)
    wide = max(_byte(explanation, record, record.batch_position + record.batch_bytes) - left, 6)
    if step.what == "scan":
        start = left if step.found is None else min(_byte(explanation, record, step.found[0]), left)
        yield svg.box(start, y + 6, max(left - start, 3), _BOX, "dirty edge")
        if left - start > 24:
            yield svg.line(start + 3, y + 6 + _BOX / 2, left - 1, y + 6 + _BOX / 2, "offsetline", head=prefix)
        first = step.found[0] if step.found is not None else record.batch_position
        words = f"bytes {first:,} to {record.batch_position:,} are scanned" if step.bytes_read else "nothing is scanned"
        if left - svg.width_of(words, 11) > _LEFT:
            yield svg.text(left - 8, y + _BOX + 20, words, "soft", size=11, anchor="end")
        else:
            yield svg.text(max(left, _LEFT) + 14, y + _BOX + 20, words, "soft", size=11)
        return
    yield svg.box(left, y + 6, wide, _BOX, "found edge")
    first, last = record.batch_offsets
    held = f"offset {first:,}" if first == last else f"offsets {first:,} \u2013 {last:,}"
    packed = "" if record.compression == "none" else f", {record.compression}"
    words = f"{held}, {size(record.batch_bytes)}{packed}, at byte {record.batch_position:,}"
    yield svg.label(left + wide / 2, y + _BOX + 20, words, "soft", left=_LEFT, right=_RIGHT, size=11)
