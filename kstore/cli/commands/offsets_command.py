"""`kstore offsets`: prints the offset for a time, in the format of Kafka's get-offsets tool."""

from __future__ import annotations

import argparse

from kstore.cli import command_options, command_paths, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.errors import KStoreError
from kstore.log.log import Log

__all__ = ["run"]

_ABOUT = """\
Print topic:partition:offset for each partition: where it starts, where it ends, or the first offset at or after a time.
If no record is that late, there is nothing after the last colon."""
_EXAMPLES = """examples:
  kstore offsets data/events-0
  kstore offsets data/events --time 2013-06-01T12:00
  kstore offsets data --time max-timestamp --json
"""
_SPECIAL = {"latest": -1, "earliest": -2, "max-timestamp": -3}


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("offsets", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="a directory of logs, DIR/TOPIC, or DIR/TOPIC-P; or a URL")
    parser.add_argument(
        "--time",
        default="latest",
        metavar="TIME",
        help=f"latest (the default; -1), earliest (-2), max-timestamp (-3), or a time: {command_times.HELP}",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each partition")
    object_store_options.add_reading(parser, until=["--until"])
    parsed = parser.parse_args(arguments)
    with mounted_paths.mounted("offsets", [parsed.path], parsed) as (parsed.path,):
        return _show(parsed)


def _show(parsed: argparse.Namespace) -> int:
    special = {str(code): code for code in _SPECIAL.values()} | _SPECIAL
    time = special[parsed.time] if parsed.time in special else command_times.parse(parsed.time)
    place = command_paths.find(parsed.path)
    command_paths.refuse_empty(place, parsed.path)
    code = 0
    for entry in place.entries:
        try:
            with Log.open(entry.path, "r") as log:
                offset, timestamp = _find(log, time)
        except KStoreError as error:
            if place.partition is not None:
                raise
            code = output.complain("offsets", [f"{entry.topic}-{entry.partition}: {error}"])
            continue
        if parsed.json:
            output.json_line(
                {"topic": entry.topic, "partition": entry.partition, "offset": offset, "timestamp": timestamp}
            )
        else:
            print(f"{entry.topic}:{entry.partition}:{'' if offset is None else offset}")
    return code


def _find(log: Log, time: int) -> tuple[int | None, int | None]:
    """Return the offset and its timestamp, each None if there is none (SEMANTICS 5.1)."""
    if time == -1:
        return log.log_end_offset, None
    if time == -2:
        return log.log_start_offset, None
    record = log.max_timestamp() if time == -3 else log.offset_for_timestamp(time)
    return (None, None) if record is None else (record.offset, record.timestamp)
