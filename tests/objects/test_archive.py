"""A directory with an archive is one log: old offsets from the archive, new ones from the directory, none twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.errors import ConfigError, StorageError
from tests.conftest import ManualClock

pytestmark = pytest.mark.usefixtures("no_syncs")

HOUR_MS = 3_600_000
SETTINGS = {"segment_bytes": 2000, "index_interval_bytes": 200, "retention_ms": HOUR_MS, "file_delete_delay_ms": 0}


class Service:
    """A store that keeps an hour, what it ever had, and its backup."""

    def __init__(self, place: Path, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.clock = ManualClock()
        self.store = kstore.Store.open(place / "data", clock=self.clock, background=False, **SETTINGS)  # type: ignore[arg-type]
        self.store.create_topic("orders", partitions=2)
        self.ever: list[list[kstore.Record]] = [[], []]
        self.backup = kstore.backup(self.store, str(place / "backup"), every=HOUR_MS, window=1e9)

    def append(self, count: int) -> None:
        for _ in range(count):
            number = self.rng.randrange(2)
            log = self.store.log("orders", number)
            value = b"%d " % len(self.ever[number]) * self.rng.choice((1, 5, 40))
            offset = log.append(value, timestamp=self.clock())
            self.ever[number] += log.read(offset)

    def pass_time(self) -> None:
        """Back up, wait for half an hour and delete what is too old."""
        self.backup.flush()
        self.clock.advance(HOUR_MS // 2)
        self.store.run_housekeeping()

    def close(self) -> None:
        self.backup.close()
        self.store.close()


@pytest.fixture
def service(tmp_path: Path, rng: random.Random) -> Iterator[Service]:
    made = Service(tmp_path, rng)
    for _ in range(6):
        made.append(60)
        made.pass_time()
    yield made
    made.close()


def read_all(store: kstore.Store) -> list[list[kstore.Record]]:
    return [list(store.log("orders", number).read()) for number in range(2)]


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_a_year_is_read_through_a_directory_that_keeps_an_hour(service: Service, tmp_path: Path) -> None:
    assert service.store.log("orders", 0).log_start_offset > 50
    with kstore.Store.open(tmp_path / "data", "r", archive=str(tmp_path / "backup")) as store:
        assert read_all(store) == service.ever
        for number in range(2):
            log, ever = store.log("orders", number), service.ever[number]
            assert (log.log_start_offset, log.log_end_offset) == (0, len(ever))
            assert [int(offset) for chunk in log.iter_columns() for offset in chunk["offset"]] == list(range(len(ever)))
            middle = ever[len(ever) // 3]
            found = log.offset_for_timestamp(middle.timestamp)
            assert found is not None
            assert ever[found.offset].timestamp == middle.timestamp
            assert found.offset == 0 or ever[found.offset - 1].timestamp < middle.timestamp
            assert list(log.read(10, end_offset=20)) == ever[10:20]
        assert kstore.dataset(store, "orders").count_rows() == sum(map(len, service.ever))


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_what_is_appended_and_deleted_meanwhile_is_neither_lost_nor_doubled(service: Service, tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", "r", archive=str(tmp_path / "backup")) as store:
        for _ in range(8):
            service.append(service.rng.randrange(40))
            assert read_all(store) == service.ever
            service.pass_time()
            store.refresh()
            assert read_all(store) == service.ever


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_an_archive_that_is_behind_is_an_error_until_it_is_refreshed(service: Service, tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", "r", archive=str(tmp_path / "backup")) as store:
        assert read_all(store) == service.ever
        for _ in range(4):
            service.append(60)
            service.pass_time()
        with pytest.raises(StorageError, match="neither in the directory nor in the archive"):
            read_all(store)
        store.refresh()
        assert read_all(store) == service.ever


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_deleted_segments_are_read_from_the_backup_alone_too(service: Service, tmp_path: Path) -> None:
    service.backup.flush()
    with kstore.Store.open(tmp_path / "backup", "r", with_deleted=True) as store:
        assert read_all(store) == service.ever
    with kstore.Store.open(tmp_path / "backup", "r") as store:
        assert read_all(store) == read_all(service.store)


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_records_that_were_deleted_on_purpose_stay_deleted(service: Service, tmp_path: Path) -> None:
    log = service.store.log("orders", 0)
    log.delete_records(log.log_start_offset + 3)
    with kstore.Store.open(tmp_path / "data", "r", archive=str(tmp_path / "backup")) as store:
        assert list(store.log("orders", 0).read()) == service.ever[0][log.log_start_offset :]
        assert list(store.log("orders", 1).read()) == service.ever[1]


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_segments_that_reach_into_the_directory_are_cut(tmp_path: Path, rng: random.Random) -> None:
    """The archive is a plain copy of a follower with larger segments."""
    service = Service(tmp_path, rng)
    service.append(200)
    kstore.replicate(tmp_path / "data", tmp_path / "follower", segment_bytes=7000)
    shutil.copytree(tmp_path / "follower", tmp_path / "copy")
    service.pass_time()
    service.pass_time()
    service.append(10)
    service.pass_time()
    assert service.store.log("orders", 0).log_start_offset > 0
    with kstore.Store.open(tmp_path / "data", "r", archive=(tmp_path / "copy").as_uri()) as store:
        assert read_all(store) == service.ever
    service.close()


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_an_archive_of_another_topic_of_the_name_is_not_joined(service: Service, tmp_path: Path) -> None:
    service.store.delete_topic("orders")
    service.store.create_topic("orders", partitions=2)
    service.store.append("orders", b"new", partition=0)
    with kstore.Store.open(tmp_path / "data", "r", archive=str(tmp_path / "backup")) as store:
        assert [record.value for record in store.read("orders")] == [b"new"]


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_an_archive_belongs_to_one_directory_that_is_read(service: Service, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    with pytest.raises(ConfigError, match="mode is 'a'"):
        kstore.Store.open(tmp_path / "other", archive=backup)
    with pytest.raises(ConfigError, match="2 directories"):
        kstore.Store.open([tmp_path / "data", tmp_path], "r", archive=backup)
    with pytest.raises(ConfigError, match="belongs to a directory"):
        kstore.Store.open(backup, "r", archive=backup)


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
def test_fetched_blocks_are_kept_in_a_directory(service: Service, tmp_path: Path) -> None:
    service.backup.flush()
    asked = []
    for _ in range(2):
        with kstore.Store.open(tmp_path / "backup", "r", cache=tmp_path / "cache") as store:
            assert read_all(store) == read_all(service.store)
            prefix = store._opened.prefix
            assert prefix is not None
            asked.append(prefix.objects.requests["get"])
    assert asked[1] <= asked[0] - 8  # manifest, catalogs and rounds are read anew
    for path in (tmp_path / "cache").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with kstore.Store.open(tmp_path / "backup", "r", cache=tmp_path / "cache") as store:
        assert read_all(store) == read_all(service.store)
