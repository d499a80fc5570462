"""Columns of other libraries, read without a copy: Arrow data by its C interfaces, strided buffers, lists of bytes."""

from collections.abc import Iterable
from typing import Any, Self, final

from _typeshed import ReadableBuffer

@final
class Column:
    """One column of records, or a chunk of it: a description of memory that it keeps alive.

    `len` is its number of rows, `what` its name in errors; only functions of this module make one that is not empty.
    Thread-safe: it does not change.
    """
    @property
    def what(self) -> str: ...
    def __len__(self) -> int: ...

def fixed(what: str, source: Any, valid: ReadableBuffer | None = None, *, padded: bool = False) -> Column:
    """Rows of a buffer of one dimension, or of two if the bytes of each row are contiguous.

    `padded`: NUL bytes at a row's end do not belong to it. `valid` is None or a bit for each row, 0 for null.
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
    """Numbers of a one-dimensional buffer; times `multiplier` or over `divisor` they are milliseconds.

    `has_nat`: the least number of 64 bits means null, as in NumPy's times.
    """

def pointers(what: str, rows: Iterable[ReadableBuffer | None], first: int = 0) -> Column:
    """Rows that are bytes-like or None; a `TypeError` for another type names its row, counted from `first`."""

@final
class Source:
    """Columns of an object with the Arrow PyCapsule interface, chunk by chunk: an iterator of dicts by role.

    `role` ("value", "key", "timestamp" or "headers") is the role of a single column. For "value" a struct (a record
    batch, a table) may come instead: it gives a column for each field of these names, and its fields that say where a
    record was (offset, partition, ...) are ignored. `roles` names the columns, `rows` is their number of rows, -1 while
    it is not known. Raises `TypeError` for a type that cannot be stored, `InvalidColumnError` for unsound Arrow data.
    Not thread-safe.
    """
    @property
    def rows(self) -> int: ...
    def __init__(self, what: str, role: str, source: Any) -> None: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Column]: ...
