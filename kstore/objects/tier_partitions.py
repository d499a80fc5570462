"""The partitions of a tier: which of them are read, and the `RemoteState` that they make up.

Invariant: a topic that was deleted and created again has several ids in a tier; only the one that was written last is
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kstore.base.threads import Workers
from kstore.files import checkpoint, names
from kstore.objects.object_store import Objects
from kstore.objects.remote_state import RemoteFile, RemoteState
from kstore.objects.tier_segments import A_GUESS, TierSegment, make_partition

PartitionKey: TypeAlias = tuple[str, int]

AHEAD = 16
"""How many partitions are read at the same time."""


@dataclass(slots=True)
class TierTopics:
    """The topics of a tier. Not thread-safe."""

    ids: dict[str, str] = field(default_factory=dict)
    """The id of each topic."""
    segments: dict[PartitionKey, list[str]] = field(default_factory=dict)
    """The places of the segments of each partition."""
    notes: list[str] = field(default_factory=list)


def find_topics(
    places: Mapping[tuple[str, str], Mapping[int, list[str]]], written: Mapping[tuple[str, str], int]
) -> TierTopics:
    """Choose one id of each topic: the one with the newest object.

    `places` has the segments by topic, id and partition, `written` the time of the newest object of a topic and id.
    """
    found = TierTopics()
    by_topic: dict[str, list[str]] = defaultdict(list)
    for topic, topic_id in places:
        by_topic[topic].append(topic_id)
    for topic, ids in by_topic.items():
        ids.sort(key=lambda each: (written[topic, each], each))
        found.ids[topic] = ids[-1]
        for partition, segments in places[topic, ids[-1]].items():
            found.segments[topic, partition] = segments
        if len(ids) > 1:
            others = ", ".join(ids[:-1][:3])
            found.notes.append(f"{topic} has several ids, since it was created again: {ids[-1]} is read, not {others}")
    return found


def chosen_keys(topics: TierTopics, only: PartitionKey | None) -> list[PartitionKey]:
    """Return the partitions to read, sorted: all, or no other than `only`."""
    return sorted(key for key in topics.segments if only in (None, key))


def make_state(
    objects: Objects,
    layout: str,
    segments: Mapping[PartitionKey, Sequence[TierSegment]],
    ids: Mapping[PartitionKey, str],
    notes: Sequence[str],
) -> RemoteState:
    """Build the state of the partitions with these segments; those without any are left out."""
    keys = [key for key in sorted(segments) if segments[key]]
    missing = [names.partition_name(*key) for key in sorted(segments) if not segments[key]]
    made = {}
    told = [A_GUESS, *notes, *(f"{name}: left out, since it has no finished segment" for name in missing)]
    with Workers(AHEAD, "kstore-tier") as workers:
        # One task for each partition: it reads the leader epochs of its newest segment, and what is to be cut.
        results = workers.map(lambda key: make_partition(objects, key[0], key[1], ids[key], segments[key]), keys)
        for key, (partition, its_notes) in zip(keys, results, strict=True):
            made[key] = partition
            told += its_notes
    starts = [(*key, made[key].log_start_offset) for key in keys]
    # A broker copies a segment only if all of it is below the last stable offset.
    marks = [(*key, made[key].end_offset) for key in keys]
    files = {
        checkpoint.LOG_STARTS: RemoteFile(content=checkpoint.format_checkpoint(starts)),
        checkpoint.HIGH_WATERMARKS: RemoteFile(content=checkpoint.format_checkpoint(marks)),
    }
    return RemoteState(layout, made, files, notes=tuple(told))
