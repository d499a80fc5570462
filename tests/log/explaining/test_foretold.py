"""What `Log.explain` foretells happens, at that time: in a store whose clock is moved from task to task.

A random load is appended under random settings. Then nothing more is appended: the clock is set to each time at which
the store has a task, and every segment has to go at the check that was foretold, and its files when they were.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.explained.explanation import CheckTimes, ExplainedSegment, Explanation
from tests.conftest import ManualClock, examples
from tests.log.segments.test_retention_story import FIRST_LOOK, LOOKS, MINUTE, SECOND, Story

NOW = 1_700_000_000_000
HOUR = 60 * MINUTE
# Tasks that are not about deletion do not have to run often.
QUIET = {
    "log.flush.offset.checkpoint.interval.ms": HOUR,
    "log.flush.start.offset.checkpoint.interval.ms": HOUR,
    "replica.high.watermark.checkpoint.interval.ms": HOUR,
    "min.cleanable.dirty.ratio": 1,  # nothing is cleaned: more than 1 is never dirty
    "message.timestamp.after.max.ms": 2 * HOUR,
}

configs = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "delete", "delete", "compact,delete", "compact"]),
        "log.retention.ms": st.sampled_from([-1, 1, SECOND, 40 * SECOND, 5 * MINUTE, 20 * MINUTE]),
        "retention.bytes": st.sampled_from([-1, -1, 0, 300, 1000]),
        "segment.bytes": st.sampled_from([300, 500, 1000, 1 << 20]),
        "segment.ms": st.sampled_from([SECOND, MINUTE, 10 * MINUTE, HOUR]),
        "segment.index.bytes": st.sampled_from([36, 60, 1 << 10]),
        "index.interval.bytes": st.sampled_from([0, 150, 4096]),
        "file.delete.delay.ms": st.sampled_from([0, 1, MINUTE]),
        "log.retention.check.interval.ms": st.sampled_from([33 * SECOND, MINUTE, 5 * MINUTE]),
        "log.initial.task.delay.ms": st.sampled_from([0, 30 * SECOND]),
        "log.cleaner.backoff.ms": st.sampled_from([40 * SECOND, MINUTE]),
    }
)
# How long after the one before, how far the timestamp is from the clock, how large.
appends = st.tuples(
    st.sampled_from([0, 1, SECOND, 20 * SECOND, 3 * MINUTE]),
    st.sampled_from([0, 0, 0, 0, -SECOND, -10 * MINUTE, MINUTE, 30 * MINUTE]),
    st.integers(1, 200),
)


class Life:
    """A store with a log, a clock, and when each segment and its last file were seen to be gone."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.clock = ManualClock(NOW)
        self.store = kstore.Store.open(root, clock=self.clock, background=False, config={**config, **QUIET})
        self.store.create_topic("life")
        self.log = self.store.log("life", 0)
        self.directory = Path(self.log.path)
        self.gone_ms: dict[int, int] = {}
        self.freed_ms: dict[int, int] = {}

    def load(self, appended: list[tuple[int, int, int]]) -> None:
        for wait, skew, size in appended:
            self.live_to(self.clock.now + wait)
            self.log.append(b"v" * size, key=b"k", timestamp=max(self.clock.now + skew, 0))

    def live_to(self, end: int) -> None:
        """Set the clock to each time at which a task is due, and make the store do it."""
        while (due := min(self.store.stats()["tasks"].values())) <= end:
            self.clock.now = max(due, self.clock.now)
            self.store.run_housekeeping()
            self.look()
        self.clock.now = max(end, self.clock.now)

    def look(self) -> None:
        live = {segment.base_offset for segment in self.log.segments}
        on_disk = {int(path.name[:20]) for path in self.directory.glob("*.log*")}
        for base in self.watched:
            if base not in live:
                self.gone_ms.setdefault(base, self.clock.now)
            if base not in live | on_disk:
                self.freed_ms.setdefault(base, self.clock.now)

    watched: tuple[int, ...] = ()

    def watch(self) -> Explanation:
        explained = self.log.explain()
        self.watched = tuple(each.base_offset for each in explained.segments)
        return explained


def check(life: Life, explained: Explanation, each: ExplainedSegment) -> None:
    gone = life.gone_ms.get(each.base_offset)
    delay = explained.settings["file.delete.delay.ms"]
    if each.earliest_ms is None:
        assert (gone, each.latest_ms, each.freed_ms) == (None, None, None), each
        return
    assert gone is not None, each
    assert each.latest_ms is not None
    if explained.checks.by == "store" or each.holds == ("check",):
        assert (each.earliest_ms, each.latest_ms) == (gone, gone), each
    else:
        assert each.earliest_ms <= gone <= each.latest_ms, each
    assert life.freed_ms[each.base_offset] == gone + delay, each
    assert each.freed_ms == each.latest_ms + delay, each


