"""Warnings about combinations of settings: sentences that say, with numbers, what will happen (SEMANTICS 13B).

Invariant: each warning is about a setting that the user has given, never only about defaults.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from kstore.base import times
from kstore.base.numbers import LONG_MAX
from kstore.config.settings import HOURS, MINUTES, Setting, readable, text
from kstore.errors import ConfigWarning, TimestampWarning

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_LEAST_BATCH_BYTES = 68  # the header, and one record without key and value: no batch is smaller


class Explicit(Protocol):
    """A table of settings, with the names of those that the user has given."""

    @property
    def settings(self) -> tuple[Setting, ...]: ...
    @property
    def explicit(self) -> frozenset[str]: ...


class LogSettings(Explicit, Protocol):
    """The part of a `LogConfig` that the warnings are about."""

    @property
    def effective_segment_bytes(self) -> int: ...
    @property
    def file_delete_delay_ms(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def internal_segment_bytes(self) -> int | None: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def message_timestamp_after_max_ms(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def retention_ms(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...
    @property
    def segment_jitter_ms(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def cleanup_policy(self) -> tuple[str, ...]: ...
    @property
    def compacts(self) -> bool: ...
    @property
    def deletes(self) -> bool: ...


class BrokerSettings(Explicit, Protocol):
    """The part of a `BrokerConfig` that the warnings are about."""

    @property
    def cordoned_log_dirs(self) -> tuple[str, ...]: ...
    @property
    def directories(self) -> tuple[str, ...]: ...
    @property
    def log_cleaner_enable(self) -> bool: ...
    @property
    def log_cleaner_threads(self) -> int: ...
    @property
    def log_retention_check_interval_ms(self) -> int: ...


LIKE_SECONDS_BELOW = 100_000_000_000
"""Milliseconds of a time in March 1973; the same number of seconds is a time in the year 5138."""


def like_seconds(timestamp: int) -> str:
    """Return the text of the warning about a timestamp that looks like seconds."""
    return (
        f"timestamp={timestamp} is {times.show(timestamp)}: timestamps are milliseconds since 1970, and this one looks "
        "like seconds; multiply them by 1000, or give a datetime with a time zone (said once for each log)"
    )


class TimestampCaution:
    """Warns once about timestamps that look like seconds. Not thread-safe."""

    _said = False

    def say(self, timestamp: int) -> None:
        """Issue the warning about this timestamp unless one was issued before."""
        if not self._said:
            issue([like_seconds(timestamp)], TimestampWarning)
            self._said = True


def issue(messages: Iterable[str], category: type[Warning] = ConfigWarning) -> None:
    """Issue each message as a warning, located at the line outside of this package that made the call."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kstore":
        frame, level = frame.f_back, level + 1
    for message in messages:
        warnings.warn(message, category, stacklevel=level)


def of_log(config: LogSettings) -> Iterator[str]:
    """Yield warnings about effects in any log, with or without a store."""
    yield from _of_idle(config)
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


def of_housekeeping(config: LogSettings, broker: BrokerSettings) -> Iterator[str]:
    """Yield warnings about effects of a store's housekeeping on a log, which depend on the store's intervals."""
    if config.deletes:
        yield from _of_retention_by_time(config, broker)
        yield from _of_retention_by_size(config, broker)
    else:
        yield from _of_retention_that_does_not_act(config)
    if config.compacts:
        yield from _of_compaction_that_does_not_act(config, broker)


def _of_idle(config: Explicit, warned: Collection[str] = ()) -> Iterator[str]:
    """Yield warnings about given settings that do nothing here, except the settings in `warned`."""
    for setting in config.settings:
        if setting.idle and setting.attribute in config.explicit and setting.attribute not in warned:
            yield f"{setting.name} = {text(getattr(config, setting.attribute))} does nothing: {setting.idle}"


def _of_indexes(config: LogSettings) -> Iterator[str]:
    size, index_bytes, interval = (
        config.effective_segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
    )
    offset_entries = index_bytes // OFFSET_ENTRY_BYTES
    time_entries = index_bytes // TIME_ENTRY_BYTES - 1  # the last slot is kept for the closing entry (SEMANTICS 3.3)
    # An entry is added when more than the interval was appended, at most one for each batch (SEMANTICS 3.7).
    spacing = max(interval + 1, _LEAST_BATCH_BYTES)
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


