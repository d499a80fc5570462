"""replicate.py, rounds.py, topics.py, refusals.py: a store that follows another one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstore
from kstore.copies.replication import common_batch
from kstore.copies.replication.follower_partition import PartitionFollower
from kstore.errors import NotLeaderError, RecordBatchTooLargeError, ReplicationError
from kstore.files.follower_file import read_role
from kstore.log.hosted_log import HostedLog
from kstore.store.leadership import FollowerPartition
from tests.support.copied import batches_of


@pytest.fixture
def source(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "a", background=False) as store:
        yield store


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "b"


def fill(store: kstore.Store, topic: str = "orders", count: int = 30) -> None:
    if topic not in store.topics:
        store.create_topic(topic, 3, segment_bytes=4000)
    for number in range(count):
        store.append(topic, b"v%d" % number, key=b"k%d" % number)


def copied(source: kstore.Store, copy: kstore.Store, topic: str = "orders") -> bool:
    return all(
        batches_of(source.log(topic, number)) == batches_of(copy.log(topic, number))
        for number in source.partitions(topic)
    )


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@contextmanager
def once(source: Any, target: Path, **options: Any) -> Iterator[Any]:
    """The target as a store, and what `replicate` has answered, after all was copied once."""
    copy = kstore.replicate(source, target, **options)
    with kstore.Store.open(target, background=False) as store:
        yield SimpleNamespace(store=store, stats=copy.stats, wait_caught_up=copy.wait_caught_up)


def test_once_closes_the_target_and_its_numbers_stay(source: kstore.Store, target: Path) -> None:
    fill(source)
    replication = kstore.replicate(source.paths[0], target)
    assert replication.closed
    assert replication.store.closed
    with kstore.Store.open(target, background=False) as store:
        stats = replication.stats()
        ends = {f"orders-{n}": store.log("orders", n).log_end_offset for n in store.partitions("orders")}
    assert {name: each["log_end_offset"] for name, each in stats["partitions"].items()} == ends
    assert {each["lag_records"] for each in stats["partitions"].values()} == {0}
    assert replication.wait_caught_up()
    replication.close()
    assert replication.stats() == stats


def test_once_copies_topics_ids_settings_and_groups(source: kstore.Store, target: Path) -> None:
    fill(source)
    source.commit_offsets("g", {("orders", 0): 5})
    source.log("orders", 0).delete_records(3)
    with once(source.paths[0], target) as copy:
        assert copied(source, copy.store)
        assert copy.store.topics == source.topics
        assert copy.store.topic_id("orders") == source.topic_id("orders")
        assert copy.store.topic_config("orders").segment_bytes == 4000
        assert copy.store.committed_offsets("g") == source.committed_offsets("g")
        assert copy.store.log("orders", 0).log_start_offset == 3
        assert copy.wait_caught_up()
        with pytest.raises(NotLeaderError, match=source.paths[0]):
            copy.store.append("orders", b"")
        json.dumps(copy.stats())
    assert read_role(target) == ((source.paths[0],), None)


def test_a_second_run_goes_on_where_the_first_ended(source: kstore.Store, target: Path) -> None:
    fill(source)
    kstore.replicate(source.paths[0], target)
    fill(source)
    with once(source.paths[0], target) as copy:
        assert copied(source, copy.store)
        assert all(each["truncations"] == [] for each in copy.stats()["partitions"].values())


def test_only_the_named_topics_are_copied(source: kstore.Store, target: Path) -> None:
    fill(source)
    fill(source, "other")
    with once(source.paths[0], target, topics=["orders"]) as copy:
        assert copy.store.topics == ("orders",)
    with once(source.paths[0], target, topics="other") as copy:
        assert copy.store.topics == ("orders", "other")


def test_a_follower_sees_new_topics_partitions_settings_and_deletions(source: kstore.Store, target: Path) -> None:
    fill(source)
    with kstore.replicate(source.paths[0], target, follow=True) as copy:
        assert copy.wait_caught_up(60)
        fill(source, "late")
        source.add_partitions("orders", 5)
        source.update_topic_config("orders", {"retention.ms": 7})
        fill(source)
        assert copy.wait_caught_up(60)
        assert copied(source, copy.store, "late")
        assert copied(source, copy.store)
        assert copy.store.topic_config("orders").retention_ms == 7
        source.delete_topic("late")
        assert copy.wait_caught_up(60)
        assert copy.store.topics == ("orders",)
        stats = copy.stats()
        assert stats["source"] == "followed"
        assert sorted(stats["partitions"]) == [f"orders-{number}" for number in range(5)]
        assert {each["lag_records"] for each in stats["partitions"].values()} == {0}


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_it_is_copied_once_is_none_of_the_copy(
    source: kstore.Store, target: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    fill(source)
    fill(source, "passing")
    if again:
        kstore.replicate(source.paths[0], target)
        fill(source)
    look = PartitionFollower.look

    def delete_and_look(self: PartitionFollower) -> int:
        if "passing" in source.topics:
            source.delete_topic("passing")
        return look(self)

    monkeypatch.setattr(PartitionFollower, "look", delete_and_look)
    with once(source.paths[0], target) as copy:
        assert copy.store.topics == ("orders",)
        assert copied(source, copy.store)


def test_a_leader_that_is_truncated_while_it_is_compared_is_not_taken_for_damaged(
    source: kstore.Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source)
    kstore.replicate(source.paths[0], target)
    fill(source)
    find = common_batch.find_last_common
    log = source.log("orders", 0)

    def truncate_and_find(*arguments: Any, **options: Any) -> int | None:
        if log.log_end_offset > 3:
            log.truncate_to(3)
        return find(*arguments, **options)

    monkeypatch.setattr(common_batch, "find_last_common", truncate_and_find)
    with once(source.paths[0], target) as copy:
        assert copy.store.log("orders", 0).log_end_offset == 3
        assert copied(source, copy.store)


def test_a_source_that_stands_still_is_told_from_one_that_is_gone(tmp_path: Path, target: Path) -> None:
    with kstore.Store.open(tmp_path / "a") as source:
        fill(source)
    with kstore.replicate(tmp_path / "a", target, follow=True) as copy:
        assert copy.wait_caught_up(60)
        assert copy.stats()["source"] == "no writer"
        (tmp_path / "a").rename(tmp_path / "away")
        assert copy.stats()["source"] == "gone"
        assert not copy.wait_caught_up(0.05)
        (tmp_path / "a").mkdir()  # as where a disk is not mounted: nothing was deleted
        assert not copy.wait_caught_up(0.3)
        assert copy.store.topics == ("orders",)
        (tmp_path / "a").rmdir()
        (tmp_path / "away").rename(tmp_path / "a")
        with kstore.Store.open(tmp_path / "a") as source:
            fill(source)
            assert any(copy.wait_caught_up(60) for _ in range(6))
            assert copied(source, copy.store)


def test_an_old_leader_follows_the_new_one_and_its_own_records_are_kept_beside(tmp_path: Path) -> None:
    """SEMANTICS 10.20 to 10.24."""
    a, b = tmp_path / "a", tmp_path / "b"
    with kstore.Store.open(a) as old:
        fill(old)
        kstore.replicate(a, b)
        fill(old, count=9)
    with kstore.Store.open(b) as new:
        assert set(new.become_leader().values()) == {1}
        fill(new, count=6)
        with once(b, a, save_truncated=tmp_path / "cut") as copy:
            assert copied(new, copy.store)
            cut = [each for part in copy.stats()["partitions"].values() for each in part["truncations"]]
            assert sum(each["records"] for each in cut) == 9
            assert all(Path(path).exists() for each in cut for path in each["saved"])
            with pytest.raises(NotLeaderError):
                copy.store.append("orders", b"")


@pytest.mark.parametrize("places", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_a_target_that_is_the_source_or_lies_in_it_is_refused(tmp_path: Path, places: tuple[str, str]) -> None:
    source, target = (tmp_path / place for place in places)
    kstore.Store.open(source).close()
    before = contents(tmp_path)
    with pytest.raises(ReplicationError, match=r"is the source and the target|lies in the other"):
        kstore.replicate(source, target)
    assert contents(tmp_path) == before


def test_a_ring_is_refused_also_through_a_third_one(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    with kstore.Store.open(a) as source:
        fill(source)
    kstore.replicate(a, b)
    kstore.replicate(b, c)
    before = contents(tmp_path)
    for source_path, target in ((b, a), (c, a), (c, b)):
        with pytest.raises(ReplicationError, match=r"a ring"):
            kstore.replicate(source_path, target)
    assert contents(tmp_path) == before


def test_a_target_with_other_data_is_refused_and_stays_as_it_is(source: kstore.Store, target: Path) -> None:
    fill(source)
    with kstore.Store.open(target) as other:
        fill(other)
    before = contents(target)
    with pytest.raises(ReplicationError, match=r"topic orders of .*another topic of the same name"):
        kstore.replicate(source.paths[0], target)
    assert contents(target) == before
    with kstore.Store.open(target) as other:
        other.delete_topic("orders")
        fill(other, "mine")
    before = contents(target)
    with pytest.raises(ReplicationError, match=r"its topic mine is not in the source"):
        kstore.replicate(source.paths[0], target)
    assert contents(target) == before


def test_the_refusal_of_a_topic_that_was_made_again_says_what_works(source: kstore.Store, target: Path) -> None:
    fill(source)
    fill(source, "other")
    kstore.replicate(source.paths[0], target)
    source.delete_topic("orders")
    fill(source)
    fill(source, "other")
    with pytest.raises(ReplicationError, match=r"another directory, or name the other topics \(topics=, --topic\)"):
        kstore.replicate(source.paths[0], target)
    with once(source.paths[0], target, topics="other") as copy:
        assert copied(source, copy.store, "other")
        assert copy.store.log("orders", 0).log_end_offset > 0


def test_a_target_that_was_made_leader_is_refused(source: kstore.Store, target: Path) -> None:
    fill(source)
    kstore.replicate(source.paths[0], target)
    with kstore.Store.open(target) as store:
        store.become_leader()
    before = contents(target)
    with pytest.raises(ReplicationError, match=r"has leader epoch 1.*replicate the other way"):
        kstore.replicate(source.paths[0], target)
    assert contents(target) == before


def test_a_target_that_another_store_has_open_is_refused(source: kstore.Store, target: Path) -> None:
    with kstore.Store.open(target), pytest.raises(kstore.LogLockedError):
        kstore.replicate(source.paths[0], target)


def test_a_topic_that_was_made_again_stops_alone(source: kstore.Store, target: Path) -> None:
    fill(source)
    fill(source, "other")
    kstore.replicate(source.paths[0], target)
    with kstore.replicate(source.paths[0], target, follow=True) as copy:
        assert copy.wait_caught_up(60)
        (target / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
        source.add_partitions("orders", 4)
        fill(source, "other")
        assert not copy.wait_caught_up(60)
        assert "deleted and made again" in copy.stats()["failures"]["orders"]
        assert copied(source, copy.store, "other")


def test_a_batch_that_does_not_fit_stops_its_partition_alone(source: kstore.Store, target: Path) -> None:
    fill(source, "other")
    source.create_topic("orders", segment_bytes=100_000)
    source.append("orders", b"x" * 50_000)
    source.update_topic_config("orders", {"segment.bytes": 20_000})
    with pytest.raises(RecordBatchTooLargeError, match=r"orders-0 cannot take.*segment.bytes allows 20000"):
        kstore.replicate(source.paths[0], target)
    with kstore.Store.open(target, "r") as copy:
        assert copied(source, copy, "other")


def test_a_missing_source_makes_no_target(tmp_path: Path) -> None:
    with pytest.raises(kstore.StorageError, match=r"no such log directory"):
        kstore.replicate(tmp_path / "none", tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("topics", [["../../etc"], ["a/b"], ".."])
def test_a_name_that_is_no_topic_is_refused(source: kstore.Store, target: Path, topics: str | list[str]) -> None:
    with pytest.raises(kstore.InvalidTopicError):
        kstore.replicate(source.paths[0], target, topics=topics)
    assert not target.exists()


def test_a_copy_that_became_a_leader_is_not_written_any_more(source: kstore.Store, target: Path) -> None:
    fill(source)
    with kstore.replicate(source.paths[0], target, follow=True) as copy:
        assert copy.wait_caught_up(60)
        copy.store.become_leader()
        fill(source)
        assert not copy.wait_caught_up(60)
        assert "a leader" in copy.stats()["failure"]
        copy.store.append("orders", b"mine", partition=0)


def test_a_copy_becomes_a_leader_between_two_steps_of_its_replication(
    source: kstore.Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch of the old leader's comes behind the beginning of a new epoch."""
    fill(source)
    leads: list[threading.Thread] = []
    epochs: dict[tuple[str, int], int] = {}
    append = FollowerPartition.append

    def beside(partition: FollowerPartition, *arguments: Any, **options: Any) -> Any:
        if not leads:
            follower = partition._follower
            thread = threading.Thread(target=lambda: epochs.update(copy.store.become_leader()))
            thread.start()
            leads.append(thread)
            while not follower._turn.waiters and leads[0].is_alive():
                time.sleep(0.001)
        return append(partition, *arguments, **options)

    with kstore.replicate(source.paths[0], target, follow=True) as copy:
        assert copy.wait_caught_up(60)
        monkeypatch.setattr(FollowerPartition, "append", beside)
        fill(source)
        while not leads:
            time.sleep(0.001)
        leads[0].join()
        assert not copy.wait_caught_up(60)
        assert "a leader" in copy.stats()["failure"]
        for (topic, number), epoch in epochs.items():
            log = copy.store.log(topic, number)
            begins = dict(HostedLog(log).writer.epochs.entries)[epoch]
            assert begins == log.log_end_offset, (topic, number)
        copy.store.append("orders", b"mine", partition=0)


