"""Prints index files, and compares each entry with the log in the same directory (DUMP 4 and 5).

It reads the same bytes as Kafka's tool in the same order, since the order decides where the tool stops. Unlike that
tool it never opens a file for writing, and never creates or cuts a file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.base.closing import Closing
from kstore.codec import header
from kstore.disk import fs
from kstore.errors import CorruptIndexError, CorruptRecordError
from kstore.files._index_search import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetEntries, TimeEntries
from kstore.files.log_file import MAX_LOG_BYTES, open_log

__all__ = ["IndexCheck", "LogWindow", "TimeFindings", "dump_index", "dump_time_index"]

_WARM_BYTES = 8192  # the end of an index that Kafka searches first (Kafka's AbstractIndex says why)


class _Batch(NamedTuple):
    """A batch in a log: its position and size, and its first 61 bytes (fewer at the file's end)."""

    position: int
    size: int
    head: bytes


class LogWindow(Closing):
    """Walks the batches of a `.log` file from any position. Not thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._walked = array("q")
        self._fd = open_log(path, follow=True)
        self._size = fs.size(self._fd)

    def close(self) -> None:
        fs.close(self._fd)

    def batches(self, position: int, limit: int = MAX_LOG_BYTES) -> Iterator[_Batch]:
        """Yield the batches from `position` within `limit` bytes; raise `CorruptRecordError` at other bytes."""
        if position < 0 or position > self._size or limit < 0:
            raise CorruptRecordError(
                f"cannot read {limit} bytes: the file has {self._size}", path=self._path, position=position
            )
        end = min(position + limit, self._size)
        while position < end - header.UP_TO_MAGIC_BYTES:  # Kafka reads these bytes to see whether there is a batch
            head = fs.pread(self._fd, header.HEADER_BYTES, position)
            if len(head) <= header.UP_TO_MAGIC_BYTES:
                return  # the file was cut during the walk
            size = header.size_of(head)
            if size < header.LOG_OVERHEAD + header.MIN_V0_MESSAGE:
                raise CorruptRecordError(
                    f"size {size - header.LOG_OVERHEAD} in a batch's header: the smallest is {header.MIN_V0_MESSAGE}",
                    path=self._path,
                    position=position,
                )
            if position > end - size:
                return
            yield _Batch(position, size, head)
            position += size

    def ensure_walkable(self, position: int) -> None:
        """Raise the first error of a walk from `position` to the end of the log.

        Kafka's tool walks over all those batches for each entry of a time index; here the walk is done once.
        """
        at = bisect_left(self._walked, position)
        if at < len(self._walked) and self._walked[at] == position:
            return
        walked = array("q", (batch.position for batch in self.batches(position)))
        if not self._walked or position < self._walked[0]:
            self._walked = walked

    def last_offset(self, batch: _Batch) -> int:
        """Return a batch's last offset; in formats 0 and 1 that is the entry's own offset."""
        if header.MAGIC.of(batch.head) >= 2 and len(batch.head) < header.HEADER_BYTES:
            raise CorruptRecordError("the file ends within a batch's header", path=self._path, position=batch.position)
        return header.last_offset_of(batch.head)

    def max_timestamp(self, batch: _Batch) -> int:
        """Return the greatest timestamp of a batch's records, -1 if it has none."""
        from kstore.columns.record_offsets import offsets_and_timestamps  # late, since other dumps do not need NumPy

        data = bytearray(fs.pread(self._fd, batch.size, batch.position))
        if header.MAGIC.of(data) > 2:
            header.MAGIC.put(data, 2)  # a newer format is read as format 2
        _, timestamps = offsets_and_timestamps(data, path=self._path, position=batch.position)
        return int(timestamps.max(initial=-1))


@dataclass
class IndexCheck:
    """How to dump an index file: only the broker's check, all lines, or only the wrong entries."""

    sanity_only: bool = False
    lines: bool = True


@dataclass
class TimeFindings:
    """The faults of a time index, in file order: pairs of the indexed value and the value compared with it."""

    mismatches: list[tuple[int, int]] = field(default_factory=list)
    disorder: list[tuple[int, int]] = field(default_factory=list)
    not_found: list[tuple[int, int]] = field(default_factory=list)


def whole_entries(kind: type[OffsetEntries | TimeEntries], data: bytes, base_offset: int = 0) -> list[tuple[int, int]]:
    """Return the whole entries in an index file, in order; a partial entry at the end is ignored."""
    size = OFFSET_ENTRY_BYTES if kind is OffsetEntries else TIME_ENTRY_BYTES
    return kind(data[: len(data) // size * size], base_offset).all_entries()


def dump_index(
    path: str,
    shown: str,
    base_offset: int,
    log_path: str,
    check: IndexCheck,
    max_message_size: int,
    write: Callable[[str], None],
) -> dict[int, int]:
    """Dump an offset index; return the mismatches: a map from the index's offset to the log's.

    Raises `CorruptIndexError` if the broker's check fails, `CorruptRecordError` if an entry points at no batch.
    """
    with LogWindow(log_path) as log:
        data = fs.read_file(path, follow=True)
        entries = whole_entries(OffsetEntries, data)
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
    if len(data) % OFFSET_ENTRY_BYTES:
        raise CorruptIndexError(f"{len(data)} bytes, which is no multiple of {OFFSET_ENTRY_BYTES}", path=path)


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
    """Dump a time index, and add its faults to `findings`.

    Raises `CorruptIndexError` if the broker's check fails, `CorruptRecordError` if the walk from an entry to the log
    end fails.
    """
    with LogWindow(log_path) as log:
        index = fs.read_file(index_path, follow=True)
        positions = whole_entries(OffsetEntries, index)
        data = fs.read_file(path, follow=True)
        entries = whole_entries(TimeEntries, data)
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
            batch = next((batch for batch in log.batches(start) if log.last_offset(batch) >= offset), None)
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
    if len(data) % TIME_ENTRY_BYTES:
        raise CorruptIndexError(f"{len(data)} bytes, which is no multiple of {TIME_ENTRY_BYTES}", path=path)


def _lookup(entries: list[tuple[int, int]], relative: int) -> int:
    """Return where to start, by the steps of Kafka's search: if entries are out of order, other searches differ."""
    if not entries:
        return 0
    low, high = max(0, len(entries) - 1 - _WARM_BYTES // OFFSET_ENTRY_BYTES), len(entries) - 1
    if entries[low][0] >= relative:
        if entries[0][0] > relative:
            return 0
        low, high = 0, low
    while low < high:
        middle = (low + high + 1) // 2
        middle_offset = entries[middle][0]
        if middle_offset == relative:
            return entries[middle][1]
        if middle_offset > relative:
            high = middle - 1
        else:
            low = middle
    return entries[low][1]
