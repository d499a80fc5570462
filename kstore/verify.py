"""Logs and what lies around them, checked without changing a byte: bytes to findings.

Owns what reaches beyond one segment: borders between segments, marks in checkpoint files, epochs, snapshots, names,
leftovers; a segment's own files are for `segmentcheck`, producers' for `producercheck`. Takes no lock, so that a live
directory may be looked at; what a writer does meanwhile can then look wrong. The hardest rule is `segmentcheck`'s: what
was left in good order is never called wrong.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from kstore import catalog, checkpoint, fs, gaps, loads, names, topics
from kstore.errors import InvalidTopicError, KStoreError, StorageError
from kstore.findings import Finding, Findings, SegmentReport, Severity
from kstore.producercheck import ProducerCheck, check_snapshot_file, check_txn_index_file
from kstore.segmentcheck import check_segment
from kstore.txnindex import AbortedTxn

__all__ = ["Finding", "Marks", "PartitionReport", "Report", "check_partition", "read_marks", "targets", "verify"]

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_KNOWN = {names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, gaps.GAPS_FILE}

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Marks:
    """What the checkpoint files of a root say of one partition; None where they say nothing. Immutable."""

    recovery_point: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    cleaner: int | None = None
    has_marker: bool = False
    """Whether the root was left by an orderly shutdown."""


@dataclass(slots=True)
class PartitionReport:
    """What a check of one partition found. Not thread-safe."""

    path: str
    findings: Findings = field(default_factory=Findings)
    segments: list[SegmentReport] = field(default_factory=list)
    start_offset: int = 0
    next_offset: int = 0
    aborted: dict[int, list[AbortedTxn]] = field(default_factory=dict)
    """What transaction indexes should hold, by the base offset of their segments."""


@dataclass(slots=True)
class Report:
    """What a check found in all that was given to it. Not thread-safe."""

    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    @property
    def errors(self) -> int:
        """How many findings say that something is wrong."""
        return sum(finding.severity == "error" for finding in self.findings)

    def take(self, part: PartitionReport | Findings) -> None:
        """Add what was found in a partition, or elsewhere."""
        if isinstance(part, Findings):
            self.findings += part
            return
        self.findings += part.findings
        self.partitions += 1
        self.segments += len(part.segments)
        self.batches += sum(segment.batches for segment in part.segments)
        self.records += sum(segment.records for segment in part.segments)
        self.size_bytes += sum(segment.size_bytes for segment in part.segments)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to check: a "root" (its own files), a "partition" or a "file". Immutable."""

    kind: str
    path: str


def targets(paths: Iterable[str | os.PathLike[str]]) -> list[Target]:
    """Find what is at the paths: data directories, `DIR/TOPIC`, `DIR/TOPIC-P` or files. `StorageError` for nothing."""
    found: list[Target] = []
    for each in paths:
        path = os.fspath(each).rstrip("/") or "/"
        if not os.path.isdir(path):
            if fs.exists(path):
                found.append(Target("file", path))
            else:
                found += _topic(path)
        elif _is_partition(path):
            found.append(Target("partition", path))
        else:
            found.append(Target("root", path))
            found += [Target("partition", entry.path) for entry in _entries(path)]
    return list(dict.fromkeys(found))


def _topic(path: str) -> list[Target]:
    root, topic = os.path.split(path)
    found = [entry for entry in _entries(root or ".") if entry.topic == topic] if os.path.isdir(root or ".") else []
    if not found:
        raise fs.MissingFileError(2, "no file, directory or topic is there", path)
    return [Target("partition", os.path.join(root, f"{entry.topic}-{entry.partition}")) for entry in found]


def _entries(root: str) -> list[catalog.Entry]:
    found = catalog.look([root])
    return sorted(found.entries, key=lambda entry: entry.key)


def _is_partition(path: str) -> bool:
    if any(names.parse_file_name(name) is not None for name in fs.listdir(path)):
        return True
    try:
        names.parse_partition_name(os.path.basename(os.path.abspath(path)))
    except InvalidTopicError:
        return False
    return not any(entry.is_dir() for entry in fs.scandir(path))


