"""The power may go at any step: every image that a disk can be left in opens, and holds what was acknowledged.

A story of appends, rolls, syncs, truncations, deletions and reopenings is told to a log over `faultfs`, which then
builds the directory as it may be found after every single write, sync, rename and creation, with what was not synced
kept, lost, cut short, zeroed or out of order. What must be there, what may be, and what must be gone is noted while the
story goes on.
"""

from __future__ import annotations

import bisect
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import kstore
from kstore import Record
from tests.conftest import ManualClock
from tests.support.faultfs import LOST, PLANS, FaultFS, Plan, shuffled
from tests.support.model import Model, ModelBatch

SETTINGS = {"segment_bytes": 500, "index_interval_bytes": 100, "segment_index_bytes": 120}
NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def without_syncs(no_syncs: None) -> None:
    """What is on the disk is the images' business; real syncs would take most of the time."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What holds from one step of the trace on.

    `acknowledged` must be there, but for what lies below `start_at_most`; the log must not start below
    `start_at_least`; and what is there is some first part of one of the `versions` that the log has had since it was
    last known to be on the disk.
    """

    step: int
    what: str
    acknowledged: tuple[ModelBatch, ...]
    versions: tuple[tuple[ModelBatch, ...], ...]
    start_at_least: int
    start_at_most: int


