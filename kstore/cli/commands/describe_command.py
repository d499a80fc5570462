"""`kstore describe`: shows the contents of a directory of logs, a topic or a partition."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, overload

import numpy

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.progress import Progress
from kstore.codec.compression import NAMES
from kstore.columns._columns import Columns
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import ConfigError, CorruptRecordError, KStoreError, StorageError
from kstore.explained.log_picture import LogFacts, close_up_of, picture
from kstore.files import checkpoint, load_files, names
from kstore.files.follower_file import read_role
from kstore.files.index_file import OffsetIndex, TimeIndex
from kstore.files.stream_positions import StreamPositions, groups_with_positions, read_group
from kstore.log.compaction.dirtiness import survey
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.catalog import Entry
from kstore.store.coordinator.group_lag import offsets_behind
from kstore.store.disk_usage import Meter, Usage
from kstore.tools.check import recheck
from kstore.types import SegmentInfo

__all__ = ["run"]

_ABOUT = """\
Show topics and partitions with their offsets, sizes, times and codecs, and for a single partition every segment.
"size" is that of the log files in use. "on disk" is the space that everything takes, as du counts it: also indexes,
snapshots and files that are deleted and not yet removed; for a directory also the loads that are staged next to it.
In an object store it is the size of the files that the prefix has, and the state of a backup is told.
For a streaming query of Spark with the option groupId, and for exports with --group, it shows the positions and the lag
behind the log end.
Changes nothing; a broker or a store may be writing to the directory. A segment's codec is that of its first batch,
unless --codecs is given."""
_EXAMPLES = """examples:
  kstore describe data
  kstore describe data/events
  kstore describe data/events-0 --codecs --json
  kstore describe data/events-0 --svg > events-0.svg
"""
_OF_BATCHES = ("position", "base_offset", "last_offset", "max_timestamp")
_BLANK = "partition.metadata is empty, and counts as missing; kstore repair writes it again if the id is known"


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code: 1 if a partition cannot be read."""
    parser = command_options.Parser("describe", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="a directory of logs, DIR/TOPIC, or DIR/TOPIC-P; or a URL")
    parser.add_argument("--codecs", action="store_true", help="look at every batch's header for the codecs")
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print JSON")
    printed.add_argument("--svg", action="store_true", help="print a picture of one partition (DIR/TOPIC-P) as SVG")
    object_store_options.add_reading(parser, until=["--until"])
    parsed = parser.parse_args(arguments)
    if parsed.svg and parsed.codecs:
        parser.error("argument --codecs: not allowed with argument --svg")
    with mounted_paths.mounted("describe", [parsed.path], parsed) as (parsed.path,):
        return _describe(parsed)


def _describe(parsed: argparse.Namespace) -> int:
    place = command_paths.find(parsed.path)
    if parsed.svg:
        print(_picture(place, parsed.path), end="")
        return 0
    streams = _streams(place.root)  # read before the log ends, so that no position is above one
    partitions = []
    meter = Meter()
    disk, topics = Usage(), dict[str, Usage]()
    with Progress("describe", len(place.entries), "partitions") as progress:
        for done, entry in enumerate(place.entries):
            progress.reach(done)
            facts = _settled(entry, every_batch=parsed.codecs)
            if facts is not None:
                usage = meter.partition(entry.path)
                facts["disk"] = usage.to_json()
                disk.add(usage)
                topics.setdefault(entry.topic, Usage()).add(usage)
                partitions.append(facts)
    if place.topic is None:
        disk.add(meter.rest(place.root, [entry.path for entry in place.entries]))
    load = _pending_load(place.root)
    follows, role = _role(place.root)
    state = mounted_paths.state_at(place.root)
    _add_lags(streams, partitions, is_whole=place.topic is None)
    if parsed.json:
        shown: dict[str, Any] = {
            "path": place.root,
            "follows": follows,
            "partitions": partitions,
            "topics": {topic: {"disk": usage.to_json()} for topic, usage in topics.items()},
            "disk": disk.to_json(),
            "passed_over": place.passed_over,
            "pending_load": load,
            "stream_positions": streams,
        }
        if state is not None:
            shown["prefix"] = {
                "layout": state.layout,
                "round": state.number or None,
                "timestamp": state.time_ms or None,
            }
        print(json.dumps(shown, indent=2))
    elif place.partition is not None and partitions:
        _show_one(partitions[0], disk, every_batch=parsed.codecs)
    else:
        _show_all(place, partitions, disk, every_batch=parsed.codecs)
    if not parsed.json:
        _show_streams(streams)
    if state is not None and state.number and not parsed.json:
        print(f"a backup: round {state.number}, as of {command_times.show(state.time_ms)}")
    if role is not None and not parsed.json:
        print(escaped(role))
    if load is not None and not parsed.json:
        print(output.painted(escaped(load), "yellow"))
    return 1 if any(facts.get("error") for facts in partitions) else 0


