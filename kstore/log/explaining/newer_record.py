"""Looks for the record that supersedes another: the next one with the same key.

Invariant: it reads at most `MOST_BYTES` of the log, and damage ends the search like the end of the log.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kstore.columns._column_reader import decode_columns
from kstore.errors import CorruptRecordError
from kstore.log.reading.log_reader import open_reader
from kstore.log.reading.read_options import ReadOptions

if TYPE_CHECKING:
    from kstore.log.reading.view import View

MOST_BYTES = 64 << 20
_COLUMNS = ("offset", "timestamp", "key")


class Newer(NamedTuple):
    """The next record of a key, with its timestamp (-1: none); without one, offset -1. `end_offset` ends the search."""

    offset: int
    timestamp: int
    end_offset: int


def next_of_key(view: View, key: bytes, offset: int, end_offset: int, most_bytes: int = MOST_BYTES) -> Newer:
    """Find the first committed record with this key between two offsets, both exclusive."""
    reached, read = offset + 1, 0
    if reached >= end_offset:
        return Newer(-1, -1, reached)
    reader = open_reader(view, ReadOptions(reached, end_offset, committed=True))
    with suppress(CorruptRecordError):
        for data, path, position, _ in reader:
            found = decode_columns(
                data,
                columns=_COLUMNS,
                path=path,
                position=position,
                max_decompressed_bytes=view.max_decompressed_bytes,
            )
            first, stop = found.offsets.searchsorted([offset + 1, reader.end_offset]).tolist()
            with suppress(ValueError):  # the key is not there
                row = found.keys.to_pylist().index(key, first, stop)
                return Newer(int(found.offsets[row]), int(found.timestamps[row]), int(found.offsets[row]) + 1)
            reached, read = max(reached, found.next_offset), read + len(data)
            if read >= most_bytes:
                return Newer(-1, -1, min(reached, reader.end_offset))
        reached = reader.end_offset
    return Newer(-1, -1, reached)
