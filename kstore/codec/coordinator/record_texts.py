"""The records in the topics of Kafka's coordinators as text: consumer groups, transactions, share groups.

Lists every record type of `__consumer_offsets`, `__transaction_state` and `__share_group_state` that 4.3.0 knows, and
the control records of a log; `schemas` reads them. A record's key begins with its type, its value with a version
(FORMAT 12). Nothing here decides anything: what cannot be read is said, in the dump tool's words.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kstore.codec.coordinator.schemas import Field, Many, Message, Reader, SchemaError, json_text
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


def _names(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "string") for name in names)


def _flexible(*fields: Field) -> Message:
    return Message(fields, versions=0, flexible=0)


_STRINGS, _INT16S, _INT32S = Many("string"), Many("int16"), Many("int32")
_GROUP = _names("groupId")
_MEMBER = _names("groupId", "memberId")
_PARTITION = (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))

# ---- Offsets and classic groups.

_OLD_OFFSET = Message((Field("offset", "int64"), Field("metadata", "string"), Field("commitTimestamp", "int64")))
OFFSET = Message(
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0),
    ),
    versions=4,
    flexible=4,
)
_CLASSIC_MEMBER = (
    Field("memberId", "string"),
    Field("groupInstanceId", "string", since=3, nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeout", "int32", since=1),
    Field("sessionTimeout", "int32"),
    Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)
CLASSIC_GROUP = Message(
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", nullable=True),
        Field("leader", "string", nullable=True),
        Field("currentStateTimestamp", "int64", since=2),
        Field("members", Many(_CLASSIC_MEMBER)),
    ),
    versions=4,
    flexible=4,
)
_TOPIC_NUMBERS = Many((Field("topic", "string"), Field("partitions", _INT32S)))
_SUBSCRIPTION = Message(
    (
        Field("topics", _STRINGS),
        Field("userData", "bytes", nullable=True),
        Field("ownedPartitions", _TOPIC_NUMBERS, since=1),
        Field("generationId", "int32", since=2),
        Field("rackId", "string", since=3, nullable=True),
    )
)
_ASSIGNMENT = Message((Field("assignedPartitions", _TOPIC_NUMBERS), Field("userData", "bytes", nullable=True)))

# ---- Groups of the newer protocols.

_TOPIC_IDS = (Field("topicId", "uuid"), Field("partitions", _INT32S))
_EPOCHS = Field("assignmentEpochs", _INT32S, nullable=True, tag=0)
_OWNED = Many((*_TOPIC_IDS, _EPOCHS))
_TARGET = _flexible(Field("assignmentEpoch", "int32"), Field("assignmentTimestamp", "int64", tag=0))
_CLIENT = (Field("rackId", "string", nullable=True), Field("clientId", "string"), Field("clientHost", "string"))
_CURRENT = (Field("memberEpoch", "int32"), Field("previousMemberEpoch", "int32"), Field("state", "int8"))
_CONSUMER_MEMBER = _flexible(
    Field("instanceId", "string", nullable=True),
    *_CLIENT,
    Field("subscribedTopicNames", _STRINGS),
    Field("subscribedTopicRegex", "string", nullable=True),
    Field("rebalanceTimeoutMs", "int32"),
    Field("serverAssignor", "string", nullable=True),
    Field(
        "classicMemberMetadata",
        (
            Field("sessionTimeoutMs", "int32"),
            Field("supportedProtocols", Many((Field("name", "string"), Field("metadata", "bytes")))),
        ),
        nullable=True,
        tag=0,
    ),
)
_PARTITION_METADATA = _flexible(
    Field(
        "topics",
        Many(
            (
                Field("topicId", "uuid"),
                Field("topicName", "string"),
                Field("numPartitions", "int32"),
                Field("partitionMetadata", Many((Field("partition", "int32"), Field("racks", _STRINGS)))),
            )
        ),
    )
)
_SHARE_TOPIC = (Field("topicId", "uuid"), Field("topicName", "string"))
_SHARE_TOPICS = Many((*_SHARE_TOPIC, Field("partitions", _INT32S)))

# ---- Streams groups.

_PAIRS = Many((Field("key", "string"), Field("value", "string")))
_TASK = (Field("subtopologyId", "string"), Field("partitions", _INT32S))
_TASKS, _OWNED_TASKS = Many(_TASK), Many((*_TASK, _EPOCHS))
_STREAMS_TOPICS = Many(
    (
        Field("name", "string"),
        Field("partitions", "int32"),
        Field("replicationFactor", "int16"),
        Field("topicConfigs", _PAIRS),
    )
)
_STREAMS_MEMBER = _flexible(
    Field("instanceId", "string", nullable=True),
    *_CLIENT,
    Field("rebalanceTimeoutMs", "int32"),
    Field("topologyEpoch", "int32"),
    Field("processId", "string"),
    Field("userEndpoint", (Field("host", "string"), Field("port", "uint16")), nullable=True),
    Field("clientTags", _PAIRS),
)
_COPARTITIONS = Many(
    (Field("sourceTopics", _INT16S), Field("sourceTopicRegex", _INT16S), Field("repartitionSourceTopics", _INT16S))
)
_TOPOLOGY = _flexible(
    Field("epoch", "int32"),
    Field(
        "subtopologies",
        Many(
            (
                Field("subtopologyId", "string"),
                Field("sourceTopics", _STRINGS),
                Field("sourceTopicRegex", _STRINGS),
                Field("stateChangelogTopics", _STREAMS_TOPICS),
                Field("repartitionSinkTopics", _STRINGS),
                Field("repartitionSourceTopics", _STREAMS_TOPICS),
                Field("copartitionGroups", _COPARTITIONS),
            )
        ),
    ),
)


def _task_fields(kind: Many, suffix: str = "") -> tuple[Field, ...]:
    return tuple(Field(f"{name}Tasks{suffix}", kind) for name in ("active", "standby", "warmup"))


_OFFSETS_TYPES = {
    0: _Type(_PARTITION, _OLD_OFFSET),
    1: _Type(_PARTITION, OFFSET),
    2: _Type(_names("group"), CLASSIC_GROUP),
    3: _Type(_GROUP, _flexible(Field("epoch", "int32"), Field("metadataHash", "int64", tag=0))),
    4: _Type(_GROUP, _PARTITION_METADATA),
    5: _Type(_MEMBER, _CONSUMER_MEMBER),
    6: _Type(_GROUP, _TARGET),
    7: _Type(_MEMBER, _flexible(Field("topicPartitions", Many(_TOPIC_IDS)))),
    8: _Type(
        _MEMBER, _flexible(*_CURRENT, Field("assignedPartitions", _OWNED), Field("partitionsPendingRevocation", _OWNED))
    ),
    10: _Type(_MEMBER, _flexible(*_CLIENT, Field("subscribedTopicNames", _STRINGS))),
    11: _Type(_GROUP, _flexible(Field("epoch", "int32"), Field("metadataHash", "int64"))),
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
        _names("groupId", "regularExpression"),
        _flexible(Field("topics", _STRINGS), Field("version", "int64"), Field("timestamp", "int64")),
    ),
    17: _Type(
        _GROUP,
        _flexible(
            Field("epoch", "int32"),
            Field("metadataHash", "int64"),
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
        Field("producerId", "int64"),
        Field("previousProducerId", "int64", since=1, tag=0, default=-1),
        Field("nextProducerId", "int64", since=1, tag=1, default=-1),
        Field("producerEpoch", "int16"),
        Field("nextProducerEpoch", "int16", since=1, tag=3, default=-1),
        Field("transactionTimeoutMs", "int32"),
        Field("transactionStatus", "int8"),
        Field("transactionPartitions", Many((Field("topic", "string"), Field("partitionIds", _INT32S))), nullable=True),
        Field("transactionLastUpdateTimestampMs", "int64"),
        Field("transactionStartTimestampMs", "int64"),
        Field("clientTransactionVersion", "int16", since=1, tag=2, default=0),
    ),
    versions=1,
    flexible=1,
)

_SHARE_KEY = (Field("groupId", "string"), Field("topicId", "uuid"), Field("partition", "int32"))
_COMPLETE = Field("deliveryCompleteCount", "int32", tag=0, default=-1)
_BATCHES = Field(
    "stateBatches",
    Many(
        (
            Field("firstOffset", "int64"),
            Field("lastOffset", "int64"),
            Field("deliveryState", "int8"),
            Field("deliveryCount", "int16"),
        )
    ),
)
_SHARE_TYPES = {
    0: _Type(
        _SHARE_KEY,
        _flexible(
            Field("snapshotEpoch", "int32"),
            Field("stateEpoch", "int32"),
            Field("leaderEpoch", "int32"),
            Field("startOffset", "int64"),
            _COMPLETE,
            Field("createTimestamp", "int64"),
            Field("writeTimestamp", "int64"),
            _BATCHES,
        ),
    ),
    1: _Type(
        _SHARE_KEY,
        _flexible(
            Field("snapshotEpoch", "int32"),
            Field("leaderEpoch", "int32"),
            Field("startOffset", "int64"),
            _COMPLETE,
            _BATCHES,
        ),
    ),
}


class Coordinator:
    """The decoder of one coordinator's topic. Thread-safe."""

    def __init__(self, types: Mapping[int, _Type], refine: Callable[[int, dict[str, Any]], None] | None = None) -> None:
        self._types = types
        self._refine = refine

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[bytes, bytes | None]:
        """Return the texts of a record's key and value, or in place of the key the fault in them.

        Raises `InvalidRecordError` for a record without a key, where the dump tool stops.
        """
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
            raise SchemaError(
                f"Could not read record with version {number} from key's buffer due to: {error}."
            ) from None
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
            raise SchemaError(
                f"Could not read record with version {version} from value's buffer due to: {error}."
            ) from None
        if self._refine is not None:
            self._refine(number, data)
        return f'{{"version":"{version}","data":{json_text(data)}}}'


