"""A backup's life beside a random store, request by request: what was acknowledged, and whether a restore gives it.

`Life` changes a `World`, backs it up, and keeps a picture of each round that was acknowledged. At any moment the
objects must restore to the last of them, or to the round that was under way and not yet acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import kstore
from kstore.copies.backups.backup import Backup
from kstore.copies.backups.backup_source import StoreSource
from kstore.objects.backup_state import History
from kstore.objects.object_store import Objects
from tests.conftest import ManualClock
from tests.support.backedup import Partition, Picture, Place, World, picture, picture_of
from tests.support.faultyobjects import FaultyObjects, MemoryObjects

ROUNDS = 5
CHANGES_A_ROUND = 12
WINDOW_SECONDS = 100.0
NOTHING = Partition(0, 0, (), ())


def has_rounds(objects: Objects) -> bool:
    """Whether the manifest counts a round; without one there is nothing to restore."""
    found = objects.read("kstore-backup.json")
    return found is not None and json.loads(found.data)["number"] > 0


def check_restored(objects: Objects, target: Path, acknowledged: Sequence[Picture], begun: Sequence[Picture]) -> None:
    """Restore, and hold it against the last picture that was acknowledged and those of rounds begun since then.

    While a round has more to send than fits into it, the backup is in between: each partition has what was
    acknowledged, as far as it is still there, and nothing that the store never had.
    """
    is_whole = History.read(objects).newest().caught_up
    kstore.restore(objects, target)
    found = picture_of(target)
    shutil.rmtree(target)
    allowed = [*begun, *acknowledged]
    differences = [each.unlike(found) for each in allowed]
    if all(differences):
        assert not is_whole, differences
        for place, partition in found.partitions.items():
            _check_between(place, partition, acknowledged, begun)


def _check_between(place: Place, found: Partition, acknowledged: Sequence[Picture], begun: Sequence[Picture]) -> None:
    kept = {data for each in acknowledged for data in each.partitions.get(place, NOTHING).batches}
    for each in begun:
        kept &= set(each.partitions.get(place, NOTHING).batches)
    known = {data for each in (*acknowledged, *begun) for data in each.partitions.get(place, NOTHING).batches}
    ids = {each.topics.get(place[0]) for each in (*acknowledged, *begun)}
    assert len(ids) > 1 or kept <= set(found.batches), f"{place} lost {len(kept - set(found.batches))} batches"
    if not place[0].startswith("__"):  # a restore ends transactions and takes positions back
        strange = [data for data in found.batches if data not in known]
        assert all(batch.is_control for data in strange for batch in kstore.decode_batches(data)), place


class Life:
    """A store, its backup, and what must be restorable."""

    def __init__(self, home: Path, seed: str, objects: FaultyObjects, clock: ManualClock | None = None) -> None:
        self.home, self.objects = home, objects
        home.mkdir(exist_ok=True)
        self.clock = ManualClock() if clock is None else clock
        self.world = World(home / "data", random.Random(seed), self.clock)
        self.acknowledged: list[tuple[int, Picture]] = []  # each with the time of its last round
        self.under_way: list[Picture] = []  # of the rounds since then that were begun
        self.looks = 0
        self._looking = threading.Lock()
        self.backup: Backup | None = None

    def change(self, steps: int = CHANGES_A_ROUND) -> None:
        """Change the store at random."""
        for _ in range(steps):
            self.world.step()

    def round(self) -> None:
        """Back up what there is now; raises what the round raises."""
        self.under_way.append(self.picture())
        if self.backup is None:
            self.backup = self.begin()
        self.backup.flush()
        assert self.backup.stats()["caught_up"]
        self.acknowledged.append((self.backup._writer.manifest.time_ms, self.picture()))
        self.under_way.clear()

    def picture(self) -> Picture:
        """What the store has now."""
        return picture(self.world.store)

    def begin(self) -> Backup:
        """Take the backup over; its rounds are made by `round` alone, by the world's clock."""
        source = StoreSource(self.world.store)
        return Backup(
            source, self.objects, every=1, window=WINDOW_SECONDS, options=None, clock=self.clock, background=False
        )

    def look(self, objects: Objects | None = None) -> None:
        """Restore what the objects are now, and hold it against what was acknowledged."""
        with self._looking:  # uploads are threads of their own
            self._look(objects)

    def _look(self, objects: Objects | None) -> None:
        self.looks += 1
        if objects is None:
            inner = self.objects.inner
            objects = inner.copy() if isinstance(inner, MemoryObjects) else inner
        target = self.home / "restored"
        if not self.acknowledged and not has_rounds(objects):
            return
        check_restored(objects, target, [taken for _, taken in self.acknowledged[-1:]], self.under_way)

    def close(self) -> None:
        if self.backup is not None:
            self.backup.close()
        self.world.close()

    def abandon(self) -> None:
        """End the backup of a writer that another one has fenced; it may begin anew."""
        self.under_way.clear()
        if self.backup is not None:
            with contextlib.suppress(kstore.BackupError):
                self.backup.close()
        self.backup = None
