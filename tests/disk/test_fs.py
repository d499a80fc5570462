"""fs.py with handles.py and locks.py: files, directory syncs, owners of descriptors, locks."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import pickle
import random
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import crc32c as second_opinion
import pytest

from kstore.disk import _cached, fs, locks
from kstore.errors import LogLockedError, StorageError
from tests.conftest import SEED
from tests.support.interrupts import Interrupted


def in_child(body: Callable[[], object]) -> str:
    """What `body` returns, or the error it raises, in a forked child; the child's own end does nothing else."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = str(body())
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(write_end, answer.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer


def in_process(code: str, *arguments: object) -> str:
    """What another Python process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# Files


def test_a_descriptor_is_not_inherited_through_exec(tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "a", create=True)
    assert not os.get_inheritable(fd)
    fs.close(fd)


def test_a_file_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    fd = fs.open(tmp_path / "a")
    with pytest.raises(StorageError) as caught:
        fs.pwrite(fd, b"x", 0)
    fs.close(fd)
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename == str(tmp_path / "a")


def test_a_missing_file_is_both_a_storage_error_and_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        fs.open(tmp_path / "missing")
    assert isinstance(caught.value, StorageError)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.errno, again.filename) == (fs.MissingFileError, errno.ENOENT, caught.value.filename)


def test_a_new_file_must_not_exist_and_an_emptied_one_may(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(FileExistsError):
        fs.open(tmp_path / "a", new=True)
    fs.close(fs.open(tmp_path / "a", create=True))
    assert (tmp_path / "a").read_bytes() == b"abc"
    fs.close(fs.open(tmp_path / "a", empty=True))
    assert (tmp_path / "a").read_bytes() == b""


def test_writes_land_where_they_are_aimed_and_reads_stop_at_the_end(tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "a", new=True)
    fs.pwrite(fd, b"world", 6)
    fs.pwrite(fd, bytearray(b"hello "), 0)
    fs.pwrite(fd, memoryview(b"!"), 11)
    assert fs.pread(fd, 100, 0) == b"hello world!"
    assert fs.pread(fd, 5, 6) == b"world"
    assert fs.pread(fd, 5, 12) == b""
    buffer = bytearray(8)
    assert fs.pread_into(fd, buffer, 6) == 6
    assert buffer == b"world!\0\0"
    assert fs.size(fd) == 12
    fs.truncate(fd, 5)
    fs.truncate(fd, 7)
    assert fs.pread(fd, 100, 0) == b"hello\0\0"
    fs.fsync(fd)
    fs.fdatasync(fd)
    fs.close(fd)


def test_calls_that_move_less_than_asked_are_repeated_until_all_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UtilsTest.testReadFullyOrFailWithPartialFileChannelReads, UtilsTest.testReadFullyWithPartialFileChannelReads."""
    real_write, real_read, real_readv = os.pwrite, os.pread, os.preadv
    monkeypatch.setattr(_cached, "read", lambda fd, n, at: None)
    monkeypatch.setattr(_cached, "read_into", lambda fd, buffer, at: 0)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_write(fd, memoryview(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: real_read(fd, min(n, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real_readv(fd, [memoryview(buffers[0])[:3]], at))
    fd = fs.open(tmp_path / "a", new=True)
    fs.pwrite(fd, b"0123456789", 0)
    assert fs.pread(fd, 10, 0) == b"0123456789"
    buffer = bytearray(12)
    assert fs.pread_into(fd, buffer, 0) == 10
    fs.close(fd)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_write_that_moves_nothing_is_an_error_and_not_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    fd = fs.open(tmp_path / "a", new=True)
    with pytest.raises(StorageError, match="wrote nothing"):
        fs.pwrite(fd, b"x", 0)
    fs.close(fd)


def test_writing_that_is_begun_early_changes_nothing_and_tells_nothing(tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "a", new=True)
    fs.pwrite(fd, b"x" * 100_000, 0)
    fs.start_writing(fd)
    fs.fdatasync(fd)
    assert fs.pread(fd, 100_001, 0) == b"x" * 100_000
    fs.close(fd)
    fs.start_writing(fd)  # what is wrong with it, a sync would tell


def test_a_full_disk_keeps_its_errno() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(StorageError) as caught:
        fs.pwrite(fd, b"x", 0)
    fs.close(fd)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


def test_a_map_shows_the_file_and_one_longer_than_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    fd = fs.open(tmp_path / "a")
    with fs.map(fd, 3) as mapped:
        assert bytes(mapped) == b"abc"
        with pytest.raises(TypeError):
            mapped[0] = 1
    with pytest.raises(StorageError):
        fs.map(fd, 4)
    fs.close(fd)


PIECE = 256 << 10  # what a copy has in memory


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 17])
def test_a_stretch_of_a_file_is_copied_to_a_place_in_another_with_its_checksum(size: int, tmp_path: Path) -> None:
    data = random.Random(f"{SEED}:{size}").randbytes(size + 20)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(b"before")
    source, target = fs.open(tmp_path / "a"), fs.open(tmp_path / "b", write=True)
    assert fs.copy(source, 7, size, target, 3) == (size, second_opinion.crc32c(data[7 : 7 + size]))
    assert (tmp_path / "b").read_bytes()[: 3 + size] == b"bef" + data[7 : 7 + size]
    assert fs.copy(source, 7, size + 100, target, 0) == (size + 13, second_opinion.crc32c(data[7:]))
    assert fs.copy(source, size + 20, 5, target, 0) == (0, 0)
    fs.close(source), fs.close(target)


def test_a_copy_that_fails_names_the_file_that_it_failed_on(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    source, full = fs.open(tmp_path / "a"), os.open("/dev/full", os.O_RDWR)
    writing = os.open(tmp_path / "b", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(StorageError) as caught:
        fs.copy(source, 0, 10, full, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")
    with pytest.raises(StorageError) as caught:
        fs.copy(writing, 0, 10, source, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path / "b"))
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    for fd in (source, full, writing):
        os.close(fd)


def test_a_copy_that_has_no_room_for_the_rest_has_written_what_there_was_room_for(tmp_path: Path) -> None:
    data = random.Random(SEED).randbytes(1 << 20)
    (tmp_path / "a").write_bytes(data)
    script = """
        import errno, resource, sys
        from kstore.disk import fs
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
        source, target = fs.open(sys.argv[1]), fs.open(sys.argv[2], write=True, create=True)
        try:
            fs.copy(source, 0, 1 << 20, target, 0)
        except fs.StorageError as error:
            print(errno.errorcode[error.errno], error.filename)
    """
    arguments = [str(tmp_path / "a"), str(tmp_path / "b"), str(PIECE + 100)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["EFBIG", arguments[1]]
    assert (tmp_path / "b").read_bytes() == data[: PIECE + 100]


@pytest.mark.parametrize("target", ["socket", "file"])
def test_a_stretch_of_a_file_is_sent(tmp_path: Path, target: str) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    fd = fs.open(tmp_path / "a")
    if target == "socket":
        one, other = socket.socketpair()
        assert fs.sendfile(one.fileno(), fd, 3, 4) == 4
        assert other.recv(100) == b"3456"
        assert fs.sendfile(one.fileno(), fd, 10, 4) == 0
        one.close()
        other.close()
    else:
        with open(tmp_path / "b", "wb") as out:
            assert fs.sendfile(out.fileno(), fd, 3, 4) == 4
        assert (tmp_path / "b").read_bytes() == b"3456"
    assert fs.sendfile(-1, fd, 0, 0) == 0
    fs.close(fd)


def test_what_the_system_cannot_send_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "sendfile", refuse)
    (tmp_path / "a").write_bytes(b"0123456789")
    fd = fs.open(tmp_path / "a")
    with open(tmp_path / "b", "wb") as out:
        assert fs.sendfile(out.fileno(), fd, 3, 100) == 7
        assert fs.sendfile(out.fileno(), fd, 10, 100) == 0
    assert (tmp_path / "b").read_bytes() == b"3456789"
    fs.close(fd)


def test_a_peer_that_has_gone_is_no_storage_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    fd = fs.open(tmp_path / "a")
    one, other = socket.socketpair()
    other.close()
    with pytest.raises(BrokenPipeError) as caught:
        fs.sendfile(one.fileno(), fd, 0, 1)
    assert not isinstance(caught.value, StorageError)
    one.close()
    fs.close(fd)


# Whole files and names


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for content in (b"one", b"", b"three"):
        fs.write_atomically(tmp_path / "a", content)
        assert fs.read_file(tmp_path / "a") == content
    assert fs.listdir(tmp_path) == ["a"]


def test_an_atomic_write_is_synced_before_it_is_renamed_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORMAT 1.9."""
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(fs, name)
        monkeypatch.setattr(fs, name, lambda *given, **named: (calls.append(name), real(*given, **named))[1])

    for name in ("pwrite", "fsync", "close", "rename", "sync_directory"):
        watch(name)
    fs.write_atomically(tmp_path / "a", b"x")
    assert calls == ["pwrite", "fsync", "close", "rename", "sync_directory"]


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.write_atomically(tmp_path / "a", b"old")

    def fail(fd: int) -> None:
        raise StorageError(errno.EIO, "broken", "a")

    monkeypatch.setattr(fs, "fsync", fail)
    with pytest.raises(StorageError):
        fs.write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_file_in_the_working_directory_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fs.write_atomically("a", b"x")
    assert fs.mkdir("d")
    assert fs.read_file("a") == b"x"


def test_a_small_file_that_is_not_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "MAX_SMALL_FILE_BYTES", 3)
    (tmp_path / "a").write_bytes(b"abc")
    assert fs.read_file(tmp_path / "a") == b"abc"
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(StorageError) as caught:
        fs.read_file(tmp_path / "a")
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("size", [0, 1, 4094, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("most_bytes", [None, 10_000])
def test_read_file_gives_all_of_a_file_whatever_size_it_is_said_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most_bytes: int | None
) -> None:
    (tmp_path / "a").write_bytes(b"x" * size)
    assert fs.read_file(tmp_path / "a", most_bytes=most_bytes) == b"x" * size
    monkeypatch.setattr(fs, "size", lambda fd: 0)  # as of a file of the system's own, or one that grows meanwhile
    assert fs.read_file(tmp_path / "a", most_bytes=most_bytes) == b"x" * size
    with pytest.raises(StorageError, match="larger than the"):
        fs.read_file(tmp_path / "a", most_bytes=size - 1)


def test_a_rename_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    fs.rename(tmp_path / "a", tmp_path / "b")
    assert fs.listdir(tmp_path) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        fs.rename(tmp_path / "a", tmp_path / "b")


def test_deleting_what_is_not_there_is_told_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert fs.unlink(tmp_path / "a")
    assert not fs.unlink(tmp_path / "a")
    assert not fs.rmdir(tmp_path / "d")


def test_directories_are_made_with_those_above_them_and_each_parent_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = fs.sync_directory
    monkeypatch.setattr(fs, "sync_directory", lambda path: (synced.append(os.fspath(path)), real(path))[1])
    fs.make_directories(tmp_path / "x" / "y")
    assert (tmp_path / "x" / "y").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "x")]
    fs.make_directories(tmp_path / "x" / "y")
    assert not fs.mkdir(tmp_path / "x")
    assert len(synced) == 2


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        fs.mkdir(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(StorageError) as caught:
            fs.make_directories(path)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, str(tmp_path / "a"))
    with pytest.raises(StorageError):
        fs.listdir(tmp_path / "a")
    assert not fs.exists(tmp_path / "a" / "b")


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "a").touch()
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "a").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "keep")
    fs.remove_tree(tmp_path / "tree")
    fs.remove_tree(tmp_path / "tree")
    assert fs.listdir(tmp_path) == ["keep"]
    assert (tmp_path / "keep" / "a").exists()


def test_a_tree_is_removed_though_others_remove_from_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UtilsTest.testRecursiveDelete, UtilsTest.testRecursiveDeleteWithDeletedFile."""
    for name in ("a/c", "b", "d"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    (tmp_path / "tree" / "e").touch()
    unlink = fs.unlink

    def after_others(path: str, **how: Any) -> Any:
        for gone in ("tree/b/file", "tree/e"):
            (tmp_path / gone).unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "tree" / "d", ignore_errors=True)
        return unlink(path, **how)

    monkeypatch.setattr(fs, "unlink", after_others)
    fs.remove_tree(tmp_path / "tree")
    assert fs.listdir(tmp_path) == []
    fs.remove_tree(tmp_path / "tree")


def test_entries_come_sorted_with_their_sizes(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).write_bytes(name.encode() * 3)
    assert [(entry.name, entry.stat().st_size) for entry in fs.scandir(tmp_path)] == [("a", 3), ("b", 3), ("c", 3)]


def test_a_descriptor_knows_whether_its_path_still_names_it(tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "a", new=True)
    assert fs.is_at(fd, tmp_path / "a")
    fs.write_atomically(tmp_path / "a", b"another")
    assert not fs.is_at(fd, tmp_path / "a")
    fs.unlink(tmp_path / "a")
    assert not fs.is_at(fd, tmp_path / "a")
    fs.close(fd)


def test_a_missing_directory_is_synced_only_where_that_is_allowed(tmp_path: Path) -> None:
    fs.sync_directory(tmp_path / "gone", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.sync_directory(tmp_path / "gone")


# Handles


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_handles_close_what_they_own_once_and_refuse_more(tmp_path: Path) -> None:
    handles = fs.Handles()
    one, two = (handles.add(fs.open(tmp_path / name, new=True)) for name in "ab")
    handles.drop(one)
    handles.drop(one)
    assert not is_open(one)
    assert is_open(two)
    handles.close()
    handles.close()
    assert handles.closed
    assert not is_open(two)
    late = fs.open(tmp_path / "a")
    with pytest.raises(StorageError):
        handles.add(late)
    assert not is_open(late)


def test_a_descriptor_in_use_is_closed_when_the_last_use_ends(tmp_path: Path) -> None:
    handles = fs.Handles()
    one, two = (handles.add(fs.open(tmp_path / name, new=True)) for name in "ab")
    with handles.use():
        with handles.use():
            handles.drop(one)
        assert is_open(one)
        handles.close()
        assert is_open(one)
        assert is_open(two)
    assert not is_open(one)
    assert not is_open(two)


def test_handles_without_a_holder_close_their_descriptors(tmp_path: Path) -> None:
    handles = fs.Handles()
    fd = handles.add(fs.open(tmp_path / "a", new=True))
    del handles
    gc.collect()
    assert not is_open(fd)


def test_a_forked_child_has_closed_handles_and_the_parent_open_ones(tmp_path: Path) -> None:
    told: list[str] = []
    handles = fs.Handles(on_fork=lambda: told.append("told"))
    fd = handles.add(fs.open(tmp_path / "a", new=True))
    assert in_child(lambda: (handles.closed, is_open(fd), told)) == "(True, False, ['told'])"
    assert not handles.closed
    assert is_open(fd)
    handles.close()


def test_a_child_of_a_child_is_told_nothing_twice(tmp_path: Path) -> None:
    told: list[str] = []
    handles = fs.Handles(on_fork=lambda: told.append("told"))
    handles.add(fs.open(tmp_path / "a", new=True))
    assert in_child(lambda: in_child(lambda: told)) == "['told']"
    handles.close()


# Locks


@pytest.fixture(params=["open file", "process"])
def lock_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test of root locks runs with the locks of Linux and with those that every POSIX system has."""
    kind: str = request.param
    if kind == "process":
        monkeypatch.setattr(locks, "_HAS_OFD_LOCKS", False)
    elif not locks._HAS_OFD_LOCKS:
        pytest.skip("this system has no open-file-description locks")
    return kind


@pytest.mark.usefixtures("lock_kind")
def test_a_root_has_one_exclusive_holder_or_many_shared_ones(tmp_path: Path) -> None:
    """LogManagerTest.testTwoLogManagersUsingSameDirFails, FileLockTest.testLock, FileLockTest.testTryLock,
    FileLockTest.testUnlock."""
    with fs.lock_root(tmp_path, shared=True), fs.lock_root(tmp_path, shared=True), pytest.raises(LogLockedError):
        fs.lock_root(tmp_path, shared=False)
    with fs.lock_root(tmp_path, shared=False):
        with pytest.raises(LogLockedError) as caught:
            fs.lock_root(tmp_path, shared=True)
        with pytest.raises(LogLockedError):
            fs.lock_root(tmp_path, shared=False)
    assert caught.value.filename == str(tmp_path / ".lock")
    assert caught.value.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    fs.lock_root(tmp_path, shared=False).release()


@pytest.mark.usefixtures("lock_kind")
def test_a_shared_lock_that_is_released_leaves_the_others_shared(tmp_path: Path) -> None:
    one, two = fs.lock_root(tmp_path, shared=True), fs.lock_root(tmp_path, shared=True)
    one.release()
    one.release()
    assert not one.held
    with pytest.raises(LogLockedError):
        fs.lock_root(tmp_path, shared=False)
    two.release()
    fs.lock_root(tmp_path, shared=False).release()


@pytest.mark.usefixtures("lock_kind")
def test_a_lock_stays_while_other_descriptors_of_its_file_are_opened_and_closed(tmp_path: Path) -> None:
    """A plain POSIX record lock is lost here, when it is not kept from happening."""
    with fs.lock_root(tmp_path, shared=False):
        with pytest.raises(LogLockedError):
            fs.lock_root(tmp_path, shared=True)
        with fs.checkpoint_lock(tmp_path):
            pass
        assert in_child(lambda: fs.lock_root(tmp_path, shared=True)).startswith("LogLockedError")


@pytest.mark.usefixtures("lock_kind")
def test_the_lock_file_is_made_and_never_deleted(tmp_path: Path) -> None:
    """docs/compatibility.md: `lock-file-stays`."""
    fs.lock_root(tmp_path, shared=False).release()
    assert fs.listdir(tmp_path) == [".lock"]
    assert (tmp_path / ".lock").read_bytes() == b""


@pytest.mark.usefixtures("lock_kind")
def test_a_lock_without_a_holder_is_released(tmp_path: Path) -> None:
    lock = fs.lock_root(tmp_path, shared=False)
    assert lock.held
    del lock
    gc.collect()
    fs.lock_root(tmp_path, shared=False).release()


@pytest.mark.usefixtures("lock_kind")
def test_a_deleted_lock_file_does_not_let_two_holders_meet(tmp_path: Path) -> None:
    """A broker that stops deletes its `.lock` (SEMANTICS 13.2): later holders must meet at the new file."""
    old = fs.lock_root(tmp_path, shared=False)
    (tmp_path / ".lock").unlink()
    with fs.lock_root(tmp_path, shared=False) as new:
        old.release()
        with pytest.raises(LogLockedError):
            fs.lock_root(tmp_path, shared=False)
        assert new.held


def test_a_lock_won_on_a_file_that_was_deleted_meanwhile_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl
    deleted = []

    def delete_first(fd: int, command: int, *rest: bytes) -> object:
        if command == getattr(fcntl, "F_OFD_SETLK", None) and not deleted:
            deleted.append((tmp_path / ".lock").unlink())
        return real(fd, command, *rest)

    monkeypatch.setattr(fcntl, "fcntl", delete_first)
    with fs.lock_root(tmp_path, shared=False):
        assert deleted
        assert in_child(lambda: fs.lock_root(tmp_path, shared=True)).startswith("LogLockedError")


@pytest.mark.usefixtures("lock_kind")
def test_a_forked_child_holds_no_lock_and_takes_none_from_its_parent(tmp_path: Path) -> None:
    root, partition = fs.lock_root(tmp_path, shared=False), fs.lock_partition(tmp_path)

    def child() -> object:
        held = root.held, partition.held
        root.release()
        partition.release()
        return held

    assert in_child(child) == "(False, False)"
    assert in_child(lambda: fs.lock_root(tmp_path, shared=True)).startswith("LogLockedError")
    assert in_child(lambda: fs.lock_partition(tmp_path)).startswith("LogLockedError")
    root.release()
    partition.release()
    assert in_child(lambda: fs.lock_root(tmp_path, shared=False).held) == "True"
    assert in_child(lambda: fs.lock_partition(tmp_path).held) == "True"


@pytest.mark.usefixtures("lock_kind")
def test_a_child_that_lives_on_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = fs.lock_root(tmp_path, shared=False)
    go_read, go_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        os.read(go_read, 1)
        os._exit(0)
    lock.release()
    fs.lock_root(tmp_path, shared=False).release()
    os.close(go_write)
    os.close(go_read)
    os.waitpid(pid, 0)


BROKER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.usefixtures("lock_kind")
@pytest.mark.parametrize("shared", [True, False])
def test_a_brokers_lock_on_the_whole_file_excludes_ours_and_is_excluded_by_it(tmp_path: Path, shared: bool) -> None:
    """FORMAT 1.6: the broker's is an exclusive POSIX record lock, taken here by another process."""
    with fs.lock_root(tmp_path, shared=shared):
        assert in_process(BROKER, tmp_path / ".lock") == "refused"
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, tmp_path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        assert broker.stdout.readline() == "locked\n"
        with pytest.raises(LogLockedError) as caught:
            fs.lock_root(tmp_path, shared=shared)
        broker.stdin.close()
    if sys.platform == "linux":
        assert caught.value.pid == broker.pid
    fs.lock_root(tmp_path, shared=shared).release()


JAVA = """
import java.io.*; import java.nio.channels.*; import java.nio.file.*;
class TryLock {
    public static void main(String[] args) throws IOException {
        while (System.in.read() >= 0) {
            FileChannel channel = FileChannel.open(Paths.get(args[0]), StandardOpenOption.CREATE,
                StandardOpenOption.READ, StandardOpenOption.WRITE);
            FileLock lock = channel.tryLock();
            System.out.println(lock == null ? "refused" : "locked");
            System.in.read();
            channel.close();
        }
    }
}
"""


@pytest.mark.kafka
@pytest.mark.skipif(shutil.which("java") is None, reason="no java")
def test_javas_own_lock_excludes_ours_and_is_excluded_by_it(tmp_path: Path) -> None:
    (tmp_path / "TryLock.java").write_text(JAVA)
    command = ["java", "-XX:TieredStopAtLevel=1", tmp_path / "TryLock.java", tmp_path / ".lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as java:
        assert java.stdin is not None
        assert java.stdout is not None

        def tell() -> None:  # turn by turn: to try the lock, and to close it
            assert java.stdin is not None
            java.stdin.write(b".")
            java.stdin.flush()

        for shared in (True, False):
            with fs.lock_root(tmp_path, shared=shared):
                tell()
                assert java.stdout.readline() == b"refused\n"
                tell()
        tell()
        assert java.stdout.readline() == b"locked\n"
        for shared in (True, False):
            with pytest.raises(LogLockedError) as caught:
                fs.lock_root(tmp_path, shared=shared)
            assert caught.value.pid == java.pid
        java.stdin.close()


LOCK_AND_WAIT = """
import sys
from kstore.disk import fs
lock = fs.lock_root(sys.argv[1], shared=False) if sys.argv[2] == "root" else fs.lock_partition(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the pid is found where /proc tells")
@pytest.mark.parametrize("what", ["root", "partition"])
def test_the_error_names_the_process_that_holds_an_open_files_lock(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LogLockedError, match=f"process {holder.pid}") as caught:
            fs.lock_root(tmp_path, shared=True) if what == "root" else fs.lock_partition(tmp_path)
        holder.stdin.close()
    assert caught.value.pid == holder.pid


def test_a_partition_has_one_writer_in_a_process_and_among_processes(tmp_path: Path) -> None:
    with fs.lock_partition(tmp_path):
        with pytest.raises(LogLockedError):
            fs.lock_partition(tmp_path)
        assert in_child(lambda: fs.lock_partition(tmp_path)).startswith("LogLockedError")
    assert fs.listdir(tmp_path) == []
    fs.lock_partition(tmp_path).release()


def test_a_partition_that_is_missing_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.lock_partition(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        fs.lock_root(tmp_path / "gone", shared=True)


@pytest.mark.usefixtures("lock_kind")
def test_the_checkpoint_lock_waits_for_its_turn_and_does_not_meet_the_roots(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with fs.checkpoint_lock(tmp_path):
            order.append("second")

    with fs.lock_root(tmp_path, shared=False):
        with fs.checkpoint_lock(tmp_path):
            thread = threading.Thread(target=second)
            thread.start()
            assert waiting.wait(60)
            order.append("first")
        thread.join(60)
    assert order == ["first", "second"]


def run_interrupted(at: int, act: Callable[[], object]) -> int:
    """Do `act`, interrupted before the line of locks.py that is number `at`; how many lines were begun."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != locks.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def take_and_give_back(root: Path) -> None:
    with fs.checkpoint_lock(root):
        pass


@pytest.mark.skipif(not locks._HAS_OFD_LOCKS, reason="a tracer also stops where no signal can: at the end of a block")
def test_an_interrupt_at_any_line_of_taking_and_giving_back_a_lock_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.0)
    at = 0
    while True:
        at += 1
        try:
            if run_interrupted(at, partial(take_and_give_back, tmp_path)) < at:
                break
        except Interrupted:  # the error, and the frames that it knows of, are kept meanwhile
            fs.checkpoint_lock(tmp_path).release()
    assert at > 10


INTERRUPT = """
import os, random, signal, sys
from kstore.disk import fs, locks

class Interrupted(BaseException):
    pass

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise Interrupted

def take_and_give_back():
    with fs.checkpoint_lock(sys.argv[1]):
        pass

locks.WAIT_SECONDS = 0.0
locks._HAS_OFD_LOCKS = sys.argv[2] == "open file"
sys.unraisablehook = lambda *_: None  # an interrupt may come in a weak reference's callback
choose = random.Random(16)
armed = False
take_and_give_back()
before = len(os.listdir("/proc/self/fd"))
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for _ in range(2000):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-6, 1e-4))
        while signal.getitimer(signal.ITIMER_REAL)[0]:  # until it has rung, however fast the machine is
            for _ in range(5):
                take_and_give_back()
        armed = False
    except Interrupted:
        interrupted += 1
        take_and_give_back()
print(interrupted > 1000, len(os.listdir("/proc/self/fd")) - before)
"""


def test_a_signal_at_any_moment_leaves_the_lock_free_and_no_descriptor_open(tmp_path: Path, lock_kind: str) -> None:
    found = in_process(INTERRUPT, tmp_path, lock_kind).split()
    assert found[0] == "True"
    if lock_kind == "open file":  # Python code opens and closes the others
        assert found[1] == "0"


@pytest.mark.usefixtures("lock_kind")
def test_waiting_for_the_checkpoint_lock_has_a_limit_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.01)
    with fs.checkpoint_lock(tmp_path):
        with pytest.raises(LogLockedError, match=rf"this process \({os.getpid()}\), after a wait of 0.01 s") as caught:
            fs.checkpoint_lock(tmp_path)
        assert caught.value.pid == os.getpid()
        assert caught.value.filename == str(tmp_path / ".lock")
    fs.checkpoint_lock(tmp_path).release()


HOLD = """
import sys
from kstore.disk import fs
with fs.checkpoint_lock(sys.argv[1]) if sys.argv[2] == "1" else fs.lock_root(sys.argv[1], shared=True):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the pid is found where /proc tells")
def test_the_error_after_the_limit_names_the_process_that_holds_this_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F_OFD_GETLK tells -1 for the owner, and a lone log of any process holds byte 0 of the same file."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.01)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        fs.lock_root(tmp_path, shared=True),
        subprocess.Popen([*command, "0"], **pipes) as other,
        subprocess.Popen([*command, "1"], **pipes) as holder,
    ):
        assert other.stdout.readline() == holder.stdout.readline() == "locked\n"
        with pytest.raises(LogLockedError, match=f"process {holder.pid}") as caught:
            fs.checkpoint_lock(tmp_path)
        assert caught.value.pid == holder.pid
        holder.stdin.close()
        holder.wait()
        fs.checkpoint_lock(tmp_path).release()
        other.stdin.close()


COUNT = """
import sys
import kstore
from kstore.disk import fs, locks
locks._HAS_OFD_LOCKS = sys.argv[2] == "open file"
for _ in range(40):
    with fs.checkpoint_lock(sys.argv[1]):
        before = int(fs.read_file(sys.argv[1] + "/count"))
        fs.write_file(sys.argv[1] + "/count", str(before + 1).encode(), sync=False)
"""


def test_processes_and_threads_with_the_checkpoint_lock_lose_no_update(tmp_path: Path, lock_kind: str) -> None:
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path), lock_kind]
    with subprocess.Popen(command) as one, subprocess.Popen(command) as two:

        def count() -> None:
            for _ in range(40):
                with fs.checkpoint_lock(tmp_path):
                    before = int((tmp_path / "count").read_text())
                    (tmp_path / "count").write_text(str(before + 1))

        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (one.returncode, two.returncode) == (0, 0)
    assert (tmp_path / "count").read_text() == "160"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF])
def test_a_file_system_that_cannot_lock_is_said_and_is_not_taken_for_a_held_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(fcntl, "flock", refuse)
    for lock in (lambda: fs.lock_root(tmp_path, shared=True), lambda: fs.lock_partition(tmp_path)):
        with pytest.raises(StorageError, match="cannot lock files here") as caught:
            lock()
        assert not isinstance(caught.value, LogLockedError)
        assert caught.value.errno == number


def test_a_lock_file_is_made_readable_as_other_files_are(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        fs.lock_root(tmp_path, shared=True).release()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o644


def test_the_end_of_the_interpreter_gives_up_locks_and_handles_in_silence(tmp_path: Path) -> None:
    code = """
import sys
from kstore.disk import fs
handles = fs.Handles()
handles.add(fs.open(sys.argv[1] + "/a", create=True))
root, partition = fs.lock_root(sys.argv[1], shared=False), fs.lock_partition(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    fs.lock_root(tmp_path, shared=False).release()
