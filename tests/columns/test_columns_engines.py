"""Columns and logs in the hands of those who take them: pyarrow, polars, DuckDB, pandas, NumPy.

Nothing here is imported by kstore; every library takes what it gets through the Arrow PyCapsule interface alone.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kstore import Log, Record
from kstore.columns._columns import COLUMN_NAMES, LAYOUTS, give_back_memory

pa = pytest.importorskip("pyarrow")

T = 1_700_000_000_000


@pytest.fixture
def log(partition: Path) -> Iterator[Log]:
    """A log of 300 records in batches of 30, every tenth value null, every second key."""
    with Log.open(partition, segment_bytes=4000) as log:
        for first in range(0, 300, 30):
            log.append_many([record(i) for i in range(first, first + 30)], compression="lz4" if first % 60 else None)
        yield log


def record(i: int) -> Record:
    value = None if i % 10 == 0 else b"value %d %s" % (i, b"." * (i % 40))
    return Record(0, T + i, b"key %d" % i if i % 2 else None, value, (("h", b"%d" % i),) if i % 3 == 0 else ())


# ---- pyarrow


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pyarrow_takes_columns_as_a_record_batch_that_it_finds_sound(log: Log, layout: str) -> None:
    batch = pa.record_batch(log.read_columns(columns=COLUMN_NAMES, layout=layout))
    batch.validate(full=True)
    rows = list(log.read())
    assert batch.column_names == list(COLUMN_NAMES)
    assert batch["offset"].to_pylist() == [r.offset for r in rows]
    assert batch["timestamp"].to_pylist() == [r.timestamp for r in rows]
    assert batch["key"].to_pylist() == [r.key for r in rows]
    assert batch["value"].to_pylist() == [r.value for r in rows]
    headers = [tuple((h["key"], h["value"]) for h in row) for row in batch["headers"].to_pylist()]
    assert headers == [r.headers for r in rows]
    assert batch["is_transactional"].to_pylist() == [False] * 300
    wanted = {"binary": pa.binary(), "large_binary": pa.large_binary(), "view": pa.binary_view()}[layout]
    assert batch.schema.field("value").type == wanted
    assert batch.schema.field("timestamp") == pa.field("timestamp", pa.int64(), nullable=False)
    assert batch.schema.field("headers").type.value_type.field("value").type == pa.binary()
    for chunk in log.iter_columns(columns=COLUMN_NAMES, layout=layout, max_records=37):
        pa.record_batch(chunk).validate(full=True)


def test_a_column_is_an_arrow_array_by_itself(log: Log) -> None:
    found = log.read_columns(columns=("value", "headers"))
    assert pa.array(found.values).to_pylist() == found.values.to_pylist()
    assert pa.array(found.values, type=pa.binary_view()).type == pa.binary_view()
    assert len(pa.array(found.headers)) == 300
    assert pa.field(found.values).type == pa.binary()


@pytest.mark.parametrize("wanted", ["binary", "large_binary", "binary_view", "string", "large_string", "string_view"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_requested_schema_is_honoured(log: Log, layout: str, wanted: str) -> None:
    kind = getattr(pa, wanted)()
    schema = pa.schema([("value", kind), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC"))])
    batch = pa.record_batch(log.read_columns(layout=layout), schema=schema)
    batch.validate(full=True)
    assert batch.schema.types == schema.types
    rows = list(log.read())
    assert [v if v is None or isinstance(v, bytes) else v.encode() for v in batch["value"].to_pylist()] == [
        r.value for r in rows
    ]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [r.timestamp for r in rows]
    table = pa.RecordBatchReader.from_stream(log, schema=schema).read_all()
    assert table.schema.types == schema.types
    assert table["value"].to_pylist() == batch["value"].to_pylist()


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (("values", pa.binary()), "has a column 'values'; there are offset, timestamp"),
        (("value", pa.int64()), "'value' has the Arrow format 'z', and cannot be had as 'l'"),
        (("offset", pa.int32()), "'offset' has the Arrow format 'l', and cannot be had as 'i'"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused(log: Log, field: tuple[str, Any], text: str) -> None:
    schema = pa.schema([field])
    with pytest.raises(ValueError, match=text):
        log.read_columns().__arrow_c_array__(schema.__arrow_c_schema__())
    with pytest.raises(ValueError, match=text):
        log.__arrow_c_stream__(schema.__arrow_c_schema__())
    with pytest.raises(TypeError, match="Arrow schema capsule"):
        log.__arrow_c_stream__("schema")


def test_bytes_that_are_no_text_are_refused_as_text(log: Log) -> None:
    log.append(b"\xff")
    schema = pa.schema([("value", pa.string())])
    with pytest.raises(ValueError, match="row 300 is not UTF-8"):
        log.read_columns().__arrow_c_array__(schema.__arrow_c_schema__())
    with pytest.raises(pa.ArrowInvalid, match="row 300 is not UTF-8"):
        pa.RecordBatchReader.from_stream(log, schema=schema).read_all()


def test_a_log_is_a_stream_of_record_batches(log: Log) -> None:
    table = pa.RecordBatchReader.from_stream(log).read_all()
    table.validate(full=True)
    assert table.column_names == ["offset", "timestamp", "key", "value"]
    assert table["value"].to_pylist() == [r.value for r in log.read()]
    assert pa.schema(log) == table.schema
    assert pa.table(log).equals(table)


def test_a_log_without_records_is_a_stream_without_rows(partition: Path) -> None:
    with Log.open(partition) as log:
        assert pa.table(log).num_rows == 0
        assert pa.record_batch(log.read_columns()).num_rows == 0


def test_streams_that_are_open_at_one_time_end_where_the_first_does(log: Log) -> None:
    first = pa.RecordBatchReader.from_stream(log)
    log.append(b"later")
    second = pa.RecordBatchReader.from_stream(log)
    assert first.read_all().num_rows == 300
    log.append(b"later still")
    third = pa.RecordBatchReader.from_stream(log)
    assert (second.read_all().num_rows, third.read_all().num_rows) == (300, 300)
    del first, second
    assert pa.RecordBatchReader.from_stream(log).read_all().num_rows == 300
    third.close()
    del third
    assert pa.table(log).num_rows == 302


def test_the_end_of_an_open_stream_is_the_same_on_every_thread(log: Log) -> None:
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def read() -> None:
        barrier.wait()
        reader = pa.RecordBatchReader.from_stream(log)
        barrier.wait()
        log.append(b"more")
        counts.append(reader.read_all().num_rows)
        barrier.wait()
        reader.close()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(counts)) == 1
    assert pa.table(log).num_rows == 304


def test_a_fault_of_the_log_is_the_streams_error(log: Log) -> None:
    reader = pa.RecordBatchReader.from_stream(log)
    log.close()
    with pytest.raises((OSError, ValueError), match=r"LogClosedError.*is closed"):
        reader.read_all()


def test_arrays_outlive_the_log_the_columns_and_the_pool(partition: Path) -> None:
    kept = []
    with Log.open(partition) as log:
        log.append_many([record(i) for i in range(2000)], compression="zstd")
        log.append_many([record(i) for i in range(2000)])
        for layout in LAYOUTS:
            kept += [pa.record_batch(chunk) for chunk in log.iter_columns(layout=layout, max_records=700)]
        wanted = [r.value for r in log.read()]
        values = [kept[0]["value"], kept[0].slice(5)["value"]]
    del log
    gc.collect()
    give_back_memory()
    assert [v for batch in kept for v in batch["value"].to_pylist()] == wanted * 3
    del kept
    gc.collect()
    assert values[0].to_pylist() == wanted[:700]
    assert values[1].to_pylist() == wanted[5:700]


def test_what_other_engines_hold_outlives_the_log_the_columns_and_the_pool(partition: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    frames, relations = [], []
    with Log.open(partition) as log:
        log.append_many([record(i) for i in range(2000)], compression="zstd")
        log.append_many([record(i) for i in range(2000)])
        for layout in LAYOUTS:
            frames.append(polars.DataFrame(log.read_columns(layout=layout)))
            columns = log.read_columns(layout=layout)
            relations.append(duckdb.sql("select value from columns").to_arrow_table())
            frames.append(polars.from_arrow(relations[-1]))
        wanted = [r.value for r in log.read()]
    del log, columns
    gc.collect()
    give_back_memory()
    assert [frame["value"].to_list() for frame in frames] == [wanted] * len(frames)
    assert [relation["value"].to_pylist() for relation in relations] == [wanted] * len(relations)
    slices = [frame.slice(5, 700)["value"] for frame in frames]
    frames.clear()
    thread = threading.Thread(target=relations.clear)
    thread.start()
    thread.join()
    assert [each.to_list() for each in slices] == [wanted[5:705]] * len(slices)


def test_arrays_may_be_let_go_on_another_thread(log: Log) -> None:
    held = [pa.table(log), pa.record_batch(log.read_columns(layout="view"))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert held == []


def test_a_stream_that_is_open_when_the_interpreter_ends_does_no_harm(log: Log) -> None:
    code = (
        "import kstore, pyarrow as pa, sys\n"
        "log = kstore.Log.open(sys.argv[1], mode='r')\n"
        "reader = pa.RecordBatchReader.from_stream(log)\n"
        "batch = reader.read_next_batch()\n"
        "sys.keep = reader, batch, log.__arrow_c_stream__()\n"
    )
    log.flush()
    assert subprocess.run([sys.executable, "-c", code, log.path], timeout=60).returncode == 0


# ---- the others


def test_polars_takes_columns_and_logs(log: Log) -> None:
    polars = pytest.importorskip("polars")
    rows = list(log.read())
    for layout in LAYOUTS:
        frame = polars.DataFrame(log.read_columns(layout=layout, columns=COLUMN_NAMES))
        assert frame["value"].to_list() == [r.value for r in rows]
        assert frame["key"].to_list() == [r.key for r in rows]
        assert frame["headers"][3].to_list() == [{"key": "h", "value": b"3"}]
    frame = polars.DataFrame(log)
    assert frame.columns == ["offset", "timestamp", "key", "value"]
    assert frame["value"].to_list() == [r.value for r in rows]
    assert frame.filter(polars.col("key").is_null()).height == 150
    assert polars.Series(log.read_columns().values).to_list() == [r.value for r in rows]


def test_pandas_takes_columns_and_logs(log: Log) -> None:
    pandas = pytest.importorskip("pandas", minversion="3")
    rows = list(log.read())
    for source in (log, log.read_columns()):
        frame = pandas.DataFrame.from_arrow(source)
        assert frame["offset"].tolist() == [r.offset for r in rows]
        assert [None if v is None or v != v else v for v in frame["value"]] == [r.value for r in rows]


def test_duckdb_takes_columns_and_logs_by_their_variable(log: Log) -> None:
    duckdb = pytest.importorskip("duckdb")
    con = duckdb.connect()
    rows = list(log.read())
    columns = log.read_columns()
    for name in ("log", "columns"):
        found = con.sql(f'select "offset", timestamp, key, value from {name} order by "offset"').fetchall()
        assert found == [(r.offset, r.timestamp, r.key, r.value) for r in rows]
    assert con.sql("select count(*) from log where key is null").fetchall() == [(150,)]
    assert columns is not None


def test_every_opening_of_a_self_join_in_duckdb_sees_the_same_end(log: Log) -> None:
    duckdb = pytest.importorskip("duckdb")
    con = duckdb.connect()
    done = threading.Event()
    appender = threading.Thread(target=append_until, args=(log, done))
    appender.start()
    last = 0
    try:
        for _ in range(15):
            before = log.log_end_offset
            [[rows, alone, first, end]] = con.execute(
                """select count(*), count(*) filter (a."offset" is null or b."offset" is null or c.n is null),
                          min(a."offset"), max(a."offset")
                   from log a full outer join log b using ("offset")
                   full outer join (select "offset", count(*) n from log group by "offset") c using ("offset")"""
            ).fetchall()
            assert (alone, first, rows) == (0, 0, end + 1)
            assert end + 1 >= max(before, last)  # and each query sees what was there when it began
            last = end + 1
    finally:
        done.set()
        appender.join()


def append_until(log: Log, done: threading.Event) -> None:
    while not done.wait(0.0005):
        log.append_many([b"more"] * 20)


def test_numpy_arrays_share_the_columns_memory(log: Log) -> None:
    found = log.read_columns()
    offsets, values = found.offsets, found.values
    array = pa.record_batch(found)["offset"]
    assert array.buffers()[1].address == offsets.__array_interface__["data"][0]
    starts = values.offsets
    data = np.frombuffer(values.data, "u1")
    assert bytes(data[starts[1] : starts[2]]) == values[1]
    assert starts.dtype == np.int32
    assert log.read_columns(layout="large_binary").values.offsets.dtype == np.int64