class Story:
    """A log, its model, and the promises that it makes on the way."""

    def __init__(self, root: Path, disk: FaultFS, rng: random.Random) -> None:
        self.path, self.disk, self.rng = root / "events-0", disk, rng
        self.clock = ManualClock()
        self.model = Model()
        self.promises: list[Promise] = []
        self.acknowledged: tuple[ModelBatch, ...] = ()
        self.versions: tuple[tuple[ModelBatch, ...], ...] = ((),)
        self.floor = self.ceiling = 0
        self.count = 0
        self.promise("nothing")
        self.log = self.open()

    def open(self) -> kstore.Log:
        return kstore.Log.open(self.path, clock=self.clock, **SETTINGS)

    def promise(self, what: str) -> None:
        self.promises.append(Promise(self.disk.step, what, self.acknowledged, self.versions, self.floor, self.ceiling))

    def now_on_disk(self, what: str) -> None:
        """All that the log holds has been acknowledged: nothing else may come back."""
        self.acknowledged = tuple(self.model.batches)
        self.versions = (self.acknowledged,)
        self.floor = self.ceiling = self.model.start
        self.promise(what)

    def about_to(self, what: str, after: Model) -> None:
        """From now on the log may be found as it is, or as it will be."""
        kept = set(after.batches)
        self.acknowledged = tuple(batch for batch in self.acknowledged if batch in kept)
        self.versions = (*self.versions, tuple(after.batches))
        self.floor, self.ceiling = min(self.floor, after.start), max(self.ceiling, after.start)
        if not after.batches:
            self.ceiling = max(self.ceiling, self.model.end)  # the old segments may go in any order
        self.promise(what)

    def row(self) -> tuple[bytes | None, bytes, int, tuple[()]]:
        self.count += 1
        return self.rng.choice([None, b"k"]), b"%d" % self.count * self.rng.choice([1, 1, 20]), NOW + self.count, ()

    def batch(self, base: int, rows: list[tuple[bytes | None, bytes, int, tuple[()]]]) -> ModelBatch:
        records = tuple(Record(base + i, row[2], row[0], row[1], row[3]) for i, row in enumerate(rows))
        return ModelBatch(base, base + len(rows) - 1, records)

    def grow(self, what: str, batch: ModelBatch) -> None:
        after = self.model.copy()
        after.append([batch])
        # A longer version has the shorter one as a first part.
        self.versions = (*self.versions[:-1], tuple(after.batches))
        self.promise(what)
        self.model = after

    # What can happen.

    def append(self) -> None:
        row = self.row()
        sync = self.rng.random() < 0.2
        self.grow("append", self.batch(self.model.end, [row]))
        self.log.append(row[1], row[0], timestamp=row[2], sync=sync)
        if sync:
            self.now_on_disk("append, synced")

    def append_many(self) -> None:
        rows = [self.row() for _ in range(self.rng.randint(1, 5))]
        rows = rows[: 1 if sum(len(row[1]) for row in rows) > 300 else None]
        sync = self.rng.random() < 0.2
        self.grow("append_many", self.batch(self.model.end, rows))
        self.log.append_many(rows, atomic=True, sync=sync)
        if sync:
            self.now_on_disk("append_many, synced")

    def append_as_follower(self) -> None:
        base = self.model.end + self.rng.choice([0, 0, 3])
        rows = [self.row()]
        self.grow("append_as_follower", self.batch(base, rows))
        epoch = 1 + self.count // 10
        self.log.append_as_follower(kstore.encode_batch(rows, base_offset=base, partition_leader_epoch=epoch))

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush()
        self.now_on_disk("flush")

    def housekeeping(self) -> None:
        self.clock.advance(self.rng.choice([0, 1000, 120_000]))
        self.log.run_housekeeping()

    def truncate(self) -> None:
        bases = [segment.base_offset for segment in self.log.segments]
        offset = self.rng.randint(max(bases[0] - 1, self.model.end - 10, 0), self.model.end)
        after = self.model.copy()
        if after.truncate(offset, bases):
            self.about_to(f"truncate to {offset}", after)
            self.model = after
        self.log.truncate_to(offset)
        self.truncated(f"truncated to {offset}")

    def truncated(self, what: str) -> None:
        # A truncation alone is no acknowledgement: what it took may come back until the next flush, but whole.
        self.floor = min(self.floor, self.model.start)
        self.ceiling = self.model.start
        self.promise(what)

    def restart(self) -> None:
        offset = self.rng.choice([0, self.model.start, self.model.end, self.model.end + 20])
        after = self.model.copy()
        after.restart(offset)
        self.about_to(f"start anew at {offset}", after)
        self.model = after
        self.log.truncate_fully_and_start_at(offset)
        self.floor = self.ceiling = offset
        self.promise(f"started anew at {offset}")

    def delete_records(self) -> None:
        after = self.model.copy()
        after.delete(self.rng.randint(self.model.start, self.model.end))
        self.ceiling = after.start
        self.promise(f"delete before {after.start}")
        self.log.delete_records(after.start)
        self.model = after
        self.floor = after.start
        self.promise(f"deleted before {after.start}")

    def retain(self) -> None:
        """By size, at times all of it; the log start is on the disk when that returns, as after `delete_records`."""
        self.log.update_config(retention_bytes=self.rng.choice([0, 500, 1500]))
        planned = self.log.plan_retention()
        after = self.model.copy()
        after.delete(planned[-1].next_offset if planned else 0)
        self.ceiling = max(self.ceiling, after.start)
        self.promise(f"retain from {after.start}")
        self.log.apply_retention()
        self.log.update_config(retention_bytes=-1)
        after.drop_segments(self.log.segments[0].base_offset)
        self.model = after
        self.floor = max(self.floor, after.start)
        self.promise(f"retained from {after.start}")

    def reopen(self) -> None:
        bases = [segment.base_offset for segment in self.log.segments]
        self.log.close()
        self.model.reopen(bases)
        self.now_on_disk("close")
        self.log = self.open()
        assert list(self.log.read()) == self.model.records()

    def tell(self, steps: int) -> None:
        ways = {
            self.append: 8, self.append_many: 4, self.append_as_follower: 3, self.roll: 2, self.flush: 2,
            self.housekeeping: 2, self.truncate: 2, self.restart: 0.4, self.delete_records: 1, self.reopen: 1,
            self.retain: 1,
        }  # fmt: skip
        for way in self.rng.choices(list(ways), list(ways.values()), k=steps):
            way()
            assert list(self.log.read()) == self.model.records()
        self.log.close()
        self.now_on_disk("close")


def log_bytes(path: Path) -> dict[int, int]:
    return {int(file.stem): file.stat().st_size for file in path.glob("*.log")}


