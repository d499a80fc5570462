"""`store.table()`: the tables of a topic's partitions as one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import ConsumerRecord, LogClosedError, OffsetOutOfRangeError, Store, Table, UnknownTopicOrPartitionError
from kstore.columns.keyed_rows import ROW_COLUMNS
from tests.conftest import ManualClock

T = 1_700_000_000_000
NAMES = ("partition", *ROW_COLUMNS)


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def newest_of(store: Store, topic: str, ends: dict[int, int] | None = None) -> dict[bytes, ConsumerRecord]:
    """The model: a dictionary for each partition, and of each key the record with the greatest timestamp."""
    merged: dict[bytes, ConsumerRecord] = {}
    for number in store.partitions(topic):
        table: dict[bytes, ConsumerRecord] = {}
        for record in store.log(topic, number).read(end_offset=(ends or {}).get(number), isolation="read_committed"):
            if record.key is not None:
                table.pop(record.key, None)
                if record.value is not None:
                    table[record.key] = ConsumerRecord(topic, number, *record)
        for key, newest in table.items():
            if key not in merged or newest.timestamp >= merged[key].timestamp:
                merged[key] = newest
    return merged


def check(table: Table, expected: dict[bytes, ConsumerRecord]) -> None:
    """Every way to look at a table says the same."""
    rows = sorted(expected.values(), key=lambda record: (record.partition, record.offset))
    assert list(table) == rows
    assert len(table) == len(expected)
    assert dict(table.items()) == expected
    assert list(table.keys()) == [row.key for row in rows]
    for key in [*expected, b"no such key"]:
        assert (key in table) == (key in expected)
        assert table.get(key) == expected.get(key)
    columns = table.columns(NAMES)
    assert [tuple(row) for row in zip(*(list(columns[name]) for name in NAMES), strict=True)] == [
        tuple(row)[1:] for row in rows
    ]
    assert sum(map(len, table.iter_columns(["partition"]))) == len(expected)


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.open(root, clock=clock, background=False, segment_bytes=4096, index_interval_bytes=200) as store:
        store.create_topic("accounts", partitions=3, config={"cleanup.policy": "compact"})
        yield store


def fill(store: Store, rng: random.Random, clock: ManualClock, records: int, astray: float = 0.0) -> None:
    """Append records to the partition of their key, and a share of them to any partition."""
    for _ in range(records):
        key = b"key %d" % rng.randrange(40)
        value = rng.choice((None, b"", rng.randbytes(rng.randrange(50))))
        partition = rng.randrange(3) if rng.random() < astray else None
        headers = [("h", b"1")] if rng.random() < 0.1 else None
        clock.advance(rng.randrange(-2, 5))
        store.append("accounts", value, key, partition=partition, headers=headers)


def test_a_table_is_what_dictionaries_over_the_partitions_are(
    store: Store, rng: random.Random, clock: ManualClock
) -> None:
    check(store.table("accounts"), {})
    for _ in range(5):
        fill(store, rng, clock, 100)
        check(store.table("accounts"), newest_of(store, "accounts"))


def test_of_a_key_in_two_partitions_the_later_record_counts(
    store: Store, rng: random.Random, clock: ManualClock
) -> None:
    store.append("accounts", b"early", b"k", partition=2, timestamp=T)
    store.append("accounts", b"late", b"k", partition=0, timestamp=T + 1)
    store.append("accounts", b"low", b"same", partition=0, timestamp=T)
    store.append("accounts", b"high", b"same", partition=1, timestamp=T)
    table = store.table("accounts")
    assert {record.key: (record.partition, record.value) for record in table} == {
        b"k": (0, b"late"),
        b"same": (1, b"high"),
    }
    store.append("accounts", None, b"k", partition=0, timestamp=T + 2)  # deletes it there alone
    assert store.table("accounts")[b"k"].value == b"early"
    for _ in range(5):
        fill(store, rng, clock, 100, astray=0.3)
        check(store.table("accounts"), newest_of(store, "accounts"))


def test_a_table_of_the_past(store: Store, rng: random.Random, clock: ManualClock) -> None:
    fill(store, rng, clock, 300, astray=0.1)
    logs = {number: store.log("accounts", number) for number in store.partitions("accounts")}
    for _ in range(20):
        ends = {number: rng.randrange(log.log_end_offset + 1) for number, log in logs.items() if rng.random() < 0.8}
        table = store.table("accounts", as_of=ends)
        check(table, newest_of(store, "accounts", ends))
        assert table.end_offsets == {number: ends.get(number, log.log_end_offset) for number, log in logs.items()}
        time = rng.randrange(T - 5, clock.now + 5)
        ends = {}
        for number, log in logs.items():
            later = log.offset_for_timestamp(time + 1)
            ends[number] = log.log_end_offset if later is None else later.offset
        check(store.table("accounts", as_of=at(time)), newest_of(store, "accounts", ends))


def test_a_store_that_only_reads_has_the_same_table(
    store: Store, root: Path, rng: random.Random, clock: ManualClock
) -> None:
    fill(store, rng, clock, 100, astray=0.2)
    with Store.open(root, "r") as reader:
        check(reader.table("accounts"), newest_of(store, "accounts"))
        fill(store, rng, clock, 100)
        check(reader.table("accounts"), newest_of(store, "accounts"))


def test_transactions_count_from_their_end_on(store: Store) -> None:
    store.append("accounts", b"old", b"k", partition=0)
    with store.producer(transactional_id="t") as producer:
        with producer.transaction() as transaction:
            transaction.append("accounts", b"new", b"k", partition=0)
            assert store.table("accounts")[b"k"].value == b"old"
        assert store.table("accounts")[b"k"].value == b"new"
        transaction = producer.transaction()
        transaction.append("accounts", b"never", b"k", partition=0)
        transaction.abort()
    assert store.table("accounts")[b"k"].value == b"new"


def test_engines_take_the_table_itself(store: Store, rng: random.Random, clock: ManualClock) -> None:
    pa = pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    fill(store, rng, clock, 300)
    table = accounts = store.table("accounts")
    rows = [(row.partition, row.offset, row.timestamp, row.key, row.value) for row in table]
    assert [tuple(row.values()) for row in pa.table(table).to_pylist()] == rows
    assert [tuple(row.values()) for row in pa.record_batch(table.columns()).to_pylist()] == rows
    assert pl.DataFrame(table).rows() == rows
    assert (
        duckdb.sql('select partition, "offset", "timestamp", key, value from accounts order by 1, 2').fetchall() == rows
    )
    assert accounts.topic == "accounts"


def test_bad_questions_are_refused(store: Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        store.table("no such topic")
    with pytest.raises(UnknownTopicOrPartitionError):
        store.table("accounts", as_of={7: 0})
    with pytest.raises(OffsetOutOfRangeError):
        store.table("accounts", as_of={0: 1})
    with pytest.raises(ValueError, match="without a time zone"):
        store.table("accounts", as_of=datetime(2020, 1, 1))
    bad: Any
    for bad in (5, "2020-01-01", b"", [0], True):
        with pytest.raises(TypeError, match="as_of must be a datetime, a mapping"):
            store.table("accounts", as_of=bad)
    for bad in ({0: "1"}, {"0": 1}, {0: 1.5}):
        with pytest.raises(TypeError):
            store.table("accounts", as_of=bad)


def test_a_table_outlives_its_store_and_its_topic(root: Path, rng: random.Random, clock: ManualClock) -> None:
    with Store.open(root, clock=clock, background=False) as store:
        store.create_topic("accounts", partitions=3)
        fill(store, rng, clock, 50)
        table, expected = store.table("accounts"), newest_of(store, "accounts")
        store.delete_topic("accounts")
        with pytest.raises(UnknownTopicOrPartitionError):
            store.table("accounts")
        check(table, expected)
    check(table, expected)
    with pytest.raises(LogClosedError):
        store.table("accounts")
    assert repr(table) == f"<kstore.Table 'accounts' of {len(table)} keys in 3 partitions>"
    assert isinstance(table, kstore.Table)
