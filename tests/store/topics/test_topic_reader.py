"""Reading a topic: partition after partition or merged by time, while it grows, shrinks and goes away."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import ConsumerRecord, Store
from kstore.disk import watches
from kstore.errors import (
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.store.topics import topic_follow as topicreads
from kstore.store.topics._partitioner import partition_of
from tests.conftest import ManualClock

SECONDS = 20.0  # what a test waits for something that is bound to come


@pytest.fixture
def store(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Store]:
    """A store with a topic `events` of three partitions, housekeeping left to the test."""
    with Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 3)
        yield store


def put(store: Store, partition: int, *timestamps: int, topic: str = "events") -> None:
    for timestamp in timestamps:
        store.append(topic, b"%d" % timestamp, partition=partition, timestamp=timestamp)


def where(records: Any) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def times(records: Any) -> list[int]:
    return [record.timestamp for record in records]


def take(records: Iterator[ConsumerRecord], count: int) -> list[ConsumerRecord]:
    return [next(records) for _ in range(count)]


# ---- what is there


def test_a_topic_is_read_partition_after_partition(store: Store) -> None:
    store.append("events", b"v", b"k", partition=2, timestamp=7, headers=[("h", b"x")])
    put(store, 0, 5, 6)
    assert list(store.read("events"))[2] == ConsumerRecord("events", 2, 0, 7, b"k", b"v", (("h", b"x"),))
    assert where(store.read("events")) == [(0, 0), (0, 1), (2, 0)]


def test_merged_by_timestamp_it_is_in_order_of_time_and_then_of_partition(store: Store) -> None:
    put(store, 2, 1, 5, 9)
    put(store, 0, 5, 6)
    put(store, 1, 0, 5)
    assert where(store.read("events", merge="timestamp")) == [(1, 0), (2, 0), (0, 0), (1, 1), (2, 1), (0, 1), (2, 2)]


def test_merged_no_partition_leaves_its_own_order(store: Store) -> None:
    put(store, 0, 10, 1, 2)
    put(store, 1, 5, 11)
    assert times(store.read("events", merge="timestamp")) == [5, 10, 1, 2, 11]


def test_merged_and_not_it_is_every_record_once(store: Store, rng: random.Random) -> None:
    items = [(rng.randbytes(3), b"v", rng.randrange(1000), ()) for _ in range(2000)]
    store.append_many("events", sorted(items, key=lambda item: item[2]), batch_bytes=500, compression="zstd")
    plain = list(store.read("events"))
    merged = list(store.read("events", merge="timestamp"))
    assert sorted(map(tuple, plain)) == sorted(map(tuple, merged))
    assert len(plain) == 2000
    assert [(r.timestamp, r.partition, r.offset) for r in merged] == sorted(
        (r.timestamp, r.partition, r.offset) for r in plain
    )
    assert sorted((r.key, r.value, r.timestamp, r.headers) for r in plain) == sorted(items)


def test_some_partitions_are_read_alone_each_once_and_in_order(store: Store) -> None:
    for partition in range(3):
        put(store, partition, 1)
    assert where(store.read("events", partitions=[2, 0, 2])) == [(0, 0), (2, 0)]
    assert where(store.read("events", partitions=iter([1]), merge="timestamp")) == [(1, 0)]
    assert where(store.read("events", partitions=[])) == []


def test_each_partition_starts_at_its_own_offset(store: Store) -> None:
    for partition in range(3):
        put(store, partition, 1, 2, 3)
    for merge in ("partition", "timestamp"):
        found = where(store.read("events", offsets={0: 1, 2: 3}, merge=merge))
        assert sorted(found) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_start_timestamp_holds_for_each_partition(store: Store) -> None:
    put(store, 0, 1, 5, 3, 9)
    put(store, 1, 4, 6)
    put(store, 2, 1, 2)
    assert where(store.read("events", start_timestamp=5)) == [(0, 1), (0, 2), (0, 3), (1, 1)]


def test_a_partition_ends_where_it_ends_when_its_turn_comes_and_merged_at_the_call(store: Store) -> None:
    put(store, 0, 1)
    put(store, 1, 1)
    plain, merged = store.read("events"), store.read("events", merge="timestamp")
    next(plain)
    put(store, 0, 2)
    put(store, 1, 2)
    assert where(plain) == [(1, 0), (1, 1)]
    assert where(merged) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"merge": "time"}, ValueError, "merge"),
        ({"on_lag": "end"}, ValueError, "on_lag"),
        ({"isolation": "dirty", "offsets": {0: 0}}, ValueError, "isolation"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"start_timestamp": 1.5}, TypeError, "start_timestamp"),
        ({"start_timestamp": 1, "offsets": {0: 0}}, ValueError, "not both"),
        ({"partitions": 1}, TypeError, "partitions"),
        ({"partitions": "12"}, TypeError, "partitions"),
        ({"partitions": [True]}, TypeError, "partition"),
        ({"partitions": [3]}, UnknownTopicOrPartitionError, "no partition 3"),
        ({"offsets": {3: 0}}, UnknownTopicOrPartitionError, "no partition 3"),
        ({"offsets": {0: 0}, "partitions": [1]}, ValueError, "offsets has partition 0"),
        ({"offsets": {0: "1"}}, TypeError, "offset"),
        ({"offsets": {0: 3}}, OffsetOutOfRangeError, "offset 3"),
        ({"offsets": {0: -1}}, OffsetOutOfRangeError, "offset -1"),
        ({"offsets": {0: 3}, "on_lag": "start"}, OffsetOutOfRangeError, "offset 3"),
        ({"offsets": {0: 3}, "follow": True}, OffsetOutOfRangeError, "offset 3"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    store: Store, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    put(store, 0, 1, 2)
    with pytest.raises(error, match=named):
        store.read("events", **options)


@pytest.mark.parametrize("topic", ["nothing", None, []])
def test_a_topic_that_is_not_there_is_refused_at_once(store: Store, topic: Any) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        store.read(topic)


def test_a_partition_that_cannot_be_read_is_met_when_its_turn_comes(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("events", 2)
        put(store, 0, 1)
        put(store, 1, 1)
    log = root / "events-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    with Store.open(root, "r") as store:
        records = store.read("events")
        assert where(take(records, 1)) == [(0, 0)]
        with pytest.raises(kstore.CorruptRecordError):
            next(records)
        assert list(records) == []
        assert where(store.read("events", partitions=[0])) == [(0, 0)]


def test_an_iterator_keeps_what_it_reads_from_alive(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("events", 2)
        put(store, 0, 1)
        put(store, 1, 1)
    records = Store.open(root, "r").read("events")
    gc.collect()
    assert where(records) == [(0, 0), (1, 0)]


def test_a_store_that_is_closed_reads_nothing_more(store: Store) -> None:
    put(store, 0, 1, 2)
    put(store, 1, 1, 2)
    records = store.read("events")
    next(records)
    store.close()
    with pytest.raises(LogClosedError, match="the store"):
        next(records)
    with pytest.raises(LogClosedError, match="the store"):
        store.read("events")


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
def test_a_topic_deleted_under_its_reader_ends_it_with_a_clear_error(store: Store, merge: Any) -> None:
    put(store, 0, 1, 2, 3)
    put(store, 1, 1, 2, 3)
    records = store.read("events", merge=merge)
    next(records)
    store.delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="events"):
        list(records)


def test_a_topic_made_anew_is_another_one_for_its_reader(store: Store) -> None:
    put(store, 0, 1)
    records = store.read("events", follow=True)
    next(records)
    store.delete_topic("events")
    store.create_topic("events", 3)
    put(store, 0, 1, 2)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
        next(records)


# ---- behind retention


@pytest.fixture(params=["a", "r"])
def beside(request: pytest.FixtureRequest, store: Store, root: Path) -> Iterator[Store]:
    """The store itself, or one that only reads beside it."""
    if request.param == "a":
        yield store
    else:
        with Store.open(root, "r") as reader:
            yield reader


def look(store: Store) -> None:
    """Ask for a mark: a store that only reads sees the log start at calls and polls, not between two records."""
    assert store.log("events", 0).log_start_offset >= 0


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_reader_that_falls_behind_is_told_the_new_start(
    store: Store, beside: Store, merge: Any, follow: bool
) -> None:
    put(store, 0, *range(10))
    records = beside.read("events", merge=merge, follow=follow)
    assert where(take(records, 2)) == [(0, 0), (0, 1)]
    store.log("events", 0).delete_records(6)
    look(beside)
    with pytest.raises(OffsetOutOfRangeError, match="starts at 6") as caught:
        list(records)
    assert caught.value.log_start_offset == 6


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_reader_that_falls_behind_goes_on_from_the_new_start_when_told_to(
    store: Store, beside: Store, merge: Any, follow: bool
) -> None:
    put(store, 0, *range(10))
    records = beside.read("events", merge=merge, follow=follow, timeout=0, on_lag="start")
    assert where(take(records, 2)) == [(0, 0), (0, 1)]
    store.log("events", 0).delete_records(6)
    look(beside)
    assert where(records) == [(0, offset) for offset in range(6, 10)]


def test_the_new_start_may_be_inside_of_a_batch(store: Store, beside: Store) -> None:
    store.append_many("events", [b"%d" % number for number in range(10)], partition=0)
    log, read = store.log("events", 0), beside.log("events", 0).read
    first, second = read(on_lag="start"), read()
    assert [next(first).offset, next(first).offset] == [next(second).offset, next(second).offset] == [0, 1]
    log.delete_records(6)
    look(beside)
    assert [record.offset for record in first] == [6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRangeError):
        next(second)


def test_an_offset_below_the_start_is_the_start_when_told_so(store: Store, beside: Store) -> None:
    put(store, 0, *range(10))
    store.log("events", 0).delete_records(6)
    assert where(beside.read("events", offsets={0: 2}, on_lag="start")) == [(0, offset) for offset in range(6, 10)]
    log = beside.log("events", 0)
    assert [record.offset for record in log.read(2, on_lag="start")] == [6, 7, 8, 9]
    assert [batch.base_offset for batch in log.read_batches(2, on_lag="start")] == [6, 7, 8, 9]
    for read in (log.read, log.read_batches):
        with pytest.raises(OffsetOutOfRangeError):
            read(2)
        with pytest.raises(ValueError, match="on_lag"):
            read(2, on_lag="latest")


def test_a_reader_of_segments_that_retention_deleted_goes_on_when_told_to(
    root: Path, clock: ManualClock, no_syncs: None
) -> None:
    with Store.open(root, clock=clock, background=False, retention_ms=1000, segment_bytes=1000) as store:
        store.create_topic("events", 1)
        now = clock.now
        put(store, 0, *(now - 5000 + number for number in range(50)))
        with Store.open(root, "r") as beside:
            readers = [each.read("events", follow=True, timeout=0, on_lag="start") for each in (store, beside)]
            strict = [each.read("events") for each in (store, beside)]
            for records in (*readers, *strict):
                next(records)
            store.log("events", 0).apply_retention()
            clock.advance(120_000)
            store.run_housekeeping()
            put(store, 0, clock.now)
            start = store.log("events", 0).log_start_offset
            assert start == 50
            look(beside)
            assert [where(records) for records in readers] == [[(0, 50)], [(0, 50)]]
            for records in strict:
                with pytest.raises(OffsetOutOfRangeError):
                    list(records)
            assert where(beside.read("events")) == [(0, 50)]


def test_a_reader_that_has_read_all_that_retention_deletes_is_not_behind(
    root: Path, clock: ManualClock, no_syncs: None
) -> None:
    with Store.open(root, clock=clock, background=False, retention_ms=1000, segment_bytes=1000) as store:
        store.create_topic("events", 1)
        put(store, 0, *(clock.now - 5000 + number for number in range(50)))
        with Store.open(root, "r") as beside:
            readers: list[Iterator[Any]] = [each.read("events", follow=True) for each in (store, beside)]
            readers += [each.log("events", 0).read(follow=True) for each in (store, beside)]
            for records in readers:
                assert len(take(records, 50)) == 50
            store.log("events", 0).apply_retention()
            put(store, 0, clock.now)
            assert store.log("events", 0).log_start_offset == 50
            assert [next(records).offset for records in readers] == [50] * 4


def test_truncation_below_a_reader_is_an_error_whatever_it_was_told(store: Store, beside: Store) -> None:
    put(store, 0, *range(10))
    records = beside.read("events", follow=True, on_lag="start")
    assert len(take(records, 8)) == 8
    store.log("events", 0).truncate_to(5)
    look(beside)
    with pytest.raises(OffsetOutOfRangeError):
        next(records)


def test_truncation_above_a_reader_is_silent(store: Store, beside: Store) -> None:
    put(store, 0, *range(10))
    records = beside.read("events", follow=True, timeout=0)
    assert len(take(records, 4)) == 4
    store.log("events", 0).truncate_to(6)
    put(store, 0, 100)
    look(beside)
    assert times(records) == [4, 5, 100]


# ---- following


def test_a_follower_gives_what_is_there_and_then_what_comes(store: Store, beside: Store) -> None:
    put(store, 0, 5)
    put(store, 1, 1)
    records = beside.read("events", follow=True)
    assert where(take(records, 2)) == [(0, 0), (1, 0)]
    put(store, 2, 7)
    assert where(take(records, 1)) == [(2, 0)]
    put(store, 0, 8, 9)
    assert where(take(records, 2)) == [(0, 1), (0, 2)]


def test_a_follower_merges_what_each_look_finds(store: Store, beside: Store) -> None:
    put(store, 0, 5, 9)
    put(store, 1, 1, 6)
    records = beside.read("events", follow=True, merge="timestamp")
    assert times(take(records, 4)) == [1, 5, 6, 9]
    put(store, 2, 8)
    put(store, 0, 2)
    assert times(take(records, 2)) == [2, 8]


def test_what_comes_while_a_look_is_read_is_given_after_it(store: Store, beside: Store) -> None:
    put(store, 0, 5, 9)
    put(store, 1, 6)
    records = beside.read("events", follow=True, merge="timestamp")
    assert times(take(records, 1)) == [5]
    put(store, 1, 7)
    assert times(take(records, 3)) == [6, 9, 7]


def test_a_follower_ends_when_nothing_comes_in_time(store: Store, beside: Store) -> None:
    put(store, 0, 5)
    assert times(beside.read("events", follow=True, timeout=0)) == [5]
    assert times(beside.read("events", follow=True, timeout=0.05, merge="timestamp")) == [5]
    assert times(beside.read("events", follow=True, timeout=0, partitions=[])) == []


def test_a_follower_starts_where_it_is_told_to(store: Store, beside: Store) -> None:
    put(store, 0, 1, 2, 3)
    put(store, 1, 5)
    assert times(beside.read("events", follow=True, timeout=0, offsets={0: 2, 1: 1})) == [3]
    for merge in ("partition", "timestamp"):
        records = beside.read("events", follow=True, start_timestamp=4, merge=merge)
        assert times(take(records, 1)) == [5]
        put(store, 0, 1)  # late, and after the start all the same
        assert times(take(records, 1)) == [1]
        store.log("events", 0).truncate_to(3)


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
def test_nothing_is_lost_between_a_call_and_the_first_look(store: Store, beside: Store, merge: Any) -> None:
    put(store, 0, 1)
    records = beside.read("events", follow=True, merge=merge, offsets={0: 0, 1: 0})
    put(store, 0, 2)
    put(store, 1, 3)
    put(store, 2, 4)
    assert times(take(records, 4)) == [1, 2, 3, 4]


def test_a_follower_takes_new_partitions_from_their_start_unless_told_which(store: Store, beside: Store) -> None:
    put(store, 0, 5)
    records = beside.read("events", follow=True, start_timestamp=5)
    some = beside.read("events", follow=True, partitions=[0], timeout=0)
    assert times(take(records, 1)) == [5]
    store.add_partitions("events", 5)
    put(store, 4, 1)
    assert where(take(records, 1)) == [(4, 0)]
    put(store, 3, 2)
    assert where(take(records, 1)) == [(3, 0)]
    assert times(some) == [5]


@pytest.mark.parametrize("deletion", [lambda store: store.delete_topic("events"), lambda store: store.close()])
def test_a_follower_that_waits_is_woken_by_the_end_of_its_topic_or_store(
    store: Store, deletion: Callable[[Store], None]
) -> None:
    put(store, 0, 5)
    caught: list[BaseException] = []

    def follow() -> None:
        try:
            list(store.read("events", follow=True))
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for(lambda: waits(store))
    deletion(store)
    thread.join(SECONDS)
    assert [type(error) for error in caught] in ([UnknownTopicOrPartitionError], [LogClosedError])
    assert "events" in str(caught[0]) or "the store" in str(caught[0])


def waits(store: Store) -> bool:
    """Whether a follower has hung itself on every log of the topic."""
    return all(
        log._writer is not None and log._writer.appender.waiters == 1
        for log in (store.log("events", partition) for partition in store.partitions("events"))
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_waiting_follower_is_woken_by_an_append_to_any_partition_each_time(store: Store) -> None:
    found: list[tuple[int, int]] = []

    def follow() -> None:
        for record in store.read("events", follow=True):
            found.append((record.partition, record.offset))
            if len(found) == 4:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for number, partition in enumerate((2, 0, 1, 2)):
        wait_for(lambda: waits(store))
        put(store, partition, 1)
        wait_for(lambda wanted=number + 1: len(found) == wanted)  # type: ignore[misc]
    thread.join(SECONDS)
    assert found == [(2, 0), (0, 0), (1, 0), (2, 1)]
    assert all(store.log("events", p)._writer.appender.waiters == 0 for p in range(3))  # type: ignore[union-attr]


def test_a_follower_that_waits_looks_a_few_times_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    original = topicreads.FollowedPartition.has_news

    def counted(part: topicreads.FollowedPartition) -> bool:
        nonlocal looks
        looks += 1
        return original(part)

    monkeypatch.setattr(topicreads.FollowedPartition, "has_news", counted)
    assert list(store.read("events", follow=True, timeout=0.25)) == []
    assert looks <= 3 * 7  # of three partitions: once, before the wait, and every tenth of a second


def test_pauses_between_looks_from_outside_grow_and_follow_what_a_look_costs(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    def costly(part: topicreads.FollowedPartition) -> bool:
        nonlocal now
        now += 0.004 / 3 if len(pauses) > 20 else 0
        return original(part)

    original = topicreads.FollowedPartition.has_news
    with Store.open(root, "r") as reader:
        monkeypatch.setattr(topicreads.FollowedPartition, "has_news", costly)
        monkeypatch.setattr(watches, "_take", lambda directories: None)
        monkeypatch.setattr(watches, "time", type("Clock", (), {"sleep": sleep, "monotonic": lambda: now}))
        records = reader.read("events", follow=True, timeout=1.0)
        assert list(records) == []
    assert pauses[:3] == [watches.FIRST_PAUSE * watches.GROWTH**number for number in range(3)]
    assert max(pauses[:20]) == pauses[19] == watches.LONGEST_PAUSE
    assert all(pause == pytest.approx(0.036) for pause in pauses[22:-1])


def test_a_directory_in_constant_change_does_not_keep_a_follower_from_pausing(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    pauses = looks = 0

    def sleep(seconds: float) -> None:
        nonlocal now, pauses
        pauses += 1
        now += seconds
        (root / "checkpoint").write_bytes(b"")
        (root / "checkpoint").unlink()

    def counted(part: topicreads.FollowedPartition) -> bool:
        nonlocal looks
        looks += 1
        return original(part)

    original = topicreads.FollowedPartition.has_news
    with Store.open(root, "r") as reader:
        monkeypatch.setattr(topicreads.FollowedPartition, "has_news", counted)
        monkeypatch.setattr(watches, "_take", lambda directories: None)
        monkeypatch.setattr(watches, "time", type("Clock", (), {"sleep": sleep, "monotonic": lambda: now}))
        assert list(reader.read("events", follow=True, timeout=0.5)) == []
    assert looks <= 3 * (pauses + 3)


def test_a_quiet_log_is_not_looked_at_whole_and_a_changed_one_is(store: Store, root: Path) -> None:
    put(store, 0, 1)
    with Store.open(root, "r") as reader:
        view = reader.log("events", 0)._view
        assert isinstance(view, ReadOnlyView)
        records = reader.read("events", follow=True, partitions=[0])
        assert times(take(records, 1)) == [1]

        def is_quiet() -> bool:
            view.refresh()
            return view.catch_up()

        wait_for(is_quiet)
        looks = 0
        original = ReadOnlyView.refresh

        def counted(view: ReadOnlyView) -> None:
            nonlocal looks
            looks += 1
            original(view)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ReadOnlyView, "refresh", counted)
            some = reader.read("events", follow=True, partitions=[0], timeout=0.2, offsets={0: 1})
            looks = 0
            assert times(some) == []
        assert looks <= 5  # to begin with
        put(store, 0, 2)
        assert times(take(records, 1)) == [2]


def test_a_durable_follower_waits_for_the_flush(store: Store, beside: Store, clock: ManualClock) -> None:
    put(store, 0, 1)
    put(store, 1, 2)

    def flush(partition: int) -> None:
        store.log("events", partition).flush()
        clock.advance(120_000)
        store.run_housekeeping()  # which writes down for others what was flushed (SEMANTICS 12.7)

    assert times(beside.read("events", durable=True)) == []
    records = beside.read("events", durable=True, follow=True)
    flush(1)
    assert times(take(records, 1)) == [2]
    flush(0)
    assert times(take(records, 1)) == [1]
    assert times(beside.read("events", durable=True, merge="timestamp")) == [1, 2]


# ---- another process


def write_when_told(root: str, orders: Connection) -> None:
    """The writing process: does what it is told, and says that it has."""
    with Store.open(root) as store:
        store.create_topic("events", 2)
        orders.send("open")
        while (order := orders.recv()) is not None:
            name, *arguments = order
            if name == "append":
                store.append("events", arguments[1], partition=arguments[0])
            elif name == "roll":
                store.log("events", arguments[0]).roll()
            else:
                getattr(store, name)(*arguments)
            orders.send("done")


def test_a_follower_in_another_process_sees_records_segments_partitions_and_the_end(root: Path) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    writer = multiprocessing.get_context("spawn").Process(target=write_when_told, args=(str(root), theirs), daemon=True)
    writer.start()

    def tell(*order: Any) -> None:
        ours.send(order)
        assert ours.poll(SECONDS)
        ours.recv()

    assert ours.poll(SECONDS)
    ours.recv()
    try:
        with Store.open(root, "r") as store:
            records = store.read("events", follow=True, timeout=SECONDS)
            tell("append", 0, b"first")
            assert next(records).value == b"first"
            tell("append", 1, b"second")
            assert where(take(records, 1)) == [(1, 0)]
            tell("roll", 0)
            tell("append", 0, b"third")
            assert next(records).value == b"third"
            tell("add_partitions", "events", 3)
            tell("append", 2, b"fourth")
            assert where(take(records, 1)) == [(2, 0)]
            tell("delete_topic", "events")
            with pytest.raises(UnknownTopicOrPartitionError):
                next(records)
    finally:
        ours.send(None)
        writer.join(SECONDS)
    assert writer.exitcode == 0


# ---- all at once


def test_appends_rolls_and_readers_at_once_lose_nothing(root: Path, clock: ManualClock, no_syncs: None) -> None:
    with Store.open(root, background=False, segment_bytes=2000) as store, Store.open(root, "r") as reader:
        store.create_topic("events", 3)
        found: dict[str, list[bytes]] = {"here": [], "there": [], "merged": []}
        failures: list[BaseException] = []

        def follow(name: str, source: Store, merge: Any) -> None:
            try:
                for record in source.read("events", follow=True, merge=merge, timeout=SECONDS):
                    if record.value == b"end":
                        return
                    found[name].append(record.value)
            except BaseException as error:
                failures.append(error)

        arguments = [("here", store, "partition"), ("there", reader, "partition"), ("merged", reader, "timestamp")]
        threads = [threading.Thread(target=follow, args=each, daemon=True) for each in arguments]
        for thread in threads:
            thread.start()
        expected = [b"%d" % number for number in range(600)]
        for value in expected:
            store.append("events", value, value)
        wait_for(lambda: bool(failures) or all(len(each) == 600 for each in found.values()))
        store.append("events", b"end")
        for thread in threads:
            thread.join(SECONDS)
        assert failures == []
        for values in found.values():
            assert sorted(values) == sorted(expected)
            for partition in range(3):
                mine = [value for value in expected if partition_of(value, 3) == partition]
                assert [value for value in values if partition_of(value, 3) == partition] == mine


def test_what_a_reader_meets_beside_a_missing_directory_is_the_systems_error(root: Path) -> None:
    with pytest.raises(StorageError):
        Store.open(root / "nothing", "r")


# ---- columns of a topic


@pytest.fixture
def filled(store: Store) -> Store:
    for partition, count in enumerate((5, 4, 3)):
        put(store, partition, *range(1000, 1000 + count))
    return store


def test_columns_of_a_topic_are_its_records_partition_by_partition(filled: Store) -> None:
    store = filled
    rows = [
        (number, *row)
        for number, chunk in store.read_columns("events", columns=("offset", "value"), max_records=3)
        for row in zip(chunk.offsets.tolist(), chunk["value"].to_pylist(), strict=True)
    ]
    assert rows == [(each.partition, each.offset, each.value) for each in store.read("events")]
    assert rows


def test_columns_of_some_partitions_start_where_they_are_told_to(filled: Store) -> None:
    store = filled
    end = store.log("events", 2).log_end_offset
    found = [
        (number, chunk.offsets.tolist())
        for number, chunk in store.read_columns("events", partitions=[2, 1], offsets={2: end - 1})
    ]
    assert found == [(1, list(range(store.log("events", 1).log_end_offset))), (2, [end - 1])]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"partitions": "1"}, TypeError),
        ({"partitions": [9]}, UnknownTopicOrPartitionError),
        ({"offsets": {0: 1}, "start_timestamp": 1}, ValueError),
        ({"partitions": [0], "offsets": {1: 0}}, ValueError),
        ({"offsets": {1: 10_000}}, OffsetOutOfRangeError),
        ({"columns": ["nothing"]}, ValueError),
        ({"isolation": "all"}, ValueError),
        ({"layout": "wide"}, ValueError),
    ],
)
def test_what_is_wrong_with_columns_of_a_topic_is_said_at_once(filled: Store, how: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        filled.read_columns("events", **how)


def test_columns_of_a_topic_that_was_deleted_say_so(filled: Store) -> None:
    store = filled
    chunks = store.read_columns("events", max_records=1)
    next(chunks)
    store.delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError):
        list(chunks)
