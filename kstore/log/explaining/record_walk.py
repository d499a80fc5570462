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
    from kstore.log.explaining.described_segments import Snapshot
    from kstore.log.reading.view import View
    from kstore.log.segments.segment import Segment


class Target(NamedTuple):
    """The record to look up; `timestamp` is the time that led to it if it was found by time."""

    offset: int
    timestamp: int
    is_by_time: bool


class Walk(NamedTuple):
    """A record, the place of its batch, and the steps of the lookup. `record` is None if a cleaning has removed it."""

    place: BatchPlace
    batch: RecordBatch
    record: Record | None
    steps: tuple[LookupStep, ...]
    bytes_scanned: int


def walk(view: View, taken: Snapshot, number: int, target: Target) -> Walk | None:
    """Look up a record in the segment of this number; None if no batch has its offset, as in a gap."""
    if number < 0:
        return None
    segments, offset = taken.segments, target.offset
    segment = segments.items[number]
    end = view.readable_bytes(segment)
    place = segment.find_batch(offset, end, most=offset_limit(view, segment))
    if place is None or place.base_offset > offset:
        return None
    following = segments.bases[number + 1 : number + 2] or (taken.log_end_offset,)
    steps = [_step_to_segment(view, segment, following[0] - 1, target)]
    from_offset = offset
    if target.is_by_time:
        steps.append(_step_by_time(segment, target.timestamp))
        entry = steps[-1].found
        from_offset = max(segment.base_offset if entry is None else entry[1], taken.log_start_offset)
    start = min(segment.start(from_offset, end)[0], place.position)
    steps.append(_step_by_offset(segment, from_offset, start))
    scanned = place.position - start
    why = f"the log is read from position {start} to the batch at position {place.position}: {scanned} bytes"
    steps.append(LookupStep("scan", segment.path, (start, place.position), None, scanned, why))
    batch = _read(view, segment, place)
    record = next((each for each in batch if each.offset == offset), None)
    why = f"the batch has offsets {place.base_offset} to {place.last_offset} in {place.size_bytes} bytes"
    area = (place.position, place.position + place.size_bytes)
    steps.append(LookupStep("batch", segment.path, area, None, place.size_bytes, why))
    return Walk(place, batch, record, tuple(steps), scanned)


def _read(view: View, segment: Segment, place: BatchPlace) -> RecordBatch:
    file = segment.file  # held: its descriptor must outlive the read
    data = file.read(place.position, place.size_bytes)
    [batch] = _core.decode_batches(
        data, path=segment.path, position=place.position, max_decompressed_bytes=view.max_decompressed_bytes
    )
    return batch


def _step_to_segment(view: View, segment: Segment, last_offset: int, target: Target) -> LookupStep:
    if target.is_by_time:
        newest = times.show(view.maximum(segment)[0])
        why = f"its greatest timestamp, {newest}, is the first at or after {times.show(target.timestamp)}"
    else:
        why = f"it has the greatest base offset at or below {target.offset}"
    found = (segment.base_offset, last_offset)
    return LookupStep("segment", segment.directory, found, None, 0, f"segment {segment.base_offset}: {why}")


def _step_by_time(segment: Segment, timestamp: int) -> LookupStep:
    index = segment.time_index
    slot = _slot_up_to(index, timestamp)
    entry, following = _entry(index, slot), _entry(index, slot + 1)
    if entry is None:
        why = f"no entry is at or before {times.show(timestamp)}, so the search begins with the segment"
    else:
        why = f"the last entry at or before {times.show(timestamp)} is {times.show(entry[0])}, offset {entry[1]}"
    return LookupStep("time_index", str(index.path), entry, following, 0, why)


def _step_by_offset(segment: Segment, offset: int, start: int) -> LookupStep:
    """Return the step in the offset index; reading begins at the position `start`."""
    index = segment.offset_index
    slot = index.entries_below(offset + 1) - 1
    entry, following = _entry(index, slot), _entry(index, slot + 1)
    if entry is None:
        why = f"no entry is at or below offset {offset}, so the log is read from its beginning"
    elif entry[1] != start:
        why = f"the log contradicts the last entry at or below offset {offset}, so it is read from position {start}"
    else:
        why = f"the last entry at or below offset {offset} is offset {entry[0]}, position {entry[1]}"
    return LookupStep("offset_index", str(index.path), entry, following, 0, why)


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
