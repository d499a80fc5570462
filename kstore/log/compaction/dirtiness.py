"""Computes how dirty a log is: its first dirty and first uncleanable offset, and the bytes between (SEMANTICS 7.2).

Invariant: nothing at or above the last stable offset or the active segment's base is cleanable (SEMANTICS 7.4), so the
bound is rounded down to the base of a segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from kstore.base.numbers import LONG_MAX
from kstore.log.reading.view import SegmentList, View, steadily

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kstore.config.log_config import LogConfig
    from kstore.log.segments.segment import Segment

Bound: TypeAlias = Literal["active segment", "open transaction", "min.compaction.lag.ms"]


class Youngest(NamedTuple):
    """The first segment that `min.compaction.lag.ms` excludes from cleaning."""

    base_offset: int
    timestamp: int  # its greatest timestamp, or its file's time if no batch has one
    of_file: bool  # whether `timestamp` is the file's time
    offset: int  # the last offset of the batch that has the timestamp; the base offset if it is the file's time


class Oldest(NamedTuple):
    """The dirty segment with the oldest first batch: `max.compaction.lag.ms` counts from it."""

    base_offset: int
    timestamp: int  # the greatest timestamp of its first batch


class Dirtiness(NamedTuple):
    """The dirty part of a log at one time (SEMANTICS 7.2)."""

    first_dirty_offset: int
    """Where cleaning starts: the checkpoint's line, or the log start."""

    reset: str
    """Why the checkpoint's line was not used, in words; "" if it was, or if there is none."""

    first_uncleanable_offset: int
    """Where cleaning ends: the base of a segment. Nothing is cleanable if it is below the first dirty offset."""

    bound: Bound
    """What ends the cleanable part."""

    clean_bytes: int
    """Bytes of the segments that start below the first dirty offset."""

    cleanable_bytes: int
    """Bytes of the segments from the one that holds the first dirty offset up to the first uncleanable offset. A
    segment with the first dirty offset in its middle counts in both sums, as in Kafka."""

    ratio: float | None
    """The cleanable bytes' share of both sums. If both are 0 it is None, and the log is not selected."""

    forced: bool
    """Whether `max.compaction.lag.ms` forces a cleaning at any ratio."""

    youngest: Youngest | None
    """The segment that `min.compaction.lag.ms` holds back; None if it holds back none."""

    oldest: Oldest | None
    """The segment that `max.compaction.lag.ms` counts from; None without a limit or without any timestamp."""

    stable_offset: int
    """The last stable offset: nothing at or above it is cleanable."""

    active_base_offset: int
    """The active segment's base offset; the log start in a log without segments."""

    def is_eligible(self, min_cleanable_dirty_ratio: float) -> bool:
        """Return whether housekeeping may select the log (SEMANTICS 7.3); the ratio must be above its bound."""
        if self.ratio is None:
            return False
        return self.ratio > min_cleanable_dirty_ratio or (self.forced and self.cleanable_bytes > 0)

    @property
    def is_cleanable(self) -> bool:
        """Whether a pass over the log has anything to read."""
        return self.cleanable_bytes > 0 and self.first_uncleanable_offset > self.first_dirty_offset


def survey(view: View, config: LogConfig, now_ms: int, first_dirty_line: int | None, *, lag: bool = True) -> Dirtiness:
    """Return how dirty a log is (SEMANTICS 7.2). Changes nothing, takes no lock.

    `first_dirty_line` is the log's line of `cleaner-offset-checkpoint`. Without `lag` neither `min.compaction.lag.ms`
    nor `max.compaction.lag.ms` counts. Reads no batch, except that a segment finds its timestamps once.
    """
    return steadily(_survey, view, config, now_ms, first_dirty_line, lag, view=view)


