"""`kstore ingest`: appends the rows of files to a topic."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.base import times
from kstore.cli import command_options, output
from kstore.cli.progress import Progress
from kstore.cli.sources import row_source
from kstore.cli.sources.open_source import FORMATS, open_source
from kstore.cli.sources.timestamps import UNITS
from kstore.config import cautions
from kstore.errors import ConfigError, KStoreError, StorageError
from kstore.log.column_append import MAX_THREADS
from kstore.store.store import Store
from kstore.types import AppendInfo

__all__ = ["run"]

_ABOUT = """\
Append a record to a topic for each row of CSV files (compressed or not), JSON lines, Parquet and Arrow files. The value
is the row as a JSON object, or one column of it; the key selects the partition as in Kafka's producer. A missing topic
is created. The settings that a store keeps for the topic are in force. All records are on the disk when the command
ends. If a row is refused, the command ends and says what it has stored."""
_EXAMPLES = """\
In a CSV file an empty cell is null, and a column whose cells in the first rows are all numbers is written as numbers.
Timestamps are ISO 8601 (in UTC unless they have a zone), numbers of --timestamp-unit, or the times and dates of Parquet
and Arrow; null is refused. In JSON lines, a field NAME_base64 is decoded and used as NAME. CSV, Parquet and Arrow need
PyArrow: pip install 'kstore[arrow]'; JSON lines are read faster if orjson is installed. Where kstore is not linked with
libzstd (kstore --version), a zstd file is first unpacked into a temporary file.

examples:
  kstore ingest flights.csv.gz --to data --topic flights --key-column carrier --timestamp-column time_hour
  kstore ingest *.parquet --to data --topic events --partitions 8 --key-column user --value-column payload
  zcat log.jsonl.gz | kstore ingest - --format jsonl --to data --topic log --compression zstd
