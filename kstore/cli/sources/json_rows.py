"""Converts the rows of an Arrow record batch to JSON objects with the columns' names, as one binary column.

The compiled core writes bytes, text and whole numbers from the columns' memory. PyArrow casts columns of other types to
text. Only lists and structs become Python objects.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection
from typing import Any

from kstore.base import optional
from kstore.columns import _arrow, _json_columns
from kstore.columns._arrow import Column

__all__ = ["column", "encode", "field", "is_text", "not_finite", "number_columns", "octets", "parts"]


def _pyarrow() -> Any:
    return optional.pyarrow("rows as JSON", "compute")


def encode(batch: Any, numbers: Collection[int] = ()) -> Any:
    """Return a binary column of the batch's rows as JSON; text in the columns `numbers` is written as numbers."""
    pa = _pyarrow()
    fields: list[tuple[str, Any, Column]] = []
    for index, name in enumerate(batch.schema.names):
        kind, array = ("number", batch.column(index)) if index in numbers else field(batch.column(index))
        fields.append((name, kind, column(array, name, "timestamp" if kind == "int" else "value")))
    text = _json_columns.render_rows(fields)
    buffers = [None, pa.py_buffer(text.ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_binary(), batch.num_rows, buffers)


def number_columns(batch: Any) -> frozenset[int]:
    """Return the indexes of the columns of bytes that hold a JSON number or null in every row."""
    return frozenset(index for index, array in enumerate(batch.columns) if _json_columns.are_numbers(column(array, "")))


def column(array: Any, name: str, role: str = "value") -> Column:
    """Return an Arrow array in the form that the compiled core takes."""
    return next(_arrow.Source(f"column {name!r}", role, array))[role]


def octets(array: Any) -> Any:
    """Convert a column to keys or values: bytes and text unchanged, numbers and times as text, lists as JSON."""
    pa = _pyarrow()
    if pa.types.is_dictionary(array.type) and not _is_octets(array.type.value_type):
        array = array.dictionary_decode()
    kind, array = field(array)
    return array.cast(pa.string()) if kind == "int" else array


def not_finite(array: Any) -> tuple[int, int]:
    """Return how many values of a column are NaN or infinite, and the row of the first one."""
    pa = _pyarrow()
    leaves = _floats_of(array)
    count = sum(
        len(leaf) - leaf.null_count - (pa.compute.sum(pa.compute.is_finite(leaf)).as_py() or 0) for leaf in leaves
    )
    if not count:
        return 0, 0
    rows = enumerate(array.to_pylist())
    return count, next((number for number, row in rows if _finite(row) != row), 0)


def _floats_of(array: Any) -> list[Any]:
    pa = _pyarrow()
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return _floats_of(array.storage)
    if types.is_dictionary(kind):
        return _floats_of(array.dictionary_decode()) if not _is_octets(kind.value_type) else []
    if types.is_floating(kind):
        return [array.cast(pa.float32()) if types.is_float16(kind) else array]
    return [leaf for part in parts(array) for leaf in _floats_of(part)]


def parts(array: Any) -> list[Any]:
    """Return the child arrays of a list, map or struct, for the array's own rows only; none for other types."""
    types, kind = _pyarrow().types, array.type
    if types.is_map(kind) and len(array):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [array.keys.slice(start, end - start), array.items.slice(start, end - start)]
    if types.is_struct(kind):
        return list(array.flatten())
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return [array.flatten()] if is_list else []


def field(array: Any) -> tuple[Any, Any]:
    """Return how a column is written in JSON, and the column converted for that."""
    pa = _pyarrow()
    types = pa.types
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        if _is_octets(array.type.value_type):
            return "text", array
        array = array.dictionary_decode()
    kind = array.type
    if _is_octets(kind) or types.is_null(kind):
        return "text", array
    if types.is_uint64(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return "raw", array.cast(pa.string())
    if types.is_integer(kind):
        return "int", array
    if types.is_floating(kind):
        return "raw", _floats(array)
    if types.is_timestamp(kind):
        return "text", _moments(array)
    if types.is_date(kind) or types.is_time(kind):
        return "text", array.cast(pa.string())
    if types.is_duration(kind):
        return "int", array.cast(pa.int64())
    return "raw", pa.array([None if row is None else _dumped(row) for row in array.to_pylist()], pa.string())


def is_text(kind: Any) -> bool:
    """Whether values of a type are text or bytes of any length."""
    types = _pyarrow().types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(text or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_octets(kind: Any) -> bool:
    return is_text(kind) or bool(_pyarrow().types.is_fixed_size_binary(kind))


def _floats(array: Any) -> Any:
    """Return the shortest text for each number; null for infinities and NaN, which JSON does not have."""
    pa = _pyarrow()
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return pa.compute.if_else(pa.compute.is_finite(array), array, None).cast(pa.string())


def _moments(array: Any) -> Any:
    """Return times as ISO 8601; a column with a time zone is converted to UTC, with a Z."""
    pa = _pyarrow()
    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return pa.compute.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)


def _dumped(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), default=_plain)


def _finite(value: Any) -> Any:
    """Return the value with infinities and NaN replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
