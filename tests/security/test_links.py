"""Links, pipes, sockets, devices and directories in the places of files: refused or passed over, and never waited for.

Everything that kstore opens in a data directory goes through `fs.open` or a lock; what a caller names may be a link.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore import Log, LogConfig, StorageError, Store, TopicExistsError
from kstore.disk import fs
from kstore.store.catalog import look
from kstore.tools.check.verify import verify

SECRET = b"a file of another user\n"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the store, with a file; nothing in it may have changed in the end."""
    there = tmp_path / "outside"
    (there / "t-9").mkdir(parents=True)
    (there / "file").write_bytes(SECRET)
    yield there
    assert sorted(str(path.relative_to(there)) for path in there.rglob("*")) == ["file", "t-9"]
    assert (there / "file").read_bytes() == SECRET


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one topic of one record, closed."""
    path = tmp_path / "root"
    with Store.open(path, background=False) as store:
        store.create_topic("t")
        store.append("t", b"first", partition=0)
    return path


def link(outside: Path, at: Path) -> None:
    at.symlink_to(outside / "file")


def dangling_link(outside: Path, at: Path) -> None:
    at.symlink_to(outside / "new")


def link_to_itself(outside: Path, at: Path) -> None:
    at.symlink_to(at.name)


def pipe(outside: Path, at: Path) -> None:
    os.mkfifo(at)


def listening_socket(outside: Path, at: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(at.parent)  # a socket's path is short
        try:
            made.bind(at.name)
        finally:
            os.chdir(here)


def directory(outside: Path, at: Path) -> None:
    at.mkdir()


def device(outside: Path, at: Path) -> None:
    try:
        os.mknod(at, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which has no end
    except PermissionError:
        pytest.skip("only root makes devices")


KINDS = [link, dangling_link, link_to_itself, pipe, listening_socket, directory, device]

ROOT_FILES = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "kstore-topics.json",
    "kstore-commit.json",
    "kstore-loads.json",
    ".lock",
]
PARTITION_FILES = [
    "00000000000000000000.log",
    "leader-epoch-checkpoint",
    "partition.metadata",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [False, True])
def test_only_a_regular_file_is_opened(outside: Path, tmp_path: Path, kind: Callable[..., None], write: bool) -> None:
    kind(outside, tmp_path / "x")
    with pytest.raises(StorageError, match="is here, and") as error:
        fs.open(tmp_path / "x", write=write)
    assert error.value.filename == str(tmp_path / "x")
    with pytest.raises(StorageError):
        fs.write_file(tmp_path / "x", b"new content")


def test_a_link_that_the_caller_named_is_followed_and_a_pipe_behind_it_is_not(outside: Path, tmp_path: Path) -> None:
    link(outside, tmp_path / "x")
    assert fs.read_file(tmp_path / "x", follow=True) == SECRET
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "y").symlink_to("pipe")
    with pytest.raises(StorageError, match="a named pipe is here"):
        fs.read_file(tmp_path / "y", follow=True)


def test_settings_are_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.segment.bytes=2048\n")
    (tmp_path / "current").symlink_to("server.properties")
    assert LogConfig.from_kafka(tmp_path / "current").segment_bytes == 2048


@pytest.mark.parametrize("name", ROOT_FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_root_that_is_none_refuses_the_store(
    outside: Path, root: Path, kind: Callable[..., None], name: str
) -> None:
    (root / name).unlink(missing_ok=True)
    kind(outside, root / name)
    with pytest.raises(StorageError) as error:
        Store.open(root, background=False)
    assert error.value.filename == str(root / name)


@pytest.mark.parametrize("name", PARTITION_FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_partition_that_is_none_refuses_the_log(
    outside: Path, root: Path, kind: Callable[..., None], name: str
) -> None:
    path = root / "t-0" / name
    path.unlink(missing_ok=True)
    kind(outside, path)

    def use() -> None:
        with Store.open(root, background=False) as store:
            store.topic_id("t")
            list(store.log("t", 0).read())

    with pytest.raises(StorageError) as error:
        use()
    assert error.value.filename == str(path)


@pytest.mark.parametrize("name", [*ROOT_FILES, "partition.metadata", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("kind", [link, dangling_link, link_to_itself, pipe, listening_socket, device])
def test_what_stands_where_a_file_is_prepared_is_removed_and_not_written_to(
    outside: Path, root: Path, kind: Callable[..., None], name: str
) -> None:
    at = root / name if name in ROOT_FILES else root / "t-0" / name
    kind(outside, Path(f"{at}.tmp"))
    fs.write_atomically(at, b"x")
    assert stat.S_ISREG(at.lstat().st_mode)
    assert not os.path.lexists(f"{at}.tmp")


def test_a_hard_link_where_a_file_is_prepared_is_not_written_through(outside: Path, root: Path) -> None:
    os.link(outside / "file", root / "kstore-topics.json.tmp")
    with Store.open(root, background=False) as store:
        store.create_topic("u", config={"retention.ms": 1})


# Partition directories


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["u-0", "u-0.0123456789abcdef0123456789abcdef-delete", "something"])
@pytest.mark.parametrize("mode", ["r", "a"])
def test_what_is_no_directory_in_a_root_keeps_nothing_from_being_used(
    outside: Path, root: Path, kind: Callable[..., None], name: str, mode: str
) -> None:
    kind(outside, root / name)
    clock = iter(range(0, 10**12, 10**8)).__next__
    with Store.open(root, mode, background=False, clock=clock) as store:  # type: ignore[arg-type]
        assert [record.value for record in store.read("t")] == [b"first"]
        if mode == "a":
            store.run_housekeeping()
    assert verify([root]).errors == 0


def test_a_partition_that_is_a_link_is_passed_over_with_a_warning(  # links-are-passed-over
    outside: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "u-0").symlink_to(outside / "t-9")
    with caplog.at_level(logging.WARNING, "kstore"), Store.open(root, background=False) as store:
        assert store.topics == ("t",)
        assert store.stats()["passed_over"] == [str(root / "u-0")]
    assert f"{root}/u-0: passed over, a symbolic link is not followed" in caplog.text
    (note,) = [each for each in verify([root]).findings if each.path.endswith("u-0")]
    assert (note.severity, note.what) == ("note", "a symbolic link: kstore does not follow it, a broker does")


def test_a_topic_is_not_made_where_a_link_has_the_name_of_its_partition(outside: Path, root: Path) -> None:
    (root / "u-0").symlink_to(outside / "t-9")
    with Store.open(root, background=False) as store:
        with pytest.raises(StorageError, match="a symbolic link has the name") as error:
            store.create_topic("u")
        assert (error.value.errno, error.value.filename) == (errno.EEXIST, str(root / "u-0"))
        with pytest.raises(TopicExistsError):
            store.create_topic("t")


def test_a_directory_is_not_made_where_a_link_leads_to_one(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "u").symlink_to(outside)
    with pytest.raises(StorageError, match="a symbolic link is here"):
        fs.make_directory(tmp_path / "u")


def test_a_deleted_partition_that_is_a_link_takes_nothing_with_it(outside: Path, root: Path) -> None:
    at = root / "u-0.0123456789abcdef0123456789abcdef-delete"
    at.symlink_to(outside)
    assert look([str(root)]).deleted == []
    with pytest.raises(StorageError, match="a symbolic link is here"):
        fs.remove_tree(at)
    assert at.is_symlink()


def test_a_root_and_a_lone_log_that_the_caller_names_may_be_links(root: Path) -> None:
    (root.parent / "way").symlink_to(root)
    with Store.open(root.parent / "way", background=False) as store:
        assert store.topics == ("t",)
    (root.parent / "l-0").symlink_to(root / "t-0")
    with Log.open(root.parent / "l-0") as log:
        assert log.append(b"second") == 1


# Removing


def test_what_lies_inside_of_too_many_directories_is_left_alone(tmp_path: Path) -> None:
    at = tmp_path / "tree"
    at.mkdir()
    for _ in range(fs.MAX_DEPTH):
        at = at / "x"
        at.mkdir()
    with pytest.raises(StorageError, match="more than 32 directories") as error:
        fs.remove_tree(tmp_path / "tree")
    assert error.value.errno == errno.ELOOP
    at.rmdir()
    fs.remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_directory_that_becomes_a_link_while_it_is_removed_leads_nowhere(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    real = fs.unlink

    def swap(path: str, **how: int) -> bool:
        if path.endswith("a/file"):
            (tmp_path / "tree").rename(tmp_path / "away")
            (tmp_path / "tree").symlink_to(outside)
            (tmp_path / "away" / "b").rename(tmp_path / "away" / "c")
            (tmp_path / "away" / "b").symlink_to(outside)
        return real(path, **how)

    monkeypatch.setattr(fs, "unlink", swap)
    with pytest.raises(StorageError):
        fs.remove_tree(tmp_path / "tree")
    assert (tmp_path / "away" / "c" / "file").exists()


@pytest.mark.parametrize("at", ["area", "area/job", "area/job/task-1"])
def test_no_part_of_the_way_to_what_is_removed_may_be_a_link(outside: Path, tmp_path: Path, at: str) -> None:
    target = outside
    for part in reversed("area/job/task-1".removeprefix(at).split("/")):
        if part:
            (tmp_path / "made" / part).parent.mkdir(exist_ok=True)
            target = tmp_path / "made"
            (tmp_path / "made" / part).mkdir(exist_ok=True)
    (tmp_path / at).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / at).symlink_to(target)
    with pytest.raises(StorageError, match="a symbolic link is here") as error:
        fs.remove_tree(tmp_path / "area" / "job" / "task-1", below=tmp_path / "area")
    assert error.value.filename == str(tmp_path / at)


@pytest.mark.parametrize("path", ["area", "other/x", "area/../other/x", "/etc"])
def test_what_is_not_below_is_not_removed(tmp_path: Path, path: str) -> None:
    (tmp_path / "area").mkdir()
    (tmp_path / "other" / "x").mkdir(parents=True)
    with pytest.raises(StorageError, match="not inside of"):
        fs.remove_tree(tmp_path / path, below=tmp_path / "area")
    assert (tmp_path / "other" / "x").exists()
