"""Messages of formats 0 and 1, which a leader still accepts and converts to v2 (FORMAT 5).

Details that a reader may ignore (another magic inside a wrapper, an inner CRC) are exposed for validation.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.codec import compression, header
from kstore.codec._legacy_messages import frame
from kstore.errors import InvalidRecordError

__all__ = ["Message", "Wrapped", "messages", "unwrap"]

_CRC = struct.Struct(">I")
_SIZE = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_NO_TIMESTAMP = -1


class Message(NamedTuple):
    """A message of an old format; neither its CRC nor its key and value have been checked."""

    data: memoryview
    magic: int
    attributes: int
    timestamp: int

    @property
    def claims_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & header.TIMESTAMP_TYPE_BIT != 0

    @property
    def crc(self) -> int:
        stored: int = _CRC.unpack_from(self.data)[0]
        return stored

    @property
    def crc_holds(self) -> bool:
        return self.crc == zlib.crc32(self.data[_CRC.size :])

    def fields(self) -> tuple[bytes | None, bytes | None]:
        """Return key and value; raises `InvalidRecordError` if they extend past the message."""
        key, position = _field(self.data, 14 if self.magic else 6)
        value, _ = _field(self.data, position)
        return key, value


def messages(entry: memoryview, position: int = 0) -> Iterable[Message]:
    """Return the messages of one whole entry: the entry, or the messages inside it if it is compressed.

    The result can be iterated again. `position` is for errors. Raises, also during iteration, `InvalidRecordError` for
    an invalid wrapper or a field that extends past its message, and `CorruptRecordError` for data that does not
    decompress or is not framed as messages.
    """
    outer = _parse(entry[header.LOG_OVERHEAD :])
    return unwrap(entry, position) if outer.attributes & header.CODEC_MASK else (outer,)


def unwrap(entry: memoryview, position: int = 0) -> Wrapped:
    """Decompress one whole entry that is a wrapper; raises the same errors as `messages`."""
    return Wrapped(_parse(entry[header.LOG_OVERHEAD :]), header.BASE_OFFSET.of(entry), position)


class Wrapped:
    """The messages inside a compressed wrapper (FORMAT 5.1); can be iterated again. Not thread-safe.

    `plain` has the bytes of `count` whole messages. `append_time` is their timestamp if the wrapper says LogAppendTime,
    else None. Raises the same errors as `messages`.
    """

    def __init__(self, wrapper: Message, offset: int, position: int) -> None:
        codec = wrapper.attributes & header.CODEC_MASK
        if codec > compression.LZ4:
            raise InvalidRecordError(f"compression type {codec} in format v{wrapper.magic}: 1 to 3 are known")
        _, value = wrapper.fields()
        if value is None:
            raise InvalidRecordError("compressed wrapper without a value")
        self.append_time = wrapper.timestamp if wrapper.claims_append_time else None
        self.plain = memoryview(compression.decompress(codec, value, magic=wrapper.magic))
        self.count, last_offset = frame(self.plain, position=position)
        if self.count == 0:
            raise InvalidRecordError("compressed wrapper without a message inside")
        if wrapper.magic and 0 != offset < last_offset:
            raise InvalidRecordError(f"wrapper at offset {offset} with a last message at {last_offset}")

    def __iter__(self) -> Iterator[Message]:
        position = 0
        for _ in range(self.count):
            end = position + header.size_of(self.plain, position)
            message = _parse(self.plain[position + header.LOG_OVERHEAD : end])
            position = end
            if message.attributes & header.CODEC_MASK:
                raise InvalidRecordError("compressed message inside a compressed message")
            if self.append_time is not None and message.magic == 1:
                message = message._replace(timestamp=self.append_time)
            yield message


def _parse(data: memoryview) -> Message:
    """Parse the head of a message of at least 14 bytes."""
    magic, attributes = data[4], data[5]
    timestamp: int = _TIMESTAMP.unpack_from(data, 6)[0] if magic else _NO_TIMESTAMP
    return Message(data, magic, attributes, timestamp)


def _size(data: memoryview, position: int) -> int:
    if position + _SIZE.size > len(data):
        raise InvalidRecordError(f"message of {len(data)} bytes ends before a field's length at {position}")
    size: int = _SIZE.unpack_from(data, position)[0]
    return size


def _field(data: memoryview, position: int) -> tuple[bytes | None, int]:
    """Return the nullable field at `position`, and the position of the next one."""
    size = _size(data, position)
    start = position + _SIZE.size
    if size < 0:
        return None, start
    if size > len(data) - start:
        raise InvalidRecordError(f"field of {size} bytes where the message has {len(data) - start} left")
    return bytes(data[start : start + size]), start + size
