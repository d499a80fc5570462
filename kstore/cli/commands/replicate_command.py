"""`kstore replicate`: copies a directory of logs to a follower, once or continuously."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from kstore.base.stats import ReplicationStats
from kstore.base.terminal import escaped
from kstore.cli import command_options, output
from kstore.cli.commands import copy_messages, mounted_paths
from kstore.cli.commands.lag_display import LagDisplay, lags_of, total_of
from kstore.cli.progress import Progress
from kstore.cli.stopping import Stopping
from kstore.copies.replication.replicate import Replication, replicate
from kstore.disk import fs
from kstore.errors import ReplicationError, UnknownTopicOrPartitionError
from kstore.store import catalog

__all__ = ["run"]

_ABOUT = """\
Make DST a follower of SRC: the same batches at the same offsets with the same leader epochs, topics with their ids and
settings, log starts, and the coordinators' topics. SRC is the directory of a store or of a broker, which may be
writing to it; the command does not change it. If DST has records already, copying continues at its end; records that
SRC does not have are truncated, by leader epochs, as Kafka's followers do. Without --follow the command ends when DST
has everything that SRC had."""
_EXAMPLES = """examples:
  kstore replicate data copy
  kstore replicate data copy --follow
  kstore replicate /mnt/a/logs /mnt/b/logs copy --topic orders --topic payments
  kstore replicate new-leader old-leader --save-truncated cut

'kstore become-leader DST' makes the follower a leader. --follow ends with Ctrl-C (exit code 130) or SIGTERM (0); the
next run continues from there."""
_SOURCES = {
    "followed": "the source is written, and followed",
    "no writer": "the source stands still: no writer has it open",
    "gone": "the source is gone",
}
_LOOK_SECONDS = 0.1


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition could not be copied."""
    parsed = _parser().parse_args(arguments)
    mounted_paths.refuse_urls(*parsed.source, parsed.target)
    facts, code = _follow(parsed) if parsed.follow else (_once(parsed), 0)
    return code or output.complain("replicate", _failures(facts))


def _start(parsed: argparse.Namespace) -> Replication:
    return replicate(
        parsed.source, parsed.target, topics=parsed.topic, follow=True, save_truncated=parsed.save_truncated
    )


def _once(parsed: argparse.Namespace) -> ReplicationStats:
    """Copy everything once. Another thread waits for the end, while this one shows the progress."""
    _refuse_unknown_topics(parsed)
    with copy_messages.warnings("replicate"), Progress("replicate") as bar, _start(parsed) as replication:
        caught_up = threading.Thread(target=replication.wait_caught_up, name="kstore-replicate", daemon=True)
        caught_up.start()
        behind = 0
        while caught_up.is_alive():
            caught_up.join(_LOOK_SECONDS)
            facts = replication.stats()
            if facts["source"] == "gone":
                source = ", ".join(parsed.source)
                raise ReplicationError(
                    f"{source} is gone, or empty as if its disk were not mounted; the copied data is kept"
                )
            left = sum(lag.size_bytes or 0 for lag in lags_of(facts["partitions"]))
            behind = max(behind, left)
            bar.reach(behind - left, behind)
        facts = replication.stats()
    if parsed.json:
        output.json_line(facts)
    else:
        for line in _Told().news(facts):
            print(escaped(line))
        lags = lags_of(facts["partitions"])
        rows = [[lag.name, lag.log_end_offset, "failed" if lag.failure else "copied"] for lag in lags]
        output.columns(["partition", "log end", ""], rows)
        print(total_of(lags))
    return facts


def _refuse_unknown_topics(parsed: argparse.Namespace) -> None:
    """Raise `UnknownTopicOrPartitionError` for a topic that neither side has. With `--follow` it may appear later."""
    sides = [*catalog.real_paths(parsed.source), *filter(fs.exists, catalog.real_paths(parsed.target))]
    known = {entry.topic for side in sides for entry in catalog.look([side]).entries}
    for topic in parsed.topic or ():
        if topic not in known and known:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r} in {', '.join(parsed.source)}")


def _follow(parsed: argparse.Namespace) -> tuple[ReplicationStats, int]:
    """Follow until a signal, or until following fails; return the last stats and the exit code of the signal."""
    told = _Told()
    with (
        Stopping() as stopping,
        LagDisplay(as_json=parsed.json, seconds=parsed.show_every) as display,
        copy_messages.told(display.tell),
        _start(parsed) as replication,
    ):
        goes_on = True
        while goes_on:
            is_stopped = stopping.wait(display.seconds)
            facts = replication.stats()
            goes_on = facts["following"] and not is_stopped
            for line in told.news(facts):
                display.tell(line)
            lags = lags_of(facts["partitions"])
            display.show(facts, lags, f"{total_of(lags)}; {_SOURCES[facts['source']]}")
    return facts, stopping.exit_code


class _Told:
    """Remembers which truncations have been printed."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def news(self, facts: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for each truncation since the last call."""
        for name, partition in facts["partitions"].items():
            truncations = partition.get("truncations", [])
            for cut in truncations[self._count.get(name, 0) :]:
                first, last = cut["offset"], cut["end_offset"] - 1
                records = output.count(cut["records"], "record")
                where = f", kept in {', '.join(cut['saved'])}" if cut["saved"] else ""
                yield f"{name}: cut offsets {first} to {last} ({records}), which the leader does not have{where}"
            self._count[name] = len(truncations)


def _failures(facts: Mapping[str, Any]) -> list[str]:
    """Return a line for each topic and partition that is not copied, with the reason."""
    found = [f"{name}: {part['failure']}" for name, part in facts["partitions"].items() if part["failure"]]
    found += [f"{topic}: {reason}" for topic, reason in facts["failures"].items()]
    return found + ([facts["failure"]] if facts["failure"] else [])


def _parser() -> command_options.Parser:
    parser = command_options.Parser("replicate", _ABOUT, _EXAMPLES)
    parser.add_argument("source", metavar="SRC", nargs="+", help="the leader's log directories")
    parser.add_argument("target", metavar="DST", help="the follower's directory; created if it is missing")
    parser.add_argument("-f", "--follow", action="store_true", help="copy new records as they come, and show the lag")
    parser.add_argument("--topic", action="append", metavar="T", help="only this topic; may be given again")
    parser.add_argument(
        "--save-truncated",
        metavar="DIR",
        help="save truncated records as DIR/TOPIC-P/OFFSET.log, which is never overwritten",
    )
    parser.add_argument(
        "--show-every",
        type=command_options.duration,
        metavar="TIME",
        help="with --follow: how often to show the lag, like 5s",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; with --follow a line each time")
    return parser
