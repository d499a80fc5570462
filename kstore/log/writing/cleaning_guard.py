"""Ensures that a log has one cleaning at a time, and none while its files change otherwise (SEMANTICS 7.1).

A truncation, a deletion or a close pauses the cleaning: a running one is aborted, and the pause starts when it has
ended. Invariant: a pause is taken before the gate, since a cleaning needs the gate to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from kstore.base.threads import Bell
from kstore.errors import KStoreError, LogClosedError
from kstore.types import CompactionStats


class CleaningAbortedError(KStoreError):
    """A cleaning was aborted, or cannot start, because another thread cleans or pauses the log."""


class State(Enum):
    """What a log's cleaning is doing (SEMANTICS 7.1)."""

    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class Cleaning:
    """The state of one log's cleaning. Thread-safe.

    `check_usable` raises for a log that is closed or refuses writes; it takes no lock.
    """

    failure: BaseException | None
    """Why the last cleaning failed; None if it succeeded."""

    last: tuple[int, CompactionStats] | None
    """The end time (ms) and the statistics of the last round since the log was opened; None before the first."""

    def __init__(self, check_usable: Callable[[], object]) -> None:
        self.failure = None
        self.last = None
        self._check_usable = check_usable
        self._lock = threading.Lock()
        self._changed = Bell()
        self._cleaner: int | None = None  # the thread that is cleaning
        self._pauses: set[object] = set()

    @property
    def state(self) -> State:
        if self._cleaner is not None:
            return State.ABORTED if self._pauses else State.IN_PROGRESS
        return State.PAUSED if self._pauses else State.NONE

    @property
    def pauses(self) -> int:
        """The number of pauses that are in force or wait for a cleaning to end."""
        return len(self._pauses)

    @contextmanager
    def running(self, *, wait: bool = False) -> Iterator[None]:
        """Run a block that cleans the log, or that must not run during a cleaning.

        Raises `CleaningAbortedError` if the state is not *none*; with `wait`, waits until it is. Raises `KStoreError`
        in the thread that already cleans the log. The block's exception is kept in `failure`, unless it was aborted.
        """
        self._refuse_own()
        me = threading.get_ident()
        try:  # includes the start: an interrupt after it must not leave the log marked as being cleaned
            while not self._begin(me):
                if not wait:
                    raise CleaningAbortedError(f"the log's cleaning is {self.state.value}")
                self._changed.wait(lambda: self.state is State.NONE)
            self._check_usable()
            try:
                yield
            except (CleaningAbortedError, LogClosedError):
                raise
            except Exception as error:
                self.failure = error
                raise
            else:
                self.failure = None
        finally:
            if self._cleaner == me:
                self._cleaner = None
            self._changed.ring()

    def _begin(self, me: int) -> bool:
        with self._lock:
            if self._cleaner is not None or self._pauses:
                return False
            self._cleaner = me
            return True

    def check(self) -> None:
        """Raise `CleaningAbortedError` if a pause waits for this cleaning (SEMANTICS 7.8); then call `check_usable`."""
        if self._pauses:
            raise CleaningAbortedError("the cleaning was aborted: the log is changed otherwise, or closed")
        self._check_usable()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run a block during which the log is not cleaned: abort a running cleaning, and wait until it has ended.

        Pauses nest, also those of several threads. Raises `KStoreError` in the thread that is cleaning the log.
        """
        self._refuse_own()
        pause = object()
        try:  # includes the start: an interrupt after it must not leave the log paused
            with self._lock:
                self._pauses.add(pause)
            self._changed.wait(lambda: self._cleaner is None)
            yield
        finally:
            self._pauses.discard(pause)
            self._changed.ring()

    def _refuse_own(self) -> None:
        """Refuse a pause in the cleaning thread, which would wait for its own end."""
        if self._cleaner == threading.get_ident():
            raise KStoreError("this thread is cleaning the log; what the cleaning calls must not change the log")
