"""`kstore describe`: what is in a directory of logs, a topic, a partition."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import numpy

from kstore import checkpoint, loads
from kstore.catalog import Entry
from kstore.cli import options, output, places, times
from kstore.cli.progress import Progress
from kstore.compression import NAMES
from kstore.errors import CorruptRecordError, KStoreError, StorageError
from kstore.log import Log
from kstore.segment import SegmentInfo

__all__ = ["run"]

_ABOUT = """\
Show what is there: topics and partitions with their offsets, sizes, times and codecs; of a single partition every
segment. Changes nothing, and may be used on a directory that a broker or a store is writing. A segment's codec is that
of its first batch, unless --codecs is given."""
_EXAMPLES = """examples:
  kstore describe data
  kstore describe data/events
  kstore describe data/events-0 --codecs --json
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
    parser.add_argument("--codecs", action="store_true", help="look at every batch's header for the codecs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    place = places.find(asked.path)
    found = []
    with Progress("describe", len(place.entries), "partitions") as progress:
        for number, entry in enumerate(place.entries):
            progress.reach(number)
            found.append(_partition(entry, every_batch=asked.codecs))
    load = _pending_load(place.root)
    if asked.json:
        told = {"path": place.root, "partitions": found, "passed_over": place.passed_over, "pending_load": load}
        print(json.dumps(told, indent=2))
    elif place.partition is not None:
        _show_one(found[0], every_batch=asked.codecs)
    else:
        _show_all(place, found, every_batch=asked.codecs)
    if load is not None and not asked.json:
        print(output.painted(load, "yellow"))
    return 1 if any(facts.get("error") for facts in found) else 0


def _pending_load(root: str) -> str | None:
    try:
        record = loads.read_commit(root)
    except StorageError as error:
        return str(error)
    return None if record is None else str(record)


def _partition(entry: Entry, *, every_batch: bool) -> dict[str, Any]:
    """What there is to say of one partition, under names that stay."""
    facts: dict[str, Any] = {"topic": entry.topic, "partition": entry.partition, "path": entry.path}
    try:
        metadata = checkpoint.read_partition_metadata(entry.path)
        facts["topic_id"] = None if metadata is None else checkpoint.format_topic_id(metadata.topic_id)
        with Log.open(entry.path, "r") as log:
            segments = log.segments
            start, end = log.log_start_offset, log.log_end_offset
            point = int(log.stats()["recovery_point"])
            newest = max((s.max_timestamp for s in segments if s.max_timestamp >= 0), default=None)
            codecs = [_codecs(log, segment, every_batch=every_batch) for segment in segments]
            facts |= {
                "log_start_offset": start,
                "log_end_offset": end,
                "recovery_point": point,
                "size_bytes": sum(segment.size_bytes for segment in segments),
                "first_timestamp": _oldest(log, start, end),
                "max_timestamp": newest if start < end else None,
                "codecs": sorted(set().union(*codecs)),
                "codecs_of": "every batch" if every_batch else "the first batch of each segment",
                "segments": [
                    {
                        "base_offset": segment.base_offset,
                        "next_offset": segment.next_offset,
                        "size_bytes": segment.size_bytes,
                        "offset_index_entries": segment.offset_index_entries,
                        "time_index_entries": segment.time_index_entries,
                        "first_timestamp": _oldest(log, max(segment.base_offset, start), segment.next_offset),
                        "max_timestamp": segment.max_timestamp if segment.max_timestamp >= 0 else None,
                        "codecs": sorted(found),
                        "is_active": segment.is_active,
                        "path": segment.path,
                    }
                    for segment, found in zip(segments, codecs, strict=True)
                ],
            }
        if point > end:
            facts["error"] = f"it ends at {end}, below its recovery point {point}; kstore verify tells more"
    except KStoreError as error:
        facts["error"] = str(error)
    return facts


def _oldest(log: Log, start: int, end: int) -> int | None:
    """The timestamp of the first record from `start` on, None for none; damage is for `kstore verify` to tell."""
    if start >= end:
        return None
    try:
        record = next(iter(log.read(start, end_offset=end)), None)
    except CorruptRecordError:
        return None
    return None if record is None or record.timestamp < 0 else record.timestamp


def _codecs(log: Log, segment: SegmentInfo, *, every_batch: bool) -> set[str]:
    """The codecs of a segment's batches, from their headers; or that of the first."""
    start, end = max(segment.base_offset, log.log_start_offset), segment.next_offset
    if start >= end:
        return set()
    try:
        if every_batch:
            numbers = numpy.unique(log.batch_table(start, end_offset=end)["compression"]).tolist()
            return {NAMES[number] if number < len(NAMES) else f"unknown ({number})" for number in numbers}
        return {batch.compression for batch in itertools.islice(log.read_batches(start, end_offset=end), 1)}
    except CorruptRecordError:
        return {"damaged"}


def _show_all(place: places.Place, found: list[dict[str, Any]], *, every_batch: bool) -> None:
    if not found:
        print(f"{place.root}: no partition is here")
        return
    codecs = "codecs" if every_batch else "first codecs"
    header = ["partition", "start", "end", "segments", "size", "oldest record", "newest record", codecs]
    rows = []
    for facts in found:
        name = f"{facts['topic']}-{facts['partition']}"
        if "error" in facts:
            rows.append([name, "-", "-", "-", "-", "-", "-", "-"])
            continue
        row = [name, facts["log_start_offset"], facts["log_end_offset"], len(facts["segments"])]
        row += [
            output.size(facts["size_bytes"]),
            times.show(facts["first_timestamp"]),
            times.show(facts["max_timestamp"]),
            ",".join(facts["codecs"]) or "-",
        ]
        rows.append(row)
    output.columns(header, rows)
    sound = [facts for facts in found if "error" not in facts]
    topics = {facts["topic"] for facts in found}
    total = output.size(sum(facts["size_bytes"] for facts in sound))
    records = sum(facts["log_end_offset"] - facts["log_start_offset"] for facts in sound)
    counts = output.count(len(topics), "topic"), output.count(len(found), "partition"), output.count(records, "offset")
    print(f"{', '.join(counts)}, {total}")
    for facts in found:
        if "error" in facts:
            print(output.painted(f"{facts['topic']}-{facts['partition']} cannot be read: {facts['error']}", "red"))
    for path in place.passed_over:
        print(f"passed over, it is no partition: {path}")


def _show_one(facts: dict[str, Any], *, every_batch: bool) -> None:
    print(f"{facts['topic']}-{facts['partition']} at {facts['path']}")
    if "error" in facts:
        print(output.painted(f"  cannot be read: {facts['error']}", "red"))
        return
    print(f"  topic id {facts['topic_id'] or 'none'}")
    print(
        f"  offsets {facts['log_start_offset']} to {facts['log_end_offset']} (the next one), "
        f"{output.size(facts['size_bytes'])}, recovery point {facts['recovery_point']}"
    )
    print()
    codecs = "codecs" if every_batch else "first codec"
    output.columns(
        ["segment", "next offset", "bytes", "index", "time index", "first timestamp", "greatest timestamp", codecs],
        [
            [
                segment["base_offset"],
                segment["next_offset"],
                segment["size_bytes"],
                segment["offset_index_entries"],
                segment["time_index_entries"],
                times.show(segment["first_timestamp"]),
                times.show(segment["max_timestamp"]),
                ",".join(segment["codecs"]) or "-",
            ]
            for segment in facts["segments"]
        ],
    )
