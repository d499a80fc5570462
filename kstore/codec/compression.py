"""Compression types by number and name, and the codec libraries behind one interface.

Invariant: any bytes yield data or a `CorruptRecordError`, in bounded time and memory. `_compression` handles lz4 and
zstd in C where liblz4 and libzstd are linked. The package cramjam handles what is left: snappy, payloads that the
libraries do not decompress, such as damaged ones, and everything where a library is not linked.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

import cramjam

from kstore.codec import _compression
from kstore.errors import ConfigError, CorruptRecordError, UnsupportedCompressionError

__all__ = [
    "GZIP",
    "LIBRARIES",
    "LZ4",
    "MAX_DECOMPRESSED_BYTES",
    "NAMES",
    "NONE",
    "SNAPPY",
    "ZSTD",
    "check_level",
    "compress",
    "decompress",
    "type_id",
    "type_name",
]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_CRAMJAM = f"cramjam {cramjam.__version__}"
LIBRARIES = {
    "gzip": f"zlib {zlib.ZLIB_RUNTIME_VERSION}",
    "snappy": _CRAMJAM,
    "lz4": f"liblz4 {_compression.LZ4_VERSION}" if _compression.LZ4_VERSION else _CRAMJAM,
    "zstd": f"libzstd {_compression.ZSTD_VERSION}" if _compression.ZSTD_VERSION else _CRAMJAM,
}
"""The library of each compression type, with its version."""

# The limit for one decompressed batch. A producer limits a batch to 1 MiB before compression by default, and no format
# can hold a batch of more than 2 GiB. With 256 MiB every realistic log can be read, while a decompression bomb of a few
# kilobytes takes a bounded amount of memory.
MAX_DECOMPRESSED_BYTES = 256 << 20


def type_name(number: int) -> str:
    """Return the name of a compression type, or raise `UnsupportedCompressionError` for 5 to 7, which are undefined."""
    if 0 <= number < len(NAMES):
        return NAMES[number]
    raise UnsupportedCompressionError(f"compression type {number}: Kafka knows 0 to 4 ({', '.join(NAMES)})")


def type_id(name: str) -> int:
    """Return the number of a compression type by its name; "uncompressed" means "none", as in topic settings."""
    if name == "uncompressed":
        return NONE
    try:
        return NAMES.index(name)
    except (ValueError, TypeError):
        names = ", ".join(NAMES)
        raise UnsupportedCompressionError(f"compression type {name!r}: known are {names}") from None


_LEVELS = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}


def check_level(type_id: int, level: int | None) -> None:
    """Raise `ConfigError` unless Kafka accepts `level` for this type; None, and for gzip -1, mean the default."""
    if level is None or (type_id == GZIP and level == -1) or type_id not in _LEVELS:
        return
    least, most = _LEVELS[type_id]
    if not least <= level <= most:
        raise ConfigError(f"compression level {level} for {NAMES[type_id]}: {least} to {most} are allowed")


def compress(type_id: int, data: bytes, level: int | None = None, *, magic: int = 2) -> bytes:
    """Compress `data` into a frame that Kafka's Java readers accept (FORMAT 6.3 to 6.6).

    `level` is Kafka's (9 for lz4 means the fast compressor); None means Kafka's default for the type. If `magic` is 0,
    lz4 frames get the wrong header checksum that format v0 requires. Thread-safe.
    """
    if type_id == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, -15)
        trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)
        return b"".join((_GZIP_HEADER, packer.compress(data), packer.flush(), trailer))
    if type_id == SNAPPY:
        return _compress_xerial(data)
    if type_id in (LZ4, ZSTD):
        level = library_level(type_id, level)
        frame = _compression.pack(type_id, level, data)
        if frame is None:
            frame = _compress_lz4(data, level) if type_id == LZ4 else _compress_zstd(data, level)
        return frame if magic or type_id == ZSTD else _LZ4_HEADER[:6] + b"\x1a" + frame[7:]
    if type_id == NONE:
        return bytes(data)
    raise UnsupportedCompressionError(f"compression type {type_id}: Kafka knows 0 to 4 ({', '.join(NAMES)})")


def library_level(type_id: int, level: int | None) -> int:
    """Return the level of lz4's or zstd's library for Kafka's `level`."""
    if type_id == ZSTD:
        return _ZSTD_LEVEL_DEFAULT if level is None else level
    return _LZ4_FAST if level in (None, _LZ4_LEVEL_FAST) else min(max(level, 3), _LZ4_LEVEL_MAX)


