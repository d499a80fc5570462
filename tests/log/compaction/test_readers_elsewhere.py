"""A reader elsewhere while a log is cleaned: a swap is seen not begun or done, and a cleaning is no truncation.

What a cleaner does with the files is done here rename by rename (tests/support/compacted.py); reader and writer are two
logs of one process, which share nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kstore
from tests.conftest import ManualClock, examples
from tests.support.compacted import HandMade, a_root, cleaned, fresh, read_back, swap, write

pytestmark = pytest.mark.usefixtures("no_syncs")

Pair = tuple[int, bytes | None]


def pairs(records: Any) -> list[Pair]:
    return [(record.offset, record.value) for record in records]


def listed(made: HandMade, offset: int = 0) -> list[Pair]:
    return [(r.offset, r.value) for r in made.records(offset)]


class Readers:
    """Iterators over one log at several places, each with what it has given."""

    def __init__(self, log: kstore.Log, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.given: list[list[Pair]] = [[] for _ in range(count)]
        self.iterators: list[Iterator[Pair]] = []
        for number in range(count):
            make = rng.choice((self.by_rows, self.by_batches, self.by_columns))
            self.iterators.append(make(log, rng.choice((True, False)) and number > 0))
        self.ended = [False] * count

    @staticmethod
    def by_rows(log: kstore.Log, follow: bool) -> Iterator[Pair]:
        for record in log.read(follow=follow, timeout=0.001 if follow else None):
            yield record.offset, record.value

    @staticmethod
    def by_batches(log: kstore.Log, follow: bool) -> Iterator[Pair]:
        for batch in log.read_batches(follow=follow, timeout=0.001 if follow else None):
            if not batch.is_control:
                yield from pairs(batch)

    @staticmethod
    def by_columns(log: kstore.Log, _: bool) -> Iterator[Pair]:
        for chunk in log.iter_columns(max_records=2):
            yield from zip(chunk.offsets.tolist(), list(chunk.values), strict=True)

    def go_on(self, most: int | None = None) -> None:
        """Each gives some more, or with None all that is left."""
        for number, iterator in enumerate(self.iterators):
            for _ in range(10**9 if most is None else self.rng.randint(0, most)):
                pair = next(iterator, None)
                if pair is None:
                    self.ended[number] = True
                    break
                self.given[number].append(pair)


@examples(0.25)
@given(st.integers(0, 2**32), st.integers(4, 30))
def test_at_each_step_of_a_swap_the_log_is_the_old_or_the_new_one(seed: int, batches: int) -> None:
    rng = random.Random(seed)
    old = fresh(rng, batches)
    for _ in range(rng.choice((0, 1))):
        old = cleaned(old, rng)
    new = cleaned(old, rng)
    with a_root() as root:
        write(old, root / "events-0")
        with kstore.Log.open(root / "events-0", "r") as log:
            readers = Readers(log, rng, 6)
            readers.go_on(4)
            before, after = dict(listed(old)), dict(listed(new))
            everything = set(listed(old)) | set(listed(new))
            committed = {r.offset for r in old.records(committed=True)}
            for _ in swap(old, new, root / "events-0"):
                seen = pairs(log.read())
                assert [offset for offset, _ in seen] == sorted({offset for offset, _ in seen})
                assert set(seen) <= everything
                assert set(listed(new)) <= set(seen)
                assert log.log_end_offset == old.end
                assert log.read_columns().offsets.tolist() == [offset for offset, _ in seen]
                assert {r.offset for r in log.read(isolation="read_committed")} <= committed
                with kstore.Log.open(root / "events-0", "r") as other:
                    assert pairs(other.read()) == seen
                readers.go_on(rng.choice((0, 0, 1, 3)))
            assert pairs(log.read()) == listed(new)
            readers.go_on()
            for given_ in readers.given:
                offsets = [offset for offset, _ in given_]
                assert offsets == sorted(set(offsets))
                assert all(before[offset] == value for offset, value in given_)
                assert set(after) <= set(offsets)


class Story:
    """A log that is appended to, rolled, cut and cleaned while a reader in another process looks now and then."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.clock = ManualClock()
        self.settings: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 200, "cleanup_policy": "compact"}
        self.count = 0
        self.cuts: list[tuple[int, int]] = []  # where the data ended, and the offset that was asked for
        self.files: dict[str, list[int]] = {}  # by name the inode numbers that it has had, one after the other

    @property
    def has_same_number_again(self) -> bool:
        """Whether a later file of a segment got the inode number of an earlier one, which was deleted meanwhile."""
        return any(len(set(numbers)) < len(numbers) for numbers in self.files.values())

    def note_files(self) -> None:
        """Note the segments' files as they are now."""
        for path in self.path.glob("*.log"):
            numbers = self.files.setdefault(path.name, [])
            if numbers[-1:] != [number := path.stat().st_ino]:
                numbers.append(number)

    def open(self) -> kstore.Log:
        return kstore.Log.open(self.path, clock=self.clock, **self.settings)

    def append(self) -> None:
        with self.open() as log:
            for _ in range(self.rng.randint(1, 12)):
                self.count += 1
                self.clock.advance(1)
                values = [(b"k%d" % self.rng.randrange(5), b"value %06d" % self.count)] * self.rng.choice((1, 1, 3))
                log.append_many(values)
            if self.rng.random() < 0.3:
                log.roll()

    def cut(self) -> None:
        with self.open() as log:
            offset = self.rng.randint(max(0, log.log_end_offset - 30), log.log_end_offset)
            if self.rng.random() < 0.1:
                offset = 0
            if offset < log.log_end_offset:
                log.truncate_to(offset)
                self.cuts.append((read_back(self.path).data_end, offset))

    def clean(self) -> None:
        old = read_back(self.path)
        for _ in swap(old, cleaned(old, self.rng), self.path):
            pass


