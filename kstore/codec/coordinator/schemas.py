"""Reads Kafka's messages by their schemas, and prints them as JSON text as Kafka's converters do.

A message is a tuple of `Field`s in wire order; the version at its head decides which fields are present. Invariant:
any bytes yield text or a `SchemaError`, in time and memory bounded by their length.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Field", "Many", "Message", "Reader", "SchemaError", "json_text", "plain_fields", "quote"]

_FOREVER = 1 << 15
_NEVER = _FOREVER
_INTEGERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_NO_UUID = base64.urlsafe_b64encode(bytes(16))[:22].decode()


class SchemaError(ValueError):
    """Raised for bytes that are not a valid message, with Kafka's reason; kstore catches it."""


@dataclass(frozen=True)
class Many:
    """An array of one kind."""

    of: Kind


class Field(NamedTuple):
    """A field: its name in JSON, its kind, and the versions that have it.

    A field with a `tag` is optional in flexible versions. It is printed only if it differs from `default`, or from the
    empty value of its kind if there is no `default`.
    """

    name: str
    kind: Kind
    since: int = 0
    until: int = _FOREVER
    nullable: bool = False
    tag: int | None = None
    default: Any = ...


Kind = str | Many | tuple[Field, ...]


_WORD = re.compile(r"(\w+):(\w+)(\[\])?(\?)?(?:@(\d+))?")


def plain_fields(text: str) -> tuple[Field, ...]:
    """Create fields from words `name:kind` with suffixes: `[]` for an array, `?` nullable, `@3` since version 3."""
    found = []
    for name, kind, many, nullable, since in _WORD.findall(text):
        found.append(Field(name, Many(kind) if many else kind, int(since or 0), nullable=bool(nullable)))
    return tuple(found)


class Message(NamedTuple):
    """A message: its fields, the highest known version, and the first version with compact encodings."""

    fields: tuple[Field, ...]
    versions: int = 0
    flexible: int = _NEVER

    def read(self, data: Reader, version: int) -> dict[str, Any]:
        """Read a message of `version`, whose version number has been read already, into JSON types."""
        return data.struct(self.fields, version, version >= self.flexible)


class Reader:
    """Reads values from bytes, one after the other. Not thread-safe."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, fields: tuple[Field, ...], version: int, flexible: bool) -> dict[str, Any]:
        """Read a struct, in the order of the schema; tagged fields that have their default are left out."""
        values: dict[str, Any] = {}
        tagged: dict[int, Field] = {}
        for field in fields:
            if not field.since <= version <= field.until:
                continue
            if field.tag is None:
                values[field.name] = self._value(field, version, flexible)
            elif flexible:
                tagged[field.tag] = field
        if flexible:
            values.update(self._tags(tagged, version))
        return {field.name: values[field.name] for field in fields if field.name in values}

    def integer(self, kind: str) -> int:
        """Read a big-endian number."""
        form = _INTEGERS[kind]
        if form.size > len(self._data) - self._at:
            raise SchemaError("null")  # a buffer underflow, which has no message in Java
        value: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        left = len(self._data) - self._at
        if size > left:
            raise SchemaError(f"Error reading byte array of {size} byte(s): only {left} byte(s) available")
        self._at += size
        return self._data[self._at - size : self._at]

    def unsigned(self) -> int:
        """Read an unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.integer("int8") & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
        raise SchemaError(
            "Varint is too long, the most significant bit in the 5th byte is set, "
            f"converted value: {value & 0xFFFFFFFF:x}"
        )

    def _tags(self, tagged: dict[int, Field], version: int) -> Iterable[tuple[str, Any]]:
        for _ in range(self.unsigned()):
            tag, size = self.unsigned(), self.unsigned()
            field = tagged.get(tag)
            if field is None:
                self.take(size)
                continue
            value = self._value(field, version, flexible=True)
            if value != _default(field):
                yield field.name, value

    def _value(self, field: Field, version: int, flexible: bool) -> Any:
        kind = field.kind
        if isinstance(kind, tuple):
            if field.nullable and self._is_null_struct(field):
                return None
            return self.struct(kind, version, flexible)
        if kind in _INTEGERS:
            return self.integer(str(kind))
        if kind == "uuid":
            halves = self.integer("int64"), self.integer("int64")
            return base64.urlsafe_b64encode(struct.pack(">qq", *halves))[:22].decode()
        size = self._length(kind, flexible)
        if size < 0:
            if not field.nullable:
                raise SchemaError(f"non-nullable field {field.name} was serialized as null")
            return None
        if isinstance(kind, Many):
            return self._items(field, kind.of, size, version, flexible)
        if kind == "string":
            if size > 0x7FFF:
                raise SchemaError(f"string field {field.name} had invalid length {size}")
            return self.take(size).decode(errors="replace")
        return base64.b64encode(self.take(size)).decode()

    def _is_null_struct(self, field: Field) -> bool:
        if field.tag is None:
            return self.integer("int8") < 0
        return not 0 < self.unsigned() < 1 << 31

    def _length(self, kind: Kind, flexible: bool) -> int:
        if flexible:
            return self.unsigned() - 1
        return self.integer("int16" if kind == "string" else "int32")

    def _items(self, field: Field, kind: Kind, count: int, version: int, flexible: bool) -> list[Any]:
        left = len(self._data) - self._at
        if count > left:
            raise SchemaError(
                f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
            )
        item = Field(f"{field.name} element", kind)
        return [self._value(item, version, flexible) for _ in range(count)]


def _default(field: Field) -> Any:
    if field.default is not ...:
        return field.default
    if isinstance(field.kind, Many):
        return []
    if isinstance(field.kind, tuple):
        return {inner.name: _default(inner) for inner in field.kind if inner.tag is None}
    return {"string": "", "bytes": "", "uuid": _NO_UUID}.get(field.kind, 0)


# JSON, as compact as Jackson's.

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def quote(text: str) -> str:
    """Return a JSON string in which only quotes, backslashes and control characters are escaped."""
    return '"' + _TO_ESCAPE.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"


def json_text(value: Any) -> str:
    """Return the JSON text of a result of `Message.read`, in the order of its fields."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, list):
        return f"[{','.join(map(json_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{quote(name)}:{json_text(inner)}' for name, inner in value.items())}}}"
    return str(value)
