"""Real Kafka mounts it: a broker serves directories that kstore wrote, and kstore goes on where the broker stopped.

Each test has a broker of its own, on the loopback address, in one Java process for all of them. The commands and
snippets of docs/with-kafka.md are run as they stand there.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore.files import checkpoint
from tests.kafka.kafka_broker import Cluster, Consumed, Machine, free_addresses
from tests.kafka.kafka_broker import cluster as cluster
from tests.kafka.kafka_broker import machine as machine
from tests.kafka.kafka_jvm import KafkaError
from tests.kafka.kafka_sides import contents

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


PAGE = Path(__file__).parents[2] / "docs" / "with-kafka.md"

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


def hand_over(ours: Path, theirs: Path) -> None:
    """Put the partitions of kstore's directory where the broker's empty ones are, as the page does."""
    code = next(block.text for block in page() if block.kind == "python hand-over")
    for name, path in (("data", ours), ("kafka/logs", theirs)):
        assert f'Path("{name}")' in code
        code = code.replace(f'Path("{name}")', f"Path({str(path)!r})")
    exec(code, {"kstore": kstore})


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
        written = all_records(store)
    hand_over(root, cluster.logs)
    with kstore.Store.open(cluster.logs) as store:
        assert all_records(store) == written
        given = all_records(store)
        asked = {partition: ask_kstore(store.log(*partition)) for partition in given}

    with cluster.up():
        assert consume_all(cluster, given) == given
        for partition in given:
            assert ask_kafka(cluster, partition, asked[partition]) == asked[partition], partition
        given = append_from_broker(cluster, given)
        epochs = {partition: cluster.offsets(*partition, ["latest"])[0].leader_epoch for partition in given}
        assert min(epochs.values()) >= 2  # a broker that stops and starts raises it twice

    with kstore.Store.open(cluster.logs) as store:
        assert all_records(store) == given
        for partition in given:
            log = store.log(*partition)
            assert log.recovery.clean
            log.append(b"ours", b"again", timestamp=T0 + 40_000)
            last_two = [batch.partition_leader_epoch for batch in log.read_batches()][-2:]
            assert last_two == [epochs[partition]] * 2
        given = all_records(store)

    cluster.start()
    assert consume_all(cluster, given) == given
    given = append_from_broker(cluster, given)
    sent = kill_while_it_writes(cluster, "unordered")

    with kstore.Store.open(cluster.logs, "r") as store:
        end = store.log("unordered", 0).log_end_offset
        acknowledged = len(given["unordered", 0])
        given["unordered", 0] += [(acknowledged + i, *sent[i]) for i in range(end - acknowledged)]
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


def kill_while_it_writes(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    """Kill the broker in the middle of a producer's records; all that were to be sent, as (timestamp, key, ...)."""
    sent = [(T0 + 50_000 + i, None, b"%08d" % i * 20, ()) for i in range(6000)]

    def produce() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # the process goes in the middle of it
            batches = {"batch.size": "2000", "linger.ms": "0"}
            cluster.produce(topic, [(key, value, ts) for ts, key, value, _ in sent], partition=0, config=batches)

    producing = threading.Thread(target=produce)
    with kstore.Log.open(cluster.logs / f"{topic}-0", "r") as log:
        enough = log.log_end_offset + 1000
        producing.start()
        while producing.is_alive() and log.log_end_offset < enough:
            pass
    cluster.machine.kill()
    producing.join()
    return sent


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


# --- who may write, and who may look on -------------------------------------------------------------------------------


