"""What tasks of a scan yield and what is planned for them, on real logs and without a JVM."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kstore
from kstore.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.spark import scanning
from kstore.spark.option_reader import COLUMN_TYPES
from kstore.spark.scanning import Piece, Scan, arrow_schema, directories, plan
from kstore.spark.spark_options import ReadOptions
from tests.kafka.kafka_broker import Cluster
from tests.kafka.kafka_broker import cluster as cluster
from tests.kafka.kafka_broker import machine as machine

START_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `t` of two partitions: 1000 records in batches of some 30 in each, 10 ms apart."""
    for number in range(2):
        with kstore.Log.open(tmp_path / f"t-{number}", segment_bytes=20_000, index_interval_bytes=100) as log:
            log.append_many(rows(number), batch_bytes=1000)
    return tmp_path


def rows(number: int, count: int = 1000) -> Iterator[tuple[bytes | None, bytes | None, int, Any]]:
    for i in range(count):
        headers = [("h", b"%d" % i), ("n", None)] if i % 3 == 0 else None
        yield (
            None if i % 5 == 0 else b"k%d" % i,
            None if i % 7 == 0 else b"v%d-%d" % (number, i),
            START_MS + 10 * i,
            headers,
        )


def read(root: Path, columns: str | None = None, **options: Any) -> list[dict[str, Any]]:
    """All rows of a scan of `t`, task by task in their order."""
    given = {"subscribe": "t", **({"columns": columns} if columns else {}), **options}
    parsed = ReadOptions.parse({name: str(value) for name, value in given.items()})
    scan = Scan(parsed.columns, parsed.isolation, parsed.fail_on_data_loss)
    return [row for piece in plan(root, parsed) for batch in scan.batches(piece) for row in batch.to_pylist()]


def piece(root: Path, start: int, end: int, number: int = 0) -> Piece:
    return Piece(str(root / f"t-{number}"), "t", number, start, end)


# --- what comes -------------------------------------------------------------------------------------------------------


def test_rows_are_the_records_in_order_with_sparks_types(root: Path) -> None:
    found = read(root, includeHeaders="true")
    expected = []
    for number in range(2):
        for offset, (key, value, timestamp, headers) in enumerate(rows(number)):
            expected.append(
                {
                    "key": key,
                    "value": value,
                    "topic": "t",
                    "partition": number,
                    "offset": offset,
                    "timestamp": datetime.fromtimestamp(timestamp / 1000, UTC),
                    "timestampType": 0,
                    "headers": None if headers is None else [{"key": k, "value": v} for k, v in headers],
                }
            )
    assert found == expected


def test_each_batch_has_to_the_letter_the_schema_that_spark_expects(root: Path) -> None:
    batch = next(Scan(tuple(COLUMN_TYPES)).batches(piece(root, 0, 10)))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert batch.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
        ]
    )
    batch.validate(full=True)


@pytest.mark.parametrize("name", COLUMN_TYPES)
def test_any_one_column_can_be_had_alone(root: Path, name: str) -> None:
    whole = read(root, includeHeaders="true")
    assert read(root, name) == [{name: row[name]} for row in whole]


def test_a_schema_may_say_that_a_column_has_no_nulls() -> None:
    schema = arrow_schema(("offset", "value"), {"offset"})
    assert [field.nullable for field in schema] == [False, True]