def is_first_part(records: list[Record], version: tuple[ModelBatch, ...], start: int) -> bool:
    """Whether the records are those, from `start` on, of some whole batches at the beginning of this version."""
    expected: list[Record] = []
    if records == expected:
        return True
    for batch in version:
        expected += [record for record in batch.records if record.offset >= start]
        if records == expected:
            return True
    return False


def is_part(records: list[Record], version: tuple[ModelBatch, ...], start: int, bases: list[int]) -> bool:
    """Whether the records are whole batches of this version, and whatever is missing ends where a segment starts.

    A disk that keeps later writes and loses earlier ones may lose the tail of one segment, at a border of batches,
    and keep the next: nothing on the disk tells that from a gap that a follower was given, and Kafka keeps it too.
    """
    there = set(records)
    missing, lost_from = False, -1
    expected: list[Record] = []
    for batch in version:
        wanted = [record for record in batch.records if record.offset >= start]
        if there.issuperset(wanted):
            if missing and wanted and not any(base <= batch.base_offset and base > lost_from for base in bases):
                return False
            missing = False
            expected += wanted
        elif not missing:
            missing, lost_from = True, batch.base_offset
    return records == expected


def check_image(image: Path, promise: Promise, rng: random.Random, *, in_order: bool) -> None:
    """Open what the power cut left, as a reader and as a writer, and hold it to the promise."""
    path = image / "events-0"
    clock = ManualClock(NOW + 10**6)
    seen = None
    fault = None
    if path.exists():
        before = {file: file.read_bytes() for file in image.rglob("*") if file.is_file()}
        try:
            with kstore.Log.open(path, mode="r") as reader:
                seen = list(reader.read())
        except kstore.CorruptRecordError as error:
            fault = error
        assert {file: file.read_bytes() for file in image.rglob("*") if file.is_file()} == before
    sizes = log_bytes(path)
    with kstore.Log.open(path, clock=clock, **SETTINGS) as log:
        recovery = log.recovery
        found = list(log.read())
        start, end = log.log_start_offset, log.log_end_offset
        assert promise.start_at_least <= start <= max(promise.start_at_most, promise.start_at_least)
        must = [r for batch in promise.acknowledged for r in batch.records if r.offset >= promise.start_at_most]
        assert [record for record in must if record not in set(found)] == []
        if in_order:
            assert any(is_first_part(found, version, start) for version in promise.versions)
        else:
            bases = [segment.base_offset for segment in log.segments]
            assert any(is_part(found, version, start, bases) for version in promise.versions)
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        lost = sum(sizes.values()) - sum(log_bytes(path).values())
        dropped = sum(sizes[base] for base in recovery.segments_dropped)
        # What was cut from a segment that was dropped then is counted twice.
        assert dropped <= lost <= dropped + recovery.cut_bytes
        assert lost == 0 or dropped or recovery.cut_bytes
        if seen is None:
            assert fault is None or recovery.segments_dropped
        else:
            assert seen == found
        if rng.random() < 0.3:  # and the power goes once more, before anything was synced
            again = image.with_name(image.name + "-again")
            shutil.copytree(image, again)
            with kstore.Log.open(again / "events-0", clock=clock, **SETTINGS) as second:
                assert second.recovery.cut_bytes == 0
                assert list(second.read()) == found
            shutil.rmtree(again)
    with kstore.Log.open(path, clock=clock, **SETTINGS) as log:
        assert log.recovery.clean
        assert (list(log.read()), log.log_start_offset, log.log_end_offset) == (found, start, end)
        assert log.append(b"after") == end
        assert [record.value for record in log.read(end)] == [b"after"]


def check_story(story: Story, disk: FaultFS, into: Path, rng: random.Random, *plans: Plan) -> int:
    into.mkdir()
    steps = [promise.step for promise in story.promises]
    checked = 0
    for step, plan, image in disk.crash_images(into, *plans):
        promise = story.promises[max(bisect.bisect_right(steps, step) - 1, 0)]
        try:
            check_image(image, promise, rng, in_order=plan in PLANS)
        except Exception as error:
            near = "\n".join(
                f"{n}: {op}" for n, op in enumerate(disk.trace[max(step - 12, 0) : step], max(step - 12, 0))
            )
            error.add_note(f"power cut at step {step} ({plan!r}), in or after: {promise.what}\n{near}")
            raise
        checked += 1
    return checked


