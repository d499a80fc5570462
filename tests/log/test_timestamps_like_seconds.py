"""A timestamp that looks like seconds is a warning, once for each log; the record is stored as it was given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import kstore
from kstore.config.cautions import LIKE_SECONDS_BELOW

SECONDS = 1_700_000_000


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition) as log:
        yield log


@pytest.fixture(autouse=True)
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # of an earlier test's logs, which the garbage collector finds now
        warnings.simplefilter("always", kstore.TimestampWarning)
        yield caught


def test_the_first_one_is_a_warning_at_the_callers_line_that_says_what_it_means(
    log: kstore.Log, caught: list[warnings.WarningMessage]
) -> None:
    log.append(b"one", timestamp=SECONDS)
    log.append(b"two", timestamp=SECONDS)
    (warning,) = caught
    assert warning.category is kstore.TimestampWarning
    assert warning.filename == __file__
    assert str(warning.message).startswith(f"timestamp={SECONDS} is 1970-01-20T16:13:20.000Z: ")
    assert [record.timestamp for record in log.read()] == [SECONDS, SECONDS]


@pytest.mark.parametrize("timestamp", [None, -1, 0, LIKE_SECONDS_BELOW, SECONDS * 1000, datetime.now(UTC)])
def test_others_are_none(
    log: kstore.Log, caught: list[warnings.WarningMessage], timestamp: int | datetime | None
) -> None:
    log.append(b"value", timestamp=timestamp)
    assert caught == []


@pytest.mark.parametrize("timestamp", [1, LIKE_SECONDS_BELOW - 1])
def test_the_borders_are_warned_about(log: kstore.Log, caught: list[warnings.WarningMessage], timestamp: int) -> None:
    log.append(b"value", timestamp=timestamp)
    assert len(caught) == 1


def test_a_log_of_its_own_is_warned_about_on_its_own(
    root: Path, log: kstore.Log, caught: list[warnings.WarningMessage]
) -> None:
    log.append(b"value", timestamp=SECONDS)
    with kstore.Log.open(root / "events-1") as other:
        other.append(b"value", timestamp=SECONDS, headers=[("name", b"value")])
    with kstore.Store.open(root / "store", background=False) as store:
        store.create_topic("orders", 1)
        store.append("orders", b"value", timestamp=SECONDS)
        store.append("orders", b"value", timestamp=SECONDS)
    assert len(caught) >= 2
    assert {warning.category for warning in caught} == {kstore.TimestampWarning}


def test_a_warning_that_is_an_error_leaves_the_log_as_it_was(log: kstore.Log) -> None:
    warnings.simplefilter("error", kstore.TimestampWarning)
    for _ in range(2):
        with pytest.raises(kstore.TimestampWarning):
            log.append(b"value", timestamp=SECONDS)
    assert log.log_end_offset == 0
    assert log.append(b"value") == 0
