"""`KeyedRows`: rows of columns that can be looked up by key, as a mapping, as records and as Arrow data.

Invariant: it is a snapshot of the log, and later changes of the log do not affect it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar, overload

from kstore.columns import _arrow_stream, _columns, _joined_columns
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import LatestOffsets

ROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_AT_ONCE = 4096  # rows that become objects at a time
R = TypeVar("R")
D = TypeVar("D")


def checked_columns(columns: Sequence[str], names: Sequence[str], are: str) -> tuple[str, ...]:
    """Return the chosen columns; raise `ValueError` if there is none, or if one is repeated or not in `names`.

    The error message says that the columns `names` are "there" or "known": `are` is this word.
    """
    if isinstance(columns, str):
        raise TypeError("columns is a str; a sequence of column names is wanted, as in columns=['value']")
    chosen = tuple(columns)
    for name in chosen:
        if name not in names:
            raise ValueError(f"columns has {name!r}; {', '.join(names)} are {are}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"columns is {columns!r}; each column once, and at least one, is wanted")
    return chosen


def checked_layout(layout: str) -> str:
    """Return the layout, or raise `ValueError` unless it is known."""
    if layout not in _columns.LAYOUTS:
        raise ValueError(f"layout is {layout!r}; {', '.join(map(repr, _columns.LAYOUTS))} are allowed")
    return layout


class KeyedPart(NamedTuple):
    """The rows of one log, in the order of their offsets, and the offset of each key's row."""

    newest: LatestOffsets
    chunks: Sequence[Columns]


class KeyedRows(ABC, Generic[R]):
    """Rows of columns, each with a distinct key.

    Immutable; thread-safe.
    """

    _names: tuple[str, ...] = ROW_COLUMNS
    """The columns of the rows."""

    def __init__(self, parts: Sequence[KeyedPart]) -> None:
        self._parts = tuple(parts)
        self._chunks = tuple(chunk for part in parts for chunk in part.chunks)  # at least one, perhaps empty

    @abstractmethod
    def _rows(self, chunk: Columns, first: int, stop: int) -> Iterator[R]:
        """Yield the rows `[first, stop)` of a chunk."""

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[R]:
        for chunk in self._chunks:
            for first in range(0, len(chunk), _AT_ONCE):
                yield from self._rows(chunk, first, min(first + _AT_ONCE, len(chunk)))

    def keys(self) -> Iterator[bytes]:
        """Iterate over the keys.

        Yields:
            The key of each row, in the order of the rows.

        Example:
            >>> sorted(table.keys())
            [b'alice', b'bob']
        """
        for chunk in self._chunks:
            yield from chunk.keys  # type: ignore[misc]  # none is null

    def items(self) -> Iterator[tuple[bytes, R]]:
        """Iterate over pairs of a key and its record.

        Returns:
            An iterator of the pairs, in the order of the rows.

        Example:
            >>> {key: record.value for key, record in table.items()}
            {b'bob': b'1 pear', b'alice': b'4 apples'}
        """
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
        """Return the record of a key, or `default`.

        Args:
            key: The key.
            default: The result if there is no record with this key.

        Returns:
            The record, or `default`.

        Raises:
            TypeError: If `key` is not `bytes`.

        Example:
            >>> table.get(b"bob").value
            b'1 pear'
            >>> table.get(b"carol") is None
            True
        """
        place = self._find(key)
        return default if place is None else self._row(*place)

    def _row(self, chunk: Columns, row: int) -> R:
        return next(self._rows(chunk, row, row + 1))

    def _find(self, key: object) -> tuple[Columns, int] | None:
        """Return the chunk and the row of a key, or None if the key is not there."""
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
        """Return all rows as one `Columns`.

        Args:
            columns: The names of the columns; by default all except the headers.

        Returns:
            The rows.

        Raises:
            TypeError: If `columns` is a str.
            ValueError: If there is no such column, or if there are more than 2 GiB of keys or of values: use
                `iter_columns` or the Arrow stream instead.

        Example:
            >>> table.columns(["key", "value"]).values.to_pylist()
            [b'1 pear', b'4 apples']
        """
        names = self._checked(columns)
        return self._labelled(range(len(self._chunks)), names)

    def iter_columns(self, columns: Sequence[str] | None = None) -> Iterator[Columns]:
        """Iterate over all rows as `Columns` of less than 2 GiB each.

        Takes the arguments of `columns`.

        Returns:
            An iterator of the rows.

        Raises:
            TypeError: If `columns` is a str.
            ValueError: If there is no such column.

        Example:
            >>> sum(len(chunk) for chunk in table.iter_columns(["value"]))
            2
        """
        names = self._checked(columns)
        return (self._labelled([number], names) for number, chunk in enumerate(self._chunks) if len(chunk))

    def _labelled(self, numbers: Sequence[int], names: tuple[str, ...]) -> Columns:
        """Return the rows of some chunks as one `Columns`."""
        return _joined_columns.joined([self._chunks[number] for number in numbers], names)

    def _checked(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return tuple(name for name in self._names if name != "headers")
        return checked_columns(columns, self._names, "there")

    def __arrow_c_schema__(self) -> object:
        """Return the Arrow schema of the record batches of `__arrow_c_stream__`."""
        return _columns.schema_capsule(_columns.fields_of(self._checked(None), "binary"))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all rows as an Arrow stream, by default without headers.

        A `requested_schema` chooses columns, and for bytes a layout or strings; raises `ValueError` for other types.
        """
        fields = _columns.fields_of(self._names, "binary", requested_schema)
        if requested_schema is None:
            fields = _columns.fields_of(self._checked(None), "binary")
        chunks = self.iter_columns(tuple(name for name, _ in fields))
        return _arrow_stream.stream_capsule(chunks, fields, self)
