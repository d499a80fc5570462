"""Finds where an offset is in a segment of a tier, and shortens the segment's files to the batches below it.

The offset index leads near the batch; from there the headers of batches are read. Invariant: only whole batches whose
offsets are all below the given one are kept, and the time index ends with their greatest timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping

from kstore.base.numbers import INT_MAX
from kstore.codec import header
from kstore.errors import BackupError, CorruptIndexError
from kstore.files import names
from kstore.files._index_search import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntries,
    TimeEntries,
    time_entry,
)
from kstore.files.txnindex import format_txn_index, parse_txn_index
from kstore.objects.object_store import Objects
from kstore.objects.remote_bytes import RemoteWindow, cut_file, read_file
from kstore.objects.remote_state import UNKNOWN, RemoteFile, SegmentFacts

MOST_INDEX_BYTES = 64 << 20
WINDOW_BYTES = 64 << 10
MOST_REQUESTS = 256
"""How often the log is read for one segment: with the usual interval of index entries, once or twice."""

_NO_FILE = RemoteFile(content=b"")


class _Walk:
    """Where a log ends below an offset, found with its indexes and the headers of a few batches."""

    def __init__(
        self, objects: Objects, place: str, base: int, log: RemoteFile, index: bytes, times: bytes, end: int
    ) -> None:
        self.where = f"{place} in {objects.url}"
        self.position = 0
        self.end_offset = base
        self.max_timestamp, self.max_timestamp_offset = -1, UNKNOWN
        offsets = OffsetEntries(index, base, len(index) // OFFSET_ENTRY_BYTES)
        offsets.entries = offsets.sound_entries()
        entries = offsets.entries_below(end)
        if entries:
            # The entry is of a batch, whose timestamp an entry of the time index covers.
            last, self.position = offsets.entry(entries - 1)
            self.end_offset = last + 1
            stamps = TimeEntries(times, base, len(times) // TIME_ENTRY_BYTES)
            stamps.entries = stamps.sound_entries()
            covered = stamps.entries_below(last + 1)
            if covered:
                self.max_timestamp, self.max_timestamp_offset = stamps.entry(covered - 1)
        if self.position > log.size:
            raise self._error(f"its offset index leads to position {self.position}; it has {log.size} bytes")
        self._go(RemoteWindow(objects, log, WINDOW_BYTES, MOST_REQUESTS), log.size, base, end)

    def _go(self, window: RemoteWindow, size: int, base: int, end: int) -> None:
        least = base
        while self.position < size:
            batch = window.read(self.position, header.HEADER_BYTES)
            if batch is None:
                raise self._error(f"no entry of its offset index is near offset {end}")
            if len(batch) < header.LOG_OVERHEAD + header.MIN_V0_MESSAGE:
                raise self._error(f"{len(batch)} bytes at position {self.position} are no batch")
            length = header.size_of(batch)
            magic = header.MAGIC.of(batch)
            shortest = header.HEADER_BYTES if magic == 2 else header.LOG_OVERHEAD + header.MIN_V0_MESSAGE
            if not 0 <= magic <= 2 or not shortest <= length <= size - self.position or len(batch) < min(shortest, 61):
                raise self._error(f"a batch of format {magic} and {length} bytes at {self.position} of {size} bytes")
            first, last = header.BASE_OFFSET.of(batch), header.last_offset_of(batch)
            if not least <= first <= last <= base + INT_MAX:
                raise self._error(f"offsets {first} to {last} at position {self.position}, after {least - 1}")
            if last >= end:
                break
            stamp = -1
            if magic == 2:
                stamp = header.MAX_TIMESTAMP.of(batch)
            elif magic == 1 and len(batch) >= header.LEGACY_TIMESTAMP.end:
                stamp = header.LEGACY_TIMESTAMP.of(batch)
            if stamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = stamp, last
            self.position += length
            self.end_offset = least = last + 1

    def _error(self, reason: str) -> BackupError:
        return BackupError(f"{self.where} cannot be searched: {reason}")


def find_end(objects: Objects, place: str, base: int, files: Mapping[str, RemoteFile], end: int) -> SegmentFacts:
    """Return the end offset of the segment's batches below `end`, and their greatest timestamp."""
    index, times = _indexes(objects, files)
    walk = _Walk(objects, place, base, files[names.LOG], index, times, end)
    return SegmentFacts(walk.end_offset, walk.max_timestamp, walk.max_timestamp_offset)


def cut_files(
    objects: Objects, place: str, base: int, files: Mapping[str, RemoteFile], end: int
) -> tuple[dict[str, RemoteFile], SegmentFacts]:
    """Return the segment's files without the batches from offset `end` on, and what is known of them.

    Reads the indexes and the headers of a few batches. Raises `BackupError` if they do not fit together.
    """
    index, times = _indexes(objects, files)
    walk = _Walk(objects, place, base, files[names.LOG], index, times, end)
    kept = {names.LOG: cut_file(files[names.LOG], walk.position)}
    if names.OFFSET_INDEX in files:
        offsets = OffsetEntries(index, base, len(index) // OFFSET_ENTRY_BYTES)
        offsets.entries = offsets.sound_entries()
        kept[names.OFFSET_INDEX] = RemoteFile(content=index[: offsets.entries_below(walk.end_offset) * 8])
    if names.TIME_INDEX in files:
        stamps = TimeEntries(times, base, len(times) // TIME_ENTRY_BYTES)
        stamps.entries = stamps.sound_entries()
        count = stamps.entries_below(walk.end_offset)
        content = times[: count * TIME_ENTRY_BYTES]
        if walk.max_timestamp > (stamps.entry(count - 1)[0] if count else -1):
            content += time_entry(walk.max_timestamp, walk.max_timestamp_offset - base)
        kept[names.TIME_INDEX] = RemoteFile(content=content)
    if names.TXN_INDEX in files:
        data = read_file(objects, files[names.TXN_INDEX], MOST_INDEX_BYTES)
        try:
            aborted = [entry for entry in parse_txn_index(data) if entry.last_offset < walk.end_offset]
        except CorruptIndexError as error:
            raise BackupError(f"the aborted transactions of {walk.where}: {error}") from None
        kept[names.TXN_INDEX] = RemoteFile(content=format_txn_index(aborted))
    modified_ms = files[names.LOG].modified_ms
    kept = {kind: file._replace(modified_ms=modified_ms) for kind, file in kept.items()}
    return kept, SegmentFacts(walk.end_offset, walk.max_timestamp, walk.max_timestamp_offset)


def _indexes(objects: Objects, files: Mapping[str, RemoteFile]) -> tuple[bytes, bytes]:
    """Read the offset index and the time index; empty bytes for one that is missing."""
    index = read_file(objects, files.get(names.OFFSET_INDEX, _NO_FILE), MOST_INDEX_BYTES)
    times = read_file(objects, files.get(names.TIME_INDEX, _NO_FILE), MOST_INDEX_BYTES)
    return index, times
