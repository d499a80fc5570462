"""liblz4 and libzstd, called by ctypes: the libraries that kstore is linked with, without kstore."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from kstore.codec._compression import LZ4_VERSION, ZSTD_VERSION

_SIZE = ctypes.c_size_t
LZ4F_VERSION = 100  # of lz4frame.h
ZSTD_LEVEL, ZSTD_CONTENT_SIZE = 100, 200  # ZSTD_cParameter of zstd.h


class Preferences(ctypes.Structure):
    """LZ4F_preferences_t: blocks of 64 KiB, each by itself, as Kafka's producers make them."""

    _fields_ = [("block_size_id", ctypes.c_int), ("independent", ctypes.c_int), ("rest", ctypes.c_int64 * 6)]


@functools.cache
def library(codec: str) -> ctypes.CDLL | None:
    """The shared library of "lz4" or "zstd", if there is one of the version that kstore is linked with."""
    wanted, name = {"lz4": (LZ4_VERSION, "LZ4_versionString"), "zstd": (ZSTD_VERSION, "ZSTD_versionString")}[codec]
    try:
        found = ctypes.CDLL(f"lib{codec}.so.1")
    except OSError:
        return None
    version = getattr(found, name)
    version.restype = ctypes.c_char_p
    return found if wanted is not None and version().decode() == wanted else None


def made(function: Any, *arguments: Any) -> Any:
    """What a function that returns a pointer made, to be passed on."""
    function.restype = ctypes.c_void_p
    return ctypes.c_void_p(function(*arguments))


def sized(function: Any) -> Any:
    function.restype = _SIZE
    return function


def packer(codec: str, most: int) -> Callable[[bytes], bytes]:
    """Compresses up to `most` bytes as kstore does, into memory and with a context that are kept."""
    found = library(codec)
    assert found is not None
    room = ctypes.create_string_buffer(most + most // 2 + 1024)
    size = _SIZE(len(room))
    if codec == "lz4":
        preferences, frame = ctypes.byref(Preferences(4, 1)), sized(found.LZ4F_compressFrame)
        return lambda data: room[: frame(room, size, data, _SIZE(len(data)), preferences)]
    context, pack = made(found.ZSTD_createCCtx), sized(found.ZSTD_compress2)
    for parameter, value in ((ZSTD_LEVEL, 3), (ZSTD_CONTENT_SIZE, 0)):
        found.ZSTD_CCtx_setParameter(context, parameter, value)
    return lambda data: room[: pack(context, room, size, data, _SIZE(len(data)))]


def unpacker(codec: str, most: int) -> Callable[[bytes], bytes]:
    """Decompresses a frame to up to `most` bytes, into memory and with a context that are kept."""
    found = library(codec)
    assert found is not None
    room = ctypes.create_string_buffer(most)
    size = _SIZE(most)
    if codec == "zstd":
        context, unpack = made(found.ZSTD_createDCtx), sized(found.ZSTD_decompressDCtx)
        return lambda data: room[: unpack(context, room, size, data, _SIZE(len(data)))]
    context = ctypes.c_void_p()
    found.LZ4F_createDecompressionContext(ctypes.byref(context), LZ4F_VERSION)

    def frame(data: bytes) -> bytes:
        written, read = _SIZE(most), _SIZE(len(data))
        assert found.LZ4F_decompress(context, room, ctypes.byref(written), data, ctypes.byref(read), None) == 0
        return room[: written.value]

    return frame
