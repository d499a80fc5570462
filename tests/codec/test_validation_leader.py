"""What a leader refuses, changes and writes anew (SEMANTICS 1C), rule by rule."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from kstore.codec import compression, validation
from kstore.codec.validation import analyze
from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from tests.support.batches import (
    APPEND_TIME,
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    NOW,
    TRANSACTIONAL,
    legacy,
    messages_of,
    record,
    resealed,
    v2,
    varint,
    wrapper,
)
from tests.support.validating import (
    COMPRESSED,
    LEGACY_COMPRESSED,
    LONG_MAX,
    MARKER,
    ONE,
    THREE,
    TWO,
    contents,
    header,
    lead,
)

# ---- SEMANTICS 1.9, 1.19: in place


def test_an_honest_batch_changes_in_base_offset_and_epoch_only() -> None:
    """SEMANTICS 1.9, 1.19; LogValidatorTest.testRelativeOffsetAssignmentNonCompressedV2"""
    out = lead(THREE, next_offset=1234567, leader_epoch=5)
    assert bytes(out.data) == struct.pack(">qii", 1234567, len(THREE) - 12, 5) + THREE[16:]
    assert (out.first_offset, out.last_offset, out.max_timestamp) == (1234567, 1234569, NOW)
    assert (out.log_append_time, out.rebuilt) == (-1, False)
    assert [r[0] for r in contents(out.data)] == [1234567, 1234568, 1234569]


def test_what_is_checked_is_what_is_stored() -> None:
    """A buffer that others may write to is copied first; one that cannot change is not."""
    sent = bytearray(THREE)
    analysis = analyze(sent)
    sent[70] ^= 0xFF
    assert bytes(analysis.data) == THREE
    assert analyze(THREE).data.obj is THREE
    assert bytes(analyze(memoryview(b"".join(bytes((b, 0)) for b in THREE))[::2]).data) == THREE


def test_the_callers_buffer_is_never_changed() -> None:
    """SEMANTICS 1.18, 1.19"""
    sent = bytearray(v2(messages_of([b"x"]), max_timestamp=5))
    before = bytes(sent)
    out = lead(sent, next_offset=9, message_timestamp_type="LogAppendTime", now_ms=NOW + 1)
    assert bytes(sent) == before
    assert bytes(out.data) != before


@pytest.mark.parametrize("codec", CODECS)
def test_the_payload_is_untouched_when_the_codec_stays(codec: str) -> None:
    """SEMANTICS 1.12; LogValidatorTest.checkCompressed, LogValidatorTest.checkNonCompressed,
    LogValidatorTest.testRelativeOffsetAssignmentCompressedV2"""
    data = v2(messages_of([b"a", b"b", b"c"], timestamps=[NOW - 1, NOW + 1, NOW]), base_timestamp=NOW, codec=codec,
              max_timestamp=NOW + 1, producer_id=1324, producer_epoch=10, base_sequence=984,
              attributes=TRANSACTIONAL)  # fmt: skip
    for setting in ("producer", "uncompressed" if codec == "none" else codec):
        out = lead(data, next_offset=1234567, compression_type=setting)
        assert not out.rebuilt
        assert bytes(out.data[16:]) == data[16:]
        assert out.max_timestamp == NOW + 1
        assert [r[0] for r in contents(out.data)] == [1234567, 1234568, 1234569]


@pytest.mark.parametrize(("codec", "sent", "wanted"), [("gzip", 9, 1), ("lz4", 9, 17), ("zstd", 1, 19)])
def test_another_level_is_no_reason_to_compress_again(codec: str, sent: int, wanted: int) -> None:
    """SEMANTICS 1.12; LogValidatorTest.testDifferentLevelDoesNotCauseRecompression"""
    data = v2(messages_of([b"a" * 500, b"b" * 500]), codec=codec, level=sent)
    out = lead(data, compression_type=codec, **{f"compression_{codec}_level": wanted})
    assert bytes(out.data[16:]) == data[16:]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed", [-1, 0, NOW - 1, NOW + 1, NOW + 3, LONG_MAX])
def test_the_headers_largest_timestamp_becomes_the_records(codec: str, claimed: int) -> None:
    """SEMANTICS 1.19: whatever the producer claimed; the CRC is new only when it was wrong."""
    data = v2(messages_of([b"a", b"b"], timestamps=[NOW + 2, NOW - 4]), codec=codec, base_timestamp=NOW,
              max_timestamp=claimed)  # fmt: skip
    out = lead(data, now_ms=NOW)
    assert bytes(out.data) == resealed(data, leader_epoch=0, max_timestamp=NOW + 2)
    assert out.max_timestamp == NOW + 2


def test_a_batch_without_timestamps_has_none() -> None:
    """SEMANTICS 1.17, 1.19; UnifiedLogTest.testAppendWithNoTimestamp"""
    out = lead(v2(base_timestamp=-1))
    assert (out.max_timestamp, header(out.data).max_timestamp) == (-1, -1)
    assert bytes(out.data[16:]) == v2(base_timestamp=-1)[16:]
    assert header(lead(v2(base_timestamp=-1, max_timestamp=77)).data).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped_on_the_header_alone(codec: str) -> None:
    """SEMANTICS 1.19; LogValidatorTest.checkLogAppendTimeWithoutRecompression,
    LogValidatorTest.checkLogAppendTimeNonCompressed"""
    data = v2(messages_of([b"a", b"b"], timestamps=[1234, 1235]), codec=codec, base_timestamp=NOW, max_timestamp=1235)
    out = lead(data, now_ms=NOW + 7, message_timestamp_type="LogAppendTime")
    expected = resealed(data, leader_epoch=0, attributes=CODECS.index(codec) | APPEND_TIME, max_timestamp=NOW + 7)
    assert bytes(out.data) == expected
    assert (out.max_timestamp, out.log_append_time, out.rebuilt) == (NOW + 7, NOW + 7, False)
    assert {r[1] for r in contents(out.data)} == {NOW + 7}
    assert header(out.data).base_timestamp == NOW


def test_unknown_attribute_bits_go_when_the_timestamp_changes_and_stay_when_not() -> None:
    """SEMANTICS 1.19, FORMAT 2.2"""
    odd = v2(attributes=-0x8000 | 0x7F80 | DELETE_HORIZON | TRANSACTIONAL, producer_id=1, producer_epoch=0,
             base_sequence=0)  # fmt: skip
    assert bytes(lead(odd).data[16:]) == odd[16:]
    for out in (lead(resealed(odd, max_timestamp=3)), lead(odd, message_timestamp_type="LogAppendTime")):
        assert header(out.data).attributes & ~APPEND_TIME == DELETE_HORIZON | TRANSACTIONAL


def test_the_offset_counter_may_not_run_past_the_largest_offset() -> None:
    assert lead(THREE, next_offset=LONG_MAX - 3).last_offset == LONG_MAX - 1
    with pytest.raises(InvalidRecordError, match="largest"):
        lead(THREE, next_offset=LONG_MAX - 2)


@pytest.mark.parametrize("leader_epoch", [-1, 2**31])
def test_a_leader_epoch_that_no_header_holds_is_the_callers_mistake(leader_epoch: int) -> None:
    """SEMANTICS 1.26"""
    with pytest.raises(ValueError, match="leader epoch"):
        lead(ONE, leader_epoch=leader_epoch)
    assert header(lead(ONE, leader_epoch=2**31 - 1).data).partition_leader_epoch == 2**31 - 1


# ---- SEMANTICS 1.11: one batch


@pytest.mark.parametrize(
    ("source", "setting"),
    [("none", "uncompressed"), ("none", "gzip"), ("gzip", "uncompressed"), ("gzip", "gzip"), ("zstd", "gzip")],
)
def test_two_v2_batches_are_no_append(source: str, setting: str) -> None:
    """SEMANTICS 1.11; LogValidatorTest.checkOnlyOneBatch"""
    with pytest.raises(InvalidRecordError, match="2 batches"):
        lead(v2(codec=source) + v2(messages_of([b"a", b"b"]), codec=source), compression_type=setting)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_COMPRESSED)
def test_two_legacy_batches_of_which_one_is_compressed_are_no_append(magic: int, codec: str) -> None:
    """SEMANTICS 1.11; LogValidatorTest.checkOnlyOneBatch"""
    packed = wrapper(magic, [legacy(magic)], codec=codec)
    for data in (packed + packed, legacy(magic) + packed, packed + legacy(magic)):
        with pytest.raises(InvalidRecordError, match="2 batches"):
            lead(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("setting", ["uncompressed", "producer", "gzip"])
def test_uncompressed_legacy_messages_become_one_v2_batch(magic: int, setting: str) -> None:
    """SEMANTICS 1.11, 1.20; LogValidatorTest.checkAllowMultiBatch,
    LogValidatorTest.testAbsoluteOffsetAssignmentNonCompressed,
    LogValidatorTest.testRelativeOffsetAssignmentNonCompressedV1"""
    data = b"".join(legacy(magic, value, key=b"k", timestamp=NOW + i, offset=i) for i, value in enumerate([b"a", None]))
    out = lead(data, next_offset=1234567, leader_epoch=3, compression_type=setting)
    assert out.rebuilt
    timestamps = (NOW, NOW + 1) if magic else (-1, -1)
    assert contents(out.data) == [(1234567, timestamps[0], b"k", b"a"), (1234568, timestamps[1], b"k", None)]
    batch = header(out.data)
    assert (batch.magic, batch.partition_leader_epoch, batch.timestamp_type) == (2, 3, "CreateTime")
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert batch.compression == ("gzip" if setting == "gzip" else "none")
    assert out.max_timestamp == batch.max_timestamp == timestamps[1]


def test_a_v2_batch_after_a_legacy_one_is_refused_when_its_turn_comes() -> None:
    """SEMANTICS 1.14: the first batch's records are judged before the second batch's magic."""
    with pytest.raises(InvalidRecordError, match="magic 2 after one of magic 1"):
        lead(legacy(1) + ONE)
    with pytest.raises(InvalidTimestampError):
        lead(legacy(1, timestamp=NOW + 3_600_001) + ONE)


def test_legacy_records_are_judged_batch_by_batch() -> None:
    """SEMANTICS 1.16, 1.18: each uncompressed message is a batch, so one error and index 0."""
    with pytest.raises(InvalidRecordError) as caught:
        lead(legacy(1, key=b"k") + legacy(1) + legacy(1, timestamp=NOW + 3_600_001), cleanup_policy="compact")
    assert type(caught.value) is InvalidRecordError
    assert [index for index, _ in caught.value.record_errors] == [0]


# ---- SEMANTICS 1.14: what a header may claim


@pytest.mark.parametrize(
    ("delta", "count"), [(0, 3), (15, 3), (-3, 3), (2, 2), (2, 4), (-1, 0), (0, 0), (5, 0), (-2, -1), (2**31 - 1, 3)]
)
@pytest.mark.parametrize("origin", ["client", "coordinator"])
def test_the_offsets_and_the_count_of_a_header_agree(delta: int, count: int, origin: validation.Origin) -> None:
    """SEMANTICS 1.14; LogValidatorTest.testInconsistentCountAndOffset. Of coordinators Kafka does not ask it."""
    with pytest.raises(InvalidRecordError, match="count"):
        lead(resealed(THREE, last_offset_delta=delta, count=count), origin=origin)


def test_an_agreeing_header_is_accepted() -> None:
    """LogValidatorTest.testRecordBatchWithCountOverrides"""
    assert lead(resealed(THREE, last_offset_delta=2, count=3)).last_offset == 2


@pytest.mark.parametrize(("delta", "count"), [(5, 6), (1, 2), (3, 4), (2**31 - 2, 2**31 - 1)])
@pytest.mark.parametrize("codec", CODECS)
def test_a_header_must_agree_with_its_records(delta: int, count: int, codec: str) -> None:
    """SEMANTICS 1.15; LogValidatorTest.testUnmatchedNumberOfRecords"""
    data = resealed(v2(messages_of([b"a", b"b", b"c"]), codec=codec), last_offset_delta=delta, count=count)
    with pytest.raises(InvalidRecordError):
        lead(data)


@pytest.mark.parametrize(("source", "setting"), list(product(CODECS, ["uncompressed", *COMPRESSED])))
def test_a_batch_without_records_is_refused(source: str, setting: str) -> None:
    """SEMANTICS 1.14; LogValidatorTest.testBatchWithoutRecordsNotAllowed"""
    data = v2(b"", count=0, last_offset_delta=5, attributes=TRANSACTIONAL | CODECS.index(source), producer_id=1324,
              producer_epoch=10, base_sequence=984)  # fmt: skip
    with pytest.raises(InvalidRecordError):
        lead(data, compression_type=setting)


@pytest.mark.parametrize(("source", "setting"), list(product(CODECS, ["uncompressed", *COMPRESSED])))
def test_a_producer_id_needs_a_sequence(source: str, setting: str) -> None:
    """SEMANTICS 1.14; LogValidatorTest.checkInvalidSequence"""
    for sequence in (-2, -1):
        with pytest.raises(InvalidRecordError, match=f"base sequence {sequence}"):
            lead(v2(codec=source, producer_id=1234, producer_epoch=0, base_sequence=sequence), compression_type=setting)
    assert lead(v2(codec=source, producer_id=1234, producer_epoch=0, base_sequence=0), compression_type=setting)


def test_a_coordinator_in_place_needs_no_sequence() -> None:
    """SEMANTICS 1.14: clients only."""
    assert not lead(v2(producer_id=1, producer_epoch=0), origin="coordinator").rebuilt


def test_clients_write_no_control_batches() -> None:
    """SEMANTICS 1.14; LogValidatorTest.testControlRecordsNotAllowedFromClients"""
    with pytest.raises(InvalidRecordError, match="control"):
        lead(MARKER)
    with pytest.raises(InvalidRecordError, match="control"):
        lead(v2(attributes=CONTROL))


@pytest.mark.parametrize("setting", ["producer", "uncompressed", *COMPRESSED])
def test_a_coordinators_marker_stays_uncompressed(setting: str) -> None:
    """SEMANTICS 1.12; LogValidatorTest.testControlRecordsNotCompressed"""
    out = lead(MARKER, origin="coordinator", next_offset=7, compression_type=setting, cleanup_policy="compact")
    assert not out.rebuilt
    assert bytes(out.data[16:]) == MARKER[16:]
    assert (out.first_offset, out.last_offset) == (7, 7)


def test_a_coordinators_base_offset_is_replaced() -> None:
    """SEMANTICS 1.1, 1.19"""
    out = lead(v2(messages_of([b"a", b"b"]), base_offset=40), origin="coordinator", next_offset=7)
    assert (out.first_offset, out.last_offset, header(out.data).base_offset) == (7, 8, 7)


# ---- SEMANTICS 1.13: offsets inside the batch


@pytest.mark.parametrize("deltas", [(0, 0, 0), (2, 1, 0), (0, 2, 2)])
def test_offsets_in_no_order_inside_an_uncompressed_batch_are_not_looked_at(deltas: tuple[int, ...]) -> None:
    """SEMANTICS 1.13"""
    data = v2([record(d) for d in deltas])
    out = lead(data)
    assert not out.rebuilt
    assert bytes(out.data[16:]) == data[16:]


@pytest.mark.parametrize("origin", ["client", "coordinator"])
@pytest.mark.parametrize("deltas", [(0, 2, 3), (1, 2, 3), (0, 1, -1), (1000, 1, 2), (-5, 1, 2), (0, 1, 2**31 - 1)])
def test_a_record_outside_of_its_uncompressed_batch_is_refused(
    deltas: tuple[int, ...], origin: validation.Origin
) -> None:
    """SEMANTICS 1.13, otherwise than Kafka: no reader could find it (`record-outside-its-batch`)."""
    outside = next(d for d in deltas if not 0 <= d <= 2)
    with pytest.raises(InvalidRecordError, match=f"offset delta {outside} in a batch whose last offset delta is 2"):
        lead(v2([record(d) for d in deltas]), origin=origin)


@pytest.mark.parametrize("deltas", [(0, 0, 0), (0, 2, 3), (1, 2, 3), (2, 1, 0), (0, 1, -1)])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_wrong_offsets_inside_a_compressed_batch_are_put_right(deltas: tuple[int, ...], codec: str) -> None:
    """SEMANTICS 1.13"""
    data = v2([record(d, value=b"%d" % i) for i, d in enumerate(deltas)], codec=codec)
    out = lead(data, next_offset=50)
    assert out.rebuilt
    assert contents(out.data) == [(50 + i, NOW, None, b"%d" % i) for i in range(3)]
    assert header(out.data).compression == codec


def test_wrong_offsets_inside_do_not_excuse_a_wrong_header() -> None:
    """LogValidatorTest.testNonIncreasingOffsetRecordBatchHasMetricsLogged"""
    for codec in CODECS:
        with pytest.raises(InvalidRecordError, match="4 offsets and a count of 3"):
            lead(v2([record(0), record(2), record(3)], codec=codec, last_offset_delta=3))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_twenty_records_that_all_claim_offset_0(magic: int) -> None:
    """LogValidatorTest.testValidationOfBatchesWithNonSequentialInnerOffsets"""
    if magic == 2:
        with pytest.raises(InvalidRecordError):
            lead(resealed(v2([record()] * 20, codec="gzip"), last_offset_delta=0))
    else:
        out = lead(wrapper(magic, [legacy(magic)] * 20, offset=0), next_offset=0)
        assert [r[0] for r in contents(out.data)] == list(range(20))


# ---- SEMANTICS 1.15: the structure of records

BROKEN: dict[str, tuple[bytes, int]] = {
    "fewer records than declared": (TWO[0], 2),
    "bytes after the last record": (TWO[0] + TWO[1] + b"\0", 2),
    "a record more than declared": (TWO[0] + TWO[1], 1),
    "a record past the end of the batch": (record(length=8), 1),
    "a length of minus one": (b"\x01", 1),
    "a body longer than its fields": (record(tail=b"x"), 1),
    "a body shorter than its fields": (record(length=6) + b"\0", 1),
    "a negative header count": (record(headers_count=-1), 1),
    "more headers than bytes": (record(headers_count=9), 1),
    "a null header key": (record(headers=[(None, b"x")]), 1),
    "a varint of six bytes": (b"\x80" * 5 + b"\x00" + b"x" * 100, 1),
    "an eleven-byte timestamp": (varint(16) + b"\0" + b"\x80" * 10 + b"\0\0\x01\x01\0", 1),
    "an empty record": (b"\x00", 1),
    "a key past the end": (varint(7) + b"\0\0\0" + varint(50) + b"abc", 1),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("setting", ["producer", "uncompressed", "snappy"])
def test_a_malformed_record_is_invalid(fault: str, codec: str, setting: str) -> None:
    """SEMANTICS 1.15, on each path"""
    section, count = BROKEN[fault]
    with pytest.raises(InvalidRecordError) as caught:
        lead(v2(section, count=count, codec=codec), compression_type=setting)
    assert caught.value.record_errors == ()


def test_structure_comes_before_contents() -> None:
    """SEMANTICS 1.15, 1.18: record errors are raised once all records have been read."""
    with pytest.raises(InvalidRecordError) as caught:
        lead(v2([record(0, 3_600_001), record(1, tail=b"x")]))
    assert not isinstance(caught.value, InvalidTimestampError)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_that_does_not_decompress_is_corrupt(codec: str) -> None:
    """FORMAT 3.2, check 14"""
    with pytest.raises(CorruptRecordError):
        lead(v2(b"\x01\x02\x03 not a frame of anything", attributes=CODECS.index(codec)))


def test_negative_lengths_of_key_and_value_are_nulls() -> None:
    """FORMAT 3.2, check 6"""
    body = b"\0\0\0" + varint(-7) + varint(-9) + b"\0"
    out = lead(v2(varint(len(body)) + body), compression_type="lz4")
    assert contents(out.data) == [(0, NOW, None, None)]


# ---- SEMANTICS 1.16 to 1.18: the contents of records


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_a_compacted_topic_wants_keys(codec: str, policy: str) -> None:
    """SEMANTICS 1.16(3); UnifiedLogTest.testCompactedTopicConstraints, LogValidatorTest.checkNoKeyCompactedTopic"""
    keys = [b"k", None, b"", None]
    data = v2(messages_of([b"v"] * 4, keys=keys), codec=codec)
    if policy == "delete":
        assert lead(data, cleanup_policy=policy)
        return
    with pytest.raises(InvalidRecordError, match="2 records") as caught:
        lead(data, cleanup_policy=policy)
    assert type(caught.value) is InvalidRecordError
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    assert "key" in caught.value.record_errors[0][1]
    assert lead(v2(messages_of([b"v", None], keys=[b"", b"k"]), codec=codec), cleanup_policy=policy)


@pytest.mark.parametrize(("magic", "codec"), list(product([0, 1], ["none", *LEGACY_COMPRESSED])))
def test_a_compacted_topic_wants_keys_of_old_formats_too(magic: int, codec: str) -> None:
    """LogValidatorTest.checkNoKeyCompactedTopic"""
    inner = [legacy(magic, key=b"k", offset=0), legacy(magic, offset=1)]
    data = b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec)
    with pytest.raises(InvalidRecordError) as caught:
        lead(data, cleanup_policy="compact")
    assert [index for index, _ in caught.value.record_errors] == [0 if codec == "none" else 1]


def sent_at(codec: str, magic: int, *timestamps: int) -> bytes:
    if magic == 2:
        return v2(messages_of([b"v"] * len(timestamps), timestamps=timestamps), codec=codec, base_timestamp=NOW,
                  max_timestamp=max(timestamps))  # fmt: skip
    inner = [legacy(magic, timestamp=t, offset=i) for i, t in enumerate(timestamps)]
    return b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec, timestamp=max(timestamps))


@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (1, "gzip"), *product([2], CODECS)])
def test_timestamps_lie_within_the_limits_and_the_limits_are_inclusive(magic: int, codec: str) -> None:
    """SEMANTICS 1.17; LogValidatorTest.testInvalidCreateTimeNonCompressedV1,
    LogValidatorTest.testInvalidCreateTimeCompressedV1, LogValidatorTest.testInvalidCreateTimeNonCompressedV2,
    LogValidatorTest.testInvalidCreateTimeCompressedV2"""
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 500}
    for timestamp in (NOW - 1000, NOW + 500, -1):
        assert lead(sent_at(codec, magic, timestamp), **limits).last_offset == 0
    for timestamp in (NOW - 1001, NOW + 501, 0, -2, -(2**63), LONG_MAX):
        with pytest.raises(InvalidTimestampError) as caught:
            lead(sent_at(codec, magic, timestamp), **limits)
        assert [index for index, _ in caught.value.record_errors] == [0]
        assert str(timestamp) in caught.value.record_errors[0][1]


def test_every_record_is_examined_before_a_batch_is_refused() -> None:
    """SEMANTICS 1.16; LogValidatorTest.testRecordWithFutureTimestampIsRejected,
    LogValidatorTest.testInvalidTimestampExceptionHasBatchIndex"""
    late = NOW + 65 * 60_000
    with pytest.raises(InvalidTimestampError, match="3 records") as caught:
        lead(sent_at("none", 2, late, late, late), message_timestamp_before_max_ms=86_400_000)
    assert [index for index, _ in caught.value.record_errors] == [0, 1, 2]


def test_by_default_the_past_is_unlimited_and_the_future_an_hour() -> None:
    """SEMANTICS 1.17, 13.14"""
    assert lead(sent_at("none", 2, 0, NOW + 3_600_000)).max_timestamp == NOW + 3_600_000
    with pytest.raises(InvalidTimestampError):
        lead(sent_at("none", 2, NOW + 3_600_001))


def test_a_record_without_timestamp_does_not_hide_an_old_one() -> None:
    with pytest.raises(InvalidTimestampError) as caught:
        lead(sent_at("none", 2, -1, NOW, 5, -1), message_timestamp_before_max_ms=1000)
    assert [index for index, _ in caught.value.record_errors] == [2]


@pytest.mark.parametrize("codec", CODECS)
def test_one_bad_timestamp_makes_it_a_matter_of_timestamps(codec: str) -> None:
    """SEMANTICS 1.16, 1.18: a record's first failing check counts, the batch's error is about time if any is."""
    records = [record(0), record(1, 3_600_001), record(2, 3_600_001, b"k"), record(3, 0, b"k")]
    with pytest.raises(InvalidTimestampError) as caught:
        lead(v2(records, codec=codec), cleanup_policy="compact")
    assert [(i, "key" in why, "timestamp" in why) for i, why in caught.value.record_errors] == [
        (0, True, False), (1, True, False), (2, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
def test_only_a_broker_stamps_log_append_time(codec: str) -> None:
    """SEMANTICS 1.17"""
    claim = v2(messages_of([b"a", b"b"]), codec=codec, attributes=APPEND_TIME)
    with pytest.raises(InvalidTimestampError) as caught:
        lead(claim, message_timestamp_type="LogAppendTime")
    assert [index for index, _ in caught.value.record_errors] == [0, 1]
    with pytest.raises(InvalidTimestampError):
        lead(resealed(claim, max_timestamp=-1))


def test_a_log_append_time_topic_takes_any_timestamp() -> None:
    """SEMANTICS 1.17"""
    for timestamp in (-1, 0, -5, LONG_MAX):
        assert lead(sent_at("none", 2, timestamp), message_timestamp_type="LogAppendTime").max_timestamp == NOW


@pytest.mark.parametrize("codec", CODECS)
def test_on_a_create_time_topic_a_claim_of_log_append_time_is_taken_off(codec: str) -> None:
    """SEMANTICS 1.17: in range means the batch's largest timestamp, since it stands for each record's."""
    claim = v2([record(0, -9), record(1, 5)], codec=codec, attributes=APPEND_TIME, max_timestamp=NOW + 100)
    limits = {"message_timestamp_before_max_ms": 0, "message_timestamp_after_max_ms": 100}
    out = lead(claim, **limits)
    assert bytes(out.data) == resealed(claim, leader_epoch=0, attributes=CODECS.index(codec))
    assert out.max_timestamp == NOW + 100
    with pytest.raises(InvalidTimestampError):
        lead(resealed(claim, max_timestamp=NOW + 101), **limits)


def test_in_place_a_negative_timestamp_within_the_limits_stays() -> None:
    """SEMANTICS 1.17: there is no other check of the sign."""
    out = lead(sent_at("none", 2, -5))
    assert contents(out.data)[0][1] == -5
    assert (out.max_timestamp, header(out.data).max_timestamp) == (-1, -1)


@pytest.mark.parametrize("setting", COMPRESSED)
def test_a_rebuilt_batch_takes_no_negative_timestamp(setting: str) -> None:
    """SEMANTICS 1.20"""
    with pytest.raises(InvalidTimestampError, match="-5"):
        lead(sent_at("none", 2, NOW, -5), compression_type=setting)
    with pytest.raises(InvalidTimestampError, match="-2"):
        lead(legacy(1, timestamp=-2))


def test_a_negative_timestamp_is_met_when_the_record_is_written() -> None:
    """SEMANTICS 1.20: after all checks where anything is compressed, between them where messages are just merged."""
    data = legacy(1, key=b"k", timestamp=-5) + legacy(1, key=None)
    with pytest.raises(InvalidTimestampError, match="-5"):
        lead(data, cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key"):
        lead(data, cleanup_policy="compact", compression_type="gzip")


# ---- SEMANTICS 1.20 to 1.22: rebuilding


@pytest.mark.parametrize(("source", "target"), [(s, t) for s, t in product(CODECS, CODECS) if s != t])
def test_another_codec_means_a_new_batch_with_the_same_contents(source: str, target: str) -> None:
    """SEMANTICS 1.10, 1.12, 1.20; BrokerCompressionTest.testBrokerSideCompression,
    LogValidatorTest.checkRecompression"""
    records = [
        record(0, -1, b"k", b"hello", [(b"h", b"1"), (b"", None), ("é".encode(), b"")]),
        record(1, 1, None, None),
        record(2, 0, b"", b"x" * 300),
    ]
    data = v2(records, codec=source, base_timestamp=NOW, max_timestamp=NOW + 1, producer_id=1324, producer_epoch=10,
              base_sequence=984, attributes=TRANSACTIONAL, leader_epoch=40)  # fmt: skip
    out = lead(data, next_offset=77, leader_epoch=6, compression_type="uncompressed" if target == "none" else target)
    assert out.rebuilt
    batch = header(out.data)
    assert batch.compression == target
    assert (batch.base_offset, batch.last_offset, batch.count, batch.partition_leader_epoch) == (77, 79, 3, 6)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (1324, 10, 984)
    assert batch.is_transactional
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW - 1, NOW + 1)
    before = [tuple(r)[1:] for r in header(data)]
    assert [tuple(r)[1:] for r in batch] == before
    assert out.batch == analyze(out.data, origin="follower").batches[0]


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("setting", ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"])
def test_the_topics_codec_wins_and_producer_keeps_the_producers(source: str, setting: str) -> None:
    """SEMANTICS 1.10; BrokerCompressionTypeTest.testTargetCompressionType"""
    out = lead(v2(messages_of([b"hello", b"there"]), codec=source), compression_type=setting)
    assert header(out.data).compression == {"uncompressed": "none", "producer": source}.get(setting, setting)


def test_a_rebuilt_uncompressed_batch_is_what_an_honest_producer_writes() -> None:
    """SEMANTICS 1.20: consecutive numbers, base timestamp of the first record, minimal varints, no stray bits."""
    odd = v2([record(1, 7, b"a"), record(0, 3, b"b")], codec="gzip", base_timestamp=NOW, max_timestamp=5,
             attributes=0x7F80 | DELETE_HORIZON)  # fmt: skip
    out = lead(odd, next_offset=5, leader_epoch=1, compression_type="uncompressed")
    assert bytes(out.data) == v2([record(0, 0, b"a"), record(1, -4, b"b")], base_offset=5, leader_epoch=1,
                                 base_timestamp=NOW + 7, max_timestamp=NOW + 7)  # fmt: skip


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (9, 17)), ("zstd", (1, 19))])
def test_a_rebuild_compresses_at_the_topics_level(codec: str, levels: tuple[int, int]) -> None:
    """SEMANTICS 1.12; LogValidatorTest.testDifferentCodecCausesRecompression"""
    data = v2(messages_of([b"%d %d %d" % (i, i * i, i * i * i) for i in range(400)]), codec="snappy")
    plain = b"".join(messages_of([b"%d %d %d" % (i, i * i, i * i * i) for i in range(400)]))
    for level in levels:
        out = lead(data, compression_type=codec, **{f"compression_{codec}_level": level})
        assert bytes(out.data[61:]) == compression.compress(CODECS.index(codec), plain, level)


def test_a_rebuild_for_another_reason_uses_the_default_level() -> None:
    """SEMANTICS 1.10: with `producer` the topic's levels do not count."""
    values = [b"%d %d" % (i, i * i) for i in range(400)]
    wrong = v2([record(0, 0, None, v) for v in values], codec="gzip", level=1, last_offset_delta=399)
    out = lead(wrong, compression_type="producer", compression_gzip_level=1)
    assert bytes(out.data[61:]) == compression.compress(1, b"".join(messages_of(values)))


