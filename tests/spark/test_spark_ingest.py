"""Spark pours DataFrames and RDDs into logs exactly once: real sessions, tasks that fail (SPARK 3)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import ConfigError, LogLockedError, Store
from kstore import spark as ks
from kstore.store.topics._partitioner import partition_of
from tests.spark.spark_session import separate
from tests.spark.spark_session import spark as spark
from tests.support.staging import leftovers

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def frame(spark: Any, count: int, parts: int = 3) -> Any:
    return spark.range(0, count, 1, parts).selectExpr(
        "cast(concat('k', id) as binary) as key", "cast(concat('v', id) as binary) as value"
    )


def check_once(root: Path, count: int, partitions: int, topic: str = "t") -> None:
    """Each row is there once, where its key sends it, in the DataFrame's order, and offsets have no gap."""
    with Store.open(root, "r") as store:
        for number in range(partitions):
            found = list(store.log(topic, number).read())
            wanted = [b"v%d" % n for n in range(count) if partition_of(b"k%d" % n, partitions) == number]
            assert [record.value for record in found] == wanted
            assert [record.offset for record in found] == list(range(len(found)))
    assert leftovers(root) == []


def test_a_frame_is_ingested_in_its_order_and_a_transaction_counts_once(spark: Any, root: Path) -> None:
    data = frame(spark, 5000)
    done = ks.ingest(data, root, topic="t", partitions=4, txn=("daily", 1))
    assert (done.records, done.duplicate) == (5000, False)
    assert sum(end - first for first, end in done.offsets.values()) == 5000
    check_once(root, 5000, 4)
    assert ks.ingest(data, root, topic="t", partitions=4, txn=("daily", 1)).duplicate
    assert ks.ingest(data, root, topic="t", txn=("daily", 0)).duplicate
    check_once(root, 5000, 4)
    with Store.open(root, background=False) as store:
        assert ks.ingest(data, store, topic="t", txn=("daily", 2)).offsets["t", 0][0] == done.offsets["t", 0][1]


def test_every_column_goes_through_a_frame(spark: Any, root: Path) -> None:
    data = spark.sql(
        """select 'x' as value, 'k' as key, 1 as partition, timestamp '2026-01-02 03:04:05.678' as timestamp,
           array(named_struct('key', 'h', 'value', cast('b' as binary))) as headers, 'u' as topic, 7 as other"""
    )
    ks.ingest(data, root, partitions=2)
    with Store.open(root, "r") as store:
        [record] = store.log("u", 1).read()
    assert (record.key, record.value, record.headers) == (b"k", b"x", (("h", b"b"),))
    assert record.timestamp == data.selectExpr("unix_millis(timestamp)").collect()[0][0]


def test_an_rdd_of_tuples_and_one_of_rows_are_ingested(spark: Any, root: Path) -> None:
    rdd = spark.sparkContext.parallelize([(b"k%d" % n, b"v%d" % n) for n in range(300)], 3)
    assert ks.ingest(rdd, root, topic="t", partitions=4).records == 300
    check_once(root, 300, 4)
    assert ks.ingest(frame(spark, 100).rdd, root, topic="rows", partitions=2).records == 100
    check_once(root, 100, 2, "rows")


def test_pandas_frames_are_staged_too(spark: Any, root: Path) -> None:
    stage = ks.stage(root, topic="t", partitions=2)
    manifest = frame(spark, 200).mapInPandas(stage, ks.MANIFEST).collect()
    ks.commit(root, manifest)
    check_once(root, 200, 2)


def test_partition_of_says_where_kafka_sends_a_key(spark: Any) -> None:
    data = spark.range(50).selectExpr("cast(id as string) as key").union(spark.sql("select null"))
    found = data.select("key", ks.partition_of("key", 16)).collect()
    assert [row[1] for row in found] == [None if row[0] is None else partition_of(row[0].encode(), 16) for row in found]


