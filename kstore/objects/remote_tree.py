"""`RemoteTree`: a `RemoteState` as a directory tree that can be mounted (`kstore.disk.mounts`).

Invariant: all files are of one state. `replace` exchanges the state as a whole; files that are open keep theirs.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from kstore.disk import mounts
from kstore.disk.mounts import DirectoryEntry, status_of
from kstore.errors import BackupError
from kstore.files import names
from kstore.objects.object_reader import ObjectReader, Piece, as_storage_error
from kstore.objects.remote_state import RemoteFile, RemotePartition, RemoteState

_INODES = (1 << 62) - 1
_NS_PER_MS = 1_000_000


class _Directories(NamedTuple):
    """The directories of a state by their paths, and when they were last changed."""

    state: RemoteState
    files: Mapping[str, Mapping[str, RemoteFile]]
    partitions: Mapping[str, RemotePartition]
    changed_ns: int
    entries: dict[str, list[DirectoryEntry]]
    """The entries of directories, once they were listed."""


class RemoteFileHandle:
    """An open file. Thread-safe."""

    def __init__(self, path: str, file: RemoteFile, reader: ObjectReader) -> None:
        self.path = path
        self.status = status_of_file(file)
        self._file = file
        self._reader = reader
        self._starts = [0, *accumulate(each.length for each in file.ranges)]

    def read_into(self, buffer: memoryview, position: int) -> int:
        size = max(min(len(buffer), self.status.st_size - position), 0)
        if self._file.content is not None:
            buffer[:size] = self._file.content[position : position + size]
            return size
        done = 0
        try:
            while done < size:
                number = bisect_right(self._starts, position + done) - 1
                of, at = self._file.ranges[number], position + done - self._starts[number]
                length = min(size - done, of.length - at)
                self._reader.read_into(of, at, buffer[done : done + length])
                done += length
        except BackupError as error:
            raise as_storage_error(error, self.path) from error
        return size


class RemoteTree:
    """The tree of a prefix. Thread-safe."""

    def __init__(self, url: str, reader: ObjectReader, state: RemoteState) -> None:
        self.url = url
        self.root = ""
        """The path at which the tree is mounted."""
        self._reader = reader
        self.revision = 0
        """How often the state was exchanged."""
        self._now: _Directories
        self.replace(state)

    def replace(self, state: RemoteState) -> None:
        """Exchange the state."""
        self.revision += 1
        partitions = {names.partition_name(*key): partition for key, partition in state.partitions.items()}
        files = {"": state.files, **{name: partition.files for name, partition in partitions.items()}}
        self._now = _Directories(state, files, partitions, self.revision * 1_000_000_000, {})

    @property
    def state(self) -> RemoteState:
        return self._now.state

    def partition(self, directory: str) -> RemotePartition | None:
        """Return what is known of a partition by the name of its directory."""
        return self._now.partitions.get(directory)

    def status(self, path: str) -> os.stat_result | None:
        now = self._now
        if path in now.files:
            return status_of(True, hash(path) & _INODES, 0, now.changed_ns)
        directory, _, name = path.rpartition("/")
        file = now.files.get(directory, {}).get(name)
        return None if file is None else status_of_file(file)

    def entries(self, path: str) -> Iterable[DirectoryEntry] | None:
        now = self._now
        if (known := now.entries.get(path)) is not None:
            return known
        files = now.files.get(path)
        if files is None:
            return None
        below = f"{self.root}/{path}" if path else self.root
        found = [entry_of_file(name, f"{below}/{name}", file) for name, file in files.items()]
        if not path:
            for name in now.partitions:
                found.append(DirectoryEntry(name, f"{below}/{name}", hash(name) & _INODES, None, now.changed_ns))
        now.entries[path] = found
        return found

    def open(self, path: str) -> mounts.MountedFile | None:
        directory, _, name = path.rpartition("/")
        file = self.files_of(directory).get(name)
        return None if file is None else self.handle(path, file)

    def omits(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        parsed, partition = names.parse_file_name(name), self.partition(directory)
        if parsed is None or parsed.kind not in (names.OFFSET_INDEX, names.TIME_INDEX) or partition is None:
            return False
        known = partition.segments.get(parsed.offset)
        return known is not None and not known.has_indexes

    def handle(self, path: str, file: RemoteFile) -> RemoteFileHandle:
        """Open a file of the prefix under a path of this tree."""
        return RemoteFileHandle(f"{self.root}/{path}", file, self._reader)

    def files_of(self, directory: str) -> Mapping[str, RemoteFile]:
        """Return the files of the prefix in a directory."""
        return self._now.files.get(directory, {})

    def will_read(self, spans: Iterable[tuple[str, int, int]]) -> None:
        """Begin to fetch what will be read: (path of a file, start, end) in this order."""
        self._reader.plan(self.pieces(spans))

    def pieces(self, spans: Iterable[tuple[str, int, int]]) -> Iterator[Piece]:
        """Yield the pieces of ranges that are these bytes of files."""
        looked_at: str | None = None
        files: Mapping[str, RemoteFile] = {}
        for path, start, end in spans:
            directory, _, name = path.rpartition("/")
            if directory != looked_at:
                looked_at, files = directory, self.files_of(directory)
            file = files.get(name)
            at = 0
            for each in () if file is None else file.ranges:
                if at < end and start < at + each.length:
                    yield Piece(each, max(start - at, 0), min(end - at, each.length))
                at += each.length


def entry_of_file(name: str, path: str, file: RemoteFile) -> DirectoryEntry:
    """Return the entry of a file of a prefix in its directory."""
    return DirectoryEntry(name, path, hash(file) & _INODES, file.size, max(file.modified_ms, 1) * _NS_PER_MS)


def status_of_file(file: RemoteFile) -> os.stat_result:
    return entry_of_file("", "", file).stat()
