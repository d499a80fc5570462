"""What asynchronous calls need of an event loop: wake-ups, work in a thread, turns. Imported on their first use.

The only file that imports asyncio. Invariant: a loop is touched in its own thread alone, but for
`call_soon_threadsafe`; a loop that has been closed is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from time import monotonic
from typing import TypeVar

from kstore.base import threads

Loop = asyncio.AbstractEventLoop
Future = asyncio.Future

T = TypeVar("T")

TURN_SECONDS = 0.0005  # how long one task may call again and again before the loop's other tasks get their turn


def running() -> Loop:
    """The loop that runs in this thread; `RuntimeError` without one, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no asyncio event loop is running in this thread: kstore's asynchronous calls work under asyncio, uvloop, "
            "and anyio with its asyncio backend; under trio call the plain ones in a thread (trio.to_thread.run_sync)"
        ) from None


def in_thread(loop: Loop, work: Callable[[], T]) -> Future[T]:
    """Have `work` done by a thread of the loop's default executor; by this thread where none can be started."""
    task = threads.Task(work)
    try:
        return loop.run_in_executor(None, task.result)
    except RuntimeError as error:  # the executor may have queued it all the same: then one of its threads may do it
        threads.warn(error)
        future: Future[T] = loop.create_future()
        try:
            future.set_result(task.result())
        except Exception as failure:
            future.set_exception(failure)
        return future


async def kept(future: Future[T]) -> T:
    """Await a future that a cancellation of the caller does not cancel."""
    return await asyncio.shield(future)


async def finished(work: Callable[[], T]) -> T:
    """Await `work` in a thread to its end; a cancellation of the caller is raised after that."""
    future = in_thread(running(), work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()


class Bell:
    """Wakes one task of an event loop. `ring` may be called in any thread, the rest by the task alone."""

    __slots__ = ("__weakref__", "_future", "_has_rung", "_loop", "_thread")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._has_rung = False
        self._future: Future[None] | None = None

    def ring(self) -> None:
        """End the wait that is under way, or the next one. Neither waits nor raises."""
        if self._has_rung:
            return
        self._has_rung = True
        if get_ident() == self._thread:
            self._wake()
        else:
            with suppress(RuntimeError):  # the loop has been closed: no task of it waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        future = self._future
        if future is not None and not future.done() and not self._loop.is_closed():
            future.set_result(None)

    def clear(self) -> None:
        """Forget the rings until now; the caller looks for itself after this."""
        self._has_rung = False

    async def wait(self, seconds: float | None) -> None:
        """Wait for a ring since the last `clear`, at most so many seconds."""
        if self._has_rung:
            return
        future = self._future = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


async def give_way() -> None:
    """Have the loop's other tasks that are ready run first."""
    await asyncio.sleep(0)


class Turns:
    """Has tasks that call again and again without waiting give way to the loop's other tasks."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = 0.0

    def is_over(self) -> bool:
        """Whether a turn has passed since a task last gave way."""
        return monotonic() >= self._end

    async def give_way(self) -> None:
        """Begin a new turn: the loop's other tasks that are ready run first."""
        running()
        self._end = monotonic() + TURN_SECONDS
        await give_way()
