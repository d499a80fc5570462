"""What does a durability cost? One log, records of 100 bytes; the table of docs/guide.md.

Workload: values-100 of `common`. Each contestant writes its records in one of the ways that a program has to bound what
a power failure takes. Directories are on the disk that the benchmark runs on: a sync costs what it costs there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from common import VALUE, Question, measure, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

COST = Question("a record of 100 bytes, by what a power failure may take", "time")

NOT_SYNCED = scaled(100_000)
SYNCED = scaled(400)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """`opened(**settings)`: a log on the benchmarks' disk, closed afterwards."""
    logs: list[kstore.Log] = []

    def open_log(**settings: Any) -> kstore.Log:
        logs.append(kstore.Log.open(tmp_path / f"bench-{len(logs)}", **settings))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def each(append: Callable[..., Any], count: int, **how: Any) -> None:
    for _ in range(count):
        append(VALUE, **how)


def test_append(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log]) -> None:
    log = opened()
    measure(benchmark, COST, "append", lambda: each(log.append, NOT_SYNCED), operations=NOT_SYNCED)


def test_append_many(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log]) -> None:
    log = opened()
    rows = [VALUE] * NOT_SYNCED
    measure(benchmark, COST, "append_many", lambda: log.append_many(rows), operations=NOT_SYNCED)


@pytest.mark.parametrize("count", [100, 1000])
def test_append_and_flush(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log], count: int) -> None:
    log = opened()
    pieces = max(1, scaled(40_000) // count)

    def run() -> None:
        for _ in range(pieces):
            each(log.append, count)
            log.flush()

    measure(benchmark, COST, f"append, flush() each {count:,}", run, operations=count * pieces)


def test_flush_messages(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log]) -> None:
    log = opened(flush_messages=1000)
    count = scaled(40_000)
    measure(benchmark, COST, "append, flush_messages=1000", lambda: each(log.append, count), operations=count)


def test_flush_ms(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log]) -> None:
    log = opened(flush_ms=100)
    measure(benchmark, COST, "append, flush_ms=100", lambda: each(log.append, NOT_SYNCED), operations=NOT_SYNCED)


def test_append_many_synced(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log]) -> None:
    log = opened()
    rows = [VALUE] * 1000
    calls = max(1, scaled(40))

    def run() -> None:
        for _ in range(calls):
            log.append_many(rows, sync=True)

    measure(benchmark, COST, "append_many of 1,000, sync=True", run, operations=1000 * calls)


@pytest.mark.parametrize("threads", [1, 8, 32])
def test_synced(benchmark: BenchmarkFixture, opened: Callable[..., kstore.Log], threads: int) -> None:
    log = opened()
    count = max(1, SYNCED // threads) * (4 if threads > 1 else 1)

    def run() -> None:
        workers = [
            threading.Thread(target=each, args=(log.append, count), kwargs={"sync": True}) for _ in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    name = f"append(sync=True), {threads} thread{'s' if threads > 1 else ''}"
    measure(benchmark, COST, name, run, operations=count * threads)
