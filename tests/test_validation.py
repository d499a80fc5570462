"""What a leader and a follower accept, refuse and change (SEMANTICS.md 1A to 1D), rule by rule."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from batches import (
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
from hypothesis import given
from hypothesis import strategies as st

from kstore import compression, validation
from kstore._core import RecordBatch, decode_batches
from kstore.config import LogConfig
from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KStoreError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
    UnsupportedCompressionError,
)
from kstore.validation import Analysis, Validated, analyze, validate_follower, validate_leader

LONG_MAX = 2**63 - 1
COMPRESSED = CODECS[1:]
LEGACY_COMPRESSED = CODECS[1:4]


def lead(
    data: bytes,
    *,
    next_offset: int = 0,
    leader_epoch: int = 0,
    now_ms: int = NOW,
    origin: validation.Origin = "client",
    **settings: Any,
) -> Validated:
    """Analyse and validate as `Log.append_batch` does."""
    config = LogConfig(**settings)
    analysis = analyze(data, origin=origin, max_message_bytes=config.max_message_bytes)
    return validate_leader(
        analysis, next_offset=next_offset, leader_epoch=leader_epoch, now_ms=now_ms, config=config, origin=origin
    )


def follow(data: bytes, leader_epoch: int | None = None) -> Analysis:
    return analyze(data, origin="follower", leader_epoch=leader_epoch)


def contents(data: bytes | bytearray) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Offset, timestamp, key and value of every record in whole, sound batches."""
    return [(r.offset, r.timestamp, r.key, r.value) for batch in decode_batches(bytes(data)) for r in batch]


def header(data: bytes | bytearray) -> RecordBatch:
    (batch,) = decode_batches(bytes(data))
    return batch


def broken_crc(data: bytes) -> bytes:
    return data[:17] + bytes([data[17] ^ 1]) + data[18:]


ONE = v2()
THREE = v2(messages_of([b"hello", b"there", b"beautiful"]))


# ---- 1.4: framing


@pytest.mark.parametrize("size", range(len(ONE)))
def test_a_leader_refuses_bytes_without_a_whole_batch(size: int) -> None:
    with pytest.raises(InvalidRecordError, match="no whole record batch"):
        analyze(ONE[:size])


@pytest.mark.parametrize("size", range(len(ONE)))
def test_a_follower_takes_nothing_from_bytes_without_a_whole_batch(size: int) -> None:
    """SEMANTICS.md 1.7"""
    assert follow(ONE[:size]) == Analysis(memoryview(b""), (), -1, -1, -1, None, 0, 0, True, -1)


@pytest.mark.parametrize("size", range(1, len(ONE)))
def test_a_partial_batch_at_the_end_is_dropped(size: int) -> None:
    """SEMANTICS.md 1.4, 1.8"""
    analysis = analyze(ONE + ONE[:size])
    assert analysis.valid_bytes == len(ONE)
    assert bytes(analysis.data) == ONE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_a_length_below_14_is_corrupt_as_soon_as_it_is_read(length: int) -> None:
    """SEMANTICS.md 1.4: before 17 bytes are asked for, and at the second batch too."""
    stub = struct.pack(">qi", 0, length)
    with pytest.raises(CorruptRecordError) as caught:
        analyze(stub)
    assert caught.value.position == 0
    with pytest.raises(CorruptRecordError) as caught:
        analyze(ONE + stub)
    assert caught.value.position == len(ONE)


def test_a_length_of_14_is_the_smallest_and_of_2_gib_a_partial_batch() -> None:
    for length in (14, 2**31 - 1):
        assert follow(struct.pack(">qiiB", 0, length, 0, 2)).valid_bytes == 0


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_a_magic_outside_0_to_2_is_corrupt_once_17_bytes_are_there(magic: int) -> None:
    """SEMANTICS.md 1.4: even when the batch is not whole."""
    stub = struct.pack(">qiiB", 0, 100, 0, magic)
    with pytest.raises(CorruptRecordError, match=f"magic {magic}"):
        analyze(stub)
    assert follow(stub[:16]).valid_bytes == 0


# ---- 1.5: each batch, in this order


def test_a_clients_batch_counts_from_0_and_others_need_not() -> None:
    """SEMANTICS.md 1.1, 1.5(2)"""
    for base_offset in (-1, 1):
        data = v2(base_offset=base_offset)
        with pytest.raises(InvalidRecordError, match=f"base offset {base_offset}"):
            analyze(data)
        assert analyze(data, origin="coordinator").first_offset == base_offset
    assert follow(v2(base_offset=7)).first_offset == 7
    assert analyze(legacy(1, offset=9)).last_offset == 9


def test_the_size_limit_is_inclusive_and_not_a_followers() -> None:
    """SEMANTICS.md 1.5(5); UnifiedLogTest.testMessageSizeCheck, testMessageSizeCheckInAppendAsFollower"""
    assert analyze(ONE, max_message_bytes=len(ONE)).valid_bytes == len(ONE)
    for origin in ("client", "coordinator"):
        with pytest.raises(RecordTooLargeError, match=f"{len(ONE)} bytes .* {len(ONE) - 1}"):
            analyze(ONE, origin=origin, max_message_bytes=len(ONE) - 1)
    assert analyze(ONE, origin="follower", max_message_bytes=len(ONE) - 1).valid_bytes == len(ONE)


def test_every_flipped_bit_from_the_attributes_on_is_corrupt() -> None:
    """SEMANTICS.md 1.5(6)"""
    for bit in range(17 * 8, len(ONE) * 8):
        data = bytearray(ONE)
        data[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CorruptRecordError, match="CRC"):
            analyze(bytes(data))


def test_base_offset_and_leader_epoch_are_outside_the_crc() -> None:
    data = struct.pack(">qii", 5, len(ONE) - 12, 9) + ONE[16:]
    assert follow(data).last_leader_epoch == 9


@pytest.mark.parametrize("magic", [0, 1])
def test_a_legacy_messages_crc_covers_all_from_its_magic_on(magic: int) -> None:
    data = legacy(magic)
    for position in range(12, len(data)):
        if position == 16:
            continue  # the magic itself: another format, or none
        with pytest.raises(CorruptRecordError, match="CRC"):
            analyze(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])


