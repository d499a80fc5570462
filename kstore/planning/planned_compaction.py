"""Compaction in a plan: when a pass of the cleaner cleans the log, and what is left after it.

Keys come in turns, each as often as the others. So what a pass leaves below its end are exactly as many of the newest
records as there are keys. `Dirtiness.is_eligible` decides, `segment_groups.group` merges. Invariant: below the first
dirty offset the log has the records from `kept_offset` on, and no others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kstore.base.numbers import LONG_MAX
from kstore.log.compaction.dirtiness import Bound, Dirtiness
from kstore.log.compaction.segment_groups import Source, group
from kstore.planning.growing_segment import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SealedSegment, snapshot_bytes
from kstore.planning.planned_retention import Checks, Deleted, fact_of
from kstore.planning.segment_runs import Pattern, SegmentRun, Sums, single, sums_of
from kstore.planning.space_over_time import Piece

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.planning.planned_log import PlannedLog

_HEADER_BYTES = 61  # of a batch
_MOST_SOURCES = 2000  # segments of a pass that are looked at one by one

_RUNS_OF_WORK = 8  # so many runs take as long to look at as a segment to fill


class Cleaned(NamedTuple):
    """What a pass did."""

    replaced: list[Deleted]
    """The segments that others have replaced."""
    removed: Piece | None
    """How long the records lived that it removed."""


class PlannedCompaction:
    """The cleaner of a store with one log. Not thread-safe."""

    def __init__(self, config: LogConfig, passes: Checks, log: PlannedLog, *, keys: int, map_keys: int) -> None:
        """`map_keys` is how many keys a pass can hold."""
        self._config = config
        self._passes = passes
        self._log = log
        self._keys = keys
        self._map_keys = map_keys
        self.first_dirty = 0
        self.kept_offset = 0
        self.count = 0

    # When.

    def next_pass(self, now_ms: int, until_ms: int) -> int | None:
        """Return the next pass after `now_ms` that cleans the log; None if none does until `until_ms`.

        May append to the log, up to that time.
        """
        log = self._log
        while True:
            at = self._passes.at_or_after(max(now_ms + 1, log.rolled_ms))
            if at > until_ms:
                return None
            if self._is_eligible(at):
                return at
            later = self._passes.at_or_after(due) if (due := self._due_by_lag(at)) is not None else None
            bound = until_ms if later is None else min(later, until_ms)
            missing = self._missing_bytes()
            if self._is_held_back(at):  # what is appended now comes behind that
                log.append_until(bound)
                has_more = False
            elif missing > 0 and self._config.max_compaction_lag_ms >= LONG_MAX:
                grown_ms = log.grown_ms(missing, bound)
                log.append_until(bound if grown_ms is None else grown_ms)
                has_more = grown_ms is not None
            else:
                has_more = log.append_to_roll(bound)
            if has_more:
                continue
            if later is None or later > until_ms:
                return None
            if self._is_eligible(later):
                return later
            now_ms = later

    def _is_held_back(self, ms: int) -> bool:
        lag_ms = self._config.min_compaction_lag_ms
        return lag_ms > 0 and self._old_dirty(ms - lag_ms)[1] is not None

    def _missing_bytes(self) -> int:
        """Return how many bytes have to be appended at least until the dirty ratio can be high enough."""
        clean, dirty = self._clean_bytes(), self._dirty_bytes()
        ratio = self._config.min_cleanable_dirty_ratio
        if ratio >= 1:
            return 0
        return int(ratio * clean / (1 - ratio)) - dirty - self._log.growing.size_bytes

    def _due_by_lag(self, now_ms: int) -> int | None:
        """Return when a lag next changes what is eligible, after `now_ms`; None if none does."""
        config = self._config
        due = []
        if config.max_compaction_lag_ms < LONG_MAX and (first_stamp := self._first_stamp()) is not None:
            due.append(first_stamp + config.max_compaction_lag_ms + 1)
        if config.min_compaction_lag_ms > 0:
            youngest = self._old_dirty(now_ms - config.min_compaction_lag_ms)[1]
            due += [] if youngest is None else [fact_of(youngest).stamp + config.min_compaction_lag_ms]
        return min((ms for ms in due if ms > now_ms), default=None)

    def _first_stamp(self) -> int | None:
        """Return the first timestamp of the oldest dirty segment; without one, of the active or the next one."""
        oldest = self._oldest_dirty()
        if oldest is not None:
            return oldest.first_stamp
        growing = self._log.growing
        return growing.first_stamp if growing.size_bytes else self._log.next_stamp

    def _is_eligible(self, ms: int) -> bool:
        return self._dirtiness(ms).is_eligible(self._config.min_cleanable_dirty_ratio)

    def _dirtiness(self, ms: int) -> Dirtiness:
        """Return how dirty the log is (SEMANTICS 7.2)."""
        config, active = self._config, self._log.growing.base_offset
        self._log.work += len(self._log.sealed.runs) // _RUNS_OF_WORK
        bound: Bound = "active segment"
        uncleanable, dirty = active, self._dirty_bytes()
        if config.min_compaction_lag_ms > 0:
            dirty, youngest = self._old_dirty(ms - config.min_compaction_lag_ms)
            if youngest is not None:
                bound, uncleanable = "min.compaction.lag.ms", youngest.base_offset
        clean = self._clean_bytes()
        oldest = self._oldest_dirty()
        is_limited = oldest is not None and config.max_compaction_lag_ms < LONG_MAX
        return Dirtiness(
            first_dirty_offset=self.first_dirty,
            reset="",
            first_uncleanable_offset=uncleanable,
            bound=bound,
            clean_bytes=clean,
            cleanable_bytes=dirty,
            ratio=dirty / (clean + dirty) if clean + dirty else None,
            forced=is_limited and oldest is not None and oldest.first_stamp < ms - config.max_compaction_lag_ms,
            youngest=None,
            oldest=None,
            stable_offset=self._log.growing.next_offset,
            active_base_offset=active,
        )

    def _dirty_parts(self) -> Iterator[tuple[SegmentRun, int]]:
        """Yield the runs that have dirty segments, each with the number of its first one."""
        for run in self._log.sealed.runs:
            if run.at(len(run) - 1).next_offset > self.first_dirty:
                yield run, run.gone

    def _oldest_dirty(self) -> SealedSegment | None:
        """Return the dirty segment with the earliest first batch."""
        firsts = (segment for run, number in self._dirty_parts() for segment in run.earliest(number))
        return min(firsts, key=attrgetter("first_stamp"), default=None)

    def _dirty_bytes(self) -> int:
        return sum(run.between(number, len(run)).size_bytes for run, number in self._dirty_parts())

    def _clean_bytes(self) -> int:
        """Return the bytes of the segments that begin below the first dirty offset; each is a run of its own."""
        runs = takewhile(lambda run: run.at(run.gone).base_offset < self.first_dirty, self._log.sealed.runs)
        return sum(run.between(run.gone, len(run)).size_bytes for run in runs)

    def _old_dirty(self, stamp: int) -> tuple[int, SealedSegment | None]:
        """Return the bytes of the dirty segments before the first that is newer than `stamp`, and this one."""
        total = 0
        for run, first in self._dirty_parts():
            newer = run.first_newer(first, stamp)
            total += run.between(first, newer).size_bytes
            if newer < len(run):
                return total, run.at(newer)
        return total, None

    # What.

    def clean(self, ms: int) -> list[Cleaned]:
        """Do what the pass at this time does: rounds, until the log is not dirty enough any more (SEMANTICS 7.5)."""
        done = []
        while (dirtiness := self._dirtiness(ms)).is_eligible(self._config.min_cleanable_dirty_ratio):
            before = self.first_dirty
            done.append(self._clean(dirtiness.first_uncleanable_offset, ms))
            self.count += 1
            if self.first_dirty <= before:
                break
        return done

    def _clean(self, uncleanable: int, ms: int) -> Cleaned:
        log = self._log
        end = uncleanable
        if self._keys >= self._map_keys:  # the pass ends once its memory is full (SEMANTICS 7.11)
            end = min(end, self.first_dirty + self._map_keys)
        log_start = log.sealed.oldest.base_offset
        before, kept = max(self.kept_offset, log_start), max(end - self._keys, self.kept_offset)
        runs = []
        for run in log.sealed.runs:
            count = len(run) if run.at(len(run) - 1).base_offset < end else _below(run, end)
            if count > run.gone:
                runs.append((run, run.gone, count))
            if count < len(run):
                break
        parts = log.sealed.delete(sum(last - first for _, first, last in runs))
        removed = None
        if kept > before:
            oldest_ms, newest_ms = log.time_of(before), log.time_of(kept - 1)
            removed = Piece(ms - newest_ms, ms - oldest_ms, kept - before)
        self.first_dirty, self.kept_offset = end, kept
        if sum(last - first for _, first, last in parts) > _MOST_SOURCES:
            left, replaced = self._cleaned_roughly(parts, end), [Deleted(*part, ms, "compaction") for part in parts]
            log.is_exact = False
        else:
            left, replaced = self._cleaned(parts, uncleanable, before, ms)
        log.sealed.put_back(left)
        return Cleaned(replaced, removed)

    def _cleaned(
        self, parts: list[tuple[SegmentRun, int, int]], uncleanable: int, before: int, ms: int
    ) -> tuple[list[SegmentRun], list[Deleted]]:
        """Return the segments that a round leaves, and those that it replaces (SEMANTICS 7.13, 7.14)."""
        config = self._config
        old = [segment for run, first, end in parts for segment in run.each(first, end)]
        self._log.work += len(old)
        bases = [*(segment.base_offset for segment in old[1:]), uncleanable]
        sources = [
            Source(
                cast(Any, segment),
                segment.base_offset,
                next_base,
                segment.size_bytes,
                segment.offset_entries * OFFSET_ENTRY_BYTES,
                segment.time_entries * TIME_ENTRY_BYTES,
            )
            for segment, next_base in zip(old, bases, strict=True)
        ]
        left: list[SegmentRun] = []
        replaced: list[Deleted] = []
        written = Sums()
        groups = group(sources, segment_bytes=config.effective_segment_bytes, index_bytes=config.segment_index_bytes)
        for members in groups:
            segments = [cast(SealedSegment, member.segment) for member in members]
            loses = self.kept_offset > max(before, segments[0].base_offset) and segments[0].records > 0
            if len(segments) == 1 and not loses:
                left.append(single(*segments))
                continue
            new = self._rewritten(segments)
            snapshot = snapshot_bytes(new.base_offset)  # which is that of the first of the old ones
            written = written.plus(sums_of(new)._replace(disk_bytes=new.disk_bytes - snapshot))
            left.append(single(new))
            run = single(*segments)
            replaced.append(Deleted(run, 0, len(run), ms, "compaction", snapshot))
        self._log.compacted(written, ms)
        return left, replaced

    def _rewritten(self, segments: list[SealedSegment]) -> SealedSegment:
        """Return the segment that holds what is kept of these."""
        base, end = segments[0].base_offset, segments[-1].next_offset
        first = min(max(base, self.kept_offset), end)
        filled = self._log.filled(base, first, end)
        records = end - first
        per_batch = self._log.records_of_a_batch
        dropped = first % per_batch if records else 0  # records of its first batch
        per_record = max(filled.size_bytes // max(end - first // per_batch * per_batch, 1), 1)
        return filled.sealed(segments[-1].reason)._replace(
            next_offset=end,
            records=records,
            size_bytes=max(filled.size_bytes - dropped * per_record, _HEADER_BYTES if records else 0),
            last_ms=segments[-1].last_ms,
        )

    def _cleaned_roughly(self, parts: list[tuple[SegmentRun, int, int]], end: int) -> list[SegmentRun]:
        """Return about what a round leaves of many segments: as many full ones as the records that are kept fill."""
        config, log = self._config, self._log
        last = parts[-1][0].at(parts[-1][2] - 1)
        run, first, _ = parts[0]
        base = run.at(first).base_offset
        per_batch = log.records_of_a_batch
        kept = log.filled(base, max(self.kept_offset, base), last.next_offset)
        batches = max(config.effective_segment_bytes // log.batch_bytes, 1)
        count = -(-kept.size_bytes // (batches * log.batch_bytes))
        start = last.next_offset - count * batches * per_batch
        one = log.filled(start, start, start + batches * per_batch).sealed(last.reason)
        made = SegmentRun(Pattern([one], log.stretch_of(start), start // per_batch, batches), count)
        log.compacted(made.below(count), 0)
        return [made]


def _below(run: SegmentRun, offset: int) -> int:
    """Return how many segments of a run begin below an offset, the deleted ones included."""
    return bisect_left(range(len(run)), offset, key=lambda number: run.at(number).base_offset)
