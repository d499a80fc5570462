"""`Consumer`: the records of topics from where a group left off, and how far they were read.

Reading is `Store.read`'s; where to begin and what to write down is decided here. The hardest rule: a position moves
when its record is handed out, never before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, Self

from kstore import arguments
from kstore._consume import ConsumerRecord
from kstore.closing import Closing
from kstore.errors import LogClosedError, OffsetOutOfRangeError
from kstore.readonly import FIRST_PAUSE

if TYPE_CHECKING:
    from kstore.log import Log
    from kstore.reads import Isolation

logger = logging.getLogger("kstore")

OffsetReset = Literal["earliest", "latest", "none"]
Place = tuple[str, int]

_LONGEST_PAUSE = 0.02  # seconds between looks at several topics


class _Store(Protocol):
    def partitions(self, topic: str) -> tuple[int, ...]: ...
    def log(self, topic: str, partition: int) -> Log: ...
    def committed_offsets(self, group: str) -> Mapping[Place, int]: ...
    def commit_offsets(
        self, group: str, offsets: Mapping[Place, int], metadata: str = "", *, sync: bool = False
    ) -> None: ...
    def read(
        self,
        topic: str,
        *,
        offsets: Mapping[int, int],
        merge: Literal["partition", "timestamp"],
        isolation: Isolation,
        on_lag: Literal["raise", "start"],
    ) -> Iterator[ConsumerRecord]: ...


class Consumer(Closing):
    """The records of some topics, as an iterator that a group goes on with; made by `Store.consumer`.

    `commit` writes down how far it came; what was read since is read again by the next consumer of the group. Belongs
    to one thread at a time. Two consumers of one group do not know of each other.
    """

    def __init__(
        self,
        store: _Store,
        group: str,
        topics: str | Iterable[str],
        *,
        auto_offset_reset: OffsetReset,
        isolation: Isolation,
        merge: Literal["partition", "timestamp"],
        follow: bool,
        timeout: float | None,
    ) -> None:
        if auto_offset_reset not in ("earliest", "latest", "none"):
            raise ValueError(f"auto_offset_reset is {auto_offset_reset!r}; 'earliest', 'latest' and 'none' are allowed")
        if merge not in ("partition", "timestamp"):
            raise ValueError(f"merge is {merge!r}; 'partition' and 'timestamp' are allowed")
        self.group = group
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics:
            raise ValueError("a consumer needs at least one topic")
        self._store = store
        self._reset = auto_offset_reset
        self._isolation = isolation
        self._merge = merge
        self._follow = follow
        self._timeout = arguments.seconds("timeout", timeout)
        self._closed = False
        self._positions: dict[Place, int] = {}  # of every partition known: the next offset to hand out
        self._read: dict[Place, int] = {}  # of those that something was handed out of
        self._committed: dict[Place, int] = {}
        self._records: Iterator[ConsumerRecord] | None = None
        self.seek_to_committed()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")
        if self._records is None:
            self._records = self._walk()
        try:
            record = next(self._records)
        except StopIteration:
            raise
        except BaseException:
            self._records = None  # it has ended with that; the next call goes on where this one came to
            raise
        place = (record.topic, record.partition)
        self._positions[place] = self._read[place] = record.offset + 1
        return record

    # How far it came.

    @property
    def positions(self) -> dict[Place, int]:
        """The next offset of each partition of which something was read: what `commit` writes down.

        In a transaction give it to `txn.commit_offsets` instead.
        """
        return dict(self._read)

    def commit(self, metadata: str = "", *, sync: bool = False) -> None:
        """Write down how far the records were read, the one that was handed out last included.

        With `sync=True` that is on the disk when this returns. Raises what `Store.commit_offsets` raises.
        """
        if self._closed:
            raise LogClosedError(f"the consumer of group {self.group} is closed")
        moved = {place: offset for place, offset in self._read.items() if self._committed.get(place) != offset}
        self._store.commit_offsets(self.group, moved, metadata, sync=sync)
        self._committed |= moved

    def seek_to_committed(self) -> None:
        """Go back to the positions that are committed now: after a transaction that was aborted, say."""
        committed = self._store.committed_offsets(self.group)
        self._records = None
        self._read, self._committed, self._positions = {}, dict(committed), {}
        for topic in self.topics:
            self._meet(topic)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at another offset of one partition; `OffsetOutOfRangeError` outside of its log."""
        log = self._store.log(topic, partition)
        if (topic, partition) not in self._positions:
            raise ValueError(f"the consumer does not read {topic}-{partition}")
        offset = arguments.integer("offset", offset)
        _check_range(log, offset)
        self._positions[topic, partition] = self._read[topic, partition] = offset
        self._records = None

    def _meet(self, topic: str) -> None:
        """Take in the partitions of a topic that are new."""
        for number in self._store.partitions(topic):
            place = (topic, number)
            if place not in self._positions:
                self._positions[place] = self._start(place)

    def _start(self, place: Place) -> int:
        log = self._store.log(*place)
        offset = self._committed.get(place)
        if offset is not None:
            if log.log_start_offset <= offset <= log.log_end_offset:
                return int(offset)
            logger.warning(
                "group %s: %s-%d: position %d is outside of the log, which has %d to %d",
                self.group,
                *place,
                offset,
                log.log_start_offset,
                log.log_end_offset,
            )
        if self._reset == "none":
            if offset is not None:
                _check_range(log, offset)
            raise OffsetOutOfRangeError(
                f"group {self.group} has no position in {log.topic}-{log.partition}, and auto_offset_reset is 'none'",
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
            )
        return log.log_start_offset if self._reset == "earliest" else log.log_end_offset

    # Reading.

    def _walk(self) -> Iterator[ConsumerRecord]:
        """Topic after topic, then again while there is more to wait for."""
        deadline = self._deadline()
        pause = FIRST_PAUSE
        seen: dict[str, list[int]] = {}
        while True:
            found = False
            for topic in self.topics:
                self._meet(topic)
                ends = [self._store.log(*place).log_end_offset for place in self._positions if place[0] == topic]
                if seen.get(topic) == ends:
                    continue
                seen[topic] = ends
                offsets = {number: at for (of, number), at in self._positions.items() if of == topic}
                records = self._store.read(
                    topic, offsets=offsets, merge=self._merge, isolation=self._isolation, on_lag=self._on_lag
                )
                for record in records:
                    found = True
                    yield record
            if not self._follow:
                return
            if found:
                deadline, pause = self._deadline(), FIRST_PAUSE
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    @property
    def _on_lag(self) -> Literal["raise", "start"]:
        return "start" if self._reset == "earliest" else "raise"

    def _deadline(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

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
        return f"<kstore.Consumer {state}of group {self.group!r} in {', '.join(self.topics)}>"


def _check_range(log: Log, offset: int) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {log.topic}-{log.partition}: {start} to {end} are there",
            log_start_offset=start,
            log_end_offset=end,
        )
