"""What a call that stores many records says when an exception ends it: every exception tells what was stored before."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import kstore
from kstore.errors import KStoreError, StorageError
from kstore.log.writing.writer import Writer
from tests.support import arrowstructs as arrow

COUNT, BAD = 50_000, 47_700


class CallersError(Exception):
    """What the caller's iterator raises."""


class Closed(BaseException):
    """An exception that takes no attribute of ours."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "appended":
            raise AttributeError(name)
        super().__setattr__(name, value)


def stream(bad: object) -> Iterator[Any]:
    """50,000 records, one of which is `bad`, or raises it."""
    for number in range(COUNT):
        if number == BAD:
            if isinstance(bad, BaseException):
                raise bad
            yield bad
        yield b"k%d" % (number % 7), b"%d" % number * 4


@pytest.fixture(params=["str", "iterator", "KeyboardInterrupt", "GeneratorExit", "SystemExit"])
def bad(request: pytest.FixtureRequest) -> object:
    """What ends the stream."""
    kinds: dict[str, object] = {
        "str": "not bytes",
        "iterator": CallersError("lost the connection"),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "GeneratorExit": GeneratorExit(),
        "SystemExit": SystemExit(3),
    }
    return kinds[request.param]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    """A store with a topic of three partitions."""
    with kstore.Store.open(tmp_path / "store", background=False, seed=1) as store:
        store.create_topic("t", 3)
        yield store


def expected(bad: object) -> type[BaseException]:
    return type(bad) if isinstance(bad, BaseException) else TypeError


def span(info: kstore.AppendInfo) -> tuple[int, int]:
    return info.first_offset, info.last_offset


def check_by_partition(store: kstore.Store, error: BaseException) -> None:
    """The exception tells the offsets that are in each partition."""
    appended: Any = error.appended  # type: ignore[attr-defined]
    ends = {number: store.log("t", number).log_end_offset for number in range(3)}
    assert sum(ends.values()) > 10_000
    assert {number: span(info) for number, info in appended.items()} == {n: (0, end - 1) for n, end in ends.items()}
    (note,) = error.__notes__
    assert "topic t" in note
    for number, end in ends.items():
        assert f"partition {number}: offsets 0 to {end - 1}" in note


def test_a_log_says_what_was_stored_whatever_ends_the_stream(partition: Path, bad: object) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"before")
        with pytest.raises(expected(bad)) as caught:
            log.append_many(stream(bad), batch_bytes=8192)
        error: Any = caught.value
        stored = [record.offset for record in log.read(1)]
        assert 10_000 < len(stored) <= BAD
        assert error.appended == kstore.AppendInfo(1, stored[-1], max(r.timestamp for r in log.read(1)), -1)
        assert error.__notes__ == [f"kstore has stored before, in {partition}: offsets 1 to {stored[-1]}"]
        assert log.log_end_offset == stored[-1] + 1


def test_a_store_says_what_was_stored_in_each_partition(store: kstore.Store, bad: object) -> None:
    with pytest.raises(expected(bad)) as caught:
        store.append_many("t", stream(bad), batch_bytes=8192)
    check_by_partition(store, caught.value)


def test_a_producer_says_it_and_a_repeated_call_stores_the_rest(store: kstore.Store) -> None:
    values: list[Any] = [(b"k%d" % (n % 7), b"%d" % n * 4) for n in range(COUNT)]
    values[BAD] = "not bytes"
    with store.producer() as producer:
        with pytest.raises(TypeError) as caught:
            producer.append_many("t", values, batch_bytes=8192)
        check_by_partition(store, caught.value)


def test_a_transaction_says_it(store: kstore.Store, bad: object) -> None:
    with store.producer(transactional_id="id") as producer:
        with pytest.raises(expected(bad)) as caught, producer.transaction() as txn:
            txn.append_many("t", stream(bad), batch_bytes=8192)
        assert [info.first_offset for info in caught.value.appended.values()] == [0, 0, 0]  # type: ignore[attr-defined]
        assert list(store.read("t", isolation="read_committed")) == []


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_columns_say_it(partition: Path, store: kstore.Store, threads: int, compression: Literal["lz4"] | None) -> None:
    chunk = arrow.binary([b"x" * 100] * 20_000)
    how: Any = {"batch_bytes": 8192, "threads": threads, "compression": compression}

    with kstore.Log.open(partition) as log:
        with pytest.raises(kstore.InvalidColumnError) as caught:
            log.append_columns(arrow.Stream([chunk] * 3, like=chunk, fail_at=2), **how)
        told: Any = caught.value.appended
        assert span(told) == (0, log.log_end_offset - 1)
        assert told.last_offset > 20_000
        with pytest.raises(kstore.InvalidColumnError) as caught:
            store.append_columns("t", arrow.Stream([chunk] * 3, like=chunk, fail_at=2), keys=None, **how)
        told = caught.value.appended
        assert {n: span(info) for n, info in told.items()} == {
            n: (0, end - 1) for n in range(3) if (end := store.log("t", n).log_end_offset)
        }
        assert sum(info.last_offset + 1 for info in told.values()) > 20_000


def refusing(patch: pytest.MonkeyPatch, after: int, error: BaseException) -> None:
    """Have the disk, or an interrupt, refuse an append once so many calls were done."""
    plain = Writer.append_locked
    calls = 0

    def act(self: Writer, batches: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        plain(self, batches)

    patch.setattr(Writer, "append_locked", act)


@pytest.mark.parametrize("error", [StorageError(errno.EMFILE, "Too many open files"), KeyboardInterrupt()])
def test_a_disk_that_refuses_and_an_interrupt_in_the_append_itself_say_it(
    partition: Path, store: kstore.Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with kstore.Log.open(partition) as log:
        calls: list[Callable[[], Any]] = [
            lambda: log.append_many(stream(b"")),
            lambda: log.append_columns(np.zeros((COUNT, 120), np.uint8)),
            lambda: store.append_many("t", stream(b"")),
            lambda: store.append_columns("t", np.zeros((COUNT, 30), np.uint8)),
        ]
        for call in calls:
            with monkeypatch.context() as patch:
                refusing(patch, 1, error)
                before = log.log_end_offset
                ends = {number: store.log("t", number).log_end_offset for number in range(3)}
                with pytest.raises(type(error)) as caught:
                    call()
            raised: Any = caught.value
            told: Any = raised.appended
            if isinstance(told, dict):
                grown = {n: (end, store.log("t", n).log_end_offset - 1) for n, end in ends.items()}
                assert {n: span(info) for n, info in told.items()} == {n: g for n, g in grown.items() if g[1] >= g[0]}
                assert told
            else:
                assert span(told) == (before, log.log_end_offset - 1)
                assert told.last_offset > before
            assert hasattr(raised, "__notes__") != isinstance(raised, KStoreError)
            raised.__dict__.clear()


def test_what_was_stored_before_a_roll_that_fails_is_told_with_its_timestamp(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`batches.store` is left in the middle of a packer's batches: those up to the roll are in the log."""
    with kstore.Log.open(partition, segment_bytes=4096) as log:

        def full(*_: object) -> None:
            raise StorageError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "roll_locked", full)
            with pytest.raises(StorageError) as caught:
                log.append_many([(None, b"x" * 500, 1000 + n, None) for n in range(40)], batch_bytes=1200)
        assert 0 < log.log_end_offset < 40
        end = log.log_end_offset
        assert caught.value.appended == kstore.AppendInfo(0, end - 1, 1000 + end - 1, -1)