def verify(
    paths: Iterable[str | os.PathLike[str]],
    *,
    deep: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check everything at the paths, several partitions at a time; what is wrong is in the report's `findings`.

    `deep` decompresses batches to look at their records, too. `progress` hears of bytes that have been read, from any
    thread. Raises `StorageError` for a path with nothing at it; what cannot be read is a finding.
    """
    wanted = targets(paths)
    report = Report()
    threads = min(threads or min(os.cpu_count() or 1, 8), len(wanted))
    if threads <= 1:
        for target in wanted:
            report.take(_check(target, deep, progress))
        return report
    stopping = threading.Event()

    def heard(size_bytes: int) -> None:
        if stopping.is_set():
            raise _Stopped
        if progress is not None:
            progress(size_bytes)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in pool.map(lambda target: _check(target, deep, heard), wanted):
                report.take(part)
        finally:
            # After Ctrl-C the threads must not read the rest of terabytes first.
            stopping.set()
    return report


class _Stopped(Exception):
    """The check was given up."""


def _check(target: Target, deep: bool, progress: Progress | None) -> PartitionReport | Findings:
    findings = Findings()
    try:
        if target.kind == "partition":
            return check_partition(target.path, read_marks(target.path), deep=deep, progress=progress)
        if target.kind == "root":
            _check_root(target.path, findings)
        else:
            _check_file(target.path, findings, deep=deep, progress=progress)
    except (KStoreError, OSError) as error:
        findings.add(target.path, "", f"cannot be read: {error}")
    return findings


# One partition


def read_marks(directory: str) -> Marks:
    """Read what the files in the parent of a partition's directory say of it; what cannot be read says nothing."""
    root, name = os.path.split(os.path.abspath(directory))
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
    )


def _line(root: str, name: str, partition: checkpoint.Partition) -> int | None:
    try:
        return checkpoint.read_offsets(root, name).get(partition)
    except StorageError:
        return None


def check_partition(
    directory: str, marks: Marks, *, deep: bool = False, progress: Progress | None = None
) -> PartitionReport:
    """Check a partition's directory against itself and the marks. Raises `StorageError` where it is unreadable."""
    report = PartitionReport(directory)
    findings = report.findings
    files = _check_names(directory, findings, marks)
    bases = sorted(file.offset for file in files if file.kind == names.LOG)
    snapshots = sorted(file.offset for file in files if file.kind == names.SNAPSHOT)
    accepted = _read_gaps(directory, findings)
    start = max(marks.log_start or 0, bases[0]) if bases else marks.log_start or 0
    cleaned = marks.cleaner or 0
    producers = ProducerCheck(directory, snapshots, start, cleaned, findings)
    asked = [*snapshots, *(mark for mark in (marks.recovery_point,) if mark is not None)]
    for number, base in enumerate(bases):
        is_last = number == len(bases) - 1
        producers.enter(base, f"{base:020d}" in {str(file)[:20] for file in files if file.kind == names.TXN_INDEX})
        report.segments.append(
            check_segment(
                directory,
                base,
                findings,
                is_last=is_last,
                limit_offset=_LONG_MAX if is_last else bases[number + 1],
                cleaned_below=cleaned,
                flushed_below=marks.recovery_point,
                has_marker=marks.has_marker,
                asked=asked,
                each=producers.take,
                deep=deep,
                progress=progress,
            )
        )
    report.start_offset = start
    report.next_offset = report.segments[-1].next_offset if bases else start
    _check_gaps(report, accepted, cleaned)
    _check_marks(report, marks)
    is_closed = _is_closed(report, marks)
    # A close after a truncation inside a batch leaves a snapshot where the log ended, beyond its batches (11.4).
    _check_epochs(report, max(report.next_offset, *snapshots, 0), is_closed=is_closed)
    in_doubt = not is_closed and marks.recovery_point is not None and marks.recovery_point < report.next_offset
    borders = set().union(*(segment.borders for segment in report.segments), bases)
    missing = [gap for segment in report.segments for gap in segment.gaps]
    missing += [(before.next_offset, after.base_offset) for before, after in pairwise(report.segments)]
    borders.update(at for at in asked if _within(missing, at, at))
    producers.conclude(bases, report.next_offset, borders, in_doubt=in_doubt)
    report.aborted = producers.aborted
    try:
        checkpoint.read_partition_metadata(directory)
    except StorageError as error:
        how = "move it away; a store or a broker that knows the topic's id writes it anew"
        _refused(findings, error, os.path.join(directory, names.PARTITION_METADATA), "FORMAT 1.10", how)
    findings.close(directory)
    return report


