"""Encodes and decodes rounds, which hold the changes of one round, and catalogs, which hold a whole state.

An object starts with `PREFIX`: magic, length and CRC-32C of the header. The header is JSON, compressed in a catalog. In
a round the bytes of the tails follow. Invariant: decoding any bytes returns a valid state or raises `BackupError`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kstore._core import crc32c
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import compression
from kstore.errors import BackupError, CorruptRecordError, InvalidTopicError
from kstore.files import checkpoint, names
from kstore.files.json_file import Fields, is_text
from kstore.objects import object_keys
from kstore.objects.backup_contents import (
    BackupState,
    Chunk,
    Dropped,
    EpochStart,
    PartitionKey,
    PartitionState,
    SealedSegment,
    StoredFile,
    TopicState,
)
from kstore.objects.backup_manifest import (
    CRC_MAX,
    MOST_LENGTH,
    check_version,
    list_of,
    lists,
    malformed_fields,
    numbers_of,
    parse,
    spans_of,
)

PREFIX = struct.Struct(">8sII")
ROUND_MAGIC = b"KSBROUND"
CATALOG_MAGIC = b"KSBCATAL"

MOST_HEADER_BYTES = 128 << 20
"""The largest header of a round, and the largest compressed catalog. Decompressed it may be four times as large."""

VERSION = 2
"""The version of rounds and catalogs. Those of version 1 have no greatest timestamps of segments."""

_ZSTD = 4


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a round in one partition. Immutable; thread-safe.

    The new tail is `tail[skip:keep]` of the old one, then `chunks`. `anew` discards the old state, for a topic that was
    deleted and created again. Positions of chunks in the round's object count from the end of its header.
    """

    topic: str
    partition: int
    deleted: bool = False
    anew: bool = False
    topic_id: str = ""
    log_start_offset: int = 0
    end_offset: int = 0
    high_watermark: int = 0
    cleaned_offset: int = -1
    epochs: tuple[EpochStart, ...] | None = None
    """All epochs; None if they are unchanged."""
    gaps: tuple[tuple[int, int], ...] = ()
    removed: tuple[int, ...] = ()
    """Base offsets of the sealed segments that were deleted or replaced."""
    sealed: tuple[SealedSegment, ...] = ()
    skip: int = 0
    keep: int = 0
    chunks: tuple[Chunk, ...] = ()
    snapshot: tuple[int, StoredFile] | None = None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Round:
    """The header of a round. Immutable; thread-safe."""

    number: int
    time_ms: int
    generation: int
    caught_up: bool
    changes: tuple[Change, ...] = ()
    topics: Mapping[str, TopicState | None] = field(default_factory=dict)
    """The new or changed records of topics; None for a record that was deleted."""
    dropped: Dropped = field(default_factory=lambda: Dropped(0))
    """The objects that became unused with this round, and the round's time."""
    deleted_until_ms: int = -1
    """Objects dropped up to this time have been deleted."""
    loads: str | None = None
    """The text of `kstore-loads.json`; None if it is unchanged."""
    together: bool = True
    """Whether the ends of all partitions were taken at the same point in time."""


def encode_round(round_: Round) -> bytes:
    """Return the prefix and the header of a round's object. The bytes of the tails follow them."""
    fields = {
        "version": VERSION,
        "number": round_.number,
        "time_ms": round_.time_ms,
        "generation": round_.generation,
        "caught_up": round_.caught_up,
        "together": round_.together,
        "changes": [_change_fields(change) for change in round_.changes],
        "topics": {name: None if topic is None else _topic_fields(topic) for name, topic in round_.topics.items()},
        "dropped": [round_.dropped.keys, round_.dropped.rounds],
        "deleted_until_ms": round_.deleted_until_ms,
        "loads": round_.loads,
    }
    return _framed(ROUND_MAGIC, json.dumps(fields, separators=(",", ":")).encode())


