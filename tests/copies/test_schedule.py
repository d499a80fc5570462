"""schedule.py: what is looked at when, by a passed-in time."""

from __future__ import annotations

import pytest

from kstore.copies.replication.schedule import COLD_SECONDS, HOT_SECONDS, LOOK_SECONDS, LOOK_SHARE, Schedule


def still(count: int, now: float = 0.0) -> Schedule[int]:
    """Things that were all looked at, and had no news."""
    schedule: Schedule[int] = Schedule()
    for thing in range(count):
        schedule.add(thing)
    assert sorted(schedule.saw(now, [])) == list(range(count))
    return schedule


def test_a_thing_that_was_added_is_looked_at_and_then_rests() -> None:
    schedule: Schedule[int] = Schedule()
    schedule.add(7)
    assert schedule.due(0) == [7]
    assert schedule.saw(0, []) == [7]
    assert schedule.due(0) == []


def test_what_changes_is_looked_at_each_time_until_it_stands_still_for_a_while() -> None:
    schedule = still(2)
    schedule.wake([1])
    assert schedule.due(0.1) == [1]
    assert schedule.saw(0.1, [1]) == []
    assert schedule.due(0.2) == [1]
    assert schedule.saw(0.1 + HOT_SECONDS, []) == []
    assert schedule.saw(0.2 + HOT_SECONDS, []) == [1]
    assert 1 not in schedule.due(0.2 + HOT_SECONDS)


def test_what_is_hot_or_gone_is_not_woken() -> None:
    schedule = still(2)
    schedule.wake([0])
    schedule.saw(5, [0])
    schedule.wake([0])
    assert schedule.saw(5.5, []) == [], "a wake has not made it older"
    schedule.remove(1)
    schedule.wake([1])
    assert schedule.due(5.5) == [0]


@pytest.mark.parametrize("count", [1, 10, 100, 1000])
def test_looks_at_what_stands_still_take_a_small_share_and_pass_over_nothing(count: int) -> None:
    schedule = still(count)
    turn = max(COLD_SECONDS, LOOK_SHARE * LOOK_SECONDS * count)
    seen: list[int] = []
    steps = int(4 * turn / 0.02)
    for step in range(steps):
        seen += schedule.due(step * 0.02)
    assert set(seen) == set(range(count))
    assert len(seen) * LOOK_SECONDS <= max(steps * 0.02 / LOOK_SHARE, 4 * count * LOOK_SECONDS)


def test_what_wakes_and_rests_again_and_again_is_held_once() -> None:
    schedule = still(3)
    for turn in range(1, 50):
        schedule.wake([0, 1])
        schedule.saw(turn * 2.0, [])
    assert sorted(schedule.due(1000)) == [0, 1, 2]
