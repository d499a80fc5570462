"""`BlockCache`: fetched bytes of objects in a directory, up to a number of bytes.

Several processes may share the directory. Invariant: a file whose length or checksum is wrong, or which has the bytes
of another name, is not used; a file is complete before it has its name.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import threading
import time
from contextlib import suppress

from kstore._core import crc32c
from kstore.base import arguments
from kstore.disk import fs
from kstore.errors import StorageError

CACHE_BYTES = 10 << 30
"""The most bytes that the files have by default."""
_SUFFIX = ".ksblock"
_TRAILER = struct.Struct(">I")


class BlockCache:
    """A directory of fetched blocks. Thread-safe."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int = CACHE_BYTES) -> None:
        self.path = arguments.path("cache", path)
        self.most_bytes = most_bytes
        fs.make_directories(self.path)
        self._lock = threading.Lock()
        self._bytes = sum(size for _, size, _ in self._files())

    def get(self, name: str, length: int) -> bytes | None:
        path = self._path(name)
        body = None
        with suppress(StorageError):
            data = fs.read_file(path, most_bytes=length + _TRAILER.size)
            found, trailer = data[:length], data[length:]
            if trailer == _trailer(name, found):
                body = found
                fs.set_modified(path, time.time_ns())  # the oldest files are removed first
        return body

    def put(self, name: str, data: memoryview) -> None:
        """Keep bytes, unless the disk does not take them."""
        path = self._path(name)
        temporary = f"{path}.{secrets.token_hex(8)}"
        try:
            fs.write_file(temporary, b"".join((data, _trailer(name, data))), sync=False, new=True)
            fs.rename(temporary, path)
        except StorageError:
            with suppress(StorageError):
                fs.unlink(temporary)
            return
        with self._lock:
            self._bytes += len(data) + _TRAILER.size
            if self._bytes > self.most_bytes:
                with suppress(StorageError):  # the directory may have been deleted
                    self._shrink()

    def _shrink(self) -> None:
        """Remove the files that were not used for the longest time, down to nine tenths of the limit."""
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._bytes <= self.most_bytes * 9 // 10:
                break
            with suppress(StorageError):
                fs.unlink(path)
                self._bytes -= size

    def _files(self) -> list[tuple[int, int, str]]:
        found = []
        for entry in fs.scandir(self.path):
            if entry.name.partition(_SUFFIX)[1] and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found

    def _path(self, name: str) -> str:
        return os.path.join(self.path, hashlib.sha256(name.encode()).hexdigest()[:40] + _SUFFIX)


def _trailer(name: str, data: bytes | memoryview) -> bytes:
    return _TRAILER.pack(crc32c(data, crc32c(name.encode())))
