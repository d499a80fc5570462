"""Assembles the `Explanation` of a log from one state of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kstore.config.broker_config import BrokerConfig
from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation
from kstore.log.compaction.compaction_outlook import outlook as compaction_outlook
from kstore.log.explaining.check_times import checks_of
from kstore.log.explaining.deciding_settings import deciding
from kstore.log.explaining.deleted_files import deleted_files
from kstore.log.explaining.described_segments import Described, Snapshot, describe_with_batches, snapshot
from kstore.log.explaining.kept_segments import Kept, Moment, keep
from kstore.log.explaining.newer_record import Newer, next_of_key
from kstore.log.explaining.record_future import Fate, future
from kstore.log.explaining.record_walk import Target, Walk, walk
from kstore.log.explaining.roll_causes import Cause, RollRules
from kstore.log.explaining.unknown_settings import note
from kstore.log.explaining.waiting_compaction import waits_for
from kstore.log.reading import _timestamp_lookup
from kstore.log.reading.view import out_of_range, steadily
from kstore.log.writing.retention import Marks
from kstore.log.writing.retention_run import SegmentFacts
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.reading.read_only_view import ReadOnlyView


_KEY_BYTES = 100  # of a record's key are shown


class Question(NamedTuple):
    """What to explain: the moment, and one record by its offset or by a time.

    `broker` has the settings of its store. `knows_topics` says that the log's settings come from a store.
    """

    at_ms: int
    now_ms: int
    offset: int | None
    timestamp: int | None
    broker: BrokerConfig
    knows_topics: bool


def explain(view: Writer | ReadOnlyView, config: LogConfig, question: Question) -> Explanation:
    """Explain a log as it is now; changes nothing and takes no lock.

    Raises `OffsetOutOfRangeError` for an offset outside of the log, and `CorruptRecordError` if damage hides the last
    stable offset or the asked record.
    """
    return steadily(_explain, view, config, question, view=view)


def _explain(view: Writer | ReadOnlyView, config: LogConfig, question: Question) -> Explanation:
    at_ms = question.at_ms
    stable_end = view.decided_end_offset()
    taken = snapshot(view)
    described = describe_with_batches(view, taken)
    end = taken.log_end_offset
    marks = Marks(taken.log_start_offset, end, end)
    checks = checks_of(view, config, question.broker)
    compaction = compaction_outlook(view, config, at_ms)
    facts = [SegmentFacts(view, each.segment) for each in described]
    kept = keep(facts, config, marks, checks, Moment(at_ms, question.now_ms))
    rules = RollRules(config)
    segments = []
    for each, following, mine in zip(described, [*described[1:], None][: len(described)], kept, strict=True):
        if following is None:
            cause = Cause(None, False, rules.of_active(each))
        else:
            cause = rules.cause(each, following, compaction.first_dirty_offset)
        segments.append(_segment(each, following, cause, mine, waits_for(each.info, compaction, config, at_ms)))
    found = deciding(config, question.broker, checks.interval_ms)
    topic, partition = view.partition
    return Explanation(
        topic=topic,
        partition=partition,
        path=view.directory,
        at_ms=at_ms,
        log_start_offset=marks.log_start_offset,
        log_end_offset=end,
        high_watermark=marks.high_watermark,
        last_stable_offset=stable_end,
        recovery_point=(view.housekeeping if isinstance(view, Writer) else view).recovery_point,
        settings=found.settings,
        given=found.given,
        note=note(view, config, facts, marks, checks, at_ms, knows_topics=question.knows_topics),
        checks=checks,
        segments=tuple(segments),
        deleted=deleted_files(view),
        compaction=compaction,
        record=_record(view, taken, question, lambda number: Fate(segments[number], kept[number], checks, config)),
    )


def _segment(
    each: Described, following: Described | None, cause: Cause, kept: Kept, compaction: str | None
) -> ExplainedSegment:
    info = each.info
    rolled_ms = None if following is None else _timestamp(following.info.first_timestamp)
    return ExplainedSegment(
        base_offset=info.base_offset,
        next_offset=info.next_offset,
        size_bytes=info.size_bytes,
        offset_index_entries=info.offset_index_entries,
        time_index_entries=info.time_index_entries,
        first_timestamp=_timestamp(info.first_timestamp),
        max_timestamp=_timestamp(info.max_timestamp),
        max_timestamp_offset=None if info.max_timestamp < 0 else each.max_timestamp_offset,
        is_active=info.is_active,
        path=info.path,
        roll_reason=cause.reason,
        is_roll_inferred=cause.is_inferred,
        rolled_ms=rolled_ms,
        roll_explanation=cause.explanation,
        holds=kept.holds,
        explanation=kept.explanation,
        due_ms=kept.due_ms,
        bytes_left=kept.bytes_left,
        earliest_ms=kept.when.earliest_ms,
        latest_ms=kept.when.latest_ms,
        freed_ms=kept.when.freed_ms,
        compaction=compaction,
    )


def _timestamp(timestamp: int) -> int | None:
    return timestamp if timestamp >= 0 else None


def _record(
    view: Writer | ReadOnlyView, taken: Snapshot, question: Question, fate_in: Callable[[int], Fate]
) -> ExplainedRecord | None:
    """Return the asked record, with the fate of the segment that has it."""
    start, end = taken.log_start_offset, taken.log_end_offset
    offset, by_time = question.offset, None
    if question.timestamp is not None:
        by_time = _timestamp_lookup.first_at(view, question.timestamp)
        if by_time is None or by_time.offset >= end:  # appended since the snapshot
            return None
        offset = by_time.offset
    if offset is None:
        return None
    if not start <= offset < end:
        raise out_of_range(offset, start, end)
    number = taken.segments.floor(offset)
    target = Target(offset, -1 if question.timestamp is None else question.timestamp, by_time is not None)
    found = walk(view, taken, number, target)
    if found is None:
        return None
    fate = fate_in(number)
    when = fate.kept.when
    record = found.record
    newer = _newer(view, found, fate.config, end)
    is_tombstone = record is not None and not found.batch.is_control and record.key is not None and record.value is None
    return ExplainedRecord(
        offset=offset,
        timestamp=None if record is None else _timestamp(record.timestamp),
        key=None if record is None or record.key is None or found.batch.is_control else _as_text(record.key),
        is_tombstone=is_tombstone,
        segment_base_offset=fate.segment.base_offset,
        batch_offsets=(found.place.base_offset, found.place.last_offset),
        batch_position=found.place.position,
        batch_bytes=found.place.size_bytes,
        compression=found.batch.compression,
        steps=found.steps,
        bytes_scanned=found.bytes_scanned,
        superseded_by=None if newer is None or newer.offset < 0 else newer.offset,
        superseded_timestamp=None if newer is None else _timestamp(newer.timestamp),
        searched_offset=None if newer is None else newer.end_offset,
        tombstone_ms=found.batch.delete_horizon_ms if is_tombstone else None,
        future=future(found, fate, newer),
        earliest_ms=when.earliest_ms,
        latest_ms=when.latest_ms,
        freed_ms=when.freed_ms,
    )


def _newer(view: Writer | ReadOnlyView, found: Walk, config: LogConfig, end_offset: int) -> Newer | None:
    """Return what was found of newer records of a record's key; None if compaction does not ask for it."""
    record = found.record
    if not config.compacts or record is None or record.key is None or found.batch.is_control:
        return None
    return next_of_key(view, record.key, record.offset, end_offset)


def _as_text(key: bytes) -> str:
    text = key[:_KEY_BYTES].decode("utf-8", "backslashreplace")
    return text if len(key) <= _KEY_BYTES else f"{text}\u2026"
