"""`kstore ingest`: files of rows become records of a topic."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from kstore.cli import options, output, sources
from kstore.cli.progress import Progress
from kstore.columnappends import MAX_THREADS
from kstore.errors import ConfigError, KStoreError, StorageError
from kstore.store import Store

__all__ = ["run"]

_ABOUT = """\
Append a record for each row of CSV files (packed ones, too), JSON lines, Parquet and Arrow files to a topic. The value
is the row as a JSON object, or one column of it; the key decides about the partition as in Kafka's producer. A topic
that is not there is made. The settings that a store keeps for the topic hold. What was appended is on the disk when the
command ends; when a row cannot be taken it ends there, and says what was stored."""
_EXAMPLES = """\
In a CSV file an empty cell is null, and a column whose cells in the first rows are all numbers is written as numbers.
Timestamps are ISO 8601 (in UTC unless they have a zone), numbers of --timestamp-unit, or the times and dates of Parquet
and Arrow; null is refused. Of JSON lines a field NAME_base64 is taken for NAME. CSV, Parquet and Arrow need PyArrow:
pip install 'kstore[arrow]'; JSON lines are read faster where orjson is installed.

examples:
  kstore ingest flights.csv.gz --to data --topic flights --key-column carrier --timestamp-column time_hour
  kstore ingest *.parquet --to data --topic events --partitions 8 --key-column user --value-column payload
  zcat log.jsonl.gz | kstore ingest - --format jsonl --to data --topic log --compression zstd
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code."""
    asked = _parser().parse_args(arguments)
    mapping = _mapping(asked)
    for path in asked.files:
        # A look at each file: what is wrong with it as a whole is told before anything is appended.
        if path != "-" and len(asked.files) > 1:
            sources.open_source(path, mapping, asked.format, lambda _: None).close()
    if asked.files.count("-") > 1:
        raise ConfigError("standard input can be read once")
    if asked.check:
        if "-" in asked.files:
            raise ConfigError("--check reads everything twice, which standard input cannot be")
        for _ in _rows(asked, mapping, lambda _: None):
            pass
    total = sum(os.stat(path).st_size for path in asked.files if path != "-")
    with Progress("ingest", -1 if "-" in asked.files else total) as bar:
        rows = _rows(asked, mapping, bar.add)
        first = next(rows, None)
        with Store.open(asked.to, config=options.given(asked), background=False) as store:
            _topic(store, asked.topic, asked.partitions)
            load = _Load(store, asked.topic)
            code = _append(load, rows if first is None else itertools.chain([first], rows), asked)
    if code == 0:
        load.tell(as_json=asked.json)
    return code


class _Piece(NamedTuple):
    source: sources.Source
    rows: sources.Rows


class _Load:
    """What one run appends: where the partitions ended before it, and end now."""

    def __init__(self, store: Store, topic: str) -> None:
        self.store, self.topic = store, topic
        self._before = {number: store.log(topic, number).log_end_offset for number in store.partitions(topic)}

    @property
    def stored(self) -> dict[int, tuple[int, int]]:
        """The offsets `[first, next)` of what was appended, for each partition that got something."""
        now = {number: self.store.log(self.topic, number).log_end_offset for number in self._before}
        return {number: (self._before[number], end) for number, end in now.items() if end > self._before[number]}

    def close(self) -> None:
        """Remember what was stored, as long as the store can be asked."""
        self._stored = self.stored

    def in_words(self) -> str:
        """What was stored, in one line."""
        stored = self._stored
        count = sum(end - first for first, end in stored.values())
        where = ", ".join(f"{self.topic}-{n} offsets {first} to {end - 1}" for n, (first, end) in stored.items())
        if not count:
            return "nothing was stored"
        told = "1 record before it was stored" if count == 1 else f"{count} records before it were stored"
        return told + (f": {where}" if len(stored) <= 4 else "")

    def tell(self, *, as_json: bool) -> None:
        """Print what was stored."""
        if as_json:
            parts = [
                {"partition": number, "first_offset": first, "last_offset": end - 1}
                for number, (first, end) in self._stored.items()
            ]
            records = sum(end - first for first, end in self._stored.values())
            output.json_line({"topic": self.topic, "records": records, "partitions": parts})
            return
        for number, (first, end) in self._stored.items():
            print(f"{self.topic}-{number}: offsets {first} to {end - 1}")


def _append(load: _Load, pieces: Iterator[_Piece], asked: argparse.Namespace) -> int:
    """Append everything; the exit code, after what went wrong was told with what was stored."""
    told = ""
    try:
        for piece in pieces:
            try:
                load.store.append_columns(
                    load.topic,
                    piece.rows.values,
                    keys=piece.rows.keys,
                    timestamps=piece.rows.timestamps,
                    headers=piece.rows.headers,
                    compression=asked.compression,
                    batch_bytes=asked.batch_bytes,
                    threads=asked.threads,
                )
            except StorageError:
                raise
            except KStoreError as error:
                told = f"{piece.source.name}, {piece.source.word}s from {piece.rows.first} on: "
                raise error
        load.store.flush()
    except (KStoreError, OSError) as error:
        load.close()
        raise KStoreError(f"{told}{error}; {load.in_words()}") from error
    except KeyboardInterrupt:
        load.close()
        print(f"kstore ingest: interrupted; {load.in_words()}", file=sys.stderr)
        return 130
    load.close()
    return 0


def _rows(asked: argparse.Namespace, mapping: sources.Mapping, progress: sources.Progress) -> Iterator[_Piece]:
    for path in asked.files:
        with sources.open_source(path, mapping, asked.format, progress) as source:
            for rows in source.pieces():
                if rows.size:
                    yield _Piece(source, rows)


def _topic(store: Store, topic: str, partitions: int | None) -> None:
    """Make the topic, or see that it is what was asked for."""
    if topic not in store.topics:
        store.create_topic(topic, 1 if partitions is None else partitions)
    elif partitions is not None and len(store.partitions(topic)) != partitions:
        there = len(store.partitions(topic))
        raise ConfigError(f"topic {topic} has {there} partitions, not {partitions}; leave --partitions out")


def _mapping(asked: argparse.Namespace) -> sources.Mapping:
    if asked.delimiter is not None and len(asked.delimiter) != 1:
        raise ConfigError(f"--delimiter is {asked.delimiter!r}; one character is wanted")
    return sources.Mapping(
        key=asked.key_column,
        value=asked.value_column,
        timestamp=asked.timestamp_column,
        headers=asked.headers_column,
        unit=asked.timestamp_unit,
        delimiter=asked.delimiter or "",
        names=tuple(asked.columns.split(",")) if asked.columns else (),
        nulls=tuple(asked.null or ()),
    )


def _parser() -> options.Parser:
    parser = options.Parser(
        prog="kstore ingest",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file, or - for standard input")
    parser.add_argument("--to", metavar="DIR", required=True, help="the directory of logs")
    parser.add_argument("--topic", metavar="T", required=True, help="the topic")
    parser.add_argument(
        "--partitions", type=options.whole(1), metavar="N", help="make the topic with so many (default: 1)"
    )
    parser.add_argument("--key-column", metavar="NAME", help="the column that is the key (default: no key)")
    parser.add_argument(
        "--value-column", metavar="NAME", help="the column that is the value (default: the whole row as JSON)"
    )
    parser.add_argument("--timestamp-column", metavar="NAME", help="the column that is the timestamp (default: now)")
    parser.add_argument(
        "--timestamp-unit", choices=sources.UNITS, default="ms", help="of timestamps that are numbers (default: ms)"
    )
    parser.add_argument("--headers-column", metavar="NAME", help="the column of headers: a map, or key and value pairs")
    parser.add_argument("--format", choices=sources.FORMATS, help="of the files (default: what their names say)")
    parser.add_argument("--delimiter", metavar="SIGN", help="between the cells of a CSV file (default: a comma)")
    parser.add_argument("--columns", metavar="A,B,...", help="the columns of a CSV file whose first line is a row")
    parser.add_argument("--null", action="append", metavar="TEXT", help="a cell of a CSV file that is null, like NA")
    parser.add_argument("--compression", metavar="CODEC", help="gzip, snappy, lz4 or zstd")
    parser.add_argument("--batch-bytes", type=options.whole(1), metavar="N", help="how far batches are filled")
    parser.add_argument(
        "--threads",
        type=options.whole(1, MAX_THREADS),
        metavar="N",
        default=min(4, os.cpu_count() or 1),
        help="that compress and write",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything first, and append nothing if a row is wrong; what the topic's settings refuse (a record "
        "by its size, or by how far its time is from now) is met only when it is appended",
    )
    parser.add_argument("--json", action="store_true", help="print what was stored as JSON")
    options.add_config(parser)
    return parser
