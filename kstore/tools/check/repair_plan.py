"""The plan of a repair of one partition: what it does and what would be lost, also as text. This module does no I/O."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field

from kstore.files import checkpoint, names
from kstore.files.txnindex import AbortedTxn
from kstore.tools.check.findings import Finding

__all__ = ["Plan", "SegmentPlan"]


@dataclass(slots=True)
class SegmentPlan:
    """One log file to be rewritten: the ranges of bytes that are kept, and the bytes in them that are overwritten.

    A file that only gets another name keeps all its bytes.
    """

    base_offset: int
    path: str
    """The path of the file before the repair."""
    size_bytes: int
    keep: list[tuple[int, int]] = field(default_factory=list)
    patches: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Position in the old file, new bytes, reason."""
    cuts: list[tuple[int, int, str]] = field(default_factory=list)
    """Position and end of the bytes that are cut, and the reason."""
    copied_bytes: int = 0
    """The number of cut bytes that another segment has, too."""
    kept_batches: int = 0
    kept_records: int = 0
    next_offset: int = 0

    @property
    def lost_bytes(self) -> int:
        """The number of cut bytes that no other segment has."""
        return sum(end - start for start, end, _ in self.cuts) - self.copied_bytes


@dataclass(slots=True)
class Plan:
    """All changes of a repair to one partition, and its losses. Not thread-safe."""

    path: str
    findings: list[Finding]
    segments: list[SegmentPlan] = field(default_factory=list)
    reindex: list[int] = field(default_factory=list)
    """Base offsets of segments whose indexes are rebuilt, in addition to those of `segments`."""
    remove: list[str] = field(default_factory=list)
    """Names of files that are moved into the backup."""
    removed_bytes: int = 0
    """The number of bytes in removed logs that no other log has."""
    rename: list[tuple[str, str]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[start, end)` that no batch will have, and whose records are lost."""
    marks: list[tuple[str, int | None]] = field(default_factory=list)
    """Checkpoint files, each with the partition's new offset in it; None removes the partition's line."""
    epochs: list[tuple[int, int]] | None = None
    topic_id: uuid.UUID | None = None
    """The id to write into `partition.metadata`."""
    aborted: list[tuple[int, list[AbortedTxn]]] = field(default_factory=list)
    """Base offsets of segments whose transaction index is rewritten, each with the new entries."""
    kept_batches: int = 0
    kept_records: int = 0
    kept_bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0

    @property
    def is_empty(self) -> bool:
        done = (self.segments, self.reindex, self.remove, self.rename, self.lost, self.marks, self.aborted)
        return not any(done) and self.epochs is None

    @property
    def lost_bytes(self) -> int:
        """The number of cut and removed bytes of logs that are nowhere else in the partition."""
        return sum(segment.lost_bytes for segment in self.segments) + self.removed_bytes

    @property
    def lost_between(self) -> list[tuple[int, int]]:
        """The lost offsets below the log end, which no record will have; new records get lost offsets at the end."""
        return [gap for gap in self.lost if gap[1] <= self.end_offset]

    @property
    def most_lost_records(self) -> int:
        """The most records that the lost offsets can have had; a damaged batch does not say how many it had."""
        return sum(end - start for start, end in self.lost)

    def lines(self) -> list[str]:
        """Return the plan as text, one line for each step, then what would be kept and lost."""
        text = [f"rename {source} to {target}" for source, target in self.rename]
        for segment in self.segments:
            name = os.path.basename(segment.path)
            if name != names.log_name(segment.base_offset):
                text.append(f"rename {name} to {names.log_name(segment.base_offset)}")
            text += [f"{name}: at position {at}: {why}" for at, _, why in segment.patches]
            text += [f"{name}: cut {end - at} bytes at position {at}: {why}" for at, end, why in segment.cuts]
        text += [f"build the indexes of segment {base} anew" for base in self.reindex]
        text += [f"write {names.txn_index_name(base)} anew: {len(entries)} entries" for base, entries in self.aborted]
        text += [f"move {name} into the backup" for name in self.remove]
        if self.topic_id is not None:
            text.append(f"write {names.PARTITION_METADATA} anew: {checkpoint.format_topic_id(self.topic_id)}")
        if self.epochs is not None:
            text.append(f"write {names.LEADER_EPOCH_CHECKPOINT} anew: {self.epochs}")
        for name, offset in self.marks:
            text.append(f"{name}: " + ("take the line out" if offset is None else f"set the line to {offset}"))
        kept = f"{self.kept_records} records in {self.kept_batches} batches, {self.kept_bytes} bytes"
        stay = f"offsets {self.start_offset} to {self.end_offset - 1}" if self.kept_batches else "no offset"
        text.append(f"kept: {kept}, {stay}")
        offsets = ", ".join(f"{low} to {high - 1}" if low < high - 1 else f"{low}" for low, high in self.lost)
        most = self.most_lost_records
        gone = f"offsets {offsets}, at most {most} records" if most > 1 else f"offset {offsets}, at most 1 record"
        gone = gone if self.lost else "no offset"
        text.append(f"lost: {self.lost_bytes} bytes, {gone}")
        return text
