"""Repairs a partition's directory in two steps: makes a plan, then carries it out.

`plan_repair` reads and decides, and changes nothing; `carry_out` does exactly what a plan says. Invariant: a batch
whose bytes are sound is always kept if its offsets are known.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from typing import Any

from kstore._core import decode_batches
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import header
from kstore.columns.record_offsets import offsets_and_timestamps
from kstore.disk import fs
from kstore.errors import InvalidTopicError, KStoreError, StorageError
from kstore.files import checkpoint, gap_files, names, topic_files
from kstore.files.log_file import open_log
from kstore.store import catalog, metadata
from kstore.tools.check import _verify
from kstore.tools.check.apply_repair import carry_out
from kstore.tools.check.check_index import Rows
from kstore.tools.check.check_partition import Marks, Progress, check_partition, read_marks
from kstore.tools.check.check_segment import read_rows
from kstore.tools.check.findings import Damage, Finding
from kstore.tools.check.place_segments import Places, find_places
from kstore.tools.check.repair_plan import Plan, SegmentPlan
from kstore.tools.check.settle_offsets import Batch, Overlaps, find_overlaps, move, patch, settle_copies, settle_offsets

__all__ = ["plan_repair", "repair"]

_MAX_BATCH_BYTES = 64 << 20
_FATAL = _verify.Fault.COUNT | _verify.Fault.DELTA | _verify.Fault.CODEC | _verify.Fault.RECORDS | _verify.Fault.OFFSETS
_ROUNDS = 3


# Deciding


def plan_repair(directory: str, progress: Progress | None = None) -> Plan:
    """Return a plan that repairs a partition's directory; change nothing. Raises `StorageError` if it cannot be read.

    `progress` is called with the number of bytes checked.
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
    wrong = {finding.path for finding in errors}
    overlaps, places = Overlaps(), Places()
    if errors:
        places = _plan_places(plan, files, logs, marks)
        logs = places.logs
    if any(path.endswith(names.LOG) for path in wrong):
        overlaps = find_overlaps(directory, logs)
        plan.remove += [logs.pop(base) for base in sorted(overlaps.redundant)]
    bases = sorted(logs)
    moved = [base for base in bases if logs[base] != names.log_name(base)]
    kept: list[list[Batch]] = []
    for number, base in enumerate(bases):
        limit = bases[number + 1] if number + 1 < len(bases) else LONG_MAX
        path = os.path.join(directory, logs[base])
        is_last = number + 1 == len(bases)
        limit = max(limit, overlaps.limits.get(base, limit))
        copies = {at: f"the segments from {next} on hold" for at, next in overlaps.copies.get(base, {}).items()}
        copies |= {at: f"{name} holds" for at, name in places.copies.get(logs[base], {}).items()}
        # After a crash during the swaps, opening deletes old segments between new ones: rewrite those old ones, too.
        is_moved = bool(moved) and moved[0] <= base <= moved[-1]
        batches = _plan_segment(
            plan, path, base, limit, marks, bool(errors), copies, places.flipped.get(logs[base]),
            is_last=is_last, is_moved=is_moved,
        )  # fmt: skip
        kept.append(batches)
    if errors:
        is_trimmed = bool(checked.segments) and not checked.segments[-1].is_live
        _plan_offsets(plan, kept, bases, directory, marks, is_trimmed=is_trimmed)
        _plan_indexes(plan, bases, wrong, directory)
        rewritten = {segment.base_offset for segment in plan.segments}
        for base, aborted in checked.aborted.items():
            if base not in rewritten and os.path.join(directory, names.txn_index_name(base)) in wrong:
                plan.aborted.append((base, aborted))
        _plan_epochs(plan, kept, wrong)
        _plan_leftovers(plan, files, errors, logs)
        _plan_marks(plan, bases, marks)
        if checked.lost_first is not None and bases and checked.lost_first[0] < bases[0]:
            # Added last, so that `_plan_leftovers` keeps the snapshots above these offsets.
            plan.lost.insert(0, (checked.lost_first[0], bases[0]))
    return plan


