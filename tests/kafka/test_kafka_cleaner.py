"""Kafka's cleaner obeys the rules of SEMANTICS 7: they are read in plain Python, and held against what it leaves."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.conftest import SEED
from tests.kafka import kafka_cleaner
from tests.kafka.kafka_history import Difference, History, Lives, kafka_subject
from tests.kafka.kafka_jvm import Kafka
from tests.kafka.kafka_operations import Configure
from tests.kafka.kafka_sides import Compacted, KafkaSide

pytestmark = pytest.mark.kafka

ROUNDS = int(os.environ.get("KSTORE_HISTORIES", "200")) // 4
INDEX = "segment.index.bytes"  # where it is too small for a cleaned segment, Kafka fails


def judged(side: KafkaSide, map_keys: int, buffer_bytes: int, forced: bool, rounds: list[int]) -> Compacted | None:
    """One round of Kafka's, held against the rules."""
    assert side.log is not None
    before = kafka_cleaner.seen(side.log, side.now)
    last = {producer: (offset, epoch) for producer, offset, epoch in side.call("last_records")}
    names = {segment.base: side.directory / f"{segment.base:020d}.log" for segment in before}
    mtimes = {base: path.stat().st_mtime_ns // 1_000_000 for base, path in names.items()}
    start = side.marks().log_start_offset
    done = side.call("clean", map_keys=map_keys, io_buffer_bytes=buffer_bytes, forced=forced)
    if done is None:
        return None
    told = kafka_cleaner.Round(
        first_dirty=done["first_dirty_offset"],
        first_uncleanable=done["first_uncleanable_offset"],
        map_keys=map_keys,
        now=side.now,
        delete_retention_ms=side.config.get("delete.retention.ms", 86_400_000),
        segment_bytes=side.config.get("internal.segment.bytes", 1 << 30),
        index_bytes=side.config.get(INDEX, 10_485_760),
        log_start=start,
        last_records=last,
        mtimes=mtimes,
    )
    wrong = kafka_cleaner.contradiction(before, kafka_cleaner.seen(side.log, side.now), told, done["end_offset"])
    if wrong is not None:
        raise Difference(f"Kafka does not do as the rules say\n{wrong}\n{told}")
    rounds.append(len(before))
    return Compacted(done["first_dirty_offset"], done["end_offset"], done["keys"])


def with_roomy_indexes(history: History) -> History:
    small = lambda operation: isinstance(operation, Configure) and operation.name == INDEX  # noqa: E731
    operations = tuple(operation for operation in history.operations if not small(operation))
    return replace(history, config={**history.config, INDEX: 10_485_760}, operations=operations)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each round of Kafka's is judged: how many segments there were before it."""
    found: list[int] = []
    monkeypatch.setattr(
        KafkaSide,
        "compact",
        lambda side, map_keys, buffer_bytes, *, forced: judged(side, map_keys, buffer_bytes, forced, found),
    )
    return found


def drawn(seed: int) -> History:
    return with_roomy_indexes(History.draw(seed, producing=True, compacting=True))


def test_kafka_cleans_as_the_rules_say(kafka: Kafka, budget: Callable[[float], float], rounds: list[int]) -> None:
    """SEMANTICS 7.11, 7.12, 7.13, 7.15, 7.16, 7.17, 7.18, 7.19, 7.20, 7.21, 7.21a."""
    lives = Lives(kafka, kafka_subject)
    ends = time.monotonic() + budget(5)
    for seed in itertools.count(int(SEED, 16)):
        assert lives.report(drawn(seed)) is None
        if time.monotonic() > ends and len(rounds) >= ROUNDS:
            break


@pytest.mark.usefixtures("rounds")
def test_the_reading_of_the_rules_is_held_against_kafka(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is read wrongly is found out."""
    monkeypatch.setattr(kafka_cleaner, "INT_MAX", -1)  # no segment joins another
    lives = Lives(kafka, kafka_subject)
    found = next(filter(None, (lives.difference(drawn(seed)) for seed in range(1, 31))))
    assert "as the rules say" in found.what
