"""Finds settings that would free space: tries values, and lets `retention.decide` say what the next check deletes.

No I/O, except for the facts that `case_of` reads. A value that frees no more than a gentler one is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kstore.base.numbers import size
from kstore.explained.explained_disk import Remedy
from kstore.explained.time_scale import duration
from kstore.log.reading.view import steadily
from kstore.log.writing.retention import Deletion, Marks, decide
from kstore.log.writing.retention_run import SegmentFacts

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import Explanation
    from kstore.log.reading.view import View
    from kstore.types import CompactionOutlook

_DAY_MS = 86_400_000
_AGES_MS = (30 * _DAY_MS, 7 * _DAY_MS, _DAY_MS, _DAY_MS // 24)
_MOST = 5
"""Remedies of one topic."""
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """The facts of a segment that decide about its deletion, read once. Immutable."""

    base_offset: int
    size_bytes: int
    newest_found: tuple[int, bool]

    def newest(self) -> tuple[int, bool]:
        return self.newest_found


class Case(NamedTuple):
    """A partition for which settings are tried."""

    config: LogConfig
    marks: Marks
    segments: Sequence[KnownSegment]
    first_timestamp: int | None
    """The timestamp of the active segment's first batch, from which `segment.ms` counts."""
    compaction: CompactionOutlook

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def deletions(self, config: LogConfig, at_ms: int) -> list[Deletion]:
        """Return what a check deletes with these settings."""
        return decide(self.segments, config, self.marks, at_ms)


def case_of(view: View, config: LogConfig, explanation: Explanation) -> Case:
    """Read the facts of a partition's segments. Raises what reading a segment raises."""
    marks, segments = steadily(_facts, view, view=view)
    first_timestamp = explanation.segments[-1].first_timestamp if explanation.segments else None
    return Case(config, marks, segments, first_timestamp, explanation.compaction)


def _facts(view: View) -> tuple[Marks, list[KnownSegment]]:
    facts = [SegmentFacts(view, segment) for segment in view.segments.items]
    known = [KnownSegment(each.base_offset, each.size_bytes, each.newest()) for each in facts]
    end = view.log_end_offset
    return Marks(view.log_start_offset, end, end), known


def find_remedies(topic: str, cases: Sequence[Case], at_ms: int) -> list[Remedy]:
    """Return settings that would free space in the partitions of a topic, the most effective first.

    Nothing is proposed that deletes from a topic of the broker itself, such as `__consumer_offsets`.
    """
    anyway = [case.deletions(case.config, at_ms) for case in cases]
    found: list[Remedy] = []
    if cases[0].config.deletes and not topic.startswith("__"):
        found += _by_age(topic, cases, anyway, at_ms)
        found += _by_size(topic, cases, anyway, at_ms)
        found += _by_roll(topic, cases, anyway, at_ms)
    if cases[0].config.compacts:
        found += _by_cleaning(topic, cases, at_ms)
    return sorted(found, key=lambda remedy: -remedy.freed_bytes)[:_MOST]


def _by_age(topic: str, cases: Sequence[Case], anyway: Sequence[list[Deletion]], at_ms: int) -> Iterator[Remedy]:
    """Try ages, the longest first; a shorter one is kept only if it frees more."""
    now, best = cases[0].config.retention_ms, 0
    for age in _AGES_MS:
        if 0 <= now <= age:
            continue
        effect = _effect(cases, anyway, {"retention.ms": age}, at_ms)
        if effect.freed_bytes > best:
            best = effect.freed_bytes
            what = f"deletes {effect} without a record of the last {duration(age)}"
            yield Remedy(topic, f"retention.ms={age}", best, f"{what}; {_instead('retention.ms', now)}")


def _by_size(topic: str, cases: Sequence[Case], anyway: Sequence[list[Deletion]], at_ms: int) -> Iterator[Remedy]:
    """Try half of the largest partition's size; the setting limits each partition by itself."""
    now = cases[0].config.retention_bytes
    limit = max(case.size_bytes for case in cases) // 2
    if 0 <= now <= limit:
        return
    effect = _effect(cases, anyway, {"retention.bytes": limit}, at_ms)
    if effect.freed_bytes:
        explanation = (
            f"deletes the oldest, {effect}, whatever the age; each partition keeps at least {size(limit)}, "
            f"half of what the largest one has; {_instead('retention.bytes', now)}"
        )
        yield Remedy(topic, f"retention.bytes={limit}", effect.freed_bytes, explanation)


