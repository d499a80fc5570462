"""How fast the cleaner's threads may read and write together (SEMANTICS 7.27); nothing sleeps here."""

from __future__ import annotations

import threading

import pytest

from kstore.store.cleaner_throttle import INTERVAL_NS, Throttle

MS = 1_000_000


class Time:
    """A clock in nanoseconds that a sleep moves."""

    def __init__(self) -> None:
        self.now = 5_000_000_000
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1e9)


@pytest.fixture
def time() -> Time:
    return Time()


def throttle(time: Time, limit: float) -> Throttle:
    return Throttle(limit, clock=time, sleep=time.sleep)


def test_the_rate_is_looked_at_once_an_interval_has_passed(time: Time) -> None:
    paced = throttle(time, 1000)
    paced(1_000_000)
    time.now += INTERVAL_NS
    paced(0)
    assert time.slept == []
    time.now += 1
    paced(0)
    assert len(time.slept) == 1


def test_it_sleeps_for_what_is_above_the_limit_and_begins_a_new_interval(time: Time) -> None:
    paced = throttle(time, 1000)
    time.now += 400 * MS
    paced(1000)
    assert time.slept == [pytest.approx(0.6)]
    time.now += 200 * MS
    paced(1000)  # too early for a look, and counted with the next
    time.now += 200 * MS
    paced(1000)
    assert time.slept == [pytest.approx(0.6), pytest.approx(1.6)]


@pytest.mark.parametrize(("count", "sleeps"), [(399, 0), (400, 0), (401, 1)])
def test_a_rate_at_the_limit_does_not_sleep(time: Time, count: int, sleeps: int) -> None:
    paced = throttle(time, 1000)
    time.now += 400 * MS
    paced(count)
    assert len(time.slept) == sleeps


@pytest.mark.parametrize("limit", [1.0, 1000.0, 123_456.0])
def test_over_a_long_time_the_limit_holds(time: Time, limit: float) -> None:
    paced = throttle(time, limit)
    began, total = time.now, 0
    for _ in range(1000):
        time.now += 10 * MS
        paced(50_000)
        total += 50_000
    spent = (time.now - began) / 1e9
    assert total / spent <= limit * 1.1 or not time.slept


def test_without_a_limit_nothing_sleeps(time: Time) -> None:
    paced = throttle(time, 1.7976931348623157e308)
    for _ in range(10):
        time.now += 400 * MS
        paced(2**40)
    assert time.slept == []


def test_stopping_wakes_the_thread_that_sleeps_and_no_other_sleeps_after() -> None:
    ticks = iter(range(0, 10**15, INTERVAL_NS + 1))
    paced = Throttle(1e-6, clock=lambda: next(ticks))
    thread = threading.Thread(target=paced, args=(1000,))
    thread.start()
    paced.stop()
    thread.join(60)
    assert not thread.is_alive()
    paced(1000)
