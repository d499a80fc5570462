"""Plans a restore: the files of each partition, the parts of objects that make up a file, and where it is truncated.

Sealed segments keep their index files and snapshots; opening the store builds the indexes of truncated segments and of
the tail. Invariant: a path consists only of a checked topic, a partition's number and a segment's file name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kstore.errors import BackupError, UnknownTopicOrPartitionError
from kstore.files import names
from kstore.files.topic_files import INTERNAL_CONFIGS
from kstore.objects.backup_contents import (
    BackupState,
    Chunk,
    PartitionKey,
    PartitionState,
    SealedSegment,
    StoredFile,
)

MOST_FILE_BYTES = 2**31 - 1
"""The largest file of a segment: positions have 32 bits."""


class Part(NamedTuple):
    """Some bytes of an object."""

    key: str
    position: int
    length: int
    crc: int


class PlannedFile(NamedTuple):
    """A file to write: its path in the directory, and its parts in order."""

    path: str
    parts: tuple[Part, ...]
    modified_ns: int = -1

    @property
    def bytes(self) -> int:
        """The size of the file before it is truncated."""
        return sum(part.length for part in self.parts)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The plan of one partition. Immutable; thread-safe."""

    state: PartitionState
    files: tuple[PlannedFile, ...]
    bases: tuple[int, ...]
    cut: int | None
    """The log ends before the batch that holds this offset; None to restore all of it."""
    end_offset: int
    """The end offset of the last planned segment or chunk; the log ends there if `cut` is None."""
    gaps: tuple[tuple[int, int], ...]
    """Ranges of offsets that no segment has."""

    @property
    def key(self) -> PartitionKey:
        return self.state.key

    @property
    def directory(self) -> str:
        return names.partition_name(*self.key)

    @property
    def last_log(self) -> PlannedFile:
        name = f"{self.directory}/{names.log_name(self.bases[-1])}"
        return next(file for file in self.files if file.path == name)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a restore. Immutable; thread-safe."""

    state: BackupState
    partitions: tuple[PartitionPlan, ...]

    @property
    def files(self) -> Iterator[PlannedFile]:
        return (file for partition in self.partitions for file in partition.files)


def plan(state: BackupState, offsets: Mapping[PartitionKey, int], topics: Collection[str] | None) -> Plan:
    """Plan the restore of a state: all topics or some, and some partitions up to an offset.

    The internal topics are always included, since they hold transactions and groups. Raises
    `UnknownTopicOrPartitionError` for a topic or partition that the state does not have, `BackupError` for an offset
    outside the log.
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
    # The source's last segment was empty, or the log ended with a gap left by a truncation: add an empty segment.
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
    """Yield the files of a sealed segment; for a truncated segment only the `.log` file and the snapshot."""
    is_cut = cut is not None and cut < segment.end_offset
    for file in segment.files:
        if not is_cut or file.kind in (names.LOG, names.SNAPSHOT):
            planned = _stored(state, directory, segment.base_offset, file)
            yield planned if is_cut else planned._replace(modified_ns=segment.modified_ns)


def _stored(state: PartitionState, directory: str, base: int, file: StoredFile) -> PlannedFile:
    part = Part(state.object_of(base, file), 0, file.length, file.crc)
    return PlannedFile(f"{directory}/{names.file_name(base, file.kind)}", (part,))


def _by_segment(tail: tuple[Chunk, ...], cut: int | None) -> Iterator[tuple[int, list[Chunk]]]:
    """Yield the base offset of each segment of the tail with its chunks, up to the cut."""
    found: dict[int, list[Chunk]] = {}
    end = -1
    for chunk in tail:
        if cut is not None and max(end, chunk.base_offset) >= cut:
            break
        found.setdefault(chunk.base_offset, []).append(chunk)
        end = chunk.end_offset
    yield from found.items()
