"""`Consumer`: reads topics for a group from its committed positions, and commits how far it has read.

`topics.topic_follow` reads; this module decides where to start and what to commit. Invariant: a position moves when its
record is returned, never before, and is valid only for the log that the record was read from.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

from kstore.base import arguments
from kstore.base.closing import Closing
from kstore.config.settings import shortened
from kstore.errors import KStoreError, LogClosedError, OffsetOutOfRangeError
from kstore.log.log_watch import wait_for_news
from kstore.store.topics._consume import ConsumerIterator, ConsumerRecord
from kstore.store.topics.topic_follow import FollowOptions, TopicFollower

if TYPE_CHECKING:
    from kstore.log.log import Log
    from kstore.log.reading.read_options import Isolation, OnLag
    from kstore.log.reading.view import View
    from kstore.store.coordinator.awaited_records import AwaitedRecords
    from kstore.store.topics.topic_reader import TopicReader

logger = logging.getLogger("kstore")

OffsetReset = Literal["earliest", "latest", "none"]
Place = tuple[str, int]

_NEWS_SECONDS = 0.1  # how soon a waiting consumer notices new partitions and deleted topics


class Positions(NamedTuple):
    """The positions that one call commits for a group, with a text and the topic ids that the caller knows."""

    group: str
    offsets: Mapping[Place, int]
    metadata: str = ""
    topic_ids: Mapping[str, uuid.UUID | None] = {}


class ReadPositions(dict[Place, int]):
    """The positions of a consumer, with the ids of their topics."""

    topic_ids: Mapping[str, uuid.UUID | None]


class GroupPositions(Protocol):
    """The part of a group's coordinator that a consumer uses."""

    def commit(self, positions: Positions, *, sync: bool = False) -> None: ...
    async def flushed(self, group: str) -> None: ...
    def committed_offsets(
        self, group: str, topic_id: Callable[[str], uuid.UUID | None] | None = None
    ) -> Mapping[Place, int]: ...
    def leave(self, consumer: Consumer) -> None: ...


class ConsumerOptions(NamedTuple):
    """The arguments of `Store.consumer`."""

    group: str
    topics: str | Iterable[str]
    auto_offset_reset: OffsetReset = "earliest"
    isolation: Isolation = "read_uncommitted"
    merge: Literal["partition", "timestamp"] = "partition"
    follow: bool = False
    timeout: float | None = None


