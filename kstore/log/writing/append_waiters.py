"""Threads and callbacks that wait until a log has grown."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kstore.log.writing._appender import Appender


class Waiters:
    """The threads and callbacks that wait for one log to grow. Thread-safe.

    The appender counts them in `waiters`: if there are none, an append does nothing for them.
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        # Code enters this lock and not the condition, whose `__enter__` an interrupt could leave locked. Reentrant:
        # a garbage collection while the lock is held may close a waiting task, which then calls `unwatch`.
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._watchers: tuple[Callable[[], object], ...] = ()

    def wait(self, has_grown: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `has_grown()` returns true; it is called after each `notify`. Return False on timeout."""
        with self._lock:
            self._appender.waiters += 1
            try:
                return self._grown.wait_for(has_grown, timeout)
            finally:
                self._appender.waiters -= 1

    def watch(self, wake: Callable[[], object]) -> None:
        """Make each `notify` call `wake` until `unwatch` is called, to wait on several logs or in an event loop.

        `wake` is called in the thread that appends or flushes, and must neither wait nor raise.
        """
        with self._lock:
            self._watchers = (*self._watchers, wake)
            self._appender.waiters += 1

    def unwatch(self, wake: Callable[[], object]) -> None:
        """Cancel a `watch`, if there is one."""
        with self._lock:
            left = list(self._watchers)
            if wake in left:
                left.remove(wake)
                self._watchers = tuple(left)
                self._appender.waiters -= 1

    def notify(self) -> None:
        """Wake every waiting thread, and call the watchers."""
        with self._lock:
            self._grown.notify_all()
            watchers = self._watchers
        for wake in watchers:
            wake()
