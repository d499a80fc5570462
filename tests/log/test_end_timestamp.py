"""Reads that end at a time: by a model, in each way to read, and what is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore import InvalidTimestampError, Log, Store
from tests.conftest import ManualClock

T = 1_700_000_000_000
SPAN_MS = 100  # all times are in [T, T + SPAN_MS)


class Place(NamedTuple):
    """A record of the model, or the end of a transaction."""

    offset: int
    timestamp: int
    is_control: bool = False


def model_of(log: Log) -> list[Place]:
    """All records of a log, the ends of transactions among them."""
    records = [Place(record.offset, record.timestamp) for record in log.read()]
    ends = [Place(batch.base_offset, batch.max_timestamp, True) for batch in log.read_batches() if batch.is_control]
    return sorted([*records, *ends])


def expected(
    places: list[Place], start: int | None = None, end: int | None = None, end_offset: int | None = None
) -> list[int]:
    """The offsets from the first record at or after `start` on, before the first at or after `end`."""
    first = 0 if start is None else position(places, start)
    last = len(places) if end is None else position(places, end)
    kept = (place for place in places[first:last] if not place.is_control)
    return [place.offset for place in kept if end_offset is None or place.offset < end_offset]


def position(places: list[Place], timestamp: int) -> int:
    return next((number for number, place in enumerate(places) if place.timestamp >= timestamp), len(places))


def fill(log: Log, clock: ManualClock, rng: random.Random, records: int) -> None:
    """Append records with times in any order and few keys, in batches of several sizes and in transactions."""
    late = rng.choice((0, 3, SPAN_MS))
    at, left = 0, records
    while left > 0:
        count = rng.randrange(1, 8)
        left -= count
        at = min(at + rng.randrange(3), SPAN_MS - 1)
        batch = [
            kstore.Record(0, T + max(at - rng.randrange(late + 1), 0), b"%d" % rng.randrange(20), b"value", ())
            for _ in range(count)
        ]
        clock.now = T + at
        if rng.random() < 0.2:
            producer = log.log_end_offset
            log.append_many(batch, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
            log.append_marker(producer, 0, commit=rng.random() < 0.7)
        else:
            log.append_many(batch, compression=rng.choice((None, "lz4")))
        if rng.random() < 0.1:
            log.roll()


def ways(log: Log, times: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The offsets that each way to read a log finds."""

    async def gather() -> tuple[list[int], list[int]]:
        chunks = [chunk async for chunk in log.aread_columns(**times)]
        return [r.offset async for r in log.aread(**times)], [n for each in chunks for n in each.offsets.tolist()]

    yield "read", [record.offset for record in log.read(**times)]
    yield "read_columns", log.read_columns(**times).offsets.tolist()
    yield "iter_columns", [n for chunk in log.iter_columns(max_records=5, **times) for n in chunk.offsets.tolist()]
    yield "iter_columns in chunks", [n for chunk in log.iter_columns(**times) for n in chunk.offsets.tolist()]
    yield from zip(("aread", "aread_columns"), asyncio.run(gather()), strict=True)


@pytest.fixture
def store(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Store]:
    """A store with a topic `events` of two partitions, housekeeping left to the test."""
    settings: dict[str, Any] = {"segment_bytes": 1200, "index_interval_bytes": 100, "cleanup_policy": "compact,delete"}
    with Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 2, **settings)
        yield store


def test_each_read_ends_where_a_model_in_plain_python_does(
    store: Store, clock: ManualClock, rng: random.Random
) -> None:
    logs = [store.log("events", number) for number in store.partitions("events")]
    for _ in range(3):
        for log in logs:
            fill(log, clock, rng, 60)
        if rng.random() < 0.7:
            logs[0].compact()
        if rng.random() < 0.3:
            logs[1].delete_records(rng.randrange(logs[1].log_start_offset, logs[1].log_end_offset))
        models = [model_of(log) for log in logs]
        for _ in range(12):
            start, end = (rng.choice((None, T + rng.randrange(-1, SPAN_MS + 2))) for _ in range(2))
            end_offset = rng.choice((None, None, rng.randrange(logs[0].log_end_offset + 5)))
            times = {"start_timestamp": start, "end_timestamp": end}
            for how, found in ways(logs[0], {**times, "end_offset": end_offset}):
                assert found == expected(models[0], start, end, end_offset), (how, start, end, end_offset)
            wanted = [(number, offset) for number in (0, 1) for offset in expected(models[number], start, end)]
            assert [(r.partition, r.offset) for r in store.read("events", **times)] == wanted
            assert sorted((r.partition, r.offset) for r in store.read("events", merge="timestamp", **times)) == wanted
            columns = store.read_columns("events", **times)
            assert [(number, n) for number, chunk in columns for n in chunk.offsets.tolist()] == wanted
            assert asyncio.run(read_topic(store, times)) == (wanted, wanted)
            committed = {record.offset for record in logs[0].read(isolation="read_committed")}
            found = [record.offset for record in logs[0].read(isolation="read_committed", **times)]
            assert found == [offset for offset in expected(models[0], start, end) if offset in committed]