class Consumer(Closing):
    """An iterator over the records of some topics for a group, created by `Store.consumer`.

    The iterator ends at the end of the topics or, if it follows, after its timeout without a new record. Iterating
    again continues with the records that have arrived since. `poll` returns the available records as a list. `commit`
    stores how far the records were read; the group's next consumer starts there. Consumers of one group do not share
    its partitions: each reads all of them. Tasks use `async for`, `apoll` and `acommit`.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> info = store.append_many("orders", [b"3 apples", b"1 pear"])
        >>> consumer = store.consumer("billing", "orders")
        >>> [record.value for record in consumer]
        [b'3 apples', b'1 pear']
        >>> consumer.commit()

    Belongs to one thread or task at a time.
    """

    group: str
    """The group whose positions are read and committed."""

    topics: tuple[str, ...]
    """The topics that are read."""

    def __init__(self, reader: TopicReader, coordinator: GroupPositions, options: ConsumerOptions) -> None:
        """Read topics with `reader`, and positions from `coordinator`, which may belong to another store."""
        reset, merge, topics = options.auto_offset_reset, options.merge, options.topics
        if reset not in ("earliest", "latest", "none"):
            raise ValueError(f"auto_offset_reset is {reset!r}; 'earliest', 'latest' and 'none' are allowed")
        if merge not in ("partition", "timestamp"):
            raise ValueError(f"merge is {merge!r}; 'partition' and 'timestamp' are allowed")
        self.group = options.group
        self.topics = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if not self.topics:
            raise ValueError("a consumer needs at least one topic")
        self._reader = reader
        self._coordinator = coordinator
        self._options = options
        self._timeout = arguments.seconds("timeout", options.timeout)
        self._closed = False
        self._is_polling = False
        self._awaited: AwaitedRecords | None = None  # what tasks have read, in place of `_records`
        self._reading = threading.Lock()  # held while a record is read for a task, perhaps in a thread
        self._positions: dict[Place, int] = {}  # the offset of the next record to return, for every known partition
        # The positions to commit: of partitions from which a record was returned or which were started at their end. If
        # the latter were not committed, a second start at the end would skip the records between.
        self._read: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._lost: dict[Place, OffsetOutOfRangeError] = {}  # why a partition cannot be read at its position
        self._followers: dict[str, TopicFollower] = {}
        self._records: Iterator[ConsumerRecord] | None = None  # of the current round
        self._begun = False  # whether the followers are at the positions
        self.seek_to_committed()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        follow = self._options.follow
        record = self._next(again=follow)
        if record is None and follow:
            record = self._wait(self._timeout)
        if record is None:
            raise StopIteration
        return record

    def poll(self, timeout: float | None = 0, *, max_records: int = 500) -> list[ConsumerRecord]:
        """Return the available records; if there are none, wait for the first.

        May be called repeatedly and mixed with iterating, whether the consumer follows or not. All returned records
        count as read. If an error is found after some records, the records are returned first.

        Tasks call `apoll`. In a thread (`asyncio.to_thread`), use this `timeout` instead of `asyncio.wait_for`: after a
        cancellation the thread would continue, and its records would count as read although nobody gets them.

        Args:
            timeout: How many seconds to wait for the first record; 0 does not wait, None waits forever.
            max_records: The most records to return.

        Returns:
            The records; empty if none has arrived in time.

        Raises:
            KStoreError: The errors of iterating, if there is no record to return.

        Example:
            >>> place = store.append("orders", b"2 plums")
            >>> [record.value for record in consumer.poll(timeout=1.0, max_records=100)]
            [b'2 plums']
        """
        timeout = arguments.seconds("timeout", timeout)
        max_records = arguments.integer("max_records", max_records, low=1)
        self._refuse_if_awaited()
        self._refuse_if_polled()
        before = (self._positions.copy(), self._read.copy())
        records: list[ConsumerRecord] = []
        try:
            self._is_polling = True
            record = self._next(again=True) or self._wait(timeout)
            while record is not None:
                records.append(record)
                record = self._next() if len(records) < max_records else None
        except KStoreError:
            if not records:
                raise
        except BaseException:  # an interrupt: the records are returned again later
            self._positions, self._read = before
            self._begin_anew()
            raise
        finally:
            self._is_polling = False
        return records

    def _next(self, *, again: bool = False) -> ConsumerRecord | None:
        """Return the next record of the round (one pass over the topics), None at its end; `again` starts another."""
        self._refuse_if_closed()
        if self._awaited is not None:
            self._refuse_if_awaited()
            self._begin_anew()
        try:
            record = None if self._records is None else next(self._records, None)
            if record is None:
                if self._records is not None and not again:
                    self._records = None
                    return None
                if not self._begun:
                    self._go_on()
                self._records = chain.from_iterable(self._look(topic) or () for topic in self.topics)
                record = next(self._records, None)
                if record is None:
                    self._records = None
                    return None
            place = (record.topic, record.partition)
            self._positions[place] = self._read[place] = record.offset + 1
        except BaseException:
            self._begin_anew()
            raise
        return record

    def _wait(self, timeout: float | None) -> ConsumerRecord | None:
        """Return the next record, or None if there is none before the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            if not wait_for_news(self._views(), self._has_news, left, longest_wait=_NEWS_SECONDS):
                return None
            record = self._next()
            if record is not None:
                return record

    def _views(self) -> list[View]:
        return [view for follower in self._followers.values() for view in follower.views]

    def _has_news(self) -> bool:
        """Return whether a new round may find records, partitions or an error."""
        return self._closed or any(follower.has_news() for follower in self._followers.values())

    def _begin_anew(self) -> None:
        """Make the next call restart reading at the positions."""
        self._records, self._begun, self._awaited = None, False, None

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")

    def _refuse_if_awaited(self) -> None:
        if self._awaited is not None and self._awaited.is_busy:
            raise RuntimeError(f"another task reads with the consumer of group {self.group}; await its call first")

    def _refuse_if_polled(self) -> None:
        if self._is_polling:
            raise RuntimeError(f"a thread still polls with the consumer of group {self.group}; wait for its end first")

    # Reading in tasks.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        follow = self._options.follow
        awaited = self._awaiting()
        await awaited.fill(1, self._timeout if follow else 0, again=follow)
        if not awaited.ahead:
            raise StopAsyncIteration
        try:
            record = awaited.ahead.popleft()
            place = (record.topic, record.partition)
            self._positions[place] = self._read[place] = record.offset + 1
        except BaseException:
            self._begin_anew()
            raise
        return record

    async def apoll(self, timeout: float | None = 0, *, max_records: int = 500) -> list[ConsumerRecord]:
        """Return the available records like `poll`, without blocking the event loop.

        A thread of the loop's executor reads the files. A cancelled call, for example by `asyncio.wait_for`, has read
        nothing: the next call returns its records. May be mixed with `async for` and with the plain calls.

        Args:
            timeout: How many seconds to wait for the first record; 0 does not wait, None waits forever.
            max_records: The most records to return.

        Returns:
            The records; empty if none has arrived in time.

        Raises:
            RuntimeError: If another call reads with this consumer.
            KStoreError: The errors of `poll`, in the same way.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     place = await store.aappend("orders", b"2 plums")
            ...     print([record.value for record in await consumer.apoll(timeout=1.0)])
            ...     await consumer.acommit(sync=True)
            >>> asyncio.run(main())
            [b'2 plums']
        """
        timeout = arguments.seconds("timeout", timeout)
        max_records = arguments.integer("max_records", max_records, low=1)
        awaited = self._awaiting()
        try:
            await awaited.fill(max_records, timeout, again=True)
        except KStoreError:
            if not awaited.ahead:
                raise
        return self._delivered(awaited.ahead, max_records)

    def _awaiting(self) -> AwaitedRecords:
        """Return what tasks have read; begin at the positions after a plain call, an error or in a new event loop."""
        self._refuse_if_closed()
        self._refuse_if_awaited()
        self._refuse_if_polled()
        awaited = self._awaited
        if awaited is None or not awaited.is_usable:
            from kstore.store.coordinator.awaited_records import AwaitedRecords, Topics

            self._begin_anew()
            topics = Topics(self.topics, self._begin, self._look, self._views, self._has_news, self._reading)
            awaited = self._awaited = AwaitedRecords(topics)
        return awaited

    def _delivered(self, ahead: deque[ConsumerRecord], most: int) -> list[ConsumerRecord]:
        """Take records that were read and move the positions past them."""
        records = list(islice(ahead, most))
        moved = {(record.topic, record.partition): record.offset + 1 for record in records}
        before = [(place, self._positions[place], self._read.get(place)) for place in moved]
        try:
            self._positions.update(moved)
            self._read.update(moved)
            for _ in records:
                ahead.popleft()
        except BaseException:  # an interrupt: the records are returned again later
            for place, position, read in before:
                self._positions[place] = position
                if read is None:
                    self._read.pop(place, None)
                else:
                    self._read[place] = read
            self._begin_anew()
            raise
        return records

    def _begin(self) -> None:
        """Prepare a round of a task."""
        self._refuse_if_closed()
        if not self._begun:
            self._go_on()

    # Positions.

    @property
    def positions(self) -> dict[Place, int]:
        """The next offset of each partition from which a record was returned: what `commit` stores.

        If `auto_offset_reset="latest"` has started a partition at its end, the partition is included even before one of
        its records was returned.

        In a transaction, pass the positions to `txn.commit_offsets` instead of calling `commit`. Raises the errors of
        `commit` if a position is no longer valid.
        """
        self._check(self._read)
        positions = ReadPositions(self._read)
        positions.topic_ids = self._topic_ids
        return positions

    @property
    def _topic_ids(self) -> dict[str, uuid.UUID | None]:
        return {topic: follower.topic_id for topic, follower in self._followers.items()}

    def commit(self, metadata: str = "", *, sync: bool = False) -> None:
        """Commit, for each partition, the position after the last record that was returned.

        If `auto_offset_reset="latest"` has started a partition at its end, that position is committed even if no record
        was read: the group then gets all later records, even those that arrive while no consumer runs.

        Records that `poll` returned count as read, even if it ran in a thread and the task that waited for the thread
        was cancelled before it got them. `apoll` has no such gap.

        If a position is no longer valid, nothing is committed.

        When this returns, the positions survive the death of the process; see `Store.commit_offsets` for mode "r".

        Args:
            metadata: A text that is stored with each position.
            sync: Whether the positions are on the disk when this returns, so that a power failure does not lose them.

        Raises:
            UnknownTopicOrPartitionError: If the topic that was read has been deleted.
            OffsetOutOfRangeError: If records before a position have been truncated.
            LogClosedError: If the consumer is closed.
            KStoreError: The errors of `Store.commit_offsets`.

        Example:
            >>> place = store.append("orders", b"2 plums")
            >>> records = consumer.poll(timeout=1.0)
            >>> consumer.commit(sync=True)
            >>> store.committed_offsets("billing")
            {('orders', 0): 3}
        """
        positions = self._moved(metadata)
        self._coordinator.commit(positions, sync=sync)
        self._committed |= positions.offsets

    async def acommit(self, metadata: str = "", *, sync: bool = False) -> None:
        """Commit like `commit`, without blocking the event loop.

        The append is made in the loop's thread. With `sync` the task then waits for the disk; all tasks that wait at
        the same time share one sync. If the call is cancelled while it waits, the positions are committed, and are on
        the disk after the next sync.

        Args:
            metadata: A text that is stored with each position.
            sync: Whether the positions are on the disk when this returns.

        Raises:
            KStoreError: The errors of `commit`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async for record in consumer:
            ...         print(record.value)
            ...     await consumer.acommit("evening", sync=True)
            >>> place = store.append("orders", b"2 plums")
            >>> asyncio.run(main())
            b'2 plums'
            >>> store.committed_offsets("billing")["orders", 0].metadata
            'evening'
        """
        from kstore.store.coordinator.awaited_records import unlocked

        await unlocked(self._reading)
        positions = self._moved(metadata)
        self._coordinator.commit(positions)
        self._committed |= positions.offsets
        if sync:
            await self._coordinator.flushed(self.group)

    def _moved(self, metadata: str) -> Positions:
        """Return the positions that have moved since the last commit; raise if one of them is no longer valid."""
        self._refuse_if_closed()
        moved = {place: offset for place, offset in self._read.items() if self._committed.get(place) != offset}
        self._check(moved)
        return Positions(self.group, moved, metadata, self._topic_ids)

    def seek_to_committed(self) -> None:
        """Go back to the group's committed positions, for example after a transaction was aborted.

        If a topic was deleted and created again, the new topic is read.

        Example:
            >>> place = store.append("orders", b"2 plums")
            >>> records = consumer.poll()
            >>> consumer.seek_to_committed()
            >>> [record.value for record in consumer.poll()]
            [b'2 plums']
        """
        self._refuse_if_awaited()
        on_lag: OnLag = "start" if self._options.auto_offset_reset == "earliest" else "raise"
        options = FollowOptions(self._options.merge == "timestamp", self._options.isolation, on_lag)
        followers = {topic: self._reader.follow(topic, options) for topic in self.topics}
        # Read after the followers are made, because these know the topics' ids: positions in former topics of the same
        # name are ignored.
        ids = {topic: follower.topic_id for topic, follower in followers.items()}
        committed = self._coordinator.committed_offsets(self.group, ids.get)
        self._begin_anew()
        self._read, self._committed, self._positions = {}, dict(committed), {}
        self._lost, self._followers = {}, followers
        for topic in self.topics:
            self._meet(topic)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue one partition at another offset.

        Args:
            topic: The topic.
            partition: The number of the partition.
            offset: The offset of the next record to read.

        Raises:
            OffsetOutOfRangeError: If the offset is outside of the partition's log.
            UnknownTopicOrPartitionError: If there is no such partition, or its topic has been deleted.
            ValueError: If the consumer does not read the partition.

        Example:
            >>> consumer.seek("orders", 0, 1)
            >>> [record.value for record in consumer]
            [b'1 pear']
        """
        self._refuse_if_awaited()
        log = self._reader.log(topic, partition)
        if (topic, partition) not in self._positions:
            raise ValueError(f"the consumer does not read {topic}-{partition}")
        offset = arguments.integer("offset", offset)
        follower = self._followers[topic]
        follower.check()
        _check_range(log, offset)
        self._begin_anew()
        follower.begin(partition, offset)
        self._lost.pop((topic, partition), None)
        self._positions[topic, partition] = self._read[topic, partition] = offset

    def _check(self, positions: Iterable[Place]) -> None:
        """Raise if one of these positions is no longer valid."""
        for topic, number in positions:
            follower = self._followers[topic]
            follower.check()
            place = (topic, number)
            with self._reading:
                lost = self._lost.get(place) or follower.lost(number, self._positions[place])
            if lost is not None:
                self._lost[place] = lost
                raise lost

    def _go_on(self) -> None:
        """Start reading every partition at its position, after a seek or an error."""
        for (topic, number), offset in self._positions.items():
            self._check([(topic, number)])
            self._followers[topic].begin(number, offset)
        self._begun = True

    def _meet(self, topic: str) -> None:
        """Start reading the new partitions of a topic."""
        follower = self._followers[topic]
        for number in follower.new:
            offset = self._start_of((topic, number))
            follower.begin(number, offset)
            self._positions[topic, number] = offset

    def _start_of(self, place: Place) -> int:
        """Return the offset at which a partition starts: its committed position, else as `auto_offset_reset` says."""
        log, reset = self._reader.log(*place), self._options.auto_offset_reset
        start, end = log.log_start_offset, log.log_end_offset
        offset = self._committed.get(place)
        if offset is not None:
            if start <= offset <= end:
                return int(offset)
            logger.warning(
                "group %s: %s-%d: position %d is outside of the log, which has %d to %d",
                self.group,
                *place,
                offset,
                start,
                end,
            )
        if reset == "earliest":
            return start
        if reset == "latest":
            self._read[place] = end
            return end
        if offset is not None:
            _check_range(log, offset)
        raise OffsetOutOfRangeError(
            f"group {self.group} has no position in {log.topic}-{log.partition}, and auto_offset_reset is 'none'",
            log_start_offset=start,
            log_end_offset=end,
        )

    # Reading.

    def _look(self, topic: str) -> ConsumerIterator | None:
        """Return the records of a topic that have arrived since the last round, None if there are none."""
        self._followers[topic].check()
        self._meet(topic)
        return self._followers[topic].coming()

    # Closing.

    @property
    def closed(self) -> bool:
        """Whether the consumer has been closed."""
        return self._closed

    def close(self) -> None:
        """Close the consumer without committing anything. Idempotent.

        Example:
            >>> consumer.close()
            >>> consumer.closed
            True
        """
        self._closed = True
        self._records = self._awaited = None
        self._coordinator.leave(self)

    def __repr__(self) -> str:
        state = "closed " if self._closed else ""
        topics = ", ".join(self.topics[:4]) + (f", ... {len(self.topics)} topics" if len(self.topics) > 4 else "")
        return f"<kstore.Consumer {state}of group {shortened(self.group)} in {topics}>"


def _check_range(log: Log, offset: int) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {log.topic}-{log.partition}: {start} to {end} are there",
            log_start_offset=start,
            log_end_offset=end,
        )
