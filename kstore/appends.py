"""The appending half of `Log`: what a caller may pass, how it is packed, what comes back.

Packing and checking happen here, before the log's mutex is taken; what changes the log is in writer.py. The hardest
rule: an append that raises leaves the log as it was, or says in the error's `appended` what it stored before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kstore import arguments, compression, validation
from kstore._pack import Packer
from kstore._producers import Origin, marker_batch
from kstore.config import LogConfig
from kstore.errors import (
    InvalidRecordError,
    KStoreError,
    LogClosedError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from kstore.producer import ProducerInfo
from kstore.writer import Writer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PACK_BYTES = 512 * 1024  # what append_many encodes before it writes
DEFAULT_BATCH_BYTES = 1 << 20
MAX_EPOCH = 32_767
MARKER_BYTES = 78


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append stored: `[first_offset, last_offset]`, both -1 when it stored nothing.

    `max_timestamp` is the greatest of its records, `log_append_time` the time of the append for a topic whose
    `message.timestamp.type` is LogAppendTime, else -1.
    """

    first_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = -1
    log_append_time: int = -1


class Numbering(NamedTuple):
    """How a producer numbers the batches of one call; -1 stands for none."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


NOT_NUMBERED = Numbering()


def numbering(producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> Numbering:
    """Check what a caller says of its producer; without an id there is nothing else to say."""
    if producer_id == -1:
        if producer_epoch != -1 or base_sequence != -1 or transactional:
            raise ValueError("producer_epoch, base_sequence and transactional need a producer_id")
        return NOT_NUMBERED
    return Numbering(
        arguments.integer("producer_id", producer_id, 0, arguments.LONG_MAX),
        arguments.integer("producer_epoch", producer_epoch, 0, MAX_EPOCH),
        arguments.integer("base_sequence", base_sequence, 0, arguments.INT_MAX),
        bool(transactional),
    )


class Appends:
    """What a `Log` can append; see there about threads."""

    path: str
    _writer: Writer | None
    _config: LogConfig
    _append_one: Callable[..., int]

    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None = None,
        sync: bool = False,
        leader_epoch: int | None = None,
    ) -> int:
        """Append one record as a batch of its own and return its offset.

        `timestamp` is in milliseconds (None: now; -1: none). With `sync=True` it is on the disk when this returns.
        Raises `TypeError` for a `str`, `RecordTooLargeError`, `RecordBatchTooLargeError`, `InvalidTimestampError`,
        `InvalidRecordError`, `StorageError`, `LogClosedError`; the log is then as it was.
        """
        if headers is None and leader_epoch is None:
            offset: int = self._append_one(value, key, timestamp)
            if offset >= 0:
                if sync:
                    self.flush()
                return offset
        return self._append_slowly(value, key, timestamp, headers, leader_epoch, sync)

    def _append_slowly(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] | None,
        leader_epoch: int | None,
        sync: bool,
    ) -> int:
        """Append one record when there is more to do than to write it: a roll, headers, compression, housekeeping."""
        writer = self._writable()
        self._run_due(writer)
        self._check_epoch(leader_epoch)
        if headers is None and self._compression_id(None) == 0:
            batch = writer.appender.encode(value, key, timestamp)
            with writer.gate():
                writer.assign_epoch_locked(leader_epoch)
                writer.append_locked(batch)
                offset = writer.log_end_offset - 1
        else:
            record = (key, value, timestamp, headers)
            offset = self.append_many([record], leader_epoch=leader_epoch).last_offset
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
        nothing. Otherwise, when a record is refused, the batches before it stay and the error's `appended` tells them.

        With a `producer_id` the records are numbered from `base_sequence` on, and each batch is held against what the
        log knows of that producer (SEMANTICS.md 9). One that it already has, of the last five, is not stored again: its
        offsets are the answer. With `transactional` they belong to a transaction, which `append_marker` ends.

        Raises what `append` raises; `InvalidRecordError` names the record by its number in the iterable. For a producer
        also `OutOfOrderSequenceError`, `InvalidProducerEpochError`, `InvalidTxnStateError`.
        """
        writer = self._writable()
        codec = self._compression_id(compression)
        self._check_epoch(leader_epoch)
        numbers = numbering(producer_id, producer_epoch, base_sequence, transactional)
        log_append_time = self._config.message_timestamp_type == "LogAppendTime"
        now_ms = writer.now()
        packer = self._packer(codec, batch_bytes, now_ms, single=atomic, numbers=numbers)
        iterator = arguments.iterator("records", records)
        first = last = maximum = -1
        more = True
        try:
            while more:
                try:
                    more = packer.pack(iterator, PACK_BYTES)
                except RecordTooLargeError as error:
                    raise self._too_large(error) from None
                finally:
                    if packer.batches:
                        begin, last = self._store(writer, packer, leader_epoch, numbered=numbers.producer_id >= 0)
                        first = begin if first < 0 else first
                        maximum = max(maximum, now_ms if log_append_time else packer.max_timestamp)
                        packer.clear()
        except KStoreError as error:
            if hasattr(error, "appended"):
                error.appended = AppendInfo(first, last, maximum, now_ms if log_append_time and last >= 0 else -1)
            raise
        if sync:
            self.flush()
        return AppendInfo(first, last, maximum, now_ms if log_append_time and last >= 0 else -1)

    def _packer(
        self,
        codec: int,
        batch_bytes: int | None,
        now_ms: int,
        *,
        single: bool = False,
        unlimited: bool = False,
        numbers: Numbering = NOT_NUMBERED,
    ) -> Packer:
        """A packer to the log's rules; `unlimited` leaves the size of a batch as written to whoever writes it."""
        config = self._config
        limit = min(config.max_message_bytes, config.effective_segment_bytes)
        if batch_bytes is None:
            batch_bytes = min(DEFAULT_BATCH_BYTES, limit)
        else:
            batch_bytes = min(arguments.integer("batch_bytes", batch_bytes, low=1), limit)
        return Packer(
            batch_bytes,
            arguments.INT_MAX if unlimited else limit,
            codec,
            config.compression_level if config.compression_type != "producer" else None,
            timestamp_type=config.message_timestamp_type,
            now_ms=now_ms,
            producer_id=numbers.producer_id,
            producer_epoch=numbers.producer_epoch,
            base_sequence=numbers.base_sequence,
            transactional=numbers.transactional,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            require_key=config.compacts,
            single=single,
        )

    def _store(
        self, writer: Writer, packer: Packer, leader_epoch: int | None, *, numbered: bool = False
    ) -> tuple[int, int]:
        self._run_due(writer)
        with writer.gate():
            writer.assign_epoch_locked(leader_epoch)
            if numbered:
                with packer.buffer as batches:
                    return writer.append_produced_locked(batches, Origin.CLIENT)[:2]
            first = writer.log_end_offset
            with packer.buffer as batches:
                writer.append_locked(batches)
            return first, writer.log_end_offset - 1

    def _too_large(self, error: RecordTooLargeError) -> KStoreError:
        """Name the limit that binds: `segment.bytes` has an error of its own."""
        if self._config.effective_segment_bytes < self._config.max_message_bytes:
            return RecordBatchTooLargeError(str(error).replace("max.message.bytes", "segment.bytes"))
        return error

    def append_batch(
        self,
        data: ReadableBuffer,
        *,
        origin: Literal["client", "coordinator"] = "client",
        leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append one encoded batch as a producer sends it: checked, given its offsets, stored (SEMANTICS.md 1).

        A batch with a producer id is held against what the log knows of that producer, as in `append_many`. With
        `transaction_version=2` a coordinator's marker must have a higher epoch than its transaction (9.11a).

        The caller's bytes are not changed. Raises `CorruptRecordError`, `InvalidRecordError` (with `record_errors`),
        `InvalidTimestampError`, `RecordTooLargeError`, `RecordBatchTooLargeError`; the log is then as it was.
        """
        writer = self._writable()
        if origin not in ("client", "coordinator"):
            raise ValueError(f"origin is {origin!r}; 'client' and 'coordinator' are allowed")
        arguments.integer("transaction_version", transaction_version, 0, 2)
        self._check_epoch(leader_epoch)
        analysis = validation.analyze(data, origin=origin, max_message_bytes=self._config.max_message_bytes)
        self._run_due(writer)
        with writer.gate():
            epoch = writer.appender.leader_epoch if leader_epoch is None else leader_epoch
            checked = validation.validate_leader(
                analysis,
                next_offset=writer.log_end_offset,
                leader_epoch=epoch,
                now_ms=writer.now(),
                config=self._config,
                origin=origin,
            )
            self._refuse_larger_than_segment(len(checked.data))
            writer.assign_epoch_locked(leader_epoch)
            if checked.batch.producer_id < 0:
                writer.append_locked(checked.data)
            else:
                by = Origin.CLIENT if origin == "client" else Origin.COORDINATOR
                first, last, known = writer.append_produced_locked(checked.data, by, transaction_version)
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
        """End a producer's transaction in this log with a control batch, stamped now; its offset (SEMANTICS.md 9.11).

        With `transaction_version=2` the epoch must be above that of the transaction; so the next begins at sequence 0.
        Raises `InvalidProducerEpochError` for an older epoch, `TransactionCoordinatorFencedError` for an older
        coordinator. A marker without a transaction is stored, and changes the epochs alone.
        """
        writer = self._writable()
        arguments.integer("producer_id", producer_id, 0, arguments.LONG_MAX)
        arguments.integer("producer_epoch", producer_epoch, 0, MAX_EPOCH)
        arguments.integer("coordinator_epoch", coordinator_epoch, -arguments.INT_MAX - 1, arguments.INT_MAX)
        arguments.integer("transaction_version", transaction_version, 0, 2)
        self._check_epoch(leader_epoch)
        config = self._config
        if config.max_message_bytes < MARKER_BYTES:
            raise RecordTooLargeError(
                f"a marker makes a batch of {MARKER_BYTES} bytes; max.message.bytes allows {config.max_message_bytes}"
            )
        self._refuse_larger_than_segment(MARKER_BYTES)
        self._run_due(writer)
        at_append = config.message_timestamp_type == "LogAppendTime"
        with writer.gate():
            batch = marker_batch(writer.now(), producer_id, producer_epoch, bool(commit), coordinator_epoch, at_append)
            writer.assign_epoch_locked(leader_epoch)
            offset = writer.append_produced_locked(batch, Origin.COORDINATOR, transaction_version)[0]
        if sync:
            self.flush()
        return offset

    def producer_states(self) -> list[ProducerInfo]:
        """What the log knows of each producer id, in order: epochs, last batches, open transaction."""
        writer = self._writable()
        with writer.gate():
            return writer.producers.infos()

    def _producer_state(self, producer_id: int) -> ProducerInfo | None:
        """What the log knows of one producer id, however many there are."""
        writer = self._writable()
        with writer.gate():
            return writer.producers.info(producer_id)

    def append_as_follower(self, data: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append encoded batches that already have offsets and leader epochs, as a replica fetches them (1.23 to 1.25).

        From the first batch on whose epoch is above `leader_epoch` everything is left out (1.5). Raises
        `UnexpectedAppendOffsetError` below the log end, `OffsetsOutOfOrderError`, `CorruptRecordError`,
        `RecordBatchTooLargeError`; the log is then as it was.
        """
        writer = self._writable()
        self._check_epoch(leader_epoch)
        analysis = validation.analyze(data, origin="follower", max_message_bytes=None, leader_epoch=leader_epoch)
        self._run_due(writer)
        with writer.gate():
            if not analysis.batches:
                return AppendInfo()
            validation.validate_follower(analysis, next_offset=writer.log_end_offset)
            if analysis.last_offset >= arguments.LONG_MAX:
                raise InvalidRecordError(f"offset {analysis.last_offset} leaves no number for the log end")
            self._refuse_larger_than_segment(analysis.valid_bytes)
            writer.append_as_follower_locked(analysis)
        return AppendInfo(analysis.first_offset, analysis.last_offset, analysis.max_timestamp)

    def _refuse_larger_than_segment(self, size: int) -> None:
        allowed = self._config.effective_segment_bytes
        if size > allowed:
            raise RecordBatchTooLargeError(f"the append has {size} bytes; segment.bytes allows {allowed}")

    @staticmethod
    def _check_epoch(leader_epoch: int | None) -> None:
        if leader_epoch is not None:
            arguments.integer("leader_epoch", leader_epoch, 0, arguments.INT_MAX)

    def _compression_id(self, named: str | None) -> int:
        """The codec of an append: the topic's, else the one named for the call, else none (1.10)."""
        asked = compression.type_id(named) if named is not None else 0
        topic = self._config.compression_type
        if topic == "producer":
            return asked
        return compression.type_id("none" if topic == "uncompressed" else topic)

    def flush(self) -> None:
        """Return once everything appended before the call is on the disk, its directory entries included.

        Concurrent callers share one sync. After a failed sync the log refuses writes until it is reopened.
        """
        self._writable().upkeep.flush()

    def _run_due(self, writer: Writer) -> None:
        if writer.now() >= writer.appender.due_ms:
            writer.upkeep.host.housekeep(writer.upkeep)

    def _writable(self) -> Writer:
        if self._writer is None:
            raise self._not_writable()
        if self._writer.closed:  # before any lock: in a forked child nobody may be left to give it back
            raise LogClosedError(f"{self.path}: the log is closed")
        return self._writer

    def _refuse_append(self, *_: object) -> int:
        raise self._not_writable()

    def _not_writable(self) -> KStoreError:
        return LogClosedError(f"{self.path} is open with mode='r' and takes no appends; open it with mode='a'")
