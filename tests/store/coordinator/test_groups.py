"""Groups' positions: committed, read back, expired, as a broker keeps them; and consumers that go on from there."""

from __future__ import annotations

import json
import struct
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.codec.coordinator import group_records
from kstore.codec.coordinator.record_texts import OFFSETS
from kstore.store.coordinator.consumer import ReadPositions
from kstore.store.coordinator.group_state import OffsetsPartition
from tests.conftest import ManualClock
from tests.golden import goldensets

DAY_MS = 24 * 3_600_000
TOPIC = "__consumer_offsets"


def open_store(root: Path, clock: ManualClock | None = None, **config: Any) -> kstore.Store:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return kstore.Store.open(root, clock=clock, background=False, config=settings)


def housekeep(store: kstore.Store, clock: ManualClock, wait_ms: int) -> None:
    clock.now += wait_ms
    store.run_housekeeping()


# --- what is committed ------------------------------------------------------------------------------------------------


def test_what_is_committed_is_there_in_the_next_life_and_for_readers(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders", 2)
        store.commit_offsets("grp", {("orders", 0): 5, ("orders", 1): 0}, "first")
        store.commit_offsets("grp", {("orders", 1): 9})
        store.commit_offsets("other", {("orders", 1): 3})
        assert store.committed_offsets("grp") == {("orders", 0): 5, ("orders", 1): 9}
    for mode in ("r", "a"):
        with kstore.Store.open(root, mode) as store:
            found = store.committed_offsets("grp")
            assert found == {("orders", 0): 5, ("orders", 1): 9}
            assert found["orders", 0].metadata == "first"
            assert found["orders", 0].leader_epoch == -1
            assert store.committed_offsets("other") == {("orders", 1): 3}
            assert store.committed_offsets("unknown") == {}
            assert store.groups == ("grp", "other")


def test_groups_is_an_attribute_that_can_still_be_called(root: Path) -> None:
    with open_store(root) as store:
        store.commit_offsets("grp", {("orders", 0): 5})
        assert store.groups == ("grp",)
        with pytest.warns(DeprecationWarning, match=r"use store\.groups"):
            assert store.groups() == ("grp",)  # type: ignore[operator]


def test_a_committed_offset_is_an_int_and_has_one(root: Path) -> None:
    with open_store(root) as store:
        store.commit_offsets("grp", {("orders", 0): 5})
        position = store.committed_offsets("grp")["orders", 0]
        assert (position, position.offset, type(position.offset)) == (5, 5, int)


def test_a_reader_in_another_place_follows_what_is_committed(root: Path) -> None:
    with open_store(root) as store, kstore.Store.open(root, "r") as reader:
        assert reader.committed_offsets("grp") == {}
        for offset in range(5):
            store.commit_offsets("grp", {("orders", 0): offset})
            assert reader.committed_offsets("grp") == {("orders", 0): offset}
        store.delete_offsets("grp")
        assert reader.committed_offsets("grp") == {}


def test_the_topic_is_kafkas_and_its_directories_are_made_when_they_are_written(root: Path) -> None:
    with open_store(root) as store:
        assert TOPIC not in store.topics
        store.commit_offsets("grp", {("orders", 0): 5})
        assert store.partitions(TOPIC) == (29,)  # FORMAT 12.2
        store.commit_offsets("my-group", {("orders", 0): 5})
        assert store.partitions(TOPIC) == (12, 29)
        config = store.topic_config(TOPIC)
        assert (config.cleanup_policy, config.segment_bytes, config.compression_type) == (
            ("compact",),
            256 << 10,  # `internal-segments`
            "producer",
        )
        ids = {(root / f"{TOPIC}-{n}" / "partition.metadata").read_text() for n in (12, 29)}
        assert len(ids) == 1
    with open_store(root, offsets_topic_num_partitions=7) as store:  # decided when it was made
        store.commit_offsets("console-consumer-1", {("orders", 0): 5})
        assert store.partitions(TOPIC) == (12, 24, 29)
        store.update_topic_config(TOPIC, {"segment.bytes": "2000000"})
    with open_store(root) as store:
        store.commit_offsets("polygenelubricants", {("orders", 0): 1})
        assert store.partitions(TOPIC) == (0, 12, 24, 29)
        assert store.topic_config(TOPIC).segment_bytes == 2000000


def test_how_many_partitions_there_are_is_a_setting(root: Path) -> None:
    with open_store(root, offsets_topic_num_partitions=3, offsets_topic_segment_bytes=1 << 20) as store:
        store.commit_offsets("grp", {("orders", 0): 5})
        assert store.partitions(TOPIC) == (102629 % 3,)
        assert store.topic_config(TOPIC).segment_bytes == 1 << 20


def test_the_positions_of_many_commits_are_compacted_and_read_from_what_is_left(root: Path, clock: ManualClock) -> None:
    """`internal-segments`"""
    settings = {"offsets_topic_segment_bytes": 16 << 10, "log_cleaner_delete_retention_ms": 0}
    with open_store(root, clock, **settings) as store:
        for number in range(2000):
            store.commit_offsets(f"group-{number % 3}", {("orders", number % 7): number})
            if number == 1000:
                store.delete_offsets("group-0")
            if number % 200 == 199:
                housekeep(store, clock, 60_000)
        expected = {name: store.committed_offsets(name) for name in store.groups}
        assert sorted(expected) == ["group-0", "group-1", "group-2"]
        assert max(expected["group-1"].values()) == 1999
        for number in store.partitions(TOPIC):
            log = store.log(TOPIC, number)
            assert log.compact().first_dirty_offset > 0
            assert sum(segment.size_bytes for segment in log.segments) < 2 * (16 << 10)
            assert log.log_end_offset > 600
    with open_store(root, clock, **settings) as store:
        assert {name: store.committed_offsets(name) for name in store.groups} == expected


def test_positions_of_open_and_of_aborted_transactions_are_not_taken_for_the_newest(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        for lost in range(3):
            store.commit_offsets("grp", {("orders", 0): lost})
            with store.producer(transactional_id="mover") as producer:
                txn = producer.transaction()
                txn.commit_offsets("grp", {("orders", 0): 100 + lost})
                txn.abort()
                with producer.transaction() as txn:
                    txn.commit_offsets("grp", {("orders", 1): 200 + lost})
        producer = store.producer(transactional_id="mover")
        txn = producer.transaction()
        txn.commit_offsets("grp", {("orders", 0): 300})
        store.commit_offsets("grp", {("orders", 2): 7})
        with kstore.Store.open(root, "r") as reader:
            assert reader.committed_offsets("grp") == {("orders", 0): 2, ("orders", 1): 202, ("orders", 2): 7}
        txn.commit()
        with kstore.Store.open(root, "r") as reader:
            assert reader.committed_offsets("grp") == {("orders", 0): 300, ("orders", 1): 202, ("orders", 2): 7}
        producer.close()


def test_a_commit_is_one_batch_as_a_broker_writes_it(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock) as store:
        topic_id = store.create_topic("orders", 2)
        store.commit_offsets("grp", {("orders", 0): 5, ("orders", 1): 6, ("elsewhere", 3): 7}, "m")
        (batch,) = store.log(TOPIC, 29).read_batches()
        assert (batch.base_sequence, batch.producer_id, batch.is_transactional, batch.count) == (0, -1, False, 3)
        positions = [group_records.parse_position(record.value or b"") for record in batch]
        assert [position.topic_id for position in positions] == [topic_id, topic_id, None]
        assert {position.commit_timestamp for position in positions} == {clock.now} == {batch.max_timestamp}


def test_many_positions_take_as_many_batches_as_they_need(root: Path) -> None:
    offsets = {("orders", number): number for number in range(3000)}
    with open_store(root) as store:
        store.commit_offsets("grp", offsets, "\u2603" * 1000)
        sizes = [batch.size_bytes for batch in store.log(TOPIC, 29).read_batches()]
        assert len(sizes) > 1
        assert max(sizes) < 1 << 20
        assert store.committed_offsets("grp") == offsets


@pytest.mark.parametrize(
    ("group", "offsets", "metadata", "error"),
    [
        ("", {("t", 0): 1}, "", ValueError),
        (b"g", {("t", 0): 1}, "", TypeError),
        ("g" * 32768, {("t", 0): 1}, "", ValueError),
        ("g", {("t", 0): -1}, "", ValueError),
        ("g", {("t", 0): 2**63}, "", ValueError),
        ("g", {("t", 0): "1"}, "", TypeError),
        ("g", {("t", -1): 1}, "", ValueError),
        ("g", {("t", 2**31): 1}, "", ValueError),
        ("g", {("a/b", 0): 1}, "", kstore.InvalidTopicError),
        ("g", {"t-0": 1}, "", TypeError),
        ("g", [("t", 0)], "", TypeError),
        ("g", {("t", 0): 1}, "m" * 4097, ValueError),
        ("g", {("t", 0): 1}, None, TypeError),
    ],
)
def test_what_cannot_be_committed_is_refused_and_nothing_is_written(
    root: Path, group: Any, offsets: Any, metadata: Any, error: type[Exception]
) -> None:
    with open_store(root) as store:
        with pytest.raises(error):
            store.commit_offsets(group, offsets, metadata)
        assert store.topics == ()


def test_the_edges_of_what_can_be_committed(root: Path) -> None:
    with open_store(root) as store:
        store.commit_offsets("g", {("t", 2**31 - 1): 2**63 - 1, ("t", 0): 0}, "m" * 4096)
        assert store.committed_offsets("g") == {("t", 2**31 - 1): 2**63 - 1, ("t", 0): 0}
        store.commit_offsets("g", {})


# --- what goes --------------------------------------------------------------------------------------------------------


def test_a_position_expires_when_its_group_was_silent_for_the_retention(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock, offsets_retention_minutes=2, offsets_retention_check_interval_ms=1000) as store:
        store.commit_offsets("grp", {("orders", 0): 5, ("orders", 1): 6})
        housekeep(store, clock, 60_000)
        store.commit_offsets("grp", {("orders", 1): 7})
        housekeep(store, clock, 59_999)
        assert store.committed_offsets("grp") == {("orders", 0): 5, ("orders", 1): 7}
        housekeep(store, clock, 1000)
        assert store.committed_offsets("grp") == {("orders", 1): 7}
        housekeep(store, clock, 59_001)
        assert store.committed_offsets("grp") == {}
        assert store.groups == ()
        records = [record.value for record in store.log(TOPIC, 29).read()]
        assert records[-2:] == [None, None]
    with open_store(root, clock) as store:
        assert store.committed_offsets("grp") == {}


def test_a_position_does_not_expire_within_a_week_nor_while_a_consumer_is_open(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock) as store:
        store.create_topic("orders")
        store.commit_offsets("grp", {("orders", 0): 0})
        housekeep(store, clock, 7 * DAY_MS - 1)
        assert store.groups == ("grp",)
        with store.consumer("grp", "orders"):
            housekeep(store, clock, DAY_MS)
            assert store.groups == ("grp",)
        housekeep(store, clock, 1)  # the last commit counts, and neither reads nor the close
        assert store.groups == ()


def test_reading_without_commits_keeps_no_position(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock) as store:
        store.create_topic("orders")
        store.commit_offsets("grp", {("orders", 0): 0})
        for _ in range(6):
            housekeep(store, clock, DAY_MS)
            with store.consumer("grp", "orders") as consumer:
                assert consumer.poll(0) == []
        assert store.groups == ("grp",)
        housekeep(store, clock, DAY_MS)
        assert store.groups == ()


def test_a_group_goes_with_its_positions_when_it_is_deleted(root: Path) -> None:
    with open_store(root) as store:
        store.commit_offsets("grp", {("orders", 0): 5, ("orders", 1): 6})
        store.delete_offsets("grp", [("orders", 0), ("orders", 7)])
        assert store.committed_offsets("grp") == {("orders", 1): 6}
        store.delete_offsets("grp")
        assert store.committed_offsets("grp") == {}
        store.delete_offsets("grp")
        store.delete_offsets("unknown")
        assert [record.value is None for record in store.log(TOPIC, 29).read()] == [False, False, True, True]


def test_positions_in_a_deleted_topic_go_and_count_for_no_other_of_its_name(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        store.create_topic("kept")
        store.commit_offsets("grp", {("orders", 0): 5, ("kept", 0): 6})
        stale = [(record.key, record.value) for record in store.log(TOPIC, 29).read()]
        store.delete_topic("orders")
        assert store.committed_offsets("grp") == {("kept", 0): 6}
        store.create_topic("orders")
        store.log(TOPIC, 29).append_many(stale)  # as if a crash had kept the tombstones from being written
        assert store.committed_offsets("grp") == {("kept", 0): 6}


DELETIONS: dict[str, Callable[[kstore.Store], object]] = {
    "its topic": lambda store: store.delete_topic("orders"),
    "the group": lambda store: store.delete_offsets("grp"),
    "the position": lambda store: store.delete_offsets("grp", [("orders", 0)]),
}


@pytest.mark.parametrize("deletion", DELETIONS)
@pytest.mark.parametrize("before", [True, False])
def test_a_position_that_an_open_transaction_has_committed_is_deleted_with(
    root: Path, deletion: str, before: bool
) -> None:
    """As in Kafka's OffsetMetadataManager, a tombstone holds against earlier commits, whenever their marker comes."""
    with open_store(root) as store:
        store.create_topic("orders", 2)
        store.create_topic("kept")
        if before:
            store.commit_offsets("grp", {("orders", 0): 1})
        with store.producer(transactional_id="x") as producer, producer.transaction() as txn:
            txn.commit_offsets("grp", {("orders", 0): 4})
            DELETIONS[deletion](store)
            txn.commit_offsets("grp", {("kept", 0): 5})
        assert store.committed_offsets("grp") == {("kept", 0): 5}
    with open_store(root) as store:
        assert store.committed_offsets("grp") == {("kept", 0): 5}
        with store.producer(transactional_id="x") as producer, producer.transaction() as txn:
            store.delete_offsets("grp")
            txn.commit_offsets("grp", {("kept", 0): 6})
        assert store.committed_offsets("grp") == {("kept", 0): 6}


def test_a_topics_deletion_keeps_a_position_in_another_stores_topic_of_that_name(root: Path) -> None:
    """Also where an open transaction has written one in the deleted topic for the same group and partition."""
    elsewhere = ReadPositions({("orders", 0): 7})
    elsewhere.topic_ids = {"orders": uuid.uuid4()}
    with open_store(root) as store, store.producer(transactional_id="x") as producer:
        store.create_topic("orders", 2)
        store.commit_offsets("grp", {("orders", 1): 1})
        store.commit_offsets("grp", elsewhere)
        txn = producer.transaction()
        txn.commit_offsets("grp", {("orders", 0): 4})
        store.delete_topic("orders")
        txn.abort()
        assert store.committed_offsets("grp") == {("orders", 0): 7}


def test_a_position_whose_transaction_ends_during_a_deletion_is_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(root) as store, store.producer(transactional_id="x") as producer:
        txn = producer.transaction()
        txn.commit_offsets("grp", {("orders", 0): 4})
        positions = OffsetsPartition.positions

        def look_and_commit(self: OffsetsPartition, group: str) -> Any:
            found = positions(self, group)
            if not txn.ended:
                txn.commit()
            return found

        monkeypatch.setattr(OffsetsPartition, "positions", look_and_commit)
        store.delete_offsets("grp")
        assert txn.ended
        assert store.committed_offsets("grp") == {}


def test_a_tombstone_amid_a_batch_of_a_transaction_drops_what_is_before_it_alone(root: Path) -> None:
    with open_store(root) as store:
        store.commit_offsets("grp", {("kept", 0): 1})
        log = store.log(TOPIC, 29)
        [committed] = log.read()
        first, second = (group_records.offset_key("grp", topic, 0) for topic in ("a", "b"))
        batch = kstore.encode_batch(
            [(first, committed.value), (first, None), (second, committed.value)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append_batch(batch, origin="coordinator")
        log.append_marker(7, 0, commit=True)
        assert store.committed_offsets("grp") == {("b", 0): 1, ("kept", 0): 1}


# --- what a broker wrote ----------------------------------------------------------------------------------------------


def expected_positions() -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    """What the golden set's records say, by the dump tool's text of them."""
    positions: dict[tuple[str, str, int], dict[str, Any]] = {}
    pending: dict[int, list[tuple[tuple[str, str, int], dict[str, Any]]]] = {}
    for each in goldensets.expected_records("consumer-offsets", "dir/__consumer_offsets-0"):
        producer = each.line["producerId"]
        if each.line["isControl"]:
            ended = pending.pop(producer, [])
            positions |= dict(ended) if each.key == struct.pack(">hh", 0, 1) else {}
            continue
        key_text, value_text = OFFSETS(each.offset, each.key, each.value)
        key = json.loads(key_text)
        if key["type"] != "1":
            continue
        place = (key["data"]["group"], key["data"]["topic"], key["data"]["partition"])
        if each.value is None:
            positions.pop(place, None)
            continue
        value = json.loads(value_text or b"")["data"]
        if each.line["isTransactional"]:
            pending.setdefault(producer, []).append((place, value))
        else:
            positions[place] = value
    found: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for (group, topic, number), value in positions.items():
        found.setdefault(group, {})[topic, number] = value
    return found


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_brokers_positions_are_read_and_those_of_aborted_transactions_are_not(
    golden: Callable[[str], Path], mode: Any
) -> None:
    expected = expected_positions()
    assert expected["group-tx"]["tx", 0]["metadata"] == "in transaction 0"
    with kstore.Store.open(golden("consumer-offsets") / "dir", mode) as store:
        assert store.groups == tuple(sorted(expected))
        for group, positions in expected.items():
            found = store.committed_offsets(group)
            assert found == {place: value["offset"] for place, value in positions.items()}
            for place, value in positions.items():
                assert found[place].metadata == value["metadata"]
                assert found[place].leader_epoch == value["leaderEpoch"]
                assert found[place].commit_timestamp == value["commitTimestamp"]


def test_a_group_that_a_broker_knows_goes_on_in_the_brokers_partition(golden: Callable[[str], Path]) -> None:
    root = golden("consumer-offsets") / "dir"
    with kstore.Store.open(root) as store:
        store.commit_offsets("group-tx", {("tx", 0): 77})
        assert store.committed_offsets("group-tx")["tx", 0] == 77
        assert store.partitions(TOPIC) == (0,)
        assert store.topic_config(TOPIC).cleanup_policy == ("compact",)
    with kstore.Store.open(root) as store:
        assert store.committed_offsets("group-tx")["tx", 0] == 77
        store.delete_offsets("group-tx")
        assert store.committed_offsets("group-tx") == {}


def test_groups_that_a_broker_left_expire_by_their_state(golden: Callable[[str], Path], clock: ManualClock) -> None:
    """docs/compatibility.md: `members-keep-positions`."""
    last_ms = max(r.timestamp for r in goldensets.expected_records("consumer-offsets", "dir/__consumer_offsets-0"))
    clock.now = last_ms
    with open_store(golden("consumer-offsets") / "dir", clock) as store:
        before = store.groups
        housekeep(store, clock, 6 * DAY_MS)
        assert store.groups == before
        housekeep(store, clock, 2 * DAY_MS)
        assert store.groups == ("classic", "modern")  # they had members when the broker stopped
        tombstones = [record.key for record in store.log(TOPIC, 0).read() if record.value is None]
        assert group_records.group_key("sticky") in tombstones  # its record goes with its positions


# --- what is in a partition, by hand ----------------------------------------------------------------------------------


def position(offset: int, stamp: int = 0) -> bytes:
    return group_records.offset_value(group_records.Position(offset, -1, "", stamp))


KEY = group_records.offset_key("g", "t", 0)


def test_bytes_that_are_no_groups_records_are_named_with_their_place(root: Path) -> None:
    log = kstore.Log.open(root / f"{TOPIC}-0")
    log.append(b"x", group_records.offset_key("g", "t", 0))
    with pytest.raises(kstore.CorruptRecordError, match=r"offset 0 .*holds no group's records") as caught:
        OffsetsPartition(log).positions("g")
    assert caught.value.path == f"{log.path}/00000000000000000000.log"
    log.close()


def test_records_of_types_that_say_nothing_are_passed_over(root: Path) -> None:
    with kstore.Log.open(root / f"{TOPIC}-0") as log:
        for kind in (7, 9, 18, 99):
            log.append(b"anything", struct.pack(">hh", kind, 5))
        log.append(position(3), KEY)
        assert OffsetsPartition(log).positions("g")["t", 0].offset == 3


def test_a_log_that_was_cut_is_read_again_from_its_start(root: Path) -> None:
    with kstore.Log.open(root / f"{TOPIC}-0") as log:
        partition = OffsetsPartition(log)
        for offset in (1, 2, 3):
            log.append(position(offset), KEY)
        assert partition.positions("g")["t", 0].offset == 3
        log.truncate_to(1)
        assert partition.positions("g")["t", 0].offset == 1


@given(st.lists(st.tuples(st.sampled_from(["set", "drop"]), st.integers(0, 2), st.integers(0, 9)), max_size=20))
def test_positions_are_those_of_the_last_commit(history: list[tuple[str, int, int]]) -> None:
    model: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as path, kstore.Log.open(Path(path) / f"{TOPIC}-0") as log:
        partition = OffsetsPartition(log)
        for i, (kind, number, offset) in enumerate(history):
            value = position(offset) if kind == "set" else None
            log.append(value, group_records.offset_key("g", "t", number))
            model |= {("t", number): offset}
            if value is None:
                del model["t", number]
            if i % 3 == 0:
                assert {place: each.offset for place, each in partition.positions("g").items()} == model
        assert {place: each.offset for place, each in OffsetsPartition(log).positions("g").items()} == model


# --- consumers --------------------------------------------------------------------------------------------------------


def fill(store: kstore.Store, topic: str = "orders", count: int = 30) -> None:
    if topic not in store.topics:
        store.create_topic(topic, 3)
    for i in range(count):
        store.append(topic, b"%d" % i, key=b"%d" % i)


def values(records: Any) -> list[bytes]:
    return sorted(record.value for record in records)


def test_a_consumer_resumes_where_its_group_left(root: Path) -> None:
    with open_store(root) as store:
        fill(store)
        everything = values(store.read("orders"))
    first: list[kstore.ConsumerRecord] = []
    with open_store(root) as store, store.consumer("grp", "orders") as consumer:
        for record in consumer:
            first.append(record)
            if len(first) == 13:
                consumer.commit(sync=True)
            if len(first) == 17:
                break
    with open_store(root) as store, store.consumer("grp", ["orders"]) as consumer:
        rest = list(consumer)
        assert len(rest) == 17
        assert values([*first[:13], *rest]) == everything
        assert consumer.positions == {(r.topic, r.partition): r.offset + 1 for r in rest}
        consumer.commit("all of it")
        assert list(consumer) == []
        store.append("orders", b"new", key=b"k")
    with open_store(root) as store, store.consumer("grp", "orders") as consumer:
        assert values(consumer) == [b"new"]


def test_a_commit_writes_only_what_has_moved(root: Path) -> None:
    with open_store(root) as store:
        fill(store)
        with store.consumer("grp", "orders") as consumer:
            consumer.commit()
            assert store.groups == ()
            first = next(consumer)
            consumer.commit()
            consumer.commit()
            place = (first.topic, first.partition)
            assert store.committed_offsets("grp") == {place: 1}
            log = store.log(TOPIC, 29)
            assert log.log_end_offset == 1


def test_consumers_of_several_topics_and_groups_do_not_mix(root: Path) -> None:
    with open_store(root) as store:
        fill(store, "orders", 10)
        fill(store, "returns", 6)
        with store.consumer("a", ["orders", "returns"]) as one, store.consumer("b", "returns") as two:
            assert len(list(one)) == 16
            assert len(list(two)) == 6
            one.commit()
        assert len(list(store.consumer("a", "returns"))) == 0
        assert len(list(store.consumer("b", "returns"))) == 6


def test_where_nothing_is_committed_the_reset_says_where_to_begin(root: Path) -> None:
    with open_store(root) as store:
        fill(store, count=9)
        latest = store.consumer("grp", "orders", auto_offset_reset="latest")
        store.append("orders", b"later", key=b"k")
        assert values(latest) == [b"later"]
        with pytest.raises(kstore.OffsetOutOfRangeError, match="no position"):
            store.consumer("grp", "orders", auto_offset_reset="none")
        with pytest.raises(ValueError, match="auto_offset_reset"):
            store.consumer("grp", "orders", auto_offset_reset="first")  # type: ignore[arg-type]
        with pytest.raises(kstore.UnknownTopicOrPartitionError):
            store.consumer("grp", "unknown")


def test_what_arrives_while_a_consumer_from_the_end_is_down_is_read_by_the_next(root: Path) -> None:
    with open_store(root) as store:
        fill(store, count=9)
        with store.consumer("grp", "orders", auto_offset_reset="latest") as first:
            assert list(first) == []
            assert first.positions == {
                ("orders", number): store.log("orders", number).log_end_offset for number in store.partitions("orders")
            }
            first.commit()
        store.append("orders", b"meanwhile", key=b"k")
        assert values(store.consumer("grp", "orders", auto_offset_reset="latest")) == [b"meanwhile"]


def test_a_consumer_that_reads_nothing_does_not_commit_positions_in_force_again(root: Path) -> None:
    with open_store(root) as store:
        fill(store, count=9)
        for reset in ("earliest", "latest"):
            with store.consumer("grp", "orders", auto_offset_reset=reset) as consumer:
                list(consumer)
                consumer.commit()
        with store.consumer("grp", "orders", auto_offset_reset="latest") as consumer:
            assert consumer.positions == {}
        with store.consumer("other", "orders") as consumer:  # `groups-begin-at-the-start`
            assert consumer.positions == {}  # it begins at the start again, so that nothing is passed over


@pytest.mark.parametrize(("committed", "found"), [(4, 6), (5, 5), (10, 0), (11, 5)])
def test_a_position_outside_of_the_log_is_none(root: Path, committed: int, found: int) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        for i in range(10):
            store.append("orders", b"%d" % i)
        log = store.log("orders", 0)
        store.commit_offsets("grp", {("orders", 0): committed})
        if committed != 4:
            log.delete_records(5)
        assert len(list(store.consumer("grp", "orders"))) == found
        if committed == 11:
            with pytest.raises(kstore.OffsetOutOfRangeError, match="offset 11"):
                store.consumer("grp", "orders", auto_offset_reset="none")


def test_a_consumer_goes_back_to_what_is_committed_or_where_it_is_told(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        for i in range(10):
            store.append("orders", b"%d" % i)
        consumer = store.consumer("grp", "orders")
        assert [next(consumer).offset for _ in range(4)] == [0, 1, 2, 3]
        consumer.commit()
        assert next(consumer).offset == 4
        consumer.seek_to_committed()
        assert next(consumer).offset == 4
        consumer.seek("orders", 0, 8)
        assert consumer.positions == {("orders", 0): 8}
        assert [record.offset for record in consumer] == [8, 9]
        with pytest.raises(kstore.OffsetOutOfRangeError):
            consumer.seek("orders", 0, 11)
        consumer.close()
        for act in (consumer.commit, lambda: next(consumer)):
            with pytest.raises(kstore.LogClosedError):
                act()


def test_a_consumer_that_follows_gets_what_comes_of_all_topics(root: Path) -> None:
    with open_store(root) as store:
        fill(store, "orders", 3)
        fill(store, "returns", 3)
        with store.consumer("grp", ["orders", "returns"], follow=True, timeout=60) as consumer:
            assert len([next(consumer) for _ in range(6)]) == 6
            store.append("returns", b"news", key=b"k")
            store.append("orders", b"news", key=b"k")
            assert {next(consumer).topic for _ in range(2)} == {"orders", "returns"}
            store.add_partitions("orders", 4)
            store.append("orders", b"more", partition=3)
            assert next(consumer).partition == 3
        with store.consumer("grp", "orders", follow=True, timeout=0) as consumer:
            assert len(list(consumer)) == 5


# A position belongs to the log that it was read from.


def numbers(store: kstore.Store, first: int, end: int) -> None:
    for number in range(first, end):
        store.append("orders", b"%d" % number, timestamp=number)


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("other", [False, True])
def test_a_consumer_whose_records_are_cut_raises_until_told_where_to_go_on(
    root: Path, merge: Any, follow: bool, other: bool
) -> None:
    """As `Store.read` does; the log has as many records as before, and others from 2 on (SEMANTICS 11.1)."""
    with open_store(root) as store:
        store.create_topic("orders")
        numbers(store, 0, 4)
        with (
            kstore.Store.open(root, "r") as reader,
            (reader if other else store).consumer(
                "grp", "orders", merge=merge, follow=follow, timeout=0, positions=store
            ) as consumer,
        ):
            assert [next(consumer).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            store.log("orders", 0).truncate_to(2)
            numbers(store, 12, 14)
            acts: list[Any] = [consumer.commit, lambda: consumer.positions, lambda: next(consumer)]
            for act in [*acts, acts[2]] if follow else acts[:2]:
                with pytest.raises(kstore.OffsetOutOfRangeError, match="offset 4"):
                    act()
            assert store.committed_offsets("grp") == {}
            consumer.seek("orders", 0, 2)
            assert [next(consumer).value for _ in range(2)] == [b"12", b"13"]
            consumer.commit()
            assert store.committed_offsets("grp") == {("orders", 0): 4}


def test_a_consumer_goes_on_where_only_records_that_it_has_not_read_are_cut(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        numbers(store, 0, 6)
        with store.consumer("grp", "orders", follow=True, timeout=0) as consumer:
            assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
            store.log("orders", 0).truncate_to(3)
            numbers(store, 13, 15)
            assert [record.value for record in consumer] == [b"13", b"14"]
            consumer.commit()
            assert store.committed_offsets("grp") == {("orders", 0): 5}


@pytest.mark.parametrize("other", [False, True])
def test_a_consumer_raises_when_its_topic_is_deleted_and_made_again(root: Path, other: bool) -> None:
    """As `Store.read` does; the new topic has more records than the old one had."""
    with open_store(root) as store:
        store.create_topic("orders")
        numbers(store, 0, 4)
        with (
            kstore.Store.open(root, "r") as reader,
            (reader if other else store).consumer("grp", "orders", follow=True, timeout=0, positions=store) as consumer,
        ):
            assert len([next(consumer) for _ in range(4)]) == 4
            store.delete_topic("orders")
            store.create_topic("orders")
            numbers(store, 10, 16)
            acts: list[Any] = [consumer.commit, lambda: consumer.positions, lambda: next(consumer)]
            for act in [*acts, acts[2], lambda: consumer.seek("orders", 0, 0)]:
                with pytest.raises(kstore.UnknownTopicOrPartitionError, match="orders has been deleted"):
                    act()
            assert store.committed_offsets("grp") == {}
            consumer.seek_to_committed()
            assert [record.value for record in consumer] == [b"%d" % number for number in range(10, 16)]


def test_a_position_that_is_committed_while_its_topic_is_made_again_counts_for_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        numbers(store, 0, 4)
        with store.consumer("grp", "orders") as consumer:
            assert len(list(consumer)) == 4
            commit = store._groups.commit

            def between(*arguments: Any, **options: Any) -> None:
                store.delete_topic("orders")
                store.create_topic("orders")
                commit(*arguments, **options)

            monkeypatch.setattr(store._groups, "commit", between)
            consumer.commit()
        assert store.committed_offsets("grp") == {}


def test_a_consumer_from_the_earliest_begins_anew_where_retention_was_faster(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("orders")
        numbers(store, 0, 4)
        earliest = store.consumer("a", "orders", follow=True, timeout=0)
        none = store.consumer("b", "orders", follow=True, timeout=0, auto_offset_reset="latest")
        none.seek("orders", 0, 0)
        assert [next(each).offset for each in (earliest, none)] == [0, 0]
        store.log("orders", 0).delete_records(3)
        assert [record.offset for record in earliest] == [3]
        for _ in range(2):
            with pytest.raises(kstore.OffsetOutOfRangeError):
                next(none)
        none.seek("orders", 0, 3)
        assert [record.offset for record in none] == [3]
