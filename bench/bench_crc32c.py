"""How fast is CRC-32C from Python, call included? One byte string of 150 bytes, 1 KiB, 16 KiB and 1 MiB."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import repeat

import crc32c
import google_crc32c
import pytest
from common import KIB, MIB, Question, measure
from pytest_benchmark.fixture import BenchmarkFixture

from kstore import _core

SIZES = {"150 bytes": 150, "1 KiB": KIB, "16 KiB": 16 * KIB, "1 MiB": MIB}
CONTESTANTS: dict[str, Callable[[bytes], int]] = {
    "kstore": _core.crc32c,
    "crc32c": crc32c.crc32c,
    "google-crc32c": google_crc32c.value,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_crc32c(benchmark: BenchmarkFixture, contestant: str, size: str) -> None:
    least = {150: 3.0, MIB: 1.0}.get(SIZES[size])
    against = tuple((peer, least) for peer in ("crc32c", "google-crc32c")) if least else ()
    question = Question(f"CRC-32C of {size}", "bytes", None, against)
    data = random.Random(1).randbytes(SIZES[size])
    calls = max(200, 20_000_000 // (SIZES[size] + 500))

    def run() -> None:  # map and deque call at C speed: a loop in Python would cost as much as the checksum
        deque(map(CONTESTANTS[contestant], repeat(data, calls)), maxlen=0)

    measure(benchmark, question, contestant, run, operations=calls, size_bytes=calls * len(data), rounds=9)
