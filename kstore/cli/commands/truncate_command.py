"""`kstore truncate`: cuts the records at the end of a partition. With `--dry-run` it says what would be lost."""

from __future__ import annotations

import json
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths
from kstore.columns._columns import Columns
from kstore.errors import ConfigError, OffsetOutOfRangeError
from kstore.log.log import Log

__all__ = ["run"]

_ABOUT = """\
Cut a partition: the records at and above an offset are lost. A batch is cut as a whole, so records below the offset are
lost, too, if they are in one batch with it; then the log ends below the offset. --dry-run prints all this. A log in use
is refused."""
_EXAMPLES = """examples:
  kstore truncate data/orders-0 --to 1000 --dry-run
  kstore truncate data/orders-0 --to 1000
"""


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("truncate", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P")
    parser.add_argument(
        "--to", required=True, type=command_options.whole(0), metavar="OFFSET", help="the first offset that is cut"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would go; take no lock, change nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    mounted_paths.refuse_urls(asked.path)
    place = command_paths.find_topic(asked.path)
    if place.partition is None:
        raise ConfigError(f"{asked.path} is a topic; name one partition of it: {asked.path}-0")
    [entry] = place.entries
    config = command_paths.settings_in_force(entry.path, None)
    with Log.open(entry.path, "r" if asked.dry_run else "a", config=config) as log:
        facts = _loss(log, asked.to)
        if not asked.dry_run:
            log.truncate_to(facts["log_end_offset"])
    if asked.json:
        print(json.dumps({"path": entry.path, "dry_run": asked.dry_run, **facts}, indent=2))
    else:
        _tell(f"{entry.topic}-{entry.partition}", facts, asked.to, asked.dry_run)
    return 0


def _loss(log: Log, offset: int) -> dict[str, Any]:
    """Return what a truncation cuts, under stable names. Raises `OffsetOutOfRangeError` below the log start."""
    start, end = log.log_start_offset, log.log_end_offset
    if offset < start:
        raise OffsetOutOfRangeError(f"offset {offset} is below the log start {start} of {log.path}")
    if offset >= end:
        return {"before": end, "log_end_offset": end, "segments": 0, "bytes": 0}
    above = [segment for segment in log.segments if segment.base_offset > offset]
    cut = log.batch_table(offset, end_offset=above[0].base_offset if above else end)
    # The log ends where the batch begins: a later opening would not find an end inside of it.
    first = _first_offset(log, cut, offset)
    return {
        "before": end,
        "log_end_offset": max(min(first, offset), start),
        "segments": len(above),
        "bytes": int(cut["size_bytes"].sum()) + sum(segment.size_bytes for segment in above),
    }


def _first_offset(log: Log, cut: Columns, offset: int) -> int:
    """Return the first offset of the batch that holds `offset`, or the offset itself in a gap."""
    first = next(iter(cut["base_offset"].tolist()), offset)
    if first >= 0:
        return int(first)
    return next(log.read_batches(offset)).base_offset  # only the compressed part of an old message tells it


def _tell(place: str, facts: dict[str, Any], asked: int, dry_run: bool) -> None:
    first, end = facts["log_end_offset"], facts["before"]
    if first == end:
        print(f"{escaped(place)}: nothing to cut: the log ends at {end}")
        return
    verb = "would cut" if dry_run else "cut"
    what = f"{output.size(facts['bytes'])}, {output.count(facts['segments'], 'segment')} as a whole"
    print(f"{escaped(place)}: {verb} offsets {first} to {end - 1}, {what}; the log ends at {first}")
    if first < asked:
        print(f"  {output.count(asked - first, 'offset')} below {asked} among them, in one batch with it")