def decompress(type_id: int, data: bytes, *, limit: int = MAX_DECOMPRESSED_BYTES, magic: int = 2) -> bytes:
    """Decompress a payload to at most `limit` bytes; raises `CorruptRecordError` if that is not possible.

    `magic` is the message format that holds the payload; with 0, lz4's header checksum is ignored. Thread-safe.
    """
    found = _compression.unpack(type_id, data, limit)
    if found is not None:
        return found
    try:
        if type_id == GZIP:
            return _decompress_gzip(data, limit)
        if type_id == SNAPPY:
            return _decompress_snappy(data, limit)
        if type_id == LZ4:
            return _decompress_lz4(data, limit, magic)
        if type_id == ZSTD:
            return _decompress_zstd(data, limit)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CorruptRecordError(f"{NAMES[type_id]} data does not decompress: {error}") from error
    if type_id == NONE:
        if len(data) > limit:
            raise _too_large("none", limit)
        return bytes(data)
    raise CorruptRecordError(f"compression type {type_id}: Kafka knows 0 to 4 ({', '.join(NAMES)})")


def _too_large(name: str, limit: int) -> CorruptRecordError:
    return CorruptRecordError(f"{name} data decompresses to more than the {limit} bytes allowed")


# ---- gzip: one member as the JDK writes it; readers accept concatenated members.


_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")  # the JDK's header since version 16: no time, no hint, no system
_GZIP_KNOWN_FLAGS = b"\x1f"
_GZIP_TRAILER = struct.Struct("<II")
_GZIP_PIECE = 256  # the size of the first piece of a later member; each next piece is twice as large


def _decompress_gzip(data: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    total = at = 0
    view = memoryview(data)
    piece_bytes = len(data)  # less for later members, since zlib copies the bytes of a piece after a member's end
    while True:
        member = zlib.decompressobj(31)
        if data[at + 3 : at + 4] > _GZIP_KNOWN_FLAGS:  # the JDK ignores undefined flags, zlib rejects them
            member.decompress(bytes([*data[at : at + 3], data[at + 3] & _GZIP_KNOWN_FLAGS[0]]))
            at += 4
        size = piece_bytes
        while not member.eof:
            piece = view[at : at + size]
            if not piece:
                raise CorruptRecordError("gzip data ends inside a member")
            part = member.decompress(piece, limit + 1 - total)
            total += len(part)
            if total > limit:
                raise _too_large("gzip", limit)
            parts.append(part)
            at += len(piece)
            size *= 2
        at -= len(member.unused_data)
        piece_bytes = _GZIP_PIECE
        if data[at : at + 2] != b"\x1f\x8b":  # bytes that do not start another member are padding, as in the JDK
            return parts[0] if len(parts) == 1 else b"".join(parts)


# ---- snappy: xerial's stream of raw blocks with big-endian sizes, or one raw block, which some clients send.

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 << 10


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    if not data:
        raise CorruptRecordError("snappy data of 0 bytes")
    if len(data) < 16 or not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, 0, limit)
    parts: list[bytes] = []
    total = 0
    at = 16
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < 0:
            if data[at : at + 8] != _XERIAL_MAGIC:
                raise CorruptRecordError(f"snappy block of {size} bytes")
            if len(data) - at < 16 or int.from_bytes(data[at + 8 : at + 12], "big", signed=True) < 1:
                raise CorruptRecordError("snappy stream goes on with a header that is cut off or of version 0")
            at += 16
            continue
        at += 4
        if size > len(data) - at:
            raise CorruptRecordError(f"snappy block of {size} bytes where {len(data) - at} are left")
        part = _snappy_block(data[at : at + size], total, limit)
        total += len(part)
        parts.append(part)
        at += size
    return b"".join(parts)


