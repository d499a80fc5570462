"""Cases of Kafka's own suites about opening a log: clean and not, damaged, with leftovers, with snapshots astray.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case (SEMANTICS 8). What
makes an opening unclean is what is in the checkpoint of the recovery points: `recover_from` writes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files import checkpoint
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import EMPTY_SNAPSHOT, abandon, bases, batch, epochs, fetched, offsets

pytestmark = pytest.mark.usefixtures("no_syncs")


def recover_from(partition: Path, offset: int) -> None:
    """Make the next opening one after a crash: everything from `offset` on may not be on the disk."""
    lines = {("events", 0): offset}
    checkpoint.update_offsets(str(partition.parent), checkpoint.RECOVERY_POINTS, lines)


def start_at(partition: Path, offset: int) -> None:
    checkpoint.update_offsets(str(partition.parent), checkpoint.LOG_STARTS, {("events", 0): offset})


def filled(partition: Path, values: Iterable[bytes], **settings: Any) -> None:
    """A closed log with a batch for each value."""
    with kstore.Log.open(partition, **settings) as log:
        for value in values:
            log.append(value)


def segment_file(partition: Path, base: int, suffix: str = "log") -> Path:
    return partition / f"{base:020d}.{suffix}"


def snapshots(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.snapshot"))


# One segment


def test_a_corrupt_index_is_rebuilt(partition: Path, rng: random.Random) -> None:
    """LogSegmentTest.testRecoveryFixesCorruptIndex."""
    filled(partition, [b"%d" % i for i in range(100)], index_interval_bytes=1)
    index = segment_file(partition, 0, "index")
    sound = index.read_bytes()
    index.write_bytes(sound[:5] + rng.randbytes(len(sound) - 5))
    recover_from(partition, 0)
    with kstore.Log.open(partition, index_interval_bytes=1) as log:
        assert log.recovery.indexes_rebuilt == [0]
        for i in range(100):
            assert fetched(log, i, 1) == [i]
    assert index.read_bytes() == sound


def test_recovery_rebuilds_the_leader_epochs(partition: Path) -> None:
    """LogSegmentTest.testRecoveryRebuildsEpochCache."""
    with kstore.Log.open(partition) as log:
        for base, epoch in ((104, 0), (106, 1), (108, 1), (110, 2)):
            log.append_as_follower(batch(base, b"a", b"b", epoch=epoch))
    (partition / "leader-epoch-checkpoint").unlink()
    recover_from(partition, 0)
    with kstore.Log.open(partition):
        assert epochs(partition) == [(0, 104), (1, 106), (2, 110)]


@pytest.mark.parametrize("round_", range(10))
def test_records_before_a_damaged_one_survive(partition: Path, rng: random.Random, round_: int) -> None:
    """LogSegmentTest.testRecoveryWithCorruptMessage."""
    filled(partition, [b"%d" % i for i in range(20)])
    file = segment_file(partition, 0)
    data = bytearray(file.read_bytes())
    positions = [one.position for one in kstore.decode_batches(bytes(data))]
    damaged = rng.randrange(20)
    at = positions[damaged] + rng.randrange(15)
    data[at:] = rng.randbytes(len(data) - at)
    file.write_bytes(data)
    recover_from(partition, 0)
    with kstore.Log.open(partition) as log:
        assert offsets(log.read()) == list(range(damaged))
        assert (log.recovery.cut_from_offset, log.log_end_offset) == (damaged, damaged)
        assert file.stat().st_size == positions[damaged]


# Whole logs


def test_the_clean_marker_counts_once(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LogLoaderTest.testLogRecoveryIsCalledUponBrokerCrash: it is gone before anything is loaded, so that a loading
    that fails is followed by one that trusts nothing.
    """
    log = kstore.Log.open(partition)
    log.append(b"x")
    abandon(log)
    marker = partition.parent / ".kafka_cleanshutdown"
    for fails in (False, True):
        marker.write_text('{"version":0,"brokerEpoch":3}')
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(checkpoint, "read_offsets", lambda *_: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    kstore.Log.open(partition)
            else:
                log = kstore.Log.open(partition)
                assert log.recovery.clean
                abandon(log)
        assert not marker.exists()
        log = kstore.Log.open(partition)
        assert not log.recovery.clean
        abandon(log)


def test_recovery_finds_the_end_and_leaves_the_recovery_point_to_a_flush(partition: Path, clock: ManualClock) -> None:
    """LogLoaderTest.testLogRecoversToCorrectOffset."""
    settings: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 300, "clock": clock}
    with kstore.Log.open(partition, **settings) as log:
        for i in range(100):
            log.append(b"x" * 100, timestamp=clock.now + 10 * i)
        last = log.segments[-1]
        assert log.log_end_offset == 100
    for recovery_point in (100, 10):
        recover_from(partition, recovery_point)
        if recovery_point == 100:
            segment_file(partition, last.base_offset, "timeindex").write_bytes(b"")
        with kstore.Log.open(partition, **settings) as log:
            assert not log.recovery.clean
            assert log.stats()["recovery_point"] == recovery_point
            found = log.segments[-1]
            assert (log.log_end_offset, found.offset_index_entries) == (100, last.offset_index_entries)
            assert log._view.segments.items[-1].time_index.last == (clock.now + 990, 99)
            log.flush()
            assert log.stats()["recovery_point"] == 100


