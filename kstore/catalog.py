"""What is in the directories of a store: topics, their partitions, and what is on its way out.

Owns the reading of directory names and the entries that the store hangs its open logs on; opens no log. The hardest
rule: what is no partition is passed over with a warning, never touched, and never keeps the rest from being used
(Kafka refuses to start; see compatibility.md).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kstore import fs, names
from kstore.errors import InvalidTopicError, KStoreError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from kstore.log import Log

logger = logging.getLogger("kstore")

_NOT_PARTITIONS = frozenset({"remote-log-index-cache"})
_UNSURE_NS = 50_000_000  # a directory changed so lately may change again within the same tick of its clock


class Entry:
    """One partition of a store: where it is, the log once it is open, or why it cannot be."""

    __slots__ = ("failure", "log", "opening", "partition", "root", "topic", "trusted")

    def __init__(self, topic: str, partition: int, root: str) -> None:
        self.topic = topic
        self.partition = partition
        self.root = root
        self.log: Log | None = None
        self.failure: KStoreError | None = None
        self.opening = threading.Lock()
        self.trusted = False  # nobody has written since a clean shutdown

    @property
    def path(self) -> str:
        """The partition's directory."""
        return f"{self.root}/{self.topic}-{self.partition}"

    @property
    def key(self) -> tuple[str, int]:
        """Topic and number, as the checkpoint files name it."""
        return self.topic, self.partition

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.partition} in {self.root}>"


def is_deleted(entry: Entry) -> bool:
    """Whether a partition has been deleted, with its topic, by this process."""
    return isinstance(entry.failure, UnknownTopicOrPartitionError)


@dataclass(slots=True)
class Found:
    """What a look at the directories found: partitions, those to be removed, names that are none, and doubles."""

    entries: list[Entry] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)  # paths of `-delete` directories
    passed_over: list[str] = field(default_factory=list)  # paths
    doubles: dict[tuple[str, int], list[str]] = field(default_factory=dict)


def look(roots: Iterable[str]) -> Found:
    """List the partition directories of each root (SEMANTICS.md 8.2).

    The metadata topic is the broker's and no log of ours. A partition in two roots is given once, and both are named.
    """
    found = Found()
    seen: dict[tuple[str, int], Entry] = {}
    for root in roots:
        for entry in fs.scandir(root):
            if not entry.is_dir() or entry.name in _NOT_PARTITIONS:
                continue
            try:
                parsed = names.parse_partition_name(entry.name)
                if not parsed.suffix:
                    names.check_topic(parsed.topic)
            except InvalidTopicError:
                found.passed_over.append(entry.path)
                continue
            if parsed.suffix == names.DELETE_DIRECTORY:
                found.deleted.append(entry.path)
            elif parsed.suffix or f"{parsed.topic}-{parsed.partition}" != entry.name:
                found.passed_over.append(entry.path)
            elif parsed.topic != names.METADATA_TOPIC:
                key = (parsed.topic, parsed.partition)
                if key in seen:
                    found.doubles.setdefault(key, [seen[key].root]).append(root)
                else:
                    seen[key] = Entry(parsed.topic, parsed.partition, root)
                    found.entries.append(seen[key])
    return found


class Catalog:
    """The topics of a store and their partitions, by name and number.

    Readers of this process take no lock: a topic's partitions are replaced as a whole. Whoever changes the catalog
    excludes others who do.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._topics: dict[str, dict[int, Entry]] = {}
        self.add(entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add partitions; one that is there already is kept as it is."""
        added: dict[str, dict[int, Entry]] = {}
        for entry in entries:
            added.setdefault(entry.topic, {})[entry.partition] = entry
        for topic, partitions in added.items():
            merged = partitions | self._topics.get(topic, {})
            self._topics[topic] = {number: merged[number] for number in sorted(merged)}

    def remove(self, topic: str) -> None:
        """Take a topic out."""
        self._topics.pop(topic, None)

    def drop(self, entries: Iterable[Entry]) -> None:
        """Take partitions out, and a topic with its last one."""
        for entry in entries:
            left = {n: e for n, e in self._topics.get(entry.topic, {}).items() if e is not entry}
            if left:
                self._topics[entry.topic] = left
            else:
                self._topics.pop(entry.topic, None)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(sorted(self._topics))

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def partitions(self, topic: str) -> Mapping[int, Entry]:
        """A topic's partitions by number; `UnknownTopicOrPartitionError`."""
        try:
            return self._topics[topic]
        except (KeyError, TypeError):
            raise UnknownTopicOrPartitionError(self._unknown(topic)) from None

    def _unknown(self, topic: object) -> str:
        if not isinstance(topic, str):
            return f"a topic is a str, not {type(topic).__name__}"
        known = self.topics
        shown = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
        return f"there is no topic {topic[:300]!r}; there {'are ' + shown if known else 'is none at all'}"

    def find(self, topic: str, partition: int) -> Entry:
        """One partition; `UnknownTopicOrPartitionError`."""
        partitions = self.partitions(topic)
        try:
            return partitions[partition]
        except (KeyError, TypeError):
            there = list(partitions)
            span = f"0 to {there[-1]}" if there == list(range(len(there))) else str(there)[1:-1][:200]
            raise UnknownTopicOrPartitionError(f"topic {topic} has no partition {partition!r}; it has {span}") from None

    def entries(self) -> list[Entry]:
        """All partitions."""
        return [entry for partitions in list(self._topics.values()) for entry in partitions.values()]

    def colliding(self, topic: str) -> str | None:
        """A topic whose name Kafka could not tell from this one in its metrics."""
        return next((other for other in self._topics if names.topics_collide(topic, other)), None)


class Watch:
    """A catalog that follows what another process does to the directories; for a store that only reads.

    Thread-safe.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = roots
        self.catalog = Catalog()
        self.passed_over: list[str] = []
        self._changed_ns: tuple[int, ...] = ()
        self.looks = 0  # how often the directories were read
        self._looking = threading.Lock()

    def refresh(self) -> list[Entry]:
        """Look again if a directory has changed; the partitions that have gone since."""
        with self._looking:
            changed_ns = tuple(fs.stat(root).st_mtime_ns for root in self.roots)
            if changed_ns == self._changed_ns:
                return []
            found = look(self.roots)
            self.looks += 1
            self.passed_over = found.passed_over
            there = {(entry.key, entry.root) for entry in found.entries}
            gone = [entry for entry in self.catalog.entries() if (entry.key, entry.root) not in there]
            self.catalog.drop(gone)
            self.catalog.add(found.entries)
            sure = time.time_ns() - max(changed_ns, default=0) > _UNSURE_NS
            self._changed_ns = changed_ns if sure else ()
            return gone


def real_paths(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """The canonical paths of a store's directories; `ValueError` for none or for one that is named twice (13.1)."""
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise TypeError(f"paths must be a log directory or an iterable of them, not {type(paths).__name__}")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: dict[str, str] = {}
    for path in given:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise TypeError(f"a log directory is a str or an os.PathLike of one, not {type(path).__name__}")
        if not os.fspath(path):
            raise ValueError("a log directory's path is empty; '.' is the current directory")
        real = os.path.realpath(os.fspath(path))
        if real in found:
            raise ValueError(f"the log directory {real} is named twice, as {found[real]!r} and {os.fspath(path)!r}")
        found[real] = os.fspath(path)
    if not found:
        raise ValueError("a store needs at least one log directory")
    return tuple(found)
