"""A bulk load is there once or not at all, whatever dies at whatever step; another run makes it once (SPARK 3.2).

A load is told to a store over `faultfs`; then the directory is built as it may be found after every step of it, with
what was not synced kept, lost or by chance, opened, and the same load is run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from kstore import Log, StorageError, Store, cli
from kstore.disk import fs
from kstore.files import load_files
from kstore.store.bulk_loads.load_manifest import Adopted, Staged
from kstore.tools.check.verify import verify
from tests.conftest import SEED, ManualClock
from tests.support.faultfs import DATA_LOST, KEPT, LOST, NAMES_LOST, FaultFS, Plan, shuffled
from tests.support.staging import leftovers, records, stage_task

BUDGET = float(os.environ.get("KSTORE_BUDGET", "1"))
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
    monkeypatch.setattr("kstore.store.bulk_loads.commit.THREADS", 1)


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
    duplicates = runs = 0
    rng = random.Random(f"{SEED}:1")
    plans: list[Plan] = [KEPT, LOST, DATA_LOST, NAMES_LOST, shuffled(rng)]
    # Ordinarily each kind of step meets one plan or another; with a greater budget every step meets every plan.
    for step in range(first, disk.step + 1, 3 if BUDGET <= 1 else 1):
        for plan in [plans[step // 3 % len(plans)]] if BUDGET <= 1 else plans:
            disk.crash_image(world, step, plan)
            try:
                duplicates += run_again(world, manifest, rename_bytes).duplicate
            except BaseException as error:
                error.add_note(f"after step {step} of {disk.step}, {disk.trace[step - 1]}, plan {plan}")
                raise
            runs += 1
            shutil.rmtree(world)
    assert 0 < duplicates < runs


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND], ids=["renamed", "appended"])
def test_a_load_that_met_a_failing_disk_is_there_once_after_the_next_opening(tmp_path: Path, rename_bytes: int) -> None:
    world, kept = tmp_path / "world", tmp_path / "kept"
    manifest = prepare(world)
    world.rename(kept)
    outcomes = []
    calls = calls_of_a_load(kept, world, manifest, rename_bytes)
    for call in range(0, calls, 7 if BUDGET <= 1 else 1):
        shutil.copytree(kept, world)
        with FaultFS(world) as disk:
            store = open_store(world / "logs")
            disk.fail(after=call)
            try:
                done = store.adopt(manifest, txn=("load", 7), rename_bytes=rename_bytes)
            except kstore.KStoreError:
                done = None
            disk.heal()
            with contextlib.suppress(kstore.KStoreError):
                store.close()
        outcomes.append(done is not None)
        try:
            again = run_again(world, manifest, rename_bytes)
        except BaseException as error:
            error.add_note(f"call {call} of {calls} failed")
            raise
        assert again.duplicate or done is None
        shutil.rmtree(world)
    assert outcomes.count(False) > len(outcomes) // 2


def calls_of_a_load(kept: Path, world: Path, manifest: list[Staged], rename_bytes: int) -> int:
    """How many calls of a load change or sync something."""
    shutil.copytree(kept, world)
    with FaultFS(world) as disk, open_store(world / "logs") as store:
        disk.calls.clear()
        store.adopt(manifest, txn=("load", 7), rename_bytes=rename_bytes)
        calls = sum(disk.calls[name] for name in (*disk.CHANGES, *disk.SYNCS))
    shutil.rmtree(world)
    return calls


def make_pending(world: Path, rename_bytes: int) -> list[Staged]:
    """A world in which a load is decided and nothing of it done; its manifest."""
    manifest = prepare(world)
    with FaultFS(world) as disk:
        tell(world, manifest, rename_bytes, disk)
    shutil.rmtree(world)
    [decided] = [step for step, op in enumerate(disk.trace, 1) if getattr(op, "name", "") == load_files.COMMIT_FILE][:1]
    disk.crash_image(world, decided, KEPT)
    return manifest


def test_a_pending_load_is_told_by_verify_and_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pending(tmp_path / "world", RENAME)
    root = tmp_path / "world" / "logs"
    [note] = [each for each in verify([root]).findings if "bulk load" in each.what]
    assert (note.path, note.severity) == (str(root / load_files.COMMIT_FILE), "note")
    assert note.what.startswith("a bulk load of load, version 7, into 2 partitions was decided and is not finished")
    assert cli.main(["describe", str(root)]) == 0
    assert note.what in capsys.readouterr().out
    assert cli.main(["describe", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pending_load"] == note.what
    (root / load_files.COMMIT_FILE).write_text("{}")
    assert [Path(each.path).name for each in verify([root]).findings if each.severity == "error"] == [
        load_files.COMMIT_FILE
    ]


def test_a_lone_writer_before_the_end_of_a_load_is_refused_and_told_why(tmp_path: Path) -> None:
    world = tmp_path / "world"
    manifest = make_pending(world, RENAME)
    root = world / "logs"
    for partition in range(2):
        with pytest.raises(StorageError, match=r"a bulk load into t-. was decided and is not finished") as found:
            Log.open(root / f"t-{partition}")
        assert found.value.filename == str(root / load_files.COMMIT_FILE)
        with Log.open(root / f"t-{partition}", mode="r") as log:
            assert log.log_end_offset == 1
    with Log.open(root / "other-0") as log:
        log.append(b"of another partition")
    with Store.open(root, "r") as store:
        assert store.log("t", 0).log_end_offset == 1
    assert run_again(world, manifest, RENAME).duplicate
    with Log.open(root / "t-0") as log:
        assert log.log_end_offset == len(expected(0)) + 1


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND], ids=["renamed", "appended"])
def test_records_of_somebody_who_knows_no_loads_are_never_written_over(tmp_path: Path, rename_bytes: int) -> None:
    world = tmp_path / "world"
    make_pending(world, rename_bytes)
    root = world / "logs"
    record = (root / load_files.COMMIT_FILE).read_bytes()
    (root / load_files.COMMIT_FILE).unlink()
    with Log.open(root / "t-0", **STORE) as log:  # as a broker would, which passes the record over
        log.append(b"foreign")
    (root / load_files.COMMIT_FILE).write_bytes(record)
    with open_store(root) as store:
        assert [record.value for record in store.log("t", 1).read()] == expected(1)
        with pytest.raises(StorageError, match="not the load's stand at offset 1"):
            store.append("t", b"x", partition=0)
        with pytest.raises(StorageError, match="a bulk load is decided and not finished"):
            store.adopt([], txn=("another", 1))
        with contextlib.suppress(StorageError):
            store.close()
    with Log.open(root / "t-0", mode="r") as log:
        assert [record.value for record in log.read()] == [BEFORE, b"foreign"]
    assert len(json.loads((root / load_files.COMMIT_FILE).read_text())["shares"]) == 1


def test_a_load_into_several_directories_is_finished_in_each(tmp_path: Path) -> None:
    world = tmp_path / "world"
    roots = [world / "one", world / "two"]
    with Store.open(roots, background=False, clock=ManualClock(NOW), **STORE) as store:
        store.create_topic("t", 2)
    manifest = [
        row
        for task in range(TASKS)
        for row in stage_task(
            roots[0], task, "t", {p: records(task, p, COUNT) for p in range(2)}, partitions=2, batch_bytes=100, **STORE
        )
    ]
    with FaultFS(world) as disk:
        first = disk.step
        with Store.open(roots, background=False, clock=ManualClock(NOW), **STORE) as store:
            store.adopt(manifest, txn=("load", 7), rename_bytes=RENAME)
    for step in range(first, disk.step, 9):
        shutil.rmtree(world)
        disk.crash_image(world, step, (KEPT, LOST)[(step - first) // 9 % 2])
        with Store.open(roots, background=False, clock=ManualClock(NOW), **STORE) as store:
            store.adopt(manifest, txn=("load", 7), rename_bytes=RENAME)
            for partition in range(2):
                found = [record.value for record in store.log("t", partition).read()]
                assert found == expected(partition)[1:]
        assert not list(world.glob("*/kstore-commit.json"))


KILLED = """
import os, signal, sys
import pickle
from kstore import Store, spark as ks; from kstore.disk import fs
call, at, manifest = sys.argv[1], int(sys.argv[2]), pickle.load(open(sys.argv[4], "rb"))
real = getattr(fs, call)
count = 0

def counted(*args, **how):
    global count
    count += 1
    if count > at:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **how)

setattr(fs, call, counted)
import kstore.store.bulk_loads.commit
kstore.store.bulk_loads.commit.RENAME_BYTES = 1
Store.adopt.__kwdefaults__["rename_bytes"] = 1
ks.commit(sys.argv[3], manifest, txn=("load", 7))
print("committed")
"""


def test_a_driver_that_is_killed_in_a_commit_leaves_locks_and_logs_to_the_next(tmp_path: Path) -> None:
    world, kept = tmp_path / "world", tmp_path / "kept"
    manifest = prepare(world)
    (tmp_path / "manifest").write_bytes(pickle.dumps(manifest))
    world.rename(kept)
    ends = set()
    for call, at in (("write_atomically", 0), ("write_atomically", 2), ("rename", 3), ("rename", 9), ("rename", 14)):
        shutil.copytree(kept, world)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, call, str(at), str(world / "logs"), str(tmp_path / "manifest")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
        ends.add(run_again(world, manifest, RENAME).duplicate)
        shutil.rmtree(world)
    assert ends == {True, False}
