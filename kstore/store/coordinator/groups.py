"""`GroupCoordinator`: consumer groups' positions in `__consumer_offsets`, as a broker's coordinator keeps them.

`codec.coordinator.group_records` encodes the records, `group_state` reads a partition's state, and `reader_commits` has
the commits of other processes that wait to be taken in. Invariant: every record is the same as a broker of 4.3.0 would
write, so that a broker can continue kstore's groups, and kstore a broker's groups.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import EBADMSG
from functools import partial
from typing import TYPE_CHECKING, Self

from kstore.base import arguments
from kstore.base.numbers import INT_MAX
from kstore.codec._pack import encode_batch
from kstore.codec.coordinator import group_records
from kstore.codec.coordinator.group_records import Position
from kstore.errors import KStoreError, LogClosedError, ReadOnlyError, StorageError
from kstore.files import commit_file, names
from kstore.files.commit_file import Commit
from kstore.store.coordinator.consumer import Consumer, ConsumerOptions, Positions, ReadPositions
from kstore.store.coordinator.group_state import OffsetsPartition
from kstore.store.coordinator.internal_topics import OFFSETS_TOPIC, InternalTopics
from kstore.store.coordinator.reader_commits import INSTEAD, SentCommits, WaitingCommits, is_later
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import LogReaders, Logs
from kstore.store.topics.topic_reader import TopicReader

if TYPE_CHECKING:
    import uuid

    from kstore.log.log import Log
    from kstore.store.topics.idempotent import SequenceNumbers

logger = logging.getLogger("kstore")

TAKE_IN_MS = 5_000
"""The period in which the commits of other processes are taken in; questions about a group do not wait for it."""

RECORD_BYTES = 32  # the most bytes that a record takes besides its key and value
_MINUTE_MS = 60_000

Place = tuple[str, int]


class CommittedOffset(int):
    """A committed position: the offset of the next record to read, as an `int`, with the other fields of the commit.

    Example:
        >>> with kstore.Store.open("data") as store:
        ...     topic_id = store.create_topic("orders")
        ...     store.commit_offsets("billing", {("orders", 0): 2}, metadata="invoice 17")
        ...     position = store.committed_offsets("billing")["orders", 0]
        >>> position, position + 1, position.offset, position.metadata
        (2, 3, 2, 'invoice 17')

    Thread-safe: nothing changes it after it is made.
    """

    metadata: str
    """The text that was committed with the offset."""

    @property
    def offset(self) -> int:
        """The offset of the next record to read, as a plain `int`."""
        return int(self)

    leader_epoch: int
    """The leader epoch of the last record that was read; -1 if unknown."""

    commit_timestamp: int
    """When the position was committed, in milliseconds since the epoch."""


class GroupNames(tuple[str, ...]):
    """The names of groups. `Store.groups` was a method before, so the tuple can be called, too."""

    __slots__ = ()

    def __call__(self) -> Self:
        warnings.warn("Store.groups is an attribute: use store.groups", DeprecationWarning, stacklevel=2)
        return self


class GroupCoordinator:
    """The consumer groups of a store. Thread-safe."""

    def __init__(self, metadata: Metadata, logs: Logs, internal: InternalTopics, reader: TopicReader) -> None:
        self._metadata = metadata
        self._logs = logs
        self._internal = internal
        self._reader = reader
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._partitions: dict[int, OffsetsPartition] = {}
        self._waiting = WaitingCommits(metadata)
        self._sent = SentCommits(metadata) if isinstance(logs, LogReaders) else None
        # The least timestamp of a group's next commit: above those of positions that were seen, so that it is later.
        self._least_ms: dict[str, int] = {}

    def commit(self, positions: Positions, *, sync: bool = False) -> None:
        """Commit a group's positions; see `Store.commit_offsets`."""
        if self._sent is None:
            self._logs.leading()
        else:
            self._metadata.refuse_if_closed()
        positions = self._checked(positions)
        if not positions.offsets:
            if sync:
                self._flush(positions.group)
            return
        if self._sent is not None:
            found = self._positions(positions, self._logs.now())
            self._sent.commit(positions.group, found, self._refusal, sync=sync)
            self._see(positions.group, found.values(), above=0)
            return
        log = self._internal.log_to_write(OFFSETS_TOPIC, positions.group)
        partition = self._partition_of(log)
        with partition.writing:
            now_ms = self._logs.writing().now()
            self._append(log, self._rows(positions, now_ms), now_ms)
        if sync:
            log.flush()

    def _flush(self, group: str) -> None:
        if self._sent is not None:
            self._sent.flush(group)
        elif (log := self._internal.log(OFFSETS_TOPIC, group)) is not None:
            log.flush()

    async def flushed(self, group: str) -> None:
        """Return when the positions that the group has committed are on the disk; a log's tasks share the syncs."""
        if self._sent is not None:
            from kstore.base import loops

            await loops.in_thread(loops.running(), partial(self._sent.flush, group))
        elif (log := self._internal.log(OFFSETS_TOPIC, group)) is not None:
            await log.aflush()

    def _refusal(self) -> ReadOnlyError:
        """Return the error of a store that only reads and that cannot send commits."""
        try:
            self._logs.writing()
        except ReadOnlyError as error:
            return ReadOnlyError(f"{error}, {INSTEAD}")
        raise AssertionError("the store is open for writing")

    def commit_in_transaction(
        self, positions: Positions, numbers: SequenceNumbers, enter: Callable[[list[Place]], None]
    ) -> None:
        """Write positions in a transaction; they take effect when it is committed."""
        positions = self._checked(positions)
        if not positions.offsets:
            return
        log = self._internal.log_to_write(OFFSETS_TOPIC, positions.group)
        enter([(OFFSETS_TOPIC, log.partition)])
        now_ms = self._logs.writing().now()
        for records in in_batches(log, self._rows(positions, now_ms), now_ms):
            batch = encode_batch(
                records,
                producer_id=numbers.producer_id,
                producer_epoch=numbers.producer_epoch,
                base_sequence=0,  # the log does not check a coordinator's sequence numbers
                transactional=True,
            )
            log.append_batch(batch, origin="coordinator")

    def _checked(self, positions: Positions) -> Positions:
        group, offsets, metadata, topic_ids = positions
        if isinstance(offsets, ReadPositions):
            topic_ids = offsets.topic_ids
        offsets = check_offsets(group, offsets, metadata, self._metadata.broker.offset_metadata_max_bytes)
        return Positions(group, offsets, metadata, topic_ids)

    def committed_offsets(
        self, group: str, topic_id: Callable[[str], uuid.UUID | None] | None = None
    ) -> dict[Place, CommittedOffset]:
        """Return a group's positions; if the topics are in another store, `topic_id` returns their ids."""
        check_group(group)
        waiting = self._waiting_by_group(group).get(group, {})  # before the log, to which they are moved
        log = self._internal.log(OFFSETS_TOPIC, group)
        positions = {} if log is None else self._partition_of(log).positions(group)
        positions |= {place: each for place, each in waiting.items() if is_later(each, positions.get(place))}
        if waiting or self._sent is not None:
            self._see(group, positions.values())
        ids = {} if topic_id is None else {topic: topic_id(topic) for topic, _ in positions}
        return {
            place: _committed_offset(position)
            for place, position in sorted(positions.items())
            if not self._is_of_former_topic(place[0], position, ids)
        }

    def delete_offsets(self, group: str, partitions: Iterable[Place] | None = None) -> None:
        self._logs.leading()
        check_group(group)
        wanted = None if partitions is None else {check_place(place) for place in partitions}
        self._take_in(group)
        log = self._internal.log(OFFSETS_TOPIC, group)
        if log is None:
            return
        partition = self._partition_of(log)
        with partition.writing:
            pending = partition.pending()  # before `positions`: a transaction may end between the calls
            places = {*(place for name, place, _ in pending if name == group), *partition.positions(group)}
            deleted = sorted(places if wanted is None else places & wanted)
            whole = len(deleted) == len(places) and partition.has_record(group)
            self._append_tombstones(log, group, deleted, whole)

    def groups(self) -> GroupNames:
        found = {group for group, positions in self._waiting_by_group().items() if positions}
        found.update(name for log in self._internal.logs(OFFSETS_TOPIC) for name in self._partition_of(log).groups())
        return GroupNames(sorted(found))

    def consumer(self, options: ConsumerOptions, reader: TopicReader | None = None) -> Consumer:
        """Create a consumer; see `Store.consumer`. With `reader` it reads another store's topics."""
        check_group(options.group)
        if self._sent is not None:
            self._metadata.refuse_if_closed()
            self._sent.refuse_elsewhere(self._refusal)
        elif reader is not None:
            self._logs.leading()
        else:
            self._logs.writing()
        consumer = Consumer(reader or self._reader, self, options)
        self._consumers.add(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Note that a consumer was closed; the file of its commits is unlocked with the last consumer of its group."""
        if self._sent is not None and not any(
            other.group == consumer.group and not other.closed for other in self._consumers
        ):
            self._sent.leave(consumer.group)

    def close(self) -> None:
        """Unlock the files of the commits of a store that only reads. Idempotent."""
        if self._sent is not None:
            self._sent.close()

    # The commits of other processes.

    def _waiting_by_group(self, group: str | None = None) -> dict[str, dict[Place, Position]]:
        """Return the commits that wait to be taken in; none in a follower, which cannot take them in."""
        waiting = self._waiting.waiting(group)
        return waiting if waiting and self._metadata.current_role() is None else {}

    def _see(self, group: str, positions: Iterable[Position], above: int = 1) -> None:
        """Let the group's next commit be later than these."""
        least_ms = max((position.commit_timestamp for position in positions), default=-1) + above
        self._least_ms[group] = min(max(least_ms, self._least_ms.get(group, 0)), commit_file.MAX_TIMESTAMP)

    def take_in(self) -> None:
        """Append the commits that wait to the log, flush it, and remove the files whose consumers are gone."""
        self._take_in()

    def _take_in(self, group: str | None = None) -> set[str]:
        """Take in the commits that wait, of one group or of all; return the groups whose consumers still exist.

        Before positions of a group are deleted, its commits must be taken in, and an error is raised. Otherwise errors
        are noted, and commits wait as long as an open transaction has positions of the same partitions.
        """
        in_use: set[str] = set()
        for path in self._waiting.paths():
            manager, name = self._logs.writing(), f"commits {path}"
            try:
                with self._metadata.changing:
                    self._take_file(path, group, in_use)
                manager.failures.pop(name, None)
            except LogClosedError:
                if group is not None:
                    raise
            except KStoreError as error:
                is_damaged = isinstance(error, StorageError) and error.errno == EBADMSG
                if group is not None and not is_damaged:
                    raise
                if manager.note(name, error):
                    logger.error("%s: its commits are not taken in: %s", path, error)
        return in_use

    def _take_file(self, path: str, group: str | None, in_use: set[str]) -> None:
        with commit_file.taking(path) as file:
            if file is None:
                return
            if file.contents.commits:
                name = file.contents.commits[0].key.group
                if group is not None and name != group:
                    return
                if not file.is_left:
                    in_use.add(name)
                waiting = file.contents.waiting
                if waiting and not self._append_waiting(name, waiting, wait=group is None):
                    return
            file.mark_taken()
            if file.is_left:
                file.remove()

    def _append_waiting(self, group: str, waiting: Sequence[Commit], *, wait: bool) -> bool:
        """Append the commits that are later than the known positions, and flush; return False if they must wait."""
        log = self._internal.log_to_write(OFFSETS_TOPIC, group)
        partition = self._partition_of(log)
        with partition.writing:
            known = partition.positions(group)
            # The record of a transaction takes effect at its own offset, below that of a record appended now.
            if wait and not {(group, commit.place) for commit in waiting}.isdisjoint(
                (name, place) for name, place, _ in partition.pending()
            ):
                return False
            ids: dict[str, uuid.UUID | None] = {}
            later = {
                commit.place: commit.position
                for commit in waiting
                if is_later(commit.position, known.get(commit.place))
                and not self._is_of_former_topic(commit.place[0], commit.position, ids)
            }
            self._append(log, _encoded(group, later), self._logs.writing().now())
            # Within the lock: a commit of the same millisecond, after these, must not lose to them after a crash.
            self._see(group, (commit.position for commit in waiting))
        log.flush()
        return True

    # Reading the logs.

    def _partition_of(self, log: Log) -> OffsetsPartition:
        partition = self._partitions.get(log.partition)
        if partition is None or partition.log is not log:
            with self._metadata.changing:
                partition = self._partitions.get(log.partition)
                if partition is None or partition.log is not log:
                    partition = self._partitions[log.partition] = OffsetsPartition(log)
        return partition

    def _positions(self, positions: Positions, now_ms: int) -> dict[Place, Position]:
        ids = dict(positions.topic_ids)
        now_ms = max(now_ms, self._least_ms.get(positions.group, 0))
        return {
            place: Position(offset, -1, positions.metadata, now_ms, self._id_of(place[0], ids))
            for place, offset in positions.offsets.items()
        }

    def _rows(self, positions: Positions, now_ms: int) -> list[tuple[bytes, bytes]]:
        return _encoded(positions.group, self._positions(positions, now_ms))

    def _id_of(self, topic: str, ids: dict[str, uuid.UUID | None]) -> uuid.UUID | None:
        if topic not in ids:
            ids[topic] = self._metadata.topic_id(topic)
        return ids[topic]

    def _is_of_former_topic(self, topic: str, position: Position, ids: dict[str, uuid.UUID | None]) -> bool:
        if topic not in ids and self._metadata.refusal(topic) is not None:
            return False  # not known: the topic's id cannot be read
        now = self._id_of(topic, ids)
        return position.topic_id is not None and now is not None and position.topic_id != now

    @staticmethod
    def _append(log: Log, rows: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Append records as a broker's coordinator does: uncompressed, sequences from 0, no producer."""
        for records in in_batches(log, rows, now_ms):
            log.append_batch(encode_batch(records, base_sequence=0), origin="coordinator")

    def _append_tombstones(self, log: Log, group: str, places: Iterable[Place], whole: bool) -> None:
        rows: list[tuple[bytes, bytes | None]] = [(group_records.offset_key(group, *place), None) for place in places]
        if whole:
            rows.append((group_records.group_key(group), None))
        self._append(log, rows, self._logs.writing().now())

    def expire_offsets(self) -> None:
        """Delete the positions that are older than `offsets.retention.minutes`."""
        manager = self._logs.writing()
        retention_ms = self._metadata.broker.offsets_retention_minutes * _MINUTE_MS
        in_use = self._take_in() | {consumer.group for consumer in self._consumers if not consumer.closed}
        for log in self._internal.logs(OFFSETS_TOPIC):
            partition = self._partition_of(log)
            try:
                with partition.writing:
                    for group, places, whole in list(partition.expired(manager.now(), retention_ms, in_use)):
                        self._append_tombstones(log, group, places, whole)
                        logger.info("group %s: %d committed positions have expired", group, len(places))
                manager.failures.pop(f"offsets {log.path}", None)
            except LogClosedError:
                continue
            except KStoreError as error:
                if manager.note(f"offsets {log.path}", error):
                    logger.error("%s: its positions do not expire: %s", log.path, error)

    def forget_all(self) -> None:
        """Drop the state in memory: all groups are read again when they are next needed."""
        self._partitions.clear()

    def pull_back(self) -> None:
        """When another leader takes over, lower positions above a partition's log end offset to that offset.

        The former leader's records between the two offsets are lost, and the group has not read the records that will
        replace them.
        """
        self.take_in()
        for log in self._internal.logs(OFFSETS_TOPIC):
            try:
                partition = self._partition_of(log)
                with partition.writing:
                    for group in partition.groups():
                        self._pull_back(log, group, partition.positions(group))
            except KStoreError as error:
                logger.error("%s: its positions stay, also where they are above a log's end: %s", log.path, error)

    def _pull_back(self, log: Log, group: str, positions: Mapping[Place, Position]) -> None:
        ids: dict[str, uuid.UUID | None] = {}
        rows: list[tuple[bytes, bytes | None]] = []
        for (topic, number), position in positions.items():
            where = self._metadata.catalog.by_topic.get(topic, {}).get(number)
            if where is None or self._is_of_former_topic(topic, position, ids):
                continue
            end = self._logs.log(where).log_end_offset
            if position.offset > end:
                logger.warning("group %s: %s-%d: position %d set to %d", group, topic, number, position.offset, end)
                value = group_records.offset_value(position._replace(offset=end))
                rows.append((group_records.offset_key(group, topic, number), value))
        self._append(log, rows, self._logs.writing().now())

    def forget_topic(self, topic: str, topic_id: uuid.UUID | None) -> None:
        """Delete all groups' positions in a topic that is deleted; if that fails, their topic id makes them invalid.

        This includes positions that an open transaction has written and may commit later. If a group also has a
        position in another store's topic of that name, which has another id, all of the group's positions in that
        partition are kept: a tombstone would delete all of them.
        """
        self.take_in()
        for log in self._internal.logs(OFFSETS_TOPIC):
            try:
                partition = self._partition_of(log)
                found = partition.pending()  # before `positions`: a transaction may end between the calls
                found += [(name, *item) for name in partition.groups() for item in partition.positions(name).items()]
                forgotten: dict[str, set[Place]] = {}
                kept: set[tuple[str, Place]] = set()
                for group, place, position in found:
                    if place[0] == topic:
                        if position.topic_id in (topic_id, None):
                            forgotten.setdefault(group, set()).add(place)
                        else:
                            kept.add((group, place))
                for group, places in forgotten.items():
                    self.delete_offsets(group, {place for place in places if (group, place) not in kept})
            except KStoreError as error:
                logger.error("%s: positions in topic %s are kept: %s", log.path, topic, error)


def _encoded(group: str, positions: Mapping[Place, Position]) -> list[tuple[bytes, bytes]]:
    """Return the records of a group's positions, as keys and values."""
    return [
        (group_records.offset_key(group, *place), group_records.offset_value(position))
        for place, position in positions.items()
    ]


def in_batches(
    log: Log, rows: Sequence[tuple[bytes, bytes | None]], now_ms: int
) -> Iterator[list[tuple[bytes, bytes | None, int, None]]]:
    """Yield the records of these rows in batches: in one, unless they take more than half of the largest batch."""
    most = min(log.config.max_message_bytes, log.config.effective_segment_bytes) // 2
    records: list[tuple[bytes, bytes | None, int, None]] = []
    size = 0
    for key, value in rows:
        taken = len(key) + len(value or b"") + RECORD_BYTES
        if records and size + taken > most:
            yield records
            records, size = [], 0
        records.append((key, value, now_ms, None))
        size += taken
    if records:
        yield records


def check_group(group: object) -> None:
    """Raise if a value is not a group's name."""
    if not isinstance(group, str):
        raise TypeError(f"group must be a str, not {type(group).__name__}")
    if not group:
        raise ValueError("group is empty; a group has a name")
    group_records.text_bytes("group", group)


def check_place(place: object) -> Place:
    """Check a `(topic, partition)` pair; raise `TypeError` or `ValueError` for another value."""
    if not isinstance(place, tuple) or len(place) != 2:
        raise TypeError(f"a partition is named by (topic, partition), not by {place!r:.60}")
    topic, number = place
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    return names.check_topic(topic), arguments.integer("partition", number, 0, INT_MAX)


def check_offsets(group: object, offsets: object, metadata: object, most: int) -> dict[Place, int]:
    """Check the positions to commit; raise if any of them is wrong."""
    check_group(group)
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of (topic, partition) to offsets, not {type(offsets).__name__}")
    if not isinstance(metadata, str):
        raise TypeError(f"metadata must be a str, not {type(metadata).__name__}")
    if len(metadata) > most:
        raise ValueError(f"metadata has {len(metadata)} characters; offset.metadata.max.bytes allows {most}")
    return {
        check_place(place): arguments.integer(f"the offset of {place}", offset, 0) for place, offset in offsets.items()
    }


def _committed_offset(position: Position) -> CommittedOffset:
    committed = CommittedOffset(position.offset)
    committed.metadata = position.metadata
    committed.leader_epoch = position.leader_epoch
    committed.commit_timestamp = position.commit_timestamp
    return committed
