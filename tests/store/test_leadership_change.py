"""A follower becomes a leader: new leader epochs, transactions and groups that go on, and a crash at any step."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import kstore
from kstore.base.numbers import INT_MAX
from kstore.codec.coordinator.transaction_records import Status
from kstore.disk import fs
from kstore.errors import NotLeaderError, ReplicationError, StorageError
from kstore.files import checkpoint
from kstore.files.epochs import LeaderEpochCache
from kstore.files.follower_file import FollowerRole, read_role, read_roles, remove_role, write_role
from kstore.log.segments.segment import Segment
from kstore.store.leadership import follower_of
from tests.conftest import ManualClock
from tests.support.faultfs import KEPT, LOST, NAMES_LOST, FaultFS, shuffled

ROLE = FollowerRole(("/srv/leader",), None)


def encoded(first: int, count: int, epoch: int) -> bytes:
    """A leader's batch."""
    batch = bytearray(kstore.encode_batch([(None, b"v%d" % n, 1000 + n, None) for n in range(first, first + count)]))
    batch[:8] = first.to_bytes(8, "big")
    batch[12:16] = epoch.to_bytes(4, "big")
    return bytes(batch)


def epochs(directory: Path) -> list[tuple[int, int]]:
    return [tuple(entry) for entry in LeaderEpochCache.open(directory / "leader-epoch-checkpoint").entries]


def batch_epochs(log: kstore.Log) -> list[int]:
    return [batch.partition_leader_epoch for batch in log.read_batches(log.log_start_offset)]


def make_follower(*roots: Path) -> None:
    """Three partitions: without records, of epoch 0, and of epochs 0 and 4."""
    for root in roots:
        root.mkdir(exist_ok=True)
        write_role(root, ROLE)
    with kstore.Store.open(roots) as store:
        follower = follower_of(store)
        follower.copy_topic("t", checkpoint.new_topic_id(), count=3, numbers=range(3), config={})
        follower.partition("t", 1).append(encoded(0, 3, 0))
        follower.partition("t", 2).append(encoded(0, 3, 0) + encoded(3, 2, 4))


NEW = {("t", 0): 1, ("t", 1): 1, ("t", 2): 5}


def test_each_partition_begins_the_epoch_after_its_newest_at_its_end(tmp_path: Path) -> None:
    """SEMANTICS 10.24."""
    make_follower(tmp_path)
    with kstore.Store.open(tmp_path) as store:
        assert store.become_leader() == NEW
        assert [epochs(tmp_path / f"t-{n}") for n in range(3)] == [[(1, 0)], [(0, 0), (1, 3)], [(0, 0), (4, 3), (5, 5)]]
        assert read_role(tmp_path) is None
        assert store.stats()["role"] == "leader"
        for number in range(3):
            store.append("t", b"x", partition=number)
        store.append_many("t", [b"y"], partition=1)
        store.append_columns("t", [b"z"], partition=1)
        store.producer().append("t", b"p", partition=1)
        assert batch_epochs(store.log("t", 0)) == [1]
        assert batch_epochs(store.log("t", 1)) == [0, 1, 1, 1, 1]
        assert batch_epochs(store.log("t", 2)) == [0, 4, 5]
    with kstore.Store.open(tmp_path) as store:
        store.append("t", b"x", partition=2)
        assert batch_epochs(store.log("t", 2)) == [0, 4, 5, 5]


def test_a_leader_begins_a_new_epoch_however_fast_others_append_and_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_syncs: None
) -> None:
    make_follower(tmp_path)
    with kstore.Store.open(tmp_path, background=False) as store:
        store.become_leader()
        for number in range(3):
            store.append("t", b"x", partition=number)
        flush, flushed = Segment.flush_log, []

        def beside(segment: Segment) -> None:
            flush(segment)
            flushed.append(segment.base_offset)
            assert len(flushed) < 20, "it flushes each new segment again and again"
            for number in range(3):
                store.append("t", b"x", partition=number)
                store.log("t", number).roll()

        monkeypatch.setattr(Segment, "flush_log", beside)
        new = store.become_leader()
        monkeypatch.undo()
        assert new == {key: epoch + 1 for key, epoch in NEW.items()}
        for number in range(3):
            store.append("t", b"y", partition=number)
            assert batch_epochs(store.log("t", number))[-1] == new["t", number]


