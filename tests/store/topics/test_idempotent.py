"""Numbered records appended in one step, without a lock: the same bytes, each number once, also after interrupts."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.log.writing._appender import Appender
from kstore.store.topics._idempotent import PartitionSequence, Sequences, append_at_once
from kstore.store.topics._partitioner import Router
from kstore.store.topics._topic_append import Route
from kstore.store.topics.idempotent import SequenceNumbers
from tests.support.interrupts import Interrupted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "store", background=False, clock=lambda: 1_700_000_000_000) as store:
        store.create_topic("t", 2)
        yield store


def batches_of(log: kstore.Log) -> list[bytes]:
    return [bytes(batch)[12:] for batch in log.read_batches()]


def sequences_of(log: kstore.Log) -> list[int]:
    return [
        number
        for batch in log.read_batches()
        for number in range(batch.base_sequence, batch.base_sequence + batch.count)
    ]


@pytest.mark.parametrize("key", [None, b"", b"key", bytearray(b"array")])
@pytest.mark.parametrize("value", [None, b"", b"v" * 100, b"v" * 20_000])
@pytest.mark.parametrize("timestamp", [None, -1, 0, 1_600_000_000_000])
def test_a_record_is_the_same_batch_with_and_without_the_lock(
    store: kstore.Store, key: bytes | None, value: bytes | None, timestamp: int | None
) -> None:
    with store.producer() as producer:
        first = producer.append("t", value, key, partition=0, timestamp=timestamp)  # the log does not know it yet
        assert sequences_of(store.log("t", 0)) == [0]
        second = producer.append("t", value, key, partition=0, timestamp=timestamp)
        again = producer.append("t", value, key, partition=0, timestamp=timestamp, headers=[])
    assert [first.offset, second.offset, again.offset] == [0, 1, 2]
    assert first.timestamp == second.timestamp == again.timestamp
    assert sequences_of(store.log("t", 0)) == [0, 1, 2]
    log = store.log("t", 0)
    crc_and_sequence = (slice(5, 9), slice(41, 45))  # behind base offset and length
    shapes = []
    for batch in batches_of(log):
        bare = bytearray(batch)
        for part in crc_and_sequence:
            bare[part] = bytes(4)
        shapes.append(bytes(bare))
    assert len(set(shapes)) == 1
    assert [record.value for record in log.read()] == [value] * 3  # each with a CRC that holds


def test_one_that_is_refused_takes_no_number(store: kstore.Store) -> None:
    with store.producer() as producer:
        producer.append("t", b"a", partition=0)
        with pytest.raises(TypeError, match=r"value is a str"):
            producer.append("t", "text", partition=0)  # type: ignore[arg-type]
        with pytest.raises(kstore.InvalidTimestampError):
            producer.append("t", b"b", partition=0, timestamp=-2)
        with pytest.raises(kstore.RecordTooLargeError):
            producer.append("t", bytes(2 << 20), partition=0)
        for wrong in (2, -1, True, "0"):
            with pytest.raises((kstore.KStoreError, TypeError)):
                producer.append("t", b"b", partition=wrong)  # type: ignore[arg-type]
        assert producer.append("t", b"c", partition=0).offset == 1
    assert sequences_of(store.log("t", 0)) == [0, 1]


def test_a_record_that_was_in_when_the_interrupt_came_is_not_stored_again(store: kstore.Store) -> None:
    store.update_topic_config("t", {"flush.messages": "1"})
    appender = store.log("t", 0)._writable().appender
    with store.producer() as producer:
        producer.append("t", b"first", partition=0)
        told = appender.on_publish

        def interrupt() -> None:
            appender.on_publish = told
            raise Interrupted

        appender.on_publish = interrupt
        with pytest.raises(Interrupted):
            producer.append("t", b"once", partition=0)
        assert producer.append("t", b"once", partition=0).offset == 1
        assert producer.append("t", b"once", partition=0).offset == 2  # a call of its own
    assert [record.value for record in store.log("t", 0).read()] == [b"first", b"once", b"once"]
    assert sequences_of(store.log("t", 0)) == [0, 1, 2]


def test_a_record_whose_call_was_interrupted_as_it_returned_is_not_stored_again(store: kstore.Store) -> None:
    """The signal comes inside of the step in C, which the interpreter ends before it runs the handler."""
    appender = store.log("t", 0)._writable().appender

    def handler(_number: int, _frame: object) -> None:
        raise Interrupted

    with store.producer() as producer:
        producer.append("t", b"first", partition=0)
        told, appender.flush_at = appender.on_publish, 0
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            appender.on_publish = partial(_thread.interrupt_main, signal.SIGUSR1)
            with pytest.raises(Interrupted):
                producer.append("t", b"once", partition=0)
        finally:
            appender.on_publish, appender.flush_at = told, 1 << 62
            signal.signal(signal.SIGUSR1, before)
        assert producer.append("t", b"once", partition=0).offset == 1
        assert producer.append("t", b"once", partition=0).offset == 2  # a call of its own
    assert [record.value for record in store.log("t", 0).read()] == [b"first", b"once", b"once"]


def test_after_another_call_the_interrupted_one_is_given_up(store: kstore.Store) -> None:
    appender = store.log("t", 0)._writable().appender
    with store.producer() as producer:
        producer.append("t", b"first", partition=0)
        told, appender.flush_at = appender.on_publish, 0

        def interrupt() -> None:
            appender.on_publish, appender.flush_at = told, 1 << 62
            raise Interrupted

        appender.on_publish = interrupt
        with pytest.raises(Interrupted):
            producer.append("t", b"once", partition=0)
        producer.append("t", b"other", partition=0)
        producer.append("t", b"once", partition=0)
    assert [record.value for record in store.log("t", 0).read()] == [b"first", b"once", b"other", b"once"]


def test_threads_that_append_one_and_many_give_each_number_once(store: kstore.Store) -> None:
    count, failures = 400, []
    with store.producer() as producer:

        def act(number: int) -> None:
            try:
                for i in range(count):
                    if number == 0 and i % 8 == 0:
                        producer.append_many("t", [b"m%d" % i, b"n%d" % i], partition=0)
                    else:
                        producer.append("t", b"%d-%d" % (number, i), partition=0)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    log = store.log("t", 0)
    assert sequences_of(log) == list(range(4 * count + count // 8))
    assert len({record.value for record in log.read()}) == 4 * count + count // 8


def test_a_record_waits_while_the_numbers_are_held(store: kstore.Store) -> None:
    begun, go = threading.Event(), threading.Event()

    def records() -> Iterator[bytes]:
        yield b"many-1"
        begun.set()
        go.wait(60)
        yield b"many-2"

    with store.producer() as producer:
        producer.append("t", b"first", partition=0)
        many = threading.Thread(target=lambda: producer.append_many("t", records(), partition=0))
        many.start()
        begun.wait(60)
        taken: list[object] = [None]
        route = producer._appender._routes.find("t")
        assert producer._numbers.append(taken, route, "t", 0, b"one", None, None) == 0  # where it is to go
        assert taken == [None]
        one = threading.Thread(target=lambda: producer.append("t", b"one", partition=0))
        one.start()
        go.set()
        many.join(60)
        one.join(60)
    values = [record.value for record in store.log("t", 0).read()]
    assert values == [b"first", b"many-1", b"many-2", b"one"]
    assert sequences_of(store.log("t", 0)) == [0, 1, 2, 3]


def test_a_closed_producer_appends_nothing(store: kstore.Store) -> None:
    producer = store.producer()
    producer.append("t", b"a", partition=0)
    producer.close()
    with pytest.raises(kstore.LogClosedError, match="the producer is closed"):
        producer.append("t", b"b", partition=0)
    assert len(list(store.log("t", 0).read())) == 1


def test_a_producer_goes_on_when_its_topic_was_made_anew(store: kstore.Store) -> None:
    with store.producer() as producer:
        for _ in range(2):
            producer.append("t", b"old", partition=1)
        store.delete_topic("t")
        with pytest.raises(kstore.UnknownTopicOrPartitionError):
            producer.append("t", b"none", partition=1)
        store.create_topic("t", 2)
        producer.append("t", b"new", partition=1)
        producer.append("t", b"new", partition=1)
    assert [record.value for record in store.log("t", 1).read()] == [b"new", b"new"]


def test_numbers_that_nobody_has_attached_to_a_log_append_nothing() -> None:
    numbers = SequenceNumbers(5, 0, transactional=False)
    assert isinstance(numbers, Sequences)
    numbers.partitions["t", 0] = PartitionSequence()
    route = Route("t", {}, Router(1, sticky_bytes=1), lambda: 0)
    assert numbers.append(None, route, "t", 0, b"v", None, None) == 0


def test_a_producer_that_was_not_made_by_a_store_refuses_to_append() -> None:
    """The compiled step takes nothing else for its parts."""
    bare: kstore.Producer = kstore.Producer.__new__(kstore.Producer)
    with pytest.raises((AttributeError, TypeError)):
        bare.append("t", b"v")
    producer: Any = None
    with pytest.raises(TypeError):
        append_at_once(producer, [None], "t", None, b"v", None, None)


def test_a_route_and_numbers_refuse_what_they_cannot_use() -> None:
    route = Route("t", {}, Router(1, sticky_bytes=1), lambda: 0)
    writer: Any = SimpleNamespace(appender=Appender())
    for number in (-1, 1):
        route.writers.append(writer)
        with pytest.raises(IndexError, match=f"partition {number} of 1"):
            route.attach(number, writer)
    with pytest.raises(TypeError):
        Route.__new__(Route)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="metadata is int"):
        Sequences(5, 0, transactional=False, metadata=int)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=60))
def test_the_last_stable_offset_is_that_of_the_earliest_open_transaction(steps: list[tuple[int, bool]]) -> None:
    """Against a dictionary, transactions of eight producers begin and end in any order (SEMANTICS 9.13)."""
    from kstore import encode_batch
    from kstore.log.segments._producer_state import Origin, ProducerTable, marker_batch

    table = ProducerTable()
    open_at: dict[int, int] = {}
    sequences = [0] * 8
    for offset, (producer, commit) in enumerate(steps):
        if producer in open_at:
            table.stage(marker_batch(1, producer, 0, commit, 0), 0, offset, Origin.COORDINATOR, 0)
            others = [first for other, first in open_at.items() if other != producer]
            stable = min(others) if others else offset + 1
            assert table.aborted() == ([] if commit else [(producer, open_at[producer], offset, stable)])
            del open_at[producer]
        else:
            batch = encode_batch(
                [b"v"], producer_id=producer, producer_epoch=0, base_sequence=sequences[producer], transactional=True
            )
            sequences[producer] += 1
            table.stage(batch, 0, offset, Origin.CLIENT)
            open_at[producer] = offset
        table.publish()
        assert table.open.last_stable_offset(0, offset + 1) == min([offset + 1, *open_at.values()])
