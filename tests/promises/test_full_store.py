"""A full disk under a store: reading and freeing space go on, and writing comes back by itself once there is room.

Kafka takes the directory offline until it is restarted (SEMANTICS 0.9, 13.9); `full-disk` in docs/compatibility.md.
What a sync says of a full disk is another matter: what it was to put on the disk may be lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.disk import fs
from kstore.files import checkpoint
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.support.parking import values

MINUTE = 60_000
SMALL: dict[str, Any] = {"segment_bytes": 60_000, "segment_index_bytes": 4096, "background": False}


def opened(paths: Path | list[Path], clock: ManualClock, **settings: Any) -> kstore.Store:
    return kstore.Store.open(paths, clock=clock, **{**SMALL, **settings})


def fill(log: kstore.Log, clock: ManualClock) -> list[bytes]:
    """Append until the disk has no room for the smallest record; what was taken."""
    taken: list[bytes] = []

    def go_on(size: int) -> None:
        for number in itertools.count():
            value = b"%d." % number + b"x" * size
            clock.advance(1)
            log.append(value)
            taken.append(value)

    for size in (5000, 100, 1):
        with contextlib.suppress(kstore.StorageError):
            go_on(size)
    with pytest.raises(kstore.StorageError) as caught:
        log.append(b"y" * 20_000)
    assert caught.value.errno == errno.ENOSPC
    return taken


def take_all(disk: Path) -> Path:
    """Fill the rest of a disk with a file of another program."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(b"z" * 4096):
            pass
    return ballast


def is_full(disk: Path) -> bool:
    return os.statvfs(disk).f_bavail == 0


@pytest.fixture
def full(small_disk: Path, clock: ManualClock) -> Iterator[tuple[Path, kstore.Store, list[bytes]]]:
    """A store of the topics `events` and `other` on a disk that `events` has filled to the last block."""
    root = small_disk / "data"
    store = opened(root, clock)
    store.create_topic("other", config={"segment.bytes": 60_000})
    store.log("other", 0).append_many([b"o" * 1000] * 100, sync=True)
    store.create_topic("events")
    taken = fill(store.log("events", 0), clock)
    take_all(small_disk)
    assert is_full(small_disk)
    yield root, store, taken
    with contextlib.suppress(kstore.StorageError):
        store.close()


def test_a_full_disk_leaves_the_store_in_service_and_readable(
    full: tuple[Path, kstore.Store, list[bytes]], clock: ManualClock
) -> None:
    """docs/compatibility.md: `full-disk`."""
    root, store, taken = full
    stats = store.stats()
    assert stats["offline"] == stats["refused"] == {}
    assert list(stats["full"]) == [str(root)]
    assert values(store.log("events", 0)) == taken
    assert len(values(store.log("other", 0))) == 100
    refusals: list[Callable[[], object]] = [
        lambda: store.append("events", b"y" * 5000),
        lambda: store.append("other", b"y" * 5000),
        lambda: store.append_many("events", [b"y" * 5000] * 10),
        lambda: store.create_topic("more"),
        lambda: store.add_partitions("other", 2),
        lambda: store.update_topic_config("other", {"retention.ms": 5}),
        lambda: store.log("events", 0).truncate_to(1),
    ]
    for refused in refusals:
        with pytest.raises(kstore.StorageError) as caught:
            refused()
        assert caught.value.errno == errno.ENOSPC
        assert store.stats()["offline"] == {}
    store.flush()
    assert values(store.log("events", 0)) == taken
    assert store.topics == ("events", "other")
    assert store.topic_config("other").retention_ms == -1


def test_the_error_of_a_full_disk_is_a_sentence_with_path_errno_and_what_works(
    full: tuple[Path, kstore.Store, list[bytes]],
) -> None:
    root, store, _ = full
    with pytest.raises(kstore.StorageError) as caught:
        store.append("events", b"y" * 5000)
    path = store.log("events", 0).segments[-1].path
    assert str(caught.value) == (
        f"[Errno 28] No space left on device: '{path}'; reading and deleting still work, "
        "and writing works again once there is room"
    )
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
    assert store.stats()["full"] == {str(root): str(caught.value)}
    assert store.log("events", 0).stats()["full"] == str(caught.value)


