"""How dirty a log is, to the byte and the millisecond, as a writer and a reader see it (SEMANTICS 7.2, 7.3, 7.4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import Log, LogConfig
from kstore.disk import fs
from kstore.files import _log_scan, _log_search
from kstore.log.compaction.dirtiness import Dirtiness, survey
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def open_log(path: Path, clock: ManualClock, **settings: Any) -> Log:
    return Log.open(path, clock=clock, **{"cleanup_policy": "compact", **settings})


def put(log: Log, count: int, *, at: int | None = None, batch: bool = False) -> None:
    """Append so many records of 100 bytes, each a batch of its own unless `batch`."""
    records = [(b"k%d" % n, bytes(100), at) for n in range(count)]
    if batch:
        log.append_many(records)
    else:
        for key, value, timestamp in records:
            log.append(value, key, timestamp=timestamp)


def segments_of(log: Log, *counts: int, at: int | None = None) -> None:
    """Append closed segments with so many records each; the active one is empty then."""
    for count in counts:
        put(log, count, at=at)
        log.roll()


def look(log: Log, line: int | None = None, *, lag: bool = True, **settings: Any) -> Dirtiness:
    config = log.config.replace(**settings) if settings else log.config
    clock = log._clock
    assert clock is not None
    return survey(HostedLog(log).view, config, clock(), line, lag=lag)


def sizes(log: Log) -> list[int]:
    return [segment.size_bytes for segment in log.segments]


# The first dirty offset.


@pytest.mark.parametrize(
    ("line", "first", "reset"),
    [(None, 4, ""), (3, 4, "log start 4"), (4, 4, ""), (5, 5, ""), (9, 9, ""), (10, 10, ""), (11, 4, "log end 10")],
)
def test_a_line_outside_of_the_log_is_reset_to_the_log_start(
    path: Path, clock: ManualClock, line: int | None, first: int, reset: str
) -> None:
    """LogCleanerManagerTest.testCleanableOffsetsNeedsCheckpointReset,
    LogCleanerManagerTest.testDirtyOffsetResetIfLargerThanEndOffset."""
    with open_log(path, clock, cleanup_policy="compact,delete") as log:
        segments_of(log, 5, 5)
        log.delete_records(4)
        dirtiness = look(log, line)
        assert dirtiness.first_dirty_offset == first
        assert bool(dirtiness.reset) == bool(reset)
        assert reset in dirtiness.reset


def test_a_log_start_inside_of_the_active_segment_leaves_nothing_to_clean(path: Path, clock: ManualClock) -> None:
    """LogCleanerManagerTest.testLogStartOffsetLargerThanActiveSegmentBaseOffset."""
    with open_log(path, clock, cleanup_policy="compact,delete") as log:
        put(log, 9)
        log.delete_records(2)
        dirtiness = look(log, 0)
        assert dirtiness.first_dirty_offset == 2
        assert (dirtiness.first_uncleanable_offset, dirtiness.cleanable_bytes) == (0, 0)
        assert dirtiness.clean_bytes == sum(sizes(log))  # the active segment begins below the first dirty offset
        assert dirtiness.ratio == 0
        assert not dirtiness.is_cleanable
        assert not dirtiness.is_eligible(0.0)


# How far a log may be cleaned.


def test_the_active_segment_is_not_cleanable(path: Path, clock: ManualClock) -> None:
    """LogCleanerManagerTest.testCleanableOffsetsActiveSegment."""
    with open_log(path, clock) as log:
        segments_of(log, 4, 4)
        put(log, 2)
        dirtiness = look(log, 0)
        assert (dirtiness.first_dirty_offset, dirtiness.first_uncleanable_offset) == (0, 8)
        assert dirtiness.bound == "active segment"
        assert (dirtiness.clean_bytes, dirtiness.cleanable_bytes) == (0, sum(sizes(log)[:2]))
        assert dirtiness.ratio == 1.0


@pytest.mark.parametrize(
    ("before", "uncleanable", "bound"),
    [(0, 0, "open transaction"), (1, 0, "open transaction"), (3, 0, "open transaction"), (4, 4, "open transaction"),
     (5, 4, "open transaction"), (7, 4, "open transaction"), (8, 8, "active segment"), (9, 8, "active segment")],
)  # fmt: skip
def test_the_last_stable_offset_is_rounded_down_to_its_segment(
    path: Path, clock: ManualClock, before: int, uncleanable: int, bound: str
) -> None:
    """LogCleanerManagerTest.testCleanableOffsetsForNone: the bound is the last stable offset, here an open
    transaction's."""
    with open_log(path, clock) as log:
        for n in range(10):
            if n in (4, 8):
                log.roll()
            if n == before:
                log.append_many([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
            else:
                put(log, 1)
        for mode in ("a", "r"):
            reader = log if mode == "a" else Log.open(path, "r", clock=clock, config=log.config)
            dirtiness = look(reader)
            assert (dirtiness.first_uncleanable_offset, dirtiness.bound) == (uncleanable, bound)
            assert dirtiness.stable_offset == before
            assert dirtiness.cleanable_bytes == sum(sizes(log)[: uncleanable // 4])


def test_records_of_a_transaction_are_cleanable_as_soon_as_it_is_decided(path: Path, clock: ManualClock) -> None:
    """LogCleanerManagerTest.testUndecidedTransactionalDataNotCleanable."""
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        numbers = {"producer_id": 15, "producer_epoch": 0, "transactional": True}
        log.append_many([(b"1", b"a"), (b"2", b"b")], base_sequence=0, **numbers)
        log.append_many([(b"3", b"c")], base_sequence=2, **numbers)
        log.roll()
        clock.advance(HOUR + 1)
        assert look(log, 0)[:3] == (0, "", 0)  # the lag has passed, and the transaction is open
        log.append_marker(15, 0, commit=False)
        log.roll()
        assert look(log, 0)[:3] == (0, "", 3)
        clock.advance(HOUR - 1)
        assert look(log, 0)[:3] == (0, "", 3)
        clock.advance(1)
        assert look(log, 0)[:3] == (0, "", 4)


def test_the_least_lag_holds_back_the_first_segment_with_a_younger_record(path: Path, clock: ManualClock) -> None:
    """LogCleanerManagerTest.testCleanableOffsetsForTime; a segment without a younger record behind it waits, too."""
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        old = clock.now
        segments_of(log, 3, 3)
        clock.advance(HOUR + 1)
        segments_of(log, 2)
        segments_of(log, 2, at=old)
        dirtiness = look(log, 0)
        assert (dirtiness.first_uncleanable_offset, dirtiness.bound) == (6, "min.compaction.lag.ms")
        assert dirtiness.youngest is not None
        assert dirtiness.youngest == (6, clock.now, False, 6)
        assert look(log, 0, lag=False).first_uncleanable_offset == 10


@pytest.mark.parametrize(("passed", "uncleanable"), [(HOUR - 1, 0), (HOUR, 3), (HOUR + 1, 3)])
def test_the_least_lag_has_passed_when_the_newest_record_is_exactly_so_old(
    path: Path, clock: ManualClock, passed: int, uncleanable: int
) -> None:
    """LogCleanerManagerTest.testCleanableOffsetsForShortTime."""
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        segments_of(log, 3)
        clock.advance(passed)
        for reader in (log, Log.open(path, "r", clock=clock, config=log.config)):
            assert look(reader, 0).first_uncleanable_offset == uncleanable


def test_a_segment_below_the_first_dirty_offsets_is_not_asked_for_its_age(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        segments_of(log, 3, at=clock.now)
        segments_of(log, 3, 3, at=clock.now - 2 * HOUR)
        assert look(log, 0).first_uncleanable_offset == 0
        assert look(log, 2).first_uncleanable_offset == 0  # the segment that holds the first dirty offset is asked
        assert look(log, 3).first_uncleanable_offset == 9


def test_a_record_from_the_future_holds_its_segment_until_its_time_has_passed(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, min_compaction_lag_ms=1, message_timestamp_after_max_ms=2**63 - 1) as log:
        segments_of(log, 1, at=clock.now + 1000 * DAY)
        clock.advance(1000 * DAY)
        assert look(log).first_uncleanable_offset == 0
        clock.advance(1)
        assert look(log).first_uncleanable_offset == 1
        clock.advance(-DAY)
        youngest = look(log).youngest
        assert youngest is not None
        assert youngest.timestamp > clock.now
        assert look(log, min_compaction_lag_ms=0).first_uncleanable_offset == 1


def test_a_segment_without_timestamps_is_as_old_as_its_file(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segments_of(log, 2, at=-1)
        written = clock.now - HOUR
        os.utime(log.segments[0].path, ns=(written * 1_000_000,) * 2)
        assert look(log, min_compaction_lag_ms=HOUR).first_uncleanable_offset == 2
        youngest = look(log, min_compaction_lag_ms=HOUR + 1).youngest
        assert youngest == (0, written, True, 0)


# Bytes and ratio.


def test_a_segment_around_the_first_dirty_offset_is_both_clean_and_cleanable(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segments_of(log, 4, 4, 4)
        a, b, c, _ = sizes(log)
        for line, clean, cleanable in [
            (0, 0, a + b + c),
            (1, a, a + b + c),
            (4, a, b + c),
            (5, a + b, b + c),
            (8, a + b, c),
            (11, a + b + c, c),
            (12, a + b + c, 0),
        ]:
            dirtiness = look(log, line)
            assert (dirtiness.clean_bytes, dirtiness.cleanable_bytes) == (clean, cleanable), line
            assert dirtiness.ratio == cleanable / (clean + cleanable)


def test_the_first_dirty_offset_above_the_uncleanable_one_leaves_nothing(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        segments_of(log, 4, 4)
        dirtiness = look(log, 6)
        assert (dirtiness.first_dirty_offset, dirtiness.first_uncleanable_offset) == (6, 4)
        assert dirtiness.cleanable_bytes == 0
        assert not dirtiness.is_cleanable


def test_an_empty_log_has_no_ratio_and_is_never_eligible(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        dirtiness = look(log)
        assert dirtiness.ratio is None
        assert not dirtiness.is_eligible(0.0)
    empty = path.with_name("t-1")
    empty.mkdir()
    with Log.open(empty, "r", clock=clock) as log:
        assert look(log).ratio is None


@pytest.mark.parametrize(("least", "eligible"), [(0.49, True), (0.5, False), (0.51, False)])
def test_the_ratio_must_exceed_the_least_one(path: Path, clock: ManualClock, least: float, eligible: bool) -> None:
    """SEMANTICS 7.3: strict."""
    with open_log(path, clock) as log:
        segments_of(log, 4, 4)
        dirtiness = look(log, 4)
        assert dirtiness.ratio == 0.5
        assert dirtiness.is_eligible(least) == eligible


# Forced by `max.compaction.lag.ms`.


@pytest.mark.parametrize(("passed", "forced"), [(DAY - 1, False), (DAY, False), (DAY + 1, True)])
def test_a_log_is_forced_once_its_oldest_dirty_batch_is_older_than_the_greatest_lag(
    path: Path, clock: ManualClock, passed: int, forced: bool
) -> None:
    with open_log(path, clock, max_compaction_lag_ms=DAY, min_cleanable_dirty_ratio=1.0) as log:
        segments_of(log, 1)
        clock.advance(passed)
        segments_of(log, 1)
        dirtiness = look(log)
        assert dirtiness.forced == forced
        assert dirtiness.oldest == (0, clock.now - passed)
        assert dirtiness.is_eligible(1.0) == forced
        assert not look(log, 1).forced
        assert not look(log, lag=False).forced


def test_the_oldest_is_the_least_first_batch_of_the_dirty_segments_above_0(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, max_compaction_lag_ms=DAY) as log:
        segments_of(log, 1, at=10)
        segments_of(log, 1, at=0)
        segments_of(log, 1, at=-1)
        segments_of(log, 1, at=7)
        put(log, 1, at=1)  # in the active segment
        assert look(log).oldest == (3, 7)
        assert look(log, 1).oldest == (3, 7)
        assert look(log, 4).oldest is None
        assert look(log, max_compaction_lag_ms=2**63 - 1).oldest is None


def test_forcing_a_log_needs_something_to_clean(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, max_compaction_lag_ms=1) as log:
        log.append_many([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        log.roll()
        clock.advance(DAY)
        dirtiness = look(log)
        assert dirtiness.forced
        assert not dirtiness.is_eligible(0.0)


# Against the text of the rule.


def rule_of(log: Log, line: int | None, config: LogConfig, now_ms: int) -> tuple[int, int, int, int, bool]:
    """SEMANTICS 7.2, word by word, from what a log says of its segments."""
    segments = log.segments
    start, end = log.log_start_offset, log.log_end_offset
    first_dirty = start if line is None or line < start or line > end else line
    active = segments[-1].base_offset
    closed = segments[:-1]

    def holds_or_follows(offset: int) -> list[Any]:
        return [] if offset >= active else [one for one in closed if one.next_offset > offset]

    bounds = [log.last_stable_offset, active]
    if config.min_compaction_lag_ms > 0:
        young = [
            one.base_offset
            for one in holds_or_follows(first_dirty)
            if one.max_timestamp > now_ms - config.min_compaction_lag_ms
        ]
        bounds += young[:1]
    bound = max(first_dirty, min(bounds))
    uncleanable = next((one.base_offset for one in holds_or_follows(bound)), active)
    cleanable = [
        one.size_bytes
        for one in closed
        if one.next_offset > min(first_dirty, uncleanable) and one.base_offset < uncleanable
    ]
    clean = [one.size_bytes for one in segments if one.base_offset < first_dirty]
    firsts = [one.first_timestamp for one in holds_or_follows(first_dirty) if one.first_timestamp > 0]
    forced = bool(firsts) and min(firsts) < now_ms - config.max_compaction_lag_ms
    return first_dirty, uncleanable, sum(clean), sum(cleanable), forced


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=5),
    st.integers(0, 3),
    st.integers(-1, 18),
    st.integers(0, 12),
    st.integers(0, 5),
    st.integers(1, 6),
    st.integers(0, 8),
)
def test_any_log_is_as_dirty_as_the_rule_says(
    tmp_path_factory: pytest.TempPathFactory,
    no_syncs: None,
    closed: list[tuple[int, int]],
    active: int,
    line: int,
    start: int,
    least: int,
    most: int,
    now: int,
) -> None:
    clock = ManualClock(1000)
    path = tmp_path_factory.mktemp("log") / "t-0"
    with open_log(path, clock, cleanup_policy="compact,delete") as log:
        for count, at in closed:
            segments_of(log, count, at=1000 + at)
        put(log, active, at=1000)
        log.delete_records(min(start, log.log_end_offset))
        config = log.config.replace(min_compaction_lag_ms=min(least, most), max_compaction_lag_ms=most)
        at_line = None if line < 0 else line
        for reader in (log, Log.open(path, "r", clock=clock)):
            dirtiness = survey(HostedLog(reader).view, config, 1000 + now, at_line)
            assert (
                dirtiness.first_dirty_offset,
                dirtiness.first_uncleanable_offset,
                dirtiness.clean_bytes,
                dirtiness.cleanable_bytes,
                dirtiness.forced,
            ) == rule_of(reader, at_line, config, 1000 + now)


def test_a_survey_of_a_writer_reads_nothing_of_closed_segments_twice(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(path, clock, min_compaction_lag_ms=1, max_compaction_lag_ms=DAY) as log:
        segments_of(log, 3, 3, 3)
        clock.advance(HOUR)
        first = look(log)
        reads: list[str] = []
        _count_opens(monkeypatch, reads)
        assert look(log) == first
        assert reads == []


def _count_opens(monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            reads.append(name)
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(fs, "open", counted("open", fs.open))
    for module, name in ((_log_search, "find_batch"), (_log_search, "greatest_timestamp"), (_log_scan, "scan")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
