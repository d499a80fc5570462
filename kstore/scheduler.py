"""Tasks with periods and a passed-in clock: what a store does by itself, and when (SEMANTICS.md 13.4).

Owns the times and the one thread; what a task does is left to whoever names it. `run_due` does everything that is due
by the clock, in the thread that calls it, and is all that the background thread does as well. The hardest rule: a
clock may jump. A task never waits longer from now than it asked for, and a leap forward runs it once.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from kstore import fs

logger = logging.getLogger("kstore")

NEVER = 2**63 - 1
"""The time at which nothing is due."""

Action: TypeAlias = Callable[[], int | None]
"""What a task does; it may answer with the milliseconds after which it wants to run again."""

_LOOK_MS = 10_000  # how long the thread sleeps at most: the system's clock may be set, or the machine suspended
_LOOK_PASSED_IN_MS = 100  # a passed-in clock moves when it likes
_EXIT_SECONDS = 10.0  # what the interpreter's exit waits for a task that runs


class Failure(NamedTuple):
    """What went wrong in a task: the last error's text, how many there were, and when the last was."""

    error: str
    times: int
    when_ms: int


class Scheduler:
    """Runs named tasks when they are due by `clock` (milliseconds; the system's unless given).

    A task is given by `every` or `once`; a second one of the same name replaces the first. An exception in a task is
    logged, noted in `failures`, and stops neither the others nor its own next run. A task that returns an int asks to
    run again after so many milliseconds (at least 1), whatever its period says; one from `once` is then kept. Actions
    are held as they are given: pass none that keeps its owner alive, if the owner is to be collected.

    Any method may be called from any thread, and by a task. In a forked child there are no tasks and no thread.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or _now_ms
        self._look_ms = _LOOK_MS if clock is None else _LOOK_PASSED_IN_MS
        self._tasks: dict[str, _Task] = {}
        self._running: dict[str, _Task] = {}  # by name: two tasks of one name never run at once either
        self._failures: dict[str, Failure] = {}
        # Only ever entered by `with`, and never held while a task runs: an interrupt then leaves it free.
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        fs.register(self)

    # What there is to do.

    def every(self, name: str, action: Action, period_ms: int, delay_ms: int) -> None:
        """Run `action` after `delay_ms`, then at a fixed rate; once, if the period is not positive (13.4).

        Times that were missed are left out, and the rate keeps its phase.
        """
        self._add(_Task(name, action, period_ms if period_ms > 0 else None, max(delay_ms, 0)))

    def once(self, name: str, action: Action, delay_ms: int = 0) -> None:
        """Run `action` once, after `delay_ms`."""
        self._add(_Task(name, action, None, max(delay_ms, 0)))

    def hurry(self, name: str, delay_ms: int = 0) -> bool:
        """Have a task run at the latest after `delay_ms`, again if it is running now; False without such a task."""
        due_ms = self._clock() + max(delay_ms, 0)
        with self._lock:
            task = self._tasks.get(name)
            if task is None:
                return False
            if task is self._running.get(name):
                task.hurried_ms = min(task.hurried_ms, due_ms)
            elif due_ms < task.due_ms:
                task.due_ms, task.wait_ms = due_ms, max(delay_ms, 0)
        self.wake()
        return True

    def cancel(self, name: str) -> bool:
        """Forget a task, which may be finishing its run; False without such a task."""
        with self._lock:
            return self._tasks.pop(name, None) is not None

    def _add(self, task: _Task) -> None:
        task.due_ms = self._clock() + task.wait_ms
        with self._lock:
            self._tasks[task.name] = task
        self.wake()

    # What is known.

    @property
    def due_ms(self) -> int:
        """When the next task is due that is not running, `NEVER` if there is none."""
        now_ms = self._clock()
        with self._lock:
            return min(
                (task.due_by(now_ms) for name, task in self._tasks.items() if name not in self._running), default=NEVER
            )

    @property
    def schedule(self) -> Mapping[str, int]:
        """Each task's name and when it is due next; a running task's last due time."""
        with self._lock:
            return {name: task.due_ms for name, task in self._tasks.items()}

    @property
    def failures(self) -> Mapping[str, Failure]:
        """The tasks in which something went wrong since the start, by name."""
        with self._lock:
            return dict(self._failures)

    # Doing it.

    def run_due(self) -> None:
        """Run what is due by the clock, each task at most once, the longest due first; what one makes due as well.

        A task that another thread is running is left to it. Only what is no `Exception` (an interrupt of this thread)
        leaves here; the task that it met is due again.
        """
        self._run_due(Exception)

    def _run_due(self, expected: type[BaseException]) -> None:
        ran: set[str] = set()
        while due := self._due_now(ran):
            for name in due:
                ran.add(name)
                self._run(name, expected)

    def _due_now(self, ran: set[str]) -> list[str]:
        now_ms = self._clock()
        with self._lock:
            due = [
                task
                for name, task in self._tasks.items()
                if name not in ran and name not in self._running and task.due_by(now_ms) <= now_ms
            ]
        return [task.name for task in sorted(due, key=lambda task: task.due_ms)]

    def _run(self, name: str, expected: type[BaseException]) -> None:
        turn = _Turn()
        try:
            self._take(name, turn)
            if turn.task is not None:
                asked_ms = self._act(turn.task, expected)
                self._settle(turn.task, asked_ms)
                self._give(turn)
        finally:  # an interrupt may come anywhere above, but only one at a time
            self._give(turn)

    def _take(self, name: str, turn: _Turn) -> None:
        now_ms = self._clock()
        with self._lock:
            task = self._tasks.get(name)
            if task is not None and name not in self._running and task.due_by(now_ms) <= now_ms:
                turn.task = task
                self._running[name] = task

    def _act(self, task: _Task, expected: type[BaseException]) -> int | None:
        try:
            return task.action()
        except expected as error:
            logger.exception("the task %r failed", task.name)
            now_ms = self._clock()
            with self._lock:
                times = self._failures[task.name].times + 1 if task.name in self._failures else 1
                self._failures[task.name] = Failure(f"{type(error).__name__}: {error}", times, now_ms)
            return None

    def _settle(self, task: _Task, asked_ms: int | None) -> None:
        """Set the time of the next run, or forget the task."""
        now_ms = self._clock()
        with self._lock:
            if self._tasks.get(task.name) is not task:
                return  # cancelled or replaced meanwhile
            task.plan_next(now_ms, asked_ms)
            if task.due_ms >= NEVER and task.period_ms is None:
                del self._tasks[task.name]

    def _give(self, turn: _Turn) -> None:
        task = turn.task
        if task is None:
            return
        with self._lock:
            if self._running.get(task.name) is task:
                del self._running[task.name]
        turn.task = None
        self.wake()  # for a task of this name that came meanwhile

    # In the background.

    def start(self) -> None:
        """Run what is due in one background thread from now on; no error when it is running.

        The thread keeps no scheduler alive that nobody else holds, and ends with it.
        """
        worker = _Worker(self)
        try:
            with self._lock:
                if self._worker is None:
                    self._worker = worker
                    worker.thread.start()
        except BaseException:
            worker.stop()  # no thread could be had; if it was an interrupt, there may be one
            if self._worker is worker:
                self._worker = None
            raise
        _with_thread.add(self)

    def stop(self, timeout: float | None = None) -> bool:
        """End the background thread once it has finished what it is doing; whether it has, within `timeout` seconds.

        A task that calls this goes on and ends the thread behind it. `start` may follow.
        """
        worker = self._worker
        if worker is None:
            return True
        worker.stop()
        if worker.thread is not threading.current_thread():
            worker.thread.join(timeout)
            if worker.thread.is_alive():
                return False
        with self._lock:
            if self._worker is worker:
                self._worker = None
        return True

    def wake(self) -> None:
        """Have the background thread look again; nothing without one."""
        worker = self._worker
        if worker is not None:
            worker.wake()

    def _work_once(self) -> float:
        """Run what is due, as the thread does; the seconds to sleep then."""
        try:
            self._run_due(BaseException)  # a task that calls sys.exit means itself at most
            return min(max(self.due_ms - self._clock(), 1), self._look_ms) / 1000
        except Exception:  # the clock's own
            logger.exception("the scheduler's clock failed")
            return self._look_ms / 1000

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._tasks, self._running, self._worker = {}, {}, None


class _Task:
    """One task: what it does, and when it is due. Guarded by its scheduler's lock."""

    __slots__ = ("action", "due_ms", "hurried_ms", "name", "period_ms", "wait_ms")

    def __init__(self, name: str, action: Action, period_ms: int | None, wait_ms: int) -> None:
        self.name = name
        self.action = action
        self.period_ms = period_ms  # None: once
        self.wait_ms = wait_ms  # how far away the time it is due was when it was set
        self.due_ms = NEVER
        self.hurried_ms = NEVER  # when it is to run again, if that came up while it ran

    def due_by(self, now_ms: int) -> int:
        """When it is due, which is never further away than it was at first: the clock may have gone back."""
        if self.due_ms - now_ms > self.wait_ms:
            self.due_ms = now_ms + self.wait_ms
        return self.due_ms

    def plan_next(self, now_ms: int, asked_ms: int | None) -> None:
        if asked_ms is not None:
            self.wait_ms = min(max(asked_ms, 1), NEVER)
            self.due_ms = now_ms + self.wait_ms
        elif self.period_ms is None:
            self.due_ms = NEVER
        else:
            missed = max(now_ms - self.due_ms, 0) // self.period_ms
            self.wait_ms = self.period_ms
            self.due_ms += (missed + 1) * self.period_ms
        if self.hurried_ms < self.due_ms:
            self.due_ms, self.wait_ms = self.hurried_ms, max(self.hurried_ms - now_ms, 0)
        self.hurried_ms = NEVER


class _Turn:
    """One run of one task: made before the task is taken, so that an interrupt cannot lose whose turn it is."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: _Task | None = None


class _Worker:
    """The thread of a scheduler, and the bell that wakes it; it holds the scheduler while it works and not longer."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._bell: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._stopping = False
        reference = weakref.ref(scheduler, lambda _: self.stop())
        self.thread = threading.Thread(target=self._work, args=(reference,), name="kstore-scheduler", daemon=True)

    def wake(self) -> None:
        if self._bell.empty():
            self._bell.put(None)

    def stop(self) -> None:
        self._stopping = True
        self._bell.put(None)

    def _work(self, reference: weakref.ref[Scheduler]) -> None:
        while not self._stopping:
            scheduler = reference()
            if scheduler is None:
                return
            pause = scheduler._work_once()
            del scheduler
            with suppress(Empty):
                self._bell.get(timeout=pause)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_with_thread: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the threads while there is still an interpreter for them to run in."""
    for scheduler in list(_with_thread):
        scheduler.stop(_EXIT_SECONDS)
