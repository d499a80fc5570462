"""Transactions of a store: the coordinator's records as Kafka writes them, all or nothing through every crash."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import kstore
from kstore import Log
from kstore.codec.coordinator import transaction_records as transactionrecords
from kstore.codec.coordinator.group_records import partition_of_name
from kstore.codec.coordinator.transaction_records import Status, TransactionState
from kstore.log import batch_packer
from kstore.log.writing.writer import Writer
from kstore.store.coordinator import _transaction
from kstore.store.coordinator.transaction_log import FIRST_PRODUCER_ID, draw_producer_id
from kstore.store.manager import LogManager
from kstore.store.partition_directories import PartitionDirectories
from kstore.store.topics import topic_append as producerwrites
from kstore.store.topics._partitioner import partition_of
from kstore.store.topics.append_source import Records
from kstore.store.topics.idempotent import SequenceNumbers
from kstore.store.topics.topic_append import AppendOptions
from tests.conftest import ManualClock

STATES = "__transaction_state"
ID = "loader-7"
HOUR_MS = 3_600_000


class Death(BaseException):
    """The process is gone."""


def open_store(root: Path, clock: ManualClock | None = None, **config: Any) -> kstore.Store:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return kstore.Store.open(root, clock=clock, background=False, config=settings)


def die(store: kstore.Store) -> None:
    """Leave the directory as the death of the process does."""
    assert isinstance(store._logs, LogManager)
    store._logs.abandon()
    store._closed = True


def states(store: kstore.Store, transactional_id: str = ID) -> list[TransactionState]:
    """What `__transaction_state` has of an id, record by record."""
    number = partition_of_name(transactional_id, 50)
    log = store.log(STATES, number if number in store.partitions(STATES) else 0)
    key = transactionrecords.transaction_key(transactional_id)
    return [transactionrecords.parse_transaction(r.value) for r in log.read() if r.key == key and r.value is not None]


def committed_records(store: kstore.Store, topic: str) -> list[kstore.Record]:
    """What readers of committed records see, by the markers."""
    found: list[kstore.Record] = []
    for number in store.partitions(topic):
        pending: dict[int, list[kstore.Record]] = {}
        seen = []
        for batch in store.log(topic, number).read_batches():
            if batch.is_control:
                records = pending.pop(batch.producer_id, [])
                seen += records if next(iter(batch)).key == b"\0\0\0\1" else []
            elif batch.is_transactional:
                pending.setdefault(batch.producer_id, []).extend(batch)
            else:
                seen += list(batch)
        found += sorted(seen, key=lambda record: record.offset)
    return found


def committed(store: kstore.Store, topic: str = "t") -> list[bytes]:
    """The values of these; a reader that asks for them gets them, up to the first transaction that is open."""
    found = committed_records(store, topic)
    read = [(r.offset, r.value) for r in store.read(topic, isolation="read_committed")]
    stable = {number: store.log(topic, number).last_stable_offset for number in store.partitions(topic)}
    if all(stable[number] == store.log(topic, number).log_end_offset for number in stable):
        assert read == [(r.offset, r.value) for r in found]
    return sorted(record.value or b"" for record in found)


def aborted(producer: kstore.TransactionalProducer, act: Callable[[kstore.Transaction], object]) -> None:
    """A transaction whose block ends with an exception."""

    def block() -> None:
        with producer.transaction() as txn:
            act(txn)
            raise KeyError

    with pytest.raises(KeyError):
        block()


def markers(log: Log) -> list[tuple[str, int, int]]:
    """A log's markers: what they say, their epoch and their coordinator's."""
    return [
        (
            "commit" if record.key == b"\0\0\0\1" else "abort",
            batch.producer_epoch,
            int.from_bytes(record.value[2:], "big"),
        )
        for batch in log.read_batches()
        if batch.is_control
        for record in batch
        if record.value is not None
    ]


# --- the records ------------------------------------------------------------------------------------------------------


def test_the_states_of_a_commit_and_an_abort_are_kafkas(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock) as store:
        store.create_topic("t", 3)
        with store.producer(transactional_id=ID) as producer:
            begun = clock.now
            with producer.transaction() as txn:
                txn.append("t", b"a", partition=1)
                clock.now += 5
                txn.append("t", b"b", partition=1)
                txn.append("t", b"c", partition=0)
                clock.now += 5
            aborted(producer, lambda txn: txn.append("t", b"d", partition=2))
        found = states(store)
        one = found[0].producer_id
        assert [(s.status, s.producer_epoch, s.partitions) for s in found] == [
            (Status.EMPTY, 0, ()),
            (Status.ONGOING, 0, (("t", 1),)),
            (Status.ONGOING, 0, (("t", 1), ("t", 0))),
            (Status.PREPARE_COMMIT, 1, (("t", 1), ("t", 0))),
            (Status.COMPLETE_COMMIT, 1, ()),
            (Status.ONGOING, 1, (("t", 2),)),
            (Status.PREPARE_ABORT, 2, (("t", 2),)),
            (Status.COMPLETE_ABORT, 2, ()),
        ]
        assert {(s.producer_id, s.previous_producer_id, s.next_producer_id) for s in found} == {(one, one, -1)}
        assert [s.start_ms - begun for s in found[1:]] == [0, 0, 0, 0, 10, 10, 10]
        assert found[0].start_ms == -1
        assert [s.last_update_ms - begun for s in found] == [0, 0, 5, 10, 10, 10, 10, 10]
        assert [s.client_version for s in found] == [0, 2, 2, 2, 2, 2, 2, 2]
        assert {s.timeout_ms for s in found} == {60_000}
        assert [markers(store.log("t", n)) for n in range(3)] == [
            [("commit", 1, 0)],
            [("commit", 1, 0)],
            [("abort", 2, 0)],
        ]
        assert all(store.log("t", n).last_stable_offset == store.log("t", n).log_end_offset for n in range(3))
        assert committed(store) == [b"a", b"b", b"c"]


def test_a_transactions_batch_is_numbered_from_0_with_the_epoch_before_its_marker(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer:
            for _ in range(2):
                with producer.transaction() as txn:
                    txn.append("t", b"a")
                    txn.append_many("t", [b"b", b"c"])
        found = [
            (b.producer_epoch, b.base_sequence, b.count, b.is_control)
            for b in store.log("t", 0).read_batches()
            if b.is_transactional
        ]
        assert found == [
            (0, 0, 1, False),
            (0, 1, 2, False),
            (1, -1, 1, True),
            (1, 0, 1, False),
            (1, 1, 2, False),
            (2, -1, 1, True),
        ]


def test_many_records_enter_their_partitions_at_once(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t", 3)
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            found = txn.append_many("t", [(b"%d" % i, b"v%d" % i) for i in range(30)])
            assert sorted(found) == [0, 1, 2]
            assert committed(store) == []
        assert [s.status for s in states(store)] == [
            Status.EMPTY,
            Status.ONGOING,
            Status.PREPARE_COMMIT,
            Status.COMPLETE_COMMIT,
        ]
        assert len(committed(store)) == 30


def test_the_topic_is_kafkas_and_its_directories_are_made_when_they_are_written(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        with store.producer(transactional_id="grp"), store.producer(transactional_id="my-group"):
            assert store.partitions(STATES) == (12, 29)
        config = store.topic_config(STATES)
        assert (config.cleanup_policy, config.compression_type) == (("compact",), "uncompressed")
        assert config.segment_bytes == 256 << 10  # `internal-segments`
    with open_store(root / "other", transaction_state_log_num_partitions=1) as store:
        store.producer(transactional_id="grp").close()
        assert store.partitions(STATES) == (0,)


def test_a_transaction_without_records_leaves_nothing(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer:
            with producer.transaction():
                pass
            with pytest.raises(KeyError), producer.transaction():
                raise KeyError
            txn = producer.transaction()
            txn.commit()
            assert txn.ended
        assert [s.status for s in states(store)] == [Status.EMPTY]


def test_producer_ids_are_drawn_where_no_broker_allocates(root: Path) -> None:
    drawn = {draw_producer_id() for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(FIRST_PRODUCER_ID <= each < 2**63 for each in drawn)
    assert max(drawn) - min(drawn) > 2**61
    with open_store(root) as store:
        ids = {store.producer().producer_id, store.producer(transactional_id=ID).producer_id}
        assert all(2**62 <= each < 2**63 for each in ids)


# --- positions --------------------------------------------------------------------------------------------------------


def test_positions_hold_when_their_transaction_is_committed(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        store.commit_offsets("grp", {("t", 0): 1})
        with store.producer(transactional_id=ID) as producer:
            with producer.transaction() as txn:
                txn.commit_offsets("grp", {("t", 0): 2, ("t", 1): 3}, "m")
                assert store.committed_offsets("grp") == {("t", 0): 1}
            assert store.committed_offsets("grp") == {("t", 0): 2, ("t", 1): 3}
            aborted(producer, lambda txn: txn.commit_offsets("grp", {("t", 0): 9}))
            assert store.committed_offsets("grp") == {("t", 0): 2, ("t", 1): 3}
            with producer.transaction() as txn:
                txn.commit_offsets("grp", {("t", 0): 5})
                store.commit_offsets("grp", {("t", 0): 7})  # later than the other in the log
            assert store.committed_offsets("grp")["t", 0] == 7
        batches = [b for b in store.log("__consumer_offsets", 29).read_batches() if b.is_transactional]
        assert [(b.base_sequence, b.producer_epoch) for b in batches if not b.is_control] == [(0, 0), (0, 1), (0, 2)]
    with open_store(root) as store:
        assert store.committed_offsets("grp") == {("t", 0): 7, ("t", 1): 3}


def test_positions_of_an_open_transaction_do_not_expire(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock, offsets_retention_minutes=1) as store:
        store.commit_offsets("grp", {("t", 0): 1})
        with store.producer(transactional_id=ID, transaction_timeout_ms=900_000) as producer:
            txn = producer.transaction()
            txn.commit_offsets("grp", {("t", 0): 2})
            clock.now += 700_000
            store.run_housekeeping()
            assert store.committed_offsets("grp") == {("t", 0): 1}
            txn.commit()
            assert store.committed_offsets("grp") == {("t", 0): 2}


# --- who may go on ----------------------------------------------------------------------------------------------------


def test_the_next_producer_of_an_id_fences_the_last_and_aborts_what_it_left_open(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t", 2)
        old = store.producer(transactional_id=ID)
        txn = old.transaction()
        txn.append("t", b"never", partition=0)
        assert store.log("t", 0).last_stable_offset == 0
        new = store.producer(transactional_id=ID)
        assert store.log("t", 0).last_stable_offset == 2
        for act in (lambda: txn.append("t", b"x"), txn.commit, txn.abort, old.transaction):
            with pytest.raises(kstore.InvalidProducerEpochError, match="fenced"):
                act()
        with new.transaction() as after:
            after.append("t", b"mine", partition=0)
        assert committed(store) == [b"mine"]
        assert new.producer_id == old.producer_id
        # The epoch that fences, the one that ends, and the new producer's.
        assert [(s.status, s.producer_epoch) for s in states(store)[:5]] == [
            (Status.EMPTY, 0),
            (Status.ONGOING, 0),
            (Status.PREPARE_ABORT, 2),
            (Status.COMPLETE_ABORT, 2),
            (Status.EMPTY, 3),
        ]
        old.close()
        new.close()


def test_ids_do_not_disturb_each_other(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        with store.producer(transactional_id="a") as a, store.producer(transactional_id="b") as b:
            one, two = a.transaction(), b.transaction()
            one.append("t", b"a1")
            two.append("t", b"b1")
            one.append("t", b"a2")
            two.abort()
            assert committed(store) == []
            one.commit()
            assert committed(store) == [b"a1", b"a2"]


def test_an_open_transaction_is_aborted_after_its_timeout(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock) as store:
        store.create_topic("t")
        producer = store.producer(transactional_id=ID)
        txn = producer.transaction()
        txn.append("t", b"late")
        clock.now += 60_000
        store.run_housekeeping()
        assert store.log("t", 0).last_stable_offset == 0
        clock.now += 10_000  # how often it is looked at
        store.run_housekeeping()
        assert store.log("t", 0).last_stable_offset == 2
        with pytest.raises(kstore.InvalidProducerEpochError, match="timeout of 60000 ms"):
            txn.append("t", b"x")
        assert [(s.status, s.producer_epoch) for s in states(store)][-2:] == [
            (Status.PREPARE_ABORT, 2),
            (Status.COMPLETE_ABORT, 2),
        ]
        producer.close()
        with store.producer(transactional_id=ID) as again, again.transaction() as txn:
            txn.append("t", b"new")
        assert committed(store) == [b"new"]


def test_a_transaction_that_a_dead_process_left_open_is_aborted_by_housekeeping(root: Path, clock: ManualClock) -> None:
    store = open_store(root, clock)
    store.create_topic("t")
    producer = store.producer(transactional_id=ID, transaction_timeout_ms=5000)
    producer.transaction().append("t", b"never")
    die(store)
    with open_store(root, clock) as store:
        assert store.log("t", 0).last_stable_offset == 0  # its producer may come back
        clock.now += 10_000
        store.run_housekeeping()
        assert store.log("t", 0).last_stable_offset == 2
        assert committed(store) == []


def test_what_an_id_may_be_and_how_long_a_transaction_may_take(root: Path) -> None:
    with open_store(root) as store:
        for wrong, error in (("", ValueError), (b"x", TypeError), ("x" * 32768, ValueError)):
            with pytest.raises(error):
                store.producer(transactional_id=wrong)  # type: ignore[call-overload]
        for timeout in (0, 900_001):
            with pytest.raises(ValueError, match="transaction_timeout_ms"):
                store.producer(transactional_id=ID, transaction_timeout_ms=timeout)
        assert store.topics == ()
        with store.producer(transactional_id="x" * 32767, transaction_timeout_ms=900_000):
            assert len(store.partitions(STATES)) == 1
    with kstore.Store.open(root, "r") as store, pytest.raises(kstore.LogClosedError):
        store.producer()


def test_an_id_that_is_not_used_for_long_is_forgotten(root: Path, clock: ManualClock) -> None:
    with open_store(root, clock, transactional_id_expiration_ms=2 * HOUR_MS) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer:
            first = producer.producer_id
            clock.now += 10 * HOUR_MS
            store.run_housekeeping()
            with producer.transaction() as txn:
                txn.append("t", b"a")
        for hours, there in ((1, True), (1, False)):
            clock.now += hours * HOUR_MS
            store.run_housekeeping()
            assert (ID in store._transactions.ids) is there
        assert [r.value is None for r in store.log(STATES, store.partitions(STATES)[0]).read()][-1]
    with open_store(root, clock) as store, store.producer(transactional_id=ID) as producer:
        assert producer.producer_id != first


def test_one_transaction_at_a_time(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        producer = store.producer(transactional_id=ID)
        txn = producer.transaction()
        with pytest.raises(kstore.InvalidTxnStateError, match="is open"):
            producer.transaction()
        txn.append("t", b"a")
        txn.commit()
        for act in (txn.commit, txn.abort, lambda: txn.append("t", b"b")):
            with pytest.raises(kstore.InvalidTxnStateError, match="has ended"):
                act()
        open_one = producer.transaction()
        open_one.append("t", b"b")
        producer.close()
        producer.close()
        with pytest.raises(kstore.LogClosedError):
            producer.transaction()
        assert committed(store) == [b"a"]


def with_epoch(root: Path, epoch: int) -> None:
    """Have the id's epoch be this one."""
    with open_store(root) as store:
        store.create_topic("t")
        store.producer(transactional_id=ID).close()
        entry = store._transactions.ids[ID]
        assert entry.state is not None
        entry.write(entry.state._replace(producer_epoch=epoch))


