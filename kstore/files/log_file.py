"""Reads one `.log` file: bytes, or whole batches in pieces.

Bytes are read with `pread` and never mapped: if another process cuts the file, a read returns fewer bytes, while a map
would kill the process. The descriptor is open as long as a `LogFile` object exists, so that a reader can finish reading
a file that the log has dropped.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterator

from kstore.base.numbers import INT_MAX
from kstore.codec._batches import whole_batches
from kstore.codec.header import LOG_OVERHEAD, MIN_V0_MESSAGE, size_of
from kstore.disk import fs
from kstore.errors import CorruptRecordError, StorageError

CHUNK_BYTES = 256 * 1024
MAX_LOG_BYTES = INT_MAX
"""The largest log file, since positions have 32 bits. A larger one may be sparse, and would take long to scan."""


def open_log(path: str, *, write: bool = False, create: bool = False, follow: bool = False) -> int:
    """Open a log file and return its descriptor; raise `StorageError` (EFBIG) if it is larger than any segment."""
    fd = fs.open(path, write=write, create=create, follow=follow)
    if (size := fs.size(fd)) > MAX_LOG_BYTES:
        fs.close(fd)
        raise StorageError(errno.EFBIG, f"{size} bytes, more than the {MAX_LOG_BYTES} of the largest segment", path)
    return fd


class LogFile:
    """An open `.log` file. Reading is safe from any thread."""

    __slots__ = ("__weakref__", "_closer", "fd", "path")

    def __init__(self, path: str, *, write: bool = False, create: bool = False) -> None:
        self.path = path
        self.fd = open_log(path, write=write, create=create)
        self._closer = weakref.finalize(self, fs.close, self.fd)
        self._closer.atexit = False

    def close(self) -> None:
        """Close the descriptor now; no other thread may be reading the file."""
        self._closer()

    def size(self) -> int:
        """Return the file's length in bytes, including preallocated zeros."""
        return fs.size(self.fd)

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes of `[position, position + length)`, fewer at the end of the file."""
        return fs.pread(self.fd, length, position)

    def pieces(
        self,
        position: int,
        end: int,
        *,
        piece_bytes: int = CHUNK_BYTES,
        first_bytes: int | None = None,
        buffer: bytearray | None = None,
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the whole batches of `[position, end)` piece by piece, as (bytes, position).

        A view is valid until the next piece is requested. A batch that is larger than a piece is a piece by itself. If
        `buffer` is given it is used instead of a new one of `piece_bytes`. With `first_bytes` the first piece has that
        size, and each later piece is four times as large as the one before, up to `piece_bytes`, so that reading a
        single record reads little more. Raises `CorruptRecordError` if the bytes before `end` are not whole batches.
        """
        if buffer is None:
            buffer = bytearray(min(first_bytes or piece_bytes, max(end - position, 0)))
        while position < end:
            wanted = min(len(buffer), end - position)
            got = fs.pread_into(self.fd, memoryview(buffer)[:wanted], position)
            view = memoryview(buffer)[:got]
            whole, cut = whole_batches(view)
            if whole == 0:
                if cut < 0:
                    declared = size_of(view) - LOG_OVERHEAD
                    raise CorruptRecordError(
                        f"a batch declares a size of {declared} bytes; the least is {MIN_V0_MESSAGE}",
                        path=self.path,
                        position=position,
                    )
                if cut > end - position or got < wanted:
                    raise CorruptRecordError(
                        f"a batch needs {cut or end - position} bytes, and {min(end - position, got)} are there",
                        path=self.path,
                        position=position,
                    )
                buffer = bytearray(cut)
                continue
            yield view[:whole], position
            position += whole
            if first_bytes is not None and len(buffer) < min(piece_bytes, end - position):
                buffer = bytearray(min(4 * len(buffer), piece_bytes, end - position))
