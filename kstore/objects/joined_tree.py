"""`JoinedTree`: a log directory in use, with the older segments of its partitions from an archive.

Files of the directory are as they are now; those of the archive are of the archive's last `refresh`. Invariant: a
partition has the archive's segments below its first segment in the directory, and no offset twice; a segment of the
archive that reaches further is cut there.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kstore.disk import fs, mounts
from kstore.disk.mounts import DirectoryEntry, status_of
from kstore.errors import StorageError
from kstore.files import checkpoint, names
from kstore.objects.object_reader import ObjectReader
from kstore.objects.remote_bytes import cut_file
from kstore.objects.remote_state import UNKNOWN, RemoteFile, RemotePartition, RemoteState
from kstore.objects.remote_tree import RemoteTree, entry_of_file, status_of_file

FindCut = Callable[[str, int, int], tuple[int, int]]
"""`find(directory, base, offset)`: where a segment is cut to end at an offset, and one past its last offset then."""


class _LocalFile:
    """A file of the directory, opened in a mounted tree."""

    def __init__(self, path: str, real: str) -> None:
        self.path = path
        self._fd = fs.open(real)
        weakref.finalize(self, fs.close, self._fd).atexit = False

    @property
    def status(self) -> os.stat_result:
        return fs.fstat(self._fd)

    def read_into(self, buffer: memoryview, position: int) -> int:
        return fs.pread_into(self._fd, buffer, position)


class JoinedTree(RemoteTree):
    """The tree of a log directory and its archive. Thread-safe."""

    def __init__(self, directory: str, archive: RemoteTree, reader: ObjectReader, find: FindCut) -> None:
        self.directory = directory
        self._archive = archive
        self._find_cut = find
        self._joined: dict[str, tuple[RemotePartition, tuple[object, ...], RemotePartition | None]] = {}
        super().__init__(archive.url, reader, RemoteState("joined", {}))

    @property
    def state(self) -> RemoteState:
        return self._archive.state

    def partition(self, directory: str) -> RemotePartition | None:
        """Return the part of a partition that comes from the archive; None if there is none."""
        archived = self._archive.partition(directory)
        real = f"{self.directory}/{directory}"
        if archived is None or not fs.exists(real):
            return None
        first = first_base(fs.listdir(real))
        # `delete_records` changes the log starts, and a topic that was made again has another id.
        marks = f"{self.directory}/{checkpoint.LOG_STARTS}", f"{real}/{names.PARTITION_METADATA}"
        seen = first, *(_version(path) for path in marks)
        known = self._joined.get(directory)
        if known is None or known[0] is not archived or known[1] != seen:
            known = self._joined[directory] = archived, seen, self._join(directory, archived, first)
        return known[2]

    def _join(self, directory: str, archived: RemotePartition, first: int | None) -> RemotePartition | None:
        real = f"{self.directory}/{directory}"
        older = sorted(base for base in archived.segments if first is not None and base < first)
        if not older or first is None or not self._is_same_topic(archived, real):
            return None
        start = checkpoint.read_offsets(self.directory, checkpoint.LOG_STARTS).get((archived.topic, archived.partition))
        if start is not None and start > first:
            return None  # `delete_records` has removed what is older
        end, position = archived.segments[older[-1]].end_offset, UNKNOWN
        if end == UNKNOWN or end > first:
            position, reached = self._find_cut(directory, older[-1], first)
            end = reached if end == UNKNOWN else first
        if end < first:
            raise StorageError(
                errno.ENODATA,
                f"offsets {end} to {first - 1} of {directory} are neither in the directory nor in the archive: the "
                "archive is behind; refresh() reads it again",
                real,
            )
        files = {name: file for name, file in archived.files.items() if _is_of(name, older)}
        if position != UNKNOWN:
            name = names.log_name(older[-1])
            files[name] = cut_file(files[name], position)
        segments = {base: archived.segments[base] for base in older}
        segments[older[-1]] = segments[older[-1]]._replace(end_offset=first)
        return replace(archived, files=files, segments=segments, end_offset=first)

    def _is_same_topic(self, archived: RemotePartition, real: str) -> bool:
        metadata = archived.files.get(names.PARTITION_METADATA)
        local = checkpoint.read_partition_metadata(real)
        if metadata is None or local is None:
            return True
        directory = names.partition_name(archived.topic, archived.partition)
        held = self._archive.open(f"{directory}/{names.PARTITION_METADATA}")
        assert held is not None
        data = bytearray(held.status.st_size)
        held.read_into(memoryview(data), 0)
        return checkpoint.format_topic_id(local.topic_id).encode() in bytes(data)

    def status(self, path: str) -> os.stat_result | None:
        real = f"{self.directory}/{path}" if path else self.directory
        if fs.exists(real):
            found = fs.stat(real)
            if fs.is_directory(real):
                return status_of(True, found.st_ino, 0, found.st_mtime_ns + self._archive.revision)
            return found
        file = self._file(path)
        return None if file is None else status_of_file(file)

    def _file(self, path: str) -> RemoteFile | None:
        directory, _, name = path.rpartition("/")
        joined = self.partition(directory) if directory else None
        return None if joined is None else joined.files.get(name)

    def entries(self, path: str) -> Iterable[DirectoryEntry] | None:
        real = f"{self.directory}/{path}" if path else self.directory
        if not fs.is_directory(real):
            return None
        below = f"{self.root}/{path}" if path else self.root
        found = {}
        for entry in fs.scandir(real):
            status = entry.stat()
            size = None if entry.is_dir() else status.st_size
            place = f"{below}/{entry.name}"
            found[entry.name] = DirectoryEntry(entry.name, place, status.st_ino, size, status.st_mtime_ns)
        joined = self.partition(path) if path else None
        for name, file in {} if joined is None else joined.files.items():
            found.setdefault(name, entry_of_file(name, f"{below}/{name}", file))
        return found.values()

    def open(self, path: str) -> mounts.MountedFile | None:
        real = f"{self.directory}/{path}"
        if fs.exists(real):
            return None if fs.is_directory(real) else _LocalFile(f"{self.root}/{path}", real)
        file = self._file(path)
        return None if file is None else self.handle(path, file)

    def files_of(self, directory: str) -> Mapping[str, RemoteFile]:
        joined = self.partition(directory)
        return {} if joined is None else joined.files


def first_base(entries: Iterable[str]) -> int | None:
    """Return the base offset of the first segment; None if there is none."""
    parsed = (names.parse_file_name(name) for name in entries)
    bases = [
        file.offset for file in parsed if file is not None and file.kind == names.LOG and file.state != names.DELETED
    ]
    return min(bases, default=None)


def _version(path: str) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None for a missing file."""
    try:
        found = fs.stat(path)
    except fs.MissingFileError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_of(name: str, bases: list[int]) -> bool:
    parsed = names.parse_file_name(name)
    return parsed is not None and not parsed.state and parsed.offset in bases
