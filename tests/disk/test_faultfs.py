"""faultfs.py: that the twin does what fs does, fails when told to, and cuts the power as a disk may take it."""

from __future__ import annotations

import errno
import random
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import checkpoint, names
from tests.support.faultfs import (
    DATA_LOST,
    DATA_SHORT,
    DATA_ZEROS,
    KEPT,
    LOST,
    NAMES_LOST,
    PLANS,
    Adopt,
    FaultFS,
    Link,
    Plan,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
    shuffled,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def disk(root: Path) -> Iterator[FaultFS]:
    with FaultFS(root) as disk:
        yield disk


def tree(root: Path) -> dict[str, bytes | None]:
    """Every path below a root with its bytes, None for a directory; locks aside."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != fs.LOCK_FILE
    }


def image(disk: FaultFS, plan: Plan = LOST, step: int | None = None) -> dict[str, bytes | None]:
    """The tree after a power cut."""
    number = sum(1 for _ in disk.root.parent.iterdir())
    return tree(disk.crash_image(disk.root.parent / f"image-{number}", step, plan))


# What is recorded


def test_every_change_and_sync_is_recorded_in_order(root: Path, disk: FaultFS) -> None:
    fs.write_atomically(root / "a", b"one")
    kinds = [type(op) for op in disk.trace]
    assert kinds == [Link, Write, Sync, Link, SyncDirectory]
    fd = fs.open(root / "a", empty=True)
    fs.truncate(fd, 7)
    fs.fdatasync(fd)
    fs.close(fd)
    fs.unlink(root / "a")
    fs.unlink(root / "a")
    fs.mkdir(root / "d")
    fs.rmdir(root / "d")
    assert [type(op) for op in disk.trace[5:]] == [Truncate, Truncate, Sync, Unlink, Link, SyncDirectory, Unlink]
    assert disk.calls["unlink"] == 2
    assert disk.calls["fsync"] == disk.calls["fdatasync"] == 1
    assert disk.step == 12


def test_the_twin_leaves_when_the_test_is_over(root: Path) -> None:
    before = {name: getattr(fs, name) for name in vars(fs) if not name.startswith("_")}
    with FaultFS(root):
        assert fs.pwrite is not before["pwrite"]
    assert {name: getattr(fs, name) for name in before} == before


def test_what_lies_outside_the_root_is_done_and_not_recorded(tmp_path: Path, root: Path, disk: FaultFS) -> None:
    fs.write_atomically(tmp_path / "outside", b"x")
    fs.make_directories(tmp_path / "d" / "e")
    fs.unlink(tmp_path / "outside")
    assert disk.trace == []
    assert disk.calls["pwrite"] == 1


def test_the_compiled_writers_writes_are_seen_and_may_be_failed(root: Path) -> None:
    hooks: list[object] = []
    writer = types.ModuleType("writer")
    writer.set_pwrite_hook = hooks.append  # type: ignore[attr-defined]
    disk = FaultFS(root).install(writer)
    try:
        fd = fs.open(root / "a", create=True)
        assert hooks == [disk.pwrite_hook]
        assert disk.pwrite_hook(fd, memoryview(b"abc"), 2) == 3
        disk.fail("pwrite", error=errno.ENOSPC, partial=1)
        with pytest.raises(OSError) as caught:
            disk.pwrite_hook(fd, memoryview(b"xyz"), 5)
        assert caught.value.errno == errno.ENOSPC
        assert [(op.position, op.data) for op in disk.trace if isinstance(op, Write)] == [(2, b"abc"), (5, b"x")]
        fs.close(fd)
    finally:
        disk.uninstall()
    assert hooks == [disk.pwrite_hook, None]
    assert (root / "a").read_bytes() == b"\0\0abcx"


def test_a_logs_appends_reach_the_trace_and_its_flush_makes_them_durable(root: Path, disk: FaultFS) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"flushed")
        log.flush()
        log.append(b"a value to look for")
        writes = [op for op in disk.trace if isinstance(op, Write) and op.path.endswith(".log")]
        assert b"a value to look for" in writes[-1].data
        name = "orders-0/" + names.log_name(0)
        assert image(disk)[name] == writes[0].data
        assert image(disk, KEPT)[name] == writes[0].data + writes[1].data


def test_files_that_were_there_are_durable_and_so_are_those_made_otherwise(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "old").write_bytes(b"old")
    with FaultFS(root) as disk:
        (root / "d" / "new").write_bytes(b"new")
        fd = fs.open(root / "d" / "new", write=True)
        fs.pwrite(fd, b"more", 3)
        fs.close(fd)
        assert [op.name for op in disk.trace if isinstance(op, Adopt)] == ["d", "old", "new"]
        assert image(disk) == {"d": None, "d/old": b"old", "d/new": b"new"}
        assert image(disk, KEPT) == {"d": None, "d/old": b"old", "d/new": b"newmore"}


# Faults


def test_the_nth_call_fails_with_the_errno_that_was_asked_for(root: Path, disk: FaultFS) -> None:
    disk.fail("pwrite", error=errno.ENOSPC, after=2)
    fd = fs.open(root / "a", create=True)
    fs.pwrite(fd, b"1", 0)
    fs.pwrite(fd, b"2", 1)
    with pytest.raises(StorageError) as caught:
        fs.pwrite(fd, b"3", 2)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(root / "a"))
    fs.pwrite(fd, b"4", 2)
    fs.close(fd)
    assert (root / "a").read_bytes() == b"124"
    assert disk.calls["pwrite"] == 4


def test_a_write_may_fail_half_way(root: Path, disk: FaultFS) -> None:
    fd = fs.open(root / "a", create=True)
    disk.fail("pwrite", partial=2)
    with pytest.raises(StorageError):
        fs.pwrite(fd, b"abcdef", 0)
    assert fs.pread(fd, 10, 0) == b"ab"
    fs.close(fd)
    assert image(disk, KEPT) == {"a": b"ab"}


@pytest.mark.parametrize(
    "call", ["open", "truncate", "rename", "unlink", "make_directory", "rmdir", "fsync", "fdatasync", "sync_directory"]
)
def test_every_change_can_be_failed_and_then_nothing_is_changed(root: Path, disk: FaultFS, call: str) -> None:
    (root / "a").write_bytes(b"abc")
    (root / "d").mkdir()
    fd = fs.open(root / "a", write=True)
    before = tree(root)
    acts = {
        "open": lambda: fs.open(root / "b", create=True),
        "truncate": lambda: fs.truncate(fd, 0),
        "rename": lambda: fs.rename(root / "a", root / "b"),
        "unlink": lambda: fs.unlink(root / "a"),
        "make_directory": lambda: fs.mkdir(root / "e"),
        "rmdir": lambda: fs.rmdir(root / "d"),
        "fsync": lambda: fs.fsync(fd),
        "fdatasync": lambda: fs.fdatasync(fd),
        "sync_directory": lambda: fs.sync_directory(root),
    }
    disk.fail(times=-1)
    with pytest.raises(StorageError) as caught:
        acts[call]()
    assert caught.value.errno == errno.EIO
    assert tree(root) == before
    disk.heal()
    acts[call]()
    fs.close(fd)


def test_reads_can_be_failed_by_name_and_by_path(root: Path, disk: FaultFS) -> None:
    fs.write_file(root / "a.log", b"x")
    fs.write_file(root / "a.index", b"x")
    disk.fail("pread", path="*.index", times=-1)
    assert fs.read_file(root / "a.log") == b"x"
    for _ in range(2):
        with pytest.raises(StorageError):
            fs.read_file(root / "a.index")


# Power cuts


def test_bytes_without_a_sync_are_lost_or_kept_or_short_or_zeros(root: Path, disk: FaultFS) -> None:
    fd = fs.open(root / "a", create=True)
    fs.pwrite(fd, b"sync", 0)
    fs.fsync(fd)
    fs.sync_directory(root)
    fs.pwrite(fd, b"lost", 4)
    fs.close(fd)
    expected = {
        LOST: b"sync",
        KEPT: b"synclost",
        DATA_LOST: b"sync",
        NAMES_LOST: b"synclost",
        DATA_ZEROS: b"sync\0\0\0\0",
        DATA_SHORT: b"synclo",
    }
    assert {plan: image(disk, plan)["a"] for plan in PLANS} == expected


def test_a_later_write_may_survive_an_earlier_one(root: Path, disk: FaultFS) -> None:
    fd = fs.open(root / "a", create=True)
    fs.pwrite(fd, b"one", 0)
    fs.pwrite(fd, b"two", 3)
    fs.close(fd)
    fs.sync_directory(root)
    found = {image(disk, shuffled(random.Random(seed))).get("a") for seed in range(60)}
    assert {b"", b"onetwo", b"\0\0\0two", b"one", b"one\0\0\0"} <= found


def test_a_synced_file_without_a_synced_name_is_lost(root: Path, disk: FaultFS) -> None:
    fs.write_file(root / "a", b"x")
    assert image(disk) == {}
    fs.sync_directory(root)
    assert image(disk) == {"a": b"x"}


def test_a_rename_and_an_unlink_hold_once_their_directory_is_synced(root: Path, disk: FaultFS) -> None:
    for name in ("a", "b"):
        fs.write_atomically(root / name, name.encode())
    fs.rename(root / "a", root / "c")
    fs.unlink(root / "b")
    assert image(disk) == {"a": b"a", "b": b"b"}
    assert image(disk, KEPT) == {"c": b"a"}
    fs.sync_directory(root)
    assert image(disk) == {"c": b"a"}


def test_a_directory_moves_with_all_that_is_in_it(root: Path, disk: FaultFS) -> None:
    fs.mkdir(root / "t-0")
    fs.write_atomically(root / "t-0" / "a", b"x")
    fs.rename(root / "t-0", root / "t-0-delete")
    fs.write_atomically(root / "t-0-delete" / "b", b"y")
    assert image(disk) == {"t-0": None, "t-0/a": b"x", "t-0/b": b"y"}
    assert image(disk, KEPT) == tree(root)


def test_a_directory_whose_name_was_not_synced_takes_its_files_with_it(root: Path, disk: FaultFS) -> None:
    fs.make_directory(root / "d")
    fs.write_atomically(root / "d" / "a", b"x")
    assert image(disk) == {}
    fs.sync_directory(root)
    assert image(disk) == {"d": None, "d/a": b"x"}


def test_a_truncation_that_was_not_synced_may_be_undone(root: Path, disk: FaultFS) -> None:
    fs.write_atomically(root / "a", b"abcdef")
    fd = fs.open(root / "a", write=True)
    fs.truncate(fd, 2)
    fs.truncate(fd, 4)
    assert image(disk)["a"] == b"abcdef"
    assert image(disk, KEPT)["a"] == b"ab\0\0"
    fs.fdatasync(fd)
    assert image(disk)["a"] == b"ab\0\0"
    fs.close(fd)


def test_what_a_failed_sync_was_to_write_is_not_saved_by_the_next_one(root: Path, disk: FaultFS) -> None:
    fs.write_atomically(root / "a", b"")
    fd = fs.open(root / "a", write=True)
    fs.pwrite(fd, b"one", 0)
    disk.fail("fdatasync")
    with pytest.raises(StorageError):
        fs.fdatasync(fd)
    fs.pwrite(fd, b"two", 3)
    fs.fdatasync(fd)
    fs.close(fd)
    assert image(disk)["a"] == b"\0\0\0two"
    assert image(disk, KEPT)["a"] == b"onetwo"


def test_an_image_of_an_earlier_step_knows_nothing_of_later_ones(root: Path, disk: FaultFS) -> None:
    fs.write_atomically(root / "a", b"one")
    step = disk.step
    fs.write_atomically(root / "a", b"two")
    assert image(disk, KEPT, step) == {"a": b"one"}
    assert image(disk, KEPT, 0) == {}
    assert image(disk) == {"a": b"two"}


def test_the_numbers_of_deleted_files_are_not_mixed_up_with_those_of_new_ones(root: Path, disk: FaultFS) -> None:
    for round_ in range(5):  # the system gives the same inode again
        fs.write_atomically(root / "a", b"%d" % round_)
        fs.unlink(root / "a")
        fs.write_file(root / "b", b"b%d" % round_)
        assert image(disk, KEPT) == {"b": b"b%d" % round_}
        fs.unlink(root / "b")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("ab"), st.integers(0, 9), st.binary(max_size=6)),
        st.tuples(st.just("truncate"), st.sampled_from("ab"), st.integers(0, 9), st.just(b"")),
        st.tuples(st.just("rename"), st.sampled_from("ab"), st.integers(0, 1), st.just(b"")),
        st.tuples(st.just("unlink"), st.sampled_from("ab"), st.just(0), st.just(b"")),
        st.tuples(st.just("replace"), st.sampled_from("ab"), st.just(0), st.binary(max_size=6)),
        st.tuples(st.just("sync"), st.sampled_from("ab"), st.just(0), st.just(b"")),
        st.tuples(st.just("sync directory"), st.just("a"), st.just(0), st.just(b"")),
    ),
    max_size=20,
)


def act(root: Path, step: tuple[str, str, int, bytes]) -> None:
    what, name, number, data = step
    path = root / "d" / name
    if what == "replace":
        fs.write_atomically(path, data)
    elif what == "rename" and path.exists():
        fs.rename(path, root / "cd"[number])
    elif what == "unlink":
        fs.unlink(path)
    elif what == "sync directory":
        fs.sync_directory(root / "d")
    elif what in ("write", "truncate", "sync"):
        fd = fs.open(path, create=True)
        if what == "write":
            fs.pwrite(fd, data, number)
        elif what == "truncate":
            fs.truncate(fd, number)
        else:
            fs.fsync(fd)
        fs.close(fd)


@given(STEPS, st.integers(0, 2**32))
def test_the_kept_image_is_always_the_tree_and_after_all_syncs_every_image_is(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("any") / "root"
    (root / "d").mkdir(parents=True)
    steps = [step for step in steps if step[0] != "rename" or step[2] == 0]  # "d" is the directory
    with FaultFS(root) as disk:
        for step in steps:
            act(root, step)
            assert image(disk, KEPT) == tree(root)
        for path in root.rglob("*"):
            if path.is_file():
                fd = fs.open(path)
                fs.fsync(fd)
                fs.close(fd)
        for path in (root, root / "d"):
            fs.sync_directory(path)
        for plan in (*PLANS, shuffled(random.Random(seed))):
            assert image(disk, plan) == tree(root)


# What the images are for


def every_content(disk: FaultFS, name: str, since: int) -> set[bytes | None]:
    plans = (*PLANS, *(shuffled(random.Random(seed)) for seed in range(5)))
    images = disk.crash_images(disk.root.parent / "images", *plans, since=since)
    return {(path / name).read_bytes() if (path / name).exists() else None for _, _, path in images}


def test_an_atomic_write_leaves_the_old_content_or_the_new_at_any_power_cut(root: Path, disk: FaultFS) -> None:
    """FORMAT 1.9."""
    (root.parent / "images").mkdir()
    fs.write_atomically(root / "a", b"the old content")
    since = disk.step
    fs.write_atomically(root / "a", b"new")
    assert every_content(disk, "a", since) == {b"the old content", b"new"}


def test_a_replacement_that_is_not_synced_before_its_rename_is_found_out(root: Path, disk: FaultFS) -> None:
    (root.parent / "images").mkdir()
    fs.write_atomically(root / "a", b"the old content")
    since = disk.step
    fs.write_file(root / "a.tmp", b"new", sync=False)
    fs.rename(root / "a.tmp", root / "a")
    fs.sync_directory(root)
    assert every_content(disk, "a", since) - {b"the old content", b"new"}


def test_a_checkpoint_update_loses_no_line_of_others_at_any_power_cut(root: Path, disk: FaultFS) -> None:
    (root.parent / "images").mkdir()
    name = checkpoint.RECOVERY_POINTS
    checkpoint.write_offsets(root, name, {("other", 0): 7, ("mine", 0): 1})
    since = disk.step
    checkpoint.update_offsets(root, name, {("mine", 0): 2})
    for _, plan, path in disk.crash_images(root.parent / "images", *PLANS, since=since):
        found = checkpoint.read_offsets(path, name)
        assert found["other", 0] == 7, plan
        assert found["mine", 0] in (1, 2), plan


def test_a_removed_clean_mark_does_not_come_back_after_a_power_cut(root: Path, disk: FaultFS) -> None:
    checkpoint.write_clean_marker(root)
    checkpoint.remove_clean_marker(root)
    assert all(checkpoint.CLEAN_MARKER not in image(disk, plan) for plan in PLANS)