def test_a_flush_that_fails_after_all_was_stored_says_so(
    partition: Path, store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise StorageError(errno.EIO, "Input/output error")

    monkeypatch.setattr(kstore.Log, "flush", failing)
    with kstore.Log.open(partition) as log:
        calls: list[Callable[[], Any]] = [
            lambda: log.append_many([b"a", b"b"], sync=True),
            lambda: log.append_columns([b"a", b"b"], sync=True),
            lambda: store.append_many("t", [b"a", b"b"], sync=True, partition=0),
            lambda: store.append_columns("t", [b"a", b"b"], sync=True, partition=0),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(StorageError) as caught:
                call()
            told: Any = caught.value.appended
            told = told[0] if isinstance(told, dict) else told
            assert span(told) == (number % 2 * 2, number % 2 * 2 + 1)


def test_an_exception_that_takes_no_attribute_has_the_note(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        with pytest.raises(Closed) as caught:
            log.append_many(stream(Closed()), batch_bytes=8192)
        assert not hasattr(caught.value, "appended")
        assert caught.value.__notes__ == [
            f"kstore has stored before, in {partition}: offsets 0 to {log.log_end_offset - 1}"
        ]


@pytest.mark.parametrize("atomic", [True, False])
def test_an_exception_that_ends_a_call_before_it_has_stored_anything_says_nothing(
    partition: Path, store: kstore.Store, atomic: bool
) -> None:
    def ending() -> Iterator[bytes]:
        yield b"a"
        raise CallersError

    with kstore.Log.open(partition) as log:
        calls: list[Callable[[], Any]] = [
            lambda: log.append_many(ending(), atomic=atomic),
            lambda: store.append_many("t", ending()),
        ]
        for call in calls:
            with pytest.raises(CallersError) as caught:
                call()
            assert not hasattr(caught.value, "appended")
            assert not hasattr(caught.value, "__notes__")
        assert log.log_end_offset == 0


def test_an_error_that_a_deleted_topic_gives_tells_one_call_alone(store: kstore.Store) -> None:
    """The error that an entry keeps is raised again and again, and must not carry what another call stored."""

    def deleting() -> Iterator[Any]:
        yield from ((b"k%d" % (n % 7), b"x" * 100) for n in range(20_000))
        store.delete_topic("t")
        yield from ((b"k%d" % (n % 7), b"x" * 100) for n in range(40_000))

    logs = [store.log("t", number) for number in range(3)]
    entries = list(store._metadata.catalog.partitions("t").values())
    with pytest.raises(kstore.UnknownTopicOrPartitionError) as caught:
        store.append_many("t", deleting(), batch_bytes=8192)
    told: Any = caught.value.appended
    assert sum(info.last_offset + 1 for info in told.values()) > 1000
    assert all(log.closed for log in logs)
    assert all(entry.failure is not None and entry.failure.appended is None for entry in entries)
