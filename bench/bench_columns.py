"""How fast do columns come out? From memory, from a log on the page cache, from compressed batches; headers alone.

Workloads: values-100, keyed-100, values-1k and values of 10 bytes of `common`, in batches of 16 KiB and 1 MiB, CRC
always checked; logs of 2 GiB (KSTORE_BENCH_SCALE=0.1 makes that 200 MiB), warm; `words`, lines of about 100 bytes that
compress as logs do, and lines of JSON. Chunks are dropped as they come unless the question says that they are kept.
"""

from __future__ import annotations

import multiprocessing
import os
import random
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
from common import (
    GIB,
    KIB,
    MIB,
    START_MS,
    THREADS,
    VALUE,
    VALUE_1K,
    Question,
    keyed,
    measure,
    report,
    scaled,
    values,
)
from jvm import KAFKA, ask
from limits import bounds, headers, valuecopies
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.codec._pack import Packer

COUNT = scaled(1_000_000)
LOG_BYTES = scaled(2 * GIB)
BATCHES = {"16 KiB": 16 * KIB, "1 MiB": MIB}
SHAPES: dict[str, tuple[Callable[[int], Any], int]] = {
    "values of 100 bytes": (values, 100),
    "values of 100 bytes, keys of 16": (keyed, 116),
    "values of 10 bytes": (lambda count: values(count, VALUE[:10]), 10),
    "values of 1 KiB": (lambda count: values(count, VALUE_1K), 1024),
}
HEADLINE = "values of 100 bytes"
AIOKAFKA = "aiokafka reader"
KRABKA = krabka_log.WAYS["memory"]


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


def on(threads: int) -> str:
    """Of all contestants of a question, unless a name says otherwise."""
    return "one thread" if threads == 1 else f"{threads} threads"


def decoding(shape: str, batches: str, threads: int) -> Question:
    headline = shape == HEADLINE
    against = ((AIOKAFKA, 12.0), (KAFKA, 2.5), (KRABKA, 1.6)) if headline else ()
    least = 45e6 if threads == 1 else 90e6
    text = f"batches of {batches} in memory to columns, {shape}, CRC checked, {on(threads)}"
    return Question(text, "rate", least if headline else None, against)


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_decode(benchmark: BenchmarkFixture, shape: str, batches: str, threads: int) -> None:
    rows = records_of(shape)
    data = packed(SHAPES[shape][0](rows), BATCHES[batches])
    run = lambda: kstore.decode_columns(data, threads=threads)  # noqa: E731
    question = decoding(shape, batches, threads)
    found = measure(benchmark, question, "kstore", run, operations=rows, size_bytes=len(data), rounds=15)
    assert len(found) == rows


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
def test_bound_of_decoding(benchmark: BenchmarkFixture, batches: str, threads: int) -> None:
    data = packed(values(COUNT), BATCHES[batches])
    run, question = bounds.columns(data, COUNT, len(VALUE), threads), decoding(HEADLINE, batches, threads)
    name = "bound: CRC, a copy of each value"
    measure(benchmark, question, name, run, operations=COUNT, size_bytes=len(data), rounds=15)


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
def test_decode_aiokafka(benchmark: BenchmarkFixture, batches: str, threads: int) -> None:
    """Its reader keeps the GIL: in place of threads it has processes, which have the bytes before they begin."""
    rows = COUNT // 5
    data = packed(values(rows), BATCHES[batches])
    question, sizes = decoding(HEADLINE, batches, threads), (rows * threads, len(data) * threads)
    with Processes(data, threads) as processes:
        run = (lambda: peers.aiokafka_read(data)) if threads == 1 else processes.read  # type: ignore[return-value]
        measure(benchmark, question, AIOKAFKA, run, operations=sizes[0], size_bytes=sizes[1])


class Processes:
    """Each goes over all of the data with aiokafka's reader when it is told to."""

    def __init__(self, data: bytes, count: int) -> None:
        system = multiprocessing.get_context("fork")
        self._pipes = [system.Pipe() for _ in range(count if count > 1 else 0)]
        self._all = [system.Process(target=self._work, args=(pipe[1], data), daemon=True) for pipe in self._pipes]

    @staticmethod
    def _work(told: Any, data: bytes) -> None:
        while told.recv():
            told.send(peers.aiokafka_read(data))

    def __enter__(self) -> Processes:
        for each in self._all:
            each.start()
        return self

    def read(self) -> None:
        for here, _ in self._pipes:
            here.send(True)
        for here, _ in self._pipes:
            here.recv()

    def __exit__(self, *error: object) -> None:
        for here, _ in self._pipes:
            here.send(False)
        for each in self._all:
            each.join()


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("name", ["read-16k", "read-1m"])
def test_kafka(tmp_path: Path, name: str, threads: int) -> None:
    """Kafka's log, read with its CRCs checked and its records iterated, from the page cache, by each thread."""
    batches = "16 KiB" if name == "read-16k" else "1 MiB"
    ask(name, tmp_path, decoding(HEADLINE, batches, threads), reading(HEADLINE, batches, threads), threads=threads)


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
    decoded, read = decoding(HEADLINE, batches, 1), reading(HEADLINE, batches, 1)
    both = dict.fromkeys(("raw", "records"), (decoded, read))
    counts = krabka_log.ask({**both, "memory": (decoded,)}, "read", tmp_path / "bench-0")
    assert all(counts[way] == rows for way in both)


