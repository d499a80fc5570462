"""Spark's streams: out of logs and into them, with Spark's Kafka source and sink on a broker beside them.

Workloads by name:
  keyed-100 in 16   16-byte keys, random, and 100-byte values, uncompressed; 5,000,000 rows, 16 partitions. A stream out
                    of them takes what is there and ends (Trigger.AvailableNow). A stream into them gets the rows as 20
                    files of uncompressed Parquet, two in each of ten micro-batches
  1,000 rows        micro-batches one after the other out of one partition and into one, after the first ten. The format
                    beside it (trivial_format.py) has the same rows at hand and drops them: what it takes is Spark's
  20,000 segments   a topic of a year, a record in each segment, that another store has open; no Spark
The start of a query is a part of the time, so the rows are five million at the scale of `make bench-all`, too.
spark_common.py says what the rows about Kafka need.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import START_MS, VALUE, Question, measure, report, scaled, settle
from many_segments import write_segments
from pytest_benchmark.fixture import BenchmarkFixture
from spark_common import KAFKA, PARTITIONS, cluster, contest, fresh, session, to_nowhere, warm_up, write_parquet
from trivial_format import ROWS as BATCH_ROWS
from trivial_format import ReadyFormat, TrivialFormat

import kstore
from kstore import spark as ks
from kstore.spark.stream_options import StreamOptions
from kstore.spark.stream_planner import StreamPlanner

ROWS = min(scaled(20_000_000), 5_000_000)
PIECES, FILES = 10, 20
TRIVIAL, SCAN, INGEST = "trivial source and sink", "ks.scan", "ks.ingest of each piece"
TURNS, BATCHES, FIRST = 3, 40, 10
SEGMENTS = 20_000

SOURCE = Question("stream of 5 M rows that are there, into noop", against=((f"{KAFKA} source", 3), (SCAN, 0.8)))
SINK = Question(
    "stream into 16 partitions, 5 M rows in 10 micro-batches", against=((f"{KAFKA} sink", 2), (INGEST, 0.7))
)
MICRO_BATCH = Question("one micro-batch of 1,000 rows, source to sink", "time", against=((TRIVIAL, 1 / 1.2),))
LOOK = {
    partitions: Question(f"planner's look at {partitions} of 20,000 segments, nothing new", "time", limit=0.020)
    for partitions in ("one partition", "16 partitions")
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    for started in session(sys.modules[__name__], spark_sql_streaming_numRecentProgressUpdates="1000"):
        started.dataSource.register(TrivialFormat)
        started.dataSource.register(ReadyFormat)
        yield started


@pytest.fixture(scope="module")
def files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in Parquet, and a JVM that has handed them to Python before."""
    place = tmp_path_factory.mktemp("parquet")
    write_parquet(place, ROWS, FILES)
    warm_up(spark.read.parquet(str(place)))
    return place


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="module")
def root(spark: Any, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in a log."""
    path = tmp_path_factory.mktemp("logs")
    ks.ingest(spark.read.parquet(str(files)), path, topic="t", partitions=PARTITIONS)
    settle(path)
    return path


def run_to_end(frame: Any, form: str, checkpoint: Path, **options: Any) -> None:
    """Run a query over what its source has now."""
    writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(600)


def numbered(directory: Path) -> Iterator[Path]:
    """Directories for checkpoints: each query has a new one."""
    return (directory / f"checkpoint-{number}" for number in itertools.count())


# --- out --------------------------------------------------------------------------------------------------------------


def test_source_kstore(benchmark: BenchmarkFixture, spark: Any, root: Path, tmp_path: Path) -> None:
    checkpoints = numbered(tmp_path)

    def run() -> None:
        source = spark.readStream.format("kstore").option("subscribe", "t").option("startingOffsets", "earliest")
        run_to_end(source.load(str(root)), "noop", next(checkpoints))

    contest(benchmark, SOURCE, "kstore", run, ROWS)


def test_source_scan(benchmark: BenchmarkFixture, spark: Any, root: Path) -> None:
    contest(benchmark, SOURCE, SCAN, lambda: to_nowhere(ks.scan(spark, root, subscribe="t")), ROWS)


def test_source_ready_made(benchmark: BenchmarkFixture, spark: Any, root: Path, tmp_path: Path) -> None:
    """What Spark leaves: the start of the query, and the way of ready batches into the JVM."""
    checkpoints = numbered(tmp_path)

    def run() -> None:
        source = spark.readStream.format("ready").option("rows", ROWS)
        run_to_end(source.load(str(root)), "noop", next(checkpoints))

    contest(benchmark, SOURCE, "bound: ready-made batches as a stream", run, ROWS)


def test_source_kafka(benchmark: BenchmarkFixture, spark: Any, files: Path, broker: Any, tmp_path: Path) -> None:
    broker.create("source", partitions=PARTITIONS)
    to = {"kafka.bootstrap.servers": broker.address, "kafka.acks": "1", "topic": "source"}
    spark.read.parquet(str(files)).write.format("kafka").options(**to).save()
    checkpoints = numbered(tmp_path)

    def run() -> None:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
        source = source.option("subscribe", "source").option("startingOffsets", "earliest")
        run_to_end(source.load(), "noop", next(checkpoints))

    contest(benchmark, SOURCE, f"{KAFKA} source", run, ROWS)


# --- in ---------------------------------------------------------------------------------------------------------------


def pieces(spark: Any, files: Path) -> Any:
    """The rows as a stream: two files in each micro-batch."""
    source = spark.readStream.schema("key binary, value binary").option("maxFilesPerTrigger", FILES // PIECES)
    return source.parquet(str(files))


def test_sink_kstore(benchmark: BenchmarkFixture, spark: Any, files: Path, tmp_path: Path) -> None:
    checkpoints = numbered(tmp_path)

    def run(root: Path) -> None:
        to = {"topic": "t", "partitions": PARTITIONS, "path": str(root)}
        run_to_end(pieces(spark, files), "kstore", next(checkpoints), **to)

    contest(benchmark, SINK, "kstore", run, ROWS, fresh(tmp_path))


def test_sink_nothing(benchmark: BenchmarkFixture, spark: Any, files: Path, tmp_path: Path) -> None:
    """What Spark leaves: the micro-batches, and the way of the rows into Python."""
    checkpoints = numbered(tmp_path)

    def run() -> None:
        run_to_end(pieces(spark, files), "trivial", next(checkpoints))

    contest(benchmark, SINK, "bound: a sink that drops the rows", run, ROWS)


def test_sink_ingest(benchmark: BenchmarkFixture, spark: Any, files: Path, tmp_path: Path) -> None:
    each = FILES // PIECES
    paths = [str(files / f"{number}.parquet") for number in range(FILES)]

    def run(root: Path) -> None:
        for number in range(PIECES):
            frame = spark.read.parquet(*paths[number * each : (number + 1) * each])
            ks.ingest(frame, root, topic="t", partitions=PARTITIONS, txn=("bench", number))

    contest(benchmark, SINK, INGEST, run, ROWS, fresh(tmp_path))


def test_sink_kafka(benchmark: BenchmarkFixture, spark: Any, files: Path, broker: Any, tmp_path: Path) -> None:
    names = (f"sink-{number}" for number in itertools.count())
    checkpoints = numbered(tmp_path)

    def make() -> Any:
        name = next(names)
        broker.create(name, partitions=PARTITIONS)
        return (name,), {}

    def run(topic: str) -> None:
        to = {"kafka.bootstrap.servers": broker.address, "kafka.acks": "1", "topic": topic}
        run_to_end(pieces(spark, files), "kafka", next(checkpoints), **to)

    contest(benchmark, SINK, f"{KAFKA} sink", run, ROWS, make)


# --- small micro-batches ----------------------------------------------------------------------------------------------


def test_micro_batches(spark: Any, tmp_path: Path) -> None:
    """By turns, so that both meet the same machine."""
    chance = random.Random(7)
    with kstore.Store.open(tmp_path / "in") as store:
        store.create_topic("t", partitions=1)
        for _ in range(BATCHES + 20):
            rows = ((chance.randbytes(16), chance.randbytes(100)) for _ in range(BATCH_ROWS))
            store.log("t", 0).append_many(rows)

    def trivial(place: Path) -> Any:
        return spark.readStream.format("trivial").load().writeStream.format("trivial")

    def ours(place: Path) -> Any:
        source = spark.readStream.format("kstore").option("subscribe", "t").option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", BATCH_ROWS).option("columns", "key,value")
        sink = source.load(str(tmp_path / "in")).writeStream.format("kstore").option("path", str(place))
        return sink.option("topic", "t").option("partitions", 1)

    seconds: dict[str, list[float]] = {TRIVIAL: [], "kstore": []}
    for turn in range(TURNS):
        for name, writer in ((TRIVIAL, trivial), ("kstore", ours)):
            place = tmp_path / f"{name}-{turn}"
            seconds[name] += micro_batches(writer(place).option("checkpointLocation", f"{place}-checkpoint"))
    for name, rounds in seconds.items():
        report(MICRO_BATCH, name, rounds, operations=1)


def micro_batches(writer: Any) -> list[float]:
    """Seconds of each micro-batch after the first ones, by the query's progress."""
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        while (query.lastProgress or {"batchId": 0})["batchId"] < FIRST + BATCHES:
            assert query.isActive, query.exception()
            time.sleep(0.5)
        progress = [one for one in query.recentProgress if one["numInputRows"]][FIRST : FIRST + BATCHES]
    finally:
        query.stop()
    assert {one["numInputRows"] for one in progress} == {BATCH_ROWS}
    return [one["durationMs"]["triggerExecution"] / 1000 for one in progress]


# --- the planner ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", LOOK)
def test_planner(benchmark: BenchmarkFixture, tmp_path: Path, what: str) -> None:
    """What a trigger without new records costs, and one after a record and after a roll."""
    partitions = 1 if what == "one partition" else PARTITIONS
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=partitions)
    for number in range(partitions):
        write_segments(tmp_path / f"t-{number}", SEGMENTS // partitions, VALUE, START_MS)
    with kstore.Store.open(tmp_path) as store:
        log = store.log("t", 0)
        planner = StreamPlanner(str(tmp_path), StreamOptions.parse({"subscribe": "t"}))
        end = planner.everything()

        def look() -> None:
            planner.latest(end, None, None)

        def appended() -> None:
            log.append(VALUE)

        def rolled() -> None:
            log.append(VALUE)
            log.roll()

        measure(benchmark, LOOK[what], "kstore", look, operations=1, rounds=50)
        assert planner.latest(end, None, None) == end
        for name, change in (("kstore, after an append", appended), ("kstore, after a roll", rolled)):
            rounds = []
            for _ in range(10):
                change()
                begun = time.perf_counter()
                look()
                rounds.append(time.perf_counter() - begun)
            report(LOOK[what], name, rounds, operations=1)
        planner.close()
