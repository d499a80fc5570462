"""`Log`: one topic-partition directory, laid out byte for byte as a Kafka broker does it.

The methods check their arguments and call the module that does the work. A writable log keeps its state in a `Writer`,
a read-only log in a `ReadOnlyView`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

from kstore import _core
from kstore._core import Record
from kstore.base import arguments, times
from kstore.base.closing import Closing
from kstore.base.stats import LogStats
from kstore.codec.compression import LIBRARIES
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import new_secret
from kstore.columns.column_input import ColumnInput
from kstore.config import cautions
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.disk import fs
from kstore.errors import (
    KStoreError,
    ReadOnlyError,
    StorageError,
    as_storage_error,
    closed,
)
from kstore.files import follower_file
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
from kstore.log.compaction.compaction_outlook import outlook as compaction_outlook
from kstore.log.explaining.explain_log import Question, explain
from kstore.log.log_table import LogTable, checked, collect
from kstore.log.opening import Marks, check_place, load_writer, lock_partition, take_marks, take_role
from kstore.log.reading import _timestamp_lookup, fetch
from kstore.log.reading._point_reads import UNKNOWN
from kstore.log.reading.fetch import FetchResult
from kstore.log.reading.log_reader import iterate_batches, iterate_records, read_one
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.read_options import Isolation, OnLag, read_options, wants_committed
from kstore.log.reading.remote_view import open_view
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
from kstore.objects.remote_prefix import RemoteOptions, RemotePrefix, open_parent, refuse_to_write
from kstore.types import AppendInfo, CompactionOutlook, CompactionStats, SegmentInfo, TimestampOffset

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.columns.value_decoding import Decoder
    from kstore.config.keywords import LogSettings
    from kstore.explained.explanation import Explanation
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.types import Headers


class Log(Closing):
    """One partition of a topic: records are appended at its end and read from any offset. Open it with `Log.open`.

    A log is a context manager: leaving the block closes the log. In a forked child the log is closed. A read-only log
    can be pickled; unpickling opens it again. A log that is garbage collected while it is open issues a
    `ResourceWarning`, as a file does. Calls that write raise `ReadOnlyError` in mode "r". Calls that read or write
    raise `LogClosedError` after `close`.

    Example:
        >>> log = kstore.Log.open("data/orders-0")
        >>> log.append(b"3 apples", key=b"alice")
        0
        >>> log.append_many([(b"bob", b"1 pear"), (b"alice", b"4 apples")]).last_offset
        2
        >>> for record in log.read():
        ...     print(record.offset, record.key, record.value)
        0 b'alice' b'3 apples'
        1 b'bob' b'1 pear'
        2 b'alice' b'4 apples'

    Thread-safe: any method may be called from any thread. Batches of one call to `append_many` may interleave with
    appends of other threads. Reading takes no lock; a read of committed records waits while a truncation is under way.
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
        storage: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        until: datetime | int | None = None,
        with_deleted: bool = False,
        **settings: Unpack[LogSettings],
    ) -> Self:
        """Open the partition directory at `path`, named `topic-partition`.

        Mode "a" creates missing files, takes the writer's locks, and recovers the log after a crash; `recovery` says
        what the recovery did. Mode "r" takes no lock and never changes a byte; any number of processes may read the log
        in this mode while another process writes it.

        Args:
            path: The partition's directory. Its name consists of the topic and the partition: `orders-0`. In mode "r"
                also the URL of a prefix of an object store that holds the log, and the name:
                `s3://bucket/prefix/orders-0`.
            mode: "a" to append (and create), "r" to read only.
            config: A `LogConfig`, a mapping, or the path of a properties file. It is not stored; pass it at each
                opening.
            clock: A function that returns milliseconds since the epoch. The log uses it instead of the system's clock
                for all decisions that depend on time.
            max_decompressed_bytes: A batch that would decompress to more bytes than this raises `CorruptRecordError`;
                256 MiB if omitted. No producer makes such a batch, but a batch of a few kilobytes can decompress to
                gigabytes.
            storage: obstore's settings for a URL; see `Store.open`.
            cache: A directory for fetched bytes of a URL; see `Store.open`.
            until: The time of a backup's state; see `Store.open`.
            with_deleted: Whether a backup's deleted segments are read; see `Store.open`.
            **settings: Settings by name, such as `segment_bytes=...`; they override `config` and are not stored either.

        Returns:
            The open log.

        Raises:
            LogLockedError: If another writer or a broker has the directory open.
            CorruptRecordError: If flushed data is damaged; nothing is cut.
            InvalidTopicError: If Kafka forbids the name.
            ConfigError: If a setting is unknown or its value is not allowed.
            StorageError: If the system refuses an operation; if the directory is missing in mode "r"; if a restore into
                the parent directory or a bulk load into the partition is not finished (`Store.open` finishes a load).

        Example:
            >>> with kstore.Log.open("data/events-0", segment_bytes=64 << 20) as events:
            ...     offset = events.append(b"started")
            >>> with kstore.Log.open("data/events-0", mode="r") as events:
            ...     print([record.value for record in events.read()])
            [b'started']
        """
        remote = RemoteOptions(storage, cache, until, with_deleted)
        prefix = None
        if mode == "r":
            path, prefix = open_parent(path, remote)
        else:
            refuse_to_write(path, is_partition=True)
            remote.refuse_unused(path)
        try:
            return cls._open(path, mode, prefix, config, clock, max_decompressed_bytes, settings)
        except BaseException:
            if prefix is not None:
                prefix.close()
            raise

    @classmethod
    def _open(
        cls,
        path: str | os.PathLike[str],
        mode: str,
        prefix: RemotePrefix | None,
        config: ConfigSource,
        clock: Callable[[], int] | None,
        max_decompressed_bytes: int | None,
        settings: LogSettings,
    ) -> Self:
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
        if prefix is not None:
            log._arguments |= prefix.options._asdict()
        log._clock = checked_clock
        log._prefix = prefix
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
    """How the log was opened: "a" (create or append) or "r" (read only)."""

    recovery: Recovery
    """What opening the log found and did."""

    config: LogConfig
    """The settings that are in force; `update_config` changes them."""
    _arguments: dict[str, Any]
    _clock: Callable[[], int] | None
    _locks: tuple[fs.Lock, ...]
    _view: Writer | ReadOnlyView
    _writer: Writer | None
    _appender: Appender | None = None  # the writer's appender, for calls that need nothing else of the writer
    # The fast path of `append_batch`: `Appender.append_ready`, which returns None if the slow path is needed.
    _append_ready: Callable[[ReadableBuffer, str, int | None, int], AppendInfo | None]
    _flush: Callable[[], None]  # the `flush` of the log's writer
    _streams: ArrowStreams
    _turns: Turns | None = None
    _flushers: Flushers | None = None
    _prefix: RemotePrefix | None = None  # that `open` has mounted
    _is_own = False  # opened and closed by the user, not by a store
    _broker: BrokerConfig | None = None  # the settings of the store that has opened it

    def _open_for_reading(self) -> None:
        if not fs.exists(self.path):
            raise fs.MissingFileError(2, "no such partition directory; mode 'r' creates nothing", self.path)
        view = open_view(self.path, (self.topic, self.partition))
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
        """Close the log in a forked child: the child's copies of the locks must not outlive the parent's."""
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)
        if view is None:
            return  # the log was still being opened
        view.closed, view.opened_in = True, fs.opener()
        view.guard.version += 1
        if self._writer is not None:
            self._writer.appender.busy = True
            self._writer.appender.detach()

    def close(self) -> None:
        """Flush the log, write the checkpoints as a broker's clean shutdown does, and release the locks.

        All appended records are on the disk when this returns. Idempotent.

        Raises:
            StorageError: If the flush or a checkpoint failed; the log is closed nevertheless.

        Example:
            >>> log.close()
            >>> log.closed
            True
        """
        if self._view.closed and not any(lock.held for lock in self._locks):
            return
        try:
            self._view.close()  # a call after an interrupt finishes; a call during another thread's close waits
        finally:
            if self._prefix is not None:
                self._prefix.close()
            if self._writer is not None and self._writer.closed:  # false if an interrupt ended the wait
                self._unlock()

    def refresh(self) -> None:
        """Read the present state of a prefix of an object store, if the log was opened by its URL.

        A log in a directory is read as it is at each call, so this does nothing for it.

        Raises:
            StorageError: If the object store does not answer, or has no log any more; the log keeps its state.

        Example:
            >>> log.refresh()
        """
        if self._prefix is not None:
            self._prefix.refresh()
            self._view.refresh()

    @property
    def failed(self) -> StorageError | None:
        """The error that makes the log refuse writes; None if there is no such error."""
        failure = None if self._writer is None else self._writer.failure
        return None if failure is None else as_storage_error(failure, self.path)

    def __del__(self) -> None:
        # The log's records are in the files, and its locks are released with this object.
        view, writer = getattr(self, "_view", None), getattr(self, "_writer", None)
        was_open = self._is_own and view is not None and not view.closed
        if writer is not None and not writer.closed:
            writer.abandon()
        if was_open:
            warnings.warn(f"unclosed log {self.path!r} mode={self.mode!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        view: Writer | ReadOnlyView | None = getattr(self, "_view", None)  # None while the log is being opened
        if view is None or view.closed:
            state = "closed"
        else:
            with suppress(KStoreError):  # the directory may be gone: show the last known offsets
                self._marks()
            state = f"[{view.log_start_offset}, {view.log_end_offset})"
        return f"<kstore.Log {self.topic}-{self.partition} {state} mode={self.mode!r} at {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a log that is open for writing cannot be pickled: it holds the writer's locks")
        path = self.path if self._prefix is None else f"{self._prefix.url}/{os.path.basename(self.path)}"
        return _reopen, (path, self._arguments)

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
        """Append an iterable of records, packed into batches.

        Each batch is one leader append by Kafka's rules. If a record is refused, or the iterable raises, the batches
        before it remain in the log, unless `atomic`. Every exception that this call raises has the offsets of the
        stored records in its attribute `appended`. An exception that is not one of kstore's also has a note with them.

        If a `producer_id` is given, each batch is compared with the log's state of that producer (SEMANTICS 9). If a
        batch repeats one of the producer's last five batches, it is not stored again and its old offsets are returned.

        Args:
            records: Values, (key, value) pairs, (key, value, timestamp, headers) tuples, or `Record`s.
            compression: The codec to use if the topic's `compression.type` is "producer"; no compression if omitted.
            atomic: Store one batch or nothing.
            sync: Return only when the records are on the disk.
            batch_bytes: The size up to which a batch is filled, counting the header and the records before compression.
                By default the least of 1 MiB, `max.message.bytes` and `segment.bytes`.
            expected_offset: As in `append`, for the first record; needs `atomic`. If the batch repeats a stored batch,
                that must be at this offset.
            leader_epoch: As in `append`.
            producer_id: The id of the idempotent producer; -1 for none. The next three arguments need a producer id.
            producer_epoch: The producer's epoch.
            base_sequence: The sequence number of the first record; each further record has the next number.
            transactional: Append the records in the producer's transaction, which `append_marker` ends.

        Returns:
            The offsets and the greatest timestamp of the records.

        Raises:
            InvalidRecordError: As in `append`; the error names the record by its number in the iterable.
            RecordTooLargeError: As in `append`; also if `atomic` is set and the records do not fit into one batch.
            OutOfOrderSequenceError: If a sequence number does not follow the producer's last one.
            InvalidProducerEpochError: If the log knows a newer epoch of the producer.
            InvalidTxnStateError: If a batch does not fit the state of the producer's transaction.
            KStoreError: Any other error that `append` raises.

        Example:
            >>> info = log.append_many([(b"carol", b"2 plums"), (b"bob", None)], compression="zstd", sync=True)
            >>> info.first_offset, info.last_offset
            (3, 4)
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
        """Append a record for each row of the columns. A null is stored as a null key or value.

        A column is an object with the Arrow PyCapsule interface (an array, a chunked array, a stream), a NumPy array,
        or a list. Bytes may be Arrow's binary or utf8 in any layout, dictionary-encoded or not, or NumPy's `S` (NUL
        bytes at a row's end are padding, as in NumPy), `V`, or rows of uint8.

        The batches are the same as those of `append_many` for the same records. As in `append_many`, every exception
        says which records were stored.

        Args:
            values: The column of values; or a record batch, a table, a stream of either, or a structured array with the
                columns value, key, timestamp and headers.
            keys: The column of keys.
            timestamps: Milliseconds, Arrow timestamps, dates, or datetime64; or one int for all rows. If None, all rows
                get the current time; a row with a null does, too. Times are rounded down to the millisecond.
            headers: An Arrow map or list of structs, or a list with the headers of each record as in `append_many`.
            compression: As in `append_many`.
            sync: Return only when the records are on the disk.
            batch_bytes: As in `append_many`.
            threads: How many threads compress batches; the batches are stored in order. Without a codec and with two or
                more threads, one batch is written while the next is encoded.
            expected_offset: Store the rows as one batch that starts at this offset, or store nothing.
            leader_epoch: As in `append`.
            producer_id: As in `append_many`.
            producer_epoch: As in `append_many`.
            base_sequence: As in `append_many`.
            transactional: As in `append_many`.

        Returns:
            The offsets and the greatest timestamp of the records.

        Raises:
            InvalidColumnError: If columns have different lengths or Arrow data is malformed.
            TypeError: If a column has a type that is not accepted.
            RecordTooLargeError: If `expected_offset` is given and the rows do not fit into one batch.
            KStoreError: Any error that `append_many` raises; errors name the row by its number.

        Example:
            >>> import pyarrow
            >>> table = pyarrow.table({"key": ["carol", None], "value": ["2 plums", "5 figs"]})
            >>> log.append_columns(table, compression="zstd").last_offset
            4
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
        """Check one encoded batch as a broker does, assign its offsets, and append it (SEMANTICS 1).

        A batch with a producer id is compared with the log's state of that producer, as in `append_many`. If this call
        raises, the log is unchanged.

        Args:
            data: The batch. The caller's bytes are not changed.
            origin: "client" for a producer's batch, "coordinator" for one of a group or transaction coordinator.
            leader_epoch: As in `append`.
            transaction_version: If 2, a coordinator's marker must have a higher epoch than its transaction
                (SEMANTICS 9.11a).

        Returns:
            The offsets and the greatest timestamp of the records.

        Raises:
            CorruptRecordError: If the batch is damaged.
            InvalidRecordError: If records break a rule of the format or the topic; `record_errors` says which.
            InvalidTimestampError: If a timestamp is not allowed.
            RecordTooLargeError: If the batch exceeds `max.message.bytes`.
            RecordBatchTooLargeError: If the batch exceeds `segment.bytes`.
            KStoreError: Any other error that `append_many` raises for a producer's batch.

        Example:
            >>> batch = kstore.encode_batch([(b"carol", b"2 plums"), b"5 figs"], compression="lz4")
            >>> log.append_batch(batch).last_offset
            4
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
        """End a producer's transaction in this log with a control batch, which gets the current time (SEMANTICS 9.11).

        If the producer has no open transaction, the marker is stored and changes only the epochs.

        Args:
            producer_id: The producer's id.
            producer_epoch: The producer's epoch.
            commit: Commit the transaction if true, abort it if false.
            coordinator_epoch: The epoch of the transaction coordinator.
            transaction_version: If 2, `producer_epoch` must be above the transaction's epoch; the next transaction then
                starts at sequence 0.
            sync: Return only when the marker is on the disk.
            leader_epoch: As in `append`.

        Returns:
            The offset of the marker.

        Raises:
            InvalidProducerEpochError: If the epoch is below the one that the log requires.
            TransactionCoordinatorFencedError: If the log knows a newer coordinator epoch.

        Example:
            >>> producer = {"producer_id": 7, "producer_epoch": 0}
            >>> info = log.append_many([b"2 plums"], **producer, base_sequence=0, transactional=True)
            >>> log.append_marker(**producer, commit=True)
            4
            >>> [record.value for record in log.read(3, isolation="read_committed")]
            [b'2 plums']
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
        """Append encoded batches that already have offsets and leader epochs, as a replica does after a fetch.

        The batches are stored as they are (SEMANTICS 1.23 to 1.25). If this call raises, the log is unchanged.

        Args:
            data: The batches.
            leader_epoch: The highest leader epoch to accept. The first batch with a higher one and all batches after it
                are left out (SEMANTICS 1.5). No limit if omitted.

        Returns:
            The offsets and the greatest timestamp of the stored records.

        Raises:
            UnexpectedAppendOffsetError: If the batches start below the log end.
            OffsetsOutOfOrderError: If the offsets of the batches do not increase.
            CorruptRecordError: If a batch is damaged.
            RecordBatchTooLargeError: If the batches exceed `segment.bytes`.
            NotLeaderError: If `kstore.replicate` writes this log.

        Example:
            >>> with kstore.Log.open("copy/orders-0") as copy:
            ...     print(copy.append_as_follower(log.fetch(0, max_bytes=1 << 20).records).last_offset)
            2
        """
        writer = self._leading()
        check_epoch(leader_epoch)
        return encoded_append.append_fetched(writer, data, leader_epoch)

    def flush(self) -> None:
        """Sync the log: return when all records appended before the call and the directory entries are on the disk.

        Concurrent callers share one sync. After a failed sync the log refuses writes until it is reopened.

        Raises:
            StorageError: If the sync failed, or the log refuses writes because of an earlier error.

        Example:
            >>> offset = log.append(b"2 plums", key=b"carol")
            >>> log.flush()
            >>> log.stats()["recovery_point"]
            4
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
        """Append one record from a coroutine and return its offset.

        The event loop's thread writes the record. With `sync=True` the call then waits until the record is on the disk:
        all tasks that wait at the same time share one sync, which a thread of the loop's executor makes. A task that
        appends in a loop gives way to the event loop's other tasks every half millisecond.

        If the call is cancelled before the write, nothing is appended. With `sync=True` the call may be cancelled after
        the write: the record has then been appended, can be read, and is on the disk after the next sync.

        Args:
            value: As in `append`.
            key: As in `append`.
            timestamp: As in `append`.
            headers: As in `append`.
            sync: Return only when the record is on the disk.
            expected_offset: As in `append`.
            leader_epoch: As in `append`.

        Returns:
            The offset of the record.

        Raises:
            KStoreError: Any error that `append` raises. If the sync failed, or the log was closed during the call, the
                record has been appended but may be lost if the machine crashes.
            RuntimeError: If no asyncio event loop is running.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     return await log.aappend(b"2 plums", key=b"carol", sync=True)
            >>> asyncio.run(main())
            3
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
        """Return when all records appended before the call are on the disk, as `flush` does.

        A thread of the loop's executor makes one sync for all tasks that wait at the same time. If a call is cancelled,
        it only stops waiting.

        Raises:
            StorageError: As `flush`.
            LogClosedError: If the log is closed during the call.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     await log.aappend(b"2 plums", key=b"carol")
            ...     await log.aflush()
            >>> asyncio.run(main())
            >>> log.stats()["recovery_point"]
            4
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
        end_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.Record]:
        """Iterate over the records of `[offset, end_offset)`.

        Control records are left out. Unless `follow`, the iterator ends where the log ends at the time of the call.

        Args:
            offset: The offset of the first record; the log start if omitted.
            end_offset: The offset before which the iterator ends.
            start_timestamp: Start at the first record at or after this time, in milliseconds or as a `datetime` with a
                time zone. Not allowed together with `offset`.
            end_timestamp: End before the first record at or after this time. Without such a record it changes nothing.
                Both times are positions, which the call finds as `offset_for_timestamp` does: a record that is older
                than one before it may be on either side, and the end of a transaction counts as a record. So a read up
                to a time and a read from that time on share no record, and leave out none. Not allowed together with
                `follow`, because the position is searched for once, and a record of that time may come later.
            isolation: With "read_committed" the iterator ends (or, if it follows, waits) at the last stable offset: the
                start of the earliest open transaction. It leaves out the records of aborted transactions.
            follow: Wait for more records at the end of the log.
            timeout: If the iterator follows, it ends after this many seconds without a new record; never if omitted.
            durable: End (or wait) at the recovery point: every returned record survives a crash of the machine. In mode
                "a" the recovery point is the end of the flushed data. In mode "r" it is the recovery point in the
                checkpoint file, which the writer writes about once a minute (SEMANTICS 12.7).
            on_lag: What to do if records at the iterator's offset were deleted by retention or `delete_records`, before
                the call or later: "raise" an error, or continue at the log "start".

        Returns:
            An iterator over `Record`s, for one thread at a time.

        Raises:
            OffsetOutOfRangeError: If the offset is below the log start (unless `on_lag="start"`) or above the log end.
                The iterator raises it if retention, `delete_records` or a truncation removes the records at its
                position; with `on_lag="start"` only if a truncation does.
            InvalidTimestampError: If `start_timestamp` or `end_timestamp` is a `datetime` without a time zone.
            ValueError: If arguments exclude each other.
            CorruptRecordError: From the iterator, if the CRC of a batch is wrong.
            LogClosedError: If the log is closed.

        Example:
            >>> [record.value for record in log.read(1)]
            [b'1 pear', b'4 apples']
            >>> for record in log.read(2, follow=True, timeout=0.01):
            ...     print(record.offset, record.value)
            2 b'4 apples'
        """
        options = read_options(
            offset, end_offset, start_timestamp, end_timestamp, isolation, durable, follow, timeout, on_lag
        )
        return iterate_records(self._view, options, self)

    def get(self, offset: int, *, isolation: Isolation = "read_uncommitted") -> Record | None:
        """Read the record at an offset.

        The batch that this thread read last is kept decoded, so reads near the last one need no file. All batches that
        the process keeps take at most 4 MiB.

        Args:
            offset: The record's offset.
            isolation: With "read_committed" only a committed record is returned.

        Returns:
            The record. None if no record has the offset: compaction removed it, or the offset is that of a transaction
            marker. With "read_committed" also None if the record's transaction was aborted, or if the offset is at or
            above the last stable offset, so that the record is not decided yet.

        Raises:
            OffsetOutOfRangeError: If the offset is below the log start, or at or above the log end.
            CorruptRecordError: If the record's batch is damaged.
            LogClosedError: If the log is closed.

        Example:
            >>> log.get(1).value
            b'1 pear'
            >>> log.get(3)
            Traceback (most recent call last):
            ...
            kstore.errors.OffsetOutOfRangeError: offset 3 is not in the log, which starts at 0 and ends at 3
        """
        view = self._view
        committed = isolation != "read_uncommitted" and wants_committed(isolation)
        record: Record | None = view.points.find(view, offset, committed)
        if record is not UNKNOWN:
            return record
        return read_one(view, arguments.whole("offset", offset), committed=committed, owner=self)

    async def aget(self, offset: int, *, isolation: Isolation = "read_uncommitted") -> Record | None:
        """Read the record at an offset from a coroutine.

        The event loop's thread reads a record whose batch is in memory; a thread of the loop's executor waits for the
        disk or an object store.

        Args:
            offset: As in `get`.
            isolation: As in `get`.

        Returns:
            The record, or None as from `get`.

        Raises:
            KStoreError: Any error that `get` raises.

        Example:
            >>> import asyncio
            >>> asyncio.run(log.aget(1)).value
            b'1 pear'
        """
        view = self._view
        record: Record | None = view.points.find(view, offset, wants_committed(isolation), waits=False)
        if record is not UNKNOWN:
            return record
        from kstore.base import loops

        return await loops.in_thread(loops.running(), partial(self.get, offset, isolation=isolation))

    def read_batches(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.RecordBatch]:
        """Iterate over the batches that hold records of `[offset, end_offset)`, including control batches.

        Takes the arguments of `read` and raises the same errors. The first batch may start below `offset`, and the last
        may end above `end_offset`. Each batch owns its bytes.

        Returns:
            An iterator over `RecordBatch`es, for one thread at a time.

        Example:
            >>> [(batch.base_offset, batch.count) for batch in log.read_batches()]
            [(0, 1), (1, 2)]
        """
        options = read_options(
            offset, end_offset, start_timestamp, end_timestamp, isolation, durable, follow, timeout, on_lag
        )
        return iterate_batches(self._view, options, self)

    def aread(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Stream[Record]:
        """Iterate over the records of `[offset, end_offset)` with `async for`.

        Takes the arguments of `read`. A thread of the loop's executor reads the files in pieces of up to 256 KiB or one
        larger batch; records that were appended while the iterator waited are read in the loop's thread. After every
        512 records the loop's other tasks get their turn. Only one piece is read at a time, so a slow iterator uses
        little memory and delays no append.

        With `follow` an append wakes the iterator, also one of another process. Where the kernel does not report
        changes of the files, the iterator polls; its pauses grow to a quarter of a second. If an `anext` is
        cancelled, no record is lost: the next `anext` returns it.

        Returns:
            An asynchronous iterator, for one task at a time.

        Raises:
            KStoreError: As `read`: immediately if an argument is wrong, otherwise from the iterator.
            LogClosedError: From the iterator, if the log is closed.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async for record in log.aread(1):
            ...         print(record.offset, record.value)
            >>> asyncio.run(main())
            1 b'1 pear'
            2 b'4 apples'
        """
        from kstore.log.async_source import stream_records

        options = read_options(
            offset, end_offset, start_timestamp, end_timestamp, isolation, durable, follow, timeout, on_lag
        )
        return stream_records(self._view, options, self)

    @overload
    def read_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
        decode: None = None,
    ) -> Columns: ...

    @overload
    def read_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
        decode: Decoder,
    ) -> pyarrow.RecordBatch: ...

    def read_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
        decode: Decoder | None = None,
    ) -> Columns | pyarrow.RecordBatch:
        """Read the records of `[offset, end_offset)` into columns, at most `max_records` and `max_bytes` of them.

        Args:
            offset: As in `read`.
            end_offset: As in `read`.
            start_timestamp: As in `read`.
            end_timestamp: As in `read`.
            max_records: The most rows to read; no limit if omitted.
            max_bytes: The most bytes to read; no limit if omitted. A record counts with its encoded size in an
                uncompressed batch. One record is always read, whatever its size.
            columns: The columns to build; by default offset, timestamp, key and value. Others are headers,
                partition_leader_epoch, producer_id, producer_epoch, base_sequence, sequence, base_offset,
                timestamp_type (0 the producer's, 1 the log's, -1 none), compression (by number), is_transactional and
                is_tombstone (whether the value is null).
            layout: How keys and values lie in memory: "binary" has 32-bit offsets, so reading stops below 2 GiB;
                "large_binary" has 64-bit offsets; "view" does not copy uncompressed values (several engines import
                views, but have few functions for them).
            isolation: As in `read`.
            durable: As in `read`.
            threads: How many threads read if there are many records; by default the number of cores, at most 4. The
                rows are always in order.

            decode: How values become a struct or columns: `JsonValues`, `AvroValues` or `ProtobufValues`. Without a
                schema of its own it sees the first 1,000 values.

        Returns:
            The columns. Their `next_offset` says where to continue; it is the end if nothing is left. With `decode` a
            `pyarrow.RecordBatch` of them.

        Raises:
            ConfigError: If `decode` is given and PyArrow is not installed, `columns` has no "value", or `layout` is not
                "binary".
            KStoreError: Any error that `read` or its iterator raises.

        Example:
            >>> import pyarrow
            >>> table = pyarrow.table(log.read_columns(columns=["offset", "value"]))
            >>> table["offset"].to_pylist(), table["value"].to_pylist()
            ([0, 1, 2], [b'3 apples', b'1 pear', b'4 apples'])
            >>> fruit = kstore.JsonValues({"fruit": pyarrow.string()}, errors="raise")
            >>> offset = log.append(b'{"fruit": "pear", "n": 2}')
            >>> log.read_columns(offset, columns=["value"], decode=fruit).to_pylist()
            [{'value': {'fruit': 'pear'}}]
        """
        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=True)
        options = read_options(offset, end_offset, start_timestamp, end_timestamp, isolation, durable)
        if decode is None:
            return read_chunk(self._view, options, wanted)
        from kstore.columns.value_decoding import ChunkDecoder

        decoder = ChunkDecoder(decode, columns, layout)
        return decoder.decode(read_chunk(self._view, options, wanted), f"{self.topic}-{self.partition}")

    def iter_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Iterator[Columns]:
        """Iterate over the records of `[offset, end_offset)`, at most `max_records` and `max_bytes` in each `Columns`.

        Takes the arguments of `read_columns` and raises the same errors. If a batch is damaged, the rows before it are
        returned first.

        If neither `max_records` nor `max_bytes` is given, a chunk has up to 4 MiB and consists of whole batches; a
        larger batch is split into several chunks. As many chunks as there are `threads` are then read at the same time,
        or twice as many if the batches are compressed. While the caller uses a chunk, the other threads read the next
        chunks, which take memory, too.

        Returns:
            An iterator over `Columns`, for one thread at a time.

        Example:
            >>> for chunk in log.iter_columns(columns=["value"], max_records=2):
            ...     print(chunk.values.to_pylist(), chunk.next_offset)
            [b'3 apples', b'1 pear'] 2
            [b'4 apples'] 3
        """
        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=False)
        options = read_options(offset, end_offset, start_timestamp, end_timestamp, isolation, durable)
        return iterate_chunks(self._view, options, wanted, self)

    def aread_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Stream[Columns]:
        """Iterate over the records of `[offset, end_offset)` as columns with `async for`, chunk by chunk.

        Takes the arguments of `read_columns`. Yields the chunks and raises the errors of `iter_columns`. A thread of
        the loop's executor builds each chunk when the caller asks for it. If `threads` is more than one, the other
        threads read further chunks ahead. If an `anext` is cancelled, no chunk is lost: the next `anext` returns it.

        Returns:
            An asynchronous iterator, for one task at a time.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     return [len(chunk) async for chunk in log.aread_columns(columns=["value"], max_records=2)]
            >>> asyncio.run(main())
            [2, 1]
        """
        from kstore.log.async_stream import InThread, Stream

        wanted = column_options(columns, layout, threads, max_records, max_bytes, whole=False)
        options = read_options(offset, end_offset, start_timestamp, end_timestamp, isolation, durable)
        return Stream([InThread(iterate_chunks(self._view, options, wanted, self))])

    def batch_table(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
    ) -> Columns:
        """Read the headers of the batches that reach into `[offset, end_offset)`, one row for each batch.

        Takes the arguments of `read`. Control batches are included. No checksum is verified.

        The columns are base_offset, last_offset, count, position and size_bytes in the file, segment_base_offset,
        base_timestamp, max_timestamp, partition_leader_epoch, magic, compression (by number), timestamp_type (0 the
        producer's, 1 the log's, -1 none), is_transactional, is_control, producer_id, producer_epoch, base_sequence,
        delete_horizon_ms (-1: none) and crc. For a compressed message of the old formats, base_offset and count are -1:
        only the compressed part has them.

        Returns:
            The columns.

        Raises:
            CorruptRecordError: If a batch header is malformed, as from `read_batches`.

        Example:
            >>> batches = log.batch_table()
            >>> batches["base_offset"].tolist(), batches["count"].tolist()
            ([0, 1], [1, 2])
        """
        options = read_options(offset, end_offset, start_timestamp, end_timestamp, isolation, durable)
        return read_batch_table(self._view, options)

    def __arrow_c_schema__(self) -> object:
        """Describe the record batches of `__arrow_c_stream__` to Arrow."""
        return self._streams.schema()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the whole log as a new Arrow stream of offset, timestamp, key and value.

        `polars.DataFrame(log)`, `duckdb.sql('select "offset" from log')`, `pandas.DataFrame.from_arrow(log)` and
        `pyarrow.RecordBatchReader.from_stream(log)` call this, some of them several times for one query. So while a
        stream of the log is open, every further stream ends at the same offset. A stream made when no other is open
        ends at the log end at that time.

        Args:
            requested_schema: The columns to stream: any that `read_columns` knows, bytes in any layout or as strings.

        Returns:
            A PyCapsule with an ArrowArrayStream.

        Raises:
            ValueError: If the requested schema has a column or type that the log cannot deliver.
        """
        return self._streams.stream(self._view, requested_schema, self)

    def latest(self, *, as_of: int | datetime | None = None) -> LogTable:
        """Read the newest record of each key, as a compaction of the whole log would keep it; nothing is rewritten.

        A key whose newest record is a tombstone (a null value) is absent, and so are records without a key; b"" is a
        key. Only committed records count: those below the last stable offset, without aborted ones. The log may have
        any `cleanup.policy`.

        The table is always a state that the log went through. If `as_of` is a time, the table ends before the first
        record whose timestamp is later; records after that record do not count, even if their timestamps are earlier. A
        record without a timestamp is never later.

        A table of the past lacks the records that compaction, retention or truncation have removed since. So a key is
        absent if its record of that time has been superseded and cleaned since. Compaction can clean all superseded
        records older than `min.compaction.lag.ms`.

        The table holds its records in memory; this call holds the keys a second time while it runs.

        Args:
            as_of: An offset, to use only the records below it, or a `datetime` with a time zone; now if omitted.

        Returns:
            The table.

        Raises:
            OffsetOutOfRangeError: If the offset is not in the log.
            ValueError: If the time has no time zone.
            TypeError: If `as_of` has another type.
            KStoreError: Any error that `read` or its iterator raises.

        Example:
            >>> log.latest()[b"alice"].value
            b'4 apples'
            >>> log.latest(as_of=2)[b"alice"].value
            b'3 apples'
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
        """Read raw batches as a broker does for a fetch, starting with the batch that holds `offset`.

        All batches are of one segment; the last one may be cut off.

        Args:
            offset: The offset to start at.
            max_bytes: The most bytes to return.
            isolation: With "read_committed" the batches end at the last stable offset. The result's
                `aborted_transactions` then lists (producer id, first offset) of all transactions whose batches the
                reader must leave out, and possibly of other aborted ones (SEMANTICS 4.11).
            min_one_message: Return the first batch whole even if it is larger than `max_bytes`.

        Returns:
            The batches and their place in the log.

        Raises:
            OffsetOutOfRangeError: If the offset is not in the log.
            CorruptRecordError: If the header of a batch is malformed; the CRC is not verified.

        Example:
            >>> fetched = log.fetch(1, max_bytes=1 << 20)
            >>> [record.value for batch in kstore.decode_batches(fetched.records) for record in batch]
            [b'1 pear', b'4 apples']
        """
        committed = wants_committed(isolation)
        offset = arguments.whole("offset", offset)
        max_bytes = arguments.whole("max_bytes", max_bytes)
        return fetch.fetch(self._view, offset, max_bytes, min_one_message=min_one_message, committed=committed)

    offset_for_timestamp = _timestamp_lookup.offset_for_timestamp

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the greatest timestamp of a record and the first record that has it.

        As in Kafka, all records in the log's files count: after `delete_records` the record may lie below
        `log_start_offset`, where it cannot be read, until its segment is deleted.

        Returns:
            The timestamp and the record's offset; None if no record has a timestamp.

        Raises:
            CorruptRecordError: If the header of a batch is malformed.

        Example:
            >>> with kstore.Log.open("data/degrees-0") as degrees:
            ...     info = degrees.append_columns([b"20", b"21"], timestamps=[1_764_000_000_000, 1_764_000_060_000])
            ...     print(degrees.max_timestamp())
            TimestampOffset(timestamp=1764000060000, offset=1)
        """
        return fetch.max_timestamp(self._view)

    def producer_states(self) -> list[ProducerInfo]:
        """Return the log's state of each producer: epochs, last batches, open transaction.

        In mode "r" the state is computed from the newest snapshot and the batches after it. It then includes producers
        that the writer has forgotten because they expired (SEMANTICS 9.21).

        Returns:
            The producers in the order of their ids.

        Raises:
            LogClosedError: If the log is closed.
            CorruptRecordError: In mode "r", if a batch is damaged.
            StorageError: In mode "r", if a file cannot be read.

        Example:
            >>> info = log.append_many([b"2 plums", b"5 figs"], producer_id=7, producer_epoch=0, base_sequence=0)
            >>> for state in log.producer_states():
            ...     print(state.producer_id, state.producer_epoch, state.batches[-1].last_sequence)
            7 0 1
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
        """One past the offset of the last record: the offset of the next one."""
        return self._marks().log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset at which reads of uncommitted records end; the log end, since there is one replica."""
        return self._marks().log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset at which reads of committed records end; the high watermark if no transaction is open.

        If an open transaction started below the log start, it is the log start (SEMANTICS 9.16). A writer that recovers
        or truncates the log may forget such a transaction, as Kafka does; a log in mode "r" may still know it. If all
        records are deleted, only a writer that was open at that time still knows the transaction.
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
        """Change settings of the open log.

        A change takes effect with the next append, segment, flush, deletion, or pass of retention or compaction: see
        "takes effect" of the setting in docs/configuration.md (SEMANTICS 13.13). In mode "r" only `config` changes.

        Args:
            **settings: The settings to change, by name, as in `open`.

        Raises:
            ConfigError: If a setting is unknown or its value is not allowed.

        Example:
            >>> log.update_config(segment_bytes=64 << 20, compression_type="zstd")
            >>> log.config.segment_bytes
            67108864
        """
        if self._writer is None:
            self.config = self.config.replace(**settings)
            return
        before, after = self.config, self.config.replace(**settings)
        after.check_for_writing()
        warned = before.warnings(housekeeping=False)
        cautions.issue(warning for warning in after.warnings(housekeeping=False) if warning not in warned)
        self._configure(after, settings)

    def _configure(self, config: LogConfig, settings: LogSettings | None = None) -> None:
        """Set the configuration; if `settings` are given, change only these.

        Aborts a running cleaning if the policy loses `compact` (SEMANTICS 7.8).
        """
        writer = self._writable()
        stops = writer.config.compacts and not config.compacts
        with writer.cleaning.paused() if stops else nullcontext(), writer.gate():
            self.config = config if settings is None else self.config.replace(**settings)
            writer.configure(self.config)
            writer.limit()

    @property
    def closed(self) -> bool:
        """Whether the log has been closed. In a forked child a log that the parent opened is closed."""
        return self._view.closed

    def stats(self) -> LogStats:
        """Return metrics of the log: offsets, sizes, index entries, the recovery point, compaction.

        `full` says why the last write failed if the disk was full; otherwise it is "". `first_dirty_offset` is -1 if
        `cleanup.policy` does not contain `compact`. `compaction_failure` says why the last compaction failed; otherwise
        it is "". `libraries` names the library of each compression type.

        Returns:
            The metrics by name; docs/metrics.md describes each.

        Example:
            >>> stats = log.stats()
            >>> stats["log_end_offset"], stats["segments"], stats["size_bytes"]
            (3, 1, 178)
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
            "libraries": dict(LIBRARIES),
            **compaction_stats.numbers(view, self.config, self._now()),
        }

    # Other changes of the log.

    def roll(self) -> int:
        """Roll the log: start a new segment at the log end.

        If the active segment is empty, it remains active, and its age for `segment.ms` starts again.

        Returns:
            The base offset of the active segment.

        Example:
            >>> log.roll()
            3
            >>> [(segment.base_offset, segment.is_active) for segment in log.segments]
            [(0, False), (3, True)]
        """
        writer = self._writable()
        with writer.gate():
            if writer.appender.size > 0 or writer.log_end_offset > writer.active.base_offset:
                writer.roll_locked("explicit", writer.log_end_offset)
            else:
                writer.renew_locked()
            return writer.active.base_offset

    def truncate_to(self, offset: int) -> bool:
        """Delete the records at and above `offset`, and the whole batch that holds `offset`.

        Args:
            offset: The new log end, even if it is inside a batch. If it is at or above the log end, nothing is deleted.

        Returns:
            Whether there were records to delete.

        Raises:
            NotLeaderError: If the log is a follower's.

        Example:
            >>> log.truncate_to(1)
            True
            >>> log.log_end_offset
            1
        """
        return truncation.truncate_to(self._leading(), arguments.integer("offset", offset, low=0))

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        """Delete all records and continue the log at `offset` (SEMANTICS 11.8).

        Args:
            offset: The new log end, and the offset of the next record.
            log_start_offset: The new log start, at or below `offset`; `offset` if omitted.

        Raises:
            NotLeaderError: If the log is a follower's.

        Example:
            >>> log.truncate_fully_and_start_at(100)
            >>> log.append(b"2 plums", key=b"carol")
            100
        """
        offset = arguments.integer("offset", offset, low=0)
        start = offset
        if log_start_offset is not None:
            start = arguments.integer("log_start_offset", log_start_offset, 0, offset)
        truncation.restart(self._leading(), offset, start)

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start to `before_offset`: the records below it can no longer be read.

        The new log start is on the disk when this returns.

        Args:
            before_offset: The lowest offset to keep; -1 for the high watermark.

        Returns:
            The log start.

        Raises:
            OffsetOutOfRangeError: If the offset is above the high watermark.
            PolicyViolationError: If `cleanup.policy` is `compact` without `delete`.
            InvalidTopicError: If the topic is one of Kafka's internal topics.
            NotLeaderError: If the log is a follower's.

        Example:
            >>> log.delete_records(2)
            2
            >>> [record.value for record in log.read()]
            [b'4 apples']
        """
        writer = self._leading()
        retention_run.check_deletable(self.topic, self.config)
        retention_run.raise_start(writer, arguments.whole("before_offset", before_offset))
        return writer.log_start_offset

    def apply_retention(self) -> list[SegmentInfo]:
        """Delete the oldest segments, as far as the settings and the log start allow it (SEMANTICS 6).

        The files are renamed to `.deleted` now, and unlinked when `file.delete.delay.ms` has passed. The log start is
        on the disk before the first file is renamed. If `cleanup.policy` does not contain "delete", only segments below
        the log start are deleted.

        Returns:
            The deleted segments, oldest first.

        Example:
            >>> log.update_config(retention_bytes=0)
            >>> log.roll()
            3
            >>> [(segment.base_offset, segment.next_offset) for segment in log.apply_retention()]
            [(0, 3)]
        """
        return retention_run.apply(self._writable())

    def plan_retention(self) -> list[Deletion]:
        """Say which segments `apply_retention` would delete now, and why; changes nothing.

        Returns:
            The deletions, oldest segment first.

        Example:
            >>> log.update_config(retention_bytes=0)
            >>> log.roll()
            3
            >>> [deletion.explanation for deletion in log.plan_retention()]
            ['the log holds 178 bytes, 0 without it, and retention.bytes keeps 0']
        """
        return self._survey()[0]

    def retention_outlook(self) -> Outlook | None:
        """Find the oldest segment that `apply_retention` would keep; say why, and when it will be deleted.

        Returns:
            The explanation and the time; None if `apply_retention` would delete all segments.

        Example:
            >>> for sentence in log.retention_outlook().explanation.split("; "):
            ...     print(sentence)
            retention.bytes is not given, and its default sets no limit
            retention.ms is not given, and kstore's default sets no limit
        """
        return self._survey()[1]

    def _survey(self) -> tuple[list[Deletion], Outlook | None]:
        return retention_run.survey(self._view, self.config, self._now())

    def _now(self) -> int:
        if self._writer is not None:
            return self._writer.now()
        return self._clock() if self._clock is not None else time.time_ns() // 1_000_000

    def explain(
        self,
        *,
        at: int | datetime | None = None,
        offset: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Explanation:
        """Explain why each segment was rolled, why it is kept and when it is deleted; of one record also where it is.

        Changes nothing and takes no lock. What is foretold holds if nothing more is appended.

        Args:
            at: The moment to explain for, in milliseconds or as a `datetime` with a time zone; now if omitted. The log
                is explained as it is now: segments that would be deleted before that moment still count.
            offset: The offset of a record to explain, too.
            timestamp: The time of a record to explain, too, in milliseconds or as a `datetime` with a time zone: the
                first record of this time or a later one.

        Returns:
            The facts. Their `record` is None if no record was asked for, if none has the timestamp or a later one, or
            if no batch has the offset, because compaction has left a gap there.

        Raises:
            OffsetOutOfRangeError: If no record can have the offset: it is below the log start, at the log end or above.
            CorruptRecordError: If the record's batch is damaged, or a batch that decides about the last stable offset.
            InvalidTimestampError: If a `datetime` has no time zone.
            ValueError: If both `offset` and `timestamp` are given.

        Example:
            >>> explanation = log.explain(offset=2)
            >>> explanation.segments[0].holds
            ('no_limit',)
            >>> [step.what for step in explanation.record.steps]
            ['segment', 'offset_index', 'scan', 'batch']
        """
        if offset is not None and timestamp is not None:
            raise ValueError("offset and timestamp exclude each other: both name the record to explain")
        now_ms = self._now()
        question = Question(
            at_ms=now_ms if at is None else times.moment("at", at),
            now_ms=now_ms,
            offset=None if offset is None else arguments.integer("offset", offset),
            timestamp=None if timestamp is None else times.moment("timestamp", timestamp),
            broker=self._broker or BrokerConfig.resolve(self._arguments.get("config")),
            knows_topics=self._broker is not None,
        )
        return explain(self._view, self.config, question)

    def compact(
        self, *, roll: bool = False, dry_run: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> CompactionStats:
        """Delete superseded records below both the active segment and the last stable offset (SEMANTICS 7).

        Ignores the dirty ratio and the compaction lags. Offsets do not change. Retention is not applied. A large log is
        cleaned in several rounds, one after another; if this call raises, the rounds before the failed one remain done.

        Args:
            roll: Roll the active segment first, so that its records are compacted, too.
            dry_run: Write nothing, and return the numbers that a compaction would have. Allowed in mode "r", too.
            progress: Called as `progress(done, total)` with numbers of bytes. An exception that it raises ends the
                compaction.

        Returns:
            The numbers of records, bytes and segments before and after.

        Raises:
            PolicyViolationError: If `cleanup.policy` does not contain `compact`.
            CorruptRecordError: If a batch is damaged.
            StorageError: If the system refuses an operation.
            ValueError: If both `roll` and `dry_run` are true.

        Example:
            >>> log.update_config(cleanup_policy="compact")
            >>> stats = log.compact(roll=True)
            >>> stats.records_before, stats.records_after
            (3, 2)
            >>> [record.value for record in log.read()]
            [b'1 pear', b'4 apples']
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
        """Say what the next compaction of the log will clean and when, or why it will clean nothing; changes nothing.

        Returns:
            The explanation in words, and numbers.

        Example:
            >>> log.compaction_outlook().explanation
            'cleanup.policy is delete, so nothing is compacted'
        """
        return compaction_outlook(self._view, self.config, self._now())

    def run_housekeeping(self) -> None:
        """Do the work that is due by the clock: delayed unlinks, flushes, checkpoints.

        Example:
            >>> from kstore.testing import ManualClock
            >>> clock = ManualClock()
            >>> with kstore.Log.open("data/events-0", clock=clock, flush_ms=1000) as events:
            ...     offset = events.append(b"started")
            ...     now = clock.advance(1000)
            ...     events.run_housekeeping()
            ...     print(events.stats()["recovery_point"])
            1
        """
        writer = self._writable()
        writer.refuse_if_unusable()
        writer.housekeeping.housekeep()

    # Helpers of the methods above.

    def _begin_awaiting(self) -> Turns:
        from kstore.base.loops import Turns

        self._turns = Turns()
        return self._turns

    def _writable(self) -> Writer:
        if self._writer is None:
            raise self._not_writable()
        if self._writer.closed:  # before any lock: in a forked child the thread that holds a lock may not exist
            raise closed(f"{self.path}: the log", self._writer.opened_in)
        return self._writer

    def _leading(self) -> Writer:
        """Return the writer for a change by a client; raise `NotLeaderError` in a follower."""
        writer = self._writable()
        writer.append_epochs.refuse_follower()
        return writer

    def _refuse_append(self, *_: object) -> NoReturn:
        raise self._not_writable()

    def _not_writable(self) -> KStoreError:
        return ReadOnlyError(f"{self.path} is open with mode='r' and changes nothing; open it with mode='a'")


def _reopen(path: str, arguments: dict[str, Any]) -> Log:
    return Log.open(path, "r", **arguments)
