"""`kstore cat` and `kstore tail`: print records as lines of text, by a format, or as JSON."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy

from kstore._core import Record
from kstore.cli import command_options, command_paths, command_times, decoded_values, record_formats
from kstore.cli.commands import mounted_paths, object_store_options, reading_cost
from kstore.cli.progress import Progress
from kstore.disk import fs
from kstore.errors import ConfigError
from kstore.log.log import Log
from kstore.log.reading.read_options import Isolation
from kstore.store.catalog import Entry
from kstore.store.store import Store

__all__ = ["parser", "run", "show"]

_ABOUT = """\
Print the records of a partition, or of a topic partition by partition, a line each: the value, as it is."""
_EXAMPLES = """examples:
  kstore cat data/events-0
  kstore cat data/events-0 --offset 1000 --max 10 --json
  kstore cat data/events --from 2013-06-01T12:00 --until 2013-06-02 --format '%p %o %T %k %s\\n'
  kstore cat data/events-0 --last 5
  kstore cat data/accounts --latest --key-separator =
  kstore cat data/accounts --latest --as-of 2013-06-01T12:00 --json
  kstore cat data/orders --decode avro:data --json
  kstore cat data/orders --key customer-7 --grep '"tea": *"assam"' --max 10

--key and --grep choose among the records that the other options select: --last counts before them, --max after
them."""


def run(arguments: list[str]) -> int:
    cat = parser("cat", _ABOUT, _EXAMPLES)
    cat.add_argument(
        "--latest", action="store_true", help="print only the newest committed record of each key; leave out keys "
        "whose newest record is a tombstone, and with --until-offset ignore records from that offset on",
    )  # fmt: skip
    cat.add_argument(
        "--as-of",
        metavar="TIME",
        help="with --latest: the newest records as of a time; ignores all records from the first later one on",
    )
    cat.add_argument(
        "--decode", metavar="HOW", help=f"{decoded_values.HELP}. A value that does not fit ends the command; with "
        "--json it is null, and value_error says why",
    )  # fmt: skip
    reading_cost.add_option(cat)
    asked = cat.parse_args(arguments)
    if asked.latest:
        _check_latest(asked)
    elif asked.as_of is not None:
        raise command_options.UsageError("--as-of goes with --latest")
    return show(asked, follow=False)


def parser(command: str, about: str, examples: str, last: int | None = None) -> command_options.Parser:
    """Return a parser of the arguments that `cat` and `tail` have in common."""
    made = command_options.Parser(command, about, examples)
    made.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC; or a URL")
    start = command_options.add_range(made, also_until=["--to"])
    start.add_argument(
        "-n", "--last", type=command_options.whole(0), metavar="N", default=last,
        help="the last N of each partition" + (f" (default: {last})" if last is not None else ""),
    )  # fmt: skip
    command_options.add_isolation(made)
    made.add_argument("--key", metavar="KEY", help="only records with exactly this key")
    made.add_argument(
        "--grep", metavar="REGEX", help="only records whose value has a match of this regular expression, on bytes"
    )
    made.add_argument(
        "--max", "--max-messages", type=command_options.whole(0), metavar="N", help="print at most N records"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument("--format", metavar="FORMAT", help=f"fields as in kcat: {record_formats.FIELDS}")
    how.add_argument("-J", "--json", action="store_true", help="print a JSON object for each record")
    how.add_argument("-K", "--key-separator", metavar="TEXT", help="print keys too, each followed by this text")
    object_store_options.add_reading(made)
    return made


def show(asked: argparse.Namespace, *, follow: bool, timeout: float | None = None) -> int:
    """Print the selected records; return the exit code."""
    with mounted_paths.mounted("tail" if follow else "cat", [asked.path], asked) as (asked.path,):
        if follow and fs.is_mounted(asked.path):
            raise command_options.UsageError(
                f"--follow waits for more records, and what is read of {asked.path} is one state"
            )
        return _show(command_paths.find_topic(asked.path), asked, follow=follow, timeout=timeout)


def _show(place: command_paths.Place, asked: argparse.Namespace, *, follow: bool, timeout: float | None) -> int:
    if getattr(asked, "explain", False):
        reading_cost.show(_costs(place, asked), as_json=asked.json)
        return 0
    if follow:
        wanted = _follow(place, asked, timeout)
    else:
        wanted = _latest(place, asked) if getattr(asked, "latest", False) else _read(place, asked)
    wanted = _matching(wanted, asked)
    if asked.max is not None:
        wanted = itertools.islice(wanted, asked.max)
    with Progress("tail" if follow else "cat", unit="records", aside=True) as bar:
        try:
            if getattr(asked, "decode", None) is not None:
                printer = decoded_values.json_line if asked.json else _printer_of_decoded(asked)
                decoded = decoded_values.decoded(wanted, asked.decode, raises=not asked.json)
                record_formats.write(decoded, printer, sys.stdout.buffer, at_once=False, progress=bar.add)
            else:
                record_formats.write(wanted, _printer(asked), sys.stdout.buffer, at_once=follow, progress=bar.add)
        except KeyboardInterrupt:
            if not follow:
                raise
            return 130  # Ctrl-C is the usual way to end `tail -f`
    return 0


def _matching(
    records: Iterator[tuple[str, int, Record]], asked: argparse.Namespace
) -> Iterator[tuple[str, int, Record]]:
    """Return the records that `--key` and `--grep` select; raises `UsageError` for a bad regular expression."""
    if asked.key is not None:
        key = os.fsencode(asked.key)
        records = (found for found in records if found[2].key == key)
    if asked.grep is not None:
        try:
            search = re.compile(os.fsencode(asked.grep)).search
        except (re.error, OverflowError, RecursionError) as error:
            raise command_options.UsageError(f"--grep {asked.grep[:60]!r} is no regular expression: {error}") from None
        records = (found for found in records if found[2].value is not None and search(found[2].value))
    return records


def _printer(asked: argparse.Namespace) -> record_formats.Printer:
    if asked.json:
        return record_formats.json_line
    return (
        record_formats.formatter(asked.format)
        if asked.format is not None
        else record_formats.plain(asked.key_separator)
    )


def _printer_of_decoded(asked: argparse.Namespace) -> Callable[[str, int, decoded_values.DecodedRecord], bytes]:
    printer = _printer(asked)
    return lambda topic, partition, decoded: printer(topic, partition, decoded_values.with_value(decoded))


def _read(place: command_paths.Place, asked: argparse.Namespace) -> Iterator[tuple[str, int, Record]]:
    until = None if asked.until is None else command_times.parse(asked.until)
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start = _start(log, asked)
            if asked.offset is not None:
                start = {"offset": command_paths.first_offset(place, log, asked.offset)}
            for record in log.read(**start, end_offset=asked.to_offset, isolation=asked.isolation):
                if until is None or record.timestamp < until:
                    yield entry.topic, entry.partition, record


def _costs(place: command_paths.Place, asked: argparse.Namespace) -> Iterator[reading_cost.PartitionCost]:
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start = _start(log, asked)
            if asked.offset is not None:
                start = {"offset": command_paths.first_offset(place, log, asked.offset)}
            yield reading_cost.of(entry, log, **start, end_offset=asked.to_offset)


def _check_latest(asked: argparse.Namespace) -> None:
    """Refuse options that have no meaning with `--latest`."""
    if asked.explain:
        raise command_options.UsageError("--explain does not go with --latest")
    for name, value in (("--offset", asked.offset), ("--from", asked.since), ("--last", asked.last)):
        if value is not None:
            raise command_options.UsageError(f"{name} does not go with --latest, which reads from the log start")
    if asked.until is not None:
        raise command_options.UsageError(
            "--until does not go with --latest; --as-of TIME gives the newest records as of a time"
        )
    if asked.as_of is not None and asked.to_offset is not None:
        raise command_options.UsageError("--as-of and --until-offset exclude each other")


def _latest(place: command_paths.Place, asked: argparse.Namespace) -> Iterator[tuple[str, int, Record]]:
    time = None if asked.as_of is None else _moment(asked.as_of)
    if place.partition is not None:
        entry: Entry = place.entries[0]
        with Log.open(entry.path, "r") as log:
            for record in log.latest(as_of=asked.to_offset if time is None else time):
                yield entry.topic, entry.partition, record
        return
    assert place.topic is not None
    with Store.open(place.root, "r") as store:
        ends = None
        if asked.to_offset is not None:
            logs = {number: store.log(place.topic, number) for number in store.partitions(place.topic)}
            ends = {
                number: min(max(asked.to_offset, log.log_start_offset), log.log_end_offset)
                for number, log in logs.items()
            }
        for row in store.table(place.topic, as_of=ends if time is None else time):
            yield row.topic, row.partition, Record(*tuple(row)[2:])


def _moment(text: str) -> datetime:
    milliseconds = command_times.parse(text)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise ConfigError(f"--as-of {text[:60]}: the year is beyond {datetime.max.year}") from None


def _start(log: Log, asked: argparse.Namespace) -> dict[str, Any]:
    if asked.since is not None:
        return {"start_timestamp": command_times.parse(asked.since)}
    if asked.offset is not None:
        return {"offset": asked.offset}
    if asked.last is not None:
        return {"offset": _nth_last(log, asked.last, asked.isolation)}
    return {}


def _nth_last(log: Log, count: int, isolation: Isolation) -> int:
    """Return the offset of the `count`-th last record. Offsets may have gaps, so it searches back in growing steps."""
    start, end = log.log_start_offset, log.log_end_offset
    back = count
    while count:
        offset = max(end - back, start)
        chunks = log.iter_columns(offset, end_offset=end, columns=("offset",), isolation=isolation)
        offsets = numpy.concatenate([numpy.empty(0, "i8"), *(chunk.offsets for chunk in chunks)])
        if len(offsets) >= count:
            return int(offsets[-count])
        if offset == start:
            return start
        back *= 4
    return end


def _follow(
    place: command_paths.Place, asked: argparse.Namespace, timeout: float | None
) -> Iterator[tuple[str, int, Record]]:
    """Yield records and wait for more. If retention has deleted the next ones, continue at the log start."""
    until = None if asked.until is None else command_times.parse(asked.until)
    how: dict[str, Any] = {"follow": True, "timeout": timeout, "isolation": asked.isolation, "on_lag": "start"}
    if place.partition is not None:
        entry: Entry = place.entries[0]
        with Log.open(entry.path, "r") as log:
            for record in log.read(**_start(log, asked), end_offset=asked.to_offset, **how):
                if until is None or record.timestamp < until:
                    yield entry.topic, entry.partition, record
        return
    assert place.topic is not None
    with Store.open(place.root, "r") as store:
        offsets = {}
        for number in store.partitions(place.topic):
            start = _start(log := store.log(place.topic, number), asked)
            if "start_timestamp" in start:
                first = log.offset_for_timestamp(start["start_timestamp"])
                start = {"offset": log.log_end_offset if first is None else first.offset}
            offsets[number] = start.get("offset", log.log_start_offset)
        for topic_record in store.read(place.topic, offsets=offsets, **how):
            is_below = asked.to_offset is None or topic_record.offset < asked.to_offset
            if is_below and (until is None or topic_record.timestamp < until):
                yield topic_record.topic, topic_record.partition, Record(*tuple(topic_record)[2:])
