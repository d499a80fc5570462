"""Finds the segments that retention has deleted and a backup still has, in the catalogs of the restore window.

Invariant: a segment is taken only if it ends where the log of a later state starts, so the log has no gap and no offset
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kstore.objects import backup_reader
from kstore.objects.backup_contents import BackupState, PartitionKey, PartitionState
from kstore.objects.backup_state import History


def add_deleted(history: History, state: BackupState) -> BackupState:
    """Return the state with the older segments of its partitions that earlier states have.

    Of the catalogs only as many are read as are needed to go from one to the next without a gap, and of the rounds
    those between two catalogs that leave one.
    """
    places = [at for at in history.kept_places if at < 0 or history.manifest.catalogs[at].number <= state.number]
    finder = _Finder(history, places, state.number)
    if places:
        finder.find(0, len(places), state.partitions)
    partitions = dict(state.partitions)
    for number in sorted(finder.states, reverse=True):
        _add_older(partitions, finder.states[number])
    return replace(state, partitions=partitions)


class _Finder:
    """Reads the states that have the deleted segments."""

    def __init__(self, history: History, places: list[int], number: int) -> None:
        self.history = history
        self.places = places
        self.number = number
        self.states: dict[int, BackupState] = {}

    def find(self, low: int, high: int, newer: Mapping[PartitionKey, PartitionState]) -> None:
        """Read states from the place `low` on until they overlap; `newer` is the state at the place `high`."""
        at = self.places[low]
        if at >= 0:
            older = self._read(at)
            if _is_continued(older, newer):
                return
        if high - low == 1:
            for state in self.history.states_from(at):
                if state.number < self.number:
                    self.states[state.number] = state
            return
        middle = (low + high) // 2
        self.find(middle, high, newer)
        self.find(low, middle, self._read(self.places[middle]).partitions)

    def _read(self, at: int) -> BackupState:
        place = self.history.manifest.catalogs[at]
        if place.number not in self.states:
            self.states[place.number] = backup_reader.read_catalog(self.history.objects, place)
        return self.states[place.number]


def _is_continued(older: BackupState, newer: Mapping[PartitionKey, PartitionState]) -> bool:
    """Return whether no partition has a gap between the sealed end of the older state and the start of the newer."""
    for key, partition in newer.items():
        before = older.partitions.get(key)
        end = 0
        if before is not None and before.topic_id == partition.topic_id:
            tail = before.tail[0].base_offset if before.tail else before.end_offset
            end = before.segments[-1].end_offset if before.segments else tail
        if end < _first(partition):
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
