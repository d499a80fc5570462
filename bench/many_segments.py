"""Writes the files of a log of very many segments: to roll so often would take an hour."""

from __future__ import annotations

import struct
from pathlib import Path

import kstore


def write_segments(partition: Path, count: int, value: bytes, start_ms: int) -> None:
    """Replace the segments in a partition's directory by so many, with one record in each, one millisecond apart."""
    for name in partition.glob("0*"):
        name.unlink()
    for offset in range(count):
        data = kstore.encode_batch([(None, value, start_ms + offset, None)], base_offset=offset)
        (partition / f"{offset:020}.log").write_bytes(data)
        (partition / f"{offset:020}.index").touch()
        (partition / f"{offset:020}.timeindex").write_bytes(struct.pack(">qi", start_ms + offset, 0))
