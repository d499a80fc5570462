"""`ConsumerRecord`, and the records of many partitions as one iterator, in rounds and merged by time."""

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore._core import Record, RecordIterator
from kstore.codec._pack import encode_batch
from kstore.store.topics._consume import ConsumerIterator, ConsumerRecord

T = 1_700_000_000_000


# ---- records of a topic


def consumed(**changes: Any) -> ConsumerRecord:
    fields: dict[str, Any] = {"topic": "t", "partition": 3, "offset": 7, "timestamp": T, "key": b"k", "value": b"v"}
    return ConsumerRecord(**{**fields, "headers": (("h", None),), **changes})


def test_a_consumer_record_has_seven_attributes_and_unpacks_in_their_order() -> None:
    record = consumed()
    topic, partition, offset, timestamp, key, value, headers = record
    assert (topic, partition, offset, timestamp, key, value, headers) == ("t", 3, 7, T, b"k", b"v", (("h", None),))
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("t", 3, 7, T)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", None),))
    assert len(record) == 7
    match record:
        case ConsumerRecord(name, number, at):
            assert (name, number, at) == ("t", 3, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "u"},
        {"partition": 4},
        {"offset": 8},
        {"timestamp": 0},
        {"key": None},
        {"value": b""},
        {"headers": ()},
    ],
)
def test_consumer_records_compare_by_value(change: dict[str, Any]) -> None:
    assert consumed() == consumed()
    assert hash(consumed()) == hash(consumed())
    assert consumed(**change) != consumed()
    assert consumed() != tuple(consumed())


def test_a_consumer_record_survives_pickling_and_shows_its_fields() -> None:
    record = consumed()
    assert pickle.loads(pickle.dumps(record)) == record
    assert eval(repr(record), {"ConsumerRecord": ConsumerRecord}) == record


def test_a_consumer_record_cannot_be_changed() -> None:
    for name in ("topic", "partition", "offset", "timestamp", "key", "value", "headers"):
        with pytest.raises(AttributeError):
            setattr(consumed(), name, None)


@pytest.mark.parametrize("change", [{"topic": None}, {"key": "text"}, {"value": 7}, {"headers": [(b"h", b"v")]}])
def test_a_consumer_record_of_wrong_types_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        consumed(**change)


# ---- partitions read as one


def source(timestamps: Iterable[int], name: str = "") -> RecordIterator:
    """The records of one partition: these timestamps, offsets from 0, values that say both."""
    rows = [(None, f"{name}{t}".encode(), t, ()) for t in timestamps]
    return RecordIterator([(encode_batch(rows), None, 0)])


def read(rounds: Iterable[list[tuple[int, Any]]], *, by_timestamp: bool) -> list[tuple[int, int, int]]:
    return [
        (record.partition, record.offset, record.timestamp)
        for record in ConsumerIterator("t", rounds, by_timestamp=by_timestamp)
    ]


def test_partition_by_partition_the_rounds_come_one_after_the_other() -> None:
    rounds = [[(1, source([5, 3])), (0, source([4]))], [], [(2, source([])), (0, source([9]))]]
    assert read(rounds, by_timestamp=False) == [(1, 0, 5), (1, 1, 3), (0, 0, 4), (0, 0, 9)]


def test_a_record_carries_everything_of_its_partitions() -> None:
    row = (b"k", b"v", T, (("h", b"x"),))
    records = RecordIterator([(encode_batch([row], base_offset=77), None, 0)])
    assert list(ConsumerIterator("topic", [[(5, records)]], by_timestamp=False)) == [
        ConsumerRecord("topic", 5, 77, T, b"k", b"v", (("h", b"x"),))
    ]


def test_merged_the_least_timestamp_is_first_and_among_equals_the_lower_partition() -> None:
    rounds = [[(2, source([1, 4, 4])), (0, source([4, 5])), (1, source([0, 4]))]]
    assert read(rounds, by_timestamp=True) == [
        (1, 0, 0), (2, 0, 1), (0, 0, 4), (1, 1, 4), (2, 1, 4), (2, 2, 4), (0, 1, 5),
    ]  # fmt: skip


def test_merged_each_partition_keeps_its_order_when_its_clock_goes_back() -> None:
    rounds = [[(0, source([10, 1, 2])), (1, source([5, 11]))]]
    assert read(rounds, by_timestamp=True) == [(1, 0, 5), (0, 0, 10), (0, 1, 1), (0, 2, 2), (1, 1, 11)]


