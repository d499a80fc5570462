"""The log of a plan: appends a load to an active segment, rolls it, and keeps the sealed ones.

Once the segments of a stretch repeat, all further repetitions become one run. Invariant: everything up to the latest
time asked for was appended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kstore.log.segments.roll import limits
from kstore.planning.growing_segment import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, GrowingSegment, SealedSegment
from kstore.planning.segment_runs import Pattern, SealedLine, SegmentRun, Sums, single, sums_of

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.planning.load_stretches import Stretch
    from kstore.planning.space_over_time import SpaceOverTime

RETENTION = "retention"
"""The reason of a roll by retention, which deletes all segments (SEMANTICS 6.9)."""

_MOST_FILLED, _TYPICAL = 1000, 12
"""After so many segments, those of a stretch that do not repeat are taken to be like some of them, the latest."""


class _Earlier(NamedTuple):
    """A segment that holds the batches `[first, end)` of the present stretch."""

    first: int
    end: int
    segment: SealedSegment


def _pattern(stretch: Stretch, earlier: list[_Earlier]) -> Pattern:
    first = earlier[0].first
    return Pattern([each.segment for each in earlier], stretch, first, earlier[-1].end - first)


class PlannedLog:
    """One partition under a load. Not thread-safe."""

    def __init__(self, config: LogConfig, stretches: Iterator[Stretch], start_ms: int, space: SpaceOverTime) -> None:
        self._config = config
        self._limits = limits(
            config,
            jitter_ms=0,
            max_offset_entries=config.segment_index_bytes // OFFSET_ENTRY_BYTES,
            max_time_entries=config.segment_index_bytes // TIME_ENTRY_BYTES,
        )
        self._stretches = stretches
        self._following: list[Stretch] = []  # those that were looked at, and not begun
        self._space = space
        self._fresh: dict[tuple[int, int], int] = {}  # the phases at which segments of the stretch began
        self._recent: list[_Earlier] = []  # the latest segments, all of the present stretch, one after the other
        self._typical: list[Pattern] = []  # what all segments of the stretch are taken to be like: the first n of them
        self.growing: GrowingSegment
        self.stretch: Stretch | None = next(stretches, None)
        self._begun = [] if self.stretch is None else [self.stretch]
        self.number = 0  # of the next batch
        self.sealed = SealedLine()
        self._begin_segment(0)
        self.made = Sums()  # all segments that were ever sealed, and files that compaction wrote
        self.roll_reasons: Counter[str] = Counter()
        self.first_roll: tuple[int, str] | None = None
        self.rolled_ms = start_ms  # when the log rolled last
        self.is_exact = True
        self.work = 0  # segments that were filled one by one
        self._note(start_ms)

    # What comes.

    @property
    def next_ms(self) -> int | None:
        """When the next batch is appended; None if none is."""
        stretch = self._next_stretch()
        return None if stretch is None else stretch.time(max(self.number, stretch.first))

    @property
    def next_stamp(self) -> int | None:
        """The newest timestamp of the next batch; None if there is none."""
        stretch = self._next_stretch()
        return None if stretch is None else stretch.stamp(max(self.number, stretch.first))

    def _next_stretch(self) -> Stretch | None:
        if self.stretch is not None and self.number < self.stretch.end:
            return self.stretch
        return self._ahead(0)

    def _ahead(self, number: int) -> Stretch | None:
        """Return one of the stretches after the present one."""
        while len(self._following) <= number:
            stretch = next(self._stretches, None)
            if stretch is None:
                return None
            self._following.append(stretch)
        return self._following[number]

    def grown_ms(self, size_bytes: int, until_ms: int) -> int | None:
        """Return when so many more bytes were appended; None if that is after `until_ms`."""
        stretch, number, ahead = self.stretch, self.number, 0
        while stretch is not None:
            batches = -(-size_bytes // stretch.batch_bytes)
            if batches <= stretch.end - number:
                ms = stretch.time(number + batches - 1)
                return ms if ms <= until_ms else None
            size_bytes -= (stretch.end - number) * stretch.batch_bytes
            stretch = self._ahead(ahead)
            if stretch is None or stretch.time(stretch.first) > until_ms:
                return None
            number, ahead = stretch.first, ahead + 1
        return None

    # Appending.

    def append_until(self, ms: int) -> None:
        """Append everything up to this time, included."""
        while self.stretch is not None:
            self._append(self.stretch, self.stretch.first_at(ms + 1))
            following = self._ahead(0)
            if self.number < self.stretch.end or following is None or following.time(following.first) > ms:
                break
            self._begin(following)
        self._note(ms)

    def append_to_roll(self, until_ms: int) -> bool:
        """Append to the active segment until it is left or the stretch ends; False if `until_ms` comes first."""
        if self.stretch is not None and self.number == self.stretch.end:
            following = self._ahead(0)
            if following is None:
                return False
            self._begin(following)
        if self.stretch is None:
            return False
        end = self.stretch.first_at(until_ms + 1)
        before = self.made.segments
        self._append(self.stretch, end, to_roll=True)
        has_rolled = self.made.segments > before
        if has_rolled:
            self._note(self.rolled_ms)
        elif self.number > self.stretch.first:
            self._note(self.stretch.time(self.number - 1))
        return has_rolled or end == self.stretch.end

    def _begin(self, stretch: Stretch) -> None:
        assert self.stretch is not None
        self._note(self.stretch.time(self.stretch.end - 1))
        self._begun.append(stretch)
        self.stretch, self.number = stretch, stretch.first
        self._following.pop(0)
        self._forget()

    def _append(self, stretch: Stretch, end: int, *, to_roll: bool = False) -> None:
        if self.number == stretch.first < end:
            self._note(stretch.time(stretch.first))  # nothing grows before
        while self.number < end:
            if self.growing.size_bytes == 0 and not to_roll:
                self._repeat(stretch, end)
            roll = self.growing.find_roll(stretch, self.number, end, self._limits)
            upto = end if roll is None else roll.number
            self.growing.append(stretch, self.number, upto)
            self.number = upto
            if roll is not None:
                self.roll(roll.reason, stretch.time(upto))
                if to_roll:
                    return

    def _repeat(self, stretch: Stretch, end: int) -> None:
        """If what follows is known from earlier segments of the stretch, add all of it that ends before `end`."""
        if self._typical:
            self._add_typical(stretch, end)
            return
        if not self.growing.base_offset:
            return  # only the first segment has no snapshot
        first = self._fresh.setdefault(stretch.phase(self.number), self.number)
        if first < self.number:
            pattern = _pattern(stretch, [each for each in self._recent if each.first >= first])
            self._add_run(stretch, pattern, (end - 1 - self.number) // (self.number - first))
            self._forget()
        elif self.work > _MOST_FILLED and len(self._recent) >= _TYPICAL:
            latest = self._recent[-_TYPICAL:]
            self._typical = [_pattern(stretch, latest[:count]) for count in range(1, _TYPICAL + 1)]
            self.is_exact = False
            self._add_typical(stretch, end)

    def _add_typical(self, stretch: Stretch, end: int) -> None:
        """Add what is like the typical segments and ends before `end`."""
        whole = self._typical[-1]
        self._add_run(stretch, whole, (end - 1 - self.number) // whole.batches)
        count = bisect_right(self._typical, end - 1 - self.number, key=attrgetter("batches"))
        if count:
            self._add_run(stretch, self._typical[count - 1], 1)

    def _forget(self) -> None:
        self._fresh.clear()
        self._recent.clear()
        self._typical = []

    def _add_run(self, stretch: Stretch, pattern: Pattern, repeats: int) -> None:
        """Add what is like earlier segments, `repeats` times, and go on after it."""
        if repeats <= 0:
            return
        run = SegmentRun(pattern, repeats, self.number - pattern.first)
        self.sealed.add(run)
        self.made = self.made.plus(run.below(len(run)))
        reasons = Counter(segment.reason for segment in pattern.segments)
        self.roll_reasons.update({reason: repeats * count for reason, count in reasons.items()})
        self.number += repeats * pattern.batches
        self._begin_segment(self.growing.base_offset + repeats * pattern.batches * stretch.records)

    def roll(self, reason: str, ms: int) -> None:
        """Leave the active segment and start a new one."""
        self.work += 1
        sealed = self.growing.sealed(reason)
        self.sealed.add(single(sealed))
        self.made = self.made.plus(sums_of(sealed))
        self.roll_reasons[reason] += 1
        self.first_roll = self.first_roll or (ms, reason)
        self.rolled_ms = ms
        stretch = self.stretch
        if stretch is None or reason == RETENTION:  # not what the load alone leads to
            self._forget()
        elif sealed.base_offset and (first := self.number - sealed.records // stretch.records) >= stretch.first:
            self._recent.append(_Earlier(first, self.number, sealed))
        self._begin_segment(sealed.next_offset)
        if reason == RETENTION:
            self._note(ms)

    def _begin_segment(self, base_offset: int) -> None:
        self.growing = GrowingSegment(base_offset, self._config.index_interval_bytes, base_offset)

    # What was.

    # For compaction: all batches of the load must be equal.

    @property
    def records_of_a_batch(self) -> int:
        """How many records each batch has."""
        return self._begun[0].records

    @property
    def batch_bytes(self) -> int:
        """How many bytes each batch has."""
        return self._begun[0].batch_bytes

    def time_of(self, offset: int) -> int:
        """Return when the record with this offset was appended."""
        return self.stretch_of(offset).time(offset // self.records_of_a_batch)

    def stretch_of(self, offset: int) -> Stretch:
        """Return the stretch that the record with this offset comes from."""
        number = offset // self.records_of_a_batch
        return self._begun[bisect_right(self._begun, number, key=attrgetter("first")) - 1]

    def filled(self, base_offset: int, first_offset: int, end_offset: int) -> GrowingSegment:
        """Return a segment that holds the batches of these earlier offsets, appended again (SEMANTICS 7.23)."""
        records = self.records_of_a_batch
        segment = GrowingSegment(base_offset, self._config.index_interval_bytes, first_offset)
        number, end = first_offset // records, end_offset // records
        while number < end:
            stretch = self.stretch_of(number * records)
            upto = min(end, stretch.end)
            segment.append(stretch, number, upto)
            number = upto
        return segment

    def compacted(self, sums: Sums, ms: int) -> None:
        """Record that compaction has written segments."""
        self.made = self.made.plus(sums)
        self._note(ms)

    def _note(self, ms: int) -> None:
        """Record what was written so far."""
        growing = self.growing
        self._space.written(
            ms,
            self.made.disk_bytes + growing.disk_bytes,
            self.made.index_bytes + growing.index_bytes,
            self.made.segments + 1,
        )
