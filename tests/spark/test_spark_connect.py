"""Spark Connect: a client, and a server in a process and a working directory of its own (SPARK 6).

The client is here, by the class of Connect's sessions: `SparkSession.builder.remote` would refuse a process that has
a session of another test.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import spark as ks
from kstore.spark.stream_source import HAS_LIMITS
from kstore.store.topics._partitioner import partition_of
from tests.spark.spark_session import SETTINGS, environment, streams_into_logs

pytestmark = pytest.mark.spark

PATIENCE_S = 120
SERVER = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
LIMIT = {"maxOffsetsPerTrigger": 60} if HAS_LIMITS else {}
ROWS = [(b"k%d" % i, b"v%d" % i) for i in range(100)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that works in another directory."""
    import pyspark

    directory = tmp_path_factory.mktemp("server")
    settings = [f"--conf={name}={value}" for name, value in (SETTINGS | SERVER).items()]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    log = directory / "log.txt"
    with log.open("wb") as output:
        # The scripts become the Java process, which is stopped by this id.
        process = subprocess.Popen(
            [submit, *settings, "--class", kind, "spark-internal"],
            cwd=directory,
            env=os.environ | environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield listening(process, log)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def listening(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the server's log names once it listens."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := re.search(r"server started at: ([\w.:]+)", log.read_text(errors="replace"))):
        assert process.poll() is None, log.read_text(errors="replace")[-8000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-8000:]
        time.sleep(0.1)
    return found[1]


@pytest.fixture(scope="module")
def spark(server: str) -> Iterator[Any]:
    from pyspark.sql.connect.session import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does, for functions of columns
        session = SparkSession.builder.remote(f"sc://{server}").create()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    return spark.createDataFrame(ROWS, "key binary, value binary")


def save(frame: Any, path: object, **options: object) -> None:
    writer = frame.write.format("kstore").mode("append").option("topic", "t")
    writer.options(**{name: str(value) for name, value in options.items()}).save(str(path))


def load(spark: Any, path: object, **options: object) -> Any:
    reader = spark.read.format("kstore").option("subscribe", "t")
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(path))


def records(root: Path) -> list[tuple[bytes | None, bytes | None]]:
    with kstore.Store.open(root, "r") as store:
        return sorted((record.key, record.value) for record in store.read("t"))


def test_the_format_writes_and_reads_on_the_server(spark: Any, frame: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    for _ in range(2):  # the second load is known, and skipped
        save(frame, root, partitions=2, txnAppId="load", txnVersion=1)
    assert records(root) == sorted(ROWS)
    found = load(spark, root, columns="key,value", minPartitions=4).collect()
    assert sorted((row.key, row.value) for row in found) == sorted(ROWS)
    assert load(spark, root, pushdown="true").where("partition = 1 AND offset < 3").count() == 3


def test_a_path_in_a_directory_that_spark_deletes_is_refused(spark: Any, frame: Any) -> None:
    for use in (lambda: save(frame, "data", partitions=2), lambda: load(spark, "file:data").collect()):
        with pytest.raises(Exception, match=r"ConfigError: 'data' is relative to .*: give an absolute path"):
            use()


def test_an_error_of_the_format_comes_to_the_client(spark: Any, frame: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"UnknownTopicOrPartitionError.*'t'"):
        save(frame, tmp_path / "data")
    with pytest.raises(Exception, match=r"ConfigError.*nonesuch"):
        load(spark, tmp_path / "data", nonesuch=1).collect()


def test_a_load_and_a_scan_of_a_client_are_refused_with_the_way_out(spark: Any, frame: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(kstore.ConfigError, match="commits a load in the process of the client") as refused:
        ks.ingest(frame, root, topic="t", partitions=2)
    assert 'df.write.format("kstore")' in str(refused.value)
    assert "shared_files=True" in str(refused.value)
    with pytest.raises(kstore.ConfigError, match="plans in the process of the client") as refused:
        ks.scan(spark, root, subscribe="t")
    assert 'spark.read.format("kstore")' in str(refused.value)
    assert "shared_files=True" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_shares_the_files_loads_once_and_scans(spark: Any, frame: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    first, again = (
        ks.ingest(frame, root, topic="t", partitions=2, txn=("load", 1), shared_files=True) for _ in range(2)
    )
    assert (first.records, first.duplicate, again.duplicate) == (100, False, True)
    assert records(root) == sorted(ROWS)
    scan = ks.scan(spark, root, subscribe="t", columns=("key", "value"), shared_files=True)
    assert sorted((row.key, row.value) for row in scan.collect()) == sorted(ROWS)


def stream(spark: Any, source: object, target: object, checkpoint: Path, **options: object) -> Any:
    """A query from topic `t` of one store into topic `t` of another, which ends with what is there; started."""
    reader = spark.readStream.format("kstore").option("subscribe", "t").option("startingOffsets", "earliest")
    rows = reader.options(**{name: str(value) for name, value in options.items()}).load(str(source))
    writer = rows.select("key", "value").writeStream.format("kstore").option("topic", "t").option("partitions", 2)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return writer.start(str(target))


@streams_into_logs
def test_a_stream_goes_through_the_server_once(spark: Any, frame: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for times in (1, 2):
        save(frame, source, partitions=2)
        query = stream(spark, source, target, tmp_path / "checkpoint", **LIMIT)
        assert query.awaitTermination(PATIENCE_S)
        assert records(target) == sorted(ROWS * times)


@streams_into_logs
def test_wrong_options_of_a_stream_are_refused_with_the_reason(spark: Any, frame: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "data", tmp_path / "target"
    save(frame, root, partitions=2)

    def why(target: object = target, **options: object) -> str:
        with pytest.raises(Exception) as refused:
            stream(spark, root, target, tmp_path / "checkpoint", **options).awaitTermination(PATIENCE_S)
        return str(refused.value)

    assert re.search("ConfigError.*maxOffsetsPerTrigger", why(maxOffsetsPerTrigger="many"))
    assert re.search("ConfigError.*endingOffsets", why(endingOffsets="latest"))
    assert re.search("ConfigError: 'copy' is relative to", why(target="copy"))
    assert not target.exists()


def test_the_partition_of_a_key_is_a_column_there_too(frame: Any) -> None:
    rows = frame.select("key", ks.partition_of("key", 16).alias("partition")).collect()
    assert [row.partition for row in rows] == [partition_of(row.key, 16) for row in rows]


def test_the_examples_of_the_page_run(spark: Any, frame: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python connect\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    root = str(tmp_path / "logs")
    exec("".join(examples).replace('"/data/logs"', repr(root)), {"spark": spark, "df": frame, "ks": ks})
    assert load(spark, root, subscribe="events").count() == 2 * len(ROWS)
