"""The process of a store is killed 200 times, at moments drawn over its whole life: what was acknowledged is there.

lives.py is the process; here stands who kills it, and who judges. After each kill the directory is read as it was left,
and a copy of it is opened for writing: so the next life meets what the kill left, and recoveries are killed, too.
`KSTORE_SEED` repeats the operations and the delays; where exactly a kill falls is up to the machine.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files import checkpoint
from kstore.tools.check.findings import Finding
from kstore.tools.check.verify import verify
from tests.conftest import BUDGET, SEED, ManualClock
from tests.support import lives
from tests.support.faultfs import KEPT, FaultFS

KILLS = 200
KILLS_A_STORE = 20  # then another store begins, so that looking at it stays short
MOST_STEPS = 24  # of each thread in one life
MOMENTS = ("open", "close", "append", "create", "commit")  # some store dies in the middle of each
MOST_SECONDS = 200  # then no further store begins, even on a machine whose disk is slow
WEIGHTS = (2, 6, 2)  # how often a kill is to come while the store opens, works and closes
SYNCS = 0.2  # how many lives wait for the disk
COMMITTED = "read_committed"
LEFTOVERS = ("*.deleted", "*-delete", "*.swap", "*.cleaned", "*.txnindex.tmp")


@dataclass
class Topic:
    """What is known of a topic."""

    topic_id: str
    partitions: int
    config: dict[str, str]


@dataclass
class Op:
    """One operation of the journal, and how it ended as far as it is known."""

    op: str
    kind: str
    what: dict[str, Any]
    answer: dict[str, Any] | None = None  # None while it is not acknowledged
    found: dict[int, tuple[int, int]] = field(default_factory=dict)  # where each of its records is


class Truth:
    """What the journals of one store say must be there, may be there, and cannot be there."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.maybe: dict[str, Topic | None] = {}  # what the operation that was interrupted would have made of a topic
        self.unfinished: set[str] = set()  # topics that only a writer's opening brings into order
        self.appends: dict[str, Op] = {}
        self.commits: dict[str, bool | None] = {}  # by transaction; None: was being committed when the process died
        self.starts: dict[int, set[int]] = {0: {0}, 1: {0}}  # of KEPT's partitions
        self.positions: dict[str, set[int | None]] = {"plain": {None}, "in transactions": {None}}
        self.unsettled: list[Op] = []  # transactions that were being committed, with a position
        self.moments: Counter[str] = Counter()

    def read(self, journal: Path) -> None:
        """Take in what one life wrote."""
        begun: dict[str, Op] = {}
        for line in journal.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # the kill cut its write
            said = json.loads(line)
            if said["at"] == "fault":
                raise AssertionError(f"in a life: {said['text']}")
            if said["at"] == "begin":
                op = begun[said["op"]] = Op(said["op"], said["kind"], said)
                if op.kind == "append":
                    self.appends[op.op] = op
            else:
                op = begun.pop(said["op"])
                op.answer = said
                self.done(op)
        for op in begun.values():
            self.interrupted(op)
        self.moments.update([op.kind for op in begun.values()] or ["no operation"])

    def done(self, op: Op) -> None:
        what = op.what
        if op.kind in ("create", "grow", "configure", "delete"):
            after = self.after(op)
            if after is None:
                del self.topics[what["topic"]]
            else:
                self.topics[what["topic"]] = after
        elif op.kind == "cut":
            self.starts[what["partition"]] = {max(what["before"], *self.starts[what["partition"]])}
        elif op.kind == "open":
            self.unfinished.clear()
        elif op.kind == "position":
            self.positions["plain"] = {what["offset"]}
        elif op.kind in ("commit", "abort"):
            self.commits[what["txn"]] = op.kind == "commit"
            if what.get("offset") is not None:
                self.positions["in transactions"] = {what["offset"]}

    def interrupted(self, op: Op) -> None:
        what = op.what
        if op.kind in ("create", "grow", "configure", "delete"):
            self.maybe[what["topic"]] = self.after(op)
            self.unfinished.add(what["topic"])
        elif op.kind == "cut":
            before = self.starts[what["partition"]]
            self.starts[what["partition"]] = before | {max(what["before"], *before)}
        elif op.kind == "position":
            self.positions["plain"].add(what["offset"])
        elif op.kind == "commit":
            self.commits[what["txn"]] = None
            self.unsettled.append(op)

    def after(self, op: Op) -> Topic | None:
        """What the operation makes of its topic."""
        what = op.what
        if op.kind == "create":
            return Topic(what["topic_id"], what["partitions"], what["config"])
        if op.kind == "delete":
            return None
        now = self.topics[what["topic"]]
        if op.kind == "grow":
            return Topic(now.topic_id, what["partitions"], now.config)
        return Topic(now.topic_id, now.partitions, {**now.config, **what["config"]})


