"""`Consumer`: the records of topics from where a group left off, and how far they were read.

`topics.follow` reads; this decides where to begin and what to commit. Invariant: a position moves when its record is
handed out, never before, and holds only for the log that the record was read from.
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

_LONGEST_PAUSE = 0.02  # seconds between looks at several topics


class Positions(NamedTuple):
    """What one call commits for a group: offsets by partition, a text, and the ids of topics that the caller knows."""

    group: str
    offsets: Mapping[Place, int]
    metadata: str = ""
    topic_ids: Mapping[str, uuid.UUID | None] = {}


class ReadPositions(dict[Place, int]):
    """The positions of a consumer, with the ids of the topics that they hold for."""

    topic_ids: Mapping[str, uuid.UUID | None]


class GroupPositions(Protocol):
    """What a consumer needs of its group's coordinator."""

    def commit(self, positions: Positions, *, sync: bool = False) -> None: ...
    def committed_offsets(
        self, group: str, topic_id: Callable[[str], uuid.UUID | None] | None = None
    ) -> Mapping[Place, int]: ...


class ConsumerOptions(NamedTuple):
    """What `Store.consumer` was called with."""

    group: str
    topics: str | Iterable[str]
    auto_offset_reset: OffsetReset = "earliest"
    isolation: Isolation = "read_uncommitted"
    merge: Literal["partition", "timestamp"] = "partition"
    follow: bool = False
    timeout: float | None = None


class Consumer(Closing):
    """The records of some topics, as an iterator that a group goes on with; made by `Store.consumer`.

    `commit` writes down how far it has read; the group's next consumer reads again what came after that. The iterator
    ends where the topics end, or, when it follows, when nothing has come for its timeout; iterated again it goes on
    with what has come since. `poll` gives what is there as a list. Two consumers of one group do not know of each
    other. Belongs to one thread at a time.
    """

    group: str
    """The group whose positions are read and committed."""

    topics: tuple[str, ...]
    """The topics that are read."""

    def __init__(self, reader: TopicReader, coordinator: GroupPositions, options: ConsumerOptions) -> None:
        """`reader` has the topics, `coordinator` the group's positions, perhaps in another store."""
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
        self._positions: dict[Place, int] = {}  # the next offset to hand out, of every known partition
        # The same, of those partitions from which a record was handed out, and of those that were begun at their end:
        # else what comes before the group's first record would be passed over when it begins at the end again.
        self._read: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._lost: dict[Place, OffsetOutOfRangeError] = {}  # why a partition cannot be read on from its position
        self._followers: dict[str, TopicFollower] = {}
        self._records: Iterator[ConsumerRecord] | None = None  # of the look that is being read
        self._begun = False  # whether the followers stand at the positions
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
        """Return the records that are there, up to `max_records`; wait up to `timeout` seconds for the first of them.

        The list is empty when the time is up; None waits for ever, and 0 not at all. It may be called again and again,
        whether the consumer follows or not, and beside iterating. All records of the list count as read. Raises what
        iterating raises; records that were there before the fault are returned first.

        In a thread (`asyncio.to_thread`) give it this `timeout`, and no `asyncio.wait_for` around it: the thread goes
        on, and its records count as read though nobody gets them (docs/asyncio.md).
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
        except BaseException:  # an interrupt: the records that were taken are not lost
            self._positions, self._read = before
            self._begin_anew()
            raise
        return records

    def _next(self, *, again: bool = False) -> ConsumerRecord | None:
        """The next record; None where all that was there at this look has been read, and `again` at another one."""
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
        """Wait for the next record; None when the time is up."""
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
        """Have the next call begin to read at the positions."""
        self._records, self._begun = None, False

    # How far it came.

    @property
    def positions(self) -> dict[Place, int]:
        """The next offset of each partition: what `commit` writes down.

        A partition of which nothing was read is among them if `auto_offset_reset="latest"` chose where to begin.

        In a transaction give it to `txn.commit_offsets` instead. Raises as `commit` does for a position that does not
        hold any more.
        """
        self._check(self._read)
        positions = ReadPositions(self._read)
        positions.topic_ids = self._topic_ids
        return positions

    @property
    def _topic_ids(self) -> dict[str, uuid.UUID | None]:
        return {topic: follower.topic_id for topic, follower in self._followers.items()}

    def commit(self, metadata: str = "", *, sync: bool = False) -> None:
        """Write down how far the records were read, the one that was handed out last included.

        A partition that was begun at its end, by `auto_offset_reset="latest"`, is written down before anything was read
        of it: what arrives from then on is the group's, whether a consumer runs or not.

        What a `poll` returned counts, also where its caller was cancelled meanwhile and did not get it, as by
        `asyncio.wait_for`.

        With `sync=True` that is on the disk when this returns. Raises what `Store.commit_offsets` raises. Nothing is
        written when a position does not hold any more: `UnknownTopicOrPartitionError` when the topic that it was read
        from has been deleted, `OffsetOutOfRangeError` when records before it have been cut.
        """
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")
        moved = {place: offset for place, offset in self._read.items() if self._committed.get(place) != offset}
        self._check(moved)
        self._coordinator.commit(Positions(self.group, moved, metadata, self._topic_ids), sync=sync)
        self._committed |= moved

    def seek_to_committed(self) -> None:
        """Go back to the positions that are committed now: after a transaction that was aborted, say.

        After the deletion of a topic that was made again this begins with the new one.
        """
        on_lag: OnLag = "start" if self._options.auto_offset_reset == "earliest" else "raise"
        options = FollowOptions(self._options.merge == "timestamp", self._options.isolation, on_lag)
        followers = {topic: self._reader.follow(topic, options) for topic in self.topics}
        # After the followers, which know the topics' ids: a position in a former topic of that name is none.
        ids = {topic: follower.topic_id for topic, follower in followers.items()}
        committed = self._coordinator.committed_offsets(self.group, ids.get)
        self._begin_anew()
        self._read, self._committed, self._positions = {}, dict(committed), {}
        self._lost, self._followers = {}, followers
        for topic in self.topics:
            self._meet(topic)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at another offset of one partition; `OffsetOutOfRangeError` outside of its log."""
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
        """Raise if one of these positions does not hold any more."""
        for topic, number in positions:
            follower = self._followers[topic]
            follower.check()
            place = (topic, number)
            lost = self._lost.get(place) or follower.lost(number, self._positions[place])
            if lost is not None:
                self._lost[place] = lost
                raise lost

    def _go_on(self) -> None:
        """Begin to read every partition at its position, after a seek or an error."""
        for (topic, number), offset in self._positions.items():
            self._check([(topic, number)])
            self._followers[topic].begin(number, offset)
        self._begun = True

    def _meet(self, topic: str) -> None:
        """Begin to read the partitions of a topic that are new."""
        follower = self._followers[topic]
        for number in follower.new:
            offset = self._start_of((topic, number))
            follower.begin(number, offset)
            self._positions[topic, number] = offset

    def _start_of(self, place: Place) -> int:
        """Where a partition begins: at its committed position, else as `auto_offset_reset` says."""
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
        """What has come of a topic since the last look."""
        self._followers[topic].check()
        self._meet(topic)
        return self._followers[topic].coming()

    # The end.

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """End it; commits nothing. Idempotent."""
        self._closed = True
        self._records = None

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
