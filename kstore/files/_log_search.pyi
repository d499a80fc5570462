"""Searches in a `.log` file that start at an index entry: for an offset, for a time, or to check the entry."""

from typing import NamedTuple

from _typeshed import StrPath

from kstore.files._index_search import OffsetEntries, TimeEntries

class BatchPlace(NamedTuple):
    """Where a batch lies in its file, the offsets it spans, and its greatest timestamp."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    magic: int

class LogEnd(NamedTuple):
    """The last offset of the last whole batch of a log file, and the position where that batch ends."""

    last_offset: int
    position: int

class GreatestTimestamp(NamedTuple):
    """The greatest timestamp of some batches, and the last offset of the first batch that has it; -1 for none."""

    timestamp: int
    offset: int

class FoundRecord(NamedTuple):
    """A record found by timestamp; the leader epoch is -1 if it is unknown."""

    timestamp: int
    offset: int
    leader_epoch: int

def find_batch(
    fd: int,
    position: int,
    end: int,
    offset: int,
    *,
    least: int | None = None,
    most: int = ...,
    path: StrPath | None = None,
) -> BatchPlace | None:
    """Return the `BatchPlace` of the batch that holds `offset`, or of the next one after a gap (SEMANTICS 3.18a).

    The search starts at `position`. Returns None if every batch below `end` ends before `offset`. Reads only headers,
    and holds the GIL while they are in the page cache (held.h); checks no CRC. In formats 0 and 1 the base offset is
    the entry's own offset (a wrapper has its last). Raises `CorruptRecordError` at an invalid length or magic.

    `least` is the least base offset that the first batch may have. If it is given, `CorruptRecordError` is also raised
    unless `end` is the end of a batch, every offset is below `most` and the batches' offsets rise.
    """

def last_offset(
    fd: int, position: int, end: int, *, least: int | None = None, most: int = ..., path: StrPath | None = None
) -> LogEnd | None:
    """Walk the headers of `[position, end)` and return the `LogEnd` of the last whole batch (SEMANTICS 8.10), or None.

    A torn batch at the end is ignored. Raises `CorruptRecordError` at an invalid length or magic, and with `least` also
    as `find_batch` does.
    """

def leads_to(fd: int, position: int, end: int, base_offset: int, offset: int, *, path: StrPath | None = None) -> int:
    """Check an entry of an offset index, `offset` at `position`, against the log; return a base offset, -1 or -2.

    The result is the base offset of the batch at `position` if that batch ends at `offset`, as in entries since 4.1, or
    if a later batch ends there and no gap lies between (SEMANTICS 3.18). In formats 0 and 1, whose wrappers have only
    their last offset, it is `base_offset` instead. The result is -1 if the batch at `position` ends below `offset` and
    no more is known: older brokers wrote such entries. It is -2 if a segment that starts at `base_offset` cannot have
    the batch at `position`. Reads only headers, and holds the GIL as `find_batch` does.
    """

def is_first_with(
    fd: int,
    position: int,
    end: int,
    after: int,
    offset: int,
    timestamp: int,
    *,
    least: int,
    path: StrPath | None = None,
) -> bool | None:
    """Return whether the batch with `offset` has this greatest timestamp, and no earlier one above `after` does.

    Two entries of a time index claim this; the first of them names `after` (SEMANTICS 3.6, 3.10). Returns None if all
    batches end before `offset`. Reads headers from `position` on. Holds the GIL and raises as `find_batch` does.
    """

def greatest_timestamp(
    fd: int, position: int, end: int, *, least: int, with_records: bool = False, path: StrPath | None = None
) -> GreatestTimestamp:
    """Return the `GreatestTimestamp` of the batches of `[position, end)`, or only of those that have records.

    Reads only headers. Holds the GIL and raises as `find_batch` does with `least`.
    """

def find_timestamp(
    fd: int,
    position: int,
    end: int,
    timestamp: int,
    min_offset: int = 0,
    *,
    exactly: bool = False,
    least: int | None = None,
    most: int = ...,
    older_below: int = ...,
    check_crc: bool = True,
    max_decompressed_bytes: int | None = None,
    path: StrPath | None = None,
) -> FoundRecord | None:
    """Return the first record of `[position, end)` from `min_offset` on with this timestamp or a later one, or None.

    With `exactly` the record has exactly this timestamp and is in the first batch with records whose maxTimestamp
    reaches it (SEMANTICS 5.4).

    Only batches whose maxTimestamp reaches `timestamp` are decoded and have their CRC checked (SEMANTICS 5.5, step 3).
    With `least` (as in `find_batch`), the CRCs of the batches before them are checked, too, except batches that end
    below `older_below`, which are known to be older. Raises `CorruptRecordError` and `StorageError`.
    """

def find_behind(
    fd: int,
    end: int,
    timestamp: int,
    min_offset: int,
    times: TimeEntries,
    offsets: OffsetEntries,
    max_decompressed_bytes: int | None,
) -> FoundRecord | None:
    """Find what `find_timestamp` finds, starting after the batch that both indexes name.

    Reads the header of the named batch first, to check the entries against the log. If the log has confirmed them
    before and the next entries name the next batch, reads only the next batch. Returns None if the log contradicts the
    entries, if no record is near them, or if bytes are damaged, which `find_timestamp` then reports. Checks the CRC of
    each batch after the named one.
    """

def header_at(fd: int, position: int, end: int, *, path: StrPath | None = None) -> BatchPlace | None:
    """Return the `BatchPlace` of the batch at `position`, None if none is there."""
