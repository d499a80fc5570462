"""Kafka opens what was restored, and a plain copy of a backup's prefix: dump tool, `UnifiedLog`, a real broker."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from tests.conftest import ManualClock
from tests.kafka.kafka_broker import Cluster
from tests.kafka.kafka_broker import cluster as cluster
from tests.kafka.kafka_broker import machine as machine
from tests.kafka.kafka_jvm import Kafka
from tests.kafka.kafka_sides import contents
from tests.support.backedup import SETTINGS, Picture, World, picture, picture_of

pytestmark = pytest.mark.kafka

COMMITTED = {"isolation.level": "read_committed"}
ROWS = [(b"%d" % i, b"theirs %d" % i) for i in range(40)]
DIGITS = 20


@pytest.fixture
def sealed_backup(root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random) -> tuple[Path, Picture]:
    """A backup of a random store, and what the store had at its last round."""
    world = World(root, rng, clock)
    with kstore.backup(world.store, str(tmp_path / "backup"), every=3600) as backup:
        for _ in range(8):
            for _ in range(25):
                world.step()
            backup.flush()
        last = picture(world.store)
    world.close()
    return tmp_path / "backup", last


def dumps(kafka: Kafka, directory: Path) -> None:
    """Kafka's dump tool finds nothing to complain about in any file of a root's partitions, and nothing to mend."""
    before = {path: contents(path) for path in sorted(directory.iterdir()) if path.is_dir()}
    logs = [path for path in sorted(directory.rglob("*.log")) if path.stat().st_size]
    assert len(logs) > 10
    dumped = kafka.dump("--deep-iteration", "--files", ",".join(map(str, logs)))
    assert dumped.code == 0
    assert "isvalid: false" not in dumped.out
    for path in sorted([*directory.rglob("*.index"), *directory.rglob("*.timeindex")]):
        if path.stat().st_size:
            sane = kafka.dump("--index-sanity-check", "--files", path)
            assert (sane.code, sane.out, sane.err) == (0, f"Dumping {path}\n{path} passed sanity check.\n", "")
            verified = kafka.dump("--verify-index-only", "--files", path)
            assert (verified.code, verified.out, verified.err) == (0, f"Dumping {path}\n", "")
    for path in directory.rglob("*.snapshot"):
        dumped = kafka.dump("--files", path)
        assert (dumped.code, dumped.err) == (0, "")
    assert {path: contents(path) for path in before} == before


def test_kafka_opens_each_partition_of_a_restored_directory(
    kafka: Kafka, sealed_backup: tuple[Path, Picture], tmp_path: Path
) -> None:
    url, last = sealed_backup
    restored = tmp_path / "restored"
    kstore.restore(str(url), restored)
    assert last.unlike(picture_of(restored)) == []
    dumps(kafka, restored)
    for (topic, number), partition in last.partitions.items():
        log = kafka.open(restored / f"{topic}-{number}")
        marks = log.marks()
        assert (marks["log_start_offset"], marks["log_end_offset"]) == partition[:2], (topic, number)
        if partition.batches:
            first = log.read(partition.start)["records"]  # of the first segment
            assert first
            assert b"".join(partition.batches).startswith(first), (topic, number)
        log.close(marker=True)


def broker_of(cluster: Cluster) -> dict[str, str]:
    """Have a broker write two topics, a transaction and a position, and stop; the topics' ids."""
    with cluster.up():
        ids = cluster.create("orders", partitions=2, internal_segment_bytes=2000)
        cluster.produce("orders", ROWS, partition=0, config={"batch.size": "300"})
        theirs = {"transactional.id": "theirs"}
        cluster.produce(
            "orders", ROWS[:5], partition=1, config=theirs, name=f"theirs {cluster.address}", transaction="commit"
        )
        cluster.produce(
            "orders", ROWS[5:9], partition=1, config=theirs, name=f"theirs {cluster.address}", transaction="abort"
        )
        cluster.call("commit", topic="orders", partition=0, group="readers", offset=7)
    return ids