def test_kstore_and_a_running_broker_refuse_each_others_directory(
    cluster: Cluster,
) -> None:
    writers: list[Callable[[], kstore.Store | kstore.Log]] = [
        lambda: kstore.Store.open(cluster.logs),
        lambda: kstore.Log.open(cluster.logs / "orders-0"),
    ]
    with cluster.up():
        cluster.create("orders")
        for writer in writers:
            with pytest.raises(kstore.LogLockedError) as caught:
                writer()
            assert caught.value.pid == cluster.machine.java.pid
            assert f"locked by process {cluster.machine.java.pid}" in str(caught.value)
            assert caught.value.filename == str(cluster.logs / ".lock")
    for writer in writers:
        with writer(), pytest.raises(KafkaError, match=r"Failed to acquire lock on file \.lock"):
            cluster.start()
    with cluster.up():
        assert cluster.produce("orders", [(b"k", b"v")], partition=0) == [0]


def test_a_reader_follows_what_a_running_broker_does(cluster: Cluster) -> None:
    cluster.start()
    cluster.create("orders", internal_segment_bytes=10_000)
    cluster.produce("orders", rows(60), partition=0)
    cluster.call("commit", topic="orders", partition=0, group="readers", offset=7)
    with kstore.Store.open(cluster.logs, "r") as store:
        assert store.topics == ("__consumer_offsets", "orders")
        log = store.log("orders", 0)
        follower = log.read(follow=True, timeout=240)
        followed = [next(follower) for _ in range(60)]
        for i in range(1, 11):
            cluster.produce("orders", rows(60, T0 + i * 1000), partition=0)
            assert log.log_end_offset == 60 * (i + 1)  # what the broker has acknowledged is there
            followed += [next(follower) for _ in range(60)]
        assert len(log.segments) > 3
        assert [tuple(record) for record in followed] == consume_all(cluster, [("orders", 0)])["orders", 0]
        asked = ask_kstore(log)
        assert ask_kafka(cluster, ("orders", 0), asked) == asked
        assert [b"readers" in (record.key or b"") for record in store.log("__consumer_offsets", 0).read()] == [True]
        cluster.create("later", partitions=2)
        assert cluster.produce("later", rows(5), partition=1) == [0, 1, 2, 3, 4]
        assert 1 in store.partitions("later")
        assert store.log("later", 1).log_end_offset == 5
    cluster.stop()


# --- what was done to a broker's logs ---------------------------------------------------------------------------------


def test_a_broker_serves_what_is_left_of_its_logs_after_cuts_rolls_and_deletions(cluster: Cluster) -> None:
    cuts: list[Callable[[kstore.Log], object]] = [
        lambda log: log.truncate_to(60),
        lambda log: log.truncate_to(45),  # inside a batch, which goes as a whole
        lambda log: log.truncate_to(0),
        lambda log: log.truncate_fully_and_start_at(1000),
        lambda log: log.delete_records(45),
        lambda log: log.delete_records(-1),
        lambda log: log.roll(),
    ]
    with cluster.up():
        cluster.create("orders", partitions=len(cuts), internal_segment_bytes=6000)
        for number in range(len(cuts)):
            for _ in range(3):
                cluster.produce("orders", rows(30), partition=number)
    with kstore.Store.open(cluster.logs, internal_segment_bytes=6000) as store:
        for number, cut in enumerate(cuts):
            cut(store.log("orders", number))
    with kstore.Store.open(cluster.logs, "r") as store:
        left = all_records(store)
        asked = {partition: ask_kstore(store.log(*partition)) for partition in left}
    ends = [ask.start_and_end for ask in asked.values()]
    assert ends == [(0, 60), (0, 30), (0, 0), (1000, 1000), (45, 90), (90, 90), (0, 90)]
    with cluster.up():
        assert consume_all(cluster, left) == left
        for partition in asked:
            assert ask_kafka(cluster, partition, asked[partition]) == asked[partition], partition
        after = append_from_broker(cluster, left)
    with kstore.Store.open(cluster.logs) as store:
        assert all_records(store) == after


