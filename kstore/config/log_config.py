"""`LogConfig`: the settings of one log, one row each (SEMANTICS 13.14); docs/configuration.md comes from the rows.

Invariant: `retention_ms` is -1 unless given; only `from_kafka` of a mapping uses Kafka's default of seven days.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from kstore.base.arguments import nearest
from kstore.base.numbers import LONG_MAX
from kstore.config import cautions
from kstore.config.broker_config import BrokerConfig
from kstore.config.settings import (
    HOURS,
    MINUTES,
    BrokerName,
    Settings,
    check_known,
    read_properties,
    row,
    setting,
    shortened,
    table,
    text,
)
from kstore.errors import ConfigError

if TYPE_CHECKING:
    from kstore.config.keywords import LogSettings

# When a change of a setting takes effect in an open log (SEMANTICS 13.13).
NEXT_APPEND = "the next append"
NEXT_SEGMENT = "the next segment"
NEXT_RETENTION = "the next pass of retention"
NEXT_COMPACTION = "the next pass of compaction"

_NOT_TIERED = "no segment is copied to a remote storage"

KAFKA_RETENTION_MS = 7 * 24 * HOURS
_RETENTION: Any = {"minimum": 1, "also": (-1,), "negative_is": -1}  # range of the broker's names (SEMANTICS 6.7, 13.16)


@table
@dataclass(frozen=True, slots=True, init=False, repr=False)
class LogConfig(Settings):
    """The settings of one log under Kafka's topic names, with underscores instead of dots.

    `LogConfig(segment_bytes=1 << 20)` starts from kstore's defaults; `from_kafka` of a mapping starts from Kafka's. Any
    value may also be text as in a properties file. `explicit` contains the names of the settings that were given.
    Immutable; thread-safe.

    Args:
        **settings: The values that differ from the defaults.

    Raises:
        ConfigError: If a name is unknown, a value does not parse or is out of range, or values do not fit together.

    Example:
        >>> config = kstore.LogConfig(segment_bytes="1048576", cleanup_policy=("compact", "delete"))
        >>> config.segment_bytes, config.compacts, sorted(config.explicit)
        (1048576, True, ['cleanup_policy', 'segment_bytes'])
    """

    segment_bytes: int = row(
        setting("segment.bytes", "int", 1 << 30, "bytes", minimum=14, broker="log.segment.bytes"),
        applies=NEXT_APPEND,
        doc="The log rolls to a new segment before a batch that would make the active one larger than this.",
        danger="Small segments mean many files and open descriptors; no batch can be larger. Kafka 4.3 refuses less "
        "than 1048576.",
    )
    internal_segment_bytes: int | None = row(
        setting("internal.segment.bytes", "int", None, "bytes"),
        applies=NEXT_APPEND,
        doc="Replaces `segment.bytes` if set. Kafka's own tests use it for segments below 1 MiB.",
        danger="Kafka has no minimum here: a value below the size of a batch refuses every append.",
    )
    segment_ms: int = row(
        setting(
            "segment.ms",
            "long",
            7 * 24 * HOURS,
            "milliseconds",
            minimum=1,
            broker=(BrokerName("log.roll.ms"), BrokerName("log.roll.hours", "hours", HOURS, "int", minimum=1)),
        ),
        applies=NEXT_APPEND,
        doc="The log rolls when the next batch's timestamp is more than this after that of the segment's first batch.",
        danger="Small values mean many files; a batch with a timestamp far ahead rolls immediately.",
    )
    segment_jitter_ms: int = row(
        setting(
            "segment.jitter.ms",
            "long",
            0,
            "milliseconds",
            minimum=0,
            broker=(
                BrokerName("log.roll.jitter.ms"),
                BrokerName("log.roll.jitter.hours", "hours", HOURS, "int", minimum=0),
            ),
        ),
        applies=NEXT_SEGMENT,
        doc="`segment.ms` is shortened by a random time of at most this, so that many logs do not roll together.",
        danger="Segments roll earlier than `segment.ms` says, by a different amount after each opening.",
    )
    segment_index_bytes: int = row(
        setting("segment.index.bytes", "int", 10 << 20, "bytes", minimum=4, broker="log.index.size.max.bytes"),
        applies=NEXT_SEGMENT,
        doc="The size of an active segment's index files; the log rolls when one of them is full.",
        danger="Small index files make the log roll early; with less than 12 bytes no log can be opened for writing.",
    )
    index_interval_bytes: int = row(
        setting("index.interval.bytes", "int", 4096, "bytes", minimum=0, broker="log.index.interval.bytes"),
        applies=NEXT_SEGMENT,
        doc="An index entry is written once this many bytes have been appended since the last entry.",
        danger="Large values make lookups scan further; small ones fill the index earlier, so that the log rolls.",
    )
    preallocate: bool = row(
        setting("preallocate", "bool", False, broker="log.preallocate"),
        applies=NEXT_SEGMENT,
        doc="A new log file gets its full size immediately, in zeros; a roll and a close truncate it to its length.",
        danger="Every partition takes a whole `segment.bytes` of apparent size; recovery after a crash cuts the zeros.",
    )
    flush_messages: int = row(
        setting("flush.messages", "long", LONG_MAX, "records", minimum=1, broker="log.flush.interval.messages"),
        applies=NEXT_APPEND,
        doc="The log is flushed when this many records have been appended since the last flush.",
        danger="1 syncs at every append, at the speed of the disk; the default leaves flushing to `flush()`.",
    )
    flush_ms: int = row(
        setting(
            "flush.ms",
            "long",
            LONG_MAX,
            "milliseconds",
            minimum=0,
            broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
        applies="the next flush",
        doc="The log is flushed when the last flush is this long ago.",
        danger="Records younger than this may be lost with the machine; small values keep the disk busy.",
    )
    retention_bytes: int = row(
        setting("retention.bytes", "long", -1, "bytes", broker="log.retention.bytes"),
        applies=NEXT_RETENTION,
        doc="Deletes old segments while the log is at least this large without them; negative: never.",
        danger="Deletes data permanently. It limits one partition, not a topic, and deletes whole segments.",
    )
    retention_ms: int = row(
        setting(
            "retention.ms",
            "long",
            -1,
            "milliseconds",
            kafka_default=KAFKA_RETENTION_MS,
            minimum=-1,
            broker=(
                BrokerName("log.retention.ms", **_RETENTION),
                BrokerName("log.retention.minutes", "minutes", MINUTES, "int", **_RETENTION),
                BrokerName("log.retention.hours", "hours", HOURS, "int", **_RETENTION),
            ),
        ),
        applies=NEXT_RETENTION,
        doc="Deletes the oldest segments whose newest record is older than this; -1: never.",
        danger="Deletes data permanently. Kafka's default is seven days, kstore's is never; one record with a "
        "timestamp in the future keeps its segment and all after it.",
    )
    file_delete_delay_ms: int = row(
        setting(
            "file.delete.delay.ms", "long", 60_000, "milliseconds", minimum=0, broker="log.segment.delete.delay.ms"
        ),
        applies="the next deletion",
        doc="How long files of deleted segments stay on disk, renamed, before they are unlinked.",
        danger="The space is free only then; with 0, another process that is opening the files may find them gone.",
    )
    cleanup_policy: tuple[str, ...] = row(
        setting("cleanup.policy", "list", ("delete",), choices=("compact", "delete"), broker="log.cleanup.policy"),
        applies="the next append and pass",
        doc="`delete` lets retention delete old segments, `compact` keeps the last record of each key; empty: neither.",
        danger="`compact` refuses records without a key, and permanently drops all but a key's last record.",
    )
    delete_retention_ms: int = row(
        setting(
            "delete.retention.ms",
            "long",
            24 * HOURS,
            "milliseconds",
            minimum=0,
            broker="log.cleaner.delete.retention.ms",
        ),
        applies=NEXT_COMPACTION,
        doc="How long compaction keeps tombstones and transaction markers.",
        danger="A reader slower than this may miss that a key was deleted.",
    )
    min_compaction_lag_ms: int = row(
        setting(
            "min.compaction.lag.ms", "long", 0, "milliseconds", minimum=0, broker="log.cleaner.min.compaction.lag.ms"
        ),
        applies=NEXT_COMPACTION,
        doc="Records younger than this are not compacted.",
        danger="Large values let the uncompacted part grow; it may not exceed `max.compaction.lag.ms`.",
    )
    max_compaction_lag_ms: int = row(
        setting(
            "max.compaction.lag.ms",
            "long",
            LONG_MAX,
            "milliseconds",
            minimum=1,
            broker="log.cleaner.max.compaction.lag.ms",
        ),
        applies=NEXT_COMPACTION,
        doc="A log whose oldest uncompacted record is older than this is compacted at any dirty ratio.",
        danger="Small values compact again and again, and roll segments early.",
    )
    min_cleanable_dirty_ratio: float = row(
        setting(
            "min.cleanable.dirty.ratio", "double", 0.5, minimum=0, maximum=1, broker="log.cleaner.min.cleanable.ratio"
        ),
        applies=NEXT_COMPACTION,
        doc="The share of a log that must be uncompacted before housekeeping compacts it.",
        danger="Small values rewrite the whole log for little gain, large ones leave up to that share duplicated.",
    )
    max_message_bytes: int = row(
        setting("max.message.bytes", "int", 1_048_588, "bytes", minimum=0, broker="message.max.bytes"),
        applies=NEXT_APPEND,
        doc="The largest batch that an append accepts, as stored: compressed, with its header.",
        danger="Consumers must be able to hold a batch in memory; raise their limits with it.",
    )
    compression_type: str = row(
        setting(
            "compression.type",
            "string",
            "producer",
            choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            broker="compression.type",
        ),
        applies=NEXT_APPEND,
        doc="How batches are stored; `producer` keeps them as they arrive.",
        danger="With any value but `producer`, a batch that arrives with another codec is encoded again.",
    )
    compression_gzip_level: int = row(
        setting("compression.gzip.level", "int", -1, minimum=1, maximum=9, also=(-1,), broker="compression.gzip.level"),
        applies=NEXT_APPEND,
        doc="The level if `compression.type` is gzip; -1 is the codec's own default.",
        danger="High levels are many times slower for a few per cent.",
    )
    compression_lz4_level: int = row(
        setting("compression.lz4.level", "int", 9, minimum=1, maximum=17, broker="compression.lz4.level"),
        applies=NEXT_APPEND,
        doc="The level if `compression.type` is lz4; 9, the default, is the fast compressor.",
        danger="Any other level is the slow high-compression variant.",
    )
    compression_zstd_level: int = row(
        setting("compression.zstd.level", "int", 3, minimum=-131072, maximum=22, broker="compression.zstd.level"),
        applies=NEXT_APPEND,
        doc="The level if `compression.type` is zstd.",
        danger="Levels above 19 take much memory and time; negative ones trade size for speed.",
    )
    message_timestamp_type: str = row(
        setting(
            "message.timestamp.type",
            "string",
            "CreateTime",
            choices=("CreateTime", "LogAppendTime"),
            broker="log.message.timestamp.type",
        ),
        applies=NEXT_APPEND,
        doc="The clock that gives records their timestamps: the producer's, or this log's at the append.",
        danger="With CreateTime a producer's wrong clock decides about rolls and retention.",
    )
    message_timestamp_before_max_ms: int = row(
        setting(
            "message.timestamp.before.max.ms",
            "long",
            LONG_MAX,
            "milliseconds",
            minimum=0,
            broker="log.message.timestamp.before.max.ms",
        ),
        applies=NEXT_APPEND,
        doc="A record is refused if its timestamp is more than this before the clock.",
        danger="Any limit refuses the loading of old data with its own timestamps.",
    )
    message_timestamp_after_max_ms: int = row(
        setting(
            "message.timestamp.after.max.ms",
            "long",
            HOURS,
            "milliseconds",
            minimum=0,
            broker="log.message.timestamp.after.max.ms",
        ),
        applies=NEXT_APPEND,
        doc="A record is refused if its timestamp is more than this after the clock.",
        danger="Records far in the future make the log roll, and keep retention from deleting their segments.",
    )
    min_insync_replicas: int = row(
        setting(
            "min.insync.replicas",
            "int",
            1,
            "replicas",
            minimum=1,
            broker="min.insync.replicas",
            idle="a log here has one replica",
        ),
        doc="Kept for brokers that share the configuration; a log in one process is its only replica.",
        danger="None here.",
    )
    unclean_leader_election_enable: bool = row(
        setting(
            "unclean.leader.election.enable",
            "bool",
            False,
            broker="unclean.leader.election.enable",
            idle="no leader is elected here",
        ),
        doc="Kept for brokers that share the configuration; nothing is elected here.",
        danger="None here.",
    )
    local_retention_ms: int = row(
        setting(
            "local.retention.ms",
            "long",
            -2,
            "milliseconds",
            minimum=-2,
            broker="log.local.retention.ms",
            idle=_NOT_TIERED,
        ),
        doc="Kept for brokers with tiered storage; -2 is `retention.ms`.",
        danger="None here: nothing is tiered.",
    )
    local_retention_bytes: int = row(
        setting(
            "local.retention.bytes",
            "long",
            -2,
            "bytes",
            minimum=-2,
            broker="log.local.retention.bytes",
            idle=_NOT_TIERED,
        ),
        doc="Kept for brokers with tiered storage; -2 is `retention.bytes`.",
        danger="None here: nothing is tiered.",
    )
    remote_storage_enable: bool = row(
        setting("remote.storage.enable", "bool", False, idle=_NOT_TIERED),
        doc="Kept for brokers with tiered storage.",
        danger="Nothing is tiered here, but the policy must be `delete` or empty, as Kafka demands.",
    )
    remote_log_copy_disable: bool = row(
        setting("remote.log.copy.disable", "bool", False, idle=_NOT_TIERED),
        doc="Kept for brokers with tiered storage.",
        danger="None here: nothing is tiered.",
    )
    remote_log_delete_on_disable: bool = row(
        setting("remote.log.delete.on.disable", "bool", False, idle=_NOT_TIERED),
        doc="Kept for brokers with tiered storage.",
        danger="None here: nothing is tiered.",
    )
    explicit: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The names of the settings that were given, as Python writes them."""

    def __init__(self, **settings: Unpack[LogSettings]) -> None:
        values = self._defaults() | {name: self._find(name, value).parse(value) for name, value in settings.items()}
        self._fill(values, settings)

    if TYPE_CHECKING:

        def replace(self, **settings: Unpack[LogSettings]) -> Self: ...  # type: ignore[override]  # names, not any

    @classmethod
    def from_kafka(cls, source: Mapping[str, object] | str | os.PathLike[str]) -> LogConfig:
        """Read settings under Kafka's topic and broker names, with Kafka's precedence of names.

        A mapping may have topic and broker names; all must be known, and Kafka's defaults apply. In a file only the
        broker's names count; other names are ignored, since most settings of such a file are not about storage. A
        `ConfigWarning` with the line's number is issued for a topic's name, and for a name that is nearly one of the
        broker's. Without `log.retention.ms`, `.minutes` or `.hours` in the file, records are not deleted by age, and a
        `ConfigWarning` says so.

        Args:
            source: A mapping of names to values, or the path of a `server.properties`.

        Returns:
            The configuration.

        Raises:
            ConfigError: If a name in a mapping is unknown, a value is bad, or values do not fit together.
            StorageError: If the file cannot be read.

        Example:
            >>> kstore.LogConfig.from_kafka({"log.retention.hours": "24"}).retention_ms
            86400000
        """
        if isinstance(source, Mapping):
            return cls._from_names(check_known(source, _MAPPING_NAMES), cls._defaults(kafka=True))
        return cls._from_names(from_properties(source), cls._defaults(), topic=False)

    @classmethod
    def resolve(cls, config: ConfigSource = None, settings: Mapping[str, Any] | None = None) -> LogConfig:
        """Make the configuration of `open(..., config=config, **settings)`.

        Args:
            config: A `LogConfig`, a mapping, a path or None. Mappings and paths are read as by `from_kafka`, except
                that the default of `retention_ms` is kstore's, -1.
            settings: Values under their names in Python, which have precedence.

        Returns:
            The configuration.

        Raises:
            ConfigError: If a name is unknown, a value is bad, or values do not fit together.
            StorageError: If the file cannot be read.
            TypeError: If `config` has another type.

        Example:
            >>> kstore.LogConfig.resolve({"segment.bytes": "1048576"}, {"flush_ms": 1000}).to_kafka()
            {'segment.bytes': '1048576', 'flush.ms': '1000'}
        """
        if config is None:
            base = cls()
        elif isinstance(config, LogConfig):
            base = config
        elif isinstance(config, Mapping):
            base = cls._from_names(check_known(config, _MAPPING_NAMES), cls._defaults())
        elif isinstance(config, str | os.PathLike):
            base = cls.from_kafka(config)
        else:
            kind = type(config).__name__
            raise TypeError(f"config must be a LogConfig, a mapping of settings, or a path, not {kind}")
        return base.replace(**(settings or {}))

    def for_topic(self, overrides: Mapping[str, Any]) -> LogConfig:
        """Return a copy of these settings with the overrides of a topic (SEMANTICS 13.11, 13.12).

        Args:
            overrides: Values under Kafka's topic names.

        Returns:
            The copy.

        Raises:
            ConfigError: If a name is not a topic's, a value is bad, or values do not fit together.

        Example:
            >>> config.for_topic({"segment.bytes": "65536"}).segment_bytes
            65536
        """
        check_known(overrides, TOPIC_NAMES)
        return self.replace(**{row.attribute: overrides[row.name] for row in self.settings if row.name in overrides})

    @property
    def effective_segment_bytes(self) -> int:
        """The segment size in force: `internal.segment.bytes` if it is set, else `segment.bytes` (SEMANTICS 13.14a)."""
        return self.segment_bytes if self.internal_segment_bytes is None else self.internal_segment_bytes

    @property
    def compression_level(self) -> int | None:
        """The level of `compression_type`; None if the type has no levels or the producer decides."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @property
    def compacts(self) -> bool:
        """Whether the policy has `compact`."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether the policy has `delete`."""
        return "delete" in self.cleanup_policy

    def warnings(self, broker: BrokerConfig | None = None, *, housekeeping: bool = True) -> tuple[str, ...]:
        """Return warnings about surprising effects of these settings.

        Args:
            broker: The settings of the store, whose periods matter for retention and compaction; the defaults if None.
            housekeeping: False leaves out retention and compaction, for a log that is not in a store.

        Returns:
            Sentences that give the numbers.

        Example:
            >>> for warning in kstore.LogConfig(retention_ms=60_000).warnings():
            ...     print(warning)
            retention.ms = 60000 ms (1 minute) is less than segment.ms = 604800000 ms (7 days): ...
        """
        warnings = list(cautions.of_log(self))
        if housekeeping:
            warnings += cautions.of_housekeeping(self, broker or BrokerConfig())
        return tuple(warnings)

    def check_for_writing(self) -> None:
        """Check that a log with these settings can be opened for writing.

        Raises:
            ConfigError: If no log can be opened with them although each value is in range.

        Example:
            >>> kstore.LogConfig(segment_index_bytes=4).check_for_writing()
            Traceback (most recent call last):
            ...
            kstore.errors.ConfigError: segment.index.bytes = 4 has no room for an entry of a time index: ...
        """
        if self.segment_index_bytes < cautions.TIME_ENTRY_BYTES:
            raise ConfigError(
                f"segment.index.bytes = {self.segment_index_bytes} has no room for an entry of a time index: "
                f"at least {cautions.TIME_ENTRY_BYTES} is needed to write a log (unit: bytes)"
            )

    def _check_together(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms = {self.min_compaction_lag_ms} is more than "
                f"max.compaction.lag.ms = {self.max_compaction_lag_ms}"
            )
        if self.remote_storage_enable and self.cleanup_policy not in ((), ("delete",)):
            raise ConfigError(
                f"cleanup.policy = {text(self.cleanup_policy)!r} does not go with remote.storage.enable: "
                "delete or an empty list is allowed"
            )


