"""`kstore export`: writes the records of a partition or a topic to Parquet, Arrow, CSV or JSON lines files."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kstore._core import check_headers
from kstore.base import optional
from kstore.base.threads import Workers
from kstore.cli import command_options, command_paths, command_times, decoded_values, output
from kstore.cli.commands import mounted_paths, object_store_options, reading_cost
from kstore.cli.progress import Progress
from kstore.cli.sinks import whole_outputs
from kstore.cli.sinks.arrow_batches import Batches
from kstore.cli.sinks.group_positions import GroupPositions
from kstore.cli.sinks.partitioned_files import BY, PartitionedFiles
from kstore.cli.sinks.piece import CONSTANT, Piece
from kstore.cli.sinks.table_files import CODECS, SUFFIXES, Writer, open_writer
from kstore.columns._columns import COLUMN_NAMES
from kstore.columns.value_decoding import VALUE, VALUE_ERROR, Decoder, Decoding
from kstore.decoders.json_values import JsonValues, inferred_schema
from kstore.disk import fs
from kstore.errors import ConfigError, ReadOnlyError
from kstore.log.log import Log
from kstore.store.catalog import Entry

__all__ = ["run"]

_ABOUT = """\
Write the records of a partition (DIR/TOPIC-P), or of a topic (DIR/TOPIC) partition by partition, to a Parquet, Arrow,
CSV or JSON lines file, or to a directory of Parquet files. The file gets its name only when it is complete. A store or
a broker may be writing to the directory.

--from and --until choose the records whose timestamps are in the range, wherever they are; so the end of the log is
always read. With --by-position they are two places in the log instead, as in kstore cat --from: what lies between them
is exported, also late records.

With --group each run goes on where the last one of the group has ended; the first run begins at the log start. The
positions move right after the file gets its name. If a crash comes between the two, the next file has the same records
again: at least once. An end is --until-offset, or --until with --by-position. kstore describe shows the positions and
the lag. A topic that was deleted and created again is exported from its start."""
_EXAMPLES = """\
In Parquet and Arrow files keys, values and the values of headers are binary (--text makes keys and values text), and
timestamps are milliseconds in UTC. In CSV files keys and values are text, timestamps are ISO 8601, null is an empty
cell and empty text is "". JSON lines are those of `kstore cat --json`. To append an exported file again, give
`kstore ingest` these options: --key-column key --value-column value --timestamp-column timestamp, and except for CSV
--headers-column headers. Parquet, Arrow and CSV need PyArrow: pip install 'kstore[arrow]'.

examples:
  kstore export data/events-0 --to events.parquet
  kstore export data/events --to today.jsonl.gz --from -1d --columns key,value
  kstore export data/events --to events.arrow --offset 1000 --until-offset 2000 --compression zstd
  kstore export data/events --to new.csv --group nightly
  kstore export data/events --to days --partition-by date
  kstore export data/orders --to orders.parquet --decode avro:data
