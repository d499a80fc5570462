"""The timeline of a partition: each segment with its reason and its end, for any log, over time and over offsets."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.explained.explanation import CheckTimes, DeletedFile, Explanation
from kstore.explained.timeline_picture import picture
from tests.support import pictured
from tests.support.explained_facts import (
    DAY,
    HOSTILE,
    MINUTE,
    NOON,
    OUTLOOK,
    YEAR_2030,
    explanation,
    segment,
    with_segment,
)

AXES: tuple[Literal["time"], Literal["offset"]] = ("time", "offset")
MOST_BYTES = 100_000


def texts(of: Explanation, axis: Literal["time", "offset"] = "time") -> list[str]:
    return pictured.texts(pictured.check(picture(of, axis=axis)))


def one_segment() -> Explanation:
    return explanation(1)


def empty() -> Explanation:
    return with_segment(
        explanation(1, log_end_offset=0, high_watermark=0, last_stable_offset=0),
        0,
        next_offset=0,
        size_bytes=0,
        first_timestamp=None,
        max_timestamp=None,
        holds=("only_segment",),
        due_ms=None,
        earliest_ms=None,
        latest_ms=None,
        freed_ms=None,
    )


def without_timestamps() -> Explanation:
    bare = [replace(each, first_timestamp=None, max_timestamp=None, rolled_ms=None) for each in explanation(4).segments]
    return replace(explanation(4), segments=tuple(bare))


def of_the_future() -> Explanation:
    return with_segment(
        explanation(5),
        1,
        max_timestamp=YEAR_2030,
        holds=("future_record", "retention.ms"),
        due_ms=YEAR_2030 + 10 * MINUTE,
        earliest_ms=YEAR_2030 + 10 * MINUTE,
        latest_ms=YEAR_2030 + 15 * MINUTE,
    )


def of_microseconds() -> Explanation:
    return with_segment(explanation(3), 1, max_timestamp=NOON * 1000, holds=("future_record",), latest_ms=NOON * 1001)


def of_1970() -> Explanation:
    return with_segment(explanation(3), 0, first_timestamp=0)


def after_idle_years() -> Explanation:
    old = replace(segment(0), first_timestamp=NOON - 1500 * DAY, max_timestamp=NOON - 1499 * DAY)
    later = [
        replace(each, base_offset=each.base_offset + 109, next_offset=each.next_offset + 109)
        for each in explanation(4).segments
    ]
    return replace(explanation(4), segments=(old, *later))


def of_long_and_hostile_name() -> Explanation:
    return explanation(3, topic=HOSTILE + "x" * 249, path=HOSTILE)


def of_great_offsets() -> Explanation:
    start = (1 << 63) - 1000
    moved = [
        replace(each, base_offset=each.base_offset + start, next_offset=each.next_offset + start)
        for each in explanation(3).segments
    ]
    end = moved[-1].next_offset
    marks = {"log_start_offset": start, "log_end_offset": end, "high_watermark": end, "last_stable_offset": end}
    return replace(explanation(3), segments=tuple(moved), recovery_point=end, **marks)  # type: ignore[arg-type]


def of_compaction() -> Explanation:
    return explanation(
        5,
        log_start_offset=50,
        last_stable_offset=400,
        high_watermark=470,
        settings={"cleanup.policy": "compact", "retention.ms": -1},
        compaction=replace(OUTLOOK, first_dirty_offset=150, first_uncleanable_offset=400),
        deleted=(DeletedFile("/data/a.deleted", 4096, NOON + 60 * MINUTE), DeletedFile("/data/b.deleted", 1, None)),
    )


def of_no_segments() -> Explanation:
    return replace(explanation(1), segments=())


LOGS = [
    one_segment,
    empty,
    explanation,
    without_timestamps,
    of_the_future,
    of_microseconds,
    of_1970,
    after_idle_years,
    of_long_and_hostile_name,
    of_great_offsets,
    of_compaction,
    of_no_segments,
]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("log", LOGS)
def test_every_log_is_drawn_soundly(log: type[Explanation], axis: Literal["time", "offset"]) -> None:
    of = log()
    for each in (picture(of, axis=axis), picture(of, axis=axis, styled=False, prefix="other")):
        pictured.check(each)
        assert len(each) < 40_000
    linked = picture(of, axis=axis, link=lambda offset: f"/segments/{offset}?a=1&b=2")
    pictured.check(linked, links=len(of.segments))


@pytest.mark.parametrize("axis", AXES)
def test_a_row_says_offsets_size_why_rolled_why_kept_and_when_it_goes(axis: Literal["time", "offset"]) -> None:
    found = texts(explanation(3), axis)
    for number, each in enumerate(explanation(3).segments):
        at = found.index(f"{each.base_offset} \u2013 {each.next_offset - 1}")
        assert found[at + 1] == ("7.9 KiB, active" if number == 2 else "16.0 KiB, by segment.bytes")
        assert found[at + 3] == "kept by retention.ms"
    assert "goes 12:19 to 12:24" in found


def test_an_inferred_reason_is_marked() -> None:
    assert "16.0 KiB, by segment.bytes, inferred" in texts(with_segment(explanation(3), 0, is_roll_inferred=True))


def test_the_picture_over_time_shows_now_and_the_age_limit() -> None:
    found = texts(explanation(8))
    assert {"now", "older than 10 minutes"} <= set(found)
    assert not [each for each in texts(explanation(8, settings={"retention.ms": -1})) if each.startswith("older")]


def test_the_picture_over_offsets_shows_every_mark_of_the_log() -> None:
    marks = {"log_start_offset": 50, "recovery_point": 60, "last_stable_offset": 70, "high_watermark": 80}
    found = texts(explanation(4, **marks), "offset")
    assert {
        "log start: 50",
        "recovery point: 60",
        "last stable offset: 70",
        "high watermark: 80",
        "log end: 381",
    } <= set(found)
    same = explanation(4)
    joint = f"last stable offset, high watermark, log end: {same.log_end_offset}"
    assert joint in texts(same, "offset")


def test_the_dirty_part_is_drawn_only_if_the_log_is_compacted() -> None:
    assert {"compacted", "to be compacted", "below the log start"} <= set(texts(of_compaction(), "offset"))
    assert "to be compacted" not in texts(explanation(5), "offset")


def test_a_record_of_the_future_breaks_the_scale_and_has_an_arrow() -> None:
    svg = picture(of_the_future())
    assert "futureink" in re.sub("<style>.*</style>", "", svg)
    found = texts(of_the_future())
    assert "kept by a record of the future" in found
    assert "16 y 293 d" in found
    assert "12:15" in found  # the others are still to scale


def test_deleted_files_that_take_space_are_told() -> None:
    assert [each for each in texts(of_compaction()) if "2 deleted files still take 4.0 KiB, until 13:00." in each]


def test_segments_are_links_with_names() -> None:
    svg = picture(explanation(3), link="/at/{}".format)
    links = list(ElementTree.fromstring(svg).iter(f"{pictured.SVG}a"))
    assert [each.attrib["href"] for each in links] == ["/at/0", "/at/109", "/at/218"]
    assert links[0].attrib["aria-label"] == "Segment 0 \u2013 108, 16.0 KiB"


@pytest.mark.parametrize("axis", AXES)
def test_ten_thousand_segments_are_a_small_picture_of_few_rows(axis: Literal["time", "offset"]) -> None:
    many = explanation(10_000)
    svg = pictured.check(picture(many, axis=axis, link=str), links=20)
    assert len(svg) < MOST_BYTES
    found = pictured.texts(svg)
    assert "0 \u2013 108" in found
    assert f"{many.segments[-1].base_offset:,} \u2013 {many.segments[-1].next_offset - 1:,}" in found
    assert [each for each in found if "1,997 segments" in each]


def test_a_group_of_segments_has_the_bytes_of_all() -> None:
    many = explanation(40)
    bytes_ = [each for each in texts(many) if each.endswith("5 segments")]
    assert bytes_ == ["79.8 KiB, 5 segments"] * 5


def test_who_deletes_only_when_called_is_told() -> None:
    alone = explanation(3, NOON + 17 * MINUTE, checks=CheckTimes("caller", None, None))
    alone = with_segment(alone, 0, latest_ms=None, freed_ms=None)
    assert "from 12:19 on" in texts(alone)
    assert "at the next call" in texts(replace(alone, at_ms=NOON + 20 * MINUTE))


TIMES = st.none() | st.integers(0, (1 << 63) - 1) | st.integers(NOON - DAY, NOON + DAY)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES, st.integers(0, 500)), min_size=1, max_size=30), st.sampled_from(AXES)
)
def test_segments_of_any_times_are_drawn_soundly(
    rows: list[tuple[int | None, int | None, int | None, int | None, int]], axis: Literal["time", "offset"]
) -> None:
    segments, base = [], 0
    for first, newest, earliest, latest, count in rows:
        segments.append(
            segment(
                0,
                base_offset=base,
                next_offset=base + count,
                first_timestamp=first,
                max_timestamp=newest,
                due_ms=earliest,
                earliest_ms=earliest,
                latest_ms=latest if earliest is not None else None,
            )
        )
        base += count
    of = replace(
        explanation(1), segments=tuple(segments), log_end_offset=base, high_watermark=base, last_stable_offset=base
    )
    pictured.check(picture(of, axis=axis))


def test_the_age_limit_has_its_words_wherever_it_is() -> None:
    for minutes in range(12, 60, 5):
        of = explanation(6, NOON + 60 * MINUTE, settings={"retention.ms": minutes * MINUTE})
        assert [each for each in texts(of) if each.startswith("older than")], minutes