def failing(spark: Any, root: Path, marks: Path, when: str) -> Any:
    """A stage whose tasks fail the first time: before, in the middle of, or after their staging."""
    stage = ks.stage(root, topic="t", partitions=4)
    directory = str(marks)

    def run(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        mark = Path(directory) / str(context.partitionId())
        first = not mark.exists()
        mark.touch()

        def some() -> Any:
            for batch in batches:
                yield batch
                if first and when == "during":
                    raise RuntimeError("during")

        if first and when == "before":
            raise RuntimeError("before")
        found = list(stage(some()))
        if first and when == "after":
            raise RuntimeError("after")
        yield from found

    return stage, run


# local[2] does not repeat tasks: a session of its own says how often.
RETRIES = """
import sys
from pathlib import Path
from tests.spark.spark_session import start
from tests.spark.test_spark_ingest import check_once, failing, frame
from kstore import spark as ks

spark = start("local[2,4]", spark_sql_execution_arrow_maxRecordsPerBatch="100")
for when in ("before", "during", "after"):
    root, marks = Path(f"{when}/logs").absolute(), Path(f"{when}/marks").absolute()
    marks.mkdir(parents=True)
    stage, run = failing(spark, root, marks, when)
    manifest = frame(spark, 3000).mapInArrow(run, ks.MANIFEST).collect()
    assert len(list(marks.iterdir())) == 3
    ks.commit(root, manifest, txn=("load", 1))
    ks.discard(root, job=stage.job)
    assert ks.commit(root, manifest, txn=("load", 1)).duplicate
    check_once(root, 3000, 4)
spark.stop()
print("all once")
"""


def test_tasks_that_fail_before_in_and_after_staging_are_counted_once(tmp_path: Path) -> None:
    assert "all once" in separate(RETRIES, tmp_path)


def test_a_job_that_fails_leaves_nothing_behind(spark: Any, root: Path) -> None:
    data = frame(spark, 1000).union(spark.sql("select cast('k' as binary), cast(repeat('x', 3000) as binary)"))
    with pytest.raises(Exception, match="at most 2000 are allowed"):
        ks.ingest(data, root, topic="t", partitions=2, config={"max.message.bytes": "2000"})
    assert not root.exists() or not list(root.glob("t-*"))
    assert leftovers(root) == []


def test_bad_input_is_an_error_on_the_driver_before_any_task(spark: Any, root: Path) -> None:
    data = frame(spark, 10)
    with pytest.raises(ConfigError, match="Required attribute 'value' not found"):
        ks.ingest(data.select("key"), root, topic="t", partitions=1)
    with pytest.raises(ConfigError, match="value attribute unsupported type BIGINT"):
        ks.ingest(spark.range(3).withColumnRenamed("id", "value"), root, topic="t", partitions=1)
    with pytest.raises(kstore.UnknownTopicOrPartitionError):
        ks.ingest(data, root, topic="t")
    with pytest.raises(TypeError, match="a DataFrame or an RDD"):
        ks.ingest([b"x"], root, topic="t", partitions=1)
    assert leftovers(root) == []


def test_a_store_that_is_held_gets_the_manifest_later(spark: Any, root: Path) -> None:
    with Store.open(root, background=False) as store:
        with pytest.raises(LogLockedError) as found:
            ks.ingest(frame(spark, 500), root, topic="t", partitions=2, txn=("a", 1), commit_timeout=0.1)
        assert store.adopt(found.value.manifest, txn=("a", 1)).records == 500
    check_once(root, 500, 2)


def test_two_jobs_at_once_are_both_there_once(spark: Any, root: Path) -> None:
    stages = [ks.stage(root, topic="t", partitions=2) for _ in range(2)]
    manifests = [frame(spark, 400).mapInArrow(stage, ks.MANIFEST).collect() for stage in stages]
    done = [ks.commit(root, manifest) for manifest in manifests]
    with Store.open(root, "r") as store:
        found = Counter(record.value for number in range(2) for record in store.log("t", number).read())
    assert found == {b"v%d" % n: 2 for n in range(400)}
    assert done[0].offsets["t", 0][1] == done[1].offsets["t", 0][0]
    assert leftovers(root) == []


def test_a_manifest_is_text_that_another_process_can_commit(spark: Any, root: Path) -> None:
    manifest = frame(spark, 100).mapInArrow(ks.stage(root, topic="t", partitions=2), ks.MANIFEST).collect()
    ks.commit(root, json.loads(json.dumps([row.asDict() for row in manifest])))
    check_once(root, 100, 2)


def test_an_empty_frame_is_a_load_too(spark: Any, root: Path) -> None:
    empty = frame(spark, 10).where("key is null")
    assert ks.ingest(empty, root, topic="t", partitions=2, txn=("a", 1)).offsets == {}
    assert ks.ingest(empty, root, topic="t", partitions=2, txn=("a", 1)).duplicate


def test_large_values_and_large_types_go_through(spark: Any, root: Path) -> None:
    data = spark.range(0, 60, 1, 2).selectExpr(
        "cast(id as string) as key", "repeat(cast(id as string), 400000) as value"
    )
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        assert ks.ingest(data, root, topic="t", partitions=3).records == 60
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    with Store.open(root, "r") as store:
        found = {record.key: record.value for number in range(3) for record in store.log("t", number).read()}
    assert found == {b"%d" % n: b"%d" % n * 400000 for n in range(60)}