@pytest.mark.parametrize("size", range(26, 61))
def test_a_v2_batch_shorter_than_its_header_is_corrupt(size: int) -> None:
    """SEMANTICS.md 1.5(6): whatever its CRC says."""
    with pytest.raises(CorruptRecordError, match=f"batch of {size} bytes"):
        analyze(resealed(struct.pack(">qiiB", 0, size - 12, 0, 2).ljust(61, b"\0"))[:size])


def test_a_bare_header_passes_the_shallow_analysis() -> None:
    assert follow(v2(b"", count=0, last_offset_delta=0)).valid_bytes == 61


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_compression_types_above_4_are_unsupported(codec: int) -> None:
    """SEMANTICS.md 1.5(8)"""
    for data in (v2(attributes=codec), legacy(1, attributes=codec)):
        for origin in ("client", "follower"):
            with pytest.raises(UnsupportedCompressionError, match=f"type {codec}"):
                analyze(data, origin=origin)


BASE, SIZE, CRC, CODEC = 1, 2, 4, 8


@pytest.mark.parametrize("faults", range(1, 16))
def test_the_first_fault_in_kafkas_order_wins(faults: int) -> None:
    """SEMANTICS.md 1.5, steps 2, 5, 6 and 8"""
    data = v2(base_offset=1 if faults & BASE else 0, attributes=7 if faults & CODEC else 0)
    if faults & CRC:
        data = broken_crc(data)
    expected = {
        BASE: InvalidRecordError,
        SIZE: RecordTooLargeError,
        CRC: CorruptRecordError,
        CODEC: UnsupportedCompressionError,
    }
    with pytest.raises(expected[faults & -faults]):
        analyze(data, max_message_bytes=len(data) - 1 if faults & SIZE else len(data))


@pytest.mark.parametrize("faults", range(1, 8))
def test_a_batch_shorter_than_its_header_is_refused_in_the_same_order(faults: int) -> None:
    data = struct.pack(">qiiB", faults & BASE, 20, 0, 2).ljust(32, b"\0")
    expected = {BASE: InvalidRecordError, SIZE: RecordTooLargeError, 0: CorruptRecordError}
    with pytest.raises(expected[faults & 3 & -faults]):
        analyze(data, max_message_bytes=31 if faults & SIZE else 32)


def test_an_earlier_batchs_fault_wins_over_a_later_ones_framing() -> None:
    """SEMANTICS.md 1.4, 1.5: batches are framed one at a time."""
    torn = struct.pack(">qi", 0, 13)
    with pytest.raises(InvalidRecordError):
        analyze(v2(base_offset=1) + torn)
    with pytest.raises(RecordTooLargeError):
        analyze(ONE + torn, max_message_bytes=len(ONE) - 1)


def test_the_analysis_tells_of_all_batches() -> None:
    """SEMANTICS.md 1.5(3), (7), (8), 1.34"""
    data = (
        v2(messages_of([b"a", b"b"]), base_offset=10, leader_epoch=3, max_timestamp=NOW + 9)
        + v2(base_offset=20, leader_epoch=4, codec="lz4", max_timestamp=NOW + 10)
        + v2(base_offset=21, leader_epoch=5, codec="gzip", max_timestamp=NOW - 1)
        + v2(base_offset=22, leader_epoch=5)
    )
    analysis = follow(data)
    assert analysis.first_offset == 10
    assert analysis.last_offset_of_first_batch == 11
    assert analysis.last_offset == 22
    assert analysis.max_timestamp == NOW + 10
    assert analysis.last_leader_epoch == 5
    assert analysis.source_compression == CODECS.index("gzip")
    assert analysis.valid_bytes == len(data)
    assert analysis.monotonic
    assert [(b.position, b.base_offset, b.last_offset, b.leader_epoch) for b in analysis.batches] == [
        (0, 10, 11, 3),
        (analysis.batches[0].size_bytes, 20, 20, 4),
        (analysis.batches[2].position, 21, 21, 5),
        (len(data) - len(ONE), 22, 22, 5),
    ]


def test_a_legacy_batch_hides_its_first_offset_and_has_no_epoch() -> None:
    """SEMANTICS.md 1.5(3), 1.34"""
    analysis = follow(legacy(1, offset=7, timestamp=NOW + 5) + legacy(0, offset=8))
    assert (analysis.first_offset, analysis.last_offset_of_first_batch, analysis.last_offset) == (-1, 7, 8)
    assert analysis.max_timestamp == NOW + 5
    assert analysis.last_leader_epoch is None


def test_the_largest_timestamp_is_at_least_minus_1() -> None:
    assert follow(v2(max_timestamp=-5)).max_timestamp == -1
    assert follow(v2(max_timestamp=0)).max_timestamp == 0


# ---- 1.5(2a): a follower and epochs above its own


def at(offset: int, leader_epoch: int) -> bytes:
    return v2(base_offset=offset, leader_epoch=leader_epoch)


def test_from_the_first_batch_of_a_newer_epoch_on_all_is_dropped() -> None:
    """SEMANTICS.md 1.5(2a), vector V27"""
    analysis = follow(at(0, 1) + at(1, 2) + at(2, 5) + at(3, 2), leader_epoch=2)
    assert (analysis.first_offset, analysis.last_offset, len(analysis.batches)) == (0, 1, 2)
    assert analysis.valid_bytes == 2 * len(ONE)
    assert analysis.last_leader_epoch == 2


def test_a_first_batch_of_a_newer_epoch_leaves_nothing() -> None:
    """SEMANTICS.md 1.5(2a), 1.7, V27"""
    analysis = follow(at(0, 5), leader_epoch=2)
    assert (analysis.valid_bytes, analysis.first_offset, analysis.last_offset) == (0, -1, -1)


def test_an_epoch_of_minus_1_or_the_callers_own_is_accepted() -> None:
    assert len(follow(at(0, -1) + at(1, 2) + legacy(1, offset=2), leader_epoch=2).batches) == 3
    assert len(follow(at(0, 2**31 - 1)).batches) == 1


def test_dropped_batches_are_framed_but_not_checked() -> None:
    """SEMANTICS.md 1.5(2a): no CRC, no order; the walk goes on, so a broken length still shows."""
    data = at(5, 1) + at(6, 3) + broken_crc(at(2, 1))
    assert follow(data, leader_epoch=1).last_offset == 5
    with pytest.raises(CorruptRecordError):
        follow(data + struct.pack(">qi", 0, 13), leader_epoch=1)