def _plan_names(plan: Plan, files: dict[str, names.FileName], logs: dict[int, str]) -> dict[int, str]:
    """Plan the right names of files; return the present names of the logs by base offset."""
    taken = set(files)
    for name, file in files.items():
        if str(file) != name and str(file) not in taken and file.kind != names.LOG:
            plan.rename.append((name, str(file)))
            taken.add(str(file))
    return {base: names.log_name(base) if names.log_name(base) in files else name for base, name in logs.items()}


def _plan_places(plan: Plan, files: dict[str, names.FileName], logs: dict[int, str], marks: Marks) -> Places:
    """Find the right name of each log; plan to remove logs whose batches other logs have, or whose place is unknown."""
    kinds = (names.OFFSET_INDEX, names.TIME_INDEX)
    orphans = {file.offset for file in files.values() if file.kind in kinds and not file.state} - set(logs)
    places = find_places(plan.path, logs, orphans, _known_end(plan.path, marks, 0, is_trimmed=False))
    plan.remove += sorted(places.redundant)
    plan.removed_bytes = places.lost_bytes
    return places


def _plan_segment(
    plan: Plan,
    path: str,
    base: int,
    limit: int,
    marks: Marks,
    is_wrong: bool,
    copies: dict[int, str],
    flipped: int | None,
    *,
    is_last: bool,
    is_moved: bool,
) -> list[Batch]:
    """Decide about the batches of one log file; return those that are kept."""
    rows, damages = read_rows(path, base, limit_offset=limit)
    fd = open_log(path)
    try:
        size = fs.size(fd)
        segment = SegmentPlan(base, path, size)
        batches = [_batch(fd, row) for row in rows]
        for batch in batches:
            if batch.position in copies:
                batch.why_not = f"{copies[batch.position]} the same batch"
                segment.copied_bytes += batch.size
        if flipped is not None:
            segment.patches += [move(batch, flipped) for batch in batches if not batch.why_not]
        if is_wrong:
            batches = _with_restored(fd, batches, damages, segment)
            settle_copies(fd, batches, base, limit)
            settle_offsets(batches, base, limit, marks, segment, is_last=is_last)
            _settle_faults(fd, rows, batches, segment)
            _settle_epochs(batches, segment)
        kept = [batch for batch in batches if not batch.why_not]
        _settle_bytes(segment, batches, damages)
    finally:
        fs.close(fd)
    if is_wrong and (segment.cuts or segment.patches or is_moved):
        segment.kept_batches, segment.kept_records = len(kept), sum(batch.count for batch in kept)
        segment.next_offset = kept[-1].next if kept else base
        plan.segments.append(segment)
    plan.kept_batches += len(kept)
    plan.kept_records += sum(batch.count for batch in kept)
    plan.kept_bytes += sum(batch.size for batch in kept)
    return kept


def _batch(fd: int, row: Any) -> Batch:
    span = int(row["last_offset"]) - int(row["base_offset"]) + 1
    batch = Batch(int(row["position"]), int(row["size"]), int(row["base_offset"]), span, int(row["count"]),
                   int(row["leader_epoch"]), int(row["magic"]), int(row["max_timestamp"]))  # fmt: skip
    if row["faults"] & _FATAL == _verify.Fault.DELTA:
        # The CRC does not cover the base offset. If no other field is impossible, the rest of the batch is sound.
        data = fs.pread(fd, header.HEADER_BYTES, batch.position)
        is_whole = batch.magic == 2 and len(data) == header.HEADER_BYTES
        if is_whole and (delta := header.LAST_OFFSET_DELTA.of(data)) >= 0:
            batch.span = delta + 1
            return batch
    if row["faults"] & _FATAL:
        batch.why_not = "its records or its header contradict each other"
    return batch


