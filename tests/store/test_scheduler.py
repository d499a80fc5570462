"""scheduler.py: tasks run when they are due, whatever the clock, the tasks themselves or the threads do
(SEMANTICS 13.4)."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.base.numbers import NEVER
from kstore.store.scheduler import Scheduler
from tests.conftest import SEED, ManualClock


class Story:
    """A scheduler under a clock, and what its tasks did: (name, milliseconds since the start)."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.began = clock.now
        self.ran: list[tuple[str, int]] = []
        self.scheduler = Scheduler(clock)

    def task(self, name: str, answer: int | None = None) -> Callable[[], int | None]:
        def act() -> int | None:
            self.ran.append((name, self.clock.now - self.began))
            return answer

        return act

    def advance(self, *steps: int) -> list[tuple[str, int]]:
        """Move the clock, running what is due after each step; what ran."""
        before = len(self.ran)
        for milliseconds in steps:
            self.clock.advance(milliseconds)
            self.scheduler.run_due()
        return self.ran[before:]


@pytest.fixture
def story(clock: ManualClock) -> Story:
    return Story(clock)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for another thread to have done something."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


# When


def test_a_task_runs_after_its_delay_and_then_at_each_period(story: Story) -> None:
    story.scheduler.every("retention", story.task("retention"), period_ms=100, delay_ms=30)
    assert story.advance(0, 29) == []
    assert story.advance(1) == [("retention", 30)]
    assert story.advance(99) == []
    assert story.advance(1, 100) == [("retention", 130), ("retention", 230)]


@pytest.mark.parametrize("period", [0, -1, -(2**63)])
def test_a_period_that_is_not_positive_means_once(story: Story, period: int) -> None:
    story.scheduler.every("flush", story.task("flush"), period_ms=period, delay_ms=5)
    assert story.advance(5, 10**12) == [("flush", 5)]
    assert story.scheduler.schedule == {}


def test_a_task_that_is_looked_at_late_keeps_the_phase_of_its_rate(story: Story) -> None:
    story.scheduler.every("a", story.task("a"), period_ms=100, delay_ms=0)
    assert story.advance(0, 130, 69, 1) == [("a", 0), ("a", 130), ("a", 200)]


def test_a_clock_that_leaps_forward_runs_each_task_once(story: Story) -> None:
    story.scheduler.every("a", story.task("a"), period_ms=100, delay_ms=0)
    story.scheduler.every("b", story.task("b"), period_ms=7, delay_ms=3)
    at = 365 * 24 * 3_600_000 + 1
    assert story.advance(at) == [("a", at), ("b", at)]
    assert [name for name, _ in story.advance(98)] == ["b"]
    assert ("a", at + 99) in story.advance(1)


def test_a_clock_that_leaps_forward_while_a_task_runs_has_it_run_again(story: Story) -> None:
    """What the first run did it may have done by the time before the leap: the one after it misses nothing."""

    def act() -> None:
        story.ran.append(("a", story.clock.now - story.began))
        if len(story.ran) == 1:
            story.clock.advance(1050)

    story.scheduler.every("a", act, period_ms=100, delay_ms=0)
    assert story.advance(0) == [("a", 0)]
    assert story.advance(0, 0, 49, 1) == [("a", 1050), ("a", 1100)]


def test_a_clock_that_goes_back_makes_no_task_wait_longer_than_its_period(story: Story) -> None:
    story.scheduler.every("a", story.task("a"), period_ms=100, delay_ms=30)
    story.clock.advance(-(10**9))
    assert story.scheduler.due_ms == story.clock.now + 30
    story.advance(30)
    story.clock.advance(-(10**9))
    assert story.scheduler.due_ms == story.clock.now + 100
    assert len(story.advance(99, 1)) == 1


def test_a_clock_that_goes_back_while_a_task_runs_does_no_harm(story: Story) -> None:
    def act() -> None:
        story.clock.advance(-50_000)

    story.scheduler.every("a", act, period_ms=100, delay_ms=0)
    story.scheduler.run_due()
    assert story.scheduler.due_ms == story.clock.now + 100


