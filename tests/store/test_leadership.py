"""A store as a follower: which changes are refused, which go on, and what its replicator may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import kstore
from kstore.cli import main
from kstore.errors import InconsistentTopicIdError, NotLeaderError, ReplicationError, StorageError
from kstore.files import checkpoint
from kstore.files.follower_file import FollowerRole, read_role, remove_role, write_role
from kstore.spark import load_driver
from kstore.spark.staging import stage
from kstore.store.leadership import Follower, follower_of
from tests.conftest import ManualClock
from tests.support.staging import stage_task

ROLE = FollowerRole(("/srv/leader",), None)


def encoded(first: int, count: int, epoch: int) -> bytes:
    """A leader's batch."""
    batch = bytearray(
        kstore.encode_batch([(b"k%d" % n, b"v%d" % n, 1000 + n, None) for n in range(first, first + count)])
    )
    batch[:8] = first.to_bytes(8, "big")
    batch[12:16] = epoch.to_bytes(4, "big")
    return bytes(batch)


def make(root: Path) -> None:
    """A leader with a topic, a group and a transaction that is done; then a follower."""
    with kstore.Store.open(root) as store:
        store.create_topic("orders", 2)
        store.append("orders", b"one", partition=0)
        store.append("orders", b"two", partition=1)
        store.commit_offsets("group", {("orders", 0): 1})
        with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
            txn.append("orders", b"three", partition=0)
    write_role(root, ROLE)


def end_of(store: kstore.Store) -> int:
    return store.log("orders", 0).log_end_offset


CHANGES: dict[str, Callable[[kstore.Store], Any]] = {
    "append": lambda s: s.append("orders", b"x"),
    "append with headers": lambda s: s.append("orders", b"x", headers=[("a", b"b")], sync=True),
    "append at the end": lambda s: s.append("orders", b"x", partition=0, expected_offset=end_of(s)),
    "append above the end": lambda s: s.append("orders", b"x", partition=0, expected_offset=end_of(s) + 1),
    "append_many": lambda s: s.append_many("orders", [b"x"]),
    "append_many of nothing": lambda s: s.append_many("orders", []),
    "append_columns": lambda s: s.append_columns("orders", [b"x"]),
    "producer": lambda s: s.producer(),
    "transactional producer": lambda s: s.producer(transactional_id="id"),
    "commit_offsets": lambda s: s.commit_offsets("group", {("orders", 0): 2}),
    "delete_offsets": lambda s: s.delete_offsets("group"),
    "commit of a consumer": lambda s: [s.consumer("new", "orders"), next(c := s.consumer("new", "orders")), c.commit()],
    "create_topic": lambda s: s.create_topic("new"),
    "add_partitions": lambda s: s.add_partitions("orders", 3),
    "delete_topic": lambda s: s.delete_topic("orders"),
    "delete_topic of transactions": lambda s: s.delete_topic("__transaction_state"),
    "update_topic_config": lambda s: s.update_topic_config("orders", {"retention.ms": "1"}),
    "adopt": lambda s: s.adopt([]),
    "log append": lambda s: s.log("orders", 0).append(b"x"),
    "log append with an epoch": lambda s: s.log("orders", 0).append(b"x", leader_epoch=9),
    "log append at the end": lambda s: s.log("orders", 0).append(b"x", expected_offset=end_of(s)),
    "log append_many at the end": lambda s: s.log("orders", 0).append_many(
        [b"x"], atomic=True, expected_offset=end_of(s)
    ),
    "log append_many": lambda s: s.log("orders", 0).append_many([]),
    "log append_columns": lambda s: s.log("orders", 0).append_columns([b"x"]),
    "log append_batch": lambda s: s.log("orders", 0).append_batch(kstore.encode_batch([(None, b"x", 1, None)])),
    "log append_marker": lambda s: s.log("orders", 0).append_marker(1, 0, commit=True),
    "log append_as_follower": lambda s: s.log("orders", 0).append_as_follower(encoded(9, 1, 0)),
    "log truncate_to": lambda s: s.log("orders", 0).truncate_to(0),
    "log truncate_fully": lambda s: s.log("orders", 0).truncate_fully_and_start_at(5),
    "log delete_records": lambda s: s.log("orders", 0).delete_records(1),
}


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.log")} | {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("leader-epoch-checkpoint")
    }


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_a_client_is_refused_and_changes_nothing(tmp_path: Path, change: str) -> None:
    """`whole-store-follows`."""
    make(tmp_path)
    before = content(tmp_path)
    with kstore.Store.open(tmp_path) as store:
        topics = store.topics
        with pytest.raises(NotLeaderError, match="/srv/leader"):
            CHANGES[change](store)
        assert store.topics == topics
        assert content(tmp_path) == before
    assert content(tmp_path) == before


