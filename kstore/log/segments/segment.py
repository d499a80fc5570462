"""One segment of a log: its `.log` file and its indexes; it finds offsets, and is sealed, truncated, recovered and
deleted.

Appends go through the compiled appender. Invariant: a sealed segment's files are opened on first use, so that opening a
log costs O(segments) names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from typing import Any, NamedTuple, TypeVar

from kstore import _core
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.base.threads import ForkLock
from kstore.config.log_config import LogConfig
from kstore.disk import fs, moving, openfiles
from kstore.errors import CorruptIndexError, CorruptRecordError, StorageError
from kstore.files import _log_scan, _log_search, names
from kstore.files.index_file import OffsetIndex, TimeIndex
from kstore.files.log_file import LogFile
from kstore.files.txnindex import TxnIndex
from kstore.log.segments import time_search
from kstore.log.segments.index_faults import IndexFaults
from kstore.log.segments.roll import draw_jitter
from kstore.log.segments.time_search import ENTRIES_TRIED, NO_TIMESTAMP, NONE_CONFIRMED

Index = TypeVar("Index", OffsetIndex, TimeIndex, TxnIndex)

_making = ForkLock()  # held while a segment gets its file or an index

MAX_OFFSET = LONG_MAX
NO_ENTRIES = INT_MAX  # an index interval that no segment reaches
_INDEXES = {names.OFFSET_INDEX: "_offset_index", names.TIME_INDEX: "_time_index", names.TXN_INDEX: "_txn_index"}


@dataclass(slots=True)
class Recovered:
    """The result of recovering one segment: where its sound batches end, and why they end there."""

    next_offset: int
    cut_bytes: int
    reason: str | None
    epochs: list[tuple[int, int]]
    has_producers: bool


def below_recovery_point(
    reason: str, end_offset: int, recovery_point: int, path: str, position: int = 0
) -> CorruptRecordError:
    """Make the error for a log that ends below its recovery point."""
    return CorruptRecordError(
        f"{reason}; the log is sound up to offset {end_offset}, and everything below the recovery point "
        f"{recovery_point} was flushed; nothing was cut; see `kstore repair`",
        path=path,
        position=position,
    )


class Checked(NamedTuple):
    """The result of `Segment.check`: the scan of the file, its size, one past its last sound offset."""

    scan: _log_scan.ScanResult
    size_bytes: int
    next_offset: int


class Segment:
    """The files of one segment. The log's mutex guards whatever changes them; looking up is safe from any thread.

    An `openfiles.Holder` of the `.log` file; each index is one of its own. A caller that gives `file.fd` to the system
    holds the `LogFile` meanwhile: another thread may close the segment's file at any moment, and the number of its
    descriptor may then be that of another file.
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
        "confirmed",
        "created_ms",
        "directory",
        "faults",
        "index_interval_bytes",
        "inode",
        "is_active",
        "jitter_ms",
        "listed",
        "pinned",
        "roll_reason",
        "times_doubted",
        "unsynced",
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
        self.is_active = False
        self.inode: int | None = None  # of the only `.log` file that this object may open; None for any
        self.pinned = False  # an appender writes to its file, and only the log closes it
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
        self.confirmed = NONE_CONFIRMED
        self.times_doubted = False  # damage hides the greatest timestamp
        self.faults = IndexFaults()

    def anew(self) -> Segment:
        """A new object for the same files, which knows nothing of them yet."""
        segment = Segment(
            self.directory,
            self.base_offset,
            max_index_bytes=self._max_index_bytes,
            writable=self.writable,
            actual=self._actual,
        )
        segment.inode = self.inode
        return segment

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
    def paths(self) -> tuple[str, ...]:
        """Where the log and its two indexes are."""
        return tuple(self._path_of(names.file_name(self.base_offset, kind)) for kind in names.SEGMENT_KINDS[:3])

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index over its file."""
        return self._offset_index or self._index(names.OFFSET_INDEX, self._sized(OffsetIndex))

    @property
    def time_index(self) -> TimeIndex:
        """The time index over its file."""
        return self._time_index or self._index(names.TIME_INDEX, self._sized(TimeIndex))

    @property
    def txn_index(self) -> TxnIndex:
        """The index of the transactions that were aborted in this segment."""
        return self._txn_index or self._index(names.TXN_INDEX, TxnIndex)

    def _sized(self, kind: Callable[..., Index]) -> Callable[[str], Index]:
        return lambda path: kind(path, self.base_offset, self._max_index_bytes, writable=self.writable)

    def _index(self, kind: str, make: Callable[[str], Index]) -> Index:
        """Make an index over its file. Of two threads that make one at once both get the same object."""
        name, slot = names.file_name(self.base_offset, kind), _INDEXES[kind]
        made = make(self._path_of(name))
        with _making.mutex:
            index: Index = getattr(self, slot) or made
            setattr(self, slot, index)
            index.path = self._path_of(name)  # the file may be renamed meanwhile
        return index

    @property
    def file(self) -> LogFile:
        """The open `.log` file."""
        file = self._file
        if file is None:
            opened = self._open_file()
            if self.inode is not None:
                self._check_inode(fs.inode(opened.fd))
            # Two threads may open it at once: both must use the same descriptor.
            with _making.mutex:
                file = self._file = self._file or opened
            openfiles.opened(self)
        self._used = True
        return file

    def _open_file(self) -> LogFile:
        return moving.at_its_path(
            lambda path: LogFile(path, write=self.writable), lambda: self.path, drop=LogFile.close
        )

    def _stat(self) -> os.stat_result:
        return moving.at_its_path(fs.stat, lambda: self.path)

    def _check_inode(self, inode: int) -> None:
        """Raise `MissingFileError` where another process has put another file at the path: a cleaned segment."""
        if self.inode is not None and inode != self.inode:
            raise fs.MissingFileError(ENOENT, "another file has its name now", self.path)

    # `openfiles.Holder`

    def holds(self) -> int:
        """1 while the `.log` file is open and no appender writes to it."""
        return 0 if self._file is None or self.pinned else 1

    def was_used(self) -> bool:
        """Whether `file` was used since the last call of this."""
        used, self._used = self._used, False
        return used

    def let_go(self) -> None:
        """Close the file; readers in the middle of it keep it open.

        Unsynced bytes are synced first. The system reports a failed write to the next sync of an open descriptor of the
        file. Once no descriptor is open it may drop the file from memory, and the failure with it; a later sync would
        then succeed although bytes are lost. The failure is kept, and `flush` raises it. (An index may lose entries in
        this way; it can be made again.)
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
            if self._file is not None:
                self._size = self._file.size()
            else:
                stat = self._stat()
                self._check_inode(stat.st_ino)
                self._size = stat.st_size
        return self._size

    @size_bytes.setter
    def size_bytes(self, size: int) -> None:
        self._size = size

    def create(self, *, preallocate_bytes: int, now_ms: int, jitter_ms: int) -> None:
        """Make the files of a new, empty segment: an empty log and two index files at full size
        (SEMANTICS 2.15, 3.1)."""
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
        """Grow both indexes to the full size that an active segment's have (SEMANTICS 3.5)."""
        self.is_active, self.unsynced = True, False
        self.offset_index.grow(max_index_bytes)
        self.time_index.grow(max_index_bytes)

    # What the segment says of time.

    @property
    def maximum(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of the first batch that has it; (-1, base offset) for none."""
        if self._maximum is None:
            self._maximum = self.maximum_below(self.size_bytes)
        return self._maximum

    @maximum.setter
    def maximum(self, maximum: tuple[int, int]) -> None:
        self._maximum, self.times_doubted = maximum, False

    def maximum_below(self, end: int) -> tuple[int, int]:
        """The greatest timestamp of the batches before the position `end`, as `maximum`: by index and headers.

        Where damage keeps it from being read, it is what the index says, and `times_doubted`.
        """
        try:
            return time_search.read_maximum(self, end)
        except CorruptRecordError:
            self.times_doubted = True
            return self.time_index.last

    def largest_timestamp(self) -> int:
        """The greatest timestamp, else the file's age in milliseconds since the epoch (SEMANTICS 6.6)."""
        timestamp = self.maximum[0]
        return timestamp if timestamp >= 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        """When the `.log` file was changed last, in milliseconds since the epoch."""
        return self.modified_ns // 1_000_000

    @property
    def modified_ns(self) -> int:
        """When the `.log` file was changed last, in nanoseconds since the epoch."""
        return self._stat().st_mtime_ns

    def first_timestamp(self, size_bytes: int | None = None) -> int | None:
        """The first batch's greatest timestamp (SEMANTICS 2.5), None for an empty segment; `size_bytes` if it has grown
        since."""
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        if self._first_timestamp is None and size_bytes > 0:
            file = self.file  # held here and below: its descriptor must outlive the search
            first = _log_search.find_batch(file.fd, 0, size_bytes, self.base_offset, path=self.path)
            self._first_timestamp = None if first is None else first.max_timestamp
        return self._first_timestamp

    # Where things are.

    def start(self, offset: int, end: int) -> tuple[int, int]:
        """Where to start reading for `offset` in the batches before the position `end`: (position, least offset).

        A batch begins at the position, at or before the one that holds `offset`, and `least` is its base offset, or the
        segment's at position 0. The offset index is believed as far as the log bears an entry out; an entry that it
        does not is passed over, with a warning.
        """
        try:
            return self._indexed_start(offset, end)
        except CorruptIndexError as error:  # another program has cut it
            self.faults.report(self.offset_index.path, error.reason)
            return 0, self.base_offset

    def _indexed_start(self, offset: int, end: int) -> tuple[int, int]:
        file, index, target = self.file, self.offset_index, offset
        if not self.is_active:  # the unused slots of an active index may hold any bytes
            self.faults.report_unsound(index)
        for _ in range(ENTRIES_TRIED):
            entry, position = index.lookup(target)
            if position == 0:
                break
            if position < end:
                base_offset = _log_search.leads_to(file.fd, position, end, self.base_offset, entry, path=self.path)
                if base_offset >= 0:
                    return position, base_offset
                if base_offset == -2 and self._still_wrong(index, entry, position, end):
                    self.report_entry(index.path, f"offset {entry} at position {position}")
            elif not self.is_active:
                self.report_entry(index.path, f"offset {entry} at position {position}")
            target = entry - 1
        return 0, self.base_offset

    def _still_wrong(self, index: OffsetIndex, entry: int, position: int, end: int) -> bool:
        """Whether an entry that leads nowhere is there still: a truncation cuts the index before the log."""
        if self.faults.has(index.path):
            return False
        for _ in range(2):
            if not self.writable:
                index.reload()
            if index.lookup(entry) != (entry, position):
                return False
            if _log_search.leads_to(self.file.fd, position, end, self.base_offset, entry, path=self.path) != -2:
                return False
        return True

    def report_entry(self, path: object, entry: str) -> None:
        """Log an entry that the log does not bear out, unless a cleaner has just put others in the files' places."""
        if fs.is_at(self.file.fd, self.path):
            self.faults.report_entry(path, entry)

    def find_batch(self, offset: int, end: int, *, most: int = MAX_OFFSET) -> _log_search.BatchPlace | None:
        """Find the batch that holds `offset`, or the first one after it (SEMANTICS 3.18a); all offsets are below
        `most`.

        Raises `CorruptRecordError` where the offsets of the batches on the way do not follow one another.
        """
        file = self.file
        position, least = self.start(offset, end)
        place = _log_search.find_batch(file.fd, position, end, offset, least=least, most=most, path=self.path)
        return place if place is None or place.magic >= 2 else self._with_inner_base(place)

    def _with_inner_base(self, place: _log_search.BatchPlace) -> _log_search.BatchPlace:
        """Say where a message of an old format begins: a wrapper's own offset is its last, the first is inside it."""
        data = self.file.read(place.position, place.size_bytes)
        [batch] = _core.decode_batches(data, check_crc=False, path=self.path, position=place.position)
        return place._replace(base_offset=batch.base_offset)

    def read_next_offset(self) -> int:
        """Read one past the last offset from the last indexed batch on (SEMANTICS 8.10)."""
        file = self.file
        position, least = self.start(self.offset_index.last[0], self.size_bytes)
        last = _log_search.last_offset(file.fd, position, self.size_bytes, least=least, path=self.path)
        return self.base_offset if last is None else last.last_offset + 1

    def scan(
        self,
        position: int,
        end: int,
        *,
        after: int | None = None,
        latest_epoch: int = -1,
        flushed_end: int = -1,
        index_interval_bytes: int = NO_ENTRIES,
    ) -> _log_scan.ScanResult:
        """Check every batch of `[position, end)`; with `after`, where a scan ended before, offsets go on from it."""
        file = self.file
        return _log_scan.scan(
            file.fd,
            position,
            end,
            self.base_offset if after is None else after,
            index_interval_bytes=index_interval_bytes,
            latest_epoch=latest_epoch,
            flushed_end=flushed_end,
            path=self.path,
        )

    def scan_flushed(self, position: int, end: int, flushed_end: int, **scan: Any) -> _log_scan.ScanResult:
        """As `scan`; what was flushed ends at `flushed_end`, which a batch ends at, too, unless the log was cut there.

        A log that was cut inside of a batch, and appended to, has a gap up to there (SEMANTICS 11.4). One that was
        closed since ends with the flush: a gap up to there is damage.
        """
        result = self.scan(position, end, flushed_end=flushed_end, **scan)
        if result.stop != "gap" or self.indexes_look_trimmed():
            return result
        behind = _log_search.header_at(self.file.fd, result.end_position, end, path=self.path)
        is_cut = behind is not None and behind.base_offset == flushed_end
        return self.scan(position, end, **scan) if is_cut else result

    def indexes_look_trimmed(self) -> bool:
        """Whether both indexes are as a close leaves them: sound entries that fit the log, and nothing else."""
        size = self.size_bytes
        return self.offset_index.looks_trimmed(size) and self.time_index.looks_trimmed(size)

    # What changes it.

    def seal(self, *, before_deletion: bool = False) -> None:
        """Close the segment for appends: the closing time entry, indexes and log cut to what they hold (SEMANTICS 2.9).

        `before_deletion`: the segment is deleted next, and on a full disk goes without the entry.
        """
        timestamp, offset = self.maximum
        if timestamp >= 0:
            try:
                self.time_index.maybe_append(timestamp, offset, force=True)
            except fs.FullDiskError:
                if not before_deletion:
                    raise
            except ValueError as error:  # its last entry is above the segment's: another segment's index
                path = self.time_index.path
                raise CorruptIndexError(str(error).removeprefix(f"{path}: "), path=path) from error
        self.offset_index.trim()
        self.time_index.trim()
        file = self.file
        if file.size() > self.size_bytes:
            fs.truncate(file.fd, self.size_bytes)
        self.unsynced, self._used = True, True  # the flush after the roll uses the file soon
        self.is_active = self.pinned = False
        openfiles.opened(self, 0)

    def renew(self, size_bytes: int) -> None:
        """Take other files that are at the paths now, sealed, synced, of so many bytes; readers may hold this
        object."""
        self.is_active = self.pinned = self.unsynced = self.times_doubted = False
        self.confirmed, self.faults = NONE_CONFIRMED, IndexFaults()
        self._offset_index = self._time_index = None
        self._maximum = self._first_timestamp = None
        self._file = None
        self._size = size_bytes
        openfiles.opened(self, 0)

    def check(
        self, *, index_interval_bytes: int, latest_epoch: int, flushed_below: int, flushed_end: int, is_last: bool
    ) -> Checked:
        """Scan the whole file for `recover`; changes nothing. `flushed_end` is as with `scan_flushed`.

        Raises `CorruptRecordError` when something below `flushed_below` is unsound, or when the last segment ends below
        it: that was flushed, and recovery never cuts it.
        """
        end = self.file.size()
        scan = self.scan_flushed(
            0, end, flushed_end, latest_epoch=latest_epoch, index_interval_bytes=index_interval_bytes
        )
        next_offset = self.base_offset if scan.next_offset is None else scan.next_offset
        if scan.stop == "range":
            raise CorruptRecordError(
                f"{scan.reason}; Kafka would split the segment, kstore does not yet, and nothing was cut",
                path=self.path,
                position=scan.end_position,
            )
        if next_offset < flushed_below and (scan.reason or is_last):
            reason = scan.reason or "the file ends"
            raise below_recovery_point(reason, next_offset, flushed_below, self.path, scan.end_position)
        return Checked(scan, end, next_offset)

    def recover(self, checked: Checked, *, is_last: bool, before_cut: Callable[[], None]) -> Recovered:
        """Cut what is unsound, and rebuild both indexes (SEMANTICS 8.14 to 8.18).

        `before_cut` does away with what must not outlive the cut. The cut is on the disk before anything can follow it.
        """
        scan, end, next_offset = checked
        file = self.file
        if scan.end_position < end:
            before_cut()
            fs.truncate(file.fd, scan.end_position)
            fs.fdatasync(file.fd)
        self._size = scan.end_position
        has_timestamps = scan.max_timestamp >= 0
        self.maximum = (scan.max_timestamp, scan.max_timestamp_offset) if has_timestamps else (-1, self.base_offset)
        self.confirmed, self.faults = NONE_CONFIRMED, IndexFaults()
        self._first_timestamp = None
        self.offset_index.replace(scan.index_entries, at_full_size=is_last)
        # In one write, or none where nothing has changed: the disk may be full.
        closing = b"" if is_last else self.time_index.closing_entry(scan.time_entries, *self.maximum)
        self.time_index.replace(scan.time_entries + closing, at_full_size=is_last)
        if is_last and has_timestamps:
            with suppress(fs.FullDiskError):  # an active segment gets its closing entry when it is sealed
                self.time_index.maybe_append(*self.maximum, force=True)
        if not is_last:  # else they grow to full size next, through the descriptors that are open now
            self.offset_index.trim()
            self.time_index.trim()
        return Recovered(
            next_offset=next_offset,
            cut_bytes=end - scan.end_position,
            reason=scan.reason,
            epochs=scan.epochs,
            has_producers=bool(scan.producer_batches),
        )

    def find_cut(self, offset: int) -> tuple[int, int]:
        """Find where a truncation to `offset` cuts (SEMANTICS 11.3): (position, one past the last offset before it)."""
        place = self.find_batch(offset, self.size_bytes)
        position = self.size_bytes if place is None else place.position
        file = self.file
        # An entry that names the offset itself leads to the batch that is cut.
        start, least = self.start(max(offset - 1, self.base_offset), position)
        last = _log_search.last_offset(file.fd, start, position, least=least, path=self.path)
        return position, self.base_offset if last is None else last.last_offset + 1

    def truncate_to(self, offset: int, position: int, now_ms: int) -> None:
        """Cut log and indexes at what `find_cut` found, and grow the indexes to full size (SEMANTICS 11.3)."""
        self.is_active = True
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        file = self.file
        if position < file.size():
            fs.truncate(file.fd, position)
            fs.fdatasync(file.fd)  # else a power cut may bring back the cut bytes behind those written in their place
        if position == 0:
            self.created_ms = now_ms  # also where a cleaning has left nothing to cut
        self._size = position
        self._first_timestamp = self._maximum = None
        with suppress(CorruptRecordError):
            self.maximum = time_search.scan_maximum(self, position)
        self.confirmed = NONE_CONFIRMED

    def flush(self) -> None:
        """Put what the files hold on the disk, the log first (FORMAT 1.9)."""
        self.flush_log()
        self.offset_index.flush()
        self.time_index.flush()
        if self._txn_index is not None:
            self._txn_index.flush()

    def flush_log(self) -> None:
        """Put what the log file holds on the disk."""
        if self._failure is not None:
            raise self._failure
        file, is_sealed = self.file, not self.is_active  # held: its descriptor must outlive the sync
        fs.fdatasync(file.fd)
        if is_sealed:
            self.unsynced = False

    def mark_deleted(self) -> list[str]:
        """Rename every file of the segment to `.deleted`, the log first (SEMANTICS 6.12); the new paths, to be unlinked
        later."""
        self.faults.mute()
        renamed = []
        for kind in names.SEGMENT_KINDS:
            path = self._path_of(names.file_name(self.base_offset, kind))
            if kind == names.LOG or fs.exists(path):
                fs.rename(path, path + names.DELETED)
                renamed.append(path + names.DELETED)
        return renamed

    def rename(self, state: str) -> list[str]:
        """Give every file its final name with `state` behind it, the log first; the new paths. Nothing is synced.

        Readers go on with the files: this object knows where they are.
        """
        renamed = []
        if state == names.DELETED:
            self.faults.mute()
        with moving.renaming():
            for kind in names.SEGMENT_KINDS:
                final = names.file_name(self.base_offset, kind)
                before, after = self._path_of(final), f"{self.directory}/{final}{state}"
                if kind == names.LOG or fs.exists(before):
                    fs.rename(before, after)
                    renamed.append(after)
                self._actual = {**(self._actual or {}), final: final + state}
                if kind == names.LOG:
                    self._path = after
                elif (index := getattr(self, _INDEXES[kind])) is not None:
                    index.path = after
        return renamed

    def close(self) -> None:
        """Close the files; readers in the middle of one keep it open."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._file = None


def new_segment(directory: str, base_offset: int, config: LogConfig) -> Segment:
    """Make the object of a segment; its files are not there yet."""
    return Segment(
        directory,
        base_offset,
        max_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
    )


def create_files(segment: Segment, config: LogConfig, now_ms: int) -> None:
    """Make the files of a new, empty segment."""
    segment.create(
        preallocate_bytes=config.effective_segment_bytes if config.preallocate else 0,
        now_ms=now_ms,
        jitter_ms=draw_jitter(config),
    )
