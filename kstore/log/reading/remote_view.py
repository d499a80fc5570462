"""Views of partitions whose segments, or the older ones of them, are objects of a mounted prefix.

What the prefix knows of a segment (its end, its greatest timestamp) is not read from its files. Invariant: nothing is
requested before it is needed, apart from what a reader has announced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import cast

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs, mounts
from kstore.errors import CorruptIndexError, CorruptRecordError
from kstore.files import names
from kstore.log.reading.read_only_view import DirectoryState, Marks, ReadOnlyView
from kstore.log.reading.view import ReadPiece
from kstore.log.segments.segment import Segment
from kstore.objects.joined_tree import JoinedTree
from kstore.objects.object_reader import WHOLE_BYTES, Cost, cost_of
from kstore.objects.remote_state import UNKNOWN, RemotePartition, SegmentFacts
from kstore.objects.remote_tree import RemoteTree


class RemoteView(ReadOnlyView):
    """The base class: a partition with segments of a mounted prefix. Thread-safe."""

    def __init__(self, directory: str, partition: tuple[str, int]) -> None:
        found = mounts.find(directory)
        assert found is not None
        self._tree, self._name = cast("RemoteTree", found[0]), found[1]
        self._maxima: dict[Segment, tuple[int, int]] = {}
        super().__init__(directory, partition)

    @property
    def _remote(self) -> RemotePartition | None:
        """What the prefix knows of the partition."""
        return self._tree.partition(self._name)

    def _make_segment(self, base: int, actual: Mapping[str, str]) -> Segment:
        remote = self._remote
        known = None if remote is None else remote.segments.get(base)
        if known is None:
            return super()._make_segment(base, actual)
        return RemoteSegment(self.directory, base, known, actual)

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """Return the greatest timestamp as the prefix knows it, or as the closing entry of the time index says."""
        if not isinstance(segment, RemoteSegment):
            return super().maximum(segment)
        if segment.known.max_timestamp is not None:
            return segment.known.max_timestamp, segment.base_offset
        if segment not in self._maxima:
            self._maxima[segment] = self._find_maximum(segment)
        return self._maxima[segment]

    def few_unknown(self, few: int) -> bool:
        """Return whether at most so many segments have to be looked at for their greatest timestamps."""
        known = sum(
            1
            for each in self.segments.items
            if isinstance(each, RemoteSegment) and each.known.max_timestamp is not None
        )
        return len(self.segments.items) - known <= few

    def _find_maximum(self, segment: RemoteSegment) -> tuple[int, int]:
        if self.segments.after(segment.base_offset) is not None:
            with suppress(CorruptIndexError):
                last = segment.time_index.last
                if last[0] >= 0:
                    return last
        return segment.maximum_below(self.readable_bytes(segment))

    def ranges_since(self, start_offset: int, end_offset: int, timestamp: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of `[start_offset, end_offset)` by segments, without those known to be before a time."""
        segments = self._state.segments
        first = max(segments.floor(start_offset), 0)
        ends = (*segments.bases[first + 1 :], end_offset)
        for segment, following in zip(segments.items[first:], ends, strict=False):
            start, end = max(segment.base_offset, start_offset), min(following, end_offset)
            latest = segment.known.max_timestamp if isinstance(segment, RemoteSegment) else None
            if start < end and (latest is None or latest >= timestamp):
                yield start, end

    def fetched_from(self, offset: int) -> int:
        """Return the base offset of the segment that has `offset`, if one request fetches it; else `offset`."""
        segments = self._state.segments
        number = segments.floor(offset)
        if number < 0 or not isinstance(segment := segments.items[number], RemoteSegment):
            return offset
        return segment.base_offset if self.readable_bytes(segment) <= WHOLE_BYTES else offset

    def will_read(self, start_offset: int, end_offset: int) -> None:
        """Begin to fetch what lies in `[start_offset, end_offset)`."""
        self._tree.will_read(self._spans(start_offset, end_offset))

    def cost(self, start_offset: int, end_offset: int) -> Cost:
        """Return the requests and bytes of reading `[start_offset, end_offset)` if nothing is cached."""
        return cost_of(self._tree.pieces(self._spans(start_offset, end_offset)))

    def _spans(self, start_offset: int, end_offset: int) -> Iterator[tuple[str, int, int]]:
        """Yield (file, start, end) of the `.log` bytes in a range of offsets."""
        segments = self._state.segments
        for number in range(max(segments.floor(start_offset), 0), len(segments.items)):
            segment = segments.items[number]
            if segment.base_offset >= end_offset:
                return
            if not isinstance(segment, RemoteSegment):
                continue
            start, end = 0, self.readable_bytes(segment)
            if end > WHOLE_BYTES:
                following = segments.bases[number + 1 : number + 2]
                if start_offset > segment.base_offset:
                    start = segment.start(start_offset, end)[0]
                if end_offset < (following[0] if following else self.data_end_offset):
                    end = segment.end_before(end_offset, end)
            if start < end:
                yield f"{self._name}/{names.log_name(segment.base_offset)}", start, end


