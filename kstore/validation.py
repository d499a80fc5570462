"""What a leader or a follower does with bytes that claim to be record batches (SEMANTICS.md 1A to 1D).

Decides and patches in memory; the log owns the lock, the next offset, the limits of a segment (1.27), the epochs and
the producers, and writes what comes out. Hardest rule: the order of the checks, because it says which error a caller
sees; and the caller's buffer is never changed.

Stricter than Kafka where its answer would damage the log: see `_refuse_impossible_offsets` and `_check_header`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from kstore import _core, _pack, _scan, compression, legacy
from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
    UnsupportedCompressionError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.config import LogConfig

__all__ = ["Analysis", "Batch", "Origin", "Validated", "analyze", "validate_follower", "validate_leader"]

Origin = Literal["client", "coordinator", "follower"]
_Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"
_Content: TypeAlias = "tuple[bytes | None, bytes | None, int, _Headers]"

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_NO_TIMESTAMP = -1

# FORMAT.md 2.1 and 5: what every entry begins with, a v2 header from its base offset on, a legacy message's head.
_ENTRY = struct.Struct(">qi")
_HEADER = struct.Struct(">qiiBIhiqqqhii")
_STAMP = struct.Struct(">qii")
_TIMESTAMP = struct.Struct(">q")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")

_ENTRY_BYTES = _ENTRY.size
_UP_TO_MAGIC_BYTES = 17
_HEADER_BYTES = _HEADER.size
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35

_CODEC_MASK = 0x07
_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_KNOWN_BITS = 0x7F


_MOST_ERRORS = 1 << 16  # listed of one batch: a wrapper of a few kilobytes may hold millions of messages


class Batch(NamedTuple):
    """One batch's header as the log's later steps need it; a legacy entry has no producer, epoch or base offset."""

    position: int
    size_bytes: int
    magic: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def compression(self) -> int:
        """Number of the codec."""
        return self.attributes & _CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.magic > 1 and self.attributes & _TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.magic > 1 and self.attributes & _CONTROL_BIT != 0

    @property
    def claims_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & _APPEND_TIME_BIT != 0


class Analysis(NamedTuple):
    """What the headers of an append say (SEMANTICS.md 1.5); `data` is a view of the whole, kept batches.

    `first_offset` is -1 when the first batch is of format v0 or v1, whose base offset a header does not tell;
    `last_leader_epoch` is None where Kafka's is absent. Immutable: a buffer that could change was copied.
    """

    data: memoryview
    batches: tuple[Batch, ...]
    first_offset: int
    last_offset: int
    max_timestamp: int
    last_leader_epoch: int | None
    source_compression: int
    valid_bytes: int
    monotonic: bool
    last_offset_of_first_batch: int


class Validated(NamedTuple):
    """A leader's append, ready to be written: one v2 batch with its offsets, epoch and timestamps.

    `log_append_time` is -1 unless the topic stamps LogAppendTime; `rebuilt` says that the records were written anew
    (1.12) and not patched in place. `batch` is the header as written.
    """

    data: bytearray
    batch: Batch
    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    rebuilt: bool


# ---- shallow analysis (1B)


def analyze(
    data: ReadableBuffer,
    *,
    origin: Origin = "client",
    max_message_bytes: int | None = None,
    leader_epoch: int | None = None,
) -> Analysis:
    """Walk the batch headers of `data` and check what needs no record (SEMANTICS.md 1.4 to 1.8). No lock needed.

    `max_message_bytes` binds a leader's append only; `leader_epoch` is a follower's upper bound on the epochs that it
    accepts (2a), None for no bound. A partial batch at the end is dropped; bytes that hold no whole batch are an
    `InvalidRecordError` for a leader and an empty analysis for a follower (1.7).
    Raises `CorruptRecordError`, `InvalidRecordError`, `RecordTooLargeError`, `UnsupportedCompressionError`, and
    `OffsetsOutOfOrderError` for a follower, in Kafka's order.
    """
    view = _view(data)
    follower = origin == "follower"
    batches: list[Batch] = []
    valid_bytes = 0
    last_offset = -1
    max_timestamp = _NO_TIMESTAMP
    source_compression = 0
    monotonic = True
    skipping = False
    for position, size, magic in _entries(view):
        batch = _parse_v2(view, position, size) if magic == 2 else _parse_legacy(view, position, size, magic)
        if origin == "client" and magic == 2 and batch.base_offset != 0:
            raise InvalidRecordError(
                f"batch at position {position} has base offset {batch.base_offset}: a client's batch counts from 0"
            )
        if follower and leader_epoch is not None and batch.leader_epoch > leader_epoch:
            skipping = True
        if skipping:
            continue
        if batch.last_offset <= last_offset:
            monotonic = False
        if not follower and max_message_bytes is not None and size > max_message_bytes:
            raise RecordTooLargeError(
                f"batch of {size} bytes at position {position}: max.message.bytes is {max_message_bytes}"
            )
        _check_crc(view, batch)
        if batch.max_timestamp > max_timestamp:
            max_timestamp = batch.max_timestamp
        valid_bytes += size
        codec = batch.attributes & _CODEC_MASK
        if codec:
            if codec > 4:
                raise UnsupportedCompressionError(
                    f"batch at position {position} has compression type {codec}: 0 to 4 are known"
                )
            source_compression = codec
        if follower:
            if not monotonic:
                raise OffsetsOutOfOrderError(
                    f"batch at position {position} ends at offset {batch.last_offset}, the one before at {last_offset}"
                )
            _refuse_impossible_offsets(batch, last_offset)
        last_offset = batch.last_offset
        batches.append(batch)
    if not batches:
        if not follower:
            raise InvalidRecordError(f"{len(view)} bytes hold no whole record batch")
        return Analysis(view[:0], (), -1, -1, _NO_TIMESTAMP, None, 0, 0, True, -1)
    first, last = batches[0], batches[-1]
    return Analysis(
        view[:valid_bytes],
        tuple(batches),
        first.base_offset,
        last_offset,
        max_timestamp,
        None if last.leader_epoch == -1 else last.leader_epoch,
        source_compression,
        valid_bytes,
        monotonic,
        first.last_offset,
    )


def _view(data: ReadableBuffer) -> memoryview:
    """The bytes of any buffer; a copy of what others may change, so that what is checked is what is stored."""
    if isinstance(data, str):
        raise TypeError("a batch is bytes: encode the str first")
    with memoryview(data) as given:
        if given.nbytes == 0:
            return memoryview(b"")
        if not given.readonly or not given.c_contiguous:
            return memoryview(given.tobytes())
    return memoryview(data).cast("B")


def _entries(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Position, size and magic of each whole batch (1.4); a fault in a later one shows when the walk gets there."""
    position, end = 0, len(view)
    while end - position >= _ENTRY_BYTES:
        _, length = _ENTRY.unpack_from(view, position)
        if length < legacy.MIN_MESSAGE_BYTES:
            raise CorruptRecordError(
                f"batch length {length}: the smallest is {legacy.MIN_MESSAGE_BYTES}", position=position
            )
        if end - position < _UP_TO_MAGIC_BYTES:
            return
        magic = view[position + _MAGIC_AT]
        if magic > 2:
            raise CorruptRecordError(f"magic {magic}: 0 to 2 are known", position=position)
        size = _ENTRY_BYTES + length
        if size > end - position:
            return
        yield position, size, magic
        position += size


