"""Draws docs/append.svg: the life of a batch from `append` to `write(2)`, with the bytes of a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kstore
from kstore.explained import svg

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
HEADER = 61  # docs/format.md: the bytes of a batch before its records

WIDTH, MARGIN = 960, 24
BANDS = (("In the process", 96, 236), ("In the page cache", 366, 158), ("On the disk", 558, 118))


class Batch(NamedTuple):
    """A batch that was appended, and what lay in the log before it."""

    offset: int
    position: int
    size_bytes: int
    entries: int


def of_log(root: Path) -> str:
    """Return the picture of an append to a log, which writes an index entry, too."""
    now = NOON
    with kstore.Log.open(root / "orders-0", clock=lambda: now, segment_bytes=1 << 16, index_interval_bytes=700) as log:
        found = None
        while found is None:
            entries = log.segments[0].offset_index_entries
            offset = log.append(b"an order of tea, %3d grams" % (7 * log.log_end_offset % 400), b"ada")
            now += 60_000
            if offset > 20 and log.segments[0].offset_index_entries > entries:
                table = log.batch_table(offset)
                found = Batch(offset, int(table["position"][0]), int(table["size_bytes"][0]), entries)
    return picture(found)


def picture(batch: Batch) -> str:
    title = "The life of a batch, from append to the disk"
    about = "Steps 1 to 5 are one compiled call, unless the log has to roll. flush(), or sync=True, does step 6."
    lines = [svg.text(MARGIN, 40, title, size=22, bold=True), svg.text(MARGIN, 64, about, "soft", size=14)]
    for name, y, height in BANDS:
        lines.append(svg.box(MARGIN - 8, y, WIDTH - 2 * MARGIN + 16, height, "panel"))
        lines.append(svg.text(MARGIN + 8, y + 24, name, "soft", size=14, bold=True))
    lines += process(batch)
    lines += page_cache(batch)
    lines += disk()
    return svg.document(
        lines,
        svg.Sheet(WIDTH, 690, "append"),
        title=title,
        description=(
            "The batch is encoded and checked, gets its offset, and is written with pwrite; then readers see it. A "
            "flush syncs it for all threads that wait."
        ),
        heads=("edge", "offsetline", "timeline", "nowline"),
    )


def step(number: int, x: float, y: float, title: str, words: str, room: float = 236) -> Iterator[str]:
    yield f'<circle class="nowink" cx="{x + 11:g}" cy="{y - 5:g}" r="11"/>'
    yield svg.text(x + 11, y, f"{number}", "paper", bold=True, anchor="middle")
    yield svg.text(x + 30, y, title, size=14, bold=True)
    for row, line in enumerate(svg.wrapped(words, room, 12)):
        yield svg.text(x + 30, y + 19 + 16 * row, line, "soft", size=12)


def process(batch: Batch) -> Iterator[str]:
    top = BANDS[0][1]
    x = (MARGIN + 10, 326, 634)
    words = "Sizes, timestamp and key are checked against the settings; the CRC is computed last."
    yield from step(1, x[0], top + 56, "Check and encode", words)
    words = "By segment.bytes, segment.ms or a full index: then a new segment is made first."
    yield from step(2, x[1], top + 56, "Roll, if it is due", words)
    due = "An index entry is due each index.interval.bytes."
    words = f"{batch.offset}, and the leader epoch: the CRC covers neither. {due}"
    yield from step(3, x[2], top + 56, "Give it its offset", words)
    y = top + 134
    yield svg.line(x[0] + 258, y + 22, x[1] - 4, y + 22, "edge", head="append", width=2)
    yield svg.line(x[1] + 262, y + 22, x[2] - 4, y + 22, "edge", head="append", width=2)
    yield from drawn_batch(x[0], y, "?", batch)
    yield svg.text(x[0], y + 64, f"{batch.size_bytes} bytes, in a buffer of the log", "soft", size=12)
    yield svg.box(x[1], y + 4, 150, 36, "sealed edge")
    yield svg.text(x[1] + 75, y + 27, "active segment", size=12, anchor="middle")
    yield svg.box(x[1] + 160, y + 4, 94, 36, "active edge", dashed=True)
    yield svg.text(x[1] + 207, y + 27, "or a new one", size=12, anchor="middle")
    yield from drawn_batch(x[2], y, f"{batch.offset}", batch)
    yield svg.text(x[2], y + 64, "and, staged beside it, the index entries", "soft", size=12)


def drawn_batch(x: float, y: float, offset: str, batch: Batch) -> Iterator[str]:
    """Draw the parts of a batch."""
    yield svg.box(x, y + 4, 68, 36, "found edge" if offset != "?" else "paper edge")
    yield svg.text(x + 34, y + 27, f"offset {offset}", size=12, anchor="middle")
    yield svg.box(x + 68, y + 4, 90, 36, "paper edge")
    yield svg.text(x + 113, y + 27, "header, CRC", size=12, anchor="middle")
    yield svg.box(x + 158, y + 4, 96, 36, "found edge")
    yield svg.text(x + 206, y + 20, "key, value", size=12, anchor="middle")
    yield svg.text(x + 206, y + 34, f"{batch.size_bytes - HEADER} bytes", size=11, anchor="middle")


def page_cache(batch: Batch) -> Iterator[str]:
    top = BANDS[1][1]
    yield svg.line(740, BANDS[0][1] + 206, 690, top + 23, "offsetline", head="append", width=2)
    yield svg.text(730, BANDS[0][1] + 256, "pwrite, one for each file", "offsetindex", size=13, bold=True)
    words = "The .log first, then the entries of the indexes. If a write fails, the .log is cut: the log is as before."
    yield from step(4, MARGIN + 10, top + 56, "Write", words)
    x, right = 400, 720
    rows = (
        (".log", "sealed edge", top + 26),
        (".index", "paper offsetline", top + 70),
        (".timeindex", "paper timeline", top + 114),
    )
    for name, kind, y in rows:
        yield svg.text(x - 12, y + 21, name, size=13, bold=True, anchor="end")
        yield svg.box(x, y, right - x, 32, kind)
    yield svg.text(x + 10, rows[0][2] + 21, f"{batch.position:,} bytes of batches before", size=12)
    yield svg.box(right - 90, rows[0][2], 90, 32, "found edge")
    yield svg.text(right - 45, rows[0][2] + 21, f"batch {batch.offset}", size=12, anchor="middle")
    number = f"{batch.entries} entries" if batch.entries != 1 else "1 entry"
    entries = (f"{batch.offset} \u2192 byte {batch.position:,}", f"12:{batch.offset:02} \u2192 {batch.offset}")
    for (_, _, y), words in zip(rows[1:], entries, strict=True):
        wide = svg.width_of(words, 12) + 14
        yield svg.text(x + 10, y + 21, f"{number} before", "soft", size=12)
        yield svg.box(right - wide, y, wide, 32, "found edge")
        yield svg.text(right - wide / 2, y + 21, words, size=12, anchor="middle")
    words = f"The log end is raised to {batch.offset + 1}. Readers see the batch, followers wake."
    yield from step(5, 744, top + 56, "Publish", words, 160)
    yield svg.text(774, top + 132, "append returns", "nowink", size=13, bold=True)
    yield svg.text(774, top + 148, "survives the process", "soft", size=11)


def disk() -> Iterator[str]:
    top = BANDS[2][1]
    words = "fdatasync, by one thread for all that wait. The others sleep; the next sync serves later ones."
    yield from step(6, MARGIN + 10, top + 56, "Flush", words)
    for number in range(3):
        x = 400 + 108 * number
        yield svg.box(x, top + 18, 96, 28, "active edge" if number else "found edge")
        words = "thread syncs" if not number else "thread waits"
        yield svg.text(x + 48, top + 37, words, size=12, anchor="middle")
        yield svg.line(x + 48, top + 48, 560 + 8 * (number - 1), top + 76, "nowline", head="append")
    yield svg.box(400, top + 80, 312, 24, "clean edge")
    yield svg.text(556, top + 97, "one fdatasync for all of them", size=12, anchor="middle")
    yield svg.text(774, top + 52, "flush returns", "nowink", size=13, bold=True)
    yield svg.text(774, top + 70, "survives a power failure", "soft", size=11)