def test_reads_and_housekeeping_go_on_in_a_follower(tmp_path: Path) -> None:
    make(tmp_path)
    clock = ManualClock(10**12)
    with kstore.Store.open(tmp_path, clock=clock, background=False) as store:
        assert [r.value for r in store.read("orders", isolation="read_committed")] == [b"one", b"three", b"two"]
        assert store.committed_offsets("group") == {("orders", 0): 1}
        assert store.groups == ("group",)
        assert [r.value for r in store.consumer("group", "orders")] == [b"three", b"two"]
        store.flush()
        store.update_config(segment_bytes=1 << 20)
        log = store.log("orders", 0)
        end = log.log_end_offset
        assert log.roll() == end == log.segments[-1].base_offset
        log.update_config(segment_bytes=1 << 21)
        assert log.config.segment_bytes == 1 << 21
        clock.advance(10**11)  # positions and ids would have expired
        before = content(tmp_path)
        store.run_housekeeping()
        store.compact()
        assert {name: data for name, data in content(tmp_path).items() if name.startswith("__")} == {
            name: data for name, data in before.items() if name.startswith("__")
        }


def test_a_follower_says_so_and_a_leader_too(tmp_path: Path) -> None:
    make(tmp_path)
    for mode in ("a", "r"):
        with kstore.Store.open(tmp_path, mode) as store:
            assert (store.stats()["role"], store.stats()["source"]) == ("follower", ["/srv/leader"])
    remove_role(tmp_path)
    for mode in ("a", "r"):
        with kstore.Store.open(tmp_path, mode) as store:
            assert (store.stats()["role"], store.stats()["source"]) == ("leader", [])


def test_a_lone_log_below_a_followers_directory_is_a_followers(tmp_path: Path) -> None:
    make(tmp_path)
    with kstore.Log.open(tmp_path / "orders-0") as log:
        for change in (lambda: log.append(b"x"), lambda: log.append_many([b"x"]), lambda: log.truncate_to(0)):
            with pytest.raises(NotLeaderError, match="/srv/leader"):
                change()
        assert next(record.value for record in log.read(0)) == b"one"


def test_a_damaged_role_or_an_unfinished_load_keeps_the_store_closed(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "kstore-commit.json").write_bytes(b"{}")
    with pytest.raises(ReplicationError, match="bulk load"):
        kstore.Store.open(tmp_path)
    (tmp_path / "kstore-commit.json").unlink()
    (tmp_path / "kstore-follower.json").write_bytes(b"{}")
    for mode in ("a", "r"):
        with pytest.raises(StorageError, match=r"kstore-follower\.json"), kstore.Store.open(tmp_path, mode) as store:
            store.stats()
    with pytest.raises(StorageError, match=r"kstore-follower\.json"):
        kstore.Log.open(tmp_path / "orders-0")


# The replicator's door.


@pytest.fixture
def follower(tmp_path: Path) -> Any:
    write_role(tmp_path, ROLE)
    with kstore.Store.open(tmp_path) as store:
        yield follower_of(store)


