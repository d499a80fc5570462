"""Finds the round of a backup for a time or for offsets, and reads the state after it.

Invariant: no state is returned that may lack objects because its restore window has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kstore.base import times
from kstore.errors import BackupError
from kstore.objects import backup_reader, object_keys
from kstore.objects.backup_contents import BackupState, PartitionKey
from kstore.objects.backup_manifest import BackupManifest, numbers_in, read_manifest
from kstore.objects.object_store import Objects


class History:
    """The rounds of one backup, as its manifest names them. For one thread."""

    def __init__(self, objects: Objects, manifest: BackupManifest) -> None:
        if manifest.number == 0:
            raise BackupError(f"the backup in {objects.url} has no round yet: there is nothing to restore")
        self.objects = objects
        self.manifest = manifest
        self._there: set[str] | None = None  # the names of all objects, once they are listed

    @classmethod
    def read(cls, objects: Objects) -> History:
        """Read the history of a backup; raises `BackupError` if there is none."""
        found = read_manifest(objects)
        if found is None:
            raise BackupError(f"there is no backup in {objects.url}: {object_keys.MANIFEST} is missing")
        return cls(objects, found[0])

    def newest(self) -> BackupState:
        """Return the newest state that is caught up; if none is caught up, the newest state."""
        found = self._last()
        assert found is not None  # the history has at least one round
        return found

    def at_time(self, time_ms: int) -> BackupState:
        """Return the state that `newest` would have returned at `time_ms`; `BackupError` if that state is not kept."""
        found = self._last(time_ms)
        # While the first backup is under way no state is caught up. Later, only a caught-up state is returned.
        is_best = found is not None and (found.caught_up or self._kept_from_ms == 0)
        if found is None or not is_best or not self._is_kept(found):
            earliest_ms = self._earliest().time_ms
            raise BackupError(
                f"the backup in {self.objects.url} cannot be restored to {times.show(time_ms)}: every time is kept "
                f"from {times.show(earliest_ms)} on ({earliest_ms} ms)"
            )
        return found

    @property
    def _kept_from_ms(self) -> int:
        """States from before this time may lack objects."""
        places = self.manifest.catalogs
        oldest_ms = places[0].time_ms if places and not places[0].rounds else 0
        return max(self.manifest.kept_from_ms, oldest_ms)

    @property
    def kept_places(self) -> list[int]:
        """The numbers of the catalogs whose objects all exist, oldest first; -1 first if all rounds exist."""
        places = self.manifest.catalogs
        kept = [at for at, place in enumerate(places) if place.time_ms >= self._kept_from_ms]
        return [-1, *kept] if self._kept_from_ms == 0 else kept

    def states_from(self, at: int) -> Iterator[BackupState]:
        """Yield the states from a catalog (-1: the start) to the next one."""
        return self._states(at)

    def _is_kept(self, state: BackupState) -> bool:
        """Whether all objects of a state still exist; lists the objects if its restore window has passed."""
        if state.time_ms >= self._kept_from_ms:
            return True
        if self._there is None:
            self._there = {found.key for found in self.objects.list()}
        partitions = state.partitions.values()
        chunks = {each.object_of_chunk(chunk) for each in partitions for chunk in each.tail}
        return self._there.issuperset(chunks) and all(self._there.issuperset(each.objects()) for each in partitions)

    def _earliest(self) -> BackupState:
        """Return the oldest state in the restore window that `at_time` accepts; if there is none, the newest."""
        places = self.manifest.catalogs
        below = [at for at, place in enumerate(places) if place.time_ms <= self._kept_from_ms]
        for at in range(below[-1] if below else -1, len(places)):
            for state in self._states(at):
                if state.time_ms >= self._kept_from_ms and (state.caught_up or self._kept_from_ms == 0):
                    return state
        return self.newest()

    def refuse_outdated(self, state: BackupState) -> None:
        """Raise `BackupError` if objects of the state may have been deleted since the history was read."""
        found = read_manifest(self.objects)
        if found is not None and found[0].kept_from_ms > state.time_ms:
            raise BackupError(
                f"round {state.number} of the backup in {self.objects.url} is no longer kept: the restore window of "
                f"{times.show(state.time_ms)} has passed"
            )

    def reaching(self, offsets: Mapping[PartitionKey, int]) -> BackupState:
        """Return the first state that is kept, caught up and reaches these offsets; if there is none, the newest."""

        def reaches(state: BackupState) -> bool:
            return all(
                key in state.partitions and state.partitions[key].end_offset >= offset
                for key, offset in offsets.items()
            )

        newest = self.newest()
        if not reaches(newest):
            return newest  # the plan raises an error for the offset that is not reached
        places = self.manifest.catalogs
        # Bisect for the first catalog that reaches the offsets. After a truncation the bisection may miss it.
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if reaches(backup_reader.read_catalog(self.objects, places[middle])):
                high = middle
            else:
                low = middle + 1
        after = [backup_reader.read_catalog(self.objects, place) for place in places[low : low + 1]]
        for state in (*self._states(low - 1), *after):
            if state.caught_up and reaches(state) and self._is_kept(state):
                return state
        return newest

    def at_round(self, number: int) -> BackupState:
        """Return the state after a round; raises `BackupError` if the state is no longer kept."""
        below = [at for at, place in enumerate(self.manifest.catalogs) if place.number <= number]
        for state in self._states(below[-1] if below else -1, until=number):
            if state.number == number and self._is_kept(state):
                return state
        raise BackupError(f"round {number} of the backup in {self.objects.url} is no longer kept")

    def _last(self, time_ms: int | None = None) -> BackupState | None:
        """Return the last caught-up state up to a time, else the last state up to it; None if there is no state."""
        places = self.manifest.catalogs
        below = [n for n, place in enumerate(places) if time_ms is None or place.time_ms <= time_ms]
        newest: BackupState | None = None
        for at in range(below[-1] if below else -1, -2, -1):
            caught_up: BackupState | None = None
            for state in self._states(at):
                if time_ms is not None and state.time_ms > time_ms:
                    break
                newest = state if newest is None or state.number > newest.number else newest
                caught_up = state if state.caught_up else caught_up
            if caught_up is not None:
                return caught_up
        return newest

    def _states(self, at: int, until: int | None = None) -> Iterator[BackupState]:
        """Yield the states from a catalog (-1: the start) to the next one, or to round `until`."""
        places = self.manifest.catalogs
        spans = places[at + 1].rounds if at + 1 < len(places) else self.manifest.rounds
        numbers = (number for number in numbers_in(spans) if until is None or number <= until)
        return backup_reader.states(self.objects, places[at] if at >= 0 else None, numbers)
