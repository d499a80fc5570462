"""The records in the topics of Kafka's coordinators as text: consumer groups, transactions, share groups.

Has every record type of Kafka 4.3.0, and the control records of a log. A record's key starts with its type, and its
value starts with a version (FORMAT 12). Messages about unreadable records are those of Kafka's dump tool.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kstore.codec.coordinator.schemas import Field, Many, Message, Reader, SchemaError, json_text, plain_fields
from kstore.errors import CorruptRecordError, InvalidRecordError

__all__ = [
    "CLASSIC_GROUP",
    "OFFSET",
    "OFFSETS",
    "SHARE_GROUPS",
    "TRANSACTION",
    "TRANSACTIONS",
    "Coordinator",
    "control_json",
    "control_text",
]


class _Type(NamedTuple):
    """A record type: the fields of its key, and its value."""

    key: tuple[Field, ...]
    value: Message


def _flexible(*fields: Field) -> Message:
    return Message(fields, versions=0, flexible=0)


_GROUP = plain_fields("groupId:string")
_MEMBER = plain_fields("groupId:string memberId:string")
_PARTITION = plain_fields("group:string topic:string partition:int32")

# ---- Offsets and classic groups.

_OLD_OFFSET = Message(plain_fields("offset:int64 metadata:string commitTimestamp:int64"))
OFFSET = Message(
    (
        *plain_fields("offset:int64 leaderEpoch:int32@3 metadata:string commitTimestamp:int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0),
    ),
    versions=4,
    flexible=4,
)
_CLASSIC_MEMBER = plain_fields(
    "memberId:string groupInstanceId:string?@3 clientId:string clientHost:string rebalanceTimeout:int32@1"
    " sessionTimeout:int32 subscription:bytes assignment:bytes"
)
_CLASSIC = plain_fields(
    "protocolType:string generation:int32 protocol:string? leader:string? currentStateTimestamp:int64@2"
)
CLASSIC_GROUP = Message((*_CLASSIC, Field("members", Many(_CLASSIC_MEMBER))), versions=4, flexible=4)
_TOPIC_NUMBERS = Many(plain_fields("topic:string partitions:int32[]"))
_SUBSCRIPTION = Message(
    (
        *plain_fields("topics:string[] userData:bytes?"),
        Field("ownedPartitions", _TOPIC_NUMBERS, since=1),
        *plain_fields("generationId:int32@2 rackId:string?@3"),
    )
)
_ASSIGNMENT = Message((Field("assignedPartitions", _TOPIC_NUMBERS), *plain_fields("userData:bytes?")))

# ---- Groups of the newer protocols.

_TOPIC_IDS = plain_fields("topicId:uuid partitions:int32[]")
_EPOCHS = Field("assignmentEpochs", Many("int32"), nullable=True, tag=0)
_OWNED = Many((*_TOPIC_IDS, _EPOCHS))
_TARGET = _flexible(*plain_fields("assignmentEpoch:int32"), Field("assignmentTimestamp", "int64", tag=0))
_CLIENT = plain_fields("rackId:string? clientId:string clientHost:string")
_CURRENT = plain_fields("memberEpoch:int32 previousMemberEpoch:int32 state:int8")
_PROTOCOLS = Field("supportedProtocols", Many(plain_fields("name:string metadata:bytes")))
_CONSUMER_MEMBER = _flexible(
    *plain_fields("instanceId:string?"),
    *_CLIENT,
    *plain_fields("subscribedTopicNames:string[] subscribedTopicRegex:string?"),
    *plain_fields("rebalanceTimeoutMs:int32 serverAssignor:string?"),
    Field("classicMemberMetadata", (*plain_fields("sessionTimeoutMs:int32"), _PROTOCOLS), nullable=True, tag=0),
)
_RACKS = Field("partitionMetadata", Many(plain_fields("partition:int32 racks:string[]")))
_SHARE_TOPIC = plain_fields("topicId:uuid topicName:string")
_SHARE_TOPICS = Many((*_SHARE_TOPIC, *plain_fields("partitions:int32[]")))
_PARTITION_METADATA = _flexible(Field("topics", Many((*_SHARE_TOPIC, *plain_fields("numPartitions:int32"), _RACKS))))

# ---- Streams groups.

_PAIRS = Many(plain_fields("key:string value:string"))
_TASK = plain_fields("subtopologyId:string partitions:int32[]")
_TASKS, _OWNED_TASKS = Many(_TASK), Many((*_TASK, _EPOCHS))
_STREAMS_TOPICS = Many(
    (*plain_fields("name:string partitions:int32 replicationFactor:int16"), Field("topicConfigs", _PAIRS))
)
_STREAMS_MEMBER = _flexible(
    *plain_fields("instanceId:string?"),
    *_CLIENT,
    *plain_fields("rebalanceTimeoutMs:int32 topologyEpoch:int32 processId:string"),
    Field("userEndpoint", plain_fields("host:string port:uint16"), nullable=True),
    Field("clientTags", _PAIRS),
)
_COPARTITIONS = Many(plain_fields("sourceTopics:int16[] sourceTopicRegex:int16[] repartitionSourceTopics:int16[]"))
_SUBTOPOLOGY = (
    *plain_fields("subtopologyId:string sourceTopics:string[] sourceTopicRegex:string[]"),
    Field("stateChangelogTopics", _STREAMS_TOPICS),
    *plain_fields("repartitionSinkTopics:string[]"),
    Field("repartitionSourceTopics", _STREAMS_TOPICS),
    Field("copartitionGroups", _COPARTITIONS),
)
_TOPOLOGY = _flexible(*plain_fields("epoch:int32"), Field("subtopologies", Many(_SUBTOPOLOGY)))


def _task_fields(kind: Many, suffix: str = "") -> tuple[Field, ...]:
    return tuple(Field(f"{name}Tasks{suffix}", kind) for name in ("active", "standby", "warmup"))


_OFFSETS_TYPES = {
    0: _Type(_PARTITION, _OLD_OFFSET),
    1: _Type(_PARTITION, OFFSET),
    2: _Type(plain_fields("group:string"), CLASSIC_GROUP),
    3: _Type(_GROUP, _flexible(*plain_fields("epoch:int32"), Field("metadataHash", "int64", tag=0))),
    4: _Type(_GROUP, _PARTITION_METADATA),
    5: _Type(_MEMBER, _CONSUMER_MEMBER),
    6: _Type(_GROUP, _TARGET),
    7: _Type(_MEMBER, _flexible(Field("topicPartitions", Many(_TOPIC_IDS)))),
    8: _Type(
        _MEMBER, _flexible(*_CURRENT, Field("assignedPartitions", _OWNED), Field("partitionsPendingRevocation", _OWNED))
    ),
    10: _Type(_MEMBER, _flexible(*_CLIENT, *plain_fields("subscribedTopicNames:string[]"))),
    11: _Type(_GROUP, _flexible(*plain_fields("epoch:int32 metadataHash:int64"))),
    12: _Type(_GROUP, _TARGET),
    13: _Type(_MEMBER, _flexible(Field("topicPartitions", Many(_TOPIC_IDS)))),
    14: _Type(_MEMBER, _flexible(*_CURRENT, Field("assignedPartitions", Many(_TOPIC_IDS)))),
    15: _Type(
        _GROUP,
        _flexible(
            Field("initializingTopics", _SHARE_TOPICS),
            Field("initializedTopics", _SHARE_TOPICS),
            Field("deletingTopics", Many(_SHARE_TOPIC)),
        ),
    ),
    16: _Type(
        plain_fields("groupId:string regularExpression:string"),
        _flexible(*plain_fields("topics:string[] version:int64 timestamp:int64")),
    ),
    17: _Type(
        _GROUP,
        _flexible(
            *plain_fields("epoch:int32 metadataHash:int64"),
            Field("validatedTopologyEpoch", "int32", tag=0, default=-1),
            Field("lastAssignmentConfigs", _PAIRS, nullable=True, tag=1),
        ),
    ),
    19: _Type(_MEMBER, _STREAMS_MEMBER),
    20: _Type(_GROUP, _TARGET),
    21: _Type(_MEMBER, _flexible(*_task_fields(_TASKS))),
    22: _Type(
        _MEMBER, _flexible(*_CURRENT, *_task_fields(_OWNED_TASKS), *_task_fields(_OWNED_TASKS, "PendingRevocation"))
    ),
    23: _Type(_GROUP, _TOPOLOGY),
}

TRANSACTION = Message(
    (
        *plain_fields("producerId:int64"),
        Field("previousProducerId", "int64", since=1, tag=0, default=-1),
        Field("nextProducerId", "int64", since=1, tag=1, default=-1),
        *plain_fields("producerEpoch:int16"),
        Field("nextProducerEpoch", "int16", since=1, tag=3, default=-1),
        *plain_fields("transactionTimeoutMs:int32 transactionStatus:int8"),
        Field("transactionPartitions", Many(plain_fields("topic:string partitionIds:int32[]")), nullable=True),
        *plain_fields("transactionLastUpdateTimestampMs:int64 transactionStartTimestampMs:int64"),
        Field("clientTransactionVersion", "int16", since=1, tag=2, default=0),
    ),
    versions=1,
    flexible=1,
)

_SHARE_KEY = plain_fields("groupId:string topicId:uuid partition:int32")
_COMPLETE = Field("deliveryCompleteCount", "int32", tag=0, default=-1)
_BATCHES = Field(
    "stateBatches", Many(plain_fields("firstOffset:int64 lastOffset:int64 deliveryState:int8 deliveryCount:int16"))
)
_SHARE_TYPES = {
    0: _Type(
        _SHARE_KEY,
        _flexible(
            *plain_fields("snapshotEpoch:int32 stateEpoch:int32 leaderEpoch:int32 startOffset:int64"),
            _COMPLETE,
            *plain_fields("createTimestamp:int64 writeTimestamp:int64"),
            _BATCHES,
        ),
    ),
    1: _Type(
        _SHARE_KEY,
        _flexible(*plain_fields("snapshotEpoch:int32 leaderEpoch:int32 startOffset:int64"), _COMPLETE, _BATCHES),
    ),
}


class Coordinator:
    """The decoder of one coordinator's topic. Thread-safe."""

    def __init__(self, types: Mapping[int, _Type], refine: Callable[[int, dict[str, Any]], None] | None = None) -> None:
        self._types = types
        self._refine = refine

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[bytes, bytes | None]:
        """Return the texts of key and value, or a fault and None; raises `InvalidRecordError` if there is no key."""
        if key is None:
            raise InvalidRecordError(
                f"Failed to decode message at offset {offset} using the specified decoder (message had a missing key)"
            )
        try:
            number, key_text = self._key(key)
            if key_text is None:
                return f"Unknown record type {number} at offset {offset}, skipping.".encode(), None
            return key_text.encode(), self._value(number, value).encode()
        except SchemaError as error:
            return f"Error at offset {offset}, skipping. {error}".encode(), None

    def _key(self, key: bytes) -> tuple[int, str | None]:
        reader = Reader(key)
        try:
            number = reader.integer("int16")
        except SchemaError:
            raise SchemaError("Could not read version from key's buffer.") from None
        record = self._types.get(number)
        if record is None:
            return number, None
        try:
            data = Message(record.key).read(reader, 0)
        except SchemaError as error:
            what = f"Could not read record with version {number} from key's buffer"
            raise SchemaError(f"{what} due to: {error}.") from None
        return number, f'{{"type":"{number}","data":{json_text(data)}}}'

    def _value(self, number: int, value: bytes | None) -> str:
        if value is None:
            return "<DELETE>"
        reader, message = Reader(value), self._types[number].value
        try:
            version = reader.integer("int16")
        except SchemaError:
            raise SchemaError("Could not read version from value's buffer.") from None
        if not 0 <= version <= message.versions:
            raise SchemaError(f"Found an unknown record version {version} for {number} type")
        try:
            data = message.read(reader, version)
        except SchemaError as error:
            what = f"Could not read record with version {version} from value's buffer"
            raise SchemaError(f"{what} due to: {error}.") from None
        if self._refine is not None:
            self._refine(number, data)
        return f'{{"version":"{version}","data":{json_text(data)}}}'


