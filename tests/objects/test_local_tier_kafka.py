"""A tier that a real broker wrote with `LocalTieredStorage` has what a consumer reads from the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.objects.local_objects import LocalObjects
from kstore.objects.local_tier import looks_like_local_tier, read_local_tier
from kstore.objects.remote_state import RemoteState
from tests.kafka.kafka_broker import Cluster, Machine
from tests.kafka.kafka_broker import machine as machine
from tests.support.tiers import bytes_of

pytestmark = pytest.mark.kafka

TOPICS = ("kept", "moved")
"""Of the first the broker keeps all segments, of the second only the active one."""
START_MS = 1_700_000_000_000


class Tier:
    """What a broker left: its own directory, its tier, and what consumers got."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.logs = cluster.logs
        self.root = root
        self.objects = LocalObjects(str(root))
        self.consumed = {topic: cluster.consume(topic) for topic in TOPICS}
        committed = {"isolation.level": "read_committed"}
        self.committed = {topic: cluster.consume(topic, config=committed) for topic in TOPICS}
        deadline = time.monotonic() + 60
        while not self.is_copied() and time.monotonic() < deadline:
            cluster.offsets("moved", 0, ["earliest"])  # waits for the broker, without a sleep
        self.listing = list(self.objects.list())
        self.state = read_local_tier(self.objects, self.listing)

    def is_copied(self) -> bool:
        """Whether the tier has all segments but the active ones; the broker deletes none before that."""
        done = {int(path.name.partition("-")[0]) for path in self.root.glob("*/kept-0-*/*.snapshot")}
        return len(self.local("moved")) == 1 and done >= set(self.local("kept")[:-1])

    def local(self, topic: str) -> list[int]:
        return sorted(int(path.stem) for path in (self.logs / f"{topic}-0").glob("*.log"))

    def active(self, topic: str) -> int:
        return self.local(topic)[-1]


def written(state: RemoteState, objects: LocalObjects, root: Path) -> Path:
    """The files of a state as a log directory."""
    for (topic, number), partition in state.partitions.items():
        directory = root / f"{topic}-{number}"
        directory.mkdir(parents=True)
        for name, file in partition.files.items():
            (directory / name).write_bytes(bytes_of(objects, file))
    for name, file in state.files.items():
        (root / name).write_bytes(bytes_of(objects, file))
    return root


@pytest.fixture(scope="module")
def tier(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    root = tmp_path_factory.mktemp("tier")
    tiered = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
        "remote.log.manager.task.interval.ms": "100",
        "rsm.config.dir": str(root),
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
    }
    cluster = machine.make(tmp_path_factory.mktemp("kafka") / "broker", **tiered)
    cluster.start()
    of_tier: dict[str, Any] = {
        "remote_storage_enable": "true",
        "internal_segment_bytes": 2000,
        "file_delete_delay_ms": 0,
    }
    of_tier |= {"retention_ms": -1, "index_interval_bytes": 200}
    cluster.create("kept", **of_tier)
    cluster.create("moved", local_retention_bytes=1, **of_tier)
    for epoch in range(2):
        if epoch:
            cluster.stop()
            cluster.start()
        for topic in TOPICS:
            for number in range(20):
                stamp = START_MS + 1000 * (100 * epoch + number)
                rows = [(b"k%d" % number, b"v" * (number * 7 % 150), stamp + each) for each in range(3)]
                cluster.produce(topic, rows, partition=0)
            how = {"config": {"transactional.id": f"{topic}-{epoch}"}}
            cluster.produce(topic, [(b"t", b"gone")], partition=0, transaction="abort", **how)
            cluster.produce(topic, [(b"t", b"stays")], partition=0, transaction="commit", **how)
            for number in range(20):
                cluster.produce(topic, [(b"l", b"w" * 100, START_MS + 1000 * (100 * epoch + 50 + number))], partition=0)
    yield Tier(cluster, root)
    cluster.stop()


