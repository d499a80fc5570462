"""Follows a topic: reads records as they are appended, and waits if there are none.

Invariant: a waiting follower uses almost no CPU time.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from kstore._core import Record, RecordIterator
from kstore.errors import KStoreError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.log_watch import wait_for_news
from kstore.log.reading.followed_log import FollowedLog
from kstore.log.reading.read_options import Isolation, OnLag
from kstore.log.reading.view import View
from kstore.store.catalog import Entry, is_deleted
from kstore.store.metadata import Metadata, id_on_disk
from kstore.store.read_only_logs import Logs
from kstore.store.topics._consume import ConsumerIterator

Round = list[tuple[int, Iterator[Record]]]

NEWS_SECONDS = 0.1  # how soon a follower notices new partitions and deleted topics


class Start(Protocol):
    """Starts to read a partition; if `is_new`, at the partition's start."""

    def __call__(self, entry: Entry, is_new: bool = False) -> RecordIterator: ...


class TopicView:
    """The current partitions of one topic, for its readers. Thread-safe."""

    def __init__(self, metadata: Metadata, logs: Logs, topic: str) -> None:
        self._metadata = metadata
        self.logs = logs
        self.topic = topic

    def partitions(self) -> Mapping[int, Entry]:
        """Return the current partitions; raise `UnknownTopicOrPartitionError` or `LogClosedError`."""
        return self._metadata.current().partitions(self.topic)

    def explained(self, entries: Mapping[int, Entry], error: Exception) -> Exception:
        """Return the error to raise if these partitions cannot be read: closed store, deleted topic, else `error`."""
        if not isinstance(error, KStoreError):
            return error
        try:
            partitions = self.partitions()
        except KStoreError as reason:
            return reason
        is_gone = any(partitions.get(number) is not entry or is_deleted(entry) for number, entry in entries.items())
        return self.deleted() if is_gone else error

    def deleted(self) -> UnknownTopicOrPartitionError:
        """Return the error for a topic that was deleted while it was read."""
        return UnknownTopicOrPartitionError(f"topic {self.topic} has been deleted while it was read")


class TopicPass(NamedTuple):
    """One read of a topic: its partitions, and the iterators of the partitions whose reading has started."""

    view: TopicView
    entries: Mapping[int, Entry]
    numbers: list[int]
    start: Start
    started: dict[int, RecordIterator]
    by_timestamp: bool
    all_partitions: bool
    durable: bool

    def rounds(self) -> Iterator[Round]:
        """Return the rounds of the existing records: one round of all partitions if merged, else one per partition."""
        started, start, entries = self.started, self.start, self.entries
        if self.by_timestamp:
            return iter([[*started.items()]])
        return ([(number, started[number] if number in started else start(entries[number]))] for number in self.numbers)

    def records(self, rounds: Iterable[Round]) -> ConsumerIterator:
        """Iterate over the records of these rounds."""
        return ConsumerIterator(self.view.topic, rounds, by_timestamp=self.by_timestamp, explain=self.explain)

    def explain(self, error: Exception) -> Exception:
        """Return why the topic cannot be read, given an error of one of its logs."""
        return self.view.explained(self.entries, error)


class FollowedPartition(FollowedLog):
    """One partition of a follower: its log, and the log's end at the last poll."""

    __slots__ = ("entry",)

    def __init__(self, log: Log, entry: Entry, records: RecordIterator | None, durable: bool) -> None:
        super().__init__(HostedLog(log).view, records, durable)
        self.entry = entry


class FollowOptions(NamedTuple):
    """How a consumer follows its topics."""

    by_timestamp: bool
    isolation: Isolation
    on_lag: OnLag