def _by_roll(topic: str, cases: Sequence[Case], anyway: Sequence[list[Deletion]], at_ms: int) -> Iterator[Remedy]:
    """Try to roll active segments that hold records beyond an age, since retention deletes whole segments only.

    With a limit in force its age is tried, else the longest age for which active segments are too long.
    """
    config = cases[0].config
    is_limited = config.retention_ms >= 0
    for age in (config.retention_ms,) if is_limited else _AGES_MS:
        segment_ms = max(age, 1)
        held = [(case, gone) for case, gone in zip(cases, anyway, strict=True) if _is_too_long(case, gone, age, at_ms)]
        if config.segment_ms <= segment_ms or not held:
            continue
        setting, freed = f"segment.ms={segment_ms}", sum(case.segments[-1].size_bytes for case, _ in held)
        if not is_limited:
            setting = f"retention.ms={age},{setting}"
            other = config.replace(retention_ms=age)
            later = sum(case.size_bytes - _size_of(case.deletions(other, at_ms)) for case, _ in held)
            freed = later + _effect(cases, anyway, {"retention.ms": age}, at_ms).freed_bytes
            if later < _LEAST_SHARE * freed:  # without a roll nearly as much goes, and at once
                continue
        from_ms = max(at_ms, *(segment.newest_found[0] + age + 1 for case, _ in held for segment in case.segments))
        explanation = (
            f"the next append rolls the active segment of {_count(len(held), 'partition')}, which has records from "
            f"before the last {duration(age)}; it can go as a whole once its newest record is that old; "
            f"{_instead('segment.ms', config.segment_ms)}"
        )
        yield Remedy(topic, setting, freed, explanation, from_ms)
        return


def _is_too_long(case: Case, gone: Sequence[Deletion], age: int, at_ms: int) -> bool:
    """Whether the active segment stays only because it holds records beyond an age and newer ones, too.

    False if it is rolled anyway before it could be deleted.
    """
    first = case.first_timestamp
    if not case.segments or len(gone) == len(case.segments) or first is None:
        return False
    newest = max(segment.newest_found[0] for segment in case.segments)
    return first < at_ms - age <= newest <= at_ms and newest + age < first + case.config.segment_ms


def _by_cleaning(topic: str, cases: Sequence[Case], at_ms: int) -> Iterator[Remedy]:
    """Return what a cleaning by key frees at most, of the logs that wait for a dirtier state."""
    waiting = [
        case.compaction
        for case in cases
        if case.compaction.cleanable_bytes and (case.compaction.due_ms is None or case.compaction.due_ms > at_ms)
    ]
    most = sum(outlook.cleanable_bytes for outlook in waiting)
    if most:
        explanation = (
            f"the next pass of the cleaner cleans {_count(len(waiting), 'partition')}; it frees what newer records of "
            "the same keys replace, which may be little (kstore compact --dry-run counts it)"
        )
        yield Remedy(topic, "min.cleanable.dirty.ratio=0", most, explanation, is_at_most=True)


# What a setting does.


class _Effect(NamedTuple):
    """What the next check deletes with a setting, beyond what it deletes anyway."""

    freed_bytes: int
    segments: int
    partitions: int

    def __str__(self) -> str:
        of = f" of {self.partitions} partitions" if self.partitions > 1 else ""
        return f"{_count(self.segments, 'segment')}{of}"


def _effect(cases: Sequence[Case], anyway: Sequence[list[Deletion]], settings: dict[str, int], at_ms: int) -> _Effect:
    freed = segments = partitions = 0
    usual = cases[0].config
    changed = usual.for_topic(settings)
    for case, gone in zip(cases, anyway, strict=True):
        config = changed if case.config == usual else case.config.for_topic(settings)
        more = case.deletions(config, at_ms)[len(gone) :]
        freed += sum(deletion.size_bytes for deletion in more)
        segments += len(more)
        partitions += bool(more)
    return _Effect(freed, segments, partitions)


def _size_of(deletions: Sequence[Deletion]) -> int:
    return sum(deletion.size_bytes for deletion in deletions)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _instead(name: str, value: int) -> str:
    if value < 0:
        return f"now {name} sets no limit"
    return f"now {name} is {duration(value) if name.endswith('.ms') else size(value)}"
