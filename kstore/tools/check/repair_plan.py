"""What a repair would do to one partition, and what would be lost: a plan, and the lines that show it.

Pure: no file is opened here, and nothing is decided.
"""

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
    """One log file to be rewritten: the ranges of bytes that stay, and the bytes in them that are written over.

    A file that belongs under another name has no other change.
    """

    base_offset: int
    path: str
    """The file as it is named before the repair."""
    size_bytes: int
    keep: list[tuple[int, int]] = field(default_factory=list)
    patches: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Position in the old file, new bytes, why."""
    cuts: list[tuple[int, int, str]] = field(default_factory=list)
    """Position and end of the bytes that are cut, and why."""
    copied_bytes: int = 0
    """How many of the bytes that are cut another segment holds, too."""
    kept_batches: int = 0
    kept_records: int = 0
    next_offset: int = 0

    @property
    def lost_bytes(self) -> int:
        """How many bytes are cut that no other segment holds."""
        return sum(end - start for start, end, _ in self.cuts) - self.copied_bytes


@dataclass(slots=True)
class Plan:
    """Everything that would be done to one partition, and what would be lost. Not thread-safe."""

    path: str
    findings: list[Finding]
    segments: list[SegmentPlan] = field(default_factory=list)
    reindex: list[int] = field(default_factory=list)
    """Base offsets of segments whose indexes are built anew, beside those of `segments`."""
    remove: list[str] = field(default_factory=list)
    """Names of files that move into the backup."""
    removed_bytes: int = 0
    """How many bytes of those that are logs no other log holds."""
    rename: list[tuple[str, str]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[start, end)` that no batch will hold, and whose records are lost."""
    marks: list[tuple[str, int | None]] = field(default_factory=list)
    """Checkpoint file, and the partition's new line in it."""
    epochs: list[tuple[int, int]] | None = None
    topic_id: uuid.UUID | None = None
    """The id with which `partition.metadata` is written anew."""
    aborted: list[tuple[int, list[AbortedTxn]]] = field(default_factory=list)
    """Base offsets of segments whose transaction index is written anew, with its entries."""
    kept_batches: int = 0
    kept_records: int = 0
    kept_bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        done = (self.segments, self.reindex, self.remove, self.rename, self.lost, self.marks, self.aborted)
        return not any(done) and self.epochs is None

    @property
    def lost_bytes(self) -> int:
        """How many bytes of logs are cut that are nowhere else in the log."""
        return sum(segment.lost_bytes for segment in self.segments) + self.removed_bytes

    @property
    def lost_between(self) -> list[tuple[int, int]]:
        """The lost offsets below the end, which stay without records. Those at the end are given to new records."""
        return [gap for gap in self.lost if gap[1] <= self.end_offset]

    @property
    def most_lost_records(self) -> int:
        """How many records the lost offsets can have had at most: a damaged batch does not tell how many it had."""
        return sum(end - start for start, end in self.lost)

    def lines(self) -> list[str]:
        """Say what would be done, one line for each step, and what would be kept and lost."""
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
