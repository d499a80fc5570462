"""A log as a Python list: what the state machine and the crash tests hold a real one against.

It knows batches, offsets and marks, and nothing of files: segments it is told about, since a truncation and a reopening
ask for the base of the last one (SEMANTICS 8.10, 11.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kstore import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    Record,
    TransactionCoordinatorFencedError,
)


class Numbers(NamedTuple):
    """What a batch says of its producer; `commit` for a marker, which has no sequence, and no records for readers."""

    producer_id: int
    epoch: int
    timestamp: int
    sequence: int = -1
    transactional: bool = True
    commit: bool | None = None
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """Records that stand or fall together."""

    base_offset: int
    last_offset: int
    records: tuple[Record, ...]
    numbers: Numbers | None = None


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
        """Batch by batch, and yet the end is the offset (SEMANTICS 11.4); below the first segment everything goes
        (SEMANTICS 11.2)."""
        if offset >= self.end:
            return False
        if offset < bases[0]:
            self.restart(offset)
            return True
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.start, self.end = min(self.start, offset), offset
        return True

    def restart(self, offset: int) -> None:
        """Empty, and to go on at the offset (SEMANTICS 11.8)."""
        self.batches, self.start, self.end = [], offset, offset

    def delete(self, before: int) -> None:
        self.start = max(self.start, before)

    def drop_segments(self, base: int) -> None:
        """What lies below the first segment's base is in no file any more."""
        self.batches = [batch for batch in self.batches if batch.last_offset >= base]

    def reopen(self, bases: Sequence[int]) -> None:
        """The end is read from the batches, else it is the last segment's base (SEMANTICS 8.10); below the start: anew
        (SEMANTICS 8.11)."""
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

    def times(self) -> Iterator[tuple[int, int]]:
        """The timestamps and offsets of all records in the files, and of markers."""
        for batch in self.batches:
            if batch.numbers is not None and batch.numbers.commit is not None:
                yield batch.numbers.timestamp, batch.base_offset
            yield from ((record.timestamp, record.offset) for record in batch.records)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """The lowest offset at or above the start whose timestamp is at or after this one (SEMANTICS 5.5)."""
        return next((each for each in self.times() if each[0] >= timestamp and each[1] >= self.start), None)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The greatest timestamp in the files, and the first record that has it (SEMANTICS 5.4)."""
        found = max(self.times(), key=lambda each: each[0], default=None)
        return None if found is None or found[0] < 0 else found


# --- producers --------------------------------------------------------------------------------------------------------

INT_MAX = 2**31 - 1
Kept = tuple[int, int, int, int]  # first and last sequence, first and last offset


@dataclass(slots=True)
class Known:
    """What a log knows of one producer (SEMANTICS 9.1)."""

    epoch: int = -1
    coordinator_epoch: int = -1
    timestamp: int = -1
    txn_first: int = -1
    kept: list[Kept] = field(default_factory=list)

    def take(self, batch: ModelBatch) -> None:
        """Take in a batch that is not refused (SEMANTICS 9.5, 9.11)."""
        numbers = batch.numbers
        assert numbers is not None
        self.kept = self.kept if self.epoch == numbers.epoch else []
        self.epoch, self.timestamp = numbers.epoch, numbers.timestamp
        if numbers.commit is not None:
            self.coordinator_epoch, self.txn_first = numbers.coordinator_epoch, -1
            return
        last = (numbers.sequence + batch.last_offset - batch.base_offset) & INT_MAX
        self.kept = [*self.kept, (numbers.sequence, last, batch.base_offset, batch.last_offset)][-5:]
        if numbers.transactional and self.txn_first < 0:
            self.txn_first = batch.base_offset

    def refusal(self, numbers: Numbers, version: int = 0) -> type[Exception] | None:
        """Why a leader refuses these numbers (SEMANTICS 9.6, 9.7, 9.11a)."""
        same = numbers.epoch == self.epoch
        if numbers.commit is not None:
            repeated = same and (self.txn_first < 0 or numbers.epoch == 32767)
            if numbers.epoch < self.epoch or (version == 2 and same and not repeated):
                return InvalidProducerEpochError
            return TransactionCoordinatorFencedError if numbers.coordinator_epoch < self.coordinator_epoch else None
        if numbers.epoch < self.epoch:
            return InvalidProducerEpochError
        last = self.kept[-1][1] if self.kept else -1
        expected = (last + 1) & INT_MAX if same else 0
        if self.epoch >= 0 and numbers.sequence != expected:
            return OutOfOrderSequenceError
        return InvalidTxnStateError if self.txn_first >= 0 and not numbers.transactional else None


def replay(batches: Iterable[ModelBatch]) -> dict[int, Known]:
    """The state of the producers after these batches."""
    found: dict[int, Known] = {}
    for batch in batches:
        if batch.numbers is not None:
            found.setdefault(batch.numbers.producer_id, Known()).take(batch)
    return found


def aborted_batches(batches: Iterable[ModelBatch]) -> set[int]:
    """The bases of the batches that no reader of committed records sees, for their marker says so."""
    open_ones: dict[int, list[int]] = {}
    found: set[int] = set()
    for batch in batches:
        if batch.numbers is None:
            continue
        if batch.numbers.commit is not None:
            ended = open_ones.pop(batch.numbers.producer_id, [])
            found.update(() if batch.numbers.commit else ended)
        elif batch.numbers.transactional:
            open_ones.setdefault(batch.numbers.producer_id, []).append(batch.base_offset)
    return found
