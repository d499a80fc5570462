"""`JsonValues`: values that are JSON objects become Arrow columns, by PyArrow's reader.

PyArrow's reader takes one text of many objects and refuses it as a whole. A text of values between newlines has
exactly one object per value if each value starts with `{` and ends with `}`, none has a byte 0, and the reader finds as
many objects as there are values: a raw newline within a string is refused, and after a `}` and a newline no object that
is still open can continue with `{`. So no two values make one object, and none makes two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kstore.base import optional
from kstore.columns.value_decoding import Decoded, Decoding, Errors, checked_errors, nullable
from kstore.decoders.binary_arrays import indices, offsets_and_bytes
from kstore.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

PIECE_BYTES = 32 << 20  # values are read in texts of at most this size
BLOCK_BYTES = 1 << 20  # that a thread reads at a time
MOST_GROUPS = 16  # of values with the same misfits that are read together
DEEPEST = 64  # levels of a value from which a schema is inferred
BLANK = b" \t\r\n"

BRACKETS = re.compile(rb"[\[\]{}]")
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

Misfits = tuple[str, ...] | None
"""The fields of a value that do not fit; None for a value that is no JSON."""


class JsonValues:
    """Decodes values that are JSON objects, for `decode=`.

    PyArrow reads the JSON: fields that the schema does not name are skipped, and a field that a value lacks is null.
    Numbers are refused for text and the reverse. Timestamps are ISO 8601 texts with at most the digits of their unit. A
    field that an object names twice is refused. Immutable and thread-safe.

    Args:
        schema: The fields, as a `pyarrow.Schema` or what `pyarrow.schema` takes: numbers, truth values, text, bytes,
            decimals, timestamps, and lists and structs of these. Without it, PyArrow infers the fields of the first
            1,000 values when the dataset is opened: fields that only later values have are left out, and times are
            text.
        columns: Each field becomes a column beside `value`, so that a query that needs two fields decodes two. Without
            it, `value` becomes a struct.
        errors: What becomes of a value that does not fit the schema. "null": a field that does not fit is null, and so
            is all of a value that is no JSON object; the column `value_error` says why. "raise": an error when it is
            read.

    Raises:
        ConfigError: If PyArrow is not installed, `errors` is unknown, or a type is not read from JSON. When a dataset
            is opened without a schema: if no value shows one, or the values of a field have several types.
        InvalidRecordError: In a scan with `errors="raise"`, if a value does not fit.

    Example:
        >>> import duckdb, pyarrow as pa
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> appended = store.append_many("orders", [(b"bob", b'{"fruit": "pear", "n": 2}'), (b"eve", b"none")])
        >>> fruit = kstore.JsonValues({"fruit": pa.string(), "n": pa.int64()}, columns=True)
        >>> orders = kstore.dataset(store, "orders", decode=fruit)
        >>> duckdb.sql("select fruit, n, value_error from orders").fetchall()
        [('pear', 2, None), (None, None, 'no JSON object')]
    """

    def __init__(
        self,
        schema: pyarrow.Schema | dict[str, pyarrow.DataType] | None = None,
        *,
        columns: bool = False,
        errors: Errors = "null",
    ) -> None:
        pa = optional.pyarrow("JsonValues", "json")
        self._columns, self._errors = bool(columns), checked_errors(errors)
        self._schema = None
        if schema is not None:
            self._schema = nullable(pa, schema if isinstance(schema, pa.Schema) else pa.schema(schema))
            for field in self._schema:
                _check_type(pa, field.type, field.name)

    def _bind(self, sample: Callable[[], Any]) -> Decoding:
        """Return the decoding of a table whose first values `sample` returns."""
        schema = inferred_schema([sample()]) if self._schema is None else self._schema
        return Decoding(JsonReader(schema), as_columns=self._columns, errors=self._errors)


class JsonReader:
    """Reads fields of JSON objects. Thread-safe."""

    def __init__(self, schema: Any) -> None:
        self._pa = optional.pyarrow("JsonValues", "json", "compute")
        self.schema = schema

    def read(self, values: Any, names: Sequence[str]) -> Decoded:
        pa = self._pa
        schema = pa.schema([self.schema.field(name) for name in names])
        reasons = unreadable(pa, values)
        is_null = ~values.is_valid().to_numpy(zero_copy_only=False)
        is_null[list(reasons)] = True
        rows = np.flatnonzero(~is_null)
        sound = values if len(rows) == len(values) else values.take(pa.array(rows))
        parts = [self._part(part, schema, rows[start:], reasons, is_null) for start, part in _pieces(sound)]
        arrays = {}
        for number, field in enumerate(schema):
            array = pa.concat_arrays([part[number] for part in parts]) if parts else pa.nulls(0, field.type)
            arrays[field.name] = array if len(rows) == len(values) else array.take(indices(pa, len(values), rows))
        return Decoded(arrays, reasons, is_null)

    def _part(
        self,
        values: Any,
        schema: Any,
        rows: NDArray[np.intp],
        reasons: dict[int, str],
        is_null: NDArray[np.bool_],
        known: list[Misfits] | None = None,
    ) -> list[Any]:
        """Return the columns of values of the given rows; note what is wrong with them.

        `known` says what is known to be wrong with each, if that has been found out.
        """
        if not len(values) or not len(schema):
            return [self._pa.nulls(len(values), field.type) for field in schema]
        read = _columns(self._pa, values, schema)
        if not isinstance(read, str):
            return read
        if known is None:
            known = [_misfits(self._pa, value.as_py(), schema) for value in values]
        groups: dict[Misfits, list[int]] = {}
        for i, misfits in enumerate(known):
            groups.setdefault(misfits, []).append(i)
        if len(groups) > 1 or known[0]:
            return self._grouped(values, schema, groups, rows, reasons, is_null)
        # Nothing is known: look for the refused values by halves.
        if len(values) == 1:
            return self._one(values, schema, int(rows[0]), reasons, is_null)
        middle = len(values) // 2
        halves = [(0, middle), (middle, len(values))]
        return self._joined(
            [self._part(values.slice(a, b - a), schema, rows[a:b], reasons, is_null, known[a:b]) for a, b in halves]
        )

    def _grouped(
        self,
        values: Any,
        schema: Any,
        groups: dict[Misfits, list[int]],
        rows: NDArray[np.intp],
        reasons: dict[int, str],
        is_null: NDArray[np.bool_],
    ) -> list[Any]:
        """Read values without the fields that do not fit: those of each group together, or field by field."""
        pa = self._pa
        for misfits, members in groups.items():
            for i in members if misfits else ():
                reasons[int(rows[i])] = "; ".join(f"{name} is no {schema.field(name).type}" for name in misfits or ())
        sets: list[tuple[Any, list[int], Misfits]]
        if len(groups) <= MOST_GROUPS:
            sets = [
                (pa.schema([field for field in schema if field.name not in (misfits or ())]), members, misfits and ())
                for misfits, members in groups.items()
            ]
        else:
            sets = [(schema, groups.pop(None), None)] if None in groups else []
            for field in schema:
                fitting = [
                    i for misfits, members in groups.items() if field.name not in (misfits or ()) for i in members
                ]
                sets.append((pa.schema([field]), sorted(fitting), ()))
        found: dict[str, list[Any]] = {field.name: [pa.nulls(0, field.type)] for field in schema}
        filled: dict[str, list[int]] = {field.name: [] for field in schema}
        for fitting_schema, members, known in sets:
            part = values.take(pa.array(members, pa.int64()))
            read = self._part(part, fitting_schema, rows[members], reasons, is_null, [known] * len(members))
            for name, array in zip(fitting_schema.names, read, strict=True):
                found[name].append(array)
                filled[name] += members
        return [pa.concat_arrays(found[name]).take(indices(pa, len(values), filled[name])) for name in schema.names]

    def _one(self, value: Any, schema: Any, row: int, reasons: dict[int, str], is_null: NDArray[np.bool_]) -> list[Any]:
        pa = self._pa
        malformed = _columns(pa, value, pa.schema([]))
        if isinstance(malformed, str):
            reasons[row], is_null[row] = malformed, True
            return [pa.nulls(1, field.type) for field in schema]
        arrays, wrong = [], []
        for field in schema:
            read = _columns(pa, value, pa.schema([field]))
            wrong += [f"{field.name}: {read}"] if isinstance(read, str) else []
            arrays.append(pa.nulls(1, field.type) if isinstance(read, str) else read[0])
        if wrong:
            reasons[row] = "; ".join([reasons[row], *wrong] if row in reasons else wrong)
        return arrays

    def _joined(self, parts: list[list[Any]]) -> list[Any]:
        return [self._pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]


def unreadable(pa: Any, values: Any) -> dict[int, str]:
    """Return the rows whose bytes show that they are no text of one JSON object, and why."""
    reasons: dict[int, str] = {}
    offsets, data = offsets_and_bytes(values)
    starts, ends = offsets[:-1], offsets[1:]
    filled = np.flatnonzero(ends > starts)
    is_object = np.zeros(len(values), bool)
    is_object[filled] = (data[starts[filled]] == ord("{")) & (data[ends[filled] - 1] == ord("}"))
    for row in np.flatnonzero(~is_object).tolist():
        value = values[row].as_py()
        text = b"" if value is None else value.strip(BLANK)
        if value is not None and not (text.startswith(b"{") and text.endswith(b"}")):
            reasons[row] = "no JSON object"
    used = data[starts[0] : ends[-1]] if len(values) else data[:0]
    if not used.all():
        for position in np.flatnonzero(used == 0) + starts[0]:
            reasons.setdefault(int(np.searchsorted(ends, position, "right")), "a byte 0 in JSON")
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        for row, value in enumerate(values):
            try:
                (value.as_py() or b"").decode()
            except UnicodeDecodeError as error:
                reasons.setdefault(row, f"no UTF-8: {error.reason} at byte {error.start}")
    return reasons


def _pieces(values: Any) -> Iterator[tuple[int, Any]]:
    """Yield slices of a binary array without nulls of about PIECE_BYTES, each with its first row."""
    ends = offsets_and_bytes(values)[0][1:]
    start = 0
    while start < len(values):
        before = int(ends[start - 1]) if start else int(ends[0]) - len(values[0].as_py())
        stop = max(int(np.searchsorted(ends, before + PIECE_BYTES, "right")), start + 1)
        yield start, values.slice(start, stop - start)
        start = stop


def _columns(pa: Any, values: Any, schema: Any) -> list[Any] | str:
    """Read the fields of values without nulls; return why the reader refuses them if it does."""
    one = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = pa.compute.binary_join(one, b"\n")[0].as_buffer()
    try:
        found = _objects(pa, text, schema, len(values), int(np.diff(offsets_and_bytes(values)[0]).max()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return str(error).removesuffix(" in row 0").removeprefix("JSON parse error: ")
    if found.num_rows != len(values):
        return "more than one JSON object"
    return [column.combine_chunks() for column in found.itercolumns()]


def _objects(pa: Any, text: Any, schema: Any, count: int = 1, longest: int = 0) -> Any:
    """Return the fields of all objects of a text as a table; raise PyArrow's error for the text as a whole.

    The text has `count` values, of which the `longest` has so many bytes.
    """
    parsing = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    block = len(text) + 1
    if schema is None:
        parsing = pa.json.ParseOptions()
    elif len(text) > BLOCK_BYTES and longest < BLOCK_BYTES and _is_line_by_line(np.frombuffer(text, np.uint8), count):
        block = BLOCK_BYTES  # a block ends at a newline, which stands between values only
    reading = pa.json.ReadOptions(use_threads=block == BLOCK_BYTES, block_size=block)
    source = text if isinstance(text, pa.Buffer) else pa.py_buffer(text)
    return pa.json.read_json(pa.BufferReader(source), parse_options=parsing, read_options=reading)


def _is_line_by_line(text: NDArray[np.uint8], count: int) -> bool:
    """Return whether a text of so many values has a line for each."""
    return np.count_nonzero(text == ord("\n")) == count - 1 and not (text == ord("\r")).any()


def _misfits(pa: Any, value: bytes, schema: Any) -> Misfits:
    """Return the fields of which it is sure that PyArrow refuses them, of another kind; None for no JSON."""
    try:
        found = json.loads(value)
    except RecursionError:
        return ()
    except ValueError:
        return None
    if not isinstance(found, dict):
        return ()
    return tuple(
        field.name for field in schema if found.get(field.name) is not None and _is_misfit(pa, found[field.name], field)
    )


def _is_misfit(pa: Any, value: Any, field: Any) -> bool:
    types, kind = pa.types, field.type
    if types.is_boolean(kind):
        return not isinstance(value, bool)
    if types.is_integer(kind):
        return isinstance(value, bool) or not isinstance(value, int)
    if types.is_floating(kind):
        return isinstance(value, bool) or not isinstance(value, int | float)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
        return not isinstance(value, str)
    return False


# A schema from values.


def inferred_schema(arrays: Iterable[Any]) -> Any:
    """Return the schema that PyArrow infers from values; those that are no JSON objects are left out.

    Times are text, and so are fields that are always null. Raises `ConfigError` if no value shows a field, or if a
    field has values of several types.
    """
    pa = optional.pyarrow("JsonValues", "json")
    found: Any = pa.schema([])
    for values in arrays:
        bad = unreadable(pa, values)
        texts = [value.as_py() for row, value in enumerate(values) if value.is_valid and row not in bad]
        for schema in _schemas(pa, [text for text in texts if not is_deep(text)]):
            try:
                found = pa.unify_schemas([found, schema], promote_options="permissive")
            except pa.ArrowException as error:
                raise ConfigError(f"values have no common schema, so one is to be given: {error}") from None
    fields = [field for field in (_settled(pa, field) for field in found) if field is not None]
    if not fields:
        raise ConfigError("no value shows the fields of JSON objects, so a schema is to be given")
    return nullable(pa, pa.schema(fields))


def is_deep(text: bytes) -> bool:
    """Return whether JSON has more levels than PyArrow's inference, which is recursive, may be given."""
    depth = 0
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    for sign in BRACKETS.findall(STRINGS.sub(b"", text)):
        depth += 1 if sign in b"[{" else -1
        if depth > DEEPEST:
            return True
    return False


