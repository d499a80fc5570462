"""Compares the batches of a `.log` file with their own headers, for a check of the whole file at the speed of memory."""

from enum import IntFlag
from typing import Final

from _typeshed import StrPath

class Fault(IntFlag):
    COUNT = 1
    DELTA = 2
    CODEC = 4
    RECORDS = 8
    OFFSETS = 16
    TIMESTAMP = 32
    EPOCH = 64

ROW: Final[list[tuple[str, str]]]
"""A row's fields, as NumPy takes them for a dtype."""

def walk(
    fd: int, position: int, end: int, *, rows: int = 16384, records: bool = True, path: StrPath | None = None
) -> tuple[bytes, int, str]:
    """Check the batches of `[position, end)` one by one, at most `rows` of them, without the GIL.

    Returns the rows of the sound ones (bytes of `ROW`s), the position where the last of them ends, and why it stopped
    there: "end", "more" (call again from there), "torn" (the file ends inside a batch), "size", "magic" or "crc". A
    batch is sound if its frame and CRC hold; a row's `faults` tell what else is wrong with it. With `records` the
    records of batches that are not compressed are parsed. Raises `StorageError` when a read fails.
    """

def find_next(
    fd: int, position: int, end: int, least: int, most: int, *, legacy: bool = False, path: StrPath | None = None
) -> int:
    """Where the next sound batch is, at or after `position`, with offsets in `[least, most)`; -1 if there is none.

    A batch is sound if its frame, offsets and CRC hold; formats 0 and 1 count with `legacy`. Every byte is tried as a
    start. CRCs are computed over at most a few times the file's length; the search ends when that is used up. Without
    the GIL. Raises `StorageError` when a read fails.
    """
