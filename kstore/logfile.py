"""One `.log` file: its descriptor, its bytes, whole batches in pieces.

Bytes are read with `pread` into buffers of our own and never mapped (DESIGN.md 3), so that a file that somebody cuts
gives fewer bytes and not a dead process. The descriptor lives as long as somebody holds the `LogFile`: a reader that
is in the middle of a file keeps it open while the log has long forgotten it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from kstore import fs
from kstore._scan import whole_batches
from kstore.errors import CorruptRecordError

CHUNK_BYTES = 256 * 1024


class LogFile:
    """An open `.log` file. Reading is safe from any thread."""

    __slots__ = ("__weakref__", "_closer", "fd", "path")

    def __init__(self, path: str, *, write: bool = False, create: bool = False) -> None:
        self.path = path
        self.fd = fs.open(path, write=write, create=create)
        self._closer = weakref.finalize(self, fs.close, self.fd)
        self._closer.atexit = False

    def close(self) -> None:
        """Close the descriptor now; only for files that nobody else can be reading."""
        self._closer()

    def size(self) -> int:
        """Return the file's length in bytes, preallocated zeros included."""
        return fs.size(self.fd)

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes of `[position, position + length)`, fewer at the end of the file."""
        return fs.pread(self.fd, length, position)

    def pieces(self, position: int, end: int, *, piece_bytes: int = CHUNK_BYTES) -> Iterator[tuple[memoryview, int]]:
        """Give the whole batches of `[position, end)` piece by piece, as (bytes, position).

        The view is only good until the next piece is asked for. A batch that is larger than a piece is a piece of its
        own. Raises `CorruptRecordError` where the bytes before `end` are not whole batches.
        """
        buffer = bytearray(min(piece_bytes, max(end - position, 0)))
        while position < end:
            wanted = min(len(buffer), end - position)
            got = fs.pread_into(self.fd, memoryview(buffer)[:wanted], position)
            view = memoryview(buffer)[:got]
            whole, cut = whole_batches(view)
            if whole == 0:
                if cut < 0:
                    found = int.from_bytes(view[8:12], "big", signed=True)
                    raise CorruptRecordError(
                        f"a batch declares a size of {found} bytes; the least is 14", path=self.path, position=position
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
