"""Which sources and sinks of streams the format makes, and which it refuses, without a JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from kstore import Store
from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.spark import stream_sink, stream_source
from kstore.spark.datasource import KStoreSource

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark has it from 4.2 on")
ReadAllAvailable, ReadMaxRows, ReadMinRows = limits.ReadAllAvailable, limits.ReadMaxRows, limits.ReadMinRows

RECORD = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def root(tmp_path: Path) -> str:
    with Store.open(tmp_path / "logs", background=False) as store:
        store.create_topic("t", 2)
        store.append_columns("t", [b"v%d" % i for i in range(10)], keys=[b"k%d" % i for i in range(10)])
    return str(tmp_path / "logs")


def source(root: str, **options: Any) -> KStoreSource:
    """The format with options as Spark passes them: text, by names in lower case."""
    given = {"path": root} | {name.lower(): str(value) for name, value in options.items()}
    return KStoreSource(CaseInsensitiveDict(given))


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": 5}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": 3}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": 3, "maxOffsetsPerTrigger": 5}, ReadMaxRows(5)),
    ],
)
def test_spark_is_told_the_limit_that_the_options_give(root: str, options: dict[str, int], limit: Any) -> None:
    assert source(root, subscribe="t", **options).streamReader(RECORD).getDefaultReadLimit() == limit


def test_the_least_and_the_most_hold_together_though_spark_knows_one(root: str) -> None:
    limits = {"minOffsetsPerTrigger": 11, "maxOffsetsPerTrigger": 12}
    reader = source(root, subscribe="t", startingOffsets="earliest", **limits).streamReader(RECORD)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start  # ten are there
    with Store.open(root, background=False) as store:
        store.append_columns("t", [b"v"] * 10, keys=[b"k%d" % i for i in range(10)])
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sum(end["t"].values()) == 12
    assert sum(reader.latestOffset(end, ReadAllAvailable())["t"].values()) == 20
    reader.stop()


def test_a_reader_goes_to_the_tasks_without_a_store_and_reads_there(root: str) -> None:
    reader = source(root, subscribe="t", startingOffsets="earliest").streamReader(RECORD)
    in_task = pickle.loads(pickle.dumps(reader))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    rows = [row for part in parts for batch in in_task.read(part) for row in batch.to_pylist()]
    assert sorted(row["value"] for row in rows) == [b"v%d" % i for i in range(10)]
    assert reader.partitions(start, start) == []
    in_task.stop()  # it has nothing to close
    reader.stop()


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"subscribe": "t", "endingOffsets": "latest"}, RECORD, "endingOffsets is an option of a batch read"),
        ({}, RECORD, "exactly one of subscribe"),
        ({"subscribe": "t"}, StructType([StructField("mine", LongType())]), "the schema has a column 'mine'"),
        ({"subscribe": "t"}, StructType([StructField("offset", IntegerType())]), "the schema has offset as int"),
    ],
)
def test_the_error_of_a_source_comes_with_its_first_call(
    root: str, options: dict[str, str], schema: StructType, text: str
) -> None:
    reader = pickle.loads(pickle.dumps(source(root, **options).streamReader(schema)))
    for call in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        with pytest.raises(ConfigError, match=text):
            call()


def test_without_limits_in_spark_a_source_has_none_and_refuses_the_options(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "HAS_LIMITS", False)
    reader = source(root, subscribe="t", startingOffsets="earliest").streamReader(RECORD)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert sum(end["t"].values()) == 10
    assert len(reader.partitions(start, end)) == 2
    with Store.open(root, background=False) as store:
        for number in store.partitions("t"):
            store.log("t", number).truncate_fully_and_start_at(0)
    with pytest.raises(OffsetOutOfRangeError, match="records were cut off"):
        reader.partitions(end, reader.latestOffset())
    with Store.open(root, background=False) as store:
        store.delete_topic("t")
        store.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        reader.partitions(end, reader.latestOffset())
    reader.stop()
    refused = source(root, subscribe="t", maxOffsetsPerTrigger=5).streamReader(RECORD)
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger .* PySpark 4\.2 or newer"):
        refused.initialOffset()


def test_without_limits_in_spark_a_topic_that_is_created_again_is_an_error(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "HAS_LIMITS", False)
    reader = source(root, subscribe="t", startingOffsets="earliest").streamReader(RECORD)
    start = reader.initialOffset()
    with Store.open(root, background=False) as store:
        partitions = len(store.partitions("t"))
        store.delete_topic("t")
        store.create_topic("t", partitions)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        reader.partitions(start, reader.latestOffset())
    reader.stop()


def test_the_schema_of_a_stream_is_that_of_a_scan_and_warns_of_nothing(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"subscribe": "t", "startingOffsets": "latest", "maxOffsetsPerTrigger": 5, "groupId": "g"}
    assert source(root, columns="offset,value", **options).schema() == "`offset` bigint, `value` binary"
    assert caplog.records == []


# --- sinks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "t", "txnAppId": "mine", "txnVersion": 1}, "the transaction of a micro-batch is its query"),
        ({"topic": "t", "partitions": 3}, "topic t has 2 partitions, and partitions is 3"),
        ({}, "topic option required"),
        ({"topic": "t", "commitTimeout": "long"}, "commitTimeout is 'long'"),
    ],
)
def test_a_sink_refuses_options_before_any_task_runs(root: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        source(root, **options).streamWriter(RECORD, overwrite=False)


def test_a_sink_takes_sparks_own_options(root: str) -> None:
    options = {"topic": "t", "checkpointLocation": "/tmp/cp", "queryName": "q"}
    assert source(root, **options).streamWriter(schema=RECORD, overwrite=False)


def test_a_sink_without_the_arrow_writer_of_spark_names_the_other_way(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_sink, "HAS_ARROW_SINK", False)
    with pytest.raises(ConfigError, match=r"needs PySpark 4\.1 or newer.*foreachBatch"):
        source(root, topic="t").streamWriter(RECORD, overwrite=False)
