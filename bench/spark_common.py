"""What the benchmarks of Spark share: a session, rows in Parquet, a broker, and a meter of processor time.

One Spark of two tasks in this process, its heap large. What all contestants share, reading the rows and handing them to
Python, is compiled by the JVM before any of them begins: else the first one would pay for it.

The rows about Kafka need `make jvm`, which fetches Spark's connector too: its newest is 4.2.0, and it runs in 4.3. They
say what is missing otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import MIB, Question, measure, report, settle
from pyspark import cloudpickle
from pytest_benchmark.fixture import BenchmarkFixture

sys.path.append(str(Path(__file__).parents[1]))
from tests.kafka.kafka_broker import CLASS_PATH, Machine
from tests.kafka.kafka_jvm import JavaSide, command
from tests.spark import spark_kafka
from tests.spark.spark_session import start

PARTITIONS, ROUNDS = 16, 3
ROW_BYTES = 116
FILES = 8
WARM_UPS = 4
KAFKA = "Spark's Kafka"


class FastMachine(Machine):
    """A broker's process with room and a compiler that takes its time, unlike that of the tests."""

    @property
    def java(self) -> JavaSide:
        if self._java is None:
            run = command("kstore.oracle.Broker", heap="1g", quick=False, classpath=CLASS_PATH)
            self._java = JavaSide(run, self.directory)
        return self._java


class Meter:
    """Counts processor seconds of this process and all below it; a process that ends meanwhile counts as last seen."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._over = threading.Event()

    def __enter__(self) -> Meter:
        self._look()
        self._before = dict(self._ticks)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()
        self._look()

    @property
    def seconds(self) -> float:
        ticks = sum(now - self._before.get(each, 0) for each, now in self._ticks.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        found: dict[int, tuple[str, int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    found[int(entry.name)] = (fields[19], int(fields[11]) + int(fields[12]))
        for pid in below(parents):
            began, ticks = found[pid]
            self._ticks[pid, began] = ticks


def below(parents: dict[int, int]) -> set[int]:
    """This process and its descendants."""
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def contest(
    benchmark: BenchmarkFixture,
    question: Question,
    name: str,
    function: Callable[..., Any],
    rows: int,
    setup: Callable[[], Any] | None = None,
) -> None:
    """Time a contestant, and count its processor seconds."""
    spent: list[float] = []

    def counted(*args: Any) -> Any:
        with Meter() as meter:
            answer = function(*args)
        spent.append(meter.seconds)
        return answer

    measure(
        benchmark, question, name, counted, operations=rows, size_bytes=ROW_BYTES * rows, setup=setup, rounds=ROUNDS
    )
    report(Question(f"{question.text}: processor time of a row", "time"), name, spent[1:] or spent, operations=rows)


def session(caller: ModuleType, **settings: str) -> Iterator[Any]:
    """Start Spark for the benchmarks of a module, which its workers cannot import; end it."""
    jars = spark_kafka.jars()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cloudpickle.register_pickle_by_value(caller)
    started = start(
        "local[2]",
        spark_driver_memory="4g",
        spark_driver_extraJavaOptions="-XX:+UseParallelGC",
        spark_sql_files_openCostInBytes=str(128 * MIB),  # a file is a task
        **({"spark_jars": jars} if jars else {}),
        **settings,
    )
    yield started
    started.stop()


def write_parquet(place: Path, rows: int, files: int = FILES, times: range | None = None) -> int:
    """Write at least so many rows into files of uncompressed Parquet; how many they are.

    With `times`, in milliseconds, there is a column `timestamp` in which they are spread, in the order of the files.
    """
    count = -(-rows // files)
    for number in range(files):
        random = np.random.default_rng(number)
        columns = {
            name: pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(size), count, [None, pa.py_buffer(random.bytes(size * count))]
            ).cast(pa.binary())
            for name, size in (("key", 16), ("value", 100))
        }
        if times is not None:
            stamps = times.start + np.arange(number * count, (number + 1) * count) * len(times) // (count * files)
            columns["timestamp"] = pa.array(stamps, pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table(columns), place / f"{number}.parquet", compression="none", use_dictionary=False)
    settle(place)
    return count * files


def warm_up(frame: Any) -> None:
    """Hand the rows to Python until the JVM has compiled what that takes."""
    for _ in range(WARM_UPS):
        frame.mapInArrow(drained, "n long").collect()


def cluster(directory: Path) -> Iterator[Any]:
    """Run a broker; skip the test if this machine cannot."""
    missing = spark_kafka.why_missing()
    if missing is not None:
        pytest.skip(missing)
    machine = FastMachine(directory)
    settings = {"broker_session_timeout_ms": 60_000, "num_network_threads": 2, "num_io_threads": 4}
    made = machine.make(directory / "broker", **settings)
    with made.up():
        yield made
    machine.close()


def fresh(path: Path) -> Callable[[], Any]:
    """A `setup` that gives a new directory, and empties the files of the one before.

    It deletes none: for minutes ext4 walks past each deleted inode when it makes a file, which takes ten times as long
    after a thousand deletions as without them.
    """
    numbers = itertools.count()

    def make() -> Any:
        for file in path.rglob("*"):
            if file.is_file():
                os.truncate(file, 0)
        return (path / f"root-{next(numbers)}",), {}

    return make


def drained(batches: Iterator[Any]) -> Iterator[Any]:
    count = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([count])], ["n"])


def to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()
