"""The columns that a caller passes to an append, read together without a copy of their bytes.

Invariant: row n of each column belongs to record n, wherever the chunks end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kstore.base import arguments, times
from kstore.base.numbers import LONG_MAX
from kstore.base.optional import Late
from kstore.columns import _arrow, _column_encoder
from kstore.columns._arrow import Column
from kstore.columns._column_encoder import Rows
from kstore.errors import InvalidColumnError, InvalidTimestampError

if TYPE_CHECKING:
    import numpy as np
else:
    np = Late("numpy")

_LIST_ROWS = 1 << 16  # rows in a chunk of a list; each row costs 16 bytes while its chunk is in use

_Chunk = dict[str, Column]


@dataclass
class _Feed:
    """One argument: the columns in it, its number of rows (-1: not known yet), and its current chunk."""

    name: str
    roles: tuple[str, ...]
    rows: int
    chunks: Iterator[_Chunk]
    chunk: _Chunk = field(default_factory=dict)
    at: int = 0
    left: int = 0
    taken: int = 0

    def advance(self) -> bool:
        """Move to the next chunk with rows if the current one is used up; return False at the end."""
        while self.left == 0:
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            self.chunk, self.at, self.left = chunk, 0, len(next(iter(chunk.values())))
        return True

    def take(self, count: int) -> None:
        self.at += count
        self.left -= count
        self.taken += count


class ColumnInput:
    """The columns of one call, as an iterator of `Rows`; `rows` is the number of rows, -1 if it is not known yet."""

    def __init__(self, values: Any, keys: Any, timestamps: Any, headers: Any, now_ms: int) -> None:
        self._time = now_ms
        self._feeds = [_feed("values", "value", values)]
        if keys is not None:
            self._feeds.append(_feed("keys", "key", keys))
        if timestamps is not None and (one := _one_time(timestamps)) is not None:
            self._time = one
        elif timestamps is not None:
            self._feeds.append(_feed("timestamps", "timestamp", timestamps))
        if headers is not None:
            self._feeds.append(_feed("headers", "headers", headers))
        roles = [role for feed in self._feeds for role in feed.roles]
        for role, name in (("key", "keys"), ("headers", "headers")):
            if roles.count(role) > 1:
                raise ValueError(f"values has a column {role!r}, and {name} is given")
        if timestamps is not None and "timestamp" in self._feeds[0].roles:
            raise ValueError("values has a column 'timestamp', and timestamps is given")
        counted = [feed for feed in self._feeds if feed.rows >= 0]
        for feed in counted[1:]:
            if feed.rows != counted[0].rows:
                raise InvalidColumnError(
                    f"{counted[0].name} has {counted[0].rows} rows and {feed.name} has {feed.rows}: "
                    f"all columns must have the same number of rows"
                )
        self.rows = counted[0].rows if counted else -1

    def __iter__(self) -> Iterator[Rows]:
        feeds = self._feeds
        first = 0
        while True:
            more = [feed.advance() for feed in feeds]
            if not all(more):
                break
            count = min(feed.left for feed in feeds)
            at_hand = {role: (column, feed.at) for feed in feeds for role, column in feed.chunk.items()}
            value, value_at = at_hand["value"]
            yield Rows(
                value,
                value_at,
                *at_hand.get("key", (None, 0)),
                *at_hand.get("timestamp", (None, 0)),
                *at_hand.get("headers", (None, 0)),
                count=count,
                first=first,
                time=self._time,
            )
            first += count
            for feed in feeds:
                feed.take(count)
        if any(more):
            ended, goes_on = feeds[more.index(False)], feeds[more.index(True)]
            raise InvalidColumnError(
                f"{ended.name} has {ended.taken} rows and {goes_on.name} has more, {goes_on.taken + goes_on.left} so "
                f"far: all columns must have the same number of rows"
            )


def _one_time(timestamps: Any) -> int | None:
    """Return the time of all records in milliseconds, or None if `timestamps` is a column."""
    if isinstance(timestamps, datetime):
        return times.milliseconds("timestamps", timestamps)
    if isinstance(timestamps, bool) or not hasattr(timestamps, "__index__") or isinstance(timestamps, np.ndarray):
        return None
    time = arguments.whole("timestamps", timestamps)
    if not -1 <= time <= LONG_MAX:
        raise InvalidTimestampError(f"timestamps is {time}; -1 (none) to {LONG_MAX} are allowed")
    return time


def _feed(name: str, role: str, source: Any) -> _Feed:
    if isinstance(source, np.ndarray):
        columns = _numpy_columns(name, role, source)
        return _Feed(name, tuple(columns), len(source), iter((columns,)))
    if hasattr(source, "__arrow_c_array__") or hasattr(source, "__arrow_c_stream__"):
        _refuse_polars_objects(name, role, source)
        arrow = _arrow.Source(name, role, source)
        return _Feed(name, arrow.roles, arrow.rows, arrow)
    if isinstance(source, list | tuple):
        return _Feed(name, (role,), len(source), _list_chunks(name, role, tuple(source)))
    if isinstance(source, bytes | bytearray | memoryview | str):
        raise TypeError(f"{name} must be a column, not one {type(source).__name__}; `append` takes a single record")
    hint = "; its to_series() is taken" if hasattr(source, "to_series") else ""  # an index of pandas
    raise TypeError(
        f"{name} must speak the Arrow PyCapsule interface, or be a NumPy array, a list or a tuple, "
        f"not {type(source).__name__}{hint}"
    )


_TAKEN = {
    "value": "Binary, String, Categorical and Enum are, and a list of bytes",
    "key": "Binary, String, Categorical and Enum are, and a list of bytes",
    "timestamp": "integers (milliseconds), Datetime and Date are, and a list of int or datetime",
    "headers": "List(Struct) of key and value is, and a list of lists of pairs",
}


def _refuse_polars_objects(name: str, role: str, source: Any) -> None:
    """Raise `TypeError` for polars' type Object, which it exports as addresses, like fixed-size binary."""
    if not any(base.__module__.partition(".")[0] == "polars" for base in type(source).__mro__):
        return
    columns = dict(source.schema) if hasattr(source, "schema") else {None: getattr(source, "dtype", None)}
    for column, dtype in columns.items():
        part = role if column is None else column
        kind = dtype if isinstance(dtype, type) else type(dtype)
        if kind.__name__ == "Object" and part in _TAKEN:
            what = name if column is None else f"column {column!r} of {name}"
            raise TypeError(f"{what}: polars' type Object is not taken; {_TAKEN[part]}")


