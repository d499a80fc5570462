"""The index of aborted transactions, read (FORMAT.md 9).

A sequence of entries without a head; what a reader of transactions does with them is not for this file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kstore.errors import CorruptIndexError

__all__ = ["AbortedTxn", "format_txn_index", "parse_txn_index"]

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: where its first record and its marker are, and what was stable when it ended."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, *, path: str | None = None) -> list[AbortedTxn]:
    """Take the file apart; a fragment at its end is ignored.

    As in Kafka the version is the entry's first byte alone; `CorruptIndexError` if it is above the one that is known.
    """
    whole = len(data) - len(data) % _ENTRY.size
    entries = [AbortedTxn(fields[0] >> 8, *fields[1:]) for fields in _ENTRY.iter_unpack(data[:whole])]
    for entry in entries:
        if entry.version > _VERSION:
            raise CorruptIndexError(
                f"aborted transaction of version {entry.version}: {_VERSION} is the highest known", path=path
            )
    return entries


def format_txn_index(entries: Iterable[AbortedTxn]) -> bytes:
    """Write the file's bytes."""
    return b"".join(_ENTRY.pack(entry.version << 8, *entry[1:]) for entry in entries)
