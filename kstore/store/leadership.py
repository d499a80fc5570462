"""`Leadership`: a store as a follower, how a replicator changes it, and how it becomes a leader.

A store whose directories have a role file (`files.follower_file`) is a follower: clients can read it, but their changes
raise `NotLeaderError`. The replicator changes it through `follower_of(store)`. Invariant: a crash at any step of
`become_leader` leaves a follower, or a leader that has its new epochs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import EIO, EOVERFLOW
from typing import TYPE_CHECKING, Protocol

from kstore.base.numbers import INT_MAX
from kstore.base.weak import weak_method
from kstore.errors import ReplicationError, StorageError
from kstore.files import checkpoint
from kstore.files.epochs import LeaderEpochCache
from kstore.files.follower_file import FollowerRole, remove_role
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.writing import retention_run, truncation
from kstore.log.writing._sync_turn import Turn
from kstore.store.administration import Administration
from kstore.store.catalog import Entry
from kstore.store.coordinator.groups import TAKE_IN_MS, GroupCoordinator
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Place = tuple[str, int]


class FollowerPartition:
    """One partition of a follower, with the changes that a replicator makes. Used by one thread at a time."""

    def __init__(self, follower: Follower, topic: str, partition: int) -> None:
        self._follower = follower
        self.topic = topic
        self.number = partition

    @property
    def log(self) -> Log:
        """The log, opened if necessary; raises `UnknownTopicOrPartitionError`, or the error of the opening."""
        return self._follower.log(self.topic, self.number)

    @property
    def epochs(self) -> LeaderEpochCache:
        return HostedLog(self.log).writer.epochs

    def append(self, batches: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append fetched batches; see `Log.append_as_follower`."""
        return HostedLog(self.log).append_fetched(batches, leader_epoch)

    def truncate_to(self, offset: int) -> bool:
        """Truncate the log; see `Log.truncate_to`."""
        return truncation.truncate_to(HostedLog(self.log).writer, offset)

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Empty the log; see `Log.truncate_fully_and_start_at`."""
        truncation.restart(HostedLog(self.log).writer, offset, offset if log_start_offset is None else log_start_offset)

    def move_log_start(self, offset: int) -> None:
        """Raise the log start offset to the leader's, under any cleanup policy; do nothing if `offset` is lower.

        Raises `OffsetOutOfRangeError` if `offset` is above the log end offset (SEMANTICS 10.23).
        """
        writer = HostedLog(self.log).writer
        if offset > writer.log_start_offset:
            retention_run.raise_start(writer, offset)

    def mark_high_watermark(self, offset: int) -> None:
        """Note the leader's high watermark for the next write of the checkpoint (SEMANTICS 10.23)."""
        self._follower.mark_high_watermark(self.topic, self.number, offset)


class Follower:
    """A follower, with the changes that a replicator makes. Thread-safe; one thread at a time changes one partition."""

    def __init__(self, metadata: Metadata, logs: Logs, administration: Administration) -> None:
        self._metadata = metadata
        self._logs = logs
        self._administration = administration
        self._turn = Turn()  # held by a replicator or `become_leader`; acquired in the order of the calls

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep the store a follower during a block that changes it; raise `ReplicationError` if it is a leader."""
        with self.alone():
            self.check()
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep replicators from changing the follower during a block."""
        try:
            self._turn.take()
            yield
        finally:
            self._turn.give(0)

    @property
    def role(self) -> FollowerRole:
        """The leader that the store follows; raises `ReplicationError` if the store is a leader."""
        role = self._metadata.role
        if role is None:
            raise ReplicationError(f"{', '.join(self._metadata.paths)}: a leader, which nothing is replicated to")
        return role

    def check(self) -> None:
        """Raise `ReplicationError` if the store is a leader."""
        _ = self.role

    def partition(self, topic: str, partition: int) -> FollowerPartition:
        """Return one partition; it can be used as long as its topic exists."""
        self.log(topic, partition)
        return FollowerPartition(self, topic, partition)

    def log(self, topic: str, partition: int) -> Log:
        """Return the open log of a partition; raise `ReplicationError` if the store is a leader."""
        self.check()
        return self._logs.writing().log(self._metadata.catalog.find(topic, partition))

    def copy_topic(
        self, topic: str, topic_id: uuid.UUID, *, count: int, numbers: Iterable[int], config: Mapping[str, object]
    ) -> None:
        """Create a topic, or change it to `count` partitions and the settings of `config`.

        Partitions in `numbers` that are missing here are created. `config` has all of the topic's own settings under
        Kafka's names; its other settings are removed. Durable when this returns. Raises `InconsistentTopicIdError`,
        `TopicExistsError`, `ConfigError`, `StorageError`.
        """
        self.check()
        self._administration.copy_topic(topic, topic_id, count, numbers, config)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; raise `UnknownTopicOrPartitionError` if there is none."""
        self.check()
        self._administration.remove_topic(topic)

    def mark_high_watermark(self, topic: str, partition: int, offset: int) -> None:
        """Note a partition's high watermark; see `FollowerPartition.mark_high_watermark`."""
        entry = self._metadata.catalog.find(topic, partition)
        watermarks = self._logs.writing().disks.directories[entry.root].watermarks
        if watermarks is not None:
            watermarks[entry.key] = offset