def plain_merge(parts: list[list[int]]) -> list[tuple[int, int, int]]:
    """What the merge promises, the slow way."""
    left = [[(p, offset, t) for offset, t in enumerate(part)] for p, part in enumerate(parts)]
    out = []
    while any(left):
        best = min((part for part in left if part), key=lambda part: (part[0][2], part[0][0]))
        out.append(best.pop(0))
    return out


@given(st.lists(st.lists(st.lists(st.integers(-1, 9), max_size=8), max_size=9), max_size=3))
def test_the_merge_is_the_plain_one_round_by_round(rounds: list[list[list[int]]]) -> None:
    given_rounds = [[(p, source(part)) for p, part in enumerate(parts)] for parts in rounds]
    assert read(given_rounds, by_timestamp=True) == list(itertools.chain(*map(plain_merge, rounds)))


@pytest.mark.parametrize("by_timestamp", [False, True])
def test_no_rounds_and_empty_ones_give_no_records(by_timestamp: bool) -> None:
    assert read([], by_timestamp=by_timestamp) == []
    assert read([[], [(0, source([]))], []], by_timestamp=by_timestamp) == []


def failing(after: int) -> Iterator[Record]:
    for number in range(after):
        yield Record(number, number, None, b"")
    raise OSError(5, "broken")


@pytest.mark.parametrize("by_timestamp", [False, True])
def test_what_a_partition_raises_comes_after_what_it_gave_and_ends_the_iteration(by_timestamp: bool) -> None:
    rounds = [[(0, failing(2)), (1, source([1, 1]))], [(2, source([3]))]]
    records = ConsumerIterator("t", rounds, by_timestamp=by_timestamp)
    assert [next(records).partition, next(records).partition] == [0, 0]
    with pytest.raises(OSError, match="broken"):
        next(records)
    assert list(records) == []


@pytest.mark.parametrize("by_timestamp", [False, True])
def test_only_records_are_taken_from_a_partition(by_timestamp: bool) -> None:
    with pytest.raises(TypeError):
        read([[(0, iter([b"no record"]))]], by_timestamp=by_timestamp)


@pytest.mark.parametrize("by_timestamp", [False, True])
def test_an_iterator_at_work_refuses_to_be_entered_again(by_timestamp: bool) -> None:
    seen = []

    def nosy() -> Iterator[Record]:
        with pytest.raises(ValueError, match="already executing"):
            next(records)
        seen.append(1)
        yield Record(0, 0)

    records = ConsumerIterator("t", [[(0, nosy())]], by_timestamp=by_timestamp)
    assert len(list(records)) == 1
    assert seen == [1]


def test_records_read_ahead_are_let_go_with_their_iterator() -> None:
    def iterators() -> int:
        gc.collect()
        return sum(isinstance(one, ConsumerIterator) for one in gc.get_objects())

    before = iterators()
    values = [bytes([65 + p]) * 50 for p in range(3)]
    sources = [(p, iter([Record(0, 0, None, value), Record(1, 1)])) for p, value in enumerate(values)]
    records = ConsumerIterator("t", [sources], by_timestamp=True)
    assert next(records).value == values[0]
    assert iterators() == before + 1
    del records, sources
    assert iterators() == before


# ---- going on after the end


def test_an_iterator_that_is_resumed_asks_where_to_go_on() -> None:
    asked = []

    class Chunks:
        def __init__(self, *parts: bytes) -> None:
            self.parts = parts

        def __iter__(self) -> Iterator[tuple[bytes, None, int]]:
            return iter([(part, None, 0) for part in self.parts])

        def recheck(self, position: Any, error: Any) -> Chunks:
            asked.append(position.next_offset)
            return Chunks(encode_batch([b"c", b"d"], base_offset=position.next_offset))

    records = RecordIterator(Chunks(encode_batch([b"a", b"b"])), 0, 2)
    assert [record.value for record in records] == [b"a", b"b"]
    assert list(records) == []
    records.resume(3)
    assert [(record.offset, record.value) for record in records] == [(2, b"c")]
    records.resume(2**63 - 1)
    assert [(record.offset, record.value) for record in records] == [(3, b"c"), (4, b"d")]
    assert asked == [2, 3]
