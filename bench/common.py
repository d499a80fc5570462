"""The common parts of all benchmarks: the workloads, one way to measure, and the table that `make bench` prints.

A benchmark file asks questions; each test in it gives one contestant's answer through `measure`. Contestants of a
question run in the same process, one after the other, so that their ratio comes from one run on one machine.

Workloads by name:
  values-100      100 random bytes, no key: the default
  keyed-100       the same with a key of 16 bytes
  values-1k       1,024 random bytes, no key
  batches-16k     header and records of at most 16 KiB a batch; batches-64k and batches-1m likewise

Page cache: directories are fresh, filled by the benchmark itself in the same run, and read back warm. Nothing is synced
unless the question says so.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_benchmark.fixture import BenchmarkFixture

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
START_MS = 1_700_000_000_000

# KSTORE_BENCH_SCALE=0.1 makes a quick look of a long run; figures to quote come from 1.
SCALE = float(os.environ.get("KSTORE_BENCH_SCALE", "1"))
# What has several threads has so many, kstore and its peers alike, unless its name says otherwise.
THREADS = min(4, os.cpu_count() or 1)

_random = random.Random(20_240_501)
VALUE = _random.randbytes(100)
VALUE_1K = _random.randbytes(1024)
PAIRS = [(_random.randbytes(16), VALUE) for _ in range(1024)]

Row = tuple[bytes | None, bytes, int, None]


def scaled(count: int) -> int:
    """`count`, made smaller for a quick look."""
    return max(1, int(count * SCALE))


def values(count: int, value: bytes = VALUE) -> Iterator[tuple[None, bytes]]:
    """`count` pairs of no key and one value, made at C speed so that the source costs next to nothing."""
    return itertools.repeat((None, value), count)


def keyed(count: int) -> Iterator[tuple[bytes, bytes]]:
    """`count` pairs of a key of 16 bytes (1,024 in turn) and the value, pairs that are there already."""
    return itertools.islice(itertools.cycle(PAIRS), count)


def timed_rows(count: int, value: bytes = VALUE) -> Iterable[Row]:
    """`count` rows without a key, one millisecond apart."""
    return zip(
        itertools.repeat(None, count),
        itertools.repeat(value, count),
        range(START_MS, START_MS + count),
        itertools.repeat(None, count),
        strict=True,
    )


@dataclass(frozen=True)
class Question:
    """One question of a benchmark, the unit of its answer, and the limit that kstore has to keep.

    `unit` is "rate" (operations a second), "bytes" (bytes a second), "time" (seconds an operation), "share" (of one
    processor), "memory" (bytes each) or "count" (of anything). `limit` holds for the contestant "kstore": a least rate,
    or a greatest time or size. `against` pairs a peer with how many times as fast as it kstore must be.
    """

    text: str
    unit: str = "rate"
    limit: float | None = None
    against: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Result:
    """A contestant's result: seconds of each round of `operations` records, calls or lookups, moving `size_bytes`."""

    question: Question
    contestant: str
    operations: int
    size_bytes: int
    rounds: tuple[float, ...]
    asked_by: str = ""  # the file of the question

    def seconds(self, of: Callable[[Iterable[float]], float] = statistics.median) -> float:
        """Seconds an operation, by the median round unless told otherwise."""
        return of(self.rounds) / self.operations

    @property
    def spread(self) -> float:
        """Slowest round less fastest, as a share of the median."""
        return (max(self.rounds) - min(self.rounds)) / statistics.median(self.rounds)


RESULTS: list[Result] = []


def asked_by() -> str:
    """The file of the test that runs: pytest says it in the environment, as `bench/bench_log.py::test_x (call)`."""
    return Path(os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]).name


def measure(
    benchmark: BenchmarkFixture,
    question: Question,
    contestant: str,
    function: Callable[..., Any],
    *,
    operations: int,
    size_bytes: int = 0,
    setup: Callable[[], Any] | None = None,
    rounds: int = 5,
) -> Any:
    """Time `function` over `rounds` after one warm-up, `setup` before each; returns its last result.

    `setup` may return `(args, kwargs)` for `function`, as pytest-benchmark has it.
    """
    benchmark.group = question.text
    benchmark.name = contestant
    benchmark.extra_info.update(contestant=contestant, operations=operations, size_bytes=size_bytes)
    answer = benchmark.pedantic(function, setup=setup, rounds=rounds, warmup_rounds=1, iterations=1)
    if benchmark.stats is not None:  # None when benchmarks are disabled
        rounds_of = tuple(benchmark.stats.stats.data)
        RESULTS.append(Result(question, contestant, operations, size_bytes, rounds_of, asked_by()))
    return answer


def begin(log: Any) -> None:
    """Append a first record: with it a log writes its leader epoch, durably, once in the life of a partition."""
    log.append(b"")


def report(
    question: Question, contestant: str, rounds: Iterable[float], *, operations: int, size_bytes: int = 0
) -> None:
    """Enter what a contestant in another process (a JVM) measured by itself in this run: seconds of each round."""
    RESULTS.append(Result(question, contestant, operations, size_bytes, tuple(rounds), asked_by()))


