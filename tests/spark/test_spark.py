"""Spark itself: `ks.scan` and `format("kstore")` both ways, in one process and on a cluster of two executors.

What tasks stage and what commits do with it is `test_spark_ingest.py`; here it is that the format leads there.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import spark as ks
from kstore.files.stream_positions import read_positions
from kstore.spark.spark_options import READ_OPTIONS, WRITE_OPTIONS
from kstore.spark.stream_options import STREAM_OPTIONS
from tests.spark.spark_session import separate
from tests.spark.spark_session import spark as spark
from tests.test_examples import SPARK, Example, run

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
COUNT = 3000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with topic `t` of three partitions, an empty topic, and a topic with an empty partition."""
    path = tmp_path_factory.mktemp("logs")
    with kstore.Store.open(path) as store:
        store.create_topic("t", partitions=3, config={"segment.bytes": "50000"})
        store.create_topic("empty", partitions=2)
        store.create_topic("half", partitions=2)
        for number in range(3):
            rows = (
                (b"k%d" % i if i % 5 else None, b"v%d-%d" % (number, i) if i % 7 else None, START_MS + i, heads(i))
                for i in range(COUNT // 3)
            )
            store.append_many("t", rows, partition=number, batch_bytes=2000)
        store.append("half", b"x", partition=1)
    return str(path)


def heads(i: int) -> list[tuple[str, bytes | None]] | None:
    return [("h", b"%d" % i), ("n", None)] if i % 4 == 0 else None


def load(spark: Any, root: str, schema: str | None = None, **options: object) -> Any:
    reader = spark.read.format("kstore").options(**{name: str(value) for name, value in options.items()})
    return (reader if schema is None else reader.schema(schema)).load(root)


def why(frame: Any) -> str:
    """Why a frame cannot be had, as the driver is told."""
    with pytest.raises(Exception) as caught:
        frame().collect()
    return str(caught.value)


def test_both_ways_give_every_record_with_all_its_columns(spark: Any, root: str) -> None:
    expected = [
        (
            None if i % 5 == 0 else b"k%d" % i,
            None if i % 7 == 0 else b"v%d-%d" % (number, i),
            "t",
            number,
            i,
            START_MS + i,
            0,
            heads(i),
        )
        for number in range(3)
        for i in range(COUNT // 3)
    ]
    for frame in (
        load(spark, root, subscribe="t", includeHeaders="true"),
        ks.scan(spark, root, subscribe="t", include_headers=True),
    ):
        assert frame.dtypes == [
            ("key", "binary"),
            ("value", "binary"),
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
            ("timestampType", "int"),
            ("headers", "array<struct<key:string,value:binary>>"),
        ]
        assert all(field.nullable for field in frame.schema)
        # The moment as a number: what Python shows of it is in the session's own time zone, which is New York here.
        rows = frame.selectExpr(
            "key", "value", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType", "headers"
        ).collect()
        found = [
            (*row[:7], None if row[7] is None else [(h.key, h.value) for h in row[7]])
            for row in [tuple(row) for row in rows]
        ]
        assert found == expected


def test_columns_and_schemas_choose_what_is_built(spark: Any, root: str) -> None:
    assert load(spark, root, subscribe="t", columns="offset,value").columns == ["offset", "value"]
    assert load(spark, root, "offset long, value binary", subscribe="t").where("offset = 8").count() == 3
    assert ks.scan(spark, root, subscribe="t", columns=("partition",)).distinct().count() == 3
    strict = load(spark, root, "offset long not null, partition int", subscribe="t")
    assert strict.where("offset < 2").count() == 6


def test_ranges_become_tasks_and_keep_their_order(spark: Any, root: str) -> None:
    for frame in (
        load(spark, root, subscribe="t", minPartitions=12, columns="partition,offset"),
        ks.scan(spark, root, subscribe="t", min_partitions=12, columns="partition,offset"),
    ):
        assert frame.rdd.getNumPartitions() == 12
        assert [tuple(row) for row in frame.collect()] == [(n, i) for n in range(3) for i in range(COUNT // 3)]
    most = ks.scan(spark, root, subscribe="t", max_records_per_partition=100, columns="offset")
    sizes = most.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert max(sizes) <= 100
    assert sum(sizes) == COUNT


def test_a_scan_uses_every_core_where_there_are_fewer_partitions(spark: Any, root: str) -> None:
    one = ks.scan(spark, root, assign={"t": [1]}, columns="offset")
    assert one.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2
    assert one.count() == COUNT // 3


def test_offsets_and_moments_bound_a_scan(spark: Any, root: str) -> None:
    frame = load(
        spark,
        root,
        assign='{"t":[0,2]}',
        startingOffsets='{"t":{"0":10,"2":-2}}',
        endingOffsets='{"t":{"0":12,"2":1}}',
        columns="partition,offset",
    )
    assert [tuple(row) for row in frame.collect()] == [(0, 10), (0, 11), (2, 0)]
    timed = ks.scan(
        spark, root, subscribe=["t"], starting_timestamp=START_MS + 7, ending_timestamp=START_MS + 9, columns=["offset"]
    )
    assert sorted(row.offset for row in timed.collect()) == [7, 7, 7, 8, 8, 8]


def test_conditions_are_pushed_into_the_planning_where_that_is_asked_for(spark: Any, root: str) -> None:
    frame = load(spark, root, subscribe="t", pushdown="true", columns="partition,offset,timestamp")
    moment = datetime.fromtimestamp((START_MS + 500) / 1000, UTC)
    narrow = frame.where("partition in (1, 2) and offset >= 400 and offset < 502").where(frame.timestamp >= moment)
    assert sorted((row.partition, row.offset) for row in narrow.collect()) == [(1, 500), (1, 501), (2, 500), (2, 501)]
    if spark.version >= "4.1":  # where Spark began to hand conditions over
        assert narrow.rdd.getNumPartitions() == 2
    plain = load(spark, root, subscribe="t", columns="partition,offset")
    assert plain.where("partition = 1").rdd.getNumPartitions() == 3
    assert plain.where("partition = 1").count() == COUNT // 3


def test_an_hour_of_a_topic_is_read_by_a_condition_on_timestamp(spark: Any, tmp_path: Path) -> None:
    """Records up to 95 ms late, by the key's partition; Spark's own forms of the conditions, as SQL and as columns."""
    from pyspark.sql.functions import col, lit

    times = [START_MS + 10 * i - (95 if i % 7 == 0 else 0) for i in range(600)]
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=3)
        rows = [(b"k%d" % (i % 5), b"v", time, None) for i, time in enumerate(times)]
        store.append_many("t", rows, batch_bytes=300)
    hour = f"timestamp >= timestamp_millis({START_MS + 2000}) and timestamp < timestamp_millis({START_MS + 3000})"
    few = f"timestamp in (timestamp_millis({times[3]}), timestamp_millis({times[599]}))"
    inside = [time for time in times if START_MS + 2000 <= time < START_MS + 3000]
    for more in ({}, {"maxLatenessMs": "95", "partitionedByKey": "true"}):

        def where(*conditions: Any, more: dict[str, str] = more) -> Any:
            frame = load(spark, str(tmp_path), subscribe="t", pushdown="true", **more)  # Spark needs one for each query
            for condition in conditions:
                frame = frame.where(condition)
            return frame

        assert where(hour).count() == len(inside)
        assert where(few).count() == 2
        assert where(f"not ({hour})").count() == len(times) - len(inside)
        assert where(col("key").eqNullSafe(lit(b"k1"))).count() == 120
        assert where(hour).union(where(few)).count() == len(inside) + 2
        by_key = where(hour, "key = cast('k1' as binary)")
        assert by_key.count() == sum(time in inside for time in times[1::5])
        if spark.version >= "4.1":
            assert by_key.rdd.getNumPartitions() == (1 if "partitionedByKey" in more else 3)
    if spark.version >= "4.1":
        broken = load(spark, str(tmp_path), subscribe="t", pushdown="true", maxLatenessMs="5")
        assert "maxLatenessMs, 5 ms" in why(lambda: broken.where(hour))


def test_spark_refuses_a_query_with_pushdown_while_its_own_setting_is_off(spark: Any, root: str) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        frame = load(spark, root, subscribe="t", pushdown="true", columns="offset")
        if spark.version >= "4.1":
            with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
                frame.where("offset < 5").collect()
        else:
            assert frame.where("offset < 5").count() == 15
        assert load(spark, root, subscribe="t", columns="offset").where("offset < 5").count() == 15
    finally:
        spark.conf.set(name, "true")


def test_nothing_to_read_is_an_empty_frame(spark: Any, root: str) -> None:
    for topic, count in (("empty", 0), ("half", 1)):
        assert load(spark, root, subscribe=topic).count() == count
        assert ks.scan(spark, root, subscribe=topic).count() == count
    assert load(spark, root, subscribePattern="nothing.*").collect() == []


def test_a_view_in_sql_reads_a_topic_and_a_table_does_with_the_options_named_again(spark: Any, root: str) -> None:
    options = f"(path '{root}', subscribe 't')"
    spark.sql(f"CREATE TEMPORARY VIEW viewed USING kstore OPTIONS {options}")
    assert spark.sql("SELECT count(*) AS n FROM viewed WHERE partition = 1").first().n == COUNT // 3
    spark.sql(f"CREATE TABLE scanned USING kstore OPTIONS {options}")
    try:
        again = options.replace(" '", "='")
        counted = spark.sql(f"SELECT count(*) AS n FROM scanned WITH {again} WHERE partition = 1")
        assert counted.first().n == COUNT // 3
    finally:
        spark.sql("DROP TABLE scanned")


def test_a_directory_is_scanned_while_its_owner_writes(spark: Any, tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("live", partitions=1)
        store.append("live", b"one")
        frame = ks.scan(spark, tmp_path, subscribe="live", columns="value")
        store.append("live", b"two")
        assert [row.value for row in frame.collect()] == [b"one"]  # what was there when it was planned
        assert ks.scan(spark, tmp_path, subscribe="live").count() == 2


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({}, None, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": "gone"}, None, "subscribe names 'gone', and there are empty, half, t"),
        ({"subscribe": "t", "startingOffset": "x"}, None, "startingOffset is no option of a read; startingOffsets is"),
        ({"subscribe": "t", "startingOffsets": "latest"}, None, "startingOffsets is 'latest'"),
        ({"subscribe": "t", "columns": "valu"}, None, "columns has 'valu'"),
        ({"subscribe": "t"}, "offset int", "the schema has offset as int; it is bigint"),
        ({"subscribe": "t"}, "word string", "the schema has a column 'word'"),
    ],
)
def test_what_cannot_be_read_is_told_before_any_task_runs(
    spark: Any, root: str, options: dict[str, str], schema: str | None, said: str
) -> None:
    text = why(lambda: load(spark, root, schema, **options))
    assert said.lower() in text.lower()  # Spark hands names over in small letters
    assert "TaskContext" not in text


def test_a_directory_that_is_not_there_is_named(spark: Any, tmp_path: Path) -> None:
    for frame in (
        lambda: load(spark, str(tmp_path / "nowhere"), subscribe="t"),
        lambda: ks.scan(spark, tmp_path / "nowhere", subscribe="t"),
    ):
        assert "nowhere" in why(frame)


# --- writes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A directory for logs, whose staging directory beside it is looked at afterwards: nothing stays there."""
    return str(tmp_path / "target")


def save(frame: Any, target: str, **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    frame.write.format("kstore").mode("append").options(**given).save(target)


def kept(target: str) -> list[str]:
    """What is left in the staging directory."""
    staging = Path(f"{target}.kstore-staging")
    return sorted(each.name for each in staging.rglob("*")) if staging.exists() else []


def rows_of(spark: Any, target: str, topic: str = "t") -> list[tuple[Any, ...]]:
    frame = ks.scan(spark, target, subscribe=topic, columns=("partition", "offset", "key", "value"))
    return [tuple(row) for row in frame.collect()]


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    """1000 rows in four tasks."""
    return spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) AS key", "concat('v', id) AS value")


def test_what_is_written_by_the_format_goes_by_keys_and_is_read_back(spark: Any, frame: Any, target: str) -> None:
    save(frame, target, topic="t", partitions=3, compression="lz4")
    found = rows_of(spark, target)
    assert sorted(int(key) for _, _, key, _ in found) == list(range(1000))
    assert all(value == b"v" + key for _, _, key, value in found)
    sent = frame.select("key", ks.partition_of("key", 3).alias("to")).collect()
    assert {int(row.key): row.to for row in sent} == {int(key): partition for partition, _, key, _ in found}
    for number in range(3):
        mine = [(offset, int(key)) for partition, offset, key, _ in found if partition == number]
        assert [offset for offset, _ in mine] == list(range(len(mine)))
        assert [key for _, key in mine] == sorted(key for _, key in mine)  # the order of the frame
    assert kept(target) == []


def test_a_transaction_is_written_once_however_often_the_job_runs(spark: Any, frame: Any, target: str) -> None:
    for version in (1, 1, 2, 1):
        save(frame, target, topic="t", partitions=2, txnAppId="daily", txnVersion=version)
    assert len(rows_of(spark, target)) == 2000
    assert kept(target) == []


def test_all_columns_of_a_scan_can_be_written_again(spark: Any, root: str, target: str) -> None:
    save(load(spark, root, subscribe="t", includeHeaders="true"), target, topic="copy", partitions=3)
    columns = ("partition", "offset", "key", "value", "timestamp", "headers")
    before = ks.scan(spark, root, subscribe="t", columns=columns).collect()
    assert ks.scan(spark, target, subscribe="copy", columns=columns).collect() == before


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["cast(key AS int) AS key", "value"], {"topic": "t"}, "key attribute unsupported type INT"),
        (["key", "value"], {}, "topic option required when no 'topic' attribute is present"),
        (["key", "value"], {"topic": "new"}, "there is no topic 'new'"),
        (["key", "value"], {"topic": "t", "partitions": 5}, "5"),
        (["key", "value"], {"topic": "t", "topics": "x"}, "topics is no option of a write; topic is"),
        (["key", "value"], {"topic": "t", "txnAppId": "x"}, "txnVersion is missing"),
    ],
)
def test_what_cannot_be_written_is_told_before_any_task_runs(
    spark: Any, frame: Any, root: str, columns: list[str], options: dict[str, object], said: str
) -> None:
    with pytest.raises(Exception) as caught:
        save(frame.selectExpr(*columns), root, **options)
    assert said in str(caught.value)
    assert "Failed to initialize Python data source writer" in str(caught.value)  # on the driver
    assert kept(root) == []


