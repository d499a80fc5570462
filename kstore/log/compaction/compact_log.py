"""`Log.compact`: cleans a log on request, in one or more rounds, regardless of its dirty ratio and lags.

Works on a log's `Writer`, or for a dry run on any view. `store.cleaner` selects the logs that a store cleans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kstore.errors import PolicyViolationError
from kstore.log.compaction.compaction_outlook import first_dirty_line
from kstore.log.compaction.dirtiness import survey
from kstore.log.compaction.passes import DEFAULT_LIMITS, CleanerLimits, clean, last_records_of, nothing, try_out
from kstore.log.reading.view import steadily
from kstore.log.writing.cleaning_guard import CleaningAbortedError
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.reading.read_only_view import ReadOnlyView
    from kstore.types import CompactionStats

Progress = Callable[[int, int], None]

# A dry run writes nothing from which a second round could continue, so its map must hold all keys.
TRIAL_KEYS = (1 << 32) - 1


def compact(
    writer: Writer,
    *,
    limits: CleanerLimits = DEFAULT_LIMITS,
    throttle: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> CompactionStats:
    """Clean everything that is cleanable, in as many rounds as the offset map needs.

    Waits for a running cleaning and for pauses. Repeats a round that a truncation or deletion aborts. Raises
    `PolicyViolationError` if the policy lacks `compact`, and the errors of `passes.compact`.
    """
    total: CompactionStats | None = None
    while True:
        try:
            with writer.cleaning.running(wait=True):
                refuse_policy(writer.config)
                line = first_dirty_line(writer)
                dirtiness = survey(writer, writer.config, writer.now(), line, lag=False)
                stats = clean(writer, dirtiness, limits, throttle=throttle, progress=progress)
        except CleaningAbortedError:
            continue
        total = stats if total is None else _sum(total, stats)
        if not stats.map_full or stats.first_dirty_offset <= stats.first_dirty_offset_before:
            return total


def try_compact(
    view: Writer | ReadOnlyView,
    config: LogConfig,
    now_ms: int,
    *,
    limits: CleanerLimits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> CompactionStats:
    """Return what `compact` would do now; writes nothing. Its offset map grows with the keys and is never full."""
    refuse_policy(config)
    limits = limits._replace(map_keys=TRIAL_KEYS)
    return steadily(_try, view, config, now_ms, limits, progress, view=view)


def _try(
    view: Writer | ReadOnlyView, config: LogConfig, now_ms: int, limits: CleanerLimits, progress: Progress | None
) -> CompactionStats:
    dirtiness = survey(view, config, now_ms, first_dirty_line(view), lag=False)
    if not view.segments.items:
        return nothing(dirtiness.first_dirty_offset, dry_run=True)
    look_up = (lambda: last_records_of(view)) if isinstance(view, Writer) else view.last_records
    return try_out(view, config, dirtiness, limits, now_ms=now_ms, last_records=look_up, progress=progress)


def refuse_policy(config: LogConfig) -> None:
    if not config.compacts:
        policy = ",".join(config.cleanup_policy) or "empty"
        raise PolicyViolationError(f"cleanup.policy is {policy}; only a log whose policy has 'compact' is compacted")


def _sum(total: CompactionStats, stats: CompactionStats) -> CompactionStats:
    """Return the statistics of two rounds together; the later round has read the output of the earlier one again."""
    return replace(
        stats,
        first_dirty_offset_before=total.first_dirty_offset_before,
        records_before=total.records_before + max(stats.records_before - total.records_after, 0),
        bytes_before=total.bytes_before + max(stats.bytes_before - total.bytes_after, 0),
        segments_before=total.segments_before + max(stats.segments_before - total.segments_after, 0),
        keys=total.keys + stats.keys,
        tombstones_removed=total.tombstones_removed + stats.tombstones_removed,
        keyless_dropped=total.keyless_dropped + stats.keyless_dropped,
        rounds=total.rounds + stats.rounds,
        map_full=total.map_full or stats.map_full,
        seconds=total.seconds + stats.seconds,
    )
