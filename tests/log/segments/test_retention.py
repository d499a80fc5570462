"""Which segments may go: Kafka's order, Kafka's very byte and millisecond, and nothing looked at in vain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import LogConfig
from kstore.log.writing.retention import Deletion, Marks, decide, outlook

NOW = 1_700_000_000_000


@dataclass
class Fake:
    """A segment of which the test says what there is to know; it notes what it is asked."""

    base_offset: int
    size_bytes: int = 100
    timestamp: int = NOW
    of_file: bool = False
    asked: list[int] = field(default_factory=list)

    def newest(self) -> tuple[int, bool]:
        self.asked.append(self.base_offset)
        return self.timestamp, self.of_file


class Unseen:
    """A segment of which only the base offset may be read."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset

    @property
    def size_bytes(self) -> int:
        raise AssertionError("its size was looked at")

    def newest(self) -> tuple[int, bool]:
        raise AssertionError("its age was looked at")


def config(**settings: object) -> LogConfig:
    return LogConfig(**{"retention_ms": -1, **settings})


def decided(
    segments: list[Fake] | list[Fake | Unseen], *, end: int, start: int = 0, high_watermark: int | None = None,
    now: int = NOW, **settings: object,
) -> list[Deletion]:  # fmt: skip
    marks = Marks(start, end if high_watermark is None else high_watermark, end)
    return decide(segments, config(**settings), marks, now)


def bases(deletions: list[Deletion]) -> list[int]:
    return [deletion.base_offset for deletion in deletions]


THREE = [Fake(0), Fake(10), Fake(20)]


# The vectors of SEMANTICS 15.


def test_v6_what_stays_is_never_less_than_retention_bytes() -> None:
    assert bases(decided(THREE, end=30, retention_bytes=150)) == [0]


def test_v7_no_bytes_to_keep_takes_the_active_segment_too() -> None:
    assert bases(decided(THREE, end=30, retention_bytes=0)) == [0, 10, 20]


@pytest.mark.parametrize(("now", "gone"), [(5999, []), (6000, []), (6001, [0])])
def test_v8_a_segment_goes_once_its_newest_record_is_older_than_retention_ms(now: int, gone: list[int]) -> None:
    segments = [Fake(0, timestamp=5000), Fake(10, timestamp=6500)]
    assert bases(decided(segments, end=20, now=now, retention_ms=1000)) == gone


@pytest.mark.parametrize(("high_watermark", "gone"), [(9, []), (10, [0]), (11, [0])])
def test_v9_nothing_at_or_above_the_high_watermark_goes(high_watermark: int, gone: list[int]) -> None:
    segments = [Fake(0, timestamp=5000), Fake(10, timestamp=6500)]
    assert bases(decided(segments, end=20, high_watermark=high_watermark, now=6001, retention_ms=1000)) == gone


# By log start (SEMANTICS 6.3).


@pytest.mark.parametrize(("start", "gone"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10])])
def test_a_segment_goes_when_the_next_one_begins_at_or_below_the_log_start(start: int, gone: list[int]) -> None:
    """SEMANTICS 6.3: and never the last, not even when the log starts at its end."""
    assert bases(decided(THREE, end=30, start=start)) == gone


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete", ""])
def test_whatever_the_policy_what_lies_below_the_log_start_goes(policy: str) -> None:
    assert bases(decided(THREE, end=30, start=15, cleanup_policy=policy)) == [0]


@pytest.mark.parametrize(("policy", "gone"), [("delete", 3), ("compact,delete", 3), ("compact", 0), ("", 0)])
def test_size_and_age_count_only_where_the_policy_says_delete(policy: str, gone: int) -> None:
    """SEMANTICS 6.1, 6.1a, 6.18."""
    assert len(decided(THREE, end=30, cleanup_policy=policy, retention_bytes=0)) == gone
    assert len(decided(THREE, end=30, cleanup_policy=policy, retention_ms=0, now=NOW + 1)) == gone


# By size (SEMANTICS 6.4).


@pytest.mark.parametrize(
    ("keep", "gone"),
    [(-1, 0), (0, 3), (1, 2), (99, 2), (100, 2), (101, 1), (199, 1), (200, 1), (201, 0), (300, 0), (301, 0)],
)
def test_a_segment_goes_when_what_is_left_is_at_least_retention_bytes(keep: int, gone: int) -> None:
    assert len(decided(THREE, end=30, retention_bytes=keep)) == gone


