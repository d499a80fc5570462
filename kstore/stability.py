"""Transactions as seen from outside: where the undecided ones begin, and which were aborted.

A log's writer knows its producers and has told the transaction indexes. Whoever only reads a directory (readonly.py)
finds both out here, from a snapshot, the batches behind it and the indexes before it. The hardest rule: the indexes
above the recovery point may lack what a crash took, so what lies there is replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kstore import fs, names
from kstore._producers import ProducerTable
from kstore.producer import replay_segment
from kstore.segment import Segment
from kstore.txnindex import AbortedTxn

NEVER_MS = 2**63 - 1


def aborted_between(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that reach into `[start_offset, end_offset)`, of the indexes of `segments` (4.11).

    `segments` begin with the one that holds `start_offset`.
    """
    found = []
    for segment in segments:
        for entry in segment.txn_index.entries:
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found
    return found


class Replayed:
    """The producers of a log that somebody else may be writing, as far as it was looked at. Safe from any thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._table = ProducerTable()
        self._version = -1
        self._from = 0  # what lies below is known by a snapshot and the indexes
        self._end = 0
        self._aborted: list[AbortedTxn] = []

    def catch_up(
        self,
        version: int,
        segments: Sequence[Segment],
        size_of: Callable[[Segment], int],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> tuple[int | None, int, list[AbortedTxn]]:
        """Look at what is new: (first unstable offset, offset from which aborts are in the list, the list).

        `version` is the guard's: when it has moved everything is looked at anew.
        """
        with self._lock:
            if version != self._version or log_end_offset < self._end:
                self._begin(segments, log_start_offset, log_end_offset, recovery_point)
                self._version = version
            if log_end_offset > self._end:
                version, self._version = self._version, -1  # whatever breaks off here is begun again
                for segment in _from_floor(segments, self._end):
                    if segment.base_offset >= log_end_offset:
                        break
                    start = max(self._end, segment.base_offset)
                    for each in replay_segment(self._table, segment, start, size_of(segment)):
                        self._aborted.append(AbortedTxn(0, *each))
                self._end = log_end_offset
                self._version = version
            return self._table.first_unstable_offset, self._from, self._aborted

    def _begin(
        self, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int, recovery_point: int
    ) -> None:
        """Start from the newest sound snapshot below which the transaction indexes are to be believed."""
        bases = [segment.base_offset for segment in segments if segment.base_offset <= recovery_point]
        believed = bases[-1] if bases else log_start_offset
        parsed = map(names.parse_file_name, fs.listdir(self._directory))
        offsets = [
            file.offset
            for file in parsed
            if file is not None and file.kind == names.SNAPSHOT and not file.state
            and log_start_offset < file.offset <= min(believed, log_end_offset)
        ]  # fmt: skip
        self._table, self._aborted = ProducerTable(), []
        self._from = self._end = log_start_offset
        for offset in sorted(offsets, reverse=True):
            data = fs.read_file(f"{self._directory}/{names.snapshot_name(offset)}")
            if self._table.load(data, 0, NEVER_MS):
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
