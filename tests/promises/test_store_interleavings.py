"""Two threads' calls of one store meet at any line of the one: the store is as after one and then the other.

The second call runs in a thread of its own as soon as the first one has come to the line, or waits for it where it has
to. At that moment the store is read, and a copy of its files is opened as after a kill. Calls of one step leave what
they leave in some order; others may meet between two of their steps, and leave a store that is whole: no transaction is
open in it, and it is the same when it is opened again.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from tests.conftest import ManualClock
from tests.support.meeting import Line, meet

SETTINGS: dict[str, Any] = {
    "segment_bytes": 900,
    "index_interval_bytes": 100,
    "segment_index_bytes": 1200,
    "file_delete_delay_ms": 0,
}
FOLDERS = ("base", "codec", "columns", "config", "disk", "files", "log", "store")
LONGEST_WAIT = 0.01  # for a call that has to wait for the other
LONGEST_LOOK = 1.0  # at a line that holds a lock of the store nobody can look
ID = "loader-7"
PAIRS = [(b"key %d" % number, b"%040d" % number) for number in range(12)]


def transaction(store: kstore.Store) -> None:
    with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
        txn.append("orders", b"in a transaction", partition=0)
        txn.append("other", b"in a transaction")
        txn.commit_offsets("readers", {("orders", 0): 4})


def aborted_transaction(store: kstore.Store) -> None:
    with suppress(KeyError), store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
        txn.append("orders", b"never there", partition=0)
        txn.append("other", b"never there")
        raise KeyError


def numbered(store: kstore.Store) -> None:
    with store.producer() as producer:
        producer.append("other", b"numbered")


def add_partitions(store: kstore.Store) -> None:
    with suppress(ValueError):  # it has as many by now
        store.add_partitions("other", 3)


def consume(store: kstore.Store) -> None:
    with store.consumer("readers", ["orders"]) as consumer:
        next(iter(consumer))
        consumer.commit()


def delete_and_create(store: kstore.Store) -> None:
    store.delete_topic("other")
    store.create_topic("other", 2)


Call = Callable[[kstore.Store], object]

STEPS: dict[str, Call] = {
    "append": lambda store: store.append("orders", b"one more", b"key 1"),
    "create a topic": lambda store: store.create_topic("new", 2),
    "add partitions": add_partitions,
    "commit positions": lambda store: store.commit_offsets("readers", {("orders", 0): 2, ("orders", 1): 1}),
    "commit a new group": lambda store: store.commit_offsets("late", {("other", 0): 1}),
    "delete positions": lambda store: store.delete_offsets("readers"),
    "larger segments": lambda store: store.update_topic_config("orders", {"segment.bytes": "2000"}),
    "no more compaction": lambda store: store.update_topic_config("state", {"cleanup.policy": "delete"}),
    "compact": lambda store: store.compact(),
    "housekeeping": lambda store: store.run_housekeeping(),
    "flush": lambda store: store.flush(),
    "become leader": lambda store: store.become_leader(),
    "truncate": lambda store: store.log("orders", 0).truncate_to(0),
    "delete records": lambda store: store.log("orders", 0).delete_records(3),
}
STORIES: dict[str, Call] = {
    "append_many": lambda store: store.append_many("orders", PAIRS),
    "append_columns": lambda store: store.append_columns(
        "orders", [value for _, value in PAIRS], keys=[key for key, _ in PAIRS]
    ),
    "transaction": transaction,
    "aborted transaction": aborted_transaction,
    "numbered append": numbered,
    "consume": consume,
    "delete a topic": lambda store: store.delete_topic("other"),
    "delete the topic of a transaction": lambda store: store.delete_topic("orders"),
    "delete a compacted topic": lambda store: store.delete_topic("state"),
    "delete and create": delete_and_create,
    "delete the transactions": lambda store: store.delete_topic("__transaction_state"),
    "delete the positions": lambda store: store.delete_topic("__consumer_offsets"),
}
CALLS = STEPS | STORIES


class Partition(NamedTuple):
    start: int
    end: int
    stable: int
    records: tuple[tuple[int, bytes | None, bytes | None], ...]


class State(NamedTuple):
    partitions: dict[tuple[str, int], Partition]
    positions: dict[str, dict[tuple[str, int], int]]


def partition_of(log: kstore.Log) -> Partition:
    records = [(record.offset, record.key, record.value) for record in log.read(isolation="read_committed")]
    if log.topic == "state":  # whether it was compacted or not
        records = sorted({key: (offset, key, value) for offset, key, value in records}.values())
    return Partition(log.log_start_offset, log.log_end_offset, log.last_stable_offset, tuple(records))


def state_of(store: kstore.Store) -> State:
    topics = [topic for topic in store.topics if not topic.startswith("__")]
    return State(
        {
            (topic, number): partition_of(store.log(topic, number))
            for topic in topics
            for number in store.partitions(topic)
        },
        {group: positions for group in store.groups if (positions := dict(store.committed_offsets(group)))},
    )


def error_of(call: Call, store: kstore.Store) -> str | None:
    try:
        call(store)
    except kstore.KStoreError as error:
        return type(error).__name__
    return None


Outcome = tuple[State, tuple[str | None, ...]]


class Meetings:
    """Stores that are all made alike, and what two calls leave of one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._count = 0
        self._lines: dict[str, int] = {}
        self._expected: dict[frozenset[str], list[tuple[tuple[str, ...], Outcome]]] = {}

    def opened(self, root: Path) -> kstore.Store:
        return kstore.Store.open(root, clock=ManualClock(), background=False, **SETTINGS)

    def made(self) -> tuple[Path, kstore.Store]:
        self._count += 1
        root = self.directory / str(self._count) / "data"
        root.mkdir(parents=True)
        store = self.opened(root)
        store.create_topic("orders", 2)
        store.create_topic("other")
        store.create_topic("state", config={"cleanup.policy": "compact"})
        for number in range(8):
            for topic in ("orders", "state"):
                store.append_many(
                    topic, [(b"key %d" % (step % 5), b"%060d" % number) for step in range(number, number + 3)]
                )
        store.commit_offsets("readers", {("orders", 0): 1, ("state", 0): 5})
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            txn.append("other", b"before")
        store.flush()
        return root, store

    def drop(self, root: Path, store: kstore.Store) -> None:
        store.close()
        shutil.rmtree(root.parent)

    def lines(self, name: str) -> int:
        """How many lines a call runs through when it is alone."""
        if name not in self._lines:
            root, store = self.made()
            alone = Line(-1, lambda: None, FOLDERS)
            alone.run(lambda: error_of(CALLS[name], store))
            self._lines[name] = alone.passed
            self.drop(root, store)
        return self._lines[name]

    def expected(self, names: tuple[str, str]) -> list[tuple[tuple[str, ...], Outcome]]:
        """For both orders: the order and the outcome."""
        key = frozenset(names)
        if key not in self._expected:
            self._expected[key] = [self._in_order(order) for order in dict.fromkeys(permutations(names))]
        return self._expected[key]

    def _in_order(self, order: tuple[str, ...]) -> tuple[tuple[str, ...], Outcome]:
        root, store = self.made()
        errors = tuple(error_of(CALLS[name], store) for name in order)
        outcome = state_of(store), errors
        self.drop(root, store)
        return order, outcome

    def meet(self, first: str, second: str, number: int) -> str:
        """Have `second` come while `first` is at its line of this number; the line, or nothing if there is none."""
        root, store = self.made()
        try:
            place, *errors = meet(
                number,
                FOLDERS,
                lambda: error_of(CALLS[first], store),
                lambda: error_of(CALLS[second], store),
                lambda other: self._look(root, store, other),
                longest_wait=LONGEST_WAIT,
                longest_look=LONGEST_LOOK,
            )
            if place:
                found = state_of(store), tuple(errors)
                if first in STEPS and second in STEPS:
                    assert found in [
                        (state, told if order == (first, second) else told[::-1])
                        for order, (state, told) in self.expected((first, second))
                    ]
            end = state_of(store)
            assert all(partition.stable == partition.end for partition in end.partitions.values())
            store.close()
            with self.opened(root) as again:
                assert state_of(again) == end
        except BaseException as error:
            error.add_note(f"{second!r} in {first!r}, line {number}")
            raise
        shutil.rmtree(root.parent)
        return place

    def _look(self, root: Path, store: kstore.Store, other: threading.Thread) -> None:
        """Look at the store as its readers see it, and, if nobody changes it now, as others do."""
        killed = root.parent / "killed"
        for topic in store.topics:
            with suppress(kstore.UnknownTopicOrPartitionError, kstore.OffsetOutOfRangeError):
                list(store.read(topic))
        store.stats()
        if other.is_alive():
            return
        shutil.copytree(root, killed)
        with self.opened(killed) as again:
            state_of(again)
            for topic in again.topics:
                if not topic.startswith("__"):
                    again.append(topic, b"goes on", b"key")


@pytest.fixture
def meetings(tmp_path: Path, no_syncs: None) -> Meetings:
    return Meetings(tmp_path / "meetings")


def test_two_calls_of_a_store_that_meet_at_any_line_leave_a_store_that_is_whole(
    meetings: Meetings, rng: random.Random, budget: Callable[[float], float]
) -> None:
    until = time.monotonic() + budget(20)
    met = 0
    while time.monotonic() < until or met < 30:
        first, second = rng.choice(list(CALLS)), rng.choice(list(CALLS))
        if lines := meetings.lines(first):
            met += bool(meetings.meet(first, second, rng.randint(1, lines)))


def test_a_transaction_beside_the_deletion_of_one_of_its_topics_ends_in_the_others(meetings: Meetings) -> None:
    """At once: nothing of it waits for a housekeeping (SEMANTICS 9)."""
    for number in range(1, meetings.lines("transaction"), 100):
        meetings.meet("transaction", "delete the topic of a transaction", number)
