"""Kafka's own log in the JVM, with the workloads of the other files, so that the ratio comes from one run.

Needs `make jvm` (a JDK and Maven), and is skipped without it. Each question runs in a Java process of its own, which
measures itself after its hot loops are compiled (`jvm.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_index import BY_OFFSET
from bench_log import APPEND, BY_TIME, reading
from bench_recovery import CLEAN, LAST, RECOVERY, UNCLEAN
from common import KIB, MIB, START_MS, VALUE, Question, measure, scaled
from jvm import KAFKA, ask
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

READY = {
    size: Question(f"a ready batch of {size} appended as a leader", "time", against=((KAFKA, 1.0),))
    for size in ("one record", "16 KiB", "1 MiB")
}


def ready(records: int) -> bytes:
    """A batch of values of 100 bytes a millisecond apart, as Kafka's side makes it."""
    return kstore.encode_batch([(None, VALUE, START_MS + number, None) for number in range(records)])


def records_in(size: int) -> int:
    """How many records fill a batch of that many bytes."""
    count = (size - 61) // 114
    while len(ready(count + 1)) <= size:
        count += 1
    return count


# Records of 100 bytes in a batch of that size, and how many batches to append.
READY_SHAPE = {"one record": (1, 100_000), "16 KiB": (records_in(16 * KIB), 10_000), "1 MiB": (records_in(MIB), 300)}
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
    # An append has one answer to two questions: a value of one's own, and a ready batch.
    ask(name, tmp_path, QUESTIONS[name], *([READY["one record"]] if name == "append-one" else []))


@pytest.mark.parametrize("size", READY)
def test_append_batch_kstore(benchmark: BenchmarkFixture, tmp_path: Path, size: str) -> None:
    records, count = READY_SHAPE[size]
    data = ready(records)
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
