"""`kstore topics`: lists topics with sizes and settings; creates, changes and deletes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.commands.opened_stores import add_directories, open_to_change, open_to_show
from kstore.cli.progress import Progress
from kstore.errors import KStoreError, UnknownTopicOrPartitionError
from kstore.files import checkpoint
from kstore.store.disk_usage import Meter, Usage
from kstore.store.store import Store, metadata_of

__all__ = ["run"]

_ABOUT = """\
List the topics of a directory of logs, or show one: partitions, records, sizes and the settings that the store keeps
for the topic. "size" is that of the log files, "on disk" what everything takes. "records" counts offsets from the log
start to the log end, also those of gaps and markers. With --create, --alter or --delete change a topic; the store must
not be in use then. --delete without --yes changes nothing: it prints what would be lost."""
_EXAMPLES = """examples:
  kstore topics data
  kstore topics data orders --json
  kstore topics data orders --create --partitions 4 -c retention.ms=86400000
  kstore topics data orders --alter --partitions 8 -c segment.bytes=16384 --unset retention.ms
  kstore topics data orders --delete --yes
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition has an error, or a topic was not deleted."""
    parser = command_options.Parser("topics", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="a directory of logs; or a URL, to show topics")
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="show or change this topic")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--create", action="store_true", help="create the topic; DIR is created if it is missing")
    how.add_argument("--alter", action="store_true", help="change settings, or add partitions")
    how.add_argument("--delete", action="store_true", help="delete the topic, with its records and groups' positions")
    parser.add_argument(
        "--partitions", type=command_options.whole(1), metavar="N",
        help="with --create: how many (default: 1); with --alter: the new total",
    )  # fmt: skip
    command_options.add_config(parser)
    parser.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="with --alter: remove this setting of the topic"
    )
    parser.add_argument("--yes", action="store_true", help="with --delete: delete it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_directories(parser)
    object_store_options.add_reading(parser)
    asked = parser.parse_args(arguments)
    _check(asked)
    paths = [asked.path, *asked.log_dir]
    if asked.create or asked.alter or asked.delete:
        mounted_paths.refuse_urls(*paths)
        return _change(paths, asked)
    with mounted_paths.mounted("topics", paths, asked) as found, open_to_show(found) as store:
        return _show(store, asked)


def _check(asked: argparse.Namespace) -> None:
    """Refuse combinations of options that have no meaning."""
    changes = asked.create or asked.alter or asked.delete
    if changes and asked.topic is None:
        raise command_options.UsageError("name the topic: kstore topics DIR TOPIC")
    settings = command_options.given(asked)
    if asked.partitions is not None and not (asked.create or asked.alter):
        raise command_options.UsageError("--partitions goes with --create or --alter")
    if settings and not (asked.create or asked.alter):
        raise command_options.UsageError("--config goes with --create or --alter")
    if asked.unset and not asked.alter:
        raise command_options.UsageError("--unset goes with --alter")
    if asked.yes and not asked.delete:
        raise command_options.UsageError("--yes goes with --delete")
    if asked.alter and not (settings or asked.unset or asked.partitions is not None):
        raise command_options.UsageError("--alter needs --partitions, --config or --unset")


# Showing


def _show(store: Store, asked: argparse.Namespace) -> int:
    if asked.topic is not None:
        store.partitions(asked.topic)
    wanted = store.topics if asked.topic is None else (asked.topic,)
    with Progress("topics", len(wanted), "topics") as progress:
        found = list(_all_facts(store, wanted, progress))
    if asked.json:
        print(json.dumps({"topics": found}, indent=2))
    elif not found:
        print("there is no topic")
    else:
        _table(found)
    return output.complain("topics", [error for facts in found for error in facts["errors"]])


def _table(found: list[dict[str, Any]]) -> None:
    rows = [
        [
            escaped(facts["topic"]),
            facts["partitions"],
            facts["records"],
            output.size(facts["size_bytes"]),
            output.size(facts["disk"]["total_bytes"]),
            escaped(" ".join(f"{name}={value}" for name, value in facts["config"].items())),
        ]
        for facts in found
    ]
    output.columns(["topic", "partitions", "records", "size", "on disk", "settings"], rows)


def _all_facts(store: Store, topics: tuple[str, ...], progress: Progress) -> Iterator[dict[str, Any]]:
    meter = Meter()
    for done, topic in enumerate(topics):
        progress.reach(done)
        try:
            yield _facts(store, topic, meter)
        except UnknownTopicOrPartitionError:
            continue  # another process has just deleted it


def _facts(store: Store, topic: str, meter: Meter) -> dict[str, Any]:
    """Return the facts about a topic, under stable names."""
    records, size_bytes, disk = 0, 0, Usage()
    errors = []
    entries = metadata_of(store).current().partitions(topic)
    for number, entry in entries.items():
        try:
            log = store.log(topic, number)
            records += log.log_end_offset - log.log_start_offset
            size_bytes += sum(segment.size_bytes for segment in log.segments)
        except KStoreError as error:
            errors.append(f"{topic}-{number}: {error}")
        disk.add(meter.partition(entry.path))
    topic_id = None
    config: dict[str, str] = {}
    try:
        topic_id = store.topic_id(topic)
        config = dict(metadata_of(store).overrides(topic))
    except KStoreError as error:
        errors.append(f"{topic}: {error}")
    return {
        "topic": topic,
        "topic_id": None if topic_id is None else checkpoint.format_topic_id(topic_id),
        "partitions": len(entries),
        "records": records,
        "size_bytes": size_bytes,
        "disk": disk.to_json(),
        "config": config,
        "errors": errors,
    }


# Changing


def _change(paths: list[str], asked: argparse.Namespace) -> int:
    topic = asked.topic
    if asked.delete and not asked.yes:
        return _tell_loss(paths, asked)
    # Without a delay the files of a deleted topic are gone when the store is closed.
    open_store = partial(Store.open, background=False) if asked.create else open_to_change
    with open_store(paths, file_delete_delay_ms=0) as store:
        if asked.create:
            store.create_topic(topic, asked.partitions or 1, config=command_options.given(asked))
        elif asked.alter:
            _alter(store, asked)
        else:
            store.delete_topic(topic)
            store.run_housekeeping()
        partitions, config = (0, {}) if asked.delete else _state(store, topic)
    verb = "created" if asked.create else "changed" if asked.alter else "deleted"
    if asked.json:
        print(json.dumps({"topic": topic, "done": verb, "partitions": partitions, "config": config}, indent=2))
        return 0
    settings = "".join(f", {name}={value}" for name, value in config.items())
    now = "" if asked.delete else f"; it has {output.count(partitions, 'partition')}{settings}"
    print(escaped(f"topic {topic}: {verb}{now}"))
    return 0


def _state(store: Store, topic: str) -> tuple[int, dict[str, str]]:
    return len(store.partitions(topic)), dict(metadata_of(store).overrides(topic))


def _alter(store: Store, asked: argparse.Namespace) -> None:
    """Change a topic. The settings first: if they are refused, no partition is added."""
    present = store.partitions(asked.topic)
    if asked.partitions is not None and asked.partitions <= len(present):
        held = output.count(len(present), "partition")
        raise command_options.UsageError(f"topic {asked.topic} has {held}; --partitions is the new total")
    settings = dict.fromkeys(asked.unset) | (command_options.given(asked) or {})
    if settings:
        store.update_topic_config(asked.topic, settings)
    if asked.partitions is not None:
        store.add_partitions(asked.topic, asked.partitions)


def _tell_loss(paths: list[str], asked: argparse.Namespace) -> int:
    with open_to_show(paths) as store:
        facts = _facts(store, asked.topic, Meter())
    if asked.json:
        print(json.dumps({"topic": asked.topic, "done": None, "would_lose": facts}, indent=2))
    else:
        _table([facts])
        records = output.count(facts["records"], "record")
        print(f"{records} would be lost; nothing was changed: --yes does it")
    return 1
