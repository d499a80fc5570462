"""`kstore explain`: says why segments are there and when they go, where a record lies, and why a disk is full."""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Protocol, TypeVar

from kstore.cli import command_options, command_paths, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.progress import Progress
from kstore.config.broker_config import BrokerConfig
from kstore.errors import ConfigError, ConfigWarning
from kstore.explained.disk_text import disk_text
from kstore.explained.explained_disk import DiskExplanation
from kstore.explained.explanation import Explanation
from kstore.explained.explanation_text import explanation_text
from kstore.log.hosted_log import HostedLog
from kstore.store.store import Store

__all__ = ["run"]

T = TypeVar("T", Explanation, DiskExplanation)
T_contra = TypeVar("T_contra", contravariant=True)


class AsText(Protocol[T_contra]):
    """Returns an explanation as text."""

    def __call__(self, found: T_contra, /, *, everything: bool = False) -> str: ...


_ABOUT = """\
Of a partition (DIR/TOPIC-P): why each segment was rolled, why it is still there, and when it goes. With --offset or
--time also of one record: where it lies, how a lookup finds it, and when its bytes leave the disk.
Of a data directory or a topic (DIR/TOPIC): what takes the space, what holds it, and which settings would free it.
The word "inferred" marks a reason that was concluded from sizes, times and index entries, since the roll was before the
log was opened. What is foretold holds if nothing more is appended.
Changes nothing; a broker or a store may be writing to the directory. A broker's settings are not in its directory: give
its file with -c server.properties. The settings that a store keeps for a topic have precedence over those given."""
_EXAMPLES = """examples:
  kstore explain data
  kstore explain data/orders-0 -c server.properties
  kstore explain data/orders-0 --offset 1234
  kstore explain data/orders-0 --time 2013-06-01T12:00 --at 2013-06-08
  kstore explain data/orders-0 --html orders-0.html
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition or the record cannot be explained."""
    parser = command_options.Parser("explain", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="PATH", help="a data directory, DIR/TOPIC or DIR/TOPIC-P; or a URL")
    record = parser.add_mutually_exclusive_group()
    record.add_argument(
        "-o", "--offset", type=command_options.whole(0), metavar="N", help="explain the record at this offset, too"
    )
    record.add_argument(
        "--time", metavar="TIME", help=f"explain the first record at or after a time, too: {command_times.HELP}"
    )
    parser.add_argument("--at", metavar="TIME", help="explain for this time, which may be to come, in place of now")
    parser.add_argument("--all", action="store_true", help="show all rows of long tables")
    command_options.add_config(parser)
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print JSON")
    printed.add_argument("--html", metavar="FILE", help="write a page with pictures into one file")
    object_store_options.add_reading(parser)
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConfigWarning)  # the output says what the settings do
    with mounted_paths.mounted("explain", [asked.path], asked) as (path,):
        place = command_paths.find(path)
        if place.partition is not None:
            return _explain_log(asked, place)
        for option, value in (("--offset", asked.offset), ("--time", asked.time)):
            if value is not None:
                raise ConfigError(f"{option} explains a record of one partition: name it as DIR/TOPIC-P")
        return _explain_disk(asked, place)


def _explain_log(asked: argparse.Namespace, place: command_paths.Place) -> int:
    [entry] = place.entries
    given = command_options.given(asked)
    config = command_paths.settings_in_force(entry.path, given)
    timestamp = None if asked.time is None else command_times.parse(asked.time)
    with HostedLog.open_to_read(entry.path, config, BrokerConfig.resolve(given)).log as log:
        found = log.explain(at=_at(asked), offset=asked.offset, timestamp=timestamp)
    _show(asked, found, explanation_text)
    if found.record is None and asked.offset is not None:
        return output.complain("explain", [f"no batch has offset {asked.offset}: a cleaning has left a gap there"])
    if found.record is None and asked.time is not None:
        return output.complain("explain", [f"no record is from {asked.time} or later"])
    return 0


def _explain_disk(asked: argparse.Namespace, place: command_paths.Place) -> int:
    given = command_options.given(asked)
    with (
        Store.open(place.root, "r", config=given, background=False) as store,
        Progress("explain", unit="partitions") as bar,
    ):
        found = store.explain(topic=place.topic, at=_at(asked), progress=bar.reach)
    _show(asked, found, disk_text)
    errors = (f"{each.topic}-{each.partition}: {each.error}" for each in found.partitions if each.error is not None)
    return output.complain("explain", errors)


def _at(asked: argparse.Namespace) -> int | None:
    return None if asked.at is None else command_times.parse(asked.at)


def _show(asked: argparse.Namespace, found: T, as_text: AsText[T]) -> None:
    if asked.json:
        print(json.dumps(found.to_dict(), indent=2))
    elif asked.html is not None:
        output.write_page(asked.html, found.to_html())
    else:
        print(as_text(found, everything=asked.all))
