"""Cases of Kafka's LogCleanerTest about transactions: aborted data, markers, and each producer's last batch.

Each test cites the case that it rebuilds (SEMANTICS 7.15 to 7.20). Where Kafka's test cleans at the end of time, the
clock goes on here until the delete horizons are due.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
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
from tests.kafka.cases.test_kafka_cases_producers import aborted
from tests.support.cleaning import LIMITS, open_log

pytestmark = pytest.mark.usefixtures("no_syncs")


def opened(root: Path, clock: ManualClock, segment_bytes: int) -> kstore.Log:
    return open_log(root, clock, internal_segment_bytes=segment_bytes, delete_retention_ms=RETENTION_MS)


def test_rounds_that_a_full_map_ends_keep_the_aborted_transactions(
    root: Path, partition: Path, clock: ManualClock
) -> None:
    """LogCleanerTest.testMultiPassSegmentCleaningWithAbortedTransactions: rounds that end at 4, 14 and 20."""
    limits = LIMITS._replace(map_keys=3)
    with opened(root, clock, 2048) as log:
        first, second = Producer(log, 1), Producer(log, 2)
        first.send(1, 2)
        second.send(2, 3)
        first.send(3, 4)
        first.commit()
        second.commit()
        first.send(2, 3)
        first.abort()
        second.send(4, 5)
        first.send(5, 6)
        first.commit()
        second.abort()
        second.send(6, 7)
        second.commit()
        log.roll()
        both = [(1, 8, 10, 11), (2, 11, 16, 17)]
        assert (log.log_end_offset, aborted(partition)) == (20, both)

        assert clean_from(log, 0, limits).first_dirty_offset == 4
        bases = [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
        assert [batch.base_offset for batch in batches(log)] == bases
        assert kept(log) == [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
        assert aborted(partition) == both

        assert clean_from(log, 4, limits).first_dirty_offset == 14
        assert [batch.base_offset for batch in batches(log)] == bases
        assert kept(log) == [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
        assert aborted(partition) == []

        clock.advance(RETENTION_MS + 1)
        assert clean_from(log, 14, limits).first_dirty_offset == 20
        assert kept(log) == [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19]
        assert aborted(partition) == []
        assert all(info.current_txn_first_offset == -1 for info in log.producer_states())


def test_aborted_data_goes_and_supersedes_nothing(root: Path, partition: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testBasicTransactionAwareCleaning"""
    with opened(root, clock, 2048) as log:
        first, second = Producer(log, 1), Producer(log, 2)
        first.send(1, 2)
        second.send(2, 3)
        first.send(3, 4)
        first.abort()
        second.commit()
        first.send(2)
        first.commit()
        before = aborted(partition)
        log.roll()
        clean_from(log, 0)
        assert keys(log) == [3, 2]
        assert kept(log) == [3, 6, 7, 8, 9]
        assert before == aborted(partition) == [(1, 0, 6, 2)]


