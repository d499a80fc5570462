"""Validation as the log uses it, for the tests of both."""

from __future__ import annotations

import struct
from typing import Any

from kstore._core import RecordBatch, decode_batches
from kstore.codec import validation
from kstore.codec.validation import Analysis, Validated, analyze, finish_leader, prepare_leader
from kstore.config.log_config import LogConfig
from tests.support.batches import CODECS, CONTROL, NOW, TRANSACTIONAL, messages_of, record, v2

LONG_MAX = 2**63 - 1
COMPRESSED = CODECS[1:]
LEGACY_COMPRESSED = CODECS[1:4]


def lead(
    data: bytes,
    *,
    next_offset: int = 0,
    leader_epoch: int = 0,
    now_ms: int = NOW,
    origin: validation.Origin = "client",
    **settings: Any,
) -> Validated:
    """Analyse and validate as `Log.append_batch` does."""
    config = LogConfig(**settings)
    analysis = analyze(data, origin=origin, max_message_bytes=config.max_message_bytes)
    prepared = prepare_leader(analysis, now_ms=now_ms, config=config, origin=origin)
    return finish_leader(prepared, next_offset=next_offset, leader_epoch=leader_epoch, now_ms=now_ms)


def follow(data: bytes, leader_epoch: int | None = None) -> Analysis:
    return analyze(data, origin="follower", leader_epoch=leader_epoch)


def contents(data: bytes | bytearray) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Offset, timestamp, key and value of every record in whole, sound batches."""
    return [(r.offset, r.timestamp, r.key, r.value) for batch in decode_batches(bytes(data)) for r in batch]


def header(data: bytes | bytearray) -> RecordBatch:
    (batch,) = decode_batches(bytes(data))
    return batch


def broken_crc(data: bytes) -> bytes:
    return data[:17] + bytes([data[17] ^ 1]) + data[18:]


ONE = v2()
THREE = v2(messages_of([b"hello", b"there", b"beautiful"]))
TWO = [record(0), record(1)]
MARKER = v2([record(0, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7))], attributes=TRANSACTIONAL | CONTROL,
            producer_id=23423, producer_epoch=5)  # fmt: skip
