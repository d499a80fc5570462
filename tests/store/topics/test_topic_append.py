"""Appending to a topic: where records go, what comes back, what a refusal leaves."""

from __future__ import annotations

import errno
import os
import pickle
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kstore
from kstore import AppendInfo, RecordMetadata, Store
from kstore.config.log_config import LogConfig
from kstore.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.log.batch_packer import batch_bytes_of
from kstore.log.hosted_log import HostedLog
from kstore.store.topics._partitioner import partition_of
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS


@pytest.fixture
def store(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Store]:
    """A store with a topic `events` of four partitions, housekeeping left to the test."""
    with Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 4)
        yield store


def contents(store: Store, topic: str = "events") -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition that has any."""
    found = {p: [(r.key, r.value) for r in store.log(topic, p).read()] for p in store.partitions(topic)}
    return {partition: records for partition, records in found.items() if records}


# ---- one record


def test_the_example_of_the_page_runs(root: Path) -> None:
    """By key over four partitions, and the answer says where the record is."""
    with kstore.Store.open(root, config={"log.retention.ms": "600000"}) as store:
        store.create_topic("orders", partitions=4, config={"segment.bytes": "16384"})
        where = store.append("orders", b"value", key=b"k")  # RecordMetadata(topic, partition, offset, timestamp)
        log = store.log("orders", where.partition)
        assert [(record.key, record.value) for record in log.read()] == [(b"k", b"value")]


def test_a_key_goes_where_kafka_sends_it_and_the_answer_says_where(store: Store, clock: ManualClock) -> None:
    """FORMAT 13."""
    where = store.append("events", b"v", b"foobar")
    assert where == RecordMetadata("events", partition_of(b"foobar", 4), 0, clock.now)
    assert store.append("events", b"w", b"foobar").offset == 1
    assert store.append("events", b"w", b"").partition == partition_of(b"", 4)
    again = pickle.loads(pickle.dumps(where))
    assert again == where == tuple(where)
    assert hash(again) == hash(where) == hash(tuple(where))


def test_records_without_a_key_stick_for_16_kib(store: Store) -> None:
    where = [store.append("events", b"x" * 954).partition for _ in range(160)]  # batches of 1,024 bytes
    assert [len(set(where[at : at + 16])) for at in range(0, 160, 16)] == [1] * 10
    assert len(set(where)) > 1


def test_a_seed_repeats_where_records_without_a_key_go(tmp_path: Path, no_syncs: None) -> None:
    def run(name: str, seed: int | None) -> list[int]:
        with Store.open(tmp_path / name, seed=seed, background=False) as store:
            store.create_topic("a", 8)
            store.create_topic("b", 8)
            return [store.append(topic, b"x" * 20_000).partition for _ in range(40) for topic in "ab"]

    first = run("one", 7)
    assert run("two", 7) == first
    assert run("three", 8) != first
    assert run("four", None) != run("five", None)
    assert first[::2] != first[1::2]


def test_a_record_that_needs_more_than_a_write_goes_where_its_key_or_the_draw_says(
    tmp_path: Path, no_syncs: None
) -> None:
    """A first append to a log, a sync and headers take other ways: each record is drawn for, and counted, once."""
    found = []
    for headers, sync in ((None, False), ([], False), (None, True)):
        with Store.open(tmp_path / f"{headers} {sync}", seed=5) as store:
            store.create_topic("events", 12)
            rows = [store.append("events", b"x" * 954, headers=headers, sync=sync) for _ in range(400)]
            found.append([(row.partition, row.offset) for row in rows])
    assert found[0] == found[1] == found[2]
    assert [len({partition for partition, _ in found[0][at : at + 16]}) for at in range(0, 400, 16)] == [1] * 25


def test_a_partition_that_is_named_takes_the_record_whatever_its_key(store: Store) -> None:
    for partition in range(4):
        assert store.append("events", b"v", b"k", partition=partition)[1:3] == (partition, 0)


@pytest.mark.parametrize(
    ("partition", "error"),
    [(4, LookupError), (-1, LookupError), (1 << 70, LookupError), (True, TypeError), ("0", TypeError)],
)
def test_a_partition_that_is_not_there_is_refused(store: Store, partition: Any, error: type[Exception]) -> None:
    for known in range(4):
        store.append("events", b"v", partition=known)
    with pytest.raises(error, match="partition"):
        store.append("events", b"v", partition=partition)
    with pytest.raises(error, match="partition"):
        store.append_many("events", [b"v"], partition=partition)


@pytest.mark.parametrize("topic", ["nothing", None, [], 7])
def test_a_topic_that_is_not_there_is_refused(store: Store, topic: Any) -> None:
    for append in (lambda: store.append(topic, b"v"), lambda: store.append_many(topic, [b"v"])):
        with pytest.raises(UnknownTopicOrPartitionError):
            append()


def test_timestamps_are_the_records_own_or_now(store: Store, clock: ManualClock) -> None:
    assert store.append("events", b"v", b"k").timestamp == clock.now
    assert store.append("events", b"v", b"k", timestamp=5).timestamp == 5
    assert store.append("events", b"v", b"k", timestamp=-1).timestamp == -1
    log = store.log("events", partition_of(b"k", 4))
    assert [record.timestamp for record in log.read()] == [clock.now, 5, -1]


def test_whole_numbers_of_other_types_are_answered_as_ints(store: Store) -> None:
    for _ in range(2):  # to a log that is opened for it, and to one that is open
        where = store.append("events", b"v", partition=np.int64(2), timestamp=np.int64(5))  # type: ignore[arg-type]
        assert where[1::2] == (2, 5)
        assert {type(number) for number in where[1:]} == {int}


def test_with_log_append_time_the_answer_has_the_time_of_the_append(store: Store, clock: ManualClock) -> None:
    store.update_topic_config("events", {"message.timestamp.type": "LogAppendTime"})
    where = store.append("events", b"v", b"k", timestamp=5)
    assert where.timestamp == clock.now == next(iter(store.log("events", where.partition).read())).timestamp


def test_headers_go_along(store: Store) -> None:
    where = store.append("events", b"v", b"k", headers=[("h", b"x"), ("n", None)])
    [record] = store.log("events", where.partition).read()
    assert record.headers == (("h", b"x"), ("n", None))


def test_sync_puts_the_record_on_the_disk(store: Store) -> None:
    where = store.append("events", b"v", b"k", sync=True)
    assert store.log("events", where.partition).stats()["recovery_point"] == 1
    infos = store.append_many("events", [(b"%d" % number, b"v") for number in range(40)], sync=True)
    assert len(infos) == 4
    for partition, info in infos.items():
        assert store.log("events", partition).stats()["recovery_point"] == info.last_offset + 1


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        ("text", {}, TypeError),
        (b"v", {"key": "text"}, TypeError),
        (b"v", {"timestamp": -2}, InvalidTimestampError),
        (b"v", {"timestamp": 1.5}, TypeError),
        (b"x" * 2_000_000, {}, RecordTooLargeError),
        (b"v", {"headers": [(b"h", b"v")]}, TypeError),
    ],
)
def test_a_refused_record_leaves_every_log_as_it_was(
    store: Store, value: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.append("events", value, **options)
    assert contents(store) == {}


def test_new_partitions_take_keys_as_in_kafka(store: Store) -> None:
    key = next(k for k in (b"%d" % n for n in range(100)) if partition_of(k, 4) != partition_of(k, 9))
    assert store.append("events", b"v", key).partition == partition_of(key, 4)
    store.add_partitions("events", 9)
    assert store.append("events", b"v", key).partition == partition_of(key, 9)
    assert list(store.append_many("events", [(key, b"v")])) == [partition_of(key, 9)]


def test_a_topic_that_was_deleted_and_made_again_takes_records(store: Store) -> None:
    store.append("events", b"old", b"k")
    store.delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError):
        store.append("events", b"v", b"k")
    store.create_topic("events", 2)
    assert store.append("events", b"new", b"k").offset == 0
    assert contents(store) == {partition_of(b"k", 2): [(b"k", b"new")]}


def test_a_store_that_is_closed_or_only_reads_takes_no_records(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("events", 1)
        store.append("events", b"v")
    with Store.open(root, "r") as reader:
        for closed in (store, reader):
            with pytest.raises(LogClosedError, match=r"closed|mode"):
                closed.append("events", b"v")
            with pytest.raises(LogClosedError, match=r"closed|mode"):
                closed.append_many("events", [b"v"])


def test_a_forked_child_takes_no_records(store: Store) -> None:
    store.append("events", b"v")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.append("events", b"v")
        except LogClosedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(map(len, contents(store).values())) == 1


# ---- directories out of service


def in_directory(store: Store, name: str) -> set[int]:
    return {p for p in store.partitions("events") if Path(store.log("events", p).path).parent.name == name}


def test_records_without_a_key_keep_off_a_log_that_failed_and_keys_meet_the_error(tmp_path: Path) -> None:
    store = Store.open([tmp_path / "a", tmp_path / "b"], background=False)
    store.create_topic("events", 6)
    sound, broken = in_directory(store, "a"), in_directory(store, "b")
    assert sound | broken == set(range(6))
    for partition in broken:
        HostedLog(store.log("events", partition)).fail(StorageError(5, "a failing disk", str(tmp_path / "b")))
    with pytest.raises(StorageError, match="a failing disk"):
        store.append("events", b"v", partition=min(broken))
    assert {store.append("events", b"x" * 20_000).partition for _ in range(100)} == sound
    assert set(store.append_many("events", [b"x" * 1000] * 5000, batch_bytes=10_000)) == sound
    key = next(k for k in (b"%d" % n for n in range(100)) if partition_of(k, 6) in broken)
    with pytest.raises(StorageError):
        store.append("events", b"v", key)
    with pytest.raises(StorageError):
        store.close()


def test_an_append_that_the_disk_refuses_raises_and_the_other_directory_goes_on(tmp_path: Path) -> None:
    """SEMANTICS 13.9: the directory goes offline; keyless records keep off it from then on."""
    paths = [tmp_path / "a", tmp_path / "b"]
    with FaultFS(tmp_path) as disk:
        store = Store.open(paths, background=False)
        store.create_topic("events", 6)
        store.append_many("events", [(b"%d" % number, b"v") for number in range(30)])
        before = contents(store)
        sound, broken = in_directory(store, "a"), in_directory(store, "b")
        disk.fail("pwrite", path=f"*/events-{min(broken)}/*.log", error=errno.EIO, times=-1)
        with pytest.raises(StorageError) as caught:
            store.append("events", b"v", partition=min(broken))
        assert caught.value.errno == errno.EIO
        assert contents(store) == before
        for partition in broken:
            with pytest.raises(StorageError):
                store.append_many("events", [b"v"], partition=partition)
        assert {store.append("events", b"x" * 20_000).partition for _ in range(60)} == sound
        with pytest.raises(StorageError):
            store.close()


def test_keys_go_by_all_partitions_though_a_directory_is_not_there(tmp_path: Path) -> None:
    """FORMAT 13: all partitions of the topic, available or not."""
    paths = [tmp_path / "a", tmp_path / "b"]
    with Store.open(paths, background=False) as store:
        store.create_topic("events", 6)
        gone = in_directory(store, "b")
    paths[1].rename(tmp_path / "away")
    paths[1].write_text("no directory")
    with Store.open(paths, background=False) as store:
        there = set(store.partitions("events"))
        assert there == set(range(6)) - gone
        for number in range(40):
            key = b"%d" % number
            if partition_of(key, 6) in there:
                assert store.append("events", b"v", key).partition == partition_of(key, 6)
            else:
                with pytest.raises(UnknownTopicOrPartitionError):
                    store.append("events", b"v", key)
        assert {store.append("events", b"x" * 20_000).partition for _ in range(60)} == there


# ---- many records


def test_many_records_go_where_single_ones_would(store: Store, clock: ManualClock) -> None:
    keys = [b"%d" % number for number in range(200)]
    infos = store.append_many("events", [(key, b"v" + key) for key in keys])
    expected = {p: [(k, b"v" + k) for k in keys if partition_of(k, 4) == p] for p in range(4)}
    assert contents(store) == expected
    assert infos == {p: AppendInfo(0, len(expected[p]) - 1, clock.now, -1) for p in range(4)}


def test_the_answer_tells_only_offsets_of_this_call_and_partitions_with_records(store: Store) -> None:
    store.append_many("events", [b"v"] * 3, partition=2)
    infos = store.append_many("events", [(None, b"v", 50, ()), (None, b"v", 70, ()), (None, b"v", 60, ())], partition=2)
    assert infos == {2: AppendInfo(3, 5, 70, -1)}
    assert store.append_many("events", []) == {}


def test_with_log_append_time_the_answer_tells_it(store: Store, clock: ManualClock) -> None:
    store.update_topic_config("events", {"message.timestamp.type": "LogAppendTime"})
    [info] = store.append_many("events", [(b"k", b"v", 5, ())]).values()
    assert info == AppendInfo(0, 0, clock.now, clock.now)


def test_every_form_of_a_record_is_taken_those_of_another_topic_included(store: Store) -> None:
    store.create_topic("copy", 1)
    items: list[Any] = [b"1", (b"k", b"2"), (b"k", b"3", 7, [("h", b"x")]), kstore.Record(9, 8, b"k", b"4")]
    items += [kstore.ConsumerRecord("events", 3, 9, 11, b"k", b"5")]
    store.append_many("copy", items)
    assert [(r.value, r.timestamp) for r in store.log("copy", 0).read()][1:] == [
        (b"2", store.log("copy", 0).max_timestamp().timestamp), (b"3", 7), (b"4", 8), (b"5", 11),
    ]  # fmt: skip


def test_keyless_records_stick_for_a_batch_and_a_seed_repeats_where(tmp_path: Path, no_syncs: None) -> None:
    def run(name: str, seed: int | None) -> dict[int, AppendInfo]:
        with Store.open(tmp_path / name, background=False) as store:
            store.create_topic("events", 20)
            infos = store.append_many("events", [b"x" * 1000] * 500, batch_bytes=50_000, seed=seed)
            counts = [b.count for p in infos for b in store.log("events", p).read_batches()]
            assert sum(counts) == 500
            assert 10 <= len(counts) <= 20  # some fifty in each, and one behind that moved the rest on
            return {p: AppendInfo(i.first_offset, i.last_offset) for p, i in infos.items()}

    first = run("one", 3)
    assert run("two", 3) == first
    assert run("three", 4) != first
    assert run("four", None) != run("five", None)


def test_compression_and_batch_size_are_those_of_the_call(store: Store) -> None:
    store.append_many("events", [b"x" * 100] * 1000, partition=1, compression="zstd", batch_bytes=4096)
    batches = list(store.log("events", 1).read_batches())
    assert {batch.compression for batch in batches} == {"zstd"}
    assert {batch.count for batch in batches[:-1]} == {37}


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"batch_bytes": 0}, ValueError, "batch_bytes"),
        ({"batch_bytes": "1"}, TypeError, "batch_bytes"),
        ({"compression": "rar"}, ValueError, "rar"),
        ({"seed": "1"}, TypeError, "seed"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    store: Store, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        store.append_many("events", [b"v"], **options)
    assert contents(store) == {}


@pytest.mark.parametrize("records", [b"bytes", "text", 7, None])
def test_what_is_no_iterable_of_records_is_refused(store: Store, records: Any) -> None:
    with pytest.raises(TypeError, match="records must be"):
        store.append_many("events", records)


def test_a_refusal_tells_what_every_partition_has_got(store: Store) -> None:
    keys = [next(k for k in (b"%d" % n for n in range(100)) if partition_of(k, 4) == p) for p in range(2)]
    items: list[Any] = [(keys[0], b"x" * 100)] * 25 + [(keys[1], b"y" * 100)] * 3 + [(keys[1], b"bad", -7, ())]
    with pytest.raises(InvalidTimestampError, match="record 28") as caught:
        store.append_many("events", items, batch_bytes=1000)
    assert caught.value.record_errors[0][0] == 28
    [info] = caught.value.appended.values()  # what was open, of either partition, is dropped
    assert caught.value.appended == {0: info}
    assert (info.first_offset, info.last_offset) == (0, len(contents(store)[0]) - 1)
    assert set(contents(store)) == {0}
    assert 0 < len(contents(store)[0]) < 25
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.appended == caught.value.appended


def test_a_refusal_of_the_first_record_tells_of_nothing(store: Store) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        store.append_many("events", [(b"k", b"v", -7, ())])
    assert caught.value.appended == {}


def test_a_record_larger_than_a_segment_is_refused_by_that_name(root: Path) -> None:
    with Store.open(root, segment_bytes=1000, background=False) as store:
        store.create_topic("events", 2)
        with pytest.raises(RecordBatchTooLargeError) as caught:
            store.append_many("events", [b"v", b"x" * 2000])
        [info] = caught.value.appended.values()
        assert (info.first_offset, info.last_offset) == (0, 0)  # the batch that the large one closed


def test_what_the_records_own_code_raises_passes_and_what_was_finished_stays(store: Store) -> None:
    def records() -> Iterator[bytes]:
        yield from [b"x" * 100] * 30
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        store.append_many("events", records(), batch_bytes=1000, partition=0)
    assert 20 < len(contents(store)[0]) <= 30


def test_a_topic_deleted_under_a_load_ends_it_with_a_clear_error(store: Store) -> None:
    def records() -> Iterator[bytes]:
        yield from [b"x" * 1000] * 10
        store.delete_topic("events")
        yield from [b"x" * 1000] * 10

    with pytest.raises(UnknownTopicOrPartitionError, match="events"):
        store.append_many("events", records())


def test_a_store_closed_under_a_load_ends_it_with_a_clear_error(store: Store) -> None:
    def records() -> Iterator[bytes]:
        yield b"v"
        store.close()

    with pytest.raises(LogClosedError, match="the store"):
        store.append_many("events", records())


@pytest.mark.parametrize(
    ("partitions", "batch_bytes"),
    [
        (1, 1 << 20),
        (8, 1 << 20),
        (9, (8 << 20) // 9),
        (16, 1 << 19),
        (127, (8 << 20) // 127),
        (128, 1 << 16),
        (129, 1 << 16),
    ],
)
def test_batches_of_all_partitions_together_take_8_mebibytes(partitions: int, batch_bytes: int) -> None:
    assert batch_bytes_of(LogConfig(), None, partitions) == batch_bytes


def test_records_may_append_to_the_topic_they_are_appended_to(store: Store) -> None:
    def records() -> Iterator[bytes]:
        for number in range(20):
            store.append("events", b"inner")
            store.append_many("events", [b"inner"])
            yield b"outer %d" % number

    store.append_many("events", records())
    assert sum(map(len, contents(store).values())) == 60


def test_memory_stays_bounded_however_many_partitions_are_filled(root: Path, no_syncs: None) -> None:
    """Forty partitions with batches of 1 MiB would hold 40 MiB open; `OPEN_BYTES` is made 4 MiB here."""
    with Store.open(root, background=False) as store, pytest.MonkeyPatch.context() as patched:
        patched.setattr("kstore.store.topics.topic_append.OPEN_BYTES", 4 << 20)
        store.create_topic("events", 40)
        value = b"x" * 10_000
        store.append_many("events", [(b"%d" % number, b"v") for number in range(1000)])  # every log is open
        tracemalloc.start()
        try:
            store.append_many("events", ((b"%d" % n, value) for n in range(4000)), batch_bytes=1 << 20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3 * (4 << 20)
        assert sum(map(len, contents(store).values())) == 5000


def test_threads_that_append_at_once_lose_nothing_and_answers_are_true(store: Store) -> None:
    answers: list[RecordMetadata] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at in range(200):
                value = b"%d-%d" % (number, at)
                answers.append(store.append("events", value, value if at % 2 else None))
                if at % 50 == 0:
                    store.append_many("events", [(b"many", value)] * 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({where[1:3] for where in answers}) == 800
    assert sum(map(len, contents(store).values())) == 800 + 4 * 4 * 3


def test_a_load_of_random_records_is_there_in_order(store: Store, rng: random.Random) -> None:
    items = [(rng.randbytes(rng.randrange(4)) or None, rng.randbytes(rng.randrange(400))) for _ in range(3000)]
    infos = store.append_many("events", items, batch_bytes=3000, compression="lz4")
    found = contents(store)
    for partition in range(4):
        mine = [item for item in items if item[0] is not None and partition_of(item[0], 4) == partition]
        assert [record for record in found[partition] if record[0] is not None] == mine
        assert infos[partition].last_offset == len(found[partition]) - 1
    assert sum(map(len, found.values())) == 3000
