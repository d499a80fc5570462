"""Producer state of one log: the table at its end, and snapshot files with the table at older offsets.

The table is compiled (`_producer_state`); this module snapshots, loads and replays it (SEMANTICS 9.24 to 9.29).
Invariant: a snapshot at an offset says what the batches below it say, and includes no staged batch.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import names
from kstore.log.segments._producer_state import ProducerTable
from kstore.log.segments.segment import Segment

logger = logging.getLogger("kstore")

EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms of a log that is opened without a store
EXPIRATION_CHECK_MS = 600_000  # producer.id.expiration.check.interval.ms of such a log


class Expiry(NamedTuple):
    """The time after which a silent producer is forgotten, and the interval between the searches for such producers."""

    after_ms: int = EXPIRATION_MS
    check_ms: int = EXPIRATION_CHECK_MS


DEFAULT_EXPIRY = Expiry()


class KeptBatch(NamedTuple):
    """One of a producer's last five batches; the log compares new batches with them to recognize a repeated one.

    Immutable, so threads may share it.
    """

    first_sequence: int
    """Sequence number of its first record."""

    last_sequence: int
    """Sequence number of its last record."""

    first_offset: int
    """Offset of its first record."""

    last_offset: int
    """Offset of its last record."""

    timestamp: int
    """Its greatest timestamp, in milliseconds."""


class ProducerInfo(NamedTuple):
    """The state of one producer id in a log; -1 means none.

    Immutable, so threads may share it.
    """

    producer_id: int
    """The producer id."""

    producer_epoch: int
    """The newest epoch; batches with an older epoch are refused."""

    coordinator_epoch: int
    """The epoch of the coordinator that wrote the last marker."""

    last_timestamp: int
    """The timestamp of the newest batch or marker, in milliseconds."""

    current_txn_first_offset: int
    """The first offset of the open transaction; -1 if none is open."""

    batches: tuple[KeptBatch, ...]
    """The last batches, oldest first; at most five."""


def producer_infos(table: ProducerTable) -> list[ProducerInfo]:
    return [_info(state) for state in table.states()]


def _info(state: tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]]) -> ProducerInfo:
    return ProducerInfo(*state[:5], tuple(KeptBatch(*batch) for batch in state[5]))


class ProducerState:
    """The producers of one log, and its snapshot files.

    `end_offset` is one past the last offset that the state covers; SEMANTICS 9.24 compares it with
    `last_snapshot_offset`. Not thread-safe: the log's mutex guards it, except for `table.open`.
    """

    def __init__(self, directory: str, snapshot_offsets: Iterable[int], expiry: Expiry = DEFAULT_EXPIRY) -> None:
        self._directory = directory
        self.offsets = sorted(snapshot_offsets)
        self.table = ProducerTable()
        self.expiry = expiry
        self.end_offset = 0
        self.last_snapshot_offset = 0
        self.unsynced: set[int] = set()  # offsets of the snapshots that the next flush syncs
        self._unwritten: tuple[int, bytes] | None = None  # a snapshot that could not be written to a full disk
        self._waiting: int | None = None  # offset of a postponed snapshot without producers, see `recovered`

    def anew(self) -> ProducerState:
        """Return an empty state over the same files; during a load it replaces this state (SEMANTICS 8.13, 8.14)."""
        state = ProducerState(self._directory, (), self.expiry)
        state.offsets = self.offsets
        state.unsynced = self.unsynced
        state._unwritten = self._unwritten
        state._waiting = self._waiting
        return state

    def path(self, offset: int) -> str:
        return f"{self._directory}/{names.snapshot_name(offset)}"

    def infos(self) -> list[ProducerInfo]:
        return producer_infos(self.table)

    def info(self, producer_id: int) -> ProducerInfo | None:
        state = self.table.state(producer_id)
        return None if state is None else _info(state)

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write the snapshot at the end offset, if it is beyond the last one (SEMANTICS 9.24).

        Without `sync`, the method `sync` syncs the snapshot before the recovery point rises above it. If the disk is
        full, the snapshot is kept for `write_later`; with `sync`, this is an error unless the snapshot is empty.
        """
        self._take_snapshot_of(self.table, sync=sync)

    def recovered(self, end_offset: int, *, is_last: bool) -> None:
        """Take the snapshot of a segment that was recovered (SEMANTICS 8.14).

        Creating its file takes longer than the rest of an opening after a crash. So if the last segment's snapshot has
        no producers, it waits for `write_waiting` or for the next snapshot: the next opening would find the same again.
        Other snapshots do not: a later segment may have producers, and an opening without snapshots would miss them.
        """
        self.end_offset = end_offset
        may_wait = is_last and len(self.table) == 0 and self._unwritten is None
        if not may_wait or end_offset <= self.last_snapshot_offset:
            self.take_snapshot()
            return
        self.write_waiting()
        self._waiting = self.last_snapshot_offset = end_offset

    @property
    def waits(self) -> bool:
        """Whether `recovered` has left a snapshot to `write_waiting`."""
        return self._waiting is not None

    def write_waiting(self) -> None:
        """Write the snapshot that `recovered` has left, before the first append.

        After an append, an opening could not tell a snapshot that was never written from one that a crash has torn.
        """
        if self._waiting is not None:
            self._write_or_keep(self._waiting, ProducerTable(), sync=False)
            self._waiting = None

    def _take_snapshot_of(self, table: ProducerTable, *, sync: bool = False) -> None:
        self.write_waiting()
        if self.end_offset > self.last_snapshot_offset and self._write_or_keep(self.end_offset, table, sync=sync):
            self._unwritten = None  # an older snapshot is useless now
            self.last_snapshot_offset = self.end_offset

    def _write_or_keep(self, offset: int, table: ProducerTable, *, sync: bool) -> bool:
        try:
            self._write(offset, table.snapshot(), sync=sync)
        except fs.FullDiskError as error:
            if self._unwritten is None:
                logger.warning("%s: no room for the snapshot at %d: %s", self._directory, offset, error)
            self._unwritten = (offset, table.snapshot())
            if sync and len(table):
                raise
            return False
        return True

    def _write(self, offset: int, data: bytes, *, sync: bool) -> None:
        path = self.path(offset)
        try:
            fs.write_file(path, data, sync=sync)
        except fs.FullDiskError:
            with suppress(StorageError):  # the next opening would read half a snapshot
                fs.unlink(path)
            raise
        if not sync:
            self.unsynced.add(offset)
        if not self._has(offset):
            insort(self.offsets, offset)

    @property
    def owes_snapshot(self) -> bool:
        """Whether a snapshot is missing because the disk was full."""
        return self._unwritten is not None

    def write_later(self) -> None:
        """Write the snapshot that the full disk prevented, if any. Raises `FullDiskError` if it is still full."""
        if self._unwritten is not None:
            offset, data = self._unwritten
            self._write(offset, data, sync=False)
            self._unwritten = None
            self.last_snapshot_offset = max(self.last_snapshot_offset, offset)

    def sync(self) -> None:
        """Sync the snapshots that were left to the next flush (SEMANTICS 2.12)."""
        for offset in sorted(self.unsynced):
            # Another thread may delete the snapshot with its segment; then there is nothing to sync.
            with suppress(fs.MissingFileError), fs.closing(fs.open(self.path(offset))) as fd:
                fs.fsync(fd)
            self.unsynced.discard(offset)

    def remove_stray(self, bases: Sequence[int]) -> None:
        """Delete snapshots that are at no segment's base; keep the newest if it is above all bases (SEMANTICS 9.28)."""
        of_segments = set(bases)
        known = self.offsets if self._waiting is None else sorted({*self.offsets, self._waiting})
        others = [offset for offset in known if offset not in of_segments]
        kept = others[-1] if others and bases and others[-1] >= bases[-1] else None
        for offset in others:
            if offset != kept:
                self._remove(offset)

    def is_empty_at(self, end_offset: int, log_start_offset: int) -> bool:
        """Return whether the state is at `end_offset`, has no producers, and its newest snapshot is at that offset.

        `rebuild` would produce the same state, but read the snapshot for it.
        """
        return (
            len(self.table) == 0
            and self.end_offset == end_offset == self.last_snapshot_offset
            and end_offset == self._newest(log_start_offset)
            and (self.offsets[0] if self.offsets else end_offset) > log_start_offset
            and self._unwritten is None
        )

    def _newest(self, log_start_offset: int) -> int:
        """Return the offset of the newest snapshot, or the log start if there is none."""
        newest = self.offsets[-1] if self.offsets else log_start_offset
        return newest if self._waiting is None else max(newest, self._waiting)

    def rebuild(
        self,
        log_start_offset: int,
        end_offset: int,
        segments: Sequence[Segment],
        *,
        known: int | None = None,
        clean: bool,
        now_ms: int,
    ) -> None:
        """Bring the state to `end_offset` from the newest sound snapshot and the batches after it (SEMANTICS 9.26).

        `segments` are all segments. The last two of the first `known` segments (default: all) get snapshots. Readers
        see the old table until the new one is complete. A recovery calls this for each segment, so it must not copy or
        walk the list of all segments.
        """
        self.write_waiting()
        if self._unwritten is not None and not log_start_offset < self._unwritten[0] <= end_offset:
            self._unwritten = None
        count = len(segments) if known is None else known
        last = segments[max(count - 2, 0) : count]
        last_bases = [segment.base_offset for segment in last if segment.base_offset <= end_offset]
        if not self.offsets and clean:
            for offset in [*last_bases, end_offset]:
                self.end_offset = offset
                self.take_snapshot()
            self.end_offset = end_offset
            return
        was_empty = len(self.table) == 0 and self.end_offset >= end_offset
        while self.offsets and self.offsets[-1] > end_offset:
            self._remove(self.offsets[-1])
        while self.offsets and self.offsets[0] <= log_start_offset:
            self._remove(self.offsets[0])
        table = self.table
        if self.end_offset != end_offset:
            table = self._load_newest(log_start_offset, now_ms)
        else:
            self.raise_start(log_start_offset)
        if end_offset > self.end_offset and not was_empty:
            self._replay(table, log_start_offset, end_offset, segments, last_bases)
        self.end_offset = end_offset
        self._take_snapshot_of(table)
        self.table = table

    def _replay(
        self,
        table: ProducerTable,
        log_start_offset: int,
        end_offset: int,
        segments: Sequence[Segment],
        last_bases: list[int],
    ) -> None:
        first = max(bisect_right(segments, self.end_offset, key=attrgetter("base_offset")) - 1, 0)
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.base_offset >= end_offset:
                break
            start = max(segment.base_offset, self.end_offset, log_start_offset)
            self.end_offset = start
            if segment.base_offset in last_bases:
                self._take_snapshot_of(table)
            replay_segment(table, segment, start, segment.size_bytes)

    def reset(self, offset: int, log_start_offset: int) -> None:
        """Forget all producers and snapshots and start at `offset`, as a full truncation does (SEMANTICS 9.29).

        The truncation then rebuilds the state (SEMANTICS 9.26).
        """
        for snapshot in list(self.offsets):
            self._remove(snapshot)
        self._unwritten = self._waiting = None
        self.table.clear()
        self.end_offset = offset
        self.last_snapshot_offset = log_start_offset
        self.take_snapshot()

    def go_back(self, end_offset: int, log_start_offset: int) -> None:
        """Remove the snapshots above `end_offset`, for a log that never had a record there. Keep the table."""
        while self.offsets and self.offsets[-1] > end_offset:
            self._remove(self.offsets[-1])
        if self._unwritten is not None and self._unwritten[0] > end_offset:
            self._unwritten = None
        self.end_offset = end_offset
        self.last_snapshot_offset = self._newest(log_start_offset)

    def raise_start(self, log_start_offset: int) -> None:
        """Adjust to a new log start (SEMANTICS 9.20)."""
        self.end_offset = max(self.end_offset, log_start_offset)
        self.last_snapshot_offset = self._newest(log_start_offset)

    def mark_deleted(self, offset: int) -> list[str]:
        """Rename the snapshot at a deleted segment's base to `.deleted`. Return the new path, to unlink later.

        Return no path if there is no snapshot, or if its file is missing.
        """
        if not self._has(offset):
            return []
        path = self.path(offset)
        exists = fs.exists(path)
        if exists:
            fs.rename(path, path + names.DELETED)
        del self.offsets[bisect_left(self.offsets, offset)]
        return [path + names.DELETED] if exists else []

    def expire(self, now_ms: int) -> int:
        """Forget the producers that were silent for too long (SEMANTICS 9.21). Return how many."""
        gone = self.table.expire(now_ms, self.expiry.after_ms)
        if gone:
            logger.info("%s: %d producer ids have expired", self._directory, gone)
        return gone

    def _load_newest(self, log_start_offset: int, now_ms: int) -> ProducerTable:
        table = ProducerTable()
        self.end_offset = self.last_snapshot_offset = log_start_offset
        while self.offsets:
            offset = self.offsets[-1]
            if table.load(fs.read_file(self.path(offset)), now_ms, self.expiry.after_ms):
                self.end_offset = self.last_snapshot_offset = offset
                break
            logger.warning("%s: removed, it is no sound snapshot", self.path(offset))
            self._remove(offset)
        return table

    def _remove(self, offset: int) -> None:
        if offset == self._waiting:
            self._waiting = None
        if self._has(offset):
            fs.unlink(self.path(offset))
            del self.offsets[bisect_left(self.offsets, offset)]

    def _has(self, offset: int) -> bool:
        """Return whether there is a snapshot at `offset`; fast, since a recovery calls this for each segment."""
        at = bisect_left(self.offsets, offset)
        return at < len(self.offsets) and self.offsets[at] == offset


def replay_segment(
    table: ProducerTable, segment: Segment, start_offset: int, end: int
) -> list[tuple[int, int, int, int]]:
    """Apply a segment's batches up to the position `end` to a table. Return the transactions aborted in them."""
    file = segment.file
    position = 0 if start_offset <= segment.base_offset else segment.start(start_offset, end)[0]
    return table.replay(file.fd, position, end, start_offset, segment.path)
