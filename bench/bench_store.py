"""How does a store behave under many threads, beside its housekeeping, across processes, and with 10,000 partitions?

Workloads: values-100 of `common`. Where a question is about syncs, its text says what one costs on this disk.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from common import MIB, VALUE, Question, measure, report, scaled
from idle import idle_partitions
from limits import groupcommit
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

HERE = Path(__file__).parent
Put = Callable[[bytes], object]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory on the disk that the benchmarks use, removed afterwards."""
    path = tmp_path / "store"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def opened(place: Path) -> Iterator[Callable[..., Any]]:
    """`opened(name)`: a contestant with `put_one` and `keep_up`, closed afterwards."""
    there: list[Any] = []

    def open_one(name: str, **how: Any) -> Any:
        made = {
            "kstore": lambda: Ours(place / "kstore", **how),
            "SQLite, NORMAL": lambda: peers.Sqlite(place / "sqlite", synchronous="normal"),
            "SQLite, FULL": lambda: peers.Sqlite(place / "sqlite", synchronous="full"),
            "LMDB": lambda: peers.Lmdb(place / "lmdb", sync=bool(how.get("sync"))),
            "RocksDB": lambda: peers.Rocks(place / "rocks", sync=bool(how.get("sync"))),
        }[name]()
        there.append(made)
        return made

    yield open_one
    for each in there:
        each.close()


class Ours:
    """A store with one topic, as the peers are: `put_one` appends, with `sync` durably; `logs` share the threads."""

    def __init__(self, path: Path, *, sync: bool = False, logs: int = 1, **settings: Any) -> None:
        self._store = kstore.Store.open(path, **settings)
        self._store.create_topic("events", logs)
        self.logs = [self._store.log("events", number) for number in range(logs)]
        self.put_one = functools.partial(self.logs[0].append, sync=sync)

    def close(self) -> None:
        self._store.close()