def _parse_v2(view: memoryview, position: int, size: int) -> Batch:
    if size >= _HEADER_BYTES:
        fields = _HEADER.unpack_from(view, position)
    else:  # refused in its turn by the CRC check: base offset, epoch and size limit come first
        fields = _HEADER.unpack(bytes(view[position : position + size]).ljust(_HEADER_BYTES, b"\0"))
    base, _, epoch, _, _, attributes, delta, _, max_timestamp, producer, producer_epoch, sequence, count = fields
    return Batch(
        position, size, 2, base, base + delta, epoch, attributes, max_timestamp, producer, producer_epoch, sequence,
        count,
    )  # fmt: skip


def _parse_legacy(view: memoryview, position: int, size: int, magic: int) -> Batch:
    offset, _ = _ENTRY.unpack_from(view, position)
    attributes = view[position + 17]
    timestamp = _TIMESTAMP.unpack_from(view, position + 18)[0] if magic else _NO_TIMESTAMP
    return Batch(position, size, magic, -1, offset, -1, attributes, timestamp, -1, -1, -1, -1)


def _check_crc(view: memoryview, batch: Batch) -> None:
    start, end = batch.position, batch.position + batch.size_bytes
    if batch.magic == 2:
        if batch.size_bytes < _HEADER_BYTES:
            raise CorruptRecordError(
                f"batch of {batch.size_bytes} bytes: the header alone has {_HEADER_BYTES}", position=start
            )
        stored = _CRC.unpack_from(view, start + 17)[0]
        computed = _core.crc32c(view[start + _ATTRIBUTES_AT : end])
    else:
        smallest = _ENTRY_BYTES + (legacy.MIN_V1_MESSAGE_BYTES if batch.magic else legacy.MIN_MESSAGE_BYTES)
        if batch.size_bytes < smallest:
            raise CorruptRecordError(
                f"message of {batch.size_bytes} bytes in format v{batch.magic}: {smallest} at least", position=start
            )
        stored = _CRC.unpack_from(view, start + 12)[0]
        computed = zlib.crc32(view[start + _MAGIC_AT : end])
    if stored != computed:
        raise CorruptRecordError(f"stored CRC {stored:#010x}, computed {computed:#010x}", position=start)


