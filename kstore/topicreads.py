"""The reading half of `Store`: the records of a topic's partitions as one iterator, and how it waits for more.

Each partition is read as its log reads it; `_route` puts them together. Following goes by looks: what has come to any
partition since the last look is read, then looked for again, then waited for. The hardest rule: a follower that waits
costs next to nothing, in one process (the logs wake it) and across processes (it polls, with pauses that follow what a
look costs).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, Protocol

from kstore import arguments
from kstore._consume import ConsumerIterator, ConsumerRecord
from kstore._core import Record, RecordIterator
from kstore.catalog import is_deleted
from kstore.errors import KStoreError, UnknownTopicOrPartitionError
from kstore.readonly import FIRST_PAUSE, LONGEST_PAUSE
from kstore.reads import Isolation, OnLag, check_on_lag
from kstore.writer import Writer

if TYPE_CHECKING:
    from kstore._columns import Columns
    from kstore.catalog import Catalog, Entry
    from kstore.columnreads import Layout
    from kstore.log import Log

Round = list[tuple[int, Iterator[Record]]]

LOOK_SHARE = 9  # a pause is at least so many times what the look took: a tenth of a core at the most
NEWS_SECONDS = 0.1  # how soon a follower notices new partitions and deleted topics


class Start(Protocol):
    """How a partition's records are begun to be read; one that is new is read from its start."""

    def __call__(self, entry: Entry, is_new: bool = False) -> RecordIterator: ...


class TopicReads:
    """What can be read of a `Store`; see there about threads."""

    _current: Callable[[], Catalog]
    _open_log: Callable[[Entry], Log]

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[ConsumerRecord]:
        """Iterate over the records of a topic, or of some of its `partitions`.

        Each partition is read from its offset in `offsets`, else from its first record at or after `start_timestamp`,
        else from its log start. `merge="partition"` reads one after the other, in the order of their numbers, each up
        to where it ends when its turn comes. `merge="timestamp"` takes all at once, up to where they end now, and
        always gives the record with the least timestamp among the partitions' next ones, of the lower partition where
        they are equal: sorted by time where each partition is, and never out of a partition's own order. Of each
        partition one record is then read ahead, which a deletion or truncation no longer takes back.

        `follow` goes on with what comes, and ends after `timeout` seconds without a new record. It goes by looks: all
        that is there at one look is given, in the order above, before anything that comes later, so that a record
        with a lower timestamp may follow; without `partitions` new ones are read from their start, which is noticed
        within a tenth of a second, as is the deletion of the topic.

        `durable` and `on_lag` are as in `Log.read`. Raises `UnknownTopicOrPartitionError`, also when the topic is
        deleted meanwhile, and what `Log.read` raises: at once for what is wrong with the arguments or the offsets
        given, from the iterator for the rest. One iterator belongs to one thread at a time.
        """
        if merge not in ("partition", "timestamp"):
            raise ValueError(f"merge is {merge!r}; 'partition' and 'timestamp' are allowed")
        check_on_lag(on_lag)
        timeout = arguments.seconds("timeout", timeout)
        there, numbers, starts = self._asked(topic, partitions, offsets, start_timestamp)

        def start(entry: Entry, is_new: bool = False) -> RecordIterator:
            found = self._open_log(entry).read(
                starts.get(entry.partition),
                start_timestamp=None if is_new else start_timestamp,
                isolation=isolation,
                durable=durable,
                on_lag=on_lag,
            )
            assert isinstance(found, RecordIterator)
            return found

        # What can be refused is refused here: without an offset a log starts where it starts.
        started = {number: start(there[number]) for number in (numbers if merge == "timestamp" else sorted(starts))}
        if follow:
            follower = _Follower(self, topic, there, partitions is None, start, timeout, durable)
            follower.take_in(numbers, started.get)
            rounds = follower.rounds()
        elif merge == "timestamp":
            rounds = iter([[*started.items()]])
        else:
            rounds = ([(number, started[number] if number in started else start(there[number]))] for number in numbers)
        explain = partial(_explained, self, topic, there)
        return ConsumerIterator(topic, rounds, by_timestamp=merge == "timestamp", explain=explain)

    def read_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Iterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns: `(partition, chunk)`, one partition after the other.

        Where each partition starts is as in `read`, up to where it ends when its turn comes; what a chunk is, and the
        other arguments, are as in `Log.iter_columns`. Raises as `read` does: at once for what is wrong with the
        arguments or the offsets given, from the iterator for the rest. One iterator belongs to one thread at a time.
        """
        there, numbers, starts = self._asked(topic, partitions, offsets, start_timestamp)

        def start(number: int) -> Iterator[Columns]:
            return self._open_log(there[number]).iter_columns(
                starts.get(number),
                start_timestamp=start_timestamp,
                max_records=max_records,
                max_bytes=max_bytes,
                columns=columns,
                layout=layout,
                isolation=isolation,
                durable=durable,
                threads=threads,
            )

        started = {number: start(number) for number in [*sorted(starts), *numbers[:1]]}

        def chunks() -> Iterator[tuple[int, Columns]]:
            try:
                for number in numbers:
                    for chunk in started.pop(number, None) or start(number):
                        yield number, chunk
            except KStoreError as error:
                raise _explained(self, topic, there, error) from None

        return chunks()

    def _asked(
        self,
        topic: str,
        partitions: Iterable[int] | None,
        offsets: Mapping[int, int] | None,
        start_timestamp: int | None,
    ) -> tuple[Mapping[int, Entry], list[int], dict[int, int]]:
        """The topic's partitions, the numbers of those that are to be read, and where some of them start."""
        if start_timestamp is not None:
            if offsets:
                raise ValueError("give offsets or a start_timestamp, not both")
            arguments.integer("start_timestamp", start_timestamp)
        if offsets is not None and not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must be a mapping of partitions to offsets, not {type(offsets).__name__}")
        there = self._current().partitions(topic)
        wanted = None if partitions is None else _numbers(partitions)
        starts = {arguments.whole("a partition of offsets", number): at for number, at in (offsets or {}).items()}
        for number in {*(wanted or ()), *starts}:
            self._current().find(topic, number)
        if wanted is not None and not wanted.issuperset(starts):
            raise ValueError(f"offsets has partition {min(starts.keys() - wanted)}, which partitions has not")
        return there, sorted(there if wanted is None else wanted), starts


