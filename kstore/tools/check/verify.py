"""Checks data directories, partitions and single files without changing a byte.

`check_partition` checks a partition's directory, `check_root` the files of a data directory that belong to no
partition. No lock is taken, so that a directory in use can be checked; faults in it are checked again (`recheck`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeAlias

from kstore.base import arguments
from kstore.base.helpers import PATIENCE_S, with_helpers
from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.files import checkpoint, follower_file, gap_files, load_files, names, topic_files
from kstore.store import catalog
from kstore.tools.check import recheck
from kstore.tools.check.check_partition import (
    Marks,
    PartitionReport,
    Progress,
    check_epochs,
    check_metadata,
    check_partition,
    read_marks,
)
from kstore.tools.check.check_producers import check_snapshot_file, check_txn_index_file
from kstore.tools.check.check_root import check_root
from kstore.tools.check.check_segment import check_segment
from kstore.tools.check.findings import Finding, Findings, SegmentReport

__all__ = ["Finding", "Report", "targets", "verify"]


@dataclass(slots=True)
class FileReport:
    """The results of a check of a single file; `segment` is that of a `.log`. Not thread-safe."""

    findings: Findings = field(default_factory=Findings)
    segment: SegmentReport | None = None
    size_bytes: int = 0


_Part: TypeAlias = PartitionReport | FileReport | Findings


@dataclass(slots=True)
class Report:
    """The findings of a whole check, and counts of what was checked. Not thread-safe."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    """The number of single files that were named; the files of partitions are not counted."""
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    @property
    def errors(self) -> int:
        """The number of findings that are errors."""
        return sum(finding.severity == "error" for finding in self.findings)

    def take(self, part: _Part) -> None:
        """Add the report of a partition or of a single file, or findings about other files."""
        if isinstance(part, Findings):
            self.findings += part
            return
        self.findings += part.findings
        if isinstance(part, FileReport):
            self.files += 1
            self.size_bytes += part.size_bytes
            if part.segment is not None:
                self.batches += part.segment.batches
                self.records += part.segment.records
            return
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
    beside: tuple[str, ...] = ()
    """For a root, the other roots of the same check; they may belong to the same store."""


def targets(paths: Iterable[str | os.PathLike[str]]) -> list[Target]:
    """Return what to check at the paths: data directories, `DIR/TOPIC`, `DIR/TOPIC-P` or files.

    Raises `StorageError` if nothing is at a path, and `ConfigError` for an empty path.
    """
    chosen: list[Target] = []
    named = [arguments.path("path", path) for path in paths]
    for path in (name.rstrip("/") or "/" for name in named):
        if not fs.is_directory(path):
            if fs.exists(path):
                chosen.append(Target("file", path))
            else:
                chosen += _topic(path)
        elif _is_partition(path):
            chosen.append(Target("partition", path))
        else:
            chosen.append(Target("root", path))
            chosen += [Target("partition", entry.path) for entry in _entries(path)]
    roots = tuple(target.path for target in chosen if target.kind == "root")
    return [replace(target, beside=roots) if target.kind == "root" else target for target in dict.fromkeys(chosen)]


def _topic(path: str) -> list[Target]:
    root, topic = os.path.split(path)
    partitions = (
        [entry for entry in _entries(root or ".") if entry.topic == topic] if fs.is_directory(root or ".") else []
    )
    if not partitions:
        raise fs.MissingFileError(2, "no file, directory or topic is there", path)
    return [Target("partition", os.path.join(root, f"{entry.topic}-{entry.partition}")) for entry in partitions]


def _entries(root: str) -> list[catalog.Entry]:
    return sorted(catalog.look([root]).entries, key=lambda entry: entry.key)


def _is_partition(path: str) -> bool:
    if any(names.parse_file_name(name) is not None for name in fs.listdir(path)):
        return True
    if not names.is_partition_name(os.path.basename(fs.absolute(path))):
        return False
    return not any(entry.is_dir(follow_symlinks=False) for entry in fs.scandir(path))


def verify(
    paths: Iterable[str | os.PathLike[str]],
    *,
    deep: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check everything at the paths, several partitions at a time; the report has the `findings`.

    `deep` decompresses batches to check their records, too. `progress` is called in any thread with the number of bytes
    read. Raises `StorageError` if nothing is at a path; an unreadable file is a finding.
    """
    checked = targets(paths)
    report = Report()
    threads = max(threads or min(os.cpu_count() or 1, 8), 1)
    is_stopping = False

    def count_bytes(size_bytes: int) -> None:
        if is_stopping:
            raise _Stopped
        if progress is not None:
            progress(size_bytes)

    def check(number: int) -> tuple[int, _Part]:
        return number, _check(checked[number], deep, count_bytes)

    def stop() -> None:
        nonlocal is_stopping
        is_stopping = True

    # After Ctrl-C the threads must stop soon, even if terabytes are left to read.
    parts = with_helpers(check, [range(len(checked))], threads, "kstore-verify", patience_s=PATIENCE_S, on_leaving=stop)
    for _, part in sorted(parts, key=itemgetter(0)):
        report.take(part)
    return report