class Look:
    """One look at a store through its own eyes: every record of every log held against the truth."""

    def __init__(self, truth: Truth, store: kstore.Store, *, settled: bool) -> None:
        self.truth, self.store = truth, store
        self.settled = settled  # a writer has opened it, and the transactions have ended
        self.passed_over = set() if settled else truth.unfinished
        self.starts: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.stable: dict[tuple[str, int], int] = {}
        self.seen: dict[tuple[str, int], set[int]] = {}  # by who reads what is committed
        self.at: dict[str, dict[int, tuple[int, int]]] = {}  # by operation: partition and offset of each record

    def run(self) -> None:
        self.look_at_topics()
        for name, topic in self.truth.topics.items():
            if name not in self.passed_over:
                for number in range(topic.partitions):
                    self.look_at_log(name, topic, number)
        for op in self.truth.appends.values():
            self.look_at_append(op)
        self.look_at_what_is_stable()
        if self.settled:
            self.look_at_transactions()
            self.look_at_positions()

    def look_at_topics(self) -> None:
        truth = self.truth
        if self.settled:  # now it is known what has become of what was interrupted
            for name, after in truth.maybe.items():
                assert self.is_there(name, after) or self.is_there(name, truth.topics.get(name)), (name, after)
                if self.is_there(name, after):
                    truth.topics.pop(name, None)
                    if after is not None:
                        truth.topics[name] = after
            truth.maybe.clear()
            assert {name for name in self.store.topics if name[0] != "_"} == set(truth.topics)
        for name, topic in truth.topics.items():
            assert name in self.passed_over or self.is_there(name, topic), (name, topic)

    def is_there(self, name: str, topic: Topic | None) -> bool:
        """Whether the store has the topic like this; None: not at all."""
        if topic is None or name not in self.store.topics:
            return topic is None and name not in self.store.topics
        config = self.store.topic_config(name).to_kafka()
        return (
            str(self.store.topic_id(name)) == topic.topic_id
            and self.store.partitions(name) == tuple(range(topic.partitions))
            and all(config[each] == value for each, value in topic.config.items())
        )

    def look_at_log(self, name: str, topic: Topic, number: int) -> None:
        log, place = self.store.log(name, number), (name, number)
        start, end = log.log_start_offset, log.log_end_offset
        self.starts[place], self.ends[place], self.stable[place] = start, end, log.last_stable_offset
        expected, size = None, 0
        for batch in log.read_batches():
            expected = min(batch.base_offset, start) if expected is None else expected
            assert batch.base_offset == expected or batch.base_offset <= start, (place, batch, expected)
            expected, size = batch.next_offset, size + batch.size_bytes
        assert expected is None or expected == end, (place, expected, end)
        if name == lives.KEPT:
            assert start in self.truth.starts[number], (place, start)
            self.truth.starts[number] = {start}
        elif name == lives.RETAINED:
            assert start == 0 or size >= lives.RETENTION_BYTES, (place, start, size)
            assert start in {0, *(segment.base_offset for segment in log.segments)}, place
        else:
            assert start == 0
        for record in log.read():
            op_name, n = lives.written_by(record.value or b"")
            op = self.truth.appends[op_name]
            at = self.at.setdefault(op_name, {})
            assert op.what["topic_id"] == topic.topic_id, (place, record)
            assert n < op.what["count"], (place, record)
            assert n not in at, f"{place}: {record} is there twice"
            assert all(n > other for other, (p, _) in at.items() if p == number), f"{place}: {record} is out of order"
            at[n] = number, record.offset
        self.seen[place] = {record.offset for record in log.read(isolation=COMMITTED)}

    def look_at_append(self, op: Op) -> None:
        """What was acknowledged is there and where it was said to be; what was seen once stays there."""
        name = op.what["topic"]
        topic = self.truth.topics.get(name)
        if topic is None or topic.topic_id != op.what["topic_id"] or name in self.passed_over:
            assert topic is None or topic.topic_id == op.what["topic_id"] or op.op not in self.at
            return
        at = self.at.get(op.op, {})
        places = {} if op.answer is None else {int(n): bounds for n, bounds in op.answer["places"].items()}
        for n in range(op.what["count"]):
            if n in at:
                assert at[n] == op.found.get(n, at[n]), f"record {n} of {op} was at {op.found[n]}, and is at {at[n]}"
                number, offset = at[n]
                assert not places or places[number][0] <= offset <= places[number][1], (op, n, at[n])
                op.found[n] = at[n]
            elif n in op.found:
                number, offset = op.found[n]
                assert offset < self.starts[name, number], f"record {n} of {op} is lost, it was at {offset}"
            elif places:
                starts = [self.starts[name, number] > first for number, (first, _) in places.items()]
                assert any(starts), f"record {n} of {op} was acknowledged and is not there"

    def look_at_what_is_stable(self) -> None:
        """Below the stable offset a reader of committed records sees those, and no other."""
        for op in self.truth.appends.values():
            txn = op.what["txn"]
            wanted = txn is None or self.truth.commits.get(txn, False)
            for number, offset in self.at.get(op.op, {}).values():
                place = (op.what["topic"], number)
                seen = offset in self.seen[place]
                assert not seen or (offset < self.stable[place] and wanted is not False), (place, offset, op)
                assert seen or offset >= self.stable[place] or wanted is not True, (place, offset, op)

    def look_at_transactions(self) -> None:
        truth = self.truth
        for place, end in self.ends.items():
            assert self.stable[place] == end, f"a transaction is open in {place}"
        visible: dict[str, set[bool]] = {}
        for op in truth.appends.values():
            for number, offset in self.at.get(op.op, {}).values():
                if op.what["txn"] is not None:
                    visible.setdefault(op.what["txn"], set()).add(offset in self.seen[op.what["topic"], number])
        for txn, seen_or_not in visible.items():
            assert len(seen_or_not) == 1, f"one half of {txn} is visible"
            truth.commits[txn] = seen_or_not == {True}
        for txn in {op.what["txn"] for op in truth.appends.values()} - {None}:
            truth.commits.setdefault(txn, False)

    def look_at_positions(self) -> None:
        truth = self.truth
        for op in truth.unsettled:
            committed = truth.commits[op.what["txn"]]
            if op.what["offset"] is not None and committed is not False:
                less = set() if committed else truth.positions["in transactions"]
                truth.positions["in transactions"] = {op.what["offset"], *less}
        truth.unsettled.clear()
        for group, place in (("plain", (lives.KEPT, 0)), ("in transactions", (lives.KEPT, 1))):
            found = self.store.committed_offsets(group).get(place)
            assert found in truth.positions[group], (group, found, truth.positions[group])
            truth.positions[group] = {found}


