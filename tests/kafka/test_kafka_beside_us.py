"""Kafka beside us: random histories lived by Kafka's log and by kstore's, alike in every answer, mark, file and byte.

Each run lives other histories: the run's seed says where they begin. At least `KSTORE_HISTORIES` of each kind are lived
however slow the machine is, and more while there is time; the closing lines of a run say how many. By hand:
`python tests/kafka/kafka_history.py`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.kafka.kafka_history import (
    EXCUSES,
    KEPT,
    PARTS_WAYS,
    History,
    Lives,
    documented,
    kafka_subject,
    kstore_subject,
)
from tests.kafka.kafka_jvm import Kafka
from tests.kafka.kafka_operations import COMPACTING, OPERATIONS, PRODUCING

pytestmark = pytest.mark.kafka

HISTORIES = int(os.environ.get("KSTORE_HISTORIES", "200"))
GROUPS = 4
Record = Callable[[str, object], None]


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_history_that_once_differed_is_alike(kafka: Kafka, path: Path) -> None:
    difference = Lives(kafka, kstore_subject).difference(History.from_json(path.read_text()))
    assert difference is None, f"step {difference.step}: {difference.what}"


def live(
    kafka: Kafka, group: int, seconds: float, record: Record, *, producing: bool = False, compacting: bool = False
) -> None:
    """Live one group's share of the histories, and more of them until the seconds are over."""
    flags = f"{' --producing' if producing else ''}{' --compacting' if compacting else ''}"
    lives = Lives(kafka, kstore_subject)
    ends = time.monotonic() + seconds
    for seed in itertools.count(int(SEED, 16) + group, GROUPS):
        report = lives.report(History.draw(seed, producing=producing, compacting=compacting))
        if report is not None:
            again = f"python tests/kafka/kafka_history.py --count 1 --first {seed}{flags}"
            pytest.fail(f"{again}\n{report}", pytrace=False)
        if time.monotonic() > ends and lives.count * GROUPS >= HISTORIES:
            break
    record("histories", lives.count)
    record("operations in histories", lives.operations)
    assert lives.count * GROUPS >= HISTORIES
    assert lives.cut_short <= lives.count / 5, "histories end before their last operation"


@pytest.mark.parametrize("group", range(GROUPS))
def test_kafka_and_kstore_are_alike_after_every_step(
    kafka: Kafka, group: int, budget: Callable[[float], float], record_property: Record
) -> None:
    live(kafka, group, budget(5), record_property)


@pytest.mark.parametrize("group", range(GROUPS))
def test_kafka_and_kstore_are_alike_with_producers_and_transactions(
    kafka: Kafka, group: int, budget: Callable[[float], float], record_property: Record
) -> None:
    """Answers, marks (the last stable offset among them), snapshots entry by entry, transaction indexes."""
    live(kafka, group, budget(4), record_property, producing=True)


@pytest.mark.parametrize("group", range(GROUPS))
def test_kafka_and_kstore_are_alike_when_both_are_cleaned(
    kafka: Kafka, group: int, budget: Callable[[float], float], record_property: Record
) -> None:
    """Every file after every round, with small maps and buffers; the first-dirty line; what would be cleaned next."""
    live(kafka, group, budget(5), record_property, producing=group % 2 == 1, compacting=True)


def test_kafka_and_its_twin_are_alike_in_every_history(kafka: Kafka) -> None:
    """What the harness says about two logs that are alike."""
    lives = Lives(kafka, kafka_subject)
    for seed in range(1, 31):
        assert lives.report(History.draw(seed)) is None


def test_kafka_and_its_twin_are_alike_in_every_history_with_the_cleaner(kafka: Kafka) -> None:
    lives = Lives(kafka, kafka_subject)
    for seed in range(1, 31):
        assert lives.report(History.draw(seed, producing=True, compacting=True)) is None


def test_a_twin_with_another_index_interval_is_found_out_and_the_history_shrunk(kafka: Kafka) -> None:
    lives = Lives(kafka, lambda *given: kafka_subject(*given[:2], {**given[2], "index.interval.bytes": 60}, given[3]))
    seed = next(seed for seed in range(1, 100) if lives.difference(History.draw(seed)) is not None)
    short = lives.shrink(History.draw(seed), 240)
    difference = lives.difference(short)
    assert difference is not None
    assert difference.what.startswith("files\n")
    assert ".index" in difference.what
    assert len(short.operations) <= 4


@pytest.mark.parametrize("seed", range(20))
def test_a_history_is_read_back_as_it_was_written(seed: int) -> None:
    history = History.draw(seed, compacting=seed % 2 == 1)
    assert History.from_json(history.to_json()) == history


@pytest.mark.parametrize("producing", [False, True])
@pytest.mark.parametrize("compacting", [False, True])
def test_every_operation_is_drawn(producing: bool, compacting: bool) -> None:
    histories = [History.draw(seed, producing=producing, compacting=compacting) for seed in range(200)]
    drawn = {type(operation).__name__ for history in histories for operation in history.operations}
    added = (PRODUCING if producing else {}) | (COMPACTING if compacting else {})
    assert drawn == OPERATIONS.keys() | added.keys()


def test_what_is_excused_is_documented() -> None:
    assert EXCUSES.keys() <= documented()
    assert EXCUSES.keys() >= PARTS_WAYS
