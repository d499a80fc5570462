"""Says what happens to a record from now on, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kstore.base import times
from kstore.log.explaining.check_times import told

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import CheckTimes, ExplainedSegment
    from kstore.log.explaining.kept_segments import Kept
    from kstore.log.explaining.newer_record import Newer
    from kstore.log.explaining.record_walk import Walk

_BY = {
    "size": "segment.bytes",
    "time": "segment.ms",
    "offset_index_full": "segment.index.bytes, because its offset index was full",
    "time_index_full": "segment.index.bytes, because its time index was full",
    "offset_range": "the range of offsets that an index entry can hold",
    "explicit": "a call of roll or a bulk load",
    "retention": "retention, which deletes the active segment only after a roll",
    "compaction": "a cleaning, which wrote this segment",
}


class Fate(NamedTuple):
    """What decides about a record: its segment, what keeps that, who checks, and the settings."""

    segment: ExplainedSegment
    kept: Kept
    checks: CheckTimes
    config: LogConfig


def future(found: Walk, fate: Fate, newer: Newer | None) -> tuple[str, ...]:
    """Return what happens to a record, in the order of time; `newer` is what was found of its key above it."""
    of_cleaning = _compaction(found, fate.config, newer) if fate.config.compacts else ()
    return (*_state(found), *_roll(fate), *_deletion(fate), *of_cleaning)


def _state(found: Walk) -> Iterator[str]:
    if found.record is None:
        yield "A cleaning has removed the record; its batch keeps the offset."
    elif found.batch.is_control:
        yield "It is the marker that ends a transaction."


def _roll(fate: Fate) -> Iterator[str]:
    segment = fate.segment
    if segment.is_active:
        yield "Its segment is the active one: it goes on growing until the log rolls."
        return
    when = "" if segment.rolled_ms is None else f" at {times.show(segment.rolled_ms)}"
    if segment.roll_reason is None:
        yield f"The log rolled to the next segment{when}; why is not known."
    else:
        seems = "seems to have rolled" if segment.is_roll_inferred else "rolled"
        yield f"The log {seems} to the next segment{when} by {_BY.get(segment.roll_reason, segment.roll_reason)}."


def _deletion(fate: Fate) -> Iterator[str]:
    kept, config, when = fate.kept, fate.config, fate.kept.when
    delay = f"Its bytes leave the disk {times.span(config.file_delete_delay_ms)} after that."
    check = _capitalised(told(fate.checks, when))
    if kept.holds == ("check",):
        yield f"It can be deleted now: {kept.explanation}."
        yield delay
        return
    if "future_record" in kept.reasons:
        from_ms = times.show(fate.segment.max_timestamp)
        yield f"A record of its segment is from {from_ms}, ahead of the clock, and retention.ms counts from that."
    if when.earliest_ms is not None and kept.due_ms is not None:
        why = f"the newest record of its segment is older than retention.ms = {times.span(config.retention_ms)}"
        if "earlier_segment" in kept.reasons:
            yield f"{_capitalised(kept.reasons['earlier_segment'])}."
            why = "that segment goes"
        unless = ", unless more is appended to its segment" if fate.segment.is_active else ""
        yield f"It can be deleted from {times.show(kept.due_ms)} on, when {why}{unless}."
        yield f"{check} deletes it."
        yield delay
    if kept.bytes_left is not None:
        grown = f"once the log has grown by {kept.bytes_left} bytes"
        yield f"It can be deleted by retention.bytes = {config.retention_bytes} {grown}."
    if when.earliest_ms is None and kept.bytes_left is None:
        yield f"Nothing deletes it: {kept.explanation}."


def _compaction(found: Walk, config: LogConfig, newer: Newer | None) -> Iterator[str]:
    record = found.record
    if record is None or found.batch.is_control:
        return
    if newer is None:
        yield "It has no key, so the next cleaning of its segment drops it."
        return
    if newer.offset >= 0:
        where = f"at offset {newer.offset}"
        yield f"A newer record of its key is {where}: the next cleaning that reads both removes this one."
        return
    yield f"No newer record of its key is below offset {newer.end_offset}: compaction keeps it until there is one."
    if record.value is None:
        kept = times.span(config.delete_retention_ms)
        since = f"delete.retention.ms = {kept} after the first cleaning that keeps it"
        if found.batch.delete_horizon_ms is not None:
            since = f"from {times.show(found.batch.delete_horizon_ms)} on"
        yield f"It is a tombstone: a cleaning drops it {since}."


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
