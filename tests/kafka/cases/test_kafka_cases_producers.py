"""Cases of Kafka's own suites about producers: their state, its snapshots, transactions and the index of aborted ones.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case. test_producers.py has
the others (SEMANTICS 9).
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

import kstore
from kstore.codec.coordinator.record_texts import control_text
from kstore.files._producer_snapshot import ProducerEntry, parse_snapshot
from kstore.files.txnindex import AbortedTxn, TxnIndex, parse_txn_index
from kstore.log.segments._producer_state import Origin, ProducerTable, marker_batch
from kstore.log.segments.producer_state import EXPIRATION_CHECK_MS, EXPIRATION_MS, KeptBatch, ProducerInfo
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import abandon, bases, batch
from tests.kafka.cases.test_kafka_cases_loading import recover_from, segment_file, snapshots
from tests.support.batches import CONTROL, TRANSACTIONAL, record, resealed, v2
from tests.support.faultfs import FaultFS

pytestmark = pytest.mark.usefixtures("no_syncs")

DAY_MS = 86_400_000
COMMITTED = "read_committed"


def send(log: kstore.Log, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False) -> int:
    """A numbered batch of a leader; its first offset."""
    return log.append_many(
        [b"value"] * count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=txn
    ).first_offset


def marker(offset: int, pid: int, *, commit: bool, coordinator_epoch: int = 0, epoch: int = 0) -> bytes:
    """A marker as a leader stored it."""
    data = marker_batch(1_700_000_000_000, pid, epoch, commit, coordinator_epoch)
    return resealed(data, base_offset=offset, leader_epoch=0)


def numbered(base: int, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False) -> bytes:
    """A numbered batch as a leader stored it."""
    values = [b"value"] * count
    return batch(base, *values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=txn)


def state(log: kstore.Log, pid: int = 1) -> ProducerInfo:
    return next(info for info in log.producer_states() if info.producer_id == pid)


def last_sequences(log: kstore.Log) -> dict[int, int]:
    return {info.producer_id: info.batches[-1].last_sequence for info in log.producer_states()}


def aborted(partition: Path) -> list[tuple[int, int, int, int]]:
    """All entries of a log's transaction indexes: producer, first offset, marker, last stable offset."""
    paths = sorted(partition.glob("*.txnindex"))
    return [entry[1:] for path in paths for entry in parse_txn_index(path.read_bytes())]


# The transaction index

FOUR = [AbortedTxn(0, *each) for each in ((0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40))]


@pytest.fixture
def index(tmp_path: Path) -> TxnIndex:
    """The index that TransactionIndexTest makes."""
    made = TxnIndex(str(tmp_path / "00000000000000000000.txnindex"))
    for entry in FOUR:
        made.append(entry)
    return made


def test_an_index_that_is_opened_goes_on_at_its_end(index: TxnIndex) -> None:
    """TransactionIndexTest.testPositionSetCorrectlyWhenOpened."""
    again = TxnIndex(index.path)
    again.append(AbortedTxn(0, 3, 50, 60, 55))
    assert list(TxnIndex(index.path).entries) == [*FOUR, AbortedTxn(0, 3, 50, 60, 55)]


@pytest.mark.parametrize(("base", "sound"), [(0, True), (10, True), (11, False), (100, False)])
def test_an_index_with_an_entry_that_ends_below_its_segment_is_corrupt(index: TxnIndex, base: int, sound: bool) -> None:
    """TransactionIndexTest.testSanityCheck."""
    assert TxnIndex(index.path).looks_sound(base) is sound


@pytest.mark.parametrize(("offset", "left"), [(51, 4), (50, 3), (36, 3), (35, 2), (11, 1), (10, 0), (0, 0)])
def test_an_index_is_cut_at_the_first_entry_that_ends_at_the_offset_or_above(
    index: TxnIndex, offset: int, left: int
) -> None:
    """TransactionIndexTest.testTruncate."""
    index.truncate_to(offset)
    assert list(index.entries) == list(TxnIndex(index.path).entries) == FOUR[:left]


def test_an_index_has_no_file_before_its_first_entry(tmp_path: Path) -> None:
    """TransactionIndexTest.testFlush."""
    index = TxnIndex(str(tmp_path / "00000000000000000000.txnindex"))
    index.flush()
    assert not Path(index.path).exists()
    index.append(FOUR[0])
    index.flush()
    assert Path(index.path).stat().st_size == 34


