"""One segment of a log: its `.log` file and its indexes.

A segment knows where an offset or a timestamp lies in its file, how it is sealed, truncated, recovered and deleted.
What is appended to the active one goes through the compiled appender; the log keeps both in step. The hardest rule:
a sealed segment's files are not opened before somebody needs them, so that opening a log costs O(segments) names.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kstore import _core, _scan, fs, names, openfiles
from kstore.errors import CorruptRecordError, StorageError
from kstore.indexfile import OffsetIndex, TimeIndex
from kstore.logfile import LogFile
from kstore.txnindex import TxnIndex

_making = threading.Lock()


def _forget_making() -> None:
    global _making
    _making = threading.Lock()  # the thread that held it is not in the child


os.register_at_fork(after_in_child=_forget_making)

T = TypeVar("T")

NO_TIMESTAMP = -1
NO_ENTRIES = 2**31 - 1  # an index interval that no segment reaches


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What there is to say of one segment.

    `next_offset` is one past its last offset, `size_bytes` that of the `.log` file's batches, the entry counts those
    of its index files. `max_timestamp` is the greatest in it, `first_timestamp` that of its first batch, both -1 where
    there are none. `roll_reason` is why the segment before it was left: "size", "time", "offset_index_full",
    "time_index_full", "offset_range", "explicit", ..., or None when it is not known (it is not on disk).
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_entries: int
    time_index_entries: int
    max_timestamp: int
    first_timestamp: int
    is_active: bool
    path: str
    roll_reason: str | None


class BatchPlace(NamedTuple):
    """Where a batch lies in its file, and the offsets it spans."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class Recovered:
    """What recovering one segment found: where its sound batches end, and why they end there."""

    next_offset: int
    cut_bytes: int
    reason: str | None
    epochs: list[tuple[int, int]]
    has_producers: bool


