"""Producers' writes and the transactions' records, interrupted where it hurts; each at the very place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.codec.coordinator.transaction_records import Status, parse_transaction
from kstore.disk import fs
from kstore.files.txnindex import AbortedTxn, TxnIndex, parse_txn_index
from kstore.log.hosted_log import HostedLog
from kstore.log.segments.producer_state import ProducerState
from kstore.log.writing import producer_append
from kstore.log.writing.writer import Writer
from kstore.store.coordinator import _transaction
from kstore.store.topics.idempotent import Numbering, SequenceNumbers
from kstore.store.topics.topic_append import Load, TopicAppender
from kstore.store.topics.topic_follow import TopicFollower
from tests.conftest import ManualClock
from tests.support.interrupts import Interrupted


def interrupt(patch: pytest.MonkeyPatch, where: Any, name: str, *, after: bool = False, at: int = 0) -> None:
    """Have the call of `name` that is number `at` interrupted, as it begins or when it is done."""
    plain: Callable[..., Any] = getattr(where, name)
    calls = 0

    def act(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == at + 1
        if mine and not after:
            raise Interrupted
        found = plain(*args, **more)
        if mine:
            raise Interrupted
        return found

    patch.setattr(where, name, act)


def send(log: kstore.Log, sequence: int, *values: bytes, pid: int = 7, txn: bool = False) -> Any:
    return log.append_many(
        values or [b"v"], producer_id=pid, producer_epoch=0, base_sequence=sequence, transactional=txn
    )


def committed(log: kstore.Log) -> list[bytes | None]:
    return [record.value for record in log.read(isolation="read_committed")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


# --- in one log -------------------------------------------------------------------------------------------------------


def test_a_batch_interrupted_before_its_write_does_not_count_with_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0)
        with monkeypatch.context() as patch:
            interrupt(patch, producer_append, "write_staged_locked")
            with pytest.raises(Interrupted):
                send(log, 1)
        send(log, 0, pid=8)
        assert [state.batches[-1].last_sequence for state in log.producer_states()] == [0, 0]
        assert send(log, 1, b"again").first_offset == 2
        assert committed(log) == [b"v", b"v", b"again"]


def test_a_transaction_interrupted_before_its_first_write_holds_nobody_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        with monkeypatch.context() as patch:
            interrupt(patch, producer_append, "write_staged_locked")
            with pytest.raises(Interrupted):
                send(log, 0, txn=True)
        log.append(b"plain")
        assert log.last_stable_offset == 1
        assert committed(log) == [b"plain"]
        assert log.producer_states() == []


def test_followed_batches_interrupted_before_their_write_do_not_count(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(tmp_path / "leader-0") as leader, kstore.Log.open(path) as log:
        send(leader, 0, txn=True)
        batch = leader.fetch(0, 1 << 20).records
        with monkeypatch.context() as patch:
            interrupt(patch, producer_append, "write_staged_locked")
            with pytest.raises(Interrupted):
                log.append_as_follower(batch)
        log.append(b"plain")
        assert (log.last_stable_offset, log.producer_states()) == (1, [])


class Table:
    """A producer table that is interrupted behind its next write."""

    def __init__(self, state: Any) -> None:
        self.state, self.table = state, state.table
        state.table = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def __len__(self) -> int:
        return len(self.table)

    def write(self, *args: Any) -> int:
        self.table.write(*args)
        self.state.table = self.table
        raise Interrupted


def test_an_abort_interrupted_behind_its_write_stays_in_the_index(path: Path) -> None:
    with kstore.Log.open(path) as log:
        for sequence in range(3):
            send(log, sequence, txn=True)
            if sequence == 1:
                assert log._writer is not None
                Table(log._writer.producers)
                with pytest.raises(Interrupted):
                    log.append_marker(7, 0, commit=False)
            else:
                log.append_marker(7, 0, commit=False)
        assert log.last_stable_offset == log.log_end_offset == 6
        assert committed(log) == []
        assert log.fetch(0, 1 << 20, isolation="read_committed").aborted_transactions == ((7, 0), (7, 2), (7, 4))
    with kstore.Log.open(path) as log:
        assert committed(log) == []


def test_an_abort_interrupted_before_its_write_is_not_in_the_index(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0, txn=True)
        with monkeypatch.context() as patch:
            interrupt(patch, TxnIndex, "append", after=True)
            with pytest.raises(Interrupted):
                log.append_marker(7, 0, commit=False)
        assert log.log_end_offset == 1
        log.append_marker(7, 0, commit=True)
        assert committed(log) == [b"v"]
        assert log.fetch(0, 1 << 20, isolation="read_committed").aborted_transactions == ()


@pytest.mark.parametrize("commit", [False, True])
def test_while_a_truncation_looks_at_the_producers_nothing_undecided_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """SEMANTICS 11.4: the marker has gone, and the table does not know it yet."""
    with kstore.Log.open(path) as log:
        log.append(b"plain")
        send(log, 0, txn=True)
        log.append_marker(7, 0, commit=commit)
        rebuild = ProducerState.rebuild
        seen: list[object] = []

        def look(*args: Any, **more: Any) -> None:
            seen.append(committed(log))
            seen.append(len(log.read_columns(isolation="read_committed")))
            rebuild(*args, **more)

        monkeypatch.setattr(ProducerState, "rebuild", look)
        log.truncate_to(2)
        assert seen == [[], 0]
        assert (committed(log), log.last_stable_offset, log.log_end_offset) == ([b"plain"], 1, 2)
        log.append_marker(7, 0, commit=True)
        assert committed(log) == [b"plain", b"v"]


def test_a_snapshot_that_goes_with_its_segment_while_a_flush_syncs_it_fails_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0)
        state = log._writable().producers
        state.end_offset = log.log_end_offset
        state.take_snapshot()
        snapshot = log.log_end_offset
        rename, synced = fs.rename, []

        def renamed(source: Any, target: Any) -> None:
            rename(source, target)
            state.sync()  # the thread that flushes, just then
            synced.append(source)

        with monkeypatch.context() as patch:
            patch.setattr(fs, "rename", renamed)
            assert len(state.mark_deleted(snapshot)) == 1
        assert synced == [state.path(snapshot)]
        log.flush()
        send(log, 1)


def test_an_entry_added_while_the_index_is_flushed_is_for_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TxnIndex(str(tmp_path / "0.txnindex"))
    index.append(AbortedTxn(0, 1, 0, 1, 2))
    synced = 0
    fsync = fs.fsync

    def sync(fd: int) -> None:
        nonlocal synced
        synced += 1
        if synced == 1:
            raise Interrupted
        fsync(fd)
        if synced == 2:
            index.append(AbortedTxn(0, 1, 2, 3, 4))

    monkeypatch.setattr(fs, "fsync", sync)
    with pytest.raises(Interrupted):
        index.flush()
    for _ in range(3):
        index.flush()
    assert synced == 3


def test_an_entry_added_while_a_reader_reads_the_index_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [AbortedTxn(0, 1, 3 * n, 3 * n + 1, 3 * n + 2) for n in range(4)]
    index = TxnIndex(str(tmp_path / "0.txnindex"))
    index.append(entries[0])
    again = TxnIndex(index.path)
    read_file = fs.read_file

    def read(path: str) -> bytes:
        found = read_file(path)
        monkeypatch.undo()
        again.append(entries[1])  # the writer, in another thread
        return found

    monkeypatch.setattr(fs, "read_file", read)
    list(again.entries)
    again.append(entries[2])
    assert list(again.entries) == entries[:3]
    assert parse_txn_index(Path(index.path).read_bytes()) == entries[:3]
    before = again.entries
    again.cut(1)
    again.append(entries[3])
    assert (list(before), list(again.entries)) == (entries[:3], [entries[0], entries[3]])


def aborts(log: kstore.Log, first: int, count: int, *, over_a_roll: bool = False) -> None:
    for sequence in range(first, first + count):
        send(log, sequence, b"gone", txn=True)
        log.append(b"plain")
        if over_a_roll and sequence == first + count - 1:
            log.roll()
        log.append_marker(7, 0, commit=False)


def test_readers_ask_for_the_aborts_of_one_segment_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    find = Writer.aborted_between

    def count(self: Writer, start: int, end: int) -> list[AbortedTxn]:
        found = find(self, start, end)
        asked.append(len(found))
        return found

    with kstore.Log.open(path) as log:
        for number in range(6):
            aborts(log, 4 * number, 4, over_a_roll=number % 2 == 0)  # of two segments, one ends in the next
            if number % 2:
                log.roll()
        monkeypatch.setattr(Writer, "aborted_between", count)
        assert committed(log) == [b"plain"] * 24
        assert max(asked) <= 5
        asked.clear()
        assert len(log.read_columns(isolation="read_committed")) == 24
        assert max(asked) <= 5


def test_a_batch_table_leaves_out_what_the_batches_leave_out(path: Path) -> None:
    with kstore.Log.open(path) as log:
        aborts(log, 0, 2)
        near = log.log_end_offset
        for _ in range(200):
            log.append(b"plain")
        far = log.log_end_offset
        aborts(log, 2, 2)
        whole = log.log_end_offset
        for start, end in ((near, far), (0, far), (0, 3), (far - 1, whole)):
            how: Any = {"end_offset": end, "isolation": "read_committed"}
            records = [record.value for record in log.read(start, **how)]
            assert log.read_columns(start, **how)["value"].to_pylist() == records
            batches = [batch.base_offset for batch in log.read_batches(start, **how)]
            assert log.batch_table(start, **how)["base_offset"].tolist() == batches


# --- of a producer ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "store", background=False) as store:
        store.create_topic("t", 3)
        yield store


def stored(store: kstore.Store, **how: Any) -> list[bytes]:
    return sorted(record.value or b"" for record in store.read("t", **how))


def test_a_buffer_filled_anew_is_another_record(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    value, key, header = bytearray(b"first"), bytearray(b"k"), bytearray(b"h")
    with store.producer() as producer:
        for buffer in (value, key, header):
            with monkeypatch.context() as patch:
                interrupt(patch, TopicAppender, "append_numbered", after=True)
                with pytest.raises(Interrupted):
                    producer.append("t", value, key, partition=0, headers=[("a", header)])
            before = store.log("t", 0).log_end_offset
            assert (
                producer.append("t", bytes(value), bytes(key), partition=0, headers=[("a", bytes(header))])[2] < before
            )
            buffer[:] = b"other"
            assert producer.append("t", value, key, partition=0, headers=[("a", header)]).offset == before


@pytest.mark.parametrize("within", ["list", "headers", "value"])
def test_a_list_filled_anew_holds_other_records(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    value = bytearray(b"b")
    headers: list[tuple[str, bytes]] = []
    records: list[Any] = [b"a", (None, value, None, headers)]
    with store.producer() as producer:
        with monkeypatch.context() as patch:
            interrupt(patch, Numbering, "store", after=True)
            with pytest.raises(Interrupted):
                producer.append_many("t", records)
        if within == "list":
            records[1] = b"c"
        elif within == "headers":
            headers.append(("h", b""))
        else:
            value[:] = b"c"
        producer.append_many("t", records)
        producer.append_many("t", list(records))
    last = b"b" if within == "headers" else b"c"
    assert stored(store) == [b"a", b"a", b"a", b"b", last, last]


def test_an_append_whose_flush_was_interrupted_is_not_stored_again(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.producer() as producer:
        for _ in range(2):  # the first try, and one that finds the record there
            with monkeypatch.context() as patch:
                interrupt(patch, kstore.Log, "flush")
                with pytest.raises(Interrupted):
                    producer.append("t", b"once", sync=True)
        producer.append("t", b"once", sync=True)
        producer.append("t", b"next")
    assert stored(store) == [b"next", b"once"]


@pytest.mark.parametrize("many", [False, True])
def test_a_retry_that_could_not_ask_the_log_may_be_repeated(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    records = [(b"%d" % n, b"once") for n in range(20)]
    with store.producer() as producer:

        def act() -> None:
            if many:
                producer.append_many("t", records, sync=True)
            else:
                producer.append("t", b"once")

        with monkeypatch.context() as patch:
            interrupt(patch, *((Load, "run") if many else (TopicAppender, "append_numbered")), after=True)
            with pytest.raises(Interrupted):
                act()
        with monkeypatch.context() as patch:
            interrupt(patch, SequenceNumbers, "info")
            with pytest.raises(Interrupted):
                act()
        act()
    assert stored(store) == [b"once"] * (20 if many else 1)


def test_a_retry_of_many_that_is_broken_off_knows_of_every_partition(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try meets one partition alone; the third has to leave out what all of them have."""
    records = [(b"%d" % (n % 7), b"%d" % n * 3000) for n in range(300)]
    with store.producer() as producer:
        for name, at in (("store", 7), ("begin", 1)):
            with monkeypatch.context() as patch:
                interrupt(patch, Numbering, name, at=at)
                with pytest.raises(Interrupted):
                    producer.append_many("t", records, batch_bytes=50_000)
        producer.append_many("t", records, batch_bytes=50_000)
    assert stored(store) == sorted(value for _, value in records)