def test_an_index_goes_with_its_segment(partition: Path) -> None:
    """TransactionIndexTest.testDeleteIfExists."""
    with kstore.Log.open(partition, file_delete_delay_ms=0) as log:
        send(log, 0, txn=True)
        log.append_marker(1, 0, commit=False)
        log.roll()
        log.append(b"x")
        assert aborted(partition) == [(1, 0, 1, 2)]
        log.delete_records(2)
        assert [segment.base_offset for segment in log.apply_retention()] == [0]
        log.run_housekeeping()
        assert list(partition.glob("*.txnindex*")) == []


# What a log knows of its producers


def test_a_log_tells_each_producers_last_sequence_transaction_and_coordinator(partition: Path) -> None:
    """UnifiedLogTest.testActiveProducers."""
    with kstore.Log.open(partition) as log:
        send(log, 0, 5, epoch=5, txn=True)
        told = state(log)
        assert (told.batches[-1].last_sequence, told.current_txn_first_offset, told.coordinator_epoch) == (4, 0, -1)
        log.append_marker(1, 5, commit=True, coordinator_epoch=15)
        told = state(log)
        assert (told.batches[-1].last_sequence, told.current_txn_first_offset, told.coordinator_epoch) == (4, -1, 15)
        send(log, 0, 3, pid=2, epoch=5)
        assert (state(log, 2).batches[-1].last_sequence, state(log, 2).current_txn_first_offset) == (2, -1)


@pytest.mark.parametrize("version", [0, 2])
def test_a_coordinator_that_was_replaced_is_fenced_after_a_reload(partition: Path, version: int) -> None:
    """ProducerStateManagerTest.testCoordinatorFencedAfterReload."""
    raised = 1 if version else 0
    with kstore.Log.open(partition) as log:
        send(log, 0, txn=True)
        log.append_marker(1, raised, commit=True, coordinator_epoch=1, transaction_version=version)
    with kstore.Log.open(partition) as log:
        with pytest.raises(kstore.TransactionCoordinatorFencedError):
            log.append_marker(1, 2 * raised, commit=True, coordinator_epoch=0, transaction_version=version)
        assert log.log_end_offset == 2


def test_after_a_marker_that_raised_the_epoch_a_producer_begins_at_sequence_0(partition: Path) -> None:
    """ProducerStateManagerTest.testOutOfSequenceAfterControlRecordEpochBump."""
    with kstore.Log.open(partition) as log:
        send(log, 0, txn=True)
        send(log, 1, txn=True)
        log.append_marker(1, 1, commit=False)
        for epoch in (1, 2):
            with pytest.raises(kstore.OutOfOrderSequenceError):
                send(log, 2, epoch=epoch, txn=True)
        send(log, 0, epoch=1, txn=True)
        assert (state(log).producer_epoch, last_sequences(log)) == (1, {1: 0})


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_of_an_older_epoch_is_refused_and_one_of_the_same_by_version_2_too(
    partition: Path, version: int
) -> None:
    """ProducerStateManagerTest.testOldEpochForControlRecord."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(numbered(99, 0, epoch=5, txn=True))
        for epoch in (3, 5) if version else (3,):
            with pytest.raises(kstore.InvalidProducerEpochError):
                log.append_marker(1, epoch, commit=True, transaction_version=version)
        assert log.last_stable_offset == 99
        log.append_marker(1, 6 if version else 5, commit=True, transaction_version=version)
        assert log.last_stable_offset == log.log_end_offset == 101


def test_a_followers_batch_whose_sequences_wrap_is_known_by_its_first_and_last(partition: Path) -> None:
    """ProducerStateManagerTest.testProducerSequenceWithWrapAroundBatchRecord."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(numbered(2000, 2**31 - 11, 21))
        assert [kept[:4] for kept in state(log).batches] == [(2**31 - 11, 9, 2000, 2020)]


def test_entries_of_a_snapshot_come_back_as_they_were_written() -> None:
    """ProducerStateManagerTest.testReadWriteSnapshot."""
    entries = [ProducerEntry(1, 2, 1, 2, 3, -1, 3, 100), ProducerEntry(11, 12, -1, -1, 0, 123456, 13, -1)]
    packed = b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    checked = len(entries).to_bytes(4) + packed
    data = b"\0\1" + kstore._core.crc32c(checked).to_bytes(4) + checked
    table = ProducerTable()
    assert table.load(data, 0, 2**62)
    assert sorted(parse_snapshot(table.snapshot())) == parse_snapshot(data) == entries


