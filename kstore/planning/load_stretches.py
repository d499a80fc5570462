"""A load as stretches of equal batches at equal distances, so that batches are counted and not made. No I/O.

Invariant: batches are numbered from 0 on, and neither their times nor the numbers of a stretch go back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.explained.explained_plan import Load

DAY_MS = 86_400_000
FOREVER = 1 << 62
"""A number of batches that no plan reaches."""

_SHARES = (Fraction(0), Fraction(2, 3), Fraction(1, 3), Fraction(1))
"""How far behind the clock timestamps are, as shares of the skew, in turns: evenly spread, and never long without one
that is not behind."""
_FINEST = 10**6  # denominator of the time between two batches, in milliseconds
_EXACT = 10**5  # the time between two batches is exact to this part of it, and then as simple as possible


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches `[first, end)`: number `n` is appended at `shift_ms + n * numerator // denominator`.

    Its newest timestamp is that time less `lags[n % len(lags)]`. Immutable, so threads may share it.
    """

    first: int
    end: int
    shift_ms: int
    numerator: int
    denominator: int
    batch_bytes: int
    records: int
    lags: tuple[int, ...] = (0,)

    def time(self, number: int) -> int:
        """Return when a batch is appended."""
        return self.shift_ms + number * self.numerator // self.denominator

    def stamp(self, number: int) -> int:
        """Return the newest timestamp of a batch."""
        return self.time(number) - self.lags[number % len(self.lags)]

    def newest(self, first: int, last: int) -> int:
        """Return the newest timestamp of the batches from `first` to `last`, both included."""
        # A batch of the round before the last one is not newer than its counterpart in the last one.
        return max(self.stamp(number) for number in range(max(first, last + 1 - len(self.lags)), last + 1))

    def first_at(self, ms: int) -> int:
        """Return the first batch, of those of the stretch, that is appended at `ms` or later; `end` if none is."""
        if self.numerator == 0:
            return self.first if self.time(self.first) >= ms else self.end
        number = -((self.shift_ms - ms) * self.denominator // self.numerator)
        return min(max(number, self.first), self.end)

    def first_newer(self, stamp: int, at_least: int) -> int:
        """Return the first batch from `at_least` on whose newest timestamp is above `stamp`; `end` if none is."""
        number = max(self.first_at(stamp + 1 + min(self.lags)), at_least)
        for candidate in range(number, min(number + len(self.lags), self.end)):
            if self.stamp(candidate) > stamp:
                return candidate
        # Only a stretch whose batches come at one time has none in a whole round.
        return self.end

    def phase(self, number: int) -> tuple[int, int]:
        """Return what the times of the following batches depend on, apart from a shift."""
        return number % self.denominator, number % len(self.lags)

    @property
    def longest_gap_ms(self) -> int:
        """The longest time from the newest timestamp so far to the next batch."""
        return -(-self.numerator // self.denominator) + max(self.lags)


def batch_bytes_of(load: Load) -> int:
    """Return the bytes of each batch."""
    return max(round(load.record_bytes * load.batch_records), 1)


def stretches(load: Load, start_ms: int, *, append_time: bool = False) -> Iterator[Stretch]:
    """Yield the stretches of a load from `start_ms` on: one, or without end one for each busy part of a day.

    With `append_time` timestamps are those of the log's clock, so that no skew counts.
    """
    between = interval_ms(load)
    size = batch_bytes_of(load)
    lags = (0,) if append_time or not load.skew_ms else tuple(int(share * load.skew_ms) for share in _SHARES)
    numerator, denominator = between.numerator, between.denominator
    if not load.idle:
        yield Stretch(0, FOREVER, start_ms, numerator, denominator, size, load.batch_records, lags)
        return
    busy_ms = 0  # before the part at hand
    first = 0
    for begin, end in _busy_parts(load.idle, start_ms):
        busy_ms += end - begin
        behind = -(-busy_ms * denominator // numerator)
        if behind > first:
            shift_ms = begin - (busy_ms - (end - begin))
            yield Stretch(first, behind, shift_ms, numerator, denominator, size, load.batch_records, lags)
        first = behind


def interval_ms(load: Load) -> Fraction:
    """Return the time between two batches, in milliseconds: a simple fraction, so that a plan soon repeats."""
    between = 1000 * load.batch_records / Fraction(repr(float(load.rate)))
    finest = 1
    while finest < _FINEST:
        rough = between.limit_denominator(finest)
        if abs(rough - between) * _EXACT <= between:
            return rough
        finest *= 2
    return max(between.limit_denominator(_FINEST), Fraction(1, _FINEST))


def busy_ms(idle: tuple[tuple[int, int], ...], start_ms: int, end_ms: int) -> int:
    """Return how much of a time is not idle."""
    total = 0
    for first, end in _busy_parts(idle, start_ms):
        if first >= end_ms:
            break
        total += min(end, end_ms) - first
    return total


def _busy_parts(idle: tuple[tuple[int, int], ...], start_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of all days from `start_ms` on that are not idle."""
    parts, at = [], 0
    for first, end in sorted(idle):
        if first > at:
            parts.append((at, first))
        at = max(at, end)
    if at < DAY_MS:
        parts.append((at, DAY_MS))
    day_ms = start_ms - start_ms % DAY_MS
    while parts:
        for first, end in parts:
            if day_ms + end > start_ms:
                yield max(day_ms + first, start_ms), day_ms + end
        day_ms += DAY_MS