def _of_retention_by_time(config: LogSettings, broker: BrokerSettings) -> Iterator[str]:
    retention, fill = config.retention_ms, config.segment_ms
    if retention < 0:
        return
    check, delay = broker.log_retention_check_interval_ms, config.file_delete_delay_ms
    if "retention_ms" in config.explicit and retention == 0:
        yield f"retention.ms = 0: each check (every {_ms(check)}) deletes all records that are older than the check"
    elif "retention_ms" in config.explicit and retention < fill:
        longest = "without a bound" if fill >= LONG_MAX else f"for {_ms(fill + retention + check + delay)}"
        yield (
            f"retention.ms = {_ms(retention)} is less than segment.ms = {_ms(fill)}: only whole segments are deleted, "
            f"once their newest record is too old, so that a record may be on the disk {longest}: segment.ms while its "
            f"segment fills, retention.ms, {_ms(check)} between checks, {_ms(delay)} of file.delete.delay.ms"
        )
    ahead = config.message_timestamp_after_max_ms
    stamped = config.message_timestamp_type == "CreateTime"
    if "message_timestamp_after_max_ms" in config.explicit and ahead > HOURS and stamped:
        yield (
            f"message.timestamp.after.max.ms = {_ms(ahead)} allows records from as far in the future: one keeps its "
            f"segment, and all after it, until retention.ms = {_ms(retention)} after that time"
        )


def _of_retention_by_size(config: LogSettings, broker: BrokerSettings) -> Iterator[str]:
    retention, size = config.retention_bytes, config.effective_segment_bytes
    if "retention_bytes" not in config.explicit or not 0 <= retention < size:
        return
    check = f"every {_ms(broker.log_retention_check_interval_ms)}"
    if retention == 0:
        yield f"retention.bytes = 0: each check ({check}) deletes every segment, the active segment included"
    else:
        yield (
            f"retention.bytes = {_bytes(retention)} is less than segment.bytes = {_bytes(size)}: a segment is deleted "
            f"if the others still have that size, so that a partition has up to {retention + size} bytes, and those "
            f"that are appended between two checks ({check})"
        )


def _of_retention_that_does_not_act(config: LogSettings) -> Iterator[str]:
    policy = f"cleanup.policy = {text(config.cleanup_policy) or 'an empty list'}"
    if "retention_ms" in config.explicit and config.retention_ms >= 0:
        yield f"retention.ms = {_ms(config.retention_ms)} deletes nothing: {policy} has no delete"
    if "retention_bytes" in config.explicit and config.retention_bytes >= 0:
        yield f"retention.bytes = {_bytes(config.retention_bytes)} deletes nothing: {policy} has no delete"


def _of_compaction_that_does_not_act(config: LogSettings, broker: BrokerSettings) -> Iterator[str]:
    policy = f"cleanup.policy = {text(config.cleanup_policy)}"
    then = "it keeps every record of a key, and grows for ever"
    if config.deletes:
        then = "old segments go by retention alone, and with them the last records of keys"
    why = ""
    if not broker.log_cleaner_enable:
        why = "log.cleaner.enable = false"
    elif broker.log_cleaner_threads == 0:
        why = "log.cleaner.threads = 0"
    if why and "cleanup_policy" in config.explicit:
        yield f"{policy}, but {why}, so that no housekeeping compacts the log; {then}"
    ratio = config.min_cleanable_dirty_ratio
    if "min_cleanable_dirty_ratio" in config.explicit and ratio >= 1 and config.max_compaction_lag_ms >= LONG_MAX:
        yield f"min.cleanable.dirty.ratio = {ratio:g} is never exceeded: no housekeeping compacts the log; {then}"


def of_store(broker: BrokerSettings) -> Iterator[str]:
    warned = set()
    if "log_cleaner_threads" in broker.explicit and broker.log_cleaner_threads == 0:
        warned.add("log_cleaner_threads")
        yield "log.cleaner.threads = 0: nothing is compacted, and Kafka 5 will refuse it"
    if "log_cleaner_enable" in broker.explicit and not broker.log_cleaner_enable:
        warned.add("log_cleaner_enable")
        yield "log.cleaner.enable = false: nothing is compacted, and Kafka 5 will not know it"
    yield from _of_idle(broker, warned)
    cordoned = broker.cordoned_log_dirs
    if cordoned and (cordoned == ("*",) or set(cordoned) >= set(broker.directories)):
        yield (
            f"cordoned.log.dirs = {text(cordoned)} leaves no directory for new partitions: they go to the first that "
            "works"
        )


def _ms(value: int) -> str:
    """Write a time in milliseconds, and in the largest unit that it reaches."""
    if value >= LONG_MAX:
        return "unlimited"
    for size, name in ((24 * HOURS, "days"), (HOURS, "hours"), (MINUTES, "minutes"), (1000, "seconds")):
        if value >= size:
            count = f"{value / size:.2f}".rstrip("0").rstrip(".")
            return f"{value} ms ({count} {name.rstrip('s') if count == '1' else name})"
    return f"{value} ms"


def _bytes(value: int) -> str:
    """Write a size; add a larger unit only if it divides the size, since readers compare sizes to the byte."""
    return readable(value, "bytes")
