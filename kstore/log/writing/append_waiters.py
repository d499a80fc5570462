"""Threads that wait until a log has grown, and calls that are made when it has."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kstore.log.writing._appender import Appender


class Waiters:
    """The threads and calls that wait for one log to grow. Thread-safe.

    The appender counts them in `waiters`: while there are none, an append does nothing for them.
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        # The lock is entered itself, not by way of its condition: an interrupt in there would leave it taken. It may be
        # taken again by its holder: a collection in there may close a task that waited, which then takes back its call.
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._watchers: tuple[Callable[[], object], ...] = ()

    def wait(self, has_grown: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `has_grown()`, which is asked after each `notify`; False when the time is up."""
        with self._lock:
            self._appender.waiters += 1
            try:
                return self._grown.wait_for(has_grown, timeout)
            finally:
                self._appender.waiters -= 1

    def watch(self, wake: Callable[[], object]) -> None:
        """Have each `notify` call `wake`, until `unwatch`: for what waits for several logs, or in an event loop.

        It is called in the thread that appends, or flushes, and must neither wait nor raise.
        """
        with self._lock:
            self._watchers = (*self._watchers, wake)
            self._appender.waiters += 1

    def unwatch(self, wake: Callable[[], object]) -> None:
        """Take back a `watch`; nothing where there is none."""
        with self._lock:
            left = list(self._watchers)
            if wake in left:
                left.remove(wake)
                self._watchers = tuple(left)
                self._appender.waiters -= 1

    def notify(self) -> None:
        """Have every waiting thread look again, and make the watchers' calls."""
        with self._lock:
            self._grown.notify_all()
            watchers = self._watchers
        for wake in watchers:
            wake()
