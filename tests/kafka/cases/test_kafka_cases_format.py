"""Cases of Kafka's own suites about bytes in memory and in a file: batches, records, old formats, varints.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case (FORMAT 2 to 6).
"""

from __future__ import annotations

import itertools
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore._core import BatchIterator, Record, RecordBatch, RecordIterator, crc32c, decode_batches
from kstore.codec import header
from kstore.codec._pack import encode_batch
from kstore.codec.coordinator.group_records import unsigned_varint
from kstore.codec.coordinator.schemas import Reader
from kstore.disk import fs
from kstore.errors import CorruptRecordError
from kstore.files._log_scan import scan
from kstore.files._log_search import find_batch, find_timestamp, last_offset
from tests.support import reference
from tests.support.reference import Rec, varint

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INT32, INT64 = 2**31 - 1, 2**63 - 1


def only(data: bytes) -> RecordBatch:
    [one] = decode_batches(data)
    return one


def three(**fields: Any) -> bytearray:
    """Three records with the timestamps 1, 2, 3."""
    return bytearray(encode_batch([(b"a", b"1", 1, None), (b"b", b"2", 2, None), (b"c", b"3", 3, None)], **fields))


# Batches of format 2


@pytest.mark.parametrize("producer", [(-1, -1, -1), (23423, 145, 983)])
def test_a_batch_says_what_it_was_made_from(producer: tuple[int, int, int]) -> None:
    """DefaultRecordBatchTest.buildDefaultRecordBatch, DefaultRecordBatchTest.buildDefaultRecordBatchWithProducerId."""
    producer_id, epoch, sequence = producer
    records = [(b"key1", b"value1", 1, None), (b"key2", b"value2", 2, None)]
    one = only(
        encode_batch(
            records, base_offset=1234567, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
    )
    assert one.is_valid
    assert (one.base_offset, one.last_offset, one.max_timestamp) == (1234567, 1234568, 2)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == producer
    assert [(r.offset, r.timestamp, r.key) for r in one] == [(1234567, 1, b"key1"), (1234568, 2, b"key2")]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_count_that_is_too_large_is_found_while_iterating(codec: str) -> None:
    """DefaultRecordBatchTest.testInvalidRecordCountTooManyNonCompressedV2,
    DefaultRecordBatchTest.testInvalidRecordCountTooManyCompressedV2.
    """
    data = three(compression=codec)
    struct.pack_into(">i", data, 57, 5)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    with pytest.raises(CorruptRecordError):
        list(only(bytes(data)))


def test_a_changed_header_field_breaks_the_checksum() -> None:
    """DefaultRecordBatchTest.testInvalidCrc."""
    data = three()
    struct.pack_into(">i", data, 23, 23)
    with pytest.raises(CorruptRecordError, match="CRC"):
        list(decode_batches(bytes(data)))
    [one] = decode_batches(bytes(data), check_crc=False)
    assert not one.is_valid
    with pytest.raises(CorruptRecordError):
        one.ensure_valid()


def test_offset_and_leader_epoch_are_set_without_a_new_checksum() -> None:
    """DefaultRecordBatchTest.testSetLastOffset, DefaultRecordBatchTest.testSetPartitionLeaderEpoch."""
    data = three()
    crc = only(bytes(data)).crc
    header.BASE_OFFSET.put(data, 498)
    header.LEADER_EPOCH.put(data, 500)
    one = only(bytes(data))
    assert (one.base_offset, one.last_offset, one.partition_leader_epoch, one.crc) == (498, 500, 500, crc)
    assert one.is_valid
    assert [r.offset for r in one] == [498, 499, 500]


def test_append_time_is_set_with_a_new_checksum() -> None:
    """DefaultRecordBatchTest.testSetLogAppendTime."""
    data = three()
    header.ATTRIBUTES.put(data, header.TIMESTAMP_TYPE_BIT)
    header.MAX_TIMESTAMP.put(data, 15)
    header.CRC.put(data, header.computed_crc(data))
    one = only(bytes(data))
    assert (one.timestamp_type, one.max_timestamp, one.is_valid) == ("LogAppendTime", 15, True)
    assert [r.timestamp for r in one] == [15, 15, 15]


def test_no_timestamp_type_is_only_for_the_oldest_format() -> None:
    """DefaultRecordBatchTest.testSetNoTimestampTypeNotAllowed."""
    with pytest.raises(ValueError, match="NoTimestampType"):
        encode_batch([b"x"], timestamp_type="NoTimestampType")


@pytest.mark.parametrize("codec", CODECS)
def test_every_way_to_iterate_gives_the_same_records(codec: str) -> None:
    """DefaultRecordBatchTest.testStreamingIteratorConsistency."""
    data = bytes(three(compression=codec))
    found = list(only(data))
    assert [r.value for r in found] == [b"1", b"2", b"3"]
    assert list(RecordIterator([(data, None, 0)])) == found
    assert [r for one in BatchIterator([(data, None, 0)]) for r in one] == found


@pytest.mark.parametrize("codec", CODECS)
def test_nulls_empties_large_values_and_headers_come_back(codec: str) -> None:
    """DefaultRecordBatchTest.testSkipKeyValueIteratorCorrectness, DefaultRecordTest.testBasicSerde."""
    items = [
        Record(37, 1, b"hi", b"there"),
        Record(38, 2, None, b"there"),
        Record(39, 3, b"hi", None),
        Record(40, 4, None, None),
        Record(41, 1000, b"abc", b"0" * 200 * 1024),
        Record(42, 9999, b"abc", b"0", (("h", b"hv"), ("naïve ✓", None), ("", b""))),
    ]
    data = encode_batch(items, base_offset=37, compression=codec, producer_id=1, producer_epoch=0, base_sequence=723)
    assert list(only(data)) == items


def test_an_end_transaction_marker_has_78_bytes() -> None:
    """MemoryRecordsTest.testBuildEndTxnMarker, DefaultRecordBatchTest.testReadAndWriteControlBatch."""
    key, value = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 347)
    data = encode_batch(
        [(key, value, 5, None)],
        base_offset=983,
        partition_leader_epoch=29,
        producer_id=73,
        producer_epoch=13,
        transactional=True,
        control=True,
    )
    one = only(data)
    assert (len(data), one.is_control, one.is_transactional, one.is_valid) == (78, True, True, True)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (73, 13, -1)
    assert (one.base_offset, one.partition_leader_epoch) == (983, 29)
    assert [(r.key, r.value) for r in one] == [(key, value)]


