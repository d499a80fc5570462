"""Offsets and timestamps of a batch's records as arrays, without an object for each record or header."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from kstore._core import decode_batches
from kstore.codec import header
from kstore.columns._column_reader import decode_columns

__all__ = ["offsets_and_timestamps"]


def offsets_and_timestamps(data: bytes | bytearray, **where: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Decode the batch in `data` without checking its CRC; `where` is the path and position for errors."""
    if header.MAGIC.of(data) >= 2 and header.ATTRIBUTES.of(data) & header.CONTROL_BIT:  # columns omit control records
        records = [record for batch in decode_batches(data, check_crc=False, **where) for record in batch]
        return (
            numpy.array([record.offset for record in records], dtype="i8"),
            numpy.array([record.timestamp for record in records], dtype="i8"),
        )
    columns = decode_columns(data, columns=("offset", "timestamp"), check_crc=False, threads=1, **where)
    return columns.offsets, columns.timestamps