def _schemas(pa: Any, texts: list[bytes]) -> Iterator[Any]:
    """Yield schemas that fit the texts: one of all if PyArrow can read them together."""
    if not texts:
        return
    try:
        yield _objects(pa, b"\n".join(texts), None).schema
    except pa.ArrowInvalid:
        if len(texts) > 1:
            middle = len(texts) // 2
            yield from _schemas(pa, texts[:middle])
            yield from _schemas(pa, texts[middle:])


def _settled(pa: Any, field: Any) -> Any:
    """Return the field with text for times and nulls; None if it is of objects without a field."""
    kind = field.type
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        kind = pa.string()
    elif pa.types.is_struct(kind):
        inner = [_settled(pa, kind.field(i)) for i in range(kind.num_fields)]
        kept = [each for each in inner if each is not None]
        if not kept:
            return None
        kind = pa.struct(kept)
    elif pa.types.is_list(kind):
        item = _settled(pa, kind.value_field)
        if item is None:
            return None
        kind = pa.list_(item)
    return pa.field(field.name, kind)


def _check_type(pa: Any, kind: Any, name: str) -> None:
    """Raise `ConfigError` for a type that PyArrow does not read from JSON, or as a number instead of text."""
    types = pa.types
    if types.is_struct(kind):
        for i in range(kind.num_fields):
            _check_type(pa, kind.field(i).type, f"{name}.{kind.field(i).name}")
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_type(pa, kind.value_type, name)
    elif not (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
        or types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        or types.is_timestamp(kind) or types.is_decimal(kind)
    ):  # fmt: skip
        raise ConfigError(f"the field {name} is of type {kind}, which is not read from JSON; text and timestamps are")