def _numbers(partitions: Iterable[int]) -> set[int]:
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions must be an iterable of numbers, not {type(partitions).__name__}")
    return {arguments.whole("a partition", number) for number in partitions}


def _explained(store: TopicReads, topic: str, there: Mapping[int, Entry], error: Exception) -> Exception:
    """Why a partition could not be read: the store was closed, or the topic deleted, where that is so."""
    if not isinstance(error, KStoreError):
        return error
    try:
        now = store._current().partitions(topic)
    except KStoreError as reason:
        return reason
    gone = any(now.get(number) is not entry or is_deleted(entry) for number, entry in there.items())
    return _deleted(topic) if gone else error


def _deleted(topic: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"topic {topic} has been deleted while it was read")


class _Part:
    """One partition of a follower: its log, and where the last look has seen it end."""

    __slots__ = ("durable", "end_offset", "entry", "records", "version", "view")

    def __init__(self, log: Log, entry: Entry, records: RecordIterator | None, durable: bool) -> None:
        self.view = log._view
        self.entry = entry
        self.records = records
        self.durable = durable
        self.end_offset = self.version = -1  # not looked at yet

    def has_news(self) -> bool:
        """Whether the log has grown or changed otherwise since the last look."""
        view = self.view
        if isinstance(view, Writer) or not view.catch_up():
            view.refresh()
        return self._end > self.end_offset or view.guard.version != self.version

    @property
    def _end(self) -> int:
        return self.view.durable_end_offset if self.durable else self.view.log_end_offset

    def look(self, start: Start) -> RecordIterator | None:
        """What has come since the last look, to be read; None if nothing has."""
        if not self.has_news():
            return None
        self.version, self.end_offset = self.view.guard.version, self._end
        if self.records is None:
            self.records = start(self.entry)
        else:
            self.records.resume(self.end_offset)
        return self.records


class _Follower:
    """A topic that is followed: what comes to its partitions, look by look. Belongs to one thread at a time."""

    def __init__(
        self,
        store: TopicReads,
        topic: str,
        there: Mapping[int, Entry],
        all_partitions: bool,
        start: Start,
        timeout: float | None,
        durable: bool,
    ) -> None:
        self._store = store
        self._topic = topic
        self._there = there
        self._all_partitions = all_partitions
        self._start = start
        self._timeout = timeout
        self._durable = durable
        self._parts: list[_Part] = []

    def take_in(self, numbers: Iterable[int], started: Callable[[int], RecordIterator | None]) -> None:
        """Follow these partitions too; `started` may have begun to read them."""
        for number in numbers:
            entry = self._there[number]
            self._parts.append(_Part(self._store._open_log(entry), entry, started(number), self._durable))

    def rounds(self) -> Iterator[Round]:
        """A round for each look that has found something, until nothing has come for the timeout."""
        deadline = self._deadline()
        while True:
            if self._moved():
                self._meet_partitions()
            found = [(part.entry.partition, new) for part in self._parts if (new := part.look(self._start)) is not None]
            if found:
                yield [*found]
                deadline = self._deadline()
            elif not self._wait(deadline):
                return

    def _deadline(self) -> float:
        return math.inf if self._timeout is None else time.monotonic() + self._timeout

    def _moved(self) -> bool:
        """Whether the topic's partitions are others than those known."""
        there = self._store._current().partitions(self._topic)
        if there is not self._there and there == self._there:
            self._there = there
        return there is not self._there

    def _meet_partitions(self) -> None:
        """Take in the partitions that are new; refuse to go on when one has gone."""
        there = self._store._current().partitions(self._topic)
        if any(there.get(part.entry.partition) is not part.entry for part in self._parts):
            raise _deleted(self._topic)
        known, self._there = self._there, there
        if self._all_partitions:
            self.take_in(sorted(there.keys() - known.keys()), lambda number: self._start(there[number], True))

    def _wait(self, deadline: float) -> bool:
        """Wait for news; False at the deadline."""
        if all(isinstance(part.view, Writer) for part in self._parts):
            return self._wait_to_be_woken(deadline)
        return self._poll(deadline)

    def _wait_to_be_woken(self, deadline: float) -> bool:
        wakes: SimpleQueue[None] = SimpleQueue()
        wake = partial(wakes.put, None)
        watched: list[Writer] = []
        try:
            for part in self._parts:
                writer = part.view
                assert isinstance(writer, Writer)
                watched.append(writer)
                writer.watch(wake)
            while not self._moved() and not any(part.has_news() for part in self._parts):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with suppress(Empty):
                    wakes.get(timeout=min(left, NEWS_SECONDS))
            return True
        finally:
            for writer in watched:
                writer.unwatch(wake)

    def _poll(self, deadline: float) -> bool:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            if self._moved() or any(part.has_news() for part in self._parts):
                return True
            now = time.monotonic()
            if deadline <= now:
                return False
            time.sleep(min(max(pause, LOOK_SHARE * (now - began)), deadline - now))
            pause = min(pause * 1.5, LONGEST_PAUSE)
