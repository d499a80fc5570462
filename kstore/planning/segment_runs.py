"""Sealed segments of a plan, oldest first, in runs of a repeated pattern: a million equal segments are one object.

Invariant: the sums of a line are those of the segments that it holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kstore.planning.growing_segment import SealedSegment

if TYPE_CHECKING:
    from kstore.planning.load_stretches import Stretch


class Sums(NamedTuple):
    """What some segments are together."""

    segments: int = 0
    records: int = 0
    size_bytes: int = 0
    disk_bytes: int = 0
    index_bytes: int = 0

    def plus(self, other: Sums, times: int = 1) -> Sums:
        """Return these sums and `times` the others."""
        return Sums(
            self.segments + times * other.segments,
            self.records + times * other.records,
            self.size_bytes + times * other.size_bytes,
            self.disk_bytes + times * other.disk_bytes,
            self.index_bytes + times * other.index_bytes,
        )


def sums_of(segment: SealedSegment) -> Sums:
    """Return the sums of one segment."""
    return Sums(1, segment.records, segment.size_bytes, segment.disk_bytes, segment.index_bytes)


class Pattern:
    """Neighbouring segments that may come again. Immutable.

    They have batches of `stretch` from number `first` on, so many that the next repetition begins `batches` later.
    Without a stretch there is no repetition.
    """

    __slots__ = ("batches", "first", "is_rising", "prefix", "segments", "stretch")

    def __init__(
        self, segments: Sequence[SealedSegment], stretch: Stretch | None = None, first: int = 0, batches: int = 0
    ) -> None:
        self.segments = tuple(segments)
        self.stretch = stretch
        self.first = first
        self.batches = batches
        following = [*self.segments, self.moved(0, batches)]
        self.is_rising = all(before.newest <= after.newest for before, after in pairwise(following))
        prefix = [Sums()]
        for segment in self.segments:
            prefix.append(prefix[-1].plus(sums_of(segment)))
        self.prefix = prefix

    def moved(self, which: int, batches: int) -> SealedSegment:
        """Return what one of the segments is if the pattern begins so many batches later."""
        segment, stretch = self.segments[which], self.stretch
        if stretch is None or not batches:
            return segment
        ms = stretch.time(self.first + batches) - stretch.time(self.first)
        return segment.shifted(ms, batches * stretch.records)


class SegmentRun:
    """Neighbouring sealed segments: a pattern and its repetitions. Not thread-safe.

    Segments are numbered from 0; the first `gone` were deleted.
    """

    __slots__ = ("_behind", "_pattern", "gone", "repeats")

    def __init__(self, pattern: Pattern, repeats: int = 1, behind: int = 0) -> None:
        """The first repetition begins `behind` batches after the pattern."""
        self._pattern = pattern
        self._behind = behind
        self.repeats = repeats
        self.gone = 0

    def __len__(self) -> int:
        """The number of segments, the deleted ones included."""
        return len(self._pattern.segments) * self.repeats

    def at(self, number: int) -> SealedSegment:
        """Return one of the segments."""
        times, which = divmod(number, len(self._pattern.segments))
        return self._pattern.moved(which, self._behind + times * self._pattern.batches)

    def below(self, number: int) -> Sums:
        """Return the sums of the segments before this one, the deleted ones included."""
        times, which = divmod(number, len(self._pattern.segments))
        prefix = self._pattern.prefix
        return prefix[which].plus(prefix[-1], times) if times else prefix[which]

    def between(self, first: int, end: int) -> Sums:
        """Return the sums of the segments `[first, end)`."""
        return self.below(end).plus(self.below(first), -1) if first else self.below(end)

    def newest(self, first: int, last: int) -> int:
        """Return the greatest timestamp of the segments from `first` to `last`, both included."""
        if self._pattern.is_rising:
            return self.at(last).newest
        # Each repetition is newer than the one before.
        since = max(first, last + 1 - len(self._pattern.segments))
        return max(self.at(number).newest for number in range(since, last + 1))

    def first_newer(self, first: int, stamp: int) -> int:
        """Return the first segment from `first` on with a greater timestamp than this; the run's length if none has."""
        width = len(self._pattern.segments)

        def newest_of(times: int) -> int:
            return self.newest(times * width, times * width + width - 1)

        whole = bisect_right(range(self.repeats), stamp, key=newest_of)  # repetitions get newer
        for number in range(max(first, whole * width), len(self)):
            if self.at(number).newest > stamp:
                return number
        return len(self)

    def earliest(self, first: int) -> Iterator[SealedSegment]:
        """Yield the segments from `first` on of one repetition: all that may be the earliest, by some timestamp."""
        return self.each(first, min(first + len(self._pattern.segments), len(self)))

    def each(self, first: int, end: int) -> Iterator[SealedSegment]:
        """Yield the segments `[first, end)`."""
        return map(self.at, range(first, end))


def single(*segments: SealedSegment) -> SegmentRun:
    """Return the run of these segments, which are not repeated."""
    return SegmentRun(Pattern(segments))


class SealedLine:
    """The sealed segments of a log. Not thread-safe."""

    def __init__(self) -> None:
        self.runs: deque[SegmentRun] = deque()
        self.sums = Sums()

    def __bool__(self) -> bool:
        return bool(self.runs)

    @property
    def oldest(self) -> SealedSegment:
        """The oldest segment."""
        return self.runs[0].at(self.runs[0].gone)

    def add(self, run: SegmentRun) -> None:
        """Add segments at the end."""
        self.runs.append(run)
        self.sums = self.sums.plus(run.between(run.gone, len(run)))

    def delete(self, count: int) -> list[tuple[SegmentRun, int, int]]:
        """Delete the oldest segments; return them as parts `[first, end)` of runs."""
        parts = []
        while count:
            run = self.runs[0]
            first, end = run.gone, min(run.gone + count, len(run))
            parts.append((run, first, end))
            count -= end - first
            run.gone = end
            self.sums = self.sums.plus(run.between(first, end), -1)
            if end == len(run):
                self.runs.popleft()
        return parts

    def put_back(self, runs: Sequence[SegmentRun]) -> None:
        """Add segments before the oldest."""
        for run in reversed(runs):
            self.runs.appendleft(run)
            self.sums = self.sums.plus(run.between(run.gone, len(run)))

    def each(self) -> Iterator[SealedSegment]:
        """Yield the segments."""
        for run in self.runs:
            yield from run.each(run.gone, len(run))
