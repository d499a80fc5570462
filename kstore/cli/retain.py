"""`kstore retain`: one pass of retention now, or with `--dry-run` what it would do; what goes, and why."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from kstore import catalog, checkpoint, fs, names
from kstore.cli import options
from kstore.cli.progress import Progress
from kstore.config import LogConfig
from kstore.errors import ConfigWarning, KStoreError, UnknownTopicOrPartitionError
from kstore.log import Log
from kstore.retention import Deletion, Outlook, moment
from kstore.store import Store
from kstore.topics import cleaned_topics, inherited_config, read_topics

__all__ = ["run"]

_ABOUT = """\
Delete the oldest segments that the settings no longer keep: those below the log start, then by retention.bytes, then
by retention.ms. DIR is a data directory (all its partitions, or those of --topic) or one partition's directory;
several data directories are taken as one store. Unless a setting says so nothing goes but what lies below the log
start."""
_EXAMPLES = """examples:
  kstore retain data --dry-run
  kstore retain data --topic orders --retention-ms 86400000
  kstore retain data/orders-0 -c retention.bytes=1073741824 --json

The settings that a store keeps for a topic come before those given here. A process that is about to end does not wait
file.delete.delay.ms: the files are unlinked at once."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one partition: what went (or would go), and why the first segment that stays does."""

    topic: str
    partition: int
    path: str
    gone: list[Deletion]
    stays: Outlook | None
    error: KStoreError | None = None


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code: 0 when every partition that was meant was gone through."""
    asked = _parser().parse_args(arguments)
    warnings.simplefilter("ignore", ConfigWarning)  # of what settings do in the long run; this is one pass
    partitions = [path for path in asked.directories if _is_partition(path)]
    if partitions and asked.topic:
        raise UnknownTopicOrPartitionError(f"--topic goes with a data directory, and {partitions[0]} is a partition's")
    now_ms = time.time_ns() // 1_000_000

    def clock() -> int:
        return now_ms  # it stands still, so that what goes is what was planned

    found = [_guarded(partial(_one, path, asked, clock), *_key(path), path) for path in partitions]
    stores = [path for path in asked.directories if path not in partitions]
    if stores:
        found += _all(stores, asked, clock)
    if asked.json:
        print(json.dumps(_facts(found, asked.dry_run), indent=2))
    else:
        _print(found, asked.dry_run)
    for each in found:
        if each.error is not None:
            print(f"kstore retain: {each.topic}-{each.partition}: {each.error}", file=sys.stderr)
    return 1 if any(each.error is not None for each in found) else 0


def _parser() -> options.Parser:
    parser = options.Parser(
        prog="kstore retain",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directories", metavar="DIR", nargs="+", help="a data directory, or a partition's")
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given again")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, take no lock and change nothing")
    options.add_settings(parser, "retention.ms", "retention.bytes")
    options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _is_partition(path: str) -> bool:
    """Whether the directory is one partition's: named so, and with a log in it."""
    entries = fs.listdir(path)
    try:
        names.parse_partition_name(os.path.basename(os.path.abspath(path)))
    except KStoreError:
        return False
    parsed = map(names.parse_file_name, entries)
    return any(name is not None and name.kind == names.LOG for name in parsed)


def _key(path: str) -> tuple[str, int]:
    parsed = names.parse_partition_name(os.path.basename(os.path.abspath(path)))
    return parsed.topic, parsed.partition


def _guarded(act: Callable[[], _Done], topic: str, partition: int, path: str) -> _Done:
    """One partition's failure is no other's."""
    try:
        return act()
    except KStoreError as error:
        return _Done(topic, partition, path, [], None, error)


