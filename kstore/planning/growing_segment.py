"""The active segment of a plan: takes stretches of batches by arithmetic, and finds the batch before which it rolls.

The limits come from `log/segments/roll.py`; the order of the rules is that of `_should_roll` in
`log/writing/_appender.pyx` (SEMANTICS 2.2), and index entries are those of SEMANTICS 3.6. Invariant: the counters are
those of a real segment after the same batches; where timestamps are behind the clock, the entries of the time index
beyond the first few thousand of one call are estimated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy
from numpy.typing import NDArray

from kstore.base.numbers import INT_MAX

if TYPE_CHECKING:
    from kstore.log.segments.roll import RollLimits
    from kstore.planning.load_stretches import Stretch

OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = 8, 12
BLOCK_BYTES = 4096
"""A file takes whole blocks of a disk."""

Numbers: TypeAlias = NDArray[numpy.int64]

_COUNTED = 4096  # entries of the time index that are counted one by one if timestamps are behind the clock


class Roll(NamedTuple):
    """The batch before whose append a segment is left, and why."""

    number: int
    reason: str


class SealedSegment(NamedTuple):
    """A segment that is full: nothing is appended to it any more."""

    base_offset: int
    next_offset: int
    records: int
    size_bytes: int
    offset_entries: int
    time_entries: int
    first_ms: int  # when its first batch was appended, and its last
    last_ms: int
    first_stamp: int  # the greatest timestamp of its first batch, -1 if it is empty
    newest: int  # its greatest timestamp, -1 if it is empty
    reason: str  # why it was left

    def shifted(self, ms: int, offsets: int) -> SealedSegment:
        """Return the segment that is like this one, later by so much time and so many offsets."""
        return SealedSegment(
            self.base_offset + offsets,
            self.next_offset + offsets,
            self.records,
            self.size_bytes,
            self.offset_entries,
            self.time_entries,
            self.first_ms + ms,
            self.last_ms + ms,
            self.first_stamp + ms,
            self.newest + ms,
            self.reason,
        )

    @property
    def index_bytes(self) -> int:
        """Bytes of its indexes on the disk, in whole blocks."""
        return index_blocks(self.offset_entries, self.time_entries)

    @property
    def disk_bytes(self) -> int:
        """Bytes of its files on the disk, in whole blocks."""
        return blocks(self.size_bytes) + self.index_bytes + snapshot_bytes(self.base_offset)


def blocks(size_bytes: int) -> int:
    """Return what a file of this size takes on the disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def index_blocks(offset_entries: int, time_entries: int) -> int:
    """Return what two index files with so many entries take on the disk."""
    return blocks(offset_entries * OFFSET_ENTRY_BYTES) + blocks(time_entries * TIME_ENTRY_BYTES)


def snapshot_bytes(base_offset: int) -> int:
    """Return what the snapshot takes that the roll to a segment writes; the first segment of a log has none."""
    return BLOCK_BYTES if base_offset else 0


class _Entries(NamedTuple):
    """Which batches of a call get an index entry: `total` batches, `spacing` apart, from number `first` on."""

    first: int
    spacing: int
    total: int

    @property
    def last(self) -> int:
        return self.first + (self.total - 1) * self.spacing


