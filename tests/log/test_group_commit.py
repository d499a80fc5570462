"""Many threads that flush one log: which thread waits for which, and that none waits for ever or returns too early.

The disk is held: a sync ends when the test lets it, and what it covered is known. No test measures time.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.log.segments.segment import Segment
from kstore.log.writing import _sync_turn
from kstore.log.writing._sync_turn import Turn
from tests.conftest import ManualClock
from tests.support.meeting import wait_until
from tests.support.parking import writer_of


class HeldDisk:
    """Syncs of `.log` files end when `release` allows one more; what each had covered is in `covered`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.covered: list[int] = []
        self.failure: OSError | None = None
        self._allowed = threading.Semaphore(0)
        self._holding = True
        self._fdatasync = fs.fdatasync
        monkeypatch.setattr(fs, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        if not str(fs.path_of(fd)).endswith(".log"):
            return
        size = os.fstat(fd).st_size  # what is written now is on the disk afterwards, and no more
        self.covered.append(size)
        if self._holding:
            assert self._allowed.acquire(timeout=60)
        if self.failure is not None:
            raise self.failure

    @property
    def syncs(self) -> int:
        return len(self.covered)

    def release(self, count: int = 1) -> None:
        self._allowed.release(count)

    def let_go(self) -> None:
        self._holding = False
        self._allowed.release(1000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDisk]:
    held = HeldDisk(monkeypatch)
    yield held
    held.let_go()


class Threads:
    """Threads that do something once; what they raised is in `errors`."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.done = 0
        self._threads: list[threading.Thread] = []

    def start(self, *actions: Callable[[], object]) -> Threads:
        for action in actions:
            thread = threading.Thread(target=self._run, args=(action,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def _run(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            self.errors.append(error)
        self.done += 1

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def turn_of(log: kstore.Log) -> Turn:
    assert log._writer is not None
    return log._writer.housekeeping._turn


def test_threads_that_flush_during_a_sync_share_the_next_one(partition: Path, disk: HeldDisk) -> None:
    """SEMANTICS 12.2: concurrent callers share one sync, and the one under way does not cover them."""
    with kstore.Log.open(partition) as log:
        log.append(b"first")
        first = Threads().start(log.flush)
        wait_until(lambda: disk.syncs == 1)
        others = Threads().start(*[lambda: (log.append(b"x"), log.flush())] * 8)
        wait_until(lambda: turn_of(log).waiters == 8)
        disk.release()
        first.join()
        wait_until(lambda: disk.syncs == 2)
        assert others.done == 0
        disk.release()
        others.join()
        assert disk.syncs == 2
        assert not others.errors
        assert log.stats()["recovery_point"] == 9
        disk.let_go()


def test_a_sync_that_covers_some_of_those_who_wait_leaves_the_others_asleep_but_one() -> None:
    turn = Turn()
    assert turn.take_or_wait(1)
    took: dict[int, bool] = {}
    go_on = threading.Event()

    def wait(target: int) -> None:
        took[target] = turn.take_or_wait(target)
        if target > 10:
            assert turn.take_or_wait(target)
            assert go_on.wait(60)
            turn.give(10)

    waiters = Threads()
    for number, target in enumerate((5, 20, 10, 11, 30), 1):
        waiters.start(lambda target=target: wait(target))
        wait_until(lambda number=number: turn.waiters == number)
    turn.give(10)
    wait_until(lambda: len(took) == 3)
    assert took == {5: False, 10: False, 20: False}  # 20 is the first of the rest, and takes the turn
    assert turn.waiters == 2
    go_on.set()
    waiters.join()
    assert not waiters.errors
    assert len(took) == 5


def test_threads_that_want_the_turn_alone_get_it_in_order_and_undisturbed() -> None:
    turn = Turn()
    turn.take()
    order: list[str] = []

    def alone(name: str) -> None:
        turn.take()
        order.append(name)
        turn.give(0)

    threads = Threads()
    for number, name in enumerate("abc", 1):
        threads.start(lambda name=name: alone(name))
        wait_until(lambda number=number: turn.waiters == number)
    turn.give(0)
    threads.join()
    assert order == ["a", "b", "c"]


def test_giving_back_a_turn_that_another_thread_has_changes_nothing() -> None:
    turn = Turn()
    turn.take()
    other = Threads().start(lambda: turn.give(100))
    other.join()
    waiter = Threads().start(lambda: turn.take_or_wait(5))
    wait_until(lambda: turn.waiters == 1)
    turn.give(5)
    waiter.join()


@pytest.mark.parametrize("want", ["flush", "turn"])
def test_a_waiter_that_is_interrupted_is_forgotten(want: str) -> None:
    turn = Turn()
    holder = Threads().start(turn.take)
    holder.join()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: turn.waiters == 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupter = Threads().start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            turn.take_or_wait(5) if want == "flush" else turn.take()
        interrupter.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert turn.waiters == 0


def test_a_sync_waits_for_the_threads_that_the_last_one_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the thread that synced would sync again for itself alone while the others are being woken."""
    monkeypatch.setattr(_sync_turn, "GATHERING_SHARE", 1e9)
    monkeypatch.setattr(_sync_turn, "LONGEST_GATHERING", 50.0)
    turn = Turn()
    assert turn.take_or_wait(1)
    threads = Threads().start(*[lambda: turn.take_or_wait(5)] * 2)
    wait_until(lambda: turn.waiters == 2)
    turn.give(5)
    threads.join()
    assert turn.take_or_wait(6)
    gathering = Threads()

    def gather() -> None:
        turn.gather()

    gathering.start(gather)
    threads.start(lambda: turn.take_or_wait(7))
    wait_until(lambda: turn.waiters == 1)
    assert gathering.done == 0
    threads.start(lambda: turn.take_or_wait(8))
    gathering.join()
    turn.give(8)
    threads.join()


def test_a_sync_that_waits_in_vain_goes_ahead_and_waits_for_no_thread_afterwards(
    partition: Path, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sync_turn, "GATHERING_SHARE", 1e9)
    monkeypatch.setattr(_sync_turn, "LONGEST_GATHERING", 0.01)
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        threads = Threads().start(log.flush)
        wait_until(lambda: disk.syncs == 1)
        threads.start(*[lambda: (log.append(b"x"), log.flush())] * 3)
        wait_until(lambda: turn_of(log).waiters == 3)
        disk.release(2)
        threads.join()
        disk.let_go()
        log.append(b"alone")
        log.flush()
        monkeypatch.setattr(_sync_turn, "LONGEST_GATHERING", 1e6)  # a thread that waits from here on waits for ever
        log.append(b"alone")
        log.flush()
        assert log.stats()["recovery_point"] == 6


def test_a_flush_that_waits_for_a_restart_that_fails_is_refused(
    partition: Path, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment the log has no segment: the flush must not go on before the log refuses writes."""
    log = kstore.Log.open(partition)
    log.append(b"x")
    writer, threads = writer_of(log), Threads()
    fail = writer.fail

    def no_epochs() -> None:
        threads.start(log.flush)
        wait_until(lambda: turn_of(log).waiters == 1)
        raise StorageError(errno.EIO, "Input/output error")

    def fail_late(error: BaseException) -> None:
        if turn_of(log).waiters == 0:
            threads.join()
        fail(error)

    monkeypatch.setattr(writer.epochs, "clear_and_flush", no_epochs)
    monkeypatch.setattr(writer, "fail", fail_late)
    disk.let_go()
    with pytest.raises(StorageError):
        log.truncate_fully_and_start_at(9)
    threads.join()
    assert [type(error) for error in threads.errors] == [StorageError]
    log.close()


def test_a_sync_that_fails_refuses_everybody_who_waited_for_it(partition: Path, disk: HeldDisk) -> None:
    """After a failed sync it is unknown what is on the disk: no flush may return as if its records were."""
    log = kstore.Log.open(partition)
    log.append(b"x")
    threads = Threads().start(log.flush)
    wait_until(lambda: disk.syncs == 1)
    threads.start(*[lambda: (log.append(b"x"), log.flush())] * 5)
    wait_until(lambda: turn_of(log).waiters == 5)
    disk.failure = StorageError(errno.EIO, "Input/output error")
    disk.release()
    threads.join()
    assert [type(error) for error in threads.errors] == [StorageError] * 6
    disk.failure = None
    disk.let_go()
    with pytest.raises(StorageError):
        log.append(b"y")
    log.close()


def test_closing_a_log_lets_everybody_go_who_waits_for_a_sync(partition: Path, disk: HeldDisk) -> None:
    log = kstore.Log.open(partition)
    log.append(b"x")
    threads = Threads().start(log.flush)
    wait_until(lambda: disk.syncs == 1)
    threads.start(*[lambda: (log.append(b"x"), log.flush())] * 5)
    wait_until(lambda: turn_of(log).waiters == 5)
    closer = Threads().start(log.close)
    wait_until(lambda: turn_of(log).waiters == 6)
    disk.let_go()
    threads.join()
    closer.join()
    assert not closer.errors
    assert all(isinstance(error, kstore.LogClosedError) for error in threads.errors)
    with kstore.Log.open(partition) as log:
        assert log.log_end_offset == 6


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_a_flush_returns_only_when_a_sync_that_began_after_its_append_has_ended(
    partition: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Acknowledged means on the disk."""
    fdatasync = fs.fdatasync
    covered: dict[str, int] = {}

    def sync(fd: int) -> None:
        path, size = str(fs.path_of(fd)), os.fstat(fd).st_size
        fdatasync(fd)
        time.sleep(0.0002)
        covered[path] = max(covered.get(path, 0), size)

    monkeypatch.setattr(fs, "fdatasync", sync)
    with kstore.Log.open(partition, segment_bytes=16384) as log:
        log.append(b"v" * 100)
        record_bytes = log.segments[0].size_bytes

        def work() -> None:
            for _ in range(60):
                offset = log.append(b"v" * 100)
                log.flush()
                base = max(segment.base_offset for segment in log.segments if segment.base_offset <= offset)
                path = str(partition / f"{base:020}.log")
                assert covered[path] >= (offset - base + 1) * record_bytes, f"offset {offset} was not on the disk"

        workers = Threads().start(*[work] * threads)
        workers.join()
        assert workers.errors == []
        assert log.log_end_offset == log.stats()["recovery_point"] == threads * 60 + 1


# What a flush syncs, and what it leaves to the checkpoint.


class SyncList:
    """The names of what is synced or written atomically, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        fdatasync, write_atomically = fs.fdatasync, fs.write_atomically

        def sync(fd: int) -> None:
            fdatasync(fd)
            self.names.append(Path(str(fs.path_of(fd))).name)

        def write(path: str, data: bytes) -> None:
            write_atomically(path, data)
            self.names.append(Path(path).name)

        monkeypatch.setattr(fs, "fdatasync", sync)
        monkeypatch.setattr(fs, "write_atomically", write)

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


RECOVERY_POINTS = "recovery-point-offset-checkpoint"
ZERO = "0" * 20


def test_a_flush_syncs_the_log_file_and_the_checkpoint_sees_to_the_indexes(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery point reaches its file only after the indexes below it are synced."""
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=0) as log:
        log.append_many([b"x"] * 10, batch_bytes=100)
        log.flush()
        syncs = SyncList(monkeypatch)
        log.append_many([b"x"] * 10, batch_bytes=100)
        log.flush()
        assert syncs.taken() == [f"{ZERO}.log"]
        assert log.stats()["recovery_point"] == 20
        clock.advance(60_000)
        log.run_housekeeping()
        names = syncs.taken()
        assert names[-1] == RECOVERY_POINTS
        assert {f"{ZERO}.index", f"{ZERO}.timeindex"} <= set(names[:-1])
        assert (partition.parent / RECOVERY_POINTS).read_text() == "0\n1\nevents 0 20\n"
        log.append(b"not flushed")
        clock.advance(60_000)
        log.run_housekeeping()
        assert syncs.taken() == []  # nothing was flushed since


def test_an_early_recovery_point_covers_only_what_is_synced_with_its_indexes(
    partition: Path, clock: ManualClock
) -> None:
    """SEMANTICS 12.7: a truncation writes the file, and leaves the indexes of what stays unsynced."""
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=0) as log:
        log.append_many([b"x"] * 10, batch_bytes=100)
        log.flush()
        log.truncate_to(8)
        assert (partition.parent / RECOVERY_POINTS).read_text() == "0\n1\nevents 0 0\n"
        log.append_many([b"y"] * 4)
        log.flush()
        assert log.stats()["recovery_point"] == 12
        clock.advance(60_000)
        log.run_housekeeping()
        assert (partition.parent / RECOVERY_POINTS).read_text() == "0\n1\nevents 0 12\n"


