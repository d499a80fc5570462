"""Consumer groups' positions in `__consumer_offsets`: the part of the face of `Store` that a broker's coordinator has.

What the records look like is in grouprecords.py, what is in a partition in groupstate.py. The hardest rule: what is
written is what a broker of 4.3.0 would have written, so that it goes on from there, and the other way round.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from kstore import arguments, grouprecords, names
from kstore._pack import encode_batch
from kstore.consumer import Consumer, OffsetReset
from kstore.errors import KStoreError, LogClosedError
from kstore.grouprecords import Position
from kstore.groupstate import OffsetsPartition
from kstore.internaltopics import OFFSETS_TOPIC, InternalTopics
from kstore.reads import Isolation

if TYPE_CHECKING:
    import uuid

    from kstore.log import Log
    from kstore.producerwrites import Numbers

logger = logging.getLogger("kstore")

RECORD_BYTES = 32  # what a record takes beside its key and value, at the most
_MINUTE_MS = 60_000

Place = tuple[str, int]


class CommittedOffset(int):
    """A committed position: the offset to go on from, as a number, and what was kept with it.

    `metadata` is the text of whoever committed it, `leader_epoch` is -1 where it is not known, `commit_timestamp` is
    in milliseconds.
    """

    metadata: str
    leader_epoch: int
    commit_timestamp: int

    @classmethod
    def of(cls, position: Position) -> CommittedOffset:
        """Make one of a record's contents."""
        found = cls(position.offset)
        found.metadata = position.metadata
        found.leader_epoch = position.leader_epoch
        found.commit_timestamp = position.commit_timestamp
        return found


