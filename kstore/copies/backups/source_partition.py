"""Reads a partition's files for a backup: whole sealed segments, and whole batches of the active segment.

Takes no lock, so the files may be replaced or truncated while they are read. Invariant: the bytes read are used only if
the file has not been replaced since it was listed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from kstore._core import crc32c
from kstore.base.closing import Closing
from kstore.codec.header import HEADER_BYTES
from kstore.disk import fs
from kstore.errors import BackupError, CorruptRecordError
from kstore.files import _log_scan, _log_search, names
from kstore.files.log_file import open_log
from kstore.objects.backup_contents import Chunk

CHUNK_BYTES = 8 << 20
"""The largest chunk of a tail, unless one batch is larger."""

READ_BYTES = 4 << 20
"""The size of one read of a file that is not copied. After each read the thread takes the GIL, and waits up to 5 ms for
the GIL if another thread appends. Larger pieces would leave the CPU's cache before they are sent."""

_NO_ENTRIES = 1 << 40


class Target(NamedTuple):
    """A sealed segment of the source that the backup should have."""

    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    inode: int
    modified_ns: int
    size: int


class SnapshotFile(NamedTuple):
    """A producer snapshot of the source. Two different snapshots at the same offset differ in one of these fields."""

    base_offset: int
    inode: int
    modified_ns: int
    size: int


class Place(NamedTuple):
    """The last batch that was backed up: its segment's file, its position in the file and its header."""

    base_offset: int
    inode: int
    position: int
    header: bytes


class ChangedMeanwhileError(BackupError):
    """A file was replaced after it was listed; the next round lists the files again."""


def log_path(directory: str, base_offset: int) -> str:
    return os.path.join(directory, names.log_name(base_offset))


def snapshot_path(directory: str, base_offset: int) -> str:
    return os.path.join(directory, names.file_name(base_offset, names.SNAPSHOT))


def find_snapshot(directory: str, base_offset: int) -> SnapshotFile | None:
    """Return the producer snapshot at an offset; None if there is none."""
    try:
        found = fs.stat(snapshot_path(directory, base_offset), follow=False)
    except fs.MissingFileError:
        return None
    return SnapshotFile(base_offset, found.st_ino, found.st_mtime_ns, found.st_size)


def find_targets(directory: str, bases: tuple[int, ...]) -> list[Target]:
    """Return all segments except the last, each with the identity and size of its file."""
    targets = []
    for base, after in itertools.pairwise(bases):
        found = fs.stat(log_path(directory, base), follow=False)
        targets.append(Target(base, after, found.st_ino, max(found.st_mtime_ns, 0), found.st_size))
    return targets


def greatest_timestamp(directory: str, target: Target) -> int | None:
    """Return the greatest timestamp of a segment, from its batch headers; None if damage hides it."""
    path = log_path(directory, target.base_offset)
    with suppress(CorruptRecordError), fs.closing(open_log(path)) as fd:
        return _log_search.greatest_timestamp(fd, 0, target.size, least=target.base_offset, path=path).timestamp
    return None


def read_parts(path: str, length: int) -> Iterator[bytes]:
    """Yield a file's first `length` bytes in parts; `ChangedMeanwhileError` if it is shorter."""
    with fs.closing(fs.open(path)) as fd:
        yield from _parts(fd, path, 0, length)


class Part:
    """A range of an open file, to be sent. `crc` is its CRC-32C after `read` or `copy_to`. For one thread."""

    def __init__(self, fd: int, path: str, position: int, end: int) -> None:
        self._fd, self._path, self._position, self._end = fd, path, position, end
        self.crc = 0

    def __len__(self) -> int:
        return self._end - self._position

    def read(self) -> Iterator[bytes]:
        crc = 0
        for piece in _parts(self._fd, self._path, self._position, self._end):
            crc = crc32c(piece, crc)
            yield piece
        self.crc = crc

    def copy_to(self, fd: int, at: int) -> int:
        """Copy the bytes to position `at` of another file, in one call without the GIL. Returns their number."""
        copied, self.crc = fs.copy(self._fd, self._position, len(self), fd, at)
        if copied < len(self):
            raise _shorter(self._path, self._position + copied, self._end)
        return copied


