"""Finds the files of a partition that a dump reads, and the bytes in them that hold a range of offsets or times.

Invariant: an index entry is used only if the log confirms it; a wrong entry is reported, and the log is read instead.
No file is opened for writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from kstore.base.optional import Late
from kstore.codec import header
from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError
from kstore.files import _log_search, names
from kstore.files._index_search import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetEntries, TimeEntries
from kstore.tools.check import _verify

if TYPE_CHECKING:
    import numpy
else:
    numpy = Late("numpy")

__all__ = [
    "LEAST", "MOST", "PartitionFiles", "Report", "SegmentFiles", "Span", "Stretch", "follow", "partition_files",
    "sound_offsets", "stretches",
]  # fmt: skip

LEAST, MOST = -(1 << 63), (1 << 63) - 1

Report = Callable[[str, int | None, str], object]
"""Called for each fault with the file, the position in it or None, and a description."""


@dataclass(frozen=True)
class Span:
    """A range of offsets, of times or of both; None is no bound. Immutable.

    A time (milliseconds) means the offset that a search by time finds: that of the first record at or after the time.
    """

    from_offset: int | None = None
    to_offset: int | None = None
    from_time: int | None = None
    to_time: int | None = None

    @property
    def is_whole(self) -> bool:
        return self == Span()


@dataclass(frozen=True)
class SegmentFiles:
    """The files of one base offset: their paths by kind (`.log`, …), and the kinds to dump.

    `limit_offset` is the next segment's base offset. Immutable.
    """

    base_offset: int
    paths: dict[str, str]
    wanted: tuple[str, ...]
    limit_offset: int = MOST


class PartitionFiles(NamedTuple):
    """The segments of a partition's directory, and the paths that have names of segment files but are no files."""

    segments: list[SegmentFiles]
    others: list[str]


@dataclass(frozen=True)
class Stretch:
    """The part of a segment to dump: bytes `[start, end)` of its log (None: to its end), and offsets. Immutable."""

    files: SegmentFiles
    start: int = 0
    end: int | None = None
    start_offset: int = LEAST
    end_offset: int = MOST


def partition_files(directory: str) -> PartitionFiles:
    """Return the files of a partition by base offset, without `.deleted`, `.cleaned`, `.swap`; raise `StorageError`."""
    by_base: dict[int, dict[str, str]] = {}
    others: list[str] = []
    for entry in fs.scandir(directory):
        parsed = names.parse_file_name(entry.name)
        if parsed is not None and not parsed.state:
            path = f"{directory.rstrip('/')}/{entry.name}"
            if entry.is_file(follow_symlinks=False):
                by_base.setdefault(parsed.offset, {})[parsed.kind] = path
            else:
                others.append(path)
    segments: list[SegmentFiles] = []
    limit_offset = MOST
    for offset in sorted(by_base, reverse=True):
        paths = by_base[offset]
        wanted = tuple(kind for kind in (*names.SEGMENT_KINDS, names.SNAPSHOT) if kind in paths)
        segments.append(SegmentFiles(offset, paths, wanted, limit_offset))
        if names.LOG in paths:
            limit_offset = offset
    return PartitionFiles(segments[::-1], sorted(others))


def stretches(segments: Sequence[SegmentFiles], span: Span, report: Report) -> Iterator[Stretch]:
    """Yield the parts of a partition's segments that hold a span, one segment after the other."""
    low = LEAST if span.from_offset is None else span.from_offset
    high = MOST if span.to_offset is None else span.to_offset
    begun, done = span.from_time is None, False
    for files in segments:
        if done or files.base_offset >= high:
            return
        if files.limit_offset <= low:
            continue
        if span.is_whole or names.LOG not in files.paths:
            if begun:
                yield Stretch(files, start_offset=low, end_offset=high)
            continue
        try:
            with _Finder(files, report) as finder:
                if span.from_time is not None and not begun:
                    first = finder.first_at(span.from_time, low)
                    if first is None:
                        continue
                    low, begun = max(low, first), True
                if span.to_time is not None:
                    past = finder.first_at(span.to_time, low)
                    if past is not None:
                        high, done = min(high, past), True
                start, end = finder.positions(low, high)
        except KStoreError as error:
            report(files.paths[names.LOG], None, str(error))
            continue
        if low < high:
            yield Stretch(files, start, end, low, high)


def follow(
    fd: int, position: int, end: int, files: SegmentFiles, next_offset: int, path: str, *, legacy: bool = False
) -> int:
    """Return the position of a sound batch at or after `position`, -1 if none; prefer offsets from `next_offset` on."""
    base_offset, limit_offset = files.base_offset, files.limit_offset
    if base_offset < next_offset < limit_offset:
        next_position = _verify.find_next(fd, position, end, next_offset, limit_offset, legacy=legacy, path=path)
        if next_position >= 0:
            return next_position
    return _verify.find_next(fd, position, end, base_offset, limit_offset, legacy=legacy, path=path)