class _Stopped(Exception):
    """The check ends early, after an error or Ctrl-C."""


def _check(target: Target, deep: bool, progress: Progress | None) -> _Part:
    """Check one target; repeat if a writer may have changed it during the check."""
    path = fs.absolute(target.path)
    directory = path if target.kind != "file" else os.path.dirname(path)
    root = path if target.kind == "root" else os.path.dirname(directory)
    report, doubtful = recheck.look(lambda: _check_once(target, deep, progress), _errors, directory, root)
    if not fs.exists(target.path):
        gone = Findings()
        gone.add(target.path, "", "it was removed while it was checked", severity="note")
        return gone
    if doubtful:
        findings = report if isinstance(report, Findings) else report.findings
        for place, finding in enumerate(findings):
            if finding in doubtful:
                what = f"seen once while the files were being written: {finding.what}"
                findings[place] = replace(finding, what=what, severity="note", repair="")
    return report


def _errors(report: _Part) -> list[Finding]:
    findings = report if isinstance(report, Findings) else report.findings
    return [finding for finding in findings if finding.severity == "error"]


def _check_once(target: Target, deep: bool, progress: Progress | None) -> _Part:
    findings = Findings()
    file = FileReport(findings)
    try:
        if target.kind == "partition":
            return check_partition(target.path, read_marks(target.path), deep=deep, progress=progress)
        if target.kind == "root":
            check_root(target.path, target.beside, findings)
        else:
            _check_file(target.path, file, deep=deep, progress=progress)
    except (KStoreError, OSError) as error:
        findings.add(target.path, "", f"cannot be read: {error}")
    return file if target.kind == "file" else findings


def _check_file(path: str, report: FileReport, *, deep: bool, progress: Progress | None) -> None:
    """Check one file; check an index together with its log."""
    findings = report.findings
    report.size_bytes = fs.stat(path).st_size
    directory, name = os.path.split(fs.absolute(path))
    file = names.parse_file_name(name)
    if file is not None and not file.state and file.kind in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
        with _only(findings, os.path.join(directory, name), path) as all_findings:
            files = map(names.parse_file_name, fs.listdir(directory))
            bases = sorted(log.offset for log in files if log and log.kind == names.LOG and not log.state)
            if file.offset not in bases:
                all_findings.add(
                    os.path.join(directory, name), "SEMANTICS 8.8", "an index without its log", repair="move it away"
                )
                return
            after = bases.index(file.offset) + 1
            marks = read_marks(directory)
            segment = check_segment(
                directory,
                file.offset,
                all_findings,
                is_last=after == len(bases),
                limit_offset=LONG_MAX if after == len(bases) else bases[after],
                cleaned_below=marks.cleaner or 0,
                flushed_below=marks.flushed_below,
                has_marker=marks.has_marker,
                deep=deep,
                progress=progress,
            )
            if file.kind == names.LOG:
                report.segment, report.size_bytes = segment, segment.size_bytes
    elif file is not None and file.kind == names.SNAPSHOT:
        check_snapshot_file(path, file.offset, findings)
    elif file is not None and file.kind == names.TXN_INDEX:
        check_txn_index_file(path, file.offset, findings)
    elif name == names.PARTITION_METADATA:
        with _only(findings, os.path.join(directory, name), path) as all_findings:
            check_metadata(directory, all_findings)
    elif name == names.LEADER_EPOCH_CHECKPOINT:
        check_epochs(PartitionReport(directory, findings), 0, Marks(), is_closed=False)
    elif name in checkpoint.ROOT_CHECKPOINTS:
        checkpoint.read_offsets(directory, name)
    elif name in _READERS:
        _READERS[name](directory)
    else:
        findings.add(path, "FORMAT 1.3", "no file of a log is named so")


_READERS: dict[str, Callable[[str], object]] = {
    topic_files.TOPICS_FILE: lambda directory: topic_files.read_topics([directory]),
    load_files.LOADS_FILE: lambda directory: load_files.read_done([directory]),
    load_files.COMMIT_FILE: load_files.read_commit,
    follower_file.FOLLOWER_FILE: follower_file.read_role,
    gap_files.GAPS_FILE: gap_files.read_gaps,
}


@contextmanager
def _only(findings: Findings, path: str, shown: str) -> Iterator[Findings]:
    """Collect findings, and keep only those about the file `path`, under the name `shown`."""
    collected = Findings()
    yield collected
    findings += [replace(finding, path=shown) for finding in collected if finding.path == path]
