"""Cases of Kafka's LogCleanerTest about keys, sizes and borders; those about transactions stand beside.

Each test cites the case that it rebuilds (SEMANTICS 7). Where Kafka's tests give the cleaner a made-up offset map, the
newer records are written here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kstore
from kstore.base.numbers import INT_MAX
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords
from kstore.log.compaction.dirtiness import survey
from kstore.log.compaction.passes import compact
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cleaner_cases import (
    RETENTION_MS,
    Producer,
    batches,
    clean_from,
    clean_twice,
    kept,
    keys,
    last_offsets,
    put,
)
from tests.support.cleaning import LIMITS, Aborting, Once, open_log

pytestmark = pytest.mark.usefixtures("no_syncs")

SUPERSEDED = (1, 3, 5, 7, 9)
LARGE = 1 << 20


def opened(root: Path, clock: ManualClock, **settings: int | str) -> kstore.Log:
    settings = {"internal_segment_bytes": 1024, "delete_retention_ms": RETENTION_MS, **settings}
    return open_log(root, clock, **settings)


def put_unique(log: kstore.Log, segments: int) -> None:
    """Append records, each with its offset as the key, until the log has so many segments."""
    while len(log.segments) < segments:
        put(log, log.log_end_offset)


def closed_bytes(log: kstore.Log) -> int:
    return sum(segment.size_bytes for segment in log.segments[:-1])


def keyed(*base_offsets: int) -> bytes:
    """Batches of one record as a leader stored them, each with its offset as the key."""
    return b"".join(
        kstore.encode_batch([(b"%d" % base, b"value", -1, None)], base_offset=base, partition_leader_epoch=0)
        for base in base_offsets
    )


# Which records go


def test_the_keys_with_newer_records_go_and_all_else_stays(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleanSegments"""
    with opened(root, clock) as log:
        put_unique(log, 4)
        for key in SUPERSEDED:
            put(log, key)
        log.roll()
        before, size = kept(log), closed_bytes(log)
        assert clean_from(log, 0).bytes_before == size
        assert kept(log) == [offset for offset in before if offset not in SUPERSEDED]