@given(st.lists(st.integers(-(10**12), 10**12), max_size=30), st.integers(1, 10**6), st.integers(0, 10**6))
def test_whatever_the_clock_does_a_task_is_due_within_its_period_and_runs_once(
    jumps: list[int], period: int, delay: int
) -> None:
    story = Story(ManualClock(0))
    story.scheduler.every("a", story.task("a"), period_ms=period, delay_ms=delay)
    longest = delay
    for jump in jumps:
        story.clock.advance(jump)
        was_due = story.scheduler.due_ms <= story.clock.now
        assert story.scheduler.due_ms - story.clock.now <= longest
        before = len(story.ran)
        story.scheduler.run_due()
        assert len(story.ran) - before == was_due
        if was_due:
            longest = period
        assert story.scheduler.due_ms - story.clock.now <= longest
        assert story.scheduler.due_ms > story.clock.now


def test_a_task_may_say_when_it_wants_to_run_again(story: Story) -> None:
    answers = iter([7, 0, 5_000, None, None])
    story.scheduler.every("a", lambda: story.task("a", next(answers))(), period_ms=100, delay_ms=0)
    assert story.advance(0, 6, 1) == [("a", 0), ("a", 7)]
    assert story.advance(0) == []  # 0 is taken for 1: a task runs once a look
    assert story.advance(1, 4_999, 1) == [("a", 8), ("a", 5_008)]
    assert story.advance(99, 1) == [("a", 5_108)]


def test_a_task_that_was_to_run_once_is_kept_for_as_long_as_it_asks(story: Story) -> None:
    answers = iter([10, 10, None])
    story.scheduler.once("unlink", lambda: story.task("unlink", next(answers))(), delay_ms=60_000)
    assert story.advance(59_999) == []
    assert [at for _, at in story.advance(1, 10, 10, 10**9)] == [60_000, 60_010, 60_020]
    assert story.scheduler.schedule == {}
    assert story.scheduler.due_ms == NEVER


def test_the_longest_due_goes_first_and_equals_in_the_order_in_which_they_came(story: Story) -> None:
    for name, delay in [("c", 3), ("a", 1), ("b", 3)]:
        story.scheduler.once(name, story.task(name), delay)
    assert [name for name, _ in story.advance(5)] == ["a", "c", "b"]


def test_what_a_task_makes_due_runs_in_the_same_look(story: Story) -> None:
    story.scheduler.once("retain", lambda: story.scheduler.once("unlink", story.task("unlink")))
    assert story.advance(0) == [("unlink", 0)]


def test_a_task_that_names_itself_anew_runs_once_a_look(story: Story) -> None:
    def again() -> None:
        story.task("again")()
        story.scheduler.once("again", again)

    story.scheduler.once("again", again)
    assert story.advance(0, 0, 0) == [("again", 0)] * 3


def test_a_second_task_of_a_name_replaces_the_first(story: Story) -> None:
    story.scheduler.once("a", story.task("first"), 10)
    story.scheduler.once("a", story.task("second"), 20)
    assert story.advance(10, 10) == [("second", 20)]


def test_a_hurried_task_runs_at_the_earlier_of_its_times(story: Story) -> None:
    story.scheduler.every("a", story.task("a"), period_ms=1_000, delay_ms=1_000)
    assert story.scheduler.hurry("a", 2_000) is True
    assert story.scheduler.due_ms == story.clock.now + 1_000
    story.scheduler.hurry("a", 10)
    assert story.advance(9, 1, 999, 1) == [("a", 10), ("a", 1_010)]
    assert story.scheduler.hurry("unknown") is False


def test_a_task_that_is_hurried_while_it_runs_runs_again(story: Story) -> None:
    def act() -> None:
        story.task("unlink")()
        if len(story.ran) == 1:
            story.scheduler.hurry("unlink", 40)
            story.scheduler.hurry("unlink", 50)

    story.scheduler.once("unlink", act)
    assert story.advance(0, 39, 1, 1_000) == [("unlink", 0), ("unlink", 40)]


# What goes wrong


