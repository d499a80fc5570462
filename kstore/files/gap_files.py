"""The file of a partition's gaps: offsets that no segment has or will ever have.

A cleaner, a truncation inside a batch, a follower's batches or a repair can leave offsets out. Between two segments,
only this file distinguishes such a gap from a missing segment. A broker ignores the file.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterable

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import json_file

__all__ = ["GAPS_FILE", "add_gap", "cut_gaps", "format_gaps", "read_gaps", "write_gaps"]

logger = logging.getLogger("kstore")

GAPS_FILE = "kstore-gaps.json"

MAX_FILE_BYTES = 16 << 20

_VERSION = 1


def read_gaps(directory: str | os.PathLike[str]) -> list[tuple[int, int]]:
    """Read the gaps `[start, end)`; none if there is no file. Raises `StorageError` if the file is damaged."""
    content = json_file.read(os.path.join(directory, GAPS_FILE), MAX_FILE_BYTES, _VERSION)
    if content is None:
        return []
    gaps = []
    for place, gap in content.items("gaps"):
        is_pair = isinstance(gap, list) and len(gap) == 2 and all(type(at) is int for at in gap)
        if not is_pair or not 0 <= gap[0] < gap[1] <= LONG_MAX:
            raise content.refusal(place, gap, "a first offset and one past the last")
        gaps.append((gap[0], gap[1]))
    content.end()
    return _merged(gaps)


def write_gaps(directory: str | os.PathLike[str], gaps: Iterable[tuple[int, int]]) -> None:
    """Replace the file, durably; adjacent and overlapping gaps are merged."""
    fs.write_atomically(os.path.join(directory, GAPS_FILE), format_gaps(gaps))


def format_gaps(gaps: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes of the file; adjacent and overlapping gaps are merged."""
    return f"{json.dumps({'version': _VERSION, 'gaps': _merged(gaps)})}\n".encode()


def add_gap(directory: str, start: int, end: int, *, first_base: int) -> None:
    """Record, durably, that a log skips offsets `[start, end)` when it rolls; called before the new segment is made.

    Gaps below `first_base`, the start of the log, are dropped. A damaged file is not changed, since its content is not
    known; `kstore verify` reports it.
    """
    try:
        gaps = read_gaps(directory)
    except StorageError as error:
        if error.errno != errno.EBADMSG:
            raise
        logger.warning("%s; the gap from %d to %d is not written down", error, start, end - 1)
        return
    write_gaps(directory, [*(gap for gap in _below(gaps, start) if gap[1] > first_base), (start, end)])


def cut_gaps(directory: str, end: int) -> None:
    """Drop the gaps above `end`, the end of the data after a truncation. A damaged file is not changed."""
    if not fs.exists(os.path.join(directory, GAPS_FILE)):
        return
    try:
        gaps = read_gaps(directory)
    except StorageError as error:
        if error.errno != errno.EBADMSG:
            raise
        return
    kept = _below(gaps, end)
    if not kept:
        fs.unlink(os.path.join(directory, GAPS_FILE))
    elif kept != gaps:
        write_gaps(directory, kept)


def _below(gaps: Iterable[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
    """Return the gaps below an offset; one that contains it is cut there."""
    return [(start, min(end, limit)) for start, end in gaps if start < limit]


def _merged(gaps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
