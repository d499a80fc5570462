"""What questions about batches cannot leave out: bytes are read or written, summed up and copied (`bounds.c`).

No record is parsed and none is encoded, no varint, index or object is made: records are as long as they are on average.
Memory is there before and is used again. The checksum is kstore's own. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limits import codecs, compiled

READ_BYTES = 256 << 10  # a piece that stays in a processor's own caches until it is summed up and copied
ROOM_BYTES = 128 << 10  # of a thread's values, on their way to a column
WRITTEN_BYTES = 3 << 19  # of a piece of columns, as kstore writes them
PACKED_BYTES = 512 << 10  # of the records of a piece that a library packs
LINE_BYTES = 64  # of a cache
MORE = 4096  # bytes behind, which copies may touch

Bytes = NDArray[np.uint8]
_number, _pointer = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = {
    "checked": (ctypes.c_int, _pointer, _number),
    "points": (ctypes.c_int, _pointer, _number, _pointer, _number),
    "values_of_piece": (ctypes.c_int, _number, _pointer, _number, _number, _number, _pointer),
    "columns": (_pointer, _number, _number, _number, _pointer, _pointer, _pointer, _pointer, ctypes.c_int),
    "columns_in": (ctypes.c_int, _pointer, _number, _pointer, _number, _number, _number, _pointer, _number),
    "spread_in": (
        *(_pointer, ctypes.c_int32, _pointer, _number, _pointer, _number, _number, _number),
        *(_pointer, _number, _pointer, _pointer),
    ),
    "unpacked": (_pointer, ctypes.c_int, ctypes.c_int),
    "packed": (_pointer, ctypes.c_int, _pointer, ctypes.c_int),
    "ready_batches": (ctypes.c_int, _pointer, _number, _number, _number),
    "writes": (_pointer, _pointer, _pointer, _pointer, _number, _pointer, _number),
}


def _function(name: str) -> Callable[..., int]:
    code = compiled("bounds.c", "crc32c.c", optimised=("-O3", "-march=native"))
    function: Any = getattr(code, name)
    function.argtypes, function.restype = _ARGUMENTS[name], _number
    return function  # type: ignore[no-any-return]


def _memory(size: int) -> Bytes:
    """Memory that was touched before, and a little more."""
    whole = np.ones(size + MORE, np.uint8)
    return whole[-whole.ctypes.data % LINE_BYTES :][: size + MORE // 2]


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    """Where an array lies, which lives as long as this does."""
    return array.ctypes.data_as(_pointer)


def _padded(data: Any) -> Bytes:
    """A copy of some bytes with a little memory behind."""
    data = np.frombuffer(data, np.uint8)
    padded = _memory(len(data))
    padded[: len(data)] = data
    return padded


# --- reading ----------------------------------------------------------------------------------------------------------


class Row:
    """Stands for a record that an iterator gives again and again."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


