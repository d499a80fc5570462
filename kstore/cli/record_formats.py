"""Formats records as text: by kcat's format strings, or as JSON lines."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring as _text
from typing import Any, TypeAlias, TypeVar

from kstore._core import Record
from kstore.errors import ConfigError, KStoreError
from kstore.tools.dump.record_contents import octets

__all__ = ["FIELDS", "Printer", "formatter", "json_of"]

FIELDS = (
    "%%t topic, %%p partition, %%o offset, %%T timestamp, %%k key, %%s value, %%K and %%S their lengths (-1: null), "
    r"%%R the value's length as 4 bytes, %%h headers, %%%% a percent sign; \n \r \t \xHH"
)

Printer: TypeAlias = Callable[[str, int, Record], bytes]
"""Takes a topic, a partition and a record, and returns the bytes to print."""

T = TypeVar("T")

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(name.encode("utf-8", "surrogateescape") + b"=" + (value or b"") for name, value in record.headers)


_PARTS: dict[str, Printer] = {
    "t": lambda topic, _, __: topic.encode(),
    "p": lambda _, partition, __: b"%d" % partition,
    "o": lambda _, __, record: b"%d" % record.offset,
    "T": lambda _, __, record: b"%d" % record.timestamp,
    "k": lambda _, __, record: record.key or b"",
    "s": lambda _, __, record: record.value or b"",
    "K": lambda _, __, record: b"%d" % _length(record.key),
    "S": lambda _, __, record: b"%d" % _length(record.value),
    "R": lambda _, __, record: (_length(record.value) & 0xFFFFFFFF).to_bytes(4, "big"),
    "h": lambda _, __, record: _headers(record),
}


def formatter(text: str) -> Printer:
    """Compile a format string; raises `ConfigError` for an unknown field."""
    parts: list[Printer | bytes] = []
    position = 0
    for match in _TOKEN.finditer(text):
        position = match.end()
        field, escape, plain = match.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif escape is not None:
            if escape not in _ESCAPES and len(escape) == 1:
                raise ConfigError(f"--format {text!r}: there is no \\{escape}")
            parts.append(_ESCAPES[escape] if escape in _ESCAPES else bytes([int(escape[1:], 16)]))
        elif field == "%":
            parts.append(b"%")
        elif field in _PARTS:
            parts.append(_PARTS[field])
        else:
            raise ConfigError(f"--format {text!r}: there is no field %{field}; there is {FIELDS.replace('%%', '%')}")
    if position != len(text):
        raise ConfigError(f"--format {text!r}: it ends within a field")

    def render(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(topic, partition, record) for part in parts])

    return render


def json_of(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """Return a record as an object for JSON, under stable names."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **octets("key", record.key),
        **octets("value", record.value),
        "headers": [{"key": name, **octets("value", value)} for name, value in record.headers],
    }


def json_line(topic: str, partition: int, record: Record) -> bytes:
    """Return the object of `json_of` as a JSON line. Much faster than `json_of` and `json.dumps`."""
    timestamp, key, value = record.timestamp, _octets("key", record.key), _octets("value", record.value)
    where = f'{{"topic": {_text(topic)}, "partition": {partition}, "offset": {record.offset}'
    headers = "[]"
    if record.headers:
        headers = json.dumps(json_of(topic, partition, record)["headers"], ensure_ascii=False)
    line = f'{where}, "timestamp": {timestamp}, {key}, {value}, "headers": {headers}}}\n'
    # A header's name that is not UTF-8 has lone surrogates, which become escapes.
    return line.encode("utf-8", "backslashreplace")


def _octets(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}": null'
    try:
        return f'"{name}": {_text(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64": "{base64.b64encode(data).decode()}"'


def plain(key_separator: str | None) -> Printer:
    """Return a printer of one line per record: the value, preceded by the key and `key_separator` if that is given."""
    if key_separator is None:
        return lambda _, __, record: (record.value or b"") + b"\n"
    separator = key_separator.encode()
    return lambda _, __, record: (record.key or b"") + separator + (record.value or b"") + b"\n"


def write(
    records: Iterable[tuple[str, int, T]],
    render: Callable[[str, int, T], bytes],
    out: Any,
    *,
    at_once: bool,
    progress: Callable[[int], object],
) -> int:
    """Write records and return their number. With `at_once` each is written immediately, else some hundreds together.

    `progress` is called with the number of records written since the last call.
    """
    count = 0
    pending: list[bytes] = []
    try:
        for topic, partition, record in records:
            pending.append(render(topic, partition, record))
            count += 1
            if at_once or len(pending) >= 512:
                out.write(b"".join(pending))
                progress(len(pending))
                pending.clear()
                if at_once:
                    out.flush()
    except KStoreError:
        out.write(b"".join(pending))  # the records before the error
        out.flush()
        raise
    out.write(b"".join(pending))
    out.flush()
    return count