def test_a_sequence_that_leaves_one_out_is_refused(partition: Path) -> None:
    """UnifiedLogTest.testNonSequentialAppend."""
    with kstore.Log.open(partition) as log:
        send(log, 0)
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 2)


def test_a_follower_takes_any_first_sequence_of_a_producer(partition: Path) -> None:
    """ProducerStateManagerTest.testNoValidationOnFirstEntryWhenLoadingLog."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(numbered(735, 16, epoch=5))
        assert state(log)[:2] == (1, 5)
        assert state(log).batches == (KeptBatch(16, 16, 735, 735, -1),)


def test_what_is_staged_is_seen_when_it_is_published(partition: Path) -> None:
    """ProducerStateManagerTest.testPrepareUpdateDoesNotMutate."""
    table = ProducerTable()
    assert table.stage(numbered(15, 0, 6), 0, 15, Origin.CLIENT) is None
    assert table.state(1) is None
    table.publish()
    before = table.state(1)
    assert before is not None
    assert before[5] == ((0, 5, 15, 20, -1),)
    table.stage(numbered(26, 6, 5), 0, 26, Origin.CLIENT)
    assert table.state(1) == before
    table.drop()
    assert table.state(1) == before
    table.stage(numbered(26, 6, 5), 0, 26, Origin.CLIENT)
    table.publish()
    after = table.state(1)
    assert after is not None
    assert after[5] == ((0, 5, 15, 20, -1), (6, 10, 26, 30, -1))


def test_one_append_holds_a_transaction_from_its_beginning_to_its_end(partition: Path) -> None:
    """ProducerStateManagerTest.updateProducerTransactionState."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(numbered(9, 0))
        log.append_as_follower(numbered(16, 1, 5, txn=True) + numbered(26, 6, 5, txn=True))
        assert state(log).current_txn_first_offset == log.last_stable_offset == 16
        assert [kept[:4] for kept in state(log).batches[1:]] == [(1, 5, 16, 20), (6, 10, 26, 30)]
        log.truncate_to(16)
        log.append_as_follower(
            numbered(16, 1, 5, txn=True)
            + numbered(26, 6, 5, txn=True)
            + marker(40, 1, commit=True, coordinator_epoch=15)
        )
        after = state(log)
        assert [kept[:4] for kept in after.batches[-2:]] == [(1, 5, 16, 20), (6, 10, 26, 30)]
        assert (after.coordinator_epoch, after.current_txn_first_offset) == (15, -1)
        assert (log.last_stable_offset, aborted(partition)) == (41, [])


