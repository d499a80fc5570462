"""One segment of a log: its `.log` file and its indexes. It is searched, sealed, truncated, recovered and deleted.

Appends go through the compiled appender. Invariant: a sealed segment's files are opened on first use, so opening a log
costs O(segments) names.
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

_making = ForkLock()  # held while a segment's file or index is set

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
    """Return the error for a log that ends below its recovery point."""
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
    """The files of one segment.

    An `openfiles.Holder` of the `.log` file; each index is a holder of its own file. A caller that passes `file.fd` to
    the system must hold the `LogFile` during the call: another thread may close the segment's file at any time, and
    its descriptor may then belong to another file. Lookups are thread-safe; the log's mutex guards changes.
    """

    __slots__ = (
        "__weakref__",
        "_actual",
        "_failure",
        "_file",
        "_first_batch",
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
        """`actual` maps final names of files to the present ones, after an interrupted swap."""
        self.directory = directory
        self.base_offset = base_offset
        self.writable = writable
        self.index_interval_bytes = index_interval_bytes
        self.jitter_ms = 0
        self.created_ms = 0
        self.roll_reason: str | None = None
        self.is_active = False
        self.inode: int | None = None  # inode of the only `.log` file that this object may open; None allows any
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
        self._first_batch: _log_search.BatchPlace | None = None
        self._maximum: tuple[int, int] | None = None
        self.confirmed = NONE_CONFIRMED
        self.times_doubted = False  # damage hides the greatest timestamp
        self.faults = IndexFaults()

    def anew(self) -> Segment:
        """Return a new object for the same files, with nothing cached."""
        segment = Segment(
            self.directory,
            self.base_offset,
            max_index_bytes=self._max_index_bytes,
            writable=self.writable,
            actual=self._actual,
        )
        segment.inode = self.inode
        return segment

    # Opening a log of a thousand segments uses none of these.

    def _path_of(self, name: str) -> str:
        return f"{self.directory}/{self._actual.get(name, name) if self._actual else name}"

    @property
    def path(self) -> str:
        if self._path is None:
            self._path = self._path_of(names.log_name(self.base_offset))
        return self._path

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._path_of(names.file_name(self.base_offset, kind)) for kind in names.SEGMENT_KINDS[:3])

    @property
    def offset_index(self) -> OffsetIndex:
        return self._offset_index or self._index(names.OFFSET_INDEX, self._sized(OffsetIndex))

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index or self._index(names.TIME_INDEX, self._sized(TimeIndex))

    @property
    def txn_index(self) -> TxnIndex:
        """The index of the transactions that were aborted in this segment."""
        return self._txn_index or self._index(names.TXN_INDEX, TxnIndex)

    def _sized(self, kind: Callable[..., Index]) -> Callable[[str], Index]:
        return lambda path: kind(path, self.base_offset, self._max_index_bytes, writable=self.writable)

    def _index(self, kind: str, make: Callable[[str], Index]) -> Index:
        """Return an index over its file. Two threads that call this at the same time get the same object."""
        name, slot = names.file_name(self.base_offset, kind), _INDEXES[kind]
        made = make(self._path_of(name))
        with _making.mutex:
            index: Index = getattr(self, slot) or made
            setattr(self, slot, index)
            index.path = self._path_of(name)  # the file may have been renamed since
        return index

    @property
    def file(self) -> LogFile:
        file = self._file
        if file is None:
            opened = self._open_file()
            if self.inode is not None:
                self._check_inode(fs.inode(opened.fd))
            # Two threads may open it at the same time: both must use the same descriptor.
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
        """Raise `MissingFileError` if another process has put another file at the path: a cleaned segment."""
        if self.inode is not None and inode != self.inode:
            raise fs.MissingFileError(ENOENT, "another file has its name now", self.path)

    # `openfiles.Holder`

    def holds(self) -> int:
        """Return 1 while the `.log` file is open and no appender writes to it, else 0."""
        return 0 if self._file is None or self.pinned else 1

    def was_used(self) -> bool:
        used, self._used = self._used, False
        return used

    def let_go(self) -> None:
        """Close the file; a reader that holds it keeps it open.

        Sync unsynced bytes first. The system reports a failed write to the next sync of an open descriptor of the file.
        Once no descriptor is open, it may drop the file from memory, and the failure with it; a later sync would then
        succeed although bytes are lost. The failure is kept, and `flush` raises it. (An index may lose entries in this
        way; it can be rebuilt.)
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
        """Bytes of whole batches in the `.log` file; in an active segment, as of the last `settle`."""
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
        """Create the files of a new segment: an empty log and two index files at full size (SEMANTICS 2.15, 3.1)."""
        self.is_active = True
        self._file = LogFile(self.path, write=True, create=True)
        if preallocate_bytes:
            fs.truncate(self._file.fd, preallocate_bytes)
        self._size = 0
        self._maximum = (NO_TIMESTAMP, self.base_offset)
        self._first_batch = None
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self.activate()

    def activate(self, max_index_bytes: int | None = None) -> None:
        """Grow both indexes to the size that they have in an active segment (SEMANTICS 3.5)."""
        self.is_active, self.unsynced = True, False
        self.offset_index.grow(max_index_bytes)
        self.time_index.grow(max_index_bytes)

    # Timestamps.

    @property
    def maximum(self) -> tuple[int, int]:
        """The greatest timestamp, and the last offset of the first batch that has it; (-1, base offset) if none."""
        if self._maximum is None:
            self._maximum = self.maximum_below(self.size_bytes)
        return self._maximum

    @maximum.setter
    def maximum(self, maximum: tuple[int, int]) -> None:
        self._maximum, self.times_doubted = maximum, False

    def maximum_below(self, end: int) -> tuple[int, int]:
        """Return the `maximum` of the batches before the position `end`, from the index and the batch headers.

        If damage prevents reading it, return the index's last entry and set `times_doubted`.
        """
        try:
            return time_search.read_maximum(self, end)
        except CorruptRecordError:
            self.times_doubted = True
            return self.time_index.last

    def largest_timestamp(self) -> int:
        """Return the greatest timestamp, else the time of the file's last change in milliseconds (SEMANTICS 6.6)."""
        timestamp = self.maximum[0]
        return timestamp if timestamp >= 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        return self.modified_ns // 1_000_000

    @property
    def modified_ns(self) -> int:
        return self._stat().st_mtime_ns

    def first_timestamp(self, size_bytes: int | None = None) -> int | None:
        """Return the first batch's greatest timestamp (SEMANTICS 2.5), or None for an empty segment.

        Pass `size_bytes` if the segment has grown since the last `settle`.
        """
        first = self.first_batch(size_bytes)
        return None if first is None else first.max_timestamp

    def first_batch(self, size_bytes: int | None = None) -> _log_search.BatchPlace | None:
        """Return the place of the first batch, or None for an empty segment; `size_bytes` as in `first_timestamp`."""
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        if self._first_batch is None and size_bytes > 0:
            file = self.file  # held here and below: its descriptor must outlive the search
            self._first_batch = _log_search.find_batch(file.fd, 0, size_bytes, self.base_offset, path=self.path)
        return self._first_batch

    # Searches.

    def start(self, offset: int, end: int) -> tuple[int, int]:
        """Return where to start reading for `offset` in the batches before the position `end`: (position, `least`).

        The position is that of the batch that holds `offset`, or of an earlier one; `least` is the base offset of that
        batch, or of the segment at position 0. An entry of the offset index that the log contradicts is skipped, with a
        warning.
        """
        try:
            return self._indexed_start(offset, end)
        except CorruptIndexError as error:  # another program has truncated it
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
        """Return whether a wrong entry is still there: a truncation cuts the index before the log."""
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
        """Log an entry that the log contradicts, unless a cleaner has just replaced the files."""
        if fs.is_at(self.file.fd, self.path):
            self.faults.report_entry(path, entry)

    def find_batch(self, offset: int, end: int, *, most: int = MAX_OFFSET) -> _log_search.BatchPlace | None:
        """Find the batch that holds `offset`, or the first one after it (SEMANTICS 3.18a).

        All offsets must be below `most`. Raises `CorruptRecordError` if the batches on the way are out of order.
        """
        file = self.file
        position, least = self.start(offset, end)
        place = _log_search.find_batch(file.fd, position, end, offset, least=least, most=most, path=self.path)
        return place if place is None or place.magic >= 2 else self._with_inner_base(place)

    def _with_inner_base(self, place: _log_search.BatchPlace) -> _log_search.BatchPlace:
        """Return the place of an old-format batch with its base offset: a wrapper's header has only its last offset."""
        data = self.file.read(place.position, place.size_bytes)
        [batch] = _core.decode_batches(data, check_crc=False, path=self.path, position=place.position)
        return place._replace(base_offset=batch.base_offset)

    def read_next_offset(self) -> int:
        """Return one past the last offset, read from the last indexed batch on (SEMANTICS 8.10)."""
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
        """Check every batch of `[position, end)`. Offsets start at `after` or above it (default: the base offset)."""
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
        """Run `scan`, knowing that flushed data ends at offset `flushed_end`.

        A batch ends there, too, unless the log was cut there. A log cut inside a batch, and then appended to, has a gap
        up to there (SEMANTICS 11.4). If it was closed since, it ends at `flushed_end`, and a gap up to there is damage.
        """
        result = self.scan(position, end, flushed_end=flushed_end, **scan)
        if result.stop != "gap" or self.indexes_look_trimmed():
            return result
        behind = _log_search.header_at(self.file.fd, result.end_position, end, path=self.path)
        is_cut = behind is not None and behind.base_offset == flushed_end
        return self.scan(position, end, **scan) if is_cut else result

    def indexes_look_trimmed(self) -> bool:
        """Return whether both indexes are as a close leaves them: sound entries that fit the log, and nothing else."""
        size = self.size_bytes
        return self.offset_index.looks_trimmed(size) and self.time_index.looks_trimmed(size)

    # Changes.

    def seal(self, *, before_deletion: bool = False) -> None:
        """Close the segment for appends: add the closing time entry, trim the indexes and the log (SEMANTICS 2.9).

        With `before_deletion` the segment is deleted next, and does without the entry on a full disk.
        """
        timestamp, offset = self.maximum
        if timestamp >= 0:
            try:
                self.time_index.maybe_append(timestamp, offset, force=True)
            except fs.FullDiskError:
                if not before_deletion:
                    raise
            except ValueError as error:  # its last entry is newer than the segment: it is another segment's index
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
        """Switch to the files now at the paths: sealed, synced, a log of `size_bytes`. Readers may hold this object."""
        self.is_active = self.pinned = self.unsynced = self.times_doubted = False
        self.confirmed, self.faults = NONE_CONFIRMED, IndexFaults()
        self._offset_index = self._time_index = None
        self._maximum = self._first_batch = None
        self._file = None
        self._size = size_bytes
        openfiles.opened(self, 0)

    def check(
        self, *, index_interval_bytes: int, latest_epoch: int, flushed_below: int, flushed_end: int, is_last: bool
    ) -> Checked:
        """Scan the whole file for `recover`; changes nothing. `flushed_end` is that of `scan_flushed`.

        Raises `CorruptRecordError` if anything below `flushed_below` is unsound, or if the last segment ends below it:
        that data was flushed, and recovery never cuts it.
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
        """Cut unsound data, and rebuild both indexes (SEMANTICS 8.14 to 8.18).

        `before_cut` removes what must not outlive the cut. The cut is synced before anything can follow it.
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
        self._first_batch = None
        self.offset_index.replace(scan.index_entries, at_full_size=is_last)
        # In one write, or none if nothing has changed: the disk may be full.
        closing = b"" if is_last else self.time_index.closing_entry(scan.time_entries, *self.maximum)
        self.time_index.replace(scan.time_entries + closing, at_full_size=is_last)
        if is_last and has_timestamps:
            with suppress(fs.FullDiskError):  # an active segment gets its closing entry when it is sealed
                self.time_index.maybe_append(*self.maximum, force=True)
        if not is_last:  # otherwise they grow to full size next, through the descriptors that are open now
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
        """Return the position of a truncation to `offset`, and one past the last offset before it (SEMANTICS 11.3)."""
        place = self.find_batch(offset, self.size_bytes)
        position = self.size_bytes if place is None else place.position
        file = self.file
        # An entry at the offset itself leads to the batch that is cut.
        start, least = self.start(max(offset - 1, self.base_offset), position)
        last = _log_search.last_offset(file.fd, start, position, least=least, path=self.path)
        return position, self.base_offset if last is None else last.last_offset + 1

    def truncate_to(self, offset: int, position: int, now_ms: int) -> None:
        """Cut the log and its indexes at the place that `find_cut` found, and grow the indexes (SEMANTICS 11.3)."""
        self.is_active = True
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        file = self.file
        if position < file.size():
            fs.truncate(file.fd, position)
            fs.fdatasync(file.fd)  # otherwise a power cut may bring back cut bytes after those written in their place
        if position == 0:
            self.created_ms = now_ms  # even if a cleaning has left nothing to cut
        self._size = position
        self._first_batch = self._maximum = None
        with suppress(CorruptRecordError):
            self.maximum = time_search.scan_maximum(self, position)
        self.confirmed = NONE_CONFIRMED

    def flush(self) -> None:
        """Sync the files, the log first (FORMAT 1.9)."""
        self.flush_log()
        self.offset_index.flush()
        self.time_index.flush()
        if self._txn_index is not None:
            self._txn_index.flush()

    def flush_log(self) -> None:
        if self._failure is not None:
            raise self._failure
        file, is_sealed = self.file, not self.is_active  # held: its descriptor must outlive the sync
        fs.fdatasync(file.fd)
        if is_sealed:
            self.unsynced = False

    def mark_deleted(self) -> list[str]:
        """Rename the segment's files to `.deleted`, the log first (SEMANTICS 6.12). Return paths to unlink later."""
        self.faults.mute()
        renamed = []
        for kind in names.SEGMENT_KINDS:
            path = self._path_of(names.file_name(self.base_offset, kind))
            if kind == names.LOG or fs.exists(path):
                fs.rename(path, path + names.DELETED)
                renamed.append(path + names.DELETED)
        return renamed

    def rename(self, state: str) -> list[str]:
        """Rename every file to its final name plus `state`, the log first. Return the new paths. Nothing is synced.

        Readers continue with the files: this object knows their new paths.
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
        """Close the files; a reader that holds one keeps it open."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._file = None


def new_segment(directory: str, base_offset: int, config: LogConfig) -> Segment:
    """Return the object of a segment whose files do not exist yet."""
    return Segment(
        directory,
        base_offset,
        max_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
    )


def create_files(segment: Segment, config: LogConfig, now_ms: int) -> None:
    segment.create(
        preallocate_bytes=config.effective_segment_bytes if config.preallocate else 0,
        now_ms=now_ms,
        jitter_ms=draw_jitter(config),
    )
