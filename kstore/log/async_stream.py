"""`Stream`: what `async for` iterates over, made of plain iterators over what is there and a source of what comes.

An iterator says when its next record needs bytes of a file. These are read by a thread, one piece of a file at a time;
the records of a piece are then given without waiting. The hardest rule: a call that is cancelled loses no record; what
its thread has read by then is given by the next call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from kstore.base import loops
from kstore.base.weak import weak_method

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TURN_RECORDS = 256  # so many are given at the most before the loop's other tasks get their turn
WARM_SECONDS = 0.001  # how long after a wake-up records are read in the loop's thread: they were just written
# Seconds between two looks at a log that another process writes. They grow to a fifth of the time without news, and to
# what makes a waiting task cost about a thousandth of a core: an event loop takes up to 0.2 ms to wake up for a look.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.0002, 0.25, 1.25
LOOK_SHARE = 9  # a pause is at least so many times what the look took
IDLE_SHARE = 999  # and grows to so many times


class Records(Protocol[T_co]):
    """An iterator that says whether its next item has to be read from a file."""

    @property
    def needs_bytes(self) -> bool: ...
    def __iter__(self) -> Iterator[T_co]: ...
    def __next__(self) -> T_co: ...


class Source(Protocol[T_co]):
    """What a follower follows."""

    @property
    def is_woken(self) -> bool:
        """Whether news rings the bell; otherwise it is looked for, with pauses that grow."""

    @property
    def longest_wait(self) -> float | None:
        """How many seconds may pass between two looks all the same; None for any number."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can come any more."""

    def has_news(self) -> bool:
        """Whether there is something to look at."""

    def look(self) -> Iterable[Records[T_co]]:
        """What has come since the last look; empty without news."""

    def watched(self, ring: Callable[[], None]) -> AbstractContextManager[object]:
        """Have news call `ring`, in any thread, until the end of a `with` block."""


class InThread(Generic[T]):
    """An iterator of which every item is made by a thread."""

    needs_bytes = True

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)


class Stream(Generic[T]):
    """An asynchronous iterator over records, or over columns. For one task at a time.

    Without a source it ends with the last of `parts`; with one it ends after `timeout` seconds without a new record.
    """

    def __init__(
        self, parts: Iterable[Records[T]], source: Source[T] | None = None, timeout: float | None = None
    ) -> None:
        self._parts = deque(parts)
        self._source = source
        self._timeout = inf if timeout is None else timeout
        self._records: Records[T] | None = None
        self._pending: loops.Future[T | None] | None = None  # the record that a thread is reading
        self._warm_until = 0.0
        self._left = TURN_RECORDS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        records = self._records
        try:
            if records is not None and self._pending is None and self._left > 0 and not records.needs_bytes:
                self._left -= 1
                record = next(records, None)
                if record is not None:
                    return record
            return await self._next()
        except Exception:
            self._end()
            raise

    async def aclose(self) -> None:
        """End the iteration."""
        self._end()

    def _end(self) -> None:
        self._parts.clear()
        self._source = self._records = self._pending = None

    async def _next(self) -> T:
        """The next record, when it has to be read or waited for; StopAsyncIteration at the end."""
        loop = loops.running()
        if self._left <= 0:
            await loops.give_way()
        self._left = TURN_RECORDS
        deadline = -1.0
        while True:
            if self._records is not None or self._pending is not None:
                record = await self._read(loop)
                if record is not None:
                    return record
                self._records = None
            if not self._parts:
                source = self._source
                if source is None or source.is_over:
                    raise StopAsyncIteration
                self._parts.extend(source.look())
                if not self._parts:
                    if deadline < 0:
                        deadline = monotonic() + self._timeout
                    if not await self._news(loop, source, deadline):
                        raise StopAsyncIteration
                    self._warm_until = monotonic() + WARM_SECONDS
                    continue
            self._records = self._parts.popleft()

    async def _read(self, loop: loops.Loop) -> T | None:
        """The next record of the iterator, None at its end."""
        if self._pending is None:
            assert self._records is not None
            if monotonic() < self._warm_until or not self._records.needs_bytes:
                return next(self._records, None)
            self._pending = loops.in_thread(loop, partial(next, self._records, None))
        pending = self._pending
        record = await loops.kept(pending)
        self._pending = None
        return record

    @staticmethod
    async def _news(loop: loops.Loop, source: Source[T], deadline: float) -> bool:
        """Wait until the source has news; False at the deadline."""
        bell = loops.Bell(loop)
        pause = FIRST_PAUSE
        # Held by this task alone: one that is given up, as its loop was closed, is collected, and takes back its call.
        with source.watched(weak_method(bell.ring)):
            while True:
                bell.clear()
                began = monotonic()
                if source.has_news():
                    return True
                now = monotonic()
                if now >= deadline:
                    return False
                wait: float | None = deadline - now
                if not source.is_woken:
                    wait = min(deadline - now, max(pause, LOOK_SHARE * (now - began)))
                    pause = min(pause * GROWTH, max(LONGEST_PAUSE, IDLE_SHARE * (now - began)))
                elif source.longest_wait is not None:
                    wait = min(deadline - now, max(source.longest_wait, IDLE_SHARE * (now - began)))
                await bell.wait(None if wait == inf else wait)