def from_threads(puts: list[Put], count: int) -> None:
    """Each put has a thread of its own, which calls it `count` times."""

    def work(put: Put) -> None:
        for _ in range(count):
            put(VALUE)

    threads = [threading.Thread(target=work, args=(put,)) for put in puts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- threads ----------------------------------------------------------------------------------------------------------

PEERS = ("SQLite, NORMAL", "LMDB", "RocksDB")
APPENDS = scaled(200_000)


def appends(where: str) -> Question:
    return Question(f"appends of 100 bytes by several threads to {where}, to the page cache", "rate")


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
@pytest.mark.parametrize("several", [False, True])
def test_append_from_threads(
    benchmark: BenchmarkFixture, opened: Callable[..., Any], threads: int, several: bool
) -> None:
    ours = opened("kstore", logs=threads if several else 1)
    puts: list[Put] = [ours.logs[number % len(ours.logs)].append for number in range(threads)]
    count = APPENDS // threads
    question = appends("a log each" if several else "one log")
    name = "kstore, 1 thread" if threads == 1 else f"kstore, {threads} threads"
    measure(benchmark, question, name, lambda: from_threads(puts, count), operations=count * threads)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("peer", PEERS)
def test_append_from_threads_peers(
    benchmark: BenchmarkFixture, opened: Callable[..., Any], peer: str, threads: int
) -> None:
    store = opened(peer)
    count = APPENDS // threads // 20
    name = f"{peer}, {threads} thread{'s' * (threads > 1)}"
    run = lambda: from_threads([store.put_one] * threads, count)  # noqa: E731
    measure(benchmark, appends("one log"), name, run, operations=count * threads, rounds=3)


@functools.cache
def sync_seconds(directory: str) -> float:
    """The cost of one sync of a file that has grown: the median of 200."""
    path = Path(directory) / "probe"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    found = []
    for number in range(200):
        os.pwrite(fd, VALUE, number * len(VALUE))
        begun = time.perf_counter()
        os.fdatasync(fd)
        found.append(time.perf_counter() - begun)
    os.close(fd)
    path.unlink()
    return statistics.median(found)


def durable_appends(place: Path, where: str) -> Question:
    """16 threads must append 6 times as fast as one, if a sync costs 100 µs or more."""
    each = sync_seconds(str(place.parent.parent))
    against = (("kstore, 1 thread", 6),) if each >= 100e-6 and where == "one log" else ()
    return Question(
        f"appends of 100 bytes to {where}, each flushed; one sync costs {each * 1e6:.0f} µs here", "rate", None, against
    )


SYNCED = scaled(4_000)


@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("logs", [1, 4])
def test_flush_each_from_threads(
    benchmark: BenchmarkFixture, opened: Callable[..., Any], place: Path, threads: int, logs: int
) -> None:
    if logs > threads:
        pytest.skip("fewer threads than logs")
    ours = opened("kstore", logs=logs)
    puts: list[Put] = [functools.partial(ours.logs[number % logs].append, sync=True) for number in range(threads)]
    count = max(SYNCED // (4 if threads < 4 else 1) // threads, 1)
    question = durable_appends(place, "one log" if logs == 1 else "four logs")
    name = "kstore" if threads == 16 else f"kstore, {threads} thread{'s' * (threads > 1)}"
    run = lambda: from_threads(puts, count)  # noqa: E731
    measure(benchmark, question, name, run, operations=count * threads)


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("peer", ["SQLite, FULL", "LMDB", "RocksDB"])
def test_flush_each_from_threads_peers(
    benchmark: BenchmarkFixture, opened: Callable[..., Any], place: Path, peer: str, threads: int
) -> None:
    store = opened(peer, sync=True)
    count = max(SYNCED // 8 // threads, 1)
    name = f"{peer}, {threads} thread{'s' * (threads > 1)}"
    run = lambda: from_threads([store.put_one] * threads, count)  # noqa: E731
    measure(benchmark, durable_appends(place, "one log"), name, run, operations=count * threads, rounds=3)


@pytest.mark.parametrize("language", ["C", "Python"])
@pytest.mark.parametrize("threads", [1, 16])
def test_flush_each_at_best(
    benchmark: BenchmarkFixture, opened: Callable[..., Any], place: Path, threads: int, language: str
) -> None:
    """The bounds of the row of 16 threads: how many times as fast as one the disk and the GIL let them be."""
    opened("kstore", sync=True).put_one(VALUE)
    size = next(place.glob("kstore/events-0/*.log")).stat().st_size
    count = max(SYNCED // (4 if threads < 4 else 1) // threads, 1)
    if language == "C":
        run = groupcommit.appends(place / "bare", size, threads, count)
    else:
        run = groupcommit.appends_in_python(place / "bare", size, threads, count)
    name = f"bare writes and one sync for all, in {language}, {threads} thread{'s' * (threads > 1)}"
    measure(benchmark, durable_appends(place, "one log"), name, run, operations=count * threads)


BARE = "pwrite and fdatasync of as many bytes"
DURABLE = Question("one append of 100 bytes with sync=True", "time", against=((BARE, 1 / 1.1),))


def test_one_durable_append(place: Path, opened: Callable[..., Any]) -> None:
    """By turns, since a disk has its hours."""
    put, count = opened("kstore", sync=True).put_one, max(SYNCED // 20, 20)
    put(VALUE)
    batch = b"v" * next(place.glob("kstore/events-0/*.log")).stat().st_size
    seconds: dict[str, list[float]] = {"kstore": [], BARE: []}
    with (place / "bare").open("wb", buffering=0) as file:
        fd = file.fileno()

        def write() -> None:
            os.pwrite(fd, batch, os.fstat(fd).st_size)
            os.fdatasync(fd)

        for _ in range(9):
            for name, one in (("kstore", functools.partial(put, VALUE)), (BARE, write)):
                begun = time.perf_counter()
                for _ in range(count):
                    one()
                seconds[name].append(time.perf_counter() - begun)
    for name, rounds in seconds.items():
        report(DURABLE, name, rounds[1:], operations=count)


# --- one append beside the housekeeping -------------------------------------------------------------------------------

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
KEPT = 100_000
BUSY_SECONDS = 1.5


def latency(percentile: str) -> Question:
    return Question(f"{percentile} of one append of 100 bytes while retention and flushes go on", "time")


def latencies(put: Put, seconds: float) -> list[float]:
    clock = time.perf_counter
    found: list[float] = []
    add = found.append
    until = clock() + seconds
    before = clock()
    while before < until:
        put(VALUE)
        after = clock()
        add(after - before)
        before = clock()
    return sorted(found)


def report_latencies(contestant: str, runs: list[list[float]]) -> None:
    for name, share in PERCENTILES.items():
        rounds = [run[int(len(run) * share)] for run in runs]
        report(latency(name), contestant, rounds, operations=1)


def test_latency_beside_housekeeping_kstore(opened: Callable[..., Any]) -> None:
    """The store's own thread: a flush every 50 ms, retention every 100 ms, segments of 4 MiB of which four stay."""
    ours = opened(
        "kstore",
        segment_bytes=4 * MIB,
        retention_bytes=16 * MIB,
        flush_ms=50,
        log_retention_check_interval_ms=100,
        log_initial_task_delay_ms=0,
        file_delete_delay_ms=100,
    )
    latencies(ours.put_one, 0.5)
    report_latencies("kstore", [latencies(ours.put_one, BUSY_SECONDS) for _ in range(5)])
    assert ours.logs[0].log_start_offset > 0, "no retention went on"


@pytest.mark.parametrize("peer", ["SQLite, NORMAL", "SQLite, FULL", "LMDB", "RocksDB"])
def test_latency_beside_housekeeping_peers(opened: Callable[..., Any], peer: str) -> None:
    """A thread that checkpoints or syncs every 50 ms and deletes what is too old; SQLite's FULL syncs each append."""
    store = opened(peer)
    stop = threading.Event()

    def keep_up() -> None:
        while not stop.wait(0.05):
            store.keep_up(KEPT)

    beside = threading.Thread(target=keep_up, daemon=True)
    beside.start()
    try:
        latencies(store.put_one, 0.5)
        report_latencies(peer, [latencies(store.put_one, BUSY_SECONDS) for _ in range(3)])
    finally:
        stop.set()
        beside.join()


# --- ten thousand partitions ------------------------------------------------------------------------------------------

PARTITIONS = scaled(10_000)
OPENING = Question(f"opening a store of {PARTITIONS:,} partitions, each with a record", "time", 10.0)
MEMORY = Question(f"memory of a partition that was written to and is idle now, of {PARTITIONS:,}", "memory", 20 * 1024)

FILL = """
import sys, os, signal, kstore
from kstore.disk import fs
fs._full_sync = os.fdatasync = lambda fd: None  # the disk is not the question, and so many syncs take minutes
store = kstore.Store.open(sys.argv[1], background=False)
store.create_topic("events", int(sys.argv[2]))
for number in range(int(sys.argv[2])):
    store.log("events", number).append(b"x" * 100)
if sys.argv[3] == "closed":
    store.close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("left", ["closed", "killed"])
def test_opening_many_partitions(place: Path, left: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rounds = []
    try:
        path = place / "many"
        arguments = [sys.executable, "-c", FILL, str(path), str(PARTITIONS), left]
        subprocess.run(arguments, check=False)
        for _ in range(3):
            begun = time.perf_counter()
            store = kstore.Store.open(path, background=False)
            rounds.append(time.perf_counter() - begun)
            assert len(store.partitions("events")) == PARTITIONS
            if left == "killed":
                assert store.log("events", PARTITIONS - 1).log_end_offset == 1
                break  # closing it makes it a clean one
            store.close()
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    report(OPENING, "kstore" if left == "closed" else "kstore, after a crash", rounds, operations=1)


def test_memory_of_an_idle_partition(place: Path) -> None:
    """More of it, and at which step, in idle.py."""
    costs = idle_partitions(PARTITIONS, str(place))
    report(MEMORY, "kstore", [costs["appended"]["bytes"]], operations=1)
    report(MEMORY, "kstore, parked", [costs["parked"]["bytes"]], operations=1)
