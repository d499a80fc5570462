"""Converts record batches of PyArrow to the columns that `append_columns` takes, and checks their types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from kstore.base import optional
from kstore.cli.sources import json_rows, row_source
from kstore.cli.sources.row_source import Refused, Rows, Source, find_refused
from kstore.cli.sources.timestamps import OUT_OF_RANGE, UNITS, milliseconds_of
from kstore.columns import _arrow
from kstore.errors import InvalidColumnError, InvalidRecordError

__all__ = ["check_types", "cut", "rows_of", "span_of", "taken"]


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


def rows_of(
    source: Source,
    batch: Any,
    first: int,
    numbers: frozenset[int] = frozenset(),
    *,
    lines: Sequence[int] | None = None,
    refused: Sequence[Refused] = (),
) -> Rows:
    """Convert a record batch whose row 0 is row `first` of its file; the columns `numbers` hold numbers as text.

    If the mapping sorts out, `lines` are the rows' numbers if there are gaps, and `refused` rows between these are
    passed on with those that are refused here.
    """
    if not source.mapping.sorts_out:
        return _rows(source, batch, first, numbers)
    lines = range(first, first + batch.num_rows) if lines is None else lines
    try:
        rows = _rows(source, batch, first, numbers)
    except InvalidRecordError:
        wrong = _wrong_times(source, batch)
        if not wrong:
            found = find_refused(
                batch.num_rows, lambda start, end: _error_of(source, batch.slice(start, end - start), numbers)
            )
            wrong = {index: str(error) for index, error in found}
        texts = _texts(_taken(batch, sorted(wrong)), numbers)
        new = (Refused(lines[index], wrong[index], text) for index, text in zip(sorted(wrong), texts, strict=True))
        rest = [index for index in range(batch.num_rows) if index not in wrong]
        return rows_of(
            source,
            _taken(batch, rest),
            first,
            numbers,
            lines=[lines[index] for index in rest],
            refused=sorted([*refused, *new], key=lambda row: row.number),
        )
    return rows._replace(refused=tuple(refused), numbers=lines, text=lambda index: _text(batch, index, numbers))


def _wrong_times(source: Source, batch: Any) -> dict[int, str]:
    """Return why each row is refused whose timestamp is no time."""
    pa, name = _pyarrow(), source.mapping.timestamp
    if name is None:
        return {}
    array = batch.column(batch.schema.get_field_index(name))
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    is_moment = pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)
    numbers, scale = _numbers(array) if is_moment else (array, Fraction(1))
    wrong = {}
    for index, value in enumerate(numbers.to_pylist()):
        if is_moment and value is not None:
            if (value < 0 and value * scale != -1) or value * scale >= 1 << 63:
                wrong[index] = f"column {name!r} is {str(array[index].value)!r}: {OUT_OF_RANGE}"
            continue
        try:
            milliseconds_of(value.decode() if isinstance(value, bytes) else value, name, source.mapping.unit)
        except ValueError as error:
            wrong[index] = str(error)
    return wrong


def _error_of(source: Source, batch: Any, numbers: frozenset[int]) -> InvalidRecordError | None:
    try:
        _columns(source, batch, 1, numbers)
    except InvalidRecordError as error:
        return error
    return None


def _texts(batch: Any, numbers: frozenset[int]) -> list[bytes | None]:
    """Return the rows as JSON objects; None for a row that has none."""
    try:
        return list(json_rows.encode(batch, numbers).to_pylist())
    except _pyarrow().ArrowException:
        return [_text(batch, index, numbers) for index in range(batch.num_rows)]


def _text(batch: Any, index: int, numbers: frozenset[int]) -> bytes | None:
    with contextlib.suppress(_pyarrow().ArrowException):
        found = json_rows.encode(batch.slice(index, 1), numbers)[0].as_py()
        return found if isinstance(found, bytes) else None
    return None


def _taken(batch: Any, rows: list[int]) -> Any:
    arrays = [taken(array, rows) for array in batch.columns]
    return _pyarrow().RecordBatch.from_arrays(arrays, batch.schema.names)


def taken(array: Any, rows: Sequence[int]) -> Any:
    """Return these rows of an array, in order. PyArrow's own function for this does not take every type."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and parts[-1][1] == row:
            parts[-1][1] += 1
        else:
            parts.append([row, row + 1])
    slices = [array.slice(start, end - start) for start, end in parts]
    return _pyarrow().concat_arrays(slices) if slices else array.slice(0, 0)


def _rows(source: Source, batch: Any, first: int, numbers: frozenset[int]) -> Rows:
    rows = _columns(source, batch, first, numbers)
    mapping = source.mapping
    written = batch.schema.names if mapping.value is None else [mapping.value]
    for name in dict.fromkeys((*written, *(() if mapping.key is None else (mapping.key,)))):
        count, row = json_rows.not_finite(batch.column(batch.schema.get_field_index(name)))
        if count:
            source.note_nulls(name, count, first + row)
    return rows


def _columns(source: Source, batch: Any, first: int, numbers: frozenset[int]) -> Rows:
    pa, mapping = _pyarrow(), source.mapping

    def column(name: str) -> Any:
        return batch.column(batch.schema.get_field_index(name))

    times, span = (None, None) if mapping.timestamp is None else _times(source, column(mapping.timestamp), first)
    try:
        values = json_rows.encode(batch, numbers) if mapping.value is None else json_rows.octets(column(mapping.value))
        keys = None if mapping.key is None else json_rows.octets(column(mapping.key))
    except pa.ArrowException as error:
        raise source.wrong(f"rows {first} to {first + batch.num_rows - 1}: {error}") from None
    headers = None if mapping.headers is None else column(mapping.headers)
    return Rows(first, batch.num_rows, values, keys, times, headers, span)


def _times(source: Source, array: Any, first: int) -> tuple[Any, tuple[int, int] | None]:
    """Return a column as timestamps for `append_columns`, and its range in milliseconds.

    An error names the row of a timestamp that is out of range.
    """
    pa = _pyarrow()
    times = _as_times(source, array, first)
    kind = times.type
    numbers, scale = _numbers(times)
    for extreme in pa.compute.min_max(numbers).as_py().values():
        if extreme is not None and extreme * scale != -1 and not 0 <= extreme * scale < 1 << 63:
            row = first + pa.compute.index(numbers, extreme).as_py()
            shown = str(times[row - first].value if not pa.types.is_integer(kind) else extreme)
            raise source.wrong(f"column {source.mapping.timestamp!r} is {shown!r}: {OUT_OF_RANGE}", row)
    return times, span_of(times)


def _numbers(times: Any) -> tuple[Any, Fraction]:
    """Return a column of times as numbers, and how many milliseconds 1 is."""
    pa, kind = _pyarrow(), times.type
    if pa.types.is_date32(kind):
        return times.cast(pa.int32()), Fraction(86_400_000)
    scale = Fraction(str(UNITS[kind.unit])) if pa.types.is_timestamp(kind) else Fraction(1)
    return times if pa.types.is_integer(kind) else times.cast(pa.int64()), scale


def span_of(times: Any) -> tuple[int, int] | None:
    """Return the range of a column of times in milliseconds, without -1 (no timestamp); None if there is none."""
    pa = _pyarrow()
    numbers, scale = _numbers(times)
    extremes = list(pa.compute.min_max(numbers).as_py().values())
    if -1 in extremes:
        extremes = list(pa.compute.min_max(numbers.filter(pa.compute.not_equal(numbers, -1))).as_py().values())
    return None if None in extremes else (int(extremes[0] * scale // 1), int(extremes[1] * scale // 1))


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
