"""Finds out which partitions, offsets and times a filter of PyArrow can select.

An `Expression` has no public structure. PyArrow itself simplifies an expression by what is known of a fragment, and
leaves out the fragment if nothing is left: `Condition.may` asks for one fragment without a file. Everything else is
searches with that question. Invariant: a value that the expression may select is never excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kstore.base import optional
from kstore.base.numbers import LONG_MAX, LONG_MIN

LEVELS = 5  # how often an interval is halved that does not become smaller: a function of a column may be true anywhere
_TIMES = 2**42  # times below this, in the year 2109, are searched; all later ones are one interval
_UNITS = ("ms", "us", "ns")


class Interval(NamedTuple):
    """The integers from `low` to `high`, both included."""

    low: int
    high: int


class Condition:
    """A filter over the columns of `schema`, and what it can select. Immutable; thread-safe."""

    def __init__(self, schema: Any, expression: Any) -> None:
        pa = optional.pyarrow("a dataset", "compute", "dataset", "fs")
        self._pa, self._dataset, self._field = pa, pa.dataset, pa.compute.field
        self._format = pa.dataset.ParquetFileFormat()
        self._files = pa.fs.LocalFileSystem()
        self._schema = schema
        self._factor = 1  # of a timestamp's unit in a millisecond
        self.expression = expression

    def may(self, *known: Any) -> bool:
        """Return whether a row for which all expressions `known` are true may be selected; False is certain."""
        return self._may(self.expression, known)

    def _may(self, expression: Any, known: tuple[Any, ...]) -> bool:
        if not known:
            return True
        guarantee = known[0]
        for further in known[1:]:
            guarantee = guarantee & further
        fragment = self._format.make_fragment("none", filesystem=self._files, partition_expression=guarantee)
        dataset = self._dataset.FileSystemDataset([fragment], self._schema, self._format, self._files)
        return next(iter(dataset.get_fragments(filter=expression)), None) is not None

    def equals(self, column: str, value: Any) -> Any:
        """Return an expression for `may`: the column has this value."""
        return self._field(column) == self._scalar(column, value)

    def within(self, column: str, interval: Interval) -> Any:
        """Return an expression for `may`: the column of integers or times is in this interval."""
        return (self._field(column) >= self._scalar(column, interval.low)) & (
            self._field(column) <= self._scalar(column, interval.high)
        )

    def _scalar(self, column: str, value: Any) -> Any:
        factor = self._factor if column == "timestamp" else 1
        return self._pa.scalar(value * factor if factor > 1 else value, self._schema.field(column).type)

    def columns(self) -> tuple[str, ...]:
        """Return the columns that the expression uses: without one of them PyArrow cannot evaluate it."""
        empty = self._schema.empty_table()
        return tuple(name for name in self._schema.names if not self._works_on(empty.drop_columns([name])))

    def _works_on(self, table: Any) -> bool:
        try:
            table.filter(self.expression)
        except (self._pa.ArrowInvalid, KeyError):
            return False
        return True

    def intervals(self, column: str, within: Interval) -> list[Interval]:
        """Return disjoint rising intervals in `within` that contain every value of the column that may be selected."""
        found = self._hull(column, within)
        waiting = [] if found is None else [(found, 0)]
        opposite = ~self.expression
        done: list[Interval] = []
        while waiting:
            interval, level = waiting.pop()
            low, high = interval
            if low == high or level == LEVELS or not self._may(opposite, (self.within(column, interval),)):
                done.append(interval)
                continue
            middle = (low + high) // 2
            halves = [self._hull(column, Interval(*half)) for half in ((low, middle), (middle + 1, high))]
            level = level + 1 if halves == [(low, middle), (middle + 1, high)] else 0
            waiting += [(half, level) for half in reversed(halves) if half is not None]
        return list(_joined(done))

    def times(self) -> list[Interval]:
        """Return disjoint rising intervals of milliseconds that contain every timestamp that may be selected.

        PyArrow simplifies a comparison only if the constant fits the unit of the column, so other units are tried, too.
        """
        everything = [Interval(LONG_MIN, LONG_MAX)]
        for unit in _UNITS:
            finer = self._in_unit(unit)
            try:
                found = finer._times()
            except self._pa.ArrowInvalid:  # a constant does not fit this unit
                continue
            if found != everything:
                return found
        return everything

    def _times(self) -> list[Interval]:
        edge = LONG_MAX // self._factor
        outside = [Interval(-edge, -1), Interval(_TIMES, edge)]
        before, after = ([part] if self.may(self.within("timestamp", part)) else [] for part in outside)
        found = list(_joined([*before, *self.intervals("timestamp", Interval(0, _TIMES - 1)), *after]))
        return [Interval(LONG_MIN if low == -edge else low, LONG_MAX if high == edge else high) for low, high in found]

    def _in_unit(self, unit: str) -> Condition:
        at = self._schema.get_field_index("timestamp")
        field = self._pa.field("timestamp", self._pa.timestamp(unit, "UTC"))
        made = Condition(self._schema.set(at, field), self.expression)
        made._factor = 1000 ** _UNITS.index(unit)
        return made

    def _hull(self, column: str, within: Interval) -> Interval | None:
        """Return the least interval that contains every value in `within` that may be selected; None if none may."""

        def may(low: int, high: int) -> bool:
            return self.may(self.within(column, Interval(low, high)))

        low, high = within
        if low > high or not may(low, high):
            return None
        least = _first(low, high, lambda value: may(low, value))
        most = -_first(-high, -least, lambda value: may(-value, high))
        return Interval(least, most)


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first integer from `low` for which `holds` is true; it is true for `high` and stays true."""
    if holds(low):
        return low
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _joined(intervals: list[Interval]) -> Iterator[Interval]:
    """Join intervals that follow one another without a gap; they rise."""
    last: Interval | None = None
    for interval in intervals:
        if last is not None and last.high + 1 >= interval.low:
            last = Interval(last.low, interval.high)
            continue
        if last is not None:
            yield last
        last = interval
    if last is not None:
        yield last