def test_writing_comes_back_by_itself(
    full: tuple[Path, kstore.Store, list[bytes]], small_disk: Path, clock: ManualClock
) -> None:
    root, store, taken = full
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    store.append("events", b"again" * 1000, sync=True)
    store.create_topic("more")
    assert store.stats()["full"] == {}
    store.close()
    with opened(root, clock) as store:
        assert store.log("events", 0).recovery.clean
        assert values(store.log("events", 0)) == [*taken, b"again" * 1000]


def free_by_deleting_a_topic(store: kstore.Store, clock: ManualClock) -> None:
    store.delete_topic("other")
    assert store.topics == ("events",)


def free_by_deleting_records(store: kstore.Store, clock: ManualClock) -> None:
    log = store.log("events", 0)
    bound = log.segments[-1].base_offset
    assert log.delete_records(bound - 1) == bound - 1
    assert log.log_start_offset == bound - 1


def free_by_retention(store: kstore.Store, clock: ManualClock) -> None:
    store.log("events", 0).update_config(retention_bytes=200_000)
    assert store.log("events", 0).apply_retention()


def free_by_housekeeping(store: kstore.Store, clock: ManualClock) -> None:
    store.log("events", 0).update_config(retention_bytes=200_000)
    clock.advance(5 * MINUTE)
    store.run_housekeeping()


def free_by_retention_of_all_there_is(store: kstore.Store, clock: ManualClock) -> None:
    log = store.log("events", 0)
    log.update_config(retention_ms=1000)
    clock.advance(2 * MINUTE)
    log.apply_retention()
    log.apply_retention()
    assert log.log_start_offset == log.log_end_offset


