"""Locks that are held together: an interrupt at any instruction leaves all of them free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.store.coordinator._lock_set import LockSet
from kstore.store.store import between_transactions
from tests.support.interrupts import interrupt_often


def is_free(lock: threading.Lock) -> bool:
    """Whether another thread can take it."""
    return lock.acquire(blocking=False) and (lock.release() or True)


def test_what_is_entered_is_left_in_reverse_also_when_leaving_one_raises() -> None:
    steps: list[object] = []

    class Step:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            steps.append(self.name)

        def __exit__(self, *_: object) -> None:
            steps.append(-int(self.name))
            if self.name == "2":
                raise ValueError("2")

    with pytest.raises(ValueError, match="2"), LockSet() as held:  # noqa: PT012
        for name in ("1", "2", "3"):
            held.enter(Step(name))
    assert steps == ["1", "2", "3", -3, -2, -1]


def test_no_interrupt_leaves_one_of_many_locks_taken(budget: Callable[[float], float]) -> None:
    locks = [threading.Lock() for _ in range(50)]

    def hold() -> None:
        with LockSet() as held:
            for lock in locks:
                held.enter(lock)

    assert interrupt_often(hold, budget(1)) > 0
    assert all(map(is_free, locks))


def test_an_interrupt_of_a_look_between_transactions_blocks_no_later_transaction(
    tmp_path: Path, budget: Callable[[float], float]
) -> None:
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t")
        producers = [store.producer(transactional_id=f"id-{number}") for number in range(50)]
        assert interrupt_often(lambda: between_transactions(store, lambda: 0), budget(4)) > 0
        ended = threading.Event()

        def work() -> None:
            between_transactions(store, lambda: 0)
            for producer in producers:
                with producer.transaction() as txn:
                    txn.append("t", b"v")
            ended.set()

        threading.Thread(target=work, daemon=True).start()
        assert ended.wait(30)