def test_a_leaders_append_ignores_epochs() -> None:
    assert analyze(v2(leader_epoch=9), leader_epoch=2).valid_bytes == len(ONE)


# ---- 1.6: increasing offsets


def test_a_followers_offsets_increase() -> None:
    """SEMANTICS.md 1.6; UnifiedLogTest.testAppendWithOutOfOrderOffsetsThrowsException"""
    with pytest.raises(OffsetsOutOfOrderError):
        follow(b"".join(v2(base_offset=n) for n in (0, 1, 3, 2, 4)))
    with pytest.raises(OffsetsOutOfOrderError):
        follow(v2(base_offset=3) * 2)
    with pytest.raises(OffsetsOutOfOrderError):
        follow(legacy(1, offset=3) * 2)
    assert follow(v2(base_offset=3) + v2(base_offset=4)).monotonic
    assert follow(v2(base_offset=3) + v2(base_offset=400)).monotonic


def test_the_first_last_offset_is_above_minus_1() -> None:
    with pytest.raises(OffsetsOutOfOrderError):
        follow(legacy(1, offset=-1))
    assert follow(legacy(1, offset=0)).last_offset == 0


def test_a_leaders_offsets_need_not_increase() -> None:
    """SEMANTICS.md 1.1"""
    assert not analyze(legacy(1) * 2).monotonic
    assert analyze(legacy(1) + legacy(1, offset=1)).monotonic


def test_disorder_wins_over_a_later_batchs_fault_and_loses_to_its_own() -> None:
    """SEMANTICS.md 1.6"""
    with pytest.raises(OffsetsOutOfOrderError):
        follow(v2(base_offset=3) + v2(base_offset=3) + broken_crc(v2(base_offset=4)))
    with pytest.raises(CorruptRecordError):
        follow(v2(base_offset=3) + broken_crc(v2(base_offset=3)))
    with pytest.raises(UnsupportedCompressionError):
        follow(v2(base_offset=3) + v2(base_offset=3, attributes=6))


def test_a_follower_refuses_offsets_that_overlap_or_run_backwards() -> None:
    """Stricter than Kafka, whose log such a batch damages."""
    with pytest.raises(OffsetsOutOfOrderError):
        follow(v2(base_offset=0, last_offset_delta=9, count=1) + v2(base_offset=9, last_offset_delta=1, count=1))
    with pytest.raises(OffsetsOutOfOrderError):
        follow(v2(base_offset=10, last_offset_delta=-1))
    assert follow(v2(base_offset=0, last_offset_delta=9) + v2(base_offset=10)).last_offset == 10


def test_a_follower_refuses_an_offset_after_which_none_is_left() -> None:
    assert follow(v2(base_offset=LONG_MAX - 1)).last_offset == LONG_MAX - 1
    for data in (v2(base_offset=LONG_MAX), v2(base_offset=LONG_MAX, last_offset_delta=1), legacy(1, offset=LONG_MAX)):
        with pytest.raises(OffsetsOutOfOrderError):
            follow(data)


# ---- 1.23, 1.25: a follower


def test_a_followers_append_begins_at_or_above_the_log_end() -> None:
    """SEMANTICS.md 1.23"""
    analysis = follow(v2(messages_of([b"a", b"b", b"c"]), base_offset=4, leader_epoch=0))
    for next_offset in (0, 3, 4):
        validate_follower(analysis, next_offset=next_offset)
    for next_offset in (5, 7):
        with pytest.raises(UnexpectedAppendOffsetError) as caught:
            validate_follower(analysis, next_offset=next_offset)
        assert (caught.value.first_offset, caught.value.last_offset) == (4, 6)


def test_the_error_names_the_last_offset_of_the_whole_append() -> None:
    """SEMANTICS.md 1.23"""
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        validate_follower(follow(v2(base_offset=1) + v2(base_offset=8)), next_offset=3)
    assert (caught.value.first_offset, caught.value.last_offset) == (1, 8)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_legacy_append_begins_at_the_last_offset_of_its_first_batch(magic: int, codec: str) -> None:
    """SEMANTICS.md 1.23; UnifiedLogTest.testAppendBelowExpectedOffsetThrowsException"""
    inner = [legacy(magic, offset=n) for n in (4, 5, 6)]
    data = b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec, offset=6)
    first = 4 if codec == "none" else 6
    validate_follower(follow(data), next_offset=first)
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        validate_follower(follow(data), next_offset=first + 1)
    assert (caught.value.first_offset, caught.value.last_offset) == (first, 6)


@pytest.mark.parametrize("leader_epoch", [-1, -(2**31)])
def test_a_followers_batch_has_an_epoch(leader_epoch: int) -> None:
    """SEMANTICS.md 1.26: Kafka's cache of epochs refuses a negative one, after 1.23 and before anything is written."""
    data = v2(base_offset=3, leader_epoch=0) + v2(base_offset=4, leader_epoch=leader_epoch)
    with pytest.raises(InvalidRecordError, match="leader epoch"):
        validate_follower(follow(data), next_offset=3)
    with pytest.raises(UnexpectedAppendOffsetError):
        validate_follower(follow(data), next_offset=4)


def test_a_follower_that_took_nothing_has_nothing_below_the_log_end() -> None:
    validate_follower(follow(b""), next_offset=5)


def test_a_followers_bytes_are_the_callers() -> None:
    """SEMANTICS.md 1.25: nothing is rewritten, not even copied; records are not looked at."""
    data = (
        v2(b"garbage", base_offset=4, leader_epoch=7, attributes=APPEND_TIME | CONTROL, count=-3, last_offset_delta=0)
        + b"tail"
    )
    analysis = follow(data)
    assert analysis.data.obj is data
    assert bytes(analysis.data) == data[:-4]


# ---- 1.9, 1.19: in place


def test_an_honest_batch_changes_in_base_offset_and_epoch_only() -> None:
    """SEMANTICS.md 1.9, 1.19; LogValidatorTest.testRelativeOffsetAssignmentNonCompressedV2"""
    out = lead(THREE, next_offset=1234567, leader_epoch=5)
    assert bytes(out.data) == struct.pack(">qii", 1234567, len(THREE) - 12, 5) + THREE[16:]
    assert (out.first_offset, out.last_offset, out.max_timestamp) == (1234567, 1234569, NOW)
    assert (out.log_append_time, out.rebuilt) == (-1, False)
    assert [r[0] for r in contents(out.data)] == [1234567, 1234568, 1234569]


