"""Formats v0 and v1 on their way into a log (SEMANTICS 1C, FORMAT 5)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KStoreError,
)
from tests.support.batches import (
    APPEND_TIME,
    NOW,
    legacy,
    wrapper,
)
from tests.support.validating import (
    LEGACY_COMPRESSED,
    contents,
    follow,
    header,
    lead,
)

# ---- formats v0 and v1


@pytest.mark.parametrize("codec", LEGACY_COMPRESSED)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_wrapper_becomes_a_v2_batch_of_the_same_codec(codec: str, magic: int, timestamp_type: str) -> None:
    """SEMANTICS 1.12, 1.20; LogValidatorTest.testCreateTimeUpConversionV1ToV2,
    LogValidatorTest.checkCreateTimeUpConversionFromV0,
    LogValidatorTest.testOffsetAssignmentAfterUpConversionV0ToV2Compressed,
    LogValidatorTest.testOffsetAssignmentAfterUpConversionV1ToV2Compressed,
    LogValidatorTest.checkLogAppendTimeWithRecompression, LogValidatorTest.testAbsoluteOffsetAssignmentCompressed,
    LogValidatorTest.testRelativeOffsetAssignmentCompressedV1"""
    inner = [legacy(magic, v, offset=i, timestamp=NOW) for i, v in enumerate([b"hello", b"there", b"beautiful"])]
    out = lead(wrapper(magic, inner, codec=codec), next_offset=1234567, now_ms=NOW + 1,
               message_timestamp_type=timestamp_type)  # fmt: skip
    assert out.rebuilt
    batch = header(out.data)
    own = NOW if magic else -1
    shown = own if timestamp_type == "CreateTime" else NOW + 1
    assert contents(out.data) == [
        (1234567 + i, shown, None, v) for i, v in enumerate([b"hello", b"there", b"beautiful"])
    ]
    assert (batch.compression, batch.timestamp_type, batch.base_timestamp) == (codec, timestamp_type, own)
    assert (batch.max_timestamp, out.max_timestamp) == (shown, shown)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("codec", LEGACY_COMPRESSED)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_inside_a_wrapper_has_a_crc_of_its_own(codec: str, magic: int) -> None:
    """SEMANTICS 1.16(2); LogValidatorTest.checkInvalidChecksum"""
    inner = [legacy(magic, offset=0), broken_legacy_crc(legacy(magic, offset=1))]
    with pytest.raises(CorruptRecordError, match="CRC"):
        lead(wrapper(magic, inner, codec=codec))


def broken_legacy_crc(data: bytes) -> bytes:
    return data[:12] + bytes([data[12] ^ 0xFF]) + data[13:]


def test_an_inner_crc_is_looked_at_only_after_the_magic_and_before_the_contents() -> None:
    """SEMANTICS 1.16"""
    with pytest.raises(InvalidRecordError) as caught:
        lead(wrapper(0, [broken_legacy_crc(legacy(1))]))
    assert len(caught.value.record_errors) == 1
    with pytest.raises(CorruptRecordError):
        lead(wrapper(1, [legacy(1, timestamp=-9), broken_legacy_crc(legacy(1, timestamp=-9))]),
             message_timestamp_before_max_ms=0)  # fmt: skip


def test_a_message_of_another_magic_inside_a_wrapper_is_an_error_of_that_record() -> None:
    """SEMANTICS 1.16(2); LogValidatorTest.testInvalidRecordExceptionHasBatchIndex"""
    with pytest.raises(InvalidRecordError) as caught:
        lead(wrapper(0, [legacy(1, offset=i) for i in range(20)]))
    assert type(caught.value) is InvalidRecordError
    assert [index for index, _ in caught.value.record_errors] == list(range(20))


def test_a_timestamp_outranks_a_magic() -> None:
    """SEMANTICS 1.18; LogValidatorTest.testBatchWithInvalidRecordsAndInvalidTimestamp"""
    inner = [legacy(1, timestamp=1200), *(legacy(0, offset=n) for n in (30, 60, 90, 120, 150))]
    with pytest.raises(InvalidTimestampError) as caught:
        lead(wrapper(1, inner, offset=150), now_ms=0, message_timestamp_before_max_ms=1000,
             message_timestamp_after_max_ms=1000)  # fmt: skip
    assert len(caught.value.record_errors) == 6


def test_under_a_log_append_time_wrapper_every_message_has_the_wrappers_time() -> None:
    """FORMAT 5.1, SEMANTICS 1.17"""
    inner = [legacy(1, timestamp=5), legacy(1, timestamp=6, offset=1)]
    claim = wrapper(1, inner, timestamp=NOW, attributes=APPEND_TIME)
    out = lead(claim, message_timestamp_before_max_ms=0)
    assert [r[1] for r in contents(out.data)] == [NOW, NOW]
    assert header(out.data).timestamp_type == "CreateTime"
    with pytest.raises(InvalidTimestampError):
        lead(claim, message_timestamp_type="LogAppendTime")
    with pytest.raises(InvalidTimestampError):
        lead(legacy(1, attributes=APPEND_TIME), message_timestamp_type="LogAppendTime")


def nested() -> bytes:
    return wrapper(1, [wrapper(1, [legacy(1)])])


WRAPPERS: dict[str, tuple[Callable[[], bytes], type[KStoreError]]] = {
    "nothing inside": (lambda: wrapper(1, b""), InvalidRecordError),
    "only a part of a message": (lambda: wrapper(1, legacy(1)[:-1]), InvalidRecordError),
    "a wrapper inside": (nested, InvalidRecordError),
    "a null value": (lambda: legacy(1, None, attributes=1), InvalidRecordError),
    "zstd": (lambda: wrapper(1, [legacy(1)], codec="zstd"), InvalidRecordError),
    "no frame": (lambda: legacy(1, b"no frame of gzip", attributes=1), CorruptRecordError),
    "a size of 13 inside": (lambda: wrapper(1, struct.pack(">qi", 0, 13) + bytes(13)), CorruptRecordError),
    "an offset below the last inside": (
        lambda: wrapper(1, [legacy(1, offset=0), legacy(1, offset=5)], offset=4), InvalidRecordError,
    ),
    "a key past the end": (
        lambda: legacy_with_fields(1, struct.pack(">i", 99) + b"abc" + struct.pack(">i", -1)), InvalidRecordError,
    ),
    "a value past the end": (
        lambda: legacy_with_fields(1, struct.pack(">ii", -1, 2**31 - 1) + b"abc"), InvalidRecordError,
    ),
    "no room for a value's length": (
        lambda: legacy_with_fields(1, struct.pack(">i", 2) + b"abcde"), InvalidRecordError,
    ),
    "a message of 21 bytes": (lambda: legacy_with_fields(1, b"\xff" * 7), CorruptRecordError),
    "a message of 14 bytes": (lambda: legacy_with_fields(1, b""), CorruptRecordError),
    "a message of 21 bytes inside": (
        lambda: wrapper(1, [legacy_with_fields(1, b"\xff" * 7)]), InvalidRecordError,
    ),
    "a length inside that also breaks the CRC": (
        lambda: wrapper(1, [legacy(1)[:-5] + b"\x7f" + legacy(1)[-4:]]), CorruptRecordError,
    ),
}  # fmt: skip


def legacy_with_fields(magic: int, fields: bytes) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"") + fields
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("case", WRAPPERS)
def test_an_odd_wrapper_is_refused_by_name(case: str) -> None:
    """FORMAT 5, 5.1"""
    make, error = WRAPPERS[case]
    with pytest.raises(error):
        lead(make())


def test_a_follower_refuses_a_version_1_message_that_no_reader_could_read() -> None:
    """Stricter than Kafka, whose readers fail on it."""
    with pytest.raises(CorruptRecordError, match="33 bytes"):
        follow(legacy_with_fields(1, b"\xff" * 7))
    assert follow(legacy(1, None)).valid_bytes == 34
    assert follow(legacy(0, None)).valid_bytes == 26


def test_a_missing_key_is_named_before_a_value_that_is_too_long() -> None:
    """SEMANTICS 1.16: fields are taken out once the batch's records have passed."""
    data = legacy_with_fields(1, struct.pack(">ii", -1, 99))
    with pytest.raises(InvalidRecordError) as caught:
        lead(data, cleanup_policy="compact")
    assert len(caught.value.record_errors) == 1
    with pytest.raises(InvalidRecordError) as caught:
        lead(data)
    assert caught.value.record_errors == ()
    with pytest.raises(InvalidTimestampError):
        lead(data + legacy(1, timestamp=NOW + 3_600_001), compression_type="gzip")


def test_a_torn_message_at_the_end_of_a_wrapper_is_left_out() -> None:
    """FORMAT 5.1"""
    out = lead(wrapper(1, legacy(1, b"a") + legacy(1, b"b")[:-1], offset=0))
    assert [r[3] for r in contents(out.data)] == [b"a"]


def test_a_wrapper_at_offset_0_may_hold_any_offsets() -> None:
    """FORMAT 5.1: the special case of some clients"""
    out = lead(wrapper(1, [legacy(1, offset=0), legacy(1, offset=5)], offset=0), next_offset=9)
    assert [r[0] for r in contents(out.data)] == [9, 10]
