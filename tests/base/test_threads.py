"""Where no thread can be started, as in a container whose processes are limited: the calling thread does the work."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kstore
from kstore.base import threads, uninterrupted
from kstore.base.threads import Workers
from kstore.store.manager import LogManager
from kstore.tools.check import verify
from tests.conftest import ManualClock
from tests.support.interrupts import interrupt_often


class Limit:
    """How many threads may still be started; None for any number."""

    left: int | None = 0


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """No thread can be started, unless the test says otherwise."""
    limit = Limit()
    plain = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if limit.left is not None:
            if limit.left == 0:
                raise RuntimeError("can't start new thread")
            limit.left -= 1
        plain(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threads, "_warned", [])
    return limit


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def line(root: Path, name: str) -> str:
    return (root / "recovery-point-offset-checkpoint").read_text().split(f"{name} ")[-1].split("\n")[0]


@pytest.mark.usefixtures("limit")
def test_a_lone_log_rolls_and_closes_and_the_next_append_flushes(
    root: Path, partition: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SEMANTICS 2.12: the flush after a roll is the next append's."""
    with kstore.Log.open(partition, segment_bytes=4096) as log:
        for number in range(200):
            assert log.append(b"x" * 100) == number
        assert len(log.segments) > 3
        last = log.segments[-1].base_offset
        assert log.stats()["recovery_point"] == last
        assert line(root, "events") == f"0 {last}"
        log.update_config(flush_ms=10**9)
    (warning,) = warnings(caplog)
    assert warning == ("can't start new thread: background work is done by the threads that call")
    with kstore.Log.open(partition) as log:
        assert log.recovery.clean
        assert log.log_end_offset == 200


def test_a_lone_log_has_its_thread_once_there_may_be_one(partition: Path, limit: Limit) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        log.roll()
        assert log._writer is not None
        housekeeper: Any = log._writer.housekeeping.housekeeper
        assert housekeeper._thread is None
        limit.left = None
        log.append(b"b")
        log.roll()
        assert housekeeper._thread is not None


def test_a_stores_appends_do_what_its_thread_would_and_it_closes_cleanly(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, limit: Limit
) -> None:
    with kstore.Store.open(root, clock=clock, config={"log.retention.ms": "60000"}, segment_bytes=4096) as store:
        store.create_topic("t")
        log = store.log("t", 0)
        for _ in range(200):
            store.append("t", b"x" * 100)
        assert log.stats()["recovery_point"] == log.segments[-1].base_offset
        assert line(root, "t") == f"0 {log.segments[-1].base_offset}"
        clock.advance(3_600_000)
        store.append("t", b"later")
        store.append("t", b"later")
        assert log.log_start_offset > 100  # retention
        with store.producer(transactional_id="id", transaction_timeout_ms=1000) as producer:
            txn = producer.transaction()
            txn.append("t", b"open")
            clock.advance(100_000)
            store.flush()
            with pytest.raises(kstore.InvalidProducerEpochError):  # its timeout has passed
                txn.append("t", b"fenced")
        assert store.stats()["failures"] == {}
        limit.left = None
        clock.advance(3_600_000)
        store.append("t", b"x")
        assert isinstance(store._logs, LogManager)
        assert store._logs.scheduler._worker is not None
        assert log._writer is not None
        assert log._writer.appender.due_ms == 2**63 - 1
    assert len(warnings(caplog)) == 2, caplog.text  # the other is of the transaction
    assert (root / ".kafka_cleanshutdown").exists()


def test_a_store_without_background_starts_no_thread_and_warns_of_none(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, limit: Limit
) -> None:
    with kstore.Store.open(root, clock=clock, background=False, segment_bytes=4096) as store:
        store.create_topic("t")
        for _ in range(100):
            store.append("t", b"x" * 100)
        assert store.log("t", 0).stats()["recovery_point"] == 0
    assert warnings(caplog) == []
    assert limit.left == 0