@pytest.mark.parametrize(("epoch", "rotated"), [(32764, False), (32765, False), (32766, True)])
def test_a_producer_gets_another_id_when_the_epochs_are_used_up(root: Path, epoch: int, rotated: bool) -> None:
    with_epoch(root, epoch)
    with open_store(root) as store:
        before = states(store)[-1].producer_id
        with store.producer(transactional_id=ID) as producer:
            assert (producer.producer_id != before) is rotated
            assert producer.producer_epoch == (0 if rotated else epoch + 1)
            assert states(store)[-1].previous_producer_id == before
            for i in range(3):
                with producer.transaction() as txn:
                    txn.append("t", b"%d" % i)
        assert committed(store) == [b"0", b"1", b"2"]


def test_epochs_that_are_used_up_within_a_transaction_give_the_next_another_id(root: Path) -> None:
    with_epoch(root, 32765)
    with open_store(root) as store, store.producer(transactional_id=ID) as producer:
        old = producer.producer_id
        for i in range(2):
            with producer.transaction() as txn:
                txn.append("t", b"%d" % i)
        new = producer.producer_id
        assert [(s.status, s.producer_id, s.producer_epoch, s.next_producer_id) for s in states(store)[-6:]] == [
            (Status.ONGOING, old, 32766, -1),
            (Status.PREPARE_COMMIT, old, 32767, new),
            (Status.COMPLETE_COMMIT, new, 0, -1),
            (Status.ONGOING, new, 0, -1),
            (Status.PREPARE_COMMIT, new, 1, -1),
            (Status.COMPLETE_COMMIT, new, 1, -1),
        ]
        assert states(store)[-4].previous_producer_id == old
        assert committed(store) == [b"0", b"1"]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Counts what is written to any log; dies before write number `at`."""
    told: dict[str, Any] = {"at": None, "count": 0, "calls": []}
    for name in ("append", "append_many", "append_batch", "flush"):
        plain = getattr(Log, name)

        def counted(log: Log, *args: Any, _plain: Any = plain, _name: str = name, **more: Any) -> Any:
            if _name in ("append", "append_many", "append_batch") and not told.get("inside"):
                if told["count"] == told["at"]:
                    raise Death
                told["count"] += 1
            told["calls"].append((log.topic, _name))
            told["inside"] = True
            try:
                return _plain(log, *args, **more)
            finally:
                told["inside"] = False

        monkeypatch.setattr(Log, name, counted)
    plain_store = batch_packer.store

    def counted_store(writer: Writer, *args: Any, **more: Any) -> Any:
        if not told.get("inside"):
            if told["count"] == told["at"]:
                raise Death
            told["count"] += 1
        told["calls"].append((writer.partition[0], "store"))
        return plain_store(writer, *args, **more)

    monkeypatch.setattr(batch_packer, "store", counted_store)
    for module, name in ((producerwrites, "_append_one"), (_transaction, "append_marker")):
        plain = getattr(module, name)

        def counted_one(log: Log | Writer, *args: Any, _plain: Any = plain, _name: str = name) -> Any:
            if told["count"] == told["at"]:
                raise Death
            told["count"] += 1
            topic = log.partition[0] if isinstance(log, Writer) else log.topic
            told["calls"].append((topic, _name))
            return _plain(log, *args)

        monkeypatch.setattr(module, name, counted_one)
    return told


def one_transaction(store: kstore.Store, commit: bool) -> None:
    with store.producer(transactional_id=ID) as producer:
        txn = producer.transaction()
        txn.append("t", b"a", partition=0)
        txn.append_many("t", [b"b", b"c"], partition=1)
        txn.commit_offsets("grp", {("in", 0): 9})
        if commit:
            txn.commit()
        else:
            txn.abort()


@pytest.mark.parametrize(("way", "commit"), [("opening", True), ("producer", True), ("producer", False)])
def test_a_death_before_any_write_leaves_all_or_nothing(
    root: Path, writes: dict[str, Any], commit: bool, way: str
) -> None:
    outcomes = set()
    with open_store(root) as store:
        store.create_topic("t", 2)
        store.commit_offsets("grp", {("in", 0): 1})
    for at in itertools.count():
        place = root.parent / str(at)
        shutil.copytree(root, place)
        store = open_store(place)
        writes["count"], writes["at"] = 0, at
        try:
            one_transaction(store, commit)
            died = False
        except Death:
            died = True
        writes["at"] = None
        die(store)
        with open_store(place) as store:
            if way == "producer":
                store.producer(transactional_id=ID).close()
            decided = any(s.status == Status.PREPARE_COMMIT for s in (states(store) if STATES in store.topics else ()))
            assert committed(store) == ([b"a", b"b", b"c"] if decided else [])
            assert store.committed_offsets("grp") == {("in", 0): 9 if decided else 1}
            outcomes.add(decided)
            if way == "producer" or decided:
                for number in (0, 1):
                    log = store.log("t", number)
                    assert log.last_stable_offset == log.log_end_offset
        if not died:
            break
    assert at > 10
    assert outcomes == ({True, False} if commit else {False})


def test_with_sync_data_is_flushed_before_the_decision_and_that_before_markers(
    root: Path, writes: dict[str, Any]
) -> None:
    with open_store(root) as store:
        store.create_topic("t", 2)
        with store.producer(transactional_id=ID) as producer:
            txn = producer.transaction()
            txn.append("t", b"a", partition=0)
            txn.append("t", b"a", partition=1)
            writes["calls"].clear()
            txn.commit(sync=True)
            assert writes["calls"] == [
                ("t", "flush"),
                ("t", "flush"),
                (STATES, "append"),
                (STATES, "flush"),
                ("t", "append_marker"),
                ("t", "append_marker"),
                ("t", "flush"),
                ("t", "flush"),
                (STATES, "append"),
            ]
            with producer.transaction(sync=True) as txn:
                txn.append("t", b"a", partition=0)
                writes["calls"].clear()
            assert (STATES, "flush") in writes["calls"]


def test_a_transaction_whose_records_a_crash_took_is_aborted_by_the_next_opening(root: Path) -> None:
    """docs/compatibility.md: `hanging-transactions`."""
    store = open_store(root)
    store.create_topic("t")
    producer = store.producer(transactional_id=ID)
    producer.transaction().append("t", b"never")
    log = store.log(STATES, store.partitions(STATES)[0])
    log.truncate_to(0)
    die(store)
    with open_store(root) as store:
        assert store.log("t", 0).last_stable_offset == 2
        assert committed(store) == []


def test_a_transaction_whose_marker_a_crash_took_is_committed_by_the_next_opening(root: Path) -> None:
    store = open_store(root)
    store.create_topic("t")
    with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
        txn.append("t", b"a")
    store.log("t", 0).truncate_to(1)
    assert store.log("t", 0).last_stable_offset == 0
    die(store)
    with open_store(root) as store:
        assert store.log("t", 0).last_stable_offset == 2
        assert committed(store) == [b"a"]


def test_partitions_of_topics_that_are_gone_hold_nothing_up(root: Path, writes: dict[str, Any]) -> None:
    store = open_store(root)
    store.create_topic("t", 2)
    store.create_topic("gone")
    producer = store.producer(transactional_id=ID)
    txn = producer.transaction()
    txn.append("gone", b"x")
    txn.append("t", b"a", partition=0)
    store.delete_topic("gone")
    writes["at"] = writes["count"] + 1
    with pytest.raises(Death):
        txn.commit()
    writes["at"] = None
    die(store)
    with open_store(root) as store:
        assert committed(store) == [b"a"]
        assert states(store)[-1].status == Status.COMPLETE_COMMIT


def transaction_in(store: kstore.Store, *topics: str) -> kstore.Transaction:
    """An open transaction with a record in each of these new topics."""
    txn = store.producer(transactional_id=ID).transaction()
    for topic in topics:
        store.create_topic(topic)
        txn.append(topic, b"a")
    return txn


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_topic_that_is_deleted_between_a_decision_and_its_marker_holds_nothing_up(
    root: Path, monkeypatch: pytest.MonkeyPatch, commit: bool, sync: bool
) -> None:
    with open_store(root) as store:
        txn = transaction_in(store, "gone", "t")
        append = _transaction.append_marker

        def delete_and_append(log: Log, *arguments: Any) -> None:
            if "gone" in store.topics:
                store.delete_topic("gone")
            append(log, *arguments)

        monkeypatch.setattr(_transaction, "append_marker", delete_and_append)
        if commit:
            txn.commit(sync=sync)
        else:
            txn.abort()
        assert committed(store) == [b"a"] * commit
        assert states(store)[-1].status == (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)


@pytest.mark.parametrize("sync", [False, True])
def test_a_transaction_that_ends_as_a_topic_is_deleted_ends_in_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    with open_store(root) as store:
        txn = transaction_in(store, "gone", "t")
        rename = PartitionDirectories.delete

        def commit_and_rename(*arguments: Any, **options: Any) -> bool:
            assert "gone" in store.topics
            txn.commit(sync=sync)
            return rename(*arguments, **options)

        monkeypatch.setattr(PartitionDirectories, "delete", commit_and_rename)
        store.delete_topic("gone")
        assert store.topics == (STATES, "t")
        assert committed(store) == [b"a"]
        assert states(store)[-1].status == Status.COMPLETE_COMMIT


def test_records_that_are_no_transactions_refuse_their_ids_alone(root: Path) -> None:
    with open_store(root, transaction_state_log_num_partitions=2) as store:
        store.create_topic("t")
        store.producer(transactional_id="a").close()
        store.producer(transactional_id="b").close()
        assert store.partitions(STATES) == (0, 1)
        store.log(STATES, 0).append(b"nonsense", transactionrecords.transaction_key("x"))
    with open_store(root) as store:
        names = sorted(["a", "b"], key=lambda name: partition_of_name(name, 2))
        with pytest.raises(kstore.CorruptRecordError, match="has a record of no transaction"):
            store.producer(transactional_id=names[0])
        with store.producer(transactional_id=names[1]) as producer, producer.transaction() as txn:
            txn.append("t", b"a")
        assert committed(store) == [b"a"]


# --- what a broker left -----------------------------------------------------------------------------------------------


def test_what_a_broker_left_open_is_aborted_by_the_next_producer_of_the_id(golden: Callable[[str], Path]) -> None:
    root = golden("transactions") / "dir"
    with kstore.Store.open(root, background=False) as store:
        log = store.log("tx", 0)
        assert log.last_stable_offset < log.log_end_offset
        before = committed(store, "tx")
        epochs = markers(log)[-1]
        with store.producer(transactional_id="txid-open") as producer:
            assert producer.producer_id == 10  # the broker's
            assert producer.producer_epoch == 3
            assert log.last_stable_offset == log.log_end_offset
            assert markers(log)[-1] == ("abort", 2, epochs[2])
            with producer.transaction() as txn:
                txn.append("tx", b"ours", partition=0)
        assert committed(store, "tx") == sorted([*before, b"ours"])
        assert store.partitions(STATES) == (0,)


# --- producers without transactions -----------------------------------------------------------------------------------


def batches_of(store: kstore.Store, topic: str = "t") -> list[tuple[int, int, int]]:
    return [
        (number, batch.base_sequence, batch.count)
        for number in store.partitions(topic)
        for batch in store.log(topic, number).read_batches()
    ]


def test_a_producer_numbers_its_batches_in_each_partition(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t", 2)
        with store.producer() as producer:
            for number in (0, 1, 0):
                assert producer.append("t", b"x", partition=number).partition == number
            producer.append_many("t", [b"y"] * 3, partition=0)
            producer.append("t", b"z", partition=0)
        assert batches_of(store) == [(0, 0, 1), (0, 1, 1), (0, 2, 3), (0, 5, 1), (1, 0, 1)]
        ids = {batch.producer_id for batch in store.log("t", 0).read_batches()}
        assert ids == {producer.producer_id}
        with pytest.raises(kstore.LogClosedError):
            producer.append("t", b"x")


class Failing:
    """Has the n-th write to a log fail, before or after it is done."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, at: int, after: bool, error: BaseException
    ) -> None:
        plain = getattr(where, name)
        self.count = 0

        def act(log: Log, *args: Any, **more: Any) -> Any:
            self.count += 1
            mine = self.count == at + 1
            if mine and not after:
                raise error
            found = plain(log, *args, **more)
            if mine:
                raise error
            return found

        monkeypatch.setattr(where, name, act)