def test_records_of_a_batch_with_a_delete_horizon_keep_their_times() -> None:
    """MemoryRecordsBuilderTest.testRecordTimestampsWithDeleteHorizon: the deltas count from the horizon."""
    section = b"".join(
        reference.record(t - 100, i, b"k", v) for i, (t, v) in enumerate([(50, b"v"), (100, None), (150, b"v")])
    )
    one = only(reference.batch(section, 3, attributes=0x40, base_timestamp=100, max_timestamp=150))
    assert one.delete_horizon_ms == 100
    assert [r.timestamp for r in one] == [50, 100, 150]


@pytest.mark.parametrize("base_offset", [0, 57])
@pytest.mark.parametrize("codec", CODECS)
def test_one_set_of_records_in_every_format(base_offset: int, codec: str) -> None:
    """MemoryRecordsTest.testIterator, FileLogInputStreamTest.testBatchIterationV2,
    MemoryRecordsTest.testWithRecords.
    """
    full = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (None, b"4"), (b"d", None), (None, None)]
    items = [Rec(base_offset + i, i + 1, key, value) for i, (key, value) in enumerate(full)]
    expected = [(r.offset, r.timestamp, r.key, r.value) for r in items]
    data = encode_batch(
        [(r.key, r.value, r.timestamp, None) for r in items],
        base_offset=base_offset,
        compression=codec,
        partition_leader_epoch=998,
        producer_id=134234,
        producer_epoch=28,
        base_sequence=777,
    )
    one = only(data)
    for _ in range(2):
        assert [(r.offset, r.timestamp, r.key, r.value) for r in one] == expected
    assert (one.magic, one.partition_leader_epoch, one.count, one.max_timestamp) == (2, 998, 6, 6)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (134234, 28, 777)
    if codec == "zstd":
        return
    for magic in (0, 1):
        if codec == "none":
            data = b"".join(
                reference.message(*r[:1], r.key, r.value, magic=magic, timestamp=r.timestamp) for r in items
            )
        else:
            data = reference.wrapper(items, CODECS.index(codec), magic=magic)
        batches = list(decode_batches(data))
        assert len(batches) == (6 if codec == "none" else 1)
        found = [r for one in batches for r in one]
        times = [r.timestamp if magic else -1 for r in items]
        assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
            (r.offset, time, r.key, r.value) for r, time in zip(items, times, strict=True)
        ]
        for one in batches:
            assert (one.producer_id, one.producer_epoch, one.base_sequence, one.partition_leader_epoch) == (-1,) * 4
            assert one.timestamp_type == ("CreateTime" if magic else "NoTimestampType")


