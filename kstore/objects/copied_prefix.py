"""Reads a plain copy of a log directory as a `RemoteState`: partition directories as `aws s3 sync` makes them.

One listing is the state. A copy of a directory that a process was writing is read up to its last whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from kstore.errors import InvalidTopicError
from kstore.files import checkpoint, gap_files, names
from kstore.files.topic_files import TOPICS_FILE
from kstore.objects.object_store import ObjectInfo
from kstore.objects.remote_state import UNKNOWN, ObjectRange, RemoteFile, RemotePartition, RemoteState, SegmentFacts

ROOT_FILES = (TOPICS_FILE, *checkpoint.OFFSET_CHECKPOINTS)
"""The files of a log directory that are read. Marks of a clean shutdown or of a restore say nothing of a copy."""
PARTITION_FILES = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, gap_files.GAPS_FILE)
MOST_BYTES = 2**31 - 1
"""The largest file of a segment: positions have 32 bits."""


def read_copy(listing: Iterable[ObjectInfo]) -> RemoteState:
    """Return the log directory whose files a listing has; other objects are passed over."""
    root: dict[str, RemoteFile] = {}
    partitions: dict[tuple[str, int], dict[str, RemoteFile]] = {}
    notes = []
    for info in listing:
        directory, slash, name = info.key.rpartition("/")
        file = RemoteFile((ObjectRange(info.key, 0, info.size, info.size, etag=info.etag),), None, info.modified_ms)
        if not info.size:
            file = file._replace(ranges=())
        if not slash and name in ROOT_FILES:
            root[name] = file
        key = partition_of(directory) if slash else None
        if key is None or not _is_read(name):
            continue
        if info.size > MOST_BYTES:
            notes.append(f"{info.key} has {info.size} bytes, more than a segment may have: it is left out")
            continue
        partitions.setdefault(key, {})[name] = file
    found = {key: RemotePartition(*key, files, _segments(files)) for key, files in sorted(partitions.items())}
    return RemoteState("copy", found, root, notes=tuple(notes))


def looks_like_copy(listing: Iterable[ObjectInfo]) -> bool:
    """Return whether a listing has a segment in a partition's directory."""
    return any(
        key.endswith(names.LOG) and partition_of(key.rpartition("/")[0]) is not None
        for key in (info.key for info in listing)
    )


def partition_of(directory: str) -> tuple[str, int] | None:
    """Return the topic and number that the name of a live partition's directory says; None for another name."""
    try:
        place = names.parse_partition_name(directory)
        names.check_topic(place.topic)
    except InvalidTopicError:
        return None
    key = place.topic, place.partition
    return key if names.partition_name(*key) == directory else None


def _is_read(name: str) -> bool:
    parsed = names.parse_file_name(name)
    return name in PARTITION_FILES or (parsed is not None and str(parsed) == name)


def _segments(files: Mapping[str, RemoteFile]) -> dict[int, SegmentFacts]:
    """Return the ends of the sealed segments; the files of interrupted swaps make them unknown."""
    parsed = [names.parse_file_name(name) for name in files]
    if any(file is not None and file.state for file in parsed):
        return {}
    bases = sorted(file.offset for file in parsed if file is not None and file.kind == names.LOG)
    return {base: SegmentFacts(following) for base, following in pairwise((*bases, UNKNOWN))}
