"""What to change about settings, concluded from what they did in a plan: sentences with numbers.

Each sentence is about something that happened in the plan, and names the setting to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained.segment_words import setting_words
from kstore.explained.time_scale import duration
from kstore.planning.growing_segment import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kstore.planning.load_stretches import DAY_MS, batch_bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.explained.explained_plan import Load, PlannedRange

_MANY_SEGMENTS = 1000
_SMALL_BYTES = 1 << 20
_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000
_ROUND = (
    *(1, 5, 10, 50, 100, 500, _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(_MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 6 * _HOUR, 12 * _HOUR, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the settings did."""

    rolls: Mapping[str, int]
    deletions: Mapping[str, int]
    """How many segments were deleted or replaced, by the reason."""
    life_ms: PlannedRange | None
    live_segments: PlannedRange
    disk_bytes: PlannedRange
    largest_segment: int
    """The largest `.log` file."""
    longest_fill_ms: int
    """The longest time from the first to the last append of a segment."""
    offset_entries: int
    """The most entries of one offset index."""
    files: int
    bytes_a_day: int
    """What a day's load takes in the log."""
    map_keys: int
    """How many keys a pass of the cleaner can hold."""
    duration_ms: int


def advice(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> tuple[str, ...]:
    """Return what to change."""
    parts = (_growth, _late_deletion, _size_before_time, _full_index, _unreached_size, _many_files, _compaction)
    return tuple(sentence for part in parts for sentence in part(config, broker, load, outcome))


def _growth(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """Nothing goes."""
    if outcome.deletions:
        return
    grows = f"The log grows by {size(outcome.bytes_a_day)} a day, {size(365 * outcome.bytes_a_day)} a year"
    limits = [
        setting_words(name, value)
        for name, value in (("retention.ms", config.retention_ms), ("retention.bytes", config.retention_bytes))
        if value >= 0
    ]
    if config.compacts and not config.deletes:
        if not broker.log_cleaner_enable or broker.log_cleaner_threads == 0:
            yield f"{grows}: nothing compacts it. Set log.cleaner.enable to true and log.cleaner.threads to 1 or more."
        else:
            yield f"{grows}: compaction removes nothing within {duration(outcome.duration_ms)}."
    elif not config.deletes:
        yield f"{grows}: cleanup.policy has no delete, so that nothing is ever deleted."
    elif not limits:
        yield f"{grows}: nothing is ever deleted. Set retention.ms or retention.bytes."
    else:
        is_reached = f"{' and '.join(limits)} {'do' if len(limits) > 1 else 'does'} not act"
        yield f"{grows}: {is_reached} within the planned {duration(outcome.duration_ms)}."


def _late_deletion(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """Records live much longer than `retention.ms`."""
    retention, life = config.retention_ms, outcome.life_ms
    if life is None or not config.deletes or retention < 0 or "time" not in outcome.deletions:
        return
    if life.most < 2 * retention or life.most - retention < _SECOND:
        return
    check = broker.log_retention_check_interval_ms
    check_name = "log.retention.check.interval.ms"
    if config.compacts:
        check, check_name = broker.log_cleaner_backoff_ms, "log.cleaner.backoff.ms"
    keeps = f"retention.ms = {duration(retention)} keeps a record for up to {duration(life.most)}"
    fill = outcome.longest_fill_ms
    if fill >= min(check, life.most // 2):
        left = "quiet" if set(outcome.rolls) <= {"time", "retention"} else "size"
        why = (
            f"a segment takes appends for up to {duration(fill)}, with {setting_words('segment.ms', config.segment_ms)}"
            if left == "quiet"
            else f"a segment takes {duration(fill)} to fill, with "
            f"{setting_words('segment.bytes', config.effective_segment_bytes)}"
        )
        wished = _rounded(retention // 2)
        if wished < fill:
            longest = retention + wished + check
            yield (
                f"{keeps}: {why}, and is deleted as a whole, once its newest record is too old. Set segment.ms to "
                f"{duration(wished)}: then it is at most about {duration(longest)}."
            )
            return
    if check > retention // 2:
        yield (
            f"{keeps}: a segment waits for a check, up to {duration(check)}. Set {check_name} to "
            f"{duration(_rounded(max(retention // 2, 1)))}."
        )


def _size_before_time(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """`retention.bytes` deletes what `retention.ms` would keep."""
    life, retention = outcome.life_ms, config.retention_ms
    if life is None or retention < 0 or config.retention_bytes < 0 or "size" not in outcome.deletions:
        return
    if life.most < retention:
        needed = outcome.bytes_a_day * retention // DAY_MS
        yield (
            f"{setting_words('retention.bytes', config.retention_bytes)} acts before retention.ms = "
            f"{duration(retention)}: records stay for {duration(life.least)} to {duration(life.most)}. To keep them as "
            f"long as retention.ms says takes {size(needed)}."
        )


def _full_index(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """An index fills before the segment."""
    by_index = {
        name: outcome.rolls[reason]
        for reason, name in (("time_index_full", "time index"), ("offset_index_full", "offset index"))
        if outcome.rolls.get(reason)
    }
    if not by_index or sum(by_index.values()) * 2 < sum(outcome.rolls.values()):
        return
    name = max(by_index, key=lambda each: by_index[each])
    entries = max(outcome.offset_entries, 1)
    size_bytes = batch_bytes_of(load)
    apart = (config.index_interval_bytes // size_bytes + 1) * size_bytes  # bytes between two entries
    wanted = config.effective_segment_bytes // apart + 2  # one for the closing entry of the time index
    entry_bytes = TIME_ENTRY_BYTES if name == "time index" else OFFSET_ENTRY_BYTES
    interval = -(-config.effective_segment_bytes // entries)
    yield (
        f"The {name} fills first: segments are left at {outcome.largest_segment:,} bytes, before segment.bytes = "
        f"{config.effective_segment_bytes:,}. Raise segment.index.bytes from {config.segment_index_bytes:,} to "
        f"{wanted * entry_bytes:,}, or index.interval.bytes from {config.index_interval_bytes:,} to {interval:,}."
    )


def _unreached_size(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """Segments are always left by time, far below `segment.bytes`."""
    if not outcome.rolls.get("time") or not set(outcome.rolls) <= {"time", "retention"}:
        return
    limit = config.effective_segment_bytes
    if outcome.largest_segment * 4 < limit:
        by = "segment.ms"
        if config.compacts and config.max_compaction_lag_ms < config.segment_ms:
            by = "max.compaction.lag.ms"
        yield (
            f"{setting_words('segment.bytes', limit)} is never reached: segments are left by {by} with at most "
            f"{size(outcome.largest_segment)}."
        )


def _many_files(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """There are many small segments."""
    count = outcome.live_segments.most
    if count < _MANY_SEGMENTS or outcome.largest_segment >= _SMALL_BYTES:
        return
    reason = max(outcome.rolls, key=lambda each: outcome.rolls[each], default="")
    name, value = {
        "time": ("segment.ms", duration(config.segment_ms)),
        "size": ("segment.bytes", size(config.effective_segment_bytes)),
    }.get(reason, ("segment.index.bytes", size(config.segment_index_bytes)))
    yield (
        f"There are up to {count:,} segments of at most {size(outcome.largest_segment)} at the same time, in "
        f"{outcome.files:,} files for one partition. Raise {name}, now {value}."
    )


def _compaction(config: LogConfig, broker: BrokerConfig, load: Load, outcome: Outcome) -> Iterator[str]:
    """Compaction keeps much more than the newest records, or cannot hold the keys."""
    if not config.compacts or load.keys is None or not outcome.deletions.get("compaction"):
        return
    newest = int(load.keys * load.record_bytes)
    if load.keys > outcome.map_keys:
        needed = int(load.keys * 24 / broker.log_cleaner_io_buffer_load_factor) * max(broker.log_cleaner_threads, 1)
        yield (
            f"One round of the cleaner holds {outcome.map_keys:,} keys and the log has {load.keys:,}: it takes several "
            f"rounds. Raise log.cleaner.dedupe.buffer.size to {size(needed + 1)}."
        )
    if outcome.disk_bytes.most > 4 * newest and outcome.largest_segment > newest:
        yield (
            f"The log takes up to {size(outcome.disk_bytes.most)} for {size(newest)} of newest records: the active "
            f"segment is never cleaned. Lower {setting_words('segment.bytes', config.effective_segment_bytes)} or "
            f"{setting_words('segment.ms', config.segment_ms)}."
        )


def _rounded(ms: int) -> int:
    """Return the greatest round span of at most `ms`; 1 if there is none."""
    return max((span for span in _ROUND if span <= ms), default=1)
