"""A consumer's asynchronous calls: what they return, what wakes them, and that no cancellation loses a record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.disk import fs
from kstore.errors import LogClosedError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.store.coordinator import awaited_records
from tests.conftest import examples
from tests.support.cancelling import at_every_await, cancelled_at, outcome

SECONDS = 60


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 2)
        store.create_topic("refunds")
        yield store


def write(store: kstore.Store, first: int, end: int, topic: str = "orders", size: int = 0) -> None:
    count = len(store.partitions(topic))
    for number in range(first, end):
        store.append(topic, b"%d" % number, bytes(size), partition=number % count, timestamp=1000 + number)


def numbers(records: list[kstore.ConsumerRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


async def iterated(consumer: kstore.Consumer) -> list[int]:
    return numbers([record async for record in consumer])


async def until_it_waits(store: kstore.Store, topic: str = "orders") -> None:
    writer = store.log(topic, 0)._writer
    assert writer is not None
    while not writer.appender.waiters:
        await asyncio.sleep(0.0005)


def test_polls_and_iterations_of_both_kinds_share_the_position(store: kstore.Store) -> None:
    write(store, 0, 20)
    seen: list[int] = []

    async def tasks(consumer: kstore.Consumer) -> None:
        seen.extend(numbers([await anext(consumer)]))
        seen.extend(numbers(await consumer.apoll(max_records=3)))
        seen.extend(numbers(consumer.poll(max_records=2)))
        seen.extend(numbers([await anext(consumer), next(consumer)]))
        assert sum(consumer.positions.values()) == 8
        await consumer.acommit()

    with store.consumer("grp", "orders") as consumer:
        for _ in range(2):  # in two event loops
            asyncio.run(tasks(consumer))
            consumer._committed.clear()
            assert sum(store.committed_offsets("grp").values()) == 8
            assert len(set(seen)) == len(seen) == 8
            consumer.seek("orders", 0, 0)
            consumer.seek("orders", 1, 0)
            seen.clear()
        assert sorted(asyncio.run(iterated(consumer))) == list(range(20))
        assert asyncio.run(consumer.apoll()) == []


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
def test_an_iteration_gives_what_a_plain_one_gives(store: kstore.Store, merge: Any) -> None:
    write(store, 0, 100, size=5000)
    write(store, 100, 110, "refunds")
    with store.consumer("grp", ["orders", "refunds"], merge=merge) as consumer:
        expected = numbers(list(consumer))
        consumer.seek_to_committed()
        assert asyncio.run(iterated(consumer)) == expected
        assert asyncio.run(iterated(consumer)) == []
        write(store, 110, 111)
        assert asyncio.run(iterated(consumer)) == [110]


@pytest.mark.parametrize("timeout", [SECONDS, None])
def test_a_poll_waits_for_the_first_record_alone(store: kstore.Store, timeout: float | None) -> None:
    async def run() -> None:
        with store.consumer("grp", "orders") as consumer:
            assert await consumer.apoll(0.001) == []
            call = asyncio.create_task(consumer.apoll(timeout))
            await until_it_waits(store)
            write(store, 1, 2)
            assert numbers(await asyncio.wait_for(call, SECONDS)) == [1]

    asyncio.run(run())


def test_a_follower_ends_when_its_time_is_up_and_sees_new_partitions(store: kstore.Store) -> None:
    async def run() -> None:
        write(store, 0, 2)
        with store.consumer("grp", "orders", follow=True, timeout=0.3) as consumer:
            call = asyncio.create_task(iterated(consumer))
            await until_it_waits(store)
            store.add_partitions("orders", 3)
            store.append("orders", b"2", partition=2)
            assert await call == [0, 1, 2]

    asyncio.run(run())


def test_a_reader_of_another_store_is_served_alike(store: kstore.Store, root: Path, tmp_path: Path) -> None:
    async def run(reader: kstore.Store, own: kstore.Store) -> None:
        with reader.consumer("grp", "orders", positions=own) as consumer:
            write(store, 0, 2)
            assert numbers(await consumer.apoll(SECONDS)) == [0, 1]
            call = asyncio.create_task(consumer.apoll(SECONDS))
            await asyncio.sleep(0)
            write(store, 2, 3)
            assert numbers(await call) == [2]
            await consumer.acommit(sync=True)
        assert own.committed_offsets("grp") == {("orders", 0): 2, ("orders", 1): 1}

    with kstore.Store.open(root, "r") as reader, kstore.Store.open(tmp_path / "own") as own:
        asyncio.run(run(reader, own))


# --- cancellation -----------------------------------------------------------------------------------------------------


async def poll_all(consumer: kstore.Consumer, found: list[int]) -> None:
    while records := await consumer.apoll(max_records=7):
        found.extend(numbers(records))


async def iterate_all(consumer: kstore.Consumer, found: list[int]) -> None:
    async for record in consumer:
        found.append(int(record.value or b""))


@pytest.mark.parametrize("merge", ["partition", "timestamp"])
@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("read", [poll_all, iterate_all])
def test_a_read_that_is_cancelled_at_any_await_has_read_nothing(
    store: kstore.Store,
    root: Path,
    merge: Any,
    mode: Any,
    read: Callable[[kstore.Consumer, list[int]], Coroutine[Any, Any, None]],
) -> None:
    write(store, 0, 120, size=9000)
    write(store, 120, 130, "refunds")

    async def scenario(number: int, later: bool) -> bool:
        found: list[int] = []
        with subject.consumer("grp", ["orders", "refunds"], merge=merge, positions=store) as consumer:
            cancelled = isinstance(await outcome(number, read(consumer, found), later=later), asyncio.CancelledError)
            assert sum(consumer.positions.values()) == len(found)
            await read(consumer, found)
            await read(consumer, found)
        assert sorted(found) == list(range(130))
        return cancelled

    with kstore.Store.open(root, "r") as reader:
        subject = store if mode == "a" else reader
        assert at_every_await(scenario) >= 5


def test_a_commit_that_is_cancelled_at_any_await_is_made_or_not(store: kstore.Store) -> None:
    async def scenario(number: int, later: bool) -> bool:
        group = f"grp-{number}-{later}"
        write(store, 0, 1)
        with store.consumer(group, "orders") as consumer:
            end = len(await consumer.apoll())
            found = await outcome(number, consumer.acommit(sync=True), later=later)
            assert store.committed_offsets(group) == {("orders", 0): end}  # the only await is after the append
            await consumer.acommit(sync=True)
        return isinstance(found, asyncio.CancelledError)

    assert at_every_await(scenario) == 1


def test_a_wait_that_wait_for_gives_up_loses_no_record(store: kstore.Store) -> None:
    async def run() -> None:
        with store.consumer("grp", "orders", follow=True) as consumer:
            for number in range(4):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(consumer) if number % 2 else consumer.apoll(None), 0.002)
                assert await asyncio.wait_for(consumer.apoll(0.001), SECONDS) == []
                write(store, number, number + 1)
                await consumer.acommit()
                assert sum(store.committed_offsets("grp").values()) == number
                assert numbers(await consumer.apoll(SECONDS)) == [number]

    asyncio.run(run())


class Gate:
    """Stops the threads that read for a consumer until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self.reads = 0
        step = awaited_records._Coming.__next__

        def gated(coming: awaited_records._Coming) -> kstore.ConsumerRecord:
            self.reads += 1
            with coming._reading:
                self.entered.set()
                assert self._open.wait(SECONDS)
            return step(coming)

        monkeypatch.setattr(awaited_records._Coming, "__next__", gated)

    async def enter(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.0005)

    def open(self) -> None:
        self._open.set()


