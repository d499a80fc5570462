"""Two small services in processes of their own, to be killed and terminated: what test_services.py judges.

    python services.py produce ORDERS [DIE_AT]            python services.py serve ORDERS RESULTS [DIE_AT]

The first appends orders until SIGTERM: each says its own partition and offset, and is stored there or not at all. The
second reads them on behalf of a group and writes a running total for each into a store of its own, in transactions that
carry the group's positions; it begins by reading where the totals were. Each prints a line for what is done.

With `DIE_AT` the process ends itself by SIGKILL in the middle of its so many-th write to a log or an index: half of the
bytes are in the file.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections import defaultdict
from types import FrameType

import kstore
from kstore.log.writing import _appender

PARTITIONS = 2
GROUP = "totals"
SMALL = {"segment_bytes": 20_000, "segment_index_bytes": 1200, "offsets_topic_num_partitions": 1,
         "transaction_state_log_num_partitions": 1}  # fmt: skip

ended = threading.Event()


def end_soon(number: int, frame: FrameType | None) -> None:
    ended.set()


def order(partition: int, offset: int) -> bytes:
    return b"%d/%d" % (partition, offset)


def worth(value: bytes) -> int:
    """What an order adds to the total."""
    partition, offset = map(int, value.split(b"/"))
    return offset * 7 + partition + 1


def die_at(write: int) -> None:
    """SIGKILL in the middle of a write; the first is 0."""
    numbers = itertools.count()

    def hook(fd: int, data: memoryview, position: int) -> int:
        if next(numbers) < write:
            return os.pwrite(fd, data, position)
        os.pwrite(fd, bytes(data)[: len(data) // 2], position)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")

    _appender.set_pwrite_hook(hook)


def produce(orders: str) -> None:
    with kstore.Store.open(orders, **SMALL) as store:
        logs = [store.log("orders", partition) for partition in range(PARTITIONS)]
        print("begins", flush=True)
        for number in itertools.count():
            if ended.wait(0.004):
                break
            log = logs[partition := number % PARTITIONS]
            first = log.log_end_offset
            values = [order(partition, first + i) for i in range(1 + number % 3)]
            log.append_many(values, atomic=True, expected_offset=first)
            print(partition, first + len(values), flush=True)
    print("ends", flush=True)


def serve(orders: str, results: str) -> None:
    with (
        kstore.Store.open(orders, "r") as source,
        kstore.Store.open(results, **SMALL) as store,
        store.producer(transactional_id="service") as producer,
        source.consumer(GROUP, "orders", positions=store) as consumer,
    ):
        totals: dict[int, int] = defaultdict(int)
        for record in store.read("totals", isolation="read_committed"):
            totals[record.partition] = int((record.value or b"").split(b"=")[1])
        print(sum(store.committed_offsets(GROUP).values()), flush=True)
        while not ended.is_set():
            records = consumer.poll(0.05, max_records=4)
            if not records:
                continue
            with producer.transaction() as txn:
                for record in records:
                    value = record.value or b""
                    totals[record.partition] += worth(value)
                    total = b"%s=%d" % (value, totals[record.partition])
                    txn.append("totals", total, partition=record.partition)
                txn.commit_offsets(GROUP, consumer.positions)
            print(sum(store.committed_offsets(GROUP).values()), flush=True)
    print("ends", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_soon)
    kind, *paths = sys.argv[1:]
    if paths[-1].isdigit():
        die_at(int(paths.pop()))
    produce(*paths) if kind == "produce" else serve(*paths)
