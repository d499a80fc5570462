"""The encoder: what may be a record, how batches are cut, and what stays when something is refused."""

from __future__ import annotations

import random
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore._core import Record, RecordBatch, decode_batches
from kstore.codec import compression
from kstore.codec._pack import Packer, encode_batch, give_back_memory
from kstore.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from tests.conftest import SEED
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
INT64 = (1 << 63) - 1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def packer(batch_bytes: int = 1 << 20, max_batch_bytes: int = 1 << 20, **options: Any) -> Packer:
    return Packer(batch_bytes, max_batch_bytes, now_ms=options.pop("now_ms", T), **options)


def batches_of(packed: Packer) -> list[RecordBatch]:
    return list(decode_batches(bytes(packed.buffer)))


def pack(items: Iterable[Any], **options: Any) -> list[RecordBatch]:
    packed = packer(**options)
    assert packed.pack(iter(items), 1 << 31) is False
    return batches_of(packed)


def only(data: bytes) -> RecordBatch:
    [one] = decode_batches(data)
    return one


# ---- what may be a record


def test_every_form_of_a_record_is_taken() -> None:
    items: list[Any] = [
        b"value",
        (b"key", b"value"),
        (None, b"value"),
        (b"key", None),
        (None, None),
        (b"key", b"value", T - 5, [("h", b"x")]),
        (b"key", b"value", None, None),
        (None, b"value", -1, ()),
        Record(999, T - 7, b"rk", b"rv", (("rh", None),)),
    ]
    assert [tuple(r) for r in only(encode_batch(items, now_ms=T))] == [
        (0, T, None, b"value", ()),
        (1, T, b"key", b"value", ()),
        (2, T, None, b"value", ()),
        (3, T, b"key", None, ()),
        (4, T, None, None, ()),
        (5, T - 5, b"key", b"value", (("h", b"x"),)),
        (6, T, b"key", b"value", ()),
        (7, -1, None, b"value", ()),
        (8, T - 7, b"rk", b"rv", (("rh", None),)),
    ]


class Bytes(bytes):
    pass


class Pair(tuple[bytes, bytes]):
    pass


@pytest.mark.parametrize("make", [bytearray, memoryview, Bytes, lambda b: memoryview(b"x" + b + b"y")[1:-1]])
def test_any_buffer_is_taken_as_bytes_everywhere(make: Any) -> None:
    items = [make(b"v"), (make(b"k"), make(b"v"), T, [("h", make(b"x"))])]
    assert [tuple(r)[2:] for r in only(encode_batch(items))] == [(None, b"v", ()), (b"k", b"v", (("h", b"x"),))]


def test_strided_and_typed_buffers_give_their_bytes_in_order() -> None:
    strided = memoryview(bytes(range(10)))[::-3]
    typed = memoryview(struct.pack("<4i", 1, 2, 3, 4)).cast("i")
    assert [r.value for r in only(encode_batch([strided, typed]))] == [bytes([9, 6, 3, 0]), typed.tobytes()]


def test_headers_come_as_pairs_or_as_a_dict_and_keep_order_and_repeats() -> None:
    """RecordHeadersTest.testAdd, RecordHeadersTest.testHeaders."""
    pairs = [("b", b"1"), ("a", None), ("b", b""), ("", b"x"), ("ä€😀", b"y")]
    for headers in (pairs, tuple(pairs), iter(pairs), [list(pair) for pair in pairs]):
        [one] = only(encode_batch([(None, b"v", T, headers)]))
        assert one.headers == tuple(pairs)
    [one] = only(encode_batch([(None, b"v", T, {"a": b"1", "b": None})]))
    assert one.headers == (("a", b"1"), ("b", None))


