"""A backup whose requests fail, are lost and come late: after each one the manifest leads to a whole state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import kstore
from kstore.copies.backups import backup_writer, round_changes, segment_uploads, source_partition
from kstore.copies.backups.backup_source import StoreSource
from kstore.copies.backups.backup_writer import BackupWriter
from kstore.errors import BackupError, BackupFencedError
from kstore.files import names
from kstore.objects import backup_manifest
from tests.conftest import ManualClock
from tests.copies.test_backup import assert_files_are_those_of, assert_has_it_all, catch_up, files_of, newest
from tests.support.backedup import SETTINGS, World
from tests.support.faultyobjects import FaultyObjects, MemoryObjects
from tests.support.objectserver import Fault, Request

pytestmark = pytest.mark.usefixtures("no_syncs")
KINDS = ("refused", "lost", "late", "half")


def test_a_backup_that_fails_anywhere_can_be_restored_and_goes_on(
    tmp_path: Path,
    rng: random.Random,
    clock: ManualClock,
    budget: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_uploads, "PART_BYTES", 900)  # some segments go in parts, some whole
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", rng.choice((300, 900)))
    monkeypatch.setattr(backup_writer, "ROUNDS_PER_CATALOG", 7)
    monkeypatch.setattr(backup_writer, "SWEEP_PAUSE_MS", rng.choice((1, 30_000)))
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
        if backup_manifest.read_manifest(inner) is not None:
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


FIRST_LOG = f"t-0/{names.log_name(0)}"


def seal(store: kstore.Store, value: bytes) -> None:
    """Write the log anew, with this value in a sealed segment."""
    log = store.log("t", 0)
    log.truncate_fully_and_start_at(0)
    log.append(value)
    log.roll()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[kstore.Store]:
    monkeypatch.setattr(segment_uploads, "PART_BYTES", 900)
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as found:
        found.create_topic("t")
        yield found


@pytest.mark.parametrize("again", [False, True], ids=["the same writer", "the next writer"])
@pytest.mark.parametrize("size", [1, 1000], ids=["a small file", "a file in parts"])
def test_parts_that_come_late_do_not_replace_what_took_their_place(
    store: kstore.Store, clock: ManualClock, again: bool, size: int
) -> None:
    """The name is announced for other bytes: whatever comes after them gets another one."""
    inner = MemoryObjects()
    late = [FIRST_LOG]

    def plan(request: Request) -> Fault | None:
        is_it = request.kind == "put" and request.key in late
        return Fault("late") if is_it and late.pop() else None

    objects = FaultyObjects(inner, plan)
    seal(store, b"a" * 1000)
    backup = BackupWriter(StoreSource(store), objects, clock=clock)
    with pytest.raises(BackupError, match="late"):
        catch_up(backup)
    seal(store, b"c" * size)
    if again:
        backup.close()
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
    catch_up(backup)
    assert objects.release() == 1
    assert_files_are_those_of(newest(inner), inner, Path(store.paths[0]))
    backup.close()


def test_a_segment_written_anew_is_not_sent_while_the_one_before_it_is(
    store: kstore.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would have the same name."""
    begun, may_end = threading.Event(), threading.Event()
    checksum = source_partition.checksum

    def slow_checksum(path: str, size: int) -> int:
        crc = checksum(path, size)
        if not begun.is_set():
            begun.set()
            assert may_end.wait(60)
        return crc

    monkeypatch.setattr(source_partition, "checksum", slow_checksum)
    objects = MemoryObjects()
    seal(store, b"a" * 1000)
    backup = BackupWriter(StoreSource(store), objects, clock=clock)
    assert not backup.round()
    assert begun.wait(60)
    seal(store, b"c")
    for _ in range(5):
        assert not backup.round()
        backup.wait(0.02)
    assert FIRST_LOG not in objects.contents
    may_end.set()
    catch_up(backup)
    assert_files_are_those_of(newest(objects), objects, Path(store.paths[0]))
    backup.close()


def test_a_log_that_was_emptied_and_begins_in_the_middle_of_what_it_was_ends_there(
    store: kstore.Store, clock: ManualClock
) -> None:
    objects = MemoryObjects()
    log = store.log("t", 0)
    for _ in range(9):
        log.append(b"x")
    backup = BackupWriter(StoreSource(store), objects, clock=clock)
    catch_up(backup)
    log.truncate_fully_and_start_at(6)
    catch_up(backup)
    partition = newest(objects).partitions["t", 0]
    assert (partition.log_start_offset, partition.end_offset) == (6, 6)
    backup.close()


def test_a_snapshot_of_a_log_that_was_written_anew_is_not_the_old_one(store: kstore.Store, clock: ManualClock) -> None:
    """The base offset and the segments before it may be the same, and so may the length."""
    objects = MemoryObjects()
    backup = BackupWriter(StoreSource(store), objects, clock=clock)
    for producer_id in (7, 8):
        log = store.log("t", 0)
        log.truncate_fully_and_start_at(5)
        log.append_many([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.roll()
        log.delete_records(6)
        log.run_housekeeping()
        catch_up(backup)
        assert_files_are_those_of(newest(objects), objects, Path(store.paths[0]))
        assert newest(objects).partitions["t", 0].snapshot is not None
    store.log("t", 0).truncate_fully_and_start_at(6)  # without producers there is no snapshot
    catch_up(backup)
    assert newest(objects).partitions["t", 0].snapshot is None
    backup.close()


@pytest.mark.parametrize("again", [False, True], ids=["the same writer", "the next writer"])
def test_a_snapshot_is_not_sent_again_while_segments_come(store: kstore.Store, clock: ManualClock, again: bool) -> None:
    """A restore of a round without it would not know the producers."""
    inner = MemoryObjects()
    refused = [f"t-0/{names.log_name(base)}" for base in (0, 1)]
    objects = FaultyObjects(inner, lambda request: Fault("refused") if request.key in refused else None)
    log = store.log("t", 0)
    for sequence in range(3):
        log.append_many([b"x"], producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.roll()
    backup = BackupWriter(StoreSource(store), objects, clock=clock)
    for _ in range(3):
        for _ in range(6):  # until what can be sent has been, and nothing but the segments is asked for
            with suppress(BackupError):
                backup.round()
            backup.wait(0.01)
        assert newest(inner).partitions["t", 0].snapshot is not None
        del refused[:1]
        if again:
            backup.close()
            backup = BackupWriter(StoreSource(store), objects, clock=clock)
    catch_up(backup)
    assert newest(inner).partitions["t", 0].snapshot is not None
    assert not [key for each in newest(inner).dropped for key in each.keys]
    backup.close()