def test_a_retry_of_many_tells_where_its_own_records_are(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.producer() as producer:
        producer.append_many("t", [b"before"] * 3, partition=0)
        with monkeypatch.context() as patch:
            interrupt(patch, Numbering, "store", after=True)
            with pytest.raises(Interrupted):
                producer.append_many("t", [b"a", b"b"], partition=0)
        info = producer.append_many("t", [b"a", b"b"], partition=0)[0]
        assert (info.first_offset, info.last_offset) == (3, 4)


class Leaving:
    """A producer's lock, whose next giving back is interrupted."""

    def __init__(self, producer: Any) -> None:
        self.producer, self.lock = producer, producer._lock
        producer._lock = self

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.producer._lock = self.lock
        raise Interrupted


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_call_interrupted_as_it_gives_its_lock_back_is_not_stored_again(
    store: kstore.Store, many: bool, other: bool
) -> None:
    records = [b"once"] * 5
    with store.producer() as producer:

        def act() -> None:
            producer.append_many("t", records) if many else producer.append("t", b"once")

        Leaving(producer)
        with pytest.raises(Interrupted):
            act()
        if other:
            producer.append("t", b"other")  # gives the call up
        act()
    assert stored(store) == [b"once"] * (5 if many else 1) * (2 if other else 1) + [b"other"] * other


# --- of a transaction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["housekeeping", "next producer"])
def test_who_ends_a_transaction_does_not_wait_for_records_that_are_being_made(
    tmp_path: Path, clock: ManualClock, who: str
) -> None:
    with kstore.Store.open(tmp_path / "store", clock=clock, background=False) as store:
        store.create_topic("t")
        producer = store.producer(transactional_id="x", transaction_timeout_ms=1000)
        txn = producer.transaction()
        txn.append("t", b"0")
        making, made = threading.Event(), threading.Event()
        refused: list[BaseException] = []

        def records() -> Iterator[bytes]:
            yield b"1"
            making.set()
            made.wait(60)
            yield b"2"

        def work() -> None:
            try:
                txn.append_many("t", records())
            except kstore.InvalidProducerEpochError as error:
                refused.append(error)

        def end() -> None:
            if who == "housekeeping":
                clock.advance(20_000)
                store.run_housekeeping()
            else:
                store.producer(transactional_id="x")

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        assert making.wait(60)
        ender = threading.Thread(target=end, daemon=True)
        ender.start()
        ender.join(60)
        assert not ender.is_alive()
        assert store.log("t", 0).last_stable_offset == store.log("t", 0).log_end_offset == 2  # the abort is in
        made.set()
        worker.join(60)
        assert len(refused) == 1
        assert [record.value for record in store.read("t")] == [b"0"]
        producer.close()


def test_threads_that_share_a_transaction_append_one_after_the_other(store: kstore.Store) -> None:
    with store.producer(transactional_id="x") as producer:
        with producer.transaction() as txn:
            threads = []

            def records() -> Iterator[bytes]:
                yield b"many"
                other = threading.Thread(target=txn.append, args=("t", b"one"), kwargs={"partition": 0}, daemon=True)
                other.start()
                threads.append(other)
                other.join(0.05)
                yield b"many"

            txn.append_many("t", records(), partition=0)
            for thread in threads:
                thread.join(60)
        assert committed(store.log("t", 0)) == [b"many", b"many", b"one"]


def in_a_child(work: Callable[[], object]) -> int:
    """What a forked process that does `work` ends with: 0 when all is well, -SIGALRM when it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_forked_while_other_threads_append_waits_for_no_lock(store: kstore.Store) -> None:
    plain, producer = store.producer(), store.producer(transactional_id="x")
    txn = producer.transaction()
    making, made = threading.Barrier(3), threading.Event()

    def records() -> Iterator[bytes]:
        making.wait(60)
        made.wait(60)
        yield b"x"

    class Busy:
        """Hold the lock of the id while the child is forked."""

        def __iter__(self) -> Iterator[bytes]:
            with producer._entry.lock:
                yield from records()

    threads = [
        threading.Thread(target=target.append_many, args=("t", source), daemon=True)
        for target, source in ((plain, records()), (txn, Busy()))
    ]
    for thread in threads:
        thread.start()
    making.wait(60)

    def work() -> None:
        calls: list[Callable[[], object]] = [
            lambda: plain.append("t", b"child"),
            lambda: plain.append_many("t", [b"child"]),
            lambda: txn.append("t", b"child"),
            lambda: txn.append_many("t", [b"child"]),
            txn.commit,
            producer.transaction,
            lambda: store.producer(transactional_id="x"),
        ]
        for call in calls:
            with pytest.raises(kstore.LogClosedError):
                call()
        plain.close()
        producer.close()

    code = in_a_child(work)
    made.set()
    for thread in threads:
        thread.join(60)
    assert code == 0
    txn.commit()
    assert stored(store) == [b"x", b"x"]
    producer.close()


def test_a_commit_interrupted_behind_its_decision_stays_decided(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PrepareCommit is in the log: a PrepareAbort behind it would be another end of the same transaction."""
    append = kstore.Log.append

    def act(log: kstore.Log, value: bytes, key: bytes) -> int:
        offset = append(log, value, key)
        if parse_transaction(value).status == Status.PREPARE_COMMIT:
            monkeypatch.undo()
            raise Interrupted
        return offset

    with store.producer(transactional_id="x") as producer:
        txn = producer.transaction()
        txn.append("t", b"kept")
        monkeypatch.setattr(kstore.Log, "append", act)
        with pytest.raises(Interrupted):
            txn.commit()
        with pytest.raises(kstore.InvalidTxnStateError):
            txn.abort()
        with producer.transaction() as txn:
            txn.append("t", b"next")
        states = [parse_transaction(record.value or b"").status.name for record in store.read("__transaction_state")]
        assert states == ["EMPTY", *["ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"] * 2]
        assert stored(store, isolation="read_committed") == [b"kept", b"next"]


def test_a_decision_interrupted_before_its_record_is_none(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.producer(transactional_id="x") as producer:
        txn = producer.transaction()
        txn.append("t", b"kept")
        with monkeypatch.context() as patch:
            interrupt(patch, kstore.Log, "append")
            with pytest.raises(Interrupted):
                txn.commit()
        txn.commit()
        assert stored(store) == [b"kept"]


def test_the_topic_of_transactions_goes_only_while_no_id_is_in_use(store: kstore.Store) -> None:
    with store.producer(transactional_id="x") as producer:
        with producer.transaction() as txn:
            txn.append("t", b"a")
        with pytest.raises(kstore.InvalidTxnStateError, match="x is in use"):
            store.delete_topic("__transaction_state")
    store.delete_topic("__transaction_state")
    with store.producer(transactional_id="x") as producer, producer.transaction() as txn:
        txn.append("t", b"b")
    assert stored(store, isolation="read_committed") == [b"a", b"b"]


def test_a_stores_settings_say_when_producers_are_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    """SEMANTICS 9.21, as the settings have it."""
    settings: dict[str, Any] = {"producer_id_expiration_ms": 5000, "producer_id_expiration_check_interval_ms": 2000}
    root = tmp_path / "store"
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        store.create_topic("t")
        log = store.log("t", 0)
        send(log, 0)
        for wait, left in ((4999, 1), (2000, 0)):
            clock.advance(wait)
            store.run_housekeeping()
            assert len(log.producer_states()) == left
        send(log, 0)
    clock.advance(5000)
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        assert store.log("t", 0).producer_states() == []  # on loading, too


def test_a_producer_that_looks_itself_up_does_not_look_at_all_others(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.log("t", 0)
    for pid in (7, 8):
        send(log, 0, pid=pid)
    known = log.producer_states()
    assert [HostedLog(log).writer.producer_info(pid) for pid in (6, 7, 8, 9)] == [None, *known, None]

    def all_of_them(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ProducerState, "infos", all_of_them)
    with store.producer() as producer:
        with monkeypatch.context() as patch:
            interrupt(patch, TopicAppender, "append_numbered", after=True)
            with pytest.raises(Interrupted):
                producer.append("t", b"once", partition=0)
        producer.append("t", b"once", partition=0)
    with store.producer(transactional_id="x") as transactional:
        txn = transactional.transaction()
        txn.append("t", b"kept", partition=0)
        with monkeypatch.context() as patch:
            interrupt(patch, _transaction, "append_marker")
            with pytest.raises(Interrupted):
                txn.commit()
        transactional.transaction().abort()  # completes the commit first
    assert committed(log) == [b"v", b"v", b"once", b"kept"]


def test_a_consumer_that_was_interrupted_goes_on_where_it_was(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append_many("t", [b"%d" % n for n in range(5)], partition=0)
    with store.consumer("g", "t") as consumer:
        assert next(consumer).value == b"0"
        for error in (Interrupted, kstore.StorageError(5, "a disk")):

            def fail(*_: object, error: Any = error, **__: object) -> None:
                raise error

            consumer.seek("t", 0, 1)
            with monkeypatch.context() as patch:
                patch.setattr(TopicFollower, "coming", fail)
                with pytest.raises((Interrupted, kstore.StorageError)):
                    next(consumer)
            assert [record.value for record in consumer] == [b"1", b"2", b"3", b"4"]
