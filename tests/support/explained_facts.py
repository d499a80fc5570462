"""Facts of explanations and plans made by hand: a log that rolls each nine minutes and keeps ten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes, Remedy
from kstore.explained.explained_plan import Load, Plan, PlannedRange, PlannedSegment
from kstore.explained.explanation import (
    CheckTimes,
    ExplainedRecord,
    ExplainedSegment,
    Explanation,
    LookupStep,
)
from kstore.types import CompactionOutlook

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
MINUTE, DAY = 60_000, 86_400_000
YEAR_2030 = 1_900_000_000_000
KEPT = 10 * MINUTE
FILLED = 9 * MINUTE
RECORDS = 109  # of a segment
HOSTILE = '<script>alert("1")</script>&\x1b[31m\u202e\ufffe\U0001f680'

OUTLOOK = CompactionOutlook(
    explanation="cleanup.policy has no compact",
    due_ms=None,
    first_dirty_offset=0,
    first_uncleanable_offset=0,
    clean_bytes=0,
    cleanable_bytes=0,
    ratio=None,
    held_offset=None,
    held_timestamp=None,
    forced_ms=None,
    transaction_producer_id=None,
    transaction_offset=None,
    transaction_since_ms=None,
    failure=None,
)


def segment(number: int, **changes: Any) -> ExplainedSegment:
    """The segment of this number, sealed, kept by age, deleted by a check each five minutes."""
    first = NOON + number * (FILLED + 5000)
    newest = first + FILLED
    latest = newest + KEPT + 5 * MINUTE
    made = ExplainedSegment(
        base_offset=number * RECORDS,
        next_offset=(number + 1) * RECORDS,
        size_bytes=16_350,
        offset_index_entries=3,
        time_index_entries=4,
        first_timestamp=first,
        max_timestamp=newest,
        max_timestamp_offset=(number + 1) * RECORDS - 1,
        is_active=False,
        path=f"/data/orders-0/{number * RECORDS:020d}.log",
        roll_reason="size",
        is_roll_inferred=False,
        rolled_ms=newest + 5000,
        roll_explanation="its 16350 bytes and the next batch of 150 bytes are more than segment.bytes = 16384",
        holds=("retention.ms",),
        explanation="its newest record is younger than retention.ms",
        due_ms=newest + KEPT + 1,
        bytes_left=None,
        earliest_ms=newest + KEPT + 1,
        latest_ms=latest,
        freed_ms=latest + MINUTE,
        compaction=None,
    )
    return replace(made, **changes)


def explanation(count: int = 3, at_ms: int | None = None, **changes: Any) -> Explanation:
    """The explanation of a log of so many segments, the last of them active and half full."""
    last = segment(count - 1)
    assert last.first_timestamp is not None
    now = last.first_timestamp + FILLED // 2 if at_ms is None else at_ms
    active = replace(
        last,
        is_active=True,
        max_timestamp=now,
        roll_reason=None,
        rolled_ms=None,
        roll_explanation="it is the active segment",
        next_offset=last.base_offset + RECORDS // 2,
        size_bytes=8100,
    )
    segments = (*map(segment, range(count - 1)), active)
    made = Explanation(
        topic="orders",
        partition=0,
        path="/data/orders-0",
        at_ms=now,
        log_start_offset=0,
        log_end_offset=active.next_offset,
        high_watermark=active.next_offset,
        last_stable_offset=active.next_offset,
        recovery_point=active.base_offset,
        settings={
            "segment.bytes": 16384,
            "retention.ms": KEPT,
            "retention.bytes": -1,
            "cleanup.policy": "delete",
            "file.delete.delay.ms": MINUTE,
        },
        given=frozenset({"segment.bytes", "retention.ms"}),
        note=None,
        checks=CheckTimes("broker", None, 5 * MINUTE),
        segments=segments,
        deleted=(),
        compaction=OUTLOOK,
        record=None,
    )
    return replace(made, **changes)


def with_segment(of: Explanation, number: int, **changes: Any) -> Explanation:
    """The explanation with another segment at this place."""
    segments = list(of.segments)
    segments[number] = replace(segments[number], **changes)
    return replace(of, segments=tuple(segments))


def with_record(of: Explanation, offset: int, **changes: Any) -> Explanation:
    """The explanation with the record at an offset, in a batch of three."""
    holder = next(each for each in of.segments if each.base_offset <= offset < each.next_offset)
    first = offset - offset % 3
    start = (offset - holder.base_offset) // 9 * 1350
    position = (offset - holder.base_offset) // 3 * 450
    timestamp = (
        None if holder.first_timestamp is None else holder.first_timestamp + (offset - holder.base_offset) * 5000
    )
    index = holder.path.removesuffix(".log")
    steps = (
        LookupStep("segment", of.path, (holder.base_offset, holder.next_offset - 1), None, 0, "the segment has it"),
        LookupStep(
            "time_index", f"{index}.timeindex", (NOON + 40_000, offset - 5), (NOON + 80_000, offset + 9), 0, "by time"
        ),
        LookupStep("offset_index", f"{index}.index", (max(offset - 5, 0), start), None, 0, "by offset"),
        LookupStep("scan", holder.path, (start, position), None, position - start, "the log is read"),
        LookupStep("batch", holder.path, (position, position + 450), None, 450, "the batch has it"),
    )
    made = ExplainedRecord(
        offset=offset,
        timestamp=timestamp,
        key="k6",
        is_tombstone=False,
        segment_base_offset=holder.base_offset,
        batch_offsets=(first, first + 2),
        batch_position=position,
        batch_bytes=450,
        compression="zstd",
        steps=steps,
        bytes_scanned=position - start,
        superseded_by=None,
        superseded_timestamp=None,
        searched_offset=None,
        tombstone_ms=None,
        future=("The log rolled by segment.bytes.", "A check deletes it."),
        earliest_ms=holder.earliest_ms,
        latest_ms=holder.latest_ms,
        freed_ms=holder.freed_ms,
    )
    return replace(of, record=replace(made, **changes))


def disk(topics: int = 3, **changes: Any) -> DiskExplanation:
    """The explanation of directories with so many topics of one partition."""
    partitions = tuple(
        ExplainedPartition(
            topic=f"topic-{number}",
            partition=0,
            path=f"/data/topic-{number}-0",
            log_bytes=1_000_000 // (number + 1),
            disk_bytes=1_100_000 // (number + 1),
            segments=5,
            expired_bytes=100_000 // (number + 1),
            held=(
                HeldBytes("retention.ms", 600_000 // (number + 1), "younger than retention.ms"),
                HeldBytes("no_limit", 300_000 // (number + 1), "nothing limits it"),
            ),
            error=None,
        )
        for number in range(topics)
    )
    sizes = {each.topic: each.disk_bytes for each in partitions}
    made = DiskExplanation(
        paths=("/data",),
        at_ms=NOON,
        partitions=partitions,
        topics=sizes,
        disk_bytes=sum(sizes.values()) + 5000,
        other_bytes=5000,
        free_bytes=1 << 30,
        remedies=(Remedy("topic-0", "retention.ms=3600000", 500_000, "keeps one hour"),),
        note=None,
    )
    return replace(made, **changes)


def plan(*, fill_ms: int = FILLED + 5000, keep_ms: int = KEPT, count: int = 12, **changes: Any) -> Plan:
    """A plan of segments that fill in `fill_ms`, kept for `keep_ms` and until the next of the checks."""
    segments, grows = [], []
    for number in range(count):
        first = number * fill_ms
        last = first + fill_ms - 5000
        gone = -(-(last + keep_ms) // (5 * MINUTE)) * 5 * MINUTE
        segments.append(PlannedSegment(number * 109, number * 109 + 109, 16_350, first, last, "size", gone, "time"))
        grows += [(first + part * fill_ms // 10, 1635) for part in range(10)] + [(gone, -16_350)]
    points, size = [], 0
    for time, change in sorted(grows):
        size += change
        points.append((time, size))
    steady = 3 * fill_ms
    kept = tuple(point for point in points if point[0] <= 2 * steady)
    made = Plan(
        settings={"retention.ms": keep_ms, "segment.bytes": 16384},
        given=frozenset({"retention.ms", "segment.bytes"}),
        load=Load(0.2, 150.0),
        duration_ms=7 * DAY,
        steady_ms=steady,
        segments=tuple(segments),
        segment_count=1000,
        roll_reasons={"size": 999},
        disk=kept,
        disk_bytes=PlannedRange(20_000, 30_000, 50_000),
        index_bytes=PlannedRange(200, 300, 400),
        life_ms=PlannedRange(keep_ms, keep_ms + fill_ms // 2, keep_ms + fill_ms + 5 * MINUTE),
        freed_ms=PlannedRange(keep_ms + MINUTE, keep_ms + fill_ms // 2 + MINUTE, keep_ms + fill_ms + 6 * MINUTE),
        live_segments=PlannedRange(2, 3, 4),
        files=12,
        descriptors=6,
        first_acting="segment.bytes",
        advice=("A smaller segment.bytes makes retention.ms more exact.",),
    )
    return replace(made, **changes)
