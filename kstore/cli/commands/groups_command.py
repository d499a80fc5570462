"""`kstore groups`: shows the positions and the lag of consumer groups, sets positions, and deletes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.commands.chosen_offsets import OFFSET_FORMS, chosen_offset
from kstore.cli.commands.opened_stores import add_directories, open_to_change, open_to_show
from kstore.errors import KStoreError, UnknownTopicOrPartitionError
from kstore.store.coordinator.group_lag import PartitionLag, group_lag, offsets_behind, total_lag
from kstore.store.store import Store, group_lags_of

__all__ = ["run"]

_ABOUT = """\
List the consumer groups with their lag, or show the positions of one group. With --reset-to, --shift-by or --delete
change the positions; the store must not be in use then. The lag of a partition is its log end offset minus the
position, as kafka-consumer-groups prints it; a partition that the group has not read counts from its log start. The
total counts a negative lag (a position above the log end) as 0. --reset-to and --shift-by set a position outside of the
log to the log start or the log end."""
_EXAMPLES = """examples:
  kstore groups data
  kstore groups data billing --json
  kstore groups data billing --reset-to -1h --dry-run
  kstore groups data billing --reset-to earliest --topic orders --partition 3
  kstore groups data billing --delete --topic orders
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition has an error."""
    parser = command_options.Parser("groups", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="a directory of logs; or a URL, to show groups")
    parser.add_argument("group", metavar="GROUP", nargs="?", help="show or change this group")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--reset-to", type=chosen_offset, metavar="WHERE",
        help=f"commit these positions in the group's topics, or in those of --topic: {OFFSET_FORMS}",
    )  # fmt: skip
    how.add_argument("--shift-by", type=int, metavar="N", help="move the positions by N offsets, back if N is negative")
    how.add_argument("--delete", action="store_true", help="delete the group's positions; without any it is gone")
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given again")
    parser.add_argument(
        "--partition", type=command_options.whole(0), action="append", default=[], metavar="P",
        help="only this partition; may be given again",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print what would change; take no lock, change nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_directories(parser)
    object_store_options.add_reading(parser)
    asked = parser.parse_args(arguments)
    changes = asked.reset_to is not None or asked.shift_by is not None or asked.delete
    if changes and asked.group is None:
        raise command_options.UsageError("name the group whose positions change: kstore groups DIR GROUP")
    if asked.dry_run and not changes:
        raise command_options.UsageError("--dry-run goes with --reset-to, --shift-by or --delete")
    paths = [asked.path, *asked.log_dir]
    if changes:
        mounted_paths.refuse_urls(*paths)
        return _change(paths, asked)
    with mounted_paths.mounted("groups", paths, asked) as found, open_to_show(found) as store:
        return _list(store, asked) if asked.group is None else _show(store, asked)


# Showing


def _list(store: Store, asked: argparse.Namespace) -> int:
    found = [(group, _wanted(lags, asked)) for group, lags in group_lags_of(store)]
    is_part = bool(asked.topic or asked.partition)
    found = [(group, lags) for group, lags in found if lags or not is_part]
    if asked.json:
        print(json.dumps({"groups": [_summary(group, lags) for group, lags in found]}, indent=2))
    elif not found:
        print("no group has committed a position" + (" there" if is_part else ""))
    else:
        rows = [
            [
                escaped(group),
                len({each.topic for each in lags}),
                len(lags),
                total_lag(lags),
                command_times.show(_last_commit(lags)),
            ]
            for group, lags in found
        ]
        output.columns(["group", "topics", "partitions", "lag", "last commit"], rows)
    return output.complain("groups", [f"{escaped(group)}: {line}" for group, lags in found for line in _errors(lags)])


def _show(store: Store, asked: argparse.Namespace) -> int:
    lags = _chosen(store, asked)
    if asked.json:
        print(json.dumps({**_summary(asked.group, lags), "partitions": [_facts(each) for each in lags]}, indent=2))
    else:
        rows = [
            [
                escaped(f"{each.topic}-{each.partition}"),
                _shown(each.position),
                _shown(each.log_end_offset),
                _shown(each.lag),
                command_times.show(None if each.position is None else each.position.commit_timestamp),
                "" if each.position is None else escaped(each.position.metadata),
            ]
            for each in lags
        ]
        output.columns(["partition", "position", "log end", "lag", "committed", "metadata"], rows)
        print(f"lag {total_lag(lags)} in {output.count(len(lags), 'partition')}")
    return output.complain("groups", _errors(lags))


def _lags(store: Store, group: str) -> list[PartitionLag]:
    """Return a group's lags; raises `UnknownTopicOrPartitionError` if it has no position."""
    [(_, lags)] = group_lags_of(store, group)
    if not lags:
        names = [name for name, _ in group_lags_of(store)]
        others = f"there is {', '.join(names[:10])}" if names else "there is no group at all"
        raise UnknownTopicOrPartitionError(f"group {group!r} has no position; {others}")
    return lags


def _wanted(lags: Iterable[PartitionLag], asked: argparse.Namespace) -> list[PartitionLag]:
    return [
        each
        for each in lags
        if (not asked.topic or each.topic in asked.topic) and (not asked.partition or each.partition in asked.partition)
    ]


def _chosen(store: Store, asked: argparse.Namespace) -> list[PartitionLag]:
    """Return the group's lags in the wanted partitions; raises `UnknownTopicOrPartitionError` if there are none."""
    found = _wanted(_lags(store, asked.group), asked)
    if not found:
        raise UnknownTopicOrPartitionError(f"group {asked.group!r} reads no such partition")
    return found


