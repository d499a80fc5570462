"""A value that takes long to find: a thread finds it, and a page shows what is known until then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["LateValue"]

T = TypeVar("T")


class LateValue(Generic[T]):
    """The result of a function that a thread calls, again if somebody asks when the last result is old. Thread-safe."""

    def __init__(self, find: Callable[[], T], *, patience: float, max_age: float = 2.0) -> None:
        """Wait up to `patience` seconds for a result in each call of `get`; one is old after `max_age` seconds.

        `find` must not raise.
        """
        self._find = find
        self._patience = patience
        self._max_age = max_age
        self._lock = threading.Lock()
        self._found: T | None = None
        self._found_at = 0.0
        self._running: threading.Event | None = None

    def get(self, still_holds: Callable[[T], bool] = lambda found: True) -> T | None:
        """Return the newest result, a new one if it is found soon enough; None if there is none yet.

        The last result is only returned without a search for a new one if it `still_holds`.
        """
        with self._lock:
            is_young = time.monotonic() - self._found_at < self._max_age
            if self._found is not None and is_young and still_holds(self._found):
                return self._found
            if self._running is None:
                self._running = threading.Event()
                threading.Thread(target=self._run, args=[self._running], name="kstore-ui-late", daemon=True).start()
            running = self._running
        running.wait(self._patience)
        return self._found

    def found(self) -> T | None:
        """Return the newest result, and look for no other."""
        return self._found

    def _run(self, running: threading.Event) -> None:
        try:
            found = self._find()
            with self._lock:
                self._found, self._found_at = found, time.monotonic()
        finally:
            with self._lock:
                self._running = None
            running.set()
