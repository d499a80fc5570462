"""The records of `__consumer_offsets` that a store writes and uses, in Kafka's format (FORMAT 12.2).

A committed position is key type 1 with value version 4, byte for byte as a broker of 4.3.0 writes it. Groups and their
members, of any protocol, are only read: they decide when positions expire. Other types are ignored.
"""

from __future__ import annotations

import base64
import struct
import uuid
from typing import NamedTuple

from kstore.codec.coordinator.record_texts import CLASSIC_GROUP, OFFSET
from kstore.codec.coordinator.schemas import Message, Reader, SchemaError, plain_fields

__all__ = [
    "GroupKey",
    "GroupState",
    "MemberKey",
    "OffsetKey",
    "Position",
    "SchemaError",
    "group_key",
    "java_hash",
    "offset_key",
    "offset_value",
    "parse_group",
    "parse_key",
    "parse_position",
    "partition_of_name",
    "read_version",
    "text_bytes",
    "unsigned_varint",
]

_LONGEST = 0x7FFF
_OFFSET_HEAD, _GROUP_HEAD = b"\x00\x01", b"\x00\x02"
_LENGTH = struct.Struct(">h")
_NUMBER = struct.Struct(">i")
_VALUE_HEAD = struct.Struct(">hqi")
_TIMESTAMP = struct.Struct(">q")
_NO_TAGS, _TOPIC_ID_TAG = b"\x00", b"\x01\x00\x10"


class OffsetKey(NamedTuple):
    """The key of a committed position."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of the record of a group, of the classic protocol (type 2) or a newer one."""

    group: str
    classic: bool


class MemberKey(NamedTuple):
    """The key of a member of a group of the newer protocols."""

    group: str
    member: str


class Position(NamedTuple):
    """The value of a committed position; `topic_id` and `expires_ms` are None if the record has none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    topic_id: uuid.UUID | None = None
    expires_ms: int | None = None


class GroupState(NamedTuple):
    """The fields of a classic group's record that its positions depend on."""

    protocol_type: str
    members: int
    state_timestamp: int


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: signed, over UTF-16 code units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of_name(name: str, partitions: int) -> int:
    """Return the partition of an internal topic that a group or a transactional id belongs to."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def text_bytes(what: str, text: str) -> bytes:
    """Encode a text as UTF-8; raises `ValueError` for more than 32767 bytes, the limit of Kafka's length field."""
    data = text.encode()
    if len(data) > _LONGEST:
        raise ValueError(f"{what} takes {len(data)} bytes; {_LONGEST} are allowed")
    return data


def _short(what: str, text: str) -> bytes:
    data = text_bytes(what, text)
    return _LENGTH.pack(len(data)) + data


def unsigned_varint(number: int) -> bytes:
    """Encode an unsigned varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed position."""
    return _OFFSET_HEAD + _short("group", group) + _short("topic", topic) + _NUMBER.pack(partition)


def group_key(group: str) -> bytes:
    """Encode the key of a classic group; a record with it and a null value deletes the group."""
    return _GROUP_HEAD + _short("group", group)


def offset_value(position: Position) -> bytes:
    """Encode the value of a committed position, version 4, without `expires_ms`, which clients no longer send."""
    metadata = text_bytes("metadata", position.metadata)
    head = _VALUE_HEAD.pack(4, position.offset, position.leader_epoch)
    tags = _NO_TAGS if position.topic_id is None else _TOPIC_ID_TAG + position.topic_id.bytes
    stamp = _TIMESTAMP.pack(position.commit_timestamp)
    return b"".join((head, unsigned_varint(len(metadata) + 1), metadata, stamp, tags))


# Reading records of any version.

_GROUP_FIELDS = plain_fields("group:string")
_OFFSET_FIELDS = plain_fields("group:string topic:string partition:int32")
_MEMBER_FIELDS = plain_fields("group:string member:string")
_CLASSIC_KEY = 2
_NEWER_GROUPS = (3, 11, 17)  # consumer, share, streams
_NEWER_MEMBERS = (5, 10, 19)


def parse_key(data: bytes) -> OffsetKey | GroupKey | MemberKey | None:
    """Read a key; return None for a type that does not concern positions. Raises `SchemaError` for an invalid key."""
    reader = Reader(data)
    kind = reader.integer("int16")
    if kind in (0, 1):
        fields = reader.struct(_OFFSET_FIELDS, 0, flexible=False)
        return OffsetKey(fields["group"], fields["topic"], fields["partition"])
    if kind == _CLASSIC_KEY or kind in _NEWER_GROUPS:
        return GroupKey(reader.struct(_GROUP_FIELDS, 0, flexible=False)["group"], kind == _CLASSIC_KEY)
    if kind in _NEWER_MEMBERS:
        fields = reader.struct(_MEMBER_FIELDS, 0, flexible=False)
        return MemberKey(fields["group"], fields["member"])
    return None


def parse_position(data: bytes) -> Position:
    """Read a committed position of any version; raises `SchemaError`."""
    reader = Reader(data)
    fields = OFFSET.read(reader, read_version(reader, OFFSET))
    expires = fields.get("expireTimestamp", -1)
    return Position(
        fields["offset"],
        fields.get("leaderEpoch", -1),
        fields["metadata"],
        fields["commitTimestamp"],
        uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topicId"] + "==")) if "topicId" in fields else None,
        None if expires == -1 else expires,
    )


def parse_group(data: bytes) -> GroupState:
    """Read a classic group's record of any version; raises `SchemaError`."""
    reader = Reader(data)
    fields = CLASSIC_GROUP.read(reader, read_version(reader, CLASSIC_GROUP))
    return GroupState(fields["protocolType"], len(fields["members"]), fields.get("currentStateTimestamp", -1))


def read_version(reader: Reader, message: Message) -> int:
    """Read the version at the start of a value; raises `SchemaError` if it is not known."""
    version = reader.integer("int16")
    if not 0 <= version <= message.versions:
        raise SchemaError(f"version {version} is unknown; 0 to {message.versions} are known")
    return version
