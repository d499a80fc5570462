"""A bulk load is there once or not at all, whatever dies at whatever step; another run makes it once (SPARK.md 3.2).

A load is told to a store over `faultfs`; then the directory is built as it may be found after every step of it, with
what was not synced kept, lost or by chance, opened, and the same load is run again.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from conftest import ManualClock
from faultfs import DATA_LOST, KEPT, LOST, NAMES_LOST, FaultFS, Plan, shuffled
from staging import leftovers, records, stage_task

from kstore import Store, fs
from kstore.adopt import Adopted, Staged
from kstore.verify import verify

BUDGET = int(os.environ.get("KSTORE_BUDGET", "1"))
NOW = 1_700_000_000_000
TASKS, COUNT = 2, 12
BEFORE = b"before"
EXPECTED = [BEFORE, *(value for task in range(TASKS) for _, value in records(task, 0, COUNT))]
RENAME, APPEND = 1, 1 << 40
STORE = {"segment_bytes": 400, "index_interval_bytes": 60, "segment_index_bytes": 240}


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk is the images' business; real syncs would take most of the time."""
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    monkeypatch.setattr(fs, "fdatasync", lambda fd: None)
    monkeypatch.setattr("kstore.adopt.THREADS", 1)


def open_store(root: Path) -> Store:
    return Store.open(root, background=False, clock=ManualClock(NOW), **STORE)


def prepare(world: Path) -> list[Staged]:
    """A store with a topic that has a record in each partition, and a load that is staged; the manifest."""
    root = world / "logs"
    with open_store(root) as store:
        store.create_topic("t", 2)
        for partition in range(2):
            store.append("t", BEFORE, partition=partition)
    return [
        row
        for task in range(TASKS)
        for row in stage_task(
            root, task, "t", {p: records(task, p, COUNT) for p in range(2)}, partitions=2, batch_bytes=100, **STORE
        )
    ]


def expected(partition: int) -> list[bytes]:
    return [BEFORE, *(value for task in range(TASKS) for _, value in records(task, partition, COUNT))]


def check_once(world: Path, store: Store) -> None:
    """Every record is there once, without a gap."""
    for partition in range(2):
        found = list(store.log("t", partition).read())
        assert [record.value for record in found] == expected(partition)
        assert [record.offset for record in found] == list(range(len(found)))


def check_after(world: Path) -> None:
    """Nothing is left behind, and every file is sound."""
    assert leftovers(world / "logs") == []
    report = verify([world / "logs"])
    assert report.errors == 0, report


def run_again(world: Path, manifest: list[Staged], rename_bytes: int) -> Adopted:
    """What is found after a crash: all of the load or nothing of it; then the same load again."""
    root = world / "logs"
    with open_store(root) as store:
        ends = [store.log("t", partition).log_end_offset for partition in range(2)]
        assert ends in ([1, 1], [1 + TASKS * COUNT] * 2)
        done = store.adopt(manifest, txn=("load", 7), rename_bytes=rename_bytes)
        assert done.duplicate == (ends != [1, 1])
        check_once(world, store)
        assert store.adopt(manifest, txn=("load", 7), rename_bytes=rename_bytes).duplicate
    with open_store(root) as store:
        check_once(world, store)
        store.append("t", b"later", partition=0)
        assert store.log("t", 0).log_end_offset == len(expected(0)) + 1
    check_after(world)
    return done


def tell(world: Path, manifest: list[Staged], rename_bytes: int, disk: FaultFS) -> None:
    with open_store(world / "logs") as store:
        store.adopt(manifest, txn=("load", 7), rename_bytes=rename_bytes)


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND], ids=["renamed", "appended"])
def test_a_load_is_there_once_whatever_step_was_the_last(tmp_path: Path, rename_bytes: int) -> None:
    world, kept = tmp_path / "world", tmp_path / "kept"
    manifest = prepare(world)
    with FaultFS(world) as disk:
        first = disk.step
        tell(world, manifest, rename_bytes, disk)
    check_after(world)
    world.rename(kept)
    duplicates = 0
    rng = random.Random(1)
    plans: list[Plan] = [KEPT, LOST, DATA_LOST, NAMES_LOST, shuffled(rng)]
    # Ordinarily each kind of step meets one plan or another; with a greater budget every step meets every plan.
    for step in range(first, disk.step + 1, 2 if BUDGET == 1 else 1):
        for plan in [plans[step // 2 % len(plans)]] if BUDGET == 1 else plans:
            disk.crash_image(world, step, plan)
            try:
                duplicates += run_again(world, manifest, rename_bytes).duplicate
            except BaseException as error:
                error.add_note(f"after step {step} of {disk.step}, {disk.trace[step - 1]}, plan {plan}")
                raise
            shutil.rmtree(world)
    assert 0 < duplicates < disk.step * 2