def test_the_checksums_of_kafkas_own_batches() -> None:
    """MemoryRecordsTest.testChecksum, for what no codec library decides."""
    items = [Rec(0, 283843, b"key1", b"value1"), Rec(1, 1234, b"key2", b"value2")]
    for codec, crc in (("none", 3851219455), ("lz4", 2745969314)):
        made = encode_batch([(r.key, r.value, r.timestamp, None) for r in items], compression=codec)
        assert only(made).crc == crc
    for magic, crc in ((0, 1978725405), (1, 109425508)):
        data = reference.message(0, b"key1", b"value1", magic=magic, timestamp=283843)
        assert only(data).crc == crc


def test_a_batch_is_there_once_its_last_byte_is() -> None:
    """MemoryRecordsTest.testNextBatchSize, FileRecordsTest.testIteratorWithLimits,
    FileLogInputStreamTest.testBatchIterationIncompleteBatch,
    ByteBufferLogInputStreamTest.iteratorRaisesOnTooSmallRecords.
    """
    first, second = bytes(three()), bytearray(three(base_offset=3))
    for end in (1, 12, 17, len(first) - 1):
        assert list(decode_batches(first[:end])) == []
    assert [one.base_offset for one in decode_batches(first + second)] == [0, 3]
    assert [one.base_offset for one in decode_batches(first + second[:-13])] == [0]
    for at, value in ((16, 10), (11, 9)):
        wrong = bytearray(second)
        if at == 11:
            wrong[8:11] = bytes(3)
        wrong[at] = value
        batches = iter(decode_batches(first + wrong))
        assert next(batches).base_offset == 0
        with pytest.raises(CorruptRecordError) as caught:
            next(batches)
        assert caught.value.position == len(first)


# Records of format 2


def body(*fields: bytes, size: int = 100) -> bytes:
    """A record that claims `size` bytes and is filled up with zeros to them: attributes 0, deltas 2 and 1, `fields`."""
    data = b"\0" + varint(2) + varint(1) + b"".join(fields)
    return varint(size) + data.ljust(size, b"\0")


