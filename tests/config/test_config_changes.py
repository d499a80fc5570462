"""Settings that change while the log is open take effect when they do in Kafka (SEMANTICS 13.13), row by row."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import kstore
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.files import checkpoint
from kstore.log.writing import housekeepers
from tests.conftest import ManualClock

VALUE = bytes(100)  # a batch of 170 bytes
BATCH = 170
LONGEST_SECONDS = 5.0  # that a log's thread sleeps while nothing is due


@pytest.fixture
def opened(partition: Path, clock: ManualClock) -> Callable[..., kstore.Log]:
    """`opened(segment_bytes=...)`: the log, under the clock."""
    return lambda **settings: kstore.Log.open(partition, clock=clock, **settings)


def bases(log: kstore.Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def put(log: kstore.Log, count: int = 1, *, rising: ManualClock | None = None, **how: Any) -> None:
    """Append records, all at the clock's now, or each a millisecond after the one before."""
    for _ in range(count):
        if rising is not None:
            rising.advance(1)
        log.append(VALUE, **how)


def test_the_batches_here_have_the_size_that_is_said(opened: Callable[..., kstore.Log]) -> None:
    with opened() as log:
        put(log)
        assert log.segments[0].size_bytes == BATCH


# Read at every append


def test_segment_bytes_holds_from_the_next_append_on(opened: Callable[..., kstore.Log]) -> None:
    with opened() as log:
        put(log, 3)
        log.update_config(segment_bytes=4 * BATCH)
        assert bases(log) == [0]
        put(log)
        assert bases(log) == [0]  # it fills the segment to the byte
        put(log)
        assert bases(log) == [0, 4]
        assert log.segments[1].roll_reason == "size"
        log.update_config(segment_bytes=2 * BATCH)
        put(log, 2)
        assert bases(log) == [0, 4, 6]
        log.update_config(segment_bytes=10 * BATCH)
        put(log, 5)
        assert bases(log) == [0, 4, 6]


def test_a_segment_that_is_larger_than_the_new_size_is_left_at_the_next_append(
    opened: Callable[..., kstore.Log],
) -> None:
    with opened() as log:
        put(log, 5)
        log.update_config(segment_bytes=BATCH)
        put(log)
        assert bases(log) == [0, 5]


def test_a_batch_that_no_segment_holds_any_more_is_refused_from_then_on(opened: Callable[..., kstore.Log]) -> None:
    with opened() as log:
        put(log)
        log.update_config(segment_bytes=BATCH - 1)
        with pytest.raises(kstore.RecordBatchTooLargeError):
            put(log)
        log.update_config(internal_segment_bytes=BATCH)  # which wins (SEMANTICS 13.14a)
        put(log)
        assert bases(log) == [0, 1]


def test_segment_ms_holds_from_the_next_append_on(opened: Callable[..., kstore.Log], clock: ManualClock) -> None:
    with opened() as log:
        put(log)
        clock.advance(1_000)
        log.update_config(segment_ms=1_000)
        put(log)
        assert bases(log) == [0]
        clock.advance(1)
        put(log)
        assert bases(log) == [0, 2]
        assert log.segments[1].roll_reason == "time"
        log.update_config(segment_ms=LogConfig().segment_ms)
        clock.advance(1_001)
        put(log)
        assert bases(log) == [0, 2]


def test_the_greatest_compaction_lag_ends_segments_of_compacted_logs_alone(
    opened: Callable[..., kstore.Log], clock: ManualClock
) -> None:
    """SEMANTICS 2.3."""
    with opened(max_compaction_lag_ms=10) as log:
        put(log, key=b"k")
        clock.advance(11)
        put(log, key=b"k")
        assert bases(log) == [0]
        log.update_config(cleanup_policy="compact,delete")
        put(log, key=b"k")
        assert bases(log) == [0, 2]


def test_max_message_bytes_holds_from_the_next_append_on(opened: Callable[..., kstore.Log]) -> None:
    with opened() as log:
        put(log)
        log.update_config(max_message_bytes=BATCH - 1)
        with pytest.raises(kstore.RecordTooLargeError):
            put(log)
        log.update_config(max_message_bytes=BATCH)
        put(log)
        log.append_many([VALUE] * 10)
        assert {batch.size_bytes <= BATCH for batch in log.read_batches()} == {True}


