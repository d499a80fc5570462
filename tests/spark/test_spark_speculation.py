"""Speculation as Spark does it: a second attempt on another host, while the first is still at work.

Spark starts none on the host of the first, so this is a small standalone cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore import Log
from tests.spark.spark_cluster import PATIENCE_S, Cluster, on_linux
from tests.spark.spark_cluster import cluster as cluster
from tests.spark.spark_session import separate

pytestmark = [pytest.mark.spark, on_linux]

SCRIPT = """
import os, sys, time
from tests.spark.spark_session import start
from kstore import spark as ks

master, seen, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
session = start(master, spark_speculation="true", spark_speculation_interval="50ms",
                spark_speculation_multiplier="1.1", spark_speculation_quantile="0.25",
                spark_speculation_minTaskRuntime="100ms")

def telling(rows):
    from pyspark import TaskContext
    task, attempt = TaskContext.get().partitionId(), TaskContext.get().attemptNumber()
    for number, row in enumerate(rows):
        if (task, attempt, number) == (3, 0, 50):  # some rows are staged; the other attempt comes first
            deadline = time.monotonic() + patience
            while not os.path.exists(f"{seen}/3-1") and time.monotonic() < deadline:
                time.sleep(0.05)
        yield row
    open(f"{seen}/{task}-{attempt}", "x").close()

rows = [(b"k%d" % number, b"v%d" % number) for number in range(800)]
done = ks.ingest(session.sparkContext.parallelize(rows, 4).mapPartitions(telling), "logs", topic="t", partitions=3)
assert done.records == 800
session.stop()
"""


def test_of_a_task_that_runs_on_two_hosts_at_once_the_rows_come_once(cluster: Cluster, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    separate(SCRIPT, tmp_path, cluster.address, str(seen), str(PATIENCE_S), timeout=2 * PATIENCE_S)
    assert (seen / "3-1").exists(), "there was a second attempt, and it came to its end before the first"
    found = []
    for partition in range(3):
        with Log.open(tmp_path / "logs" / f"t-{partition}", "r") as log:
            found += [record.value for record in log.read()]
    assert sorted(found) == sorted(b"v%d" % number for number in range(800))
    staging = tmp_path / "logs.kstore-staging"
    assert not staging.exists() or not list(staging.iterdir())
