"""Transactions of tasks: `async with` commits, and a cancellation aborts, or comes after the commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.disk import fs
from kstore.store.coordinator.transactions import TransactionCoordinator
from tests.support.cancelling import at_every_await, outcome


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root) as store:
        store.create_topic("t", 2)
        yield store


def committed(store: kstore.Store) -> list[bytes | None]:
    return sorted((record.value for record in store.read("t", isolation="read_committed")), key=repr)


def undecided(store: kstore.Store) -> int:
    """Records that no transaction has decided."""
    logs = [store.log("t", number) for number in store.partitions("t")]
    return sum(log.log_end_offset - log.last_stable_offset for log in logs)


async def failing(txn: kstore.Transaction) -> None:
    async with txn:
        txn.append("t", b"2", partition=0)
        raise ZeroDivisionError


@pytest.mark.parametrize("sync", [False, True])
def test_a_block_commits_at_its_end_and_aborts_on_an_error(store: kstore.Store, sync: bool) -> None:
    async def run() -> None:
        with store.producer(transactional_id="p") as producer:
            async with producer.transaction(sync=sync) as txn:
                txn.append("t", b"0", partition=0)
                await asyncio.sleep(0)
                txn.append("t", b"1", partition=1)
            assert txn.ended
            txn = producer.transaction(sync=sync)
            with pytest.raises(ZeroDivisionError):
                await failing(txn)
            assert txn.ended
            async with producer.transaction(sync=sync) as txn:
                txn.append("t", b"3", partition=0)
                txn.abort()

    asyncio.run(run())
    assert committed(store) == [b"0", b"1"]
    assert undecided(store) == 0


def test_a_commit_with_sync_is_made_by_a_thread_and_is_on_the_disk(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = fs.fdatasync

    def sync(fd: int) -> None:
        threads.append(threading.get_ident())
        real(fd)

    async def run() -> None:
        turns = 0
        with store.producer(transactional_id="p") as producer:

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            monkeypatch.setattr(fs, "fdatasync", sync)
            async with producer.transaction(sync=True) as txn:
                txn.append("t", b"0", partition=0)
            assert turns > 0
            task.cancel()

    asyncio.run(run())
    assert threads
    assert threading.get_ident() not in threads
    log = store.log("t", 0)
    assert log.stats()["recovery_point"] == log.log_end_offset == 2


@pytest.mark.parametrize("sync", [False, True])
def test_a_block_cancelled_at_any_await_is_aborted_or_committed_and_has_ended(store: kstore.Store, sync: bool) -> None:
    expected: list[bytes] = []
    number_of = 0
    aborted = 0

    with store.producer(transactional_id="p") as producer:

        async def scenario(number: int, later: bool) -> bool:
            nonlocal number_of, aborted
            number_of += 1
            value = b"%04d" % number_of
            txn: kstore.Transaction | None = None

            async def block() -> None:
                nonlocal txn
                async with producer.transaction(sync=sync) as txn:
                    txn.append("t", value, partition=0)
                    await asyncio.sleep(0)
                    txn.append("t", value, partition=1)
                    await asyncio.sleep(0)

            cancelled = isinstance(await outcome(number, block(), later=later), asyncio.CancelledError)
            assert txn is not None
            assert txn.ended
            assert undecided(store) == 0
            if number <= 2 and not later:
                aborted += 1
            elif not later or not cancelled:
                expected.extend([value] * 2)
            if later and cancelled:
                found = committed(store)
                assert found.count(value) in (0, 2)
                expected.extend([value] * found.count(value))
            assert committed(store) == sorted(expected)
            return cancelled

        assert at_every_await(scenario) == (3 if sync else 2)
    assert aborted == 2


def test_a_commit_that_fails_raises_its_error(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise kstore.StorageError(5, "the coordinator fails")

    async def append(txn: kstore.Transaction) -> None:
        async with txn:
            txn.append("t", b"0", partition=0)

    async def run() -> None:
        with store.producer(transactional_id="p") as producer:
            txn = producer.transaction(sync=True)
            with monkeypatch.context() as patch:
                patch.setattr(TransactionCoordinator, "end", fail)
                with pytest.raises(kstore.StorageError, match="the coordinator fails"):
                    await append(txn)
            assert txn.ended
            async with producer.transaction(sync=True) as txn:
                txn.append("t", b"1", partition=0)

    asyncio.run(run())
    assert committed(store) == [b"1"]
