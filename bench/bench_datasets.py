"""Datasets: queries of DuckDB and Polars over a log, beside the same queries over columns in memory and over Parquet.

Workload `week`: 10 M records over a week in the order of their times, in 4 partitions by key, batches of 16 KiB; keys
of 1,000 users, values like {"user":"u123","amount":12.5,"country":"DE","n":17}. The Parquet files have the same rows
sorted by time, uncompressed and with zstd, in row groups of 122,880 rows, DuckDB's default.
Topic `part` has the first 2 M of these records. JSON "by hand" is orjson over the values of `read_columns`, and
`pyarrow.array` for each field; in the engines it is their JSON functions over the columns that `read_columns` returns.
Each round opens what it asks: kstore the directory, the peers their file. A row that says "next" keeps its dataset.
"Columns first" reads the columns of all partitions with `read_columns` and gives the engine the table in memory: for an
hour all columns, else the key and the value. DuckDB's connection stays open.
Bytes read are those that all reads of this process returned (`rchar` of /proc/self/io; kstore maps no file here), or
those that came from the disk after posix_fadvise(DONTNEED), the kernel's read-ahead included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import KIB, THREADS, Question, measure, report, scaled, settle
from many_segments import write_segments
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
duckdb = pytest.importorskip("duckdb")
orjson = pytest.importorskip("orjson")
pl = pytest.importorskip("polars")

ROWS = scaled(10_000_000)
PART = scaled(2_000_000)
PIECE = 500_000  # rows that are made and appended at a time
USERS, COUNTRIES = 1000, ("DE", "FR", "US", "JP", "BR", "IN")
ROW_GROUP = 122_880
START = datetime(2026, 11, 2, tzinfo=UTC)
WEEK_MS, HOUR_MS = 7 * 24 * 3_600_000, 3_600_000
FIRST_MS = int(START.timestamp() * 1000)
HOUR = (START + timedelta(days=3, hours=8), START + timedelta(days=3, hours=9))
BETWEEN = "timestamp >= timestamptz '{:%Y-%m-%d %H:%M:%S+00}' and timestamp < timestamptz '{:%Y-%m-%d %H:%M:%S+00}'"
KEY = b"u123"
ALL = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")

COLUMNS_FIRST, PARQUET, ZSTD = "columns first", "Parquet, uncompressed", "Parquet, zstd"
WITHOUT, NEXT = "kstore without max_lateness", "kstore without max_lateness, next"
BY_KEY = "kstore with partitioned_by_key"
BY_HAND, JSON_FUNCTIONS = "orjson and PyArrow by hand", "the engine's JSON functions"
HOW: dict[str, dict[str, Any]] = {
    "kstore": {"max_lateness": 0},
    WITHOUT: {},
    NEXT: {},
    BY_KEY: {"partitioned_by_key": True},
}
FILES = {PARQUET: "none", ZSTD: "zstd"}
ENGINES = ("DuckDB", "Polars")

Ask = tuple[str, Callable[[Any], Any]]  # as SQL over `given`, and as an expression over a LazyFrame
IN_HOUR = (pl.col("timestamp") >= HOUR[0]) & (pl.col("timestamp") < HOUR[1])
COUNT: Ask = (
    f"select count(*) from given where {BETWEEN.format(*HOUR)}",
    lambda lf: lf.filter(IN_HOUR).select(pl.len()),
)
GROUPS: Ask = (
    f"select key, count(*) from given where {BETWEEN.format(*HOUR)} group by key",
    lambda lf: lf.filter(IN_HOUR).group_by("key").len(),
)
WHOLE: Ask = (
    "select sum(octet_length(key)), sum(octet_length(value)) from given",
    lambda lf: lf.select(pl.col("key").bin.size().sum(), pl.col("value").bin.size().sum()),
)
OF_KEY: Ask = (
    f"select count(*), sum(octet_length(value)) from given where key = '{KEY.decode()}'::blob",
    lambda lf: lf.filter(pl.col("key") == KEY).select(pl.len(), pl.col("value").bin.size().sum()),
)
HOURS: dict[str, Ask] = {"count": COUNT, "group by key": GROUPS}


def asked(what: str, engine: str, *against: tuple[str, float]) -> Question:
    return Question(f"{what}, {engine}", against=against)


def hour(query: str, engine: str) -> Question:
    against = ((COLUMNS_FIRST, 100), (PARQUET, 0.3), (ZSTD, 0.3))
    return asked(f"an hour of a week of 10 M records, {query}", engine, *against)


def whole(engine: str) -> Question:
    return asked("10 M keys and values, all read", engine, (PARQUET, 0.5))


def of_key(engine: str) -> Question:
    return asked("records of one key of 10 M", engine, (COLUMNS_FIRST, 2))


THREE_FIELDS = Question("2 M JSON values to three fields of a struct", against=((BY_HAND, 2),))


def sums(engine: str) -> Question:
    return asked("sums of a field of 2 M JSON values by another one", engine, (JSON_FUNCTIONS, 4))


def share(engine: str) -> Question:
    return Question(f"bytes read for a count of an hour of a week, {engine}, as a share of the log", "share", 0.01)


SEGMENTS = 10_000
PLANS = {
    (what, turn): Question(f"{turn} plan of a query by {what} over {SEGMENTS:,} segments", "time", limit)
    for what in ("offset", "timestamp")
    for turn, limit in (("first", 0.5), ("next", 0.01))
}


# --- the rows ---------------------------------------------------------------------------------------------------------


def pieces() -> Any:
    """The rows as tables."""
    random = np.random.default_rng(5)
    join = pc.binary_join_element_wise
    for first in range(0, ROWS, PIECE):
        count = min(PIECE, ROWS - first)
        keys = join("u", pc.cast(pa.array(random.integers(0, USERS, count)), pa.string()), "")
        amounts = pc.cast(pa.array(random.integers(0, 1000, count) / 10), pa.string())
        countries = pa.DictionaryArray.from_arrays(random.integers(0, len(COUNTRIES), count), COUNTRIES)
        numbers = pc.cast(pa.array(random.integers(0, 100, count)), pa.string())
        names = ('{"user":"', '","amount":', ',"country":"', '","n":')
        fields = (keys, amounts, countries.dictionary_decode(), numbers)
        values = join(*(part for pair in zip(names, fields, strict=True) for part in pair), "}", "")
        times = FIRST_MS + np.arange(first, first + count) * WEEK_MS // ROWS
        yield pa.table({
            "timestamp": pa.array(times).cast(pa.timestamp("ms", "UTC")),
            "key": keys.cast(pa.binary()),
            "value": values.cast(pa.binary()),
        })  # fmt: skip


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a store `logs` and the Parquet files."""
    place = tmp_path_factory.mktemp("week")
    files = {codec: place / f"{codec}.parquet" for codec in FILES.values()}
    with kstore.Store.open(place / "logs", background=False) as store:
        store.create_topic("t", partitions=4)
        store.create_topic("part", partitions=4)
        writers = {}
        left = PART
        for table in pieces():
            for topic, rows in (("t", table), ("part", table.slice(0, left))):
                times = rows["timestamp"].cast(pa.int64())
                store.append_columns(topic, rows["value"], keys=rows["key"], timestamps=times, batch_bytes=16 * KIB)
            left = max(0, left - len(table))
            for codec, path in files.items():
                if codec not in writers:
                    writers[codec] = pq.ParquetWriter(path, table.schema, compression=codec)
                writers[codec].write_table(table, row_group_size=ROW_GROUP)
        for writer in writers.values():
            writer.close()
    settle(place)
    return place