@pytest.mark.parametrize("how", ["closed", "crashed", "lone log", "cut"])
def test_a_leader_has_its_epoch_after_it_is_opened_again_without_an_append(tmp_path: Path, how: str) -> None:
    """`own-leader-epochs`. Kafka's opening drops the entry at the log end (SEMANTICS 8.13): its controller tells it."""
    make_follower(tmp_path / "store")
    root = tmp_path / "store"
    with kstore.Store.open(root) as store:
        store.become_leader()
        if how == "cut":
            store.append("t", b"gone", partition=2)
            store.log("t", 2).truncate_to(4)
        if how == "crashed":
            shutil.copytree(root, tmp_path / "image")
            root = tmp_path / "image"
    end = 3 if how == "cut" else 5  # the whole batch of offset 4 goes
    if how == "lone log":
        with kstore.Log.open(root / "t-2") as log:
            assert epochs(root / "t-2")[-1] == (5, 5)
            log.append(b"x")
            assert batch_epochs(log) == [0, 4, 5]
        return
    with kstore.Store.open(root) as store:
        store.append("t", b"x", partition=2)
        assert epochs(root / "t-2")[-1] == (5, end)
        assert batch_epochs(store.log("t", 2))[-1] == 5
        store.append("t", b"x", partition=0)
        assert batch_epochs(store.log("t", 0)) == [1]


def test_a_truncation_to_the_end_keeps_the_epoch_of_later_appends_known(tmp_path: Path) -> None:
    make_follower(tmp_path)
    with kstore.Store.open(tmp_path) as store:
        store.become_leader()
        log = store.log("t", 2)
        assert not log.truncate_to(5)
        log.append(b"x")
        assert batch_epochs(log) == [0, 4, 5]
        assert epochs(tmp_path / "t-2") == [(0, 0), (4, 3), (5, 5)]


