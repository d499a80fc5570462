"""Where a record lies: the steps of a lookup have the entries that are in the files, and lead to the record."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.explained.explanation import ExplainedRecord, LookupStep
from tests.conftest import ManualClock, examples
from tests.log.segments.test_retention_story import canary

pytestmark = pytest.mark.usefixtures("no_syncs")

SECOND, MINUTE = 1000, 60_000
NOW = 1_700_000_000_000


@pytest.fixture
def canaries(partition: Path) -> Path:
    """The log of SEMANTICS 3.16, 250 records: index entries at 28, 56 and 84, segments at 0, 109 and 218."""
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=16384) as log:
        for offset in range(250):
            log.append(canary(offset), timestamp=NOW + offset * SECOND)
    return partition


def record(path: Path, **how: Any) -> ExplainedRecord:
    with kstore.Log.open(path, mode="r") as log:
        found = log.explain(**how).record
        assert found is not None
        return found


def steps(found: ExplainedRecord) -> list[tuple[str, tuple[int, int] | None, tuple[int, int] | None, int]]:
    return [(step.what, step.found, step.following, step.bytes_read) for step in found.steps]


def test_a_lookup_by_offset_scans_from_the_entry_before(canaries: Path) -> None:
    found = record(canaries, offset=60)
    assert steps(found) == [
        ("segment", (0, 108), None, 0),
        ("offset_index", (56, 8364), (84, 12564), 0),
        ("scan", (8364, 8964), None, 600),
        ("batch", (8964, 9114), None, 150),
    ]
    assert [Path(step.path).name for step in found.steps] == [
        "events-0", f"{0:020d}.index", f"{0:020d}.log", f"{0:020d}.log",
    ]  # fmt: skip
    assert (found.offset, found.timestamp) == (60, NOW + 60 * SECOND)
    assert (found.batch_position, found.batch_bytes, found.batch_offsets) == (8964, 150, (60, 60))
    assert (found.segment_base_offset, found.bytes_scanned, found.compression) == (0, 600, "none")


@pytest.mark.parametrize(
    ("offset", "entry", "following", "scanned"),
    [
        (0, None, (28, 4169), 0),
        (27, None, (28, 4169), 4020),
        (28, (28, 4169), (56, 8364), 0),
        (29, (28, 4169), (56, 8364), 149),
        (108, (84, 12564), None, 3600),
        (109, None, (137, 4200), 0),
        (249, (246, 4200), None, 450),
    ],
)
def test_each_entry_leads_up_to_the_next(
    canaries: Path, offset: int, entry: tuple[int, int] | None, following: tuple[int, int] | None, scanned: int
) -> None:
    found = record(canaries, offset=offset)
    step = found.steps[1]
    assert (step.what, step.found, step.following, found.bytes_scanned) == ("offset_index", entry, following, scanned)


def test_a_lookup_by_time_goes_through_the_time_index(canaries: Path) -> None:
    found = record(canaries, timestamp=NOW + 170 * SECOND - 500)
    assert found.offset == 170
    assert steps(found) == [
        ("segment", (109, 217), None, 0),
        ("time_index", (NOW + 165 * SECOND, 165), (NOW + 193 * SECOND, 193), 0),
        ("offset_index", (165, 8400), (193, 12600), 0),
        ("scan", (8400, 9150), None, 750),
        ("batch", (9150, 9300), None, 150),
    ]
    assert found.steps[0].explanation == (
        "segment 109: its greatest timestamp, 2023-11-14T22:16:57.000Z, is the first at or after "
        "2023-11-14T22:16:09.500Z"
    )
    assert found.steps[1].explanation == (
        "the last entry at or before 2023-11-14T22:16:09.500Z is 2023-11-14T22:16:05.000Z, offset 165"
    )


def test_an_entry_of_the_very_time_is_taken(canaries: Path) -> None:
    found = record(canaries, timestamp=NOW + 165 * SECOND)
    assert (found.offset, found.bytes_scanned) == (165, 0)
    assert found.steps[1].found == (NOW + 165 * SECOND, 165)
    before = record(canaries, timestamp=NOW + 165 * SECOND - 1)
    assert (before.offset, before.steps[1].found) == (165, (NOW + 137 * SECOND, 137))


def test_a_time_before_the_first_entry_begins_with_the_segment(canaries: Path) -> None:
    found = record(canaries, timestamp=0)
    assert (found.offset, found.steps[1].found, found.steps[1].following) == (0, None, (NOW + 28 * SECOND, 28))
    assert found.steps[1].explanation == (
        "no entry is at or before 1970-01-01T00:00:00.000Z, so the search begins with the segment"
    )


def test_a_time_after_everything_has_no_record(canaries: Path) -> None:
    with kstore.Log.open(canaries, mode="r") as log:
        assert log.explain(timestamp=NOW + 249 * SECOND).record is not None
        assert log.explain(timestamp=NOW + 249 * SECOND + 1).record is None


@pytest.mark.parametrize("offset", [-1, 4, 250, 2**62])
def test_an_offset_outside_of_the_log_is_refused(canaries: Path, offset: int) -> None:
    with kstore.Log.open(canaries) as log:
        log.delete_records(5)
        with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
            log.explain(offset=offset)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (5, 250)
        assert log.explain(offset=5).record is not None


def test_offset_and_timestamp_exclude_each_other(canaries: Path) -> None:
    with kstore.Log.open(canaries, mode="r") as log, pytest.raises(ValueError, match="exclude each other"):
        log.explain(offset=1, timestamp=1)


def test_a_record_in_a_batch_of_many_is_named_with_its_codec(partition: Path) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW)) as log:
        log.append_many([b"v%d" % number for number in range(50)], compression="zstd")
        found = log.explain(offset=30).record
        assert found is not None
        assert (found.batch_offsets, found.compression, found.batch_position) == ((0, 49), "zstd", 0)
        assert found.batch_bytes == log.segments[0].size_bytes


def test_a_removed_record_is_told_from_a_gap(partition: Path) -> None:
    settings: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 1 << 20}
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        log.append_many([(b"k%d" % (number % 5), b"v") for number in range(10)])
        log.append_many([(b"k0", b"v"), (b"k1", b"v"), (b"k2", None)])
        log.append_many([(b"k0", b"v"), (b"k1", b"v")])
        log.compact(roll=True)
        assert [each.offset for each in log.read()] == [8, 9, 12, 13, 14]
        removed, tombstone, newest = (log.explain(offset=offset).record for offset in (7, 12, 14))
        assert removed is not None
        assert (removed.timestamp, removed.batch_offsets) == (None, (0, 9))
        assert removed.future[0] == "A cleaning has removed the record; its batch keeps the offset."
        assert tombstone is not None
        assert (tombstone.is_tombstone, tombstone.key) == (True, "k2")
        assert tombstone.tombstone_ms == NOW + log.config.delete_retention_ms
        assert tombstone.future[-1] == "It is a tombstone: a cleaning drops it from 2023-11-15T22:13:20.000Z on."
        assert newest is not None
        assert (newest.superseded_by, newest.searched_offset) == (None, 15)
        assert newest.future[-1] == (
            "No newer record of its key is below offset 15: compaction keeps it until there is one."
        )


def test_an_offset_in_a_gap_has_no_record(partition: Path) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW)) as log:
        for offset in (0, 10):
            data = kstore.encode_batch([(None, b"v", NOW, None)], base_offset=offset, partition_leader_epoch=0)
            log.append_as_follower(data)
        assert log.explain(offset=5).record is None
        assert log.explain(offset=10).record is not None


def test_a_marker_is_told_as_one(partition: Path) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW)) as log:
        log.append_many([b"v"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        log.append_marker(7, 0, commit=True)
        found = log.explain(offset=1).record
        assert found is not None
        assert found.future[0] == "It is the marker that ends a transaction."


def test_a_damaged_batch_is_refused_by_name(canaries: Path) -> None:
    path = canaries / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.write_bytes(data)
    with kstore.Log.open(canaries, mode="r") as log:
        assert log.explain(offset=59).record is not None
        with pytest.raises(kstore.CorruptRecordError) as caught:
            log.explain(offset=60)
        assert (caught.value.path, caught.value.position) == (str(path), 8964)


def test_an_entry_that_the_log_contradicts_is_not_followed(canaries: Path) -> None:
    path = canaries / f"{0:020d}.index"
    data = bytearray(path.read_bytes())
    data[12:16] = (8300).to_bytes(4)
    path.write_bytes(data)
    found = record(canaries, offset=60)
    step = found.steps[1]
    assert (step.found, found.steps[2].found) == ((56, 8300), (4169, 8964))
    assert step.explanation == (
        "the log contradicts the last entry at or below offset 60, so it is read from position 4169"
    )


@examples(0.3)
@given(
    skews=st.lists(st.integers(-50, 50), min_size=1, max_size=60),
    interval=st.sampled_from([0, 100, 300]),
    segment_bytes=st.sampled_from([400, 1000, 1 << 20]),
    data=st.data(),
)
def test_every_walk_ends_at_the_record_and_takes_the_entries_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, skews: list[int], interval: int, segment_bytes: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("walk") / "events-0"
    settings: dict[str, Any] = {"index_interval_bytes": interval, "segment_bytes": segment_bytes}
    with kstore.Log.open(path, clock=ManualClock(NOW), **settings) as log:
        for number, skew in enumerate(skews):
            log.append(b"v" * 20, timestamp=NOW + 10 * number + skew)
    with kstore.Log.open(path, mode="r") as log:
        timestamp = NOW + data.draw(st.integers(-60, 10 * len(skews) + 60))
        expected = log.offset_for_timestamp(timestamp)
        by_time = log.explain(timestamp=timestamp).record
        assert (None if by_time is None else by_time.offset) == (None if expected is None else expected.offset)
        by_offset = log.explain(offset=data.draw(st.integers(0, len(skews) - 1))).record
        assert by_offset is not None
        for found in (by_time, by_offset):
            if found is not None:
                follow(path, found)
                assert next(log.read(found.offset)).timestamp == found.timestamp


def follow(path: Path, found: ExplainedRecord) -> None:
    """Check each step with the index files."""
    by_what: dict[str, LookupStep] = {step.what: step for step in found.steps}
    base = found.segment_base_offset
    offsets = [(base + relative, at) for relative, at in unpacked(">ii", path / f"{base:020d}.index")]
    target = found.offset
    if (by_time := by_what.get("time_index")) is not None:
        times = [(when, base + relative) for when, relative in unpacked(">qi", path / f"{base:020d}.timeindex")]
        neighbours(times, by_time)
        target = base if by_time.found is None else by_time.found[1]
    taken = by_what["offset_index"]
    neighbours(offsets, taken)
    if taken.found is not None:
        assert taken.found[0] <= target
    if taken.following is not None:
        assert taken.following[0] > target
    start, end = by_what["scan"].found or (0, 0)
    assert (start, end) == (0 if taken.found is None else taken.found[1], found.batch_position)
    assert found.bytes_scanned == by_what["scan"].bytes_read == end - start


def unpacked(entry: str, path: Path) -> list[tuple[int, int]]:
    return [(first, second) for first, second in struct.iter_unpack(entry, path.read_bytes())]


def neighbours(entries: list[tuple[int, int]], step: LookupStep) -> None:
    """The two entries of a step follow one another in the file."""
    at = -1 if step.found is None else entries.index(step.found)
    assert step.following == (entries[at + 1] if at + 1 < len(entries) else None)
