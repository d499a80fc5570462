"""A log in mode "r" answers as its writer does: marks, reads, lookups and fetches, after any history with transactions.

The reader finds open and aborted transactions from snapshots, indexes and batches; the writer keeps them in memory.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from tests.conftest import ManualClock, examples

pytestmark = pytest.mark.usefixtures("no_syncs")

ISOLATIONS: tuple[Literal["read_committed", "read_uncommitted"], ...] = ("read_committed", "read_uncommitted")
SETTINGS: dict[str, Any] = {
    "segment_bytes": 700,
    "index_interval_bytes": 100,
    "cleanup_policy": "compact,delete",
    "retention_ms": -1,
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 500,
    "file_delete_delay_ms": 0,
}


def answers(log: kstore.Log, stamps: list[int]) -> dict[str, Any]:
    """Everything that can be asked of a log, by the question."""
    start, end = log.log_start_offset, log.log_end_offset
    said: dict[str, Any] = {
        "start": start,
        "end": end,
        "stable": log.last_stable_offset,
        "latest": log.max_timestamp(),
        "open": [(each.producer_id, each.current_txn_first_offset) for each in log.producer_states()
                 if each.current_txn_first_offset >= 0],
        "segments": [(s.base_offset, s.next_offset, s.size_bytes, s.max_timestamp, s.first_timestamp)
                     for s in log.segments],
        "times": [log.offset_for_timestamp(each) for each in stamps],
    }  # fmt: skip
    for isolation in ISOLATIONS:
        for offset in {start, (start + end) // 2, end}:
            said[f"read {offset} {isolation}"] = [
                (r.offset, r.timestamp, r.key, r.value) for r in log.read(offset, isolation=isolation)
            ]
            said[f"columns {offset} {isolation}"] = [
                each for chunk in log.iter_columns(offset, isolation=isolation) for each in chunk.offsets.tolist()
            ]
            said[f"gets {isolation}"] = by_gets(log, range(start, end, (end - start) // 12 + 1), isolation)
            fetched = log.fetch(offset, 1 << 20, isolation=isolation)
            said[f"fetch {offset} {isolation}"] = (fetched.offset, bytes(fetched.records))
        by_offset = {each[0]: each for each in said[f"read {start} {isolation}"]}
        assert said[f"gets {isolation}"] == {at: by_offset.get(at) for at in said[f"gets {isolation}"]}
    return said


def by_gets(log: kstore.Log, offsets: range, isolation: Any) -> dict[int, tuple[Any, ...] | None]:
    found = {offset: log.get(offset, isolation=isolation) for offset in offsets}
    return {at: None if r is None else (r.offset, r.timestamp, r.key, r.value) for at, r in found.items()}


class Life:
    """A log that is written in one place and read in another."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng, self.clock = path, random.Random(seed), ManualClock()
        self.log = self.opened()
        self.reader = kstore.Log.open(path, "r")
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.stamps = [0, self.clock.now]
        self.ages = 0

    def opened(self) -> kstore.Log:
        return kstore.Log.open(self.path, clock=self.clock, **SETTINGS)

    def step(self) -> None:
        acts = {
            self.produce: 10, self.append: 6, self.end: 6, self.roll: 2, self.delete: 2, self.truncate: 1,
            self.compact: 2, self.retain: 1, self.flush: 1, self.reopen: 1, self.crash: 1,
        }  # fmt: skip
        [act] = self.rng.choices(list(acts), list(acts.values()))
        act()
        self.clock.advance(self.rng.choice((0, 1, 300)))
        if self.rng.random() < 0.5:
            self.age()

    def age(self) -> None:
        """The directories changed long ago: a reader that has listed them trusts their times of modification."""
        self.ages += 1
        for directory in (self.path, self.path.parent):
            os.utime(directory, ns=(self.ages, self.ages))

    def stamp(self) -> int:
        stamp = self.clock.now + self.rng.randint(-50, 50)
        self.stamps.append(stamp)
        return stamp

    def rows(self) -> list[tuple[bytes, bytes | None, int, None]]:
        return [
            (b"k%d" % self.rng.randrange(4), self.rng.choice((b"v" * 20, None)), self.stamp(), None)
            for _ in range(self.rng.randint(1, 3))
        ]

    def append(self) -> None:
        self.log.append_many(self.rows())

    def produce(self) -> None:
        pid, rows = self.rng.randrange(3), self.rows()
        first = self.sequences.get(pid, 0)
        is_open = any(s.producer_id == pid and s.current_txn_first_offset >= 0 for s in self.log.producer_states())
        try:
            self.log.append_many(
                rows, atomic=True, producer_id=pid, producer_epoch=self.epochs.get(pid, 0), base_sequence=first,
                transactional=is_open or self.rng.random() < 0.8,
            )  # fmt: skip
        except kstore.KStoreError:  # a truncation or a crash has taken batches: the producer begins anew
            self.epochs[pid] = self.epochs.get(pid, 0) + 1
            self.sequences[pid] = 0
        else:
            self.sequences[pid] = first + len(rows)

    def end(self) -> None:
        pid = self.rng.randrange(3)
        self.log.append_marker(pid, self.epochs.get(pid, 0), commit=self.rng.random() < 0.5)

    def roll(self) -> None:
        self.log.roll()

    def delete(self) -> None:
        """Amid an open transaction not everything: then no file might tell of it."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        is_open = any(state.current_txn_first_offset >= 0 for state in self.log.producer_states())
        self.log.delete_records(self.rng.randint(start, max(end - is_open, start)))

    def may_forget(self) -> bool:
        """Whether a transaction began below the log start: a recovery or a truncation may forget it."""
        start = self.log.log_start_offset
        return any(0 <= each.current_txn_first_offset < start for each in self.log.producer_states())

    def truncate(self) -> None:
        """Cut to where a batch ends: behind other cuts no file tells the log's end (`recovery-point-in-a-gap`)."""
        if self.may_forget():
            return
        start = self.log.log_start_offset
        ends = [batch.last_offset + 1 for batch in self.log.read_batches(start)]
        self.log.truncate_to(self.rng.choice([self.log.log_end_offset, *(end for end in ends if end > start)]))

    def compact(self) -> None:
        self.log.compact(roll=self.rng.random() < 0.5)

    def retain(self) -> None:
        self.log.apply_retention()

    def flush(self) -> None:
        self.log.flush()

    def reopen(self) -> None:
        self.log.close()
        self.log = self.opened()

    def crash(self) -> None:
        """The process dies: what it leaves is another log, as the system wrote it."""
        if self.may_forget():
            return
        left = self.path.parent / f"left{self.rng.random()}" / self.path.name
        shutil.copytree(self.path, left)
        for name in "recovery-point-offset-checkpoint", "log-start-offset-checkpoint":
            if (self.path.parent / name).exists():
                shutil.copy(self.path.parent / name, left.parent)
        self.close()
        self.path = left
        self.log = self.opened()
        self.reader = kstore.Log.open(left, "r")

    def close(self) -> None:
        self.reader.close()
        self.log.close()


