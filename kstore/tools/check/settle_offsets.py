"""Decides about the offsets of batches that are out of order within a segment, and of segments that overlap.

Reads logs and changes nothing. Invariant: one copy of each sound batch is kept; batches are copies only if their
headers are equal, including the CRC over all the rest.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import header
from kstore.disk import fs
from kstore.files.log_file import open_log
from kstore.tools.check import _verify
from kstore.tools.check.check_index import Rows
from kstore.tools.check.check_partition import Marks
from kstore.tools.check.check_segment import read_rows
from kstore.tools.check.findings import Damage
from kstore.tools.check.repair_plan import SegmentPlan

__all__ = [
    "Batch",
    "Overlaps",
    "find_overlaps",
    "is_one_bit",
    "longest_chain",
    "move",
    "patch",
    "settle_copies",
    "settle_offsets",
]


@dataclass(slots=True)
class Batch:
    """A batch that is kept unless `why_not` says why it is cut."""

    position: int
    size: int
    base: int
    span: int
    count: int
    epoch: int
    magic: int
    max_timestamp: int
    why_not: str = ""
    is_restored: bool = False
    """Whether its length or magic was wrong, so that a flip of its offset would be a second fault in one header."""

    @property
    def next(self) -> int:
        return self.base + self.span


# Within a segment


def settle_copies(fd: int, batches: list[Batch], base: int, limit: int) -> None:
    """Cut batches that are out of order if a copy is in order elsewhere: a block was written to a wrong place.

    Two batches with equal records look like copies if a flip gave one of them the other's offset. Such a batch is kept
    if exactly its offsets are missing between its neighbours and a flip of one bit restores them.
    """
    misplaced = {batch.position for batch, _ in _misplaced(batches, base, limit)}
    usable = [batch for batch in batches if not batch.why_not]
    in_order: dict[int, Batch] = {}
    if misplaced:
        in_order = {batch.base: batch for batch in usable if batch.position not in misplaced}
    for number, batch in enumerate(usable):
        other = in_order.get(batch.base) if batch.position in misplaced and batch.magic == 2 else None
        if other is None or other.size != batch.size:
            continue
        low = usable[number - 1].next if number else base
        high = usable[number + 1].base if number + 1 < len(usable) else limit
        is_flipped = high - low == batch.span and is_one_bit(batch.base ^ low)
        if not is_flipped and _header(fd, batch) == _header(fd, other):
            what = f"offsets {batch.base} to {batch.next - 1}"
            batch.why_not = f"{what}: a copy of the batch at position {other.position}"


def _header(fd: int, batch: Batch) -> bytes:
    return fs.pread(fd, header.HEADER_BYTES, batch.position)


def settle_offsets(
    batches: list[Batch], base: int, limit: int, marks: Marks, segment: SegmentPlan, *, is_last: bool
) -> None:
    """Put offsets in order with the fewest cut batches; try it with no, some or all misplaced batches cut before."""
    best: tuple[list[Batch], list[tuple[int, bytes, str]]] | None = None
    fewest = len(batches) + 1
    for choose in (_none_misplaced, _misplaced_runs, _misplaced):
        tried = [replace(batch) for batch in batches]
        for batch, why in choose(tried, base, limit):
            batch.why_not = why
        patches = _put_in_order(tried, base, limit, marks, is_last=is_last)
        cut = sum(1 for batch in tried if batch.why_not)
        if cut < fewest:
            best, fewest = (tried, patches), cut
        if cut == sum(1 for batch in batches if batch.why_not):
            break
    if best is not None:
        batches[:] = best[0]
        segment.patches += best[1]


def _none_misplaced(batches: list[Batch], base: int, limit: int) -> list[tuple[Batch, str]]:
    return []


def _misplaced(batches: list[Batch], base: int, limit: int) -> list[tuple[Batch, str]]:
    """Return the batches that are not in the segment's longest chain of rising offsets, and why they are cut."""
    usable = [batch for batch in batches if not batch.why_not]
    possible = [
        batch for batch in usable
        if batch.base >= base and batch.next <= limit and batch.next - 1 - base <= INT_MAX
    ]  # fmt: skip
    chain = {possible[at].position for at in longest_chain([(batch.base, batch.next) for batch in possible])}
    found: list[tuple[Batch, str]] = []
    low = base
    waiting: list[Batch] = []
    for batch in [*usable, None]:
        if batch is not None and batch.position not in chain:
            waiting.append(batch)
            continue
        high = batch.base if batch is not None else limit
        found += [(each, _no_place(each, low, high)) for each in waiting]
        waiting.clear()
        low = batch.next if batch is not None else limit
    return found


