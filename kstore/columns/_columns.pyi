"""Columns as results: what `Log.read_columns` gives, and how other libraries take it."""

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
    """A part of a block, as a read-only buffer; the block lives as long as anybody has a part of it."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def memory_in_use() -> tuple[int, int]:
    """How many blocks are held by results and readers, and how many bytes the pool keeps for the next ones."""

def give_back_memory() -> None:
    """Return the pool's idle memory to the system."""

@final
class BinaryColumn(Sequence[bytes | None]):
    """A column of `bytes` or None: a sequence, and an Arrow array that others take without a copy.

    `column[i]` is `bytes` or None, a slice is a list of them; `to_pylist()` gives all. `null_count` counts the nulls,
    `validity` is a NumPy array of bool or None where there are none. In the layouts `"binary"` and `"large_binary"`,
    `data` is one buffer of all values and `offsets` the NumPy array of where each begins and the last ends. Immutable;
    thread-safe.
    """
    @property
    def null_count(self) -> int:
        """How many rows are null."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    @property
    def layout(self) -> str:
        """One of "binary", "large_binary", "view"."""
    @property
    def nbytes(self) -> int:
        """Bytes of memory that the column refers to; views may share theirs with other columns."""
    @property
    def validity(self) -> npt.NDArray[np.bool_] | None:
        """For each row whether it has a value, as a NumPy array; None where no row is null."""
    @property
    def offsets(self) -> npt.NDArray[np.int32 | np.int64]:
        """Where each value begins in `data`, and where the last one ends. In the layout "view" an `AttributeError`."""
    @property
    def data(self) -> memoryview:
        """The bytes of all values, one after the other. In the layout "view" an `AttributeError`."""
    @property
    def lengths(self) -> npt.NDArray[np.int32 | np.int64]:
        """The values' lengths, 0 for null."""
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[bytes | None]: ...
    def __iter__(self) -> Iterator[bytes | None]: ...
    def to_pylist(self) -> list[bytes | None]:
        """All values, each `bytes` or None."""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class HeadersColumn(Sequence[tuple[_Header, ...]]):
    """A column of headers: each row a tuple of (str, bytes or None), as in `Record`.

    A name that is not UTF-8 has U+FFFD in the place of what is wrong, as in Kafka's consumers; to Arrow it is a list of
    structs of `key` and `value`. `keys` and `values` are the headers of all rows one after the other, and `offsets` says
    where each row's begin. Immutable; thread-safe.
    """
    @property
    def keys(self) -> BinaryColumn:
        """The names of all rows' headers, one after the other."""
    @property
    def values(self) -> BinaryColumn:
        """The values of all rows' headers, one after the other."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    @property
    def offsets(self) -> npt.NDArray[np.int32]:
        """Where each row's headers begin in `keys` and `values`, and where the last row's end."""
    @property
    def nbytes(self) -> int:
        """Bytes of memory that the column refers to."""
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> tuple[_Header, ...]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[tuple[_Header, ...]]: ...
    def __iter__(self) -> Iterator[tuple[_Header, ...]]: ...
    def to_pylist(self) -> list[tuple[_Header, ...]]:
        """All rows, each a tuple of (str, bytes or None)."""
    def __eq__(self, other: object, /) -> bool: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class Columns:
    """The columns of some records of a log, in the order of the request.

    `offsets` and `timestamps` are NumPy arrays of int64, `keys` and `values` columns of `bytes` or None; any column can
    be had by its name, `columns["value"]`, and those that are not of byte strings are NumPy arrays. `next_offset` says
    where to go on. Arrow takes it as a record batch: `pyarrow.record_batch(columns)`, `polars.DataFrame(columns)`.
    Its memory is its own: it stays valid and as it is whatever becomes of the log. It can be pickled; protocol 5 may
    send its memory beside the pickle, without a copy. Immutable; thread-safe.
    """
    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
    @property
    def next_offset(self) -> int:
        """The offset to go on from."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> Any: ...
    def __getattr__(self, name: str, /) -> Any: ...
    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The records' offsets."""
    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """The records' timestamps in milliseconds; -1 without one."""
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
        """For each record the leader epoch of its batch; -1 where it is not known."""
    @property
    def producer_id(self) -> npt.NDArray[np.int64]:
        """For each record the producer id of its batch; -1 without one."""
    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns refer to."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

def fields_of(columns: Sequence[str], layout: str, requested_schema: object = None) -> tuple[tuple[str, str], ...]:
    """(name, Arrow format) of the columns as they would be built, or as a requested schema wants them."""

def layout_of(format: str) -> Literal["binary", "large_binary", "view"]:
    """The layout that an Arrow format of bytes or text stands for."""

def schema_capsule(fields: tuple[tuple[str, str], ...]) -> object:
    """An `arrow_schema` capsule of a struct of these fields."""
