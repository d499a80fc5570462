"""Scans of URLs by Spark: executors read exactly what the driver planned, and no credential is shown anywhere.

The object store is moto's server. Before it stands a proxy that notes each request.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore import spark as ks
from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.objects.open_objects import open_objects
from kstore.spark.held_store import Prefix, held
from kstore.spark.integer_set import IntegerSet
from kstore.spark.pushdown import Filters
from kstore.spark.scanning import Scan, plan
from kstore.spark.spark_options import ReadOptions
from kstore.spark.storage_options import StorageOptions
from kstore.spark.stream_options import StreamOptions
from kstore.spark.stream_planner import StreamPlanner
from tests.spark.spark_session import spark as spark
from tests.spark.spark_session import to_its_end
from tests.support.objectserver import HOST, Proxy, S3Server

pytestmark = pytest.mark.spark

T = 1_700_000_000_000
COUNT = 600  # records of a partition
SECRETS = ("id-that-is-hidden", "word-that-is-hidden", "token-that-is-hidden")
COLUMNS = ("partition", "offset", "key", "value")


class Bucket(NamedTuple):
    """Logs in a directory, and in a bucket as a backup and as a copy."""

    root: Path
    server: S3Server
    proxy: Proxy

    @property
    def storage(self) -> dict[str, str]:
        return {
            "endpoint": f"http://{HOST}:{self.proxy.port}",
            "region": "us-east-1",
            "allow_http": "true",
            "access_key_id": SECRETS[0],
            "secret_access_key": SECRETS[1],
            "token": SECRETS[2],
        }

    def requests(self) -> int:
        return len(self.proxy.seen)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    root = tmp_path_factory.mktemp("urls") / "data"
    with S3Server() as server, Proxy(server.port) as proxy:
        server.make_bucket("logs")
        found = Bucket(root, server, proxy)
        with kstore.Store.open(root, background=False) as store:
            store.create_topic("t", partitions=2, config={"segment.bytes": "9000"})
            store.create_topic("one")
            for number in range(2):
                rows = [(b"k%d" % (i % 5), b"v%d-%d" % (number, i), T + i, ()) for i in range(COUNT)]
                store.append_many("t", rows, partition=number, batch_bytes=1000)
            store.append("one", b"1")
            with kstore.backup(store, "s3://logs/backup", options=found.storage):
                pass
        with open_objects("s3://logs/copy", found.storage) as objects:
            for path in sorted(root.rglob("*")):
                if path.is_file():
                    objects.put_parts(str(path.relative_to(root)), [path.read_bytes()])
        yield found


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*COLUMNS).collect())


def load(spark: Any, url: object, storage: dict[str, str], **options: object) -> Any:
    reader = spark.read.format("kstore").options(**{name: str(value) for name, value in options.items()})
    return reader.options(**{f"storage.{name}": value for name, value in storage.items()}).load(str(url))


def pieces_of(url: str, storage: dict[str, str], topic: str = "t", **options: object) -> list[Any]:
    parsed = ReadOptions.parse(
        {"subscribe": topic}
        | {name: str(value) for name, value in options.items()}
        | {f"storage.{name}": value for name, value in storage.items()}
    )
    return plan(url, parsed)


def test_a_backup_and_a_copy_are_scanned_by_both_ways(spark: Any, bucket: Bucket) -> None:
    wanted = [(number, i, b"k%d" % (i % 5), b"v%d-%d" % (number, i)) for number in range(2) for i in range(COUNT)]
    scanned = ks.scan(spark, "s3://logs/copy", subscribe="t", storage=bucket.storage, min_partitions=4)
    assert scanned.rdd.getNumPartitions() == 4
    assert rows_of(scanned) == wanted
    loaded = load(spark, "s3://logs/backup", bucket.storage, subscribe="t", minPartitions=3, pushdown="true")
    assert rows_of(loaded) == wanted
    few = rows_of(loaded.where("offset >= 100 and offset < 110 and partition = 1"))
    assert few == [row for row in wanted if row[0] == 1 and 100 <= row[1] < 110]


def test_no_plan_and_no_message_shows_a_credential(
    spark: Any, bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{SECRETS[0]}:{SECRETS[1]}@logs/backup"
    texts = []
    frames = [
        ks.scan(spark, url, subscribe="t", storage=bucket.storage),
        load(spark, "s3://logs/backup", bucket.storage, subscribe="t"),
    ]
    for frame in frames:
        for mode in ("extended", "codegen", "cost", "formatted"):
            frame.groupBy("key").count().explain(mode)
        plans = frame._jdf.queryExecution()
        texts += [plans.toString(), plans.stringWithStats(), repr(frame), str(frame.schema)]
        texts.append(plans.logical().toJSON())
    for options in ({"subscribe": "none"}, {"assign": "no"}, {"subscribe": "t", "storage.": "x"}, {"unknown": "t"}):
        with pytest.raises(Exception) as caught:
            load(spark, "s3://logs/backup", bucket.storage, **options).collect()
        texts.append(str(caught.value))
    for wrong in ({"unknown": SECRETS[0]}, {"allow_http": "neither"}):
        with pytest.raises(Exception) as caught:
            ks.scan(spark, "s3://logs/none", subscribe="t", storage=bucket.storage | wrong)
        texts.append(str(caught.value))
    with pytest.raises(Exception) as caught:
        load(spark, bucket.root, bucket.storage, subscribe="t").collect()
    texts.append(str(caught.value))
    [piece] = pieces_of("s3://logs/backup", bucket.storage, "one")
    texts += [repr(piece), repr(ReadOptions.parse({"subscribe": "t", "storage.token": SECRETS[2]}))]
    tracked = spark.sparkContext.statusTracker()
    texts += [str(tracked.getStageInfo(stage)) for stage in range(50)]
    texts += capfd.readouterr()
    assert any("MapInArrow" in text for text in texts)
    shown = [(secret, text) for secret in SECRETS for text in texts if secret in text]
    assert not shown, shown[0]


def test_tasks_of_a_process_read_the_prefix_once(bucket: Bucket) -> None:
    pieces = pieces_of("s3://logs/copy", bucket.storage, maxRecordsPerPartition=50)
    assert len(pieces) == 2 * COUNT // 50
    scan = Scan(("offset", "value"))
    seen = []
    held.drop()
    for piece in pickle.loads(pickle.dumps(pieces)):
        before = bucket.requests()
        assert sum(len(batch) for batch in scan.batches(piece)) == piece.end - piece.start
        seen.append(bucket.requests() - before)
    assert sum(seen) - seen[0] <= 2 * len(list(bucket.root.glob("t-*/*.log")))
    held.drop()


def test_conditions_leave_out_segments_without_reading_headers(bucket: Bucket) -> None:
    late = IntegerSet.since(T + COUNT - 20)
    for filters in (Filters(timestamps=late), Filters(offsets=IntegerSet.of([3, COUNT - 1]))):
        [piece, _] = pieces_of("s3://logs/backup", bucket.storage)
        with piece.prefix.open() as store:
            before = bucket.requests()
            ranges = list(filters.ranges(store.log("t", 0), piece.start, piece.end))
            assert bucket.requests() == before
        scan = Scan(("offset",), filters=filters)
        found = [row["offset"] for batch in scan.batches(piece) for row in batch.to_pylist()]
        assert found == (list(range(COUNT - 20, COUNT)) if filters.timestamps is late else [3, COUNT - 1])
        assert ranges[0][0] > COUNT / 2 or ranges[0][0] == 0
    held.drop()


def test_a_plan_without_times_reads_no_record_of_a_backup(bucket: Bucket) -> None:
    with kstore.Store.open("s3://logs/backup", "r", storage=bucket.storage):
        opening = bucket.requests()
    with kstore.Store.open("s3://logs/backup", "r", storage=bucket.storage):
        opening = bucket.requests() - opening
    before = bucket.requests()
    assert len(pieces_of("s3://logs/backup", bucket.storage, minPartitions=40)) == 40
    assert bucket.requests() - before == opening


def test_what_is_appended_after_the_plan_is_not_read_and_what_is_gone_is_an_error(
    bucket: Bucket, tmp_path: Path
) -> None:
    url = "s3://logs/changing"

    def back_up() -> None:
        with kstore.backup(store, url, options=bucket.storage):
            pass

    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        store.create_topic("other")
        store.append_many("t", [b"1", b"2"])
        back_up()
        [early] = pieces_of(url, bucket.storage)
        scan = Scan(("offset",))
        assert sum(map(len, scan.batches(early))) == 2
        store.append_many("t", [b"3", b"4"])
        back_up()
        [late] = pieces_of(url, bucket.storage)
        assert sum(map(len, scan.batches(late))) == 4  # the process has read the prefix again
        assert sum(map(len, scan.batches(early))) == 2
        store.log("t", 0).delete_records(1)
        back_up()
        [short] = pieces_of(url, bucket.storage)
        assert (short.start, short.end) == (1, 4)
        assert sum(map(len, scan.batches(short))) == 3
        with pytest.raises(OffsetOutOfRangeError, match=r"t-0 in s3://logs/changing .* the log has offsets 1 to 4 now"):
            list(scan.batches(late))
        store.delete_topic("t")
        back_up()
        with pytest.raises(UnknownTopicOrPartitionError, match="t-0 in s3://logs/changing"):
            list(scan.batches(late._replace(prefix=late.prefix.planned())))
    held.drop()


def test_a_directory_that_has_a_backup_is_scanned(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        store.append_many("t", [b"1", b"2"])
        with kstore.backup(store, str(tmp_path / "backup")):
            pass
    for root in (str(tmp_path / "backup"), f"file://{tmp_path}/backup"):
        [piece] = pieces_of(root, {})
        assert isinstance(piece.prefix, Prefix)
        assert sum(map(len, Scan(("offset",)).batches(piece))) == 2
    held.drop()


def test_a_url_is_given_alone_and_storage_with_a_url(bucket: Bucket, tmp_path: Path) -> None:
    options = ReadOptions.parse({"subscribe": "t"})
    with pytest.raises(ConfigError, match="a URL is read by itself"):
        plan(["s3://logs/backup", tmp_path], options)
    with pytest.raises(ConfigError, match=r"is a directory: StorageOptions\(token\)"):
        plan(bucket.root, ReadOptions.parse({"subscribe": "t", "storage.token": SECRETS[2]}))
    assert SECRETS[2] in StorageOptions(token=SECRETS[2]).values()


def test_a_stream_reads_a_prefix_and_keeps_no_credential(spark: Any, bucket: Bucket, tmp_path: Path) -> None:
    found: list[bytes] = []

    def query() -> Any:
        reader = spark.readStream.format("kstore").option("subscribe", "one").option("startingOffsets", "earliest")
        stream = reader.options(**{f"storage.{name}": value for name, value in bucket.storage.items()})
        writer = stream.load("s3://logs/backup").writeStream.foreachBatch(
            lambda batch, number: found.extend(bytes(row.value) for row in batch.collect())
        )
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    to_its_end(query)
    assert found == [b"1"]
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for secret in SECRETS for path in files)


def test_each_batch_of_a_stream_reads_the_prefix_again(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://logs/streamed"
    given = {"subscribe": "t", "startingOffsets": "earliest"}
    given |= {f"storage.{name}": value for name, value in bucket.storage.items()}
    with kstore.Store.open(tmp_path / "data", background=False) as store, ExitStack() as stack:
        store.create_topic("t")
        with kstore.backup(store, url, options=bucket.storage):
            pass
        planner = StreamPlanner(url, StreamOptions.parse(given))
        stack.callback(planner.close)
        start, scan = planner.initial(), Scan(("value",))
        for value in (b"1", b"2"):
            store.append("t", value)
            with kstore.backup(store, url, options=bucket.storage):
                pass
            end = planner.latest(start, None, None)
            [piece] = planner.pieces(start, end)
            assert [row["value"] for batch in scan.batches(piece) for row in batch.to_pylist()] == [value]
            start = end
    held.drop()
    with pytest.raises(ConfigError, match=r"groupId is 'g'.*s3://logs/streamed is only read"):
        StreamPlanner(url, StreamOptions.parse(given | {"groupId": "g"}))
