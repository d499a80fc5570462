"""A disk that fails under a store, and a crash while it is closed: what goes offline, what goes on, what is lost.

SEMANTICS 0.9, 13.9: the first error of a directory's disk takes that directory out of service, and no other.
"""

from __future__ import annotations

import errno
import itertools
import subprocess
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from tests.conftest import ManualClock
from tests.support.faultfs import DATA_LOST, LOST, NAMES_LOST, FaultFS

SMALL = {"segment_index_bytes": 4096, "background": False}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two log directories: partition 0 of `events` is in the first, 1 in the second, and so on."""
    found = [tmp_path / "a", tmp_path / "b"]
    with kstore.Store.open(found, **SMALL) as store:
        store.create_topic("events", 4)
        for number in range(4):
            store.log("events", number).append_many([b"acknowledged"] * 3, sync=True)
    return found


def check_after(paths: list[Path], expected: dict[int, int]) -> None:
    """After a new opening each partition holds at least so many records, all sound."""
    with kstore.Store.open(paths, **SMALL) as store:
        for number, least in expected.items():
            records = list(store.log("events", number).read())
            assert len(records) >= least
            assert [record.value for record in records[:3]] == [b"acknowledged"] * 3


@pytest.mark.parametrize(
    ("calls", "pattern", "error"),
    [
        (("pwrite",), "*.log", errno.EIO),
        (("pwrite",), "*.log", errno.EROFS),
        (("fdatasync",), "*.log", errno.EIO),
        (("fdatasync",), "*.index", errno.EIO),
        (("sync_directory",), "events-1", errno.EIO),
    ],
)
def test_a_failing_disk_takes_its_directory_offline_and_no_other(
    paths: list[Path], calls: tuple[str, ...], pattern: str, error: int, clock: ManualClock
) -> None:
    store = kstore.Store.open(paths, clock=clock, **SMALL)
    logs = [store.log("events", number) for number in range(4)]
    with FaultFS(paths[0].parent) as disk:
        path = str(paths[1] / "events-1" / pattern) if "*" in pattern else str(paths[1] / pattern)
        disk.fail(*calls, error=error, path=path, times=-1)

        def use_it() -> None:
            logs[1].append(b"lost")
            logs[1].roll()
            logs[1].flush()

        with pytest.raises(kstore.StorageError) as caught:
            use_it()
        assert caught.value.errno == error
    assert list(store.stats()["offline"]) == [str(paths[1])]
    for use in (lambda: logs[1].append(b"x"), lambda: logs[3].append(b"x"), lambda: logs[3].flush()):
        with pytest.raises(kstore.StorageError, match="offline"):
            use()
    assert logs[0].append(b"goes on", sync=True) == 3
    assert logs[2].append(b"goes on", sync=True) == 3
    assert [record.value for record in logs[3].read()] == [b"acknowledged"] * 3
    clock.advance(60_000)
    store.run_housekeeping()
    assert store.stats()["failures"] == {}
    store.create_topic("more", 2)
    assert {entry.name for entry in paths[0].glob("more-*")} == {"more-0", "more-1"}
    with pytest.raises(kstore.StorageError):
        store.close()
    assert checkpoint.find_clean_marker(paths[0]) == -1
    assert checkpoint.find_clean_marker(paths[1]) is None
    check_after(paths, {0: 4, 1: 3, 2: 4, 3: 3})


def test_a_log_of_an_offline_directory_that_was_never_opened_is_refused(paths: list[Path]) -> None:
    store = kstore.Store.open(paths, **SMALL)
    with FaultFS(paths[0].parent) as disk:
        disk.fail("fdatasync", path=str(paths[1] / "*"))
        with pytest.raises(kstore.StorageError):
            store.log("events", 1).append(b"x", sync=True)
    with pytest.raises(kstore.StorageError, match="offline"):
        store.log("events", 3)
    with pytest.raises(kstore.StorageError):
        store.close()


def test_a_checkpoint_that_cannot_be_written_takes_its_directory_offline(paths: list[Path], clock: ManualClock) -> None:
    store = kstore.Store.open(paths, clock=clock, **SMALL)
    for number in range(4):
        store.log("events", number).append(b"x", sync=True)
    with FaultFS(paths[0].parent) as disk:
        disk.fail(path=str(paths[1] / (checkpoint.RECOVERY_POINTS + ".tmp")))
        clock.advance(30_000)
        store.run_housekeeping()
    assert list(store.stats()["offline"]) == [str(paths[1])]
    assert checkpoint.read_offsets(paths[0], checkpoint.RECOVERY_POINTS)["events", 0] == 4
    assert checkpoint.read_offsets(paths[1], checkpoint.RECOVERY_POINTS)["events", 1] == 3
    with pytest.raises(kstore.StorageError):
        store.close()
    check_after(paths, dict.fromkeys(range(4), 4))


def test_with_the_last_directory_everything_is_refused_and_nothing_ends(tmp_path: Path) -> None:
    # docs/compatibility.md: `no-halt`
    """SEMANTICS 13.9: Kafka halts; it is not our process."""
    store = kstore.Store.open(tmp_path / "a", **SMALL)
    store.create_topic("events")
    with FaultFS(tmp_path) as disk:
        disk.fail("fdatasync", path="*.log")
        with pytest.raises(kstore.StorageError):
            store.log("events", 0).append(b"x", sync=True)
    for use in (lambda: store.create_topic("more"), lambda: store.log("events", 0).append(b"x"), store.flush):
        with pytest.raises(kstore.StorageError, match="offline"):
            use()
    assert store.topics == ("events",)
    with pytest.raises(kstore.StorageError):
        store.close()


def test_a_real_disk_that_fills_leaves_its_directory_in_service(small_disk: Path, tmp_path: Path) -> None:
    """Its log takes records again when there is room, and what was acknowledged is there; see test_full_store.py."""
    paths = [tmp_path / "a", small_disk / "b"]
    store = kstore.Store.open(paths, segment_bytes=100_000, **SMALL)
    store.create_topic("events", 2)
    on_small = next(n for n in (0, 1) if Path(store.log("events", n).path).is_relative_to(small_disk))
    log, other = store.log("events", on_small), store.log("events", 1 - on_small)
    log.append_many([b"acknowledged" * 50] * 100, sync=True)

    def fill() -> None:
        for _ in itertools.count():
            log.append(b"x" * 5000)

    with pytest.raises(kstore.StorageError) as caught:
        fill()
    assert caught.value.errno == errno.ENOSPC
    assert store.stats()["offline"] == {}
    assert list(store.stats()["full"]) == [str(paths[1])]
    assert other.append(b"goes on", sync=True) == 0
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    log.append(b"at once", sync=True)
    assert store.stats()["full"] == {}
    store.close()
    with kstore.Store.open(paths, **SMALL) as store:
        log = store.log("events", on_small)
        assert sum(record.value == b"acknowledged" * 50 for record in log.read()) == 100
        assert log.append(b"again") == log.log_end_offset - 1


def test_a_real_disk_that_is_remounted_read_only_takes_its_directory_offline(small_disk: Path, tmp_path: Path) -> None:
    """Files that are open already can still be written; the next name that is made meets it."""
    paths = [tmp_path / "a", small_disk / "b"]
    store = kstore.Store.open(paths, segment_bytes=1000, **SMALL)
    store.create_topic("events", 2)
    on_small = next(n for n in (0, 1) if Path(store.log("events", n).path).is_relative_to(small_disk))
    log = store.log("events", on_small)
    log.append(b"acknowledged", sync=True)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        with kstore.Store.open(paths, **SMALL) as store:
            assert list(store.stats()["offline"]) == [str(paths[1])]
            store.create_topic("more")
        with kstore.Store.open(paths, "r") as store:
            assert [record.value for record in store.log("events", on_small).read()] == [b"acknowledged"]
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    with kstore.Store.open(paths, **SMALL) as store:
        assert store.log("events", on_small).append(b"again") == 1


def test_a_power_cut_anywhere_in_a_close_loses_nothing_that_was_flushed(
    root: Path, tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    """SEMANTICS 13.5: flush, close, checkpoints, marker; with the marker there, all is there."""
    with FaultFS(root) as disk:
        store = kstore.Store.open(root, clock=clock, **SMALL)
        store.create_topic("events", 3)
        for number in range(3):
            log = store.log("events", number)
            log.append_many([b"acknowledged"] * 3, sync=True)
            log.roll()
            log.append(b"not flushed")
        begun = disk.step
        store.close()
        closed = disk.step
    into = tmp_path / "images"
    into.mkdir()
    request.getfixturevalue("no_syncs")
    for step, _, image in disk.crash_images(into, LOST, DATA_LOST, NAMES_LOST, since=begun):
        marked = checkpoint.find_clean_marker(image) is not None
        with kstore.Store.open(image, clock=clock, **SMALL) as store:
            for number in range(3):
                values = [record.value for record in store.log("events", number).read()]
                assert values[:3] == [b"acknowledged"] * 3, step
                assert values[3:] in ([], [b"not flushed"]), step
                if marked or step >= closed:
                    assert len(values) == 4, step
                    assert store.log("events", number).recovery.clean


def test_a_partition_that_the_system_does_not_let_open_is_told_of_until_it_opens(paths: list[Path]) -> None:
    with kstore.Store.open(paths, **SMALL) as store:
        with FaultFS(paths[0].parent) as disk:
            disk.fail("open", error=errno.EACCES, path=str(paths[1] / "events-1" / "*.log"), times=-1)
            for _ in range(2):
                with pytest.raises(kstore.StorageError, match="Permission denied"):
                    store.append("events", b"x", partition=1)
            assert list(store.stats()["refused"]) == ["events-1"]
        assert store.append("events", b"x", partition=1).offset == 3
        assert store.stats()["refused"] == {}
