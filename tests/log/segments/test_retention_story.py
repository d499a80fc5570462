"""How long ten minutes are: the worst case of SEMANTICS 6.19, told step by step on a store with a clock of its own.

A record every five seconds, segments of 16 KiB, ten minutes of retention. The first record of a segment that has just
missed a look is on the disk for twenty-five minutes: nine until its segment is left, ten that its newest record is
kept, five until the next check, one until the files are deleted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from tests.conftest import ManualClock

SECOND = 1000
MINUTE = 60 * SECOND
FIRST_LOOK, LOOKS = 30 * SECOND, 5 * MINUTE  # log.initial.task.delay.ms, log.retention.check.interval.ms


def canary(offset: int) -> bytes:
    """A value that makes a batch of 148, 149 or 150 bytes: 109 of them fill a segment (SEMANTICS 3.16)."""
    size = 148 if offset <= 2 else 149 if offset <= 32 else 150
    return b"c" * (size - 61 - 9)


class Story:
    """A store, a writer that appends every five seconds, and a clock that counts from the first record on."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.store = kstore.Store.open(
            root,
            clock=self.clock,
            background=False,
            config={"log.retention.ms": 10 * MINUTE, "file.delete.delay.ms": MINUTE, "segment.bytes": 16384},
        )
        self.store.create_topic("canary")
        self.log = self.store.log("canary", 0)
        self.directory = root / "canary-0"
        self.born = 0
        self.written = 0

    def begin(self, at: int) -> None:
        """Let so many milliseconds pass since the store was opened, then append the first record."""
        self.clock.advance(at)
        self.store.run_housekeeping()
        self.born = self.clock.now
        self.write()

    def write(self) -> None:
        self.log.append(canary(self.written))
        self.written += 1

    def live_to(self, at: int) -> None:
        """Live second by second until the first record is `at` milliseconds old; a record every five seconds."""
        while self.clock.now < self.born + at:
            self.clock.advance(SECOND)
            self.store.run_housekeeping()
            if (self.clock.now - self.born) % (5 * SECOND) == 0:
                self.write()

    def first_readable(self) -> int:
        return next(iter(self.log.read())).offset

    def files(self) -> set[str]:
        """The kinds of file that are left of the first segment."""
        return {path.name[21:] for path in self.directory.glob("00000000000000000000.*")}


@pytest.mark.usefixtures("no_syncs")
def test_ten_minutes_of_retention_may_be_twenty_five(root: Path) -> None:
    story = Story(root)
    live = {"log", "index", "timeindex"}
    with story.store:
        # The first record comes so that a look at 19:00 of its life just fails to take it.
        story.begin(FIRST_LOOK + 4 * LOOKS - 19 * MINUTE)

        # 9:00. The segment's last record, the 109th, is appended. Five seconds later the next does not fit any more.
        story.live_to(9 * MINUTE)
        assert (story.written, len(story.log.segments)) == (109, 1)
        story.live_to(9 * MINUTE + 5 * SECOND)
        assert [segment.base_offset for segment in story.log.segments] == [0, 109]
        assert story.log.segments[1].roll_reason == "size"

        # 10:00, 14:00. The first record is older than the ten minutes; looks pass it by: the segment's newest is not.
        story.live_to(14 * MINUTE)
        assert story.log.plan_retention() == []
        assert story.first_readable() == 0
        outlook = story.log.retention_outlook()
        assert outlook is not None
        assert outlook.due_ms == story.born + 19 * MINUTE + 1

        # 19:00. A look finds the newest record exactly ten minutes old, which is not more than ten minutes.
        story.live_to(19 * MINUTE)
        assert story.log.plan_retention() == []
        assert story.first_readable() == 0

        # 19:01. From now on it may be deleted. The next check is at 24:00.
        story.live_to(19 * MINUTE + SECOND)
        [deletion] = story.log.plan_retention()
        assert (deletion.base_offset, deletion.next_offset, deletion.reason) == (0, 109, "time")
        story.live_to(24 * MINUTE - SECOND)
        assert story.first_readable() == 0
        assert story.files() == live

        # 24:00. The look. The segment cannot be read any more, its files wait under another name.
        reader = story.log.read()
        assert next(reader).offset == 0
        story.live_to(24 * MINUTE)
        assert story.first_readable() == 109
        with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
            next(reader)
        assert caught.value.log_start_offset == 109
        assert story.files() == {f"{kind}.deleted" for kind in live}

        # 25:00. The files go.
        story.live_to(25 * MINUTE - SECOND)
        assert story.files() == {f"{kind}.deleted" for kind in live}
        story.live_to(25 * MINUTE)
        assert story.files() == set()

    # The other end: a segment's newest record is never gone before its ten minutes are over, and all that was written
    # since is there.
    with kstore.Log.open(root / "canary-0", mode="r") as log:
        found = list(log.read())
        assert [record.offset for record in found] == list(range(109, story.written))
        assert found[0].timestamp == story.born + 9 * MINUTE + 5 * SECOND


@pytest.mark.usefixtures("no_syncs")
def test_a_segment_whose_turn_comes_at_a_look_goes_there(root: Path) -> None:
    """The same, one second luckier: the look comes at 19:01 and takes it, five minutes earlier."""
    story = Story(root)
    with story.store:
        story.begin(FIRST_LOOK + 4 * LOOKS - 19 * MINUTE - SECOND)
        story.live_to(19 * MINUTE)
        assert story.first_readable() == 0
        story.live_to(19 * MINUTE + SECOND)
        assert story.first_readable() == 109
        story.live_to(20 * MINUTE)
        assert len(story.files()) == 3
        story.live_to(20 * MINUTE + SECOND)
        assert story.files() == set()
