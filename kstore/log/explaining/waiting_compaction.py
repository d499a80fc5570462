"""Says of each segment of a compacted log what compaction waits for there, from the log's `CompactionOutlook`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.base import times

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.types import CompactionOutlook, SegmentInfo


def waits_for(segment: SegmentInfo, outlook: CompactionOutlook, config: LogConfig, at_ms: int) -> str | None:
    """Return what compaction waits for in a segment; None if the policy has no compact."""
    if not config.compacts:
        return None
    if segment.is_active:
        return "the active segment is never cleaned: it waits for a roll"
    if segment.base_offset >= outlook.first_uncleanable_offset:
        return _of_bound(outlook, config)
    if segment.next_offset <= outlook.first_dirty_offset:
        return "it is clean; cleanings of later segments drop what newer records supersede here"
    dirty = f"its offsets from {max(segment.base_offset, outlook.first_dirty_offset)} on are dirty"
    if outlook.due_ms is None:
        return f"{dirty}; {_of_ratio(outlook, config)}"
    if outlook.due_ms <= at_ms:
        return f"{dirty}; the next pass of a cleaner cleans it"
    return f"{dirty}; a pass of a cleaner cleans it from {times.show(outlook.due_ms)} on"


def _of_bound(outlook: CompactionOutlook, config: LogConfig) -> str:
    end = outlook.first_uncleanable_offset
    if outlook.transaction_offset is not None:
        who = "an open transaction"
        if outlook.transaction_producer_id is not None:
            who = f"the transaction of producer id {outlook.transaction_producer_id}"
        begins = f"open since offset {outlook.transaction_offset}"
        return f"nothing from offset {end} on is cleaned before {who}, {begins}, ends"
    if outlook.held_timestamp is not None:
        until = times.show(outlook.held_timestamp + config.min_compaction_lag_ms)
        lag = f"min.compaction.lag.ms = {times.span(config.min_compaction_lag_ms)}"
        return f"{lag} holds offsets from {end} on until {until}"
    return f"nothing from offset {end} on is cleaned now"


def _of_ratio(outlook: CompactionOutlook, config: LogConfig) -> str:
    least = config.min_cleanable_dirty_ratio
    if outlook.ratio is None:
        return "no bytes are cleanable"
    return f"{outlook.ratio:.4g} of the log is dirty, and a pass takes it above min.cleanable.dirty.ratio = {least:.4g}"
