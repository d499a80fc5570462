"""Threads that may fail to start, waits that an interrupt cannot break, and a lock that a fork makes anew.

A container may limit its processes, and threads count. Then the calling thread does the work itself, and one warning
says so. Invariant: each work is done once, by one thread or the other.
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

_LOOK_S = 0.5  # seconds of one wait: an interrupt may come between a change and the ring that tells of it
_LINGER_S = 0.05  # seconds for which a thread without work waits for more

_warned: list[str] = []


def start(thread: threading.Thread) -> bool:
    """Start a thread; False where the system refuses to start one.

    An interrupt in `Thread.start` could leave the lock taken under which the new thread says that it runs. So the main
    thread, in which interrupts come, has another one call it.
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

    Not an executor of `concurrent.futures`: an interrupt in its Python code, or in that of a future, can leave a lock
    taken for which a worker then waits for ever.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()  # None ends a thread
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Queue a work for the threads, or do it now where none can be started; the task's `run` does it here."""
        task = Task(work)
        self.queue(task)
        return task

    def queue(self, task: Task[Any]) -> None:
        """As `submit`, for a task that the caller has made."""
        self._tasks.put(task)
        with self._lock:  # a thread leaves under it, if nothing is queued
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= self._count:
                return
            thread = threading.Thread(target=self._work, name=self._name)
            self._threads.append(thread)
        if not start(thread):
            task.run()

    def _work(self) -> None:
        """A thread's life: it leaves when it has had nothing to do for a while, so no exit of the process waits."""
        while True:
            try:
                task = self._tasks.get(timeout=_LINGER_S)
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

    def map(self, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        """Yield the results in order; when the iteration ends early, works that have not begun are cancelled."""
        tasks = [self.submit(partial(work, *arguments)) for arguments in zip(*items, strict=True)]
        tasks.reverse()

        def results() -> Iterator[T]:
            try:
                while tasks:
                    yield tasks.pop().wait()
            finally:
                for task in tasks:
                    task.cancel()

        return results()

    def shutdown(self, *, cancel: bool = False) -> None:
        """Wait for all works, with `cancel` only for those that have begun; the others are cancelled."""
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
            if thread.ident is not None:  # else an interrupt came before its start
                thread.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Task(Generic[T]):
    """One work, done by the first thread that takes it. Thread-safe."""

    __slots__ = ("_ended", "_error", "_result", "_takers", "_work", "done")

    done: bool
    """Whether the work has ended, was cancelled, or has raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = False
        self._work: Callable[[], T] | None = work
        self._takers: list[object] = []  # the first of them has the work
        self._result: T
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        """Do the work, unless another thread does it, or it is cancelled."""
        self._take(self._work)

    def cancel(self) -> bool:
        """Have no thread begin the work; whether none has."""
        self._take(_raise_cancelled)
        return isinstance(self._error, CancelledError)

    def _take(self, work: Any) -> None:
        taker = object()
        try:
            self._takers.append(taker)
            if self._takers[0] is taker:
                self._result = work()
        except BaseException as error:
            if self._takers[:1] != [taker]:  # interrupted before
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
        """What the work has raised; None if it has not ended."""
        return self._error

    def wait(self) -> T:
        """Wait for the work, and return its result."""
        while not self.done:
            if self._ended.acquire(timeout=_LOOK_S):
                self._ended.release()  # for others that wait
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # as above
        return self._result

    def result(self) -> T:
        """Do the work, unless another thread does it, and return its result."""
        self.run()
        return self.wait()


def _raise_cancelled() -> NoReturn:
    raise CancelledError
