"""Any order of operations on a compacted log keeps the newest record of each key: a state machine with a dictionary.

The model knows every record that was appended and not cut, and which of them a compaction may have dropped: those that
a later committed record of their key supersedes, those of aborted transactions, tombstones whose time is over. All
others must be there, at their offsets, for every reader, here and in a log opened for reading beside it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import kstore
from tests.conftest import BUDGET, ManualClock
from tests.support.verifying import errors

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.sampled_from([None, b"", b"v", b"x" * 40, b"y" * 90])
ROWS = st.tuples(KEYS, VALUES)
PRODUCERS = st.sampled_from([1, 2, 3])
COMMITTED = "read_committed"
RETENTION_MS = 1000


@dataclass
class Item:
    """One record, and what has become of its transaction: committed, aborted, open."""

    offset: int
    key: bytes
    value: bytes | None
    batch: tuple[int, int]  # first and last offset
    producer: int | None = None  # of a transaction
    fate: str = "committed"


class Stop(Exception):
    """What a callback raises to end a compaction."""


class CompactionMachine(RuleBasedStateMachine):
    """One log, a dictionary of what was appended, a reader beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="kstore-machine-"))
        self.life = 0
        self.clock = ManualClock()
        self.items: dict[int, Item] = {}
        self.markers: list[tuple[int, int, bool]] = []  # offset, producer, whether it commits
        self.start = self.end = 0
        self.may_be_gone: set[int] = set()
        self.is_gone: set[int] = set()
        self.horizons: dict[int, int] = {}  # of batches, by base offset: when their tombstones may go
        self.config: dict[str, Any] = {}
        self.log: kstore.Log | None = None

    @property
    def path(self) -> Path:
        return self.home / f"life-{self.life}" / "events-0"

    def open(self) -> kstore.Log:
        self.log = kstore.Log.open(self.path, clock=self.clock, **self.config)
        self.reader = kstore.Log.open(self.path, mode="r")
        return self.log

    @initialize(segment_bytes=st.sampled_from([300, 700, 1500]), interval=st.sampled_from([0, 100, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "segment_index_bytes": 4096,
            "cleanup_policy": "compact,delete",
            "retention_ms": -1,
            "delete_retention_ms": RETENTION_MS,
            "file_delete_delay_ms": 0,
        }
        self.open()

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()
            self.reader.close()
            assert errors(self.path) == []
        shutil.rmtree(self.home)

    # Appends.

    def take(self, rows: list[tuple[bytes, bytes | None]], producer: int | None = None) -> None:
        """Note records from the end on; how they fall into batches is what the log says."""
        first = self.end
        for batch in self.log.read_batches(first):
            for record in batch:
                key, value = rows[record.offset - first]
                assert (record.key, record.value) == (key, value)
                bounds = batch.base_offset, batch.last_offset
                fate = "committed" if producer is None else "open"
                self.items[record.offset] = Item(record.offset, key, value, bounds, producer, fate)
        self.end += len(rows)

    @rule(row=ROWS)
    def append(self, row: tuple[bytes, bytes | None]) -> None:
        assert self.log.append(row[1], key=row[0]) == self.end
        self.take([row])

    @rule(rows=st.lists(ROWS, min_size=1, max_size=8), codec=st.sampled_from(["none", "none", "lz4", "zstd"]))
    def append_many(self, rows: list[tuple[bytes, bytes | None]], codec: str) -> None:
        assert self.log.append_many(rows, compression=codec, batch_bytes=200).first_offset == self.end
        self.take(rows)

    @rule(pid=PRODUCERS, rows=st.lists(ROWS, min_size=1, max_size=3), transactional=st.booleans())
    def produce(self, pid: int, rows: list[tuple[bytes, bytes | None]], transactional: bool) -> None:
        known = {info.producer_id: info for info in self.log.producer_states()}.get(pid)
        sequence = 0
        if known is not None and known.batches:
            sequence = known.batches[-1][1] + 1
        if known is not None and known.current_txn_first_offset >= 0:
            transactional = True
        info = self.log.append_many(
            rows, producer_id=pid, producer_epoch=0, base_sequence=sequence, transactional=transactional
        )
        assert info.first_offset == self.end
        self.take(rows, pid if transactional else None)

    @rule(pid=PRODUCERS, commit=st.booleans())
    def end_transaction(self, pid: int, commit: bool) -> None:
        if pid in self.open_in_log():
            assert self.log.append_marker(pid, 0, commit=commit, coordinator_epoch=0) == self.end
            self.markers.append((self.end, pid, commit))
            self.end += 1
            self.decide()

    def open_in_log(self) -> set[int]:
        states = self.log.producer_states()
        return {info.producer_id for info in states if info.current_txn_first_offset >= 0}

    def decide(self) -> None:
        """Say what has become of each transaction, by the markers that there are."""
        for item in self.items.values():
            if item.producer is not None:
                ends = (m for m in self.markers if m[1] == item.producer and m[0] > item.offset)
                marker = next(ends, None)
                if marker is not None:
                    item.fate = "committed" if marker[2] else "aborted"
                elif item.fate != "lost":
                    item.fate = "open"

    # Compaction.

    @rule(roll=st.booleans(), advance=st.sampled_from([0, 0, 1, RETENTION_MS, 5000]))
    def compact(self, roll: bool, advance: int) -> None:
        self.clock.advance(advance)
        now, bounds = self.clock.now, [segment.base_offset for segment in self.log.segments]
        stats = self.log.compact(roll=roll)
        assert stats.first_dirty_offset >= stats.first_dirty_offset_before
        assert stats.first_dirty_offset in [*bounds, self.end] or stats.rounds == 0
        self.cleaned(stats.first_dirty_offset, now, surely=stats.rounds > 0)

    @rule(after=st.integers(0, 6))
    def compact_and_stop(self, after: int) -> None:
        """A compaction that its caller ends leaves the log as it was before the round."""
        now = self.clock.now
        self.stopped(after, lambda: None)
        self.cleaned(self.log.segments[-1].base_offset, now, surely=False)

    @rule(after=st.integers(0, 6), clean=st.booleans())
    def compact_and_crash(self, after: int, clean: bool) -> None:
        """The directory as it is in the middle of a pass is what the next life begins with."""
        now, bound = self.clock.now, self.log.segments[-1].base_offset
        old, copied = self.path.parent, self.home / "copied"

        def copy() -> None:
            shutil.copytree(old, copied)

        self.stopped(after, copy)
        self.cleaned(bound, now, surely=False)
        if copied.exists():
            self.log.close()
            self.reader.close()
            shutil.rmtree(old)
            self.life += 1
            copied.rename(self.path.parent)
            self.open()
            assert self.log.recovery.cut_bytes == 0
            self.reloaded()

    def stopped(self, after: int, act: Any) -> None:
        calls = 0

        def progress(done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            if calls > after:
                act()
                raise Stop

        try:
            self.log.compact(progress=progress)
        except Stop:
            assert not list(self.path.glob("*.cleaned"))
            assert not list(self.path.glob("*.swap"))

    def cleaned(self, bound: int, now: int, *, surely: bool) -> None:
        """Note what a pass up to `bound` may have dropped, and what it has dropped for sure."""
        newest: dict[bytes, int] = {}
        for item in self.items.values():
            if item.fate == "committed" and item.offset < bound:
                newest[item.key] = max(newest.get(item.key, -1), item.offset)
        for item in self.items.values():
            if item.offset >= bound:
                continue
            if item.fate == "aborted" or newest.get(item.key, -1) > item.offset:
                self.may_be_gone.add(item.offset)
                if surely:
                    self.is_gone.add(item.offset)
            elif item.value is None and now >= self.horizons.setdefault(item.batch[0], now + RETENTION_MS):
                self.may_be_gone.add(item.offset)

    # Whatever else changes it.

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(by=st.sampled_from([1, 500, RETENTION_MS]))
    def move_clock(self, by: int) -> None:
        self.clock.advance(by)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.end - 25, 0), self.end + 1))
        if self.log.truncate_to(offset):
            self.forget(offset)
            self.end = offset
            self.start = self.log.log_start_offset
            assert self.start <= self.end
            self.reloaded()

    def forget(self, offset: int) -> None:
        """What a truncation takes: whole batches."""
        self.items = {at: item for at, item in self.items.items() if item.batch[1] < offset}
        self.markers = [marker for marker in self.markers if marker[0] < offset]
        self.may_be_gone &= self.items.keys()
        self.is_gone &= self.items.keys()
        left = {item.batch[0] for item in self.items.values()}
        self.horizons = {base: at for base, at in self.horizons.items() if base in left}

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        stable = self.log.last_stable_offset
        self.start = max(self.start, data.draw(st.integers(0, stable)))
        assert self.log.delete_records(self.start) == self.start

    @precondition(lambda self: self.log is not None and not self.open_in_log())
    @rule(keep_bytes=st.sampled_from([300, 1000]))
    def retain(self, keep_bytes: int) -> None:
        self.log.update_config(retention_bytes=keep_bytes)
        went = self.log.apply_retention()
        self.log.update_config(retention_bytes=-1)
        assert self.log.log_start_offset == max([self.start, *(info.next_offset for info in went)])
        self.start = self.log.log_start_offset

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.reader.close()
        log = self.open()
        assert log.recovery.cut_bytes == 0
        assert all(name.endswith(".deleted") for name in log.recovery.leftovers_removed)
        self.reloaded()

    @rule(lost=st.sampled_from(["", "indexes", "snapshots"]))
    def crash(self, lost: str) -> None:
        old = self.path.parent
        self.life += 1
        shutil.copytree(old, self.path.parent)
        self.log.close()
        self.reader.close()
        shutil.rmtree(old)
        for path in self.path.iterdir():
            if (lost == "indexes" and path.suffix == ".index") or (lost == "snapshots" and path.suffix == ".snapshot"):
                path.unlink()
        log = self.open()
        assert log.recovery.cut_bytes == 0
        self.reloaded()

    def reloaded(self) -> None:
        """A log that is read again ends where its data does; it knows the transactions of which data is left."""
        end = self.log.log_end_offset
        assert end <= self.end
        assert all(item.offset < end for item in self.items.values() if item.offset not in self.may_be_gone)
        self.forget(end) if end < self.end else None
        self.end = max(end, self.log.log_start_offset)
        self.decide()
        known = self.open_in_log()
        for item in self.items.values():
            if item.fate == "open" and item.producer not in known:
                assert item.offset in self.may_be_gone or item.offset < self.start
                item.fate = "lost"

    # What must hold.

    @precondition(lambda self: self.log is not None)
    @invariant()
    def what_must_be_there_is_there(self) -> None:
        for log in (self.log, self.reader):
            assert log.log_start_offset == self.start
            if log is self.log:
                assert log.log_end_offset == self.end
            found = [(record.offset, record.key, record.value) for record in log.read()]
            offsets = [offset for offset, _, _ in found]
            assert offsets == sorted(set(offsets))
            for offset, key, value in found:
                item = self.items[offset]
                assert (item.key, item.value) == (key, value)
            there = set(offsets)
            needed = {at for at in self.items if at >= self.start} - self.may_be_gone
            assert needed <= there
            assert not there & self.is_gone
            self.all_readers_agree(log, found)

    def all_readers_agree(self, log: kstore.Log, found: list[tuple[int, Any, Any]]) -> None:
        columns = log.read_columns()
        rows = zip(columns.offsets.tolist(), list(columns.keys), list(columns.values), strict=True)
        assert list(rows) == found
        batches = [(r.offset, r.key, r.value) for b in log.read_batches() if not b.is_control for r in b]
        assert [row for row in batches if row[0] >= self.start] == found
        stable = log.last_stable_offset
        assert all(self.items[offset].fate != "open" for offset, _, _ in found if offset < stable)
        committed = [row for row in found if row[0] < stable and self.items[row[0]].fate == "committed"]
        assert [(r.offset, r.key, r.value) for r in log.read(isolation=COMMITTED)] == committed
        columns = log.read_columns(isolation=COMMITTED)
        assert columns.offsets.tolist() == [offset for offset, _, _ in committed]
        middle = (self.start + log.log_end_offset) // 2
        assert [r.offset for r in log.read(middle)] == [offset for offset, _, _ in found if offset >= middle]
        fetched = log.fetch(middle, 1 << 20)
        following = [offset for offset, _, _ in found if offset >= middle]
        in_fetched = [r.offset for b in kstore.decode_batches(fetched.records) if not b.is_control for r in b]
        assert [at for at in in_fetched if at >= middle] == following[: sum(at >= middle for at in in_fetched)]

    @precondition(lambda self: self.log is not None)
    @invariant()
    def the_files_are_sound(self) -> None:
        assert errors(self.path) == []

    @precondition(lambda self: self.log is not None)
    @invariant()
    def the_table_is_the_dictionary(self) -> None:
        """The newest committed record of each key, unless a deletion has taken it."""
        newest: dict[bytes, Item] = {}
        for item in sorted(self.items.values(), key=lambda each: each.offset):
            if item.fate == "committed" and item.offset < self.log.last_stable_offset:
                newest[item.key] = item
        there = {record.key: record.value for record in self.log.read(isolation=COMMITTED)}
        for key, item in newest.items():
            if item.offset >= self.start and item.offset not in self.may_be_gone:
                assert there[key] == item.value


def test_any_order_of_operations_keeps_the_newest_record_of_each_key(no_syncs: None) -> None:
    shape = settings(max_examples=max(int(60 * BUDGET), 1), stateful_step_count=25, report_multiple_bugs=False)
    run_state_machine_as_test(CompactionMachine, settings=shape)
