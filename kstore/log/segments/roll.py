"""The limits at which a new segment is started (SEMANTICS 2.2). No I/O.

`limits` turns a configuration and the capacities of index files into thresholds; `_should_roll` in
`log/writing/_appender.pyx` compares them with each append.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class RollLimits:
    """Thresholds above which the active segment is rolled.

    `segment_bytes` limits the segment including the bytes to append, `wait_ms` the time since its first batch. An index
    is full at its entry count; the time index keeps one slot for the closing entry (SEMANTICS 3.3).
    """

    segment_bytes: int
    wait_ms: int
    offset_entries: int
    time_entries: int


def draw_jitter(config: LogConfig) -> int:
    """Return the random ms by which a segment rolls earlier: 0 to `min(jitter, segment.ms) - 1` (SEMANTICS 2.6)."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return random.randrange(most) if most > 0 else 0


def limits(config: LogConfig, *, jitter_ms: int, max_offset_entries: int, max_time_entries: int) -> RollLimits:
    """Return the limits of one segment; `max_*_entries` are the capacities of its index files."""
    wait_ms = config.segment_ms
    if "compact" in config.cleanup_policy:
        wait_ms = min(wait_ms, config.max_compaction_lag_ms)
    return RollLimits(
        segment_bytes=config.effective_segment_bytes,
        wait_ms=wait_ms - jitter_ms,
        offset_entries=max_offset_entries,
        time_entries=max_time_entries - 1,
    )
