"""Backups of a store that changes in every way: what a round has is what the source had, byte for byte."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.base import threads
from kstore.copies.backups import backup_writer, round_changes, source_partition
from kstore.copies.backups.backup import Backup, back_up_directory
from kstore.copies.backups.backup_source import DirectorySource, StoreSource
from kstore.copies.backups.backup_writer import BackupWriter
from kstore.disk import fs
from kstore.errors import BackupError, BackupFencedError
from kstore.files import names
from kstore.objects import backup_manifest, backup_reader, backup_rounds, object_keys
from kstore.objects.backup_contents import BackupState
from kstore.objects.object_store import Objects
from tests.conftest import ManualClock
from tests.support.backedup import SETTINGS, World, no_sync, picture, picture_of
from tests.support.faultfs import LOST, NAMES_LOST, FaultFS, Plan
from tests.support.faultyobjects import FaultyObjects, MemoryObjects
from tests.support.objectserver import Fault

pytestmark = pytest.mark.usefixtures("no_syncs")
Budget = Callable[[float], float]
DAY_MS = 86_400_000


@pytest.fixture
def world(tmp_path: Path, rng: random.Random, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", rng.choice((100, 600, round_changes.BESIDE_BYTES)))
    made = World(tmp_path / "data", rng, clock)
    yield made
    made.close()


def a_writer(world: World, objects: Objects, *, window_ms: int = DAY_MS) -> BackupWriter:
    return BackupWriter(StoreSource(world.store), objects, window_ms=window_ms, clock=world.clock)


def a_writer_of(store: kstore.Store, objects: Objects, clock: ManualClock) -> BackupWriter:
    return BackupWriter(StoreSource(store), objects, window_ms=DAY_MS, clock=clock)


def catch_up(backup: BackupWriter) -> None:
    for _ in range(1000):
        if backup.round():
            return
        backup.wait(1.0)
    pytest.fail(f"not caught up: {backup.lag} {backup.unknown}")


def rounds_for(seconds: float, *, at_most: int = 10_000) -> Iterator[int]:
    """Numbers from 0, until so many seconds are over; one at least."""
    ends = time.monotonic() + seconds
    for number in range(at_most):
        yield number
        if time.monotonic() > ends:
            return


def newest(objects: Objects) -> BackupState:
    found = backup_manifest.read_manifest(objects)
    assert found is not None
    return backup_reader.read_newest(objects, found[0])


def files_of(state: BackupState, objects: Objects) -> dict[str, bytes]:
    """Every file that a restore would make of the segments and tails, by `partition/name`."""
    found: dict[str, bytes] = {}
    for (topic, number), partition in state.partitions.items():
        directory = names.partition_name(topic, number)
        stored = [(segment.base_offset, file) for segment in partition.segments for file in segment.files]
        for base, file in [*stored, *([partition.snapshot] if partition.snapshot else [])]:
            content = objects.read(partition.object_of(base, file))
            assert content is not None
            assert len(content.data) == file.length
            found[f"{directory}/{names.file_name(base, file.kind)}"] = content.data
        for chunk in partition.tail:
            name = f"{directory}/{names.log_name(chunk.base_offset)}"
            data = objects.read_range(partition.object_of_chunk(chunk), chunk.at, chunk.length)
            assert len(found.get(name, b"")) == chunk.position
            found[name] = found.get(name, b"") + data
    return found


def logs_in(root: Path) -> dict[str, bytes]:
    logs = [path for path in root.glob("*/*.log") if not path.parent.name.endswith("-delete")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in logs}


def assert_has_it_all(state: BackupState, objects: Objects, world: World) -> None:
    """Whether the `.log` files of a state are those of the store, and its other files are the store's."""
    assert_files_are_those_of(state, objects, world.root)


def assert_files_are_those_of(state: BackupState, objects: Objects, root: Path) -> None:
    found = files_of(state, objects)
    logs = {name: data for name, data in found.items() if name.endswith(".log") and data}
    assert logs == {name: data for name, data in logs_in(root).items() if data}
    for name, data in found.items():
        if not name.endswith(".log"):
            assert (root / name).read_bytes() == data, name


