"""Times on paper: a scale that leaves out long times in which nothing is, its ticks, and times and spans in words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kstore.base.times import show

__all__ = ["Tick", "TimeScale", "bound", "clock_of", "duration", "even_steps"]

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS = (
    *(1, 10, 100, _SECOND, 5 * _SECOND, 15 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY),
)
_MOST_BREAKS = 4
_LONG = 5  # a stretch is left out if it is so many times longer than all shorter ones together


class _Unit(NamedTuple):
    milliseconds: int
    name: str
    short: str


_UNITS = (
    *(_Unit(365 * _DAY, "year", "y"), _Unit(_DAY, "day", "d"), _Unit(_HOUR, "hour", "h")),
    *(_Unit(_MINUTE, "minute", "min"), _Unit(_SECOND, "second", "s")),
)


class Tick(NamedTuple):
    """A mark of a scale."""

    x: float
    time: str
    day: str
    """The date, if it is another one than that of the tick before; else empty."""


class TimeScale:
    """Places times between two edges. Times far from all others do not push those together: the way to them is broken.

    The spans `whole` have no breaks.

    With a `power` of less than 1 it is not to scale: a long time is shorter on paper, a short one is longer, and
    nothing is broken; two different times are then at least `least` apart, if there is room.

    Immutable, so threads may share it.
    """

    def __init__(
        self,
        times: Iterable[int],
        left: float,
        right: float,
        *,
        whole: Sequence[tuple[int, int]] = (),
        power: float = 1,
        least: float = 0,
    ) -> None:
        points = sorted({*times})
        if len(points) < 2:
            middle = points[0] if points else 0
            points = [middle - _MINUTE, middle + _MINUTE]
        lengths: list[float] = [after - before for before, after in pairwise(points)]  # exact: times may be far apart
        self._broken = _too_long(lengths, _gaps(points, whole)) if power == 1 else set()
        rest = sum(length for number, length in enumerate(lengths) if number not in self._broken)
        for number in self._broken:
            lengths[number] = max(rest // 5, 1)
        if power != 1:
            lengths = _bent(lengths, right - left, power, least)
        self._points, self.left, self.right = points, left, right
        self._scale = (right - left) / sum(lengths)
        self._edges = [left]
        for length in lengths:
            self._edges.append(self._edges[-1] + length * self._scale)

    def x(self, time: int) -> float:
        """Return where a time is; one beyond the edges is at the edge."""
        if time <= self._points[0]:
            return self.left
        if time >= self._points[-1]:
            return self.right
        at = bisect_right(self._points, time) - 1
        part = (time - self._points[at]) / (self._points[at + 1] - self._points[at])
        return self._edges[at] + (self._edges[at + 1] - self._edges[at]) * part

    def breaks(self) -> Iterator[tuple[float, int]]:
        """Return the middle of each stretch that is not to scale, and how long it is."""
        for at in sorted(self._broken):
            yield (self._edges[at] + self._edges[at + 1]) / 2, self._points[at + 1] - self._points[at]

    def ticks(self, room: float = 64) -> list[Tick]:
        """Return marks at round times, at least this far from each other; none where the scale is broken."""
        step = _round_step(room / self._scale)
        ticks: list[Tick] = []
        day, last = "", self.left - room
        for at, start in enumerate(self._points[:-1]):
            if at in self._broken:
                continue
            for time in range(-(-start // step) * step, self._points[at + 1] + 1, step):
                x, shown = self.x(time), show(time)
                if x - last < room or not shown.endswith("Z"):
                    continue
                hour = shown[11:23] if step < _SECOND else shown[11:19] if step < _MINUTE else shown[11:16]
                ticks.append(Tick(x, hour, shown[:10] if shown[:10] != day else ""))
                day, last = shown[:10], x
        if step >= _DAY:
            return [Tick(tick.x, tick.day, "") for tick in ticks if tick.day]
        return ticks


def _gaps(points: Sequence[int], whole: Sequence[tuple[int, int]]) -> list[int]:
    """Return the stretches between points that lie in none of the spans."""
    covered: set[int] = set()
    for first, last in whole:
        covered.update(range(bisect_left(points, first), bisect_left(points, last)))
    return [number for number in range(len(points) - 1) if number not in covered]


def _too_long(lengths: Sequence[float], gaps: Sequence[int]) -> set[int]:
    """Return the few of the gaps that are so long that nothing of the other stretches would be seen."""
    order = sorted(gaps, key=lengths.__getitem__, reverse=True)[:_MOST_BREAKS]
    for count in range(len(order), 0, -1):
        rest = sum(lengths) - sum(lengths[number] for number in order[:count])
        if lengths[order[count - 1]] > _LONG * rest > 0:
            return set(order[:count])
    return set()


def _bent(lengths: Sequence[float], room: float, power: float, least: float) -> list[float]:
    """Return widths that add up to `room`, in which long lengths are less long."""
    least = min(least, room / len(lengths) / 2)
    bent = [length**power for length in lengths]
    left = room - least * len(lengths)
    return [least + left * length / sum(bent) for length in bent]


def even_steps(end: int, most: int) -> range:
    """Return round spans from 0 to `end`, at most so many."""
    return range(0, end + 1, _round_step(end / most))


def _round_step(least: float) -> int:
    """Return a round span that is not shorter than `least` milliseconds."""
    found = next((step for step in _STEPS if step >= least), None)
    if found is None:
        found = _STEPS[-1]
        while found < least:
            found *= 10
    return found


def clock_of(timestamps: Iterable[int | None], *, is_even: bool = False) -> Callable[[int | None], str]:
    """Return a function that writes a time: as the time of the day if all of `timestamps` are of one day.

    If `is_even`, all times have seconds if one of `timestamps` has some.
    """
    shown = [show(timestamp) for timestamp in timestamps if timestamp is not None and timestamp >= 0]
    days = {text[:10] for text in shown}
    with_seconds = is_even and any(text.endswith("Z") and text[17:19] != "00" for text in shown)

    def write(timestamp: int | None) -> str:
        text = show(timestamp)
        if not text.endswith("Z"):
            return text
        if days == {text[:10]}:
            return text[11:16] if text[17:19] == "00" and not with_seconds else text[11:19]
        return f"{text[:10]} {text[11:19] if with_seconds else text[11:16]}"

    return write


def duration(milliseconds: int, *, is_short: bool = False) -> str:
    """Return a span in its two largest units, rounded: "9 minutes", "1 hour 30 minutes"; short: "1 h 30 min"."""
    if milliseconds < _SECOND:
        return f"{milliseconds} ms"
    finest = _UNITS[min(_largest(milliseconds) + 1, len(_UNITS) - 1)].milliseconds
    return _written((milliseconds + finest // 2) // finest * finest, 2, is_short=is_short)


def bound(milliseconds: int, *, is_least: bool) -> str:
    """Return a span in its three largest units, short; rounded down if it is the least, or else up."""
    if milliseconds < _SECOND:
        return f"{milliseconds} ms"
    finest = _UNITS[min(_largest(milliseconds) + 2, len(_UNITS) - 1)].milliseconds
    whole = milliseconds // finest if is_least else -(-milliseconds // finest)
    return _written(whole * finest, 3, is_short=True)


def _largest(milliseconds: int) -> int:
    """Return the number of the largest unit that is not longer than a span."""
    return next(number for number, unit in enumerate(_UNITS) if milliseconds >= unit.milliseconds)


def _written(milliseconds: int, most: int, *, is_short: bool) -> str:
    parts: list[str] = []
    for unit in _UNITS:
        count, milliseconds = divmod(milliseconds, unit.milliseconds)
        if count:
            name = unit.short if is_short else f"{unit.name}s" if count > 1 else unit.name
            parts.append(f"{count:,} {name}")
    return " ".join(parts[:most])
