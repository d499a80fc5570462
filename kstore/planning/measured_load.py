"""Measures the load of a log from its marks, lookups by time and the headers of some batches.

Invariant: the work is bounded, however long the log is: a few thousand lookups and batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.errors import ConfigError, StorageError
from kstore.explained.explained_plan import Load
from kstore.files import checkpoint
from kstore.log.compaction.dirtiness import survey
from kstore.log.hosted_log import HostedLog
from kstore.planning.load_stretches import DAY_MS, busy_ms

if TYPE_CHECKING:
    from kstore._core import RecordBatch
    from kstore.log.log import Log

__all__ = ["MeasuredLoad", "busiest", "measured"]

_PLACES, _BATCHES = 16, 64  # at so many places of the log, so many batches are read
_BIN_MS = 600_000
_LEAST_MISSING = 20  # chance leaves no such gap: e ** -20 is two in a billion
_MOST_DAYS = 7  # the last days, whose idle parts are looked for
_LEAST_DAYS = 2
_LEAST_IDLE_BINS = 3
_KEYS_READ = 20_000  # records at the end whose keys are compared


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """The load of a log, and what it was measured on.

    Immutable, so threads may share it.
    """

    load: Load
    path: str
    records: int
    """The offsets between the first and the last record."""
    first_timestamp: int
    last_timestamp: int
    notes: tuple[str, ...] = ()

    @property
    def bytes_a_second(self) -> float:
        """Bytes for each second while the load is not idle."""
        return self.load.rate * self.load.record_bytes

    def __str__(self) -> str:
        span = f"{times.show(self.first_timestamp)} to {times.show(self.last_timestamp)}"
        return f"measured on {self.path}: {self.records:,} offsets from {span}"


def measured(log: Log) -> MeasuredLoad:
    """Return the load of a log that is open for reading.

    Raises `ConfigError` if the log has too little to measure, and what reading it raises.
    """
    first_offset, end_offset = log.log_start_offset, log.log_end_offset
    sample = _sample(log, first_offset, end_offset)
    stamped = [batch for batch in sample if batch.max_timestamp >= 0]
    newest = log.max_timestamp()
    if not stamped or newest is None:
        raise ConfigError(f"{log.path}: it has no record with a timestamp, so its load cannot be measured")
    # Where compaction has removed the first records, offsets count from the first that is left.
    oldest_ms, newest_ms = stamped[0].max_timestamp, newest.timestamp
    records = end_offset - stamped[0].base_offset
    if newest_ms <= oldest_ms or records < 2:
        raise ConfigError(
            f"{log.path}: its records are all from {times.show(oldest_ms)}, so its load cannot be measured; give the "
            "rate"
        )
    idle = _idle_parts(log, oldest_ms, newest_ms)
    count = sum(batch.count for batch in sample)
    keys, notes = _keys(log) if log.config.compacts else (None, ())
    return MeasuredLoad(
        Load(
            rate=_rounded(1000 * records / max(busy_ms(idle, oldest_ms, newest_ms), 1)),
            record_bytes=_rounded(sum(batch.size_bytes for batch in sample) / count),
            batch_records=max(round(count / len(sample)), 1),
            skew_ms=_skew(sample),
            idle=idle,
            keys=keys,
        ),
        path=log.path,
        records=records,
        first_timestamp=oldest_ms,
        last_timestamp=newest_ms,
        notes=notes,
    )


def busiest(loads: Sequence[MeasuredLoad]) -> MeasuredLoad:
    """Return the load with the most bytes for each second."""
    return max(loads, key=lambda each: each.bytes_a_second)


def _sample(log: Log, first_offset: int, end_offset: int) -> list[RecordBatch]:
    """Return neighbouring batches from several places of a log, each once, in order."""
    found: dict[int, RecordBatch] = {}
    for place in range(_PLACES):
        offset = first_offset + (end_offset - first_offset) * place // _PLACES
        if offset >= end_offset or any(batch.last_offset >= offset for batch in islice(reversed(found.values()), 1)):
            continue
        for batch in islice(_data_batches(log, offset), _BATCHES):
            found[batch.base_offset] = batch
    return list(found.values())


def _data_batches(log: Log, offset: int) -> Iterator[RecordBatch]:
    return (batch for batch in log.read_batches(offset) if not batch.is_control and batch.count)


def _skew(sample: Sequence[RecordBatch]) -> int:
    """Return how far the newest timestamp of a batch is at most behind an earlier one's."""
    newest, most = -1, 0
    for batch in sample:
        most = max(most, newest - batch.max_timestamp)
        newest = max(newest, batch.max_timestamp)
    return most if newest >= 0 else 0


