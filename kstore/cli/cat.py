"""`kstore cat` and `kstore tail`: records out, as lines of text, by a format, or as JSON."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from kstore._core import Record
from kstore.catalog import Entry
from kstore.cli import options, places, records, times
from kstore.cli.progress import Progress
from kstore.errors import ConfigError
from kstore.log import Log
from kstore.reads import Isolation
from kstore.store import Store

__all__ = ["parser", "run", "show"]

_ABOUT = """\
Print the records of a partition, or of a topic partition by partition, a line each: the value, as it is."""
_EXAMPLES = """examples:
  kstore cat data/events-0
  kstore cat data/events-0 --offset 1000 --max 10 --json
  kstore cat data/events --from 2013-06-01T12:00 --to 2013-06-02 --format '%p %o %T %k %s\\n'
  kstore cat data/events-0 --last 5
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code."""
    taken = parser("kstore cat", _ABOUT, _EXAMPLES)
    return show(taken.parse_args(arguments), follow=False)


def parser(prog: str, about: str, examples: str, last: int | None = None) -> options.Parser:
    """The arguments that both subcommands take."""
    found = options.Parser(
        prog=prog,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC")
    start = found.add_mutually_exclusive_group()
    start.add_argument(
        "-o", "--offset", type=options.whole(0), metavar="N", help="begin at this offset in each partition"
    )
    start.add_argument(
        "--from", dest="since", metavar="TIME", help=f"begin at the first record of a time: {times.HELP}"
    )
    start.add_argument(
        "-n", "--last", type=int, metavar="N", default=last,
        help="the last N of each partition" + (f" (default: {last})" if last is not None else ""),
    )  # fmt: skip
    found.add_argument("--to", "--until", dest="until", metavar="TIME", help="leave out records at or after this time")
    found.add_argument("--to-offset", type=options.whole(0), metavar="N", help="end before this offset")
    options.add_isolation(found)
    found.add_argument("--max", type=int, metavar="N", help="print at most N records")
    how = found.add_mutually_exclusive_group()
    how.add_argument("--format", metavar="FORMAT", help=f"fields as in kcat: {records.FIELDS}")
    how.add_argument("-J", "--json", action="store_true", help="print a JSON object for each record")
    how.add_argument("-K", "--key-separator", metavar="TEXT", help="print keys, too, with this behind them")
    return found


def show(asked: argparse.Namespace, *, follow: bool, timeout: float | None = None) -> int:
    """Print what was asked for."""
    place = places.find(asked.path)
    if place.topic is None:
        raise ConfigError(f"{asked.path} is a directory of logs: name a topic or a partition of it")
    for name in ("last", "max"):
        if (getattr(asked, name) or 0) < 0:
            raise ConfigError(f"--{name} is {getattr(asked, name)}; it must not be negative")
    found = _follow(place, asked, timeout) if follow else _read(place, asked)
    if asked.max is not None:
        found = itertools.islice(found, asked.max)
    with Progress("tail" if follow else "cat", unit="records", aside=True) as bar:
        try:
            records.write(found, _printer(asked), sys.stdout.buffer, at_once=follow, progress=bar.add)
        except KeyboardInterrupt:
            if not follow:
                raise
            return 130  # the usual way to end it
    return 0


def _printer(asked: argparse.Namespace) -> records.Printer:
    if asked.json:
        return records.json_line
    return records.formatter(asked.format) if asked.format is not None else records.plain(asked.key_separator)


def _read(place: places.Place, asked: argparse.Namespace) -> Iterator[tuple[str, int, Record]]:
    until = None if asked.until is None else times.parse(asked.until)
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            start = _start(log, asked)
            if asked.offset is not None:
                start = {"offset": places.first_offset(place, log, asked.offset)}
            for record in log.read(**start, end_offset=asked.to_offset, isolation=asked.isolation):
                if until is None or record.timestamp < until:
                    yield entry.topic, entry.partition, record


def _start(log: Log, asked: argparse.Namespace) -> dict[str, Any]:
    if asked.since is not None:
        return {"start_timestamp": times.parse(asked.since)}
    if asked.offset is not None:
        return {"offset": asked.offset}
    if asked.last is not None:
        return {"offset": _nth_last(log, asked.last, asked.isolation)}
    return {}


def _nth_last(log: Log, count: int, isolation: Isolation) -> int:
    """The offset of the last record but `count`: offsets may have gaps, so it is looked for from ever further back."""
    start, end = log.log_start_offset, log.log_end_offset
    back = count
    while count:
        offset = max(end - back, start)
        offsets = [record.offset for record in log.read(offset, end_offset=end, isolation=isolation)]
        if len(offsets) >= count:
            return offsets[-count]
        if offset == start:
            return start
        back *= 4
    return end


def _follow(place: places.Place, asked: argparse.Namespace, timeout: float | None) -> Iterator[tuple[str, int, Record]]:
    """Records and those to come; where retention is faster, it goes on from the log's start."""
    until = None if asked.until is None else times.parse(asked.until)
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
                found = log.offset_for_timestamp(start["start_timestamp"])
                start = {"offset": log.log_end_offset if found is None else found.offset}
            offsets[number] = start.get("offset", log.log_start_offset)
        for each in store.read(place.topic, offsets=offsets, **how):
            is_asked_for = asked.to_offset is None or each.offset < asked.to_offset
            if is_asked_for and (until is None or each.timestamp < until):
                yield each.topic, each.partition, Record(*tuple(each)[2:])