def test_a_large_segment_in_front_keeps_small_ones_behind_it_that_would_fit() -> None:
    segments = [Fake(0, 1000), Fake(10, 10), Fake(20, 10)]
    assert decided(segments, end=30, retention_bytes=21) == []


def test_what_the_log_start_takes_no_longer_counts_as_size() -> None:
    """Each step looks at what the one before it has left: 200 bytes, not 300."""
    assert [d.reason for d in decided(THREE, end=30, start=10, retention_bytes=200)] == ["log_start"]
    assert [d.reason for d in decided(THREE, end=30, start=10, retention_bytes=100)] == ["log_start", "size"]


# By age (SEMANTICS 6.5, 6.6).


def test_a_late_record_keeps_its_segment_and_all_behind_it() -> None:
    """SEMANTICS 6.6: a prefix only."""
    segments = [Fake(0, timestamp=1000), Fake(10, timestamp=9000), Fake(20, timestamp=1000)]
    assert bases(decided(segments, end=30, now=9000, retention_ms=100)) == [0]


def test_a_timestamp_in_the_future_pins_the_log_until_its_time_has_passed() -> None:
    segments = [Fake(0, timestamp=NOW + 3_600_000), Fake(10, timestamp=0), Fake(20)]
    assert decided(segments, end=30, retention_ms=0) == []
    assert decided(segments, end=30, retention_ms=0, now=NOW + 3_600_000) == []
    assert len(decided(segments, end=30, retention_ms=0, now=NOW + 3_600_001)) == 3


def test_retention_ms_of_zero_spares_the_current_millisecond() -> None:
    """SEMANTICS 6.7."""
    segments = [Fake(0, timestamp=NOW - 1), Fake(10, timestamp=NOW), Fake(20, timestamp=NOW)]
    assert bases(decided(segments, end=30, retention_ms=0)) == [0]


def test_a_clock_before_the_epoch_deletes_nothing() -> None:
    assert decided([Fake(0, timestamp=0), Fake(10)], end=20, now=-5, retention_ms=0) == []


def test_segments_without_timestamps_age_by_their_file() -> None:
    """SEMANTICS 6.6: v0 batches have none."""
    segments = [Fake(0, timestamp=NOW - 1001, of_file=True), Fake(10, timestamp=NOW - 1000, of_file=True)]
    [gone] = decided(segments, end=20, retention_ms=1000)
    assert gone.base_offset == 0
    assert "its file was last written" in gone.explanation


def test_time_goes_on_where_size_has_stopped_and_both_after_the_log_start() -> None:
    """SEMANTICS 6.1: log start, size, time."""
    segments = [Fake(base, timestamp=NOW - 50 + base) for base in (0, 10, 20, 30, 40)]
    gone = decided(segments, end=50, start=12, retention_bytes=290, retention_ms=25)
    assert [(d.base_offset, d.reason) for d in gone] == [(0, "log_start"), (10, "size"), (20, "time")]


def test_an_older_segment_too_small_to_go_by_size_keeps_the_younger_ones() -> None:
    """But not by time, which begins anew at the first that is left."""
    segments = [Fake(0, 500, NOW - 10), Fake(10, 1, NOW - 9), Fake(20, 1, NOW)]
    assert [d.reason for d in decided(segments, end=30, retention_bytes=3, retention_ms=9)] == ["time"]


# The last segment (SEMANTICS 6.2, 6.9).


def test_an_empty_active_segment_never_goes() -> None:
    segments = [Fake(0), Fake(10, 0, timestamp=0, of_file=True)]
    assert bases(decided(segments, end=10, retention_bytes=0, retention_ms=0, now=NOW + 10**9)) == [0]
    assert decided([Fake(0, 0, timestamp=0, of_file=True)], end=0, retention_bytes=0, retention_ms=0) == []


def test_an_idle_active_segment_goes_when_it_is_old() -> None:
    """SEMANTICS 6.9: nothing has to be appended for that; the log rolls first."""
    assert bases(decided([Fake(0, timestamp=NOW - 1001)], end=7, retention_ms=1000)) == [0]


def test_the_active_segment_stays_while_its_newest_record_is_not_old() -> None:
    segments = [Fake(0, timestamp=NOW - 1001), Fake(10, timestamp=NOW - 1000)]
    assert bases(decided(segments, end=20, retention_ms=1000)) == [0]


