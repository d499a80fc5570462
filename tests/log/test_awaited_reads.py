"""Records and columns as tasks iterate over them: read piece by piece, followed, cancelled at every await."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import kstore
from kstore.base import loops
from kstore.disk import watches
from kstore.errors import CorruptRecordError, LogClosedError, OffsetOutOfRangeError
from kstore.log import async_source, async_stream, log_watch
from kstore.log.reading.followed_log import FollowedLog
from tests.support.cancelling import at_every_await, outcome

T = TypeVar("T")

SECONDS = 60


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition) as log:
        yield log


async def listed(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def fill(log: kstore.Log, count: int, size: int = 1000) -> None:
    log.append_many([b"%06d" % number + bytes(size) for number in range(count)], batch_bytes=10_000)


def waiting(log: kstore.Log) -> int:
    assert log._writer is not None
    return log._writer.appender.waiters


async def until_it_waits(log: kstore.Log, count: int = 1) -> None:
    while waiting(log) < count:
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_it_gives_what_a_plain_read_gives(log: kstore.Log, mode: str, partition: Path) -> None:
    fill(log, 2000)
    log.append(b"last", b"key", headers=[("h", b"x")])
    with kstore.Log.open(partition, "r") as reader:
        subject = log if mode == "a" else reader
        for offset, end in ((None, None), (0, 5), (1999, None), (2001, None), (700, 1400), (5, 5), (5, 3)):
            found = asyncio.run(listed(subject.aread(offset, end_offset=end)))
            assert found == list(subject.read(offset, end_offset=end))


def test_arguments_and_offsets_are_refused_at_once(log: kstore.Log) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        log.aread(1)
    with pytest.raises(ValueError, match="not both"):
        log.aread(0, start_timestamp=0)
    with pytest.raises(ValueError, match="isolation"):
        log.aread(isolation="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        log.aread(follow=True, timeout=-1)


def test_pieces_of_files_are_read_by_a_thread_and_the_loop_goes_on_meanwhile(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 2000)
    threads: list[int] = []
    reads = kstore.disk.fs.pread_into  # type: ignore[attr-defined]

    def read(*arguments: object) -> int:
        threads.append(threading.get_ident())
        found: int = reads(*arguments)
        return found

    monkeypatch.setattr(kstore.disk.fs, "pread_into", read)  # type: ignore[attr-defined]
    assert len(asyncio.run(listed(log.aread()))) == 2000
    assert len(threads) >= 2_000_000 // (256 << 10)
    assert threading.get_ident() not in threads


def test_the_other_tasks_get_their_turn_within_a_piece(log: kstore.Log) -> None:
    fill(log, 10_000, size=1)

    async def run() -> None:
        turns = 0
        seen = []

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for _ in log.aread():
            seen.append(turns)
        task.cancel()
        changes = [number for number in range(1, len(seen)) if seen[number] > seen[number - 1]]
        assert len(changes) >= 10_000 // async_stream.TURN_RECORDS - 1
        assert all(
            later - earlier <= async_stream.TURN_RECORDS + 1 for earlier, later in itertools.pairwise([0, *changes])
        )

    asyncio.run(run())


def test_an_error_ends_the_iteration(log: kstore.Log) -> None:
    fill(log, 100)
    path = Path(log.segments[0].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    async def run() -> None:
        records = log.aread()
        with pytest.raises(CorruptRecordError):
            await listed(records)
        with pytest.raises(StopAsyncIteration):
            await anext(records)

    asyncio.run(run())


# --- following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_follower_gets_what_comes_and_ends_after_the_timeout(log: kstore.Log, partition: Path, mode: str) -> None:
    async def run(subject: kstore.Log) -> list[bytes | None]:
        log.append(b"0")
        found = []
        records = subject.aread(0, follow=True, timeout=0.3)
        async for record in records:
            found.append(record.value)
            if len(found) < 20:
                log.append(b"%d" % len(found))
                if len(found) == 10:
                    log.roll()
        with pytest.raises(StopAsyncIteration):
            await anext(records)
        return found

    with kstore.Log.open(partition, "r") as reader:
        assert asyncio.run(run(log if mode == "a" else reader)) == [b"%d" % number for number in range(20)]
    assert waiting(log) == 0


def test_a_writer_in_another_thread_wakes_a_follower(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        values = []
        async for record in log.aread(follow=True):
            values.append(record.value)
            if record.value == b"last":
                break
        return values

    results: list[list[bytes | None]] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(run())))
    thread.start()
    for number in range(100):
        log.append(b"%d" % number)
        if number % 10 == 0:
            time.sleep(0.001)
    log.append(b"last")
    thread.join(SECONDS)
    assert results == [[*(b"%d" % number for number in range(100)), b"last"]]
    assert waiting(log) == 0


WRITER = """
import sys, time, kstore
with kstore.Log.open(sys.argv[1], segment_bytes=2000) as log:
    for number in range(200):
        log.append(b"%d" % number)
        if number % 20 == 0:
            time.sleep(0.001)
