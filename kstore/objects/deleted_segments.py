"""Finds the segments that retention has deleted and a backup still has, in the catalogs of the restore window.

Invariant: a segment is taken only if it ends where the log of a later state starts, so the log has no gap and no offset
twice.
"""

from __future__ import annotations

from dataclasses import replace

from kstore.objects import backup_reader
from kstore.objects.backup_contents import BackupState, PartitionKey, PartitionState
from kstore.objects.backup_manifest import CatalogPlace
from kstore.objects.backup_state import History


def add_deleted(history: History, state: BackupState) -> BackupState:
    """Return the state with the older segments of its partitions that earlier catalogs have.

    Of the catalogs only as many are read as are needed to go from one to the next without a gap.
    """
    places = [place for place in history.kept_catalogs if place.number < state.number]
    partitions = dict(state.partitions)
    if places:
        catalogs: dict[int, BackupState] = {}
        _read_between(history, places, 0, len(places), partitions, catalogs)
        for number in sorted(catalogs, reverse=True):
            _add_older(partitions, catalogs[number])
    return replace(state, partitions=partitions)


def _read_between(
    history: History,
    places: list[CatalogPlace],
    low: int,
    high: int,
    newer: dict[PartitionKey, PartitionState],
    catalogs: dict[int, BackupState],
) -> None:
    """Read catalogs of `places[low:high]` until each overlaps the next one; `newer` is the state after them."""
    if low >= high:
        return
    first = backup_reader.read_catalog(history.objects, places[low])
    catalogs[first.number] = first
    if high - low == 1 or _is_continued(first, newer):
        return
    middle = (low + 1 + high) // 2
    if middle == low:
        return
    between = backup_reader.read_catalog(history.objects, places[middle])
    catalogs[between.number] = between
    _read_between(history, places, middle + 1, high, newer, catalogs)
    _read_between(history, places, low + 1, middle, dict(between.partitions), catalogs)


def _is_continued(older: BackupState, newer: dict[PartitionKey, PartitionState]) -> bool:
    """Return whether no partition has a gap between the end of the older state and the start of the newer one."""
    for key, partition in newer.items():
        before = older.partitions.get(key)
        if before is None or before.topic_id != partition.topic_id or not before.segments:
            continue
        if before.segments[-1].end_offset < _first(partition):
            return False
    return True


def _first(partition: PartitionState) -> int:
    """Return the base offset of a partition's first segment."""
    if partition.segments:
        return partition.segments[0].base_offset
    return partition.tail[0].base_offset if partition.tail else partition.end_offset


def _add_older(partitions: dict[PartitionKey, PartitionState], older: BackupState) -> None:
    for key, partition in partitions.items():
        before = older.partitions.get(key)
        if before is None or before.topic_id != partition.topic_id:
            continue
        first = _first(partition)
        if partition.log_start_offset > first:
            continue  # `delete_records` has removed what is older
        added = []
        for segment in reversed(before.segments):
            if segment.end_offset == first:
                added.append(segment)
                first = segment.base_offset
        if added:
            start = max(before.log_start_offset, first)
            segments = (*reversed(added), *partition.segments)
            partitions[key] = replace(partition, segments=segments, log_start_offset=start)
