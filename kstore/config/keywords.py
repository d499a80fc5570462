"""The settings as keyword arguments, for type checkers and editors. Made by docs/make_keywords.py; do not edit.

mypy and pyright report `Log.open(path, segment_byte=1)` as an error, and an editor shows what a setting does. Any value
may also be text, as in a properties file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, TypedDict


class LogSettings(TypedDict, total=False):
    """The settings of one log, which `Log.open`, `LogConfig` and `Store.create_topic` accept."""

    segment_bytes: SupportsIndex | str
    """The log rolls to a new segment before a batch that would make the active one larger than this. [at least 14
    bytes; default 1073741824 (1 GiB)]"""
    internal_segment_bytes: SupportsIndex | str | None
    """Replaces segment.bytes if set. Kafka's own tests use it for segments below 1 MiB. [any 32-bit integer bytes;
    default none]"""
    segment_ms: SupportsIndex | str
    """The log rolls when the next batch's timestamp is more than this after that of the segment's first batch. [at
    least 1 milliseconds; default 604800000 (7 days)]"""
    segment_jitter_ms: SupportsIndex | str
    """segment.ms is shortened by a random time of at most this, so that many logs do not roll together. [at least 0
    milliseconds; default 0]"""
    segment_index_bytes: SupportsIndex | str
    """The size of an active segment's index files; the log rolls when one of them is full. [at least 4 bytes; default
    10485760 (10 MiB)]"""
    index_interval_bytes: SupportsIndex | str
    """An index entry is written once this many bytes have been appended since the last entry. [at least 0 bytes;
    default 4096 (4 KiB)]"""
    preallocate: bool | str
    """A new log file gets its full size immediately, in zeros; a roll and a close truncate it to its length. [true or
    false; default false]"""
    flush_messages: SupportsIndex | str
    """The log is flushed when this many records have been appended since the last flush. [at least 1 records; default
    unlimited]"""
    flush_ms: SupportsIndex | str
    """The log is flushed when the last flush is this long ago. [at least 0 milliseconds; default unlimited]"""
    retention_bytes: SupportsIndex | str
    """Deletes old segments while the log is at least this large without them; negative: never. [any 64-bit integer
    bytes; default -1]"""
    retention_ms: SupportsIndex | str
    """Deletes the oldest segments whose newest record is older than this; -1: never. [at least -1 milliseconds; default
    -1, Kafka's 604800000 (7 days)]"""
    file_delete_delay_ms: SupportsIndex | str
    """How long files of deleted segments stay on disk, renamed, before they are unlinked. [at least 0 milliseconds;
    default 60000 (1 minute)]"""
    cleanup_policy: Sequence[str]
    """delete lets retention delete old segments, compact keeps the last record of each key; empty: neither. [a list out
    of compact, delete; default delete]"""
    delete_retention_ms: SupportsIndex | str
    """How long compaction keeps tombstones and transaction markers. [at least 0 milliseconds; default 86400000 (1 day)]
    """
    min_compaction_lag_ms: SupportsIndex | str
    """Records younger than this are not compacted. [at least 0 milliseconds; default 0]"""
    max_compaction_lag_ms: SupportsIndex | str
    """A log whose oldest uncompacted record is older than this is compacted at any dirty ratio. [at least 1
    milliseconds; default unlimited]"""
    min_cleanable_dirty_ratio: float | str
    """The share of a log that must be uncompacted before housekeeping compacts it. [0 to 1; default 0.5]"""
    max_message_bytes: SupportsIndex | str
    """The largest batch that an append accepts, as stored: compressed, with its header. [at least 0 bytes; default
    1048588]"""
    compression_type: str
    """How batches are stored; producer keeps them as they arrive. [one of uncompressed, zstd, lz4, snappy, gzip,
    producer; default producer]"""
    compression_gzip_level: SupportsIndex | str
    """The level if compression.type is gzip; -1 is the codec's own default. [-1 or 1 to 9; default -1]"""
    compression_lz4_level: SupportsIndex | str
    """The level if compression.type is lz4; 9, the default, is the fast compressor. [1 to 17; default 9]"""
    compression_zstd_level: SupportsIndex | str
    """The level if compression.type is zstd. [-131072 to 22; default 3]"""
    message_timestamp_type: str
    """The clock that gives records their timestamps: the producer's, or this log's at the append. [one of CreateTime,
    LogAppendTime; default CreateTime]"""
    message_timestamp_before_max_ms: SupportsIndex | str
    """A record is refused if its timestamp is more than this before the clock. [at least 0 milliseconds; default
    unlimited]"""
    message_timestamp_after_max_ms: SupportsIndex | str
    """A record is refused if its timestamp is more than this after the clock. [at least 0 milliseconds; default 3600000
    (1 hour)]"""
    min_insync_replicas: SupportsIndex | str
    """Kept for brokers that share the configuration; a log in one process is its only replica. [at least 1 replicas;
    default 1] Does nothing here: a log here has one replica."""
    unclean_leader_election_enable: bool | str
    """Kept for brokers that share the configuration; nothing is elected here. [true or false; default false] Does
    nothing here: no leader is elected here."""
    local_retention_ms: SupportsIndex | str
    """Kept for brokers with tiered storage; -2 is retention.ms. [at least -2 milliseconds; default -2] Does nothing
    here: no segment is copied to a remote storage."""
    local_retention_bytes: SupportsIndex | str
    """Kept for brokers with tiered storage; -2 is retention.bytes. [at least -2 bytes; default -2] Does nothing here:
    no segment is copied to a remote storage."""
    remote_storage_enable: bool | str
    """Kept for brokers with tiered storage. [true or false; default false] Does nothing here: no segment is copied to a
    remote storage."""
    remote_log_copy_disable: bool | str
    """Kept for brokers with tiered storage. [true or false; default false] Does nothing here: no segment is copied to a
    remote storage."""
    remote_log_delete_on_disable: bool | str
    """Kept for brokers with tiered storage. [true or false; default false] Does nothing here: no segment is copied to a
    remote storage."""


class BrokerSettings(TypedDict, total=False):
    """The settings of a store that no topic overrides, which `BrokerConfig` accepts."""

    log_dir: Sequence[str]
    """A broker's log directory if log.dirs is not set; like log.dirs, it has no effect on a store. [a list without an
    empty element; default /tmp/kafka-logs]"""
    log_dirs: Sequence[str] | None
    """A broker's log directories. A store gets its directories when it is opened. cordoned.log.dirs must be among both.
    [a list without an empty element; default none]"""
    cordoned_log_dirs: Sequence[str]
    """Directories of the store, or * for all, that get no new partitions. [a list without an empty element; default
    empty]"""
    log_retention_check_interval_ms: SupportsIndex | str
    """How often retention checks every log. [at least 1 milliseconds; default 300000 (5 minutes)]"""
    log_flush_scheduler_interval_ms: SupportsIndex | str
    """The default of flush.ms; also how often Kafka checks which logs are due by flush.ms. [any 64-bit integer
    milliseconds; default unlimited]"""
    log_flush_offset_checkpoint_interval_ms: SupportsIndex | str
    """How often recovery points are written to their checkpoint file. [at least 0 milliseconds; default 60000 (1
    minute)]"""
    log_flush_start_offset_checkpoint_interval_ms: SupportsIndex | str
    """How often log start offsets are written to their checkpoint file. [at least 0 milliseconds; default 60000 (1
    minute)]"""
    log_initial_task_delay_ms: SupportsIndex | str
    """The time from the opening of a store to its first housekeeping. [at least 0 milliseconds; default 30000 (30
    seconds)]"""
    num_recovery_threads_per_data_dir: SupportsIndex | str
    """The most threads that open, recover and close the logs of one directory; small logs need only one. [at least 1
    threads; default 2]"""
    log_dir_failure_timeout_ms: SupportsIndex | str
    """Kept for brokers that share the configuration. [at least 1 milliseconds; default 30000 (30 seconds)] Does nothing
    here: there is no controller that waits for a directory."""
    replica_high_watermark_checkpoint_interval_ms: SupportsIndex | str
    """How often high watermarks are written to their checkpoint file. [any 64-bit integer milliseconds; default 5000 (5
    seconds)]"""
    log_cleaner_enable: bool | str
    """Whether housekeeping compacts the logs whose cleanup.policy has compact. Deprecated since Kafka 4.1. [true or
    false; default true]"""
    log_cleaner_threads: SupportsIndex | str
    """How many threads compact, each one log at a time. [at least 0 threads; default 1]"""
    log_cleaner_dedupe_buffer_size: SupportsIndex | str
    """Memory for the keys of one round of all cleaner threads, 24 bytes a key; allocated as keys are read. [any 64-bit
    integer bytes; default 134217728 (128 MiB)]"""
    log_cleaner_io_buffer_size: SupportsIndex | str
    """Memory for reading and writing of all cleaner threads; it grows to the largest batch. [at least 0 bytes; default
    524288 (512 KiB)]"""
    log_cleaner_io_buffer_load_factor: float | str
    """The share of log.cleaner.dedupe.buffer.size that the keys of a round may fill. [any double; default 0.9]"""
    log_cleaner_io_max_bytes_per_second: float | str
    """Limits what compaction by housekeeping reads and writes, in all threads together. [any double bytes per second;
    default unlimited]"""
    log_cleaner_backoff_ms: SupportsIndex | str
    """How long a cleaner waits after it found nothing to do. [at least 0 milliseconds; default 15000 (15 seconds)]"""
    producer_id_expiration_ms: SupportsIndex | str
    """How long a producer's state is kept after its last batch. [at least 1 milliseconds; default 86400000 (1 day)]"""
    producer_id_expiration_check_interval_ms: SupportsIndex | str
    """How often producers' states are checked for expiry. [at least 1 milliseconds; default 600000 (10 minutes)]"""
    transaction_partition_verification_enable: bool | str
    """Kept for brokers that share the configuration. [true or false; default true] Does nothing here: an append here
    comes from the process of its coordinator."""
    transaction_max_timeout_ms: SupportsIndex | str
    """The longest timeout that a transaction may ask for. [any 32-bit integer milliseconds; default 900000 (15
    minutes)]"""
    offsets_topic_num_partitions: SupportsIndex | str
    """How many partitions __consumer_offsets has when it is created. [at least 1 partitions; default 50]"""
    offsets_topic_segment_bytes: SupportsIndex | str
    """segment.bytes of __consumer_offsets when it is created. A store uses 256 KiB if this is not set. [at least 1
    bytes; default 104857600 (100 MiB)]"""
    offsets_retention_minutes: SupportsIndex | str
    """How long a group's positions are kept after its last commit; they do not expire while a consumer is open. [at
    least 1 minutes; default 10080]"""
    offsets_retention_check_interval_ms: SupportsIndex | str
    """How often committed positions are checked for expiry. [at least 1 milliseconds; default 600000 (10 minutes)]"""
    offset_metadata_max_bytes: SupportsIndex | str
    """How much text may be kept with a committed position. [any 32-bit integer characters; default 4096]"""
    transaction_state_log_num_partitions: SupportsIndex | str
    """How many partitions __transaction_state has when it is created. [at least 1 partitions; default 50]"""
    transaction_state_log_segment_bytes: SupportsIndex | str
    """segment.bytes of __transaction_state when it is created. A store uses 256 KiB if this is not set. [at least 1
    bytes; default 104857600 (100 MiB)]"""
    transactional_id_expiration_ms: SupportsIndex | str
    """How long a transactional id is kept after its last transaction, if none is open. [at least 1 milliseconds;
    default 604800000 (7 days)]"""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: SupportsIndex | str
    """How often open transactions are compared with their timeouts. [at least 1 milliseconds; default 10000 (10
    seconds)]"""
    transaction_remove_expired_transaction_cleanup_interval_ms: SupportsIndex | str
    """How often transactional ids are checked for expiry. [at least 1 milliseconds; default 3600000 (1 hour)]"""


class StoreSettings(LogSettings, BrokerSettings, total=False):
    """The settings that `Store.open` accepts: those of the store, and the defaults for its topics."""
