"""`AwaitedRecords`: what tasks read with a consumer. Imported by a consumer's first asynchronous call.

Invariant: a record that was read stays in `ahead` until the consumer returns it, so a cancelled call loses none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple, Self

from kstore.base import loops
from kstore.errors import KStoreError
from kstore.log.async_stream import Records, Stream
from kstore.log.log_watch import await_news
from kstore.log.reading.view import View
from kstore.store.topics._consume import ConsumerIterator, ConsumerRecord
from kstore.store.topics.async_topic_source import NEWS_SECONDS


class Topics(NamedTuple):
    """How a consumer looks at its topics."""

    names: Sequence[str]
    begin: Callable[[], None]
    look: Callable[[str], ConsumerIterator | None]
    views: Callable[[], Sequence[View]]
    has_news: Callable[[], bool]
    reading: threading.Lock


class _Coming:
    """The new records of a topic. A consumer's positions are not checked while one is read."""

    def __init__(self, records: ConsumerIterator, reading: threading.Lock) -> None:
        self._records = records
        self._reading = reading

    @property
    def needs_bytes(self) -> bool:
        return self._records.needs_bytes

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        with self._reading:
            return next(self._records)


class _Failed:
    """A topic that cannot be read. The error is raised after the records of the topics before it."""

    needs_bytes = False

    def __init__(self, error: KStoreError) -> None:
        self._error = error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        raise self._error


class _Round:
    """A look at the topics that has found something, or waits until it does; a `Source` of `log.async_stream`."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._deadline: float | None = None
        self.is_over = False  # whether it has found a record
        self.timeout: float | None = 0.0
        self.stream = Stream([], self)

    def limit(self, timeout: float | None) -> None:
        """Set how many seconds the next call waits for the first record."""
        self.timeout, self._deadline = timeout, None

    def look(self) -> list[Records[ConsumerRecord]]:
        topics = self._topics
        topics.begin()
        found: list[Records[ConsumerRecord]] = []
        for topic in topics.names:
            try:
                coming = topics.look(topic)
            except KStoreError as error:
                if not found:
                    raise
                return [*found, _Failed(error)]
            if coming is not None:
                found.append(_Coming(coming, topics.reading))
        return found

    async def news(self, deadline: float) -> bool:
        if self.timeout == 0:
            return False
        if self._deadline is None:
            self._deadline = deadline if self.timeout is None else monotonic() + self.timeout
        left = self._deadline - monotonic()
        return await await_news(self._topics.views(), self._topics.has_news, left, longest_wait=NEWS_SECONDS)


async def unlocked(reading: threading.Lock) -> None:
    """Wait while a thread reads for a call that was cancelled."""
    if reading.locked():
        await loops.kept(loops.in_thread(loops.running(), partial(_enter, reading)))


def _enter(reading: threading.Lock) -> None:
    with reading:
        pass


class AwaitedRecords:
    """The records that the tasks of one event loop have read with a consumer. For one task at a time."""

    def __init__(self, topics: Topics) -> None:
        self.ahead: deque[ConsumerRecord] = deque()  # read and not yet returned
        self.is_busy = False  # a task is in `fill`
        self._topics = topics
        self._loop = loops.running()
        self._turns = loops.Turns()
        self._round: _Round | None = None
        self._has_failed = False

    @property
    def is_usable(self) -> bool:
        """Whether this can be used further: no call has failed, and the event loop is the one that runs."""
        return not self._has_failed and self._loop is loops.running()

    async def fill(self, most: int, timeout: float | None, *, again: bool) -> None:
        """Read ahead until there are `most` records or the round has ended; wait for the first record.

        At the end of a round that an earlier call began, start another one only if `again`. A cancelled call keeps what
        it has read. After another error this object must be replaced.
        """
        self.is_busy = True
        try:
            if self._turns.is_over():
                await self._turns.give_way()
            while len(self.ahead) < most and await self._read(timeout, again):
                pass
        except loops.Cancelled:
            raise
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self.is_busy = False

    async def _read(self, timeout: float | None, again: bool) -> bool:
        """Read one record; return False at the end of the round."""
        current = self._round
        if current is None:
            if self.ahead:
                return False
            current = self._round = _Round(self._topics)
        if not current.is_over:
            current.limit(timeout)
        try:
            record = await anext(current.stream)
        except StopAsyncIteration:
            self._round = None
            return again and current.is_over and not self.ahead
        self.ahead.append(record)
        current.is_over = True
        return True
