"""Index files as text, each entry held against the log beside it (DUMP.md 4 and 5).

Owns what the dump tool does with `.index` and `.timeindex` files: their lines, the mismatches that it remembers for its
summary, the entries it stops at. Reads what Kafka's tool reads, in its order, as it decides where that one stops; but
opens nothing for writing, creates nothing and cuts nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore import fs
from kstore._core import decode_batches
from kstore.errors import CorruptIndexError, CorruptRecordError, InvalidRecordError, StorageError

__all__ = ["IndexCheck", "LogWindow", "TimeFindings", "dump_index", "dump_time_index"]

MAX_LOG_BYTES = 0x7FFFFFFF  # Java's positions are int32; so is what an index entry can point at

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_V2_HEADER_BYTES = 61
_LAST_OFFSET_DELTA_AT = 23
_WARM_BYTES = 8192  # the end of an index that Kafka searches first (its AbstractIndex says why)


class _Found(NamedTuple):
    """A batch in a log: where it stands, all its bytes counted, and its last offset."""

    position: int
    size: int
    last_offset: int


class LogWindow:
    """The batches of a `.log` file, looked at from a position. Not thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = fs.open(path)
        self._size = fs.size(self._fd)
        if self._size > MAX_LOG_BYTES:
            fs.close(self._fd)
            raise StorageError(27, f"{self._size} bytes, more than the {MAX_LOG_BYTES} of the largest segment", path)

    def close(self) -> None:
        fs.close(self._fd)

    def batches(self, position: int, limit: int = MAX_LOG_BYTES) -> Iterator[_Found]:
        """Walk from `position` within `limit` bytes; `CorruptRecordError` where no batch can be."""
        if position < 0 or position > self._size or limit < 0:
            raise CorruptRecordError(f"no {limit} bytes there: the file has {self._size}", path=self._path)
        end = min(position + limit, self._size)
        while position < end - 17:
            head = fs.pread(self._fd, _V2_HEADER_BYTES, position)
            if len(head) <= 17:
                return
            size = int.from_bytes(head[8:12], "big", signed=True)
            if size < 14:
                raise CorruptRecordError(
                    f"size {size} in a batch's header: the smallest is 14", path=self._path, position=position
                )
            if position > end - 12 - size:
                return
            yield _Found(position, 12 + size, self._last_offset(head, position))
            position += 12 + size

    def _last_offset(self, head: bytes, position: int) -> int:
        offset = int.from_bytes(head[:8], "big", signed=True)
        if head[16] in (0, 1) or head[16] > 0x7F:
            return offset
        if len(head) < _V2_HEADER_BYTES:
            raise CorruptRecordError("the file ends within a batch's header", path=self._path, position=position)
        delta = int.from_bytes(head[_LAST_OFFSET_DELTA_AT : _LAST_OFFSET_DELTA_AT + 4], "big", signed=True)
        return (offset + delta + (1 << 63)) % (1 << 64) - (1 << 63)

    def max_timestamp(self, batch: _Found) -> int:
        """Find the largest timestamp of a batch's records, -1 without any."""
        data = bytearray(fs.pread(self._fd, batch.size, batch.position))
        if 2 < data[16] <= 0x7F:
            data[16] = 2  # what is newer is read as if it were not
        greatest = -1
        for found in decode_batches(data, check_crc=False, path=self._path, position=batch.position):
            for record in found:
                greatest = max(greatest, record.timestamp)
        return greatest


@dataclass
class IndexCheck:
    """What is asked of an index file: the broker's check alone, or the lines unless only what is wrong is wanted."""

    sanity_only: bool = False
    lines: bool = True


@dataclass
class TimeFindings:
    """What is wrong with a time index, in file order: pairs of what it says and what is there."""

    mismatches: list[tuple[int, int]] = field(default_factory=list)
    disorder: list[tuple[int, int]] = field(default_factory=list)
    not_found: list[tuple[int, int]] = field(default_factory=list)


@contextmanager
def _log(path: str) -> Iterator[LogWindow]:
    log = LogWindow(path)
    try:
        yield log
    finally:
        log.close()


