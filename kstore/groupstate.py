"""What one partition of `__consumer_offsets` says: groups and their positions, read from its log as far as it goes.

Owns the replay and the rules of expiry (Kafka's OffsetMetadataManager and its groups); writes nothing. Positions that
were committed in a transaction wait for its marker. The hardest rule: of two commits of one position the one at the
higher offset holds, whenever the marker of either came.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kstore import grouprecords
from kstore.errors import CorruptRecordError
from kstore.grouprecords import GroupKey, GroupState, MemberKey, OffsetKey, Position, SchemaError

if TYPE_CHECKING:
    from kstore._core import RecordBatch
    from kstore.log import Log

__all__ = ["Committed", "Expired", "OffsetsPartition"]

_COMMIT, _ABORT = 1, 0
_MARKER_KEY_BYTES = 4
Place = tuple[str, int]


class Committed(NamedTuple):
    """A position and the offset of the record that says so."""

    position: Position
    record_offset: int


class Expired(NamedTuple):
    """What of a group has outlived its time; `whole` when nothing of the group is left then."""

    group: str
    places: list[Place]
    whole: bool


class _Group:
    __slots__ = ("classic", "members", "newer", "pending", "positions")

    def __init__(self) -> None:
        self.positions: dict[Place, Committed] = {}
        self.classic: GroupState | None = None
        self.newer = False  # a group of one of the newer protocols
        self.members: set[str] = set()  # of those
        self.pending = 0  # positions in transactions that are open

    @property
    def is_empty(self) -> bool:
        return not (self.positions or self.classic or self.newer or self.members or self.pending)


class OffsetsPartition:
    """The groups of one partition, brought up to the log's end by each question. Any thread may ask.

    `writing` is for those who write records that depend on what is there.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.writing = threading.RLock()
        self._reading = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._next_offset = 0
        self._groups: dict[str, _Group] = {}
        self._open: dict[int, list[tuple[OffsetKey, Committed]]] = {}  # by producer id

    def positions(self, group: str) -> dict[Place, Position]:
        """The positions of a group; what is in an open transaction is none yet."""
        with self._reading:
            self._catch_up()
            found = self._groups.get(group)
            return {} if found is None else {place: each.position for place, each in found.positions.items()}

    def has_record(self, group: str) -> bool:
        """Whether there is a classic group's own record."""
        with self._reading:
            self._catch_up()
            found = self._groups.get(group)
            return found is not None and found.classic is not None

    def groups(self) -> list[str]:
        """The names of the groups that have positions."""
        with self._reading:
            self._catch_up()
            return sorted(name for name, group in self._groups.items() if group.positions)

    def expired(self, now_ms: int, retention_ms: int, in_use: Container[str]) -> Iterator[Expired]:
        """What has outlived its time: positions of groups without members, counted from their commit.

        Of a classic group whose members have left it is counted from when they did. Groups with members, with an open
        transaction and those `in_use` keep all.
        """
        with self._reading:
            self._catch_up()
            for name, group in list(self._groups.items()):
                classic = group.classic
                if name in in_use or group.members or group.pending or (classic is not None and classic.members):
                    continue
                left_ms = -1
                if classic is not None and classic.protocol_type:
                    left_ms = classic.state_timestamp
                places = [
                    place
                    for place, each in group.positions.items()
                    if _is_over(each.position, left_ms, now_ms, retention_ms)
                ]
                if places:
                    yield Expired(name, places, classic is not None and len(places) == len(group.positions))

    # Replay.

    def _catch_up(self) -> None:
        log = self.log
        end = log.log_end_offset
        if end < self._next_offset:  # cut
            self._forget()
        start = max(self._next_offset, log.log_start_offset)
        if start >= end:
            return
        for batch in log.read_batches(start):
            if batch.next_offset > self._next_offset:
                try:
                    self._take(batch)
                except SchemaError as error:
                    what = f"the batch at offset {batch.base_offset} of {log.path} holds no group's records: {error}"
                    raise CorruptRecordError(what, path=batch.path, position=batch.position) from None
                self._next_offset = batch.next_offset

    def _take(self, batch: RecordBatch) -> None:
        if batch.is_control:
            for record in batch:
                self._end(batch.producer_id, record.key or b"")
                return
            return
        pending = self._open.setdefault(batch.producer_id, []) if batch.is_transactional else None
        for record in batch:
            if record.key is None:
                raise SchemaError("a record has no key")
            key = grouprecords.parse_key(record.key)
            if isinstance(key, OffsetKey):
                self._take_position(key, record.value, record.offset, pending)
            elif isinstance(key, GroupKey):
                self._take_group(key, record.value)
            elif isinstance(key, MemberKey):
                members = self._group(key.group).members
                if record.value is None:
                    members.discard(key.member)
                else:
                    members.add(key.member)
                self._drop_if_empty(key.group)

    def _take_position(
        self, key: OffsetKey, value: bytes | None, offset: int, pending: list[tuple[OffsetKey, Committed]] | None
    ) -> None:
        group = self._group(key.group)
        place = (key.topic, key.partition)
        if value is None:
            group.positions.pop(place, None)
        elif pending is not None:
            pending.append((key, Committed(grouprecords.parse_position(value), offset)))
            group.pending += 1
        else:
            group.positions[place] = Committed(grouprecords.parse_position(value), offset)
        self._drop_if_empty(key.group)

    def _take_group(self, key: GroupKey, value: bytes | None) -> None:
        group = self._group(key.group)
        if key.classic:
            group.classic = None if value is None else grouprecords.parse_group(value)
        else:
            group.newer = value is not None
        self._drop_if_empty(key.group)

    def _end(self, producer_id: int, key: bytes) -> None:
        """Do what a marker says about the positions that its producer has committed."""
        if len(key) < _MARKER_KEY_BYTES:
            raise SchemaError(f"the key of a control record has {len(key)} bytes")
        kind = int.from_bytes(key[2:4], "big")
        if kind not in (_COMMIT, _ABORT):
            return
        for where, committed in self._open.pop(producer_id, ()):
            group = self._group(where.group)
            group.pending -= 1
            place = (where.topic, where.partition)
            before = group.positions.get(place)
            if kind == _COMMIT and (before is None or before.record_offset < committed.record_offset):
                group.positions[place] = committed
            self._drop_if_empty(where.group)

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _drop_if_empty(self, name: str) -> None:
        if self._groups[name].is_empty:
            del self._groups[name]


def _is_over(position: Position, left_ms: int, now_ms: int, retention_ms: int) -> bool:
    if position.expires_ms is not None:
        return now_ms >= position.expires_ms
    since_ms = left_ms if left_ms >= 0 else position.commit_timestamp
    return now_ms - since_ms >= retention_ms