def encode_catalog(state: BackupState) -> bytes:
    fields = {
        "version": VERSION,
        "number": state.number,
        "time_ms": state.time_ms,
        "caught_up": state.caught_up,
        "together": state.together,
        "topics": {name: _topic_fields(topic) for name, topic in state.topics.items()},
        "partitions": [
            {**_marks(partition), "segments": partition.segments, "tail": partition.tail}
            for partition in state.partitions.values()
        ],
        "dropped": [[each.time_ms, each.keys, each.rounds] for each in state.dropped],
        "loads": state.loads,
    }
    data = json.dumps(fields, separators=(",", ":")).encode()
    return _framed(CATALOG_MAGIC, compression.compress(_ZSTD, data))


def header_bytes(data: bytes, where: str) -> int:
    """Return the size in bytes of the prefix and header of a round's object that starts with `data`."""
    return PREFIX.size + _prefix(data, ROUND_MAGIC, where)[0]


def decode_round(data: bytes, where: str) -> Round:
    """Decode the header of a round's object; `data` may be longer. Raises `BackupError` if it is malformed."""
    fields = parse(_header(data, ROUND_MAGIC, where), where)
    with malformed_fields(where):
        check_version(fields, VERSION)
        time_ms = fields.integer("time_ms", 0, LONG_MAX)
        dropped = list_of(fields, "dropped", fields.take("dropped"), 2)
        found = Round(
            number=fields.integer("number", 1, LONG_MAX),
            time_ms=time_ms,
            generation=fields.integer("generation", 1, LONG_MAX),
            caught_up=fields.flag("caught_up"),
            together=fields.flag("together"),
            changes=tuple(_change(each) for each in fields.objects("changes")),
            topics=_topics(fields, may_be_gone=True),
            dropped=_dropped(fields, "dropped", [time_ms, *dropped]),
            deleted_until_ms=fields.integer("deleted_until_ms", -1, LONG_MAX),
            loads=_loads(fields, fields.take("loads")),
        )
        fields.end()
    seen = {change.key for change in found.changes}
    if len(seen) != len(found.changes):
        raise BackupError(f"{where} is malformed: a partition is changed twice")
    return found


def decode_catalog(data: bytes, where: str) -> BackupState:
    """Decode a catalog's object; raises `BackupError` if it is malformed."""
    packed = _header(data, CATALOG_MAGIC, where)
    try:
        fields = parse(compression.decompress(_ZSTD, packed, limit=4 * MOST_HEADER_BYTES), where)
    except CorruptRecordError as error:
        raise BackupError(f"{where} cannot be decompressed: {error.reason}") from None
    with malformed_fields(where):
        check_version(fields, VERSION)
        partitions: dict[PartitionKey, PartitionState] = {}
        for each in fields.objects("partitions"):
            partition = _partition(each)
            if partition.key in partitions:
                raise each.refusal("partition", partition.partition, "each partition once")
            partitions[partition.key] = partition
        state = BackupState(
            number=fields.integer("number", 0, LONG_MAX),
            time_ms=fields.integer("time_ms", 0, LONG_MAX),
            caught_up=fields.flag("caught_up"),
            together=fields.flag("together"),
            topics={name: topic for name, topic in _topics(fields).items() if topic is not None},
            partitions=partitions,
            dropped=tuple(_dropped(fields, place, item) for place, item in lists(fields, "dropped", 3)),
            loads=_loads(fields, fields.take("loads")) or "",
        )
        fields.end()
    for partition in partitions.values():
        _refuse(partition, where)
    return state