def columns_first(logs: Path, names: tuple[str, ...]) -> Any:
    """All records of the topic as a table in memory."""
    with kstore.Store.open(logs, "r") as store:
        read = [store.log("t", number).read_columns(columns=names) for number in store.partitions("t")]
        table = pa.Table.from_batches([pa.record_batch(columns) for columns in read])
    if "timestamp" not in names:
        return table
    times = pa.chunked_array([chunk.view(pa.timestamp("ms", "UTC")) for chunk in table["timestamp"].chunks])
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", times)


def opened(week: Path, engine: str, way: str, names: tuple[str, ...]) -> Any:
    """What an engine is asked: a dataset or a frame, a table, or the path of a Parquet file."""
    if way in FILES:
        return week / f"{FILES[way]}.parquet"
    if way == COLUMNS_FIRST:
        return columns_first(week / "logs", names)
    return (kstore.dataset if engine == "DuckDB" else kstore.scan_polars)(week / "logs", "t", **HOW[way])


@cache
def connection() -> Any:
    """DuckDB, with as many threads as kstore."""
    return duckdb.connect(config={"threads": THREADS})


def answer(engine: str, source: Any, ask: Ask) -> list[Any]:
    """The rows of an engine's answer."""
    sql, expression = ask
    found: list[Any]
    if engine == "Polars":
        if isinstance(source, Path):
            source = pl.scan_parquet(source)
        elif isinstance(source, pa.Table):
            source = pl.from_arrow(source).lazy()
        found = expression(source).collect().rows()
    elif isinstance(source, Path):
        found = connection().execute(sql.replace("given", f"read_parquet('{source}')")).fetchall()
    else:
        connection().register("given", source)
        found = connection().execute(sql).fetchall()
        connection().unregister("given")
    return found


