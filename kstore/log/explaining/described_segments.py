"""Describes the segments of a log with the first batch of each, which is what made the log roll to it.

Invariant: a file is read once, so that a log of very many segments does not open and close them again and again.
"""

from __future__ import annotations

from typing import NamedTuple

from kstore.files import _log_search
from kstore.log.reading.view import View, describe
from kstore.log.segments.segment import Segment
from kstore.types import SegmentInfo


class Described(NamedTuple):
    """A segment, its description, and the header of its first batch; None if it is empty."""

    segment: Segment
    info: SegmentInfo
    first_batch: _log_search.BatchPlace | None


def describe_with_batches(view: View) -> list[Described]:
    """Return the segments in order. Raises `CorruptRecordError` if the first batch of one is damaged."""
    segments = view.segments  # the same list for the whole call
    ends = [*segments.bases[1:], view.log_end_offset][: len(segments.items)]  # a new directory has no segments
    described = []
    for segment, end in zip(segments.items, ends, strict=True):
        info = describe(view, segment, end, is_active=segment is segments.items[-1])
        first = None
        if info.size_bytes:
            file = segment.file  # held: its descriptor must outlive the read
            first = _log_search.header_at(file.fd, 0, info.size_bytes, path=segment.path)
        described.append(Described(segment, info, first))
    return described
