"""Compares snapshots and transaction indexes with the batches of a log.

Replays the state that a broker keeps for each producer (SEMANTICS 9), as far as the batches still show it. Producers
expire and old batches are deleted, so a snapshot may legally have more or fewer producers than the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.errors import CorruptIndexError
from kstore.files import names
from kstore.files._producer_snapshot import ProducerEntry, SnapshotError, is_cut_short, parse_snapshot
from kstore.files.txnindex import AbortedTxn, parse_txn_index
from kstore.tools.check.check_index import Rows
from kstore.tools.check.findings import Findings

__all__ = ["ProducerCheck", "check_snapshot_file", "check_txn_index_file"]

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_INT_LIMIT = 2**31
_ABORT = 0


@dataclass(slots=True)
class _Producer:
    epoch: int = -1
    last_offset: int = -1
    last_sequence: int = -1
    first_open: int = -1
    ended: bool = False  # its newest batch is a marker


def check_snapshot_file(
    path: str, offset: int, findings: Findings, *, is_above: bool = False
) -> list[ProducerEntry] | None:
    """Check one snapshot by itself; return its entries, or None if it is not sound.

    With `is_above` the snapshot is above the recovery point of a log that was not shut down cleanly. The file may then
    be cut short, because the process died while writing it; opening removes such a file.
    """
    data = fs.read_file(path)
    try:
        entries = parse_snapshot(data)
    except SnapshotError as error:
        findings.add(path, "FORMAT 10", f"no sound snapshot: {error}", offset=offset, repair="move it away",
                     severity="note" if is_above and is_cut_short(data) else "error")  # fmt: skip
        return None
    for entry in entries:
        if entry.last_offset >= offset or entry.current_txn_first_offset >= offset:
            what = f"producer {entry.producer_id} at offset {max(entry.last_offset, entry.current_txn_first_offset)}"
            what += f" in a snapshot of the offsets below {offset}"
            findings.add(path, "FORMAT 10", what, offset=offset, repair="move it away")
    return entries


def check_txn_index_file(path: str, base_offset: int, findings: Findings) -> list[AbortedTxn]:
    """Check one transaction index by itself; return its entries."""
    data = fs.read_file(path)
    if len(data) % 34:
        what = f"{len(data)} bytes are no multiple of 34"
        findings.add(path, "FORMAT 9", what, position=len(data) - len(data) % 34, repair="write it anew")
    try:
        entries = parse_txn_index(data, path=path)
    except CorruptIndexError as error:
        findings.add(path, "FORMAT 9", str(error), repair="write it anew")
        return []
    last = base_offset - 1
    for slot, entry in enumerate(entries):
        if entry.last_offset <= last or entry.first_offset > entry.last_offset or entry.first_offset < 0:
            what = f"entry {slot}: aborted from {entry.first_offset} to {entry.last_offset}, after {last}"
            findings.add(path, "FORMAT 9", what, position=slot * 34, offset=entry.last_offset, repair="write it anew")
        last = max(last, entry.last_offset)
    return entries


class ProducerCheck:
    """The replay of one log. Call `enter` before each segment, `take` with its rows, `conclude` at the end."""

    def __init__(
        self,
        directory: str,
        snapshots: list[int],
        log_start: int,
        cleaned_below: int,
        findings: Findings,
        flushed_below: int | None,
        has_marker: bool,
    ) -> None:
        self._directory = directory
        self._snapshots = snapshots
        self._due = list(reversed(snapshots))
        self._log_start = log_start
        self._cleaned_below = cleaned_below
        self._findings = findings
        self._flushed_below = flushed_below
        self._has_marker = has_marker  # the log was shut down cleanly
        self._producers: dict[int, _Producer] = {}
        self._aborted: list[AbortedTxn] = []
        self._expected: list[AbortedTxn] = []
        self._seen: list[tuple[int, int, int]] = []  # aborts of the segment: producer, first offset or -1, last offset
        self._segment: int | None = None
        self.aborted: dict[int, list[AbortedTxn]] = {}
        """The entries that each segment's transaction index should have, for segments that have or need one."""

    def enter(self, base_offset: int, has_index: bool) -> None:
        self._leave()
        self._segment = base_offset
        path = os.path.join(self._directory, names.txn_index_name(base_offset))
        self._aborted = check_txn_index_file(path, base_offset, self._findings) if has_index else []

    def _leave(self) -> None:
        """Compare the transaction index of the segment just read with its abort markers."""
        if self._segment is None:
            return
        path = os.path.join(self._directory, names.txn_index_name(self._segment))
        markers = {(producer, last): first for producer, first, last in self._seen}
        listed = set()
        for slot, entry in enumerate(self._aborted):
            listed.add((entry.producer_id, entry.last_offset))
            first = markers.get((entry.producer_id, entry.last_offset))
            what = None
            if first is None:
                what = f"entry {slot}: no abort marker of producer {entry.producer_id} at offset {entry.last_offset}"
            elif first != entry.first_offset and first >= 0 and not self._was_cleaned(entry.first_offset):
                what = f"entry {slot}: aborted from {entry.first_offset}, where the transaction begins at {first}"
            if what is not None:
                self._findings.add(
                    path, "FORMAT 9", what, position=slot * 34, offset=entry.last_offset, repair="write it anew",
                    severity="note" if self._is_above(entry.last_offset) else "error",
                )  # fmt: skip
        for producer, first, last in self._seen:
            if first >= 0 and (producer, last) not in listed and not self._was_cleaned(first):
                what = f"no entry for the transaction of producer {producer} that was aborted at offset {last}"
                self._findings.add(path, "SEMANTICS 9.14", what, offset=last, repair="write it anew",
                                   severity="note" if self._is_above(last) else "error")  # fmt: skip
        kept = [entry for entry in self._aborted if self._was_cleaned(entry.first_offset)
                and (entry.producer_id, entry.last_offset) in markers]  # fmt: skip
        made = [entry for entry in self._expected if not self._was_cleaned(entry.first_offset)]
        if self._aborted or made:
            entries = {entry.last_offset: entry for entry in (*kept, *made)}
            self.aborted[self._segment] = [entries[at] for at in sorted(entries)]
        self._seen.clear()
        self._expected.clear()

    def _is_above(self, offset: int, unknown: int = LONG_MAX) -> bool:
        """Return whether opening recovers an offset and rebuilds files; `unknown` replaces a missing recovery point."""
        return not self._has_marker and offset >= (unknown if self._flushed_below is None else self._flushed_below)

    def _was_cleaned(self, offset: int) -> bool:
        return offset < max(self._cleaned_below, self._log_start)

    def take(self, rows: Rows) -> None:
        """Replay sound batches, in the order of the log."""
        while self._due and rows["base_offset"][-1] >= self._due[-1]:
            below = int(numpy.searchsorted(rows["base_offset"], self._due[-1]))
            self._follow(rows[:below])
            self._compare(self._due.pop())
            rows = rows[below:]
        self._follow(rows)

    def _follow(self, rows: Rows) -> None:
        rows = rows[rows["producer_id"] >= 0]
        if not len(rows):
            return
        if not (rows["attributes"] & (_TRANSACTIONAL | _CONTROL)).any():
            _, last = numpy.unique(rows["producer_id"][::-1], return_index=True)
            rows = rows[len(rows) - 1 - last]
        for row in rows:
            self._apply(row)

    def _apply(self, row: Any) -> None:
        producer = self._producers.setdefault(int(row["producer_id"]), _Producer())
        epoch, base, last = int(row["producer_epoch"]), int(row["base_offset"]), int(row["last_offset"])
        if row["attributes"] & _CONTROL:
            if not row["count"]:
                return
            if row["control"] == _ABORT:
                self._seen.append((int(row["producer_id"]), producer.first_open, last))
                if producer.first_open >= 0:
                    others = (other.first_open for other in self._producers.values() if other is not producer)
                    stable = min((first for first in others if first >= 0), default=last + 1)
                    entry = AbortedTxn(0, int(row["producer_id"]), producer.first_open, last, stable)
                    self._expected.append(entry)
            if epoch != producer.epoch:
                producer.last_offset = producer.last_sequence = -1
            producer.first_open = -1
        else:
            producer.last_offset = last
            sequence = int(row["base_sequence"])
            producer.last_sequence = (sequence + last - base) % _INT_LIMIT if sequence >= 0 else -1
            if row["attributes"] & _TRANSACTIONAL and producer.first_open < 0:
                producer.first_open = base
        producer.epoch, producer.ended = epoch, bool(row["attributes"] & _CONTROL)

    def _compare(self, offset: int) -> None:
        """Compare the snapshot at an offset with the state after the batches below it."""
        path = os.path.join(self._directory, names.snapshot_name(offset))
        entries = check_snapshot_file(path, offset, self._findings, is_above=self._is_above(offset, 0))
        for entry in entries or ():
            replayed = self._producers.get(entry.producer_id)
            if replayed is None:
                continue
            what, who = None, f"producer {entry.producer_id}"
            if entry.last_offset < 0 and entry.producer_epoch == replayed.epoch and replayed.ended:
                continue  # the producer had expired, and a marker created its entry again
            if entry.last_offset < replayed.last_offset or entry.producer_epoch < replayed.epoch:
                what = (
                    f"stale: producer {entry.producer_id} at offset {entry.last_offset}, epoch {entry.producer_epoch};"
                )
            elif entry.last_offset != replayed.last_offset and not self._was_cleaned(entry.last_offset):
                what = f"{who} at offset {entry.last_offset}, where it has no batch;"
            elif entry.last_offset == replayed.last_offset >= 0 and entry.last_sequence != replayed.last_sequence:
                what = f"{who} at sequence {entry.last_sequence}, its batch has {replayed.last_sequence};"
            if what is not None:
                what += f" the log has offset {replayed.last_offset}, epoch {replayed.epoch}"
                self._findings.add(path, "SEMANTICS 9.24", what, offset=offset, repair="move it away")

    def conclude(
        self,
        bases: list[int],
        next_offset: int,
        borders: set[int],
        gaps: Sequence[tuple[int, int]],
        *,
        in_doubt: bool,
        is_whole: bool,
    ) -> None:
        """Check the remaining snapshots, and which snapshots there should be (SEMANTICS 9.26 to 9.28).

        `gaps` are known to have no batches, since the log ended there after truncations inside batches. With
        `is_whole` the recovery point shows that the log has all flushed data.
        """
        self._leave()
        beyond = [at for at in self._due if at > next_offset]
        # A truncation inside a batch leaves a snapshot at the log end, beyond the last batch (SEMANTICS 11.4), and so
        # does a close after it. Without a recovery point only a single such snapshot is known to be legal.
        is_close = len(beyond) == 1 and (next_offset in bases or next_offset not in self._snapshots)
        while self._due:
            offset = self._due.pop()
            if offset <= next_offset or not bases:
                self._compare(offset)
                continue
            path = os.path.join(self._directory, names.snapshot_name(offset))
            entries = check_snapshot_file(path, offset, self._findings, is_above=self._is_above(offset, 0))
            what = f"a snapshot at offset {offset}, where the log ends at {next_offset}; opening deletes it"
            newest = max((max(at.last_offset, at.current_txn_first_offset) for at in entries or ()), default=-1)
            is_legal = is_whole or is_close or any(low <= offset <= high for low, high in gaps)
            if newest >= next_offset:
                what += f"; it knows of a batch at offset {newest}"
                is_legal = False
            is_legal = is_legal or in_doubt
            self._findings.add(path, "SEMANTICS 9.26", what, offset=offset, repair="move it away",
                               severity="note" if is_legal else "error")  # fmt: skip
        for offset in self._snapshots:
            if offset in bases or offset >= next_offset:
                continue
            path = os.path.join(self._directory, names.snapshot_name(offset))
            if offset in borders or offset < self._log_start or self._was_cleaned(offset):
                what = "a snapshot of an earlier close or truncation; opening may delete it"
                self._findings.add(path, "SEMANTICS 9.28", what, offset=offset, severity="note")
            else:
                what = "a snapshot at an offset inside a batch, where the log never ended"
                self._findings.add(path, "SEMANTICS 9.28", what, offset=offset, repair="move it away")
