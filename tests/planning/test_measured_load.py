"""The load that is measured on a log is the one that was appended, in a bounded number of reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ConfigError
from kstore.planning.measured_load import MeasuredLoad, busiest, measured
from tests.conftest import ManualClock
from tests.planning.lived_logs import START_MS

pytestmark = pytest.mark.usefixtures("no_syncs")
HOUR, DAY = 3_600_000, 86_400_000


def filled(
    path: Path, times: range, *, key: Callable[[int], bytes | None] = lambda number: None, records: int = 1
) -> None:
    """A log with a batch at each of these times, apart from the nights."""
    clock = ManualClock(START_MS)
    with kstore.Log.open(path, clock=clock, segment_bytes=1 << 20) as log:
        for number, ms in enumerate(times):
            clock.now = START_MS + ms
            log.append_many([(key(number), bytes(40), clock.now, ())] * records)


def measure(path: Path, **settings: Any) -> MeasuredLoad:
    with kstore.Log.open(path, "r", config=kstore.LogConfig(**settings)) as log:
        return measured(log)


def test_rate_sizes_and_batches_are_those_of_the_appends(root: Path) -> None:
    filled(root / "a-0", range(0, 2 * HOUR, 5000), records=3)
    found = measure(root / "a-0")
    assert found.load.rate == pytest.approx(0.6, rel=0.01)
    assert found.load.batch_records == 3
    with kstore.Log.open(root / "a-0", "r") as log:
        size = sum(segment.size_bytes for segment in log.segments)
        assert found.load.record_bytes == pytest.approx(size / log.log_end_offset, rel=0.01)
        assert found.records == log.log_end_offset
    assert (found.load.skew_ms, found.load.idle, found.load.keys) == (0, (), None)
    assert (found.first_timestamp, found.last_timestamp) == (START_MS, START_MS + 2 * HOUR - 5000)
    assert "2026-01-01T00:00:00.000Z to 2026-01-01T01:59:55.000Z" in str(found)


def test_nights_are_found_and_do_not_lower_the_rate(root: Path) -> None:
    times = [ms for ms in range(0, 4 * DAY, 60_000) if 6 * HOUR <= ms % DAY < 22 * HOUR]
    clock = ManualClock(START_MS)
    with kstore.Log.open(root / "a-0", clock=clock) as log:
        for ms in times:
            clock.now = START_MS + ms
            log.append(b"x")
    found = measure(root / "a-0")
    assert found.load.idle == ((0, 6 * HOUR), (22 * HOUR, DAY))
    assert found.load.rate == pytest.approx(1 / 60, rel=0.01)


def test_gaps_of_a_sparse_topic_are_chance_and_no_idle_parts(root: Path) -> None:
    drawn = random.Random(7)
    clock = ManualClock(START_MS)
    with kstore.Log.open(root / "a-0", clock=clock) as log:
        for ms in sorted(drawn.randrange(7 * DAY) for _ in range(200)):
            clock.now = START_MS + ms
            log.append(b"x")
    assert measure(root / "a-0").load.idle == ()


def test_timestamps_behind_earlier_ones_are_a_skew(root: Path) -> None:
    rng = random.Random(1)
    with kstore.Log.open(root / "a-0", message_timestamp_after_max_ms=1 << 60) as log:
        for number in range(500):
            log.append(b"x", timestamp=START_MS + 1000 * number - rng.randrange(30_000))
    assert 20_000 < measure(root / "a-0").load.skew_ms < 31_000


@pytest.mark.parametrize("keys", [5, 200])
def test_keys_are_estimated_from_a_sample(root: Path, keys: int) -> None:
    rng = random.Random(2)
    filled(root / "a-0", range(0, 3_000_000, 1000), key=lambda number: b"%d" % rng.randrange(keys))
    found = measure(root / "a-0", cleanup_policy="compact")
    assert found.load.keys == pytest.approx(keys, rel=0.1)
    assert "the last 3,000 records have" in found.notes[0]


def test_different_keys_are_said_to_be_perhaps_more(root: Path) -> None:
    filled(root / "a-0", range(0, 100_000, 1000), key=lambda number: b"%d" % number)
    found = measure(root / "a-0", cleanup_policy="compact")
    assert found.load.keys == 100
    assert "there may be more keys" in found.notes[0]


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_the_clean_part_of_a_compacted_log_tells_its_keys(root: Path) -> None:
    clock = ManualClock(START_MS)
    with kstore.Store.open(root, clock=clock, background=False, segment_bytes=4000, cleanup_policy="compact") as store:
        store.create_topic("t", 1)
        log = store.log("t", 0)
        for number in range(1000):
            clock.now += 1000
            log.append(b"x" * 20, key=b"%04d" % (number % 30))
            if number % 15 == 0:
                store.run_housekeeping()
    found = measure(root / "t-0", cleanup_policy="compact")
    assert found.load.keys == pytest.approx(30, rel=0.1)
    assert "the clean part has about" in found.notes[0]
    assert found.load.rate == pytest.approx(1, rel=0.1)  # by offsets: most records are gone


def test_a_log_without_two_times_cannot_be_measured(root: Path) -> None:
    kstore.Log.open(root / "a-0").close()
    with pytest.raises(ConfigError, match="no record with a timestamp"):
        measure(root / "a-0")
    with kstore.Log.open(root / "b-0", clock=ManualClock(START_MS)) as log:
        log.append(b"x")
        log.append(b"x")
    with pytest.raises(ConfigError, match=r"all from 2026-01-01T00:00:00\.000Z"):
        measure(root / "b-0")


def test_the_busiest_has_the_most_bytes_a_second(root: Path) -> None:
    filled(root / "a-0", range(0, HOUR, 5000))
    filled(root / "b-0", range(0, HOUR, 10_000), records=5)
    loads = [measure(root / name) for name in ("a-0", "b-0")]
    assert busiest(loads).path.endswith("b-0")


def test_a_long_log_is_read_at_a_few_places_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(root / "a-0", range(0, 30_000_000, 1000), records=2)
    read = 0
    batches = kstore.Log.read_batches

    def counted(self: kstore.Log, offset: int | None = None, **options: Any) -> Iterator[kstore.RecordBatch]:
        nonlocal read
        for batch in batches(self, offset, **options):
            read += 1
            yield batch

    monkeypatch.setattr(kstore.Log, "read_batches", counted)
    assert measure(root / "a-0").load.rate == pytest.approx(2, rel=0.01)
    assert 500 < read <= 16 * 64 + 16


def test_what_was_measured_makes_the_plan_of_the_load(root: Path) -> None:
    filled(root / "a-0", range(0, 6 * HOUR, 5000))
    found = measure(root / "a-0").load
    asked: dict[str, Any] = {"record_bytes": found.record_bytes, "segment_bytes": 16384, "retention_ms": 600_000}
    like, given = kstore.plan(rate=found.rate, **asked), kstore.plan(rate=0.2, **asked)
    assert like.life_ms is not None
    assert given.life_ms is not None
    assert like.life_ms.most == pytest.approx(given.life_ms.most, rel=0.02)
