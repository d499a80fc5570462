"""What tasks stage, and what the driver refuses before any task runs, without a JVM (SPARK 4, 8, 10)."""

from __future__ import annotations

import datetime
import errno
import pickle
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import kstore
from kstore import ConfigError, Log, LogLockedError, StorageError, Store
from kstore import spark as ks
from kstore.files import load_files
from kstore.spark import staging
from kstore.spark.load_writer import Writer
from kstore.spark.spark_options import WriteOptions
from kstore.store.bulk_loads.load_manifest import Staged
from kstore.store.topics._partitioner import partition_of
from tests.support.faultfs import LOST, FaultFS
from tests.support.staging import leftovers

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def batch(count: int, first: int = 0, **columns: Any) -> pa.RecordBatch:
    found = {
        "key": pa.array([b"k%d" % number for number in range(first, first + count)]),
        "value": pa.array([b"v%d" % number for number in range(first, first + count)]),
    }
    return pa.RecordBatch.from_pydict(found | columns)


def rows_of(root: Path, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    with Store.open(root, "r") as store:
        return {
            number: [tuple(record)[1:] for record in store.log(topic, number).read()]
            for number in store.partitions(topic)
        }


def staged_files(root: Path) -> list[str]:
    """What attempts have left; a job's own directory goes with the job."""
    return [each for each in leftovers(root) if "/" in each]


def run(root: Path, *items: Any, **options: Any) -> list[Any]:
    """One task, its `Stage` pickled on the way there."""
    stage = pickle.loads(pickle.dumps(ks.stage(root, **options)))
    return list(stage(iter(items)))


def test_record_batches_go_where_their_keys_send_them_in_their_order(root: Path) -> None:
    [manifest] = run(root, batch(50), batch(50, 50), topic="t", partitions=4)
    assert manifest.schema.names == [each.split()[0] for each in ks.MANIFEST.split(", ")]
    done = ks.commit(root, manifest.to_pylist())
    assert done.records == 100
    found = rows_of(root, "t")
    for number, rows in found.items():
        wanted = [b"v%d" % n for n in range(100) if partition_of(b"k%d" % n, 4) == number]
        assert [row[2] for row in rows] == wanted
        assert done.offsets["t", number] == (0, len(wanted))
    assert leftovers(root) == []


def test_batches_fill_up_across_what_comes_in(root: Path) -> None:
    [manifest] = run(root, *(batch(10, 10 * n) for n in range(100)), topic="t", partitions=1)
    assert manifest["batches"].to_pylist() == [1]


def test_every_column_of_the_sink_and_a_timestamp_arrive(root: Path) -> None:
    stamps = [datetime.datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=datetime.UTC), None]
    data = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["text", None]),
            "key": pa.array([None, ""]),
            "headers": pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None], HEADERS),
            "partition": pa.array([3, None], pa.int32()),
            "timestamp": pa.array(stamps, pa.timestamp("us", "America/New_York")),
            "other": pa.array([1, 2]),
        }
    )
    ks.commit(root, run(root, data, topic="t", partitions=5)[0].to_pylist())
    found = rows_of(root, "t")
    millis = int(stamps[0].timestamp() * 1000)  # type: ignore[union-attr]
    assert found[3][0] == (millis, None, b"text", (("h", b"x"), ("n", None)))
    [(stamp, key, value, headers)] = found[partition_of(b"", 5)][-1:]
    assert (key, value, headers) == (b"", None, ())
    assert stamp > millis


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string()])
def test_bytes_may_come_in_every_layout(root: Path, kind: pa.DataType) -> None:
    data = pa.RecordBatch.from_pydict({"key": pa.array(["a", None], kind), "value": pa.array(["x", None], kind)})
    data = data.append_column("partition", pa.array([0, None], pa.int32())).slice(0, 2)
    ks.commit(root, run(root, data, data.slice(1), topic="t", partitions=1)[0].to_pylist())
    assert [row[1:3] for row in rows_of(root, "t")[0]] == [(b"a", b"x"), (None, None), (None, None)]


def test_a_partition_column_comes_before_the_key_and_the_key_before_turns(root: Path) -> None:
    data = batch(4, partition=pa.array([2, None, 2, 0], pa.int32()))
    data = data.append_column("timestamp", pa.array([1000 * n for n in range(4)], pa.timestamp("us", "UTC")))
    ks.commit(root, run(root, data, topic="t", partitions=3)[0].to_pylist())
    found = {number: [row[2] for row in rows] for number, rows in rows_of(root, "t").items()}
    wanted: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number, partition in enumerate([2, partition_of(b"k1", 3), 2, 0]):
        wanted[partition].append(b"v%d" % number)
    assert found == wanted


