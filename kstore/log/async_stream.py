"""`Stream`: an asynchronous iterator, made of plain iterators over existing records and a source of new records.

A plain iterator says whether its next record must be read from a file. If so, a thread reads the next piece of the
file; the records of the piece are then returned without waiting. Invariant: a cancelled call loses no record; the next
call returns the record that its thread has read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kstore.base import loops
from kstore.log._base_stream import BaseStream

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TURN_RECORDS = 512  # the most records returned before the loop's other tasks run
WARM_SECONDS = 0.001  # for this long after a wake-up the loop's thread reads: the page cache has the new records


class Records(Protocol[T_co]):
    """An iterator that says whether its next item has to be read from a file.

    With an attribute `in_memory`, the number of items that need not, a stream asks less often.
    """

    @property
    def needs_bytes(self) -> bool: ...
    def __iter__(self) -> Iterator[T_co]: ...
    def __next__(self) -> T_co: ...


class Source(Protocol[T_co]):
    """Delivers new records to a stream that follows."""

    @property
    def is_over(self) -> bool:
        """Whether no further record can come."""

    def look(self) -> Iterable[Records[T_co]]:
        """Return iterators over the records that are new since the last call; no iterators if nothing is new."""

    async def news(self, deadline: float) -> bool:
        """Wait until `look` would find something new; return False at the deadline, a time of `time.monotonic`."""


class InThread(Generic[T]):
    """Wraps an iterator so that a stream calls its `next` in a thread."""

    needs_bytes = True

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)


class Stream(BaseStream, Generic[T]):
    """An asynchronous iterator over records or columns, returned by `Log.aread` and other calls.

    It ends after the existing records; if it follows, it ends when the timeout passes without a new record. It also
    ends after an error.

    Example:
        >>> import asyncio
        >>> log = kstore.Log.open("data/orders-0")
        >>> info = log.append_many([b"3 apples", b"1 pear"])
        >>> async def main():
        ...     async for record in log.aread(follow=True, timeout=0.01):
        ...         print(record.value)
        >>> asyncio.run(main())
        b'3 apples'
        b'1 pear'

    Not thread-safe; for one task at a time.
    """

    def __init__(
        self, parts: Iterable[Records[T]], source: Source[T] | None = None, timeout: float | None = None
    ) -> None:
        self._parts = deque(parts)
        self._source = source
        self._timeout = inf if timeout is None else timeout
        self._warm_until = 0.0
        self._left = TURN_RECORDS

    if TYPE_CHECKING:
        _records: Records[T] | None
        _pending: loops.Future[T | None] | None

        def __anext__(self) -> Coroutine[Any, Any, T]: ...

    async def aclose(self) -> None:
        """End the iteration; the next `anext` raises `StopAsyncIteration`.

        Example:
            >>> from contextlib import aclosing
            >>> async def first():
            ...     async with aclosing(log.aread(follow=True)) as stream:
            ...         return await anext(stream)
            >>> asyncio.run(first()).value
            b'3 apples'
        """
        self._end()

    def _end(self) -> None:
        self._parts.clear()
        self._source = self._records = self._pending = None
        self._ready = 0

    async def _next(self) -> T:
        """Read or wait for the next record; raise `StopAsyncIteration` at the end."""
        try:
            return await self._sought()
        except Exception:
            self._end()
            raise

    async def _sought(self) -> T:
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
                    if not await source.news(deadline):
                        raise StopAsyncIteration
                    self._warm_until = monotonic() + WARM_SECONDS
                    continue
            self._records = self._parts.popleft()

    async def _read(self, loop: loops.Loop) -> T | None:
        """Return the next record of the current iterator, None at its end."""
        if self._pending is None:
            assert self._records is not None
            if monotonic() < self._warm_until or not self._records.needs_bytes:
                return next(self._records, None)
            self._pending = loops.in_thread(loop, partial(next, self._records, None))
            self._pending.add_done_callback(loops.note_error)
        pending = self._pending
        record = await loops.kept(pending)
        self._pending = None
        return record
