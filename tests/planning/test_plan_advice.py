"""What plans advise, and that they advise nothing where all is well."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ConfigError

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
GOOD: dict[str, Any] = {
    "rate": 100,
    "record_bytes": 1000,
    "segment_bytes": 64 << 20,
    "retention_ms": 7 * DAY,
}


def said(**asked: Any) -> str:
    return "\n".join(kstore.plan(**asked).advice)


def test_good_settings_get_no_advice() -> None:
    assert said(**GOOD) == ""


def test_a_check_that_comes_too_rarely_is_named() -> None:
    told = said(rate=1000, segment_bytes=1 << 20, retention_ms=2 * MINUTE)
    assert "retention.ms = 2 minutes keeps a record for up to 7 minutes" in told
    assert "Set log.retention.check.interval.ms to 1 minute." in told


def test_a_segment_that_fills_slowly_is_named_with_its_size() -> None:
    told = said(rate=1, record_bytes=1000, segment_bytes=10_000_000, retention_ms=HOUR)
    assert "a segment takes 2 hours 47 minutes to fill, with segment.bytes = 9.5 MiB" in told
    assert "Set segment.ms to 30 minutes: then it is at most about 1 hour 35 minutes." in told
    better = kstore.plan(rate=1, record_bytes=1000, segment_bytes=10_000_000, retention_ms=HOUR, segment_ms=30 * MINUTE)
    assert better.life_ms is not None
    assert better.life_ms.most <= 95 * MINUTE
    assert not any("keeps a record for up to" in sentence for sentence in better.advice)


def test_a_size_that_acts_before_the_age_is_named() -> None:
    told = said(**{**GOOD, "retention_bytes": 1 << 30})
    assert "retention.bytes = 1.0 GiB acts before retention.ms = 7 days: records stay for" in told
    assert "takes 56.3 GiB." in told


def test_an_index_that_fills_first_is_named_with_what_is_needed() -> None:
    asked = {**GOOD, "segment_bytes": 1 << 20, "segment_index_bytes": 600, "retention_ms": DAY}
    plan = kstore.plan(**asked)
    [told] = [sentence for sentence in plan.advice if "fills first" in sentence]
    assert "The time index fills first: segments are left at 246,000 bytes" in told
    wanted, interval = (int(number.replace(",", "")) for number in re.findall(r" to ([0-9,]*[0-9])", told))
    better = kstore.plan(**{**asked, "segment_index_bytes": wanted})
    assert better.roll_reasons.keys() == {"size"}
    spaced = kstore.plan(**{**asked, "index_interval_bytes": interval})
    assert spaced.roll_reasons.keys() == {"size"}


def test_a_size_that_no_segment_reaches_is_named() -> None:
    told = said(rate=1, record_bytes=100, segment_ms=HOUR, retention_ms=DAY)
    assert "segment.bytes = 1.0 GiB is never reached: segments are left by segment.ms with at most 351.7 KiB." in told
    told = said(rate=1, record_bytes=100, keys=10, cleanup_policy="compact", max_compaction_lag_ms=HOUR, duration=DAY)
    assert "segments are left by max.compaction.lag.ms" in told


def test_many_small_files_are_named_with_the_setting_to_raise() -> None:
    told = said(rate=10, record_bytes=100, segment_ms=MINUTE, retention_ms=7 * DAY)
    assert "segments of at most 58.7 KiB at the same time, in 40,286 files for one partition." in told
    assert "Raise segment.ms, now 1 minute." in told
    told = said(rate=10, record_bytes=100, segment_bytes=16384, retention_ms=7 * DAY)
    assert "Raise segment.bytes, now 16.0 KiB." in told


def test_limits_that_are_not_reached_in_the_planned_time_are_named() -> None:
    told = said(rate=1, retention_ms=60 * DAY, retention_bytes=1 << 40)
    assert "retention.ms = 60 days and retention.bytes = 1.0 TiB do not act within the planned 30 days." in told
    told = said(rate=1, cleanup_policy="")
    assert "cleanup.policy has no delete, so that nothing is ever deleted." in told
    told = said(rate=1, keys=10, cleanup_policy="compact", min_cleanable_dirty_ratio=1.0)
    assert "compaction removes nothing within 30 days." in told


def test_a_large_active_segment_of_a_compacted_log_is_named() -> None:
    told = said(rate=100, record_bytes=100, keys=1000, cleanup_policy="compact", duration=90 * DAY)
    assert "for 97.7 KiB of newest records: the active segment is never cleaned." in told


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"rate": 1, "cleanup_policy": "compact"}, ConfigError, "a plan needs keys"),
        ({"rate": 1, "record_bytes": 2 << 20}, ConfigError, "max.message.bytes = 1048588 refuses every batch"),
        ({"rate": 1, "segment_bytes": 500}, ConfigError, "segment.bytes = 500 refuses every batch"),
        ({"rate": 1, "skew": HOUR, "message_timestamp_before_max_ms": MINUTE}, ConfigError, "60000 refuses records"),
        ({"rate": 1, "segment_index_bytes": 4}, ConfigError, "segment.index.bytes = 4"),
        ({"rate": 1, "segment_byte": 4}, ConfigError, "did you mean 'segment_bytes'"),
        ({"rate": 1, "config": {"segment.byte": 4}}, ConfigError, "segment.byte"),
        ({"rate": 1, "config": 5}, TypeError, "config must be"),
        ({"rate": 1, "duration": 0}, ValueError, "duration is 0"),
        ({"rate": 1, "start": datetime(2026, 1, 1)}, kstore.InvalidTimestampError, "without a time zone"),
    ],
)
def test_what_cannot_be_planned_is_refused(asked: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        kstore.plan(**asked)


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_settings_are_taken_in_all_forms(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.segment.bytes=16384\nlog.retention.minutes=10\n")
    named = {"segment.bytes": "16384", "log.retention.ms": "600000", "log.retention.check.interval.ms": 300_000}
    forms: list[dict[str, Any]] = [
        {"config": tmp_path / "server.properties"},
        {"config": named},
        {"config": kstore.LogConfig(segment_bytes=16384, retention_ms=600_000)},
        {"segment_bytes": 16384, "retention_ms": 600_000, "log_retention_check_interval_ms": 300_000},
        {"config": {**named, "segment.bytes": 1 << 20}, "segment_bytes": 16384},
    ]
    plans = [kstore.plan(rate=0.2, record_bytes=150, **form) for form in forms]
    assert {plan.life_ms for plan in plans} == {plans[0].life_ms}
    assert plans[1].given == {"segment.bytes", "retention.ms", "log.retention.check.interval.ms"}
    assert plans[0].settings["retention.ms"] == 600_000


def test_the_start_counts_with_idle_parts() -> None:
    asked: dict[str, Any] = {"rate": 1, "idle": "00:00-12:00", "duration": timedelta(days=2), "retention_ms": HOUR}
    midnight, noon = kstore.plan(**asked), kstore.plan(**asked, start=datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert midnight.segments[0].first_ms == 12 * HOUR
    assert noon.segments[0].first_ms == 0
    assert midnight.duration_ms == 2 * DAY
