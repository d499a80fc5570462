"""`Store`: directories of logs, laid out as a broker's `log.dirs`.

`Store` has all public methods. They check arguments and call the part of the store that does the work;
`Store._assemble` creates the parts. asyncio is imported when the first asynchronous method is called.
"""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from kstore._core import Record
from kstore.base import arguments, times
from kstore.base.closing import Closing
from kstore.base.stats import StoreStats
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.disk import openfiles
from kstore.errors import KStoreError
from kstore.files import restore_mark
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.read_options import Isolation, OnLag
from kstore.objects.remote_prefix import RemoteOptions
from kstore.store import catalog, compact_store, explain_store, store_stats
from kstore.store.administration import Administration
from kstore.store.bulk_loads.commit import RENAME_BYTES, BulkLoads
from kstore.store.bulk_loads.load_manifest import Adopted, Manifest, Transaction
from kstore.store.coordinator.consumer import Consumer, ConsumerOptions, OffsetReset, Positions
from kstore.store.coordinator.group_lag import PartitionLag, group_lag
from kstore.store.coordinator.groups import CommittedOffset, GroupCoordinator, Place
from kstore.store.coordinator.internal_topics import InternalTopics
from kstore.store.coordinator.producer import TIMEOUT_MS, Producer, Producers, TransactionalProducer, TransactionParts
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.leadership import Leadership
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.open_store import Opening, Recovering, open_directories
from kstore.store.read_only_logs import LogReaders, Logs
from kstore.store.remote_paths import OpenedPaths, open_paths
from kstore.store.table import Table, TopicTables
from kstore.store.topic_record import TopicFile
from kstore.store.topics import _topic_append
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.append_source import ColumnArguments, Records
from kstore.store.topics.route_cache import Routes
from kstore.store.topics.topic_append import AppendOptions, TopicAppender
from kstore.store.topics.topic_reader import ColumnOptions, TopicRead, TopicReader
from kstore.store.topics.topic_stream import TopicStream
from kstore.types import AppendInfo, CompactionStats, RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow  # type: ignore[import-untyped]
    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.columns._columns import Columns
    from kstore.columns.value_decoding import Decoder
    from kstore.config.keywords import LogSettings, StoreSettings
    from kstore.explained.explained_disk import DiskExplanation
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.log.column_reads import Layout
    from kstore.types import Headers

logger = logging.getLogger("kstore")