def test_an_empty_transaction_does_not_bring_a_replaced_coordinator_back(partition: Path) -> None:
    """UnifiedLogTest.testZombieCoordinatorFencedEmptyTransaction."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(numbered(0, 0, txn=True) + marker(1, 1, commit=True))
        for _ in range(2):
            log.append_marker(1, 0, commit=False, coordinator_epoch=2)
        with pytest.raises(kstore.TransactionCoordinatorFencedError):
            log.append_marker(1, 0, commit=False, coordinator_epoch=1)
        assert log.log_end_offset == 4


def compacted(base: int, kept: tuple[int, ...], last: int) -> bytes:
    """A numbered batch of which a cleaner has kept these records."""
    records = [record(delta, 0, None, b"value") for delta in kept]
    return v2(
        records, base_offset=base, leader_epoch=0, last_offset_delta=last, producer_id=1, producer_epoch=0,
        base_sequence=0,
    )  # fmt: skip


@pytest.mark.parametrize(("kept", "last"), [((0, 2), 3), ((), 1)])
def test_a_compacted_batch_tells_the_sequences_that_it_had(
    partition: Path, clock: ManualClock, kept: tuple[int, ...], last: int
) -> None:
    """As it comes, and when it is replayed: UnifiedLogTest.testUpdateProducerIdMapWithCompactedData,
    UnifiedLogTest.testRebuildProducerIdMapWithCompactedData,
    UnifiedLogTest.testRebuildProducerStateWithEmptyCompactedBatch."""
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_as_follower(compacted(23, kept, last))
        assert last_sequences(log) == {1: last}
        end = log.log_end_offset
        log.append_as_follower(batch(end, b"a", b"b"))
        for path in partition.glob("*.snapshot"):
            path.unlink()
        assert log.truncate_to(end)
        assert last_sequences(log) == {1: last}
        abandon(log)
    recover_from(partition, 0)
    with kstore.Log.open(partition, clock=clock) as log:
        assert last_sequences(log) == {1: last}


# Snapshots


def test_without_a_snapshot_a_cut_replays_what_is_left(partition: Path) -> None:
    """UnifiedLogTest.testProducerIdMapTruncateToWithNoSnapshots."""
    with kstore.Log.open(partition) as log:
        send(log, 0)
        send(log, 1)
        assert snapshots(partition) == []
        log.truncate_to(1)
        assert last_sequences(log) == {1: 0}


def test_a_full_truncation_leaves_no_snapshot_and_the_next_begins_at_the_new_end(partition: Path) -> None:
    """ProducerStateManagerTest.testTruncateFullyAndStartAt."""
    with kstore.Log.open(partition) as log:
        for sequence in range(3):
            send(log, sequence)
            if sequence:
                log.roll()
        assert snapshots(partition) == [2, 3]
        log.truncate_fully_and_start_at(0)
        assert snapshots(partition) == []
        send(log, 0)
        log.roll()
        assert snapshots(partition) == [1]


def test_a_full_truncation_forgets_every_producer_and_transaction(partition: Path) -> None:
    """UnifiedLogTest.testTruncateFullyAndStartBelowFirstUnstableOffset."""
    with kstore.Log.open(partition) as log:
        for _ in range(3):
            log.append(b"plain")
        send(log, 0, 2, txn=True)
    with kstore.Log.open(partition) as log:
        assert log.last_stable_offset == 3
        log.truncate_fully_and_start_at(0)
        assert (log.last_stable_offset, log.log_end_offset, log.producer_states()) == (0, 0, [])


def test_raising_the_log_start_keeps_producers_and_takes_the_snapshots_of_what_goes(partition: Path) -> None:
    """UnifiedLogTest.testDeleteSnapshotsOnIncrementLogStartOffset."""
    with kstore.Log.open(partition, file_delete_delay_ms=0) as log:
        send(log, 0)
        log.roll()
        send(log, 0, pid=2)
        log.roll()
        assert snapshots(partition) == [1, 2]
        log.delete_records(2)
        assert len(log.apply_retention()) == 2
        log.run_housekeeping()
        assert snapshots(partition) == [2]
        assert last_sequences(log) == {1: 0, 2: 0}


def test_a_cut_leaves_the_snapshots_between_the_log_start_and_the_end(partition: Path) -> None:
    """ProducerStateManagerTest.testTruncateAndReloadRemovesOutOfRangeSnapshots."""
    with kstore.Log.open(partition) as log:
        for sequence in range(5):
            send(log, sequence)
            log.roll()
        assert snapshots(partition) == [1, 2, 3, 4, 5]
        log.delete_records(1)
        log.truncate_to(3)
        assert snapshots(partition) == [2, 3]


def test_snapshots_go_one_by_one_as_their_segments_do(partition: Path) -> None:
    """Renamed at first; one that another program has deleted is no fault:
    ProducerStateManagerTest.testDeleteSnapshotsBefore,
    ProducerStateManagerTest.testRemoveAndMarkSnapshotForDeletion,
    ProducerStateManagerTest.testRemoveAndMarkSnapshotForDeletionAlreadyDeleted."""
    with kstore.Log.open(partition) as log:
        for sequence in range(5):
            send(log, sequence)
            if sequence:
                log.roll()
        assert snapshots(partition) == [2, 3, 4, 5]
        for before, left in ((3, [3, 4, 5]), (4, [4, 5])):
            log.delete_records(before)
            log.apply_retention()
            assert snapshots(partition) == left
            assert segment_file(partition, before - 1, "snapshot.deleted").exists()
        segment_file(partition, 4, "snapshot").unlink()
        log.delete_records(5)
        log.apply_retention()
        assert snapshots(partition) == [5]
        assert not segment_file(partition, 4, "snapshot.deleted").exists()


@pytest.mark.parametrize("data", [0, 2])
def test_a_transaction_that_is_done_is_done_after_a_close(partition: Path, clock: ManualClock, data: int) -> None:
    """ProducerStateManagerTest.testRecoverFromSnapshotFinishedTransaction,
    ProducerStateManagerTest.testRecoverFromSnapshotEmptyTransaction."""
    with kstore.Log.open(partition, clock=clock) as log:
        for sequence in range(data):
            send(log, sequence, txn=True)
        clock.advance(5)
        log.append_marker(1, 0, commit=False)
    with kstore.Log.open(partition, clock=clock) as log:
        found = state(log)
        assert (found.last_timestamp, found.current_txn_first_offset) == (clock.now, -1)
        assert [kept[:4] for kept in found.batches] == ([(1, 1, 1, 1)] if data else [])
        assert log.last_stable_offset == data + 1


# Recovery


def test_recovery_takes_a_marker_of_an_older_coordinator(partition: Path, clock: ManualClock) -> None:
    """LogLoaderTest.testRecoverAfterNonMonotonicCoordinatorEpochWrite: the newer one's producer had expired."""
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_marker(1, 5, commit=False, coordinator_epoch=5)
        clock.advance(DAY_MS + EXPIRATION_CHECK_MS)
        log.run_housekeeping()
        assert log.producer_states() == []
        log.append_marker(1, 5, commit=False, coordinator_epoch=4)
        abandon(log)
    recover_from(partition, 0)
    clock.advance(EXPIRATION_MS - 1)
    with kstore.Log.open(partition, clock=clock) as log:
        assert state(log)[:4] == (1, 5, 4, clock.now - EXPIRATION_MS + 1)