def _show_consumers(number: int, data: dict[str, Any]) -> None:
    """Parse the subscriptions and assignments that consumers wrote into a classic group's record, if possible."""
    if number != 2 or data["protocolType"] != "consumer":
        return
    for member in data["members"]:
        for name, message in (("subscription", _SUBSCRIPTION), ("assignment", _ASSIGNMENT)):
            reader = Reader(base64.b64decode(member[name]))
            try:
                version = reader.integer("int16")
                if version >= 0:
                    member[name] = message.read(reader, version)
            except SchemaError:
                continue


OFFSETS = Coordinator(_OFFSETS_TYPES, _show_consumers)
TRANSACTIONS = Coordinator({0: _Type(plain_fields("transactionalId:string"), TRANSACTION)})
SHARE_GROUPS = Coordinator(_SHARE_TYPES)


# ---- Control records.

_ABORT, _COMMIT, _LEADER_CHANGE = 0, 1, 2
_MARKER_BYTES = 6
_MARKERS = ("ABORT", "COMMIT")  # by number
_VOTERS = Many(plain_fields("voterId:int32 voterDirectoryId:uuid@1"))
_VOTER = (
    *plain_fields("voterId:int32 voterDirectoryId:uuid"),
    Field("endpoints", Many(plain_fields("name:string host:string port:uint16"))),
    Field("kRaftVersionFeature", plain_fields("minSupportedVersion:int16 maxSupportedVersion:int16")),
)
_VERSION = Field("version", "int16")
_LEADER = (*plain_fields("version:int16 leaderId:int32"), Field("voters", _VOTERS), Field("grantingVoters", _VOTERS))
_CONTROL: dict[int, tuple[str, tuple[Field, ...]]] = {
    _LEADER_CHANGE: ("LeaderChange", _LEADER),
    3: ("SnapshotHeader", plain_fields("version:int16 lastContainedLogTimestamp:int64")),
    4: ("SnapshotFooter", (_VERSION,)),
    5: ("KRaftVersion", plain_fields("version:int16 kRaftVersion:int16")),
    6: ("KRaftVoters", (_VERSION, Field("voters", Many(_VOTER)))),
}