class Killer:
    """One store from its first life on."""

    def __init__(self, home: Path, rng: random.Random, process: subprocess.Popen[str]) -> None:
        self.home, self.rng, self.process = home, rng, process
        self.seed = f"{rng.getrandbits(64):x}"
        home.mkdir()
        self.roots = [home / name for name in ("one", "two")[: rng.choice((1, 1, 2))]]
        self.truth = Truth()
        self.life = self.kills = 0

    def live(self, *, spared: bool = False, amid: str | None = None) -> None:
        """A life, its end, and what is found then; `amid` is what it is to die in the middle of, if that comes."""
        steps = self.rng.randint(1, MOST_STEPS)
        [stage] = self.rng.choices(lives.STAGES, WEIGHTS)
        share = 1.1 * self.rng.random()
        journal = self.home / f"journal-{self.life}"
        order = {"roots": [str(root) for root in self.roots], "journal": str(journal), "seed": self.seed,
                 "life": self.life, "steps": steps, "stage": None if spared or amid else stage, "share": share,
                 "syncs": self.rng.random() < SYNCS,
                 "amid": amid and (amid, int(2 ** self.rng.uniform(0, 12)))}  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        ended = json.loads(self.process.stdout.readline())
        try:
            if journal.exists():
                self.truth.read(journal)
            assert ended["killed"] or ended["code"] == 0, ended
            self.judge()
        except Exception as error:
            error.add_note(f"KSTORE_SEED={SEED}, {order}: {ended}")
            raise
        self.life += 1
        self.kills += ended["killed"]

    def judge(self) -> None:
        if not all(root.is_dir() for root in self.roots):
            return  # it was killed before it had made them
        with kstore.Store.open(self.roots, "r") as reader:
            Look(self.truth, reader, settled=False).run()
        assert errors(self.roots) == []
        copies = [Path(shutil.copytree(root, self.home / f"copy-{root.name}", symlinks=True)) for root in self.roots]
        clock = ManualClock(time.time_ns() // 1_000_000)
        with kstore.Store.open(copies, clock=clock, background=False, **lives.SETTINGS) as store:
            assert store.stats()["refused"] == {}
            for transactional_id in lives.IDS:
                store.producer(transactional_id=transactional_id).close()
            Look(self.truth, store, settled=True).run()
            for _ in range(2):  # what the first deletes, the second removes
                clock.advance(1000)
                store.run_housekeeping()
            assert store.stats()["failures"] == {}
        assert errors(copies) == []
        left = [path.name for copy in copies for pattern in LEFTOVERS for path in copy.rglob(pattern)]
        assert left == []
        for copy in copies:
            shutil.rmtree(copy)


def errors(roots: list[Path]) -> list[Finding]:
    """What `verify` finds wrong."""
    return [each for each in verify(roots, deep=True).findings if each.severity == "error"]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """lives.py, which lives life after life."""
    with subprocess.Popen(
        [sys.executable, lives.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()


@pytest.mark.timeout(600 * max(BUDGET, 1))
@pytest.mark.usefixtures("no_syncs")
def test_a_store_killed_at_any_moment_opens_with_all_that_was_acknowledged(
    tmp_path: Path, rng: random.Random, budget: Callable[[float], float], process: subprocess.Popen[str]
) -> None:
    moments: Counter[str] = Counter()
    kills = lives_lived = stores = 0
    deadline = time.monotonic() + max(budget(MOST_SECONDS), MOST_SECONDS)
    while kills < budget(KILLS) and time.monotonic() < deadline:
        killer = Killer(tmp_path / f"store-{stores}", rng, process)
        killer.live(spared=True)
        while killer.kills < KILLS_A_STORE:
            killer.live()
        moment = MOMENTS[stores % len(MOMENTS)]
        before = killer.truth.moments[moment]
        while killer.truth.moments[moment] == before:
            killer.live(amid=moment)
        moments += killer.truth.moments
        kills, lives_lived, stores = kills + killer.kills, lives_lived + killer.life, stores + 1
        shutil.rmtree(killer.home)
    moments["no operation"] -= lives_lived - kills  # lives that came to their end before their kill did
    print(f"KSTORE_SEED={SEED}: {kills} kills in {lives_lived} lives of {stores} stores, in the middle of:")
    print(*(f"{count:6} {moment}" for moment, count in moments.most_common()), sep="\n")


def test_a_recovery_killed_at_any_step_keeps_which_transactions_were_aborted(tmp_path: Path) -> None:
    """SEMANTICS 9.14: an index that was being written when the process died was empty, and looked as a close leaves
    one."""
    small: dict[str, Any] = {"segment_index_bytes": 1200}
    with kstore.Log.open(tmp_path / "open" / "events-0", **small) as log:
        log.append_many([b"aborted"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        log.append_marker(1, 0, commit=False)
        log.append(b"plain")
        log.flush()
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "open", left)
    (left / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 0 3\n")
    with FaultFS(left) as disk:
        begin = disk.step
        kstore.Log.open(left / "events-0", **small).close()
    (tmp_path / "images").mkdir()
    for step, plan, image in disk.crash_images(tmp_path / "images", since=begin):
        with kstore.Log.open(image / "events-0", **small) as log:
            assert [record.value for record in log.read(isolation=COMMITTED)] == [b"plain"], (step, plan)


def test_a_deletion_killed_at_any_step_leaves_no_line_for_the_next_topic(tmp_path: Path) -> None:
    """SEMANTICS 13.8. The next one's partitions may be in other directories: `verify` then took one for missing."""
    roots = [tmp_path / "data" / name for name in ("one", "two")]
    small: dict[str, Any] = {"segment_index_bytes": 1200, "background": False}
    (tmp_path / "data").mkdir()
    with FaultFS(tmp_path / "data") as disk:
        with kstore.Store.open(roots, **small) as store:
            store.create_topic("t", 3)
            store.append_many("t", [(b"%d" % n, b"v") for n in range(20)])
        with kstore.Store.open(roots, **small) as store:
            begin = disk.step
            store.delete_topic("t")
            end = disk.step
    (tmp_path / "images").mkdir()
    for step, _, image in disk.crash_images(tmp_path / "images", KEPT, since=begin):
        if step > end:
            break
        there = [image / root.name for root in roots]
        with kstore.Store.open(there, **small) as store:
            if "t" not in store.topics:
                assert checkpoint.find_marks([str(root) for root in there]) == {}, step
                store.create_topic("t", 2)
                store.append_many("t", [(b"%d" % n, b"w") for n in range(20)])
        assert errors(there) == [], step
