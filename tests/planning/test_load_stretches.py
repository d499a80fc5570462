"""A load by arithmetic is the same as its batches one by one, in time and in what it does to a log."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kstore
from kstore.explained.explained_plan import Load
from kstore.planning.given_load import idle_parts, make_load, span_ms
from kstore.planning.load_stretches import DAY_MS, Stretch, busy_ms, interval_ms, stretches
from kstore.planning.simulation import Simulation
from tests.conftest import examples
from tests.planning.lived_logs import START_MS, foretold

MOST_BATCHES = 2000
HOUR = 3_600_000


def one_by_one(load: Load, end_ms: int) -> list[Stretch] | None:
    """Each batch as a stretch of its own; None if there are many."""
    found: list[Stretch] = []
    for stretch in stretches(load, START_MS):
        last = stretch.first_at(end_ms + 1)
        if len(found) + last - stretch.first > MOST_BATCHES:
            return None
        for number in range(stretch.first, last):
            lag = stretch.time(number) - stretch.stamp(number)
            one = Stretch(number, number + 1, stretch.time(number), 0, 1, stretch.batch_bytes, stretch.records, (lag,))
            found.append(one)
        if last < stretch.end:
            return found
    return found


SETTINGS = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([2000, 10_000, 1 << 17, 1 << 30]),
        "segment_ms": st.sampled_from([1, 1000, 10_000, 300_000, DAY_MS, 1 << 40]),
        "segment_index_bytes": st.sampled_from([24, 60, 1000, 10 << 20]),
        "index_interval_bytes": st.sampled_from([0, 100, 250, 4096]),
        "retention_ms": st.sampled_from([-1, 0, 1000, 600_000, DAY_MS]),
        "retention_bytes": st.sampled_from([-1, -1, 0, 2000, 50_000]),
        "file_delete_delay_ms": st.sampled_from([1, 60_000]),
    }
)
IDLE = [(), ((0, HOUR),), ((0, 6 * HOUR), (20 * HOUR, DAY_MS)), ((40_000_000, 41_000_000),)]
LOADS = st.builds(
    Load,
    st.sampled_from([0.001, 0.2, 1, 3, 7, 50, 1234.567, 20_000]),
    st.sampled_from([70, 100, 1000.3]),
    st.sampled_from([1, 1, 2, 10, 100]),
    st.sampled_from([0, 0, 10, 1000, 60_000]),
    st.sampled_from(IDLE),
)


def ran(load_period_ms: int | None, source: Any, end_ms: int, chosen: dict[str, Any]) -> Simulation:
    config, every_ms = kstore.LogConfig(**chosen), max((end_ms - START_MS) // 200, 100)
    broker = kstore.BrokerConfig(log_retention_check_interval_ms=every_ms, log_initial_task_delay_ms=70)
    made = Simulation(config, broker, iter(source), start_ms=START_MS, end_ms=end_ms, load_period_ms=load_period_ms)
    made.run()
    return made


@given(LOADS, SETTINGS, st.integers(20, 1500), st.integers(0, 10**6))
@settings(examples(1))
def test_a_load_is_the_same_as_its_batches_one_by_one(
    load: Load, chosen: dict[str, Any], count: int, more_ms: int
) -> None:
    end_ms = START_MS + int(count * load.batch_records / load.rate * 1000) + more_ms
    batches = one_by_one(load, end_ms)
    if batches is None:
        return
    single = ran(None, batches, end_ms, chosen)
    together = ran(None, stretches(load, START_MS), end_ms, chosen)
    if not single.is_cut and not together.is_cut and together.log.is_exact:
        assert foretold(together) == foretold(single)
        assert together.rolls == single.rolls
        assert ran(DAY_MS if load.idle else 1, stretches(load, START_MS), end_ms, chosen).rolls == single.rolls


@given(LOADS, st.integers(0, 5))
def test_batches_come_at_their_rate_and_never_in_an_idle_part(load: Load, day: int) -> None:
    begun = list(islice(stretches(load, START_MS), 2 * day + 1))
    for before, after in pairwise(begun):
        assert before.end == after.first
        assert before.time(before.end - 1) <= after.time(after.first)
    for stretch in begun:
        first, last = stretch.first, min(stretch.end, stretch.first + 1000) - 1
        for number in {first, last}:
            assert stretch.first_at(stretch.time(number)) <= number < stretch.first_at(stretch.time(number) + 1)
            assert not any(begin <= stretch.time(number) % DAY_MS < end for begin, end in load.idle)
            assert 0 <= stretch.time(number) - stretch.stamp(number) <= load.skew_ms
        stamps = [stretch.stamp(number) for number in range(first, last + 1)]
        assert stretch.newest(first, last) == max(stamps)
        middle = sorted(stamps)[len(stamps) // 2]
        newer = [number for number in range(first + 1, last + 1) if stretch.stamp(number) > middle]
        if newer:
            assert stretch.first_newer(middle, first + 1) == newer[0]
    if not load.idle:
        [whole] = begun[:1]
        seconds = (whole.time(10**6) - whole.time(0)) / 1000
        assert seconds * load.rate == pytest.approx(10**6 * load.batch_records, rel=2e-5)


@pytest.mark.parametrize(
    ("rate", "records", "between"),
    [
        (0.2, 1, 5000),
        (3, 1, Fraction(1000, 3)),
        (1e6, 100, Fraction(1, 10)),
        (7e6, 1, Fraction(1, 7000)),
        (1 / 86_400, 1, DAY_MS),
        (0.0516332, 1, Fraction(38735, 2)),
    ],
)
def test_the_time_between_batches_is_a_simple_fraction(rate: float, records: int, between: Fraction) -> None:
    assert interval_ms(Load(rate, 100, records)) == between


def test_the_busy_part_of_a_time_is_counted() -> None:
    night = idle_parts("22:00-06:00")
    assert night == ((0, 6 * HOUR), (22 * HOUR, DAY_MS))
    assert busy_ms(night, START_MS, START_MS + 10 * DAY_MS) == 160 * HOUR
    assert busy_ms(night, START_MS + 7 * HOUR, START_MS + 8 * HOUR) == HOUR
    assert busy_ms(night, START_MS + 23 * HOUR, START_MS + 25 * HOUR) == 0
    assert busy_ms((), START_MS, START_MS + 5) == 5


def test_idle_parts_are_put_in_order_and_together() -> None:
    assert idle_parts(["12:00-13:00", "12:30-14:00", "01:00-02:00"]) == ((HOUR, 2 * HOUR), (12 * HOUR, 14 * HOUR))
    assert idle_parts([(HOUR, 2 * HOUR)]) == ((HOUR, 2 * HOUR),)
    assert idle_parts("00:00-06:00") == ((0, 6 * HOUR),)
    assert idle_parts("18:30-24:00") == ((18 * HOUR + HOUR // 2, DAY_MS),)
    assert idle_parts(()) == ()


@pytest.mark.parametrize(
    "idle", ["22-06", "25:00-26:00", "10:60-11:00", "06:00-06:00", "00:00-24:00", [(0, 90_000_000)], "x" * 1000]
)
def test_what_is_no_part_of_a_day_is_refused(idle: Any) -> None:
    with pytest.raises(ValueError, match="idle"):
        idle_parts(idle)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rate": 0}, "rate is 0; it must be above 0"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"rate": 2e9}, "at most 1,000,000,000 batches a second"),
        ({"rate": 1, "record_bytes": 60}, "makes 60 bytes of a batch with batch_records=1; 68 to"),
        ({"rate": 1, "batch_records": 0}, "batch_records is 0"),
        ({"rate": 1, "keys": 0}, "keys is 0"),
        ({"rate": 1, "skew": -1}, "skew is -1"),
        ({"rate": 1, "record_bytes": 1e9, "batch_records": 10}, "1000000"),
    ],
)
def test_what_is_no_load_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_load(**{"record_bytes": 100, **asked})


def test_numbers_of_a_wrong_type_are_refused() -> None:
    for asked in ({"rate": "1"}, {"rate": True}, {"rate": 1, "batch_records": 1.5}):
        with pytest.raises(TypeError):
            make_load(record_bytes=100, **asked)
    assert span_ms("skew", timedelta(seconds=2), 0) == 2000