def test_what_a_thread_reads_for_a_cancelled_call_is_kept_for_the_next(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def run() -> None:
        store.append("orders", b"0", partition=0)
        with store.consumer("grp", "orders") as consumer:
            call = asyncio.create_task(consumer.apoll())
            await gate.enter()
            call.cancel()
            await asyncio.wait((call,))
            commit = asyncio.create_task(consumer.acommit())  # waits for the thread, not the loop
            await asyncio.sleep(0)
            assert not commit.done()
            gate.open()
            await commit
            assert store.committed_offsets("grp") == {}
            assert numbers(await consumer.apoll(max_records=1)) == [0]
            assert gate.reads == 1

    asyncio.run(run())


@pytest.mark.parametrize("plain", ["poll", "seek"])
def test_a_plain_call_after_a_cancelled_one_reads_its_records_again(store: kstore.Store, plain: str) -> None:
    write(store, 0, 20, size=50000)

    async def run() -> None:
        with store.consumer("grp", "orders") as consumer:
            found = numbers(await consumer.apoll(max_records=1))
            task = asyncio.create_task(cancelled_at(4, consumer.apoll()))  # type: ignore[arg-type]
            with pytest.raises(asyncio.CancelledError):
                await task
            assert consumer._awaited is not None
            assert consumer._awaited.ahead
            if plain == "seek":
                consumer.seek("orders", 1, 0)
            found += numbers(consumer.poll())
            assert sorted(found) == list(range(20))

    asyncio.run(run())


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_second_call_is_refused_while_a_task_waits(store: kstore.Store) -> None:
    async def run() -> None:
        with store.consumer("grp", "orders", follow=True) as consumer:
            call = asyncio.create_task(consumer.apoll(None))
            await until_it_waits(store)
            for other in (
                lambda: asyncio.ensure_future(consumer.apoll()),
                lambda: asyncio.ensure_future(anext(consumer)),
            ):
                with pytest.raises(RuntimeError, match="another task reads"):
                    await other()
            for plain in (
                consumer.poll,
                lambda: next(consumer),
                consumer.seek_to_committed,
                lambda: consumer.seek("orders", 0, 0),
            ):
                with pytest.raises(RuntimeError, match="another task reads"):
                    plain()
            consumer.commit()
            await consumer.acommit(sync=True)
            write(store, 0, 1)
            assert numbers(await call) == [0]

    asyncio.run(run())


def test_a_task_is_refused_while_a_thread_polls(store: kstore.Store) -> None:
    async def run() -> None:
        with store.consumer("grp", "orders") as consumer:
            call = asyncio.create_task(asyncio.to_thread(consumer.poll, None))
            await until_it_waits(store)
            with pytest.raises(RuntimeError, match="a thread still polls"):
                await consumer.apoll()
            write(store, 0, 1)
            assert numbers(await call) == [0]
            assert await consumer.apoll() == []

    asyncio.run(run())


@pytest.mark.parametrize("end", ["consumer", "store", "topic"])
def test_a_waiting_task_is_told_of_the_end(store: kstore.Store, end: str) -> None:
    async def run() -> None:
        consumer = store.consumer("grp", "orders")
        call = asyncio.create_task(consumer.apoll(None))
        await until_it_waits(store)
        if end == "consumer":
            consumer.close()
        elif end == "store":
            store.close()
        else:
            store.delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError if end == "topic" else LogClosedError):
            await asyncio.wait_for(call, SECONDS)
        for again in (consumer.apoll(), anext(consumer), consumer.acommit("", sync=True)):
            if end != "topic":
                with pytest.raises(LogClosedError):
                    await again  # type: ignore[misc]
            else:
                again.close()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_truncation_below_the_position_is_an_error_as_in_poll(store: kstore.Store) -> None:
    async def run() -> None:
        write(store, 0, 10)
        with store.consumer("grp", "orders") as consumer:
            assert len(await consumer.apoll()) == 10
            store.log("orders", 0).truncate_to(2)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.apoll()
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.acommit()
            assert store.committed_offsets("grp") == {}
            consumer.seek("orders", 0, 2)
            write(store, 10, 11)
            assert numbers(await consumer.apoll()) == [10]
            await consumer.acommit()
        assert store.committed_offsets("grp") == {("orders", 0): 3, ("orders", 1): 5}

    asyncio.run(run())


