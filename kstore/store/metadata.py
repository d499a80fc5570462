"""The topics of a store: their partitions, the file of topics, and the settings in force for each topic.

Invariant: settings and partition counts belong to topic ids: those of a former topic of the same name are ignored.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from errno import EBADMSG

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import CorruptRecordError, StorageError, closed
from kstore.files import checkpoint, names
from kstore.files.follower_file import FollowerRole, read_roles
from kstore.files.topic_files import (
    TopicTable,
    cleaned_topics,
    cleans_itself,
    inherited_config,
    missing_partitions,
    read_topics,
)
from kstore.store.catalog import Catalog, Entry, Watch


class Metadata:
    """The topics of a store that writes. `changing` is held while topics are created, changed or deleted.

    Reading takes no lock. Thread-safe.
    """

    def __init__(self, paths: tuple[str, ...], config: LogConfig, broker: BrokerConfig) -> None:
        self.paths = paths
        self.config = config  # a topic's own settings override it
        self.broker = broker
        self.catalog = Catalog()
        self.table = TopicTable()
        self.passed_over: list[str] = []
        self.closed = False
        self.opened_in = 0  # in a forked child: the process that opened the store
        self.role: FollowerRole | None = None  # None: a leader
        self.changing = threading.RLock()
        self._roots: Sequence[str] = paths
        self._configs: dict[str, LogConfig] = {}
        self._compacted: dict[str, bool] = {}
        self._cleaned: tuple[frozenset[str] | None] | None = None
        fs.register(self)

    def load(self, catalog: Catalog, roots: Sequence[str]) -> None:
        """Adopt a catalog of partitions, and read the file of topics in the directories `roots`."""
        self._roots = roots
        self.catalog = catalog
        self.table = read_topics(roots)

    def close(self) -> None:
        """Close the metadata: `current` and `refuse_if_closed` raise `LogClosedError` from now on."""
        self.closed = True

    def refuse_if_closed(self) -> None:
        """Raise `LogClosedError` if the store is closed."""
        if self.closed:
            raise closed(f"the store at {', '.join(self.paths)}", self.opened_in)

    def refuse_if_follower(self) -> None:
        """Raise `NotLeaderError` in a follower."""
        if self.role is not None:
            raise self.role.refusal(", ".join(self.paths))

    def _after_fork(self) -> None:
        """Close in a child process, where the thread that held the lock may not exist."""
        self.closed, self.opened_in = True, fs.opener()
        self.changing = threading.RLock()

    # Partitions.

    def current(self) -> Catalog:
        """Return the present topics and partitions."""
        self.refuse_if_closed()
        return self.catalog

    def current_role(self) -> FollowerRole | None:
        """Return the store's present role as a follower; None for a leader."""
        return self.role

    def partitions(self, topic: str) -> Mapping[int, Entry]:
        """Return the known partitions of a topic; empty if the topic is not here."""
        return self.catalog.partitions(topic) if topic in self.catalog else {}

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, including those on a missing disk; 0 if there is no such topic."""
        entries = self.partitions(topic)
        if not entries:
            return 0
        record = self.table.topics.get(topic)
        if record is None or record is not self.table.find(topic, id_on_disk(entries)):
            return max(entries) + 1
        return max(max(entries) + 1, record.partitions)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return a topic's id; None if there is no such topic, or if it is older than Kafka's topic ids."""
        return id_on_disk(self.partitions(topic))

    def find_missing(self, roots: Sequence[str]) -> list[Entry]:
        """Return the partitions that a checkpoint file names but that have no directory, each marked as refused.

        A partition without a checkpoint line is not counted: it may never have had records. A missing partition may be
        in a directory that is not open now, or a broker may have deleted its topic.
        """
        # A partition that was missing before is searched for again.
        by_topic = {
            topic: {
                number: entry for number, entry in entries.items() if not isinstance(entry.failure, CorruptRecordError)
            }
            for topic, entries in self.catalog.by_topic.items()
        }
        present = {(topic, number) for topic, entries in by_topic.items() for number in entries}
        here = {topic for topic, entries in by_topic.items() if entries}
        missing = []
        for topic, number, root, offset in missing_partitions(roots, self.table.topics, present, here):
            record = self.table.topics.get(topic)
            if record is not None and topic in here and not self._is_current(topic):
                continue
            entry = Entry(topic, number, root)
            partitions = "other partitions" if record is None else f"{record.partitions} partitions"
            is_link = any(os.path.islink(os.path.join(at, os.path.basename(entry.path))) for at in roots)
            instead = ", and a symbolic link, which is not followed, is in its place" if is_link else ""
            entry.failure = CorruptRecordError(
                f"the partition's directory is missing{instead}: topic {topic} has {partitions}, and "
                f"the checkpoint files know of offset {offset} in this one; see `kstore repair`",
                path=entry.path,
            )
            missing.append(entry)
        return missing

    def _is_current(self, topic: str) -> bool:
        """Return whether a topic's record has the topic's id; False if no partition's id can be read."""
        return self.refusal(topic) is None and self.table.find(topic, self.topic_id(topic)) is not None

    def refusal(self, topic: str) -> StorageError | None:
        """Return the error if a topic's id is unknown because all its `partition.metadata` files are malformed."""
        try:
            self.topic_id(topic)
        except StorageError as error:
            if error.errno != EBADMSG:
                raise
            return error
        return None

    # Settings.

    def config_of(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic: its own, then the store's, then the defaults (SEMANTICS 13.11)."""
        configs = self._configs
        config = configs.get(topic)
        if config is None:
            self.catalog.partitions(topic)
            config = configs[topic] = self.config.for_topic(self.overrides(topic))
        return config

    def overrides(self, topic: str) -> Mapping[str, str]:
        """Return a topic's own settings; if kstore has no record of them, those inferred by `inherited_config`."""
        inherited = inherited_config(topic, self._cleaned_by_others())
        record = self.table.find(topic)
        if record is not None and (record.config or inherited):
            record = self.table.find(topic, self.topic_id(topic))
        return inherited if record is None else record.config

    def _cleaned_by_others(self) -> frozenset[str] | None:
        """Return the topics that another cleaner than the store's may have cleaned; None if that cannot be read."""
        if cleans_itself(self._roots, self.config.compacts):
            return frozenset()
        if self._cleaned is None:
            self._cleaned = (cleaned_topics(self._roots),)
        return self._cleaned[0]

    def is_compacted(self, topic: str) -> bool:
        """Return whether a cleaner may drop records of a topic: its own or the store's policy has `compact`.

        A line in the cleaner's checkpoint is not enough, since a broker keeps the line when the policy is changed; the
        line only protects the topic from retention (`overrides`).
        """
        told = self._compacted.get(topic)
        if told is None:
            told = self._compacted[topic] = self.config_of(topic).compacts and self._says_compact(topic)
        return told

    def _says_compact(self, topic: str) -> bool:
        if self.config.compacts or topic in names.INTERNAL_TOPICS:
            return True
        record = self.table.find(topic)
        record = None if record is None else self.table.find(topic, self.topic_id(topic))
        return record is not None and "cleanup.policy" in record.config

    def forget_config(self, topic: str | None = None) -> None:
        """Compute a topic's settings again when they are next needed; None means all topics."""
        if topic is None:
            self._configs, self._compacted = {}, {}
        else:
            self._configs.pop(topic, None)
            self._compacted.pop(topic, None)


class WatchedMetadata(Metadata):
    """The topics of a store that only reads, updated when another process has changed the directories."""

    def __init__(self, paths: tuple[str, ...], config: LogConfig, broker: BrokerConfig) -> None:
        super().__init__(paths, config, broker)
        self._watch = Watch(paths)
        self._watch.refresh()
        self._table_looks = self._watch.looks  # `Watch.looks` when the table was read
        self.load(self._watch.catalog, paths)
        self.passed_over = self._watch.passed_over
        self._refuse_missing()

    def current(self) -> Catalog:
        self.refuse_if_closed()
        self._watch.refresh()
        if self._watch.looks != self._table_looks:
            self.table = read_topics(self.paths)
            self.forget_config()
            self._refuse_missing()
            self._table_looks = self._watch.looks
        return self.catalog

    def current_role(self) -> FollowerRole | None:
        return read_roles(self.paths)

    def config_of(self, topic: str) -> LogConfig:
        if not self.closed:
            self.current()  # the writing process may have changed settings
        return super().config_of(topic)

    def _refuse_missing(self) -> None:
        """Refuse the partitions that are missing, after reading the directories again to be sure."""
        refused = {entry.key: entry for entry in self.catalog.entries() if entry.failure is not None}
        if {entry.key for entry in self.find_missing(self.paths)} == refused.keys():
            return
        self._watch.look_again()
        self.table = read_topics(self.paths)
        missing = self.find_missing(self.paths)
        still_missing = {entry.key for entry in missing}
        self.catalog.drop(entry for key, entry in refused.items() if key not in still_missing)
        self.catalog.add(missing)


def id_on_disk(partitions: Mapping[int, Entry]) -> uuid.UUID | None:
    """Return the topic id in the first sound `partition.metadata` of these partitions; None if there is no such file.

    Raises `StorageError` if all existing files are malformed.
    """
    malformed: StorageError | None = None
    for entry in partitions.values():
        try:
            metadata = checkpoint.read_partition_metadata(entry.path)
        except StorageError as error:
            if error.errno != EBADMSG:
                raise
            malformed = malformed or error
            continue
        if metadata is not None:
            return metadata.topic_id
    if malformed is not None:
        raise malformed
    return None