def test_a_broker_of_several_log_directories_is_taken_over_and_given_back(machine: Machine, tmp_path: Path) -> None:
    roots = [tmp_path / "kafka" / name for name in ("first", "second")]
    cluster = machine.make(tmp_path / "kafka", log_dirs=",".join(map(str, roots)))
    with cluster.up():
        cluster.create("orders", partitions=5)
        for number in range(5):
            cluster.produce("orders", rows(3 * number), partition=number)
    with kstore.Store.open(roots) as store:
        assert {store.log("orders", number).path.rsplit("/", 2)[1] for number in range(5)} == {"first", "second"}
        for number in range(5):
            assert store.log("orders", number).append(b"ours", timestamp=T0) == 3 * number
        given = all_records(store)
    with cluster.up():
        assert consume_all(cluster, given) == given


# --- what a broker makes of the files beside the segments -------------------------------------------------------------


def test_every_record_is_seen_at_once_whatever_high_watermark_is_on_the_disk(cluster: Cluster) -> None:
    """Of a topic with one replica: its leader is all of its in-sync replicas, so what it has is committed
    (SEMANTICS 0.4)."""
    with cluster.up():
        cluster.create("orders", partitions=4)
    with kstore.Store.open(cluster.logs) as store:
        for number in range(4):
            store.log("orders", number).append_many(rows(10))
    lines: dict[Partition, int | None] = {("orders", 0): None, ("orders", 1): 3, ("orders", 2): 1000, ("orders", 3): 10}
    checkpoint.update_offsets(cluster.logs, checkpoint.HIGH_WATERMARKS, lines)
    with cluster.up():
        for number in range(4):
            assert [found[:2] for found in cluster.offsets("orders", number, ["latest", T0 + 20])] == [
                (10, -1),
                (6, T0 + 20),
            ]
            assert len(cluster.consume("orders", number)) == 10
            assert cluster.produce("orders", rows(1), partition=number) == [10]
    assert set(checkpoint.read_offsets(cluster.logs, checkpoint.HIGH_WATERMARKS).values()) == {11}


def test_a_store_that_was_closed_is_taken_over_without_recovery(cluster: Cluster) -> None:
    with cluster.up():
        cluster.create("orders", partitions=2)
    with kstore.Store.open(cluster.logs) as store:
        store.update_topic_config("orders", {"retention.ms": "-1"})
        store.log("orders", 0).append_many(rows(10))
    assert (cluster.logs / "kstore-topics.json").stat().st_size > 0
    assert starting(cluster) == [f"Skipping recovery of 2 logs from {cluster.logs} since clean shutdown file was found"]
    with kstore.Log.open(cluster.logs / "orders-1") as log:  # which takes the marker away, and leaves none
        log.append_many(rows(10))
    assert starting(cluster) == [f"Recovering 2 logs from {cluster.logs} since no clean shutdown file was found"]
    with cluster.up():
        assert [len(cluster.consume("orders", number)) for number in (0, 1)] == [10, 10]


def starting(cluster: Cluster) -> list[str]:
    """Start the broker and stop it; what it says of recovery."""
    before = len(cluster.said())
    with cluster.up():
        lines = cluster.said()[before:].splitlines()
    return [line.split(" - ", 1)[1] for line in lines if "clean shutdown file" in line]


def test_a_partition_without_the_brokers_topic_id_is_set_aside_and_can_be_put_back(cluster: Cluster) -> None:
    with cluster.up():
        cluster.create("known", "without-id", "of-another-id")
    with kstore.Store.open(cluster.logs) as store:
        store.create_topic("unknown")
        for topic in store.topics:
            store.log(topic, 0).append_many(rows(10))
    (cluster.logs / "without-id-0" / "partition.metadata").unlink()
    (cluster.logs / "of-another-id-0" / "partition.metadata").unlink()
    checkpoint.ensure_partition_metadata(cluster.logs / "of-another-id-0", checkpoint.new_topic_id())
    with cluster.up():
        for topic, count in (("known", 10), ("without-id", 0), ("of-another-id", 0)):
            assert len(cluster.consume(topic)) == count
    with kstore.Store.open(cluster.logs) as store:
        assert store.topics == ("known", "of-another-id", "without-id")
        aside = sorted(Path(path) for path in store.stats()["passed_over"])
    assert [path.name.split(".")[0] for path in aside] == ["of-another-id-0", "unknown-0", "without-id-0"]
    for path in aside:
        assert re.fullmatch(r"[a-z-]+-0\.[0-9a-f]{32}-stray", path.name)
        former = cluster.logs / path.name.split(".")[0]
        if former.exists():  # the empty one that took its place
            shutil.copy(former / "partition.metadata", path)
            shutil.rmtree(former)
            path.rename(former)
    with cluster.up():
        for topic in ("known", "without-id", "of-another-id"):
            assert len(cluster.consume(topic)) == 10


