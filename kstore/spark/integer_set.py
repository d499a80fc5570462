"""`IntegerSet`: the offsets, timestamps or partitions that a query's conditions select."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kstore.base.numbers import LONG_MAX, LONG_MIN

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class IntegerSet:
    """A set of 64-bit integers, kept as the borders of its ranges; can be pickled. Immutable and thread-safe.

    Invariant: borders rise, and an integer is in the set if the number of borders at or below it is odd.
    """

    borders: tuple[int, ...] = (LONG_MIN,)

    @classmethod
    def of(cls, values: Iterable[int]) -> IntegerSet:
        """Return the set of these values."""
        distinct = set(values)
        # A border inside of a run of values is both the end of one and the start of the next, and drops out.
        return cls(tuple(sorted(distinct ^ {value + 1 for value in distinct})))._clipped()

    @classmethod
    def since(cls, least: int) -> IntegerSet:
        """Return all integers at or above `least`."""
        return cls((max(least, LONG_MIN),))._clipped()

    def _clipped(self) -> IntegerSet:
        return IntegerSet(tuple(border for border in self.borders if border <= LONG_MAX))

    def __invert__(self) -> IntegerSet:
        """Return all integers that are not in the set."""
        borders = self.borders
        return IntegerSet(borders[1:] if borders[:1] == (LONG_MIN,) else (LONG_MIN, *borders))

    def __and__(self, other: IntegerSet) -> IntegerSet:
        """Return the integers that are in both sets."""
        borders: list[int] = []
        for border in sorted({*self.borders, *other.borders}):
            if (border in self and border in other) != len(borders) % 2:
                borders.append(border)
        return IntegerSet(tuple(borders))

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and bisect_right(self.borders, value) % 2 == 1

    @property
    def is_all(self) -> bool:
        """Whether every integer is in the set."""
        return self.borders == (LONG_MIN,)

    @property
    def end(self) -> int | None:
        """One past the greatest integer of the set; None if it has none."""
        return None if len(self.borders) % 2 or not self.borders else self.borders[-1]

    def first_from(self, value: int) -> int | None:
        """Return the least integer of the set at or above `value`; None if there is none."""
        count = bisect_right(self.borders, value)
        return value if count % 2 else next(iter(self.borders[count : count + 1]), None)

    def mask(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the values are in the set."""
        counts: NDArray[np.int64] = np.searchsorted(self._array, values, side="right")
        inside: NDArray[np.bool_] = counts % 2 == 1
        return inside

    def reaches(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the ranges `[start, stop)`, none of them empty, hold an integer of the set."""
        first: NDArray[np.int64] = np.searchsorted(self._array, starts, side="right")
        last: NDArray[np.int64] = np.searchsorted(self._array, stops, side="left")
        reached: NDArray[np.bool_] = (first % 2 == 1) | (last > first)
        return reached

    @property
    def _array(self) -> NDArray[np.int64]:
        return np.array(self.borders, np.int64)


EVERY_INTEGER = IntegerSet()
