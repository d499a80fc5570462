"""The world of test_store_machine.py with transactions: over several partitions, through kills and power cuts.

Who wrote what in which transaction is in lists; what readers of committed records see, how far the stable offset is and
where groups go on must follow from them. What is open when the process dies is aborted by the next producer of the id
or by housekeeping; what was decided is completed by the opening; what was committed with `sync` outlives the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.store.coordinator import _transaction, transactions
from kstore.store.coordinator import producer as producers
from kstore.store.coordinator.transaction_log import FIRST_PRODUCER_ID
from tests.promises.test_store_machine import DAY, STORE, World
from tests.promises.test_store_machine import no_warnings as no_warnings
from tests.store.coordinator.test_transactions import Death

Place = tuple[str, int]
COMMITTED = "read_committed"
IDS = ("loader", "mover", "seller")
GROUP = "group"
TIMEOUT = 60_000
LOOKS_EVERY = 10_000
WEEKS = 20 * DAY


class Gap(Exception):
    """A disk that keeps later writes and loses earlier ones took markers out of the middle of a log."""


@dataclass
class Txn:
    """One transaction: the offsets of its records, and the positions it commits."""

    began: int
    offsets: dict[Place, list[int]] = field(default_factory=dict)
    positions: dict[Place, dict[int, int]] = field(default_factory=dict)
    handle: kstore.Transaction | None = None
    wrote: bool = False  # it may be that nothing of it is left


class TransactionWorld(World):
    """One store with transactions, its model, the disk below it."""

    def __init__(self, home: Path, rng: random.Random) -> None:
        self.producers: dict[str, kstore.TransactionalProducer] = {}
        self.open_ones: dict[str, Txn] = {}  # by id; without a handle: of an earlier life
        self.unseen: dict[Place, set[int]] = {}  # records of transactions that were aborted
        self.promised: list[Txn] = []  # committed with sync since the last look
        self.positions: dict[Place, dict[int, int]] = {}  # when they were written: what may be found after a power cut
        self.written = 0
        self.names: dict[int, str] = {}
        self.counts = {"committed": 0, "aborted": 0, "fenced": 0, "timeouts": 0, "completed": 0}
        super().__init__(home, rng)

    def open(self) -> None:
        keep = dict(STORE)
        STORE.update(offsets_retention_minutes=2**31 - 1, transactional_id_expiration_ms=2**31 - 1)
        try:
            super().open()
        finally:
            STORE.clear()
            STORE.update(keep)
        self.opened = self.clock.now
        self.plain = self.store.producer()
        self.producers = {}
        for txn in self.open_ones.values():
            txn.handle = None

    # What is said of the lists.

    def take_markers(self) -> None:
        """Where logs have grown behind what was written, there are markers and nothing else."""
        for name, topic in self.topics.items():
            for number, part in enumerate(topic.parts):
                log = self.store.log(name, number)
                if log.log_end_offset > part.end:
                    assert all(batch.is_control for batch in log.read_batches(max(part.end, log.log_start_offset)))
                    part.end = log.log_end_offset

    def ended(self, name: str, *, commit: bool) -> None:
        txn = self.open_ones.pop(name)
        self.counts["committed" if commit else "aborted"] += 1
        for place, offsets in txn.offsets.items():
            if not commit:
                self.unseen.setdefault(place, set()).update(offsets)
        for place, each in txn.positions.items() if commit else ():
            self.positions[place] = {**self.positions.get(place, {}), **each}

    def newest(self, place: Place) -> int:
        """Whichever was written last counts, not whose transaction ended last."""
        return max(self.positions[place])

    def forget_topics(self) -> None:
        """Records of topics that were deleted are in no list any more."""
        for txn in (*self.open_ones.values(), *self.promised):
            txn.offsets = {place: each for place, each in txn.offsets.items() if place[0] in self.topics}
        self.unseen = {place: each for place, each in self.unseen.items() if place[0] in self.topics}

    # Operations.

    def delete(self) -> None:
        before = set(self.topics)
        super().delete()
        if before != set(self.topics):
            self.forget_topics()

    def produce(self) -> None:
        """A producer that numbers its batches, outside of transactions."""
        name, number, part, _ = self.place()
        where = self.plain.append(name, b"numbered", b"key", partition=number, timestamp=self.clock.now)
        assert where.offset == part.end
        part.records.append((where.offset, self.clock.now, b"key", b"numbered"))
        part.end += 1

    def begin(self) -> None:
        """A transaction goes on or begins, perhaps by a new producer of the id, which aborts what there was."""
        name = self.rng.choice(IDS)
        txn = self.open_ones.get(name)
        if name not in self.producers or self.rng.random() < 0.1:
            old = self.producers.get(name)
            self.producers[name] = self.store.producer(transactional_id=name)
            assert self.producers[name].producer_id >= FIRST_PRODUCER_ID
            if txn is not None:
                handle = txn.handle
                self.ended(name, commit=False)
                self.take_markers()
                if handle is not None:
                    with pytest.raises(kstore.InvalidProducerEpochError):
                        handle.commit()
            if old is not None:
                self.counts["fenced"] += 1
                with pytest.raises(kstore.InvalidProducerEpochError):
                    old.transaction()
            txn = None
        if txn is None:
            txn = self.open_ones[name] = Txn(self.clock.now, handle=self.producers[name].transaction())
        self.write(txn)

    def write(self, txn: Txn) -> None:
        handle = txn.handle
        assert handle is not None
        if not txn.wrote:
            txn.began, txn.wrote = self.clock.now, True
        for _ in range(self.rng.choice([1, 1, 4])):
            topic, number, part, _ = self.place()
            count = self.rng.choice([1, 1, 5])
            if count == 1:
                expected = self.rng.choice([None, part.end, part.end + 1, max(part.end - 1, 0)])
                refused = expected not in (None, part.end)
                with pytest.raises(kstore.UnexpectedOffsetError) if refused else contextlib.nullcontext():
                    handle.append(topic, b"in txn", b"key", partition=number, timestamp=self.clock.now,
                                  expected_offset=expected)  # fmt: skip
                if refused:
                    continue
            else:
                rows = [(b"key", b"in txn", self.clock.now, ())] * count
                handle.append_many(topic, rows, partition=number, batch_bytes=150)
            assert self.store.log(topic, number).log_end_offset == part.end + count
            txn.offsets.setdefault((topic, number), []).extend(range(part.end, part.end + count))
            part.records += [(part.end + n, self.clock.now, b"key", b"in txn") for n in range(count)]
            part.end += count
        if self.rng.random() < 0.5:
            place, offset = ("elsewhere", self.rng.randrange(3)), self.rng.randrange(1000)
            handle.commit_offsets(GROUP, {place: offset})
            self.written += 1
            txn.positions[place] = {self.written: offset}

    def end(self) -> None:
        """A transaction is committed or aborted; now and then the process dies between its markers."""
        mine = [name for name, txn in self.open_ones.items() if txn.handle is not None]
        if not mine:
            return self.begin()
        name = self.rng.choice(mine)
        txn = self.open_ones[name]
        handle, commit, sync = txn.handle, self.rng.random() < 0.6, self.rng.random() < 0.3
        assert handle is not None
        if self.rng.random() < 0.1 and (txn.offsets or txn.positions):
            return self.die_between_markers(name, commit, sync)
        if commit:
            handle.commit(sync=sync)
        else:
            handle.abort()
        self.ended(name, commit=commit)
        self.take_markers()
        if commit and sync:
            self.promise(txn)
        return None

    def promise(self, txn: Txn) -> None:
        """What was committed with sync is certain, with all that lies before it in its logs."""
        for topic, number in txn.offsets:
            part = self.topics[topic].parts[number]
            part.acknowledged = part.end
        self.promised.append(txn)
        for place, each in txn.positions.items():
            self.certain(place, max(each))

    def certain(self, place: Place, written: int) -> None:
        self.positions[place] = {when: offset for when, offset in self.positions[place].items() if when >= written}

    def die_between_markers(self, name: str, commit: bool, sync: bool) -> None:
        """The opening does what was decided; with sync also after the machine's death."""
        txn = self.open_ones[name]
        assert txn.handle is not None
        plain = _transaction.append_marker
        least = self.rng.randrange(len(txn.offsets) + bool(txn.positions))
        written = 0

        def dying(*given: Any) -> None:
            nonlocal written
            if written == least:
                raise Death
            written += 1
            plain(*given)

        _transaction.append_marker = dying
        try:
            with pytest.raises(Death):
                txn.handle.commit(sync=sync) if commit else txn.handle.abort()
        finally:
            _transaction.append_marker = plain
        self.counts["completed"] += 1
        self.take_markers()
        self.ended(name, commit=commit)
        if commit and sync:
            for topic, number in txn.offsets:  # the data is flushed, its markers are not
                part = self.topics[topic].parts[number]
                part.acknowledged = max([part.acknowledged, *(o + 1 for o in txn.offsets[topic, number])])
            self.promised.append(txn)
            self.cut_power()
        else:
            self.kill()

    def commit_positions(self) -> None:
        place, offset = ("elsewhere", self.rng.randrange(3)), self.rng.randrange(1000)
        sync = self.rng.random() < 0.3
        self.store.commit_offsets(GROUP, {place: offset}, sync=sync)
        self.written += 1
        self.positions.setdefault(place, {})[self.written] = offset
        if sync:
            self.certain(place, self.written)

    def pass_time(self) -> None:
        """Transactions that are open for longer than their timeout are aborted by the housekeeping."""
        if not self.open_ones:
            return super().pass_time()
        self.clock.advance(self.rng.choice((1, 1000, TIMEOUT, TIMEOUT + LOOKS_EVERY + 1, 300_000, DAY)))
        self.store.run_housekeeping()
        assert self.store.stats()["failures"] == {}
        for name, txn in list(self.open_ones.items()):
            age = self.clock.now - txn.began
            ongoing = self.is_ongoing(name)
            if txn.wrote:
                assert ongoing or age > TIMEOUT
                over = max(txn.began + TIMEOUT, self.opened)
                assert not ongoing or self.clock.now <= over + LOOKS_EVERY
            if txn.wrote and not ongoing:
                self.counts["timeouts"] += 1
                self.ended(name, commit=False)
                if txn.handle is not None:
                    with pytest.raises(kstore.InvalidProducerEpochError):
                        txn.handle.append(self.topic(), b"late")
                    del self.producers[name]
        for name, topic in self.topics.items():
            for number, part in enumerate(topic.parts):
                start = self.store.log(name, number).log_start_offset
                assert start >= part.start
                part.start = start
        self.take_markers()
        return None

    def is_ongoing(self, name: str) -> bool:
        state = self.store._transactions.ids[name].state
        return state is not None and state.status.name == "ONGOING"

    # What is seen.

    def check(self) -> None:
        plain = kstore.Store.topics
        try:
            kstore.Store.topics = property(lambda store: tuple(t for t in plain.fget(store) if t[0] != "_"))  # type: ignore[misc, assignment]
            super().check()
        finally:
            kstore.Store.topics = plain  # type: ignore[method-assign]
        reader = kstore.Store.open(self.root, "r")
        for name, topic in self.topics.items():
            for number, part in enumerate(topic.parts):
                place = name, number
                mine = [sorted(txn.offsets.get(place, ())) for txn in self.open_ones.values()]
                firsts = [each[0] for each in mine if each]
                left = [min(o for o in each if o >= part.start) for each in mine if each and each[-1] >= part.start]
                allowed = {max(min(each, default=part.end), part.start) for each in (firsts, left)}
                for log in (self.store.log(name, number), reader.log(name, number)):
                    stable = log.last_stable_offset
                    assert stable in allowed, (place, log.mode)
                    gone = self.unseen.get(place, set())
                    wanted = [r for r in part.readable() if r[0] < stable and r[0] not in gone]
                    assert [tuple(record)[:4] for record in log.read(isolation=COMMITTED)] == wanted
                    assert list(log.read_columns(isolation=COMMITTED).offsets) == [r[0] for r in wanted]
        for place, offset in self.store.committed_offsets(GROUP).items():
            assert offset == self.positions[place][self.newest(place)]
        assert len(self.store.committed_offsets(GROUP)) == len(self.positions)
        reader.close()

    # The end of a life.

    def reopen(self) -> None:
        for name, producer in list(self.producers.items()):
            if self.rng.random() < 0.5:
                producer.close()  # which aborts
                if name in self.open_ones:
                    self.ended(name, commit=False)
        self.take_markers()
        super().reopen()
        self.take_markers()
        self.open_ones = {name: txn for name, txn in self.open_ones.items() if txn.wrote}
        for place in self.positions:
            self.certain(place, self.newest(place))

    def next_life(self, build: Callable[[Path], object], *, lossy: bool = False) -> None:
        self.crashes += 1
        build(self.home / f"life-{self.life + 1}")
        self.leave()
        shutil.rmtree(self.root)
        self.life += 1
        self.open()
        self.tear(lossy)
        self.open_ones = {name: txn for name, txn in self.open_ones.items() if txn.wrote}
        if lossy:  # what was decided may be open again, for what was not flushed
            ids = self.store._transactions.ids
            states = {name: entry.state for name, entry in ids.items() if entry.state is not None}
            self.open_ones = {n: Txn(s.start_ms, wrote=True) for n, s in states.items() if self.is_ongoing(n)}
            self.names = {state.producer_id: name for name, state in states.items()}
        for name, topic in self.topics.items():
            for number, part in enumerate(topic.parts):
                log = self.store.log(name, number)
                assert part.start <= log.log_start_offset
                there = {record.offset for record in log.read()}
                certain = part.acknowledged if lossy else part.end
                assert log.log_end_offset >= max(certain, log.log_start_offset)
                for record in part.records:
                    assert record[0] >= certain or record[0] < log.log_start_offset or record[0] in there
                part.records = [record for record in part.records if record[0] in there]
                part.start = log.log_start_offset
                if lossy:
                    part.end = min(part.end, log.log_end_offset)
                    self.look_again((name, number), log)
        self.take_markers()
        for txn in self.promised:
            for place, offsets in txn.offsets.items():
                assert not self.unseen.get(place, set()).intersection(offsets)
                assert place[0] not in self.topics or self.is_seen(place, offsets)
        self.promised = []
        if lossy:
            self.look_at_positions()

    def is_seen(self, place: Place, offsets: list[int]) -> bool:
        log = self.store.log(*place)
        seen = {record.offset for record in log.read(isolation=COMMITTED)}
        return all(o in seen for o in offsets if log.log_start_offset <= o < log.last_stable_offset)

    def look_again(self, place: Place, log: kstore.Log) -> None:
        """A power cut may have taken markers that were not flushed: what is undone is read from the log."""
        batches = [b for s in log.segments for b in kstore.decode_batches(Path(s.path).read_bytes())]
        if any(one.next_offset != two.base_offset for one, two in itertools.pairwise(batches)):
            raise Gap
        unseen: set[int] = set()
        pending: dict[int, list[int]] = {}
        for batch in log.read_batches():
            if batch.is_control:
                ended = pending.pop(batch.producer_id, [])
                unseen.update(ended if next(iter(batch)).key == b"\0\0\0\0" else ())
            elif batch.is_transactional:
                pending.setdefault(batch.producer_id, []).extend(record.offset for record in batch)
        self.unseen[place] = unseen
        for producer_id, offsets in pending.items():
            self.open_ones[self.names[producer_id]].offsets[place] = offsets

    def look_at_positions(self) -> None:
        found = self.store.committed_offsets(GROUP)
        for place, may_be in list(self.positions.items()):
            if place in found:
                assert found[place] in may_be.values()
                self.positions[place] = {when: offset for when, offset in may_be.items() if offset == found[place]}
            else:
                del self.positions[place]


