"""Cases of Kafka's own suites about a log that is open: segments, rolls, cuts, epochs.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case. Kafka's fixtures use
old formats and its own sizes here and there: what is asserted is the behaviour, in format 2 (SEMANTICS 1 to 3, 10).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.disk import fs
from kstore.files import checkpoint
from kstore.log.segments import roll
from kstore.log.segments.segment import Segment
from kstore.log.writing._appender import Appender, Code
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import bases, batch, epochs, fetched, offsets
from tests.kafka.cases.kafka_cases import log40 as log40

pytestmark = pytest.mark.usefixtures("no_syncs")

FULL_INDEX, FULL_TIME_INDEX = 10_485_760, 10_485_756
INT_MAX = 2**31 - 1


# One segment


@pytest.mark.parametrize(("last", "fits"), [(INT_MAX, True), (INT_MAX + 1, False), (2**32, False)])
def test_offsets_lie_within_31_bits_of_the_segments_base(partition: Path, last: int, fits: bool) -> None:
    """LogSegmentTest.testAppendForLogSegmentOffsetOverflowException: the log rolls where the segment would refuse."""
    with kstore.Log.open(partition) as log:
        log.append(b"first")
        log.append_as_follower(batch(last))
        assert bases(log) == ([0] if fits else [0, last])
        assert log.segments[-1].roll_reason == (None if fits else "offset_range")
        assert offsets(log.read()) == [0, last]


def test_a_cut_record_is_gone_and_its_offset_free_again(log40: kstore.Log) -> None:
    """LogSegmentTest.testTruncate."""
    for offset in range(40, 70):
        if offset == 40:
            log40.append_as_follower(batch(40, b"hello"))
        log40.append_as_follower(batch(offset + 1, b"hello"))
        assert fetched(log40, offset) == [offset, offset + 1]
        assert log40.truncate_to(offset + 1)
        assert fetched(log40, offset) == [offset]
        log40.append_as_follower(batch(offset + 1, b"again"))


def test_an_emptied_segment_has_whole_indexes_and_no_age(partition: Path, clock: ManualClock) -> None:
    """LogSegmentTest.testTruncateEmptySegment, LogSegmentTest.testTruncateFull."""
    settings = {"clock": clock, "segment_ms": 300_000}
    with kstore.Log.open(partition, **settings) as log:
        log.append(b"a", timestamp=-1)
        log.append(b"b", timestamp=-1)
    assert (partition / "00000000000000000000.index").stat().st_size == 0
    with kstore.Log.open(partition, **settings) as log:
        clock.advance(500)
        assert log.truncate_to(0)
        assert (partition / "00000000000000000000.index").stat().st_size == FULL_INDEX
        assert (partition / "00000000000000000000.timeindex").stat().st_size == FULL_TIME_INDEX
        assert fetched(log, 0) == []
        clock.advance(300_001)
        log.append(b"again", timestamp=-1)  # whatever its age: it is empty
        assert bases(log) == [0]
        clock.advance(299_999)
        log.truncate_to(0)
        clock.advance(299_999)
        log.append(b"again", timestamp=-1)
        clock.advance(1)
        log.append(b"within 300 s of the cut", timestamp=-1)
        assert bases(log) == [0]
        log.truncate_to(0)
        log.append_as_follower(batch(INT_MAX + 200))  # its offset is too far, empty or not
        assert bases(log) == [0, INT_MAX + 200]
        assert offsets(log.read(0)) == [INT_MAX + 200]


def test_what_a_cut_leaves_decides_the_largest_timestamp(partition: Path, clock: ManualClock) -> None:
    """LogSegmentTest.testReloadLargestTimestampAndNextOffsetAfterTruncation."""
    size = len(batch(40, b"hello", timestamp=400))
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=2 * size - 1) as log:
        log.truncate_fully_and_start_at(40)
        for offset in range(40, 70):
            log.append_as_follower(batch(offset, b"hello", timestamp=10 * offset))
        assert (log.log_end_offset, log.segments[0].time_index_entries) == (70, 14)
        log.truncate_to(41)
        [segment] = log.segments
        assert (segment.time_index_entries, segment.max_timestamp, log.log_end_offset) == (0, 400, 41)
        assert log.max_timestamp() == (400, 40)


def test_the_next_offset_is_one_past_the_last_record(partition: Path, log40: kstore.Log) -> None:
    """LogSegmentTest.testNextOffsetCalculation."""
    assert log40.log_end_offset == 40
    log40.append_as_follower(batch(50, b"a", b"b", b"c"))
    assert log40.log_end_offset == log40.segments[0].next_offset == 53
    log40.close()
    with kstore.Log.open(partition) as log:
        assert log.log_end_offset == 53


def test_a_rename_for_deletion_makes_no_file(tmp_path: Path) -> None:
    """LogSegmentTest.testChangeFileSuffixes."""
    log = tmp_path / "00000000000000000040.log"
    log.write_bytes(b"")
    segment = Segment(str(tmp_path), 40, max_index_bytes=1000)
    assert segment.mark_deleted() == [f"{log}.deleted"]
    assert [path.name for path in tmp_path.iterdir()] == [log.name + ".deleted"]


def test_the_first_batch_gives_the_first_timestamp(partition: Path) -> None:
    """LogSegmentTest.testGetFirstBatchTimestamp, UnifiedLogTest.testGetFirstBatchTimestampForSegments."""
    with kstore.Log.open(partition) as log:
        log.append(b"x", timestamp=1000)
        log.append(b"x", timestamp=1500)
        log.roll()
        assert [s.first_timestamp for s in log.segments] == [1000, -1]
        log.append(b"x", timestamp=2000)
        assert [s.first_timestamp for s in log.segments] == [1000, 2000]


def test_a_preallocated_file_is_read_to_its_logical_end_and_trimmed_at_the_close(partition: Path) -> None:
    """LogSegmentTest.testCreateWithInitFileSizeAppendMessage, LogSegmentTest.testCreateWithInitFileSizeClearShutdown,
    FileRecordsTest.testPreallocateTrue, FileRecordsTest.testPreallocateFalse,
    FileRecordsTest.testPreallocateClearShutdown.
    """
    file = partition / "00000000000000000000.log"
    with kstore.Log.open(partition, preallocate=True, segment_bytes=512 << 20) as log:
        assert (file.stat().st_size, log.segments[0].size_bytes) == (512 << 20, 0)
        log.append_as_follower(batch(50, b"hello", b"there"))
        log.append_as_follower(batch(60, b"alpha", b"beta"))
        assert fetched(log, 55, 200) == [60, 61]
        written = log.segments[0].size_bytes
        assert file.stat().st_size == 512 << 20
    assert file.stat().st_size == written
    with kstore.Log.open(partition, preallocate=True, segment_bytes=512 << 20) as log:
        assert log.segments[0].size_bytes == file.stat().st_size == written
        assert log.recovery.clean
    with kstore.Log.open(partition.with_name("plain-0")):
        assert (partition.with_name("plain-0") / file.name).stat().st_size == 0


# The list of segments


def test_segments_are_found_by_offset(partition: Path) -> None:
    """LogSegmentsTest.testBasicOperations, LogSegmentsTest.testSegmentAccess, LogSegmentsTest.testHigherSegments,
    LocalLogTest.testNonActiveSegmentsFrom."""
    with kstore.Log.open(partition) as log:
        for _ in range(5):
            log.append(b"x")
            log.append(b"x")
            log.roll()
        found = log._view.segments
        assert found.bases == (0, 2, 4, 6, 8, 10)
        assert [found.floor(offset) for offset in (-1, 0, 1, 2, 9, 10, 99)] == [-1, 0, 0, 1, 4, 5, 5]
        after = [found.after(base) for base in (-1, 0, 1, 9, 10)]
        assert [segment and segment.base_offset for segment in after] == [0, 2, 2, 10, None]


def test_an_append_moves_the_end_and_not_the_recovery_point(partition: Path) -> None:
    """LocalLogTest.testLogAppend."""
    with kstore.Log.open(partition) as log:
        assert bytes(log.fetch(0, 1).records) == b""
        log.append_many([(b"abc", b"ABC"), (b"de", b"DE")])
        assert log.log_end_offset == 2
        assert checkpoint.read_offsets(partition.parent, checkpoint.RECOVERY_POINTS) == {}
        assert [(each.offset, each.key, each.value) for each in log.read()] == [(0, b"abc", b"ABC"), (1, b"de", b"DE")]


# Rolling


def test_size_rolls_before_it_would_be_exceeded(partition: Path) -> None:
    """UnifiedLogTest.testSizeBasedLogRoll."""
    size = len(batch(0))
    with kstore.Log.open(partition, segment_bytes=10 * (size - 1)) as log:
        for count in range(1, 11):
            log.append(b"test", timestamp=-1)
            assert len(log.segments) == (1 if count < 10 else 2)


@pytest.mark.parametrize(("beyond", "code"), [(0, Code.DONE), (1, Code.ROLL_SIZE)])
def test_no_file_grows_beyond_31_bits(beyond: int, code: Code) -> None:
    """FileRecordsTest.testAppendProtectsFromOverflow: no segment may be larger, and the log rolls before it is."""
    with pytest.raises(kstore.ConfigError):
        kstore.LogConfig(segment_bytes=INT_MAX + 1)
    limits = roll.limits(kstore.LogConfig(segment_bytes=INT_MAX), jitter_ms=0, max_offset_entries=9, max_time_entries=9)
    batch = kstore.encode_batch([b"v"])
    counts = {"next_offset": 0, "offset_entries": 0, "time_entries": 0, "last_time_entry": -1, "max_timestamp": -1}
    appender = Appender(lambda: 0)
    appender.attach(
        log_fd=-1, offset_fd=-1, time_fd=-1, base_offset=0, size=INT_MAX - len(batch) + beyond, max_timestamp_offset=0,
        first_timestamp=-1, created_ms=0, **counts,
    )  # fmt: skip
    appender.limit(
        segment_bytes=limits.segment_bytes, wait_ms=limits.wait_ms, offset_entries=limits.offset_entries,
        time_entries=limits.time_entries, index_interval_bytes=4096,
    )  # fmt: skip
    assert appender.should_roll(batch, False) == code


def test_record_time_rolls_where_the_first_record_has_one_and_the_clock_where_not(
    partition: Path, clock: ManualClock
) -> None:
    """UnifiedLogTest.testTimeBasedLogRollDuringAppend."""
    with kstore.Log.open(partition, clock=clock, segment_ms=3600) as log:

        def append(timestamp: int = -1, advance: int = 0) -> int:
            clock.advance(advance)
            log.append(b"test", timestamp=timestamp)
            return len(log.segments)

        assert append(advance=3601) == 1  # an empty segment is never rolled away
        assert [append(), append(advance=3601), append(advance=3601)] == [2, 3, 4]
        ahead = clock.now + 3601
        assert append(ahead) == 4  # the first record of the segment has no time: the clock decides
        assert append(ahead, 3601) == 5
        assert append(ahead, 3601) == 5  # now it has one: only record time counts
        assert append(clock.now) == 6


def test_a_full_index_recreates_an_empty_segment_with_a_usable_one(partition: Path) -> None:
    """UnifiedLogTest.testRollSegmentThatAlreadyExists, LocalLogTest.testRollSegmentThatAlreadyExists,
    LocalLogTest.testRollEmptyActiveSegment.
    """
    with kstore.Log.open(partition) as log:
        assert log.roll() == 0
        assert bases(log) == [0]
        log.append_as_follower(batch(0) + batch(1))
        assert (bases(log), log.log_end_offset) == ([0], 2)
        assert log.roll() == 2
        writer = log._writer
        assert writer is not None
        writer.active.offset_index._resize(0, 0)
        writer.limit()
        log.append_as_follower(batch(2))
        assert bases(log) == [0, 2]
        assert log.segments[-1].roll_reason == "offset_index_full"
        assert writer.active.offset_index.max_entries > 1
        assert (partition / "00000000000000000002.log.deleted").exists()
        assert offsets(log.read()) == [0, 1, 2]


def test_each_roll_of_a_filled_segment_begins_one_at_the_log_end(partition: Path) -> None:
    """LocalLogTest.testNewSegmentsAfterRoll."""
    with kstore.Log.open(partition) as log:
        assert (log.roll(), bases(log)) == (0, [0])
        for end in (1, 2):
            log.append(b"x")
            assert log.roll() == end
            assert bases(log) == list(range(end + 1))


def test_a_roll_begins_at_the_log_end_or_at_the_append_that_is_farther(partition: Path) -> None:
    """LogLoaderTest.testOverCompactedLogRecovery,
    LogLoaderTest.testOverCompactedLogRecoveryMultiRecord.
    """
    far = 2**31 + 1
    for name, values, codec in (("one-0", (b"v",), "none"), ("two-0", (b"v", b"w"), "gzip")):
        directory = partition.with_name(name)
        with kstore.Log.open(directory, index_interval_bytes=1) as log:
            log.append_as_follower(batch(0))
            for i in range(3):
                log.append_as_follower(batch(far + i * len(values), *values, compression=codec))
            assert bases(log) == [0, far]
            assert (directory / f"{far:020d}.snapshot").exists()
        assert len(list(directory.glob("*.index"))) == 2
        with kstore.Log.open(directory) as log:
            assert log.log_end_offset == far + 3 * len(values)
            assert offsets(log.read(1)) == list(range(far, far + 3 * len(values)))


def test_a_roll_flushes_what_lies_before_it(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testLogRolls, UnifiedLogTest.testTakeSnapshotOnRollAndDeleteSnapshotOnRecoveryPointCheckpoint,
    UnifiedLogTest.testProducerIdMapOffsetUpdatedForNonIdempotentData.
    """
    with kstore.Log.open(partition, clock=clock, segment_bytes=100) as log:
        for i in range(100):
            assert log.append(b"%d" % i) == i
        assert len(log.segments) == 100
        assert [r.value for r in log.read()] == [b"%d" % i for i in range(100)]
        assert fetched(log, 100) == []
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == bases(log)[-1] == 99
    snapshots = sorted(int(path.stem) for path in partition.glob("*.snapshot"))
    assert snapshots == list(range(1, 101))


