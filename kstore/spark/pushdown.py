"""The conditions of a query: which partitions, ranges, batches and rows a scan leaves out because of them.

Invariant: what is left out does not match. Spark tests each row again, so a scan may return rows that do not match.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kstore.base.numbers import LONG_MIN
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.remote_view import RemoteView
from kstore.spark.integer_set import EVERY_INTEGER, IntegerSet
from kstore.store.topics._partitioner import partition_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kstore.columns._columns import Columns
    from kstore.spark.partition_marks import Marks

# How many offsets the headers of batches are read for at a time: it bounds their memory.
WINDOW_OFFSETS = 1 << 19
# Fewer offsets to leave out between two ranges are read, which takes less time than to begin a range.
LEAST_GAP = 8192
BY_LOG = 1  # the timestamp type of a batch whose records all have the time of their append

EQUALITIES = ("EqualTo", "EqualNullSafe", "In")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class Filters:
    """What a query's conditions select, and the promise about the order of times. Plain values; can be pickled."""

    topics: frozenset[str] | None = None
    keys: frozenset[bytes] | None = None
    partitions: IntegerSet = EVERY_INTEGER
    offsets: IntegerSet = EVERY_INTEGER
    timestamps: IntegerSet = EVERY_INTEGER  # in milliseconds
    max_lateness_ms: int | None = None
    partitions_of_keys: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def by_keys(self, present: Mapping[str, Iterable[int]]) -> Filters:
        """Return these filters with the partitions that have the selected keys, by Kafka's default partitioner.

        `present` has the partitions of each topic. If one is missing, the number of partitions is not known, and none
        of the topic's partitions is left out.
        """
        if self.keys is None:
            return self
        found = {}
        for topic, numbers in present.items():
            count = len(set(numbers))
            if set(numbers) == set(range(count)):
                found[topic] = frozenset(partition_of(key, count) for key in self.keys)
        return replace(self, partitions_of_keys=found)

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether a partition may have selected records."""
        return (
            (self.topics is None or topic in self.topics)
            and partition in self.partitions
            and partition in self.partitions_of_keys.get(topic, (partition,))
        )

    def within(self, start: int, end: int, marks: Marks) -> tuple[int, int]:
        """Return the part of `[start, end)` that has all selected records; it is empty if the first is not the lesser.

        A late record may lie anywhere after its time, so only `max_lateness_ms` lets a timestamp end the range.
        """
        start_offset, timestamp = self.offsets.first_from(start), self.timestamps.first_from(LONG_MIN)
        if start_offset is None or timestamp is None:
            return end, end
        start = start_offset
        if self.offsets.end is not None:
            end = min(end, self.offsets.end)
        if start < end and timestamp >= 0:
            first = marks.at_time(timestamp)
            start = end if first is None else max(start, first)
        if start < end and self.max_lateness_ms is not None and self.timestamps.end is not None:
            last = marks.end_by(max(self.timestamps.end, 0), self.max_lateness_ms)
            end = end if last is None else min(end, last)
        return start, end

    @property
    def are_of_rows(self) -> bool:
        """Whether there are conditions on offsets or timestamps."""
        return not (self.offsets.is_all and self.timestamps.is_all)

    def ranges(self, log: Log, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `[offset, end)` whose batches may have selected records, by the headers of the batches.

        In an object store, by what is known of the segments: all bytes would be fetched for the headers. Raises as
        `Log.batch_table` does.
        """
        view = HostedLog(log).view
        if isinstance(view, RemoteView):
            least = self.timestamps.first_from(LONG_MIN)
            parts = () if least is None else view.ranges_since(offset, end, least)
            bounds = np.array(list(parts), np.int64).reshape(-1, 2)
            yield from _apart(*bounds[self.offsets.reaches(bounds[:, 0], bounds[:, 1])].T)
            return
        while (start := self.offsets.first_from(offset)) is not None and start < end:
            offset = min(start + WINDOW_OFFSETS, end)
            table = log.batch_table(start, end_offset=offset)
            stops = np.minimum(table["last_offset"] + 1, offset)
            starts = np.concatenate(([start], stops[:-1]))
            kept = np.flatnonzero(self.offsets.reaches(starts, stops) & self._reaches_times(table))
            yield from _apart(starts[kept], stops[kept])

    def _reaches_times(self, table: Columns) -> NDArray[np.bool_]:
        """Return which batches may have selected timestamps. A header has the greatest one only, if producers set them.

        The headers of the old formats are not trusted: they have no such field, or a compressed message has it.
        """
        greatest: NDArray[np.int64] = table["max_timestamp"]
        least = self.timestamps.first_from(LONG_MIN)
        if least is None:
            return np.zeros(len(greatest), bool)
        outside = (greatest < least) | ((table["timestamp_type"] == BY_LOG) & ~self.timestamps.mask(greatest))
        kept: NDArray[np.bool_] = (table["magic"] < 2) | ~outside
        return kept

    def selected(self, chunk: Columns) -> NDArray[np.int64]:
        """Return the offsets of the selected rows of a chunk with offsets and timestamps."""
        offsets: NDArray[np.int64] = chunk["offset"]
        mask = self.offsets.mask(offsets) & self.timestamps.mask(chunk["timestamp"])
        return offsets[mask]