def _with_restored(fd: int, batches: list[Batch], damages: list[Damage], segment: SegmentPlan) -> list[Batch]:
    """Restore batches in which only the length or the magic is wrong: the CRC, which covers the rest, matches."""
    restored = list(batches)
    for damage in list(damages):
        size = damage.end - damage.position
        if not header.HEADER_BYTES <= size <= _MAX_BATCH_BYTES:
            continue
        data = fs.pread(fd, size, damage.position)
        if len(data) < size or not header.crc_holds(data):
            continue
        mended = bytearray(data)
        header.BATCH_LENGTH.put(mended, size - header.LOG_OVERHEAD)
        header.MAGIC.put(mended, 2)
        try:
            (whole,) = decode_batches(mended)
            records = len(offsets_and_timestamps(mended)[0])
        except (KStoreError, ValueError):
            continue
        span = whole.last_offset - whole.base_offset + 1
        if records != whole.count or not 1 <= span <= INT_MAX:
            continue
        if header.size_of(data) != size:
            why = f"restore the batch's length, {size} bytes in all"
            segment.patches.append(patch(damage.position, header.BATCH_LENGTH, size - header.LOG_OVERHEAD, why))
        if header.MAGIC.of(data) != 2:
            segment.patches.append(patch(damage.position, header.MAGIC, 2, "restore the batch's magic, 2"))
        restored.append(Batch(damage.position, size, whole.base_offset, span, records, whole.partition_leader_epoch, 2,
                            whole.max_timestamp, is_restored=True))  # fmt: skip
        damages.remove(damage)
    return sorted(restored, key=lambda batch: batch.position)


def _settle_faults(fd: int, rows: Rows, batches: list[Batch], segment: SegmentPlan) -> None:
    """Plan to write the records' greatest timestamp into headers that have another one."""
    wrong = {int(row["position"]) for row in rows[(rows["faults"] & _verify.Fault.TIMESTAMP) != 0]}
    for batch in batches:
        if batch.position in wrong and not batch.why_not:
            data = bytearray(fs.pread(fd, batch.size, batch.position))
            greatest = int(offsets_and_timestamps(data)[1].max())
            header.MAX_TIMESTAMP.put(data, greatest)
            what = f"write max timestamp {greatest}, that of the records, over {batch.max_timestamp}"
            segment.patches.append(patch(batch.position, header.CRC, header.computed_crc(data), "write the new CRC"))
            segment.patches.append(patch(batch.position, header.MAX_TIMESTAMP, greatest, what))


def _settle_epochs(batches: list[Batch], segment: SegmentPlan) -> None:
    """Plan to restore wrong leader epochs from the epoch file, if the neighbours agree with it.

    Otherwise an epoch that is below -1, or that the file does not cover, is restored from neighbours that agree.
    """
    path = os.path.join(os.path.dirname(segment.path), names.LEADER_EPOCH_CHECKPOINT)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in checkpoint.read_checkpoint(path, 2)]
    except (StorageError, ValueError):
        entries = []
    starts = [start for _, start in entries]
    kept = [batch for batch in batches if not batch.why_not and batch.magic == 2]
    for number, batch in enumerate(kept):
        neighbours = {kept[entry].epoch for entry in (number - 1, number + 1) if 0 <= entry < len(kept)}
        entry = bisect_right(starts, batch.base) - 1
        epoch_in_file = entries[entry][0] if entry >= 0 else None
        is_wrong = batch.epoch < -1 or (epoch_in_file is not None and batch.epoch != epoch_in_file)
        if is_wrong and epoch_in_file is not None and (neighbours == {epoch_in_file} or not neighbours):
            wanted = epoch_in_file
        elif len(neighbours) == 1 and batch.epoch not in neighbours and (batch.epoch < -1 or epoch_in_file is None):
            wanted = neighbours.pop()
        else:
            continue
        if wanted != batch.epoch:
            why = f"restore leader epoch {wanted} where {batch.epoch} is written"
            segment.patches.append(patch(batch.position, header.LEADER_EPOCH, wanted, why))
            batch.epoch = wanted