@pytest.mark.parametrize(
    "free",
    [
        free_by_deleting_a_topic,
        free_by_deleting_records,
        free_by_retention,
        free_by_housekeeping,
        free_by_retention_of_all_there_is,
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
def test_space_is_freed_on_a_disk_without_a_free_block(
    full: tuple[Path, kstore.Store, list[bytes]],
    small_disk: Path,
    clock: ManualClock,
    free: Callable[[kstore.Store, ManualClock], None],
    reopened: bool,
) -> None:
    """SEMANTICS 6.9 to 6.14, 6.16, 11.10: also after the death of the process that filled it."""
    root, store, taken = full
    if reopened:
        store._logs.abandon()  # type: ignore[union-attr]  # as a crash does
        take_all(small_disk)
        store = opened(root, clock)
    assert is_full(small_disk)
    free(store, clock)
    assert os.statvfs(small_disk).f_bavail >= 8
    log = store.log("events", 0)
    end = log.log_end_offset
    assert end == len(taken)
    start = log.log_start_offset
    assert log.append(b"y" * 5000, sync=True) == end
    assert values(log) == [*taken[start:], b"y" * 5000]
    assert store.stats()["full"] == {}
    topics = store.topics
    store.close()
    with opened(root, clock) as store:
        assert store.topics == topics
        log = store.log("events", 0)
        assert log.log_start_offset == start
        assert log.recovery.clean
        assert values(log) == [*taken[start:], b"y" * 5000]


def test_a_store_whose_process_died_on_a_full_disk_opens_and_is_read(
    full: tuple[Path, kstore.Store, list[bytes]], small_disk: Path, clock: ManualClock
) -> None:
    root, store, taken = full
    store._logs.abandon()  # type: ignore[union-attr]
    take_all(small_disk)
    with contextlib.suppress(kstore.StorageError), opened(root, clock) as store:
        assert store.stats()["refused"] == store.stats()["offline"] == {}
        assert values(store.log("events", 0)) == taken
        assert len(values(store.log("other", 0))) == 100
    take_all(small_disk)
    with contextlib.suppress(kstore.StorageError), opened(root, clock) as store:
        assert values(store.log("events", 0)) == taken


def test_a_close_on_a_full_disk_keeps_the_records_and_says_so(
    full: tuple[Path, kstore.Store, list[bytes]], small_disk: Path, clock: ManualClock
) -> None:
    """SEMANTICS 13.5: without room for the checkpoints there is no marker, and the next opening recovers."""
    root, store, taken = full
    with pytest.raises(kstore.StorageError, match="No space left") as caught:
        store.close()
    assert caught.value.errno == errno.ENOSPC
    assert checkpoint.find_clean_marker(root) is None
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    with opened(root, clock) as store:
        assert values(store.log("events", 0)) == taken


@pytest.mark.parametrize("whole", [True, False])
def test_kstore_retain_frees_a_full_disk(
    full: tuple[Path, kstore.Store, list[bytes]],
    small_disk: Path,
    clock: ManualClock,
    capsys: pytest.CaptureFixture[str],
    whole: bool,
) -> None:
    root, store, taken = full
    store._logs.abandon()  # type: ignore[union-attr]
    take_all(small_disk)
    where = root if whole else root / "events-0"
    assert cli.main(["retain", str(where), "--retention-bytes", "100000", "--json"]) == 0, capsys.readouterr().err
    assert os.statvfs(small_disk).f_bavail >= 8
    with opened(root, clock) as store:
        log = store.log("events", 0)
        assert 0 < log.log_start_offset < len(taken)
        assert values(log) == taken[log.log_start_offset :]


def test_kstore_append_to_a_full_disk_fails_in_one_line(
    full: tuple[Path, kstore.Store, list[bytes]],
    small_disk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, store, _ = full
    store._logs.abandon()  # type: ignore[union-attr]
    take_all(small_disk)
    lines = tmp_path / "lines"
    lines.write_bytes(b"y" * 9000 + b"\n")
    with lines.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert cli.main(["append", str(root / "events-0")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == error.count("No space left on device") == 1
    assert "; reading and deleting still work" in error


# ---- Every write there is, refused.


class Full:
    """A disk, under a `FaultFS` that is installed, on which what is to be written finds no room."""

    def __init__(self, disk: FaultFS) -> None:
        self.disk = disk
        opening = disk._open

        def guarded(path: Any, **how: bool) -> int:
            # Only a file that is made needs room.
            if not (how.get("create") or how.get("new") or how.get("empty")) or Path(path).exists():
                return disk._real["open"](path, **how)  # type: ignore[no-any-return]
            return opening(path, **how)

        making = disk._make_directory
        # `FaultFS` puts back what it has replaced.
        fs.open = guarded
        fs.make_directory = lambda path: not Path(path).is_dir() and making(path)

    def fail(self, after: int = 0, number: int = errno.ENOSPC, times: int = -1, path: str = "*") -> None:
        self.disk.fail("pwrite", "open", "make_directory", error=number, after=after, times=times, path=path)

    @property
    def met(self) -> bool:
        return any(fault.after == 0 for fault in self.disk._faults)


def use(store: kstore.Store, clock: ManualClock, taken: dict[str, list[bytes]]) -> None:
    """What a store does, with what was acknowledged of it noted; errors go on to the next."""

    def attempt(act: Callable[[], object]) -> bool:
        with contextlib.suppress(fs.FullDiskError):
            act()
            return True
        return False

    def append(topic: str, value: bytes, **how: Any) -> None:
        if topic in store.topics and attempt(lambda: store.append(topic, value, **how)):
            taken[topic].append(value)

    for number in range(3):
        for topic in ("a", "b"):
            append(topic, b"%d" % number + b"v" * 100)
            append(topic, b"%d" % number + b"w" * 100, headers=[("h", b"x")], sync=True)
        attempt(lambda: store.log("a", 0).roll())
        clock.advance(MINUTE)
        store.run_housekeeping()
    if attempt(lambda: store.create_topic("c", 2)):
        taken["c"] = []
    append("c", b"c", partition=0)
    attempt(lambda: store.log("a", 0).delete_records(min(3, store.log("a", 0).log_end_offset)))
    attempt(lambda: store.update_topic_config("b", {"retention.bytes": 100}))
    clock.advance(5 * MINUTE)
    store.run_housekeeping()
    attempt(lambda: store.delete_topic("b"))
    clock.advance(5 * MINUTE)
    store.run_housekeeping()
    for topic in ("a", "c"):
        append(topic, b"last", partition=0)


def check(store: kstore.Store, taken: dict[str, list[bytes]]) -> None:
    """Each topic holds exactly what was acknowledged, from its log's start on."""
    for topic in store.topics:
        if not taken[topic]:
            with contextlib.suppress(kstore.StorageError):  # a log that never was opened has to be made
                assert values(store.log(topic, 0)) == []
            continue
        log = store.log(topic, 0)
        assert log.log_end_offset == len(taken[topic])
        assert values(log) == taken[topic][log.log_start_offset :]
    assert store.stats()["offline"] == {}


@pytest.mark.parametrize("first", range(8))
def test_without_room_from_any_write_on_a_store_goes_on_when_there_is_room(
    root: Path,
    clock: ManualClock,
    request: pytest.FixtureRequest,
    first: int,
) -> None:
    """SEMANTICS 0.9: nothing goes offline, nothing that was acknowledged is lost, nothing that was refused is there."""
    request.getfixturevalue("no_syncs")
    points = 0
    for after in range(first, 1000, 8):
        path = root / str(after)
        path.mkdir()
        with FaultFS(path) as disk:
            store = opened(path, clock, segment_bytes=400)
            taken: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
            for topic in ("a", "b"):
                store.create_topic(topic)
                store.append(topic, b"first")
                taken[topic].append(b"first")
            full = Full(disk)
            full.fail(after, errno.EDQUOT if first % 2 else errno.ENOSPC)
            use(store, clock, taken)
            check(store, taken)
            met = full.met
            disk.heal()
            for topic in store.topics:
                store.append(topic, b"room", partition=0)
                taken[topic].append(b"room")
            check(store, taken)
            clock.advance(5 * MINUTE)
            store.run_housekeeping()
            assert store.stats()["full"] == store.stats()["refused"] == {}
            store.close()
            assert checkpoint.find_clean_marker(path) is not None
            with opened(path, clock) as store:
                check(store, taken)
        if not met:
            break
        points += 1
    assert points >= 3


@pytest.mark.parametrize("first", range(8))
def test_a_single_write_without_room_anywhere_changes_nothing_that_was_acknowledged(
    root: Path, clock: ManualClock, request: pytest.FixtureRequest, first: int
) -> None:
    request.getfixturevalue("no_syncs")
    for after in range(first, 1000, 8):
        path = root / str(after)
        path.mkdir()
        with FaultFS(path) as disk:
            store = opened(path, clock, segment_bytes=400)
            taken: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
            store.create_topic("a")
            store.create_topic("b")
            full = Full(disk)
            full.fail(after, times=1)
            use(store, clock, taken)
            check(store, taken)
            met = full.met
            disk.heal()
            store._logs.abandon()  # type: ignore[union-attr]  # as a crash does
            with opened(path, clock) as store:
                check(store, taken)
        if not met:
            break


@pytest.mark.parametrize("first", range(4))
def test_an_opening_after_a_crash_that_finds_no_room_refuses_nothing_for_good(
    root: Path, clock: ManualClock, request: pytest.FixtureRequest, first: int
) -> None:
    """SEMANTICS 8.9: a log whose recovery needs room waits for it, and is opened when it is needed again."""
    request.getfixturevalue("no_syncs")
    for after in range(first, 1000, 4):
        path = root / str(after)
        path.mkdir()
        taken: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
        store = opened(path, clock, segment_bytes=400)
        store.create_topic("a")
        store.create_topic("b")
        use(store, clock, taken)
        store._logs.abandon()  # type: ignore[union-attr]
        with FaultFS(path) as disk:
            full = Full(disk)
            full.fail(after)
            with opened(path, clock, segment_bytes=400) as store:
                refused = store.stats()["refused"]
                for topic in store.topics:
                    if f"{topic}-0" not in refused:
                        log = store.log(topic, 0)
                        assert values(log) == taken[topic][log.log_start_offset :]
                met = full.met
                disk.heal()
                check(store, taken)
                assert store.stats()["refused"] == {}
                store.append("a", b"room")
                taken["a"].append(b"room")
            with opened(path, clock) as store:
                check(store, taken)
                assert store.log("a", 0).recovery.clean
        if not met:
            break


@pytest.mark.parametrize("after", range(30))
def test_kstore_retain_frees_room_wherever_a_write_finds_none(
    root: Path,
    clock: ManualClock,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    after: int,
) -> None:
    """Segments are deleted all the same; what could not be written is told, in one line without a traceback."""
    request.getfixturevalue("no_syncs")
    store = opened(root, clock, segment_bytes=400)
    store.create_topic("a")
    for number in range(20):
        store.append("a", b"%d" % number + b"v" * 100)
    store._logs.abandon()  # type: ignore[union-attr]
    with FaultFS(root) as disk:
        full = Full(disk)
        full.fail(after)
        code = cli.main(["retain", str(root), "--retention-bytes", "1000"])
        assert code == (1 if full.met else 0)
    told = capsys.readouterr()
    assert told.err.count("\n") == code
    assert ("No space left on device" in told.err) == bool(code)
    with kstore.Log.open(root / "a-0", "r") as log:
        assert 8 <= log.log_start_offset < log.log_end_offset == 20
        assert [record.offset for record in log.read()] == list(range(log.log_start_offset, 20))
    assert not list((root / "a-0").glob("*.deleted"))


# ---- What waits for room.


def produce(log: kstore.Log, sequence: int) -> int:
    return log.append_many([b"v" * 100], producer_id=7, producer_epoch=0, base_sequence=sequence).first_offset


@pytest.mark.parametrize("crashes", [False, True])
def test_a_producers_snapshot_that_finds_no_room_at_a_roll_is_written_later(
    root: Path, clock: ManualClock, crashes: bool
) -> None:
    """SEMANTICS 2.12, 9.24: the roll goes on without it; its producers stay known."""
    with FaultFS(root) as disk:
        store = opened(root, clock)
        store.create_topic("a")
        log = store.log("a", 0)
        assert [produce(log, number) for number in range(3)] == [0, 1, 2]
        Full(disk).fail(path="*.snapshot")
        assert log.roll() == 3
        assert not list((root / "a-0").glob("*.snapshot"))
        disk.heal()
        log.append(b"unnumbered")
        clock.advance(5 * MINUTE)
        store.run_housekeeping()
        assert {path.name for path in (root / "a-0").glob("*.snapshot")} == {f"{3:020}.snapshot"}
        if crashes:
            store._logs.abandon()  # type: ignore[union-attr]
        else:
            store.close()
    with opened(root, clock) as store:
        log = store.log("a", 0)
        assert produce(log, 2) == 2  # known, and not stored again
        assert log.log_end_offset == 4


def test_a_log_closed_without_space_for_its_producers_snapshot_is_recovered(root: Path, clock: ManualClock) -> None:
    store = opened(root, clock)
    store.create_topic("a")
    assert produce(store.log("a", 0), 0) == 0
    with FaultFS(root) as disk:
        Full(disk).fail(path="*.snapshot")
        with pytest.raises(kstore.StorageError) as caught:
            store.close()
    assert str(caught.value) == (
        "[Errno 28] No space left on device; the log is closed with its records on the disk, and the next opening "
        f"recovers it: '{root}/a-0/{1:020}.snapshot'; reading and deleting still work, and writing works again once "
        "there is room"
    )
    with opened(root, clock) as store:
        assert not store.log("a", 0).recovery.clean
        assert produce(store.log("a", 0), 0) == 0
        assert produce(store.log("a", 0), 1) == 1


def test_a_leader_epoch_that_finds_no_room_leaves_nothing_behind(root: Path, clock: ManualClock) -> None:
    """SEMANTICS 1.26, 10.3: the append that brings it fails, and the next one of the old epoch is in the old epoch."""
    with FaultFS(root) as disk, opened(root, clock) as store:
        store.create_topic("a")
        log = store.log("a", 0)
        log.append(b"0", leader_epoch=1)
        Full(disk).fail(path="*leader-epoch-checkpoint*")
        with pytest.raises(kstore.StorageError, match="No space left"):
            log.append(b"1", leader_epoch=5)
        assert log.append(b"1") == 1
        disk.heal()
        assert [batch.partition_leader_epoch for batch in log.read_batches()] == [1, 1]
    assert (root / "a-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"


def test_delete_records_that_found_no_room_is_done_when_it_is_repeated(root: Path, clock: ManualClock) -> None:
    """SEMANTICS 11.10: on the disk when the call returns, also where the first call has raised the start in memory."""
    with FaultFS(root) as disk, opened(root, clock) as store:
        store.create_topic("a")
        log = store.log("a", 0)
        log.append_many([b"v"] * 10)
        Full(disk).fail()
        with pytest.raises(kstore.StorageError, match="No space left"):
            log.delete_records(4)  # in its only segment: there is nothing to make room of
        disk.heal()
        assert log.delete_records(4) == 4
        assert checkpoint.read_offsets(root, checkpoint.LOG_STARTS) == {("a", 0): 4}


def test_a_log_without_space_to_begin_anew_is_not_begun_anew_by_the_next_opening(
    root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """SEMANTICS 11.7: the log goes on with its records, so the log start that was to be must not reach its file
    later."""
    with FaultFS(root) as disk, opened(root, clock) as store:
        store.create_topic("a", 2)
        log, other = store.log("a", 0), store.log("a", 1)
        log.append_many([b"v"] * 10, sync=True)
        other.append_many([b"v"] * 10)
        Full(disk).fail(path="*-offset-checkpoint*")
        with pytest.raises(kstore.StorageError, match="No space left"):
            log.truncate_fully_and_start_at(30)
        disk.heal()
        other.delete_records(5)  # writes the lines of all logs
        image = disk.crash_image(tmp_path / "image")
        assert values(log) == [b"v"] * 10
        log.flush()
    assert checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS) == {("a", 0): 10, ("a", 1): 10}
    with opened(image, clock) as store:
        assert values(store.log("a", 0)) == [b"v"] * 10


def test_one_full_directory_of_two_stays_in_service_and_gets_what_it_missed(tmp_path: Path, clock: ManualClock) -> None:
    """SEMANTICS 13.3: what is made goes where there is room; the file of topics reaches the other one later."""
    roots = [tmp_path / "a", tmp_path / "b"]
    store = opened(roots, clock)
    with FaultFS(tmp_path) as disk:
        Full(disk).fail(path=str(roots[0] / "*"))
        store.create_topic("events", 4, config={"retention.ms": 12_345})
        assert {entry.root for entry in store._metadata.catalog.entries()} == {str(roots[1])}
        assert store.stats()["offline"] == {}
        assert not (roots[0] / "kstore-topics.json").exists()
        disk.heal()
        clock.advance(MINUTE)
        store.run_housekeeping()
        assert (roots[0] / "kstore-topics.json").read_bytes() == (roots[1] / "kstore-topics.json").read_bytes()
        store.close()
    with kstore.Store.open(roots[0], "r") as reader:
        assert reader._metadata.table.topics["events"].config == {"retention.ms": "12345"}


def test_a_sync_that_finds_no_room_fails_its_log_and_no_other(root: Path, clock: ManualClock) -> None:
    """Delayed allocation and NFS: what was appended may be lost, so the log refuses writes until it is reopened."""
    store = opened(root, clock)
    store.create_topic("a")
    store.create_topic("b")
    with FaultFS(root) as disk:
        store.append("a", b"x")
        disk.fail("fdatasync", error=errno.ENOSPC, path="*a-0/*.log")
        with pytest.raises(kstore.StorageError) as caught:
            store.log("a", 0).flush()
        assert caught.value.errno == errno.ENOSPC
        disk.heal()
        with pytest.raises(kstore.StorageError) as caught:
            store.append("a", b"y")
        assert str(caught.value) == (
            f"[Errno 28] No space left on device at {root}/a-0/00000000000000000000.log; "
            f"the log refuses writes until it is reopened, and can still be read: '{root}/a-0'"
        )
        assert list(store.stats()["refused"]) == ["a-0"]
        assert store.stats()["offline"] == {}
        assert store.append("b", b"y", sync=True).offset == 0
        clock.advance(10 * MINUTE)
        store.run_housekeeping()
        assert store.stats()["offline"] == {}
        assert values(store.log("a", 0)) == [b"x"]
        with pytest.raises(kstore.StorageError):
            store.close()
    assert checkpoint.find_clean_marker(root) is None
    with opened(root, clock) as store:
        assert store.append("a", b"y").offset == 1


def test_a_failing_disk_s_error_names_its_cause_once(root: Path, clock: ManualClock) -> None:
    store = opened(root, clock)
    store.create_topic("a")
    store.append("a", b"x")
    with FaultFS(root) as disk:
        disk.fail("fdatasync", path="*.log")
        with pytest.raises(kstore.StorageError):
            store.flush()
    for refused in (lambda: store.append("a", b"y"), lambda: store.log("a", 0).append(b"y"), store.flush):
        with pytest.raises(kstore.StorageError) as caught:
            refused()
        assert str(caught.value) == (
            f"[Errno 5] Input/output error at {root}/a-0/00000000000000000000.log; "
            f"the log directory is offline until the store is reopened; its logs that are open can still be read, "
            f"the others with mode='r': '{root}'"
        )
    with pytest.raises(kstore.StorageError):
        store.close()


def test_housekeeping_on_a_full_disk_logs_once_and_not_each_pass(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultFS(root) as disk, opened(root, clock, segment_bytes=400, log_retention_check_interval_ms=MINUTE) as store:
        store.create_topic("a", config={"retention.ms": 1000})
        store.append("a", b"x" * 200)
        store.log("a", 0).roll()
        store.append("a", b"x" * 200)
        clock.advance(2 * MINUTE)
        Full(disk).fail()
        with pytest.raises(kstore.StorageError):
            store.log("a", 0).roll()

        def passes() -> list[logging.LogRecord]:
            caplog.clear()
            for _ in range(20):
                clock.advance(MINUTE)
                store.run_housekeeping()
            return [record for record in caplog.records if record.levelno >= logging.WARNING]

        assert len(passes()) <= 4
        assert passes() == []
        assert list(store.stats()["full"]) == [str(root)]
        assert store.stats()["offline"] == {}
        disk.heal()
        clock.advance(MINUTE)
        store.run_housekeeping()
        store.append("a", b"x")
        assert store.stats()["full"] == store.stats()["failures"] == {}


# ---- Transactions and groups.


@pytest.mark.parametrize("first", range(6))
def test_a_transaction_that_meets_a_full_disk_ends_and_blocks_no_reader(
    root: Path, clock: ManualClock, request: pytest.FixtureRequest, first: int
) -> None:
    """What a commit has acknowledged is there, what was not committed is not, and once there is room all has ended."""
    request.getfixturevalue("no_syncs")
    for after in range(first, 1000, 6):
        path = root / str(after)
        path.mkdir()
        with FaultFS(path) as disk, opened(path, clock, segment_bytes=2000) as store:
            for topic in ("a", "b"):
                store.create_topic(topic)
            producer = store.producer(transactional_id="t")
            full = Full(disk)
            full.fail(after)
            committed, doubtful = [], []
            for number in range(12):
                value = b"%d" % number
                doubtful.append(value)
                with contextlib.suppress(kstore.StorageError, kstore.InvalidTxnStateError):
                    with producer.transaction() as transaction:
                        transaction.append("a", value)
                        transaction.append("b", value)
                        transaction.commit_offsets("g", {("a", 0): number + 1})
                        doubtful.pop()
                        if number % 4 == 3:
                            transaction.abort()
                            continue
                        doubtful.append(value)
                    committed.append(doubtful.pop())
                clock.advance(1000)
                store.run_housekeeping()
            met = full.met
            disk.heal()
            clock.advance(2 * MINUTE)  # an open transaction has timed out
            store.run_housekeeping()
            assert store.stats()["failures"] == {}
            with store.producer(transactional_id="t") as another, another.transaction() as transaction:
                transaction.append("a", b"last")
                transaction.append("b", b"last")
            for topic in ("a", "b"):
                log = store.log(topic, 0)
                found = [record.value for record in log.read(isolation="read_committed")]
                assert log.last_stable_offset == log.log_end_offset
                assert [value for value in found if value not in doubtful] == [*committed, b"last"], after
                assert len(set(found)) == len(found)
            both = [[record.value for record in store.log(t, 0).read(isolation="read_committed")] for t in ("a", "b")]
            assert both[0] == both[1]
            assert store.stats()["offline"] == {}
        if not met:
            break
