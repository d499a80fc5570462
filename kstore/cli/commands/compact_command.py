"""`kstore compact`: one compaction now, or with `--dry-run` what it would do; and why nothing is cleaned."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.cli.progress import Progress
from kstore.config.log_config import LogConfig
from kstore.errors import ConfigWarning, KStoreError, UnknownTopicOrPartitionError
from kstore.files import checkpoint, names
from kstore.files.topic_files import cleaned_topics, inherited_config, read_topics
from kstore.log.compaction.compaction_outlook import CompactionOutlook
from kstore.log.log import Log
from kstore.store import catalog
from kstore.store.catalog import Entry
from kstore.store.store import Store
from kstore.types import CompactionStats

__all__ = ["run"]

_ABOUT = """\
Clean logs by key: of each key the newest record stays, with its offset. Everything that may be cleaned is, whatever the
dirty ratio and the lags say; the active segment and what lies behind an open transaction never is. PATH is a data
directory (all its partitions whose cleanup.policy has compact, or those of --topic), a topic (DIR/TOPIC) or a partition
(DIR/TOPIC-P); several data directories are one store."""
_EXAMPLES = """examples:
  kstore compact data --dry-run
  kstore compact data/accounts --roll
  kstore compact data/accounts-0 --cleanup-policy compact --json

The settings that a store keeps for a topic have precedence over those given here. Records without a key are dropped, as
Kafka's cleaner drops them; a dry run says how many there are. Tombstones go delete.retention.ms after the compaction
that first kept them. 'kstore cat --latest' shows what compaction would leave, and changes nothing."""

_Advance = Callable[[int, int], None]

_BROKERS_DEFAULT = "The default is delete for both, unless a broker's cleaner has gone through the topic"


@dataclass(frozen=True, slots=True)
class _Done:
    """The result for one partition: what was (or would be) done, and what is cleaned next and when."""

    topic: str
    partition: int
    path: str
    stats: CompactionStats | None = None
    outlook: CompactionOutlook | None = None
    error: KStoreError | None = None


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code: 1 if a partition had an error."""
    asked = _parser().parse_args(arguments)
    if asked.roll and asked.dry_run:
        raise command_options.UsageError("--roll and --dry-run exclude each other: a dry run rolls nothing")
    warnings.simplefilter("ignore", ConfigWarning)  # they are about the long run, and this is one pass
    found = {path: command_paths.find(path) for path in asked.paths}
    named = {path: place for path, place in found.items() if place.topic is not None}
    if named and asked.topic:
        path, place = next(iter(named.items()))
        what = "topic" if place.partition is None else "partition"
        raise UnknownTopicOrPartitionError(f"--topic goes with a data directory, and {path} is a {what}'s")
    results: list[_Done] = []
    passed_over = 0
    with Progress("compact") as bar:
        meter = _Meter(bar)
        for entry in {entry.path: entry for place in named.values() for entry in place.entries}.values():
            results.append(_guarded(partial(_one, entry, asked, meter), entry))
        stores = [path for path in asked.paths if path not in named]
        if stores:
            passed_over = _all(stores, asked, meter, results)
    # A topic that is named is compacted whatever its policy is.
    judged = [] if asked.topic else stores
    note = command_paths.note_on_broker(judged, command_options.given(asked), "cleanup.policy", _BROKERS_DEFAULT)
    if asked.json:
        print(json.dumps({**_facts(results, asked.dry_run), "note": note}, indent=2))
    else:
        if note is not None:
            print(output.painted(escaped(note), "yellow"))
        _print(results, asked.dry_run, passed_over)
    return output.failures("kstore compact", results)


def _parser() -> command_options.Parser:
    parser = command_options.Parser("compact", _ABOUT, _EXAMPLES)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC or DIR/TOPIC-P")
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given again")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, in exact numbers; take no lock, change nothing"
    )
    parser.add_argument(
        "--roll", action="store_true", help="begin a new segment before, so that all records of now can be cleaned"
    )
    command_options.add_settings(parser, "cleanup.policy", "delete.retention.ms")
    command_options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


