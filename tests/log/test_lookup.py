"""A search by time remembers what it has passed, and finds what it would find if it asked each segment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstore
from kstore.errors import CorruptRecordError, LogClosedError
from kstore.log.reading import _timestamp_lookup
from kstore.log.reading.view import SegmentList
from kstore.log.segments import time_search
from kstore.log.segments.segment import Segment
from kstore.types import TimestampOffset

NOW_MS = 1_700_000_000_000
Times = list[tuple[int, int]]


def open_log(path: Path, **settings: Any) -> kstore.Log:
    return kstore.Log.open(path / "t-0", clock=lambda: NOW_MS, **settings)


def append_each(log: kstore.Log, timestamps: list[int]) -> None:
    """A record with each of these times, a segment for each."""
    for timestamp in timestamps:
        log.append(b"v", timestamp=timestamp)
        log.roll()


def asked_of(act: Callable[[], object]) -> int:
    """How many segments are asked for their greatest timestamp meanwhile."""
    asked = []
    real = Segment.maximum

    def maximum(segment: Segment) -> tuple[int, int]:
        asked.append(segment.base_offset)
        return real.__get__(segment)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "maximum", property(maximum, real.__set__))
        act()
    return len(asked)


def first_of(times: Times, timestamp: int) -> TimestampOffset | None:
    return next((TimestampOffset(found, offset) for offset, found in times if found >= timestamp), None)


def test_a_second_search_asks_no_segment_that_the_first_has_passed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS + number for number in range(20)])
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 9)) == 10
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 9)) == 1
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 4)) == 1
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 19)) == 10


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_search_by_time_looks_again_as_long_as_the_log_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, fails: bool
) -> None:
    real, looks = time_search.find_timestamp, []

    def find(segment: Segment, *arguments: Any, **options: Any) -> Any:
        looks.append(segment)
        if len(looks) > changes:
            return real(segment, *arguments, **options)
        log._view.guard.version += 1
        if fails:
            raise CorruptRecordError("cut meanwhile")
        return (NOW_MS, 0, -1)  # of the log as it was

    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS + 5])
        monkeypatch.setattr(time_search, "find_timestamp", find)
        assert log.offset_for_timestamp(NOW_MS) == (NOW_MS + 5, 0)
        assert len(looks) == changes + 1


def test_a_search_by_time_raises_an_error_that_no_change_of_the_log_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*arguments: Any, **options: Any) -> Any:
        raise CorruptRecordError("damage")

    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS])
        monkeypatch.setattr(time_search, "find_timestamp", find)
        with pytest.raises(CorruptRecordError, match="damage"):
            log.offset_for_timestamp(NOW_MS)


@pytest.mark.parametrize("time", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_any_time_of_64_bits_may_be_searched_for_and_no_greater_one(tmp_path: Path, time: int) -> None:
    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS])
        assert log.offset_for_timestamp(time) == (None if time > NOW_MS else (NOW_MS, 0))
        for wrong in (-(1 << 63) - 1, 1 << 63):
            with pytest.raises(ValueError, match="timestamp"):
                log.offset_for_timestamp(wrong)


def test_what_searches_have_passed_is_known_after_a_roll(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS + number for number in range(20)])
        log.offset_for_timestamp(NOW_MS + 19)
        append_each(log, [NOW_MS + 20])
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 20)) == 1
        assert log.offset_for_timestamp(NOW_MS + 20) == (NOW_MS + 20, 20)


def test_in_a_log_that_is_only_read_a_second_search_repeats_no_passed_segment(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        append_each(log, [NOW_MS + number for number in range(20)])
    with kstore.Log.open(tmp_path / "t-0", "r") as log:
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 19)) == 20
        assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 19)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_times_in_any_order_are_found_whatever_changes_the_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    times: Times = []
    with open_log(tmp_path, file_delete_delay_ms=0) as log, kstore.Log.open(tmp_path / "t-0", "r") as reader:
        for _ in range(60):
            step = chance.choice(["append"] * 6 + ["roll"] * 4 + ["truncate", "delete", "search", "search"])
            if step == "append":
                timestamp = NOW_MS + chance.randrange(30)
                times.append((log.append(b"v", timestamp=timestamp), timestamp))
            elif step == "roll":
                log.roll()
            elif step == "truncate":
                end = max(log.log_end_offset - chance.randrange(4), log.log_start_offset)
                log.truncate_to(end)
                times = [each for each in times if each[0] < end]
            elif step == "delete":
                start = min(log.log_start_offset + chance.randrange(3), log.log_end_offset)
                log.delete_records(start)
                log.run_housekeeping()
                times = [each for each in times if each[0] >= start]
            for timestamp in chance.sample(range(NOW_MS - 1, NOW_MS + 31), 3):
                assert log.offset_for_timestamp(timestamp) == first_of(times, timestamp)
                assert reader.offset_for_timestamp(timestamp) == first_of(times, timestamp)


def test_segments_without_timestamps_are_asked_each_time(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(kstore.encode_batch([(None, b"v", -1, None)]))
        log.roll()
        append_each(log, [NOW_MS, NOW_MS + 1])
        for _ in range(2):
            assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 2)
            assert asked_of(lambda: log.offset_for_timestamp(NOW_MS + 1)) >= 3


def test_notes_that_two_searches_make_at_once_are_those_of_one_of_them() -> None:
    segments = SegmentList([])
    noted = segments.maxima
    segments.note_maxima(noted, [5, 3, 7])
    segments.note_maxima(noted, [5, 3])
    assert segments.maxima.tolist() == [5, 5]
    segments.note_maxima(segments.maxima, [4, 9])
    assert segments.maxima.tolist() == [5, 5, 5, 9]


@pytest.mark.parametrize("seed", range(6))
def test_times_are_found_in_segments_of_many_batches_whatever_changes_the_log(tmp_path: Path, seed: int) -> None:
    """Each batch has an index entry, and each time is searched for twice: the second search reads less."""
    chance = random.Random(seed)
    times: Times = []
    now = NOW_MS
    with (
        open_log(tmp_path, index_interval_bytes=1, file_delete_delay_ms=0) as log,
        kstore.Log.open(tmp_path / "t-0", "r") as reader,
    ):
        for _ in range(40):
            step = chance.choice(["append"] * 6 + ["roll", "truncate", "delete"])
            if step == "append":
                for _ in range(chance.randrange(8)):
                    now += chance.choice([1, 1, 1, 3, -2])
                    first = log.append_batch(kstore.encode_batch([(None, b"v", now + n, None) for n in range(3)]))
                    times += [(first.first_offset + n, now + n) for n in range(3)]
            elif step == "roll":
                log.roll()
            elif step == "truncate":
                end = log.log_end_offset - 3 * chance.randrange(6)  # between two batches
                if end >= log.log_start_offset:
                    log.truncate_to(end)
                    times = [each for each in times if each[0] < end]
            else:
                start = min(log.log_start_offset + chance.randrange(9), log.log_end_offset)
                log.delete_records(start)
                log.run_housekeeping()
                times = [each for each in times if each[0] >= start]
            for timestamp in [now, now + 5, *(NOW_MS + chance.randrange(max(now - NOW_MS, 1)) for _ in range(12))]:
                for _ in range(2):
                    assert log.offset_for_timestamp(timestamp) == first_of(times, timestamp)
                assert reader.offset_for_timestamp(timestamp) == first_of(times, timestamp)


def test_a_changed_entry_of_a_mapped_index_is_found_out_after_a_search(tmp_path: Path) -> None:
    count = 6000
    with open_log(tmp_path, index_interval_bytes=1) as log:
        for number in range(count):
            log.append(b"v", timestamp=NOW_MS + 10 * number)
        log.roll()
        [index, _] = sorted((tmp_path / "t-0").glob("*.timeindex"))
        number = 3000
        for wanted in range(NOW_MS + 10 * number - 20, NOW_MS + 10 * number + 20):
            assert log.offset_for_timestamp(wanted).offset == -(-(wanted - NOW_MS) // 10)  # type: ignore[union-attr]
        assert log._view.segments.items[0].time_index._is_mapped()
        data = index.read_bytes()
        right = (NOW_MS + 10 * number).to_bytes(8, "big")
        at = data.index(right)
        with index.open("r+b") as file:
            file.seek(at)
            file.write((NOW_MS + 10 * number - 5).to_bytes(8, "big"))
        for wanted in range(NOW_MS + 10 * number - 20, NOW_MS + 10 * number + 20):
            assert log.offset_for_timestamp(wanted).offset == -(-(wanted - NOW_MS) // 10)  # type: ignore[union-attr]


def test_a_log_that_is_closed_is_not_searched(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1)
    for number in range(5):
        log.append(b"v", timestamp=NOW_MS + number)
    assert log.offset_for_timestamp(NOW_MS + 2) == (NOW_MS + 2, 2)
    assert log.offset_for_timestamp(NOW_MS + 2) == (NOW_MS + 2, 2)
    log.close()
    with pytest.raises(LogClosedError):
        log.offset_for_timestamp(NOW_MS + 2)


def test_a_search_refuses_a_view_that_is_made_of_other_parts(tmp_path: Path) -> None:
    with open_log(tmp_path, index_interval_bytes=1) as log:
        log.append(b"v", timestamp=NOW_MS)
        log.append(b"v", timestamp=NOW_MS + 1)
        assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 1)
        names = ("guard", "closed", "segments", "log_start_offset", "max_decompressed_bytes", "appender")
        parts = {name: getattr(log._view, name) for name in names}
        for wrong in ({"guard": None}, {"appender": None}, {"segments": SimpleNamespace(items=(None,))}):
            view: Any = SimpleNamespace(is_own=True, **(parts | wrong))
            with pytest.raises((AttributeError, TypeError)):
                _timestamp_lookup.first_at(view, NOW_MS + 1)
