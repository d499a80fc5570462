"""One writer, many readers, in other processes and in its threads, while the log rolls, shrinks and starts anew.

What each reader checks is in load.py. Following costs no core: the CPU time of a wait is measured, not its length.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import kstore
from kstore.files.log_file import LogFile
from tests.conftest import SEED
from tests.support import load

SUPPORT = Path(__file__).parents[1] / "support"


class Crowd:
    """Processes that run load.py; the end of the test is the end of them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(SUPPORT / "load.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(started)
        return started

    def end(self) -> None:
        for started in self.processes:
            started.kill()
            started.communicate()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    found = Crowd()
    yield found
    found.end()


def report_of(started: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    said, complaint = started.communicate(timeout=seconds)
    assert started.returncode == 0, f"{started.args} ended with {started.returncode}: {complaint}"
    found: dict[str, Any] = json.loads(said)
    return found


def wait_for(path: Path, writer: subprocess.Popen[str]) -> None:
    while not path.exists():
        if writer.poll() is not None:
            pytest.fail(f"the writer ended with {writer.returncode}: {writer.communicate()[1]}")
        time.sleep(0.01)


def test_readers_in_other_processes_see_whole_records_without_gaps(
    partition: Path, crowd: Crowd, budget: Callable[[float], float]
) -> None:
    seconds = min(budget(20), 60)
    writer = crowd.start("write", partition, seconds, SEED, 0)
    wait_for(partition.with_suffix(".ready"), writer)
    readers = [crowd.start(kind, partition, SEED) for kind in load.KINDS]
    done = report_of(writer, seconds + 120)
    assert done["append_many"]
    for reader in readers:
        assert report_of(reader, 120)["records"] > 0


def test_readers_in_the_writers_threads_see_whole_records_without_gaps(
    partition: Path, crowd: Crowd, budget: Callable[[float], float]
) -> None:
    seconds = min(budget(8), 60)
    done = report_of(crowd.start("write", partition, seconds, SEED, 1), seconds + 120)
    assert {thread["kind"] for thread in done["threads"]} == set(load.KINDS)


# Following.


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("mode", ["a", "r"])
def test_waiting_for_records_burns_no_core(partition: Path, mode: Literal["a", "r"]) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        with kstore.Log.open(partition, mode="r") as reader:
            records = (log if mode == "a" else reader).read(follow=True, timeout=2)
            assert next(records).offset == 0
            before = cpu_seconds()
            assert next(records, None) is None
            assert cpu_seconds() - before < 0.4


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_follower_is_given_what_comes_while_it_waits(partition: Path, mode: Literal["a", "r"]) -> None:
    with kstore.Log.open(partition, segment_bytes=1000) as log, kstore.Log.open(partition, mode="r") as reader:
        follower = (log if mode == "a" else reader).read(follow=True, timeout=60)
        seen: list[int] = []
        progress = threading.Semaphore(0)

        def follow() -> None:
            for record in follower:
                seen.append(record.offset)
                progress.release()
                if record.offset == 99:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        for offset in range(100):
            log.append(b"x" * 50)
            if offset % 10 == 9:  # let it run dry, so that it waits
                for _ in range(10):
                    assert progress.acquire(timeout=60)
        thread.join(60)
        assert seen == list(range(100))


@pytest.mark.parametrize("mode", ["a", "r"])
def test_closing_the_log_ends_a_wait(partition: Path, mode: Literal["a", "r"]) -> None:
    with kstore.Log.open(partition) as writer:
        writer.append(b"x")
        log = writer if mode == "a" else kstore.Log.open(partition, mode="r")
        records = log.read(follow=True)
        next(records)
        ended: list[BaseException] = []

        def follow() -> None:
            try:
                next(records)
            except kstore.LogClosedError as error:
                ended.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        log.close()
        thread.join(60)
        assert len(ended) == 1


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_follower_whose_records_are_cut_while_it_waits_is_told(partition: Path, mode: Literal["a", "r"]) -> None:
    with kstore.Log.open(partition) as log, kstore.Log.open(partition, mode="r") as reader:
        for _ in range(10):
            log.append(b"old")
        records = (log if mode == "a" else reader).read(follow=True, timeout=60)
        for _ in range(10):
            next(records)
        told: list[kstore.OffsetOutOfRangeError] = []

        def follow() -> None:
            try:
                next(records)
            except kstore.OffsetOutOfRangeError as error:
                told.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        log.truncate_to(5)
        for _ in range(10):
            log.append(b"new")
        thread.join(60)
        assert [(error.log_start_offset, 5 <= error.log_end_offset <= 15) for error in told] == [(0, True)]


def test_a_reader_of_a_file_that_was_cut_to_its_position_ends_in_bounded_time(partition: Path) -> None:
    """A file that has shrunk below what was announced gave a reader no bytes, for ever."""
    with kstore.Log.open(partition) as log:
        for _ in range(3):
            log.append(b"x" * 50)
    path = partition / "00000000000000000000.log"
    file = LogFile(str(path), write=True)
    size = path.stat().st_size
    for left in (size - 1, size // 3, 5, 0):
        os.truncate(path, left)
        with pytest.raises(kstore.CorruptRecordError, match=r"are there|declares a size of 0"):
            list(file.pieces(0, size))
    file.close()


def test_a_read_goes_on_or_ends_when_the_log_starts_anew_under_it(partition: Path) -> None:
    """SEMANTICS 11.8: every record that was given is gone; marks never cross."""
    with kstore.Log.open(partition, segment_bytes=300) as log, kstore.Log.open(partition, mode="r") as reader:
        for _ in range(20):
            log.append(b"x" * 50)
        readers = [log.read(), reader.read()]
        for records in readers:
            next(records)
        log.truncate_fully_and_start_at(7)
        assert (reader.log_start_offset, reader.log_end_offset) == (7, 7)
        for records in readers:
            with pytest.raises(kstore.OffsetOutOfRangeError, match="starts at 7 and ends at 7"):
                for _ in records:
                    pass
        assert list(reader.read()) == []
        assert log.append(b"y") == 7
        assert [record.offset for record in reader.read()] == [7]


@pytest.mark.parametrize("cut", [1, 5, 9, 13])
def test_a_reader_that_knew_other_segments_of_the_same_names_reads_the_new_ones(partition: Path, cut: int) -> None:
    """A truncation and the same appends again make files of the same names, sizes and bases, with other bytes."""
    with kstore.Log.open(partition, segment_bytes=300) as log, kstore.Log.open(partition, mode="r") as reader:
        for _ in range(20):
            log.append(b"a" * 50)
        assert len(list(reader.read())) == 20  # it has looked into every file
        reader.offset_for_timestamp(0)
        log.truncate_to(cut)
        for _ in range(20 - cut):
            log.append(b"b" * 50)
        assert [record.value[:1] for record in reader.read()] == [b"a"] * cut + [b"b"] * (20 - cut)


def test_an_iterator_between_segments_notices_that_they_were_written_anew(partition: Path) -> None:
    """The last batch that was given must stand when bytes of the next file are handed out."""
    with kstore.Log.open(partition, segment_bytes=300) as log, kstore.Log.open(partition, mode="r") as reader:
        for _ in range(20):
            log.append(b"a" * 50)
        records = reader.read()
        given = [next(records) for _ in range(2)]
        log.truncate_to(1)
        for _ in range(19):
            log.append(b"b" * 50)
        with pytest.raises(kstore.OffsetOutOfRangeError):
            given.extend(records)
        assert {record.value[:1] for record in given} == {b"a"}
