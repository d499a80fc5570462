"""An opening finishes a load that was decided, although others have written meanwhile (SPARK 3.2)."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore import Log, StorageError, Store
from kstore import spark as ks
from kstore.disk import fs
from kstore.files import load_files
from kstore.store.bulk_loads import place
from kstore.store.bulk_loads.commit import BulkLoads
from kstore.store.bulk_loads.load_manifest import Staged
from kstore.tools.check.verify import verify
from tests.support.staging import leftovers, records, stage_task

COUNT = 5
LOAD = [value for task in range(2) for _, value in records(task, 0, COUNT)]
RENAME, APPEND = 1, 1 << 40


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    monkeypatch.setattr(fs, "fdatasync", lambda fd: None)
    monkeypatch.setattr("kstore.store.bulk_loads.commit.THREADS", 1)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return tmp_path / "world"


def open_store(root: Path, **how: Any) -> Store:
    return Store.open(root, background=False, **how)


def staged(root: Path, job: str = "job") -> list[Staged]:
    """Two tasks' rows for one partition."""
    return [
        row
        for task in range(2)
        for row in stage_task(root, task, "t", {0: records(task, 0, COUNT)}, partitions=1, job=job)
    ]


@pytest.fixture
def crashed(world: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a root as it is when the process dies in a load that is decided, after some of its logs were renamed."""

    def crash(renames: int, rename_bytes: int = RENAME, before: bytes = b"before") -> Path:
        root, kept = world / "logs", world.parent / "kept"
        with open_store(root) as store:
            store.create_topic("t", 1)
            store.append("t", before, partition=0)
        manifest = staged(root)
        taking = place.take_in_locked
        rename = place._rename
        done = 0

        def look() -> None:
            if done == renames and not kept.exists():
                shutil.copytree(world, kept)

        def take_in_locked(*args: object) -> None:
            look()
            taking(*args)  # type: ignore[arg-type]

        def counted(*args: object) -> None:
            nonlocal done
            rename(*args)  # type: ignore[arg-type]
            done += 1
            look()

        with monkeypatch.context() as patch, open_store(root) as store:
            patch.setattr(place, "take_in_locked", take_in_locked)
            patch.setattr(place, "_rename", counted)
            store.adopt(manifest, txn=("a", 1), rename_bytes=rename_bytes)
        shutil.rmtree(world)
        kept.rename(world)
        return root

    return crash


def as_a_broker(root: Path, act: Callable[[Log], object]) -> None:
    """Do something to the log as one who passes the record of the load over."""
    record = (root / load_files.COMMIT_FILE).read_bytes()
    (root / load_files.COMMIT_FILE).unlink()
    with Log.open(root / "t-0", segment_ms=1 << 62) as log:
        act(log)
    (root / load_files.COMMIT_FILE).write_bytes(record)


def found(root: Path) -> list[bytes]:
    """The values, whose offsets leave no gap."""
    with Log.open(root / "t-0", mode="r") as log:
        every = list(log.read())
    assert [record.offset for record in every] == list(range(every[0].offset, every[0].offset + len(every)))
    return [record.value for record in every]


def check_refused(root: Path, match: str) -> None:
    """The load stays pending through several openings, the partition is refused, and the load is not noted as done."""
    for _ in range(2):
        store = open_store(root)
        with pytest.raises(StorageError, match=match) as error:
            store.append("t", b"x", partition=0)
        assert "gives up what is left of it" in str(error.value)
        assert store._loads._done.applications == {}
        with contextlib.suppress(StorageError):  # a log that was opened, and refuses writes, is not closed in order
            store.close()
        assert (root / load_files.COMMIT_FILE).exists()
        assert not (root / load_files.LOADS_FILE).exists()


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND])
def test_a_load_whose_staged_files_are_gone_is_never_noted_as_done(
    crashed: Callable[..., Path], rename_bytes: int
) -> None:
    root = crashed(0, rename_bytes)
    staging = Path(f"{root}.kstore-staging")
    staging.rename(root.parent / "aside")
    check_refused(root, "a staged file is missing")
    assert found(root) == [b"before"]
    (root.parent / "aside").rename(staging)
    with open_store(root) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
    assert found(root) == [b"before", *LOAD]
    assert leftovers(root) == []


def test_a_load_is_given_up_by_removing_its_record(crashed: Callable[..., Path]) -> None:
    root = crashed(1)
    shutil.rmtree(f"{root}.kstore-staging")
    check_refused(root, "which go to offsets 6 to 10")
    (root / load_files.COMMIT_FILE).unlink()
    with open_store(root) as store:
        assert store.append("t", b"later", partition=0).offset == 6
    assert found(root) == [b"before", *LOAD[:COUNT], b"later"]


def test_files_that_were_renamed_need_be_staged_no_more(crashed: Callable[..., Path]) -> None:
    root = crashed(2)
    shutil.rmtree(f"{root}.kstore-staging")
    as_a_broker(root, lambda log: log.append(b"foreign"))
    with open_store(root) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
    assert found(root) == [b"before", *LOAD, b"foreign"]


def test_records_that_were_deleted_behind_a_load_do_not_keep_it_pending(crashed: Callable[..., Path]) -> None:
    root = crashed(2)
    as_a_broker(root, lambda log: log.truncate_fully_and_start_at(50))
    with open_store(root) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
        assert store.append("t", b"later", partition=0).offset == 50


@pytest.mark.parametrize("renames", [0, 1])
def test_offsets_that_somebody_has_used_meanwhile_are_not_given_twice(
    crashed: Callable[..., Path], renames: int
) -> None:
    root = crashed(renames)
    as_a_broker(root, lambda log: log.append_many([b"foreign"] * 3))
    before = found(root)
    check_refused(root, "not the load's stand at offset")
    assert found(root) == before == [b"before", *LOAD[: renames * COUNT], *[b"foreign"] * 3]
    assert verify([root]).errors == 0


@pytest.mark.parametrize("renames", [0, 1])
def test_a_log_that_was_cut_meanwhile_gets_no_gap(crashed: Callable[..., Path], renames: int) -> None:
    root = crashed(renames)
    as_a_broker(root, lambda log: log.truncate_to(0))
    check_refused(root, "the log ends at 0, and the load goes to 1" if renames == 0 else "a staged file is missing")
    with Log.open(root / "t-0", mode="r") as log:
        assert log.log_end_offset == 0


def test_a_log_whose_last_segments_were_cleaned_takes_the_load_at_its_end(crashed: Callable[..., Path]) -> None:
    root = crashed(0)
    for path in (root / "t-0").glob("00000000000000000000.*"):
        path.unlink()
    with open_store(root) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
    assert found(root) == LOAD


@pytest.fixture
def two_mounts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], bool]], None]:
    """Makes the system refuse renames out of the staging directory, as between two mounts of one device."""

    def refuse(which: Callable[[str], bool] = lambda source: True) -> None:
        real = fs.rename

        def rename(source: str, target: str) -> None:
            if ".kstore-staging/" in source and ".kstore-staging/" not in target and which(source):
                raise StorageError(errno.EXDEV, "Invalid cross-device link", source)
            real(source, target)

        monkeypatch.setattr(fs, "rename", rename)

    return refuse


def files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "t-0").iterdir() if path.suffix in (".log", ".deleted"))


def test_files_that_cannot_be_renamed_are_appended(world: Path, two_mounts: Callable[..., None]) -> None:
    root = world / "logs"
    with open_store(root) as store:
        manifest = staged(root)
        two_mounts()
        assert store.adopt(manifest, txn=("a", 1), rename_bytes=RENAME).records == len(LOAD)
        assert files(root) == ["00000000000000000000.log"]
        assert store.append("t", b"later", partition=0).offset == len(LOAD)
    assert found(root) == [*LOAD, b"later"]
    assert leftovers(root) == []


def test_files_that_can_be_renamed_leave_no_trace_of_the_trial(world: Path) -> None:
    root = world / "logs"
    with open_store(root) as store:
        store.adopt(staged(root), rename_bytes=RENAME)
        assert files(root) == [f"{base:020d}.log" for base in (0, COUNT, 2 * COUNT)]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_files_that_cannot_be_renamed_any_more_are_copied_when_a_load_is_finished(
    crashed: Callable[..., Path], two_mounts: Callable[..., None], renames: int
) -> None:
    root = crashed(renames)
    two_mounts()
    with open_store(root) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
        assert store.append("t", b"later", partition=0).offset == len(LOAD) + 1
    assert found(root) == [b"before", *LOAD, b"later"]
    assert verify([root]).errors == 0
    assert leftovers(root) == []


def test_files_that_the_trial_promised_to_rename_are_copied(world: Path, two_mounts: Callable[..., None]) -> None:
    root = world / "logs"
    with open_store(root) as store:
        manifest = staged(root)
        two_mounts(lambda source: source.endswith((".log", "index")))
        store.adopt(manifest, txn=("a", 1), rename_bytes=RENAME)
        assert files(root) == [f"{base:020d}.log" for base in (0, COUNT, 2 * COUNT)]
    assert found(root) == LOAD
    assert verify([root]).errors == 0
    assert leftovers(root) == []


# Roots that are reached by another path when a load is finished


def finish(root: Path, **how: Any) -> None:
    with open_store(root, **how) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
    assert found(root) == [b"before", *LOAD]
    assert leftovers(root) == []
    assert load_files.read_done([str(root)]).applications == {"a": 1}


@pytest.mark.parametrize(("renames", "rename_bytes"), [(0, RENAME), (1, RENAME), (0, APPEND)])
@pytest.mark.parametrize("another", [False, True], ids=["nothing", "another directory"])
@pytest.mark.parametrize("with_staging", [False, True], ids=["staging stays", "staging moves"])
def test_a_root_that_was_renamed_has_its_load_finished(
    crashed: Callable[..., Path], rename_bytes: int, renames: int, another: bool, with_staging: bool
) -> None:
    root = crashed(renames, rename_bytes)
    moved = root.with_name("moved")
    root.rename(moved)
    staging = Path(f"{root}.kstore-staging")
    if with_staging:
        staging.rename(f"{moved}.kstore-staging")
    if another:
        open_store(root).close()
    if not with_staging:  # only the caller can say that what lies there belongs to this root
        with pytest.raises(StorageError, match="staging_dir names another one") as error:
            open_store(moved)
        assert error.value.filename == str(moved / load_files.COMMIT_FILE)
    finish(moved, staging_dir=None if with_staging else staging)
    assert not another or sorted(path.name for path in root.iterdir() if "commit" in path.name) == []
    assert leftovers(root) == []


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_root_that_was_moved_with_all_around_it_has_its_load_finished(
    crashed: Callable[..., Path], renames: int
) -> None:
    root = crashed(renames)
    root.parent.rename(root.parent.with_name("elsewhere"))
    finish(root.parent.with_name("elsewhere") / "logs")


def test_a_root_that_is_reached_by_a_link_has_its_load_finished(crashed: Callable[..., Path]) -> None:
    root = crashed(1)
    root.with_name("link").symlink_to(root)
    finish(root.with_name("link"))


def test_a_copy_of_a_root_with_a_pending_load_takes_nothing_from_the_root(crashed: Callable[..., Path]) -> None:
    root = crashed(1)
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    with pytest.raises(StorageError, match=f"is pending here and in {root}") as error:
        open_store(copy)
    assert error.value.filename == str(copy / load_files.COMMIT_FILE)
    finish(root)
    with pytest.raises(StorageError, match="removing this file gives the load up"):
        open_store(copy)
    (copy / load_files.COMMIT_FILE).unlink()
    with open_store(copy) as store:
        assert store.append("t", b"x", partition=0).offset == 1 + COUNT


@pytest.mark.parametrize("moving", [(0,), (1,), (0, 1)])
def test_roots_of_a_store_that_were_moved_have_their_load_finished(
    world: Path, monkeypatch: pytest.MonkeyPatch, moving: tuple[int, ...]
) -> None:
    roots = [world / "one", world / "two"]
    with Store.open(roots, background=False) as store:
        store.create_topic("t", 2)
        manifest = stage_task(roots[0], 0, "t", {p: records(0, p, COUNT) for p in range(2)}, partitions=2)

        carry_out = BulkLoads._carry_out

        def copy(*args: Any) -> None:
            shutil.copytree(world, world.parent / "kept")
            carry_out(*args)

        with monkeypatch.context() as patch:
            patch.setattr(BulkLoads, "_carry_out", copy)
            store.adopt(manifest, txn=("a", 1), rename_bytes=RENAME)
    shutil.rmtree(world)
    (world.parent / "kept").rename(world)
    for number in moving:
        roots[number] = roots[number].rename(world / f"moved{number}")
    if 0 in moving:
        with pytest.raises(StorageError, match="which decides about it, is missing"):
            open_store(roots[1])
    with Store.open(roots, background=False, staging_dir=world / "one.kstore-staging") as store:
        assert store.adopt([], txn=("a", 1)).duplicate
        for partition in range(2):
            assert [record.value for record in store.log("t", partition).read()] == [
                value for _, value in records(0, partition, COUNT)
            ]
    assert not list(world.glob("*/kstore-commit*"))


def test_an_undecided_copy_of_a_record_goes_only_beside_the_root_that_decides(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    Store.open(roots, background=False).close()
    record = load_files.CommitRecord("load", str(roots[0]), tuple(map(str, roots)), None, -1, (), ())
    load_files.write_commit(record)
    (roots[0] / load_files.COMMIT_FILE).unlink()
    with pytest.raises(StorageError, match="is not opened with the others"):
        open_store(roots[1])
    Store.open(roots, background=False).close()
    assert not (roots[1] / load_files.COMMIT_FILE).exists()


def test_what_a_pending_load_needs_is_not_discarded_where_its_root_was_moved_to(crashed: Callable[..., Path]) -> None:
    root = crashed(0)
    moved = root.with_name("moved")
    root.rename(moved)
    Path(f"{root}.kstore-staging").rename(f"{moved}.kstore-staging")
    staged(moved, "another")
    for job in ("job", "another"):
        ks.discard(moved, job=job)
    assert sorted(path.name for path in Path(f"{moved}.kstore-staging").iterdir()) == ["job"]
    finish(moved)