@pytest.mark.parametrize("after", [False, True])
def test_a_repeated_append_is_stored_once(root: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    with open_store(root) as store:
        store.create_topic("t", 3)
        producer = store.producer()
        producer.append("t", b"before", partition=(partition_of(b"k", 3) + 1) % 3)
        Failing(monkeypatch, producerwrites, "_append_one", 0, after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            producer.append("t", b"once", key=b"k")
        where = producer.append("t", b"once", key=b"k")
        log = store.log("t", where.partition)
        assert next(log.read(where.offset)).value == b"once"
        assert producer.append("t", b"once", key=b"k") != where  # this one is another
        found = sorted(r.value for r in store.read("t"))
        assert found == [b"before", b"once", b"once"]


@pytest.mark.parametrize("after", [False, True])
def test_a_repeated_append_is_flushed_if_that_was_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        producer = store.producer()
        Failing(monkeypatch, producerwrites, "_append_one", 0, after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            producer.append("t", b"once", sync=True)
        producer.append("t", b"once", sync=True)
        assert [record.value for record in store.log("t", 0).read(durable=True)] == [b"once"]


@pytest.mark.parametrize("after", [False, True])
def test_another_record_after_a_failed_one_is_not_taken_for_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        producer = store.producer()
        Failing(monkeypatch, producerwrites, "_append_one", 0, after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            producer.append("t", b"given up")
        producer.append("t", b"other")
        producer.append("t", b"more")
        assert [r.value for r in store.read("t")] == ([b"given up"] if after else []) + [b"other", b"more"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [0, 3])
def test_repeated_many_are_stored_once(root: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    records: list[Any] = [(b"%d" % (i % 7) if i % 3 else None, b"%d" % i * 3000) for i in range(300)]
    with open_store(root) as store:
        store.create_topic("t", 3)
        producer = store.producer()
        producer.append_many("t", [b"before"] * 3)
        Failing(monkeypatch, batch_packer, "store", at, after, OSError("a disk"))
        with pytest.raises(OSError, match="a disk"):
            producer.append_many("t", records, batch_bytes=50_000)
        found = producer.append_many("t", records, batch_bytes=50_000)
        expected = sorted([value for _, value in records] + [b"before"] * 3)
        assert sorted(r.value for r in store.read("t")) == expected
        for number, info in found.items():
            assert info.last_offset == store.log("t", number).log_end_offset - 1
            assert info.first_offset <= info.last_offset
        producer.append("t", b"last")
        assert len(list(store.read("t"))) == 304


def test_a_refused_record_uses_no_number(root: Path) -> None:
    with open_store(root, message_max_bytes=2000) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer:
            plain = store.producer()
            for one in (plain, producer.transaction()):
                for _ in range(2):
                    with pytest.raises(kstore.RecordTooLargeError):
                        one.append("t", b"x" * 5000)
                    with pytest.raises(TypeError):
                        one.append("t", "text")  # type: ignore[arg-type]
                    one.append("t", b"fits")
                with pytest.raises(kstore.RecordTooLargeError):
                    one.append_many("t", [b"a", b"b" * 5000, b"c"])
                one.append("t", b"fits")
        assert [b.base_sequence for b in store.log("t", 0).read_batches() if not b.is_control] == [0, 1, 2, 3] * 2


def test_numbers_go_on_at_0_behind_the_last(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        numbers = SequenceNumbers(5, 0, transactional=False)
        numbers.used(("t", 0), 2**31 - 3, 1)
        for count in (1, 3, 1):
            appender = store._producers._parts.appender
            appender.load("t", AppendOptions(partition=0, seed=1), numbers).run(Records([b"x"] * count))
        assert batches_of(store) == [(0, 2**31 - 2, 1), (0, 2**31 - 1, 3), (0, 2, 1)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("threads", [1, 3])
def test_columns_in_a_transaction_are_there_when_it_is_committed(root: Path, codec: str, threads: int) -> None:
    values = [b"%d" % i for i in range(300)]
    keys = [b"k%d" % (i % 7) for i in range(300)]
    with open_store(root) as store:
        store.create_topic("t", 3)
        store.create_topic("rows", 3)
        with store.producer(transactional_id=ID) as producer:
            txn = producer.transaction()
            txn.append_columns("t", values, keys=keys)
            txn.abort()
            with producer.transaction() as txn:
                txn.append("t", b"before", key=b"k1")
                how: dict[str, Any] = {"compression": codec, "threads": threads, "batch_bytes": 200}
                appended = txn.append_columns("t", values, keys=keys, **how)
                txn.append_columns("t", [], keys=[])
                txn.append("t", b"behind", key=b"k1")
                assert list(store.read("t", isolation="read_committed")) == []
        store.append_columns("rows", values, keys=keys)
        committed = list(store.read("t", isolation="read_committed"))
        wanted = [(each.partition, each.value) for each in store.read("rows")]
        found = [(each.partition, each.value) for each in committed if each.value not in (b"before", b"behind")]
        assert found == wanted
        assert sorted({each.value for each in committed} - set(values)) == [b"before", b"behind"]
        for number, info in appended.items():
            there = [each.offset for each in committed if each.partition == number and each.value in values]
            assert (info.first_offset, info.last_offset) == (there[0], there[-1])
        for number, log in ((n, store.log("t", n)) for n in store.partitions("t")):
            epochs: dict[int, int] = {}
            for batch in log.read_batches():
                if not batch.is_control:
                    assert batch.is_transactional
                    assert batch.base_sequence == epochs.get(batch.producer_epoch, 0), number
                    epochs[batch.producer_epoch] = batch.base_sequence + batch.count


def test_columns_that_are_refused_in_a_transaction_leave_the_numbers_right(root: Path) -> None:
    with open_store(root, message_max_bytes=2000) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer, producer.transaction() as txn:
            with pytest.raises(kstore.RecordTooLargeError):
                txn.append_columns("t", [b"a", b"b", b"x" * 5000], batch_bytes=100)
            stored = store.log("t", 0).log_end_offset
            txn.append("t", b"fits")
            txn.append_columns("t", [b"c"])
        batches = [(b.base_sequence, b.count) for b in store.log("t", 0).read_batches() if not b.is_control]
        assert sum(count for _, count in batches) == stored + 2
        assert [first for first, _ in batches] == [sum(n for _, n in batches[:i]) for i in range(len(batches))]


def test_columns_of_a_transaction_that_has_ended_are_refused(root: Path) -> None:
    with open_store(root) as store:
        store.create_topic("t")
        with store.producer(transactional_id=ID) as producer:
            with producer.transaction() as txn:
                txn.append_columns("t", [b"a"])
            with pytest.raises(kstore.InvalidTxnStateError):
                txn.append_columns("t", [b"b"])
            txn = producer.transaction()
            with store.producer(transactional_id=ID), pytest.raises(kstore.InvalidProducerEpochError):
                txn.append_columns("t", [b"c"])
        assert [each.value for each in store.read("t")] == [b"a"]


def test_headers_may_be_a_mapping_in_every_append(tmp_path: Path) -> None:
    headers = MappingProxyType({"a": b"1", "b": None})
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t")
        store.append("t", b"0", headers=headers)
        with store.producer() as producer:
            producer.append("t", b"1", headers=headers)
            producer.append_many("t", [(None, b"2", None, headers)])
        with store.producer(transactional_id="x") as transactional, transactional.transaction() as transaction:
            transaction.append("t", b"3", headers=headers)
            transaction.append_many("t", [(None, b"4", None, headers)])
        found = [(record.value, record.headers) for record in store.read("t")]
        assert found == [(b"%d" % n, (("a", b"1"), ("b", None))) for n in range(5)]
