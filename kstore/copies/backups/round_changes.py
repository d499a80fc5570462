"""Computes the change of a round in one partition: the difference between the backup and the source.

Invariant: after a change the backup has a contiguous log that the source had. Sealed segments are replaced in order
from the first. If the source has truncated the tail, the tail is truncated before it is extended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from kstore.copies.backups import source_partition
from kstore.copies.backups.backup_source import PartitionLook, Source
from kstore.copies.backups.source_partition import ChangedMeanwhileError, Place, SnapshotFile, Target
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import gap_files, names
from kstore.objects.backup_contents import Chunk, PartitionState, SealedSegment, StoredFile
from kstore.objects.backup_rounds import Change

MERGED_BYTES = 4 << 20
"""Small chunks are sent again, merged with new data into a chunk of at most this size."""
MERGE_WIDTH = 8
UPLOADS_AHEAD = 8
"""How many segments of a partition are uploaded at the same time."""
WAITING_BYTES = 64 << 20
"""The rest of a sealed segment is sent as chunks if it has at most this many bytes, and no more than were sent."""
BESIDE_BYTES = 16 << 20
"""If an active segment has at least this many new bytes, they are uploaded separately, to an object of their own."""


@dataclass(slots=True)
class Memory:
    """What is known of a partition between two rounds, so that no file of an unchanged partition is read."""

    look: PartitionLook | None = None
    """The last look at the partition, if the backup has all its data."""
    layout: object = None
    bases: tuple[int, ...] = ()
    targets: Sequence[Target] = ()
    topic_id: str = ""
    place: Place | None = None
    """The last batch that the backup has."""
    snapshot: SnapshotFile | None = None
    """The snapshot that the backup has."""


class Wanted(NamedTuple):
    """Something to upload: a sealed segment, a stretch of an active segment, or a producer snapshot."""

    look: PartitionLook
    topic_id: str
    target: Target | None = None
    like: SealedSegment | None = None
    """The backup's segment with the same offsets: files that are equal are not uploaded again."""
    snapshot: SnapshotFile | None = None
    stretch: Stretch | None = None


class Stretch(NamedTuple):
    """The batches of an active segment from a position on, up to the end offset of a look."""

    base_offset: int
    position: int
    after: int
    """The end offset of the batches before them."""
    end_offset: int


class Sent(NamedTuple):
    """The chunks of an uploaded stretch, or of its first part; none if it is too small for its own object."""

    chunks: list[Chunk]
    place: Place | None = None


Finished = Callable[[Wanted], SealedSegment | StoredFile | Sent | None]
"""Returns the result of an upload; None until it is done. The first call starts the upload."""


class Planned(NamedTuple):
    """A change (or None), the bytes of its chunks, and the memory to keep once the change is committed."""

    change: Change | None
    data: list[bytes]
    after: Memory


def plan(
    look: PartitionLook,
    known: PartitionState | None,
    memory: Memory,
    source: Source,
    finished: Finished,
    *,
    at: int,
    budget: int,
) -> Planned:
    """Plan the change of a round in a partition; its chunks start at `at` and have at most about `budget` bytes."""
    if known is not None and memory.look == look:
        return Planned(None, [], memory)
    planner = _Planner(look, known, memory, source, finished)
    planner.find_layout()
    planner.cut()
    planner.replace_segments()
    planner.extend(at, budget)
    return planner.planned()


