"""A directory, its plain copy and its backup give the same answers, whatever happened to the logs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.copies.backups.backup import Backup
from kstore.errors import (
    BackupError,
    ConfigError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    StorageError,
)
from kstore.objects import object_reader
from tests.conftest import ManualClock
from tests.golden import goldenlogs, test_golden_read
from tests.golden.goldenlogs import PARTITIONS, Partition
from tests.support.backedup import SETTINGS, World
from tests.support.backuplife import Life
from tests.support.faultyobjects import FaultyObjects, MemoryObjects
from tests.support.seen import seen_by_readers, seen_of_log, unlike

pytestmark = pytest.mark.usefixtures("no_syncs")


def seen_at(path: Path | str, **options: Any) -> dict[str, Any]:
    with kstore.Store.open(path, "r", **options, **SETTINGS) as store:
        return seen_by_readers(store)


def flushed(backup: Backup) -> str:
    """Make a round; the directory of the backup."""
    backup.flush()
    return str(backup.stats()["url"])


@pytest.fixture(params=[64, object_reader.BLOCK_BYTES], ids=["blocks of 64 bytes", "blocks of 256 KiB"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks a small log takes many requests, some ahead of the reader."""
    if request.param == 64:
        monkeypatch.setattr(object_reader, "BLOCK_BYTES", 64)
        monkeypatch.setattr(object_reader, "WHOLE_BYTES", 128)
        monkeypatch.setattr(object_reader, "FIRST_RUN_BYTES", 128)
        monkeypatch.setattr(object_reader, "RUN_BYTES", 512)
        monkeypatch.setattr(object_reader, "MEMORY_BYTES", 4096)
        monkeypatch.setattr("kstore.log.reading.remote_view.WHOLE_BYTES", 128)
    return


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_blocks")
def test_a_plain_copy_reads_like_the_directory(seed: int, tmp_path: Path, rng: random.Random) -> None:
    world = World(tmp_path / "data", random.Random(f"{rng.random()}-{seed}"), ManualClock())
    for _ in range(80):
        world.step()
    world.close()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert unlike(seen_at((tmp_path / "copy").as_uri()), seen_at(tmp_path / "data")) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_blocks")
def test_a_backup_reads_like_the_directory(seed: int, tmp_path: Path, rng: random.Random) -> None:
    life = Life(tmp_path / "life", f"{rng.random()}-{seed}", FaultyObjects(MemoryObjects()))
    backup = tmp_path / "backup"
    for _ in range(5):
        life.change()
        with kstore.backup(life.world.store, str(backup), every=3600) as copying:
            copying.flush()
        expected = seen_at(life.world.root)
        assert unlike(seen_at(backup), expected) == unlike(seen_at(backup.as_uri()), expected) == []
    life.close()


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_a_copy_of_a_brokers_log_reads_as_kafka_reads_it(
    partition: Partition, tmp_path: Path, rng: random.Random
) -> None:
    root = goldenlogs.copy_root(partition, tmp_path)
    oracle = goldenlogs.oracle(partition, root)
    if partition in test_golden_read.FAULTS:
        pytest.skip("it ends in an error")
    with kstore.Log.open(f"{root.as_uri()}/{partition.directory.rpartition('/')[2]}", "r") as log:
        test_golden_read.check_records(log, oracle)
        test_golden_read.check_timestamps(log, oracle, rng)
        test_golden_read.check_marks(log, oracle)
        test_golden_read.check_fetches(log, oracle, rng)


@pytest.fixture
def backed_up(tmp_path: Path) -> Callable[[], Path]:
    """Makes a store of one topic with ten rounds of a backup, of which each has ten records, a second apart."""

    def make() -> Path:
        clock = ManualClock()
        with kstore.Store.open(tmp_path / "data", clock=clock, background=False, segment_bytes=400) as store:
            store.create_topic("orders", partitions=1)
            with kstore.backup(store, str(tmp_path / "backup"), every=3600) as backup:
                for n in range(10):
                    store.append_many("orders", [b"%d-%d" % (n, i) for i in range(10)])
                    clock.advance(1000)
                    backup.flush()
        return tmp_path / "backup"

    return make


