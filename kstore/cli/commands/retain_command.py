"""`kstore retain`: applies retention once now. With `--dry-run` it says what retention would delete, and why."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from kstore.base import times
from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths, partition_pass
from kstore.cli.commands.partition_pass import PartitionPass, Result
from kstore.cli.progress import Progress
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import ConfigWarning, UnknownTopicOrPartitionError
from kstore.files import names
from kstore.files.broker_directory import of_brokers
from kstore.log.explaining.unknown_settings import kafka_default, would_delete
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.writing.retention import Deletion, Outlook

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
deleted immediately, without waiting for file.delete.delay.ms."""


class _Done(NamedTuple):
    """The segments of a partition that were (`--dry-run`: would be) deleted, and why the next segment is kept."""

    gone: list[Deletion]
    stays: Outlook | None
    own: dict[str, tuple[Any, Any]]
    """Given settings that the topic overrides: the topic's value, which is used, and the given value."""
    by_default: list[Deletion] | None
    """What Kafka's default would delete; None if the settings are known, as this is no directory of a broker."""


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition had an error."""
    parser = partition_pass.parser(
        "retain", _ABOUT, _EXAMPLES, "say what would be deleted; take no lock and change nothing"
    )
    partition_pass.add_settings(parser, "retention.ms", "retention.bytes")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConfigWarning)  # the warnings are about long-term effects, and this is one pass
    mounted_paths.refuse_urls(*asked.paths)
    paths = list(dict.fromkeys(each for path in asked.paths for each in _partitions_of_topic(path)))
    partitions = [path for path in paths if _is_partition(path)]
    if partitions and asked.topic:
        raise UnknownTopicOrPartitionError(f"--topic goes with a data directory, and {partitions[0]} is a partition's")
    now_ms = time.time_ns() // 1_000_000  # fixed, so that exactly the planned segments are deleted
    retention = PartitionPass(asked, partial(_retain, asked), clock=lambda: now_ms)
    for path in partitions:
        retention.partition(path)
    stores = [path for path in paths if path not in partitions]
    if stores:
        with Progress("retain", unit="partitions") as bar:
            retention.stores(stores, reach=bar.reach, progress=bar.reach)
    note = _note(retention.results)
    gone = [deletion for result in retention.results if result.done is not None for deletion in result.done.gone]
    totals = {"segments": len(gone), "bytes": sum(deletion.size_bytes for deletion in gone)}
    return retention.finish("retain", note, totals, _facts, partial(_print, retention.results, asked.dry_run, totals))


def _partitions_of_topic(path: str) -> list[str]:
    """Return the directories of the partitions of a topic, `DIR/TOPIC`; for an existing directory its own path."""
    return [path] if fs.exists(path) else [entry.path for entry in command_paths.find(path).entries]


def _is_partition(path: str) -> bool:
    """Whether the directory is a partition's, by its name and its files."""
    parsed = [names.parse_file_name(name) for name in fs.listdir(path)]
    has_log = any(name is not None and name.kind == names.LOG for name in parsed)
    return has_log and names.is_partition_name(os.path.basename(os.path.abspath(path)))


def _retain(asked: argparse.Namespace, log: Log) -> _Done:
    own = _own_settings(log.config, command_options.given(asked) or {})
    planned, by_default = log.plan_retention(), _kafkas_deletions(log)
    stays = log.retention_outlook()
    if not asked.dry_run and planned:
        log.update_config(file_delete_delay_ms=0)
        gone = {segment.base_offset for segment in log.apply_retention()}
        log.run_housekeeping()
        planned = [deletion for deletion in planned if deletion.base_offset in gone]
        stays, by_default = log.retention_outlook(), _kafkas_deletions(log)
    return _Done(planned, stays, own, by_default)


def _kafkas_deletions(log: Log) -> list[Deletion] | None:
    """Return what Kafka's default would delete, if kstore's is used for a log whose settings only a broker knows."""
    hosted = HostedLog(log)
    config = kafka_default(os.path.dirname(log.path), log.config)
    return None if config is None else hosted.plan_retention(config)


def _note(results: list[Result[_Done]]) -> str | None:
    """Return what to know about the settings of a broker's directories."""
    unknown = {
        result.path: result.done.by_default
        for result in results
        if result.done is not None and result.done.by_default is not None
    }
    if not unknown:
        return None
    roots = dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in unknown)
    effect = (
        f"No retention.ms is given, so kstore's default counts, which sets no limit; {would_delete(unknown.values())}."
    )
    return of_brokers(roots, effect, "retention.ms")


def _own_settings(config: LogConfig, given: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    """Return the given settings, under a topic's or a broker's name, that are not in force for a log."""
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


def _print(results: list[Result[_Done]], dry_run: bool, totals: dict[str, int]) -> None:
    for result in results:
        if result.done is None:
            continue
        print(f"{result.topic}-{result.partition}")
        for name, (own, given) in result.done.own.items():
            print(f"  not used: the given {name}={given}; the topic has {name}={own} of its own, which is used")
        for gone in result.done.gone:
            verb = "would delete" if dry_run else "deleted"
            print(
                f"  {verb}: segment {gone.base_offset}, offsets {gone.base_offset} to {gone.next_offset - 1}, "
                f"{gone.size_bytes} bytes ({gone.reason}): {gone.explanation}"
            )
        if result.done.stays is not None:
            stays = result.done.stays
            by_default = result.done.by_default
            kafkas = "" if by_default is None else f"; {would_delete([by_default])}"
            print(f"  kept: segment {stays.base_offset} and all after it: {stays.explanation}{_when(stays)}{kafkas}")
    verb = "would be deleted" if dry_run else "deleted"
    where = output.count(len(results), "partition")
    print(f"{output.count(totals['segments'], 'segment')} {verb}, {totals['bytes']} bytes, in {where}")


def _when(stays: Outlook) -> str:
    ways = []
    if stays.due_ms is not None:
        ways.append(f"from {times.show(stays.due_ms)} on")
    if stays.bytes_left is not None:
        ways.append(f"after {stays.bytes_left} more bytes")
    return f"; it is deleted {' or '.join(ways)}" if ways else ""


def _facts(done: _Done | None) -> dict[str, Any]:
    gone, stays, own, by_default = ([], None, {}, None) if done is None else done
    return {
        "deleted": [asdict(deletion) for deletion in gone],
        "stays": None if stays is None else asdict(stays),
        "kafka_default": None if by_default is None else [asdict(deletion) for deletion in by_default],
        "own_settings": {name: value for name, (value, _) in own.items()},
    }
