"""Chunks that helpers read while the caller uses the one before: the same rows, whatever happens to the log."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore import Log, LogClosedError
from kstore.columns._column_reader import Reader
from kstore.columns._columns import Columns, memory_in_use

ROWS = 180_000  # some five chunks of 4 MiB
VALUE = b"%0100d"


@pytest.fixture(params=[None, "lz4", "gzip"])
def log(request: pytest.FixtureRequest, partition: Path) -> Iterator[Log]:
    with Log.open(partition, segment_bytes=1 << 30) as made:
        made.append_many((VALUE % number for number in range(ROWS)), compression=request.param)
        yield made


def first_of(chunks: Iterator[Columns]) -> list[bytes | None]:
    return next(chunks).values.to_pylist()


def rest_of(chunks: Iterator[Columns]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def wanted(start: int, end: int = ROWS) -> list[bytes]:
    return [VALUE % number for number in range(start, end)]


def wait_for_helpers() -> None:
    """Until no other thread of the process has run for a while, or for a minute."""
    rested, deadline = 0, time.monotonic() + 60
    while rested < 20 and time.monotonic() < deadline:
        states = {
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path("/proc/self/task").iterdir()
            if task.name != str(threading.get_native_id())
        }
        rested = rested + 1 if states <= {"S"} else 0
        os.sched_yield()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
def test_the_next_chunks_are_read_while_the_caller_uses_the_one_before(partition: Path) -> None:
    """What lies in the file behind the first chunk is gone by the time that the caller asks for it."""
    with Log.open(partition, segment_bytes=1 << 30) as log:
        log.append_many(VALUE % number for number in range(ROWS))
        chunks = log.iter_columns(threads=2)
        values = first_of(chunks)
        wait_for_helpers()
        path = Path(log.segments[0].path)
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(5 << 20)
            file.write(bytes(size - (5 << 20)))
        values += first_of(chunks) + first_of(chunks)
        assert values == wanted(0, len(values))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_chunks_read_ahead_are_all_rows_in_order(log: Log, threads: int) -> None:
    assert rest_of(log.iter_columns(threads=threads)) == wanted(0)


def test_an_iterator_that_is_dropped_amid_the_log_leaves_neither_memory_nor_work(log: Log) -> None:
    def some(count: int) -> None:
        chunks = log.iter_columns(threads=4)
        for _ in range(count):
            next(chunks)

    some(1)
    gc.collect()
    before = memory_in_use()[0]
    for count in (1, 2, 3, 4) * 4:
        some(count)
        assert memory_in_use()[0] == before


class Held:
    """Notes how much memory of columns is in use when nothing holds it any more."""

    def __init__(self, noted: list[int]) -> None:
        self.noted = noted

    def __del__(self) -> None:
        self.noted.append(memory_in_use()[0])


def test_a_reader_in_a_cycle_gives_up_its_file_after_its_helpers_have_ended(log: Log) -> None:
    """An exception that left a generator, kept by whoever caught it, is such a cycle."""
    noted: list[int] = []
    size = log.segments[0].size_bytes
    borders = log.batch_table()["position"].tolist()[::280]
    gc.collect()
    before = memory_in_use()[0]
    with open(log.segments[0].path, "rb") as file:
        reader = Reader(("value",), "binary", threads=4, in_chunks=True)
        reader.seek(0, ROWS)
        reader.open(file.fileno(), 0, None, held=Held(noted))
        for _ in range(2):
            reader.begin(ROWS, 4 << 20)
            reader.sample(size, size)
            if reader.chunk_spacing:
                reader.divide([border for border in borders if border >= reader.position])
            reader.read(size, size, size - reader.position)
            reader.finish()
        cycle: list[object] = [reader]
        cycle.append(cycle)
        assert memory_in_use()[0] > before
        del reader, cycle
        gc.collect()
    assert noted == [before]


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether the work is true in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def read_file(file: int, size: int, borders: list[int]) -> Iterator[Columns]:
    """The chunks of a file between these borders."""
    reader = Reader(("value",), "binary", threads=4, in_chunks=True)
    reader.seek(0, ROWS)
    reader.open(file, 0, None)
    while reader.position < size:
        reader.begin(ROWS, 4 << 20)
        reader.sample(size, size)
        if reader.chunk_spacing:
            reader.divide([border for border in borders if border >= reader.position])
        reader.read(size, size, size - reader.position)
        yield reader.finish()


def test_a_forked_child_goes_on_where_the_reader_was_and_so_does_its_parent(log: Log) -> None:
    table = log.batch_table()
    size = log.segments[0].size_bytes
    borders = [*table["position"][:: max(len(table) // 16, 1)].tolist(), size]
    with Path(log.segments[0].path).open("rb") as file:
        for taken in range(4):
            chunks = read_file(file.fileno(), size, borders)
            values = [value for _ in range(taken) for value in first_of(chunks)]
            assert in_a_child(lambda: values + rest_of(chunks) == wanted(0))  # noqa: B023
            assert values + rest_of(chunks) == wanted(0)


@pytest.mark.parametrize("taken", range(4))
def test_a_forked_child_drops_an_iterator_whose_helpers_stayed_behind(log: Log, taken: int) -> None:
    chunks = log.iter_columns(threads=4)
    values = [value for _ in range(taken) for value in first_of(chunks)]

    def child() -> bool:
        nonlocal chunks
        with pytest.raises(LogClosedError, match="before a fork"):
            next(chunks)
        del chunks
        with Log.open(log.path, mode="r") as here:
            return rest_of(here.iter_columns(threads=4)) == wanted(0)

    assert in_a_child(child)
    assert values + rest_of(chunks) == wanted(0)


def test_rows_that_were_read_ahead_are_forgotten_where_the_log_is_cut(log: Log) -> None:
    for number in range(4):
        chunks = log.iter_columns(threads=4)
        values = first_of(chunks)
        log.truncate_to(len(values) + 70_001)
        log.append_many([b"again %d" % number * 20] * (ROWS - log.log_end_offset))
        rows = [record.value for record in log.read()]
        assert rows[:-1] != wanted(0, len(rows) - 1)
        assert values + rest_of(chunks) == rows


def test_chunks_read_ahead_go_on_over_segments_and_an_iterator_may_outlive_its_log(partition: Path) -> None:
    with Log.open(partition, segment_bytes=8 << 20) as log:
        log.append_many(VALUE % number for number in range(ROWS))
        assert len(log.segments) > 2
        assert rest_of(log.iter_columns(threads=3)) == wanted(0)
        chunks = log.iter_columns(threads=3)
        values = first_of(chunks)
    with pytest.raises(LogClosedError):
        next(chunks)
    assert values == wanted(0, len(values))
