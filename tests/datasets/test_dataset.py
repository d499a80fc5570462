"""What a dataset has: topics, columns, ends, promises, errors; how little it reads; and every method of its class."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import kstore
from kstore.datasets import table_scan
from kstore.errors import (
    ConfigError,
    InvalidTimestampError,
    KStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

T = 1_700_000_000_000
COLUMNS = ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are returned piece by piece, too, as many rows are."""
    monkeypatch.setattr(table_scan, "TOGETHER", 0)


@pytest.fixture
def root(root: Path) -> Path:
    """Two topics: `orders` of two partitions with 100 records, and `visits` of one with 10."""
    with kstore.Store.open(root) as store:
        store.create_topic("orders", partitions=2, config={"segment.bytes": 2000, "index.interval.bytes": 200})
        store.create_topic("visits", partitions=1)
        for first in range(0, 100, 10):
            records = [(b"key %d" % (i % 7), b"value %d" % i, T + 1000 * i, ()) for i in range(first, first + 10)]
            store.append_many("orders", records)
        store.append_many("visits", [(None, None, T, [("h", b"1")])] * 10)
    return root


def time(seconds: float) -> Any:
    return pa.scalar(int(T + 1000 * seconds), pa.timestamp("ms", "UTC"))


def spans(dataset: Any, condition: Any) -> list[tuple[int, int]]:
    """The ranges of offsets that a scan reads."""
    return [tuple(span) for part in dataset.scanner(filter=condition)._scan.parts() for span in part.spans]


# ---- What is in it.


def test_the_columns_stand_in_the_documented_order_and_a_topic_last(root: Path) -> None:
    one, all_of_them = kstore.dataset(root, "orders"), kstore.dataset(root)
    assert one.schema.names == COLUMNS
    assert all_of_them.schema.names == [*COLUMNS, "topic"]
    kinds = ["int32", "int64", "timestamp[ms, tz=UTC]", "int8", "binary", "binary"]
    assert [str(field.type) for field in one.schema][:6] == kinds
    assert one.to_table().schema == one.schema


def test_topics_are_one_or_several_or_a_pattern_or_all(root: Path) -> None:
    def topics(topic: Any) -> list[Any]:
        table = kstore.dataset(root, topic).to_table()
        counts = table.group_by("topic").aggregate([("topic", "count")])
        return [(row["topic"], row["topic_count"]) for row in counts.to_pylist()]

    assert sorted(topics(["visits", "orders"])) == [("orders", 100), ("visits", 10)]
    assert topics(re.compile("v.*")) == [("visits", 10)]
    assert sorted(topics(None)) == [("orders", 100), ("visits", 10)]


def test_all_topics_are_those_that_are_not_internal(root: Path) -> None:
    with kstore.Store.open(root) as store:
        for topic in ("__kstore_ingested_files", "_schemas"):
            store.create_topic(topic)
            store.append(topic, b"x")
    assert set(kstore.dataset(root).to_table()["topic"].to_pylist()) == {"_schemas", "orders", "visits"}
    assert kstore.dataset(root, "__kstore_ingested_files").count_rows() == 1


def test_a_log_and_a_directory_of_a_partition_are_datasets(root: Path) -> None:
    with kstore.Log.open(root / "orders-1", "r") as log:
        rows = kstore.dataset(log).to_table()
    assert kstore.dataset(root / "orders-1").to_table() == rows
    assert set(rows["partition"].to_pylist()) == {1}
    assert kstore.dataset(root / "orders-1").schema.names == COLUMNS


def test_a_store_that_is_open_for_writing_is_read_without_its_lock(root: Path) -> None:
    with kstore.Store.open(root) as store:
        dataset, elsewhere = kstore.dataset(store, "orders"), kstore.dataset(root, "orders")
        assert dataset.count_rows() == elsewhere.count_rows() == 100
        store.append("orders", b"new", key=b"k")
        assert dataset.count_rows() == elsewhere.count_rows() == 101
        store.create_topic("later")
        assert kstore.dataset(store).count_rows(pc.field("topic") == "later") == 0


def test_new_partitions_are_in_the_next_scan(root: Path) -> None:
    dataset = kstore.dataset(root, "orders")
    assert dataset.count_rows() == 100
    with kstore.Store.open(root) as store:
        store.add_partitions("orders", 3)
        store.append("orders", b"new", partition=2)
    assert dataset.count_rows(pc.field("partition") == 2) == 1