def _snappy_block(block: bytes, before: int, limit: int) -> bytes:
    size = 0
    for at, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    else:
        raise CorruptRecordError("snappy block whose length has no end")
    if before + size > limit:
        raise _too_large("snappy", limit)
    if size > 64 * len(block):  # each element has two or more bytes and yields at most 64: do not allocate more
        raise CorruptRecordError(f"snappy block of {len(block)} bytes that declares {size}")
    return bytes(cramjam.snappy.decompress_raw(block, output_len=size))


# ---- lz4 frames, as far as Kafka's Java code reads them: independent blocks, no dictionary.

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"  # independent blocks of 64 KiB, no checksums and no size
_LZ4_LEVEL_FAST = 9  # Kafka's default level, which means the fast compressor (FORMAT 6.2)
_LZ4_FAST = 0  # the library's level for the fast compressor
_LZ4_LEVEL_MAX = 12  # the library's highest level; Kafka allows up to 17, and its library reduces more than 12 to 12
_LZ4_RATIO = 256  # a byte of a compressed block stands for at most 255
_LZ4_STORED = 1 << 31  # marks the size of a block that is not compressed


def _compress_lz4(data: bytes, level: int) -> bytes:
    packer = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
    packer.compress(data)
    frame = memoryview(packer.finish())
    if bytes(frame[4:6]) != b"\x70\x40":  # blocks of 64 KiB with checksums
        raise RuntimeError(f"cramjam {cramjam.__version__} writes lz4 frames with header {frame[:7].hex()}")
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    at = len(_LZ4_HEADER)
    while True:  # the package gives each block a checksum, which Kafka's producers do not
        end = at + 4 + (int.from_bytes(frame[at : at + 4], "little") & ~_LZ4_STORED)
        parts.append(frame[at:end])
        if end == at + 4:
            return b"".join(parts)
        at = end + 4


def _decompress_lz4(data: bytes, limit: int, magic: int) -> bytes:
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        raise CorruptRecordError(f"lz4 frame that starts with {data[:4].hex()}, not {_LZ4_MAGIC.hex()}")
    flags, sizes = data[4], data[5]
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        raise CorruptRecordError(
            f"lz4 frame with flags {flags:#04x}: version 1 with independent blocks and no dictionary is read"
        )
    if sizes & 0x8F or sizes >> 4 < 4:
        raise CorruptRecordError(f"lz4 frame with block descriptor {sizes:#04x}: 0x40 to 0x70 are read")
    checked = 14 if flags & 0x08 else 6
    if len(data) <= checked:
        raise CorruptRecordError("lz4 frame that ends in its header")
    if magic > 0 and data[checked] != _lz4_header_checksum(bytes(data[4:checked])):
        raise CorruptRecordError(f"lz4 frame with header checksum {data[checked]:#04x}, which does not match")
    largest = 1 << 8 + 2 * (sizes >> 4)
    tail = 4 if flags & 0x10 else 0  # a block's checksum
    parts: list[bytes] = []
    total = 0
    at = checked + 1
    view = memoryview(data)
    room = memoryview(bytearray(min(largest, _LZ4_RATIO * len(data))))
    while True:
        mark = int.from_bytes(view[at : at + 4], "little")
        size = mark & ~_LZ4_STORED
        at += 4
        if at > len(data):
            raise CorruptRecordError("lz4 frame without an end mark")
        if mark == 0:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if size > largest or size + tail > len(data) - at:
            raise CorruptRecordError(f"lz4 block of {size} bytes: {largest} are allowed, {len(data) - at} are there")
        block = view[at : at + size]
        if tail:
            part = _lz4_checked_block(sizes, view[at - 4 : at + size + tail], room)
        elif mark & _LZ4_STORED:
            part = bytes(block)
        else:
            part = bytes(room[: cramjam.lz4.decompress_block_into(block, room, output_len=len(room))])
        at += size + tail
        total += len(part)
        if total > limit:
            raise _too_large("lz4", limit)
        parts.append(part)


def _lz4_checked_block(sizes: int, block: memoryview, room: memoryview) -> bytes:
    """Decompress a block between its size and its checksum, as a frame: the library's frame reader verifies it."""
    descriptor = bytes((0x70, sizes))
    head = _LZ4_MAGIC + descriptor + bytes((_lz4_header_checksum(descriptor),))
    return bytes(room[: cramjam.lz4.decompress_into(head + block + bytes(4), room)])


