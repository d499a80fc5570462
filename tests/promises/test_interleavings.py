"""Two threads' calls of one log meet at any line of the one: the log is as after one and then the other, in some order.

The second call runs in a thread of its own as soon as the first one has come to the line, or waits for it where it has
to. At that moment the log is read, by its process and by another, and a copy of its files is opened as after a kill.
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
from tests.support.parking import writer_of

SETTINGS: dict[str, Any] = {
    "segment_bytes": 700,
    "index_interval_bytes": 100,
    "segment_index_bytes": 1200,
    "file_delete_delay_ms": 0,
    "retention_bytes": 800,
}
FOLDERS = ("base", "disk", "files", "log")
LONGEST_WAIT = 0.005  # for a call that has to wait for the other; one that has not takes a fifth of it
LONGEST_LOOK = 0.5  # at a line that holds a lock of all logs nobody can look


def flush_as_after_a_roll(log: kstore.Log) -> None:
    """What the thread of a lone log does."""
    housekeeping = writer_of(log).housekeeping
    housekeeping.roll_to_flush = True
    housekeeping.flush_rolled()


def write_checkpoints(log: kstore.Log) -> None:
    """What a store's scheduler does once a minute."""
    housekeeping = writer_of(log).housekeeping
    housekeeping.flush_indexes()
    housekeeping.write_checkpoints()


CALLS: dict[str, Callable[[kstore.Log], object]] = {
    "append": lambda log: log.append(b"small"),
    "append that rolls": lambda log: log.append(bytes(500)),
    "append_many": lambda log: log.append_many([b"%d" % number for number in range(10)], atomic=True),
    "roll": lambda log: log.roll(),
    "flush": lambda log: log.flush(),
    "flush as after a roll": flush_as_after_a_roll,
    "checkpoints": write_checkpoints,
    "housekeeping": lambda log: log.run_housekeeping(),
    "truncate inside a batch": lambda log: log.truncate_to(22),
    "truncate deep": lambda log: log.truncate_to(7),
    "truncate all": lambda log: log.truncate_to(0),
    "start anew": lambda log: log.truncate_fully_and_start_at(1000),
    "start anew lower": lambda log: log.truncate_fully_and_start_at(5),
    "delete some": lambda log: log.delete_records(10),
    "delete all": lambda log: log.delete_records(-1),
    "retention": lambda log: log.apply_retention(),
}


class State(NamedTuple):
    start: int
    end: int
    records: tuple[tuple[int, bytes | None], ...]


class Outcome(NamedTuple):
    state: State
    errors: tuple[str | None, ...]  # of the two calls


def records_of(log: kstore.Log) -> tuple[tuple[int, bytes | None], ...]:
    return tuple((record.offset, record.value) for record in log.read())


def state_of(log: kstore.Log) -> State:
    return State(log.log_start_offset, log.log_end_offset, records_of(log))


def error_of(call: Callable[[kstore.Log], object], log: kstore.Log) -> str | None:
    try:
        call(log)
    except kstore.KStoreError as error:
        return type(error).__name__
    return None


def get_each(log: kstore.Log) -> None:
    for offset in range(log.log_start_offset, log.log_end_offset):
        record = log.get(offset)
        assert record is None or record.offset == offset


def read_everything(log: kstore.Log) -> None:
    """A deletion may overtake the reader, and nothing else may happen to it."""
    for read in (lambda: list(log.read()), lambda: list(log.read_batches()), log.read_columns, lambda: get_each(log)):
        with suppress(kstore.OffsetOutOfRangeError):
            read()