def _settle_bytes(segment: SegmentPlan, batches: list[Batch], damages: list[Damage]) -> None:
    """Decide which ranges of bytes are kept, and which are cut."""
    reasons = {"torn": "the file ends inside a batch", "crc": "the CRC does not hold"}
    for damage in damages:
        why = reasons.get(damage.stop, "no batch can be here")
        segment.cuts.append((damage.position, damage.end, why))
    segment.cuts += [(batch.position, batch.position + batch.size, batch.why_not) for batch in batches if batch.why_not]
    segment.cuts.sort()
    cuts = [(start, end) for start, end, _ in segment.cuts]
    segment.patches = sorted(each for each in segment.patches if not any(low <= each[0] < high for low, high in cuts))
    at = 0
    for start, end in [*cuts, (segment.size_bytes, segment.size_bytes)]:
        if start > at:
            segment.keep.append((at, start))
        at = max(at, end)


def _plan_offsets(
    plan: Plan, kept: list[list[Batch]], bases: list[int], directory: str, marks: Marks, *, is_trimmed: bool
) -> None:
    """Find the lost offsets: those of cut batches, and those of missing segments."""
    cut = {segment.base_offset for segment in plan.segments if segment.lost_bytes}
    try:
        known_gaps = gap_files.read_gaps(directory)
    except StorageError:
        known_gaps = []
        plan.remove.append(gap_files.GAPS_FILE)
    at = None
    for base, batches in zip(bases, kept, strict=True):
        if at is not None and at < base and at >= (marks.cleaner or 0):
            plan.lost.append((at, base))
        at = base
        for batch in batches:
            if batch.base > at and base in cut and batch.magic == 2:
                plan.lost.append((at, batch.base))
            at = max(at, batch.next)
    plan.lost = [gap for gap in plan.lost if not any(low <= gap[0] and gap[1] <= high for low, high in known_gaps)]
    plan.end_offset = at if at is not None else marks.log_start or 0
    plan.start_offset = max(bases[0] if bases else 0, marks.log_start or 0)
    known_end = _known_end(directory, marks, plan.end_offset, is_trimmed=is_trimmed)
    if known_end > plan.end_offset:
        plan.lost.append((plan.end_offset, known_end))


def _known_end(directory: str, marks: Marks, end: int, *, is_trimmed: bool) -> int:
    """Return the greatest end of the log that a mark or a snapshot shows.

    If the log was closed (its indexes are trimmed, or there is a clean-shutdown marker) and the recovery point is
    `end`, the log ended there. A snapshot beyond `end` is then from a truncation inside a batch (SEMANTICS 11.4).
    """
    if marks.recovery_point == end and (is_trimmed or marks.has_marker):
        return end
    files = (names.parse_file_name(name) for name in fs.listdir(directory))
    snapshots = [file.offset for file in files if file is not None and file.kind == names.SNAPSHOT and not file.state]
    return max(marks.recovery_point or 0, marks.high_watermark or 0, *snapshots, end)


def _plan_indexes(plan: Plan, bases: list[int], wrong: set[str], directory: str) -> None:
    rewritten = {segment.base_offset for segment in plan.segments}
    for base in bases:
        paths = {os.path.join(directory, name) for name in (names.index_name(base), names.time_index_name(base))}
        if base not in rewritten and paths & wrong:
            plan.reindex.append(base)


def _plan_epochs(plan: Plan, kept: list[list[Batch]], wrong: set[str]) -> None:
    path = os.path.join(plan.path, names.LEADER_EPOCH_CHECKPOINT)
    try:
        lines = checkpoint.read_checkpoint(path, 2)
        before = [(int(epoch), int(start)) for epoch, start in lines]
    except fs.MissingFileError:
        return
    except (StorageError, ValueError):
        before = None
    starts_found: list[tuple[int, int]] = []
    clean: list[tuple[int, int]] = []
    is_false = before is None or path in wrong
    starts = [start for _, start in before or ()]
    for batch in (batch for batches in kept for batch in batches if batch.epoch >= 0):
        if not starts_found or batch.epoch > starts_found[-1][0]:
            starts_found.append((batch.epoch, max(batch.base, plan.start_offset)))
        at = bisect_right(starts, batch.base) - 1
        if before and at >= 0 and before[at][0] != batch.epoch:
            is_false = True
    for epoch, start in starts_found:
        if clean and start <= clean[-1][1]:
            clean.pop()
        clean.append((epoch, start))
    if is_false and clean != before:
        plan.epochs = clean
    elif before and any(start > plan.end_offset for _, start in before):
        plan.epochs = [entry for entry in before if entry[1] <= plan.end_offset]


