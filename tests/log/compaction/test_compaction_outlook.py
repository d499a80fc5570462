"""Why nothing of a log is cleaned, or what is and when, in words and numbers, for its writer and for a reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import CompactionOutlook, Log, StorageError
from kstore.files import checkpoint
from kstore.log.compaction.dirtiness import survey
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock, examples

HOUR = 3_600_000
DAY = 24 * HOUR
KEY, VALUE = b"k", bytes(100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def open_log(path: Path, clock: ManualClock, **settings: Any) -> Log:
    return Log.open(path, clock=clock, **{"cleanup_policy": "compact", **settings})


def segment(log: Log, count: int, *, at: int | None = None) -> None:
    for _ in range(count):
        log.append(VALUE, KEY, timestamp=at)
    log.roll()


def set_line(path: Path, offset: int) -> None:
    checkpoint.update_offsets(str(path.parent), checkpoint.CLEANER_OFFSETS, {("t", 0): offset})


def both(path: Path, log: Log, clock: ManualClock) -> CompactionOutlook:
    """The outlook, which a reader of the directory sees as the writer does."""
    outlook = log.compaction_outlook()
    with Log.open(path, "r", clock=clock, config=log.config) as reader:
        assert reader.compaction_outlook() == outlook
    return outlook


@pytest.mark.parametrize(("policy", "named"), [("delete", "is delete"), ("", "is empty")])
def test_a_policy_without_compact_is_all_that_there_is_to_say(
    path: Path, clock: ManualClock, policy: str, named: str
) -> None:
    with open_log(path, clock, cleanup_policy=policy) as log:
        segment(log, 3)
        outlook = both(path, log, clock)
        assert outlook.explanation == f"cleanup.policy {named}, so nothing is compacted"
        assert outlook.due_ms is None


def test_a_log_of_an_active_segment_alone_is_never_cleaned(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        log.append(VALUE, KEY)
        outlook = both(path, log, clock)
        assert outlook.explanation == (
            "no closed segment is dirty; the active segment, from offset 0 on, is never cleaned; "
            "no pass selects it before more is appended or a transaction ends"
        )
        assert (outlook.due_ms, outlook.ratio) == (None, None)


def test_the_ratio_is_told_with_both_byte_counts_and_what_it_has_to_exceed(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segment(log, 4)
        segment(log, 4)
        size = log.segments[0].size_bytes
        set_line(path, 4)
        outlook = both(path, log, clock)
        assert (outlook.clean_bytes, outlook.cleanable_bytes, outlook.ratio) == (size, size, 0.5)
        assert f"{size} of {2 * size} bytes (0.5), no more than min.cleanable.dirty.ratio 0.5" in outlook.explanation
        assert outlook.due_ms is None
        log.update_config(min_cleanable_dirty_ratio=0.4999)
        outlook = both(path, log, clock)
        assert "offsets 4 to 7 are dirty and cleanable" in outlook.explanation
        assert "more than min.cleanable.dirty.ratio 0.4999" in outlook.explanation
        assert outlook.explanation.endswith("the next pass of a cleaner selects it")
        assert outlook.due_ms == clock.now


def test_a_line_that_was_not_taken_is_told(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segment(log, 4)
        set_line(path, 200)
        outlook = both(path, log, clock)
        assert outlook.first_dirty_offset == 0
        assert outlook.explanation.startswith(
            "the checkpoint's first dirty offset 200 is above the log end 4, so cleaning begins at the log start; "
        )


def test_the_lag_names_the_record_that_holds_the_log_and_until_when(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        segment(log, 2, at=clock.now - HOUR)
        segment(log, 2)
        outlook = both(path, log, clock)
        assert (outlook.held_offset, outlook.held_timestamp) == (2, clock.now)
        assert outlook.first_uncleanable_offset == 2
        assert (
            "min.compaction.lag.ms = 3600000 ms (1 h) holds segment 2 and all behind it until "
            "2023-11-14T23:13:20.000Z: the record at offset 2 is from 2023-11-14T22:13:20.000Z (0 ms ago)"
        ) in outlook.explanation
        clock.advance(HOUR)
        assert both(path, log, clock).held_offset is None


def test_a_record_from_the_future_holds_the_log_as_good_as_for_ever(path: Path, clock: ManualClock) -> None:
    with open_log(
        path, clock, min_compaction_lag_ms=1, min_cleanable_dirty_ratio=0, message_timestamp_after_max_ms=2**63 - 1
    ) as log:
        segment(log, 1, at=clock.now + DAY)
        outlook = both(path, log, clock)
        assert "(86400000 ms (1 d) ahead of the clock)" in outlook.explanation
        assert outlook.due_ms == clock.now + DAY + 1
        segment(log, 1, at=2**62)
        set_line(path, 1)
        outlook = both(path, log, clock)
        assert f"the record at offset 1 is from {2**62} ms (" in outlook.explanation
        assert outlook.due_ms == 2**62 + 1


def test_a_segment_without_timestamps_is_held_by_the_age_of_its_file(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock, min_compaction_lag_ms=HOUR) as log:
        segment(log, 1, at=-1)
        outlook = both(path, log, clock)
        assert "its records have no timestamps, and its file was written" in outlook.explanation
        assert outlook.held_offset == 0


def test_an_open_transaction_is_told_with_its_producer_its_offset_and_its_time(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segment(log, 2)
        log.append(VALUE, KEY)
        for producer_id in (9, 7):
            began = clock.advance(1000)
            log.append_many(
                [(KEY, VALUE)], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
            )
        log.roll()
        clock.advance(HOUR)
        outlook = both(path, log, clock)
        assert outlook.first_uncleanable_offset == 2
        assert (outlook.transaction_producer_id, outlook.transaction_offset) == (9, 3)
        assert outlook.transaction_since_ms == began - 1000
        assert (
            "nothing from offset 2 on is cleaned: the transaction of producer id 9 that begins at offset 3, open since "
            "2023-11-14T22:13:21.000Z (3601000 ms (1 h 1 s) ago), has to end first"
        ) in outlook.explanation
        log.append_marker(9, 0, commit=True)
        assert both(path, log, clock).transaction_producer_id == 7
        log.append_marker(7, 0, commit=False)
        assert both(path, log, clock).transaction_producer_id is None


def test_a_log_that_refuses_writes_still_says_why_nothing_is_cleaned(path: Path, clock: ManualClock) -> None:
    log = open_log(path, clock)
    log.append_many([(KEY, VALUE)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    HostedLog(log).fail(StorageError(5, "the disk has failed", str(path)))
    outlook = log.compaction_outlook()
    assert "an open transaction that begins at offset 0" in outlook.explanation
    assert (outlook.transaction_producer_id, outlook.transaction_offset) == (None, 0)
    log.close()


def test_the_greatest_lag_says_from_when_on_the_log_is_cleaned_whatever_its_ratio(
    path: Path, clock: ManualClock
) -> None:
    with open_log(path, clock, max_compaction_lag_ms=DAY, min_cleanable_dirty_ratio=1.0) as log:
        segment(log, 1)
        began = clock.now
        outlook = both(path, log, clock)
        assert outlook.due_ms == outlook.forced_ms == began + DAY + 1
        assert "max.compaction.lag.ms = 86400000 ms (1 d) has it cleaned from 2023-11-15T22:13:20.001Z on" in (
            outlook.explanation
        )
        assert (
            "whatever the ratio: the first batch of segment 0 is from 2023-11-14T22:13:20.000Z" in outlook.explanation
        )
        clock.advance(DAY + 1)
        outlook = both(path, log, clock)
        assert outlook.due_ms == clock.now
        assert "has it cleaned since 2023-11-15T22:13:20.001Z" in outlook.explanation


def test_the_last_failure_is_told_and_goes_with_the_next_success(path: Path, clock: ManualClock) -> None:
    with open_log(path, clock) as log:
        segment(log, 1)
        cleaning = HostedLog(log).writer.cleaning
        with pytest.raises(StorageError), cleaning.running():
            raise StorageError(28, "no room", "x")
        outlook = log.compaction_outlook()
        assert outlook.failure is not None
        assert outlook.failure.startswith("StorageError: ")
        assert "the last cleaning failed, and is tried again with the next pass: StorageError" in outlook.explanation
        with cleaning.running():
            assert log.compaction_outlook().explanation.startswith("it is being cleaned now; ")
        assert log.compaction_outlook().failure is None
        with cleaning.paused():
            assert log.compaction_outlook().explanation.startswith("its cleaning is paused while")


@examples(0.5)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), min_size=1, max_size=5),
    st.integers(0, 12),
    st.integers(0, 6),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_the_time_that_is_told_is_the_first_at_which_a_pass_selects_the_log(
    tmp_path_factory: pytest.TempPathFactory,
    no_syncs: None,
    closed: list[tuple[int, int]],
    line: int,
    least: int,
    most: int,
    ratio: float,
) -> None:
    clock = ManualClock(1000)
    path = tmp_path_factory.mktemp("log") / "t-0"
    lags = {"min_compaction_lag_ms": min(least, most), "max_compaction_lag_ms": most}
    with open_log(path, clock, min_cleanable_dirty_ratio=ratio, **lags) as log:
        for count, at in closed:
            segment(log, count, at=1000 + at)
        set_line(path, line)
        times = range(1000, 1030)
        first = [at for at in times if survey(HostedLog(log).view, log.config, at, line).is_eligible(ratio)][:1]
        assert log.compaction_outlook().due_ms == (first[0] if first else None)