def _survey(view: View, config: LogConfig, now_ms: int, line: int | None, lag: bool) -> Dirtiness:
    stable = view.stable_end_offset  # before the segments: the log may roll in between
    segments = view.segments
    start, end = view.log_start_offset, view.log_end_offset
    first_dirty, reset = _first_dirty(line, start, end)
    if not segments.items:
        return Dirtiness(first_dirty, reset, start, "active segment", 0, 0, None, False, None, None, stable, start)
    active_base = segments.bases[-1]
    dirty = closed_from(segments, first_dirty)
    least_lag_ms = config.min_compaction_lag_ms if lag else 0
    youngest = _youngest(view, dirty, now_ms - least_lag_ms) if least_lag_ms > 0 else None
    bound: Bound = "active segment"
    bound_offset = active_base
    if stable < bound_offset:
        bound, bound_offset = "open transaction", stable
    if youngest is not None and youngest.base_offset < bound_offset:
        bound, bound_offset = "min.compaction.lag.ms", youngest.base_offset
    bound_offset = max(first_dirty, bound_offset)
    uncleanable = active_base
    if bound_offset < active_base:
        uncleanable = segments.bases[max(segments.floor(bound_offset), 0)]
    clean_bytes = _bytes(view, [segment for segment in segments.items if segment.base_offset < first_dirty])
    cleanable = [segment for segment in dirty if segment.base_offset < uncleanable]
    cleanable_bytes = _bytes(view, cleanable) if uncleanable > first_dirty else 0
    total = clean_bytes + cleanable_bytes
    oldest = _oldest(dirty) if lag and config.max_compaction_lag_ms < LONG_MAX else None
    return Dirtiness(
        first_dirty_offset=first_dirty,
        reset=reset,
        first_uncleanable_offset=uncleanable,
        bound=bound,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=cleanable_bytes / total if total else None,
        forced=oldest is not None and oldest.timestamp < now_ms - config.max_compaction_lag_ms,
        youngest=youngest,
        oldest=oldest,
        stable_offset=stable,
        active_base_offset=active_base,
    )


def _first_dirty(line: int | None, start: int, end: int) -> tuple[int, str]:
    """Return the first dirty offset, and why the line was not used."""
    if line is None:
        return start, ""
    if line < start:
        return start, f"the checkpoint's first dirty offset {line} is below the log start {start}"
    if line > end:
        return start, f"the checkpoint's first dirty offset {line} is above the log end {end}"
    return line, ""


def closed_from(segments: SegmentList, offset: int) -> Sequence[Segment]:
    """Return the closed segments from the one that holds `offset` on."""
    if not segments.items or offset >= segments.bases[-1]:
        return ()
    return segments.items[max(segments.floor(offset), 0) : -1]


def _bytes(view: View, segments: Sequence[Segment]) -> int:
    return sum(view.readable_bytes(segment) for segment in segments)


def _youngest(view: View, dirty: Sequence[Segment], latest_ms: int) -> Youngest | None:
    """Return the first of these segments whose greatest timestamp is above `latest_ms`."""
    for segment in dirty:
        timestamp, offset, of_file = timestamp_of(view, segment)
        if timestamp > latest_ms:
            return Youngest(segment.base_offset, timestamp, of_file, offset)
    return None


def timestamp_of(view: View, segment: Segment) -> tuple[int, int, bool]:
    """Return a segment's greatest timestamp, its offset, and whether it is the time of the file (SEMANTICS 6.6)."""
    timestamp, offset = view.maximum(segment)
    if timestamp < 0:
        return segment.largest_timestamp(), segment.base_offset, True
    return timestamp, offset, False


def _oldest(dirty: Sequence[Segment]) -> Oldest | None:
    """Return the segment with the earliest first batch; a timestamp of 0 or below is ignored."""
    timestamps = [(segment.first_timestamp(), segment.base_offset) for segment in dirty]
    known = [(timestamp, base) for timestamp, base in timestamps if timestamp is not None and timestamp > 0]
    if not known:
        return None
    timestamp, base_offset = min(known)
    return Oldest(base_offset, timestamp)
