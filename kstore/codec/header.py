"""The header of a batch, for Python: the position of each field, the size of a batch, and its offsets.

No other Python module parses headers. `c/wire.h` has the same layout for C and Cython; a test compares the two.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from kstore._core import crc32c

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LOG_OVERHEAD = 12
"""Bytes that the batch length does not count: the base offset and the length itself."""
MIN_V0_MESSAGE = 14
"""The lowest length of an entry of any format."""
MIN_V1_MESSAGE = 22
"""The lowest length of a message of format 1, with null key and value."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
KNOWN_BITS = 0x7F


class Field:
    """A number in a header, in the bytes `[at, end)` of the batch. Immutable; thread-safe."""

    __slots__ = ("_form", "at", "end")

    def __init__(self, at: int, form: str) -> None:
        self._form = struct.Struct(">" + form)
        self.at = at
        self.end = at + self._form.size

    def of(self, batch: ReadableBuffer, position: int = 0) -> int:
        """Return the field of the batch at `position`."""
        value: int = self._form.unpack_from(batch, position + self.at)[0]
        return value

    def put(self, batch: WriteableBuffer, value: int) -> None:
        """Write the field into a batch."""
        self._form.pack_into(batch, self.at, value)

    def bytes_of(self, value: int) -> bytes:
        """Return the bytes of the field with this value."""
        return self._form.pack(value)


# Format 2 (FORMAT 2.1); each field starts where the one before it ends.
BASE_OFFSET = Field(0, "q")
BATCH_LENGTH = Field(BASE_OFFSET.end, "i")
LEADER_EPOCH = Field(BATCH_LENGTH.end, "i")
MAGIC = Field(LEADER_EPOCH.end, "b")
CRC = Field(MAGIC.end, "I")
ATTRIBUTES = Field(CRC.end, "h")
LAST_OFFSET_DELTA = Field(ATTRIBUTES.end, "i")
BASE_TIMESTAMP = Field(LAST_OFFSET_DELTA.end, "q")
MAX_TIMESTAMP = Field(BASE_TIMESTAMP.end, "q")
PRODUCER_ID = Field(MAX_TIMESTAMP.end, "q")
PRODUCER_EPOCH = Field(PRODUCER_ID.end, "h")
BASE_SEQUENCE = Field(PRODUCER_EPOCH.end, "i")
RECORDS_COUNT = Field(BASE_SEQUENCE.end, "i")

# Formats 0 and 1 (FORMAT 5), after the base offset and the length; the magic is at the same position as in format 2.
LEGACY_CRC = Field(BATCH_LENGTH.end, "I")
LEGACY_ATTRIBUTES = Field(MAGIC.end, "B")
LEGACY_TIMESTAMP = Field(LEGACY_ATTRIBUTES.end, "q")

UP_TO_MAGIC_BYTES = MAGIC.end
UP_TO_CRC_BYTES = CRC.end
"""The size of the fields that identify a batch of any format: offset, length, epoch or CRC, magic, CRC."""
HEADER_BYTES = RECORDS_COUNT.end

_FORM = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qii")
_length_of = struct.Struct(">i").unpack_from
_LENGTH_AT = BATCH_LENGTH.at
_COVERED_FROM = ATTRIBUTES.at
_new = tuple.__new__  # faster than `Header(...)`: a header is read for each batch that is appended as bytes


class Header(NamedTuple):
    """The fields of a batch of format 2, in their order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def read_header(batch: ReadableBuffer, position: int = 0) -> Header:
    """Return the header of the v2 batch at `position`, which must have at least 61 bytes."""
    return _new(Header, _FORM.unpack_from(batch, position))


def size_of(batch: ReadableBuffer, position: int = 0) -> int:
    """Return the size in bytes that the batch or message at `position` declares."""
    size: int = _length_of(batch, position + _LENGTH_AT)[0]
    return size + LOG_OVERHEAD


def assign(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and the leader epoch into a whole batch; no CRC covers them."""
    _PLACE.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch)


def records_of(batch: ReadableBuffer, position: int = 0) -> int:
    """Return the number of offsets of the v2 batch at `position`."""
    return LAST_OFFSET_DELTA.of(batch, position) + 1


def last_offset_of(batch: ReadableBuffer, position: int = 0) -> int:
    """Return the last offset of the batch, or the offset of the v0 or v1 message; wraps at 2^63 as in Java."""
    offset = BASE_OFFSET.of(batch, position)
    if MAGIC.of(batch, position) < 2:
        return offset
    return (offset + LAST_OFFSET_DELTA.of(batch, position) + (1 << 63)) % (1 << 64) - (1 << 63)


def computed_crc(batch: ReadableBuffer) -> int:
    """Return the CRC of a v2 batch, computed over the bytes that it covers."""
    return crc32c(memoryview(batch)[_COVERED_FROM:])


def computed_crc_at(batches: memoryview, position: int, size: int) -> int:
    """Return the computed CRC of the v2 batch of `size` bytes at `position`."""
    return crc32c(batches[position + _COVERED_FROM : position + size])


def legacy_computed_crc(entry: ReadableBuffer) -> int:
    """Return the CRC of a message of format 0 or 1, computed over the bytes that it covers."""
    return zlib.crc32(memoryview(entry)[MAGIC.at :])


def crc_holds(batch: ReadableBuffer) -> bool:
    """Return whether the CRC of a v2 batch is correct."""
    return CRC.of(batch) == computed_crc(batch)


def legacy_crc_holds(entry: ReadableBuffer) -> bool:
    """Return whether the CRC of a message of format 0 or 1 is correct."""
    return LEGACY_CRC.of(entry) == legacy_computed_crc(entry)
