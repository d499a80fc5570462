"""How long does opening take? After a crash, over one big segment and a thousand small ones; and after a clean close.

Workloads: one segment of 1 GiB in batches-16k; a thousand segments of four such batches each. "Unclean" means that the
recovery point in the parent's checkpoint file is 0, so that opening must scan everything.
"""

from __future__ import annotations

import os
from pathlib import Path
from timeit import repeat

import pytest
from common import GIB, KIB, Question, measure, read_through, report, scaled, settle, timed_rows, values
from limits import bounds
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

READ = "read(2), 256 KiB at a time"
RECOVERY = Question("recovery of an unclean segment of 1 GiB, batches of 16 KiB, warm", "bytes", 9e9, ((READ, 0.95),))
CLEAN = Question("opening a log of 1,000 segments, clean", "time", 0.025)
UNCLEAN = Question("opening a log of 1,000 segments, all of it to be recovered", "time", 0.3)
LAST = Question("opening a log of 1,000 segments, the last of them to be recovered", "time")


class Opener:
    """Opens one log again and again: `open` is timed, `reset` closes the log and puts the recovery point back."""

    def __init__(self, path: Path, recovery_point: int | None) -> None:
        self._path = path
        self._recovery_point = recovery_point
        self._log: kstore.Log | None = None

    def reset(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._recovery_point is not None:
            topic, partition = self._path.name.rsplit("-", 1)
            text = f"0\n1\n{topic} {partition} {self._recovery_point}\n"
            (self._path.parent / "recovery-point-offset-checkpoint").write_text(text)

    def open(self) -> None:
        self._log = kstore.Log.open(self._path)


def test_recover_a_gibibyte_beside_its_bound(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    path = tmp_path / "bench-0"
    with kstore.Log.open(path, segment_bytes=2 * GIB - 1) as log:
        log.append_many(timed_rows(scaled(9_700_000)), batch_bytes=16 * KIB)
    settle(path)
    size = sum(file.stat().st_size for file in path.glob("*.log"))
    opener = Opener(path, 0)
    measure(benchmark, RECOVERY, "kstore", opener.open, operations=1, size_bytes=size, setup=opener.reset)
    opener.reset()
    (segment,) = path.glob("*.log")
    with segment.open("rb") as file:
        bound = repeat(bounds.checked(file.fileno()), number=1, repeat=7)
    report(RECOVERY, "bound: reading and CRC", bound, operations=1, size_bytes=size)
    report(RECOVERY, READ, repeat(lambda: read_through(path), number=1, repeat=7), operations=1, size_bytes=size)


@pytest.fixture
def thousand(tmp_path: Path) -> tuple[Path, int]:
    """A log of a thousand segments, closed; its path and the base offset of the last."""
    path = tmp_path / "bench-0"
    with kstore.Log.open(path) as log:
        for number in range(1000):
            if number:
                log.roll()
            log.append_many(values(4 * 140), batch_bytes=16 * KIB)
        assert len(log.segments) == 1000
        last = log.segments[-1].base_offset
    settle(path)
    return path, last


@pytest.mark.parametrize("question", [CLEAN, UNCLEAN, LAST], ids=["clean", "unclean", "last"])
def test_open_a_thousand_segments(benchmark: BenchmarkFixture, thousand: tuple[Path, int], question: Question) -> None:
    path, last = thousand
    opener = Opener(path, {CLEAN: None, UNCLEAN: 0, LAST: last}[question])
    measure(benchmark, question, "kstore", opener.open, operations=1, setup=opener.reset, rounds=7)
    opener.reset()


def test_least_that_opening_can_cost(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The system's time to list the directory with the size of each `.log`: the least time of the clean case."""
    for number in range(1000):
        for suffix in ("log", "index", "timeindex", "snapshot"):
            (tmp_path / f"{number * 560:020d}.{suffix}").touch()

    def run() -> int:
        with os.scandir(tmp_path) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))

    measure(benchmark, CLEAN, "os.scandir and stat of each .log", run, operations=1, rounds=7)