def test_overwriting_and_sparks_own_default_mode_are_refused(frame: Any, root: str) -> None:
    with pytest.raises(Exception, match="records are appended"):
        frame.write.format("kstore").mode("overwrite").option("topic", "t").save(root)
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("kstore").option("topic", "t").save(root)


def test_a_store_that_stays_locked_fails_the_write_and_nothing_stays_staged(frame: Any, target: str) -> None:
    with kstore.Store.open(target) as store:
        store.create_topic("t", partitions=1)
        with pytest.raises(Exception, match="locked by process"):
            save(frame, target, topic="t", commitTimeout="0.2")
        assert store.log("t", 0).log_end_offset == 0
    assert kept(target) == []


def test_a_task_that_fails_for_good_leaves_nothing(spark: Any, frame: Any, target: str) -> None:
    with pytest.raises(Exception, match="by hand"):
        save(
            # One task: another one that still runs when Spark gives up may write until Spark has stopped it.
            frame.coalesce(1).selectExpr("key", "if(key = '900', raise_error('by hand'), value) AS value"),
            target,
            topic="t",
            partitions=2,
        )
    assert kept(target) == []
    assert not Path(target).exists() or kstore.Store.open(target, mode="r").topics == ()


def test_a_view_in_sql_is_inserted_into(spark: Any, target: str) -> None:
    kstore.Store.open(target).close()
    with kstore.Store.open(target) as store:
        store.create_topic("t", partitions=1)
    options = f"(path '{target}', subscribe 't', topic 't', columns 'key,value')"
    spark.sql(f"CREATE TEMPORARY VIEW poured USING kstore OPTIONS {options}")
    spark.sql("INSERT INTO poured SELECT CAST('k' AS binary), CAST('v' AS binary)")
    assert rows_of(spark, target) == [(0, 0, b"k", b"v")]