def _known_topic_id(directory: str) -> uuid.UUID | None:
    """Return the topic id that another partition in the root has; None if it is not known.

    If the partition's own file is blank and all others are blank or missing, the id is that in the file of topics,
    which a store then uses, too. If all existing files are malformed, the result is None: they may have had another id
    than the file of topics.
    """
    root = os.path.dirname(os.path.abspath(directory))
    try:
        topic = names.parse_partition_name(os.path.basename(os.path.abspath(directory))).topic
        entries = [entry for entry in catalog.look([root]).entries if entry.topic == topic]
        topic_id = metadata.id_on_disk({entry.partition: entry for entry in entries})
        record = topic_files.read_topics([root]).find(topic, topic_id)
    except (InvalidTopicError, StorageError):
        return None
    return record.topic_id if topic_id is None and record is not None else topic_id


def _plan_leftovers(plan: Plan, files: dict[str, names.FileName], errors: list[Finding], logs: dict[int, str]) -> None:
    """Find the files to remove: those with errors, and those that no longer match the rewritten logs."""
    renamed = {source for source, _ in plan.rename} | set(logs.values())
    wrong = {os.path.basename(finding.path) for finding in errors}
    cut_from = min((low for low, _ in plan.lost), default=None)
    if names.PARTITION_METADATA in wrong:
        plan.remove.append(names.PARTITION_METADATA)
        plan.topic_id = _known_topic_id(plan.path)
    for name, file in sorted(files.items()):
        if name in renamed:
            continue
        is_removed = name != str(file) or (bool(file.state) and name in wrong)
        if file.kind == names.SNAPSHOT and not file.state:
            is_behind_cut = cut_from is not None and file.offset > cut_from
            is_removed = is_removed or name in wrong or file.offset > plan.end_offset
            is_removed = is_removed or (is_behind_cut and _has_producers(plan.path, name))
        elif file.kind != names.LOG and not file.state:
            is_removed = is_removed or file.offset not in logs
        if is_removed and name not in plan.remove:
            plan.remove.append(name)


def _has_producers(directory: str, name: str) -> bool:
    return fs.stat(os.path.join(directory, name)).st_size > 10


def _plan_marks(plan: Plan, bases: list[int], marks: Marks) -> None:
    end = plan.end_offset
    if marks.begins_anew(bases[0] if bases else end, end):
        return
    point = marks.recovery_point
    if point is not None and (point > end or (marks.has_marker and point != end)):
        plan.marks.append((checkpoint.RECOVERY_POINTS, end))
    for name, mark, wanted in (
        (checkpoint.LOG_STARTS, marks.log_start, None),
        (checkpoint.HIGH_WATERMARKS, marks.high_watermark, end),
        (checkpoint.CLEANER_OFFSETS, marks.cleaner, end),
    ):
        if mark is not None and mark > end:
            plan.marks.append((name, wanted))


def repair(plan: Plan, backup: str, progress: Progress | None = None) -> list[Finding]:
    """Carry out a plan, then plans for errors that the repaired files still have; return the errors that are left.

    Further rounds only change files that can be rebuilt: indexes, snapshots, marks.
    """
    for number in range(_ROUNDS):
        carry_out(plan, backup if not number else f"{backup}/round-{number + 1}")
        plan = plan_repair(plan.path, progress)
        if not plan.findings or plan.is_empty or plan.lost_bytes:
            break
    return plan.findings