def test_a_topic_column_sends_rows_to_topics_and_the_option_comes_before_it(root: Path) -> None:
    data = batch(4, topic=pa.array(["a", "b", "a", "b"]))
    ks.commit(root, run(root, data, partitions=1)[0].to_pylist())
    assert [row[2] for row in rows_of(root, "b")[0]] == [b"v1", b"v3"]
    ks.commit(root, run(root, data, topic="c", partitions=1)[0].to_pylist())
    assert len(rows_of(root, "c")[0]) == 4


def test_a_null_topic_is_an_error_of_the_row(root: Path) -> None:
    with pytest.raises(kstore.InvalidRecordError, match="null topic present in the data"):
        run(root, batch(2, topic=pa.array(["a", None])), partitions=1)
    assert staged_files(root) == []


def test_tuples_bytes_and_frames_are_rows_too(root: Path) -> None:
    pd = pytest.importorskip("pandas")
    ks.commit(root, run(root, (b"k", b"v"), ("k", "w", 1), (None, b"x", 0, 5, [("h", b"1")]), topic="t", partitions=2))
    found = rows_of(root, "t")
    assert found[0][-1] == (5, None, b"x", (("h", b"1"),))
    assert [row[2] for row in found[1]][-1] == b"w"
    ks.commit(root, run(root, b"one", bytearray(b"two"), topic="u", partitions=1))
    assert [row[2] for row in rows_of(root, "u")[0]] == [b"one", b"two"]
    [frame] = run(root, pd.DataFrame({"value": [b"a", b"b"]}), topic="w", partitions=1)
    ks.commit(root, frame.to_dict("records"))
    assert [row[2] for row in rows_of(root, "w")[0]] == [b"a", b"b"]


@pytest.mark.parametrize("items", [[None], [None, b"a", b"b"], [b"a", None], [None, (b"k", b"v"), None]])
def test_none_is_a_row_wherever_it_stands(root: Path, items: list[Any]) -> None:
    ks.commit(root, run(root, *items, topic="t", partitions=1))
    assert [row[2] for row in rows_of(root, "t")[0]] == [each[1] if isinstance(each, tuple) else each for each in items]