async def read_topic(store: Store, times: dict[str, Any]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    records = [(record.partition, record.offset) async for record in store.aread("events", **times)]
    columns = [(number, n) async for number, each in store.aread_columns("events", **times) for n in each.offsets]
    return records, columns


def test_a_read_up_to_a_time_and_one_from_it_have_each_record_once(
    store: Store, clock: ManualClock, rng: random.Random
) -> None:
    log = store.log("events", 0)
    fill(log, clock, rng, 100)
    every = [record.offset for record in log.read()]
    for time in range(T - 1, T + SPAN_MS + 1):
        before = [record.offset for record in log.read(end_timestamp=time)]
        assert before + [record.offset for record in log.read(start_timestamp=time)] == every


@pytest.fixture
def log(partition: Path, clock: ManualClock) -> Iterator[Log]:
    """A log with the times T, T + 5, T + 3 (late), T + 9."""
    with Log.open(partition, clock=clock) as log:
        for after in (0, 5, 3, 9):
            log.append(b"%d" % after, timestamp=T + after)
        yield log


def values(records: Any) -> list[bytes]:
    return [record.value for record in records]


def test_a_late_record_is_left_out_behind_the_end_and_kept_before_it(log: Log) -> None:
    assert values(log.read(end_timestamp=T + 4)) == [b"0"]
    assert values(log.read(end_timestamp=T + 6)) == [b"0", b"5", b"3"]


def test_the_end_of_a_read_is_the_logs_end_if_no_record_is_that_late(log: Log) -> None:
    assert values(log.read(2, end_timestamp=T + 10)) == [b"3", b"9"]
    assert log.read_columns(end_timestamp=T + 10).next_offset == 4
    assert len(log.batch_table(end_timestamp=T + 10)) == 4


def test_of_an_end_offset_and_an_end_timestamp_the_smaller_end_holds(log: Log) -> None:
    assert values(log.read(end_offset=2, end_timestamp=T + 9)) == [b"0", b"5"]
    assert values(log.read(end_offset=3, end_timestamp=T + 5)) == [b"0"]


def test_a_read_that_ends_before_its_start_is_empty(log: Log) -> None:
    for times in ({"start_timestamp": T + 9, "end_timestamp": T + 5}, {"offset": 3, "end_timestamp": T}):
        for how, found in ways(log, times):
            assert found == [], how
        assert list(log.read_batches(**times)) == []
        assert len(log.batch_table(**times)) == 0
    assert log.read_columns(3, end_timestamp=T).next_offset == 3


def test_batches_end_with_the_one_before_the_time(log: Log) -> None:
    assert [batch.base_offset for batch in log.read_batches(end_timestamp=T + 5)] == [0]
    assert log.batch_table(end_timestamp=T + 9)["base_offset"].tolist() == [0, 1, 2]


def test_the_end_is_found_once_when_the_read_starts(log: Log) -> None:
    records, columns = log.read(end_timestamp=T + 20), log.iter_columns(end_timestamp=T + 20, max_records=1)
    log.append_many([kstore.Record(0, T + 1, None, b"late", ()), kstore.Record(0, T + 30, None, b"new", ())])
    assert values(records) == [b"0", b"5", b"3", b"9"]
    assert sum(map(len, columns)) == 4


def test_the_end_of_a_transaction_counts_as_a_record(partition: Path, clock: ManualClock) -> None:
    with Log.open(partition, clock=clock) as log:
        log.append_many([b"in"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        clock.advance(10)
        log.append_marker(7, 0, commit=True)
        log.append(b"old", timestamp=clock.now - 5)
        assert values(log.read(end_timestamp=clock.now)) == [b"in"]
        assert values(log.read(start_timestamp=clock.now)) == [b"old"]
        assert values(log.read(end_timestamp=clock.now + 1)) == [b"in", b"old"]


def test_another_process_ends_at_the_same_record(log: Log, partition: Path) -> None:
    log.flush()
    with Log.open(partition, "r") as reader:
        assert values(reader.read(end_timestamp=T + 5)) == [b"0"]
        log.append(b"7", timestamp=T + 7)
        assert values(reader.read(4, end_timestamp=T + 20)) == [b"7"]


def test_a_datetime_is_an_end_and_one_before_1970_is_its_start(log: Log) -> None:
    time = datetime.fromtimestamp(T // 1000, UTC) + timedelta(milliseconds=5, microseconds=900)
    assert values(log.read(end_timestamp=time)) == [b"0"]
    assert values(log.read(end_timestamp=datetime(1900, 1, 1, tzinfo=UTC))) == []
    assert len(values(log.read(end_timestamp=datetime.max.replace(tzinfo=UTC)))) == 4


@pytest.mark.parametrize(
    ("time", "error", "text"),
    [
        (datetime(2026, 1, 1), InvalidTimestampError, "end_timestamp is 2026-01-01 00:00:00, without a time zone"),
        (1.5, TypeError, "end_timestamp must be an int of milliseconds or a datetime"),
        (2**63, ValueError, "end_timestamp is"),
    ],
)
def test_a_wrong_end_timestamp_is_refused_by_its_name(store: Store, time: Any, error: type, text: str) -> None:
    log = store.log("events", 0)
    calls: list[Any] = [log.read, log.read_batches, log.aread, log.read_columns, log.iter_columns, log.aread_columns]
    for call in [*calls, log.batch_table]:
        with pytest.raises(error, match=text):
            call(end_timestamp=time)
    for call in (store.read, store.aread, store.read_columns, store.aread_columns):
        with pytest.raises(error, match=text):
            call("events", end_timestamp=time)


def test_a_read_that_follows_refuses_an_end_timestamp(store: Store) -> None:
    log = store.log("events", 0)
    for call in (log.read, log.read_batches, log.aread):
        with pytest.raises(ValueError, match="give follow or an end_timestamp, not both"):
            call(follow=True, end_timestamp=T)
    for read in (store.read, store.aread):
        with pytest.raises(ValueError, match="give follow or an end_timestamp, not both"):
            read("events", follow=True, end_timestamp=T)
