"""Objects that no manifest counts: the next writer finds them, and deletes nothing that counts or may come to count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore.copies.backups.backup_source import StoreSource
from kstore.copies.backups.backup_writer import BackupWriter
from kstore.errors import BackupFencedError
from kstore.files import names
from kstore.objects import backup_manifest, object_keys
from kstore.objects.backup_manifest import Intent
from kstore.objects.object_store import ObjectInfo, Objects
from kstore.objects.open_objects import open_objects
from tests.conftest import ManualClock
from tests.copies.test_backup import assert_files_are_those_of, catch_up, newest
from tests.support.backedup import SETTINGS
from tests.support.faultyobjects import FaultyObjects, MemoryObjects

pytestmark = pytest.mark.usefixtures("no_syncs")

DAY_MS = 86_400_000
WINDOW_MS = 3 * DAY_MS
LEFT = f"t-0/{names.log_name(777)}"
ANNOUNCED = f"t-0/{names.log_name(888)}"


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as found:
        found.create_topic("t")
        yield found


@pytest.fixture
def writer(store: kstore.Store, clock: ManualClock) -> Iterator[Callable[[Objects], BackupWriter]]:
    made: list[BackupWriter] = []

    def make(objects: Objects) -> BackupWriter:
        made.append(BackupWriter(StoreSource(store), objects, window_ms=WINDOW_MS, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


def append(store: kstore.Store, count: int = 30) -> None:
    for _ in range(count):
        store.append("t", b"v" * 200)


def days_pass(store: kstore.Store, clock: ManualClock, backup: BackupWriter, days: int) -> None:
    for _ in range(days):
        clock.advance(DAY_MS)
        store.append("t", b"of a day")
        catch_up(backup)


def test_what_no_manifest_counts_goes_after_the_window_and_all_else_stays(
    store: kstore.Store, clock: ManualClock, writer: Callable[[Objects], BackupWriter]
) -> None:
    objects = MemoryObjects()
    append(store)
    first = writer(objects)
    catch_up(first)
    left = [LEFT, LEFT + ".1-9", f"t-0/{names.file_name(777, '.index')}", "gone-3/partition.metadata"]
    for key in left:
        objects.put_new(key, b"left")
    strangers = [
        "notes.txt",
        "t-0/notes.txt",
        "other/deep/x",
        object_keys.round_key(10**6),
        object_keys.catalog_key(10**6),
        ANNOUNCED,
    ]
    for key in strangers:
        objects.put_new(key, b"of another")
    found = backup_manifest.read_manifest(objects)
    assert found is not None
    announced = replace(found[0], revision=99, intents=(Intent(ANNOUNCED, 10, 10),))
    objects.replace(object_keys.MANIFEST, announced.encode(), found[1])
    clock.advance(DAY_MS)
    second = writer(objects)
    catch_up(second)
    assert second._is_taken(LEFT)
    assert set(left) <= set(objects.contents)  # for the window
    third = writer(objects)
    assert third._is_taken(LEFT)  # by what the second has written
    days_pass(store, clock, third, 5)
    assert not set(left) & set(objects.contents)
    assert set(strangers) <= set(objects.contents)
    assert_files_are_those_of(newest(objects), objects, Path(store.paths[0]))


def test_rounds_and_catalogs_of_writers_that_died_go_too(
    store: kstore.Store, clock: ManualClock, writer: Callable[[Objects], BackupWriter]
) -> None:
    objects = MemoryObjects()
    first = writer(objects)
    catch_up(first)
    number = first.manifest.number
    for lost in (number + 1, number + 2):  # written, and never counted
        objects.put_new(object_keys.round_key(lost), b"lost")
    objects.put_new(object_keys.catalog_key(number + 2), b"lost")
    append(store)
    second = writer(objects)
    days_pass(store, clock, second, 6)
    assert second.manifest.number > number + 2
    assert not {
        object_keys.round_key(number + 1),
        object_keys.round_key(number + 2),
        object_keys.catalog_key(number + 2),
    } & set(objects.contents)
    assert newest(objects) == second.state


def test_a_writer_that_is_fenced_while_it_looks_drops_nothing(
    store: kstore.Store, clock: ManualClock, writer: Callable[[Objects], BackupWriter]
) -> None:
    """What it takes for left over may be what the newer writer is sending."""
    objects = MemoryObjects()
    catch_up(writer(objects))
    append(store)
    newer: list[BackupWriter] = []

    class Listing(FaultyObjects):
        def list(self) -> Iterator[ObjectInfo]:
            if not newer:
                newer.append(writer(objects))
                newer[0].round()  # its segments are sent, and not yet counted
                newer[0].wait(60)
            yield from super().list()

    clock.advance(DAY_MS)
    old = writer(Listing(objects))
    with pytest.raises(BackupFencedError):
        catch_up(old)
    catch_up(newer[0])
    assert not [key for each in newer[0].state.dropped for key in each.keys]
    days_pass(store, clock, newer[0], 5)
    assert_files_are_those_of(newest(objects), objects, Path(store.paths[0]))


def test_files_of_a_killed_writer_are_removed_and_those_of_a_living_one_are_not(
    store: kstore.Store, clock: ManualClock, tmp_path: Path, writer: Callable[[Objects], BackupWriter]
) -> None:
    objects = open_objects(str(tmp_path / "backup"), create=True)
    left = tmp_path / "backup" / f"{LEFT}.0123456789abcdef.part"
    left.parent.mkdir()
    left.write_bytes(b"half")  # a process that is gone holds no lock
    begun, may_end = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield b"half"
        begun.set()
        assert may_end.wait(60)
        yield b", whole"

    sending = threading.Thread(target=lambda: objects.put_parts(f"{LEFT}.7-1", parts()))
    sending.start()
    assert begun.wait(60)
    append(store)
    catch_up(writer(objects))
    assert not left.exists()
    may_end.set()
    sending.join()
    assert (tmp_path / "backup" / f"{LEFT}.7-1").read_bytes() == b"half, whole"
