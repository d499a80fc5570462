"""`kstore backup`: backs up directories of logs, which another process may be writing, to an object store."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from typing import Any

from kstore.base.stats import BackupStats
from kstore.cli import command_options, output
from kstore.cli.commands import copy_messages, mounted_paths, object_store_options
from kstore.cli.commands.lag_display import Lag, LagDisplay, total_of
from kstore.cli.progress import Progress
from kstore.cli.stopping import Stopping
from kstore.copies.backups.backup import Backup, back_up_directory
from kstore.disk import fs
from kstore.objects.open_objects import open_objects, refuse_inside
from kstore.store import catalog

__all__ = ["run"]

_ABOUT = """\
Send new data from the log directories of one store, or of a broker, to an object store: S3, GCS, Azure, or a directory.
Only flushed data is sent, so that a backup never has a record that the source can still lose in a crash. A store or a
broker may be writing to the directories; the command does not change them. If two writers use the same URL, the older
one stops, so that they cannot damage the backup. An object store needs obstore: pip install 'kstore[backup]'."""
_EXAMPLES = """examples:
  kstore backup data --to s3://bucket/orders
  kstore backup data --to s3://bucket/orders --follow --every 5s --window 30d
  kstore backup data --to /mnt/backup/orders
  kstore backup data --to s3://bucket/x --option endpoint=http://127.0.0.1:9000 --option allow_http=true

Credentials are taken from where the provider's own tools find them, or from --option. --follow ends with Ctrl-C
(exit code 130) or SIGTERM (0), after a last round; the next run continues from there."""
_LOOK_SECONDS = 0.1
_ENDS = ("backed up to", "log end")


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition could not be sent."""
    parsed = _parser().parse_args(arguments)
    if parsed.every is not None and not parsed.follow:
        raise command_options.UsageError("--every goes with --follow: without it everything is sent once")
    given = object_store_options.options_of(parsed)
    mounted_paths.refuse_urls(*parsed.paths)
    for path in parsed.paths:
        fs.stat(path)
    refuse_inside(parsed.to, catalog.real_paths(parsed.paths))  # before the directory is created
    facts, code = _follow(parsed, given) if parsed.follow else (_once(parsed, given), 0)
    failures = [f"{name}: {why}" for name, why in facts["unknown"].items()]
    failures += [facts["failure"]] if facts["failure"] else []
    return code or output.complain("backup", failures)


def _times(parsed: argparse.Namespace) -> dict[str, Any]:
    given = {"every": parsed.every, "window": parsed.window}
    return {name: seconds for name, seconds in given.items() if seconds is not None}


def _once(parsed: argparse.Namespace, given: dict[str, Any] | None) -> BackupStats:
    """Send new data in another thread, while this one shows the progress."""
    done: list[Backup] = []
    errors: list[BaseException] = []
    with (
        copy_messages.warnings("backup"),
        Progress("backup") as bar,
        open_objects(parsed.to, given, create=True) as objects,
    ):

        def send() -> None:
            try:
                done.append(back_up_directory(parsed.paths, objects, **_times(parsed)))
            except BaseException as error:
                errors.append(error)

        sending = threading.Thread(target=send, name="kstore-backup-once", daemon=True)
        sending.start()
        while sending.is_alive():
            sending.join(_LOOK_SECONDS)
            bar.reach(objects.sent_bytes)
        if errors:
            raise errors[0]
        with done[0] as backup:
            facts = backup.stats()
    if parsed.json:
        output.json_line(facts)
    else:
        print(f"{total_of(_lags(facts))}; {_summary(facts)}")
    return facts


def _follow(parsed: argparse.Namespace, given: dict[str, Any] | None) -> tuple[BackupStats, int]:
    """Back up until a signal or until another writer takes over; return the last stats and the exit code."""
    with (
        Stopping() as stopping,
        LagDisplay(as_json=parsed.json, seconds=parsed.show_every, ends=_ENDS) as display,
        copy_messages.told(display.tell),
    ):
        with back_up_directory(parsed.paths, parsed.to, follow=True, options=given, **_times(parsed)) as backup:
            goes_on = True
            while goes_on:
                is_stopped = stopping.wait(display.seconds)
                goes_on = _show(display, backup) and not is_stopped
        _show(display, backup)  # the state after the last round
        facts = backup.stats()
    return facts, stopping.exit_code


def _show(display: LagDisplay, backup: Backup) -> bool:
    """Show the current state; return whether the backup continues."""
    facts = backup.stats()
    lags = _lags(facts)
    display.show(facts, lags, f"{total_of(lags)}; {_summary(facts)}")
    return not facts["fenced"]


def _lags(facts: Mapping[str, Any]) -> list[Lag]:
    known = {
        name: Lag(name, part["end_offset"], part["log_end_offset"], part["lag_records"], None, None, None)
        for name, part in facts["partitions"].items()
    }
    unknown = {name: Lag(name, None, None, None, None, None, why) for name, why in facts["unknown"].items()}
    return [lag for _, lag in sorted((known | unknown).items())]


def _summary(facts: Mapping[str, Any]) -> str:
    requests = sum(facts["requests"].values())
    counted = output.count(facts["rounds"], "round"), output.count(requests, "request")
    return f"{', '.join(counted)}, {output.size(facts['sent_bytes'])} sent"


def _parser() -> command_options.Parser:
    parser = command_options.Parser("backup", _ABOUT, _EXAMPLES)
    parser.add_argument("paths", metavar="DIR", nargs="+", help="the log directories of one store or broker")
    parser.add_argument("--to", metavar="URL", required=True, help="a URL like s3://bucket/prefix, or a directory")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="send new data once, and end (the default)")
    how.add_argument("-f", "--follow", action="store_true", help="continue, with a round every second")
    parser.add_argument(
        "--every",
        type=command_options.duration,
        metavar="TIME",
        help="with --follow: the time between two rounds, like 5s (default: 1s)",
    )
    parser.add_argument(
        "--window",
        type=command_options.duration,
        metavar="TIME",
        help="how far back any time can be restored, like 12h or 30d (default: 7d)",
    )
    parser.add_argument(
        "--show-every", type=command_options.duration, metavar="TIME", help="with --follow: how often to show the lag"
    )
    object_store_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON; with --follow a line each time")
    return parser