class Meetings:
    """Logs that are all made alike, and what two calls leave of one."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.directory = directory
        self.clock = clock
        self._count = 0
        self._lines: dict[str, int] = {}
        self._expected: dict[frozenset[str], list[tuple[tuple[str, ...], list[State], Outcome]]] = {}

    def opened(self, path: Path) -> kstore.Log:
        return kstore.Log.open(path, clock=self.clock, **SETTINGS)

    def made(self) -> kstore.Log:
        """A log of four segments, whose last is not flushed."""
        self._count += 1
        log = self.opened(self.directory / str(self._count) / "events-0")
        for batch in range(10):
            log.append_many([b"%032d" % (3 * batch + place) for place in range(3)], atomic=True)
            if batch == 5:
                log.flush()
        return log

    def drop(self, log: kstore.Log) -> None:
        log.close()
        shutil.rmtree(Path(log.path).parent)

    def lines(self, name: str) -> int:
        """How many lines a call runs through when it is alone."""
        if name not in self._lines:
            log = self.made()
            alone = Line(-1, lambda: None, FOLDERS)
            alone.run(lambda: error_of(CALLS[name], log))
            self._lines[name] = alone.passed
            self.drop(log)
        return self._lines[name]

    def expected(self, names: tuple[str, str]) -> list[tuple[tuple[str, ...], list[State], Outcome]]:
        """For both orders: the order, the states on the way, and the outcome."""
        key = frozenset(names)
        if key not in self._expected:
            self._expected[key] = [self._in_order(order) for order in dict.fromkeys(permutations(names))]
        return self._expected[key]

    def _in_order(self, order: tuple[str, ...]) -> tuple[tuple[str, ...], list[State], Outcome]:
        log = self.made()
        states, errors = [state_of(log)], []
        for name in order:
            errors.append(error_of(CALLS[name], log))
            states.append(state_of(log))
        self.drop(log)
        return order, states, Outcome(states[-1], tuple(errors))

    def meet(self, first: str, second: str, number: int) -> str:
        """Have `second` come while `first` is at its line of this number; the line, or nothing if there is none."""
        expected = self.expected((first, second))
        states = [state for _, before, _ in expected for state in before]
        log = self.made()
        partition = Path(log.path)
        try:
            place, *errors = meet(
                number,
                FOLDERS,
                lambda: error_of(CALLS[first], log),
                lambda: error_of(CALLS[second], log),
                lambda other: self._look(log, other, states),
                longest_wait=LONGEST_WAIT,
                longest_look=LONGEST_LOOK,
            )
            if place:
                found = Outcome(state_of(log), tuple(errors))
                assert found in [
                    Outcome(outcome.state, outcome.errors if order == (first, second) else outcome.errors[::-1])
                    for order, _, outcome in expected
                ]
            end = state_of(log)
            log.close()
            with self.opened(partition) as again:
                assert again.log_start_offset == end.start
                assert records_of(again) == end.records
        except BaseException as error:
            error.add_note(f"{second!r} in {first!r}, line {number}")
            raise
        shutil.rmtree(partition.parent)
        return place

    def _look(self, log: kstore.Log, other: threading.Thread, states: list[State]) -> None:
        """Look at the log as its readers see it, and, if nobody changes it now, as others do."""
        partition = Path(log.path)
        killed = partition.parent / "killed"
        read_everything(log)
        if other.is_alive():
            return
        with kstore.Log.open(partition, mode="r") as reader:
            self._check_part(records_of(reader), states)
        shutil.copytree(partition.parent, killed)
        with self.opened(killed / partition.name) as again:
            self._check_part(records_of(again), states)
            again.append(b"goes on", b"key")

    @staticmethod
    def _check_part(found: tuple[tuple[int, bytes | None], ...], states: list[State]) -> None:
        """What a reader or a kill finds is a part of the records of one of the states, without a gap."""
        parts = (state.records for state in states)
        assert any(not found or found == part[at : at + len(found)] for part in parts for at in range(len(part) or 1))


@pytest.fixture
def meetings(tmp_path: Path, clock: ManualClock, no_syncs: None) -> Meetings:
    return Meetings(tmp_path / "meetings", clock)


def test_two_calls_that_meet_at_any_line_leave_what_one_after_the_other_leaves(
    meetings: Meetings, rng: random.Random, budget: Callable[[float], float]
) -> None:
    until = time.monotonic() + budget(20)
    met = 0
    while time.monotonic() < until or met < 100:
        first, second = rng.choice(list(CALLS)), rng.choice(list(CALLS))
        if lines := meetings.lines(first):
            met += bool(meetings.meet(first, second, rng.randint(1, lines)))


def test_a_deletion_of_all_beside_a_truncation_deletes_what_is_left(meetings: Meetings) -> None:
    """SEMANTICS 11.9: whatever the log end is by then, it is not outside of the log."""
    for number in range(1, 60):
        meetings.meet("delete all", "truncate inside a batch", number)


def test_retention_beside_a_truncation_of_all_deletes_no_segment_that_is_left(meetings: Meetings) -> None:
    """SEMANTICS 6.9: the one segment that is left was one to be deleted, and is the active one now."""
    for number in range(1, meetings.lines("retention"), 40):
        meetings.meet("retention", "truncate all", number)
