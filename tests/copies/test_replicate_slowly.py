"""A copy that takes longer than a partition stays in turn without news: it goes on to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.copies.replication import replication_rounds, schedule

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.mark.parametrize("follow", [False, True])
def test_a_source_that_stands_still_is_copied_to_its_end_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 2, config={"segment.bytes": "5000"})
        for number in range(100):
            store.log("t", number % 2).append(b"x" * 500)
    monkeypatch.setattr(schedule, "HOT_SECONDS", 0.0)
    monkeypatch.setattr(replication_rounds, "SLICE_BYTES", 600)
    with kstore.replicate(tmp_path / "data", tmp_path / "copy", follow=follow) as copy:
        assert copy.wait_caught_up(120)
    with kstore.Store.open(tmp_path / "copy", "r") as copied:
        assert [copied.log("t", number).log_end_offset for number in (0, 1)] == [50, 50]