def apply(state: BackupState, round_: Round, where: str, header: int) -> BackupState:
    """Apply a round, with a header of `header` bytes, to a state; raises `BackupError` if the round does not fit it."""
    if round_.number <= state.number or round_.time_ms < state.time_ms:
        before = f"round {state.number} of {state.time_ms} ms"
        raise BackupError(f"{where} is round {round_.number} of {round_.time_ms} ms; it does not follow {before}")
    partitions = dict(state.partitions)
    for change in round_.changes:
        before_change = partitions.pop(change.key, None)
        if not change.deleted:
            partitions[change.key] = _changed(before_change, change, round_.number, where, header)
    topics = {**state.topics, **round_.topics}
    dropped = [each for each in state.dropped if each.time_ms > round_.deleted_until_ms]
    if round_.dropped.keys or round_.dropped.rounds:
        dropped.append(round_.dropped._replace(time_ms=round_.time_ms))
    return BackupState(
        number=round_.number,
        time_ms=round_.time_ms,
        caught_up=round_.caught_up,
        together=round_.together,
        topics={name: topic for name, topic in topics.items() if topic is not None},
        partitions=partitions,
        dropped=tuple(dropped),
        loads=state.loads if round_.loads is None else round_.loads,
    )


def _changed(before: PartitionState | None, change: Change, number: int, where: str, header: int) -> PartitionState:
    if before is None or change.anew:
        before = PartitionState(change.topic, change.partition)
    if not change.skip <= change.keep <= len(before.tail):
        raise BackupError(
            f"{where}: the tail of {change.topic}-{change.partition} has {len(before.tail)} chunks; "
            f"{change.skip} to {change.keep} of them cannot be kept"
        )
    segments = {each.base_offset: each for each in before.segments if each.base_offset not in change.removed}
    segments |= {each.base_offset: each for each in change.sealed}
    chunks = [chunk if chunk.suffix else chunk._replace(round=number, at=chunk.at + header) for chunk in change.chunks]
    after = replace(
        before,
        topic_id=change.topic_id,
        log_start_offset=change.log_start_offset,
        end_offset=change.end_offset,
        high_watermark=change.high_watermark,
        cleaned_offset=change.cleaned_offset,
        epochs=before.epochs if change.epochs is None else change.epochs,
        gaps=change.gaps,
        segments=tuple(segments[base] for base in sorted(segments)),
        tail=(*before.tail[change.skip : change.keep], *chunks),
        snapshot=change.snapshot,
    )
    _refuse(after, where)
    return after


def _refuse(partition: PartitionState, where: str) -> None:
    reason = partition.refusal()
    if reason is not None:
        raise BackupError(f"{where}: {partition.topic}-{partition.partition}: {reason}")


def _framed(magic: bytes, data: bytes) -> bytes:
    return PREFIX.pack(magic, len(data), crc32c(data)) + data


def _topic_fields(topic: TopicState) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "partitions": topic.partitions, "config": dict(topic.config)}


def _marks(of: PartitionState | Change) -> dict[str, Any]:
    return {
        "topic": of.topic,
        "partition": of.partition,
        "topic_id": of.topic_id,
        "log_start": of.log_start_offset,
        "end": of.end_offset,
        "high_watermark": of.high_watermark,
        "cleaned": of.cleaned_offset,
        "epochs": of.epochs,
        "gaps": of.gaps,
        "snapshot": None if of.snapshot is None else [of.snapshot[0], [*of.snapshot[1]]],
    }


def _change_fields(change: Change) -> dict[str, Any]:
    if change.deleted:
        return {"topic": change.topic, "partition": change.partition, "deleted": True}
    return {
        "deleted": False,
        **_marks(change),
        "anew": change.anew,
        "removed": change.removed,
        "sealed": change.sealed,
        "tail": [change.skip, change.keep],
        # The round's number and the header's length are not known here, so positions count from the header's end.
        "chunks": [[*chunk[:5], chunk.at, chunk.suffix] for chunk in change.chunks],
    }


def _prefix(data: bytes, magic: bytes, where: str) -> tuple[int, int]:
    if len(data) < PREFIX.size:
        raise BackupError(f"{where} has {len(data)} bytes; a header of at least {PREFIX.size} is needed")
    found, length, crc = PREFIX.unpack_from(data)
    if found != magic:
        raise BackupError(f"{where} begins with {found!r}; {magic!r} is needed")
    if length > MOST_HEADER_BYTES:
        raise BackupError(f"{where} has a header of {length} bytes; {MOST_HEADER_BYTES} are allowed")
    return length, crc


