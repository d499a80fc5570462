"""Combinations of settings that bite: sentences that say with the numbers what will happen (SEMANTICS.md 13B).

Pure: it decides nothing and warns nobody; `LogConfig.warnings` hands the sentences out, and whoever opens a log or a
store issues them. The hardest rule: it speaks of what somebody named, since nobody reads warnings about defaults.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kstore.errors import ConfigWarning
from kstore.settings import HOURS, LONG_MAX, MINUTES, readable, text

if TYPE_CHECKING:
    from kstore.brokerconfig import BrokerConfig
    from kstore.config import LogConfig

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_LEAST_BATCH_BYTES = 68  # the header, and one record without key and value: no batch is smaller


def issue(messages: Iterable[str]) -> None:
    """Issue each as a `ConfigWarning`, at the line outside of this package that led here."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kstore":
        frame, level = frame.f_back, level + 1
    for message in messages:
        warnings.warn(message, ConfigWarning, stacklevel=level)


def of_log(config: LogConfig) -> Iterator[str]:
    """What a log does by itself, with or without a store."""
    yield from _of_indexes(config)
    size = config.effective_segment_bytes
    size_name = "segment.bytes" if config.internal_segment_bytes is None else "internal.segment.bytes"
    if "max_message_bytes" in config.explicit and config.max_message_bytes > size:
        yield (
            f"max.message.bytes = {_bytes(config.max_message_bytes)} allows batches that no segment can hold: one that "
            f"is larger than {size_name} = {_bytes(size)} is refused"
        )
    if "segment_jitter_ms" in config.explicit and config.segment_jitter_ms >= config.segment_ms:
        yield (
            f"segment.jitter.ms = {_ms(config.segment_jitter_ms)} is not less than segment.ms = "
            f"{_ms(config.segment_ms)}: a segment may be left as early as 1 ms after its first batch"
        )


def of_housekeeping(config: LogConfig, broker: BrokerConfig) -> Iterator[str]:
    """What a store's housekeeping does to a log, by the store's periods."""
    if config.deletes:
        yield from _of_retention_by_time(config, broker)
        yield from _of_retention_by_size(config, broker)
    else:
        yield from _of_retention_that_does_not_act(config)
    if config.compacts and "cleanup_policy" in config.explicit:
        then = "old segments go by retention alone, and with them the last records of keys"
        if not config.deletes:
            then = "it keeps every record of a key, and grows for ever"
        yield f"cleanup.policy = {text(config.cleanup_policy)}: this release compacts no log; {then}"


def _of_indexes(config: LogConfig) -> Iterator[str]:
    size, index_bytes, interval = (
        config.effective_segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
    )
    offset_entries = index_bytes // OFFSET_ENTRY_BYTES
    time_entries = index_bytes // TIME_ENTRY_BYTES - 1  # the last slot is kept for the closing entry (3.3)
    spacing = max(interval + 1, _LEAST_BATCH_BYTES)  # an entry once more than the interval has come, one a batch (3.7)
    index = f"segment.index.bytes = {_bytes(index_bytes)}"
    if time_entries < 0:
        yield f"{index} has no room for an entry of a time index ({TIME_ENTRY_BYTES} bytes): no log can be opened"
    elif time_entries == 0:
        yield f"{index} has room for the closing entry of a time index alone: every append starts a new segment"
    elif time_entries * spacing < size:
        when = "" if offset_entries * spacing < size else " where timestamps rise"
        yield (
            f"{index} holds {time_entries} entries of a time index and {offset_entries} of an offset index, one for "
            f"each index.interval.bytes = {_bytes(interval)}: the index fills first{when}, and a segment is left at "
            f"{time_entries * spacing} bytes ({time_entries} x {spacing}) or somewhat later, before it has "
            f"segment.bytes = {_bytes(size)}"
        )
    elif interval >= size and "index_interval_bytes" in config.explicit:
        yield (
            f"index.interval.bytes = {_bytes(interval)} leaves segments of {_bytes(size)} without an index entry: a "
            "lookup reads them from their start"
        )