def test_every_change_of_a_store_is_followed_byte_for_byte(world: World, budget: Budget) -> None:
    objects = MemoryObjects()
    backup = a_writer(world, objects)
    for number in rounds_for(budget(4)):
        for _ in range(world.rng.choice((1, 3, 15))):
            world.step()
        catch_up(backup)
        assert_has_it_all(backup.state, objects, world)
        if number % 10 == 0:
            assert newest(objects) == backup.state
        if number % 17 == 0:
            backup.close()
            backup = a_writer(world, objects)
    assert newest(objects) == backup.state
    backup.close()


def test_what_is_restored_is_what_was_backed_up_at_any_time(world: World, tmp_path: Path, budget: Budget) -> None:
    url = str(tmp_path / "backup")
    expected = []
    with Backup(StoreSource(world.store), url, every=60, window=1e6, options=None, clock=world.clock) as backup:
        for _ in rounds_for(budget(1), at_most=8):
            for _ in range(12):
                world.step()
            world.clock.advance(5)
            backup.flush()
            expected.append((backup._writer.state.time_ms, picture(world.store)))
            world.clock.advance(5)
    for number, (time_ms, was) in enumerate(expected):
        root = tmp_path / f"restored-{number}"
        kstore.restore(url, root, until=time_ms)
        # Transactions that were open have been ended since, as after a crash.
        for difference in was.unlike(picture_of(root)):
            assert "__" in difference or "plain" in difference or "positions" in difference, difference


def test_a_directory_of_another_process_is_backed_up_as_it_is(world: World, tmp_path: Path, budget: Budget) -> None:
    objects = MemoryObjects()
    backup = BackupWriter(DirectorySource(world.root), objects, window_ms=DAY_MS, clock=world.clock)
    for _ in rounds_for(budget(2)):
        for _ in range(10):
            world.step()
        if world.rng.random() < 0.5:
            world.store.flush()
            world.clock.advance(100_000)  # the checkpoints are written
            world.store.run_housekeeping()
        for _ in range(50):
            if backup.round():
                break
            backup.wait(1.0)
        else:
            pytest.fail(f"not caught up: {backup.lag} {backup.unknown}")
        assert all(lag["lag_records"] == 0 for lag in backup.lag.values())
        found = files_of(newest(objects), objects)
        here = logs_in(world.root)
        for name, data in found.items():
            if name.endswith(".log") and name in here:
                assert here[name].startswith(data), name
    world.close()
    catch_up(backup)
    assert_has_it_all(newest(objects), objects, world)
    backup.close()


@pytest.mark.parametrize("plan", [LOST, NAMES_LOST])
def test_what_a_look_at_another_process_has_seen_no_crash_of_the_machine_cuts(
    tmp_path: Path, clock: ManualClock, rng: random.Random, plan: Plan
) -> None:
    images, root, looked = tmp_path / "images", tmp_path / "data", 0
    for path in (images, root):
        path.mkdir()
    with (
        FaultFS(root) as disk,
        kstore.Store.open(root, clock=clock, background=False, **SETTINGS) as store,
    ):
        store.create_topic("t", 2)
        source = DirectorySource(root)
        for number in range(60):
            partition = rng.randrange(2)
            store.append("t", b"%d" % number * rng.randrange(1, 60), partition=partition)
            if rng.random() < 0.2:
                store.log("t", partition).roll()
            if number == 30:
                store.create_topic("later", 1)
                store.append("later", b"value")
            if rng.random() < 0.3:
                look = source.look()
                assert all(each.end_offset == store.log(*each.key).log_end_offset for each in look.partitions)
                image = disk.crash_image(images / f"{number}", disk.step, plan)
                with kstore.Store.open(image, "r") as after:
                    for each in look.partitions:
                        kept = [record.value for record in after.log(*each.key).read()]
                        assert len(kept) >= each.end_offset
                        assert kept == [record.value for record in store.log(*each.key).read()][: len(kept)]
                looked += 1
    assert looked


def test_a_segment_is_sealed_for_a_backup_once_the_one_behind_it_has_a_batch(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A process that has made the new segment's file may still be writing the indexes of the old one."""
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 1)
        for _ in range(3):
            store.append("t", b"value")
        backup = BackupWriter(DirectorySource(tmp_path / "data"), objects, clock=clock)
        catch_up(backup)
        store.log("t", 0).roll()
        catch_up(backup)
        [partition] = backup.state.partitions.values()
        assert (partition.segments, partition.end_offset) == ((), 3)
        store.append("t", b"value")
        catch_up(backup)
        [partition] = backup.state.partitions.values()
        assert ([segment.end_offset for segment in partition.segments], partition.end_offset) == ([3], 4)
        backup.close()