def _misplaced_runs(batches: list[Batch], base: int, limit: int) -> list[tuple[Batch, str]]:
    """Return the misplaced batches that continue each other's offsets: a flipped bit cannot have moved such batches."""
    found = _misplaced(batches, base, limit)
    spans = [(batch.base, batch.next) for batch, _ in found]
    starts, ends = {start for start, _ in spans}, {end for _, end in spans}
    return [each for each in found if each[0].base in ends or each[0].next in starts]


def _no_place(batch: Batch, low: int, high: int) -> str:
    room = f"{low} and {high}" if high < LONG_MAX else f"{low} and the end"
    return f"offsets {batch.base} to {batch.next - 1} have no place between {room}"


def _put_in_order(
    batches: list[Batch], base: int, limit: int, marks: Marks, *, is_last: bool
) -> list[tuple[int, bytes, str]]:
    """Restore the offsets that the neighbours determine, cut batches that no offset fits, and return the patches."""
    patches: list[tuple[int, bytes, str]] = []
    usable = [batch for batch in batches if not batch.why_not]
    expected = base
    for number, batch in enumerate(usable):
        after = usable[number + 1].base if number + 1 < len(usable) else limit
        fits = batch.base >= expected and batch.next - 1 - base <= INT_MAX
        if batch.magic < 2:
            if not fits or batch.next > limit:
                batch.why_not = "its offset is not in order"
                continue
        elif not fits or batch.next > after:
            is_end = number + 1 == len(usable) and after == LONG_MAX
            is_alone = len(usable) == 1  # its file may belong elsewhere
            highest = expected if is_end or is_alone else after - batch.span
            is_elsewheres = is_alone and batch.is_restored
            wanted = None if is_elsewheres else _offset_told(batch, expected, highest, is_end=is_end or is_alone)
            if wanted is not None:
                patches.append(move(batch, wanted))
            elif not fits or number + 1 == len(usable):
                batch.why_not = _no_place(batch, expected, after)
                continue
        elif number + 1 == len(usable) and is_last and _was_flipped_last(batch, expected, marks):
            patches.append(move(batch, expected))
        expected = batch.next
    return patches


def _offset_told(batch: Batch, low: int, high: int, *, is_end: bool) -> int | None:
    """Return the offset in `[low, high]` that a batch must have had; None if that cannot be known.

    It is known if flipping one bit of the batch's offset leads to only one offset in this range, or if the batch's
    neighbours in the file leave only one offset. The neighbours do not count for the last batch, which may be an old
    one that was written twice, nor for a batch that is alone in its file.
    """
    near = [at for bit in range(64) if low <= (at := (batch.base % (1 << 64)) ^ (1 << bit)) <= high]
    if len(near) == 1:
        return near[0]
    return low if low == high and not is_end else None


def _was_flipped_last(batch: Batch, expected: int, marks: Marks) -> bool:
    """Return whether the recovery point of a close shows that the last batch belongs right after the one before it."""
    return expected + batch.span == marks.recovery_point and is_one_bit(batch.base ^ expected)