def live(home: Path, seed: int, monkeypatch: pytest.MonkeyPatch, span: int = WEEKS) -> TransactionWorld:
    """One world through three weeks."""
    home.mkdir()
    rng = random.Random(seed)
    monkeypatch.setattr(transactions, "draw_producer_id", lambda: FIRST_PRODUCER_ID + rng.getrandbits(60))
    monkeypatch.setattr(producers, "draw_producer_id", lambda: FIRST_PRODUCER_ID + rng.getrandbits(60))
    world = TransactionWorld(home, rng)
    often = [world.begin, world.begin, world.end, world.end, world.append, world.produce, world.pass_time,
             world.commit_positions]  # fmt: skip
    seldom = [world.create, world.delete, world.add_partitions, world.flush, world.roll, world.check,
              world.delete_records, world.append_many]  # fmt: skip
    rare = [world.reopen, world.kill, world.cut_power]
    begun = world.clock.now
    try:
        world.create()
        while world.clock.now - begun < span:
            operations = world.rng.choices([often, seldom, rare], [20, 6, 1])[0]
            if not world.topics:
                world.create()
            else:
                world.rng.choice(operations)()
            world.nothing_is_wrong()
        world.check()
    except Gap:
        pass  # what became of the transactions there is unknown
    finally:
        world.leave()
    shutil.rmtree(home)
    return world


@pytest.mark.usefixtures("no_warnings")
def test_transactions_are_all_or_nothing_through_weeks_of_operations_and_crashes(
    tmp_path: Path, rng: random.Random, budget: Callable[[float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    until = time.monotonic() + budget(8)
    worlds = 0
    totals: dict[str, int] = {}
    while not totals or time.monotonic() < until or not all(totals.values()):
        seed = rng.getrandbits(32)
        print(f"world {worlds}: seed {seed}")
        world = live(tmp_path / f"world-{worlds}", seed, monkeypatch)
        for name, count in {**world.counts, "crashes": world.crashes}.items():
            totals[name] = totals.get(name, 0) + count
        worlds += 1
    print(worlds, "worlds", totals)