def contest(
    benchmark: BenchmarkFixture, week: Path, question: Question, engine: str, way: str, ask: Ask, names: tuple[str, ...]
) -> list[Any]:
    """Measure one contestant; its answer."""
    kept = opened(week, engine, way, names) if way == NEXT else None

    def run() -> list[Any]:
        return answer(engine, opened(week, engine, way, names) if kept is None else kept, ask)

    found: list[Any] = measure(benchmark, question, way, run, operations=ROWS, rounds=3 if way == COLUMNS_FIRST else 5)
    return found


# --- queries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["kstore", WITHOUT, NEXT, COLUMNS_FIRST, PARQUET, ZSTD])
@pytest.mark.parametrize("query", HOURS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_hour(benchmark: BenchmarkFixture, week: Path, engine: str, query: str, way: str) -> None:
    found = contest(benchmark, week, hour(query, engine), engine, way, HOURS[query], ALL)
    assert abs(sum(row[-1] for row in found) - ROWS * HOUR_MS / WEEK_MS) <= 1


@pytest.mark.parametrize("way", ["kstore", COLUMNS_FIRST, PARQUET, ZSTD])
@pytest.mark.parametrize("engine", ENGINES)
def test_keys_and_values(benchmark: BenchmarkFixture, week: Path, engine: str, way: str) -> None:
    [(keys, values)] = contest(benchmark, week, whole(engine), engine, way, WHOLE, ("key", "value"))
    assert 3.8 < keys / ROWS < 4
    assert 45 < values / ROWS < 60


@pytest.mark.parametrize("way", ["kstore", BY_KEY, COLUMNS_FIRST, PARQUET, ZSTD])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_key(benchmark: BenchmarkFixture, week: Path, engine: str, way: str) -> None:
    [(count, _)] = contest(benchmark, week, of_key(engine), engine, way, OF_KEY, ("key", "value"))
    assert abs(count - ROWS / USERS) < 6 * (ROWS / USERS) ** 0.5


# --- JSON values ------------------------------------------------------------------------------------------------------

FIELDS = pa.schema({"user": pa.string(), "amount": pa.float64(), "country": pa.string()})
SUMS: Ask = (
    "select country, sum(amount) from given group by country",
    lambda lf: lf.group_by("country").agg(pl.col("amount").sum()),
)
TWO_FIELDS = pl.Struct({"country": pl.String, "amount": pl.Float64})
SUMS_OF_TEXTS: Ask = (
    """
    select json_extract_string(decode(value), '$.country'), sum(json_extract(decode(value), '$.amount')::double)
    from given group by all
    """,
    lambda lf: (
        lf.select(
            pl.col("value").cast(pl.String).str.json_decode(pl.Struct({"country": pl.String, "amount": pl.Float64}))
        )
        .unnest("value")
        .group_by("country")
        .agg(pl.col("amount").sum())
    ),
)


@pytest.mark.parametrize("way", ["kstore", BY_HAND])
def test_three_fields(benchmark: BenchmarkFixture, week: Path, way: str) -> None:
    def decoded() -> Any:
        part = kstore.dataset(week / "logs", "part", decode=kstore.JsonValues(FIELDS))
        return part.to_table(columns=["value"])["value"].combine_chunks()

    def by_hand() -> Any:
        structs = []
        with kstore.Store.open(week / "logs", "r") as store:
            for _, chunk in store.read_columns("part", columns=("value",)):
                rows = [orjson.loads(value) for value in chunk.values]
                arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in FIELDS]
                structs.append(pa.StructArray.from_arrays(arrays, fields=list(FIELDS)))
        return pa.chunked_array(structs).combine_chunks()

    found = measure(benchmark, THREE_FIELDS, way, decoded if way == "kstore" else by_hand, operations=PART, rounds=3)
    assert len(found) == PART
    assert abs(pc.sum(found.field("amount")).as_py() / PART - 50) < 1


