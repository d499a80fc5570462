"""What can be mended in a partition's directory, said first, then done: damage to a plan, a plan to a sound log.

`plan_repair` reads and decides, and changes nothing; `carry_out` does exactly what a plan says, after copies of all
that it changes are in a backup. A segment is replaced as a compaction replaces one (SEMANTICS.md 7.25), so a crash at
any point leaves the old files or the new ones to whoever opens the log next. The hardest rule: a batch whose bytes are
sound is never given up, as long as its offsets can be told.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy

from kstore import _scan, _verify, checkpoint, fs, gaps, names
from kstore._core import crc32c, decode_batches
from kstore.errors import InvalidTopicError, KStoreError, StorageError
from kstore.findings import Damage, Finding
from kstore.indexcheck import Rows
from kstore.segmentcheck import read_rows
from kstore.txnindex import AbortedTxn, format_txn_index
from kstore.verify import Marks, Progress, check_partition, read_marks

__all__ = ["Plan", "SegmentPlan", "carry_out", "plan_repair", "repair"]

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1
_COPY_BYTES = 8 << 20
_MAX_BATCH = 64 << 20
_FATAL = _verify.Fault.COUNT | _verify.Fault.DELTA | _verify.Fault.CODEC | _verify.Fault.RECORDS | _verify.Fault.OFFSETS
_INTERVAL = 4096
_ROUNDS = 3


@dataclass(slots=True)
class SegmentPlan:
    """One log file to be rewritten: the stretches of bytes that stay, and what in them is written over."""

    base_offset: int
    path: str
    size_bytes: int
    keep: list[tuple[int, int]] = field(default_factory=list)
    patches: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Position in the old file, new bytes, why."""
    cuts: list[tuple[int, int, str]] = field(default_factory=list)
    """Position and end of what goes, and why."""
    kept_batches: int = 0
    kept_records: int = 0
    next_offset: int = 0


