"""When a new segment is started: a decision, no I/O (SEMANTICS.md 2.2).

`limits` turns a configuration and a segment into the thresholds that the compiled appender compares with; `reason`
is the same rule said in Python, for whoever explains or simulates, and the tests hold the two together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.config import LogConfig

INT_MAX = 2**31 - 1

# By the appender's codes -2, -3, ...: the order in which the rule is tried.
REASONS = ("size", "time", "offset_index_full", "time_index_full", "offset_range")


@dataclass(frozen=True, slots=True)
class RollLimits:
    """Beyond what a segment is left.

    `segment_bytes` holds the segment and the bytes to come, `wait_ms` the time since its first batch, the entry
    counts are those at which an index is full (one slot of the time index is kept for the closing entry, 3.3).
    """

    segment_bytes: int
    wait_ms: int
    offset_entries: int
    time_entries: int


def draw_jitter(config: LogConfig) -> int:
    """Draw by how many milliseconds one segment's time limit is shortened: `[0, min(jitter, segment.ms) - 1]` (2.6)."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return random.randrange(most) if most > 0 else 0


def limits(config: LogConfig, *, jitter_ms: int, max_offset_entries: int, max_time_entries: int) -> RollLimits:
    """Compute the limits of one segment; `max_*_entries` are what its index files have room for."""
    wait_ms = config.segment_ms
    if "compact" in config.cleanup_policy:
        wait_ms = min(wait_ms, config.max_compaction_lag_ms)
    return RollLimits(
        segment_bytes=config.effective_segment_bytes,
        wait_ms=wait_ms - jitter_ms,
        offset_entries=max_offset_entries,
        time_entries=max_time_entries - 1,
    )


def reason(
    limits: RollLimits,
    *,
    base_offset: int,
    size_bytes: int,
    waited_ms: int,
    offset_entries: int,
    time_entries: int,
    append_bytes: int,
    append_last_offset: int,
) -> str | None:
    """Say why an append of `append_bytes` starts a new segment, or None when it does not.

    `waited_ms` is the append's greatest timestamp minus that of the segment's first batch, or the age by the clock
    where the first batch has no timestamp (2.4).
    """
    if size_bytes > limits.segment_bytes - append_bytes:
        return "size"
    if size_bytes > 0 and waited_ms > limits.wait_ms:
        return "time"
    if offset_entries >= limits.offset_entries:
        return "offset_index_full"
    if time_entries >= limits.time_entries:
        return "time_index_full"
    if not 0 <= append_last_offset - base_offset <= INT_MAX:
        return "offset_range"
    return None
