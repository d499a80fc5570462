"""`RemoteState`: what a prefix of an object store holds, as the directories and files of a log directory.

Each layout (a backup, a plain copy, a broker's tier) has a function that returns one. Invariant: a state does not
change. Its names were checked, and its files are described by ranges of objects whose lengths are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN = -1


class ObjectRange(NamedTuple):
    """Bytes of an object that are bytes of a file."""

    key: str
    position: int
    """Where the bytes start in the object."""
    stored_bytes: int
    """How many bytes they are in the object."""
    length: int
    """How many bytes they are in the file: `stored_bytes`, unless they are compressed."""
    crc: int = UNKNOWN
    """CRC-32C of the bytes of the file; -1 if it is not known."""
    is_zstd: bool = False
    """Whether the bytes are one zstd frame."""
    etag: str | None = None
    """The ETag of the object, if a listing told it."""


class RemoteFile(NamedTuple):
    """A file: its bytes, or the ranges of objects that make it up in order."""

    ranges: tuple[ObjectRange, ...] = ()
    content: bytes | None = None
    """The bytes of a small file that is in no object of its own."""
    modified_ms: int = 0
    """When the file was last changed, in milliseconds since the epoch."""
    length: int = UNKNOWN
    """The size of the file if it is less than its ranges have; -1 otherwise."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        if self.length != UNKNOWN:
            return self.length
        return len(self.content) if self.content is not None else sum(each.length for each in self.ranges)


class SegmentFacts(NamedTuple):
    """What is known of a segment without reading it."""

    end_offset: int = UNKNOWN
    """One past the last offset; for a sealed segment the base offset of the next one. -1 if it is not known."""
    max_timestamp: int | None = None
    """The greatest timestamp in milliseconds, -1 if no batch has one; None if it is not known."""
    max_timestamp_offset: int = UNKNOWN
    """The last offset of the first batch that has it."""
    starts: tuple[tuple[int, int], ...] = ()
    """(offset, position) of some batches in order: the first offset of a batch and its position in the file."""
    has_indexes: bool = True
    """Whether the layout has index files of the segment; a missing file is then damage."""


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """One partition. Immutable; thread-safe."""

    topic: str
    partition: int
    files: Mapping[str, RemoteFile]
    """The files of the partition's directory by their names, as Kafka names them."""
    segments: Mapping[int, SegmentFacts] = field(default_factory=dict)
    """What is known of segments, by their base offsets."""
    log_start_offset: int = 0
    end_offset: int = UNKNOWN
    """The log end offset; -1 if the end of the last segment must be looked for."""


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The log directory that a prefix holds. Immutable; thread-safe."""

    layout: str
    """Which layout it is, for a person: "backup", "copy", "tiered storage"."""
    partitions: Mapping[tuple[str, int], RemotePartition]
    files: Mapping[str, RemoteFile] = field(default_factory=dict)
    """The files of the log directory itself, such as `kstore-topics.json` and the checkpoints."""
    number: int = 0
    """The number of the backup's round; 0 for other layouts."""
    time_ms: int = 0
    """When the state was current, in milliseconds since the epoch; 0 if it is not known."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out or guessed."""
