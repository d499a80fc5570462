"""The decoder: records, batches of every format, and the iterators over chunks of them."""

from __future__ import annotations

import pickle
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import crc32c as second_opinion
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import _core
from kstore._core import (
    BatchIterator,
    Guard,
    ReaderPosition,
    Record,
    RecordBatch,
    RecordIterator,
    crc32c,
    decode_batches,
)
from kstore.errors import CorruptRecordError, KStoreError
from tests.support import reference
from tests.support.reference import Rec, message, record, wrapper

T = 1_700_000_000_000
V2_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 00 2a 00 00 00 51 00 00 00 03 02 eb f7 3b 29 00 00 00 00 00 01 00 00 01 8b cf"
    "e5 68 00 00 00 01 8b cf e5 68 05 ff ff ff ff ff ff ff ff ff ff ff ff ff ff 00 00 00 02 24 00 00"
    "00 04 6b 31 0a 68 65 6c 6c 6f 02 04 68 31 02 78 18 00 0a 02 04 6b 32 01 02 04 68 32 01"
)
V1_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 00 07 00 00 00 19 3e 73 16 74 01 00 00 00 01 8b cf e5 68 00 00 00 00 01 6b 00 00 00 02 76 31"
)
V0_EXAMPLE = bytes.fromhex("00 00 00 00 00 00 00 07 00 00 00 10 3b 98 6b 54 00 00 ff ff ff ff 00 00 00 02 76 30")
WRAPPER_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 00 65 00 00 00 64 54 4d ef 5a 01 02 00 00 01 8b cf e5 68 01 ff ff ff ff 00 00"
    "00 4e 82 53 4e 41 50 50 59 00 00 00 00 01 00 00 00 01 00 00 00 3a 48 00 00 19 01 34 18 70 05 7b"
    "66 01 00 00 00 01 8b cf e5 68 01 18 04 01 61 01 0e 00 31 01 0b 01 09 1c 00 00 00 18 ae 16 87 b2"
    "01 09 05 24 28 01 00 00 00 01 62 00 00 00 01 32"
)
ABORT_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 04 1a 00 00 00 42 00 00 00 03 02 0b 65 ab f1 00 30 00 00 00 00 00 00 01 8b cf"
    "e5 7f 70 00 00 01 8b cf e5 7f 70 00 00 00 00 00 00 0f a0 00 02 ff ff ff ff 00 00 00 01 20 00 00"
    "00 08 00 00 00 00 0c 00 00 00 00 00 07 00"
)
EMPTY_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 00 2a 00 00 00 31 00 00 00 03 02 fb 47 7e 3a 00 00 00 00 00 01 ff ff ff ff ff"
    "ff ff ff 00 00 01 8b cf e5 68 05 00 00 00 00 00 00 0f a0 00 02 00 00 00 0a 00 00 00 00"
)
HORIZON_EXAMPLE = bytes.fromhex(
    "00 00 00 00 00 00 00 2a 00 00 00 41 00 00 00 03 02 81 37 ab db 00 40 00 00 00 01 00 00 01 8b d5"
    "0b c4 00 00 00 01 8b cf e5 68 05 ff ff ff ff ff ff ff ff ff ff ff ff ff ff 00 00 00 01 1e 00 f5"
    "ef b2 52 02 04 6b 32 01 02 04 68 32 01"
)


def batch(first: int, count: int, **fields: int) -> bytes:
    """`count` records whose values name their offsets."""
    return reference.encode([Rec(i, T + i, None, b"%d" % i) for i in range(first, first + count)], **fields)


def only(data: bytes, **options: bool) -> RecordBatch:
    [one] = decode_batches(data, **options)
    return one


def records_of(data: bytes) -> list[Record]:
    return [r for one in decode_batches(data) for r in one]


def chunks(*parts: bytes, path: str | None = "a.log", position: int = 0) -> Iterator[tuple[bytes, str | None, int]]:
    for part in parts:
        yield part, path, position
        position += len(part)


# ---- FORMAT 14, the worked examples