def test_the_broker_copied_many_segments_of_two_epochs(tier: Tier) -> None:
    assert looks_like_local_tier(tier.listing)
    assert list(tier.state.partitions) == [("kept", 0), ("moved", 0)]
    for topic in TOPICS:
        found = tier.state.partitions[topic, 0]
        assert len(found.segments) > 3
        assert found.end_offset == tier.active(topic)
        assert len(bytes_of(tier.objects, found.files["leader-epoch-checkpoint"]).splitlines()) == 4
    assert len(tier.local("moved")) == 1


def test_files_equal_those_that_the_broker_keeps(tier: Tier) -> None:
    found = tier.state.partitions["kept", 0]
    assert list(found.segments) == tier.local("kept")[:-1]
    directory = tier.logs / "kept-0"
    segment_files = [name for name in found.files if name.endswith((".log", "index", ".snapshot"))]
    assert {name.partition(".")[2] for name in segment_files} == {"log", "index", "timeindex", "txnindex", "snapshot"}
    for name in segment_files:
        assert bytes_of(tier.objects, found.files[name]) == (directory / name).read_bytes(), name
    assert bytes_of(tier.objects, found.files["partition.metadata"]) == (directory / "partition.metadata").read_bytes()


def test_facts_are_those_of_the_records(tier: Tier) -> None:
    found = tier.state.partitions["moved", 0]
    ends = [*list(found.segments)[1:], found.end_offset]
    for (base, facts), end in zip(found.segments.items(), ends, strict=True):
        stamps = [each.timestamp for each in tier.consumed["moved"] if base <= each.offset < end]
        assert facts.end_offset == end
        assert facts.max_timestamp is not None
        # A marker of a transaction has the broker's time.
        assert facts.max_timestamp >= max(stamps)


def test_a_log_of_the_files_has_what_consumers_read(tier: Tier, tmp_path: Path) -> None:
    root = written(tier.state, tier.objects, tmp_path / "copy")
    with kstore.Store.open(root, mode="r") as store:
        for topic in TOPICS:
            end = tier.state.partitions[topic, 0].end_offset
            rows = {
                "read_uncommitted": list(store.read(topic)),
                "read_committed": list(store.read(topic, isolation="read_committed")),
            }
            for isolation, consumed in (("read_uncommitted", tier.consumed), ("read_committed", tier.committed)):
                got = [(each.offset, each.timestamp, each.key, each.value) for each in rows[isolation]]
                assert got == [each[:4] for each in consumed[topic] if each.offset < end]
                assert len(got) > 100
            assert store.log(topic, 0).log_end_offset == end


def test_the_tier_below_its_directory_reads_the_same(tier: Tier) -> None:
    inside = LocalObjects(f"{tier.objects.path}/kafka-tiered-storage")
    found = read_local_tier(inside, list(inside.list()), ("moved", 0))
    assert list(found.partitions) == [("moved", 0)]
    assert found.partitions["moved", 0].segments == tier.state.partitions["moved", 0].segments


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_tier_is_read_without_the_broker_and_with_its_directory(tier: Tier, isolation: Any) -> None:
    """The URL alone has the segments that were copied; with the broker's directory nothing is missing."""
    consumed = tier.consumed if isolation == "read_uncommitted" else tier.committed
    url = tier.root.as_uri()
    with (
        kstore.Store.open(url, "r") as alone,
        kstore.Store.open(tier.logs, "r", archive=url) as joined,
        kstore.Log.open(f"{url}/moved-0", "r") as log,
    ):
        for topic in TOPICS:
            all_rows = [each[:4] for each in consumed[topic]]
            end = tier.state.partitions[topic, 0].end_offset
            for store, rows in ((alone, [each for each in all_rows if each[0] < end]), (joined, all_rows)):
                found = store.read(topic, isolation=isolation)
                assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == rows
                columns = store.log(topic, 0).read_columns(isolation=isolation)
                assert list(columns["offset"]) == [each[0] for each in rows]
        assert [each.offset for each in log.read()] == [each.offset for each in alone.read("moved")]
