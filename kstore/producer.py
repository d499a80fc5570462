"""Producer state of one log: what is known at its end, and the snapshot files that say it of older offsets.

The table itself is compiled (`_producers`); here is when it is written down, loaded and replayed (SEMANTICS.md 9.24 to
9.29). The hardest rule: a snapshot at an offset says what the batches below it say, and no staged batch is in it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kstore import fs, names
from kstore._producers import ProducerTable
from kstore.segment import Segment

logger = logging.getLogger("kstore")

EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms of a log that is open by itself
EXPIRATION_CHECK_MS = 600_000  # producer.id.expiration.check.interval.ms, too


class Expiry(NamedTuple):
    """After how long a silent producer is forgotten, and how often that is looked at."""

    after_ms: int = EXPIRATION_MS
    check_ms: int = EXPIRATION_CHECK_MS


DEFAULT_EXPIRY = Expiry()


class KeptBatch(NamedTuple):
    """One of a producer's last five batches, from which a retry is told."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerInfo(NamedTuple):
    """What a log knows of one producer id; -1 stands for none.

    `last_timestamp` is that of its newest batch or marker, `current_txn_first_offset` where its open transaction
    begins, `batches` its last batches, the oldest first, at most five.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    current_txn_first_offset: int
    batches: tuple[KeptBatch, ...]


def _info(state: tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]]) -> ProducerInfo:
    return ProducerInfo(*state[:5], tuple(KeptBatch(*batch) for batch in state[5]))


class ProducerState:
    """The producers of one log, and its snapshot files.

    `end_offset` is how far the state reaches, `last_snapshot_offset` what 9.24 compares with. Not thread-safe: the
    log's mutex guards it, but for `table.first_unstable_offset`.
    """

    def __init__(self, directory: str, snapshot_offsets: Iterable[int], expiry: Expiry = DEFAULT_EXPIRY) -> None:
        self._directory = directory
        self.offsets = sorted(snapshot_offsets)
        self.table = ProducerTable()
        self.expiry = expiry
        self.end_offset = 0
        self.last_snapshot_offset = 0
        self._unsynced: set[int] = set()

    def anew(self) -> ProducerState:
        """The same files, of which nothing is known yet: what a log is loaded with (8.13, 8.14)."""
        state = ProducerState(self._directory, self.offsets, self.expiry)
        state._unsynced = self._unsynced
        return state

    def path(self, offset: int) -> str:
        """Return where the snapshot at `offset` lies."""
        return f"{self._directory}/{names.snapshot_name(offset)}"

    def infos(self) -> list[ProducerInfo]:
        """What is known of everybody, in order of producer ids."""
        return [_info(state) for state in self.table.states()]

    def info(self, producer_id: int) -> ProducerInfo | None:
        """What is known of one of them."""
        state = self.table.state(producer_id)
        return None if state is None else _info(state)

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write the snapshot at the end offset, if it is beyond the last one (9.24).

        Without `sync` the next call of `sync` covers it: whatever lies below the recovery point is whole.
        """
        self._take_snapshot_of(self.table, sync=sync)

    def _take_snapshot_of(self, table: ProducerTable, *, sync: bool = False) -> None:
        if self.end_offset <= self.last_snapshot_offset:
            return
        fs.write_file(self.path(self.end_offset), table.snapshot(), sync=sync)
        if not sync:
            self._unsynced.add(self.end_offset)
        self.last_snapshot_offset = self.end_offset
        if self.end_offset not in self.offsets:
            insort(self.offsets, self.end_offset)

    def sync(self) -> None:
        """Sync the snapshots that were left to the next flush (2.12)."""
        for offset in sorted(self._unsynced):
            # Another thread may delete it, with its segment: then there is nothing to sync.
            with suppress(fs.MissingFileError):
                if offset in self.offsets:
                    fd = fs.open(self.path(offset))
                    try:
                        fs.fsync(fd)
                    finally:
                        fs.close(fd)
            self._unsynced.discard(offset)

    def remove_stray(self, bases: Sequence[int]) -> None:
        """Delete the snapshots that name no segment, but for the newest if it is past all segments' bases (9.28)."""
        known = set(bases)
        others = [offset for offset in self.offsets if offset not in known]
        kept = others[-1] if others and bases and others[-1] >= bases[-1] else None
        for offset in others:
            if offset != kept:
                self._remove(offset)

    def rebuild(
        self, log_start_offset: int, end_offset: int, segments: Sequence[Segment], *, clean: bool, now_ms: int
    ) -> None:
        """Bring the state to `end_offset` (9.26): from the newest sound snapshot, and the batches behind it.

        `segments` are all that there are; the last two of them get snapshots. What readers see of the old state stays
        until the new one is whole.
        """
        bases = [segment.base_offset for segment in segments]
        last_bases = [base for base in bases[-2:] if base <= end_offset]
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
            self._replay(table, log_start_offset, end_offset, segments, bases, last_bases)
        self.end_offset = end_offset
        self._take_snapshot_of(table)
        self.table = table

    def _replay(
        self,
        table: ProducerTable,
        log_start_offset: int,
        end_offset: int,
        segments: Sequence[Segment],
        bases: list[int],
        last_bases: list[int],
    ) -> None:
        first = max(bisect_right(bases, self.end_offset) - 1, 0)
        for segment in segments[first:]:
            if segment.base_offset >= end_offset:
                break
            start = max(segment.base_offset, self.end_offset, log_start_offset)
            self.end_offset = start
            if segment.base_offset in last_bases:
                self._take_snapshot_of(table)
            replay_segment(table, segment, start, segment.size_bytes)

    def reset(self, offset: int, log_start_offset: int) -> None:
        """Forget everything and start at `offset`, as a full truncation does (9.29), which then rebuilds (9.26)."""
        for known in list(self.offsets):
            self._remove(known)
        self.table.clear()
        self.end_offset = offset
        self.last_snapshot_offset = log_start_offset
        self.take_snapshot()

    def raise_start(self, log_start_offset: int) -> None:
        """Follow the log start (9.20)."""
        self.end_offset = max(self.end_offset, log_start_offset)
        self.last_snapshot_offset = self.offsets[-1] if self.offsets else log_start_offset

    def mark_deleted(self, offset: int) -> list[str]:
        """Rename the snapshot at a deleted segment's base to `.deleted`; the new path, to be unlinked later.

        Nothing where there is none, also if it is gone that there was.
        """
        if offset not in self.offsets:
            return []
        path = self.path(offset)
        there = fs.exists(path)
        if there:
            fs.rename(path, path + names.DELETED)
        self.offsets.remove(offset)
        return [path + names.DELETED] if there else []

    def expire(self, now_ms: int) -> int:
        """Forget the producers that were silent for too long (9.21); how many."""
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
        fs.unlink(self.path(offset))
        self.offsets.remove(offset)


def replay_segment(
    table: ProducerTable, segment: Segment, start_offset: int, end: int
) -> list[tuple[int, int, int, int]]:
    """Take in the batches of a segment's file up to the position `end`; the transactions aborted in them."""
    file = segment.file
    position = 0 if start_offset <= segment.base_offset else segment.border(start_offset, end)
    return table.replay(file.fd, position, end, start_offset, segment.path)