# --- the page about it ------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_run_from_top_to_bottom(
    spark: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    has_limits = spark.version >= "4.2"  # of the micro-batches of Python's sources
    if not has_limits:
        text = text.partition("## Streams\n")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    # Spark's own processes are where they were started: a relative path would be another one there.
    blocks = [re.sub("([\"'])(data|checkpoints/[a-z-]+)\\1", rf"\1{tmp_path}/\2\1", block) for block in blocks]
    names: dict[str, Any] = {"spark": spark, "df": frame}
    exec("\n".join(block for block in blocks if "addArchive" not in block), names)
    data = str(tmp_path / "data")
    assert kept(data) == []
    assert len(rows_of(spark, data, "events")) == 3001
    if not has_limits:
        return
    assert len(blocks) == 12  # what is shipped to executors is tried on a cluster, below
    assert len(rows_of(spark, data, "copies")) == 2 * 3001  # by the format, and by foreachBatch
    printed = set[str]()
    deadline = time.monotonic() + 60
    while "events-0: 0 behind" not in printed and time.monotonic() < deadline:  # Spark tells listeners later
        printed |= set(capsys.readouterr().out.splitlines())
        time.sleep(0.01)
    [positions] = read_positions(data)
    assert positions.group == "copy"
    assert sum(positions.offsets.values()) == 3001
    spark.streams.removeListener(names["listener"])
    assert {"events-0: 0 behind", "events-15: 0 behind"} <= printed
    assert any(not line.endswith(" 0 behind") for line in printed), "a query that takes 2000 at a time is behind"