@pytest.mark.parametrize("way", ["kstore", JSON_FUNCTIONS])
@pytest.mark.parametrize("engine", ENGINES)
def test_sums(benchmark: BenchmarkFixture, week: Path, engine: str, way: str) -> None:
    def decoded() -> Any:
        open_it = kstore.dataset if engine == "DuckDB" else kstore.scan_polars
        part = open_it(week / "logs", "part", decode=kstore.JsonValues(FIELDS, columns=True))
        return answer(engine, part, SUMS)

    def functions() -> Any:
        with kstore.Store.open(week / "logs", "r") as store:
            chunks = [pa.record_batch(chunk) for _, chunk in store.read_columns("part", columns=("value",))]
        return answer(engine, pa.Table.from_batches(chunks), SUMS_OF_TEXTS)

    run = decoded if way == "kstore" else functions
    found = measure(benchmark, sums(engine), way, run, operations=PART, rounds=3)
    assert {country for country, _ in found} == set(COUNTRIES)
    assert abs(sum(amount for _, amount in found) / PART - 50) < 1


# --- how little is read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_read(week: Path, engine: str) -> None:
    logs = sorted((week / "logs").rglob("*.log"))
    size = sum(path.stat().st_size for path in logs)
    answer(engine, opened(week, engine, "kstore", ALL), COUNT)  # what is loaded at the first use is loaded now
    for name, counter in (("kstore", "rchar"), ("kstore, from a cold disk", "read_bytes")):
        if counter == "read_bytes":
            drop(week / "logs")
        before = told_by_the_kernel(counter)
        answer(engine, opened(week, engine, "kstore", ALL), COUNT)
        report(share(engine), name, [float(told_by_the_kernel(counter) - before)], operations=size)


def told_by_the_kernel(counter: str) -> int:
    """A counter of this process in /proc/self/io."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(counter)).split()[1])


def drop(place: Path) -> None:
    """Have the system forget the files below `place`, which are on the disk."""
    for path in place.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


# --- planning ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of very many segments with one record each, a millisecond apart."""
    root = tmp_path_factory.mktemp("segments")
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t")
    write_segments(root / "t-0", SEGMENTS, b"x" * 100, FIRST_MS)
    with kstore.Store.open(root, background=False) as store:  # recovers the log, and marks it as closed
        assert store.log("t", 0).log_end_offset == SEGMENTS
    return root


@pytest.mark.parametrize("turn", ["first", "next"])
@pytest.mark.parametrize("what", ["offset", "timestamp"])
def test_planning(benchmark: BenchmarkFixture, segments: Path, what: str, turn: str) -> None:
    """Ten records near the end of the log; the first plan opens the directory."""
    low, high = SEGMENTS - 20, SEGMENTS - 10
    field = pc.field(what)
    if what == "timestamp":
        times = pa.timestamp("ms", "UTC")
        condition = (field >= pa.scalar(FIRST_MS + low, times)) & (field < pa.scalar(FIRST_MS + high, times))
    else:
        condition = (field >= low) & (field < high)
    kept = kstore.dataset(segments, "t", max_lateness=0) if turn == "next" else None

    def run() -> list[Any]:
        dataset = kstore.dataset(segments, "t", max_lateness=0) if kept is None else kept
        return [tuple(span) for part in dataset.scanner(filter=condition)._scan.parts() for span in part.spans]

    found = measure(benchmark, PLANS[what, turn], "kstore", run, operations=1, rounds=5)
    assert found == [(low, high)]
