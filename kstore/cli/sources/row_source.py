"""The base class of the sources of rows; the mapping of columns to records; errors that name the file and the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kstore.base.closing import Closing
from kstore.errors import InvalidRecordError

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "PIECE_BYTES",
    "ROW_BYTES",
    "Mapping",
    "Progress",
    "Refused",
    "Rows",
    "Source",
    "find_refused",
]

PIECE_BYTES = 8 << 20  # read at a time from a text file
BATCH_BYTES, BATCH_ROWS = 16 << 20, 1 << 17  # read at a time from a Parquet or Arrow file
ROW_BYTES = 64 << 20  # the largest row of a Parquet file

Progress = Callable[[int], object]
"""Called with the number of bytes read since the last call."""


@dataclass(frozen=True)
class Mapping:
    """Which columns make a record, and how text is read."""

    key: str | None = None
    value: str | None = None
    """None: the value is the whole row as JSON."""
    timestamp: str | None = None
    headers: str | None = None
    unit: str = "ms"
    delimiter: str = ""
    names: tuple[str, ...] = ()
    """The column names of a CSV file that has no header line."""
    nulls: tuple[str, ...] = ()
    sorts_out: bool = False
    """Whether rows that cannot be read go to `Rows.refused`. Otherwise the first of them raises an error."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a file must have, without duplicates."""
        named = (self.key, self.value, self.timestamp, self.headers)
        return tuple(dict.fromkeys(name for name in named if name is not None))


class Refused(NamedTuple):
    """A row that is no record: its number in the file, counted from 1, why, and the row itself if it is at hand."""

    number: int
    reason: str
    row: bytes | None


class Rows(NamedTuple):
    """Some rows, as `append_columns` takes them. `first` is the number of the first row in the file, counted from 1."""

    first: int
    size: int
    values: Any
    keys: Any
    timestamps: Any
    headers: Any
    span: tuple[int, int] | None = None
    """The least and greatest timestamp, without -1 (no timestamp); None if there is none."""
    refused: tuple[Refused, ...] = ()
    """The rows between these that cannot be read, in order; only if the mapping sorts them out."""
    numbers: Sequence[int] = ()
    """The number of each row in the file; only if the mapping sorts out."""
    text: Callable[[int], bytes | None] = lambda index: None
    """Returns a row of these by its index, as text; only if the mapping sorts out."""


def find_refused(count: int, error_of: Callable[[int, int], Exception | None]) -> list[tuple[int, Exception]]:
    """Return the index and the error of each refused row.

    `error_of(start, end)` returns an error if one of the rows in `[start, end)` is refused. It is asked about halves.
    """
    found: list[tuple[int, Exception]] = []
    spans = [(0, count)]
    while spans:
        start, end = spans.pop()
        error = error_of(start, end) if start < end else None
        if error is not None and end - start == 1:
            found.append((start, error))
        elif error is not None:
            middle = (start + end) // 2
            spans += [(middle, end), (start, middle)]
    return found


class Source(Closing):
    """One file. A context manager. Not thread-safe."""

    word = "row"
    """The word for a row in errors. In a CSV file, line numbers are correct as long as no cell has a line break."""

    def __init__(self, name: str, mapping: Mapping) -> None:
        self.name = name
        self.mapping = mapping
        self._not_numbers: dict[str, tuple[int, int]] = {}

    def pieces(self) -> Iterator[Rows]:
        """Yield the rows in pieces. Raises `InvalidRecordError`, which names the file and the row."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""

    def note_nulls(self, column: str, count: int, row: int) -> None:
        """Note values that are written as null because they are NaN or infinite; the first of them is in this row."""
        before, first = self._not_numbers.get(column, (0, row))
        self._not_numbers[column] = (before + count, first)

    def cautions(self) -> Iterator[str]:
        """Yield a warning for each column with values that were written as null so far."""
        for column, (count, row) in self._not_numbers.items():
            values = "1 value that is" if count == 1 else f"{count} values that are"
            first = f"in {self.word} {row}" if count == 1 else f"the first in {self.word} {row}"
            yield f"{self.name}: column {column!r} has {values} NaN or infinite, {first}: written as null"

    def wrong(self, message: str, row: int | None = None) -> InvalidRecordError:
        """Make an error about this file, or about a row of it."""
        where = self.name if row is None else f"{self.name}, {self.word} {row}"
        return InvalidRecordError(f"{where}: {message}", record_errors=() if row is None else ((row, message),))

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `InvalidRecordError` if a column is missing, or two have the same name."""
        for name in names if self.mapping.value is None else self.mapping.columns:
            if names.count(name) > 1:
                raise self.wrong(f"there are two columns {name!r}")
        for name in self.mapping.columns:
            if name not in names:
                listed = ", ".join(map(repr, names[:40])) + (", ..." if len(names) > 40 else "")
                raise self.wrong(f"there is no column {name!r}; there is {listed or 'none'}")
