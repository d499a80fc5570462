"""Checks the files of one segment.

Reads the `.log` once, and compares each batch with its neighbours and each index entry with the batches. Maps no file,
since a broker may own the files and cut them. Invariant: files that Kafka or kstore left in order are never reported as
errors; unusual but legal facts are notes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy
from numpy.typing import NDArray

from kstore._core import decode_batches
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import header
from kstore.codec.header import LOG_OVERHEAD, size_of
from kstore.columns.record_offsets import offsets_and_timestamps
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.files import names
from kstore.files.log_file import open_log
from kstore.tools.check import _verify
from kstore.tools.check.check_index import OffsetIndexCheck, Rows, TimeIndexCheck
from kstore.tools.check.findings import MAX_FINDINGS, Damage, Findings, SegmentReport

__all__ = ["check_segment", "read_rows", "walk_log"]


ROW = numpy.dtype(_verify.ROW)
_CODECS = 0x07
_MOST_STRETCHES = 64
"""The number of stretches to merge when there are twice as many: a chain compares each with all before it."""
_ROWS_AT_ONCE = 16384
_FAULTS = (
    (_verify.Fault.COUNT, "FORMAT 2.4", "the number of records is negative or more than its offsets leave room for"),
    (_verify.Fault.DELTA, "FORMAT 2.1", "its last offset lies below its base offset or beyond 2^63"),
    (_verify.Fault.CODEC, "FORMAT 2.2", "its compression type is unknown"),
    (_verify.Fault.RECORDS, "FORMAT 3.2", "its records do not parse"),
    (_verify.Fault.OFFSETS, "FORMAT 2.4", "its records' offsets do not rise within the batch's span"),
    (_verify.Fault.TIMESTAMP, "FORMAT 2.3", "its max timestamp is not the greatest of its records"),
    (_verify.Fault.EPOCH, "FORMAT 2.1", "its leader epoch is negative and not -1"),
)
_STOPS = {
    "torn": ("FORMAT 2.7", "the file ends inside a batch"),
    "size": ("FORMAT 2.7", "no batch can be here: the length is too small for a header"),
    "magic": ("FORMAT 2.7", "no batch can be here: the magic is not 0, 1 or 2"),
    "crc": ("FORMAT 2.7", "the CRC of the batch does not hold"),
}


class _Order:
    """The offsets of a segment's batches in file order, as stretches: runs of batches with rising offsets.

    A flipped bit raises or lowers a batch's base offset, which no CRC covers; a misplaced block has batches whose
    offsets do not fit. The longest chain of rising offsets leaves such batches out. Not thread-safe.
    """

    def __init__(self, base_offset: int, limit_offset: int) -> None:
        self._base = base_offset
        self._limit = limit_offset
        self._stretches: list[tuple[int, int, int]] = []
        """First offset, one past the last, number of batches."""
        self._is_whole = True
        """Whether no damage has been found yet."""
        self._behind_damage = 0
        """The index of the first stretch after the last damage."""

    def take(self, rows: Rows) -> None:
        """Add the next batches of the file."""
        firsts = rows["base_offset"]
        lasts = rows["last_offset"]
        falls = numpy.flatnonzero(firsts[1:] <= lasts[:-1]) + 1
        # If offsets fall from one batch to the next, either batch may be wrong, so each is a stretch by itself. The
        # last batch also is, if it follows a gap, since a flip may have raised its offset.
        borders = {0, len(rows), *(int(at) + by for at in falls for by in (-1, 0, 1))}
        if len(rows) > 1 and firsts[-1] > lasts[-2] + 1:
            borders.add(len(rows) - 1)
        edges = sorted(at for at in borders if at <= len(rows))
        for start, stop in pairwise(edges):
            self._add(int(firsts[start]), int(lasts[stop - 1]) + 1, stop - start)

    def _add(self, first: int, end: int, count: int) -> None:
        if first < self._base or end > self._limit or end - 1 - self._base > INT_MAX:
            return
        if len(self._stretches) > self._behind_damage and self._stretches[-1][1] == first:
            before, _, counted = self._stretches[-1]
            self._stretches[-1] = before, end, counted + count
            return
        self._stretches.append((first, end, count))
        if len(self._stretches) > 2 * _MOST_STRETCHES:
            count, end = _longest(self._stretches[:_MOST_STRETCHES], self._base)
            self._stretches[:_MOST_STRETCHES] = [(self._base, end, count)]
            self._behind_damage = min(self._behind_damage, max(self._behind_damage - _MOST_STRETCHES + 1, 1))

    def cut(self) -> None:
        """Record that damaged bytes follow."""
        self._is_whole = False
        self._behind_damage = len(self._stretches)

    @property
    def end(self) -> int:
        """One past the last offset of the longest chain."""
        return _longest(self._stretches, self._base)[1]

    @property
    def least(self) -> int:
        """The least possible offset of a batch after the damage; batches since the previous damage do not count."""
        if not self._is_whole:
            return _longest(self._stretches[: self._behind_damage], self._base)[1]
        # The last batch may follow a gap only because a flip has raised its offset.
        is_alone = len(self._stretches) > 1 and self._stretches[-1][2] == 1
        return min(self.end, _longest(self._stretches[:-1], self._base)[1]) if is_alone else self.end

    def end_below(self, offset: int) -> int:
        """Return one past the last offset of the longest chain that ends at or below `offset`."""
        return _longest([stretch for stretch in self._stretches if stretch[1] <= offset], self._base)[1]


def _longest(stretches: Sequence[tuple[int, int, int]], base: int) -> tuple[int, int]:
    """Return the number of batches in the longest chain of stretches, and one past its last offset."""
    chains: list[tuple[int, int]] = []
    for first, end, count in stretches:
        chains.append((count + max((before for before, low in chains if low <= first), default=0), end))
    return max(chains, key=lambda chain: (chain[0], -chain[1]), default=(0, base))


def walk_log(
    fd: int,
    base_offset: int,
    *,
    limit_offset: int = LONG_MAX,
    records: bool = True,
    path: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[Rows | Damage]:
    """Walk a log file; yield the rows of sound batches, and the damage between them.

    After damage the walk continues at the next sound batch whose offsets are below `limit_offset` and not below the
    offsets of earlier batches. Batches after the previous damage do not count, since they may be misplaced.
    """
    end = fs.size(fd)
    order, position, legacy = _Order(base_offset, limit_offset), 0, False
    while True:
        start = position
        data, position, stop = _verify.walk(fd, start, end, rows=_ROWS_AT_ONCE, records=records, path=path)
        rows = numpy.frombuffer(data, ROW)
        if len(rows):
            order.take(rows)
            legacy = legacy or bool((rows["magic"] < 2).any())
            if progress is not None:
                progress(position - start)
            yield rows
        if stop == "end":
            return
        if stop == "more":
            continue
        following = _behind(fd, position, end, stop, order.least, limit_offset, legacy, path)
        next_offset = order.end if following < 0 else order.end_below(_base_offset_at(fd, following))
        order.cut()
        yield Damage(position, end if following < 0 else following, stop, next_offset, following < 0)
        if progress is not None:
            progress((end if following < 0 else following) - position)
        if following < 0:
            return
        position = following


def _base_offset_at(fd: int, position: int) -> int:
    data = fs.pread(fd, LOG_OVERHEAD, position)
    return header.BASE_OFFSET.of(data) if len(data) == LOG_OVERHEAD else LONG_MAX


def _behind(fd: int, position: int, end: int, stop: str, least: int, most: int, legacy: bool, path: str | None) -> int:
    """Return where sound batches continue after the fault at `position`, -1 if they do not."""
    if stop == "crc":
        data = fs.pread(fd, LOG_OVERHEAD, position)
        size = size_of(data) if len(data) == LOG_OVERHEAD else 0
        if size > LOG_OVERHEAD and position + size < end:
            data, _, _ = _verify.walk(fd, position + size, end, rows=1, records=False, path=path)
            if data:
                row = numpy.frombuffer(data, ROW)[0]
                if least <= row["base_offset"] and row["last_offset"] < most:
                    return position + size
    return _verify.find_next(fd, position + 1, end, least, most, legacy=legacy, path=path)


def read_rows(path: str, base_offset: int, *, limit_offset: int = LONG_MAX) -> tuple[Rows, list[Damage]]:
    """Return the rows of all sound batches of a file, and the damage between them."""
    fd = open_log(path)
    try:
        parts = list(walk_log(fd, base_offset, limit_offset=limit_offset, path=path))
    finally:
        fs.close(fd)
    rows = [part for part in parts if not isinstance(part, Damage)]
    return (
        numpy.concatenate(rows) if rows else numpy.empty(0, ROW),
        [part for part in parts if isinstance(part, Damage)],
    )


def check_segment(
    directory: str,
    base_offset: int,
    findings: Findings,
    *,
    is_last: bool,
    limit_offset: int = LONG_MAX,
    cleaned_below: int = 0,
    flushed_below: int | None = None,
    has_marker: bool = False,
    borders_at: Sequence[int] = (),
    take_rows: Callable[[Rows], object] | None = None,
    deep: bool = False,
    progress: Callable[[int], object] | None = None,
) -> SegmentReport:
    """Check the `.log` of a segment with its two indexes, and add the faults to `findings`.

    `limit_offset` is the next segment's base offset. A cleaner has cleaned the offsets below `cleaned_below`. All
    records below `flushed_below` were flushed (None: not known). The report lists the offsets of `borders_at` at which
    a batch starts or ends. `take_rows` is called with the rows of sound batches. `deep` also decompresses. Raises
    `StorageError` if the log cannot be read.
    """
    path = os.path.join(directory, names.log_name(base_offset))
    report = SegmentReport(base_offset, path, next_offset=base_offset)
    offsets = OffsetIndexCheck(os.path.join(directory, names.index_name(base_offset)), base_offset)
    times = TimeIndexCheck(os.path.join(directory, names.time_index_name(base_offset)), base_offset)
    offsets.read(findings)
    times.read(findings)
    fd = open_log(path)
    try:
        report.size_bytes = fs.size(fd)
        wanted = numpy.array(sorted(borders_at), "i8")
        before = None
        for part in walk_log(fd, base_offset, limit_offset=limit_offset, path=path, progress=progress):
            if isinstance(part, Damage):
                report.damages.append(part)
                continue
            _check_batches(part, before, report, findings, limit_offset)
            offsets.compare(part)
            times.compare(part)
            report.borders.update(wanted[_are_among(wanted, part["base_offset"])].tolist())
            report.borders.update(wanted[_are_among(wanted - 1, part["last_offset"])].tolist())
            if deep:
                _check_compressed(fd, part, report, findings)
            if take_rows is not None:
                take_rows(part)
            before = part[-1]
        times.settle()
        report.is_live = offsets.zeros > 0 or times.zeros > 0
        is_open = is_last and report.is_live
        for damage in report.damages:
            _tell_damage(fd, damage, report, findings, is_last=is_last, flushed=flushed_below, has_marker=has_marker)
        # Opening recovers the segment with the recovery point and all above it, and rebuilds their indexes, since a
        # process that died may have left them in any state.
        is_above = flushed_below is not None and flushed_below < report.next_offset
        in_doubt = not has_marker and (is_open or is_above)
        offsets.conclude(report, findings, is_open=is_open, in_doubt=in_doubt, cleaned_below=cleaned_below)
        times.conclude(fd, report, findings, is_open=is_open, in_doubt=in_doubt)
    finally:
        fs.close(fd)
    return report


def _are_among(wanted: NDArray[numpy.int64], values: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
    """Return which of a few `wanted` are among many `values`, which are in order unless the file is damaged."""
    if not len(wanted) or not (values[1:] >= values[:-1]).all():
        return numpy.isin(wanted, values)
    at = numpy.minimum(numpy.searchsorted(values, wanted), len(values) - 1)
    return numpy.equal(values[at], wanted)


def _check_batches(rows: Rows, before: Any, report: SegmentReport, findings: Findings, limit_offset: int) -> None:
    """Compare batches with their headers and neighbours, and collect data for the check of the whole log."""
    for at in numpy.flatnonzero(rows["faults"]):
        row = rows[at]
        for bit, rule, what in _FAULTS:
            if row["faults"] & bit:
                how = "cut the batch"
                if bit == _verify.Fault.TIMESTAMP:
                    how = "write the records' greatest timestamp and a new CRC"
                elif bit == _verify.Fault.EPOCH:
                    how = "write the epoch of its neighbours"
                _tell(findings, report.path, row, rule, what, how)
    bases, lasts = rows["base_offset"], rows["last_offset"]
    previous = numpy.empty_like(bases)
    previous[1:] = lasts[:-1]
    previous[0] = report.base_offset - 1 if before is None else before["last_offset"]
    # In formats 0 and 1 the base offset is the message's own offset; a wrapper has the offset of its last message.
    old = rows["magic"] < 2
    report.has_legacy = report.has_legacy or bool(old.any())
    firsts = numpy.where(old, numpy.minimum(bases, previous + 1), bases)
    for at in numpy.flatnonzero(firsts <= previous) if not old.any() else numpy.flatnonzero(bases <= previous):
        row, after = rows[at], int(previous[at])
        if before is None and at == 0:
            rule, how = "FORMAT 1.3", "cut the batch, unless its neighbours tell its offset"
            what = f"offset {row['base_offset']} in a segment that begins at {report.base_offset}"
        else:
            rule = "SEMANTICS 0.1"
            how = "restore the offset that the neighbours tell; where they do not, cut the batch"
            what = f"offsets {row['base_offset']} to {row['last_offset']} after {after}"
        _tell(findings, report.path, row, rule, what, how)
    for at in numpy.flatnonzero(firsts > previous + 1)[:MAX_FINDINGS]:
        report.gaps.append((int(previous[at]) + 1, int(firsts[at])))
    report.last_gap = max(int(firsts[-1]) - int(previous[-1]) - 1, 0)
    for at in numpy.flatnonzero((lasts - report.base_offset > INT_MAX) | (lasts >= limit_offset)):
        row = rows[at]
        if row["last_offset"] >= limit_offset:
            what = f"its last offset {row['last_offset']} belongs in the next segment, which begins at {limit_offset}"
        else:
            what = f"its last offset {row['last_offset']} is not within 2^31 of the segment's base offset"
        how = "restore the offset that the neighbours tell, or cut the batch"
        _tell(findings, report.path, row, "FORMAT 1.3", what, how)
    report.batches += len(rows)
    report.records += int(rows["count"].sum())
    report.next_offset = int(lasts[-1]) + 1
    report.max_timestamp = max(report.max_timestamp, int(rows["max_timestamp"].max()))
    _gather_epochs(rows, report)


def _gather_epochs(rows: Rows, report: SegmentReport) -> None:
    rows = rows[rows["magic"] == 2]  # the older formats have no leader epoch
    if not len(rows):
        return
    epochs = rows["leader_epoch"]
    changes = numpy.flatnonzero(epochs[1:] != epochs[:-1]) + 1
    starts = [0, *changes.tolist()]
    for start, stop in zip(starts, [*changes.tolist(), len(rows)], strict=True):
        epoch, first, last = int(epochs[start]), int(rows["base_offset"][start]), int(rows["base_offset"][stop - 1])
        if report.epochs and report.epochs[-1][0] == epoch:
            report.epochs[-1] = (epoch, report.epochs[-1][1], last, report.epochs[-1][3])
        elif len(report.epochs) < 100_000:
            report.epochs.append((epoch, first, last, int(rows["position"][start])))


def _tell(findings: Findings, path: str, row: Any, rule: str, what: str, repair: str) -> None:
    findings.add(path, rule, what, position=int(row["position"]), offset=int(row["base_offset"]), repair=repair)


def _check_compressed(fd: int, rows: Rows, report: SegmentReport, findings: Findings) -> None:
    """Decompress the compressed batches, and compare their records with their headers."""
    for at in numpy.flatnonzero((rows["attributes"] & _CODECS) != 0):
        row = rows[at]
        what = None
        try:
            data = fs.pread(fd, int(row["size"]), int(row["position"]))
            for batch in decode_batches(data, check_crc=False):
                offsets, timestamps = offsets_and_timestamps(data)
                rises = bool((offsets[1:] > offsets[:-1]).all())
                if offsets.size and (not rises or offsets[0] < batch.base_offset or offsets[-1] > batch.last_offset):
                    what = "FORMAT 2.4", "its records' offsets do not rise within the batch's span"
                elif row["magic"] == 2 and timestamps.size and row["max_timestamp"] not in _greatest(timestamps):
                    what = "FORMAT 2.3", "its max timestamp is not the greatest of its records"
        except KStoreError as error:
            what = "FORMAT 3.2", f"its records do not parse: {error}"
        if what is not None:
            how = "cut the batch" if what[0] != "FORMAT 2.3" else "write the records' greatest timestamp and a new CRC"
            _tell(findings, report.path, row, what[0], what[1], how)


def _greatest(timestamps: NDArray[Any]) -> tuple[int, int]:
    """Return the max timestamps that a header may have; before 1970 also -1 (none), which a leader's append writes."""
    greatest = int(timestamps.max())
    return greatest, max(greatest, -1)


