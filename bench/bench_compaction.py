"""How fast is compaction? The offset map alone beside Kafka's, its memory, the first pass, whole rounds, tables.

Keys of 16 bytes, values of 100 (keyed-100, each key twice), batches-16k, warm, one thread. Rounds are measured in
memory (/dev/shm where there is one), Kafka's cleaner over the same files: the disk would be the same for both.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from common import KIB, VALUE, Question, measure, report, scaled, settle, use_memory
from jvm import KAFKA, ask
from limits.compaction import least, puts
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords, OffsetMap

ALONE = "without a round"
BOUNDS = {
    "bound: reading, writing, a look at memory": False,
    "bound: these, checksums and hashes": True,
}
KEY_BYTES = 16
# As many as a cleaner of Kafka puts into its map of 128 MiB.
KEYS = int((128 << 20) // 24 * 0.9)
NEW = Question("a key put into the offset map, 5 million keys", "rate", against=((KAFKA, 10),))
TWICE = Question("a key put into the offset map, 5 million keys, each twice", "rate", against=((KAFKA, 10),))
MEMORY = {
    count: Question(f"memory of the offset map with {count:,} keys, of each", "memory", limit=24)
    for count in (10**4, 10**5, 10**6, 10**7)
}
RECORDS = 8_500_000
ROUNDS = {
    "none": Question("a round over 1 GiB, each key twice, in any order", "bytes", against=((KAFKA, 10),)),
    "whole": Question("a round over 1 GiB, each batch all superseded or not at all", "bytes", against=((KAFKA, 15),)),
    "lz4": Question("a round over 1 GiB before lz4, each key twice, in any order", "bytes", against=((KAFKA, 3),)),
    "zstd": Question("a round over 1 GiB before zstd, each key twice, in any order", "bytes", against=((KAFKA, 3),)),
}
APPENDS = {
    share: Question(f"an append beside a round, {name}", "time", against=((ALONE, 1 / most),))
    for share, name, most in ((0.5, "median", 1.5), (0.99, "99 of 100 are faster", 3))
}
BESIDE = Question("a round over 1 GiB, each key twice, in any order, beside a thread that appends without end", "bytes")
APPEND_TURNS = 5
FIRST_PASS = Question("first pass over 8 million records, of each", "time", limit=35e-9)


@pytest.mark.parametrize("times", [1, 2])
def test_put(benchmark: BenchmarkFixture, times: int) -> None:
    keys = os.urandom(KEY_BYTES * scaled(KEYS))

    def run() -> None:
        offsets = OffsetMap(1 << 30)
        for number in range(times):
            offsets.put_many(keys, KEY_BYTES, number * scaled(KEYS))

    measure(benchmark, NEW if times == 1 else TWICE, "kstore", run, operations=times * scaled(KEYS))


@pytest.mark.parametrize(("times", "question"), [(1, NEW), (2, TWICE)])
def test_bound_of_put(benchmark: BenchmarkFixture, times: int, question: Question) -> None:
    run = puts(os.urandom(KEY_BYTES * scaled(KEYS)), times)
    measure(benchmark, question, "bound: a hash, a look and a store", run, operations=times * scaled(KEYS))


@pytest.mark.parametrize(("name", "question"), [("offset-map-new", NEW), ("offset-map-twice", TWICE)])
def test_put_of_kafka(tmp_path: Path, name: str, question: Question) -> None:
    ask(name, tmp_path, question)


@pytest.mark.parametrize("count", MEMORY)
def test_memory(count: int) -> None:
    offsets = OffsetMap(1 << 30)
    offsets.put_many(os.urandom(KEY_BYTES * count), KEY_BYTES, 0)
    report(MEMORY[count], "kstore", [offsets.memory_bytes], operations=count)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log in which every key is superseded once."""
    path = tmp_path_factory.mktemp("compaction") / "bench-0"
    rng = random.Random(7)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(scaled(4_000_000))]
    with kstore.Log.open(path, segment_bytes=1 << 30) as made:
        for _ in range(2):
            rng.shuffle(keys)
            made.append_many(((key, VALUE) for key in keys), batch_bytes=16 * KIB)
    settle(path)
    return path