@pytest.mark.parametrize("left", [0, 1])
def test_recovery_verification_and_columns_are_done_by_the_calling_thread(
    root: Path, limit: Limit, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = kstore.Store.open(root, background=False)
    store.create_topic("t", 6)
    for compression in (None, "lz4"):
        got = store.append_columns(
            "t", np.zeros((6000, 100), np.uint8), keys=np.arange(6000).view("V8"), threads=4, compression=compression
        )
        assert sum(info.last_offset - info.first_offset + 1 for info in got.values()) == 6000
    store._logs.abandon()  # type: ignore[union-attr]
    store._closed = True
    limit.left = left
    with kstore.Store.open(root, background=False) as store:
        assert sum(store.log("t", number).log_end_offset for number in range(6)) == 12_000
    limit.left = left
    assert verify.verify([root]).findings == []
    assert sum("can't start new thread" in text for text in warnings(caplog)) == 1


@pytest.mark.parametrize("left", [0, 1, 3, None])
def test_each_work_is_done_once_whichever_thread_does_it(limit: Limit, left: int | None) -> None:
    limit.left = left
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        if number == 77:
            raise ValueError("77")
        return number

    with Workers(4, "test") as workers:
        assert list(workers.map(work, range(77))) == list(range(77))
        results = workers.map(work, range(77, 90))
        with pytest.raises(ValueError, match="77"):
            next(results)
    assert sorted(done)[:78] == list(range(78))
    assert len(done) == len(set(done))


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_single_task_is_done_by_the_calling_thread_and_two_are_not(limit: Limit, tasks: int) -> None:
    limit.left = None
    with Workers(4, "test") as workers:
        doers = list(workers.map(lambda _: threading.get_ident(), range(tasks)))
    assert (threading.get_ident() in doers) == (tasks == 1)


@pytest.mark.usefixtures("limit")
def test_work_that_no_interrupt_breaks_off_puts_off_ctrl_c_in_the_main_thread() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []

    def work(check: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        with pytest.raises(uninterrupted.GivenUp):
            check()
        ended.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted.run(work)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
    assert uninterrupted.run(lambda check: 5) == 5


LIMITED = """
import resource, sys, threading
import kstore

threading.stack_size(1 << 30)  # more than the address space that is left: the system refuses each thread
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), used + (600 << 20)))
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(error)
with kstore.Log.open(sys.argv[1] + "/lone/t-0", segment_bytes=4096) as log:
    for _ in range(100):
        log.append(b"x" * 100)
    print(log.stats()["recovery_point"] == log.segments[-1].base_offset)
with kstore.Store.open(sys.argv[1] + "/store", segment_bytes=4096) as store:
    store.create_topic("t", 2)
    store.append_many("t", [(b"%d" % n, b"x" * 100) for n in range(1000)], compression="lz4")
    store.append_columns("t", [b"x" * 100] * 1000, threads=2, compression="lz4")
print(kstore.Log.open(sys.argv[1] + "/lone/t-0").recovery.clean)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_real_limit_of_the_system_stops_neither_appends_nor_rolls_nor_a_close(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["can't start new thread", "True", "True"], done.stderr
    assert done.returncode == 0
    assert (tmp_path / "store" / ".kafka_cleanshutdown").exists()
    assert done.stderr.count("can't start new thread") == 1  # the warning, once for all


def test_a_bell_wakes_every_thread_that_waits() -> None:
    bell, has_come, answers = threads.Bell(), False, []
    waiting = [threading.Thread(target=lambda: answers.append(bell.wait(lambda: has_come, 60))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    has_come = True
    bell.ring()
    for thread in waiting:
        thread.join(60)
    assert answers == [True] * 3


def test_a_wait_for_a_bell_ends_when_the_time_is_up() -> None:
    bell = threads.Bell()
    bell.ring()
    assert [bell.wait(lambda: False, seconds) for seconds in (-1, 0, 0.01)] == [False] * 3
    assert bell.wait(lambda: True, 0)


def test_a_handler_that_rings_while_its_thread_is_anywhere_in_a_wait_does_not_block() -> None:
    """An event's lock would be taken by the thread that the handler interrupts."""
    bell, rung = threads.Bell(), 0

    def ring(*_: object) -> None:
        nonlocal rung
        rung += 1
        bell.ring()

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        assert bell.wait(lambda: rung > 1000, 60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_of_two_that_take_a_work_one_does_it_and_both_have_its_result() -> None:
    done: list[int] = []
    task = threads.Task(lambda: done.append(1) or len(done))
    assert [task.result(), task.result(), task.wait()] == [1, 1, 1]
    assert not task.cancel()


def test_a_work_that_is_cancelled_is_not_done() -> None:
    task = threads.Task(lambda: pytest.fail("done"))
    assert task.cancel()
    with pytest.raises(CancelledError):
        task.result()


def test_a_thread_that_left_for_want_of_work_is_replaced_when_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_LINGER_S", 0.001)
    with Workers(2, "test") as workers:
        for _ in range(20):
            assert workers.submit(threading.get_ident).wait() != threading.get_ident()
            time.sleep(0.002)


def test_no_interrupt_of_works_leaves_a_worker_that_waits_for_ever(budget: Callable[[float], float]) -> None:
    with Workers(2, "test") as workers:

        def work() -> None:
            assert list(workers.map(abs, range(5))) == [0, 1, 2, 3, 4]

        assert interrupt_often(work, budget(2)) > 0
        work()