def test_rows_without_a_key_begin_where_the_task_says_and_again_so(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("t", 8)
    keyless = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 10)})
    found = [[row["partition"] for row in run(root, keyless, topic="t")[0].to_pylist()] for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_compress(root: Path, codec: str) -> None:
    ks.commit(root, run(root, batch(500), topic="t", partitions=2, compression=codec)[0].to_pylist())
    with Store.open(root, "r") as store:
        assert {each.compression for each in store.log("t", 0).read_batches()} == {codec}
    assert sum(map(len, rows_of(root, "t").values())) == 500


def test_a_topic_that_stamps_records_has_them_stamped_in_the_task(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("t", 1, config={"message.timestamp.type": "LogAppendTime"})
    data = batch(3, timestamp=pa.array([1, 2, 3], pa.timestamp("us", "UTC")))
    ks.commit(root, run(root, data, topic="t")[0].to_pylist())
    with Store.open(root, "r") as store:
        [found] = store.log("t", 0).read_batches()
        assert found.timestamp_type == "LogAppendTime"
        assert found.max_timestamp > 1_700_000_000_000


def test_a_topic_that_is_made_has_the_settings_that_were_given(root: Path) -> None:
    ks.commit(root, run(root, batch(3), topic="t", partitions=2, config={"segment.bytes": "20000"})[0].to_pylist())
    with Store.open(root, "r") as store:
        assert store.topic_config("t").segment_bytes == 20000
        assert store.partitions("t") == (0, 1)


def test_a_record_that_the_topic_refuses_is_an_error_in_the_task_and_leaves_nothing(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("t", 1, config={"max.message.bytes": "1000"})
        store.create_topic("c", 1, config={"cleanup.policy": "compact"})
    with pytest.raises(kstore.RecordTooLargeError, match="at most 1000 are allowed"):
        run(root, batch(5), batch(1, value=pa.array([b"x" * 2000])), topic="t")
    with pytest.raises(kstore.InvalidRecordError, match="key"):
        run(root, pa.RecordBatch.from_pydict({"value": [b"x"]}), topic="c")
    with pytest.raises(kstore.InvalidRecordError, match="partition 9 of topic t, which has 1"):
        run(root, batch(1, partition=pa.array([9], pa.int32())), topic="t")
    assert staged_files(root) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": "binary"}, r"Required attribute 'value' not found\."),
        ({"value": "int"}, r"value attribute unsupported type INT\. value must be a\(n\) STRING or BINARY\."),
        ({"value": "binary", "key": "bigint"}, r"key attribute unsupported type BIGINT\."),
        ({"value": "binary", "partition": "bigint"}, r"partition must be a\(n\) INT\."),
        ({"value": "binary", "timestamp": "timestamp_ntz"}, r"timestamp must be a\(n\) TIMESTAMP\."),
        ({"value": "binary", "headers": "map<string,binary>"}, r"headers must be a\(n\) ARRAY<STRUCT"),
        ({"value": "binary", "topic": "binary"}, r"topic must be a\(n\) STRING\."),
    ],
)
def test_columns_that_do_not_fit_are_refused_in_the_words_of_the_sink(
    root: Path, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ks.stage(root, topic="t", partitions=1).check(columns)


def test_without_a_topic_there_must_be_a_column_of_topics(root: Path) -> None:
    with pytest.raises(ConfigError, match="topic option required when no 'topic' attribute is present"):
        ks.stage(root, partitions=1).check({"value": "binary"})


@pytest.mark.parametrize("name", ["value", "key", "headers", "topic", "partition", "timestamp"])
def test_a_column_that_is_there_twice_is_refused_on_the_driver_and_in_the_task(root: Path, name: str) -> None:
    said = f"there are 2 columns of the name '{name}'"
    made = ks.stage(root, topic="t", partitions=1)
    with pytest.raises(ConfigError, match=said):
        made.check([("value", "binary"), (name, "binary"), (name, "binary")][name == "value" :])
    with pytest.raises(ConfigError, match=said):
        ks.stage(root, topic="t", partitions=1, columns=["value", name, name][name == "value" :])
    twice = pa.RecordBatch.from_arrays([pa.array([b"v"])] * 3, names=["key", "value", "x"])
    twice = twice.rename_columns(["value" if name != "value" else "x", name, name])
    with pytest.raises(ConfigError, match=said):
        list(made(iter([twice])))
    assert staged_files(root) == []


def test_ingest_and_the_format_refuse_a_name_that_a_dataframe_has_twice(root: Path) -> None:
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda: "binary"))
        for name in ("key", "value", "key")
    ]
    schema: Any = SimpleNamespace(fields=fields)
    with pytest.raises(ConfigError, match="there are 2 columns of the name 'key'"):
        ks.ingest(SimpleNamespace(schema=schema, mapInArrow=None), root, topic="t", partitions=1)
    with pytest.raises(ConfigError, match="there are 2 columns of the name 'key'"):
        Writer(str(root), WriteOptions(topic="t", partitions=1), schema)


def test_a_name_of_no_meaning_may_be_there_twice(root: Path) -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"v"])] * 3, names=["value", "x", "x"])
    ks.commit(root, run(root, twice, topic="t", partitions=1)[0].to_pylist())
    assert [row[2] for row in rows_of(root, "t")[0]] == [b"v"]


