"""The appending half of `Log`: records, encoded batches, markers, a follower's batches.

Arguments are checked and records packed here, before the log's gate is taken; writing/writer.py changes the log. The
hardest rule: an append that raises leaves the log as it was, or its exception says what it stored before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from kstore.base import arguments
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.codec import validation
from kstore.codec._pack import encode_headers
from kstore.config.log_config import LogConfig
from kstore.errors import (
    InvalidRecordError,
    KStoreError,
    ReadOnlyError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    closed,
)
from kstore.log import _append, batch_packer
from kstore.log.appended import Stored, with_appended
from kstore.log.batch_packer import MAX_EPOCH, PACK_BYTES, producer_fields
from kstore.log.segments._producer_state import Origin, marker_batch
from kstore.log.writing import follower_append, producer_append
from kstore.log.writing._appender import Appender
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.types import Headers

MARKER_BYTES = 78


class Appends:
    """What a `Log` can append; see there about threads."""

    path: str
    _writer: Writer | None
    config: LogConfig
    _appender: Appender | None = None  # the writer's, for the calls that need nothing else of it
    # The fast path of `append_batch`: `Appender.append_ready`, which answers None where there is more to do.
    _append_ready: Callable[[ReadableBuffer, str, int | None, int], AppendInfo | None]
    _flush: Callable[[], None]  # of the log's writer

    append = _append.append

    def _append_slowly(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
        leader_epoch: int | None,
        sync: bool,
        expected_offset: int | None,
    ) -> int:
        """Append one record when there is more to do than to write it: a roll, compression, housekeeping, headers in
        forms that are not the usual ones."""
        writer = self._leading()
        writer.housekeeping.before_append()
        self._check_epoch(leader_epoch)
        expected_offset = batch_packer.checked_expectation(expected_offset)
        if batch_packer.codec_of(self.config, None) == 0:
            encoded = None if headers is None else encode_headers(headers)
            batch = writer.appender.encode(value, key, timestamp, headers=encoded)
            with writer.gate():
                batch_packer.refuse_unexpected_locked(writer, expected_offset)
                writer.assign_epoch_locked(leader_epoch)
                writer.append_locked(batch)
                offset = writer.log_end_offset - 1
        else:
            record = (key, value, timestamp, headers)
            offset = self.append_many(
                [record], leader_epoch=leader_epoch, atomic=True, expected_offset=expected_offset
            ).last_offset
        if sync:
            self.flush()
        return offset

    def append_many(
        self,
        records: Iterable[Any],
        *,
        compression: str | None = None,
        atomic: bool = False,
        sync: bool = False,
        batch_bytes: int | None = None,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> AppendInfo:
        """Append an iterable of values, (key, value), (key, value, timestamp, headers) or `Record`s.

        Batches are filled up to `batch_bytes` (header and records before compression; by default the least of 1 MiB,
        `max.message.bytes` and `segment.bytes`); each is one leader append to Kafka's rules. `compression` names a
        codec for this call where the topic's `compression.type` is "producer". `atomic=True` stores one batch or
        nothing; with it an `expected_offset` is as in `append`, for the first record. Otherwise, when a record is
        refused, or the iterable raises, the batches before it stay. Every exception that leaves here then says which,
        in `appended` and, if it is not one of kstore's, in a note.

        With a `producer_id` the records are numbered from `base_sequence` on, and each batch is held against what the
        log knows of that producer (SEMANTICS 9). One that it already has, of the last five, is not stored again: its
        offsets are the answer, and are held against `expected_offset`. With `transactional` they belong to a
        transaction, which `append_marker` ends.

        Raises what `append` raises; `InvalidRecordError` names the record by its number in the iterable. For a producer
        also `OutOfOrderSequenceError`, `InvalidProducerEpochError`, `InvalidTxnStateError`.
        """
        writer = self._leading()
        codec = batch_packer.codec_of(self.config, compression)
        self._check_epoch(leader_epoch)
        expected_offset = batch_packer.checked_expectation(expected_offset)
        if expected_offset is not None and not atomic:
            raise ValueError("expected_offset needs atomic=True: other appends may come between several batches")
        producer = producer_fields(producer_id, producer_epoch, base_sequence, transactional)
        numbered = producer.producer_id >= 0
        now_ms = writer.now()
        packer = batch_packer.packer(writer, codec, batch_bytes, now_ms, single=atomic, producer=producer)
        iterator = arguments.iterator("records", records)
        stored = Stored()
        more = True
        try:
            while more:
                try:
                    more = packer.pack(iterator, PACK_BYTES)
                except RecordTooLargeError as error:
                    raise batch_packer.too_large(self.config, error) from None
                finally:
                    if packer.batches:
                        batch_packer.store(
                            writer,
                            packer,
                            stored,
                            leader_epoch=leader_epoch,
                            numbered=numbered,
                            expected_offset=expected_offset,
                        )
                        packer.clear()
            if sync:
                self.flush()
        except BaseException as error:
            with_appended(error, stored.info(self.config, now_ms), self.path)
            raise
        return stored.info(self.config, now_ms)

    def append_batch(
        self,
        data: ReadableBuffer,
        *,
        origin: Literal["client", "coordinator"] = "client",
        leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append one encoded batch as a producer sends it: checked, given its offsets, stored (SEMANTICS 1).

        A batch with a producer id is held against what the log knows of that producer, as in `append_many`. With
        `transaction_version=2` a coordinator's marker must have a higher epoch than its transaction (SEMANTICS 9.11a).

        The caller's bytes are not changed. Raises `CorruptRecordError`, `InvalidRecordError` (with `record_errors`),
        `InvalidTimestampError`, `RecordTooLargeError`, `RecordBatchTooLargeError`; the log is then as it was.
        """
        info = self._append_ready(data, origin, leader_epoch, transaction_version)
        return info or self._append_batch_slowly(data, origin, leader_epoch, transaction_version)

    def _append_batch_slowly(
        self,
        data: ReadableBuffer,
        origin: Literal["client", "coordinator"],
        leader_epoch: int | None,
        transaction_version: int,
    ) -> AppendInfo:
        """Append one encoded batch when there is more to do than to check and write it, or say why it is refused."""
        writer = self._leading()
        if origin not in ("client", "coordinator"):
            raise ValueError(f"origin is {origin!r}; 'client' and 'coordinator' are allowed")
        arguments.integer("transaction_version", transaction_version, 0, 2)
        self._check_epoch(leader_epoch)
        writer.refuse_if_unusable()
        config = self.config
        analysis = validation.analyze(data, origin=origin, max_message_bytes=config.max_message_bytes)
        prepared = validation.prepare_leader(analysis, now_ms=writer.now(), config=config, origin=origin)
        self._refuse_larger_than_segment(len(prepared.data))
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
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        sync: bool = False,
        leader_epoch: int | None = None,
    ) -> int:
        """End a producer's transaction in this log with a control batch, stamped now; its offset (SEMANTICS 9.11).

        With `transaction_version=2` the epoch must be above that of the transaction; so the next begins at sequence 0.
        Raises `InvalidProducerEpochError` for an older epoch, `TransactionCoordinatorFencedError` for an older
        coordinator. A marker without a transaction is stored, and changes the epochs alone.
        """
        writer = self._leading()
        arguments.integer("producer_id", producer_id, 0, LONG_MAX)
        arguments.integer("producer_epoch", producer_epoch, 0, MAX_EPOCH)
        arguments.integer("coordinator_epoch", coordinator_epoch, -INT_MAX - 1, INT_MAX)
        arguments.integer("transaction_version", transaction_version, 0, 2)
        self._check_epoch(leader_epoch)
        config = self.config
        if config.max_message_bytes < MARKER_BYTES:
            raise RecordTooLargeError(
                f"a marker makes a batch of {MARKER_BYTES} bytes; max.message.bytes allows {config.max_message_bytes}"
            )
        self._refuse_larger_than_segment(MARKER_BYTES)
        writer.housekeeping.before_append()
        at_append = config.message_timestamp_type == "LogAppendTime"
        with writer.gate():
            batch = marker_batch(writer.now(), producer_id, producer_epoch, bool(commit), coordinator_epoch, at_append)
            writer.assign_epoch_locked(leader_epoch)
            offset, _, _ = producer_append.append_locked(writer, batch, Origin.COORDINATOR, transaction_version)
        if sync:
            self.flush()
        return offset

    def append_as_follower(self, data: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append encoded batches that already have offsets and leader epochs, as a replica fetches them
        (SEMANTICS 1.23 to 1.25).

        From the first batch on whose epoch is above `leader_epoch` everything is left out (SEMANTICS 1.5). Raises
        `UnexpectedAppendOffsetError` below the log end, `OffsetsOutOfOrderError`, `CorruptRecordError`,
        `RecordBatchTooLargeError`, and `NotLeaderError` where `kstore.replicate` does it; the log is then as it was.
        """
        self._leading()
        self._check_epoch(leader_epoch)
        return self._append_as_follower(data, leader_epoch)

    def _append_as_follower(self, data: ReadableBuffer, leader_epoch: int | None) -> AppendInfo:
        writer = self._writable()
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
            self._refuse_larger_than_segment(analysis.valid_bytes)
            follower_append.append_locked(writer, analysis)
        return AppendInfo(analysis.first_offset, analysis.last_offset, analysis.max_timestamp)

    def _refuse_larger_than_segment(self, size: int) -> None:
        allowed = self.config.effective_segment_bytes
        if size > allowed:
            raise RecordBatchTooLargeError(f"the append has {size} bytes; segment.bytes allows {allowed}")

    @staticmethod
    def _check_epoch(leader_epoch: int | None) -> None:
        if leader_epoch is not None:
            arguments.integer("leader_epoch", leader_epoch, 0, INT_MAX)

    def flush(self) -> None:
        """Return once everything appended before the call is on the disk, its directory entries included.

        Concurrent callers share one sync. After a failed sync the log refuses writes until it is reopened.
        """
        self._writable().housekeeping.flush()

    def _writable(self) -> Writer:
        if self._writer is None:
            raise self._not_writable()
        if self._writer.closed:  # before any lock: in a forked child the thread that holds it may be missing
            raise closed(f"{self.path}: the log", self._writer.opened_in)
        return self._writer

    def _leading(self) -> Writer:
        """The writer, for a change by a client; `NotLeaderError` in a follower."""
        writer = self._writable()
        writer.append_epochs.refuse_follower()
        return writer

    def _refuse_append(self, *_: object) -> NoReturn:
        raise self._not_writable()

    def _not_writable(self) -> KStoreError:
        return ReadOnlyError(f"{self.path} is open with mode='r' and changes nothing; open it with mode='a'")