def test_what_is_checked_is_what_is_stored() -> None:
    """A buffer that somebody else may write to is copied first; one that cannot change is not."""
    sent = bytearray(THREE)
    analysis = analyze(sent)
    sent[70] ^= 0xFF
    assert bytes(analysis.data) == THREE
    assert analyze(THREE).data.obj is THREE
    assert bytes(analyze(memoryview(b"".join(bytes((b, 0)) for b in THREE))[::2]).data) == THREE


def test_the_callers_buffer_is_never_changed() -> None:
    """SEMANTICS.md 1.18, 1.19"""
    sent = bytearray(v2(messages_of([b"x"]), max_timestamp=5))
    before = bytes(sent)
    out = lead(sent, next_offset=9, message_timestamp_type="LogAppendTime", now_ms=NOW + 1)
    assert bytes(sent) == before
    assert bytes(out.data) != before


@pytest.mark.parametrize("codec", CODECS)
def test_the_payload_is_untouched_when_the_codec_stays(codec: str) -> None:
    """SEMANTICS.md 1.12; LogValidatorTest.checkCompressed, checkNonCompressed,
    testRelativeOffsetAssignmentCompressedV2"""
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
    """SEMANTICS.md 1.12; LogValidatorTest.testDifferentLevelDoesNotCauseRecompression"""
    data = v2(messages_of([b"a" * 500, b"b" * 500]), codec=codec, level=sent)
    out = lead(data, compression_type=codec, **{f"compression_{codec}_level": wanted})
    assert bytes(out.data[16:]) == data[16:]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed", [-1, 0, NOW - 1, NOW + 1, NOW + 3, LONG_MAX])
def test_the_headers_largest_timestamp_becomes_the_records(codec: str, claimed: int) -> None:
    """SEMANTICS.md 1.19: whatever the producer claimed; the CRC is new only when it was wrong."""
    data = v2(messages_of([b"a", b"b"], timestamps=[NOW + 2, NOW - 4]), codec=codec, base_timestamp=NOW,
              max_timestamp=claimed)  # fmt: skip
    out = lead(data, now_ms=NOW)
    assert bytes(out.data) == resealed(data, leader_epoch=0, max_timestamp=NOW + 2)
    assert out.max_timestamp == NOW + 2


def test_a_batch_without_timestamps_has_none() -> None:
    """SEMANTICS.md 1.17, 1.19; UnifiedLogTest.testAppendWithNoTimestamp"""
    out = lead(v2(base_timestamp=-1))
    assert (out.max_timestamp, header(out.data).max_timestamp) == (-1, -1)
    assert bytes(out.data[16:]) == v2(base_timestamp=-1)[16:]
    assert header(lead(v2(base_timestamp=-1, max_timestamp=77)).data).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped_on_the_header_alone(codec: str) -> None:
    """SEMANTICS.md 1.19; LogValidatorTest.checkLogAppendTimeWithoutRecompression, checkLogAppendTimeNonCompressed"""
    data = v2(messages_of([b"a", b"b"], timestamps=[1234, 1235]), codec=codec, base_timestamp=NOW, max_timestamp=1235)
    out = lead(data, now_ms=NOW + 7, message_timestamp_type="LogAppendTime")
    expected = resealed(data, leader_epoch=0, attributes=CODECS.index(codec) | APPEND_TIME, max_timestamp=NOW + 7)
    assert bytes(out.data) == expected
    assert (out.max_timestamp, out.log_append_time, out.rebuilt) == (NOW + 7, NOW + 7, False)
    assert {r[1] for r in contents(out.data)} == {NOW + 7}
    assert header(out.data).base_timestamp == NOW


def test_unknown_attribute_bits_go_when_the_timestamp_changes_and_stay_when_not() -> None:
    """SEMANTICS.md 1.19, FORMAT.md 2.2"""
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
    """SEMANTICS.md 1.26"""
    with pytest.raises(ValueError, match="leader epoch"):
        lead(ONE, leader_epoch=leader_epoch)
    assert header(lead(ONE, leader_epoch=2**31 - 1).data).partition_leader_epoch == 2**31 - 1


# ---- 1.11: one batch


@pytest.mark.parametrize(
    ("source", "setting"),
    [("none", "uncompressed"), ("none", "gzip"), ("gzip", "uncompressed"), ("gzip", "gzip"), ("zstd", "gzip")],
)
def test_two_v2_batches_are_no_append(source: str, setting: str) -> None:
    """SEMANTICS.md 1.11; LogValidatorTest.checkOnlyOneBatch"""
    with pytest.raises(InvalidRecordError, match="2 batches"):
        lead(v2(codec=source) + v2(messages_of([b"a", b"b"]), codec=source), compression_type=setting)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_COMPRESSED)
