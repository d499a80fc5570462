"""`Consumer.poll`, and a consumer that is iterated again after its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.store.topics.topic_follow import TopicFollower
from tests.conftest import examples


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 2)
        yield store


def write(store: kstore.Store, first: int, end: int) -> None:
    for number in range(first, end):
        store.append("orders", b"%d" % number, partition=number % 2)


def numbers(records: Any) -> list[int]:
    return [int(record.value) for record in records]


@pytest.mark.parametrize("follow", [False, True])
def test_polls_give_everything_once_and_nothing_when_the_time_is_up(store: kstore.Store, follow: bool) -> None:
    write(store, 0, 10)
    with store.consumer("grp", "orders", follow=follow, timeout=0) as consumer:
        polled = [numbers(consumer.poll(max_records=4)) for _ in range(5)]
        assert [len(each) for each in polled] == [4, 4, 2, 0, 0]
        assert sorted(chain.from_iterable(polled)) == list(range(10))
        write(store, 10, 12)
        assert numbers(consumer.poll(0)) == [10, 11]
        assert consumer.poll(0.01) == []
        consumer.commit()
        assert store.committed_offsets("grp") == {("orders", 0): 6, ("orders", 1): 6}


@pytest.mark.parametrize("timeout", [60, None])
def test_a_poll_waits_for_the_first_record_alone(store: kstore.Store, timeout: float | None) -> None:
    with store.consumer("grp", "orders") as consumer:
        writer = threading.Timer(0.05, store.append, ("orders", b"1"))
        began = time.monotonic()
        writer.start()
        assert numbers(consumer.poll(timeout)) == [1]
        assert time.monotonic() - began < 60
        writer.join()


def test_an_ended_consumer_goes_on_when_there_is_more(store: kstore.Store) -> None:
    write(store, 0, 3)
    for how in ({}, {"follow": True, "timeout": 0}, {"merge": "timestamp"}):
        with store.consumer("grp", "orders", **how) as consumer:  # type: ignore[call-overload]
            before = len(list(consumer))
            assert list(consumer) == []
            write(store, 3, 5)
            assert sorted(numbers(consumer)) == [3, 4]
            store.add_partitions("orders", store.partitions("orders")[-1] + 2)
            store.append("orders", b"5", partition=store.partitions("orders")[-1])
            assert numbers(consumer) == [5]
            assert sum(consumer.positions.values()) == before + 3


def test_polling_and_iterating_share_the_position(store: kstore.Store) -> None:
    write(store, 0, 8)
    with store.consumer("grp", "orders") as consumer:
        seen = [int(next(consumer).value or b"")]
        seen += numbers(consumer.poll(max_records=2))
        seen += [int(next(consumer).value or b"")]
        assert sum(consumer.positions.values()) == 4
        seen += numbers(consumer)
        assert sorted(seen) == list(range(8))
        consumer.seek("orders", 0, 3)
        assert numbers(consumer.poll()) == [6]


def test_a_fault_is_raised_once_what_was_there_before_it_has_been_given(store: kstore.Store) -> None:
    write(store, 0, 4)
    with store.consumer("grp", "orders") as consumer:
        coming = TopicFollower.coming

        def failing(follower: TopicFollower) -> Iterator[kstore.ConsumerRecord]:
            yield from coming(follower)
            raise kstore.CorruptRecordError("a fault")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TopicFollower, "coming", failing)
            assert sorted(numbers(consumer.poll())) == [0, 1, 2, 3]
            with pytest.raises(kstore.CorruptRecordError):
                consumer.poll()
        assert consumer.poll() == []
        consumer.commit()
        assert sum(store.committed_offsets("grp").values()) == 4


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError])
def test_a_poll_that_is_interrupted_has_read_nothing(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    """Ctrl-C, or the exception of a signal's handler: the records that were taken are polled again."""
    write(store, 0, 4)
    with store.consumer("grp", "orders") as consumer:
        assert len(consumer.poll(max_records=1)) == 1
        before = consumer.positions
        step, calls = kstore.Consumer._next, iter(range(100))

        def interrupted(self: kstore.Consumer, **how: Any) -> Any:
            if next(calls) == 2:
                raise interrupt
            return step(self, **how)

        with monkeypatch.context() as patch:
            patch.setattr(kstore.Consumer, "_next", interrupted)
            with pytest.raises(interrupt):
                consumer.poll()
        assert consumer.positions == before
        assert len(consumer.poll()) == 3


def test_what_a_poll_may_be_given(store: kstore.Store) -> None:
    consumer = store.consumer("grp", "orders")
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            consumer.poll(wrong)
    with pytest.raises(TypeError, match="timeout"):
        consumer.poll("1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_records is 0"):
        consumer.poll(max_records=0)
    consumer.close()
    with pytest.raises(kstore.LogClosedError):
        consumer.poll()


@examples(0.25)
@given(st.lists(st.tuples(st.sampled_from(["write", "poll", "next", "list", "rewind", "commit"]), st.integers(1, 5))))
def test_whatever_the_calls_each_record_comes_once_after_the_committed_ones(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    with kstore.Store.open(tmp_path_factory.mktemp("polls"), background=False) as store:
        store.create_topic("orders")
        written = read = committed = 0
        consumer = store.consumer("grp", "orders")
        for act, count in [*history, ("list", 0)]:
            seen: list[int] = []
            if act == "write":
                for number in range(written, written + count):
                    store.append("orders", b"%d" % number)
                written += count
            elif act == "poll":
                seen = numbers(consumer.poll(max_records=count))
                assert len(seen) in range(min(1, written - read), count + 1)
            elif act == "next":
                seen = numbers(record for _, record in zip(range(count), consumer, strict=False))
            elif act == "list":
                seen = numbers(consumer)  # what is left of the last look
                seen += numbers(consumer)
                assert len(seen) == written - read
            elif act == "rewind":
                consumer.seek_to_committed()
                read = committed
            else:
                consumer.commit()
                committed = read
            assert seen == list(range(read, read + len(seen)))
            read += len(seen)
