"""Batches written field by field with plain structs, right or wrong: what validation and the log are fed with.

Nothing here comes from kstore but the codec libraries: a fault that both sides share would otherwise go unseen.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import crc32c as second_opinion

from kstore.codec import compression

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size


def varint(n: int) -> bytes:
    """Zigzag and LEB128 of a number, taken modulo 2^64 as Java would."""
    n = (n + (1 << 63)) % (1 << 64) - (1 << 63)
    z = (n << 1 ^ n >> 63) & (1 << 64) - 1
    out = bytearray()
    while z >= 0x80:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    *,
    headers_count: int | None = None,
    tail: bytes = b"",
    length: int | None = None,
) -> bytes:
    """One v2 record; `tail` follows its last field, `length` is what it claims to be long."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
    body += varint(len(headers) if headers_count is None else headers_count)
    body += b"".join(field(name) + field(data) for name, data in headers) + tail
    return varint(len(body) if length is None else length) + body


def v2(
    records: Sequence[bytes] | bytes = (record(),),
    *,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    codec: str = "none",
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = NOW,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
    level: int | None = None,
) -> bytes:
    """One v2 batch; what is not given is what an honest producer would write."""
    section = records if isinstance(records, bytes) else b"".join(records)
    if count is None:
        count = 1 if isinstance(records, bytes) else len(records)
    if last_offset_delta is None:
        last_offset_delta = count - 1
    if codec != "none":
        attributes |= CODECS.index(codec)
        section = compression.compress(CODECS.index(codec), section, level)
    data = bytearray(HEADER_BYTES + len(section))
    _HEADER.pack_into(
        data, 0, base_offset, len(data) - 12 if length is None else length, leader_epoch, magic, 0, attributes,
        last_offset_delta, base_timestamp, base_timestamp if max_timestamp is None else max_timestamp, producer_id,
        producer_epoch, base_sequence, count,
    )  # fmt: skip
    data[HEADER_BYTES:] = section
    struct.pack_into(">I", data, 17, second_opinion.crc32c(bytes(data[21:])) if crc is None else crc)
    return bytes(data)


def messages_of(
    values: Iterable[bytes | None],
    *,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> list[bytes]:
    """v2 records with these values, numbered from 0; timestamps count from NOW."""
    return [
        record(i, 0 if timestamps is None else timestamps[i] - NOW, None if keys is None else keys[i], value)
        for i, value in enumerate(values)
    ]


def legacy(
    magic: int,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    timestamp: int = NOW,
    attributes: int = 0,
    offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """One message of format 0 or 1 as it stands in a file, with its offset and size."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        body += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    stored = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, 4 + len(body), stored) + body


def wrapper(
    magic: int,
    inner: Sequence[bytes] | bytes,
    *,
    codec: str = "gzip",
    offset: int | None = None,
    timestamp: int = NOW,
    attributes: int = 0,
    **fields: object,
) -> bytes:
    """A compressed message of format 0 or 1 around others."""
    plain = inner if isinstance(inner, bytes) else b"".join(inner)
    number = CODECS.index(codec)
    if offset is None:
        offset = 0 if isinstance(inner, bytes) else len(inner) - 1
    packed = compression.compress(number, plain, magic=magic)
    return legacy(magic, packed, timestamp=timestamp, attributes=attributes | number, offset=offset, **fields)  # type: ignore[arg-type]


_AT = {
    "base_offset": (0, ">q"),
    "leader_epoch": (12, ">i"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}


def resealed(data: bytes | bytearray, **fields: int) -> bytes:
    """The v2 batch with header fields overwritten and a CRC that holds again."""
    out = bytearray(data)
    for name, value in fields.items():
        position, code = _AT[name]
        struct.pack_into(code, out, position, value)
    struct.pack_into(">I", out, 17, second_opinion.crc32c(bytes(out[21:])))
    return bytes(out)