class Segment:
    """The files of one segment. The log's mutex guards whatever changes them; looking up is safe from any thread.

    An `openfiles.Holder` of the `.log` file; the indexes are their own. Whoever hands `file.fd` to the system holds the
    `LogFile` meanwhile: another thread may have the segment let go of it at any moment, and its number then means
    another file.
    """

    __slots__ = (
        "__weakref__",
        "_actual",
        "_failure",
        "_file",
        "_first_timestamp",
        "_max_index_bytes",
        "_maximum",
        "_offset_index",
        "_path",
        "_size",
        "_time_index",
        "_txn_index",
        "_used",
        "base_offset",
        "created_ms",
        "directory",
        "index_interval_bytes",
        "is_active",
        "jitter_ms",
        "listed",
        "pinned",
        "roll_reason",
        "unsynced",
        "vouched",
        "writable",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        max_index_bytes: int,
        index_interval_bytes: int = NO_ENTRIES,
        writable: bool = True,
        actual: Mapping[str, str] | None = None,
    ) -> None:
        """`actual` gives the names that files have now in place of their final ones (an interrupted swap)."""

        self.directory = directory
        self.base_offset = base_offset
        self.writable = writable
        self.index_interval_bytes = index_interval_bytes
        self.jitter_ms = 0
        self.created_ms = 0
        self.roll_reason: str | None = None
        self.vouched = False  # a reader has compared the time index with the log
        self.is_active = False
        self.pinned = False  # an appender writes to its file: it is the log's to let go of
        self.unsynced = False  # sealed or parked, and not synced since
        self.listed = False
        self._used = False
        self._failure: StorageError | None = None
        self._actual = actual
        self._max_index_bytes = max_index_bytes
        self._path: str | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._file: LogFile | None = None
        self._size: int | None = None
        self._first_timestamp: int | None = None
        self._maximum: tuple[int, int] | None = None

    def anew(self) -> Segment:
        """The same segment, of which nothing is known yet."""
        return Segment(
            self.directory,
            self.base_offset,
            max_index_bytes=self._max_index_bytes,
            writable=self.writable,
            actual=self._actual,
        )

    # A log of a thousand segments is opened without any of these.

    def _path_of(self, name: str) -> str:
        return f"{self.directory}/{self._actual.get(name, name) if self._actual else name}"

    @property
    def path(self) -> str:
        """Where the `.log` file is."""
        if self._path is None:
            self._path = self._path_of(names.log_name(self.base_offset))
        return self._path

    @property
    def paths(self) -> tuple[str, str, str]:
        """Where the three files are."""
        indexes = names.index_name(self.base_offset), names.time_index_name(self.base_offset)
        return self.path, self._path_of(indexes[0]), self._path_of(indexes[1])

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index over its file."""
        index = self._offset_index
        if index is None:
            path = self._path_of(names.index_name(self.base_offset))
            index = OffsetIndex(path, self.base_offset, self._max_index_bytes, writable=self.writable)
            # Two threads may come here at once: all must use one object.
            with _making:
                index = self._offset_index = self._offset_index or index
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index over its file."""
        index = self._time_index
        if index is None:
            path = self._path_of(names.time_index_name(self.base_offset))
            index = TimeIndex(path, self.base_offset, self._max_index_bytes, writable=self.writable)
            with _making:
                index = self._time_index = self._time_index or index
        return index

    @property
    def txn_index(self) -> TxnIndex:
        """The index of the transactions that were aborted in this segment."""
        index = self._txn_index
        if index is None:
            index = TxnIndex(self._path_of(names.txn_index_name(self.base_offset)))
            with _making:
                index = self._txn_index = self._txn_index or index
        return index

    @property
    def file(self) -> LogFile:
        """The open `.log` file."""
        file = self._file
        if file is None:
            opened = LogFile(self.path, write=self.writable)
            # Two threads may come here at once: the loser's descriptor must not be the one that is used.
            with _making:
                file = self._file = self._file or opened
            openfiles.opened(self)
        self._used = True
        return file

    # `openfiles.Holder`

    def holds(self) -> int:
        """1 while the `.log` file is open for no one but readers."""
        return 0 if self._file is None or self.pinned else 1

    def was_used(self) -> bool:
        """Whether the file was asked for since this was last asked."""
        used, self._used = self._used, False
        return used

    def let_go(self) -> None:
        """Close the file; readers in the middle of it keep it open.

        What it owes the disk is paid first. The system tells of a write that has failed to whoever syncs a descriptor
        of that file; once nobody has one it may drop the file from memory, and the failure with it, and a later sync
        would promise what is not there. The failure is kept for `flush`, which is who may tell of it. (An index may
        lose entries in this way; it can be made again.)
        """
        file = self._file
        if file is None or self.pinned:
            return
        if self.unsynced:
            try:
                fs.fdatasync(file.fd)
            except StorageError as error:
                self._failure = error
                raise
            self.unsynced = False
        self._file = None

    @property
    def size_bytes(self) -> int:
        """Bytes of whole batches in the `.log` file; of the active segment, as of the last `settle`."""
        if self._size is None:
            self._size = self.file.size() if self._file is not None else fs.stat(self.path).st_size
        return self._size

    @size_bytes.setter
    def size_bytes(self, size: int) -> None:
        self._size = size

    def create(self, *, preallocate_bytes: int, now_ms: int, jitter_ms: int) -> None:
        """Make the files of a new, empty segment: an empty log and two index files at full size (2.15, 3.1)."""
        self.is_active = True
        self._file = LogFile(self.path, write=True, create=True)
        if preallocate_bytes:
            fs.truncate(self._file.fd, preallocate_bytes)
        self._size = 0
        self._maximum = (NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self.activate()

    def activate(self, max_index_bytes: int | None = None) -> None:
        """Grow both indexes to the full size that an active segment's have (3.5)."""
        self.is_active, self.unsynced = True, False
        self.offset_index.grow(max_index_bytes)
        self.time_index.grow(max_index_bytes)

    # What the segment says of time.

    @property
    def maximum(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of the first batch that has it; (-1, base offset) for none."""
        if self._maximum is None:
            self._maximum = self.time_index.last
        return self._maximum

    @maximum.setter
    def maximum(self, maximum: tuple[int, int]) -> None:
        self._maximum = maximum

    def largest_timestamp(self) -> int:
        """The greatest timestamp, else the file's age in milliseconds since the epoch (6.6)."""
        timestamp = self.maximum[0]
        return timestamp if timestamp >= 0 else fs.stat(self.path).st_mtime_ns // 1_000_000

    def first_timestamp(self, size_bytes: int | None = None) -> int | None:
        """The first batch's greatest timestamp (2.5), None for an empty segment; `size_bytes` if it has grown since."""
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        if self._first_timestamp is None and size_bytes > 0:
            file = self.file  # held here and below: its descriptor must outlive the search, whoever closes the segment
            found = _scan.find_batch(file.fd, 0, size_bytes, self.base_offset, path=self.path)
            self._first_timestamp = None if found is None else found[4]
        return self._first_timestamp

    # Where things are.

    def position_of(self, offset: int) -> int:
        """Return a batch border at or before the batch that holds `offset`, as far as the index is to be believed."""
        position: int = self.offset_index.lookup(offset)[1]
        return max(position, 0)

    @staticmethod
    def _walk(walk: Callable[[int], T | None], position: int, wanted: Callable[[T], bool] = lambda _: True) -> T | None:
        """Walk the file from `position`; where that finds nothing that is `wanted`, the index may be wrong: from 0."""
        try:
            found = walk(position)
        except CorruptRecordError:
            if position == 0:
                raise
            found = None
        if position and (found is None or not wanted(found)):
            found = walk(0)
        return found

    def find_batch(self, offset: int, end: int) -> BatchPlace | None:
        """Find the batch that holds `offset`, or the first one after it (3.18a)."""
        file = self.file
        found = self._walk(
            lambda position: _scan.find_batch(file.fd, position, end, offset, path=self.path),
            self.position_of(offset),
            lambda batch: batch[2] <= offset or batch[5] < 2,
        )
        if found is None:
            return None
        place = BatchPlace(*found[:4])
        return place if found[5] >= 2 else self._with_inner_base(place)

    def confirms(self, end: int) -> bool:
        """Whether the time index's last entry, if it has one, is what the batch at its offset says (3.6)."""
        timestamp, offset = self.time_index.last
        if timestamp < 0:
            return True
        file = self.file
        try:
            found = _scan.find_batch(file.fd, self.border(offset, end), end, offset, path=self.path)
        except CorruptRecordError:
            return False
        return found is not None and found[4] == timestamp

    def border(self, offset: int, end: int) -> int:
        """Where to start reading for `offset`: what the index says, unless the bytes there say otherwise; then 0."""
        position = self.position_of(offset)
        if position == 0:
            return 0
        file = self.file
        try:
            found = _scan.find_batch(file.fd, position, end, offset, path=self.path)
        except CorruptRecordError:
            return 0
        return position if found is not None and (found[2] <= offset or found[5] < 2) else 0

    def _with_inner_base(self, place: BatchPlace) -> BatchPlace:
        """Say where a message of an old format begins: a wrapper's own offset is its last, the first is inside it."""
        data = self.file.read(place.position, place.size_bytes)
        [batch] = _core.decode_batches(data, check_crc=False, path=self.path, position=place.position)
        return place._replace(base_offset=batch.base_offset)

    def find_timestamp(
        self, timestamp: int, start_offset: int, end: int, max_decompressed_bytes: int | None
    ) -> tuple[int, int, int] | None:
        """Find the first record at or after `timestamp` and `start_offset` (5.5); (timestamp, offset, leader epoch)."""
        file = self.file
        at_offset = self.time_index.lookup(timestamp)[1]
        return self._walk(
            lambda at: _scan.find_timestamp(
                file.fd,
                at,
                end,
                timestamp,
                start_offset,
                max_decompressed_bytes=max_decompressed_bytes,
                path=self.path,
            ),
            self.position_of(max(at_offset, start_offset)),
        )

    def read_next_offset(self) -> int:
        """Read one past the last offset from the last indexed batch on (8.10)."""
        file = self.file
        found = self._walk(
            lambda position: _scan.last_offset(file.fd, position, self.size_bytes, path=self.path),
            self.position_of(self.offset_index.last[0]),
        )
        return self.base_offset if found is None else found[0] + 1

    def scan(
        self,
        position: int,
        end: int,
        *,
        after: int | None = None,
        latest_epoch: int = -1,
        index_interval_bytes: int = NO_ENTRIES,
    ) -> _scan.ScanResult:
        """Check every batch of `[position, end)`; with `after`, where a scan ended before, offsets go on from it."""
        file = self.file
        return _scan.scan(
            file.fd,
            position,
            end,
            self.base_offset if after is None else after,
            index_interval_bytes=index_interval_bytes,
            latest_epoch=latest_epoch,
            path=self.path,
        )

    def indexes_look_trimmed(self) -> bool:
        """Whether both indexes are as a close leaves them: sound entries that fit the log, and nothing else."""
        size = self.size_bytes
        return self.offset_index.looks_trimmed(size) and self.time_index.looks_trimmed(size)

    # What changes it.

    def seal(self) -> None:
        """Close the segment for appends: the closing time entry, indexes and log cut to what they hold (2.9)."""
        timestamp, offset = self.maximum
        if timestamp >= 0:
            self.time_index.maybe_append(timestamp, offset, force=True)
        self.offset_index.trim()
        self.time_index.trim()
        file = self.file
        if file.size() > self.size_bytes:
            fs.truncate(file.fd, self.size_bytes)
        self.unsynced, self._used = True, True  # a flush is soon to come
        self.is_active = self.pinned = False
        openfiles.opened(self, 0)

    def renew(self, size_bytes: int) -> None:
        """Be what the files at the paths are now, sealed and synced, of so many bytes; readers may hold this object."""
        self.is_active = self.pinned = self.unsynced = self.vouched = False
        self._offset_index = self._time_index = None
        self._maximum = self._first_timestamp = None
        self._file = None
        self._size = size_bytes
        openfiles.opened(self, 0)

    def recover(
        self,
        *,
        index_interval_bytes: int,
        latest_epoch: int,
        flushed_below: int,
        log_start_offset: int,
        is_last: bool,
        before_cut: Callable[[], None],
    ) -> Recovered:
        """Scan the whole file, cut what is unsound, rebuild both indexes (8.14 to 8.18).

        `before_cut` does away with what must not outlive the cut. The cut is on the disk before anything can follow it.

        Raises `CorruptRecordError`, with nothing changed, when something below `flushed_below` is unsound, or when the
        last segment ends between the log start and there: that was flushed, and recovery never cuts it.
        """
        file = self.file
        end = file.size()
        scan = self.scan(0, end, latest_epoch=latest_epoch, index_interval_bytes=index_interval_bytes)
        next_offset = self.base_offset if scan.next_offset is None else scan.next_offset
        if scan.stop == "range":
            raise CorruptRecordError(
                f"{scan.reason}; Kafka would split the segment, kstore does not yet, and nothing was cut",
                path=self.path,
                position=scan.end_position,
            )
        if next_offset < flushed_below and (scan.reason or (is_last and next_offset >= log_start_offset)):
            raise CorruptRecordError(
                f"{scan.reason or 'the file ends'}; the log is sound up to offset {next_offset}, and everything "
                f"below the recovery point {flushed_below} was flushed; nothing was cut; see `kstore repair`",
                path=self.path,
                position=scan.end_position,
            )
        if scan.end_position < end:
            before_cut()
            fs.truncate(file.fd, scan.end_position)
            fs.fdatasync(file.fd)
        self._size = scan.end_position
        self._maximum = self._maximum_of(scan, (NO_TIMESTAMP, self.base_offset))
        self._first_timestamp = None
        self.offset_index.replace(scan.index_entries)
        self.time_index.replace(scan.time_entries)
        if self._maximum[0] >= 0:
            self.time_index.maybe_append(*self._maximum, force=True)
        self.offset_index.trim()
        self.time_index.trim()
        return Recovered(
            next_offset=next_offset,
            cut_bytes=end - scan.end_position,
            reason=scan.reason,
            epochs=scan.epochs,
            has_producers=bool(scan.producer_batches),
        )

    @staticmethod
    def _maximum_of(scan: _scan.ScanResult, before: tuple[int, int]) -> tuple[int, int]:
        return (scan.max_timestamp, scan.max_timestamp_offset) if scan.max_timestamp > before[0] else before

    def find_cut(self, offset: int) -> tuple[int, int]:
        """Find where a truncation to `offset` cuts (11.3): (position, one past the last offset before it)."""
        place = self.find_batch(offset, self.size_bytes)
        position = self.size_bytes if place is None else place.position
        file = self.file
        found = self._walk(
            lambda start: _scan.last_offset(file.fd, start, position, path=self.path), self.position_of(offset)
        )
        return position, self.base_offset if found is None else found[0] + 1

    def truncate_to(self, offset: int, position: int, now_ms: int) -> None:
        """Cut log and indexes at what `find_cut` found, and grow the indexes to full size (11.3)."""
        self.is_active = True
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        file = self.file
        if position < file.size():
            fs.truncate(file.fd, position)
            fs.fdatasync(file.fd)  # else what is cut may come back behind what is written in its place
            if position == 0:
                self.created_ms = now_ms
        self._size = position
        self._first_timestamp = None
        latest = self.time_index.last
        self._maximum = self._maximum_of(self.scan(self.position_of(latest[1]), position), latest)

    def flush(self) -> None:
        """Put what the files hold on the disk, the log first (FORMAT.md 1.9)."""
        self.flush_log()
        self.offset_index.flush()
        self.time_index.flush()
        if self._txn_index is not None:
            self._txn_index.flush()

    def flush_log(self) -> None:
        """Put what the log file holds on the disk."""
        if self._failure is not None:
            raise self._failure
        file, is_sealed = self.file, not self.is_active  # held here: its descriptor must outlive the sync
        fs.fdatasync(file.fd)
        if is_sealed:
            self.unsynced = False

    def mark_deleted(self) -> list[str]:
        """Rename every file of the segment to `.deleted`, the log first (6.12); the new paths, to be unlinked later."""
        renamed = []
        for build in (names.log_name, names.index_name, names.time_index_name, names.txn_index_name):
            path = self._path_of(build(self.base_offset))
            if build is names.log_name or fs.exists(path):
                fs.rename(path, path + names.DELETED)
                renamed.append(path + names.DELETED)
        return renamed

    def close(self) -> None:
        """Let go of the files; readers in the middle of one keep it open."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._file = None
