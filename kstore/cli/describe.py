"""`kstore describe`: what is in a directory of logs, a topic, a partition."""

from __future__ import annotations

import argparse
import json
from typing import Any

from kstore import checkpoint
from kstore.catalog import Entry
from kstore.cli import options, output, places, times
from kstore.errors import KStoreError
from kstore.log import Log

__all__ = ["run"]

_ABOUT = """\
Show what is there: topics and partitions with their offsets, sizes and times; of a single partition every segment.
Changes nothing, and may be used on a directory that a broker or a store is writing."""
_EXAMPLES = """examples:
  kstore describe data
  kstore describe data/events
  kstore describe data/events-0 --json
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code; 1 when a partition cannot be read."""
    parser = options.Parser(
        prog="kstore describe",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="DIR", help="a directory of logs, DIR/TOPIC, or DIR/TOPIC-P")
    parser.add_argument("--codecs", action="store_true", help="tell the codecs, too: looks at every batch's header")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    place = places.find(asked.path)
    found = [_partition(entry, codecs=asked.codecs) for entry in place.entries]
    if asked.json:
        print(json.dumps({"path": place.root, "partitions": found, "passed_over": place.passed_over}, indent=2))
    elif place.partition is not None:
        _show_one(found[0])
    else:
        _show_all(place, found)
    return 1 if any(facts.get("error") for facts in found) else 0


def _partition(entry: Entry, *, codecs: bool) -> dict[str, Any]:
    """What there is to say of one partition, under names that stay."""
    facts: dict[str, Any] = {"topic": entry.topic, "partition": entry.partition, "path": entry.path}
    try:
        metadata = checkpoint.read_partition_metadata(entry.path)
        facts["topic_id"] = None if metadata is None else checkpoint.format_topic_id(metadata.topic_id)
        with Log.open(entry.path, "r") as log:
            segments = log.segments
            facts |= {
                "log_start_offset": log.log_start_offset,
                "log_end_offset": log.log_end_offset,
                "recovery_point": log.stats()["recovery_point"],
                "size_bytes": sum(segment.size_bytes for segment in segments),
                "first_timestamp": next((s.first_timestamp for s in segments if s.first_timestamp >= 0), None),
                "max_timestamp": max((s.max_timestamp for s in segments if s.max_timestamp >= 0), default=None),
                "segments": [
                    {
                        "base_offset": segment.base_offset,
                        "next_offset": segment.next_offset,
                        "size_bytes": segment.size_bytes,
                        "offset_index_entries": segment.offset_index_entries,
                        "time_index_entries": segment.time_index_entries,
                        "first_timestamp": segment.first_timestamp if segment.first_timestamp >= 0 else None,
                        "max_timestamp": segment.max_timestamp if segment.max_timestamp >= 0 else None,
                        "is_active": segment.is_active,
                        "path": segment.path,
                    }
                    for segment in segments
                ],
            }
            if codecs:
                facts["codecs"] = sorted({batch.compression for batch in log.read_batches()})
    except KStoreError as error:
        facts["error"] = str(error)
    return facts


def _show_all(place: places.Place, found: list[dict[str, Any]]) -> None:
    if not found:
        print(f"{place.root}: no partition is here")
        return
    header = ["partition", "start", "end", "segments", "size", "oldest record", "newest record"]
    rows = []
    for facts in found:
        name = f"{facts['topic']}-{facts['partition']}"
        if "error" in facts:
            rows.append([name, "-", "-", "-", "-", facts["error"], ""])
            continue
        row = [name, facts["log_start_offset"], facts["log_end_offset"], len(facts["segments"])]
        row += [
            output.size(facts["size_bytes"]),
            times.show(facts["first_timestamp"]),
            times.show(facts["max_timestamp"]),
        ]
        rows.append(row + ([",".join(facts["codecs"])] if "codecs" in facts else []))
    if any("codecs" in facts for facts in found):
        header.append("codecs")
        rows = [row + [""] * (len(header) - len(row)) for row in rows]
    output.columns(header, rows)
    sound = [facts for facts in found if "error" not in facts]
    topics = {facts["topic"] for facts in found}
    total = output.size(sum(facts["size_bytes"] for facts in sound))
    records = sum(facts["log_end_offset"] - facts["log_start_offset"] for facts in sound)
    print(f"{len(topics)} topics, {len(found)} partitions, {records} offsets, {total}")
    for path in place.passed_over:
        print(f"passed over, it is no partition: {path}")


def _show_one(facts: dict[str, Any]) -> None:
    print(f"{facts['topic']}-{facts['partition']} at {facts['path']}")
    if "error" in facts:
        print(f"  {facts['error']}")
        return
    print(f"  topic id {facts['topic_id'] or 'none'}")
    print(
        f"  offsets {facts['log_start_offset']} to {facts['log_end_offset']} (the next one), "
        f"{output.size(facts['size_bytes'])}, recovery point {facts['recovery_point']}"
    )
    if "codecs" in facts:
        print(f"  codecs {', '.join(facts['codecs']) or 'none'}")
    print()
    output.columns(
        ["segment", "next offset", "bytes", "index", "time index", "first timestamp", "greatest timestamp"],
        [
            [
                segment["base_offset"],
                segment["next_offset"],
                segment["size_bytes"],
                segment["offset_index_entries"],
                segment["time_index_entries"],
                times.show(segment["first_timestamp"]),
                times.show(segment["max_timestamp"]),
            ]
            for segment in facts["segments"]
        ],
    )