def _show_consumers(number: int, data: dict[str, Any]) -> None:
    """Parse the parts of a classic group's record that consumers wrote about themselves, if that is possible."""
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
TRANSACTIONS = Coordinator({0: _Type(_names("transactionalId"), TRANSACTION)})
SHARE_GROUPS = Coordinator(_SHARE_TYPES)


# ---- Control records.

_ABORT, _COMMIT, _LEADER_CHANGE = 0, 1, 2
_MARKER_BYTES = 6
_MARKERS = ("ABORT", "COMMIT")  # by number
_VOTERS = Many((Field("voterId", "int32"), Field("voterDirectoryId", "uuid", since=1)))
_VERSION = Field("version", "int16")
_CONTROL: dict[int, tuple[str, tuple[Field, ...]]] = {
    _LEADER_CHANGE: (
        "LeaderChange",
        (_VERSION, Field("leaderId", "int32"), Field("voters", _VOTERS), Field("grantingVoters", _VOTERS)),
    ),
    3: ("SnapshotHeader", (_VERSION, Field("lastContainedLogTimestamp", "int64"))),
    4: ("SnapshotFooter", (_VERSION,)),
    5: ("KRaftVersion", (_VERSION, Field("kRaftVersion", "int16"))),
    6: (
        "KRaftVoters",
        (
            _VERSION,
            Field(
                "voters",
                Many(
                    (
                        Field("voterId", "int32"),
                        Field("voterDirectoryId", "uuid"),
                        Field(
                            "endpoints",
                            Many((Field("name", "string"), Field("host", "string"), Field("port", "uint16"))),
                        ),
                        Field(
                            "kRaftVersionFeature",
                            (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")),
                        ),
                    )
                ),
            ),
        ),
    ),
}


def control_text(key: bytes | None, value: bytes | None) -> bytes:
    """Give the text of a control record, with the space before it; `CorruptRecordError` where the dump tool stops."""
    kind, data = _control_record(key, value)
    if data is None:
        return f" controlType: {kind}".encode()
    if kind in _MARKERS:
        return f" endTxnMarker: {kind} coordinatorEpoch: {data['coordinator_epoch']}".encode()
    label = f"{kind}:" if kind == "LeaderChange" else kind
    return f" {label} {json_text(data)}".encode()


def control_json(key: bytes | None, value: bytes | None) -> bytes:
    """Give a control record as an object: its `type`, and an epoch or its `data`; errors as `control_text`."""
    kind, data = _control_record(key, value)
    if data is None:
        return json_text({"type": kind}).encode()
    return json_text({"type": kind, **(data if kind in _MARKERS else {"data": data})}).encode()


def _control_record(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, Any] | None]:
    """The name of a control record's type, and its contents; None if the type is unknown."""
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
            voter["voterDirectoryId"] = "A" * 22  # which version 0, as it was read, does not have
    return kind, data


def _marker_epoch(value: bytes | None) -> int:
    if value is None or len(value) < _MARKER_BYTES:
        raise CorruptRecordError(f"end transaction marker of {len(value or b'')} bytes: {_MARKER_BYTES} are the least")
    if value[0] > 0x7F:
        raise CorruptRecordError("end transaction marker of a negative version")
    return int.from_bytes(value[2:6], "big", signed=True)