def test_data_of_an_open_transaction_is_not_cleaned_before_its_end_is_known(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleanWithTransactionsSpanningSegments"""
    with opened(root, clock, 2048) as log:
        first, second, third = Producer(log, 1), Producer(log, 2), Producer(log, 3)
        first.send(1, 2)
        third.send(2, 3)
        second.send(3, 4)
        log.roll()
        second.send(5, 6)
        third.send(6, 7)
        first.send(7, 8)
        second.abort()
        third.send(8, 9)
        third.commit()
        first.send(9, 10)
        first.abort()
        line = clean_from(log, 0).first_dirty_offset
        assert keys(log) == [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]
        log.roll()
        second.send(11)
        first.send(12)
        second.commit()
        first.commit()
        clean_from(log, line)
        assert keys(log) == [2, 3, 6, 7, 8, 9, 11, 12]


def test_a_commit_marker_stays_a_retention_longer_than_its_data(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCommitMarkerRemoval"""
    with opened(root, clock, 256) as log:
        producer = Producer(log, 1)
        producer.send(1)
        producer.send(2, 3)
        producer.commit()
        producer.send(2)
        producer.commit()
        log.roll()
        line = clean_from(log, 0).first_dirty_offset
        assert keys(log) == [1, 3, 2]
        assert kept(log) == [0, 2, 3, 4, 5]
        producer.send(1, 3)
        producer.commit()
        log.roll()
        clean_from(log, line)
        assert keys(log) == [2, 1, 3]
        assert kept(log) == [3, 4, 5, 6, 7, 8]
        clean_from(log, 0)
        assert kept(log) == [3, 4, 5, 6, 7, 8]
        clock.advance(RETENTION_MS + 1)
        clean_from(log, 0)
        assert keys(log) == [2, 1, 3]
        assert kept(log) == [4, 5, 6, 7, 8]


def test_a_piece_of_which_nothing_stays_is_passed(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testDeletedBatchesWithNoMessagesRead: a buffer of 100 bytes holds one batch."""
    limits = LIMITS._replace(io_buffer_bytes=100, max_io_buffer_bytes=100)
    with opened(root, clock, 1000) as log:
        producer = Producer(log, 1)
        producer.send(1)
        producer.abort()
        producer.send(2)
        producer.send(2)
        producer.commit()
        log.roll()
        clean_from(log, 0, limits)
        assert keys(log) == [2]
        assert kept(log) == [1, 3, 4]
        clean_twice(log, clock, 0, limits)
        assert keys(log) == [2]
        assert kept(log) == [3, 4]


def test_a_commit_marker_stays_with_the_empty_batch_of_its_transaction(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCommitMarkerRetentionWithEmptyBatch"""
    with opened(root, clock, 256) as log:
        first, second = Producer(log, 1), Producer(log, 2)
        first.send(2, 3)
        log.roll()
        second.send(2, 3)
        second.commit()
        log.roll()
        put(log, 2)
        put(log, 3)
        first.commit()
        log.roll()
        for _ in range(2):
            line = clean_from(log, 0).first_dirty_offset
            assert keys(log) == [2, 3]
            assert kept(log) == [4, 5, 6, 7]
            assert last_offsets(log) == [1, 3, 4, 5, 6, 7]
        second.send(1)
        second.commit()
        log.roll()
        clean_from(log, line)
        assert keys(log) == [2, 3, 1]
        assert kept(log) == [4, 5, 6, 7, 8, 9]
        assert last_offsets(log) == [1, 4, 5, 6, 7, 8, 9]
        clean_twice(log, clock)
        assert keys(log) == [2, 3, 1]
        assert kept(log) == [5, 6, 7, 8, 9]
        assert last_offsets(log) == [1, 5, 6, 7, 8, 9]


def test_an_emptied_marker_keeps_its_producers_epoch_and_is_cleaned_again(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleanEmptyControlBatch"""
    with opened(root, clock, 256) as log:
        Producer(log, 1).commit()
        put(log, 2)
        put(log, 3)
        log.roll()
        clean_twice(log, clock)
        for _ in range(2):
            assert keys(log) == [2, 3]
            assert kept(log) == [1, 2]
            assert last_offsets(log) == [0, 1, 2]
            clock.advance(RETENTION_MS + 1)
            clean_from(log, 0)


def test_a_committed_transaction_over_two_segments_stays(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCommittedTransactionSpanningSegments"""
    with opened(root, clock, 128) as log:
        producer = Producer(log, 1)
        producer.send(1)
        log.roll()
        producer.commit()
        log.roll()
        clean_twice(log, clock)
        assert kept(log) == last_offsets(log) == [0, 1]


def test_an_aborted_transaction_over_two_segments_keeps_empty_batch_and_marker(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testAbortedTransactionSpanningSegments"""
    with opened(root, clock, 128) as log:
        producer = Producer(log, 1)
        producer.send(1)
        log.roll()
        producer.abort()
        log.roll()
        for _ in range(2):
            clean_from(log, 0)
            assert kept(log) == [1]
            assert last_offsets(log) == [0, 1]
            clock.advance(RETENTION_MS + 1)


def test_an_abort_marker_goes_a_retention_after_a_round_without_its_data(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testAbortMarkerRemoval"""
    with opened(root, clock, 256) as log:
        producer = Producer(log, 1)
        producer.send(1)
        producer.send(2, 3)
        producer.abort()
        producer.send(3)
        producer.commit()
        log.roll()
        clean_from(log, 0)
        assert keys(log) == [3]
        assert kept(log) == [3, 4, 5]
        clean_twice(log, clock)
        assert keys(log) == [3]
        assert kept(log) == [4, 5]


def test_an_abort_marker_and_its_index_entry_stay_with_the_empty_batch(
    root: Path, partition: Path, clock: ManualClock
) -> None:
    """LogCleanerTest.testAbortMarkerRetentionWithEmptyBatch"""
    with opened(root, clock, 256) as log:
        producer = Producer(log, 1)
        producer.send(2, 3)
        producer.abort()
        log.roll()
        entry = [(1, 0, 2, 3)]
        assert aborted(partition) == entry
        line = clean_from(log, 0).first_dirty_offset
        for _ in range(2):
            assert aborted(partition) == entry
            assert kept(log) == [2]
            assert last_offsets(log) == [1, 2]
            clean_twice(log, clock)
        producer.send(1)
        log.roll()
        put(log, 9)
        producer.commit()
        clean_from(log, line)
        assert aborted(partition) == entry
        assert kept(log)[:2] == last_offsets(log)[:2] == [2, 3]
        log.roll()
        clean_twice(log, clock)
        assert kept(log) == [3, 4, 5]
        assert aborted(partition) == []


def test_a_record_whose_key_is_that_of_a_marker_supersedes_no_marker(root: Path, clock: ManualClock) -> None:
    """LogCleanerTest.testCleaningWithKeysConflictingWithTxnMarkerKeys"""
    with opened(root, clock, 1024) as log:
        producer = Producer(log, 1)
        producer.send(1)
        producer.commit()
        marker_key = bytes.fromhex("00000001")
        log.append_many([(marker_key, b"foo")], producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
        Producer(log, 2).commit()
        log.roll()
        assert [bytes(record.key or b"") for batch in batches(log) for record in batch].count(marker_key) == 3
        clean_from(log, 0)
        assert kept(log) == last_offsets(log) == [0, 1, 2, 3]
