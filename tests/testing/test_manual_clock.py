"""kstore/testing/clock.py: it stands still, moves when told, and what follows it is told."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from kstore.testing import ManualClock


def test_it_begins_at_the_systems_time_and_stands_still() -> None:
    before = time.time_ns() // 1_000_000
    clock = ManualClock()
    assert before <= clock() <= time.time_ns() // 1_000_000
    assert clock() == clock.now


@pytest.mark.parametrize(
    ("by", "milliseconds"),
    [
        (0, 0),
        (1, 1),
        (-5, -5),
        (timedelta(days=7), 604_800_000),
        (timedelta(microseconds=1999), 1),
        (timedelta(milliseconds=-1), -1),
    ],
)
def test_it_moves_by_milliseconds_or_a_timedelta(by: int | timedelta, milliseconds: int) -> None:
    clock = ManualClock(1000)
    assert clock.advance(by) == 1000 + milliseconds
    assert clock() == 1000 + milliseconds


def test_what_follows_it_is_called_after_each_move_until_the_block_ends() -> None:
    clock, seen = ManualClock(0), list[int]()
    with clock.followed_by(lambda: seen.append(clock.now)):
        clock.advance(5)
        clock.now = 10
        clock.advance(1)
    clock.advance(1)
    assert seen == [5, 11]


def test_an_error_of_a_follower_reaches_who_moves_the_clock() -> None:
    clock = ManualClock(0)

    def fail() -> None:
        raise ValueError("retention failed")

    with clock.followed_by(fail), pytest.raises(ValueError, match="retention failed"):
        clock.advance(1)
    assert clock.now == 1
