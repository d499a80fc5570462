"""Times on paper: in order, to scale but for long gaps, with round ticks; and times and spans in words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.explained.time_scale import TimeScale, bound, clock_of, duration, even_steps

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
TIMES = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20)


@given(TIMES, st.sampled_from([0.5, 1.0]))
def test_times_are_placed_in_their_order_between_the_edges(times: list[int], power: float) -> None:
    scale = TimeScale(times, 100, 500, power=power, least=20)
    places = [scale.x(time) for time in sorted(times)]
    assert places == sorted(places)
    assert all(100 <= x <= 500.001 for x in places)


@given(TIMES)
def test_ticks_are_far_enough_from_each_other(times: list[int]) -> None:
    ticks = TimeScale(times, 100, 500).ticks(60)
    places = [tick.x for tick in ticks]
    assert all(after - before >= 59 for before, after in pairwise(places))


def test_a_short_time_is_to_scale() -> None:
    scale = TimeScale([NOON, NOON + 10 * MINUTE, NOON + 40 * MINUTE], 0, 400)
    assert list(scale.breaks()) == []
    assert [scale.x(NOON + minutes * MINUTE) for minutes in (0, 10, 20, 40)] == [0, 100, 200, 400]


def test_a_record_from_2030_does_not_push_the_others_together() -> None:
    year_2030 = 1_900_000_000_000
    scale = TimeScale([NOON, NOON + 10 * MINUTE, NOON + 20 * MINUTE, year_2030], 0, 600)
    [(middle, length)] = scale.breaks()
    assert length == year_2030 - NOON - 20 * MINUTE
    assert scale.x(NOON + 10 * MINUTE) == pytest.approx(250)
    assert scale.x(NOON + 20 * MINUTE) == pytest.approx(500)
    assert middle == pytest.approx(550)


def test_a_span_that_is_whole_is_not_broken() -> None:
    times = [NOON, NOON + 5 * SECOND, NOON + DAY, NOON + DAY + 5 * SECOND]
    assert len(list(TimeScale(times, 0, 600).breaks())) == 1
    assert list(TimeScale(times, 0, 600, whole=[(NOON + 5 * SECOND, NOON + DAY)]).breaks()) == []


def test_times_of_one_moment_or_none_have_a_scale() -> None:
    assert TimeScale([NOON], 0, 100).x(NOON) == 50
    assert TimeScale([], 0, 100).ticks(10)


def test_ticks_are_round_and_say_the_day_once() -> None:
    ticks = TimeScale([NOON + 3 * MINUTE, NOON + 62 * MINUTE], 0, 500).ticks(60)
    assert [(tick.time, tick.day) for tick in ticks[:2]] == [("12:15", "2013-06-01"), ("12:30", "")]
    days = TimeScale([NOON, NOON + 30 * DAY], 0, 500).ticks(60)
    assert days[0].time == "2013-06-06"


def test_with_a_power_short_times_are_seen_beside_long_ones() -> None:
    scale = TimeScale([NOON, NOON + 7 * DAY, NOON + 7 * DAY + 5 * MINUTE], 0, 500, power=0.5, least=40)
    assert scale.x(NOON + 7 * DAY + 5 * MINUTE) - scale.x(NOON + 7 * DAY) >= 40


@pytest.mark.parametrize(
    ("milliseconds", "words", "short"),
    [
        (0, "0 ms", "0 ms"),
        (999, "999 ms", "999 ms"),
        (1000, "1 second", "1 s"),
        (59_600, "1 minute", "1 min"),
        (359_999, "6 minutes", "6 min"),
        (90 * MINUTE, "1 hour 30 minutes", "1 h 30 min"),
        (7 * DAY, "7 days", "7 d"),
        (7 * DAY + 30 * SECOND, "7 days", "7 d"),
        (366 * DAY, "1 year 1 day", "1 y 1 d"),
    ],
)
def test_a_span_is_written_in_its_two_largest_units(milliseconds: int, words: str, short: str) -> None:
    assert duration(milliseconds) == words
    assert duration(milliseconds, is_short=True) == short


@pytest.mark.parametrize(
    ("milliseconds", "most", "least"),
    [
        (0, "0 ms", "0 ms"),
        (4_520_000, "1 h 15 min 20 s", "1 h 15 min 20 s"),
        (4_520_001, "1 h 15 min 21 s", "1 h 15 min 20 s"),
        (2 * DAY - 1, "2 d", "1 d 23 h 59 min"),
        (366 * DAY + 1, "1 y 1 d 1 h", "1 y 1 d"),
    ],
)
def test_a_bound_of_a_span_is_true_of_it(milliseconds: int, most: str, least: str) -> None:
    assert bound(milliseconds, is_least=False) == most
    assert bound(milliseconds, is_least=True) == least


@given(st.integers(0, (1 << 63) - 1))
def test_any_span_has_at_most_two_units(milliseconds: int) -> None:
    assert len(duration(milliseconds).split()) in (2, 4)


def test_times_of_one_day_are_written_without_it() -> None:
    write = clock_of([NOON, None, -1, NOON + HOUR])
    assert [write(time) for time in (NOON, NOON + 5 * SECOND, None)] == ["12:00", "12:00:05", "-"]
    assert write(NOON + DAY) == "2013-06-02 12:00"
    assert clock_of([NOON, NOON + DAY])(NOON) == "2013-06-01 12:00"
    assert clock_of([NOON])(1 << 62) == f"{1 << 62} ms"


def test_even_times_have_seconds_if_one_of_them_has() -> None:
    write = clock_of([NOON, NOON + 5 * SECOND], is_even=True)
    assert [write(time) for time in (NOON, NOON + DAY)] == ["12:00:00", "2013-06-02 12:00:00"]
    assert clock_of([NOON, NOON + HOUR], is_even=True)(NOON) == "12:00"


@pytest.mark.parametrize("end", [1, 999, 25 * MINUTE, 400 * DAY, 10**15])
def test_even_steps_are_few_and_begin_at_zero(end: int) -> None:
    steps = list(even_steps(end, 8))
    assert steps[0] == 0
    assert len(steps) <= 9
    assert steps[-1] <= end