def _tell_damage(
    fd: int,
    damage: Damage,
    report: SegmentReport,
    findings: Findings,
    *,
    is_last: bool,
    flushed: int | None,
    has_marker: bool,
) -> None:
    rule, what = _STOPS[damage.stop]
    size = damage.end - damage.position
    if damage.is_tail and is_last and not has_marker:
        if _is_zero(fd, damage.position, damage.end):
            findings.add(
                report.path, "FORMAT 1.3", f"{size} zeros at the end, as in a preallocated file that is in use",
                position=damage.position, offset=damage.next_offset, severity="note", repair="cut them",
            )  # fmt: skip
            return
        # A flip may have raised the offset of the batch before the damage, and so `next_offset`. The damaged batch's
        # own offset may still show that it was flushed.
        is_below = flushed is not None and report.base_offset < _base_offset_at(fd, damage.position) < flushed
        if flushed is not None and damage.next_offset >= flushed and not is_below:
            findings.add(
                report.path, "SEMANTICS 8.17", f"{what}: a tail that was not flushed, {size} bytes; opening cuts it",
                position=damage.position, offset=damage.next_offset, severity="note", repair="cut it",
            )  # fmt: skip
            return
    after = "nothing sound comes after it" if damage.is_tail else f"sound batches go on at position {damage.end}"
    findings.add(
        report.path, rule, f"{what}; {size} bytes, {after}", position=damage.position,
        offset=damage.next_offset,
        repair="restore the header where its neighbours tell it; else cut the bytes, and keep what comes after",
    )  # fmt: skip


def _is_zero(fd: int, position: int, end: int) -> bool:
    while position < end:
        data = fs.pread(fd, min(1 << 20, end - position), position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True
