"""What keeps a segment and which check takes it: compared with checks that are made, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import LogConfig
from kstore.explained.explanation import CheckTimes
from kstore.log.explaining.check_times import Deadline, deadline
from kstore.log.explaining.kept_segments import Kept, Moment, keep
from kstore.log.writing.retention import Marks, decide

NOW = 1_700_000_000_000
BY_CALLER = CheckTimes("caller", None, None)
NEVER = Deadline(None, None, None)


@dataclass
class Fake:
    base_offset: int
    size_bytes: int = 100
    timestamp: int = NOW
    of_file: bool = False

    def newest(self) -> tuple[int, bool]:
        return self.timestamp, self.of_file


def kept(
    segments: list[Fake], *, end: int = 100, start: int = 0, high_watermark: int | None = None,
    checks: CheckTimes = BY_CALLER, at: int = NOW, now: int = NOW, **settings: object,
) -> list[Kept]:  # fmt: skip
    marks = Marks(start, end if high_watermark is None else high_watermark, end)
    return keep(segments, LogConfig(**settings), marks, checks, Moment(at, now))


THREE = [Fake(0, timestamp=NOW - 5000), Fake(10, timestamp=NOW - 4000), Fake(20, timestamp=NOW - 3000)]


def holds(segments: list[Fake], **how: object) -> list[tuple[str, ...]]:
    return [each.holds for each in kept(segments, **how)]  # type: ignore[arg-type]


def test_without_a_limit_nothing_goes_and_it_says_so() -> None:
    assert holds(THREE) == [("no_limit",)] * 3
    assert kept(THREE)[0].explanation == (
        "retention.bytes is not given, and its default sets no limit; "
        "retention.ms is not given, and kstore's default sets no limit"
    )
    given = "retention.bytes = -1 sets no limit; retention.ms = -1 sets no limit"
    assert kept(THREE, retention_ms=-1, retention_bytes=-1)[2] == Kept({"no_limit": given}, given, None, None, NEVER)


def test_age_keeps_each_until_its_newest_record_is_older() -> None:
    found = kept(THREE, retention_ms=10_000)
    assert [each.holds for each in found] == [("retention.ms",)] * 3
    assert [each.due_ms for each in found] == [NOW + 5001, NOW + 6001, NOW + 7001]
    assert [each.when for each in found] == [Deadline(each.due_ms, None, None) for each in found]
    assert found[0].explanation == (
        "its newest record is from 2023-11-14T22:13:15.000Z, 5000 ms (5 s) ago; retention.ms keeps 10000 ms (10 s); it "
        "is old enough from 2023-11-14T22:13:25.001Z on, and a call of apply_retention deletes it"
    )
    assert "on, unless more is appended, and a call" in found[2].explanation


def test_a_record_from_2030_keeps_its_segment_and_all_behind_it() -> None:
    """SEMANTICS 6.6."""
    in_2030 = 1_900_000_000_000
    segments = [Fake(0, timestamp=NOW - 9000), Fake(10, timestamp=in_2030), Fake(20, timestamp=NOW - 9000), Fake(30)]
    found = kept(segments, retention_ms=5000)
    assert [each.holds for each in found] == [
        ("check",), ("future_record", "retention.ms"), ("earlier_segment",), ("earlier_segment", "retention.ms"),
    ]  # fmt: skip
    assert [each.due_ms for each in found] == [NOW - 3999, *[in_2030 + 5001] * 3]
    assert (
        "its newest record is from 2030-03-17T17:46:40.000Z, 200000000000 ms (2314 d 19 h) ahead"
        in found[1].explanation
    )
    assert found[2].explanation == (
        "segment 10, which goes first, stays until 2030-03-17T17:46:45.001Z; it is old enough from "
        "2030-03-17T17:46:45.001Z on, and a call of apply_retention deletes it"
    )


def test_size_says_how_much_the_log_must_grow() -> None:
    found = kept(THREE, retention_bytes=250)
    assert [(each.holds, each.bytes_left, each.due_ms) for each in found] == [
        (("retention.bytes",), 50, None), (("retention.bytes",), 150, None), (("retention.bytes",), 250, None),
    ]  # fmt: skip
    assert found[0].explanation == (
        "without it the log would hold 200 bytes; retention.bytes keeps 250; it goes when the log has grown by 50 bytes"
    )
    assert found[2].explanation.endswith("; it goes when the log has grown by 250 bytes after its roll")


def test_what_the_next_check_takes_is_kept_by_nothing_else() -> None:
    found = kept(THREE, retention_bytes=150, retention_ms=3500, start=5)
    assert [each.holds for each in found] == [("check",), ("check",), ("retention.ms", "retention.bytes")]
    assert [each.bytes_left for each in found] == [0, 50, 150]
    assert found[0].explanation == (
        "the log holds 300 bytes, 200 without it, and retention.bytes keeps 150; a call of apply_retention deletes it"
    )
    assert [each.due_ms for each in found] == [NOW - 1499, NOW - 499, NOW + 501]
    assert [each.when.earliest_ms for each in found] == [NOW, NOW, NOW + 501]


def test_an_old_segment_before_one_that_size_deletes_does_not_delay_it() -> None:
    """A record from the future in a segment that the size takes keeps nothing."""
    segments = [Fake(0, timestamp=NOW + 10**9), Fake(10, timestamp=NOW), Fake(20, timestamp=NOW)]
    found = kept(segments, retention_bytes=200, retention_ms=1000)
    assert [each.holds for each in found] == [("check",), *[("retention.ms", "retention.bytes")] * 2]
    assert [each.due_ms for each in found[1:]] == [NOW + 1001] * 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cleanup_policy": "compact"}, [("policy", "log_start"), ("policy",), ("policy",)]),
        ({"cleanup_policy": ""}, [("policy", "log_start"), ("policy",), ("policy",)]),
        ({}, [("no_limit", "log_start"), ("no_limit",), ("no_limit",)]),
        ({"retention_ms": 10**6}, [("retention.ms", "log_start"), ("retention.ms",), ("retention.ms",)]),
    ],
)
def test_a_log_start_inside_a_segment_keeps_it(settings: dict[str, object], expected: list[tuple[str, ...]]) -> None:
    assert holds(THREE, start=5, **settings) == expected
    assert holds(THREE, start=10, **settings)[0] == ("check",)


def test_an_empty_active_segment_stays() -> None:
    segments = [Fake(0, timestamp=NOW - 5000), Fake(100, 0, NOW - 5000)]
    assert holds(segments, retention_ms=0) == [("check",), ("only_segment",)]
    assert kept(segments, retention_ms=0)[1].when == NEVER


def test_what_the_high_watermark_has_not_reached_has_no_date() -> None:
    found = kept(THREE, retention_ms=10_000, high_watermark=15)
    assert [each.holds for each in found] == [
        ("retention.ms",), ("high_watermark", "retention.ms"), ("high_watermark", "retention.ms"),
    ]  # fmt: skip
    assert [each.when.earliest_ms for each in found] == [NOW + 5001, None, None]


# Checks.


@pytest.mark.parametrize(
    ("checks", "due", "expected"),
    [
        (CheckTimes("store", NOW + 100, 300), NOW, (NOW + 100, NOW + 100)),
        (CheckTimes("store", NOW + 100, 300), NOW + 100, (NOW + 100, NOW + 100)),
        (CheckTimes("store", NOW + 100, 300), NOW + 101, (NOW + 400, NOW + 400)),
        (CheckTimes("store", NOW + 100, 300), NOW + 400, (NOW + 400, NOW + 400)),
        (CheckTimes("store", NOW - 50, 300), NOW, (NOW, NOW)),
        (CheckTimes("store", NOW - 50, 300), NOW + 1, (NOW + 250, NOW + 250)),
        (CheckTimes("cleaner", NOW + 100, 300), NOW, (NOW + 100, NOW + 100)),
        (CheckTimes("cleaner", NOW - 100, 300), NOW - 200, (NOW, NOW)),
        (CheckTimes("cleaner", NOW + 100, 300), NOW + 101, (NOW + 101, NOW + 401)),
        (CheckTimes("broker", None, 300), NOW + 7, (NOW + 7, NOW + 307)),
        (CheckTimes("caller", None, None), NOW + 7, (NOW + 7, None)),
    ],
)
def test_the_check_comes_at_or_after_the_due_time(
    checks: CheckTimes, due: int, expected: tuple[int, int | None]
) -> None:
    found = deadline(checks, due, NOW, 1000)
    assert (found.earliest_ms, found.latest_ms) == expected
    assert found.freed_ms == (None if expected[1] is None else expected[1] + 1000)


@st.composite
def logs(draw: st.DrawFn) -> list[Fake]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    segments = [Fake(10 * number, size, NOW + draw(st.integers(-60, 30))) for number, size in enumerate(sizes)]
    if draw(st.booleans()):
        segments.append(Fake(10 * len(segments), 0, -1))
    return segments


@given(
    segments=logs(),
    start=st.integers(0, 60),
    retention_ms=st.integers(-1, 50),
    retention_bytes=st.integers(-1, 20),
    policy=st.sampled_from(["delete", "compact", "compact,delete", ""]),
    next_ms=st.integers(1, 30),
    interval_ms=st.integers(1, 20),
)
def test_what_is_foretold_is_what_checks_do(
    segments: list[Fake],
    start: int,
    retention_ms: int,
    retention_bytes: int,
    policy: str,
    next_ms: int,
    interval_ms: int,
) -> None:
    settings = {"retention_ms": retention_ms, "retention_bytes": retention_bytes, "cleanup_policy": policy}
    config = LogConfig(**settings)
    end = 10 * len(segments) - (10 if segments[-1].size_bytes == 0 else 0)
    checks = CheckTimes("store", NOW + next_ms, interval_ms)
    found = kept(segments, end=end, start=start, checks=checks, **settings)
    gone_now = {each.base_offset for each in decide(segments, config, Marks(start, end, end), NOW)}
    left, gone_ms = list(segments), {}
    for moment in range(NOW + next_ms, NOW + 200, interval_ms):
        for deletion in decide(left, config, Marks(start, end, end), moment):
            gone_ms[deletion.base_offset] = moment
            start = max(start, deletion.next_offset)
            del left[0]
    for segment, foretold in zip(segments, found, strict=True):
        when = gone_ms.get(segment.base_offset)
        assert (foretold.when.earliest_ms, foretold.when.latest_ms) == (when, when)
        assert foretold.holds
        assert (foretold.holds == ("check",)) == (segment.base_offset in gone_now)
