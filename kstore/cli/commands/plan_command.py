"""`kstore plan`: says what settings do under a load, and what others would do; the load may be that of a topic."""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from typing import Any, TypeVar

from kstore.cli import command_options, command_paths, output
from kstore.cli.command_options import UsageError
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.errors import ConfigWarning
from kstore.explained.explained_plan import Load, Plan
from kstore.explained.plan_html import plan_page
from kstore.explained.plan_text import plan_text, plans_text
from kstore.log.log import Log
from kstore.planning.given_load import LONGEST_MS, make_load
from kstore.planning.measured_load import MeasuredLoad, busiest, measured
from kstore.planning.plan import MIDNIGHT_MS, make_plan

__all__ = ["run"]

_MOST_MEASURED = 8  # of a topic's partitions, the largest

T = TypeVar("T", LogConfig, BrokerConfig)

_ABOUT = """\
Say what settings do to one partition under a load: segments and why the log rolls, the disk over time, how long a
record lives, which setting acts first, and what to change. The rules of rolls, retention and compaction are run with a
clock that moves from event to event; no log is changed.
--like measures the load of a topic (DIR/TOPIC: its busiest partition) or a partition (DIR/TOPIC-P), and takes the
settings that a store keeps for it; options for the load replace what was measured. With --wish two plans are printed
side by side: today's settings, and the same with the wished ones."""
_EXAMPLES = """examples:
  kstore plan --rate 0.2 --record-bytes 150 -c segment.bytes=16384 -c retention.ms=600000
  kstore plan --rate 5000 --batch-records 100 --duration 365d --idle 22:00-06:00 -c server.properties
  kstore plan --like data/orders --wish segment.ms=300000
  kstore plan --like data/orders-0 --wish retention.bytes=1073741824 --html plan.html
"""
_BROKERS_DEFAULT = "kstore's default of retention.ms deletes nothing by age; Kafka's deletes after 7 days."


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code."""
    parser = command_options.Parser("plan", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("the load")
    group.add_argument("--like", metavar="PATH", help="measure the load of a topic or a partition; or a URL")
    group.add_argument("--rate", type=_number, metavar="N", help="records a second, while the load is not idle")
    group.add_argument(
        "--record-bytes",
        type=_number,
        metavar="N",
        help="bytes of a record in the log, its share of the batch's header included (1000)",
    )
    group.add_argument("--batch-records", type=command_options.whole(1), metavar="N", help="records of a batch (1)")
    group.add_argument(
        "--keys", type=command_options.whole(1), metavar="N", help="how many different keys; needed for compaction"
    )
    group.add_argument(
        "--skew", type=command_options.duration, metavar="TIME", help="how far timestamps are behind, as in 500ms, 10m"
    )
    group.add_argument(
        "--idle",
        action="append",
        metavar="HH:MM-HH:MM",
        help="a part of each day without appends, in UTC; may be repeated",
    )
    parser.add_argument(
        "--duration",
        type=command_options.duration,
        default=30 * 86_400.0,
        metavar="TIME",
        help="how long to plan, as in 12h, 30d (the default), 52w",
    )
    command_options.add_config(parser)
    parser.add_argument(
        "--wish",
        action="append",
        metavar="NAME=VALUE|FILE",
        help="a setting to compare with today's, or a broker's server.properties; may be repeated",
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print JSON")
    printed.add_argument("--html", metavar="FILE", help="write a page with pictures into one file")
    object_store_options.add_reading(parser)
    asked = parser.parse_args(arguments)
    if asked.like is None and asked.rate is None:
        parser.error("one of --rate and --like is needed")
    warnings.simplefilter("ignore", ConfigWarning)  # the plan says what the settings do
    given = command_options.given(asked)
    broker = BrokerConfig.resolve(given)
    found, config, note = None, LogConfig.resolve(given), None
    if asked.like is not None:
        with mounted_paths.mounted("plan", [asked.like], asked) as (path,):
            found, config = _measure(path, given)
            note = _note(path, config, given)
    load = _load(asked, found)

    def planned(config: LogConfig, broker: BrokerConfig) -> Plan:
        duration_ms = min(round(asked.duration * 1000), LONGEST_MS)
        return make_plan(config, broker, load, duration_ms=max(duration_ms, 1), start_ms=MIDNIGHT_MS)

    today = planned(config, broker)
    wished = None
    if asked.wish:
        wishes = _wishes(asked.wish)
        wished = planned(_with(config, LogConfig.resolve(wishes)), _with(broker, BrokerConfig.resolve(wishes)))
    _show(asked, today, wished, found, note)
    return 0


def _number(text: str) -> float:
    """Parse an argument: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no number") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"it is {text[:60]}; it must be above 0")
    return number


