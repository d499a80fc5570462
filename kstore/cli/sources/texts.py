"""Reads text files: decompresses them, counts the bytes that were read, and follows the quotes of a CSV file.

The hardest rule: a compressed file that ends too early is an error, never a shorter file.
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
"""What reading from `unpacked` raises; `is_unpacking` tells errors of the file's bytes from errors of the system."""

_ZSTD_BYTES = 4096  # of a compressed file at a time: a few bytes may hold a block of 128 KiB


def is_unpacking(error: BaseException) -> bool:
    """Whether the error is about the bytes of a compressed file; errors of the system have a number."""
    return not isinstance(error, OSError) or error.errno is None


class Counted(io.RawIOBase):
    """A file that calls `progress` with the number of bytes of each read."""

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
    """The file's text, decompressed if its first bytes are those of gzip, bzip2 or zstd."""
    counted = io.BufferedReader(Counted(file, progress), 1 << 20)
    start = counted.peek(4)
    plain: Any
    if start.startswith(b"\x1f\x8b"):
        plain = gzip.GzipFile(fileobj=counted)
    elif start.startswith(b"BZh"):
        plain = bz2.BZ2File(counted)
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        plain = _Zstd(counted)
    else:
        return counted
    return io.BufferedReader(plain, 1 << 20)


class _Zstd(io.RawIOBase):
    """Reads zstd frames one after the other; `EOFError` where the last one is not complete."""

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
    """Whether a CSV file is inside of quotes. Only a quote at the start of a cell opens them; others are text."""

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
        """The last byte of the text so far if the next byte's meaning depends on it, else 0."""
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
        """Follow a piece whose every second quote opens a cell or is the second of two; False for any other piece."""
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
        """Follow any piece, cell by cell."""
        at, closed = 0, -1
        if not self.are_open and self._last == _QUOTE == piece[0]:
            self.are_open, at = True, 1
        is_start = not self.are_open and bool(self._ends[self._last])
        if self.are_open:
            at = closed = self._close(piece, at)
        if not self.are_open and not is_start:
            end = self._end.search(piece, at)
            at, is_start = (end.end(), True) if end is not None else (len(piece), False)
        if is_start:
            cells = self._cells.match(piece, at)
            at = cells.end() if cells is not None else at
            if piece[at : at + 1] == b'"':
                at = closed = self._close(piece, at + 1)
        is_literal = piece[-1] == _QUOTE and not self.are_open and closed != len(piece)
        self._last = 0 if is_literal else piece[-1]

    def _close(self, piece: bytes, at: int) -> int:
        """Where the quoted part that goes on at `at` ends: after its quote, or with the piece."""
        quoted = _QUOTED.match(piece, at)
        at = quoted.end() if quoted is not None else at
        self.are_open = at == len(piece)
        return at + (not self.are_open)
