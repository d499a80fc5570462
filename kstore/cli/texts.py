"""The bytes of text files on their way to `sources`: unpacked, counted, and a CSV file's quotes followed.

The hardest rule: a packed file that ends too early is never taken for a whole one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import zstandard

__all__ = ["UNPACKING_ERRORS", "Counted", "Quotes", "is_unpacking", "unpacked"]

UNPACKING_ERRORS = (EOFError, OSError, zlib.error, zstandard.ZstdError)
"""What `unpacked` raises, beside errors of the system: `is_unpacking` tells them apart."""

_ZSTD_BYTES = 4096  # of a packed file at a time: a block of a few bytes makes 128 KiB


def is_unpacking(error: BaseException) -> bool:
    """Whether it is about the bytes of a packed file; errors of the system have a number."""
    return not isinstance(error, OSError) or error.errno is None


class Counted(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO | io.FileIO, progress: Callable[[int], object]) -> None:
        self._file, self._progress = file, progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0  # type: ignore[union-attr]
        self._progress(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def unpacked(file: io.FileIO, progress: Callable[[int], object]) -> BinaryIO:
    """The file's text: unpacked, if its first bytes say that it is packed."""
    counted = io.BufferedReader(Counted(file, progress), 1 << 20)
    start = counted.peek(4)
    found: Any = counted
    if start.startswith(b"\x1f\x8b"):
        found = gzip.GzipFile(fileobj=counted)
    elif start.startswith(b"BZh"):
        found = bz2.BZ2File(counted)
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        found = _Zstd(counted)
    else:
        return counted
    return io.BufferedReader(found, 1 << 20)


class _Zstd(io.RawIOBase):
    """Frames one after the other; `EOFError` where the last one is not whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None
        self._packed, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._file.read(_ZSTD_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(self._ready), len(buffer))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


_QUOTE = ord('"')
_QUOTED = re.compile(rb'(?:[^"]++|"")*+')


class Quotes:
    """Whether a CSV file is within quotes: they open at the start of a cell alone, and elsewhere are what they are."""

    def __init__(self, delimiter: str) -> None:
        ends = delimiter.encode() + b"\n\r"
        self._ends = np.zeros(256, np.bool_)
        self._ends[list(ends)] = True
        end = re.escape(ends)
        self._end = re.compile(b"[" + end + b"]")
        self._cells = re.compile(
            b'(?:"(?:[^"]++|"")*+"[^'
            + end
            + b"]*+["
            + end
            + b']|(?:[^"'
            + end
            + b"][^"
            + end
            + b"]*+)?+["
            + end
            + b"])*+"
        )
        self.are_open = False
        self._last = 0
        """The last byte, if it may end a cell, or is a quote that ended one or is the first of two; otherwise 0."""
        self._is_first = True

    def take(self, piece: bytes) -> None:
        """Follow the next bytes of the file."""
        if not piece:
            return
        if self._is_first:
            self._is_first = False
            self._last = ord("\n")
            piece = piece.removeprefix(b"\xef\xbb\xbf")
            if not piece:
                return
        if not self.are_open and b'"' not in piece:
            self._last = piece[-1]
        elif not self._alternate(piece):
            self._follow(piece)

    def _alternate(self, piece: bytes) -> bool:
        """The usual case, in which every second quote opens a cell or is the second of two; False if it is not."""
        signs = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(signs == _QUOTE)
        opening = quotes[int(self.are_open) :: 2]
        before = signs[opening - 1]
        if len(opening) and opening[0] == 0:
            before[0] = self._last
        if not (self._ends[before] | (before == _QUOTE)).all():
            return False
        self.are_open ^= bool(len(quotes) % 2)
        self._last = piece[-1]
        return True

    def _follow(self, piece: bytes) -> None:
        """Any case, cell by cell."""
        at, closed = 0, -1
        if not self.are_open and self._last == _QUOTE == piece[0]:
            self.are_open, at = True, 1
        is_start = not self.are_open and bool(self._ends[self._last])
        if self.are_open:
            at = closed = self._close(piece, at)
        if not self.are_open and not is_start:
            found = self._end.search(piece, at)
            at, is_start = (found.end(), True) if found is not None else (len(piece), False)
        if is_start:
            cells = self._cells.match(piece, at)
            at = cells.end() if cells is not None else at
            if piece[at : at + 1] == b'"':
                at = closed = self._close(piece, at + 1)
        is_literal = piece[-1] == _QUOTE and not self.are_open and closed != len(piece)
        self._last = 0 if is_literal else piece[-1]

    def _close(self, piece: bytes, at: int) -> int:
        """Where the quoted part that goes on at `at` ends: behind its quote, or with the piece."""
        found = _QUOTED.match(piece, at)
        at = found.end() if found is not None else at
        self.are_open = at == len(piece)
        return at + (not self.are_open)