def test_a_name_that_a_frame_or_a_row_has_twice_is_refused(root: Path) -> None:
    pd = pytest.importorskip("pandas")
    row = type("Row", (tuple,), {"__fields__": ["value", "key", "key"]})((b"v", b"a", b"b"))
    frame = pd.DataFrame([[b"v", b"a", b"b"]], columns=["value", "key", "key"])
    for item in (row, frame):
        with pytest.raises(ConfigError, match="there are 2 columns of the name 'key'"):
            run(root, item, topic="t", partitions=1)
    assert staged_files(root) == []


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_moment_before_1970_is_refused_and_its_row_named(root: Path, unit: str, scale: int) -> None:
    kind = pa.timestamp(unit, "UTC")
    for early in {-1, -max(scale // 1000, 1), -scale}:
        data = batch(4, timestamp=pa.array([None, 0, early, -5], kind))
        with pytest.raises(
            kstore.InvalidTimestampError, match=f"timestamp of row 2 is {early} {unit} from 1970 on"
        ) as found:
            run(root, data, topic="t", partitions=1)
        assert found.value.record_errors == ((2, "timestamp before 1970"),)
    ks.commit(root, run(root, batch(1, timestamp=pa.array([0], kind)), topic="t", partitions=1)[0].to_pylist())
    assert [row[0] for row in rows_of(root, "t")[0]] == [0]


def test_the_row_of_a_refused_moment_counts_from_the_batchs_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE_BYTES", 100)
    stamps = [0] * 700 + [-1] + [0] * 299
    with pytest.raises(kstore.InvalidTimestampError, match="timestamp of row 700 is"):
        run(root, batch(1000, timestamp=pa.array(stamps, pa.timestamp("us", "UTC"))), topic="t", partitions=1)


def test_a_datetime_before_1970_is_refused_and_minus_one_is_no_timestamp(root: Path) -> None:
    last = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC)
    with pytest.raises(kstore.InvalidTimestampError, match=r"timestamp of row 1 is 1969-12-31 23:59:59\.999"):
        run(
            root,
            (None, b"v", 0, last + datetime.timedelta(milliseconds=1)),
            (None, b"v", 0, last),
            topic="t",
            partitions=1,
        )
    ks.commit(root, run(root, (None, b"v", 0, -1), topic="t", partitions=1))
    assert [row[0] for row in rows_of(root, "t")[0]] == [-1]


@pytest.mark.parametrize("dtype", ["float64", "Int32", "Int64", "object"])
def test_pandas_may_say_partitions_in_any_of_its_ways_with_nulls(root: Path, dtype: str) -> None:
    pd = pytest.importorskip("pandas")
    missing = None if dtype == "object" else pd.NA if dtype[0] == "I" else float("nan")
    frame = pd.DataFrame(
        {"key": [b"k"] * 3, "value": [b"a", b"b", b"c"], "partition": pd.Series([2, missing, 0], dtype=dtype)}
    )
    ks.commit(root, run(root, frame, topic="t", partitions=3)[0].to_dict("records"))
    found = rows_of(root, "t")
    assert [row[2] for row in found[2]][:1] == [b"a"]
    assert b"c" in [row[2] for row in found[0]]
    assert b"b" in [row[2] for row in found[partition_of(b"k", 3)]]


@pytest.mark.parametrize("wrong", [1.5, 2.0**31, float("inf"), 2**31])
def test_a_partition_of_pandas_that_is_no_whole_number_of_32_bits_is_refused(root: Path, wrong: float) -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(kstore.InvalidColumnError, match="column partition: "):
        run(root, pd.DataFrame({"value": [b"a"], "partition": [wrong]}), topic="t", partitions=3)
    assert staged_files(root) == []


def test_datetimes_of_pandas_are_taken_with_a_zone_alone(root: Path) -> None:
    pd = pytest.importorskip("pandas")
    naive = pd.DataFrame({"value": [b"a"], "timestamp": pd.to_datetime(["1970-01-01T00:00:07"])})
    with pytest.raises(ConfigError, match="timestamp attribute unsupported type TIMESTAMP_NTZ"):
        run(root, naive, topic="t", partitions=1)
    zoned = naive.assign(timestamp=naive["timestamp"].dt.tz_localize("Asia/Tokyo"))
    zoned["timestamp"] += pd.Timedelta(hours=9)
    ks.commit(root, run(root, zoned, topic="t", partitions=1)[0].to_dict("records"))
    assert [row[0] for row in rows_of(root, "t")[0]] == [7000]


def test_a_wrong_column_in_a_task_is_refused_as_well(root: Path) -> None:
    with pytest.raises(ConfigError, match="value attribute unsupported type INT64"):
        run(root, pa.RecordBatch.from_pydict({"value": [1]}), topic="t", partitions=1)


def test_what_does_not_fit_the_topic_is_said_before_any_task(root: Path) -> None:
    with pytest.raises(kstore.UnknownTopicOrPartitionError, match=r"partitions=\.\.\. makes it"):
        ks.stage(root, topic="t")
    with Store.open(root) as store:
        store.create_topic("t", 3)
    with pytest.raises(ConfigError, match="topic t has 3 partitions, and partitions is 4"):
        ks.stage(root, topic="t", partitions=4)
    with pytest.raises(kstore.KStoreError):
        ks.stage(root, topic="t", compression="lzma")
    with pytest.raises(ConfigError, match="coordinator"):
        ks.stage(root, topic="__consumer_offsets", partitions=1)


def test_a_staging_directory_inside_of_the_root_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="inside of the log directory"):
        ks.stage(root, topic="t", partitions=1, staging_dir=root / "staging")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system here")