@pytest.fixture
def told(root: Path, tmp_path: Path) -> Callable[[random.Random, int], tuple[Story, FaultFS]]:
    """`told(rng, steps)`: a story of so many events, to its end."""

    def tell(rng: random.Random, steps: int) -> tuple[Story, FaultFS]:
        home = root / f"{rng.random()}"
        home.mkdir()
        with FaultFS(home) as disk:
            story = Story(home, disk, rng)
            story.tell(steps)
        return story, disk

    return tell


def test_whatever_a_power_cut_leaves_opens_and_holds_what_was_acknowledged(
    told: Callable[[random.Random, int], tuple[Story, FaultFS]],
    tmp_path: Path,
    rng: random.Random,
    budget: Callable[[float], float],
) -> None:
    until = time.monotonic() + budget(30)
    stories = images = 0
    while stories < 2 or time.monotonic() < until:
        seed = rng.getrandbits(32)
        print(f"story {stories}: seed {seed}")
        chances = random.Random(seed)
        story, disk = told(chances, 15)
        into = tmp_path / f"images-{stories}"
        plans = [LOST, *chances.sample(PLANS[1:], 2), shuffled(chances), shuffled(chances)]
        images += check_story(story, disk, into, chances, *plans)
        stories += 1
    print(f"{stories} stories, {images} images")


