"""A log seen from outside: what `mode="r"` pieces together from a directory that somebody else may be writing.

It takes no lock, maps nothing and changes no byte. Interrupted deletions and swaps are applied in memory. The end is
found by reading: the whole, sound batches of the last segment. The hardest rule: an unsound batch is the end of the
log only where it may be a write in progress, in the last segment at or above the recovery point; elsewhere it is a
`CorruptRecordError` (API.md 1).
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from kstore import _core, _scan, checkpoint, fs, names
from kstore.errors import CorruptRecordError, LogClosedError, StorageError
from kstore.reading import HEADER_BYTES, Piece, SegmentList, steadily
from kstore.recovery import leftovers, next_offset_of_file
from kstore.segment import Segment
from kstore.stability import Replayed, aborted_between
from kstore.txnindex import AbortedTxn

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.005
_UNSURE_NS = 50_000_000  # a directory changed so lately may change again within the same tick of its clock


class _Sight(NamedTuple):
    """The log as one look at the directory shows it: replaced as a whole, so that readers need no lock."""

    segments: SegmentList
    files: tuple[int, ...] = ()  # inode numbers of the segments' files
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    leftovers_ignored: tuple[str, ...] = ()
    # Of the last segment: one past its sound batches as offset and position, the size and file that were scanned.
    sound_offset: int = 0
    end_position: int = 0
    end_size: int = -1
    end_file: tuple[int, int] | None = None
    end_ns: int = -1  # when it had last been changed
    maximum: tuple[int, int] = (-1, 0)
    last_batch: tuple[int, bytes] | None = None
    fault: CorruptRecordError | None = None


class ReadOnlyView:
    """A partition directory as a reader of another process sees it; a `reading.View`. Safe from any thread."""

    def __init__(self, directory: str, partition: tuple[str, int]) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.guard = _core.Guard()
        self.max_decompressed_bytes: int | None = None
        self.closed = False
        self._sight = _Sight(SegmentList([]))
        self._listed_ns = -1
        self._marked_ns = -1  # when the root had last been changed as the checkpoints were read
        self._indexes_behind = False
        self._checkpoints: dict[str, tuple[tuple[int, int, int] | None, int]] = {}
        self._refreshing = threading.Lock()
        self._replayed = Replayed(directory)
        self.refresh()

    # `reading.View`

    @property
    def segments(self) -> SegmentList:
        """The segments in order, as of the last look."""
        return self._sight.segments

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._sight.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last sound batch."""
        return self._sight.log_end_offset

    @property
    def stable_end_offset(self) -> int:
        """The last stable offset (0.2), from snapshots and what follows them."""
        return steadily(self._stable_end, view=self)

    def _stable_end(self) -> int:
        sight = self._sight
        first, _, _ = self._look_at_producers(sight)
        end = sight.log_end_offset
        return end if first is None else max(min(first, end), sight.log_start_offset)

    def _look_at_producers(self, sight: _Sight) -> tuple[int | None, int, list[AbortedTxn]]:
        return self._replayed.catch_up(
            self.guard.version,
            sight.segments.items,
            self.readable_bytes,
            sight.log_start_offset,
            sight.log_end_offset,
            sight.recovery_point,
        )

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that reach into `[start_offset, end_offset)`, in the order of their ends."""
        sight = self._sight
        _, known_from, replayed = self._look_at_producers(sight)
        segments = sight.segments
        items = segments.items[max(segments.floor(start_offset), 0) : max(segments.floor(known_from) + 1, 0)]
        for segment in items[-1:]:
            segment.txn_index.refresh()  # the segment may have been the active one when it was last looked at
        found = [each for each in aborted_between(items, start_offset, end_offset) if each.last_offset < known_from]
        return found + [
            each for each in replayed if each.last_offset >= start_offset and each.first_offset < end_offset
        ]

    @property
    def recovery_point(self) -> int:
        """The offset below which everything was flushed."""
        return self._sight.recovery_point

    @property
    def durable_end_offset(self) -> int:
        """The end of what was flushed, as the writer has written it down."""
        sight = self._sight
        return min(sight.recovery_point, sight.log_end_offset)

    @property
    def leftovers_ignored(self) -> tuple[str, ...]:
        """Names of files that interrupted work left, and that are passed over."""
        return self._sight.leftovers_ignored

    def readable_bytes(self, segment: Segment) -> int:
        """Bytes of whole, sound batches in the segment's file; 0 for a segment that has gone."""
        sight = self._sight
        segments = sight.segments
        number = segments.floor(segment.base_offset)
        if number < 0 or segments.bases[number] != segment.base_offset:
            return 0
        return sight.end_position if number == len(segments.items) - 1 else segments.items[number].size_bytes

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """The segment's greatest timestamp and the offset that goes with it."""
        sight = self._sight
        following = sight.segments.after(segment.base_offset)
        if following is None:
            return sight.maximum
        if not segment.vouched:
            # No recovery has rebuilt an index above the recovery point since whatever wrote over it.
            if following.base_offset > sight.recovery_point and not segment.confirms(segment.size_bytes):
                scan = segment.scan(0, segment.size_bytes)
                segment.maximum = scan.max_timestamp, scan.max_timestamp_offset
            segment.vouched = True
        return segment.maximum

    def check_end(self) -> None:
        """Raise the fault that ends the log, where it is one."""
        fault = self._sight.fault
        if fault is not None:
            raise fault

    def doubt(self, error: CorruptRecordError) -> bool:
        """Whether the log ends before this fault: where a crash may have undone a write, the fault is the end.

        The last segment is scanned from its last index entry on; after a power cut the index may have known more.
        """
        with self._refreshing:
            sight = self._sight
            if not sight.segments.items:
                return False
            segment = sight.segments.items[-1]
            position = segment.border(max(sight.recovery_point, segment.base_offset), sight.end_position)
            if error.path != segment.path or not position <= error.position < sight.end_position:
                return False
            scan = segment.scan(position, sight.end_position)
            found = segment.base_offset if scan.next_offset is None else scan.next_offset
            if scan.end_position == sight.end_position or found < sight.recovery_point:
                return False
            maximum, last_batch = (-1, segment.base_offset), None
            whole = segment.scan(0, scan.end_position)
            if whole.batches:
                maximum = (whole.max_timestamp, whole.max_timestamp_offset)
                last_batch = (whole.last_position, segment.file.read(whole.last_position, HEADER_BYTES))
            doubted = sight._replace(
                end_position=scan.end_position,
                sound_offset=found,
                log_end_offset=max(found, sight.log_start_offset),
                maximum=maximum,
                last_batch=last_batch,
            )
            self._publish(sight, doubted)
            return True

    def check_piece(self, given: Piece | None, piece: Piece) -> None:
        """Raise `CorruptRecordError`, with the guard moved, unless `piece` follows `given` in one state of the log.

        Both files must be at their paths, the last batch of `given` must stand, and a file that is left for the next
        one must end where it was left: else what was read is from before and from after a truncation.
        """
        try:
            sound = piece.file is not None and fs.is_at(piece.file.fd, piece.segment.path)
            if sound and given is not None:
                file = given.file or given.segment.file
                sound = file.read(given.position, len(given.header)) == given.header
                if sound and given.segment is not piece.segment:
                    sound = fs.is_at(file.fd, given.segment.path) and file.size() == given.end
        except StorageError:
            sound = False
        if not sound:
            self._listed_ns = -1
            self.guard.version += 1
            raise CorruptRecordError(
                "the file was cut or replaced under its reader", path=piece.segment.path, position=piece.position
            )

    def check_durable(self, offset: int) -> None:
        """Raise `CorruptRecordError`, with the guard moved, if the recovery point in its file is below `offset` now.

        A truncation lowers it there before it cuts: as long as it stands, what was read below it is what was flushed.
        """
        if self._mark(checkpoint.RECOVERY_POINTS)[0] < offset:
            self.guard.version += 1
            raise CorruptRecordError(
                "records below the recovery point were cut under their reader", path=self.directory
            )

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        """Poll until the log ends above `offset`, with pauses that grow to 5 ms; False when `timeout` has passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            version = self.guard.version
            if not self.catch_up():
                self.refresh()
            end = self.durable_end_offset if durable else self.log_end_offset
            if end > offset or self.guard.version != version:
                return True
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def catch_up(self) -> bool:
        """Take in what was appended since the last look; False when a whole look is needed (`refresh`).

        One poll: three looks at times of modification, and a scan of what is new. The indexes are left behind. Only of
        a log whose last file was sound to its last byte: there every append makes it longer.
        """
        with self._refreshing:
            sight = self._sight
            if self.closed or sight.end_position <= 0 or sight.end_position != sight.end_size or sight.fault:
                return False
            segment = sight.segments.items[-1]
            try:
                if fs.stat(self.root).st_mtime_ns != self._marked_ns:
                    return False
                if fs.stat(self.directory).st_mtime_ns != self._listed_ns:
                    return False
                found = fs.stat(segment.path)
                if (found.st_dev, found.st_ino) != sight.end_file:
                    return False
                if found.st_size == sight.end_size and found.st_mtime_ns == sight.end_ns:
                    return True
                if not self._last_batch_stands(sight, found.st_size):
                    return False
                scan = segment.scan(sight.end_position, found.st_size, after=sight.sound_offset)
                if scan.end_position != found.st_size or scan.next_offset is None:
                    return False
                self._sight = self._grown(sight, segment, scan, found)
            except StorageError:
                return False
            self._indexes_behind = True
            return True

    @staticmethod
    def _grown(sight: _Sight, segment: Segment, scan: _scan.ScanResult, found: os.stat_result) -> _Sight:
        """The log with the sound batches behind its old end."""
        maximum = sight.maximum
        if scan.max_timestamp > maximum[0]:
            maximum = (scan.max_timestamp, scan.max_timestamp_offset)
        return sight._replace(
            log_end_offset=max(scan.next_offset, sight.log_start_offset),
            sound_offset=scan.next_offset,
            end_position=scan.end_position,
            end_size=found.st_size,
            end_ns=found.st_mtime_ns,
            maximum=maximum,
            last_batch=(scan.last_position, segment.file.read(scan.last_position, HEADER_BYTES)),
        )

    def overtaken(self, next_offset: int, seen_version: int, base_offset: int, crc: int) -> bool:
        """Whether the batch that a reader was given last is no longer in the log."""
        if base_offset < 0:
            return False
        sight = self._sight
        number = sight.segments.floor(next_offset - 1)
        if number < 0:
            # Deleted at the front, up to where the reader goes on: nothing is left to compare, and nothing is missed.
            return sight.segments.bases[:1] != (next_offset,)
        segment = sight.segments.items[number]
        place = segment.find_batch(next_offset - 1, self.readable_bytes(segment))
        if place is None or place.base_offset != base_offset:
            return True
        [batch] = _core.decode_batches(segment.file.read(place.position, place.size_bytes), check_crc=False)
        return batch.crc != crc

    def refresh(self) -> None:
        """Look at the directory again: segments, marks, and where the last segment ends now."""
        if self.closed:
            raise LogClosedError(f"{self.directory}: the log is closed")
        with self._refreshing:
            for _ in range(100):
                try:
                    self._refresh()
                    return
                except fs.MissingFileError:
                    # A file went between the listing and its opening: the writer rolls, swaps or deletes.
                    if not fs.exists(self.directory):
                        raise
                    self._listed_ns = -1
            self._refresh()

    def _refresh(self) -> None:
        while True:
            marked_ns = fs.stat(self.root).st_mtime_ns
            recovery_point, written = self._mark(checkpoint.RECOVERY_POINTS)
            old = self._sight
            sight = old._replace(recovery_point=recovery_point)
            changed_ns = fs.stat(self.directory).st_mtime_ns
            listed_ns = self._listed_ns
            if changed_ns != listed_ns:
                sight = self._list(sight)
                listed_ns = _if_sure(changed_ns)
            sight = self._find_end(sight)
            bases = sight.segments.bases
            start = max(self._mark(checkpoint.LOG_STARTS)[0], bases[0] if bases else 0)
            # Files that end below the start are those of a log that starts anew there.
            end = max(sight.sound_offset, start) if bases else start
            sight = sight._replace(log_start_offset=start, log_end_offset=end)
            fault = self._find_fault(sight)
            if fault is None or self._mark(checkpoint.RECOVERY_POINTS) == (recovery_point, written):
                break
            self._publish(old, sight._replace(fault=None))  # the writer has cut and gone on meanwhile
        self._publish(old, sight._replace(fault=fault))
        self._listed_ns = listed_ns
        self._marked_ns = _if_sure(marked_ns)

    def _publish(self, old: _Sight, sight: _Sight) -> None:
        kept = old.segments.items[: len(sight.segments.items)] == sight.segments.items[: len(old.segments.items)]
        gone = len(old.segments.items) > len(sight.segments.items) or not kept
        if gone or sight.log_start_offset != old.log_start_offset or sight.end_position < old.end_position:
            # Before and after: a reader that asks in between asks again.
            self.guard.version += 1
            self._sight = sight
            self.guard.version += 1
        else:
            self._sight = sight

    def _find_fault(self, sight: _Sight) -> CorruptRecordError | None:
        if not sight.segments.items or not sight.log_start_offset <= sight.sound_offset < sight.recovery_point:
            return None
        segment = sight.segments.items[-1]
        reason = segment.scan(sight.end_position, sight.end_size).reason
        return CorruptRecordError(
            f"{reason or 'the file ends'}; everything below the recovery point {sight.recovery_point} was "
            f"flushed, and the log is sound up to offset {sight.sound_offset}; see `kstore repair`",
            path=segment.path,
            position=sight.end_position,
        )

    def _mark(self, name: str) -> tuple[int, tuple[int, int, int] | None]:
        """This partition's line of one of the parent's checkpoint files, and what tells one writing of it from others.

        The file is read again when it is another.
        """
        path = os.path.join(self.root, name)
        try:
            found = fs.stat(path)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        except fs.MissingFileError:
            return 0, None
        known = self._checkpoints.get(name)
        if known is None or known[0] != identity:
            known = (identity, checkpoint.read_offsets(self.root, name).get(self.partition, 0))
            self._checkpoints[name] = known
        return known[1], identity

    def _list(self, sight: _Sight) -> _Sight:
        """List the directory, and look with new eyes at every segment that may not be the one that was known."""
        inodes = {entry.name: entry.inode() for entry in fs.scandir(self.directory)}
        found = leftovers(
            inodes, lambda name: next_offset_of_file(os.path.join(self.directory, name), names.parse_offset(name) or 0)
        )
        actual = {name: name for name in inodes if name not in set(found.remove)}
        for name, final in found.rename:
            actual.pop(name, None)
            actual[final] = name
        bases = sorted(
            parsed.offset
            for name in actual
            if (parsed := names.parse_file_name(name)) is not None and parsed.kind == names.LOG and not parsed.state
        )
        files = tuple(inodes[actual[names.log_name(base)]] for base in bases)
        old = sight.segments
        now = dict(zip(bases, files, strict=True))
        # From the first segment on that has gone, but for those deleted at the front, everything was truncated; and
        # so was the one before it, in place.
        cut = [base for base, file in zip(old.bases, sight.files, strict=True) if now.get(base) != file]
        cut = [base for base in cut if bases and base >= bases[0]]
        anew = max((base for base in old.bases if not cut or base < cut[0]), default=-1)
        known = dict(zip(old.bases, old.items, strict=True))
        items = []
        for base in bases:
            segment = known.get(base)
            same = segment is not None and segment.path == os.path.join(self.directory, actual[names.log_name(base)])
            # The active one keeps what is known of it for as long as it is the active one.
            if segment is None or not same or base > anew or (base == anew and (cut or base != bases[-1])):
                segment = Segment(self.directory, base, max_index_bytes=0, writable=False, actual=actual)
            items.append(segment)
        sight = sight._replace(segments=SegmentList(items), files=files, leftovers_ignored=found.remove)
        if not items or not old.items or items[-1] is not old.items[-1]:
            sight = sight._replace(end_position=0, end_size=-1, end_file=None, last_batch=None)
        return sight

    def _find_end(self, sight: _Sight) -> _Sight:
        """Scan what has come to the last segment since the last look."""
        if not sight.segments.items:
            return sight
        segment = sight.segments.items[-1]
        stat = fs.stat(segment.path)
        identity = (stat.st_dev, stat.st_ino)
        if sight.end_size >= 0 and (identity != sight.end_file or not self._last_batch_stands(sight, stat.st_size)):
            # The tail was cut or the file is another: look at it with new eyes.
            segment = segment.anew()
            segments = SegmentList([*sight.segments.items[:-1], segment])
            sight = sight._replace(segments=segments, end_position=0, end_size=-1, last_batch=None)
        if self._indexes_behind:
            segment.offset_index.refresh()
            segment.time_index.refresh()
            self._indexes_behind = False
        if sight.end_position == stat.st_size == sight.end_size:
            return sight if sight.end_ns == stat.st_mtime_ns else sight._replace(end_ns=stat.st_mtime_ns)
        segment.offset_index.refresh()
        segment.time_index.refresh()
        position, maximum, scan = sight.end_position, sight.maximum, None
        if sight.end_size < 0:
            position = segment.position_of(segment.offset_index.last[0])
            maximum = segment.time_index.last if position else (-1, segment.base_offset)
            scan = segment.scan(position, stat.st_size)
            if position and (scan.end_position == position or not self._fits(sight, segment, scan)):
                position, maximum = 0, (-1, segment.base_offset)
                scan = None
        if scan is None:
            scan = segment.scan(position, stat.st_size, after=sight.sound_offset if position else None)
        sound_offset, last_batch = sight.sound_offset, sight.last_batch
        if scan.end_position > position:
            assert scan.next_offset is not None
            sound_offset = scan.next_offset
            if scan.max_timestamp > maximum[0]:
                maximum = (scan.max_timestamp, scan.max_timestamp_offset)
            last_batch = (scan.last_position, segment.file.read(scan.last_position, HEADER_BYTES))
        elif position == 0:
            sound_offset = segment.base_offset
        return sight._replace(
            sound_offset=sound_offset,
            end_position=scan.end_position,
            end_size=stat.st_size,
            end_file=identity,
            end_ns=stat.st_mtime_ns,
            maximum=maximum,
            last_batch=last_batch,
        )

    @staticmethod
    def _fits(sight: _Sight, segment: Segment, scan: _scan.ScanResult) -> bool:
        """Whether the last entry of the time index is in the log, and is what the log says there."""
        next_offset: int = scan.next_offset
        if next_offset <= sight.recovery_point:
            return True
        return segment.time_index.last[1] < next_offset and segment.confirms(scan.end_position)

    def _last_batch_stands(self, sight: _Sight, size: int) -> bool:
        if size < sight.end_position:
            return False
        if sight.last_batch is None:
            return True
        position, header = sight.last_batch
        try:
            return sight.segments.items[-1].file.read(position, len(header)) == header
        except StorageError:
            return False

    def close(self) -> None:
        """Let go of the files."""
        self.closed = True
        for segment in self.segments.items:
            segment.close()
        self.guard.version += 1


def _if_sure(changed_ns: int) -> int:
    """A directory's time of modification, or -1 as long as another change might have the same."""
    return changed_ns if time.time_ns() - changed_ns > _UNSURE_NS else -1
