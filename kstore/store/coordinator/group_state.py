"""The groups and positions in one partition of `__consumer_offsets`, read from the partition's log.

Replays the log and says what has expired (Kafka's OffsetMetadataManager and its groups); writes nothing. A replay
starts with the newest record of each key up to the last stable offset, so its time depends on the number of keys, not
on the number of commits. Positions written in a transaction take effect with its marker. Invariant: if several commits
or deletions change one position, the one at the highest offset counts, regardless of the order of their markers.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kstore._core import ReaderPosition
from kstore.codec.coordinator import group_records
from kstore.codec.coordinator.group_records import GroupKey, GroupState, MemberKey, OffsetKey, Position, SchemaError
from kstore.errors import CorruptRecordError
from kstore.log.hosted_log import HostedLog

if TYPE_CHECKING:
    from kstore._core import Record, RecordBatch
    from kstore.log.log import Log
    from kstore.log.reading.view import View

__all__ = ["Committed", "Expired", "OffsetsPartition"]

_COMMIT, _ABORT = 1, 0
_MARKER_KEY_BYTES = 4
Place = tuple[str, int]


class Committed(NamedTuple):
    """A position, and the offset of its record."""

    position: Position
    record_offset: int


class Expired(NamedTuple):
    """The expired positions of a group; `whole` if the group's own record is to be deleted with them."""

    group: str
    places: list[Place]
    whole: bool


class _Group:
    __slots__ = ("classic", "members", "newer", "pending", "positions")

    def __init__(self) -> None:
        self.positions: dict[Place, Committed] = {}
        self.classic: GroupState | None = None
        self.newer = False  # whether it is a group of a newer protocol
        self.members: set[str] = set()  # of a group of a newer protocol
        self.pending = 0  # the number of positions in open transactions

    @property
    def is_empty(self) -> bool:
        return not (self.positions or self.classic or self.newer or self.members or self.pending)


class OffsetsPartition:
    """The groups of one partition. Each query first replays the log up to its end. Thread-safe.

    `writing` is held while records that depend on the positions are written.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.writing = threading.RLock()
        self._reading = threading.RLock()
        self._version = -1  # `View.guard.version` of the log at the last replay
        self._forget()

    def _forget(self) -> None:
        self._next_offset = 0
        self._last = (-1, 0)  # the base offset and the CRC of the last replayed batch
        self._groups: dict[str, _Group] = {}
        self._open: dict[int, list[tuple[OffsetKey, Committed]]] = {}  # by producer id

    def positions(self, group: str) -> dict[Place, Position]:
        """Return the positions of a group, without those in open transactions."""
        with self._reading:
            self._catch_up()
            state = self._groups.get(group)
            return {} if state is None else {place: stored.position for place, stored in state.positions.items()}

    def pending(self) -> list[tuple[str, Place, Position]]:
        """Return the commits in open transactions as (group, place, position)."""
        with self._reading:
            self._catch_up()
            return [
                (key.group, (key.topic, key.partition), stored.position)
                for commits in self._open.values()
                for key, stored in commits
            ]

    def has_record(self, group: str) -> bool:
        """Return whether the log has the record of a classic group itself, not only positions."""
        with self._reading:
            self._catch_up()
            state = self._groups.get(group)
            return state is not None and state.classic is not None

    def groups(self) -> list[str]:
        """Return the names of the groups that have positions, sorted."""
        with self._reading:
            self._catch_up()
            return sorted(name for name, group in self._groups.items() if group.positions)

    def expired(self, now_ms: int, retention_ms: int, in_use: Container[str]) -> Iterator[Expired]:
        """Yield the expired positions of the groups that have no members.

        The age of a position counts from its commit or, if all members of a classic group have left, from then. Groups
        with members or an open transaction, and groups in `in_use`, keep all positions.
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
                    for place, stored in group.positions.items()
                    if _is_over(stored.position, left_ms, now_ms, retention_ms)
                ]
                if places:
                    yield Expired(name, places, classic is not None and len(places) == len(group.positions))

    # Replay.

    def _catch_up(self) -> None:
        log, view = self.log, HostedLog(self.log).view
        end, version = log.log_end_offset, view.guard.version
        if end < self._next_offset or (version != self._version and self._was_cut(view)):
            self._forget()
        self._version = version
        start = max(self._next_offset, log.log_start_offset)
        if start >= end:
            return
        if self._next_offset == 0:
            start = self._take_newest()
        for batch in log.read_batches(start):
            if batch.next_offset > self._next_offset:
                try:
                    self._take(batch)
                except SchemaError as error:
                    raise self._unsound(batch, error) from None
                self._next_offset, self._last = batch.next_offset, (batch.base_offset, batch.crc)

    def _was_cut(self, view: View) -> bool:
        """Return whether replayed records were truncated, as in a follower: other records may have their offsets."""
        return view.has_overtaken(ReaderPosition(self._next_offset, self._version, *self._last))

    def _take_newest(self) -> int:
        """Replay the newest record of each key below the last stable offset; return the offset to continue at."""
        newest = self.log.latest()
        for record in newest:
            try:
                self._take_record(record, None)
            except SchemaError as error:
                raise self._unsound(next(self.log.read_batches(record.offset)), error) from None
        self._next_offset = newest.end_offset
        return newest.end_offset

    def _unsound(self, batch: RecordBatch, error: SchemaError) -> CorruptRecordError:
        what = f"the batch at offset {batch.base_offset} of {self.log.path} holds no group's records: {error}"
        return CorruptRecordError(what, path=batch.path, position=batch.position)

    def _take(self, batch: RecordBatch) -> None:
        if batch.is_control:
            for record in batch:
                self._end(batch.producer_id, record.key or b"")
                return
            return
        pending = self._open.setdefault(batch.producer_id, []) if batch.is_transactional else None
        for record in batch:
            self._take_record(record, pending)

    def _take_record(self, record: Record, pending: list[tuple[OffsetKey, Committed]] | None) -> None:
        if record.key is None:
            raise SchemaError("a record has no key")
        key = group_records.parse_key(record.key)
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
            self._drop_pending(key, group)
        elif pending is not None:
            pending.append((key, Committed(group_records.parse_position(value), offset)))
            group.pending += 1
        else:
            group.positions[place] = Committed(group_records.parse_position(value), offset)
        self._drop_if_empty(key.group)

    def _drop_pending(self, key: OffsetKey, group: _Group) -> None:
        if group.pending:
            for commits in self._open.values():
                kept = [commit for commit in commits if commit[0] != key]
                group.pending -= len(commits) - len(kept)
                commits[:] = kept

    def _take_group(self, key: GroupKey, value: bytes | None) -> None:
        group = self._group(key.group)
        if key.classic:
            group.classic = None if value is None else group_records.parse_group(value)
        else:
            group.newer = value is not None
        self._drop_if_empty(key.group)

    def _end(self, producer_id: int, key: bytes) -> None:
        """Apply a marker to the positions that its producer wrote."""
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
