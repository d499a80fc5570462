"""Appends and flushes that tasks await: in the loop's thread, with one sync for all that wait for the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.base import loops
from kstore.disk import fs
from kstore.errors import LogClosedError, OffsetOutOfRangeError, StorageError, UnexpectedOffsetError
from kstore.log.writing.housekeeping import Housekeeping
from tests.support.cancelling import at_every_await, outcome
from tests.support.parking import values


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition) as log:
        yield log


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have synced a file."""
    threads: list[int] = []

    def sync(fd: int) -> None:
        threads.append(threading.get_ident())

    monkeypatch.setattr(fs, "fdatasync", sync)
    monkeypatch.setattr(fs, "fsync", sync)
    return threads


def test_an_append_gives_its_offset_and_takes_what_a_plain_one_takes(log: kstore.Log) -> None:
    async def run() -> None:
        assert await log.aappend(b"0") == 0
        assert await log.aappend(b"1", b"key", timestamp=7, headers=[("h", b"x")]) == 1
        assert await log.aappend(b"2", leader_epoch=3, expected_offset=2) == 2
        assert await log.aappend(b"3", sync=True) == 3
        with pytest.raises(UnexpectedOffsetError):
            await log.aappend(b"4", expected_offset=3)
        with pytest.raises(TypeError, match="encode"):
            await log.aappend("text")  # type: ignore[arg-type]

    asyncio.run(run())
    assert values(log) == [b"0", b"1", b"2", b"3"]
    record = next(log.read(1))
    assert (record.key, record.timestamp, record.headers) == (b"key", 7, (("h", b"x"),))


def test_an_append_is_made_in_the_thread_of_the_loop_and_starts_none(log: kstore.Log) -> None:
    async def run() -> set[threading.Thread]:
        for _ in range(100):
            await log.aappend(b"x")
        return set(threading.enumerate())

    before = set(threading.enumerate())
    assert asyncio.run(run()) <= before


def test_a_task_that_appends_all_the_time_gives_way_to_the_others(log: kstore.Log) -> None:
    async def run() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        while turns < 10:
            await log.aappend(b"x")
        task.cancel()
        return turns

    assert asyncio.run(run()) >= 10


def test_tasks_that_wait_for_the_disk_share_its_syncs_and_go_on_together(log: kstore.Log, syncs: list[int]) -> None:
    async def run() -> list[int]:
        before = len(syncs)
        offsets = await asyncio.gather(*(log.aappend(b"x", sync=True) for _ in range(1000)))
        assert len(syncs) - before <= 10  # some of files, once or twice, of directories, and of the leader epoch
        return offsets

    assert sorted(asyncio.run(run())) == list(range(1000))
    assert len(set(syncs) - {threading.get_ident()}) <= 2