def test_the_v2_example_decodes_as_the_format_document_says() -> None:
    one = only(V2_EXAMPLE)
    assert list(one) == [
        Record(42, T, b"k1", b"hello", (("h1", b"x"),)),
        Record(43, T + 5, b"k2", None, (("h2", None),)),
    ]
    assert (one.magic, one.base_offset, one.last_offset, one.next_offset, one.count) == (2, 42, 43, 44, 2)
    assert (one.base_timestamp, one.max_timestamp, one.timestamp_type) == (T, T + 5, "CreateTime")
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (-1, -1, -1)
    assert (one.crc, one.size_bytes, one.partition_leader_epoch) == (0xEBF73B29, 93, 3)
    assert (one.compression, one.is_transactional, one.is_control) == ("none", False, False)
    assert one.delete_horizon_ms is None


def test_the_v1_and_v0_examples_decode_as_the_format_document_says() -> None:
    one = only(V1_EXAMPLE)
    assert list(one) == [Record(7, T, b"k", b"v1", ())]
    assert (one.magic, one.base_offset, one.last_offset, one.count, one.crc) == (1, 7, 7, 1, 0x3E731674)
    assert (one.timestamp_type, one.max_timestamp, one.partition_leader_epoch) == ("CreateTime", T, -1)
    old = only(V0_EXAMPLE)
    assert list(old) == [Record(7, -1, None, b"v0", ())]
    assert (old.magic, old.timestamp_type, old.max_timestamp, old.crc) == (0, "NoTimestampType", -1, 0x3B986B54)


def test_the_wrapper_example_decodes_as_the_format_document_says() -> None:
    one = only(WRAPPER_EXAMPLE)
    assert list(one) == [Record(100, T, b"a", b"1", ()), Record(101, T + 1, b"b", b"2", ())]
    assert (one.base_offset, one.last_offset, one.count, one.compression) == (100, 101, 2, "snappy")


def test_the_abort_marker_example_is_a_control_batch() -> None:
    one = only(ABORT_EXAMPLE)
    assert list(one) == [Record(1050, T + 6000, b"\0\0\0\0", b"\0\0\0\0\0\x07", ())]
    assert (one.is_control, one.is_transactional, one.producer_id, one.producer_epoch) == (True, True, 4000, 2)


def test_the_cleaners_examples_decode_as_the_format_document_says() -> None:
    empty = only(EMPTY_EXAMPLE)
    assert list(empty) == []
    assert (empty.base_offset, empty.last_offset, empty.count, empty.base_sequence) == (42, 43, 0, 10)
    assert (empty.base_timestamp, empty.max_timestamp) == (-1, T + 5)
    kept = only(HORIZON_EXAMPLE)
    assert list(kept) == [Record(43, T + 5, b"k2", None, (("h2", None),))]
    assert (kept.base_offset, kept.last_offset, kept.count) == (42, 43, 1)
    assert kept.delete_horizon_ms == T + 86_400_000


# ---- Record


def test_a_record_unpacks_compares_and_hashes_by_its_five_values() -> None:
    one = Record(1, 2, b"k", None, [("h", bytearray(b"x"))])
    offset, timestamp, key, value, headers = one
    assert (offset, timestamp, key, value, headers) == (1, 2, b"k", None, (("h", b"x"),))
    assert one == Record(1, 2, b"k", None, (("h", b"x"),))
    assert hash(one) == hash(Record(1, 2, b"k", None, (("h", b"x"),)))
    assert len({one, Record(*one)}) == 1
    for other in (
        Record(0, 2, b"k", None, one.headers),
        Record(1, 0, b"k", None, one.headers),
        Record(1, 2, b"", None, one.headers),
        Record(1, 2, b"k", b"", one.headers),
        Record(1, 2, b"k", None, ()),
        (1, 2, b"k", None, one.headers),
    ):
        assert one != other


def test_a_record_survives_pickling_and_shows_what_it_holds() -> None:
    one = Record(1, 2, b"k", None, (("h", None),))
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == "Record(offset=1, timestamp=2, key=b'k', value=None, headers=(('h', None),))"
    assert repr(Record(3, -1)) == "Record(offset=3, timestamp=-1, key=None, value=None, headers=())"


@pytest.mark.parametrize("name", ["offset", "timestamp", "key", "value", "headers"])
def test_a_record_cannot_be_changed(name: str) -> None:
    one = Record(1, 2, b"k", b"v", ())
    with pytest.raises(AttributeError):
        setattr(one, name, None)
    assert list(one) == [1, 2, b"k", b"v", ()]


