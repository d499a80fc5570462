"""Columns as results: `Log.read_columns` returns them, and other libraries import them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, SupportsIndex, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt

_Header: TypeAlias = tuple[str, bytes | None]
MAX_BINARY_BYTES: Final[int]
FIXED: Final[tuple[tuple[str, str, str], ...]]
COLUMN_NAMES: Final[tuple[str, ...]]
DEFAULT_COLUMNS: Final[tuple[str, ...]]
LAYOUTS: Final[dict[str, int]]

@final
class Memory:
    """A part of a block, as a read-only buffer; the block lives as long as any of its parts."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def memory_in_use() -> tuple[int, int]:
    """Return the number of blocks that results and readers hold, and the idle bytes in the pool."""

def give_back_memory() -> None:
    """Return the pool's idle memory to the system."""

@final
class BinaryColumn(Sequence[bytes | None]):
    """A column of `bytes` or `None`: a sequence, and an Arrow array that other libraries import without a copy.

    `column[i]` is `bytes` or `None`, a slice is a list of them, and `to_pylist()` returns them all. `null_count` is the
    number of nulls; `validity` is a NumPy array of bool, or `None` if no row is null. In the layouts "binary" and
    "large_binary", `data` is one buffer of all values, and `offsets` is a NumPy array of the positions in `data` where
    each value starts and where the last value ends.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), (None, b"1 pear")])
        >>> column = kstore.decode_columns(batch).keys
        >>> len(column), column[0], column.null_count
        (2, b'alice', 1)

    Immutable; thread-safe.
    """
    @property
    def null_count(self) -> int:
        """The number of null rows."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    @property
    def layout(self) -> str:
        """The layout in memory: "binary", "large_binary" or "view"."""
    @property
    def nbytes(self) -> int:
        """The bytes of memory that the column refers to; views may share them with other columns."""
    @property
    def validity(self) -> npt.NDArray[np.bool_] | None:
        """For each row whether it has a value, as a NumPy array; `None` if no row is null."""
    @property
    def offsets(self) -> npt.NDArray[np.int32 | np.int64]:
        """The positions in `data` where each value starts and where the last one ends.

        Raises:
            AttributeError: If the layout is "view".
        """
    @property
    def data(self) -> memoryview:
        """The concatenated bytes of all values.

        Raises:
            AttributeError: If the layout is "view".
        """
    @property
    def lengths(self) -> npt.NDArray[np.int32 | np.int64]:
        """The lengths of the values in bytes, 0 for null."""
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[bytes | None]: ...
    def __iter__(self) -> Iterator[bytes | None]: ...
    def to_pylist(self) -> list[bytes | None]:
        """Return all values as a list.

        Returns:
            `bytes` or `None` for each row.

        Example:
            >>> column.to_pylist()
            [b'alice', None]
        """
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class HeadersColumn(Sequence[tuple[_Header, ...]]):
    """A column of headers: each row is a tuple of pairs `(str, bytes or None)`, as in `Record`.

    Bytes of a name that are not UTF-8 are replaced by U+FFFD, as in Kafka's consumers. In Arrow the column is a list of
    structs of `key` and `value`. `keys` and `values` are the concatenated headers of all rows, and `offsets` are the
    positions in both columns where each row's headers start.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples", None, {"trace": b"1"}), (b"bob", b"1 pear")])
        >>> column = kstore.decode_columns(batch, columns=["headers"])["headers"]
        >>> len(column), column[0]
        (2, (('trace', b'1'),))

    Immutable; thread-safe.
    """
    @property
    def keys(self) -> BinaryColumn:
        """The names of all rows' headers, concatenated."""
    @property
    def values(self) -> BinaryColumn:
        """The values of all rows' headers, concatenated."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    @property
    def offsets(self) -> npt.NDArray[np.int32]:
        """The positions in `keys` and `values` where each row's headers start and where those of the last row end."""
    @property
    def nbytes(self) -> int:
        """The bytes of memory that the column refers to."""
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> tuple[_Header, ...]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[tuple[_Header, ...]]: ...
    def __iter__(self) -> Iterator[tuple[_Header, ...]]: ...
    def to_pylist(self) -> list[tuple[_Header, ...]]:
        """Return all rows as a list.

        Returns:
            A tuple of pairs `(str, bytes or None)` for each row.

        Example:
            >>> column.to_pylist()
            [(('trace', b'1'),), ()]
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class Columns:
    """The columns of some records of a log, in the order of the request.

    `offsets` and `timestamps` are NumPy arrays of int64, `keys` and `values` are columns of `bytes` or `None`.
    `columns["value"]` returns any column by its name; `key` and `value` are `BinaryColumn`s, `headers` is a
    `HeadersColumn`, all others are NumPy arrays. `next_offset` is the offset at which the next read continues. Arrow
    imports the object as a record batch: `pyarrow.record_batch(columns)`, `polars.DataFrame(columns)`.

    The object does not share memory with the log: it stays valid and unchanged even if the log is changed, closed or
    deleted. It can be pickled; protocol 5 can send the memory out of band, without a copy.

    Example:
        >>> log = kstore.Log.open("data/orders-0")
        >>> info = log.append_many([(b"alice", b"3 apples"), (b"bob", b"1 pear")])
        >>> columns = log.read_columns(columns=["offset", "value"])
        >>> columns.names, columns.next_offset
        (('offset', 'value'), 2)
        >>> columns.offsets, columns["value"].to_pylist()
        (array([0, 1]), [b'3 apples', b'1 pear'])

    Immutable; thread-safe.
    """
    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
    @property
    def next_offset(self) -> int:
        """The offset at which the next read continues."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> Any: ...
    def __getattr__(self, name: str, /) -> Any: ...
    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The records' offsets."""
    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """The records' timestamps in milliseconds since the epoch; -1 for a record without one."""
    @property
    def keys(self) -> BinaryColumn:
        """The records' keys."""
    @property
    def values(self) -> BinaryColumn:
        """The records' values."""
    @property
    def headers(self) -> HeadersColumn:
        """The records' headers."""
    @property
    def partition_leader_epoch(self) -> npt.NDArray[np.int32]:
        """For each record the leader epoch of its batch; -1 if it is not known."""
    @property
    def producer_id(self) -> npt.NDArray[np.int64]:
        """For each record the producer id of its batch; -1 if the batch has none."""
    @property
    def nbytes(self) -> int:
        """The bytes of memory that the columns refer to."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

def fields_of(columns: Sequence[str], layout: str, requested_schema: object = None) -> tuple[tuple[str, str], ...]:
    """Return (name, Arrow format) for each column of this layout, or for each that a requested schema selects."""

def layout_of(format: str) -> Literal["binary", "large_binary", "view"]:
    """Return the layout of an Arrow format of bytes or text."""

def schema_capsule(fields: tuple[tuple[str, str], ...]) -> object:
    """Return an `arrow_schema` capsule of a struct of these fields."""
