"""Columns of other libraries, read without a copy: Arrow data by its C interfaces, strided buffers, lists of bytes."""

from collections.abc import Iterable
from typing import Any, Self, final

from _typeshed import ReadableBuffer

@final
class Column:
    """One column of records, or a chunk of it: describes memory and keeps it alive.

    `len` is its number of rows, `what` its name in errors. This module's functions create it. Immutable; thread-safe.
    """
    @property
    def what(self) -> str: ...
    def __len__(self) -> int: ...

def fixed(what: str, source: Any, valid: ReadableBuffer | None = None, *, padded: bool = False) -> Column:
    """Return the rows of a buffer of one dimension, or of two if the bytes of each row are contiguous.

    With `padded`, NUL bytes at the end of a row are padding. `valid` is None or a bit for each row, 0 for null.
    """

def times(
    what: str,
    source: Any,
    valid: ReadableBuffer | None = None,
    *,
    multiplier: int = 1,
    divisor: int = 1,
    is_unsigned: bool = False,
    has_nat: bool = False,
) -> Column:
    """Return the numbers of a one-dimensional buffer; multiplied by `multiplier` / `divisor` they are milliseconds.

    With `has_nat`, the lowest 64-bit integer means null, as in NumPy's times.
    """

def pointers(what: str, rows: Iterable[ReadableBuffer | None], first: int = 0) -> Column:
    """Return a column of bytes-like rows or None; others raise `TypeError` with the row's number, from `first` on."""

@final
class Source:
    """Columns of an object with the Arrow PyCapsule interface: an iterator of chunks, each a dict of columns by role.

    `role` ("value", "key", "timestamp" or "headers") is the role of a single column. For "value" the source may be a
    struct (a record batch, a table) instead: each field with the name of a role is a column, and the fields in IGNORED
    (offset, partition, ...) are skipped. `roles` are the columns' roles; `rows` is the number of rows, -1 until it is
    known. Raises `TypeError` for a type that cannot be stored, `ValueError` for a missing or unknown column,
    `InvalidColumnError` for unsound Arrow data. Not thread-safe.
    """
    @property
    def rows(self) -> int: ...
    def __init__(self, what: str, role: str, source: Any) -> None: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Column]: ...