def test_keys_that_were_deleted_have_no_value_left(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleaningWithDeletes"""
    with opened(root, clock) as log:
        put_unique(log, 2)
        even = range(0, log.log_end_offset, 2)
        for key in even:
            put(log, key, None)
        put_unique(log, 5)
        clean_from(log, 0)
        with_values = {int(bytes(record.key or b"")) for record in log.read(0) if record.value is not None}
        assert with_values
        assert not with_values & set(even)


def test_a_round_counts_what_it_reads_and_what_it_writes(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testLogCleanerStats: two keys are not more than the map has room for."""
    with opened(root, clock) as log:
        for key in (0, 1, 0, 1, 0):
            put(log, key)
        log.roll()
        size = closed_bytes(log)
        stats = clean_from(log, 2, LIMITS._replace(map_keys=3))
        assert (stats.first_dirty_offset, stats.map_full) == (5, False)
        assert (stats.records_before, stats.records_after, stats.keyless_dropped) == (5, 2, 0)
        assert (stats.bytes_before, stats.bytes_after) == (size, closed_bytes(log))
        assert stats.seconds >= 0


def test_a_map_of_one_key_cleans_one_record_with_each_round(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testPartialSegmentClean"""
    with opened(root, clock) as log:
        for key in (0, 1, 0, 1, 0):
            put(log, key)
        log.roll()
        for line, left in ((2, [1, 2, 3, 4]), (3, [2, 3, 4]), (4, [3, 4])):
            clean_from(log, line, LIMITS._replace(map_keys=1))
            assert kept(log) == left
            assert keys(log) == [offset % 2 for offset in left]


def test_records_without_keys_go_and_are_counted(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleaningWithUnkeyedMessages"""
    with opened(root, clock, cleanup_policy="delete") as log:
        while len(log.segments) < 2:
            log.append(b"value")
        unkeyed = log.log_end_offset
        size = sum(segment.size_bytes for segment in log.segments)
        put_unique(log, 3)
        log.update_config(cleanup_policy="compact")
        expected = sum(segment.size_bytes for segment in log.segments) - size
        assert clean_from(log, 0).keyless_dropped == unkeyed
        assert kept(log) == list(range(unkeyed, log.log_end_offset))
        assert sum(segment.size_bytes for segment in log.segments) == expected


def test_each_producers_last_batch_stays_though_it_is_empty(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testLogCleanerRetainsProducerLastSequence"""
    with opened(root, clock) as log:
        first, second, third = (Producer(log, number, transactional=False) for number in (1, 2, 3))
        put(log, 0)
        first.send(0)
        second.send(0)
        third.send(0)
        second.send(1)
        log.roll()
        clean_from(log, 0)
        assert last_offsets(log) == [1, 3, 4]
        assert {batch.producer_id: batch.base_sequence for batch in batches(log)} == {1: 0, 2: 1, 3: 0}
        assert keys(log) == [0, 1]
        assert kept(log) == [3, 4]


def test_the_last_batch_of_a_round_stays_though_it_is_empty(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleanSegmentsRetainingLastEmptyBatch: three segments of tombstones that are due."""
    with opened(root, clock) as log:
        while len(log.segments) < 4:
            put(log, log.log_end_offset, None)
        log.update_config(internal_segment_bytes=100_000)
        clean_twice(log, clock)
        assert len(log.segments) == 2
        left = [batch for batch in batches(log) if batch.base_offset < log.segments[1].base_offset]
        assert [(batch.last_offset, len(list(batch))) for batch in left] == [(log.segments[1].base_offset - 1, 0)]


def test_a_tombstone_stays_by_when_it_was_cleaned_and_not_by_its_timestamp(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleanTombstone"""
    with opened(root, clock) as log:
        log.append(b"0", key=b"0", timestamp=clock.now + RETENTION_MS + 10_000)
        log.roll()
        clean_from(log, 0)
        log.append(None, key=b"0", timestamp=clock.now - RETENTION_MS - 10_000)
        log.roll()
        clean_from(log, 1)
        assert last_offsets(log) == [1]
        log.append(b"1", key=b"1", timestamp=clock.now)
        log.roll()
        clean_from(log, 2)
        assert last_offsets(log) == [1, 2]


# Large batches, and damage


@pytest.mark.parametrize("max_message_bytes", [LARGE * 2, LARGE // 2])
def test_the_buffer_grows_to_the_batch_that_is_there(root: Path, clock: ManualClock, max_message_bytes: int) -> None:
    """LogCleanerTest.testLargeMessage, LogCleanerTest.testMessageLargerThanMaxMessageSize"""
    limits = LIMITS._replace(io_buffer_bytes=1024, max_io_buffer_bytes=1024)
    with large(root, clock) as log:
        log.update_config(max_message_bytes=max_message_bytes)
        clean_from(log, 0, limits)
        assert kept(log) == [offset for offset in range(15) if offset not in SUPERSEDED]


def test_a_large_batch_with_a_damaged_header_is_corruption(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testMessageLargerThanMaxMessageSizeWithCorruptHeader: the magic byte."""
    with large(root, clock) as log:
        log.update_config(max_message_bytes=LARGE // 2)
        path = Path(log.segments[0].path)
        with path.open("r+b") as file:
            file.seek(16)
            file.write(b"\xff")
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair") as raised:
            clean_from(log, 0)
        assert (raised.value.path, raised.value.position) == (str(path), 0)


def test_a_batch_that_is_larger_than_its_file_is_corruption(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCorruptMessageSizeLargerThanBytesAvailable"""
    with large(root, clock) as log:
        log.update_config(max_message_bytes=LARGE // 2)
        path = Path(log.segments[0].path)
        os.truncate(path, 1024)
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair") as raised:
            clean_from(log, 0)
        assert raised.value.path == str(path)


def large(root: Path, clock: ManualClock) -> kstore.Log:
    """A log of records of 1 MiB, of which those at odd offsets below 10 are superseded by small ones."""
    log = opened(root, clock, internal_segment_bytes=16 * LARGE, max_message_bytes=2 * LARGE)
    for key in range(10):
        put(log, key, bytes(LARGE))
    for key in SUPERSEDED:
        put(log, key)
    log.roll()
    return log


# Segments and offsets


def test_a_deletion_beside_a_round_waits_for_its_end_and_each_file_is_renamed_once(
    root: Path, partition: Path, clock: ManualClock
) -> None:
    """LogCleanerTest.testCleanSegmentsWithConcurrentSegmentDeletion. There the deletion comes between the passes and
    the swap, which brokers keep from happening: as here it aborts the round and waits for that (SEMANTICS 7.8). So all
    that is deleted is gone, and no cleaned segment comes back."""
    with opened(root, clock, cleanup_policy="compact,delete") as log:
        for _ in range(2):
            put(log, 0)
            log.roll()
        put(log, 0)

        def delete() -> list[str]:
            log.delete_records(2)
            return [segment.path for segment in log.apply_retention()]

        aborting = Aborting(log, delete)
        assert log.compact(progress=Once(aborting, 1)).first_dirty_offset == 2
        assert aborting.finish()
        assert sorted(path.name for path in partition.glob("*.log*")) == [
            "00000000000000000000.log.deleted",
            "00000000000000000001.log.deleted",
            "00000000000000000002.log",
        ]
        assert [segment.base_offset for segment in log.segments] == [2]


def test_what_lies_behind_the_first_uncleanable_offset_stays(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleaningWithUncleanableSection"""
    with opened(root, clock) as log:
        while len(log.segments) < 7:
            put(log, log.log_end_offset % 5)
        before, bases = kept(log), [segment.base_offset for segment in log.segments]
        writer = HostedLog(log).writer
        dirtiness = survey(writer, log.config, clock.now, None, lag=False)
        compact(writer, dirtiness._replace(first_uncleanable_offset=bases[2]), LIMITS)
        after = kept(log)
        assert [offset for offset in after if offset >= bases[2]] == [offset for offset in before if offset >= bases[2]]
        assert [offset for offset in after if offset < bases[2]] == list(range(bases[2] - 5, bases[2]))


def test_the_bytes_of_a_log_are_those_of_its_closed_segments(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testLogToClean"""
    with opened(root, clock, internal_segment_bytes=100) as log:
        for _ in range(6):
            put(log, 1, bytes(25))
        assert len(log.segments) == 6
        for line in (0, 3, log.segments[-1].base_offset):
            dirtiness = survey(HostedLog(log).writer, log.config, clock.now, line, lag=False)
            assert dirtiness.clean_bytes + dirtiness.cleanable_bytes == closed_bytes(log)
        assert dirtiness.clean_bytes == closed_bytes(log)


def test_segments_that_lie_far_apart_are_cleaned_alone_until_they_are_empty(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testSegmentGroupingWithSparseOffsetsAndEmptySegments"""
    with opened(root, clock, internal_segment_bytes=LARGE) as log:
        for number in range(1, 4):
            put(log, 0)
            last = number * (INT_MAX + 1) - 1
            log.append_as_follower(
                kstore.encode_batch([(b"0", b"value", -1, None)], base_offset=last, partition_leader_epoch=0)
            )
            assert len(log.segments) == number
        put(log, 0)
        assert len(log.segments) == 4
        assert clean_from(log, 0).segments_after == 3
        assert [segment.size_bytes > 0 for segment in log.segments] == [False, False, True, True]
        assert clean_from(log, 0).segments_after == 2
        assert len(log.segments) == 3


def test_the_map_has_the_keys_of_the_scanned_segments_and_no_other(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testBuildOffsetMap"""
    with opened(root, clock) as log:
        for key in range(500):
            put(log, key)
        segments = log.segments
        borders = [*(segment.base_offset for segment in segments), 500]
        for first, last in ((0, 1), (1, 3), (3, len(segments))):
            start, end = borders[first], borders[last]
            newest = NewestRecords(1000, start)
            for number in range(first, last):
                path = segments[number].path
                data = Path(path).read_bytes()
                assert newest.add(data, CleanedTransactions(), path=path, position=0) == len(data)
                newest.end_segment(borders[number + 1])
            assert (newest.latest_offset + 1, newest.keys, newest.records) == (end, end - start, end - start)
            assert [key for key in range(-1, 501) if newest.has(b"%d" % key)] == list(range(start, end))


@pytest.mark.parametrize("parts", [[(0, 10), (11, 12)], [(0, 10), (15, 25), (30, 31)]])
def test_a_round_goes_on_behind_offsets_that_are_missing_at_a_segments_end(
    root: Path, clock: ManualClock, parts: list[tuple[int, int]]
) -> None:
    """LogCleanerTest.testCleaningBeyondMissingOffsets"""
    with opened(root, clock) as log:
        for first, last in parts:
            log.update_config(internal_segment_bytes=100)
            log.append_as_follower(keyed(first))
            log.update_config(internal_segment_bytes=LARGE)
            log.append_as_follower(keyed(*range(first + 1, last)))
        assert [segment.base_offset for segment in log.segments] == [first for first, _ in parts]
        assert clean_from(log, 0).first_dirty_offset == log.segments[-1].base_offset == parts[-1][0]