def test_a_log_without_segments_has_none_to_lose() -> None:
    assert decided([], end=0, retention_ms=0, retention_bytes=0) == []
    assert outlook([], config(), Marks(0, 0, 0), NOW) is None


# Nothing in vain.


def test_nothing_behind_the_first_segment_that_stays_is_looked_at() -> None:
    segments: list[Fake | Unseen] = [Fake(0, timestamp=0), Fake(10), Unseen(20), Unseen(30)]
    assert bases(decided(segments, end=40, retention_ms=1000)) == [0]


def test_a_log_without_limits_is_not_looked_at() -> None:
    segments: list[Fake | Unseen] = [Unseen(0), Unseen(10)]
    assert decided(segments, end=20) == []


def test_the_age_of_what_goes_otherwise_is_not_asked() -> None:
    asked: list[int] = []
    segments = [Fake(base, timestamp=NOW - 100, asked=asked) for base in (0, 10, 20, 30)]
    gone = decided(segments, end=40, start=10, retention_bytes=200, retention_ms=1000)
    assert [d.reason for d in gone] == ["log_start", "size"]
    assert asked == [20]
    assert [d.largest_timestamp for d in gone] == [None, None]


# In words.


def test_each_deletion_says_why_with_what_was_found_and_what_is_allowed() -> None:
    segments = [
        Fake(0), Fake(10), Fake(20, timestamp=NOW - 600_001), Fake(30, timestamp=NOW - 86_400_000, of_file=True),
        Fake(40),
    ]  # fmt: skip
    gone = decided(segments, end=50, start=12, retention_bytes=250, retention_ms=600_000)
    assert gone == [
        Deletion(0, 10, 100, None, "log_start", "it ends at offset 10, and the log starts at 12"),
        Deletion(10, 20, 100, None, "size", "the log holds 400 bytes, 300 without it, and retention.bytes keeps 250"),
        Deletion(
            20, 30, 100, NOW - 600_001, "time",
            "its newest record is from 2023-11-14T22:03:19.999Z, 600001 ms (10 min) ago, "
            "and retention.ms keeps 600000 ms (10 min)",
        ),
        Deletion(
            30, 40, 100, NOW - 86_400_000, "time",
            "it has no timestamps, and its file was last written 2023-11-13T22:13:20.000Z, 86400000 ms (1 d) ago, "
            "and retention.ms keeps 600000 ms (10 min)",
        ),
    ]  # fmt: skip


def test_the_first_that_stays_says_why_and_until_when() -> None:
    marks = Marks(3, 30, 30)
    found = outlook(THREE, config(retention_ms=600_000, retention_bytes=250), marks, NOW + 5000)
    assert found is not None
    assert (found.base_offset, found.due_ms, found.bytes_left) == (0, NOW + 600_001, 50)
    assert found.explanation == (
        "the log start 3 is below its end 10; without it the log would hold 200 bytes; retention.bytes keeps 250; "
        "its newest record is from 2023-11-14T22:13:20.000Z, 5000 ms (5 s) ago; retention.ms keeps 600000 ms (10 min)"
    )


def test_what_is_said_of_the_future_comes_true() -> None:
    """At `due_ms` it goes and one millisecond before it does not; so with the bytes."""
    marks = Marks(0, 30, 30)
    found = outlook(THREE, config(retention_ms=1000), marks, NOW)
    assert found is not None
    assert found.due_ms is not None
    assert decided(THREE, end=30, retention_ms=1000, now=found.due_ms - 1) == []
    assert bases(decided(THREE, end=30, retention_ms=1000, now=found.due_ms))[:1] == [0]
    found = outlook(THREE, config(retention_bytes=290), marks, NOW)
    assert found is not None
    assert found.bytes_left == 90
    assert decided([*THREE[:2], Fake(20, 189)], end=31, retention_bytes=290) == []
    assert bases(decided([*THREE[:2], Fake(20, 190)], end=31, retention_bytes=290)) == [0]


