"""The tier of a broker with Aiven's plugin for tiered storage, as the files of a log directory.

The objects of a segment are `<topic>-<topic id>/<partition>/<base offset>-<segment id>` with the suffixes `.log`,
`.indexes` and `.rsm-manifest`; the last one is written last. Invariant: a segment is used only if its manifest is whole
and its other objects have the sizes that the manifest says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.base.threads import Workers
from kstore.errors import BackupError, InvalidTopicError
from kstore.files import names
from kstore.objects import aiven_manifest
from kstore.objects.aiven_manifest import LEADER_EPOCHS, MOST_MANIFEST_BYTES, AivenId, AivenManifest
from kstore.objects.object_store import ObjectInfo, Objects
from kstore.objects.remote_state import ObjectRange, RemoteFile, RemoteState
from kstore.objects.tier_partitions import PartitionKey, TierTopics, chosen_keys, find_topics, make_state
from kstore.objects.tier_segments import TierSegment, listed

LAYOUT = "tiered storage of Aiven's plugin"
AHEAD = 32
"""How many manifests are read at the same time."""

LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"

_DIRECTORY = re.compile(r"(?s:(.*/|))([a-zA-Z0-9._-]+)-([a-zA-Z0-9_-]{22})/(0|[1-9][0-9]{0,9})")
_FILE = re.compile(r"([0-9]{20})-([a-zA-Z0-9_-]{22})\.(log|indexes|rsm-manifest)")


class _Key(NamedTuple):
    """The parts of the name of an object."""

    prefix: str
    id: AivenId
    suffix: str


def looks_like_aiven(listing: Iterable[ObjectInfo]) -> bool:
    """Return whether a prefix has objects of Aiven's plugin."""
    return any(info.key.endswith("." + MANIFEST) and _parse(info.key, {}) is not None for info in listing)


def read_aiven(objects: Objects, listing: Iterable[ObjectInfo], only: PartitionKey | None = None) -> RemoteState:
    """Read the manifests of one partition, or of all.

    Each segment takes one request, many of which are made at the same time; each partition takes one more, and each
    segment that overlaps with the next one about four.

    Args:
        objects: The objects below a prefix.
        listing: All of them, as `objects.list` yields them.
        only: The one partition that is read; None for all.

    Raises:
        BackupError: A manifest is malformed or of an unknown version; a segment is encrypted; the prefix has the
            objects of several plugins, each with a prefix of its own; the object store refuses a request.
    """
    found, topics = _topics(listing)
    keys = chosen_keys(topics, only)
    notes = list(topics.notes)
    asked: list[tuple[AivenId, str, dict[str, ObjectInfo]]] = []
    unfinished: list[str] = []
    for key in keys:
        for place in topics.segments[key]:
            segment, parts = found[place]
            if parts.keys() >= {LOG, INDEXES, MANIFEST} and parts[MANIFEST].size > 0:
                asked.append((segment, place, parts))
            else:
                unfinished.append(place)
    segments: dict[PartitionKey, list[TierSegment]] = {key: [] for key in keys}
    with Workers(AHEAD, "kstore-tier") as workers:
        manifests = workers.map(lambda each: _read_manifest(objects, each[0], each[2][MANIFEST].key), asked)
        for (segment, place, parts), manifest in zip(asked, manifests, strict=True):
            if manifest is None:
                unfinished.append(place)
            elif (reason := _refusal(manifest, parts)) is not None:
                notes.append(f"left out: {reason}")
            else:
                segments[segment.topic, segment.partition].append(_segment(segment, manifest, parts))
    if unfinished:
        notes.append(f"left out as not finished, or as being deleted: {listed(sorted(unfinished))}")
    ids = {key: topics.ids[key[0]] for key in keys}
    return make_state(objects, LAYOUT, segments, ids, notes)