class Leadership:
    """Whether a store is a leader, and the change from follower to leader. Thread-safe."""

    def __init__(
        self,
        metadata: Metadata,
        logs: Logs,
        administration: Administration,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._groups = groups
        self._transactions = transactions
        self.follower = Follower(metadata, logs, administration)

    # The coordinators, which write only in a leader.

    def recover(self) -> None:
        """End the transactions that were decided before a crash, and take commits in, if the store is a leader."""
        if self._metadata.role is None:
            self._transactions.recover()
            self._groups.take_in()

    def schedule(self, manager: LogManager) -> None:
        """Schedule the coordinators' tasks, if the store is a leader."""
        if self._metadata.role is not None:
            return
        broker = self._metadata.broker
        abort_ms = broker.transaction_abort_timed_out_transaction_cleanup_interval_ms
        expire_ms = broker.transaction_remove_expired_transaction_cleanup_interval_ms
        for name, task, every_ms in (
            ("commits", self._groups.take_in, TAKE_IN_MS),
            ("offsets", self._groups.expire_offsets, broker.offsets_retention_check_interval_ms),
            ("transactions", self._transactions.abort_timed_out, abort_ms),
            ("transactional ids", self._transactions.expire_ids, expire_ms),
        ):
            manager.scheduler.every(name, weak_method(task), every_ms, every_ms)

    # Becoming a leader.

    def become_leader(self) -> dict[Place, int]:
        manager, metadata = self._logs.writing(), self._metadata
        # No batch of the old leader may be appended after the start of a new epoch.
        with self.follower.alone(), metadata.changing:
            metadata.refuse_if_closed()
            _refuse_unready(manager, metadata)
            entries = metadata.catalog.entries()
            epochs = {entry.key: _next_epoch(manager, entry) for entry in entries}
            for root, directory in manager.disks.directories.items():
                # From here on an opening as a leader has these epochs, even if a log's own file has lost them.
                directory.write_leader_epochs({entry.key: epochs[entry.key] for entry in entries if entry.root == root})
            for entry in entries:
                HostedLog(manager.log(entry)).begin_epoch(epochs[entry.key])
            if metadata.role is not None:
                for root in manager.disks.roots:
                    remove_role(root)
                self._lead(manager)
            else:
                self._groups.pull_back()
        return epochs

    def _lead(self, manager: LogManager) -> None:
        """Let the coordinators continue from the former leader's state, then admit clients."""
        manager.take_role(None)
        self._groups.forget_all()
        try:
            self._transactions.recover()
            self._groups.pull_back()
        finally:
            self._metadata.role = None
            self.schedule(manager)


def _refuse_unready(manager: LogManager, metadata: Metadata) -> None:
    """Raise `StorageError` if a partition cannot get its epoch: clients must not append to such a partition."""
    for root, why in manager.disks.failures().items():
        raise StorageError(EIO, f"the store cannot become a leader, since a directory of it is offline: {why}", root)
    for entry in metadata.catalog.entries():
        if entry.failure is not None:
            what = "the store cannot become a leader before the partition is repaired or deleted"
            raise StorageError(EIO, f"{what}: {entry.failure}", entry.path)


def _next_epoch(manager: LogManager, entry: Entry) -> int:
    """Flush a log, and return the epoch after the newest epoch that it has had."""
    log = manager.log(entry)
    log.flush()
    latest = HostedLog(log).writer.epochs.latest_epoch
    least = manager.disks.directories[entry.root].mark(checkpoint.LEADER_EPOCHS, entry.key)
    epoch = max(latest or 0, least or 0) + 1
    if epoch > INT_MAX:
        raise StorageError(EOVERFLOW, f"leader epoch {epoch - 1} is the last; {INT_MAX} is allowed", entry.path)
    return epoch


class HasLeadership(Protocol):
    """A `Store`."""

    _leadership: Leadership


def follower_of(store: HasLeadership) -> Follower:
    """Return the `Follower` of an open store, for its replicator; raise `ReplicationError` if the store is a leader."""
    follower = store._leadership.follower
    follower.check()
    return follower