def replace_partitions(logs: Path, restored: Path) -> None:
    """Put the partitions and checkpoints of a directory where a broker's were; its own files stay."""
    for path in logs.iterdir():
        if path.is_dir() and not path.name.startswith("__cluster_metadata"):
            shutil.rmtree(path)
    for path in restored.iterdir():
        if path.is_dir():
            shutil.copytree(path, logs / path.name)
        elif path.name.endswith("-checkpoint"):
            shutil.copy(path, logs / path.name)


def a_restored(url: Path, tmp_path: Path) -> Path:
    kstore.restore(str(url), tmp_path / "restored")
    return tmp_path / "restored"


def a_plain_copy(url: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(url, tmp_path / "copied"))


@pytest.mark.parametrize("bring", [a_restored, a_plain_copy])
def test_a_broker_whose_directory_was_lost_goes_on_with_what_a_backup_brings_back(
    cluster: Cluster, tmp_path: Path, bring: Callable[[Path, Path], Path]
) -> None:
    broker_of(cluster)
    url = tmp_path / "backup"
    with kstore.Store.open(cluster.logs) as store:
        store.log("orders", 0).append_many([b"ours %d" % i for i in range(60)], batch_bytes=300)
        with store.producer(transactional_id="ours") as producer, producer.transaction() as transaction:
            transaction.append("orders", b"ours, committed", partition=1)
            transaction.commit_offsets("readers", {("orders", 1): 3})
        if bring is a_plain_copy:  # what is sealed is in the copy, so all is sealed
            for topic in store.topics:
                for number in store.partitions(topic):
                    if store.log(topic, number).log_end_offset:
                        store.log(topic, number).roll()
        with kstore.backup(store, str(url), every=3600) as backup:
            backup.flush()
        given = picture(store)
    names = [f"orders-{number}" for number in (0, 1)]
    replace_partitions(cluster.logs, bring(url, tmp_path))
    assert all((cluster.logs / name).is_dir() for name in names)

    with cluster.up():
        for number in (0, 1):
            wanted = [
                (record.offset, record.value)
                for data in given.partitions["orders", number].batches
                for batch in kstore.decode_batches(data)
                if not batch.is_control
                for record in batch
            ]
            found = cluster.consume("orders", number)
            assert [(record.offset, record.value) for record in found] == wanted
        committed = [record.value for record in cluster.consume("orders", 1, config=COMMITTED)]
        assert committed == [value for _, value in ROWS[:5]] + [b"ours, committed"]
        ask = {"op": "committed", "group": "readers", "topic": "orders"}
        assert cluster.call(**ask, partition=0)["offset"] == 7
        assert cluster.call(**ask, partition=1)["offset"] == 3
        for name in ("theirs", "ours"):
            config = {"transactional.id": name}
            rows = [(b"k", b"again")]
            cluster.produce(
                "orders", rows, partition=1, config=config, name=f"{name} again {cluster.address}", transaction="commit"
            )
        again = [*committed, b"again", b"again"]
        assert [record.value for record in cluster.committed("orders", 1, len(again))] == again
    with kstore.Store.open(cluster.logs, "r") as store:
        assert store.log("orders", 0).log_end_offset == given.partitions["orders", 0].end


def test_a_broker_begins_with_the_high_watermarks_and_log_starts_of_a_backup(cluster: Cluster, tmp_path: Path) -> None:
    broker_of(cluster)
    with kstore.Store.open(cluster.logs, **SETTINGS) as store:
        store.log("orders", 0).delete_records(11)
        with kstore.backup(store, str(tmp_path / "backup"), every=3600) as backup:
            backup.flush()
    restored = a_restored(tmp_path / "backup", tmp_path)
    assert checkpoint.read_offsets(restored, checkpoint.LOG_STARTS)["orders", 0] == 11
    replace_partitions(cluster.logs, restored)
    with cluster.up():
        earliest, latest = cluster.offsets("orders", 0, ["earliest", "latest"])
        assert (earliest.offset, latest.offset) == (11, 40)