def test_the_logs_own_times_and_missing_times_are_told_by_their_type(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0", message_timestamp_type="LogAppendTime", clock=lambda: 77) as log:
        log.append(b"x")
    with kstore.Log.open(tmp_path / "t-1") as log:
        log.append(b"old", timestamp=-1)
    found = read(tmp_path, "timestamp,timestampType")
    assert [(row["timestampType"], row["timestamp"].timestamp()) for row in found] == [(1, 0.077), (0, -0.001)]


@pytest.mark.parametrize("timestamp", [2**63 - 1, scanning.MOST_MS + 1])
def test_a_moment_beyond_sparks_type_is_an_error_that_says_what_to_do(tmp_path: Path, timestamp: int) -> None:
    with kstore.Log.open(tmp_path / "t-0", message_timestamp_after_max_ms=2**63 - 1) as log:
        log.append(b"x", timestamp=timestamp)
    with pytest.raises(
        InvalidTimestampError, match=rf"t-0: its timestamp {timestamp} ms .* without the column timestamp"
    ):
        read(tmp_path)
    assert read(tmp_path, "offset,timestampType") == [{"offset": 0, "timestampType": 0}]


def test_the_greatest_moment_of_sparks_type_is_there(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0", message_timestamp_after_max_ms=2**63 - 1) as log:
        log.append(b"x", timestamp=scanning.MOST_MS)
    (batch,) = Scan(("timestamp",)).batches(piece(tmp_path, 0, 1))
    assert batch.column(0).view(pa.int64()).to_pylist() == [scanning.MOST_MS * 1000]


def test_large_logs_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_many(b"x" * 100 for _ in range(100_000))
    sizes = [(batch.num_rows, batch.nbytes) for batch in Scan(("value", "topic")).batches(piece(tmp_path, 0, 100_000))]
    assert sum(count for count, _ in sizes) == 100_000
    assert max(count for count, _ in sizes) <= scanning.CHUNK_RECORDS
    assert max(size for _, size in sizes) < 2 * scanning.CHUNK_BYTES


def test_a_piece_starts_and_ends_inside_of_batches(root: Path) -> None:
    for start, end in ((0, 1), (29, 31), (500, 501), (998, 1000)):
        found = [batch.column(0).to_pylist() for batch in Scan(("offset",)).batches(piece(root, start, end))]
        assert [offset for part in found for offset in part] == list(range(start, end))


def test_readers_of_committed_records_get_those_alone(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=1)
        store.append("t", b"plain")
        with store.producer(transactional_id="x") as producer:
            for text, abort in ((b"good", False), (b"bad", True)):
                try:
                    with producer.transaction() as txn:
                        txn.append("t", text)
                        if abort:
                            raise InterruptedError
                except InterruptedError:
                    pass
        assert [row["value"] for row in read(tmp_path, "value")] == [b"plain", b"good", b"bad"]
        assert [row["value"] for row in read(tmp_path, "value", isolation="read_committed")] == [b"plain", b"good"]


def test_what_is_given_to_tasks_is_plain_and_survives_pickling(root: Path) -> None:
    options = ReadOptions.parse({"subscribe": "t"})
    pieces = plan(root, options)
    scan = Scan(options.columns)
    assert pickle.loads(pickle.dumps((scan, pieces))) == (scan, pieces)


# --- what is planned --------------------------------------------------------------------------------------------------


def test_pieces_of_one_partition_begin_with_batches(root: Path) -> None:
    parsed = ReadOptions.parse({"subscribe": "t", "minPartitions": "10"})
    pieces = plan(root, parsed)
    assert len(pieces) == 10
    with kstore.Log.open(root / "t-1", mode="r") as log:
        bases = set(log.batch_table()["base_offset"].tolist())
    assert {each.start for each in pieces if each.partition == 1} <= bases
    assert [row["offset"] for row in read(root, "offset", minPartitions=10)] == [*range(1000), *range(1000)]


def test_moments_are_found_through_the_time_index(root: Path) -> None:
    found = plan(
        root,
        ReadOptions.parse(
            {"subscribe": "t", "startingTimestamp": str(START_MS + 4991), "endingTimestamp": str(START_MS + 5010)}
        ),
    )
    assert [(each.partition, each.start, each.end) for each in found] == [(0, 500, 501), (1, 500, 501)]


def test_what_comes_after_the_planning_is_not_read(root: Path) -> None:
    pieces = plan(root, ReadOptions.parse({"subscribe": "t"}))
    with kstore.Log.open(root / "t-0") as log:
        log.append(b"later")
    assert sum(batch.num_rows for each in pieces for batch in Scan(("offset",)).batches(each)) == 2000


def test_a_directory_is_scanned_while_a_store_has_it_open(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.append("t", b"new", partition=1)
        assert len(read(root)) == 2001
        assert read(root)[-1]["value"] == b"new"


@pytest.mark.kafka
def test_a_brokers_own_directory_is_scanned_while_it_runs(cluster: Cluster) -> None:
    with cluster.up():
        cluster.create("t", partitions=2)
        for number in range(2):
            cluster.produce("t", rows(number, 100), partition=number)
        cluster.produce(
            "t",
            [(b"k", b"good", START_MS)],
            partition=1,
            name="a",
            transaction="commit",
            config={"transactional.id": "a"},
        )
        cluster.produce(
            "t",
            [(b"k", b"bad", START_MS)],
            partition=1,
            name="b",
            transaction="abort",
            config={"transactional.id": "b"},
        )
        cluster.committed("t", 1, 100 + 1)
        found = read(cluster.logs, "partition,value,headers", isolation="read_committed")
        expected = [
            (number, value, None if headers is None else [{"key": k, "value": v} for k, v in headers])
            for number in range(2)
            for _, value, _, headers in rows(number, 100)
        ]
        assert [tuple(row.values()) for row in found] == [*expected, (1, b"good", None)]
        assert {row["topic"] for row in read(cluster.logs, "topic")} == {"t"}
        cluster.produce("t", [(None, b"later")], partition=0)
        assert len(read(cluster.logs)) == len(found) + 2
    assert len(read(cluster.logs)) == len(found) + 2


def test_an_empty_topic_and_an_empty_partition_give_nothing(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=3)
        assert read(tmp_path) == []
        store.append("t", b"one", partition=1)
        assert [row["partition"] for row in read(tmp_path)] == [1]


def test_records_of_several_log_directories_are_found(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        with kstore.Log.open(tmp_path / name / f"t-{number}") as log:
            log.append(name.encode())
    pieces = plan([tmp_path / "a", tmp_path / "b"], ReadOptions.parse({"subscribe": "t"}))
    assert [each.path for each in pieces] == [str(tmp_path / "a" / "t-0"), str(tmp_path / "b" / "t-1")]


def test_a_root_is_a_path_or_a_file_uri() -> None:
    assert directories("file:///a%20b") == directories("file:/a b") == directories(Path("/a b")) == ("/a b",)
    for wrong in ("s3a://bucket/x", "hdfs://host/x", "file://elsewhere/x", "", ()):
        with pytest.raises(ConfigError):
            directories(wrong)


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        plan(tmp_path / "nowhere", ReadOptions.parse({"subscribe": "t"}))


# --- what goes wrong --------------------------------------------------------------------------------------------------


def lossy(what: list[Any]) -> list[int]:
    return [offset for batch in what for offset in batch.column(0).to_pylist()]


def test_records_deleted_since_the_planning_are_data_loss(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.delete_records(300)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 .* from 299 to 310, but the log has offsets 300 to 1000"):
        list(Scan(("offset",)).batches(piece(root, 299, 310)))
    with caplog.at_level(logging.WARNING, "kstore"):
        assert lossy(list(Scan(("offset",), fail_on_data_loss=False).batches(piece(root, 10, 302)))) == [300, 301]
        assert list(Scan(("offset",), fail_on_data_loss=False).batches(piece(root, 10, 300))) == []
    assert "failOnDataLoss is false" in caplog.text
    assert lossy(list(Scan(("offset",)).batches(piece(root, 300, 302)))) == [300, 301]


def test_records_cut_since_the_planning_are_data_loss(root: Path) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.truncate_to(500)
    with kstore.Log.open(root / "t-0", mode="r") as log:
        end = log.log_end_offset
    with pytest.raises(OffsetOutOfRangeError, match=f"the log has offsets 0 to {end}"):
        list(Scan(("offset",)).batches(piece(root, 490, 1000)))
    kept = lossy(list(Scan(("offset",), fail_on_data_loss=False).batches(piece(root, 490, 1000))))
    assert kept == list(range(490, end))


def test_records_deleted_while_a_task_reads_are_data_loss(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK_RECORDS", 30)
    for fails in (True, False):
        shutil.rmtree(root / "t-5", ignore_errors=True)
        with kstore.Log.open(root / "t-5", segment_bytes=5_000) as log:
            log.append_many(rows(5), batch_bytes=1000)
            batches = Scan(("offset",), fail_on_data_loss=fails).batches(piece(root, 0, 1000, 5))
            first = lossy([next(batches)])
            log.delete_records(800)
            log.apply_retention()
            if fails:
                with pytest.raises(OffsetOutOfRangeError, match="t-5"):
                    list(batches)
            else:
                found = first + lossy(list(batches))
                assert found[-200:] == list(range(800, 1000))
                assert found == sorted(set(found))


def test_a_partition_that_has_gone_since_the_planning_is_data_loss(root: Path) -> None:
    shutil.rmtree(root / "t-0")
    with pytest.raises(UnknownTopicOrPartitionError, match="its directory has gone"):
        list(Scan(("offset",)).batches(piece(root, 0, 10)))
    assert list(Scan(("offset",), fail_on_data_loss=False).batches(piece(root, 0, 10))) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_deleted_in_the_middle_of_a_scan_is_data_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    monkeypatch.setattr(scanning, "CHUNK_RECORDS", 30)
    with kstore.Store.open(tmp_path, background=False, segment_bytes=5_000) as store:
        store.create_topic("t", 1)
        store.append_many("t", ((key, value) for key, value, *_ in rows(0)), batch_bytes=1000)
        (whole,) = plan(tmp_path, ReadOptions.parse({"subscribe": "t"}))
        batches = Scan(("offset",), fail_on_data_loss=fails).batches(whole)
        found = lossy([next(batches)])
        store.delete_topic("t")
        if fails:
            with pytest.raises(UnknownTopicOrPartitionError, match=r"t-0 .* to 1000, but its directory has gone"):
                list(batches)
        else:
            found += lossy(list(batches))
            assert found == list(range(len(found)))
            assert len(found) < 1000
            assert "t-0 in" in caplog.text
            assert "its directory has gone" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_made_anew_since_the_planning_is_not_read_for_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 2)
        store.append_many("t", [b"old"] * 10, partition=1)
        (old,) = plan(tmp_path, ReadOptions.parse({"subscribe": "t"}))
        store.delete_topic("t")
        store.create_topic("t", 2)
        store.append_many("t", [b"new"] * 20, partition=1)
        scan = Scan(("value",), fail_on_data_loss=fails)
        if fails:
            with pytest.raises(UnknownTopicOrPartitionError, match=f"the topic of id {old.topic_id} has gone"):
                list(scan.batches(old))
        else:
            assert list(scan.batches(old)) == []
            assert "has gone" in caplog.text
        (new,) = plan(tmp_path, ReadOptions.parse({"subscribe": "t"}))
        assert lossy(list(scan.batches(new))) == [b"new"] * 20


def test_a_topic_made_anew_in_the_middle_of_a_scan_gives_no_row_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "CHUNK_RECORDS", 30)
    with kstore.Store.open(tmp_path, background=False, segment_bytes=5_000) as store:
        store.create_topic("t", 1)
        store.append_many("t", [b"old" * 10] * 1000, batch_bytes=1000)
        (old,) = plan(tmp_path, ReadOptions.parse({"subscribe": "t"}))
        batches = Scan(("value",), fail_on_data_loss=False).batches(old)
        found = lossy([next(batches)])
        store.delete_topic("t")
        store.create_topic("t", 1)
        store.append_many("t", [b"new" * 10] * 1000, batch_bytes=1000)
        assert set(found + lossy(list(batches))) == {b"old" * 10}


def test_a_damaged_batch_is_an_error_that_names_the_file(root: Path) -> None:
    path = sorted((root / "t-0").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=path.name):
        read(root)


def test_a_scan_without_pyarrow_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"kstore\[spark\]"):
        list(Scan(("offset",)).batches(piece(root, 0, 10)))