def _read_manifest(objects: Objects, segment: AivenId, key: str) -> AivenManifest | None:
    """Read a manifest; None if it has been deleted since the listing."""
    found = objects.read(key, most_bytes=MOST_MANIFEST_BYTES)
    return None if found is None else aiven_manifest.parse(found.data, f"{key} in {objects.url}", segment)


def _topics(
    listing: Iterable[ObjectInfo],
) -> tuple[dict[str, tuple[AivenId, dict[str, ObjectInfo]]], TierTopics]:
    """Return the objects of each segment by suffix, and the topics that the segments are of."""
    found: dict[str, tuple[AivenId, dict[str, ObjectInfo]]] = {}
    prefixes: dict[str, str] = {}
    written: dict[tuple[str, str], int] = defaultdict(int)
    places: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    directories: dict[str, tuple[str, str, str, int] | None] = {}
    for info in listing:
        key = _parse(info.key, directories)
        if key is None:
            continue
        prefixes.setdefault(key.prefix, info.key)
        place = info.key.removesuffix("." + key.suffix)
        topic = key.id.topic, key.id.topic_id
        if place not in found:
            found[place] = key.id, {}
            places[topic][key.id.partition].append(place)
        found[place][1][key.suffix] = info
        written[topic] = max(written[topic], info.modified_ms)
    if len(prefixes) > 1:
        shown = listed(sorted(map(repr, prefixes)))
        raise BackupError(f"the tiers of several brokers begin with {shown}; open the URL of one of them")
    return found, find_topics(places, written)


def _parse(key: str, directories: dict[str, tuple[str, str, str, int] | None]) -> _Key | None:
    """Return the parts of an object's name; None for another name. `directories` keeps those that were parsed."""
    directory, _, name = key.rpartition("/")
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    if directory not in directories:
        directories[directory] = _parse_directory(directory)
    found = directories[directory]
    base = int(match[1])
    if found is None or base > LONG_MAX - 1:
        return None
    prefix, topic, topic_id, number = found
    return _Key(prefix, AivenId(topic, topic_id, number, base, match[2]), match[3])


def _parse_directory(directory: str) -> tuple[str, str, str, int] | None:
    match = _DIRECTORY.fullmatch(directory)
    if match is None or int(match[4]) > INT_MAX:
        return None
    try:
        return match[1], names.check_topic(match[2]), match[3], int(match[4])
    except InvalidTopicError:
        return None


def _refusal(manifest: AivenManifest, parts: Mapping[str, ObjectInfo]) -> str | None:
    """Return why the objects do not fit the manifest; None if they do."""
    for info, wanted, is_whole in (
        (parts[LOG], manifest.stored_bytes, parts[LOG].size == manifest.stored_bytes),
        (parts[INDEXES], manifest.indexes_bytes, parts[INDEXES].size >= manifest.indexes_bytes),
    ):
        if not is_whole:
            return f"{info.key} has {info.size} bytes; its manifest says {wanted}"
    return None


def _segment(segment: AivenId, manifest: AivenManifest, parts: Mapping[str, ObjectInfo]) -> TierSegment:
    modified_ms = parts[LOG].modified_ms
    indexes = {}
    for kind, (position, size) in manifest.indexes.items():
        ranges = (ObjectRange(parts[INDEXES].key, position, size, size, etag=parts[INDEXES].etag),) if size else ()
        indexes[kind] = RemoteFile(ranges, modified_ms=modified_ms)
    log = RemoteFile(tuple(manifest.log_ranges(parts[LOG].key, parts[LOG].etag)), modified_ms=modified_ms)
    lineage, snapshot = indexes.pop(LEADER_EPOCHS), indexes.pop(names.SNAPSHOT)
    return TierSegment(
        place=parts[LOG].key,
        base_offset=segment.base_offset,
        end_offset=manifest.end_offset,
        epochs=manifest.epochs,
        written_ms=manifest.written_ms,
        files={names.LOG: log, **indexes},
        lineage=lineage,
        snapshot=snapshot if snapshot.size else None,
        max_timestamp=manifest.max_timestamp,
    )
