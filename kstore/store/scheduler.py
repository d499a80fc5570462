"""Runs tasks periodically, by a clock that is passed in (SEMANTICS 13.4).

`run_due` runs every due task in the calling thread; the one background thread does the same. Invariant: if the clock
jumps back, no task waits longer than its period; if it jumps forward, each task runs once.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from kstore.base import threads
from kstore.base._histogram import Histogram
from kstore.base.numbers import NEVER
from kstore.disk import fs
from kstore.errors import LogClosedError

logger = logging.getLogger("kstore")

Action: TypeAlias = Callable[[], int | None]
"""The function of a task; it may return the milliseconds after which to run again."""

_LOOK_MS = 10_000  # the longest sleep of the thread: the system's clock may be set, or the machine suspended
_LOOK_PASSED_IN_MS = 100  # the same for a clock that was passed in, which may move at any time
RUN_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)
_EXIT_SECONDS = 10.0  # how long the interpreter's exit waits for a running task


class Failure(NamedTuple):
    """The failures of a task: the text of the last one, their number, and the time of the last one."""

    error: str
    times: int
    when_ms: int


class Scheduler:
    """Runs named tasks when they are due by `clock` (milliseconds; the system's unless given).

    `every` and `once` add a task; a second task of the same name replaces the first. An exception in a task is kept in
    `failures`, and logged unless the previous run raised the same one. The other tasks and the next run of the task are
    not affected. A task that returns an int runs again after this number of milliseconds (at least 1) instead of its
    period; a task from `once` is then kept. The scheduler refers to its actions, so an action may refer only weakly to
    an owner that is to be collected.

    Any method may be called from any thread, and by a task. In a forked child there are no tasks and no thread.
    """

    def __init__(self, clock: Callable[[], int] | None = None, *, name: str = "kstore-scheduler") -> None:
        """`name` is the name of the thread."""
        self._name = name
        self._clock = clock or _now_ms
        self._look_ms = _LOOK_MS if clock is None else _LOOK_PASSED_IN_MS
        self._tasks: dict[str, _Task] = {}
        self._running: dict[str, _Task] = {}  # by name: two tasks of one name never run at the same time
        self._failures: dict[str, Failure] = {}
        self._seconds: dict[str, Histogram] = {}
        # Only entered by `with`, and never held while a task runs, so that an interrupt leaves it free.
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        fs.register(self)

    # Adding tasks.

    def every(self, name: str, action: Action, period_ms: int, delay_ms: int) -> None:
        """Run `action` after `delay_ms`, then at a fixed rate; once if `period_ms` is not positive (SEMANTICS 13.4).

        Due times that have passed before a run are skipped, and the rate keeps its phase. If a due time comes during a
        run, the task runs again immediately, since the run's first steps were made before that time.
        """
        self._add(_Task(name, action, period_ms if period_ms > 0 else None, max(delay_ms, 0)))

    def once(self, name: str, action: Action, delay_ms: int = 0) -> None:
        self._add(_Task(name, action, None, max(delay_ms, 0)))

    def hurry(self, name: str, delay_ms: int = 0) -> bool:
        """Run a task within `delay_ms`, once more if it is running now; return False if there is no such task."""
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

    def _add(self, task: _Task) -> None:
        task.due_ms = self._clock() + task.wait_ms
        with self._lock:
            self._tasks[task.name] = task
        self.wake()

    # Times and failures.

    @property
    def due_ms(self) -> int:
        """When the next task that is not running is due; `NEVER` if there is none."""
        return self.due_among(None)

    def due_among(self, names: Container[str] | None) -> int:
        """Return `due_ms` of the tasks with these names; None means all."""
        now_ms = self._clock()
        with self._lock:
            return min(
                (
                    task.due_by(now_ms)
                    for name, task in self._tasks.items()
                    if name not in self._running and (names is None or name in names)
                ),
                default=NEVER,
            )

    @property
    def schedule(self) -> Mapping[str, int]:
        """When each task is due next, by its name; for a running task, its last due time."""
        with self._lock:
            return {name: task.due_ms for name, task in self._tasks.items()}

    @property
    def failures(self) -> Mapping[str, Failure]:
        """The failures of tasks since the start, by the tasks' names."""
        with self._lock:
            return dict(self._failures)

    @property
    def seconds(self) -> Mapping[str, Histogram]:
        """How long the successful runs of each task took, by the tasks' names."""
        return self._seconds.copy()

    # Running tasks.

    def run_due(self, names: Container[str] | None = None) -> None:
        """Run the due tasks and those that become due during the call: each at most once, the longest due first.

        With `names`, only the tasks of these names are run. A task that another thread is running is skipped. If a task
        raises an `Exception`, it is not raised here. Other exceptions, such as an interrupt of this thread, are raised,
        and the task is then due again.
        """
        self._run_due(Exception, names)

    def _run_due(self, expected: type[BaseException], names: Container[str] | None = None) -> None:
        ran: set[str] = set()
        while due := self._due_now(ran, names):
            for name in due:
                ran.add(name)
                self._run(name, expected)

    def _due_now(self, ran: set[str], names: Container[str] | None) -> list[str]:
        now_ms = self._clock()
        with self._lock:
            due = [
                task
                for name, task in self._tasks.items()
                if name not in ran and name not in self._running and task.due_by(now_ms) <= now_ms
                if names is None or name in names
            ]
        return [task.name for task in sorted(due, key=lambda task: task.due_ms)]

    def _run(self, name: str, expected: type[BaseException]) -> None:
        turn = _Turn()
        try:
            self._take(name, turn)
            if turn.task is not None:
                asked_ms = self._act(turn.task, expected)
                self._settle(turn.task, turn.begun_ms, asked_ms)
                self._give(turn)
        finally:  # an interrupt may come anywhere above, but then no second one here
            self._give(turn)

    def _take(self, name: str, turn: _Turn) -> None:
        now_ms = self._clock()
        with self._lock:
            task = self._tasks.get(name)
            if task is not None and name not in self._running and task.due_by(now_ms) <= now_ms:
                turn.task, turn.begun_ms = task, now_ms
                self._running[name] = task

    def _act(self, task: _Task, expected: type[BaseException]) -> int | None:
        begun = time.perf_counter()
        try:
            asked_ms = task.action()
            task.last_failure = ""
            self._seconds.setdefault(task.name, Histogram(RUN_SECONDS)).observe(time.perf_counter() - begun)
            return asked_ms
        except LogClosedError:  # another thread has closed the log: the task has nothing more to do
            return None
        except expected as error:
            if task.last_failure != (failure := f"{type(error).__name__}: {error}"):
                task.last_failure = failure
                logger.exception("the task %r failed", task.name)
            now_ms = self._clock()
            with self._lock:
                times = self._failures[task.name].times + 1 if task.name in self._failures else 1
                self._failures[task.name] = Failure(f"{type(error).__name__}: {error}", times, now_ms)
            return None

    def _settle(self, task: _Task, begun_ms: int, asked_ms: int | None) -> None:
        """Set the time of the next run, or remove the task."""
        now_ms = self._clock()
        with self._lock:
            if self._tasks.get(task.name) is not task:
                return  # replaced during the run
            task.plan_next(begun_ms, now_ms, asked_ms)
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
        self.wake()  # for a task of this name that was added during the run

    # In the background.

    def start(self) -> bool:
        """Run due tasks in one background thread from now on; no error if it is running already.

        The thread does not keep the scheduler alive, and ends with it. Returns False if no thread can be started: then
        the caller has to call `run_due`.
        """
        worker = _Worker(self, self._name)
        try:
            with self._lock:
                if self._worker is None:
                    self._worker = worker
                    if not threads.start(worker.thread):
                        self._worker = None
                        return False
        except BaseException:
            worker.stop()  # an interrupted start may have made a thread
            if self._worker is worker:
                self._worker = None
            raise
        _with_thread.add(self)
        return True

    def stop(self, timeout: float | None = None) -> bool:
        """End the background thread after its present task; return False if that takes longer than `timeout` seconds.

        A task may call this: the thread then ends after that task. `start` may follow.
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
        """Wake the background thread, if there is one, to run due tasks."""
        worker = self._worker
        if worker is not None:
            worker.wake()

    def _work_once(self) -> float:
        """Run due tasks in the background thread; return the seconds to sleep afterwards."""
        try:
            self._run_due(BaseException)  # a task that calls sys.exit does not end the thread
            return min(max(self.due_ms - self._clock(), 1), self._look_ms) / 1000
        except Exception:  # raised by the clock
            logger.exception("the scheduler's clock failed")
            return self._look_ms / 1000

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._tasks, self._running, self._worker = {}, {}, None


class _Task:
    """One task: its action, and when it is due. Guarded by its scheduler's lock."""

    __slots__ = ("action", "due_ms", "hurried_ms", "last_failure", "name", "period_ms", "wait_ms")

    def __init__(self, name: str, action: Action, period_ms: int | None, wait_ms: int) -> None:
        self.name = name
        self.action = action
        self.last_failure = ""  # the failure of its last run, as text
        self.period_ms = period_ms  # None: once
        self.wait_ms = wait_ms  # how far in the future `due_ms` was when it was set
        self.due_ms = NEVER
        self.hurried_ms = NEVER  # set by `hurry` while the task runs: when to run again

    def due_by(self, now_ms: int) -> int:
        """Return when the task is due: at most `wait_ms` from now, even if the clock has gone back."""
        if self.due_ms - now_ms > self.wait_ms:
            self.due_ms = now_ms + self.wait_ms
        return self.due_ms

    def plan_next(self, begun_ms: int, now_ms: int, asked_ms: int | None) -> None:
        """Set the time of the next run; a due time that came during the last run, after its start, is not skipped."""
        if asked_ms is not None:
            self.wait_ms = min(max(asked_ms, 1), NEVER)
            self.due_ms = now_ms + self.wait_ms
        elif self.period_ms is None:
            self.due_ms = NEVER
        else:
            missed = max(begun_ms - self.due_ms, 0) // self.period_ms
            self.wait_ms = self.period_ms
            self.due_ms += (missed + 1) * self.period_ms
        if self.hurried_ms < self.due_ms:
            self.due_ms, self.wait_ms = self.hurried_ms, max(self.hurried_ms - now_ms, 0)
        self.hurried_ms = NEVER


class _Turn:
    """One run of one task; created before the task is taken, so that an interrupted run can still release it."""

    __slots__ = ("begun_ms", "task")

    def __init__(self) -> None:
        self.task: _Task | None = None
        self.begun_ms = 0  # by the scheduler's clock


class _Worker:
    """The thread of a scheduler, and the queue that wakes it; refers to the scheduler only while tasks run."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._stopping = False
        reference = weakref.ref(scheduler, lambda _: self.stop())
        self.thread = threading.Thread(target=self._work, args=(reference,), name=name, daemon=True)

    def wake(self) -> None:
        if self._wakeups.empty():
            self._wakeups.put(None)

    def stop(self) -> None:
        self._stopping = True
        self._wakeups.put(None)

    def _work(self, reference: weakref.ref[Scheduler]) -> None:
        while not self._stopping:
            scheduler = reference()
            if scheduler is None:
                return
            pause = scheduler._work_once()
            del scheduler
            with suppress(Empty):
                self._wakeups.get(timeout=pause)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_with_thread: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the threads while the interpreter can still run them."""
    for scheduler in list(_with_thread):
        scheduler.stop(_EXIT_SECONDS)
