"""Producers in a log: numbered batches, transactions, and who reads what of them (SEMANTICS 9)."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.files._producer_snapshot import parse_snapshot
from kstore.files.txnindex import parse_txn_index
from kstore.log.segments.producer_state import EXPIRATION_CHECK_MS, EXPIRATION_MS
from tests.conftest import ManualClock

INT_MAX = 2**31 - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def send(log: kstore.Log, sequence: int, *values: bytes, pid: int = 7, epoch: int = 0, txn: bool = False) -> Any:
    return log.append_many(
        values or [b"v"], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=txn
    )


def values(log: kstore.Log, **how: Any) -> list[bytes | None]:
    return [record.value for record in log.read(isolation="read_committed", **how)]


# --- numbered batches


def test_a_batch_that_the_log_has_is_answered_with_its_first_offsets(path: Path) -> None:
    """ProducerStateManagerTest.testBasicIdMapping, UnifiedLogTest.testDuplicateAppends; SEMANTICS V13, V15."""
    with kstore.Log.open(path) as log:
        for n in range(6):
            assert send(log, 2 * n, b"a", b"b").first_offset == 2 * n
        for n in range(1, 6):
            info = send(log, 2 * n, b"a", b"b")
            assert (info.first_offset, info.last_offset) == (2 * n, 2 * n + 1)
        assert log.log_end_offset == 12
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 0, b"a", b"b")  # the sixth back is forgotten (SEMANTICS 9.9)
        with pytest.raises(kstore.OutOfOrderSequenceError) as refused:
            send(log, 10, b"a")  # overlaps and is not equal
        error = refused.value
        assert (error.producer_id, error.producer_epoch, error.expected, error.found) == (7, 0, 12, 10)
        assert vars(pickle.loads(pickle.dumps(error)))["expected"] == 12
        assert log.log_end_offset == 12


def test_a_gap_of_one_is_refused_and_the_next_sequence_is_taken(path: Path) -> None:
    with kstore.Log.open(path) as log:
        send(log, 5)  # a producer that is not known may begin anywhere (SEMANTICS 9.7)
        for wrong in (7, 4, 0):
            with pytest.raises(kstore.OutOfOrderSequenceError):
                send(log, wrong)
        assert send(log, 6).first_offset == 1


def test_sequences_wrap(path: Path) -> None:
    """ProducerStateManagerTest.testProducerSequenceWrapAround,
    ProducerStateManagerTest.testProducerSequenceInvalidWrapAround; SEMANTICS V14."""
    with kstore.Log.open(path) as log:
        send(log, INT_MAX - 1, b"a", b"b")
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 1)
        send(log, 0)
        send(log, INT_MAX, b"a", b"b", pid=8)
        assert log.producer_states()[1].batches[0][:2] == (INT_MAX, 0)
        send(log, 1, pid=8)


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero(path: Path) -> None:
    """UnifiedLogTest.testOldProducerEpoch."""
    with kstore.Log.open(path) as log:
        send(log, 0, epoch=3)
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 1, epoch=4)
        send(log, 0, epoch=4)
        with pytest.raises(kstore.InvalidProducerEpochError) as refused:
            send(log, 1, epoch=3)
        assert (refused.value.expected, refused.value.found) == (4, 3)


def test_batches_without_a_producer_leave_no_trace(path: Path) -> None:
    with kstore.Log.open(path) as log:
        log.append(b"v")
        log.append_many([b"v"] * 10)
        assert log.producer_states() == []
    [snapshot] = path.glob("*.snapshot")
    assert parse_snapshot(snapshot.read_bytes()) == []


@pytest.mark.parametrize(
    "wrong",
    [{"producer_epoch": 1}, {"base_sequence": 0}, {"transactional": True}, {"producer_id": 1},
     {"producer_id": 1, "producer_epoch": 32768, "base_sequence": 0}, {"producer_id": -2}],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(path: Path, wrong: dict[str, Any]) -> None:
    with kstore.Log.open(path) as log:
        with pytest.raises(ValueError, match=r"producer|sequence"):
            log.append_many([b"v"], **wrong)
        with pytest.raises(ValueError, match=r"producer|sequence"):
            log.append_columns([b"v"], **wrong)
        assert log.log_end_offset == 0


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_columns_are_numbered_as_records_are(path: Path, compression: str) -> None:
    numbers: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "batch_bytes": 1000}
    rows = [b"value %d" % n for n in range(500)]
    with kstore.Log.open(path) as log:
        log.append_columns(rows, compression=compression, **numbers)
        [state] = log.producer_states()
        assert state.batches[-1].last_sequence == 499
        assert [batch.base_sequence for batch in log.read_batches()] == [b.base_offset for b in log.read_batches()]
        send(log, 500, pid=1)


def test_a_refused_append_tells_that_nothing_is_stored(path: Path) -> None:
    with kstore.Log.open(path) as log:
        log.append_marker(7, 2, commit=True)
        with pytest.raises(kstore.InvalidProducerEpochError) as refused:
            send(log, 2)
        assert refused.value.appended == kstore.AppendInfo()
        assert log.log_end_offset == 1


def test_a_follower_takes_what_its_leader_took(path: Path, tmp_path: Path) -> None:
    """ProducerStateManagerTest.testAcceptAppendWithSequenceGapsOnReplica."""
    with kstore.Log.open(path) as log, kstore.Log.open(tmp_path / "t-1") as follower:
        send(log, 0, txn=True)
        log.append_marker(7, 0, commit=False)
        send(log, 3, pid=8)
        log.append_marker(8, 1, commit=True)
        for batch in log.read_batches():
            follower.append_as_follower(bytes(batch))
        assert follower.producer_states() == log.producer_states()
        gap = kstore.encode_batch(
            [b"v"], base_offset=4, partition_leader_epoch=0, producer_id=8, producer_epoch=0, base_sequence=77
        )
        follower.append_as_follower(gap)  # neither sequence nor epoch are a follower's to refuse
        assert follower.producer_states()[1].batches[-1].last_sequence == 77
        assert [x.read_bytes() for x in path.glob("*.txnindex")] == [
            x.read_bytes() for x in (tmp_path / "t-1").glob("*.txnindex")
        ]


@pytest.mark.parametrize("segment_bytes", [250, 400, 10_000])
def test_batches_written_together_are_those_written_one_by_one(path: Path, tmp_path: Path, segment_bytes: int) -> None:
    """Over rolls, and where the first of them are in the log already."""
    rows = [b"x" * 50] * 5
    one = kstore.Log.open(path, segment_bytes=segment_bytes)
    many = kstore.Log.open(tmp_path / "t-1", segment_bytes=segment_bytes)
    with one, many:
        for n in range(5):
            send(one, n, rows[n])
        numbers: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "batch_bytes": 130}
        assert many.append_many(rows[:3], **numbers).last_offset == 2
        info = many.append_many(rows, **numbers)
        assert (info.first_offset, info.last_offset) == (0, 4)
        assert many.append_many(rows, **numbers).first_offset == 0
        assert many.log_end_offset == one.log_end_offset == 5
        assert [s.base_offset for s in many.segments] == [s.base_offset for s in one.segments]
        with pytest.raises(kstore.OutOfOrderSequenceError) as refused:
            many.append_many(rows[:1] * 2, **{**numbers, "base_sequence": 4, "batch_bytes": 200})
        assert refused.value.expected == 5
        states = [[[b[:4] for b in s.batches] for s in log.producer_states()] for log in (one, many)]
        assert states[0] == states[1]


# --- transactions


def test_v16_two_transactions_one_aborted(path: Path) -> None:
    """ProducerStateManagerTest.testFirstUnstableOffset."""
    with kstore.Log.open(path) as log:
        send(log, 0, *[b"a"] * 5, pid=1, txn=True)
        send(log, 0, *[b"b"] * 3, pid=2, txn=True)
        assert log.last_stable_offset == 0
        assert log.append_marker(1, 0, commit=False) == 8
        assert log.last_stable_offset == 5
        [index] = path.glob("*.txnindex")
        assert parse_txn_index(index.read_bytes()) == [(0, 1, 0, 8, 5)]
        assert log.append_marker(2, 0, commit=True) == 9
        assert log.last_stable_offset == 10
        assert values(log) == [b"b"] * 3
        assert [b.base_offset for b in log.read_batches(isolation="read_committed")] == [5, 8, 9]
        assert list(log.read_columns(isolation="read_committed").offsets) == [5, 6, 7]
        assert list(log.batch_table(isolation="read_committed").base_offset) == [5, 8, 9]
        assert log.fetch(0, 10_000, isolation="read_committed").aborted_transactions == ((1, 0),)
        assert log.fetch(0, 10_000).aborted_transactions is None


def test_what_is_undecided_ends_every_reader(path: Path) -> None:
    """UnifiedLogTest.testFetchUpToLastStableOffset, testLastStableOffsetWithMixedProducerData."""
    with kstore.Log.open(path) as log:
        log.append(b"plain")
        send(log, 0, b"open", txn=True)
        log.append(b"behind")
        assert values(log) == [b"plain"]
        got = log.fetch(0, 10_000, isolation="read_committed")
        assert [batch.base_offset for batch in kstore.decode_batches(got.records)] == [0]
        for offset in (1, 2, 3):
            empty = log.fetch(offset, 10_000, isolation="read_committed")
            assert (bytes(empty.records), empty.aborted_transactions) == (b"", ())
        assert len(log.read_columns(isolation="read_committed").values) == 1
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.fetch(4, 1, isolation="read_committed")
        log.append_marker(7, 0, commit=True)
        assert values(log) == [b"plain", b"open", b"behind"]


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_an_undecided_batch_that_the_log_start_divides_is_in_no_reader(path: Path, start: int) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0, b"a", b"b", b"c", txn=True)
        log.append(b"behind")
        log.delete_records(start)
        assert log.last_stable_offset == start
        with kstore.Log.open(path, mode="r") as reader:
            # Who opens the log without what lies below its start does not know that there is a transaction.
            for each in (log, reader) if start < 3 else (log,):
                assert values(each) == []
                assert list(each.read_batches(isolation="read_committed")) == []
                assert len(each.batch_table(isolation="read_committed")) == 0
                assert len(each.read_columns(isolation="read_committed")) == 0
                assert len(each.fetch(start, 1000, isolation="read_committed").records) == 0


def test_a_follower_of_committed_records_waits_for_the_marker(path: Path) -> None:
    with kstore.Log.open(path) as log:
        reader = log.read(isolation="read_committed", follow=True, timeout=0)
        send(log, 0, b"a", txn=True)
        assert list(log.read(isolation="read_committed", follow=True, timeout=0)) == []
        log.append_marker(7, 0, commit=True)
        assert [record.value for record in reader] == [b"a"]


def test_a_batch_outside_of_an_open_transaction_is_refused(path: Path) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0, txn=True)
        with pytest.raises(kstore.InvalidTxnStateError):
            send(log, 1)
        send(log, 1, txn=True)


def test_v28_epochs_of_markers(path: Path) -> None:
    """SEMANTICS 9.11a; ProducerStateManagerTest.testAppendTxnMarkerWithNoProducerState."""
    with kstore.Log.open(path) as log:
        for epoch, version in ((1, 0), (1, 2), (1, 2), (2, 2), (2, 2)):
            log.append_marker(7, epoch, commit=True, transaction_version=version)
        with pytest.raises(kstore.InvalidProducerEpochError):
            log.append_marker(7, 1, commit=True, transaction_version=2)
        log.append_marker(7, 2, commit=True, transaction_version=0)
        send(log, 0, epoch=2, txn=True)
        with pytest.raises(kstore.InvalidProducerEpochError):
            log.append_marker(7, 2, commit=True, transaction_version=2)
        log.append_marker(7, 3, commit=True, transaction_version=2)
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 1, epoch=3, txn=True)  # SEMANTICS 9.8
        send(log, 0, epoch=3, txn=True)


def test_a_coordinator_that_was_replaced_is_fenced(path: Path) -> None:
    """ProducerStateManagerTest.testCoordinatorFencing, UnifiedLogTest.testZombieCoordinatorFenced."""
    with kstore.Log.open(path) as log:
        send(log, 0, txn=True)
        log.append_marker(7, 0, commit=True, coordinator_epoch=5)
        send(log, 1, txn=True)
        with pytest.raises(kstore.TransactionCoordinatorFencedError):
            log.append_marker(7, 0, commit=True, coordinator_epoch=4)
    with kstore.Log.open(path) as log:
        with pytest.raises(kstore.TransactionCoordinatorFencedError):
            log.append_marker(7, 0, commit=False, coordinator_epoch=4)
        log.append_marker(7, 0, commit=False, coordinator_epoch=5)


def test_a_marker_without_a_transaction_is_no_abort(path: Path) -> None:
    """ProducerStateManagerTest.testSkipEmptyTransactions."""
    with kstore.Log.open(path) as log:
        log.append_marker(7, 0, commit=False)
        assert list(path.glob("*.txnindex")) == []
        assert log.last_stable_offset == 1


def test_a_transaction_over_several_segments_is_left_out_everywhere(path: Path) -> None:
    """UnifiedLogTest.testAbortedTransactionSpanningMultipleSegments."""
    with kstore.Log.open(path, segment_bytes=500) as log:
        for n in range(20):
            send(log, n, b"x" * 60, txn=True)
            log.append(b"kept %d" % n)
        log.append_marker(7, 0, commit=False)
        kept = [b"kept %d" % n for n in range(20)]
        assert values(log) == kept
        assert len(log.read_columns(isolation="read_committed").values) == 20
        entries = [x for x in sorted(path.glob("*.txnindex")) if x.stat().st_size]
        assert len(entries) == 1
        with kstore.Log.open(path, mode="r") as reader:
            assert values(reader) == kept


# --- what is left on the disk


def test_a_closed_log_knows_its_producers_but_only_their_last_batch(path: Path) -> None:
    """SEMANTICS 9.25."""
    with kstore.Log.open(path) as log:
        send(log, 0)
        send(log, 1)
        send(log, 0, pid=9, txn=True)
        before = log.producer_states()
    with kstore.Log.open(path) as log:
        assert log.recovery.clean
        after = log.producer_states()
        assert [s._replace(batches=s.batches[-1:]) for s in before] == after
        assert log.last_stable_offset == 2
        assert send(log, 1).first_offset == 1
        with pytest.raises(kstore.OutOfOrderSequenceError):
            send(log, 0)


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_without_its_snapshot_the_state_is_replayed(path: Path, damage: str) -> None:
    """ProducerStateManagerTest.testLoadFromCorruptSnapshotFile,
    ProducerStateManagerTest.testLoadFromTruncatedSnapshotFile,
    ProducerStateManagerTest.testLoadFromEmptySnapshotFile."""
    with kstore.Log.open(path, segment_bytes=400) as log:
        for n in range(12):
            send(log, n, b"x" * 40)
        send(log, 0, pid=9, txn=True)
        before = log.producer_states()
    for snapshot in sorted(path.glob("*.snapshot"))[1:]:
        data = bytearray(snapshot.read_bytes())
        data[-1] ^= 1
        snapshot.unlink() if damage == "gone" else snapshot.write_bytes(
            {"cut": data[:-1], "flip": data, "empty": b""}[damage]
        )
    with kstore.Log.open(path, segment_bytes=400) as log:
        assert [s[:5] for s in log.producer_states()] == [s[:5] for s in before]
        assert log.last_stable_offset == 12


def test_truncation_takes_the_state_back(path: Path) -> None:
    """UnifiedLogTest.testProducerIdMapTruncateTo, ProducerStateManagerTest.testFirstUnstableOffsetAfterTruncation."""
    with kstore.Log.open(path) as log:
        send(log, 0, txn=True)
        log.append_marker(7, 0, commit=False)
        send(log, 1, txn=True)
        log.append_marker(7, 0, commit=False)
        [index] = path.glob("*.txnindex")
        log.truncate_to(3)
        assert len(parse_txn_index(index.read_bytes())) == 1
        assert log.last_stable_offset == 2
        log.truncate_to(1)
        assert log.last_stable_offset == 0
        assert index.read_bytes() == b""
        assert [s.current_txn_first_offset for s in log.producer_states()] == [0]
        log.truncate_fully_and_start_at(0)
        assert log.producer_states() == []


def test_snapshots_go_with_their_segments(path: Path, clock: ManualClock) -> None:
    """UnifiedLogTest.testProducerIdExpirationOnSegmentDeletion; SEMANTICS 9.22: what is deleted is still known."""
    with kstore.Log.open(path, clock=clock, segment_bytes=400, file_delete_delay_ms=0, retention_bytes=500) as log:
        for n in range(12):
            send(log, n, b"x" * 40)
        gone = log.apply_retention()
        log.run_housekeeping()
        assert len(gone) >= 2
        left = sorted(int(x.stem) for x in path.glob("*.snapshot"))
        assert not {s.base_offset for s in gone} & set(left)
        assert log.producer_states()[0].batches[-1].last_sequence == 11


def test_a_silent_producer_is_forgotten_unless_its_transaction_is_open(path: Path, clock: ManualClock) -> None:
    """ProducerStateManagerTest.testPidExpirationTimeout,
    ProducerStateManagerTest.testProducersWithOngoingTransactionsDontExpire; SEMANTICS 9.21.
    ProducerStateManagerTest.testRemoveExpiredPidsOnReload."""
    with kstore.Log.open(path, clock=clock) as log:
        send(log, 0)
        send(log, 0, pid=8, txn=True)
        clock.now += EXPIRATION_MS - 1
        log.run_housekeeping()
        assert len(log.producer_states()) == 2
        clock.now += EXPIRATION_CHECK_MS
        log.run_housekeeping()
        assert [s.producer_id for s in log.producer_states()] == [8]
        log.append_marker(8, 0, commit=True)
    clock.now += EXPIRATION_MS
    with kstore.Log.open(path, clock=clock) as log:
        assert log.producer_states() == []
        send(log, 2)  # of a producer that is not known any sequence is taken
        assert [s.batches[-1].last_sequence for s in log.producer_states()] == [2]


@pytest.mark.parametrize("known", [True, False])
def test_a_cut_through_a_transaction_reopens_it_unless_all_producers_had_expired(
    path: Path, clock: ManualClock, known: bool
) -> None:
    """SEMANTICS 9.26: where nothing was known before a truncation, no batch is read again, as in Kafka."""
    with kstore.Log.open(path, clock=clock) as log:
        send(log, 0, txn=True)
        log.append_marker(7, 0, commit=True)
        if not known:
            clock.now += EXPIRATION_MS + EXPIRATION_CHECK_MS
            log.run_housekeeping()
        assert bool(log.producer_states()) == known
        log.truncate_to(1)
        assert [s.current_txn_first_offset for s in log.producer_states()] == [0] * known
        assert log.last_stable_offset == (0 if known else 1)


def with_last_batches(log: kstore.Log) -> list[tuple[object, ...]]:
    """The producers, each with the last batch alone: a snapshot, which a reader may begin with, keeps no more."""
    return [(*info[:5], info.batches[-1:]) for info in log.producer_states()]


def test_a_read_only_log_knows_the_producers_that_its_writer_knows(path: Path) -> None:
    with kstore.Log.open(path, segment_bytes=500) as log, kstore.Log.open(path, "r") as reader:
        assert reader.producer_states() == []
        for n in range(12):
            send(log, n // 3, b"x" * 30, pid=n % 3, epoch=n % 3 % 2, txn=n % 3 == 2)
        assert with_last_batches(reader) == with_last_batches(log)
        log.append_marker(2, 0, commit=True)
        assert with_last_batches(reader) == with_last_batches(log)
        log.truncate_to(9)
        assert [info[:5] for info in reader.producer_states()] == [info[:5] for info in log.producer_states()]
    with kstore.Log.open(path, "r") as reader:  # a snapshot keeps one batch of each
        assert [(info.producer_id, info.batches[-1].last_sequence) for info in reader.producer_states()] == [
            (0, 2),
            (1, 2),
            (2, 2),
        ]
        closed = reader
    with pytest.raises(kstore.LogClosedError):
        closed.producer_states()


def test_recovery_makes_the_transaction_index_anew(path: Path, tmp_path: Path) -> None:
    """LogLoaderTest.testFullTransactionIndexRecovery, LogSegmentTest.testRecoverTransactionIndex."""
    copy = tmp_path / "crashed" / "t-0"
    with kstore.Log.open(path, segment_bytes=500) as log:
        for n in range(0, 20, 2):
            send(log, n, b"x" * 30, b"y", txn=True)
            log.append_marker(7, 0, commit=n % 4 == 0)
        send(log, 20, b"z", txn=True)
        before, stable = log.producer_states(), log.last_stable_offset
        expected, committed = {x.name: x.read_bytes() for x in path.glob("*.txnindex")}, values(log)
        shutil.copytree(path, copy)
    for index in copy.glob("*.txnindex"):
        index.unlink()
    with kstore.Log.open(copy, mode="r") as reader:
        assert values(reader) == committed
        assert reader.last_stable_offset == stable
    with kstore.Log.open(copy, segment_bytes=500) as log:
        assert not log.recovery.clean
        assert {x.name: x.read_bytes() for x in copy.glob("*.txnindex")} == expected
        assert [s[:5] for s in log.producer_states()] == [s[:5] for s in before]
        assert values(log) == committed


def test_a_hundred_thousand_producers_take_less_than_300_bytes_each(path: Path) -> None:
    from kstore.log.segments._producer_state import ProducerTable

    table = ProducerTable()
    batch = bytearray(kstore.encode_batch([b"v"], producer_id=1, producer_epoch=0, base_sequence=0))
    for n in range(100_000):
        batch[43:51] = (n * 7919).to_bytes(8, "big")
        assert table.stage(batch, 0, n, 0) is None
        table.publish()
    assert table.size_bytes <= 300 * len(table)
    again = ProducerTable()
    assert again.load(table.snapshot(), 0, 2**62)
    assert again.snapshot() == table.snapshot()


# --- a model of ten lines


def model(batches: list[kstore.RecordBatch]) -> list[int]:
    """Offsets that a reader of committed records sees: up to the first open transaction, without the aborted ones."""
    open_at: dict[int, int] = {}
    kept: dict[int, tuple[int, int]] = {}
    for batch in batches:
        if batch.is_control:
            first = open_at.pop(batch.producer_id, None)
            if first is not None and next(iter(batch)).key[3] == 0:
                kept = {o: k for o, k in kept.items() if not (k[0] == batch.producer_id and k[1] and o >= first)}
            continue
        if batch.is_transactional:
            open_at.setdefault(batch.producer_id, batch.base_offset)
        for offset in range(batch.base_offset, batch.last_offset + 1):
            kept[offset] = (batch.producer_id, batch.is_transactional)
    return [offset for offset in kept if offset < min(open_at.values(), default=1 << 62)]


STEP = st.tuples(st.integers(0, 3), st.sampled_from(["data"] * 5 + ["commit", "abort", "plain", "roll"]))


@given(steps=st.lists(STEP, max_size=40), where=st.integers(0, 60))
def test_every_reader_of_committed_records_agrees_with_the_model(
    steps: list[tuple[int, str]], where: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """TransactionIndexTest.testCollectAbortedTransactions."""
    path = tmp_path_factory.mktemp("model") / "t-0"
    sequences: dict[int, int] = {}
    with kstore.Log.open(path, segment_bytes=700, index_interval_bytes=100) as log:
        for pid, what in steps:
            if what == "data":
                send(log, sequences.get(pid, 0), b"a", b"b", pid=pid, txn=True)
                sequences[pid] = sequences.get(pid, 0) + 2
            elif what == "plain":
                log.append(b"p")
            elif what == "roll":
                log.roll()
            else:
                log.append_marker(pid, 0, commit=what == "commit")
        every = list(log.read_batches())
        start = min(where, log.log_end_offset)
        wanted = [offset for offset in model(every) if offset >= start]
        with kstore.Log.open(path, mode="r") as reader:
            for each in (log, reader):
                assert [r.offset for r in each.read(start, isolation="read_committed")] == wanted
                assert list(each.read_columns(start, isolation="read_committed").offsets) == wanted
                chunks = each.iter_columns(start, isolation="read_committed", max_records=3)
                assert [o for chunk in chunks for o in chunk.offsets] == wanted
                batches = each.read_batches(start, isolation="read_committed")
                found = [r.offset for b in batches if not b.is_control for r in b if r.offset >= start]
                assert found == wanted
                assert consume(each, start) == wanted
            assert reader.last_stable_offset == log.last_stable_offset


def consume(log: kstore.Log, offset: int) -> list[int]:
    """What Kafka's consumer makes of fetches and their lists of aborted transactions."""
    found = []
    while True:
        got = log.fetch(offset, 1 << 20, isolation="read_committed")
        batches = list(kstore.decode_batches(got.records))
        if not batches:
            return found
        coming = sorted(got.aborted_transactions or (), key=lambda each: each[1])
        aborted: set[int] = set()
        for batch in batches:
            while coming and coming[0][1] <= batch.last_offset:
                aborted.add(coming.pop(0)[0])
            if batch.is_control:
                if next(iter(batch)).key[3] == 0:
                    aborted.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in aborted):
                found += [r.offset for r in batch if r.offset >= offset]
        offset = batches[-1].next_offset


def test_the_command_line_leaves_aborted_records_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kstore import cli

    with kstore.Log.open(path) as log:
        send(log, 0, b"gone", txn=True)
        log.append_marker(7, 0, commit=False)
        log.append(b"kept")
    for command in ("cat", "tail"):
        assert cli.main([command, os.fspath(path), "--isolation", "read_committed"]) == 0
        assert capsys.readouterr().out == "kept\n"
        assert cli.main([command, os.fspath(path)]) == 0
        assert capsys.readouterr().out == "gone\nkept\n"