def test_two_legacy_batches_of_which_one_is_compressed_are_no_append(magic: int, codec: str) -> None:
    """SEMANTICS.md 1.11; LogValidatorTest.checkOnlyOneBatch"""
    packed = wrapper(magic, [legacy(magic)], codec=codec)
    for data in (packed + packed, legacy(magic) + packed, packed + legacy(magic)):
        with pytest.raises(InvalidRecordError, match="2 batches"):
            lead(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("setting", ["uncompressed", "producer", "gzip"])
def test_uncompressed_legacy_messages_become_one_v2_batch(magic: int, setting: str) -> None:
    """SEMANTICS.md 1.11, 1.20; LogValidatorTest.checkAllowMultiBatch, testAbsoluteOffsetAssignmentNonCompressed"""
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
    """SEMANTICS.md 1.14: the first batch's records are judged before the second batch's magic."""
    with pytest.raises(InvalidRecordError, match="magic 2 after one of magic 1"):
        lead(legacy(1) + ONE)
    with pytest.raises(InvalidTimestampError):
        lead(legacy(1, timestamp=NOW + 3_600_001) + ONE)


def test_legacy_records_are_judged_batch_by_batch() -> None:
    """SEMANTICS.md 1.16, 1.18: each uncompressed message is a batch, so one error and index 0."""
    with pytest.raises(InvalidRecordError) as caught:
        lead(legacy(1, key=b"k") + legacy(1) + legacy(1, timestamp=NOW + 3_600_001), cleanup_policy="compact")
    assert type(caught.value) is InvalidRecordError
    assert [index for index, _ in caught.value.record_errors] == [0]


# ---- 1.14: what a header may claim


@pytest.mark.parametrize(
    ("delta", "count"), [(0, 3), (15, 3), (-3, 3), (2, 2), (2, 4), (-1, 0), (0, 0), (5, 0), (-2, -1), (2**31 - 1, 3)]
)
@pytest.mark.parametrize("origin", ["client", "coordinator"])
def test_the_offsets_and_the_count_of_a_header_agree(delta: int, count: int, origin: validation.Origin) -> None:
    """SEMANTICS.md 1.14; LogValidatorTest.testInconsistentCountAndOffset. Of coordinators Kafka does not ask it."""
    with pytest.raises(InvalidRecordError, match="count"):
        lead(resealed(THREE, last_offset_delta=delta, count=count), origin=origin)


def test_an_agreeing_header_is_accepted() -> None:
    """LogValidatorTest.testRecordBatchWithCountOverrides"""
    assert lead(resealed(THREE, last_offset_delta=2, count=3)).last_offset == 2


@pytest.mark.parametrize(("delta", "count"), [(5, 6), (1, 2), (3, 4), (2**31 - 2, 2**31 - 1)])
@pytest.mark.parametrize("codec", CODECS)
def test_a_header_must_agree_with_its_records(delta: int, count: int, codec: str) -> None:
    """SEMANTICS.md 1.15; LogValidatorTest.testUnmatchedNumberOfRecords"""
    data = resealed(v2(messages_of([b"a", b"b", b"c"]), codec=codec), last_offset_delta=delta, count=count)
    with pytest.raises(InvalidRecordError):
        lead(data)


@pytest.mark.parametrize(("source", "setting"), list(product(CODECS, ["uncompressed", *COMPRESSED])))
def test_a_batch_without_records_is_refused(source: str, setting: str) -> None:
    """SEMANTICS.md 1.14; LogValidatorTest.testBatchWithoutRecordsNotAllowed"""
    data = v2(b"", count=0, last_offset_delta=5, attributes=TRANSACTIONAL | CODECS.index(source), producer_id=1324,
              producer_epoch=10, base_sequence=984)  # fmt: skip
    with pytest.raises(InvalidRecordError):
        lead(data, compression_type=setting)


@pytest.mark.parametrize(("source", "setting"), list(product(CODECS, ["uncompressed", *COMPRESSED])))
def test_a_producer_id_needs_a_sequence(source: str, setting: str) -> None:
    """SEMANTICS.md 1.14; LogValidatorTest.checkInvalidSequence"""
    for sequence in (-2, -1):
        with pytest.raises(InvalidRecordError, match=f"base sequence {sequence}"):
            lead(v2(codec=source, producer_id=1234, producer_epoch=0, base_sequence=sequence), compression_type=setting)
    assert lead(v2(codec=source, producer_id=1234, producer_epoch=0, base_sequence=0), compression_type=setting)


def test_a_coordinator_in_place_needs_no_sequence() -> None:
    """SEMANTICS.md 1.14: clients only."""
    assert not lead(v2(producer_id=1, producer_epoch=0), origin="coordinator").rebuilt


MARKER = v2([record(0, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7))], attributes=TRANSACTIONAL | CONTROL,
            producer_id=23423, producer_epoch=5)  # fmt: skip


def test_clients_write_no_control_batches() -> None:
    """SEMANTICS.md 1.14; LogValidatorTest.testControlRecordsNotAllowedFromClients"""
    with pytest.raises(InvalidRecordError, match="control"):
        lead(MARKER)
    with pytest.raises(InvalidRecordError, match="control"):
        lead(v2(attributes=CONTROL))


@pytest.mark.parametrize("setting", ["producer", "uncompressed", *COMPRESSED])
def test_a_coordinators_marker_stays_uncompressed(setting: str) -> None:
    """SEMANTICS.md 1.12; LogValidatorTest.testControlRecordsNotCompressed"""
    out = lead(MARKER, origin="coordinator", next_offset=7, compression_type=setting, cleanup_policy="compact")
    assert not out.rebuilt
    assert bytes(out.data[16:]) == MARKER[16:]
    assert (out.first_offset, out.last_offset) == (7, 7)


def test_a_coordinators_base_offset_is_replaced() -> None:
    """SEMANTICS.md 1.1, 1.19"""
    out = lead(v2(messages_of([b"a", b"b"]), base_offset=40), origin="coordinator", next_offset=7)
    assert (out.first_offset, out.last_offset, header(out.data).base_offset) == (7, 8, 7)


# ---- 1.13: offsets inside the batch


@pytest.mark.parametrize("deltas", [(0, 0, 0), (0, 2, 3), (1, 2, 3), (2, 1, 0), (0, 1, -1)])
def test_wrong_offsets_inside_an_uncompressed_batch_are_not_looked_at(deltas: tuple[int, ...]) -> None:
    """SEMANTICS.md 1.13"""
    data = v2([record(d) for d in deltas])
    out = lead(data)
    assert not out.rebuilt
    assert bytes(out.data[16:]) == data[16:]


@pytest.mark.parametrize("deltas", [(0, 0, 0), (0, 2, 3), (1, 2, 3), (2, 1, 0), (0, 1, -1)])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_wrong_offsets_inside_a_compressed_batch_are_put_right(deltas: tuple[int, ...], codec: str) -> None:
    """SEMANTICS.md 1.13"""
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


# ---- 1.15: the structure of records

TWO = [record(0), record(1)]
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
    """SEMANTICS.md 1.15, on each path"""
    section, count = BROKEN[fault]
    with pytest.raises(InvalidRecordError) as caught:
        lead(v2(section, count=count, codec=codec), compression_type=setting)
    assert caught.value.record_errors == ()


def test_structure_comes_before_contents() -> None:
    """SEMANTICS.md 1.15, 1.18: record errors are raised once all records have been read."""
    with pytest.raises(InvalidRecordError) as caught:
        lead(v2([record(0, 3_600_001), record(1, tail=b"x")]))
    assert not isinstance(caught.value, InvalidTimestampError)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_that_does_not_decompress_is_corrupt(codec: str) -> None:
    """FORMAT.md 3.2, check 14"""
    with pytest.raises(CorruptRecordError):
        lead(v2(b"\x01\x02\x03 not a frame of anything", attributes=CODECS.index(codec)))


