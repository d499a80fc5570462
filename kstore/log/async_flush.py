"""Group commit for tasks: all tasks of an event loop that wait for the disk at the same time share one sync.

If several loops wait for one log, the group commit of threads (`log.writing._sync_turn`) combines their syncs.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

from kstore.base import loops
from kstore.log.writing.writer import Writer


async def do_due_work(writer: Writer) -> None:
    """Do the due work, such as syncs and delayed unlinks, in a thread; otherwise the next append would do it first."""
    if writer.appender.now() >= writer.appender.due_ms:
        await loops.in_thread(loops.running(), writer.housekeeping.before_append)


class Flushers:
    """The flushers of one log or store, one for each event loop. Thread-safe."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._by_loop: dict[loops.Loop, _Flusher] = {}

    async def flushed(self) -> None:
        """Return when everything appended before the call is on the disk; raise what `flush` raises.

        If the call is cancelled, it stops waiting; the sync continues for the other tasks.
        """
        loop = loops.running()
        flusher = self._by_loop.get(loop)
        if flusher is None:
            for other in list(self._by_loop):
                if other.is_closed():
                    self._by_loop.pop(other, None)
            flusher = self._by_loop[loop] = _Flusher(self._flush, loop)
        await flusher.next_sync()


class _Flusher:
    """The tasks of one event loop that wait for a sync. One sync is under way at a time."""

    def __init__(self, flush: Callable[[], None], loop: loops.Loop) -> None:
        self._flush = flush
        self._loop = loop
        self._waiting: list[loops.Future[None]] = []
        self._is_busy = False  # a sync is under way or scheduled

    def next_sync(self) -> loops.Future[None]:
        """Return a future for the end of the next sync that starts."""
        future: loops.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)  # runs after the tasks that are ready to append now
        return future

    def _begin(self) -> None:
        served, self._waiting = [future for future in self._waiting if not future.done()], []
        if served:
            sync = loops.in_thread(self._loop, self._flush)
            sync.add_done_callback(partial(self._end, served))
        else:
            self._is_busy = False

    def _end(self, served: list[loops.Future[None]], sync: loops.Future[None]) -> None:
        error = None if sync.cancelled() else sync.exception()
        for future in served:
            if future.done():  # its task was cancelled
                continue
            if sync.cancelled():
                future.cancel()
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(copy(error))  # each task adds its own traceback
        if self._waiting:
            self._loop.call_soon(self._begin)  # runs after the tasks that this sync wakes
        else:
            self._is_busy = False
