"""Reads text files: decompresses them, counts the bytes read, and finds the ends of rows in CSV files.

Invariant: a truncated compressed file is an error, never a shorter file.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import cramjam
import numpy as np

from kstore.cli.sources.row_source import Source
from kstore.codec._compression import ZSTD_VERSION, ZstdStream

__all__ = ["Counted", "Quotes", "named_errors", "unpacked"]

_ZSTD_BYTES = 128 << 10  # read at a time


@contextlib.contextmanager
def named_errors(source: Source) -> Iterator[None]:
    """Turn errors about a compressed file's contents, which `unpacked` reads, into errors that name the file."""
    try:
        yield
    except (EOFError, OSError, zlib.error, _ZstdError, cramjam.DecompressionError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # system errors have an errno
        raise source.wrong(f"it cannot be unpacked: {error}") from error


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
    """Return the file's text, decompressed if it starts with the magic bytes of gzip, bzip2 or zstd."""
    counted = io.BufferedReader(Counted(file, progress), 1 << 20)
    start = counted.peek(4)
    plain: Any
    if start.startswith(b"\x1f\x8b"):
        plain = gzip.GzipFile(fileobj=counted)
    elif start.startswith(b"BZh"):
        plain = bz2.BZ2File(counted)
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        plain = _Zstd(counted) if ZSTD_VERSION else _ZstdInAFile(counted)
    else:
        return counted
    return io.BufferedReader(plain, 1 << 20)


class _ZstdError(Exception):
    """zstd data is damaged."""


class _Zstd(io.RawIOBase):
    """Reads consecutive zstd frames; raises `EOFError` if the last one is incomplete."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream = ZstdStream()
        self._packed, self._at = b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            try:
                plain, self._at = self._stream.read(self._packed, self._at, len(buffer))
            except ValueError as error:
                raise _ZstdError(str(error)) from error
            if plain:
                buffer[: len(plain)] = plain
                return len(plain)
            if self._at == len(self._packed):
                self._packed, self._at = self._file.read(_ZSTD_BYTES), 0
                if not self._packed:
                    if self._stream.inside:
                        raise EOFError("it ends within a frame")
                    return 0

    def close(self) -> None:
        self._file.close()
        super().close()


class _ZstdInAFile(io.RawIOBase):
    """Reads consecutive zstd frames from a temporary file: without libzstd they are decompressed from file to file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._plain: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._plain is None:
            with tempfile.NamedTemporaryFile() as packed, contextlib.ExitStack() as opened:
                shutil.copyfileobj(self._file, packed)
                packed.flush()
                plain = opened.enter_context(tempfile.NamedTemporaryFile())
                cramjam.zstd.decompress_into(cramjam.File(packed.name), cramjam.File(plain.name))
                self._plain = plain
                opened.pop_all()
        return self._plain.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()
        self._file.close()
        super().close()


_QUOTE = ord('"')


class Quotes:
    """Finds the ends of rows in a CSV file. Only a quote at a cell's start opens a quoted cell; others are text."""

    def __init__(self, delimiter: str) -> None:
        ends = delimiter.encode() + b"\n\r"
        self._ends = np.zeros(256, np.bool_)
        self._ends[list(ends)] = True
        end, sign = re.escape(ends), re.escape(delimiter.encode())
        cell = b'(?>"(?:[^"]++|"")*+"[^%b]*+|[^"%b][^%b]*+|)' % (end, end, end)
        # Before Python 3.11.5 "(?:...)*+" also consumes what its last, failed iteration matched; "(?>...)*+" does not.
        self._rows = re.compile(b"(?>%b(?:%b%b)*+[\n\r])*+" % (cell, sign, cell))
        self._open = re.compile(b'(?>%b%b)*+"(?:[^"]++|"")*+' % (cell, sign))

    def end_of_rows(self, piece: bytes) -> int:
        """Return the end of the last whole row in a piece that starts with a row; 0 if there is none."""
        if b'"' not in piece:
            return max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        signs = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(signs == _QUOTE)
        opening = quotes[::2]
        before = signs[opening - 1]
        if opening[0] == 0:
            before[0] = ord("\n")
        if not (self._ends[before] | (before == _QUOTE)).all():  # a quote is text: match cell by cell
            rows = self._rows.match(piece)
            return 0 if rows is None else rows.end()
        # Every second quote, from the first on, opens a cell or is the second of a doubled quote.
        ends = np.flatnonzero((signs == ord("\n")) | (signs == ord("\r")))
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return int(ends[-1]) + 1 if len(ends) else 0

    def are_open(self, rest: bytes) -> bool:
        """Whether `rest`, the start of a row, ends inside quotes."""
        opened = self._open.match(rest)
        return opened is not None and opened.end() == len(rest)
