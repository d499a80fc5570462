"""Coordinator records as text, in the words of Kafka's dump tool, where the golden dumps do not reach."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec.coordinator.record_texts import OFFSETS, SHARE_GROUPS, TRANSACTIONS, Coordinator, control_text
from kstore.errors import CorruptRecordError, InvalidRecordError

GROUP = struct.pack(">hh3s", 3, 3, b"abc")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (b"\0\x63", b"", "Unknown record type 99 at offset 5, skipping."),
        (GROUP, b"\0\x09", "Error at offset 5, skipping. Found an unknown record version 9 for 3 type"),
        (
            GROUP,
            b"\0\0\0",
            "Error at offset 5, skipping. Could not read record with version 0 from value's buffer due to: null.",
        ),
        (
            GROUP[:-1],
            b"",
            "Error at offset 5, skipping. Could not read record with version 3 from key's buffer due to: Error reading"
            " byte array of 3 byte(s): only 2 byte(s) available.",
        ),
        (
            GROUP,
            b"\0\0\0\0\0\1" + b"\xff" * 5,
            "Error at offset 5, skipping. Could not read record with version 0 from value's buffer due to: Varint is"
            " too long, the most significant bit in the 5th byte is set, converted value: ffffffff.",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_place_of_the_key(key: bytes, value: bytes, text: str) -> None:
    assert OFFSETS(5, key, value) == (text.encode(), None)


def test_a_tagged_field_is_printed_unless_it_has_its_default() -> None:
    key = b'{"type":"3","data":{"groupId":"abc"}}'
    assert OFFSETS(0, GROUP, bytes.fromhex("0000 00000002 00")) == (key, b'{"version":"0","data":{"epoch":2}}')
    hashed = bytes.fromhex("0000 00000002 01 00 08 0000000000000007")
    assert OFFSETS(0, GROUP, hashed) == (key, b'{"version":"0","data":{"epoch":2,"metadataHash":7}}')


def test_a_record_without_a_key_ends_the_dump() -> None:
    with pytest.raises(InvalidRecordError, match="message had a missing key"):
        OFFSETS(5, None, b"")


@given(st.sampled_from([OFFSETS, TRANSACTIONS, SHARE_GROUPS]), st.integers(0, 24), st.binary(max_size=80), st.binary())
def test_any_bytes_give_text(coordinator: Coordinator, number: int, key: bytes, value: bytes) -> None:
    text, _ = coordinator(0, struct.pack(">hh", number, min(len(key), 3)) + key, b"\0\0" + value)
    assert text.decode()


@given(st.integers(0, 7), st.binary(max_size=60))
def test_a_control_record_of_any_bytes_gives_text_or_is_corrupt(number: int, value: bytes) -> None:
    try:
        assert control_text(struct.pack(">hh", 0, number), value).decode()
    except CorruptRecordError:
        assert number < 7


@pytest.mark.parametrize(("size", "sound"), [(5, False), (6, True), (7, True)])
def test_a_marker_has_six_bytes(size: int, sound: bool) -> None:
    value = bytes([0, 0, 0, 0, 0, 9, 0])[:size]
    if sound:
        assert control_text(bytes(4), value) == b" endTxnMarker: ABORT coordinatorEpoch: 9"
    else:
        with pytest.raises(CorruptRecordError, match="5 bytes"):
            control_text(bytes(4), value)
