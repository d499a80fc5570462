"""Finds the open and aborted transactions of a log that another process may be writing.

The writer has them in memory and in its transaction indexes; a read-only log loads the newest snapshot and replays the
batches after it. Invariant: no snapshot or index entry above the recovery point is used, because a power cut may
restore a deleted snapshot or lose an index entry. Batches above the recovery point are replayed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter

from kstore.base.numbers import NEVER
from kstore.disk import fs
from kstore.files import names
from kstore.files.txnindex import AbortedTxn
from kstore.log.segments._producer_state import ProducerTable
from kstore.log.segments.producer_state import ProducerInfo, producer_infos, replay_segment
from kstore.log.segments.segment import Segment


def aborted_between(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """Return the aborted transactions that reach into `[start_offset, end_offset)`, from the segments' indexes.

    See SEMANTICS 4.11. The first of the `segments` holds `start_offset`.
    """
    aborted = []
    for segment in segments:
        for entry in segment.txn_index.entries:
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                aborted.append(entry)
            if entry.last_stable_offset >= end_offset:
                return aborted
    return aborted


def open_transactions(table: ProducerTable) -> list[tuple[int, int]]:
    """Return (first offset, producer id) of each open transaction of a table."""
    return [
        (first_offset, producer_id) for producer_id, _, _, _, first_offset, _ in table.states() if first_offset >= 0
    ]


def last_records(table: ProducerTable) -> dict[int, tuple[int, int]]:
    """Return (last data offset or -1, epoch) of each active producer by its producer id (SEMANTICS 7.18)."""
    return {state[0]: (state[5][-1][3] if state[5] else -1, state[1]) for state in table.states()}


class Replayed:
    """The producers of a log that another process may be writing, as of the last `catch_up`. Thread-safe."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._table = ProducerTable()
        self._version = -1
        self._from = 0  # transactions below this offset are found in a snapshot and the indexes
        self._end = 0
        self._aborted: list[AbortedTxn] = []

    def catch_up(
        self,
        version: int,
        segments: Sequence[Segment],
        size_of: Callable[[Segment], int],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> tuple[int, int, list[AbortedTxn]]:
        """Replay new batches. Return (last stable offset, `start`, transactions aborted at or above `start`).

        Transactions that were aborted below `start` are in the segments' indexes. `version` is the version of the
        view's guard; if it differs from the last call's, everything is replayed again.
        """
        with self._lock:
            if version != self._version or log_end_offset < self._end:
                self._version = -1  # an interrupted replay starts again
                self._begin(segments, size_of, log_start_offset, log_end_offset, recovery_point)
                self._version = version
            if log_end_offset > self._end:
                version, self._version = self._version, -1
                self._replay(segments, size_of, log_end_offset)
                self._version = version
            stable_end = self._table.open.last_stable_offset(log_start_offset, log_end_offset)
            return stable_end, self._from, self._aborted

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Return (last data offset or -1, epoch) of each active producer by its id, as of the last `catch_up`."""
        with self._lock:
            return last_records(self._table)

    def producer_states(self) -> list[ProducerInfo]:
        """Return the producers as of the last `catch_up`, in the order of their ids."""
        with self._lock:
            return producer_infos(self._table)

    def open_transactions(self) -> list[tuple[int, int]]:
        """Return (first offset, producer id) of each transaction that was open at the last `catch_up`."""
        with self._lock:
            return open_transactions(self._table)

    def _begin(
        self,
        segments: Sequence[Segment],
        size_of: Callable[[Segment], int],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        """Load the producers from the newest sound snapshot at or below the recovery point.

        The index of the last segment that starts at or below the recovery point may lack aborted transactions. So a
        replay finds them, from an older snapshot or the first segment. A transaction may have started below the log
        start (SEMANTICS 9.16), so snapshots and batches below the log start are used, too.
        """
        first = segments[0].base_offset if segments else log_start_offset
        bases = [segment.base_offset for segment in segments if segment.base_offset <= recovery_point]
        complete_below = bases[-1] if bases else first
        self._table, self._aborted = ProducerTable(), []
        self._from = self._end = first
        newest: tuple[int, bytes] | None = None
        for offset in self._snapshots(first, min(log_end_offset, recovery_point)):
            with suppress(fs.MissingFileError):  # the writer has removed the snapshot
                data = fs.read_file(f"{self._directory}/{names.snapshot_name(offset)}")
                if self._table.load(data, 0, NEVER):
                    newest = newest or (offset, data)
                    if offset <= complete_below:
                        self._from = self._end = offset
                        break
        else:
            self._table.clear()
        if newest is not None and newest[0] > self._end:
            self._replay(segments, size_of, newest[0])
            self._table.load(newest[1], 0, NEVER)

    def _snapshots(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the offsets of the snapshots in `[first_offset, end_offset]`, the newest first."""
        parsed = map(names.parse_file_name, fs.listdir(self._directory))
        offsets = (
            file.offset for file in parsed if file is not None and file.kind == names.SNAPSHOT and not file.state
        )
        return sorted((offset for offset in offsets if first_offset <= offset <= end_offset), reverse=True)

    def _replay(self, segments: Sequence[Segment], size_of: Callable[[Segment], int], end_offset: int) -> None:
        """Replay the batches up to `end_offset`, at which a batch ends."""
        first = max(bisect_right(segments, self._end, key=attrgetter("base_offset")) - 1, 0)
        for segment in segments[first:]:
            if segment.base_offset >= end_offset:
                break
            end = size_of(segment)
            behind = segment.find_batch(end_offset, end)
            start = max(self._end, segment.base_offset)
            for transaction in replay_segment(self._table, segment, start, end if behind is None else behind.position):
                self._aborted.append(AbortedTxn(0, *transaction))
        self._end = end_offset
