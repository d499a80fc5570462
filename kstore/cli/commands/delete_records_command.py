"""`kstore delete-records`: raises the log start of partitions. With `--dry-run` it says what that would delete."""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths
from kstore.cli.commands.chosen_offsets import OFFSET_FORMS, chosen_offset
from kstore.errors import KStoreError, OffsetOutOfRangeError
from kstore.log.log import Log
from kstore.log.writing.retention_run import check_deletable
from kstore.store.catalog import Entry

__all__ = ["run"]

_ABOUT = """\
Delete the records of a partition, or of all partitions of a topic, below an offset or a time, as kafka-delete-records
does: the log start is raised, and is on the disk when the command ends. Segments that lie below the log start as a
whole are deleted by the next pass of retention ('kstore retain' runs one). A topic that is compacted only, and an
internal topic, are refused. A log in use is refused."""
_EXAMPLES = """examples:
  kstore delete-records data/orders-0 --before 1000 --dry-run
  kstore delete-records data/orders --before -7d
  kstore delete-records data/orders-0 --before latest --json
"""


class _Deleted(NamedTuple):
    """What was (`--dry-run`: would be) deleted of a partition."""

    entry: Entry
    before: int = 0
    after: int = 0
    segments: int = 0
    """The segments that lie below the log start as a whole."""
    size_bytes: int = 0
    error: KStoreError | None = None

    @property
    def topic(self) -> str:
        return self.entry.topic

    @property
    def partition(self) -> int:
        return self.entry.partition


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition had an error."""
    parser = command_options.Parser("delete-records", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC")
    parser.add_argument(
        "--before", required=True, type=chosen_offset, metavar="WHERE",
        help=f"the first record to keep: {OFFSET_FORMS}",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print what would go; take no lock, change nothing")
    command_options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    mounted_paths.refuse_urls(asked.path)
    done = [_of(entry, asked) for entry in command_paths.find_topic(asked.path).entries]
    if asked.json:
        print(json.dumps({"dry_run": asked.dry_run, "partitions": [_facts(each) for each in done]}, indent=2))
    else:
        for each in done:
            _tell(each, asked.dry_run)
    return output.failures("delete-records", done)


def _of(entry: Entry, asked: argparse.Namespace) -> _Deleted:
    try:
        config = command_paths.settings_in_force(entry.path, command_options.given(asked))
        with Log.open(entry.path, "r" if asked.dry_run else "a", config=config) as log:
            check_deletable(log.topic, log.config)
            before, offset = log.log_start_offset, asked.before.of(log)
            if offset > log.high_watermark:
                raise OffsetOutOfRangeError(f"offset {offset} is above the log end {log.high_watermark}")
            below = [segment for segment in log.segments if segment.next_offset <= offset and not segment.is_active]
            if not asked.dry_run and offset > before:
                log.delete_records(offset)
    except KStoreError as error:
        return _Deleted(entry, error=error)
    return _Deleted(entry, before, max(before, offset), len(below), sum(segment.size_bytes for segment in below))


def _tell(done: _Deleted, dry_run: bool) -> None:
    if done.error is not None:
        return
    place = escaped(f"{done.topic}-{done.partition}")
    if done.after == done.before:
        print(f"{place}: nothing to delete: the log starts at {done.before}")
        return
    verb = "would delete" if dry_run else "deleted"
    files = f"{output.count(done.segments, 'segment')} below it, {output.size(done.size_bytes)}"
    print(f"{place}: {verb} offsets {done.before} to {done.after - 1}; log start {done.after}, {files}")


def _facts(done: _Deleted) -> dict[str, Any]:
    return {
        "topic": done.topic,
        "partition": done.partition,
        "path": done.entry.path,
        "before": done.before,
        "log_start_offset": done.after,
        "segments_below": done.segments,
        "bytes_below": done.size_bytes,
        "error": None if done.error is None else str(done.error),
    }
