"""How fast do columns get in? `append_columns` beside stores, Kafka's log and the bare write; codecs beside themselves.

Workloads: values-100, keyed-100, values-1k and values of 10 bytes of `common`, in batches of 16 KiB and 1 MiB; `words`,
lines of about 100 bytes that compress as logs do. The columns are there before, in memory that no cache holds.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import krabka_log
import lz4.frame
import numpy as np
import peers
import pytest
import zstandard
from bench_kafka import READY_SHAPE
from common import GIB, KIB, MIB, THREADS, VALUE, EmptyFile, Question, begin, measure, report, scaled
from jvm import KAFKA, answer
from limits import bounds
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

pa = pytest.importorskip("pyarrow")
rocksdict = pytest.importorskip("rocksdict")

ROWS = scaled(2_000_000)
BATCHES = {"16 KiB": 16 * KIB, "1 MiB": MIB}
SHAPES = {  # bytes of a value, of a key
    "values of 100 bytes": (100, 0),
    "values of 100 bytes, keys of 16": (100, 16),
    "values of 10 bytes": (10, 0),
    "values of 1 KiB": (1024, 0),
}
HEADLINE = "values of 100 bytes"
WRITE = "write(2) of the same bytes in pieces of 1 MiB"
LMDB, ROCKS, SQLITE = "LMDB putmulti", "RocksDB batches of 1,000", "SQLite executemany"


def rows_of(shape: str) -> int:
    value, _ = SHAPES[shape]
    return ROWS if value <= 100 else ROWS // 8


def column(rows: int, size: int) -> Any:
    """A binary Arrow column of random rows."""
    data = np.random.default_rng(1).integers(0, 256, rows * size, np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def appending(shape: str, batches: str) -> Question:
    against: tuple[tuple[str, float], ...] = ((WRITE, 0.65),)
    if shape == HEADLINE:
        against += ((LMDB, 2.0), (KAFKA, 1.3), (ROCKS, 2.0), (SQLITE, 2.0))
    return Question(f"append_columns of {shape}, batches of {batches}, file included", "rate", None, against)


class Fresh:
    """Logs of one record in a directory that is made anew each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: kstore.Log | None = None

    def __call__(self) -> tuple[tuple[kstore.Log], dict[str, Any]]:
        self.clear()
        self.log = kstore.Log.open(self.path / "bench-0", segment_bytes=GIB)
        begin(self.log)
        return (self.log,), {}

    def file(self) -> bytes:
        """The bytes of the last log."""
        assert self.log is not None
        return (self.path / "bench-0" / "00000000000000000000.log").read_bytes()

    def clear(self) -> None:
        if self.log is not None:
            self.log.close()
            shutil.rmtree(self.path)
            self.path.mkdir()
            self.log = None


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Fresh]:
    made = Fresh(tmp_path)
    yield made
    made.clear()


# --- into the page cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
@pytest.mark.parametrize("shape", SHAPES, ids=["values-100", "keyed-100", "values-10", "values-1k"])
def test_append_columns(benchmark: BenchmarkFixture, fresh: Fresh, tmp_path: Path, shape: str, batches: str) -> None:
    size, key = SHAPES[shape]
    rows = rows_of(shape)
    values, keys = column(rows, size), column(rows, key) if key else None

    def run(log: kstore.Log) -> None:
        log.append_columns(values, keys=keys, batch_bytes=BATCHES[batches])

    measure(
        benchmark, appending(shape, batches), "kstore", run,
        operations=rows, size_bytes=rows * (size + key), setup=fresh, rounds=7,
    )  # fmt: skip


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
@pytest.mark.parametrize("shape", SHAPES, ids=["values-100", "keyed-100", "values-10", "values-1k"])
def test_append_columns_on_two_threads(benchmark: BenchmarkFixture, fresh: Fresh, shape: str, batches: str) -> None:
    size, key = SHAPES[shape]
    rows = rows_of(shape)
    values, keys = column(rows, size), column(rows, key) if key else None

    def run(log: kstore.Log) -> None:
        log.append_columns(values, keys=keys, batch_bytes=BATCHES[batches], threads=2)

    measure(
        benchmark, appending(shape, batches), "kstore, writing on a thread of its own", run,
        operations=rows, size_bytes=rows * (size + key), setup=fresh, rounds=7,
    )  # fmt: skip


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
@pytest.mark.parametrize("shape", SHAPES, ids=["values-100", "keyed-100", "values-10", "values-1k"])
@pytest.mark.parametrize("source", ["all", "one piece again and again"])
def test_write(
    benchmark: BenchmarkFixture, fresh: Fresh, tmp_path: Path, shape: str, batches: str, source: str
) -> None:
    """The log's own bytes, written by nothing but `pwrite`: from memory as the columns are, and from a cache."""
    size, key = SHAPES[shape]
    rows = rows_of(shape)
    (log,), _ = fresh()
    log.append_columns(column(rows, size), keys=column(rows, key) if key else None, batch_bytes=BATCHES[batches])
    log.flush()
    data = memoryview(fresh.file())
    fresh.clear()
    again = source != "all"
    empty = EmptyFile(tmp_path / "written")

    def run(file: int) -> None:
        for at in range(0, len(data), MIB):
            os.pwrite(file, data[:MIB] if again else data[at : at + MIB], at)

    name = f"{WRITE}, {source}" if again else WRITE
    measure(
        benchmark, appending(shape, batches), name, run,
        operations=rows, size_bytes=rows * (size + key), setup=empty, rounds=7,
    )  # fmt: skip
    empty.close()


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
@pytest.mark.parametrize("shape", SHAPES, ids=["values-100", "keyed-100", "values-10", "values-1k"])
def test_bound_of_append_columns(
    benchmark: BenchmarkFixture, fresh: Fresh, tmp_path: Path, shape: str, batches: str
) -> None:
    size, key = SHAPES[shape]
    rows = rows_of(shape)
    values, keys = column(rows, size), column(rows, key) if key else None
    (log,), _ = fresh()
    log.append_columns(values, keys=keys, batch_bytes=BATCHES[batches])
    file_bytes = log.segments[0].size_bytes
    fresh.clear()
    run = bounds.columns_in(values.buffers()[2], keys.buffers()[2] if keys is not None else b"", rows, file_bytes)
    empty = EmptyFile(tmp_path / "written")
    measure(
        benchmark, appending(shape, batches), "bound: copies, CRC, write(2)", run,
        operations=rows, size_bytes=rows * (size + key), setup=empty, rounds=7,
    )  # fmt: skip
    empty.close()


