"""`Throttle`: bounds how many bytes a second the cleaner's threads read and write together (SEMANTICS 7.27).

Invariant: it holds its own lock and no other, so that only cleaning threads ever wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

INTERVAL_NS = 300_000_000
"""How often the average rate is looked at."""

_SECOND_NS = 1_000_000_000


class Throttle:
    """Sleeps in the threads that call it, as long as they exceed the limit together. Thread-safe."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """`clock` gives nanoseconds that never go back; `sleep(seconds)` is a sleep that `stop` ends, unless given."""
        self._limit = bytes_per_second
        self._clock = clock
        self._sleep = sleep or self._doze
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt in set() would leave it locked
        self._stopped = False
        self._since_ns = clock()
        self._observed = 0

    def __call__(self, count: int) -> None:
        """Count bytes that were read or written; sleep for what is too much since the last look, if one is due."""
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
        """Wake the thread that sleeps, and let no other sleep."""
        self._stopped = True
        self._bell.put(None)

    def _doze(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=min(seconds, threading.TIMEOUT_MAX))
