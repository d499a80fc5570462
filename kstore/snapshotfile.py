"""Producer snapshot files, read: what idempotent and transactional producers had done at an offset (FORMAT.md 10).

Parses and checks; which snapshot counts is for `producer`. Hardest rule: a file of any bytes is a list of entries or a
`SnapshotError` that says which of the three faults it has, since Kafka tells them apart.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kstore._core import crc32c

__all__ = ["ProducerEntry", "SnapshotError", "parse_snapshot"]

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotError(ValueError):
    """A file that is no sound snapshot; the text is Kafka's. Whoever reads snapshots catches it and goes on."""


class ProducerEntry(NamedTuple):
    """What is kept of one producer; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_snapshot(data: bytes) -> list[ProducerEntry]:
    """Take a snapshot apart, in file order."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) >= 2 and version != _VERSION:
        raise SnapshotError(f"Snapshot failed schema validation: Snapshot contained an unknown file version {version}")
    if len(data) < _HEAD.size:
        raise SnapshotError("Snapshot failed schema validation: null")
    _, stored, count = _HEAD.unpack_from(data)
    if count < 0 or count > (len(data) - _HEAD.size) // _ENTRY.size:
        raise SnapshotError("Snapshot failed schema validation: null")
    computed = crc32c(data[_CRC_FROM:])
    if stored != computed:
        raise SnapshotError(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored}. Computed crc: {computed}"
        )
    end = _HEAD.size + count * _ENTRY.size
    return [ProducerEntry._make(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size : end])]