def test_a_staging_directory_on_another_file_system_is_refused(root: Path) -> None:
    if Path("/dev/shm").stat().st_dev == root.parent.stat().st_dev:
        pytest.skip("/dev/shm is where the tests run")
    with pytest.raises(StorageError, match="another file system") as found:
        ks.stage(root, topic="t", partitions=1, staging_dir="/dev/shm/kstore-staging")
    assert found.value.filename == "/dev/shm/kstore-staging"


def test_a_directory_that_a_broker_runs_on_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(root, background=False):
        ks.stage(root, topic="t", partitions=1)  # another process has it; the staged files can be handed over
        (root / "meta.properties").write_text("version=1\n")
        ks.stage(root, topic="t", partitions=1)  # a broker's once; the process that has it now is none
        monkeypatch.setattr(staging, "_is_java", lambda pid: True)
        with pytest.raises(StorageError, match="a broker runs on this log directory"):
            ks.stage(root, topic="t", partitions=1)


def test_a_commit_waits_for_the_lock_and_then_hands_the_manifest_back(root: Path) -> None:
    manifest = run(root, batch(10), topic="t", partitions=2)[0].to_pylist()
    with Store.open(root, background=False) as store:
        with pytest.raises(LogLockedError) as found:
            ks.commit(root, manifest, txn=("a", 1), commit_timeout=0.0)
        assert found.value.manifest == tuple(Staged.of(row) for row in manifest)
        assert store.adopt(found.value.manifest, txn=("a", 1)).records == 10
        assert ks.commit(store, manifest, txn=("a", 1)).duplicate
    assert ks.commit(root, manifest, txn=("a", 1)).duplicate


def test_discarding_a_job_removes_what_its_tasks_left_and_nothing_else(root: Path) -> None:
    one, other = ks.stage(root, topic="t", partitions=1), ks.stage(root, topic="t", partitions=1)
    list(one(iter([batch(3)])))
    [kept] = other(iter([batch(3)]))
    ks.discard(root, job=one.job)
    ks.discard(root, job=one.job)
    assert ks.commit(root, kept.to_pylist()).records == 3
    assert leftovers(root) == []


def test_a_job_that_stages_elsewhere_is_discarded_by_its_directory(tmp_path: Path, root: Path) -> None:
    made = ks.stage(root, topic="t", partitions=1, staging_dir=tmp_path / "elsewhere")
    list(made(iter([batch(3)])))
    ks.discard(root, job=made.directory)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_nobody_has_touched_for_a_week_goes(root: Path) -> None:
    made = ks.stage(root, topic="t", partitions=1)
    list(made(iter([batch(3)])))
    staged = str(Path(made.directory).parent)
    now = Path(made.directory).stat().st_mtime
    assert staging.remove_stale([str(root)], staged, now=now + staging.STALE_SECONDS - 60) == []
    assert staging.remove_stale([str(root)], staged, now=now + staging.STALE_SECONDS + 60) == [made.directory]
    assert leftovers(root) == []


@pytest.mark.parametrize("way", ["stale", "discard"])
def test_a_manifest_that_was_kept_goes_with_the_files_of_its_job(root: Path, way: str) -> None:
    made = ks.stage(root, topic="t", partitions=1)
    list(made(iter([batch(3)])))
    (Path(made.directory) / staging.MANIFEST_FILE).write_text("[]")
    if way == "stale":
        assert staging.remove_stale([str(root)], str(Path(made.directory).parent), now=1e12) == [made.directory]
    else:
        ks.discard(root, job=made.job)
    assert leftovers(root) == []


def test_nothing_staged_is_nothing_committed(root: Path) -> None:
    assert run(root, topic="t", partitions=1) == []
    assert run(root, batch(0), topic="t", partitions=1) == []
    assert ks.commit(root, []).offsets == {}
    assert not ks.commit(root, [], txn=("a", 1)).duplicate
    assert ks.commit(root, [], txn=("a", 1)).duplicate


def test_a_forged_manifest_removes_nothing(root: Path, tmp_path: Path) -> None:
    [row] = run(root, batch(3), topic="t", partitions=1)[0].to_pylist()
    precious = tmp_path / "precious"
    precious.mkdir()
    for directory in (str(precious), f"{row['directory']}/../../../precious", "task-0"):
        with pytest.raises(ValueError, match="no directory of a task"):
            ks.commit(root, [row | {"directory": directory}])
    assert precious.is_dir()
    with pytest.raises(ValueError, match="segments"):
        ks.commit(root, [row | {"segments": "[[0, 0, 1]]"}])
    assert ks.commit(root, [row]).records == 3


