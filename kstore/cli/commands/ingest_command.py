"""`kstore ingest`: appends the rows of files to a topic."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kstore.base import times
from kstore.cli import command_options, ingested_files, output, staged_load
from kstore.cli.commands import mounted_paths
from kstore.cli.ingested_files import IngestedFiles, InputFile
from kstore.cli.progress import Progress
from kstore.cli.rejected_rows import RejectsFile, Sieve
from kstore.cli.sources import row_source
from kstore.cli.sources.open_source import FORMATS, open_source
from kstore.cli.sources.timestamps import UNITS
from kstore.cli.staged_load import StagedLoad
from kstore.config import cautions
from kstore.errors import ConfigError, KStoreError, StorageError
from kstore.log.column_append import MAX_THREADS
from kstore.store.bulk_loads.load_manifest import Transaction, check_transaction
from kstore.store.store import Store, loads_of, partition_count

__all__ = ["run"]

_REJECTED = 3  # the exit code of a run that stored the other rows

_ABOUT = """\
Append a record to a topic for each row of CSV files (compressed or not), JSON lines, Parquet and Arrow files. The value
is the row as a JSON object, or one column of it; the key selects the partition as in Kafka's producer. A missing topic
is created. The settings that a store keeps for the topic are in force. All records are on the disk when the command
ends. If a row is refused, the command ends and says what it has stored; with --rejects it goes on without the row."""
_EXAMPLES = """\
In a CSV file an empty cell is null, and a column whose cells in the first rows are all numbers is written as numbers.
Timestamps are ISO 8601 (in UTC unless they have a zone), numbers of --timestamp-unit, or the times and dates of Parquet
and Arrow; null is refused. In JSON lines, a field NAME_base64 is decoded and used as NAME. CSV, Parquet and Arrow need
PyArrow: pip install 'kstore[arrow]'; JSON lines are read faster if orjson is installed. Where kstore is not linked with
libzstd (kstore --version), a zstd file is first unpacked into a temporary file.

A second run appends everything again, except with --txn and --once. These stage the rows next to the store, in
DIR.kstore-staging, and commit them together: all are there or none, also after a crash. --once commits file after file.
It knows a file by its name, size and SHA-256 for each topic, whatever the options are; the topic
__kstore_ingested_files lists the files.

A rejected row is a JSON line with file, line or row, reason, and text or base64: the line, or the row as JSON. A file
that is damaged or lacks a column still ends the command.

