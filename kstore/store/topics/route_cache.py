"""`Routes`: caches the router and the open logs of each topic for appends, until the topic's partitions change."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING

from kstore.base import arguments
from kstore.errors import KStoreError, LogClosedError, StorageError, UnknownTopicOrPartitionError
from kstore.files.topic_files import MAX_PARTITIONS
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.writing.writer import Writer
from kstore.store.catalog import Entry, is_deleted
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs
from kstore.store.topics._partitioner import Router, partition_of
from kstore.store.topics._topic_append import Route

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STICKY_BYTES = 16_384  # batch.size of Kafka's producer: `append` draws another partition after this many bytes


class Routes:
    """The routes of a store; a route is replaced if the topic's partitions change or one goes offline. Thread-safe."""

    def __init__(self, metadata: Metadata, logs: Logs, seed: int | None) -> None:
        self.by_topic: dict[str, Route] = {}
        self.config_of = metadata.config_of
        self._metadata = metadata
        self._logs = logs
        self._seed = seed

    def find(self, topic: str) -> Route:
        """Return the route of a topic for its current partitions."""
        manager = self._logs.leading()
        entries = self._metadata.catalog.partitions(topic)
        route = self.by_topic.get(topic)
        if route is None or route.entries is not entries:
            seed = None if self._seed is None else self._seed + zlib.crc32(topic.encode())
            router = self.router(topic, entries, seed)
            route = self.by_topic[topic] = Route(topic, entries, router, manager.now)
        return route

    def forget(self, topic: str) -> None:
        """Drop the topic's route; the next `find` makes a new one."""
        self.by_topic.pop(topic, None)

    def router(self, topic: str, entries: Mapping[int, Entry], seed: int | None) -> Router:
        """Make a router; keys are hashed over all partitions, including those that are not in this store."""
        count = self._count(topic)
        usable = [number for number, entry in entries.items() if self._is_usable(entry)] or list(entries)
        return Router(count, sticky_bytes=STICKY_BYTES, seed=seed, available=usable if len(usable) < count else None)

    def partition_for(self, topic: str, key: ReadableBuffer) -> int:
        """Return the partition to which an append sends a key; see `Store.partition_for`."""
        if key is None:
            raise TypeError("key is None; a record without a key has no partition before it is appended")
        self._metadata.current().partitions(topic)
        return partition_of(key, self._count(topic))

    def _count(self, topic: str) -> int:
        count = self._metadata.partition_count(topic)
        if count > MAX_PARTITIONS:  # names of directories and files may contain any number, and partitions take memory
            raise UnknownTopicOrPartitionError(
                f"topic {topic} has a partition {count - 1}: it can be read, but nothing is appended to a topic of "
                f"more than {MAX_PARTITIONS} partitions"
            )
        return count

    def _is_usable(self, entry: Entry) -> bool:
        """Return False if appends to the partition are known to fail."""
        log = entry.log
        if entry.failure is not None or (log is not None and log.failed is not None):
            return False
        directory = self._logs.writing().disks.directories.get(entry.root)
        return directory is not None and directory.offline is None

    def partition(self, topic: str, partition: int) -> int:
        """Check the number of a partition that a caller gave; raise `UnknownTopicOrPartitionError` or `TypeError`."""
        return self._metadata.catalog.find(topic, arguments.whole("partition", partition)).partition

    def log(self, topic: str, partition: int) -> Log:
        return self._logs.log(self._metadata.catalog.find(topic, partition))

    def open(self, route: Route, number: int) -> tuple[Log, Writer]:
        """Open a partition's log if it is closed, attach its writer to the route, and return both."""
        log = self._logs.log(route.entries.get(number) or self._metadata.catalog.find(route.topic, number))
        writer = HostedLog(log).writer
        if route.writers[number] is not writer:
            route.attach(number, writer)
        return log, writer

    def reason(self, topic: str, error: BaseException) -> BaseException:
        """Return the exception that an append raises for this error; the next append makes a new route."""
        if isinstance(error, StorageError):
            self.forget(topic)  # the next append checks which partitions are still in service
        elif isinstance(error, LogClosedError):
            self.forget(topic)
            reason = self._closed_or_deleted(topic, error)
            reason.__suppress_context__ = reason is not error or error.__suppress_context__
            return reason
        return error

    def _closed_or_deleted(self, topic: str, error: LogClosedError) -> KStoreError:
        """Return why a log was closed during an append: the store was closed, or the topic was deleted."""
        try:
            self._logs.writing()
            for entry in self._metadata.catalog.partitions(topic).values():
                if entry.failure is not None and is_deleted(entry):
                    return copy(entry.failure)
        except KStoreError as reason:
            return reason
        return error
