"""Consumers of a store that only reads commit by way of a file, which the store's process takes in."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files import commit_file
from kstore.metrics.metric_families import GROUP_LAG
from kstore.metrics.metric_samples import samples_of
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.support.puppet import Puppet

ORDERS = ("orders", 0)


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", 2)
        store.append_many("orders", [b"%d" % number for number in range(10)], partition=0)
        yield store


@pytest.fixture
def reader(store: kstore.Store, clock: ManualClock) -> Iterator[kstore.Store]:
    with kstore.Store.open(store.paths[0], "r", clock=clock) as reader:
        yield reader


def files(root: Path) -> list[str]:
    return commit_file.find(str(root))


def take_in(store: kstore.Store, clock: ManualClock) -> None:
    clock.advance(10_000)
    store.run_housekeeping()


def raw_positions(root: Path) -> dict[str, dict[tuple[str, int], int]]:
    """What the log says, without the files."""
    shutil.copytree(root, root.parent / "copy", ignore=shutil.ignore_patterns("kstore-commits-*"))
    with kstore.Store.open(root.parent / "copy", "r") as copy:
        return {group: dict(copy.committed_offsets(group)) for group in copy.groups}


# --- what is seen -----------------------------------------------------------------------------------------------------


def test_the_writer_and_readers_see_a_commit_at_once(store: kstore.Store, reader: kstore.Store, root: Path) -> None:
    with reader.consumer("grp", "orders") as consumer:
        assert files(root) == []
        assert len(consumer.poll(max_records=4)) == 4
        consumer.commit("so far")
        assert len(files(root)) == 1
        for each in (store, reader):
            assert each.groups == ("grp",)
            assert each.committed_offsets("grp") == {ORDERS: 4}
            assert each.committed_offsets("grp")[ORDERS].metadata == "so far"
    with reader.consumer("grp", "orders") as consumer:
        assert next(consumer).offset == 4


def test_a_commit_is_taken_in_and_its_file_goes_with_its_consumer(
    store: kstore.Store, reader: kstore.Store, root: Path, clock: ManualClock
) -> None:
    with reader.consumer("grp", "orders") as consumer, reader.consumer("grp", "orders") as other:
        next(consumer)
        consumer.commit()
        take_in(store, clock)
        assert raw_positions(root) == {"grp": {ORDERS: 1}}
        (path,) = files(root)
        contents = commit_file.read(path)
        assert contents is not None
        assert (contents.taken, contents.waiting) == (1, [])
        other.close()
        take_in(store, clock)
        assert files(root) == [path]
    take_in(store, clock)
    assert files(root) == []
    assert store.committed_offsets("grp") == reader.committed_offsets("grp") == {ORDERS: 1}


def test_the_opening_and_the_close_of_a_store_take_commits_in(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders")
        reader = kstore.Store.open(root, "r")
        reader.commit_offsets("grp", {ORDERS: 0})
    assert raw_positions(root) == {"grp": {ORDERS: 0}}
    reader.commit_offsets("grp", {ORDERS: 5}, sync=True)
    assert reader.committed_offsets("grp") == {ORDERS: 5}
    reader.close()
    with kstore.Store.open(root, background=False) as store:
        assert files(root) == []
        assert store.committed_offsets("grp") == {ORDERS: 5}


def test_the_lag_of_a_group_counts_the_commits_of_readers(store: kstore.Store, reader: kstore.Store) -> None:
    reader.commit_offsets("grp", {ORDERS: 7})
    for each in (store, reader):
        lags = {sample.labels: sample.value for sample in samples_of(each) if sample.family is GROUP_LAG}
        assert lags == {("grp", "orders", "0"): 3, ("grp", "orders", "1"): 0}


# --- which commit counts ----------------------------------------------------------------------------------------------


def test_the_latest_commit_counts_wherever_it_was_made(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock
) -> None:
    with kstore.Store.open(store.paths[0], "r", clock=clock) as other:
        for offset, committer in enumerate([reader, store, other, reader, other, store]):
            clock.advance(1)
            committer.commit_offsets("grp", {ORDERS: offset})
            if offset % 2:
                take_in(store, clock)
            for each in (store, reader, other):
                assert each.committed_offsets("grp") == {ORDERS: offset}


def test_a_commit_after_those_taken_in_is_later_though_the_clock_stands_still(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the commits that are taken in again after a crash would replace it."""
    see = GroupCoordinator._see
    free: list[bool] = []

    def is_free() -> None:
        [partition] = store._groups._partitions.values()
        free.append(partition.writing.acquire(blocking=False))

    def seen(*arguments: Any) -> None:
        other = threading.Thread(target=is_free)
        other.start()
        other.join()
        see(*arguments)

    reader.commit_offsets("grp", {ORDERS: 1})
    monkeypatch.setattr(GroupCoordinator, "_see", seen)
    take_in(store, clock)
    assert free == [False]  # no commit comes between the append and the note of its time


