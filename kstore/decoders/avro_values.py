"""`AvroValues`: values that Confluent's Avro serializers wrote become Arrow columns, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kstore.base import optional
from kstore.columns.value_decoding import Decoded, Decoding, Errors, checked_errors, nullable
from kstore.decoders.avro_types import AvroSchema
from kstore.decoders.confluent_frame import framed, groups
from kstore.decoders.known_schemas import KnownSchemas, Schemas, UnknownSchemaError
from kstore.errors import ConfigError


class AvroValues:
    r"""Decodes Avro values that have the frame of Confluent's schema registry, for `decode=`.

    fastavro decodes each value by the schema that its frame names, and resolves it to one schema for all. Dates, times,
    decimals and maps become those of Arrow, and enums become text. A union of numbers becomes the widest of them; a
    union of other types is refused, and so is a recursive schema. A damaged value may be decoded without an error:
    fastavro counts a negative number of a symbol or of a union's branch from the end. Thread-safe.

    Args:
        schemas: Where the schemas are: a mapping of their ids to Avro schemas (JSON text or objects), the URL of a
            schema registry (`http://user:password@host:8081`), or a log directory or `Store` with the topic `_schemas`,
            in which a registry keeps them; its present state is read at once.
        schema: The schema to resolve to. By default that with the greatest id among the first 1,000 values.
        columns: Each field becomes a column beside `value`, so that a query that needs two fields decodes two. Without
            it, `value` becomes a struct.
        errors: What becomes of a value that cannot be decoded. "null": its fields are null; the column `value_error`
            says why. "raise": an error when it is read.

    Raises:
        ConfigError: If fastavro or PyArrow is not installed, an argument is invalid, the registry does not answer, or
            a schema cannot be decoded.
        UnknownTopicOrPartitionError: If a directory has no topic `_schemas`.
        InvalidRecordError: In a scan with `errors="raise"`, if a value cannot be decoded.

    Example:
        >>> import io, fastavro
        >>> fruit = {"type": "record", "name": "Fruit", "fields": [{"name": "kind", "type": "string"}]}
        >>> body = io.BytesIO()
        >>> fastavro.schemaless_writer(body, fruit, {"kind": "pear"})
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> info = store.append("orders", b"\0" + (7).to_bytes(4, "big") + body.getvalue())
        >>> kstore.dataset(store, "orders", decode=kstore.AvroValues({7: fruit})).to_table()["value"].to_pylist()
        [{'kind': 'pear'}]
    """

    def __init__(
        self,
        schemas: Schemas,
        *,
        schema: str | dict[str, Any] | None = None,
        columns: bool = False,
        errors: Errors = "null",
    ) -> None:
        optional.fastavro("AvroValues")
        self._columns, self._errors = bool(columns), checked_errors(errors)
        self._known = KnownSchemas(schemas)
        self._schema = None
        if schema is not None:
            self._schema = AvroSchema(schema if isinstance(schema, str) else json.dumps(schema))

    def _bind(self, sample: Callable[[], Any]) -> Decoding:
        """Return the decoding of a table whose first values `sample` returns."""
        schema = self._newest(sample()) if self._schema is None else self._schema
        return Decoding(AvroReader(self._known, schema), as_columns=self._columns, errors=self._errors)

    def _newest(self, values: Any) -> AvroSchema:
        for number in sorted({int(number) for number in framed(values).ids if number >= 0}, reverse=True):
            try:
                found = self._known.get(number)
            except UnknownSchemaError:
                continue
            return AvroSchema(found.text, found.references)
        raise ConfigError("none of the first values names a known schema; AvroValues(schema=...) gives one")


class AvroReader:
    """Reads fields of framed Avro records. Thread-safe."""

    def __init__(self, known: KnownSchemas, schema: AvroSchema) -> None:
        self._pa = optional.pyarrow("AvroValues", extra="avro")
        self._read = optional.fastavro("AvroValues").schemaless_reader
        self._known, self._schema = known, schema
        self.schema = nullable(self._pa, schema.arrow())
        self._writers: dict[int, AvroSchema | str] = {}

    def read(self, values: Any, names: Sequence[str]) -> Decoded:
        frames = framed(values)
        is_null = ~values.is_valid().to_numpy(zero_copy_only=False)
        reasons: dict[int, str] = {}
        rows: list[dict[str, Any]] = [{}] * len(values)
        wanted = self._schema.parsed
        for number, members in groups(frames.ids, np.flatnonzero(~is_null)).items():
            writer = self._writer(number)
            # All fields are always read: what a field is may not depend on the others that are asked.
            reader = None if isinstance(writer, AvroSchema) and writer.parsed == wanted else wanted
            for row in members.tolist():
                if isinstance(writer, str):
                    reasons[row] = writer
                    continue
                body = io.BytesIO(frames.data[frames.starts[row] : frames.ends[row]])
                try:
                    rows[row] = self._read(body, writer.parsed, reader)
                    left = len(body.read())
                    if left:
                        reasons[row], rows[row] = f"{left} bytes are left after the Avro record", {}
                except Exception as error:  # fastavro raises many kinds
                    reasons[row] = f"{type(error).__name__}: {error}".split(" from <_io.BytesIO")[0]
        columns = {name: self._column(rows, self.schema.field(name), reasons) for name in names}
        is_null[[row for row in reasons if not rows[row]]] = True
        return Decoded(columns, reasons, is_null)

    def _writer(self, number: int) -> AvroSchema | str:
        """Return the schema of an id, or why there is none."""
        if number < 0:
            return "no frame of a schema registry"
        if number not in self._writers:
            try:
                found = self._known.get(number)
                self._writers[number] = AvroSchema(found.text, found.references)
            except UnknownSchemaError as error:
                return str(error)
            except ConfigError as error:
                self._writers[number] = f"schema {number}: {error}"
        return self._writers[number]

    def _column(self, rows: list[dict[str, Any]], field: Any, reasons: dict[int, str]) -> Any:
        pa, name = self._pa, field.name
        values = [row.get(name) for row in rows]
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return pa.concat_arrays([self._cell(value, row, field, reasons) for row, value in enumerate(values)])

    def _cell(self, value: Any, row: int, field: Any, reasons: dict[int, str]) -> Any:
        try:
            return self._pa.array([value], field.type)
        except (self._pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            found = f"{field.name}: {error}"
            reasons[row] = f"{reasons[row]}; {found}" if row in reasons else found
            return self._pa.nulls(1, field.type)