def read_through(path: Path) -> None:
    """Read a partition's `.log` files, 256 KiB at a time, and look at nothing."""
    buffer = bytearray(256 * KIB)
    for each in sorted(path.glob("*.log")):
        with each.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def settle(path: Path) -> int:
    """Have all files below `path` written to the disk; their bytes.

    Call it between filling a directory and measuring on it: dirty pages that wait to be written cost the next one dear.
    """
    total = 0
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            total += file.stat().st_size
    return total


def use_memory(size: int) -> None:
    """Use so much memory once, and give it back.

    A guest of a hypervisor may get a page from its host only when it first touches it: that took 9 to 14 µs where the
    first use of a page otherwise takes 2. Of appends of 180 bytes to a file in memory one in 23 takes a new page: call
    it before their slowest hundredth is measured, or it says which contestant came first.
    """
    with mmap.mmap(-1, size) as memory:
        memory[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))


class EmptyFile:
    """A `setup` for `measure`: an empty file, the one before closed, as a log is, and removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: int | None = None

    def __call__(self) -> tuple[tuple[int], dict[str, Any]]:
        self.close()
        self._opened = os.open(self._path, os.O_RDWR | os.O_CREAT)
        return (self._opened,), {}

    def close(self) -> None:
        if self._opened is not None:
            os.fsync(self._opened)
            os.close(self._opened)
            self._path.unlink()
            self._opened = None


@contextlib.contextmanager
def a_busy_thread() -> Iterator[None]:
    """A thread that computes in Python, and gives the interpreter up when it is asked to, every 5 ms."""
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    busy = threading.Thread(target=spin, daemon=True)
    busy.start()
    try:
        yield
    finally:
        stop.set()
        busy.join()


# --- the table --------------------------------------------------------------------------------------------------------


def table(results: Iterable[Result]) -> Iterator[str]:
    """The results as text: for each question its contestants, the best first, and whether the limits were met."""
    by_question: dict[Question, list[Result]] = {}
    for result in results:
        by_question.setdefault(result.question, []).append(result)
    for question, contestants in by_question.items():
        yield ""
        yield question.text
        yield f"  {'':36}{'median':>12}{'best':>12}{'spread':>9}{'MB/s':>9}{'kstore is':>12}"
        ours = next((one for one in contestants if one.contestant == "kstore"), None)
        for one in sorted(contestants, key=Result.seconds):
            ratio = f"{one.seconds() / ours.seconds():.2f}x" if ours is not None and one is not ours else ""
            moved = f"{one.size_bytes / statistics.median(one.rounds) / 1e6:,.0f}" if one.size_bytes else ""
            yield (
                f"  {one.contestant:36}{shown(one, statistics.median):>12}{shown(one, min):>12}"
                f"{one.spread:>9.0%}{moved:>9}{ratio:>12}"
            )
        if ours is not None:
            yield from (f"  {verdict}" for verdict in verdicts(ours, contestants))


def amount(size: float) -> str:
    """Bytes of memory."""
    return f"{size:.1f} bytes" if size < KIB else f"{size / KIB:.1f} KiB"


def shown(one: Result, of: Callable[[Iterable[float]], float]) -> str:
    """A result in its question's unit."""
    each = one.seconds(of)
    if one.question.unit == "bytes":
        return f"{one.size_bytes / of(one.rounds) / 1e9:.2f} GB/s"
    if one.question.unit == "memory":
        return amount(each)
    if one.question.unit == "share":
        return f"{each:.2%}"
    if one.question.unit == "count":
        return f"{each:,.0f}"
    if one.question.unit == "rate":
        return f"{1 / each / 1e6:.2f} M/s" if 1 / each >= 1e5 else f"{1 / each:,.0f} /s"
    for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if each >= size:
            return f"{each / size:.2f} {name}"
    return f"{each * 1e9:.0f} ns"


class Verdict(NamedTuple):
    """Whether kstore kept one of its question's limits."""

    asked: str
    is_met: bool
    seconds: float
    """Seconds an operation that would just have met it."""

    def __str__(self) -> str:
        return f"{'met' if self.is_met else 'MISSED'}: {self.asked}"


def verdicts(ours: Result, contestants: list[Result]) -> Iterator[Verdict]:
    """Whether kstore kept the question's limits, one after the other."""
    limit, unit = ours.question.limit, ours.question.unit
    if limit is not None and unit == "time":
        text = (
            f"{limit * 1e9:g} ns" if limit < 1e-6 else f"{limit * 1e6:g} µs" if limit < 1e-3 else f"{limit * 1e3:g} ms"
        )
        yield Verdict(f"at most {text}", ours.seconds() <= limit, limit)
    elif limit is not None and unit in ("memory", "share", "count"):
        text = amount(limit) if unit == "memory" else f"{limit:.2%}" if unit == "share" else f"{limit:,.0f}"
        yield Verdict(f"at most {text}", ours.seconds() <= limit, limit)
    elif limit is not None:
        wanted = (ours.size_bytes / ours.operations if unit == "bytes" else 1) / limit
        text = f"{limit / 1e9:g} GB/s" if unit == "bytes" else f"{limit / 1e6:g} M/s"
        yield Verdict(f"at least {text}", ours.seconds() <= wanted, wanted)
    for peer, ratio in ours.question.against:
        theirs = next((one for one in contestants if one.contestant == peer), None)
        if theirs is not None:
            got = theirs.seconds() / ours.seconds()
            yield Verdict(f"{got:.2f} times {peer}, at least {ratio:g}", got >= ratio, theirs.seconds() / ratio)