def _parts(fd: int, path: str, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        part = fs.pread(fd, min(READ_BYTES, end - position), position)
        if not part:
            raise _shorter(path, position, end)
        position += len(part)
        yield part


def read_whole(path: str, length: int) -> bytes:
    """Return the first `length` bytes of a small file; `ChangedMeanwhileError` if it is shorter."""
    with fs.closing(fs.open(path)) as fd:
        return _whole(fd, path, 0, length)


def _whole(fd: int, path: str, position: int, end: int) -> bytes:
    """Read `[position, end)` in one call, since joining parts would copy the bytes with the GIL held."""
    data = fs.pread(fd, end - position, position)
    if len(data) < end - position:
        raise _shorter(path, position + len(data), end)
    return data


def _shorter(path: str, found: int, end: int) -> ChangedMeanwhileError:
    return ChangedMeanwhileError(f"{path} has {found} of the {end} bytes that it had")


def checksum(path: str, length: int) -> int:
    crc = 0
    for part in read_parts(path, length):
        crc = crc32c(part, crc)
    return crc


def is_same_file(path: str, target: Target) -> bool:
    """Whether a `.log` file has not been replaced since it was listed."""
    try:
        found = fs.stat(path, follow=False)
    except fs.MissingFileError:
        return False
    return (found.st_ino, max(found.st_mtime_ns, 0), found.st_size) == target[2:]


def find_place(directory: str, chunk: Chunk) -> Place | None:
    """Return the place of the last batch of a chunk; None if the file no longer holds the chunk's bytes."""
    with suppress(fs.MissingFileError), fs.closing(open_log(log_path(directory, chunk.base_offset))) as fd:
        if _holds(fd, chunk):
            return _find_end(fd, chunk.base_offset, chunk.position, chunk.end_position)[1]
    return None


def _find_end(fd: int, base_offset: int, position: int, end: int) -> tuple[int, Place | None]:
    scan = _log_scan.scan(fd, position, end, base_offset, index_interval_bytes=_NO_ENTRIES, check_crc=False)
    if scan.next_offset is None:
        return base_offset, None
    header = fs.pread(fd, HEADER_BYTES, scan.last_position)
    return scan.next_offset, Place(base_offset, fs.inode(fd), scan.last_position, header)


def find_end(directory: str, base_offset: int, position: int) -> tuple[int, Place | None]:
    """Find the last whole batch from `position` on. Return its end and place; if none, the base offset and None."""
    with suppress(fs.MissingFileError), fs.closing(open_log(log_path(directory, base_offset))) as fd:
        return _find_end(fd, base_offset, position, fs.size(fd))
    return base_offset, None


def sync(directory: str, base_offset: int) -> None:
    """Sync a segment's batches, including batches that another process has written."""
    with fs.closing(open_log(log_path(directory, base_offset))) as fd:
        fs.fdatasync(fd)


def is_still_there(directory: str, place: Place) -> bool:
    """Whether the batch is still at its position, in the same file."""
    with suppress(fs.MissingFileError), fs.closing(open_log(log_path(directory, place.base_offset))) as fd:
        return fs.inode(fd) == place.inode and fs.pread(fd, HEADER_BYTES, place.position) == place.header
    return False


def holds(directory: str, chunk: Chunk) -> bool:
    """Whether a segment's file has the bytes of a chunk at the chunk's position."""
    with suppress(fs.MissingFileError), fs.closing(open_log(log_path(directory, chunk.base_offset))) as fd:
        return _holds(fd, chunk)
    return False


def _holds(fd: int, chunk: Chunk) -> bool:
    is_there = fs.size(fd) >= chunk.end_position
    return is_there and crc32c(fs.pread(fd, chunk.length, chunk.position)) == chunk.crc


class NewBytes(NamedTuple):
    """Whole batches that the backup's tail lacks: their chunks and bytes, and the place of the last batch."""

    chunks: list[Chunk]
    data: list[bytes]
    place: Place | None
    is_all: bool
    """Whether the requested end offset was reached."""


def read_tail(
    directory: str, base_offset: int, position: int, end_offset: int, after: int, *, at: int, budget: int
) -> NewBytes:
    """Read and check about `budget` bytes of batches of a `Tail`; the first batch gets position `at` in the object."""
    chunks: list[Chunk] = []
    data: list[bytes] = []
    with Tail(directory, base_offset, position, end_offset, after) as tail:
        while budget > 0 and (stretch := tail.check(budget)) is not None:
            part = tail.read_whole(stretch)
            chunks.append(stretch._replace(crc=crc32c(part), at=at))
            data.append(part)
            at += len(part)
            budget -= len(part)
        tail.refuse_another_file()
        return NewBytes(chunks, data, tail.place, tail.is_all)


class Tail(Closing):
    """The batches of a file from `position` up to `end_offset`. `after` is the first offset. For one thread."""

    def __init__(self, directory: str, base_offset: int, position: int, end_offset: int, after: int) -> None:
        self.path = log_path(directory, base_offset)
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._after = after
        self._position = position
        self.place: Place | None = None
        self._fd = open_log(self.path)
        try:
            self._size = fs.size(self._fd)
            if position > self._size:
                raise ChangedMeanwhileError(f"{self.path} has {self._size} bytes, and {position} were backed up")
            self._stop = _position_of(self._fd, position, self._size, end_offset, self.path)
        except BaseException:
            self.close()
            raise

    @property
    def left_bytes(self) -> int:
        return self._stop - self._position

    @property
    def is_all(self) -> bool:
        return self._position >= self._stop

    def check(self, most_bytes: int = CHUNK_BYTES) -> Chunk | None:
        """Check some batches and return their chunk; None at the end. `CorruptRecordError` if a batch is damaged."""
        fd, path, position = self._fd, self.path, self._position
        if self.is_all:
            return None
        limit = min(self._stop, position + min(CHUNK_BYTES, most_bytes))
        scan = self._scan(position, limit)
        if scan.stop == "torn" and scan.batches:  # the limit lies inside a batch
            limit = scan.end_position
        elif scan.stop == "torn":  # one batch that is larger than the limit
            batch = _log_search.header_at(fd, position, self._size, path=path)
            if batch is None:
                raise ChangedMeanwhileError(f"{path} has no batch at {position}")
            limit = batch.position + batch.size_bytes
            scan = self._scan(position, limit)
        if scan.end_position < limit or scan.next_offset is None:
            raise CorruptRecordError(f"{scan.reason}; it is not backed up", path=path, position=scan.end_position)
        if scan.next_offset > self._end_offset:
            return None
        header = fs.pread(fd, HEADER_BYTES, scan.last_position)
        self.place = Place(self._base_offset, fs.inode(fd), scan.last_position, header)
        self._position, self._after = limit, scan.next_offset
        return Chunk(self._base_offset, position, limit - position, 0, scan.next_offset, 0, 0)

    def _scan(self, position: int, limit: int) -> _log_scan.ScanResult:
        return _log_scan.scan(self._fd, position, limit, self._after, index_interval_bytes=_NO_ENTRIES, path=self.path)

    def part(self, chunk: Chunk) -> Part:
        """Return the bytes of a chunk as a `Part`, valid until the tail is closed."""
        return Part(self._fd, self.path, chunk.position, chunk.end_position)

    def read_whole(self, chunk: Chunk) -> bytes:
        return _whole(self._fd, self.path, chunk.position, chunk.end_position)

    def refuse_another_file(self) -> None:
        """Raise `ChangedMeanwhileError` if the segment's file was replaced."""
        if not fs.is_at(self._fd, self.path):
            raise ChangedMeanwhileError(f"{self.path} is another file by now")

    def close(self) -> None:
        if self._fd >= 0:
            fs.close(self._fd)
            self._fd = -1


def _position_of(fd: int, position: int, size: int, offset: int, path: str) -> int:
    """Return the position of the first batch that ends above `offset`; if there is none, the end of the batches."""
    found = _log_search.find_batch(fd, position, size, offset, path=path)
    if found is not None:
        return found.position
    last = _log_search.last_offset(fd, position, size, path=path)
    return position if last is None else last.position
