"""Finds a record as a lookup does, and notes each step with the entries of the indexes (SEMANTICS 3.13, 3.18a, 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kstore import _core
from kstore.base import times
from kstore.explained.explanation import LookupStep
from kstore.log.reading.view import offset_limit

if TYPE_CHECKING:
    from kstore._core import Record, RecordBatch
    from kstore.files._index_search import Entries
    from kstore.files._log_search import BatchPlace
    from kstore.log.reading.view import View
    from kstore.log.segments.segment import Segment
    from kstore.types import TimestampOffset


class Walk(NamedTuple):
    """A record, the place of its batch, and the steps of the lookup. `record` is None if a cleaning has removed it."""

    segment: Segment
    place: BatchPlace
    batch: RecordBatch
    record: Record | None
    steps: tuple[LookupStep, ...]
    bytes_scanned: int


def walk(view: View, offset: int, found: TimestampOffset | None = None, timestamp: int = -1) -> Walk | None:
    """Look up the record at an offset of the log; None if no batch has the offset, as in a gap.

    With `found`, the result of a search for `timestamp`, the steps are those of that search.
    """
    segments = view.segments
    number = segments.floor(offset)
    if number < 0:
        return None
    segment = segments.items[number]
    end = view.readable_bytes(segment)
    place = segment.find_batch(offset, end, most=offset_limit(view, segment))
    if place is None or place.base_offset > offset:
        return None
    steps = []
    target = offset
    following = view.segments.after(segment.base_offset)
    limit = view.log_end_offset if following is None else following.base_offset
    if found is None:
        why = f"segment {segment.base_offset} has the greatest base offset at or below {offset}"
    else:
        newest = view.maximum(segment)[0]
        why = (
            f"segment {segment.base_offset} is the first whose greatest timestamp, {times.show(newest)}, "
            f"is at or after {times.show(timestamp)}"
        )
    steps.append(LookupStep("segment", segment.directory, (segment.base_offset, limit - 1), None, 0, why))
    if found is not None:
        target = max(_step_by_time(segment, timestamp, steps), view.log_start_offset, segment.base_offset)
    start = _step_by_offset(segment, target, end, steps)
    start = min(start, place.position)
    scanned = place.position - start
    what = f"the log is read from position {start} to the batch at position {place.position}: {scanned} bytes"
    steps.append(LookupStep("scan", segment.path, (start, place.position), None, scanned, what))
    last = place.position + place.size_bytes
    file = segment.file  # held: its descriptor must outlive the read
    data = file.read(place.position, place.size_bytes)
    [batch] = _core.decode_batches(data, path=segment.path, position=place.position)
    record = next((each for each in batch if each.offset == offset), None)
    what = f"the batch at position {place.position} has offsets {place.base_offset} to {place.last_offset}"
    steps.append(LookupStep("batch", segment.path, (place.position, last), None, place.size_bytes, what))
    return Walk(segment, place, batch, record, tuple(steps), scanned)


def _step_by_time(segment: Segment, timestamp: int, steps: list[LookupStep]) -> int:
    """Note the step in the time index; return the offset from which the search goes on."""
    index = segment.time_index
    slot = _slot_up_to(index, timestamp)
    entry, following = _entry(index, slot), _entry(index, slot + 1)
    if entry is None:
        why = f"no entry is at or before {times.show(timestamp)}, so the search begins with the segment"
    else:
        why = f"the last entry at or before {times.show(timestamp)} is {times.show(entry[0])}, offset {entry[1]}"
    steps.append(LookupStep("time_index", str(index.path), entry, following, 0, why))
    return segment.base_offset if entry is None else entry[1]


def _step_by_offset(segment: Segment, offset: int, end: int, steps: list[LookupStep]) -> int:
    """Note the step in the offset index; return the position at which reading begins."""
    index = segment.offset_index
    slot = index.entries_below(offset + 1) - 1
    entry, following = _entry(index, slot), _entry(index, slot + 1)
    start = segment.start(offset, end)[0]
    if entry is None:
        why = f"no entry is at or below offset {offset}, so the log is read from its beginning"
    elif entry[1] != start:
        why = f"the log contradicts the last entry at or below offset {offset}, so it is read from position {start}"
    else:
        why = f"the last entry at or below offset {offset} is offset {entry[0]}, position {entry[1]}"
    steps.append(LookupStep("offset_index", str(index.path), entry, following, 0, why))
    return start


def _slot_up_to(index: Entries, key: int) -> int:
    """Return the slot of the last entry whose key is at most `key`, -1 if there is none."""
    low, high = 0, index.entries
    while low < high:
        middle = (low + high) // 2
        if index.entry(middle)[0] <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _entry(index: Entries, slot: int) -> tuple[int, int] | None:
    return index.entry(slot) if 0 <= slot < index.entries else None
