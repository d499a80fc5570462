"""A topic as an Arrow stream, in the hands of PyArrow, Polars, DuckDB and pandas."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store, UnknownTopicOrPartitionError
from kstore.columns._columns import COLUMN_NAMES

pa = pytest.importorskip("pyarrow")

T = 1_700_000_000_000
NAMES = ["partition", "offset", "timestamp", "key", "value"]


@pytest.fixture
def store(root: Path, no_syncs: None) -> Iterator[Store]:
    """A store with a topic `events` of three partitions, whose records lie in several segments."""
    with Store.open(root, background=False) as store:
        store.create_topic("events", 3, segment_bytes=2000)
        fill(store, 0, 300)
        yield store


def fill(store: Store, first: int, stop: int) -> None:
    for begin in range(first, stop, 20):
        store.append_many("events", [record(i) for i in range(begin, begin + 20)], compression="lz4")


def record(i: int) -> kstore.Record:
    value = None if i % 10 == 0 else b"value %d" % i
    return kstore.Record(0, T + i, b"key %d" % (i % 7) if i % 2 else None, value, (("h", b"%d" % i),))


def rows_of(store: Store) -> list[tuple[Any, ...]]:
    return [(r.partition, r.offset, r.timestamp, r.key, r.value) for r in store.read("events")]


def rows_in(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in NAMES) for row in table.to_pylist()]


def test_pyarrow_reads_all_partitions_in_their_order(store: Store) -> None:
    stream = store.topic_stream("events")
    table = pa.table(stream)
    table.validate(full=True)
    assert table.column_names == NAMES
    assert pa.schema(stream) == table.schema
    assert table.schema.field("partition") == pa.field("partition", pa.int32(), nullable=False)
    assert rows_in(table) == rows_of(store)
    assert set(table["partition"].to_pylist()) == {0, 1, 2}


def test_polars_takes_the_stream(store: Store) -> None:
    polars = pytest.importorskip("polars")
    stream = store.topic_stream("events")
    for frame in (polars.DataFrame(stream), polars.from_arrow(pa.table(stream))):
        assert frame.columns == NAMES
        assert frame.rows() == rows_of(store)


def test_pandas_takes_the_stream(store: Store) -> None:
    pandas = pytest.importorskip("pandas")
    stream, rows = store.topic_stream("events"), rows_of(store)
    frames = [pa.table(stream).to_pandas()]
    if hasattr(pandas.DataFrame, "from_arrow"):
        frames.append(pandas.DataFrame.from_arrow(stream))
    for frame in frames:
        assert frame.columns.tolist() == NAMES
        assert list(zip(frame["partition"], frame["offset"], strict=True)) == [row[:2] for row in rows]


def test_duckdb_reads_the_topic_anew_by_the_name_of_the_variable(store: Store) -> None:
    connection = pytest.importorskip("duckdb").connect()
    stream = store.topic_stream("events")
    for stop in (300, 400):
        fill(store, 300, stop)
        assert sorted(connection.sql("from stream").fetchall(), key=lambda row: row[:2]) == rows_of(store)
    assert connection.sql("select count(*) from stream where value is null").fetchall() == [(40,)]
    assert stream.topic == "events"


def test_both_sides_of_a_self_join_in_duckdb_see_the_same_records(store: Store) -> None:
    connection = pytest.importorskip("duckdb").connect()
    stream = store.topic_stream("events")
    both = 'from stream a full outer join stream b using (partition, "offset")'
    sql = f"select count(*), count(a.timestamp), count(b.timestamp) {both}"
    assert connection.sql(sql).fetchall() == [(300, 300, 300)]
    assert stream is not None


def test_streams_that_are_open_at_the_same_time_end_at_the_same_offsets(store: Store) -> None:
    stream = store.topic_stream("events")
    first, second = (pa.RecordBatchReader.from_stream(stream) for _ in range(2))
    fill(store, 300, 400)
    assert first.read_all().num_rows == 300
    store.add_partitions("events", 4)
    store.append("events", b"new", partition=3)
    third = pa.RecordBatchReader.from_stream(stream)
    assert [second.read_all().num_rows, third.read_all().num_rows] == [300, 300]
    for reader in (first, second, third):
        reader.close()
    del first, second, third, reader
    assert pa.table(stream).num_rows == 401


def test_a_reader_in_another_process_sees_what_is_there_at_each_read(store: Store, root: Path) -> None:
    with Store.open(root, "r") as beside:
        stream = beside.topic_stream("events")
        assert pa.table(stream).num_rows == 300
        fill(store, 300, 320)
        store.add_partitions("events", 4)
        store.append("events", b"new", partition=3)
        assert rows_in(pa.table(stream)) == rows_of(store)


@pytest.mark.parametrize("wanted", ["binary", "large_binary", "binary_view", "string", "large_string", "string_view"])
def test_a_requested_schema_chooses_columns_and_their_layout(store: Store, wanted: str) -> None:
    kind = getattr(pa, wanted)()
    schema = pa.schema([("value", kind), ("partition", pa.int32()), ("timestamp", pa.timestamp("ms", "UTC"))])
    table = pa.RecordBatchReader.from_stream(store.topic_stream("events"), schema=schema).read_all()
    table.validate(full=True)
    assert table.schema.types == schema.types
    rows = rows_of(store)
    assert table["value"].cast(pa.binary()).to_pylist() == [row[4] for row in rows]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [row[2] for row in rows]


def test_each_column_of_a_log_can_be_had(store: Store) -> None:
    batch = pa.record_batch(store.log("events", 0).read_columns(columns=COLUMN_NAMES))
    schema = pa.schema([pa.field("partition", pa.int32(), nullable=False), *batch.schema])
    table = pa.RecordBatchReader.from_stream(store.topic_stream("events"), schema=schema).read_all()
    table.validate(full=True)
    first = table.filter(pa.compute.equal(table["partition"], 0)).drop_columns(["partition"])
    assert first.equals(pa.Table.from_batches([batch]))


def test_the_partition_alone_can_be_had(store: Store) -> None:
    schema = pa.schema([("partition", pa.int32())])
    table = pa.RecordBatchReader.from_stream(store.topic_stream("events"), schema=schema).read_all()
    assert table["partition"].to_pylist() == [row[0] for row in rows_of(store)]


def test_a_schema_that_cannot_be_had_is_refused(store: Store) -> None:
    stream = store.topic_stream("events")
    for field, text in (
        (("topic", pa.string()), "has a column 'topic'; there are partition, offset"),
        (("partition", pa.int64()), "'partition' has the Arrow format 'i', and cannot be had as 'l'"),
    ):
        with pytest.raises(ValueError, match=text):
            stream.__arrow_c_stream__(pa.schema([field]).__arrow_c_schema__())


def test_a_topic_without_records_is_a_stream_without_rows(store: Store) -> None:
    store.create_topic("empty", 2)
    assert pa.table(store.topic_stream("empty")).num_rows == 0
    assert pa.table(store.topic_stream("empty")).column_names == NAMES


def test_an_unknown_topic_is_refused_at_once_a_deleted_one_when_read(store: Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="other"):
        store.topic_stream("other")
    stream = store.topic_stream("events")
    reader = pa.RecordBatchReader.from_stream(stream)
    store.delete_topic("events")
    with pytest.raises((OSError, ValueError), match="there is no topic 'events'"):
        reader.read_all()
    del reader
    with pytest.raises(UnknownTopicOrPartitionError, match="events"):
        stream.__arrow_c_stream__()


def test_a_stream_keeps_its_store_open(store: Store, root: Path) -> None:
    store.flush()
    stream = Store.open(root, "r").topic_stream("events")
    gc.collect()
    assert pa.table(stream).num_rows == 300
    stream._owner.close()  # type: ignore[attr-defined]
    with pytest.raises(kstore.LogClosedError):
        stream.__arrow_c_stream__()
