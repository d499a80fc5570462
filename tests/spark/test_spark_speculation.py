"""Speculation as Spark does it: a second attempt on another host, while the first is still at work.

Spark starts none on the host of the first, so this is a small standalone cluster, its two workers on two addresses of
the loopback interface.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kstore import Log
from tests.spark.spark_session import environment, separate
from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and 127.0.0.3 are addresses of Linux's loopback"),
]

PATIENCE_S = 120

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


def await_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "Spark's master does not listen"
            time.sleep(0.05)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A cluster of one core on each of two hosts."""
    home = str(Path(pytest.importorskip("pyspark").__file__).parent)
    port, page = free_ports(2)

    def run(name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = f"{environment()['JAVA_HOME']}/bin/java"
        command = [java, "-Xmx256m", "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{name}", "--host", host]
        settings = {"SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": host}
        with open(tmp_path / f"{host}.txt", "wb") as output:
            return subprocess.Popen(
                [*command, *arguments],
                env=os.environ | environment() | settings,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def ending(process: subprocess.Popen[bytes]) -> None:
            stack.callback(process.wait)
            stack.callback(process.terminate)

        ending(run("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", str(page)))
        await_port(port)
        for host in ("127.0.0.2", "127.0.0.3"):
            place = str(tmp_path / "work")
            ending(
                run(
                    "worker.Worker", host, "--cores", "1", "--memory", "700m", "--webui-port", "0", "-d", place, address
                )
            )
        yield address


def test_of_a_task_that_runs_on_two_hosts_at_once_the_rows_come_once(master: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    separate(SCRIPT, tmp_path, master, str(seen), str(PATIENCE_S), timeout=2 * PATIENCE_S)
    assert (seen / "3-1").exists(), "there was a second attempt, and it came to its end before the first"
    found = []
    for partition in range(3):
        with Log.open(tmp_path / "logs" / f"t-{partition}", "r") as log:
            found += [record.value for record in log.read()]
    assert sorted(found) == sorted(b"v%d" % number for number in range(800))
    staging = tmp_path / "logs.kstore-staging"
    assert not staging.exists() or not list(staging.iterdir())