"""


def run(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    mapping = _mapping(parsed)
    for path in parsed.files:
        # Open each file once, so that an error about a whole file is reported before anything is appended.
        if path != "-" and len(parsed.files) > 1:
            open_source(path, mapping, parsed.format, lambda _: None).close()
    if parsed.files.count("-") > 1:
        raise ConfigError("standard input can be read once")
    if parsed.check:
        if "-" in parsed.files:
            raise ConfigError("--check reads everything twice, which standard input cannot be")
        for _ in _rows(parsed, mapping, lambda _: None):
            pass
    total = sum(os.stat(path).st_size for path in parsed.files if path != "-")
    with Progress("ingest", -1 if "-" in parsed.files else total) as bar:
        rows = _rows(parsed, mapping, bar.add)
        first = next(rows, None)
        with Store.open(parsed.to, config=command_options.given(parsed), background=False) as store:
            _topic(store, parsed.topic, parsed.partitions)
            load = _Load(store, parsed.topic)
            code = _append(load, rows if first is None else itertools.chain([first], rows), parsed)
    if code == 0:
        load.tell(as_json=parsed.json)
    return code


class _Piece(NamedTuple):
    source: row_source.Source
    rows: row_source.Rows


class _Load:
    """Tracks what one run has appended, by the log end offsets before the run and now."""

    def __init__(self, store: Store, topic: str) -> None:
        self.store, self.topic = store, topic
        self._spans: list[tuple[int, int]] = []
        self._before = {number: store.log(topic, number).log_end_offset for number in store.partitions(topic)}

    @property
    def stored(self) -> dict[int, tuple[int, int]]:
        """The appended offsets `[first, next)` of each partition that got records."""
        now = {number: self.store.log(self.topic, number).log_end_offset for number in self._before}
        return {number: (self._before[number], end) for number, end in now.items() if end > self._before[number]}

    def add(self, rows: row_source.Rows, appended: Iterable[AppendInfo]) -> None:
        if rows.span is not None and all(info.log_append_time < 0 for info in appended):
            self._spans.append(rows.span)

    @property
    def span(self) -> tuple[int, int] | None:
        """The least and the greatest timestamp of the rows; None if the rows have no timestamps."""
        return (min(first for first, _ in self._spans), max(last for _, last in self._spans)) if self._spans else None

    def close(self) -> None:
        """Keep `stored`; called before the store is closed."""
        self._stored = self.stored

    def in_words(self) -> str:
        stored = self._stored
        count = sum(end - first for first, end in stored.values())
        where = ", ".join(f"{self.topic}-{n} offsets {first} to {end - 1}" for n, (first, end) in stored.items())
        if not count:
            return "nothing was stored"
        counted = "1 record before it was stored" if count == 1 else f"{count} records before it were stored"
        return counted + (f": {where}" if len(stored) <= 4 else "")

    def tell(self, *, as_json: bool) -> None:
        if as_json:
            parts = [
                {"partition": number, "first_offset": first, "last_offset": end - 1}
                for number, (first, end) in self._stored.items()
            ]
            records = sum(end - first for first, end in self._stored.values())
            told: dict[str, object] = {"topic": self.topic, "records": records, "partitions": parts}
            if self.span is not None:
                told["first_timestamp"], told["last_timestamp"] = self.span
            output.json_line(told)
            return
        for number, (first, end) in self._stored.items():
            print(f"{self.topic}-{number}: offsets {first} to {end - 1}")
        if self.span is not None:
            print(f"timestamps {times.show(self.span[0])} to {times.show(self.span[1])}")


def _append(load: _Load, pieces: Iterator[_Piece], parsed: argparse.Namespace) -> int:
    """Append everything and return the exit code. An error says which records were stored before it."""
    where = ""
    try:
        for piece in pieces:
            try:
                appended = load.store.append_columns(
                    load.topic,
                    piece.rows.values,
                    keys=piece.rows.keys,
                    timestamps=piece.rows.timestamps,
                    headers=piece.rows.headers,
                    compression=parsed.compression,
                    batch_bytes=parsed.batch_bytes,
                    threads=parsed.threads,
                )
                load.add(piece.rows, appended.values())
            except StorageError:
                raise
            except KStoreError as error:
                where = f"{piece.source.name}, {piece.source.word}s from {piece.rows.first} on: "
                raise error
        load.store.flush()
    except (KStoreError, OSError) as error:
        load.close()
        raise KStoreError(f"{where}{error}; {load.in_words()}") from error
    except KeyboardInterrupt:
        load.close()
        print(f"kstore ingest: interrupted; {load.in_words()}", file=sys.stderr)
        return 130
    load.close()
    return 0


def _rows(parsed: argparse.Namespace, mapping: row_source.Mapping, progress: row_source.Progress) -> Iterator[_Piece]:
    for path in parsed.files:
        with open_source(path, mapping, parsed.format, progress) as source:
            for rows in source.pieces():
                if rows.size:
                    yield _Piece(source, rows)
            cautions.issue(source.cautions(), UserWarning)


def _topic(store: Store, topic: str, partitions: int | None) -> None:
    """Create the topic if it is missing; refuse an existing one with another number of partitions."""
    if topic not in store.topics:
        store.create_topic(topic, 1 if partitions is None else partitions)
    elif partitions is not None and len(store.partitions(topic)) != partitions:
        count = len(store.partitions(topic))
        raise ConfigError(f"topic {topic} has {count} partitions, not {partitions}; leave --partitions out")


def _mapping(parsed: argparse.Namespace) -> row_source.Mapping:
    if parsed.delimiter is not None and len(parsed.delimiter) != 1:
        raise ConfigError(f"--delimiter is {parsed.delimiter!r}; one character is wanted")
    return row_source.Mapping(
        key=parsed.key_column,
        value=parsed.value_column,
        timestamp=parsed.timestamp_column,
        headers=parsed.headers_column,
        unit=parsed.timestamp_unit,
        delimiter=parsed.delimiter or "",
        names=tuple(parsed.columns.split(",")) if parsed.columns else (),
        nulls=tuple(parsed.null or ()),
    )


def _parser() -> command_options.Parser:
    parser = command_options.Parser("ingest", _ABOUT, _EXAMPLES)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file, or - for standard input")
    parser.add_argument("--to", metavar="DIR", required=True, help="the directory of logs")
    parser.add_argument("--topic", metavar="T", required=True, help="the topic")
    parser.add_argument(
        "--partitions", type=command_options.whole(1), metavar="N", help="of a topic that is created (default: 1)"
    )
    parser.add_argument("--key-column", metavar="NAME", help="the column that is the key (default: no key)")
    parser.add_argument(
        "--value-column", metavar="NAME", help="the column that is the value (default: the whole row as JSON)"
    )
    parser.add_argument("--timestamp-column", metavar="NAME", help="the column that is the timestamp (default: now)")
    parser.add_argument(
        "--timestamp-unit", choices=UNITS, default="ms", help="of timestamps that are numbers (default: ms)"
    )
    parser.add_argument("--headers-column", metavar="NAME", help="the column of headers: a map, or key and value pairs")
    parser.add_argument("--format", choices=FORMATS, help="of the files (default: what their names say)")
    parser.add_argument("--delimiter", metavar="SIGN", help="between the cells of a CSV file (default: a comma)")
    parser.add_argument("--columns", metavar="A,B,...", help="the columns of a CSV file whose first line is a row")
    parser.add_argument("--null", action="append", metavar="TEXT", help="a cell of a CSV file that is null, like NA")
    parser.add_argument("--compression", metavar="CODEC", help="gzip, snappy, lz4 or zstd")
    parser.add_argument(
        "--batch-bytes", type=command_options.whole(1), metavar="N", help="fill batches up to this many bytes"
    )
    parser.add_argument(
        "--threads",
        type=command_options.whole(1, MAX_THREADS),
        metavar="N",
        default=min(4, os.cpu_count() or 1),
        help="threads that compress and write",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything first, and append nothing if a row is wrong. Only the append can see what the topic's "
        "settings refuse: a record that is too large, or whose time is too far from now",
    )
    parser.add_argument("--json", action="store_true", help="print what was stored as JSON")
    command_options.add_config(parser)
    return parser
