"""A slow codec in plain struct: the oracle that the compiled one is compared with, and the writer of old formats.

Written from docs/rules/format.md alone and never imported by kstore. It takes what it is given: counts, lengths and
checksums may be made wrong on purpose.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import cramjam
import crc32c as second_opinion
import lz4.frame
import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"

Headers = Sequence[tuple[bytes, bytes | None]]


class Rec(NamedTuple):
    """A record as numbers and bytes; header names stay bytes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class Torn(Exception):
    """The oracle's one complaint: these bytes are no batch."""


# ---- integers


def varint(n: int) -> bytes:
    """The minimal zigzag LEB128 form, of any size."""
    z = n << 1 if n >= 0 else (-n << 1) - 1
    out = bytearray()
    while z > 0x7F:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    return bytes([*out, z])


def read_varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """Value and where it ends; surplus bits of the last byte that is allowed are dropped, as in Java."""
    z = 0
    for i in range((bits + 6) // 7):
        if at + i >= len(data):
            raise Torn("varint cut off")
        z |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            z &= (1 << bits) - 1
            return (z >> 1) ^ -(z & 1), at + i + 1
    raise Torn("varint too long")


def wrap(n: int) -> int:
    """As a Java long holds it."""
    return (n + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- v2


def field(data: bytes | None) -> bytes:
    return b"\x01" if data is None else varint(len(data)) + data


def record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value) + varint(len(headers))
    body += b"".join(field(name) + field(data) for name, data in headers)
    return varint(len(body)) + body


def batch(
    section: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    length: int | None = None,
) -> bytes:
    """A v2 batch around `section`, the bytes after the header as they are to stand."""
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    tail += section
    head = struct.pack(">ibI", leader_epoch, magic, second_opinion.crc32c(tail) if crc is None else crc)
    return struct.pack(">qi", base_offset, len(head) + len(tail) if length is None else length) + head + tail


def encode(records: Sequence[Rec], *, codec: int = NONE, **fields: int) -> bytes:
    """What a producer makes of records with consecutive offsets: minimal varints, deltas from the first."""
    base, offset = records[0].timestamp, fields.setdefault("base_offset", records[0].offset)
    section = b"".join(record(r.timestamp - base, r.offset - offset, r.key, r.value, r.headers) for r in records)
    fields.setdefault("base_timestamp", base)
    fields.setdefault("max_timestamp", max(r.timestamp for r in records))
    fields["attributes"] = fields.get("attributes", 0) | codec
    return batch(compress(codec, section), len(records), **fields)


def decode_records(section: bytes, count: int) -> list[tuple[int, int, Rec]]:
    """(timestamp delta, offset delta, record without offset and timestamp) of an uncompressed record section."""
    if count < 0:
        raise Torn("negative count")
    out: list[tuple[int, int, Rec]] = []
    at = 0
    for _ in range(count):
        if at >= len(section):
            raise Torn("too few records")
        size, at = read_varint(section, at)
        if size < 0 or size > len(section) - at:
            raise Torn("record length")
        body, at = section[at : at + size], at + size
        if not body:
            raise Torn("empty record")
        ts_delta, p = read_varint(body, 1, 64)
        offset_delta, p = read_varint(body, p)
        key, p = _read_field(body, p)
        value, p = _read_field(body, p)
        headers_count, p = read_varint(body, p)
        if headers_count < 0 or headers_count > len(body) - p:
            raise Torn("headers count")
        headers = []
        for _ in range(headers_count):
            name, p = _read_field(body, p)
            if name is None:
                raise Torn("null header key")
            data, p = _read_field(body, p)
            headers.append((name, data))
        if p != len(body):
            raise Torn("record length")
        out.append((ts_delta, offset_delta, Rec(0, 0, key, value, tuple(headers))))
    if count and at != len(section):
        raise Torn("trailing bytes")
    return out


def _read_field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise Torn("field length")
    return data[at : at + size], at + size


def decode(data: bytes, *, check_crc: bool = True) -> list[tuple[int, list[Rec]]]:
    """(magic, records) of each batch as FORMAT 2.7 walks memory; of v2, only what is not compressed."""
    out = []
    at = 0
    while len(data) - at >= 12:
        offset, length = struct.unpack_from(">qi", data, at)
        if length < 14:
            raise Torn("batch length")
        if len(data) - at < 17:
            break
        if data[at + 16] > 2:
            raise Torn("magic")
        if len(data) - at < 12 + length:
            break
        out.append((data[at + 16], _decode_batch(data[at : at + 12 + length], offset, check_crc)))
        at += 12 + length
    return out


def _decode_batch(data: bytes, offset: int, check_crc: bool) -> list[Rec]:
    magic = data[16]
    if magic == 2:
        if len(data) < HEADER_BYTES:
            raise Torn("short batch")
        _, _, _, _, crc, attributes, last_delta, base, greatest, _, _, _, count = HEADER.unpack_from(data)
        if check_crc and crc != second_opinion.crc32c(data[21:]):
            raise Torn("crc")
        if attributes & 7:
            raise Torn("compressed")
        records = decode_records(data[HEADER_BYTES:], count)
        # Kafka does not look; a record that is in no batch by its offset cannot be found (`record-outside-its-batch`).
        if any(not 0 <= offset_delta <= last_delta for _, offset_delta, _ in records):
            raise Torn("record outside of its batch")
        if records and offset + last_delta >= 1 << 63:
            raise Torn("offsets that are no numbers of 64 bits")
        return [
            r._replace(
                offset=offset + offset_delta,
                timestamp=greatest if attributes & APPEND_TIME else wrap(base + ts_delta),
            )
            for ts_delta, offset_delta, r in records
        ]
    at = 26 if magic else 18
    if len(data) < at + 8:
        raise Torn("short message")
    if check_crc and struct.unpack_from(">I", data, 12)[0] != zlib.crc32(data[16:]):
        raise Torn("crc")
    if data[17] & 7:
        raise Torn("compressed")
    parts = []
    for spare in (4, 0):
        if len(data) - at < 4:
            raise Torn("field length")
        size = struct.unpack_from(">i", data, at)[0]
        at += 4
        if size > len(data) - at - spare:
            raise Torn("field length")
        parts.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    return [Rec(offset, struct.unpack_from(">q", data, 18)[0] if magic else -1, parts[0], parts[1])]


# ---- v0 and v1


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    timestamp: int = -1,
    attributes: int = 0,
    crc: int | None = None,
) -> bytes:
    """One entry of an old log: offset, size, message."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        body += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    body = struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(
    records: Sequence[Rec],
    codec: int,
    *,
    magic: int = 1,
    append_time: int | None = None,
    offset: int | None = None,
    inner_magic: int | None = None,
    torn: bytes = b"",
) -> bytes:
    """A compressed set as a broker stored it: v0 with absolute offsets inside, v1 with relative ones."""
    inner_magic = magic if inner_magic is None else inner_magic
    first = records[0].offset if magic else 0
    inner = b"".join(
        message(r.offset - first, r.key, r.value, magic=inner_magic, timestamp=r.timestamp) for r in records
    )
    return message(
        records[-1].offset if offset is None else offset,
        None,
        compress(codec, inner + torn, magic),
        magic=magic,
        timestamp=max(r.timestamp for r in records) if append_time is None else append_time,
        attributes=codec | (APPEND_TIME if append_time is not None else 0),
    )


# ---- compression, as simply as the libraries allow


def compress(codec: int, data: bytes, magic: int = 2) -> bytes:
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return XERIAL + b"".join(_sized(block) for block in _blocks(data, 32768))
    if codec == LZ4:
        frame: bytes = lz4.frame.compress(data, block_size=4, block_linked=False, store_size=False)
        return frame if magic else frame[:6] + b"\x1a" + frame[7:]
    if codec == ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    return data


def _blocks(data: bytes, size: int) -> Iterable[bytes]:
    return (bytes(cramjam.snappy.compress_raw(data[at : at + size])) for at in range(0, len(data), size))


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def plain_murmur2(key: bytes) -> int:
    """The hash in plain arithmetic, as FORMAT 13 has it."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    tail = key[whole:]
    for at in reversed(range(len(tail))):
        h ^= tail[at] << 8 * at
    if tail:
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h
