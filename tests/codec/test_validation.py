"""What the headers of an append say, and what a follower takes (SEMANTICS 1B, 1D); any bytes at all."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec.validation import Analysis, analyze, validate_follower
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
    wrapper,
)
from tests.support.validating import (
    LONG_MAX,
    MARKER,
    ONE,
    THREE,
    TWO,
    broken_crc,
    follow,
    header,
    lead,
)

# ---- SEMANTICS 1.4: framing


@pytest.mark.parametrize("size", range(len(ONE)))
def test_a_leader_refuses_bytes_without_a_whole_batch(size: int) -> None:
    with pytest.raises(InvalidRecordError, match="no whole record batch"):
        analyze(ONE[:size])


@pytest.mark.parametrize("size", range(len(ONE)))
def test_a_follower_takes_nothing_from_bytes_without_a_whole_batch(size: int) -> None:
    """SEMANTICS 1.7"""
    assert follow(ONE[:size]) == Analysis(memoryview(b""), (), -1, -1, -1, None, 0, 0, True, -1, 0)


@pytest.mark.parametrize("size", range(1, len(ONE)))
def test_a_partial_batch_at_the_end_is_dropped(size: int) -> None:
    """SEMANTICS 1.4, 1.8"""
    analysis = analyze(ONE + ONE[:size])
    assert analysis.valid_bytes == len(ONE)
    assert bytes(analysis.data) == ONE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_a_length_below_14_is_corrupt_as_soon_as_it_is_read(length: int) -> None:
    """SEMANTICS 1.4: before 17 bytes are asked for, and at the second batch too."""
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
    """SEMANTICS 1.4: even when the batch is not whole."""
    stub = struct.pack(">qiiB", 0, 100, 0, magic)
    with pytest.raises(CorruptRecordError, match=f"magic {magic}"):
        analyze(stub)
    assert follow(stub[:16]).valid_bytes == 0


# ---- SEMANTICS 1.5: each batch, in this order


def test_a_clients_batch_counts_from_0_and_others_need_not() -> None:
    """SEMANTICS 1.1, 1.5(2)"""
    for base_offset in (-1, 1):
        data = v2(base_offset=base_offset)
        with pytest.raises(InvalidRecordError, match=f"base offset {base_offset}"):
            analyze(data)
        assert analyze(data, origin="coordinator").first_offset == base_offset
    assert follow(v2(base_offset=7)).first_offset == 7
    assert analyze(legacy(1, offset=9)).last_offset == 9


def test_the_size_limit_is_inclusive_and_not_a_followers() -> None:
    """SEMANTICS 1.5(5); UnifiedLogTest.testMessageSizeCheck, testMessageSizeCheckInAppendAsFollower"""
    assert analyze(ONE, max_message_bytes=len(ONE)).valid_bytes == len(ONE)
    for origin in ("client", "coordinator"):
        with pytest.raises(RecordTooLargeError, match=f"{len(ONE)} bytes .* {len(ONE) - 1}"):
            analyze(ONE, origin=origin, max_message_bytes=len(ONE) - 1)
    assert analyze(ONE, origin="follower", max_message_bytes=len(ONE) - 1).valid_bytes == len(ONE)


def test_every_flipped_bit_from_the_attributes_on_is_corrupt() -> None:
    """SEMANTICS 1.5(6)"""
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
    """SEMANTICS 1.5(6): whatever its CRC says."""
    with pytest.raises(CorruptRecordError, match=f"batch of {size} bytes"):
        analyze(resealed(struct.pack(">qiiB", 0, size - 12, 0, 2).ljust(61, b"\0"))[:size])


def test_a_bare_header_passes_the_shallow_analysis() -> None:
    assert follow(v2(b"", count=0, last_offset_delta=0)).valid_bytes == 61


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_compression_types_above_4_are_unsupported(codec: int) -> None:
    """SEMANTICS 1.5(8)"""
    for data in (v2(attributes=codec), legacy(1, attributes=codec)):
        for origin in ("client", "follower"):
            with pytest.raises(UnsupportedCompressionError, match=f"type {codec}"):
                analyze(data, origin=origin)


BASE, SIZE, CRC, CODEC = 1, 2, 4, 8


@pytest.mark.parametrize("faults", range(1, 16))
def test_the_first_fault_in_kafkas_order_wins(faults: int) -> None:
    """SEMANTICS 1.5, steps 2, 5, 6 and 8"""
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
    """SEMANTICS 1.4, 1.5: batches are framed one at a time."""
    torn = struct.pack(">qi", 0, 13)
    with pytest.raises(InvalidRecordError):
        analyze(v2(base_offset=1) + torn)
    with pytest.raises(RecordTooLargeError):
        analyze(ONE + torn, max_message_bytes=len(ONE) - 1)


def test_the_analysis_tells_of_all_batches() -> None:
    """SEMANTICS 1.5(3), (7), (8), 1.34"""
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
    """SEMANTICS 1.5(3), 1.34"""
    analysis = follow(legacy(1, offset=7, timestamp=NOW + 5) + legacy(0, offset=8))
    assert (analysis.first_offset, analysis.last_offset_of_first_batch, analysis.last_offset) == (-1, 7, 8)
    assert analysis.max_timestamp == NOW + 5
    assert analysis.last_leader_epoch is None


def test_the_largest_timestamp_is_at_least_minus_1() -> None:
    assert follow(v2(max_timestamp=-5)).max_timestamp == -1
    assert follow(v2(max_timestamp=0)).max_timestamp == 0


# ---- SEMANTICS 1.5(2a): a follower and epochs above its own


def at(offset: int, leader_epoch: int) -> bytes:
    return v2(base_offset=offset, leader_epoch=leader_epoch)


def test_from_the_first_batch_of_a_newer_epoch_on_all_is_dropped() -> None:
    """SEMANTICS 1.5(2a), vector V27"""
    analysis = follow(at(0, 1) + at(1, 2) + at(2, 5) + at(3, 2), leader_epoch=2)
    assert (analysis.first_offset, analysis.last_offset, len(analysis.batches)) == (0, 1, 2)
    assert analysis.valid_bytes == 2 * len(ONE)
    assert analysis.last_leader_epoch == 2


def test_a_first_batch_of_a_newer_epoch_leaves_nothing() -> None:
    """SEMANTICS 1.5(2a), 1.7, V27"""
    analysis = follow(at(0, 5), leader_epoch=2)
    assert (analysis.valid_bytes, analysis.first_offset, analysis.last_offset) == (0, -1, -1)


def test_an_epoch_of_minus_1_or_the_callers_own_is_accepted() -> None:
    assert len(follow(at(0, -1) + at(1, 2) + legacy(1, offset=2), leader_epoch=2).batches) == 3
    assert len(follow(at(0, 2**31 - 1)).batches) == 1


def test_dropped_batches_are_framed_but_not_checked() -> None:
    """SEMANTICS 1.5(2a): no CRC, no order; the walk goes on, so a broken length still shows."""
    data = at(5, 1) + at(6, 3) + broken_crc(at(2, 1))
    assert follow(data, leader_epoch=1).last_offset == 5
    with pytest.raises(CorruptRecordError):
        follow(data + struct.pack(">qi", 0, 13), leader_epoch=1)


def test_a_leaders_append_ignores_epochs() -> None:
    assert analyze(v2(leader_epoch=9), leader_epoch=2).valid_bytes == len(ONE)


# ---- SEMANTICS 1.6: increasing offsets


def test_a_followers_offsets_increase() -> None:
    """SEMANTICS 1.6; UnifiedLogTest.testAppendWithOutOfOrderOffsetsThrowsException"""
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
    """SEMANTICS 1.1"""
    assert not analyze(legacy(1) * 2).monotonic
    assert analyze(legacy(1) + legacy(1, offset=1)).monotonic


def test_disorder_wins_over_a_later_batchs_fault_and_loses_to_its_own() -> None:
    """SEMANTICS 1.6"""
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


# ---- SEMANTICS 1.23, 1.25: a follower


def test_a_followers_append_begins_at_or_above_the_log_end() -> None:
    """SEMANTICS 1.23"""
    analysis = follow(v2(messages_of([b"a", b"b", b"c"]), base_offset=4, leader_epoch=0))
    for next_offset in (0, 3, 4):
        validate_follower(analysis, next_offset=next_offset)
    for next_offset in (5, 7):
        with pytest.raises(UnexpectedAppendOffsetError) as caught:
            validate_follower(analysis, next_offset=next_offset)
        assert (caught.value.first_offset, caught.value.last_offset) == (4, 6)


def test_the_error_names_the_last_offset_of_the_whole_append() -> None:
    """SEMANTICS 1.23"""
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        validate_follower(follow(v2(base_offset=1) + v2(base_offset=8)), next_offset=3)
    assert (caught.value.first_offset, caught.value.last_offset) == (1, 8)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_legacy_append_begins_at_the_last_offset_of_its_first_batch(magic: int, codec: str) -> None:
    """SEMANTICS 1.23; UnifiedLogTest.testAppendBelowExpectedOffsetThrowsException"""
    inner = [legacy(magic, offset=n) for n in (4, 5, 6)]
    data = b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec, offset=6)
    first = 4 if codec == "none" else 6
    validate_follower(follow(data), next_offset=first)
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        validate_follower(follow(data), next_offset=first + 1)
    assert (caught.value.first_offset, caught.value.last_offset) == (first, 6)


@pytest.mark.parametrize("leader_epoch", [-1, -(2**31)])
def test_a_followers_batch_has_an_epoch(leader_epoch: int) -> None:
    """SEMANTICS 1.26: Kafka's cache of epochs refuses a negative one, after SEMANTICS 1.23 and before anything is
    written."""
    data = v2(base_offset=3, leader_epoch=0) + v2(base_offset=4, leader_epoch=leader_epoch)
    with pytest.raises(InvalidRecordError, match="leader epoch"):
        validate_follower(follow(data), next_offset=3)
    with pytest.raises(UnexpectedAppendOffsetError):
        validate_follower(follow(data), next_offset=4)


def test_a_follower_that_took_nothing_has_nothing_below_the_log_end() -> None:
    validate_follower(follow(b""), next_offset=5)


def test_a_followers_bytes_are_the_callers() -> None:
    """SEMANTICS 1.25: nothing is rewritten, not even copied; records are not looked at."""
    data = (
        v2(b"garbage", base_offset=4, leader_epoch=7, attributes=APPEND_TIME | CONTROL, count=-3, last_offset_delta=0)
        + b"tail"
    )
    analysis = follow(data)
    assert analysis.data.obj is data
    assert bytes(analysis.data) == data[:-4]


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
