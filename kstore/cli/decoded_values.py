"""`--decode`: values by a schema, as JSON for terminals and files of text."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kstore._core import Record
from kstore.base import optional
from kstore.cli.record_formats import json_of
from kstore.columns.value_decoding import SAMPLED, VALUE, VALUE_ERROR, Decoder, Decoding
from kstore.decoders.avro_values import AvroValues
from kstore.decoders.json_values import JsonValues
from kstore.decoders.protobuf_values import ProtobufValues
from kstore.errors import ConfigError, InvalidRecordError

JSON = "json"  # without a schema
HELP = (
    "decode values: json, or json:FILE with an object of names and Arrow types, like int64, double, string, bool and "
    "'timestamp[ms, tz=UTC]'; avro:URL of a schema registry, or avro:DIR with the topic _schemas; "
    "protobuf:FILE:MESSAGE, FILE from protoc --include_imports --descriptor_set_out"
)
TEMPORAL = ("timestamp", "date", "time", "duration", "decimal")  # types that become text


class DecodedRecord(NamedTuple):
    """A record and its value: what `json.dumps` takes."""

    record: Record
    value: dict[str, Any] | None
    error: str | None


def decoder(text: str, *, as_columns: bool = False) -> Decoder:
    """Return the decoder that an option names, or raise `ConfigError`."""
    kind, _, rest = text.partition(":")
    if kind == JSON and rest:
        return JsonValues(_schema(rest), columns=as_columns)
    if kind == "avro" and rest:
        return AvroValues(rest, columns=as_columns)
    path, _, message = rest.rpartition(":")
    if kind == "protobuf" and path and message:
        return ProtobufValues(path, message, columns=as_columns)
    raise ConfigError(f"--decode is {text!r}; json, json:FILE, avro:URL, avro:DIR and protobuf:FILE:MESSAGE are known")


def decoded(
    records: Iterable[tuple[str, int, Record]], how: str, *, raises: bool
) -> Iterator[tuple[str, int, DecodedRecord]]:
    """Yield the records with their values, decoded as the option `how` says; JSON without a schema stays as it is.

    If it `raises`, a value that does not fit is an `InvalidRecordError`.
    """
    found = _json_of(records) if how == JSON else _by_schema(records, decoder(how))
    for topic, partition, decoded in found:
        if raises and decoded.error is not None:
            raise InvalidRecordError(f"{topic}-{partition}, offset {decoded.record.offset}: {decoded.error}")
        yield topic, partition, decoded


def _json_of(records: Iterable[tuple[str, int, Record]]) -> Iterator[tuple[str, int, DecodedRecord]]:
    for topic, partition, record in records:
        value = error = None
        try:
            found = None if record.value is None else json.loads(record.value.decode())
            if isinstance(found, dict):
                value = _plain(found)
            elif record.value is not None:
                error = "no JSON object"
        except (ValueError, RecursionError) as fault:
            error = f"no JSON: {fault}"
        yield topic, partition, DecodedRecord(record, value, error)


def _by_schema(
    records: Iterable[tuple[str, int, Record]], decoder: Decoder
) -> Iterator[tuple[str, int, DecodedRecord]]:
    pa = optional.pyarrow("--decode")
    waiting = iter(records)
    decoding: Decoding | None = None
    while chunk := list(itertools.islice(waiting, SAMPLED)):
        values = pa.array([record.value for _, _, record in chunk], pa.binary())
        if decoding is None:
            decoding = decoder._bind(lambda values=values: values)  # type: ignore[misc]
        found = decoding.columns(values, decoding.names, str)
        errors = found[VALUE_ERROR].to_pylist()
        for (topic, partition, record), value, error in zip(chunk, _objects(found[VALUE]), errors, strict=True):
            yield topic, partition, DecodedRecord(record, value, error)


def json_line(topic: str, partition: int, decoded: DecodedRecord) -> bytes:
    """Return a record with its decoded value as a JSON line; `value_error` is there if the value has an error."""
    line = json_of(topic, partition, decoded.record)
    fields: dict[str, Any] = {}
    for name, field in line.items():
        if name in (VALUE, "value_base64"):
            fields[VALUE] = decoded.value
            fields |= {} if decoded.error is None else {VALUE_ERROR: decoded.error}
        else:
            fields[name] = field
    return _text(fields) + b"\n"


def with_value(decoded: DecodedRecord) -> Record:
    """Return the record with the JSON text instead of the value."""
    record, value = decoded.record, decoded.value
    return Record(record.offset, record.timestamp, record.key, None if value is None else _text(value), record.headers)


def json_texts(array: Any) -> list[bytes | None]:
    """Return the JSON text of each value of an array: times, dates and decimals as text, bytes in base64."""
    return [None if value is None else _text(value) for value in _objects(array)]


def _text(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _objects(array: Any) -> list[dict[str, Any] | None]:
    pa = optional.pyarrow("--decode", "compute")
    return [_plain(row) for row in _with_texts(pa, array).to_pylist()]


def _with_texts(pa: Any, array: Any) -> Any:
    """Return the array with text for what JSON does not have; times in structs are ISO 8601 with a T."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(
            [_with_texts(pa, each) for each in array.flatten()], names, mask=array.is_null()
        )
    texts = array.cast(_plain_type(pa, kind))
    if pa.types.is_timestamp(kind):
        return pa.compute.replace_substring(texts, " ", "T", max_replacements=1)
    return texts


def _plain_type(pa: Any, kind: Any) -> Any:
    """Return the type with text for what JSON does not have."""
    if str(kind).startswith(TEMPORAL):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, _plain_type(pa, kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(pa, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain_type(pa, kind.item_type))
    return kind


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # a map
            return {str(name): _plain(one) for name, one in value}
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _schema(path: str) -> Any:
    """Return the Arrow schema of a file: an object of names and types, objects for structs, and lists of one type."""
    pa = optional.pyarrow("--decode")
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: an object of names and Arrow types is wanted")
    return pa.schema([(name, _type(pa, kind, f"{path}: {name}")) for name, kind in found.items()])


def _type(pa: Any, kind: Any, where: str) -> Any:
    if isinstance(kind, dict):
        return pa.struct([(name, _type(pa, one, f"{where}.{name}")) for name, one in kind.items()])
    if isinstance(kind, list) and len(kind) == 1:
        return pa.list_(_type(pa, kind[0], where))
    zoned = re.fullmatch(r"timestamp\[(s|ms|us|ns), (?:tz=)?([\w/+:-]+)\]", kind) if isinstance(kind, str) else None
    try:
        return pa.timestamp(*zoned.groups()) if zoned else pa.type_for_alias(kind)
    except (ValueError, TypeError):
        raise ConfigError(
            f"{where} is {kind!r}; the name of an Arrow type, an object or a list of one is wanted"
        ) from None
