"""What is seen between transactions: ends of logs that belong together."""

from __future__ import annotations

import threading
from bisect import bisect_left
from pathlib import Path

import kstore
from kstore.store.store import between_transactions

LOOKS = 60


def test_ends_between_transactions_have_all_of_a_transaction_or_no_marker_of_it(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        logs = [store.create_topic(name) and store.log(name, 0) for name in ("a", "b")]
        looks: list[list[int]] = []
        enough = threading.Event()

        def work(number: int) -> None:
            turn = 0
            while not enough.is_set():
                # A new id now and then: one that comes up while others are held counts, too.
                with store.producer(transactional_id=f"id-{number}-{turn // 10}").transaction() as txn:
                    for topic in ("a", "b", "a"):
                        txn.append(topic, b"v")
                turn += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while len(looks) < LOOKS:
            ends = between_transactions(store, lambda: [log.log_end_offset for log in logs])
            if not looks or ends != looks[-1]:
                looks.append(ends)
        enough.set()
        for thread in threads:
            thread.join()

        ended = []  # by log: the marker's offset and the number of records before it, by producer and epoch
        for log in logs:
            markers: list[int] = []
            by_transaction: dict[tuple[int, int], int] = {}
            for batch in log.read_batches():
                if batch.is_control:
                    markers.append(batch.base_offset)
                    by_transaction[batch.producer_id, batch.producer_epoch] = batch.base_offset
            ended.append((markers, by_transaction))
        (first, of_first), (second, of_second) = ended
        assert of_first.keys() == of_second.keys()
        for one, other in looks:
            assert bisect_left(first, one) == bisect_left(second, other)
            below = {key for key, offset in of_first.items() if offset < one}
            assert below == {key for key, offset in of_second.items() if offset < other}


def test_a_look_is_taken_again_when_a_new_id_came_up_meanwhile(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("a")
        looks = 0

        def look() -> int:
            nonlocal looks
            looks += 1
            if looks < 3:
                with store.producer(transactional_id=f"id-{looks}").transaction() as txn:
                    txn.append("a", b"v")
            return store.log("a", 0).log_end_offset

        assert between_transactions(store, look) == 4
        assert looks == 3


def test_several_threads_may_look_while_ids_come_up(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("events")
        seen: list[int] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                seen.append(between_transactions(store, lambda: store.log("events", 0).log_end_offset))

        lookers = [threading.Thread(target=look, daemon=True) for _ in range(3)]
        for looker in lookers:
            looker.start()
        number = 0
        while number < 100 or len(set(seen)) < 2:
            number += 1
            with store.producer(transactional_id=f"id-{number}") as producer, producer.transaction() as txn:
                txn.append("events", b"value")
        done.set()
        for looker in lookers:
            looker.join(60)
        assert not any(looker.is_alive() for looker in lookers)