def _apart(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges that rise, joined where little lies between two of them."""
    if len(starts):
        apart = np.flatnonzero(starts[1:] - stops[:-1] >= LEAST_GAP)
        firsts, lasts = starts[np.append(0, apart + 1)], stops[np.append(apart, -1)]
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


NO_FILTERS = Filters()


def narrowed(filters: Iterable[Any], *, by_key: bool = False) -> Filters:
    """Return what all of Spark's filters together select; filters of other kinds and columns are passed over.

    Those on keys are used only if `by_key` is true.
    """
    found = Filters()
    for condition in filters:
        is_negated = type(condition).__name__ == "Not"
        inner = condition.child if is_negated else condition
        path: tuple[str, ...] = getattr(inner, "attribute", ())
        kind, value = type(inner).__name__, getattr(inner, "value", None)
        values = list(value or ()) if kind == "In" else [value]
        known = [each for each in values if each is not None]
        # A comparison with null is never true, and so is its negation.
        if len(path) != 1 or not known or (is_negated and len(known) < len(values)):
            continue
        name = path[0]
        if name in ("topic", "key") and kind in EQUALITIES and not is_negated:
            if name == "topic":
                found = replace(found, topics=_both(found.topics, known))
            elif by_key:
                found = replace(found, keys=_both(found.keys, map(bytes, known)))
        elif name in ("partition", "offset", "timestamp"):
            chosen = _chosen(kind, known)
            if chosen is not None:
                field_name = f"{name}s"
                chosen = getattr(found, field_name) & (~chosen if is_negated else chosen)
                found = replace(found, **{field_name: chosen})
    return found


def _chosen(kind: str, values: list[Any]) -> IntegerSet | None:
    """Return the numbers that a filter selects, or the milliseconds; None if its kind is another."""
    bounds = [_bounds(value) for value in values]
    floor, ceiling = bounds[0]
    if kind in EQUALITIES:
        return IntegerSet.of(low for low, high in bounds if low == high)
    if kind == "GreaterThan":
        return IntegerSet.since(floor + 1)
    if kind == "GreaterThanOrEqual":
        return IntegerSet.since(ceiling)
    if kind == "LessThan":
        return ~IntegerSet.since(ceiling)
    if kind == "LessThanOrEqual":
        return ~IntegerSet.since(floor + 1)
    return None


def _bounds(value: Any) -> tuple[int, int]:
    """Return a number twice; of a time, the millisecond that it is in, and the first at or after it."""
    if not isinstance(value, datetime.datetime):
        return value, value
    microseconds = (value - _EPOCH) // _MICROSECOND
    return microseconds // 1000, -(-microseconds // 1000)


def _both(one: frozenset[Any] | None, others: Iterable[Any]) -> frozenset[Any]:
    return frozenset(others) if one is None else one & frozenset(others)