def is_one_bit(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def move(batch: Batch, base: int) -> tuple[int, bytes, str]:
    """Give a batch its offset, and return the patch."""
    why = f"restore the batch's offset, {base} where {batch.base} is written"
    batch.base = base
    return patch(batch.position, header.BASE_OFFSET, base, why)


def patch(position: int, field: header.Field, value: int, why: str) -> tuple[int, bytes, str]:
    """Return a patch that writes one field of the batch at `position`."""
    return position + field.at, field.bytes_of(value), why


def longest_chain(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the indexes of a longest chain of batches: each starts at or above the end of the batch before it.

    `spans` are the batches' offsets `[start, end)`. Of several such chains, returns one with the lowest end.
    """
    if all(one[1] <= other[0] for one, other in pairwise(spans)):
        return list(range(len(spans)))
    ends: list[int] = []
    lasts: list[int] = []
    before: list[int] = []
    for number, (first, end) in enumerate(spans):
        length = bisect_right(ends, first)
        before.append(lasts[length - 1] if length else -1)
        if length == len(ends):
            ends.append(end)
            lasts.append(number)
        elif end < ends[length]:
            ends[length], lasts[length] = end, number
    chain = []
    at = lasts[-1] if lasts else -1
    while at >= 0:
        chain.append(at)
        at = before[at]
    return chain[::-1]


# Between segments


@dataclass(slots=True)
class Overlaps:
    """The decisions about segments that overlap. Not thread-safe."""

    redundant: set[int] = field(default_factory=set)
    """Base offsets of segments to remove: they are empty, or the segment before them has all their batches."""
    copies: dict[int, dict[int, int]] = field(default_factory=dict)
    """By base offset: positions of batches that later segments have, too, each with the next segment's base offset."""
    limits: dict[int, int] = field(default_factory=dict)
    """The end of each segment that overlaps the next one but has different batches, by base offset; neither is cut."""


@dataclass(slots=True)
class _Segment:
    base: int
    path: str
    rows: Rows
    damages: list[Damage]

    def reaching(self, offset: int) -> Rows:
        """Return the batches at the segment's end that reach `offset`; none if they are not in order."""
        first = len(self.rows)
        while first and self.rows["last_offset"][first - 1] >= offset:
            first -= 1
        found = self.rows[first:]
        rises = (found["base_offset"][1:] > found["last_offset"][:-1]).all()
        is_within = not (found["faults"] & _verify.Fault.DELTA).any()
        return found if rises and is_within else self.rows[:0]

    def keys(self, rows: Rows) -> set[tuple[int, bytes]]:
        """Return what identifies each batch: its size and its header, which includes the CRC."""
        fd = open_log(self.path)
        try:
            return {(int(row["size"]), fs.pread(fd, header.HEADER_BYTES, int(row["position"]))) for row in rows}
        finally:
            fs.close(fd)


def find_overlaps(directory: str, logs: dict[int, str]) -> Overlaps:
    """Decide about the segments of `logs`, file names by base offset. Raises `StorageError` if one is unreadable."""
    found = Overlaps()
    paths = [(base, os.path.join(directory, logs[base])) for base in sorted(logs)]
    segments = [_Segment(base, path, *read_rows(path, base)) for base, path in paths]
    before: _Segment | None = None
    for number, segment in enumerate(segments):
        if before is None or not len(reaching := before.reaching(segment.base)):
            before = segment
        elif not segment.damages and _is_held(segment, before, reaching):
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


def _is_held(segment: _Segment, before: _Segment, reaching: Rows) -> bool:
    """Return whether `before` has all batches of `segment`, or, if that is empty, reaches it without a flipped bit."""
    if len(segment.rows):
        return segment.keys(segment.rows) <= before.keys(reaching)
    return not _may_be_moved(before, reaching, segment.base)


def _may_be_moved(segment: _Segment, reaching: Rows, limit: int) -> bool:
    """Return whether only the last batch reaches `limit`, possibly because one bit of its offset was flipped."""
    if len(reaching) > 1:
        return False
    (row,) = reaching
    expected = _end(segment.rows[: len(segment.rows) - 1], segment.base)
    base, span = int(row["base_offset"]), int(row["last_offset"]) - int(row["base_offset"]) + 1
    return base != expected and any(expected <= base ^ (1 << bit) <= limit - span for bit in range(63))


def _end(rows: Any, base: int) -> int:
    return int(rows["last_offset"][-1]) + 1 if len(rows) else base