def dump_index(
    path: str,
    shown: str,
    base_offset: int,
    log_path: str,
    check: IndexCheck,
    max_message_size: int,
    write: Callable[[str], None],
) -> dict[int, int]:
    """Dump an offset index; the mismatches by index offset, each with what the log has there.

    Raises `CorruptIndexError` if the broker's check fails, `CorruptRecordError` if an entry points at no batch.
    """
    with _log(log_path) as log:
        data = fs.read_file(path)
        entries = list(_OFFSET_ENTRY.iter_unpack(data[: len(data) // 8 * 8]))
        if not entries:
            write(f"{shown} is empty.\n")
            return {}
        if check.sanity_only:
            _check_index(path, data, base_offset + entries[-1][0], base_offset)
            write(f"{shown} passed sanity check.\n")
            return {}
        mismatches: dict[int, int] = {}
        for slot, (relative, position) in enumerate(entries):
            offset = base_offset + relative
            if slot and offset == base_offset:
                break
            batch = next(log.batches(position, max_message_size), None)
            if batch is None:
                raise CorruptRecordError(
                    f"no whole batch within {max_message_size} bytes, where the index has offset {offset}",
                    path=log_path,
                    position=position,
                )
            if batch.last_offset != offset:
                mismatches[offset] = batch.last_offset
            if check.lines:
                write(f"offset: {offset} position: {position}\n")
        return mismatches


def _check_index(path: str, data: bytes, last_offset: int, base_offset: int) -> None:
    if last_offset < base_offset:
        raise CorruptIndexError(
            f"non-zero size, and the last offset is {last_offset}, below the base offset {base_offset}", path=path
        )
    if len(data) % 8:
        raise CorruptIndexError(f"{len(data)} bytes, which is no multiple of 8", path=path)


def dump_time_index(
    path: str,
    shown: str,
    base_offset: int,
    log_path: str,
    index_path: str,
    check: IndexCheck,
    write: Callable[[str], None],
    findings: TimeFindings,
) -> None:
    """Dump a time index, adding to `findings` what is wrong with it.

    Raises `CorruptIndexError` if the broker's check fails, `CorruptRecordError` if the log cannot be read there.
    """
    with _log(log_path) as log:
        index = fs.read_file(index_path)
        positions = list(_OFFSET_ENTRY.iter_unpack(index[: len(index) // 8 * 8]))
        data = fs.read_file(path)
        entries = list(_TIME_ENTRY.iter_unpack(data[: len(data) // 12 * 12]))
        if check.sanity_only:
            _check_time_index(path, data, entries, base_offset)
            write(f"{shown} passed sanity check.\n")
            return
        previous = -1
        for slot, (timestamp, relative) in enumerate(entries):
            offset = base_offset + relative
            if slot and offset == base_offset:
                break
            start = _lookup(positions, relative)
            batch = next((found for found in log.batches(start) if found.last_offset >= offset), None)
            if batch is None or batch.last_offset != offset:
                findings.not_found.append((offset, -1 if batch is None else batch.last_offset))
            else:
                greatest = log.max_timestamp(batch)
                if greatest != timestamp:
                    findings.mismatches.append((timestamp, greatest))
                if timestamp <= previous:
                    findings.disorder.append((timestamp, previous))
            if check.lines:
                write(f"timestamp: {timestamp} offset: {offset}\n")
            previous = timestamp


def _check_time_index(path: str, data: bytes, entries: list[tuple[int, int]], base_offset: int) -> None:
    if entries:
        first, last, last_offset = entries[0][0], entries[-1][0], base_offset + entries[-1][1]
        if last < first:
            raise CorruptIndexError(
                f"non-zero size, and the last timestamp is {last}, below the first timestamp {first}", path=path
            )
        if last_offset < base_offset:
            raise CorruptIndexError(
                f"non-zero size, and the last offset is {last_offset}, below the first offset {base_offset}", path=path
            )
    if len(data) % 12:
        raise CorruptIndexError(f"{len(data)} bytes, which is no multiple of 12", path=path)


def _lookup(entries: list[tuple[int, int]], relative: int) -> int:
    """Find where to start looking, with Kafka's own steps: in an index out of order another search ends elsewhere."""
    if not entries:
        return 0
    low, high = max(0, len(entries) - 1 - _WARM_BYTES // _OFFSET_ENTRY.size), len(entries) - 1
    if entries[low][0] >= relative:
        if entries[0][0] > relative:
            return 0
        low, high = 0, low
    while low < high:
        middle = (low + high + 1) // 2
        found = entries[middle][0]
        if found == relative:
            return entries[middle][1]
        if found > relative:
            high = middle - 1
        else:
            low = middle
    return entries[low][1]
