"""The store that backups are tested with: every change of it can be read from a copy of its directory."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kstore.errors import BackupError
from tests.conftest import ManualClock
from tests.support.backedup import World, picture, picture_of
from tests.support.faultyobjects import FaultyObjects, MemoryObjects
from tests.support.objectserver import Fault


@pytest.mark.usefixtures("no_syncs")
def test_a_copy_of_the_directory_has_what_the_picture_of_the_store_says(
    tmp_path: Path, clock: ManualClock, rng: random.Random
) -> None:
    world = World(tmp_path / "data", rng, clock)
    for number in range(8):
        for _ in range(25):
            world.step()
        world.store.flush()
        copied = Path(shutil.copytree(tmp_path / "data", tmp_path / f"copy-{number}"))
        assert picture(world.store).unlike(picture_of(copied)) == []
    world.close()


@pytest.mark.parametrize(
    ("kind", "done", "released"), [("refused", 0, 0), ("lost", 2, 2), ("late", 0, 2), ("half", 1, 1)]
)
def test_objects_fail_before_after_or_in_the_middle_of_a_request(kind: str, done: int, released: int) -> None:
    inner = MemoryObjects()
    for key in ("one", "two"):
        assert inner.put_new(key, b"value")
    faulty = FaultyObjects(inner, lambda request: Fault(kind))
    with pytest.raises(BackupError, match=kind):
        faulty.delete(["one", "two"])
    assert len(inner.contents) == 2 - done
    faulty.release()
    assert len(inner.contents) == 2 - released
