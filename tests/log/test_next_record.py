"""`anext` of a stream: an awaitable that is used once, as a coroutine is, and takes its record when it is awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.log.async_stream import Stream


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition) as log:
        log.append_many([b"0", b"1", b"2", b"3"])
        yield log


async def started(log: kstore.Log) -> Stream[kstore.Record]:
    """A stream whose first record was read by a thread: the others are in memory."""
    records = log.aread()
    assert (await anext(records)).value == b"0"
    return records


def test_it_is_a_coroutine_to_asyncio(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        records = await started(log)
        call = records.__anext__()
        assert asyncio.iscoroutine(call)
        assert inspect.isawaitable(call)
        found = await asyncio.create_task(call)
        return [found.value, (await asyncio.wait_for(anext(records), 60)).value]

    assert asyncio.run(run()) == [b"1", b"2"]
    assert asyncio.run(log.aread().__anext__()).value == b"0"


def test_a_call_that_is_not_awaited_takes_no_record(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        records = await started(log)
        dropped = records.__anext__()
        closed = records.__anext__()
        closed.close()
        cancelled = asyncio.create_task(records.__anext__())
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        assert cancelled.cancelled()
        assert dropped is not closed
        return [record.value async for record in records]

    assert asyncio.run(run()) == [b"1", b"2", b"3"]


def test_calls_get_their_records_in_the_order_in_which_they_are_awaited(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        records = await started(log)
        first, second = records.__anext__(), records.__anext__()
        return [(await second).value, (await first).value]

    assert asyncio.run(run()) == [b"1", b"2"]


@pytest.mark.parametrize("end", ["awaited", "closed", "thrown"])
def test_a_call_is_awaited_once(log: kstore.Log, end: str) -> None:
    def over(call: Coroutine[Any, Any, kstore.Record]) -> None:
        if end == "closed":
            call.close()
        else:
            with pytest.raises(ZeroDivisionError):
                call.throw(ZeroDivisionError())

    async def run() -> list[bytes | None]:
        records = await started(log)
        call = records.__anext__()
        if end == "awaited":
            assert (await call).value == b"1"
        else:
            over(call)
        with pytest.raises(RuntimeError, match="awaited before"):
            await call
        with pytest.raises(RuntimeError, match="awaited before"):
            call.send(None)
        return [record.value async for record in records]

    assert asyncio.run(run()) == ([b"2", b"3"] if end == "awaited" else [b"1", b"2", b"3"])


def test_a_call_cancelled_while_a_thread_reads_leaves_the_record(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        records = log.aread()
        call = records.__anext__()
        call.send(None)
        with pytest.raises(asyncio.CancelledError):
            call.throw(asyncio.CancelledError())
        return [record.value async for record in records]

    assert asyncio.run(run()) == [b"0", b"1", b"2", b"3"]


def test_a_call_of_a_closed_stream_ends_the_iteration(log: kstore.Log) -> None:
    async def run() -> None:
        records = await started(log)
        assert (await anext(records)).value == b"1"
        await records.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(records)

    asyncio.run(run())


def test_send_and_next_end_with_the_record(log: kstore.Log) -> None:
    async def run() -> list[bytes | None]:
        records = await started(log)
        found = []
        for step in (lambda call: call.send(None), lambda call: next(call.__await__())):
            with pytest.raises(StopIteration) as end:
                step(records.__anext__())
            found.append(end.value.value.value)
        return found

    assert asyncio.run(run()) == [b"1", b"2"]
