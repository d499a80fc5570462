"""`Store`: directories of logs, laid out as a broker's `log.dirs`: topics, configuration, housekeeping.

The face: what a caller may pass, and administration. What is in the directories is in catalog.py, what is kept going
in keeper.py; appending by topic is in topicwrites.py, reading in topicreads.py. The hardest rule: what is being made
or deleted is written down first (topics.py), so that an opening after a crash can finish it.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self

from kstore import arguments, catalog, cautions, checkpoint, fs, names, openfiles
from kstore.adopt import Adoptions
from kstore.brokerconfig import BrokerConfig
from kstore.catalog import Catalog, Entry, Watch
from kstore.closing import Closing
from kstore.config import TOPIC_NAMES, ConfigSource, LogConfig
from kstore.errors import (
    InvalidTopicError,
    KStoreError,
    LogClosedError,
    StorageError,
    TopicExistsError,
)
from kstore.internaltopics import TRANSACTIONS_TOPIC
from kstore.keeper import Keeper, weakly
from kstore.log import Log
from kstore.producers import Producers
from kstore.settings import check_known
from kstore.topicreads import TopicReads
from kstore.topics import TopicRecord, TopicTable, cleaned_topics, inherited_config, read_topics

logger = logging.getLogger("kstore")

MAX_PARTITIONS = 100_000  # of one topic: more is a slip, and each is a directory

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Store(Producers, TopicReads, Adoptions, Closing):
    """Topics and their partitions in one or more log directories. Open it with `Store.open`.

    Any method may be called from any thread. In a forked child the store is closed; a store that only reads can be
    pickled and opens again where it is unpickled.
    """

    def __init__(self) -> None:
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
        **settings: Any,
    ) -> Self:
        """Open the log directories at `paths`: one, or several as a broker's `log.dirs`.

        Mode "a" makes what is missing, locks the directories, and recovers the logs that no clean shutdown left in
        order, several at a time; `progress(done, total)` is called as it goes. All others are opened when they are
        first needed. Mode "r" takes no lock and never changes a byte; any number of processes may do it while the
        store is written.

        `config` (a `LogConfig`, a mapping with Kafka's names, the path of a `server.properties`) and `settings`
        (`segment_bytes=...`, `log_retention_check_interval_ms=...`) hold for every topic that has no setting of its
        own; they are not stored. `clock` gives milliseconds since the epoch and stands in for the system's. With
        `background=False` retention, flushes, checkpoints and deletions wait for `run_housekeeping`. With a `seed`
        appends without a key go to the same partitions again in a repeated run.

        However many partitions and segments there are, the process keeps at most `max_open_files` of them open for
        later, idle logs and index maps included; by default half of what the system allows it, and 8192 at most. It is
        the whole process's limit: the last one given counts.

        Raises `LogLockedError` while a broker, another store or a lone log has a directory, `ConfigError`, and
        `StorageError` when no directory can be used; one of several that cannot is offline (`stats`).
        """
        if mode not in ("a", "r"):
            raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
        arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
        for name, called in (("clock", clock), ("progress", progress)):
            if called is not None and not callable(called):
                raise TypeError(f"{name} must be callable, not {type(called).__name__}")
        if max_open_files is not None:
            openfiles.set_limit(arguments.integer("max_open_files", max_open_files, openfiles.LEAST))
        store = cls.__new__(cls)
        store.mode = mode
        store.paths = catalog.real_paths(paths)
        store._arguments = {"config": config, **settings}
        store._closed = False
        store._admin = threading.RLock()
        store._configs = {}
        store._cleaned = None
        store._routes = {}
        store._seed = None if seed is None else arguments.whole("seed", seed)
        store._keeper = None
        store._start_groups()
        store._start_transactions()
        store._start_adoptions()
        of_broker = {name: value for name, value in settings.items() if BrokerConfig.knows(name)}
        of_logs = {name: value for name, value in settings.items() if name not in of_broker}
        store._config = LogConfig.resolve(config, of_logs)
        store._broker = BrokerConfig.resolve(config).replace(**of_broker)
        if mode == "r":
            store._open_for_reading()
        else:
            store._config.check_for_writing()
            cordoned = store._broker.cordoned_log_dirs
            store._broker.check_cordoned([each for each in cordoned if os.path.realpath(each) in store.paths])
            cautions.issue((*store._broker.warnings(), *store._config.warnings(store._broker)))
            store._open_for_writing(clock, background, progress)
        fs.register(store)
        return store

    mode: str
    paths: tuple[str, ...]
    _arguments: dict[str, Any]
    _admin: threading.RLock
    _broker: BrokerConfig
    _catalog: Catalog
    _closed: bool
    _cleaned: tuple[frozenset[str] | None] | None
    _config: LogConfig
    _configs: dict[str, LogConfig]
    _keeper: Keeper | None
    _passed_over: list[str]
    _table: TopicTable
    _table_looks: int  # which look of the watch it was read after
    _watch: Watch

    def _open_for_reading(self) -> None:
        for path in self.paths:
            if not fs.exists(path):
                raise fs.MissingFileError(2, "no such log directory; mode 'r' creates nothing", path)
        self._watch = Watch(self.paths)
        self._watch.refresh()
        self._table_looks = self._watch.looks
        self._catalog = self._watch.catalog
        self._passed_over = self._watch.passed_over
        self._table = read_topics(self.paths)

    def _open_for_writing(
        self,
        clock: Callable[[], int] | None,
        background: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        keeper = Keeper(self.paths, self._broker, clock, weakly(self.topic_config), self._config.file_delete_delay_ms)
        try:
            roots = keeper.roots
            self._table = read_topics(roots)
            found = catalog.look(roots)
            self._passed_over = found.passed_over
            for path in found.passed_over:
                logger.warning("%s: passed over, it is no partition", path)
            for entry in found.entries:
                if entry.key in found.doubles:
                    both = " and ".join(found.doubles[entry.key])
                    entry.failure = StorageError(
                        17, f"the partition is in more than one log directory: {both}", entry.path
                    )
            self._catalog = Catalog(found.entries)
            self._keeper = keeper
            for path in found.deleted:
                keeper.doom(path)
            self._finish_interrupted()
            shares = self._find_load(keeper)
            keeper.recover(self._catalog.entries(), progress)
            self._finish_load(keeper, shares)
            self._settle_transactions()
            for name, task, every_ms in (
                ("offsets", self._expire_offsets, self._broker.offsets_retention_check_interval_ms),
                (
                    "transactions",
                    self._abort_timed_out,
                    self._broker.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                ),
                (
                    "transactional ids",
                    self._expire_ids,
                    self._broker.transaction_remove_expired_transaction_cleanup_interval_ms,
                ),
            ):
                keeper.scheduler.every(name, weakly(task), every_ms, every_ms)
            keeper.schedule(self._catalog, background=background)
        except BaseException:
            self._keeper = None
            self._closed = True
            keeper.give_up()
            raise

    def close(self) -> None:
        """Close every log as a broker's clean shutdown does, write the checkpoints, give the locks back. Idempotent.

        Everything appended is on the disk when this returns. Raises `StorageError` when that failed; the store is
        closed all the same, and the next opening recovers.
        """
        with self._adopting, self._admin:  # a load that is decided is brought to its end first
            if self._closed:
                return
            self._closed = True
            if self._keeper is not None:
                self._keeper.close(self._catalog.entries())
            else:
                for entry in self._catalog.entries():
                    if entry.log is not None:
                        entry.log.close()

    def _after_fork(self) -> None:
        """Be closed in a child process; its logs and locks are told themselves."""
        self._closed = True
        self._admin = threading.RLock()
        self._adopting = threading.Lock()
        self._keeper = None
        self._unlock_ids()

    def __repr__(self) -> str:
        state = " closed" if self._closed else f" topics={len(self._catalog.topics)}"
        return f"<kstore.Store{state} mode={self.mode!r} at {', '.join(map(repr, self.paths))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode != "r":
            raise TypeError("a store that is open for writing cannot be pickled: it holds the directories' locks")
        return _reopen, (self.paths, self._arguments)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LogClosedError(f"the store at {', '.join(self.paths)} is closed")

    def _writing(self) -> Keeper:
        self._refuse_if_closed()
        if self._keeper is None:
            raise LogClosedError(
                f"the store is open with mode={self.mode!r} and changes nothing; open it with mode='a'"
            )
        return self._keeper

    # What there is.

    def _current(self) -> Catalog:
        """The catalog; of a store that only reads, as the directories are now."""
        self._refuse_if_closed()
        if self._keeper is None:
            self._watch.refresh()
            looks = self._watch.looks
            if looks != self._table_looks:
                self._table, self._configs = read_topics(self.paths), {}
                self._table_looks = looks
        return self._catalog

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, internal ones included, sorted."""
        return self._current().topics

    def partitions(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions that are here; `UnknownTopicOrPartitionError`."""
        return tuple(self._current().partitions(topic))

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition, which stays the store's: it is opened once, and closed with the store.

        Raises `UnknownTopicOrPartitionError`, and what keeps the log from being opened; the others work.
        """
        entry = self._current().find(topic, partition)
        return self._open_log(entry)

    def _open_log(self, entry: Entry) -> Log:
        if self._keeper is not None:
            return self._keeper.log(entry)
        log = entry.log
        if log is None or log.closed:
            with entry.opening:
                log = entry.log
                if log is None or log.closed:
                    self._refuse_if_closed()
                    log = entry.log = Log.open(entry.path, "r", config=self.topic_config(entry.topic))
        return log

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """A topic's id, as its partitions' `partition.metadata` says; None for one from before there were ids."""
        return self._id_on_disk(self._current().partitions(topic))

    @staticmethod
    def _id_on_disk(partitions: Mapping[int, Entry]) -> uuid.UUID | None:
        for entry in partitions.values():
            metadata = checkpoint.read_partition_metadata(entry.path)
            if metadata is not None:
                return metadata.topic_id
        return None

    # Configuration.

    @property
    def config(self) -> LogConfig:
        """The settings of topics that have none of their own."""
        return self._config

    def topic_config(self, topic: str) -> LogConfig:
        """The settings that hold for a topic: its own over the store's over the defaults (13.11).

        Raises `UnknownTopicOrPartitionError`.
        """
        if self.mode == "r" and not self._closed:
            self._current()  # settings may have been changed by who writes
        configs = self._configs
        config = configs.get(topic)
        if config is None:
            self._catalog.partitions(topic)
            config = configs[topic] = self._config.for_topic(self._overrides(topic))
        return config

    def _overrides(self, topic: str) -> Mapping[str, str]:
        """A topic's own settings, else what a broker's topic brings along (`topics.inherited_config`).

        Those of a former topic of the same name, with another id, do not count.
        """
        if self._cleaned is None:
            self._cleaned = (cleaned_topics(self.paths if self._keeper is None else self._keeper.roots),)
        inherited = inherited_config(topic, self._cleaned[0])
        record = self._table.find(topic)
        if record is not None and (record.config or inherited):
            on_disk = self._id_on_disk(self._catalog.partitions(topic)) if topic in self._catalog else None
            record = self._table.find(topic, on_disk)
        return inherited if record is None else record.config

    def update_topic_config(self, topic: str, config: Mapping[str, object]) -> None:
        """Change settings of one topic, under Kafka's topic names; None takes a setting back to the store's.

        They are stored, and hold from now on where they do in Kafka (SEMANTICS.md 13.13). Raises `ConfigError` and
        `UnknownTopicOrPartitionError`; nothing has changed then.
        """
        keeper = self._writing()
        if not isinstance(config, Mapping):
            raise TypeError(f"config must be a mapping of settings, not {type(config).__name__}")
        with self._admin:
            partitions = self._catalog.partitions(topic)
            merged = {**self._overrides(topic), **config}
            overrides = self._checked({name: value for name, value in merged.items() if value is not None}, config)
            self._caution(topic, overrides, self.topic_config(topic))
            record = self._table.topics.get(topic)
            topic_id = self._id_on_disk(partitions)
            if topic_id is None:
                topic_id = checkpoint.new_topic_id() if record is None else record.topic_id
                for entry in partitions.values():
                    checkpoint.ensure_partition_metadata(entry.path, topic_id)
            count = max(max(partitions) + 1, 0 if record is None else record.partitions)
            self._record(topic, TopicRecord(topic_id, count, overrides, "live"))
            self._configs.pop(topic, None)
            self._apply_config(keeper, partitions.values())

    def update_config(self, config: ConfigSource = None, **settings: Any) -> None:
        """Change the store's settings for this opening; topics keep their own (13.11)."""
        keeper = self._writing()
        with self._admin:
            given = LogConfig.resolve(config, settings)
            changed = self._config.replace(**{name: getattr(given, name) for name in given.explicit})
            changed.check_for_writing()
            for topic in self._table.topics:
                changed.for_topic(self._overrides(topic)).check_for_writing()
            known = self._config.warnings(self._broker)
            cautions.issue(each for each in changed.warnings(self._broker) if each not in known)
            self._config = changed
            self._configs.clear()
            self._apply_config(keeper, self._catalog.entries())

    def _caution(self, topic: str, overrides: Mapping[str, str], before: LogConfig) -> None:
        """Warn of what a topic's settings will bring on: not of what the store's do, nor what was known before."""
        known = {*before.warnings(self._broker), *self._config.warnings(self._broker)}
        found = self._config.for_topic(overrides).warnings(self._broker)
        cautions.issue(f"topic {topic}: {each}" for each in found if each not in known)

    def _apply_config(self, keeper: Keeper, entries: Iterable[Entry]) -> None:
        for entry in entries:
            log = entry.log
            if log is not None and not log.closed:
                config = self.topic_config(entry.topic)
                log.configure(config)
        keeper.hurry_flush(0)

    def _checked(self, overrides: Mapping[str, object], given: Mapping[str, object]) -> dict[str, str]:
        """A topic's settings as text, each known and in range, and all of them in order with the store's."""
        check_known(given, TOPIC_NAMES)
        resolved = self._config.for_topic(overrides)
        resolved.check_for_writing()
        found = resolved.to_kafka()
        return {name: text for name, text in found.items() if name in overrides}

    # Administration.

    def _record(self, topic: str, record: TopicRecord | None) -> None:
        """Write down what is to be of a topic, durably and in every directory that is in service."""
        keeper = self._writing()
        if record is not None and record.state == "live" and not record.config and len(self.paths) == 1:
            record = None  # the directories say the rest
        if record != self._table.topics.get(topic):
            table = self._table.remove(topic) if record is None else self._table.put(topic, record)
            self._table = keeper.on_each_root(table.write)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        topic_id: uuid.UUID | str | None = None,
    ) -> uuid.UUID:
        """Make a topic of so many partitions, with settings of its own under Kafka's topic names; its id.

        Durable when this returns; after a crash in between, the next opening finishes it. Raises `InvalidTopicError`,
        `TopicExistsError` (also for a name that differs from another in `.` and `_` alone, as Kafka does),
        `ConfigError`, `StorageError`; there is no such topic then.
        """
        keeper = self._writing()
        names.check_topic(topic)
        arguments.one_of("config", config, Mapping)
        if topic == names.METADATA_TOPIC:
            raise InvalidTopicError(f"{topic} is the broker's own log of metadata")
        partitions = arguments.integer("partitions", partitions, 1, MAX_PARTITIONS)
        names.partition_name(topic, partitions - 1)
        if topic_id is None:
            topic_id = checkpoint.new_topic_id()
        elif isinstance(topic_id, str):
            topic_id = checkpoint.parse_topic_id(topic_id)
        with self._admin:
            other = self._catalog.colliding(topic)
            if other is not None:
                raise TopicExistsError(
                    f"topic {topic} exists"
                    if other == topic
                    else f"topic {topic} differs from {other} in '.' and '_' alone"
                )
            if keeper.any_offline and topic in self._table.topics:
                raise TopicExistsError(f"topic {topic} exists, or is not wholly deleted, where a directory is offline")
            overrides = self._checked(config or {}, config or {})
            keeper.refuse_files_in_the_way(topic, range(partitions))
            self._caution(topic, overrides, self._config)
            record = TopicRecord(topic_id, partitions, overrides, "creating")
            self._record(topic, record)
            try:
                self._make_partitions(keeper, topic, record)
            except BaseException:
                self._unmake(keeper, topic)
                raise
        return topic_id

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic partitions up to `total`; keys go elsewhere from then on, as in Kafka.

        Raises `ValueError` unless there will be more than there are.
        """
        keeper = self._writing()
        with self._admin:
            there = self._catalog.partitions(topic)
            total = arguments.integer("total", total, 1, MAX_PARTITIONS)
            names.partition_name(topic, total - 1)
            known = self._table.find(topic)
            count = max(max(there) + 1, 0 if known is None else known.partitions)  # some may be where one is offline
            if total <= count:
                raise ValueError(f"topic {topic} has {count} partitions; a total of {total} adds none")
            keeper.refuse_files_in_the_way(topic, range(count, total))
            topic_id = self._id_on_disk(there) or checkpoint.new_topic_id()
            record = TopicRecord(topic_id, total, dict(self._overrides(topic)), "creating")
            self._record(topic, record)
            self._make_partitions(keeper, topic, record, count)

    def _make_partitions(self, keeper: Keeper, topic: str, record: TopicRecord, first: int = 0) -> None:
        """Make the directories that are missing from `first` on, then write down that the topic is there."""
        there = self._catalog.partitions(topic) if topic in self._catalog else {}
        missing = [number for number in range(first, record.partitions) if number not in there]
        for entry in there.values():
            checkpoint.ensure_partition_metadata(entry.path, record.topic_id)
        entries = keeper.make(topic, missing, record.topic_id, self._catalog.entries())
        self._record(topic, replace(record, state="live"))
        self._configs.pop(topic, None)
        self._catalog.add(entries)

    def _unmake(self, keeper: Keeper, topic: str) -> None:
        """Take back what was made of a topic, as far as the disk lets us; the next opening does the rest."""
        try:
            found = [entry for entry in catalog.look(keeper.roots).entries if entry.topic == topic]
            keeper.delete(found)
            self._record(topic, None)
        except KStoreError:
            logger.exception("topic %s could not be taken back", topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its directories are renamed at once, and removed after `file.delete.delay.ms` (6.16).

        Readers of this process get `LogClosedError`. What a crash, or a directory that is offline, leaves of it is
        deleted by the next opening that can; until then the name is not free. `__transaction_state` goes only while no
        transactional id is in use: `InvalidTxnStateError` otherwise.
        """
        keeper = self._writing()
        with self._admin:
            partitions = self._catalog.partitions(topic)
            if topic == TRANSACTIONS_TOPIC:
                self._forget_ids()
            topic_id = self._id_on_disk(partitions) or checkpoint.new_topic_id()
            self._record(topic, TopicRecord(topic_id, max(partitions) + 1, dict(self._overrides(topic)), "deleting"))
            whole = keeper.delete(partitions.values())
            self._catalog.remove(topic)
            self._configs.pop(topic, None)
            self._routes.pop(topic, None)
            self._forget_topic(topic)
            if whole:
                self._record(topic, None)

    def _finish_interrupted(self) -> None:
        """Finish what a crash interrupted: topics that were being made or deleted."""
        keeper = self._writing()
        for topic, record in list(self._table.topics.items()):
            there = self._catalog.partitions(topic) if topic in self._catalog else {}
            on_disk = self._id_on_disk(there) if there else None
            if on_disk is not None and on_disk != record.topic_id:
                continue
            if record.state == "creating" and not keeper.any_offline:
                logger.info("topic %s: making the partitions that a crash left out", topic)
                self._make_partitions(keeper, topic, record)
            elif record.state == "deleting":
                logger.info("topic %s: deleting what a crash left of it", topic)
                whole = keeper.delete(there.values())
                self._catalog.remove(topic)
                if whole:
                    self._record(topic, None)

    # Upkeep.

    def flush(self) -> None:
        """Return once everything appended before the call, in every topic, is on the disk.

        Raises the first `StorageError` there was, after the other logs were flushed.
        """
        self._writing().flush()

    def run_housekeeping(self) -> None:
        """Do what is due by the clock: retention, flushes, checkpoints, deletions."""
        self._writing().scheduler.run_due()

    def stats(self) -> dict[str, Any]:
        """Numbers and troubles for whoever watches the store; text and numbers only, fit for JSON."""
        current = self._current()
        entries = current.entries()
        found: dict[str, Any] = {
            "paths": list(self.paths),
            "mode": self.mode,
            "topics": len(current.topics),
            "partitions": len(entries),
            "open_logs": sum(entry.log is not None and not entry.log.closed for entry in entries),
            "refused": {f"{e.topic}-{e.partition}": str(e.failure) for e in entries if e.failure is not None},
            "passed_over": list(self._passed_over),
        }
        if self._keeper is not None:
            found |= self._keeper.stats()
        return found


def _reopen(paths: tuple[str, ...], arguments: dict[str, Any]) -> Store:
    return Store.open(paths, "r", **arguments)
