"""A standalone cluster of Spark: a master and two workers, each with one core, a directory and a host of its own.

The hosts are addresses of Linux's loopback interface. `Cluster` starts and kills the processes; `Driver` is an
application of the cluster in another process, which runs code that a test sends. Neither is thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.spark_session import environment
from tests.support.ports import free_ports
from tests.support.processes import children

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="127.0.0.2 and 127.0.0.3 are addresses of Linux's loopback"
)

PATIENCE_S = 120
HOSTS = ("127.0.0.2", "127.0.0.3")
SMALL = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

APPLICATION = """
import json, sys
from tests.spark.spark_session import start

session = start(sys.argv[1], **json.loads(sys.argv[2]))
names = {"session": session}
for line in sys.stdin:
    exec(json.loads(line), names)
    print(json.dumps(names.pop("answer", None)), flush=True)
session.stop()
"""


class Cluster:
    """The processes of a cluster, whose files are in one directory; `close` ends them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._home = str(Path(pytest.importorskip("pyspark").__file__).parent)
        port, page = free_ports(2)
        self.address = f"spark://127.0.0.1:{port}"
        self._master = self._run("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        _await_port(port)
        for host in HOSTS:
            self.start_worker(host)

    def _run(self, name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = f"{environment()['JAVA_HOME']}/bin/java"
        command = [java, *SMALL, "-cp", f"{self._home}/jars/*", f"org.apache.spark.deploy.{name}", "--host", host]
        settings = {"SPARK_HOME": self._home, "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": host}
        with open(self._directory / f"{host}.txt", "ab") as output:
            return subprocess.Popen(
                [*command, *arguments],
                env=os.environ | environment() | settings,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def start_worker(self, host: str) -> None:
        """Start the worker of a host."""
        place = str(self._directory / f"work-{host}")
        options = ("--cores", "1", "--memory", "700m", "--webui-port", "0", "-d", place)
        self._workers[host] = self._run("worker.Worker", host, *options, self.address)

    def kill_worker(self, host: str) -> None:
        """End the worker of a host and its executors at once, as a power cut does."""
        worker = self._workers.pop(host)
        executors = children(worker.pid)
        worker.kill()
        for executor in executors:
            _kill(executor)
        worker.wait()

    def busy(self) -> dict[str, int]:
        """The executors that have started Python, by host."""
        found = {host: children(worker.pid) for host, worker in self._workers.items()}
        return {host: pid for host, pids in found.items() for pid in pids if children(pid)}

    def close(self) -> None:
        """End all processes in good order."""
        for process in (*self._workers.values(), self._master):
            process.terminate()
        for process in (*self._workers.values(), self._master):
            process.wait()


class Driver:
    """An application of a cluster; `close` ends it."""

    def __init__(self, cluster: Cluster, directory: Path, **settings: str) -> None:
        self._cluster = cluster
        self._kills = 0
        self._said = directory / "driver.txt"
        script = directory / "driver.py"
        script.write_text(APPLICATION)
        with open(self._said, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, script, cluster.address, json.dumps(settings)],
                cwd=directory,
                env=os.environ | environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def run(self, code: str, kills: int, chance: random.Random) -> Any:
        """Run code that may set `answer`, and return that.

        Meanwhile executors are killed, and every second time a worker, at most so many times: the first one when it has
        started Python, the others at random moments.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        patience = (2 + kills) * PATIENCE_S
        deadline = time.monotonic() + patience
        killed = 0
        while killed < kills and not self._answers(0.02):
            assert time.monotonic() < deadline, "no executor starts Python"
            if self._cluster.busy() and not self._answers(chance.uniform(0, 3) if self._kills else 0):
                killed += self._kill(chance)
        assert killed >= min(kills, 1), "the code has ended before the first kill"
        assert self._answers(patience), "the application does not end"
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._said.read_text()[-8000:]
        return json.loads(line)

    def _answers(self, seconds: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _kill(self, chance: random.Random) -> bool:
        busy = self._cluster.busy()
        if not busy:
            return False
        host = chance.choice(sorted(busy))
        self._kills += 1
        if self._kills % 2 == 0:
            self._cluster.kill_worker(host)
            self._cluster.start_worker(host)
        else:
            _kill(busy[host])
        return True

    def close(self) -> None:
        """End the application."""
        with self._process as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "Spark's master does not listen"
            time.sleep(0.05)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for the tests of a file."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()
