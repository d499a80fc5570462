"""Real Kafka takes over what kstore's coordinators wrote, and the other way round: transactions, ids, positions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.codec.coordinator.transaction_records import Status
from tests.kafka.kafka_broker import Cluster
from tests.kafka.kafka_broker import cluster as cluster
from tests.kafka.kafka_broker import machine as machine
from tests.kafka.kafka_jvm import Dumped, Kafka
from tests.store.coordinator.test_transactions import Death, committed, die, states
from tests.store.coordinator.test_transactions import writes as writes

pytestmark = pytest.mark.kafka

COMMITTED = {"isolation.level": "read_committed"}
ROWS = [(b"%d" % i, b"theirs %d" % i) for i in range(5)]


def consumed(cluster: Cluster, partitions: int = 2) -> list[bytes]:
    """What a real consumer reads of committed records."""
    found = [r.value or b"" for n in range(partitions) for r in cluster.consume("orders", n, config=COMMITTED)]
    return sorted(found)


def test_a_broker_goes_on_with_our_transactions_and_positions_and_we_with_its(
    cluster: Cluster, writes: dict[str, Any]
) -> None:
    theirs = {"transactional.id": "theirs"}
    with cluster.up():
        cluster.create("orders", partitions=2)
        cluster.produce("orders", ROWS, partition=0, config=theirs, name="theirs", transaction="commit")
        cluster.produce("orders", [(b"k", b"aborted")], partition=1, config=theirs, name="theirs", transaction="abort")
        cluster.call("commit", topic="orders", partition=0, group="grp", offset=2, metadata="theirs")
        before = consumed(cluster)

    with kstore.Store.open(cluster.logs) as store:
        assert committed(store, "orders") == before == sorted(value for _, value in ROWS)
        found = store.committed_offsets("grp")
        assert found == {("orders", 0): 2}
        assert found["orders", 0].metadata == "theirs"
        with store.producer(transactional_id="ours") as producer, store.producer(transactional_id="theirs") as taken:
            assert taken.producer_id < 2**62 <= producer.producer_id
            for i in range(3):
                with producer.transaction() as txn, taken.transaction() as other:
                    txn.append_many("orders", [(b"%d" % k, b"ours %d %d" % (i, k)) for k in range(10)])
                    txn.commit_offsets("grp", {("orders", 0): 3 + i, ("orders", 1): i}, "ours")
                    other.append("orders", b"with their id %d" % i, partition=1)
            txn = producer.transaction()
            txn.append_many("orders", [(b"%d" % k, b"never") for k in range(10)])
            txn.commit_offsets("grp", {("orders", 0): 99})
            txn.abort()
        with store.producer() as plain:
            plain.append("orders", b"numbered", partition=0)
        store.commit_offsets("other", {("orders", 1): 4}, "alone")
        expected = committed(store, "orders")
    # Then the process dies with one transaction decided and one open.
    store = kstore.Store.open(cluster.logs, background=False)
    open_one = store.producer(transactional_id="open")
    open_one.transaction().append("orders", b"never", partition=1)
    decided = store.producer(transactional_id="decided").transaction()
    decided.append("orders", b"decided", partition=0)
    writes["at"] = writes["count"] + 1
    with pytest.raises(Death):
        decided.commit()
    writes["at"] = None
    assert states(store, "decided")[-1].status == Status.PREPARE_COMMIT
    die(store)
    expected = sorted([*expected, b"decided"])

    with cluster.up():
        cluster.produce(
            "orders",
            [(b"k", b"after")],
            partition=0,
            config={"transactional.id": "open"},
            name="open",
            transaction="commit",
        )  # which aborts what we left open
        expected = sorted([*expected, b"after"])
        assert consumed(cluster) == expected
        ask = {"op": "committed", "group": "grp", "topic": "orders"}
        assert cluster.call(**ask, partition=0) == {"offset": 5, "metadata": "ours"}
        assert cluster.call(**ask, partition=1) == {"offset": 2, "metadata": "ours"}
        assert cluster.call("committed", group="other", topic="orders", partition=1)["offset"] == 4
        cluster.call("commit", topic="orders", partition=1, group="grp", offset=7)
        ours = {"transactional.id": "ours"}
        cluster.produce("orders", [(b"k", b"with our id")], partition=1, config=ours, name="ours", transaction="commit")
        expected = sorted([*expected, b"with our id"])
        assert consumed(cluster) == expected

    with kstore.Store.open(cluster.logs) as store:
        assert committed(store, "orders") == expected
        assert store.committed_offsets("grp") == {("orders", 0): 5, ("orders", 1): 7}
        with store.producer(transactional_id="ours") as producer, producer.transaction() as txn:
            txn.append("orders", b"again", partition=0)
        assert committed(store, "orders") == sorted([*expected, b"again"])


def dumped_alike(kafka: Kafka, *arguments: str) -> Dumped:
    """What Kafka's dump tool prints, and kstore's too."""
    theirs = kafka.dump(*arguments)
    command = [sys.executable, "-m", "kstore", "dump", *arguments]
    ours = subprocess.run(command, capture_output=True, text=True, check=True)
    assert theirs.code == 0
    assert theirs.out == ours.stdout
    return theirs


def test_the_dump_tool_shows_our_topics_as_we_do(root: Path, kafka: Kafka) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("t", 2)
        store.commit_offsets("grp", {("t", 0): 1, ("t", 1): 2}, "größe")
        with store.producer(transactional_id="grp") as producer:
            for end in ("commit", "abort"):
                txn = producer.transaction()
                txn.append("t", b"x", partition=0)
                txn.append("t", b"x", partition=1)
                txn.commit_offsets("grp", {("t", 0): 5})
                getattr(txn, end)()
        store.delete_offsets("grp", [("t", 1)])
    for topic, option in (
        ("__consumer_offsets", "--offsets-decoder"),
        ("__transaction_state", "--transaction-log-decoder"),
    ):
        file = str(root / f"{topic}-29" / "00000000000000000000.log")
        theirs = dumped_alike(kafka, option, "--files", file)
        assert "Error" not in theirs.out
        assert "skipping" not in theirs.out
        assert theirs.out.count("| offset") == (7 if topic == "__consumer_offsets" else 11)


def test_the_dump_tool_shows_our_snapshots_and_transaction_indexes_as_we_do(root: Path, kafka: Kafka) -> None:
    ends = {7: None, 8: False, 9: True, 10: False}
    with kstore.Log.open(root / "t-0", segment_bytes=600) as log:
        for n in range(30):
            pid = 7 + n % 4
            numbers = {"producer_id": pid, "producer_epoch": n // 4, "base_sequence": 0}
            log.append_many([b"value %d" % n] * 3, transactional=ends[pid] is not None, **numbers)
            if ends[pid] is not None and n < 28:
                log.append_marker(pid, n // 4 + 1, commit=bool(ends[pid]), coordinator_epoch=n, transaction_version=2)
    indexes = sorted(map(str, (root / "t-0").glob("*.txnindex")))
    assert dumped_alike(kafka, "--files", ",".join(indexes)).out.count("producerId: ") == 14
    snapshots = sorted(map(str, (root / "t-0").glob("*.snapshot")))
    assert len(snapshots) > 5
    assert dumped_alike(kafka, "--files", ",".join(snapshots)).out.count("producerId: ") > 20
    newest = dumped_alike(kafka, "--files", snapshots[-1]).out
    assert newest.count("producerId: ") == 4
    assert "currentTxnFirstOffset: OptionalLong[" in newest