@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
@pytest.mark.usefixtures("no_syncs")
@examples(0.4)
@given(config=configs, appended=st.lists(appends, min_size=1, max_size=25))
def test_every_segment_goes_at_the_check_that_was_foretold(
    config: dict[str, Any], appended: list[tuple[int, int, int]]
) -> None:
    with TemporaryDirectory() as directory:
        life = Life(Path(directory), config)
        with life.store:
            life.load(appended)
            explained = life.watch()
            is_compacted = "compact" in config["cleanup.policy"]
            assert explained.checks.by == ("cleaner" if is_compacted else "store")
            life.live_to(life.clock.now + HOUR)
            for each in explained.segments:
                check(life, explained, each)
            own = life.log.explain().segments
        settings = {name: value for name, value in explained.settings.items() if not name.startswith("log.")}
        with kstore.Log.open(life.directory, mode="r", config=settings) as log:
            read = log.explain().segments
        for known, inferred in zip(own[:-1], read[:-1], strict=True):
            assert (known.is_roll_inferred, inferred.is_roll_inferred) == (False, True)
            assert inferred.roll_reason == known.roll_reason, (known, inferred)


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
def test_the_twenty_five_minutes_are_foretold_after_nine(root: Path) -> None:
    """SEMANTICS 6.19, as of the append that leaves the first segment."""
    story = Story(root)
    with story.store:
        story.begin(FIRST_LOOK + 4 * LOOKS - 19 * MINUTE)
        born = story.born
        story.live_to(9 * MINUTE + 5 * SECOND)
        found = story.log.explain(offset=0)
        assert found.checks == CheckTimes("store", born + 14 * MINUTE, 5 * MINUTE)
        first = found.segments[0]
        assert (first.roll_reason, first.rolled_ms) == ("size", born + 9 * MINUTE + 5 * SECOND)
        assert first.due_ms == born + 19 * MINUTE + 1
        assert (first.earliest_ms, first.latest_ms) == (born + 24 * MINUTE, born + 24 * MINUTE)
        assert first.freed_ms == born + 25 * MINUTE
        assert found.record is not None
        assert found.record.future == (
            "The log rolled to the next segment at 2023-11-14T22:23:55.000Z by segment.bytes.",
            "It can be deleted from 2023-11-14T22:33:50.001Z on, when the newest record of its segment is older than "
            "retention.ms = 600000 ms (10 min).",
            "The check at 2023-11-14T22:38:50.000Z deletes it.",
            "Its bytes leave the disk 60000 ms (1 min) after that.",
        )
        assert (found.record.earliest_ms, found.record.freed_ms) == (first.earliest_ms, first.freed_ms)

        # The next day's reader is told what the check would do now.
        later = story.log.explain(at=born + 20 * MINUTE, offset=0)
        assert later.segments[0].holds == ("check",)
        assert later.record is not None
        assert later.record.earliest_ms == born + 24 * MINUTE

        # After the check the files wait for their time.
        story.live_to(24 * MINUTE)
        waiting = story.log.explain().deleted
        assert [Path(each.path).name[20:] for each in waiting] == [
            ".index.deleted", ".log.deleted", ".timeindex.deleted",
        ]  # fmt: skip
        assert {each.gone_ms for each in waiting} == {born + 25 * MINUTE}
        assert {Path(each.path).name: each.size_bytes for each in waiting}["00000000000000000000.log.deleted"] == 16314
        with kstore.Log.open(story.directory, mode="r") as log:
            assert {each.gone_ms for each in log.explain().deleted} == {None}


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
def test_the_five_minutes_of_a_quiet_topic_are_the_days_of_its_segment(root: Path) -> None:
    """The active segment goes with its newest record: each new one postpones the end of the first."""
    config = {"log.retention.ms": 5 * MINUTE, "log.retention.check.interval.ms": MINUTE, **QUIET}
    life = Life(root, config)
    with life.store:
        life.load([(0, 0, 10), *[(3 * MINUTE, 0, 10)] * 10])
        found = life.log.explain(offset=0)
        [active] = found.segments
        assert (active.is_active, active.holds) == (True, ("retention.ms",))
        assert active.due_ms == life.clock.now + 5 * MINUTE + 1
        assert found.record is not None
        assert found.record.future[0] == "Its segment is the active one: it goes on growing until the log rolls."
        life.watched = (0,)
        life.live_to(life.clock.now + 10 * MINUTE)
        assert life.gone_ms[0] == active.earliest_ms
        assert [(each.base_offset, each.roll_reason) for each in life.log.segments] == [(11, "retention")]
