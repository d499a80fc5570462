"""Threads that may fail to start, waits that an interrupt cannot break, and a lock that is new in a forked child.

A container may limit the number of threads. Then the calling thread does the work itself, and one warning is logged.
Invariant: each task is run once, by one thread or another.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

logger = logging.getLogger("kstore")

T = TypeVar("T")

_LOOK_S = 0.5  # the longest wait without a check: an interrupt may come between a change and the `ring` for it
_LINGER_S = 0.05  # seconds for which an idle thread waits for tasks

_warned: list[str] = []


def start(thread: threading.Thread) -> bool:
    """Start a thread; return False if the system refuses.

    An interrupt in `Thread.start` could leave a lock taken, and the new thread needs this lock to report that it runs.
    Only the main thread gets interrupts, so it lets another thread call `Thread.start`.
    """
    if threading.current_thread() is not threading.main_thread():
        error = _start(thread)
    else:
        answers: list[BaseException | None] = []
        answered = threading.Lock()
        answered.acquire()

        def act() -> None:
            answers.append(_start(thread))
            answered.release()

        try:
            _thread.start_new_thread(act, ())
        except RuntimeError as refused:
            answers.append(refused)
        while not answers:
            answered.acquire(timeout=_LOOK_S)
        error = answers[0]
    if error is None:
        return True
    if not isinstance(error, RuntimeError):
        raise error
    warn(error)
    return False


def _start(thread: threading.Thread) -> BaseException | None:
    try:
        thread.start()
    except BaseException as error:
        return error
    return None


def warn(error: RuntimeError) -> None:
    """Log once that no thread could be started, but not at interpreter exit, when no thread can be started."""
    if not _warned and threading.main_thread().is_alive():
        _warned.append(str(error))
        logger.warning("%s: background work is done by the threads that call", error)


class Bell:
    """Wakes the threads that wait for something, in place of `threading.Event` and `threading.Condition`.

    An interrupt in the Python code of those two can leave their lock taken forever, and a signal handler that sets an
    event may find the lock taken by the code that it interrupts. This class has no such lock. Thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: list[SimpleQueue[None]] = []  # one for each waiting thread

    def ring(self) -> None:
        """Make each waiting thread check its condition again; called after a change."""
        for woken in list(self._waiting):
            if woken.empty():  # otherwise it has not checked since an earlier ring
                woken.put(None)

    def wait(self, has_come: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `has_come()`, checked after each `ring` and every half second; return False after `timeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        woken: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.append(woken)  # before the first check, so that no later change is missed
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
            if woken in self._waiting:  # otherwise an interrupt came before the append
                self._waiting.remove(woken)


class ForkLock:
    """A lock of the process, used as `with lock.mutex:`. A forked child, which lacks the holder, gets a new one."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.mutex = threading.Lock()


class Workers:
    """Runs many tasks in up to `count` threads, or in the calling thread if no thread can be started.

    A context manager, which waits for all tasks at its end. It replaces executors of `concurrent.futures`: an interrupt
    in the Python code of an executor or a future can leave a lock taken, and a worker then waits for it forever. For
    use by one thread.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()  # None ends a thread
        self._waiting = threading.Lock()  # held by the one thread that waits for a task
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Queue a call for the threads, or do it now if no thread can be started; the caller may also run the task."""
        task = Task(work)
        self.queue(task)
        return task

    def queue(self, task: Task[Any]) -> None:
        """Do what `submit` does, for a task that the caller has made."""
        self._tasks.put(task)
        with self._lock:  # an idle thread holds this lock when it finds nothing queued and ends
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= self._count:
                return
            thread = threading.Thread(target=self._work, name=self._name)
            self._threads.append(thread)
        if not start(thread):
            task.run()

    def _work(self) -> None:
        """Run tasks in a thread, which ends when idle for a while, so that process exit does not wait for it."""
        while True:
            try:
                task = self._next_task()
            except Empty:
                with self._lock:
                    if self._tasks.empty():
                        self._threads = [thread for thread in self._threads if thread is not threading.current_thread()]
                        return
                continue
            if task is None:
                return
            task.run()
            del task  # it holds the result

    def _next_task(self) -> Task[Any] | None:
        """Return the next task; raises `Empty` after a while without one.

        One thread waits at a time. If two wait and one takes the task for which the other was woken, the `get` of the
        other computes a negative rest of its timeout when it is late, and then waits without end.
        """
        if not self._waiting.acquire(timeout=_LINGER_S):
            raise Empty
        try:
            return self._tasks.get(timeout=_LINGER_S)
        finally:
            self._waiting.release()

    def map(self, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        """Yield the results in order; if the iteration ends early, cancel the tasks that have not started.

        A single task is done by the calling thread, during the iteration: to hand it over would take longer.
        """
        tasks: list[Task[T]] = [Task(partial(work, *arguments)) for arguments in zip(*items, strict=True)]
        for task in tasks if len(tasks) > 1 else ():
            self.queue(task)
        tasks.reverse()

        def results() -> Iterator[T]:
            try:
                if len(tasks) == 1:
                    tasks[0].run()
                while tasks:
                    yield tasks.pop().wait()
            finally:
                for task in tasks:
                    task.cancel()

        return results()

    def shutdown(self, *, cancel: bool = False) -> None:
        """Wait for all tasks; with `cancel`, first cancel those that have not started."""
        while cancel:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task.cancel()
        threads = list(self._threads)
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread.ident is not None:  # otherwise an interrupt came before its start
                thread.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Task(Generic[T]):
    """One call, done by the first thread that takes it. Thread-safe."""

    __slots__ = ("_ended", "_error", "_result", "_takers", "_work", "done")

    done: bool
    """Whether the call has returned or raised, or was cancelled."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = False
        self._work: Callable[[], T] | None = work
        self._takers: list[object] = []  # the first one does the call
        self._result: T
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        """Do the call, unless another thread does it or it is cancelled."""
        self._take(self._work)

    def cancel(self) -> bool:
        """Cancel the call unless it has started; return whether it is cancelled."""
        self._take(_raise_cancelled)
        return isinstance(self._error, CancelledError)

    def _take(self, work: Any) -> None:
        taker = object()
        try:
            self._takers.append(taker)
            if self._takers[0] is taker:
                self._result = work()
        except BaseException as error:
            if self._takers[:1] != [taker]:  # an interrupt came before this thread took the call
                raise
            self._error = error
        finally:
            if self._takers[:1] == [taker]:
                self._work = None
                self.done = True
                self._ended.release()
            del self  # an error's traceback holds this frame, and with it the task that holds the error

    @property
    def error(self) -> BaseException | None:
        """The error that the call has raised; None if it has not ended."""
        return self._error

    def wait(self) -> T:
        while not self.done:
            if self._ended.acquire(timeout=_LOOK_S):
                self._ended.release()  # for other waiting threads
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # as above
        return self._result

    def result(self) -> T:
        """Do the call, unless another thread does it, and return its result."""
        self.run()
        return self.wait()


def _raise_cancelled() -> NoReturn:
    raise CancelledError