@pytest.mark.parametrize("name", [b"\xff", b"caf\xe9 ok", b"\xed\xa0\x80"])
def test_a_record_read_with_a_header_name_that_is_no_utf8_is_written_back_as_it_was(name: bytes) -> None:
    data = reference.encode([Rec(0, T, None, b"v", ((name, b"x"),))])
    assert encode_batch(only(data)) == data


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("text", "encode"),
        (5, "int"),
        (None, "NoneType"),
        ([b"k", b"v"], "list"),
        ((b"v",), "tuple of 1"),
        ((b"k", b"v", T), "tuple of 3"),
        ((b"k", b"v", T, [], 5), "tuple of 5"),
        ((), "tuple of 0"),
        (("k", b"v"), "key"),
        ((b"k", "v"), "value"),
        ((b"k", 5), "value"),
        ((b"k", b"v", "now", None), "timestamp"),
        ((b"k", b"v", 1.5, None), "timestamp"),
        ((b"k", b"v", T, [("h",)]), "pair"),
        ((b"k", b"v", T, [(b"h", b"x")]), "str"),
        ((b"k", b"v", T, [("h", "x")]), "encode"),
        ((b"k", b"v", T, 5), "not iterable"),
        ((b"k", b"v", T, "hh"), "pair"),
    ],
)
def test_what_is_no_record_is_a_type_error_that_says_so(item: object, words: str) -> None:
    packed = packer()
    with pytest.raises(TypeError, match=words):
        packed.pack(iter([b"fine", item]))
    if isinstance(item, tuple) and item and words not in ("not iterable",):
        with pytest.raises(TypeError, match="record 1"):
            packer().pack(iter([b"fine", item]))


def test_a_bare_value_in_place_of_a_list_is_a_type_error() -> None:
    for wrong in (b"value", bytearray(b"value"), "value", memoryview(b"value")):
        with pytest.raises(TypeError, match="iterable of records"):
            encode_batch(wrong)
    with pytest.raises(TypeError, match="iter"):
        packer().pack([b"value"])  # type: ignore[arg-type]


def test_no_records_make_no_bytes() -> None:
    """FORMAT 2.5: a builder that holds no records yields zero bytes.
    MemoryRecordsBuilderTest.testWriteEmptyRecordSet."""
    assert encode_batch([]) == b""
    assert pack([]) == []


def test_a_missing_timestamp_is_the_clocks_now() -> None:
    before = time.time_ns() // 1_000_000
    [one] = only(encode_batch([b"v"]))
    assert before <= one.timestamp <= time.time_ns() // 1_000_000


# ---- the header


def test_the_worked_example_of_the_format_document_comes_out_byte_for_byte() -> None:
    """FORMAT 14.1."""
    data = encode_batch(
        [(b"k1", b"hello", T, [("h1", b"x")]), (b"k2", None, T + 5, [("h2", None)])],
        base_offset=42,
        partition_leader_epoch=3,
    )
    assert data.hex() == (
        "000000000000002a000000510000000302ebf73b290000000000010000018bcfe568000000018bcfe56805ffffffffff"
        "ffffffffffffffffff000000022400000004 6b310a68656c6c6f02046831027818000a02046b32010204683201"
    ).replace(" ", "")


def test_an_abort_marker_comes_out_byte_for_byte() -> None:
    """FORMAT 14.7."""
    data = encode_batch(
        [(bytes(4), bytes(5) + b"\x07", T + 6000, None)],
        base_offset=1050,
        partition_leader_epoch=3,
        producer_id=4000,
        producer_epoch=2,
        transactional=True,
        control=True,
    )
    assert len(data) == 78
    assert data[17:23].hex() == "0b65abf10030"