class _Batches(Sequence[tuple[int, int, int, int]]):
    """The batches of a table, each made when it is asked for: a segment may have millions."""

    def __init__(self, table: Columns) -> None:
        self._columns = [table[name] for name in _OF_BATCHES]

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> tuple[int, int, int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, int, int, int]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, int, int, int] | list[tuple[int, int, int, int]]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        position, base, last, newest = (int(column[at]) for column in self._columns)
        # Only the compressed part of an old message tells its first offset.
        return position, last if base < 0 else base, last, newest


def _picture(place: command_paths.Place, path: str) -> str:
    """Return the SVG of a partition; what is appended while it is read is left out."""
    if place.partition is None:
        raise ConfigError(f"{path} is no partition; --svg draws one: DIR/TOPIC-P")
    (entry,) = place.entries
    with Log.open(entry.path, "r") as log:
        segments = log.segments
        segment = close_up_of(segments, log.log_start_offset)
        first, end = segment.base_offset, segment.next_offset
        table = log.batch_table(max(first, log.log_start_offset), end_offset=end)
        stem = segment.path.removesuffix(names.LOG)
        with (
            closing(OffsetIndex(stem + names.OFFSET_INDEX, first, 0, writable=False)) as offsets,
            closing(TimeIndex(stem + names.TIME_INDEX, first, 0, writable=False)) as times,
        ):
            facts = LogFacts(
                f"{entry.topic}-{entry.partition}",
                log.log_start_offset,
                log.log_end_offset,
                segments,
                segment,
                [entry for entry in offsets.all_entries() if entry[0] < end and entry[1] < segment.size_bytes],
                [entry for entry in times.all_entries() if entry[1] < end],
                _Batches(table),
            )
    return picture(facts)


def _pending_load(root: str) -> str | None:
    try:
        record = load_files.read_commit(root)
    except StorageError as error:
        return str(error)
    return None if record is None else str(record)


def _role(root: str) -> tuple[list[str] | None, str | None]:
    """Return the directories that a follower follows, and its role in words; None for a leader."""
    try:
        role = read_role(root)
    except StorageError as error:
        return None, str(error)
    return (None, None) if role is None else (list(role.source), str(role))


def _streams(root: str) -> list[dict[str, Any]]:
    """Return the positions of each streaming group, or why they cannot be read, under stable names."""
    try:
        groups = groups_with_positions(root)
    except StorageError as error:
        return [_stream(None, error=str(error))]
    found = []
    for group in groups:
        try:
            positions = read_group(root, group)
        except StorageError as error:
            found.append(_stream(group, error=str(error)))
        else:
            found += [] if positions is None else [_stream(group, positions)]
    return found


def _stream(group: str | None, positions: StreamPositions | None = None, error: str | None = None) -> dict[str, Any]:
    offsets = {} if positions is None else positions.offsets
    return {
        "group": group,
        "written_timestamp": None if positions is None else positions.written_ms,
        "partitions": [
            {"topic": topic, "partition": number, "position": position}
            for (topic, number), position in sorted(offsets.items())
        ],
        "error": error,
    }


def _add_lags(streams: list[dict[str, Any]], partitions: list[dict[str, Any]], *, is_whole: bool) -> None:
    """Add the log ends and the lags; keep only the positions in `partitions` unless these are the whole directory."""
    ends = {(facts["topic"], facts["partition"]): facts.get("log_end_offset") for facts in partitions}
    for stream in streams:
        kept = [each for each in stream["partitions"] if is_whole or (each["topic"], each["partition"]) in ends]
        for each in kept:
            end = each["log_end_offset"] = ends.get((each["topic"], each["partition"]))
            each["lag"] = None if end is None else offsets_behind(end, each["position"], 0)
        stream["partitions"] = kept


