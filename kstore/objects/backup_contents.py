"""The contents of a backup after one round: topics, partitions, their segments and tails, and dropped objects.

Invariant: the tail of a partition follows its sealed segments without a gap, and chunks follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kstore.files import names
from kstore.objects import object_keys
from kstore.objects.backup_manifest import Span, numbers_in

PartitionKey: TypeAlias = tuple[str, int]


class StoredFile(NamedTuple):
    """A file of a segment. Its object has the file's name, followed by a dot and `suffix` unless `suffix` is empty."""

    kind: str
    length: int
    crc: int
    suffix: str = ""


class SealedSegment(NamedTuple):
    """A segment that the log no longer writes. Each of its files is an object."""

    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    inode: int
    modified_ns: int
    """With `inode`, identifies the source's `.log` file, to detect a replacement. A restored file gets this time."""
    files: tuple[StoredFile, ...]
    max_timestamp: int | None = None
    """The greatest timestamp of its batches, -1 if none has one; None in backups of older releases."""

    def file(self, kind: str) -> StoredFile | None:
        return next((file for file in self.files if file.kind == kind), None)


class Chunk(NamedTuple):
    """Whole batches of a segment's `.log` file, stored in a round's object or in an object of this partition."""

    base_offset: int
    """The base offset of the segment."""
    position: int
    """The position of the batches in the segment's file."""
    length: int
    crc: int
    end_offset: int
    """One past the last offset of the batches."""
    round: int
    """The number of the round; 0 if `suffix` names the object."""
    at: int
    """The position of the batches in the object."""
    suffix: str = ""
    """The object is named like the `.log` file, with a dot and this suffix; empty for a round's object."""

    @property
    def end_position(self) -> int:
        return self.position + self.length


class EpochStart(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition. Immutable; thread-safe."""

    topic: str
    partition: int
    topic_id: str = ""
    """The id in `partition.metadata`; empty for a topic that has none, as in old versions of Kafka."""
    log_start_offset: int = 0
    end_offset: int = 0
    """All records below this offset are backed up."""
    high_watermark: int = 0
    cleaned_offset: int = -1
    """The cleaner's checkpoint; -1 if there is none."""
    epochs: tuple[EpochStart, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that are in no segment, from `kstore-gaps.json`."""
    segments: tuple[SealedSegment, ...] = ()
    tail: tuple[Chunk, ...] = ()
    snapshot: tuple[int, StoredFile] | None = None
    """The producer snapshot at the base offset of the tail's first segment."""

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    def object_of(self, base_offset: int, file: StoredFile) -> str:
        return str(object_keys.FileKey(self.topic, self.partition, base_offset, file.kind, file.suffix))

    def object_of_chunk(self, chunk: Chunk) -> str:
        if not chunk.suffix:
            return object_keys.round_key(chunk.round)
        return str(object_keys.FileKey(self.topic, self.partition, chunk.base_offset, names.LOG, chunk.suffix))

    def objects(self) -> list[str]:
        """Return the names of the partition's own objects; rounds are not included."""
        found = [self.object_of(segment.base_offset, file) for segment in self.segments for file in segment.files]
        found += dict.fromkeys(self.object_of_chunk(chunk) for chunk in self.tail if chunk.suffix)
        return found if self.snapshot is None else [*found, self.object_of(*self.snapshot)]

    def refusal(self) -> str | None:
        """Return why the fields do not fit together; None if they do."""
        last = -1
        for segment in self.segments:
            if not last <= segment.base_offset < segment.end_offset:
                return f"segment {segment.base_offset} ends at {segment.end_offset}, behind one that ends at {last}"
            last = segment.end_offset
            kinds = [file.kind for file in segment.files]
            if names.LOG not in kinds or len(set(kinds)) != len(kinds):
                return f"segment {segment.base_offset} has the files {kinds}; each once and a .log are needed"
        base, position, end = -1, 0, last
        for chunk in self.tail:
            follows = chunk.base_offset == base and chunk.position == position
            begins = chunk.base_offset >= max(end, 0) and chunk.position == 0 and chunk.base_offset != base
            if not follows and not begins:
                return f"a chunk of {chunk.base_offset} at {chunk.position} comes behind offset {end} at {position}"
            if not max(end, chunk.base_offset) < chunk.end_offset:
                return f"a chunk of {chunk.base_offset} ends at {chunk.end_offset}, not above {end}"
            base, position, end = chunk.base_offset, chunk.end_position, chunk.end_offset
        if self.end_offset < end:
            return f"its end is {self.end_offset}, below the {end} of what it holds"
        if self.high_watermark > self.end_offset or self.log_start_offset > self.end_offset:
            marks = f"high watermark {self.high_watermark} and log start {self.log_start_offset}"
            return f"{marks} are not both up to its end {self.end_offset}"
        risen = EpochStart(-1, -1)
        for entry in self.epochs:
            if entry.epoch <= risen.epoch or entry.offset <= risen.offset:
                return f"leader epoch {entry.epoch} from {entry.offset} on follows {risen.epoch} from {risen.offset} on"
            risen = entry
        return None


@dataclass(frozen=True, slots=True)
class TopicState:
    """The record that a store keeps of a topic. Immutable; thread-safe."""

    topic_id: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


class Dropped(NamedTuple):
    """Objects that the state no longer needs since `time_ms`. They are deleted after the restore window."""

    time_ms: int
    keys: tuple[str, ...] = ()
    rounds: tuple[Span, ...] = ()

    def objects(self) -> list[str]:
        """Return the names of all these objects, including rounds."""
        return [*self.keys, *map(object_keys.round_key, numbers_in(self.rounds))]


@dataclass(frozen=True, slots=True)
class BackupState:
    """The contents of the backup after one round. Immutable; thread-safe."""

    number: int = 0
    time_ms: int = 0
    caught_up: bool = False
    """Whether the state has everything that the source had; False while a first backup takes several rounds."""
    together: bool = True
    """Whether the ends of all partitions were taken at the same time; False if another process wrote the directory."""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    partitions: Mapping[PartitionKey, PartitionState] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    loads: str = ""
    """The text of `kstore-loads.json`, which lists the finished bulk loads. Empty if there is no such file."""
