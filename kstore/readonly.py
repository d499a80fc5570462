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

from kstore import _core, _scan, checkpoint, fs, names
from kstore.errors import CorruptRecordError, LogClosedError, StorageError
from kstore.reading import SegmentList
from kstore.recovery import leftovers, next_offset_of_file
from kstore.segment import Segment

FIRST_PAUSE = 0.0005
LONGEST_PAUSE = 0.01
_HEADER_BYTES = 21  # of a batch of any format: offset, size, epoch or CRC, magic, CRC
_UNSURE_NS = 50_000_000  # a directory changed so lately may change again within the same tick of its clock


class ReadOnlyView:
    """A partition directory as a reader of another process sees it; a `reading.View`. Safe from any thread."""

    def __init__(self, directory: str, partition: tuple[str, int]) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.guard = _core.Guard()
        self.max_decompressed_bytes: int | None = None
        self.closed = False
        self.segments = SegmentList([])
        self.log_start_offset = 0
        self.recovery_point = 0
        self.log_end_offset = 0
        self._data_end = 0
        self.leftovers_ignored: tuple[str, ...] = ()
        self._fault: CorruptRecordError | None = None
        self._end_position = 0
        self._end_size = -1
        self._end_file: tuple[int, int] | None = None
        self._maximum = (-1, 0)
        self._vouched: set[int] = set()
        self._last_batch: tuple[int, bytes] | None = None
        self._listed_ns = -1
        self._checkpoints: dict[str, tuple[tuple[int, int, int] | None, int]] = {}
        self._refreshing = threading.Lock()
        self.refresh()

    # `reading.View`

    def readable_bytes(self, segment: Segment) -> int:
        """Bytes of whole, sound batches in the segment's file; 0 for a segment that has gone."""
        segments = self.segments
        number = segments.floor(segment.base_offset)
        if number < 0 or segments.bases[number] != segment.base_offset:
            return 0
        return self._end_position if number == len(segments.items) - 1 else segments.items[number].size_bytes

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """The segment's greatest timestamp and the offset that goes with it."""
        following = self.segments.after(segment.base_offset)
        if following is None:
            return self._maximum
        if segment.base_offset not in self._vouched:
            # No recovery has rebuilt an index above the recovery point since whatever wrote over it.
            if following.base_offset > self.recovery_point and not segment.confirms(segment.size_bytes):
                scan = segment.scan(0, segment.size_bytes)
                segment.maximum = scan.max_timestamp, scan.max_timestamp_offset
            self._vouched.add(segment.base_offset)
        return segment.maximum

    def check_end(self) -> None:
        """Raise the fault that ends the log, where it is one."""
        if self._fault is not None:
            raise self._fault

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Poll until the log ends above `offset`, with pauses that grow to 10 ms; False when `timeout` has passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            version = self.guard.version
            self.refresh()
            if self.log_end_offset > offset or self.guard.version != version:
                return True
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def overtaken(self, next_offset: int, seen_version: int, base_offset: int, crc: int) -> bool:
        """Whether the batch that a reader was given last is no longer in the log."""
        if base_offset < 0:
            return False
        number = self.segments.floor(next_offset - 1)
        if number < 0:
            return True
        segment = self.segments.items[number]
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
        self._read_marks()
        changed_ns = fs.stat(self.directory).st_mtime_ns
        if changed_ns != self._listed_ns:
            self._list()
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > _UNSURE_NS else -1
        start = max(self._mark(checkpoint.LOG_STARTS), self.segments.bases[0] if self.segments.bases else 0)
        if start != self.log_start_offset:
            self.log_start_offset = start
            self.guard.version += 1
        self._find_end()
        # A log that ends below its start is empty there, as its next writer will have it (8.11).
        self.log_end_offset = max(self._data_end, start) if self.segments.items else start

    def _read_marks(self) -> None:
        self.recovery_point = self._mark(checkpoint.RECOVERY_POINTS)

    def _mark(self, name: str) -> int:
        """This partition's line of one of the parent's checkpoint files, read again when the file is another."""
        path = os.path.join(self.root, name)
        try:
            found = fs.stat(path)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        except fs.MissingFileError:
            return 0
        known = self._checkpoints.get(name)
        if known is None or known[0] != identity:
            known = (identity, checkpoint.read_offsets(self.root, name).get(self.partition, 0))
            self._checkpoints[name] = known
        return known[1]

    def _list(self) -> None:
        entries = fs.listdir(self.directory)
        found = leftovers(
            entries, lambda name: next_offset_of_file(os.path.join(self.directory, name), names.parse_offset(name) or 0)
        )
        self.leftovers_ignored = found.remove
        actual = {name: name for name in entries if name not in set(found.remove)}
        for name, final in found.rename:
            actual.pop(name, None)
            actual[final] = name
        bases = sorted(
            parsed.offset
            for name in actual
            if (parsed := names.parse_file_name(name)) is not None and parsed.kind == names.LOG and not parsed.state
        )
        old = dict(zip(self.segments.bases, self.segments.items, strict=True))
        was_active = self.segments.bases[-1] if old else -1
        if was_active not in bases:
            old.clear()  # cut, or begun anew: what has an old name may be another file
        items = []
        for base in bases:
            segment = old.get(base)
            if segment is None or segment.path != os.path.join(self.directory, actual[names.log_name(base)]):
                segment = Segment(self.directory, base, max_index_bytes=0, writable=False, actual=actual)
            items.append(segment)
        if self.segments.items and (not bases or bases[-1] != was_active):
            # What was the active segment is sealed now: its size and times are to be read anew.
            if was_active in bases:
                items[bases.index(was_active)] = Segment(
                    self.directory, was_active, max_index_bytes=0, writable=False, actual=actual
                )
            self._end_position, self._end_size, self._last_batch = 0, -1, None
        if not set(self.segments.bases) <= set(bases):
            self.guard.version += 1
        self._vouched.clear()
        self.segments = SegmentList(items)

    def _find_end(self) -> None:
        """Scan what has come to the last segment since the last look."""
        if not self.segments.items:
            return
        segment = self.segments.items[-1]
        stat = fs.stat(segment.path)
        identity = (stat.st_dev, stat.st_ino)
        if self._end_size >= 0 and (identity != self._end_file or not self._last_batch_stands(segment, stat.st_size)):
            segment = self._start_over()
        self._end_file = identity
        if self._end_position == stat.st_size == self._end_size and self._fault is None:
            return
        segment.offset_index.refresh()
        segment.time_index.refresh()
        position, scan = self._end_position, None
        if self._end_size < 0:
            position = segment.position_of(segment.offset_index.last[0])
            self._maximum = segment.time_index.last if position else (-1, segment.base_offset)
            scan = segment.scan(position, stat.st_size)
            if position and (scan.end_position == position or not self._fits(segment, scan)):
                position, self._maximum = 0, (-1, segment.base_offset)
                scan = None
        if scan is None:
            scan = segment.scan(position, stat.st_size, after=self._data_end if position else None)
        self._end_size = stat.st_size
        if scan.end_position > position:
            self._data_end = scan.next_offset
            if scan.max_timestamp > self._maximum[0]:
                self._maximum = (scan.max_timestamp, scan.max_timestamp_offset)
            self._last_batch = (scan.last_position, segment.file.read(scan.last_position, _HEADER_BYTES))
        elif position == 0:
            self._data_end = segment.base_offset
        self._end_position = scan.end_position
        self._fault = None
        if self.log_start_offset <= self._data_end < self.recovery_point:
            self._fault = CorruptRecordError(
                f"{scan.reason or 'the file ends'}; everything below the recovery point {self.recovery_point} was "
                f"flushed, and the log is sound up to offset {self._data_end}; see `kstore repair`",
                path=segment.path,
                position=scan.end_position,
            )

    def _fits(self, segment: Segment, scan: _scan.ScanResult) -> bool:
        """Whether the last entry of the time index is in the log, and is what the log says there."""
        next_offset: int = scan.next_offset
        if next_offset <= self.recovery_point:
            return True
        return self._maximum[1] < next_offset and segment.confirms(scan.end_position)

    def doubt(self, error: CorruptRecordError) -> bool:
        """Whether the log ends before this fault: where a crash may have undone a write, the fault is the end.

        The last segment is scanned from its last index entry on; after a power cut the index may have known more.
        """
        with self._refreshing:
            if not self.segments.items:
                return False
            segment = self.segments.items[-1]
            flushed = max(self.recovery_point, segment.base_offset)
            position = segment.border(flushed, self._end_position)
            if error.path != segment.path or not position <= error.position < self._end_position:
                return False
            scan = segment.scan(position, self._end_position)
            found = segment.base_offset if scan.next_offset is None else scan.next_offset
            if scan.end_position == self._end_position or found < self.recovery_point:
                return False
            self._end_position, self._data_end = scan.end_position, found
            self._maximum = (-1, segment.base_offset)
            whole = segment.scan(0, scan.end_position)
            if whole.batches:
                self._maximum = (whole.max_timestamp, whole.max_timestamp_offset)
                self._last_batch = (whole.last_position, segment.file.read(whole.last_position, _HEADER_BYTES))
            else:
                self._last_batch = None
            self.log_end_offset = max(found, self.log_start_offset)
            self.guard.version += 1
            return True

    def _last_batch_stands(self, segment: Segment, size: int) -> bool:
        if size < self._end_position:
            return False
        if self._last_batch is None:
            return True
        position, header = self._last_batch
        try:
            return segment.file.read(position, len(header)) == header
        except StorageError:
            return False

    def _start_over(self) -> Segment:
        """The end that was known is gone, because the tail was cut or the file is another: look at it with new eyes."""
        items = [segment.anew() for segment in self.segments.items]  # those before it may be others too
        self.segments = SegmentList(items)
        self._end_position, self._end_size, self._last_batch = 0, -1, None
        self.guard.version += 1
        return items[-1]

    def close(self) -> None:
        """Let go of the files."""
        self.closed = True
        for segment in self.segments.items:
            segment.close()
        self.guard.version += 1