def test_indexes_of_a_space_are_rebuilt(partition: Path) -> None:
    """LogLoaderTest.testCorruptIndexRebuild."""
    settings: dict[str, Any] = {"segment_bytes": 200, "index_interval_bytes": 1}
    with kstore.Log.open(partition, **settings) as log:
        for i in range(200):
            log.append(b"%d" % i, timestamp=1000 + i)
    for path in [*partition.glob("*.index"), *partition.glob("*.timeindex")]:
        path.write_bytes(b" ")
    recover_from(partition, 0)
    with kstore.Log.open(partition, **settings) as log:
        assert log.log_end_offset == 200
        for i in range(200):
            assert fetched(log, i, 1) == [i]
            assert log.offset_for_timestamp(1000 + i) == (1000 + i, i)


def test_index_files_without_a_log_are_deleted(partition: Path) -> None:
    """LogLoaderTest.testBogusIndexSegmentsAreRemoved."""
    partition.mkdir()
    for suffix in ("index", "timeindex", "txnindex"):
        segment_file(partition, 5, suffix).write_bytes(b"bogus")
    with kstore.Log.open(partition) as log:
        assert sorted(path.name[:20] for path in partition.glob("*index")) == [f"{0:020d}"] * 2
        assert segment_file(partition, 0, "index").stat().st_size == 10_485_760
        assert len(log.recovery.leftovers_removed) == 3
        for i in range(10):
            assert log.append(b"x") == i


def test_a_recovered_log_can_be_cut(partition: Path) -> None:
    """LogLoaderTest.testReopenThenTruncate."""
    settings: dict[str, Any] = {"segment_bytes": 5 * 70, "index_interval_bytes": 10_000}
    filled(partition, [b"xx"] * 100, **settings)
    recover_from(partition, 0)
    with kstore.Log.open(partition, **settings) as log:
        assert len(log.segments) == 20
        log.truncate_to(3)
        assert (len(log.segments), log.log_end_offset) == (1, 3)


@pytest.mark.parametrize("round_", range(10))
def test_random_bytes_behind_the_log_are_cut(partition: Path, rng: random.Random, round_: int) -> None:
    """LogLoaderTest.testCorruptLog."""
    settings: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 1}
    records = [(b"k%d" % i, b"v%d" % i, 1000 + i, None) for i in range(rng.randint(50, 99))]
    with kstore.Log.open(partition, **settings) as log:
        log.append_many(records, batch_bytes=1)
        active = Path(log.segments[-1].path)
    for path in (active, active.with_suffix(".index")):
        with path.open("ab") as file:
            file.write(rng.randbytes(rng.randint(1, 1024)))
    recover_from(partition, 50)
    with kstore.Log.open(partition, **settings) as log:
        assert [(r.key, r.value, r.timestamp, None) for r in log.read()] == records
        assert log.log_end_offset == len(records)


def test_after_a_clean_close_nothing_is_recovered(partition: Path) -> None:
    """LogLoaderTest.testCleanShutdownFile: the marker, and no line of a recovery point."""
    filled(partition, [b"x"] * 100)
    recover_from(partition, 0)
    (partition.parent / ".kafka_cleanshutdown").touch()
    with kstore.Log.open(partition) as log:
        assert log.recovery.clean
        assert (log.log_end_offset, log.recovery.indexes_rebuilt) == (100, [])