def test_a_flush_begins_after_the_tasks_that_are_ready_to_append(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    original = Housekeeping.flush

    def flush(housekeeping: Housekeeping) -> None:
        nonlocal flushes
        flushes += 1
        original(housekeeping)

    async def run() -> None:
        monkeypatch.setattr(loops, "TURN_SECONDS", 1000.0)
        monkeypatch.setattr(Housekeeping, "flush", flush)
        await log.aappend(b"x", sync=True)
        for _ in range(3):
            await asyncio.gather(*(log.aappend(b"x", sync=True) for _ in range(100)))

    asyncio.run(run())
    assert flushes == 4


def test_what_is_appended_during_a_sync_is_served_by_the_next_one(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        entered.set()
        assert go_on.wait(60)

    monkeypatch.setattr(fs, "fdatasync", sync)

    async def run() -> None:
        first = asyncio.create_task(log.aappend(b"0", sync=True))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(log.aappend(b"1", sync=True))
        while log.log_end_offset < 2:
            await asyncio.sleep(0.001)
        assert not first.done()
        assert log.stats()["recovery_point"] == 0
        go_on.set()
        assert (await first, await second) == (0, 1)
        assert log.stats()["recovery_point"] == 2

    asyncio.run(run())


def test_a_flush_waits_for_everything_before_it(log: kstore.Log) -> None:
    async def run() -> None:
        log.append(b"x")
        await log.aflush()
        assert log.stats()["recovery_point"] == 1

    asyncio.run(run())


def test_each_task_gets_the_error_of_the_sync_that_it_waited_for(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise StorageError(errno.EIO, os.strerror(errno.EIO))

    async def run() -> list[object]:
        await log.aappend(b"x", sync=True)
        monkeypatch.setattr(fs, "fdatasync", fail)
        return await asyncio.gather(*(log.aappend(b"x", sync=True) for _ in range(3)), return_exceptions=True)

    errors = asyncio.run(run())
    assert [type(error) for error in errors] == [StorageError] * 3
    assert len({id(error) for error in errors}) == 3
    with pytest.raises(StorageError, match="refuses writes"):
        log.append(b"x")


def test_a_log_that_is_closed_while_tasks_wait_for_the_disk_ends_them(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[object]:
        tasks = [asyncio.create_task(log.aappend(b"x", sync=True)) for _ in range(3)]
        while log.log_end_offset < 3:
            await asyncio.sleep(0)
        log.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    for result in asyncio.run(run()):
        assert isinstance(result, LogClosedError | int)

    async def late() -> None:
        with pytest.raises(LogClosedError):
            await log.aappend(b"x")
        with pytest.raises(LogClosedError):
            await log.aflush()

    asyncio.run(late())


def test_a_loop_that_is_closed_while_a_sync_runs_leaves_the_log_as_it_is(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = fs.fdatasync

    def sync(fd: int) -> None:
        entered.set()
        assert go_on.wait(60)
        real(fd)

    monkeypatch.setattr(fs, "fdatasync", sync)
    loop = asyncio.new_event_loop()
    task = loop.create_task(log.aappend(b"0", sync=True))
    while not entered.is_set():
        loop.run_until_complete(asyncio.sleep(0.001))
    task.cancel()
    loop.run_until_complete(asyncio.wait((task,)))
    loop.close()
    go_on.set()

    async def run() -> int:
        return await log.aappend(b"1", sync=True)

    assert asyncio.run(run()) == 1
    assert log.stats()["recovery_point"] == 2


def test_several_loops_in_several_threads_append_and_sync_at_once(log: kstore.Log) -> None:
    offsets: list[int] = []

    async def run() -> None:
        offsets.extend(await asyncio.gather(*(log.aappend(b"x", sync=True) for _ in range(50))))

    threads = [threading.Thread(target=lambda: asyncio.run(run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(200))
    assert log.stats()["recovery_point"] == 200


def test_work_that_is_due_before_an_append_is_done_by_a_thread(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000_000
    with kstore.Log.open(partition, clock=lambda: now, flush_ms=1000) as log:
        threads: list[int] = []
        real = fs.fdatasync

        def sync(fd: int) -> None:
            threads.append(threading.get_ident())
            real(fd)

        monkeypatch.setattr(fs, "fdatasync", sync)

        async def run() -> None:
            nonlocal now
            await log.aappend(b"0")
            now += 5000
            assert await log.aappend(b"1") == 1

        asyncio.run(run())
        assert threads
        assert threading.get_ident() not in threads


def test_without_an_event_loop_a_call_says_what_it_needs(log: kstore.Log) -> None:
    for call in (log.aappend(b"x"), log.aflush(), anext(log.aread(0))):
        with pytest.raises(RuntimeError, match="asyncio, uvloop, and anyio"):
            call.send(None)  # type: ignore[union-attr]
    assert log.log_end_offset == 0


def test_a_log_that_is_open_for_reading_takes_no_append(log: kstore.Log, partition: Path) -> None:
    async def run(reader: kstore.Log) -> None:
        with pytest.raises(LogClosedError, match="mode='r'"):
            await reader.aappend(b"x")
        with pytest.raises(LogClosedError, match="mode='r'"):
            await reader.aflush()

    with kstore.Log.open(partition, "r") as reader:
        asyncio.run(run(reader))


def test_a_forked_child_is_told_that_the_log_is_closed(log: kstore.Log) -> None:
    async def append() -> None:
        await log.aappend(b"1", sync=True)

    async def run() -> None:
        await log.aappend(b"0", sync=True)

    asyncio.run(run())
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(append())
        except LogClosedError:
            os._exit(0)
        except BaseException:
            os._exit(2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(append())
    assert values(log) == [b"0", b"1"]


# --- cancellation -----------------------------------------------------------------------------------------------------

Call = Callable[[kstore.Log], "asyncio._CoroutineLike[object]"]
CALLS: dict[str, Call] = {
    "append": lambda log: log.aappend(b"x"),
    "with headers": lambda log: log.aappend(b"x", headers=[("h", b"x")]),
    "synced": lambda log: log.aappend(b"x", sync=True),
    "flush": lambda log: log.aflush(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cancelled_at_any_await_leaves_the_log_sound(tmp_path: Path, name: str) -> None:
    opened = 0

    async def scenario(number: int, later: bool) -> bool:
        nonlocal opened
        opened += 1
        with kstore.Log.open(tmp_path / f"t-{opened}") as log:
            await log.aappend(b"0")
            log._turns = None  # so that the call gives way first
            found = await outcome(number, CALLS[name](log), later=later)  # type: ignore[arg-type]
            cancelled = isinstance(found, asyncio.CancelledError)
            stored = log.log_end_offset - 1
            if cancelled and not later:
                assert stored == (name == "synced" and number > 1)
            assert stored <= (name != "flush")
            assert await log.aappend(b"1", sync=True) == 1 + stored
            assert values(log) == [b"0", *[b"x"] * stored, b"1"]
            assert log.stats()["recovery_point"] == log.log_end_offset
        return cancelled

    most = at_every_await(scenario)
    assert most == {"append": 1, "with headers": 1, "synced": 2, "flush": 1}[name]


def test_a_cancelled_task_does_not_take_the_sync_from_the_others(log: kstore.Log) -> None:
    async def run() -> None:
        tasks = [asyncio.create_task(log.aappend(b"x", sync=True)) for _ in range(10)]
        while log.log_end_offset < 10:
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False] * 5
        assert sorted(values(log)) == [b"x"] * 10

    asyncio.run(run())
    assert log.log_end_offset == 10


# --- counters ---------------------------------------------------------------------------------------------------------


def test_a_thousand_tasks_that_compare_and_append_lose_no_update_and_none_starves(
    tmp_path: Path, budget: Callable[[float], float]
) -> None:
    counters, tasks = 10, 1000

    async def count(log: kstore.Log) -> int:
        attempts = 0
        while True:
            attempts += 1
            end = log.log_end_offset
            try:
                last = int(next(log.read(end - 1)).value or b"")
            except OffsetOutOfRangeError:
                last = 0
            await asyncio.sleep(0)
            try:
                await log.aappend(b"%d" % (last + 1), expected_offset=end)
            except UnexpectedOffsetError:
                continue
            return attempts

    async def run(logs: list[kstore.Log]) -> list[int]:
        return await asyncio.gather(*(count(logs[number % counters]) for number in range(tasks)))

    logs = [kstore.Log.open(tmp_path / f"counter-{number}", segment_bytes=1 << 20) for number in range(counters)]
    try:
        attempts = asyncio.run(run(logs))
        assert len(attempts) == tasks
        for log in logs:
            assert values(log) == [b"%d" % (number + 1) for number in range(tasks // counters)]
    finally:
        for log in logs:
            log.close()
