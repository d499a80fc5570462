"""`kstore retain`: one pass of retention now, or with `--dry-run` what it would delete, and why."""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from kstore.base import times
from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.cli.progress import Progress
from kstore.config.log_config import KAFKA_RETENTION_MS, LogConfig
from kstore.disk import fs
from kstore.errors import ConfigWarning, KStoreError, UnknownTopicOrPartitionError
from kstore.files import checkpoint, names
from kstore.files.topic_files import cleaned_topics, inherited_config, read_topics
from kstore.log.log import Log
from kstore.log.writing.retention import Deletion, Outlook
from kstore.store import catalog
from kstore.store.store import Store

__all__ = ["run"]

_ABOUT = """\
Delete the oldest segments that the settings no longer keep: those below the log start, then by retention.bytes, then
by retention.ms. PATH is a data directory (all its partitions, or those of --topic), a topic (DIR/TOPIC) or a partition
(DIR/TOPIC-P); several data directories are one store. Without settings only the segments below the log start are
deleted: a broker's settings are not in its directory, so give its file with -c server.properties."""
_EXAMPLES = """examples:
  kstore retain data --dry-run
  kstore retain data/orders --retention-ms 86400000
  kstore retain data/orders-0 -c retention.bytes=1073741824 --json

The settings that a store keeps for a topic have precedence over those given here; the output names them. The files are
deleted at once, without the wait of file.delete.delay.ms."""

_BROKERS_DEFAULT = (
    "That default deletes nothing by age, a broker's after 7 days "
    f"(log.retention.hours={KAFKA_RETENTION_MS // 3_600_000})"
)


@dataclass(frozen=True, slots=True)
class _Done:
    """The result for one partition: the segments that were (or would be) deleted, and why the next one stays."""

    topic: str
    partition: int
    path: str
    gone: list[Deletion]
    stays: Outlook | None
    error: KStoreError | None = None
    own: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that were given and that the topic has of its own: its value, which holds, and the given one."""


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code: 1 if a partition had an error."""
    parsed = _parser().parse_args(arguments)
    warnings.simplefilter("ignore", ConfigWarning)  # they are about the long run, and this is one pass
    paths = list(dict.fromkeys(each for path in parsed.paths for each in _partitions_of_topic(path)))
    partitions = [path for path in paths if _is_partition(path)]
    if partitions and parsed.topic:
        raise UnknownTopicOrPartitionError(f"--topic goes with a data directory, and {partitions[0]} is a partition's")
    now_ms = time.time_ns() // 1_000_000

    def clock() -> int:
        return now_ms  # fixed, so that exactly the planned segments are deleted

    results = [_guarded(partial(_one, path, parsed, clock), *_key(path), path) for path in partitions]
    stores = [path for path in paths if path not in partitions]
    if stores:
        results += _all(stores, parsed, clock)
    note = command_paths.note_on_broker(parsed.paths, command_options.given(parsed), "retention.ms", _BROKERS_DEFAULT)
    if parsed.json:
        print(json.dumps({**_facts(results, parsed.dry_run), "note": note}, indent=2))
    else:
        if note is not None:
            print(output.painted(escaped(note), "yellow"))
        _print(results, parsed.dry_run)
    return output.failures("kstore retain", results)


def _parser() -> command_options.Parser:
    parser = command_options.Parser("retain", _ABOUT, _EXAMPLES)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC or DIR/TOPIC-P")
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given again")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be deleted; take no lock and change nothing"
    )
    command_options.add_settings(parser, "retention.ms", "retention.bytes")
    command_options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _partitions_of_topic(path: str) -> list[str]:
    """The partitions' directories of a topic, `DIR/TOPIC`; a directory that is there stands for itself."""
    return [path] if fs.exists(path) else [entry.path for entry in command_paths.find(path).entries]


def _is_partition(path: str) -> bool:
    """Whether the directory is one partition's: named so, and with a log in it."""
    parsed = [names.parse_file_name(name) for name in fs.listdir(path)]
    has_log = any(name is not None and name.kind == names.LOG for name in parsed)
    return has_log and names.is_partition_name(os.path.basename(os.path.abspath(path)))


def _key(path: str) -> tuple[str, int]:
    parsed = names.parse_partition_name(os.path.basename(os.path.abspath(path)))
    return parsed.topic, parsed.partition


def _guarded(act: Callable[[], _Done], topic: str, partition: int, path: str) -> _Done:
    """Return a result also where the partition has an error, so that the others are gone through."""
    try:
        return act()
    except KStoreError as error:
        return _Done(topic, partition, path, [], None, error)