# --- the others -------------------------------------------------------------------------------------------------------

HEAD = appending(HEADLINE, "1 MiB")


@pytest.mark.parametrize("writemap", [False, True])
def test_lmdb(benchmark: BenchmarkFixture, tmp_path: Path, writemap: bool) -> None:
    store = peers.Lmdb(tmp_path / "lmdb", writemap=writemap)
    name = f"{LMDB}, writing into its map" if writemap else LMDB
    rows = ROWS // 2
    measure(benchmark, HEAD, name, lambda: store.put_many(VALUE, rows), operations=rows, size_bytes=rows * 100)
    store.close()


def test_rocksdb(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    store = rocksdict.Rdict(str(tmp_path / "rocks"), options)
    rows = ROWS // 4
    given = iter(range(1 << 60))

    def run() -> None:
        for _ in range(rows // 1000):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for _ in range(1000):
                batch.put(next(given).to_bytes(8, "big"), VALUE)
            store.write(batch)

    measure(benchmark, HEAD, ROCKS, run, operations=rows // 1000 * 1000, size_bytes=rows * 100, rounds=3)
    store.close()


def test_sqlite(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    store = peers.Sqlite(tmp_path / "sqlite")
    rows = ROWS // 8
    run = lambda: store.insert_many(VALUE, rows)  # noqa: E731
    measure(benchmark, HEAD, SQLITE, run, operations=rows, size_bytes=rows * 100, rounds=3)
    store.close()


def test_append_many(benchmark: BenchmarkFixture, fresh: Fresh) -> None:
    rows = ROWS // 2

    def run(log: kstore.Log) -> None:
        log.append_many([VALUE] * rows)

    measure(benchmark, HEAD, "kstore's append_many", run, operations=rows, size_bytes=rows * 100, setup=fresh)


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
def test_kafka(tmp_path: Path, batches: str) -> None:
    told = answer({"16 KiB": "append-16k", "1 MiB": "append-1m"}[batches], tmp_path)
    records = told["records"]  # Kafka has counted them in its file
    report(appending(HEADLINE, batches), KAFKA, told["rounds"], operations=records, size_bytes=records * 100)


@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
def test_krabka(tmp_path: Path, batches: str) -> None:
    missing = krabka_log.why_missing()
    if missing is not None:
        pytest.skip(missing)
    question = appending(HEADLINE, batches)
    ways = dict.fromkeys(("append", "encode", "ready"), (question,))
    krabka_log.ask(ways, "append", tmp_path / "bench-0", READY_SHAPE[batches][0], ROWS)


# --- kinds of columns -------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Any, int], Any]] = {
    "binary": lambda values, rows: values,
    "large_binary": lambda values, rows: values.cast(pa.large_binary()),
    "binary_view": lambda values, rows: values.cast(pa.binary_view()),
    "fixed-size binary": lambda values, rows: pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(100), rows, [None, values.buffers()[2]]
    ),
    "a dictionary of 1,000 words": lambda values, rows: pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows, dtype=np.int32) % 1000), values[:1000]
    ),
    "NumPy, rows of uint8": lambda values, rows: np.frombuffer(values.buffers()[2], np.uint8).reshape(rows, 100),
    "NumPy, S100": lambda values, rows: np.frombuffer(values.buffers()[2], "S100"),
    "a list of bytes": lambda values, rows: values.to_pylist(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(benchmark: BenchmarkFixture, fresh: Fresh, kind: str) -> None:
    rows = ROWS // 2
    values = KINDS[kind](column(rows, 100), rows)
    question = Question("append_columns of values of 100 bytes, batches of 1 MiB, by what holds them")
    run = lambda log: log.append_columns(values)  # noqa: E731
    measure(benchmark, question, kind, run, operations=rows, size_bytes=rows * 100, setup=fresh)


# --- compressed -------------------------------------------------------------------------------------------------------


def words(rows: int) -> Any:
    """Lines as services log them: some of each is always the same, some of it never."""
    chance = random.Random(3)
    paths = [f"/api/v{n % 3}/customers/{n * 7919 % 10007}/orders" for n in range(500)]
    lines = [
        f"2026-11-21T10:00:{n % 60:02d}.{chance.randrange(1000):03d}Z INFO GET {chance.choice(paths)} "
        f"200 {chance.randrange(40, 90_000)} {chance.getrandbits(48):012x}".encode()
        for n in range(50_000)
    ]
    return pa.array([lines[number % len(lines)] for number in range(rows)], pa.binary())


def library(codec: str) -> Callable[[list[bytes]], None]:
    """The codec's library by itself over some blocks, with what it keeps between them."""
    if codec == "lz4":
        options = {"block_linked": False, "store_size": False, "block_size": lz4.frame.BLOCKSIZE_MAX64KB}

        def one(blocks: list[bytes]) -> None:
            for block in blocks:
                lz4.frame.compress(block, **options)

    else:

        def one(blocks: list[bytes]) -> None:
            packer = zstandard.ZstdCompressor(level=3, write_content_size=False)
            for block in blocks:
                packer.compress(block)

    return one


BOUND = "bound: copies, the codec, CRC, write(2)"


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES, ids=["16k", "1m"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("contestant", ["kstore", "the codec alone", BOUND])
def test_compressed(
    benchmark: BenchmarkFixture, fresh: Fresh, tmp_path: Path, codec: str, batches: str, contestant: str, threads: int
) -> None:
    """The codec alone has the same blocks and as many threads; each has its blocks from the beginning, in one task."""
    rows = ROWS // 2
    values = words(rows)
    against = (("the codec alone", 0.85),)
    text = f"append_columns with {codec} on {threads} threads, batches of {batches}"
    question = Question(text.replace("1 threads", "1 thread"), "bytes", None, against)
    options = {"batch_bytes": BATCHES[batches], "timestamps": 1_700_000_000_000}
    if contestant == "kstore":
        run = lambda log: log.append_columns(values, compression=codec, threads=threads, **options)  # noqa: E731
        measure(benchmark, question, contestant, run, operations=rows, size_bytes=values.nbytes, setup=fresh)
        return
    (log,), _ = fresh()
    log.append_columns(values, **options)
    blocks = [bytes(batch)[61:] for batch in log.read_batches()]
    if contestant == BOUND:
        sizes = [len(block) for block in blocks]
        coding, empty = bounds.Coding(codec, sizes, sizes, rows, 0, threads), EmptyFile(tmp_path / "written")
        pack = coding.packed(b"".join(blocks))
        measure(benchmark, question, contestant, pack, operations=rows, size_bytes=values.nbytes, setup=empty)
        empty.close()
        return
    parts, one = [blocks[number::threads] for number in range(threads)], library(codec)
    with ThreadPoolExecutor(threads) as pool:
        alone = (lambda: one(blocks)) if threads == 1 else (lambda: list(pool.map(one, parts)).clear())
        measure(benchmark, question, contestant, alone, operations=rows, size_bytes=values.nbytes)


# --- over partitions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("partitions", [1, 4, 64])
@pytest.mark.parametrize("how", ["columns", "pairs"])
def test_topic(benchmark: BenchmarkFixture, tmp_path: Path, partitions: int, keyed: bool, how: str) -> None:
    rows = ROWS // 2 if how == "columns" else ROWS // 8
    values, keys = column(rows, 100), column(rows, 16) if keyed else None
    keys_listed = keys.to_pylist() if keys is not None else [None] * rows
    pairs = list(zip(keys_listed, values.to_pylist(), strict=True)) if how == "pairs" else []
    opened: list[kstore.Store] = []

    def fresh_store() -> tuple[tuple[kstore.Store], dict[str, Any]]:
        close()
        store = kstore.Store.open(tmp_path / "data", background=False, segment_bytes=GIB)
        store.create_topic("bench", partitions)
        for number in range(partitions):
            begin(store.log("bench", number))
        opened.append(store)
        return (store,), {}

    def close() -> None:
        if opened:
            opened.pop().close()
            shutil.rmtree(tmp_path / "data")

    def run(store: kstore.Store) -> None:
        if how == "columns":
            store.append_columns("bench", values, keys=keys)
        else:
            store.append_many("bench", pairs)

    text = f"a topic of {partitions} partitions, {'keys of 16 bytes' if keyed else 'no keys'}, values of 100 bytes"
    name = "kstore" if how == "columns" else "kstore's append_many"
    measure(benchmark, Question(text), name, run, operations=rows, size_bytes=rows * 100, setup=fresh_store)
    close()
