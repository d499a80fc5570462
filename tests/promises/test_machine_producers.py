"""The state machine of test_machine.py with producers: numbered batches, retries, transactions, markers.

The model (`model.Known`) takes batches in one by one. Where a log reads its state again (cuts, reopenings, crashes),
what it knows must be what all batches that there ever were say of a producer, or those alone that are left above the
log start; readers of committed records see what the markers say, up to the first open transaction.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

import kstore
from kstore import Record
from kstore.log.segments._producer_state import marker_batch
from kstore.log.segments.producer_state import EXPIRATION_CHECK_MS, EXPIRATION_MS, ProducerInfo
from tests.conftest import BUDGET
from tests.log.segments.test_producers import consume
from tests.promises.test_machine import LogMachine
from tests.support.model import Known, ModelBatch, Numbers, aborted_batches, replay

PRODUCERS = st.sampled_from([1, 1, 1, 2, 3])
COMMITTED = "read_committed"


def known_of(info: ProducerInfo) -> Known:
    kept = [batch[:4] for batch in info.batches]
    return Known(info.producer_epoch, info.coordinator_epoch, info.last_timestamp, info.current_txn_first_offset, kept)


class ProducingMachine(LogMachine):
    """A log that producers write to, besides all that may happen to one."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Known] = {}
        self.expired: set[int] = set()
        self.steps = 0
        self.history: list[ModelBatch] = []  # every numbered batch that was not cut off, deleted or not

    def take(self, batch: ModelBatch) -> None:
        assert batch.numbers is not None
        self.model.append([batch])
        self.history.append(batch)
        self.known.setdefault(batch.numbers.producer_id, Known()).take(batch)

    def stored(self, numbers: Numbers, count: int, base: int | None = None) -> ModelBatch:
        base = self.model.end if base is None else base
        records = tuple(Record(base + i, numbers.timestamp, None, b"%d" % i, ()) for i in range(count))
        return ModelBatch(base, base + max(count, 1) - 1, records, numbers)

    # What producers and their coordinator do.

    @rule(
        pid=PRODUCERS,
        count=st.integers(1, 3),
        transactional=st.booleans(),
        sequence=st.sampled_from(["next"] * 8 + ["zero", "gap", "before", "wrap"]),
        epoch=st.sampled_from([0] * 8 + [1, -1]),
    )
    def produce(self, pid: int, count: int, transactional: bool, sequence: str, epoch: int) -> None:
        known = self.known.get(pid, Known())
        number = max(known.epoch + epoch, 0)
        following = (known.kept[-1][1] + 1) % 2**31 if known.kept and number == known.epoch else 0
        first = {"next": following, "zero": 0, "gap": (following + 2) % 2**31, "before": (following - 1) % 2**31,
                 "wrap": 2**31 - 2}[sequence]  # fmt: skip
        if sequence == "next" and known.txn_first >= 0:
            transactional = True
        numbers = Numbers(pid, number, self.clock.now, first, transactional)
        last = (first + count - 1) % 2**31
        again = [kept for kept in known.kept if number == known.epoch and kept[:2] == (first, last)]
        refusal = known.refusal(numbers)
        if again:
            info = self.send(numbers, count)
            assert (info.first_offset, info.last_offset) == again[0][2:]  # a follower may have stored it twice
        elif refusal is not None:
            with pytest.raises(refusal):
                self.send(numbers, count)
        else:
            info = self.send(numbers, count)
            assert (info.first_offset, info.last_offset) == (self.model.end, self.model.end + count - 1)
            self.take(self.stored(numbers, count))

    @rule(pid=PRODUCERS, count=st.integers(1, 3), distance=st.sampled_from([-1, 0, 0, 1]), again=st.booleans())
    def produce_expecting(self, pid: int, count: int, distance: int, again: bool) -> None:
        """The next batch of a producer, or its newest one again, which is where it was stored or nowhere."""
        known = self.known.get(pid, Known())
        epoch, end = max(known.epoch, 0), self.model.end
        first = (known.kept[-1][1] + 1) % 2**31 if known.kept else 0
        if again and known.kept:
            first, last, end, last_offset = known.kept[-1]
            count = (last - first) % 2**31 + 1
            if last_offset - end + 1 != count or any(kept[:2] == (first, last) for kept in known.kept[:-1]):
                return  # a follower's
        else:
            last = (first + count - 1) % 2**31
            if (first, last) in [kept[:2] for kept in known.kept]:
                return  # a follower's batch took the numbers back
            again = False
        numbers = Numbers(pid, epoch, self.clock.now, first, known.txn_first >= 0)
        expected = max(end + distance, 0)
        if expected != end:
            with pytest.raises(kstore.UnexpectedOffsetError) as caught:
                self.send(numbers, count, atomic=True, expected_offset=expected)
            # At the log end a batch could be stored: one that is known is refused with its place.
            assert caught.value.actual == (end if expected == self.model.end else self.model.end)
        else:
            info = self.send(numbers, count, atomic=True, expected_offset=expected)
            assert (info.first_offset, info.last_offset) == (end, end + count - 1)
            if not again:
                self.take(self.stored(numbers, count))

    def send(self, numbers: Numbers, count: int, **condition: Any) -> kstore.AppendInfo:
        return self.log.append_many(
            [(None, b"%d" % i, numbers.timestamp, ()) for i in range(count)],
            **condition,
            producer_id=numbers.producer_id,
            producer_epoch=numbers.epoch,
            base_sequence=numbers.sequence,
            transactional=numbers.transactional,
        )

    @rule(pid=PRODUCERS, back=st.integers(0, 5))
    def retry(self, pid: int, back: int) -> None:
        """One of the last batches again: the fifth from the end is known, unless the log was loaded meanwhile."""
        mine = [b for b in self.history if b.numbers.producer_id == pid and b.numbers.commit is None]
        if back >= len(mine):
            return
        batch = mine[-1 - back]
        known = self.known.get(pid, Known())
        numbers = batch.numbers
        if numbers.epoch == known.epoch and (batch.base_offset, batch.last_offset) in [kept[2:] for kept in known.kept]:
            info = self.send(numbers, len(batch.records))
            last = (numbers.sequence + len(batch.records) - 1) % 2**31
            first_stored = next(kept for kept in known.kept if kept[:2] == (numbers.sequence, last))
            assert (info.first_offset, info.last_offset) == first_stored[2:]

    @rule(pid=PRODUCERS, counts=st.lists(st.integers(1, 2), min_size=2, max_size=4), stored=st.integers(0, 2))
    def produce_many(self, pid: int, counts: list[int], stored: int) -> None:
        """Several batches in one call, some of which the log has already."""
        known = self.known.get(pid, Known())
        epoch = max(known.epoch, 0)
        first = (known.kept[-1][1] + 1) % 2**31 if known.kept else 0
        numbers = Numbers(pid, epoch, self.clock.now, first, known.txn_first >= 0)
        rows = [(None, b"0", self.clock.now, ())] * sum(counts)
        ahead = {((first + i) % 2**31,) * 2 for i in range(len(rows))}
        if ahead & {kept[:2] for kept in known.kept}:
            return  # a follower's batch took the numbers back, and the log has these already
        how = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": first, "batch_bytes": 69}
        begin = self.model.end
        for part in (rows[:stored], rows):
            if part:
                info = self.log.append_many(part, transactional=numbers.transactional, **how)
                assert (info.first_offset, info.last_offset) == (begin, begin + len(part) - 1)
        for i in range(len(rows)):
            self.take(self.stored(numbers._replace(sequence=(first + i) % 2**31), 1))

    @rule(
        pid=PRODUCERS,
        commit=st.booleans(),
        epoch=st.sampled_from([0, 0, 0, 1, 1, -1]),
        version=st.sampled_from([0, 2]),
        coordinator=st.sampled_from([0] * 6 + [1, -1]),
    )
    def end(self, pid: int, commit: bool, epoch: int, version: int, coordinator: int) -> None:
        known = self.known.get(pid, Known())
        number = max(known.epoch + epoch, 0)
        coordinator_epoch = max(known.coordinator_epoch, 0) + coordinator
        numbers = Numbers(pid, number, self.clock.now, commit=commit, coordinator_epoch=coordinator_epoch)
        refusal = known.refusal(numbers, version)

        def act() -> int:
            return self.log.append_marker(
                pid, number, commit=commit, coordinator_epoch=coordinator_epoch, transaction_version=version
            )

        if refusal is not None:
            with pytest.raises(refusal):
                act()
        else:
            assert act() == self.model.end
            self.take(self.stored(numbers, 0))

    @rule(
        pid=PRODUCERS,
        gap=st.sampled_from([0, 0, 3]),
        sequence=st.sampled_from([0, 7, 2**31 - 1]),
        epoch=st.sampled_from([0, 1, -1]),
        transactional=st.booleans(),
        end=st.sampled_from([None, True, False]),
    )
    def follow(self, pid: int, gap: int, sequence: int, epoch: int, transactional: bool, end: bool | None) -> None:
        """A follower takes whatever numbers its leader has taken; a batch and perhaps a marker in one append."""
        known = self.known.get(pid, Known())
        number = max(known.epoch + epoch, 0)
        numbers = Numbers(pid, number, self.clock.now, sequence, transactional or known.txn_first >= 0)
        batches = [self.stored(numbers, 2, self.model.end + gap)]
        data = kstore.encode_batch(
            batches[0].records, base_offset=batches[0].base_offset, partition_leader_epoch=self.epoch,
            producer_id=pid, producer_epoch=number, base_sequence=sequence, transactional=numbers.transactional,
        )  # fmt: skip
        if end is not None and self.config["segment_bytes"] > 200:
            marker = Numbers(pid, number, self.clock.now, commit=end, coordinator_epoch=3)
            batches.append(self.stored(marker, 0, batches[0].last_offset + 1))
            ending = marker_batch(self.clock.now, pid, number, end, 3)
            ending[:16] = batches[1].base_offset.to_bytes(8, "big") + ending[8:12] + self.epoch.to_bytes(4, "big")
            data += ending
        self.log.append_as_follower(data)
        for batch in batches:
            self.take(batch)

    @rule()
    def expire(self) -> None:
        """A day passes: who was silent is forgotten, but for open transactions (SEMANTICS 9.21)."""
        self.pass_time(EXPIRATION_MS + EXPIRATION_CHECK_MS)
        assert all(known.txn_first >= 0 for known in self.known.values())

    @rule(by=st.sampled_from([1, 999, 60_000, 10**7, -5000]))
    def move_clock(self, by: int) -> None:
        self.pass_time(by)

    def pass_time(self, by: int) -> None:
        self.clock.advance(by)
        self.log.run_housekeeping()
        for pid in self.known.keys() - {info.producer_id for info in self.log.producer_states()}:
            known = self.known.pop(pid)
            assert known.txn_first < 0
            assert self.clock.now - known.timestamp >= EXPIRATION_MS
            self.expired.add(pid)

    # What is read again.

    def may_cut_to(self, offset: int) -> bool:
        """Where all producers have expired, a truncation reads no batch again (SEMANTICS 9.26): a transaction whose
        marker it cuts is then open in the log's batches, and the log knows nothing of it."""
        left = replay(batch for batch in self.history if batch.last_offset < offset)
        return bool(self.known) or all(known.txn_first < 0 for known in left.values())

    def reloaded(self, *, anew: bool) -> None:
        model = self.model
        cut = 0 if anew else model.end
        self.history = [batch for batch in self.history if batch.last_offset < cut]
        every = replay(self.history)
        left = replay(batch for batch in self.history if batch.last_offset >= model.start)
        found = {info.producer_id: known_of(info) for info in self.log.producer_states()}
        assert found.keys() <= every.keys()
        for pid, known in every.items():
            silent = known.txn_first < 0 and self.clock.now - known.timestamp >= EXPIRATION_MS
            if pid in found:
                self.is_one_of(found[pid], known, left.get(pid, known), pid in self.expired)
            else:
                assert silent or pid not in left
        self.known = found

    def is_one_of(self, found: Known, known: Known, left: Known, expired: bool) -> None:
        """What is known of a producer is what all batches say, or those that are left; of its last ones the newest.

        Who had expired may be known by what came after that alone.
        """
        assert (found.epoch, found.timestamp) == (known.epoch, known.timestamp)
        assert found.txn_first in (known.txn_first, left.txn_first)
        assert found.kept in [known.kept[i:] for i in range(6)]
        assert expired or found.kept or not left.kept
        assert expired or found.coordinator_epoch in (known.coordinator_epoch, left.coordinator_epoch)

    # What must hold.

    @precondition(lambda self: self.log is not None)
    @invariant()
    def it_is_what_the_model_is(self) -> None:
        if self.steps % 5 == 0:
            super().it_is_what_the_model_is()
        else:
            self.marks_and_records_are_the_models()

    def committed_records_are_the_models(self) -> None:
        model = self.model
        states = self.log.producer_states()
        assert {info.producer_id: known_of(info) for info in states} == self.known
        firsts = [known.txn_first for known in self.known.values() if known.txn_first >= 0]
        stable = max(min(firsts, default=model.end), model.start)
        assert self.log.last_stable_offset == stable
        # A reader that has no snapshot does not know what began below the log start.
        left = replay(batch for batch in self.history if batch.last_offset >= model.start)
        others = [known.txn_first for known in left.values() if known.txn_first >= 0]
        end = self.reader.log_end_offset
        allowed = {min(stable, end), max(min(others, default=end), model.start)}
        assert self.reader.last_stable_offset in allowed
        gone = aborted_batches(self.history)
        self.steps += 1
        for log in (self.log, self.reader):
            stable = log.last_stable_offset
            batches = [batch for batch in model.batches if batch.base_offset not in gone]
            start = (model.start, (model.start + stable) // 2)[self.steps % 2]
            wanted = [r for b in batches for r in b.records if start <= r.offset < stable]
            assert list(log.read(start, isolation=COMMITTED)) == wanted
            assert WAYS[self.steps % len(WAYS)](log, start) == [record.offset for record in wanted]


def by_columns(log: kstore.Log, start: int) -> list[int]:
    return list(log.read_columns(start, isolation=COMMITTED).offsets)


def by_chunks(log: kstore.Log, start: int) -> list[int]:
    return [offset for chunk in log.iter_columns(start, isolation=COMMITTED, max_records=3) for offset in chunk.offsets]


def by_batches(log: kstore.Log, start: int) -> list[int]:
    batches = log.read_batches(start, isolation=COMMITTED)
    return [r.offset for batch in batches if not batch.is_control for r in batch if r.offset >= start]


def by_table(log: kstore.Log, start: int) -> list[int]:
    """The offsets of the batches that hold any."""
    table = log.batch_table(start, isolation=COMMITTED)
    rows = zip(table.base_offset, table.last_offset, table.is_control, strict=True)
    return [offset for base, last, control in rows if not control for offset in range(max(base, start), last + 1)]


WAYS = (by_columns, by_chunks, consume, by_batches, consume, by_table)


def test_any_order_of_operations_with_producers_gives_what_a_list_gives(no_syncs: None) -> None:
    shape = settings(max_examples=max(int(30 * BUDGET), 1), stateful_step_count=25, report_multiple_bugs=False)
    run_state_machine_as_test(ProducingMachine, settings=shape)
