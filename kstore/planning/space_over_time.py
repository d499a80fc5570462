"""Quantities over the time of a plan: what was written, what was deleted, and ranges of the difference. No I/O.

Invariant: what was written grows evenly between two times that are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy

from kstore.explained.explained_plan import PlannedRange

Points: TypeAlias = list[tuple[int, int]]
"""Values at times, in order; two of one time are before and after a change."""

_SHOWN = 1000  # points of a curve


class Piece(NamedTuple):
    """Values that lie evenly between two, with their weight."""

    low: int
    high: int
    weight: int


class Files(NamedTuple):
    """The files of deleted segments."""

    segments: int
    disk_bytes: int
    index_bytes: int


class Series:
    """One quantity: what came, in points, and what went. Not thread-safe."""

    def __init__(self) -> None:
        self._came: Points = []
        self._went: Points = []

    def came(self, ms: int, total: int) -> None:
        """Record how much there was of it until now, all that went included; an earlier time changes nothing."""
        if self._came and (ms < self._came[-1][0] or self._came[-1] == (ms, total)):
            return
        if len(self._came) > 1 and self._came[-2][1] == self._came[-1][1] == total:
            self._came.pop()
        self._came.append((ms, total))

    def went(self, ms: int, amount: int) -> None:
        """Record that some of it goes."""
        if amount:
            self._went.append((ms, amount))

    def points(self, first_ms: int, end_ms: int) -> Points:
        """Return how much there is from `first_ms` to `end_ms`, with both sides of each change."""
        found: Points = []
        gone = at = 0
        went = sorted(self._went)
        before_ms, before = self._came[0]
        for ms, total in self._came:
            while at < len(went) and went[at][0] < ms:
                when, amount = went[at]
                grown = before + (total - before) * (when - before_ms) // (ms - before_ms)
                found.append((when, grown - gone))
                gone += amount
                found.append((when, grown - gone))
                at += 1
            found.append((ms, total - gone))
            before_ms, before = ms, total
        for when, amount in went[at:]:
            found.append((when, before - gone))
            gone += amount
            found.append((when, before - gone))
        return _clipped(found, first_ms, end_ms)


class SpaceOverTime:
    """The disk that a log takes, its segments and its files. Not thread-safe."""

    def __init__(self) -> None:
        self.disk = Series()
        self.indexes = Series()
        self.segments = Series()
        self.kept = Series()  # segments whose files are there, deleted or not

    def written(self, ms: int, disk_bytes: int, index_bytes: int, segments: int) -> None:
        """Record what was written until now, in all."""
        self.disk.came(ms, disk_bytes)
        self.indexes.came(ms, index_bytes)
        self.segments.came(ms, segments)
        self.kept.came(ms, segments)

    def deleted(self, ms: int, segments: int) -> None:
        """Record that segments are deleted; their files stay until `freed`."""
        self.segments.went(ms, segments)

    def freed(self, ms: int, files: Files) -> None:
        """Record that the files of deleted segments go."""
        self.disk.went(ms, files.disk_bytes)
        self.indexes.went(ms, files.index_bytes)
        self.kept.went(ms, files.segments)


def over_time(points: Points) -> PlannedRange:
    """Return the range of values over time; a value is typical if half of the time there is less."""
    pieces = [
        Piece(min(before, after), max(before, after), when - earlier)
        for (earlier, before), (when, after) in pairwise(points)
    ]
    values = [value for _, value in points]
    return PlannedRange(min(values), middle(pieces, values[-1]), max(values))


def of_pieces(pieces: Sequence[Piece]) -> PlannedRange | None:
    """Return the range of the values of some pieces; None without any."""
    if not pieces:
        return None
    low, high = min(piece.low for piece in pieces), max(piece.high for piece in pieces)
    return PlannedRange(low, middle(pieces, high), high)


def middle(pieces: Iterable[Piece], otherwise: int) -> int:
    """Return the median of pieces by weight; `otherwise` if nothing has weight."""
    table = numpy.array([piece for piece in pieces if piece.weight > 0], dtype=numpy.float64).reshape(-1, 3)
    if not len(table):
        return otherwise
    low, high, weight = table.T
    span = numpy.maximum(high - low, 1e-9)
    at, end = float(low.min()), float(high.max())
    half = float(weight.sum()) / 2
    for _ in range(64):
        value = (at + end) / 2
        below = float((weight * numpy.clip((value - low) / span, 0.0, 1.0)).sum())
        at, end = (value, end) if below < half else (at, value)
    return round(end)


def thinned(points: Points, most: int = _SHOWN) -> Points:
    """Return at most about so many of the points: of each stretch of time the first, the extremes and the last."""
    if len(points) <= most:
        return points
    first, end = points[0][0], points[-1][0]
    width = max((end - first) * 4 // most, 1)
    kept: Points = []
    bucket: Points = []
    for point in points:
        if bucket and (point[0] - first) // width != (bucket[0][0] - first) // width:
            kept += _extremes(bucket)
            bucket = []
        bucket.append(point)
    return kept + _extremes(bucket)


def _extremes(bucket: Points) -> Points:
    numbers = range(len(bucket))
    chosen = {0, len(bucket) - 1}
    chosen |= {min(numbers, key=lambda n: bucket[n][1]), max(numbers, key=lambda n: bucket[n][1])}
    return [bucket[number] for number in sorted(chosen)]


def _clipped(points: Points, first_ms: int, end_ms: int) -> Points:
    """Return the part of a curve from `first_ms` to `end_ms`."""
    inside = [point for point in points if first_ms <= point[0] <= end_ms]
    before = [point for point in points if point[0] < first_ms][-1:]
    after = next((point for point in points if point[0] > end_ms), None)
    if not inside or (before and inside[0][0] > first_ms):
        start = before[0] if before else points[0]
        following = inside[0] if inside else after
        inside.insert(0, (first_ms, _between(start, following, first_ms)))
    if inside[-1][0] < end_ms:
        inside.append((end_ms, _between(inside[-1], after, end_ms)))
    return inside


def _between(start: tuple[int, int], end: tuple[int, int] | None, ms: int) -> int:
    if end is None or end[0] <= start[0]:
        return start[1]
    return start[1] + (end[1] - start[1]) * (ms - start[0]) // (end[0] - start[0])
