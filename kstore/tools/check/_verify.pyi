"""Compares the batches of a `.log` file with their own headers, to check the whole file at the speed of memory."""

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
"""The NumPy dtype of a row."""

def walk(
    fd: int, position: int, end: int, *, rows: int = 16384, records: bool = True, path: StrPath | None = None
) -> tuple[bytes, int, str]:
    """Check the batches of `[position, end)` one by one, at most `rows` of them, without the GIL.

    Returns the rows of the sound batches (bytes of `ROW`s), the end position of the last one, and why the walk stopped
    there: "end", "more" (call again from there), "torn" (the file ends inside a batch), "size", "magic" or "crc". A
    batch is sound if its frame and CRC are right; a row's `faults` name its other faults. With `records`, the records
    of batches that are not compressed are parsed. Raises `StorageError` if a read fails.
    """

def find_next(
    fd: int, position: int, end: int, least: int, most: int, *, legacy: bool = False, path: StrPath | None = None
) -> int:
    """Return the position of the next sound batch from `position` on, with offsets in `[least, most)`; -1 if none.

    A batch is sound if its frame, offsets and CRC are right; formats 0 and 1 count only with `legacy`. Every byte is
    tried as a start. The search gives up after it has computed CRCs over a few times the file's length. Runs without
    the GIL. Raises `StorageError` if a read fails.
    """