def _refuse_impossible_offsets(batch: Batch, previous_last_offset: int) -> None:
    """Refuse a follower's batch that would leave the log's offsets overlapping, backwards or past 2^63.

    Kafka compares last offsets only, stores such a batch, and its log is damaged from then on.
    """
    if batch.last_offset >= _LONG_MAX:
        raise OffsetsOutOfOrderError(
            f"batch at position {batch.position} ends at offset {batch.last_offset}: the largest is {_LONG_MAX - 1}"
        )
    if batch.magic == 2 and not previous_last_offset < batch.base_offset <= batch.last_offset:
        raise OffsetsOutOfOrderError(
            f"batch at position {batch.position} has offsets {batch.base_offset} to {batch.last_offset}, "
            f"the one before ends at {previous_last_offset}"
        )


# ---- a follower (1D)


def validate_follower(analysis: Analysis, *, next_offset: int) -> None:
    """Refuse an append that begins below the log end (1.23); a gap upward is legal, and nothing is rewritten (1.25).

    A batch without a leader epoch is an `InvalidRecordError`: the cache of epochs could not enter it (1.26). The caller
    holds the log's lock, and recovers by 1.24 where it may. `UnexpectedAppendOffsetError` carries the first offset (the
    last of the first batch where that is unknown) and the last.
    """
    first = analysis.first_offset if analysis.first_offset >= 0 else analysis.last_offset_of_first_batch
    if analysis.batches and first < next_offset:
        raise UnexpectedAppendOffsetError(
            f"append of offsets {first} to {analysis.last_offset}: the next offset is {next_offset}",
            first_offset=first,
            last_offset=analysis.last_offset,
        )
    for batch in analysis.batches:
        if batch.magic == 2 and batch.leader_epoch < 0:
            raise InvalidRecordError(
                f"batch at position {batch.position} has leader epoch {batch.leader_epoch}: a leader gave it 0 or more"
            )


# ---- a leader (1C)


class _Rules(NamedTuple):
    """What a topic asks of each record (1.16, 1.17)."""

    create_time: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int
    require_key: bool


