"""What do asynchronous calls cost: awaited appends, syncs shared by tasks, the delay of a follower, an idle one?

Workloads: values-100 of `common`. Each contestant runs in one event loop of asyncio's own kind. Delays are from just
before the append to the record's arrival in the task that follows, with a pause of a millisecond between records.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from common import VALUE, Question, measure, report, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

APPEND = Question("awaited append of 1 record", "rate", limit=100_000, against=(("Log.append", 0.5),))
APPEND_TOPIC = Question("awaited append of 1 record by topic", "rate", limit=100_000, against=(("Store.append", 0.5),))
SYNCED = Question("awaited append of 1 record with sync=True", "rate", against=(("one task", 20),))
READ = Question("records in `async for`", "rate", against=(("Log.read", 0.3),))
READ_TOPIC = Question("records of a topic in `async for`", "rate", against=(("Store.read", 0.3),))
TASKS = 1000


def delay(where: str, share: str) -> Question:
    return Question(
        f"delay of a followed record, {where}, {share}", "time", limit=1e-3 if "process" not in where else None
    )


def idle(where: str) -> Question:
    return Question(f"an idle follower's share of a processor, {where}", "share", limit=0.002)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(tmp_path / "t-0") as log:
        yield log


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "store") as store:
        store.create_topic("t", 3)
        yield store


def in_a_loop(work: Callable[[], Awaitable[object]]) -> Callable[[], None]:
    async def run() -> None:
        await work()

    return lambda: asyncio.run(run())


@pytest.mark.parametrize("contestant", ["kstore", "Log.append"])
def test_awaited_appends(benchmark: BenchmarkFixture, log: kstore.Log, contestant: str) -> None:
    count = scaled(200_000)

    async def awaited() -> None:
        for _ in range(count):
            await log.aappend(VALUE)

    def plain() -> None:
        for _ in range(count):
            log.append(VALUE)

    run = in_a_loop(awaited) if contestant == "kstore" else plain
    measure(benchmark, APPEND, contestant, run, operations=count)


@pytest.mark.parametrize("contestant", ["kstore", "Store.append"])
def test_awaited_appends_by_topic(benchmark: BenchmarkFixture, store: kstore.Store, contestant: str) -> None:
    count = scaled(200_000)

    async def awaited() -> None:
        for _ in range(count):
            await store.aappend("t", VALUE)

    def plain() -> None:
        for _ in range(count):
            store.append("t", VALUE)

    run = in_a_loop(awaited) if contestant == "kstore" else plain
    measure(benchmark, APPEND_TOPIC, contestant, run, operations=count)


@pytest.mark.parametrize("contestant", ["kstore", "one task"])
def test_synced_appends(benchmark: BenchmarkFixture, log: kstore.Log, contestant: str) -> None:
    tasks, calls = (TASKS, scaled(20)) if contestant == "kstore" else (1, scaled(200))

    async def append() -> None:
        for _ in range(calls):
            await log.aappend(VALUE, sync=True)

    async def work() -> None:
        await asyncio.gather(*(append() for _ in range(tasks)))

    measure(benchmark, SYNCED, contestant, in_a_loop(work), operations=tasks * calls)


@pytest.mark.parametrize("contestant", ["kstore", "Log.read"])
def test_records(benchmark: BenchmarkFixture, log: kstore.Log, contestant: str) -> None:
    count = scaled(500_000)
    log.append_many([VALUE] * count)

    async def awaited() -> None:
        async for _ in log.aread():
            pass

    def plain() -> None:
        for _ in log.read():
            pass

    measure(benchmark, READ, contestant, in_a_loop(awaited) if contestant == "kstore" else plain, operations=count)


@pytest.mark.parametrize("contestant", ["kstore", "Store.read"])
def test_records_by_topic(benchmark: BenchmarkFixture, store: kstore.Store, contestant: str) -> None:
    count = scaled(500_000)
    store.append_many("t", [VALUE] * count)

    async def awaited() -> None:
        async for _ in store.aread("t"):
            pass

    def plain() -> None:
        for _ in store.read("t"):
            pass

    run = in_a_loop(awaited) if contestant == "kstore" else plain
    measure(benchmark, READ_TOPIC, contestant, run, operations=count)


# --- followers --------------------------------------------------------------------------------------------------------


async def delays(
    records: AsyncIterator[kstore.Record], count: int, begin: Callable[[], Awaitable[object]]
) -> list[float]:
    """How long each record was on its way; `begin` has them appended, each with the time in it."""
    found = []

    async def follow() -> None:
        async for record in records:
            found.append(time.perf_counter() - float(record.value or b""))
            if len(found) == count:
                return

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.1)
    await begin()
    await task
    return sorted(found)


def report_delays(where: str, found: list[float]) -> None:
    report(delay(where, "p50"), "kstore", [found[len(found) // 2]], operations=1)
    report(delay(where, "p99"), "kstore", [found[int(len(found) * 0.99)]], operations=1)


@pytest.mark.parametrize("where", ["appended in the same loop", "appended in another thread", "of another process"])
def test_the_delay_of_a_followed_record(log: kstore.Log, where: str) -> None:
    """That of another process is measured in this one, through a log that is open for reading."""
    count = scaled(2000)

    def produce() -> None:
        for _ in range(count):
            log.append(b"%.9f" % time.perf_counter())
            time.sleep(0.001)

    async def produce_here() -> None:
        for _ in range(count):
            await log.aappend(b"%.9f" % time.perf_counter())
            await asyncio.sleep(0.001)

    async def produce_there() -> None:
        thread = threading.Thread(target=produce)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.1)

    begin = produce_here if "loop" in where else produce_there
    with kstore.Log.open(log.path, "r") as reader:
        subject = reader if "process" in where else log
        report_delays(where, asyncio.run(delays(subject.aread(follow=True), count, begin)))


async def share(records: AsyncIterator[object], seconds: float) -> float:
    """The share of a processor that this process takes while a task waits for records."""

    async def follow() -> None:
        async for _ in records:
            pass

    task = asyncio.create_task(follow())
    await asyncio.sleep(2.0)  # the pauses of one that polls have grown by then
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    found = (time.process_time() - used) / (time.perf_counter() - began)
    task.cancel()
    await asyncio.wait((task,))
    return found


@pytest.mark.parametrize("where", ["of a log", "of a topic", "of a log of another process"])
def test_an_idle_follower(log: kstore.Log, store: kstore.Store, where: str) -> None:
    log.append(VALUE)
    for number in range(3):
        store.append("t", VALUE, partition=number)
    with kstore.Log.open(log.path, "r") as reader:
        records: AsyncIterator[object] = log.aread(follow=True)
        if where == "of a topic":
            records = store.aread("t", follow=True)
        elif where == "of a log of another process":
            records = reader.aread(follow=True)
        report(idle(where), "kstore", [asyncio.run(share(records, max(scaled(10), 2)))], operations=1)