def test_a_record_takes_buffers_and_refuses_text() -> None:
    assert Record(1, 2, memoryview(b"k"), bytearray(b"v")).key == b"k"
    for arguments in ((1, 2, "k"), (1, 2, b"k", "v"), (1, 2, 3), (1, 2, None, None, [(b"h", b"x")])):
        with pytest.raises(TypeError):
            Record(*arguments)  # type: ignore[arg-type]


def test_a_record_made_without_its_values_is_still_sound() -> None:
    empty = Record.__new__(Record)
    assert list(empty)[:4] == [0, 0, None, None]
    assert "Record" in repr(empty)


@pytest.mark.parametrize("name", [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"ok\x80\x80"])
def test_header_names_that_are_not_utf8_keep_their_bytes(name: bytes) -> None:
    data = reference.encode([Rec(0, T, None, None, ((name, b"x"),))])
    [one] = records_of(data)
    assert one.headers[0][0].encode("utf-8", "surrogateescape") == name


def test_a_record_is_not_tracked_by_the_collector() -> None:
    import gc

    assert not gc.is_tracked(Record(1, 2, b"k", b"v", (("h", b"x"),)))


# ---- RecordBatch


def test_a_batch_iterates_again_and_again() -> None:
    one = only(batch(5, 3, codec=reference.ZSTD))
    assert list(one) == list(one)
    assert [r.offset for r in one] == [5, 6, 7]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_a_batch_gives_its_bytes_and_keeps_them_whatever_happens_to_the_buffer(
    make: Callable[[bytes], bytes | bytearray | memoryview],
) -> None:
    data = batch(0, 2) + batch(2, 2)
    buffer = make(data)
    first, second = decode_batches(buffer)
    if isinstance(buffer, bytearray):
        buffer[:] = bytes(len(data))
    assert bytes(first) + bytes(second) == data
    view = memoryview(second)
    assert view.readonly
    del buffer, first, second
    assert bytes(view) == batch(2, 2)


def test_every_attribute_bit_is_shown() -> None:
    seen = only(reference.encode([Rec(0, T, None, b"")], attributes=reference.TRANSACTIONAL, producer_id=7))
    assert (seen.is_transactional, seen.is_control, seen.delete_horizon_ms) == (True, False, None)
    seen = only(reference.encode([Rec(0, T, None, b"")], attributes=reference.CONTROL))
    assert (seen.is_transactional, seen.is_control) == (False, True)
    seen = only(reference.encode([Rec(0, T, None, b"")], attributes=reference.DELETE_HORIZON))
    assert seen.delete_horizon_ms == T
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        assert only(reference.encode([Rec(0, T, None, b"")], codec=codec)).compression == name


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_corruption_only_when_its_records_are_read(codec: int) -> None:
    one = only(reference.batch(b"xyz", 1, attributes=codec))
    assert one.compression == "unknown"
    with pytest.raises(CorruptRecordError, match=f"compression type {codec}"):
        list(one)


def test_every_record_of_an_append_time_batch_has_the_batchs_max_timestamp() -> None:
    """FORMAT 2.3."""
    one = only(batch(0, 3, attributes=reference.APPEND_TIME, max_timestamp=T + 99))
    assert one.timestamp_type == "LogAppendTime"
    assert [r.timestamp for r in one] == [T + 99] * 3


def test_a_batch_survives_pickling_and_a_pickle_cannot_smuggle_in_bytes() -> None:
    one = only(batch(0, 2))
    back = pickle.loads(pickle.dumps(one))
    assert back == one
    assert hash(back) == hash(one)
    assert list(back) == list(one)
    rebuild, state = one.__reduce__()
    assert callable(rebuild)
    for data in (b"", bytes(one)[:-1], bytes(one) + b"x", bytes(61), b"\xff" * 90):
        with pytest.raises(CorruptRecordError):
            rebuild(data, *state[1:])


def test_objects_that_skipped_their_making_are_harmless() -> None:
    with pytest.raises(TypeError):
        RecordBatch()
    blank = RecordBatch.__new__(RecordBatch)
    assert (blank.base_offset, blank.size_bytes, list(blank)) == (0, 61, [])
    assert list(RecordIterator.__new__(RecordIterator)) == []
    assert list(BatchIterator.__new__(BatchIterator)) == []


def test_a_batch_knows_whether_its_crc_holds() -> None:
    data = bytearray(batch(0, 1))
    assert only(bytes(data)).is_valid
    data[-1] ^= 1
    one = only(bytes(data), check_crc=False)
    assert not one.is_valid
    with pytest.raises(CorruptRecordError, match="CRC"):
        one.ensure_valid()