def test_batches_of_higher_epochs_than_the_brokers_are_served_but_their_lines_go(cluster: Cluster) -> None:
    """SEMANTICS 10.3: the broker that becomes leader assigns its own epoch at the log's end."""
    with cluster.up():
        cluster.create("orders")
    with kstore.Store.open(cluster.logs) as store:
        log = store.log("orders", 0)
        for epoch in (0, 7, 9):
            log.append_many(rows(5), leader_epoch=epoch)
    epochs = cluster.logs / "orders-0" / "leader-epoch-checkpoint"
    assert epochs.read_text() == "0\n3\n0 0\n7 5\n9 10\n"
    with cluster.up():
        assert cluster.produce("orders", rows(1), partition=0) == [15]
        *theirs, its_own = [record.leader_epoch for record in cluster.consume("orders")]
        assert theirs == [0] * 5 + [7] * 5 + [9] * 5
    assert epochs.read_text().startswith(f"0\n2\n0 0\n{its_own} 15\n")
    with kstore.Store.open(cluster.logs) as store:
        store.log("orders", 0).append(b"ours")
        batches = store.log("orders", 0).read_batches()
        assert [batch.partition_leader_epoch for batch in batches] == [0, 7, 9, its_own, its_own]


def test_the_brokers_own_topics_are_kept_as_they_are(cluster: Cluster) -> None:
    with cluster.up():
        cluster.create("orders")
        cluster.produce("orders", rows(10), partition=0)
        cluster.call("commit", topic="orders", partition=0, group="readers", offset=7, metadata="noted")
    assert not_in_the_tables(cluster.logs) == []
    metadata = contents(cluster.logs / "__cluster_metadata-0")
    with kstore.Store.open(cluster.logs) as store:
        assert store.topics == ("__consumer_offsets", "orders")
        assert store.stats()["passed_over"] == []
        assert [b"readers" in (record.key or b"") for record in store.log("__consumer_offsets", 0).read()] == [True]
        store.log("orders", 0).append(b"ours")
    assert contents(cluster.logs / "__cluster_metadata-0") == metadata
    with cluster.up():
        committed = cluster.call("committed", topic="orders", partition=0, group="readers")
        assert committed == {"offset": 7, "metadata": "noted"}
        assert [record.offset for record in cluster.consume("orders", 0, 7)] == [7, 8, 9, 10]


def test_a_broker_knows_its_producers_again_after_we_appended(cluster: Cluster) -> None:
    """Sequence numbers go on, aborted records stay hidden, and an unfinished transaction stays unfinished."""
    committed_only = {"isolation.level": "read_committed"}

    def visible() -> list[bytes | None]:
        return [record.value for record in cluster.consume("orders", config=committed_only)]

    def states() -> dict[int, int]:
        found = cluster.call("producer_states", topic="orders", partition=0)
        return {state["producer_id"]: state["last_sequence"] for state in found}

    with cluster.up():
        cluster.create("orders")
        config = {"transactional.id": "loader"}
        send = {"partition": 0, "name": "loader", "config": config}
        cluster.produce("orders", [(b"k", b"committed")], transaction="commit", **send)
        cluster.produce("orders", [(b"k", b"aborted")], transaction="abort", **send)
        cluster.produce("orders", [(b"k", b"numbered")] * 3, partition=0, name="idempotent")
        known = states()
    with kstore.Store.open(cluster.logs) as store:
        store.log("orders", 0).append(b"ours")
    cluster.start()
    assert states() == known
    assert visible() == [b"committed", *[b"numbered"] * 3, b"ours"]
    cluster.produce("orders", [(b"k", b"numbered")] * 2, partition=0, name="idempotent")
    cluster.produce("orders", [(b"k", b"unfinished")], transaction="none", **send)
    known = states()
    cluster.machine.kill()
    with kstore.Store.open(cluster.logs) as store:
        assert not store.log("orders", 0).recovery.clean
        store.log("orders", 0).append(b"ours")
    with cluster.up():
        assert states() == known
        assert visible() == [b"committed", *[b"numbered"] * 3, b"ours", *[b"numbered"] * 2]
        assert [record.value for record in cluster.consume("orders")][-2:] == [b"unfinished", b"ours"]