def validate_leader(
    analysis: Analysis,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: LogConfig,
    origin: Origin = "client",
) -> Validated:
    """Check the records of a leader's append and give them offsets from `next_offset` on (SEMANTICS.md 1.9 to 1.22).

    The caller holds the log's lock, so that `next_offset` stays true. Patches a private copy of the one batch, or
    writes its records anew when the topic asks for another codec, the input is of an old format, or the offsets inside
    a compressed batch are not 0, 1, 2, ….
    Raises `InvalidRecordError` and `InvalidTimestampError` with `record_errors`, `CorruptRecordError` for data that
    does not decompress or a legacy record's CRC, `RecordTooLargeError` for a rebuilt batch over `max.message.bytes`.
    """
    first = analysis.batches[0]
    source = analysis.source_compression
    if not 0 <= leader_epoch <= _INT_MAX:
        raise ValueError(f"leader epoch {leader_epoch}: 0 to {_INT_MAX} are possible")
    if len(analysis.batches) > 1 and (first.magic == 2 or source):
        raise InvalidRecordError(
            f"{len(analysis.batches)} batches in one append: exactly one, unless they are uncompressed and of "
            f"format v0 or v1"
        )
    rules = _Rules(
        config.message_timestamp_type == "CreateTime",
        now_ms,
        config.message_timestamp_before_max_ms,
        config.message_timestamp_after_max_ms,
        config.compacts,
    )
    target, level = _target_compression(config, source)
    if first.magic == 2:
        _check_header(first, origin)
        max_timestamp, sequential = _check_records(analysis.data, rules)
        # A control batch stays as it is (1.12): a marker is no data for a codec, and a rebuilt one would lose its bit.
        if first.is_control or (source == target and (source == 0 or sequential)):
            data = bytearray(analysis.data)
            rebuilt = False
        else:
            data = _rebuild(_contents(analysis.data), first, target, level)
            rebuilt = True
    else:
        if source or target:  # only what stays uncompressed is checked and written batch by batch
            for _ in _check_legacy(analysis, rules):
                pass
        data = _rebuild(_legacy_contents(analysis, rules), first, target, level)
        max_timestamp = _TIMESTAMP.unpack_from(data, _MAX_TIMESTAMP_AT)[0]
        rebuilt = True
    batch = _stamp(data, next_offset, leader_epoch, max_timestamp, rules)
    if rebuilt and batch.size_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"batch of {batch.size_bytes} bytes once rewritten: max.message.bytes is {config.max_message_bytes}"
        )
    return Validated(
        data,
        batch,
        next_offset,
        batch.last_offset,
        batch.max_timestamp,
        _NO_TIMESTAMP if rules.create_time else now_ms,
        rebuilt,
    )


def _target_compression(config: LogConfig, source: int) -> tuple[int, int | None]:
    """Codec and level that the topic asks for (1.10); with `producer` a rebuild takes the codec's default level."""
    if config.compression_type == "producer":
        return source, None
    return compression.type_id(config.compression_type), config.compression_level


def _check_header(batch: Batch, origin: Origin) -> None:
    """What a v2 header may claim (1.14).

    The counts must agree in a coordinator's batch too, where Kafka does not look and would then store a batch whose
    offsets do not begin at the log end.
    """
    offsets = batch.last_offset - batch.base_offset + 1
    if offsets <= 0 or batch.records_count <= 0 or offsets != batch.records_count:
        raise InvalidRecordError(
            f"batch with {offsets} offsets and a count of {batch.records_count}: equal and 1 or more"
        )
    if origin == "client":
        if batch.is_control:
            raise InvalidRecordError("control batch: clients write none")
        if batch.producer_id >= 0 and batch.base_sequence < 0:
            raise InvalidRecordError(
                f"producer id {batch.producer_id} with base sequence {batch.base_sequence}: 0 or more"
            )


def _check_records(view: memoryview, rules: _Rules) -> tuple[int, bool]:
    """Check the structure and contents of a v2 batch's records (1.15 to 1.18).

    Returns the largest timestamp of a record, at least -1, and whether their offsets are 0, 1, 2, ….
    """
    found = _scan.check_batch(
        view,
        create_time=rules.create_time,
        now_ms=rules.now_ms,
        before_max_ms=rules.before_max_ms,
        after_max_ms=rules.after_max_ms,
        require_key=rules.require_key,
    )
    if found.errors:
        raise _refusal(found.errors)
    return found.max_timestamp, found.consecutive


def _refusal(errors: list[tuple[int, str, bool]]) -> InvalidRecordError:
    """The error for a batch of which these records (index, reason, whether it is about time) are refused (1.18)."""
    index, reason, _ = errors[0]
    kind = InvalidTimestampError if any(about_time for _, _, about_time in errors) else InvalidRecordError
    return kind(
        f"{len(errors)} records refused; the first is record {index}: {reason}",
        record_errors=tuple((index, reason) for index, reason, _ in errors),
    )


def _contents(view: memoryview) -> Iterator[_Content]:
    """The records of the one v2 batch, whose CRC and structure have been checked."""
    for batch in _core.decode_batches(view, check_crc=False):
        for record in batch:
            yield record.key, record.value, record.timestamp, record.headers


def _rebuild(records: Iterable[_Content], producer: Batch, target: int, level: int | None) -> bytearray:
    """Write records anew as one v2 batch (1.20), with the producer's fields of the batch that they came in."""
    return bytearray(
        _pack.encode_batch(
            _refusing_negative_timestamps(records),
            compression=compression.NAMES[target],
            level=level,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            transactional=producer.is_transactional,
        )
    )