def test_every_field_of_the_header_is_written() -> None:
    one = only(
        encode_batch(
            [b"a", b"b"],
            base_offset=7,
            compression="gzip",
            timestamp_type="LogAppendTime",
            partition_leader_epoch=4,
            producer_id=1 << 40,
            producer_epoch=9,
            base_sequence=(1 << 31) - 1,
            transactional=True,
            now_ms=T,
        )
    )
    assert (one.base_offset, one.last_offset, one.count, one.partition_leader_epoch) == (7, 8, 2, 4)
    assert (one.compression, one.timestamp_type, one.max_timestamp) == ("gzip", "LogAppendTime", T)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (1 << 40, 9, (1 << 31) - 1)
    assert (one.is_transactional, one.is_control, one.delete_horizon_ms) == (True, False, None)


def test_append_time_keeps_the_deltas_and_gives_the_batch_now() -> None:
    """SEMANTICS 1.19: base timestamp and deltas stay as sent. MemoryRecordsBuilderTest.buildUsingLogAppendTime."""
    data = encode_batch([(None, b"a", 100, None), (None, b"b", 90, None)], timestamp_type="LogAppendTime", now_ms=T)
    one = only(data)
    assert (one.base_timestamp, one.max_timestamp, [r.timestamp for r in one]) == (100, T, [T, T])


def test_max_timestamp_is_the_greatest_not_the_last() -> None:
    """MemoryRecordsBuilderTest.buildUsingCreateTime."""
    one = only(encode_batch([(None, b"", t, None) for t in (5, 9, -1, 7)]))
    assert (one.base_timestamp, one.max_timestamp) == (5, 9)
    assert only(encode_batch([(None, b"", -1, None)])).max_timestamp == -1