def test_the_timestamps_limits_and_type_hold_from_the_next_append_on(
    opened: Callable[..., kstore.Log], clock: ManualClock
) -> None:
    with opened() as log:
        now = clock.now
        put(log, timestamp=now - 10**9)
        log.update_config(message_timestamp_before_max_ms=10)
        put(log, timestamp=now - 10)
        with pytest.raises(kstore.InvalidTimestampError):
            put(log, timestamp=now - 11)
        log.update_config(message_timestamp_after_max_ms=10)
        put(log, timestamp=now + 10)
        with pytest.raises(kstore.InvalidTimestampError):
            put(log, timestamp=now + 11)
        log.update_config(message_timestamp_type="LogAppendTime")
        put(log, timestamp=now + 11)  # whatever it says
        log.update_config(message_timestamp_type="CreateTime")
        put(log, timestamp=now + 1)
        assert [record.timestamp - now for record in log.read()] == [-(10**9), -10, 10, 0, 1]
        kinds = [batch.timestamp_type for batch in log.read_batches()]
        assert kinds == ["CreateTime"] * 3 + ["LogAppendTime", "CreateTime"]


def test_the_compression_of_a_batch_is_that_of_its_append(opened: Callable[..., kstore.Log]) -> None:
    zeros = bytes(2_000)
    with opened() as log:
        for codec in ("lz4", "producer", "zstd", "uncompressed", "gzip", "snappy"):
            log.update_config(compression_type=codec)
            log.append(zeros)
            log.append_many([zeros] * 3)
        log.append_batch(kstore.encode_batch([(None, zeros, 0, ())], compression="lz4"))
        found = [batch.compression for batch in log.read_batches()]
        assert found[::2] == ["lz4", "none", "zstd", "none", "gzip", "snappy", "snappy"]
        assert found[1::2] == ["lz4", "none", "zstd", "none", "gzip", "snappy"]
        assert [record.value for record in log.read()] == [zeros] * 25


def test_the_level_of_compression_is_that_of_the_append(opened: Callable[..., kstore.Log]) -> None:
    rng = random.Random(1)
    text = b" ".join(rng.choice((b"commit", b"log", b"segment", b"batch", b"offset")) for _ in range(5_000))
    with opened(compression_type="zstd", compression_zstd_level=1) as log:
        log.append(text)
        log.update_config(compression_zstd_level=19)
        log.append(text)
        first, second = (batch.size_bytes for batch in log.read_batches())
        assert second < first


def test_the_policy_asks_for_keys_from_the_next_append_on(opened: Callable[..., kstore.Log]) -> None:
    with opened() as log:
        put(log)
        log.update_config(cleanup_policy="compact")
        for refused in (
            lambda: put(log),
            lambda: log.append_many([VALUE]),
            lambda: log.append_batch(kstore.encode_batch([VALUE])),
        ):
            with pytest.raises(kstore.InvalidRecordError):
                refused()
        put(log, key=b"k")
        with pytest.raises(kstore.PolicyViolationError):
            log.delete_records(1)
        log.update_config(cleanup_policy="delete")
        put(log)
        assert log.delete_records(1) == 1


def test_flush_messages_holds_from_the_next_append_on(opened: Callable[..., kstore.Log]) -> None:
    """SEMANTICS 12.4."""
    with opened() as log:
        put(log, 5)
        assert log.stats()["recovery_point"] == 0
        log.update_config(flush_messages=3)
        assert log.stats()["recovery_point"] == 0
        put(log)
        assert log.stats()["recovery_point"] == 6
        put(log, 2)
        assert log.stats()["recovery_point"] == 6
        put(log)
        assert log.stats()["recovery_point"] == 9
        log.update_config(flush_messages=LogConfig().flush_messages)
        put(log, 5)
        assert log.stats()["recovery_point"] == 9


def test_flush_ms_holds_at_once(opened: Callable[..., kstore.Log], clock: ManualClock) -> None:
    """SEMANTICS 12.5."""
    with opened() as log:
        put(log)
        clock.advance(99)
        log.update_config(flush_ms=100)
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == 0
        clock.advance(1)
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == 1
        put(log)
        clock.advance(50)
        log.update_config(flush_ms=50)
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == 2
        put(log)
        log.update_config(flush_ms=LogConfig().flush_ms)
        clock.advance(10**9)
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == 2