# ---- framing, FORMAT 2.7


def test_a_buffer_cut_at_any_byte_gives_the_whole_batches_before_the_cut() -> None:
    parts = [batch(0, 1), V1_EXAMPLE, V0_EXAMPLE, batch(1, 2), WRAPPER_EXAMPLE]
    data = b"".join(parts)
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends)
        assert [bytes(one) for one in decode_batches(data[:cut])] == parts[:whole]


def test_any_flipped_bit_is_found_unless_it_is_outside_what_the_checksum_covers() -> None:
    good = batch(300, 2)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 0x80 >> bit % 8
        try:
            found = [bytes(one) for one in decode_batches(bytes(data))]
        except CorruptRecordError:
            continue
        at = bit // 8
        if 8 <= at < 12:
            assert found == [], "a length that grew: the batch is cut off by the buffer's end"
        else:
            assert at in range(8) or at in range(12, 16), f"byte {at} is covered by nothing"
            assert found == [bytes(data)]


@pytest.mark.parametrize("length", [0, 13, -1, -(1 << 31), 14, 48])
def test_a_length_that_no_batch_can_have_is_corruption(length: int) -> None:
    data = bytearray(batch(0, 1) + bytes(60))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptRecordError) as caught:
        list(decode_batches(bytes(data), False, path="x.log", position=77))
    assert (caught.value.path, caught.value.position) == ("x.log", 77)


@pytest.mark.parametrize("magic", [3, 127, -1, -128])
def test_an_unknown_magic_is_corruption(magic: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"magic {magic}"):
        list(decode_batches(reference.batch(b"", 0, magic=magic)))


def test_a_length_of_two_gigabytes_reads_as_a_batch_that_is_not_all_there() -> None:
    data = bytearray(batch(0, 1))
    struct.pack_into(">i", data, 8, (1 << 31) - 1)
    assert list(decode_batches(bytes(data))) == []


def test_errors_name_the_batch_that_is_bad_not_the_first() -> None:
    good, bad = batch(0, 3), bytearray(batch(3, 1))
    bad[-1] ^= 0x40
    walk = decode_batches(good + bytes(bad), position=1000)
    next(walk)
    with pytest.raises(CorruptRecordError) as caught:
        next(walk)
    assert caught.value.position == 1000 + len(good)
    assert next(walk, None) is None, "an iterator that failed has ended"


def test_text_and_numbers_are_no_buffers() -> None:
    for wrong in ("text", 5, None, [b"x"]):
        with pytest.raises(TypeError):
            decode_batches(wrong)  # type: ignore[arg-type]


# ---- formats 0 and 1, FORMAT 5.1

OLD = [Rec(7, T, b"a", b"1"), Rec(8, T + 5, None, b"2"), Rec(11, T + 3, b"c", None)]


def old_records(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in records_of(data)]


@pytest.mark.parametrize("codec", [reference.GZIP, reference.SNAPPY, reference.LZ4])
def test_inner_offsets_of_a_v1_wrapper_are_relative_to_its_last(codec: int) -> None:
    one = only(wrapper(OLD, codec))
    assert old_records(bytes(one)) == [(r.offset, r.timestamp, r.key, r.value) for r in OLD]
    assert (one.base_offset, one.last_offset, one.count, one.max_timestamp) == (7, 11, 3, T + 5)


@pytest.mark.parametrize("codec", [reference.GZIP, reference.SNAPPY, reference.LZ4])
def test_inner_offsets_of_a_v0_wrapper_are_absolute_and_have_no_time(codec: int) -> None:
    """Its lz4 frames have the wrong header checksum that the format asks for (FORMAT 6.5)."""
    assert old_records(wrapper(OLD, codec, magic=0)) == [(r.offset, -1, r.key, r.value) for r in OLD]


def test_a_wrapper_at_offset_0_takes_inner_offsets_as_they_are() -> None:
    assert [offset for offset, *_ in old_records(wrapper(OLD, reference.GZIP, offset=0))] == [0, 1, 4]


def test_a_wrapper_below_its_last_inner_offset_is_corruption() -> None:
    assert [offset for offset, *_ in old_records(wrapper(OLD, reference.GZIP, offset=4))] == [0, 1, 4]
    with pytest.raises(CorruptRecordError, match="last inner offset is 4"):
        old_records(wrapper(OLD, reference.GZIP, offset=3))


