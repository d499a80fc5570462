"""How long does one record take, at an offset that nobody foresees?

Workload: values-100, a million of them, in batches of 16 KiB unless the question says so, warm. The stores find a
record in a tree; a log reads, checks and walks the batch that holds it. A program that writes has its own process.
"""

from __future__ import annotations

import gc
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peers
import pytest
from common import GIB, KIB, MIB, VALUE, Question, a_busy_thread, measure, report, scaled, settle, timed_rows, values
from limits import bounds
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.codec import compression

COUNT = scaled(1_000_000)
POINTS = scaled(40_000)
BOUND = "bound: one pread of the batch, CRC"
TREES = ("LMDB get", "SQLite select")

POINT = Question(
    "one record at a random offset, batches of 16 KiB", "time", 6e-6, (("SQLite select", 1 / 1.3), (BOUND, 1 / 1.6))
)
SMALL = Question("one record at a random offset, batches of 1 KiB", "time", 3e-6, ((BOUND, 1 / 1.6),))
NEAR = Question("one record at a random offset within one batch of 16 KiB", "time", 1.2e-6)
FIRST = Question("the first record of read(offset), batches of 16 KiB", "time", 8e-6)
BY_TIME = Question("offset_for_timestamp and the record there", "time")
FETCH = Question("a fetch of 16 KiB at a random offset", "time", 6e-6)
READER = Question("one record of a log in mode 'r', beside a process that appends 1,000 a second", "time", 15e-6)
READER_FIRST = Question("the first record of read(offset) in mode 'r', beside an idle writer", "time", 15e-6)
BESIDE = Question("one record at a random offset, beside a thread that keeps a processor busy", "time", 25e-6)
MEMORY = Question("memory that a million gets add to the process", "memory", MIB)

WRITER = """
import sys, time, kstore
with kstore.Log.open(sys.argv[1], segment_bytes=1 << 30) as log:
    print(flush=True)
    while True:
        log.append(bytes(100))
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., kstore.Log]]:
    """Full logs by the size and codec of their batches, each made once."""
    made: dict[tuple[int, str], kstore.Log] = {}

    def log(batch_bytes: int = 16 * KIB, codec: str = "none") -> kstore.Log:
        key = batch_bytes, codec
        if key not in made:
            path = tmp_path_factory.mktemp("points") / "bench-0"
            made[key] = kstore.Log.open(path, segment_bytes=GIB)
            rows: Any = values(COUNT) if codec == "none" else timed_rows(COUNT // 4, text())
            made[key].append_many(rows, batch_bytes=batch_bytes, compression=codec)
            settle(path)
        return made[key]

    yield log
    for each in made.values():
        each.close()


WORDS = b"level service request user order item price error warn info".split()


def text() -> bytes:
    """A value of 100 bytes that compresses as a line of a log does."""
    return b" ".join(random.Random(5).choices(WORDS, k=25))[:100]


def offsets_in(log: kstore.Log, count: int = POINTS) -> list[int]:
    return random.Random(7).choices(range(log.log_end_offset), k=count)


def getting(get: Callable[[int], object], offsets: list[int]) -> Callable[[], None]:
    def run() -> None:
        for offset in offsets:
            get(offset)

    return run


def first_of(log: kstore.Log) -> Callable[[int], object]:
    return lambda offset: next(iter(log.read(offset)))


@contextmanager
def trees(path: Path, contestant: str, offsets: list[int]) -> Iterator[Callable[[], None]]:
    """Reads of a full tree, at its best: all in one transaction."""
    if contestant == "LMDB get":
        lmdb = peers.Lmdb(path / "lmdb")
        lmdb.put_many(VALUE, COUNT)
        yield lambda: lmdb.get_each(offsets)
        lmdb.close()
    else:
        sqlite = peers.Sqlite(path / "sqlite")
        sqlite.insert_many(VALUE, COUNT)
        yield lambda: sqlite.select_each(offsets)
        sqlite.close()


def bound_of(log: kstore.Log, offsets: list[int], fd: int) -> Callable[[], int]:
    """Reads and sums up the batches that hold the offsets."""
    table = log.batch_table()
    bases, positions = table["base_offset"], table["position"]
    found = bases.searchsorted(offsets, side="right") - 1
    size = int(table["size_bytes"][len(bases) // 2])
    last = int(positions[-1])
    return bounds.points(fd, [min(int(positions[number]), last - size) for number in found], size)


@pytest.mark.parametrize("contestant", ["kstore", *TREES, BOUND])
@pytest.mark.parametrize("question", [POINT, SMALL], ids=["16k", "1k"])
def test_point(
    benchmark: BenchmarkFixture, tmp_path: Path, logs: Callable[..., kstore.Log], question: Question, contestant: str
) -> None:
    log = logs(16 * KIB if question is POINT else KIB)
    offsets = offsets_in(log)
    if contestant in TREES:
        if question is not POINT:
            pytest.skip("asked of batches of 16 KiB")
        with trees(tmp_path, contestant, offsets) as run:
            measure(benchmark, question, contestant, run, operations=POINTS)
    elif contestant == BOUND:
        with open(next(Path(log.path).glob("*.log")), "rb") as file:
            measure(benchmark, question, BOUND, bound_of(log, offsets, file.fileno()), operations=POINTS)
    else:
        measure(benchmark, question, "kstore", getting(log.get, offsets), operations=POINTS)


def test_within_one_batch(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log]) -> None:
    log = logs()
    batch = next(log.read_batches(log.log_end_offset // 2))
    offsets = random.Random(7).choices(range(batch.base_offset, batch.next_offset), k=POINTS)
    measure(benchmark, NEAR, "kstore", getting(log.get, offsets), operations=POINTS)


@pytest.mark.parametrize("contestant", ["kstore", "the library alone"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log], codec: str, contestant: str) -> None:
    """At most 3 µs above the library's time for the block."""
    log = logs(16 * KIB, codec)
    question = Question(f"one record at a random offset, {codec} batches of 16 KiB", "time")
    offsets = offsets_in(log)
    if contestant == "kstore":
        measure(benchmark, question, contestant, getting(log.get, offsets), operations=POINTS)
        return
    block = bytes(next(log.read_batches(log.log_end_offset // 2)))[61:]
    number = compression.NAMES.index(codec)

    def unpack() -> None:
        for _ in range(POINTS):
            compression.decompress(number, block)

    measure(benchmark, question, contestant, unpack, operations=POINTS)


def test_first_record_of_a_read(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log]) -> None:
    log = logs()
    measure(benchmark, FIRST, "kstore", getting(first_of(log), offsets_in(log)), operations=POINTS)


@pytest.mark.parametrize("contestant", ["kstore", "kstore, by a read"])
def test_by_time(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log], contestant: str) -> None:
    log = logs(16 * KIB, "lz4")
    first, last = log.get(0).timestamp, log.max_timestamp().timestamp  # type: ignore[union-attr]
    stamps = random.Random(7).choices(range(first, last), k=POINTS)
    read = log.get if contestant == "kstore" else first_of(log)

    def run() -> None:
        for stamp in stamps:
            read(log.offset_for_timestamp(stamp).offset)  # type: ignore[union-attr]

    measure(benchmark, BY_TIME, contestant, run, operations=POINTS)


def test_fetch(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log]) -> None:
    log = logs()
    measure(benchmark, FETCH, "kstore", getting(lambda at: log.fetch(at, 16 * KIB), offsets_in(log)), operations=POINTS)