def test_negative_lengths_of_key_and_value_are_nulls() -> None:
    """FORMAT.md 3.2, check 6"""
    body = b"\0\0\0" + varint(-7) + varint(-9) + b"\0"
    out = lead(v2(varint(len(body)) + body), compression_type="lz4")
    assert contents(out.data) == [(0, NOW, None, None)]


# ---- 1.16 to 1.18: the contents of records


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_a_compacted_topic_wants_keys(codec: str, policy: str) -> None:
    """SEMANTICS.md 1.16(3); UnifiedLogTest.testCompactedTopicConstraints, LogValidatorTest.checkNoKeyCompactedTopic"""
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
    """SEMANTICS.md 1.17; LogValidatorTest.testInvalidCreateTimeNonCompressedV1, testInvalidCreateTimeCompressedV1,
    testInvalidCreateTimeNonCompressedV2, testInvalidCreateTimeCompressedV2"""
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 500}
    for timestamp in (NOW - 1000, NOW + 500, -1):
        assert lead(sent_at(codec, magic, timestamp), **limits).last_offset == 0
    for timestamp in (NOW - 1001, NOW + 501, 0, -2, -(2**63), LONG_MAX):
        with pytest.raises(InvalidTimestampError) as caught:
            lead(sent_at(codec, magic, timestamp), **limits)
        assert [index for index, _ in caught.value.record_errors] == [0]
        assert str(timestamp) in caught.value.record_errors[0][1]


def test_every_record_is_examined_before_a_batch_is_refused() -> None:
    """SEMANTICS.md 1.16; LogValidatorTest.testRecordWithFutureTimestampIsRejected"""
    late = NOW + 65 * 60_000
    with pytest.raises(InvalidTimestampError, match="3 records") as caught:
        lead(sent_at("none", 2, late, late, late), message_timestamp_before_max_ms=86_400_000)
    assert [index for index, _ in caught.value.record_errors] == [0, 1, 2]


def test_by_default_the_past_is_unlimited_and_the_future_an_hour() -> None:
    """SEMANTICS.md 1.17, 13.14"""
    assert lead(sent_at("none", 2, 0, NOW + 3_600_000)).max_timestamp == NOW + 3_600_000
    with pytest.raises(InvalidTimestampError):
        lead(sent_at("none", 2, NOW + 3_600_001))


def test_a_record_without_timestamp_does_not_hide_an_old_one() -> None:
    with pytest.raises(InvalidTimestampError) as caught:
        lead(sent_at("none", 2, -1, NOW, 5, -1), message_timestamp_before_max_ms=1000)
    assert [index for index, _ in caught.value.record_errors] == [2]


