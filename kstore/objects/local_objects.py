"""`LocalObjects`: a directory on this machine as an object store.

Invariant: an object gets its name only when it is complete and synced. Conditional writes check and rename under one
lock, so that two processes get the guarantees of an object store.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from kstore._core import crc32c
from kstore.disk import fs, newfiles
from kstore.disk.newfiles import FilePart
from kstore.errors import BackupError, StorageError
from kstore.objects.object_store import (
    MOST_BYTES,
    Fetched,
    ObjectChangedError,
    ObjectInfo,
    ObjectMissingError,
    Objects,
    Tag,
    Tagged,
)

MOST_LEVELS = 8
"""The most parts of a key that is read: a tier's keys have three and those of its prefix."""
_WRITTEN_LEVELS = 2
"""The most parts of a key that is written: a backup's keys have no more."""

_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.part$")
_READ_BYTES = 1 << 20  # malloc returns larger buffers to the system: each new one costs page faults


class LocalObjects(Objects):
    """The files below a directory."""

    parts_are_new = True

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = os.path.realpath(path)
        super().__init__(self.path)
        if create:
            fs.make_directories(self.path)
        elif not fs.exists(self.path):
            raise BackupError(f"there is no directory {self.path}")

    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        self._count("get")
        with self._failing(key), suppress(fs.MissingFileError):
            data = fs.read_file(self._path(key), most_bytes=most_bytes)
            return Tagged(data, _tag(data))
        return None

    def read_range(self, key: str, position: int, length: int) -> bytes:
        return b"".join(self.stream(key, position, length))

    def fetch(self, key: str, position: int, length: int, etag: str | None = None) -> Fetched:
        self._count("get")
        try:
            with fs.closing(fs.open(self._path(key))) as fd:
                found = _etag(fs.fstat(fd))
                if etag not in (None, found):
                    raise ObjectChangedError(f"{key} in {self.path} has been replaced since it was listed or read")
                return Fetched(memoryview(fs.pread(fd, length, position)), fs.size(fd), found)
        except fs.MissingFileError as error:
            raise ObjectMissingError(f"{key} is missing in {self.path}") from error
        except StorageError as error:
            raise BackupError(f"{key} in {self.path}: {error.strerror or error}") from error

    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        self._count("get")
        with self._failing(key), fs.closing(fs.open(self._path(key))) as fd:
            end = position + length
            while position < end and (part := fs.pread(fd, min(_READ_BYTES, end - position), position)):
                position += len(part)
                yield memoryview(part)

    def size(self, key: str) -> int | None:
        self._count("get")
        with self._failing(key), suppress(fs.MissingFileError):
            return fs.stat(self._path(key), follow=False).st_size
        return None

    def put_new(self, key: str, data: bytes) -> bool:
        return self.put_new_parts(key, [data])

    def put_new_parts(self, key: str, parts: Iterable[bytes | FilePart]) -> bool:
        self._count("put")
        with self._failing(key), self._written(key, parts) as (temporary, path):
            with fs.checkpoint_lock(self.path):
                if fs.exists(path):
                    fs.unlink(temporary)
                    return False
                fs.rename(temporary, path)
            fs.sync_directory(os.path.dirname(path))
        return True

    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        self._count("put")
        with self._failing(key), self._written(key, parts) as (temporary, path):
            fs.rename(temporary, path)
            fs.sync_directory(os.path.dirname(path))

    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        self._count("put", len(data))
        path = self._path(key)
        with self._failing(key), fs.checkpoint_lock(self.path):
            found: Tag | None = None
            with suppress(fs.MissingFileError):
                found = _tag(fs.read_file(path, most_bytes=MOST_BYTES))
            if found != tag:
                raise ObjectChangedError(f"{path} has another content than the one that was read")
            fs.write_atomically(path, data)
        return _tag(data)

    def list(self) -> Iterator[ObjectInfo]:
        self._count("list")
        try:
            for key, entry in _files_below(self.path, "", MOST_LEVELS):
                if key != fs.LOCK_FILE:
                    yield _info(key, entry)
        except (StorageError, OSError) as error:
            raise BackupError(f"{self.path} cannot be listed: {error}") from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and directories that are empty afterwards."""
        for key in keys:
            self._count("delete")
            with self._failing(key):
                if fs.unlink(self._path(key)) and "/" in key:
                    directory = os.path.dirname(self._path(key))
                    fs.sync_directory(directory)
                    if not fs.listdir(directory):
                        fs.rmdir(directory)

    def remove_unfinished(self) -> None:
        for info in self.list():
            if _UNFINISHED.search(info.key):
                with self._failing(info.key):
                    newfiles.remove_leftover(self._path(info.key))

    @contextmanager
    def _written(self, key: str, parts: Iterable[bytes | FilePart]) -> Iterator[tuple[str, str]]:
        """Write parts to a temporary file with a unique name; yield the file's path and the object's path."""
        path = self._path(key, levels=_WRITTEN_LEVELS)
        if os.path.dirname(path) != self.path:
            fs.mkdir(os.path.dirname(path))
        temporary = f"{path}.{secrets.token_hex(8)}.part"
        with newfiles.written(temporary, self._counted(parts)):
            yield temporary, path

    def _counted(self, parts: Iterable[bytes | FilePart]) -> Iterator[bytes | FilePart]:
        for part in parts:
            yield part
            with self._counting:  # if the caller asks for the next part, it has written this one
                self.sent_bytes += len(part)

    def _path(self, key: str, *, levels: int = MOST_LEVELS) -> str:
        parts = key.split("/")
        if len(parts) > levels or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise BackupError(f"{key[:80]!a} is no name of an object below {self.path}")
        return f"{self.path}/{key}"

    @contextmanager
    def _failing(self, key: str) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            raise BackupError(f"{key} in {self.path}: {error.strerror or error}") from error


def _files_below(path: str, prefix: str, levels: int) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the keys of the files in a directory and in those below it. Symbolic links are not followed."""
    for entry in fs.scandir(path):
        if entry.is_file(follow_symlinks=False):
            yield prefix + entry.name, entry
        elif levels > 1 and entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/", levels - 1)


def _info(key: str, entry: os.DirEntry[str]) -> ObjectInfo:
    stat = entry.stat(follow_symlinks=False)
    return ObjectInfo(key, stat.st_size, _etag(stat), stat.st_mtime_ns // 1_000_000)


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def _tag(data: bytes) -> Tag:
    return f"{len(data)}-{crc32c(data):08x}", None
