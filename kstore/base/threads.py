"""Threads that may fail to start, waits that an interrupt cannot break, and a lock that a fork makes anew.

A container may limit its processes, and threads count. No call fails for that: the calling thread does the work itself,
and one warning says so. The hardest rule: each work is done once, by one thread or the other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

logger = logging.getLogger("kstore")

T = TypeVar("T")

_LOOK_S = 0.5  # seconds of one wait: an interrupt may come between a change and the ring that tells of it

_warned: list[str] = []


def start(thread: threading.Thread) -> bool:
    """Start a thread; False where the system refuses to start one."""
    try:
        thread.start()
    except RuntimeError as error:
        warn(error)
        return False
    return True


def warn(error: RuntimeError) -> None:
    """Log, once, that no thread could be started; not at the interpreter's end, where none can be."""
    if not _warned and threading.main_thread().is_alive():
        _warned.append(str(error))
        logger.warning("%s: background work is done by the threads that call", error)


class Bell:
    """Wakes the threads that wait for something, in place of `threading.Event` and `threading.Condition`.

    An interrupt in the Python code of those two can leave their lock taken for ever, and a signal's handler that sets
    an event may find the lock taken by the code that it interrupts. There is no such lock here. Thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: list[SimpleQueue[None]] = []  # one of each waiting thread

    def ring(self) -> None:
        """Have each waiting thread look again; called after a change of what they wait for."""
        for woken in list(self._waiting):
            if woken.empty():  # else it has not looked yet since an earlier one
                woken.put(None)

    def wait(self, has_come: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `has_come()`, which is asked after each `ring`, and now and then; False when the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        woken: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.append(woken)  # before the first look: a change after it rings
            while not has_come():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                try:
                    woken.get(timeout=_LOOK_S if left is None else min(left, _LOOK_S))
                except Empty:
                    continue
            return True
        finally:
            if woken in self._waiting:  # else an interrupt came before it
                self._waiting.remove(woken)


class ForkLock:
    """A lock of the whole process, `with lock.mutex:`; a forked child has a new one, since its holder is not there."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.mutex = threading.Lock()


class Workers:
    """Up to `count` threads for many works; the calling thread does them where no thread can be started.

    A context manager, which waits for all works at its end. For use by one thread.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue a work for the threads; it is done now where no thread can be started."""
        return self.submit_task(work).future

    def submit_task(self, work: Callable[[], T]) -> Task[T]:
        """As `submit`; the calling thread may do the work itself by the task's `run`."""
        task = Task(work)
        try:
            self._pool.submit(task.run)
        except RuntimeError as error:  # the executor has queued it all the same, and a thread of it may take it
            warn(error)
            task.run()
        return task

    def map(self, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        """Yield the results in order; when the iteration ends early, works that have not begun are cancelled."""
        futures = [self.submit(partial(work, *arguments)) for arguments in zip(*items, strict=True)]
        futures.reverse()

        def results() -> Iterator[T]:
            try:
                while futures:
                    yield futures.pop().result()
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, *, cancel: bool = False) -> None:
        """Wait for all works, with `cancel` only for those that have begun; the others are cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=cancel)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Task(Generic[T]):
    """One work, done by the first thread that takes it; `future` has its result."""

    __slots__ = ("_work", "future")

    def __init__(self, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._work: list[Callable[[], T]] = [work]  # `pop` is atomic: one thread gets it

    def run(self) -> None:
        """Do the work, unless another thread does it."""
        try:
            work: Any = self._work.pop()
        except IndexError:
            return
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            self.future.set_exception(error)
            del self  # the error's traceback holds this frame, and with it the future that holds the error
        else:
            self.future.set_result(result)

    def result(self) -> T:
        """Do the work, unless another thread does it, and return its result."""
        self.run()
        return self.future.result()
