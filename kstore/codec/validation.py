"""A leader's and a follower's checks of bytes that are appended as record batches (SEMANTICS 1A to 1D).

Invariant: the checks keep Kafka's order, which decides which error a caller sees; the caller's buffer is never changed.
`_refuse_impossible_offsets`, `_check_header` and `prepare_leader` (SEMANTICS 1.13) also refuse batches that Kafka
accepts and that would damage the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import _batches, _legacy_messages, _pack, compression, header, legacy
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

    from kstore.config.log_config import LogConfig

__all__ = [
    "Analysis",
    "Batch",
    "Origin",
    "Prepared",
    "Validated",
    "analyze",
    "analyze_run",
    "finish_leader",
    "prepare_leader",
    "validate_follower",
]

Origin = Literal["client", "coordinator", "follower"]

_NO_TIMESTAMP = -1

# Global names, which save attribute look-ups for each batch.
_LOG_OVERHEAD = header.LOG_OVERHEAD
_LEAST_BYTES = header.LOG_OVERHEAD + header.MIN_V0_MESSAGE
_UP_TO_MAGIC_BYTES, _HEADER_BYTES, _MAGIC_AT = header.UP_TO_MAGIC_BYTES, header.HEADER_BYTES, header.MAGIC.at
_size_of, _read_header = header.size_of, header.read_header
_CODEC_MASK, _APPEND_TIME_BIT = header.CODEC_MASK, header.TIMESTAMP_TYPE_BIT
_TRANSACTIONAL_BIT, _CONTROL_BIT = header.TRANSACTIONAL_BIT, header.CONTROL_BIT


class Batch(NamedTuple):
    """The header fields of a batch that an append needs; a legacy entry has no producer, epoch or base offset."""

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
        """The number of the codec."""
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
    """The result of reading the headers of an append (SEMANTICS 1.5); `data` is a view of the batches to append.

    `batches_count` is the number of batches. `batches` has only the first batch of a leader's append, and all batches
    of a follower's (after `analyze_run` only the first and the last). `first_offset` is -1 if the first batch is of
    format v0 or v1, whose header has no base offset; `last_leader_epoch` is None if the last batch has none. Immutable:
    a buffer that could change was copied.
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
    batches_count: int


class Validated(NamedTuple):
    """A leader's append, ready to be written: one v2 batch with its offsets, epoch and timestamps.

    `log_append_time` is -1 unless the topic uses LogAppendTime. `rebuilt` says whether the records were rewritten
    (SEMANTICS 1.12) instead of patched in place. `batch` is the header as written.
    """

    data: bytearray
    batch: Batch
    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    rebuilt: bool


# ---- shallow analysis (SEMANTICS 1B)


def analyze(
    data: ReadableBuffer,
    *,
    origin: Origin = "client",
    max_message_bytes: int | None = None,
    leader_epoch: int | None = None,
) -> Analysis:
    """Check the batch headers of `data`, as far as possible without the records (SEMANTICS 1.4 to 1.8). Needs no lock.

    `max_message_bytes` applies only to a leader's append. `leader_epoch` is the greatest epoch that a follower accepts
    (SEMANTICS 1.5(2a)); None means no limit. Drops a partial batch at the end. If a follower's append has no whole
    batch, the analysis is empty (SEMANTICS 1.7); for a leader's, `InvalidRecordError` is raised. Raises
    `CorruptRecordError`, `InvalidRecordError`, `RecordTooLargeError`, `UnsupportedCompressionError`, and for a follower
    `OffsetsOutOfOrderError`, in Kafka's order.
    """
    view = _view(data)
    follower = origin == "follower"
    batches: list[Batch] = []
    count = 0
    if not follower and (analysis := _analyze_messages(view, max_message_bytes)) is not None:
        return analysis
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
        count += 1
        last = batch
        if follower or count == 1:
            batches.append(batch)
    if not batches:
        if not follower:
            raise InvalidRecordError(f"{len(view)} bytes hold no whole record batch")
        return Analysis(view[:0], (), -1, -1, _NO_TIMESTAMP, None, 0, 0, True, -1, 0)
    first = batches[0]
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
        count,
    )


def analyze_run(data: ReadableBuffer) -> Analysis | None:
    """Analyze a follower's append in bulk, listing its first and last batch; return None if `plain_run` does."""
    view = _view(data)
    run = _batches.plain_run(view)
    if run is None:
        return None
    count, last_position, last_offset, max_timestamp, codec = run
    first = last = _parse_v2(view, 0, _size_of(view, 0))
    if count > 1:
        last = _parse_v2(view, last_position, len(view) - last_position)
    return Analysis(
        view,
        (first,) if count == 1 else (first, last),
        first.base_offset,
        last_offset,
        max(max_timestamp, _NO_TIMESTAMP),
        last.leader_epoch,
        codec,
        len(view),
        True,
        first.last_offset,
        count,
    )


