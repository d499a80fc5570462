"""Transactions of a log that another process may be writing: where the open ones begin, and which were aborted.

A log's writer has this in memory and in its transaction indexes. A read-only log finds it from a snapshot, the batches
behind the snapshot and the indexes before it. The hardest rule: above the recovery point an index may lack entries that
a crash has lost, so the batches there are replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kstore.base.numbers import NEVER
from kstore.disk import fs
from kstore.files import names
from kstore.files.txnindex import AbortedTxn
from kstore.log.segments._producers import ProducerTable
from kstore.log.segments.producers import ProducerInfo, producer_infos, replay_segment
from kstore.log.segments.segment import Segment


def aborted_between(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that reach into `[start_offset, end_offset)`, of the indexes of `segments`
    (SEMANTICS 4.11).

    `segments` begin with the one that holds `start_offset`.
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
    """Each open transaction of a table: (first offset, producer id)."""
    return [
        (first_offset, producer_id) for producer_id, _, _, _, first_offset, _ in table.states() if first_offset >= 0
    ]


def last_records(table: ProducerTable) -> dict[int, tuple[int, int]]:
    """The last record of each active producer (SEMANTICS 7.18): (last data offset or -1, epoch) by producer id."""
    return {state[0]: (state[5][-1][3] if state[5] else -1, state[1]) for state in table.states()}


class Replayed:
    """The producers of a log that another process may be writing, as far as it was read. Safe from any thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._table = ProducerTable()
        self._version = -1
        self._from = 0  # below it a snapshot and the indexes tell of transactions
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
    ) -> tuple[int | None, int, list[AbortedTxn]]:
        """Replay new batches: (first unstable offset, offset from which aborts are in the list, the list).

        `version` is the guard's: when it has moved, everything is replayed anew.
        """
        with self._lock:
            if version != self._version or log_end_offset < self._end:
                self._begin(segments, log_start_offset, log_end_offset, recovery_point)
                self._version = version
            if log_end_offset > self._end:
                version, self._version = self._version, -1  # a replay that is broken off is begun again
                for segment in _from_floor(segments, self._end):
                    if segment.base_offset >= log_end_offset:
                        break
                    start = max(self._end, segment.base_offset)
                    for transaction in replay_segment(self._table, segment, start, size_of(segment)):
                        self._aborted.append(AbortedTxn(0, *transaction))
                self._end = log_end_offset
                self._version = version
            return self._table.first_unstable_offset, self._from, self._aborted

    def last_records(self) -> dict[int, tuple[int, int]]:
        """The last record of each active producer at the last look: (last data offset or -1, epoch) by producer id."""
        with self._lock:
            return last_records(self._table)

    def producer_states(self) -> list[ProducerInfo]:
        """What was known of each producer at the last look, in order of their ids."""
        with self._lock:
            return producer_infos(self._table)

    def open_transactions(self) -> list[tuple[int, int]]:
        """Each transaction that was open at the last look: (first offset, producer id)."""
        with self._lock:
            return open_transactions(self._table)

    def _begin(
        self, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int, recovery_point: int
    ) -> None:
        """Start from the newest sound snapshot below which the transaction indexes are complete."""
        bases = [segment.base_offset for segment in segments if segment.base_offset <= recovery_point]
        complete_below = bases[-1] if bases else log_start_offset
        parsed = map(names.parse_file_name, fs.listdir(self._directory))
        offsets = [
            file.offset
            for file in parsed
            if file is not None and file.kind == names.SNAPSHOT and not file.state
            and log_start_offset < file.offset <= min(complete_below, log_end_offset)
        ]  # fmt: skip
        self._table, self._aborted = ProducerTable(), []
        self._from = self._end = log_start_offset
        for offset in sorted(offsets, reverse=True):
            data = fs.read_file(f"{self._directory}/{names.snapshot_name(offset)}")
            if self._table.load(data, 0, NEVER):
                self._from = self._end = offset
                break


def _from_floor(segments: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """The segments from the one that holds `offset` on."""
    first = 0
    for number, segment in enumerate(segments):
        if segment.base_offset > offset:
            break
        first = number
    return segments[first:]
