"""Kafka's own log does what a plan foretells: rolls and deletions, with the load's batches and a moved clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.explained.explained_plan import Load
from kstore.planning.load_stretches import Stretch, stretches
from tests.kafka.kafka_jvm import START_MS, Kafka, KafkaLog
from tests.planning.lived_logs import foretold, simulated

pytestmark = pytest.mark.kafka

RUNS, MOST_BATCHES, MOST_CHECKS = 25, 60, 40


class Drawn(NamedTuple):
    load: Load
    value_bytes: int
    settings: dict[str, Any]
    every_ms: int
    end_ms: int


def drawn(kafka: Kafka, rng: random.Random) -> Drawn:
    records, value_bytes = rng.choice([1, 1, 3]), rng.choice([0, 50, 120])
    size = len(encoded(kafka, START_MS, records, value_bytes))
    rate = rng.choice([0.05, 0.2, 1, 3, 7])
    load = Load(rate, size / records, records, rng.choice([0, 0, 5000, 60_000]), rng.choice([(), (), ((0, 60_000),)]))
    every_ms = rng.choice([3000, 60_000])
    settings = {
        "segment_bytes": rng.choice([600, 2000, 1 << 20]),
        "segment_ms": rng.choice([1000, 20_000, 1 << 40]),
        "segment_index_bytes": rng.choice([24, 60, 1000]),
        "index_interval_bytes": rng.choice([0, 150, 4096]),
        "retention_ms": rng.choice([-1, 0, 1000, 60_000]),
        "retention_bytes": rng.choice([-1, -1, 0, 1000]),
        "log_retention_check_interval_ms": every_ms,
        "log_initial_task_delay_ms": 30_000,
    }
    end_ms = START_MS + min(MOST_CHECKS * every_ms, int(MOST_BATCHES * records / rate * 1000)) + rng.randint(0, 100_000)
    return Drawn(load, value_bytes, settings, every_ms, end_ms)


def encoded(kafka: Kafka, stamp: int, records: int, value_bytes: int) -> bytes:
    return kafka.encode([(stamp, None, bytes(value_bytes))] * records)


def names_of_kafka(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the log; Kafka has another name for segments of less than 1 MiB."""
    named = {name.replace("_", "."): value for name, value in settings.items() if not name.startswith("log_")}
    named["internal.segment.bytes"] = named.pop("segment.bytes")
    return named


def segments(directory: Path) -> dict[int, tuple[int, int, int]]:
    """The sizes of the segments' files, by the base offset. Kafka makes index files when it first needs them."""
    found = {}
    for path in sorted(directory.glob("*.log")):
        files = [path.with_suffix(kind) for kind in (".log", ".index", ".timeindex")]
        size, offsets, times = (file.stat().st_size if file.exists() else 0 for file in files)
        found[int(path.stem)] = size, offsets, times
    return found


def until(made: Drawn) -> Iterator[Stretch]:
    """The stretches of the load that begin before the end."""
    for stretch in stretches(made.load, START_MS):
        yield stretch
        if stretch.first_at(made.end_ms + 1) < stretch.end:
            break


class Seen(NamedTuple):
    sealed: dict[int, tuple[int, int, int]]
    deleted: dict[int, int]
    last: int


def live(log: KafkaLog, kafka: Kafka, made: Drawn) -> Seen:
    """Append the load to Kafka's log and run its retention at each check; return what was seen."""
    events = [(ms, 1, 0) for ms in range(START_MS + 30_000, made.end_ms + 1, made.every_ms)]
    for stretch in until(made):
        last = min(stretch.end, stretch.first_at(made.end_ms + 1))
        events += [(stretch.time(number), 0, stretch.stamp(number)) for number in range(stretch.first, last)]
    sealed: dict[int, tuple[int, int, int]] = {}
    deleted: dict[int, int] = {}
    for ms, is_check, stamp in sorted(events):
        if not is_check:
            data = encoded(kafka, stamp, made.load.batch_records, made.value_bytes)
            log.append_as_leader(data, now=ms)
            continue
        before = segments(log.directory)
        log.call("retain", now=ms)
        after = segments(log.directory)
        sealed |= dict(sorted(before.items())[:-1])
        deleted |= dict.fromkeys(before.keys() - after.keys(), ms)
    left = segments(log.directory)
    sealed |= dict(sorted(left.items())[:-1])
    return Seen(sealed, deleted, max(left))


def test_kafkas_log_rolls_and_deletes_as_a_plan_foretells(
    kafka: Kafka, root: Path, rng: random.Random, record_property: Any
) -> None:
    seen: Counter[str] = Counter()
    for number in range(RUNS):
        made = drawn(kafka, rng)
        plan = simulated(list(until(made)), made.end_ms, made.settings, start_ms=START_MS)
        log = kafka.open(root / f"events-{number}", config=names_of_kafka(made.settings))
        lived = live(log, kafka, made)
        log.crash()
        told = foretold(plan)
        assert {each.base_offset: each.deleted_ms for each in told if each.deleted_ms >= 0} == lived.deleted, made
        assert max(each.base_offset for each in told) == lived.last, made
        for each in told:
            if each.base_offset in lived.sealed:
                sizes = each.size_bytes, 8 * each.offset_entries, 12 * each.time_entries
                assert sizes == lived.sealed[each.base_offset], made
        seen += plan.rolls
        seen["deleted"] += len(lived.deleted)
    for name, count in seen.items():
        record_property(name, count)
    assert {"size", "time", "time_index_full", "retention", "deleted"} <= seen.keys()