def test_where_files_cannot_be_synced_nothing_above_the_recovery_point_leaves(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as store:
        store.create_topic("t", 1)
        store.append("t", b"one")
        store.flush()
        clock.advance(100_000)
        store.run_housekeeping()
        store.append("t", b"two")
        with monkeypatch.context() as patch:
            patch.setattr(source_partition, "sync", no_sync)
            backup = BackupWriter(DirectorySource(tmp_path / "data"), objects, clock=clock)
            catch_up(backup)
            assert backup.state.partitions["t", 0].end_offset == 1
        catch_up(backup)
        assert backup.state.partitions["t", 0].end_offset == 2
        backup.close()


def test_a_round_without_changes_makes_no_request(world: World) -> None:
    objects = MemoryObjects()
    backup = a_writer(world, objects)
    catch_up(backup)
    before = objects.requests.copy()
    for _ in range(5):
        world.clock.advance(1000)
        assert backup.round()
    assert objects.requests == before
    backup.close()


def test_a_round_of_many_partitions_is_two_requests(tmp_path: Path, clock: ManualClock) -> None:
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 50)
        for number in range(50):
            store.append("t", b"value", partition=number)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        catch_up(backup)
        for number in range(50):
            store.append("t", b"value", partition=number)
        before = objects.requests["put"]
        assert backup.round()
        assert objects.requests["put"] - before == 2
        backup.close()


def test_many_small_chunks_become_few(tmp_path: Path, clock: ManualClock) -> None:
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 1)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        sizes, most = 0, 0
        for number in range(600):
            store.append("t", b"%d" % number * 20)
            clock.advance(1000)
            catch_up(backup)
            most = max(most, len(backup.state.partitions["t", 0].tail))
        tail = backup.state.partitions["t", 0].tail
        sizes = tail[-1].end_position
        assert most <= 40
        sent = sum(len(each.data) for key, each in objects.contents.items() if key.endswith(object_keys.ROUND))
        assert sent < 6 * sizes + 600 * 800  # headers of rounds
        assert (
            b"".join(files_of(backup.state, objects).values())
            == (tmp_path / "data/t-0" / names.log_name(0)).read_bytes()
        )
        assert len(backup.manifest.catalogs) == 1
        backup.close()


def test_segments_go_under_kafkas_names_once(tmp_path: Path, clock: ManualClock) -> None:
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as store:
        store.create_topic("t", 1)
        with store.producer() as producer:
            for _ in range(30):
                producer.append("t", b"v" * 200)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        catch_up(backup)
        segments = sorted((tmp_path / "data/t-0").glob("*.log"))[:-1]
        assert len(segments) > 3
        for path in segments:
            for kind in (".log", ".index", ".timeindex"):
                name = f"t-0/{path.stem}{kind}"
                assert objects.contents[name].data == path.with_suffix(kind).read_bytes()
        assert (
            objects.contents["t-0/partition.metadata"].data == (tmp_path / "data/t-0/partition.metadata").read_bytes()
        )
        before = {key: value for key, value in objects.contents.items() if key.startswith("t-0/")}
        store.append("t", b"more")
        catch_up(backup)
        assert {key: value for key, value in objects.contents.items() if key.startswith("t-0/")} == before
        backup.close()