def test_a_scan_ends_where_the_logs_ended_when_it_began(root: Path) -> None:
    with kstore.Store.open(root) as store:
        batches = kstore.dataset(store, "visits").scanner().to_batches()
        first = next(batches)
        store.append("visits", b"late")
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 10


def test_as_of_reads_an_earlier_state(root: Path) -> None:
    whole = kstore.dataset(root, "orders").to_table()
    until = datetime.fromtimestamp(T / 1000, UTC) + timedelta(seconds=30)
    by_time = kstore.dataset(root, "orders", as_of=until).to_table()
    assert by_time.num_rows == whole.filter(pc.field("timestamp") <= time(30)).num_rows == 31
    by_offset = kstore.dataset(root, "orders", as_of={0: 5})
    assert by_offset.count_rows(pc.field("partition") == 0) == 5
    assert kstore.dataset(root, "orders", as_of=3).count_rows() == 6


def test_latest_has_the_newest_record_of_each_key(root: Path) -> None:
    dataset = kstore.dataset(root, "orders", latest=True)
    assert sorted(dataset.to_table()["value"].to_pylist()) == [b"value %d" % i for i in range(93, 100)]
    assert dataset.to_table(columns=["key"], filter=pc.field("value") == b"value 95").to_pylist() == [{"key": b"key 4"}]
    assert dataset.schema.names == [name for name in COLUMNS if name != "timestamp_type"]
    with kstore.Log.open(root / "orders-0", "r") as log:
        assert kstore.dataset(log, latest=True).count_rows() == len(log.latest())


def test_committed_rows_are_those_of_committed_transactions(root: Path) -> None:
    with kstore.Store.open(root) as store:
        producer = store.producer(transactional_id="t")
        transaction = producer.transaction()
        with transaction as txn:
            txn.append("visits", b"open", partition=0)
            assert kstore.dataset(store, "visits").count_rows() == 11
            assert kstore.dataset(store, "visits", isolation="read_committed").count_rows() == 10
        assert kstore.dataset(store, "visits", isolation="read_committed").count_rows() == 11


def test_a_count_without_a_condition_reads_headers_of_batches_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    kept = kstore.Log.iter_columns
    monkeypatch.setattr(kstore.Log, "iter_columns", lambda *a, **k: read.append(k) or kept(*a, **k))
    dataset = kstore.dataset(root, "orders")
    assert dataset.count_rows() == 100
    assert duckdb.sql("select count(*) from dataset").fetchall() == [(100,)]
    assert dataset.to_table(columns=["partition"]).num_rows == 100
    assert read == []
    assert dataset.count_rows(pc.field("offset") < 7) == 14
    assert read


def test_rows_without_a_column_are_counted(root: Path) -> None:
    dataset = kstore.dataset(root, "orders")
    assert dataset.to_table(columns=[]).num_rows == 100
    assert dataset.to_table(columns=[], filter=pc.field("partition") == 0).num_rows > 0
    assert dataset.to_table(columns=[], filter=pc.field("offset") < 3).num_rows == 6
    assert dataset.to_table(columns=[], filter=pc.field("key") == b"key 3").num_rows == 14


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_counts_of_compacted_and_old_and_cut_batches_are_those_of_their_records(
    partition: Path, compression: str
) -> None:
    with kstore.Log.open(partition, cleanup_policy="compact") as log:
        for first in range(0, 60, 20):
            log.append_many([(b"%d" % (i % 9), b"v") for i in range(first, first + 20)], compression=compression)
        log.roll()
        log.append_many([(b"x", b"v")] * 4)
        log.compact()
        records = list(log.read())
        for start, end in [(0, 64), (3, 61), (50, 55), (log.log_end_offset, log.log_end_offset)]:
            wanted = sum(start <= record.offset < end for record in records)
            counts = table_scan.record_counts(log, table_scan.Span(start, end), "read_uncommitted")
            assert sum(counts) == wanted, (start, end)


# ---- How little is read.