def _one(path: str, parsed: argparse.Namespace, clock: Callable[[], int]) -> _Done:
    """Go through one partition by itself, with the settings that a store around it keeps for its topic."""
    directory = os.path.realpath(path)
    topic = names.parse_partition_name(os.path.basename(directory)).topic
    metadata = checkpoint.read_partition_metadata(directory)
    roots = [os.path.dirname(directory)]
    record = read_topics(roots).find(topic, None if metadata is None else metadata.topic_id)
    overrides = inherited_config(topic, cleaned_topics(roots)) if record is None else record.config
    config = LogConfig.resolve(command_options.given(parsed)).for_topic(overrides)
    with Log.open(directory, "r" if parsed.dry_run else "a", config=config, clock=clock) as log:
        return _pass(log, parsed)


def _all(paths: list[str], parsed: argparse.Namespace, clock: Callable[[], int]) -> list[_Done]:
    """Go through the partitions of a store."""
    entries = {(entry.topic, entry.partition): entry for entry in catalog.look(catalog.real_paths(paths)).entries}
    if not entries:
        raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(paths)}")
    for topic in parsed.topic:
        if all(topic != name for name, _ in entries):
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r} in {', '.join(paths)}")
    wanted = sorted(key for key in entries if not parsed.topic or key[0] in parsed.topic)
    results = []
    with (
        Progress("retain", unit="partitions") as bar,
        Store.open(
            paths,
            "r" if parsed.dry_run else "a",
            config=command_options.given(parsed),
            clock=clock,
            background=False,
            progress=bar.reach,
        ) as store,
    ):
        for done, (topic, partition) in enumerate(wanted):
            bar.reach(done, len(wanted))
            act = partial(_pass_of, store, topic, partition, parsed)
            results.append(_guarded(act, topic, partition, entries[topic, partition].path))
    return results


def _pass_of(store: Store, topic: str, number: int, parsed: argparse.Namespace) -> _Done:
    return _pass(store.log(topic, number), parsed)


def _pass(log: Log, parsed: argparse.Namespace) -> _Done:
    own = _own_settings(log.config, command_options.given(parsed) or {})
    planned = log.plan_retention()
    stays = log.retention_outlook()
    if not parsed.dry_run and planned:
        log.update_config(file_delete_delay_ms=0)
        gone = {segment.base_offset for segment in log.apply_retention()}
        log.run_housekeeping()
        planned = [deletion for deletion in planned if deletion.base_offset in gone]
        stays = log.retention_outlook()
    return _Done(log.topic, log.partition, log.path, planned, stays, own=own)


def _own_settings(config: LogConfig, given: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    """The settings that were given, under a topic's name or a broker's, and that do not hold for a log."""
    asked, default = LogConfig.resolve(given), LogConfig.resolve(None)
    values = {
        row.name: [getattr(each, row.attribute) for each in (config, asked, default)] for row in LogConfig.settings
    }
    return {
        name: (own, wanted)
        for name, (own, wanted, unset) in values.items()
        if own != wanted and (wanted != unset or name in given)
    }


# Printing.


def _print(results: list[_Done], dry_run: bool) -> None:
    for result in results:
        if result.error is not None:
            continue
        print(f"{result.topic}-{result.partition}")
        for name, (own, given) in result.own.items():
            print(f"  not used: the given {name}={given}; the topic has {name}={own} of its own, which holds")
        for gone in result.gone:
            verb = "would delete" if dry_run else "deleted"
            print(
                f"  {verb}: segment {gone.base_offset}, offsets {gone.base_offset} to {gone.next_offset - 1}, "
                f"{gone.size_bytes} bytes ({gone.reason}): {gone.explanation}"
            )
        if result.stays is not None:
            stays = result.stays
            print(f"  kept: segment {stays.base_offset} and all after it: {stays.explanation}{_when(stays)}")
    segments, size = _sums(results)
    verb = "would be deleted" if dry_run else "deleted"
    where = output.count(len(results), "partition")
    print(f"{output.count(segments, 'segment')} {verb}, {size} bytes, in {where}")


def _when(stays: Outlook) -> str:
    """When retention deletes the segment, as far as that is known."""
    ways = []
    if stays.due_ms is not None:
        ways.append(f"from {times.show(stays.due_ms)} on")
    if stays.bytes_left is not None:
        ways.append(f"after {stays.bytes_left} more bytes")
    return f"; it is deleted {' or '.join(ways)}" if ways else ""


def _sums(results: list[_Done]) -> tuple[int, int]:
    gone = [deletion for result in results for deletion in result.gone]
    return len(gone), sum(deletion.size_bytes for deletion in gone)


def _facts(results: list[_Done], dry_run: bool) -> dict[str, Any]:
    segments, size = _sums(results)
    return {
        "dry_run": dry_run,
        "segments": segments,
        "bytes": size,
        "partitions": [
            {
                "topic": result.topic,
                "partition": result.partition,
                "path": result.path,
                "deleted": [asdict(deletion) for deletion in result.gone],
                "stays": None if result.stays is None else asdict(result.stays),
                "own_settings": {name: own for name, (own, _) in result.own.items()},
                "error": None if result.error is None else str(result.error),
            }
            for result in results
        ],
    }
