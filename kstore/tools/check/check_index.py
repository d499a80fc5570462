"""Compares index files with the batches of their segment, entry by entry.

An index is read as a whole and compared with the rows of the log's batches as they are read; wrong entries are reported
at the end. Maps no file. Invariant: entries of older brokers, of reopened logs and of live preallocated files count as
right if a reader can use them (SEMANTICS 3.18).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy
from numpy.typing import NDArray

from kstore.columns.record_offsets import offsets_and_timestamps
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.files._index_search import OFFSET_ENTRY_FIELDS, TIME_ENTRY_FIELDS
from kstore.tools.check.findings import Findings, SegmentReport, Severity

__all__ = ["OffsetIndexCheck", "Rows", "TimeIndexCheck"]

Rows: TypeAlias = NDArray[Any]

_OFFSET_ENTRY = numpy.dtype(OFFSET_ENTRY_FIELDS)
_SAMPLES = 16
_TIME_ENTRY = numpy.dtype(TIME_ENTRY_FIELDS)
_UNSEEN, _EXACT, _INSIDE, _OTHER_OFFSET, _OF_AN_APPEND = range(5)
_REBUILD = "rebuild the segment's indexes"


class _Index:
    """The entries of an index file; for each entry, a flag says whether the log has the batch that the entry names."""

    dtype = _OFFSET_ENTRY

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.exists = False
        self.zeros = 0
        self.entries = numpy.empty(0, self.dtype)
        self.offsets = self.keys = numpy.empty(0, "i8")
        self.order = numpy.empty(0, "i8")
        self.state = numpy.zeros(0, "i1")

    def read(self, findings: Findings) -> None:
        """Read the file; report a size that is not a multiple of an entry."""
        try:
            data = fs.read_file(self.path)
        except fs.MissingFileError:
            return
        self.exists = True
        size = self.dtype.itemsize
        if len(data) % size:
            findings.add(
                self.path, "FORMAT 7.5" if size == 8 else "FORMAT 8.3", f"{len(data)} bytes are no multiple of {size}",
                position=len(data) - len(data) % size, repair=_REBUILD,
            )  # fmt: skip
        entries = numpy.frombuffer(data[: len(data) - len(data) % size], self.dtype)
        used = numpy.frombuffer(data[: len(entries) * size], "u1").reshape(-1, size).any(axis=1)
        filled = int(numpy.flatnonzero(used)[-1]) + 1 if used.any() else 0
        self.zeros = len(entries) - filled
        self.entries = entries[:filled]
        self.offsets = self.entries["offset"].astype("i8") + self.base_offset
        self.keys = self.entries[self.dtype.names[0 if size == 12 else 1]].astype("i8")  # type: ignore[index]
        self.state = numpy.zeros(filled, "i1")

    def tell(self, findings: Findings, slot: int, rule: str, what: str, severity: Severity = "error") -> None:
        findings.add(
            self.path, rule, what, position=slot * self.dtype.itemsize, offset=int(self.offsets[slot]),
            severity=severity, repair=_REBUILD,
        )  # fmt: skip

    def slots_of(self, values: Rows, low: int, high: int, side: Literal["left", "right"] = "left") -> Rows:
        """Return the slots whose values are in `[low, high)` (with side "right": `[low, high]`), sorted by value."""
        if not len(self.order):
            self.order = numpy.argsort(values, kind="stable")
            self.sorted = values[self.order]
        return self.order[numpy.searchsorted(self.sorted, low) : numpy.searchsorted(self.sorted, high, side)]

    def is_there(self, report: SegmentReport, findings: Findings, missing: str, severity: Severity) -> bool:
        """Return whether there is an index; report a missing one if there are batches."""
        if not self.exists and fs.is_omitted(self.path):
            what = "the backup has no index of this segment yet; a restore builds it"
            findings.add(self.path, "", what, severity="note")
        elif not self.exists and report.size_bytes:
            findings.add(self.path, "SEMANTICS 8.8", missing, severity=severity, repair=_REBUILD)
        return self.exists

    def tell_zeros(self, findings: Findings, severity: Severity) -> None:
        """Report empty slots at the end of an index that no longer grows."""
        if self.zeros:
            findings.add(
                self.path, "SEMANTICS 3.5", f"{self.zeros} empty slots at the end of an index that no longer grows",
                position=len(self.keys) * self.dtype.itemsize, severity=severity, repair=_REBUILD,
            )  # fmt: skip

    def is_stale(self, slot: int) -> bool:
        """Return whether no entry from `slot` on is right, as in unused slots of a live index after a truncation."""
        return not (self.state[slot:] == _EXACT).any()


class OffsetIndexCheck(_Index):
    def compare(self, rows: Rows) -> None:
        """Compare the entries that point into these batches."""
        if not len(self.keys):
            return
        starts, lasts = rows["position"], rows["last_offset"]
        slots = self.slots_of(self.keys, starts[0], starts[-1] + rows["size"][-1])
        if not len(slots):
            return
        at = numpy.searchsorted(starts, self.keys[slots], "right") - 1
        exact = starts[at] == self.keys[slots]
        offsets = self.offsets[slots]
        # Before 4.1 an entry named the last offset of a whole append (SEMANTICS 3.18).
        end_of = numpy.minimum(numpy.searchsorted(lasts, offsets), len(lasts) - 1)
        of_append = (offsets > lasts[at]) & ((lasts[end_of] == offsets) | (offsets > lasts[-1]))
        state = numpy.where(of_append, _OF_AN_APPEND, _OTHER_OFFSET)
        state = numpy.where(lasts[at] == offsets, _EXACT, state)
        self.state[slots] = numpy.where(exact, state, _INSIDE)

    def conclude(
        self, report: SegmentReport, findings: Findings, *, is_open: bool, in_doubt: bool, cleaned_below: int
    ) -> None:
        """Report the wrong entries, after the log has been read."""
        if not self.is_there(report, findings, "the offset index is missing", "error"):
            return
        doubtful: Severity = "note" if in_doubt else "error"
        if not is_open:
            self.tell_zeros(findings, doubtful)
        rises = numpy.ones(len(self.keys), bool)
        rises[1:] = (numpy.diff(self.offsets) > 0) & (numpy.diff(self.keys) > 0)
        old = numpy.flatnonzero(self.state == _OF_AN_APPEND)
        old_is_legal = report.has_legacy or len(old) != 1 or self.offsets[old[0]] < cleaned_below
        for slot in numpy.flatnonzero(~rises | ((self.state != _EXACT) & (self.state != _OF_AN_APPEND))).tolist():
            if is_open and self.is_stale(slot):
                self.tell(findings, slot, "SEMANTICS 3.5", "unused slots of a live index hold old entries", "note")
                break
            where = f"entry {slot} names offset {self.offsets[slot]} at position {self.keys[slot]}"
            if not rises[slot]:
                why = "not above the entry before it"
            elif self.keys[slot] >= report.size_bytes or self.keys[slot] < 0:
                why = "which is outside of the log"
            elif self.state[slot] == _OTHER_OFFSET:
                why = "where a batch with another last offset begins"
            else:
                why = "where no sound batch begins"
            self.tell(findings, slot, "FORMAT 7.1", f"{where}, {why}", doubtful)
        if not old_is_legal:
            slot = int(old[0])
            what = (
                f"entry {slot} names offset {self.offsets[slot]}, which a later batch than that at its position holds"
            )
            self.tell(findings, slot, "SEMANTICS 3.18", what, doubtful)
        if len(self.keys) and self.keys[0] == 0 and self.state[0] == _EXACT:
            self.tell(findings, 0, "FORMAT 7.4", "the first batch has an entry, which it never gets", doubtful)


class TimeIndexCheck(_Index):
    dtype = _TIME_ENTRY

    def __init__(self, path: str, base_offset: int) -> None:
        super().__init__(path, base_offset)
        self.greatest = -1
        self.has_zero_entry = False
        self.last_offset = base_offset - 1
        self.inside: list[tuple[int, int, int]] = []  # slot, position, size
        self.exact: list[tuple[int, int, int]] = []  # the same, for the first few batches with two or more records

    def compare(self, rows: Rows) -> None:
        """Compare the entries whose offsets are in these batches."""
        greatest = numpy.maximum.accumulate(rows["max_timestamp"])
        before = numpy.empty_like(greatest)
        before[1:] = greatest[:-1]
        before[0] = self.greatest
        before = numpy.maximum(before, self.greatest)
        lasts = rows["last_offset"]
        first = min(int(rows["base_offset"][0]), self.last_offset + 1)
        if self.greatest < 0 <= greatest[-1]:
            reached = int(numpy.argmax(greatest >= 0))
            self.has_zero_entry = bool(greatest[reached] == 0 and lasts[reached] == self.base_offset)
        self.greatest = max(self.greatest, int(greatest[-1]))
        preceding, self.last_offset = self.last_offset, int(lasts[-1])
        if not len(self.keys):
            return
        slots = self.slots_of(self.offsets, first, lasts[-1], "right")
        if not len(slots):
            return
        offsets = self.offsets[slots]
        at = numpy.searchsorted(lasts, offsets)
        is_in_rows = at < len(lasts)
        slots, offsets, at = slots[is_in_rows], offsets[is_in_rows], at[is_in_rows]
        bases = rows["base_offset"]
        if (rows["magic"] < 2).any():
            bases = bases.copy()
            old = rows["magic"] < 2
            bases[old] = numpy.concatenate(([preceding], lasts[:-1]))[old] + 1
        held = (
            (bases[at] <= offsets) & (rows["max_timestamp"][at] == self.keys[slots]) & (before[at] < self.keys[slots])
        )
        state = numpy.where(held, numpy.where(lasts[at] == offsets, _EXACT, _INSIDE), _OTHER_OFFSET)
        self.state[slots] = state
        self._keep(self.inside, slots, rows, at, numpy.flatnonzero(state == _INSIDE))
        if len(self.exact) < _SAMPLES:
            several = numpy.flatnonzero((state == _EXACT) & (rows["count"][at] > 1))
            self._keep(self.exact, slots, rows, at, several[:_SAMPLES])

    def settle(self) -> None:
        """Treat a single slot of zeros as the entry of timestamp 0 at the base offset if the log has that batch."""
        if self.zeros == 1 and not len(self.keys) and self.has_zero_entry and self.greatest == 0:
            self.zeros = 0
            self.keys, self.offsets = numpy.zeros(1, "i8"), numpy.full(1, self.base_offset, "i8")
            self.state = numpy.full(1, _EXACT, "i1")

    @staticmethod
    def _keep(into: list[tuple[int, int, int]], slots: Rows, rows: Rows, at: Rows, chosen: Rows) -> None:
        for number in chosen.tolist():
            row = rows[at[number]]
            into.append((int(slots[number]), int(row["position"]), int(row["size"])))

    def conclude(self, fd: int, report: SegmentReport, findings: Findings, *, is_open: bool, in_doubt: bool) -> None:
        """Report the wrong entries, after the log has been read."""
        missing = "the time index is missing; opening makes an empty one, and searches by time read more"
        if not self.is_there(report, findings, missing, "note"):
            return
        doubtful: Severity = "note" if in_doubt else "error"
        if not is_open:
            self.tell_zeros(findings, doubtful)
        # Brokers before 4.0 wrote the record's own offset; in one segment either all entries have it or hardly any.
        is_odd = len(self.inside) == 1 and not all(self._names_record(fd, *entry) for entry in self.exact[:_SAMPLES])
        for slot, position, size in self.inside:
            if not is_odd and self._names_record(fd, slot, position, size):
                self.state[slot] = _EXACT
        rises = numpy.ones(len(self.keys), bool)
        rises[1:] = (numpy.diff(self.offsets) >= 0) & (numpy.diff(self.keys) > 0)
        for slot in numpy.flatnonzero(~rises | (self.state != _EXACT)).tolist():
            if is_open and self.is_stale(slot):
                self.tell(findings, slot, "SEMANTICS 3.5", "unused slots of a live index hold old entries", "note")
                break
            where = f"entry {slot} names timestamp {self.keys[slot]} at offset {self.offsets[slot]}"
            if not rises[slot]:
                why = "not above the entry before it"
            elif self.state[slot] == _UNSEEN:
                why = "which no sound batch holds"
            elif self.state[slot] == _INSIDE:
                why = "which is not that of the record nor of its batch"
            else:
                why = "whose batch is not the first with that greatest timestamp"
            self.tell(findings, slot, "FORMAT 8.1" if rises[slot] else "FORMAT 8.2", f"{where}, {why}", doubtful)
        if is_open or not report.batches or report.max_timestamp < 0:
            return
        if not len(self.keys):
            what = "the time index is empty; searches by time and retention read more"
            findings.add(self.path, "SEMANTICS 8.8", what, severity="note", repair=_REBUILD)
        elif self.keys[-1] < report.max_timestamp:
            what = f"the last entry names timestamp {self.keys[-1]}, the segment's greatest is {report.max_timestamp}"
            self.tell(findings, len(self.keys) - 1, "SEMANTICS 3.11", what, doubtful)

    def _names_record(self, fd: int, slot: int, position: int, size: int) -> bool:
        """Return whether an entry names the first record with its timestamp, as brokers before 4.0 wrote it."""
        try:
            offsets, timestamps = offsets_and_timestamps(fs.pread(fd, size, position))
        except KStoreError:
            return False
        return bool((offsets[timestamps == self.keys[slot]][:1] == self.offsets[slot]).any())