def _analyze_messages(view: memoryview, max_message_bytes: int | None) -> Analysis | None:
    """Analyze a leader's uncompressed messages of the old formats in bulk; return None if `survey` does."""
    if len(view) <= _UP_TO_MAGIC_BYTES or view[_MAGIC_AT] > 1:
        return None
    survey = _legacy_messages.survey(view, INT_MAX if max_message_bytes is None else max_message_bytes)
    if survey is None:
        return None
    count, size, last_offset, max_timestamp, monotonic = survey
    first = _parse_legacy(view, 0, header.size_of(view), view[header.MAGIC.at])
    return Analysis(
        view[:size], (first,), -1, last_offset, max_timestamp, None, 0, size, monotonic, first.last_offset, count
    )


def _view(data: ReadableBuffer) -> memoryview:
    """Return the bytes of any buffer; copy them if others may change them, so that the checked bytes are stored."""
    if isinstance(data, str):
        raise TypeError("a batch is bytes: encode the str first")
    with memoryview(data) as view:
        if view.nbytes == 0:
            return memoryview(b"")
        if not view.readonly or not view.c_contiguous:
            return memoryview(view.tobytes())
    return memoryview(data).cast("B")


def _entries(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield position, size and magic of each whole batch (SEMANTICS 1.4); raise when the iteration reaches a fault."""
    position, end = 0, len(view)
    while end - position >= _LOG_OVERHEAD:
        size = _size_of(view, position)
        if size < _LEAST_BYTES:
            raise CorruptRecordError(
                f"batch length {size - header.LOG_OVERHEAD}: the smallest is {header.MIN_V0_MESSAGE}", position=position
            )
        if end - position < _UP_TO_MAGIC_BYTES:
            return
        magic = view[position + _MAGIC_AT]
        if magic > 2:
            raise CorruptRecordError(f"magic {magic}: 0 to 2 are known", position=position)
        if size > end - position:
            return
        yield position, size, magic
        position += size


def _parse_v2(view: memoryview, position: int, size: int) -> Batch:
    if size >= _HEADER_BYTES:
        fields = _read_header(view, position)
    else:  # the CRC check refuses it later: base offset, epoch and size limit are checked first
        fields = header.read_header(bytes(view[position : position + size]).ljust(header.HEADER_BYTES, b"\0"))
    base, _, epoch, _, _, attributes, delta, _, max_timestamp, producer, producer_epoch, sequence, count = fields
    return Batch(
        position, size, 2, base, base + delta, epoch, attributes, max_timestamp, producer, producer_epoch, sequence,
        count,
    )  # fmt: skip


def _parse_legacy(view: memoryview, position: int, size: int, magic: int) -> Batch:
    offset = header.BASE_OFFSET.of(view, position)
    attributes = header.LEGACY_ATTRIBUTES.of(view, position)
    timestamp = header.LEGACY_TIMESTAMP.of(view, position) if magic else _NO_TIMESTAMP
    return Batch(position, size, magic, -1, offset, -1, attributes, timestamp, -1, -1, -1, -1)


def _check_crc(view: memoryview, batch: Batch) -> None:
    start = batch.position
    if batch.magic == 2:
        if batch.size_bytes < _HEADER_BYTES:
            raise CorruptRecordError(
                f"batch of {batch.size_bytes} bytes: the header alone has {header.HEADER_BYTES}", position=start
            )
        stored, computed = header.CRC.of(view, start), header.computed_crc_at(view, start, batch.size_bytes)
    else:
        smallest = header.LOG_OVERHEAD + (header.MIN_V1_MESSAGE if batch.magic else header.MIN_V0_MESSAGE)
        if batch.size_bytes < smallest:
            raise CorruptRecordError(
                f"message of {batch.size_bytes} bytes in format v{batch.magic}: {smallest} at least", position=start
            )
        data = view[start : start + batch.size_bytes]
        stored, computed = header.LEGACY_CRC.of(data), header.legacy_computed_crc(data)
    if stored != computed:
        raise CorruptRecordError(f"stored CRC {stored:#010x}, computed {computed:#010x}", position=start)


def _refuse_impossible_offsets(batch: Batch, previous_last_offset: int) -> None:
    """Refuse a follower's batch that would make offsets of the log overlap, go backwards or exceed 2^63."""
    if batch.last_offset >= LONG_MAX:
        raise OffsetsOutOfOrderError(
            f"batch at position {batch.position} ends at offset {batch.last_offset}: the largest is {LONG_MAX - 1}"
        )
    if batch.magic == 2 and not previous_last_offset < batch.base_offset <= batch.last_offset:
        raise OffsetsOutOfOrderError(
            f"batch at position {batch.position} has offsets {batch.base_offset} to {batch.last_offset}, "
            f"the one before ends at {previous_last_offset}"
        )


# ---- a follower (SEMANTICS 1D)


def validate_follower(analysis: Analysis, *, next_offset: int) -> None:
    """Refuse an append that starts below the log end offset (SEMANTICS 1.23); a gap is legal (SEMANTICS 1.25).

    `UnexpectedAppendOffsetError` has the append's last offset and its first one (if this is unknown, the last offset of
    the first batch). Raises `InvalidRecordError` for a batch without a leader epoch, which the epoch cache could not
    record (SEMANTICS 1.26). The caller holds the log's lock; SEMANTICS 1.24 says when it may recover.
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


# ---- a leader (SEMANTICS 1C)


class _Rules(NamedTuple):
    """A topic's rules for each record (SEMANTICS 1.16, 1.17)."""

    create_time: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int
    require_key: bool


class Prepared(NamedTuple):
    """A leader's checked append, as one v2 batch without its final offsets and leader epoch.

    `max_timestamp` is the greatest of its records; unless `create_time`, the append time is set with the offsets.
    `rebuilt` says whether the records were rewritten (SEMANTICS 1.12).
    """

    data: bytearray
    max_timestamp: int
    create_time: bool
    rebuilt: bool


def prepare_leader(analysis: Analysis, *, now_ms: int, config: LogConfig, origin: Origin = "client") -> Prepared:
    """Check the records of a leader's append (SEMANTICS 1.9 to 1.18), and rewrite them if necessary.

    Needs no lock: hostile bytes may make it slow. Copies the one batch, or rewrites its records if the topic has
    another codec, the input is of an old format, or the offset deltas in a compressed batch are not consecutive from 0.
    Raises `InvalidRecordError` and `InvalidTimestampError` with `record_errors`, `CorruptRecordError` if data does not
    decompress or a message in a wrapper has a wrong CRC, and `RecordTooLargeError` if the rewritten batch exceeds
    `max.message.bytes`.
    """
    first = analysis.batches[0]
    source = analysis.source_compression
    if analysis.batches_count > 1 and (first.magic == 2 or source):
        raise InvalidRecordError(
            f"{analysis.batches_count} batches in one append: exactly one, unless they are uncompressed and of "
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
        max_timestamp, sequential, outside = _check_records(analysis.data, rules)
        # A control batch is never rewritten (SEMANTICS 1.12): markers are not compressed, and a rewrite would drop the
        # control bit.
        if first.is_control or (source == target and (source == 0 or sequential)):
            if outside is not None:
                raise InvalidRecordError(
                    f"a record with offset delta {outside} in a batch whose last offset delta is "
                    f"{first.last_offset - first.base_offset}"
                )
            return Prepared(bytearray(analysis.data), max_timestamp, rules.create_time, False)
        packer = _packer(first, target, level)
        _legacy_messages.repack(packer, analysis.data)
    else:
        packer = _packer(first, target, level)
        _pack_legacy(analysis, rules, packer, checked_first=source != 0 or target != 0)
        max_timestamp = packer.max_timestamp
    with packer.buffer as batch:
        data = bytearray(batch)
    if len(data) > config.max_message_bytes:
        raise RecordTooLargeError(
            f"batch of {len(data)} bytes once rewritten: max.message.bytes is {config.max_message_bytes}"
        )
    return Prepared(data, max_timestamp, rules.create_time, True)


def finish_leader(prepared: Prepared, *, next_offset: int, leader_epoch: int, now_ms: int) -> Validated:
    """Write offsets from `next_offset` on, leader epoch and append time into a prepared append (SEMANTICS 1.19).

    The caller holds the log's lock, so `next_offset` remains valid. Raises `InvalidRecordError` above offset 2^63 - 2.
    """
    if not 0 <= leader_epoch <= INT_MAX:
        raise ValueError(f"leader epoch {leader_epoch}: 0 to {INT_MAX} are possible")
    batch = _stamp(prepared, next_offset, leader_epoch, now_ms)
    return Validated(
        prepared.data,
        batch,
        next_offset,
        batch.last_offset,
        batch.max_timestamp,
        _NO_TIMESTAMP if prepared.create_time else now_ms,
        prepared.rebuilt,
    )


def _packer(producer: Batch, target: int, level: int | None) -> _pack.Packer:
    """Return a packer for rewriting one batch (SEMANTICS 1.20), with the producer's fields of the original batch."""
    return _pack.Packer(
        INT_MAX,
        INT_MAX,
        target,
        level,
        now_ms=0,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        transactional=producer.is_transactional,
        single=True,
    )


def _target_compression(config: LogConfig, source: int) -> tuple[int, int | None]:
    """Return the topic's codec and level (SEMANTICS 1.10); for "producer", the source's codec and its default level."""
    if config.compression_type == "producer":
        return source, None
    return compression.type_id(config.compression_type), config.compression_level


def _check_header(batch: Batch, origin: Origin) -> None:
    """Check the fields of a v2 header (SEMANTICS 1.14); unlike Kafka, also check the count of a coordinator's batch."""
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


def _check_records(view: memoryview, rules: _Rules) -> tuple[int, bool, int | None]:
    """Check the structure and contents of a v2 batch's records (SEMANTICS 1.15 to 1.18).

    Returns the greatest timestamp of a record, at least -1; whether the offset deltas are 0, 1, 2, ...; and the first
    delta that lies outside the batch, or None.
    """
    batch = _batches.check_batch(
        view,
        create_time=rules.create_time,
        now_ms=rules.now_ms,
        before_max_ms=rules.before_max_ms,
        after_max_ms=rules.after_max_ms,
        require_key=rules.require_key,
    )
    if batch.errors:
        raise _refusal(batch.errors)
    return batch.max_timestamp, batch.consecutive, batch.outside


def _refusal(errors: list[tuple[int, str, bool]]) -> InvalidRecordError:
    """Return the error for refused records, each (index, reason, whether it is about time) (SEMANTICS 1.18)."""
    index, reason, _ = errors[0]
    kind = InvalidTimestampError if any(about_time for _, _, about_time in errors) else InvalidRecordError
    return kind(
        f"{len(errors)} records refused; the first is record {index}: {reason}",
        record_errors=tuple((index, reason) for index, reason, _ in errors),
    )


def _stamp(prepared: Prepared, base_offset: int, leader_epoch: int, now_ms: int) -> Batch:
    """Write offsets, epoch and timestamps into the batch (SEMANTICS 1.19), and a new CRC if a covered byte changes."""
    data, max_timestamp = prepared.data, prepared.max_timestamp
    _, _, _, _, _, attributes, delta, _, old_max_timestamp, producer, producer_epoch, sequence, count = (
        header.read_header(data)
    )
    last_offset = base_offset + delta
    if last_offset >= LONG_MAX:
        raise InvalidRecordError(f"offsets {base_offset} to {last_offset}: the largest is {LONG_MAX - 1}")
    header.assign(data, base_offset, leader_epoch)
    type_bit = 0
    if not prepared.create_time:
        type_bit = _APPEND_TIME_BIT
        max_timestamp = now_ms
    if attributes & _APPEND_TIME_BIT != type_bit or old_max_timestamp != max_timestamp:
        attributes = attributes & header.KNOWN_BITS & ~_APPEND_TIME_BIT | type_bit
        header.ATTRIBUTES.put(data, attributes)
        header.MAX_TIMESTAMP.put(data, max_timestamp)
        header.CRC.put(data, header.computed_crc(data))
    return Batch(
        0, len(data), 2, base_offset, last_offset, leader_epoch, attributes, max_timestamp, producer, producer_epoch,
        sequence, count,
    )  # fmt: skip


# ---- formats v0 and v1, which a leader converts to v2 (FORMAT 5)


def _pack_legacy(analysis: Analysis, rules: _Rules, packer: _pack.Packer, *, checked_first: bool) -> None:
    """Check old messages (SEMANTICS 1.14 to 1.18) and write one batch; if `checked_first`, check all before writing."""
    first = analysis.batches[0]
    message_rules = (
        first.magic,
        rules.create_time,
        rules.now_ms,
        rules.before_max_ms,
        rules.after_max_ms,
        rules.require_key,
    )
    if first.compression:
        wrapped = legacy.unwrap(analysis.data, first.position)
        count = wrapped.count
        messages = _legacy_messages.Messages(
            wrapped.plain, message_rules, wrapped=True, append_time=wrapped.append_time, position=first.position
        )
    else:
        count = analysis.batches_count
        messages = _legacy_messages.Messages(analysis.data, message_rules, wrapped=False)
    errors = messages.check() if checked_first else []
    errors = errors or messages.pack(packer, count, check=not checked_first)
    if errors:
        raise _refusal(errors)