@pytest.mark.parametrize("codec", CODECS)
def test_one_bad_timestamp_makes_it_a_matter_of_timestamps(codec: str) -> None:
    """SEMANTICS.md 1.16, 1.18: a record's first failing check counts, the batch's error is about time if any is."""
    records = [record(0), record(1, 3_600_001), record(2, 3_600_001, b"k"), record(3, 0, b"k")]
    with pytest.raises(InvalidTimestampError) as caught:
        lead(v2(records, codec=codec), cleanup_policy="compact")
    assert [(i, "key" in why, "timestamp" in why) for i, why in caught.value.record_errors] == [
        (0, True, False), (1, True, False), (2, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
def test_only_a_broker_stamps_log_append_time(codec: str) -> None:
    """SEMANTICS.md 1.17"""
    claim = v2(messages_of([b"a", b"b"]), codec=codec, attributes=APPEND_TIME)
    with pytest.raises(InvalidTimestampError) as caught:
        lead(claim, message_timestamp_type="LogAppendTime")
    assert [index for index, _ in caught.value.record_errors] == [0, 1]
    with pytest.raises(InvalidTimestampError):
        lead(resealed(claim, max_timestamp=-1))


def test_a_log_append_time_topic_takes_any_timestamp() -> None:
    """SEMANTICS.md 1.17"""
    for timestamp in (-1, 0, -5, LONG_MAX):
        assert lead(sent_at("none", 2, timestamp), message_timestamp_type="LogAppendTime").max_timestamp == NOW


@pytest.mark.parametrize("codec", CODECS)
def test_on_a_create_time_topic_a_claim_of_log_append_time_is_taken_off(codec: str) -> None:
    """SEMANTICS.md 1.17: in range means the batch's largest timestamp, since it stands for each record's."""
    claim = v2([record(0, -9), record(1, 5)], codec=codec, attributes=APPEND_TIME, max_timestamp=NOW + 100)
    limits = {"message_timestamp_before_max_ms": 0, "message_timestamp_after_max_ms": 100}
    out = lead(claim, **limits)
    assert bytes(out.data) == resealed(claim, leader_epoch=0, attributes=CODECS.index(codec))
    assert out.max_timestamp == NOW + 100
    with pytest.raises(InvalidTimestampError):
        lead(resealed(claim, max_timestamp=NOW + 101), **limits)


def test_in_place_a_negative_timestamp_within_the_limits_stays() -> None:
    """SEMANTICS.md 1.17: there is no other check of the sign."""
    out = lead(sent_at("none", 2, -5))
    assert contents(out.data)[0][1] == -5
    assert (out.max_timestamp, header(out.data).max_timestamp) == (-1, -1)


@pytest.mark.parametrize("setting", COMPRESSED)
def test_a_rebuilt_batch_takes_no_negative_timestamp(setting: str) -> None:
    """SEMANTICS.md 1.20"""
    with pytest.raises(InvalidTimestampError, match="-5"):
        lead(sent_at("none", 2, NOW, -5), compression_type=setting)
    with pytest.raises(InvalidTimestampError, match="-2"):
        lead(legacy(1, timestamp=-2))


def test_a_negative_timestamp_is_met_when_the_record_is_written() -> None:
    """SEMANTICS.md 1.20: after all checks where anything is compressed, between them where messages are just merged."""
    data = legacy(1, key=b"k", timestamp=-5) + legacy(1, key=None)
    with pytest.raises(InvalidTimestampError, match="-5"):
        lead(data, cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key"):
        lead(data, cleanup_policy="compact", compression_type="gzip")


# ---- 1.20 to 1.22: rebuilding


@pytest.mark.parametrize(("source", "target"), [(s, t) for s, t in product(CODECS, CODECS) if s != t])
def test_another_codec_means_a_new_batch_with_the_same_contents(source: str, target: str) -> None:
    """SEMANTICS.md 1.10, 1.12, 1.20; BrokerCompressionTest.testBrokerSideCompression,
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
    """SEMANTICS.md 1.10; BrokerCompressionTypeTest.testTargetCompressionType"""
    out = lead(v2(messages_of([b"hello", b"there"]), codec=source), compression_type=setting)
    assert header(out.data).compression == {"uncompressed": "none", "producer": source}.get(setting, setting)


def test_a_rebuilt_uncompressed_batch_is_what_an_honest_producer_writes() -> None:
    """SEMANTICS.md 1.20: consecutive numbers, base timestamp of the first record, minimal varints, no stray bits."""
    odd = v2([record(1, 7, b"a"), record(0, 3, b"b")], codec="gzip", base_timestamp=NOW, max_timestamp=5,
             attributes=0x7F80 | DELETE_HORIZON)  # fmt: skip
    out = lead(odd, next_offset=5, leader_epoch=1, compression_type="uncompressed")
    assert bytes(out.data) == v2([record(0, 0, b"a"), record(1, -4, b"b")], base_offset=5, leader_epoch=1,
                                 base_timestamp=NOW + 7, max_timestamp=NOW + 7)  # fmt: skip


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (9, 17)), ("zstd", (1, 19))])
def test_a_rebuild_compresses_at_the_topics_level(codec: str, levels: tuple[int, int]) -> None:
    """SEMANTICS.md 1.12; LogValidatorTest.testDifferentCodecCausesRecompression"""
    data = v2(messages_of([b"%d %d %d" % (i, i * i, i * i * i) for i in range(400)]), codec="snappy")
    plain = b"".join(messages_of([b"%d %d %d" % (i, i * i, i * i * i) for i in range(400)]))
    for level in levels:
        out = lead(data, compression_type=codec, **{f"compression_{codec}_level": level})
        assert bytes(out.data[61:]) == compression.compress(CODECS.index(codec), plain, level)


def test_a_rebuild_for_another_reason_uses_the_default_level() -> None:
    """SEMANTICS.md 1.10: with `producer` the topic's levels do not count."""
    values = [b"%d %d" % (i, i * i) for i in range(400)]
    wrong = v2([record(0, 0, None, v) for v in values], codec="gzip", level=1, last_offset_delta=399)
    out = lead(wrong, compression_type="producer", compression_gzip_level=1)
    assert bytes(out.data[61:]) == compression.compress(1, b"".join(messages_of(values)))


@pytest.mark.parametrize("origin", ["client", "coordinator"])
def test_the_size_limit_binds_a_rebuilt_batch_too(origin: validation.Origin) -> None:
    """SEMANTICS.md 1.22: inclusive, and only when rebuilt"""
    packed = v2(messages_of([bytes(1000)]), codec="gzip")
    size = len(v2(messages_of([bytes(1000)])))
    assert len(lead(packed, origin=origin, compression_type="uncompressed", max_message_bytes=size).data) == size
    with pytest.raises(RecordTooLargeError, match=f"{size} bytes .* {size - 1}"):
        lead(packed, origin=origin, compression_type="uncompressed", max_message_bytes=size - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_rebuild_under_log_append_time_keeps_the_records_own_times(codec: str) -> None:
    """SEMANTICS.md 1.20, 1.21"""
    data = v2(messages_of([b"a", b"b"], timestamps=[NOW + 5, NOW + 3]), base_timestamp=NOW, max_timestamp=NOW + 5)
    out = lead(data, now_ms=NOW + 99, compression_type=codec, message_timestamp_type="LogAppendTime")
    batch = header(out.data)
    assert (batch.timestamp_type, batch.base_timestamp, batch.max_timestamp) == ("LogAppendTime", NOW + 5, NOW + 99)
    assert {r[1] for r in contents(out.data)} == {NOW + 99}
    assert (out.max_timestamp, out.log_append_time) == (NOW + 99, NOW + 99)
    assert [r[1] for r in contents(resealed(out.data, attributes=CODECS.index(codec)))] == [NOW + 5, NOW + 3]


# ---- formats v0 and v1


@pytest.mark.parametrize("codec", LEGACY_COMPRESSED)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_wrapper_becomes_a_v2_batch_of_the_same_codec(codec: str, magic: int, timestamp_type: str) -> None:
    """SEMANTICS.md 1.12, 1.20; LogValidatorTest.testCreateTimeUpConversionV1ToV2, checkCreateTimeUpConversionFromV0,
    testOffsetAssignmentAfterUpConversionV0ToV2Compressed, testOffsetAssignmentAfterUpConversionV1ToV2Compressed,
    checkLogAppendTimeWithRecompression, testAbsoluteOffsetAssignmentCompressed,
    testRelativeOffsetAssignmentCompressedV1"""
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
    """SEMANTICS.md 1.16(2); LogValidatorTest.checkInvalidChecksum"""
    inner = [legacy(magic, offset=0), broken_legacy_crc(legacy(magic, offset=1))]
    with pytest.raises(CorruptRecordError, match="CRC"):
        lead(wrapper(magic, inner, codec=codec))


def broken_legacy_crc(data: bytes) -> bytes:
    return data[:12] + bytes([data[12] ^ 0xFF]) + data[13:]


def test_an_inner_crc_is_looked_at_only_after_the_magic_and_before_the_contents() -> None:
    """SEMANTICS.md 1.16"""
    with pytest.raises(InvalidRecordError) as caught:
        lead(wrapper(0, [broken_legacy_crc(legacy(1))]))
    assert len(caught.value.record_errors) == 1
    with pytest.raises(CorruptRecordError):
        lead(wrapper(1, [legacy(1, timestamp=-9), broken_legacy_crc(legacy(1, timestamp=-9))]),
             message_timestamp_before_max_ms=0)  # fmt: skip


def test_a_message_of_another_magic_inside_a_wrapper_is_an_error_of_that_record() -> None:
    """SEMANTICS.md 1.16(2); LogValidatorTest.testInvalidRecordExceptionHasBatchIndex"""
    with pytest.raises(InvalidRecordError) as caught:
        lead(wrapper(0, [legacy(1, offset=i) for i in range(20)]))
    assert type(caught.value) is InvalidRecordError
    assert [index for index, _ in caught.value.record_errors] == list(range(20))


def test_a_timestamp_outranks_a_magic() -> None:
    """SEMANTICS.md 1.18; LogValidatorTest.testBatchWithInvalidRecordsAndInvalidTimestamp"""
    inner = [legacy(1, timestamp=1200), *(legacy(0, offset=n) for n in (30, 60, 90, 120, 150))]
    with pytest.raises(InvalidTimestampError) as caught:
        lead(wrapper(1, inner, offset=150), now_ms=0, message_timestamp_before_max_ms=1000,
             message_timestamp_after_max_ms=1000)  # fmt: skip
    assert len(caught.value.record_errors) == 6


def test_under_a_log_append_time_wrapper_every_message_has_the_wrappers_time() -> None:
    """FORMAT.md 5.1, SEMANTICS.md 1.17"""
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
    """FORMAT.md 5, 5.1"""
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
    """SEMANTICS.md 1.16: fields are taken out once the batch's records have passed."""
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
    """FORMAT.md 5.1"""
    out = lead(wrapper(1, legacy(1, b"a") + legacy(1, b"b")[:-1], offset=0))
    assert [r[3] for r in contents(out.data)] == [b"a"]


def test_a_wrapper_at_offset_0_may_hold_any_offsets() -> None:
    """FORMAT.md 5.1: the special case of some clients"""
    out = lead(wrapper(1, [legacy(1, offset=0), legacy(1, offset=5)], offset=0), next_offset=9)
    assert [r[0] for r in contents(out.data)] == [9, 10]


# ---- any bytes


def outcomes(data: bytes) -> None:
    for origin in ("client", "coordinator"):
        for settings in ({}, {"compression_type": "lz4"}, {"message_timestamp_type": "LogAppendTime"}):
            try:
                out = lead(data, origin=origin, next_offset=3, **settings)  # type: ignore[arg-type]
            except KStoreError:
                continue
            again = analyze(out.data, origin="follower")
            assert again.batches == (out.batch,)
            assert (again.first_offset, again.last_offset) == (out.first_offset, out.last_offset)
            assert out.first_offset == 3
            assert len(list(header(out.data))) == out.last_offset - out.first_offset + 1
    with contextlib.suppress(KStoreError):
        validate_follower(follow(data, leader_epoch=3), next_offset=0)


@given(st.binary(max_size=200))
def test_any_bytes_are_batches_or_a_named_error(data: bytes) -> None:
    outcomes(data)


@given(
    st.sampled_from([ONE, THREE, MARKER, v2(TWO, codec="gzip"), v2(TWO, codec="lz4"), legacy(1) * 2,
                     legacy(0, key=b"k"), wrapper(1, [legacy(1), legacy(1, offset=1)]),
                     wrapper(0, [legacy(0)], codec="snappy")]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.booleans(),
    st.data(),
)  # fmt: skip
def test_any_change_of_a_sound_append_gives_batches_or_a_named_error(
    data: bytes, changes: list[tuple[int, int]], reseal: bool, draw: st.DataObject
) -> None:
    """With the CRC made to hold again, so that what lies behind it is reached."""
    out = bytearray(data)
    for position, value in changes:
        out[position % len(out)] = value
    if reseal and out[16] == 2 and len(out) >= 61:
        out = bytearray(resealed(out))
    elif reseal and out[16] < 2:
        size = 12 + struct.unpack_from(">i", out, 8)[0]
        if 26 <= size <= len(out):
            struct.pack_into(">I", out, 12, zlib.crc32(bytes(out[16:size])))
    outcomes(bytes(out))


small_records = st.lists(
    st.builds(
        record,
        st.integers(-2, 4),
        st.integers(-10, 10) | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.binary(max_size=4),
        st.none() | st.binary(max_size=4),
        st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        tail=st.just(b"") | st.binary(max_size=2),
    )
    | st.binary(max_size=12),
    max_size=4,
)


@given(
    st.builds(
        v2,
        small_records,
        codec=st.sampled_from(CODECS),
        attributes=st.sampled_from([0, APPEND_TIME, CONTROL, TRANSACTIONAL, DELETE_HORIZON, 0x0F, -1]),
        base_timestamp=st.sampled_from([NOW, -1, 0, -5, LONG_MAX, -(2**63)]),
        max_timestamp=st.sampled_from([NOW, -1, -5, LONG_MAX, -(2**63)]),
        producer_id=st.sampled_from([-1, 0, 7]),
        base_sequence=st.sampled_from([-1, 0]),
        producer_epoch=st.sampled_from([-1, 0]),
    )
)
def test_any_records_behind_a_sound_header_give_batches_or_a_named_error(data: bytes) -> None:
    outcomes(data)


def test_a_bomb_of_bad_records_is_refused_in_bounded_memory() -> None:
    """A few bytes hold tens of millions of them: the list of errors is cut, the verdict is not."""
    count = 200_000
    plain = bytearray(b"".join([record(value=None)] * count))
    with pytest.raises(InvalidRecordError) as caught:
        lead(v2(bytes(plain), count=count, codec="zstd"), cleanup_policy="compact")
    assert type(caught.value) is InvalidRecordError
    assert len(caught.value.record_errors) == 65536
    late = bytes(plain) + record(timestamp_delta=3_600_001, key=b"k")
    with pytest.raises(InvalidTimestampError) as caught:
        lead(v2(late, count=count + 1, codec="zstd"), cleanup_policy="compact")
    assert caught.value.record_errors[-1][0] == count
    inner = legacy(0) * 70_000 + legacy(1, timestamp=NOW)
    with pytest.raises(InvalidRecordError) as caught:
        lead(wrapper(1, inner, offset=0))
    assert len(caught.value.record_errors) == 65536
    with pytest.raises(InvalidTimestampError) as caught:
        lead(wrapper(1, legacy(0) * 70_000 + legacy(1, timestamp=NOW + 3_600_001), offset=0))
    assert caught.value.record_errors[-1][0] == 70_000
