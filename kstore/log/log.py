"""`Log`: one topic-partition directory, laid out byte for byte as a Kafka broker would.

All public methods are here: each checks its arguments and calls the part that does the work. The state of a writable
log is a `Writer`, that of a read-only log a `ReadOnlyView`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack

from kstore import _core
from kstore._core import Record
from kstore.base import arguments, times
from kstore.base.closing import Closing
from kstore.base.stats import LogStats
from kstore.codec._compression import ZSTD_OF_COLUMNS
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import new_secret
from kstore.columns.column_input import ColumnInput
from kstore.config import cautions
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.disk import fs
from kstore.errors import (
    InvalidTopicError,
    KStoreError,
    PolicyViolationError,
    ReadOnlyError,
    StorageError,
    as_storage_error,
    closed,
)
from kstore.files import follower_file, names
from kstore.log import _append, column_append, encoded_append
from kstore.log.batch_packer import append_options, check_epoch, producer_fields
from kstore.log.column_append import MAX_THREADS
from kstore.log.column_reads import (
    ArrowStreams,
    Layout,
    column_options,
    iterate_chunks,
    read_batch_table,
    read_chunk,
)
from kstore.log.compaction import compact_log, compaction_stats
from kstore.log.compaction.compaction_outlook import CompactionOutlook
from kstore.log.compaction.compaction_outlook import outlook as compaction_outlook
from kstore.log.log_table import LogTable, checked, collect
from kstore.log.opening import Marks, check_place, load_writer, lock_partition, take_marks, take_role
from kstore.log.reading import _timestamp_lookup, fetch
from kstore.log.reading.fetch import FetchResult
from kstore.log.reading.log_reader import iterate_batches, iterate_records
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.read_options import Isolation, OnLag, read_options, wants_committed
from kstore.log.reading.view import describe_all, steadily
from kstore.log.record_append import append_records
from kstore.log.segments.producer_state import DEFAULT_EXPIRY, Expiry, ProducerInfo
from kstore.log.segments.recovery import Recovery, Seen
from kstore.log.writing import retention_run, truncation
from kstore.log.writing._appender import Appender
from kstore.log.writing.housekeepers import InlineHousekeeper, ThreadHousekeeper
from kstore.log.writing.housekeeping import Housekeeper
from kstore.log.writing.retention import Deletion, Outlook
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo, CompactionStats, SegmentInfo, TimestampOffset

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.config.keywords import LogSettings
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.types import Headers


class Log(Closing):
    """One partition of a topic: appended to at its end, read from anywhere. Open it with `Log.open`.

    Any method may be called from any thread. Appends of one call to `append_many` may interleave with those of other
    threads between batches. Reading takes no lock; a read of committed records waits for a truncation. In a forked
    child the log is closed; a read-only log can be pickled and opens again where it is unpickled. One that is collected
    while it is open gives a `ResourceWarning`, as a file does.
    """

    def __init__(self, *arguments: object, **settings: object) -> None:
        raise TypeError("a log is opened with Log.open(path)")

    # Opening and closing.

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["a", "r"] = "a",
        *,
        config: ConfigSource = None,
        clock: Callable[[], int] | None = None,
        max_decompressed_bytes: int | None = None,
        **settings: Unpack[LogSettings],
    ) -> Self:
        """Open the partition directory at `path`, named `topic-partition`.

        Mode "a" creates what is missing, takes the writer's locks, and recovers what a crash left (`recovery` says
        what it did). Mode "r" takes no lock and never changes a byte; any number of processes may do it while the log
        is written. `config` and `settings` (`segment_bytes=...`) are not stored: give them at each opening. `clock`
        gives milliseconds since the epoch and stands in for the system's in everything the log decides by time.
        A batch that would decompress to more than `max_decompressed_bytes` (256 MiB unless given) is a
        `CorruptRecordError`: no producer makes one, and a few kilobytes can be made to claim gigabytes.

        Raises `LogLockedError` while another writer or a broker has the directory, `CorruptRecordError` for a fault in
        what had been flushed (nothing is cut), `InvalidTopicError` for a name that Kafka forbids, `ConfigError`, and
        `StorageError`, also while a bulk load into the partition is not finished (`Store.open` does that), or a restore
        into its root.
        """
        directory, topic, partition = check_place(path, mode)
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        checked_clock = times.checked_clock(clock)
        if max_decompressed_bytes is not None:
            max_decompressed_bytes = arguments.integer("max_decompressed_bytes", max_decompressed_bytes, low=1)
        refuse_unknown(Log.open, settings, LogConfig)
        resolved = LogConfig.resolve(config, settings)
        if mode == "a":
            resolved.check_for_writing()
            cautions.issue(resolved.warnings(housekeeping=False))
        log = cls._begin(directory, topic, partition, mode, resolved)
        log._arguments = {"config": config, "max_decompressed_bytes": max_decompressed_bytes, **settings}
        log._clock = checked_clock
        if mode == "r":
            log._open_for_reading()
        else:
            log._open_for_writing(clock)
        log._view.max_decompressed_bytes = max_decompressed_bytes
        log._is_own = True
        return log

    @classmethod
    def _begin(cls, path: str, topic: str, partition: int, mode: str, config: LogConfig) -> Self:
        log = cls.__new__(cls)
        log.path = path
        log.topic, log.partition = topic, partition
        log.mode = mode
        log._writer = None
        log._locks = ()
        log._clock = None
        log._arguments = {}
        log._streams = ArrowStreams()
        log.config = config
        fs.register(log)
        return log

    path: str
    """The partition's directory, as an absolute path."""

    topic: str
    """The topic, from the directory's name."""

    partition: int
    """The partition's number, from the directory's name."""

    mode: str
    """How it was opened: "a" (create or append) or "r" (read only)."""

    recovery: Recovery
    """What opening the log found and did."""

    config: LogConfig
    """The settings that are in force; `update_config` changes them."""
    _arguments: dict[str, Any]
    _clock: Callable[[], int] | None
    _locks: tuple[fs.Lock, ...]
    _view: Writer | ReadOnlyView
    _writer: Writer | None
    _appender: Appender | None = None  # the writer's, for the calls that need nothing else of it
    # The fast path of `append_batch`: `Appender.append_ready`, which answers None where there is more to do.
    _append_ready: Callable[[ReadableBuffer, str, int | None, int], AppendInfo | None]
    _flush: Callable[[], None]  # of the log's writer
    _streams: ArrowStreams
    _turns: Turns | None = None
    _flushers: Flushers | None = None
    _is_own = False  # opened by the user, who closes it; not by a store

    def _open_for_reading(self) -> None:
        if not fs.exists(self.path):
            raise fs.MissingFileError(2, "no such partition directory; mode 'r' creates nothing", self.path)
        view = ReadOnlyView(self.path, (self.topic, self.partition))
        self.recovery = Recovery()
        self._view = view
        self._append_ready = self._refuse_append

    def _open_for_writing(self, clock: Callable[[], int] | None) -> None:
        root = os.path.dirname(self.path)
        fs.make_directories(root)
        self._locks = (fs.lock_root(root, shared=True),)
        try:
            self._locks += (lock_partition(self.path, (self.topic, self.partition)),)
            marks = take_marks(root, (self.topic, self.partition))
            housekeeper = ThreadHousekeeper(root) if clock is None else InlineHousekeeper(root)
            self._load(marks, clock, housekeeper)
            take_role(self._writable(), follower_file.read_role(root), marks.leader_epoch)
        except BaseException:
            self._unlock()
            raise

    def _load(
        self,
        marks: Marks,
        clock: Callable[[], int] | None,
        housekeeper: Housekeeper,
        expiry: Expiry = DEFAULT_EXPIRY,
        seen: Seen | None = None,
    ) -> None:
        partition = (self.topic, self.partition)
        writer, self.recovery = load_writer(self.path, partition, self.config, marks, clock, housekeeper, expiry, seen)
        self._writer = self._view = writer
        self._appender = writer.appender
        self._append_ready = writer.appender.append_ready
        self._flush = writer.housekeeping.flush

    def _unlock(self) -> None:
        for lock in reversed(self._locks):
            lock.release()

    def _after_fork(self) -> None:
        """Be closed in a child process: its copies of the locks must not outlive the parent's."""
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)
        if view is None:
            return  # the log was being opened
        view.closed, view.opened_in = True, fs.opener()
        view.guard.version += 1
        if self._writer is not None:
            self._writer.appender.busy = True
            self._writer.appender.detach()

    def close(self) -> None:
        """Leave the files as a broker's clean shutdown does, write the checkpoints, give the locks back. Idempotent.

        Everything appended is on the disk when this returns. Raises `StorageError` when that failed; the log is closed
        all the same.
        """
        if self._view.closed and not any(lock.held for lock in self._locks):
            return
        try:
            self._view.close()  # again after an interrupt, or beside another thread that closes it: then this waits
        finally:
            if self._writer is not None and self._writer.closed:  # not so if we were interrupted while we waited
                self._unlock()

    @property
    def failed(self) -> StorageError | None:
        """Why the log refuses to be written, None if it does not."""
        failure = None if self._writer is None else self._writer.failure
        return None if failure is None else as_storage_error(failure, self.path)

    def __del__(self) -> None:
        # The log is not used any more: its records are in the files, and its locks are released with this object.
        view, writer = getattr(self, "_view", None), getattr(self, "_writer", None)
        was_open = self._is_own and view is not None and not view.closed
        if writer is not None and not writer.closed:
            writer.abandon()
        if was_open:
            warnings.warn(f"unclosed log {self.path!r} mode={self.mode!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)  # none yet while it is opened
        if view is None or view.closed:
            state = "closed"
        else:
            with suppress(KStoreError):  # a directory that has gone, say: what was known last is shown
                self._marks()
            state = f"[{view.log_start_offset}, {view.log_end_offset})"
        return f"<kstore.Log {self.topic}-{self.partition} {state} mode={self.mode!r} at {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a log that is open for writing cannot be pickled: it holds the writer's locks")
        return _reopen, (self.path, self._arguments)

    # Appending.

    append = _append.append

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
        options = append_options(writer.config, compression, batch_bytes, expected_offset, leader_epoch, atomic)
        options.producer = producer_fields(producer_id, producer_epoch, base_sequence, transactional)
        return append_records(writer, records, options, self.flush if sync else None)

    def append_columns(
        self,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> AppendInfo:
        """Append a record for each row of `values`, with the same row of the other columns; nulls are nulls.

        A column is whatever speaks the Arrow PyCapsule interface (an array, a chunked array, a stream), a NumPy array,
        or a list. Bytes may be binary or utf8 in any of Arrow's layouts, dictionary-encoded or not; NumPy's `S` (the
        NUL bytes at a row's end are padding, as in NumPy), `V` or rows of uint8. `values` may be a record batch, a
        table, a stream of them or a structured array with columns value, key, timestamp and headers. `timestamps` are
        milliseconds, Arrow timestamps, dates, or datetime64, one int for all, or None for now, which null is, too;
        times between two milliseconds belong to the earlier one. `headers` are an Arrow map or list of structs, or a
        list of what `append_many` takes for each record.

        Batches are those of `append_many` for the same records. With `threads` above 1 batches are compressed on so
        many threads, in order; without a codec one batch is written while the next is encoded. A producer's numbers are
        as in `append_many`. With an `expected_offset` the rows are stored as one batch that begins there, or not at
        all; more rows than a batch has room for are a `RecordTooLargeError`. Raises what `append_many` raises,
        `InvalidColumnError` for columns of different lengths and unsound Arrow data, and `TypeError` for a type that is
        not taken; errors name the row. Every exception says what is stored, as in `append_many`.
        """
        writer = self._leading()
        atomic = expected_offset is not None
        options = append_options(writer.config, compression, batch_bytes, expected_offset, leader_epoch, atomic)
        threads = arguments.integer("threads", threads, 1, MAX_THREADS)
        rows = ColumnInput(values, keys, timestamps, headers, now_ms := writer.now())
        options.producer = producer_fields(producer_id, producer_epoch, base_sequence, transactional)
        return column_append.append_columns(writer, rows, now_ms, options, threads, self.flush if sync else None)

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
        return info or encoded_append.append_encoded(self._leading(), data, origin, leader_epoch, transaction_version)

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
        offset = encoded_append.append_marker(
            self._leading(),
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            leader_epoch=leader_epoch,
        )
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
        writer = self._leading()
        check_epoch(leader_epoch)
        return encoded_append.append_fetched(writer, data, leader_epoch)

    def flush(self) -> None:
        """Return once everything appended before the call is on the disk, its directory entries included.

        Concurrent callers share one sync. After a failed sync the log refuses writes until it is reopened.
        """
        self._writable().housekeeping.flush()

    async def aappend(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
    ) -> int:
        """Append one record as `append` does, and return its offset.

        The write is made in the loop's thread. With `sync=True` the call then waits until the record is on the disk:
        all tasks that wait for it at the same time share one sync, which a thread of the loop's executor makes. Tasks
        that append again and again give way to the loop's other tasks every half a millisecond.

        Cancelled before the write, the call has appended nothing. With `sync=True` it may be cancelled after the write:
        then the record has been appended, can be read, and is on the disk after the next sync. Raises what `append`
        raises; where the sync fails, or the log is closed meanwhile, the record has been appended and may be lost with
        the machine. `RuntimeError` without an asyncio event loop.
        """
        turns = self._turns or self._begin_awaiting()
        if turns.is_over():
            await turns.give_way()
        offset = -1
        if headers is None and leader_epoch is None and self._appender is not None:
            offset = self._appender.append(value, key, timestamp, expected_offset)
        if offset < 0:
            from kstore.log.async_flush import do_due_work

            await do_due_work(self._leading())
            offset = self.append(
                value,
                key,
                timestamp=timestamp,
                headers=headers,
                expected_offset=expected_offset,
                leader_epoch=leader_epoch,
            )
        if sync:
            await self.aflush()
        return offset

    async def aflush(self) -> None:
        """Return once everything appended before the call is on the disk, as `flush` does.

        A thread of the loop's executor makes the sync, one for all tasks that wait at the same time. A cancelled call
        waits no longer, and changes nothing. Raises what `flush` raises; `LogClosedError` if the log is closed
        meanwhile.
        """
        writer = self._writable()
        flushers = self._flushers
        if flushers is None:
            from kstore.log.async_flush import Flushers

            flushers = self._flushers = Flushers(writer.housekeeping.flush)
        await flushers.flushed()

    # Reading.

    def read(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.Record]:
        """Iterate over the records of `[offset, end_offset)`, over segment borders.

        Starts at `offset`, or at the first record at or after `start_timestamp` (milliseconds, or a `datetime` with a
        time zone), or at the log start; ends where the
        log ends now, unless `follow`, which waits for more and ends after `timeout` seconds without a new record.
        With `durable` it ends, or waits, at the recovery point: what it gives survives the machine. That is what the
        writer has flushed, and in another process what it has written down of that, once a minute or so
        (SEMANTICS 12.7). With `isolation="read_committed"` it ends, or waits, at the last stable offset, where the
        earliest open transaction begins, and leaves out the records of aborted ones.
        Control records are left out. Raises `OffsetOutOfRangeError` at once for an offset outside the log, and from
        the iterator when retention, `delete_records` or a truncation overtakes it; `CorruptRecordError` for a batch
        whose CRC does not hold; `LogClosedError`. With `on_lag="start"` what was deleted below the log start is passed
        over, at once and when retention or `delete_records` overtakes the iterator; `OffsetOutOfRangeError` is then
        for what a truncation took, and for an offset above the log end. One iterator belongs to one thread at a time.
        """
        options = read_options(offset, end_offset, start_timestamp, isolation, durable, follow, timeout, on_lag)
        return iterate_records(self._view, options, self)

    def read_batches(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.RecordBatch]:
        """Iterate over the batches that hold records of `[offset, end_offset)`, control batches included.

        The first may begin below `offset` and the last reach past `end_offset`. Each batch owns its bytes. Otherwise
        as `read`.
        """
        options = read_options(offset, end_offset, start_timestamp, isolation, durable, follow, timeout, on_lag)
        return iterate_batches(self._view, options, self)

    def aread(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Stream[Record]:
        """Iterate over the records of `[offset, end_offset)` with `async for`; the arguments are those of `read`.

        Pieces of files, of up to 256 KiB or one larger batch, are read by a thread of the loop's executor, and what was
        appended while the iterator waited, in the loop's thread. After 256 records the loop's other tasks get their
        turn. Nothing is read ahead of the piece, so an iterator that is slow costs no memory, and holds no append back.

        With `follow` the writer wakes the iterator, if it is in this process; a log that another process writes is
        looked at with pauses that grow to a quarter of a second. A cancelled `anext` loses no record: the next one goes
        on. Raises as `read` does, at once for what is wrong with the arguments; `LogClosedError` from the iterator when
        the log is closed. One iterator belongs to one task at a time.
        """
        from kstore.log.async_source import stream_records

        options = read_options(offset, end_offset, start_timestamp, isolation, durable, follow, timeout, on_lag)
        return stream_records(self._view, options, self)

    def read_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Columns:
        """Read the records of `[offset, end_offset)` into columns, at most `max_records` and `max_bytes` of them.

        Where it starts and ends and what it raises is as with `read`; the answer's `next_offset` says where to go on,
        and is the end when nothing is left. `max_bytes` counts records as a batch holds them before compression; one
        record is given whatever its size. `columns` are by default offset, timestamp, key and value; there are also
        headers, partition_leader_epoch, producer_id, producer_epoch, base_sequence, sequence, base_offset,
        timestamp_type (0 the producer's, 1 the log's, -1 none), compression (by number), is_transactional and
        is_tombstone (whether the value is null). Only what is asked for is built. `layout` is how keys and values lie
        in memory: "binary", with 32-bit offsets, for which reading stops below 2 GiB; "large_binary"; or "view", where
        uncompressed values are not copied (several engines import views, but have few functions for them). Long
        stretches are read by so many `threads`, by default as many as there are cores and at most 4, which share the
        work of one answer and keep its order.
        """
        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=True)
        options = read_options(offset, end_offset, start_timestamp, isolation, durable)
        return read_chunk(self._view, options, wanted)

    def iter_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Iterator[Columns]:
        """Iterate over the records of `[offset, end_offset)`, at most `max_records` and `max_bytes` in each `Columns`.

        Without either, chunks are of up to 4 MiB, of whole batches where these are smaller, and as many are read at
        once as there are `threads`, of compressed batches twice as many; the other threads go on reading while the
        caller uses a chunk, up to as many as these. Holds the memory of these beside the chunks
        that the caller keeps. Otherwise as `read_columns`; rows before a fault come first. One iterator belongs to one
        thread at a time.
        """
        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=False)
        options = read_options(offset, end_offset, start_timestamp, isolation, durable)
        return iterate_chunks(self._view, options, wanted, self)

    def aread_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Stream[Columns]:
        """Iterate over the records of `[offset, end_offset)` as columns with `async for`, chunk by chunk.

        The arguments and the chunks are those of `iter_columns`. Each chunk is made by a thread of the loop's executor,
        when it is asked for and not before, but for those that other `threads` read ahead. A cancelled `anext` loses
        none: the next one gives it. Raises as `iter_columns` does. One iterator belongs to one task at a time.
        """
        from kstore.log.async_stream import InThread, Stream

        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=False)
        options = read_options(offset, end_offset, start_timestamp, isolation, durable)
        return Stream([InThread(iterate_chunks(self._view, options, wanted, self))])

    def batch_table(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
    ) -> Columns:
        """Read the headers of the batches that reach into `[offset, end_offset)`: one row each, control batches too.

        Columns: base_offset, last_offset, count, position and size_bytes in its file, segment_base_offset,
        base_timestamp, max_timestamp, partition_leader_epoch, magic, compression (by number), timestamp_type (0 the
        producer's, 1 the log's, -1 none), is_transactional, is_control, producer_id, producer_epoch, base_sequence,
        delete_horizon_ms (-1: none) and crc. A compressed message of the old formats keeps its base offset and its
        count inside; both are -1 here. No checksum is looked at. Raises as `read_batches` does for a broken frame.
        """
        options = read_options(offset, end_offset, start_timestamp, isolation, durable)
        return read_batch_table(self._view, options)

    def __arrow_c_schema__(self) -> object:
        """Describe the record batches of `__arrow_c_stream__` to Arrow."""
        return self._streams.schema()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the whole log as an Arrow stream of offset, timestamp, key and value, each time anew.

        `polars.DataFrame(log)`, `duckdb.sql('select "offset" from log')`, `pandas.DataFrame.from_arrow(log)` and
        `pyarrow.RecordBatchReader.from_stream(log)` call this, some of them several times for one query. So as long as
        a stream of the log is open, every further one ends where it does; after that the next takes the log end as it
        is then. A `requested_schema` may have any of the columns that `read_columns` knows, bytes in any layout or as
        strings; what cannot be had so is a `ValueError`.
        """
        return self._streams.stream(self._view, requested_schema, self)

    def latest(self, *, as_of: int | datetime | None = None) -> LogTable:
        """Read the newest record of each key: what a compaction of the whole log would keep, with nothing rewritten.

        A key whose newest record is a tombstone (a null value) is absent, and so are records without a key; b"" is a
        key. Only committed records count: those below the last stable offset, aborted ones left out. Any
        `cleanup.policy` will do.

        `as_of` gives the table as it was: at an offset, from the records below it; at a time (a `datetime` with a time
        zone), from the records below the first one whose timestamp is later than the time. So it is always a state
        that the log went through: where timestamps go up and down, a record behind that first one does not count,
        even if its own timestamp is earlier. A record without a timestamp is never later. Of what compaction,
        retention and truncation have removed since, a table of the past knows nothing: a key is absent from it if its
        record then has been superseded and cleaned, as those may be that are older than `min.compaction.lag.ms`.

        The answer holds the memory of its own records; beside it, while this runs, the keys are held once more.
        Raises `OffsetOutOfRangeError` for an offset outside of the log, `ValueError` for a time without a zone,
        `TypeError` for anything else, and what `read` raises.
        """
        return LogTable(collect(self._view, checked(as_of), new_secret()))

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: Isolation = "read_uncommitted",
        min_one_message: bool = True,
    ) -> FetchResult:
        """Read raw batches from the one that holds `offset` on, `max_bytes` of one segment at the most.

        With `min_one_message` the first batch comes whole even if it is larger; the last may be cut off. With
        `isolation="read_committed"` they end at the last stable offset, and the answer's `aborted_transactions` are
        (producer id, first offset) of those whose batches its reader has to leave out, perhaps of more
        (SEMANTICS 4.11). Raises `OffsetOutOfRangeError`.
        """
        committed = wants_committed(isolation)
        offset = arguments.whole("offset", offset)
        max_bytes = arguments.whole("max_bytes", max_bytes)
        return fetch.fetch(self._view, offset, max_bytes, min_one_message=min_one_message, committed=committed)

    offset_for_timestamp = _timestamp_lookup.offset_for_timestamp

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the greatest timestamp of a record and the first record that has it; None in a log without timestamps.

        As in Kafka, what the log's files hold counts: after `delete_records` the record may lie below
        `log_start_offset`, where it cannot be read, until its segment is deleted.
        """
        return fetch.max_timestamp(self._view)

    def producer_states(self) -> list[ProducerInfo]:
        """What the log knows of each producer id, in order: epochs, last batches, open transaction.

        In mode "r" it is found from the newest snapshot and the batches after it, and has producers, too, that the
        writer has forgotten since they expired (SEMANTICS 9.21). Raises `LogClosedError`, and in mode "r" also
        `CorruptRecordError` and `StorageError`.
        """
        view = self._view
        view.refresh()
        return view.producer_states()

    # Marks and facts.

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._marks().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last record: the next offset to be given out."""
        return self._marks().log_end_offset

    @property
    def high_watermark(self) -> int:
        """The end for ordinary readers; with one replica it follows every append."""
        return self._marks().log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end for readers of committed records; the high watermark in a log without open transactions.

        An open transaction that began below the log start keeps it there (SEMANTICS 9.16). A writer that recovers
        or truncates the log may forget such a transaction, as Kafka does; mode "r" knows it until the log is closed.
        Where all records were deleted, only the writer that was open then knows it.
        """
        return self._marks().decided_end_offset()

    def _marks(self) -> Writer | ReadOnlyView:
        if isinstance(self._view, ReadOnlyView):
            self._view.refresh()
        return self._view

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments in order, the active one last."""
        return steadily(describe_all, self._view, view=self._view)

    def update_config(self, **settings: Unpack[LogSettings]) -> None:
        """Change settings of the open log; each takes effect when it does in Kafka (SEMANTICS 13.13)."""
        if self._writer is None:
            self.config = self.config.replace(**settings)
            return
        before, after = self.config, self.config.replace(**settings)
        after.check_for_writing()
        warned = before.warnings(housekeeping=False)
        cautions.issue(warning for warning in after.warnings(housekeeping=False) if warning not in warned)
        self._configure(after, settings)

    def _configure(self, config: LogConfig, settings: LogSettings | None = None) -> None:
        """Take a configuration, or with `settings` the present one with these; a cleaning is aborted where the policy
        loses `compact` (SEMANTICS 7.8)."""
        writer = self._writable()
        stops = writer.config.compacts and not config.compacts
        with writer.cleaning.paused() if stops else nullcontext(), writer.gate():
            self.config = config if settings is None else self.config.replace(**settings)
            writer.configure(self.config)
            writer.limit()

    @property
    def closed(self) -> bool:
        """Whether the log has been closed, or belongs to the process that this one was forked from."""
        return self._view.closed

    def stats(self) -> LogStats:
        """Numbers to watch the log by: marks, sizes, entries, the recovery point, compaction; docs/metrics.md has each.

        `full` says why the last write failed, if the disk had no room for it; "" else. `first_dirty_offset` is -1 where
        `cleanup.policy` has not `compact`, and `compaction_failure` says why the last compaction failed; "" else.
        `zstd_of_columns` says which library decompresses zstd.
        """
        segments = self.segments
        view = self._view
        return {
            "path": self.path,
            "mode": self.mode,
            "log_start_offset": view.log_start_offset,
            "log_end_offset": view.log_end_offset,
            "recovery_point": (view if isinstance(view, ReadOnlyView) else view.housekeeping).recovery_point,
            "segments": len(segments),
            "size_bytes": sum(segment.size_bytes for segment in segments),
            "offset_index_entries": sum(segment.offset_index_entries for segment in segments),
            "time_index_entries": sum(segment.time_index_entries for segment in segments),
            "full": "" if self._writer is None or self._writer.full is None else str(self._writer.full),
            "zstd_of_columns": ZSTD_OF_COLUMNS,
            **compaction_stats.numbers(view, self.config, self._now()),
        }

    # Changing the log otherwise.

    def roll(self) -> int:
        """Start a new segment at the log end, and return its base offset.

        Where the active segment is empty, it stays, and its age by `segment.ms` begins again.
        """
        writer = self._writable()
        with writer.gate():
            if writer.appender.size > 0 or writer.log_end_offset > writer.active.base_offset:
                writer.roll_locked("explicit", writer.log_end_offset)
            else:
                writer.renew_locked()
            return writer.active.base_offset

    def truncate_to(self, offset: int) -> bool:
        """Drop the records at and above `offset`; whether there were any. A batch that holds `offset` goes whole."""
        return truncation.truncate_to(self._leading(), arguments.integer("offset", offset, low=0))

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Drop every record and let the log go on at `offset` (SEMANTICS 11.8)."""
        offset = arguments.integer("offset", offset, low=0)
        start = offset
        if log_start_offset is not None:
            start = arguments.integer("log_start_offset", log_start_offset, 0, offset)
        truncation.restart(self._leading(), offset, start)

    def delete_records(self, before_offset: int) -> int:
        """Make everything below `before_offset` (-1: the high watermark) unreadable; the log start after it.

        On the disk when this returns. Raises `OffsetOutOfRangeError` beyond the high watermark, `PolicyViolationError`
        for a compacted log.
        """
        writer = self._leading()
        policy = self.config.cleanup_policy
        if self.topic in names.INTERNAL_TOPICS:
            raise InvalidTopicError(f"records of the internal topic {self.topic} are deleted by its coordinator alone")
        if policy and "delete" not in policy:
            raise PolicyViolationError(
                f"cleanup.policy is {','.join(policy)}; records are deleted only where it has 'delete' or is empty"
            )
        retention_run.raise_start(writer, arguments.whole("before_offset", before_offset))
        return writer.log_start_offset

    def apply_retention(self) -> list[SegmentInfo]:
        """Delete the oldest segments that neither settings nor log start keep (SEMANTICS 6); those that went.

        Their files are renamed to `.deleted` now and unlinked when `file.delete.delay.ms` has passed. The log start
        is on the disk before the first of them goes. A log whose `cleanup.policy` lacks "delete" loses only what lies
        below its log start.
        """
        return retention_run.apply(self._writable())

    def plan_retention(self) -> list[Deletion]:
        """Say which segments `apply_retention` would delete now, oldest first, and why; changes nothing."""
        return self._survey()[0]

    def retention_outlook(self) -> Outlook | None:
        """Say why the oldest segment that `apply_retention` would leave stays, and when it goes."""
        return self._survey()[1]

    def _survey(self) -> tuple[list[Deletion], Outlook | None]:
        return retention_run.survey(self._view, self.config, self._now())

    def _now(self) -> int:
        if self._writer is not None:
            return self._writer.now()
        return self._clock() if self._clock is not None else time.time_ns() // 1_000_000

    def compact(
        self, *, roll: bool = False, dry_run: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> CompactionStats:
        """Drop superseded records below the active segment and the last stable offset (SEMANTICS 7), whatever the dirty
        ratio and the lags say; with `roll` the active segment is rolled before.

        Offsets stay what they were; retention does not follow. With `dry_run` nothing is written, which mode "r" may
        do, too, and the numbers say what would be. `progress(done, total)` is called with bytes. Raises
        `PolicyViolationError` where `cleanup.policy` has not `compact`, `CorruptRecordError`, and `StorageError`; then
        the log is as it was before the round that failed. What `progress` raises ends the compaction in the same way.
        """
        if dry_run:
            if roll:
                raise ValueError("roll and dry_run exclude each other: a dry run rolls nothing")
            return compact_log.try_compact(self._view, self.config, self._now(), progress=progress)
        writer = self._writable()
        compact_log.refuse_policy(self.config)
        if roll:
            self.roll()
        return compact_log.compact(writer, progress=progress)

    def compaction_outlook(self) -> CompactionOutlook:
        """Say why nothing of the log is cleaned, or what will be and when; changes nothing."""
        return compaction_outlook(self._view, self.config, self._now())

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: delayed unlinks, flushes, checkpoints."""
        writer = self._writable()
        writer.refuse_if_unusable()
        writer.housekeeping.housekeep()

    # For the methods above.

    def _begin_awaiting(self) -> Turns:
        from kstore.base.loops import Turns

        self._turns = Turns()
        return self._turns

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


def _reopen(path: str, arguments: dict[str, Any]) -> Log:
    return Log.open(path, "r", **arguments)
