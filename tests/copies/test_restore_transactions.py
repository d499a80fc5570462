"""Transactions after a restore: no reader sees half of one, whatever the cut left out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import kstore
from kstore.copies.backups import source_partition
from kstore.copies.backups.backup import back_up_directory
from tests.conftest import ManualClock
from tests.support.backedup import no_sync
from tests.support.handmade import HandmadeBackup

pytestmark = pytest.mark.usefixtures("no_syncs")

SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
STATES, POSITIONS = ("__transaction_state", 0), ("__consumer_offsets", 0)
PLACES = ("a", 0), ("b", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", background=False, **SETTINGS) as found:
        for topic, _ in PLACES:
            found.create_topic(topic)
        yield found


def committed(store: kstore.Store) -> dict[str, list[bytes | None]]:
    return {topic: [r.value for r in store.read(topic, isolation="read_committed")] for topic, _ in PLACES}


def ends(store: kstore.Store) -> dict[tuple[str, int], int]:
    return {(topic, 0): store.log(topic, 0).log_end_offset for topic in store.topics}


def restored(tmp_path: Path, store: kstore.Store, cuts: dict[tuple[str, int], int]) -> kstore.Store:
    """A store that is restored up to these offsets."""
    backup = HandmadeBackup(tmp_path / "backup")
    backup.round(store, 1000)
    kstore.restore(str(backup.path), tmp_path / "restored", offsets=cuts)
    return kstore.Store.open(tmp_path / "restored", background=False, **SETTINGS)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(
    "lacking", [["a"], ["b"], ["a", "b"], ["__consumer_offsets"], ["a", "b", "__consumer_offsets"]]
)
@pytest.mark.parametrize("state", ["complete", "prepared"])
def test_markers_that_are_missing_are_written(
    tmp_path: Path, store: kstore.Store, commits: bool, lacking: list[str], state: str
) -> None:
    transaction = store.producer(transactional_id="id").transaction()
    for topic, _ in PLACES:
        transaction.append(topic, b"v")
    transaction.commit_offsets("g", {("a", 0): 1})
    before = ends(store)  # up to the markers
    transaction.commit() if commits else transaction.abort()
    cuts = {(topic, 0): before[topic, 0] for topic in lacking}
    if state == "prepared":
        cuts[STATES] = ends(store)[STATES] - 1
    with restored(tmp_path, store, cuts) as found:
        values = [b"v"] if commits else []
        assert committed(found) == {"a": values, "b": values}
        assert found.committed_offsets("g") == ({("a", 0): 1} if commits else {})
        for topic in ("a", "b", "__consumer_offsets"):
            log = found.log(topic, 0)
            assert log.last_stable_offset == log.log_end_offset
            assert [batch.is_control for batch in log.read_batches()].count(True) == 1
        with found.producer(transactional_id="id").transaction() as txn:
            txn.append("a", b"next")
        assert committed(found) == {"a": [*values, b"next"], "b": values}


def test_a_transaction_that_is_open_at_the_cut_is_aborted_as_after_a_crash(tmp_path: Path, store: kstore.Store) -> None:
    with store.producer(transactional_id="id").transaction() as txn:
        txn.append("a", b"whole")
    transaction = store.producer(transactional_id="id").transaction()
    transaction.append("a", b"half")
    transaction.commit_offsets("g", {("a", 0): 9})
    with restored(tmp_path, store, {}) as found:
        transaction.commit()
        assert committed(found) == {"a": [b"whole"], "b": []}
        with found.producer(transactional_id="id").transaction() as txn:  # the next producer of the id aborts it
            txn.append("b", b"next")
        assert committed(found) == {"a": [b"whole"], "b": [b"next"]}
        assert found.committed_offsets("g") == {}
        assert found.log("a", 0).last_stable_offset == found.log("a", 0).log_end_offset


def test_a_transaction_that_is_open_in_a_log_and_that_no_id_knows_is_aborted(
    tmp_path: Path, store: kstore.Store
) -> None:
    transaction = store.producer(transactional_id="id").transaction()
    before = ends(store)
    transaction.append("a", b"half")
    with restored(tmp_path, store, {STATES: before[STATES]}) as found:
        transaction.abort()
        assert committed(found) == {"a": [], "b": []}
        assert found.log("a", 0).last_stable_offset == found.log("a", 0).log_end_offset


def test_topics_that_are_left_out_of_a_restore_keep_no_transaction_from_ending(
    tmp_path: Path, store: kstore.Store
) -> None:
    transaction = store.producer(transactional_id="id").transaction()
    for topic, _ in PLACES:
        transaction.append(topic, b"v")
    before = ends(store)
    transaction.commit()
    backup = HandmadeBackup(tmp_path / "backup")
    backup.round(store, 1000)
    kstore.restore(str(backup.path), tmp_path / "restored", offsets={("a", 0): before["a", 0]}, topics="a")
    with kstore.Store.open(tmp_path / "restored", background=False, **SETTINGS) as found:
        assert [r.value for r in found.read("a", isolation="read_committed")] == [b"v"]


def test_numbered_producers_go_on_and_a_repeated_batch_is_known(tmp_path: Path, store: kstore.Store) -> None:
    encode = partial(kstore.encode_batch, producer_id=7, producer_epoch=0)
    sent = [encode([b"%d" % number], base_sequence=number) for number in range(3)]
    log = store.log("a", 0)
    for batch in sent:
        log.append_batch(batch)
    with restored(tmp_path, store, {}) as found:
        log = found.log("a", 0)
        assert log.append_batch(sent[-1]).first_offset == 2  # the same batch again is the one that is there
        assert log.log_end_offset == 3
        with pytest.raises(kstore.errors.OutOfOrderSequenceError):
            log.append_batch(encode([b"x"], base_sequence=9))


def test_partitions_of_a_directory_in_use_are_of_different_moments_and_say_so(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files cannot be synced, so the partitions end at their recovery points.

    What is restored has ended transactions and positions in its logs, and the half of a transaction is told of.
    """
    monkeypatch.setattr(source_partition, "sync", no_sync)
    url = str(tmp_path / "backup")
    with kstore.Store.open(tmp_path / "data", background=False, clock=clock, **SETTINGS) as store:
        for topic, _ in PLACES:
            store.create_topic(topic)
        with store.producer(transactional_id="id").transaction() as txn:
            for topic, _ in PLACES:
                txn.append(topic, b"v")
            txn.commit_offsets("g", {("a", 0): 1, ("b", 0): 1})
        store.log("a", 0).flush()
        store.log(*POSITIONS).flush()
        clock.advance(100_000)
        store.run_housekeeping()  # the recovery points are written
        back_up_directory(tmp_path / "data", url, clock=clock).close()
        early = kstore.restore(url, tmp_path / "early")
    back_up_directory(tmp_path / "data", url, clock=clock).close()
    late = kstore.restore(url, tmp_path / "late")
    assert (early.caught_up, early.together) == (True, False)
    assert (late.caught_up, late.together) == (True, True)
    with kstore.Store.open(tmp_path / "early", background=False, **SETTINGS) as found:
        assert committed(found) == {"a": [b"v"], "b": []}
        assert found.committed_offsets("g") == {("a", 0): 1, ("b", 0): 0}
        for topic, _ in PLACES:
            assert found.log(topic, 0).last_stable_offset == found.log(topic, 0).log_end_offset
    with kstore.Store.open(tmp_path / "late", background=False, **SETTINGS) as found:
        assert committed(found) == {"a": [b"v"], "b": [b"v"]}
