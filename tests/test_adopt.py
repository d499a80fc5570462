"""Bulk loads become part of the logs exactly once (SPARK.md 3.2), on a machine that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from staging import leftovers, records, stage_task

from kstore import Store
from kstore.adopt import Staged
from kstore.verify import verify

RENAME, APPEND = 1, 1 << 40


def values(store: Store, topic: str, partition: int) -> list[bytes]:
    return [record.value for record in store.log(topic, partition).read()]


def staged_twice(root: Path, *, count: int = 50, job: str = "job", **settings: object) -> list[Staged]:
    """Two tasks' rows for both partitions of a topic."""
    return [
        row
        for task in range(2)
        for row in stage_task(
            root, task, "t", {p: records(task, p, count) for p in range(2)}, partitions=2, job=job, **settings
        )
    ]


def expected(partition: int, count: int = 50) -> list[bytes]:
    return [value for task in range(2) for _, value in records(task, partition, count)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND])
def test_a_load_has_its_rows_in_the_order_of_the_manifest(root: Path, rename_bytes: int) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        store.append("t", b"before", partition=1)
        done = store.adopt(staged_twice(root), rename_bytes=rename_bytes)
        assert done.offsets == {("t", 0): (0, 100), ("t", 1): (1, 101)}
        assert (done.records, done.duplicate) == (200, False)
        store.append("t", b"after", partition=0)
        assert values(store, "t", 0) == [*expected(0), b"after"]
        assert values(store, "t", 1) == [b"before", *expected(1)]
        assert [record.offset for record in store.log("t", 0).read()] == list(range(101))
    assert leftovers(root) == []
    for partition in range(2):
        assert verify([root / f"t-{partition}"]).errors == 0
    with Store.open(root, background=False) as store:
        assert values(store, "t", 0) == [*expected(0), b"after"]