def test_every_option_is_on_the_page() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in (*READ_OPTIONS, *WRITE_OPTIONS, *STREAM_OPTIONS) if f"`{name}`" not in text] == []


# --- on a cluster -----------------------------------------------------------------------------------------------------


CLUSTER = """
import json, os, sys
import kstore
from tests.spark import spark_session
from kstore import spark as ks

root, target = sys.argv[1:]

def poured(session, frame):
    # Several executors stage, one commit follows; a shuffle has no order, and sorting within partitions brings it back.
    rows = frame.select("key", "value", "partition", "timestamp").repartition(4, "partition")
    rows = rows.sortWithinPartitions("partition", "timestamp")
    (rows.write.format("kstore").mode("append").option("topic", "u").option("partitions", 3)
        .option("txnAppId", "x").option("txnVersion", 1).save(target))
    report = ks.ingest(rows, target, topic="u", txn=("x", 1))
    found = ks.scan(session, target, subscribe="u", columns=("partition", "offset", "timestamp")).collect()
    return [report.duplicate, [[row.partition, row.offset, row.timestamp.timestamp()] for row in found]]

session = spark_session.start("local-cluster[2,1,1024]")
spark = session
exec(open("shipping.py").read())
try:
    frame = ks.scan(session, root, subscribe="t", min_partitions=6)
    def who(batches):
        import kstore
        for batch in batches:
            yield os.getppid(), batch.num_rows if hasattr(batch, "num_rows") else 1, kstore.__file__
    tasks = frame.rdd.mapPartitions(lambda rows: who([list(rows)])).collect()
    by_source = session.read.format("kstore").option("subscribe", "t").load(root)
    print(json.dumps({
        "executors": len({each[0] for each in tasks}),
        "shipped": all(os.path.dirname(kstore.__file__) not in each[2] and "/work/" in each[2] for each in tasks),
        "rows": [list(row) for row in frame.select("partition", "offset").collect()],
        "by_source": by_source.groupBy("partition").count().orderBy("partition").collect(),
        "shuffled": frame.repartition(4, "partition").select("offset").count(),
        "poured": poured(session, frame),
    }))
finally:
    session.stop()
"""


def test_two_executors_read_and_write_what_one_process_does(root: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    (shipping,) = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "addArchive" in block]
    (tmp_path / "shipping.py").write_text(shipping)
    found = json.loads(separate(CLUSTER, tmp_path, root, str(tmp_path / "target")).splitlines()[-1])
    assert found["executors"] == 2
    assert found["shipped"], "executors use the kstore that was sent to them"
    assert found["rows"] == [[number, i] for number in range(3) for i in range(COUNT // 3)]
    assert found["by_source"] == [[number, COUNT // 3] for number in range(3)]
    assert found["shuffled"] == COUNT
    duplicate, poured = found["poured"]
    assert duplicate
    assert [row[:2] for row in poured] == found["rows"]
    assert [round(row[2] * 1000) - START_MS for row in poured] == list(range(COUNT // 3)) * 3


@pytest.mark.parametrize("example", SPARK.values(), ids=SPARK)
def test_an_example_of_a_docstring_runs_as_it_stands(
    spark: Any, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(example, {"spark": spark})
