"""Kafka's own log in the JVM, asked what the other files ask kstore, so that the ratio comes from one run.

Needs `make jvm` (a JDK and Maven); says so where it is missing. Each question runs in a Java process of its own, which
measures itself after its hot loops are compiled: `tests/jvm/src/main/java/kstore/oracle/Bench.java`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_index import BY_OFFSET
from bench_log import APPEND, BY_TIME, reading
from bench_recovery import CLEAN, LAST, RECOVERY, UNCLEAN
from common import KIB, MIB, SCALE, START_MS, VALUE, Question, measure, report, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from kafka_jvm import command, why_missing

KAFKA = "Kafka's log in the JVM"
READY = {
    size: Question(f"a ready batch of {size} appended as a leader", "time")
    for size in ("one record", "16 KiB", "1 MiB")
}
# Records of 100 bytes in a batch of that size, and how many batches to append.
READY_SHAPE = {"one record": (1, 100_000), "16 KiB": (16 * KIB // 114, 10_000), "1 MiB": (MIB // 114, 300)}
QUESTIONS: dict[str, Question] = {
    "append-one": APPEND,
    "append-16k": READY["16 KiB"],
    "append-1m": READY["1 MiB"],
    "read-16k": reading("16 KiB"),
    "read-1m": reading("1 MiB"),
    "offset-for-timestamp": BY_TIME,
    "recover": RECOVERY,
    "open-clean": CLEAN,
    "open-last": LAST,
    "open-unclean": UNCLEAN,
    "index-lookup": BY_OFFSET,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_kafka(tmp_path: Path, name: str) -> None:
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    run = [*command("kstore.oracle.Bench", heap="2g", quick=False), name, str(tmp_path), str(SCALE)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout)
    report(QUESTIONS[name], KAFKA, answer["rounds"], operations=answer["operations"], size_bytes=answer["size_bytes"])
    if name == "append-one":  # one answer to two questions: a value of one's own, and a ready batch
        report(READY["one record"], KAFKA, answer["rounds"], operations=answer["operations"])


@pytest.mark.parametrize("size", READY)
def test_append_batch_kstore(benchmark: BenchmarkFixture, tmp_path: Path, size: str) -> None:
    records, count = READY_SHAPE[size]
    data = kstore.encode_batch([(None, VALUE, START_MS, None)] * records)
    logs: list[kstore.Log] = []

    def fresh() -> None:
        if logs:
            logs.pop().close()
        number = sum(1 for _ in tmp_path.iterdir())
        logs.append(kstore.Log.open(tmp_path / f"bench-{number}"))

    def run() -> None:
        append = logs[0].append_batch
        for _ in range(scaled(count)):
            append(data)

    measure(
        benchmark,
        READY[size],
        "kstore",
        run,
        operations=scaled(count),
        size_bytes=scaled(count) * len(data),
        setup=fresh,
    )
    logs.pop().close()
