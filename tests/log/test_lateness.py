"""A promise about lateness: few segments of many are looked at, and no record that is new enough is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.log import lateness
from kstore.log.lateness import start_by

T = 1_700_000_000_000
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), min_size=1, max_size=40)


@given(steps=STEPS, most=st.integers(0, 4), asked=st.integers(-2, 100))
def test_all_records_below_the_start_are_before_the_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bool]], most: int, asked: int
) -> None:
    greatest, times = 0, []
    with pytest.MonkeyPatch.context() as patch, kstore.Log.open(tmp_path_factory.mktemp("late") / "t-0") as log:
        patch.setattr(lateness, "FEW_SEGMENTS", 1)
        for ahead, late, ends_transaction in steps:
            greatest += ahead
            times.append(max(greatest - min(late, most), 0))
            log.append(b"x", timestamp=T + times[-1])
            log.roll()
            if ends_transaction:  # its time is a clock's: as wrong as can be
                log.append_many(
                    [(None, b"x", T + times[-1], ())], producer_id=1, producer_epoch=0,
                    base_sequence=times.count(-1), transactional=True,
                )  # fmt: skip
                times.append(times[-1])
                log.append_marker(1, 0, commit=True)
                times.append(-1)
                log.roll()
        start = start_by(log, T + asked, most)
    assert all(time < asked for time in times[:start])


def test_the_start_is_close_if_times_rise(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0") as log:
        for number in range(100):
            log.append(b"x", timestamp=T + number)
            log.roll()
        assert [start_by(log, T + asked, 0) for asked in (-5, 0, 1, 50, 99, 1000)] == [0, 0, 0, 49, 98, 99]
        assert start_by(log, T + 50, 10) == 39
        log.delete_records(80)
        assert [start_by(log, T + asked, 0) for asked in (0, 50, 90)] == [80, 80, 89]


def test_records_without_a_time_and_old_formats_end_no_search(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0") as log:
        for _ in range(40):
            log.append(b"x", timestamp=-1)
            log.roll()
        assert start_by(log, T, 0) == 0
    with kstore.Log.open(tmp_path / "empty-0") as log:
        assert start_by(log, T, 0) == 0
