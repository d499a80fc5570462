"""Explanations as HTML: whole pages for `--html`, and what notebooks show.

The sentences of the facts stand beside the pictures, so that a reader who sees none of the pictures misses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import disk_picture, html_page, lookup_picture, record_picture, timeline_picture
from kstore.explained.record_words import headline
from kstore.explained.segment_words import check_words, offsets, roll_words, sentence, value_words

if TYPE_CHECKING:
    from kstore.explained.explained_disk import DiskExplanation
    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["disk_fragment", "disk_page", "log_fragment", "log_page"]

_MOST_ROWS = 200  # of a table; of more, the first and the last are shown
_FILES = 20


def log_page(explanation: Explanation) -> str:
    """Return the page of an explanation of a log, and of its record if it has one."""
    name = f"{explanation.topic}-{explanation.partition}"
    parts: list[str] = []
    if explanation.note:
        parts.append(html_page.paragraph(sentence(explanation.note), "note"))
    record = explanation.record
    if record is not None:
        parts += _record(explanation, record)
    parts.append(
        html_page.section(
            "The segments over time",
            [html_page.figure(timeline_picture.picture(explanation, styled=False), "The segments over time")],
        )
    )
    parts.append(html_page.section("Why each segment is there, and when it goes", _segments(explanation)))
    over = timeline_picture.picture(explanation, axis="offset", styled=False, prefix="offsets")
    parts.append(html_page.section("The segments over offsets", [html_page.figure(over, "The segments over offsets")]))
    if explanation.deleted:
        parts.append(html_page.section("Deleted files that still take space", _deleted(explanation)))
    compaction = html_page.paragraph(sentence(explanation.compaction.explanation))
    parts.append(html_page.section("Compaction", [compaction]))
    parts.append(html_page.section("Settings that decide", _settings(explanation)))
    title = name if record is None else f"{name}, record {record.offset:,}"
    return html_page.page(title, parts, made_by=f"kstore explain {explanation.path}, for {_when(explanation.at_ms)}")


def log_fragment(explanation: Explanation) -> str:
    """Return what a notebook shows of an explanation: the pictures, of its record or of its segments."""
    record = explanation.record
    if record is None:
        over_time = timeline_picture.picture(explanation, styled=False, prefix=_unique(explanation, "timeline"))
        return html_page.fragment([html_page.figure(over_time, "The segments over time")])
    life = record_picture.picture(explanation, styled=False, prefix=_unique(explanation, "record"))
    walk = lookup_picture.picture(explanation, styled=False, prefix=_unique(explanation, "lookup"))
    figures = [html_page.figure(life, "The life of the record"), html_page.figure(walk, "The lookup of the record")]
    return html_page.fragment(figures)


def disk_page(disk: DiskExplanation) -> str:
    """Return the page of an explanation of directories."""
    parts = [html_page.paragraph(sentence(disk.note), "note")] if disk.note else []
    parts.append(html_page.figure(disk_picture.picture(disk, styled=False), "What takes the space"))
    if disk.remedies:
        rows = [(each.topic, each.setting, size(each.freed_bytes), each.explanation) for each in disk.remedies]
        name = "Settings that would free space"
        table = html_page.table(name, ("Topic", "Setting", "Frees", "Effect"), rows, numbers=[2], long=[3])
        parts.append(html_page.section(name, [table]))
    partitions = [
        (
            f"{each.topic}-{each.partition}",
            size(each.disk_bytes),
            f"{each.segments:,}",
            size(each.expired_bytes),
            each.error or "; ".join(f"{size(held.size_bytes)}: {held.explanation}" for held in each.held),
        )
        for each in disk.partitions
    ]
    columns = ("Partition", "On the disk", "Segments", "Next check frees", "What holds the rest")
    name = "Partitions, the largest first"
    parts.append(html_page.section(name, _shortened(name, columns, partitions, numbers=[1, 2, 3], long=[4])))
    title = f"What takes the space of {', '.join(disk.paths)}"
    return html_page.page(title, parts, made_by=f"kstore explain {' '.join(disk.paths)}, for {_when(disk.at_ms)}")


def disk_fragment(disk: DiskExplanation) -> str:
    """Return what a notebook shows of an explanation of directories."""
    drawn = disk_picture.picture(disk, styled=False, prefix=f"disk-{disk.at_ms}")
    return html_page.fragment([html_page.figure(drawn, "What takes the space")])


def _record(explanation: Explanation, record: ExplainedRecord) -> list[str]:
    """Return the sections about a record: its life in a picture and in sentences, and how a lookup finds it."""
    life = record_picture.picture(explanation, titled=False, styled=False)
    future = "".join(html_page.paragraph(sentence) for sentence in record.future)
    walk = lookup_picture.picture(explanation, styled=False)
    rows = [
        (
            number,
            step.what,
            os.path.basename(step.path),
            _pair(step.found),
            _pair(step.following),
            f"{step.bytes_read:,}",
            sentence(step.explanation),
        )
        for number, step in enumerate(record.steps, 1)
    ]
    columns = ("Step", "What", "File", "Entry taken", "Next entry", "Bytes read", "In words")
    steps = html_page.table("The steps of the lookup", columns, rows, numbers=[0, 5], long=[6])
    return [
        html_page.paragraph(headline(explanation, record), "lead"),
        html_page.figure(life, "The life of the record"),
        html_page.section("What happens to it", [future]),
        html_page.section("How a lookup finds it", [html_page.figure(walk, "The lookup of the record"), steps]),
    ]


def _segments(explanation: Explanation) -> list[str]:
    rows = [_segment(segment) for segment in explanation.segments]
    columns = ("Offsets", "Size", "Newest record", "Why the log rolled", "Why it is kept", "Deleted", "Off the disk")
    return _shortened("The segments", columns, rows, numbers=[1], long=[3, 4])


def _segment(segment: ExplainedSegment) -> tuple[str, ...]:
    rolled = roll_words(segment)
    kept = sentence(segment.explanation)
    if segment.compaction:
        kept += f" Compaction: {sentence(segment.compaction)}"
    return (
        offsets(segment.base_offset, segment.next_offset),
        size(segment.size_bytes),
        _when(segment.max_timestamp),
        sentence(f"{rolled}: {segment.roll_explanation}" if rolled else segment.roll_explanation),
        kept,
        _moments(segment.earliest_ms, segment.latest_ms, segment.bytes_left),
        _when(segment.freed_ms),
    )


def _moments(earliest_ms: int | None, latest_ms: int | None, bytes_left: int | None) -> str:
    if earliest_ms is None:
        return "-" if bytes_left is None else f"after {bytes_left:,} more bytes"
    if latest_ms is None:
        return f"{_when(earliest_ms)} or later"
    return _when(latest_ms) if earliest_ms == latest_ms else f"{_when(earliest_ms)} to {_when(latest_ms)}"


def _when(moment: int | None) -> str:
    """Return a time without its fraction of a second."""
    text = show(moment)
    return f"{text[:10]} {text[11:19]}" if text.endswith("Z") else text


def _deleted(explanation: Explanation) -> list[str]:
    rows = [(file.path, size(file.size_bytes), _when(file.gone_ms)) for file in explanation.deleted]
    return _shortened("Deleted files", ("File", "Size", "Unlinked"), rows, numbers=[1], most=_FILES)


def _settings(explanation: Explanation) -> list[str]:
    rows = [
        (name, value_words(name, value), value, "given" if name in explanation.given else "default")
        for name, value in explanation.settings.items()
    ]
    return [
        html_page.table("Settings that decide", ("Setting", "Value", "Written", "From"), rows),
        html_page.paragraph(sentence(check_words(explanation.checks))),
    ]


def _shortened(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    long: Iterable[int] = (),
    most: int = _MOST_ROWS,
) -> list[str]:
    """Return a table, of many rows the first and the last ones, with a sentence about the others."""
    shown = rows if len(rows) <= most else [*rows[: most // 2], *rows[-(most // 2) :]]
    parts = [html_page.table(name, columns, shown, numbers=numbers, long=long)]
    if len(shown) < len(rows):
        parts.append(
            html_page.paragraph(f"{len(rows) - len(shown):,} of {len(rows):,} rows are left out in the middle.")
        )
    return parts


def _pair(entry: tuple[int, int] | None) -> str:
    return "-" if entry is None else f"{entry[0]}, {entry[1]}"


def _unique(explanation: Explanation, name: str) -> str:
    """Return a prefix for identifiers that other outputs of the same notebook do not have."""
    offset = "" if explanation.record is None else f"-{explanation.record.offset}"
    return f"{name}-{explanation.partition}-{explanation.at_ms}{offset}"