def _one(path: str, asked: argparse.Namespace, clock: Callable[[], int]) -> _Done:
    """Go through one partition by itself, with what a store around it keeps for its topic."""
    directory = os.path.realpath(path)
    topic = names.parse_partition_name(os.path.basename(directory)).topic
    metadata = checkpoint.read_partition_metadata(directory)
    roots = [os.path.dirname(directory)]
    record = read_topics(roots).find(topic, None if metadata is None else metadata.topic_id)
    overrides = inherited_config(topic, cleaned_topics(roots)) if record is None else record.config
    config = LogConfig.resolve(options.given(asked)).for_topic(overrides)
    with Log.open(directory, "r" if asked.dry_run else "a", config=config, clock=clock) as log:
        return _pass(log, asked.dry_run)


def _all(paths: list[str], asked: argparse.Namespace, clock: Callable[[], int]) -> list[_Done]:
    """Go through the partitions of a store."""
    there = {(entry.topic, entry.partition): entry for entry in catalog.look(catalog.real_paths(paths)).entries}
    if not there:
        raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(paths)}")
    for topic in asked.topic:
        if all(topic != each for each, _ in there):
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r} in {', '.join(paths)}")
    meant = sorted(key for key in there if not asked.topic or key[0] in asked.topic)
    found = []
    with (
        Progress("retain", unit="partitions") as bar,
        Store.open(
            paths,
            "r" if asked.dry_run else "a",
            config=options.given(asked),
            clock=clock,
            background=False,
            progress=bar.reach,
        ) as store,
    ):
        for done, (topic, number) in enumerate(meant):
            bar.reach(done, len(meant))
            act = partial(_pass_of, store, topic, number, asked.dry_run)
            found.append(_guarded(act, topic, number, there[topic, number].path))
    return found


def _pass_of(store: Store, topic: str, number: int, dry_run: bool) -> _Done:
    return _pass(store.log(topic, number), dry_run)


def _pass(log: Log, dry_run: bool) -> _Done:
    planned = log.plan_retention()
    stays = log.retention_outlook()
    if not dry_run and planned:
        log.update_config(file_delete_delay_ms=0)
        gone = {segment.base_offset for segment in log.apply_retention()}
        log.run_housekeeping()
        planned = [deletion for deletion in planned if deletion.base_offset in gone]
        stays = log.retention_outlook()
    return _Done(log.topic, log.partition, log.path, planned, stays)


# What is printed.


def _print(found: list[_Done], dry_run: bool) -> None:
    for each in found:
        if each.error is not None:
            continue
        print(f"{each.topic}-{each.partition}")
        for gone in each.gone:
            verb = "would go" if dry_run else "went"
            print(
                f"  {verb}: segment {gone.base_offset}, offsets {gone.base_offset} to {gone.next_offset - 1}, "
                f"{gone.size_bytes} bytes ({gone.reason}): {gone.explanation}"
            )
        if each.stays is not None:
            stays = each.stays
            print(f"  stays: segment {stays.base_offset} and all behind it: {stays.explanation}{_when(stays)}")
    segments, size = _sums(found)
    verb = "would go" if dry_run else "went"
    print(f"{segments} {'segment' if segments == 1 else 'segments'} {verb}, {size} bytes, in {len(found)} partitions")


def _when(stays: Outlook) -> str:
    """When the segment goes, as far as that can be said."""
    ways = []
    if stays.due_ms is not None:
        ways.append(f"from {moment(stays.due_ms)} on")
    if stays.bytes_left is not None:
        ways.append(f"when {stays.bytes_left} bytes more are there")
    return f"; it goes {' or '.join(ways)}" if ways else ""


def _sums(found: list[_Done]) -> tuple[int, int]:
    gone = [deletion for each in found for deletion in each.gone]
    return len(gone), sum(deletion.size_bytes for deletion in gone)


def _facts(found: list[_Done], dry_run: bool) -> dict[str, Any]:
    segments, size = _sums(found)
    return {
        "dry_run": dry_run,
        "segments": segments,
        "bytes": size,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "path": each.path,
                "deleted": [asdict(deletion) for deletion in each.gone],
                "stays": None if each.stays is None else asdict(each.stays),
                "error": None if each.error is None else str(each.error),
            }
            for each in found
        ],
    }
