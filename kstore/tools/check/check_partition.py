"""Checks a partition's directory: its segments, and whether checkpoints, epochs, snapshots and names agree with them.

`check_segment` checks a segment's own files, `check_producers` snapshots and transaction indexes. Invariant: files that
kstore or Kafka left in order are never reported as errors.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.errors import InvalidTopicError, StorageError
from kstore.files import checkpoint, gap_files, names
from kstore.files.txnindex import AbortedTxn
from kstore.tools.check.check_producers import ProducerCheck
from kstore.tools.check.check_segment import check_segment
from kstore.tools.check.findings import Findings, SegmentReport, Severity

__all__ = ["Marks", "PartitionReport", "Progress", "check_epochs", "check_partition", "read_marks"]

_KNOWN_NAMES = {names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, gap_files.GAPS_FILE}

Progress = Callable[[int], object]
"""Called with the number of bytes read."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The lines of one partition in the checkpoint files of its root; None if there is no line. Immutable."""

    recovery_point: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    cleaner: int | None = None
    has_marker: bool = False
    """Whether the root was shut down cleanly."""
    is_root: bool = False
    """Whether the parent is a log directory, in which a partition without a line has a recovery point of 0."""

    @property
    def flushed_below(self) -> int | None:
        """One past the last flushed offset; None if it is not known."""
        return 0 if self.recovery_point is None and self.is_root else self.recovery_point

    def cleaned_below(self, bases: Sequence[int]) -> int:
        """Return the offset below which a cleaner may have removed batches; 0 if no cleaner has cleaned the log.

        A cleaning writes its line after it has swapped segments (SEMANTICS 7.7). If it was killed in between, segments
        above the line may be cleaned, too, up to the active one.
        """
        return 0 if self.cleaner is None else max([self.cleaner, *bases[-1:]])

    def explains_start(self, first_base: int) -> bool:
        """Return whether a log may start at `first_base` although other files name records below it.

        A log start is on the disk before a segment below it is deleted. Outside of a root any start is accepted.
        """
        return not self.is_root or (self.log_start or 0) >= first_base

    def begins_anew(self, first_base: int, end_offset: int) -> bool:
        """Return whether the log ends below its start and has no flushed data: opening drops it (SEMANTICS 8.11)."""
        return (self.log_start or 0) > end_offset and (self.recovery_point or 0) <= first_base


@dataclass(slots=True)
class PartitionReport:
    """The findings and segments of one partition. Not thread-safe."""

    path: str
    findings: Findings = field(default_factory=Findings)
    segments: list[SegmentReport] = field(default_factory=list)
    start_offset: int = 0
    next_offset: int = 0
    aborted: dict[int, list[AbortedTxn]] = field(default_factory=dict)
    """The entries that transaction indexes should have, by the base offset of their segments."""
    lost_first: tuple[int, int] | None = None
    """The offsets `[start, end)` of missing first segments, as far as indexes and epochs show them."""

    def lose_first(self, offset: int, first_base: int, marks: Marks) -> None:
        """Record that a file names records from `offset` on, below the first existing segment."""
        start = min(offset, first_base if self.lost_first is None else self.lost_first[0])
        self.lost_first = max(start, marks.log_start or 0), first_base


def read_marks(directory: str) -> Marks:
    """Read a partition's lines in the files of its parent directory; an unreadable file counts as having none."""
    root, name = os.path.split(fs.absolute(directory))
    try:
        parsed = names.parse_partition_name(name)
    except InvalidTopicError:
        return Marks()
    key = parsed.topic, parsed.partition
    return Marks(
        recovery_point=_line(root, checkpoint.RECOVERY_POINTS, key),
        log_start=_line(root, checkpoint.LOG_STARTS, key),
        high_watermark=_line(root, checkpoint.HIGH_WATERMARKS, key),
        cleaner=_line(root, checkpoint.CLEANER_OFFSETS, key),
        has_marker=fs.exists(os.path.join(root, checkpoint.CLEAN_MARKER)),
        is_root=any(fs.exists(os.path.join(root, name)) for name in (fs.LOCK_FILE, *checkpoint.OFFSET_CHECKPOINTS)),
    )


