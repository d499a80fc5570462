"""Workloads as users have them, beside the kind ones: varied rows, many partitions, batch sizes, codecs, a cold log.

Workloads by name:
  kind    values of 100 bytes, all of one time, no keys: runs of rows that are all alike
  rising  times that rise by 0 to 3 ms a row, values of 20 to 180 bytes (100 on average), and nothing else
  users   times that rise by 0 to 3 ms a row, keys of 8 to 24 and values of 20 to 180 bytes (100 on average), a tenth of
          the values null, two headers on one row in twenty; the bytes are words, which compress as such lines do
Batches of 16 KiB, 64 KiB and 1 MiB; no codec, lz4, zstd. Cold: synced, and dropped from the page cache before each
round with posix_fadvise(DONTNEED), so that a round reads the disk. The bare read is dropped alike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from common import GIB, KIB, MIB, START_MS, THREADS, Question, begin, measure, scaled, settle
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

pa = pytest.importorskip("pyarrow")

ROWS = scaled(1_000_000)
BATCHES = {"16 KiB": 16 * KIB, "64 KiB": 64 * KIB, "1 MiB": MIB}
CODECS = ("none", "lz4", "zstd")
WORDS = b" ".join(b"timestamp level service request user order item price error warn info ok".split() * 40)
HEADERS = [("trace", b"0af7651916cd43dd8448eb211c80319c"), ("source", b"web")]
PARTITIONS = 16
READ = "read(2) of the files, 1 MiB at a time"
AIOKAFKA = "aiokafka's reader, by rows, .value, file included"


class Columns:
    """The columns of a workload, and the same as rows."""

    def __init__(self, name: str, rows: int = ROWS) -> None:
        rng = np.random.default_rng(3)
        self.rows = rows
        self.keys: Any = None
        self.headers: Any = None
        if name == "kind":
            self.timestamps: Any = START_MS
            self.values = varied(rng, np.full(rows, 100), None)
        elif name == "rising":
            self.timestamps = START_MS + np.cumsum(rng.integers(0, 4, rows))
            self.values = varied(rng, rng.integers(20, 181, rows), None)
        else:
            self.timestamps = START_MS + np.cumsum(rng.integers(0, 4, rows))
            self.keys = varied(rng, rng.integers(8, 25, rows), None)
            self.values = varied(rng, rng.integers(20, 181, rows), rng.random(rows) < 0.1)
            self.headers = headers(rows)

    @property
    def size_bytes(self) -> int:
        return int(self.values.nbytes) + (0 if self.keys is None else int(self.keys.nbytes))

    def options(self) -> dict[str, Any]:
        return {"keys": self.keys, "timestamps": self.timestamps, "headers": self.headers}

    def listed(self) -> list[tuple[bytes | None, bytes | None, int, Any]]:
        """As `append_many` takes them."""
        keys = [None] * self.rows if self.keys is None else self.keys.to_pylist()
        times = [START_MS] * self.rows if self.keys is None else self.timestamps.tolist()
        given = [None] * self.rows if self.headers is None else self.headers.to_pylist()
        return list(zip(keys, self.values.to_pylist(), times, given, strict=True))


def varied(rng: Any, sizes: Any, nulls: Any) -> Any:
    """A binary Arrow column of pieces of text with a few random bytes, of those sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = np.resize(np.frombuffer(WORDS, np.uint8), offsets[-1])
    some = rng.integers(0, len(data), len(data) // 8)
    data[some] = rng.integers(48, 58, len(some))
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def headers(rows: int) -> Any:
    """Two on one row in twenty, as an Arrow map."""
    some = [HEADERS if number % 20 == 0 else [] for number in range(1000)]
    part = pa.array(some, pa.map_(pa.string(), pa.binary()))
    return pa.concat_arrays([part] * -(-rows // 1000))[:rows]


class Fresh:
    """A `setup` for `measure`: what `make` opens in an empty directory, the one before closed and removed."""

    def __init__(self, path: Path, make: Callable[[Path], Any]) -> None:
        self._path, self._make, self._opened = path, make, list[Any]()

    def __call__(self) -> tuple[tuple[Any], dict[str, Any]]:
        self.clear()
        self._opened.append(self._make(self._path / "made-0"))
        return (self._opened[0],), {}

    def clear(self) -> None:
        if self._opened:
            self._opened.pop().close()
            shutil.rmtree(self._path / "made-0")


def a_log(path: Path) -> kstore.Log:
    log = kstore.Log.open(path, segment_bytes=GIB)
    begin(log)
    return log


def a_begun_store(path: Path) -> kstore.Store:
    store = an_empty_store(path)
    for number in range(PARTITIONS):
        begin(store.log("t", number))
    return store


def an_empty_store(path: Path) -> kstore.Store:
    store = kstore.Store.open(path, background=False, segment_bytes=GIB)
    store.create_topic("t", PARTITIONS)
    return store


# --- in ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["users", "rising"])
@pytest.mark.parametrize("batches", ["16 KiB", "1 MiB"])
def test_append_columns(benchmark: BenchmarkFixture, tmp_path: Path, workload: str, batches: str) -> None:
    """A workload beside the kind one, each beside a bare write of its own bytes."""
    text = {"users": "as users have it", "rising": "of rising times and varying lengths"}[workload]
    question = Question(f"append_columns {text}, batches of {batches}", against=(("kind rows", 1 / 1.15),))
    fresh = Fresh(tmp_path, a_log)
    for name, contestant in ((workload, "kstore"), ("kind", "kind rows")):
        given = Columns(name)

        def run(log: kstore.Log, given: Columns = given) -> None:
            log.append_columns(given.values, batch_bytes=BATCHES[batches], **given.options())

        again(benchmark, question, contestant, run, given, fresh)
        data = memoryview((tmp_path / "made-0" / "00000000000000000000.log").read_bytes())

        def write(log: kstore.Log, data: memoryview = data) -> None:
            with open(tmp_path / "made-0" / "written", "wb", buffering=0) as file:
                for at in range(0, len(data), MIB):
                    file.write(data[at : at + MIB])

        again(benchmark, question, f"write(2) of the bytes of {contestant}", write, given, fresh)
    fresh.clear()


def again(
    benchmark: BenchmarkFixture, question: Question, name: str, run: Callable[..., Any], given: Columns, fresh: Fresh
) -> None:
    """Measures one of several contestants of a test, which pytest-benchmark would let measure once."""
    benchmark._mode = None
    measure(benchmark, question, name, run, operations=given.rows, size_bytes=given.size_bytes, setup=fresh, rounds=7)


@pytest.mark.parametrize("workload", ["users", "kind"])
@pytest.mark.parametrize("batches", ["16 KiB", "1 MiB"])
def test_append_many(benchmark: BenchmarkFixture, tmp_path: Path, workload: str, batches: str) -> None:
    question = Question(f"append_many of rows with times and headers, {workload}, batches of {batches}")
    given, fresh = Columns(workload, ROWS // 4), Fresh(tmp_path, a_log)
    rows = given.listed()
    run = lambda log: log.append_many(rows, batch_bytes=BATCHES[batches])  # noqa: E731
    again(benchmark, question, "kstore", run, given, fresh)
    build = lambda log: peers.aiokafka_rows(rows, BATCHES[batches])  # noqa: E731
    again(benchmark, question, "aiokafka's builder, no file", build, given, fresh)
    fresh.clear()


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(batches, codec) for batches in BATCHES for codec in CODECS], ids="-".join)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """Users' rows in a closed log on the disk: the size of its batches, their codec, and the path."""
    batches, codec = request.param
    path, given = tmp_path_factory.mktemp("users") / "made-0", Columns("users")
    with kstore.Log.open(path, segment_bytes=GIB) as log:
        for _ in range(2):
            log.append_columns(
                given.values, batch_bytes=BATCHES[batches], compression=codec, threads=THREADS, **given.options()
            )
    settle(path)
    yield batches, codec, path
    shutil.rmtree(path)


def rows_of(log: kstore.Log) -> int:
    count = 0
    for record in log.read():
        record.value  # noqa: B018
        count += 1
    return count


def bare(path: Path) -> None:
    buffer = bytearray(MIB)
    for each in sorted(path.glob("*.log")):
        with each.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def aiokafka(path: Path) -> int:
    return sum(peers.aiokafka_read(data) for each in sorted(path.glob("*.log")) for data in peers.aiokafka_chunks(each))


WAYS: dict[str, Callable[[kstore.Log], int]] = {
    "kstore": lambda log: sum(len(chunk) for chunk in log.iter_columns()),
    "kstore, threads=1": lambda log: sum(len(chunk) for chunk in log.iter_columns(threads=1)),
    "kstore, by rows, .value": rows_of,
}


@pytest.mark.parametrize("way", [*WAYS, READ, AIOKAFKA])
@pytest.mark.parametrize("state", ["warm", "cold"])
def test_read(benchmark: BenchmarkFixture, filled: tuple[str, str, Path], state: str, way: str) -> None:
    batches, codec, path = filled
    if state == "cold" and (way == AIOKAFKA or codec != "none" or batches == "64 KiB"):
        pytest.skip("asked of two")
    rows = 2 * ROWS
    size = sum(each.stat().st_size for each in path.glob("*.log"))
    text = f"a {state} log of users' rows, batches of {batches}, {'not compressed' if codec == 'none' else codec}"

    def drop() -> None:
        for each in path.glob("*.log"):
            with each.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    with kstore.Log.open(path, mode="r") as log:
        alone = {READ: lambda: bare(path), AIOKAFKA: lambda: aiokafka(path)}
        run = alone.get(way, lambda: WAYS[way](log))
        setup = drop if state == "cold" else None
        answer = measure(benchmark, Question(text), way, run, operations=rows, size_bytes=size, setup=setup, rounds=5)
    assert way == READ or answer == rows


# --- sixteen partitions -----------------------------------------------------------------------------------------------

INTO_MANY = Question(f"users' rows into a topic of {PARTITIONS} partitions, by key")
OUT_OF_MANY = Question(f"users' rows out of a topic of {PARTITIONS} partitions, as columns")
ONE_LOG = "into one log"


def test_into_sixteen_partitions(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    given = Columns("users", ROWS // 2)
    rows, store, log = given.listed(), Fresh(tmp_path, a_begun_store), Fresh(tmp_path, a_log)
    columns = given.options()
    ways: dict[str, tuple[Fresh, Callable[[Any], Any]]] = {
        "kstore": (store, lambda made: made.append_columns("t", given.values, **columns)),
        f"kstore, {ONE_LOG}": (log, lambda made: made.append_columns(given.values, **columns)),
        "kstore, append_many": (store, lambda made: made.append_many("t", rows)),
        f"kstore, append_many {ONE_LOG}": (log, lambda made: made.append_many(rows)),
    }
    for name, (fresh, run) in ways.items():
        again(benchmark, INTO_MANY, name, run, given, fresh)
        fresh.clear()


def test_out_of_sixteen_partitions(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    given = Columns("users", ROWS // 2)
    with an_empty_store(tmp_path / "made-0") as store:
        store.append_columns("t", given.values, **given.options())
        run = lambda: sum(len(chunk) for _, chunk in store.read_columns("t"))  # noqa: E731
        found = measure(benchmark, OUT_OF_MANY, "kstore", run, operations=given.rows, size_bytes=given.size_bytes)
        assert found == given.rows
