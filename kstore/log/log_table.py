"""`log.latest()`: the newest record of each key, as compaction would leave them, without a byte rewritten.

A first pass learns the offset of each key's newest record, a second one reads the records at these offsets alone. The
hardest rule: both passes see the same log. A compaction, a truncation or a deletion meanwhile lets them begin again:
else a key could be missing whose record was cleaned because of a newer one that lies behind the end of the first pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kstore._core import Record
from kstore.base import arguments
from kstore.base.times import refuse_naive
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import COLUMNS, LatestOffsets, new_secret
from kstore.columns.keyed_rows import ROW_COLUMNS, KeyedPart, KeyedRows
from kstore.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from kstore.log.read_columns import ColumnReads, read_kept
from kstore.log.reading import _timestamp_lookup
from kstore.log.reading.view import View, check_offset, steadily

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class LogTable(KeyedRows[Record]):
    """The newest record of each key of a log, as `Log.latest` found them: a picture of one moment.

    Iterating gives the records in the order of their offsets, `table[key]` the `Record` of a key (bytes), `len` the
    number of keys; `key in table`, `get`, `keys` and `items` are as with a dict. As columns it is had with `columns()`,
    and Arrow takes the table itself: `polars.DataFrame(table)`, `pyarrow.table(table)`. The names in headers are those
    of columns: what is not UTF-8 in them is U+FFFD. Immutable; thread-safe.
    """

    end_offset: int
    """The table is of the records below this offset."""

    def __init__(self, newest: Newest) -> None:
        super().__init__([newest.part])
        self.end_offset = newest.end_offset

    def _rows(self, chunk: Columns, first: int, stop: int) -> Iterator[Record]:
        return map(Record, *row_parts(chunk, first, stop))

    def __repr__(self) -> str:
        return f"<kstore.LogTable of {len(self)} keys, as of offset {self.end_offset}>"


class Newest(NamedTuple):
    """The newest records of a log: rows in the order of their offsets."""

    end_offset: int
    part: KeyedPart


class TableReads(ColumnReads):
    """What can be read of a `Log` as a table; see there about threads."""

    def latest(self, *, as_of: int | datetime | None = None) -> LogTable:
        """Read the newest record of each key: what a compaction of the whole log would keep, with nothing rewritten.

        A key whose newest record is a tombstone (a null value) is absent, and so are records without a key; b"" is a
        key. Only committed records count: those below the last stable offset, aborted ones left out. Any
        `cleanup.policy` will do.

        `as_of` gives the table as it was: at an offset, from the records below it; at a time (a `datetime` with a time
        zone), from the records below the first one whose timestamp is later than the time. So it is always a state
        that the log went through: where timestamps go up and down, a record behind that first one does not count,
        even if its own timestamp is earlier. A record without a timestamp is never later. Of what compaction,
        retention and truncation have removed since, a table of the past knows nothing: a key is absent from it if its
        record then has been superseded and cleaned, as those may be that are older than `min.compaction.lag.ms`.

        The answer holds the memory of its own records; beside it, while this runs, the keys are held once more.
        Raises `OffsetOutOfRangeError` for an offset outside of the log, `ValueError` for a time without a zone,
        `TypeError` for anything else, and what `read` raises.
        """
        return LogTable(collect(self, checked(as_of), new_secret()))


def checked(as_of: int | datetime | None, name: str = "as_of") -> int | datetime | None:
    """Refuse what is neither an offset nor a time."""
    if as_of is None:
        return None
    if isinstance(as_of, datetime):
        refuse_naive(name, as_of)
        return as_of
    try:
        return arguments.whole(name, as_of)
    except TypeError:
        raise TypeError(f"{name} must be an offset (an int), a datetime or None, not {type(as_of).__name__}") from None


def collect(log: ColumnReads, as_of: int | datetime | None, secret: bytes, *, threads: int | None = None) -> Newest:
    """Read the newest records of a log, of one state of it; those with the same `secret` can be compared.

    `threads` is as in `iter_columns`.
    """
    view = log._view
    errors = (CorruptRecordError, OffsetOutOfRangeError, StorageError)
    return steadily(_look, log, view, as_of, secret, threads, view=view, errors=errors)


def _look(log: ColumnReads, view: View, as_of: int | datetime | None, secret: bytes, threads: int | None) -> Newest:
    end = _end_offset(view, as_of)
    start = view.log_start_offset
    newest = LatestOffsets(secret, start, end)
    for chunk in log.iter_columns(start, end_offset=end, columns=COLUMNS, isolation="read_committed", threads=threads):
        newest.add(chunk)
    offsets = newest.offsets()
    chunks = read_kept(log, offsets, end, ROW_COLUMNS)
    rows = sum(map(len, chunks))
    if rows != len(offsets):
        raise CorruptRecordError(f"{rows} records were read at {len(offsets)} offsets: the log changed meanwhile")
    return Newest(end, KeyedPart(newest, chunks))


def _end_offset(view: View, as_of: int | datetime | None) -> int:
    """The offset that the table's records are below."""
    stable = view.decided_end_offset()
    if as_of is None:
        return stable
    if isinstance(as_of, datetime):
        # Above -1, so that a record without a timestamp is not later than any time.
        first = _timestamp_lookup.first_at(view, max((as_of - _EPOCH) // _MILLISECOND, -1) + 1)
        return stable if first is None else min(first.offset, stable)
    check_offset(view, as_of)
    return min(as_of, stable)


def row_parts(chunk: Columns, first: int, stop: int) -> tuple[list[Any], ...]:
    """The fields of the rows `[first, stop)`: offsets, timestamps, keys, values, headers."""
    return (
        chunk.offsets[first:stop].tolist(),
        chunk.timestamps[first:stop].tolist(),
        chunk.keys[first:stop],
        chunk.values[first:stop],
        chunk.headers[first:stop],
    )