class Watcher:
    """An iterator of a reader in another process, and where it stands."""

    def __init__(self, log: kstore.Log, start: int, rng: random.Random) -> None:
        self.follows = rng.random() < 0.1
        self.iterator = log.read(start, follow=self.follows, timeout=0.02 if self.follows else None)
        self.start, self.next_offset = start, start
        self.end_offset = 1 << 62 if self.follows else log.log_end_offset
        for _ in range(rng.randint(0, len(pairs(log.read(start))))):
            self.step()  # never beyond the end, where the iterator would be done

    def step(self) -> Pair | None:
        record = next(self.iterator, None)
        if record is None:
            return None
        self.next_offset = record.offset + 1
        return record.offset, record.value


@pytest.mark.parametrize("events", ["append roll clean", "append roll cut", "append roll cut clean"])
@examples(0.25)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_cleaning_is_no_truncation_and_a_truncation_no_cleaning(events: str, seed: int, length: int) -> None:
    rng = random.Random(seed)
    with a_root() as root:
        story = Story(root / "events-0", rng)
        for _ in range(3):
            story.append()
        if "clean" in events:
            story.clean()
        with kstore.Log.open(root / "events-0", "r") as log:
            watchers = [Watcher(log, rng.randint(0, log.log_end_offset), rng) for _ in range(4)]
            story.cuts.clear()
            story.note_files()
            for _ in range(length):
                event = rng.choice(events.split())
                if event in ("append", "roll"):
                    story.append()
                elif event == "cut":
                    # With a cleaning between the same two looks it is not known which of the two took a batch.
                    look = log.segments if "clean" in events else None
                    story.cut()
                    assert look is None or log.segments
                elif event == "clean":
                    story.clean()
                story.note_files()
            assume(
                not story.has_same_number_again
            )  # then the reader may tell of a cut: it knows files by their numbers
            assert log.log_end_offset >= log.log_start_offset  # looks; what is read ahead is not given any more
            for watcher in watchers:
                is_given = watcher.next_offset > watcher.start
                if watcher.start > log.log_end_offset or (
                    is_given and any(offset < watcher.next_offset for _, offset in story.cuts)
                ):
                    with pytest.raises(kstore.OffsetOutOfRangeError):
                        watcher.step()
                    continue
                if is_given and story.cuts and "clean" in events:
                    continue  # what a cleaning took of the segment that was cut is not told from the cut
                if is_given and any(data_end < watcher.next_offset for data_end, _ in story.cuts):
                    continue  # the batch that it was in the middle of was cut
                with kstore.Log.open(root / "events-0", "r") as fresh_look:
                    expected = pairs(fresh_look.read(watcher.next_offset, end_offset=watcher.end_offset))
                assert list(iter(watcher.step, None)) == expected
