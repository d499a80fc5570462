"""What do a transaction, a numbered append and a committed position cost, without a sync?

Workloads: values-100 of `common`, one record to each of three partitions of one topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from common import VALUE, Question, measure, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

TRANSACTION = Question("transaction of 1 record over 3 partitions", unit="time", limit=30e-6)
APPEND = Question("append by topic, numbered and not", unit="time")
POSITIONS = Question("commit the positions of 3 partitions", unit="time")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    """A store with a topic of three partitions."""
    with kstore.Store.open(tmp_path / "store") as made:
        made.create_topic("t", 3)
        yield made


def test_a_transaction_over_three_partitions(benchmark: BenchmarkFixture, store: kstore.Store) -> None:
    count = scaled(2000)
    with store.producer(transactional_id="bench") as producer:

        def run() -> None:
            for _ in range(count):
                with producer.transaction() as txn:
                    for number in range(3):
                        txn.append("t", VALUE, partition=number)

        measure(benchmark, TRANSACTION, "kstore", run, operations=count)


@pytest.mark.parametrize("contestant", ["kstore", "plain"])
def test_a_numbered_append(benchmark: BenchmarkFixture, store: kstore.Store, contestant: str) -> None:
    count = scaled(20_000)
    append = store.producer().append if contestant == "kstore" else store.append

    def run() -> None:
        for _ in range(count):
            append("t", VALUE)

    measure(benchmark, APPEND, contestant, run, operations=count)


def test_a_commit_of_positions(benchmark: BenchmarkFixture, store: kstore.Store) -> None:
    count = scaled(2000)
    offsets = {("t", number): 1 for number in range(3)}

    def run() -> None:
        for _ in range(count):
            store.commit_offsets("bench", offsets)

    measure(benchmark, POSITIONS, "kstore", run, operations=count)
