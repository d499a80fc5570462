"""The tier of a broker with Kafka's own `LocalTieredStorage`, as the files of a log directory.

The files of a segment are `<topic>-<partition>-<topic id>/<base offset>-<segment id>` with the suffixes of a log
directory, and `.leader_epoch_checkpoint`. Invariant: a segment is used only if it has all files that the class writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.base.threads import Workers
from kstore.errors import InvalidTopicError
from kstore.files import names
from kstore.files.epochs import EpochEntry
from kstore.objects.object_store import ObjectInfo, Objects
from kstore.objects.remote_bytes import read_file
from kstore.objects.remote_state import ObjectRange, RemoteFile, RemoteState
from kstore.objects.tier_cut import find_end
from kstore.objects.tier_partitions import PartitionKey, TierTopics, chosen_keys, find_topics, make_state
from kstore.objects.tier_segments import MOST_EPOCHS_BYTES, TierSegment, listed, parse_lineage

LAYOUT = "Kafka's LocalTieredStorage"
AHEAD = 16
"""How many segments are read at the same time."""

EPOCHS = ".leader_epoch_checkpoint"
_NEEDED = {names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, EPOCHS, names.SNAPSHOT}

_DIRECTORY = re.compile(r"(?:[^/]+/)*([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})-([a-zA-Z0-9_-]{22})")
_FILE = re.compile(
    r"(0|[1-9][0-9]{0,18}|[0-9]{20})-([a-zA-Z0-9_-]{22})"
    r"(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.leader_epoch_checkpoint)"
)


class _Key(NamedTuple):
    """The parts of the name of a file."""

    topic: str
    partition: int
    topic_id: str
    base_offset: int
    kind: str


def looks_like_local_tier(listing: Iterable[ObjectInfo]) -> bool:
    """Return whether a prefix has files of `LocalTieredStorage`."""
    return any(info.key.endswith(EPOCHS) and _parse(info.key) is not None for info in listing)


def read_local_tier(objects: Objects, listing: Iterable[ObjectInfo], only: PartitionKey | None = None) -> RemoteState:
    """Read the leader epochs and the ends of the segments of one partition, or of all.

    Each segment takes about four requests: `LocalTieredStorage` writes no manifest.

    Args:
        objects: The objects below a prefix.
        listing: All of them, as `objects.list` yields them.
        only: The one partition that is read; None for all.

    Raises:
        BackupError: A file is malformed, or the object store refuses a request.
    """
    found, topics = _topics(listing)
    keys = chosen_keys(topics, only)
    notes = list(topics.notes)
    asked: list[tuple[PartitionKey, str]] = []
    unfinished: list[str] = []
    for key in keys:
        for place in topics.segments[key]:
            if found[place].keys() >= _NEEDED and found[place][names.LOG][1].size:
                asked.append((key, place))
            else:
                unfinished.append(place)
    if unfinished:
        notes.append(f"left out as not finished, or as being deleted: {listed(sorted(unfinished))}")
    segments: dict[PartitionKey, list[TierSegment]] = {key: [] for key in keys}
    with Workers(AHEAD, "kstore-tier") as workers:
        results = workers.map(lambda each: _read_segment(objects, found[each[1]]), asked)
        for (key, place), segment in zip(asked, results, strict=True):
            if segment is None:
                notes.append(f"left out, since its leader epochs begin after its end: {place}")
            else:
                segments[key].append(segment)
    ids = {key: topics.ids[key[0]] for key in keys}
    return make_state(objects, LAYOUT, segments, ids, notes)


def _topics(
    listing: Iterable[ObjectInfo],
) -> tuple[dict[str, dict[str, tuple[_Key, ObjectInfo]]], TierTopics]:
    """Return the files of each segment by kind, and the topics that the segments are of."""
    found: dict[str, dict[str, tuple[_Key, ObjectInfo]]] = {}
    written: dict[tuple[str, str], int] = defaultdict(int)
    places: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for info in listing:
        key = _parse(info.key)
        if key is None:
            continue
        place = info.key.removesuffix(key.kind)
        topic = key.topic, key.topic_id
        if place not in found:
            found[place] = {}
            places[topic][key.partition].append(place)
        found[place][key.kind] = key, info
        written[topic] = max(written[topic], info.modified_ms)
    return found, find_topics(places, written)


def _parse(key: str) -> _Key | None:
    """Return the parts of a file's name; None for another name."""
    directory, _, name = key.rpartition("/")
    file, place = _FILE.fullmatch(name), _DIRECTORY.fullmatch(directory)
    if file is None or place is None or int(file[1]) > LONG_MAX - 1 or int(place[2]) > INT_MAX:
        return None
    try:
        return _Key(names.check_topic(place[1]), int(place[2]), place[3], int(file[1]), file[3])
    except InvalidTopicError:
        return None


def _read_segment(objects: Objects, parts: Mapping[str, tuple[_Key, ObjectInfo]]) -> TierSegment | None:
    """Read where a segment ends and its leader epochs; None if it has no epoch."""
    base = parts[names.LOG][0].base_offset
    files = {kind: _file(info) for kind, (_, info) in parts.items()}
    place, lineage = parts[names.LOG][1].key, files.pop(EPOCHS)
    snapshot = files.pop(names.SNAPSHOT)
    facts = find_end(objects, place, base, files, LONG_MAX)
    where = f"{parts[EPOCHS][1].key} in {objects.url}"
    epochs = parse_lineage(read_file(objects, lineage, MOST_EPOCHS_BYTES), where)
    its_epochs = [entry for entry in epochs if base < entry.offset < facts.end_offset]
    before = [entry for entry in epochs if entry.offset <= base]
    if before:
        its_epochs.insert(0, EpochEntry(before[-1].epoch, base))
    if not its_epochs or facts.end_offset == base:
        return None
    return TierSegment(
        place=place,
        base_offset=base,
        end_offset=facts.end_offset,
        epochs=tuple(its_epochs),
        written_ms=parts[names.LOG][1].modified_ms,
        files=files,
        lineage=lineage,
        snapshot=snapshot,
        max_timestamp=facts.max_timestamp,
        max_timestamp_offset=facts.max_timestamp_offset,
    )


def _file(info: ObjectInfo) -> RemoteFile:
    ranges = (ObjectRange(info.key, 0, info.size, info.size, etag=info.etag),) if info.size else ()
    return RemoteFile(ranges, modified_ms=info.modified_ms)
