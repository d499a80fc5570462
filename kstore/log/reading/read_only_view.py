"""`ReadOnlyView`: a log in mode "r", whose directory another process may be writing.

The view takes no lock, maps no file and changes no byte; interrupted deletions and swaps are applied in memory. The log
ends after the whole, sound batches of the last segment. Invariant: an unsound batch ends the log only in the last
segment at or above the recovery point, because there it may be a write in progress; elsewhere it raises
`CorruptRecordError`.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple

from kstore import _core
from kstore._core import ReaderPosition
from kstore.base.times import is_settled
from kstore.codec import header
from kstore.disk import fs, mounts, watches
from kstore.errors import CorruptRecordError, StorageError, closed
from kstore.files import checkpoint, names
from kstore.files.epochs import LeaderEpochCache
from kstore.files.txnindex import AbortedTxn
from kstore.log.reading import truncation_check
from kstore.log.reading._new_batches import NewBatches, new_batches
from kstore.log.reading._point_reads import PointReads
from kstore.log.reading.segment_listing import list_segments
from kstore.log.reading.transaction_replay import Replayed, aborted_between
from kstore.log.reading.view import HEADER_BYTES, FreshPiece, ReadPiece, SegmentList, steadily
from kstore.log.segments.producer_state import ProducerInfo
from kstore.log.segments.recovery import start_above_end
from kstore.log.segments.segment import Segment, below_recovery_point

FRESH_SECONDS = 0.001  # later the file may have changed: the bytes are read again


class Marks(NamedTuple):
    """This partition's entries in the root's checkpoint files, and the identities of the files."""

    # After a clean shutdown (SEMANTICS 13.5) this is the high watermark if that is higher.
    recovery_point: int = 0
    log_start: int = 0
    files: tuple[object, ...] = ()


class DirectoryState(NamedTuple):
    """The state of the log at the last refresh; replaced as a whole, so that readers need no lock."""

    segments: SegmentList
    files: tuple[int, ...] = ()  # inode numbers of the segments' files
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    leftovers_ignored: tuple[str, ...] = ()
    # The last segment: the end of its sound batches as offset and position, and the size and file that were scanned.
    sound_offset: int = 0
    end_position: int = 0
    end_size: int = -1
    end_file: tuple[int, int] | None = None
    end_ns: int = -1  # the file's time of modification
    end_reason: str | None = None  # why no sound batch follows in the last segment
    maximum: tuple[int, int] = (-1, 0)
    last_batch: tuple[int, bytes] | None = None
    second_last: truncation_check.FileState | None = None  # the file of the segment before the last
    fault: CorruptRecordError | None = None
    cut: int | None = None  # records from this offset on may have been cut since the previous refresh


class ReadOnlyView:
    """A `View` of a partition directory that another process may be writing. Thread-safe."""

    is_own = False

    def __init__(self, directory: str, partition: tuple[str, int]) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.watched_directories = (directory, self.root)
        """A change of the log changes one of these: its own directory, and the root with the checkpoint files."""
        self.guard = _core.Guard()
        self.points = PointReads(directory, self.root, is_own=False)
        self._is_mounted = mounts.is_mounted(directory)
        self._names = os.fsencode(self.root), os.fsencode(directory)
        self._fresh: FreshPiece | None = None
        self.max_decompressed_bytes: int | None = None
        self.closed = False
        self.opened_in = 0  # in a forked child: the process that opened the view
        self._state = DirectoryState(SegmentList([]))
        self._listed_ns = -1
        self._marks = Marks()
        self._marked_ns = -1  # the root's time of modification when the marks were read
        self._indexes_behind = False
        self._refreshing = threading.Lock()
        self._cuts: list[tuple[int, int]] = []  # (the guard's version, the lowest offset that may have been cut)
        self._replayed = Replayed(directory)
        self.refresh()

    # The methods of `View`; its docstrings say what they return.

    @property
    def segments(self) -> SegmentList:
        return self._state.segments

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._state.log_end_offset

    @property
    def stable_end_offset(self) -> int:
        """The last stable offset (SEMANTICS 0.2), computed from a snapshot and the batches after it."""
        return steadily(lambda: self._look_at_producers(self._state)[0], view=self)

    def decided_end_offset(self, timeout: float | None = None) -> int:
        return self.stable_end_offset

    def open_transactions(self) -> list[tuple[int, int]]:
        return steadily(lambda: self._caught_up().open_transactions(), view=self)

    def producer_states(self) -> list[ProducerInfo]:
        """Return the producers in the order of their ids, including expired ones that the writer has forgotten."""
        return steadily(lambda: self._caught_up().producer_states(), view=self)

    def last_records(self) -> dict[int, tuple[int, int]]:
        return self._caught_up().last_records()

    def _caught_up(self) -> Replayed:
        self._look_at_producers(self._state)
        return self._replayed

    def _look_at_producers(self, state: DirectoryState) -> tuple[int, int, list[AbortedTxn]]:
        return self._replayed.catch_up(
            self.guard.version,
            state.segments.items,
            self.readable_bytes,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            recovery_point=state.recovery_point,
        )

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        state = self._state
        _, replayed_from, replayed = self._look_at_producers(state)
        segments = state.segments
        items = segments.items[max(segments.floor(start_offset), 0) : max(segments.floor(replayed_from) + 1, 0)]
        for segment in items[-1:]:
            segment.txn_index.refresh()  # it may have been the active segment when the index was read
        indexed = [txn for txn in aborted_between(items, start_offset, end_offset) if txn.last_offset < replayed_from]
        return indexed + [txn for txn in replayed if txn.last_offset >= start_offset and txn.first_offset < end_offset]

    @property
    def data_end_offset(self) -> int:
        """One past the last sound batch, even if the log starts above that."""
        return self._state.sound_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which everything was flushed."""
        return self._state.recovery_point

    @property
    def durable_end_offset(self) -> int:
        """The recovery point in the checkpoint file, but at most the log end."""
        state = self._state
        return min(state.recovery_point, state.log_end_offset)

    @property
    def leftovers_ignored(self) -> tuple[str, ...]:
        """Names of files that are left over from interrupted deletions and swaps; the view ignores them."""
        return self._state.leftovers_ignored

    def readable_bytes(self, segment: Segment) -> int:
        """Return the bytes of whole, sound batches in the segment's file; 0 if the segment is gone."""
        state = self._state
        segments = state.segments
        number = segments.floor(segment.base_offset)
        if number < 0 or segments.bases[number] != segment.base_offset:
            return 0
        return state.end_position if number == len(segments.items) - 1 else segments.items[number].size_bytes

    def maximum(self, segment: Segment) -> tuple[int, int]:
        state = self._state
        if state.segments.after(segment.base_offset) is None:
            return state.maximum
        return segment.maximum

    def check_end(self) -> None:
        fault = self._state.fault
        if fault is not None:
            raise fault

    def is_end_of_log(self, error: CorruptRecordError) -> bool:
        """Scan the last segment again and return whether the log now ends before this fault, as after a lost write.

        The scan starts at the index entry before the recovery point, because after a power cut later entries may point
        past the last batch.
        """
        with self._refreshing:
            state = self._state
            if not state.segments.items:
                return False
            segment = state.segments.items[-1]
            position, least = segment.start(max(state.recovery_point, segment.base_offset), state.end_position)
            if error.path != segment.path or not position <= error.position < state.end_position:
                return False
            scan = segment.scan(position, state.end_position, after=least)
            end_offset = segment.base_offset if scan.next_offset is None else scan.next_offset
            if scan.end_position == state.end_position or end_offset < state.recovery_point:
                return False
            maximum, last_batch = (-1, segment.base_offset), None
            whole = segment.scan(0, scan.end_position)
            if whole.batches:
                maximum = (whole.max_timestamp, whole.max_timestamp_offset)
                try:
                    last_batch = _header_at(segment, whole.last_position)
                except fs.MissingFileError:  # cut again: the reader must check again
                    self.guard.version += 1
                    return True
            shortened = state._replace(
                end_position=scan.end_position,
                end_reason=scan.reason,
                sound_offset=end_offset,
                log_end_offset=max(end_offset, state.log_start_offset),
                maximum=maximum,
                last_batch=last_batch,
                cut=end_offset,
            )
            self._publish(state, shortened)
            return True

    def check_piece(self, previous: ReadPiece | None, piece: ReadPiece) -> None:
        """Change the guard's version and raise `CorruptRecordError` unless both pieces are of one state of the log.

        Both files must be at their paths, and the last batch of `previous` must be in its file. If `piece` is of the
        next segment, the file of `previous` must end directly after that batch. Otherwise a truncation or a cleaning
        came between the two reads.
        """
        try:
            sound = piece.file is not None and fs.is_at(piece.file.fd, piece.segment.path)
            if sound and previous is not None:
                file = previous.file or previous.segment.file
                sound = file.read(previous.position, len(previous.header)) == previous.header
                if sound and previous.segment is not piece.segment:
                    sound = fs.is_at(file.fd, previous.segment.path) and file.size() == previous.end
        except StorageError:
            sound = False
        if not sound:
            self._listed_ns = -1
            self.guard.version += 1
            raise CorruptRecordError(
                "the file was cut or replaced under its reader", path=piece.segment.path, position=piece.position
            )

    def will_read(self, start_offset: int, end_offset: int) -> None:
        """Do nothing: the system reads ahead."""

    def check_durable(self, offset: int) -> None:
        """Change the guard's version and raise `CorruptRecordError` if the recovery point is now below `offset`.

        A truncation lowers the recovery point in the checkpoint file before it cuts. So if it is not below `offset`,
        the bytes that were read below `offset` were flushed.
        """
        if self._mark(checkpoint.RECOVERY_POINTS)[0] < offset:
            self._marked_ns = -1
            self.guard.version += 1
            raise CorruptRecordError(
                "records below the recovery point were cut under their reader", path=self.directory
            )

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        version = self.guard.version

        def has_news() -> bool:
            if not self.catch_up():
                self.refresh()
            end = self.durable_end_offset if durable else self.log_end_offset
            return end > offset or self.guard.version != version

        return watches.wait(self.watched_directories, has_news, timeout)

    def catch_up(self) -> bool:
        """Add the batches appended since the last call; return False if a `refresh` is needed instead.

        Costs five system calls; the indexes are read later. Works only if the last file was sound to its last byte,
        because then every append makes the file longer.
        """
        with self._refreshing:
            state = self._state
            is_sound = 0 < state.end_position == state.end_size and state.fault is None
            if self.closed or self._is_mounted or not is_sound:
                return False
            segment = state.segments.items[-1]
            try:
                file = segment.file  # stays open during the call
            except StorageError:
                return False
            names, times = (*self._names, os.fsencode(segment.path)), (self._marked_ns, self._listed_ns)
            new = new_batches(*names, file.fd, *times, state, segment.base_offset)
            if isinstance(new, NewBatches):
                self._take(state, segment, new)
            return new is not False

    def _take(self, state: DirectoryState, segment: Segment, new: NewBatches) -> None:
        """Publish the state with these batches, and keep their bytes for the reader that looked."""
        data, position, last_position, next_offset, maximum, changed_ns = new
        end, at = position + len(data), last_position - position
        last_batch = (last_position, data[at : at + HEADER_BYTES])
        self._state = state._replace(
            log_end_offset=max(next_offset, state.log_start_offset),
            sound_offset=next_offset,
            end_position=end,
            end_size=end,
            end_ns=changed_ns,
            end_reason=None,
            maximum=maximum,
            last_batch=last_batch,
        )
        self._indexes_behind = True
        assert state.last_batch is not None
        records = memoryview(data)[state.end_position - position :]
        self._fresh = FreshPiece(segment, state.last_batch, records, last_batch, end, next_offset, monotonic())

    @property
    def has_fresh(self) -> bool:
        return self._fresh is not None

    def take_fresh(self, previous: ReadPiece) -> FreshPiece | None:
        fresh, self._fresh = self._fresh, None
        if (
            fresh is not None
            and previous.segment is fresh.segment
            and fresh.behind == (previous.position, previous.header)
            and monotonic() - fresh.read_at < FRESH_SECONDS
        ):
            return fresh
        return None

    def has_overtaken(self, position: ReaderPosition) -> bool:
        """Return whether a truncation cut a reader's last batch; False if a cleaning changed or removed it."""
        next_offset, seen_version, base_offset, crc = position
        if base_offset < 0:
            return False
        state = self._state
        number = state.segments.floor(next_offset - 1)
        if number < 0:
            # The log was deleted up to the reader's offset: no batch is left to compare, and the reader missed none.
            return state.segments.bases[:1] != (next_offset,)
        segment = state.segments.items[number]
        place = segment.find_batch(next_offset - 1, self.readable_bytes(segment))
        if place is not None:
            [batch] = _core.decode_batches(segment.file.read(place.position, place.size_bytes), check_crc=False)
            if batch.crc == crc and base_offset in (place.base_offset, place.last_offset):
                return False
        if segment.is_active:
            return True  # the active segment is never cleaned
        return self._was_cut(next_offset, seen_version)

    def may_have_cut(self, offset: int, seen_version: int) -> bool:
        self.refresh()
        return self._was_cut(offset, seen_version)

    def _was_cut(self, offset: int, seen_version: int) -> bool:
        return any(version > seen_version and cut < offset for version, cut in self._cuts)

    def refresh(self) -> None:
        """Read the directory again: the segments, the marks, and the end of the last segment."""
        if self.closed:
            raise closed(f"{self.directory}: the log", self.opened_in)
        state = self._state
        is_sound = state.end_position == state.end_size and state.fault is None and not self._indexes_behind
        if is_sound and self.points.stands(self, state):
            return
        with self._refreshing:
            for _ in range(100):
                try:
                    self._refresh()
                    return
                except fs.MissingFileError:
                    # A file disappeared between the listing and its opening: the writer rolls, swaps or deletes.
                    if not fs.exists(self.directory):
                        raise
                    self._listed_ns = -1
            self._refresh()

    def _refresh(self) -> None:
        marked_ns = fs.stat(self.root).st_mtime_ns
        # Each write of a checkpoint file changes the root's time of modification.
        marks = self._marks if marked_ns == self._marked_ns else self._read_marks()
        while True:
            old = self._state
            state = old._replace(recovery_point=marks.recovery_point)
            changed_ns = fs.stat(self.directory).st_mtime_ns
            listed_ns = self._listed_ns
            if changed_ns != listed_ns:
                state = self._list(state)
                listed_ns = _if_sure(changed_ns)
            state = self._find_end(state, marks.log_start)
            bases = state.segments.bases
            if state.cut is None and bases and old.segments.items and state.sound_offset < old.sound_offset:
                kept = truncation_check.last_kept(self._before(old), bases, state.files)
                state = state._replace(cut=old.segments.bases[kept] if kept >= 0 else -1)
            start = max(marks.log_start, bases[0] if bases else 0)
            # If the files end below the log start, the log is empty at its start.
            end = max(state.sound_offset, start) if bases else start
            state = state._replace(log_start_offset=start, log_end_offset=end)
            fault = self._find_fault(state)
            if fault is None:
                break
            marked_ns = fs.stat(self.root).st_mtime_ns
            before, marks = marks, self._read_marks()
            if marks == before:
                break
            self._publish(old, state._replace(fault=None))  # the writer changed the marks: read again
        if state.segments is not old.segments:
            _hold_replaced(old.segments, state.segments)
        self._publish(old, state._replace(fault=fault))
        self._marks = marks
        self._listed_ns = listed_ns
        self._marked_ns = _if_sure(marked_ns)

    def _publish(self, old: DirectoryState, state: DirectoryState) -> None:
        kept = old.segments.items[: len(state.segments.items)] == state.segments.items[: len(old.segments.items)]
        gone = len(old.segments.items) > len(state.segments.items) or not kept
        shrunk = state.end_position < old.end_position or state.cut is not None
        if gone or shrunk or state.log_start_offset != old.log_start_offset:
            # The version changes before and after: a reader that checks in between must check again.
            self.guard.version += 1
            if state.cut is not None:  # this cut includes the earlier cuts at or above it
                lower = [cut for cut in self._cuts if cut[1] < state.cut]
                self._cuts = [*lower, (self.guard.version + 1, state.cut)]
            self._state = state._replace(cut=None)
            self.guard.version += 1
        else:
            self._state = state

    def _find_fault(self, state: DirectoryState) -> CorruptRecordError | None:
        point, start = state.recovery_point, state.log_start_offset
        if not state.segments.items:
            return None if point <= start else below_recovery_point("no segment is here", start, point, self.directory)
        segment, end = state.segments.items[-1], state.sound_offset
        if end < point:
            return below_recovery_point(
                state.end_reason or "the file ends", end, point, segment.path, state.end_position
            )
        if end < start and point > state.segments.bases[0]:
            return start_above_end(start, end, segment.path)
        return None

    def _read_marks(self) -> Marks:
        recovery_point, points_file = self._mark(checkpoint.RECOVERY_POINTS)
        log_start, starts_file = self._mark(checkpoint.LOG_STARTS)
        was_shut_down = fs.exists(os.path.join(self.root, checkpoint.CLEAN_MARKER))
        if was_shut_down:
            high_watermark, _ = self._mark(checkpoint.HIGH_WATERMARKS)
            if high_watermark > log_start:
                recovery_point = max(recovery_point, high_watermark)
        return Marks(recovery_point, log_start, (points_file, starts_file, was_shut_down))

    def _mark(self, name: str) -> tuple[int, tuple[int, int, int] | None]:
        """Return this partition's offset in one of the root's checkpoint files, and the identity of the file."""
        path = os.path.join(self.root, name)
        try:
            stat = fs.stat(path)
            identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except fs.MissingFileError:
            return 0, None
        return checkpoint.read_offset(self.root, name, self.partition) or 0, identity

    def _list(self, state: DirectoryState) -> DirectoryState:
        """List the directory; a segment whose file may have changed gets a new `Segment`."""
        now, old = list_segments(self.directory), state.segments
        cut = None
        if old.items:
            cut = truncation_check.cut_between(
                self._before(state),
                now.bases,
                now.files,
                last_stands=lambda: self._last_batch_stands(state, old.items[-1].file.size()),
                state_of=now.state,
                epochs=self._read_epochs,
            )
        # On some file systems the inode numbers of a listing differ from those of `stat`.
        is_told = bool(now.bases) and fs.stat(now.paths[-1]).st_ino == now.files[-1]
        # The segment that was cut in place and all segments after it get new objects.
        standing = len(now.bases) if cut is None else max(bisect_right(now.bases, cut) - 1, 0)
        before = {base: (file, item) for base, file, item in zip(old.bases, state.files, old.items, strict=True)}
        items = []
        for number, (base, file, path) in enumerate(zip(now.bases, now.files, now.paths, strict=True)):
            known, segment = before.get(base, (None, None))
            # The active segment keeps its object until it is rolled.
            was_rolled = old.bases[-1:] == (base,) and base != now.bases[-1]
            if segment is None or known != file or segment.path != path or was_rolled or number >= standing:
                segment = self._make_segment(base, now.actual)
                segment.inode = file if is_told else None
            segment.is_active = base == now.bases[-1]
            items.append(segment)
        segments = SegmentList(items)
        segments.keep_maxima(old)
        state = state._replace(
            segments=segments,
            files=now.files,
            leftovers_ignored=now.passed_over,
            second_last=now.state(now.bases[-2]) if len(items) > 1 else None,
            cut=cut,
        )
        if not items or not old.items or items[-1] is not old.items[-1]:
            state = state._replace(end_position=0, end_size=-1, end_file=None, last_batch=None)
        return state

    def _make_segment(self, base: int, actual: Mapping[str, str]) -> Segment:
        return Segment(self.directory, base, max_index_bytes=0, writable=False, actual=actual)

    def _read_epochs(self) -> LeaderEpochCache:
        return LeaderEpochCache.open(os.path.join(self.directory, names.LEADER_EPOCH_CHECKPOINT), create=False)

    @staticmethod
    def _before(state: DirectoryState) -> truncation_check.Before:
        """Return the argument of `cut_between` for a state that has segments."""
        epoch = -1
        if state.last_batch is not None and header.MAGIC.of(state.last_batch[1]) == 2:
            epoch = header.LEADER_EPOCH.of(state.last_batch[1])
        return truncation_check.Before(
            state.segments.bases, state.files, state.sound_offset, epoch, state.end_ns, state.second_last
        )

    def _find_end(self, state: DirectoryState, log_start: int) -> DirectoryState:
        """Scan the bytes that were appended to the last segment since the last refresh."""
        if not state.segments.items:
            return state
        segment = state.segments.items[-1]
        stat = fs.stat(segment.path)
        identity = (stat.st_dev, stat.st_ino)
        if state.end_size >= 0 and identity != state.end_file:
            raise fs.MissingFileError(errno.ENOENT, "another file has its name now", segment.path)
        if state.end_size >= 0 and not self._last_batch_stands(state, stat.st_size):
            # The end of the file was cut: forget the state of the last segment.
            segment = segment.anew()
            segment.is_active = True
            segments = state.segments.ending_in(segment, replaces=True)
            cut = segment.base_offset
            state = state._replace(segments=segments, end_position=0, end_size=-1, last_batch=None, cut=cut)
        if self._indexes_behind:
            segment.offset_index.refresh()
            segment.time_index.refresh()
            self._indexes_behind = False
        if state.end_position == stat.st_size == state.end_size:
            return state if state.end_ns == stat.st_mtime_ns else state._replace(end_ns=stat.st_mtime_ns)
        segment.offset_index.refresh()
        segment.time_index.refresh()
        position, maximum, scan, after = state.end_position, state.maximum, None, state.sound_offset
        # Raising the log start also raises the recovery point, which may then lie in a gap.
        flushed_end = state.recovery_point if state.recovery_point > log_start else -1
        if state.end_size < 0:
            position, after = segment.start(segment.offset_index.last[0], stat.st_size)
            scan = segment.scan_flushed(position, stat.st_size, flushed_end, after=after)
            maximum = -1, segment.base_offset
            if position and scan.end_position > position:
                maximum = segment.maximum_below(position)
            elif position:
                position, scan = 0, segment.scan_flushed(0, stat.st_size, flushed_end)
        if scan is None:
            scan = segment.scan_flushed(position, stat.st_size, flushed_end, after=after if position else None)
        sound_offset, last_batch = state.sound_offset, state.last_batch
        if scan.end_position > position:
            assert scan.next_offset is not None
            sound_offset = scan.next_offset
            if scan.max_timestamp > maximum[0]:
                maximum = (scan.max_timestamp, scan.max_timestamp_offset)
            last_batch = _header_at(segment, scan.last_position)
        elif position == 0:
            sound_offset = segment.base_offset
        return state._replace(
            sound_offset=sound_offset,
            end_position=scan.end_position,
            end_size=stat.st_size,
            end_file=identity,
            end_ns=stat.st_mtime_ns,
            end_reason=scan.reason,
            maximum=maximum,
            last_batch=last_batch,
        )

    def _last_batch_stands(self, state: DirectoryState, size: int) -> bool:
        if size < state.end_position:
            return False
        if state.last_batch is None:
            return True
        position, header = state.last_batch
        try:
            return state.segments.items[-1].file.read(position, len(header)) == header
        except StorageError:
            return False

    def close(self) -> None:
        self.closed = True
        for segment in self.segments.items:
            segment.close()
        self.guard.version += 1
        watches.wake(self.directory)


def _hold_replaced(old: SegmentList, new: SegmentList) -> None:
    """Open the files that may have replaced others in a cleaning, and the first segment's file if it is new.

    While a file is open, its inode number is not used again. So a later file with the same base offset is not mistaken
    for this file.
    """
    known, bases = set(old.items), set(old.bases)
    for segment in new.items:
        may_be_replaced = segment.base_offset in bases or segment is new.items[0]
        if may_be_replaced and segment.inode is not None and segment not in known:
            _ = segment.file


def _header_at(segment: Segment, position: int) -> tuple[int, bytes]:
    """Return a batch's position and the start of its header, which together identify the batch.

    Raises `MissingFileError` if the file was cut since the batch was found: the caller must refresh again.
    """
    data = segment.file.read(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        raise fs.MissingFileError(errno.ENOENT, "the file was cut while it was read", segment.path)
    return position, data


def _if_sure(changed_ns: int) -> int:
    """Return a directory's time of modification, or -1 if a later change could have the same time."""
    return changed_ns if is_settled(changed_ns) else -1