def test_an_exception_is_logged_and_stops_neither_the_others_nor_the_next_run(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(28, f"No space left ({len(story.ran)})")

    story.scheduler.every("bad", fail, period_ms=10, delay_ms=0)
    story.scheduler.every("good", story.task("good"), period_ms=10, delay_ms=0)
    assert story.scheduler.failures == {}
    with caplog.at_level(logging.ERROR, logger="kstore"):
        story.advance(0, 10)
    assert story.ran == [("good", 0), ("good", 10)]
    failure = story.scheduler.failures["bad"]
    assert failure.times == 2
    assert failure.error == "OSError: [Errno 28] No space left (1)"
    assert failure.when_ms == story.clock.now
    assert [(r.name, "'bad'" in r.getMessage(), r.exc_info is not None) for r in caplog.records] == [
        ("kstore", True, True)
    ] * 2


def test_a_task_from_once_that_fails_is_gone(story: Story) -> None:
    def fail() -> None:
        raise ValueError

    story.scheduler.once("bad", fail)
    story.scheduler.run_due()
    assert story.scheduler.schedule == {}
    assert story.scheduler.failures["bad"].times == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_run_due_and_its_task_is_due_again(story: Story, kind: type[BaseException]) -> None:
    def act() -> None:
        story.task("a")()
        if len(story.ran) == 1:
            raise kind

    story.scheduler.once("a", act)
    with pytest.raises(kind):
        story.scheduler.run_due()
    story.scheduler.run_due()
    assert story.ran == [("a", 0)] * 2
    assert story.scheduler.schedule == {}


def test_no_interrupt_leaves_a_task_that_never_runs_again(clock: ManualClock) -> None:
    """Signals come between any two instructions; whatever they break off, the next look runs the task."""
    scheduler = Scheduler(clock)
    ran = 0

    def act() -> None:
        nonlocal ran
        ran += 1

    has_rung = False

    def interrupt(*_: object) -> None:
        nonlocal has_rung
        has_rung = True
        raise KeyboardInterrupt

    scheduler.every("a", act, 1, 0)
    rng = random.Random(f"{SEED}:7")
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for _ in range(300):
            clock.advance(1)
            has_rung = False
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4))
                while not has_rung:  # so that the interrupt comes in here, however fast the machine is
                    scheduler.run_due()
                    scheduler.hurry("a")
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10
    clock.advance(1)
    before_ran = ran
    scheduler.run_due()
    assert ran == before_ran + 1


# Threads


def test_one_task_never_runs_twice_at_once_and_the_others_do_not_wait_for_it(story: Story) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        assert go_on.wait(60)
        story.task("slow")()

    story.scheduler.every("slow", slow, 10, 0)
    story.scheduler.every("quick", story.task("quick"), 10, 1)
    other = threading.Thread(target=story.scheduler.run_due)
    other.start()
    assert inside.wait(60)
    story.clock.advance(10)
    assert story.scheduler.due_ms == story.began + 1  # the slow one's time does not count while it runs
    story.scheduler.run_due()
    assert story.ran == [("quick", 10)]
    go_on.set()
    other.join(60)
    assert story.ran == [("quick", 10), ("slow", 10)]


def test_a_successor_of_the_same_name_waits_until_its_predecessor_has_ended(story: Story) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        inside.set()
        assert go_on.wait(60)
        return 5

    story.scheduler.once("a", slow)
    other = threading.Thread(target=story.scheduler.run_due)
    other.start()
    assert inside.wait(60)
    story.scheduler.once("a", story.task("second"))
    story.scheduler.run_due()
    assert story.ran == []
    go_on.set()
    other.join(60)
    story.scheduler.run_due()
    assert [name for name, _ in story.ran] == ["second"]
    assert story.scheduler.schedule == {}


def test_the_thread_runs_what_comes_due_by_the_systems_clock() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    scheduler.every("a", lambda: ran.append("a"), period_ms=1, delay_ms=0)
    before = set(threading.enumerate())
    scheduler.start()
    scheduler.start()
    until(lambda: len(ran) >= 3)
    assert scheduler.stop() is True
    count = len(ran)
    assert set(threading.enumerate()) <= before
    scheduler.wake()
    assert len(ran) == count
    scheduler.start()
    until(lambda: len(ran) > count)
    scheduler.stop()
    scheduler.stop()


def test_a_task_that_comes_while_the_thread_sleeps_wakes_it() -> None:
    scheduler = Scheduler()
    scheduler.every("later", lambda: None, period_ms=10**9, delay_ms=10**9)
    scheduler.start()
    ran = threading.Event()
    time.sleep(0.01)
    scheduler.once("now", ran.set)
    assert ran.wait(60)
    scheduler.every("hurried", ran.set, 10**9, 10**9)
    ran.clear()
    scheduler.hurry("hurried")
    assert ran.wait(60)
    scheduler.stop()