def first_pass(path: Path) -> NewestRecords:
    """The first pass with a read buffer of the cleaner's default size."""
    newest, transactions = NewestRecords(1 << 30, 0), CleanedTransactions()
    buffer = memoryview(bytearray(256 * KIB))
    for each in sorted(path.glob("*.log")):
        with each.open("rb", buffering=0) as file:
            position = 0
            while size := os.preadv(file.fileno(), [buffer], position):
                position += newest.add(buffer[:size], transactions, path=str(each), position=position)
    return newest


def test_first_pass(benchmark: BenchmarkFixture, log: Path) -> None:
    records = 2 * scaled(4_000_000)
    size = sum(each.stat().st_size for each in log.glob("*.log"))
    newest = measure(benchmark, FIRST_PASS, "kstore", partial(first_pass, log), operations=records, size_bytes=size)
    assert newest.keys == newest.count_superseded(0, records) == records // 2


def test_bound_of_first_pass(benchmark: BenchmarkFixture, log: Path, tmp_path: Path) -> None:
    records = 2 * scaled(4_000_000)
    run = least(
        sorted(log.glob("*.log")),
        tmp_path,
        records=records,
        keys=records // 2,
        read_again=0.0,
        written=0.0,
        rebuilt=False,
        checks=True,
    )
    measure(benchmark, FIRST_PASS, "bound: reading, checksums, hashes, looks", run, operations=records)


# The table view: the newest of each key, beside reading all records and having polars choose.

POLARS = "polars: all, then group_by(key).last()"
TABLE_KEYS, TABLE_RECORDS, TABLE_PARTITIONS = 1_000_000, 10_000_000, 4
TABLE = Question(
    f"newest records of 1 million keys out of 10 million records in {TABLE_PARTITIONS} partitions, as columns",
    "rate",
    against=((POLARS, 3),),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kstore.Store]:
    """A store in which 10 million records update 1 million keys at random."""
    path = tmp_path_factory.mktemp("table")
    random_numbers = np.random.default_rng(7)
    step = 500_000
    with kstore.Store.open(path, background=False) as made:
        made.create_topic("t", TABLE_PARTITIONS)
        for first in range(0, scaled(TABLE_RECORDS), step):
            count = min(step, scaled(TABLE_RECORDS) - first)
            numbers = random_numbers.integers(0, scaled(TABLE_KEYS), count)
            keys = np.char.zfill(numbers.astype("U"), KEY_BYTES).astype(f"S{KEY_BYTES}")
            values = np.frombuffer(random_numbers.bytes(len(VALUE) * count), f"V{len(VALUE)}")
            made.append_columns("t", values, keys=keys, batch_bytes=16 * KIB)
    settle(path)
    with kstore.Store.open(path, "r") as reader:
        yield reader


def all_by_polars(store: kstore.Store) -> int:
    pl = pytest.importorskip("polars")
    everything = pl.concat([pl.DataFrame(chunk) for _, chunk in store.read_columns("t", layout="large_binary")])
    newest = everything.group_by("key").last()
    return len(newest.filter(pl.col("value").is_not_null()))


def test_table(benchmark: BenchmarkFixture, store: kstore.Store) -> None:
    run = lambda: store.table("t").columns()  # noqa: E731
    found = measure(benchmark, TABLE, "kstore", run, operations=scaled(TABLE_RECORDS))
    assert len(found) == all_by_polars(store)


def test_table_by_polars(benchmark: BenchmarkFixture, store: kstore.Store) -> None:
    measure(benchmark, TABLE, POLARS, partial(all_by_polars, store), operations=scaled(TABLE_RECORDS))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where the system has one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield Path(directory)


