"""`kstore compact`: compacts logs once. `--dry-run` says what a compaction would do, or why it would do nothing."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths, partition_pass
from kstore.cli.commands.partition_pass import PartitionPass, Result
from kstore.cli.progress import Progress
from kstore.errors import ConfigWarning, UnknownTopicOrPartitionError
from kstore.log.log import Log
from kstore.store.store import Store
from kstore.types import CompactionOutlook, CompactionStats

__all__ = ["run"]

_ABOUT = """\
Clean logs by key: the newest record of each key is kept, with its offset. Everything that may be cleaned is cleaned,
regardless of the dirty ratio and the lags; never the active segment, nor records after the start of an open
transaction. PATH is a data directory (all its partitions whose cleanup.policy has compact, or those of --topic), a
topic (DIR/TOPIC) or a partition (DIR/TOPIC-P); several data directories are one store."""
_EXAMPLES = """examples:
  kstore compact data --dry-run
  kstore compact data/accounts --roll
  kstore compact data/accounts-0 --cleanup-policy compact --json

The settings that a store keeps for a topic have precedence over those given here. Records without a key are dropped, as
Kafka's cleaner drops them; a dry run says how many there are. Tombstones are removed delete.retention.ms after the
compaction that first kept them. 'kstore cat --latest' shows what compaction would leave, and changes nothing."""

_BROKERS_DEFAULT = (
    "No cleanup.policy is given: the default, Kafka's and kstore's, is delete, unless a broker's cleaner has cleaned "
    "the topic."
)


class _Done(NamedTuple):
    """What was done (with `--dry-run`: would be done) to one partition; also what is cleaned next, and when."""

    stats: CompactionStats
    outlook: CompactionOutlook


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition had an error."""
    parser = partition_pass.parser(
        "compact", _ABOUT, _EXAMPLES, "say what would be done, in exact numbers; take no lock, change nothing"
    )
    parser.add_argument(
        "--roll", action="store_true", help="first roll to a new segment, so that all current records can be cleaned"
    )
    partition_pass.add_settings(parser, "cleanup.policy", "delete.retention.ms")
    asked = parser.parse_args(arguments)
    if asked.roll and asked.dry_run:
        raise command_options.UsageError("--roll and --dry-run exclude each other: a dry run rolls nothing")
    warnings.simplefilter("ignore", ConfigWarning)  # the warnings are about long-term effects, and this is one pass
    mounted_paths.refuse_urls(*asked.paths)
    found = {path: command_paths.find(path) for path in asked.paths}
    named = {path: place for path, place in found.items() if place.topic is not None}
    if named and asked.topic:
        path, place = next(iter(named.items()))
        what = "topic" if place.partition is None else "partition"
        raise UnknownTopicOrPartitionError(f"--topic goes with a data directory, and {path} is a {what}'s")
    stores = [path for path in asked.paths if path not in named]
    passed_over = 0
    with Progress("compact") as bar:
        compaction = PartitionPass(asked, partial(_compact, asked, _Meter(bar)))
        for path in dict.fromkeys(entry.path for place in named.values() for entry in place.entries):
            compaction.partition(path)
        if stores:
            passed_over = compaction.stores(stores, lambda store, topic: _is_wanted(store, topic, asked))
    # A topic that is named is compacted regardless of its policy.
    judged = [] if asked.topic else stores
    note = command_paths.note_on_broker(judged, command_options.given(asked), "cleanup.policy", _BROKERS_DEFAULT)
    done = [result.done.stats for result in compaction.results if result.done is not None]
    totals = {
        name: sum(getattr(stats, name) for stats in done)
        for name in ("records_before", "records_after", "bytes_before", "bytes_after")
    }
    show = partial(_print, compaction.results, asked.dry_run, passed_over)
    return compaction.finish("compact", note, totals, _facts, show)


class _Meter:
    """Shows the bytes of several compactions as one progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._before = 0
        self._total = 0

    def advance(self, done: int, total: int) -> None:
        self._total = total
        self._bar.reach(self._before + done, self._before + total)

    def next(self) -> None:
        self._before += self._total
        self._total = 0


def _is_wanted(store: Store, topic: str, asked: argparse.Namespace) -> bool:
    return bool(asked.topic) or store.topic_config(topic).compacts


def _compact(asked: argparse.Namespace, meter: _Meter, log: Log) -> _Done:
    stats = log.compact(roll=asked.roll, dry_run=asked.dry_run, progress=meter.advance)
    meter.next()
    if not asked.dry_run:
        log.run_housekeeping()
    return _Done(stats, log.compaction_outlook())


# Printing.


def _print(results: list[Result[_Done]], dry_run: bool, passed_over: int) -> None:
    saved = count = 0
    for result in results:
        if result.done is not None:
            stats, outlook = result.done
            saved, count = saved + stats.bytes_before - stats.bytes_after, count + 1
            print(f"{result.topic}-{result.partition}")
            for line in (*_lines(stats, dry_run), f"next: {outlook.explanation}"):
                print(f"  {line}")
    if passed_over:
        print(f"{_count(passed_over, 'partition')} passed over: cleanup.policy has not 'compact'")
    verb = "would be saved" if dry_run else "saved"
    print(f"{output.size(saved) if saved >= 0 else saved} {verb} in {_count(count, 'partition')}")


def _lines(stats: CompactionStats, dry_run: bool) -> list[str]:
    verb = "would be cleaned" if dry_run else "cleaned"
    if stats.rounds == 0:
        return [f"nothing {'can be' if dry_run else 'could be'} cleaned from offset {stats.first_dirty_offset} on"]
    lines = [
        f"{verb}: offsets {stats.first_dirty_offset_before} to {stats.first_dirty_offset - 1}, "
        f"{_count(stats.keys, 'key')}, {_count(stats.rounds, 'round')}"
        + (f", {stats.seconds:.1f} s" if stats.seconds >= 1 else ""),
        f"records: {stats.records_before:,} before, {stats.records_after:,} after",
        f"bytes: {stats.bytes_before:,} before, {stats.bytes_after:,} after",
        f"segments: {stats.segments_before:,} before, {stats.segments_after:,} after",
        f"tombstones: {stats.tombstones_kept:,} kept, {stats.tombstones_removed:,} removed",
    ]
    if stats.keyless_dropped:
        verb = "would be dropped" if dry_run else "dropped"
        lines.append(f"records without a key: {stats.keyless_dropped:,} {verb}")
    if stats.map_full:
        lines.append("the offset map was full: a round ended early (log.cleaner.dedupe.buffer.size)")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _facts(done: _Done | None) -> dict[str, Any]:
    return {name: None if done is None else asdict(getattr(done, name)) for name in _Done._fields}