def rows(fd: int, stride: int, value: int) -> Callable[[], int]:
    """Reads and sums up pieces of a file, copies each value to one place, and has the interpreter's bare loop read
    `.value` of as many records; how many these were.

    One record stands for all of them: no call of an iterator's code in C, no object is made or filled.
    """
    values_of_piece = _function("values_of_piece")
    piece, place = _address(_memory(READ_BYTES)), _address(_memory(value))
    row = Row(bytes(value))

    def run() -> int:
        at = count = 0
        while got := values_of_piece(fd, at, piece, READ_BYTES, stride, value, place):
            at += got
            count += got // stride
            for record in itertools.repeat(row, got // stride):
                record.value  # noqa: B018
        return count

    return run


def checked(fd: int) -> Callable[[], int]:
    """Reads and sums up a file; the bytes of it."""
    return functools.partial(_function("checked"), fd, _address(_memory(READ_BYTES)), READ_BYTES)


def points(fd: int, positions: Sequence[int], batch_bytes: int) -> Callable[[], int]:
    """Reads and sums up the batch at each of the positions, and nothing else; the bytes of them."""
    places = np.array(positions, np.int64)
    run = functools.partial(_function("points"), fd, _address(places), len(places), _address(_memory(batch_bytes)))
    return lambda places=places: run(batch_bytes)  # type: ignore[misc]


def columns(data: bytes, rows: int, value: int, threads: int) -> Callable[[], int]:
    """Sums up batches in memory, copies each value to a column and stores two numbers for each record; 0."""
    function, stride = _function("columns"), len(data) // rows
    made = [_address(_memory(rows * size)) for size in (value, 8, 8)]
    rooms = _address(_memory(threads * ROOM_BYTES))
    return functools.partial(function, _address(_padded(data)), rows, stride, value, *made, rooms, threads)


# --- writing ----------------------------------------------------------------------------------------------------------


def columns_in(values: Any, keys: Any, rows: int, file_bytes: int) -> Callable[[int], None]:
    """Copies the values and keys of columns into records that make a file of so many bytes, sums these up, and writes
    them to a file in pieces as kstore does."""
    function, stride, piece = _function("columns_in"), file_bytes // rows, _address(_memory(WRITTEN_BYTES))
    sizes = [len(each) // rows for each in (values, keys)]
    (values, keys), (value, key) = [_address(_padded(each)) for each in (values, keys)], sizes

    def run(fd: int) -> None:
        written = function(fd, values, value, keys, key, rows, stride, piece, WRITTEN_BYTES)
        assert written == rows * stride

    return run


def spread_in(
    value: bytes, keys: bytes, rows: int, stride: int, partitions: int, piece_bytes: int
) -> Callable[[Sequence[int]], None]:
    """Copies a value, and as many keys as rows, into records of the partitions that the keys are hashed to, sums these
    up, and writes them to the partitions' files, a piece at a time. Without keys a partition gets a whole piece."""
    function = _function("spread_in")
    pieces, key_bytes = _address(_memory(partitions * piece_bytes)), len(keys) // rows
    copied, of_keys = _address(_padded(value)), _address(_padded(keys))

    def run(fds: Sequence[int]) -> None:
        filled, ends = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
        files = _address(np.array(fds, np.int32))
        arguments = copied, len(value), of_keys, key_bytes, rows, stride, pieces, piece_bytes
        assert function(files, partitions, *arguments, _address(filled), _address(ends)) == 0

    return run


def ready_batches(data: bytes, records: int, count: int) -> Callable[[int], None]:
    """Sums up a batch, gives it its offset and writes it, so many times, to a file."""
    function, batch = _function("ready_batches"), _address(_padded(data))

    def run(fd: int) -> None:
        assert function(fd, batch, len(data), records, count) == 0

    return run


def writes(pairs: Sequence[tuple[int, int]], count: int) -> Callable[[Sequence[int]], None]:
    """Writes so many times all of these pairs of the number of a file and of bytes, each to the end of its file."""
    function = _function("writes")
    files, sizes = np.array([file for file, _ in pairs], np.int32), np.array([size for _, size in pairs], np.int64)
    data = _address(_memory(int(sizes.max())))

    def run(fds: Sequence[int]) -> None:
        ends = np.array([os.fstat(fd).st_size for fd in fds], np.int64)
        arrays = [_address(each) for each in (np.array(fds, np.int32), sizes, ends, files)]
        assert function(*arrays, len(pairs), data, count) == 0

    return run


# --- codecs -----------------------------------------------------------------------------------------------------------


class _Batches(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("pieces", "file", "data")),
        *((name, _number) for name in ("count", "stride", "value")),
        ("rooms", _pointer),
        ("room_bytes", _number),
        *((name, _pointer) for name in ("lz4", "zstd", "preferences", "contexts")),
    ]


class Coding:
    """Batches that a library packs or unpacks in pieces: `file` are their sizes in the file, `plain` of their records.

    Two threads must not use one at once.
    """

    def __init__(
        self, codec: str, file: Sequence[int], plain: Sequence[int], rows: int, value: int, threads: int
    ) -> None:
        self._threads = threads
        library = codecs.library(codec)
        assert library is not None, f"no lib{codec}.so.1 of the version that kstore is linked with"
        self._library = library
        self._file, self._data = (np.concatenate([[0], np.cumsum(each)]).astype(np.int64) for each in (file, plain))
        whole = self._data[:-1] // PACKED_BYTES
        starts = np.flatnonzero(np.diff(whole, prepend=-1))
        self._pieces = np.concatenate([starts, [len(plain)]]).astype(np.int64)
        room = 3 * (2 * int(np.diff(self._data[self._pieces]).max()) + (64 << 10))
        self._rooms = _memory(room * threads)
        self._preferences = codecs.Preferences(4, 1)
        self._contexts = (_pointer * threads)()
        self._batches = _Batches(
            self._pieces.ctypes.data, self._file.ctypes.data, self._data.ctypes.data,
            len(self._pieces) - 1, int(self._data[-1]) // rows, value, self._rooms.ctypes.data, room,
        )  # fmt: skip
        self._batches.preferences = ctypes.addressof(self._preferences)
        self._batches.contexts = ctypes.addressof(self._contexts)
        self._codec = codec

    def _take(self, lz4: str, zstd: str, context: str) -> None:
        """Give the C code its function, and each thread its context."""
        if self._codec == "lz4":
            self._batches.lz4 = ctypes.cast(getattr(self._library, lz4), _pointer)
            return
        self._batches.zstd = ctypes.cast(getattr(self._library, zstd), _pointer)
        make = getattr(self._library, context)
        make.restype = _pointer
        for number in range(self._threads):
            self._contexts[number] = make()

    def unpacked(self, fd: int) -> Callable[[], None]:
        """Reads batches of a file, sums them up, unpacks each with the library and copies its values."""
        self._take("LZ4_decompress_safe", "ZSTD_decompressDCtx", "ZSTD_createDCtx")
        function = _function("unpacked")

        def run() -> None:
            assert function(ctypes.addressof(self._batches), fd, self._threads) == 0

        return run

    def packed(self, records: bytes) -> Callable[[int], int]:
        """Copies the records of each batch, packs them with the library, sums up what it made and writes that to a
        file; the bytes written."""
        self._take("LZ4F_compressFrame", "ZSTD_compress2", "ZSTD_createCCtx")
        if self._codec == "zstd":
            parameter = self._library.ZSTD_CCtx_setParameter
            parameter.argtypes = _pointer, ctypes.c_int, ctypes.c_int
            for context in self._contexts:
                for what, setting in ((100, 3), (200, 0)):  # the level; without the size of what was packed
                    parameter(context, what, setting)
        function, data = _function("packed"), _address(_padded(records))
        return lambda fd: function(ctypes.addressof(self._batches), fd, data, self._threads)