def test_a_wrapper_with_append_time_gives_it_to_all() -> None:
    one = only(wrapper(OLD, reference.GZIP, append_time=T + 77))
    assert one.timestamp_type == "LogAppendTime"
    assert [r.timestamp for r in one] == [T + 77] * 3


def test_inner_v0_messages_in_a_v1_wrapper_have_no_time_and_relative_offsets() -> None:
    data = wrapper(OLD, reference.GZIP, inner_magic=0)
    assert [(offset, time) for offset, time, *_ in old_records(data)] == [(7, -1), (8, -1), (11, -1)]


def test_a_torn_message_at_the_end_of_a_wrapper_is_left_out() -> None:
    tail = message(5, b"k", b"v")
    for cut in (1, 11, 12, 20, len(tail) - 1):
        assert len(old_records(wrapper(OLD, reference.GZIP, torn=tail[:cut]))) == 3


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (b"", "no message"),
        (b"\0" * 11, "no message"),
        (struct.pack(">qi", 0, 13) + bytes(13), "13 bytes"),
        (struct.pack(">qi", 0, -1) + bytes(13), "-1 bytes"),
        (message(0, None, b"x", attributes=1), "inside a compressed"),
        (message(0, None, b"x", magic=2), "magic 2"),
        (struct.pack(">qi", 0, 20) + b"\0" * 4 + b"\x01" + bytes(15), "20 bytes and magic 1"),
    ],
)
def test_a_wrapper_with_bad_contents_is_corruption(inner: bytes, reason: str) -> None:
    data = message(9, None, reference.compress(reference.GZIP, inner), attributes=reference.GZIP)
    with pytest.raises(CorruptRecordError, match=reason):
        records_of(data)


def test_a_wrapper_with_a_null_value_is_corruption() -> None:
    with pytest.raises(CorruptRecordError, match="null value"):
        records_of(message(9, None, None, attributes=reference.GZIP))


@pytest.mark.parametrize("codec", [4, 5, 7])
def test_old_formats_do_not_know_zstd(codec: int) -> None:
    """AbstractLegacyRecordBatchTest.testZStdCompressionTypeWithV0OrV1, MemoryRecordsTest.testUnsupportedCompress."""
    with pytest.raises(CorruptRecordError, match=f"compression type {codec}"):
        records_of(message(9, None, b"x", attributes=codec))


@pytest.mark.parametrize(("magic", "least"), [(0, 14), (1, 22)])
def test_the_smallest_message_is_read_and_a_byte_less_is_corruption(magic: int, least: int) -> None:
    data = message(3, None, None, magic=magic)
    assert len(data) == 12 + least
    assert old_records(data) == [(3, -1, None, None)]
    short = bytearray(data[:-1])
    struct.pack_into(">i", short, 8, least - 1)
    with pytest.raises(CorruptRecordError):
        old_records(bytes(short))


@pytest.mark.parametrize("at", [26, 30 + 1])
def test_a_field_of_an_old_message_that_is_longer_than_the_message_is_corruption(at: int) -> None:
    data = bytearray(message(3, b"k", b"vv"))
    size = struct.unpack_from(">i", data, at)[0]
    struct.pack_into(">i", data, at, size + 1)
    struct.pack_into(">I", data, 12, __import__("zlib").crc32(data[16:]))
    with pytest.raises(CorruptRecordError, match="bytes in a message"):
        records_of(bytes(data))


# ---- RecordIterator


def test_records_come_from_start_to_end_across_chunks() -> None:
    data = [batch(0, 5), batch(5, 5, codec=reference.GZIP), batch(12, 3)]
    for start in range(16):
        for end in range(start, 17):
            walk = RecordIterator(chunks(*data), start, end)
            assert [r.offset for r in walk] == [i for i in (*range(10), 12, 13, 14) if start <= i < end]
            assert walk.next_offset >= max(
                (i + 1 for i in range(start, end) if i in (*range(10), 12, 13, 14)), default=0
            )
            assert walk.next_offset <= max(end, 15)