def _measure(path: str, given: dict[str, str] | None) -> tuple[MeasuredLoad, LogConfig]:
    """Return the load of the busiest partition of a path, and the settings in force for its topic."""
    place = command_paths.find_topic(path)
    loads, config = [], LogConfig.resolve(given)
    largest = sorted(place.entries, key=lambda entry: command_paths.log_bytes(entry.path), reverse=True)
    for entry in largest[:_MOST_MEASURED]:
        config = command_paths.settings_in_force(entry.path, given)
        with Log.open(entry.path, "r", config=config) as log:
            if log.log_end_offset - log.log_start_offset > 1 or len(place.entries) == 1:
                loads.append(measured(log))
    if not loads:
        raise UsageError(f"{path} has no partition with records: give --rate")
    return busiest(loads), config


def _load(asked: argparse.Namespace, found: MeasuredLoad | None) -> Load:
    """Return the load of the command line; what is not given is as it was measured."""
    try:
        load = make_load(
            rate=asked.rate or (found.load.rate if found is not None else 1),
            record_bytes=asked.record_bytes or (found.load.record_bytes if found is not None else 1000),
            batch_records=asked.batch_records or (found.load.batch_records if found is not None else 1),
            skew=round(asked.skew * 1000) if asked.skew is not None else found.load.skew_ms if found is not None else 0,
            idle=asked.idle or (found.load.idle if found is not None else ()),
            keys=asked.keys or (found.load.keys if found is not None else None),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    return load


def _wishes(words: list[str]) -> dict[str, str]:
    """Return the settings of `--wish`; if one is given twice, the last value is used."""
    wishes: dict[str, str] = {}
    for word in words:
        wishes |= command_options.settings_of(word)
    return wishes


def _with(settings: T, wished: T) -> T:
    return settings.replace(**{name: getattr(wished, name) for name in wished.explicit})


def _note(path: str, config: LogConfig, given: dict[str, str] | None) -> str | None:
    if not config.deletes:
        return None  # retention.ms does not count
    return command_paths.note_on_broker([path], given, "retention.ms", _BROKERS_DEFAULT)


def _show(
    asked: argparse.Namespace, today: Plan, wished: Plan | None, found: MeasuredLoad | None, note: str | None
) -> None:
    if asked.json:
        shown: dict[str, Any] = {"today": today.to_dict()}
        if wished is not None:
            shown["wished"] = wished.to_dict()
        shown["measured"] = None if found is None else asdict(found)
        print(json.dumps({**shown, "note": note}, indent=2))
        return
    if asked.html is not None:
        title = "A plan of a log" if found is None else f"A plan of a log like {found.path}"
        known = [] if found is None else [str(found), *found.notes]
        known += [] if note is None else [note]
        output.write_page(asked.html, plan_page(today, wished, title=title, known=known))
        return
    if found is not None:
        print(found)
        print("".join(f"{sentence}\n" for sentence in found.notes), end="")
    if note is not None:
        print(f"note: {note}")
    print(plan_text(today) if wished is None else plans_text(today, wished))
