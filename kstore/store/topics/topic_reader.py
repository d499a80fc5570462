"""`TopicReader`: reads the records of a topic's partitions as one iterator, or as columns.

Each partition is read by its `Log`; `_consume` merges the partitions, and `topic_follow` waits for new records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore._core import RecordIterator
from kstore.base import arguments, times
from kstore.errors import KStoreError
from kstore.log.log import Log
from kstore.log.reading.read_options import Isolation, OnLag, check_on_lag, checked_end
from kstore.store.catalog import Entry
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.topic_follow import FollowedRead, FollowOptions, TopicFollower, TopicPass, TopicView

if TYPE_CHECKING:
    from datetime import datetime

    from kstore.columns._columns import Columns
    from kstore.log.column_reads import Layout


class TopicRead(NamedTuple):
    """The arguments of `Store.read` and of other reads of a topic."""

    partitions: Iterable[int] | None = None
    offsets: Mapping[int, int] | None = None
    start_timestamp: int | datetime | None = None
    end_timestamp: int | datetime | None = None
    merge: str = "partition"
    isolation: Isolation = "read_uncommitted"
    follow: bool = False
    timeout: float | None = None
    durable: bool = False
    on_lag: OnLag = "raise"
    end_offsets: Mapping[int, int] | None = None  # for columns only


class ColumnOptions(NamedTuple):
    """The options of `Log.iter_columns` other than where it starts."""

    max_records: int | None
    max_bytes: int | None
    columns: Sequence[str] | None
    layout: Layout
    isolation: Isolation
    durable: bool
    threads: int | None


class _Parts(NamedTuple):
    """A topic's partitions, the numbers of those to read, and the offsets at which some of them start."""

    entries: Mapping[int, Entry]
    numbers: list[int]
    starts: dict[int, int]


class TopicReader:
    """Reads the topics of a store. Thread-safe, but each iterator is for one thread at a time."""

    def __init__(self, metadata: Metadata, logs: Logs) -> None:
        self._metadata = metadata
        self._logs = logs

    def log(self, topic: str, partition: int) -> Log:
        """Return the log of one partition; see `Store.log`."""
        return self._logs.log(self._metadata.current().find(topic, partition))

    def read(self, topic: str, wanted: TopicRead) -> Iterator[ConsumerRecord]:
        """Iterate over the records of a topic; see `Store.read`."""
        timeout = arguments.seconds("timeout", wanted.timeout)
        begun = self.begin(topic, wanted)
        return begun.records(FollowedRead(begun, timeout).rounds() if wanted.follow else begun.rounds())

    def begin(self, topic: str, wanted: TopicRead) -> TopicPass:
        """Start to read a topic; invalid arguments raise here."""
        if wanted.merge not in ("partition", "timestamp"):
            raise ValueError(f"merge is {wanted.merge!r}; 'partition' and 'timestamp' are allowed")
        check_on_lag(wanted.on_lag)
        entries, numbers, starts = self._parts(topic, wanted)

        def start(entry: Entry, is_new: bool = False) -> RecordIterator:
            records = self._logs.log(entry).read(
                starts.get(entry.partition),
                start_timestamp=None if is_new else wanted.start_timestamp,
                end_timestamp=wanted.end_timestamp,
                isolation=wanted.isolation,
                durable=wanted.durable,
                on_lag=wanted.on_lag,
            )
            assert isinstance(records, RecordIterator)
            return records

        # Partitions with an offset start now, so that a bad offset raises here; others start when they are reached.
        at_once = numbers if wanted.merge == "timestamp" else sorted(starts)
        started = {number: start(entries[number]) for number in at_once}
        return TopicPass(
            TopicView(self._metadata, self._logs, topic),
            entries,
            numbers,
            start,
            started,
            by_timestamp=wanted.merge == "timestamp",
            all_partitions=wanted.partitions is None,
            durable=wanted.durable,
        )

    def read_columns(self, topic: str, wanted: TopicRead, options: ColumnOptions) -> Iterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns; see `Store.read_columns`."""
        entries, numbers, starts = self._parts(topic, wanted)
        ends = wanted.end_offsets or {}

        def start(number: int) -> Iterator[Columns]:
            log = self._logs.log(entries[number])
            return log.iter_columns(
                starts.get(number),
                end_offset=ends.get(number),
                start_timestamp=wanted.start_timestamp,
                end_timestamp=wanted.end_timestamp,
                **options._asdict(),
            )

        started = {number: start(number) for number in [*sorted(starts), *numbers[:1]]}

        def chunks() -> Iterator[tuple[int, Columns]]:
            try:
                for number in numbers:
                    for chunk in started.pop(number, None) or start(number):
                        yield number, chunk
            except KStoreError as error:
                raise TopicView(self._metadata, self._logs, topic).explained(entries, error) from None

        return chunks()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the present ends of a topic's partitions."""
        entries = self._metadata.current().partitions(topic)
        try:
            return {number: self._logs.log(entry).log_end_offset for number, entry in sorted(entries.items())}
        except KStoreError as error:
            raise TopicView(self._metadata, self._logs, topic).explained(entries, error) from None

    def follow(self, topic: str, options: FollowOptions) -> TopicFollower:
        """Follow a topic for a consumer."""
        return TopicFollower(TopicView(self._metadata, self._logs, topic), options)

    def _parts(self, topic: str, wanted: TopicRead) -> _Parts:
        partitions, offsets, start_timestamp = wanted[:3]
        if start_timestamp is not None:
            if offsets:
                raise ValueError("give offsets or a start_timestamp, not both")
            times.moment("start_timestamp", start_timestamp)
        checked_end(wanted.end_timestamp, wanted.follow)
        if offsets is not None and not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must be a mapping of partitions to offsets, not {type(offsets).__name__}")
        entries = self._metadata.current().partitions(topic)
        numbers = None if partitions is None else _numbers(partitions)
        starts = {
            arguments.whole("a partition of offsets", number): offset for number, offset in (offsets or {}).items()
        }
        for number in {*(numbers or ()), *starts}:
            self._metadata.current().find(topic, number)
        if numbers is not None and not numbers.issuperset(starts):
            raise ValueError(f"offsets has partition {min(starts.keys() - numbers)}, which partitions has not")
        return _Parts(entries, sorted(entries if numbers is None else numbers), starts)


def _numbers(partitions: Iterable[int]) -> set[int]:
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions must be an iterable of numbers, not {type(partitions).__name__}")
    return {arguments.whole("a partition", number) for number in partitions}
