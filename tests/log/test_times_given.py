"""Times given as datetimes: everywhere where milliseconds are, the same moment; without a time zone, nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.base import times

MS = 1_700_000_000_123
TIME = datetime.fromtimestamp(MS // 1000, UTC).replace(microsecond=123_456)  # within millisecond 123
ELSEWHERE = TIME.astimezone(timezone(timedelta(hours=-7, minutes=-30)))
NAIVE = TIME.replace(tzinfo=None)
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 1)
        store.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
        yield store


def in_transaction(store: kstore.Store, act: Callable[[kstore.Transaction], Any]) -> Any:
    with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
        return act(txn)


APPENDS: dict[str, Callable[[kstore.Store, Any], Any]] = {
    "append": lambda store, time: store.log("t", 0).append(b"v", timestamp=time),
    "append with headers": lambda store, time: store.log("t", 0).append(b"v", timestamp=time, headers=[("h", b"")]),
    "append_many": lambda store, time: store.log("t", 0).append_many([(None, b"v", time, None)]),
    "append_columns": lambda store, time: store.log("t", 0).append_columns([b"v"], timestamps=time),
    "append_columns, a list": lambda store, time: store.log("t", 0).append_columns([b"v"], timestamps=[time]),
    "append_columns, objects": lambda store, time: store.log("t", 0).append_columns(
        [b"v"], timestamps=np.array([time], object)
    ),
    "store.append": lambda store, time: store.append("t", b"v", timestamp=time),
    "store.append, synced": lambda store, time: store.append("t", b"v", timestamp=time, sync=True),
    "store.append_many": lambda store, time: store.append_many("t", [(None, b"v", time, None)]),
    "store.append_columns": lambda store, time: store.append_columns("t", [b"v"], timestamps=time),
    "producer.append": lambda store, time: store.producer().append("t", b"v", timestamp=time),
    "producer.append_many": lambda store, time: store.producer().append_many("t", [(None, b"v", time, None)]),
    "producer.append_columns": lambda store, time: store.producer().append_columns("t", [b"v"], timestamps=time),
    "txn.append": lambda store, time: in_transaction(store, lambda txn: txn.append("t", b"v", timestamp=time)),
}


@pytest.mark.parametrize("way", APPENDS)
def test_each_append_takes_a_moment_in_any_zone(store: kstore.Store, way: str) -> None:
    for time in (MS, TIME, ELSEWHERE):
        appended = APPENDS[way](store, time)
        if isinstance(appended, kstore.RecordMetadata):
            assert (appended.timestamp, type(appended.timestamp)) == (MS, int)
    assert [record.timestamp for record in store.read("t")] == [MS] * 3


@pytest.mark.parametrize("way", APPENDS)
def test_each_append_refuses_a_time_that_is_no_moment(store: kstore.Store, way: str) -> None:
    for time, error, words in (
        (NAIVE, kstore.InvalidTimestampError, "without a time zone"),
        (BEFORE, kstore.InvalidTimestampError, "1970"),
        (1.5e9, TypeError, r"not float; int\(1000 \* seconds\)"),
        ("2026-01-01", TypeError, "fromisoformat"),
        (True, TypeError, "not bool"),
    ):
        if way == "append_columns" and not isinstance(time, datetime):
            continue  # a column of another kind
        with pytest.raises(error, match=words if "columns" not in way or isinstance(time, datetime) else None):
            APPENDS[way](store, time)
    assert list(store.read("t", isolation="read_committed")) == []


def test_where_the_log_stamps_a_datetime_is_taken_and_does_not_count(store: kstore.Store) -> None:
    assert store.append("stamped", b"v", timestamp=TIME).timestamp > MS


def test_a_time_is_searched_for_as_it_was_appended(store: kstore.Store) -> None:
    for step in (-1, 0, 1):
        store.append("t", b"%d" % step, timestamp=TIME + timedelta(milliseconds=step))
    log = store.log("t", 0)
    for time in (MS, TIME, ELSEWHERE):
        assert log.offset_for_timestamp(time) == (MS, 1)
        assert [record.offset for record in log.read(start_timestamp=time)] == [1, 2]
        assert [batch.base_offset for batch in log.read_batches(start_timestamp=time)] == [1, 2]
        assert log.read_columns(start_timestamp=time).offsets.tolist() == [1, 2]
        assert [record.offset for record in store.read("t", start_timestamp=time)] == [1, 2]
        assert next(store.read_columns("t", start_timestamp=time))[1].offsets.tolist() == [1, 2]
    assert log.offset_for_timestamp(BEFORE) == (MS - 1, 0)
    assert log.offset_for_timestamp(datetime.max.replace(tzinfo=UTC)) is None
    assert len(log.latest(as_of=TIME)) == 0  # records without keys are in no table


@pytest.mark.parametrize(
    "search",
    [
        lambda store: store.log("t", 0).offset_for_timestamp(NAIVE),
        lambda store: store.log("t", 0).read(start_timestamp=NAIVE),
        lambda store: store.log("t", 0).read_columns(start_timestamp=NAIVE),
        lambda store: store.read("t", start_timestamp=NAIVE),
        lambda store: store.log("t", 0).latest(as_of=NAIVE),
        lambda store: store.table("t", as_of=NAIVE),
    ],
)
def test_each_search_refuses_a_time_without_a_zone(store: kstore.Store, search: Callable[[kstore.Store], Any]) -> None:
    with pytest.raises(kstore.InvalidTimestampError, match=r"without a time zone.*datetime\.now\(timezone\.utc\)"):
        search(store)


def test_a_retry_with_the_same_datetime_is_a_retry(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.producer() as producer:
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(kstore.Log, "flush", lambda self: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    producer.append("t", b"v", timestamp=TIME, sync=True)
        producer.append("t", b"v", timestamp=TIME, sync=True)
    assert store.log("t", 0).log_end_offset == 1


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.timezones()))
def test_a_moment_is_the_millisecond_that_it_falls_in(time: datetime) -> None:
    try:
        found = times.milliseconds("time", time)
    except kstore.InvalidTimestampError:
        assert time < datetime(1970, 1, 1, tzinfo=UTC)
        return
    exact = time - datetime(1970, 1, 1, tzinfo=UTC)
    assert timedelta(milliseconds=found) <= exact < timedelta(milliseconds=found + 1)


WAYS = [
    ("text", "text.encode()"),
    (7, r"str\(number\)\.encode\(\)"),
    (True, r"str\(number\)\.encode\(\)"),
    (1.5, r"str\(number\)\.encode\(\)"),
    (Decimal(1), r"str\(number\)\.encode\(\)"),
    (TIME, r"time\.isoformat\(\)\.encode\(\)"),
    (date(2026, 1, 1), r"time\.isoformat\(\)\.encode\(\)"),
    (UUID(int=1), r"uuid\.bytes"),
    ({"a": 1}, r"json\.dumps\(value\)\.encode\(\)"),
    ([1], r"json\.dumps\(value\)\.encode\(\)"),
    (Path("a"), r"os\.fsencode\(path\)"),
    (object(), "not object$"),
]


@pytest.mark.parametrize(("value", "way"), WAYS, ids=lambda each: type(each).__name__)
def test_a_value_or_key_that_is_no_bytes_is_refused_with_the_way_to_bytes(
    store: kstore.Store, value: Any, way: str
) -> None:
    log = store.log("t", 0)
    for name, act in (
        ("value", lambda: log.append(value)),
        ("key", lambda: log.append(b"", value)),
        ("value", lambda: store.append("t", value)),
        ("key", lambda: store.append("t", b"", value)),
        ("value", lambda: store.producer().append("t", value)),
        ("value of record 0", lambda: log.append_many([(b"", value)])),
        ("key of record 0", lambda: store.append_many("t", [(value, b"")])),
        ("row 1 of values", lambda: log.append_columns([b"", value])),
        ("header value of record 0", lambda: log.append(b"", headers=[("h", value)])),
    ):
        with pytest.raises(TypeError, match=rf"^{name} (is a str|must be bytes-like).*{way}"):
            act()
    assert log.log_end_offset == 0


CLOCKS: list[tuple[Any, str]] = [
    (datetime(2026, 1, 2), "what the clock gives is 2026-01-02 00:00:00, without a time zone"),
    (None, "what the clock gives must be an int of milliseconds or a datetime with a time zone, not NoneType"),
    (1.5, "what the clock gives must be an int of milliseconds or a datetime with a time zone, not float"),
]


@pytest.mark.parametrize(("now", "words"), CLOCKS, ids=["no zone", "none", "float"])
def test_a_clock_that_gives_no_moment_is_told_by_what_opens(tmp_path: Path, now: Any, words: str) -> None:
    openings: dict[str, Callable[..., Any]] = {"events-0": kstore.Log.open, "data": kstore.Store.open}
    for name, opening in openings.items():
        with pytest.raises((TypeError, kstore.InvalidTimestampError), match=words):
            opening(tmp_path / name, clock=lambda: now)
        with pytest.raises(TypeError, match="clock must be callable, not int"):
            opening(tmp_path / name, clock=5)
        opening(tmp_path / name).close()


def test_a_clock_may_give_numpys_numbers_and_moments_in_a_zone(tmp_path: Path) -> None:
    for now in (np.int64(1_767_312_000_000), datetime(2026, 1, 2, tzinfo=UTC)):
        with kstore.Store.open(tmp_path / str(type(now).__name__), clock=lambda now=now: now) as store:
            store.create_topic("events")
            appended = store.append("events", b"x")
            assert (appended.timestamp, type(appended.timestamp)) == (1_767_312_000_000, int)
            assert next(store.log("events", 0).read()).timestamp == 1_767_312_000_000
