"""`Parts`: what a store consists of."""

from __future__ import annotations

import os

from kstore.store.administration import Administration
from kstore.store.bulk_loads.commit import BulkLoads
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.store.coordinator.internal_topics import InternalTopics
from kstore.store.coordinator.producer import Producers, TransactionParts
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.leadership import Leadership
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import LogReaders
from kstore.store.table import TopicTables
from kstore.store.topic_record import TopicFile
from kstore.store.topics.route_cache import Routes
from kstore.store.topics.topic_append import TopicAppender
from kstore.store.topics.topic_reader import TopicReader


class Parts:
    """The parts of one store, each made of those that it needs. It changes no more."""

    def __init__(
        self,
        metadata: Metadata,
        logs: LogManager | LogReaders,
        seed: int | None,
        staging_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.metadata = metadata
        self.logs = logs
        self.topic_file = TopicFile(metadata, logs)
        routes = self.routes = Routes(metadata, logs, seed)
        self.appender = TopicAppender(metadata.catalog, logs, routes)
        self.reader = TopicReader(metadata, logs)
        self.tables = TopicTables(metadata, logs)
        internal = InternalTopics(metadata, logs, self.topic_file)
        self.groups = GroupCoordinator(metadata, logs, internal, self.reader)
        self.transactions = TransactionCoordinator(metadata, logs, internal)
        self.producers = Producers(metadata, TransactionParts(self.transactions, self.groups, self.appender, logs))
        self.administration = Administration(metadata, logs, self.topic_file, routes, self.groups, self.transactions)
        self.loads = BulkLoads(metadata, logs, self.administration, staging_dir)
        self.leadership = Leadership(metadata, logs, self.administration, self.groups, self.transactions)
