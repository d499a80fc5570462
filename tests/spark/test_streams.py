"""Streams as Spark runs them: out of topics, and into topics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore import Store
from kstore.files.stream_positions import read_positions
from tests.spark.spark_session import limits_batches, streams_into_logs
from tests.spark.spark_session import spark as spark

pytestmark = pytest.mark.spark

PATIENCE_S = 90


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store with a topic `t` of two partitions and 100 records."""
    with Store.open(tmp_path / "logs", background=False) as store:
        store.create_topic("t", 2)
        store.append_columns("t", [b"v%d" % i for i in range(100)], keys=[b"k%d" % i for i in range(100)])
    return str(tmp_path / "logs")


def source(spark: Any, root: str, **options: Any) -> Any:
    reader = spark.readStream.format("kstore")
    for name, value in ({"subscribe": "t", "startingOffsets": "earliest"} | options).items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load(root)


def run(frame: Any, root: str, checkpoint: Path, mode: str = "append", **options: Any) -> Any:
    """Run a query into the topic `out` until it has read what is there; the query, which has ended."""
    writer = frame.writeStream.format("kstore").option("checkpointLocation", str(checkpoint)).outputMode(mode)
    for name, value in ({"topic": "out", "partitions": 2} | options).items():
        writer = writer.option(name, value)
    query = writer.trigger(availableNow=True).start(root)
    query.awaitTermination(PATIENCE_S)
    return query


def records(root: str, topic: str = "out") -> dict[bytes, bytes]:
    """The records of a topic by key, each of which occurs once."""
    with Store.open(root, "r") as store:
        found = [(record.key, record.value) for record in store.read(topic)]
    assert len(dict(found)) == len(found)
    return dict(found)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@limits_batches
def test_a_stream_takes_each_record_to_the_sink_once_in_limited_batches(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root, maxOffsetsPerTrigger=30, groupId="watched").select("key", "value")
    query = run(frame, root, tmp_path / "cp")
    assert records(root) == {b"k%d" % i: b"v%d" % i for i in range(100)}
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [30, 30, 30, 10]
    ends = json.loads(progress[-1]["sources"][0]["endOffset"])
    latest = json.loads(progress[0]["sources"][0]["latestOffset"])
    assert {topic: by_number for topic, by_number in ends.items() if topic != "$topicIds"} == latest
    (positions,) = read_positions(root)  # the last batch is among them
    assert {str(number): offset for (_, number), offset in positions.offsets.items()} == latest["t"]

    with Store.open(root, background=False) as store:
        store.append_columns("t", [b"more"], keys=[b"more"])
    run(frame, root, tmp_path / "cp")
    assert len(records(root)) == 101


@streams_into_logs
def test_a_batch_that_spark_commits_again_changes_nothing(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root).select("key", "value")
    run(frame, root, tmp_path / "cp")
    with Store.open(root, background=False) as store:
        store.append_columns("t", [b"more"], keys=[b"more"])
    run(frame, root, tmp_path / "cp")
    commits = tmp_path / "cp" / "commits"
    assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0", "1"]
    for name in ("1", ".1.crc"):  # a crash between the two commits
        (commits / name).unlink()
    run(frame, root, tmp_path / "cp")
    assert (commits / "1").exists()
    assert len(records(root)) == 101
    assert not list(Path(f"{root}.kstore-staging").iterdir())


def test_a_running_stream_takes_in_new_partitions_and_topics(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root, subscribePattern="t|u", subscribe=None).select("topic", "key", "value")
    query = frame.writeStream.format("memory").queryName("taken_in").outputMode("append").start()
    try:
        wait(lambda: spark.table("taken_in").count() == 100)
        with Store.open(root, background=False) as store:
            store.add_partitions("t", 3)
            store.append_many("t", [(b"p", b"in a new partition")], partition=2)
            store.create_topic("u", 1)
            store.append_many("u", [(b"q", b"in a new topic")])
        wait(lambda: spark.table("taken_in").count() == 102)
    finally:
        query.stop()
    new = spark.table("taken_in").where("value LIKE 'in a%'").orderBy("topic").collect()
    assert [(row["topic"], row["value"]) for row in new] == [("t", b"in a new partition"), ("u", b"in a new topic")]


@limits_batches
def test_the_trigger_once_reads_everything_whatever_the_limit(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root, maxOffsetsPerTrigger=7, columns="offset,partition")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).trigger(once=True)
    done = query.start()
    done.awaitTermination(PATIENCE_S)
    assert done.lastProgress["numInputRows"] == 100


def test_the_error_of_a_bad_source_is_that_of_the_query(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root, endingOffsets="latest")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(Exception, match="endingOffsets is an option of a batch read"):
        query.awaitTermination(PATIENCE_S)


@streams_into_logs
def test_the_output_modes_complete_and_update_are_refused(spark: Any, root: str, tmp_path: Path) -> None:
    frame = source(spark, root).selectExpr("CAST(key AS STRING) AS value").groupBy("value").count().select("value")
    with pytest.raises(Exception, match=r'outputMode\("complete"\) is not for logs'):
        run(frame, root, tmp_path / "cp", "complete")
    with pytest.raises(Exception, match="kstore does not support Update mode"):  # Spark's own words
        run(frame, root, tmp_path / "cp2", "update")
