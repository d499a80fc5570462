"""Stories that plans tell with the numbers of the rules: quiet topics, full indexes, nights and great loads."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import kstore
from kstore.explained.explained_plan import Load
from kstore.planning.load_stretches import DAY_MS, stretches
from kstore.planning.simulation import MOST_WORK, Simulation
from tests.planning.lived_logs import START_MS, Batch, foretold, simulated, stretches_of

MINUTE, HOUR, YEAR = 60_000, 3_600_000, 365 * DAY_MS


def test_ten_minutes_become_twenty_four_and_twenty_five() -> None:
    """SEMANTICS 6.19: 540 s to fill, 600 s of retention, 300 s between checks, 60 s until the unlink."""
    plan = kstore.plan(rate=0.2, record_bytes=150, segment_bytes=16384, retention_ms=600_000)
    assert plan.life_ms is not None
    assert plan.freed_ms is not None
    assert (plan.life_ms.most, plan.freed_ms.most) == (24 * MINUTE, 25 * MINUTE)
    assert plan.life_ms.least > 10 * MINUTE
    assert (plan.segments[0].next_offset, plan.segments[0].last_ms) == (109, 540_000)
    assert plan.first_acting == "segment.bytes"
    assert plan.period_ms == 109 * 300_000  # 545 s for a segment and 300 s between checks


def test_a_segment_is_left_at_7314_bytes_with_a_full_time_index() -> None:
    """SEMANTICS 3.17: batches of 148 bytes, then 149, then 150."""
    sizes = [78 + (number >= 3) + (number >= 33) for number in range(60)]
    batches = [Batch(START_MS + 5000 * number, START_MS + 5000 * number, 1, size) for number, size in enumerate(sizes)]
    assert [len(batch.encoded()) for batch in batches][::30] == [148, 149]
    settings = {"segment_bytes": 16384, "index_interval_bytes": 150, "segment_index_bytes": 300}
    plan = simulated(stretches_of(batches), START_MS + 10**6, settings)
    first, second = foretold(plan)
    assert (first.size_bytes, first.offset_entries * 8, first.time_entries * 12) == (7314, 192, 288)
    assert second.base_offset == 49
    assert plan.rolls == {"time_index_full": 1}


def test_a_quiet_topic_keeps_its_records_for_seven_days() -> None:
    plan = kstore.plan(rate=1 / 300, retention_ms=10 * MINUTE)
    assert plan.life_ms is not None
    assert 7 * DAY_MS < plan.life_ms.most < 7 * DAY_MS + 25 * MINUTE
    assert plan.roll_reasons == {"time": 4}
    told = next(sentence for sentence in plan.advice if sentence.startswith("retention.ms = 10 minutes"))
    assert "keeps a record for up to 7 days: " in told
    assert "Set segment.ms to 5 minutes: then it is at most about 20 minutes." in told
    better = kstore.plan(rate=1 / 300, retention_ms=10 * MINUTE, segment_ms=5 * MINUTE)
    assert better.life_ms is not None
    assert better.life_ms.most <= 20 * MINUTE


def test_a_record_a_day_goes_with_the_check_after_its_time() -> None:
    plan = kstore.plan(rate=1 / 86_400, retention_ms=10 * MINUTE, duration=YEAR)
    assert plan.roll_reasons == {"retention": 365}
    assert plan.life_ms == (630_000, 630_000, 630_000)  # the check 30 s after the minute at which it is not yet too old
    assert plan.first_acting == "retention.ms"
    assert plan.period_ms == DAY_MS


def test_a_log_of_the_night_is_empty_before_the_morning() -> None:
    plan = kstore.plan(rate=10, idle="22:00-06:00", retention_ms=HOUR, segment_ms=10 * MINUTE, duration=YEAR)
    assert plan.period_ms == DAY_MS
    assert plan.disk_bytes.least == 4096  # the snapshot of the empty segment
    assert plan.live_segments.least == 1
    assert plan.simulated_ms is not None
    assert plan.simulated_ms < 4 * DAY_MS
    assert plan.load.idle == ((0, 6 * HOUR), (22 * HOUR, DAY_MS))
    morning = next(segment for segment in plan.segments if segment.base_offset > 0 and segment.first_ms > DAY_MS)
    assert morning.first_ms == DAY_MS + 6 * HOUR


def test_timestamps_behind_the_clock_shorten_the_life_of_a_record() -> None:
    prompt = kstore.plan(rate=0.1, retention_ms=HOUR, segment_bytes=1000)
    behind = kstore.plan(rate=0.1, retention_ms=HOUR, segment_bytes=1000, skew=20 * MINUTE)
    stamped = kstore.plan(
        rate=0.1, retention_ms=HOUR, segment_bytes=1000, skew=20 * MINUTE, message_timestamp_type="LogAppendTime"
    )
    assert prompt.life_ms is not None
    assert behind.life_ms is not None
    assert behind.life_ms.least < HOUR < prompt.life_ms.least
    assert stamped.life_ms == prompt.life_ms
    assert any("20 minutes behind" in note for note in behind.notes)
    rolls = kstore.plan(rate=1, segment_ms=10 * MINUTE, skew=20 * MINUTE)
    assert {segment.last_ms - segment.first_ms for segment in rolls.segments[:-1]} != {600_000}


def test_nothing_is_deleted_without_a_limit_and_the_growth_is_told() -> None:
    plan = kstore.plan(rate=1000, record_bytes=100, duration=YEAR)
    assert plan.steady_ms is None
    assert plan.life_ms is None
    assert plan.segment_count == 2938
    assert plan.advice[0].startswith("The log grows by 8.0 GiB a day, 2.9 TiB a year: nothing is ever deleted.")
    assert plan.disk[-1][0] == YEAR


def test_compaction_keeps_the_newest_record_of_each_key() -> None:
    plan = kstore.plan(
        rate=10, record_bytes=100, keys=100, cleanup_policy="compact", segment_bytes=20_000, duration=DAY_MS
    )
    assert plan.cleanings > 3000
    assert plan.life_ms is not None
    assert plan.life_ms.least >= 10_000  # it is superseded only after 100 records
    assert plan.disk_bytes.most < 200_000
    assert {segment.delete_reason for segment in plan.segments} <= {"compaction", None}
    # Without a cleaner the log grows.
    grown = kstore.plan(rate=10, keys=100, cleanup_policy="compact", log_cleaner_enable=False)
    assert grown.cleanings == 0
    assert "nothing compacts it. Set log.cleaner.enable to true" in grown.advice[0]


def test_a_full_map_of_keys_takes_several_rounds() -> None:
    plan = kstore.plan(
        rate=1000,
        record_bytes=100,
        keys=200_000,
        cleanup_policy="compact",
        segment_bytes=1 << 20,
        log_cleaner_dedupe_buffer_size=(1 << 20) + 1,
        duration=DAY_MS,
    )
    assert any("holds 39,321 keys and the log has 200,000" in sentence for sentence in plan.advice)


EXTREME: list[dict[str, Any]] = [
    {"rate": 10_000_000, "record_bytes": 1000, "batch_records": 1000, "retention_ms": 7 * DAY_MS},
    {"rate": 7_000_000, "record_bytes": 100, "retention_ms": 7 * DAY_MS},
    {"rate": 900_000_000, "record_bytes": 70, "retention_bytes": 1 << 40},
    {"rate": 1234.567, "record_bytes": 123.4, "batch_records": 7, "retention_ms": DAY_MS, "segment_bytes": 1 << 20},
    {"rate": 1234.567, "record_bytes": 99, "idle": "22:00-06:00", "retention_ms": DAY_MS, "segment_bytes": 1 << 20},
    {"rate": 1000, "segment_ms": 1, "retention_ms": HOUR},
    {"rate": 1000, "segment_ms": 3, "idle": ["00:00-01:00", "12:00-13:30"]},
    {"rate": 5, "retention_ms": 1, "log_retention_check_interval_ms": 1},
    {"rate": 0.3, "retention_ms": 1000, "retention_bytes": 100_000, "log_retention_check_interval_ms": 7},
    {"rate": 3000, "skew": HOUR, "segment_ms": MINUTE, "retention_ms": DAY_MS},
    {"rate": 1e-6, "retention_ms": 0},
    {"rate": 1, "record_bytes": 100, "segment_index_bytes": 12, "retention_ms": DAY_MS},
    {"rate": 100_000, "record_bytes": 100, "keys": 10_000_000, "cleanup_policy": "compact"},
    {"rate": 1000, "keys": 10_000_000, "cleanup_policy": "compact,delete", "segment_bytes": 1 << 20},
    {"rate": 1000, "keys": 1000, "cleanup_policy": "compact", "segment_ms": 1000, "min_compaction_lag_ms": HOUR},
    {"rate": 1000, "keys": 1000, "cleanup_policy": "compact", "max_compaction_lag_ms": 1, "log_cleaner_backoff_ms": 1},
]


@pytest.mark.parametrize("asked", EXTREME, ids=lambda asked: "-".join(f"{name}={asked[name]}" for name in asked)[:60])
def test_a_year_of_any_load_takes_a_bounded_number_of_steps(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Simulation] = []
    run = Simulation.run

    def kept(self: Simulation) -> None:
        made.append(self)
        run(self)

    monkeypatch.setattr(Simulation, "run", kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = kstore.plan(duration=YEAR, **asked)
    assert made[0].work < 2 * MOST_WORK + 5000
    assert json.loads(json.dumps(plan.to_dict()))["duration_ms"] == YEAR
    assert plan.disk_bytes.least <= plan.disk_bytes.typical <= plan.disk_bytes.most
    assert len(plan.segments) <= 1000
    assert len(plan.disk) <= 1200
    assert plan.segment_count >= 1
    batches = asked["rate"] * YEAR / 1000 / asked.get("batch_records", 1)
    if plan.life_ms is not None and "retention_ms" in asked and not asked.get("skew") and "keys" not in asked:
        assert plan.life_ms.least > 0
        assert plan.segment_count <= batches + 2


def test_what_is_cut_goes_on_at_the_same_rate() -> None:
    """A load whose segments do not fit the checks: the counts of a year are those of its rate."""
    plan = kstore.plan(rate=1_000_000, record_bytes=100, batch_records=100, retention_ms=7 * DAY_MS, duration=YEAR)
    assert plan.simulated_ms is not None
    assert plan.period_ms is None
    filled = 10**8 * YEAR // 1000 / (1 << 30)
    assert abs(plan.segment_count - filled) < filled / 1000
    assert any("Every event was simulated for" in note for note in plan.notes)


def test_segments_of_a_stretch_that_do_not_repeat_are_counted_about_right() -> None:
    load = Load(777.77, 100, 1, 5000)
    made = Simulation(
        kstore.LogConfig(segment_ms=1000),
        kstore.BrokerConfig(),
        stretches(load, START_MS),
        start_ms=START_MS,
        end_ms=START_MS + 10 * DAY_MS,
        load_period_ms=1,
    )
    made.run()
    seconds = 10 * DAY_MS / 1000
    assert seconds / 3 < made.rolls["time"] < 3 * seconds
    assert made.work < MOST_WORK


def each_day(plan: kstore.Plan) -> Iterator[int]:
    """The most bytes on the disk of each day."""
    for day in range(plan.disk[-1][0] // DAY_MS):
        yield max(value for ms, value in plan.disk if day * DAY_MS <= ms < (day + 1) * DAY_MS)


def test_the_disk_of_each_day_is_the_same_once_the_log_is_steady() -> None:
    plan = kstore.plan(rate=20, idle="20:00-04:00", retention_ms=DAY_MS, segment_ms=HOUR, duration=4 * DAY_MS)
    days = list(each_day(plan))
    assert len(days) >= 3
    assert max(days[1:]) - min(days[1:]) < days[1] / 50
    assert plan.disk_bytes.most == max(value for ms, value in plan.disk if ms >= (plan.steady_ms or 0))
