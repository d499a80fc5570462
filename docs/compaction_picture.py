"""Draws docs/compaction.svg: the records of a small log before and after a compaction, at their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kstore
from kstore.explained import svg

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
ACCOUNTS = "ada=10 bob=20 ada=11 eve=5 bob=21 ada=12 bob= eve=6 ada=13 dan=1 eve=7 dan=2 bob=22 ada=14"

WIDTH, MARGIN = 960, 24
LEFT = 106
CELL, BAR = 59, 46
TOP, BOTTOM = 118, 250
KINDS = {b"ada": "sealed", b"bob": "clean", b"eve": "future", b"dan": "bounded"}


class State(NamedTuple):
    """A log: its records by offset, the first offset of each segment, and the bytes of all."""

    records: dict[int, kstore.Record]
    bases: list[int]
    size_bytes: int
    dirty: int


def of_log(root: Path) -> str:
    """Return the picture of a log of accounts that is compacted."""
    settings = {"cleanup_policy": "compact", "segment_bytes": 600}
    with kstore.Log.open(root / "accounts-0", clock=lambda: NOON, **settings) as log:
        for number, entry in enumerate(ACCOUNTS.split()):
            if number and number % 4 == 0:
                log.roll()
            key, _, value = entry.partition("=")
            log.append(value.encode() or None, key.encode())
        before = state(log)
        log.compact()
        return picture(before, state(log))


def state(log: kstore.Log) -> State:
    return State(
        {record.offset: record for record in log.read()},
        [segment.base_offset for segment in log.segments],
        sum(segment.size_bytes for segment in log.segments),
        log.compaction_outlook().first_dirty_offset,
    )


def picture(before: State, after: State) -> str:
    count = max(before.records) + 1
    title = "A compaction keeps the newest record of each key"
    about = (
        f"{len(before.records)} records in {len(before.bases)} segments become {len(after.records)} in "
        f"{len(after.bases)}. Offsets do not change: readers find gaps."
    )
    lines = [svg.text(MARGIN, 40, title, size=22, bold=True), svg.text(MARGIN, 64, about, "soft", size=14)]
    active = before.bases[-1]
    for name, found, y in (("before", before, TOP), ("after", after, BOTTOM)):
        lines.append(svg.text(MARGIN, y + 22, name, size=16, bold=True))
        lines.append(svg.text(MARGIN, y + 40, f"{found.size_bytes:,} bytes", "soft", size=12))
        lines += segments(found, count, y, active)
    lines.append(svg.text(MARGIN, TOP - 8, "offset", "soft", size=12))
    for offset, record in before.records.items():
        x = LEFT + CELL * offset
        lines.append(svg.text(x + CELL / 2 - 2.5, TOP - 8, f"{offset}", "soft", size=12, anchor="middle"))
        lines += cell(record, x, TOP, is_old=offset not in after.records)
        if offset in after.records:
            lines += cell(record, x, BOTTOM, is_old=False)
            middle = x + CELL / 2 - 2.5
            lines.append(svg.line(middle, TOP + BAR + 24, middle, BOTTOM - 8, "edge", head="compaction"))
    notes = [
        "A record goes if a later record below the active segment has its key: it is pale above.",
        "The active segment is neither read nor changed. So bob and ada have two records until it is, too.",
        "A record without a value (\u2205), a tombstone, deletes its key. It goes itself delete.retention.ms later.",
        f"Segments {before.bases[0]} and {before.bases[1]} became one. Below offset {after.dirty} the log is clean.",
    ]
    for number, note in enumerate(notes):
        lines.append(svg.text(MARGIN, BOTTOM + 108 + 22 * number, note, size=14))
    return svg.document(
        lines,
        svg.Sheet(WIDTH, BOTTOM + 108 + 22 * len(notes), "compaction"),
        title=title,
        description=" ".join((about, *notes)),
        heads=("edge",),
    )


def segments(found: State, count: int, y: float, active: int) -> Iterator[str]:
    for base, end in zip(found.bases, [*found.bases[1:], count], strict=True):
        left, width = LEFT + CELL * base, CELL * (end - base)
        kind = "active edge" if base == active else "panel edge"
        yield svg.box(left - 2, y - 3, width - 2, BAR + 6, kind, dashed=base == active)
        name = f"segment {base}" if base != active else "active"
        yield svg.text(left, y + BAR + 17, name, "soft", size=12)


def cell(record: kstore.Record, x: float, y: float, *, is_old: bool) -> Iterator[str]:
    assert record.key is not None
    value = "\u2205" if record.value is None else record.value.decode()
    ink = "soft" if is_old else "ink"
    kind = "before edge" if is_old else f"{KINDS[record.key]} edge"
    yield svg.box(x + 2, y + 1, CELL - 9, BAR - 2, kind, dashed=is_old)
    yield svg.text(x + CELL / 2 - 2.5, y + 19, record.key.decode(), ink, bold=not is_old, anchor="middle")
    yield svg.text(x + CELL / 2 - 2.5, y + 37, value, ink, anchor="middle")
