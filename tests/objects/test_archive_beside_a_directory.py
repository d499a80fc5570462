"""A directory with its archive: what is deleted or made again in the directory is not read from the archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from tests.conftest import ManualClock

pytestmark = pytest.mark.usefixtures("no_syncs")


class Archived:
    """A store whose topic keeps few records, and its backup."""

    def __init__(self, home: Path) -> None:
        self.data, self.archive = home / "data", str(home / "archive")
        self.clock = ManualClock()
        self.store = kstore.Store.open(
            self.data, clock=self.clock, background=False, segment_bytes=400, file_delete_delay_ms=0
        )
        self.fill(b"old")
        self.backup = kstore.backup(self.store, self.archive, every=3600)
        self.backup.flush()
        self.retain()

    def fill(self, value: bytes) -> None:
        self.store.create_topic("orders", partitions=1, config={"retention.bytes": "1500"})
        for _ in range(60):
            self.store.append("orders", value)

    def retain(self) -> None:
        self.clock.advance(400_000)
        self.store.run_housekeeping()

    def joined(self) -> kstore.Store:
        return kstore.Store.open(self.data, "r", archive=self.archive)

    def close(self) -> None:
        self.backup.close()
        self.store.close()


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Archived]:
    made = Archived(tmp_path)
    yield made
    made.close()


def test_records_deleted_under_a_joined_reader_stay_deleted(archived: Archived) -> None:
    with archived.joined() as joined:
        assert [record.offset for record in joined.read("orders")] == list(range(60))
        log = archived.store.log("orders", 0)
        start = log.segments[0].base_offset + 2
        log.delete_records(start)
        joined.refresh()
        assert [record.offset for record in joined.read("orders")] == list(range(start, 60))


def test_a_topic_made_again_under_a_joined_reader_has_no_old_records(archived: Archived) -> None:
    with archived.joined() as joined:
        first = archived.store.log("orders", 0).log_start_offset
        assert first > 0
        assert len(list(joined.read("orders"))) == 60
        archived.store.delete_topic("orders")
        archived.retain()
        archived.fill(b"new")
        archived.retain()
        assert archived.store.log("orders", 0).log_start_offset == first
        joined.refresh()
        assert {record.value for record in joined.read("orders")} == {b"new"}
