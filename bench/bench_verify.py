"""How fast does `kstore verify` read? A warm log of a gibibyte in batches-16k, on one thread, beside read(2) of it.

Checked are batches, CRCs, offsets, the records of batches that are not compressed, every index entry, marks and
snapshots. Values of 100 bytes (values-100) and of 1 KiB (values-1k).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from common import GIB, KIB, MIB, VALUE, VALUE_1K, Question, measure, read_through, scaled, settle, timed_rows
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.tools.check.verify import verify

QUESTIONS = {
    name: Question(f"verify of a GiB, batches-16k, {name}, warm, one thread", "bytes", limit)
    for name, limit in (("values-1k", 3e9), ("values-100", 3e9))
}
VALUES = {"values-1k": VALUE_1K, "values-100": VALUE}


def check(path: Path) -> None:
    assert not verify([path], threads=1).findings


CONTESTANTS: dict[str, Callable[[Path], None]] = {"kstore": check, "read(2), 256 KiB at a time": read_through}


@pytest.fixture(scope="module", params=list(QUESTIONS))
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A closed log; the workload's name, and its path."""
    path = tmp_path_factory.mktemp("verify") / "bench-0"
    value = VALUES[request.param]
    with kstore.Log.open(path, segment_bytes=256 * MIB) as log:
        log.append_many(timed_rows(scaled(GIB // (len(value) + 10)), value), batch_bytes=16 * KIB)
    settle(path)
    return request.param, path


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_verify_a_gibibyte(benchmark: BenchmarkFixture, log: tuple[str, Path], contestant: str) -> None:
    name, path = log
    size = sum(file.stat().st_size for file in path.glob("*.log"))
    run = partial(CONTESTANTS[contestant], path)
    measure(benchmark, QUESTIONS[name], contestant, run, operations=1, size_bytes=size, rounds=7)