def _header(data: bytes, magic: bytes, where: str) -> bytes:
    length, crc = _prefix(data, magic, where)
    header = data[PREFIX.size : PREFIX.size + length]
    if len(header) < length:
        raise BackupError(f"{where} ends after {len(header)} of the {length} bytes of its header")
    if crc32c(header) != crc:
        raise BackupError(f"{where} has a header of CRC {crc32c(header):#010x}; it says {crc:#010x}")
    return header


def _topic_name(fields: Fields, name: object) -> str:
    try:
        return names.check_topic(name)  # type: ignore[arg-type]
    except InvalidTopicError as error:
        raise fields.refusal("topic", name, f"a topic's name ({error})") from None


def _topic_id(fields: Fields, *, may_miss: bool) -> str:
    text = fields.text("topic_id")
    if text or not may_miss:
        try:
            checkpoint.parse_topic_id(text)
        except ValueError as error:
            raise fields.refusal("topic_id", text, f"a topic id ({error})") from None
    return text


def _topic(fields: Fields) -> TopicState:
    config = {name: fields.text_of(f"config.{name}", value) for name, value in fields.mapping("config").items()}
    topic = TopicState(_topic_id(fields, may_miss=False), fields.integer("partitions", 1, INT_MAX), config)
    fields.end()
    return topic


def _topics(fields: Fields, *, may_be_gone: bool = False) -> dict[str, TopicState | None]:
    return {
        _topic_name(fields, name): None
        if topic is None and may_be_gone
        else _topic(Fields(topic, fields.path, f"topics[{name}]."))
        for name, topic in fields.mapping("topics").items()
    }


def _change(fields: Fields) -> Change:
    place = _place(fields)
    if fields.flag("deleted"):
        fields.end()
        return Change(**place, deleted=True)
    skip, keep = numbers_of(fields, "tail", fields.take("tail"), (INT_MAX, INT_MAX))
    change = Change(
        **place,
        **_read_marks(fields),
        anew=fields.flag("anew"),
        removed=tuple(_offset(fields, each, value) for each, value in fields.items("removed")),
        sealed=tuple(_segments(fields, "sealed")),
        skip=skip,
        keep=keep,
        chunks=tuple(_new_chunk(fields, each, value) for each, value in fields.items("chunks")),
    )
    fields.end()
    return change


def _partition(fields: Fields) -> PartitionState:
    place, marks = _place(fields), _read_marks(fields)
    partition = PartitionState(
        **place,
        **{**marks, "epochs": marks["epochs"] or ()},
        segments=tuple(_segments(fields, "segments")),
        tail=tuple(_chunk(fields, each, value) for each, value in fields.items("tail")),
    )
    fields.end()
    return partition


def _new_chunk(fields: Fields, place: str, value: Any) -> Chunk:
    """Decode a chunk of a round, which lacks the round's number."""
    base, position, length, crc, end, at, suffix = list_of(fields, place, value, 7)
    return _chunk(fields, place, [base, position, length, crc, end, 0, at, suffix])


def _chunk(fields: Fields, place: str, value: Any) -> Chunk:
    list_of(fields, place, value, 8)
    base, position, length, crc, end, number, at = numbers_of(fields, place, value[:7], _CHUNK)
    return Chunk(base, position, length, crc, end, number, at, _suffix(fields, place, value[7]))


_CHUNK = (LONG_MAX, INT_MAX, INT_MAX, CRC_MAX, LONG_MAX, LONG_MAX, MOST_LENGTH)


def _place(fields: Fields) -> dict[str, Any]:
    return {"topic": _topic_name(fields, fields.take("topic")), "partition": fields.integer("partition", 0, INT_MAX)}


