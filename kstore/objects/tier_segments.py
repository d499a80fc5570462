"""Chooses the segments of a tier that make up a partition's log, and describes them as a `RemotePartition`.

After a change of leaders the new leader's segments overlap those of the old one, and a leader that was elected without
being in sync leaves segments that no longer belong to the log. Kafka records which segments are valid in its topic
`__remote_log_metadata`. Without it, the leader epochs at the end of the newest segment decide, as the leader epochs of
a broker do. Invariant: the segments of a `RemotePartition` do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.base.threads import Workers
from kstore.errors import BackupError
from kstore.files import checkpoint, names
from kstore.files.epochs import EpochEntry
from kstore.objects.backup_manifest import malformed_fields
from kstore.objects.object_store import Objects
from kstore.objects.remote_bytes import read_file
from kstore.objects.remote_state import UNKNOWN, RemoteFile, RemotePartition, SegmentFacts
from kstore.objects.tier_cut import cut_files

A_GUESS = (
    "which segments are valid is recorded in the broker's topic __remote_log_metadata; here it was guessed from the "
    "leader epochs of each partition's newest segment"
)
"""The note of each state that was read from a tier."""

MOST_EPOCHS_BYTES = 1 << 20
AHEAD = 8
"""How many segments of a partition are cut at the same time."""


@dataclass(frozen=True, slots=True)
class TierSegment:
    """A segment in a tier. Immutable; thread-safe."""

    place: str
    """The key of its log, for a person."""
    base_offset: int
    end_offset: int
    """One past the last offset."""
    epochs: tuple[EpochEntry, ...]
    """The leader epochs of its batches, each with the first offset in the segment."""
    written_ms: int
    """When it was copied to the tier, in milliseconds since the epoch."""
    files: Mapping[str, RemoteFile]
    """Its files by kind: `.log`, and the indexes that it has."""
    lineage: RemoteFile
    """The leader epochs of the log from its start to the end of this segment, as in `leader-epoch-checkpoint`."""
    snapshot: RemoteFile | None = None
    """The producers' state at the end of this segment."""
    max_timestamp: int | None = None
    max_timestamp_offset: int = UNKNOWN


@dataclass(slots=True)
class _Kept:
    """A segment of the log, and the offset that it is used up to."""

    segment: TierSegment
    valid_end: int
    end: int


@dataclass(slots=True)
class Chosen:
    """The segments of one log: each with the offset that it is used up to, without overlaps. Not thread-safe."""

    segments: list[tuple[TierSegment, int]] = field(default_factory=list)
    dead: list[TierSegment] = field(default_factory=list)
    """Those that another leader's records have replaced, wholly or from some offset on."""
    covered: list[TierSegment] = field(default_factory=list)
    """Those whose offsets other segments have."""
    expired: list[TierSegment] = field(default_factory=list)
    """Those below the log start offset."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets between segments that no segment has."""


def newest(segments: Iterable[TierSegment]) -> TierSegment:
    """Return the segment of the latest leader epoch; of several, the one that ends last."""
    return max(segments, key=lambda each: (each.epochs[-1].epoch, each.end_offset, each.written_ms, each.place))


def choose(segments: Iterable[TierSegment], lineage: Sequence[EpochEntry]) -> Chosen:
    """Choose the fewest segments that have all offsets of the log with these leader epochs, oldest first."""
    chosen = Chosen()
    start = lineage[0].offset
    usable: list[_Kept] = []
    for segment in segments:
        end = valid_end(segment, lineage)
        if end < segment.end_offset:
            chosen.dead.append(segment)
        if segment.base_offset < end <= start:
            chosen.expired.append(segment)
        elif segment.base_offset < end:
            usable.append(_Kept(segment, end, end))
    kept: list[_Kept] = []
    for each in sorted(usable, key=lambda one: (one.segment.base_offset, -one.end, one.segment.place)):
        base = each.segment.base_offset
        if kept and each.end <= kept[-1].valid_end:
            chosen.covered.append(each.segment)
            continue
        while len(kept) > 1 and base <= kept[-2].valid_end:
            chosen.covered.append(kept.pop().segment)
        if kept:
            kept[-1].end = min(kept[-1].valid_end, base)
            if kept[-1].end < base:
                chosen.gaps.append((kept[-1].end, base))
        kept.append(each)
    chosen.segments = [(each.segment, each.end) for each in kept]
    return chosen


def valid_end(segment: TierSegment, lineage: Sequence[EpochEntry]) -> int:
    """Return the offset up to which the segment's batches belong to the log with these leader epochs.

    Two logs with a batch of the same epoch at the same offset are equal up to it, so only an end can differ.
    """
    oldest = lineage[0]
    bounds = {entry.epoch: (entry.offset, _start(lineage, at + 1, LONG_MAX)) for at, entry in enumerate(lineage)}
    for at, (epoch, offset) in enumerate(segment.epochs):
        first = segment.base_offset if at == 0 else offset
        end = _start(segment.epochs, at + 1, segment.end_offset)
        if epoch < oldest.epoch and end <= oldest.offset:
            continue  # before the start of the log, whose epochs the newest segment no longer knows
        low, high = bounds.get(epoch, (LONG_MAX, LONG_MAX))
        if epoch == oldest.epoch:
            low = min(low, first)  # the first entry moves up with the log start offset
        if low > first or (at > 0 and low != first):
            return first
        if high < end:
            return max(high, first)
    return segment.end_offset


