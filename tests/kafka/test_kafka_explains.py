"""`Log.explain` of a directory that Kafka writes: its rolls are explained, and its deletions foretold.

Kafka's log gets random records under random settings and a clock of its own. The test follows the rules of rolling by
itself (SEMANTICS 2.2), which Kafka's segments confirm, and asks kstore why each roll was. Then the clock moves on, and
what kstore has foretold for each moment is what Kafka deletes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from tests.kafka.kafka_jvm import START_MS, Kafka, KafkaLog

pytestmark = pytest.mark.kafka

SECOND, MINUTE = 1000, 60_000
INDEX_ENTRY, TIME_ENTRY = 8, 12


def drawn(rng: random.Random) -> dict[str, Any]:
    return {
        "cleanup.policy": rng.choice(["delete", "delete", "compact,delete"]),
        "retention.ms": rng.choice([-1, 0, 1, 30 * SECOND, 5 * MINUTE]),
        "retention.bytes": rng.choice([-1, -1, 0, 500, 2000]),
        "internal.segment.bytes": rng.choice([400, 1000, 1 << 20]),
        "segment.ms": rng.choice([20 * SECOND, 3 * MINUTE, 60 * MINUTE]),
        "segment.index.bytes": rng.choice([40, 72, 1 << 10]),
        "index.interval.bytes": rng.choice([0, 150, 4096]),
    }


class Roller:
    """When Kafka rolls and why, from the numbers of its batches alone."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.rolls: list[tuple[int, str]] = []
        self.begin()

    def begin(self) -> None:
        self.size = self.entries = self.times = self.since = 0
        self.first = self.newest = self.last_time = -1

    def append(self, offset: int, size: int, timestamp: int) -> None:
        reason = self.reason(size, timestamp)
        if reason is not None:
            self.rolls.append((offset, reason))
            self.begin()
        self.newest = max(self.newest, timestamp)
        if self.since > self.config["index.interval.bytes"]:
            self.entries += 1
            self.times += self.newest > self.last_time
            self.last_time, self.since = max(self.newest, self.last_time), 0
        self.first = timestamp if self.size == 0 else self.first
        self.size += size
        self.since += size

    def reason(self, size: int, timestamp: int) -> str | None:
        index = self.config["segment.index.bytes"]
        if self.size + size > self.config["internal.segment.bytes"]:
            return "size"
        if self.size > 0 and timestamp - self.first > self.config["segment.ms"]:
            return "time"
        if self.entries >= index // INDEX_ENTRY:
            return "offset_index_full"
        return "time_index_full" if self.times >= index // TIME_ENTRY - 1 else None


class Run(NamedTuple):
    log: KafkaLog
    config: dict[str, Any]
    roller: Roller
    now: int


def run(kafka: Kafka, directory: Path, rng: random.Random) -> Run:
    config = drawn(rng)
    log = kafka.open(directory, config=config)
    roller, now = Roller(config), START_MS
    for offset in range(rng.randint(5, 40)):
        now += rng.choice([0, 1, SECOND, 20 * SECOND, MINUTE])
        timestamp = now + rng.choice([0, 0, 0, -SECOND, -5 * MINUTE, 2 * MINUTE])
        data = kafka.encode([(timestamp, b"k", b"v" * rng.randint(0, 150))])
        roller.append(offset, len(data), timestamp)
        log.append_as_leader(data, now=now)
    return Run(log, config, roller, now)


def bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


@pytest.fixture
def runs(kafka: Kafka, root: Path, rng: random.Random) -> Iterator[list[Run]]:
    """Some logs of Kafka's in a directory that looks like a broker's."""
    (root / "meta.properties").write_text("version=1\n")
    found = [run(kafka, root / f"events-{number}", rng) for number in range(15)]
    yield found
    for each in found:
        each.log.crash()


def test_kafkas_rolls_are_explained_and_its_deletions_foretold(
    runs: list[Run], rng: random.Random, record_property: pytest.RecordProperty
) -> None:
    seen: dict[str, int] = {}
    for log, config, roller, now in runs:
        directory = log.directory
        assert bases(directory) == [0, *(offset for offset, _ in roller.rolls)], config
        with kstore.Log.open(directory, mode="r", config=config) as reader:
            explained = reader.explain(at=now)
            inferred = [(each.next_offset, each.roll_reason) for each in explained.segments[:-1]]
            assert inferred == roller.rolls, config
            assert all(each.is_roll_inferred for each in explained.segments[:-1])
            assert explained.checks.by == ("cleaner" if "compact" in config["cleanup.policy"] else "broker")
            due = [each.due_ms for each in explained.segments if each.due_ms is not None and each.due_ms > now]
            moments = sorted(
                {now, *due, *(each - 1 for each in due), now + 60 * MINUTE}
                | {now + rng.randint(0, 10 * MINUTE) for _ in range(3)}
            )
            foretold = {each.base_offset: each.earliest_ms for each in explained.segments}
            for moment in moments:
                before = bases(directory)
                gone = [each.base_offset for each in reader.explain(at=moment).segments if each.holds == ("check",)]
                log.call("retain", now=moment)
                after = bases(directory)
                assert [base for base in before if base not in after] == gone, (config, moment)
                for base in gone:
                    assert foretold[base] == moment, config
                    seen["deleted"] = seen.get("deleted", 0) + 1
            never = {base for base, earliest in foretold.items() if earliest is None}
            assert never <= set(bases(directory))
        for _, reason in roller.rolls:
            seen[reason] = seen.get(reason, 0) + 1
    for name, count in seen.items():
        record_property(name, count)
    assert {"size", "time", "deleted"} <= seen.keys()