"""


def test_a_follower_gets_what_another_process_appends_over_its_rolls(partition: Path) -> None:
    kstore.Log.open(partition).close()

    async def run(reader: kstore.Log) -> list[bytes | None]:
        return [record.value async for record in reader.aread(0, follow=True, end_offset=200)]

    with kstore.Log.open(partition, "r") as reader:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, partition])
        try:
            found = asyncio.run(run(reader))
        finally:
            assert writer.wait(SECONDS) == 0
    assert found == [b"%d" % number for number in range(200)]


def test_followers_in_several_loops_get_the_same(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        async def follow() -> list[bytes | None]:
            return [record.value async for record in log.aread(0, follow=True, end_offset=50)]

        first, second = await asyncio.gather(follow(), follow())
        assert first == second
        return first

    results: list[list[bytes | None]] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(run()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(50):
        log.append(b"%d" % number)
    for thread in threads:
        thread.join(SECONDS)
    assert results == [[b"%d" % number for number in range(50)]] * 3


def test_a_follower_with_an_end_offset_ends_there(log: kstore.Log) -> None:
    async def run() -> None:
        task = asyncio.create_task(listed(log.aread(0, follow=True, end_offset=5)))
        await until_it_waits(log)
        log.append_many([b"x"] * 3)
        await asyncio.sleep(0)
        log.append_many([b"x"] * 4)
        assert [record.offset for record in await asyncio.wait_for(task, SECONDS)] == [0, 1, 2, 3, 4]
        assert await listed(log.aread(0, follow=True, end_offset=5)) == list(log.read(0, end_offset=5))
        assert await listed(log.aread(2, follow=True, end_offset=2)) == []

    asyncio.run(run())


def test_a_follower_of_committed_records_waits_for_the_end_of_the_transaction(log: kstore.Log) -> None:
    async def run() -> None:
        records = log.aread(follow=True, isolation="read_committed", end_offset=2)
        task = asyncio.create_task(listed(records))
        log.append_many([b"0", b"1"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        await until_it_waits(log)
        assert not task.done()
        log.append_marker(1, 0, commit=True)
        assert [record.value for record in await asyncio.wait_for(task, SECONDS)] == [b"0", b"1"]

    asyncio.run(run())


def test_a_durable_follower_is_woken_by_a_sync(log: kstore.Log) -> None:
    async def run() -> None:
        records = log.aread(follow=True, durable=True)
        task = asyncio.ensure_future(anext(records))
        await until_it_waits(log)
        await log.aappend(b"x")
        await asyncio.sleep(0.01)
        assert not task.done()
        await log.aflush()
        assert (await asyncio.wait_for(task, SECONDS)).value == b"x"

    asyncio.run(run())


def test_a_follower_is_told_of_records_that_are_cut(log: kstore.Log) -> None:
    async def run() -> None:
        for _ in range(10):
            log.append(b"x")
        records = log.aread(follow=True)
        for _ in range(10):
            await anext(records)
        log.truncate_to(5)
        with pytest.raises(OffsetOutOfRangeError):
            await anext(records)
        records = log.aread(follow=True)
        await anext(records)
        log.delete_records(3)
        with pytest.raises(OffsetOutOfRangeError):
            await anext(records)
        records = log.aread(0, follow=True, on_lag="start")
        assert (await anext(records)).offset == 3

    asyncio.run(run())


def test_a_follower_of_a_log_that_is_closed_is_told(log: kstore.Log, partition: Path) -> None:
    async def run() -> None:
        with kstore.Log.open(partition, "r") as reader:
            tasks = [asyncio.ensure_future(anext(subject.aread(follow=True))) for subject in (log, reader)]
            await until_it_waits(log)
        log.close()
        for task in tasks:
            with pytest.raises(LogClosedError):
                await asyncio.wait_for(task, SECONDS)

    asyncio.run(run())


def test_a_loop_that_is_closed_while_a_follower_waits_does_not_disturb_the_writer(log: kstore.Log) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(listed(log.aread(follow=True)))
    loop.run_until_complete(until_it_waits(log))
    loop.close()
    log.append(b"0")
    thread = threading.Thread(target=lambda: log.append(b"1"))
    thread.start()
    thread.join()
    assert log.log_end_offset == 2
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was given up on purpose
    del task
    gc.collect()
    assert waiting(log) == 0
    log.append(b"2")


def test_a_waiting_follower_takes_back_its_call_in_a_collection_during_an_append(log: kstore.Log) -> None:
    """As a collection may come at any moment, also while the writer has the lock of the waiting calls."""
    assert log._writer is not None
    waiters = log._writer.waiters
    rung: list[int] = []

    def ring() -> None:
        rung.append(1)

    waiters.watch(ring)
    with waiters._lock:
        waiters.unwatch(ring)
    log.append(b"x")
    assert (rung, waiting(log)) == ([], 0)


def test_a_follower_that_waits_is_not_looked_at(log: kstore.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    original = FollowedLog.has_news

    def counted(followed: FollowedLog) -> bool:
        nonlocal looks
        looks += 1
        return original(followed)

    monkeypatch.setattr(FollowedLog, "has_news", counted)
    assert asyncio.run(listed(log.aread(follow=True, timeout=0.25))) == []
    assert looks <= 6


def test_pauses_between_looks_from_outside_grow_and_follow_what_a_look_costs(
    log: kstore.Log, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    now = 100.0
    original = FollowedLog.has_news

    async def wait(bell: loops.Bell, seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    def costly(followed: FollowedLog) -> bool:
        nonlocal now
        now += 0.001 if len(pauses) > 40 else 0
        return original(followed)

    monkeypatch.setattr(loops.Bell, "wait", wait)
    monkeypatch.setattr(FollowedLog, "has_news", costly)
    monkeypatch.setattr(watches, "_take", lambda directories: None)
    monkeypatch.setattr(log_watch, "monotonic", lambda: now)
    monkeypatch.setattr(async_stream, "monotonic", lambda: now)
    monkeypatch.setattr(async_source, "monotonic", lambda: now)
    with kstore.Log.open(partition, "r") as reader:
        assert asyncio.run(listed(reader.aread(follow=True, timeout=100.0))) == []
    assert pauses[:3] == pytest.approx([log_watch.FIRST_PAUSE * log_watch.GROWTH**number for number in range(3)])
    assert pauses[39] == log_watch.LONGEST_PAUSE
    assert pauses[-2] == pytest.approx(0.999)


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("follow", [False, True])
def test_an_iteration_that_is_cancelled_at_any_await_loses_no_record(
    log: kstore.Log, partition: Path, mode: str, follow: bool
) -> None:
    fill(log, 600)
    end = log.log_end_offset
    expected = [record.value for record in log.read()]

    async def scenario(number: int, later: bool) -> bool:
        with kstore.Log.open(partition, "r") as reader:
            subject = log if mode == "a" else reader
            records = subject.aread(follow=follow, end_offset=end if follow else None)
            found: list[bytes | None] = []

            async def collect() -> None:
                async for record in records:
                    found.append(record.value)

            cancelled = isinstance(await outcome(number, collect(), later=later), asyncio.CancelledError)
            await collect()
            assert found == expected
            assert waiting(log) == 0
        return cancelled

    assert at_every_await(scenario) >= 3


def test_a_wait_that_is_cancelled_at_any_await_loses_no_record(log: kstore.Log) -> None:
    async def scenario(number: int, later: bool) -> bool:
        records = log.aread(log.log_end_offset, follow=True)
        found: list[bytes | None] = []

        async def collect() -> None:
            while len(found) < 3:
                found.append((await anext(records)).value)

        async def produce() -> None:
            for number in range(3):
                while len(found) < number or not waiting(log):
                    await asyncio.sleep(0.0005)
                await log.aappend(b"%d" % number)

        producing = asyncio.create_task(produce())
        cancelled = isinstance(await outcome(number, collect(), later=later), asyncio.CancelledError)
        await asyncio.wait_for(collect(), SECONDS)
        await producing
        assert found == [b"0", b"1", b"2"]
        assert waiting(log) == 0
        return cancelled

    assert at_every_await(scenario) >= 3


def test_the_record_that_a_cancelled_call_has_had_read_is_given_by_the_next_one(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 20)
    entered, go_on = threading.Event(), threading.Event()
    reads = kstore.disk.fs.pread_into  # type: ignore[attr-defined]

    def read(*arguments: object) -> int:
        entered.set()
        assert go_on.wait(SECONDS)
        found: int = reads(*arguments)
        return found

    monkeypatch.setattr(kstore.disk.fs, "pread_into", read)  # type: ignore[attr-defined]

    async def run() -> list[int]:
        records = log.aread()
        found = []
        while True:  # the first batch is read in another way
            task = asyncio.ensure_future(anext(records))
            while not (entered.is_set() or task.done()):
                await asyncio.sleep(0.001)
            if not task.done():
                break
            found.append(task.result().offset)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        go_on.set()
        return found + [record.offset async for record in records]

    assert asyncio.run(run()) == list(range(20))


def test_a_time_limit_on_one_record_does_not_end_the_iteration(log: kstore.Log) -> None:
    async def run() -> None:
        records = log.aread(follow=True)
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.005)
            log.append(b"x")
            assert (await anext(records)).offset == number
        assert isinstance(records, async_stream.Stream)
        await records.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(records)

    asyncio.run(run())


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_a_plain_iteration(log: kstore.Log) -> None:
    fill(log, 3000)
    plain = list(log.iter_columns(max_records=700))
    found = asyncio.run(listed(log.aread_columns(max_records=700)))
    assert [len(chunk) for chunk in found] == [len(chunk) for chunk in plain]
    assert np.array_equal(np.concatenate([chunk.offset for chunk in found]), np.arange(3000))


def test_columns_that_are_cancelled_at_any_await_lose_no_chunk(log: kstore.Log) -> None:
    fill(log, 500)

    async def scenario(number: int, later: bool) -> bool:
        chunks = log.aread_columns(max_records=100)
        found: list[int] = []

        async def collect() -> None:
            async for chunk in chunks:
                found.extend(chunk.offset.tolist())

        cancelled = isinstance(await outcome(number, collect(), later=later), asyncio.CancelledError)
        await collect()
        assert found == list(range(500))
        return cancelled

    assert at_every_await(scenario) >= 5


# --- other loops ------------------------------------------------------------------------------------------------------


async def use(log: kstore.Log) -> None:
    task = asyncio.ensure_future(anext(log.aread(log.log_end_offset, follow=True)))
    await until_it_waits(log)
    assert await log.aappend(b"x", sync=True) == (await task).offset
    assert [record.value async for record in log.aread()][-1] == b"x"


def test_it_works_with_uvloop(log: kstore.Log) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use(log))


def test_it_works_with_anyio_on_asyncio(log: kstore.Log) -> None:
    anyio = pytest.importorskip("anyio")

    async def run() -> None:
        await use(log)
        with anyio.move_on_after(0.01):
            await listed(log.aread(follow=True))
        assert waiting(log) == 0

    anyio.run(run, backend="asyncio")


def test_it_is_refused_under_trio_with_what_to_do(log: kstore.Log) -> None:
    anyio = pytest.importorskip("anyio")
    pytest.importorskip("trio")

    async def run() -> None:
        for call in (log.aappend(b"x"), log.aflush(), anext(log.aread())):
            with pytest.raises(RuntimeError, match=r"under trio call the plain ones in a thread"):
                await call  # type: ignore[misc]

    anyio.run(run, backend="trio")
    assert log.log_end_offset == 0


def test_kstore_does_not_import_asyncio() -> None:
    program = "import sys, kstore; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_error_of_a_read_that_nobody_awaits_is_not_reported() -> None:
    released = threading.Event()

    def failing() -> Iterator[kstore.Record]:
        released.wait(10)
        raise LogClosedError("closed")
        yield

    async def run() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        stream = async_stream.Stream([async_stream.InThread(failing())])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        pending = stream._pending
        assert pending is not None
        await stream.aclose()
        released.set()
        await asyncio.wait([pending])
        del pending, stream
        gc.collect()
        assert not reported

    asyncio.run(run())