"""

_DEFAULT = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_CHUNK_BYTES = 32 << 20  # the records in memory at a time, and in a row group of a Parquet file


class _Range(NamedTuple):
    """The records to export, in each partition."""

    offset: int | None
    end_offset: int | None
    since: int | None
    until: int | None
    by_position: bool
    isolation: Literal["read_uncommitted", "read_committed"]
    group: GroupPositions | None
    ends: dict[tuple[str, int], int]  # of partitions whose values have shown a schema


def run(arguments: list[str]) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    _check(parser, parsed)
    mounted_paths.refuse_urls(parsed.to)
    with mounted_paths.mounted("export", [parsed.path], parsed) as (parsed.path,):
        return _export(parsed)


def _export(parsed: argparse.Namespace) -> int:
    place = command_paths.find_topic(parsed.path)
    if parsed.group is not None and fs.is_mounted(place.root):
        raise ReadOnlyError(f"--group keeps its positions in the directory, and {place.root} is only read")
    kind, codec = _format(parsed)
    chosen = _Range(
        parsed.offset,
        parsed.to_offset,
        None if parsed.since is None else command_times.parse(parsed.since),
        None if parsed.until is None else command_times.parse(parsed.until),
        parsed.by_position,
        parsed.isolation,
        None if parsed.group is None else GroupPositions(place.root, parsed.group),
        {},
    )
    if parsed.explain:
        reading_cost.show(
            _costs(place, chosen), as_json=parsed.json, times=2 if parsed.decode == decoded_values.JSON else 1
        )
        return 0
    if parsed.partition_by is None and os.path.lexists(parsed.to) and not parsed.force:
        raise ConfigError(f"{parsed.to} is there: --force writes over it")
    decoding = None if parsed.decode is None else _decoding(place, parsed, kind, chosen)
    names = _columns(parsed, kind, decoding)
    by = _partition_columns(parsed, kind, names)
    needed = {name for name in names if name in COLUMN_NAMES}
    needed |= set() if decoding is None else {"value", "offset"}
    needed |= {"timestamp"} if "date" in by else set()
    needed |= {"offset"} if parsed.text or kind == "csv" else set()  # an error for a text names it
    pieces = _pieces(place, chosen, needed)
    misfits = _Misfits()
    if decoding is not None:
        pieces = _decoded(pieces, decoding, misfits)
    naming = contextlib.nullcontext() if chosen.group is None else chosen.group.moving()
    with Progress("export", unit="records") as bar:
        if by:
            batches = Batches([name for name in names if name not in by], "leave --text out" if parsed.text else None)
            with whole_outputs.new_directory(parsed.to, naming) as directory:
                files = PartitionedFiles(directory, codec, by, batches)
                rows = _write(files, pieces, bar)
            size = files.size_bytes
        else:
            with whole_outputs.new_file(parsed.to, naming, force=parsed.force) as file:
                rows = _write(open_writer(file, kind, codec, names, as_text=parsed.text), pieces, bar)
            size = fs.stat(parsed.to).st_size
    if parsed.json:
        told = {} if decoding is None else {"value_errors": misfits.count}
        output.json_line({"file": parsed.to, "records": rows, "bytes": size, **told})
    else:
        print(f"{parsed.to}: {rows} records, {size} bytes")
    if misfits.count:
        print(f"kstore export: {misfits.count} values do not fit; the column value_error says why", file=sys.stderr)
    return 0


def _write(writer: Writer, pieces: Iterator[Piece], bar: Progress) -> int:
    """Write the pieces and return the number of records."""
    rows = 0
    try:
        for piece in _ahead(pieces):
            writer.write(piece)
            rows += piece.size
            bar.reach(rows)
    finally:
        writer.close()
    return rows


def _pieces(place: command_paths.Place, chosen: _Range, needed: set[str]) -> Iterator[Piece]:
    filters = not chosen.by_position and (chosen.since is not None or chosen.until is not None)
    wanted = [name for name in COLUMN_NAMES if name in needed or (filters and name == "timestamp")] or ["offset"]
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start, end = _bounds(place, entry, log, chosen)
            if start is None or end is None or start < end:
                chunks = log.iter_columns(
                    start,
                    start_timestamp=chosen.since,  # all records before the first one that is so late are older
                    end_offset=end,
                    columns=wanted,
                    max_bytes=_CHUNK_BYTES,
                    isolation=chosen.isolation,
                )
                for columns in chunks:
                    if "headers" in wanted and len(columns):
                        most = int(np.diff(columns.headers.offsets).max())
                        what = f"{entry.topic}-{entry.partition}: a record below offset"
                        check_headers(most, what, columns.next_offset)
                    kept = _in_range(columns.timestamps, chosen) if filters else None
                    yield Piece(entry.topic, entry.partition, columns, kept)
            # An empty piece, so that a file without records has the columns too.
            yield Piece(entry.topic, entry.partition, log.read_columns(log.log_end_offset, columns=wanted))


def _costs(place: command_paths.Place, chosen: _Range) -> Iterator[reading_cost.PartitionCost]:
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start, end = _bounds(place, entry, log, chosen)
            yield reading_cost.of(entry, log, start, start_timestamp=chosen.since, end_offset=end)


def _decoding(place: command_paths.Place, parsed: argparse.Namespace, kind: str, chosen: _Range) -> Decoding | None:
    """Return how values are decoded: to a struct, or to columns in a CSV file and if `--columns` names their fields.

    JSON without a schema gets one of all values that are exported. None if there is no value.
    """
    names = parsed.columns.split(",") if parsed.columns else []
    known = (*CONSTANT, *COLUMN_NAMES, VALUE_ERROR)
    as_columns = kind == "csv" or any(name not in known for name in names)
    values = _values(place, chosen)
    first = next(values, None)
    if first is None:
        return None
    if parsed.decode == decoded_values.JSON:
        decoder: Decoder = JsonValues(inferred_schema(itertools.chain([first], values)), columns=as_columns)
    else:
        decoder = decoded_values.decoder(parsed.decode, as_columns=as_columns)
    return decoder._bind(lambda: first)


def _values(place: command_paths.Place, chosen: _Range) -> Iterator[Any]:
    """Yield the values to export, but no array of nulls; note where the partitions ended."""
    pa = optional.pyarrow("--decode")
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start, end = _bounds(place, entry, log, chosen)
            chosen.ends[entry.key] = end = log.log_end_offset if end is None else min(end, log.log_end_offset)
            if start is None or start < end:
                for columns in log.iter_columns(
                    start,
                    start_timestamp=chosen.since,
                    end_offset=end,
                    columns=("value",),
                    isolation=chosen.isolation,
                ):
                    values = pa.record_batch(columns).column("value")
                    if values.null_count < len(values):
                        yield values


class _Misfits:
    """Counts values that do not fit."""

    count = 0


def _decoded(pieces: Iterator[Piece], decoding: Decoding, misfits: _Misfits) -> Iterator[Piece]:
    for piece in pieces:
        rows = decoding.decode(piece.rows, f"{piece.topic}-{piece.partition}")
        wrong = rows.column(VALUE_ERROR).is_valid().to_numpy(zero_copy_only=False)
        misfits.count += int(np.count_nonzero(wrong if piece.kept is None else wrong & piece.kept))
        yield piece._replace(rows=rows)


def _bounds(place: command_paths.Place, entry: Entry, log: Log, chosen: _Range) -> tuple[int | None, int | None]:
    """Return the offsets to read from and up to; None leaves them to the log."""
    ends = [] if chosen.end_offset is None else [chosen.end_offset]
    ends += [chosen.ends[entry.key]] if entry.key in chosen.ends else []
    if chosen.by_position and chosen.until is not None:
        first_after = log.offset_for_timestamp(chosen.until)
        ends += [] if first_after is None else [first_after.offset]
    if chosen.group is None:
        return command_paths.first_offset(place, log, chosen.offset), min(ends, default=None)
    start = chosen.group.start(entry, log)
    is_committed = chosen.isolation == "read_committed"
    ends.append(log.last_stable_offset if is_committed else log.log_end_offset)
    end = max(start, min(ends))
    chosen.group.reach(entry, end)
    return start, end


def _in_range(timestamps: NDArray[np.int64], chosen: _Range) -> NDArray[np.bool_] | None:
    """Return which records are in the range of times; None if all are."""
    kept = np.ones(len(timestamps), np.bool_)
    if chosen.since is not None:
        kept &= timestamps >= chosen.since
    if chosen.until is not None:
        kept &= timestamps < chosen.until
    return None if kept.all() else kept


def _ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the same pieces. Another thread reads the next piece while the caller writes the current piece."""
    with Workers(1, "kstore-export") as pool:
        coming = pool.submit(partial(next, pieces, None))
        while (piece := coming.wait()) is not None:
            coming = pool.submit(partial(next, pieces, None))
            yield piece


