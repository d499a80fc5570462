"""A real log in a store lives through batches at given times; what a plan foretells is compared with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore.planning.growing_segment import blocks
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
        row = kstore.Record(0, self.stamp, self.key, bytes(self.value_bytes), ())
        return kstore.encode_batch([row] * self.records)


def stretches_of(batches: Sequence[Batch]) -> list[Stretch]:
    """Each batch as a stretch of its own."""
    return [
        Stretch(number, number + 1, batch.ms, 0, 1, len(batch.encoded()), batch.records, (batch.ms - batch.stamp,))
        for number, batch in enumerate(batches)
    ]


class Life(NamedTuple):
    """What became of a segment. The sizes are those when it was last seen; -1 for `deleted_ms`: it is still there."""

    base_offset: int
    size_bytes: int
    offset_entries: int
    time_entries: int
    deleted_ms: int


@dataclass
class Lived:
    """What a log was seen to do."""

    segments: dict[int, Life] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    """Why the log rolled to the segment with this base offset."""
    states: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    """At each moment, after housekeeping: the base offset and the size of each segment."""
    disk: dict[int, int] = field(default_factory=dict)
    """At each moment, after housekeeping: what the segments' files take on the disk, in blocks."""
    files: int = 0
    """The most files that were there."""

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
                each.base_offset, each.size_bytes, each.offset_index_entries, each.time_index_entries, -1
            )
            self.reasons[each.base_offset] = each.roll_reason
        self.files = max(self.files, len(list(Path(log.path).iterdir())))
        return {each.base_offset for each in found}

    def see_deleted(self, directory: Path, base: int, ms: int) -> None:
        """Look at the files of a segment that was just deleted."""
        stem = f"{directory}/{base:020d}"
        size, offsets, times = (Path(f"{stem}.{kind}.deleted").stat().st_size for kind in ("log", "index", "timeindex"))
        self.segments[base] = Life(base, size, offsets // 8, times // 12, ms)

    def see_state(self, log: kstore.Log, ms: int) -> None:
        """Look at what there is after the housekeeping of a moment."""
        self.states.append((ms, [(each.base_offset, each.size_bytes) for each in log.segments]))
        active = log.segments[-1]
        entries = {".index": 8 * active.offset_index_entries, ".timeindex": 12 * active.time_index_entries}
        total = 0
        for path in Path(log.path).iterdir():
            if path.name[:1].isdigit():
                is_active = path.stem == Path(active.path).stem and path.suffix in entries
                total += blocks(entries[path.suffix] if is_active else path.stat().st_size)
        self.disk[ms] = total


def live(root: Path, batches: Sequence[Batch], end_ms: int, settings: dict[str, Any]) -> Lived:
    """Append these batches at their times, and run housekeeping whenever a check or an unlink is due."""
    clock = ManualClock(START_MS)
    lived = Lived()
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        store.create_topic("t", 1)
        log = store.log("t", 0)
        every, delay = checks_of(settings)
        appends = sorted(batches, key=lambda batch: batch.ms)
        waiting = {*range(START_MS + delay, end_ms + 1, every), end_ms}
        at = 0
        while waiting:
            now = min(waiting)
            waiting.remove(now)
            while at < len(appends) and appends[at].ms <= now:
                clock.now = appends[at].ms
                log.append_batch(appends[at].encoded())
                at += 1
            clock.now = now
            before = lived.see(log)
            store.run_housekeeping()
            after = lived.see(log)
            lived.see_state(log, now)
            for base in before - after:
                lived.see_deleted(Path(log.path), base, now)
            if any(path.suffix == ".deleted" for path in Path(log.path).iterdir()):
                waiting |= {min(now + settings["file_delete_delay_ms"], end_ms)} - {now}
    return lived


def checks_of(settings: dict[str, Any]) -> tuple[int, int]:
    """The time between two checks, or passes of the cleaner, and that before the first one."""
    every: int = settings.get("log_retention_check_interval_ms", 300_000)
    if "compact" in settings.get("cleanup_policy", "delete"):
        every = settings.get("log_cleaner_backoff_ms", 15_000)
    return every, settings.get("log_initial_task_delay_ms", 30_000)


def simulated(
    stretches: Sequence[Stretch],
    end_ms: int,
    settings: dict[str, Any],
    *,
    keys: int | None = None,
    start_ms: int = START_MS,
) -> Simulation:
    """Run a plan for the same batches."""
    of_broker = {name: value for name, value in settings.items() if kstore.BrokerConfig.knows(name)}
    config = kstore.LogConfig(**{name: value for name, value in settings.items() if name not in of_broker})
    broker = kstore.BrokerConfig(**of_broker)
    plan = Simulation(config, broker, iter(stretches), start_ms=start_ms, end_ms=end_ms, keys=keys)
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
        Life(each.base_offset, each.size_bytes, each.offset_entries, each.time_entries, -1)
        for each in plan.log.sealed.each()
    ]
    growing = plan.log.growing
    lives.append(Life(growing.base_offset, growing.size_bytes, growing.offset_entries, growing.time_entries, -1))
    return sorted(lives)


def disk_at(plan: Simulation, moments: Sequence[int]) -> dict[int, int]:
    """What a plan says of the disk at those of the moments at which it is exact, after what happens then."""
    exact = dict(plan.space.disk.points(plan.start_ms, plan.until_ms))
    return {ms: exact[ms] for ms in moments if ms in exact}