def prepare(directory: Path, kind: str) -> tuple[Path, int, int]:
    """A closed log of closed segments in which each key is superseded once; its records and bytes."""
    path = directory / "prepared-0"
    rng = random.Random(7)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(scaled(RECORDS // 2))] * 2
    if kind != "whole":
        rng.shuffle(keys)
    made = VALUE if kind in ("none", "whole") else None
    compression = kind if kind in ("lz4", "zstd") else None
    with kstore.Log.open(path, segment_bytes=1 << 30, cleanup_policy="compact") as log:
        pairs = ((key, made or text(rng)) for key in keys)
        log.append_many(pairs, batch_bytes=16 * KIB, compression=compression)
        log.roll()
        size = sum(segment.size_bytes for segment in log.segments)
    return path, len(keys), size


def text(rng: random.Random) -> bytes:
    """100 bytes that compress to about half."""
    return b"%050d" % rng.getrandbits(160) + bytes(50)


def copied(prepared: Path, number: int) -> kstore.Log:
    """The prepared log again, open: the .log files are linked, as a cleaner replaces them."""
    path = prepared.with_name(f"copy-{number}")
    path.mkdir()
    for file in prepared.iterdir():
        if file.suffix == ".log":
            (path / file.name).hardlink_to(file)
        else:
            shutil.copy2(file, path)
    return kstore.Log.open(path, segment_bytes=1 << 30, cleanup_policy="compact", file_delete_delay_ms=0)


@pytest.mark.parametrize("kind", ROUNDS)
def test_round(memory: Path, kind: str) -> None:
    prepared, records, size = prepare(memory, kind)
    seconds = []
    for number in range(6):
        with copied(prepared, number) as log:
            stats = log.compact()
        assert (stats.records_before, stats.records_after) == (records, records // 2)
        assert not stats.map_full
        shutil.rmtree(memory / f"copy-{number}")
        seconds.append(stats.seconds)
    report(ROUNDS[kind], "kstore", seconds[1:], operations=records, size_bytes=size)
    ask("compact", memory, ROUNDS[kind])
    if kind in ("none", "whole"):
        for name, checks in BOUNDS.items():
            run = least(
                sorted(prepared.glob("*.log")),
                memory,
                records=records,
                keys=records // 2,
                read_again=0.5 if kind == "whole" else 1.0,
                written=0.5,
                rebuilt=kind == "none",
                checks=checks,
            )
            run()
            report(ROUNDS[kind], name, [run() for _ in range(5)], operations=records, size_bytes=size)


def test_appends_beside_a_round(memory: Path) -> None:
    """By turns, each with a log of its own; which contestant begins alternates, and the first turn does not count."""
    prepared, records, size = prepare(memory, "none")
    use_memory(3 * size)
    times: dict[tuple[float, str], list[float]] = {(share, name): [] for share in APPENDS for name in (ALONE, "kstore")}
    seconds: list[float] = []  # of the rounds
    for turn in range(APPEND_TURNS + 1):
        with copied(prepared, turn) as log:
            for name in sorted((ALONE, "kstore"), reverse=turn % 2 == 1):
                taken = sorted(append_times(log, seconds if name == "kstore" else None))
                if turn:
                    for share in APPENDS:
                        times[share, name].append(taken[int(len(taken) * share)] / 1e9)
        shutil.rmtree(memory / f"copy-{turn}")
    for (share, name), rounds in times.items():
        report(APPENDS[share], name, rounds, operations=1)
    report(BESIDE, "kstore", seconds[1:], operations=records, size_bytes=size)


def append_times(log: kstore.Log, seconds: list[float] | None) -> array[int]:
    """Nanoseconds of each of many appends, or of all during a round of cleaning, whose `seconds` are added."""
    append, clock, taken, ended = log.append, time.perf_counter_ns, array("q"), threading.Event()

    def clean(seconds: list[float]) -> None:
        seconds.append(log.compact().seconds)
        ended.set()

    if seconds is not None:
        cleaner = threading.Thread(target=clean, args=(seconds,))
        cleaner.start()
    while not ended.is_set() and (seconds is not None or len(taken) < scaled(500_000)):
        began = clock()
        append(VALUE, b"another")
        taken.append(clock() - began)
    if seconds is not None:
        cleaner.join()
    return taken