def test_an_error_is_raised_after_the_records_before_it(store: kstore.Store) -> None:
    async def run() -> None:
        with store.consumer("grp", ["orders", "refunds"]) as consumer:
            assert await consumer.apoll() == []
            store.delete_topic("refunds")
            write(store, 0, 6)
            assert sorted(numbers(await consumer.apoll())) == list(range(6))
            for number in range(6, 8):  # although another topic has news
                write(store, number, number + 1)
                with pytest.raises(UnknownTopicOrPartitionError):
                    await consumer.apoll()

    asyncio.run(run())


def test_arguments_are_checked_before_anything_is_read(store: kstore.Store) -> None:
    with store.consumer("grp", "orders") as consumer:
        for wrong in ({"timeout": -1}, {"max_records": 0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                asyncio.run(consumer.apoll(**wrong))
        with pytest.raises(RuntimeError, match="no asyncio event loop"):
            consumer.apoll().send(None)


# --- commits ----------------------------------------------------------------------------------------------------------


def test_commits_of_tasks_share_a_sync_and_are_on_the_disk(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = fs.fdatasync

    def sync(fd: int) -> None:
        threads.append(threading.get_ident())
        real(fd)

    async def run() -> None:
        write(store, 0, 10)
        consumers = [store.consumer("grp", "orders") for _ in range(20)]
        await consumers[0].acommit(sync=True)
        for consumer in consumers:
            await consumer.apoll()
        monkeypatch.setattr(fs, "fdatasync", sync)
        await asyncio.gather(*(consumer.acommit("m", sync=True) for consumer in consumers))

    store.commit_offsets("grp", {("refunds", 0): 0}, sync=True)
    asyncio.run(run())
    assert 1 <= len(threads) <= 3
    assert threading.get_ident() not in threads
    assert store.committed_offsets("grp")["orders", 0].metadata == "m"


@pytest.mark.parametrize("awaited", [False, True])
def test_a_synced_commit_of_committed_positions_syncs_them(store: kstore.Store, awaited: bool) -> None:
    write(store, 0, 2)
    with store.consumer("grp", "orders") as consumer:
        consumer.poll()
        consumer.commit()
        if awaited:
            asyncio.run(consumer.acommit(sync=True))
        else:
            consumer.commit(sync=True)
    logs = [store.log("__consumer_offsets", number) for number in store.partitions("__consumer_offsets")]
    assert sum(log.log_end_offset for log in logs) > 0
    assert all(log.stats()["recovery_point"] == log.log_end_offset for log in logs)


def test_a_reader_syncs_its_commits_in_a_thread(
    store: kstore.Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    async def run(consumer: kstore.Consumer) -> None:
        write(store, 0, 2)
        assert len(await consumer.apoll()) == 2
        await consumer.acommit()
        monkeypatch.setattr(fs, "fdatasync", lambda fd: threads.append(threading.get_ident()))
        await consumer.acommit(sync=True)  # syncs what is committed
        await consumer.acommit(sync=True)

    with kstore.Store.open(root, "r") as reader, reader.consumer("grp", "orders") as consumer:
        asyncio.run(run(consumer))
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        assert store.committed_offsets("grp") == {("orders", 0): 1, ("orders", 1): 1}


# --- any history ------------------------------------------------------------------------------------------------------

ACTS = ["write", "poll", "apoll", "anext", "cancel poll", "cancel next", "commit", "acommit", "rewind", "restart"]


@examples(0.25)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 6))))
def test_whatever_is_cancelled_each_record_comes_once_after_the_committed_ones(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    async def run(store: kstore.Store) -> None:
        written = read = committed = 0
        consumer = store.consumer("grp", "orders")

        async def nexts(count: int) -> list[int]:
            found: list[int] = []
            for _ in range(count):
                record = await anext(consumer, None)
                if record is not None:
                    found.append(int(record.value or b""))
            return found

        for act, count in [*history, ("apoll", 100), ("apoll", 100)]:
            seen: list[int] = []
            if act == "write":
                write(store, written, written + count)
                written += count
            elif act == "poll":
                seen = numbers(consumer.poll(max_records=count))
            elif act == "apoll":
                seen = numbers(await consumer.apoll(max_records=count))
                assert len(seen) in range(min(1, written - read), count + 1)
            elif act == "anext":
                seen = await nexts(count)
            elif act.startswith("cancel"):
                call = consumer.apoll(max_records=5) if act == "cancel poll" else nexts(1)
                result = await outcome(count, call)  # type: ignore[arg-type]
                if isinstance(result, list):
                    seen = [each if isinstance(each, int) else int(each.value or b"") for each in result]
            elif act == "rewind":
                consumer.seek_to_committed()
                read = committed
            elif act == "restart":
                consumer.close()
                consumer = store.consumer("grp", "orders")
                read = committed
            else:
                await consumer.acommit() if act == "acommit" else consumer.commit()
                committed = read
            assert seen == list(range(read, read + len(seen)))
            read += len(seen)
            assert sum(consumer.positions.values()) in (read, 0)
        assert read == written

    with kstore.Store.open(tmp_path_factory.mktemp("tasks"), background=False) as store:
        store.create_topic("orders")
        asyncio.run(run(store))
