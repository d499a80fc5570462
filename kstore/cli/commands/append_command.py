"""`kstore append`: appends lines or JSON lines from standard input."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kstore.cli import command_options, command_paths
from kstore.cli.commands import mounted_paths
from kstore.errors import ConfigError, InvalidRecordError
from kstore.log.log import Log
from kstore.store.store import Store

__all__ = ["run"]

_ABOUT = """\
Append a record for each line of standard input: to one partition (DIR/TOPIC-P, created if it is missing), or to a topic
(DIR/TOPIC), in which the key selects the partition as in Kafka's producer. The settings that a store keeps for the
topic are in force. All records are on the disk when the command ends."""
_EXAMPLES = """examples:
  echo hello | kstore append data/events-0
  kstore append data/events --key-separator : < lines.txt
  kstore cat data/events-0 --json | kstore append other/events-0 --json
"""
_FIELDS = {"key", "key_base64", "value", "value_base64", "timestamp", "headers", "topic", "partition", "offset"}


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("append", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--key-separator", metavar="TEXT", help="the key is the part of a line before this text")
    how.add_argument("--json", action="store_true", help="lines are JSON objects as `kstore cat --json` prints them")
    parser.add_argument(
        "--header", action="append", metavar="NAME=VALUE", help="a header of each record; may be repeated"
    )
    parser.add_argument("--compression", metavar="CODEC", help="gzip, snappy, lz4 or zstd")
    command_options.add_config(parser)
    parsed = parser.parse_args(arguments)
    if parsed.key_separator == "":
        raise command_options.UsageError("--key-separator is empty; some text between key and value is needed")
    headers = tuple(_header(text) for text in parsed.header or ())
    lines = _lines(() if sys.stdin is None else sys.stdin.buffer)
    rows = _from_json(lines, headers) if parsed.json else _from_text(lines, parsed.key_separator, headers)
    mounted_paths.refuse_urls(parsed.path)
    place = command_paths.find_topic(parsed.path, may_be_new=True)
    assert place.topic is not None
    if place.partition is None:
        _to_topic(place.root, place.topic, rows, parsed)
    else:
        _to_partition(place, place.topic, rows, parsed)
    return 0


def _to_partition(place: command_paths.Place, topic: str, rows: Iterator[Any], parsed: argparse.Namespace) -> None:
    config = command_paths.overrides(place.root, topic)
    given = command_options.given(parsed)
    if given:
        config = config.for_topic(given)
    path = os.path.join(place.root, f"{topic}-{place.partition}")
    with Log.open(path, config=config) as log:
        info = log.append_many(rows, compression=parsed.compression, sync=True)
        if info.last_offset >= 0:
            _tell(topic, place.partition, info.first_offset, info.last_offset)


def _to_topic(root: str, topic: str, rows: Iterator[Any], parsed: argparse.Namespace) -> None:
    with Store.open(root, config=command_options.given(parsed), background=False) as store:
        appended = store.append_many(topic, rows, compression=parsed.compression, sync=True)
        for partition, info in sorted(appended.items()):
            if info.last_offset >= 0:
                _tell(topic, partition, info.first_offset, info.last_offset)


def _tell(topic: str, partition: int | None, first: int, last: int) -> None:
    print(f"{topic}-{partition}: offsets {first} to {last}")


def _lines(source: Iterable[bytes]) -> Iterator[bytes]:
    for line in source:
        yield line[:-1] if line.endswith(b"\n") else line


def _from_text(lines: Iterable[bytes], separator: str | None, headers: tuple[Any, ...]) -> Iterator[Any]:
    ends_key = None if separator is None else separator.encode()
    for number, line in enumerate(lines, 1):
        key, value = None, line
        if ends_key is not None:
            key, match, value = line.partition(ends_key)
            if not match:
                raise InvalidRecordError(f"line {number} has no {separator!r} that ends a key: {line[:60]!r}")
        yield key, value, None, headers


def _from_json(lines: Iterable[bytes], headers: tuple[Any, ...]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or not fields.keys() <= _FIELDS:
                raise ValueError(f"an object with some of {', '.join(sorted(_FIELDS))} is needed")
            timestamp = fields.get("timestamp")
            if timestamp is not None and (not isinstance(timestamp, int) or isinstance(timestamp, bool)):
                raise TypeError(f"timestamp {timestamp!r} is no whole number of milliseconds")
            own = [(header["key"], _octets(header, "value")) for header in fields.get("headers") or ()]
            yield _octets(fields, "key"), _octets(fields, "value"), timestamp, (*own, *headers)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidRecordError(f"line {number} is no record: {str(error)[:200]}: {line[:60]!r}") from None


def _octets(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text = fields.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{name} is no text")
    return text.encode("utf-8", "surrogateescape")


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--header {text!r}: NAME=VALUE is needed")
    return name, value.encode()
