"""Converts record batches of PyArrow to the columns that `append_columns` takes, and checks their types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from kstore.base import optional
from kstore.cli.sources import json_rows, row_source
from kstore.cli.sources.row_source import Rows, Source
from kstore.cli.sources.timestamps import OUT_OF_RANGE, UNITS, milliseconds_of
from kstore.columns import _arrow
from kstore.errors import InvalidColumnError

__all__ = ["check_types", "cut", "rows_of"]


def _pyarrow() -> Any:
    return optional.pyarrow("a record batch", "compute")


def check_types(source: Source, schema: Any) -> None:
    """Raise `InvalidRecordError` if the column of timestamps or headers has an unsuitable type."""
    types, mapping = _pyarrow().types, source.mapping
    if mapping.timestamp is not None:
        kind = schema.field(mapping.timestamp).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        is_number = types.is_integer(kind) or (types.is_floating(kind) and not types.is_float16(kind))
        if not (is_number or types.is_timestamp(kind) or types.is_date(kind) or json_rows.is_text(kind)):
            raise source.wrong(f"column {mapping.timestamp!r} is of type {kind}, which says no time")
    if mapping.headers is not None:
        kind = schema.field(mapping.headers).type
        is_list = types.is_list(kind) or types.is_large_list(kind)
        if not (types.is_map(kind) or (is_list and types.is_struct(kind.value_type))):
            raise source.wrong(f"column {mapping.headers!r} is of type {kind}; a map, or a list of structs, is wanted")
        try:
            # Only the append knows which keys and values it accepts: try it with an array of this type without rows.
            _arrow.Source(f"column {mapping.headers!r}", "headers", _pyarrow().chunked_array([], kind))
        except (TypeError, InvalidColumnError) as error:
            raise source.wrong(str(error)) from None


def cut(source: Source, batch: Any, first: int) -> Iterator[Any]:
    """Yield slices of a record batch that have at most `BATCH_BYTES` without dictionaries, or a single row."""
    size = sum(map(_decoded_bytes, batch.columns))
    if size <= row_source.BATCH_BYTES or batch.num_rows <= 1:
        if size > row_source.ROW_BYTES:
            raise source.wrong(f"it has {size} bytes, where at most {row_source.ROW_BYTES} are taken", first)
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(source, batch.slice(0, half), first)
    yield from cut(source, batch.slice(half), first + half)


def _decoded_bytes(array: Any) -> int:
    """Return the size of an array after its dictionaries are replaced by their values."""
    pa = _pyarrow()
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return _decoded_bytes(array.storage)
    if types.is_dictionary(kind) and json_rows.is_text(kind.value_type):
        lengths = pa.compute.binary_length(array.dictionary).cast(pa.int64())
        return int(array.indices.nbytes) + int(pa.compute.sum(lengths.take(array.indices)).as_py() or 0)
    if parts := json_rows.parts(array):
        return sum(map(_decoded_bytes, parts))
    return int(array.nbytes)


def rows_of(source: Source, batch: Any, first: int, numbers: frozenset[int] = frozenset()) -> Rows:
    """Convert a record batch whose row 0 is row `first` of its file; the columns `numbers` hold numbers as text."""
    pa, mapping = _pyarrow(), source.mapping

    def column(name: str) -> Any:
        return batch.column(batch.schema.get_field_index(name))

    written = batch.schema.names if mapping.value is None else [mapping.value]
    for name in dict.fromkeys((*written, *(() if mapping.key is None else (mapping.key,)))):
        count, row = json_rows.not_finite(column(name))
        if count:
            source.note_nulls(name, count, first + row)
    try:
        values = json_rows.encode(batch, numbers) if mapping.value is None else json_rows.octets(column(mapping.value))
        keys = None if mapping.key is None else json_rows.octets(column(mapping.key))
    except pa.ArrowException as error:
        raise source.wrong(f"rows {first} to {first + batch.num_rows - 1}: {error}") from None
    times, span = (None, None) if mapping.timestamp is None else _times(source, column(mapping.timestamp), first)
    headers = None if mapping.headers is None else column(mapping.headers)
    return Rows(first, batch.num_rows, values, keys, times, headers, span)


def _times(source: Source, array: Any, first: int) -> tuple[Any, tuple[int, int] | None]:
    """Return a column as timestamps for `append_columns`, and its range in milliseconds.

    An error names the row of a timestamp that is out of range.
    """
    pa = _pyarrow()
    times = _as_times(source, array, first)
    kind = times.type
    scale = Fraction(86_400_000) if pa.types.is_date32(kind) else Fraction(1)
    if pa.types.is_timestamp(kind):
        scale = Fraction(str(UNITS[kind.unit]))
    numbers = times.cast(pa.int32()) if pa.types.is_date32(kind) else times
    numbers = numbers if pa.types.is_integer(numbers.type) else numbers.cast(pa.int64())
    extremes = list(pa.compute.min_max(numbers).as_py().values())
    for extreme in extremes:
        if extreme is not None and extreme * scale != -1 and not 0 <= extreme * scale < 1 << 63:
            row = first + pa.compute.index(numbers, extreme).as_py()
            shown = str(times[row - first].value if not pa.types.is_integer(kind) else extreme)
            raise source.wrong(f"column {source.mapping.timestamp!r} is {shown!r}: {OUT_OF_RANGE}", row)
    if -1 in extremes:  # no timestamp
        extremes = list(pa.compute.min_max(numbers.filter(pa.compute.not_equal(numbers, -1))).as_py().values())
    return times, None if None in extremes else (int(extremes[0] * scale // 1), int(extremes[1] * scale // 1))


def _as_times(source: Source, array: Any, first: int) -> Any:
    """Return a column as timestamps for `append_columns`, without a check of their range."""
    pa = _pyarrow()
    pc, name, unit = pa.compute, source.mapping.timestamp, source.mapping.unit
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = first + pc.index(pc.is_null(array), True).as_py()
        raise source.wrong(f"column {name!r} is null, where each record needs a timestamp", row)
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return array
    if pa.types.is_integer(kind) and unit == "ms":
        return array
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if pa.types.is_integer(kind):
            return array.cast(pa.int64()).cast(pa.timestamp(unit))
        if json_rows.is_text(kind):
            text = array.cast(pa.binary()).cast(pa.string())
            if len(text) and _is_digits(text[0].as_py()):
                return text.cast(pa.int64()).cast(pa.timestamp(unit))
            for moment in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
                with contextlib.suppress(pa.ArrowInvalid):
                    return text.cast(moment)
    times = []
    for row, value in enumerate(array.to_pylist(), first):
        try:
            times.append(milliseconds_of(value.decode() if isinstance(value, bytes) else value, str(name), unit))
        except ValueError as error:
            raise source.wrong(str(error), row) from None
    return pa.array(times, pa.int64())


def _is_digits(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()
