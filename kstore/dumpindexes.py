"""Index files as text, each entry held against the log beside it (DUMP.md 4 and 5).

Owns what the dump tool does with `.index` and `.timeindex` files: their lines, the mismatches that it remembers for its
summary, the entries it stops at. Reads what Kafka's tool reads, in its order, as it decides where that one stops; but
opens nothing for writing, creates nothing and cuts nothing.
"""

from __future__ import annotations

import errno
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore import fs
from kstore._core import decode_batches
from kstore.errors import CorruptIndexError, CorruptRecordError, StorageError
from kstore.legacy import MIN_MESSAGE_BYTES

__all__ = ["IndexCheck", "LogWindow", "TimeFindings", "dump_index", "dump_time_index"]

MAX_LOG_BYTES = 0x7FFFFFFF  # Java's positions are int32; so is what an index entry can point at

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_LOG_OVERHEAD = 12
_LEAST_BYTES = 17  # of a batch up to its magic: what Kafka reads to see whether there is one
_MAGIC_AT = 16
_LAST_OFFSET_DELTA_AT = 23
_V2_HEADER_BYTES = 61
_WARM_BYTES = 8192  # the end of an index that Kafka searches first (its AbstractIndex says why)


class _Batch(NamedTuple):
    """A batch in a log: where it stands, all its bytes counted, and the first 61 of them (fewer at the file's end)."""

    position: int
    size: int
    head: bytes


class LogWindow:
    """The batches of a `.log` file, looked at from a position. Not thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._walked = array("q")
        self._fd = fs.open(path)
        self._size = fs.size(self._fd)
        if self._size > MAX_LOG_BYTES:
            fs.close(self._fd)
            raise StorageError(
                errno.EFBIG, f"{self._size} bytes, more than the {MAX_LOG_BYTES} of the largest segment", path
            )

    def close(self) -> None:
        fs.close(self._fd)

    def batches(self, position: int, limit: int = MAX_LOG_BYTES) -> Iterator[_Batch]:
        """Walk from `position` within `limit` bytes; `CorruptRecordError` where no batch can be."""
        if position < 0 or position > self._size or limit < 0:
            raise CorruptRecordError(
                f"no place to look for {limit} bytes: the file has {self._size}", path=self._path, position=position
            )
        end = min(position + limit, self._size)
        while position < end - _LEAST_BYTES:
            head = fs.pread(self._fd, _V2_HEADER_BYTES, position)
            if len(head) <= _LEAST_BYTES:
                return  # the file has been cut meanwhile
            size = int.from_bytes(head[8:12], "big", signed=True)
            if size < MIN_MESSAGE_BYTES:
                raise CorruptRecordError(
                    f"size {size} in a batch's header: the smallest is {MIN_MESSAGE_BYTES}",
                    path=self._path,
                    position=position,
                )
            if position > end - _LOG_OVERHEAD - size:
                return
            yield _Batch(position, _LOG_OVERHEAD + size, head)
            position += _LOG_OVERHEAD + size

    def ensure_walkable(self, position: int) -> None:
        """Raise what stands in the way from `position` to the end of the log.

        Kafka's tool lists all those batches for each entry of a time index; here the list is made once.
        """
        at = bisect_left(self._walked, position)
        if at < len(self._walked) and self._walked[at] == position:
            return
        walked = array("q", (batch.position for batch in self.batches(position)))
        if not self._walked or position < self._walked[0]:
            self._walked = walked

    def last_offset(self, batch: _Batch) -> int:
        """Tell a batch's last offset; of formats 0 and 1 that is the offset it stands under."""
        head = batch.head
        offset = int.from_bytes(head[:8], "big", signed=True)
        if head[_MAGIC_AT] in (0, 1) or head[_MAGIC_AT] > 0x7F:
            return offset
        if len(head) < _V2_HEADER_BYTES:
            raise CorruptRecordError("the file ends within a batch's header", path=self._path, position=batch.position)
        delta = int.from_bytes(head[_LAST_OFFSET_DELTA_AT : _LAST_OFFSET_DELTA_AT + 4], "big", signed=True)
        return (offset + delta + (1 << 63)) % (1 << 64) - (1 << 63)

    def max_timestamp(self, batch: _Batch) -> int:
        """Find the largest timestamp of a batch's records, -1 without any."""
        data = bytearray(fs.pread(self._fd, batch.size, batch.position))
        if 2 < data[_MAGIC_AT] <= 0x7F:
            data[_MAGIC_AT] = 2  # what is newer is read as if it were not
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
            last_offset = log.last_offset(batch)
            if last_offset != offset:
                mismatches[offset] = last_offset
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
            log.ensure_walkable(start)
            batch = next((found for found in log.batches(start) if log.last_offset(found) >= offset), None)
            if batch is None or log.last_offset(batch) != offset:
                findings.not_found.append((offset, -1 if batch is None else log.last_offset(batch)))
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