class _Finder:
    """Searches for offsets and times in a segment. Not thread-safe."""

    def __init__(self, files: SegmentFiles, report: Report) -> None:
        self._files = files
        self._report = report
        self._path = files.paths[names.LOG]
        self._index: OffsetEntries | None = None
        self._fd = fs.open(self._path)
        try:
            self._size = fs.size(self._fd)
        except BaseException:
            fs.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        fs.close(self._fd)

    def positions(self, low: int, high: int) -> tuple[int, int]:
        """Return the range of bytes that holds every batch with offsets in `[low, high)`, and few others."""
        start, end = 0, self._size
        if low > self._files.base_offset:
            offset, position = self._offsets().lookup(low)
            if position and self._is_there(position, LEAST, offset):
                start = position
        if high < self._files.limit_offset:
            slot = self._offsets().entries_below(high) + 1
            if slot < self._offsets().entries:
                position = self._offsets().entry(slot)[1]
                if self._is_there(position, high, MOST):
                    end = position
        return start, max(start, end)

    def first_at(self, timestamp: int, min_offset: int) -> int | None:
        """Return the offset of the first record from `min_offset` on with this timestamp or a later one, or None."""
        position = max(self._start_of(timestamp), self.positions(min_offset, MOST)[0])
        while True:
            try:
                record = _log_search.find_timestamp(
                    self._fd, position, self._size, timestamp, max(min_offset, 0), path=self._path
                )
                return None if record is None else record.offset
            except CorruptRecordError as error:
                self._report(self._path, error.position, error.reason)
                legacy = fs.pread(self._fd, 1, header.MAGIC.at) in (b"\0", b"\1")
                behind = max(error.position, position) + 1
                position = follow(self._fd, behind, self._size, self._files, LEAST, self._path, legacy=legacy)
                if position < 0:
                    return None

    def _start_of(self, timestamp: int) -> int:
        """Return a position before which every record is older."""
        indexed, offset = self._last_older(timestamp)
        if indexed < 0:
            return 0
        try:
            batch = _log_search.find_batch(
                self._fd, self.positions(offset, MOST)[0], self._size, offset, path=self._path
            )
        except CorruptRecordError:
            return 0  # the dump reports the damage when it reads it
        if batch is None or batch.max_timestamp != indexed or (batch.magic == 2 and batch.base_offset > offset):
            what = f"an entry names timestamp {indexed} at offset {offset}, which the log does not have"
            self._report(self._files.paths[names.TIME_INDEX], None, what)
            return 0
        return batch.position

    def _last_older(self, timestamp: int) -> tuple[int, int]:
        """Return the last entry of the time index below a timestamp; (-1, ...) if there is none."""
        path = self._files.paths.get(names.TIME_INDEX)
        if path is None or not fs.exists(path):
            return -1, 0
        last = _last_bytes(path, TIME_ENTRY_BYTES)
        if last is not None and any(last):
            entry = TimeEntries(last, self._files.base_offset).entry(0)
            if 0 <= entry[0] < timestamp and entry[1] >= self._files.base_offset:
                return entry
        data = _whole(path, TIME_ENTRY_BYTES)
        entries = TimeEntries(data, self._files.base_offset)
        entries.entries = entries.sound_entries()
        return entries.lookup(timestamp - 1)

    def _offsets(self) -> OffsetEntries:
        if self._index is None:
            self._index = sound_offsets(self._files)
        return self._index

    def _is_there(self, position: int, least: int, most: int) -> bool:
        """Return whether a sound batch with a base offset in `[least, most]` starts at an entry's position."""
        if position < self._size:
            data, _, _ = _verify.walk(self._fd, position, self._size, rows=1, records=False, path=self._path)
            if data and least <= int(numpy.frombuffer(data, _verify.ROW)["base_offset"][0]) <= most:
                return True
        what = f"an entry names position {position} of the log, where no sound batch of that offset begins"
        self._report(self._files.paths[names.OFFSET_INDEX], None, what)
        return False


def sound_offsets(files: SegmentFiles) -> OffsetEntries:
    """Return the valid entries of a segment's offset index; none if there is no index."""
    path = files.paths.get(names.OFFSET_INDEX)
    data = _whole(path, OFFSET_ENTRY_BYTES) if path is not None and fs.exists(path) else b""
    index = OffsetEntries(data, files.base_offset)
    index.entries = index.sound_entries()
    return index


def _last_bytes(path: str, count: int) -> bytes | None:
    """Return the last `count` bytes of a file; None if its size is not a multiple of `count`."""
    fd = fs.open(path)
    try:
        size = fs.size(fd)
        return fs.pread(fd, count, size - count) if size and size % count == 0 else None
    finally:
        fs.close(fd)


def _whole(path: str, entry_bytes: int) -> bytes:
    """Return the bytes of a file's whole entries."""
    data = fs.read_file(path)
    return data[: len(data) - len(data) % entry_bytes]