HEADERS = [reference.field(b"h") + reference.field(b"v")] * 3
MALFORMED = {
    "testBasicSerdeInvalidHeaderCountTooLow": reference.record(2, 1, b"k", b"v", [(b"h", b"v")] * 3).replace(
        varint(3) + HEADERS[0], varint(2) + HEADERS[0], 1
    ),
    "testInvalidKeySize": body(varint(105)),
    "testInvalidValueSize": body(varint(-1), varint(105)),
    "testInvalidNumHeadersPartial": body(varint(-1), varint(-1), varint(-1)),
    "testInvalidHeaderKey": body(varint(-1), varint(-1), varint(1), varint(105)),
    "testNullHeaderKey": body(varint(-1), varint(-1), varint(1), varint(-1)),
    "testInvalidHeaderValue": body(varint(-1), varint(-1), varint(1), varint(1), b"a", varint(105)),
    "testUnderflowReadingTimestamp": varint(1) + b"\0",
    "testUnderflowReadingVarlong": varint(2) + b"\0" + varint(156)[:1],
    "testInvalidVarlong": varint(100) + (b"\0" + b"\xff" * 10 + b"\x01").ljust(100, b"\0"),
    "testInvalidSizeOfBodyInBytes": varint(10),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("codec", [reference.NONE, reference.GZIP])
def test_a_malformed_record_is_corruption(case: str, codec: int) -> None:
    """DefaultRecordTest.testBasicSerdeInvalidHeaderCountTooLow, DefaultRecordTest.testInvalidKeySize,
    DefaultRecordTest.testInvalidKeySizePartial, DefaultRecordTest.testInvalidValueSize,
    DefaultRecordTest.testInvalidValueSizePartial, DefaultRecordTest.testInvalidNumHeadersPartial,
    DefaultRecordTest.testInvalidHeaderKey, DefaultRecordTest.testInvalidHeaderKeyPartial,
    DefaultRecordTest.testNullHeaderKey, DefaultRecordTest.testInvalidHeaderValue,
    DefaultRecordTest.testInvalidHeaderValuePartial, DefaultRecordTest.testUnderflowReadingTimestamp,
    DefaultRecordTest.testUnderflowReadingVarlong, DefaultRecordTest.testInvalidVarlong,
    DefaultRecordTest.testInvalidSizeOfBodyInBytes. There is one way to decode: what Kafka calls partial is no other.
    """
    data = reference.batch(reference.compress(codec, MALFORMED[case]), 1, attributes=codec)
    with pytest.raises(CorruptRecordError):
        list(only(data))


# Varints


LADDER = {
    0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "80 01", -65: "81 01", 8191: "fe 7f", -8192: "ff 7f",
    8192: "80 80 01", -8193: "81 80 01", 1048575: "fe ff 7f", -1048576: "ff ff 7f", 1048576: "80 80 80 01",
    134217727: "fe ff ff 7f", 134217728: "80 80 80 80 01", INT32: "fe ff ff ff 0f", -INT32 - 1: "ff ff ff ff 0f",
    17179869184: "80 80 80 80 80 01", INT64: "fe ff ff ff ff ff ff ff ff 01",
    -INT64 - 1: "ff ff ff ff ff ff ff ff ff 01",
}  # fmt: skip


@pytest.mark.parametrize("number", LADDER)
def test_varints_are_zigzag_in_seven_bit_groups(number: int) -> None:
    """ByteUtilsTest.testVarintSerde, ByteUtilsTest.testVarlongSerde, ByteUtilsTest.testSizeOfVarlong."""
    form = bytes.fromhex(LADDER[number])
    record_ = b"\0" + form + b"\0\x01\x01\0"
    [found] = only(reference.batch(varint(len(record_)) + record_, 1, base_timestamp=0))
    assert found.timestamp == number
    if number >= 0:
        written = encode_batch([(None, None, 0, None), (None, None, number, None)])
        assert varint(len(form) + 5) + b"\0" + form + b"\x02\x01\x01\0" == written[61 + 7 :]


UNSIGNED = {
    0: "00", 1: "01", 63: "3f", 64: "40", 8191: "ff3f", 8192: "8040", 1048575: "ffff3f", 2**31 - 1: "ffffffff07",
    2**31: "8080808008", 2**32 - 8192: "80c0ffff0f", 2**32 - 64: "c0ffffff0f", 2**32 - 1: "ffffffff0f",
}  # fmt: skip


@pytest.mark.parametrize("number", [*UNSIGNED, *range(0, 2**32, 7_654_321 * 13)])
def test_unsigned_varints_of_coordinators_records_are_seven_bit_groups(number: int) -> None:
    """ByteUtilsTest.testUnsignedVarintSerde, ByteUtilsTest.testCorrectnessWriteUnsignedVarint,
    ByteUtilsTest.testCorrectnessReadUnsignedVarint, ByteUtilsTest.testSizeOfUnsignedVarint.

    Batches have none. The values in `__consumer_offsets` and `__transaction_state` have them, as lengths and as tags.
    """
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    form = bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
    assert form == unsigned_varint(number) == bytes.fromhex(UNSIGNED.get(number, form.hex()))
    reader = Reader(form + b"\x55")
    assert (reader.unsigned(), reader.take(1)) == (number, b"\x55")


# Formats 0 and 1


@pytest.mark.parametrize(("magic", "timestamp"), list(itertools.product((0, 1), (-1, 0, 1))))
def test_an_old_record_gives_back_what_it_was_made_of_and_a_changed_one_is_found(magic: int, timestamp: int) -> None:
    """LegacyRecordTest.testFields, LegacyRecordTest.testChecksum,
    SimpleLegacyRecordTest.testIsValidWithTooSmallBuffer.
    """
    for key, value in itertools.product((None, b"", b"key", b"k" * 1000), (None, b"", b"value", b"v" * 1000)):
        data = reference.message(0, key, value, magic=magic, timestamp=timestamp)
        one = only(data)
        assert (one.magic, one.compression, one.crc) == (magic, "none", zlib.crc32(data[16:]))
        assert one.timestamp_type == ("CreateTime" if magic else "NoTimestampType")
        assert list(one) == [Record(0, timestamp if magic else -1, key, value)]
        for at in {*range(17, min(len(data), 60)), len(data) - 1}:
            if data[at] != 69:
                changed = bytearray(data)
                changed[at] = 69
                with pytest.raises(CorruptRecordError):
                    list(decode_batches(bytes(changed)))
    with pytest.raises(CorruptRecordError):
        list(decode_batches(struct.pack(">qi", 0, 2) + b"\0" * 16))


def test_a_wrappers_create_time_is_not_its_records() -> None:
    """AbstractLegacyRecordBatchTest.testSetCreateTimeV1, AbstractLegacyRecordBatchTest.testSetLogAppendTimeV1."""
    inner = b"".join(reference.message(i, b"%d" % i, b"v", timestamp=i + 1) for i in range(3))
    for attributes, times in ((0, [1, 2, 3]), (8, [15, 15, 15])):
        data = reference.message(2, None, reference.compress(1, inner), timestamp=15, attributes=1 | attributes)
        one = only(data)
        assert (one.max_timestamp, one.timestamp_type) == (15, "LogAppendTime" if attributes else "CreateTime")
        assert [r.timestamp for r in one] == times


def test_a_wrapper_below_its_last_record_or_around_nothing_is_corruption() -> None:
    """AbstractLegacyRecordBatchTest.testInvalidWrapperOffsetV1,
    SimpleLegacyRecordTest.testCompressedIterationWithNullValue,
    SimpleLegacyRecordTest.testCompressedIterationWithEmptyRecords.
    """
    items = [Rec(i, i + 1, b"abc"[i : i + 1], b"v") for i in range(3)]
    for data in (
        reference.wrapper(items, 1, offset=1),
        reference.message(1, None, None, attributes=1),
        reference.message(1, None, reference.compress(1, b""), attributes=1),
    ):
        with pytest.raises(CorruptRecordError):
            list(only(data))


# Files


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_time_is_searched_in_every_format(tmp_path: Path, magic: int) -> None:
    """FileRecordsTest.testSearchForTimestamp."""
    path = tmp_path / "log"
    parts = []
    for timestamp, offset, epoch in ((10, 5, 0), (11, 6, 1)):
        if magic == 2:
            record_ = (None, b"foo", timestamp, None)
            parts.append(encode_batch([record_], base_offset=offset, partition_leader_epoch=epoch))
        else:
            parts.append(reference.message(offset, None, b"foo", magic=magic, timestamp=timestamp))
    path.write_bytes(b"".join(parts))
    fd = fs.open(path)
    try:
        found = [find_timestamp(fd, 0, fs.size(fd), timestamp) for timestamp in (9, 10, 11, 12)]
    finally:
        fs.close(fd)
    epochs = (0, 1) if magic == 2 else (-1, -1)
    first, second = (10, 5, epochs[0]), (11, 6, epochs[1])
    assert found == ([first, first, second, None] if magic else [None] * 4)


@pytest.mark.parametrize("at", [0, INT32])
def test_nothing_is_found_in_an_empty_stretch(tmp_path: Path, at: int) -> None:
    """FileLogInputStreamTest.testNextBatchSelectionWithMaxedParams,
    FileLogInputStreamTest.testNextBatchSelectionWithZeroedParams.
    """
    path = tmp_path / "log"
    path.write_bytes(b"")
    fd = fs.open(path)
    try:
        assert find_batch(fd, at, at, 0) is None
        assert last_offset(fd, at, at) is None
        assert find_timestamp(fd, at, at, 0) is None
        assert (scan(fd, at, at, 0).batches, scan(fd, at, at, 0).stop) == (0, "end")
    finally:
        fs.close(fd)


def test_the_size_of_a_segment_is_that_of_its_file_after_every_append(tmp_path: Path) -> None:
    """FileRecordsTest.testFileSize, FileRecordsTest.testRead, FileLogInputStreamTest.testWriteTo."""
    with kstore.Log.open(tmp_path / "a-0") as log:
        written = b""
        for i in range(20):
            log.append(b"%d" % i * i, timestamp=i, leader_epoch=0)
            [segment] = log.segments
            assert segment.size_bytes == Path(segment.path).stat().st_size
        written = Path(log.segments[0].path).read_bytes()
        for max_bytes in (len(written), len(written) + 1, INT32):
            assert log.fetch(0, max_bytes).records == written
        whole = log.fetch(1, INT32)
        assert written[whole.position :] == whole.records
        assert log.fetch(1, 1).records == written[whole.position :][: next(decode_batches(whole.records)).size_bytes]
