"""Carries out the plan of a repair, after copying all files that it changes to a backup.

A segment is replaced as a compaction replaces one (SEMANTICS 7.25), so a crash at any point leaves the old files or the
new ones for the next opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kstore.disk import fs
from kstore.errors import InvalidTopicError
from kstore.files import _log_scan, checkpoint, gap_files, names
from kstore.files._index_search import TimeEntries, time_entry
from kstore.files.log_file import open_log
from kstore.files.txnindex import format_txn_index
from kstore.tools.check.repair_plan import Plan, SegmentPlan

__all__ = ["carry_out"]

_COPY_BYTES = 8 << 20
_INTERVAL_BYTES = 4096


def carry_out(plan: Plan, backup: str) -> None:
    """Copy to `backup`, a new directory, all files that the plan changes; then carry out the plan.

    Takes the locks of a writer. Raises `StorageError`, and `LogLockedError` if a log, a store or a broker holds one.
    """
    directory = os.path.abspath(plan.path)
    root = os.path.dirname(directory)
    with fs.lock_root(root, shared=True), fs.lock_partition(directory):
        _back_up(plan, directory, root, backup)
        known_gaps = gap_files.read_gaps(directory) if gap_files.GAPS_FILE not in plan.remove else []
        lost = plan.lost_between
        if lost:
            gap_files.write_gaps(directory, [*known_gaps, *lost])
        targets = {names.log_name(segment.base_offset) for segment in plan.segments}
        later = {os.path.basename(segment.path) for segment in plan.segments}
        for name in plan.remove:
            if (name != gap_files.GAPS_FILE or not lost) and name not in targets:
                fs.unlink(os.path.join(directory, name))
        for source, target in plan.rename:
            fs.rename(os.path.join(directory, source), os.path.join(directory, target))
        fs.sync_directory(directory)
        moved = [segment for segment in plan.segments if _is_moved(segment)]
        if moved:
            low, high = moved[0].base_offset, moved[-1].base_offset
            moved = [segment for segment in plan.segments if low <= segment.base_offset <= high]
            _rewrite(directory, moved)
            for name in later - targets:
                fs.unlink(os.path.join(directory, name))
            fs.sync_directory(directory)
        for segment in plan.segments:
            if segment not in moved:
                _rewrite(directory, [segment])
        for base in plan.reindex:
            _reindex(directory, base)
        for base, aborted in plan.aborted:
            fs.write_atomically(os.path.join(directory, names.txn_index_name(base)), format_txn_index(aborted))
        if plan.epochs is not None:
            data = checkpoint.format_checkpoint(plan.epochs)
            fs.write_atomically(os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT), data)
        if plan.topic_id is not None:
            checkpoint.ensure_partition_metadata(directory, plan.topic_id)
        fs.sync_directory(directory)
        try:
            parsed = names.parse_partition_name(os.path.basename(directory))
        except InvalidTopicError:
            return
        for name, offset in plan.marks:
            checkpoint.update_offsets(root, name, {(parsed.topic, parsed.partition): offset})


def _back_up(plan: Plan, directory: str, root: str, backup: str) -> None:
    """Copy every file that will be changed, durably."""
    into = os.path.join(backup, os.path.basename(directory))
    fs.make_directories(into)
    changed = {*plan.remove, *(source for source, _ in plan.rename)}
    rewritten = (segment.base_offset for segment in plan.segments)
    for base in [*plan.reindex, *(base for base, _ in plan.aborted), *rewritten]:
        changed |= {names.file_name(base, kind) for kind in names.SEGMENT_KINDS[1:]}
    changed |= {os.path.basename(segment.path) for segment in plan.segments}
    if plan.epochs is not None:
        changed.add(names.LEADER_EPOCH_CHECKPOINT)
    if plan.lost_between:
        changed.add(gap_files.GAPS_FILE)
    for name in sorted(changed):
        if fs.exists(os.path.join(directory, name)):
            _copy(os.path.join(directory, name), os.path.join(into, name))
    for name, _ in plan.marks:
        if fs.exists(os.path.join(root, name)) and not fs.exists(os.path.join(backup, name)):
            _copy(os.path.join(root, name), os.path.join(backup, name))
    fs.sync_directory(into)
    fs.sync_directory(backup)


def _copy(source: str, target: str, ranges: Iterable[tuple[int, int]] | None = None) -> None:
    """Copy a file, or only some ranges of its bytes, and sync the copy, but not its directory."""
    reading = fs.open(source)
    try:
        writing = fs.open(target, create=True, empty=True)
        try:
            at = 0
            for start, end in [(0, fs.size(reading))] if ranges is None else ranges:
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


def _is_moved(segment: SegmentPlan) -> bool:
    return os.path.basename(segment.path) != names.log_name(segment.base_offset)


def _rewrite(directory: str, segments: list[SegmentPlan]) -> None:
    """Replace the files of all these segments by repaired ones, atomically as a compaction does."""
    staged = {segment.base_offset: _stage(directory, segment) for segment in segments}
    fs.sync_directory(directory)
    # If a file of the first segment is still `.cleaned`, the next opening drops all new files. So its files are last.
    for base in sorted(staged, reverse=True):
        if base == min(staged):
            fs.sync_directory(directory)
        for path in staged[base]:
            fs.rename(path + names.CLEANED, path + names.SWAP)
    fs.sync_directory(directory)
    # The next opening deletes segments between two `.swap` segments: swap in offset order, so that only old ones are.
    for base in sorted(staged):
        for path in staged[base]:
            fs.rename(path + names.SWAP, path)
        fs.sync_directory(directory)


def _stage(directory: str, segment: SegmentPlan) -> list[str]:
    """Write a segment's repaired files next to the old ones; return the paths that they will replace."""
    new = os.path.join(directory, names.file_name(segment.base_offset, names.LOG, names.CLEANED))
    _copy(segment.path, new, segment.keep)
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
    return [os.path.join(directory, names.file_name(segment.base_offset, kind)) for kind in kinds]


def _moved(position: int, keep: list[tuple[int, int]]) -> int:
    """Return the position that the byte at `position` of the old file has in the new file."""
    at = 0
    for start, end in keep:
        if start <= position < end:
            return at + position - start
        at += end - start
    raise AssertionError(f"position {position} is in no range that stays")


def _indexes(path: str, base_offset: int) -> tuple[bytes, bytes]:
    """Return both indexes of a sound log file, as recovery builds them (SEMANTICS 8.16, 8.18)."""
    fd = open_log(path)
    try:
        scanned = _log_scan.scan(fd, 0, fs.size(fd), base_offset, index_interval_bytes=_INTERVAL_BYTES, path=path)
    finally:
        fs.close(fd)
    times = scanned.time_entries
    if scanned.max_timestamp > TimeEntries(times, base_offset).last[0]:
        times += time_entry(scanned.max_timestamp, scanned.max_timestamp_offset - base_offset)
    return scanned.index_entries, times


def _reindex(directory: str, base_offset: int) -> None:
    offsets, times = _indexes(os.path.join(directory, names.log_name(base_offset)), base_offset)
    fs.write_atomically(os.path.join(directory, names.index_name(base_offset)), offsets)
    fs.write_atomically(os.path.join(directory, names.time_index_name(base_offset)), times)
