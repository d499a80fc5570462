"""Kafka beside us: random histories lived by Kafka's log and by kstore's, alike in every answer, mark, file and byte.

`KSTORE_HISTORIES` says how many seeds to try, `KSTORE_SEED` where to begin; by hand, `python tests/kafka_history.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_history import EXCUSES, KEPT, PARTS_WAYS, History, Lives, documented, kafka_subject, kstore_subject
from kafka_jvm import Kafka
from kafka_operations import OPERATIONS

pytestmark = pytest.mark.kafka

HISTORIES = int(os.environ.get("KSTORE_HISTORIES", "400"))
GROUPS = 8


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_history_that_once_differed_is_alike(kafka: Kafka, path: Path) -> None:
    difference = Lives(kafka, kstore_subject).difference(History.from_json(path.read_text()))
    assert difference is None, f"step {difference.step}: {difference.what}"


@pytest.mark.parametrize("group", range(GROUPS))
def test_kafka_and_kstore_are_alike_after_every_step(
    kafka: Kafka, group: int, budget: Callable[[float], float]
) -> None:
    lives = Lives(kafka, kstore_subject)
    first = int(os.environ.get("KSTORE_SEED", "0"), 16) + 1
    ends = time.monotonic() + budget(20)
    for seed in range(first + group, first + HISTORIES, GROUPS):
        report = lives.report(History.draw(seed))
        if report is not None:
            pytest.fail(f"seed {seed}: {report}", pytrace=False)
        if time.monotonic() > ends:
            break


@pytest.mark.parametrize("group", range(4))
def test_kafka_and_kstore_are_alike_with_producers_and_transactions(
    kafka: Kafka, group: int, budget: Callable[[float], float]
) -> None:
    """Answers, marks (the last stable offset among them), snapshots entry by entry, transaction indexes."""
    lives = Lives(kafka, kstore_subject)
    first = int(os.environ.get("KSTORE_SEED", "0"), 16) + 1
    ends = time.monotonic() + budget(4)
    for seed in range(first + group, first + HISTORIES, 4):
        report = lives.report(History.draw(seed, producing=True))
        if report is not None:
            pytest.fail(f"seed {seed}: {report}", pytrace=False)
        if time.monotonic() > ends:
            break


def test_kafka_and_its_twin_are_alike_in_every_history(kafka: Kafka) -> None:
    """What the harness says about two logs that are alike."""
    lives = Lives(kafka, kafka_subject)
    for seed in range(1, 31):
        assert lives.report(History.draw(seed)) is None


def test_a_twin_with_another_index_interval_is_found_out_and_the_history_shrunk(kafka: Kafka) -> None:
    lives = Lives(kafka, lambda *given: kafka_subject(*given[:2], {**given[2], "index.interval.bytes": 60}, given[3]))
    seed = next(seed for seed in range(1, 100) if lives.difference(History.draw(seed)) is not None)
    short = lives.shrink(History.draw(seed), 30)
    difference = lives.difference(short)
    assert difference is not None
    assert difference.what.startswith("files\n")
    assert ".index" in difference.what
    assert len(short.operations) <= 4


@pytest.mark.parametrize("seed", range(20))
def test_a_history_is_read_back_as_it_was_written(seed: int) -> None:
    history = History.draw(seed)
    assert History.from_json(history.to_json()) == history


def test_every_operation_is_drawn() -> None:
    drawn = {type(operation).__name__ for seed in range(200) for operation in History.draw(seed).operations}
    assert drawn == OPERATIONS.keys()


def test_what_is_excused_is_documented() -> None:
    assert EXCUSES.keys() <= documented()
    assert EXCUSES.keys() >= PARTS_WAYS
