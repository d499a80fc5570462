"""`kstore restore`: restores a directory of logs from a backup, as of any time that the backup has."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.progress import Progress
from kstore.copies.backups.restore import restore
from kstore.errors import InvalidTopicError
from kstore.files import names
from kstore.types import Restored

__all__ = ["run"]

_ABOUT = """\
Restore a directory of logs from a backup: as it was last backed up, as it was at a time, or up to given offsets. DIR is
created if it is missing, and must be empty; an interrupted restore continues when it is started again. Lengths and
checksums are checked. The plan is printed first; with --dry-run nothing else is done. A time is that of the backup, not
of the records' timestamps. An object store needs obstore: pip install 'kstore[backup]'."""
_NOT_TOGETHER = """\
another process was writing the directory that was backed up: each partition ends where it had been flushed, and a \
transaction may be in one partition and not in another"""
_OFFSET = re.compile(r"[0-9]{1,18}")
_EXAMPLES = """examples:
  kstore restore s3://bucket/orders data
  kstore restore s3://bucket/orders data --dry-run
  kstore restore s3://bucket/orders yesterday --topic orders --until 2026-11-21T14:00+01:00
  kstore restore /mnt/backup/orders data --until-offset orders-0=1200 --until-offset orders-1=1180"""


def run(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    mounted_paths.refuse_urls(parsed.directory)
    choice: dict[str, Any] = {
        "until": None if parsed.until is None else command_times.parse(parsed.until),
        "offsets": _offsets(parsed.until_offset),
        "topics": parsed.topic,
        "options": object_store_options.options_of(parsed),
    }
    if not parsed.json or parsed.dry_run:
        plan = restore(parsed.url, parsed.directory, dry_run=True, **choice)
        _show(plan, parsed)
    if parsed.dry_run:
        return 0
    with Progress("restore") as bar:
        done = restore(parsed.url, parsed.directory, progress=bar.reach, **choice)
    if parsed.json:
        output.json_line(_facts(done))
    else:
        _print_done(done, parsed.directory)
    return 0


def _show(plan: Restored, parsed: argparse.Namespace) -> None:
    """Say what a restore will do; the first line has the time of the state."""
    if parsed.json:
        output.json_line(_facts(plan))
        return
    print(f"backup {plan.backup}, round {plan.round}, as of {command_times.show(plan.time_ms)}")
    if not plan.caught_up:
        print("the first round of this backup was not finished then: some partitions end earlier than others")
    if not plan.together:
        print(_NOT_TOGETHER)
    rows = [
        [f"{topic}-{number}", part.log_start_offset, part.log_end_offset, len(part.files), output.size(part.bytes)]
        for (topic, number), part in sorted(plan.partitions.items())
    ]
    output.columns(["partition", "log start", "log end", "files", "size"], rows)
    print(f"{output.count(plan.files, 'file')}, {output.size(plan.bytes)}, into {escaped(parsed.directory)}")
    if parsed.dry_run:
        print("nothing was written")
    sys.stdout.flush()


def _print_done(done: Restored, directory: str) -> None:
    fetched = f"{output.size(done.fetched_bytes)} fetched in {done.seconds:.1f} s"
    before = done.bytes - done.fetched_bytes
    there = f", {output.size(before)} were there" if before > 0 else ""
    as_of = command_times.show(done.time_ms)
    print(f"restored round {done.round}, as of {as_of}, into {escaped(directory)}: {fetched}{there}")


def _facts(done: Restored) -> dict[str, Any]:
    fields = {field: value for field, value in asdict(done).items() if field != "partitions"}
    parts = [
        {"topic": topic, "partition": number, **part._asdict()}
        for (topic, number), part in sorted(done.partitions.items())
    ]
    return {**fields, "partitions": parts}


def _offsets(texts: list[str]) -> dict[tuple[str, int], int] | None:
    """Parse arguments such as `orders-0=1200`; None if there are none."""
    found: dict[tuple[str, int], int] = {}
    for text in texts:
        name, _, digits = text.rpartition("=")
        try:
            place = names.parse_partition_name(name)
            names.check_topic(place.topic)
        except InvalidTopicError:
            place = None
        if place is None or place.suffix or not _OFFSET.fullmatch(digits):
            raise command_options.UsageError(
                f"--until-offset takes TOPIC-P=OFFSET, like orders-0=1200, and not {text[:80]!r}"
            )
        if place[:2] in found:
            raise command_options.UsageError(f"--until-offset has {name} twice")
        found[place.topic, place.partition] = int(digits)
    return found or None


def _parser() -> command_options.Parser:
    parser = command_options.Parser("restore", _ABOUT, _EXAMPLES)
    parser.add_argument("url", metavar="URL", help="a URL like s3://bucket/prefix, or a directory")
    parser.add_argument("directory", metavar="DIR", help="the directory to restore into; missing or empty")
    parser.add_argument("--until", metavar="TIME", help=f"as it was backed up at this time: {command_times.HELP}")
    parser.add_argument(
        "--until-offset",
        action="append",
        default=[],
        metavar="TOPIC-P=OFFSET",
        help="end this partition before the batch that holds this offset; may be given again",
    )
    parser.add_argument(
        "--topic", action="append", metavar="T", help="only this topic and the coordinators' own; may be given again"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    object_store_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
