"""`Log.latest`: reads the newest record of each key, as a compaction would keep them.

The first pass finds the offset of each key's newest record; the second reads only the records at these offsets.
Invariant: both passes see the same log; after a compaction, truncation or deletion they start again. Otherwise a key
could be missing: a compaction may remove the key's record because of a newer record above the end of the first pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kstore._core import Record
from kstore.base import arguments
from kstore.base.times import refuse_naive
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import COLUMNS, LatestOffsets
from kstore.columns.keyed_rows import ROW_COLUMNS, KeyedPart, KeyedRows
from kstore.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from kstore.log.column_reads import column_options, iterate_chunks, read_kept
from kstore.log.reading.log_reader import end_before
from kstore.log.reading.read_options import ReadOptions
from kstore.log.reading.view import View, check_offset, steadily

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class LogTable(KeyedRows[Record]):
    """The newest record of each key of a log at one time, as `Log.latest` read them.

    Iterating yields the records in the order of their offsets. `table[key]` is the `Record` of a key (bytes), and
    `len(table)` is the number of keys; `key in table`, `get`, `keys` and `items` work as with a dict. `columns()`
    returns the table as columns, and Arrow libraries accept the table itself: `polars.DataFrame(table)`,
    `pyarrow.table(table)`. As in columns, bytes of header names that are not UTF-8 are replaced by U+FFFD.

    Example:
        >>> log = kstore.Log.open("data/orders-0")
        >>> info = log.append_many([(b"alice", b"3 apples"), (b"bob", b"1 pear"), (b"alice", b"4 apples")])
        >>> table = log.latest()
        >>> len(table), table[b"alice"].value, b"carol" in table
        (2, b'4 apples', False)

    Immutable and thread-safe.
    """

    end_offset: int
    """The offset below which the table's records lie."""

    def __init__(self, newest: Newest) -> None:
        super().__init__([newest.part])
        self.end_offset = newest.end_offset

    def _rows(self, chunk: Columns, first: int, stop: int) -> Iterator[Record]:
        return map(Record, *row_parts(chunk, first, stop))

    def __repr__(self) -> str:
        return f"<kstore.LogTable of {len(self)} keys, as of offset {self.end_offset}>"


class Newest(NamedTuple):
    """The newest record of each key of a log, as rows in the order of their offsets."""

    end_offset: int
    part: KeyedPart


def checked(as_of: int | datetime | None, name: str = "as_of") -> int | datetime | None:
    """Return `as_of`; raise if it is neither an offset nor a time with a time zone."""
    if as_of is None:
        return None
    if isinstance(as_of, datetime):
        refuse_naive(name, as_of)
        return as_of
    try:
        return arguments.whole(name, as_of)
    except TypeError:
        raise TypeError(f"{name} must be an offset (an int), a datetime or None, not {type(as_of).__name__}") from None


def collect(view: View, as_of: int | datetime | None, secret: bytes, *, threads: int | None = None) -> Newest:
    """Read the newest record of each key in one state of a log; results with the same `secret` can be compared.

    `threads` is as in `Log.iter_columns`.
    """
    errors = (CorruptRecordError, OffsetOutOfRangeError, StorageError)
    return steadily(_look, view, as_of, secret, threads, view=view, errors=errors)


def _look(view: View, as_of: int | datetime | None, secret: bytes, threads: int | None) -> Newest:
    end = _end_offset(view, as_of)
    start = view.log_start_offset
    newest = LatestOffsets(secret, start, end)
    columns = column_options(COLUMNS, threads=threads, whole=False)
    for chunk in iterate_chunks(view, ReadOptions(start, end, committed=True), columns, None):
        newest.add(chunk)
    offsets = newest.offsets()
    chunks = read_kept(view, offsets, end, ROW_COLUMNS)
    rows = sum(map(len, chunks))
    if rows != len(offsets):
        raise CorruptRecordError(f"{rows} records were read at {len(offsets)} offsets: the log changed meanwhile")
    return Newest(end, KeyedPart(newest, chunks))


def _end_offset(view: View, as_of: int | datetime | None) -> int:
    """Return the offset below which the table's records lie."""
    stable = view.decided_end_offset()
    if as_of is None:
        return stable
    if isinstance(as_of, datetime):
        # At least 0, because a record without a timestamp (-1) is never later.
        return end_before(view, max((as_of - _EPOCH) // _MILLISECOND, -1) + 1, stable)
    check_offset(view, as_of)
    return min(as_of, stable)


def row_parts(chunk: Columns, first: int, stop: int) -> tuple[list[Any], ...]:
    """Return the fields of the rows `[first, stop)`: offsets, timestamps, keys, values, headers."""
    return (
        chunk.offsets[first:stop].tolist(),
        chunk.timestamps[first:stop].tolist(),
        chunk.keys[first:stop],
        chunk.values[first:stop],
        chunk.headers[first:stop],
    )
