"""Avro schemas: which are decoded, and the Arrow types of their fields.

A schema may be a stranger's, and fastavro's compiled reader checks neither its own depth nor the length of arrays. So
schemas are refused that are recursive or deeply nested, or whose arrays have items of no byte: a few bytes could claim
2^60 of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Any

from kstore.base import optional
from kstore.errors import ConfigError

LARGEST_FIXED = 1024  # bytes of a type of Arrow, whose nulls take as many
DECIMAL = "kstore-decimal"
LARGEST_DECIMAL = 32  # bytes: Arrow has up to 76 digits
DEPTH = 64  # of nested types
MOST_TYPES = 20_000  # in a schema, where each use of a name counts

PRIMITIVE = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
DIGITS = Context(prec=80)
NUMBERS = ("int", "long", "float", "double")  # each takes the values of those before it


class AvroSchema:
    """A schema of records that fastavro has parsed, with its references. Immutable.

    Raises:
        ConfigError: If the schema is invalid, or is none of a record, or is not decoded.
    """

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        avro = optional.fastavro("AvroValues")
        self._named: dict[str, Any] = {}
        try:
            for one in references:
                avro.parse_schema(_with_own_types(json.loads(one)), named_schemas=self._named)
            self.parsed: Any = avro.parse_schema(_with_own_types(json.loads(text)), named_schemas=self._named)
            self._types = 0
            self._least_bytes(self.parsed, ())
        except ConfigError:
            raise
        except Exception as error:  # fastavro raises many kinds
            raise ConfigError(f"the Avro schema is invalid: {type(error).__name__}: {error}") from None
        avro.read.LOGICAL_READERS[f"bytes-{DECIMAL}"] = avro.read.LOGICAL_READERS[f"fixed-{DECIMAL}"] = _decimal
        if not isinstance(self.parsed, dict) or self.parsed.get("type") != "record":
            raise ConfigError("the Avro schema of values is that of a record")

    def arrow(self) -> Any:
        """Return the fields as a schema of PyArrow; all may be null."""
        pa = optional.pyarrow("AvroValues", extra="avro")
        fields = self.parsed["fields"]
        try:
            return pa.schema([pa.field(one["name"], self._arrow(pa, one["type"], one["name"])) for one in fields])
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"the Avro schema is invalid: {type(error).__name__}: {error}") from None

    def _resolved(self, schema: Any) -> Any:
        if isinstance(schema, str) and schema not in PRIMITIVE:
            return self._named[schema]
        if isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in self._named):
            return self._resolved(schema["type"])
        return schema

    def _least_bytes(self, schema: Any, within: tuple[str, ...]) -> int:
        """Return how many bytes a value has at least."""
        schema = self._resolved(schema)
        self._types += 1
        if self._types > MOST_TYPES or len(within) > DEPTH:
            raise ConfigError(
                f"the Avro schema has more than {MOST_TYPES} types, or more than {DEPTH} within each other"
            )
        if isinstance(schema, list):
            return 1 + min((self._least_bytes(branch, (*within, "")) for branch in schema), default=0)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in PRIMITIVE:
            return PRIMITIVE[kind]
        if kind in ("array", "map"):
            if (
                self._least_bytes(schema["items" if kind == "array" else "values"], (*within, "")) + (kind == "map")
                == 0
            ):
                raise ConfigError("the Avro schema has an array whose items have no byte")
            return 1
        if kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or size < 0:
                raise ConfigError(f"the Avro schema has a fixed of the size {size!r}")
            return size
        if kind == "enum":
            return 1
        name = schema["name"]
        if name in within:
            raise ConfigError(f"the Avro schema is recursive: {name} has itself within")
        return sum(self._least_bytes(field["type"], (*within, name)) for field in schema["fields"])

    def _arrow(self, pa: Any, schema: Any, where: str) -> Any:
        schema = self._resolved(schema)
        if isinstance(schema, list):
            return self._arrow(pa, _branch(schema, where), where)
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = None if isinstance(schema, str) else _logical(pa, schema)
        if logical is not None:
            return logical
        if kind == "array":
            return pa.list_(self._arrow(pa, schema["items"], where))
        if kind == "map":
            return pa.map_(pa.string(), self._arrow(pa, schema["values"], where))
        if kind == "fixed":
            return pa.binary(schema["size"] if schema["size"] <= LARGEST_FIXED else -1)
        if kind in ("record", "error"):
            fields = schema["fields"]
            return pa.struct([(one["name"], self._arrow(pa, one["type"], f"{where}.{one['name']}")) for one in fields])
        plain = {
            "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
            "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(),
        }  # fmt: skip
        return plain[kind]


def _with_own_types(schema: Any) -> Any:
    """Return a schema whose UUIDs are texts, as in Arrow, and whose decimals are read by `_decimal`."""
    if isinstance(schema, list):
        return [_with_own_types(one) for one in schema]
    if isinstance(schema, dict):
        own = {name: _with_own_types(one) for name, one in schema.items() if (name, one) != ("logicalType", "uuid")}
        return {**own, "logicalType": DECIMAL} if own.get("logicalType") == "decimal" else own
    return schema


def _decimal(data: bytes, schema: Any = None, reader_schema: Any = None) -> Decimal:
    """Convert the bytes of a decimal; fastavro takes hours for some megabytes."""
    if len(data) > LARGEST_DECIMAL:
        raise ValueError(f"a decimal has {len(data)} bytes; Arrow has at most {LARGEST_DECIMAL}")
    return Decimal(int.from_bytes(data, signed=True)).scaleb(-schema.get("scale", 0), DIGITS)


def _branch(branches: list[Any], where: str) -> Any:
    """Return the type that takes the values of all branches of a union."""
    others = [branch for branch in branches if branch != "null"]
    if not others:
        return "null"
    if len(others) == 1:
        return others[0]
    if all(isinstance(branch, str) and branch in NUMBERS for branch in others):
        return "double" if "float" in others else max(others, key=NUMBERS.index)
    raise ConfigError(f"the Avro field {where} is a union of several types; give AvroValues a schema without the field")


def _logical(pa: Any, schema: dict[str, Any]) -> Any:
    """Return the Arrow type of a logical type that fastavro converts; None for others."""
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if logical == DECIMAL and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 < precision <= 76 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        raise ConfigError(
            f"an Avro decimal has the precision {precision} and the scale {scale}; Arrow has 1 to 76 digits"
        )
    known = {
        ("int", "date"): pa.date32(),
        ("int", "time-millis"): pa.time32("ms"),
        ("long", "time-micros"): pa.time64("us"),
        ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
        ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
        ("long", "local-timestamp-millis"): pa.timestamp("ms"),
        ("long", "local-timestamp-micros"): pa.timestamp("us"),
    }
    return known.get((kind, logical))