@pytest.mark.parametrize("roll", [False, True])
def test_producers_of_deleted_records_are_known_until_the_log_is_loaded_again(partition: Path, roll: bool) -> None:
    """LogLoaderTest.testLoadProducersAfterDeleteRecordsMidSegment,
    LogLoaderTest.testLoadProducersAfterDeleteRecordsOnSegment (SEMANTICS 9.22)."""
    with kstore.Log.open(partition) as log:
        send(log, 0)
        if roll:
            log.roll()
        send(log, 0, pid=2)
        log.delete_records(1)
        assert len(log.apply_retention()) == int(roll)
        assert last_sequences(log) == {1: 0, 2: 0}
        abandon(log)
    recover_from(partition, 1)
    with kstore.Log.open(partition) as log:
        assert log.log_start_offset == 1
        # Kafka's segment that begins below the log start is replayed from its first batch on (SEMANTICS 8.14).
        assert last_sequences(log) == ({2: 0} if roll else {1: 0, 2: 0})


# pid or None for records without, and how many; the markers of pid 1, 3, 2 and 4 are False or True for commit.
STD_TXN: list[tuple[int | None, int | bool]] = [
    (1, 5), (None, 3), (2, 2), (1, 4), (3, 3), (None, 2), (1, 10), (1, False), (2, 6), (4, 3), (None, 10), (3, 9),
    (3, True), (4, 8), (2, 7), (2, False), (None, 10), (4, 4), (4, True),
]  # fmt: skip
STD_ABORTED = [(1, 0, 29, 8), (2, 8, 74, 36)]


def std_txn(log: kstore.Log) -> None:
    """The transactions of LogLoaderTest: four producers, two commits, two aborts, 90 offsets."""
    sequences: dict[int, int] = {}
    for pid, what in STD_TXN:
        if isinstance(what, bool):
            assert pid is not None
            log.append_marker(pid, 0, commit=what)
        elif pid is None:
            log.append_many([b"plain"] * what)
        else:
            send(log, sequences.get(pid, 0), what, pid=pid, txn=True)
            sequences[pid] = sequences.get(pid, 0) + what
    assert log.log_end_offset == 90


@pytest.mark.parametrize("by", ["leader", "follower"])
def test_the_index_has_each_abort_with_its_first_offset_and_the_last_stable_one(
    partition: Path, tmp_path: Path, by: str
) -> None:
    """UnifiedLogTest.testTransactionIndexUpdated, UnifiedLogTest.testTransactionIndexUpdatedThroughReplication: all
    batches in one append of a follower give the same."""
    with kstore.Log.open(partition) as log:
        std_txn(log)
        assert aborted(partition) == STD_ABORTED
        if by == "follower":
            partition = tmp_path / "follower-0"
            with kstore.Log.open(partition) as follower:
                follower.append_as_follower(b"".join(map(bytes, log.read_batches())))
                assert aborted(partition) == STD_ABORTED
                assert follower.last_stable_offset == log.last_stable_offset == 90
                assert follower.producer_states() == log.producer_states()


