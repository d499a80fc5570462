"""Makes the facts of a plan from a simulation that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from kstore.disk import openfiles
from kstore.explained.explained_plan import Load, Plan, PlannedRange, PlannedSegment
from kstore.explained.time_scale import duration
from kstore.log.explaining.deciding_settings import deciding
from kstore.log.writing.active_segment import DESCRIPTORS
from kstore.planning.load_stretches import DAY_MS
from kstore.planning.plan_advice import Outcome, advice
from kstore.planning.space_over_time import of_pieces, over_time, thinned
from kstore.store.cleaner import limits_of

if TYPE_CHECKING:
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.planning.growing_segment import SealedSegment
    from kstore.planning.simulation import Simulation

MOST_LISTED = 1000
"""The segments that a plan lists."""
_FILES_BESIDE = 2  # leader-epoch-checkpoint and partition.metadata
_FILES_OF_SEGMENT = 4  # the log, two indexes, and the snapshot that the roll to it writes
_ROLLS = {
    "time": "segment.ms",
    "offset_index_full": "segment.index.bytes",
    "time_index_full": "segment.index.bytes",
}
_DELETIONS = {
    "time": "retention.ms",
    "size": "retention.bytes",
    "compaction": "min.cleanable.dirty.ratio",
}


def facts_of(simulation: Simulation, config: LogConfig, broker: BrokerConfig, load: Load) -> Plan:
    """Return the facts of a plan."""
    start_ms = simulation.start_ms
    steady_ms, until_ms = simulation.steady_ms, simulation.until_ms
    since_ms = start_ms if steady_ms is None else steady_ms
    space = simulation.space
    disk, live = over_time(space.disk.points(since_ms, until_ms)), over_time(space.segments.points(since_ms, until_ms))
    life = of_pieces(simulation.lives)
    delay_ms = config.file_delete_delay_ms
    kept = max(count for _, count in space.kept.points(start_ms, until_ms))
    files = kept * _FILES_OF_SEGMENT + _FILES_BESIDE - (steady_ms is None)  # the very first has no snapshot
    decided = deciding(config, broker, simulation.checks.every_ms)
    outcome = _outcome(simulation, broker, config, load, (life, live, disk), files)
    return Plan(
        settings=decided.settings,
        given=decided.given,
        load=load,
        duration_ms=simulation.end_ms - start_ms,
        steady_ms=None if steady_ms is None else steady_ms - start_ms,
        segments=tuple(_listed(simulation)),
        segment_count=sum(simulation.rolls.values()) + 1,
        roll_reasons=dict(simulation.rolls.most_common()),
        disk=tuple((ms - start_ms, value) for ms, value in thinned(space.disk.points(start_ms, until_ms))),
        disk_bytes=disk,
        index_bytes=over_time(space.indexes.points(since_ms, until_ms)),
        life_ms=life,
        freed_ms=None if life is None else PlannedRange(*(each + delay_ms for each in life)),
        live_segments=live,
        files=files,
        descriptors=min(DESCRIPTORS + live.most - 1, max(openfiles.limit(), DESCRIPTORS)),
        first_acting=_first_acting(simulation, config),
        advice=advice(config, broker, load, outcome),
        simulated_ms=None if until_ms == simulation.end_ms else until_ms - start_ms,
        period_ms=simulation.period_ms,
        cleanings=simulation.passes,
        notes=tuple(_notes(simulation, config, load, life)),
    )


def _outcome(
    simulation: Simulation,
    broker: BrokerConfig,
    config: LogConfig,
    load: Load,
    ranges: tuple[PlannedRange | None, PlannedRange, PlannedRange],
    files: int,
) -> Outcome:
    life, live, disk = ranges
    log = simulation.log
    deletions: Counter[str] = Counter()
    for part in simulation.deleted:
        deletions[part.reason] += part.end - part.first
    seen = [part.run.at(number) for part in simulation.deleted for number in {part.first, part.end - 1}]
    seen += [run.at(number) for run in log.sealed.runs for number in {run.gone, len(run) - 1}]
    if log.growing.size_bytes:
        seen.append(log.growing.sealed(""))
    idle_ms = sum(end - first for first, end in load.idle)
    return Outcome(
        rolls=simulation.rolls,
        deletions=deletions,
        life_ms=life,
        live_segments=live,
        disk_bytes=disk,
        largest_segment=max((segment.size_bytes for segment in seen), default=0),
        longest_fill_ms=max((segment.last_ms - segment.first_ms for segment in seen), default=0),
        offset_entries=max((segment.offset_entries for segment in seen), default=0),
        files=files,
        bytes_a_day=int(load.rate * load.record_bytes * (DAY_MS - idle_ms) / 1000),
        map_keys=limits_of(broker, config.max_message_bytes).map_keys,
        duration_ms=simulation.end_ms - simulation.start_ms,
    )


def _listed(simulation: Simulation) -> list[PlannedSegment]:
    """Return the first segments."""
    start_ms = simulation.start_ms

    def planned(segment: SealedSegment, deleted_ms: int | None, delete_reason: str | None) -> PlannedSegment:
        return PlannedSegment(
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            first_ms=segment.first_ms - start_ms,
            last_ms=segment.last_ms - start_ms,
            roll_reason=segment.reason or None,
            deleted_ms=None if deleted_ms is None else deleted_ms - start_ms,
            delete_reason=delete_reason,
            offset_index_entries=segment.offset_entries,
            time_index_entries=segment.time_entries,
        )

    def each() -> Iterator[PlannedSegment]:
        for part in simulation.deleted:
            for segment in part.run.each(part.first, part.end):
                yield planned(segment, part.ms, part.reason)
        for segment in simulation.log.sealed.each():
            yield planned(segment, None, None)
        growing = simulation.log.growing
        if growing.size_bytes and simulation.until_ms == simulation.end_ms:
            active = growing.sealed("")
            yield planned(active._replace(time_entries=growing.time_entries), None, None)

    return sorted(islice(each(), MOST_LISTED), key=lambda segment: (segment.base_offset, segment.deleted_ms or 0))


def _first_acting(simulation: Simulation, config: LogConfig) -> str | None:
    roll, deletion = simulation.log.first_roll, simulation.first_deletion
    if deletion is not None and (roll is None or deletion[0] <= roll[0]):
        return _DELETIONS[deletion[1]]
    if roll is None:
        return None
    if roll[1] == "size":
        return "segment.bytes" if config.internal_segment_bytes is None else "internal.segment.bytes"
    if roll[1] == "time" and config.compacts and config.max_compaction_lag_ms < config.segment_ms:
        return "max.compaction.lag.ms"
    return _ROLLS.get(roll[1])


def _notes(simulation: Simulation, config: LogConfig, load: Load, life: PlannedRange | None) -> Iterator[str]:
    """Say what the plan takes for granted, and how exact it is."""
    if simulation.is_cut:
        run_ms = simulation.until_ms - simulation.start_ms
        since = "" if simulation.first_deletion is None else " after the first deletion"
        yield (
            f"Every event was simulated for {duration(run_ms)}; the rest is taken to go on like the part of it{since}."
        )
    if not simulation.log.is_exact:
        yield (
            "The segments of this load do not repeat: some of them stand for those that follow, so that counts are not "
            "exact."
        )
    yield (
        "Sizes on the disk are whole blocks of 4 KiB. The index files of the active segment look larger, "
        f"{config.segment_index_bytes:,} bytes each: they are preallocated, and only their entries take blocks."
    )
    if config.segment_jitter_ms:
        yield (
            f"segment.jitter.ms is not drawn: segments may be left up to {duration(config.segment_jitter_ms)} earlier."
        )
    if config.compacts:
        yield "Keys come in turns, no record is a tombstone, and a cleaning takes no time."
    is_by_time = config.retention_bytes < 0 and not config.compacts
    if load.skew_ms and is_by_time and life is not None and life.least < config.retention_ms:
        yield (
            f"Retention counts from timestamps, which are up to {duration(load.skew_ms)} behind: a record may go "
            f"{duration(life.least)} after its append."
        )
