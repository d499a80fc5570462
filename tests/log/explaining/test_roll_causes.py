"""Why a log rolled: what it remembers, and what a reader infers after it was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.explained.explanation import ExplainedSegment
from kstore.log.explaining.described_segments import Described
from kstore.log.explaining.roll_causes import RollRules
from kstore.log.segments.segment import Segment
from tests.conftest import ManualClock
from tests.log.segments.test_retention_story import canary

pytestmark = pytest.mark.usefixtures("no_syncs")

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
NOW = 1_700_000_000_000


def rolls(log: kstore.Log) -> list[tuple[int, str | None, bool]]:
    return [(each.base_offset, each.roll_reason, each.is_roll_inferred) for each in log.explain().segments]


def both(partition: Path, append: Any, **settings: Any) -> tuple[list[ExplainedSegment], list[ExplainedSegment]]:
    """What a log says of itself after `append(log)`, and what a reader says of it once it is closed."""
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        append(log)
        own = list(log.explain().segments)
    with kstore.Log.open(partition, mode="r", clock=ManualClock(NOW), **settings) as log:
        return own, list(log.explain().segments)


def one_record(log: kstore.Log, number: int, timestamp: int | None = None, size: int = 100) -> None:
    log.append(b"v" * (size - 70), timestamp=NOW + number if timestamp is None else timestamp)


def same(own: list[ExplainedSegment], read: list[ExplainedSegment]) -> list[str | None]:
    """The reasons, which both sides say, and one only infers."""
    assert [each.roll_reason for each in own] == [each.roll_reason for each in read]
    assert [each.is_roll_inferred for each in own] == [False] * len(own)
    assert [each.is_roll_inferred for each in read] == [True] * (len(read) - 1) + [False]
    assert [each.roll_explanation for each in own[:-1]] == [each.roll_explanation for each in read[:-1]]
    assert [each.rolled_ms for each in own] == [each.rolled_ms for each in read]
    return [each.roll_reason for each in own]


def test_the_segment_of_16314_bytes_was_full(partition: Path) -> None:
    """SEMANTICS 3.16: 109 records, and the next batch of 150 bytes does not fit."""

    def append(log: kstore.Log) -> None:
        for offset in range(110):
            log.append(canary(offset), timestamp=NOW + offset * 5 * SECOND)

    own, read = both(partition, append, segment_bytes=16384)
    assert same(own, read) == ["size", None]
    assert (
        own[0].roll_explanation == "its 16314 bytes and the next batch of 150 bytes are more than segment.bytes = 16384"
    )
    assert own[0].rolled_ms == NOW + 109 * 5 * SECOND
    assert own[1].rolled_ms is None


def test_the_segment_of_7314_bytes_filled_its_time_index(partition: Path) -> None:
    """SEMANTICS 3.17: 49 records, 24 entries, and the 25th slot of the time index is reserved."""

    def append(log: kstore.Log) -> None:
        for offset in range(60):
            log.append(canary(offset), timestamp=NOW + offset)

    own, read = both(partition, append, segment_bytes=16384, index_interval_bytes=150, segment_index_bytes=300)
    assert (own[0].next_offset, own[0].size_bytes, own[0].time_index_entries) == (49, 7314, 24)
    assert same(own, read) == ["time_index_full", None]
    assert own[0].roll_explanation == (
        "its time index is full: 24 entries; segment.index.bytes = 300 has room for 25, and one is reserved for the "
        "roll"
    )


def test_equal_timestamps_fill_the_offset_index(partition: Path) -> None:
    def append(log: kstore.Log) -> None:
        for _ in range(60):
            one_record(log, 0, NOW)

    own, read = both(partition, append, index_interval_bytes=0, segment_index_bytes=96)
    assert same(own, read)[0] == "offset_index_full"
    assert own[0].roll_explanation == "its offset index is full: 12 entries in segment.index.bytes = 96"


def test_segment_ms_counts_from_the_first_batch(partition: Path) -> None:
    def append(log: kstore.Log) -> None:
        for minute in (0, 4, 5, 11):
            one_record(log, 0, NOW + minute * MINUTE)

    own, read = both(partition, append, segment_ms=5 * MINUTE)
    assert same(own, read) == ["time", None]
    assert own[0].next_offset == 3
    assert own[0].roll_explanation == (
        "the next batch is from 2023-11-14T22:24:20.000Z, 660000 ms (11 min) after its first batch; "
        "segment.ms = 300000 ms (5 min)"
    )


def test_a_compacted_log_rolls_by_its_lag(partition: Path) -> None:
    def append(log: kstore.Log) -> None:
        for minute in (0, 11):
            log.append(b"v", key=b"k", timestamp=NOW + minute * MINUTE)

    settings = {
        "cleanup_policy": "compact",
        "max_compaction_lag_ms": 10 * MINUTE,
        "message_timestamp_after_max_ms": HOUR,
    }
    own, read = both(partition, append, **settings)
    assert same(own, read) == ["time", None]
    assert own[0].roll_explanation.endswith("; max.compaction.lag.ms = 600000 ms (10 min)")


def test_an_offset_that_no_entry_can_hold_rolls(partition: Path) -> None:
    def append(log: kstore.Log) -> None:
        for offset in (0, 2**31):
            log.append_as_follower(
                kstore.encode_batch([(None, b"v", NOW, None)], base_offset=offset, partition_leader_epoch=0)
            )

    own, read = both(partition, append)
    assert same(own, read) == ["offset_range", None]
    assert "2147483648 offsets after its base offset" in own[0].roll_explanation


def test_of_two_limits_the_first_of_kafkas_order_is_named(partition: Path) -> None:
    """SEMANTICS 2.2: the size is tried before the time."""

    def append(log: kstore.Log) -> None:
        for minute in (0, 60):
            one_record(log, 0, NOW + minute * MINUTE)

    own, read = both(partition, append, segment_bytes=150, segment_ms=5 * MINUTE)
    assert same(own, read) == ["size", None]


def test_a_call_of_roll_is_known_only_to_the_log_itself(partition: Path) -> None:
    def append(log: kstore.Log) -> None:
        one_record(log, 0)
        log.roll()
        one_record(log, 1)

    own, read = both(partition, append)
    assert (own[0].roll_reason, own[0].is_roll_inferred) == ("explicit", False)
    assert (read[0].roll_reason, read[0].is_roll_inferred) == (None, True)
    assert read[0].roll_explanation == (
        "no limit of these settings explains it; it may be a call of roll or a bulk load, other settings at that time, "
        "or an append of several batches, which counts as one"
    )


@pytest.mark.parametrize(("more", "reason"), [(0, None), (1, "size")])
def test_a_batch_that_just_fits_is_no_reason(partition: Path, more: int, reason: str | None) -> None:
    """SEMANTICS 2.2: a segment may have exactly `segment.bytes`."""

    def append(log: kstore.Log) -> None:
        one_record(log, 0)
        if more == 0:
            log.roll()
        one_record(log, 1)

    size = kstore.encode_batch([b"v" * 30])
    _, read = both(partition, append, segment_bytes=2 * len(size) - more)
    assert [each.next_offset for each in read] == [1, 2]
    assert read[0].roll_reason == reason


@pytest.mark.parametrize(("more", "reason"), [(0, None), (1, "time")])
def test_a_batch_of_the_last_millisecond_is_no_reason(partition: Path, more: int, reason: str | None) -> None:
    def append(log: kstore.Log) -> None:
        one_record(log, 0)
        if more == 0:
            log.roll()
        one_record(log, MINUTE + more)

    _, read = both(partition, append, segment_ms=MINUTE)
    assert [each.next_offset for each in read] == [1, 2]
    assert read[0].roll_reason == reason


def test_the_entry_of_the_roll_itself_has_not_filled_the_index(partition: Path) -> None:
    """SEMANTICS 2.9, 3.17: it goes into the reserved slot, or the last free one."""

    def append(log: kstore.Log) -> None:
        for number in range(4):
            one_record(log, number)
        assert log.segments[0].time_index_entries == 1
        log.roll()
        one_record(log, 4)

    _, read = both(partition, append, segment_index_bytes=36, index_interval_bytes=150)
    assert read[0].time_index_entries == 2, "as many as fill an index of three slots"
    assert read[0].roll_reason is None


def test_without_timestamps_segment_ms_counts_from_the_creation(partition: Path) -> None:
    """SEMANTICS 2.4: which no file tells."""
    clock = ManualClock(NOW)
    with kstore.Log.open(partition, clock=clock, segment_ms=MINUTE) as log:
        log.append(b"v", timestamp=-1)
        clock.advance(MINUTE + 1)
        log.append(b"v", timestamp=-1)
        assert rolls(log) == [(0, "time", False), (1, None, False)]
        assert log.explain().segments[0].roll_explanation == (
            "its records have no timestamps, and it was made more than segment.ms = 60000 ms (1 min) before the roll"
        )
    with kstore.Log.open(partition, mode="r", segment_ms=MINUTE) as log:
        first = log.explain().segments[0]
        assert (first.roll_reason, first.rolled_ms) == (None, None)
        assert "segment.ms, which counts from the creation of a segment without timestamps" in first.roll_explanation


def test_a_jitter_may_explain_an_early_roll(partition: Path) -> None:
    """SEMANTICS 2.6: the jitter is drawn anew for each segment, and no file holds it."""

    def append(log: kstore.Log) -> None:
        for second in range(0, 600, 7):
            one_record(log, 0, NOW + second * SECOND)

    own, read = both(partition, append, segment_ms=MINUTE, segment_jitter_ms=30 * SECOND)
    assert len(own) > 9
    assert same(own, read) == ["time"] * (len(own) - 1) + [None]
    early = [each for each in own if "shortened by up to 29999 ms (29 s) of jitter" in each.roll_explanation]
    assert early


def test_a_setting_that_has_changed_since_leaves_the_reason_known(partition: Path) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=150) as log:
        one_record(log, 0)
        one_record(log, 1)
        log.update_config(segment_bytes=1 << 20)
        [first, _] = log.explain().segments
        assert (first.roll_reason, first.is_roll_inferred) == ("size", False)
        assert first.roll_explanation == "the next batch would have made it larger than segment.bytes allowed then"


def test_the_active_segment_says_what_rolls_it(partition: Path) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=1000, segment_ms=HOUR) as log:
        [active] = log.explain().segments
        assert active.roll_explanation == "it is the active segment, and empty: its first batch begins its time"
        one_record(log, 0, NOW)
        [active] = log.explain().segments
        assert (active.roll_reason, active.is_roll_inferred, active.rolled_ms) == (None, False, None)
        left = 1000 - active.size_bytes
        assert active.roll_explanation == (
            f"it is the active segment; the log rolls with a batch of more than {left} bytes (segment.bytes), with a "
            "batch from after 2023-11-14T23:13:20.000Z (segment.ms = 3600000 ms (1 h)) or after 873812 more index "
            "entries (segment.index.bytes)"
        )


def test_below_the_first_dirty_offset_a_cleaning_may_have_written_it(partition: Path) -> None:
    settings: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 500}
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        for number in range(40):
            log.append(b"v" * 30, key=b"k%d" % (number % 3), timestamp=NOW + number)
        log.compact()
        known = rolls(log)
        assert {reason for _, reason, _ in known[:-1]} == {"compaction", "size"}
    with kstore.Log.open(partition, mode="r", **settings) as log:
        found = log.explain()
        assert rolls(log)[0] == (0, "compaction", True)
        first = found.segments[0]
        assert f"offsets below {found.compaction.first_dirty_offset} are clean" in first.roll_explanation
    with kstore.Log.open(partition, mode="r", segment_bytes=500) as log:
        assert rolls(log)[0] == (0, None, True), "without the policy nothing says that it was cleaned"


@pytest.mark.parametrize(("at", "byte", "why"), [(8, b"\x7f", "it is cut off"), (16, b"\x09", "magic")])
def test_a_damaged_first_batch_hides_only_its_own_roll(partition: Path, at: int, byte: bytes, why: str) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=250) as log:
        for number in range(8):
            one_record(log, number)
        bases = [each.base_offset for each in log.segments]
    assert bases == [0, 2, 4, 6]
    path = partition / f"{2:020d}.log"
    data = bytearray(path.read_bytes())
    data[at : at + 1] = byte
    path.write_bytes(data)
    with kstore.Log.open(partition, mode="r", segment_bytes=250) as log:
        first, damaged, *others = log.explain().segments
        assert first.roll_explanation.startswith("the first batch of the next segment is damaged, so what it shows ")
        assert why in first.roll_explanation
        assert (first.roll_reason, damaged.first_timestamp) == (None, None)
        assert [each.roll_reason for each in (damaged, *others)] == ["size", "size", None]


@pytest.mark.parametrize("most", [0, 1, 100])
def test_a_jitter_is_at_most_what_kafka_draws(most: int) -> None:
    """SEMANTICS 2.6: up to one less than the setting, so that 1 is none."""
    explained = RollRules(kstore.LogConfig(segment_ms=1000, segment_jitter_ms=most)).of_active(described(first=NOW))
    assert (" of jitter" in explained) == (most > 1)
    assert ("less up to 99 ms of jitter" in explained) == (most == 100)


def described(first: int) -> Described:
    info = kstore.SegmentInfo(0, 1, 100, 0, 0, first, first, True, "0.log", None)
    return Described(Segment("", 0, max_index_bytes=0), info, None)