def test_a_transaction_that_was_aborted_is_closed_after_a_recovery_too(partition: Path) -> None:
    """UnifiedLogTest.testRebuildTransactionalState."""
    with kstore.Log.open(partition) as log:
        send(log, 0, 3, txn=True)
        assert log.last_stable_offset == 0
        log.append_marker(1, 0, commit=False)
        assert log.last_stable_offset == 4
        abandon(log)
    recover_from(partition, 0)
    with kstore.Log.open(partition) as log:
        assert not log.recovery.clean
        assert log.last_stable_offset == log.log_end_offset == 4


@pytest.mark.parametrize("without_snapshots", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_recovery_of_the_last_segment_alone_knows_the_transactions_before_it(
    partition: Path, without_snapshots: bool, whole: bool
) -> None:
    """LogLoaderTest.testRecoverOnlyLastSegment, LogLoaderTest.testRecoverLastSegmentWithNoSnapshots."""
    with kstore.Log.open(partition, segment_bytes=640) as log:
        std_txn(log)
        segments = bases(log)
        assert len(segments) > 3
        expected = log.producer_states()
        committed = [each.offset for each in log.read(isolation=COMMITTED)]
        abandon(log)
    assert aborted(partition) == STD_ABORTED
    for base in segments if whole else segments[-1:]:
        segment_file(partition, base, "index").unlink()
        segment_file(partition, base, "txnindex").unlink(missing_ok=True)
    if without_snapshots:
        for path in partition.glob("*.snapshot"):
            path.unlink()
    recover_from(partition, segments[-1])
    with kstore.Log.open(partition, segment_bytes=640) as log:
        assert aborted(partition) == STD_ABORTED
        assert [info[:5] for info in log.producer_states()] == [info[:5] for info in expected]
        assert [each.offset for each in log.read(isolation=COMMITTED)] == committed
        assert log.last_stable_offset == 90


# Readers of committed records


def test_records_without_a_transaction_do_not_move_the_last_stable_offset(partition: Path) -> None:
    """UnifiedLogTest.testLastStableOffsetWithMixedProducerData."""
    with kstore.Log.open(partition) as log:
        stable = [log.last_stable_offset]
        send(log, 0, 3, epoch=5, txn=True)
        stable.append(log.last_stable_offset)
        log.append_many([b"plain"] * 3)
        stable.append(log.last_stable_offset)
        send(log, 0, 3, pid=2, epoch=5, txn=True)
        stable.append(log.last_stable_offset)
        log.append_marker(1, 5, commit=False)
        stable.append(log.last_stable_offset)
        log.append_marker(2, 5, commit=True)
        assert [*stable, log.last_stable_offset] == [0, 0, 0, 0, 6, 11]


def test_the_last_stable_offset_is_the_start_of_the_first_transaction_that_is_open(partition: Path) -> None:
    """ProducerStateManagerTest.testLastStableOffsetCompletedTxn."""
    with kstore.Log.open(partition) as log:
        log.truncate_fully_and_start_at(992342)
        starts = [send(log, 0, 20, pid=pid, txn=True) for pid in (1, 2, 3)]
        assert log.last_stable_offset == starts[0] == 992342
        for pid, stable in ((1, starts[1]), (3, starts[1]), (2, 992342 + 63)):
            log.append_marker(pid, 0, commit=True)
            assert log.last_stable_offset == stable


@pytest.mark.parametrize("segment_goes", [False, True])
def test_nothing_is_unstable_below_the_log_start(partition: Path, segment_goes: bool) -> None:
    """UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetMidSegment,
    UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetAfterSegmentDeletion."""
    with kstore.Log.open(partition) as log:
        send(log, 0, 5, txn=True)
        log.append_many([b"plain"] * 3)
        log.roll()
        send(log, 5, 5, txn=True)
        assert log.last_stable_offset == 0
        start = 8 if segment_goes else 5
        log.delete_records(start)
        assert len(log.apply_retention()) == int(segment_goes)
        assert (log.log_start_offset, log.last_stable_offset) == (start, start)
        log.append_marker(1, 0, commit=True)
        assert log.last_stable_offset == 14


def test_a_transaction_that_is_aborted_at_once_is_not_read(partition: Path) -> None:
    """UnifiedLogTest.testReadCommittedWithConcurrentHighWatermarkUpdates: the high watermark is the end here, and
    readers of other threads and of another log meet every state between."""
    seen: list[int] = []
    whole = [threading.Event(), threading.Event()]
    done = threading.Event()

    def look(log: kstore.Log, read_once: threading.Event) -> None:
        while not done.is_set():
            seen.extend(each.offset for each in log.read(isolation=COMMITTED))
            read_once.set()

    with kstore.Log.open(partition) as log, kstore.Log.open(partition, mode="r") as reader:
        threads = [threading.Thread(target=look, args=each) for each in zip((log, reader), whole, strict=True)]
        for thread in threads:
            thread.start()
        try:
            for sequence in range(50):
                send(log, sequence, txn=True)
                seen.extend(each.offset for each in log.read(isolation=COMMITTED))
                log.append_marker(1, 0, commit=False)
            assert all(read_once.wait(60) for read_once in whole)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert seen == []


def test_an_abort_whose_entry_cannot_be_written_is_not_stored(partition: Path) -> None:
    """UnifiedLogTest.testAppendToTransactionIndexFailure: in Kafka the marker stays and the log can only be read until
    it is recovered (`abort-without-its-entry` in docs/compatibility.md)."""
    with kstore.Log.open(partition) as log:
        send(log, 0, 10, txn=True)
        with FaultFS(partition.parent) as disk:
            disk.fail("pwrite", path=str(partition / "*.txnindex"))
            with pytest.raises(kstore.StorageError):
                log.append_marker(1, 0, commit=False)
        assert (log.log_end_offset, log.last_stable_offset) == (10, 0)
        assert state(log).current_txn_first_offset == 0
        assert log.append_marker(1, 0, commit=False) == 10
        assert (log.last_stable_offset, aborted(partition)) == (11, [(1, 0, 10, 11)])
        assert list(log.read(isolation=COMMITTED)) == []


# Control records


def test_a_marker_comes_back_as_it_was_made(partition: Path) -> None:
    """EndTransactionMarkerTest.testSerde."""
    with kstore.Log.open(partition) as log:
        log.append_marker(1, 0, commit=True, coordinator_epoch=79)
        [stored] = log.read_batches()
        [found] = stored
        assert (found.key, found.value) == (b"\0\0\0\1", b"\0\0" + (79).to_bytes(4, "big"))
        assert control_text(found.key, found.value) == b" endTxnMarker: COMMIT coordinatorEpoch: 79"


def control(key: bytes, value: bytes) -> bytes:
    return v2([record(0, 0, key, value)], attributes=TRANSACTIONAL | CONTROL, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\0\xff\xff", bytes(6)), (b"\0\0\0\2", bytes(6)), (b"\0\0\0\0", b"\xff\xff"), (b"\xff\xff\0\0", bytes(6))],
    ids=["unknown type", "another type", "version of the value", "version of the key"],
)
def test_what_is_no_end_of_a_transaction_is_refused(partition: Path, key: bytes, value: bytes) -> None:
    """EndTransactionMarkerTest.testCannotDeserializeUnknownControlType, EndTransactionMarkerTest.testIllegalVersion."""
    with kstore.Log.open(partition) as log:
        with pytest.raises(kstore.InvalidRecordError):
            log.append_batch(control(key, value), origin="coordinator")
        assert log.log_end_offset == 0


def test_a_marker_of_a_newer_version_is_read_as_one_of_version_0(partition: Path) -> None:
    """ControlRecordTypeTest.testParseUnknownVersion."""
    with kstore.Log.open(partition) as log:
        send(log, 0, txn=True)
        log.append_batch(control(b"\0\5\0\0" + bytes(4), bytes(6)), origin="coordinator")
        assert aborted(partition) == [(1, 0, 1, 2)]


KINDS = ["ABORT", "COMMIT", "LeaderChange", "SnapshotHeader", "SnapshotFooter", "KRaftVersion", "KRaftVoters"]
BODIES = {2: bytes(6) + b"\1\1\0", 6: bytes(2) + b"\1\0"}  # no voters in compact arrays; the others are numbers


@pytest.mark.parametrize("number", [*range(7), -1, 7])
def test_every_type_of_control_record_is_told_by_its_name(number: int) -> None:
    """ControlRecordTypeTest.testRoundTrip."""
    key = b"\0\0" + number.to_bytes(2, "big", signed=True)
    text = control_text(key, BODIES.get(number, bytes(40))).decode()
    assert (KINDS[number] if 0 <= number < 7 else f"UNKNOWN({number})") in text
