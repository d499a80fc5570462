"""Transactions of which a crash of the machine took records or markers, and others not: nothing hangs or is stuck.

Without `sync` it may take any of them. What is decided here holds in all that is left (docs/transactions.md).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore
from kstore.codec.coordinator.transaction_records import Status
from tests.store.coordinator.test_transactions import ID, STATES, committed, die, open_store, states


def cut_states(store: kstore.Store, kept: int) -> None:
    """Leave so many records of `__transaction_state`, as a crash of the machine may."""
    log = store.log(STATES, store.partitions(STATES)[0])
    log.truncate_to(kept)


@pytest.mark.parametrize("kept", range(1, 9))
def test_an_id_whose_newest_states_a_crash_took_goes_on(root: Path, kept: int) -> None:
    """Its logs know newer epochs than they tell, and would refuse what it writes."""
    store = open_store(root)
    store.create_topic("t", 2)
    with store.producer(transactional_id=ID) as producer:
        for i in range(3):
            with producer.transaction() as txn:
                txn.append("t", b"%d" % i, partition=0)
    assert len(states(store)) == 10
    cut_states(store, kept)
    die(store)
    with open_store(root) as store, store.producer(transactional_id=ID) as producer:
        for number in (0, 1):
            with producer.transaction() as txn:
                txn.append("t", b"after", partition=number)
        assert committed(store) == [b"0", b"1", b"2", b"after", b"after"]
        assert all(store.log("t", n).last_stable_offset == store.log("t", n).log_end_offset for n in (0, 1))


def decide_and_go_on(root: Path, commit: bool) -> kstore.Store:
    """A store in which a transaction was ended, and the next one of the same producer is open."""
    store = open_store(root)
    store.create_topic("t")
    producer = store.producer(transactional_id=ID)
    txn = producer.transaction()
    txn.append("t", b"first")
    txn.commit() if commit else txn.abort()
    producer.transaction().append("t", b"never")
    return store


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_is_not_that_of_the_transaction_after_it(root: Path, commit: bool) -> None:
    """The decided one has ended in the log; a crash took all that was told of the next, which is open there."""
    store = decide_and_go_on(root, commit)
    assert [s.status.is_prepared for s in states(store)] == [False, False, True, False, False]
    cut_states(store, 3)
    die(store)
    with open_store(root) as store:
        assert committed(store) == ([b"first"] if commit else [])
        assert store.log("t", 0).last_stable_offset == store.log("t", 0).log_end_offset
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            txn.append("t", b"after")
        assert b"never" not in committed(store)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_whose_marker_a_crash_took_ends_as_was_decided(root: Path, commit: bool) -> None:
    store = decide_and_go_on(root, commit)
    assert states(store)[-1].status == Status.ONGOING
    store.log("t", 0).truncate_to(1)
    die(store)
    with open_store(root) as store:
        assert committed(store) == ([b"first"] if commit else [])
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            txn.append("t", b"after")
        assert committed(store) == ([b"after", b"first"] if commit else [b"after"])


def test_a_log_closed_with_an_open_transaction_is_ended_if_the_end_was_lost(root: Path) -> None:
    """It looks as its close left it, so that no recovery meets it."""
    with open_store(root) as store:
        store.create_topic("t")
        producer = store.producer(transactional_id=ID)
        producer.transaction().append("t", b"never")
        producer._closed = True  # and not aborted, as by the death of its process
    shutil.copytree(root / "t-0", root.parent / "closed")
    store = open_store(root)
    store.producer(transactional_id=ID).close()
    store.log(STATES, store.partitions(STATES)[0]).flush()
    points = (root / "recovery-point-offset-checkpoint").read_bytes()
    die(store)
    shutil.rmtree(root / "t-0")
    shutil.copytree(root.parent / "closed", root / "t-0")
    assert b"t 0 1" in points
    with open_store(root) as store:
        assert store.log("t", 0).recovery.clean
        assert store.log("t", 0).last_stable_offset == 2
        assert committed(store) == []


def test_a_transaction_aborted_for_lost_states_is_not_committed_by_the_next_crash(root: Path) -> None:
    """The first crash takes the states of the open transaction, the second one the marker of its abort.

    What the opening in between has written of its epoch stays.
    """
    store = decide_and_go_on(root, commit=True)
    assert [state.status for state in states(store)[3:]] == [Status.COMPLETE_COMMIT, Status.ONGOING]
    cut_states(store, 4)
    die(store)
    store = open_store(root)
    assert committed(store) == [b"first"]
    assert states(store)[-1].status == Status.EMPTY
    log = store.log("t", 0)
    log.truncate_to(log.log_end_offset - 1)
    die(store)
    with open_store(root) as store:
        assert committed(store) == [b"first"]
        assert store.log("t", 0).last_stable_offset == store.log("t", 0).log_end_offset
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            txn.append("t", b"after")
        assert committed(store) == [b"after", b"first"]
