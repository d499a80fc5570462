"""A real broker is followed: its directory is copied while it runs, the copy leads, and a broker goes on with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore
from tests.golden import goldensets
from tests.kafka.kafka_broker import Cluster
from tests.kafka.kafka_broker import cluster as cluster
from tests.kafka.kafka_broker import machine as machine

ROWS = [(b"%d" % i, b"theirs %d" % i) for i in range(40)]
COMMITTED = {"isolation.level": "read_committed"}


def batches_of(store: kstore.Store, topic: str, number: int) -> bytes:
    """All batches of a partition."""
    log = store.log(topic, number)
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        piece = bytes(log.fetch(offset, 1 << 20).records)
        if not piece:
            break
        data += piece
        offset = list(kstore.decode_batches(piece))[-1].last_offset + 1
    return data


def assert_alike(source: Path, copy: Path) -> None:
    """The copy has the topics of the source, and in each partition its batches."""
    with kstore.Store.open(source, "r") as theirs, kstore.Store.open(copy, "r") as ours:
        assert ours.topics == theirs.topics
        for topic in theirs.topics:
            assert ours.partitions(topic) == theirs.partitions(topic)
            assert theirs.topic_id(topic) in (None, ours.topic_id(topic))
            for number in theirs.partitions(topic):
                assert batches_of(ours, topic, number) == batches_of(theirs, topic, number), (topic, number)
                assert ours.log(topic, number).log_end_offset == theirs.log(topic, number).log_end_offset


@pytest.mark.parametrize("name", ["canary-16k", "crash", "transactions", "consumer-offsets", "legacy", "compaction"])
def test_directories_of_brokers_are_copied_byte_for_byte(name: str, tmp_path: Path) -> None:
    given = goldensets.copy_set(name, tmp_path)
    for number, source in enumerate(sorted({path.parent.parent for path in given.rglob("*.log")})):
        if not any(source.glob("*-[0-9]*")):
            continue
        copy = tmp_path / f"copy-{number}"
        kstore.replicate(source, copy)
        assert_alike(source, copy)


@pytest.mark.kafka
def test_a_running_broker_is_followed_and_its_records_go_on_in_the_copy(cluster: Cluster, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    theirs = {"transactional.id": "theirs"}
    with cluster.up():
        cluster.create("orders", partitions=2, internal_segment_bytes=2000)
        cluster.produce("orders", ROWS, partition=0, config={"batch.size": "300"})
        with kstore.replicate(cluster.logs, copy, follow=True) as replication:
            assert replication.wait_caught_up(30)
            assert replication.stats()["source"] == "followed"
            cluster.produce("orders", ROWS, partition=0, config={"batch.size": "300"})
            cluster.produce(
                "orders", ROWS[:5], partition=1, config=theirs, name=f"t {cluster.address}", transaction="commit"
            )
            cluster.produce(
                "orders", ROWS[5:9], partition=1, config=theirs, name=f"t {cluster.address}", transaction="abort"
            )
            cluster.call("commit", topic="orders", partition=0, group="readers", offset=7)
            assert replication.wait_caught_up(30)
            assert replication.stats()["failures"] == {}
            assert_alike(cluster.logs, copy)
    with kstore.Store.open(copy) as store:
        epochs = store.become_leader()
        assert store.committed_offsets("readers") == {("orders", 0): 7}
        assert store.append("orders", b"ours", partition=0).offset == 80
        committed = [record.value for record in store.log("orders", 1).read(isolation="read_committed")]
        assert committed == [value for _, value in ROWS[:5]]
        assert epochs["orders", 0] >= 1

    # The broker comes back as what kstore's copy has become: by its files, as after a failover.
    for path in cluster.logs.iterdir():
        if path.is_dir() and not path.name.startswith("__cluster_metadata"):
            shutil.rmtree(path)
    for path in copy.iterdir():
        if path.is_dir():
            shutil.copytree(path, cluster.logs / path.name)
        elif path.name.endswith("-checkpoint"):
            shutil.copy(path, cluster.logs / path.name)
    with cluster.up():
        values = [record.value for record in cluster.consume("orders", 0)]
        assert values == [value for _, value in ROWS] * 2 + [b"ours"]
        assert [r.value for r in cluster.consume("orders", 1, config=COMMITTED)] == [value for _, value in ROWS[:5]]
        assert cluster.call("committed", group="readers", topic="orders", partition=0)["offset"] == 7