T = TypeVar("T")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Store(Closing):
    """Topics and their partitions in one or more log directories, opened with `Store.open`.

    A store that only reads (mode "r") can be pickled; unpickling opens it again. In a forked child the store is closed.
    Calls that change the store raise `ReadOnlyError` in mode "r", except commits of groups. Appends and changes of
    topics and groups raise `NotLeaderError` in a follower. Calls that read or write raise `LogClosedError` after
    `close`.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders", partitions=2)
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> place.partition, place.offset
        (1, 0)
        >>> info = store.append_many("orders", [(b"bob", b"1 pear"), (b"alice", b"4 apples")])
        >>> for record in store.read("orders"):
        ...     print(record.partition, record.offset, record.key, record.value)
        0 0 b'bob' b'1 pear'
        1 0 b'alice' b'3 apples'
        1 1 b'alice' b'4 apples'

    Thread-safe: any method may be called from any thread.
    """

    mode: str
    """How the store was opened: "a" (create or append) or "r" (read only)."""

    paths: tuple[str, ...]
    """The log directories, as absolute paths without symbolic links."""

    _arguments: dict[str, Any]
    _opened: OpenedPaths
    _turns: Turns | None = None
    _flushers: Flushers | None = None

    def __init__(self, *arguments: object, **settings: object) -> None:
        raise TypeError("a store is opened with Store.open(path)")

    # Opening and closing.

    @classmethod
    def open(
        cls,
        paths: Paths,
        mode: Literal["a", "r"] = "a",
        *,
        config: ConfigSource = None,
        clock: Callable[[], int] | None = None,
        background: bool = True,
        progress: Callable[[int, int], None] | None = None,
        seed: int | None = None,
        max_open_files: int | None = None,
        staging_dir: str | os.PathLike[str] | None = None,
        storage: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        until: datetime | int | None = None,
        archive: str | os.PathLike[str] | None = None,
        with_deleted: bool = False,
        **settings: Unpack[StoreSettings],
    ) -> Self:
        """Open the log directories at `paths`.

        Mode "a" creates missing directories, locks the directories, and recovers the logs that were not closed cleanly,
        several at a time. All other logs are opened when they are first needed. Mode "r" takes no lock and changes no
        byte, except that commits of groups write their own file (docs/transactions.md). Any number of processes may
        open the store in mode "r", even while another process writes it.

        Args:
            paths: One log directory, or several as in a broker's `log.dirs`. In mode "r" also the URL of a prefix of
                an object store (`s3://bucket/prefix`, `gs://`, `az://`, `file://`): a backup, a plain copy of a log
                directory, or the tier of a broker. Its state is that of the opening until `refresh` is called.
            mode: "a" (create or append) or "r" (read only).
            config: The settings of all topics, which a topic's own settings override: a `LogConfig`, a mapping with
                Kafka's names, or the path of a `server.properties`. They are not stored.
            clock: Returns milliseconds since the epoch; replaces the system's clock.
            background: Whether background threads run retention, compaction, flushes, checkpoints and deletions. If
                false, these tasks wait for `run_housekeeping`.
            progress: Called as `progress(done, total)` with numbers of logs while the logs that were not closed cleanly
                are recovered.
            seed: With the same seed, a repeated run appends its records without a key to the same partitions.
            max_open_files: The most files that the process keeps open for later use, including the files of idle logs
                and mapped indexes. By default half of the process's limit of open files, and at most 8192. This is a
                limit of the process: the last value given applies.
            staging_dir: The directory in which Spark's tasks were told to stage, if it is not the default one beside
                the log directories. An opening finishes an interrupted bulk load only if its files are in this
                directory or in the default one; another directory that the load's record names is not used.
            storage: obstore's settings for a URL, such as `endpoint` or `access_key_id`; what is missing is taken from
                the environment.
            cache: A directory for fetched bytes of a URL, up to 10 GiB; several processes may share it. Without it
                bytes are only kept in memory, up to 48 MiB.
            until: The time of a backup's state: an aware `datetime`, or milliseconds since the epoch. By default the
                newest state.
            archive: The URL of a prefix with the same logs, or the path of one on this machine. Offsets below the first
                segment in the directory are read from there. Only with mode "r" and one directory.
            with_deleted: Whether to read the segments of a backup that retention has deleted, as long as its restore
                window keeps them. With `archive` they always are.
            **settings: Settings as keywords, such as `segment_bytes` or `log_retention_check_interval_ms`; they
                override `config`.

        Raises:
            ReadOnlyError: If mode is "a" and a path is a URL or has a backup.
            LogLockedError: If a broker, another store or a single log has locked a directory.
            ConfigError: If a setting is unknown or out of range, or if a path is the directory of a partition, not a
                log directory.
            StorageError: If no directory can be used, or if a restore into a directory is not finished. If only some of
                several directories cannot be used, these are offline (see `stats`).

        Example:
            >>> with kstore.Store.open("events", segment_bytes=64 << 20) as events:
            ...     topic_id = events.create_topic("clicks", partitions=3)
            >>> with kstore.Store.open("events", mode="r") as events:
            ...     print(events.topics)
            ('clicks',)
        """
        if mode not in ("a", "r"):
            raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        times.checked_clock(clock)  # before anything is opened
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be callable, not {type(progress).__name__}")
        if max_open_files is not None:
            openfiles.set_limit(arguments.integer("max_open_files", max_open_files, openfiles.LEAST))
        refuse_unknown(Store.open, settings, LogConfig, BrokerConfig)
        store = cls.__new__(cls)
        store.mode = mode
        remote = RemoteOptions(storage, cache, until, with_deleted)
        store._opened = open_paths(paths, mode, remote, archive)
        try:
            store.paths = store._opened.paths
            for path in store.paths:
                catalog.refuse_partition(path)
                restore_mark.refuse_unfinished(path)
            store._arguments = {"config": config, **settings}
            if store._opened.prefix is not None:
                store._arguments |= {**remote._asdict(), "archive": archive}
            seed = None if seed is None else arguments.whole("seed", seed)
            opening = Opening(config, settings, clock, background, progress, seed, staging_dir)
            open_directories(store.paths, mode, opening, store._assemble)
        except BaseException:
            store._opened.close()
            raise
        return store

    def _assemble(self, metadata: Metadata, logs: LogManager | LogReaders, opening: Opening) -> Recovering:
        """Create the parts of the store, and give each the parts that it needs."""
        self._metadata, self._logs = metadata, logs
        self._topic_file = topic_file = TopicFile(metadata, logs)
        self._routes = routes = Routes(metadata, logs, opening.seed)
        self._appender = appender = TopicAppender(metadata.catalog, logs, routes)
        self._reader = TopicReader(metadata, logs)
        self._tables = TopicTables(metadata, logs)
        internal = InternalTopics(metadata, logs, topic_file)
        self._groups = groups = GroupCoordinator(metadata, logs, internal, self._reader)
        self._transactions = transactions = TransactionCoordinator(metadata, logs, internal)
        self._producers = Producers(metadata, TransactionParts(transactions, groups, appender, logs))
        self._administration = administration = Administration(metadata, logs, topic_file, routes, groups, transactions)
        self._loads = BulkLoads(metadata, logs, administration, opening.staging_dir)
        self._leadership = Leadership(metadata, logs, administration, groups, transactions)
        return Recovering(administration, self._loads, self._leadership)

    def close(self) -> None:
        """Close every log as a broker's clean shutdown does, write the checkpoints, and release the locks. Idempotent.

        All appended data is on the disk when this returns. The call may be repeated after an interrupt.

        Raises:
            StorageError: If closing a log or writing a checkpoint fails. The store is closed all the same, and the next
                opening recovers it.

        Example:
            >>> store.close()
            >>> store.closed
            True
        """
        metadata, logs = self._metadata, self._logs
        if isinstance(logs, LogManager) and not metadata.closed:
            logs.stop()  # before the lock is taken: a running task may need the lock and an open store
        with self._loads.loading, metadata.changing:  # a decided load is finished first
            if not metadata.closed:
                self._topic_file.write_waiting()
                if isinstance(logs, LogManager) and metadata.role is None:
                    self._groups.take_in()
                metadata.close()
            self._groups.close()
            logs.close()  # also after an interrupted close: closes the logs that are still open
            self._opened.close()

    def refresh(self) -> None:
        """Read the present state of a prefix of an object store: of the URL that was opened, or of the archive.

        Iterators that are in use continue in the new state, or raise an error if their records are no longer in it.
        Directories are read as they are at each call, so this does nothing for them.

        Raises:
            StorageError: If the object store does not answer, or has no log any more; the store keeps its state.

        Example:
            >>> store.refresh()
        """
        if self._opened.prefix is not None:
            self._opened.prefix.refresh()
            for entry in self._metadata.current().entries():
                if entry.log is not None and not entry.log.closed:
                    HostedLog(entry.log).view.refresh()

    @property
    def closed(self) -> bool:
        """Whether the store has been closed, or belongs to the process that this one was forked from."""
        return self._metadata.closed

    def __del__(self) -> None:
        metadata = getattr(self, "_metadata", None)
        if metadata is not None and not metadata.closed:
            paths = ", ".join(map(repr, self.paths))
            warnings.warn(f"unclosed store {paths} mode={self.mode!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        if not hasattr(self, "_metadata"):
            return f"<kstore.Store being opened at {', '.join(map(repr, self.paths))}>"
        state = " closed" if self._metadata.closed else f" topics={len(self._metadata.catalog.topics)}"
        return f"<kstore.Store{state} mode={self.mode!r} at {', '.join(map(repr, self.paths))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a store that is open for writing cannot be pickled: it holds the directories' locks")
        return _reopen, (self._opened.given, self._arguments)

    # Topics and partitions.

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, internal ones included, sorted."""
        return self._metadata.current().topics

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions that are in this store.

        Args:
            topic: The topic.

        Returns:
            The numbers, sorted.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> store.partitions("orders")
            (0, 1)
        """
        return tuple(self._metadata.current().partitions(topic))

    def log(self, topic: str, partition: int) -> Log:
        """Return the log of one partition.

        The log belongs to the store: it is opened once, and closed with the store.

        Args:
            topic: The topic.
            partition: The number of the partition.

        Returns:
            The open log.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic or partition.
            KStoreError: The error that prevents the opening of this log. The other logs can still be used.

        Example:
            >>> log = store.log("orders", 1)
            >>> log.log_end_offset, log.config.segment_bytes
            (2, 1073741824)
        """
        return self._reader.log(topic, partition)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return a topic's id.

        Args:
            topic: The topic.

        Returns:
            The id in the `partition.metadata` of the topic's partitions; None if the topic is older than Kafka's topic
            ids.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> store.topic_id("orders") == topic_id
            True
        """
        self._metadata.current().partitions(topic)
        return self._metadata.topic_id(topic)

    # Configuration.

    @property
    def config(self) -> LogConfig:
        """The store's settings, which a topic's own settings override."""
        return self._metadata.config

    def topic_config(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic: its own, then the store's, then the defaults (SEMANTICS 13.11).

        Args:
            topic: The topic.

        Returns:
            The settings.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> topic_id = store.create_topic("accounts", config={"cleanup.policy": "compact"})
            >>> store.topic_config("accounts").cleanup_policy
            ('compact',)
        """
        return self._metadata.config_of(topic)

    def update_topic_config(self, topic: str, config: Mapping[str, object]) -> None:
        """Change some settings of one topic.

        The settings are stored. In open logs they take effect as with `Log.update_config`; in other logs, when the log
        is opened (SEMANTICS 13.13). If this raises, nothing has changed.

        Args:
            topic: The topic.
            config: The settings to change, under Kafka's topic names. A value of None removes the topic's setting; the
                store's setting then applies.

        Raises:
            ConfigError: If a setting is unknown or out of range.
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> store.update_topic_config("orders", {"compression.type": "zstd", "retention.ms": "2592000000"})
            >>> store.topic_config("orders").retention_ms
            2592000000
        """
        self._administration.update_topic_config(topic, config)

    def update_config(self, config: ConfigSource = None, **settings: Unpack[LogSettings]) -> None:
        """Change the store's settings until it is closed; topics' own settings still override them (SEMANTICS 13.11).

        The settings take effect in open logs as with `Log.update_config`.

        Args:
            config: The settings to change, in one of the forms that `open` takes.
            **settings: Settings as keywords; they override `config`.

        Raises:
            ConfigError: If a setting is unknown or out of range.

        Example:
            >>> store.update_config(compression_type="zstd")
            >>> store.topic_config("orders").compression_type
            'zstd'
        """
        refuse_unknown(Store.update_config, settings, LogConfig)
        self._administration.update_config(config, settings)

    # Administration.

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        topic_id: uuid.UUID | str | None = None,
        exist_ok: bool = False,
        **settings: Unpack[LogSettings],
    ) -> uuid.UUID:
        """Create a topic and return its id.

        Each partition gets a directory with a `partition.metadata` file; the files of a log are created when it is
        first used.

        The topic is durable when this returns. If this raises, no topic has been created. If the process crashes during
        the call, the next opening finishes the creation.

        Args:
            topic: The topic's name.
            partitions: How many partitions the topic has.
            config: Settings of the topic under Kafka's topic names, such as `{"segment.bytes": 16384}`.
            topic_id: The id, as a `UUID` or in Kafka's text form (22 characters of URL-safe base64); a new one by
                default.
            exist_ok: Accept an existing topic, unchanged, if it has this number of partitions and the given `topic_id`,
                and if the given settings are in force for it.
            **settings: The same settings as keywords, such as `segment_bytes=16384`; they override `config`.

        Returns:
            The topic's id.

        Raises:
            InvalidTopicError: If Kafka forbids the name.
            TopicExistsError: If the topic exists, or another topic whose name differs only in `.` and `_`, as in Kafka.
                With `exist_ok` the message says how the existing topic differs.
            InconsistentTopicIdError: If `exist_ok` is set and the existing topic has another id.
            ConfigError: If a setting is unknown or out of range.
            StorageError: If the disk fails.

        Example:
            >>> topic_id = store.create_topic("accounts", partitions=4, config={"cleanup.policy": "compact"})
            >>> store.topics
            ('accounts', 'orders')
        """
        refuse_unknown(Store.create_topic, settings, LogConfig)
        return self._administration.create_topic(topic, partitions, config, topic_id, settings, exist_ok=exist_ok)

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions to a topic, up to `total`.

        From then on a key may go to another partition than before, as in Kafka.

        Args:
            topic: The topic.
            total: How many partitions the topic has afterwards.

        Raises:
            ValueError: If `total` is not greater than the present number of partitions.
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> store.add_partitions("orders", 4)
            >>> store.partitions("orders")
            (0, 1, 2, 3)
        """
        self._administration.add_partitions(topic, total)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic.

        Its directories are renamed immediately, and removed after `file.delete.delay.ms` (SEMANTICS 6.16). In this
        process, readers of its logs then raise `LogClosedError`, and the store's iterators and consumers raise
        `UnknownTopicOrPartitionError`. If a part of the topic remains, after a crash or in an offline directory, the
        next opening that has access to that part deletes it; until then the name is in use.

        On a full disk the directories are removed immediately. If there is not even space to record the deletion, a
        crash of the machine during the call may leave some of the topic's partitions.

        Args:
            topic: The topic.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.
            InvalidTxnStateError: If the topic is `__transaction_state` and a transactional id is in use.

        Example:
            >>> store.delete_topic("orders")
            >>> store.topics
            ()
        """
        self._administration.delete_topic(topic)

    # Appending.

    def partition_for(self, topic: str, key: ReadableBuffer) -> int:
        """Return the partition that `append` sends a key to, by Kafka's default partitioner (murmur2).

        The answer changes when the topic gets more partitions. Works in mode "r", too.

        Args:
            topic: The topic.
            key: The key.

        Returns:
            The number of the partition.

        Raises:
            TypeError: If the key is None.
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> store.partition_for("orders", b"alice")
            1
        """
        return self._routes.partition_for(topic, key)

    append = _topic_append.append

    async def aappend(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one record as `append` does, without blocking the event loop for a sync.

        The write, the wait with `sync=True` and a cancelled call behave as in `Log.aappend`.

        Args:
            topic: The topic.
            value: The record's value; None is a tombstone.
            key: The record's key.
            partition: The partition to append to; by default the partitioner chooses one, as in `append`.
            timestamp: Milliseconds since the epoch, or a `datetime` with a time zone; now by default.
            headers: The record's headers.
            sync: Whether to wait until the record is on the disk.
            expected_offset: Append only if the record gets this offset. Needs a `partition`.

        Returns:
            The record's partition, offset and timestamp.

        Raises:
            KStoreError: The errors of `append`.
            RuntimeError: If no asyncio event loop is running.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     return await store.aappend("orders", b"2 plums", key=b"carol", sync=True)
            >>> asyncio.run(main()).offset
            1
        """
        turns = self._turns or self._begin_awaiting()
        if turns.is_over():
            await turns.give_way()
        appended = self._appender.append(topic, value, key, partition, timestamp, headers, False, expected_offset)
        if sync:
            await self._reader.log(topic, appended.partition).aflush()
        return appended

    def _begin_awaiting(self) -> Turns:
        from kstore.base.loops import Turns

        self._turns = Turns()
        return self._turns

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append an iterable of records.

        Records go where `append` would send them, except that records without a key go to one partition for
        `batch_bytes`, then to another. Appends of other threads may come between any two batches.

        If a record is refused, or the iterable raises, the batches that were finished before remain. Every exception
        that this raises has an attribute `appended`, a dictionary like the result, with the batches that remain. An
        exception that is not kstore's also has a note that says so.

        Args:
            topic: The topic.
            records: Values, `(key, value)` or `(key, value, timestamp, headers)` tuples, `Record`s or
                `ConsumerRecord`s.
            partition: The partition for all records; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            sync: Whether all records are on the disk when this returns.
            batch_bytes: Batches are filled up to this size. By default it is between 64 KiB and 1 MiB, chosen so that
                the batches of all partitions take 8 MiB. Batches are closed early if all open batches together would
                take more than 64 MiB.
            seed: With the same seed, a repeated call sends records without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            KStoreError: The errors of `Log.append_many`; they name a record by its number in the iterable.
            UnknownTopicOrPartitionError: If there is no such topic or partition.

        Example:
            >>> appended = store.append_many("orders", [(b"carol", b"2 plums"), (b"alice", b"5 figs")], sync=True)
            >>> {partition: info.last_offset for partition, info in appended.items()}
            {0: 1, 1: 2}
        """
        options = AppendOptions(partition, compression, batch_bytes, sync, seed)
        return self._appender.append_many(topic, Records(records), options)

    def append_columns(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append a record for each row of `values`.

        Rows go where `append_many` sends the same records, in the same batches. If a row is refused, the batches that
        were finished before remain; the exception lists them, as in `append_many`. Appends of other threads may come
        between any two batches.

        Args:
            topic: The topic.
            values: The values, or all columns at the same time, in a form that `Log.append_columns` takes.
            keys: The column of keys.
            timestamps: The column of timestamps, or one timestamp for all rows.
            headers: The column of headers.
            partition: The partition for all rows; by default the partitioner chooses one for each.
            compression: The codec of this call, if the topic's `compression.type` is "producer".
            sync: Whether all records are on the disk when this returns.
            batch_bytes: The size up to which batches are filled, as in `append_many`.
            threads: How many threads compress batches, as in `Log.append_columns`.
            seed: With the same seed, a repeated call sends rows without a key to the same partitions.

        Returns:
            An `AppendInfo` for each partition that got records.

        Raises:
            KStoreError: The errors of `Log.append_columns`.
            UnknownTopicOrPartitionError: If there is no such topic or partition.

        Example:
            >>> import pyarrow
            >>> table = pyarrow.table({"key": ["carol", "alice"], "value": ["2 plums", "5 figs"]})
            >>> appended = store.append_columns("orders", table, compression="zstd")
            >>> {partition: info.last_offset for partition, info in appended.items()}
            {0: 1, 1: 2}
        """
        columns = ColumnArguments(values, keys, timestamps, headers, threads)
        options = AppendOptions(partition, compression, batch_bytes, sync, seed)
        return self._appender.append_many(topic, columns, options)

    @overload
    def producer(self) -> Producer: ...
    @overload
    def producer(self, *, transactional_id: str, transaction_timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer: ...
    @arguments.named
    def producer(
        self, *, transactional_id: str | None = None, transaction_timeout_ms: int = TIMEOUT_MS
    ) -> Producer | TransactionalProducer:
        """Create an idempotent producer or, if a `transactional_id` is given, a transactional one.

        If another producer has the transactional id, it is fenced, and its open transaction is aborted. If a
        transaction is open for longer than `transaction_timeout_ms`, the housekeeping aborts it and fences its
        producer.

        Args:
            transactional_id: The id under which the producer writes transactions; None for an idempotent producer.
            transaction_timeout_ms: How long a transaction may be open, in milliseconds.

        Returns:
            A `TransactionalProducer` if a `transactional_id` is given, otherwise a `Producer`.

        Raises:
            ValueError: If the id is empty, or the timeout exceeds `transaction.max.timeout.ms`.

        Example:
            >>> with store.producer(transactional_id="copier") as producer:
            ...     with producer.transaction() as txn:
            ...         place = txn.append("orders", b"2 plums", key=b"carol")
            ...         txn.commit_offsets("copiers", {("orders", 1): 2})
            >>> store.committed_offsets("copiers")
            {('orders', 1): 2}
        """
        return self._producers.producer(transactional_id, transaction_timeout_ms)

    # Reading.

    def get(
        self, topic: str, partition: int, offset: int, *, isolation: Isolation = "read_uncommitted"
    ) -> Record | None:
        """Read the record at an offset of a partition, as `Log.get` does.

        Args:
            topic: The topic.
            partition: The number of the partition.
            offset: The record's offset.
            isolation: "read_uncommitted" or "read_committed", as in `Log.get`.

        Returns:
            The record; None if no record has the offset.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic or partition.
            OffsetOutOfRangeError: If the offset is below the log start, or at or above the log end.
            KStoreError: Any other error that `Log.get` or `log` raises.

        Example:
            >>> store.get("orders", 1, 0).value
            b'3 apples'
        """
        return self._reader.log(topic, partition).get(offset, isolation=isolation)

    async def aget(
        self, topic: str, partition: int, offset: int, *, isolation: Isolation = "read_uncommitted"
    ) -> Record | None:
        """Read the record at an offset of a partition from a coroutine, as `Log.aget` does.

        Args:
            topic: The topic.
            partition: The number of the partition.
            offset: The record's offset.
            isolation: As in `get`.

        Returns:
            The record; None if no record has the offset.

        Raises:
            KStoreError: Any error that `get` raises.

        Example:
            >>> import asyncio
            >>> asyncio.run(store.aget("orders", 1, 0)).value
            b'3 apples'
        """
        return await self._reader.log(topic, partition).aget(offset, isolation=isolation)

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[ConsumerRecord]:
        """Iterate over the records of a topic, or of some of its partitions.

        `offsets` and `start_timestamp` say where each partition starts; without them each partition is read from its
        log start.

        With `merge="partition"` the partitions are read one after the other in the order of their numbers, each up to
        its end at the time when its reading starts. With `merge="timestamp"` all partitions are read together, up to
        their present ends: the next record is always the one with the least timestamp among the next records of all
        partitions, and if timestamps are equal, the one of the lower partition. So the result is sorted by time if each
        partition is, and keeps the order within each partition. One record of each partition is read ahead: a later
        deletion or truncation does not remove it from the result.

        With `follow` the iterator waits for new records at the end. The records that it then finds are returned in the
        order above, before those that arrive later, which may have lower timestamps. Unless `partitions` is given,
        new partitions are read from their start. New partitions and the deletion of the topic are noticed within a
        tenth of a second.

        One iterator belongs to one thread at a time.

        Args:
            topic: The topic.
            partitions: The partitions to read; all by default.
            offsets: For some partitions, the offset to start at.
            start_timestamp: Start each partition at its first record at or after this time: milliseconds since the
                epoch, or a `datetime` with a time zone. Not allowed together with `offsets`.
            end_timestamp: End each partition before its first record at or after this time; `Log.read` says what that
                means for late records. Not allowed together with `follow`.
            merge: The order of the partitions' records: "partition" or "timestamp".
            isolation: "read_uncommitted" or "read_committed", as in `Log.read`.
            follow: Whether to wait for new records at the end.
            timeout: With `follow`, end after this many seconds without a new record; never by default.
            durable: Read only records that survive a crash of the machine, as in `Log.read`.
            on_lag: What to do about records that were deleted before they were read, as in `Log.read`.

        Returns:
            An iterator of the records.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic or partition. The iterator raises it if the topic is
                deleted.
            KStoreError: The errors of `Log.read`. Errors in the arguments or in the given offsets are raised by the
                call, others by the iterator.

        Example:
            >>> [record.value for record in store.read("orders", partitions=[1])]
            [b'3 apples', b'4 apples']
            >>> [record.value for record in store.read("orders", offsets={0: 1, 1: 1})]
            [b'4 apples']
        """
        wanted = TopicRead(
            partitions, offsets, start_timestamp, end_timestamp, merge, isolation, follow, timeout, durable, on_lag
        )
        return self._reader.read(topic, wanted)

    def aread(
        self,
        topics: str | Iterable[str],
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | Mapping[Place, int] | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Stream[ConsumerRecord]:
        """Iterate over the records of one or more topics with `async for`.

        Several topics are read one after the other; with `follow` the new records of all of them are returned as they
        come. `Log.aread` describes how files are read, how a following reader is woken, and what a cancelled `anext`
        does. New partitions are noticed within a quarter of a second. One iterator belongs to one task at a time.

        Args:
            topics: A topic, or several.
            partitions: The partitions to read; all by default. For a single topic only.
            offsets: For some partitions, the offset to start at. The keys are `(topic, partition)`, as in
                `committed_offsets`; for a single topic they may be partitions.
            start_timestamp: Start each partition at its first record at or after this time, as in `read`.
            end_timestamp: End each partition before its first record at or after this time, as in `read`.
            merge: The order of the partitions' records, as in `read`.
            isolation: "read_uncommitted" or "read_committed", as in `Log.read`.
            follow: Whether to wait for new records at the end.
            timeout: With `follow`, end after this many seconds without a new record; never by default.
            durable: Read only records that survive a crash of the machine, as in `Log.read`.
            on_lag: What to do about records that were deleted before they were read, as in `Log.read`.

        Returns:
            An asynchronous iterator of the records.

        Raises:
            KStoreError: The errors of `read`, in the same way.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async for record in store.aread("orders"):
            ...         print(record.partition, record.offset, record.value)
            >>> asyncio.run(main())
            0 0 b'1 pear'
            1 0 b'3 apples'
            1 1 b'4 apples'
            >>> stream = store.aread(["orders"], offsets={("orders", 1): 1})
        """
        from kstore.store.topics.async_topic_source import stream_of

        wanted = TopicRead(
            partitions, None, start_timestamp, end_timestamp, merge, isolation, follow, timeout, durable, on_lag
        )
        return stream_of(self._reader, topics, wanted, offsets)

    @overload
    def read_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
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
    ) -> Iterator[tuple[int, Columns]]: ...

    @overload
    def read_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
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
    ) -> Iterator[tuple[int, pyarrow.RecordBatch]]: ...

    def read_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
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
    ) -> Iterator[tuple[int, Columns]] | Iterator[tuple[int, pyarrow.RecordBatch]]:
        """Iterate over the records of a topic as columns, one partition after the other.

        Each partition starts where `read` starts it, and is read up to its end at the time when its reading starts. One
        iterator belongs to one thread at a time.

        Args:
            topic: The topic.
            partitions: The partitions to read; all by default.
            offsets: For some partitions, the offset to start at.
            start_timestamp: Start each partition at its first record at or after this time, as in `read`.
            end_timestamp: End each partition before its first record at or after this time, as in `read`.
            max_records: The most records of a chunk, as in `Log.iter_columns`.
            max_bytes: The most bytes of a chunk, as in `Log.iter_columns`.
            columns: The names of the columns; by default offset, timestamp, key and value.
            layout: How keys and values lie in memory, as in `Log.read_columns`.
            isolation: "read_uncommitted" or "read_committed", as in `Log.read`.
            durable: Read only records that survive a crash of the machine, as in `Log.read`.
            threads: How many threads read, as in `Log.iter_columns`.
            decode: How values become a struct or columns, as in `Log.read_columns`.

        Returns:
            An iterator of `(partition, chunk)` pairs. The chunks are those of `Log.iter_columns`; with `decode` they
            are `pyarrow.RecordBatch` objects.

        Raises:
            KStoreError: The errors of `read`. Errors in the arguments or in the given offsets are raised by the call,
                others by the iterator.

        Example:
            >>> for partition, chunk in store.read_columns("orders", columns=["value"]):
            ...     print(partition, chunk.values.to_pylist())
            0 [b'1 pear']
            1 [b'3 apples', b'4 apples']
        """
        wanted = TopicRead(partitions, offsets, start_timestamp, end_timestamp)
        options = ColumnOptions(max_records, max_bytes, columns, layout, isolation, durable, threads)
        if decode is None:
            return self._reader.read_columns(topic, wanted, options)
        from kstore.columns.value_decoding import ChunkDecoder

        decoder = ChunkDecoder(decode, columns, layout)
        chunks = self._reader.read_columns(topic, wanted, options)
        return ((number, decoder.decode(chunk, f"{topic}-{number}")) for number, chunk in chunks)

    def aread_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        end_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> AsyncIterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns with `async for`.

        Takes the arguments of `read_columns`, and returns the same chunks. A thread of the loop's executor makes a
        chunk only when it is asked for. If several `threads` read, the others read further chunks ahead. A cancelled
        `anext` loses no chunk: the next `anext` returns it. One iterator belongs to one task at a time.

        Returns:
            An asynchronous iterator of `(partition, chunk)` pairs.

        Raises:
            KStoreError: The errors of `read_columns`, in the same way.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async for partition, chunk in store.aread_columns("orders", columns=["value"]):
            ...         print(partition, chunk.values.to_pylist())
            >>> asyncio.run(main())
            0 [b'1 pear']
            1 [b'3 apples', b'4 apples']
        """
        from kstore.log.async_stream import InThread, Stream

        wanted = TopicRead(partitions, offsets, start_timestamp, end_timestamp)
        options = ColumnOptions(max_records, max_bytes, columns, layout, isolation, durable, threads)
        return Stream([InThread(self._reader.read_columns(topic, wanted, options))])

    def topic_stream(self, topic: str) -> TopicStream:
        """Return a topic as an Arrow stream, which DuckDB, Polars, PyArrow and pandas read as a table.

        Args:
            topic: The topic.

        Returns:
            The stream, which any number of queries may read; each reads the topic anew. It keeps the store alive.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.

        Example:
            >>> import duckdb
            >>> orders = store.topic_stream("orders")
            >>> duckdb.sql("select decode(key), count(*) from orders group by key order by key").fetchall()
            [('alice', 2), ('bob', 1)]
        """
        self.partitions(topic)
        return TopicStream(self._reader, topic, owner=self)

    def table(self, topic: str, *, as_of: datetime | Mapping[int, int] | None = None) -> Table:
        """Read the newest record of each key of a topic, without rewriting anything.

        The result joins the tables of the partitions (see `Log.latest`). Every partition is a separate table, since
        compaction cleans each separately: a tombstone deletes its key only in its own partition. Usually a key is in
        one partition. If it is in several, for example after a change of the partitioner or of the number of
        partitions, the table has the record with the latest timestamp or, if timestamps are equal, the one of the
        higher partition.

        Several partitions are read at a time, each up to its end at the time when its reading starts: the table may
        have parts of the topic from different times.

        Args:
            topic: The topic.
            as_of: Read an earlier state: a time (a `datetime` with a time zone), or for some partitions the offset at
                which to end (`{0: 1000}`); the others are read to their ends. `Log.latest` says what a time or an
                offset means.

        Returns:
            The table.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic or partition.
            ValueError: If `as_of` is a time without a zone.
            KStoreError: The errors of `Log.latest`.

        Example:
            >>> table = store.table("orders")
            >>> table[b"alice"].value, len(table)
            (b'4 apples', 2)
            >>> store.table("orders", as_of={1: 1})[b"alice"].value
            b'3 apples'
        """
        return self._tables.read(topic, as_of)

    # Groups.

    def commit_offsets(
        self, group: str, offsets: Mapping[Place, int], metadata: str = "", *, sync: bool = False
    ) -> None:
        """Commit a group's positions: for each partition the offset of the next record to read.

        All positions of a call are one batch of `__consumer_offsets`, as a broker writes it, or several batches if they
        take more than half of `max.message.bytes`. The topics need not be in this store.

        In mode "r" the positions are written into a file that the store's process takes in. Every process sees them at
        once. They survive the death of this process, and with `sync` a power failure. Of several commits of a position
        the one with the latest timestamp counts.

        Args:
            group: The group's name.
            offsets: The offsets by `(topic, partition)`.
            metadata: A text that is stored with each position.
            sync: Whether the positions are on the disk when this returns.

        Raises:
            ValueError: If the group's name is empty, an offset is negative, or `metadata` is longer than
                `offset.metadata.max.bytes`.
            ReadOnlyError: In mode "r", if the process may not create a file in the first log directory, or if the store
                is in an object store, of a broker, or a follower.
            KStoreError: The errors of `Log.append_batch`. In mode "r" those of writing the file.

        Example:
            >>> store.commit_offsets("billing", {("orders", 0): 1, ("orders", 1): 2}, sync=True)
            >>> store.committed_offsets("billing")
            {('orders', 0): 1, ('orders', 1): 2}
        """
        self._groups.commit(Positions(group, offsets, metadata), sync=sync)

    def committed_offsets(self, group: str) -> dict[Place, CommittedOffset]:
        """Return a group's committed positions.

        Positions written in a transaction are included once it is committed. A position is left out if its topic was
        deleted and created again since.

        Args:
            group: The group's name.

        Returns:
            The positions by `(topic, partition)`: each is an offset with the other fields of its commit. Empty for an
            unknown group.

        Raises:
            CorruptRecordError: If `__consumer_offsets` has records that are not a group's.

        Example:
            >>> store.commit_offsets("billing", {("orders", 1): 2}, metadata="invoice 17")
            >>> position = store.committed_offsets("billing")["orders", 1]
            >>> position, position.metadata
            (2, 'invoice 17')
        """
        return self._groups.committed_offsets(group)

    def delete_offsets(self, group: str, partitions: Iterable[Place] | None = None) -> None:
        """Delete some or all of a group's positions; deleting the last position deletes the group.

        Positions that open transactions have written so far are deleted, too (Kafka's OffsetMetadataManager), and those
        that stores in mode "r" have committed so far.

        Args:
            group: The group's name.
            partitions: The `(topic, partition)` pairs whose positions are deleted; all by default.

        Raises:
            StorageError: If the commits of a store in mode "r" cannot be taken in first; nothing is deleted then.

        Example:
            >>> store.commit_offsets("billing", {("orders", 0): 1, ("orders", 1): 2})
            >>> store.delete_offsets("billing", [("orders", 0)])
            >>> store.committed_offsets("billing")
            {('orders', 1): 2}
        """
        self._groups.delete_offsets(group, partitions)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that have committed positions, a sorted tuple.

        Calling the tuple, as in `store.groups()`, is deprecated: `groups` was a method up to version 0.2.
        """
        return self._groups.groups()

    @arguments.named
    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        *,
        auto_offset_reset: OffsetReset = "earliest",
        isolation: Isolation = "read_uncommitted",
        merge: Literal["partition", "timestamp"] = "partition",
        follow: bool = False,
        timeout: float | None = None,
        positions: Store | None = None,
    ) -> Consumer:
        """Create a consumer that reads all partitions of topics for a group, from the group's committed positions.

        In mode "r" the consumer's commits are sent to the process that writes the store; see `commit_offsets`. With
        `positions` the consumer reads this store, and reads and commits the group's positions in another store.

        Args:
            group: The group's name.
            topics: A topic, or several, which are read one after the other.
            auto_offset_reset: Where to start a partition that has no committed position, or whose position is no longer
                in the log: "earliest", "latest", or "none" to raise.
            isolation: "read_uncommitted" or "read_committed", as in `read`.
            merge: The order of the records of one topic's partitions, as in `read`.
            follow: Whether the iterator waits for new records at the end.
            timeout: With `follow`, end after this many seconds without a new record; never by default.
            positions: The store that keeps the group's positions; this one by default.

        Returns:
            The consumer.

        Raises:
            ReadOnlyError: If the store for the positions is open with mode "r" and is in an object store, of a broker,
                or a follower.
            UnknownTopicOrPartitionError: If there is no such topic. The iterator raises it if the topic is deleted.
            OffsetOutOfRangeError: If `auto_offset_reset` is "none" and a partition has no valid position. The iterator
                raises it if records that were read have been truncated; to continue, call `seek` or
                `seek_to_committed`.

        Example:
            >>> with store.consumer("billing", "orders") as consumer:
            ...     for record in consumer:
            ...         print(record.value)
            ...     consumer.commit()
            b'1 pear'
            b'3 apples'
            b'4 apples'
            >>> store.committed_offsets("billing")
            {('orders', 0): 1, ('orders', 1): 2}
        """
        options = ConsumerOptions(group, topics, auto_offset_reset, isolation, merge, follow, timeout)
        if positions is None:
            return self._groups.consumer(options)
        arguments.one_of("positions", positions, Store)
        return positions._groups.consumer(options, self._reader)

    # Bulk loads.

    def adopt(
        self,
        manifest: Manifest | str,
        *,
        txn: Transaction | None = None,
        rename_bytes: int = RENAME_BYTES,
        staging_dir: str | os.PathLike[str] | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> Adopted:
        """Add staged records to the logs: commit a bulk load atomically and exactly once.

        Records get offsets in the order of the manifest's rows. The load is durable when this returns. Before the first
        log changes, a durable record of the load is written (the load is then decided): after a crash the next opening
        finishes the load. Topics that are missing are created with the number of partitions that the manifest says.
        Other appends wait during the call.

        If this raises, nothing has happened unless the message says that the load is decided. An interrupt is raised
        after the load is done or given up; the result of a repeated call says which.

        Args:
            manifest: What the tasks have staged: `Staged` rows, or mappings or Spark rows with their fields; or the URL
                of a job that `kstore.spark.upload` has staged in an object store. Its files are fetched and checked,
                and its objects deleted when the load is done; adopted again, it is a duplicate.
            txn: An `(application, version)` pair. The load is skipped unless the version is above the last version
                committed for that application. Without `txn`, a manifest that was committed before is skipped.
            rename_bytes: If a partition's staged files have at least this average size, they become segments by a
                rename; otherwise their records are appended.
            staging_dir: Where tasks were told to stage, if not in `<root>.kstore-staging`; later calls accept it, too.
                A manifest may name only directories in these staging directories. For rows in an object store, the
                staging URL. Not allowed with the URL of a job, and neither is `txn`, which its manifest has.
            storage: Options of the object store, as in `backup`.

        Returns:
            The offsets that the records got, and whether the load was a duplicate.

        Raises:
            ValueError: If the manifest does not fit the topics.
            ConfigError: If the manifest names a directory outside of the staging directories; nothing is opened or
                removed then.
            BackupError: If the object store has no such job, does not answer, or has objects that are missing or that
                differ from the manifest; nothing has changed then.
            StorageError: If staged files are missing, if a path has a symbolic link (nothing is opened or removed
                then), or if the disk fails or has not enough space.

        Example:
            >>> import pyarrow
            >>> from kstore import spark as ks
            >>> stage = ks.stage("data", topic="orders")
            >>> manifest = stage.write([pyarrow.record_batch({"key": ["carol"], "value": ["2 plums"]})])
            >>> store.adopt(manifest, txn=("daily-load", 20261128)).records
            1
            >>> store.adopt(manifest, txn=("daily-load", 20261128)).duplicate
            True
        """
        return self._loads.adopt(manifest, txn=txn, rename_bytes=rename_bytes, staging_dir=staging_dir, storage=storage)

    # Copies.

    def become_leader(self) -> dict[tuple[str, int], int]:
        """Make a follower a leader: clients may then write to the store.

        A partition's new leader epoch is one above the newest epoch that it has had, or 1 if it had none. The new epoch
        starts at the log end offset, and batches appended later carry it (SEMANTICS 10.24), also after the store is
        opened again. Prepared transactions are completed; open ones are aborted when they time out. If a group's
        position is above the log end offset, it is set to the log end offset: the records that the group had read above
        it are lost. If the store is a leader already, each partition starts a new epoch, so that followers can
        distinguish its records from those of another leader.

        The epochs are durable when this returns. After a crash the store is a follower, or a leader with the new
        epochs; in either case call this again.

        Returns:
            The new leader epoch of each partition, by topic and number.

        Raises:
            StorageError: If the disk fails, if a directory is offline, or if a partition cannot be opened. A follower
                then remains a follower.

        Example:
            >>> follower = kstore.replicate("data", "copy")
            >>> with kstore.Store.open("copy") as copy:
            ...     print(copy.become_leader())
            {('orders', 0): 1, ('orders', 1): 1}
        """
        return self._leadership.become_leader()

    # Housekeeping.

    def flush(self) -> None:
        """Flush all topics: all data appended before the call is on the disk when this returns.

        Raises:
            StorageError: The first error, if a log cannot be flushed. It is raised after the other logs were flushed.

        Example:
            >>> place = store.append("orders", b"2 plums", key=b"carol")
            >>> store.flush()
            >>> store.log("orders", place.partition).stats()["recovery_point"]
            2
        """
        _flush(self._logs)

    async def aflush(self) -> None:
        """Wait until all data appended before the call, in every topic, is on the disk.

        One flush, in a thread of the loop's executor, serves all tasks that wait at the same time. A cancelled call
        stops waiting, and changes nothing else.

        Raises:
            StorageError: As in `flush`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     place = await store.aappend("orders", b"2 plums", key=b"carol")
            ...     await store.aflush()
            >>> asyncio.run(main())
            >>> store.log("orders", 0).stats()["recovery_point"]
            2
        """
        flushers = self._flushers
        if flushers is None:
            from kstore.log.async_flush import Flushers

            flushers = self._flushers = Flushers(partial(_flush, self._logs))
        await flushers.flushed()

    def run_housekeeping(self) -> None:
        """Run the tasks that are due by the clock: retention, compaction, flushes, checkpoints, deletions.

        Example:
            >>> from kstore.testing import ManualClock
            >>> clock = ManualClock()
            >>> with kstore.Store.open("events", background=False, clock=clock, flush_ms=1000) as events:
            ...     topic_id = events.create_topic("clicks")
            ...     place = events.append("clicks", b"home")
            ...     now = clock.advance(60_000)
            ...     events.run_housekeeping()
            ...     print(events.log("clicks", 0).stats()["recovery_point"])
            1
        """
        self._logs.writing().run_due()

    def compact(
        self, topic: str | None = None, *, roll: bool = False, dry_run: bool = False
    ) -> dict[tuple[str, int], CompactionStats]:
        """Compact the partitions of a topic or of all topics, regardless of dirty ratios and compaction lags.

        The partitions are compacted one after the other as by `Log.compact`, with the memory that the store's settings
        give one cleaner thread, and without a throttle.

        Args:
            topic: The topic; by default every topic whose `cleanup.policy` has `compact`.
            roll: Whether to roll the active segments first, so that they are compacted, too.
            dry_run: Write nothing, and return what would be done. Works in mode "r", too.

        Returns:
            The statistics of each partition's compaction, by topic and number.

        Raises:
            PolicyViolationError: If the topic's `cleanup.policy` does not have `compact`.
            UnknownTopicOrPartitionError: If there is no such topic.
            KStoreError: The first error of `Log.compact`. It is raised after the other partitions were compacted.

        Example:
            >>> store.update_topic_config("orders", {"cleanup.policy": "compact"})
            >>> stats = store.compact("orders", roll=True)
            >>> [(record.partition, record.offset, record.value) for record in store.read("orders")]
            [(0, 0, b'1 pear'), (1, 1, b'4 apples')]
        """
        return compact_store.compact(self._metadata, self._logs, topic, roll=roll, dry_run=dry_run)

    def explain(
        self,
        *,
        topic: str | None = None,
        at: int | datetime | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> DiskExplanation:
        """Explain what takes the space of the store's directories, what holds it, and which settings would free it.

        Changes nothing; works in mode "r", too. Logs that are not open are opened for reading meanwhile. A partition
        that cannot be read has an `error`, and the others are explained.

        Args:
            topic: Explain only this topic.
            at: The moment to explain for, in milliseconds or as a `datetime` with a time zone; now if omitted.
            progress: Called as `progress(done, total)` with numbers of partitions. An exception that it raises ends the
                call.

        Returns:
            The facts; `print` shows them as text.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.
            InvalidTimestampError: If a `datetime` has no time zone.

        Example:
            >>> disk = store.explain()
            >>> [(partition.topic, partition.held[0].cause) for partition in disk.partitions]
            [('orders', 'no_limit'), ('orders', 'no_limit')]
            >>> [remedy.setting for remedy in disk.remedies]
            []
        """
        moment = None if at is None else times.moment("at", at)
        return explain_store.explain(self._metadata, self._logs, topic, moment, progress)

    def stats(self) -> StoreStats:
        """Return the store's metrics and current errors, for monitoring.

        docs/metrics.md has each key. `compaction` has the size and the dirtiness of each open log that is compacted,
        when it was last compacted, and why the last compaction failed. `role` is "follower" or "leader", and `source`
        has the directories of a follower's leader. `full` has the directories in which the last write found no space,
        `offline` the directories that have failed, `refused` the partitions that cannot be written, and `failures` the
        housekeeping tasks that failed, each with the reason. `libraries` names the library of each compression type.
        `group_lag` has the lag of each consumer group, for which the logs of its topics are opened.

        Returns:
            A dictionary with text and numbers only, fit for JSON.

        Example:
            >>> stats = store.stats()
            >>> stats["role"], stats["full"], stats["offline"], stats["failures"]
            ('leader', {}, {}, {})
        """
        found = overview_of(self)
        found["compaction"] = store_stats.compaction(self._metadata)
        with suppress(KStoreError):  # __consumer_offsets cannot be read
            found["group_lag"] = {
                group: {f"{each.topic}-{each.partition}": each.lag for each in lags if each.lag is not None}
                for group, lags in group_lags_of(self)
            }
        return found


def _flush(logs: Logs) -> None:
    manager = logs.writing()
    manager.flush()
    manager.stand_in()


def _reopen(paths: tuple[str, ...], arguments: dict[str, Any]) -> Store:
    return Store.open(paths, "r", **arguments)


def loads_of(store: Store) -> BulkLoads:
    """Return the bulk loads of a store, for the code that stages them."""
    return store._loads


def between_transactions(store: Store, look: Callable[[], T]) -> T:
    """Call `look` while no transaction is between its decision and its end, and return its result.

    The store must be open for writing. The log ends that `look` reads are consistent: below them, each transaction has
    ended in all of its partitions or in none. `look` should be quick, since transactions wait for it, and it may be
    called more than once.
    """
    return store._transactions.between_ends(look)


def overview_of(store: Store) -> StoreStats:
    """Return `Store.stats` without the compaction of each log, which takes long if many logs are open."""
    return store_stats.overview(store._metadata, store._logs)


def group_lags_of(store: Store, group: str | None = None) -> Iterator[tuple[str, list[PartitionLag]]]:
    """Yield each group of a store, or the given one, and its lag in every partition of its topics.

    Raises `CorruptRecordError` if the positions cannot be read.
    """
    for name in store._groups.groups() if group is None else (group,):
        positions = store._groups.committed_offsets(name)
        yield name, list(group_lag(positions, store._metadata.partitions, store.log))


def metadata_of(store: Store) -> Metadata:
    """Return the metadata of a store, for the code that copies its topics."""
    return store._metadata


def partition_count(store: Store, topic: str) -> int:
    """Return how many partitions a topic has, including those on a missing disk; 0 if there is no such topic."""
    return store._metadata.partition_count(topic)
