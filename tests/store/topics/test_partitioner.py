"""Where records go (FORMAT 13), how they are split over packers, and how partitions are read as one."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore._core import Record, decode_batches
from kstore.codec._pack import Packer
from kstore.columns.column_input import ColumnInput
from kstore.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from kstore.store.topics._column_partitioner import partitions_of
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics._partitioner import Router, Splitter, murmur2, partition_of
from tests.conftest import SEED
from tests.kafka.kafka_jvm import Kafka
from tests.support import arrowstructs as arrow
from tests.support.reference import plain_murmur2

T = 1_700_000_000_000
MIB = 1 << 20


# ---- the hash


@pytest.mark.parametrize(
    ("key", "hashed", "of_3", "of_12", "of_50"),
    [
        (b"", 275646681, 0, 9, 31),
        (b"21", -973932308, 0, 0, 40),
        (b"foobar", -790332482, 0, 6, 16),
        (b"abc", 479470107, 0, 3, 7),
        (b"k1", 1684045097, 2, 5, 47),
        (b"a-little-bit-long-string", -985981536, 2, 8, 12),
        (b"a-little-bit-longer-string", -1486304829, 2, 11, 19),
        (b"\xff\xfe\xfd", 998637092, 2, 8, 42),
    ],
)
def test_keys_hash_as_in_kafka(key: bytes, hashed: int, of_3: int, of_12: int, of_50: int) -> None:
    assert murmur2(key) == hashed == plain_murmur2(key)
    assert [partition_of(key, count) for count in (3, 12, 50)] == [of_3, of_12, of_50]


@given(st.binary(max_size=70), st.integers(1, 2**31 - 1))
def test_the_hash_is_that_of_the_page_and_the_sign_is_masked_away(key: bytes, partitions: int) -> None:
    assert murmur2(key) == plain_murmur2(key)
    assert partition_of(key, partitions) == (plain_murmur2(key) & 0x7FFFFFFF) % partitions


def mixed_keys(rng: random.Random) -> list[bytes | None]:
    """Keys of every size by turns, in runs of one size and at random, some of them missing."""
    sizes = [*range(40), *[16] * 30, *[rng.choice((0, 1, 2, 3, 4, 5, 1000)) for _ in range(300)]]
    return [None if rng.random() < 0.1 else rng.randbytes(size) for size in sizes]


def test_keys_hashed_side_by_side_go_where_each_goes_alone(rng: random.Random) -> None:
    """FORMAT 13: records and columns hash several keys at once."""
    keys = mixed_keys(rng)
    for count in (*range(1, 19), len(keys)):
        for partitions in (1, 3, 50, 2**31 - 1):
            wanted = [-1 if k is None else (plain_murmur2(k) & 0x7FFFFFFF) % partitions for k in keys[:count]]
            rows = ColumnInput(arrow.binary(keys[:count]), arrow.binary(keys[:count]), None, None, T)
            found = np.frombuffer(b"".join(partitions_of(part, partitions) for part in rows), np.int32)
            assert found.tolist() == wanted
        split = Split(50)
        for place, records in split.all((key, b"v") for key in keys[:count] if key is not None).items():
            assert {partition_of(record.key, 50) for record in records} == {place}


@pytest.mark.kafka
def test_kafka_hashes_thousands_of_keys_of_every_length_alike(kafka: Kafka, rng: random.Random) -> None:
    keys = [rng.randbytes(size) for size in range(71) for _ in range(60)]
    assert [(murmur2(key), partition_of(key, 50)) for key in keys] == kafka.murmur2(keys)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_key(kind: Callable[[bytes], Any]) -> None:
    assert murmur2(kind(b"foobar")) == -790332482
    assert partition_of(kind(b"foobar"), 50) == 16
    assert Router(50, sticky_bytes=1).route(kind(b"foobar"), b"") == 16


@pytest.mark.parametrize("wrong", ["text", None, 7])
def test_what_is_no_buffer_is_no_key(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"key (is a str|must be bytes-like)"):
        murmur2(wrong)
    with pytest.raises(TypeError, match=r"key (is a str|must be bytes-like)"):
        partition_of(wrong, 4)


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_has_at_least_one_partition(partitions: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        partition_of(b"k", partitions)
    with pytest.raises(ValueError, match="at least 1"):
        Router(partitions, sticky_bytes=1)


# ---- the router


def routed(router: Router, count: int, value: bytes = b"v" * 30) -> list[int]:
    return [router.route(None, value) for _ in range(count)]


def test_an_empty_key_is_hashed_and_a_missing_one_is_not() -> None:
    assert {Router(12, sticky_bytes=1).route(b"", b"v") for _ in range(50)} == {9}
    assert len({Router(12, sticky_bytes=1).route(None, b"v") for _ in range(50)}) > 1


def test_records_without_a_key_stick_until_the_bytes_are_given() -> None:
    router = Router(1000, sticky_bytes=1000, seed=1)  # each record makes a batch of 100 bytes
    found = routed(router, 30)
    assert [len(set(found[at : at + 10])) for at in (0, 10, 20)] == [1, 1, 1]
    assert len(set(found)) == 3


def test_keys_do_not_move_the_sticky_partition() -> None:
    router = Router(1000, sticky_bytes=1000, seed=1)
    found = []
    for number in range(10):
        found.append(router.route(None, b"v" * 30))
        router.route(b"key %d" % number, b"v" * 5000)
    assert len(set(found)) == 1


def test_a_seed_repeats_the_draws_and_another_does_not() -> None:
    first = routed(Router(16, sticky_bytes=1, seed=5), 100)
    assert routed(Router(16, sticky_bytes=1, seed=5), 100) == first
    assert routed(Router(16, sticky_bytes=1, seed=6), 100) != first
    assert routed(Router(16, sticky_bytes=1), 100) != routed(Router(16, sticky_bytes=1), 100)


@pytest.mark.parametrize("seed", [0, -1, 2**64 + 3])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert routed(Router(7, sticky_bytes=1, seed=seed), 20) == routed(Router(7, sticky_bytes=1, seed=seed), 20)


def test_each_partition_is_drawn_about_as_often_as_the_others() -> None:
    counts = Counter(routed(Router(8, sticky_bytes=1, seed=3), 8000))
    assert sorted(counts) == list(range(8))
    assert all(850 < count < 1150 for count in counts.values())  # 1000 each, five sigmas are 148


def test_only_available_partitions_are_drawn_and_keys_go_where_they_must() -> None:
    router = Router(12, sticky_bytes=1, seed=1, available=[2, 7])
    assert set(routed(router, 100)) == {2, 7}
    assert router.route(b"", b"") == 9


@pytest.mark.parametrize("available", [[], [3], [-1]])
def test_partitions_that_are_not_there_are_not_available(available: list[int]) -> None:
    with pytest.raises(ValueError, match="available"):
        Router(3, sticky_bytes=1, available=available)


@pytest.mark.parametrize("value", [None, "text", bytearray(b"x" * 30)])
def test_a_value_of_any_kind_has_a_partition(value: Any) -> None:
    assert 0 <= Router(3, sticky_bytes=1).route(None, value) < 3  # whether it may be appended is not said here


# ---- splitting


class Split:
    """A splitter over packers of one kind, and what it gave, batch by batch."""

    def __init__(
        self,
        partitions: int,
        *,
        batch_bytes: int = MIB,
        max_batch_bytes: int = MIB,
        compression: int = 0,
        limit_bytes: int = 1 << 40,
        max_bytes: int = 1 << 40,
        sticky_bytes: int = 1000,
        seed: int | None = 1,
        partition: int | None = None,
        **options: Any,
    ) -> None:
        self.made: list[int] = []
        self.stored: dict[int, list[bytes]] = defaultdict(list)

        def make(number: int) -> Packer:
            self.made.append(number)
            return Packer(batch_bytes, max_batch_bytes, compression, now_ms=T, **options)

        self.splitter = Splitter(
            Router(partitions, sticky_bytes=1, seed=seed),
            make,
            limit_bytes=limit_bytes,
            max_bytes=max_bytes,
            sticky_bytes=sticky_bytes,
            partition=partition,
        )

    def take(self) -> None:
        for partition, packer in self.splitter.ready:
            self.stored[partition].append(bytes(packer.buffer))
            packer.clear()

    def all(self, items: Iterable[Any]) -> dict[int, list[Record]]:
        iterator = iter(items)
        more = True
        while more:
            try:
                more = self.splitter.pack(iterator)
            finally:
                self.take()
        return self.records()

    def records(self) -> dict[int, list[Record]]:
        return {
            partition: [record for batch in decode_batches(b"".join(parts)) for record in batch]
            for partition, parts in self.stored.items()
        }

    def counts(self) -> dict[int, list[int]]:
        """The number of records of each batch."""
        return {p: [b.count for b in decode_batches(b"".join(parts))] for p, parts in self.stored.items()}


def keys_for(partition: int, partitions: int, count: int) -> list[bytes]:
    keys = (b"%d" % number for number in itertools.count())
    return list(itertools.islice((key for key in keys if partition_of(key, partitions) == partition), count))


def pairs(found: dict[int, list[Record]]) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    return {partition: [(record.key, record.value) for record in records] for partition, records in found.items()}


def test_every_form_of_a_record_is_split() -> None:
    items: list[Any] = [
        (b"foobar", b"1"),
        (bytearray(b"foobar"), memoryview(b"2")),
        (b"foobar", None),
        (b"foobar", b"4", T - 5, [("h", b"x")]),
        (b"foobar", b"5", None, None),
        Record(999, T - 7, b"foobar", b"6", (("rh", None),)),
        ConsumerRecord("other", 3, 999, T - 8, b"foobar", b"7", (("ch", b""),)),
    ]
    assert {p: [tuple(r)[1:] for r in records] for p, records in Split(50).all(items).items()} == {
        16: [
            (T, b"foobar", b"1", ()),
            (T, b"foobar", b"2", ()),
            (T, b"foobar", None, ()),
            (T - 5, b"foobar", b"4", (("h", b"x"),)),
            (T, b"foobar", b"5", ()),
            (T - 7, b"foobar", b"6", (("rh", None),)),
            (T - 8, b"foobar", b"7", (("ch", b""),)),
        ]
    }


def test_every_form_of_a_record_without_a_key_sticks() -> None:
    items = [b"1", bytearray(b"2"), (None, b"3"), (None, None), (None, b"5", T, ()), Record(1, T, None, b"6")]
    [records] = Split(50).all(items).values()
    assert [record.value for record in records] == [b"1", b"2", b"3", None, b"5", b"6"]


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=200)), max_size=80),
    st.integers(1, 9),
    st.sampled_from([0, 4]),
    st.sampled_from([150, 400, MIB]),
    st.sampled_from([1, 500, 1 << 40]),
    st.sampled_from([700, 1 << 40]),
)
def test_each_record_is_in_its_partition_once_and_in_order(
    items: list[tuple[bytes | None, bytes | None]],
    partitions: int,
    compression: int,
    batch_bytes: int,
    limit_bytes: int,
    max_bytes: int,
) -> None:
    split = Split(
        partitions,
        batch_bytes=batch_bytes,
        limit_bytes=limit_bytes,
        max_bytes=max_bytes,
        compression=compression,
    )
    found = pairs(split.all(items))
    assert split.splitter.records == len(items)
    assert all(records for records in found.values())
    for partition in range(partitions):
        there = found.get(partition, [])
        keyed = [item for item in items if item[0] is not None and partition_of(item[0], partitions) == partition]
        assert [item for item in there if item[0] is not None] == keyed
    assert Counter(itertools.chain(*found.values())) == Counter(items)


def test_batches_are_those_of_one_partition_alone() -> None:
    """The packers do not know of each other: what one partition gets is what it would have got without the others."""
    rng = random.Random(f"{SEED}:7")
    items = [(rng.randbytes(5), rng.randbytes(rng.randrange(300))) for _ in range(2000)]
    split = Split(5, batch_bytes=4096, limit_bytes=20_000)
    split.all(items)
    for partition in range(5):
        alone = Packer(4096, MIB, now_ms=T)
        alone.pack((item for item in items if partition_of(item[0], 5) == partition), 1 << 31)
        assert b"".join(split.stored[partition]) == bytes(alone.buffer)


def test_a_packer_is_made_for_partitions_with_records_only() -> None:
    split = Split(1000)
    split.all([(key, b"v") for key in keys_for(7, 1000, 3)])
    assert split.made == [7]


def test_a_partition_given_takes_every_record() -> None:
    split = Split(10, partition=4)
    assert list(split.all([(b"%d" % number, b"v") for number in range(50)] + [b"v"] * 50)) == [4]


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="partition 3 of a topic with 3"):
        Split(3, partition=3)


def test_keyless_records_fill_a_batch_before_they_move_on() -> None:
    """A batch of 10 records of 100 bytes each, header included: 1,000 bytes and then another partition."""
    split = Split(1000, sticky_bytes=61 + 10 * 39)
    split.all([b"v" * 32] * 40)  # records of 39 bytes, all of one length
    assert sorted(itertools.chain(*split.counts().values())) == [10, 10, 10, 10]


def test_pack_stops_where_enough_batches_are_ready() -> None:
    split = Split(2, batch_bytes=500, limit_bytes=1)
    keys = keys_for(0, 2, 1) + keys_for(1, 2, 1)
    iterator = iter([(keys[0], b"x" * 100)] * 3 + [(keys[1], b"x" * 100)] * 20)
    assert split.splitter.pack(iterator) is True
    assert [partition for partition, _ in split.splitter.ready] == [1]
    assert split.splitter.records == 3 + 4  # three fill a batch, the fourth closes it
    with pytest.raises(RuntimeError, match="have not been taken away"):
        split.splitter.pack(iterator)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33])
def test_keys_that_are_hashed_ahead_leave_no_record_behind(count: int) -> None:
    items = [(b"%d" % number, b"v") for number in range(count)]
    assert sum(map(len, Split(3).all(items).values())) == count


@pytest.mark.parametrize("ahead", [1, 15, 16, 17])
@pytest.mark.parametrize("other", [(None, b"last"), (b"k", None), b"last", (b"k", b"last", None, None)])
def test_a_record_of_another_form_comes_behind_those_hashed_ahead(ahead: int, other: Any) -> None:
    [records] = Split(1).all([*[(b"k", b"%d" % number) for number in range(ahead)], other]).values()
    assert [record.value for record in records][:-1] == [b"%d" % number for number in range(ahead)]


@pytest.mark.parametrize("ahead", [4, 15, 16, 17])
def test_batches_that_records_hashed_ahead_fill_stay_where_the_iterator_raises(ahead: int) -> None:
    """Three records of 100 bytes fill a batch, and the fourth closes it."""
    split = Split(1, batch_bytes=500)

    def items() -> Iterator[tuple[bytes, bytes]]:
        yield from [(b"k", b"x" * 100)] * ahead
        raise LookupError

    with pytest.raises(LookupError):
        split.all(items())
    assert split.counts() == {0: [3] * ((ahead - 1) // 3)}


def test_no_record_behind_a_refused_one_is_packed() -> None:
    split = Split(1, batch_bytes=500, max_batch_bytes=500)
    with pytest.raises(RecordTooLargeError, match="record 5:"):
        split.all([(b"k", b"x" * 100)] * 5 + [(b"k", b"x" * 1000)] + [(b"k", b"x" * 100)] * 10)
    assert split.counts() == {0: [3, 2]}
    assert split.splitter.pack(iter([(b"k", b"after")])) is False
    split.take()
    assert [record.value for record in split.records()[0]][5:] == [b"after"]


def test_what_is_hashed_ahead_when_enough_is_ready_comes_with_the_next_call() -> None:
    split = Split(1, batch_bytes=500, limit_bytes=1)
    iterator = iter([(b"k", b"x" * 100)] * 16)
    more, calls = True, 0
    while more:
        more = split.splitter.pack(iterator)
        split.take()
        calls += 1
    assert split.counts() == {0: [3, 3, 3, 3, 3, 1]}
    assert calls == 6


def test_open_batches_of_all_partitions_together_stay_below_the_limit() -> None:
    split = Split(100, max_bytes=50_000)
    iterator = iter([(b"%d" % number, b"v" * 1000) for number in range(200)])
    rounds = 0
    while split.splitter.pack(iterator):
        held = sum(len(packer) for _, packer in split.splitter.ready)
        assert 50_000 <= held <= 50_000 + 1100 + 61
        split.take()
        rounds += 1
    split.take()
    assert rounds == 4
    assert sum(map(len, split.records().values())) == 200


def test_memory_of_partitions_that_were_busy_once_is_given_back() -> None:
    split = Split(20, batch_bytes=200_000, limit_bytes=150_000, max_bytes=300_000)
    keys = [keys_for(partition, 20, 300) for partition in range(20)]
    tracemalloc.start()
    try:
        for each in keys:
            split.all([(key, b"v" * 1000) for key in each])
            split.stored.clear()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 2 * 300_000 + 500_000  # each partition's buffer alone would be 300,000 and more


@pytest.mark.parametrize(
    ("item", "kind", "what"),
    [
        ((b"k", b"v", -2, ()), InvalidTimestampError, "record 5: timestamp -2"),
        ((b"k", b"v", 1 << 70, ()), InvalidTimestampError, "record 5: timestamp"),
        ((b"k", b"v", "soon", ()), TypeError, "timestamp of record 5"),
        ((b"k", "text"), TypeError, "value of record 5 is a str"),
        (("text", b"v"), TypeError, "key of record 5 is a str"),
        ((b"k", b"v", 0, [("h",)]), TypeError, "header of record 5"),
        ((b"k",), TypeError, "record 5 is tuple of 1"),
        ((b"k", b"v", 0), TypeError, "record 5 is tuple of 3"),
        (None, TypeError, "record 5 is NoneType"),
        (7, TypeError, "value of record 5 must be bytes-like, not int"),
        ((b"k", b"x" * 2000), RecordTooLargeError, "record 5: a batch of"),
    ],
)
def test_a_refusal_names_the_record_by_its_number_in_the_iterable(item: Any, kind: type[Exception], what: str) -> None:
    split = Split(7, max_batch_bytes=1500)
    with pytest.raises(kind, match=what) as caught:
        split.all([(b"%d" % number, b"v") for number in range(5)] + [item])
    if isinstance(caught.value, InvalidRecordError):
        assert caught.value.record_errors[0][0] == 5
    assert split.records() == {}


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_record_too_large_even_compressed_is_named_though_others_came_after_it(after: int) -> None:
    noise = random.Random(2).randbytes(3000)
    keys = [keys_for(partition, 2, 40) for partition in (0, 1)]
    items = [(keys[1][0], b"v")] * 3 + [(keys[0][0], b"v")] * 4 + [(keys[0][0], noise)] + [(keys[1][0], b"v")] * 9
    items += [(keys[0][0], b"w")] * after + [(keys[1][1], b"v")] * 2
    split = Split(2, batch_bytes=1000, max_batch_bytes=1000, compression=1)
    with pytest.raises(RecordTooLargeError, match=r"record 7: a batch of 30[0-9]{2} bytes, where at most 1000"):
        split.all(items)
    assert pairs(split.records()) == {0: [(keys[0][0], b"v")] * 4}


def test_a_batch_that_compression_makes_too_large_names_the_right_record() -> None:
    noise = random.Random(2).randbytes(900)
    small = [(b"k", b"x" * 10)]
    items: list[Any] = []
    for number in range(40):
        items += [(b"other %d" % number, b"v")] * 2 + small
    items += [(b"k", noise)]
    items += small * 3
    split = Split(9, batch_bytes=5000, max_batch_bytes=600, compression=1)
    with pytest.raises(RecordTooLargeError, match=r"record 120: "):
        split.all(items)


def test_finished_batches_before_a_refusal_stay_and_open_ones_go() -> None:
    split = Split(2, batch_bytes=400)
    keys = keys_for(0, 2, 1) + keys_for(1, 2, 1)
    items: list[Any] = [(keys[0], b"x" * 100)] * 5 + [(keys[1], b"y" * 100)] * 2
    with pytest.raises(TypeError):
        split.all([*items, 7])
    assert split.counts() == {0: [3]}
    assert split.all([(keys[1], b"z")]) == {0: split.records()[0], 1: split.records()[1]}
    assert split.counts() == {0: [3], 1: [1]}


def test_what_the_iterator_raises_passes_through() -> None:
    def broken() -> Iterator[bytes]:
        yield b"v"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Split(3).all(broken())


def test_what_hinders_a_partition_passes_through() -> None:
    def make(partition: int) -> Packer:
        raise OSError(5, f"partition {partition}")

    splitter = Splitter(Router(1, sticky_bytes=1), make, limit_bytes=1, max_bytes=1, sticky_bytes=1)
    for item in (b"v", (b"k", b"v"), (b"k", b"v", 0, ())):
        with pytest.raises(OSError, match="partition 0"):
            splitter.pack(iter([item]))


def test_a_list_is_no_iterator() -> None:
    with pytest.raises(TypeError, match="iter"):
        Split(3).splitter.pack([b"v"])  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["iterator", "buffer", "maker"])
def test_a_splitter_at_work_refuses_to_be_entered_again(form: str) -> None:
    seen = []

    def enter() -> None:
        with pytest.raises(RuntimeError, match="at work"):
            splitter.pack(iter([b"inner"]))
        seen.append(form)

    class Odd:
        def __buffer__(self, flags: int) -> memoryview:
            enter()
            return memoryview(b"odd")

    class Headers(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            enter()
            return super().__iter__()

    def items() -> Iterator[Any]:
        if form == "iterator":
            enter()
        yield (b"k", b"v", 0, Headers()) if form == "buffer" else b"v"

    def make(partition: int) -> Packer:
        if form == "maker":
            enter()
        return Packer(MIB, MIB, now_ms=T)

    splitter = Splitter(Router(3, sticky_bytes=1), make, limit_bytes=1, max_bytes=MIB, sticky_bytes=1)
    assert splitter.pack(items()) is False
    assert seen == [form]


def test_a_view_of_ready_batches_keeps_them() -> None:
    split = Split(3)
    split.splitter.pack(iter([b"v"]))
    [(_, packer)] = split.splitter.ready
    with memoryview(packer), pytest.raises(BufferError):
        packer.clear()
    packer.clear()
    assert split.splitter.ready == []