# Lists.


def _list_chunks(name: str, role: str, rows: Sequence[Any]) -> Iterator[_Chunk]:
    makers: dict[str, Callable[[str, Iterable[Any], int], Column]] = {
        "timestamp": _list_times,
        "headers": _column_encoder.header_sections,
    }
    make = makers.get(role, _arrow.pointers)
    for first in range(0, len(rows), _LIST_ROWS):
        yield {role: make(name, rows[first : first + _LIST_ROWS], first)}


def _list_times(name: str, rows: Iterable[Any], first: int) -> Column:
    """Return a column of times from milliseconds or datetimes; None means now."""
    numbers = []
    valid = []
    for number, time in enumerate(rows, first):
        valid.append(time is not None)
        numbers.append(0 if time is None else times.milliseconds(f"row {number} of {name}", time))
        if not -1 <= numbers[-1] <= LONG_MAX:
            raise InvalidTimestampError(
                f"row {number} of {name} is {time}; -1 (none) to {LONG_MAX} are allowed",
                record_errors=((number, "timestamp out of range"),),
            )
    return _arrow.times(name, np.array(numbers, np.int64), _bits(np.array(valid, bool)))


# NumPy.

# A NumPy unit in milliseconds, as multiplier and divisor; NumPy converts longer and shorter units.
_UNITS = {"ms": (1, 1), "s": (1000, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def _numpy_columns(name: str, role: str, source: np.ndarray[Any, Any]) -> _Chunk:
    if source.ndim == 0:
        raise TypeError(f"{name} must be a column, not a NumPy array without a dimension")
    if source.dtype.names is None or role != "value":
        return {role: _numpy_column(name, role, source)}
    wanted = {"value", "key", "timestamp"}
    if "value" not in source.dtype.names or not wanted.issuperset(source.dtype.names):
        raise ValueError(
            f"{name} has the fields {', '.join(source.dtype.names)}; value, and key and timestamp if there are any, "
            f"make a record"
        )
    return {part: _numpy_column(f"field {part!r} of {name}", part, source[part]) for part in source.dtype.names}


def _numpy_column(name: str, role: str, source: Any) -> Column:
    valid = None
    if role == "headers":
        raise TypeError(f"{name}: NumPy has no type for headers; a list, or an Arrow map or list of structs, is taken")
    if isinstance(source, np.ma.MaskedArray) and source.ndim == 1:
        mask = np.ma.getmaskarray(source)
        valid = _bits(~mask)
        source = source.data
        if source.dtype.kind == "O":
            source = source.copy()
            source[mask] = None
    if source.dtype.kind == "O" and source.ndim == 1:
        rows = source.tolist()
        return _list_times(name, rows, 0) if role == "timestamp" else _arrow.pointers(name, rows)
    if role == "timestamp":
        return _numpy_times(name, source, valid)
    kind = source.dtype.kind
    if source.ndim == 1 and kind in "SV" and source.dtype.names is None:
        # A void type (V) is viewed as bytes (S) of the same size; only S has NUL bytes as padding.
        rows = source if kind == "S" else source.view(f"S{source.dtype.itemsize}")
        return _arrow.fixed(name, rows, valid, padded=kind == "S")
    if source.ndim == 2 and source.dtype in (np.uint8, np.int8):
        if source.shape[1] > 1 and source.strides[1] != 1:
            source = np.ascontiguousarray(source)
        return _arrow.fixed(name, source, valid)
    hint = "; encode it first, for instance with numpy.strings.encode" if kind in "UT" else ""
    raise TypeError(
        f"{name}: a NumPy array of {source.ndim} dimensions of {source.dtype} is not taken; bytes (S, V), rows of "
        f"uint8 (two dimensions) and objects are{hint}"
    )


def _numpy_times(name: str, source: Any, valid: bytes | None) -> Column:
    if source.ndim == 1 and source.dtype.kind == "M":
        unit, count = np.datetime_data(source.dtype)
        if unit not in _UNITS or count != 1:
            unit = "ns" if unit in ("ps", "fs", "as") else "ms"
            source = source.astype(f"M8[{unit}]")
        multiplier, divisor = _UNITS[unit]
        numbers = source.astype(source.dtype.newbyteorder("="), copy=False).view(np.int64)
        return _arrow.times(name, numbers, valid, multiplier=multiplier, divisor=divisor, has_nat=True)
    if source.ndim == 1 and source.dtype.kind in "iu":
        source = source.astype(source.dtype.newbyteorder("="), copy=False)
        return _arrow.times(name, source, valid, is_unsigned=source.dtype.kind == "u")
    raise TypeError(
        f"{name}: a NumPy array of {source.ndim} dimensions of {source.dtype} is not taken; whole milliseconds and "
        f"datetime64 are"
    )


def _bits(valid: Any) -> bytes | None:
    return None if valid.all() else np.packbits(valid, bitorder="little").tobytes()