def test_a_commit_is_later_than_the_position_that_its_process_has_seen(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock
) -> None:
    """Though the clock stands still, or goes back."""
    for offset, committer in [(1, reader), (2, store), (3, reader), (4, reader), (5, store)]:
        committer.committed_offsets("grp")
        committer.commit_offsets("grp", {ORDERS: offset})
        clock.advance(-1)
        assert reader.committed_offsets("grp") == store.committed_offsets("grp") == {ORDERS: offset}
    take_in(store, clock)
    assert reader.committed_offsets("grp") == store.committed_offsets("grp") == {ORDERS: 5}


def test_no_file_undoes_a_deletion(store: kstore.Store, reader: kstore.Store, clock: ManualClock, root: Path) -> None:
    with reader.consumer("grp", "orders") as consumer:
        next(consumer)
        consumer.commit()
        store.delete_offsets("grp")
        assert reader.committed_offsets("grp") == store.committed_offsets("grp") == {}
        take_in(store, clock)
        assert store.groups == reader.groups == ()
        reader.commit_offsets("grp", {("orders", 1): 0})
        assert store.committed_offsets("grp") == {("orders", 1): 0}
        store.close()
        with kstore.Store.open(root, background=False) as again:
            assert again.committed_offsets("grp") == {("orders", 1): 0}


def test_a_deletion_is_refused_if_a_file_could_undo_it(store: kstore.Store, reader: kstore.Store) -> None:
    reader.commit_offsets("grp", {ORDERS: 1})
    with FaultFS(store.paths[0]) as disk:
        disk.fail("fdatasync", path="kstore-commits-*")
        with pytest.raises(kstore.StorageError, match="kstore-commits-"):
            store.delete_offsets("grp")
    assert store.committed_offsets("grp") == {ORDERS: 1}


def test_a_commit_of_a_transaction_is_not_hidden_by_an_earlier_one_of_a_reader(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock
) -> None:
    reader.commit_offsets("grp", {ORDERS: 1})
    clock.advance(1)
    with store.producer(transactional_id="t") as producer, producer.transaction() as txn:
        txn.commit_offsets("grp", {ORDERS: 2})
        take_in(store, clock)
        assert store.committed_offsets("grp") == {ORDERS: 1}
    take_in(store, clock)
    assert store.committed_offsets("grp") == reader.committed_offsets("grp") == {ORDERS: 2}


def test_a_position_of_a_topic_that_was_created_again_is_not_taken_in(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock, root: Path
) -> None:
    with reader.consumer("grp", "orders") as consumer:
        next(consumer)
        positions = consumer.positions
    store.delete_topic("orders")
    store.create_topic("orders")
    reader.commit_offsets("grp", positions)
    assert len(files(root)) == 1
    take_in(store, clock)
    assert store.committed_offsets("grp") == reader.committed_offsets("grp") == {}


def test_positions_of_a_reader_that_exists_do_not_expire(
    store: kstore.Store, reader: kstore.Store, clock: ManualClock
) -> None:
    with reader.consumer("grp", "orders") as consumer:
        next(consumer)
        consumer.commit()
        clock.advance(30 * 86_400_000)
        store.run_housekeeping()
        assert store.committed_offsets("grp") == {ORDERS: 1}
    clock.advance(86_400_000)
    store.run_housekeeping()
    assert store.committed_offsets("grp") == {}