examples:
  kstore ingest flights.csv.gz --to data --topic flights --key-column carrier --timestamp-column time_hour
  kstore ingest *.parquet --to data --topic events --partitions 8 --key-column user --value-column payload
  zcat log.jsonl.gz | kstore ingest - --format jsonl --to data --topic log --compression zstd
  kstore ingest in/*.parquet --to data --topic events --once --rejects rejects.jsonl
  kstore ingest day.csv --to data --topic events --txn daily-load:20261121
"""


def run(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    mounted_paths.refuse_urls(parsed.to)
    mapping = _mapping(parsed)
    with contextlib.ExitStack() as opened:
        rejects = None
        if parsed.rejects is not None:
            rejects = opened.enter_context(RejectsFile(parsed.rejects, parsed.files))
        _check(parsed, mapping)
        total = sum(os.stat(path).st_size for path in parsed.files if path != "-")
        with Progress("ingest", -1 if "-" in parsed.files else total) as bar:
            load, code = _ingest(parsed, _Reading(parsed, mapping, bar.add, rejects))
        if code:
            return code
        load.tell(parsed, rejects)
        return _REJECTED if rejects is not None and rejects.count else 0


def _ingest(parsed: argparse.Namespace, reading: _Reading) -> tuple[_Load, int]:
    """Return what was loaded, and the exit code."""
    pieces: Iterator[_Piece] = iter(())
    is_load = parsed.once or parsed.txn is not None
    if not is_load:
        if parsed.check:
            reading.check(parsed.files)
        pieces = reading.pieces(parsed.files)
        first = next(pieces, None)  # before the store is opened, so that an error leaves no store
        pieces = pieces if first is None else itertools.chain([first], pieces)
    with _opened(parsed) as store:
        _check_partitions(store, parsed)
        if is_load:
            load = _Load(store, parsed.topic)
            return load, load.run(lambda: (_once if parsed.once else _as_transaction)(load, reading, parsed))
        if parsed.topic not in store.topics:
            store.create_topic(parsed.topic, parsed.partitions or 1)
        load = _Load(store, parsed.topic)
        return load, load.run(lambda: _append(load, reading, pieces, parsed))


def _check(parsed: argparse.Namespace, mapping: row_source.Mapping) -> None:
    """Raise the errors about whole files, before anything is appended. With --once each file is a load of its own."""
    if parsed.topic == ingested_files.TOPIC:
        raise ConfigError(f"topic {parsed.topic} is the list of the files that --once has loaded")
    if parsed.files.count("-") > 1:
        raise ConfigError("standard input can be read once")
    if parsed.check and parsed.rejects is not None:
        raise ConfigError("--check appends nothing if a row is wrong, --rejects appends the others: give one of them")
    if parsed.check and "-" in parsed.files:
        raise ConfigError("--check reads everything twice, which standard input cannot be")
    for path in parsed.files:
        if parsed.once and path == "-":
            raise ConfigError("--once knows files by their names, and standard input has none; --txn takes it")
        if parsed.once and not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(f"{path} is no regular file, and --once reads files twice")
        if path != "-" and not parsed.once and (len(parsed.files) > 1 or parsed.txn is not None):
            open_source(path, mapping, parsed.format, lambda _: None).close()


@contextlib.contextmanager
def _opened(parsed: argparse.Namespace) -> Iterator[Store]:
    """Open the store, and close it; an error of the block comes before one of the close."""
    store = Store.open(parsed.to, config=command_options.given(parsed), background=False)
    try:
        yield store
    except BaseException:
        with contextlib.suppress(KStoreError):
            store.close()
        raise
    store.close()


class _Piece(NamedTuple):
    source: row_source.Source
    rows: row_source.Rows


class _Reading:
    """Reads files in pieces, and sorts out rows if there is a file for them."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        mapping: row_source.Mapping,
        progress: row_source.Progress,
        rejects: RejectsFile | None,
    ) -> None:
        self._parsed, self._mapping, self.progress, self._rejects = parsed, mapping, progress, rejects

    def check(self, paths: Iterable[str]) -> None:
        """Read everything once, to raise the error of a bad row before anything is appended."""
        for _ in self._pieces(paths, lambda _: None):
            pass

    def pieces(self, paths: Iterable[str]) -> Iterator[_Piece]:
        return self._pieces(paths, self.progress)

    def _pieces(self, paths: Iterable[str], progress: row_source.Progress) -> Iterator[_Piece]:
        for path in paths:
            with open_source(path, self._mapping, self._parsed.format, progress) as source:
                for rows in source.pieces():
                    if rows.size or rows.refused:
                        yield _Piece(source, rows)
                cautions.issue(source.cautions(), UserWarning)

    def sifted(self, pieces: Iterator[_Piece], store: Store) -> Iterator[_Piece]:
        """Yield the pieces without the rows that the topic refuses; write these to the file."""
        if self._rejects is None:
            yield from pieces
            return
        topic = self._parsed.topic
        config = store.topic_config(topic) if topic in store.topics else store.config
        sieve = Sieve(self._rejects, config, self._parsed.compression, self._parsed.batch_bytes)
        for piece in pieces:
            rows = sieve.sift(piece.source, piece.rows, time.time_ns() // 1_000_000)
            if rows.size:
                yield _Piece(piece.source, rows)

    def sync(self) -> None:
        """Make the rows that were sorted out durable in their file."""
        if self._rejects is not None:
            self._rejects.sync()


class _Load:
    """Tracks what one run has appended, by the log end offsets before the run and now."""

    def __init__(self, store: Store, topic: str) -> None:
        self.store, self.topic = store, topic
        self.notes: list[str] = []
        self.skipped: list[str] = []
        self._spans: list[tuple[int, int]] = []
        self._before = self._ends()

    def _ends(self) -> dict[int, int]:
        if self.topic not in self.store.topics:
            return {}
        return {n: self.store.log(self.topic, n).log_end_offset for n in self.store.partitions(self.topic)}

    @property
    def stored(self) -> dict[int, tuple[int, int]]:
        """The appended offsets `[first, next)` of each partition that got records."""
        before = self._before
        return {n: (before.get(n, 0), end) for n, end in self._ends().items() if end > before.get(n, 0)}

    def run(self, work: Callable[[], None]) -> int:
        """Do the work and return the exit code. An error says which records were stored before it."""
        try:
            work()
        except (KStoreError, OSError) as error:
            self.close()
            raise KStoreError(f"{error}; {self.in_words()}") from error
        except KeyboardInterrupt:
            self.close()
            print(f"kstore ingest: interrupted; {self.in_words()}", file=sys.stderr)
            return 130
        self.close()
        return 0

    def add(self, spans: Iterable[tuple[int, int] | None]) -> None:
        """Note the least and the greatest timestamp of rows that were appended with their own timestamps."""
        self._spans += [span for span in spans if span is not None]

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

    def tell(self, parsed: argparse.Namespace, rejects: RejectsFile | None) -> None:
        if parsed.json:
            parts = [
                {"partition": number, "first_offset": first, "last_offset": end - 1}
                for number, (first, end) in self._stored.items()
            ]
            records = sum(end - first for first, end in self._stored.values())
            told: dict[str, object] = {"topic": self.topic, "records": records, "partitions": parts}
            if self.span is not None:
                told["first_timestamp"], told["last_timestamp"] = self.span
            if parsed.once or parsed.txn is not None:
                told["skipped"] = self.skipped
            if rejects is not None:
                told["rejected"] = rejects.count
            output.json_line(told)
        else:
            for note in self.notes:
                print(note)
            for number, (first, end) in self._stored.items():
                print(f"{self.topic}-{number}: offsets {first} to {end - 1}")
            if self.span is not None:
                print(f"timestamps {times.show(self.span[0])} to {times.show(self.span[1])}")
        if rejects is not None and rejects.count:
            were = "1 row was" if rejects.count == 1 else f"{rejects.count} rows were"
            print(f"kstore ingest: {were} rejected: {rejects.path}", file=sys.stderr)


def _append(load: _Load, reading: _Reading, pieces: Iterator[_Piece], parsed: argparse.Namespace) -> None:
    for piece in reading.sifted(pieces, load.store):
        with _named_errors(piece):
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
        if all(info.log_append_time < 0 for info in appended.values()):
            load.add([piece.rows.span])
    reading.sync()
    load.store.flush()


def _as_transaction(load: _Load, reading: _Reading, parsed: argparse.Namespace) -> None:
    """Load all files at once, unless this or a later version of the transaction's name was committed."""
    txn: Transaction = parsed.txn
    if loads_of(load.store).has(*txn):
        load.skipped += parsed.files
        load.notes.append(f"nothing is appended: {txn[0]}:{txn[1]}, or a later version, was loaded before")
        return
    if parsed.check:
        reading.check(parsed.files)
    staged_load.remove_leftovers(load.store)
    number = zlib.crc32(f"{txn[0]}:{txn[1]}".encode())
    with StagedLoad(load.store, number, parsed.compression, parsed.batch_bytes) as staged:
        _, spans = _stage(staged, load, reading, parsed.files, parsed)
        staged.commit(txn)
    load.add(spans)


def _once(load: _Load, reading: _Reading, parsed: argparse.Namespace) -> None:
    """Load each file that was not loaded before."""
    partitions = partition_count(load.store, load.topic) or parsed.partitions or 1
    topic_id = load.store.create_topic(load.topic, partitions, exist_ok=True)
    staged_load.remove_leftovers(load.store)
    known = IngestedFiles(load.store, topic_id)
    wanted = []
    for path in parsed.files:
        state = _state(path)
        file = InputFile.of(path)
        if file in known:
            load.skipped.append(path)
            load.notes.append(f"{path}: skipped, as it was loaded before")
            reading.progress(file.size)
            continue
        if known.has_name(file):
            load.notes.append(f"{path}: loaded as a new file, as there is one of this name with other contents")
        known.add(file)
        wanted.append((path, state, file))
    if parsed.check:
        reading.check([path for path, _, _ in wanted])
    for path, state, file in wanted:
        number = int(file.sha256[:7], 16)
        with StagedLoad(load.store, number, parsed.compression, parsed.batch_bytes) as staged:
            count, spans = _stage(staged, load, reading, [path], parsed)
            if _state(path) != state:
                raise ConfigError(f"{path} has changed while it was read, and is not loaded")
            files = staged.topic(ingested_files.TOPIC, 1, ingested_files.SETTINGS)
            staged.add_record(files, *file.record(load.topic, topic_id, count))
            staged.commit()
        load.add(spans)


def _stage(
    staged: StagedLoad, load: _Load, reading: _Reading, paths: list[str], parsed: argparse.Namespace
) -> tuple[int, list[tuple[int, int] | None]]:
    """Stage the rows of files; return how many there are, and the ranges of their timestamps."""
    topic = staged.topic(load.topic, parsed.partitions or 1)
    has_own_times = topic.log_config().message_timestamp_type == "CreateTime"
    count, spans = 0, []
    for piece in reading.sifted(reading.pieces(paths), load.store):
        with _named_errors(piece):
            staged.add(topic, piece.rows)
        count += piece.rows.size
        if has_own_times:
            spans.append(piece.rows.span)
    reading.sync()
    return count, spans


def _state(path: str) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def _named_errors(piece: _Piece) -> Iterator[None]:
    """Add the file and the first row of a piece to errors about it."""
    try:
        yield
    except StorageError:
        raise
    except KStoreError as error:
        raise KStoreError(f"{piece.source.name}, {piece.source.word}s from {piece.rows.first} on: {error}") from error


def _check_partitions(store: Store, parsed: argparse.Namespace) -> None:
    """Refuse an existing topic with another number of partitions."""
    topic, partitions = parsed.topic, parsed.partitions
    if topic in store.topics and partitions is not None and len(store.partitions(topic)) != partitions:
        count = len(store.partitions(topic))
        raise ConfigError(f"topic {topic} has {count} partitions, not {partitions}; leave --partitions out")


def _transaction(given: str) -> Transaction:
    """Parse an argument: the name and the version of a transaction."""
    name, _, version = given.rpartition(":")
    if not name or not (version.isascii() and version.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"it is {given[:60]!r}; NAME:VERSION with a whole number is wanted, like daily-load:20261121"
        )
    try:
        check_transaction((name, int(version)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is {given[:60]!r}: {error}") from None
    return name, int(version)


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
        sorts_out=parsed.rejects is not None,
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
        help="threads that compress and write; with --txn and --once there is one",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything first, and append nothing if a row is wrong. Only the append can see what the topic's "
        "settings refuse: a record that is too large, or whose time is too far from now",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--txn",
        type=_transaction,
        metavar="NAME:VERSION",
        help="append all files together or nothing, and nothing if this or a later version of NAME was loaded before, "
        "here or with kstore.spark",
    )
    kind.add_argument(
        "--once",
        action="store_true",
        help="append the rows of each file together, and skip files that were loaded into the topic before. A file "
        "that has changed is loaded as a new one, with all its rows",
    )
    parser.add_argument(
        "--rejects",
        metavar="FILE",
        help="add rows that are refused to this file, as JSON lines with the reasons, and append the others; the exit "
        "code is 3 if there are such rows",
    )
    parser.add_argument("--json", action="store_true", help="print what was stored as JSON")
    command_options.add_config(parser)
    return parser