def test_a_log_that_ends_below_its_start_begins_anew_there(partition: Path) -> None:
    """LogLoaderTest.testLogEndLessThanStartAfterReopen."""
    with kstore.Log.open(partition) as log:
        for _ in range(5):
            log.append(b"x")
            log.roll()
        assert log.delete_records(4) == 4
    segment_file(partition, 1).write_bytes(b"corruptRecord")
    recover_from(partition, 0)
    with kstore.Log.open(partition) as log:
        assert (bases(log), log.log_start_offset, log.log_end_offset) == ([4], 4, 4)
        assert all(segment_file(partition, 4, suffix).exists() for suffix in ("log", "index", "timeindex"))


def test_delayed_deletes_spare_the_files_of_the_same_name_that_come_after(partition: Path, clock: ManualClock) -> None:
    """LogLoaderTest.testCorruptedLogRecoveryDoesNotDeleteProducerStateSnapshotsPostRecovery."""
    with kstore.Log.open(partition, clock=clock) as log:
        for _ in range(9):
            log.append(b"x")
            log.roll()
        log.delete_records(4)
    segment_file(partition, 1).write_bytes(b"corruptRecord")
    recover_from(partition, 0)
    with kstore.Log.open(partition, clock=clock) as log:
        assert bases(log) == [4]
        assert not {1, 2, 3, 4} & set(snapshots(partition))
        for _ in range(5):
            log.append(b"x")
            log.roll()
        assert snapshots(partition) == [5, 6, 7, 8, 9]
        clock.advance(log.config.file_delete_delay_ms)
        log.run_housekeeping()
        assert snapshots(partition) == [5, 6, 7, 8, 9]
        assert bases(log) == [4, 5, 6, 7, 8, 9]
        assert list(partition.glob("*.deleted")) == []
        assert len(list(log.read())) == 5


def test_an_empty_active_segment_without_its_indexes_gets_them(partition: Path) -> None:
    """LogLoaderTest.testRecoverWithEmptyActiveSegment."""
    for end in (100, 200):
        log = kstore.Log.open(partition)
        for _ in range(100):
            log.append(b"x")
        log.roll()
        log.flush()
        abandon(log)
        if end == 100:
            segment_file(partition, end, "index").unlink()
            segment_file(partition, end, "timeindex").unlink()
        with kstore.Log.open(partition) as log:
            assert (log.log_end_offset, log.segments[-1].size_bytes) == (end, 0)
            assert segment_file(partition, end, "index").stat().st_size == 10_485_760
            assert log.segments[-1].time_index_entries == 0


def test_an_emptied_directory_goes_on_at_the_log_start(partition: Path) -> None:
    """UnifiedLogTest.testLogReinitializeAfterManualDelete."""
    partition.mkdir()
    start_at(partition, 500)
    with kstore.Log.open(partition) as log:
        assert (log.log_start_offset, log.log_end_offset, bases(log)) == (500, 500, [500])


# Snapshots of logs whose producers do not number their batches


def test_a_stray_snapshot_is_removed(partition: Path) -> None:
    """UnifiedLogTest.testLoadingLogDeletesProducerStateSnapshotsPastLogEndOffset."""
    partition.mkdir()
    segment_file(partition, 42, "snapshot").write_bytes(EMPTY_SNAPSHOT)
    kstore.Log.open(partition).close()
    assert snapshots(partition) == []


def test_the_largest_snapshot_is_kept_and_those_between_segments_are_not(partition: Path) -> None:
    """LogLoaderTest.testLoadingLogKeepsLargestStrayProducerStateSnapshot,
    ProducerStateManagerTest.testRemoveStraySnapshotsKeepCleanShutdownSnapshot. The last one is there after the close
    (`snapshot-of-a-recovery`).
    """
    with kstore.Log.open(partition) as log:
        for count in (1, 1, 2):
            if log.log_end_offset:
                log.roll()
            for _ in range(count):
                log.append(b"x")
    assert snapshots(partition) == [1, 2, 4]
    segment_file(partition, 3, "snapshot").write_bytes(EMPTY_SNAPSHOT)
    recover_from(partition, 0)
    kstore.Log.open(partition).close()
    assert snapshots(partition) == [1, 2, 4]


@pytest.mark.parametrize("case", ["clean", "recovery point at the end", "recovery point 0"])
def test_missing_snapshots_are_written_where_kafka_writes_them(partition: Path, case: str) -> None:
    """UnifiedLogTest.testInitializationOfProducerSnapshotsUpgradePath."""
    filled(partition, [b"%d" % (i % 10) for i in range(101)], segment_bytes=640)
    found = sorted(int(path.stem) for path in partition.glob("*.log"))
    for path in partition.glob("*.snapshot"):
        path.unlink()
    recover_from(partition, 0 if case == "recovery point 0" else 101)
    if case == "clean":
        (partition.parent / ".kafka_cleanshutdown").touch()
    elif case == "recovery point at the end":
        segment_file(partition, found[-1], "index").write_bytes(b" ")
    log = kstore.Log.open(partition, segment_bytes=640)
    assert log.recovery.clean is (case == "clean")
    expected = found[1:] if case == "recovery point 0" else found[-2:]
    log.close()  # which writes the last one (`snapshot-of-a-recovery`)
    assert snapshots(partition) == [*expected, 101]