# --- where it is refused ----------------------------------------------------------------------------------------------


def of_broker(root: Path) -> None:
    (root / "meta.properties").write_text("version=1\n")


def of_follower(root: Path) -> None:
    leader = root.parent / "leader"
    kstore.Store.open(leader).close()
    kstore.replicate(leader, root)


@pytest.mark.parametrize("mark", [of_broker, of_follower])
def test_directories_of_brokers_and_followers_take_no_commits(root: Path, mark: Callable[[Path], None]) -> None:
    mark(root)
    with kstore.Store.open(root, "r") as reader:
        for change in (
            lambda: reader.consumer("grp", "orders"),
            lambda: reader.commit_offsets("grp", {ORDERS: 1}),
        ):
            with pytest.raises(kstore.ReadOnlyError, match=r"mode='r' .* mode='a', or give positions="):
                change()
    assert files(root) == []


def test_an_object_store_takes_no_commits(store: kstore.Store) -> None:
    url = f"file://{store.paths[0]}"
    with (
        kstore.Store.open(url, "r") as reader,
        pytest.raises(kstore.ReadOnlyError, match="or give positions="),
    ):
        reader.consumer("grp", "orders")


def test_a_directory_that_may_not_be_written_is_named(
    store: kstore.Store, reader: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> int:
        raise kstore.StorageError(13, "Permission denied", path)

    monkeypatch.setattr("kstore.disk.newfiles.new_locked", refuse)
    with reader.consumer("grp", "orders") as consumer:
        next(consumer)
        with pytest.raises(kstore.ReadOnlyError, match=r"kstore-commits-.*Permission denied.*positions="):
            consumer.commit()


# --- closing, copies, forks -------------------------------------------------------------------------------------------


def test_without_a_commit_there_is_no_file(store: kstore.Store, reader: kstore.Store, root: Path) -> None:
    with reader.consumer("grp", "orders") as consumer:
        consumer.poll()
    with pickle.loads(pickle.dumps(reader)) as again, again.consumer("grp", "orders") as consumer:
        assert next(consumer).offset == 0
    reader.commit_offsets("grp", {})
    assert files(root) == []


def test_a_file_that_somebody_deleted_is_made_again(store: kstore.Store, reader: kstore.Store, root: Path) -> None:
    reader.commit_offsets("grp", {ORDERS: 1})
    Path(files(root)[0]).unlink()
    reader.commit_offsets("grp", {ORDERS: 2})
    assert store.committed_offsets("grp") == {ORDERS: 2}


def test_the_store_of_positions_may_itself_only_read(store: kstore.Store, reader: kstore.Store, tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "own") as own, kstore.Store.open(tmp_path / "own", "r") as sends:
        with reader.consumer("grp", "orders", positions=sends) as consumer:
            next(consumer)
            consumer.commit()
        assert own.committed_offsets("grp") == {ORDERS: 1}
    assert store.groups == ()


def test_a_forked_child_neither_commits_nor_unlocks(store: kstore.Store, reader: kstore.Store, root: Path) -> None:
    consumer = reader.consumer("grp", "orders")
    next(consumer)
    consumer.commit()
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(kstore.LogClosedError):
                consumer.commit()
            consumer.close()
            reader.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with commit_file.taking(files(root)[0]) as file:
        assert file is not None
        assert not file.is_left
    next(consumer)
    consumer.commit()
    assert store.committed_offsets("grp") == {ORDERS: 2}


def test_tools_and_copies_pass_the_file_over(store: kstore.Store, reader: kstore.Store, root: Path) -> None:
    reader.commit_offsets("grp", {ORDERS: 1}, sync=True)
    assert verify([root]).errors == 0
    kstore.backup(store, str(root.parent / "bucket")).close()
    kstore.restore(str(root.parent / "bucket"), root.parent / "restored")
    kstore.replicate(root, root.parent / "follower")
    for name in ("bucket", "restored", "follower"):
        assert list((root.parent / name).rglob("kstore-commits-*")) == []
    assert len(files(root)) == 1
    assert store.explain().partitions


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_reader_that_is_killed_after_a_synced_commit_has_committed(
    store: kstore.Store, root: Path, clock: ManualClock
) -> None:
    with Puppet(f"store = kstore.Store.open({str(root)!r}, 'r'); consumer = store.consumer('grp', 'orders')") as other:
        other.do("next(consumer); consumer.commit(sync=True)")
        assert store.committed_offsets("grp") == {ORDERS: 1}
        other.do("next(consumer); consumer.commit()")
        other.kill()
    assert store.committed_offsets("grp") == {ORDERS: 2}
    take_in(store, clock)
    assert (files(root), store.committed_offsets("grp")) == ([], {ORDERS: 2})


def test_a_reader_goes_on_beside_writers_that_are_killed(root: Path) -> None:
    start = f"store = kstore.Store.open({str(root)!r}, background=False)"
    with Puppet(start) as writer:
        writer.do("store.create_topic('orders'); store.append_many('orders', [b'x'] * 9)")
        reader = kstore.Store.open(root, "r")
        consumer = reader.consumer("grp", "orders")
        next(consumer)
        consumer.commit()
        ask = "answer = [[*place, offset] for place, offset in store.committed_offsets('grp').items()]"
        assert writer.do(ask) == [["orders", 0, 1]]
        writer.kill()
    next(consumer)
    consumer.commit()
    assert reader.committed_offsets("grp") == {ORDERS: 2}
    with Puppet(start) as writer:
        assert writer.do(ask) == [["orders", 0, 2]]
        writer.do("store.delete_offsets('grp')")
        writer.kill()
    with Puppet(start) as writer:
        assert writer.do(ask) == []
        next(consumer)
        consumer.commit()
        assert writer.do(ask) == [["orders", 0, 3]]
    reader.close()


# --- hostile files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    with kstore.Store.open(tmp_path / "other") as store:
        store.create_topic("orders")
        with kstore.Store.open(tmp_path / "other", "r") as reader:
            reader.commit_offsets("grp", {("orders", 0): 3, ("orders", 1): 4}, "text")
            return Path(files(tmp_path / "other")[0]).read_bytes()


def test_any_bytes_in_a_file_of_commits_are_positions_or_an_error_that_names_it(
    tmp_path: Path, written: bytes, rng: Any
) -> None:
    path = tmp_path / f"kstore-commits-{'0' * 32}"
    state = 4096 + 8
    for _ in range(500):
        data = bytearray(written)
        at = rng.randrange(state, len(data))
        data[at : at + rng.choice([1, 4, 8])] = rng.choice(
            [b"\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", rng.randbytes(8)]
        )
        data[4100:4104] = commit_file.crc32c(bytes(data[state:])).to_bytes(4, "big")
        path.write_bytes(data)
        try:
            contents = commit_file.read(str(path))
        except kstore.StorageError as error:
            assert error.filename == str(path)  # noqa: PT017
        else:
            assert contents is not None
            for commit in contents.commits:
                assert commit.position.offset >= 0
                assert commit.key.partition >= 0


def test_files_that_are_not_commits_stay_and_harm_nobody(root: Path, written: bytes, clock: ManualClock) -> None:
    newer = bytearray(written)
    newer[4104:4106] = b"\0\x02"
    newer[4100:4104] = commit_file.crc32c(bytes(newer[4104:])).to_bytes(4, "big")
    for number, data in enumerate([b"a stranger's", bytes(newer)]):
        (root / f"kstore-commits-{number:032x}").write_bytes(data)
    (root / f"kstore-commits-{2:032x}").mkdir()
    os.mkfifo(root / f"kstore-commits-{3:032x}")
    (root / f"kstore-commits-{4:032x}").symlink_to("/dev/zero")
    (root / f"kstore-commits-{5:032x}").touch()  # of a process that was killed before it wrote
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.commit_offsets("grp", {ORDERS: 1})
        assert len(store.stats()["failures"]) == 2
        assert store.committed_offsets("grp") == {ORDERS: 1}
        store.delete_offsets("other")
    assert sorted(path.name[-1] for path in root.glob("kstore-commits-*")) == ["0", "1", "2", "3", "4"]