def _check_names(directory: str, findings: Findings, marks: Marks) -> list[names.FileName]:
    """The segments' files and snapshots that count; what other names there are goes into `findings`."""
    counted = []
    found = [(name, names.parse_file_name(name)) for name in fs.listdir(directory)]
    bases = {file.offset for _, file in found if file is not None and file.kind == names.LOG and not file.state}
    for name, file in found:
        path = os.path.join(directory, name)
        if file is None:
            if name.endswith((".deleted", ".tmp")):
                what = "a leftover of an interrupted write" if name.endswith(".tmp") else "awaits its removal"
                findings.add(path, "FORMAT 1.9", what, severity="note", repair="move it away")
            elif name not in _KNOWN:
                findings.add(path, "FORMAT 1.3", "no file of a log is named so", severity="note")
        elif str(file) != name:
            what = f"the name has not the 20 digits of {file}"
            findings.add(path, "FORMAT 1.3", what, offset=file.offset, repair=f"rename it to {file}")
            if not file.state and not os.path.exists(os.path.join(directory, str(file))):
                continue
        elif file.state:
            whose = {".deleted": "awaits its removal", ".cleaned": "an unfinished compaction's",
                     ".swap": "a compaction's that was being swapped in"}[file.state]  # fmt: skip
            findings.add(path, "SEMANTICS 8.4", whose, offset=file.offset, repair="move it away",
                         severity="error" if marks.has_marker and file.state != ".deleted" else "note")  # fmt: skip
        elif file.kind not in (names.LOG, names.SNAPSHOT) and file.offset not in bases:
            what = "an index without its log; opening deletes it"
            findings.add(path, "SEMANTICS 8.8", what, offset=file.offset, repair="move it away")
        else:
            counted.append(file)
    return counted


def _read_gaps(directory: str, findings: Findings) -> list[tuple[int, int]]:
    try:
        return gaps.read_gaps(directory)
    except StorageError as error:
        _refused(findings, error, os.path.join(directory, gaps.GAPS_FILE), "", "move it away")
        return []


def _check_gaps(report: PartitionReport, accepted: Sequence[tuple[int, int]], cleaned: int) -> None:
    """Offsets that no batch holds: legal inside a segment, between segments only where somebody took them away."""
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
    """Whether the log looks as a close leaves it, whose marks then have to be right."""
    if not report.segments or report.segments[-1].is_live:
        return False
    return marks.has_marker or marks.recovery_point == report.next_offset