def _read_marks(fields: Fields) -> dict[str, Any]:
    epochs = fields.take("epochs")
    if epochs is not None:
        if not isinstance(epochs, list):
            raise fields.refusal("epochs", epochs, "a list")
        epochs = tuple(EpochStart(*numbers_of(fields, "epochs", each, (INT_MAX, LONG_MAX))) for each in epochs)
    snapshot = fields.take("snapshot")
    if snapshot is not None:
        list_of(fields, "snapshot", snapshot, 2)
        snapshot = _offset(fields, "snapshot", snapshot[0]), _file(fields, "snapshot", snapshot[1])
        if snapshot[1].kind != names.SNAPSHOT:
            raise fields.refusal("snapshot", snapshot[1].kind, names.SNAPSHOT)
    return {
        "topic_id": _topic_id(fields, may_miss=True),
        "log_start_offset": fields.integer("log_start", 0, LONG_MAX),
        "end_offset": fields.integer("end", 0, LONG_MAX),
        "high_watermark": fields.integer("high_watermark", 0, LONG_MAX),
        "cleaned_offset": fields.integer("cleaned", -1, LONG_MAX),
        "epochs": epochs,
        "gaps": tuple(_gaps(fields)),
        "snapshot": snapshot,
    }


def _segments(fields: Fields, name: str) -> Iterator[SealedSegment]:
    for place, item in fields.items(name):
        if not isinstance(item, list) or len(item) not in (5, 6) or not isinstance(item[4], list):
            raise fields.refusal(place, item, "a list of 5 or 6, the fifth one of files")
        base, end, inode, modified_ns = numbers_of(fields, place, item[:4], (LONG_MAX, LONG_MAX, 2**64 - 1, LONG_MAX))
        latest = item[5] if len(item) == 6 else None
        if latest is not None and (type(latest) is not int or not -1 <= latest <= LONG_MAX):
            raise fields.refusal(place, latest, f"null or a whole number from -1 to {LONG_MAX}")
        files = tuple(_file(fields, place, each) for each in item[4])
        yield SealedSegment(base, end, inode, modified_ns, files, latest)


def _file(fields: Fields, place: str, value: Any) -> StoredFile:
    kind, length, crc, suffix = list_of(fields, place, value, 4)
    numbers_of(fields, place, [length, crc], (MOST_LENGTH, CRC_MAX))
    if kind not in object_keys.KINDS:
        raise fields.refusal(place, kind, f"one of {', '.join(object_keys.KINDS)}")
    return StoredFile(kind, length, crc, _suffix(fields, place, suffix))


def _suffix(fields: Fields, place: str, value: Any) -> str:
    if not object_keys.is_suffix(value):
        raise fields.refusal(place, value, "a generation, a dash and a number, or nothing")
    return str(value)


def _gaps(fields: Fields) -> Iterator[tuple[int, int]]:
    last = -1
    for place, item in fields.items("gaps"):
        start, end = numbers_of(fields, place, item, (LONG_MAX, LONG_MAX))
        if not last < start < end:
            raise fields.refusal(place, start, f"rising stretches above {last}")
        last = end
        yield start, end


def _loads(fields: Fields, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not is_text(value)):
        raise fields.refusal("loads", value, "text or null")
    return value


def _offset(fields: Fields, place: str, value: Any) -> int:
    return numbers_of(fields, place, [value], (LONG_MAX,))[0]


def _dropped(fields: Fields, place: str, value: list[Any]) -> Dropped:
    time_ms, objects, rounds = value
    _offset(fields, place, time_ms)
    if not isinstance(objects, list):
        raise fields.refusal(place, objects, "a list of objects")
    for key in objects:
        try:
            object_keys.check(key)
        except BackupError as error:
            raise fields.refusal(place, key, str(error)) from None
    return Dropped(time_ms, tuple(objects), spans_of(fields, place, rounds))