class _Planner:
    """The plan of one change. Its methods are called in the order in which `plan` calls them."""

    def __init__(
        self, look: PartitionLook, known: PartitionState | None, memory: Memory, source: Source, finished: Finished
    ) -> None:
        self.look = look
        self.source = source
        self.finished = finished
        is_seen = memory.layout is not None and memory.layout == look.layout
        self.topic_id = memory.topic_id if is_seen else source.topic_id(look)
        self.anew = known is None or known.topic_id != self.topic_id
        self.known = PartitionState(look.topic, look.partition) if known is None or self.anew else known
        self.memory = Memory() if self.anew else memory
        self.segments: list[SealedSegment] = list(self.known.segments)
        self.tail: list[Chunk] = list(self.known.tail)
        self.fresh: list[Chunk] = []
        self.data: list[bytes] = []
        self.place = self.memory.place
        self.end = self.known.end_offset
        self.is_all = False

    def find_layout(self) -> None:
        """Find the segments, and which of them are sealed."""
        memory, look = self.memory, self.look
        # A recovery point may fall, for example if its file is rebuilt. Data that was durable is still durable.
        parts = self.known.tail[-1:] or self.known.segments[-1:]
        self.target_end = max(look.end_offset, *(part.end_offset for part in parts), 0)
        is_seen = memory.layout is not None and memory.layout == look.layout
        self.bases = memory.bases if is_seen else self.source.bases(look)
        self._find_targets(memory.targets if is_seen else ())
        if not is_seen and self.source.bases(look) != self.bases:
            raise ChangedMeanwhileError(f"{look.path}: segments come and go")

    def _find_targets(self, known: Sequence[Target] = ()) -> None:
        ends = self.bases[1:]
        count = bisect_right(ends, self.target_end)
        if count != len(known):
            known = source_partition.find_targets(self.look.path, self.bases[: count + 1])
        self.targets = list(known)
        self.active = self.bases[count] if self.bases else None

    def cut(self) -> None:
        """Remove what the source no longer has: retention may have deleted the start, and a truncation the end."""
        first = self.bases[0] if self.bases else self.look.end_offset
        self.segments = [segment for segment in self.segments if segment.end_offset > first]
        if self.tail and self.tail[-1].base_offset < first:
            self.tail, self.place = [], None
        self.tail = [chunk for chunk in self.tail if chunk.base_offset >= first]
        is_new = not (self.known.segments or self.known.tail)
        if not is_new and not ((self.segments or self.tail) and self._goes_on()):
            self.target_end = self.look.end_offset
            self._find_targets()
            self._cut_to_common()

    def _goes_on(self) -> bool:
        """Whether the last batch that the backup has is still at its position in the source."""
        path = self.look.path
        if self.tail:
            last = self.tail[-1]
            if self.place is None or self.place.base_offset != last.base_offset:
                self.place = source_partition.find_place(path, last)
                if self.place is None or not all(source_partition.holds(path, chunk) for chunk in self.tail):
                    return False
            if last.base_offset not in self.bases or not source_partition.is_still_there(path, self.place):
                return False
            # The sealed segments must end where the tail starts.
            return not self.segments or self.segments[-1].end_offset in self.bases
        last_segment = self.segments[-1]
        return last_segment.end_offset in self.bases and self._is_same_end(last_segment)

    def _is_same_end(self, segment: SealedSegment) -> bool:
        """Whether a sealed segment still ends with the same records, though a cleaning may have replaced it."""
        target = self._target_of(segment)
        if target is not None and _has(segment, target):
            return True
        # A cleaning does not touch the segment with the log's last records, so other segments follow a cleaned one. If
        # in addition no new epoch starts below the cleaned segment's end, the log was not truncated there.
        new = [entry for entry in self.look.epochs if entry not in self.known.epochs]
        is_cleaned = self.look.cleaned_offset >= segment.end_offset
        return is_cleaned and all(entry.offset >= segment.end_offset for entry in new)

    def _cut_to_common(self) -> None:
        path = self.look.path
        kept: list[SealedSegment] = []
        for segment in self.segments:
            target = self._target_of(segment)
            if target is None or not self._is_equal(segment, target):
                break
            kept.append(segment)
        is_cut = len(kept) < len(self.segments)
        self.segments = kept
        chunks: list[Chunk] = []
        ends = {target.base_offset: target for target in self.targets}
        for chunk in [] if is_cut else self.tail:
            if chunk.end_offset > self.target_end or chunk.base_offset not in self.bases:
                break
            last = chunks[-1] if chunks else chunk
            if last.base_offset != chunk.base_offset:
                before = ends.get(last.base_offset)
                if before is None or (before.size, before.end_offset) != (last.end_position, chunk.base_offset):
                    break
            if not source_partition.holds(path, chunk):
                break
            chunks.append(chunk)
        self.tail = chunks
        self.place = source_partition.find_place(path, chunks[-1]) if chunks else None

    def _target_of(self, segment: SealedSegment) -> Target | None:
        return next((target for target in self.targets if target[:2] == segment[:2]), None)

    def _is_equal(self, segment: SealedSegment, target: Target) -> bool:
        if _has(segment, target):
            return True
        log = segment.file(names.LOG)
        path = source_partition.log_path(self.look.path, target.base_offset)
        return log is not None and log.length == target.size and source_partition.checksum(path, log.length) == log.crc

    def replace_segments(self) -> None:
        """Add sealed segments that have been uploaded, from the first on."""
        self.waits = False
        have = {segment[:2]: segment for segment in self.segments}
        missing = [t for t in self.targets if (like := have.get(t[:2])) is None or not _has(like, t)]
        wanted = [Wanted(self.look, self.topic_id, target, have.get(target[:2])) for target in missing]
        uploaded = [self.finished(each) for each in wanted[:UPLOADS_AHEAD]]
        for target, sealed in zip(missing, uploaded, strict=False):
            overlaps = [segment for segment in self.segments if _overlap(segment, target)]
            first, last = target[:2]
            within = all(first <= each.base_offset and each.end_offset <= last for each in overlaps)
            if not within:  # the log was truncated and written again with other segments
                self.segments = [each for each in self.segments if each.end_offset <= target.base_offset]
                self.tail, self.place = [], None
            follows = not self.segments or bool(overlaps) or self.segments[-1].end_offset == target.base_offset
            if not follows:  # the backup's segments leave a gap before this segment: all are sent again
                self.segments, self.tail, self.place = [], [], None
            if not isinstance(sealed, SealedSegment) or not within or not follows:
                self.waits = True
                return
            self.segments = sorted([*(each for each in self.segments if each not in overlaps), sealed])
            if self.tail and self.tail[-1].base_offset < target.end_offset:
                self.place = None
            self.tail = [chunk for chunk in self.tail if chunk.base_offset >= target.end_offset]
        self.waits = len(missing) > len(uploaded)

    def extend(self, at: int, budget: int) -> None:
        """Extend the tail with new batches: first an uploaded stretch, then batches that are read here."""
        beside = self._sent_beside()
        first = self.bases[0] if self.bases else self.look.end_offset
        self.end = self.segments[-1].end_offset if self.segments else first
        begins_at = self.end
        if self.tail:
            begins_at, self.end = self.tail[-1].base_offset, self.tail[-1].end_offset
        targets = {target.base_offset: target for target in self.targets}
        for base in self.bases[bisect_left(self.bases, begins_at) :]:
            is_begun = bool(self.tail) and self.tail[-1].base_offset == base
            position = self.tail[-1].end_position if is_begun else 0
            target = targets.get(base)
            if not is_begun and base != self.end:
                return
            if target is None and base != self.active:
                return
            # A sealed segment is uploaded as a file. If most of its data is new, later batches wait for the upload.
            if target is not None and (not self.tail or target.size - position > min(position, WAITING_BYTES)):
                return
            if target is None:
                if beside is None:
                    return
                position = self._take(beside, position)
            sent = sum(map(len, self.data))
            if not self._read(base, position, at + sent, budget - sent):
                return
            if target is None:
                self.is_all = True
                self.end = max(self.end, self.target_end)
                return
            if not self.tail or self.tail[-1].base_offset != base or self.tail[-1].end_position != target.size:
                raise ChangedMeanwhileError(f"{self.look.path}: segment {base} does not end as a sealed one")
            self.end = target.end_offset
        self.is_all = not self.bases

    def _sent_beside(self) -> Sent | None:
        """Return the uploaded stretch of the active segment: None during the upload, empty if little data is new."""
        base = self.active
        if base is None:
            return Sent([])
        is_begun = bool(self.tail) and self.tail[-1].base_offset == base
        position, after = (self.tail[-1].end_position, self.tail[-1].end_offset) if is_begun else (0, base)
        size = fs.stat(source_partition.log_path(self.look.path, base), follow=False).st_size
        if size - position < BESIDE_BYTES or after >= self.target_end:
            return Sent([])
        stretch = Stretch(base, position, after, self.target_end)
        found = self.finished(Wanted(self.look, self.topic_id, stretch=stretch))
        return found if isinstance(found, Sent) else None

    def _take(self, sent: Sent, position: int) -> int:
        """Append an uploaded stretch to the tail, if the log still has it; return the position of the next batch."""
        if not sent.chunks or sent.place is None or sent.chunks[0].position != position:
            return position
        is_there = source_partition.is_still_there(self.look.path, sent.place)
        if not is_there or sent.chunks[-1].end_offset > self.target_end:
            return position
        self.tail += sent.chunks
        self.fresh += sent.chunks
        self.place = sent.place
        self.end = sent.chunks[-1].end_offset
        return sent.chunks[-1].end_position

    def _read(self, base: int, position: int, at: int, budget: int) -> bool:
        """Read a segment's new batches and return whether the end was reached."""
        path, end = self.look.path, self.target_end
        new = source_partition.read_tail(path, base, position, end, max(self.end, base), at=at, budget=budget)
        count = self._absorbed(base, sum(map(len, new.data)))
        if count:
            first = self.tail[-count]
            before = self.tail[-count - 1].end_offset if len(self.tail) > count else base
            self.tail = self.tail[:-count]
            size = new.chunks[-1].end_position - first.position
            new = source_partition.read_tail(path, base, first.position, end, max(before, base), at=at, budget=size)
        self.tail += new.chunks
        self.fresh += new.chunks
        self.data += new.data
        self.place = new.place or self.place
        self.end = new.chunks[-1].end_offset if new.chunks else self.end
        return new.is_all

    def _absorbed(self, base: int, size: int) -> int:
        """Return how many chunks at the end of the tail are sent again, merged with `size` new bytes.

        Merges `MERGE_WIDTH` chunks of about the same size, so each byte is sent again only a few times, and the number
        of chunks grows with the logarithm of the tail's size.
        """
        old = [chunk.length for chunk in self.tail if chunk.base_offset == base]
        if self.fresh and self.fresh[-1].base_offset == base:  # an uploaded stretch was just added
            return 0
        absorbed = 0
        while size:
            count = absorbed
            while count < len(old) and _size_class(old[-count - 1]) <= _size_class(size):
                count += 1
            total = size + sum(old[len(old) - count : len(old) - absorbed])
            if count - absorbed < MERGE_WIDTH - 1 or total > MERGED_BYTES:
                break
            absorbed, size = count, total
        return absorbed

    def planned(self) -> Planned:
        look, known = self.look, self.known
        snapshot = self._snapshot()
        old = [chunk for chunk in self.tail if chunk not in self.fresh]
        skip = known.tail.index(old[0]) if old else 0
        keep = skip + len(old)
        change = Change(
            look.topic,
            look.partition,
            anew=self.anew,
            topic_id=self.topic_id,
            log_start_offset=min(look.log_start_offset, self.end),
            end_offset=self.end,
            high_watermark=min(max(look.high_watermark, 0), self.end),
            cleaned_offset=look.cleaned_offset,
            epochs=tuple(entry for entry in look.epochs if entry.offset <= self.end),
            gaps=tuple(gap_files.read_gaps(look.path)),
            removed=tuple(s.base_offset for s in known.segments if s not in self.segments),
            sealed=tuple(s for s in self.segments if s not in known.segments),
            chunks=tuple(self.fresh),
            snapshot=snapshot,
            skip=skip,
            keep=keep,
        )
        seen = look if self.is_all and not self.waits and not self._waits_for_snapshot else None
        after = Memory(seen, look.layout, self.bases, self.targets, self.topic_id, self.place, self._snapshot_file)
        is_new = self.anew or change.removed or change.sealed or change.chunks
        if not is_new and (skip, keep) == (0, len(known.tail)) and _marks_of(known) == _marks_of(change):
            return Planned(None, [], after)
        if not self.anew and change.epochs == known.epochs:
            change = replace(change, epochs=None)
        return Planned(change, self.data, after)

    def _snapshot(self) -> tuple[int, StoredFile] | None:
        """Return the snapshot at the base offset of the tail's first segment; None if missing or not yet uploaded."""
        self._waits_for_snapshot, self._snapshot_file = False, None
        base = self.tail[0].base_offset if self.tail else self.active
        file = source_partition.find_snapshot(self.look.path, base) if base else None
        if file is None:
            return None
        known = self.known.snapshot
        if known is None or known[0] != file.base_offset or not self._is_same_snapshot(known[1], file):
            sent = self.finished(Wanted(self.look, self.topic_id, snapshot=file))
            self._waits_for_snapshot = sent is None
            known = (file.base_offset, sent) if isinstance(sent, StoredFile) and sent.kind else None
        if known is not None:
            self._snapshot_file = file
        return known

    def _is_same_snapshot(self, known: StoredFile, file: SnapshotFile) -> bool:
        """Whether the backup has this snapshot: after a truncation there may be a different one at the same offset."""
        if file == self.memory.snapshot:
            return True
        path = source_partition.snapshot_path(self.look.path, file.base_offset)
        with suppress(StorageError):  # then it is uploaded, which reports files that cannot be read
            return file.size == known.length and source_partition.checksum(path, file.size) == known.crc
        return False


def _size_class(size: int) -> int:
    return size.bit_length() // 3


def _has(segment: SealedSegment, target: Target) -> bool:
    """Whether the segment was uploaded from this file."""
    log = segment.file(names.LOG)
    return segment[:4] == target[:4] and log is not None and log.length == target.size


def _overlap(segment: SealedSegment, target: Target) -> bool:
    return segment.base_offset < target.end_offset and target.base_offset < segment.end_offset


def _marks_of(of: PartitionState | Change) -> tuple[object, ...]:
    marks = of.log_start_offset, of.end_offset, of.high_watermark, of.cleaned_offset
    return (*marks, of.epochs, of.gaps, of.snapshot)
