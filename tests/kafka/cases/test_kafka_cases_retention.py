"""Cases of Kafka's own suites about retention: which segments go, what goes with them, what a broker's task does.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case. The high watermark of
a log with one replica is its end: cases about a lower one are held by the pure decision (SEMANTICS 6).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore import LogConfig
from kstore.files import checkpoint
from kstore.log.writing.retention import Marks, decide
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import bases, epochs, offsets
from tests.log.segments.test_retention import Fake

pytestmark = pytest.mark.usefixtures("no_syncs")

MINUTE = 60_000


def per_segment(count: int) -> int:
    """Settings for segments of so many batches of `append`'s size."""
    return count * 100


def append(log: kstore.Log, count: int = 1, *, timestamp: int | None = None, key: bytes | None = None) -> None:
    """Batches of exactly 100 bytes."""
    for _ in range(count):
        log.append(bytes(32 - len(key or b"")), key, timestamp=timestamp)


def one_by_one(path: Path, clock: ManualClock, count: int, **settings: object) -> kstore.Log:
    """A log of segments with one record each."""
    log = kstore.Log.open(path, clock=clock, **settings)
    for _ in range(count):
        append(log)
        log.roll()
    return log


def snapshots(path: Path) -> list[int]:
    return sorted(int(entry.name[:20]) for entry in path.glob("*.snapshot"))


@pytest.mark.parametrize("empty_active", [True, False])
def test_the_snapshots_of_deleted_segments_go_with_them(
    partition: Path, clock: ManualClock, empty_active: bool
) -> None:
    """UnifiedLogTest.testRetentionDeletesProducerStateSnapshots."""
    with kstore.Log.open(partition, clock=clock, retention_ms=MINUTE, file_delete_delay_ms=0) as log:
        for number in range(3):
            append(log)
            if number < 2 or empty_active:
                log.roll()
        clock.advance(MINUTE + 1)
        log.apply_retention()
        log.run_housekeeping()
        assert log.log_start_offset == 3
        assert snapshots(partition) == [3]
        assert list(partition.glob("*.deleted")) == []


