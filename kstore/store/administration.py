"""`Administration`: creates, extends, deletes and configures topics.

Invariant: a creation or deletion is first written into the file of topics, so an opening after a crash can finish it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from errno import EBADMSG
from typing import Any

from kstore.base import arguments
from kstore.config import cautions
from kstore.config.log_config import TOPIC_NAMES, ConfigSource, LogConfig
from kstore.config.settings import check_known, text
from kstore.disk import fs
from kstore.errors import InconsistentTopicIdError, InvalidTopicError, KStoreError, StorageError, TopicExistsError
from kstore.files import checkpoint, names
from kstore.files.topic_files import MAX_PARTITIONS, TopicRecord
from kstore.log.hosted_log import HostedLog
from kstore.store import catalog
from kstore.store.catalog import Entry
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.store.coordinator.internal_topics import TRANSACTIONS_TOPIC
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata, id_on_disk
from kstore.store.read_only_logs import Logs
from kstore.store.topic_record import TopicFile
from kstore.store.topics.route_cache import Routes

logger = logging.getLogger("kstore")


class Administration:
    """Changes the topics of a store. Thread-safe."""

    def __init__(
        self,
        metadata: Metadata,
        logs: Logs,
        topic_file: TopicFile,
        routes: Routes,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        """`routes`, `groups` and `transactions` forget the topics that are deleted."""
        self._metadata = metadata
        self._logs = logs
        self._topic_file = topic_file
        self._routes = routes
        self._groups = groups
        self._transactions = transactions

    # Settings.

    def update_topic_config(self, topic: str, config: Mapping[str, object]) -> None:
        manager, metadata = self._logs.leading(), self._metadata
        if not isinstance(config, Mapping):
            raise TypeError(f"config must be a mapping of settings, not {type(config).__name__}")
        with metadata.changing:
            partitions = metadata.catalog.partitions(topic)
            merged = {**metadata.overrides(topic), **config}
            overrides = self._checked({name: value for name, value in merged.items() if value is not None}, config)
            self._caution(topic, overrides, metadata.config_of(topic))
            record = metadata.table.topics.get(topic)
            count = max(max(partitions) + 1, 0 if record is None else record.partitions)
            self._topic_file.record(topic, TopicRecord(self._ensure_topic_id(topic), count, overrides, "live"))
            metadata.forget_config(topic)
            self._configure_logs(manager, partitions.values())

    def update_config(self, config: ConfigSource, settings: Mapping[str, object]) -> None:
        manager, metadata = self._logs.writing(), self._metadata
        with metadata.changing:
            named = LogConfig.resolve(config, settings)
            before = metadata.config
            changed = before.replace(**{name: getattr(named, name) for name in named.explicit})
            changed.check_for_writing()
            # The settings of a refused topic are unknown, so its logs keep their settings.
            refused = {topic for topic in metadata.table.topics if metadata.refusal(topic) is not None}
            for topic in metadata.table.topics.keys() - refused:
                changed.for_topic(metadata.overrides(topic)).check_for_writing()
            earlier = before.warnings(metadata.broker)
            cautions.issue(warning for warning in changed.warnings(metadata.broker) if warning not in earlier)
            metadata.config = changed
            metadata.forget_config()
            known = (entry for entry in metadata.catalog.entries() if entry.topic not in refused)
            self._configure_logs(manager, known)

    def _caution(self, topic: str, overrides: Mapping[str, str], before: LogConfig) -> None:
        """Warn about a topic's new settings, unless its old settings or the store's settings cause the same warning."""
        config, broker = self._metadata.config, self._metadata.broker
        earlier = {*before.warnings(broker), *config.warnings(broker)}
        warnings = config.for_topic(overrides).warnings(broker)
        cautions.issue(f"topic {topic}: {warning}" for warning in warnings if warning not in earlier)

    def _configure_logs(self, manager: LogManager, entries: Iterable[Entry]) -> None:
        for entry in entries:
            log = entry.log
            if log is not None and not log.closed:
                HostedLog(log).configure(self._metadata.config_of(entry.topic))
        manager.wake_flush(0)

    def _checked(self, overrides: Mapping[str, object], named: Mapping[str, object]) -> dict[str, str]:
        """Return a topic's settings as text; raise if one is unknown, out of range, or does not fit the others."""
        check_known(named, TOPIC_NAMES)
        resolved = self._metadata.config.for_topic(overrides)
        resolved.check_for_writing()
        return {name: text for name, text in resolved.to_kafka().items() if name in overrides}

    # Topics.

    def create_topic(
        self,
        topic: str,
        partitions: int,
        config: Mapping[str, object] | None = None,
        topic_id: uuid.UUID | str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        exist_ok: bool = False,
    ) -> uuid.UUID:
        manager, metadata = self._logs.leading(), self._metadata
        names.check_topic(topic)
        arguments.one_of("config", config, Mapping)
        if settings:
            config = {**(config or {}), **LogConfig(**settings).to_kafka()}
        if topic == names.METADATA_TOPIC:
            raise InvalidTopicError(f"{topic} is the broker's own log of metadata")
        partitions = arguments.integer("partitions", partitions, 1, MAX_PARTITIONS)
        names.partition_name(topic, partitions - 1)
        if isinstance(topic_id, str):
            topic_id = checkpoint.parse_topic_id(topic_id)
        with metadata.changing:
            other = metadata.catalog.colliding(topic)
            if exist_ok and other == topic:
                return self._existing(topic, partitions, config or {}, topic_id)
            if other is not None:
                how = "exists" if other == topic else f"differs from {other} in '.' and '_' alone"
                raise TopicExistsError(f"topic {topic} {how}")
            if manager.disks.any_offline and topic in metadata.table.topics:
                raise TopicExistsError(f"topic {topic} exists, or is not wholly deleted, where a directory is offline")
            overrides = self._checked(config or {}, config or {})
            manager.partitions.refuse_files_in_the_way(topic, range(partitions))
            self._caution(topic, overrides, metadata.config)
            record = TopicRecord(topic_id or checkpoint.new_topic_id(), partitions, overrides, "creating")
            self._topic_file.record(topic, record)
            try:
                self._make_partitions(manager, topic, record)
            except BaseException:
                self._unmake(manager, topic)
                raise
        return record.topic_id

    def _existing(
        self, topic: str, partitions: int, config: Mapping[str, object], topic_id: uuid.UUID | None
    ) -> uuid.UUID:
        """Return the id of an existing topic; raise if the topic differs from the requested one."""
        metadata = self._metadata
        count = metadata.partition_count(topic)
        if count != partitions:
            raise TopicExistsError(f"topic {topic} exists with {count} partitions, not with {partitions}")
        self._checked(config, config)
        before, asked = metadata.config_of(topic), metadata.config.for_topic(config)
        others = [
            f"{row.name} is {text(getattr(before, row.attribute))}, not {text(getattr(asked, row.attribute))}"
            for row in LogConfig.settings
            if row.name in config and getattr(before, row.attribute) != getattr(asked, row.attribute)
        ]
        if others:
            raise TopicExistsError(f"topic {topic} exists with other settings: {'; '.join(others)}")
        found = self._ensure_topic_id(topic)
        if topic_id not in (None, found):
            raise InconsistentTopicIdError(f"topic {topic} exists with the id {found}, not with {topic_id}")
        return found

    def _ensure_topic_id(self, topic: str) -> uuid.UUID:
        """Return a topic's id; if it has none, give it the id of its record or a new id."""
        partitions = self._metadata.catalog.partitions(topic)
        topic_id = id_on_disk(partitions)
        if topic_id is None:
            record = self._metadata.table.topics.get(topic)
            topic_id = checkpoint.new_topic_id() if record is None else record.topic_id
            _write_topic_id(partitions.values(), topic_id)
        return topic_id

    def add_partitions(self, topic: str, total: int) -> None:
        manager, metadata = self._logs.leading(), self._metadata
        with metadata.changing:
            partitions = metadata.catalog.partitions(topic)
            total = arguments.integer("total", total, 1, MAX_PARTITIONS)
            names.partition_name(topic, total - 1)
            record = metadata.table.find(topic)
            # Some partitions may be in a directory that is offline.
            count = max(max(partitions) + 1, 0 if record is None else record.partitions)
            if total <= count:
                raise ValueError(f"topic {topic} has {count} partitions; a total of {total} adds none")
            manager.partitions.refuse_files_in_the_way(topic, range(count, total))
            topic_id = id_on_disk(partitions) or checkpoint.new_topic_id()
            record = TopicRecord(topic_id, total, dict(metadata.overrides(topic)), "creating")
            self._topic_file.record(topic, record)
            self._make_partitions(manager, topic, record, count)

    def copy_topic(
        self, topic: str, topic_id: uuid.UUID, count: int, numbers: Iterable[int], config: Mapping[str, object]
    ) -> None:
        """Make a topic with its leader's id, settings and partition count; only partitions in `numbers` are made here.

        Existing partitions are kept. If a crash interrupts the call, a repeated call finishes it. For followers only.
        """
        manager, metadata = self._logs.writing(), self._metadata
        names.check_topic(topic)
        if topic == names.METADATA_TOPIC:
            raise InvalidTopicError(f"{topic} is the broker's own log of metadata")
        numbers = sorted(set(numbers))
        count = arguments.integer("count", count, max([0, *numbers]) + 1, MAX_PARTITIONS)
        names.partition_name(topic, count - 1)
        with metadata.changing:
            present = metadata.partitions(topic)
            if not present:
                other = metadata.catalog.colliding(topic)
                if other is not None:
                    raise TopicExistsError(f"topic {topic} differs from {other} in '.' and '_' alone")
                if manager.disks.any_offline and topic in metadata.table.topics:
                    raise TopicExistsError(f"topic {topic} may be where a directory is offline")
            _write_topic_id(present.values(), topic_id)
            record = TopicRecord(topic_id, count, self._checked(config, config), "live")
            missing = [number for number in numbers if number not in present]
            manager.partitions.refuse_files_in_the_way(topic, missing)
            if present or len(metadata.paths) > 1 or record.config:
                self._topic_file.record(topic, record)
            made = manager.partitions.make(topic, missing, topic_id, metadata.catalog.entries)
            metadata.forget_config(topic)
            metadata.catalog.add(made)
            self._configure_logs(manager, present.values())

    def _make_partitions(self, manager: LogManager, topic: str, record: TopicRecord, first: int = 0) -> None:
        """Make the missing directories from partition `first` on, then record the topic as live."""
        metadata = self._metadata
        present = metadata.partitions(topic)
        missing = [number for number in range(first, record.partitions) if number not in present]
        _write_topic_id(present.values(), record.topic_id)
        entries = manager.partitions.make(topic, missing, record.topic_id, metadata.catalog.entries)
        self._topic_file.record(topic, replace(record, state="live"))
        metadata.forget_config(topic)
        metadata.catalog.add(entries)

    def _unmake(self, manager: LogManager, topic: str) -> None:
        """Delete a partly created topic, as far as the disk allows; the next opening deletes the rest."""
        try:
            manager.delete(entry for entry in catalog.look(manager.disks.roots).entries if entry.topic == topic)
            self._topic_file.record(topic, None, may_wait=True)
        except KStoreError:
            logger.exception("topic %s could not be taken back", topic)

    def delete_topic(self, topic: str) -> None:
        self._logs.leading()
        with self._metadata.changing:
            topic_id = id_on_disk(self._metadata.catalog.partitions(topic))
            if topic == TRANSACTIONS_TOPIC:
                self._transactions.forget_all()
            self.remove_topic(topic)
            self._groups.forget_topic(topic, topic_id)

    def remove_topic(self, topic: str) -> None:
        """Delete a topic's partitions and its record, also in a follower; groups' positions in the topic are kept."""
        manager, metadata = self._logs.writing(), self._metadata
        with metadata.changing:
            partitions = metadata.catalog.partitions(topic)
            topic_id = id_on_disk(partitions) or checkpoint.new_topic_id()
            record = TopicRecord(topic_id, max(partitions) + 1, dict(metadata.overrides(topic)), "deleting")
            is_full = False
            try:
                self._topic_file.record(topic, record)
            except fs.FullDiskError:
                is_full = True
            whole = manager.delete(partitions.values(), at_once=is_full)
            metadata.catalog.remove(topic)
            metadata.forget_config(topic)
            self._routes.forget(topic)
            self._topic_file.record(topic, None if whole else record, may_wait=True)

    def finish_interrupted(self) -> None:
        """Finish what a crash interrupted: topics that were being created or deleted.

        If all existing `partition.metadata` files of a topic are malformed, its partitions are refused: the record may
        belong to a former topic of the same name.
        """
        manager, metadata = self._logs.writing(), self._metadata
        for topic, record in list(metadata.table.topics.items()):
            present = metadata.partitions(topic)
            try:
                topic_id = id_on_disk(present)
            except StorageError as error:
                if error.errno != EBADMSG:
                    raise
                _refuse(present.values(), error)
                continue
            if topic_id is not None and topic_id != record.topic_id:
                continue
            if record.state == "creating" and not manager.disks.any_offline:
                logger.info("topic %s: making the partitions that a crash left out", topic)
                try:
                    self._make_partitions(manager, topic, record)
                except fs.FullDiskError as error:
                    logger.error("topic %s: partitions are left out until an opening finds room: %s", topic, error)
            elif record.state == "deleting":
                logger.info("topic %s: deleting what a crash left of it", topic)
                whole = manager.delete(present.values())
                metadata.catalog.remove(topic)
                manager.partitions.forget(topic, record.partitions)
                if whole:
                    self._topic_file.record(topic, None, may_wait=True)


def _refuse(entries: Iterable[Entry], error: StorageError) -> None:
    for entry in entries:
        if entry.failure is None:
            entry.failure = error
            logger.error("%s: refused: %s", entry.path, error)


def _write_topic_id(entries: Iterable[Entry], topic_id: uuid.UUID) -> None:
    """Write a topic's id into its partitions that have no id."""
    for entry in entries:
        if fs.exists(entry.path):  # a missing partition has no directory; `find_missing` marks it as refused
            checkpoint.ensure_partition_metadata(entry.path, topic_id)