def test_a_look_is_frozen_until_it_is_refreshed(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", segment_bytes=400) as store:
        store.create_topic("orders", partitions=1)
        store.append_many("orders", [b"%d" % n for n in range(50)])
        with (
            kstore.backup(store, str(tmp_path / "backup"), every=3600) as backup,
            kstore.Store.open(flushed(backup), "r") as frozen,
            kstore.Log.open(f"{(tmp_path / 'backup').as_uri()}/orders-0", "r") as log,
        ):
            before = seen_by_readers(frozen)
            store.append_many("orders", [b"%d" % n for n in range(50, 90)])
            store.create_topic("visits", partitions=1)
            store.append("visits", b"a")
            backup.flush()
            assert seen_by_readers(frozen) == before
            assert log.log_end_offset == 50
            frozen.refresh()
            log.refresh()
            assert frozen.topics == ("orders", "visits")
            assert [record.value for record in log.read()] == [b"%d" % n for n in range(90)]
            assert seen_of_log(frozen.log("orders", 0)) == seen_of_log(store.log("orders", 0))


@pytest.mark.usefixtures("_blocks")
def test_a_plain_copy_that_was_written_again_is_read_anew_after_a_refresh(tmp_path: Path, rng: random.Random) -> None:
    world = World(tmp_path / "data", random.Random(rng.random()), ManualClock())
    world.append()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with kstore.Store.open((tmp_path / "copy").as_uri(), "r", **SETTINGS) as frozen:
        for _ in range(4):
            for _ in range(20):
                world.step()
            shutil.rmtree(tmp_path / "copy")
            shutil.copytree(tmp_path / "data", tmp_path / "copy")
            frozen.refresh()
            assert unlike(seen_by_readers(frozen), seen_at(tmp_path / "data")) == []
    world.close()


def test_an_iterator_goes_on_in_the_refreshed_state(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", segment_bytes=400) as store:
        store.create_topic("orders", partitions=1)
        store.append_many("orders", [b"%d" % n for n in range(50)])
        with (
            kstore.backup(store, str(tmp_path / "backup"), every=3600) as backup,
            kstore.Store.open(flushed(backup), "r") as frozen,
        ):
            reading = frozen.log("orders", 0).read(follow=True, timeout=0.0)
            assert len(list(reading)) == 50
            store.append_many("orders", [b"%d" % n for n in range(50, 60)])
            backup.flush()
            frozen.refresh()
            reading = frozen.log("orders", 0).read(45, follow=True, timeout=0.0)
            assert [record.offset for record in reading] == list(range(45, 60))
            old = frozen.log("orders", 0).read(0)
            assert next(old).offset == 0
            store.log("orders", 0).delete_records(55)
            backup.flush()
            frozen.refresh()
            with pytest.raises(OffsetOutOfRangeError):
                list(old)


def test_until_gives_the_state_of_a_backup_at_that_time(backed_up: Callable[[], Path], tmp_path: Path) -> None:
    backup = backed_up()
    with kstore.Store.open(backup, "r") as store:
        newest = store._opened.prefix
        assert newest is not None
        last_ms = newest.state.time_ms
    for until in (last_ms, datetime.fromtimestamp(last_ms / 1000, UTC)):
        with kstore.Store.open(backup.as_uri(), "r", until=until) as store:
            assert store.log("orders", 0).log_end_offset == 100
    with pytest.raises(StorageError, match="every time is kept from"):
        kstore.Store.open(backup, "r", until=1)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(ConfigError, match="no backup of kstore"):
        kstore.Store.open((tmp_path / "copy").as_uri(), "r", until=last_ms)


def test_the_greatest_timestamp_is_in_the_catalog_and_may_be_missing(backed_up: Callable[[], Path]) -> None:
    backup = backed_up()
    with kstore.Store.open(backup, "r") as store:
        log = store.log("orders", 0)
        prefix = store._opened.prefix
        assert prefix is not None
        known = [each.max_timestamp for each in prefix.state.partitions["orders", 0].segments.values()]
        assert len(known) == 5
        assert known[:-1] == [each.max_timestamp for each in log.segments[:-1]]
        assert None not in known[:-1]


def test_a_url_is_not_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (kstore.Store.open, kstore.Log.open):
        with pytest.raises(ReadOnlyError, match="only read"):
            opening("s3://secret@bucket/orders-0")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


def test_a_prefix_without_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="no log"):
        kstore.Store.open((tmp_path / "empty").as_uri(), "r")
    (tmp_path / "empty" / "x.txt").write_bytes(b"x")
    with pytest.raises(StorageError, match="1 objects and no log"):
        kstore.Store.open((tmp_path / "empty").as_uri(), "r")
    with pytest.raises(BackupError, match="begins with 'ftp'"):
        kstore.Store.open("ftp://x/y", "r")
    with pytest.raises(ConfigError, match="storage is given, and "):
        kstore.Store.open(tmp_path / "empty", "r", storage={"region": "x"})


def test_files_beside_the_logs_are_passed_over(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"a")
    for name in ("notes.txt", "orders-0/notes.txt", "orders-0/.DS_Store", "orders-0x/00000000000000000000.log"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no log")
    with kstore.Store.open((tmp_path / "data").as_uri(), "r") as store:
        assert store.topics == ("orders",)
        assert [record.value for record in store.read("orders")] == [b"a"]


def test_two_looks_at_a_prefix_do_not_mix(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"a")
        with (
            kstore.backup(store, str(tmp_path / "backup"), every=3600) as backup,
            kstore.Store.open(flushed(backup), "r") as first,
        ):
            store.append("orders", b"b")
            backup.flush()
            with kstore.Store.open(tmp_path / "backup", "r") as second:
                assert first.paths != second.paths
                assert len(list(first.read("orders"))) == 1
                assert len(list(second.read("orders"))) == 2
            assert len(list(first.read("orders"))) == 1


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://", "names no bucket"),
        ("s3:///logs", "names no bucket"),
        ("s3://bucket/logs?x=1", "%3F"),
        ("s3://bucket/logs#1", "%23"),
        ("file://logs", "file:///path is"),
        ("s3:/bucket/logs", "two slashes"),
        (Path("s3://bucket/logs"), "two slashes"),
    ],
)
def test_a_misspelt_url_is_refused_with_the_reason(url: str | Path, told: str) -> None:
    with pytest.raises((BackupError, ConfigError), match=told):
        kstore.Store.open(url, "r")
    with pytest.raises((BackupError, ConfigError), match=told):
        kstore.dataset(url, "orders")


def test_a_url_that_lost_a_slash_makes_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (kstore.Store.open, kstore.Log.open):
        with pytest.raises(ConfigError, match="two slashes"):
            opened(Path("s3://bucket/orders-0"))
    assert not list(tmp_path.iterdir())


def test_a_directory_with_a_backup_is_not_opened_for_writing(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"a")
        kstore.backup(store, str(tmp_path / "backup")).close()
    before = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    with pytest.raises(ReadOnlyError, match="has a backup"):
        kstore.Store.open(tmp_path / "backup")
    with pytest.raises(ReadOnlyError, match="has a backup"):
        kstore.Log.open(tmp_path / "backup" / "orders-0")
    assert before == {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}


def test_the_urls_of_a_partition_and_of_a_prefix_are_told_apart(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"a")
    url = (tmp_path / "data").as_uri()
    with pytest.raises(StorageError, match=r"Log\.open"):
        kstore.Store.open(f"{url}/orders-0", "r")
    with pytest.raises(InvalidTopicError, match="'data' is no partition directory"):
        kstore.Log.open(url, "r")
