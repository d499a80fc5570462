"""Finds out which partitions, offsets, times and keys a filter of PyArrow can select.

An `Expression` has no public structure, but PyArrow itself simplifies an expression by what is known of a fragment, and
leaves out the fragment if nothing is left: `Condition.may` asks for a fragment without a file. The constants in the
expression's serialized form, which is a record batch, say where it is worth asking. Invariant: a value that the
expression may select is never excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from kstore.base import optional
from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.datasets.spans import Span, joined

MOST_BORDERS = 256  # of the intervals that are asked for; an expression with more constants gets coarser intervals
_UNITS = ("ms", "us", "ns")


class Interval(NamedTuple):
    """The integers from `low` to `high`, both included."""

    low: int
    high: int


EVERYTHING = Interval(LONG_MIN, LONG_MAX)


class Condition:
    """A filter over the columns of `schema`, and what it can select. Immutable; thread-safe."""

    def __init__(self, schema: Any, expression: Any) -> None:
        pa = optional.pyarrow("a dataset", "compute", "dataset", "fs", "ipc")
        self._pa, self._field = pa, pa.compute.field
        self._format = pa.dataset.ParquetFileFormat()
        self._files = pa.fs.LocalFileSystem()
        self._schema = schema
        self.expression = expression

    def may(self, *known: Any) -> bool:
        """Return whether a row for which all expressions `known` are true may be selected; False is certain."""
        return self._may(self._schema, known)

    def _may(self, schema: Any, known: Iterable[Any]) -> bool:
        guarantee = self._pa.compute.scalar(True)
        for further in known:
            guarantee = guarantee & further
        fragment = self._format.make_fragment("none", filesystem=self._files, partition_expression=guarantee)
        dataset = self._pa.dataset.FileSystemDataset([fragment], schema, self._format, self._files)
        try:
            return next(iter(dataset.get_fragments(filter=self.expression)), None) is not None
        except self._pa.ArrowInvalid:  # a constant does not fit another unit of time
            return True

    def equals(self, column: str, value: Any) -> Any:
        """Return an expression for `may`: the column has this value."""
        return self._field(column) == self._pa.scalar(value, self._schema.field(column).type)

    def within(self, column: str, interval: Interval) -> Any:
        """Return an expression for `may`: the column of integers is in this interval."""
        return self._within(column, interval, self._schema.field(column).type, 1)

    def _within(self, column: str, interval: Interval, kind: Any, factor: int) -> Any:
        """Return an expression: the column, of this type, divided by `factor` is in this interval."""
        field, known = self._field(column), self._field(column).is_valid()
        if interval.low > LONG_MIN:
            known = known & (field >= self._pa.scalar(interval.low * factor, kind))
        if interval.high < LONG_MAX:
            known = known & (field <= self._pa.scalar(interval.high * factor + factor - 1, kind))
        return known

    @cached_property
    def constants(self) -> list[Any]:
        """The constants in the expression, as scalars of PyArrow; those of a list one by one."""
        pa = self._pa
        _, (buffer, *_) = self.expression.__reduce__()
        waiting = [column[0] for column in pa.ipc.open_file(buffer).read_all().columns]
        found = []
        while waiting:
            scalar = waiting.pop()
            if not scalar.is_valid:
                continue
            if isinstance(scalar, pa.StructScalar):
                waiting += scalar.values()
            elif isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
                waiting += list(scalar.values)
            else:
                found.append(scalar)
        return found

    def offsets(self, within: Interval) -> list[Interval]:
        """Return disjoint rising intervals in `within` that contain every offset that may be selected."""
        values = [value for scalar in self.constants if isinstance(value := scalar.as_py(), int)]
        chosen = (part for part in _between(values, within) if self.may(self.within("offset", part)))
        return _joined(chosen)

    def times(self) -> list[Interval]:
        """Return disjoint rising intervals of milliseconds that contain every timestamp that may be selected.

        PyArrow simplifies a comparison only if the constant fits the unit of the column. So the column has the unit of
        the finest constant here.
        """
        moments = [time for scalar in self.constants if (time := _nanoseconds(self._pa, scalar)) is not None]
        number = next(n for n in range(3) if n == 2 or not any(time % 10 ** (6 - 3 * n) for time in moments))
        kind, factor = self._pa.timestamp(_UNITS[number], "UTC"), 1000**number
        at = self._schema.get_field_index("timestamp")
        schema = self._schema.set(at, self._pa.field("timestamp", kind))
        values = [time // 10**6 for time in moments]
        if any(abs(value) >= LONG_MAX // factor for value in values):
            return [EVERYTHING]
        known = ((part, self._within("timestamp", part, kind, factor)) for part in _between(values, EVERYTHING))
        return _joined(part for part, within in known if self._may(schema, [within]))

    def keys(self) -> list[bytes] | None:
        """Return the keys that may be selected; None if any key or a null may be.

        The filter selects only some of its constants if it selects nothing below, between and above them.
        """
        values = sorted({value for scalar in self.constants if isinstance(value := scalar.as_py(), bytes)})
        if not 0 < len(values) <= MOST_BORDERS:
            return None
        key = self._field("key")
        gaps: list[tuple[Any, ...]] = [(key < values[0],), (key > values[-1],), (key.is_null(),)]
        gaps += [(key > low, key < high) for low, high in pairwise(values)]
        return None if any(self.may(*gap) for gap in gaps) else [value for value in values if self.may(key == value)]


def _nanoseconds(pa: Any, scalar: Any) -> int | None:
    """Return a constant that is a time in nanoseconds since the epoch; None for others."""
    if isinstance(scalar, pa.TimestampScalar):
        return int(scalar.value) * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[scalar.type.unit]
    if isinstance(scalar, pa.Date32Scalar | pa.Date64Scalar):
        days = (scalar.as_py() - date(1970, 1, 1)).days
        return int(days) * 86_400 * 10**9
    return None


def _between(values: Iterable[int], within: Interval) -> Iterator[Interval]:
    """Yield intervals that together are `within`: each value is one, and so is what lies between two of them."""
    low, high = within
    borders = sorted({border for value in values for border in (value, value + 1) if low < border <= high})
    every = -(-len(borders) // MOST_BORDERS) or 1
    for start, end in pairwise([low, *borders[::every], high + 1]):
        if start < end:
            yield Interval(start, end - 1)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that follow one another without a gap."""
    return [Interval(start, end - 1) for start, end in joined(Span(low, high + 1) for low, high in intervals)]
