"""The contents of a store's directories: topics, their partitions, and directories to be removed.

Reads directory names, and makes the entries that hold the store's open logs; opens no log. Invariant: anything that is
not a partition is skipped with a warning and never changed, and the partitions can still be used (Kafka refuses to
start; see compatibility.md).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kstore.base import arguments
from kstore.base.times import is_settled
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidTopicError, KStoreError, StorageError, UnknownTopicOrPartitionError
from kstore.files import names

if TYPE_CHECKING:
    from kstore.log.log import Log

logger = logging.getLogger("kstore")

_MAKING_NS = 1_000_000_000

_NOT_PARTITIONS = frozenset({"remote-log-index-cache"})


class Entry:
    """One partition of a store: its directory, its log if that is open, and why the log cannot be opened."""

    __slots__ = ("failure", "log", "opening", "partition", "root", "topic", "trusted", "waits")

    def __init__(self, topic: str, partition: int, root: str) -> None:
        self.topic = topic
        self.partition = partition
        self.root = root
        self.log: Log | None = None
        self.failure: KStoreError | None = None
        self.waits: KStoreError | None = None  # why the last opening failed; it is retried
        self.opening = threading.Lock()
        self.trusted = False  # whether its log was not written since a clean shutdown

    @property
    def path(self) -> str:
        return f"{self.root}/{self.topic}-{self.partition}"

    @property
    def key(self) -> tuple[str, int]:
        """Topic and number, as the checkpoint files name the partition."""
        return self.topic, self.partition

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.partition} in {self.root}>"


def is_deleted(entry: Entry) -> bool:
    """Return whether this process has deleted a partition with its topic."""
    return isinstance(entry.failure, UnknownTopicOrPartitionError)


def is_half_made(entry: Entry) -> bool:
    """Return whether another process may still be making a partition, for instance writing its topic id.

    True if the partition's directory has changed in the last second or does not exist.
    """
    try:
        return time.time_ns() - fs.stat(entry.path).st_mtime_ns < _MAKING_NS
    except StorageError:
        return True


@dataclass(slots=True)
class Listing:
    """The contents of the directories: partitions, directories to be removed, other names, partitions in two roots."""

    entries: list[Entry] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)  # paths of `-delete` directories
    passed_over: list[str] = field(default_factory=list)  # paths
    doubles: dict[tuple[str, int], list[str]] = field(default_factory=dict)


def look(roots: Iterable[str]) -> Listing:
    """List the partition directories of each root (SEMANTICS 8.2).

    The broker's metadata topic is left out. A partition in two roots is listed once, and `doubles` has both roots.
    Symbolic links are skipped: their targets may be outside of the directories that the caller named.
    """
    listing = Listing()
    seen: dict[tuple[str, int], Entry] = {}
    for root in roots:
        for entry in fs.scandir(root):
            if entry.is_symlink():
                listing.passed_over.append(entry.path)
                continue
            if not entry.is_dir(follow_symlinks=False) or entry.name in _NOT_PARTITIONS:
                continue
            try:
                parsed = names.parse_partition_name(entry.name)
                if not parsed.suffix:
                    names.check_topic(parsed.topic)
            except InvalidTopicError:
                listing.passed_over.append(entry.path)
                continue
            if parsed.suffix == names.DELETE_DIRECTORY:
                listing.deleted.append(entry.path)
            elif parsed.suffix or f"{parsed.topic}-{parsed.partition}" != entry.name:
                listing.passed_over.append(entry.path)
            elif parsed.topic != names.METADATA_TOPIC:
                key = (parsed.topic, parsed.partition)
                if key in seen:
                    listing.doubles.setdefault(key, [seen[key].root]).append(root)
                else:
                    seen[key] = Entry(parsed.topic, parsed.partition, root)
                    listing.entries.append(seen[key])
    return listing


class Catalog:
    """The topics of a store and their partitions, by name and number.

    `by_topic` has each topic's partitions by number. Readers take no lock, since a topic's partitions are replaced as a
    whole. One thread at a time changes the catalog (`Metadata.changing`).
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.by_topic: dict[str, dict[int, Entry]] = {}
        self._by_metric: dict[str, list[str]] = {}  # topics whose names metrics cannot distinguish
        self.add(entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add partitions; existing partitions are kept."""
        added: dict[str, dict[int, Entry]] = {}
        for entry in entries:
            added.setdefault(entry.topic, {})[entry.partition] = entry
        for topic, partitions in added.items():
            if topic not in self.by_topic:
                self._by_metric.setdefault(names.metric_name(topic), []).append(topic)
            merged = partitions | self.by_topic.get(topic, {})
            self.by_topic[topic] = {number: merged[number] for number in sorted(merged)}

    def remove(self, topic: str) -> None:
        if self.by_topic.pop(topic, None) is not None:
            alike = self._by_metric[names.metric_name(topic)]
            alike.remove(topic)
            if not alike:
                del self._by_metric[names.metric_name(topic)]

    def drop(self, entries: Iterable[Entry]) -> None:
        """Remove partitions, and topics that have none left."""
        for entry in entries:
            left = {n: e for n, e in self.by_topic.get(entry.topic, {}).items() if e is not entry}
            if left:
                self.by_topic[entry.topic] = left
            else:
                self.remove(entry.topic)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self.by_topic))

    def __contains__(self, topic: object) -> bool:
        return topic in self.by_topic

    def partitions(self, topic: str) -> Mapping[int, Entry]:
        """Return a topic's partitions by number; raise `UnknownTopicOrPartitionError` if there is no such topic."""
        try:
            return self.by_topic[topic]
        except (KeyError, TypeError):
            raise UnknownTopicOrPartitionError(self._unknown(topic)) from None

    def _unknown(self, topic: object) -> str:
        if not isinstance(topic, str):
            return f"a topic is a str, not {type(topic).__name__}"
        names = self.topics
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return f"there is no topic {topic[:300]!r}; there {'are ' + shown if names else 'is none at all'}"

    def find(self, topic: str, partition: int) -> Entry:
        """Return one partition; raise `UnknownTopicOrPartitionError` if there is none."""
        partitions = self.partitions(topic)
        try:
            return partitions[partition]
        except (KeyError, TypeError):
            numbers = list(partitions)
            span = f"0 to {numbers[-1]}" if numbers == list(range(len(numbers))) else str(numbers)[1:-1][:200]
            raise UnknownTopicOrPartitionError(f"topic {topic} has no partition {partition!r}; it has {span}") from None

    def entries(self) -> list[Entry]:
        return [entry for partitions in list(self.by_topic.values()) for entry in partitions.values()]

    def colliding(self, topic: str) -> str | None:
        """Return an existing topic whose name Kafka's metrics cannot distinguish from `topic`, or None."""
        return next(iter(self._by_metric.get(names.metric_name(topic), ())), None)


class Watch:
    """A catalog for a store that only reads, updated when another process has changed the directories.

    Thread-safe.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = roots
        self.catalog = Catalog()
        self.passed_over: list[str] = []
        self._changed_ns: tuple[int, ...] = ()
        self.looks = 0  # how often the directories were read
        self._looking = threading.Lock()

    def look_again(self) -> None:
        """Read the directories again, even if they seem unchanged."""
        self._changed_ns = ()
        self.refresh()

    def refresh(self) -> list[Entry]:
        """Read the directories again if one has changed; return the partitions that have disappeared."""
        with self._looking:
            changed_ns = tuple(fs.stat(root).st_mtime_ns for root in self.roots)
            if changed_ns == self._changed_ns:
                return []
            listing = look(self.roots)
            self.looks += 1
            self.passed_over = listing.passed_over
            present = {(entry.key, entry.root) for entry in listing.entries}
            # A partition that is refused because its directory is missing is kept until the directory exists.
            gone = [
                entry
                for entry in self.catalog.entries()
                if ((entry.key, entry.root) in present) == (entry.failure is not None)
            ]
            self.catalog.drop(gone)
            self.catalog.add(listing.entries)
            self._changed_ns = changed_ns if is_settled(max(changed_ns, default=0)) else ()
            return gone


def real_paths(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the canonical paths of a store's directories.

    Raises `ConfigError` if there is no path, if a path is empty, or if a directory is named twice (SEMANTICS 13.1).
    """
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise TypeError(f"paths must be a log directory or an iterable of them, not {type(paths).__name__}")
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    by_real: dict[str, str] = {}
    for path in named:
        given = arguments.path("a log directory's path", path)
        real = given if fs.is_mounted(given) else os.path.realpath(given)
        if real in by_real:
            raise ConfigError(f"the log directory {real} is named twice, as {by_real[real]!r} and {given!r}")
        by_real[real] = given
    if not by_real:
        raise ConfigError("a store needs at least one log directory")
    return tuple(by_real)


def segment_in(path: str) -> str | None:
    """Return the name of a segment in a directory that is named like a partition; None if there is none."""
    if not names.is_partition_name(os.path.basename(path)):
        return None
    try:
        files = fs.listdir(path)
    except StorageError:
        return None  # missing or unreadable: its opening raises
    parsed = ((name, names.parse_file_name(name)) for name in files)
    return next((name for name, known in parsed if known is not None and known.kind == names.LOG), None)


def refuse_partition(path: str) -> None:
    """Raise `ConfigError` for a directory that is named like a partition and has a segment in it."""
    name = segment_in(path)
    if name is not None:
        raise ConfigError(
            f"{path} is the directory of a partition, with {name} in it; a store is opened at the log directory "
            f"that holds it: {os.path.dirname(path)}"
        )