@pytest.mark.parametrize(
    ("segments", "marks", "settings", "said"),
    [
        ([Fake(0, 0)], Marks(0, 0, 0), {"retention_ms": 0}, "it is empty and the active one"),
        ([Fake(0), Fake(5)], Marks(0, 4, 9), {}, "the high watermark 4 has not reached its end 5"),
        ([Fake(0)], Marks(0, 5, 5), {},
         "retention.bytes is not given, and its default sets no limit; retention.ms = -1 sets no limit"),
        ([Fake(0)], Marks(0, 5, 5), {"retention_bytes": -2}, "retention.bytes = -2 sets no limit; "),
        ([Fake(0)], Marks(0, 5, 5), {"cleanup_policy": "compact", "retention_ms": 0}, "cleanup.policy is compact, so"),
        ([Fake(0)], Marks(0, 5, 5), {"cleanup_policy": "", "retention_ms": 0}, "cleanup.policy is empty, so"),
        ([Fake(0, timestamp=NOW + 90_500)], Marks(0, 5, 5), {"retention_ms": 0},
         "90500 ms (1 min 30 s) ahead of the clock; retention.ms keeps 0 ms"),
        ([Fake(0, timestamp=2**63 - 1)], Marks(0, 5, 5), {"retention_ms": 5}, f"from {2**63 - 1} ms, "),
    ],
)  # fmt: skip
def test_every_reason_to_stay_has_its_words(
    segments: list[Fake], marks: Marks, settings: dict[str, object], said: str
) -> None:
    found = outlook(segments, config(**settings), marks, NOW)
    assert found is not None
    assert said in found.explanation
    if "retention_ms" not in settings or settings.get("cleanup_policy", "delete") != "delete":
        assert found.due_ms is None


# Against a model that knows nothing of laziness.


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Fake], Marks]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    segments, base = [], draw(st.integers(0, 3))
    for length in lengths:
        size = draw(st.sampled_from([0, 1, 5, 10]))
        segments.append(Fake(base, size, NOW - draw(st.integers(-3, 8)), draw(st.booleans())))
        base += length
    if segments[-1].size_bytes == 0:
        base = segments[-1].base_offset
    end = base
    start = draw(st.integers(segments[0].base_offset, end))
    return segments, Marks(start, draw(st.integers(start, end)), end)


def naive(segments: list[Fake], settings: LogConfig, marks: Marks, now: int) -> list[tuple[int, str]]:
    """The rules one after the other, each on a list of what the one before it has left."""
    left = [(s, n.base_offset) for s, n in pairwise(segments)] + [(segments[-1], marks[2])]
    gone = []

    def pop(reason: str) -> None:
        gone.append((left.pop(0)[0].base_offset, reason))

    while len(left) > 1 and left[0][1] <= marks.log_start_offset and left[0][1] <= marks.high_watermark:
        pop("log_start")
    if "delete" not in settings.cleanup_policy:
        return gone
    for reason in ("size", "time"):
        surplus = sum(segment.size_bytes for segment, _ in left) - settings.retention_bytes
        while left and left[0][1] <= marks.high_watermark and (len(left) > 1 or left[0][0].size_bytes):
            segment = left[0][0]
            if reason == "size" and (settings.retention_bytes < 0 or surplus - segment.size_bytes < 0):
                break
            if reason == "time" and (settings.retention_ms < 0 or now - segment.timestamp <= settings.retention_ms):
                break
            surplus -= segment.size_bytes
            pop(reason)
    return gone


@given(
    log=logs(),
    keep_bytes=st.sampled_from([-1, 0, 1, 5, 10, 11, 20, 40]),
    keep_ms=st.sampled_from([-1, 0, 1, 3, 5, 100]),
    policy=st.sampled_from(["delete", "compact,delete", "compact", ""]),
)
def test_it_decides_as_the_rules_read(
    log: tuple[list[Fake], Marks], keep_bytes: int, keep_ms: int, policy: str
) -> None:
    segments, marks = log
    settings = config(retention_bytes=keep_bytes, retention_ms=keep_ms, cleanup_policy=policy)
    gone = decide(segments, settings, marks, NOW)
    assert [(d.base_offset, d.reason) for d in gone] == naive(segments, settings, marks, NOW)
    for number, deletion in enumerate(gone):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else marks.log_end_offset
        assert (deletion.next_offset, deletion.size_bytes) == (following, segments[number].size_bytes)
    stays = segments[len(gone) :]
    found = outlook(stays, settings, marks, NOW)
    assert (found is None) == (not stays)
    if found is not None and found.due_ms is not None and stays[0].size_bytes and marks.high_watermark == marks[2]:
        assert found.due_ms > NOW
        assert decide(stays, settings, marks, found.due_ms)[0].base_offset == found.base_offset
