"""What do transactions, numbered appends and 100,000 producers of one log cost; how fast are committed records read?

Workloads: values-100 of `common`. Nothing is synced unless the question says so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from timeit import repeat
from typing import Any

import pytest
from common import VALUE, Question, measure, report, scaled, values
from limits import bounds
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore import encode_batch
from kstore.log.writing import _appender

TRANSACTION = Question("transaction of 1 record over 3 partitions", unit="time", limit=30e-6)
TWO = Question("transaction of 3 records over 2 partitions", unit="time", limit=30e-6)
APPEND = Question("append by topic, numbered", unit="time", against=(("Store.append", 1 / 1.15),))
MANY = Question("append_many by topic, numbered", unit="rate", against=(("Store.append_many", 1 / 1.15),))
COMMITTED = Question(
    "columns where a tenth of the transactions was aborted, committed ones",
    unit="rate",
    against=(("uncommitted", 0.8),),
)
SNAPSHOT = Question("snapshot of 100,000 producers, synced", unit="time", limit=200e-3)
RECOVERY = Question("recovery of a log of 100,000 producers, of each batch", unit="time")
MEMORY = Question("memory of 100,000 producers, of each", unit="memory", limit=300)
POSITIONS = Question("commit the positions of 3 partitions", unit="time")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    """A store with a topic of three partitions."""
    with kstore.Store.open(tmp_path / "store") as made:
        made.create_topic("t", 3)
        yield made


@pytest.mark.parametrize(("question", "partitions"), [(TRANSACTION, (0, 1, 2)), (TWO, (0, 1, 1))], ids=["3", "2"])
def test_a_transaction_beside_its_bound(
    benchmark: BenchmarkFixture, store: kstore.Store, tmp_path: Path, question: Question, partitions: tuple[int, ...]
) -> None:
    count = scaled(2000)
    with store.producer(transactional_id="bench") as producer:

        def run(times: int = count) -> None:
            for _ in range(times):
                with producer.transaction() as txn:
                    for number in partitions:
                        txn.append("t", VALUE, partition=number)

        measure(benchmark, question, "kstore", run, operations=count)
        # One in some hundred transactions also rolls the log of its id: of two, the one with fewer writes does not.
        written = min((writes_of(lambda: run(1)) for _ in range(2)), key=len)
    files = list(dict.fromkeys(file for file, _ in written))
    fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(len(files))]
    write_each = functools.partial(bounds.writes([(files.index(file), size) for file, size in written], count), fds)
    _, *rounds = repeat(write_each, number=1, repeat=6)
    report(question, f"bound: its {len(written)} writes, from C", rounds, operations=count)
    for fd in fds:
        os.close(fd)


def writes_of(act: Callable[[], None]) -> list[tuple[int, int]]:
    """The number of the file and the size of each write to a log."""
    written = []

    def write(fd: int, data: bytes, position: int) -> int:
        written.append((os.fstat(fd).st_ino, len(data)))
        return os.pwrite(fd, data, position)

    _appender.set_pwrite_hook(write)
    try:
        act()
    finally:
        _appender.set_pwrite_hook(None)
    return written


@pytest.mark.parametrize("contestant", ["kstore", "Store.append"])
def test_a_numbered_append(benchmark: BenchmarkFixture, store: kstore.Store, contestant: str) -> None:
    count = scaled(100_000)
    append = store.producer().append if contestant == "kstore" else store.append

    def run() -> None:
        for _ in range(count):
            append("t", VALUE)

    measure(benchmark, APPEND, contestant, run, operations=count)


def test_a_commit_of_positions(benchmark: BenchmarkFixture, store: kstore.Store) -> None:
    count = scaled(2000)
    offsets = {("t", number): 1 for number in range(3)}

    def run() -> None:
        for _ in range(count):
            store.commit_offsets("bench", offsets)

    measure(benchmark, POSITIONS, "kstore", run, operations=count)


@pytest.mark.parametrize("contestant", ["kstore", "Store.append_many"])
def test_a_numbered_append_many(benchmark: BenchmarkFixture, store: kstore.Store, contestant: str) -> None:
    count = scaled(500_000)
    append_many = store.producer().append_many if contestant == "kstore" else store.append_many
    run = lambda: append_many("t", values(count))  # noqa: E731
    measure(benchmark, MANY, contestant, run, operations=count, size_bytes=100 * count)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kstore.Log]:
    """A log of transactions of 100 records, every tenth aborted."""
    with kstore.Log.open(tmp_path_factory.mktemp("decided") / "t-0") as log:
        for number in range(scaled(20_000)):
            log.append_many(
                values(100), producer_id=7, producer_epoch=0, base_sequence=100 * number % (1 << 31), transactional=True
            )
            log.append_marker(7, 0, commit=number % 10 != 0)
        yield log


@pytest.mark.parametrize("contestant", ["kstore", "uncommitted"])
def test_committed_columns(benchmark: BenchmarkFixture, decided: kstore.Log, contestant: str) -> None:
    isolation: Any = "read_committed" if contestant == "kstore" else "read_uncommitted"
    rows = sum(len(chunk) for chunk in decided.iter_columns(isolation=isolation))

    def run() -> None:
        for _ in decided.iter_columns(isolation=isolation):
            pass

    measure(benchmark, COMMITTED, contestant, run, operations=rows, size_bytes=100 * rows)


PRODUCERS = scaled(100_000)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a batch of each of many producers."""
    path = tmp_path_factory.mktemp("crowded") / "t-0"
    with kstore.Log.open(path) as log:
        for producer_id in range(PRODUCERS):
            log.append_batch(encode_batch([VALUE], producer_id=producer_id, producer_epoch=0, base_sequence=0))
    return path


def test_a_snapshot_of_many_producers(benchmark: BenchmarkFixture, crowded: Path) -> None:
    with kstore.Log.open(crowded) as log:
        state = log._writable().producers
        state.end_offset = log.log_end_offset

        def run() -> None:
            state.last_snapshot_offset = 0
            state.take_snapshot(sync=True)

        measure(benchmark, SNAPSHOT, "kstore", run, operations=1)
        report(MEMORY, "kstore", [state.table.size_bytes], operations=PRODUCERS)


def test_recovery_with_many_producers(benchmark: BenchmarkFixture, crowded: Path) -> None:
    """As after a crash: no marker, no snapshot."""

    def crashed() -> tuple[tuple[()], dict[str, Any]]:
        for name in [*crowded.parent.glob(".kafka_cleanshutdown"), *crowded.glob("*.snapshot")]:
            name.unlink()
        for name in crowded.parent.glob("recovery-point-offset-checkpoint"):
            name.unlink()
        return (), {}

    def run() -> None:
        kstore.Log.open(crowded).close()

    measure(benchmark, RECOVERY, "kstore", run, operations=PRODUCERS, setup=crashed)
