"""The same script reads by Spark's Kafka source and by kstore's: a broker's records, and its files while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.kafka.kafka_broker import Cluster
from tests.kafka.kafka_broker import machine as machine
from tests.spark import spark_kafka
from tests.spark.spark_session import separate

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

START_MS = 1_700_000_000_000
MOST = 25

# Options of both sources. The query that begins with the latest records runs again when there are more.
CASES: dict[str, dict[str, Any]] = {
    "earliest": {
        "subscribePattern": "events|stamped|ord.*",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": MOST,
        "kafka.isolation.level": "read_committed",
    },
    "json": {
        "assign": {"events": [0, 2], "orders": [0, 1]},
        "startingOffsets": {"events": {"0": 11, "2": -2}, "orders": {"0": -2, "1": 0}},
    },
    "time": {
        "subscribe": "events",
        "startingOffsetsByTimestamp": {"events": {"0": START_MS, "1": START_MS + 10_500, "2": START_MS + 10**9}},
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "latest": {"subscribe": "events", "startingOffsets": "latest"},
}
SOURCES = ("kafka", "kstore")

SCRIPT = """
import json, sys
from tests.spark.spark_session import start, to_its_end

jars, address, root, cases = sys.argv[1:]
cases = json.loads(cases)
session = start(spark_jars=jars, spark_sql_parquet_outputTimestampType="TIMESTAMP_MICROS")
progress = {}

def run(names):
    for source in ("kafka", "kstore"):
        for name in names:
            options = {key: value if isinstance(value, (str, int)) else json.dumps(value)
                       for key, value in cases[name].items()}
            frame = (session.readStream.format(source).options(**options)
                     .option("kafka.bootstrap.servers", address).option("includeHeaders", True).load(root))
            writer = frame.writeStream.option("checkpointLocation", f"checkpoints/{source}/{name}")
            query = to_its_end(lambda: writer.trigger(availableNow=True).start(f"rows/{source}/{name}"))
            progress.setdefault(f"{source}/{name}", []).extend(each.numInputRows for each in query.recentProgress)

run(cases)
more = session.range(20).selectExpr("cast(id as string) as key", "concat('more ', id) as value")
more.write.format("kafka").options(**{"kafka.bootstrap.servers": address, "kafka.acks": "1"}).save(topic="events")
run(["latest"])
with open("progress.json", "w") as file:
    json.dump(progress, file)
session.stop()
"""


class Rows(NamedTuple):
    """What the queries of a source wrote: a table for each case, in the order of topic, partition and offset."""

    tables: dict[tuple[str, str], Any]
    batches: dict[str, list[int]]
    """The numbers of rows that the progress of each query reported, by batch."""


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with three topics: one of all kinds of records, one that the log dates, one with transactions."""
    missing = spark_kafka.why_missing()
    if missing is not None:
        pytest.skip(missing)
    machine = request.getfixturevalue("machine")
    cluster = machine.make(tmp_path_factory.mktemp("kafka") / "broker")
    with cluster.up():
        cluster.create("events", partitions=3)
        cluster.create("stamped", partitions=1, message_timestamp_type="LogAppendTime")
        cluster.create("orders", partitions=2)
        for number, codec in enumerate(("none", "lz4", "zstd")):
            rows = [
                (
                    None if n % 7 == 0 else b"k%d" % n,
                    None if n % 11 == 0 else b"v%d" % n,
                    START_MS + 1000 * n,
                    [("a", b"%d" % n), ("b", None)][: n % 3],
                )
                for n in range(30)
            ]
            cluster.produce("events", rows, partition=number, config={"compression.type": codec})
        cluster.produce("stamped", [(b"k", b"%d" % n, START_MS) for n in range(10)], partition=0)
        for number, end in enumerate(("commit", "abort", "commit", "abort")):
            rows = [(b"%d" % n, b"%s %d" % (end.encode(), n)) for n in range(5)]
            theirs = {"transactional.id": f"theirs-{number}"}
            cluster.produce("orders", rows, partition=number // 2, config=theirs, transaction=end)
        cluster.committed("orders", 1, 5)
        yield cluster


@pytest.fixture(scope="module")
def rows(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    import pyarrow.parquet as pq

    place = tmp_path_factory.mktemp("spark")
    separate(SCRIPT, place, spark_kafka.jars(), broker.address, str(broker.logs), json.dumps(CASES))
    order = [(name, "ascending") for name in ("topic", "partition", "offset")]
    tables = {
        (source, case): pq.read_table(place / "rows" / source / case).sort_by(order)
        for source in SOURCES
        for case in CASES
    }
    return Rows(tables, json.loads((place / "progress.json").read_text()))


@pytest.mark.parametrize(("case", "count"), [("earliest", 110), ("json", 69), ("time", 49), ("latest", 20)])
def test_the_same_script_gives_the_same_rows_as_kafkas_source(rows: Rows, case: str, count: int) -> None:
    theirs, ours = (rows.tables[source, case] for source in SOURCES)
    assert theirs.num_rows == count
    assert ours.schema == theirs.schema
    assert ours.to_pylist() == theirs.to_pylist()


def test_aborted_records_are_read_unless_only_committed_ones_are_asked_for(rows: Rows) -> None:
    def aborted(case: str) -> int:
        return sum(value.startswith(b"abort") for value in rows.tables["kstore", case]["value"].to_pylist() if value)

    assert (aborted("earliest"), aborted("json")) == (0, 10)


def test_a_limit_of_offsets_is_kept_and_the_batches_add_up(rows: Rows) -> None:
    theirs, ours = (rows.batches[f"{source}/earliest"] for source in SOURCES)
    assert sum(ours) == sum(theirs) == 110
    assert max(ours) <= MOST
    assert len([count for count in ours if count]) == 5  # with aborted records and markers there are 124 offsets