class Groups(InternalTopics):
    """What a `Store` knows of consumer groups; see there about threads."""

    _consumers: weakref.WeakSet[Consumer]
    _offsets: dict[int, OffsetsPartition]

    def _start_groups(self) -> None:
        self._consumers = weakref.WeakSet()
        self._offsets = {}

    def commit_offsets(
        self, group: str, offsets: Mapping[Place, int], metadata: str = "", *, sync: bool = False
    ) -> None:
        """Write down where a group goes on: for each `(topic, partition)` the offset of the next record to read.

        All of a call is one batch of `__consumer_offsets`, as a broker writes it (several beyond half of
        `max.message.bytes`); with `sync=True` it is on the disk when this returns. The topic need not be in this
        store. Raises `ValueError` for a group without a name, a negative offset, or `metadata` longer than
        `offset.metadata.max.bytes`, and what `Log.append_batch` raises.
        """
        self._writing()
        places = check_offsets(group, offsets, metadata, self._broker.offset_metadata_max_bytes)
        if not places:
            return
        log = self._internal_log_to_write(OFFSETS_TOPIC, group)
        partition = self._offsets_partition(log)
        with partition.writing:
            now_ms = self._writing().now()
            self._append_coordinated(log, self._offset_rows(group, places, metadata, now_ms), now_ms)
        if sync:
            log.flush()

    def _commit_offsets_in(
        self, numbers: Numbers, enter: Callable[[list[Place]], None], group: str, offsets: object, metadata: str
    ) -> None:
        """Write positions down in a transaction; they hold when it is committed."""
        places = check_offsets(group, offsets, metadata, self._broker.offset_metadata_max_bytes)
        if not places:
            return
        log = self._internal_log_to_write(OFFSETS_TOPIC, group)
        enter([(OFFSETS_TOPIC, log.partition)])
        now_ms = self._writing().now()
        for records in in_batches(log, self._offset_rows(group, places, metadata, now_ms), now_ms):
            batch = encode_batch(
                records,
                producer_id=numbers.producer_id,
                producer_epoch=numbers.producer_epoch,
                base_sequence=0,  # a coordinator's are not looked at
                transactional=True,
            )
            log.append_batch(batch, origin="coordinator")

    def committed_offsets(self, group: str) -> dict[Place, CommittedOffset]:
        """Where a group goes on, by `(topic, partition)`: numbers, each with its metadata; empty for an unknown group.

        What a transaction commits is there from its end on. A position in a topic that was made anew since counts as
        none. Raises `CorruptRecordError` for records that are no group's.
        """
        check_group(group)
        self._current()
        log = self._internal_log(OFFSETS_TOPIC, group)
        if log is None:
            return {}
        found = self._offsets_partition(log).positions(group)
        ids: dict[str, uuid.UUID | None] = {}
        return {
            place: CommittedOffset.of(position)
            for place, position in sorted(found.items())
            if not self._is_of_former_topic(place[0], position, ids)
        }

    def delete_offsets(self, group: str, partitions: Iterable[Place] | None = None) -> None:
        """Forget a group's positions, or those of some `(topic, partition)`s; with the last one goes the group."""
        self._writing()
        check_group(group)
        wanted = None if partitions is None else {check_place(each) for each in partitions}
        log = self._internal_log(OFFSETS_TOPIC, group)
        if log is None:
            return
        partition = self._offsets_partition(log)
        with partition.writing:
            there = partition.positions(group)
            gone = [place for place in there if wanted is None or place in wanted]
            whole = len(gone) == len(there) and partition.has_record(group)
            self._append_tombstones(log, group, gone, whole)

    def groups(self) -> tuple[str, ...]:
        """The names of the groups that have committed positions, sorted."""
        self._current()
        found = [self._offsets_partition(log).groups() for log in self._internal_logs(OFFSETS_TOPIC)]
        return tuple(sorted(name for each in found for name in each))

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        *,
        auto_offset_reset: OffsetReset = "earliest",
        isolation: Isolation = "read_uncommitted",
        merge: Literal["partition", "timestamp"] = "partition",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Consumer:
        """Read topics on behalf of a group: from its committed positions on, all partitions.

        Where nothing is committed, or what was is no longer in the log, `auto_offset_reset` says where to begin:
        "earliest", "latest", or "none" for an `OffsetOutOfRangeError`. `merge` and `isolation` are as in `read`, for
        one topic after the other; `follow` goes on with what comes, and ends after `timeout` seconds without a new
        record. Raises `UnknownTopicOrPartitionError`.
        """
        check_group(group)
        consumer = Consumer(
            self,  # type: ignore[arg-type]  # the store, of which this is a part
            group,
            topics,
            auto_offset_reset=auto_offset_reset,
            isolation=isolation,
            merge=merge,
            follow=follow,
            timeout=timeout,
        )
        self._consumers.add(consumer)
        return consumer

    # What is in the logs.

    def _offsets_partition(self, log: Log) -> OffsetsPartition:
        found = self._offsets.get(log.partition)
        if found is None or found.log is not log:
            with self._admin:
                found = self._offsets.get(log.partition)
                if found is None or found.log is not log:
                    found = self._offsets[log.partition] = OffsetsPartition(log)
        return found

    def _offset_rows(
        self, group: str, places: Mapping[Place, int], metadata: str, now_ms: int
    ) -> list[tuple[bytes, bytes]]:
        ids: dict[str, uuid.UUID | None] = {}
        return [
            (
                grouprecords.offset_key(group, topic, number),
                grouprecords.offset_value(Position(offset, -1, metadata, now_ms, self._id_of(topic, ids))),
            )
            for (topic, number), offset in places.items()
        ]

    def _id_of(self, topic: str, ids: dict[str, uuid.UUID | None]) -> uuid.UUID | None:
        if topic not in ids:
            ids[topic] = self._id_on_disk(self._catalog.partitions(topic)) if topic in self._catalog else None
        return ids[topic]

    def _is_of_former_topic(self, topic: str, position: Position, ids: dict[str, uuid.UUID | None]) -> bool:
        now = self._id_of(topic, ids)
        return position.topic_id is not None and now is not None and position.topic_id != now

    @staticmethod
    def _append_coordinated(log: Log, rows: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Append records as a broker's coordinator does: uncompressed, sequences from 0, no producer."""
        for records in in_batches(log, rows, now_ms):
            log.append_batch(encode_batch(records, base_sequence=0), origin="coordinator")

    def _append_tombstones(self, log: Log, group: str, places: Iterable[Place], whole: bool) -> None:
        rows: list[tuple[bytes, bytes | None]] = [(grouprecords.offset_key(group, *place), None) for place in places]
        if whole:
            rows.append((grouprecords.group_key(group), None))
        self._append_coordinated(log, rows, self._writing().now())

    def _expire_offsets(self) -> None:
        """Forget the positions that have outlived `offsets.retention.minutes`."""
        keeper = self._writing()
        retention_ms = self._broker.offsets_retention_minutes * _MINUTE_MS
        in_use = {consumer.group for consumer in self._consumers if not consumer.closed}
        for log in self._internal_logs(OFFSETS_TOPIC):
            partition = self._offsets_partition(log)
            try:
                with partition.writing:
                    for group, places, whole in list(partition.expired(keeper.now(), retention_ms, in_use)):
                        logger.info("group %s: %d committed positions have expired", group, len(places))
                        self._append_tombstones(log, group, places, whole)
            except LogClosedError:
                continue
            except KStoreError as error:
                logger.error("%s: its positions do not expire: %s", log.path, error)

    def _forget_topic(self, topic: str) -> None:
        """Forget all groups' positions in a topic that is deleted; where that fails, their topic id says so too."""
        for log in self._internal_logs(OFFSETS_TOPIC):
            try:
                partition = self._offsets_partition(log)
                for group in partition.groups():
                    gone = [place for place in partition.positions(group) if place[0] == topic]
                    if gone:
                        self.delete_offsets(group, gone)
            except KStoreError as error:
                logger.error("%s: positions in topic %s are kept: %s", log.path, topic, error)


def in_batches(
    log: Log, rows: Sequence[tuple[bytes, bytes | None]], now_ms: int
) -> Iterator[list[tuple[bytes, bytes | None, int, None]]]:
    """Records of so many rows as a batch each holds: all of a call in one, unless they take more than half of it."""
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
    """Refuse what is no group's name."""
    if not isinstance(group, str):
        raise TypeError(f"group must be a str, not {type(group).__name__}")
    if not group:
        raise ValueError("group is empty; a group has a name")
    grouprecords.text_bytes("group", group)


def check_place(place: object) -> Place:
    """Take a `(topic, partition)`; `TypeError` and `ValueError` for what is none."""
    if not isinstance(place, tuple) or len(place) != 2:
        raise TypeError(f"a partition is named by (topic, partition), not by {place!r:.60}")
    topic, number = place
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    return names.check_topic(topic), arguments.integer("partition", number, 0, arguments.INT_MAX)


def check_offsets(group: object, offsets: object, metadata: object, most: int) -> dict[Place, int]:
    """Take what is to be committed, or refuse it as a whole."""
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