def test_the_thread_sees_a_passed_in_clock_move(clock: ManualClock) -> None:
    scheduler = Scheduler(clock)
    ran = threading.Event()
    scheduler.every("a", ran.set, period_ms=10**9, delay_ms=10**9)
    scheduler.start()
    time.sleep(0.01)
    clock.advance(10**9)
    assert ran.wait(60)
    scheduler.stop()


def test_the_thread_outlives_tasks_that_fail_in_any_way_and_a_clock_that_does(caplog: pytest.LogCaptureFixture) -> None:
    broken = False

    def clock() -> int:
        if broken:
            raise RuntimeError("no time")
        return time.time_ns() // 1_000_000

    def leave() -> None:
        sys.exit(3)

    scheduler = Scheduler(clock)
    ran: list[int] = []
    scheduler.every("leaves", leave, 1, 0)
    scheduler.every("runs", lambda: ran.append(1), 1, 0)
    with caplog.at_level(logging.CRITICAL + 1, logger="kstore"):
        scheduler.start()
        until(lambda: len(ran) > 3)
        assert scheduler.failures["leaves"].error == "SystemExit: 3"
        broken = True
        time.sleep(0.01)
        broken = False
        count = len(ran)
        until(lambda: len(ran) > count)
        scheduler.stop()


def test_stop_waits_for_the_task_that_runs_for_as_long_as_it_is_told() -> None:
    scheduler = Scheduler()
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        go_on.wait(60)

    scheduler.once("slow", slow)
    scheduler.start()
    assert inside.wait(60)
    assert scheduler.stop(timeout=0.01) is False
    go_on.set()
    assert scheduler.stop() is True


def test_a_task_may_stop_its_own_thread() -> None:
    scheduler = Scheduler()
    stopped: list[bool] = []
    scheduler.once("stop", lambda: stopped.append(scheduler.stop()))
    before = set(threading.enumerate())
    scheduler.start()
    until(lambda: stopped == [True] and set(threading.enumerate()) <= before)


def test_the_thread_keeps_no_scheduler_alive_and_ends_with_it() -> None:
    scheduler = Scheduler()
    scheduler.every("later", lambda: None, 10**9, 10**9)
    scheduler.start()
    worker = scheduler._worker
    assert worker is not None
    reference = weakref.ref(scheduler)
    time.sleep(0.01)
    del scheduler
    gc.collect()
    until(lambda: reference() is None)
    worker.thread.join(60)
    assert not worker.thread.is_alive()


def test_many_threads_add_and_run_without_losing_a_task() -> None:
    scheduler = Scheduler()
    counts = [0] * 4

    def work(number: int) -> None:
        def act() -> None:
            counts[number] += 1

        for _ in range(200):
            scheduler.once(f"task {number}", act)
            scheduler.run_due()
            until(lambda: f"task {number}" not in scheduler.schedule)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    scheduler.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    scheduler.stop()
    assert counts == [200] * 4


# Processes


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_tasks_and_no_thread_and_the_parent_goes_on() -> None:
    scheduler = Scheduler()
    ran: list[int] = []
    scheduler.every("a", lambda: ran.append(1), period_ms=1, delay_ms=0)
    scheduler.start()
    until(lambda: ran)
    pids = []
    for _ in range(20):  # whatever the thread is doing: the child must not find its lock taken
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                before = len(ran)
                scheduler.run_due()
                scheduler.stop()
                code = 0 if scheduler.schedule == {} and scheduler.due_ms == NEVER and len(ran) == before else 2
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 20
    count = len(ran)
    until(lambda: len(ran) > count)
    scheduler.stop()


@pytest.mark.parametrize("how", ["", "raise SystemExit(0)", "import os; os.kill(os.getpid(), 2)"])
def test_a_scheduler_that_is_left_running_does_not_hinder_the_interpreters_exit(how: str) -> None:
    script = (
        "import kstore.store.scheduler, threading, time\n"
        "ran = threading.Event()\n"
        "s = kstore.store.scheduler.Scheduler()\n"
        "s.every('busy', lambda: (ran.set(), time.sleep(0.001)) and None, 1, 0)\n"
        "s.start(); ran.wait(60)\n"
        f"{how}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "Fatal" not in done.stderr
    assert done.returncode == (-signal.SIGINT if "kill" in how else 0), done.stderr
