"""Spark without a shared file system: tasks stage in an S3 server, and the machine that has the logs takes it in."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore import spark as ks
from kstore.errors import ConfigError, LogLockedError, ReadOnlyError
from kstore.spark.option_reader import OptionReader
from kstore.spark.spark_options import READ_OPTIONS, WRITE_OPTIONS, WriteOptions
from kstore.spark.storage_options import StorageOptions
from tests.spark.spark_session import separate, streams_into_logs
from tests.spark.spark_session import spark as spark
from tests.spark.test_stream_crashes import check, query
from tests.support.microbatches import feed, live, read
from tests.support.objectserver import BUCKET, S3Server, options
from tests.support.staging import leftovers
from tests.support.uploading import keys_below

COUNT = 1000
SECRET = "a-secret-that-nothing-shows"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture
def stage() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def storage(server: S3Server) -> dict[str, Any]:
    return flat(server)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def flat(server: S3Server) -> dict[str, Any]:
    """The options of the server as Spark's options can say them."""
    found: dict[str, Any] = dict(options(server.port))
    return {**found.pop("client_options"), **found, "allow_http": "true"}


def in_spark(storage: dict[str, Any]) -> dict[str, str]:
    return {f"storage.{name}": str(value) for name, value in storage.items()}


def rows(spark: Any, tasks: int = 3) -> Any:
    return spark.range(0, COUNT, 1, tasks).selectExpr("cast(id as string) as key", "cast(id as string) as value")


def values(root: Path, topic: str = "t") -> list[int]:
    with kstore.Store.open(root, "r") as store:
        return sorted(int(record.value or b"") for record in store.read(topic))


@pytest.mark.spark
def test_a_frame_is_staged_in_an_object_store_and_appended_once(
    spark: Any, stage: str, storage: dict[str, Any], root: Path
) -> None:
    def write() -> None:
        writer = rows(spark).write.format("kstore").mode("append").options(**in_spark(storage))
        named = {"stagingDir": stage, "topic": "t", "partitions": "4", "txnAppId": "load", "txnVersion": "1"}
        writer.options(**named).save(str(root))

    write()
    write()
    assert values(root) == list(range(COUNT))
    assert (keys_below(stage, storage), leftovers(root)) == ([], [])
    how: dict[str, Any] = {"topic": "t", "partitions": 4, "staging_dir": stage, "storage": storage}
    assert ks.ingest(rows(spark), root, txn=("load", 2), **how).records == COUNT
    assert ks.ingest(rows(spark), root, txn=("load", 2), **how).duplicate
    with pytest.raises(ConfigError, match="or upload with"):
        ks.ingest(rows(spark), root / "not here", **how)
    assert (keys_below(stage, storage), leftovers(root)) == ([], [])


@pytest.mark.spark
def test_a_job_is_uploaded_and_adopted_on_the_command_line(
    spark: Any, stage: str, storage: dict[str, Any], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ks.upload(rows(spark), stage, topic="t", partitions=2, config={"segment.bytes": 100_000}, storage=storage)
    assert url.startswith(f"{stage}/")
    words = ["adopt", url, "--to", str(root), *(f"--option={name}={value}" for name, value in storage.items())]
    assert cli.main(words) == 0
    assert "1000 records" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"records": 0, "bytes": 0, "duplicate": True, "partitions": []}
    assert values(root) == list(range(COUNT))
    assert keys_below(stage, storage) == []
    with kstore.Store.open(root, "r") as store:
        assert store.topic_config("t").segment_bytes == 100_000


@pytest.mark.spark
def test_a_job_that_fails_leaves_no_object(spark: Any, stage: str, storage: dict[str, Any], root: Path) -> None:
    bad = rows(spark).selectExpr("key", "value", "if(key = '999', 7, 0) as partition")
    how: dict[str, Any] = {"topic": "t", "partitions": 2, "storage": storage}
    with pytest.raises(Exception, match="partition 7 of topic t"):
        ks.upload(bad, stage, **how)
    with pytest.raises(Exception, match="partition 7 of topic t"):
        ks.ingest(bad, root, staging_dir=stage, **how)
    writer = bad.write.format("kstore").mode("append").options(**in_spark(storage), stagingDir=stage)
    with pytest.raises(Exception, match="partition 7 of topic t"):
        writer.options(topic="t", partitions="2").save(str(root))
    assert (keys_below(stage, storage), list(root.glob("t-*"))) == ([], [])


@pytest.mark.spark
def test_a_load_that_meets_a_lock_is_adopted_by_the_process_that_holds_it(
    spark: Any, stage: str, storage: dict[str, Any], root: Path
) -> None:
    with kstore.Store.open(root) as store:
        how: dict[str, Any] = {"topic": "t", "partitions": 2, "staging_dir": stage, "storage": storage}
        with pytest.raises(LogLockedError) as caught:
            ks.ingest(rows(spark), root, commit_timeout=0, **how)
        manifest: Any = caught.value.manifest
        assert store.adopt(manifest, staging_dir=stage, storage=storage).records == COUNT
        assert store.adopt(manifest, staging_dir=stage, storage=storage).duplicate
    assert keys_below(stage, storage) == []