@given(st.integers(0, 2**32))
@examples(0.2)
def test_a_reader_answers_as_the_writer_does_after_any_history(seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        life = Life(Path(name) / "t-0", seed)
        try:
            for _ in range(life.rng.randint(5, 40)):
                life.step()
                expected = answers(life.log, life.stamps)
                assert answers(life.reader, life.stamps) == expected
                with kstore.Log.open(life.path, "r") as fresh:
                    assert answers(fresh, life.stamps) == expected
        finally:
            life.close()


def test_a_transaction_that_began_below_the_log_start_withholds_the_same_from_both(tmp_path: Path) -> None:
    """`stable-below-start`: the last stable offset is the log start until the transaction ends."""
    path = tmp_path / "t-0"
    with kstore.Log.open(path) as log:
        log.append_many([b"open"], atomic=True, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        for number in range(4):
            log.append(b"%d" % number)
        log.delete_records(2)
        with kstore.Log.open(path, "r") as reader:
            assert (log.last_stable_offset, reader.last_stable_offset) == (2, 2)
            assert list(reader.read(isolation="read_committed")) == []
            log.append_marker(1, 0, commit=True)
            assert (log.last_stable_offset, reader.last_stable_offset) == (6, 6)
            assert [r.offset for r in reader.read(isolation="read_committed")] == [2, 3, 4]