@pytest.mark.parametrize(("before", "is_sent_twice"), [(1, False), (4, False), (5, True), (8, True)])
def test_a_sealed_segment_of_which_most_is_new_goes_once(
    before: int, is_sent_twice: bool, tmp_path: Path, clock: ManualClock
) -> None:
    """Of nine batches. A round is there for what a segment's upload would keep waiting, and that is less by then."""
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, index_interval_bytes=1) as store:
        store.create_topic("t", 1)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        for _ in range(before):
            store.append("t", b"v" * 200)
        catch_up(backup)
        for _ in range(9 - before):
            store.append("t", b"v" * 200)
        store.log("t", 0).roll()
        store.append("t", b"active")
        catch_up(backup)
        size = (tmp_path / "data/t-0" / names.log_name(0)).stat().st_size
        state = backup.state.partitions["t", 0]
        assert [segment.file(names.LOG).length for segment in state.segments] == [size]
        assert state.end_offset == 10
        in_rounds = {key: each.data for key, each in objects.contents.items() if key.endswith(object_keys.ROUND)}
        sent = sum(len(data) - backup_rounds.header_bytes(data, key) for key, data in in_rounds.items())
        active = (tmp_path / "data/t-0" / names.log_name(9)).stat().st_size
        assert sent == (size if is_sent_twice else size * before // 9) + active
        backup.close()


def test_much_of_an_active_segment_is_sent_while_the_segments_before_it_are(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", 400)
    objects = MemoryObjects()
    put_new, put_parts, is_sent_beside = objects.put_new, objects.put_parts, threading.Event()

    def beside(key: str, parts: Iterable[bytes]) -> None:
        put_parts(key, parts)
        is_sent_beside.set()

    def sealed_last(key: str, data: bytes) -> bool:
        if key.endswith(".log"):
            assert is_sent_beside.wait(60)
        return put_new(key, data)

    monkeypatch.setattr(objects, "put_new", sealed_last)
    monkeypatch.setattr(objects, "put_parts", beside)
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as store:
        store.create_topic("t", 1)
        for _ in range(18):
            store.append("t", b"v" * 200)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        assert not backup.round()
        store.append("t", b"more")
        catch_up(backup)
        [large, *small] = backup.state.partitions["t", 0].tail
        name = f"t-0/{names.log_name(large.base_offset)}"
        log = (tmp_path / "data" / name).read_bytes()
        assert objects.contents[f"{name}.{large.suffix}"].data == log[: large.length]
        assert [(chunk.position, chunk.suffix) for chunk in small] == [(large.length, "")]
        assert newest(objects) == backup.state
        found = files_of(backup.state, objects)
        assert {n: data for n, data in found.items() if n.endswith(".log")} == logs_in(tmp_path / "data")
        backup.close()


def test_an_active_segment_that_is_cut_while_it_is_sent_is_sent_as_it_is_then(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", 400)
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 1)
        for number in range(10):
            store.append("t", b"%d" % number * 100)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        assert not backup.round()
        while not any(key.endswith(".1-1") for key in list(objects.contents)):
            backup.wait(1.0)
        store.log("t", 0).truncate_to(4)
        store.append("t", b"another")
        catch_up(backup)
        assert backup.state.partitions["t", 0].end_offset == 5
        assert {chunk.suffix for chunk in backup.state.partitions["t", 0].tail} == {""}
        assert [*files_of(backup.state, objects).values()] == [*logs_in(tmp_path / "data").values()]
        backup.close()


def test_a_damaged_batch_of_an_active_segment_stops_that_partition_alone(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", 400)
    objects = MemoryObjects()
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 2)
        for number in range(20):
            store.append("t", b"v" * 100, partition=number % 2)
    path = tmp_path / "data/t-0" / names.log_name(0)
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    backup = BackupWriter(DirectorySource(tmp_path / "data"), objects, clock=clock)
    for _ in range(1000):
        backup.round()
        if backup.unknown and backup.state.partitions["t", 1].end_offset == 10:
            break
        backup.wait(1.0)
    assert "is not backed up" in backup.unknown["t-0"]
    assert [backup.state.partitions["t", number].end_offset for number in range(2)] == [0, 10]
    backup.close()


def test_a_segment_of_many_parts_is_announced_before_it_is_sent(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kstore.copies.backups import segment_uploads

    monkeypatch.setattr(segment_uploads, "PART_BYTES", 500)
    objects = MemoryObjects()
    announced: list[bool] = []
    put_parts = objects.put_parts

    def checked(key: str, parts: object) -> None:
        if object_keys.parse_file(key) is not None:
            found = backup_manifest.read_manifest(objects)
            assert found is not None
            announced.append(key in {intent.key for intent in found[0].intents})
        put_parts(key, parts)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "put_parts", checked)
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as store:
        store.create_topic("t", 1)
        for _ in range(30):
            store.append("t", b"v" * 200)
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        catch_up(backup)
        assert announced
        assert all(announced)
        store.append("t", b"more")
        catch_up(backup)
        assert backup.manifest.intents == ()
        backup.close()


@pytest.mark.parametrize("part_bytes", [500, 5000], ids=["in parts", "small"])
@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_an_announced_name_is_for_the_same_bytes_alone(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str, part_bytes: int
) -> None:
    from kstore.copies.backups import segment_uploads
    from kstore.objects.backup_manifest import Intent
    from kstore.objects.open_objects import open_objects

    monkeypatch.setattr(segment_uploads, "PART_BYTES", part_bytes)
    objects = MemoryObjects() if kind == "memory" else open_objects(str(tmp_path / "backup"), create=True)
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **SETTINGS) as store:
        store.create_topic("t", 1)
        for _ in range(30):
            store.append("t", b"v" * 200)
        first = BackupWriter(StoreSource(store), objects, clock=clock)
        first.round()
        name = f"t-0/{names.log_name(0)}"
        left = first.manifest
        first.close()
        from dataclasses import replace

        found = backup_manifest.read_manifest(objects)
        assert found is not None
        doubtful = replace(left, revision=left.revision + 5, intents=(Intent(name, 1400, 12345),))
        objects.replace(object_keys.MANIFEST, doubtful.encode(), found[1])
        second = BackupWriter(StoreSource(store), objects, clock=clock)
        catch_up(second)
        stored = second.state.partitions["t", 0].segments[0].file(".log")
        assert stored is not None
        assert stored.suffix.startswith("2-")
        assert Intent(name, 1400, 12345) in second.manifest.intents
        second.close()


def test_large_segments_and_stretches_go_to_a_directory_in_one_reading(
    world: World, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kstore.copies.backups import segment_uploads
    from kstore.objects.open_objects import open_objects

    monkeypatch.setattr(segment_uploads, "PART_BYTES", 500)
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", 300)
    objects = open_objects(str(tmp_path / "backup"), create=True)
    backup = a_writer(world, objects)
    stretches: set[str] = set()
    world.store.create_topic("stretched", 1)
    for number in range(12):
        for _ in range(10):
            world.step()
        world.store.append("stretched", b"v" * 400)
        catch_up(backup)
        assert backup.manifest.intents == ()
        assert_has_it_all(newest(objects), objects, world)
        stretches |= {chunk.suffix for each in backup.state.partitions.values() for chunk in each.tail if chunk.suffix}
        if number == 6:
            backup.close()
            backup = a_writer(world, objects)
    assert stretches
    backup.close()


@pytest.mark.parametrize("part_bytes", [100, 8 << 20])
def test_after_requests_that_failed_no_file_of_a_replaced_segment_is_sent_again(
    tmp_path: Path, clock: ManualClock, rng: random.Random, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    from kstore.copies.backups import segment_uploads

    monkeypatch.setattr(segment_uploads, "PART_BYTES", part_bytes)
    objects = MemoryObjects()
    faulty = FaultyObjects(objects, plan=lambda request: Fault("refused") if rng.random() < 0.4 else None)
    compacting = {"cleanup_policy": "compact", "index_interval_bytes": 1, "segment_bytes": 2000}
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **compacting) as store:
        store.create_topic("t", 1)
        for number in range(100):
            store.append("t", b"v" * 50, b"%d" % (number % 30))
        store.log("t", 0).roll()
        backup = a_writer_of(store, objects, clock)
        catch_up(backup)
        before = set(objects.contents)
        assert store.log("t", 0).compact().segments_after > 1
        backup._objects = backup._uploads._objects = faulty
        failures = 0
        while True:
            try:
                if backup.round():
                    break
            except BackupError:
                failures += 1
            backup.wait(1.0)
        assert failures > 3
        files = {key for key in objects.contents if object_keys.parse_file(key) is not None}
        assert files - before <= set(backup.state.partitions["t", 0].objects())
        backup._objects = backup._uploads._objects = objects
        store.append("t", b"more", b"key")
        catch_up(backup)
        assert backup.manifest.intents == ()
        backup.close()


def test_a_listing_amid_the_renames_of_a_compaction_misses_no_segment(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, rename, looks = MemoryObjects(), fs.rename, 0

    def is_in_one_piece() -> None:
        partition = backup.state.partitions["t", 0]
        ends = [0, *(segment.end_offset for segment in partition.segments)]
        assert [segment.base_offset for segment in partition.segments] == ends[:-1]
        assert partition.end_offset == 101
        assert ends[-1] in (100, 101) or partition.tail[0].base_offset == ends[-1]

    def rename_and_look(source: Path, target: Path) -> None:
        nonlocal looks
        rename(source, target)
        backup.round()
        backup.wait(1.0)
        backup.round()
        is_in_one_piece()
        looks += 1

    compacting = {"cleanup_policy": "compact", "index_interval_bytes": 1, "segment_bytes": 1000}
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, **compacting) as store:
        store.create_topic("t", 1)
        for number in range(100):
            store.append("t", b"v" * 50, b"%d" % (number % 30))
        store.log("t", 0).roll()
        store.append("t", b"v", b"active")
        backup = BackupWriter(DirectorySource(tmp_path / "data"), objects, clock=clock)
        catch_up(backup)
        is_in_one_piece()
        with monkeypatch.context() as patch:
            patch.setattr(fs, "rename", rename_and_look)
            before = store.log("t", 0).segments
            store.log("t", 0).compact()
        assert looks > len(before)
        catch_up(backup)
        is_in_one_piece()
        assert len(backup.state.partitions["t", 0].segments) < len(before)
        found = files_of(backup.state, objects)
        assert {name: data for name, data in found.items() if name.endswith(".log")} == logs_in(tmp_path / "data")
        backup.close()


def test_a_backup_that_lacks_a_logs_first_segments_has_them_after_the_next_rounds(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, bases = MemoryObjects(), DirectorySource.bases
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False, segment_bytes=300) as store:
        store.create_topic("t", 1)
        for _ in range(10):
            store.append("t", b"v" * 100)
        backup = BackupWriter(DirectorySource(tmp_path / "data"), objects, clock=clock)
        with monkeypatch.context() as patch:
            patch.setattr(DirectorySource, "bases", lambda source, look: bases(source, look)[2:])
            catch_up(backup)
        assert backup.state.partitions["t", 0].segments[0].base_offset > 0
        store.log("t", 0).roll()
        store.append("t", b"v" * 100)
        catch_up(backup)
        found = files_of(backup.state, objects)
        assert {name: data for name, data in found.items() if name.endswith(".log")} == logs_in(tmp_path / "data")
        backup.close()


def test_where_a_compaction_broke_off_amid_its_renames_the_backup_says_so(tmp_path: Path, clock: ManualClock) -> None:
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 1)
        store.append("t", b"value")
    directory = tmp_path / "data/t-0"
    (directory / (names.log_name(0) + names.SWAP)).touch()
    os.utime(directory, (1_700_000_000, 1_700_000_000))
    with pytest.raises(BackupError, match=r"t-0 is not backed up: .*a compaction broke off amid its renames"):
        back_up_directory(tmp_path / "data", f"memory://{tmp_path.name}", clock=clock)


def test_what_was_dropped_is_deleted_after_the_window_and_not_before(world: World) -> None:
    objects = MemoryObjects()
    backup = a_writer(world, objects, window_ms=DAY_MS)
    world.append()
    for _ in range(40):
        world.store.append("passing", b"v" * 100)
    catch_up(backup)
    old = [key for key in objects.contents if key.startswith("passing-0/")]
    assert len(old) > 8
    world.store.delete_topic("passing")
    world.store.create_topic("passing", 1)
    for _ in range(40):
        world.store.append("passing", b"w" * 100)
    catch_up(backup)
    assert all(key in objects.contents for key in old)
    named = [key for partition in newest(objects).partitions.values() for key in partition.objects()]
    again = {key for key in named if key.startswith("passing-0/")}  # a snapshot that was sent twice is named once
    assert any(key.startswith(f"passing-0/{names.log_name(0)}.1-") for key in again)
    world.clock.advance(DAY_MS - 1)
    backup.round()
    assert all(key in objects.contents for key in old if not object_keys.is_small_file(key))
    world.clock.advance(2 + DAY_MS // 10)
    backup.round()
    assert not any(key in objects.contents for key in old if not object_keys.is_small_file(key))
    assert again <= set(objects.contents)
    assert_has_it_all(newest(objects), objects, world)
    backup.close()


def test_after_long_only_what_is_needed_is_left(world: World, monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    monkeypatch.setattr(backup_writer, "ROUNDS_PER_CATALOG", 5)
    monkeypatch.setattr(backup_writer, "SWEEP_PAUSE_MS", 1000)
    objects = MemoryObjects()
    backup = a_writer(world, objects, window_ms=1000)
    for number in range(80):
        for _ in range(5):
            world.step()
        catch_up(backup)
        assert_has_it_all(newest(objects), objects, world)
        if number % 23 == 22:
            backup.close()
            backup = a_writer(world, objects, window_ms=1000)
    for _ in range(30):
        world.append()
        world.clock.advance(2000)
        catch_up(backup)
    state = newest(objects)
    needed = {key for partition in state.partitions.values() for key in partition.objects()}
    needed |= {each.object_of_chunk(chunk) for each in state.partitions.values() for chunk in each.tail}
    kept = {key for each in state.dropped for key in each.objects()}
    kept |= {object_keys.MANIFEST, *(object_keys.catalog_key(each.number) for each in backup.manifest.catalogs)}
    for spans in (backup.manifest.rounds, *(each.rounds for each in backup.manifest.catalogs)):
        kept |= {object_keys.round_key(number) for span in spans for number in range(span.first, span.last + 1)}
    left = {key for key in objects.contents if key not in needed | kept and not object_keys.is_small_file(key)}
    assert not left
    assert needed <= set(objects.contents)
    backup.close()


def test_an_older_writer_stops_when_another_one_takes_over(world: World) -> None:
    objects = MemoryObjects()
    first = a_writer(world, objects)
    catch_up(first)
    second = a_writer(world, objects)
    world.append()
    with pytest.raises(BackupFencedError, match="generation 2, and this one 1"):
        first.round()
    catch_up(second)
    assert_has_it_all(newest(objects), objects, world)
    assert newest(objects) == second.state
    for each in (first, second):
        each.close()


def test_a_backup_of_other_topics_is_not_gone_on_with(world: World, tmp_path: Path, clock: ManualClock) -> None:
    objects = MemoryObjects()
    backup = a_writer(world, objects)
    catch_up(backup)
    backup.close()
    before = dict(objects.contents)
    with (
        kstore.Store.open(tmp_path / "other", clock=clock, background=False) as other,
        pytest.raises(BackupError, match=r"has other topics .* restore it, or back up to another prefix"),
    ):
        BackupWriter(StoreSource(other), objects, clock=clock)
    assert objects.contents == before


def test_a_backup_goes_on_from_a_restored_directory_without_sending_it_again(
    world: World, tmp_path: Path, clock: ManualClock
) -> None:
    url = str(tmp_path / "backup")
    for _ in range(60):
        world.append()
    with Backup(StoreSource(world.store), url, every=60, window=1e6, options=None, clock=clock) as backup:
        backup.flush()
    kstore.restore(url, tmp_path / "restored")
    with (
        kstore.Store.open(tmp_path / "restored", clock=clock, background=False, **SETTINGS) as store,
        Backup(StoreSource(store), url, every=60, window=1e6, options=None, clock=clock) as backup,
    ):
        segments = sum(len(each.segments) for each in backup._writer.state.partitions.values())
        assert segments > 5
        backup.flush()
        # A round with what the files are now, the manifest, and the small files beside the segments.
        assert backup.stats()["requests"]["put"] < 60
        assert backup.stats()["caught_up"]


def test_a_directory_is_backed_up_once(world: World, tmp_path: Path) -> None:
    for _ in range(50):
        world.step()
    world.close()
    with back_up_directory(world.root, str(tmp_path / "backup")) as backup:
        stats = backup.stats()
    assert stats["caught_up"]
    assert all(each["lag_records"] == 0 for each in stats["partitions"].values())
    kstore.restore(str(tmp_path / "backup"), tmp_path / "restored")
    differences = picture_of(world.root).unlike(picture_of(tmp_path / "restored"))
    assert [each for each in differences if "__" not in each and "plain" not in each and "positions" not in each] == []


@pytest.mark.parametrize("syncs", [True, False])
def test_the_lag_of_another_process_counts_to_the_log_end(
    tmp_path: Path, clock: ManualClock, rng: random.Random, monkeypatch: pytest.MonkeyPatch, syncs: bool
) -> None:
    if not syncs:
        monkeypatch.setattr(source_partition, "sync", no_sync)
    end = durable = sent = 0
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t")
        store.flush()
        clock.advance(100_000)
        store.run_housekeeping()
        with back_up_directory(tmp_path / "data", f"memory://{tmp_path.name}", clock=clock) as backup:
            for _ in range(60):
                match rng.choice(["append", "append", "checkpoint", "round"]):
                    case "append":
                        store.append("t", b"value", sync=True)
                        end += 1
                    case "checkpoint":
                        store.flush()
                        clock.advance(100_000)
                        store.run_housekeeping()
                        durable = end
                    case _:
                        backup.flush()
                        sent = end if syncs else durable
                        stats = backup.stats()
                        assert stats["caught_up"] == (sent == end)
                        assert stats["partitions"]["t-0"] == {
                            "end_offset": sent,
                            "log_end_offset": end,
                            "lag_records": end - sent,
                            "unflushed_records": end - sent,
                        }


def test_before_its_first_round_a_backup_lacks_what_the_log_has(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the offsets below the log start, which no backup can have."""
    monkeypatch.setattr(source_partition, "sync", no_sync)
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t")
        store.log("t", 0).truncate_fully_and_start_at(100)
        store.append_many("t", [b"value"] * 5)
        with back_up_directory(tmp_path / "data", f"memory://{tmp_path.name}", clock=clock) as backup:
            backup.flush()
            assert backup.stats()["partitions"]["t-0"] == {
                "end_offset": 100, "log_end_offset": 105, "lag_records": 5, "unflushed_records": 5,
            }  # fmt: skip


def test_a_thread_backs_up_what_is_appended(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("t", 1)
        with kstore.backup(store, f"memory://{tmp_path.name}", every=0.01) as backup:
            offset = store.append("t", b"value").offset
            backup.flush()
            stats = backup.stats()
            assert stats["partitions"]["t-0"] == {
                "end_offset": offset + 1,
                "log_end_offset": offset + 1,
                "lag_records": 0,
                "unflushed_records": 0,
            }
            assert stats["failure"] is None
            store.append("t", b"last")
        assert backup._writer.state.partitions["t", 0].end_offset == offset + 2  # a close leaves nothing behind
        backup.close()


def test_a_look_of_one_thread_takes_no_change_from_another_one_that_waits(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup's own thread waits for uploads as long as `every`, and `close` waits for the thread."""
    waits, may_be_sent, has_looked = (threading.Event() for _ in range(3))
    objects = MemoryObjects()
    put_new = objects.put_new

    def late(key: str, data: bytes) -> bool:
        if key.endswith(names.LOG):
            may_be_sent.wait()
        return put_new(key, data)

    def look_late(_: threads.Bell, has_come: Callable[[], bool], timeout: float | None = None) -> bool:
        assert not has_come()
        waits.set()
        has_looked.wait()
        return has_come()

    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 1)
        store.append("t", b"value")
        store.log("t", 0).roll()
        backup = BackupWriter(StoreSource(store), objects, clock=clock)
        with monkeypatch.context() as patch:
            patch.setattr(objects, "put_new", late)
            backup.round()
            while backup._uploads.is_beside or backup.wait(0):  # until the segment alone is in flight
                backup.round()
            patch.setattr(threads.Bell, "wait", look_late)
            answers: list[bool] = []
            waiter = threading.Thread(target=lambda: answers.append(backup.wait(3600)))
            waiter.start()
            waits.wait()
            may_be_sent.set()
        assert backup.wait(60)
        backup.round()
        has_looked.set()
        waiter.join()
        assert answers == [True]
        catch_up(backup)
        backup.close()


def test_a_backup_in_a_log_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        for url in ("data", "data/backup", "data/t-0", "link/backup"):
            with pytest.raises(kstore.BackupError, match="would lie in the log directory"):
                kstore.backup(store, str(tmp_path / url))
        with pytest.raises(kstore.BackupError, match="URL of a backup is empty"):
            kstore.backup(store, "")
        assert not (tmp_path / "data" / "backup").exists()
        kstore.backup(store, str(tmp_path / "data-2")).close()


@pytest.mark.parametrize(("name", "value"), [("every", -1), ("window", float("inf")), ("every", None), ("window", "x")])
def test_times_that_cannot_be_are_refused(tmp_path: Path, name: str, value: object) -> None:
    with kstore.Store.open(tmp_path / "data") as store, pytest.raises((ValueError, TypeError), match=name):
        kstore.backup(store, str(tmp_path / "backup"), **{name: value})  # type: ignore[arg-type]
    assert not (tmp_path / "backup").exists()


def test_sizes_that_are_merged_are_bounded() -> None:
    assert round_changes.MERGED_BYTES < backup_writer.ROUND_BYTES


def test_the_ends_of_a_look_are_of_one_moment_where_logs_were_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that come behind the cut and before the flush are in no partition's look, whoever opens its log."""
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("events", 3)
        for partition in (0, 1):
            store.append_many("events", [b"a", b"b"], partition=partition)
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        flushed = store.flush

        def append_first() -> None:
            for partition in range(3):
                store.append("events", b"late", partition=partition)
            flushed()

        monkeypatch.setattr(store, "flush", append_first)
        found = {look.partition: look.end_offset for look in StoreSource(store).look().partitions}
        assert found == {0: 2, 1: 2, 2: 0}
