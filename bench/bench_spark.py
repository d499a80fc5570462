"""Spark: DataFrames into logs and logs into DataFrames, with Spark's Kafka connector and a broker beside it.

One Spark of two tasks in this process, its heap large. What all contestants share, reading the rows and handing them to
Python, is compiled by the JVM before any of them begins: else the first one would pay for it. Workloads by name:
  keyed-100 in 16   16-byte keys, random, and 100-byte values; 5,000,000 rows, 16 partitions; from uncompressed Parquet
Contestants that handle one Python object a row get a tenth of the rows. For each question there is a second one that
counts processor seconds: of this process, the JVM, the Python workers and, where it works, the broker.

The rows about Kafka need `make jvm`, which fetches Spark's connector too: its newest is 4.2.0, and it runs in 4.3. They
say what is missing otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import MIB, Question, measure, report, scaled, settle
from pyspark import cloudpickle
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore import spark as ks

sys.path.append(str(Path(__file__).parents[1]))
from tests.kafka.kafka_broker import CLASS_PATH, Machine
from tests.kafka.kafka_jvm import JavaSide, command
from tests.spark import spark_kafka
from tests.spark.spark_session import start

ROWS, PARTITIONS, ROUNDS = scaled(5_000_000), 16, 3
FEW = max(ROWS // 10, 1)
WARM_UPS = 4
DRAIN, OBJECTS, KAFKA, READY = "mapInArrow that does nothing", "an object a row", "Spark's Kafka", "ready-made batches"

INGEST = Question("ingest of 5 M rows into 16 partitions", against=((DRAIN, 0.7), (OBJECTS, 8), (f"{KAFKA} sink", 2)))
WRITE = Question('write.format("kstore") of the same rows', against=(("ks.ingest", 0.8),))
SCAN = {
    "7 columns": Question("scan of 7 columns", against=((f"{KAFKA} source", 4), (READY, 0.8))),
    "key and value": Question("scan of key and value", against=((f"{KAFKA} source", 4), (READY, 0.8))),
}
COMMIT = Question("commit of 64 staged files, 5 M rows", "time", limit=0.3)
MEMORY = Question("memory of a Python worker, the most it had", "memory", limit=256 * MIB)
COLUMNS = {"7 columns": None, "key and value": ("key", "value")}


class FastMachine(Machine):
    """A broker's process with room and a compiler that takes its time, unlike that of the tests."""

    @property
    def java(self) -> JavaSide:
        if self._java is None:
            run = command("kstore.oracle.Broker", heap="1g", quick=False, classpath=CLASS_PATH)
            self._java = JavaSide(run, self.directory)
        return self._java


class Meter:
    """Counts processor seconds of this process and all below it; a process that ends meanwhile counts as last seen."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._over = threading.Event()

    def __enter__(self) -> Meter:
        self._look()
        self._before = dict(self._ticks)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()
        self._look()

    @property
    def seconds(self) -> float:
        ticks = sum(now - self._before.get(each, 0) for each, now in self._ticks.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        found: dict[int, tuple[str, int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    found[int(entry.name)] = (fields[19], int(fields[11]) + int(fields[12]))
        for pid in below(parents):
            began, ticks = found[pid]
            self._ticks[pid, began] = ticks


def below(parents: dict[int, int]) -> set[int]:
    """This process and its descendants."""
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def contest(
    benchmark: BenchmarkFixture,
    question: Question,
    name: str,
    function: Callable[..., Any],
    rows: int,
    setup: Callable[[], Any] | None = None,
) -> None:
    """Time a contestant, and count its processor seconds."""
    spent: list[float] = []

    def counted(*args: Any) -> Any:
        with Meter() as meter:
            answer = function(*args)
        spent.append(meter.seconds)
        return answer

    measure(benchmark, question, name, counted, operations=rows, size_bytes=116 * rows, setup=setup, rounds=ROUNDS)
    report(Question(f"{question.text}: processor time of a row", "time"), name, spent[1:] or spent, operations=rows)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    jars = spark_kafka.jars()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import a benchmark
    session = start(
        "local[2]",
        spark_driver_memory="4g",
        spark_driver_extraJavaOptions="-XX:+UseParallelGC",
        spark_sql_files_openCostInBytes=str(128 * MIB),  # a file is a task
        **({"spark_jars": jars} if jars else {}),
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def frame(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows, in eight files of uncompressed Parquet."""
    place = tmp_path_factory.mktemp("parquet")
    count = -(-ROWS // 8)
    for number in range(8):
        random = np.random.default_rng(number)
        columns = {
            name: pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(size), count, [None, pa.py_buffer(random.bytes(size * count))]
            ).cast(pa.binary())
            for name, size in (("key", 16), ("value", 100))
        }
        pq.write_table(pa.table(columns), place / f"{number}.parquet", compression="none", use_dictionary=False)
    settle(place)
    found = spark.read.parquet(str(place))
    for _ in range(WARM_UPS):
        found.mapInArrow(drained, "n long").collect()
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    missing = spark_kafka.why_missing()
    if missing is not None:
        pytest.skip(missing)
    machine = FastMachine(tmp_path_factory.mktemp("machine"))
    settings = {"broker_session_timeout_ms": 60_000, "num_network_threads": 2, "num_io_threads": 4}
    cluster = machine.make(tmp_path_factory.mktemp("kafka") / "broker", **settings)
    with cluster.up():
        yield cluster
    machine.close()


@pytest.fixture(scope="module")
def root(frame: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in a log."""
    path = tmp_path_factory.mktemp("logs")
    ks.ingest(frame, path, topic="t", partitions=PARTITIONS)
    settle(path)
    return path


def fresh(path: Path) -> Callable[[], Any]:
    """A `setup` that gives a new directory, and removes the one before."""

    def make() -> Any:
        shutil.rmtree(path / "root", ignore_errors=True)
        shutil.rmtree(path / "root.kstore-staging", ignore_errors=True)
        return (path / "root",), {}

    return make


def drained(batches: Iterator[Any]) -> Iterator[Any]:
    count = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([count])], ["n"])


def to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


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
