"""Real Kafka mounts it: a broker serves directories that kstore wrote, and kstore goes on where the broker stopped.

Each test has a broker of its own, on the loopback address, in one Java process for all of them. The commands and
snippets of docs/with-kafka.md are run as they stand there.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka_broker import Cluster, Consumed
from kafka_broker import cluster as cluster
from kafka_broker import machine as machine

import kstore

pytestmark = pytest.mark.kafka

Partition = tuple[str, int]
Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
T0 = 1_700_000_000_000


def rows(count: int, start: int = T0, step: int = 10) -> list[Row]:
    """Records of every shape: null and empty keys and values, headers; three in a row share a timestamp."""
    shapes: list[tuple[bytes | None, bytes | None, Any]] = [
        (None, b"value", None),
        (b"key", b"", None),
        (b"", b"v" * 300, [("name", b"x"), ("", None)]),
        (b"k" * 70, None, None),
        (None, None, [("n\u00e4me \u2603", b"")]),
    ]
    return [
        (key, value, start + i // 3 * step, headers)
        for i, (key, value, headers) in ((i, shapes[i % len(shapes)]) for i in range(count))
    ]


# --- what kstore writes -----------------------------------------------------------------------------------------------

# A topic for each reason to roll, and the settings that bring it about.
ROLLS: dict[str, dict[str, object]] = {
    "size": {"segment.bytes": 4000},
    "time": {"segment.ms": 200},
    "offset_index_full": {"index.interval.bytes": 0, "segment.index.bytes": 160},
    "time_index_full": {"index.interval.bytes": 0, "segment.index.bytes": 160},
    "offset_range": {},
}
PARTITIONS = {"codecs": len(CODECS), "starts-late": 2, "unordered": 1, "empty": 1} | dict.fromkeys(ROLLS, 1)


def fill(store: kstore.Store) -> None:
    """Write every topic of PARTITIONS."""
    for number, codec in enumerate(CODECS):
        log = store.log("codecs", number)
        log.append_many(rows(200), compression=codec, batch_bytes=5000)
        for key, value, timestamp, headers in rows(20, T0 + 10_000):
            log.append(value, key, timestamp=timestamp, headers=headers)
    for reason in ROLLS:
        log = store.log(reason, 0)
        step = 0 if reason == "offset_index_full" else 10
        for i, (key, value, timestamp, headers) in enumerate(rows(90, step=step)):
            timestamp += i if reason == "time_index_full" else 0
            log.append(value, key, timestamp=timestamp, headers=headers)
        if reason == "offset_range":
            far = kstore.encode_batch(rows(10, T0 + 20_000), base_offset=2**31, partition_leader_epoch=0)
            log.append_as_follower(far)
        assert {segment.roll_reason for segment in log.segments[1:]} == {reason}
        assert len(log.segments) > 1
    for number, before in ((0, 25), (1, 60)):  # inside of a batch, and at the end
        log = store.log("starts-late", number)
        log.append_many(rows(60), batch_bytes=1000)
        log.delete_records(before)
        assert log.log_start_offset == before
    log = store.log("unordered", 0)
    for i in range(200):
        log.append(b"%d" % i, timestamp=T0 + i * 7919 % 200)


def all_records(store: kstore.Store) -> dict[Partition, list[tuple[Any, ...]]]:
    """What a store has, as plain tuples."""
    return {
        (topic, number): [tuple(record) for record in store.log(topic, number).read()]
        for topic in store.topics
        for number in store.partitions(topic)
        if not topic.startswith("__")
    }


def consume_all(cluster: Cluster, partitions: Any) -> dict[Partition, list[tuple[Any, ...]]]:
    """What a broker has, as plain tuples."""
    return {partition: [record[:5] for record in cluster.consume(*partition)] for partition in partitions}


class Asked(NamedTuple):
    """Questions about a partition's borders and the answers to them: first records, times, and the marks."""

    firsts: dict[int, Any]  # by offset: the first record from there on
    times: dict[int, tuple[int, int]]  # by timestamp: offset and timestamp of the first record at or after it
    newest: tuple[int, int]
    start_and_end: tuple[int, int]


def ask_kstore(log: kstore.Log) -> Asked:
    """Ask around the first and last offset and timestamp of each segment, and of some batches."""
    start, end = log.log_start_offset, log.log_end_offset
    offsets, timestamps = {start, end - 1, end}, {0, T0 - 1, T0, T0 + 10**9}
    for segment in log.segments:
        offsets |= {segment.base_offset + n for n in (-1, 0, 1)}
        timestamps |= {ts + n for ts in (segment.first_timestamp, segment.max_timestamp) if ts for n in (-1, 0, 1)}
    for batch in itertools.islice(log.read_batches(), 0, None, 10):
        offsets |= {batch.base_offset, batch.last_offset}
        timestamps |= {batch.max_timestamp, batch.max_timestamp + 1}
    found = {timestamp: log.offset_for_timestamp(timestamp) for timestamp in sorted(timestamps) if timestamp >= 0}
    newest = log.max_timestamp()
    return Asked(
        {o: next((tuple(record) for record in log.read(o)), None) for o in sorted(offsets) if start <= o <= end},
        {timestamp: (-1, -1) if at is None else (at.offset, at.timestamp) for timestamp, at in found.items()},
        (-1, -1) if newest is None else (newest.offset, newest.timestamp),
        (start, end),
    )