# --- from a log -------------------------------------------------------------------------------------------------------

ONE_THREAD = "kstore, one thread"
READ = "read(2) of the files, 1 MiB at a time"


def reading(shape: str, batches: str, threads: int) -> Question:
    against = ((READ, 0.9 if shape == HEADLINE else 0.5),) if threads == THREADS else ()
    least = 70e6 if shape == HEADLINE and threads == THREADS else None
    text = f"a log of {shape} in batches of {batches}, warm, to columns, {on(threads)}"
    return Question(text, "rate", least, against)


def keeping(batches: str) -> Question:
    return Question(f"a log of {HEADLINE} in batches of {batches} to columns, every chunk kept", "rate", 25e6)


class Warm:
    """Logs of LOG_BYTES, the most recently used one in the page cache."""

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
    ONE_THREAD: lambda log: dropped(log.iter_columns(threads=1)),
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
        question, name = reading(shape, batches, THREADS), way
        if way == ONE_THREAD:
            question, name = reading(shape, batches, 1), "kstore"
        assert measure(benchmark, question, name, run, operations=rows, size_bytes=size) == rows

    @pytest.mark.parametrize("threads", sorted({1, THREADS}))
    def test_read(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str, threads: int) -> None:
        """Each thread reads pieces into a buffer of its own, every so many of the files."""
        log = warm(shape, batches)
        files = [os.open(segment.path, os.O_RDONLY) for segment in log.segments]

        def part(number: int) -> None:
            buffer = bytearray(MIB)
            for fd in files:
                at = number * MIB
                while os.preadv(fd, [buffer], at):
                    at += threads * MIB

        question = reading(shape, batches, threads)
        with ThreadPoolExecutor(threads) as pool:
            run = (lambda: part(0)) if threads == 1 else (lambda: list(pool.map(part, range(threads))).clear())
            measure(benchmark, question, READ, run, operations=warm.rows, size_bytes=warm.size_bytes)
        for fd in files:
            os.close(fd)

    @pytest.mark.parametrize("threads", sorted({1, THREADS}))
    def test_bound(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str, threads: int) -> None:
        log = warm(shape, batches)
        files = [os.open(segment.path, os.O_RDONLY) for segment in log.segments]
        _, size = SHAPES[shape]
        stride = warm.size_bytes // warm.rows
        run = valuecopies.copies(files, stride, size, threads)
        question, name = reading(shape, batches, threads), "bound: reading, and a copy of each value"
        copied = measure(benchmark, question, name, run, operations=warm.rows, size_bytes=warm.size_bytes)
        assert abs(copied * stride / warm.size_bytes - 1) < 0.01
        for fd in files:
            os.close(fd)

    def test_kept(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        if shape != HEADLINE:
            pytest.skip("asked of one shape")
        log = warm(shape, batches)
        run = lambda: [list(log.iter_columns())].clear()  # noqa: E731
        measure(benchmark, keeping(batches), "kstore", run, operations=warm.rows, size_bytes=warm.size_bytes, rounds=3)

    def test_bound_of_keeping(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str) -> None:
        if shape != HEADLINE:
            pytest.skip("asked of one shape")
        log = warm(shape, batches)
        files = [os.open(segment.path, os.O_RDONLY) for segment in log.segments]
        run = valuecopies.copies(files, warm.size_bytes // warm.rows, SHAPES[shape][1], THREADS, keep=True)
        name = "bound: reading, copies to fresh memory"
        measure(benchmark, keeping(batches), name, run, operations=warm.rows, size_bytes=warm.size_bytes, rounds=3)
        for fd in files:
            os.close(fd)

    @pytest.mark.parametrize("way", ["kstore", "bound: a pread of each header"])
    def test_batch_table(self, benchmark: BenchmarkFixture, warm: Warm, shape: str, batches: str, way: str) -> None:
        if (shape, batches) != (HEADLINE, "16 KiB"):
            pytest.skip("asked of one shape")
        log = warm(shape, batches)
        part = warm.rows * GIB // max(warm.size_bytes, GIB)
        limit = 30e-3 * min(warm.size_bytes, GIB) / GIB
        question = Question(f"batch_table of {min(warm.size_bytes, GIB) >> 20} MiB of 16 KiB batches", "time", limit)
        run: Callable[[], Any] = lambda: log.batch_table(end_offset=part)  # noqa: E731
        if way == "kstore":
            measure(benchmark, question, way, run, operations=1, rounds=9)
            return
        table, (first, *_) = run(), log.segments
        with open(first.path, "rb") as file:
            positions = table["position"][table["segment_base_offset"] == first.base_offset]
            run = headers.reads(file.fileno(), positions, THREADS)
            measure(benchmark, question, way, run, operations=1, rounds=9)


# --- compressed -------------------------------------------------------------------------------------------------------

WORDS = b"timestamp level service request user order item price error warn info ok".split()


def words(count: int) -> list[bytes]:
    """Lines of about 100 bytes: words, numbers and a random identifier."""
    rng = random.Random(9)
    return [
        b" ".join(rng.choices(WORDS, k=9)) + b" id=%x n=%d" % (rng.getrandbits(64), rng.randrange(10_000))
        for _ in range(count)
    ]


def documents(count: int) -> list[bytes]:
    """Lines of JSON of about 90 bytes, as services log them."""
    rng = random.Random(9)
    return [
        b'{"user": %d, "page": "/item/%d", "ts": %d, "ok": %s, "ms": %.3f}'
        % (
            rng.randrange(10**6),
            rng.randrange(5000),
            START_MS + 37 * at,
            rng.choice((b"true", b"false")),
            rng.random() * 90,
        )
        for at in range(count)
    ]


LINES = {"": words, " of JSON": documents}


def unpacked_sizes(codec: str, blocks: list[bytes]) -> list[int]:
    if codec == "lz4":
        return [len(lz4.frame.decompress(block)) for block in blocks]
    return [len(zstandard.ZstdDecompressor().decompressobj().decompress(block)) for block in blocks]


def alone(codec: str, blocks: list[bytes], sizes: list[int], threads: int) -> Callable[[], None]:
    """Nothing but the codec's library, over blocks as they are in the file, told how large each one is unpacked.

    Each thread has a context that it keeps. With a limit in place of the size, zstandard would take memory of the limit
    for each block: of 16 KiB, that was most of its time.
    """
    if codec == "lz4":

        def one(part: list[tuple[bytes, int]]) -> None:
            context = lz4.frame.create_decompression_context()
            for block, size in part:
                lz4.frame.decompress_chunk(context, block, max_length=size)

    else:

        def one(part: list[tuple[bytes, int]]) -> None:
            unpacker = zstandard.ZstdDecompressor()
            for block, size in part:
                unpacker.decompress(block, max_output_size=size)

    sized = list(zip(blocks, sizes, strict=True))
    if threads == 1:
        return lambda: one(sized)
    pool = ThreadPoolExecutor(threads)
    parts = [sized[number::threads] for number in range(threads)]
    return lambda: list(pool.map(one, parts)).clear()


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("of", LINES, ids=["words", "json"])
def test_decompressing_beside_its_bound(
    benchmark: BenchmarkFixture, tmp_path: Path, of: str, codec: str, batches: str, threads: int
) -> None:
    lines = LINES[of](COUNT // 4)
    library = f"the {codec} library alone"
    question = Question(
        f"{codec} batches of {batches}{of} from a log to columns, {on(threads)}", "rate", None, ((library, 0.9),)
    )
    with kstore.Log.open(tmp_path / "bench-0") as log:
        for _ in range(4):
            log.append_many(lines, compression=codec, batch_bytes=BATCHES[batches])
        log.flush()
        rows = log.log_end_offset
        stored = [bytes(batch) for batch in log.read_batches()]
        (segment,) = log.segments
        blocks = [batch[61:] for batch in stored]
        sizes = unpacked_sizes(codec, blocks)
        size = sum(len(line) for line in lines) * 4
        run = lambda: dropped(log.iter_columns(threads=threads))  # noqa: E731
        assert measure(benchmark, question, "kstore", run, operations=rows, size_bytes=size) == rows
        report(question, library, rounds_of(alone(codec, blocks, sizes, threads)), operations=rows, size_bytes=size)
        coding = bounds.Coding(codec, [len(batch) for batch in stored], sizes, rows, size // rows, threads)
        name = "bound: reading, CRC, library, copies"
        with open(segment.path, "rb") as file:
            bound = rounds_of(coding.unpacked(file.fileno()))
            report(question, name, bound, operations=rows, size_bytes=size)


def rounds_of(run: Callable[[], None], rounds: int = 5) -> list[float]:
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found[1:]