def _line(root: str, name: str, partition: checkpoint.Partition) -> int | None:
    try:
        return checkpoint.read_offset(root, name, partition)
    except StorageError:
        return None


def check_partition(
    directory: str, marks: Marks, *, deep: bool = False, progress: Progress | None = None
) -> PartitionReport:
    """Check a partition's files against each other and against `marks`. Raises `StorageError` if it is unreadable."""
    report = PartitionReport(directory)
    findings = report.findings
    files = _check_names(report, marks)
    bases = sorted(file.offset for file in files if file.kind == names.LOG)
    snapshots = sorted(file.offset for file in files if file.kind == names.SNAPSHOT)
    accepted = _read_gaps(directory, findings)
    start = max(marks.log_start or 0, bases[0]) if bases else marks.log_start or 0
    cleaned = marks.cleaned_below(bases)
    found_by_name = list(findings)

    def replay(snapshots: list[int], start: int) -> ProducerCheck:
        return ProducerCheck(directory, snapshots, start, cleaned, findings, marks.flushed_below, marks.has_marker)

    producers = replay(snapshots, start)
    borders_at = [*snapshots, *(mark for mark in (marks.recovery_point,) if mark is not None)]
    with_aborts = {file.offset for file in files if file.kind == names.TXN_INDEX}
    for number, base in enumerate(bases):
        is_last = number == len(bases) - 1
        try:
            producers.enter(base, base in with_aborts)
            report.segments.append(
                check_segment(
                    directory,
                    base,
                    findings,
                    is_last=is_last,
                    limit_offset=LONG_MAX if is_last else bases[number + 1],
                    cleaned_below=cleaned,
                    flushed_below=marks.flushed_below,
                    has_marker=marks.has_marker,
                    borders_at=borders_at,
                    take_rows=producers.take,
                    deep=deep,
                    progress=progress,
                )
            )
        except fs.MissingFileError:
            if is_last or not _begins_behind(directory, base):
                raise
            # Retention has deleted the segment and all before it during the check, so the log starts after it.
            findings[:] = found_by_name
            report.segments.clear()
            start = max(start, bases[number + 1])
            snapshots = [at for at in snapshots if at > base]
            producers = replay(snapshots, start)
    bases = [segment.base_offset for segment in report.segments]
    report.start_offset = start
    report.next_offset = report.segments[-1].next_offset if bases else start
    _check_gaps(report, accepted, cleaned)
    _check_marks(report, marks)
    is_closed = _is_closed(report, marks)
    # A close after a truncation inside a batch leaves a snapshot at the log end, beyond the batches (SEMANTICS 11.4).
    closed_at = max(report.next_offset, *snapshots, 0)
    check_epochs(report, closed_at, marks, is_closed=is_closed, cleaned_below=cleaned)
    is_whole = marks.flushed_below is not None and marks.flushed_below <= report.next_offset
    borders = set().union(*(segment.borders for segment in report.segments), bases)
    missing = [gap for segment in report.segments for gap in segment.gaps]
    missing += [(before.next_offset, after.base_offset) for before, after in pairwise(report.segments)]
    borders.update(at for at in borders_at if _within(missing, at, at))
    in_doubt = is_whole and not is_closed
    producers.conclude(bases, report.next_offset, borders, accepted, in_doubt=in_doubt, is_whole=is_whole)
    report.aborted = producers.aborted
    check_metadata(directory, findings)
    findings.close(directory)
    return report