def _settled(entry: Entry, *, every_batch: bool) -> dict[str, Any] | None:
    """Return the facts about a partition; None if a writer has removed it. Reads again if a writer changes it."""
    facts, doubtful = recheck.look(
        lambda: _partition(entry, every_batch=every_batch),
        lambda facts: [facts["error"]] if "error" in facts else [],
        entry.path,
        entry.root,
    )
    if not fs.exists(entry.path):
        return None
    if doubtful and "segments" in facts:
        del facts["error"]
    return facts


def _partition(entry: Entry, *, every_batch: bool) -> dict[str, Any]:
    """Return the facts about one partition, under stable names."""
    facts: dict[str, Any] = {"topic": entry.topic, "partition": entry.partition, "path": entry.path}
    try:
        metadata = checkpoint.read_partition_metadata(entry.path)
        facts["topic_id"] = None if metadata is None else checkpoint.format_topic_id(metadata.topic_id)
        is_blank = metadata is None and checkpoint.is_metadata_blank(entry.path)
        facts["warning"] = _BLANK if is_blank else None
        with Log.open(entry.path, "r") as log:
            point = int(log.stats()["recovery_point"])  # read before the log end, so that it is not above the log end
            segments = log.segments
            start, end = log.log_start_offset, log.log_end_offset
            newest = _newest(log, segments) if start < end else None
            codecs = [_codecs(log, segment, every_batch=every_batch) for segment in segments]
            facts |= {
                "log_start_offset": start,
                "log_end_offset": end,
                "recovery_point": point,
                "size_bytes": sum(segment.size_bytes for segment in segments),
                "first_timestamp": _oldest(log, start, end),
                "max_timestamp": newest,
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
                        "codecs": sorted(codecs_of_segment),
                        "is_active": segment.is_active,
                        "path": segment.path,
                    }
                    for segment, codecs_of_segment in zip(segments, codecs, strict=True)
                ],
            }
            facts |= _clean_part(log, entry)
        if point > end:
            facts["error"] = f"it ends at {end}, below its recovery point {point}; kstore verify tells more"
    except KStoreError as error:
        facts["error"] = str(error)
    return facts


def _clean_part(log: Log, entry: Entry) -> dict[str, int | None]:
    """Return how far a partition is compacted; None if it is not compacted, or that cannot be read."""
    with suppress(StorageError):  # damage in these files does not affect the records
        line = checkpoint.read_offsets(entry.root, checkpoint.CLEANER_OFFSETS).get(entry.key)
        settings = command_paths.kept_settings(entry.root, entry.topic)
        if line is not None or LogConfig().for_topic(settings).compacts:
            dirtiness = survey(HostedLog(log).view, log.config, 0, line, lag=False)
            return {"first_dirty_offset": dirtiness.first_dirty_offset, "clean_bytes": dirtiness.clean_bytes}
    return {"first_dirty_offset": None, "clean_bytes": None}


def _cleaned(facts: dict[str, Any]) -> str:
    """Return the clean share of a partition's bytes; "-" if it is not compacted."""
    if facts["first_dirty_offset"] is None:
        return "-"
    return f"{100 * facts['clean_bytes'] // facts['size_bytes']} %" if facts["size_bytes"] else "100 %"


def _oldest(log: Log, start: int, end: int) -> int | None:
    """Return the timestamp of the first record from `start` on; None if there is no record or it is damaged."""
    if start >= end:
        return None
    try:
        first = log.read_columns(start, end_offset=end, columns=("timestamp",), max_records=1)
    except CorruptRecordError:
        return None
    return int(first.timestamps[0]) if len(first) and first.timestamps[0] >= 0 else None


def _newest(log: Log, segments: Sequence[SegmentInfo]) -> int | None:
    """Return the greatest timestamp of a record; if damage hides it, the greatest timestamp of the segments."""
    try:
        latest = log.max_timestamp()
    except CorruptRecordError:
        return max((segment.max_timestamp for segment in segments if segment.max_timestamp >= 0), default=None)
    return None if latest is None else latest.timestamp