def _check(parser: command_options.Parser, parsed: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if parsed.by_position and parsed.since is None and parsed.until is None:
        parser.error("argument --by-position: --from or --until is needed with it")
    if parsed.group is None:
        return
    for name, value in (("-o/--offset", parsed.offset), ("--from", parsed.since)):
        if value is not None:
            parser.error(f"argument {name}: not allowed with argument --group, which goes on where it has ended")
    if parsed.until is not None and not parsed.by_position:
        parser.error(
            "argument --until: only with --by-position if there is a --group: what a filter leaves out of the middle "
            "would never be exported"
        )


def _columns(parsed: argparse.Namespace, kind: str, decoding: Decoding | None) -> tuple[str, ...]:
    decoded = () if decoding is None else decoding.names
    known = tuple(name for name in (*CONSTANT, *COLUMN_NAMES) if kind != "csv" or name != "headers")
    known += tuple(name for name in decoded if name not in known)
    if not parsed.columns:
        default = (name for name in _DEFAULT if name in known)
        return tuple(each for name in default for each in (decoded if decoded and name == VALUE else (name,)))
    names = tuple(parsed.columns.split(","))
    for name in names:
        if name not in known or names.count(name) > 1:
            where = " in a CSV file" if kind == "csv" else ""
            raise ConfigError(f"--columns has {name!r}; {', '.join(known)} are known{where}, each once")
    return names


def _partition_columns(parsed: argparse.Namespace, kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of the directories' names; none for a single file."""
    if parsed.partition_by is None:
        return ()
    by = tuple(parsed.partition_by.split(","))
    for name in by:
        if name not in BY or by.count(name) > 1:
            raise ConfigError(f"--partition-by has {name!r}; {', '.join(BY)} are known, each once")
    if kind != "parquet":
        raise ConfigError(f"--partition-by makes a directory of Parquet files, not of {kind} files")
    if parsed.force:
        raise ConfigError("--force replaces a file, and --partition-by makes a directory: remove the old one first")
    if not set(names) - set(by):
        raise ConfigError(f"--columns has {', '.join(names)}, and --partition-by leaves none of them to the files")
    return by


def _format(parsed: argparse.Namespace) -> tuple[str, str]:
    """Return the format and the codec of the file, from the options or the file's name."""
    parts = os.path.basename(parsed.to).lower().split(".")
    codec = parsed.compression
    if len(parts) > 2 and parts[-1] == "gz":
        parts.pop()
        codec = codec or "gzip"
    kind = parsed.format or (SUFFIXES.get(parts[-1]) if len(parts) > 1 else None)
    if kind is None and parsed.partition_by is not None:
        kind = "parquet"
    if kind is None:
        raise ConfigError(f"{parsed.to}: the name does not tell the format; --format does: {', '.join(CODECS)}")
    codec = codec or CODECS[kind][0]
    if codec not in CODECS[kind]:
        raise ConfigError(f"there is no {codec} in {kind} files: there is {', '.join(CODECS[kind])}")
    return kind, codec


def _parser() -> command_options.Parser:
    parser = command_options.Parser("export", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC; or a URL")
    parser.add_argument(
        "--to", metavar="FILE", required=True, help="the file: .parquet, .arrow, .arrows, .csv or .jsonl"
    )
    parser.add_argument("--format", choices=CODECS, help="of the file (default: what its name says)")
    parser.add_argument("--compression", metavar="CODEC", help="default: snappy for Parquet, gzip for .gz, else none")
    parser.add_argument("--columns", metavar="A,B,...", help=f"default: {','.join(_DEFAULT)}; CSV has no headers")
    parser.add_argument(
        "--partition-by",
        metavar="A,B,...",
        help="make a directory of Parquet files, such as date=2013-06-01/part-0.parquet, that appears as a whole: by "
        f"{', '.join(BY)} (the day of the timestamp in UTC); these columns are in the names alone",
    )
    parser.add_argument("--text", action="store_true", help="keys and values as text in Parquet and Arrow files")
    parser.add_argument(
        "--decode",
        metavar="HOW",
        help=f"{decoded_values.HELP}. The value becomes a struct, or columns in CSV and if --columns names its fields; "
        "what does not fit is null, and value_error says why. Without a FILE, json reads all values first, to find "
        "their fields and types; times stay text",
    )
    command_options.add_range(parser, since="only records at or after this time", until="only records before this time")
    parser.add_argument(
        "--by-position",
        action="store_true",
        help="start at the first record at or after --from, and end before the first one at or after --until",
    )
    parser.add_argument(
        "--group", metavar="NAME", help="go on where the last export of this group has ended, and remember its end"
    )
    command_options.add_isolation(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    reading_cost.add_option(parser)
    object_store_options.add_reading(parser)
    return parser
