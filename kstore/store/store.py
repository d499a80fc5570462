"""`Store`: directories of logs, laid out as a broker's `log.dirs`.

All public methods stand here: they check arguments and call the part that does the work. `Store._assemble` makes the
parts. asyncio is imported when the first asynchronous method is called.
"""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from kstore.base import arguments, times
from kstore.base.closing import Closing
from kstore.base.stats import StoreStats
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.disk import openfiles
from kstore.files import restore_mark
from kstore.log.log import Log
from kstore.log.reading.read_options import Isolation, OnLag
from kstore.store import catalog, compact_store, store_stats
from kstore.store.administration import Administration
from kstore.store.bulk_loads.commit import RENAME_BYTES, BulkLoads
from kstore.store.bulk_loads.load_manifest import Adopted, Manifest, Transaction
from kstore.store.coordinator.consumer import Consumer, ConsumerOptions, OffsetReset, Positions
from kstore.store.coordinator.groups import CommittedOffset, GroupCoordinator, Place
from kstore.store.coordinator.internal_topics import InternalTopics
from kstore.store.coordinator.producer import TIMEOUT_MS, Producer, Producers, TransactionalProducer, TransactionParts
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.leadership import Leadership
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.open_store import Opening, Recovering, open_directories
from kstore.store.read_only_logs import LogReaders, Logs
from kstore.store.table import Table, TopicTables
from kstore.store.topic_record import TopicFile
from kstore.store.topics import _topic_append
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.append_source import ColumnArguments, Records
from kstore.store.topics.route_cache import Routes
from kstore.store.topics.topic_append import AppendOptions, TopicAppender
from kstore.store.topics.topic_reader import ColumnOptions, TopicRead, TopicReader
from kstore.types import AppendInfo, CompactionStats, RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.columns._columns import Columns
    from kstore.config.keywords import LogSettings, StoreSettings
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.log.column_reads import Layout
    from kstore.types import Headers

logger = logging.getLogger("kstore")

