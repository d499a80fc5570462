"""Kafka opens what a power cut leaves of a swap by kstore: any subset of the renames that no sync has covered."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest
from conftest import ManualClock
from kafka_jvm import Kafka
from swaps import check_subsets, swap_one_group

from kstore.disk import fs

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("segments", [1, 2])
def test_kafka_opens_every_subset_of_renames_that_no_sync_covers_without_a_loss(
    kafka: Kafka,
    root: Path,
    tmp_path: Path,
    clock: ManualClock,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    segments: int,
) -> None:
    """SEMANTICS 7.26, 8.4 to 8.7; the row `synced-swap`."""
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    disk, since, expected, end = swap_one_group(root, clock, segments=segments, transactions=False)

    def look(image: Path) -> None:
        log = kafka.open(image / "events-0", clean=False, config={"cleanup.policy": "compact"})
        assert log.marks()["log_end_offset"] == end
        log.close()
        rows: dict[bytes, bytes | None] = {}
        offsets = []
        for line in kafka.records(image / "events-0"):
            assert line["valid"]
            rows[base64.b64decode(line["key"])] = line["value"] and base64.b64decode(line["value"])
            offsets.append(line["offset"])
        assert offsets == sorted(set(offsets))
        assert {key: value for key, value in rows.items() if value is not None} == expected

    assert check_subsets(disk, since, tmp_path / "images", rng, look) > 60
