"""The run of a plan: a log under a load, its retention and its compaction, from event to event.

Invariant: the number of steps is bounded. If the log's state comes again, relative to the time, the whole periods that
are left are counted and not run; if there are too many steps, the rest is taken to go on like the part that was run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kstore.base.numbers import NEVER
from kstore.planning.growing_segment import snapshot_bytes
from kstore.planning.load_stretches import Stretch
from kstore.planning.planned_compaction import PlannedCompaction
from kstore.planning.planned_log import PlannedLog
from kstore.planning.planned_retention import Checks, Deleted, PlannedRetention
from kstore.planning.segment_runs import Sums
from kstore.planning.space_over_time import Files, Piece, SpaceOverTime
from kstore.store.cleaner import limits_of

if TYPE_CHECKING:
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig

MOST_WORK = 4000
"""How much is done one by one before the first deletion, and as much after it: segments that are filled, and
`_STEP_WORK` for each check or pass. Then the plan is cut."""
_STEP_WORK = 6
_MOST_NAMED = 2000  # deleted segments whose names are compared with those of earlier ones
_MOST_CLEAN = 100  # segments that a state may have for a comparison with others


class _Seen(NamedTuple):
    """What was counted when the log was in some state."""

    ms: int
    rolls: Counter[str]
    passes: int


class Simulation:
    """One plan that is run. Not thread-safe.

    After `run`, `until_ms` is the time up to which it was run: its end, or earlier if the rest repeats.
    """

    def __init__(
        self,
        config: LogConfig,
        broker: BrokerConfig,
        stretches: Iterator[Stretch],
        *,
        start_ms: int,
        end_ms: int,
        keys: int | None = None,
        load_period_ms: int | None = None,
    ) -> None:
        """`load_period_ms` is a time after which the load repeats, 1 if it is even; None if it does not."""
        self._config = config
        self._load_period_ms = load_period_ms
        self.start_ms = start_ms
        self.end_ms = self.until_ms = end_ms
        self.space = SpaceOverTime()
        self.log = PlannedLog(config, stretches, start_ms, self.space)
        has_cleaner = config.compacts and broker.log_cleaner_enable and broker.log_cleaner_threads > 0
        every_ms = max(broker.log_cleaner_backoff_ms, 1) if has_cleaner else broker.log_retention_check_interval_ms
        self.checks = Checks(start_ms + broker.log_initial_task_delay_ms, every_ms)
        self.retention = PlannedRetention(config, self.checks, self.log)
        self.compaction: PlannedCompaction | None = None
        if has_cleaner and keys is not None:
            map_keys = limits_of(broker, config.max_message_bytes).map_keys
            self.compaction = PlannedCompaction(config, self.checks, self.log, keys=keys, map_keys=map_keys)
        self.deleted: list[Deleted] = []
        self._freed: deque[int] = deque()  # when deleted files go
        self._waiting: dict[int, tuple[int, Files]] = {}  # the same, of the segment that had this base offset last
        self._due: dict[int, list[int]] = {}  # when files of this base offset are unlinked
        self.lives: list[Piece] = []
        self.first_deletion: tuple[int, str] | None = None
        self.steady_ms: int | None = None  # when the first deleted files are gone
        self.period_ms: int | None = None
        self.steps = 0
        self.is_cut = False
        self.rolls: Counter[str] = Counter()
        self.passes = 0
        self._seen: dict[object, _Seen] = {}
        self._work_before = 0  # until the first deletion
        self._then: _Seen | None = None  # what was counted when the log became steady

    def run(self) -> None:
        """Run the plan."""
        now_ms = self.start_ms - 1
        while self.work - self._work_before < MOST_WORK:
            until_ms = self._freed[0] if self._freed and self._freed[0] < self.until_ms else self.until_ms
            moment = self._next(now_ms, until_ms)
            if moment is None or moment > until_ms:
                if until_ms == self.until_ms:
                    break
                now_ms = self._freed.popleft()
                self.log.append_until(now_ms)  # so that the size before and after is exact
                continue
            self.steps += 1
            self.log.append_until(moment)
            self._act(moment)
            now_ms = moment
            if self.period_ms is None and self.steady_ms is not None and moment >= self.steady_ms:
                self._look_for_period(moment)
        else:
            self.is_cut = True
            self.until_ms = now_ms
        if self.steady_ms is not None and self.steady_ms > self.until_ms:
            self.steady_ms = None
        self.log.append_until(self.until_ms)
        for base_offset in tuple(self._waiting):
            self._free(base_offset, NEVER)
        self._count_all()

    @property
    def work(self) -> int:
        """What was done one by one."""
        return _STEP_WORK * self.steps + self.log.work

    def _next(self, now_ms: int, until_ms: int) -> int | None:
        """Return the next moment at which something is deleted or cleaned, perhaps; None if none is `until_ms`."""
        check = self.retention.next_check(now_ms, until_ms)
        if self.compaction is None:
            return check
        until_ms = until_ms if check is None else min(check, until_ms)
        cleaning = self.compaction.next_pass(now_ms, until_ms)
        return min((moment for moment in (check, cleaning) if moment is not None), default=None)

    def _act(self, ms: int) -> None:
        """Do what is due: a pass of the cleaner comes before the retention of the logs that it cleans."""
        for cleaned in self.compaction.clean(ms) if self.compaction is not None else ():
            if cleaned.removed is not None:
                self.lives.append(cleaned.removed)
                self._removes(ms, "compaction")
            for part in cleaned.replaced:
                self._drop(part)
        for part in self.retention.delete(ms):
            sums = self._drop(part)
            if sums.records:
                first, last = part.run.at(part.first), part.run.at(part.end - 1)
                self.lives.append(Piece(ms - last.last_ms, ms - first.first_ms, sums.records))
            self._removes(ms, part.reason)

    def _drop(self, part: Deleted) -> Sums:
        """Note that segments are deleted, and that their files go after `file.delete.delay.ms`."""
        sums = part.run.between(part.first, part.end)
        freed_ms = part.ms + self._config.file_delete_delay_ms
        self.deleted.append(part)
        self.space.deleted(part.ms, sums.segments)
        if not self._freed or self._freed[-1] != freed_ms:
            self._freed.append(freed_ms)
        if self.compaction is None or sums.segments > _MOST_NAMED:
            self.space.freed(freed_ms, Files(sums.segments, sums.disk_bytes, sums.index_bytes))
            return sums
        snapshots = -part.kept_bytes
        for segment in part.run.each(part.first, part.end):
            snapshot = snapshot_bytes(segment.base_offset)
            snapshots += snapshot
            # Files of the same name that an earlier cleaning has deleted are overwritten; and when those would have
            # gone, these go (SEMANTICS 6.14).
            base_offset = segment.base_offset
            self._free(base_offset, part.ms)
            self._due[base_offset] = [due for due in self._due.get(base_offset, ()) if due > part.ms] + [freed_ms]
            files = Files(1, segment.disk_bytes - snapshot, segment.index_bytes)
            self._waiting[base_offset] = self._due[base_offset][0], files
        self.space.freed(freed_ms, Files(0, snapshots, 0))
        return sums

    def _free(self, base_offset: int, latest_ms: int) -> None:
        """Note when the deleted files of a segment go: at `latest_ms` if they are there then."""
        freed_ms, files = self._waiting.pop(base_offset, (NEVER, None))
        if files is not None:
            self.space.freed(min(freed_ms, latest_ms), files)

    def _removes(self, ms: int, reason: str) -> None:
        if self.first_deletion is None:
            self.first_deletion = ms, reason
            self.steady_ms = ms + self._config.file_delete_delay_ms
            self._then = self._counted(ms)
            self._work_before = self.work

    # Repetition.

    def _counted(self, ms: int) -> _Seen:
        return _Seen(ms, self.log.roll_reasons.copy(), 0 if self.compaction is None else self.compaction.count)

    def _look_for_period(self, ms: int) -> None:
        """If the log was in this state before, leave out the whole periods that are left."""
        state = self._state(ms)
        if state is None:
            return
        earlier = self._seen.setdefault(state, self._counted(ms))
        if earlier.ms == ms:
            return
        now = self._counted(ms)
        self.period_ms = ms - earlier.ms
        times = (self.until_ms - ms) // self.period_ms
        self.until_ms -= times * self.period_ms
        self.rolls.update({reason: times * (count - earlier.rolls[reason]) for reason, count in now.rolls.items()})
        self.passes += times * (now.passes - earlier.passes)
        self._seen.clear()

    def _state(self, ms: int) -> object | None:
        """Return all that decides what comes, relative to the time and to the log's end; None if it is too much.

        The segments between the oldest and the active one are what the load makes from the one to the other.
        """
        log = self.log
        stretch, next_ms = log.stretch, log.next_ms
        if stretch is None or next_ms is None or self._load_period_ms is None:
            return None
        growing = log.growing
        oldest = log.sealed.oldest if log.sealed else None
        end = growing.next_offset
        state = (
            ms % self._load_period_ms,
            next_ms - ms,
            stretch.phase(log.number),
            end - growing.base_offset,
            end - (growing if oldest is None else oldest).base_offset,
            growing.size_bytes,
        )
        compaction = self.compaction
        if compaction is None:
            return state
        clean = []
        for segment in log.sealed.each():
            if segment.base_offset >= compaction.first_dirty:
                break
            clean.append((end - segment.base_offset, segment.size_bytes, ms - segment.last_ms))
            if len(clean) > _MOST_CLEAN:
                return None
        return (*state, end - compaction.first_dirty, end - compaction.kept_offset, tuple(clean))

    def _count_all(self) -> None:
        """Count the rolls of the whole planned time."""
        now = self._counted(self.until_ms)
        self.rolls.update(now.rolls)
        self.passes += now.passes
        if self.is_cut:
            since = self._then or _Seen(self.start_ms, Counter(), 0)
            share = (self.end_ms - self.until_ms) / max(self.until_ms - since.ms, 1)
            self.rolls.update(
                {reason: round(share * (count - since.rolls[reason])) for reason, count in now.rolls.items()}
            )
            self.passes += round(share * (now.passes - since.passes))
