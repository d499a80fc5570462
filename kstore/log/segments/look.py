"""What a store learns of a log by a look at its directory, without opening the log.

A look finds out whether the log has to be opened at once: whether it is as a close leaves it, and if not, whether its
recovery can wait until the log is needed. It changes nothing. The hardest rule: where a recovery would cut or refuse
anything, or has producers to find, a look vouches for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kstore.disk import fs
from kstore.errors import CorruptRecordError, StorageError
from kstore.files import _scan, names
from kstore.files._index import OFFSET_ENTRY_BYTES, OffsetEntries, TimeEntries
from kstore.files.epochs import LeaderEpochCache
from kstore.files.logfile import open_log
from kstore.log.segments._producers import ProducerTable
from kstore.log.segments.segment import NO_ENTRIES, Segment

UNFINISHED = (names.DELETED, names.CLEANED, names.SWAP, names.TXN_INDEX + ".tmp")
"""The ends of the names of what an interrupted deletion, cleaning or recovery left."""

LITTLE_BYTES = 1 << 20
"""A last segment up to this size is checked whole by a look, and again when the log is opened."""

_NO_PRODUCERS = ProducerTable().snapshot()

Index = TypeVar("Index", OffsetEntries, TimeEntries)


class Seen(NamedTuple):
    """The result of `look`: what an opening need not find out again."""

    needs_nothing: bool
    """Whether `recovery.load` would find the log as a close leaves it, or a directory in which no log was begun."""

    is_open: bool
    """Whether the last segments were looked at, and are not as a close leaves them."""

    entries: list[str]
    """The names in the directory."""

    sound_end: int | None = None
    """Where a log ends that was not closed, if its recovery can wait: it would find no producers, and cut nothing."""


def look(directory: str, recovery_point: int, log_start_offset: int) -> Seen:
    """Look at a log that no mark of a clean shutdown vouches for. Raises `StorageError`."""
    entries = fs.listdir(directory)
    if any(name.endswith(UNFINISHED) for name in entries):
        return Seen(False, False, entries)
    files = names.offsets_by_kind(entries)
    bases = sorted(files[names.LOG])
    if not bases:
        return Seen(not any(files.values()) and recovery_point <= log_start_offset, False, entries)
    if recovery_point < log_start_offset or not set(files[names.OFFSET_INDEX]).issuperset(bases):
        return Seen(False, False, entries)
    is_plain = bases == sorted(files[names.OFFSET_INDEX]) == sorted(files[names.TIME_INDEX])
    # A segment that begins at the recovery point may have to be recovered with the one before it.
    if is_plain and not files[names.TXN_INDEX] and (len(bases) == 1 or bases[-1] < recovery_point):
        little = _Little.read(directory, bases[-1], recovery_point)
        if little is not None:
            if little.is_closed(recovery_point):
                return Seen(True, False, entries)
            can_wait = little.can_wait(bases[0], log_start_offset, files[names.SNAPSHOT])
            return Seen(False, True, entries, little.end_offset if can_wait else None)
    segments = [Segment(directory, base, max_index_bytes=0) for base in bases[-2:]]
    try:
        is_closed = ends_closed(segments, recovery_point, set(files[names.TXN_INDEX]))
    finally:
        for segment in segments:
            segment.close()
    return Seen(is_closed, not is_closed, entries)


class _Little(NamedTuple):
    """The last segment of a log, read whole: all of it is sound, and it is no shorter than what was flushed."""

    directory: str
    base_offset: int
    size_bytes: int
    scan: _scan.ScanResult

    @classmethod
    def read(cls, directory: str, base_offset: int, recovery_point: int) -> _Little | None:
        """Read the segment; None for a large one, and for one that is not so."""
        path = f"{directory}/{names.log_name(base_offset)}"
        if fs.stat(path).st_size > LITTLE_BYTES:
            return None
        log = open_log(path)
        try:
            size = fs.size(log)
            scan = _scan.scan(
                log, 0, size, base_offset, index_interval_bytes=NO_ENTRIES, flushed_end=recovery_point, path=path
            )
        finally:
            fs.close(log)
        little = cls(directory, base_offset, size, scan)
        return little if scan.reason is None and little.end_offset >= recovery_point else None

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        end: int | None = self.scan.next_offset
        return self.base_offset if end is None else end

    def is_closed(self, recovery_point: int) -> bool:
        """Whether the segment is as a close leaves it: it ends at the recovery point, and both indexes fit it."""
        if self.end_offset != recovery_point:
            return False
        offsets = self._trimmed(names.index_name(self.base_offset), OffsetEntries)
        if offsets is None or (offsets.entries and offsets.last[1] >= self.size_bytes):
            return False
        times = self._trimmed(names.time_index_name(self.base_offset), TimeEntries)
        if times is None or self.scan.max_timestamp < 0:
            return times is not None and not times.entries
        if times.last == (self.scan.max_timestamp, self.scan.max_timestamp_offset):  # the closing entry
            return True
        segment = Segment(self.directory, self.base_offset, max_index_bytes=0)
        try:
            return fits_time_index(segment, self.end_offset)  # an entry of an older broker names the record
        finally:
            segment.close()

    def _trimmed(self, name: str, kind: Callable[[bytes, int], Index]) -> Index | None:
        """An index that is sound to its end; None for any other, such as one at full size."""
        file = fs.open(f"{self.directory}/{name}")
        try:
            size = fs.size(file)
            data = fs.pread(file, size, 0) if 0 < size <= self.size_bytes else b""  # an entry is less than its batch
        finally:
            fs.close(file)
        index = kind(data, self.base_offset)
        return index if len(data) == size == index.sound_entries() * index.entry_bytes else None

    def can_wait(self, first_base: int, log_start_offset: int, snapshots: Iterable[int]) -> bool:
        """Whether a recovery of the log finds no producers, cuts nothing and warns of nothing; `snapshots` are those
        that there are.

        A recovery begins with the newest snapshot that is not above the segment's base.
        """
        if self.scan.producer_batches or self.end_offset < log_start_offset:
            return False
        newest = max((offset for offset in snapshots if offset <= self.base_offset), default=None)
        if first_base < self.base_offset and newest != self.base_offset:
            return False
        try:
            path = f"{self.directory}/{names.snapshot_name(self.base_offset if newest is None else newest)}"
            if newest is not None and fs.read_file(path) != _NO_PRODUCERS:
                return False
            epochs = LeaderEpochCache.open(f"{self.directory}/{names.LEADER_EPOCH_CHECKPOINT}", create=False).entries
        except StorageError:  # an opening says it
            return False
        return not epochs or epochs[0].offset >= first_base


def reaches_its_end(directory: str, recovery_point: int, log_start_offset: int) -> bool:
    """Whether a log that was shut down in order is as long as its marks say, and its last stretch is sound.

    A store calls this for all its logs, so little is read: the last entry of the last offset index, and the batches
    behind it. False where more has to be read, as `load` does. Raises `StorageError`.
    """
    entries = fs.listdir(directory)
    logs = [name for name in entries if name.endswith(names.LOG)]
    if not logs:
        return recovery_point <= log_start_offset
    last = max(logs)
    base = names.parse_offset(last)
    if base is None or any(name.endswith((names.SWAP, names.CLEANED)) for name in entries):
        return False
    path = f"{directory}/{last}"
    try:
        position = _last_indexed(f"{directory}/{names.index_name(base)}")
    except fs.MissingFileError:
        return False
    log = open_log(path)
    try:
        size = fs.size(log)
        if position is None or position > size:
            return False
        flushed_end = recovery_point if recovery_point > log_start_offset else -1
        scan = _scan.scan(
            log, position, size, base, index_interval_bytes=NO_ENTRIES, flushed_end=flushed_end, path=path
        )
    finally:
        fs.close(log)
    end_offset = base if scan.next_offset is None else scan.next_offset
    return scan.reason is None and end_offset >= max(recovery_point, log_start_offset)


def _last_indexed(path: str) -> int | None:
    """The position in the last entry of an offset index, 0 for none; None for a file that a close would have left
    otherwise."""
    index = fs.open(path)
    try:
        size = fs.size(index)
        entry = (
            fs.pread(index, OFFSET_ENTRY_BYTES, max(size - OFFSET_ENTRY_BYTES, 0))
            if size
            else bytes(OFFSET_ENTRY_BYTES)
        )
    finally:
        fs.close(index)
    if size % OFFSET_ENTRY_BYTES or len(entry) < OFFSET_ENTRY_BYTES or (size and not any(entry)):
        return None
    _, position = OffsetEntries(entry, 0).last
    return position


def _whole_end(last: Segment, flushed_end: int) -> int | None:
    """One past the last offset of a segment whose indexes fit it and whose last stretch is sound, else None."""
    if not last.indexes_look_trimmed():
        return None
    end_offset = sound_end(last, flushed_end)
    return None if end_offset is None or not fits_time_index(last, end_offset) else end_offset


def sound_end(last: Segment, flushed_end: int) -> int | None:
    """One past the last offset behind the last index entry; None if a batch there is unsound (see `_scan.scan`)."""
    position, least = last.start(last.offset_index.last[0], last.size_bytes)
    scan = last.scan_flushed(position, last.size_bytes, flushed_end, after=least)
    if scan.reason is not None:
        return None
    return last.base_offset if scan.next_offset is None else scan.next_offset


def fits_time_index(last: Segment, next_offset: int) -> bool:
    """Whether the time index has its closing entry (SEMANTICS 2.9), and none beyond the end."""
    if last.time_index.entries and last.time_index.last[1] >= next_offset:
        return False
    try:
        return last.has_closing_entry(last.size_bytes)
    except CorruptRecordError:
        return False


def ends_closed(segments: Sequence[Segment], recovery_point: int, with_txn_index: Container[int]) -> bool:
    """Whether a log's last segment is as a close leaves it, and ends at the recovery point.

    `with_txn_index` are the bases of the segments that have an index of aborted transactions. If the last segment is
    empty, the one before it has to be so, too: a crash may have come before the sync of the roll.
    """
    last = segments[-1]
    if last.base_offset == recovery_point and last.size_bytes:
        return False
    if last.base_offset == recovery_point and not all(each.indexes_look_trimmed() for each in segments[-2:-1]):
        return False
    if last.base_offset in with_txn_index and not last.txn_index.looks_sound(last.base_offset, recovery_point):
        return False  # the index has an entry for a marker that was lost
    return _whole_end(last, recovery_point) == recovery_point