@dataclass(slots=True)
class GrowingSegment:
    """The active segment. Not thread-safe."""

    base_offset: int
    index_interval_bytes: int
    next_offset: int
    size_bytes: int = 0
    since_index: int = 0
    first_stamp: int = -1
    newest: int = -1
    offset_entries: int = 0
    time_entries: int = 0
    last_entry_stamp: int = -1
    first_ms: int = -1
    last_ms: int = -1

    @property
    def disk_bytes(self) -> int:
        """Bytes of its files on the disk. Its index files look larger: they are preallocated, with holes."""
        return blocks(self.size_bytes) + self.index_bytes + snapshot_bytes(self.base_offset)

    @property
    def index_bytes(self) -> int:
        return index_blocks(self.offset_entries, self.time_entries)

    def sealed(self, reason: str) -> SealedSegment:
        """Return what it is once it is left: the time index gets a closing entry (SEMANTICS 2.9)."""
        return SealedSegment(
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            records=self.next_offset - self.base_offset,
            size_bytes=self.size_bytes,
            offset_entries=self.offset_entries,
            time_entries=self.time_entries + (self.newest > self.last_entry_stamp),
            first_ms=self.first_ms,
            last_ms=self.last_ms,
            first_stamp=self.first_stamp,
            newest=self.newest,
            reason=reason,
        )

    def append(self, stretch: Stretch, first: int, end: int) -> None:
        """Append the batches `[first, end)`, which fit."""
        if first >= end:
            return
        if self.size_bytes == 0:
            self.first_stamp, self.first_ms = stretch.stamp(first), stretch.time(first)
        entries = self._entries(stretch, first, end)
        added, self.last_entry_stamp = self._time_entries(stretch, first, entries)
        self.time_entries += added
        self.offset_entries += entries.total
        self.newest = max(self.newest, stretch.newest(first, end - 1))
        if entries.total:
            self.since_index = (end - entries.last) * stretch.batch_bytes
        else:
            self.since_index += (end - first) * stretch.batch_bytes
        self.size_bytes += (end - first) * stretch.batch_bytes
        self.next_offset += (end - first) * stretch.records
        self.last_ms = stretch.time(end - 1)

    # Rolls.

    def find_roll(self, stretch: Stretch, first: int, end: int, limits: RollLimits) -> Roll | None:
        """Return the first of the batches `[first, end)` before which the segment is left; None if all fit.

        A new segment takes its first batch in any case: a roll would give the same segment again.
        """
        size = stretch.batch_bytes
        next_indexed = self._entries(stretch, first, end)
        by_size = first + max(limits.segment_bytes - self.size_bytes, 0) // size
        by_time = self._outdated(stretch, first, limits.wait_ms)
        by_entries = _filled(next_indexed, first, limits.offset_entries - self.offset_entries)
        last_relative = self.next_offset - 1 - self.base_offset
        by_range = first + max(INT_MAX - last_relative, 0) // stretch.records
        known = min(end, by_size, by_time, by_entries, by_range)
        by_times = self._times_full(stretch, first, known, limits)
        found = [(by_size, "size"), (by_time, "time"), (by_entries, "offset_index_full")]
        found += [(end if by_times is None else by_times, "time_index_full"), (by_range, "offset_range")]
        least = first + (self.size_bytes == 0)
        number, reason = min(((max(number, least), reason) for number, reason in found), key=itemgetter(0))
        return Roll(number, reason) if number < end else None

    def _outdated(self, stretch: Stretch, first: int, wait_ms: int) -> int:
        """Return the first batch that is too new for the segment (SEMANTICS 2.4)."""
        if self.size_bytes > 0:
            return stretch.first_newer(self.first_stamp + wait_ms, first)
        return stretch.first_newer(stretch.stamp(first) + wait_ms, first + 1)

    def _times_full(self, stretch: Stretch, first: int, end: int, limits: RollLimits) -> int | None:
        """Return the first batch that finds the time index full; None if none of `[first, end]` does."""
        missing = limits.time_entries - self.time_entries
        if missing <= 0:
            return first
        entries = self._entries(stretch, first, end)
        if entries.total < missing:
            return None

        def has_filled(count: int) -> bool:
            return self._time_entries(stretch, first, entries._replace(total=count))[0] >= missing

        if not has_filled(entries.total):
            return None
        return _filled(entries, first, _least(has_filled, missing, entries.total))

    # Index entries.

    def _entries(self, stretch: Stretch, first: int, end: int) -> _Entries:
        """Return which batches of `[first, end)` get an entry: those that find more than the interval since the last.

        (SEMANTICS 3.7)
        """
        interval, size = self.index_interval_bytes, stretch.batch_bytes
        before = 0 if self.since_index > interval else (interval - self.since_index) // size + 1
        spacing = interval // size + 1
        left = end - first - before
        return _Entries(first + before, spacing, 0 if left <= 0 else 1 + (left - 1) // spacing)

    def _time_entries(self, stretch: Stretch, first: int, entries: _Entries) -> tuple[int, int]:
        """Return how many entries the time index gets, and the timestamp of its last one (SEMANTICS 3.8)."""
        if not entries.total:
            return 0, self.last_entry_stamp
        if len(stretch.lags) > 1:
            return self._time_entries_behind(stretch, first, entries)
        added, last = 0, self.last_entry_stamp
        # Until the stretch is newer than the segment, the newest timestamp of the segment is what is entered.
        newer = stretch.first_newer(self.newest, first)
        old = min(entries.total, max(-(-(newer - entries.first) // entries.spacing), 0))
        if old and self.newest > last:
            added, last = 1, self.newest
        if old < entries.total:
            oldest, newest = stretch.stamp(entries.first + old * entries.spacing), stretch.stamp(entries.last)
            is_apart = entries.spacing * stretch.numerator >= stretch.denominator  # a millisecond or more
            added += entries.total - old if is_apart else newest - oldest + 1
            last = newest
        return added, last

    def _time_entries_behind(self, stretch: Stretch, first: int, entries: _Entries) -> tuple[int, int]:
        """Do what `_time_entries` does where timestamps are behind the clock by changing times."""
        counted = min(entries.total, _COUNTED)
        numbers = numpy.arange(counted, dtype=numpy.int64) * entries.spacing  # relative to the first entry's batch
        newest = numpy.full(counted, self.newest, numpy.int64)
        for back in range(len(stretch.lags)):
            at = numbers - back
            stamps = _times(stretch, entries.first, at) - _lags(stretch, entries.first, at)
            newest = numpy.where(at + entries.first >= first, numpy.maximum(newest, stamps), newest)
        newest = numpy.maximum.accumulate(newest)
        steps = numpy.diff(newest, prepend=self.last_entry_stamp) > 0
        added = int(numpy.count_nonzero(steps))
        if counted == entries.total:
            return added, max(int(newest[-1]), self.last_entry_stamp)
        half = counted // 2
        share = int(numpy.count_nonzero(steps[half:]))
        added += (entries.total - counted) * share // (counted - half)
        return added, max(self.newest, stretch.newest(first, entries.last))


def _filled(entries: _Entries, first: int, missing: int) -> int:
    """Return the first batch that comes after `missing` more entries, of an index that fills without end."""
    return first if missing <= 0 else entries.first + (missing - 1) * entries.spacing + 1


def _least(is_enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number of `[low, high]` that is enough; `high` is."""
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _times(stretch: Stretch, first: int, numbers: Numbers) -> Numbers:
    """Return the times of batches, which are numbered from `first` on so that nothing overflows."""
    whole, rest = divmod(first * stretch.numerator, stretch.denominator)
    return stretch.shift_ms + whole + (rest + numbers * stretch.numerator) // stretch.denominator


def _lags(stretch: Stretch, first: int, numbers: Numbers) -> Numbers:
    return numpy.array(stretch.lags, numpy.int64)[(numbers + first % len(stretch.lags)) % len(stretch.lags)]