def _check_marks(report: PartitionReport, marks: Marks) -> None:
    findings, end = report.findings, report.next_offset
    root = os.path.dirname(os.path.abspath(report.path))
    point = marks.recovery_point
    path = os.path.join(root, checkpoint.RECOVERY_POINTS)
    last = report.segments[-1] if report.segments else None
    if last is None:
        if point is not None and point > end:
            what = f"no segment is here, and the recovery point is {point}: what was flushed is missing"
            findings.add(report.path, "SEMANTICS 8.13", what, offset=end, repair=f"lower the recovery point to {end}")
    elif point is not None and point > end:
        what = f"the log ends at offset {end}, below its recovery point {point}: what was flushed is missing"
        findings.add(last.path, "SEMANTICS 8.13", what, position=last.size_bytes, offset=end,
                     repair=f"lower the recovery point to {end}")  # fmt: skip
    elif point is not None and point < end and marks.has_marker:
        what = f"recovery point {point} of a log that was shut down in order and ends at {end}"
        findings.add(path, "SEMANTICS 13.5", what, offset=point, repair=f"set it to {end}")
    elif point is not None and point == end - last.last_gap < end and not last.is_live:
        what = f"the log was closed at offset {point}; its last batch, behind a gap, ends at {end}"
        findings.add(last.path, "SEMANTICS 0.1", what, offset=end, repair="restore the last batch's offset")
    start = marks.log_start
    if start is not None and start > end:
        what = f"log start {start} of a log that ends at {end}: opening empties the log"
        findings.add(os.path.join(root, checkpoint.LOG_STARTS), "SEMANTICS 8.11", what, offset=start,
                     repair=f"set it to {report.segments[0].base_offset}")  # fmt: skip
    if marks.high_watermark is not None and marks.high_watermark > end:
        findings.add(
            os.path.join(root, checkpoint.HIGH_WATERMARKS), "SEMANTICS 8.13",
            f"high watermark {marks.high_watermark} of a log that ends at {end}", offset=marks.high_watermark,
            severity="error" if marks.has_marker else "note", repair=f"set it to {end}",
        )  # fmt: skip
    if marks.cleaner is not None and marks.cleaner > end:
        findings.add(
            os.path.join(root, checkpoint.CLEANER_OFFSETS), "SEMANTICS 7.2",
            f"first dirty offset {marks.cleaner} of a log that ends at {end}", offset=marks.cleaner,
            severity="error" if marks.has_marker else "note", repair=f"set it to {end}",
        )  # fmt: skip


def _check_epochs(report: PartitionReport, closed_at: int, *, is_closed: bool) -> None:
    path = os.path.join(report.path, names.LEADER_EPOCH_CHECKPOINT)
    findings = report.findings
    entries: list[tuple[int, int]] = []
    try:
        for number, fields in enumerate(checkpoint.parse_checkpoint(fs.read_file(path), path, 2), 3):
            epoch = checkpoint.parse_integer(fields[0], _INT_MAX, path, number)
            start = checkpoint.parse_integer(fields[1], _LONG_MAX, path, number)
            if epoch < 0 or start < 0 or (entries and (epoch <= entries[-1][0] or start <= entries[-1][1])):
                what = f"epoch {epoch} from offset {start} is not above the entry before it"
                findings.add(path, "SEMANTICS 10.2", what, offset=start, repair="write it anew from the batches")
            entries.append((epoch, start))
    except fs.MissingFileError:
        pass
    except StorageError as error:
        _refused(findings, error, path, "FORMAT 11", "write it anew from the batches")
        return
    runs = [(segment, *run) for segment in report.segments for run in segment.epochs if run[0] >= 0]
    if not entries:
        highest = -1
        for segment, epoch, first, _, position in runs:
            if epoch < highest:
                what = f"leader epoch {epoch} after {highest}"
                findings.add(segment.path, "SEMANTICS 10.2", what, position=position, offset=first,
                             repair="write the epoch of its neighbours")  # fmt: skip
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
        findings.add(path, "SEMANTICS 10.7", what, offset=entries[0][1], severity="error" if is_closed else "note",
                     repair="begin the entries at the log start")  # fmt: skip


def _refused(findings: Findings, error: StorageError, path: str, rule: str, repair: str) -> None:
    findings.add(path, rule, error.strerror or str(error), repair=repair)


# A root, and single files


def _check_root(root: str, findings: Findings) -> None:
    """The files of a data directory that are no partition's."""
    found = catalog.look([root])
    there = {entry.key for entry in found.entries}
    for path in found.passed_over:
        findings.add(path, "FORMAT 1.1", "no partition's directory; a broker would not start here", severity="note")
    for path in found.deleted:
        findings.add(path, "FORMAT 1.2", "a partition that awaits its removal", severity="note")
    for name in checkpoint.OFFSET_CHECKPOINTS:
        path = os.path.join(root, name)
        try:
            offsets = checkpoint.read_offsets(root, name)
        except StorageError as error:
            _refused(findings, error, path, "FORMAT 11", "write it anew from the logs")
            continue
        elsewhere = []
        for (topic, partition), offset in offsets.items():
            if offset < 0:
                findings.add(path, "FORMAT 11", f"{topic}-{partition}: offset {offset} is negative", offset=offset,
                             repair="write it anew from the logs")  # fmt: skip
            elif (topic, partition) not in there and topic != names.METADATA_TOPIC:
                elsewhere.append(f"{topic}-{partition}")
        if elsewhere:
            which = ", ".join(elsewhere[:5]) + ("" if len(elsewhere) <= 5 else ", ...")
            what = f"lines of {len(elsewhere)} partitions that are not here: {which}"
            findings.add(path, "SEMANTICS 13.8", what, severity="note")
    _check_loads(root, findings)
    path = os.path.join(root, topics.TOPICS_FILE)
    try:
        table = topics.read_topics([root])
    except StorageError as error:
        _refused(findings, error, path, "", "nothing: another directory of the store may have a sound one")
        return
    _check_topics(root, table.topics, there, findings)