T = TypeVar("T")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Store(Closing):
    """Topics and their partitions in one or more log directories. Open it with `Store.open`.

    Any method may be called from any thread. In a forked child the store is closed; a store that only reads can be
    pickled and opens again where it is unpickled.
    """

    mode: str
    """How the store was opened: "a" (create or append) or "r" (read only)."""

    paths: tuple[str, ...]
    """The log directories, as absolute paths without links."""

    _arguments: dict[str, Any]
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
        **settings: Unpack[StoreSettings],
    ) -> Self:
        """Open the log directories at `paths`: one, or several as a broker's `log.dirs`.

        Mode "a" makes what is missing, locks the directories, and recovers the logs that no clean shutdown left in
        order, several at a time; `progress(done, total)` is called as it goes. All others are opened when they are
        first needed. Mode "r" takes no lock and never changes a byte; any number of processes may do it while the
        store is written.

        `config` (a `LogConfig`, a mapping with Kafka's names, the path of a `server.properties`) and `settings`
        (`segment_bytes=...`, `log_retention_check_interval_ms=...`) hold for every topic that has no setting of its
        own; they are not stored. `clock` gives milliseconds since the epoch and stands in for the system's. With
        `background=False` retention, compaction, flushes, checkpoints and deletions wait for `run_housekeeping`. With a
        `seed` appends without a key go to the same partitions again in a repeated run.

        However many partitions and segments there are, the process keeps at most `max_open_files` of them open for
        later, idle logs and index maps included; by default half of what the system allows it, and 8192 at most. It is
        the whole process's limit: the last one given counts.

        `staging_dir` is where Spark's tasks were told to stage, if that is not beside the directories. A bulk load
        that a crash left undone is finished out of there, and out of no other directory that its record may name.

        Raises `LogLockedError` while a broker, another store or a lone log has a directory, `ConfigError` (also for the
        directory of a partition, which is no log directory), and `StorageError` when no directory can be used (one of
        several that cannot is offline, see `stats`), and where a restore is not finished.
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
        store.paths = catalog.real_paths(paths)
        for path in store.paths:
            catalog.refuse_partition(path)
            restore_mark.refuse_unfinished(path)
        store._arguments = {"config": config, **settings}
        seed = None if seed is None else arguments.whole("seed", seed)
        opening = Opening(config, settings, clock, background, progress, seed, staging_dir)
        open_directories(store.paths, mode, opening, store._assemble)
        return store

    def _assemble(self, metadata: Metadata, logs: LogManager | LogReaders, opening: Opening) -> Recovering:
        """Make the parts of the store, each of those that it needs."""
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
        """Close every log as a broker's clean shutdown does, write the checkpoints, give the locks back. Idempotent.

        Everything appended is on the disk when this returns. Raises `StorageError` when that failed; the store is
        closed all the same, and the next opening recovers. One that an interrupt has ended may be called again.
        """
        metadata, logs = self._metadata, self._logs
        if isinstance(logs, LogManager) and not metadata.closed:
            logs.stop()  # before any lock is taken and the store is closed: a task that runs may need both
        with self._loads.loading, metadata.changing:  # a load that is decided is finished first
            if not metadata.closed:
                self._topic_file.write_waiting()
                metadata.close()
            logs.close()  # also of a close that an interrupt has ended: it closes what is still open

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
        return _reopen, (self.paths, self._arguments)

    # What there is.

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, internal ones included, sorted."""
        return self._metadata.current().topics

    def partitions(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions that are here; `UnknownTopicOrPartitionError`."""
        return tuple(self._metadata.current().partitions(topic))

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition, which stays the store's: it is opened once, and closed with the store.

        Raises `UnknownTopicOrPartitionError`, and what keeps the log from being opened; the others work.
        """
        return self._reader.log(topic, partition)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """A topic's id, as its partitions' `partition.metadata` says; None for one from before there were ids."""
        self._metadata.current().partitions(topic)
        return self._metadata.topic_id(topic)

    # Configuration.

    @property
    def config(self) -> LogConfig:
        """The settings of topics that have none of their own."""
        return self._metadata.config

    def topic_config(self, topic: str) -> LogConfig:
        """The settings that hold for a topic: its own over the store's over the defaults (SEMANTICS 13.11).

        Raises `UnknownTopicOrPartitionError`.
        """
        return self._metadata.config_of(topic)

    def update_topic_config(self, topic: str, config: Mapping[str, object]) -> None:
        """Change settings of one topic, under Kafka's topic names; None takes a setting back to the store's.

        They are stored, and hold from now on where they do in Kafka (SEMANTICS 13.13). Raises `ConfigError` and
        `UnknownTopicOrPartitionError`; nothing has changed then.
        """
        self._administration.update_topic_config(topic, config)

    def update_config(self, config: ConfigSource = None, **settings: Unpack[LogSettings]) -> None:
        """Change the store's settings for this opening; topics keep their own (SEMANTICS 13.11)."""
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
        """Make a topic of so many partitions, with settings of its own; its id.

        Each partition gets a directory with `partition.metadata`; the files of its log come with its first use.

        `config` has settings under Kafka's topic names (`{"segment.bytes": 16384}`), `settings` has them as keywords
        (`segment_bytes=16384`); a keyword wins.

        With `exist_ok` a topic that is there already is left as it is, if it has so many partitions, if the settings
        that are given are those in force for it, and if it has the `topic_id` that is given (else
        `InconsistentTopicIdError`). `TopicExistsError` says what differs.

        Durable when this returns; after a crash in between, the next opening finishes it. Raises `InvalidTopicError`,
        `TopicExistsError` (also for a name that differs from another in `.` and `_` alone, as Kafka does),
        `ConfigError`, `StorageError`; there is no such topic then.
        """
        refuse_unknown(Store.create_topic, settings, LogConfig)
        return self._administration.create_topic(topic, partitions, config, topic_id, settings, exist_ok=exist_ok)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic partitions up to `total`; keys go elsewhere from then on, as in Kafka.

        Raises `ValueError` unless there will be more than there are.
        """
        self._administration.add_partitions(topic, total)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its directories are renamed at once, and removed after `file.delete.delay.ms`
        (SEMANTICS 6.16).

        Readers of this process get `LogClosedError`. What a crash, or a directory that is offline, leaves of it is
        deleted by the next opening that can; until then the name is not free. `__transaction_state` goes only while no
        transactional id is in use: `InvalidTxnStateError` otherwise.

        On a full disk the directories are removed at once. Where there is not even room to write down what is being
        deleted, a crash of the machine meanwhile may leave some of the topic's partitions.
        """
        self._administration.delete_topic(topic)

    # Appending.

    def partition_for(self, topic: str, key: ReadableBuffer) -> int:
        """The number of the partition that `append` sends a key to: Kafka's default partitioner (murmur2).

        It changes when the topic gets more partitions. A `TypeError` for no key.
        Raises `UnknownTopicOrPartitionError`. Works in mode "r", too.
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
        """Append one record as `append` does; where it went, and its timestamp there.

        Where it is written, what `sync=True` waits for, and what a cancelled call has appended is as in
        `Log.aappend`. Raises what `append` raises, and `RuntimeError` without an asyncio event loop.
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
        """Append an iterable of what `Log.append_many` takes, or of `ConsumerRecord`s; what each partition got.

        Records go where `append` would send them, but those without a key stick to a partition for `batch_bytes`, and
        with a `seed` they go there again in a repeated call. Each partition's batches are filled up to `batch_bytes`
        (by default between 64 KiB and 1 MiB, so that the batches of all partitions take 8 MiB); they are closed early
        where all that are open would take more than 64 MiB. `compression` and `sync` are as in `Log.append_many`.

        When a record is refused, or the iterable raises, the batches finished before it stay. Every exception that
        leaves here then says which, in `appended`, in the form of the result, and, if it is not one of kstore's, in a
        note. Raises what `Log.append_many` raises, a record's number being that in the iterable, and
        `UnknownTopicOrPartitionError`. Appends of other threads may come between any two batches.
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
        """Append a record for each row of `values`; what each partition got.

        Columns are what `Log.append_columns` takes, `threads` what it does with them; rows go where `append_many`
        sends the same records, in the same batches. When a row is refused, the batches finished before it stay, and
        the exception says which, as in `append_many`. Raises what `Log.append_columns` raises, and
        `UnknownTopicOrPartitionError`. Appends of other threads may come between any two batches.
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
        """Make a producer: one that numbers its batches, or, with a `transactional_id`, one that writes transactions.

        For an id another producer may have: it is fenced, and what it left open is aborted. A transaction that stays
        open for `transaction_timeout_ms` is aborted by the housekeeping, and its producer fenced. Raises `ValueError`
        for an empty id or a timeout above `transaction.max.timeout.ms`.
        """
        return self._producers.producer(transactional_id, transaction_timeout_ms)

    # Reading.

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[ConsumerRecord]:
        """Iterate over the records of a topic, or of some of its `partitions`.

        Each partition is read from its offset in `offsets`, else from its first record at or after `start_timestamp`,
        else from its log start. `merge="partition"` reads one after the other, in the order of their numbers, each up
        to where it ends when its turn comes. `merge="timestamp"` takes all at once, up to where they end now, and
        always gives the record with the least timestamp among the partitions' next ones, of the lower partition where
        they are equal: sorted by time where each partition is, and never out of a partition's own order. Of each
        partition one record is then read ahead, which a deletion or truncation no longer takes back.

        `follow` goes on with what comes, and ends after `timeout` seconds without a new record. It goes by looks: all
        that is there at one look is given, in the order above, before anything that comes later, so that a record
        with a lower timestamp may follow; without `partitions` new ones are read from their start, which is noticed
        within a tenth of a second, as is the deletion of the topic.

        `durable` and `on_lag` are as in `Log.read`. Raises `UnknownTopicOrPartitionError`, also when the topic is
        deleted meanwhile, and what `Log.read` raises: at once for what is wrong with the arguments or the offsets
        given, from the iterator for the rest. One iterator belongs to one thread at a time.
        """
        wanted = TopicRead(partitions, offsets, start_timestamp, merge, isolation, follow, timeout, durable, on_lag)
        return self._reader.read(topic, wanted)

    def aread(
        self,
        topics: str | Iterable[str],
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Stream[ConsumerRecord]:
        """Iterate over the records of a topic, or of several, with `async for`; the arguments are those of `read`.

        Several topics are read one after the other; with `follow` what comes to any of them is given as it comes.
        `partitions` and `offsets` are for a single topic. How files are read, how a follower is woken, and what a
        cancelled `anext` means is as in `Log.aread`; new partitions are noticed within a quarter of a second. Raises as
        `read` does. One iterator belongs to one task at a time.
        """
        from kstore.store.topics.async_topic_source import stream_of

        wanted = TopicRead(partitions, offsets, start_timestamp, merge, isolation, follow, timeout, durable, on_lag)
        return stream_of(self._reader, topics, wanted)

    def read_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Iterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns: `(partition, chunk)`, one partition after the other.

        Where each partition starts is as in `read`, up to where it ends when its turn comes; what a chunk is, and the
        other arguments, are as in `Log.iter_columns`. Raises as `read` does: at once for what is wrong with the
        arguments or the offsets given, from the iterator for the rest. One iterator belongs to one thread at a time.
        """
        wanted = TopicRead(partitions, offsets, start_timestamp)
        options = ColumnOptions(max_records, max_bytes, columns, layout, isolation, durable, threads)
        return self._reader.read_columns(topic, wanted, options)

    def aread_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> AsyncIterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns with `async for`: `(partition, chunk)`.

        The arguments and the chunks are those of `read_columns`. Each chunk is made by a thread of the loop's executor,
        when it is asked for and not before, but for those that other `threads` read ahead. A cancelled `anext` loses
        none: the next one gives it. Raises as `read_columns` does. One iterator belongs to one task at a time.
        """
        from kstore.log.async_stream import InThread, Stream

        wanted = TopicRead(partitions, offsets, start_timestamp)
        options = ColumnOptions(max_records, max_bytes, columns, layout, isolation, durable, threads)
        return Stream([InThread(self._reader.read_columns(topic, wanted, options))])

    def table(self, topic: str, *, as_of: datetime | Mapping[int, int] | None = None) -> Table:
        """Read the newest record of each key of a topic, with nothing rewritten: its partitions' `Log.latest` as one.

        Every partition is a table of its own, as compaction cleans each by itself: a tombstone deletes its key in its
        own partition alone. A key lives in one partition as a rule. Where it lives in several, as after a change of
        the partitioner or of the number of partitions, the record with the later timestamp is given, that of the
        higher partition where they are equal.

        `as_of` is a time (a `datetime` with a time zone), or an offset for each of some partitions
        (`{0: 1000, 1: 2000}`), the others being read to their ends; what these mean is said in `Log.latest`. The
        partitions are read side by side, each as it is when its turn comes. Raises `UnknownTopicOrPartitionError` and
        what `Log.latest` raises.
        """
        return self._tables.read(topic, as_of)

    # Groups.

    def commit_offsets(
        self, group: str, offsets: Mapping[Place, int], metadata: str = "", *, sync: bool = False
    ) -> None:
        """Write down where a group goes on: for each `(topic, partition)` the offset of the next record to read.

        All of a call is one batch of `__consumer_offsets`, as a broker writes it (several beyond half of
        `max.message.bytes`); with `sync=True` it is on the disk when this returns. The topic need not be in this
        store. Raises `ValueError` for a group without a name, a negative offset, or `metadata` longer than
        `offset.metadata.max.bytes`, and what `Log.append_batch` raises.
        """
        self._groups.commit(Positions(group, offsets, metadata), sync=sync)

    def committed_offsets(self, group: str) -> dict[Place, CommittedOffset]:
        """Where a group goes on, by `(topic, partition)`: numbers, each with its metadata; empty for an unknown group.

        What a transaction commits is there from its end on. A position in a topic that was made anew since counts as
        none. Raises `CorruptRecordError` for records that are no group's.
        """
        return self._groups.committed_offsets(group)

    def delete_offsets(self, group: str, partitions: Iterable[Place] | None = None) -> None:
        """Forget a group's positions, or those of some `(topic, partition)`s; with the last one goes the group.

        What open transactions have committed so far is forgotten, too (Kafka's OffsetMetadataManager).
        """
        self._groups.delete_offsets(group, partitions)

    def groups(self) -> tuple[str, ...]:
        """The names of the groups that have committed positions, sorted."""
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
        """Read topics on behalf of a group: from its committed positions on, all partitions.

        The positions are those of this store, or, with `positions`, of another one, into which `commit` writes them:
        so may a process read a store that another one writes (mode "r"), and commit to a store of its own (mode "a").
        A store in mode "r" keeps no positions: `ReadOnlyError`.

        Where nothing is committed, or what was is no longer in the log, `auto_offset_reset` says where to begin:
        "earliest", "latest", or "none" for an `OffsetOutOfRangeError`. `merge` and `isolation` are as in `read`, for
        one topic after the other; `follow` goes on with what comes, and ends after `timeout` seconds without a new
        record. Raises `UnknownTopicOrPartitionError`, also from the iterator when the topic is deleted meanwhile, and
        `OffsetOutOfRangeError` when records that were read are cut: then `seek` or `seek_to_committed` says where to
        go on.
        """
        options = ConsumerOptions(group, topics, auto_offset_reset, isolation, merge, follow, timeout)
        if positions is None:
            return self._groups.consumer(options)
        arguments.one_of("positions", positions, Store)
        return positions._groups.consumer(options, self._reader)

    # Bulk loads.

    def adopt(
        self,
        manifest: Manifest,
        *,
        txn: Transaction | None = None,
        rename_bytes: int = RENAME_BYTES,
        staging_dir: str | os.PathLike[str] | None = None,
    ) -> Adopted:
        """Make what tasks have staged part of the logs, all of it and once; where it went.

        Records get offsets in the order of the manifest's rows. With a `txn` (application, version) a load is left out
        unless its version is above the last one of that application; without, this same manifest counts once. Durable
        when this returns, and decided before the first log changes: after a crash the next opening finishes it. Topics
        that are missing are made, with the partitions that the manifest says. Appends of others wait meanwhile.

        The manifest may name directories in a staging directory of this store alone: `<root>.kstore-staging`, or
        `staging_dir`, from now on, where tasks were told to stage there. Any other is a `ConfigError`, and a link on
        the way is a `StorageError`; nothing is opened or removed then.

        Raises `ValueError` for a manifest that does not fit the topics, `StorageError` where staged files are missing
        or the disk fails; unless its message says that the load is decided, nothing has happened. An interrupt is
        raised when the load is either done or given up; the same call again says which.
        """
        return self._loads.adopt(manifest, txn=txn, rename_bytes=rename_bytes, staging_dir=staging_dir)

    # Copies.

    def become_leader(self) -> dict[tuple[str, int], int]:
        """Make a follower a leader, which clients may change; the new leader epoch of each partition, by topic and
        number.

        A partition's epoch is one above the newest that it has had, 1 where it had none. It begins at the log end, and
        batches appended from now on carry it (SEMANTICS 10.24), also after the store is opened again. Transactions that
        were prepared are completed; those that are open are aborted when they time out. A group's position above the
        log end is set to it: the records that it had read are lost here. In a store that is a leader each partition
        begins a new epoch, by which its followers tell its records from those of another leader.

        The epochs are durable when this returns. After a crash the store is a follower, or a leader with the new
        epochs; call it again in either case. Raises `StorageError`, also while a directory is offline or a partition
        cannot be opened; a follower stays one then.
        """
        return self._leadership.become_leader()

    # Housekeeping.

    def flush(self) -> None:
        """Return once everything appended before the call, in every topic, is on the disk.

        Raises the first `StorageError` there was, after the other logs were flushed.
        """
        _flush(self._logs)

    async def aflush(self) -> None:
        """Return once everything appended before the call, in every topic, is on the disk, as `flush` does.

        A thread of the loop's executor does it, once for all tasks that wait at the same time. A cancelled call waits
        no longer, and changes nothing. Raises what `flush` raises.
        """
        flushers = self._flushers
        if flushers is None:
            from kstore.log.async_flush import Flushers

            flushers = self._flushers = Flushers(partial(_flush, self._logs))
        await flushers.flushed()

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: retention, compaction, flushes, checkpoints, deletions."""
        self._logs.writing().run_due()

    def compact(
        self, topic: str | None = None, *, roll: bool = False, dry_run: bool = False
    ) -> dict[tuple[str, int], CompactionStats]:
        """Compact the partitions of a topic, or of every topic whose `cleanup.policy` has `compact`, whatever their
        dirty ratios and lags; what was done to each, by topic and number.

        Each is compacted as by `Log.compact`, one after the other, with the memory of one cleaner thread by the store's
        settings and without a throttle. A dry run writes nothing, and works in mode "r", too. Raises what `Log.compact`
        raises, once the others are done; `PolicyViolationError` and `UnknownTopicOrPartitionError` for the topic.
        """
        return compact_store.compact(self._metadata, self._logs, topic, roll=roll, dry_run=dry_run)

    def stats(self) -> StoreStats:
        """Numbers and troubles of the store, for monitoring; text and numbers only, fit for JSON. docs/metrics.md has
        each key.

        `compaction` has the logs that are open and compacted: how large and how dirty they are, when they were last
        compacted, and why the last compaction failed.

        `role` is "follower" or "leader", and `source` has the directories of a follower's leader.

        `full` has the directories in which the last write found no room, `offline` those that have failed, `refused`
        the partitions that cannot be written, `failures` what housekeeping could not do; each with the reason.
        `zstd_of_columns` says which library decompresses zstd.
        """
        found = overview_of(self)
        found["compaction"] = store_stats.compaction(self._metadata)
        return found


def _flush(logs: Logs) -> None:
    manager = logs.writing()
    manager.flush()
    manager.stand_in()


def _reopen(paths: tuple[str, ...], arguments: dict[str, Any]) -> Store:
    return Store.open(paths, "r", **arguments)


def loads_of(store: Store) -> BulkLoads:
    """The bulk loads of a store, for the code that stages them."""
    return store._loads


def between_transactions(store: Store, look: Callable[[], T]) -> T:
    """Call `look` while no transaction is half ended, in a store that is open for writing; what it gave.

    What it looks at, such as the ends of all logs, is as if it had been seen at one moment. It should be quick, since
    transactions wait for it, and may be called more than once.
    """
    return store._transactions.between_ends(look)


def overview_of(store: Store) -> StoreStats:
    """What `Store.stats` says, without the compaction of each log: it costs little however many logs there are."""
    return store_stats.overview(store._metadata, store._logs)


def metadata_of(store: Store) -> Metadata:
    """What a store knows of its topics, for the code that copies them."""
    return store._metadata


def partition_count(store: Store, topic: str) -> int:
    """How many partitions a topic has, those included that are on a disk that is missing; 0 without a topic."""
    return store._metadata.partition_count(topic)
