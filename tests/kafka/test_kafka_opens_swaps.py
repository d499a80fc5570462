"""Kafka opens what a power cut leaves of a swap by kstore: any subset of the renames that no sync has covered."""

from __future__ import annotations

import base64
import random
import shutil
from pathlib import Path

import pytest

import kstore
from kstore.disk import fs
from tests.conftest import ManualClock
from tests.kafka.kafka_jvm import Kafka
from tests.support.swaps import check_subsets, swap_one_group

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


@pytest.mark.parametrize("marked_clean", [True, False])
@pytest.mark.parametrize("kinds", [("log",), ("log", "timeindex"), ("log", "index", "timeindex")])
@pytest.mark.parametrize("group", [(20,), (10, 20)])
def test_both_keep_the_same_snapshots_when_they_finish_a_swap(
    kafka: Kafka,
    root: Path,
    tmp_path: Path,
    clock: ManualClock,
    group: tuple[int, ...],
    kinds: tuple[str, ...],
    marked_clean: bool,
) -> None:
    """SEMANTICS 8.5 to 8.8; the row `swap-without-index`."""
    with kstore.Log.open(root / "events-0", clock=clock, cleanup_policy="compact") as log:
        for number in range(5):
            rows = [(b"%d" % row, b"value") for row in range(10)]
            log.append_many(rows, producer_id=5, producer_epoch=0, base_sequence=10 * number)
            if number < 4:
                log.roll()
        log.flush()
        for path in (log_path := Path(log.path)).glob(f"{group[0]:020d}.*"):
            if path.suffix.removeprefix(".") in kinds:
                shutil.copy(path, f"{path}.swap")
        logs = [(log_path / f"{base:020d}.log").read_bytes() for base in group]
        (log_path / f"{group[0]:020d}.log.swap").write_bytes(b"".join(logs))
        images = [Path(shutil.copytree(root, tmp_path / name)) for name in ("ours", "theirs")]
    if marked_clean:
        (images[0] / ".kafka_cleanshutdown").write_text("")
    kstore.Log.open(images[0] / "events-0", clock=clock, cleanup_policy="compact").close()
    kafka.open(images[1] / "events-0", clean=marked_clean, config={"cleanup.policy": "compact"}).close()
    ours, theirs = (sorted(path.name for path in image.rglob("*.snapshot")) for image in images)
    assert ours == theirs
    sizes = [(image / "events-0" / f"{group[0]:020d}.index").stat().st_size for image in images]
    assert [size > 1 << 20 for size in sizes] == [False, "index" not in kinds]
