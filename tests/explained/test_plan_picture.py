"""A plan: the disk over time, the first segments, the life of a record, of one plan or of two."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from kstore.explained.explained_plan import Plan, PlannedRange
from kstore.explained.plan_picture import differences, picture
from tests.support import pictured
from tests.support.explained_facts import DAY, HOSTILE, MINUTE, plan


def texts(of: Plan, other: Plan | None = None) -> list[str]:
    return pictured.texts(pictured.check(picture(of, other)))


def test_a_plan_shows_segments_with_their_reason_and_their_end() -> None:
    found = texts(plan())
    assert found[0].startswith("retention.ms = 10 minutes, segment.bytes = 16.0 KiB: 19.5 KiB to 48.8 KiB on the disk")
    assert found.count("16.0 KiB, segment.bytes") == 8
    assert "20 min, retention.ms" in found
    assert "first files gone after 27 min 15 s" in found
    assert "10 min \u2013 14 min 33 s \u2013 24 min 5 s" in found


def test_two_plans_are_named_by_what_differs() -> None:
    one, other = plan(), plan(keep_ms=60 * MINUTE)
    assert differences(one, other) == ("retention.ms = 10 minutes", "retention.ms = 1 hour")
    assert differences(one, one) == ("first plan", "second plan")
    found = texts(one, other)
    assert [each for each in found if each.startswith("retention.ms = 1 hour: ")]
    assert found.count("readable") == found.count("on the disk") == 2


def test_a_plan_that_deletes_nothing_says_so() -> None:
    kept = plan(life_ms=None, freed_ms=None, steady_ms=None)
    segments = [replace(each, deleted_ms=None, delete_reason=None) for each in kept.segments]
    found = texts(replace(kept, segments=tuple(segments)))
    assert "No record is deleted in the planned time." in found
    assert [each for each in found if each.endswith("no record is deleted.")] or "no record is" in " ".join(found)


PLANS = [
    plan(),
    plan(count=1),
    plan(fill_ms=7 * DAY, keep_ms=365 * DAY),
    plan(fill_ms=6000, keep_ms=1),
    plan(segments=(), disk=(), steady_ms=None, life_ms=None, freed_ms=None),
    plan(disk=((0, 0),), steady_ms=0),
    plan(life_ms=PlannedRange(0, 0, 0), freed_ms=PlannedRange(0, 0, 0)),
    plan(settings={HOSTILE * 9: HOSTILE * 9, "cleanup.policy": ("compact", "delete")}, given=frozenset({HOSTILE * 9})),
]


@pytest.mark.parametrize("other", [None, *range(len(PLANS))])
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_any_plans_are_drawn_soundly(number: int, other: int | None) -> None:
    pictured.check(picture(PLANS[number], None if other is None else PLANS[other], styled=False))


def test_a_long_line_keeps_its_peaks_in_few_points() -> None:
    points = tuple((number * 1000, 10_000 if number == 54_321 else number % 7) for number in range(100_000))
    svg = pictured.check(picture(plan(disk=points, steady_ms=None)))
    assert len(svg) < 30_000
    assert "9.8 KiB" in pictured.texts(svg)
    assert min(y for _, y in line(svg)) < 200


def test_the_disk_grows_evenly_between_two_points_and_falls_at_once() -> None:
    first, before, after, last = line(
        pictured.check(picture(plan(disk=((0, 0), (8, 400), (8, 100), (16, 400)), steady_ms=None)))
    )
    assert before[0] == after[0] == (first[0] + last[0]) / 2
    assert before[1] == last[1] < after[1] < first[1]


def test_a_long_line_falls_where_much_is_deleted() -> None:
    points = [*((number, number) for number in range(9001)), *((9000 + number, number) for number in range(9001))]
    drawn = line(pictured.check(picture(plan(disk=tuple(points), steady_ms=None))))
    upright = [(one[1], other[1]) for one, other in pairwise(drawn) if one[0] == other[0]]
    before, after = max(upright, key=lambda ends: abs(ends[1] - ends[0]))
    assert after - before > 100


def line(svg: str) -> list[tuple[float, float]]:
    """Return the points of the line of the disk."""
    [along] = re.findall(r'class="nowline" fill="none" stroke-width="2" d="M([0-9. ]+(?:L[0-9. ]+)*)', svg)
    return [(float(x), float(y)) for x, y in (each.split() for each in along.split("L"))]