def test_a_thread_that_sleeps_hears_of_a_shorter_flush_ms(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEMANTICS 12.5: by the system's clock; here it would sleep for ever."""
    asleep = threading.Event()

    class Wishes(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            if timeout == LONGEST_SECONDS:
                timeout = None
                asleep.set()
            super().get(timeout=timeout)

    monkeypatch.setattr(housekeepers, "SimpleQueue", Wishes)
    with kstore.Log.open(partition) as log:
        put(log)
        log.roll()
        while log.stats()["recovery_point"] == 0:
            time.sleep(0.001)
        assert asleep.wait(60)
        put(log)
        until = time.monotonic() + 60
        log.update_config(flush_ms=1)
        while log.stats()["recovery_point"] == 1:
            assert time.monotonic() < until
            time.sleep(0.001)


# Read when a segment is opened


def test_the_index_interval_holds_from_the_next_segment_on(opened: Callable[..., kstore.Log]) -> None:
    with opened(index_interval_bytes=BATCH) as log:
        put(log, 3)
        log.update_config(index_interval_bytes=0)
        put(log, 4)
        assert log.segments[0].offset_index_entries == 3  # every second batch, as before
        log.roll()
        put(log, 4)
        assert log.segments[1].offset_index_entries == 3  # every batch but the first
        log.update_config(index_interval_bytes=10**6)
        log.truncate_to(9)
        put(log, 3)
        assert log.segments[1].offset_index_entries == 3
        log.roll()
        put(log, 3)
        assert log.segments[2].offset_index_entries == 0


def test_the_index_size_holds_from_the_next_segment_on(
    opened: Callable[..., kstore.Log], partition: Path, clock: ManualClock
) -> None:
    with opened(segment_index_bytes=1200, index_interval_bytes=0) as log:
        put(log)
        log.update_config(segment_index_bytes=36)
        put(log, 10, rising=clock)
        assert bases(log) == [0]
        assert sizes(partition, 0) == (1200, 1200)
        log.roll()
        assert sizes(partition, 11) == (32, 36)
        put(log, 4, rising=clock)
        assert bases(log) == [0, 11, 14]
        assert log.segments[2].roll_reason == "time_index_full"
        log.update_config(segment_index_bytes=2400)
        put(log, 2, rising=clock)
        assert bases(log) == [0, 11, 14]
        put(log, 5, rising=clock)
        assert bases(log) == [0, 11, 14, 17]
        assert sizes(partition, 17) == (2400, 2400)


def sizes(partition: Path, base: int) -> tuple[int, ...]:
    return tuple((partition / f"{base:020d}.{kind}").stat().st_size for kind in ("index", "timeindex"))


@pytest.mark.parametrize("index_bytes", [600, 1200, 2400])
def test_the_active_segments_indexes_get_the_current_size_when_the_log_is_opened(
    opened: Callable[..., kstore.Log], partition: Path, clock: ManualClock, index_bytes: int
) -> None:
    with opened(segment_index_bytes=1200, index_interval_bytes=0) as log:
        put(log, 4, rising=clock)
        log.roll()
        put(log, 4, rising=clock)
    assert sizes(partition, 4) == (24, 36)  # cut to what they hold
    with opened(segment_index_bytes=index_bytes, index_interval_bytes=0) as log:
        assert sizes(partition, 4) == (index_bytes, index_bytes)
        assert sizes(partition, 0) == (24, 36)
        put(log, 60, rising=clock)
        # As many as there is room for but the closing one; the first batch after an opening has none.
        assert log.segments[1].time_index_entries == min(3 + 59, index_bytes // 12 - 1)


def test_preallocation_begins_and_ends_with_a_segment(opened: Callable[..., kstore.Log], partition: Path) -> None:
    with opened(segment_bytes=100_000) as log:
        put(log)
        log.update_config(preallocate=True)
        assert (partition / f"{0:020d}.log").stat().st_size == BATCH
        log.roll()
        assert (partition / f"{1:020d}.log").stat().st_size == 100_000
        put(log)
        log.update_config(preallocate=False, segment_bytes=50_000)
        assert (partition / f"{1:020d}.log").stat().st_size == 100_000
        log.roll()
        assert (partition / f"{1:020d}.log").stat().st_size == BATCH
        assert (partition / f"{2:020d}.log").stat().st_size == 0


def test_jitter_is_drawn_once_for_a_segment_and_not_again_when_settings_change(
    opened: Callable[..., kstore.Log], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 2.6: an update neither draws the open segment's anew nor takes it away."""
    drawn: list[int] = []

    def most(limit: int) -> int:
        drawn.append(limit)
        return limit - 1

    monkeypatch.setattr("random.randrange", most)
    with opened(segment_ms=1_000) as log:
        put(log)
        log.update_config(segment_jitter_ms=400)
        assert drawn == []
        clock.advance(1_000)
        put(log)
        assert bases(log) == [0]  # without jitter, as when it was begun
        clock.advance(1)
        put(log)
        assert bases(log) == [0, 2]
        assert drawn == [400]
        log.update_config(segment_jitter_ms=0)
        clock.advance(1_000 - 399)
        put(log)
        assert bases(log) == [0, 2]
        clock.advance(1)
        put(log)
        assert bases(log) == [0, 2, 4]
        assert drawn == [400]


# Read when a deletion is scheduled


def test_the_delay_of_a_deletion_is_the_one_at_its_scheduling(
    opened: Callable[..., kstore.Log], partition: Path, clock: ManualClock
) -> None:
    """SEMANTICS 6.13."""

    def left() -> list[int]:
        return sorted({int(name.partition(".")[0]) for name in fs.listdir(partition) if name.endswith(".log.deleted")})

    with opened(file_delete_delay_ms=1_000) as log:
        for _ in range(3):
            put(log)
            log.roll()
        log.truncate_to(2)
        assert left() == [2, 3] or left() == [3]
        first = left()
        log.update_config(file_delete_delay_ms=10)
        clock.advance(999)
        log.run_housekeeping()
        assert left() == first
        log.truncate_to(1)
        second = left()
        assert len(second) > len(first)
        clock.advance(1)
        log.run_housekeeping()
        assert left() == [each for each in second if each not in first]
        clock.advance(9)
        log.run_housekeeping()
        assert left() == []


# Read at every pass of retention


def test_retention_is_what_is_set_when_the_pass_begins(opened: Callable[..., kstore.Log], clock: ManualClock) -> None:
    with opened() as log:
        for _ in range(3):
            put(log)
            log.roll()
            clock.advance(1_000)
        assert log.apply_retention() == []
        log.update_config(retention_ms=2_000)
        assert [segment.base_offset for segment in log.apply_retention()] == [0]
        log.update_config(retention_ms=-1, retention_bytes=BATCH)
        assert [segment.base_offset for segment in log.apply_retention()] == [1]
        log.update_config(retention_bytes=0, cleanup_policy="compact")
        assert log.apply_retention() == []
        log.update_config(cleanup_policy="delete")
        assert [segment.base_offset for segment in log.apply_retention()] == [2]


# The change itself


def test_a_change_that_is_refused_leaves_every_setting_as_it_was(opened: Callable[..., kstore.Log]) -> None:
    with opened(segment_bytes=2 * BATCH) as log:
        before = log.config
        for wrong in (
            {"segment_bytes": 13},
            {"retention": 1},
            {"min_compaction_lag_ms": 2, "max_compaction_lag_ms": 1},
        ):
            with pytest.raises(kstore.ConfigError):
                log.update_config(flush_messages=1, **wrong)
        assert log.config is before
        put(log, 3)
        assert bases(log) == [0, 2]
        assert log.stats()["recovery_point"] < 3


def test_what_was_set_at_opening_stays_beside_what_is_changed(opened: Callable[..., kstore.Log]) -> None:
    with opened(segment_bytes=1_000, retention_ms=5) as log:
        log.update_config(segment_bytes=2_000)
        assert (log.config.segment_bytes, log.config.retention_ms) == (2_000, 5)
        assert log.config.explicit == {"segment_bytes", "retention_ms"}


def test_settings_are_not_stored_with_a_lone_log(opened: Callable[..., kstore.Log], root: Path) -> None:
    with opened(segment_bytes=1_000) as log:
        log.update_config(segment_ms=7)
    assert sorted(path.name for path in root.iterdir() if path.is_file()) in (
        [".lock", checkpoint.RECOVERY_POINTS],
        [checkpoint.RECOVERY_POINTS],
    )
    with opened() as log:
        assert log.config == LogConfig()