def _idle_parts(log: Log, oldest_ms: int, newest_ms: int) -> tuple[tuple[int, int], ...]:
    """Return the parts of the day without a record on each of the last whole days; empty for less than two days."""
    days = min((newest_ms - oldest_ms) // DAY_MS, _MOST_DAYS)
    if days < _LEAST_DAYS:
        return ()
    count = DAY_MS // _BIN_MS
    first_ms = (newest_ms // _BIN_MS + 1) * _BIN_MS - days * DAY_MS
    offsets = [_offset_at(log, first_ms + number * _BIN_MS) for number in range(days * count + 1)]
    grown = [0] * count
    for number, (before, after) in enumerate(pairwise(offsets)):
        grown[(first_ms // _BIN_MS + number) % count] += after - before
    parts: list[tuple[int, int]] = []
    number = 0
    while number < count:
        end = number
        while end < count and grown[end] == 0:
            end += 1
        missing = sum(grown) * (end - number) / count  # records that an even load would have had there
        if end - number >= _LEAST_IDLE_BINS and missing >= _LEAST_MISSING:
            parts.append((number * _BIN_MS, end * _BIN_MS))
        number = max(end, number + 1)
    return tuple(parts)


def _offset_at(log: Log, ms: int) -> int:
    found = log.offset_for_timestamp(ms)
    return log.log_end_offset if found is None else found.offset


def _keys(log: Log) -> tuple[int, tuple[str, ...]]:
    """Return about how many different keys a log has: as many as its clean part has records, or by a sample."""
    clean = _records_of_clean_part(log)
    if clean:
        return clean, (f"keys: the clean part has about {clean:,} records, each of another key",)
    first = max(log.log_end_offset - _KEYS_READ, log.log_start_offset)
    keys = [record.key for record in islice(log.read(first), _KEYS_READ)]
    different = len(set(keys))
    if different == len(keys):
        return max(different, 1), (f"keys: the last {len(keys):,} records have different keys; there may be more keys",)
    return _drawn_from(len(keys), different), (f"keys: the last {len(keys):,} records have {different:,} of them",)


def _records_of_clean_part(log: Log) -> int:
    view = HostedLog(log).view
    try:
        lines = checkpoint.read_offsets(os.path.dirname(log.path), checkpoint.CLEANER_OFFSETS)
    except StorageError:  # it does not affect the records
        return 0
    line = lines.get((log.topic, log.partition))
    if line is None:
        return 0
    dirtiness = survey(view, log.config, 0, line, lag=False)
    batches = list(islice(_data_batches(log, log.log_start_offset), _PLACES * _BATCHES))
    count = sum(batch.count for batch in batches)
    return round(dirtiness.clean_bytes * count / sum(batch.size_bytes for batch in batches)) if count else 0


def _drawn_from(drawn: int, different: int) -> int:
    """Return how many keys there are if so many random draws gave so many different ones."""
    low, high = float(different), float(different) * drawn
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * -math.expm1(-drawn / middle) < different else (low, middle)
    return max(round(high), 1)


def _rounded(value: float) -> float:
    """Return a measured value without digits that mean nothing."""
    return float(f"{value:.6g}")