def _start(epochs: Sequence[EpochEntry], at: int, otherwise: int) -> int:
    return epochs[at].offset if at < len(epochs) else otherwise


def parse_lineage(data: bytes, where: str) -> tuple[EpochEntry, ...]:
    """Parse the leader epochs of a log; raises `BackupError` unless there are some, and they rise."""
    with malformed_fields(where):
        entries: list[EpochEntry] = []
        for line, (epoch, offset) in enumerate(checkpoint.parse_checkpoint(data, where, 2), 3):
            number = checkpoint.parse_integer(epoch, INT_MAX, where, line)
            start = checkpoint.parse_integer(offset, LONG_MAX, where, line)
            last = entries[-1] if entries else EpochEntry(-1, -1)
            if number <= last.epoch or start <= last.offset:
                raise checkpoint.malformed(where, line, f"epoch {number} from {start} on follows {tuple(last)}")
            entries.append(EpochEntry(number, start))
    if not entries:
        raise BackupError(f"{where} is malformed: it has no leader epoch")
    return tuple(entries)


def read_lineage(objects: Objects, segment: TierSegment) -> tuple[EpochEntry, ...]:
    """Read the leader epochs of the log up to the end of a segment."""
    data = read_file(objects, segment.lineage, MOST_EPOCHS_BYTES)
    return parse_lineage(data, f"the leader epochs of {segment.place} in {objects.url}")


def make_partition(
    objects: Objects, topic: str, partition: int, topic_id: str, segments: Sequence[TierSegment]
) -> tuple[RemotePartition, list[str]]:
    """Build a partition of its segments in a tier, at least one, with sentences about what was left out.

    Reads the leader epochs of the newest segment, and of each segment that is cut its indexes and the end of its log.
    """
    lineage = read_lineage(objects, newest(segments))
    chosen = choose(segments, lineage)
    name = names.partition_name(topic, partition)
    if not chosen.segments:
        raise BackupError(f"no segment of {name} in {objects.url} has the leader epochs of its newest segment")
    cuts = _cut(objects, chosen)
    files: dict[str, RemoteFile] = {}
    facts: dict[int, SegmentFacts] = {}
    ends = [segment.base_offset for segment in cuts[1:]] + [cuts[-1].end_offset]
    for segment, end in zip(cuts, ends, strict=True):
        for kind, file in segment.files.items():
            files[names.file_name(segment.base_offset, kind)] = file
        facts[segment.base_offset] = SegmentFacts(end, segment.max_timestamp, segment.max_timestamp_offset)
    wanted = {*facts, ends[-1]}
    for segment in segments:
        # A snapshot is of the end of its segment. In a directory it lies at the base of the next one.
        end = segment.end_offset
        if segment.snapshot is not None and end in wanted and valid_end(segment, lineage) == end:
            files[names.snapshot_name(end)] = segment.snapshot
    files[names.LEADER_EPOCH_CHECKPOINT] = RemoteFile(content=checkpoint.format_checkpoint(lineage))
    metadata = f"version: 0\ntopic_id: {topic_id}"
    files[names.PARTITION_METADATA] = RemoteFile(content=metadata.encode())
    start = max(lineage[0].offset, cuts[0].base_offset)
    made = RemotePartition(topic, partition, files, facts, log_start_offset=start, end_offset=ends[-1])
    return made, _notes(name, chosen, cuts)


def _cut(objects: Objects, chosen: Chosen) -> list[TierSegment]:
    """Return the segments up to their ends; one may end earlier if no batch begins there."""

    def cut(segment: TierSegment, end: int) -> TierSegment:
        files, facts = cut_files(objects, segment.place, segment.base_offset, segment.files, end)
        return replace(
            segment,
            files=files,
            end_offset=facts.end_offset,
            max_timestamp=facts.max_timestamp,
            max_timestamp_offset=facts.max_timestamp_offset,
        )

    longer = [(segment, end) for segment, end in chosen.segments if end < segment.end_offset]
    with Workers(AHEAD, "kstore-tier") as workers:
        shorter = list(workers.map(lambda each: cut(*each), longer))
    by_place = {segment.place: segment for segment in shorter}
    return [by_place.get(segment.place, segment) for segment, _ in chosen.segments]


def _notes(name: str, chosen: Chosen, cuts: Sequence[TierSegment]) -> list[str]:
    notes = []
    for segments, why in (
        (chosen.dead, "other leader epochs than the log, wholly or at the end"),
        (chosen.covered, "offsets that other segments have"),
        (chosen.expired, "offsets below the log start offset"),
    ):
        if segments:
            notes.append(f"{name}: left out because of {why}: {listed(each.place for each in segments)}")
    gaps = list(chosen.gaps)
    for segment, (_, end) in zip(cuts, chosen.segments, strict=True):
        if segment.end_offset < end:
            gaps.append((segment.end_offset, end))
    for start, end in sorted(gaps):
        notes.append(f"{name}: no segment has the offsets {start} to {end - 1}")
    return notes


def listed(items: Iterable[str], most: int = 3) -> str:
    """Return the first items as text, and the number of others."""
    found = list(items)
    others = f" and {len(found) - most} others" if len(found) > most else ""
    return ", ".join(found[:most]) + others
