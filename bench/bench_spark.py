"""Spark: DataFrames into logs and logs into DataFrames, with Spark's Kafka connector and a broker beside it.

Workloads by name:
  keyed-100 in 16   16-byte keys, random, and 100-byte values; 5,000,000 rows, 16 partitions; from uncompressed Parquet
  a week            the same rows in 4 partitions, over a week in the order of their times, and one hour of them
Contestants that handle one Python object a row get a tenth of the rows. For each question there is a second one that
counts processor seconds: of this process, the JVM, the Python workers and, where it works, the broker.
spark_common.py says what the rows about Kafka need.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import MIB, Question, measure, report, scaled, settle
from pytest_benchmark.fixture import BenchmarkFixture
from spark_common import (
    FILES,
    KAFKA,
    PARTITIONS,
    ROUNDS,
    below,
    cluster,
    contest,
    drained,
    fresh,
    session,
    to_nowhere,
    warm_up,
    write_parquet,
)

import kstore
from kstore import spark as ks

ROWS = scaled(5_000_000)
FEW = max(ROWS // 10, 1)
WEEK_START, WEEK = 1_700_000_000_000, 604_800_000  # ms
DRAIN, OBJECTS, READY = "mapInArrow that does nothing", "an object a row", "ready-made batches"

INGEST = Question("ingest of 5 M rows into 16 partitions", against=((DRAIN, 0.75), (OBJECTS, 8), (f"{KAFKA} sink", 2)))
WRITE = Question('write.format("kstore") of the same rows', against=(("ks.ingest", 0.8),))
SCAN = {
    "7 columns": Question("scan of 7 columns", against=((f"{KAFKA} source", 4), (READY, 0.8))),
    "key and value": Question("scan of key and value", against=((f"{KAFKA} source", 4), (READY, 0.8))),
}
BOUNDS, PARQUET, NO_PUSHDOWN = "startingTimestamp, endingTimestamp", "uncompressed Parquet", "kstore without pushdown"
HOUR = Question(
    "an hour of a week by conditions on timestamp, 5 M rows, grouped by the key's first byte",
    against=((BOUNDS, 0.6), (PARQUET, 0.3), (NO_PUSHDOWN, 2.5)),
)
COMMIT = Question("commit of 64 staged files, 5 M rows", "time", limit=0.3)
MEMORY = Question("memory of a Python worker, the most it had", "memory", limit=256 * MIB)
COLUMNS = {"7 columns": None, "key and value": ("key", "value")}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from session(sys.modules[__name__])


@pytest.fixture(scope="module")
def frame(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows, in eight files of uncompressed Parquet."""
    place = tmp_path_factory.mktemp("parquet")
    write_parquet(place, ROWS)
    found = spark.read.parquet(str(place))
    warm_up(found)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="module")
