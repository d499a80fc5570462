"""A store's asynchronous calls: appends and syncs by topic, topics that are read and followed; cancelled anywhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import kstore
from kstore.disk import fs
from kstore.errors import LogClosedError, OffsetOutOfRangeError, UnexpectedOffsetError, UnknownTopicOrPartitionError
from tests.support.cancelling import at_every_await, outcome

T = TypeVar("T")

SECONDS = 60


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, seed=1) as store:
        store.create_topic("a", 3)
        store.create_topic("b", 1)
        yield store


async def listed(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def waiting(store: kstore.Store) -> int:
    """How many partitions have a task that waits for them."""
    logs = [store.log(topic, number) for topic in ("a", "b") for number in store.partitions(topic)]
    return sum(log._writer is not None and log._writer.appender.waiters > 0 for log in logs)


async def until_it_waits(store: kstore.Store) -> None:
    while not waiting(store):
        await asyncio.sleep(0.0005)


def test_an_append_gives_its_place_and_takes_what_a_plain_one_takes(store: kstore.Store) -> None:
    async def run() -> None:
        where = await store.aappend("a", b"value", b"key", timestamp=7, headers=[("h", b"x")])
        assert where == ("a", where.partition, 0, 7)
        [record] = await listed(store.aread("a"))
        assert (record.partition, record.value, record.key) == (where.partition, b"value", b"key")
        assert record.headers == (("h", b"x"),)
        assert (await store.aappend("b", b"0", partition=0, expected_offset=0)).offset == 0
        with pytest.raises(UnexpectedOffsetError):
            await store.aappend("b", b"1", partition=0, expected_offset=0)
        with pytest.raises(UnknownTopicOrPartitionError):
            await store.aappend("c", b"x")

    asyncio.run(run())


def test_tasks_that_wait_for_the_disk_share_the_syncs_of_each_partition(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def sync(fd: int) -> None:
        threads.append(threading.get_ident())

    async def run() -> None:
        for number in range(3):
            await store.aappend("a", b"x", partition=number, sync=True)
        monkeypatch.setattr(fs, "fdatasync", sync)
        await asyncio.gather(*(store.aappend("a", b"x", partition=n % 3, sync=True) for n in range(300)))

    asyncio.run(run())
    assert 3 <= len(threads) <= 6
    assert threading.get_ident() not in threads
    assert [store.log("a", number).stats()["recovery_point"] for number in range(3)] == [101] * 3


def test_a_flush_waits_for_every_topic(store: kstore.Store) -> None:
    async def run() -> None:
        store.append("a", b"x", partition=2)
        store.append("b", b"x", partition=0)
        await asyncio.gather(store.aflush(), store.aflush())

    asyncio.run(run())
    assert store.log("a", 2).stats()["recovery_point"] == 1
    assert store.log("b", 0).stats()["recovery_point"] == 1


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
@pytest.mark.parametrize("mode", ["a", "r"])
def test_it_gives_what_a_plain_read_gives(store: kstore.Store, root: Path, merge: str, mode: str) -> None:
    for number in range(300):
        store.append("a", bytes(5000), b"%d" % number, timestamp=1000 + number * 7 % 300)
    with kstore.Store.open(root, "r") as reader:
        subject = store if mode == "a" else reader
        assert asyncio.run(listed(subject.aread("a", merge=merge))) == list(store.read("a", merge=merge))  # type: ignore[arg-type]
        some = {"partitions": [0, 2], "offsets": {2: 5}}
        assert asyncio.run(listed(subject.aread("a", **some))) == list(store.read("a", **some))  # type: ignore[arg-type]


def test_several_topics_are_read_one_after_the_other(store: kstore.Store) -> None:
    store.append("b", b"0")
    store.append("a", b"1")
    assert [record.value for record in asyncio.run(listed(store.aread(["a", "b"])))] == [b"1", b"0"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_topic_that_is_named_twice_is_read_once(store: kstore.Store, follow: bool) -> None:
    store.append("b", b"1")
    stream = store.aread(["b", "a", "b"], follow=follow, timeout=0)
    assert [record.value for record in asyncio.run(listed(stream))] == [b"1"]
    assert store.consumer("billing", ["b", "a", "b"]).topics == ("b", "a")


@pytest.mark.parametrize("follow", [False, True])
def test_each_of_several_topics_starts_at_its_offsets(store: kstore.Store, follow: bool) -> None:
    for number in range(3):
        store.append("a", b"a%d" % number, partition=1)
        store.append("b", b"b%d" % number)

    def values(topics: str | list[str], offsets: dict[Any, int]) -> list[bytes | None]:
        stream = store.aread(topics, offsets=offsets, follow=follow, timeout=0)
        return [record.value for record in asyncio.run(listed(stream))]

    assert values(["a", "b"], {("a", 1): 2, ("b", 0): 1}) == [b"a2", b"b1", b"b2"]
    assert values(["a", "b"], {("b", 0): 3}) == [b"a0", b"a1", b"a2"]
    assert values("a", {("a", 1): 2}) == values(["a"], {1: 2}) == [b"a2"]
    store.commit_offsets("grp", {("a", 1): 1, ("b", 0): 2})
    assert values(["a", "b"], dict(store.committed_offsets("grp"))) == [b"a1", b"a2", b"b2"]


def test_offsets_of_several_topics_are_checked(store: kstore.Store) -> None:
    for offsets, message in [
        ({0: 1}, "has the key 0; with several topics"),
        ({("c", 0): 1}, "has topic 'c', which topics has not"),
        ({("a", 0, 0): 1}, "which is no"),
        ({("a", 7): 0}, "no partition 7"),
    ]:
        with pytest.raises((ValueError, UnknownTopicOrPartitionError), match=message):
            store.aread(["a", "b"], offsets=offsets)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="offsets must be a mapping"):
        store.aread(["a", "b"], offsets=[1])  # type: ignore[arg-type]
    with pytest.raises(OffsetOutOfRangeError):
        store.aread(["a", "b"], offsets={("a", 0): 1})


def test_arguments_are_refused_at_once(store: kstore.Store) -> None:
    with pytest.raises(ValueError, match="topics is empty"):
        store.aread([])
    with pytest.raises(ValueError, match="for a single topic, not for 2"):
        store.aread(["a", "b"], partitions=[0])
    with pytest.raises(ValueError, match="merge"):
        store.aread("a", merge="key")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError):
        store.aread(["a", "c"])


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_follower_gets_what_comes_to_any_of_its_topics(store: kstore.Store, root: Path, mode: str) -> None:
    async def run(subject: kstore.Store) -> list[bytes | None]:
        found = []
        store.append("a", b"0")
        async for record in subject.aread(["a", "b"], follow=True, timeout=0.4):
            found.append(record.value)
            if len(found) < 12:
                store.append("ab"[len(found) % 2], b"%d" % len(found))
        return found

    with kstore.Store.open(root, "r") as reader:
        assert asyncio.run(run(store if mode == "a" else reader)) == [b"%d" % number for number in range(12)]
    assert waiting(store) == 0


def test_a_follower_reads_new_partitions_from_their_start(store: kstore.Store) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(anext(store.aread("b", follow=True)))
        await until_it_waits(store)
        store.add_partitions("b", 2)
        store.append("b", b"new", partition=1)
        record = await asyncio.wait_for(task, SECONDS)
        assert (record.partition, record.value) == (1, b"new")

    asyncio.run(run())


def test_a_follower_of_a_deleted_topic_or_of_a_closed_store_is_told(store: kstore.Store) -> None:
    async def run() -> None:
        tasks = [asyncio.ensure_future(anext(store.aread(topic, follow=True))) for topic in ("a", "b")]
        while waiting(store) < 4:
            await asyncio.sleep(0.0005)
        store.delete_topic("a")
        with pytest.raises(UnknownTopicOrPartitionError, match=r"deleted|no topic"):
            await asyncio.wait_for(tasks[0], SECONDS)
        assert not tasks[1].done()
        store.close()
        with pytest.raises(LogClosedError):
            await asyncio.wait_for(tasks[1], SECONDS)

    asyncio.run(run())


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
def test_an_iteration_that_is_cancelled_at_any_await_loses_no_record(store: kstore.Store, merge: str) -> None:
    for number in range(200):
        store.append("a", bytes(5000), b"%d" % number, timestamp=1000 + number)
    expected = list(store.read("a", merge=merge))  # type: ignore[arg-type]

    async def scenario(number: int, later: bool) -> bool:
        records = store.aread("a", merge=merge)  # type: ignore[arg-type]
        found: list[kstore.ConsumerRecord] = []

        async def collect() -> None:
            async for record in records:
                found.append(record)

        cancelled = isinstance(await outcome(number, collect(), later=later), asyncio.CancelledError)
        await collect()
        assert found == expected
        return cancelled

    assert at_every_await(scenario) >= 4


def test_an_append_that_is_cancelled_at_any_await_leaves_the_store_sound(store: kstore.Store) -> None:
    log = store.log("b", 0)

    async def scenario(number: int, later: bool) -> bool:
        before = log.log_end_offset
        store._turns = None  # so that the call gives way first
        found = await outcome(number, store.aappend("b", b"x", partition=0, sync=True), later=later)
        cancelled = isinstance(found, asyncio.CancelledError)
        stored = log.log_end_offset - before
        assert stored <= 1
        if cancelled and not later:
            assert stored == (number > 1)
        assert (await store.aappend("b", b"x", partition=0, sync=True)).offset == before + stored
        assert log.stats()["recovery_point"] == log.log_end_offset
        return cancelled

    assert at_every_await(scenario) == 2


def test_columns_are_those_of_a_plain_read(store: kstore.Store) -> None:
    store.append_many("a", [(b"%d" % number, b"x") for number in range(1000)])

    async def run() -> list[tuple[int, list[int]]]:
        return [(number, chunk.offset.tolist()) async for number, chunk in store.aread_columns("a", max_records=100)]

    plain = [(number, chunk.offset.tolist()) for number, chunk in store.read_columns("a", max_records=100)]
    assert asyncio.run(run()) == plain
    assert len(plain) > 3


def test_a_store_that_only_reads_refuses_appends(store: kstore.Store, root: Path) -> None:
    async def run(reader: kstore.Store) -> None:
        for call in (reader.aappend("a", b"x"), reader.aflush()):
            with pytest.raises(LogClosedError, match="mode='r'"):
                await call  # type: ignore[misc]

    with kstore.Store.open(root, "r") as reader:
        asyncio.run(run(reader))