@lru_cache(maxsize=64)  # nearly every frame has the same two bytes
def _lz4_header_checksum(descriptor: bytes) -> int:
    """Return the second byte of the xxHash32 (seed 0) of a descriptor of 2 or 10 bytes."""
    word = 0xFFFFFFFF
    h = 374761393 + len(descriptor)
    for at in range(0, len(descriptor) - 3, 4):
        h = h + int.from_bytes(descriptor[at : at + 4], "little") * 3266489917 & word
        h = (h << 17 | h >> 15) * 668265263 & word
    for byte in descriptor[len(descriptor) & ~3 :]:
        h = h + byte * 374761393 & word
        h = (h << 11 | h >> 21) & word
        h = h * 2654435761 & word
    h = (h ^ h >> 15) * 2246822519 & word
    h = (h ^ h >> 13) * 3266489917 & word
    return (h ^ h >> 16) >> 8 & 0xFF


# ---- zstd: a frame without content size, as Kafka's streaming writer writes it.

_ZSTD_LEVEL_DEFAULT = 3
_ZSTD_PIECE = 1 << 20  # decompressed at a time
_ZSTD_BLOCK = 128 << 10  # what a block decompresses to at most
_NO_MEMORY = "not enough memory"  # in the library's message for that


def _compress_zstd(data: bytes, level: int) -> bytes:
    try:
        return bytes(cramjam.zstd.compress(data, level))
    except cramjam.CompressionError as error:  # any bytes can be compressed
        raise MemoryError(str(error)) from error


def _decompress_zstd(data: bytes, limit: int) -> bytes:
    if not data:
        raise CorruptRecordError("zstd data of 0 bytes")
    try:
        return _zstd_by_stream(data, limit) if _compression.ZSTD_VERSION else _zstd_at_once(data, limit)
    except (ValueError, cramjam.DecompressionError) as error:
        if _NO_MEMORY in str(error):
            raise MemoryError(str(error)) from error
        raise CorruptRecordError(f"zstd data does not decompress: {error}") from error


def _zstd_by_stream(data: bytes, limit: int) -> bytes:
    stream = _compression.ZstdStream()
    parts: list[bytes] = []
    total = at = 0
    while True:
        part, at = stream.read(data, at, min(limit + 1 - total, _ZSTD_PIECE))
        total += len(part)
        if total > limit:
            raise _too_large("zstd", limit)
        if part:
            parts.append(part)
        elif at == len(data):
            if stream.inside:
                raise CorruptRecordError("zstd data ends inside a frame")
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_at_once(data: bytes, limit: int) -> bytes:
    """Decompress by the package, which has no limit: it ends when the memory for the result is full."""
    most = _zstd_most(data)
    room = memoryview(bytearray(min(most, limit)))
    try:
        return bytes(room[: cramjam.zstd.decompress_into(data, room)])
    except cramjam.DecompressionError as error:
        if most > limit and "whole buffer" in str(error):
            raise _too_large("zstd", limit) from error
        raise


def _zstd_most(data: bytes) -> int:
    """Return the most bytes that frames can decompress to, by the sizes of their blocks."""
    at = total = 0
    while at < len(data):
        head = data[at : at + 4]
        if head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:  # a frame to skip
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if head != b"\x28\xb5\x2f\xfd" or at + 5 > len(data):
            raise CorruptRecordError(f"zstd frame that starts with {head.hex()}, not 28b52ffd")
        flags = data[at + 4]
        is_single = flags >> 5 & 1
        at += 5 + (not is_single) + (0, 1, 2, 4)[flags & 3] + (is_single, 2, 4, 8)[flags >> 6]
        is_last = 0
        while not is_last:
            header = int.from_bytes(data[at : at + 3], "little")
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == 1 else size)
            if at > len(data) or kind == 3:
                raise CorruptRecordError("zstd data ends inside a frame")
            total += _ZSTD_BLOCK if kind == 2 else size
        at += 4 * (flags >> 2 & 1)
    if at > len(data):
        raise CorruptRecordError("zstd data ends inside a frame")
    return total
