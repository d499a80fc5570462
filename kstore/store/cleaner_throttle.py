"""`Throttle`: limits the bytes per second that all cleaner threads together read and write (SEMANTICS 7.27).

Invariant: it holds its own lock and no other, so that only cleaning threads ever wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

INTERVAL_NS = 300_000_000
"""How often the average rate is checked."""

_SECOND_NS = 1_000_000_000


class Throttle:
    """Makes the threads that call it sleep while together they exceed the limit. Thread-safe."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """`clock` returns monotonic nanoseconds. `sleep(seconds)` is by default a sleep that `stop` ends."""
        self._limit = bytes_per_second
        self._clock = clock
        self._sleep = sleep or self._doze
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._stopped = False
        self._since_ns = clock()
        self._observed = 0

    def __call__(self, count: int) -> None:
        """Count bytes that were read or written; if a check is due, sleep for the excess since the last check."""
        with self._lock:
            self._observed += count
            elapsed_ns = self._clock() - self._since_ns
            if elapsed_ns <= INTERVAL_NS or self._observed <= 0:
                return
            seconds = self._observed / self._limit - elapsed_ns / _SECOND_NS
            if seconds > 0 and not self._stopped:
                self._sleep(seconds)
            self._since_ns = self._clock()
            self._observed = 0

    def stop(self) -> None:
        """Wake the sleeping thread, and let no thread sleep from now on."""
        self._stopped = True
        self._bell.put(None)

    def _doze(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=min(seconds, threading.TIMEOUT_MAX))