def _summary(group: str, lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "group": group,
        "topics": sorted({each.topic for each in lags}),
        "partitions": len(lags),
        "lag": total_lag(lags),
        "commit_timestamp": _last_commit(lags),
    }


def _facts(each: PartitionLag) -> dict[str, Any]:
    position = each.position
    return {
        "topic": each.topic,
        "partition": each.partition,
        "position": None if position is None else int(position),
        "log_start_offset": each.log_start_offset,
        "log_end_offset": each.log_end_offset,
        "lag": each.lag,
        "commit_timestamp": None if position is None else position.commit_timestamp,
        "leader_epoch": None if position is None else position.leader_epoch,
        "metadata": None if position is None else position.metadata,
        "error": None if each.error is None else str(each.error),
    }


def _last_commit(lags: list[PartitionLag]) -> int | None:
    return max((each.position.commit_timestamp for each in lags if each.position is not None), default=None)


def _errors(lags: Iterable[PartitionLag]) -> list[str]:
    return [f"{each.topic}-{each.partition}: {each.error}" for each in lags if each.error is not None]


def _shown(number: int | None) -> str:
    return "-" if number is None else str(int(number))


# Changing


class _Step(NamedTuple):
    """The change of one position; `after` is None if it is deleted."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    log_end_offset: int | None = None
    log_start_offset: int = 0

    @property
    def lag(self) -> int | None:
        if self.after is None or self.log_end_offset is None:
            return None
        return offsets_behind(self.log_end_offset, self.after, self.log_start_offset)


def _change(paths: list[str], asked: argparse.Namespace) -> int:
    with open_to_show(paths) if asked.dry_run else open_to_change(paths) as store:
        if asked.delete:
            steps, failures = _deletions(store, asked), list[str]()
        else:
            steps, failures = _resets(store, asked)
        if not asked.dry_run and steps:
            _carry_out(store, asked.group, steps)
    _tell(steps, asked)
    return output.complain("groups", failures)


def _carry_out(store: Store, group: str, steps: list[_Step]) -> None:
    positions = {(step.topic, step.partition): step.after for step in steps if step.after is not None}
    if positions:
        store.commit_offsets(group, positions, sync=True)
    else:
        store.delete_offsets(group, [(step.topic, step.partition) for step in steps])
        store.flush()


def _deletions(store: Store, asked: argparse.Namespace) -> list[_Step]:
    found = [each for each in _wanted(_lags(store, asked.group), asked) if each.position is not None]
    if not found:
        raise UnknownTopicOrPartitionError(f"group {asked.group!r} has no position there")
    return [_Step(each.topic, each.partition, each.position, None, each.log_end_offset) for each in found]


def _resets(store: Store, asked: argparse.Namespace) -> tuple[list[_Step], list[str]]:
    """Return the changes of `--reset-to` and `--shift-by`, and what cannot be changed."""
    steps, failures = [], []
    for each in _to_reset(store, asked):
        place = f"{each.topic}-{each.partition}"
        if each.log_start_offset is None or each.log_end_offset is None:
            why = f"the partition is not here, and position {each.position} stays" if each.error is None else each.error
            failures.append(f"{place}: {why}")
            continue
        start, end = each.log_start_offset, each.log_end_offset
        if asked.shift_by is None:
            try:
                after = asked.reset_to.of(store.log(each.topic, each.partition))
            except KStoreError as error:
                failures.append(f"{place}: {error}")
                continue
        elif each.position is None:
            failures.append(f"{place}: there is no position to shift; --reset-to sets one")
            continue
        else:
            after = each.position + asked.shift_by
        # As in Kafka's tool, a position is moved into the log.
        steps.append(_Step(each.topic, each.partition, each.position, min(max(after, start), end), end, start))
    return steps, failures


def _to_reset(store: Store, asked: argparse.Namespace) -> list[PartitionLag]:
    """Return the partitions to reset: those of the given topics, otherwise of the topics that the group reads."""
    if not asked.topic:
        return _chosen(store, asked)
    for topic in asked.topic:
        missing = set(asked.partition) - set(store.partitions(topic))
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {topic} has no partition {min(missing)}")
    positions = store.committed_offsets(asked.group)
    places = [(topic, number) for topic in asked.topic for number in store.partitions(topic)]
    lags = group_lag({place: positions.get(place) for place in places}, store.partitions, store.log)
    return _wanted(lags, asked)


def _tell(steps: list[_Step], asked: argparse.Namespace) -> None:
    if asked.json:
        partitions = [
            {
                "topic": step.topic,
                "partition": step.partition,
                "before": None if step.before is None else int(step.before),
                "after": step.after,
                "log_end_offset": step.log_end_offset,
                "lag": step.lag,
            }
            for step in steps
        ]
        print(json.dumps({"group": asked.group, "dry_run": asked.dry_run, "partitions": partitions}, indent=2))
        return
    if steps:
        rows = [
            [escaped(f"{step.topic}-{step.partition}"), *map(_shown, (step.before, step.after, step.lag))]
            for step in steps
        ]
        output.columns(["partition", "before", "after", "lag"], rows)
    verb = "deleted" if asked.delete else "set"
    would = "would be " if asked.dry_run else ""
    print(f"{output.count(len(steps), 'position')} {would}{verb}")
