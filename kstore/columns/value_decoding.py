"""Columns that a decoder makes of values, and their place in a table: instead of the values, or beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kstore.base import optional
from kstore.errors import ConfigError, InvalidRecordError

if TYPE_CHECKING:
    from kstore.columns._columns import Columns

Errors = Literal["null", "raise"]

SAMPLED = 1000  # values that a decoder may see
VALUE = "value"
VALUE_ERROR = "value_error"


class Decoded(NamedTuple):
    """Columns of some values."""

    columns: dict[str, Any]
    reasons: dict[int, str]  # what is wrong, by row
    is_null: NDArray[np.bool_]  # which rows have no value, or one of which nothing could be decoded


class ValueReader(Protocol):
    """Decodes values by a schema. Thread-safe."""

    @property
    def schema(self) -> Any:
        """The fields of a value, as a schema of PyArrow; all may be null."""

    def read(self, values: Any, names: Sequence[str]) -> Decoded:
        """Decode these fields of a binary array of PyArrow."""


class Decoding:
    """What stands in a table for the values, by a reader and a caller's choices. Thread-safe."""

    def __init__(self, reader: ValueReader, *, as_columns: bool, errors: Errors) -> None:
        self._pa = pa = optional.pyarrow("decode=")
        self._reader, self._as_columns, self._errors = reader, as_columns, errors
        names = reader.schema.names
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"the schema of the values has the fields {names}; at least one is wanted, and each once")
        self.fields: tuple[Any, ...] = (pa.field(VALUE, pa.struct(list(reader.schema))),)
        if as_columns:
            self.fields = tuple(reader.schema)
        if errors == "null":
            self.fields += (pa.field(VALUE_ERROR, pa.string()),)
        self.names = tuple(field.name for field in self.fields)

    def fields_with(self, others: Iterable[Any]) -> list[Any]:
        """Return the fields of a table whose other fields are these: the decoded ones stand at or after `value`."""
        fields: list[Any] = []
        for field in others:
            if field.name == VALUE and not self._as_columns:
                fields += self.fields
            elif field.name == VALUE:
                fields += [field, *self.fields]
            else:
                fields.append(field)
        names = [field.name.casefold() for field in fields]
        for name in self.names:
            if names.count(name.casefold()) > 1:  # DuckDB does not tell capitals from small letters
                raise ConfigError(f"values have a field {name!r}, which is a column of records; leave columns=True out")
        return fields

    def columns(self, values: Any, names: Iterable[str], where: Callable[[int], str]) -> dict[str, Any]:
        """Return those of the decoded columns that are in `names`, for a binary array of PyArrow.

        With errors="raise", the first value that cannot be decoded raises `InvalidRecordError`; `where` names a row.
        """
        pa, chosen = self._pa, set(names)
        asked = [name for name in self.names if name in chosen]
        if not asked:
            return {}
        fields = asked if self._as_columns and VALUE_ERROR not in asked else self._reader.schema.names
        found = self._reader.read(values, fields)
        if self._errors == "raise":
            for row in sorted(found.reasons):
                raise InvalidRecordError(f"{where(row)}: {found.reasons[row]}")
        columns = {name: found.columns[name] for name in asked if name in found.columns and self._as_columns}
        if VALUE in asked and not self._as_columns:
            arrays = [found.columns[field.name] for field in self._reader.schema]
            mask = pa.array(found.is_null) if found.is_null.any() else None
            columns[VALUE] = pa.StructArray.from_arrays(arrays, fields=list(self._reader.schema), mask=mask)
        if VALUE_ERROR in asked and self._errors == "null":
            columns[VALUE_ERROR] = _texts(pa, len(values), found.reasons)
        return columns

    def decode(self, chunk: Columns, place: str) -> Any:
        """Return a record batch of columns of the log `place`, with the decoded ones where they belong."""
        batch = self._pa.record_batch(chunk)
        offsets = chunk.offsets if "offset" in batch.schema.names else None
        fields = self.fields_with(batch.schema)
        decoded = self.columns(
            batch.column(VALUE),
            self.names,
            lambda row: f"{place}, row {row}" if offsets is None else f"{place}, offset {offsets[row]}",
        )
        arrays = [decoded[field.name] if field.name in decoded else batch.column(field.name) for field in fields]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._pa.schema(fields))


class Decoder(Protocol):
    """How values are decoded: `JsonValues`, `AvroValues` or `ProtobufValues`."""

    def _bind(self, sample: Callable[[], Any]) -> Decoding:
        """Return the decoding for a table; `sample` returns some of its values as a binary array of PyArrow."""


class ChunkDecoder:
    """Decodes chunks of columns, all by the decoding of the first one. Not thread-safe."""

    def __init__(self, decoder: Decoder, columns: Sequence[str] | None, layout: str) -> None:
        self._pa = optional.pyarrow("decode=")
        self._decoder = decoder
        self._decoding: Decoding | None = None
        if columns is not None and VALUE not in columns:
            raise ConfigError(f"columns is {list(columns)}; decode= needs 'value'")
        if layout != "binary":
            raise ConfigError(f"layout is {layout!r}; decode= needs 'binary'")

    def decode(self, chunk: Columns, place: str) -> Any:
        """Return a record batch of columns of the log `place`."""
        if self._decoding is None:
            values = self._pa.record_batch(chunk).column(VALUE)
            self._decoding = self._decoder._bind(lambda: values.slice(0, SAMPLED))
        return self._decoding.decode(chunk, place)


def checked_errors(errors: Errors) -> Errors:
    """Check a caller's argument."""
    if errors not in ("null", "raise"):
        raise ConfigError(f"errors is {errors!r}; it is 'null' or 'raise'")
    return errors


def nullable(pa: Any, schema: Any) -> Any:
    """Return the schema with fields that may be null on all levels, since a value may lack each."""
    return pa.schema([_nullable(pa, field) for field in schema])


def _nullable(pa: Any, field: Any) -> Any:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(pa, kind.field(i)) for i in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(pa, kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_nullable(pa, kind.value_field))
    return pa.field(field.name, kind)


def _texts(pa: Any, count: int, reasons: dict[int, str]) -> Any:
    if not reasons:
        return pa.nulls(count, pa.string())
    return pa.array([reasons.get(row) for row in range(count)], pa.string())
