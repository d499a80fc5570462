"""Makes packers that encode batches by a log's rules, and appends the packed batches to the log.

`Log` and `Store` use these functions to append records and columns, with and without a producer id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kstore.base import arguments
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import compression, header
from kstore.codec._pack import Packer
from kstore.config import cautions
from kstore.config.log_config import LogConfig
from kstore.errors import KStoreError, RecordBatchTooLargeError, RecordTooLargeError, UnexpectedOffsetError
from kstore.log.appended import Stored
from kstore.log.segments._producer_state import Origin
from kstore.log.writing import producer_append
from kstore.log.writing.writer import Writer

PACK_BYTES = 512 * 1024  # append_many and append_columns write after encoding this many bytes
LOAD_BYTES = 3 << 19  # for columns with one thread and no codec: the page cache keeps larger writes in larger pieces
DEFAULT_BATCH_BYTES = 1 << 20
SPREAD_BYTES = 8 << 20  # for all batches that are filled at the same time; smaller batches would mean small writes
LEAST_SPREAD_BYTES = 65_536  # the least for one partition, even if there are many
MAX_EPOCH = 32_767


class ProducerFields(NamedTuple):
    """The producer fields of the first batch of a call; -1 means none."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


NO_PRODUCER: ProducerFields = ProducerFields()