def control_text(key: bytes | None, value: bytes | None) -> bytes:
    """Return a space and the text of a control record; raises `CorruptRecordError` if the dump tool would stop."""
    kind, data = _control_record(key, value)
    if data is None:
        return f" controlType: {kind}".encode()
    if kind in _MARKERS:
        return f" endTxnMarker: {kind} coordinatorEpoch: {data['coordinator_epoch']}".encode()
    label = f"{kind}:" if kind == "LeaderChange" else kind
    return f" {label} {json_text(data)}".encode()


def control_json(key: bytes | None, value: bytes | None) -> bytes:
    """Return a control record as a JSON object with its `type`, and an epoch or `data`; errors as in `control_text`."""
    kind, data = _control_record(key, value)
    if data is None:
        return json_text({"type": kind}).encode()
    return json_text({"type": kind, **(data if kind in _MARKERS else {"data": data})}).encode()


def _control_record(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, Any] | None]:
    """Return the name of a control record's type, and the record's contents (None if the type is unknown)."""
    if key is None or len(key) < 4:
        raise CorruptRecordError(f"control record whose key has {len(key or b'')} bytes: 4 are the least")
    version, number = int.from_bytes(key[:2], "big", signed=True), int.from_bytes(key[2:4], "big", signed=True)
    if version < 0:
        raise CorruptRecordError(f"control record of version {version}")
    if number in (_ABORT, _COMMIT):
        return _MARKERS[number], {"coordinator_epoch": _marker_epoch(value)}
    if number not in _CONTROL:
        return f"UNKNOWN({number})", None
    kind, fields = _CONTROL[number]
    if value is None:
        raise CorruptRecordError("control record without a value")
    try:
        data = Reader(value).struct(fields, 0, flexible=True)
    except SchemaError as error:
        raise CorruptRecordError(f"control record of type {number}: {error}") from error
    if number == _LEADER_CHANGE and data["version"] >= 1:
        for voter in (*data["voters"], *data["grantingVoters"]):
            voter["voterDirectoryId"] = "A" * 22  # it was read as version 0, which lacks this field
    return kind, data


def _marker_epoch(value: bytes | None) -> int:
    if value is None or len(value) < _MARKER_BYTES:
        raise CorruptRecordError(f"end transaction marker of {len(value or b'')} bytes: {_MARKER_BYTES} are the least")
    if value[0] > 0x7F:
        raise CorruptRecordError("end transaction marker of a negative version")
    return int.from_bytes(value[2:6], "big", signed=True)