def check_metadata(directory: str, findings: Findings) -> None:
    path = os.path.join(directory, names.PARTITION_METADATA)
    how = "write it anew with the topic's id, or move it away where nothing tells the id"
    with findings.reading(path, "FORMAT 1.10", how):
        if checkpoint.is_metadata_blank(directory):
            what = "it is empty: the topic's id is missing, and a broker cannot load the log"
            findings.add(path, "FORMAT 1.10", what, repair=how)
        else:
            checkpoint.read_partition_metadata(directory)


def _begins_behind(directory: str, base_offset: int) -> bool:
    """Return whether all segments now start above an offset."""
    files = map(names.parse_file_name, fs.listdir(directory))
    bases = [file.offset for file in files if file is not None and file.kind == names.LOG and not file.state]
    return bool(bases) and min(bases) > base_offset


def _check_names(report: PartitionReport, marks: Marks) -> list[names.FileName]:
    """Return the segment files and snapshots to check; report other names."""
    directory, findings = report.path, report.findings
    counted = []
    files = [(name, names.parse_file_name(name)) for name in fs.listdir(directory)]
    bases = {file.offset for _, file in files if file is not None and file.kind == names.LOG and not file.state}
    for name, file in files:
        path = os.path.join(directory, name)
        if file is None:
            if name.endswith((".deleted", ".tmp")):
                what = "a leftover of an interrupted write" if name.endswith(".tmp") else "awaits its removal"
                findings.add(path, "FORMAT 1.9", what, severity="note", repair="move it away")
            elif name not in _KNOWN_NAMES:
                findings.add(path, "FORMAT 1.3", "no file of a log is named so", severity="note")
        elif str(file) != name:
            what = f"the name should have 20 digits, as {file}"
            findings.add(path, "FORMAT 1.3", what, offset=file.offset, repair=f"rename it to {file}")
            if not file.state and not fs.exists(os.path.join(directory, str(file))):
                continue
        elif file.state:
            what = {".deleted": "awaits its removal", ".cleaned": "a file of an unfinished compaction",
                    ".swap": "a file of a compaction that was being swapped in"}[file.state]  # fmt: skip
            findings.add(path, "SEMANTICS 8.4", what, offset=file.offset, repair="move it away",
                         severity="error" if marks.has_marker and file.state != ".deleted" else "note")  # fmt: skip
        elif file.kind not in (names.LOG, names.SNAPSHOT) and file.offset not in bases:
            first_base = min(bases, default=file.offset)
            was_deleted = _was_deleted(directory, file.offset, first_base, marks)
            what = "an index without its log"
            if file.offset < first_base and not was_deleted:
                what += f", where no segment holds offsets {file.offset} to {first_base - 1}"
                report.lose_first(file.offset, first_base, marks)
            findings.add(path, "SEMANTICS 8.8", f"{what}; opening deletes it", offset=file.offset,
                         repair="move it away", severity="note" if was_deleted else "error")  # fmt: skip
        else:
            counted.append(file)
    return counted


def _was_deleted(directory: str, base_offset: int, first_base: int, marks: Marks) -> bool:
    """Return whether a process may have died while deleting this segment, whose `.log` is renamed first."""
    if marks.has_marker:
        return False
    if fs.exists(os.path.join(directory, names.log_name(base_offset) + names.DELETED)):
        return True
    if base_offset < first_base and not marks.explains_start(first_base):
        return False
    is_above = marks.recovery_point is not None and base_offset >= marks.recovery_point
    return is_above or base_offset < (marks.log_start or 0)


def _read_gaps(directory: str, findings: Findings) -> list[tuple[int, int]]:
    with findings.reading(os.path.join(directory, gap_files.GAPS_FILE), "", "move it away"):
        return gap_files.read_gaps(directory)
    return []


