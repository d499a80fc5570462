"""Event loop helpers for asynchronous calls: wake-ups, work in a thread, yielding. Imported on first use.

No other module imports asyncio. Invariant: a loop is used only in its own thread, except for `call_soon_threadsafe`. A
closed loop is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from time import monotonic
from typing import TypeVar

from kstore.base import threads
from kstore.base.weak import weak_method

Loop = asyncio.AbstractEventLoop
Future = asyncio.Future
Cancelled = asyncio.CancelledError

T = TypeVar("T")

TURN_SECONDS = 0.0005  # how long a task may make calls without waiting before the loop's other tasks must run


def running() -> Loop:
    """Return the loop that runs in this thread; raise `RuntimeError` if there is none, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no asyncio event loop is running in this thread: kstore's asynchronous calls work under asyncio, uvloop, "
            "and anyio with its asyncio backend; under trio call the plain ones in a thread (trio.to_thread.run_sync)"
        ) from None


def in_thread(loop: Loop, work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread of the loop's default executor, or in this thread if none can be started."""
    task = threads.Task(work)
    try:
        return loop.run_in_executor(None, task.result)
    except RuntimeError as error:  # the executor may have queued the task, so one of its threads may run it
        threads.warn(error)
        future: Future[T] = loop.create_future()
        try:
            future.set_result(task.result())
        except Exception as failure:
            future.set_exception(failure)
        return future


async def kept(future: Future[T]) -> T:
    """Await a future; a cancellation of the caller does not cancel the future."""
    return await asyncio.shield(future)


async def finished(work: Callable[[], T]) -> T:
    """Run `work` in a thread and await its end; a cancellation of the caller is raised after that."""
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
    """Wakes one task of an event loop. Any thread may call `ring`; only the task may call the other methods."""

    __slots__ = ("__weakref__", "_future", "_has_rung", "_loop", "_thread")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._has_rung = False
        self._future: Future[None] | None = None

    def ring(self) -> None:
        """End the current wait, or the next one. Neither waits nor raises."""
        if self._has_rung:
            return
        self._has_rung = True
        if get_ident() == self._thread:
            self._wake()
        else:
            with suppress(RuntimeError):  # the loop is closed, so none of its tasks waits
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        future = self._future
        if future is not None and not future.done() and not self._loop.is_closed():
            future.set_result(None)

    def clear(self) -> None:
        """Forget earlier rings; the caller then checks its condition."""
        self._has_rung = False

    @contextmanager
    def rung_by(self, fd: int) -> Iterator[bool]:
        """Run a block in which the bell rings while a descriptor can be read; false if the loop cannot watch it."""
        if fd < 0:
            yield False
            return
        try:
            # The loop must not keep the bell alive, as in `log_watch`.
            self._loop.add_reader(fd, weak_method(self.ring))
        except (NotImplementedError, OSError):
            yield False
            return
        try:
            yield True
        finally:
            with suppress(RuntimeError, OSError):  # the loop is closed
                self._loop.remove_reader(fd)

    async def wait(self, seconds: float | None) -> None:
        """Wait for a ring since the last `clear`, at most `seconds`."""
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


async def pause(seconds: float) -> None:
    """Let the loop's other tasks run, for at least some seconds."""
    await asyncio.sleep(seconds)


async def give_way() -> None:
    """Let the loop's other ready tasks run first."""
    await asyncio.sleep(0)


class Turns:
    """Says when tasks that make many calls without waiting must let the loop's other tasks run."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = 0.0

    def is_over(self) -> bool:
        """Return whether `TURN_SECONDS` have passed since a task last gave way."""
        return monotonic() >= self._end

    async def give_way(self) -> None:
        """Let the loop's other ready tasks run first, and start a new turn."""
        running()
        self._end = monotonic() + TURN_SECONDS
        await give_way()
