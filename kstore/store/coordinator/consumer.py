"""`Consumer`: reads topics for a group from its committed positions, and commits how far it has read.

`topics.topic_follow` reads; this module decides where to start and what to commit. Invariant: a position moves when its
record is returned, never before, and is valid only for the log that the record was read from.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

from kstore.base import arguments
from kstore.base.closing import Closing
from kstore.config.settings import shortened
from kstore.errors import KStoreError, LogClosedError, OffsetOutOfRangeError
from kstore.log.reading.read_only_view import FIRST_PAUSE
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.topic_follow import FollowOptions, TopicFollower

if TYPE_CHECKING:
    from kstore.log.log import Log
    from kstore.log.reading.read_options import Isolation, OnLag
    from kstore.store.topics.topic_reader import TopicReader

logger = logging.getLogger("kstore")

OffsetReset = Literal["earliest", "latest", "none"]
Place = tuple[str, int]

_LONGEST_PAUSE = 0.02  # seconds between rounds over the topics


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
    its partitions: each reads all of them.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> info = store.append_many("orders", [b"3 apples", b"1 pear"])
        >>> consumer = store.consumer("billing", "orders")
        >>> [record.value for record in consumer]
        [b'3 apples', b'1 pear']
        >>> consumer.commit()

    Belongs to one thread at a time.
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
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics:
            raise ValueError("a consumer needs at least one topic")
        self._reader = reader
        self._coordinator = coordinator
        self._options = options
        self._timeout = arguments.seconds("timeout", options.timeout)
        self._closed = False
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

        In a thread (`asyncio.to_thread`), use this `timeout` instead of `asyncio.wait_for`: after a cancellation the
        thread would continue, and its records would count as read although nobody gets them (docs/asyncio.md).

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
        before = (self._positions.copy(), self._read.copy())
        records: list[ConsumerRecord] = []
        try:
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
        return records

    def _next(self, *, again: bool = False) -> ConsumerRecord | None:
        """Return the next record of the round (one pass over the topics), None at its end; `again` starts another."""
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")
        try:
            record = None if self._records is None else next(self._records, None)
            if record is None:
                if self._records is not None and not again:
                    self._records = None
                    return None
                if not self._begun:
                    self._go_on()
                self._records = chain.from_iterable(map(self._look, self.topics))
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
        pause = FIRST_PAUSE
        while True:
            left = _LONGEST_PAUSE if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            record = self._next()
            if record is not None:
                return record
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _begin_anew(self) -> None:
        """Make the next call restart reading at the positions."""
        self._records, self._begun = None, False

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

        Records that `poll` returned count as read, even if its caller was cancelled before it got them, for example by
        `asyncio.wait_for`.

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
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")
        moved = {place: offset for place, offset in self._read.items() if self._committed.get(place) != offset}
        self._check(moved)
        self._coordinator.commit(Positions(self.group, moved, metadata, self._topic_ids), sync=sync)
        self._committed |= moved

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

    def _look(self, topic: str) -> Iterator[ConsumerRecord]:
        """Return the records of a topic that have arrived since the last round."""
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
        self._records = None
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
