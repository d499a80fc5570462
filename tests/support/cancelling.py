"""Coroutines that are cancelled at a chosen suspension: for tests of every await."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def cancelled_at(number: int, coroutine: Coroutine[Any, Any, T], *, later: bool = False) -> Generator[Any, Any, T]:
    """Await a coroutine in a task that is cancelled when the coroutine suspends for the `number`th time.

    With `later` the task is cancelled by the loop, after what was ready to run then.
    """
    task = asyncio.current_task()
    assert task is not None
    suspensions = 0
    try:
        awaited = coroutine.send(None)
        while True:
            suspensions += 1
            if suspensions == number:
                asyncio.get_running_loop().call_soon(task.cancel) if later else task.cancel()
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
    except StopIteration as end:
        result: T = end.value
        return result


async def outcome(number: int, coroutine: Coroutine[Any, Any, T], *, later: bool = False) -> T | asyncio.CancelledError:
    """Run a coroutine in a task of its own, cancelled at its `number`th suspension: its result, or its cancellation."""

    async def run() -> T:
        result: T = await cancelled_at(number, coroutine, later=later)
        if later:
            await asyncio.sleep(0)  # the cancellation may still be on its way
        return result

    task = asyncio.create_task(run())
    try:
        return await task
    except asyncio.CancelledError as error:
        return error


def at_every_await(scenario: Callable[[int, bool], Coroutine[Any, Any, bool]]) -> int:
    """Run `scenario(number, later)`, which says whether anything was cancelled, for each number until nothing was.

    Returns how many suspensions there were.
    """
    most = 0
    for later in (False, True):
        number = 1
        while asyncio.run(scenario(number, later)):
            number += 1
            assert number < 1000
        most = max(most, number - 1)
    return most
