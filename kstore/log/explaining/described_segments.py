"""Describes the segments of a log with the first batch of each, which is what made the log roll to it.

Invariant: damage in one segment leaves the others explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import CorruptRecordError
from kstore.log.reading.view import SegmentList, View, describe
from kstore.log.segments.segment import Segment
from kstore.types import SegmentInfo

if TYPE_CHECKING:
    from kstore.files._log_search import BatchPlace


class Described(NamedTuple):
    """A segment, its description, and its first batch (None if it is empty), or why that cannot be read.

    `max_timestamp_offset` is the last offset of the first batch that has the greatest timestamp.
    """

    segment: Segment
    info: SegmentInfo
    first_batch: BatchPlace | None
    damage: str | None = None
    max_timestamp_offset: int = -1


class Snapshot(NamedTuple):
    """The segments of a log and its marks at one time. The log may roll and grow meanwhile."""

    segments: SegmentList
    log_start_offset: int
    log_end_offset: int


def snapshot(view: View) -> Snapshot:
    """Return segments and marks that belong together."""
    while True:
        segments = view.segments
        taken = Snapshot(segments, view.log_start_offset, view.log_end_offset)
        if view.segments is segments:
            return taken


def describe_with_batches(view: View, taken: Snapshot) -> list[Described]:
    """Return the segments in order."""
    segments = taken.segments
    ends = [*segments.bases[1:], taken.log_end_offset][: len(segments.items)]  # a new directory has no segments
    return [
        _describe(view, segment, end, is_active=segment is segments.items[-1])
        for segment, end in zip(segments.items, ends, strict=True)
    ]


def _describe(view: View, segment: Segment, next_offset: int, *, is_active: bool) -> Described:
    try:
        info = describe(view, segment, next_offset, is_active=is_active)
        first = segment.first_batch(info.size_bytes)
        damage = "it is cut off" if info.size_bytes and first is None else None
        return Described(segment, info, first, damage, view.maximum(segment)[1])
    except CorruptRecordError as error:
        # As `describe` does, without what the first batch says.
        info = SegmentInfo(
            base_offset=segment.base_offset,
            next_offset=next_offset,
            size_bytes=view.readable_bytes(segment),
            offset_index_entries=segment.offset_index.entries,
            time_index_entries=segment.time_index.entries,
            max_timestamp=view.maximum(segment)[0],
            first_timestamp=-1,
            is_active=is_active,
            path=segment.path,
            roll_reason=segment.roll_reason,
        )
        return Described(segment, info, None, error.reason, view.maximum(segment)[1])
