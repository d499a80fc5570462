"""Decides which segments are cleaned together into one new segment (SEMANTICS 7.13). No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore.base.numbers import INT_MAX

if TYPE_CHECKING:
    from kstore.log.segments.segment import Segment


class Source(NamedTuple):
    """A segment as the grouping sees it: the offsets `[base_offset, next_base)`, and the bytes in its files."""

    segment: Segment
    base_offset: int
    next_base: int  # base offset of the next segment; for the last segment, the first uncleanable offset
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


def group(sources: Sequence[Source], *, segment_bytes: int, index_bytes: int) -> list[list[Source]]:
    """Group neighbouring segments, from the first on, as long as one new segment can hold all of them.

    The sizes of the logs add up to at most `segment_bytes`, those of each kind of index to at most `index_bytes`, and
    the last offset can be written relative to the first base. An empty segment is never too far away. A segment that
    exceeds a limit by itself is a group of its own.
    """
    groups: list[list[Source]] = []
    log = offset_index = time_index = 0
    for source in sources:
        log += source.size_bytes
        offset_index += source.offset_index_bytes
        time_index += source.time_index_bytes
        if (
            not groups
            or log > segment_bytes
            or max(offset_index, time_index) > index_bytes
            or (source.size_bytes > 0 and source.next_base - 1 - groups[-1][0].base_offset > INT_MAX)
        ):
            groups.append([])
            _, _, _, log, offset_index, time_index = source
        groups[-1].append(source)
    return groups