def ask_kafka(cluster: Cluster, partition: Partition, asked: Asked) -> Asked:
    """Ask a broker the same."""
    firsts = cluster.first_at(*partition, asked.firsts)
    marks = ["max_timestamp", "earliest", "latest"]
    *found, newest, earliest, latest = cluster.offsets(*partition, [*asked.times, *marks])
    return Asked(
        {o: r[:5] if isinstance(r, Consumed) else r for o, r in zip(asked.firsts, firsts, strict=True)},
        {timestamp: at[:2] for timestamp, at in zip(asked.times, found, strict=True)},
        newest[:2],
        (earliest.offset, latest.offset),
    )


def replace_partitions(ours: Path, theirs: Path) -> None:
    """Put kstore's partition directories where the broker's empty ones are."""
    for source in sorted(path for path in ours.iterdir() if path.is_dir()):
        shutil.rmtree(theirs / source.name)
        shutil.move(source, theirs / source.name)


# --- the round trip ---------------------------------------------------------------------------------------------------


def test_a_broker_serves_what_kstore_wrote_and_each_goes_on_where_the_other_stopped(
    cluster: Cluster, root: Path
) -> None:
    with cluster.up():
        ids = cluster.create(*[name for name in PARTITIONS if PARTITIONS[name] == 1])
        for name, count in PARTITIONS.items():
            if count > 1:
                ids |= cluster.create(name, partitions=count)
    with kstore.Store.open(root) as store:
        for name, count in PARTITIONS.items():
            store.create_topic(name, count, topic_id=ids[name], config=ROLLS.get(name))
        fill(store)
        starts = {(name, n): store.log(name, n).log_start_offset for name in PARTITIONS for n in store.partitions(name)}
    replace_partitions(root, cluster.logs)
    with kstore.Store.open(cluster.logs) as store:
        for partition, start in starts.items():
            store.log(*partition).delete_records(start)
        given = all_records(store)
        asked = {partition: ask_kstore(store.log(*partition)) for partition in given}

    with cluster.up():
        assert consume_all(cluster, given) == given
        for partition in given:
            assert ask_kafka(cluster, partition, asked[partition]) == asked[partition], partition
        given = append_from_broker(cluster, given)

    with kstore.Store.open(cluster.logs) as store:
        assert all_records(store) == given
        for partition in given:
            log = store.log(*partition)
            assert log.recovery.clean
            assert [batch.partition_leader_epoch for batch in log.read_batches()][-1] == 2
            log.append(b"ours", b"again", timestamp=T0 + 40_000)
            assert [batch.partition_leader_epoch for batch in log.read_batches()][-1] == 2
        given = all_records(store)

    cluster.start()
    assert consume_all(cluster, given) == given
    given = append_from_broker(cluster, given)
    cluster.machine.kill()

    with kstore.Store.open(cluster.logs, "r") as store:
        assert all_records(store) == given
    with kstore.Store.open(cluster.logs) as store:
        assert all_records(store) == given
        assert not any(store.log(*partition).recovery.clean for partition in given)
        for partition in given:
            store.log(*partition).append_many(rows(10, T0 + 60_000), compression="zstd")
        given = all_records(store)
        asked = {partition: ask_kstore(store.log(*partition)) for partition in given if partition[1] == 0}

    with cluster.up():
        assert consume_all(cluster, given) == given
        for partition in asked:
            assert ask_kafka(cluster, partition, asked[partition]) == asked[partition], partition


def append_from_broker(
    cluster: Cluster, given: dict[Partition, list[tuple[Any, ...]]]
) -> dict[Partition, list[tuple[Any, ...]]]:
    """Have a producer append to every partition; what is there then."""
    after = {}
    for i, ((topic, number), records) in enumerate(sorted(given.items())):
        more = rows(12, T0 + 30_000)
        config = {"compression.type": CODECS[i % len(CODECS)]}
        offsets = cluster.produce(topic, more, partition=number, config=config)
        after[topic, number] = records + [
            (offset, timestamp, key, value, tuple(headers or ()))
            for offset, (key, value, timestamp, headers) in zip(offsets, more, strict=True)
        ]
    return after
