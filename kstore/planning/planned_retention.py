"""Retention in a plan: when a check next deletes something, and what it deletes.

`log/writing/retention.py` decides, with segments of the plan as its facts. Everything behind the segment in question is
one fact to it: only the sum of its bytes counts there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kstore.log.writing.retention import Marks, Reason, decide, outlook
from kstore.planning.planned_log import RETENTION

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.planning.growing_segment import SealedSegment
    from kstore.planning.planned_log import PlannedLog
    from kstore.planning.segment_runs import SegmentRun

_MOST_IN_VAIN = 300
"""After so many checks that may delete an active segment and do not, none of the next ones is taken to."""


class Checks(NamedTuple):
    """Checks at a fixed rate (SEMANTICS 6.17)."""

    first_ms: int
    every_ms: int

    def at_or_after(self, ms: int) -> int:
        """Return the first check at `ms` or later."""
        return self.first_ms + max(-(-(ms - self.first_ms) // self.every_ms), 0) * self.every_ms


@dataclass(frozen=True, slots=True)
class _Fact:
    """A segment, or several together, as the decision sees them."""

    base_offset: int
    size_bytes: int
    stamp: int
    of_file: bool = False

    def newest(self) -> tuple[int, bool]:
        return self.stamp, self.of_file


class Deleted(NamedTuple):
    """Segments `[first, end)` of a run that one check deletes for one reason, or one cleaning replaces."""

    run: SegmentRun
    first: int
    end: int
    ms: int
    reason: str
    kept_bytes: int = 0  # of their files, what stays


def fact_of(segment: SealedSegment) -> _Fact:
    """Return a sealed segment as retention sees it; one without records has the time of its file (SEMANTICS 6.6)."""
    is_empty = segment.newest < 0
    stamp = segment.last_ms if is_empty else segment.newest
    return _Fact(segment.base_offset, segment.size_bytes, stamp, is_empty)


class PlannedRetention:
    """The retention of one log, checked at fixed times. Not thread-safe."""

    def __init__(self, config: LogConfig, checks: Checks, log: PlannedLog) -> None:
        self._config = config
        self._checks = checks
        self._log = log
        limits = (config.retention_ms, config.retention_bytes)
        self._in_vain: dict[tuple[int, ...], int] = {}  # states in which the active segment stayed, and when
        self._in_vain_of = -1  # the base offset of this segment
        self.acts = config.deletes and any(limit >= 0 for limit in limits)

    # When.

    def next_check(self, now_ms: int, until_ms: int) -> int | None:
        """Return the next check after `now_ms` that may delete something; None if none does until `until_ms`.

        Nothing is deleted before it. May append to the log, up to that time.
        """
        while self.acts:
            if self._log.sealed:
                return self._for_sealed(now_ms, until_ms)
            check = self._for_active(now_ms)
            if check is not None and (self._config.retention_bytes <= 0 or self._rests_until(check)):
                return check
            # With a limit of bytes, a roll before the check may be followed by an earlier deletion.
            if not self._log.append_to_roll(until_ms if check is None else min(check, until_ms)):
                return check
        return None

    def _rests_until(self, ms: int) -> bool:
        following_ms = self._log.next_ms
        return following_ms is None or following_ms > ms

    def _for_sealed(self, now_ms: int, until_ms: int) -> int | None:
        log = self._log
        oldest = log.sealed.oldest
        facts = [fact_of(oldest), self._rest(oldest.next_offset, self._bytes() - oldest.size_bytes, now_ms)]
        seen = outlook(facts, self._config, self._marks(oldest.base_offset), now_ms)
        assert seen is not None  # there is a segment
        due = [] if seen.due_ms is None else [seen.due_ms]
        if seen.bytes_left is not None:
            grown_ms = now_ms if seen.bytes_left == 0 else log.grown_ms(seen.bytes_left, until_ms)
            due += [] if grown_ms is None else [grown_ms]
        return self._checks.at_or_after(max(min(due), now_ms + 1, log.rolled_ms)) if due else None

    def _for_active(self, now_ms: int) -> int | None:
        """Return the next check that may delete the active segment; None if it grows to a roll, or rests, before."""
        log, config = self._log, self._config
        newest, since_ms = log.growing.newest, max(now_ms + 1, log.growing.last_ms)
        following_ms = log.next_ms
        if log.growing.size_bytes == 0:
            if following_ms is None or log.next_stamp is None:
                return None
            newest, since_ms = log.next_stamp, max(following_ms, since_ms)
        if config.retention_bytes == 0:
            return self._checks.at_or_after(since_ms)
        if config.retention_ms < 0:
            return None
        check = self._checks.at_or_after(max(newest + config.retention_ms + 1, since_ms))
        if log.growing.size_bytes == 0 or following_ms is None or following_ms > check:
            is_next = True
        else:
            # Batches come before; between two of them it may still become too old.
            stretch = log.stretch
            is_next = stretch is not None and stretch.longest_gap_ms > config.retention_ms
            if is_next and stretch is not None:
                is_next = self._is_new((following_ms - now_ms, newest - now_ms, *stretch.phase(log.number)), now_ms)
        return check if is_next else None

    def _is_new(self, state: tuple[int, ...], now_ms: int) -> bool:
        """Return whether the active segment was not in this state before: if it was, no check deletes it any more."""
        log = self._log
        if log.growing.base_offset != self._in_vain_of:
            self._in_vain.clear()
            self._in_vain_of = log.growing.base_offset
        if len(self._in_vain) >= _MOST_IN_VAIN:
            log.is_exact = False
            return False
        return self._in_vain.setdefault(state, now_ms) == now_ms

    # What.

    def delete(self, ms: int) -> list[Deleted]:
        """Delete what the check at this time deletes; roll before if that is all (SEMANTICS 6.9)."""
        if not self.acts:
            return []
        log = self._log
        found = self._deletable(ms)
        if sum(count for count, _ in found) == log.sealed.sums.segments:
            reason = self._reason_of_active(ms)
            if reason is not None:
                log.roll(RETENTION, ms)
                found.append((1, reason))
        return [
            Deleted(run, first, end, ms, reason)
            for count, reason in found
            for run, first, end in log.sealed.delete(count)
        ]

    def _deletable(self, ms: int) -> list[tuple[int, str]]:
        """Return how many of the sealed segments go, and why: of each run first those of one reason."""
        found: list[tuple[int, str]] = []
        left = self._bytes()
        for run in self._log.sealed.runs:
            first, end = run.gone, len(run)
            while first < end and (reason := self._reason_of(run, first, left, ms)) is not None:
                count = self._same(run, first, end, left, ms, reason)
                found.append((count, reason))
                left -= run.between(first, first + count).size_bytes
                first += count
            if first < end:
                break
        return found

    def _same(self, run: SegmentRun, first: int, end: int, left: int, ms: int, reason: str) -> int:
        """Return how many segments from `first` on go for the same reason; the first does."""

        def is_same(number: int) -> bool:
            # The time rule needs that all before are old enough, too; they need not be in order.
            stamp = run.newest(first, number)
            return self._reason_of(run, number, left - run.between(first, number).size_bytes, ms, stamp) == reason

        if is_same(end - 1):
            return end - first
        low, high = first, end - 1  # `low` is, `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_same(middle) else (low, middle)
        return high - first

    def _reason_of(self, run: SegmentRun, number: int, left: int, ms: int, stamp: int | None = None) -> Reason | None:
        """Return why the check at `ms` deletes a segment if all before it go; `left` are its bytes and all behind.

        `stamp` is in place of its greatest timestamp.
        """
        segment = run.at(number)
        if stamp is not None:
            segment = segment._replace(newest=stamp)
        facts = [fact_of(segment), self._rest(segment.next_offset, left - segment.size_bytes, ms)]
        gone = decide(facts, self._config, self._marks(segment.base_offset), ms)
        return gone[0].reason if gone else None

    def _reason_of_active(self, ms: int) -> Reason | None:
        growing = self._log.growing
        fact = _Fact(growing.base_offset, growing.size_bytes, growing.newest)
        gone = decide([fact], self._config, self._marks(growing.base_offset), ms)
        return gone[0].reason if gone else None

    def _bytes(self) -> int:
        return self._log.sealed.sums.size_bytes + self._log.growing.size_bytes

    def _rest(self, base_offset: int, size_bytes: int, ms: int) -> _Fact:
        return _Fact(base_offset, size_bytes, ms)

    def _marks(self, start_offset: int) -> Marks:
        end = self._log.growing.next_offset
        return Marks(start_offset, end, end)