class FrozenView(RemoteView):
    """A `View` of a partition of a mounted prefix, which is one state until the prefix is read again. Thread-safe."""

    def _find_end(self, state: DirectoryState, log_start: int) -> DirectoryState:
        remote = self._remote
        if remote is None or remote.end_offset == UNKNOWN or not state.segments.items:
            return super()._find_end(state, log_start)
        segment = state.segments.items[-1]
        stat = fs.stat(segment.path)
        return state._replace(
            sound_offset=remote.end_offset,
            end_position=stat.st_size,
            end_size=stat.st_size,
            end_file=(stat.st_dev, stat.st_ino),
            end_ns=stat.st_mtime_ns,
            end_reason=None,
            last_batch=None,
        )

    def _find_fault(self, state: DirectoryState) -> CorruptRecordError | None:
        """Return None: a copy of a directory in use may end below the recovery point that was copied after it."""
        return None

    def check_piece(self, previous: ReadPiece | None, piece: ReadPiece) -> None:
        """Do nothing: a file of a prefix is not replaced under its reader."""

    def check_durable(self, offset: int) -> None:
        """Do nothing: the recovery point of a state does not change."""


class JoinedView(RemoteView):
    """A `View` of a partition whose older segments are in an archive, and the newer ones in a directory. Thread-safe.

    Another process may be writing the directory. The log starts where the archive starts.
    """

    def _read_marks(self) -> Marks:
        marks = super()._read_marks()
        remote = self._remote
        return marks if remote is None else marks._replace(log_start=remote.log_start_offset)


class RemoteSegment(Segment):
    """A segment whose files are objects; the places of some of its batches are known without its index."""

    __slots__ = ("known",)

    def __init__(self, directory: str, base_offset: int, known: SegmentFacts, actual: Mapping[str, str] | None) -> None:
        super().__init__(directory, base_offset, max_index_bytes=0, writable=False, actual=actual)
        self.known = known

    def anew(self) -> Segment:
        segment = RemoteSegment(self.directory, self.base_offset, self.known, self._actual)
        segment.inode = self.inode
        return segment

    def start(self, offset: int, end: int) -> tuple[int, int]:
        starts = self.known.starts
        number = bisect_right(starts, (offset, LONG_MAX)) - 1
        if number >= 0 and starts[number][1] < end:
            return starts[number][1], starts[number][0]
        if starts or offset <= self.base_offset:  # the index would say the same
            return 0, self.base_offset
        return super().start(offset, end)

    def end_before(self, offset: int, end: int) -> int:
        """Return a position at or after the end of the batches below `offset`."""
        for first, position in self.known.starts:
            if first >= offset:
                return min(position, end)
        index = self.offset_index
        slot = index.entries_below(offset)
        return min(index.entry(slot)[1], end) if slot < index.entries else end


def open_view(directory: str, partition: tuple[str, int]) -> ReadOnlyView:
    """Open the view of a partition's directory, which may be in a mounted prefix."""
    found = mounts.find(directory)
    if found is None:
        return ReadOnlyView(directory, partition)
    return (JoinedView if isinstance(found[0], JoinedTree) else FrozenView)(directory, partition)