def test_next_offset_says_where_to_go_on_at_every_step() -> None:
    gap = reference.batch(record(0, 1, None, b"x"), 1, base_offset=10, last_offset_delta=5)
    walk = RecordIterator(chunks(batch(0, 2), gap, batch(20, 1)), 1)
    assert walk.next_offset == 1
    seen = [(r.offset, walk.next_offset) for r in walk]
    assert seen == [(1, 2), (11, 16), (20, 21)]
    assert walk.next_offset == 21


def test_control_batches_are_passed_over_unless_asked_for() -> None:
    data = (batch(0, 1), ABORT_EXAMPLE, batch(1051, 1))
    walk = RecordIterator(chunks(*data))
    assert [r.offset for r in walk] == [0, 1051]
    assert [r.offset for r in RecordIterator(chunks(*data), include_control=True)] == [0, 1050, 1051]
    walk = RecordIterator(chunks(ABORT_EXAMPLE))
    assert list(walk) == []
    assert walk.next_offset == 1051


def test_empty_batches_and_empty_chunks_are_passed_over() -> None:
    walk = RecordIterator(chunks(b"", EMPTY_EXAMPLE, b"", batch(44, 1), b""))
    assert [r.offset for r in walk] == [44]
    walk = RecordIterator(chunks(EMPTY_EXAMPLE))
    assert (list(walk), walk.next_offset) == ([], 44)


def test_old_formats_come_through_the_same_iterator() -> None:
    data = (message(3, None, b"a"), wrapper(OLD, reference.GZIP), batch(12, 2))
    assert [r.offset for r in RecordIterator(chunks(*data), 8, 13)] == [8, 11, 12]


def test_a_batch_that_claims_to_end_below_the_start_is_checked() -> None:
    """What it claims may be the fault: its records would be hidden in silence."""
    bad = bytearray(batch(0, 5))
    bad[23] ^= 0x80  # the last offset delta's sign
    for start in (0, 4, 5):
        with pytest.raises(CorruptRecordError, match="CRC"):
            list(RecordIterator(chunks(bytes(bad), batch(5, 1)), start))
    bad = bytearray(batch(0, 5))
    bad[-2] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        list(RecordIterator(chunks(bytes(bad)), 4))
    assert len(list(RecordIterator(chunks(bytes(bad)), 0, check_crc=False))) == 5


def test_nothing_is_asked_for_once_the_end_is_reached() -> None:
    def source() -> Iterator[tuple[bytes, None, int]]:
        yield batch(0, 5), None, 0
        yield batch(5, 5), None, 1000
        raise AssertionError("asked for more")

    assert len(list(RecordIterator(source(), 0, 4))) == 4
    assert len(list(RecordIterator(source(), 0, 5))) == 5
    walk = RecordIterator(source(), 0, 7)
    assert (len(list(walk)), walk.next_offset) == (7, 7)


def test_a_chunk_that_ends_inside_a_batch_is_an_error_that_names_the_place() -> None:
    whole = batch(0, 2)
    for cut in (1, 11, 12, 16, 17, 60, len(whole) - 1):
        walk = RecordIterator(chunks(whole, whole[:cut], position=100))
        with pytest.raises(CorruptRecordError, match="ends inside") as caught:
            list(walk)
        assert (caught.value.path, caught.value.position) == ("a.log", 100 + len(whole))
        assert list(walk) == []


def test_records_stay_when_their_chunk_is_written_over() -> None:
    pool = bytearray(4096)

    def source() -> Iterator[tuple[memoryview, None, int]]:
        for first in (0, 3):
            data = batch(first, 3)
            pool[:] = data + bytes(4096 - len(data))
            yield memoryview(pool)[: len(data)], None, 0

    kept = list(RecordIterator(source()))
    pool[:] = b"\xff" * 4096
    assert [r.value for r in kept] == [b"%d" % i for i in range(6)]


def test_a_chunk_is_let_go_when_the_next_is_asked_for() -> None:
    first = bytearray(batch(0, 1))

    def source() -> Iterator[tuple[bytearray, None, int]]:
        yield first, None, 0
        yield bytearray(batch(1, 1)), None, 0

    walk = RecordIterator(source())
    next(walk)
    with pytest.raises(BufferError):
        first.append(0)
    next(walk)
    first.append(0)


def test_what_the_source_raises_comes_through_and_ends_the_iteration() -> None:
    def source() -> Iterator[tuple[bytes, None, int]]:
        yield batch(0, 1), None, 0
        raise LookupError("gone")

    walk = RecordIterator(source())
    assert next(walk).offset == 0
    with pytest.raises(LookupError):
        next(walk)
    assert list(walk) == []