# --- the page ---------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block of the page: what stands behind its first fence, and its text."""

    kind: str
    text: str


def page() -> list[Block]:
    """The blocks of docs/with-kafka.md, in order."""
    text = PAGE.read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


class Shell:
    """Runs the page's console blocks: a script of Kafka's by its name, its output compared with what the page shows."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.running = False

    def run(self, block: str) -> None:
        """Run each command of a block."""
        for command, shown in re.findall(r"^\$ ([^\n]+)\n((?:[^$][^\n]*\n)*)", block, re.MULTILINE):
            said = self.command(command)
            assert not shown or said == shown, command

    def command(self, command: str) -> str:
        """Run one; what it prints."""
        whole = re.sub(r"\$\(([^)]+)\)", lambda found: self.command(found[1]).strip(), command)
        name, *args = shlex.split(whole)
        if name == "bin/kafka-server-start.sh":
            self.machine.start(Path(args[-1]))
        elif name == "bin/kafka-server-stop.sh":
            self.machine.stop()
        else:
            done = self.machine.script(name.removeprefix("bin/"), *args)
            assert done.code == 0, (whole, done)
            return done.out
        self.running = name == "bin/kafka-server-start.sh"
        return ""


def test_the_pages_commands_and_snippets_do_what_it_shows(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(machine.directory)
    ports = dict(zip(("9092", "9093"), (address.split(":")[1] for address in free_addresses(2)), strict=True))
    shell, names = Shell(machine), {"__name__": "page"}
    blocks = page()
    assert {block.kind.split()[0] for block in blocks} == {"properties", "console", "python", "text"}
    try:
        for kind, text in blocks:
            text = re.sub(r"\b909[23]\b", lambda found: ports[found[0]], text)
            if kind == "properties":
                Path("server.properties").write_text(text + "log.cleaner.dedupe.buffer.size=2097152\n")
            elif kind == "console":
                shell.run(text)
            elif kind == "text":
                shown = text.replace("4711", str(machine.java.pid)).replace("...", str(machine.directory))
                assert capsys.readouterr().out == shown
            else:
                exec(text, names)
    finally:
        if shell.running:
            machine.kill()


def test_what_the_page_says_of_a_stores_files_is_so(root: Path) -> None:
    """Every file that a store makes has its row in the tables."""
    with kstore.Store.open(root) as store:
        store.create_topic("orders", config={"segment.bytes": "200"})
        for _ in range(9):
            store.append("orders", b"v" * 100)
        store.log("orders", 0).delete_records(3)
        store.run_housekeeping()
    assert not_in_the_tables(root) == []


def not_in_the_tables(root: Path) -> list[Path]:
    """The files of a directory that have no row in the page's tables."""
    text = PAGE.read_text(encoding="utf-8")
    files = [path for path in root.rglob("*") if path.is_file() and path.parent.name != "__cluster_metadata-0"]
    names = {path: path.suffix if path.stem.isdigit() else path.name for path in files}
    return [path for path in files if not re.search(rf"^\|[^|]*`{re.escape(names[path])}`[^|]*\|", text, re.MULTILINE)]
