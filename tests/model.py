"""A log as a Python list: what the state machine and the crash tests hold a real one against.

It knows batches, offsets and marks, and nothing of files: segments it is told about, since a truncation and a reopening
ask for the base of the last one (SEMANTICS.md 8.10, 11.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kstore import Record


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """Records that stand or fall together."""

    base_offset: int
    last_offset: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class Model:
    """Batches in order, the log start, the log end."""

    batches: list[ModelBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def copy(self) -> Model:
        return replace(self, batches=list(self.batches))

    def append(self, batches: Iterable[ModelBatch]) -> None:
        for batch in batches:
            assert self.end <= batch.base_offset <= batch.last_offset
            self.batches.append(batch)
            self.end = batch.last_offset + 1

    def truncate(self, offset: int, bases: Sequence[int]) -> bool:
        """Batch by batch, and yet the end is the offset (11.4); below the first segment everything goes (11.2)."""
        if offset >= self.end:
            return False
        if offset < bases[0]:
            self.restart(offset)
            return True
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.start, self.end = min(self.start, offset), offset
        return True

    def restart(self, offset: int) -> None:
        """Empty, and to go on at the offset (11.8)."""
        self.batches, self.start, self.end = [], offset, offset

    def delete(self, before: int) -> None:
        self.start = max(self.start, before)

    def drop_segments(self, base: int) -> None:
        """What lies below the first segment's base is in no file any more."""
        self.batches = [batch for batch in self.batches if batch.last_offset >= base]

    def reopen(self, bases: Sequence[int]) -> None:
        """The end is read from the batches, else it is the last segment's base (8.10); below the start: anew (8.11)."""
        self.end = max(self.batches[-1].last_offset + 1 if self.batches else 0, bases[-1])
        if self.end < self.start:
            self.batches, self.end = [], self.start

    def records(self, offset: int | None = None) -> list[Record]:
        least = self.start if offset is None else offset
        return [record for record in self.all_records() if record.offset >= least]

    def all_records(self) -> Iterator[Record]:
        """Those below the log start too, which lie in the files still."""
        for batch in self.batches:
            yield from batch.records

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """The lowest offset at or above the start whose timestamp is at or after this one (5.5)."""
        return next(((r.timestamp, r.offset) for r in self.records() if r.timestamp >= timestamp), None)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The greatest timestamp in the files, and the first record that has it (5.4)."""
        found = max(self.all_records(), key=lambda record: record.timestamp, default=None)
        return None if found is None or found.timestamp < 0 else (found.timestamp, found.offset)
