"""`durable=True`: what is given survives the machine; by the writer's own recovery point, or by the one it wrote down.

The proof is in docs/design.md; the last test looks for a counterexample with power cuts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore import Record
from tests.conftest import ManualClock
from tests.promises.test_crash import SETTINGS, Story
from tests.support.faultfs import PLANS, FaultFS, shuffled

POINTS = "recovery-point-offset-checkpoint"


def offsets(records: Iterator[Record]) -> list[int]:
    return [record.offset for record in records]


def written(partition: Path) -> int:
    lines = (partition.parent / POINTS).read_text().splitlines()[2:]
    return next((int(line.split()[2]) for line in lines if line.startswith("events 0 ")), 0)


def checkpoint(log: kstore.Log, clock: ManualClock) -> None:
    clock.advance(60_000)
    log.run_housekeeping()


def test_a_writer_gives_what_it_has_flushed(partition: Path, clock: ManualClock) -> None:
    with kstore.Log.open(partition, clock=clock) as log:
        assert offsets(log.read(durable=True)) == []
        log.append_many([b"x"] * 3, batch_bytes=1)
        assert offsets(log.read(durable=True)) == []
        log.flush()
        log.append(b"y")
        assert offsets(log.read(durable=True)) == [0, 1, 2]
        assert offsets(log.read(2, durable=True)) == [2]
        assert offsets(log.read(4, durable=True)) == []
        assert offsets(log.read(durable=True, end_offset=2)) == [0, 1]
        assert offsets(log.read(durable=True, end_offset=4)) == [0, 1, 2]
        assert [batch.base_offset for batch in log.read_batches(durable=True)] == [0, 1, 2]
        assert offsets(log.read()) == [0, 1, 2, 3]
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.read(5, durable=True)


def test_a_reader_gives_what_the_writer_has_written_down(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 12.7: a flush by itself writes no checkpoint."""
    with kstore.Log.open(partition, clock=clock) as log, kstore.Log.open(partition, mode="r") as reader:
        log.append_many([b"x"] * 3, batch_bytes=1)
        log.flush()
        assert offsets(reader.read()) == [0, 1, 2]
        assert offsets(reader.read(durable=True)) == []
        checkpoint(log, clock)
        log.append(b"y")
        assert offsets(reader.read(durable=True)) == [0, 1, 2]
        assert [batch.base_offset for batch in reader.read_batches(durable=True)] == [0, 1, 2]
    assert offsets(reader_of(partition).read(durable=True)) == [0, 1, 2, 3]  # closed: all of it


def reader_of(partition: Path) -> kstore.Log:
    return kstore.Log.open(partition, mode="r")


@pytest.mark.parametrize("point", [0, 1, 9, 10, 11, 19, 20, 25, 30])
def test_the_recovery_point_binds_wherever_it_lies(partition: Path, point: int) -> None:
    """In a segment, at its border, inside a batch; as a broker may have written it."""
    with kstore.Log.open(partition) as log:
        for _ in range(3):
            for _ in range(2):
                log.append_many([b"x"] * 5, atomic=True)
            log.roll()
    (partition.parent / POINTS).write_text(f"0\n1\nevents 0 {point}\n")
    with reader_of(partition) as reader:
        assert offsets(reader.read(durable=True)) == list(range(point))
        assert offsets(reader.read(7, durable=True)) == list(range(7, point))
        assert [b.base_offset for b in reader.read_batches(durable=True)] == list(range(0, point, 5))
        # Who follows waits for the rest of a batch that the point divides.
        assert offsets(reader.read(durable=True, follow=True, timeout=0)) == list(range(point // 5 * 5))


def test_without_a_line_in_the_checkpoint_nothing_is_durable(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([b"x"] * 3)
    (partition.parent / POINTS).unlink()
    with reader_of(partition) as reader:
        assert offsets(reader.read(durable=True)) == []
        assert offsets(reader.read()) == [0, 1, 2]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_follower_waits_for_the_flush_and_not_for_the_append(partition: Path, clock: ManualClock, mode: str) -> None:
    with kstore.Log.open(partition, clock=clock, segment_bytes=500) as log, reader_of(partition) as reader:
        seen: list[int] = []
        records = (log if mode == "a" else reader).read(durable=True, follow=True, timeout=60)

        def follow() -> None:
            for record in records:
                seen.append(record.offset)
                if record.offset == 29:
                    return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        for first in range(0, 30, 10):
            for _ in range(10):
                log.append(b"x" * 50)
            log.flush()
            checkpoint(log, clock)
            until = time.monotonic() + 60
            while len(seen) < first + 10 and time.monotonic() < until:
                time.sleep(0.001)
            assert seen == list(range(first + 10))
            # What is rolled away by these appends is flushed by the next housekeeping alone.
        thread.join(60)
        assert not thread.is_alive()


def test_a_reader_gives_nothing_that_took_the_place_of_cut_flushed_records(partition: Path, clock: ManualClock) -> None:
    """The recovery point in the file comes down before the cut; the reader has read it before that."""
    with kstore.Log.open(partition, clock=clock) as log, reader_of(partition) as reader:
        for _ in range(10):
            log.append(b"old")
        log.flush()
        checkpoint(log, clock)
        ahead = [reader.read(durable=True), reader.read(durable=True), log.read(durable=True)]
        assert next(ahead[0]).offset == 0
        log.truncate_to(5)
        for _ in range(20):
            log.append(b"new")
        assert offsets(ahead[1]) == [0, 1, 2, 3, 4]
        assert offsets(reader.read(durable=True)) == [0, 1, 2, 3, 4]
        assert offsets(ahead[2]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stories", [6])
def test_what_is_given_as_durable_is_there_after_any_power_cut(
    root: Path, tmp_path: Path, rng: random.Random, no_syncs: None, stories: int
) -> None:
    """The writer's flushed records, and those that a reader was given, in every image of the moment after."""
    given = 0
    for number in range(stories):
        seed = rng.getrandbits(32)
        print(f"story {number}: seed {seed}")
        chances = random.Random(seed)
        home = root / f"{number}"
        home.mkdir()
        notes: list[tuple[int, list[Record]]] = []
        with FaultFS(home) as disk:
            story = Story(home, disk, chances)
            ways: list[Callable[[], None]] = [story.append, story.append_many, story.append_as_follower, story.roll]
            ways += [story.flush, story.flush, story.housekeeping, story.truncate, story.delete_records, story.reopen]
            for _ in range(25):
                chances.choice(ways)()
                notes.append((disk.step, list(story.log.read(durable=True))))
                with reader_of(story.path) as reader:
                    notes.append((disk.step, list(reader.read(durable=True))))
            story.log.close()
        for count, (step, records) in enumerate(notes):
            if not records or (count and notes[count - 1] == (step, records)):
                continue
            given += len(records)
            image = disk.crash_image(tmp_path / f"{number}-{count}", step, chances.choice([*PLANS, shuffled(chances)]))
            with kstore.Log.open(image / "events-0", clock=ManualClock(), **SETTINGS) as log:
                assert log.log_start_offset <= records[0].offset
                assert set(records) <= set(log.read())
    assert given
