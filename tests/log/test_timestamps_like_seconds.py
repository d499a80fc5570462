"""A timestamp that looks like seconds is a warning, once for each log and call; it is stored as it was given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kstore
from kstore.config.cautions import LIKE_SECONDS_BELOW
from kstore.spark.task_attempt import Attempt, Topic

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


# Many at once


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"batch_bytes": 100}], ids=str)
def test_many_records_are_one_warning_at_the_callers_line(
    log: kstore.Log, caught: list[warnings.WarningMessage], options: dict[str, Any]
) -> None:
    for _ in range(2):
        log.append_many([(None, b"value", SECONDS + number, None) for number in range(100)], **options)
    (warning,) = caught
    assert (warning.category, warning.filename) == (kstore.TimestampWarning, __file__)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"batch_bytes": 100}], ids=str)
def test_columns_are_one_warning_at_the_callers_line(
    log: kstore.Log, caught: list[warnings.WarningMessage], options: dict[str, Any], threads: int
) -> None:
    for _ in range(2):
        log.append_columns([b"value"] * 100, timestamps=np.full(100, SECONDS), threads=threads, **options)
    (warning,) = caught
    assert (warning.category, warning.filename) == (kstore.TimestampWarning, __file__)


Append = Callable[[kstore.Store, list[bytes]], object]


@pytest.mark.parametrize(
    "append",
    [
        lambda store, values: store.append_many("orders", [(value, value, SECONDS, None) for value in values]),
        lambda store, values: store.append_columns("orders", values, keys=values, timestamps=SECONDS),
        lambda store, values: store.append_columns("orders", values, keys=values, timestamps=SECONDS, threads=3),
        lambda store, values: store.producer().append_many("orders", [(v, v, SECONDS, None) for v in values]),
        lambda store, values: store.producer().append_columns("orders", values, keys=values, timestamps=SECONDS),
    ],
)
def test_a_call_to_several_partitions_is_one_warning(
    root: Path, caught: list[warnings.WarningMessage], append: Append
) -> None:
    with kstore.Store.open(root / "store", background=False) as store:
        store.create_topic("orders", 5)
        for _ in range(2):
            append(store, [b"%d" % number for number in range(50)])
        assert sum(store.log("orders", number).log_end_offset for number in range(5)) == 100
    (warning,) = caught
    assert (warning.category, warning.filename) == (kstore.TimestampWarning, __file__)


def test_many_that_are_milliseconds_or_have_no_time_are_none(
    log: kstore.Log, caught: list[warnings.WarningMessage]
) -> None:
    log.append_many([(None, b"a", -1, None), (None, b"b", 0, None), (None, b"c", LIKE_SECONDS_BELOW, None)])
    log.append_columns([b"a"] * 2, timestamps=[None, SECONDS * 1000])
    log.append_many([b"a"])
    assert caught == []


def test_a_warning_that_is_an_error_stores_none_of_many(log: kstore.Log) -> None:
    warnings.simplefilter("error", kstore.TimestampWarning)
    for _ in range(2):
        with pytest.raises(kstore.TimestampWarning):
            log.append_many([(None, b"value", SECONDS, None)])
        with pytest.raises(kstore.TimestampWarning):
            log.append_columns([b"value"], timestamps=SECONDS)
    assert log.log_end_offset == 0


def test_staged_rows_are_one_warning_for_a_task(root: Path, caught: list[warnings.WarningMessage]) -> None:
    with Attempt(str(root / "job"), "job", 0) as attempt:
        values = [b"%d" % number for number in range(50)]
        for _ in range(2):
            attempt.append(Topic("orders", 5, {}), attempt.columns(values, values, SECONDS))
        assert attempt.finish()
    assert [warning.category for warning in caught] == [kstore.TimestampWarning]
