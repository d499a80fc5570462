"""The life of a record: one sentence says why it is there and when it goes, and the phases follow each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.explained import record_picture
from kstore.explained.explanation import CheckTimes, Explanation
from kstore.explained.record_phases import phases_of
from kstore.explained.record_words import cleaning_words, headline, total
from tests.support import pictured
from tests.support.explained_facts import (
    DAY,
    HOSTILE,
    MINUTE,
    NOON,
    YEAR_2030,
    explanation,
    segment,
    with_record,
    with_segment,
)

AT = NOON + 17 * MINUTE
NEVER = {"due_ms": None, "earliest_ms": None, "latest_ms": None, "freed_ms": None}


def usual(**changes: object) -> Explanation:
    """Record 17 of the first segment, which is sealed; eight minutes after its newest record."""
    return with_record(with_segment(explanation(2, AT), 0, **changes), 17)


def of_the_future() -> Explanation:
    end = YEAR_2030 + 10 * MINUTE
    return usual(
        max_timestamp=YEAR_2030,
        holds=("future_record", "retention.ms"),
        due_ms=end,
        earliest_ms=end,
        latest_ms=end + 5 * MINUTE,
        freed_ms=end + 6 * MINUTE,
    )


def with_setting(of: Explanation, **settings: object) -> Explanation:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return replace(of, settings={**of.settings, **named})


def without_limit() -> Explanation:
    return with_setting(usual(holds=("no_limit",), **NEVER), retention_ms=-1)


def of_compaction() -> Explanation:
    held = {"holds": ("policy",), "compaction": "the dirty part is too small"}
    return with_setting(usual(**held, **NEVER), cleanup_policy="compact")


def searched(**changes: object) -> Explanation:
    """Record 17 of a compacted log in which the next record of its key was looked for up to the log end."""
    of = of_compaction()
    assert of.record is not None
    return replace(of, record=replace(of.record, **{"searched_offset": of.log_end_offset, **changes}))  # type: ignore[arg-type]


def superseded() -> Explanation:
    return searched(superseded_by=27, superseded_timestamp=NOON + 3 * MINUTE, searched_offset=28)


def of_the_newest() -> Explanation:
    return searched()


def of_a_tombstone() -> Explanation:
    return searched(is_tombstone=True)


def of_a_hostile_key() -> Explanation:
    return searched(key=HOSTILE * 9)


def by_size() -> Explanation:
    held = {"holds": ("retention.bytes",), "bytes_left": 2048}
    return with_setting(usual(**held, **NEVER), retention_ms=-1, retention_bytes=8100 + 2048)


def by_time_and_size() -> Explanation:
    return with_setting(usual(holds=("retention.ms", "retention.bytes"), bytes_left=2048), retention_bytes=40_000)


def after_an_earlier_one() -> Explanation:
    late = {"due_ms": NOON + 60 * MINUTE, "earliest_ms": NOON + 60 * MINUTE, "latest_ms": NOON + 65 * MINUTE}
    return replace(usual(holds=("earlier_segment",), **late), at_ms=NOON + 30 * MINUTE)


def of_a_lone_log() -> Explanation:
    return replace(usual(latest_ms=None, freed_ms=None), checks=CheckTimes("caller", None, None))


def overdue() -> Explanation:
    late = {"earliest_ms": NOON + 31 * MINUTE, "latest_ms": NOON + 31 * MINUTE, "freed_ms": NOON + 32 * MINUTE}
    return replace(usual(holds=("check",), **late), at_ms=NOON + 30 * MINUTE)


def active() -> Explanation:
    return with_record(explanation(2, AT), 120)


def without_timestamps() -> Explanation:
    return with_record(
        with_segment(explanation(2, AT), 0, first_timestamp=None, max_timestamp=None), 17, timestamp=None
    )


def uncommitted() -> Explanation:
    return usual(holds=("high_watermark",), explanation="the high watermark has not reached its end", **NEVER)


def of_hostile_name() -> Explanation:
    return replace(usual(explanation=HOSTILE, compaction=HOSTILE), topic=HOSTILE * 9)


def of_seven_days() -> Explanation:
    newest = NOON + 9 * MINUTE
    due = newest + 7 * DAY + 1
    times = {"due_ms": due, "earliest_ms": due, "latest_ms": due + 5 * MINUTE, "freed_ms": due + 6 * MINUTE}
    return with_setting(usual(**times), retention_ms=7 * DAY)


IS_YOUNG = "the newest record of its segment is only 8 minutes old, and retention.ms is 10 minutes"
IN_ORDER = "an earlier segment is kept, and segments are deleted in their order"
BY = "no reader sees it from"
SAID = {
    usual: f"Record 17 is still there because {IS_YOUNG}; {BY} 12:24:00 on, at the latest.",
    of_the_future: "Record 17 is still there because a record of its segment has a timestamp in the future, 2030-03-17 "
    f"17:46:40, and age counts from there; {BY} 2030-03-17 18:01:40 on, at the latest.",
    without_limit: "Record 17 stays for ever: neither retention.ms nor retention.bytes is set.",
    of_compaction: "Record 17 stays: cleanup.policy is compact, so neither age nor size deletes it.",
    superseded: "Record 17 is superseded by the record at offset 27, which has the same key; it stays until the "
    "cleaner rewrites its segment without it.",
    of_the_newest: "Record 17 stays: it is the newest record of its key that was found, and cleanup.policy is compact, "
    "so neither age nor size deletes it.",
    of_a_tombstone: "Record 17 is a tombstone, which tells that its key is deleted: a cleaning drops it after "
    "delete.retention.ms.",
    by_size: "Record 17 is still there because only 7.9 KiB of the log are newer than its segment, and retention.bytes "
    "keeps 9.9 KiB; it is deleted at the first check after 2.0 KiB more are appended.",
    by_time_and_size: f"Record 17 is still there because {IS_YOUNG}; {BY} 12:24:00 on, at the latest.",
    after_an_earlier_one: f"Record 17 is still there because {IN_ORDER}; {BY} 13:05:00 on, at the latest.",
    of_a_lone_log: f"Record 17 is still there because {IS_YOUNG}; a call of apply_retention from 12:19:00 on deletes "
    "it.",
    overdue: f"Record 17 may be deleted and is still there because no check has come since; {BY} 12:31:00 on.",
    active: "Record 120 is still there because the newest record of its segment was written just now, and retention.ms "
    f"is 10 minutes; {BY} 12:33:05 on, at the latest, if nothing more is appended.",
    without_timestamps: "Record 17 is still there because its segment was written a short time ago, and retention.ms "
    f"is 10 minutes; {BY} 12:24 on, at the latest.",
    uncommitted: "Record 17 is still there because the high watermark is below the end of its segment; nothing deletes "
    "it.",
}


@pytest.mark.parametrize("made", SAID, ids=lambda made: made.__name__)
def test_one_sentence_says_why_a_record_is_there_and_when_it_goes(made: Callable[[], Explanation]) -> None:
    of = made()
    assert of.record is not None
    assert headline(of, of.record) == SAID[made]


@pytest.mark.parametrize(
    "made", [*SAID, of_hostile_name, of_a_hostile_key, of_seven_days], ids=lambda made: made.__name__
)
def test_the_life_of_every_record_is_drawn_soundly(made: Callable[[], Explanation]) -> None:
    of = made()
    assert of.record is not None
    for titled in (True, False):
        for styled in (True, False):
            svg = pictured.check(record_picture.picture(of, titled=titled, styled=styled, prefix="x"))
            assert len(svg) < 20_000
    said = "".join(pictured.texts(record_picture.picture(of))).replace(" ", "")
    assert headline(of, of.record).replace(" ", "") in said


def test_the_phases_follow_each_other_with_their_times_and_durations() -> None:
    found = pictured.texts(record_picture.picture(usual()))
    titles = [
        "Written 12:01:25",
        "Segment ends 12:09:00",
        "Old enough 12:19:00",
        "Deleted by 12:24:00",
        "Off the disk by 12:25:00",
    ]
    assert [each for each in found if each in titles] == titles
    assert [each for each in found if each.endswith(" min")] == ["9 min", "10 min", "5 min", "1 min"]
    assert {"now 12:17:00", "this record", "time, not to scale"} <= set(found)
    assert found[-1] == "In all at most: readable for 22 min 35 s, on the disk for 23 min 35 s (retention.ms: 10 min)."


def test_a_record_of_the_active_segment_lives_at_least_so_long() -> None:
    of = active()
    assert of.record is not None
    assert total(of, of.record) == (
        "In all at least: readable for 18 min 5 s, on the disk for 19 min 5 s; longer if more is appended to its "
        "segment (retention.ms: 10 min)."
    )


def test_a_false_date_is_a_phase_of_its_own() -> None:
    of = of_the_future()
    found = pictured.texts(record_picture.picture(of))
    titles = [
        "Segment ends 2013-06-01 12:09:05",
        "Timestamp 2030-03-17 17:46:40",
        "Old enough 2030-03-17 17:56:40",
        "Deleted by 2030-03-17 18:01:40",
    ]
    assert [each for each in found if each in titles] == titles
    assert "the batch that ends at offset 108." in " ".join(found)
    assert of.record is not None
    assert total(of, of.record) == ""


def test_a_segment_whose_first_timestamp_is_false_is_drawn_where_it_was_written() -> None:
    of = of_the_future()
    assert of.record is not None
    held = replace(of.segments[0], first_timestamp=YEAR_2030)
    [_, filling, *_] = phases_of(replace(of, segments=(held, *of.segments[1:])), of.record)
    assert (filling.start, filling.end) == (of.record.timestamp, held.rolled_ms)


def test_a_limit_of_size_is_drawn_in_bytes() -> None:
    found = pictured.texts(record_picture.picture(by_size()))
    assert {
        "Until 2.0 KiB more are appended",
        "old: 16.0 KiB",
        "newer: 7.9 KiB",
        "retention.bytes keeps 9.9 KiB",
        "Deleted at the first check after that",
        "The broker or store checks every 5 minutes. No reader sees it from then on. Off the disk 1 minute later.",
    } <= set(found)


def test_a_superseded_record_has_the_newer_one_beside_it() -> None:
    found = pictured.texts(record_picture.picture(superseded()))
    assert {"Superseded 12:03:00", "offset 27", "Until the cleaner rewrites its segment"} <= set(found)
    assert "The newest of its key" in pictured.texts(record_picture.picture(of_the_newest()))
    assert "A tombstone" in pictured.texts(record_picture.picture(of_a_tombstone()))


@pytest.mark.parametrize(
    ("newer", "outlook", "said"),
    [
        (120, {}, "The newer record's segment is the active one: no cleaning reads that before the log rolls."),
        (27, {"first_uncleanable_offset": 20}, "The dirty part is too small."),
        (
            27,
            {"ratio": 0.25},
            "No cleaning is due: 25% of the log is new since the last one, and one needs more than 50%.",
        ),
        (27, {}, "No cleaning is due."),
        (27, {"due_ms": AT}, "The next pass of the cleaner cleans this log."),
        (27, {"due_ms": AT + MINUTE}, "The first pass of the cleaner from 12:18:00 on cleans this log."),
    ],
)
def test_the_next_cleaning_is_told_in_words(newer: int, outlook: dict[str, object], said: str) -> None:
    of = with_setting(searched(superseded_by=newer), min_cleanable_dirty_ratio=0.5)
    changed = replace(of.compaction, **{"first_uncleanable_offset": 109, **outlook})  # type: ignore[arg-type]
    assert of.record is not None
    assert cleaning_words(replace(of, compaction=changed), of.record) == said


def test_a_lone_log_is_cleaned_by_a_call() -> None:
    of = searched(superseded_by=27)
    due = replace(of.compaction, first_uncleanable_offset=109, due_ms=AT)
    assert of.record is not None
    said = cleaning_words(replace(of, compaction=due, checks=CheckTimes("caller", None, None)), of.record)
    assert said == "The log is open alone: a call of compact cleans it."


@pytest.mark.parametrize(
    ("at_ms", "number"),
    [(NOON + 17 * MINUTE, "3"), (NOON + 20 * MINUTE, "4"), (NOON + 24 * MINUTE + 30_000, "5")],
)
def test_the_phase_of_now_is_marked(at_ms: int, number: str) -> None:
    svg = record_picture.picture(replace(usual(), at_ms=at_ms), styled=False)
    marked = svg.split('<circle class="nowink"')
    assert len(marked) == 2
    assert f">{number}</text>" in marked[1].split("\n")[1]


def test_a_record_that_nothing_deletes_has_no_phases_after_it_is_kept() -> None:
    found = pictured.texts(record_picture.picture(without_limit()))
    assert "Kept without a limit" in found
    assert not [each for each in found if each.startswith(("Deleted", "Off the disk", "In all"))]


def test_how_long_a_record_lives_is_not_told_if_nobody_knows() -> None:
    for made in (without_limit, of_a_lone_log, without_timestamps):
        of = made()
        assert of.record is not None
        assert total(of, of.record) == ""


def test_an_explanation_without_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="no record"):
        record_picture.picture(explanation(2))


TIMES = st.none() | st.integers(0, (1 << 63) - 1) | st.integers(NOON - DAY, NOON + DAY)
HOLDS = st.lists(
    st.sampled_from(
        (
            *("log_start", "policy", "high_watermark", "retention.ms", "retention.bytes", "no_limit"),
            *("future_record", "earlier_segment", "check", "a new one"),
        )
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


@settings(max_examples=80, deadline=None)
@given(TIMES, TIMES, TIMES, TIMES, TIMES, HOLDS, st.booleans())
def test_records_of_any_times_are_drawn_soundly(
    written: int | None,
    first: int | None,
    newest: int | None,
    due: int | None,
    latest: int | None,
    holds: list[str],
    is_active: bool,
) -> None:
    deleted = {"due_ms": due, "earliest_ms": due, "latest_ms": None if due is None else latest, "freed_ms": latest}
    one = segment(0, first_timestamp=first, max_timestamp=newest, holds=tuple(holds), is_active=is_active, **deleted)
    of = with_record(replace(explanation(2, AT), segments=(one,)), 17, timestamp=written)
    pictured.check(record_picture.picture(of))
