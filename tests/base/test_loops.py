"""What asynchronous calls need of an event loop: wake-ups from any thread, work in threads, turns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kstore.base import loops, threads

SECONDS = 60


def test_a_ring_ends_the_wait_from_any_thread_and_before_it_began() -> None:
    async def run() -> None:
        bell = loops.Bell(loops.running())
        bell.ring()
        await asyncio.wait_for(bell.wait(None), SECONDS)
        await asyncio.wait_for(bell.wait(None), SECONDS)  # it has not been cleared
        for ring in (bell.ring, lambda: threading.Thread(target=bell.ring).start()):
            bell.clear()
            task = asyncio.create_task(bell.wait(None))
            await asyncio.sleep(0)
            assert not task.done()
            ring()
            bell.ring()
            await asyncio.wait_for(task, SECONDS)

    asyncio.run(run())


def test_a_wait_ends_without_a_ring_when_the_time_is_up() -> None:
    async def run() -> None:
        bell = loops.Bell(loops.running())
        await asyncio.wait_for(bell.wait(0.001), SECONDS)
        await asyncio.wait_for(bell.wait(0.0), SECONDS)

    asyncio.run(run())


def test_a_ring_for_a_loop_that_was_closed_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    here, there = loops.Bell(loop), loops.Bell(loop)
    loop.close()
    here.ring()
    thread = threading.Thread(target=there.ring)
    thread.start()
    thread.join()


def test_work_is_done_by_a_thread_and_its_error_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        loop = loops.running()
        assert await loops.in_thread(loop, threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await loops.in_thread(loop, fail)

    asyncio.run(run())


def test_where_no_thread_can_be_started_the_work_is_done_in_the_thread_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_warned", [])
            patch.setattr(threading.Thread, "start", refuse)
            assert await loops.in_thread(loops.running(), threading.get_ident) == threading.get_ident()
            assert await loops.finished(threading.get_ident) == threading.get_ident()
            with pytest.raises(ZeroDivisionError):
                await loops.in_thread(loops.running(), fail)

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "can't start new thread: background work is done by the threads that call"
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_work_that_has_to_be_finished_ends_before_a_cancellation_is_raised(fails: bool) -> None:
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        assert go_on.wait(SECONDS)
        done.set()
        if fails:
            raise ZeroDivisionError

    async def run() -> None:
        task = asyncio.create_task(loops.finished(work))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert done.is_set()
        assert isinstance(raised.value.__cause__, ZeroDivisionError) == fails

    asyncio.run(run())


def test_a_turn_ends_and_giving_way_begins_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(loops, "monotonic", lambda: now)
    turns = loops.Turns()
    assert turns.is_over()
    asyncio.run(turns.give_way())
    assert not turns.is_over()
    now += loops.TURN_SECONDS
    assert turns.is_over()