def producer_fields(producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> ProducerFields:
    """Check a caller's producer arguments; without a producer id the other arguments are refused."""
    if producer_id == -1:
        if producer_epoch != -1 or base_sequence != -1 or transactional:
            raise ValueError("producer_epoch, base_sequence and transactional need a producer_id")
        return NO_PRODUCER
    return ProducerFields(
        arguments.integer("producer_id", producer_id, 0, LONG_MAX),
        arguments.integer("producer_epoch", producer_epoch, 0, MAX_EPOCH),
        arguments.integer("base_sequence", base_sequence, 0, INT_MAX),
        bool(transactional),
    )


@dataclass(slots=True)  # faster to make than a named tuple, which matters in short calls
class AppendOptions:
    """The checked options of `Log.append_many` and `Log.append_columns`."""

    codec: int = 0
    batch_bytes: int | None = None
    expected_offset: int | None = None
    leader_epoch: int | None = None
    producer: ProducerFields = NO_PRODUCER
    atomic: bool = False  # one batch or nothing


def append_options(
    config: LogConfig,
    compression: str | None,
    batch_bytes: int | None,
    expected_offset: int | None,
    leader_epoch: int | None,
    atomic: bool,
) -> AppendOptions:
    """Check the options of an append to a log with this configuration."""
    codec = codec_of(config, compression)
    if leader_epoch is not None:
        check_epoch(leader_epoch)
    if expected_offset is not None:
        expected_offset = checked_expectation(expected_offset)
        if not atomic:
            raise ValueError("expected_offset needs atomic=True: other appends may come between several batches")
    return AppendOptions(codec, batch_bytes, expected_offset, leader_epoch, atomic=atomic)


def codec_of(config: LogConfig, named: str | None) -> int:
    """Return the codec of an append: the topic's codec, or else the named codec, or else none (SEMANTICS 1.10)."""
    codec = compression.type_id(named) if named is not None else 0
    topic = config.compression_type
    if topic == "producer":
        return codec
    return compression.type_id("none" if topic == "uncompressed" else topic)


def batch_bytes_of(config: LogConfig, given: int | None, partitions: int) -> int:
    """Return the size up to which batches are filled if this many partitions are filled at the same time."""
    if given is None:
        given = min(max(SPREAD_BYTES // partitions, LEAST_SPREAD_BYTES), DEFAULT_BATCH_BYTES)
    return min(arguments.integer("batch_bytes", given, low=1), config.max_message_bytes, config.effective_segment_bytes)


class Configured(Protocol):
    """Something that has the configuration of a log."""

    @property
    def config(self) -> LogConfig:
        """The configuration that is in force."""


def packer(
    writer: Configured,
    codec: int,
    batch_bytes: int | None,
    now_ms: int,
    *,
    single: bool = False,
    draft: bool = False,
    producer: ProducerFields = NO_PRODUCER,
) -> Packer:
    """Make a packer by the log's rules; batches of a `draft` are not stored, may have any size and have no checksum."""
    config = writer.config
    limit = min(config.max_message_bytes, config.effective_segment_bytes)
    filled = DEFAULT_BATCH_BYTES if batch_bytes is None else arguments.integer("batch_bytes", batch_bytes, low=1)
    return Packer(
        min(filled, limit),
        INT_MAX if draft else limit,
        codec,
        config.compression_level if config.compression_type != "producer" else None,
        timestamp_type=config.message_timestamp_type,
        now_ms=now_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        transactional=producer.transactional,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
        require_key=config.compacts,
        single=single,
        draft=draft,
    )


def check_epoch(leader_epoch: int | None) -> None:
    if leader_epoch is not None:
        arguments.integer("leader_epoch", leader_epoch, 0, INT_MAX)


def checked_expectation(expected_offset: int | None) -> int | None:
    return None if expected_offset is None else arguments.integer("expected_offset", expected_offset, 0, LONG_MAX)


def refuse_unexpected_locked(writer: Writer, expected_offset: int | None) -> None:
    """Raise `UnexpectedOffsetError` unless the next record gets this offset."""
    actual = writer.log_end_offset
    if expected_offset is not None and expected_offset != actual:
        raise UnexpectedOffsetError(
            f"the append was to begin at offset {expected_offset}, and the log ends at {actual}",
            expected=expected_offset,
            actual=actual,
        )


def store(
    writer: Writer,
    packer: Packer,
    stored: Stored,
    *,
    leader_epoch: int | None = None,
    numbered: bool = False,
    expected_offset: int | None = None,
    skip: int = 0,
) -> tuple[int, int]:
    """Append a packer's batches; return the first and last offset. Note appended records in `stored`, also on error.

    If `numbered`, the batches have a producer id and are compared with the log's state of the producer. A repeated
    batch is not stored again; if there is an `expected_offset`, the log must have the batch there. The first `skip`
    bytes of the packer are left out.
    """
    if 0 < packer.max_timestamp < cautions.LIKE_SECONDS_BELOW:
        warn_of_seconds(writer, stored, packer.max_timestamp)
    writer.housekeeping.before_append()
    with writer.gate():
        if not (numbered and expected_offset is not None and _has_at(writer, packer, expected_offset)):
            refuse_unexpected_locked(writer, expected_offset)
        writer.assign_epoch_locked(leader_epoch)
        first = end = writer.log_end_offset
        with packer.buffer as encoded, encoded[skip:] as batches:
            try:
                if numbered:
                    first, last, _ = producer_append.append_locked(writer, batches, Origin.CLIENT)
                    if expected_offset not in (None, first):  # a repeated batch, at another offset
                        raise UnexpectedOffsetError(
                            f"the append was to begin at offset {expected_offset}, and its batch is at {first} already",
                            expected=expected_offset,
                            actual=first,
                        )
                else:
                    writer.append_locked(batches)
                    last = writer.log_end_offset - 1
                stored.add(first, last, packer.max_timestamp)
            except BaseException:
                count = writer.log_end_offset - end
                if count:
                    stored.add(end, end + count - 1, _max_timestamp(batches, end, count))
                raise
    return first, last


def warn_of_seconds(writer: Writer, stored: Stored, timestamp: int) -> None:
    """Warn of a timestamp that looks like seconds, at most once for each log and once for each call."""
    if not writer.appender.warned:
        stored.caution.say(timestamp)
        writer.appender.warned = True


def _has_at(writer: Writer, packer: Packer, offset: int) -> bool:
    """Return whether the log has the packer's first batch at this offset already."""
    with packer.buffer as batches:
        producer_id, sequence = header.PRODUCER_ID.of(batches), header.BASE_SEQUENCE.of(batches)
    info = writer.producers.info(producer_id)
    known = () if info is None else info.batches
    return any((batch.first_offset, batch.first_sequence) == (offset, sequence) for batch in known)


def too_large(config: LogConfig, error: RecordTooLargeError) -> KStoreError:
    """Return the error for the lower of the two limits, `max.message.bytes` and `segment.bytes`."""
    if config.effective_segment_bytes < config.max_message_bytes:
        return RecordBatchTooLargeError(str(error).replace("max.message.bytes", "segment.bytes"))
    return error


def _max_timestamp(batches: memoryview, first_offset: int, count: int) -> int:
    """Return the greatest timestamp of the first `count` records at or above `first_offset` in v2 batches."""
    greatest, at = -1, 0
    while at < len(batches) and count > 0:
        base_offset = header.BASE_OFFSET.of(batches, at)
        if base_offset >= first_offset:  # an earlier call has stored the batches below it
            greatest = max(greatest, header.MAX_TIMESTAMP.of(batches, at))
            count -= header.records_of(batches, at)
        at += header.size_of(batches, at)
    return greatest