class TopicFollower:
    """A consumer's reads of one topic: its partitions, their topic id, and a position in each.

    A position is valid only in the partition that it was read from. The follower raises if the topic is deleted (even
    if a new partition has the same name and number) or if records below the position are truncated. Not thread-safe.
    """

    def __init__(self, view: TopicView, options: FollowOptions) -> None:
        self._view = view
        self._options = options
        self._partitions = view.partitions()
        self._followed: dict[int, FollowedPartition] = {}
        self.topic_id: uuid.UUID | None = id_on_disk(self._partitions)

    def check(self) -> None:
        """Raise `UnknownTopicOrPartitionError` if the topic or a partition has been deleted."""
        partitions = self._view.partitions()
        if partitions is self._partitions:
            return
        if any(partitions.get(number) is not followed.entry for number, followed in self._followed.items()):
            raise self._view.deleted()
        topic_id = id_on_disk(partitions)
        if self.topic_id is not None and topic_id != self.topic_id:  # another process has created it again
            raise self._view.deleted()
        self._partitions, self.topic_id = partitions, topic_id

    @property
    def new(self) -> list[int]:
        """The partitions that have not been read yet."""
        return sorted(self._partitions.keys() - self._followed.keys())

    def begin(self, number: int, offset: int) -> None:
        """Start to read a partition at `offset`; raise the errors of `Log.read`."""
        before = self._followed.get(number)
        entry = self._partitions[number] if before is None else before.entry
        log = self._view.logs.log(entry)
        version = HostedLog(log).view.guard.version
        records = log.read(offset, isolation=self._options.isolation, on_lag=self._options.on_lag)
        assert isinstance(records, RecordIterator)
        followed = self._followed[number] = FollowedPartition(log, entry, records, False)
        followed.version = version

    @property
    def views(self) -> list[View]:
        """The views of the followed logs."""
        return [followed.view for followed in self._followed.values()]

    def has_news(self) -> bool:
        """Return whether there may be new records or partitions, or an error that `coming` raises."""
        try:
            moved = self._view.partitions() is not self._partitions
            return moved or any(followed.has_news() for followed in self._followed.values())
        except KStoreError:
            return True

    def lost(self, number: int, offset: int) -> OffsetOutOfRangeError | None:
        """Return an error if records below `offset`, which the consumer has read, were truncated since; else None."""
        return self._followed[number].lost(offset)

    def coming(self) -> ConsumerIterator | None:
        """Return the records that were appended since the last call, None if there are none.

        Raises the errors of a following `Store.read`.
        """
        entries = {number: followed.entry for number, followed in self._followed.items()}
        try:
            self.check()
            looks = [(number, followed.look()) for number, followed in sorted(self._followed.items())]
        except KStoreError as error:
            raise self._view.explained(entries, error) from None
        news: Round = [(number, records) for number, records in looks if records is not None]
        if not news:
            return None
        explain = partial(self._view.explained, entries)
        return ConsumerIterator(self._view.topic, [news], by_timestamp=self._options.by_timestamp, explain=explain)


class FollowedRead:
    """A `Store.read` that follows: looks at the partitions for new records, and waits. Not thread-safe."""

    def __init__(self, begun: TopicPass, timeout: float | None) -> None:
        self._view = begun.view
        self._partitions = begun.entries
        self._begun = begun
        self._timeout = timeout
        self._followed: list[FollowedPartition] = []
        self.add(begun.numbers, begun.started.get)

    def add(self, numbers: Iterable[int], started: Callable[[int], RecordIterator | None]) -> None:
        """Follow these partitions, too; `started` returns the iterator of a partition that is being read, or None."""
        for number in numbers:
            entry = self._partitions[number]
            log = self._view.logs.log(entry)
            self._followed.append(FollowedPartition(log, entry, started(number), self._begun.durable))

    @property
    def views(self) -> list[View]:
        """The views of the followed logs."""
        return [followed.view for followed in self._followed]

    def look(self) -> Round:
        """Return the records that were appended to the partitions since the last call; empty if there are none."""
        if self._has_moved():
            self._add_new_partitions()
        return [
            (followed.entry.partition, records)
            for followed in self._followed
            if (records := followed.look(partial(self._begun.start, followed.entry))) is not None
        ]

    def rounds(self) -> Iterator[Round]:
        """Yield a round whenever there are new records; end if there are none for the length of the timeout."""
        deadline = self._deadline()
        while True:
            if news := self.look():
                yield news
                deadline = self._deadline()
            elif not wait_for_news(self.views, self.has_news, deadline - time.monotonic(), longest_wait=NEWS_SECONDS):
                return

    def _deadline(self) -> float:
        return math.inf if self._timeout is None else time.monotonic() + self._timeout

    def _has_moved(self) -> bool:
        """Return whether the topic's partitions have changed."""
        partitions = self._view.partitions()
        if partitions is not self._partitions and partitions == self._partitions:
            self._partitions = partitions
        return partitions is not self._partitions

    def _add_new_partitions(self) -> None:
        """Follow the new partitions; raise if one was deleted."""
        partitions = self._view.partitions()
        if any(partitions.get(followed.entry.partition) is not followed.entry for followed in self._followed):
            raise self._view.deleted()
        earlier, self._partitions = self._partitions, partitions
        if self._begun.all_partitions:
            self.add(
                sorted(partitions.keys() - earlier.keys()), lambda number: self._begun.start(partitions[number], True)
            )

    def has_news(self) -> bool:
        """Return whether there may be new records or partitions."""
        return self._has_moved() or any(followed.has_news() for followed in self._followed)
