"""Plans the micro-batches of a stream, in the one process that Spark keeps for a query.

The planner keeps one store open for reading. It takes no lock, and looks again only at directories that have changed.
Invariant: a record that can no longer be read is an error, never a shorter stream, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kstore.errors import ConfigError, KStoreError, OffsetOutOfRangeError, StorageError, UnknownTopicOrPartitionError
from kstore.files import checkpoint
from kstore.files.stream_positions import StreamPositions, write_positions
from kstore.log.hosted_log import HostedLog
from kstore.spark.held_store import prefix_at
from kstore.spark.option_reader import Partition
from kstore.spark.scanning import LogMarks, Piece, topic_id_in
from kstore.spark.spark_options import Range, split
from kstore.spark.stream_offsets import StreamOffsets, share_out
from kstore.spark.stream_options import StreamOptions
from kstore.store.store import Store

logger = logging.getLogger("kstore")

HANGING_MS = 60_000
"""A transaction that holds readers of committed records back for so long is named in a warning."""


class _Logs(NamedTuple):
    """The chosen partitions at one time: their start and end offsets, and the ids of their topics."""

    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    topic_ids: Mapping[str, str]


class StreamPlanner:
    """Plans micro-batches. Not thread-safe."""

    def __init__(
        self,
        root: str,
        options: StreamOptions,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._options = options
        self._clock = clock
        self._prefix = prefix_at((root,), options.read.storage)
        if self._prefix is not None and options.group is not None:
            raise ConfigError(
                f"groupId is {options.group!r}: its positions are written beside the logs, and {root} is only read"
            )
        self._store = Store.open(root, "r") if self._prefix is None else self._prefix.open()
        self._root = self._store.paths[0]
        self._present: Mapping[str, Sequence[int]] = {}
        self._chosen: list[Partition] = []
        self._newest: Mapping[Partition, int] = {}
        self._frozen: Mapping[Partition, int] | None = None
        self._last_batch_ms = clock()
        self._written: StreamOffsets | None = None
        self._held: dict[Partition, tuple[int, int]] = {}  # the end that a transaction holds back, and since when
        self._cleaned: dict[Partition, int] = {}
        self._warned: set[tuple[str, object]] = set()

    def close(self) -> None:
        self._store.close()

    def initial(self) -> StreamOffsets:
        """Return the offsets at which a new query starts; raises the errors of `ReadOptions.offset`."""
        logs = self._look()
        read = self._options.read
        read.starting.check_names(self._chosen)
        starts = {place: read.offset(read.starting, *place, self._marks(place)) for place in self._chosen}
        return StreamOffsets(starts, logs.topic_ids)

    def freeze(self) -> None:
        """Let `latest` go no further than the present ends of the logs (Trigger.AvailableNow)."""
        self._frozen = self._look().ends

    def latest(self, start: StreamOffsets, most: int | None, least: int | None) -> StreamOffsets:
        """Return the end of the next micro-batch; `start` if there is none now.

        Args:
            start: The end of the last micro-batch.
            most: The most offsets of a micro-batch.
            least: The fewest offsets of a micro-batch, until `maxTriggerDelay` has passed since the last one.

        Raises:
            OffsetOutOfRangeError: If retention or a truncation deleted records that the stream has not read.
            UnknownTopicOrPartitionError: If a topic of the stream was deleted, or created again.
        """
        logs = self._look()
        self._newest = logs.ends
        begins = self._begins(start, logs)
        limits = logs.ends if self._frozen is None else self._frozen
        ends = {place: max(min(logs.ends[place], limits.get(place, 0)), begin) for place, begin in begins.items()}
        if self._frozen is not None:
            ends = {place: end for place, end in ends.items() if place in start.ends or place in self._frozen}
        backlogs = {place: end - begins[place] for place, end in ends.items()}
        total = sum(backlogs.values())
        now = self._clock()
        is_due = least is None or total >= least or now - self._last_batch_ms >= self._options.max_delay_ms
        if not is_due and self._frozen is None:
            return start
        if total:
            self._last_batch_ms = now
        shares = share_out(backlogs, most)
        topics = {topic for topic, _ in shares}
        known = {topic: topic_id for topic, topic_id in start.topic_ids.items() if topic in topics}
        return StreamOffsets(
            {place: begins[place] + share for place, share in shares.items()}, known | dict(logs.topic_ids)
        )

    def check(self, start: StreamOffsets) -> None:
        """Raise the errors of `latest` for a stream that has read up to `start`."""
        self._begins(start, self._look())

    def everything(self) -> StreamOffsets:
        """Return the present ends of the logs, for a caller that calls `check`."""
        logs = self._look()
        self._newest = logs.ends
        return StreamOffsets(logs.ends, logs.topic_ids)

    def newest(self) -> StreamOffsets:
        """Return the ends of the logs at the last look."""
        return StreamOffsets(self._newest)

    def pieces(self, start: StreamOffsets, end: StreamOffsets) -> list[Piece]:
        """Return the pieces that the tasks of the micro-batch `[start, end)` read."""
        read = self._options.read
        recreated = _recreated(start, end.topic_ids)
        ranges: list[tuple[Range, Callable[[int], int]]] = []
        for place, offset in sorted(end.ends.items()):
            begin = 0 if place[0] in recreated else start.ends.get(place, 0)
            if not read.fail_on_data_loss:
                begin = max(begin, self._start_of(place))
            if begin < offset:
                ranges.append((Range(*place, begin, offset), partial(self._border, place)))
        prefix = None if self._prefix is None else self._prefix.planned()
        below = self._root if prefix is None else prefix.url
        return [
            Piece(f"{below}/{each.topic}-{each.partition}", *each, end.topic_ids.get(each.topic), prefix)
            for each in split(ranges, read.min_partitions, read.max_records)
        ]

    def done(self, offsets: StreamOffsets) -> None:
        """Write the positions of the group, if there is one: the query has processed everything below `offsets`."""
        group = self._options.group
        if group is None or offsets == self._written:
            return
        try:
            write_positions(self._root, StreamPositions(group, self._clock(), offsets.ends))
            self._written = offsets
        except StorageError as error:
            if self._is_first("positions", group):
                logger.warning("%s: the positions of group %s are not written: %s", self._root, group, error)

    # The logs now.

    def _look(self) -> _Logs:
        self._store.refresh()
        present: dict[str, Sequence[int]] = {}
        for topic in self._store.topics:
            with contextlib.suppress(UnknownTopicOrPartitionError):  # it was deleted just now
                present[topic] = self._store.partitions(topic)
        if present != self._present:
            self._chosen = self._options.read.choose(present)
            self._present = present
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        topic_ids: dict[str, str] = {}
        for place in self._chosen:
            topic, number = place
            if topic not in topic_ids:
                # The id is read before the log, so that a topic that is created again in between is noticed.
                topic_id = topic_id_in(f"{self._root}/{topic}-{number}")
                if topic_id is not None:
                    topic_ids[topic] = topic_id
            try:
                marks = self._marks(place)
            except KStoreError:
                if place[0] in self._store.topics:
                    raise
                continue  # the topic was deleted just now
            starts[place], ends[place] = marks.start, marks.end
            if self._options.read.isolation == "read_committed":
                self._watch_transactions(place, marks.end)
        return _Logs(starts, ends, topic_ids)

    def _marks(self, place: Partition) -> LogMarks:
        return LogMarks(self._store.log(*place), self._options.read.isolation)

    def _start_of(self, place: Partition) -> int:
        """Return the log start offset; 0 if it cannot be read, which the task that reads the partition reports."""
        try:
            return self._store.log(*place).log_start_offset
        except KStoreError:
            return 0

    def _border(self, place: Partition, cut: int) -> int:
        """Return where the batch with offset `cut` begins; `cut` if that cannot be read, which the task reports."""
        try:
            return self._marks(place).border(cut)
        except KStoreError:
            return cut

    # What a stream can lose.

    def _begins(self, start: StreamOffsets, logs: _Logs) -> dict[Partition, int]:
        """Return where each partition goes on; raise an error, or warn, for what can no longer be read."""
        recreated = _recreated(start, logs.topic_ids)
        for topic in sorted(recreated):
            self._lost(
                UnknownTopicOrPartitionError,
                f"topic {topic} was deleted and created again: its id was {start.topic_ids[topic]}, and is now "
                f"{logs.topic_ids[topic]}",
                "starts with the first record of the new topic",
            )
        for place in sorted(start.ends.keys() - logs.ends.keys()):
            self._lost(
                UnknownTopicOrPartitionError,
                f"{_name(place)}, of which offset {start.ends[place]} is next, is gone",
                "goes on without it",
            )
        begins = {}
        for place in sorted(logs.ends):
            first, end = logs.starts[place], logs.ends[place]
            begin = 0 if place[0] in recreated else start.ends.get(place, 0)
            # With read_committed, an earlier run with another isolation may have read further than the end.
            if begin > end and begin > self._store.log(*place).log_end_offset:
                self._lost(
                    OffsetOutOfRangeError,
                    f"{_name(place)} ends at offset {end}, and the stream has read up to {begin}: records were cut off",
                    f"goes on at {end}",
                )
                begin = end
            if begin < first:
                reason = "retention has overtaken the stream" if place in start.ends else "the partition is new to it"
                self._lost(
                    OffsetOutOfRangeError,
                    f"{_name(place)} starts at offset {first}, and offset {begin} is the stream's next: {reason}; a "
                    f"longer retention.ms or a larger retention.bytes keeps records longer",
                    f"goes on at {first}",
                )
            begins[place] = max(begin, first)
            self._watch_cleaning(place, begins[place])
        return begins

    def _lost(self, kind: type[Exception], what: str, otherwise: str) -> None:
        if self._options.read.fail_on_data_loss:
            raise kind(f"{what}; with failOnDataLoss=false the stream {otherwise}")
        if self._is_first("lost", what):
            logger.warning("%s; the stream %s, since failOnDataLoss is false", what, otherwise)

    def _watch_cleaning(self, place: Partition, begin: int) -> None:
        """Warn if compaction removes records before the stream reads them."""
        try:
            cleaned = checkpoint.read_offset(self._root, checkpoint.CLEANER_OFFSETS, place)
        except StorageError as error:
            if self._is_first("cleaner", str(error)):
                logger.warning("%s: it is not known how far compaction has come: %s", self._root, error)
            return
        if cleaned is None:
            return
        before = self._cleaned.setdefault(place, cleaned)
        if cleaned > max(before, begin) and self._is_first("compacted", place):
            logger.warning(
                "%s: compaction has reached offset %d, and the stream is at %d: it does not get the records in "
                "between that have newer ones of the same key; a larger min.compaction.lag.ms keeps them longer",
                _name(place),
                cleaned,
                begin,
            )

    def _watch_transactions(self, place: Partition, end: int) -> None:
        """Warn if a transaction has held the stream back for `HANGING_MS`."""
        log = self._store.log(*place)
        now = self._clock()
        held_end, since = self._held.get(place, (-1, now))
        if end >= log.log_end_offset:
            self._held.pop(place, None)
        elif end != held_end:
            self._held[place] = (end, now)
        elif now - since >= HANGING_MS and self._is_first("hanging", (place, end)):
            opened = HostedLog(log).view.open_transactions()
            producers = ", ".join(str(producer_id) for first, producer_id in opened if first <= end)
            logger.warning(
                "%s: a transaction of producer %s is open at offset %d for more than %d s, and the stream waits for "
                "its end; the producer or the broker's kafka-transactions.sh ends it, and isolation=read_uncommitted "
                "reads on",
                _name(place),
                producers,
                end,
                HANGING_MS // 1000,
            )

    def _is_first(self, kind: str, what: object) -> bool:
        is_first = (kind, what) not in self._warned
        self._warned.add((kind, what))
        return is_first


def _recreated(before: StreamOffsets, topic_ids: Mapping[str, str]) -> set[str]:
    """Return the topics whose id has changed."""
    return {topic for topic, old in before.topic_ids.items() if topic_ids.get(topic, old) != old}


def _name(place: Partition) -> str:
    return f"{place[0]}-{place[1]}"