def _refusing_negative_timestamps(records: Iterable[_Content]) -> Iterator[_Content]:
    for index, record in enumerate(records):
        if record[2] < _NO_TIMESTAMP:
            reason = f"timestamp {record[2]}: 0 or more, or -1 for none"
            raise InvalidTimestampError(f"record {index}: {reason}", record_errors=((index, reason),))
        yield record


def _stamp(data: bytearray, base_offset: int, leader_epoch: int, max_timestamp: int, rules: _Rules) -> Batch:
    """Give the batch its offsets, epoch and timestamps (1.19); a new CRC only when a byte under it changes."""
    _, length, _, _, _, attributes, delta, _, old_max_timestamp, producer, producer_epoch, sequence, count = (
        _HEADER.unpack_from(data)
    )
    last_offset = base_offset + delta
    if last_offset >= _LONG_MAX:
        raise InvalidRecordError(f"offsets {base_offset} to {last_offset}: the largest is {_LONG_MAX - 1}")
    _STAMP.pack_into(data, 0, base_offset, length, leader_epoch)
    type_bit = 0
    if not rules.create_time:
        type_bit = _APPEND_TIME_BIT
        max_timestamp = rules.now_ms
    if attributes & _APPEND_TIME_BIT != type_bit or old_max_timestamp != max_timestamp:
        attributes = attributes & _KNOWN_BITS & ~_APPEND_TIME_BIT | type_bit
        _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
        _TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, max_timestamp)
        _CRC.pack_into(data, _CRC_AT, _core.crc32c(memoryview(data)[_ATTRIBUTES_AT:]))
    return Batch(
        0, len(data), 2, base_offset, last_offset, leader_epoch, attributes, max_timestamp, producer, producer_epoch,
        sequence, count,
    )  # fmt: skip


# ---- formats v0 and v1, which a leader turns into v2 (FORMAT.md 5)


def _legacy_contents(analysis: Analysis, rules: _Rules) -> Iterator[_Content]:
    """Key, value and timestamp of old messages, each batch checked before its contents are looked at."""
    for messages in _check_legacy(analysis, rules):
        for message in messages:
            key, value = message.fields()
            yield key, value, message.timestamp, ()


def _check_legacy(analysis: Analysis, rules: _Rules) -> Iterator[Iterable[legacy.Message]]:
    """Check old messages (1.14 to 1.18); each batch is judged by itself, when its turn comes, and handed on."""
    magic = analysis.batches[0].magic
    for batch in analysis.batches:
        if batch.magic != magic:
            raise InvalidRecordError(f"batch of magic {batch.magic} after one of magic {magic}: one format an append")
        messages = legacy.messages(analysis.data[batch.position : batch.position + batch.size_bytes], batch.position)
        errors: list[tuple[int, str, bool]] = []
        for index, message in enumerate(messages):
            if message.magic != magic:
                _note(errors, index, f"magic {message.magic} inside a wrapper of magic {magic}", False)
                continue
            if batch.compression and not message.crc_holds:
                raise CorruptRecordError(f"CRC of message {index} of the wrapper", position=batch.position)
            if rules.require_key and not message.has_key:
                _note(errors, index, "a compacted topic takes no record without a key", False)
            else:
                fault = _timestamp_fault(message.timestamp, batch, rules)
                if fault is not None:
                    _note(errors, index, fault, True)
        if errors:
            raise _refusal(errors)
        yield messages


def _note(errors: list[tuple[int, str, bool]], index: int, reason: str, about_time: bool) -> None:
    """List a refused record; past the most that are listed, one more that decides what the batch is refused for."""
    if len(errors) < _MOST_ERRORS or (about_time and len(errors) == _MOST_ERRORS):
        errors.append((index, reason, about_time))


def _timestamp_fault(timestamp: int, batch: Batch, rules: _Rules) -> str | None:
    """Why a legacy record's timestamp is refused (1.17)."""
    if rules.create_time and timestamp != _NO_TIMESTAMP:
        if rules.now_ms - timestamp > rules.before_max_ms or timestamp - rules.now_ms > rules.after_max_ms:
            return (
                f"timestamp {timestamp} is not within {rules.before_max_ms} ms before and {rules.after_max_ms} ms "
                f"after {rules.now_ms}"
            )
    elif batch.claims_append_time:
        return "timestamp type LogAppendTime: only a broker stamps it"
    return None