@pytest.mark.parametrize(
    "fields",
    [
        {"transactional": True},
        {"producer_id": 5},
        {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
        {"base_offset": -1},
        {"base_offset": INT64},
    ],
)
def test_combinations_that_no_builder_makes_are_refused(fields: dict[str, Any]) -> None:
    """FORMAT 2.5. MemoryRecordsBuilderTest.testWriteTransactionalWithInvalidPID,
    MemoryRecordsBuilderTest.testWriteIdempotentWithInvalidBaseSequence."""
    with pytest.raises(InvalidRecordError):
        encode_batch([b"a", b"b"], **fields)


def test_the_highest_offsets_there_are_can_be_written() -> None:
    assert only(encode_batch([b"a", b"b"], base_offset=INT64 - 1)).last_offset == INT64


def test_unknown_codecs_levels_and_timestamp_types_are_refused() -> None:
    with pytest.raises(UnsupportedCompressionError):
        encode_batch([b"a"], compression="brotli")
    with pytest.raises(ConfigError):
        encode_batch([b"a"], compression="gzip", level=10)
    with pytest.raises(ValueError, match="Sometime"):
        encode_batch([b"a"], timestamp_type="Sometime")


# ---- timestamps, SEMANTICS 1.17


@pytest.mark.parametrize("stamp", [-2, -(1 << 63), 1 << 63, 1 << 200, -(1 << 200)])
def test_a_timestamp_that_the_format_has_no_room_for_is_refused(stamp: int) -> None:
    with pytest.raises(InvalidTimestampError) as caught:
        encode_batch([b"fine", (None, b"v", stamp, None)])
    assert caught.value.record_errors[0][0] == 1


def test_timestamps_at_the_limits_are_taken_and_a_millisecond_beyond_is_not() -> None:
    limits = {"before_max_ms": 1000, "after_max_ms": 50}
    for stamp in (T - 1000, T, T + 50, -1):
        [one] = pack([(None, b"v", stamp, None)], **limits)
        assert one.max_timestamp == stamp
    for stamp in (T - 1001, T + 51, 0):
        with pytest.raises(InvalidTimestampError, match=str(stamp)):
            pack([(None, b"v", stamp, None)], **limits)
    assert len(pack([(None, b"v", 0, None)], timestamp_type="LogAppendTime", **limits)) == 1


@pytest.mark.parametrize("now", [-INT64 - 1, -1, 0, INT64])
@pytest.mark.parametrize("stamp", [-1, 0, INT64])
def test_limits_are_counted_without_overflow(now: int, stamp: int) -> None:
    items = [(None, b"v", stamp, None)]
    if stamp == -1 or abs(now - stamp) <= INT64:
        assert len(pack(items, now_ms=now)) == 1
    else:
        with pytest.raises(InvalidTimestampError):
            pack(items, now_ms=now)


def test_a_null_key_is_refused_where_a_key_is_required_and_an_empty_one_is_not() -> None:
    """SEMANTICS 1.16 (3)."""
    [one] = pack([(b"", b"v")], require_key=True)
    assert one.count == 1
    for item in (b"v", (None, b"v"), Record(0, T, None, b"v")):
        with pytest.raises(InvalidRecordError, match="needs a key in every record"):
            pack([(b"k", b"v"), item], require_key=True)


# ---- how batches are cut


def size_of(value: bytes, first: bool = True) -> int:
    """A record with this value alone in a batch, or its share of a batch with few records."""
    return len(encode_batch([(None, value)])) - (0 if first else reference.HEADER_BYTES)


def test_a_batch_closes_before_the_record_that_would_not_fit() -> None:
    room = reference.HEADER_BYTES + 3 * size_of(b"x" * 40, False)
    for spare, counts in ((-1, [2, 2, 2, 1]), (0, [3, 3, 1]), (1, [3, 3, 1])):
        made = pack([(None, b"x" * 40)] * 7, batch_bytes=room + spare)
        assert [one.count for one in made] == counts
        assert all(one.size_bytes <= room + spare for one in made)
    assert [r.value for one in made for r in one] == [b"x" * 40] * 7


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    """MemoryRecordsBuilderTest.testSmallWriteLimit."""
    made = pack([b"s", b"x" * 500, b"s", b"s"], batch_bytes=100)
    assert [[len(r.value or b"") for r in one] for one in made] == [[1], [500], [1, 1]]


@pytest.mark.parametrize("codec", range(5))
def test_a_record_over_the_limit_is_refused_and_one_at_it_is_taken(codec: int) -> None:
    value = bytes(range(256)) * 8
    limit = len(encode_batch([(None, value)], compression=CODECS[codec]))
    options = {"batch_bytes": 300, "max_batch_bytes": limit, "compression": codec}
    assert [one.size_bytes for one in pack([(None, value)], **options)] == [limit]
    packed = packer(**{**options, "max_batch_bytes": limit - 1})
    with pytest.raises(RecordTooLargeError, match=str(limit - 1)) as caught:
        packed.pack(iter([b"a", (None, value), b"b"]))
    assert "record 1" in str(caught.value)
    assert [[r.value for r in one] for one in batches_of(packed)] == [[b"a"]]


def test_a_batch_that_compression_made_too_large_is_split() -> None:
    import random

    random.seed(5)
    items = [(b"k%d" % i, random.randbytes(50), T + i * 1000, [("h", b"x")]) for i in range(64)]
    plain = len(encode_batch(items))
    made = pack(items, batch_bytes=plain, max_batch_bytes=plain, compression=1)
    assert len(made) == 1
    gained = made[0].size_bytes
    for limit in (gained - 1, gained // 2, gained // 5):
        made = pack(items, batch_bytes=limit, max_batch_bytes=limit, compression=1)
        assert all(one.size_bytes <= limit for one in made)
        assert [(r.key, r.value, r.timestamp, list(r.headers)) for one in made for r in one] == items
        assert [one.base_timestamp for one in made] == [next(iter(one)).timestamp for one in made]
        assert [one.max_timestamp for one in made] == [max(r.timestamp for r in one) for one in made]
        assert [[r.offset for r in one] for one in made] == [list(range(one.count)) for one in made]


def test_incompressible_batches_that_grow_over_the_limit_are_split_in_halves() -> None:
    import random

    random.seed(6)
    items = [random.randbytes(1000) for _ in range(10)]
    limit = len(encode_batch(items))
    packed = packer(
        batch_bytes=limit, max_batch_bytes=limit, compression=2, producer_id=3, producer_epoch=0, base_sequence=7
    )
    packed.pack(iter(items))
    made = batches_of(packed)
    assert [(one.count, one.base_sequence) for one in made] == [(5, 7), (5, 12)]
    assert [r.value for one in made for r in one] == items


def test_sequences_go_on_from_batch_to_batch_and_wrap_to_zero() -> None:
    """FORMAT 2.4. DefaultRecordBatchTest.testIncrementSequence."""
    made = pack([b"x"] * 5, batch_bytes=80, producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 3)
    assert [one.count for one in made] == [2, 2, 1]
    assert [one.base_sequence for one in made] == [(1 << 31) - 3, (1 << 31) - 1, 1]


def test_a_sequence_without_a_producer_stays_as_it_is() -> None:
    """FORMAT 2.5: coordinators write 0 in every batch."""
    made = pack([b"x"] * 5, batch_bytes=80, base_sequence=0)
    assert [one.base_sequence for one in made] == [0, 0, 0]


@pytest.mark.parametrize("codec", range(5))
def test_a_single_batch_takes_all_or_nothing(codec: int) -> None:
    items = [bytes(range(200))] * 20
    [one] = pack(items, batch_bytes=1 << 20, max_batch_bytes=1 << 20, compression=codec, single=True)
    assert one.count == 20
    limit = one.size_bytes
    assert (
        len(pack(items, batch_bytes=50, max_batch_bytes=limit, compression=codec, single=True)) == 1 if codec else True
    )
    packed = packer(batch_bytes=limit - 1, max_batch_bytes=limit - 1, compression=codec, single=True)
    with pytest.raises(RecordTooLargeError, match=str(limit - 1)):
        packed.pack(iter(items))
    assert (packed.batches, bytes(packed.buffer)) == (0, b"")


# ---- packing in steps


def test_packing_stops_at_the_limit_and_goes_on_where_it_was() -> None:
    items = [(None, b"%06d" % i) for i in range(5000)]
    whole = pack(items, batch_bytes=1000)
    for limit in (1, 999, 1000, 5000, 1 << 20):
        packed, source = packer(batch_bytes=1000), iter(items)
        got: list[RecordBatch] = []
        steps = 0
        more = True
        while more:
            more = packed.pack(source, limit)
            assert len(packed) == len(packed.buffer)
            assert len(packed) < limit + 1000
            assert packed.batches == len(batches_of(packed))
            got += batches_of(packed)
            packed.clear()
            steps += 1
        assert got == whole
        assert packed.records == len(items)
        assert steps >= sum(one.size_bytes for one in whole) // (limit + 1000)


def test_max_timestamp_is_that_of_the_finished_batches_in_the_buffer() -> None:
    packed = packer(batch_bytes=80)
    assert packed.max_timestamp == -1
    source = iter([(None, b"", t, None) for t in (5, 9, 3, 4, 99)])
    packed.pack(source, 1)
    assert packed.max_timestamp == 9
    packed.clear()
    assert packed.max_timestamp == -1
    packed.pack(source, 1)
    assert packed.max_timestamp == 4
    packed.pack(source)
    assert packed.max_timestamp == 99


def test_now_can_be_moved_between_steps() -> None:
    packed = packer()
    packed.pack(iter([b"a"]))
    packed.now_ms = T + 60_000
    packed.pack(iter([b"b"]))
    assert [one.max_timestamp for one in batches_of(packed)] == [T, T + 60_000]


@pytest.mark.parametrize("bad", ["text", (b"k", b"v", -5, None)])
def test_a_refused_record_takes_its_open_batch_with_it_and_leaves_the_finished_ones(bad: object) -> None:
    packed = packer(batch_bytes=80)
    with pytest.raises((TypeError, InvalidTimestampError)):
        packed.pack(iter([b"0", b"1", b"2", b"3", b"4", bad, b"6"]))
    assert [[r.value for r in one] for one in batches_of(packed)] == [[b"0", b"1"], [b"2", b"3"]]
    packed.clear()
    packed.pack(iter([b"7"]))
    assert [[r.value for r in one] for one in batches_of(packed)] == [[b"7"]]


def test_what_the_iterator_raises_comes_through() -> None:
    def source() -> Iterator[bytes]:
        yield from (b"0", b"1", b"2", b"3")
        raise KeyboardInterrupt

    packed = packer(batch_bytes=80)
    with pytest.raises(KeyboardInterrupt):
        packed.pack(source())
    assert [one.count for one in batches_of(packed)] == [2]


def test_a_view_of_the_buffer_keeps_the_packer_from_moving_it() -> None:
    packed = packer()
    packed.pack(iter([b"a"]))
    view = packed.buffer
    kept = bytes(view)
    for act in (lambda: packed.pack(iter([b"b"])), packed.clear):
        with pytest.raises(BufferError):
            act()
    assert bytes(view) == kept
    view.release()
    packed.clear()
    assert len(packed) == 0
    assert bytes(packed.buffer) == b""


def test_a_packer_entered_from_the_code_it_runs_refuses_and_goes_on() -> None:
    caught: list[str] = []

    def source() -> Iterator[bytes]:
        yield b"a"
        for act in (lambda: packed.pack(iter([b"x"])), packed.clear):
            with pytest.raises(RuntimeError, match="at work"):
                act()
            caught.append("refused")
        yield b"b"

    packed = packer()
    packed.pack(source())
    assert [[r.value for r in one] for one in batches_of(packed)] == [[b"a", b"b"]]
    assert len(caught) == 2


def test_a_packer_entered_from_another_thread_refuses() -> None:
    inside, leave = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        inside.set()
        leave.wait(30)
        yield b"a"

    packed = packer()
    thread = threading.Thread(target=packed.pack, args=(source(),))
    thread.start()
    inside.wait(30)
    with pytest.raises(RuntimeError, match="another thread"):
        packed.pack(iter([b"b"]))
    leave.set()
    thread.join()
    assert [[r.value for r in one] for one in batches_of(packed)] == [[b"a"]]


def test_a_packer_that_skipped_its_making_is_harmless() -> None:
    blank = Packer.__new__(Packer)
    assert bytes(blank.buffer) == b""
    blank.clear()
    with pytest.raises(RecordTooLargeError):
        blank.pack(iter([b"a"]))


EDGES = [0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 8191, 8192, 8193]


@pytest.mark.parametrize("batch_bytes", [61, 300, 9000, 20_000, 1 << 20])
def test_a_record_of_bytes_alone_is_written_as_in_any_other_form(batch_bytes: int) -> None:
    """A record of now without headers takes a shorter way into a batch that it fits in."""
    random_bytes = random.Random(f"{SEED}:8").randbytes
    pairs = [(random_bytes(key), random_bytes(value)) for key in EDGES for value in EDGES]
    pairs += [(None, random_bytes(value)) for value in EDGES]
    long_way = packer(batch_bytes=batch_bytes)
    long_way.pack((key, value, T, ()) for key, value in pairs)
    short_way = packer(batch_bytes=batch_bytes)
    short_way.pack(iter(pairs))
    assert bytes(short_way.buffer) == bytes(long_way.buffer)
    assert [(r.key, r.value) for one in batches_of(short_way) for r in one] == pairs


def test_a_record_of_bytes_alone_raises_the_greatest_timestamp() -> None:
    for first, greatest in ((T - 5, T), (T, T), (T + 5, T + 5)):
        [batch] = pack([(b"k", b"v", first, None), (b"k", b"v")])
        assert batch.max_timestamp == greatest
        assert [record.timestamp for record in batch] == [first, T]


sizes = st.sampled_from([0, 1, 50, 63, 64, 300])
items = st.lists(st.tuples(st.none() | sizes.map(bytes), st.none() | sizes.map(bytes)), max_size=60)


@given(items, st.integers(61, 2000), st.integers(0, 4), st.integers(1, 3000))
def test_batches_hold_the_records_in_order_and_never_exceed_their_size(
    records: list[tuple[bytes | None, bytes | None]], batch_bytes: int, codec: int, limit: int
) -> None:
    packed = packer(batch_bytes=batch_bytes, compression=codec)
    source = iter(records)
    got: list[RecordBatch] = []
    more = True
    while more:
        more = packed.pack(source, limit)
        got += batches_of(packed)
        packed.clear()
    assert [(r.key, r.value) for one in got for r in one] == records
    for one in got:
        plain = len(encode_batch(one, now_ms=T))
        assert plain <= batch_bytes or one.count == 1


def test_the_memory_of_packers_that_are_gone_is_used_again_up_to_32_mib() -> None:
    values = [bytes(1 << 20)] * 6

    def fill() -> Packer:
        packer = Packer(1 << 30, 1 << 30, now_ms=0)
        packer.pack(iter(values))
        return packer

    give_back_memory()
    tracemalloc.start()
    try:
        many = [fill() for _ in range(8)]
        assert tracemalloc.get_traced_memory()[0] >= 8 * 6 << 20
        many.clear()
        idle = tracemalloc.get_traced_memory()[0]
        again = fill()
        assert tracemalloc.get_traced_memory()[0] <= idle + (5 << 20)  # 8 MiB without the kept ones
        assert bytes(again.buffer[-100:]) == bytes(100)
        small = [Packer(1000, 1000, now_ms=0) for _ in range(100)]
        for each in small:
            each.pack(iter([b"value"]))
        small.clear()
        del again, each
        again = fill()  # the newest ones are kept
        assert tracemalloc.get_traced_memory()[0] <= 33 << 20
        del again
        give_back_memory()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert idle <= 33 << 20


def test_a_batch_that_decompresses_to_more_than_readers_take_is_split_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `append_batch` refuses to take, no call may store: nobody could read what is behind it."""
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 10_000)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with kstore.Log.open(tmp_path / f"{codec}-0", compression_type=codec, max_message_bytes=1 << 20) as log:
            fits = bytes(10_000 - 20)
            log.append_many([(None, fits), *[(None, b"x" * 900)] * 30, (None, fits)])
            log.append_columns(np.zeros((40, 900), np.uint8))
            for refused in (bytes(10_001), bytes(1 << 20)):
                with pytest.raises(RecordTooLargeError, match=r"decompresses to \d+ bytes, where at most 10000 are"):
                    log.append_many([(None, b"first"), (None, refused)], batch_bytes=1 << 21)
                with pytest.raises(RecordTooLargeError, match=r"decompresses to \d+ bytes"):
                    log.append_columns([refused])
            assert [len(record.value) for record in log.read() if record.value != b"first"] == [
                9980, *[900] * 30, 9980, *[900] * 40,
            ]  # fmt: skip
    with pytest.raises(RecordTooLargeError, match="decompresses to"):
        encode_batch([bytes(10_001)], compression="zstd")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("base_offset", 2**63),
        ("partition_leader_epoch", 2**31),
        ("base_sequence", 2**31),
        ("producer_epoch", 2**15),
        ("producer_id", -2),
    ],
)
def test_numbers_of_a_batch_are_whole_and_in_their_range(name: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} is -?\d+; -?\d+ to \d+ are allowed"):
        encode_batch([b"v"], **{name: wrong})
    for odd in (7.9, "7", None, True):
        with pytest.raises(TypeError, match=f"{name} must be an int, not {type(odd).__name__}"):
            encode_batch([b"v"], **{name: odd})