class _Meter:
    """Shows the bytes of several compactions as one progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._before = 0
        self._total = 0

    def advance(self, done: int, total: int) -> None:
        """Note how far the compaction at hand is."""
        self._total = total
        self._bar.reach(self._before + done, self._before + total)

    def next(self) -> None:
        """Go on with another compaction."""
        self._before += self._total
        self._total = 0


def _guarded(act: Callable[[], _Done], entry: Entry) -> _Done:
    """Return a result also where the partition has an error, so that the others are gone through."""
    try:
        return act()
    except KStoreError as error:
        return _Done(entry.topic, entry.partition, entry.path, error=error)


def _one(entry: Entry, asked: argparse.Namespace, meter: _Meter) -> _Done:
    """Compact one partition by itself, with the settings that a store around it keeps for its topic."""
    directory = os.path.realpath(entry.path)
    topic = names.parse_partition_name(os.path.basename(directory)).topic
    metadata = checkpoint.read_partition_metadata(directory)
    roots = [os.path.dirname(directory)]
    record = read_topics(roots).find(topic, None if metadata is None else metadata.topic_id)
    overrides = inherited_config(topic, cleaned_topics(roots)) if record is None else record.config
    config = LogConfig.resolve(command_options.given(asked)).for_topic(overrides)
    with Log.open(directory, "r" if asked.dry_run else "a", config=config) as log:
        return _compact(log, asked, meter)


def _all(paths: list[str], asked: argparse.Namespace, meter: _Meter, results: list[_Done]) -> int:
    """Compact the partitions of a store; how many are not, since their policy has not `compact`."""
    entries = {(entry.topic, entry.partition): entry for entry in catalog.look(catalog.real_paths(paths)).entries}
    if not entries:
        raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(paths)}")
    for topic in asked.topic:
        if all(topic != name for name, _ in entries):
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r} in {', '.join(paths)}")
    passed_over = 0
    mode = "r" if asked.dry_run else "a"
    with Store.open(paths, mode, config=command_options.given(asked), background=False) as store:  # type: ignore[arg-type]
        for (topic, number), entry in sorted(entries.items()):
            if asked.topic and topic not in asked.topic:
                continue
            if not asked.topic and not store.topic_config(topic).compacts:
                passed_over += 1
                continue
            results.append(_guarded(partial(_compact_of, store, topic, number, asked, meter), entry))
    return passed_over


def _compact_of(store: Store, topic: str, number: int, asked: argparse.Namespace, meter: _Meter) -> _Done:
    return _compact(store.log(topic, number), asked, meter)


def _compact(log: Log, asked: argparse.Namespace, meter: _Meter) -> _Done:
    stats = log.compact(roll=asked.roll, dry_run=asked.dry_run, progress=meter.advance)
    meter.next()
    if not asked.dry_run:
        log.run_housekeeping()
    return _Done(log.topic, log.partition, log.path, stats, log.compaction_outlook())


# Printing.


def _print(results: list[_Done], dry_run: bool, passed_over: int) -> None:
    for result in results:
        if result.stats is not None:
            print(f"{result.topic}-{result.partition}")
            for line in _lines(result.stats, dry_run):
                print(f"  {line}")
            if result.outlook is not None:
                print(f"  next: {result.outlook.explanation}")
    if passed_over:
        print(f"{_count(passed_over, 'partition')} passed over: cleanup.policy has not 'compact'")
    done = [result.stats for result in results if result.stats is not None]
    saved = sum(stats.bytes_before - stats.bytes_after for stats in done)
    verb = "would be saved" if dry_run else "saved"
    print(f"{output.size(saved) if saved >= 0 else saved} {verb} in {_count(len(done), 'partition')}")


def _lines(stats: CompactionStats, dry_run: bool) -> list[str]:
    """What was done to one partition, line by line."""
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


def _facts(results: list[_Done], dry_run: bool) -> dict[str, Any]:
    done = [result.stats for result in results if result.stats is not None]
    return {
        "dry_run": dry_run,
        "records_before": sum(stats.records_before for stats in done),
        "records_after": sum(stats.records_after for stats in done),
        "bytes_before": sum(stats.bytes_before for stats in done),
        "bytes_after": sum(stats.bytes_after for stats in done),
        "partitions": [
            {
                "topic": result.topic,
                "partition": result.partition,
                "path": result.path,
                "stats": None if result.stats is None else asdict(result.stats),
                "outlook": None if result.outlook is None else asdict(result.outlook),
                "error": None if result.error is None else str(result.error),
            }
            for result in results
        ],
    }