def test_a_leader_begins_another_epoch_and_its_producers_go_on(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", b"a")
        producer = store.producer(transactional_id="id")
        with producer.transaction() as txn:
            txn.append("t", b"b")
        assert {key: epoch for key, epoch in store.become_leader().items() if key[0] == "t"} == {("t", 0): 1}
        with producer.transaction() as txn:
            txn.append("t", b"c")
        assert store.become_leader()["t", 0] == 2
        assert store.become_leader()["t", 0] == 3
        store.append("t", b"d")
        assert batch_epochs(store.log("t", 0)) == [0, 0, 0, 1, 1, 3]
        assert [record.value for record in store.read("t", isolation="read_committed")] == [b"a", b"b", b"c", b"d"]
    with kstore.Store.open(tmp_path) as store:
        store.append("t", b"e")
        assert batch_epochs(store.log("t", 0))[-1] == 3
        assert [record.value for record in store.read("t")] == [b"a", b"b", b"c", b"d", b"e"]


def test_threads_append_while_a_leader_begins_other_epochs(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", 2)
        stop = threading.Event()
        appended = [0, 0]

        def append(number: int) -> None:
            while not stop.is_set() and appended[number] < 60_000:
                store.append("t", b"x" * 50, partition=number)
                store.append_many("t", [b"y", b"z"], partition=number)
                appended[number] += 3

        with ThreadPoolExecutor() as pool:
            running = [pool.submit(append, number) for number in range(2)]
            try:
                begun = [store.become_leader()["t", 0] for _ in range(5)]
            finally:
                stop.set()
            for each in running:
                each.result()
        assert begun == [1, 2, 3, 4, 5]
        for number in range(2):
            log = store.log("t", number)
            assert log.log_end_offset == appended[number]
            entries = dict(epochs(tmp_path / f"t-{number}"))
            starts = {}
            for batch in log.read_batches(0):
                starts.setdefault(batch.partition_leader_epoch, batch.base_offset)
            assert list(starts) == sorted(starts)
            assert all(entries[epoch] == start for epoch, start in starts.items())


def test_a_topic_that_is_made_anew_begins_without_the_epoch_of_the_former(tmp_path: Path) -> None:
    make_follower(tmp_path)
    with kstore.Store.open(tmp_path) as store:
        store.become_leader()
        store.delete_topic("t")
        store.create_topic("t", 3)
        store.append("t", b"x", partition=2)
        assert batch_epochs(store.log("t", 2)) == [0]


def test_the_last_leader_epoch_and_a_damaged_line_are_told(tmp_path: Path) -> None:
    make_follower(tmp_path)
    with kstore.Store.open(tmp_path) as store:
        follower_of(store).partition("t", 0).append(encoded(0, 1, INT_MAX))
        with pytest.raises(StorageError, match=f"leader epoch {INT_MAX} is the last"):
            store.become_leader()
        assert read_role(tmp_path) == ROLE
        with pytest.raises(NotLeaderError):
            store.append("t", b"x")
    remove_role(tmp_path)
    checkpoint.write_offsets(tmp_path, checkpoint.LEADER_EPOCHS, {("t", 1): INT_MAX + 1})
    with kstore.Store.open(tmp_path) as store, pytest.raises(StorageError, match="kstore-leader-epochs"):
        store.append("t", b"x", partition=1)


def test_a_store_of_which_a_part_is_missing_stays_a_follower(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    make_follower(*roots)
    damaged = next(tmp_path.glob("?/t-2"))
    [path] = damaged.glob("*.log")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    for root in roots:  # as after a crash: the logs are looked through
        (root / checkpoint.CLEAN_MARKER).unlink()
    with kstore.Store.open(roots) as store:
        with pytest.raises(StorageError, match="repaired or deleted"):
            store.become_leader()
        assert read_roles(roots) == ROLE
        with pytest.raises(NotLeaderError):
            store.append("t", b"x")
    roots[1].rename(tmp_path / "gone")
    roots[1].write_bytes(b"")
    with kstore.Store.open(roots) as store, pytest.raises(StorageError, match="offline"):
        store.become_leader()


# What the coordinators do.


def leader_with_transactions(root: Path, clock: ManualClock) -> None:
    """Of three ids one has committed, one was decided and has no markers, one is open; a group has a position."""
    live = root.parent / "live"
    with kstore.Store.open(live, clock=clock, background=False) as store:
        store.create_topic("t", 2)
        with store.producer(transactional_id="done") as producer, producer.transaction() as txn:
            txn.append("t", b"done", partition=0)
        store.commit_offsets("group", {("t", 0): 1})
        for name in ("prepared", "open"):
            producer = store.producer(transactional_id=name, transaction_timeout_ms=5000)
            txn = producer.transaction()
            txn.append("t", name.encode(), partition=1)
            if name == "prepared":
                txn.commit_offsets("group", {("t", 1): 1})
                entry = store._transactions.ids[name]
                assert entry.state is not None
                epoch = entry.state.producer_epoch + 1
                entry.write(entry.state._replace(status=Status.PREPARE_COMMIT, producer_epoch=epoch))
            txn.ended = True  # the process dies
        shutil.copytree(live, root)
    write_role(root, ROLE)


def test_a_prepared_transaction_is_completed_and_an_open_one_times_out(tmp_path: Path, clock: ManualClock) -> None:
    root = tmp_path / "copy"
    leader_with_transactions(root, clock)
    with kstore.Store.open(root, clock=clock, background=False) as store:

        def committed() -> list[bytes | None]:
            return [record.value for record in store.read("t", isolation="read_committed")]

        assert committed() == [b"done"]
        assert store.committed_offsets("group") == {("t", 0): 1}
        clock.advance(3600_000)
        store.run_housekeeping()
        assert committed() == [b"done"]  # a follower ends no transaction
        before = store.log("t", 1).log_end_offset
        follower = follower_of(store)
        new = store.become_leader()
        assert store.log("t", 1).log_end_offset == before + 1
        assert committed() == [b"done", b"prepared"]
        assert store.committed_offsets("group") == {("t", 0): 1, ("t", 1): 1}
        assert batch_epochs(store.log("t", 1))[-1] == new["t", 1]
        clock.advance(3600_000)
        store.run_housekeeping()
        assert store.log("t", 1).last_stable_offset == store.log("t", 1).log_end_offset
        store.append("t", b"after", partition=1)
        assert committed() == [b"done", b"prepared", b"after"]
        with store.producer(transactional_id="prepared") as producer, producer.transaction() as txn:
            txn.append("t", b"next", partition=0)
        store.commit_offsets("group", {("t", 0): 2})
        with pytest.raises(ReplicationError, match="a leader"):
            follower.partition("t", 0)
    with kstore.Store.open(root, clock=clock, background=False) as store:
        assert committed() == [b"done", b"next", b"prepared", b"after"]
        assert store.committed_offsets("group") == {("t", 0): 2, ("t", 1): 1}


def test_positions_that_a_follower_has_cut_are_read_anew(tmp_path: Path) -> None:
    """Two leaders' commits at the same offsets: the follower tells those of the one that it follows now."""
    ends = []
    batches = {}
    for name, position in (("one", 1), ("two", 2)):
        with kstore.Store.open(tmp_path / name) as store:
            store.create_topic("t")
            store.commit_offsets("group", {("t", 0): 0})
            store.commit_offsets("group", {("t", 0): position})
            [number] = store.partitions("__consumer_offsets")
            log = store.log("__consumer_offsets", number)
            batches[name] = log.segments[0].path
            ends.append(log.log_end_offset)
    assert ends == [2, 2]
    data = {name: Path(path).read_bytes() for name, path in batches.items()}
    root = tmp_path / "follower"
    root.mkdir()
    write_role(root, ROLE)
    with kstore.Store.open(root) as store:
        follower = follower_of(store)
        follower.copy_topic(
            "__consumer_offsets",
            checkpoint.new_topic_id(),
            count=50,
            numbers=[number],
            config={"cleanup.policy": "compact"},
        )
        partition = follower.partition("__consumer_offsets", number)
        partition.append(data["one"])
        assert store.committed_offsets("group") == {("t", 0): 1}
        partition.truncate_to(1)
        assert store.committed_offsets("group") == {("t", 0): 0}
        partition.append(data["one"][len(data["one"]) // 2 :])
        assert store.committed_offsets("group") == {("t", 0): 1}
        partition.truncate_to(1)
        partition.append(data["two"][len(data["two"]) // 2 :])
        assert store.committed_offsets("group") == {("t", 0): 2}
        store.become_leader()
        assert store.committed_offsets("group") == {("t", 0): 2}


def test_positions_above_the_log_end_are_set_to_it(tmp_path: Path) -> None:
    """`positions-after-a-failover`. The records behind them are lost, and others come at their offsets."""
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", 2)
        store.append_many("t", [b"a", b"b", b"c"], partition=0)
        store.append("t", b"d", partition=1)
        places = {("t", 0): 3, ("t", 1): 1, ("elsewhere", 0): 7}
        store.commit_offsets("group", places, "note")
        store.commit_offsets("other", {("t", 1): 1})
    with kstore.Log.open(tmp_path / "t-0") as log:  # what the follower has not fetched
        log.truncate_to(0)
        log.append(b"a")
    write_role(tmp_path, ROLE)
    with kstore.Store.open(tmp_path) as store:
        before = {group: store.committed_offsets(group) for group in store.groups}
        assert before["group"] == places
        store.become_leader()
        assert store.committed_offsets("group") == {**places, ("t", 0): 1}
        now = store.committed_offsets("group")["t", 0]
        assert (now.metadata, now.commit_timestamp) == ("note", before["group"]["t", 0].commit_timestamp)
        assert store.committed_offsets("other") == before["other"]
        store.append_many("t", [b"new", b"newer", b"newest"], partition=0)
        with store.consumer("group", "t") as consumer:
            assert [record.value for record in consumer] == [b"new", b"newer", b"newest"]
        ends = [store.log("__consumer_offsets", n).log_end_offset for n in store.partitions("__consumer_offsets")]
        store.become_leader()
        assert ends == [
            store.log("__consumer_offsets", n).log_end_offset for n in store.partitions("__consumer_offsets")
        ]


@pytest.mark.parametrize("behind", ["data", "state"])
def test_a_follower_whose_logs_are_not_of_one_moment_ends_every_transaction(tmp_path: Path, behind: str) -> None:
    """Without its marker a committed transaction is committed; without its state an unknown one is aborted."""
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t")
        with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
            txn.append("t", b"in a transaction")
        [number] = store.partitions("__transaction_state")
        end = store.log("__transaction_state", number).log_end_offset
    if behind == "data":
        with kstore.Log.open(tmp_path / "t-0") as log:
            assert log.truncate_to(1)  # the marker
    else:
        for name in (f"__transaction_state-{number}", "t-0"):
            with kstore.Log.open(tmp_path / name) as log:
                assert log.truncate_to(1)  # the state after the producer was made; the marker
        assert end > 2
    write_role(tmp_path, ROLE)
    with kstore.Store.open(tmp_path) as store:
        assert list(store.read("t", isolation="read_committed")) == []
        store.become_leader()
        store.append("t", b"after")
        kept = [b"in a transaction", b"after"] if behind == "data" else [b"after"]
        assert [record.value for record in store.read("t", isolation="read_committed")] == kept
        with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
            txn.append("t", b"next")
        assert [record.value for record in store.read("t", isolation="read_committed")] == [*kept, b"next"]


# A crash at any step.


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk is the images' business."""
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)


def check_image(image: Path) -> str:
    """A follower that can become a leader, or a leader that has its epochs."""
    roots = [image / "a", image / "b"]
    role = read_roles(roots)
    with kstore.Store.open(roots, background=False) as store:
        if role is not None:
            with pytest.raises(NotLeaderError):
                store.append("t", b"x")
            again = store.become_leader()
            assert all(NEW[key] <= epoch <= NEW[key] + 1 for key, epoch in again.items())
        for number in range(3):
            store.append("t", b"x", partition=number)
            log = store.log("t", number)
            assert log.log_end_offset == {0: 0, 1: 3, 2: 5}[number] + 1
            epoch = batch_epochs(log)[-1]
            assert epoch == (NEW["t", number] if role is None else again["t", number])
            assert epochs(Path(log.path))[-1] == (epoch, log.log_end_offset - 1)
    return "leader" if role is None else "follower"


@pytest.mark.usefixtures("without_syncs")
def test_the_power_may_go_at_every_step_of_becoming_a_leader(tmp_path: Path, rng: random.Random) -> None:
    root, images = tmp_path / "root", tmp_path / "images"
    root.mkdir()
    images.mkdir()
    roots = [root / "a", root / "b"]
    make_follower(*roots)
    with FaultFS(root) as disk, kstore.Store.open(roots, background=False) as store:
        since = disk.step
        assert store.become_leader() == NEW
        until = disk.step
    found = {"leader": 0, "follower": 0}
    plans, first = (LOST, KEPT, NAMES_LOST, shuffled(rng)), rng.randrange(4)
    for step, plan, image in disk.crash_images(images, *plans, since=since):
        if plans.index(plan) == (step + first) % 4 or step in (until - 1, until):
            found[check_image(image)] += 1
    assert found["follower"] > 10
    assert found["leader"] > 2


@pytest.mark.usefixtures("without_syncs")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_call_that_fails_leaves_a_follower_or_a_leader_with_its_epochs(tmp_path: Path, error: int) -> None:
    failed = after = 0
    is_met = True
    (tmp_path / "first").mkdir()
    make_follower(tmp_path / "first" / "a", tmp_path / "first" / "b")
    while is_met:
        root = tmp_path / f"{after}"
        shutil.copytree(tmp_path / "first", root)
        roots = [root / "a", root / "b"]
        store = kstore.Store.open(roots, background=False)
        with FaultFS(root) as disk:
            disk.fail(error=error, after=after)
            try:
                assert store.become_leader() == NEW
            except StorageError:
                failed += 1
                disk.heal()
                with pytest.raises(NotLeaderError):
                    store.append("t", b"x")
                partition = follower_of(store).partition("t", 1)
                if error == errno.ENOSPC and partition.log.failed is None:
                    partition.append(encoded(3, 1, 0))
                    partition.truncate_to(3)
            is_met = not disk._faults or not disk._faults[0].times
            disk.heal()
            with suppress(StorageError):
                store.close()
        check_image(root)
        after += 1
    assert failed > 10
