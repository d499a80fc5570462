"""The compiled steps of a transaction: what they leave to others, and what they refuse."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.codec.coordinator.transaction_records import Status, parse_transaction
from kstore.log._append import append_commit
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.coordinator._transaction import LAST_EPOCH, IdSteps, RecordTransaction, StepLock
from tests.conftest import ManualClock

ID = "loader"


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "store", clock=clock, background=False) as store:
        store.create_topic("t", 3)
        yield store


def statuses(store: kstore.Store) -> list[Status]:
    return [parse_transaction(record.value or b"").status for record in store.read("__transaction_state")]


def committed(store: kstore.Store) -> list[bytes | None]:
    return [record.value for record in store.read("t", isolation="read_committed")]


def test_what_is_asked_of_a_closed_store_is_refused_in_the_stores_words(tmp_path: Path) -> None:
    store = kstore.Store.open(tmp_path / "store", background=False)
    store.create_topic("t", 3)
    txn = store.producer(transactional_id=ID).transaction()
    txn.append("t", b"v", partition=0)
    store.close()
    for act in (lambda: txn.append("t", b"v", partition=1), txn.commit, txn.abort):
        with pytest.raises(kstore.LogClosedError, match="the store at"):
            act()
    assert not txn.ended


def test_a_partition_is_entered_once_and_before_its_first_record(store: kstore.Store) -> None:
    with store.producer(transactional_id=ID) as producer:
        txn = producer.transaction()
        for number in (0, 2, 0, 2):
            txn.append("t", b"v", partition=number)
        assert txn._numbers.entered == {("t", 0), ("t", 2)}
        assert statuses(store) == [Status.EMPTY, Status.ONGOING, Status.ONGOING]
        with pytest.raises(kstore.RecordTooLargeError):
            txn.append("t", bytes(2 << 20), partition=1)
        assert statuses(store)[-1] == Status.ONGOING
        assert len(statuses(store)) == 4  # known to the coordinator although its first record was refused
        txn.commit()


@pytest.mark.parametrize("number", [-1, 3, 1 << 70])
def test_a_record_for_a_partition_that_is_not_there_enters_nothing(store: kstore.Store, number: int) -> None:
    with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
        with pytest.raises(kstore.UnknownTopicOrPartitionError):
            txn.append("t", b"v", partition=number)
        assert txn._numbers.entered == set()
        for there in (0, 2):
            assert txn.append("t", b"v", partition=there)[:3] == ("t", there, 0)


@pytest.mark.parametrize("how", [{"headers": [("h", b"1")]}, {"expected_offset": 1}, {"timestamp": 7}, {}])
def test_a_record_gets_its_number_whichever_way_it_takes(store: kstore.Store, how: dict[str, Any]) -> None:
    with store.producer(transactional_id=ID) as producer:
        for begin in (0, 4):
            if "expected_offset" in how:
                how = {"expected_offset": begin + 1}
            with producer.transaction() as txn:
                txn.append("t", b"a", partition=0)
                txn.append("t", b"b", partition=0, **how)
                txn.append("t", b"c", partition=0)
    batches = [each for each in store.log("t", 0).read_batches() if not each.is_control]
    assert [(each.producer_epoch, each.base_sequence) for each in batches] == [
        (e, n) for e in (0, 1) for n in (0, 1, 2)
    ]
    assert committed(store) == [b"a", b"b", b"c"] * 2


def test_the_times_of_states_are_those_of_the_stores_clock(store: kstore.Store, clock: ManualClock) -> None:
    with store.producer(transactional_id=ID) as producer:
        times = [clock()]
        with producer.transaction() as txn:
            txn.append("t", b"v", partition=0)
            times.append(clock.advance(10) or clock())
            txn.append("t", b"v", partition=1)
            times.append(clock.advance(10) or clock())
    states = [parse_transaction(record.value or b"") for record in store.read("__transaction_state")][1:]
    assert [state.last_update_ms for state in states] == [times[0], times[1], times[2], times[2]]
    assert {state.start_ms for state in states} == {times[0]}


def test_a_commits_marker_is_left_to_the_log_where_there_is_more_to_do(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        assert not append_commit(log, 0, 7, 0, 0, 2)  # no such producer
        log.append_many([b"v"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        assert not append_commit(log, 0, 7, 0, 0, 2)  # the epoch is not above that of the transaction
        end = log.log_end_offset
        assert append_commit(log, 0, 7, 1, 0, 2)
        assert log.log_end_offset == end + 1
        assert not append_commit(log, 0, 7, 2, 0, 2)  # nothing is open any more
    assert not append_commit(log, 0, 7, 2, 0, 2)
    with Log.open(tmp_path / "t-0", "r") as read:
        assert not append_commit(read, 0, 7, 2, 0, 2)


def test_steps_that_no_store_has_made_are_refused() -> None:
    bare: Any = RecordTransaction.__new__(RecordTransaction)
    for act in (lambda: bare.append("t", b"v"), lambda: bare._finish(True, False)):
        with pytest.raises((AttributeError, TypeError)):
            act()
    steps: Any = IdSteps.__new__(IdSteps)
    for act in (steps.now, lambda: steps.coordinator_epoch, lambda: steps.add_partitions([]), lambda: steps.done(1)):
        with pytest.raises(TypeError):
            act()
    with pytest.raises(TypeError):
        kstore.Transaction.append(None, "t", b"v")  # type: ignore[arg-type]


def test_an_id_takes_the_leader_epoch_of_its_log_for_its_coordinators(store: kstore.Store) -> None:
    with store.producer(transactional_id=ID) as producer:
        entry = producer._entry
        assert entry.coordinator_epoch == 0
        HostedLog(entry.log).writer.appender.leader_epoch = 5
        assert entry.coordinator_epoch == 5
        HostedLog(entry.log).writer.appender.leader_epoch = -1
        assert entry.coordinator_epoch == 0
        HostedLog(entry.log).writer.appender.leader_epoch = 0


def test_a_partition_that_is_known_already_is_not_written_down_again(store: kstore.Store) -> None:
    """A write of the state that was broken off behind its record leaves the caller without what the state has."""
    with store.producer(transactional_id=ID) as producer:
        txn = producer.transaction()
        txn.append("t", b"one", partition=0)
        txn._numbers.entered.clear()
        before = len(statuses(store))
        txn.append("t", b"two", partition=0)
        assert len(statuses(store)) == before
        txn._numbers.entered.clear()
        txn.append_many("t", [(None, b"three"), (None, b"four")], partition=1)
        assert txn._entry.state is not None
        assert txn._entry.state.partitions == (("t", 0), ("t", 1))
        txn.commit()
    assert committed(store) == [b"one", b"two", b"three", b"four"]


def test_a_thread_may_take_its_lock_again_and_others_wait_for_every_release() -> None:
    lock, told, seen = StepLock(), threading.Event(), []

    def other() -> None:
        told.set()
        for _ in range(1000):
            with lock, lock:
                seen.append(threading.get_ident())

    thread = threading.Thread(target=other)
    with lock:
        with lock:
            thread.start()
            told.wait()
        seen.append(0)
    thread.join()
    assert seen == [0] + [thread.ident] * 1000
    with lock:
        pass


def test_threads_that_share_the_lock_are_never_inside_of_it_together() -> None:
    lock, inside, most = StepLock(), [0], [0]

    def run() -> None:
        for _ in range(3000):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_an_interrupt_ends_the_wait_for_the_lock_which_is_free_afterwards() -> None:
    lock, held, leave = StepLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            leave.wait()

    def interrupted(_number: int, _frame: object) -> None:
        leave.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # again, should the first come before the wait
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    thread.join()
    with lock:
        pass


def test_a_lock_that_is_renewed_is_free() -> None:
    lock = StepLock()
    thread = threading.Thread(target=lock.__enter__)
    thread.start()
    thread.join()
    lock.renew()
    with lock:
        pass


def test_a_lock_renewed_by_the_thread_that_holds_it_keeps_others_out_afterwards() -> None:
    """As in a child that was forked inside of a step."""
    lock, told, seen = StepLock(), threading.Event(), []
    with lock:
        lock.renew()

    def other() -> None:
        told.set()
        for _ in range(1000):
            with lock:
                seen.append(1)

    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        told.wait()
        seen += [0] * 1000
    thread.join()
    assert seen == [0] * 1000 + [1] * 1000


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_producer_whose_epochs_end_goes_on_under_another_id(store: kstore.Store, left: int) -> None:
    with store.producer(transactional_id=ID) as producer:
        entry = producer._entry
        assert entry.state is not None
        entry.write(entry.state._replace(producer_epoch=LAST_EPOCH - 1 - left))
        first = producer.producer_id
        for number in range(3):
            with producer.transaction() as txn:
                txn.append("t", b"%d" % number, partition=number)
        assert producer.producer_id != first
    assert committed(store) == [b"0", b"1", b"2"]


def test_a_partition_whose_log_is_closed_is_opened_for_its_marker(store: kstore.Store) -> None:
    with store.producer(transactional_id=ID) as producer:
        with producer.transaction() as txn:
            for number in range(3):
                txn.append("t", b"v", partition=number)
            store.log("t", 1).close()
        assert statuses(store)[-1] is Status.COMPLETE_COMMIT
    assert committed(store) == [b"v"] * 3