@dataclass(slots=True)
class Plan:
    """All that would be done to one partition, and what would be lost. Not thread-safe."""

    path: str
    findings: list[Finding]
    segments: list[SegmentPlan] = field(default_factory=list)
    reindex: list[int] = field(default_factory=list)
    """Base offsets of segments whose indexes are built anew, beside those of `segments`."""
    remove: list[str] = field(default_factory=list)
    """Names of files that move into the backup."""
    rename: list[tuple[str, str]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[start, end)` that no batch will hold, and did not before for nothing."""
    marks: list[tuple[str, int | None]] = field(default_factory=list)
    """Checkpoint file, and the partition's new line in it."""
    epochs: list[tuple[int, int]] | None = None
    aborted: list[tuple[int, list[AbortedTxn]]] = field(default_factory=list)
    """Base offsets of segments whose transaction index is written anew, with its entries."""
    kept_batches: int = 0
    kept_records: int = 0
    kept_bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        done = (self.segments, self.reindex, self.remove, self.rename, self.lost, self.marks, self.aborted)
        return not any(done) and self.epochs is None

    @property
    def lost_bytes(self) -> int:
        """Bytes of logs that go."""
        return sum(end - start for segment in self.segments for start, end, _ in segment.cuts)

    @property
    def most_lost_records(self) -> int:
        """How many records were there at most under the offsets that go: a bad batch does not tell its number."""
        return sum(end - start for start, end in self.lost)

    def lines(self) -> list[str]:
        """Say what would be done, a step a line, and what would be kept and lost."""
        said = [f"rename {source} to {target}" for source, target in self.rename]
        for segment in self.segments:
            name = os.path.basename(segment.path)
            said += [f"{name}: at position {at}: {why}" for at, _, why in segment.patches]
            said += [f"{name}: cut {end - at} bytes at position {at}: {why}" for at, end, why in segment.cuts]
        said += [f"build the indexes of segment {base} anew" for base in self.reindex]
        said += [f"write {names.txn_index_name(base)} anew: {len(found)} entries" for base, found in self.aborted]
        said += [f"move {name} into the backup" for name in self.remove]
        if self.epochs is not None:
            said.append(f"write {names.LEADER_EPOCH_CHECKPOINT} anew: {self.epochs}")
        for name, offset in self.marks:
            said.append(f"{name}: " + ("take the line out" if offset is None else f"set the line to {offset}"))
        kept = f"{self.kept_records} records in {self.kept_batches} batches, {self.kept_bytes} bytes"
        stay = f"offsets {self.start_offset} to {self.end_offset - 1}" if self.kept_batches else "no offset"
        said.append(f"kept: {kept}, {stay}")
        offsets = ", ".join(f"{low} to {high - 1}" if low < high - 1 else f"{low}" for low, high in self.lost)
        most = self.most_lost_records
        gone = f"offsets {offsets}, at most {most} records" if most > 1 else f"offset {offsets}, at most 1 record"
        gone = gone if self.lost else "no offset"
        said.append(f"lost: {self.lost_bytes} bytes, {gone}")
        return said


@dataclass(slots=True)
class _Batch:
    """A batch as it may stay."""

    position: int
    size: int
    base: int
    span: int
    count: int
    epoch: int
    magic: int
    max_timestamp: int
    why_not: str = ""

    @property
    def next(self) -> int:
        return self.base + self.span


# Deciding


def plan_repair(directory: str, progress: Progress | None = None) -> Plan:
    """Decide what mends a partition's directory; changes nothing. Raises `StorageError` where it cannot be read.

    `progress` hears of bytes that have been checked.
    """
    marks = read_marks(directory)
    checked = check_partition(directory, marks, progress=progress)
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    plan = Plan(directory, errors)
    entries = fs.listdir(directory)
    files = {name: parsed for name in entries if (parsed := names.parse_file_name(name)) is not None}
    logs = {file.offset: name for name, file in files.items() if file.kind == names.LOG and not file.state}
    if errors:
        logs = _plan_names(plan, files, logs)
    bases = sorted(logs)
    wrong = {finding.path for finding in errors}
    kept: list[list[_Batch]] = []
    for number, base in enumerate(bases):
        limit = bases[number + 1] if number + 1 < len(bases) else _LONG_MAX
        path = os.path.join(directory, logs[base])
        is_last = number + 1 == len(bases)
        kept.append(_plan_segment(plan, path, base, limit, marks, bool(errors), is_last=is_last))
    if errors:
        _plan_offsets(plan, kept, bases, directory, marks)
        _plan_indexes(plan, bases, wrong, directory)
        rewritten = {segment.base_offset for segment in plan.segments}
        for base, aborted in checked.aborted.items():
            if base not in rewritten and os.path.join(directory, names.txn_index_name(base)) in wrong:
                plan.aborted.append((base, aborted))
        _plan_epochs(plan, kept, wrong)
        _plan_leftovers(plan, files, errors, logs)
        _plan_marks(plan, bases, marks)
    return plan


def _plan_names(plan: Plan, files: dict[str, names.FileName], logs: dict[int, str]) -> dict[int, str]:
    """Give files the names that they should have; the logs by base offset, under the names that they have now."""
    there = set(files)
    for name, file in files.items():
        if str(file) != name and str(file) not in there:
            plan.rename.append((name, str(file)))
            there.add(str(file))
    found: dict[int, str] = {}
    stems = {(file.offset, file.kind) for file in files.values() if not file.state}
    for base, name in logs.items():
        first = _first_offset(os.path.join(plan.path, name), base)
        orphans = [kind for kind in (names.OFFSET_INDEX, names.TIME_INDEX) if (first, kind) in stems]
        if first is not None and first != base and first not in logs and orphans:
            plan.rename = [each for each in plan.rename if each[0] != name]
            plan.rename.append((name, names.log_name(first)))
            found[first] = name
        elif name != names.log_name(base) and names.log_name(base) in files:
            continue
        else:
            found[base] = name
    return found


def _first_offset(path: str, base: int) -> int | None:
    fd = fs.open(path)
    try:
        data, _, _ = _verify.walk(fd, 0, fs.size(fd), rows=1, path=path)
    finally:
        fs.close(fd)
    return int(numpy.frombuffer(data, _verify.ROW)["base_offset"][0]) if data else None


def _plan_segment(
    plan: Plan, path: str, base: int, limit: int, marks: Marks, is_wrong: bool, *, is_last: bool
) -> list[_Batch]:
    """Decide about the batches of one log file; those that stay."""
    rows, damages = read_rows(path, base, limit_offset=limit)
    fd = fs.open(path)
    try:
        size = fs.size(fd)
        segment = SegmentPlan(base, path, size)
        batches = [_batch(fd, row) for row in rows]
        if is_wrong:
            batches = _with_restored(fd, batches, damages, segment)
            _settle_offsets(batches, base, limit, marks, segment, is_last=is_last)
            _settle_faults(fd, rows, batches, segment)
            _settle_epochs(batches, segment)
        kept = [batch for batch in batches if not batch.why_not]
        _settle_bytes(segment, batches, damages)
    finally:
        fs.close(fd)
    if is_wrong and (segment.cuts or segment.patches):
        segment.kept_batches, segment.kept_records = len(kept), sum(batch.count for batch in kept)
        segment.next_offset = kept[-1].next if kept else base
        plan.segments.append(segment)
    plan.kept_batches += len(kept)
    plan.kept_records += sum(batch.count for batch in kept)
    plan.kept_bytes += sum(batch.size for batch in kept)
    return kept


def _batch(fd: int, row: Any) -> _Batch:
    span = int(row["last_offset"]) - int(row["base_offset"]) + 1
    batch = _Batch(int(row["position"]), int(row["size"]), int(row["base_offset"]), span, int(row["count"]),
                   int(row["leader_epoch"]), int(row["magic"]), int(row["max_timestamp"]))  # fmt: skip
    if row["faults"] & _FATAL == _verify.Fault.DELTA:
        # An offset that no batch can have is no fault of what the CRC covers.
        delta = int.from_bytes(fs.pread(fd, 4, batch.position + 23), "big", signed=True)
        if batch.magic == 2 and delta >= 0:
            batch.span = delta + 1
            return batch
    if row["faults"] & _FATAL:
        batch.why_not = "its records or its header contradict each other"
    return batch


def _with_restored(fd: int, batches: list[_Batch], damages: list[Damage], segment: SegmentPlan) -> list[_Batch]:
    """Take back batches whose length or magic alone is wrong: the CRC covers the rest, and holds."""
    found = list(batches)
    for damage in list(damages):
        size = damage.end - damage.position
        if not 61 <= size <= _MAX_BATCH:
            continue
        data = fs.pread(fd, size, damage.position)
        if len(data) < size or int.from_bytes(data[17:21], "big") != crc32c(data[21:]):
            continue
        mended = data[:8] + (size - 12).to_bytes(4, "big") + data[12:16] + b"\2" + data[17:]
        try:
            (whole,) = decode_batches(mended)
            records = sum(1 for _ in whole)
        except (KStoreError, ValueError):
            continue
        span = whole.last_offset - whole.base_offset + 1
        if records != whole.count or not 1 <= span <= _INT_MAX:
            continue
        if mended[8:12] != data[8:12]:
            segment.patches.append(
                (damage.position + 8, mended[8:12], f"restore the batch's length, {size} bytes in all")
            )
        if mended[16:17] != data[16:17]:
            segment.patches.append((damage.position + 16, b"\2", "restore the batch's magic, 2"))
        found.append(_Batch(damage.position, size, whole.base_offset, span, records, whole.partition_leader_epoch, 2,
                            whole.max_timestamp))  # fmt: skip
        damages.remove(damage)
    return sorted(found, key=lambda batch: batch.position)


def _settle_offsets(
    batches: list[_Batch], base: int, limit: int, marks: Marks, segment: SegmentPlan, *, is_last: bool
) -> None:
    """Bring offsets into order: those that the neighbours tell are restored, batches without a place go."""
    usable = [batch for batch in batches if not batch.why_not]
    expected = base
    for number, batch in enumerate(usable):
        after = usable[number + 1].base if number + 1 < len(usable) else limit
        fits = batch.base >= expected and batch.next - 1 - base <= _INT_MAX
        if batch.magic < 2:
            if not fits or batch.next > limit:
                batch.why_not = "its offset is not in order"
                continue
        elif not fits or batch.next > after:
            is_end = number + 1 == len(usable) and after == _LONG_MAX
            wanted = _offset_told(batch, expected, expected if is_end else after - batch.span, is_end=is_end)
            if wanted is not None:
                _move(batch, wanted, segment)
            elif not fits or number + 1 == len(usable):
                batch.why_not = f"offsets {batch.base} to {batch.next - 1} have no place between {expected} and {after}"
                continue
        elif number + 1 == len(usable) and is_last and _was_flipped_last(batch, expected, marks):
            _move(batch, expected, segment)
        expected = batch.next


def _offset_told(batch: _Batch, low: int, high: int, *, is_end: bool) -> int | None:
    """The offset in `[low, high]` that a batch must have had; None where that is not told.

    It is told where one flipped bit leads to one place only, or where the neighbours leave one place only. Behind the
    last batch there is room for anything, such as an old one written twice.
    """
    near = [at for bit in range(64) if low <= (at := (batch.base % (1 << 64)) ^ (1 << bit)) <= high]
    if len(near) == 1:
        return near[0]
    return low if low == high and not is_end else None


def _was_flipped_last(batch: _Batch, expected: int, marks: Marks) -> bool:
    """Whether the mark that a close left tells that the last batch belongs right after the one before it."""
    return expected + batch.span == marks.recovery_point and _is_one_bit(batch.base ^ expected)


def _is_one_bit(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _move(batch: _Batch, base: int, segment: SegmentPlan) -> None:
    why = f"restore the batch's offset, {base} where {batch.base} is written"
    segment.patches.append((batch.position, (base % (1 << 64)).to_bytes(8, "big"), why))
    batch.base = base


def _settle_faults(fd: int, rows: Rows, batches: list[_Batch], segment: SegmentPlan) -> None:
    """Write the true greatest timestamp where a header has another."""
    wrong = {int(row["position"]) for row in rows[(rows["faults"] & _verify.Fault.TIMESTAMP) != 0]}
    for batch in batches:
        if batch.position in wrong and not batch.why_not:
            data = fs.pread(fd, batch.size, batch.position)
            (whole,) = decode_batches(data, check_crc=False)
            greatest = max(record.timestamp for record in whole)
            body = data[21:35] + greatest.to_bytes(8, "big", signed=True) + data[43:]
            what = f"write max timestamp {greatest}, the records', over {batch.max_timestamp}"
            segment.patches.append((batch.position + 17, crc32c(body).to_bytes(4, "big"), "write the new CRC"))
            segment.patches.append((batch.position + 35, body[14:22], what))


def _settle_epochs(batches: list[_Batch], segment: SegmentPlan) -> None:
    """Restore a leader epoch that differs from both neighbours', which agree."""
    path = os.path.join(os.path.dirname(segment.path), names.LEADER_EPOCH_CHECKPOINT)
    try:
        entries = [
            (int(epoch), int(start)) for epoch, start in checkpoint.parse_checkpoint(fs.read_file(path), path, 2)
        ]
    except (StorageError, ValueError):
        entries = []
    starts = [start for _, start in entries]
    kept = [batch for batch in batches if not batch.why_not and batch.magic == 2]
    for number, batch in enumerate(kept):
        around = {kept[at].epoch for at in (number - 1, number + 1) if 0 <= at < len(kept)}
        at = bisect_right(starts, batch.base) - 1
        said = entries[at][0] if at >= 0 else None
        is_wrong = batch.epoch < -1 or (said is not None and batch.epoch != said)
        if is_wrong and said is not None and (around == {said} or not around):
            wanted = said
        elif len(around) == 1 and batch.epoch not in around and (batch.epoch < -1 or said is None):
            wanted = around.pop()
        else:
            continue
        if wanted != batch.epoch:
            why = f"restore leader epoch {wanted} where {batch.epoch} is written"
            segment.patches.append((batch.position + 12, wanted.to_bytes(4, "big", signed=True), why))
            batch.epoch = wanted


def _settle_bytes(segment: SegmentPlan, batches: list[_Batch], damages: list[Damage]) -> None:
    """Which stretches stay, and which go."""
    reasons = {"torn": "the file ends inside a batch", "crc": "the CRC does not hold"}
    for damage in damages:
        why = reasons.get(damage.stop, "no batch can be here")
        segment.cuts.append((damage.position, damage.end, why))
    segment.cuts += [(each.position, each.position + each.size, each.why_not) for each in batches if each.why_not]
    segment.cuts.sort()
    gone = [(start, end) for start, end, _ in segment.cuts]
    segment.patches = sorted(each for each in segment.patches if not any(low <= each[0] < high for low, high in gone))
    at = 0
    for start, end in [*gone, (segment.size_bytes, segment.size_bytes)]:
        if start > at:
            segment.keep.append((at, start))
        at = max(at, end)


def _plan_offsets(plan: Plan, kept: list[list[_Batch]], bases: list[int], directory: str, marks: Marks) -> None:
    """Which offsets are lost: those in what is cut, and those of segments that are not there."""
    cut = {segment.base_offset for segment in plan.segments if segment.cuts}
    try:
        known = gaps.read_gaps(directory)
    except StorageError:
        known = []
        plan.remove.append(gaps.GAPS_FILE)
    at = None
    for base, batches in zip(bases, kept, strict=True):
        if at is not None and at < base and at >= (marks.cleaner or 0):
            plan.lost.append((at, base))
        at = base
        for batch in batches:
            if batch.base > at and base in cut and batch.magic == 2:
                plan.lost.append((at, batch.base))
            at = max(at, batch.next)
    plan.lost = [gap for gap in plan.lost if gap not in known]
    plan.end_offset = at if at is not None else marks.log_start or 0
    plan.start_offset = max(bases[0] if bases else 0, marks.log_start or 0)
    if marks.recovery_point is not None and marks.recovery_point > plan.end_offset:
        plan.lost.append((plan.end_offset, marks.recovery_point))


def _plan_indexes(plan: Plan, bases: list[int], wrong: set[str], directory: str) -> None:
    rewritten = {segment.base_offset for segment in plan.segments}
    for base in bases:
        paths = {os.path.join(directory, name) for name in (names.index_name(base), names.time_index_name(base))}
        if base not in rewritten and paths & wrong:
            plan.reindex.append(base)


def _plan_epochs(plan: Plan, kept: list[list[_Batch]], wrong: set[str]) -> None:
    path = os.path.join(plan.path, names.LEADER_EPOCH_CHECKPOINT)
    try:
        lines = checkpoint.parse_checkpoint(fs.read_file(path), path, 2)
        before = [(int(epoch), int(start)) for epoch, start in lines]
    except fs.MissingFileError:
        return
    except (StorageError, ValueError):
        before = None
    found: list[tuple[int, int]] = []
    clean: list[tuple[int, int]] = []
    is_false = before is None or path in wrong
    starts = [start for _, start in before or ()]
    for batch in (batch for batches in kept for batch in batches if batch.epoch >= 0):
        if not found or batch.epoch > found[-1][0]:
            found.append((batch.epoch, max(batch.base, plan.start_offset)))
        at = bisect_right(starts, batch.base) - 1
        if before and at >= 0 and before[at][0] != batch.epoch:
            is_false = True
    for epoch, start in found:
        if clean and start <= clean[-1][1]:
            clean.pop()
        clean.append((epoch, start))
    if is_false and clean != before:
        plan.epochs = clean
    elif before and any(start > plan.end_offset for _, start in before):
        plan.epochs = [entry for entry in before if entry[1] <= plan.end_offset]


def _plan_leftovers(plan: Plan, files: dict[str, names.FileName], errors: list[Finding], logs: dict[int, str]) -> None:
    """Files that cannot stay: those that verify found wrong, and what the rewriting makes untrue."""
    renamed = {source for source, _ in plan.rename}
    wrong = {os.path.basename(finding.path) for finding in errors}
    cut_from = min((low for low, _ in plan.lost), default=None)
    if names.PARTITION_METADATA in wrong:
        plan.remove.append(names.PARTITION_METADATA)
    for name, file in sorted(files.items()):
        if name in renamed:
            continue
        goes = name != str(file) or (bool(file.state) and name in wrong)
        if file.kind == names.SNAPSHOT and not file.state:
            is_behind_cut = cut_from is not None and file.offset > cut_from
            goes = goes or name in wrong or file.offset > plan.end_offset
            goes = goes or (is_behind_cut and _has_producers(plan.path, name))
        elif file.kind != names.LOG and not file.state:
            goes = goes or file.offset not in logs
        if goes:
            plan.remove.append(name)


def _has_producers(directory: str, name: str) -> bool:
    return fs.stat(os.path.join(directory, name)).st_size > 10


def _plan_marks(plan: Plan, bases: list[int], marks: Marks) -> None:
    end = plan.end_offset
    point = marks.recovery_point
    if point is not None and (point > end or (marks.has_marker and point != end)):
        plan.marks.append((checkpoint.RECOVERY_POINTS, end))
    if marks.log_start is not None and marks.log_start > end:
        plan.marks.append((checkpoint.LOG_STARTS, None))
    if marks.high_watermark is not None and marks.high_watermark > end:
        plan.marks.append((checkpoint.HIGH_WATERMARKS, end))
    if marks.cleaner is not None and marks.cleaner > end:
        plan.marks.append((checkpoint.CLEANER_OFFSETS, end))


# Doing


def carry_out(plan: Plan, backup: str) -> None:
    """Do what a plan says, with copies of all that it changes in `backup`, a directory that is made.

    Takes the locks of a writer: `LogLockedError` when the log, a store or a broker is in use. Raises `StorageError`.
    """
    directory = os.path.abspath(plan.path)
    root = os.path.dirname(directory)
    with fs.lock_root(root, shared=True), fs.lock_partition(directory):
        _back_up(plan, directory, root, backup)
        known = gaps.read_gaps(directory) if gaps.GAPS_FILE not in plan.remove else []
        if plan.lost:
            gaps.write_gaps(directory, [*known, *plan.lost])
        for name in plan.remove:
            if name != gaps.GAPS_FILE or not plan.lost:
                fs.unlink(os.path.join(directory, name))
        for source, target in plan.rename:
            fs.rename(os.path.join(directory, source), os.path.join(directory, target))
        fs.sync_directory(directory)
        for segment in plan.segments:
            _rewrite(directory, segment, dict(plan.rename))
        for base in plan.reindex:
            _reindex(directory, base)
        for base, aborted in plan.aborted:
            fs.write_atomically(os.path.join(directory, names.txn_index_name(base)), format_txn_index(aborted))
        if plan.epochs is not None:
            data = checkpoint.format_checkpoint(plan.epochs)
            fs.write_atomically(os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT), data)
        fs.sync_directory(directory)
        try:
            parsed = names.parse_partition_name(os.path.basename(directory))
        except InvalidTopicError:
            return
        for name, offset in plan.marks:
            checkpoint.update_offsets(root, name, {(parsed.topic, parsed.partition): offset})


def _back_up(plan: Plan, directory: str, root: str, backup: str) -> None:
    """Copy whatever will be changed, durably, before anything is."""
    into = os.path.join(backup, os.path.basename(directory))
    fs.make_directories(into)
    changed = {*plan.remove, *(source for source, _ in plan.rename)}
    for base in [*plan.reindex, *(base for base, _ in plan.aborted), *(each.base_offset for each in plan.segments)]:
        changed |= {names.file_name(base, kind) for kind in names.SEGMENT_KINDS[1:]}
    changed |= {os.path.basename(segment.path) for segment in plan.segments}
    if plan.epochs is not None:
        changed.add(names.LEADER_EPOCH_CHECKPOINT)
    if plan.lost:
        changed.add(gaps.GAPS_FILE)
    for name in sorted(changed):
        if fs.exists(os.path.join(directory, name)):
            _copy(os.path.join(directory, name), os.path.join(into, name))
    for name, _ in plan.marks:
        if fs.exists(os.path.join(root, name)) and not fs.exists(os.path.join(backup, name)):
            _copy(os.path.join(root, name), os.path.join(backup, name))
    fs.sync_directory(into)
    fs.sync_directory(backup)


def _copy(source: str, target: str, stretches: Iterable[tuple[int, int]] | None = None) -> None:
    """Copy a file, or stretches of it one after the other, and sync the copy; its name is not synced."""
    reading = fs.open(source)
    try:
        writing = fs.open(target, create=True, empty=True)
        try:
            at = 0
            for start, end in [(0, fs.size(reading))] if stretches is None else stretches:
                while start < end:
                    data = fs.pread(reading, min(_COPY_BYTES, end - start), start)
                    if not data:
                        break
                    fs.pwrite(writing, data, at)
                    start, at = start + len(data), at + len(data)
            fs.fsync(writing)
        finally:
            fs.close(writing)
    finally:
        fs.close(reading)


def _rewrite(directory: str, segment: SegmentPlan, renamed: dict[str, str]) -> None:
    """Put a segment's mended files in the place of the old ones, as a compaction does."""
    log = os.path.join(directory, names.log_name(segment.base_offset))
    new = log + names.CLEANED
    _copy(log, new, segment.keep)
    fd = fs.open(new, write=True)
    try:
        for position, data, _ in segment.patches:
            fs.pwrite(fd, data, _moved(position, segment.keep))
        fs.fsync(fd)
    finally:
        fs.close(fd)
    kinds = [names.LOG, names.OFFSET_INDEX, names.TIME_INDEX]
    for kind, data in zip(kinds[1:], _indexes(new, segment.base_offset), strict=True):
        fs.write_file(os.path.join(directory, names.file_name(segment.base_offset, kind, names.CLEANED)), data)
    aborted = os.path.join(directory, names.txn_index_name(segment.base_offset))
    if fs.exists(aborted):
        _copy(aborted, aborted + names.CLEANED)
        kinds.append(names.TXN_INDEX)
    fs.sync_directory(directory)
    paths = [os.path.join(directory, names.file_name(segment.base_offset, kind)) for kind in kinds]
    for path in paths:
        fs.rename(path + names.CLEANED, path + names.SWAP)
    fs.sync_directory(directory)
    for path in paths:
        fs.rename(path + names.SWAP, path)
    fs.sync_directory(directory)


def _moved(position: int, keep: list[tuple[int, int]]) -> int:
    """Where a byte of the old file is in the new one."""
    at = 0
    for start, end in keep:
        if start <= position < end:
            return at + position - start
        at += end - start
    raise AssertionError(f"position {position} is in no stretch that stays")


def _indexes(path: str, base_offset: int) -> tuple[bytes, bytes]:
    """Both indexes of a sound log file, as recovery makes them (8.16, 8.18)."""
    fd = fs.open(path)
    try:
        found = _scan.scan(fd, 0, fs.size(fd), base_offset, index_interval_bytes=_INTERVAL, path=path)
    finally:
        fs.close(fd)
    times = found.time_entries
    last = int.from_bytes(times[-12:-4], "big", signed=True) if times else -1
    if found.max_timestamp > last:
        times += found.max_timestamp.to_bytes(8, "big", signed=True)
        times += (found.max_timestamp_offset - base_offset).to_bytes(4, "big")
    return found.index_entries, times


def _reindex(directory: str, base_offset: int) -> None:
    offsets, times = _indexes(os.path.join(directory, names.log_name(base_offset)), base_offset)
    fs.write_atomically(os.path.join(directory, names.index_name(base_offset)), offsets)
    fs.write_atomically(os.path.join(directory, names.time_index_name(base_offset)), times)


def repair(plan: Plan, backup: str, progress: Progress | None = None) -> list[Finding]:
    """Carry a plan out, and what the mended files then show to be untrue about them; the errors that are left.

    What follows in further rounds concerns what can be made again: indexes, snapshots, marks.
    """
    for number in range(_ROUNDS):
        carry_out(plan, backup if not number else f"{backup}/round-{number + 1}")
        plan = plan_repair(plan.path, progress)
        if not plan.findings or plan.is_empty or plan.lost_bytes:
            break
    return plan.findings