def test_a_leader_has_no_door(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store, pytest.raises(ReplicationError, match="a leader"):
        follower_of(store)


def test_topics_come_with_their_ids_settings_and_partitions(tmp_path: Path, follower: Follower) -> None:
    topic_id = checkpoint.new_topic_id()
    follower.copy_topic("orders", topic_id, count=3, numbers=[0, 2], config={"segment.bytes": "16384"})
    follower.copy_topic("orders", topic_id, count=3, numbers=[0, 2], config={"segment.bytes": "16384"})
    with kstore.Store.open(tmp_path, "r") as reader:
        assert reader.topic_id("orders") == topic_id
        assert reader.partitions("orders") == (0, 2)
        assert reader.topic_config("orders").segment_bytes == 16384
    log = follower.partition("orders", 0).log
    follower.copy_topic("orders", topic_id, count=4, numbers=range(4), config={"retention.ms": "5"})
    with kstore.Store.open(tmp_path, "r") as reader:
        assert reader.partitions("orders") == (0, 1, 2, 3)
        config = reader.topic_config("orders")
        assert (config.segment_bytes, config.retention_ms) == (1 << 30, 5)
    assert log.config.retention_ms == 5
    assert not log.closed
    with pytest.raises(InconsistentTopicIdError):
        follower.copy_topic("orders", uuid4(), count=4, numbers=range(4), config={})
    with pytest.raises(kstore.ConfigError):
        follower.copy_topic("orders", topic_id, count=4, numbers=range(4), config={"segment.bytes": "1"})
    with pytest.raises(kstore.InvalidTopicError):
        follower.copy_topic("../../etc", topic_id, count=1, numbers=[0], config={})
    follower.copy_topic("a.b", topic_id, count=1, numbers=[0], config={})
    with pytest.raises(kstore.TopicExistsError):
        follower.copy_topic("a_b", topic_id, count=1, numbers=[0], config={})
    follower.delete_topic("orders")
    with kstore.Store.open(tmp_path, "r") as reader:
        assert "orders" not in reader.topics


def test_a_replicator_appends_truncates_and_moves_the_start(follower: Follower) -> None:
    follower.copy_topic("t", checkpoint.new_topic_id(), count=1, numbers=[0], config={"cleanup.policy": "compact"})
    partition = follower.partition("t", 0)
    partition.append(encoded(0, 3, 0) + encoded(3, 3, 2))
    log = partition.log
    assert log.log_end_offset == 6
    assert [tuple(e) for e in partition.epochs.entries] == [(0, 0), (2, 3)]
    with pytest.raises(NotLeaderError):
        log.append(b"x")
    assert partition.truncate_to(3)
    assert [tuple(e) for e in partition.epochs.entries] == [(0, 0)]
    partition.append(encoded(3, 3, 4))
    partition.move_log_start(4)
    partition.move_log_start(2)
    assert log.log_start_offset == 4
    with pytest.raises(kstore.OffsetOutOfRangeError):
        partition.move_log_start(7)
    partition.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, partition.epochs.entries) == (100, 100, ())
    with pytest.raises(NotLeaderError):
        log.append(b"x")
    partition.append(encoded(100, 1, 5))
    assert log.log_end_offset == 101


def test_the_high_watermark_of_a_follower_is_its_leaders_as_far_as_its_log_reaches(tmp_path: Path) -> None:
    """SEMANTICS 10.23. Reads go on to the log end: `follower-is-read-to-its-end`."""
    write_role(tmp_path, ROLE)

    def line() -> int | None:
        return checkpoint.read_offsets(tmp_path, checkpoint.HIGH_WATERMARKS).get(("t", 0))

    with kstore.Store.open(tmp_path) as store:
        follower = follower_of(store)
        follower.copy_topic("t", checkpoint.new_topic_id(), count=1, numbers=[0], config={})
        partition = follower.partition("t", 0)
        partition.append(encoded(0, 6, 0))
        partition.mark_high_watermark(4)
        assert len(list(store.read("t"))) == 6
    assert line() == 4
    with kstore.Store.open(tmp_path) as store:
        follower_of(store).partition("t", 0).append(encoded(6, 1, 0))
    assert line() == 4
    with kstore.Store.open(tmp_path) as store:
        follower_of(store).partition("t", 0).mark_high_watermark(9)
    assert line() == 7
    with kstore.Store.open(tmp_path) as store:
        store.become_leader()
        store.append("t", b"x")
    assert line() == 8
    assert read_role(tmp_path) is None


def test_the_commands_say_that_it_is_a_follower_and_of_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    assert main(["describe", str(tmp_path)]) == 0
    assert "a follower of /srv/leader" in capsys.readouterr().out
    assert main(["describe", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["follows"] == ["/srv/leader"]
    assert main(["verify", "--notes", str(tmp_path)]) == 0
    assert "a follower of /srv/leader" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "kstore-follower.json")]) == 0
    (tmp_path / "kstore-follower.json").write_bytes(b"{}")
    assert main(["verify", str(tmp_path)]) == 1
    assert "kstore.replicate into this directory writes it anew" in capsys.readouterr().out
    assert main(["repair", str(tmp_path)]) == 1
    assert "kstore-follower.json" in capsys.readouterr().out
    remove_role(tmp_path)
    assert main(["describe", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["follows"] is None


def test_a_bulk_load_is_neither_staged_nor_committed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
    rows = stage_task(root, 0, "orders", {0: [(b"k", b"v")]}, partitions=1)
    write_role(root, ROLE)
    with pytest.raises(NotLeaderError, match="/srv/leader"):
        load_driver.commit(root, rows)
    with pytest.raises(NotLeaderError, match="/srv/leader"):
        stage(root, topic="orders")
    with kstore.Store.open(root) as store:
        assert store.log("orders", 0).log_end_offset == 0
        store.become_leader()
    assert load_driver.commit(root, rows).records == 1
    with kstore.Log.open(root / "orders-0", "r") as log:
        assert [batch.partition_leader_epoch for batch in log.read_batches()] == [1]