ConfigSource: TypeAlias = LogConfig | Mapping[str, object] | str | os.PathLike[str] | None

_NOT_STORAGE = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
TOPIC_NAMES = frozenset((*(row.name for row in LogConfig.settings), *_NOT_STORAGE))
_BROKER_NAMES = frozenset(
    (*(at.name for row in LogConfig.settings for at in row.broker_names), *(row.name for row in BrokerConfig.settings))
)
_MAPPING_NAMES = TOPIC_NAMES | _BROKER_NAMES


def from_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the settings about storage from a `server.properties`.

    Issues a `ConfigWarning` for each ignored line that was probably intended, and for a file without a retention.
    """
    properties = read_properties(path)
    cautions.issue(of_properties(os.fspath(path), {name: line for name, (_, line) in properties.items()}))
    return {name: value for name, (value, _) in properties.items() if name in _BROKER_NAMES}


def of_properties(path: str, lines: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about the names in a properties file."""
    for name, line in lines.items():
        if name in _BROKER_NAMES:
            continue
        if name in TOPIC_NAMES:
            yield f"{path}, line {line}: {name} is a topic's setting and is passed over{_broker_name(name)}"
        elif near := nearest(name.lower().replace("_", "."), _BROKER_NAMES, cutoff=_MEANT):
            yield f"{path}, line {line}: {shortened(name)} is no setting and is passed over{near}"
    if not any(at.name in lines for at in LogConfig._by_attribute["retention_ms"].broker_names):
        yield (
            f"{path} names no retention: a broker would delete records after {KAFKA_RETENTION_MS // HOURS} hours, "
            f"kstore deletes none by age. Write log.retention.hours={KAFKA_RETENTION_MS // HOURS} for the broker's "
            "way, or log.retention.ms=-1 to keep all"
        )


def _broker_name(topic_name: str) -> str:
    rows = [row for row in LogConfig.settings if row.name == topic_name]
    return "".join(f"; the broker's name is {row.broker_names[0].name}" for row in rows if row.broker_names)


# The similarity from which a name counts as misspelled. Kafka's own names that are not about storage reach 0.82.
_MEANT = 0.84