def test_bounds_become_ranges_of_offsets(root: Path) -> None:
    dataset = kstore.dataset(root / "orders-0")
    end = dataset.count_rows()
    stamps = dataset.to_table(columns=["timestamp"])["timestamp"].cast(pa.int64()).to_pylist()
    first = next(offset for offset, stamp in enumerate(stamps) if stamp >= T + 40_000)
    assert spans(dataset, pc.field("offset") == 5) == [(5, 6)]
    assert spans(dataset, (pc.field("offset") < 3) | (pc.field("offset") > 9)) == [(0, 3), (10, end)]
    assert spans(dataset, pc.field("timestamp") >= time(40)) == [(first, end)]
    assert spans(dataset, pc.field("partition") == 1) == []
    assert spans(dataset, (pc.field("timestamp") >= time(40)) & (pc.field("offset") < first)) == []


def test_an_upper_bound_of_time_ends_the_range_if_lateness_is_promised(root: Path) -> None:
    dataset = kstore.dataset(root / "orders-0", max_lateness=0)
    stamps = dataset.to_table(columns=["timestamp"])["timestamp"].cast(pa.int64()).to_pylist()
    hour = (pc.field("timestamp") >= time(40)) & (pc.field("timestamp") < time(60))
    [(start, end)] = spans(dataset, hour)
    assert [stamp for stamp in stamps if T + 40_000 <= stamp < T + 60_000] == stamps[start:end]
    later = kstore.dataset(root / "orders-0", max_lateness=timedelta(seconds=10))
    [(start, further)] = spans(later, hour)
    assert stamps[further - 1] < T + 70_000
    assert further > end


def test_a_second_scan_knows_the_times_that_the_first_one_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.datasets.known_times.PIECE_ROWS", 4)
    dataset = kstore.dataset(root / "orders-0")
    hour = (pc.field("timestamp") >= time(20)) & (pc.field("timestamp") < time(30))
    rows = dataset.count_rows()
    [(start, end)] = spans(dataset, hour)
    assert end == rows
    wanted = dataset.to_table(filter=hour)
    [(again, shorter)] = spans(dataset, hour)
    assert again == start
    assert shorter - start <= wanted.num_rows + 8
    assert dataset.to_table(filter=hour) == wanted


def test_what_a_scan_knew_is_forgotten_when_records_are_removed(root: Path) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        dataset = kstore.dataset(log)
        early = pc.field("timestamp") < time(3)
        before = dataset.count_rows(early)
        log.truncate_to(log.log_end_offset - 5)
        log.append(b"an old time", timestamp=T)
        assert dataset.count_rows(early) == before + 1


def test_a_record_that_breaks_the_promise_of_lateness_is_an_error(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([(b"k", b"v", T + 5000, ()), (b"k", b"v", T, ())])
        dataset = kstore.dataset(log, max_lateness=4999)
        with pytest.raises(InvalidTimestampError, match=r"events-0: the record at offset 1 .* max_lateness, 4999 ms"):
            dataset.to_table(filter=pc.field("timestamp") < time(100))
        assert kstore.dataset(log, max_lateness=5000).count_rows(pc.field("timestamp") < time(100)) == 2


def test_a_record_in_the_future_hides_no_later_record_of_a_promised_order(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"in the future", timestamp=T + 10**9)
        log.append(b"now", timestamp=T)
        dataset = kstore.dataset(log, max_lateness=1000)
        with pytest.raises(
            InvalidTimestampError, match=r"events-0: the last record, at offset 1, .* max_lateness, 1000 ms"
        ):
            dataset.to_table(filter=pc.field("timestamp") < time(100))


def test_the_end_of_a_transaction_has_a_clocks_time_and_ends_no_range(root: Path) -> None:
    with kstore.Store.open(root) as store:
        with store.producer(transactional_id="t").transaction() as transaction:
            transaction.append("visits", b"in it", timestamp=T)
        store.append("visits", b"after it", timestamp=T)
        dataset = kstore.dataset(store, "visits", max_lateness=0)
        assert dataset.count_rows(pc.field("timestamp") < time(1)) == 12


def test_a_condition_on_keys_reads_only_their_partitions_if_that_is_promised(root: Path) -> None:
    name, key = pc.field("key"), b"key 3"
    with kstore.Store.open(root, mode="r") as store:
        home = store.partition_for("orders", key)
        dataset = kstore.dataset(store, "orders", partitioned_by_key=True)
        for condition in (name == key, name.isin([key]), (name == key) & (pc.field("offset") > 1)):
            assert [part.number for part in dataset.scanner(filter=condition)._scan.parts()] == [home]
            assert dataset.to_table(filter=condition) == kstore.dataset(store, "orders").to_table(filter=condition)
        for condition in (name != key, name > key, (name == key) | (pc.field("offset") == 1)):
            assert len(dataset.scanner(filter=condition)._scan.parts()) == 2


def test_only_the_columns_that_are_asked_for_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, ...]] = []
    kept = kstore.Log.iter_columns
    monkeypatch.setattr(kstore.Log, "iter_columns", lambda *a, **k: read.append(k["columns"]) or kept(*a, **k))
    dataset = kstore.dataset(root / "orders-0")
    assert duckdb.sql("select key from dataset").fetchall()
    assert dataset is not None
    kstore.scan_polars(root / "orders-0").filter(pl.col("offset") > 3).select(pl.col("value").max()).collect()
    assert read == [("key",), ("offset", "value")]