def _check_gaps(report: PartitionReport, accepted: Sequence[tuple[int, int]], cleaned: int) -> None:
    """Check gaps in offsets: legal within a segment, but between segments only if a cleaner removed batches."""
    findings = report.findings
    for segment in report.segments:
        lost = [damage.next_offset for damage in segment.damages]
        for low, high in segment.gaps:
            if low < cleaned or _within(accepted, low, high):
                continue
            what = f"no batch holds offsets {low} to {high - 1}"
            if low in lost:
                findings.add(
                    segment.path, "FORMAT 2.7", f"{what}: they were in the damaged bytes", offset=low, severity="note"
                )
            else:
                what += ": compacted, truncated inside a batch, or copied from such a log"
                findings.add(segment.path, "FORMAT 2.6", what, offset=low, severity="note")
    for before, after in pairwise(report.segments):
        low, high = before.next_offset, after.base_offset
        if low < high and low >= cleaned and not _within(accepted, low, high):
            what = (
                f"no segment holds offsets {low} to {high - 1}, between {os.path.basename(before.path)} and this one: "
            )
            what += "a segment or its end is missing, unless this was copied from a compacted log"
            repair = "write down that they are lost"
            findings.add(after.path, "FORMAT 1.3", what, position=0, offset=low, repair=repair)


