"""How fast do columns come out? From memory, from a log on the page cache, from compressed batches; headers alone.

Workloads: values-100, keyed-100, values-1k and values of 10 bytes of `common`, in batches of 16 KiB and 1 MiB, CRC
always checked; logs of 2 GiB (KSTORE_BENCH_SCALE=0.1 makes that 200 MiB), warm; `words`, lines of about 100 bytes that
compress as logs do. Chunks are dropped as they come unless the question says that they are kept.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import krabka_log
import lz4.frame
import peers
import pytest
import zstandard
from bench_kafka import KAFKA
from common import GIB, KIB, MIB, SCALE, START_MS, VALUE, VALUE_1K, Question, keyed, measure, report, scaled, values
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore._pack import Packer

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from kafka_jvm import command, why_missing

COUNT = scaled(1_000_000)
LOG_BYTES = scaled(2 * GIB)
BATCHES = {"16 KiB": 16 * KIB, "1 MiB": MIB}
THREADS = min(4, os.cpu_count() or 1)
SHAPES: dict[str, tuple[Callable[[int], Any], int]] = {
    "values of 100 bytes": (values, 100),
    "values of 100 bytes, keys of 16": (keyed, 116),
    "values of 10 bytes": (lambda count: values(count, VALUE[:10]), 10),
    "values of 1 KiB": (lambda count: values(count, VALUE_1K), 1024),
}
HEADLINE = "values of 100 bytes"


def packed(items: Any, batch_bytes: int) -> bytes:
    """Batches whose offsets rise, as a log holds them."""
    packer = Packer(batch_bytes, MIB, now_ms=START_MS)
    packer.pack(iter(items), 1 << 31)
    data = bytearray(packer.buffer)
    number_batches(data, 0)
    return bytes(data)


def number_batches(data: bytearray, offset: int) -> int:
    """Give the batches their offsets from `offset` on; the next one."""
    at = 0
    while at < len(data):
        data[at : at + 8] = offset.to_bytes(8, "big")
        offset += 1 + int.from_bytes(data[at + 23 : at + 27], "big")
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return offset


def records_of(shape: str) -> int:
    return COUNT if SHAPES[shape][1] < 1000 else COUNT // 8


# --- from memory ------------------------------------------------------------------------------------------------------


def decoding(shape: str, batches: str) -> Question:
    headline = shape == HEADLINE
    against = (("aiokafka reader", 12.0), (KAFKA, 2.5)) if headline else ()
    return Question(
        f"batches of {batches} in memory to columns, {shape}, CRC checked", "rate", 90e6 if headline else None, against
    )


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_decode(benchmark: BenchmarkFixture, shape: str, batches: str, threads: int) -> None:
    rows = records_of(shape)
    data = packed(SHAPES[shape][0](rows), BATCHES[batches])
    name = "kstore" if threads == THREADS else f"kstore, threads={threads}"
    run = lambda: kstore.decode_columns(data, threads=threads)  # noqa: E731
    found = measure(benchmark, decoding(shape, batches), name, run, operations=rows, size_bytes=len(data), rounds=15)
    assert len(found) == rows


@pytest.mark.parametrize("batches", BATCHES)
def test_decode_aiokafka(benchmark: BenchmarkFixture, batches: str) -> None:
    rows = COUNT // 5
    data = packed(values(rows), BATCHES[batches])
    run = lambda: peers.aiokafka_read(data)  # noqa: E731
    measure(benchmark, decoding(HEADLINE, batches), "aiokafka reader", run, operations=rows, size_bytes=len(data))


@pytest.mark.parametrize("name", ["read-16k", "read-1m"])
def test_kafka(tmp_path: Path, name: str) -> None:
    """Kafka's log, read with its CRCs checked and its records iterated, from the page cache."""
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    run = [*command("kstore.oracle.Bench", heap="2g", quick=False), name, str(tmp_path), str(SCALE)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout)
    batches = "16 KiB" if name == "read-16k" else "1 MiB"
    for question in (decoding(HEADLINE, batches), reading(HEADLINE, batches)):
        report(question, KAFKA, answer["rounds"], operations=answer["operations"], size_bytes=answer["size_bytes"])


