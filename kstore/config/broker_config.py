"""`BrokerConfig`: the settings of a store that no topic overrides, one row each (SEMANTICS 13.15).

docs/configuration.md comes from the rows.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from kstore.base.numbers import LONG_MAX
from kstore.config import cautions
from kstore.config.settings import Settings, read_properties, row, setting, table, text
from kstore.errors import ConfigError

if TYPE_CHECKING:
    from kstore.config.keywords import BrokerSettings


@table
@dataclass(frozen=True, slots=True, init=False, repr=False)
class BrokerConfig(Settings):
    """The settings of a store under Kafka's broker names, with underscores instead of dots.

    Any value may also be text as in a properties file. `explicit` contains the names of the settings that were given.
    Immutable; thread-safe.

    Args:
        **settings: The values that differ from the defaults.

    Raises:
        ConfigError: If a name is unknown, a value does not parse or is out of range, or values do not fit together.

    Example:
        >>> config = kstore.BrokerConfig(log_retention_check_interval_ms="60000")
        >>> config.log_retention_check_interval_ms, sorted(config.explicit)
        (60000, ['log_retention_check_interval_ms'])
    """

    log_dir: tuple[str, ...] = row(
        setting("log.dir", "list", ("/tmp/kafka-logs",)),
        doc="A broker's log directory if `log.dirs` is not set; like `log.dirs`, it has no effect on a store.",
        danger="A temporary directory is emptied by some systems at each start.",
    )
    log_dirs: tuple[str, ...] | None = row(
        setting("log.dirs", "list", None),
        doc="A broker's log directories. A store gets its directories when it is opened. `cordoned.log.dirs` must be "
        "among both.",
        danger="Each holds the only copy of its partitions.",
    )
    cordoned_log_dirs: tuple[str, ...] = row(
        setting("cordoned.log.dirs", "list", ()),
        doc="Directories of the store, or `*` for all, that get no new partitions.",
        danger="If all are cordoned, new partitions go to the first.",
    )
    log_retention_check_interval_ms: int = row(
        setting("log.retention.check.interval.ms", "long", 300_000, "milliseconds", minimum=1),
        doc="How often retention checks every log.",
        danger="Data may be kept longer than its retention by up to this.",
    )
    log_flush_scheduler_interval_ms: int = row(
        setting("log.flush.scheduler.interval.ms", "long", LONG_MAX, "milliseconds"),
        doc="The default of `flush.ms`; also how often Kafka checks which logs are due by `flush.ms`.",
        danger="While this is unlimited, `flush.ms` has no lasting effect in Kafka; kstore checks as `flush.ms` needs.",
    )
    log_flush_offset_checkpoint_interval_ms: int = row(
        setting("log.flush.offset.checkpoint.interval.ms", "int", 60_000, "milliseconds", minimum=0),
        doc="How often recovery points are written to their checkpoint file.",
        danger="Large values make recovery after a crash read more.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = row(
        setting("log.flush.start.offset.checkpoint.interval.ms", "int", 60_000, "milliseconds", minimum=0),
        doc="How often log start offsets are written to their checkpoint file.",
        danger="None here: a new log start offset is on the disk before the call returns.",
    )
    log_initial_task_delay_ms: int = row(
        setting("log.initial.task.delay.ms", "long", 30_000, "milliseconds", minimum=0),
        doc="The time from the opening of a store to its first housekeeping.",
        danger="Small values add housekeeping to the work of opening.",
    )
    num_recovery_threads_per_data_dir: int = row(
        setting("num.recovery.threads.per.data.dir", "int", 2, "threads", minimum=1),
        doc="The most threads that open, recover and close the logs of one directory; small logs need only one.",
        danger="More threads than the disk can serve wait for each other.",
    )
    log_dir_failure_timeout_ms: int = row(
        setting(
            "log.dir.failure.timeout.ms",
            "long",
            30_000,
            "milliseconds",
            minimum=1,
            idle="there is no controller that waits for a directory",
        ),
        doc="Kept for brokers that share the configuration.",
        danger="None here.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = row(
        setting("replica.high.watermark.checkpoint.interval.ms", "long", 5_000, "milliseconds"),
        doc="How often high watermarks are written to their checkpoint file.",
        danger="None here: the high watermark is the log's end.",
    )
    log_cleaner_enable: bool = row(
        setting("log.cleaner.enable", "bool", True),
        doc="Whether housekeeping compacts the logs whose `cleanup.policy` has `compact`. Deprecated since Kafka 4.1.",
        danger="Without it, logs with the policy `compact` grow forever.",
    )
    log_cleaner_threads: int = row(
        setting("log.cleaner.threads", "int", 1, "threads", minimum=0),
        doc="How many threads compact, each one log at a time.",
        danger="0 means that nothing is compacted.",
    )
    log_cleaner_dedupe_buffer_size: int = row(
        setting("log.cleaner.dedupe.buffer.size", "long", 128 << 20, "bytes"),
        doc="Memory for the keys of one round of all cleaner threads, 24 bytes a key; allocated as keys are read.",
        danger="A small buffer needs more rounds over a log; each thread needs more than 1048576.",
    )
    log_cleaner_io_buffer_size: int = row(
        setting("log.cleaner.io.buffer.size", "int", 512 << 10, "bytes", minimum=0),
        doc="Memory for reading and writing of all cleaner threads; it grows to the largest batch.",
        danger="Small buffers mean many small reads.",
    )
    log_cleaner_io_buffer_load_factor: float = row(
        setting("log.cleaner.io.buffer.load.factor", "double", 0.9),
        doc="The share of `log.cleaner.dedupe.buffer.size` that the keys of a round may fill.",
        danger="A small share needs more rounds over a log.",
    )
    log_cleaner_io_max_bytes_per_second: float = row(
        setting("log.cleaner.io.max.bytes.per.second", "double", sys.float_info.max, "bytes per second"),
        doc="Limits what compaction by housekeeping reads and writes, in all threads together.",
        danger="With a limit below the rate of appends, compaction falls behind.",
    )
    log_cleaner_backoff_ms: int = row(
        setting("log.cleaner.backoff.ms", "long", 15_000, "milliseconds", minimum=0),
        doc="How long a cleaner waits after it found nothing to do.",
        danger="0 checks again without a pause.",
    )
    producer_id_expiration_ms: int = row(
        setting("producer.id.expiration.ms", "int", 86_400_000, "milliseconds", minimum=1),
        doc="How long a producer's state is kept after its last batch.",
        danger="A producer that pauses for longer is no longer protected from duplicates.",
    )
    producer_id_expiration_check_interval_ms: int = row(
        setting("producer.id.expiration.check.interval.ms", "int", 600_000, "milliseconds", minimum=1),
        doc="How often producers' states are checked for expiry.",
        danger="Producers' states may be kept longer by up to this.",
    )
    transaction_partition_verification_enable: bool = row(
        setting(
            "transaction.partition.verification.enable",
            "bool",
            True,
            idle="an append here comes from the process of its coordinator",
        ),
        doc="Kept for brokers that share the configuration.",
        danger="None here.",
    )
    transaction_max_timeout_ms: int = row(
        setting("transaction.max.timeout.ms", "int", 900_000, "milliseconds"),
        doc="The longest timeout that a transaction may ask for.",
        danger="An open transaction holds back readers with `read_committed` for that long.",
    )
    offsets_topic_num_partitions: int = row(
        setting("offsets.topic.num.partitions", "int", 50, "partitions", minimum=1),
        doc="How many partitions `__consumer_offsets` has when it is created.",
        danger="Decides in which partition a group's positions are looked up, unless the topic exists already.",
    )
    offsets_topic_segment_bytes: int = row(
        setting("offsets.topic.segment.bytes", "int", 100 << 20, "bytes", minimum=1),
        doc="`segment.bytes` of `__consumer_offsets` when it is created. A store uses 256 KiB if this is not set.",
        danger="Only closed segments are compacted.",
    )
    offsets_retention_minutes: int = row(
        setting("offsets.retention.minutes", "int", 7 * 24 * 60, "minutes", minimum=1),
        doc="How long a group's positions are kept after its last commit; they do not expire while a consumer is open.",
        danger="A group that pauses for longer while the store is in use starts again where a new group does.",
    )
    offsets_retention_check_interval_ms: int = row(
        setting("offsets.retention.check.interval.ms", "long", 600_000, "milliseconds", minimum=1),
        doc="How often committed positions are checked for expiry.",
        danger="They may be kept longer by up to this.",
    )
    offset_metadata_max_bytes: int = row(
        setting("offset.metadata.max.bytes", "int", 4096, "characters"),
        doc="How much text may be kept with a committed position.",
        danger="All positions are held in memory, with their texts.",
    )
    transaction_state_log_num_partitions: int = row(
        setting("transaction.state.log.num.partitions", "int", 50, "partitions", minimum=1),
        doc="How many partitions `__transaction_state` has when it is created.",
        danger="Decides in which partition a transactional id is looked up, unless the topic exists already.",
    )
    transaction_state_log_segment_bytes: int = row(
        setting("transaction.state.log.segment.bytes", "int", 100 << 20, "bytes", minimum=1),
        doc="`segment.bytes` of `__transaction_state` when it is created. A store uses 256 KiB if this is not set.",
        danger="Only closed segments are compacted.",
    )
    transactional_id_expiration_ms: int = row(
        setting("transactional.id.expiration.ms", "int", 7 * 24 * 3_600_000, "milliseconds", minimum=1),
        doc="How long a transactional id is kept after its last transaction, if none is open.",
        danger="A producer that returns later gets a new producer id; none of its records is lost.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = row(
        setting(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000, "milliseconds", minimum=1
        ),
        doc="How often open transactions are compared with their timeouts.",
        danger="An abandoned transaction holds back readers with `read_committed` for up to this longer.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = row(
        setting(
            "transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000, "milliseconds", minimum=1
        ),
        doc="How often transactional ids are checked for expiry.",
        danger="They may be kept longer by up to this.",
    )
    explicit: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The names of the settings that were given, as Python writes them."""

    def __init__(self, **settings: Unpack[BrokerSettings]) -> None:
        values = self._defaults() | {name: self._find(name, value).parse(value) for name, value in settings.items()}
        self._fill(values, settings)

    @classmethod
    def resolve(cls, config: object = None) -> BrokerConfig:
        """Read the store's settings from the `config` of `Store.open(..., config=config)`.

        Other names are ignored: `LogConfig.resolve`, called with the same `config`, raises for the unknown ones.

        Args:
            config: A mapping of names to values, the path of a `server.properties`, or anything else for the defaults.

        Returns:
            The configuration.

        Raises:
            ConfigError: If a value is bad, or values do not fit together.
            StorageError: If the file cannot be read.

        Example:
            >>> kstore.BrokerConfig.resolve({"log.cleaner.threads": "2", "segment.bytes": "1048576"}).to_kafka()
            {'log.cleaner.threads': '2'}
        """
        if isinstance(config, Mapping):
            return cls._from_names(config, cls._defaults())
        if isinstance(config, str | os.PathLike):
            properties = {name: value for name, (value, _) in read_properties(config).items()}
            return cls._from_names(properties, cls._defaults())
        return cls()

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories in force: `log.dirs`, else `log.dir` (SEMANTICS 13.1)."""
        return self.log_dir if self.log_dirs is None else self.log_dirs

    def check_cordoned(self, directories: Collection[str]) -> None:
        """Check that all `cordoned.log.dirs` are among these directories, as a broker demands of its `log.dirs`.

        Args:
            directories: The directories of the store.

        Raises:
            ConfigError: If one is not among them.

        Example:
            >>> cordoned = kstore.BrokerConfig(cordoned_log_dirs="data-2")
            >>> cordoned.check_cordoned(["data-1", "data-2"])
            >>> cordoned.check_cordoned(["data-1"])
            Traceback (most recent call last):
            ...
            kstore.errors.ConfigError: ...
        """
        cordoned = self.cordoned_log_dirs
        wrong = [] if cordoned == ("*",) else [path for path in cordoned if path not in directories]
        if wrong:
            raise ConfigError(f"cordoned.log.dirs = {text(cordoned)!r}: {wrong[0]!r} is not one of the log directories")

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about surprising effects of these settings.

        Returns:
            Sentences that give the numbers.

        Example:
            >>> for warning in kstore.BrokerConfig(log_cleaner_enable=False).warnings():
            ...     print(warning)
            log.cleaner.enable = false: nothing is compacted, and Kafka 5 will not know it
        """
        return tuple(cautions.of_store(self))

    def _check_together(self) -> None:
        if not self.directories:
            raise ConfigError("log.dirs is empty: at least one directory is needed")
        if self.explicit & {"log_dir", "log_dirs"}:
            self.check_cordoned(self.directories)
        share = self.log_cleaner_dedupe_buffer_size // max(self.log_cleaner_threads, 1)
        if share <= 1 << 20:
            raise ConfigError(
                f"log.cleaner.dedupe.buffer.size = {self.log_cleaner_dedupe_buffer_size} gives each of the "
                f"{self.log_cleaner_threads} threads {share} bytes: more than {1 << 20} is allowed"
            )