@pytest.mark.parametrize("origin", ["client", "coordinator"])
def test_the_size_limit_binds_a_rebuilt_batch_too(origin: validation.Origin) -> None:
    """SEMANTICS 1.22: inclusive, and only when rebuilt"""
    packed = v2(messages_of([bytes(1000)]), codec="gzip")
    size = len(v2(messages_of([bytes(1000)])))
    assert len(lead(packed, origin=origin, compression_type="uncompressed", max_message_bytes=size).data) == size
    with pytest.raises(RecordTooLargeError, match=f"{size} bytes .* {size - 1}"):
        lead(packed, origin=origin, compression_type="uncompressed", max_message_bytes=size - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_rebuild_under_log_append_time_keeps_the_records_own_times(codec: str) -> None:
    """SEMANTICS 1.20, 1.21"""
    data = v2(messages_of([b"a", b"b"], timestamps=[NOW + 5, NOW + 3]), base_timestamp=NOW, max_timestamp=NOW + 5)
    out = lead(data, now_ms=NOW + 99, compression_type=codec, message_timestamp_type="LogAppendTime")
    batch = header(out.data)
    assert (batch.timestamp_type, batch.base_timestamp, batch.max_timestamp) == ("LogAppendTime", NOW + 5, NOW + 99)
    assert {r[1] for r in contents(out.data)} == {NOW + 99}
    assert (out.max_timestamp, out.log_append_time) == (NOW + 99, NOW + 99)
    assert [r[1] for r in contents(resealed(out.data, attributes=CODECS.index(codec)))] == [NOW + 5, NOW + 3]