@pytest.mark.parametrize("steps", range(9))
def test_a_failover_at_any_step_leaves_transactions_that_the_new_leader_ends(
    source: kstore.Store, target: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    source.create_topic("orders", 2)
    kstore.replicate(source.paths[0], target)
    producer = source.producer(transactional_id="t")
    for number in range(3):
        with producer.transaction() as transaction:
            for partition in (0, 1):
                transaction.append("orders", b"%d" % number, partition=partition)
            transaction.commit_offsets("g", {("orders", 0): number})
        if number == 0:
            kstore.replicate(source.paths[0], target)
    left, step = [steps], PartitionFollower.step

    def counted(follower: PartitionFollower, *arguments: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return step(follower, *arguments)

    monkeypatch.setattr(PartitionFollower, "step", counted)
    with suppress(KeyboardInterrupt):
        kstore.replicate(source.paths[0], target)
    with kstore.Store.open(target, background=False) as store:
        store.become_leader()
        ends = [store.log("orders", partition).log_end_offset for partition in (0, 1)]
        committed = store.committed_offsets("g")
        assert all(position <= ends[0] for position in committed.values())
        with store.producer(transactional_id="t").transaction() as transaction:
            transaction.append("orders", b"after", partition=0)
        for partition in (0, 1):
            log = store.log("orders", partition)
            assert log.last_stable_offset == log.log_end_offset