def test_a_segment_that_is_left_is_flushed_with_its_indexes(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=0) as log:
        log.append_many([b"x"] * 10, batch_bytes=100)
        log.flush()
        log.roll()
        syncs = SyncList(monkeypatch)
        log.append(b"y")  # this one does what the roll asked for
        names = syncs.taken()
        assert {f"{ZERO}.log", f"{ZERO}.index", f"{ZERO}.timeindex"} <= set(names)
        assert names[-1] == RECOVERY_POINTS
        assert (partition.parent / RECOVERY_POINTS).read_text() == "0\n1\nevents 0 10\n"


def test_a_segment_that_retention_takes_while_it_is_synced_does_not_end_the_log(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 6.12: its files are renamed beside the sync that a roll asked for."""
    with kstore.Log.open(partition, clock=clock, retention_bytes=0) as log:
        log.append_many([b"x"] * 10)
        log.roll()
        log.append_many([b"y"] * 10)
        flush, gone = Segment.flush, []

        def beside(segment: Segment) -> None:
            if not gone:
                gone.extend(log.apply_retention())
            flush(segment)

        monkeypatch.setattr(Segment, "flush", beside)
        log.roll()
        log.append(b"z")
        assert [segment.base_offset for segment in gone] == [0, 10]
        assert log.append(b"z") == 21
        log.flush()
        assert log.stats()["recovery_point"] == 22
    with kstore.Log.open(partition, clock=clock) as log:
        assert [record.offset for record in log.read()] == [20, 21]


def test_rolls_as_fast_as_their_flushes_leave_the_host_time_for_the_rest(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, no_syncs: None
) -> None:
    """SEMANTICS 2.12: each flush finds that another segment has been left meanwhile; retention must have its turn."""
    settings = {"retention_bytes": 0, "log_retention_check_interval_ms": 1, "log_initial_task_delay_ms": 0}
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        flush, flushed = Segment.flush, []

        def beside(segment: Segment) -> None:
            flush(segment)
            flushed.append(segment.base_offset)
            assert len(flushed) < 1000, "it never came to anything else"
            log.append(b"x")
            log.roll()

        monkeypatch.setattr(Segment, "flush", beside)
        log.append(b"x")
        log.roll()
        for _ in range(3):
            clock.advance(1)
            store.run_housekeeping()
        assert log.log_start_offset > 0
        monkeypatch.undo()
        clock.advance(1)
        store.run_housekeeping()
        assert log.stats()["recovery_point"] == log.segments[-1].base_offset


@pytest.mark.parametrize("how", ["flush", "delete records"])
def test_a_flush_ends_however_fast_segments_are_rolled_beside_it(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, no_syncs: None, how: str
) -> None:
    """One sync that begins after the call is enough: it does not wait for the names of segments that came later."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append_many([b"x"] * 10)
        flush, flushed = Segment.flush_log, []

        def beside(segment: Segment) -> None:
            flush(segment)
            flushed.append(segment.base_offset)
            assert len(flushed) < 10, "the flush goes on and on"
            log.append(b"y")
            log.roll()

        monkeypatch.setattr(Segment, "flush_log", beside)
        log.flush() if how == "flush" else log.delete_records(5)
        monkeypatch.undo()
        assert flushed == [0]
        assert log.stats()["recovery_point"] >= 10


class Garbage:
    """A cycle; its collection lets another thread give its turn back. Its maker waits in there until it has."""

    def __init__(self, may_give: threading.Event, has_given: threading.Event) -> None:
        self.itself, self.may_give, self.has_given = self, may_give, has_given
        self.maker = threading.get_ident()

    def __del__(self) -> None:
        self.may_give.set()
        assert threading.get_ident() != self.maker or self.has_given.wait(60)


@pytest.mark.parametrize("alone", [False, True])
def test_a_turn_that_is_given_back_during_a_garbage_collection_is_not_waited_for(alone: bool) -> None:
    """The collection begins where the waiting thread's own object is made, after it has seen that the turn is taken."""
    turn = Turn()
    taken, may_give, has_given, ended = (threading.Event() for _ in range(4))

    def hold() -> None:
        turn.take()
        taken.set()
        assert may_give.wait(60)
        turn.give(0)
        has_given.set()

    def ask() -> None:
        Garbage(may_give, has_given)
        gc.set_threshold(1)
        turn.take() if alone else turn.take_or_wait(1)
        gc.set_threshold(*thresholds)
        turn.give(1)
        ended.set()

    holder = threading.Thread(target=hold)
    asker = threading.Thread(target=ask)
    gc.collect()
    thresholds = gc.get_threshold()
    try:
        holder.start()
        assert taken.wait(60)
        asker.start()
        assert ended.wait(10)
    finally:
        gc.set_threshold(*thresholds)
        may_give.set()
        holder.join()
        turn.give(1)  # wakes one that sleeps for ever
        asker.join()
