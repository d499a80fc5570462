"""Searches in a `.log` file that start at an index entry: for an offset, for a time, and whether the entry is right."""

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
    """A record that was searched for by its timestamp; leader epoch -1 if it is unknown."""

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
    """The `BatchPlace` of the batch that holds `offset`, or of the next after a gap (SEMANTICS 3.18a).

    The search begins at `position`. None if every batch below `end` ends before `offset`. Only headers are read, and the
    GIL is held while they are in the page cache (held.h); no CRC is checked. Of formats 0 and 1 the base offset is the
    entry's own, which for a wrapper is its last. Raises `CorruptRecordError` at a length or magic that cannot be.

    With `least`, the least base offset that the first batch may have, `end` is the end of a batch, every offset is
    below `most`, and batches follow one another: anything else is a `CorruptRecordError`, too.
    """

def last_offset(
    fd: int, position: int, end: int, *, least: int | None = None, most: int = ..., path: StrPath | None = None
) -> LogEnd | None:
    """Walk the headers of `[position, end)` to the last whole batch (SEMANTICS 8.10): where it ends, as a `LogEnd`.

    None if there is none. A torn batch at the end is passed over in
    silence. Raises `CorruptRecordError` at a length or magic that cannot be; with `least` also as `find_batch` does.
    """

def leads_to(fd: int, position: int, end: int, base_offset: int, offset: int, *, path: StrPath | None = None) -> int:
    """Check an entry of an offset index, `offset` at `position`, with the log: a batch's base offset, -1 or -2.

    The base offset is that of the batch there, which ends at `offset`, as an entry says it since 4.1; or `offset` is
    where one of the batches behind it ends, none of them behind a gap (SEMANTICS 3.18). -1 says that a batch is
    there which ends below `offset`, and that more is not known: older brokers wrote such entries. -2 says that no such
    batch of a segment that begins at `base_offset` can be there. Reads headers only, and holds the GIL as `find_batch`
    does.
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
    """Whether the batch that holds `offset` has this greatest timestamp, as the first of those that end above `after`.

    None where all batches end before `offset`. That is what two entries of a time index say, the first of which names
    `after` (SEMANTICS 3.6, 3.10). Reads headers from `position` on, and holds the GIL as `find_batch` does. Raises as that
    does with `least`.
    """

def greatest_timestamp(
    fd: int, position: int, end: int, *, least: int, with_records: bool = False, path: StrPath | None = None
) -> GreatestTimestamp:
    """The `GreatestTimestamp` of the batches of `[position, end)`, or only of those that have records.

    Reads headers, and holds the GIL as `find_batch` does. Raises as that does with `least`.
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
    """The first record of `[position, end)` with this timestamp or a later one, at `min_offset` or above.

    With `exactly` the record has this very timestamp and is in the first batch with records whose maxTimestamp reaches
    it (SEMANTICS 5.4).

    A `FoundRecord`, or None. SEMANTICS 5.5, step 3: only batches whose maxTimestamp reaches it are opened, and their CRC
    checked. With `least`, which is as with `find_batch`, so is the CRC of the batches on the way, except of those that
    end below `older_below` and are known to be older. Raises `CorruptRecordError` and `StorageError`.
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
    """As `find_timestamp`, in the batch behind the one that both indexes name.

    The header of the named one is read first, as it shows whether the log bears the entries out. Where it has done so
    before, and the next entries name the batch behind, that one alone is read. None where the log does not bear the
    entries out, where no such record is found near them and where anything is wrong with the bytes: then
    `find_timestamp` says what it is. The CRC of each batch from there on is checked.
    """

def header_at(fd: int, position: int, end: int, *, path: StrPath | None = None) -> BatchPlace | None:
    """The `BatchPlace` of the batch at `position`, None if none is there."""
