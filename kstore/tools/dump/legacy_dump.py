"""Prints entries of formats 0 and 1 as text and as JSON (DUMP 3)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kstore._core import Record, decode_batches
from kstore.codec import compression, header
from kstore.codec.legacy import messages
from kstore.errors import CorruptRecordError
from kstore.tools.dump._dump import LogText
from kstore.tools.dump.dump_options import Decode, DumpOptions
from kstore.tools.dump.record_contents import Contents, json_line, octets

__all__ = ["legacy_json", "legacy_text"]


def legacy_text(
    batch: bytes,
    position: int,
    text: LogText,
    path: str,
    options: DumpOptions,
    decode: Decode,
    wants: Callable[[int], bool],
) -> None:
    """Print an entry of format 0 or 1 as Kafka's tool does, with the records whose offsets `wants` accepts."""
    offset, crc, magic = header.BASE_OFFSET.of(batch), header.LEGACY_CRC.of(batch), header.MAGIC.of(batch)
    attributes = header.LEGACY_ATTRIBUTES.of(batch)
    text.put(f"offset: {offset}".encode())
    codec = attributes & header.CODEC_MASK
    if magic < 0 or codec > compression.ZSTD:
        raise CorruptRecordError(f"magic {magic}, compression type {codec}", path=path, position=position)
    label = "NoTimestampType"
    timestamp = -1
    if magic:
        label = "LogAppendTime" if attributes & header.TIMESTAMP_TYPE_BIT else "CreateTime"
        timestamp = header.LEGACY_TIMESTAMP.of(batch)
    valid = _flag(header.legacy_crc_holds(batch))
    text.put(
        f" position: {position} {label}: {timestamp} size: {len(batch)} magic: {magic}"
        f" compresscodec: {compression.type_name(codec)} crc: {crc} isvalid: {valid}\n".encode()
    )
    if not options.deep:
        return
    records = [
        record for decoded in decode_batches(batch, check_crc=False, path=path, position=position) for record in decoded
    ]
    for record, message in zip(records, messages(memoryview(batch), position), strict=True):
        text.follow(record.offset)
        if not wants(record.offset):
            continue
        if options.metadata:
            text.put(
                f"| offset: {record.offset} {label}: {record.timestamp} keySize: {_size(record.key)}"
                f" valueSize: {_size(record.value)} isValid: {_flag(message.crc_holds)}"
                f" crc: {message.crc}".encode()
            )
        if options.contents:
            key, value = decode(record.offset, record.key, record.value)
            text.put(_contents(key, value, metadata=options.metadata))
        text.put(b"\n")


def _contents(key: bytes | None, value: bytes | None, *, metadata: bool) -> bytes:
    text = b""
    if key is not None:
        text = (b" key: " if metadata else b"| key: ") + key
    if value is not None:
        text += (b" payload: " if metadata or text else b"| payload: ") + value
    return text


def _flag(flag: bool) -> str:
    return "true" if flag else "false"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def legacy_json(
    data: bytes,
    position: int,
    text: LogText,
    path: str,
    options: DumpOptions,
    contents: Contents,
    wants: Callable[[int], bool],
) -> None:
    """Print an entry of format 0 or 1 as JSON, or with `deep` the records whose offsets `wants` accepts."""
    place = {**octets("file", os.fsencode(path)), "position": position}
    for batch in decode_batches(data, check_crc=False, path=path, position=position):
        if not options.deep:
            line: dict[str, Any] = {
                "type": "batch",
                **place,
                "size_bytes": len(data),
                "base_offset": batch.base_offset,
                "last_offset": batch.last_offset,
                "count": batch.count,
                "max_timestamp": batch.max_timestamp,
                "timestamp_type": batch.timestamp_type,
                "compression": compression.type_name(batch.attributes & header.CODEC_MASK),
                "attributes": header.LEGACY_ATTRIBUTES.of(data),
                "magic": batch.magic,
                "crc": header.LEGACY_CRC.of(data),
                "is_valid": header.legacy_crc_holds(data),
            }
            text.put(json_line(line))
            continue
        for record in batch:
            if wants(record.offset):
                text.put(_json_record(record, batch.timestamp_type, place, options, contents))


def _json_record(
    record: Record, timestamp_type: str, place: dict[str, Any], options: DumpOptions, contents: Contents
) -> bytes:
    line: dict[str, Any] = {"type": "record"}
    if options.metadata:
        line |= {
            **place,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": timestamp_type,
            "sequence": -1,
            "key_size": _size(record.key),
            "value_size": _size(record.value),
        }
    text = json_line(line)[:-2]
    if options.contents:
        text += b"," + contents.members(record.offset, record.key, record.value)
    return text + (b',"headers":[]}\n' if options.metadata else b"}\n")
