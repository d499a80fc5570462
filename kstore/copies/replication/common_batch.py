"""Finds the last batch that two logs have in common, by comparing batches at the same offsets.

Leader epochs are not enough: after a crash a leader may write other records at offsets that were copied, in the same
epoch. In a compacted log either side may lack records of a batch. Two batches then count as equal if they have records
at common offsets, and all of these are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kstore import _core
from kstore.codec import header
from kstore.columns._column_reader import decode_columns
from kstore.files import _log_search
from kstore.log.hosted_log import HostedLog
from kstore.log.reading.view import View
from kstore.log.segments.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kstore.columns._columns import Columns
    from kstore.log.log import Log

_FIRST_STEP = 16
_STEP_FACTOR = 16
_BYTES = header.HEADER_BYTES
_LEAST_STRETCH = 1 << 14  # offsets; grows until a stretch has some thousands of batches
_ROWS_AT_ONCE = 1 << 16


class Found(NamedTuple):
    """A batch in a log's file, with its first 61 bytes."""

    segment: Segment
    place: _log_search.BatchPlace
    head: bytes

    @property
    def records(self) -> int:
        """The number of records in its header; 1 for a message of magic 0 or 1."""
        return header.RECORDS_COUNT.of(self.head) if self.place.magic >= 2 else 1


def batches_from(view: View, offset: int, end_offset: int) -> Iterator[Found]:
    """Yield the batches that hold offsets of `[offset, end_offset)`, in order. Reads headers only."""
    segments = view.segments
    for segment in segments.items[max(segments.floor(offset), 0) :]:
        if segment.base_offset >= end_offset:
            return
        end = view.readable_bytes(segment)
        place = segment.find_batch(offset, end)
        while place is not None:
            if place.base_offset >= end_offset:
                return
            yield Found(segment, place, segment.file.read(place.position, min(_BYTES, place.size_bytes)))
            position = place.position + place.size_bytes
            place = _log_search.header_at(segment.file.fd, position, end, path=segment.path) if position < end else None


def find_at(view: View, offset: int) -> Found | None:
    """Return the batch that holds `offset`; None if there is none."""
    found = next(batches_from(view, offset, offset + 1), None)
    return found if found is not None and found.place.base_offset <= offset <= found.place.last_offset else None


def has_batches(view: View, offset: int, end_offset: int) -> bool:
    """Whether a batch holds offsets of `[offset, end_offset)`."""
    return offset < end_offset and next(batches_from(view, offset, end_offset), None) is not None


def find_last_common(leader: View, own: View, start_offset: int, end_offset: int, *, compacted: bool) -> int | None:
    """Return the end offset of the last batch in `[start_offset, end_offset)` that both logs have; None if none."""
    step, upper = 1, end_offset
    while upper > start_offset:
        lower = max(upper - step, start_offset)
        theirs = {found.place.base_offset: found for found in batches_from(leader, lower, upper)}
        common = None
        for found in batches_from(own, lower, upper):
            other = theirs.get(found.place.base_offset)
            if other is not None and found.place.last_offset < end_offset and _are_same(other, found, compacted):
                common = found.place.last_offset + 1
        if common is not None:
            return common
        step, upper = max(step * _STEP_FACTOR, _FIRST_STEP), lower
    return None


def compare_all(
    leader: Log, own: Log, start_offset: int, end_offset: int, *, compacted: bool
) -> Iterator[tuple[int, int | None]]:
    """Compare the headers of all batches in `[start_offset, end_offset)`, in stretches.

    For each stretch yields its end, and the base offset of the first batch of `own` that the leader's log contradicts,
    or None. Stops after such a batch. In a compacted log a missing batch is no contradiction, and batches with
    different headers are compared by their records.
    """
    offset, stretch = start_offset, _LEAST_STRETCH
    while offset < end_offset:
        until = min(offset + stretch, end_offset)
        ours, theirs = (log.batch_table(offset, end_offset=until) for log in (own, leader))
        different = np.flatnonzero(~_stands_in(ours, theirs))
        for last_offset in ours["last_offset"][different].tolist():
            if last_offset < end_offset and (not compacted or _contradicts(leader, own, last_offset)):
                found = find_at(HostedLog(own).view, last_offset)
                yield until, last_offset if found is None else max(found.place.base_offset, start_offset)
                return
        yield until, None
        rows = max(len(ours), len(theirs))
        stretch = stretch * 8 if rows < _ROWS_AT_ONCE // 8 else stretch
        stretch = max(stretch // 8, _LEAST_STRETCH) if rows > _ROWS_AT_ONCE else stretch
        offset = until


def _stands_in(ours: Columns, theirs: Columns) -> NDArray[np.bool_]:
    """Return which batches of a table are also in the other table, with the same offsets, leader epoch and checksum."""
    if not len(theirs):
        return np.zeros(len(ours), dtype=np.bool_)
    at = np.minimum(np.searchsorted(theirs["last_offset"], ours["last_offset"]), len(theirs) - 1)
    same = np.ones(len(ours), dtype=np.bool_)
    for name in ("last_offset", "base_offset", "crc", "partition_leader_epoch"):
        same &= theirs[name][at] == ours[name]
    return same


def _contradicts(leader: Log, own: Log, offset: int) -> bool:
    """Whether two compacted logs have different records at an offset of the batch of `own` that ends at `offset`."""
    ours = find_at(HostedLog(own).view, offset)
    if ours is None:
        return False
    a = _records(ours)
    theirs = batches_from(HostedLog(leader).view, ours.place.base_offset, ours.place.last_offset + 1)
    return any(a.get(at, record) != record for batch in theirs for at, record in _records(batch).items())


def _are_same(leader: Found, own: Found, compacted: bool) -> bool:
    if leader.head == own.head or not compacted or leader.place.magic != 2 or own.place.magic != 2:
        return leader.head == own.head
    theirs, ours = header.read_header(leader.head), header.read_header(own.head)
    if (theirs.last_offset, theirs.leader_epoch, theirs[9:12]) != (ours.last_offset, ours.leader_epoch, ours[9:12]):
        return False
    a, b = _records(leader), _records(own)
    shared = a.keys() & b.keys()
    return bool(shared) and all(a[offset] == b[offset] for offset in shared)


_COMPARED = ("offset", "timestamp", "key", "value")


def _records(found: Found) -> dict[int, tuple[object, ...]]:
    data = found.segment.file.read(found.place.position, found.place.size_bytes)
    if header.ATTRIBUTES.of(data) & header.CONTROL_BIT:  # a control batch: columns do not include its markers
        [batch] = _core.decode_batches(data, path=found.segment.path, position=found.place.position)
        return {each.offset: (each.timestamp, each.key, each.value) for each in batch}
    columns = decode_columns(data, columns=_COMPARED, path=found.segment.path, position=found.place.position)
    rows = zip(columns.timestamps.tolist(), columns.keys, columns.values, strict=True)
    return dict(zip(columns.offsets.tolist(), rows, strict=True))