@pytest.mark.spark
@streams_into_logs
def test_a_stream_is_staged_in_an_object_store(
    spark: Any, stage: str, storage: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    ks.ingest(rows(spark), root, topic="t", partitions=2)
    stream = spark.readStream.format("kstore").options(subscribe="t", startingOffsets="earliest").load(str(root))
    writer = stream.select("key", "value").writeStream.format("kstore").options(**in_spark(storage), topic="copy")
    writer = writer.options(partitions="2", stagingDir=stage, checkpointLocation=str(tmp_path / "checkpoint"))
    for _ in range(2):
        writer.trigger(availableNow=True).start(str(root)).awaitTermination()
    assert values(root, "copy") == list(range(COUNT))
    assert (keys_below(stage, storage), leftovers(root)) == ([], [])


DRIVER = """
import os, signal, sys
from tests.spark import spark_session
from kstore import spark as ks

session = spark_session.start("local[2]", spark_eventLog_enabled="true", spark_eventLog_dir="file:" + os.getcwd(),
                              spark_eventLog_compress="false")
stage, root, storage = sys.argv[1], sys.argv[2], eval(sys.argv[3])
rows = session.range(0, 1000, 1, 3).selectExpr("cast(id as string) as key", "cast(id as string) as value")
writer = rows.write.format("kstore").mode("append").options(**{"storage." + name: storage[name] for name in storage})
writer.options(topic="t", partitions="4", stagingDir=stage, txnAppId="first", txnVersion="1").save(root)
made = ks.stage(root, topic="t", partitions=4, staging_dir=stage, storage=storage)
print(made, made._plan, writer)
try:
    writer.option("stagingdirectory", stage).option("topic", "t").option("partitions", "9").save(root)
except Exception as error:
    print(error)
manifest = rows.mapInArrow(made, ks.MANIFEST).collect()
assert len(manifest) == 12, manifest
session.stop()
print("staged", flush=True)
os._exit(0)  # between the upload and the commit
"""


@pytest.mark.spark
def test_a_driver_that_dies_before_its_commit_changes_nothing_and_tells_no_secret(
    stage: str, server: S3Server, root: Path, tmp_path: Path, storage: dict[str, Any]
) -> None:
    storage |= {"secret_access_key": SECRET, "access_key_id": f"id-{SECRET}"}
    printed = separate(DRIVER, tmp_path, stage, str(root), repr(storage))
    assert printed.endswith("staged\n")
    assert values(root) == list(range(COUNT))
    assert {key.partition("/")[2][:5] for key in keys_below(stage, storage)} == {"task-"}
    logs = [path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents]
    assert any(b"SparkListenerApplicationStart" in path.read_bytes() for path in logs)
    assert SECRET not in printed
    telling = [path for path in logs if path.name != "script.py" and SECRET.encode() in path.read_bytes()]
    assert telling == []
    jobs = {key.partition("/")[0] for key in keys_below(stage, storage)}
    for job in jobs:
        ks.discard(root, job=job, staging_dir=stage, storage=storage)
    assert keys_below(stage, storage) == []


def test_options_of_an_object_store_show_only_their_names() -> None:
    parsed = WriteOptions.parse({"storage.Secret_Access_Key": SECRET, "topic": "t", "stagingDir": "s3://b/x"})
    assert parsed.storage == {"secret_access_key": SECRET}
    assert SECRET not in repr(parsed) + str(parsed.storage)
    assert "secret_access_key" in repr(parsed)
    assert isinstance(parsed.storage, StorageOptions)
    assert OptionReader({"storage.region": "x"}, "scan", READ_OPTIONS, WRITE_OPTIONS).storage() == {"region": "x"}
    with pytest.raises(ConfigError, match="is no option of a write") as caught:
        WriteOptions.parse({"storge.secret": SECRET})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="names no option of an object store"):
        WriteOptions.parse({"storage.": "x"})


def test_a_stream_that_stages_in_an_object_store_survives_kills(
    tmp_path: Path, rng: random.Random, no_syncs: None
) -> None:
    """A driver is killed before any call that changes a file: of the store, of the objects, of the checkpoint."""
    count = 0
    number = 0
    while True:
        world = tmp_path / f"world-{count}"
        one = query(world, staging_dir=f"file://{world}/bucket")
        feed(one.root, 8)
        ended = live(one, number)
        assert live(one).code == 0
        check(one)
        assert keys_below(f"file://{world}/bucket") == []
        assert leftovers(one.root) == []
        if ended.code == 0:
            break
        count += 1
        number += rng.randint(15, 50)
    assert count > 5


def test_a_remote_batch_that_meets_a_lock_is_adopted_by_who_holds_it(tmp_path: Path, no_syncs: None) -> None:
    one = query(tmp_path, staging_dir=f"file://{tmp_path}/bucket", most=100)
    feed(one.root, 6)
    with kstore.Store.open(one.root, background=False) as store:
        first = live(one)
        again = live(one)  # stages the batch once more, and removes that
        assert (first.code, again.code) == (1, 1)
        (job,) = {key.partition("/")[0] for key in keys_below(f"file://{tmp_path}/bucket")}
        url = f"file://{tmp_path}/bucket/{job}"
        assert f"store.adopt({url!r})" in first.error
        assert store.adopt(url).records == 12
        assert store.adopt(url).duplicate
    assert live(one).code == 0
    check(one)
    assert read(one.root, "out") != []
    assert keys_below(f"file://{tmp_path}/bucket") == []


def test_logs_in_an_object_store_are_not_loaded_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReadOnlyError, match="an object store is only read"):
        ks.stage("s3://bucket/logs", topic="new", partitions=2)
    with pytest.raises(ReadOnlyError, match="an object store is only read"):
        ks.commit("s3://bucket/logs", [])
    with pytest.raises(ConfigError, match="the staging directory is no URL"):
        ks.stage("data", topic="new", partitions=2, storage={"region": "x"})
    assert not list(tmp_path.iterdir())