@pytest.mark.parametrize("batches", BATCHES)
def test_krabka(tmp_path: Path, batches: str) -> None:
    """krabka-log on a log of ours, closed, in the page cache: its bytes, its records, and records in memory."""
    missing = krabka_log.why_missing()
    if missing is not None:
        pytest.skip(missing)
    with kstore.Log.open(tmp_path / "bench-0", segment_bytes=GIB) as log:
        while log.stats()["size_bytes"] < LOG_BYTES // 4:
            log.append_many(values(COUNT // 2), batch_bytes=BATCHES[batches])
        rows = log.log_end_offset
    decoded, read = decoding(HEADLINE, batches), reading(HEADLINE, batches)
    both = dict.fromkeys(("raw", "records"), (decoded, read))
    counts = krabka_log.ask({**both, "memory": (decoded,)}, "read", tmp_path / "bench-0")
    assert all(counts[way] == rows for way in both)


# --- from a log -------------------------------------------------------------------------------------------------------

READ = "read(2) of the files, 1 MiB at a time"


def reading(shape: str, batches: str) -> Question:
    against = ((READ, 0.5),) if shape == "values of 1 KiB" else ()
    least = 70e6 if shape == HEADLINE else None
    return Question(f"a log of {shape} in batches of {batches}, warm, to columns", "rate", least, against)


def keeping(batches: str) -> Question:
    return Question(f"a log of {HEADLINE} in batches of {batches} to columns, every chunk kept", "rate", 30e6)


class Warm:
    """Logs of LOG_BYTES, the one that was asked for last in the page cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: tuple[str, str] | None = None
        self.log: kstore.Log | None = None
        self.rows = 0

    def __call__(self, shape: str, batches: str) -> kstore.Log:
        if self.asked != (shape, batches):
            self.clear()
            self.log = kstore.Log.open(self.root / "bench-0", segment_bytes=GIB)
            source, size = SHAPES[shape]
            step = 64 * MIB // size
            while self.log.stats()["size_bytes"] < LOG_BYTES:
                self.log.append_many(source(step), batch_bytes=BATCHES[batches])
            self.log.flush()
            self.rows = self.log.log_end_offset
            self.asked = shape, batches
        assert self.log is not None
        return self.log

    @property
    def size_bytes(self) -> int:
        assert self.log is not None
        return sum(segment.size_bytes for segment in self.log.segments)

    def clear(self) -> None:
        if self.log is not None:
            self.log.close()
            for file in (self.root / "bench-0").iterdir():
                file.unlink()
            (self.root / "bench-0").rmdir()
            self.log = self.asked = None


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    made = Warm(tmp_path_factory.mktemp("warm"))
    yield made
    made.clear()


def dropped(chunks: Iterator[kstore.Columns]) -> int:
    return sum(len(chunk) for chunk in chunks)


def in_calls(log: kstore.Log, **options: Any) -> int:
    """The log by `read_columns`, 64 MiB a call."""
    offset = rows = 0
    while offset < log.log_end_offset:
        chunk = log.read_columns(offset, max_bytes=64 * MIB, **options)
        offset = chunk.next_offset
        rows += len(chunk)
    return rows


WAYS: dict[str, Callable[[kstore.Log], int]] = {
    "kstore": lambda log: dropped(log.iter_columns()),
    "kstore, threads=1": lambda log: dropped(log.iter_columns(threads=1)),
    "kstore, layout='view'": lambda log: dropped(log.iter_columns(layout="view")),
    "kstore, read_columns of 64 MiB": in_calls,
    "kstore, offset and timestamp only": lambda log: dropped(log.iter_columns(columns=("offset", "timestamp"))),
}


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
class TestLog:
    """One log after the other, every way beside the bare read of the same files."""

    @pytest.mark.parametrize("way", WAYS)
    def test_columns(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str, way: str) -> None:
        log = warm(shape, batches)
        size, rows = warm.size_bytes, warm.rows
        run = lambda: WAYS[way](log)  # noqa: E731
        assert measure(benchmark, reading(shape, batches), way, run, operations=rows, size_bytes=size) == rows

    def test_read(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        log = warm(shape, batches)
        files = [os.open(segment.path, os.O_RDONLY) for segment in log.segments]
        buffer = bytearray(MIB)

        def run() -> None:
            for fd in files:
                os.lseek(fd, 0, os.SEEK_SET)
                while os.readv(fd, [buffer]):
                    pass

        question = reading(shape, batches)
        measure(benchmark, question, READ, run, operations=warm.rows, size_bytes=warm.size_bytes)
        for fd in files:
            os.close(fd)

    def test_kept(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        if shape != HEADLINE:
            pytest.skip("asked of one shape")
        log = warm(shape, batches)
        run = lambda: [list(log.iter_columns())].clear()  # noqa: E731
        measure(benchmark, keeping(batches), "kstore", run, operations=warm.rows, size_bytes=warm.size_bytes, rounds=3)

    def test_fresh_memory(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        """What nobody who keeps every chunk gets around: the first touch of as much memory."""
        if shape != HEADLINE:
            pytest.skip("asked of one shape")
        warm(shape, batches)
        size = warm.rows * (100 + 8 + 8 + 4)

        def run() -> None:
            # Shared memory, which Python maps by default, is not given in huge pages.
            with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                memory.madvise(mmap.MADV_HUGEPAGE)
                for at in range(0, size, mmap.PAGESIZE):
                    memory[at] = 1

        name = "first touch of as much memory, in huge pages"
        measure(benchmark, keeping(batches), name, run, operations=warm.rows, size_bytes=size, rounds=3)

    def test_batch_table(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        if (shape, batches) != (HEADLINE, "16 KiB"):
            pytest.skip("asked of one shape")
        log = warm(shape, batches)
        part = warm.rows * GIB // max(warm.size_bytes, GIB)
        limit = 30e-3 * min(warm.size_bytes, GIB) / GIB
        question = Question(f"batch_table of {min(warm.size_bytes, GIB) >> 20} MiB of 16 KiB batches", "time", limit)
        run = lambda: log.batch_table(end_offset=part)  # noqa: E731
        measure(benchmark, question, "kstore", run, operations=1, rounds=9)


# --- compressed -------------------------------------------------------------------------------------------------------

WORDS = b"timestamp level service request user order item price error warn info ok".split()


def words(count: int) -> list[bytes]:
    """Lines of about 100 bytes: words, numbers and a random identifier."""
    rng = random.Random(9)
    return [
        b" ".join(rng.choices(WORDS, k=9)) + b" id=%x n=%d" % (rng.getrandbits(64), rng.randrange(10_000))
        for _ in range(count)
    ]


def alone(codec: str, blocks: list[bytes], threads: int) -> Callable[[], None]:
    """Nothing but the codec's library, over blocks as they are in the file."""
    if codec == "lz4":
        one: Callable[[list[bytes]], None] = lambda part: [lz4.frame.decompress(block) for block in part].clear()  # noqa: E731
    else:

        def one(part: list[bytes]) -> None:
            unpacker = zstandard.ZstdDecompressor()
            for block in part:
                unpacker.decompress(block, max_output_size=2 * MIB)

    if threads == 1:
        return lambda: one(blocks)
    pool = ThreadPoolExecutor(threads)
    parts = [blocks[number::threads] for number in range(threads)]
    return lambda: list(pool.map(one, parts)).clear()


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_decompressing(benchmark: BenchmarkFixture, tmp_path: Path, codec: str, batches: str, threads: int) -> None:
    lines = words(COUNT // 4)
    library = f"the {codec} library alone"
    question = Question(
        f"{codec} batches of {batches} from a log to columns, {threads} threads each", "rate", None, ((library, 0.8),)
    )
    with kstore.Log.open(tmp_path / "bench-0") as log:
        for _ in range(4):
            log.append_many(lines, compression=codec, batch_bytes=BATCHES[batches])
        log.flush()
        rows = log.log_end_offset
        blocks = [bytes(batch)[61:] for batch in log.read_batches()]
        size = sum(len(line) for line in lines) * 4
        run = lambda: dropped(log.iter_columns(threads=threads))  # noqa: E731
        assert measure(benchmark, question, "kstore", run, operations=rows, size_bytes=size) == rows
        timed = alone(codec, blocks, threads)
        report(question, library, rounds_of(timed), operations=rows, size_bytes=size)


def rounds_of(run: Callable[[], None], rounds: int = 5) -> list[float]:
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found[1:]