def _check_loads(root: str, findings: Findings) -> None:
    """What is noted of bulk loads: one that is pending, and those that were done."""
    path = os.path.join(root, loads.COMMIT_FILE)
    try:
        record = loads.read_commit(root)
        if record is not None:
            findings.add(path, "", str(record), severity="note")
        path = os.path.join(root, loads.LOADS_FILE)
        loads.read_done([root])
    except StorageError as error:
        _refused(findings, error, path, "", "nothing: without it a load could be taken in twice, or never")


def _check_topics(
    root: str, known: Mapping[str, topics.TopicRecord], there: set[checkpoint.Partition], findings: Findings
) -> None:
    path = os.path.join(root, topics.TOPICS_FILE)
    for name, record in known.items():
        if record.state != "live":
            what = f"topic {name} is {record.state}: the next opening of the store finishes that"
            findings.add(path, "", what, severity="note")
            continue
        for partition in sorted(partition for topic, partition in there if topic == name):
            if partition >= record.partitions:
                what = f"topic {name} has {record.partitions} partitions, and {name}-{partition} is here"
                findings.add(path, "", what, severity="note")


def _check_file(path: str, findings: Findings, *, deep: bool, progress: Progress | None) -> None:
    """One file alone, with what lies beside it where it is an index."""
    directory, name = os.path.split(os.path.abspath(path))
    file = names.parse_file_name(name)
    if file is not None and not file.state and file.kind in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
        with _only(findings, os.path.join(directory, name), path) as all_findings:
            files = map(names.parse_file_name, fs.listdir(directory))
            bases = sorted(each.offset for each in files if each and each.kind == names.LOG and not each.state)
            if file.offset not in bases:
                all_findings.add(
                    os.path.join(directory, name), "SEMANTICS 8.8", "an index without its log", repair="move it away"
                )
                return
            after = bases.index(file.offset) + 1
            marks = read_marks(directory)
            check_segment(
                directory,
                file.offset,
                all_findings,
                is_last=after == len(bases),
                limit_offset=_LONG_MAX if after == len(bases) else bases[after],
                cleaned_below=marks.cleaner or 0,
                flushed_below=marks.recovery_point,
                has_marker=marks.has_marker,
                deep=deep,
                progress=progress,
            )
    elif file is not None and file.kind == names.SNAPSHOT:
        check_snapshot_file(path, file.offset, findings)
    elif file is not None and file.kind == names.TXN_INDEX:
        check_txn_index_file(path, file.offset, findings)
    elif name == names.PARTITION_METADATA:
        checkpoint.read_partition_metadata(directory)
    elif name == names.LEADER_EPOCH_CHECKPOINT:
        _check_epochs(PartitionReport(directory, findings), 0, is_closed=False)
    elif name in checkpoint.OFFSET_CHECKPOINTS:
        checkpoint.read_offsets(directory, name)
    elif name == topics.TOPICS_FILE:
        topics.read_topics([directory])
    else:
        findings.add(path, "FORMAT 1.3", "no file of a log is named so")


@contextmanager
def _only(findings: Findings, path: str, shown: str) -> Iterator[Findings]:
    """Collect findings, and keep those about one file."""
    collected = Findings()
    yield collected
    for each in collected:
        if each.path == path:
            findings.add(shown, each.rule, each.what, position=each.position, offset=each.offset,
                         severity=each.severity, repair=each.repair)  # fmt: skip
