"""`KeyedRows`: rows of columns that are found by their key, as records, as a mapping and as Arrow data.

Invariant: it shows the log as of one moment, and stays as it is whatever becomes of the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar, overload

from kstore.columns import _arrow_stream, _columns, _joined_columns
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import LatestOffsets

ROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_AT_ONCE = 4096  # rows that are made into objects at a time
R = TypeVar("R")
D = TypeVar("D")


def checked_columns(columns: Sequence[str], names: Sequence[str], are: str) -> tuple[str, ...]:
    """Refuse what is no choice of columns among those that `are` there, or known: each once, and at least one."""
    if isinstance(columns, str):
        raise TypeError("columns is a str; a sequence of column names is wanted, as in columns=['value']")
    chosen = tuple(columns)
    for name in chosen:
        if name not in names:
            raise ValueError(f"columns has {name!r}; {', '.join(names)} are {are}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"columns is {columns!r}; each column once, and at least one, is wanted")
    return chosen


class KeyedPart(NamedTuple):
    """The rows of one log, in the order of their offsets, and where each key's row is."""

    newest: LatestOffsets
    chunks: Sequence[Columns]


class KeyedRows(ABC, Generic[R]):
    """Rows of columns, each with a key of its own. Immutable; thread-safe."""

    _names: tuple[str, ...] = ROW_COLUMNS
    """The columns there are."""

    def __init__(self, parts: Sequence[KeyedPart]) -> None:
        self._parts = tuple(parts)
        self._chunks = tuple(chunk for part in parts for chunk in part.chunks)  # one at least, perhaps empty

    @abstractmethod
    def _rows(self, chunk: Columns, first: int, stop: int) -> Iterator[R]:
        """Make the rows `[first, stop)` of a chunk."""

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[R]:
        for chunk in self._chunks:
            for first in range(0, len(chunk), _AT_ONCE):
                yield from self._rows(chunk, first, min(first + _AT_ONCE, len(chunk)))

    def keys(self) -> Iterator[bytes]:
        """Iterate over the keys, in the order of the rows."""
        for chunk in self._chunks:
            yield from chunk.keys  # type: ignore[misc]  # none is null

    def items(self) -> Iterator[tuple[bytes, R]]:
        """Iterate over pairs of a key and its record, in the order of the rows."""
        return zip(self.keys(), self, strict=True)

    def __getitem__(self, key: bytes) -> R:
        place = self._find(key)
        if place is None:
            raise KeyError(key)
        return self._row(*place)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    @overload
    def get(self, key: bytes) -> R | None: ...
    @overload
    def get(self, key: bytes, default: D) -> R | D: ...
    def get(self, key: bytes, default: D | None = None) -> R | D | None:
        """Give the record of a key, or `default`."""
        place = self._find(key)
        return default if place is None else self._row(*place)

    def _row(self, chunk: Columns, row: int) -> R:
        return next(self._rows(chunk, row, row + 1))

    def _find(self, key: object) -> tuple[Columns, int] | None:
        """The chunk and the row of a key; None for a key that is not there."""
        if not isinstance(key, bytes):
            hint = ": encode it first, as in text.encode()" if isinstance(key, str) else ""
            raise TypeError(f"a key is bytes, not {type(key).__name__}{hint}")
        for newest, chunks in self._parts:
            offset = newest.find(key)
            for chunk in chunks if offset >= 0 else ():
                row = int(chunk.offsets.searchsorted(offset))
                if row < len(chunk) and chunk.offsets[row] == offset and chunk.keys[row] == key:
                    return chunk, row
        return None

    # As columns.

    def columns(self, columns: Sequence[str] | None = None) -> Columns:
        """Give all rows as one `Columns`, by default without headers.

        Raises `ValueError` for a column that is not there, and for more than 2 GiB of keys or of values: then take
        `iter_columns`, or the Arrow stream.
        """
        names = self._checked(columns)
        return self._labelled(range(len(self._chunks)), names)

    def iter_columns(self, columns: Sequence[str] | None = None) -> Iterator[Columns]:
        """Iterate over all rows as `Columns` of less than 2 GiB each; otherwise as `columns`."""
        names = self._checked(columns)
        return (self._labelled([number], names) for number, chunk in enumerate(self._chunks) if len(chunk))

    def _labelled(self, numbers: Sequence[int], names: tuple[str, ...]) -> Columns:
        """The rows of some chunks as one."""
        return _joined_columns.joined([self._chunks[number] for number in numbers], names)

    def _checked(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return tuple(name for name in self._names if name != "headers")
        return checked_columns(columns, self._names, "there")

    def __arrow_c_schema__(self) -> object:
        """Describe the record batches of `__arrow_c_stream__` to Arrow."""
        return _columns.schema_capsule(_columns.fields_of(self._checked(None), "binary"))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give all rows as an Arrow stream, by default without headers.

        A `requested_schema` may have any of the columns, bytes in any layout or as strings; what cannot be had so is a
        `ValueError`.
        """
        fields = _columns.fields_of(self._names, "binary", requested_schema)
        if requested_schema is None:
            fields = _columns.fields_of(self._checked(None), "binary")
        chunks = self.iter_columns(tuple(name for name, _ in fields))
        return _arrow_stream.stream_capsule(chunks, fields, self)
