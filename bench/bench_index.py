"""How long does a lookup in a full index of 10 MiB take, from Python? And the first one in a segment just opened?

Workload: random targets over all entries, the index in memory or mapped from a warm file. Entries are 1 to 83 offsets
apart, as records of any size make them; in bursts, 4 or 300, by thousands; and a second apart in the time index.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from common import KIB, MIB, START_MS, Question, measure
from pytest_benchmark.fixture import BenchmarkFixture

from kstore.files._index_search import OffsetEntries, TimeEntries
from kstore.files.index_file import OffsetIndex

BY_OFFSET = Question("offset lookup in a full index of 10 MiB", "time", 250e-9, (("bisect in pure Python", 2.0),))
BY_TIME = Question("timestamp lookup in a full time index of 10 MiB", "time")
FIRST = {
    size: Question(f"open a sealed index of {size} and look one offset up", "time")
    for size in ("16 KiB", "64 KiB", "2 MiB")
}
BASE_OFFSET = 1_000_000
STEP = 42
OFFSETS = 10 * MIB // 8
TIMES = 10 * MIB // 12


@pytest.fixture(scope="module")
def offset_index() -> bytes:
    draw = random.Random(11).randint
    return index_of(draw(1, 2 * STEP - 1) for _ in range(OFFSETS))


@pytest.fixture(scope="module")
def burst_index() -> bytes:
    return index_of(300 if number // 5000 % 7 == 0 else 4 for number in range(OFFSETS))


def index_of(gaps: Iterable[int]) -> bytes:
    """An offset index whose entries are so far apart."""
    offsets = itertools.accumulate(gaps)
    return b"".join(struct.pack(">ii", offset, number * 1600) for number, offset in enumerate(offsets, 1))


def end_of(index: bytes) -> int:
    """The offset of an index's last entry, from its base."""
    return int.from_bytes(index[-8:-4])


@pytest.fixture(scope="module")
def time_index() -> bytes:
    return b"".join(struct.pack(">qi", START_MS + number * 1000, number * STEP) for number in range(1, TIMES + 1))


def targets(count: int, first: int, last: int) -> list[int]:
    """`count` random numbers in [first, last), the same in every run."""
    return random.Random(7).choices(range(first, last), k=count)


def floors(index: bytes, wanted: list[int], base_offset: int = 0) -> list[int]:
    """The offsets that lookups have to find, by NumPy."""
    offsets = np.frombuffer(index, dtype=">i4")[::2].astype(np.int64) + base_offset
    found: list[int] = offsets[np.searchsorted(offsets, wanted, side="right") - 1].tolist()
    return found


def each(function: Callable[[int], Any], wanted: Iterable[int]) -> Callable[[], None]:
    """Call `function` for every target, from C: the loop costs about 5 ns a call."""

    def run() -> None:
        deque(map(function, wanted), maxlen=0)

    return run


def test_offset_lookup_kstore(benchmark: BenchmarkFixture, offset_index: bytes) -> None:
    entries = OffsetEntries(offset_index, BASE_OFFSET)
    wanted = targets(200_000, BASE_OFFSET, BASE_OFFSET + end_of(offset_index))
    assert [entries.lookup(target)[0] for target in wanted[:100]] == floors(offset_index, wanted[:100], BASE_OFFSET)
    measure(benchmark, BY_OFFSET, "kstore", each(entries.lookup, wanted), operations=len(wanted), rounds=9)


@pytest.mark.parametrize(("fixture", "name"), [("offset_index", ""), ("burst_index", ", entries in bursts")])
def test_offset_lookup_file(
    benchmark: BenchmarkFixture, fixture: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    content = request.getfixturevalue(fixture)
    (tmp_path / "00000000000001000000.index").write_bytes(content)
    index = OffsetIndex(tmp_path / "00000000000001000000.index", BASE_OFFSET, 10 * MIB)
    wanted = targets(200_000, BASE_OFFSET, BASE_OFFSET + end_of(content))
    run = each(index.lookup, wanted)
    measure(benchmark, BY_OFFSET, f"kstore, mapped file{name}", run, operations=len(wanted), rounds=9)


@pytest.mark.parametrize(("size", "length"), [("16 KiB", 16 * KIB), ("64 KiB", 64 * KIB), ("2 MiB", 2 * MIB)])
def test_first_lookup(benchmark: BenchmarkFixture, offset_index: bytes, tmp_path: Path, size: str, length: int) -> None:
    path = tmp_path / "00000000000001000000.index"
    path.write_bytes(offset_index[:length])

    def run() -> None:
        for _ in range(200):
            OffsetIndex(path, BASE_OFFSET, 10 * MIB).lookup(BASE_OFFSET + 1000)

    measure(benchmark, FIRST[size], "kstore", run, operations=200)


def test_offset_lookup_bisect(benchmark: BenchmarkFixture, offset_index: bytes) -> None:
    wanted = targets(20_000, 0, end_of(offset_index))
    lookup = peers.bisect_lookup(offset_index)
    assert [lookup(target)[0] for target in wanted[:100]] == floors(offset_index, wanted[:100])
    measure(benchmark, BY_OFFSET, "bisect in pure Python", each(lookup, wanted), operations=len(wanted))


def test_offset_lookup_numpy(benchmark: BenchmarkFixture, offset_index: bytes) -> None:
    column = np.frombuffer(offset_index, dtype=">i4")[::2]
    wanted = targets(50, 0, end_of(offset_index))
    run = each(lambda target: np.searchsorted(column, target, side="right"), wanted)
    measure(benchmark, BY_OFFSET, "numpy.searchsorted, which converts", run, operations=len(wanted))


def test_time_lookup_kstore(benchmark: BenchmarkFixture, time_index: bytes) -> None:
    entries = TimeEntries(time_index, BASE_OFFSET)
    wanted = targets(200_000, START_MS, START_MS + TIMES * 1000)
    assert entries.lookup(START_MS + 2001) == (START_MS + 2000, BASE_OFFSET + 2 * STEP)
    measure(benchmark, BY_TIME, "kstore", each(entries.lookup, wanted), operations=len(wanted), rounds=9)
