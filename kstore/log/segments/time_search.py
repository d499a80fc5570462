"""Searches a segment by time: first its time index, then the batches after the entry that was found.

Invariant: an entry that the log contradicts is skipped, with a warning.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from kstore.base.numbers import LONG_MAX
from kstore.errors import CorruptIndexError, CorruptRecordError
from kstore.files import _log_search

if TYPE_CHECKING:
    from kstore.files._log_scan import ScanResult
    from kstore.files.index_file import OffsetIndex, TimeIndex
    from kstore.files.log_file import LogFile
    from kstore.log.segments.index_faults import IndexFaults

NO_TIMESTAMP = -1
ENTRIES_TRIED = 8  # entries of an index tried before the log is read from its start
MAX_CONFIRMED = 1024  # entries of a time index that are remembered as confirmed

# Shared: a log of very many segments needs no empty set for each of them.
NONE_CONFIRMED: set[tuple[int, int]] | frozenset[tuple[int, int]] = frozenset()


class Searched(Protocol):
    """The parts of a `Segment` that a search uses."""

    base_offset: int
    is_active: bool
    writable: bool
    faults: IndexFaults
    confirmed: set[tuple[int, int]] | frozenset[tuple[int, int]]  # entries of the time index that the log confirms
    _file: LogFile | None
    _time_index: TimeIndex | None
    _offset_index: OffsetIndex | None
    _used: bool

    @property
    def path(self) -> str: ...
    @property
    def file(self) -> LogFile: ...
    @property
    def time_index(self) -> TimeIndex: ...
    @property
    def offset_index(self) -> OffsetIndex: ...
    def first_timestamp(self, size_bytes: int | None = None) -> int | None: ...
    def start(self, offset: int, end: int) -> tuple[int, int]: ...
    def scan(self, position: int, end: int, *, after: int | None = None) -> ScanResult: ...
    def report_entry(self, path: object, entry: str) -> None: ...


def find_timestamp(
    segment: Searched,
    timestamp: int,
    start_offset: int,
    end: int,
    max_decompressed_bytes: int | None,
    *,
    exactly: bool = False,
) -> _log_search.FoundRecord | None:
    """Find the first record at or after `timestamp` and `start_offset` (SEMANTICS 5.5).

    With `exactly` the record has this very timestamp, and is in the first batch with records whose header has it or a
    later one (SEMANTICS 5.4).
    """
    file = segment._file or segment.file  # avoids the call of a property; likewise below
    segment._used = True
    if timestamp > 0 and not exactly:
        # Most often the record is in the batch after the one that both indexes point to.
        times, offsets = segment._time_index or segment.time_index, segment._offset_index or segment.offset_index
        with suppress(CorruptIndexError):  # another program has truncated an index
            found = _log_search.find_behind(
                file.fd, end, timestamp, start_offset, times, offsets, max_decompressed_bytes
            )
            if found is not None:
                return found
    entry = _confirmed_entry(segment, timestamp, end)
    position, least = segment.start(start_offset if entry is None else max(entry[1], start_offset), end)
    return _log_search.find_timestamp(
        file.fd,
        position,
        end,
        timestamp,
        start_offset,
        exactly=exactly,
        least=least,
        older_below=segment.base_offset if entry is None or entry[0] >= timestamp else entry[1] + 1,
        max_decompressed_bytes=max_decompressed_bytes,
        path=segment.path,
    )


def latest_record(
    segment: Searched, greatest: int, end: int, max_decompressed_bytes: int | None
) -> _log_search.FoundRecord | None:
    """Find the first record with the greatest timestamp before the position `end` (SEMANTICS 5.4).

    `greatest` is the greatest timestamp of the batches. A batch that a compaction has emptied keeps its timestamp
    although no record has it; if no record has `greatest`, the headers of all batches are read.
    """
    base_offset = segment.base_offset
    record = find_timestamp(segment, greatest, base_offset, end, max_decompressed_bytes, exactly=True)
    if record is None:
        file = segment.file
        of_records = _log_search.greatest_timestamp(
            file.fd, 0, end, least=base_offset, with_records=True, path=segment.path
        ).timestamp
        if of_records >= 0:
            record = find_timestamp(segment, of_records, base_offset, end, max_decompressed_bytes, exactly=True)
    return record


def read_maximum(segment: Searched, end: int) -> tuple[int, int]:
    """Return the greatest timestamp before the position `end`, and the last offset of the first batch with it.

    Return (-1, base offset) if no batch has a timestamp; an empty index means so, unless the first batch has one.
    Raises `CorruptRecordError` if damage prevents reading it.
    """
    entry = _confirmed_entry(segment, LONG_MAX, end)
    if entry is None and not segment.time_index.entries and (segment.first_timestamp(end) or NO_TIMESTAMP) < 0:
        return NO_TIMESTAMP, segment.base_offset
    return _maximum_from(segment, entry, end)


def scan_maximum(segment: Searched, end: int) -> tuple[int, int]:
    """Do what `read_maximum` does, but do not trust an empty index: it may have been cut (SEMANTICS 11.3)."""
    return _maximum_from(segment, _confirmed_entry(segment, LONG_MAX, end), end)


def _maximum_from(segment: Searched, entry: tuple[int, int] | None, end: int) -> tuple[int, int]:
    """Search after `entry`. If that is not the last entry, which the log then contradicts, check whole batches."""
    position, least = segment.start(segment.base_offset if entry is None else entry[1], end)
    if entry is not None and entry == segment.time_index.last:
        file = segment.file
        greatest = _log_search.greatest_timestamp(file.fd, position, end, least=least, path=segment.path)
    else:
        scan = segment.scan(position, end, after=least)
        if scan.end_position < end:
            raise CorruptRecordError(scan.reason, path=segment.path, position=scan.end_position)
        greatest = _log_search.GreatestTimestamp(scan.max_timestamp, scan.max_timestamp_offset)
    if entry is not None and entry[0] >= greatest.timestamp:
        return entry
    return greatest if greatest.timestamp >= 0 else (NO_TIMESTAMP, segment.base_offset)


def has_closing_entry(segment: Searched, end: int) -> bool:
    """Return whether the last entry of the time index has the greatest timestamp before `end` (SEMANTICS 3.11).

    If there is no entry, no batch may have a timestamp. Raises `CorruptRecordError`.
    """
    last = segment.time_index.last
    return read_maximum(segment, end)[0] == last[0] and (last[0] < 0 or bool(_bears_out(segment, last, end)))


def _confirmed_entry(segment: Searched, timestamp: int, end: int) -> tuple[int, int] | None:
    """Return the entry with the greatest timestamp at or below `timestamp` that the log confirms, or None."""
    try:
        return _borne_out_entry(segment, timestamp, end)
    except CorruptIndexError as error:  # another program has truncated it
        segment.faults.report(segment.time_index.path, error.reason)
        return None


def _borne_out_entry(segment: Searched, timestamp: int, end: int) -> tuple[int, int] | None:
    index, target = segment.time_index, timestamp
    if not segment.is_active:  # the unused slots of an active index may hold any bytes
        segment.faults.report_unsound(index)
    for _ in range(ENTRIES_TRIED):
        entry = index.lookup(target)
        entry_timestamp, entry_offset = entry
        if entry_timestamp < 0:
            return None
        borne_out = _bears_out(segment, entry, end)
        if borne_out:
            return entry
        if borne_out is False or not segment.is_active:
            if not segment.writable:
                index.reload()
            if index.lookup(target) == entry and not _bears_out(segment, entry, end):
                segment.report_entry(index.path, f"timestamp {entry_timestamp} at offset {entry_offset}")
        target = entry_timestamp - 1
    return None


def _bears_out(segment: Searched, entry: tuple[int, int], end: int) -> bool | None:
    """Return whether an entry's batch is the first with its timestamp since the entry before (SEMANTICS 3.6).

    Return None if the batches before the position `end` end before the entry's offset.
    """
    if entry in segment.confirmed:
        return True
    timestamp, offset = entry
    if offset < segment.base_offset:
        return False
    earlier, after = segment.time_index.lookup(timestamp - 1)
    while earlier >= 0 and after > offset:  # this entry is wrong, or both are
        earlier, after = segment.time_index.lookup(earlier - 1)
    if earlier < 0:
        after = segment.base_offset - 1
    position, least = segment.start(max(after, segment.base_offset), end)
    file = segment.file
    is_first = _log_search.is_first_with(
        file.fd, position, end, after, offset, timestamp, least=least, path=segment.path
    )
    if not is_first:
        return is_first
    confirmed = segment.confirmed  # read once: a truncation in another thread replaces it
    if isinstance(confirmed, set) and len(confirmed) < MAX_CONFIRMED:
        confirmed.add(entry)
    else:
        segment.confirmed = {entry}
    return True
