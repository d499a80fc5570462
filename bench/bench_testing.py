"""What does a test with a log of its own cost? On a disk and in memory, with syncs and as the fixtures do it.

Workloads: a log with ten records, flushed; a store with ten records in four partitions, flushed; all crashes of one
synced append. Each is opened in a new directory, closed and verified; "in memory" is /dev/shm.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from common import VALUE, Question, measure
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.testing import Crashes, ManualClock, assert_sound, checked_log, checked_store

LOG = Question("a log of ten records, opened, flushed, closed and verified", "time")
STORE = Question("a store of four partitions and ten records, opened, flushed, closed and verified", "time")
CRASH = Question("every crash of one synced append to a log", "time")

ROUNDS = 20
MEMORY = Path("/dev/shm")


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], Path]]]:
    """The name of the place, and what makes a new directory there."""
    if request.param == "memory" and not MEMORY.is_dir():
        pytest.skip("no /dev/shm here")
    top = tmp_path if request.param == "disk" else Path(tempfile.mkdtemp(dir=MEMORY))
    numbers = itertools.count()

    def make() -> Path:
        made = top / str(next(numbers))
        made.mkdir()
        return made

    yield request.param, make
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(top)


def fill_log(log: kstore.Log) -> None:
    for _ in range(10):
        log.append(VALUE)
    log.flush()


def fill_store(store: kstore.Store) -> None:
    for number in range(10):
        store.append("orders", VALUE, key=b"%d" % number)
    store.flush()


@pytest.mark.parametrize("is_kit", [True, False])
def test_a_log(benchmark: BenchmarkFixture, place: tuple[str, Callable[[], Path]], is_kit: bool) -> None:
    name, make = place

    def run() -> None:
        directory = make()
        if is_kit:
            with checked_log(directory) as log:
                fill_log(log)
        else:
            with kstore.Log.open(directory / "test-0", clock=ManualClock()) as log:
                fill_log(log)
            assert_sound(directory)

    measure(benchmark, LOG, f"{name}, {'fixture' if is_kit else 'with syncs'}", run, operations=1, rounds=ROUNDS)


@pytest.mark.parametrize("is_kit", [True, False])
def test_a_store(benchmark: BenchmarkFixture, place: tuple[str, Callable[[], Path]], is_kit: bool) -> None:
    name, make = place

    def run() -> None:
        directory = make()
        if is_kit:
            with checked_store(directory, topics={"orders": 4}) as store:
                fill_store(store)
        else:
            with kstore.Store.open(directory, clock=ManualClock(), background=False) as store:
                store.create_topic("orders", 4)
                fill_store(store)
            assert_sound(directory)

    measure(benchmark, STORE, f"{name}, {'fixture' if is_kit else 'with syncs'}", run, operations=1, rounds=ROUNDS)


def test_crashes(benchmark: BenchmarkFixture, place: tuple[str, Callable[[], Path]]) -> None:
    name, make = place

    def run() -> None:
        for crash in Crashes(make(), ManualClock())():
            with crash.log() as log:
                log.append(VALUE, sync=True)
            with crash.reopened():
                pass

    measure(benchmark, CRASH, name, run, operations=1, rounds=5)