@contextmanager
def a_writer(path: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def test_in_mode_r(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    path = tmp_path / "bench-0"
    with kstore.Log.open(path, segment_bytes=GIB) as log:
        log.append_many(values(COUNT), batch_bytes=16 * KIB)
        offsets = offsets_in(log)
    with a_writer(str(path)), kstore.Log.open(path, "r") as reader:
        time.sleep(0.5)  # until the times of modification of the directories are old enough to be trusted
        measure(benchmark, READER, "kstore", getting(reader.get, offsets), operations=POINTS)


def test_first_record_in_mode_r(benchmark: BenchmarkFixture, logs: Callable[..., kstore.Log]) -> None:
    log = logs()
    log.flush()
    with kstore.Log.open(log.path, "r") as reader:
        time.sleep(0.5)
        measure(benchmark, READER_FIRST, "kstore", getting(first_of(reader), offsets_in(log)), operations=POINTS)


@pytest.mark.parametrize("contestant", ["kstore", "kstore, first record of a read", "kstore, fetch of 16 KiB", *TREES])
def test_beside_a_busy_thread(
    benchmark: BenchmarkFixture, tmp_path: Path, logs: Callable[..., kstore.Log], contestant: str
) -> None:
    log, count = logs(), scaled(2_000)
    offsets = offsets_in(log, count)
    if contestant in TREES:
        with trees(tmp_path, contestant, offsets) as run, a_busy_thread():
            measure(benchmark, BESIDE, contestant, run, operations=count, rounds=3)
        return
    calls: dict[str, Callable[[int], object]] = {
        "kstore": log.get,
        "kstore, first record of a read": first_of(log),
        "kstore, fetch of 16 KiB": lambda offset: log.fetch(offset, 16 * KIB),
    }
    with a_busy_thread():
        measure(benchmark, BESIDE, contestant, getting(calls[contestant], offsets), operations=count, rounds=3)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_million_gets_leave_nothing(logs: Callable[..., kstore.Log]) -> None:
    log = logs()
    run = getting(log.get, offsets_in(log, scaled(1_000_000)))
    getting(log.get, offsets_in(log, 1000))()
    gc.collect()
    before, open_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, descriptors()
    run()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * KIB
    report(MEMORY, "kstore", [float(max(grown, 1))], operations=1)
    assert descriptors() == open_before