def _of_retention_by_time(config: LogConfig, broker: BrokerConfig) -> Iterator[str]:
    retention, fill = config.retention_ms, config.segment_ms
    if retention < 0:
        return
    check, delay = broker.log_retention_check_interval_ms, config.file_delete_delay_ms
    if "retention_ms" in config.explicit and retention == 0:
        yield f"retention.ms = 0: each check (every {_ms(check)}) deletes all that is older than the moment it looks"
    elif "retention_ms" in config.explicit and retention < fill:
        longest = "without a bound" if fill >= LONG_MAX else f"for {_ms(fill + retention + check + delay)}"
        yield (
            f"retention.ms = {_ms(retention)} is less than segment.ms = {_ms(fill)}: only whole segments go, once "
            f"their newest record is too old, so that a record may be on the disk {longest}: segment.ms while its "
            f"segment fills, retention.ms, {_ms(check)} between checks, {_ms(delay)} of file.delete.delay.ms"
        )
    ahead = config.message_timestamp_after_max_ms
    stamped = config.message_timestamp_type == "CreateTime"
    if "message_timestamp_after_max_ms" in config.explicit and ahead > HOURS and stamped:
        yield (
            f"message.timestamp.after.max.ms = {_ms(ahead)} takes records from as far in the future: one keeps its "
            f"segment, and all after it, until retention.ms = {_ms(retention)} after that time"
        )


def _of_retention_by_size(config: LogConfig, broker: BrokerConfig) -> Iterator[str]:
    retention, size = config.retention_bytes, config.effective_segment_bytes
    if "retention_bytes" not in config.explicit or not 0 <= retention < size:
        return
    check = f"every {_ms(broker.log_retention_check_interval_ms)}"
    if retention == 0:
        yield f"retention.bytes = 0: each check ({check}) deletes all there is, the active segment included"
    else:
        yield (
            f"retention.bytes = {_bytes(retention)} is less than segment.bytes = {_bytes(size)}: a segment goes when "
            f"what is left without it is still that large, so that a partition has up to {retention + size} bytes, and "
            f"what comes between two checks ({check})"
        )


def _of_retention_that_does_not_act(config: LogConfig) -> Iterator[str]:
    policy = f"cleanup.policy = {text(config.cleanup_policy) or 'an empty list'}"
    if "retention_ms" in config.explicit and config.retention_ms >= 0:
        yield f"retention.ms = {_ms(config.retention_ms)} deletes nothing: {policy} has no delete"
    if "retention_bytes" in config.explicit and config.retention_bytes >= 0:
        yield f"retention.bytes = {_bytes(config.retention_bytes)} deletes nothing: {policy} has no delete"


def of_store(broker: BrokerConfig) -> Iterator[str]:
    """What a store does with its own settings."""
    if "log_cleaner_threads" in broker.explicit and broker.log_cleaner_threads == 0:
        yield "log.cleaner.threads = 0: nothing is compacted, and Kafka 5 will refuse it"
    if "log_cleaner_enable" in broker.explicit and not broker.log_cleaner_enable:
        yield "log.cleaner.enable = false: nothing is compacted, and Kafka 5 will not know it"
    cordoned = broker.cordoned_log_dirs
    if cordoned and (cordoned == ("*",) or set(cordoned) >= set(broker.directories)):
        yield (
            f"cordoned.log.dirs = {text(cordoned)} leaves no directory for new partitions: they go to the first that "
            "works"
        )


def _ms(value: int) -> str:
    """Write a time with what it is in the largest unit that it reaches: nobody divides by 86,400,000 in his head."""
    if value >= LONG_MAX:
        return "unlimited"
    for size, name in ((24 * HOURS, "days"), (HOURS, "hours"), (MINUTES, "minutes"), (1000, "seconds")):
        if value >= size:
            count = f"{value / size:.2f}".rstrip("0").rstrip(".")
            return f"{value} ms ({count} {name.rstrip('s') if count == '1' else name})"
    return f"{value} ms"


def _bytes(value: int) -> str:
    """Write a size likewise, where it is a whole number of a larger unit: sizes are compared to the byte."""
    return readable(value, "bytes")
