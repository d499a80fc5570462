"""A backup whose requests fail, are lost and come late: after each one the manifest leads to a whole state."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from backedup import World
from conftest import ManualClock
from faultyobjects import FaultyObjects, MemoryObjects
from objectserver import Fault, Request
from test_backup import assert_has_it_all, catch_up, files_of, newest

from kstore.copies.backups import manifest
from kstore.copies.backups.sending import changes, uploads, writer
from kstore.copies.backups.sending.sources import StoreSource
from kstore.copies.backups.sending.writer import BackupWriter
from kstore.errors import BackupError, BackupFencedError

pytestmark = pytest.mark.usefixtures("no_syncs")
KINDS = ("refused", "lost", "late", "half")


def test_a_backup_that_fails_anywhere_can_be_restored_and_goes_on(
    tmp_path: Path,
    rng: random.Random,
    clock: ManualClock,
    budget: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 900)  # some segments go in parts, some whole
    monkeypatch.setattr(changes, "BESIDE_BYTES", rng.choice((300, 900)))
    monkeypatch.setattr(writer, "ROUNDS_PER_CATALOG", 7)
    monkeypatch.setattr(writer, "SWEEP_PAUSE_MS", rng.choice((1, 30_000)))
    world = World(tmp_path / "data", rng, clock)
    inner = MemoryObjects()
    chance = 0.1
    answered = FaultyObjects(inner, lambda request: Fault(rng.choice(KINDS)) if rng.random() < chance else None)
    backup: BackupWriter | None = None
    ends = time.monotonic() + budget(5)
    while time.monotonic() < ends:
        for _ in range(rng.choice((1, 5))):
            world.step()
        with suppress(BackupError):
            if backup is None or rng.random() < 0.05:
                if backup is not None:
                    backup.close()
                backup = None
                backup = BackupWriter(StoreSource(world.store), answered, window_ms=100_000, clock=clock)
            for _ in range(rng.choice((1, 3))):
                backup.round()
                backup.wait(0.01)
        if rng.random() < 0.2:
            answered.release()
        if manifest.read_manifest(inner) is not None:
            files_of(newest(inner), inner)  # each object is there, whole, and the chunks follow one another
        if rng.random() < 0.1 and backup is not None:
            chance = 0.0
            with suppress(BackupError):
                for _ in range(3):  # what waits may have failed, too
                    with suppress(BackupError):
                        backup.round()
                catch_up(backup)
                assert_has_it_all(newest(inner), inner, world)
            chance = 0.1
    if backup is not None:
        backup.close()
    world.close()


def test_of_two_writers_in_turns_the_newer_one_counts(
    tmp_path: Path, rng: random.Random, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", rng, clock)
    objects = MemoryObjects()
    writers: list[BackupWriter] = []
    for _ in range(60):
        world.step()
        if not writers or rng.random() < 0.2:
            writers.append(BackupWriter(StoreSource(world.store), objects, clock=clock))
        for each in writers[-2:]:
            try:
                each.round()
            except BackupFencedError:
                assert each is not writers[-1]
        files_of(newest(objects), objects)
    catch_up(writers[-1])
    assert_has_it_all(newest(objects), objects, world)
    for each in writers:
        each.close()
    world.close()


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("at", range(12))
def test_a_failure_of_any_one_request_is_got_over(
    tmp_path: Path, rng: random.Random, clock: ManualClock, at: int, kind: str
) -> None:
    world = World(tmp_path / "data", rng, clock)
    for _ in range(15):
        world.append()
    inner = MemoryObjects()

    def plan(request: Request) -> Fault | None:
        return Fault(kind) if request.number == at else None

    objects = FaultyObjects(inner, plan)
    with suppress(BackupError):
        BackupWriter(StoreSource(world.store), objects, clock=clock).round()
    try:
        backup = BackupWriter(StoreSource(world.store), objects, clock=clock)
    except BackupError:
        backup = BackupWriter(StoreSource(world.store), objects, clock=clock)
    for _ in range(3):
        with suppress(BackupError):
            backup.round()
    catch_up(backup)
    objects.release()
    assert_has_it_all(newest(inner), inner, world)
    backup.close()
    world.close()