def test_recovery_writes_the_snapshots_of_the_segments_it_goes_through(partition: Path) -> None:
    """LogLoaderTest.testProducerSnapshotsRecoveryAfterUncleanShutdown."""
    filled(partition, [b"%d" % (i % 10) for i in range(101)], segment_bytes=640)
    found = sorted(int(path.stem) for path in partition.glob("*.log"))
    for path in partition.glob("*.snapshot"):
        if int(path.stem) not in found[-2:]:
            path.unlink()
    for recovery_point in (found[-4], found[-4] + 1):
        recover_from(partition, recovery_point)
        log = kstore.Log.open(partition, segment_bytes=640)
        assert log.recovery.indexes_rebuilt == found[-4:]
        log.close()  # which writes the last one (`snapshot-of-a-recovery`)
        assert snapshots(partition) == [*found[-4:], 101]


# Interrupted swaps (SEMANTICS 8.4 to 8.7)


def swapped(partition: Path, *, keep: Callable[[int], bool]) -> dict[int, bytes]:
    """Three segments of ten records; what a cleaner would leave of the first two, as one file's bytes."""
    with kstore.Log.open(partition) as log:
        for i in range(30):
            if i and i % 10 == 0:
                log.roll()
            log.append(b"%d" % i)
        whole = {base: Path(segment.path).read_bytes() for base, segment in zip(bases(log), log.segments, strict=True)}
    kept = [bytes(one) for base in (0, 10) for one in kstore.decode_batches(whole[base]) if keep(one.base_offset)]
    return {0: b"".join(kept)}


@pytest.mark.parametrize(
    ("case", "completed"),
    [
        ("a .cleaned file, whole or not", False),
        ("some .cleaned are .swap already", False),
        ("all are .swap, the old ones are there", True),
        ("all are .swap, the old ones are .deleted", True),
        ("the log is in place, its index is .swap", True),
        ("done but for the unlinks", True),
    ],
)
def test_the_suffixes_say_whether_a_swap_is_undone_or_completed(partition: Path, case: str, completed: bool) -> None:
    """LogCleanerTest.testRecoveryAfterCrash, LogLoaderTest.testRecoveryAfterCrashDuringSplitPhase3,
    LogLoaderTest.testRecoveryAfterCrashDuringSplitPhase4, LogLoaderTest.testRecoveryAfterCrashDuringSplitPhase5.
    """
    cleaned = swapped(partition, keep=lambda offset: offset % 2 == 0)[0]
    old = {base: segment_file(partition, base) for base in (0, 10)}
    if case.startswith("a .cleaned"):
        segment_file(partition, 0, "log.cleaned").write_bytes(cleaned[:-7])
    elif case.startswith("some"):
        segment_file(partition, 0, "log.cleaned").write_bytes(cleaned)
        segment_file(partition, 0, "index.swap").write_bytes(b"")
        segment_file(partition, 0, "log.swap").write_bytes(cleaned)
    elif case.startswith("all"):
        segment_file(partition, 0, "log.swap").write_bytes(cleaned)
        for base in (0, 10) if "deleted" in case else ():
            for suffix in ("log", "index", "timeindex"):
                file = segment_file(partition, base, suffix)
                file.rename(f"{file}.deleted")
    else:
        old[0].write_bytes(cleaned)
        segment_file(partition, 0, "index").unlink()
        if "index is" in case:
            segment_file(partition, 0, "index.swap").write_bytes(b"")
        for suffix in ("log", "index", "timeindex"):
            file = segment_file(partition, 10, suffix)
            file.rename(f"{file}.deleted")
    expected = [i for i in range(30) if not completed or i >= 20 or i % 2 == 0]
    with kstore.Log.open(partition, mode="r") as reader:
        assert offsets(reader.read()) == expected
    with kstore.Log.open(partition) as log:
        assert offsets(log.read()) == expected
        assert bases(log) == ([0, 20] if completed else [0, 10, 20])
        for offset in expected:
            assert next(log.read(offset)).offset == offset
        names = [path.name for path in partition.iterdir()]
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
