"""Says why a log rolled: what it remembers, or else what sizes, times and index entries show (SEMANTICS 2.2).

The rules are those of `_should_roll` in `log/writing/_appender.pyx`, in its order, and see what an append saw: the
segment, and the first batch of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore.base import times
from kstore.base.numbers import INT_MAX
from kstore.files._index_search import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kstore.log.segments.roll import limits

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.files._log_search import BatchPlace
    from kstore.log.explaining.described_segments import Described
    from kstore.log.segments.roll import RollLimits


class Cause(NamedTuple):
    """Why a log rolled from a segment: the reason's name, whether it is inferred, and the reason in words."""

    reason: str | None
    is_inferred: bool
    explanation: str


class Rolled(NamedTuple):
    """What an append that rolled the log saw: the segment, and the batch that became the first of the next one."""

    left: Described
    batch: BatchPlace


class RollRules:
    """The rules of a configuration. Immutable; thread-safe."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._limits: RollLimits = limits(
            config,
            jitter_ms=0,
            max_offset_entries=config.segment_index_bytes // OFFSET_ENTRY_BYTES,
            max_time_entries=config.segment_index_bytes // TIME_ENTRY_BYTES,
        )
        self._most_jitter_ms = max(min(config.segment_jitter_ms, config.segment_ms) - 1, 0)
        self._rules: Sequence[tuple[str, Callable[[Rolled], str | None]]] = (
            ("size", self._by_size),
            ("time", self._by_time),
            ("offset_index_full", self._by_offset_index),
            ("time_index_full", self._by_time_index),
            ("offset_range", self._by_range),
        )

    def cause(self, left: Described, following: Described, first_dirty_offset: int) -> Cause:
        """Return why the log rolled from a segment to the next.

        Below `first_dirty_offset` of a compacted log a cleaning may have written the segments.
        """
        known = following.segment.roll_reason
        if known is not None:
            return Cause(known, False, self._known(known, left, following))
        is_clean = self._config.compacts and following.info.base_offset <= first_dirty_offset
        found = None
        if following.first_batch is not None and left.info.size_bytes > 0:
            found = self._inferred(Rolled(left, following.first_batch))
        if found is not None:
            reason, why = found
            return Cause(reason, True, f"{why}, unless a cleaning has changed that" if is_clean else why)
        if is_clean:
            why = (
                f"a cleaning may have written it: offsets below {first_dirty_offset} are clean, and a cleaning groups "
            )
            return Cause("compaction", True, f"{why}segments by the size that they have before it")
        return Cause(None, True, self._unexplained(left, following))

    def of_active(self, active: Described) -> str:
        """Return what the log waits for before it rolls from the active segment."""
        info, most = active.info, self._limits
        if not info.size_bytes:
            return "it is the active segment, and empty: its first batch begins its time"
        ways = [f"with a batch of more than {max(most.segment_bytes - info.size_bytes, 0)} bytes (segment.bytes)"]
        if info.first_timestamp >= 0:
            jitter = f", less up to {times.span(self._most_jitter_ms)} of jitter" if self._most_jitter_ms else ""
            after = f"{times.show(info.first_timestamp + most.wait_ms)} ({self._time_setting}{jitter})"
            ways.append(f"with a batch from after {after}")
        else:
            ways.append(f"with a batch {times.span(most.wait_ms)} after it was created or opened (segment.ms)")
        left = most.offset_entries - info.offset_index_entries, most.time_entries - info.time_index_entries
        ways.append(f"after {max(min(left), 0)} more index entries (segment.index.bytes)")
        return f"it is the active segment; the log rolls {', '.join(ways[:-1])} or {ways[-1]}"

    # What is known.

    def _known(self, reason: str, left: Described, following: Described) -> str:
        if reason == "explicit":
            return "a call of roll, or a bulk load, began the next segment"
        if reason == "retention":
            return "retention deletes it although it was active, so the log rolled first"
        if following.first_batch is not None:
            rolled = Rolled(left, following.first_batch)
            for name, rule in self._rules:
                if name == reason and (why := rule(rolled)) is not None:
                    return why
            if reason == "time" and (why := self._by_jitter(rolled)) is not None:
                return why
            if reason == "time" and left.info.first_timestamp < 0:
                return f"its records have no timestamps, and it was made more than {self._time_setting} before the roll"
        return _SINCE_CHANGED.get(reason, f"the log noted: {reason}")

    # What is inferred.

    def _inferred(self, rolled: Rolled) -> tuple[str, str] | None:
        for name, rule in self._rules:
            if (why := rule(rolled)) is not None:
                return name, why
        if (why := self._by_jitter(rolled)) is not None:
            return "time", why
        return None

    def _by_size(self, rolled: Rolled) -> str | None:
        size, more, most = rolled.left.info.size_bytes, rolled.batch.size_bytes, self._limits.segment_bytes
        if size <= most - more:
            return None
        name = "segment.bytes" if self._config.internal_segment_bytes is None else "internal.segment.bytes"
        return f"its {size} bytes and the next batch of {more} bytes are more than {name} = {most}"

    @property
    def _time_setting(self) -> str:
        is_lag = self._limits.wait_ms < self._config.segment_ms
        return f"{'max.compaction.lag.ms' if is_lag else 'segment.ms'} = {times.span(self._limits.wait_ms)}"

    def _waited(self, rolled: Rolled) -> int | None:
        first = rolled.left.info.first_timestamp
        return rolled.batch.max_timestamp - first if first >= 0 else None

    def _by_time(self, rolled: Rolled) -> str | None:
        waited = self._waited(rolled)
        if waited is None or waited <= self._limits.wait_ms:
            return None
        when = times.show(rolled.batch.max_timestamp)
        return f"the next batch is from {when}, {times.span(waited)} after its first batch; {self._time_setting}"

    def _by_jitter(self, rolled: Rolled) -> str | None:
        waited = self._waited(rolled)
        if waited is None or not self._limits.wait_ms - self._most_jitter_ms < waited <= self._limits.wait_ms:
            return None
        when = times.show(rolled.batch.max_timestamp)
        return (
            f"the next batch is from {when}, {times.span(waited)} after its first batch, and {self._time_setting} is "
            f"shortened by up to {times.span(self._most_jitter_ms)} of jitter"
        )

    def _by_offset_index(self, rolled: Rolled) -> str | None:
        entries, most = rolled.left.info.offset_index_entries, self._limits.offset_entries
        if entries < most:
            return None
        return (
            f"its offset index is full: {entries} entries in segment.index.bytes = {self._config.segment_index_bytes}"
        )

    def _by_time_index(self, rolled: Rolled) -> str | None:
        entries, most = rolled.left.info.time_index_entries, self._limits.time_entries
        # The entry that the roll adds in the reserved slot may be the last one: then the index was not full before.
        if entries < most or (entries == most and not _ends_indexed(rolled.left)):
            return None
        return (
            f"its time index is full: {entries} entries; segment.index.bytes = {self._config.segment_index_bytes} has "
            f"room for {most + 1}, and one is reserved for the roll"
        )

    def _by_range(self, rolled: Rolled) -> str | None:
        reach = rolled.batch.last_offset - rolled.left.info.base_offset
        if 0 <= reach <= INT_MAX:
            return None
        return f"the next batch ends {reach} offsets after its base offset, and an index entry can hold {INT_MAX}"

    def _unexplained(self, left: Described, following: Described) -> str:
        if following.damage is not None:
            return f"the first batch of the next segment is damaged, so what it shows is not known: {following.damage}"
        causes = ["a call of roll or a bulk load", "other settings at that time"]
        if left.info.first_timestamp < 0 < left.info.size_bytes:
            causes.append("segment.ms, which counts from the creation of a segment without timestamps")
        if following.first_batch is not None:
            causes.append("an append of several batches, which counts as one")
        return f"no limit of these settings explains it; it may be {', '.join(causes[:-1])}, or {causes[-1]}"


_SINCE_CHANGED = {
    "size": "the next batch would have made it larger than segment.bytes allowed then",
    "time": "the next batch was more than segment.ms, as it was then, after its first batch",
    "offset_index_full": "its offset index was full",
    "time_index_full": "its time index was full",
    "offset_range": "an index entry could not hold the offset of the next batch",
}


def _ends_indexed(left: Described) -> bool:
    """Return whether the last batch of a segment has an entry in the offset index (SEMANTICS 3.17)."""
    return left.segment.offset_index.last[0] == left.info.next_offset - 1