def _codecs(log: Log, segment: SegmentInfo, *, every_batch: bool) -> set[str]:
    """Return the codecs of all batches of a segment, or of its first batch."""
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


def _show_all(place: command_paths.Place, partitions: list[dict[str, Any]], disk: Usage, *, every_batch: bool) -> None:
    if not partitions:
        print(f"{escaped(place.root)}: no partition is here; {disk}")
        return
    codecs = "codecs" if every_batch else "first codecs"
    header = ["partition", "start", "end", "segments", "size", "on disk", "oldest record", "newest record", codecs]
    is_compacted = any(facts.get("first_dirty_offset") is not None for facts in partitions)
    header += ["clean"] if is_compacted else []
    rows = []
    for facts in partitions:
        name = f"{facts['topic']}-{facts['partition']}"
        if "error" in facts:
            on_disk = output.size(facts["disk"]["total_bytes"])
            rows.append([name, *(on_disk if column == "on disk" else "-" for column in header[1:])])
            continue
        row = [name, facts["log_start_offset"], facts["log_end_offset"], len(facts["segments"])]
        row += [
            output.size(facts["size_bytes"]),
            output.size(facts["disk"]["total_bytes"]),
            command_times.show(facts["first_timestamp"]),
            command_times.show(facts["max_timestamp"]),
            ",".join(facts["codecs"]) or "-",
        ]
        row += [_cleaned(facts)] if is_compacted else []
        rows.append(row)
    output.columns(header, rows)
    sound = [facts for facts in partitions if "error" not in facts]
    topics = {facts["topic"] for facts in partitions}
    total = output.size(sum(facts["size_bytes"] for facts in sound))
    records = sum(facts["log_end_offset"] - facts["log_start_offset"] for facts in sound)
    counted = (len(topics), "topic"), (len(partitions), "partition"), (records, "offset")
    print(f"{', '.join(output.count(number, noun) for number, noun in counted)}, {total}")
    print(disk)
    for facts in partitions:
        if "error" in facts:
            what = escaped(f"{facts['topic']}-{facts['partition']} cannot be read: {facts['error']}")
            print(output.painted(what, "red"))
    for facts in partitions:
        if facts.get("warning"):
            print(output.painted(escaped(f"{facts['topic']}-{facts['partition']}: {facts['warning']}"), "yellow"))
    for path in place.passed_over:
        print(f"passed over, it is no partition: {escaped(path)}")


def _show_streams(streams: list[dict[str, Any]]) -> None:
    rows = [
        (
            escaped(stream["group"]),
            f"{each['topic']}-{each['partition']}",
            each["position"],
            *("-" if each[name] is None else each[name] for name in ("log_end_offset", "lag")),
            command_times.show(stream["written_timestamp"]),
        )
        for stream in streams
        for each in stream["partitions"]
    ]
    if rows:
        print()
        output.columns(["group", "partition", "position", "log end", "lag", "written"], rows)
    for stream in streams:
        if stream["error"] is not None:
            whose = "streams" if stream["group"] is None else f"group {stream['group']}"
            print(output.painted(escaped(f"the positions of {whose} cannot be read: {stream['error']}"), "yellow"))


def _show_one(facts: dict[str, Any], disk: Usage, *, every_batch: bool) -> None:
    print(escaped(f"{facts['topic']}-{facts['partition']} at {facts['path']}"))
    if "error" in facts:
        print(output.painted(f"  cannot be read: {escaped(facts['error'])}", "red"))
        print(f"  {disk}")
        return
    print(f"  topic id {facts['topic_id'] or 'none'}")
    if facts["warning"]:
        print(output.painted(f"  {facts['warning']}", "yellow"))
    print(
        f"  offsets {facts['log_start_offset']} to {facts['log_end_offset']} (the next one), "
        f"{output.size(facts['size_bytes'])}, recovery point {facts['recovery_point']}"
    )
    print(f"  {disk}")
    if facts["first_dirty_offset"] is not None:
        print(f"  compacted up to offset {facts['first_dirty_offset']}, {_cleaned(facts)} of the bytes")
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
                command_times.show(segment["first_timestamp"]),
                command_times.show(segment["max_timestamp"]),
                ",".join(segment["codecs"]) or "-",
            ]
            for segment in facts["segments"]
        ],
    )
