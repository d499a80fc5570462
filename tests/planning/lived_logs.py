"""A real log in a store lives through batches at given times; what a plan foretells is compared with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore.planning.load_stretches import Stretch
from kstore.planning.simulation import Simulation
from tests.conftest import ManualClock

START_MS = 1_767_225_600_000


class Batch(NamedTuple):
    """A batch: when it is appended, the timestamp of its records, how many there are and how long their values."""

    ms: int
    stamp: int
    records: int
    value_bytes: int
    key: bytes | None = None

    def encoded(self) -> bytes:
        rows = [
            kstore.Record(number, self.stamp, self.key, bytes(self.value_bytes), []) for number in range(self.records)
        ]
        return kstore.encode_batch(rows)


def stretches_of(batches: Sequence[Batch]) -> list[Stretch]:
    """Each batch as a stretch of its own."""
    return [
        Stretch(number, number + 1, batch.ms, 0, 1, len(batch.encoded()), batch.records, (batch.ms - batch.stamp,))
        for number, batch in enumerate(batches)
    ]


class Life(NamedTuple):
    """What became of a segment. The sizes are those when it was last seen."""

    base_offset: int
    size_bytes: int
    offset_entries: int
    time_entries: int
    deleted_ms: int | None


@dataclass
class Lived:
    """What a log was seen to do."""

    segments: dict[int, Life] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    """Why the log rolled to the segment with this base offset."""
    files: list[tuple[int, int, int]] = field(default_factory=list)
    """At times: how many segments have a `.log` file, deleted or not, and how many bytes are in these."""

    @property
    def lives(self) -> list[Life]:
        return sorted(self.segments.values())

    @property
    def roll_reasons(self) -> Counter[str | None]:
        return Counter(reason for base, reason in self.reasons.items() if base)

    def see(self, log: kstore.Log) -> set[int]:
        """Look at all segments; return their base offsets."""
        found = log.segments
        for each in found:
            self.segments[each.base_offset] = Life(
                each.base_offset, each.size_bytes, each.offset_index_entries, each.time_index_entries, None
            )
            self.reasons[each.base_offset] = each.roll_reason
        return {each.base_offset for each in found}

    def see_deleted(self, directory: Path, base: int, ms: int) -> None:
        """Look at the files of a segment that was just deleted."""
        stem = f"{directory}/{base:020d}"
        size, offsets, times = (Path(f"{stem}.{kind}.deleted").stat().st_size for kind in ("log", "index", "timeindex"))
        self.segments[base] = Life(base, size, offsets // 8, times // 12, ms)


def live(root: Path, batches: Sequence[Batch], end_ms: int, settings: dict[str, Any]) -> Lived:
    """Append these batches at their times, and run housekeeping whenever it is due."""
    clock = ManualClock(START_MS)
    lived = Lived()
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        store.create_topic("t", 1)
        log = store.log("t", 0)
        every, delay = store_intervals(settings)
        appends = sorted(batches, key=lambda batch: batch.ms)
        waiting = {*range(START_MS + delay, end_ms + 1, every), end_ms}
        at = 0
        while waiting:
            clock.now = min(waiting)
            waiting.remove(clock.now)
            here = clock.now
            while at < len(appends) and appends[at].ms <= here:
                clock.now = appends[at].ms
                log.append_batch(appends[at].encoded())
                at += 1
            clock.now = here
            before = lived.see(log)
            store.run_housekeeping()
            after = lived.see(log)
            for base in before - after:
                lived.see_deleted(Path(log.path), base, here)
                waiting |= {min(here + settings["file_delete_delay_ms"], end_ms)} - {here}
    return lived


def store_intervals(settings: dict[str, Any]) -> tuple[int, int]:
    """The time between two checks, and before the first one."""
    interval = settings.get("log_retention_check_interval_ms", 300_000)
    if "compact" in settings.get("cleanup_policy", "delete"):
        interval = settings.get("log_cleaner_backoff_ms", 15_000)
    return interval, settings.get("log_initial_task_delay_ms", 30_000)


def simulated(batches: Sequence[Batch], end_ms: int, settings: dict[str, Any]) -> Simulation:
    """Run a plan for the same batches."""
    of_broker = {name: value for name, value in settings.items() if kstore.BrokerConfig.knows(name)}
    config = kstore.LogConfig(**{name: value for name, value in settings.items() if name not in of_broker})
    plan = Simulation(
        config, kstore.BrokerConfig(**of_broker), iter(stretches_of(batches)), start_ms=START_MS, end_ms=end_ms
    )
    plan.run()
    return plan


def foretold(plan: Simulation) -> list[Life]:
    """What a plan says of its segments."""
    lives = [
        Life(each.base_offset, each.size_bytes, each.offset_entries, each.time_entries, part.ms)
        for part in plan.deleted
        for each in part.run.each(part.first, part.end)
    ]
    lives += [
        Life(each.base_offset, each.size_bytes, each.offset_entries, each.time_entries, None)
        for each in plan.log.sealed.each()
    ]
    growing = plan.log.growing
    lives.append(Life(growing.base_offset, growing.size_bytes, growing.offset_entries, growing.time_entries, None))
    return sorted(lives)