@pytest.mark.parametrize("item", [5, (b"",), (b"", None), ("text", None, 0), (b"", None, "x"), (b"", None, 1 << 70)])
def test_a_source_that_gives_something_else_is_refused(item: object) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        list(RecordIterator(iter([item])))  # type: ignore[list-item]


class Source:
    """Chunks with a `recheck`: what it was told, and what it answers."""

    def __init__(self, *parts: bytes, answer: Source | Exception | None = None) -> None:
        self.parts = parts
        self.answer = answer
        self.told: list[ReaderPosition] = []
        self.errors: list[Exception | None] = []

    def __iter__(self) -> Iterator[tuple[bytes, str | None, int]]:
        return chunks(*self.parts)

    def recheck(self, position: ReaderPosition, error: Exception | None) -> object:
        self.told.append(position)
        self.errors.append(error)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def crc_of(data: bytes) -> int:
    return only(data).crc


def test_the_source_is_asked_before_the_next_record_once_the_guard_moved() -> None:
    first, second = batch(0, 3), batch(3, 2)
    source, guard = Source(first, second), Guard()
    walk = RecordIterator(source, guard=guard)
    assert next(walk).offset == 0
    assert source.told == []
    guard.version += 1
    assert [next(walk).offset for _ in range(3)] == [1, 2, 3]
    assert source.told == [(1, 0, 0, crc_of(first))]
    guard.version += 5
    assert next(walk).offset == 4
    assert source.told[1:] == [(4, 1, 3, crc_of(second))]


@pytest.mark.parametrize("kind", [RecordIterator, BatchIterator])
def test_a_recheck_that_raises_ends_the_iteration(kind: type[RecordIterator] | type[BatchIterator]) -> None:
    guard = Guard()
    walk = kind(Source(batch(0, 2), batch(2, 2), answer=LookupError("gone")), guard=guard)
    next(walk)
    guard.version = 9
    with pytest.raises(LookupError):
        next(walk)
    assert next(walk, None) is None


def test_an_iterator_goes_on_with_the_chunks_that_a_recheck_answers_with() -> None:
    guard = Guard()
    walk = RecordIterator(Source(batch(0, 5), batch(5, 5), answer=Source(batch(0, 3), batch(3, 9))), guard=guard)
    seen = [next(walk).offset, next(walk).offset]
    guard.version += 1
    assert seen + [r.offset for r in walk] == list(range(12))


def test_a_fault_is_shown_to_the_source_which_may_know_better_chunks() -> None:
    bad = bytearray(batch(5, 5))
    bad[-2] ^= 1
    for kind in (RecordIterator, BatchIterator):
        source = Source(batch(0, 5), bytes(bad), answer=Source(batch(0, 5), batch(5, 1)))
        last = list(kind(source))[-1]
        assert (last.offset if isinstance(last, Record) else last.last_offset) == 5
        assert isinstance(source.errors[0], CorruptRecordError)
        with pytest.raises(CorruptRecordError, match="CRC"):
            list(kind(Source(batch(0, 5), bytes(bad))))


def test_a_guard_that_moves_during_a_read_is_seen_before_a_record_is_given() -> None:
    guard = Guard()

    class Moving(Source):
        def __iter__(self) -> Iterator[tuple[bytes, str | None, int]]:
            yield batch(0, 1), None, 0
            guard.version += 1
            yield batch(1, 1), None, 0

    for kind in (RecordIterator, BatchIterator):
        source = Moving()
        assert len(list(kind(source, guard=guard))) == 2
        assert [told[0] for told in source.told] == [1]


def test_an_iterator_entered_twice_says_so() -> None:
    def source() -> Iterator[tuple[bytes, None, int]]:
        yield batch(0, 1), None, 0
        next(walk)

    walk: RecordIterator | BatchIterator = RecordIterator(source())
    with pytest.raises(ValueError, match="already"):
        list(walk)
    walk = BatchIterator(source())
    with pytest.raises(ValueError, match="already"):
        list(walk)


def test_threads_on_one_iterator_get_each_record_at_most_once() -> None:
    walk = RecordIterator(chunks(*(batch(i * 100, 100) for i in range(50))))
    got: list[list[int]] = [[], []]

    def take(into: list[int]) -> None:
        while True:
            try:
                into.append(next(walk).offset)
            except StopIteration:
                return
            except ValueError:
                continue

    threads = [threading.Thread(target=take, args=(into,)) for into in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got[0] + got[1]) == list(range(5000))


