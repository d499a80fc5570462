"""Decides about segments that overlap: which files go, and which batches, since another segment holds them, too.

Reads logs and changes nothing. The hardest rule: of each sound batch one copy stays; batches are copies only if their
headers are equal, with the CRC over all the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from kstore.codec import header
from kstore.disk import fs
from kstore.files.logfile import open_log
from kstore.tools.check import _verify
from kstore.tools.check.findings import Damage
from kstore.tools.check.index import Rows
from kstore.tools.check.segment import read_rows

__all__ = ["Overlaps", "find_overlaps"]


@dataclass(slots=True)
class Overlaps:
    """What is decided about the segments that overlap. Not thread-safe."""

    redundant: set[int] = field(default_factory=set)
    """Base offsets of segments that go: they hold nothing, or nothing that the segment before them does not hold."""
    copies: dict[int, dict[int, int]] = field(default_factory=dict)
    """By base offset: positions of batches that later segments hold, too, and the base offset of the next segment."""
    limits: dict[int, int] = field(default_factory=dict)
    """By base offset: the end of a segment that overlaps the next one with other batches. Neither is cut."""


@dataclass(slots=True)
class _Segment:
    base: int
    path: str
    rows: Rows
    damages: list[Damage]

    def reaching(self, offset: int) -> Rows:
        """The batches at the end of the segment that lie at `offset` or above it, in order; none if there are not."""
        first = len(self.rows)
        while first and self.rows["last_offset"][first - 1] >= offset:
            first -= 1
        found = self.rows[first:]
        rises = (found["base_offset"][1:] > found["last_offset"][:-1]).all()
        is_within = not (found["faults"] & _verify.Fault.DELTA).any()
        return found if rises and is_within else self.rows[:0]

    def keys(self, rows: Rows) -> set[tuple[int, bytes]]:
        """What tells a batch from all others: its size and its header, in which the CRC is."""
        fd = open_log(self.path)
        try:
            return {(int(row["size"]), fs.pread(fd, header.HEADER_BYTES, int(row["position"]))) for row in rows}
        finally:
            fs.close(fd)


def find_overlaps(directory: str, logs: dict[int, str]) -> Overlaps:
    """Decide about the segments of `logs`, file names by base offset. Raises `StorageError` where one is unreadable."""
    found = Overlaps()
    paths = [(base, os.path.join(directory, logs[base])) for base in sorted(logs)]
    segments = [_Segment(base, path, *read_rows(path, base)) for base, path in paths]
    before: _Segment | None = None
    for number, segment in enumerate(segments):
        reaching = before.reaching(segment.base) if before is not None else ()
        if before is None or not len(reaching):
            before = segment
        elif not len(segment.rows) and not segment.damages and not _may_be_moved(before, reaching, segment.base):
            found.redundant.add(segment.base)
        elif len(segment.rows) and not segment.damages and segment.keys(segment.rows) <= before.keys(reaching):
            found.redundant.add(segment.base)
        else:
            last = int(reaching["last_offset"][-1])
            later = [other for other in segments[number:] if other.base <= last]
            if before.keys(reaching) <= {key for each in later for key in each.keys(each.reaching(each.base))}:
                found.copies[before.base] = {int(at): segment.base for at in reaching["position"]}
            elif len(reaching) > 1:
                found.limits[before.base] = last + 1
            before = segment
    return found


def _may_be_moved(segment: _Segment, reaching: Rows, limit: int) -> bool:
    """Whether only the last batch reaches `limit`, and a flip of one bit of its offset can be the reason."""
    if len(reaching) > 1:
        return False
    (row,) = reaching
    expected = _end(segment.rows[: len(segment.rows) - 1], segment.base)
    base, span = int(row["base_offset"]), int(row["last_offset"]) - int(row["base_offset"]) + 1
    return base != expected and any(expected <= base ^ (1 << bit) <= limit - span for bit in range(63))


def _end(rows: Any, base: int) -> int:
    return int(rows["last_offset"][-1]) + 1 if len(rows) else base