def test_a_flush_in_a_gap_promises_nothing_of_what_comes_after_it(
    root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """SEMANTICS 11.4: a truncation inside a batch ends the log above its data; later records were lost, not flushed
    ones."""
    with FaultFS(root) as disk:
        log = kstore.Log.open(root / "events-0", clock=clock)
        log.append_many([b"a", b"b", b"c"], atomic=True)
        log.truncate_to(2)
        log.flush()
        log.append(b"d")
        log.append_many([b"e", b"f", b"g"], atomic=True)
        log.truncate_to(4)
        step = disk.step
        log.close()
    for number, plan in enumerate(PLANS):
        with kstore.Log.open(disk.crash_image(tmp_path / f"image-{number}", step, plan) / "events-0") as log:
            assert [record.value for record in log.read()] in ([], [b"d"])


def test_starting_anew_lower_brings_no_deleted_record_back(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    """The line of the old start goes only after the records that it hides."""
    with FaultFS(root) as disk:
        log = kstore.Log.open(root / "events-0", clock=clock)
        log.truncate_fully_and_start_at(20)
        for _ in range(3):
            log.append(b"old")
            log.roll()
        log.delete_records(22)
        begun = disk.step
        log.truncate_to(10)
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    for _, _, image in disk.crash_images(into, since=begun):
        with kstore.Log.open(image / "events-0", clock=clock) as log:
            assert log.log_start_offset >= 10
            assert [record.offset for record in log.read()] in ([], [22])


def test_a_power_cut_while_a_partition_is_made_leaves_it_or_leaves_it_not(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random
) -> None:
    """And the lines that a former partition of its name has left are no part of it."""
    lines = {"recovery-point-offset-checkpoint": 100, "log-start-offset-checkpoint": 50}
    for name, offset in lines.items():
        (root / name).write_text(f"0\n2\nevents 0 {offset}\nother 1 7\n")
    with FaultFS(root) as disk:
        begun = disk.step
        log = kstore.Log.open(root / "events-0", clock=clock)
        made = disk.step
        log.append(b"first", sync=True)
        synced = disk.step
        log.append(b"second")
        log.flush()
        flushed = disk.step
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, *PLANS, shuffled(rng), since=begun):
        for name in lines:
            text = (image / name).read_text()
            assert "other 1 7\n" in text
        with kstore.Log.open(image / "events-0", clock=clock) as log:
            least = [b"first", b"second"][: (step >= synced) + (step >= flushed)]
            found = [record.value for record in log.read()]
            assert (log.log_start_offset, log.log_end_offset) == (0, len(found)), (step, plan)
            assert found == [b"first", b"second"][: len(found)]
            assert found[: len(least)] == least, (step, plan)
        if step >= made and plan is LOST:
            assert (image / "events-0").is_dir()


CHILD = """
import os, random, sys
import kstore

path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
settings = dict(segment_bytes=rng.choice([2000, 20_000, 1 << 20]), index_interval_bytes=rng.choice([0, 500, 4096]),
                segment_index_bytes=rng.choice([240, 65536]))


def say(*what):
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())


def values(first, count):
    return [b"%d:" % offset + b"x" * (offset * 7919 % 200) for offset in range(first, first + count)]


while True:
    with kstore.Log.open(path, **settings) as log:
        say("start", log.log_start_offset, log.log_end_offset)
        for _ in range(rng.randrange(500, 3000)):
            end = log.log_end_offset
            chance = rng.random()
            if chance < 0.6:
                log.append(*values(end, 1), sync=rng.random() < 0.01)
            elif chance < 0.95:
                log.append_many(values(end, rng.randrange(1, 300)), batch_bytes=rng.choice([100, 1000, 16384]))
            elif chance < 0.97:
                log.flush()
            elif chance < 0.98:
                log.roll()
            elif chance < 0.99:
                start = rng.randint(log.log_start_offset, end)
                log.delete_records(start)
                say("start", start, end)
            elif chance < 0.992:
                keep, delay = rng.choice([0, 5000, 50_000]), rng.choice([0, 50])
                log.update_config(retention_bytes=keep, file_delete_delay_ms=delay)
                log.apply_retention()
                log.update_config(retention_bytes=-1)
                say("start", log.log_start_offset, end)
            else:
                cut = log.fetch(rng.randint(max(log.log_start_offset, end - 500), end), 1).offset  # leaves no gap
                cut = max(cut, log.log_start_offset)
                say("cutting", cut)
                log.truncate_to(cut)
                log.append_many(values(cut, 5))
            say("end", log.log_end_offset)
"""


def test_a_killed_process_loses_nothing_that_an_append_had_returned(
    root: Path, rng: random.Random, budget: Callable[[float], float]
) -> None:
    """Real threads, real clock, real kills: what was reported is in the page cache, and outlives the process."""
    path = root / "events-0"
    until = time.monotonic() + budget(20)
    rounds = end = start = 0
    low = 0
    while rounds < 3 or time.monotonic() < until:
        seed = rng.getrandbits(32)
        print(f"round {rounds}: seed {seed}")
        child = subprocess.Popen([sys.executable, "-c", CHILD, path, str(seed)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = 0
        enough = rng.choice([1, 20, 300, 2000])
        with child.stdout:
            for line in child.stdout:
                what, *numbers = line.decode().split()
                if what == "start":
                    start = int(numbers[0])
                    end = low = int(numbers[1])
                elif what == "cutting":
                    low = min(low, int(numbers[0]))
                else:
                    end = low = int(numbers[0])
                lines += 1
                if lines == enough:
                    child.kill()
            assert line.endswith(b"\n")
        assert child.wait() == -signal.SIGKILL
        with kstore.Log.open(path, mode="r") as reader:
            seen = list(reader.read())
        with kstore.Log.open(path) as log:
            found = list(log.read())
            assert log.log_start_offset >= start
            assert log.log_end_offset >= low
            assert found == seen
            first = found[0].offset if found else log.log_end_offset
            assert [record.offset for record in found] == list(range(first, log.log_end_offset))
            for record in found:
                assert record.value == b"%d:" % record.offset + b"x" * (record.offset * 7919 % 200)
        with kstore.Log.open(path) as log:
            assert log.recovery.clean
            assert list(log.read()) == found
        rounds += 1
    print(f"{rounds} rounds, the log ends at {end}")