def test_what_hides_an_expired_segment_goes_first_by_the_log_start(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testRetentionIdempotency: two go in one pass, none in the next."""
    now = clock.now
    with kstore.Log.open(partition, clock=clock, retention_ms=900, file_delete_delay_ms=0) as log:
        for timestamp in (now + 100, now, now + 100):
            append(log, timestamp=timestamp)
            log.roll()
        clock.now = now + 901
        log.delete_records(1)
        assert [d.reason for d in log.plan_retention()] == ["log_start", "time"]
        assert len(log.apply_retention()) == 2
        assert log.apply_retention() == []


def test_raising_the_log_start_takes_segments_and_their_snapshots(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testLogStartOffsetMovementDeletesSnapshots."""
    with kstore.Log.open(partition, clock=clock, retention_ms=-1, file_delete_delay_ms=0) as log:
        for number in range(3):
            append(log)
            if number < 2:
                log.roll()
        log.delete_records(log.log_end_offset - 1)
        log.apply_retention()
        assert snapshots(partition) == [2]


def test_emptied_by_retention_a_log_goes_on_at_its_end(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testThatGarbageCollectingSegmentsDoesntChangeOffset."""
    for count in (0, 1, 25):
        path = partition.with_name(f"events-{count}")
        with kstore.Log.open(path, clock=clock, segment_bytes=per_segment(1), retention_ms=0) as log:
            append(log, count)
            clock.advance(1)
            assert len(log.apply_retention()) == count
            assert log.log_end_offset == count
            assert len(log.segments) == 1
            assert log.apply_retention() == []
            assert log.append(b"hello") == count


def test_all_that_has_expired_goes_and_the_newest_epoch_stays(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testDeleteOldSegments; what waits for the high watermark is in the test below."""
    with kstore.Log.open(partition, clock=clock, segment_bytes=per_segment(5), retention_ms=999) as log:
        old = clock.now - 1000
        for number in range(100):
            epoch = 0 if number < 40 else 1
            log.append_many([(None, bytes(32), old, None)], leader_epoch=epoch)
        assert epochs(partition) == [(0, 0), (1, 40)]
        assert len(log.apply_retention()) == 20
        assert bases(log) == [100]
        assert epochs(partition) == [(1, 100)]
        append(log, 100)
        assert offsets(log.read()) == list(range(100, 200))


@pytest.mark.parametrize("high_watermark", [0, 5, 25, 26, 27, 28, 29, 30, 99, 100])
def test_no_segment_goes_that_reaches_the_high_watermark(high_watermark: int) -> None:
    """UnifiedLogTest.testCannotDeleteSegmentsAtOrAboveHighWatermark,
    UnifiedLogTest.testSegmentDeletionWithHighWatermarkInitialization, and the first half of testDeleteOldSegments."""
    segments = [Fake(base, timestamp=0) for base in range(0, 100, 5)]
    gone = decide(segments, LogConfig(retention_ms=999), Marks(0, high_watermark, 100), 2000)
    assert len(gone) == high_watermark // 5
    assert all(deletion.next_offset <= high_watermark for deletion in gone)


@pytest.mark.parametrize(("start", "left"), [(1, 3), (6, 2), (15, 1)])
def test_segments_below_the_log_start_go(partition: Path, clock: ManualClock, start: int, left: int) -> None:
    """UnifiedLogTest.testLogDeletionAfterDeleteRecords."""
    with kstore.Log.open(partition, clock=clock, segment_bytes=per_segment(5)) as log:
        append(log, 15)
        log.delete_records(start)
        log.apply_retention()
        assert (len(log.segments), log.log_start_offset) == (left, start)


@pytest.mark.parametrize(
    ("settings", "timestamp", "left"),
    [
        ({"retention_bytes": per_segment(10)}, None, 2),
        ({"retention_ms": 10_000}, 10, 1),
        ({"retention_ms": 10_000_000}, None, 3),
        ({"retention_ms": 10_000, "cleanup_policy": "compact"}, 10, 3),
    ],
)
def test_size_age_and_policy_decide(
    partition: Path, clock: ManualClock, settings: dict[str, object], timestamp: int | None, left: int
) -> None:
    """UnifiedLogTest.shouldDeleteSizeBasedSegments, UnifiedLogTest.shouldDeleteTimeBasedSegmentsReadyToBeDeleted,
    UnifiedLogTest.shouldNotDeleteTimeBasedSegmentsWhenNoneReadyToBeDeleted,
    UnifiedLogTest.shouldNotDeleteSegmentsWhenPolicyDoesNotIncludeDelete."""
    with kstore.Log.open(partition, clock=clock, segment_bytes=per_segment(5), **settings) as log:
        append(log, 15, timestamp=timestamp, key=b"k")
        log.apply_retention()
        assert len(log.segments) == left


def test_a_compacted_log_loses_what_lies_below_its_start(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete."""
    with kstore.Log.open(partition, clock=clock, segment_bytes=per_segment(5)) as log:
        append(log, 15, key=b"k")
        log.delete_records(5)
        log.update_config(cleanup_policy="compact")
        log.apply_retention()
        assert bases(log) == [5, 10]


def test_only_a_filled_active_segment_can_go(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testDeletableSegmentsFilter, UnifiedLogTest.testDeletableSegmentsIteration."""
    with one_by_one(partition, clock, 9) as log:
        assert len(log.segments) == 10
        log.update_config(retention_bytes=300)
        assert [d.base_offset for d in log.plan_retention()] == [0, 1, 2, 3, 4, 5]
        log.update_config(retention_bytes=0)
        planned = log.plan_retention()
        assert [(d.base_offset, d.next_offset) for d in planned] == [(n, n + 1) for n in range(9)]
        append(log)
        assert len(log.plan_retention()) == 10


# A broker's task.


def broker_files(partition: Path) -> int:
    return len([entry for entry in partition.iterdir() if entry.name != "partition.metadata"])


def store(root: Path, clock: ManualClock, **settings: object) -> kstore.Store:
    common = {"segment_bytes": per_segment(10), "segment_index_bytes": 4096, "log_initial_task_delay_ms": 10_000}
    return kstore.Store.open(root, clock=clock, background=False, **{**common, **settings})


def test_a_stores_housekeeping_deletes_what_has_expired(root: Path, clock: ManualClock) -> None:
    """LogManagerTest.testCleanupExpiredSegments: a segment has a log, two indexes and a snapshot."""
    with store(root, clock, retention_ms=10 * MINUTE) as kept:
        kept.create_topic("events")
        log = kept.log("events", 0)
        append(log, 200)
        assert len(log.segments) == 20
        clock.advance(10 * MINUTE + 1)
        kept.run_housekeeping()
        assert len(log.segments) == 1
        clock.advance(MINUTE)
        kept.run_housekeeping()
        assert broker_files(root / "events-0") == 1 * 4 + 1  # and the leader epochs
        assert list(log.read(200)) == []
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.read(0)
        assert log.append(b"again") == 200


def test_a_stores_housekeeping_keeps_a_log_within_its_size(root: Path, clock: ManualClock) -> None:
    """LogManagerTest.testCleanupSegmentsToMaintainSize."""
    with store(root, clock, retention_bytes=50 * 100 + 10) as kept:
        kept.create_topic("events")
        log = kept.log("events", 0)
        append(log, 200)
        clock.advance(5 * MINUTE + 10_000)
        kept.run_housekeeping()
        assert len(log.segments) == 6
        clock.advance(MINUTE)
        kept.run_housekeeping()
        assert broker_files(root / "events-0") == 6 * 4 + 1
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.read(0)
        assert log.append(b"again") == 200


def test_a_compacted_topic_keeps_its_segments_however_old(root: Path, clock: ManualClock) -> None:
    """LogManagerTest.testDoesntCleanLogsWithCompactPolicy."""
    with store(root, clock, retention_ms=10 * MINUTE) as kept:
        kept.create_topic("events", config={"cleanup.policy": "compact"})
        log = kept.log("events", 0)
        append(log, 200, key=b"k")
        for _ in range(5):
            clock.advance(10 * MINUTE + 1)
            kept.run_housekeeping()
        assert len(log.segments) == 20


def test_a_log_start_has_a_line_until_it_is_the_first_segments_base(root: Path, clock: ManualClock) -> None:
    """LogManagerTest.testCheckpointLogStartOffsetForNormalTopic."""
    with store(root, clock) as kept:
        kept.create_topic("events")
        log = kept.log("events", 0)
        append(log, 50)
        assert len(log.segments) == 5
        log.delete_records(31)
        assert checkpoint.read_offsets(root, checkpoint.LOG_STARTS) == {("events", 0): 31}
        assert len(log.segments) == 5
        log.delete_records(40)
        log.apply_retention()
        assert (bases(log), log.log_start_offset) == ([40], 40)
        log.flush()
        clock.advance(MINUTE)
        kept.run_housekeeping()
        assert checkpoint.read_offsets(root, checkpoint.LOG_STARTS) == {}