def test_memory_does_not_grow_with_what_is_iterated() -> None:
    part = batch(0, 50)
    tracemalloc.start()
    try:
        walk = RecordIterator((part, None, 0) for _ in range(2000))
        for _ in range(1000):
            next(walk)
        before = tracemalloc.get_traced_memory()[0]
        for _ in walk:
            pass
        assert tracemalloc.get_traced_memory()[0] < before + 50_000
    finally:
        tracemalloc.stop()


# ---- BatchIterator


def test_batches_that_reach_into_the_range_come_whole() -> None:
    parts = [batch(0, 5), batch(5, 5), batch(12, 3), wrapper(OLD, reference.GZIP, offset=30)]
    spans = [(0, 4), (5, 9), (12, 14), (26, 30)]
    for start in range(32):
        for end in range(start, 33):
            walk = BatchIterator(chunks(*parts), start, end)
            expected = [part for part, (low, high) in zip(parts, spans, strict=True) if high >= start and low < end]
            assert [bytes(one) for one in walk] == expected


def test_batches_know_their_path_and_position() -> None:
    parts = [batch(0, 5), batch(5, 5)]
    walk = BatchIterator(iter([(b"".join(parts), "x.log", 900)]))
    assert [(one.path, one.position) for one in walk] == [("x.log", 900), ("x.log", 900 + len(parts[0]))]


# ---- limits and checksums


@pytest.mark.parametrize("codec", [reference.GZIP, reference.SNAPPY, reference.LZ4, reference.ZSTD])
def test_a_batch_may_decompress_to_the_limit_and_not_a_byte_more(codec: int) -> None:
    section = record(0, 0, None, b"x" * 100_000)
    data = reference.batch(reference.compress(codec, section), 1, attributes=codec)
    [one] = decode_batches(data, max_decompressed_bytes=len(section))
    assert len(list(one)) == 1
    [one] = decode_batches(data, max_decompressed_bytes=len(section) - 1, path="bomb.log", position=5)
    with pytest.raises(CorruptRecordError, match="bytes allowed") as caught:
        list(one)
    assert (caught.value.path, caught.value.position) == ("bomb.log", 5)
    with pytest.raises(CorruptRecordError):
        list(RecordIterator(chunks(data), max_decompressed_bytes=len(section) - 1))


def test_crc32c_is_the_check_value_and_goes_on_from_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(b"", 5) == 5
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@given(st.binary(max_size=5000), st.integers(0, 5000), st.integers(0, 64))
def test_crc32c_agrees_with_the_second_opinion_at_any_length_alignment_and_split(
    data: bytes, split: int, shift: int
) -> None:
    view = memoryview(bytes(shift) + data)[shift:]
    assert crc32c(view) == second_opinion.crc32c(data)
    assert crc32c(view[split:], crc32c(view[:split])) == second_opinion.crc32c(data)


@pytest.mark.parametrize("size", [65535, 65536, 65537, 1 << 20])
def test_crc32c_of_long_data_is_right_with_the_lock_given_away(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    assert crc32c(data[:size]) == second_opinion.crc32c(data[:size])
    assert crc32c(bytearray(data[:size])) == second_opinion.crc32c(data[:size])


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_crc32c_wants_a_buffer(wrong: object) -> None:
    with pytest.raises(TypeError):
        crc32c(wrong)  # type: ignore[arg-type]


def test_every_error_of_the_decoder_is_one_of_ours() -> None:
    assert issubclass(CorruptRecordError, KStoreError)
    assert issubclass(CorruptRecordError, ValueError)
    assert _core.__doc__


@pytest.mark.parametrize("other", [None, 5, b"bytes"])
@pytest.mark.parametrize(
    "method", [kstore.RecordBatch.ensure_valid, kstore.BinaryColumn.to_pylist, kstore.HeadersColumn.to_pylist]
)
def test_a_compiled_method_refuses_an_object_of_another_class(method: Callable[[Any], object], other: object) -> None:
    """As in `map(RecordBatch.ensure_valid, ...)` over what are no batches: it ended the process."""
    with pytest.raises(TypeError, match="doesn't apply to a"):
        method(other)
