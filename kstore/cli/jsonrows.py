"""Rows of an Arrow record batch as JSON objects, a binary value each, under the columns' names.

Bytes, text and whole numbers are written by the compiled core where they lie; other types are brought to text by
PyArrow, whole columns at a time. Lists and structs alone are made Python objects of.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
from collections.abc import Collection
from typing import Any

from kstore import _arrow, _jsonlines
from kstore._arrow import Column

__all__ = ["column", "encode", "number_columns", "octets"]


def _pyarrow() -> Any:
    importlib.import_module("pyarrow.compute")
    return importlib.import_module("pyarrow")


def encode(batch: Any, numbers: Collection[int] = ()) -> Any:
    """Make a binary column of the batch's rows; columns `numbers` hold text that may be numbers, and then are."""
    pa = _pyarrow()

    fields: list[tuple[str, Any, Column]] = []
    for place, name in enumerate(batch.schema.names):
        kind, found = ("number", batch.column(place)) if place in numbers else _field(batch.column(place))
        fields.append((name, kind, column(found, name, "timestamp" if kind == "int" else "value")))
    text = _jsonlines.render_rows(fields)
    buffers = [None, pa.py_buffer(text.ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_binary(), batch.num_rows, buffers)


def number_columns(batch: Any) -> frozenset[int]:
    """Which columns of bytes hold JSON numbers in all rows that are not null."""
    return frozenset(n for n, each in enumerate(batch.columns) if _jsonlines.are_numbers(column(each, "")))


def column(array: Any, name: str, role: str = "value") -> Column:
    """An Arrow array as the compiled core takes it."""
    return next(_arrow.Source(f"column {name!r}", role, array))[role]


def octets(array: Any) -> Any:
    """A column as keys and values take it: bytes and text as they are, numbers and moments as text, lists as JSON."""
    pa = _pyarrow()

    if pa.types.is_dictionary(array.type) and not _is_octets(array.type.value_type):
        array = array.dictionary_decode()
    kind, found = _field(array)
    return found.cast(pa.string()) if kind == "int" else found


def _field(array: Any) -> tuple[Any, Any]:
    """How a column is written in JSON, and the column for that."""
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
    return "raw", pa.array([None if row is None else _json(row) for row in array.to_pylist()], pa.string())


def _is_octets(kind: Any) -> bool:
    pa = _pyarrow()

    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    data = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(text or data or types.is_fixed_size_binary(kind))


def _floats(array: Any) -> Any:
    """The shortest text for each; JSON has none for infinities and what is no number."""
    pa, pc = _pyarrow(), _pyarrow().compute

    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return pc.if_else(pc.is_finite(array), array, None).cast(pa.string())


def _moments(array: Any) -> Any:
    """ISO 8601: with a Z where there is a zone, whichever."""
    pa, pc = _pyarrow(), _pyarrow().compute

    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), default=_plain)


def _finite(value: Any) -> Any:
    """The same with null for what is no finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
