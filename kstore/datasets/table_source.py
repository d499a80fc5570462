"""The logs behind a dataset: partitions of a store or of directories, or a log, and the end of a scan in each."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kstore.base import arguments, times
from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.columns._columns import Columns
from kstore.columns.keyed_rows import ROW_COLUMNS
from kstore.datasets.known_times import KnownTimes
from kstore.datasets.spans import Span, joined
from kstore.errors import ConfigError, KStoreError, UnknownTopicOrPartitionError
from kstore.log import lateness
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.log_table import checked
from kstore.log.reading._timestamp_lookup import first_at
from kstore.log.reading.read_options import Isolation, wants_committed
from kstore.log.reading.remote_view import RemoteView
from kstore.objects.remote_prefix import NO_OPTIONS, RemoteOptions, is_prefix
from kstore.store.catalog import segment_in
from kstore.store.store import Store, partition_count

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Store | Log
Topics = str | Iterable[str] | re.Pattern[str] | None
MAX_LATENESS = "max_lateness"

AsOf = int | datetime | Mapping[int, int] | None


class Part(NamedTuple):
    """A partition, and the ranges of offsets that a scan reads of it."""

    topic: str
    number: int
    log: Log
    spans: tuple[Span, ...]
    version: int = -1  # of the log when the scan began


@dataclass(frozen=True)
class TableOptions:
    """What rows a dataset has, and what is known of them."""

    isolation: Isolation = "read_uncommitted"
    as_of: AsOf = None
    latest: bool = False
    max_lateness: int | None = None  # in milliseconds
    partitioned_by_key: bool = False
    threads: int | None = None


def table_options(
    isolation: Isolation,
    as_of: AsOf,
    latest: bool,
    max_lateness: int | timedelta | None,
    partitioned_by_key: bool,
    threads: int | None,
) -> TableOptions:
    """Check a caller's arguments."""
    wants_committed(isolation)
    if isinstance(as_of, Mapping):
        as_of = {
            arguments.whole("a partition of as_of", number): arguments.whole("an offset of as_of", offset)
            for number, offset in as_of.items()
        }
    else:
        as_of = checked(as_of)
    if isinstance(max_lateness, timedelta):
        max_lateness = max_lateness // timedelta(milliseconds=1)
    if max_lateness is not None:
        max_lateness = arguments.integer("max_lateness", max_lateness, low=0)
    if threads is not None:
        threads = arguments.integer("threads", threads, low=1)
    return TableOptions(isolation, as_of, bool(latest), max_lateness, bool(partitioned_by_key), threads)


