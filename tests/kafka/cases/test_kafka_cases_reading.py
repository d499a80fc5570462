"""Cases of Kafka's own suites about reading an open log: by offset, in gaps, up to the end; and by timestamp.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case (SEMANTICS 4, 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import kstore
from kstore.log.segments import time_search
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import batch, fetched, offsets
from tests.kafka.cases.kafka_cases import log40 as log40

pytestmark = pytest.mark.usefixtures("no_syncs")


def test_reading_an_empty_segment_gives_nothing(log40: kstore.Log) -> None:
    """LogSegmentTest.testReadOnEmptySegment."""
    assert fetched(log40, 40, 300) == []
    assert log40.segments[0].first_timestamp == -1


def test_a_read_begins_at_the_next_record_there_is(log40: kstore.Log) -> None:
    """LogSegmentTest.testReadBeforeFirstOffset, LogSegmentTest.testReadAfterLast."""
    log40.append_as_follower(batch(50, b"hello", b"there", b"little", b"bee"))
    assert fetched(log40, 41, 300) == offsets(log40.read(41)) == [50, 51, 52, 53]
    assert log40.fetch(41, 300).offset == 50
    assert fetched(log40, 54, 200) == offsets(log40.read(54)) == []


def test_every_offset_is_read_with_the_batch_that_holds_it(partition: Path) -> None:
    """UnifiedLogTest.testFetchUpToLogEndOffset."""
    with kstore.Log.open(partition) as log:
        log.append_many([b"0", b"1", b"2"])
        log.append_many([b"3", b"4"])
        found = [log.fetch(offset, 1) for offset in range(5)]
        assert [result.offset for result in found] == [0, 0, 0, 3, 3]
        first_batches = [offsets(next(iter(kstore.decode_batches(result.records)))) for result in found]
        assert first_batches == [[0, 1, 2]] * 3 + [[3, 4]] * 2


@pytest.mark.parametrize(
    ("start", "end", "segments"),
    [(10, 10, []), (15, 15, []), (0, 21, [0, 10, 20]), (1, 5, [0]), (13, 21, [10, 20]), (13, 17, [10]), (10, 0, [])],
)
def test_a_range_of_offsets_takes_in_the_segments_that_hold_them(
    partition: Path, start: int, end: int, segments: list[int]
) -> None:
    """UnifiedLogTest.testLogSegmentsCallCorrect; an end below the start is an empty range here."""
    with kstore.Log.open(partition, segment_bytes=10 * len(batch(0))) as log:
        for _ in range(22):
            log.append(b"test")
        found = log.batch_table(start, end_offset=end)["segment_base_offset"].tolist()
        assert sorted(set(found)) == segments


def test_records_in_segments_of_one_batch_are_read_one_by_one(partition: Path) -> None:
    """UnifiedLogTest.testAppendAndReadWithSequentialOffsets."""
    with kstore.Log.open(partition, segment_bytes=71) as log:
        for i in range(50):
            log.append(b"%d" % i)
        for i in range(50):
            [record] = kstore.decode_batches(log.fetch(i, 1).records).__next__()
            assert (record.offset, record.key, record.value) == (i, None, b"%d" % i)
        assert fetched(log, 50) == []


GAPPED = [*range(50), *range(50, 200, 7)]


@pytest.fixture
def gapped(partition: Path) -> kstore.Log:
    """Offsets 0 to 49, then every seventh, a batch to a segment."""
    log = kstore.Log.open(partition, segment_bytes=72)
    for offset in GAPPED:
        log.append_as_follower(batch(offset, b"%d" % (offset % 100)))
    return log


@pytest.mark.parametrize("max_bytes", [1, 100, 100_000])
def test_a_read_in_a_gap_begins_behind_it(gapped: kstore.Log, max_bytes: int) -> None:
    """UnifiedLogTest.testAppendAndReadWithNonSequentialOffsets, UnifiedLogTest.testReadWithMinMessage."""
    for offset in range(50, max(GAPPED)):
        expected = min(there for there in GAPPED if there >= offset)
        assert fetched(gapped, offset, max_bytes)[0] == expected
        assert next(gapped.read(offset)).offset == expected


def test_a_read_that_is_too_small_gives_nothing_or_a_part(gapped: kstore.Log) -> None:
    """UnifiedLogTest.testReadWithTooSmallMaxLength."""
    for offset in range(50, max(GAPPED)):
        for max_bytes in (0, 1):
            assert len(gapped.fetch(offset, max_bytes, min_one_message=False).records) == max_bytes


def test_a_read_goes_on_behind_an_exhausted_segment(partition: Path) -> None:
    """UnifiedLogTest.testReadAtLogGap."""
    with kstore.Log.open(partition, segment_bytes=300) as log:
        while len(log.segments) == 1:
            log.append(b"test")
        last = log.log_end_offset - 1
    data = (partition / "00000000000000000000.log").read_bytes()
    (partition / "00000000000000000000.log").write_bytes(data[: len(batch(0))])
    with kstore.Log.open(partition, mode="r") as log:
        assert fetched(log, 1, 200) == offsets(log.read(1)) == [last]


def test_offsets_below_the_start_and_beyond_the_end_are_out_of_range(partition: Path) -> None:
    """UnifiedLogTest.testReadOutOfRange."""
    with kstore.Log.open(partition) as log:
        log.truncate_fully_and_start_at(1024)
        log.append(b"x")
        assert fetched(log, 1025) == []
        for offset in (0, 1023, 1026):
            with pytest.raises(kstore.OffsetOutOfRangeError):
                log.fetch(offset, 1000)


def test_a_fetch_at_the_end_is_empty_and_says_where_the_end_is(partition: Path) -> None:
    """LocalLogTest.testWhenFetchOffsetHigherThanMaxOffset, as far as a log without followers has bounds;
    LogOffsetTest.testGetOffsetsBeforeLatestTime.
    """
    with kstore.Log.open(partition) as log:
        for i in range(5):
            log.append(b"x")
            if i % 2:
                log.roll()
        found = log.fetch(5, 1000)
        assert (len(found.records), found.offset, found.segment_base_offset, found.position) == (0, 5, 4, 69)
        found = log.fetch(3, 1000)
        assert (fetched(log, 3), found.segment_base_offset, found.position) == ([3], 2, 69)


def test_batches_of_many_producers_come_back_as_they_were(partition: Path) -> None:
    """UnifiedLogTest.testMultipleProducerIdsPerMemoryRecord,
    UnifiedLogTest.testMultipleProducersWithDuplicatesInSingleAppend.
    """

    def numbered(producers: Sequence[tuple[int, int]]) -> bytes:
        return b"".join(
            batch(i, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            for i, (producer_id, sequence) in enumerate(producers)
        )

    for name, producers in (
        ("a-0", [(1, 0), (2, 0), (3, 0), (4, 0)]),
        ("b-0", [(1, 0), (2, 0), (1, 1), (2, 1), (1, 1)]),
    ):
        with kstore.Log.open(partition.with_name(name)) as log:
            log.append_as_follower(numbered(producers))
            assert log.log_end_offset == len(producers)
            assert [(one.producer_id, one.base_sequence) for one in log.read_batches()] == producers


# By timestamp


def test_the_first_offset_at_or_after_a_time_is_found(partition: Path, clock: ManualClock) -> None:
    """LogSegmentTest.testFindOffsetByTimestamp."""
    size = len(batch(40, b"msg00", timestamp=400))
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=2 * size - 1) as log:
        log.truncate_fully_and_start_at(40)
        for offset in range(40, 50):
            log.append_as_follower(batch(offset, b"msg%02d" % offset, timestamp=10 * offset))
        assert log.segments[0].max_timestamp == 490
        for timestamp, offset in ((420, 42), (421, 43), (430, 43), (431, 44), (401, 41), (399, 40)):
            assert log.offset_for_timestamp(timestamp) == (10 * offset, offset)
        assert log.offset_for_timestamp(491) is None


def test_a_time_lookup_knows_the_epoch_of_the_batch(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testFetchOffsetByTimestampIncludesLeaderEpoch."""
    with kstore.Log.open(partition, clock=clock) as log:
        assert log.offset_for_timestamp(0) is None
        log.append(b"x", timestamp=clock.now, leader_epoch=0)
        log.append(b"y", timestamp=clock.now + 1, leader_epoch=1)
        [segment] = log._view.segments.items
        for i in (0, 1):
            assert log.offset_for_timestamp(clock.now + i) == (clock.now + i, i)
            found = time_search.find_timestamp(segment, clock.now + i, 0, log.segments[0].size_bytes, None)
            assert found == (clock.now + i, i, i)


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [([5, 6, 5], (6, 1)), ([0, 1, 2, 3, 4, 6, 5], (6, 5)), (list(range(20)), (19, 19)), ([], None), ([-1, -1], None)],
)
def test_the_largest_timestamp_is_found_wherever_it_is(
    partition: Path, stamps: list[int], expected: tuple[int, int] | None
) -> None:
    """UnifiedLogTest.testFetchOffsetByTimestampWithMaxTimestampIncludesTimestamp,
    LogOffsetTest.testFetchOffsetByTimestampForMaxTimestampWithUnorderedTimestamps,
    LogOffsetTest.testFetchOffsetByTimestampForMaxTimestampWithEmptyLog,
    LogOffsetTest.testFetchOffsetByTimestampForMaxTimestampAfterTruncate.
    """
    with kstore.Log.open(partition, segment_bytes=140) as log:
        for stamp in stamps:
            log.append(b"x", timestamp=stamp)
        assert log.max_timestamp() == expected
        log.truncate_to(0)
        assert (log.log_end_offset, log.max_timestamp()) == (0, None)


def test_earliest_and_latest_are_the_marks(partition: Path) -> None:
    """LogOffsetTest.testEmptyLogsGetOffsets, LogOffsetTest.testGetOffsetsBeforeEarliestTime,
    LogOffsetTest.testGetOffsetsAfterDeleteRecords, DeleteRecordsRequestTest.testDeleteRecordsHappyCase.
    """
    with kstore.Log.open(partition, segment_bytes=140) as log:
        assert {log.log_start_offset for _ in range(14)} == {0}
        for _ in range(20):
            log.append(b"x")
        assert (log.log_start_offset, log.high_watermark) == (0, 20)
        assert log.delete_records(3) == 3
        assert (log.log_start_offset, log.log_end_offset) == (3, 20)