def _within(stretches: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    return any(start <= low and high <= end for start, end in stretches)


def _is_closed(report: PartitionReport, marks: Marks) -> bool:
    """Return whether the log looks as after a close; its marks must then be right."""
    if not report.segments or report.segments[-1].is_live:
        return False
    return marks.has_marker or marks.recovery_point == report.next_offset


def _check_marks(report: PartitionReport, marks: Marks) -> None:
    findings, end = report.findings, report.next_offset
    root = os.path.dirname(fs.absolute(report.path))
    point = marks.recovery_point
    path = os.path.join(root, checkpoint.RECOVERY_POINTS)
    last = report.segments[-1] if report.segments else None
    begins_anew = marks.begins_anew(report.segments[0].base_offset if report.segments else end, end)
    if last is None:
        if point is not None and point > end:
            what = f"there is no segment, and the recovery point is {point}: flushed records are missing"
            findings.add(report.path, "SEMANTICS 8.13", what, offset=end, repair=f"lower the recovery point to {end}")
    elif point is not None and point > end:
        what = f"the log ends at offset {end}, below its recovery point {point}: flushed records are missing"
        findings.add(last.path, "SEMANTICS 8.13", what, position=last.size_bytes, offset=end,
                     repair=f"lower the recovery point to {end}")  # fmt: skip
    elif point is not None and point < end and marks.has_marker and not begins_anew:
        what = f"recovery point {point} of a log that was shut down in order and ends at {end}"
        findings.add(path, "SEMANTICS 13.5", what, offset=point, repair=f"set it to {end}")
    elif point is not None and point == end - last.last_gap < end and not last.is_live:
        what = f"the log was closed at offset {point}; its last batch, behind a gap, ends at {end}"
        findings.add(last.path, "SEMANTICS 0.1", what, offset=end, repair="restore the last batch's offset")
    start = marks.log_start
    if start is not None and start > end:
        what = f"log start {start} of a log that ends at {end}"
        where = os.path.join(root, checkpoint.LOG_STARTS)
        if begins_anew:
            what += ": all of it was deleted, and the next opening begins the log anew there"
            findings.add(where, "SEMANTICS 8.11", what, offset=start, severity="note")
        else:
            repair = f"set it to {report.segments[0].base_offset}"
            findings.add(where, "SEMANTICS 8.11", what, offset=start, repair=repair)
    if marks.high_watermark is not None and marks.high_watermark > end:
        findings.add(
            os.path.join(root, checkpoint.HIGH_WATERMARKS), "SEMANTICS 8.13",
            f"high watermark {marks.high_watermark} of a log that ends at {end}", offset=marks.high_watermark,
            # With the marker, opening uses the high watermark as recovery point, unless all records below it are gone.
            severity="error" if marks.has_marker and marks.high_watermark > (marks.log_start or 0) else "note",
            repair=f"set it to {end}",
        )  # fmt: skip
    if marks.cleaner is not None and marks.cleaner > end:
        findings.add(
            os.path.join(root, checkpoint.CLEANER_OFFSETS), "SEMANTICS 7.2",
            f"first dirty offset {marks.cleaner} of a log that ends at {end}", offset=marks.cleaner,
            severity="error" if marks.has_marker else "note", repair=f"set it to {end}",
        )  # fmt: skip


def check_epochs(
    report: PartitionReport, closed_at: int, marks: Marks, *, is_closed: bool, cleaned_below: int = 0
) -> None:
    """Check the file of leader epochs, and compare the epochs of batches with it, or with each other if it is empty.

    An epoch of -1 (none) after another epoch is an error. But a cleaner writes -1 when it rewrites a batch of format 0
    or 1, so below `cleaned_below` it is only a note.
    """

    def severity_of(epoch: int, last: int) -> Severity:
        return "note" if epoch < 0 and last < cleaned_below else "error"

    path = os.path.join(report.path, names.LEADER_EPOCH_CHECKPOINT)
    findings = report.findings
    entries: list[tuple[int, int]] = []
    try:
        for number, fields in enumerate(checkpoint.read_checkpoint(path, 2), 3):
            epoch = checkpoint.parse_integer(fields[0], INT_MAX, path, number)
            start = checkpoint.parse_integer(fields[1], LONG_MAX, path, number)
            if epoch < 0 or start < 0 or (entries and (epoch <= entries[-1][0] or start <= entries[-1][1])):
                what = f"epoch {epoch} from offset {start} is not above the entry before it"
                findings.add(path, "SEMANTICS 10.2", what, offset=start, repair="write it anew from the batches")
            entries.append((epoch, start))
    except fs.MissingFileError:
        pass
    except StorageError as error:
        findings.add(path, "FORMAT 11", error.strerror or str(error), repair="write it anew from the batches")
        return
    runs = [(segment, *run) for segment in report.segments for run in segment.epochs if run[0] >= -1]
    if not entries:
        highest = -1
        for segment, epoch, first, last, position in runs:
            if epoch < highest:
                what = f"leader epoch {epoch} after {highest}"
                findings.add(segment.path, "SEMANTICS 10.2", what, position=position, offset=first,
                             severity=severity_of(epoch, last), repair="write the epoch of its neighbours")  # fmt: skip
            highest = max(highest, epoch)
        return
    starts = [start for _, start in entries]
    for segment, epoch, first, last, position in runs:
        low = bisect_right(starts, first) - 1
        if low < 0 and last < starts[0]:
            continue
        for entry, start in entries[max(low, 0) : bisect_right(starts, last)]:
            if entry != epoch and entries[-1][0] >= 0:
                at = max(start, first)
                what = f"leader epoch {epoch} at offset {at}, where {names.LEADER_EPOCH_CHECKPOINT} has {entry}"
                findings.add(segment.path, "SEMANTICS 10.4", what, position=position, offset=at,
                             severity=severity_of(epoch, last),
                             repair="write the epoch that the file and the neighbours agree on")  # fmt: skip
                break
    for epoch, start in entries:
        if start > report.next_offset:
            what = f"epoch {epoch} from offset {start}, where the log ends at {report.next_offset}"
            severity: Severity = "error" if is_closed and start > closed_at else "note"
            findings.add(path, "SEMANTICS 8.13", what, offset=start, severity=severity, repair="cut the entry")
    first_base = report.segments[0].base_offset if report.segments else 0
    if entries[0][1] < first_base:
        what = f"epoch {entries[0][0]} from offset {entries[0][1]}, where the log begins at {first_base}: "
        what += "a first segment is missing, or this file is behind"
        is_lost = not marks.explains_start(first_base)
        if is_lost:
            report.lose_first(entries[0][1], first_base, marks)
        findings.add(path, "SEMANTICS 10.7", what, offset=entries[0][1],
                     severity="error" if is_closed or is_lost else "note",
                     repair="begin the entries at the log start")  # fmt: skip