class TableSource:
    """The partitions that a dataset reads. Thread-safe."""

    def __init__(self, source: Source, topics: Topics, remote: RemoteOptions = NO_OPTIONS) -> None:
        self._log: Log | None = None
        self._store: Store | None = None
        self._known: WeakKeyDictionary[Log, KnownTimes] = WeakKeyDictionary()
        self._topics = topics if topics is None or isinstance(topics, str | re.Pattern) else _names(topics)
        self.has_topics = not isinstance(topics, str)
        if isinstance(source, Store | Log):
            remote.refuse_unused(source)
        elif isinstance(source, str | os.PathLike) and not is_prefix(source):
            path = os.path.abspath(arguments.path("a log directory's path", source))
            if segment_in(path) is not None:
                remote.refuse_unused(path)
                source = Log.open(path, "r")
                weakref.finalize(self, source.close)
        if isinstance(source, Log):
            if topics not in (None, source.topic):
                raise ConfigError(f"topic is {topics!r}, and the log is one of {source.topic!r}; leave the topic out")
            self._log, self.has_topics = source, False
            return
        if not isinstance(source, Store):
            source = Store.open(source, mode="r", **remote._asdict())
            weakref.finalize(self, source.close)
        self._store = source
        if isinstance(topics, str):
            source.partitions(topics)  # raises if there is no such topic

    def places(self) -> list[tuple[str, int]]:
        """Return the present topics and partitions to read, sorted."""
        if self._log is not None:
            return [(self._log.topic, self._log.partition)]
        assert self._store is not None
        return [(topic, number) for topic in self.topics() for number in self._store.partitions(topic)]

    def topics(self) -> tuple[str, ...]:
        """Return the present topics to read; raise `UnknownTopicOrPartitionError` if a named topic is not there."""
        if self._log is not None:
            return (self._log.topic,)
        assert self._store is not None
        chosen = self._topics
        if isinstance(chosen, str):
            return (chosen,)
        if isinstance(chosen, tuple):
            return chosen
        present = self._store.topics
        if chosen is None:
            return tuple(topic for topic in present if not topic.startswith("__"))
        return tuple(topic for topic in present if chosen.fullmatch(topic))

    def log(self, topic: str, number: int) -> Log:
        """Return the open log of a partition."""
        if self._log is not None:
            return self._log
        assert self._store is not None
        return self._store.log(topic, number)

    @staticmethod
    def present_version(log: Log) -> int:
        """Return a number that changes when records are removed from the log, as of now."""
        HostedLog(log).view.refresh()
        return KnownTimes.version(log)

    def explained(self, topic: str, error: KStoreError) -> KStoreError:
        """Return the error to raise if a partition of a topic cannot be read: a deleted topic is named."""
        if self._store is not None and topic not in self._store.topics:
            return UnknownTopicOrPartitionError(f"topic {topic} has been deleted while it was read")
        return error

    def known_times(self, log: Log) -> KnownTimes:
        """Return what earlier scans have found out about the timestamps of a log."""
        return self._known.setdefault(log, KnownTimes())

    def spans_of_times(self, log: Log, span: Span, low: int, high: int, max_lateness: int | None) -> list[Span]:
        """Return ranges in `span` that have all records with a timestamp in `[low, high]`.

        Records before the first one at or after `low` are older. Records after one that is newer than `high` may still
        be in the interval, unless `max_lateness` or an earlier scan tells how old later ones can be.
        """
        start, end = span
        view = HostedLog(log).view
        least = -1
        if low > LONG_MIN:
            if max_lateness is not None:
                least = lateness.start_by(log, low, max_lateness)
            found = first_at(view, low, least)
            start = end if found is None else max(start, found.offset)
        if high < LONG_MAX and start < end and max_lateness is not None:
            found_end = lateness.end_by(log, high + 1, max_lateness, MAX_LATENESS, least)
            end = end if found_end is None else min(end, found_end)
        parts = [Span(start, end)]
        if isinstance(view, RemoteView) and low > LONG_MIN:
            parts = list(joined(Span(*part) for part in view.ranges_since(start, end, low)))
        if high == LONG_MAX:
            return parts
        known = self.known_times(log)
        return [left for part in parts for left in known.without_newer(log, part, high)]

    def with_keys(self, places: list[tuple[str, int]], keys: list[bytes] | None) -> list[tuple[str, int]]:
        """Return the places where Kafka's default partitioner puts these keys; all of them for None.

        All partitions of a topic are kept if some are missing, since the partitioner depends on their number.
        """
        store = self._store
        if store is None or keys is None:
            return places
        kept: set[tuple[str, int]] = set()
        for topic in {topic for topic, _ in places}:
            numbers: Iterable[int] = store.partitions(topic)
            if tuple(numbers) == tuple(range(partition_count(store, topic))):
                numbers = {store.partition_for(topic, key) for key in keys}
            kept.update((topic, number) for number in numbers)
        return [place for place in places if place in kept]

    def latest(self, topic: str, as_of: AsOf) -> Iterator[tuple[int, Columns]]:
        """Return the newest record of each key of a topic, as pairs of a partition and columns."""
        if self._log is not None:
            moment = as_of.get(self._log.partition) if isinstance(as_of, Mapping) else as_of
            for chunk in self._log.latest(as_of=moment).iter_columns(ROW_COLUMNS):
                yield self._log.partition, chunk
            return
        assert self._store is not None
        if isinstance(as_of, int):
            as_of = dict.fromkeys(self._store.partitions(topic), as_of)
        for chunk in self._store.table(topic, as_of=as_of).iter_columns(("partition", *ROW_COLUMNS)):
            yield int(chunk["partition"][0]), chunk

    def span(self, topic: str, number: int, options: TableOptions) -> Span:
        """Return the offsets that a scan that starts now reads of a partition."""
        log = self.log(topic, number)
        start = log.log_start_offset
        end = log.last_stable_offset if options.isolation == "read_committed" else log.log_end_offset
        moment = options.as_of.get(number) if isinstance(options.as_of, Mapping) else options.as_of
        if isinstance(moment, datetime):
            found = log.offset_for_timestamp(times.moment("as_of", moment) + 1)
            moment = None if found is None else found.offset
        return Span(start, max(start, end if moment is None else min(end, moment)))


def _names(topics: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(topics)
    for topic in chosen:
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        if chosen.count(topic) > 1:
            raise ConfigError(f"the topic {topic!r} is named twice")
    if not chosen:
        raise ConfigError("no topic is named; None means all topics")
    return chosen
