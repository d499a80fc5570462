"""The golden set `compaction`, cleaned by kstore: what Kafka's brokers have left, stage by stage.

`before` becomes `after`, byte for byte but for what a codec makes, with the times that the set's delete horizons tell.
Between the later stages records were appended of which a cleaning left little; there the batches of the earlier stage
are followed.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.golden import goldensets
from tests.golden.goldenlogs import Batch, Partition, copy_root, files, lines_of, split

SET = "compaction"
TOPICS = {"compact-short": 100, "compact-long": 86_400_000}
# By topic and stage: the earliest delete horizon that the brokers set on the way to it.
HORIZONS = {
    ("compact-short", "after"): 1795247232247,
    ("compact-short", "after-second"): 1795247241775,
    ("compact-short", "after-third"): 1795247252534,
    ("compact-long", "after"): 1795333632612,
    ("compact-long", "after-second"): 1795333641799,
    ("compact-long", "after-third"): 1795333652928,
}
HORIZON = 0x40


def of(stage: str, topic: str) -> Partition:
    return Partition(SET, f"{stage}/{topic}-0")


def opened(root: Path, topic: str, now_ms: int, **settings: Any) -> kstore.Log:
    config: dict[str, Any] = {
        "internal_segment_bytes": 4096,
        "segment_ms": 2**63 - 1,
        "index_interval_bytes": 1024,
        "max_message_bytes": 4_000_000,
        "cleanup_policy": "compact",
        "delete_retention_ms": TOPICS[topic],
        "file_delete_delay_ms": 0,
        "retention_ms": -1,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kstore.ConfigWarning)
        return kstore.Log.open(root / f"{topic}-0", clock=lambda: now_ms, **{**config, **settings})


def batches(directory: Path) -> dict[int, list[Batch]]:
    return {int(path.stem): split(path.read_bytes(), int(path.stem)) for path in sorted(directory.glob("*.log"))}


def as_kafka_sees(batch: Batch) -> Any:
    """The batch itself, or of one with a codec the header without length and checksum, and its records."""
    if not batch.attributes & 7:
        return batch.data
    (decoded,) = kstore.decode_batches(batch.data)
    return batch.data[:8] + batch.data[12:17] + batch.data[21:61], list(decoded)


def test_the_horizons_are_the_earliest_of_their_stage() -> None:
    assert {topic for topic, _ in HORIZONS} == set(goldensets.about(SET)["topics"])
    assert {topic: goldensets.about(SET)["topicConfig"]["delete.retention.ms"][topic] for topic in TOPICS} == TOPICS


@pytest.mark.parametrize("topic", TOPICS)
def test_what_a_broker_has_cleaned_is_cleaned_alike(tmp_path: Path, topic: str) -> None:
    """Segments, batches, delete horizons, indexes, transaction indexes, and the first-dirty line
    (SEMANTICS 7.7, 7.11 to 7.22)."""
    root = copy_root(of("before", topic), tmp_path)
    (tmp_path / "expected").mkdir()
    expected = copy_root(of("after", topic), tmp_path / "expected") / f"{topic}-0"
    now_ms = HORIZONS[topic, "after"] - TOPICS[topic]
    with opened(root, topic, now_ms) as log:
        log.compact()
    theirs, ours = batches(expected), batches(root / f"{topic}-0")
    assert theirs.keys() == ours.keys()
    for base, known in theirs.items():
        assert [as_kafka_sees(batch) for batch in ours[base]] == [as_kafka_sees(batch) for batch in known]
    plain = {base for base, known in theirs.items() if [b.data for b in known] == [b.data for b in ours[base]]}
    assert len(plain) >= len(theirs) - 4
    known_files, found_files = files(expected), files(root / f"{topic}-0")
    found_files = {name: data for name, data in found_files.items() if not name.endswith(".deleted")}
    for name, data in known_files.items():
        base, _, suffix = name.partition(".")
        is_index = suffix in ("log", "index", "timeindex") and int(base) in plain
        if is_index or suffix in ("txnindex", "timeindex"):
            assert found_files[name] == data, name
    assert {n for n in known_files if "index" in n} == {n for n in found_files if "index" in n}
    name = "cleaner-offset-checkpoint"
    assert lines_of(of("before", topic), root)[name] == lines_of(of("after", topic), expected.parent)[name]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(("stage", "following"), [("after", "after-second"), ("after-second", "after-third")])
def test_batches_of_the_next_stage_are_made_from_those_of_a_stage(
    tmp_path: Path, topic: str, stage: str, following: str
) -> None:
    """A broker began with a cleaning of all that had been cleaned: the markers whose data is gone get that horizon, to
    the byte, and nothing of the next stage below the first dirty offset is made otherwise (SEMANTICS 7.16 to 7.20)."""
    root = copy_root(of(stage, topic), tmp_path)
    end = lines_of(of(stage, topic), root)["cleaner-offset-checkpoint"]
    (root / "cleaner-offset-checkpoint").unlink()
    horizon = HORIZONS[topic, following]
    with opened(root, topic, horizon - TOPICS[topic]) as log:
        log.compact()
    made = {batch.base_offset: batch for each in batches(root / f"{topic}-0").values() for batch in each}
    (tmp_path / "expected").mkdir()
    next_stage = batches(copy_root(of(following, topic), tmp_path / "expected") / f"{topic}-0")
    stamped = 0
    for batch in (batch for each in next_stage.values() for batch in each if batch.last_offset < end):
        mine = made[batch.base_offset]
        own_horizon = int.from_bytes(batch.data[27:35]) if batch.attributes & HORIZON else -1
        if own_horizon == horizon and topic == "compact-long":
            assert mine.data == batch.data
            stamped += 1
        assert mine.last_offset == batch.last_offset
        assert (mine.producer_id, mine.leader_epoch) == (batch.producer_id, batch.leader_epoch)
    assert topic == "compact-short" or stamped > 0
    assert set(made) >= {b.base_offset for each in next_stage.values() for b in each if b.last_offset < end}


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("stage", ["after", "after-second", "after-third"])
def test_a_cleaned_stage_has_nothing_to_clean(tmp_path: Path, topic: str, stage: str) -> None:
    root = copy_root(of(stage, topic), tmp_path)
    before = batches(root / f"{topic}-0")
    with opened(root, topic, HORIZONS[topic, stage]) as log:
        assert log.compact().rounds == 0
    assert batches(root / f"{topic}-0") == before