def test_the_recovery_point_stays_when_a_snapshot_cannot_be_flushed(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UnifiedLogTest.testRecoveryPointNotIncrementedOnProducerStateSnapshotFlushFailure."""
    log = kstore.Log.open(partition, clock=clock)
    log.append(b"x")
    log.roll()

    def fail(fd: int) -> None:
        raise kstore.StorageError(5, "no", fs.path_of(fd))

    with monkeypatch.context() as patch:
        patch.setattr(fs, "fsync", fail)
        with pytest.raises(kstore.StorageError):
            log.run_housekeeping()
    assert log.stats()["recovery_point"] == 0
    with pytest.raises(kstore.StorageError, match="until it is reopened"):
        log.append(b"y")


# Cutting


def test_truncation_gives_the_sizes_back_that_there_were(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testTruncateTo."""
    size = len(batch(0))
    with kstore.Log.open(partition, clock=clock, segment_bytes=10 * size) as log:

        def ten() -> None:
            for _ in range(10):
                log.append(b"test", timestamp=clock.now)

        def state() -> tuple[int, Any]:
            return log.log_end_offset, log.stats()["size_bytes"]

        ten()
        assert (bases(log), state()) == ([0], (10, 10 * size))
        for beyond in (10, 11):
            assert not log.truncate_to(beyond)
            assert state() == (10, 10 * size)
        assert log.truncate_to(5)
        assert state() == (5, 5 * size)
        assert log.truncate_to(0)
        assert state() == (0, 0)
        ten()
        assert state() == (10, 10 * size)
        log.truncate_fully_and_start_at(1)
        assert state() == (1, 0)
        ten()
        assert state() == (11, 10 * size)
        assert log.truncate_to(0)  # below the log start: everything goes
        assert (state(), log.log_start_offset) == ((0, 0), 0)


def test_truncation_makes_small_indexes_whole_again(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testIndexResizingAtTruncation."""
    size = len(batch(0))
    settings = {"segment_bytes": 10 * size, "index_interval_bytes": size - 1, "segment_index_bytes": 1200}
    index, time_index = partition / "00000000000000000000.index", partition / "00000000000000000000.timeindex"
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        for i in range(10):
            log.append(b"test", timestamp=clock.now + i)
        assert bases(log) == [0]
        for i in range(10):
            log.append(b"test", timestamp=clock.now + 10 + i)
        assert bases(log) == [0, 10]
        assert (index.stat().st_size, time_index.stat().st_size) == (9 * 8, 9 * 12)
        log.truncate_to(0)
        assert bases(log) == [0]
        assert (index.stat().st_size, time_index.stat().st_size) == (1200, 1200)
        for i in range(10):
            log.append(b"test", timestamp=clock.now + 20 + i)
        assert bases(log) == [0]


def test_truncation_in_the_middle_drops_what_is_above(partition: Path) -> None:
    """LocalLogTest.testTruncateTo."""
    with kstore.Log.open(partition) as log:
        for i in range(12):
            log.append(b"%d" % i)
            if i % 3 == 2:
                log.roll()
        assert bases(log) == [0, 3, 6, 9, 12]
        assert log.truncate_to(7)
        assert (bases(log), log.log_end_offset) == ([0, 3, 6], 7)
        assert int(log.stats()["recovery_point"]) <= 7
        assert offsets(log.read(6)) == [6]
        assert log.append(b"x") == 7


@pytest.mark.parametrize(("offset", "start"), [(10, 10), (2, 1), (1, 1)])
def test_a_restart_elsewhere_leaves_one_empty_segment(
    partition: Path, clock: ManualClock, offset: int, start: int
) -> None:
    """LocalLogTest.testTruncateFullyAndStartAt, UnifiedLogTest.testTruncateFullyAndStart,
    LocalLogTest.testCreateAndDeleteSegment; the producers of the second are another test's matter.
    """
    with kstore.Log.open(partition, clock=clock) as log:
        for i in range(13):
            log.append(b"%d" % i)
            if i % 2:
                log.roll()
        log.truncate_fully_and_start_at(offset, log_start_offset=start)
        assert (bases(log), log.segments[0].size_bytes) == ([offset], 0)
        assert (log.log_start_offset, log.log_end_offset) == (start, offset)
        assert len(list(partition.glob("*.log.deleted"))) == 7
        assert fetched(log, offset) == []


def test_files_are_deleted_only_when_the_delay_is_over(partition: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testAsyncDelete, LocalLogTest.testRemoveAndDeleteSegmentsAsync."""
    with kstore.Log.open(partition, clock=clock, file_delete_delay_ms=1000) as log:
        for _ in range(9):
            log.append(b"x")
            log.roll()
        log.truncate_to(0)
        gone = [path for path in partition.iterdir() if path.suffix == ".deleted"]
        assert {path.name.split(".", 1)[1] for path in gone} >= {"log.deleted", "index.deleted", "timeindex.deleted"}
        assert len([path for path in gone if path.name.endswith(".log.deleted")]) == 9
        clock.advance(999)
        log.run_housekeeping()
        assert all(path.exists() for path in gone)
        clock.advance(1)
        log.run_housekeeping()
        assert not any(path.exists() for path in gone)


# Leader epochs


def test_a_leaders_batches_carry_its_epoch(partition: Path) -> None:
    """UnifiedLogTest.shouldApplyEpochToMessageOnAppendIfLeader."""
    with kstore.Log.open(partition) as log:
        for i in range(50):
            log.append(b"x", leader_epoch=None if i % 2 else 72)
        assert {one.partition_leader_epoch for one in log.read_batches()} == {72}
    assert epochs(partition) == [(72, 0)]


def test_epochs_are_cut_with_the_log(partition: Path) -> None:
    """UnifiedLogTest.shouldTruncateLeaderEpochCheckpointFileWhenTruncatingLog."""
    with kstore.Log.open(partition) as log:
        for start, end, epoch in ((0, 10, 0), (10, 16, 1), (16, 20, 2)):
            log.append_as_follower(b"".join(batch(offset, epoch=epoch) for offset in range(start, end)))
        for cut, left in ((20, 3), (11, 2), (10, 1), (0, 0)):
            log.truncate_to(cut)
            assert epochs(partition) == [(0, 0), (1, 10), (2, 16)][:left]


def test_epochs_of_deleted_records_go_and_the_one_that_goes_on_moves(partition: Path) -> None:
    """UnifiedLogTest.shouldUpdateOffsetForLeaderEpochsWhenDeletingSegments,
    LeaderEpochFileCacheTest.shouldUpdateOffsetBetweenEpochBoundariesOnClearEarliest2.
    """
    with kstore.Log.open(partition) as log:
        for start, end, epoch in ((0, 7, 0), (7, 10, 1), (10, 15, 2)):
            log.append_as_follower(b"".join(batch(offset, epoch=epoch) for offset in range(start, end)))
        log.delete_records(5)
        assert epochs(partition) == [(0, 5), (1, 7), (2, 10)]


def test_an_epoch_that_wrote_nothing_goes_when_the_log_is_cut_to_its_end(partition: Path) -> None:
    """UnifiedLogTest.testTruncateToEndOffsetClearsEpochCache."""
    with kstore.Log.open(partition) as log:
        log.truncate_fully_and_start_at(27)
        log.append_as_follower(batch(27, b"a", b"b", epoch=19))
        writer = log._writer
        assert writer is not None
        for epoch, cut in ((20, 29), (24, 30)):
            writer.epochs.assign(epoch, 29)
            assert epochs(partition) == [(19, 27), (epoch, 29)]
            assert not log.truncate_to(cut)
            assert (writer.epochs.latest, log.log_end_offset) == ((19, 27), 29)
            assert epochs(partition) == [(19, 27)]


# Closing and keeping


def test_a_closed_log_neither_rolls_nor_appends(partition: Path) -> None:
    """UnifiedLogTest.testLogRollAfterLogHandlerClosed, LocalLogTest.testLogCloseSuccess,
    LocalLogTest.testLogCloseIdempotent.
    """
    log = kstore.Log.open(partition)
    log.append(b"x")
    log.close()
    log.close()
    for change in (log.roll, log.flush, lambda: log.append(b"y"), lambda: log.truncate_to(0)):
        with pytest.raises(kstore.LogClosedError):
            change()


@pytest.mark.parametrize("spelling", ["{0}/events-0/", "{0}/./events-0", "events-0"])
def test_a_checkpoint_line_goes_by_the_partition_however_its_path_is_spelt(
    root: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """LogManagerTest.testRecoveryDirectoryMappingWithTrailingSlash,
    LogManagerTest.testRecoveryDirectoryMappingWithRelativeDirectory.
    """
    monkeypatch.chdir(root)
    with kstore.Log.open(spelling.format(root)) as log:
        for _ in range(50):
            log.append(b"test")
    assert (root / "recovery-point-offset-checkpoint").read_text() == "0\n1\nevents 0 50\n"


def test_a_log_is_flushed_when_its_interval_has_passed(partition: Path, clock: ManualClock) -> None:
    """LogManagerTest.testTimeBasedFlush."""
    with kstore.Log.open(partition, clock=clock, flush_ms=1000) as log:
        for _ in range(200):
            log.append(b"test")
        assert log.stats()["recovery_point"] == 0
        clock.advance(10_000)
        log.run_housekeeping()
        assert log.stats()["recovery_point"] == 200