def test_other_columns_are_read_for_selected_rows_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, built = table_scan.read_kept, []
    monkeypatch.setattr(table_scan, "read_kept", lambda *a: built.append((len(a[1]), a[3])) or kept(*a))
    condition = (pc.field("key") == b"key 3") & (pc.field("timestamp") == time(3))
    rows = kstore.dataset(root, "orders").to_table(columns=["value"], filter=condition).to_pylist()
    assert rows == [{"value": b"value 3"}]
    assert built == [(1, ("timestamp", "key", "value"))]


def test_head_and_limit_and_close_stop_the_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    kept = kstore.Log.iter_columns

    def counted(log: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        nonlocal taken
        for chunk in kept(log, *arguments, **{**named, "max_records": 5}):
            taken += 1
            yield chunk

    monkeypatch.setattr(kstore.Log, "iter_columns", counted)
    dataset = kstore.dataset(root, "orders")
    assert dataset.head(3).num_rows == 3
    assert taken == 1
    assert kstore.scan_polars(root, "orders").head(7).collect().height == 7
    assert taken == 3
    reader = dataset.scanner().to_reader()
    reader.read_next_batch()
    reader.close()
    assert taken == 4
    assert len(duckdb.sql("select * from dataset limit 4").fetchall()) == 4
    assert taken < 24


def test_a_scan_holds_no_more_than_some_chunks_in_memory(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        for _ in range(8):
            log.append_columns([b"x" * 1000] * 20_000)
        dataset = kstore.dataset(log)
        gc.collect()
        before, most, rows = pa.total_allocated_bytes(), 0, 0
        for batch in dataset.to_batches(filter=pc.field("offset") >= 0):
            rows += batch.num_rows
            most = max(most, batch.nbytes)
    assert rows == 160_000
    assert most < 16 << 20
    assert pa.total_allocated_bytes() - before < 32 << 20


# ---- Errors.


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"topic": "nowhere"}, UnknownTopicOrPartitionError, "there is no topic 'nowhere'"),
        ({"topic": []}, ConfigError, "no topic is named"),
        ({"topic": ["orders", "orders"]}, ConfigError, "'orders' is named twice"),
        ({"topic": [1]}, TypeError, "a topic is a str, not int"),
        ({"isolation": "serializable"}, ValueError, "isolation is 'serializable'"),
        ({"max_lateness": -1}, ValueError, "max_lateness"),
        ({"as_of": datetime(2026, 1, 1)}, InvalidTimestampError, "as_of"),
        ({"as_of": "yesterday"}, TypeError, "as_of"),
        ({"threads": 0}, ValueError, "threads"),
    ],
)
def test_bad_arguments_are_refused(root: Path, arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    for make in (kstore.dataset, kstore.scan_polars):
        with pytest.raises(error, match=re.escape(says)):
            make(root, **arguments)


def test_a_log_of_another_topic_and_a_missing_directory_are_refused(root: Path) -> None:
    with kstore.Log.open(root / "orders-0", "r") as log, pytest.raises(ConfigError, match="the log is one of 'orders'"):
        kstore.dataset(log, "visits")
    with pytest.raises(KStoreError):
        kstore.dataset(root / "nothing")


def test_an_unknown_column_is_named_with_the_known_ones(root: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'colour'; it has partition, offset"):
        kstore.dataset(root, "orders").to_table(columns=["colour"])


def test_a_topic_that_is_deleted_under_a_scan_raises(root: Path) -> None:
    with kstore.Store.open(root) as store:
        dataset = kstore.dataset(store, "orders")
        batches = dataset.to_batches()
        next(batches)
        store.delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError, match="topic orders has been deleted while it was read"):
            list(batches)
        with pytest.raises(UnknownTopicOrPartitionError):
            dataset.to_table()


def test_records_that_are_deleted_before_they_are_read_raise(root: Path) -> None:
    with kstore.Store.open(root) as store:
        batches = kstore.dataset(store, "orders").to_batches()
        next(batches)
        log = store.log("orders", 1)
        log.delete_records(log.log_end_offset)
        with pytest.raises(OffsetOutOfRangeError):
            list(batches)


def test_duckdb_reports_an_error_of_a_log_with_its_words(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([(b"k", b"v", T + 5000, ()), (b"k", b"v", T, ())])
        dataset = kstore.dataset(log, max_lateness=0)
        assert dataset is not None
        with pytest.raises(duckdb.Error, match="by more than max_lateness"):
            duckdb.sql("select count(*) from dataset where timestamp < now()").fetchall()


# ---- The class of PyArrow.


def test_every_method_of_a_dataset_works_or_says_why_not(root: Path) -> None:
    """The object has no dataset of the C++ library: a method that is forgotten would end the process."""
    dataset = kstore.dataset(root, "orders")
    forgotten = {name for name in dir(pads.Dataset) if not name.startswith("__")} - set(vars(type(dataset)))
    assert forgotten == set()
    other = pa.table({"offset": [1, 2], "colour": ["red", "blue"]})
    with pytest.raises(pa.ArrowInvalid, match="headers"):  # PyArrow joins no lists
        dataset.join(pads.InMemoryDataset(other), "offset", join_type="inner")
    moments = pa.table({"timestamp": pa.array([T], pa.timestamp("ms", "UTC")), "partition": pa.array([0], pa.int32())})
    by_time = dataset.sort_by("timestamp")
    assert by_time.head(1).num_rows == 1
    narrow = kstore.dataset(root, "orders").filter(pc.field("offset") == 3)
    with pytest.raises(pa.ArrowInvalid):
        narrow.join_asof(pads.InMemoryDataset(moments), "timestamp", "partition", 0)
    assert narrow.filter(pc.field("partition") == 1).count_rows() == 1
    assert dataset.take([3, 1], columns=["offset"])["offset"].to_pylist() == [3, 1]
    assert [fragment.count_rows() for fragment in dataset.get_fragments(pc.field("partition") == 1)] == [
        dataset.count_rows(pc.field("partition") == 1)
    ]
    offset = pc.field("offset")
    doubled = dataset.to_table(columns={"twice": offset + offset}, filter=offset == 4)
    assert doubled["twice"].to_pylist() == [8, 8]
    assert [batch.num_rows for batch in dataset.to_batches(batch_size=30)][:1] == [30]
    with pytest.raises(ConfigError, match="fixed"):
        dataset.replace_schema(dataset.schema)
    with pytest.raises(TypeError):
        pads.write_dataset(dataset, root / "out", format="parquet")


def test_the_logs_of_a_dataset_are_closed_with_it(root: Path) -> None:
    dataset = kstore.dataset(root, "orders")
    dataset.count_rows()
    store = dataset._table.source._store
    del dataset
    gc.collect()
    assert store.closed


def test_several_threads_scan_one_dataset(root: Path) -> None:
    dataset, counts = kstore.dataset(root, "orders"), []
    threads = [
        threading.Thread(target=lambda: counts.append(dataset.count_rows(pc.field("timestamp") < time(50))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [50] * 6


def test_kstore_is_imported_without_pyarrow_and_polars() -> None:
    code = "import sys, kstore; kstore.dataset, kstore.scan_polars; assert not {'pyarrow', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


@pytest.mark.parametrize(("call", "says"), [("dataset", "kstore[arrow]"), ("scan_polars", "kstore[polars]")])
def test_a_missing_library_is_an_error_that_names_the_extra(
    root: Path, call: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow.acero", "polars.io.plugins"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=re.escape(says)):
        getattr(kstore, call)(root, "orders")


def test_few_rows_are_one_batch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = kstore.dataset(root)
    whole = dataset.to_table()
    assert sum(1 for _ in dataset.to_batches()) == 3
    monkeypatch.setattr(table_scan, "TOGETHER", 110)
    assert list(dataset.to_batches()) == whole.combine_chunks().to_batches()
    assert list(dataset.to_batches(filter=pc.field("partition") == 9)) == []
    monkeypatch.setattr(table_scan, "TOGETHER", 109)
    assert sum(1 for _ in dataset.to_batches()) == 3