def test_a_lone_log_can_go_on_in_what_was_committed(root: Path) -> None:
    ks.commit(root, run(root, batch(10), topic="t", partitions=1)[0].to_pylist())
    with Log.open(root / "t-0") as log:
        assert log.append(b"next") == 10


def test_what_a_task_hands_over_outlives_the_machine(tmp_path: Path, root: Path) -> None:
    with FaultFS(tmp_path) as disk:
        [row] = run(root, batch(30), topic="t", partitions=1)[0].to_pylist()
        image = disk.crash_image(tmp_path.parent / f"{tmp_path.name}-after", plan=LOST)
    kept = image / Path(row["directory"]).relative_to(tmp_path)
    names = sorted(path.name for path in kept.glob("t-0/*"))
    assert names == [f"{0:020d}.{kind}" for kind in ("index", "log", "timeindex")]
    for path in kept.glob("t-0/*"):
        assert path.read_bytes() == (Path(row["directory"]) / "t-0" / path.name).read_bytes()


def test_a_full_disk_in_one_task_is_an_error_there_and_leaves_nothing(root: Path) -> None:
    made = ks.stage(root, topic="t", partitions=1)
    with FaultFS(root.parent) as disk:
        disk.fail("pwrite", "open", error=errno.ENOSPC, after=3, times=-1)
        with pytest.raises(StorageError, match="No space left") as found:
            made.write(iter([batch(5000)]))
        disk.heal()
    assert str(found.value.filename).startswith(made.directory)
    assert staged_files(root) == []
    assert ks.commit(root, made.write(iter([batch(5)]))).records == 5


def test_memory_is_bounded_however_much_a_task_sees(root: Path) -> None:
    data = batch(10_000, value=pa.array([b"x" * 1000] * 10_000))
    made = ks.stage(root, topic="t", partitions=64)
    tracemalloc.start()
    try:
        [*staged] = made.write(data for _ in range(12))
        assert tracemalloc.get_traced_memory()[1] < 96 << 20
    finally:
        tracemalloc.stop()
    assert sum(row.records for row in staged) == 120_000


def test_commits_of_two_jobs_at_once_wait_for_each_other(root: Path) -> None:
    manifests = [run(root, batch(500), topic="t", partitions=2)[0].to_pylist() for _ in range(4)]
    threads = [threading.Thread(target=ks.commit, args=(root, manifest)) for manifest in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = rows_of(root, "t")
    for number in range(2):
        one = [b"v%d" % n for n in range(500) if partition_of(b"k%d" % n, 2) == number]
        assert [row[2] for row in found[number]] == one * 4
    assert leftovers(root) == []


def test_an_attempt_after_the_commit_changes_nothing_and_goes_with_the_job(root: Path) -> None:
    made = ks.stage(root, topic="t", partitions=2)
    winner = made.write(iter([batch(100)]))
    with made._attempt() as slow:
        slow.append(made._topic("t"), staging._in_step(pa, slow, {"value": batch(100)["value"]}))
        ks.commit(root, winner, txn=("a", 1))
        late = slow.finish()
    assert late
    assert sum(map(len, rows_of(root, "t").values())) == 100
    ks.discard(root, job=made.job)
    assert leftovers(root) == []


def test_a_pending_load_keeps_what_it_needs_from_being_discarded_or_aging(root: Path) -> None:
    made = ks.stage(root, topic="t", partitions=1)
    [row] = made.write(iter([batch(3)]))
    root.mkdir()
    load_files.write_commit(load_files.CommitRecord("x", str(root), (str(root),), None, -1, (), (row.directory,)))
    ks.discard(root, [row])
    ks.discard(root, job=made.job)
    assert staging.remove_stale([str(root)], str(Path(made.directory).parent), now=1e12) == []
    load_files.remove_commit(load_files.read_commit(str(root)))  # type: ignore[arg-type]
    assert ks.commit(root, [row]).records == 3


@pytest.mark.parametrize("missing", ["pyarrow", "pyspark"])
def test_the_package_imports_without_its_extra_and_says_which_is_missing(missing: str, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from kstore import spark as ks
made = ks.stage({str(tmp_path / "logs")!r}, topic="t", partitions=1)
assert ks.commit(made.root, list(made([(b"k", b"v")]))).records == 1
try:
    ks.partition_of("key", 4)
except ks.staging.ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'kstore[spark]'" in done.stdout