def root(frame: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in a log."""
    path = tmp_path_factory.mktemp("logs")
    ks.ingest(frame, path, topic="t", partitions=PARTITIONS)
    settle(path)
    return path


@pytest.fixture(scope="module")
def week(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The rows of a week in files of uncompressed Parquet, and in a log."""
    places = {name: str(tmp_path_factory.mktemp(name)) for name in ("week", "logs")}
    count = write_parquet(Path(places["week"]), ROWS, times=range(WEEK_START, WEEK_START + WEEK))
    frame = spark.read.parquet(places["week"]).orderBy("timestamp")
    assert ks.ingest(frame, places["logs"], topic="t", partitions=4).records == count
    settle(Path(places["logs"]))
    return places


# --- in ---------------------------------------------------------------------------------------------------------------


def test_ingest_kstore(benchmark: BenchmarkFixture, frame: Any, tmp_path: Path) -> None:
    def run(root: Path) -> None:
        assert ks.ingest(frame, root, topic="t", partitions=PARTITIONS).records == 8 * -(-ROWS // 8)

    contest(benchmark, INGEST, "kstore", run, ROWS, fresh(tmp_path))


def test_ingest_drain(benchmark: BenchmarkFixture, frame: Any) -> None:
    contest(benchmark, INGEST, DRAIN, lambda: frame.mapInArrow(drained, "n long").collect(), ROWS)


def test_ingest_objects(benchmark: BenchmarkFixture, frame: Any, tmp_path: Path) -> None:
    few = frame.limit(FEW).repartition(2).persist()  # moved to the two tasks before it is measured
    few.count()

    def run(root: Path) -> None:
        place = str(root)

        def append(rows: Iterator[Any]) -> Iterator[int]:
            with kstore.Log.open(f"{place}/t-{os.getpid()}") as log:
                yield log.append_many((row.key, row.value) for row in rows).last_offset

        few.rdd.mapPartitions(append).collect()

    contest(benchmark, INGEST, OBJECTS, run, FEW, fresh(tmp_path))
    few.unpersist()


def test_ingest_kafka(benchmark: BenchmarkFixture, frame: Any, broker: Any) -> None:
    names = iter(f"sink-{number}" for number in range(100))

    def make() -> Any:
        name = next(names)
        broker.create(name, partitions=PARTITIONS)
        return (name,), {}

    def run(topic: str) -> None:
        sink = (
            frame.write.format("kafka")
            .option("kafka.bootstrap.servers", broker.address)
            .option("kafka.acks", "1")
            .option("topic", topic)
        )
        sink.save()

    contest(benchmark, INGEST, f"{KAFKA} sink", run, ROWS, make)


def test_write_kstore(benchmark: BenchmarkFixture, frame: Any, tmp_path: Path) -> None:
    def run(root: Path) -> None:
        frame.write.format("kstore").mode("append").option("topic", "t").option("partitions", PARTITIONS).save(
            str(root)
        )

    contest(benchmark, WRITE, "kstore", run, ROWS, fresh(tmp_path))


def test_write_ingest(benchmark: BenchmarkFixture, frame: Any, tmp_path: Path) -> None:
    def run(root: Path) -> None:
        ks.ingest(frame, root, topic="t", partitions=PARTITIONS)

    contest(benchmark, WRITE, "ks.ingest", run, ROWS, fresh(tmp_path))


def test_commit(benchmark: BenchmarkFixture, frame: Any, tmp_path: Path) -> None:
    again = fresh(tmp_path)

    def staged() -> Any:
        (root,), _ = again()
        stage = ks.stage(root, topic="t", partitions=PARTITIONS)
        manifest = frame.coalesce(4).mapInArrow(stage, ks.MANIFEST).collect()
        assert len(manifest) == 4 * PARTITIONS
        return (root, manifest), {}

    measure(benchmark, COMMIT, "kstore", ks.commit, operations=1, setup=staged, rounds=ROUNDS)


def test_memory(frame: Any, tmp_path: Path) -> None:
    """All rows through one task, then the greatest resident size that a Python worker has had."""
    ks.ingest(frame.coalesce(1), tmp_path / "root", topic="t", partitions=PARTITIONS)
    report(MEMORY, "kstore", [float(most_memory())], operations=1)


def most_memory() -> int:
    """The greatest `VmHWM` of the Python processes below the JVM."""
    parents, most = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, StopIteration):
                lines = (entry / "status").read_text().splitlines()
                parents[int(entry.name)] = int(next(line for line in lines if line.startswith("PPid")).split()[1])
                if "pyspark" in (entry / "cmdline").read_text():
                    most[int(entry.name)] = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    mine = below(parents) - {os.getpid()}
    python = [
        size
        for pid, size in most.items()
        if pid in mine and b"java" not in Path(f"/proc/{pid}/exe").readlink().name.encode()
    ]
    return 1024 * max(python)


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", COLUMNS)
def test_scan_kstore(benchmark: BenchmarkFixture, spark: Any, root: Path, what: str) -> None:
    def run() -> None:
        to_nowhere(ks.scan(spark, root, subscribe="t", columns=COLUMNS[what]))

    contest(benchmark, SCAN[what], "kstore", run, ROWS)


@pytest.mark.parametrize("what", COLUMNS)
def test_scan_format(benchmark: BenchmarkFixture, spark: Any, root: Path, what: str) -> None:
    def run() -> None:
        reader = spark.read.format("kstore").option("subscribe", "t")
        wanted = COLUMNS[what]
        to_nowhere((reader if wanted is None else reader.option("columns", ",".join(wanted))).load(str(root)))

    contest(benchmark, SCAN[what], 'kstore by format("kstore")', run, ROWS)


@pytest.fixture(scope="module")
def filled(frame: Any, broker: Any) -> str:
    """The rows in a broker's topic."""
    broker.create("source", partitions=PARTITIONS)
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option("kafka.acks", "1")
    sink.option("topic", "source").save()
    return "source"


@pytest.mark.parametrize("what", COLUMNS)
def test_scan_kafka(benchmark: BenchmarkFixture, spark: Any, broker: Any, filled: str, what: str) -> None:
    def run() -> None:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        found = reader.option("subscribe", filled).load()
        to_nowhere(found.select(*(COLUMNS[what] or found.columns)))

    contest(benchmark, SCAN[what], f"{KAFKA} source", run, ROWS)


@pytest.mark.parametrize("way", [READY, f"{READY}, by mapInArrow"])
@pytest.mark.parametrize("what", COLUMNS)
def test_scan_ready_made(benchmark: BenchmarkFixture, spark: Any, root: Path, what: str, way: str) -> None:
    """Batches of the shape that a scan has, made once in each task and given again and again."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from kstore.spark import option_reader, scanning, spark_options

    names = COLUMNS[what] or tuple(option_reader.COLUMN_TYPES)[:-1]
    schema = scanning.ddl(names)
    first = scanning.plan(root, spark_options.ReadOptions.parse({"subscribe": "t"}))[0]
    each = -(-ROWS // PARTITIONS)

    def ready(count: int) -> Iterator[Any]:
        [batch, *_] = scanning.Scan(names).batches(first)
        while count > 0:
            yield batch.slice(0, count)
            count -= batch.num_rows

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return schema

        def reader(self, schema: Any) -> Reader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return ready(each)

    def in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for _ in range(batch.num_rows):
                yield from ready(each)

    spark.dataSource.register(Source)

    def run() -> None:
        if way == READY:
            to_nowhere(spark.read.format("ready").load())
        else:
            to_nowhere(spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(in_arrow, schema))

    contest(benchmark, SCAN[what], way, run, ROWS)


@pytest.mark.parametrize("way", ["kstore", "kstore with maxLatenessMs", BOUNDS, PARQUET, NO_PUSHDOWN])
def test_an_hour(benchmark: BenchmarkFixture, spark: Any, week: dict[str, str], way: str) -> None:
    """An hour from the middle of the week. The bounds alone would do here, as no record is late."""
    from pyspark.sql import functions

    start = WEEK_START + WEEK // 2
    ends = (start, start + 3_600_000)
    choices: dict[str, dict[str, Any]] = {
        "kstore": {"pushdown": "true"},
        "kstore with maxLatenessMs": {"pushdown": "true", "maxLatenessMs": 60_000},
        BOUNDS: dict(zip(("startingTimestamp", "endingTimestamp"), ends, strict=True)),
    }
    options = choices.get(way, {})

    def run() -> None:
        if way == PARQUET:
            frame = spark.read.parquet(week["week"])
        else:
            frame = spark.read.format("kstore").options(**options, subscribe="t").load(week["logs"])
        low, high = (functions.timestamp_millis(functions.lit(each)) for each in ends)
        inside = frame.where((frame.timestamp >= low) & (frame.timestamp < high))
        found = inside.groupBy(functions.substring("key", 1, 1)).count().agg(functions.sum("count")).first()[0]
        assert abs(found - ROWS / (7 * 24)) <= 2 * FILES

    contest(benchmark, HOUR, way, run, ROWS)
