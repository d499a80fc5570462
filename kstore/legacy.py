"""Messages of formats v0 and v1, which a leader still takes and turns into v2 (FORMAT.md 5).

Takes wrappers and messages apart as a broker does: what a reader may overlook (another magic inside, an inner CRC) is
kept visible here, for validation to judge. Readers of files have `_core`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore import compression
from kstore.errors import CorruptRecordError, InvalidRecordError

__all__ = ["MIN_MESSAGE_BYTES", "MIN_V1_MESSAGE_BYTES", "Message", "messages"]

MIN_MESSAGE_BYTES = 14  # the smallest size that an entry of any format may declare
MIN_V1_MESSAGE_BYTES = 22  # null key, null value

_ENTRY = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_SIZE = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_CODEC_MASK = 0x07
_APPEND_TIME_BIT = 0x08
_NO_TIMESTAMP = -1


class Message(NamedTuple):
    """A message of an old format as it stands; its CRC has not been looked at, nor its key and value."""

    data: memoryview
    magic: int
    attributes: int
    timestamp: int

    @property
    def claims_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & _APPEND_TIME_BIT != 0

    @property
    def crc_holds(self) -> bool:
        stored: int = _CRC.unpack_from(self.data)[0]
        return stored == zlib.crc32(self.data[4:])

    @property
    def has_key(self) -> bool:
        """Whether the key is not null, however long it claims to be."""
        return _size(self.data, 14 if self.magic else 6) >= 0

    def fields(self) -> tuple[bytes | None, bytes | None]:
        """Key and value; `InvalidRecordError` when they reach past the message."""
        key, position = _field(self.data, 14 if self.magic else 6)
        value, _ = _field(self.data, position)
        return key, value


def messages(entry: memoryview, position: int = 0) -> Iterable[Message]:
    """The messages of one whole entry: itself, or those inside when it is compressed. Can be iterated again.

    `position` is for errors. Raises `InvalidRecordError` for a message that does not hold what it declares or a wrapper
    that breaks the rules of one, `CorruptRecordError` for data that does not decompress or has no framing; while it
    iterates, too.
    """
    outer = _parse(entry[_ENTRY.size :])
    if not outer.attributes & _CODEC_MASK:
        return (outer,)
    return _Wrapped(outer, _ENTRY.unpack_from(entry)[0], position)


class _Wrapped:
    """The messages inside a compressed wrapper (FORMAT.md 5.1); can be iterated again. Not thread-safe."""

    def __init__(self, wrapper: Message, offset: int, position: int) -> None:
        codec = wrapper.attributes & _CODEC_MASK
        if codec > compression.LZ4:
            raise InvalidRecordError(f"compression type {codec} in format v{wrapper.magic}: 1 to 3 are known")
        _, value = wrapper.fields()
        if value is None:
            raise InvalidRecordError("compressed wrapper without a value")
        self._append_time = wrapper.timestamp if wrapper.claims_append_time else None
        self._position = position
        self._plain = memoryview(compression.decompress(codec, value, magic=wrapper.magic))
        last_offset = None
        for last_offset, _ in self._entries():  # noqa: B007
            pass
        if last_offset is None:
            raise InvalidRecordError("compressed wrapper without a message inside")
        if wrapper.magic and 0 != offset < last_offset:
            raise InvalidRecordError(f"wrapper at offset {offset} with a last message at {last_offset}")

    def _entries(self) -> Iterator[tuple[int, memoryview]]:
        position, end = 0, len(self._plain)
        while end - position >= _ENTRY.size:
            offset, size = _ENTRY.unpack_from(self._plain, position)
            if size < MIN_MESSAGE_BYTES:
                raise CorruptRecordError(
                    f"message of {size} bytes in a wrapper: the smallest has {MIN_MESSAGE_BYTES}",
                    position=self._position,
                )
            position += _ENTRY.size
            if size > end - position:
                return
            yield offset, self._plain[position : position + size]
            position += size

    def __iter__(self) -> Iterator[Message]:
        for _, data in self._entries():
            message = _parse(data)
            if message.attributes & _CODEC_MASK:
                raise InvalidRecordError("compressed message inside a compressed message")
            if self._append_time is not None and message.magic == 1:
                message = message._replace(timestamp=self._append_time)
            yield message


def _parse(data: memoryview) -> Message:
    """Take the head of a message of at least 14 bytes apart."""
    magic, attributes = data[4], data[5]
    timestamp: int = _TIMESTAMP.unpack_from(data, 6)[0] if magic else _NO_TIMESTAMP
    return Message(data, magic, attributes, timestamp)


def _size(data: memoryview, position: int) -> int:
    if position + _SIZE.size > len(data):
        raise InvalidRecordError(f"message of {len(data)} bytes ends before a field's length at {position}")
    size: int = _SIZE.unpack_from(data, position)[0]
    return size


def _field(data: memoryview, position: int) -> tuple[bytes | None, int]:
    """A nullable field at `position`, and where the next one begins."""
    size = _size(data, position)
    start = position + _SIZE.size
    if size < 0:
        return None, start
    if size > len(data) - start:
        raise InvalidRecordError(f"field of {size} bytes where the message has {len(data) - start} left")
    return bytes(data[start : start + size]), start + size
