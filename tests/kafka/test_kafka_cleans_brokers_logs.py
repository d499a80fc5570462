"""Logs that Kafka's brokers have written, those of old formats among them, are cleaned alike by Kafka and kstore."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SEED
from tests.golden.goldenlogs import PARTITIONS, Partition, unpacked
from tests.kafka.kafka_history import History, Lives
from tests.kafka.kafka_jvm import Kafka
from tests.kafka.kafka_operations import (
    CLEANER_SETTINGS,
    AppendBatch,
    Compact,
    FetchCommitted,
    Operation,
    Read,
    ReadColumns,
    Reopen,
    Tick,
)
from tests.kafka.kafka_sides import PARTITION

pytestmark = pytest.mark.kafka

SETS = ("codecs", "compaction", "consumer-offsets", "idempotent", "legacy", "log-append-time", "transactions")
CLEANED = [each for each in PARTITIONS if each.set in SETS or each.set == "transactions-2.8"]


def fill(partition: Partition, root: Path) -> None:
    """The partition's files as those of the only partition, closed cleanly."""
    source = unpacked(partition) / partition.directory.rpartition("/")[2]
    shutil.copytree(source, root / PARTITION)
    (root / PARTITION / "partition.metadata").unlink(missing_ok=True)
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')


def drawn(rng: random.Random) -> History:
    """Rounds of cleaning, with appends, restarts and the clock between them."""
    config: dict[str, Any] = {
        "internal.segment.bytes": rng.choice((4096, 8192, 100_000)),
        "index.interval.bytes": rng.choice((4096, 1024, 200)),
        "delete.retention.ms": rng.choice(CLEANER_SETTINGS["delete.retention.ms"]),
        "cleanup.policy": "compact",
        "file.delete.delay.ms": 0,
    }
    operations: list[Operation] = []
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.6:
            operations += [AppendBatch(key=True, keys=3, count=3, size=rng.choice((20, 400)))] * rng.randint(1, 4)
        operations.append(
            Compact(rng.choice((5_000, 5_000, 3, 40)), rng.choice((65_536, 500)), roll=rng.random() < 0.8)
        )
        operations.append(rng.choice((Read(), ReadColumns(), FetchCommitted(), Tick(ms=1), Tick(ms=60_001), Reopen())))
    return History(config, tuple(operations))


@pytest.mark.parametrize("partition", CLEANED, ids=str)
def test_a_brokers_log_is_cleaned_alike(kafka: Kafka, partition: Partition) -> None:
    """All rounds, byte for byte; of formats 0 and 1 too, which become format 2 (SEMANTICS 7.20, 7.21a)."""
    lives = Lives(kafka, prepare=partial(fill, partition))
    rng = random.Random(f"{SEED} {partition}")
    for _ in range(2):
        report = lives.report(drawn(rng), 10)
        assert report is None, report
