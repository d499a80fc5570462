"""What a restore writes: the files of each partition, the parts of objects they are made of, and where they are cut.

Sealed segments keep their index files and snapshots; the opening builds the indexes of cut segments and of the tail.
Invariant: a path is made of a checked topic, a partition's number and a segment's file name, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kstore.copies.backups.backup_contents import (
    BackupState,
    Chunk,
    PartitionKey,
    PartitionState,
    SealedSegment,
    StoredFile,
)
from kstore.errors import BackupError, UnknownTopicOrPartitionError
from kstore.files import names
from kstore.files.topic_files import INTERNAL_CONFIGS

MOST_FILE_BYTES = 2**31 - 1
"""The largest file of a segment: positions in it have 32 bits."""


class Part(NamedTuple):
    """Some bytes of an object."""

    key: str
    position: int
    length: int
    crc: int


class PlannedFile(NamedTuple):
    """A file to write, by its path in the directory: the bytes of its parts, one after the other."""

    path: str
    parts: tuple[Part, ...]
    modified_ns: int = -1

    @property
    def bytes(self) -> int:
        """How large it is before it is cut."""
        return sum(part.length for part in self.parts)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is restored of one partition. Immutable; thread-safe."""

    state: PartitionState
    files: tuple[PlannedFile, ...]
    bases: tuple[int, ...]
    """The base offsets of its segments."""
    cut: int | None
    """The log ends at the start of the batch that holds this offset; None for all of the log."""
    end_offset: int
    """Where the data ends, if it is not cut: what the last of its chunks says."""
    gaps: tuple[tuple[int, int], ...]
    """Stretches of offsets that no segment has."""

    @property
    def key(self) -> PartitionKey:
        """Topic and number."""
        return self.state.key

    @property
    def directory(self) -> str:
        """The name of its directory."""
        return names.partition_name(*self.key)

    @property
    def last_log(self) -> PlannedFile:
        """The `.log` file that the partition ends with."""
        name = f"{self.directory}/{names.log_name(self.bases[-1])}"
        return next(file for file in self.files if file.path == name)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore writes. Immutable; thread-safe."""

    state: BackupState
    partitions: tuple[PartitionPlan, ...]

    @property
    def files(self) -> Iterator[PlannedFile]:
        """The files of all partitions."""
        return (file for partition in self.partitions for file in partition.files)


def plan(state: BackupState, offsets: Mapping[PartitionKey, int], topics: Collection[str] | None) -> Plan:
    """Plan to restore a state, some topics of it or all, some partitions up to an offset.

    The internal topics always come along, since transactions and groups are in them. Raises
    `UnknownTopicOrPartitionError` for what the state does not have, and `BackupError` for an offset outside of the log.
    """
    there = {topic for topic, _ in state.partitions} | set(state.topics)
    for topic in topics or ():
        if topic not in there:
            shown = ", ".join(sorted(there)[:5])
            raise UnknownTopicOrPartitionError(f"the backup has no topic {topic!r} as of round {state.number}: {shown}")
    wanted = there if topics is None else {*topics, *(topic for topic in there if topic in INTERNAL_CONFIGS)}
    for key in offsets:
        if key not in state.partitions or key[0] not in wanted:
            why = "is not restored" if key in state.partitions else f"is not in the backup as of round {state.number}"
            raise UnknownTopicOrPartitionError(f"an offset is given for {key[0]}-{key[1]}, which {why}")
    found = [state.partitions[key] for key in sorted(state.partitions) if key[0] in wanted]
    return Plan(state, tuple(_plan_partition(partition, offsets.get(partition.key)) for partition in found))


def _plan_partition(state: PartitionState, cut: int | None) -> PartitionPlan:
    directory = names.partition_name(state.topic, state.partition)
    if cut is not None and not state.log_start_offset <= cut <= state.end_offset:
        raise BackupError(
            f"{directory} has the offsets from {state.log_start_offset} up to {state.end_offset} in the backup; it "
            f"cannot be restored up to {cut}"
        )
    cut = None if cut == state.end_offset else cut
    files: list[PlannedFile] = []
    bases: list[int] = []
    gaps = state.gaps
    end = state.log_start_offset
    for segment in state.segments:
        if cut is None or segment.base_offset < cut:
            bases.append(segment.base_offset)
            files += _files_of(state, directory, segment, cut)
            end = segment.end_offset
    for base, chunks in _by_segment(state.tail, cut):
        parts = tuple(Part(state.object_of_chunk(chunk), chunk.at, chunk.length, chunk.crc) for chunk in chunks)
        bases.append(base)
        files.append(PlannedFile(f"{directory}/{names.log_name(base)}", parts))
        end = chunks[-1].end_offset
    # The source's last segment was empty, or it ended in a truncation's gap: the log goes on where it ended.
    goes_on = cut is None and (end < state.end_offset or not state.tail)
    if goes_on or not bases:
        base = state.end_offset if cut is None else cut
        if bases and end < base:
            gaps += ((end, base),)
        bases.append(base)
        files.append(PlannedFile(f"{directory}/{names.log_name(base)}", ()))
        end = base
    if state.snapshot is not None and state.snapshot[0] <= bases[-1]:
        files.append(_stored(state, directory, state.snapshot[0], state.snapshot[1]))
    unique = {file.path: file for file in files}
    for file in unique.values():
        if file.bytes > MOST_FILE_BYTES:
            raise BackupError(f"{file.path} would have {file.bytes} bytes; {MOST_FILE_BYTES} are allowed")
    if len(set(bases)) != len(bases):
        raise BackupError(f"{directory} has two segments that begin at the same offset in the backup")
    return PartitionPlan(state, tuple(unique.values()), tuple(bases), cut, end, gaps)


def _files_of(state: PartitionState, directory: str, segment: SealedSegment, cut: int | None) -> Iterator[PlannedFile]:
    """The files of a sealed segment; of one that is cut the `.log` and the snapshot at its base."""
    is_cut = cut is not None and cut < segment.end_offset
    for file in segment.files:
        if not is_cut or file.kind in (names.LOG, names.SNAPSHOT):
            planned = _stored(state, directory, segment.base_offset, file)
            yield planned if is_cut else planned._replace(modified_ns=segment.modified_ns)


def _stored(state: PartitionState, directory: str, base: int, file: StoredFile) -> PlannedFile:
    part = Part(state.object_of(base, file), 0, file.length, file.crc)
    return PlannedFile(f"{directory}/{names.file_name(base, file.kind)}", (part,))


def _by_segment(tail: tuple[Chunk, ...], cut: int | None) -> Iterator[tuple[int, list[Chunk]]]:
    """The chunks of the tail by the segments that they are of, as far as they begin below the cut."""
    found: dict[int, list[Chunk]] = {}
    end = -1
    for chunk in tail:
        if cut is not None and max(end, chunk.base_offset) >= cut:
            break
        found.setdefault(chunk.base_offset, []).append(chunk)
        end = chunk.end_offset
    yield from found.items()
