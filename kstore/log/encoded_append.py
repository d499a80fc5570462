"""Appends encoded batches to a log: a producer's or coordinator's batch, a marker, or a follower's fetched batches.

Arguments are checked before the log's gate (its mutex) is entered. Invariant: an append that raises leaves the log
unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kstore.base import arguments
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import validation
from kstore.errors import InvalidRecordError, RecordBatchTooLargeError, RecordTooLargeError
from kstore.log.batch_packer import MAX_EPOCH, check_epoch
from kstore.log.segments._producer_state import Origin, marker_batch
from kstore.log.writing import follower_append, producer_append
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MARKER_BYTES = 78


def append_encoded(
    writer: Writer,
    data: ReadableBuffer,
    origin: Literal["client", "coordinator"],
    leader_epoch: int | None,
    transaction_version: int,
) -> AppendInfo:
    """Append one encoded batch that the appender's fast path did not append; see `Log.append_batch`."""
    if origin not in ("client", "coordinator"):
        raise ValueError(f"origin is {origin!r}; 'client' and 'coordinator' are allowed")
    arguments.integer("transaction_version", transaction_version, 0, 2)
    check_epoch(leader_epoch)
    writer.refuse_if_unusable()
    config = writer.config
    analysis = validation.analyze(data, origin=origin, max_message_bytes=config.max_message_bytes)
    prepared = validation.prepare_leader(analysis, now_ms=writer.now(), config=config, origin=origin)
    _refuse_larger_than_segment(writer, len(prepared.data))
    writer.housekeeping.before_append()
    with writer.gate():
        epoch = writer.appender.leader_epoch if leader_epoch is None else leader_epoch
        checked = validation.finish_leader(
            prepared, next_offset=writer.log_end_offset, leader_epoch=epoch, now_ms=writer.now()
        )
        writer.assign_epoch_locked(leader_epoch)
        if checked.batch.producer_id < 0:
            writer.append_locked(checked.data)
        else:
            by = Origin.CLIENT if origin == "client" else Origin.COORDINATOR
            first, last, known = producer_append.append_locked(writer, checked.data, by, transaction_version)
            if known >= 0 or first != checked.first_offset:
                return AppendInfo(first, last, checked.max_timestamp, known)
    return AppendInfo(checked.first_offset, checked.last_offset, checked.max_timestamp, checked.log_append_time)


def append_marker(
    writer: Writer,
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    transaction_version: int,
    leader_epoch: int | None,
) -> int:
    """End a producer's transaction with a control batch; see `Log.append_marker`."""
    arguments.integer("producer_id", producer_id, 0, LONG_MAX)
    arguments.integer("producer_epoch", producer_epoch, 0, MAX_EPOCH)
    arguments.integer("coordinator_epoch", coordinator_epoch, -INT_MAX - 1, INT_MAX)
    arguments.integer("transaction_version", transaction_version, 0, 2)
    check_epoch(leader_epoch)
    config = writer.config
    if config.max_message_bytes < MARKER_BYTES:
        raise RecordTooLargeError(
            f"a marker makes a batch of {MARKER_BYTES} bytes; max.message.bytes allows {config.max_message_bytes}"
        )
    _refuse_larger_than_segment(writer, MARKER_BYTES)
    writer.housekeeping.before_append()
    at_append = config.message_timestamp_type == "LogAppendTime"
    with writer.gate():
        batch = marker_batch(writer.now(), producer_id, producer_epoch, bool(commit), coordinator_epoch, at_append)
        writer.assign_epoch_locked(leader_epoch)
        offset, _, _ = producer_append.append_locked(writer, batch, Origin.COORDINATOR, transaction_version)
    return offset


def append_fetched(writer: Writer, data: ReadableBuffer, leader_epoch: int | None) -> AppendInfo:
    """Append encoded batches that already have offsets; see `Log.append_as_follower`."""
    analysis = validation.analyze_run(data) if leader_epoch is None else None
    if analysis is None:
        analysis = validation.analyze(data, origin="follower", max_message_bytes=None, leader_epoch=leader_epoch)
    writer.housekeeping.before_append()
    with writer.gate():
        if not analysis.batches:
            return AppendInfo()
        validation.validate_follower(analysis, next_offset=writer.log_end_offset)
        if analysis.last_offset >= LONG_MAX:
            raise InvalidRecordError(f"offset {analysis.last_offset} leaves no number for the log end")
        _refuse_larger_than_segment(writer, analysis.valid_bytes)
        follower_append.append_locked(writer, analysis)
    return AppendInfo(analysis.first_offset, analysis.last_offset, analysis.max_timestamp)


def _refuse_larger_than_segment(writer: Writer, size: int) -> None:
    allowed = writer.config.effective_segment_bytes
    if size > allowed:
        raise RecordBatchTooLargeError(f"the append has {size} bytes; segment.bytes allows {allowed}")
