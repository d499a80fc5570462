"""Loads and streams on a cluster of two workers, whose executors are killed at random moments: each row comes once.

A killed executor is started again by its worker, and every second time the worker is killed too.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore import Store
from tests.spark.spark_cluster import Cluster, Driver, on_linux
from tests.spark.spark_cluster import cluster as cluster
from tests.spark.spark_session import limits_batches
from tests.support.staging import leftovers

pytestmark = [pytest.mark.spark, on_linux]

ROWS = 30_000
PARTITIONS = 3
MOST = 8_000

INGEST = """
from kstore import spark as ks

rows = session.range(0, {rows}, 1, 6).selectExpr("cast(id % 1000 as string) as key", "cast(id as string) as value")
report = ks.ingest(rows, "{root}", topic="t", partitions={partitions}, txn=("load", 1))
answer = report.records
"""

# A query is stopped at random moments, and goes on from its checkpoint, until it ends.
STREAM = """
import random, time
from tests.spark.spark_session import to_its_end

chance = random.Random({seed!r})
wanted = dict(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger={most})
frame = session.readStream.format("kstore").options(**wanted).load("{source}")
writer = (frame.writeStream.format("{format}").options(**{options!r}).option("checkpointLocation", "{checkpoint}")
          .trigger(availableNow=True))
counts = {{}}
for seconds in [chance.uniform(1, 8) for _ in range({stops})] + [1000]:
    ends = time.monotonic() + seconds
    query = to_its_end(lambda: writer.start("{into}"), lambda: time.monotonic() > ends)
    counts |= {{each.batchId: each.numInputRows for each in query.recentProgress}}
answer = counts
"""

FILES = """
found = session.read.parquet("{into}").selectExpr("partition", "offset", "cast(key as string)", "cast(value as string)")
answer = sorted(map(list, found.collect()))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def driver(cluster: Cluster, place: Path) -> Iterator[Driver]:
    started = Driver(cluster, place, spark_task_maxFailures="1000")
    yield started
    started.close()


@pytest.fixture
def kills(budget: Callable[[float], float]) -> int:
    """How often executors are killed, and queries stopped, at most."""
    return max(1, int(budget(2)))


@pytest.fixture(scope="module")
def source(driver: Driver, place: Path) -> Path:
    """A log of rows that were ingested while executors were killed."""
    root = place / "source"
    code = INGEST.format(rows=ROWS, root=root, partitions=PARTITIONS)
    assert driver.run(code, 1, random.Random(1)) == ROWS
    return root


def records(root: Path) -> list[list[tuple[int, int, bytes | None, bytes | None]]]:
    """The records of each partition."""
    with Store.open(root, "r") as store:
        return [
            [(each.offset, each.timestamp, each.key, each.value) for each in store.log("t", number).read()]
            for number in range(PARTITIONS)
        ]


def check_batches(counts: dict[str, int], checkpoint: Path) -> None:
    """No batch has more rows than the limit, and all together have each row once."""
    offsets: list[dict[str, int]] = [{}]
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        offsets.append(json.loads(file.read_text().splitlines()[-1])["t"])
    sizes = [sum(after.values()) - sum(before.values()) for before, after in itertools.pairwise(offsets)]
    assert max(sizes) <= MOST
    assert sum(sizes) == ROWS
    assert counts.items() <= {str(number): size for number, size in enumerate(sizes)}.items()


def test_an_ingest_whose_executors_are_killed_has_each_row_once(source: Path) -> None:
    found = [value for rows in records(source) for _, _, _, value in rows]
    assert sorted(found, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(ROWS)]
    assert leftovers(source) == []


@limits_batches
def test_a_stream_between_logs_survives_kills_and_restarts(
    driver: Driver, source: Path, place: Path, rng: random.Random, kills: int
) -> None:
    how: dict[str, Any] = {"checkpoint": place / "copying", "stops": kills, "seed": rng.random(), "most": MOST}
    into = place / "copy"
    options = {"topic": "t", "partitions": str(PARTITIONS)}
    counts = driver.run(STREAM.format(source=source, format="kstore", options=options, into=into, **how), kills, rng)
    assert records(into) == records(source)
    assert leftovers(into) == []
    check_batches(counts, place / "copying")


@limits_batches
@pytest.mark.slow
def test_a_stream_into_files_survives_kills_and_restarts(
    driver: Driver, source: Path, place: Path, rng: random.Random, kills: int
) -> None:
    how: dict[str, Any] = {"checkpoint": place / "filing", "stops": kills, "seed": rng.random(), "most": MOST}
    into = place / "files"
    counts = driver.run(STREAM.format(source=source, format="parquet", options={}, into=into, **how), kills, rng)
    found = driver.run(FILES.format(into=into), 0, rng)
    wanted = [
        [number, offset, (key or b"").decode(), (value or b"").decode()]
        for number, rows in enumerate(records(source))
        for offset, _, key, value in rows
    ]
    assert found == wanted
    check_batches(counts, place / "filing")
