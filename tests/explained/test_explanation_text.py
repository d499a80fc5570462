"""The texts of explanations: what they show of long logs and large directories, and that they control no terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore.explained.disk_text import disk_text
from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes, Remedy
from kstore.explained.explanation import Explanation
from kstore.explained.explanation_text import explanation_text
from tests.conftest import ManualClock

pytestmark = pytest.mark.usefixtures("no_syncs")

MINUTE = 60_000
HOSTILE = "a\x1b[31m\n\u202ereversed\x9b"


def made(partition: Path, clock: ManualClock, segments: int) -> Explanation:
    """A log whose segments hold ten records each, one record each minute."""
    with kstore.Log.open(partition, clock=clock, segment_bytes=800, retention_ms=30 * MINUTE) as log:
        for number in range(segments):
            for _ in range(10):
                clock.advance(MINUTE)
                log.append(b"", timestamp=clock())
            if number < segments - 1:
                log.roll()
        return log.explain(offset=0)


def lines_of(text: str, first: str) -> list[str]:
    """The lines from one that begins so, to the next empty one."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    return lines[start : lines.index("", start) if "" in lines[start:] else None]


def test_each_segment_is_one_line_with_its_reasons(partition: Path, clock: ManualClock) -> None:
    found = made(partition, clock, 6)
    header, *rows = lines_of(str(found), "segment")
    assert header.split("  ")[0] == "segment"
    assert [row.split()[0] for row in rows] == ["0", "10", "20", "30", "40", "50"]
    assert all("waits for the next check" in row for row in rows[:2])
    assert all("retention.ms" in row for row in rows[3:])
    assert all("a call" in row for row in rows[:-1])
    assert "active" in rows[-1]


def test_the_marks_and_the_given_settings_come_first(partition: Path, clock: ManualClock) -> None:
    text = str(made(partition, clock, 3))
    first, *marks = text.splitlines()[:5]
    assert first == f"events-0 at {partition}, at 2023-11-14T22:43:20.000Z"
    assert marks[0].startswith("  offsets 0 to 30 (the next one), ")
    assert marks[0].endswith(" in 3 segments")
    assert marks[1] == "  high watermark 30, last stable offset 30, recovery point 20"
    assert "retention.ms=1800000" in marks[2]
    assert "segment.bytes=800" in marks[2]
    assert "cleanup.policy" not in marks[2]
    assert marks[3] == "  no store has the log open: only kstore retain or a call of apply_retention deletes segments"


def test_of_a_long_log_the_first_and_the_last_segments_are_shown(partition: Path, clock: ManualClock) -> None:
    found = made(partition, clock, 40)
    rows = lines_of(str(found), "segment")[1:]
    assert len(rows) == 13
    assert [row.split()[0] for row in rows] == [*map(str, range(0, 80, 10)), "...", "360", "370", "380", "390"]
    hidden = [segment.size_bytes for segment in found.segments[8:-4]]
    assert rows[8].startswith(f"  ... 28 segments, {sum(hidden) / 1024:.1f} KiB (")
    assert "waits for the next check" in rows[8]
    assert rows[8].endswith("--all shows them")
    whole = lines_of(explanation_text(found, everything=True), "segment")[1:]
    assert [row.split()[0] for row in whole] == [*map(str, range(0, 400, 10))]


def test_a_log_that_just_fits_is_shown_whole(partition: Path, clock: ManualClock) -> None:
    assert len(lines_of(str(made(partition, clock, 13)), "segment")[1:]) == 13


def test_reasons_are_told_once_for_each_combination(partition: Path, clock: ManualClock) -> None:
    found = made(partition, clock, 6)
    told = [line for line in str(found).splitlines() if line.startswith("segment ") and ": " in line]
    assert [line.split(":")[0] for line in told] == ["segment 0", "segment 20", "segment 50 (active)"]
    assert told[0] == f"segment 0: {found.segments[0].explanation}"


def test_inferred_reasons_are_marked(partition: Path, clock: ManualClock) -> None:
    made(partition, clock, 3)
    with kstore.Log.open(partition, "r", clock=clock, retention_ms=30 * MINUTE) as log:
        found = log.explain()
    assert found.segments[0].is_roll_inferred
    text = str(replace(found, segments=(replace(found.segments[0], roll_reason="size"), *found.segments[1:])))
    assert "segment.bytes, inferred" in text
    assert "  rolled (inferred): " in text


def test_of_a_record_the_place_the_lookup_and_the_future_are_told(partition: Path, clock: ManualClock) -> None:
    found = made(partition, clock, 2)
    record = found.record
    assert record is not None
    block = lines_of(str(found), "record at offset 0, timestamp 2023-11-14T22:14:20.000Z")
    assert block[1].startswith("  in segment 0: batch of offsets 0 to 0 at byte 0, ")
    steps = [line for line in block if line.startswith("  ") and line.lstrip()[0].isdigit()]
    assert steps == [
        f"  {number}. {step.what.replace('_', ' ')}: {step.explanation}" for number, step in enumerate(record.steps, 1)
    ]
    assert block[-len(record.future) :] == [f"  - {sentence}" for sentence in record.future]


def test_an_explanation_controls_no_terminal(partition: Path, clock: ManualClock) -> None:
    found = replace(made(partition, clock, 2), topic=HOSTILE, path=f"/srv/{HOSTILE}", note=f"a broker wrote {HOSTILE}")
    text = str(found)
    assert not set(HOSTILE) - set("a[31mreversed\n") & set(text)
    assert text.splitlines()[0].startswith("a\\x1b[31m\\x0a\\u202ereversed\\u009b-0 at /srv/a\\x1b[31m")


# --- directories ------------------------------------------------------------------------------------------------------


def partition_of(topic: str, number: int, size: int, **facts: object) -> ExplainedPartition:
    held = (HeldBytes("no_limit", size, "segment 0: neither retention.ms nor retention.bytes sets a limit"),)
    made = ExplainedPartition(topic, number, f"/srv/{topic}-{number}", size, size + 4096, 3, 0, held, None)
    return replace(made, **facts)  # type: ignore[arg-type]


def disk_of(*partitions: ExplainedPartition, **facts: object) -> DiskExplanation:
    topics: dict[str, int] = {}
    for each in partitions:
        topics[each.topic] = topics.get(each.topic, 0) + each.disk_bytes
    total = sum(topics.values())
    made = DiskExplanation(("/srv",), 1_700_000_000_000, partitions, topics, total, 0, 5 << 30, (), None)
    return replace(made, **facts)  # type: ignore[arg-type]


def test_the_headline_has_the_space_and_what_is_free() -> None:
    found = disk_of(partition_of("orders", 0, 1 << 20))
    assert str(found).splitlines()[0] == "/srv: 1.0 MiB on disk, 5.0 GiB free, at 2023-11-14T22:13:20.000Z"
    assert "free, at" not in str(replace(found, free_bytes=None)).splitlines()[0]


def test_topics_have_a_table_if_they_have_several_partitions() -> None:
    single = str(disk_of(partition_of("orders", 0, 3 << 20), partition_of("clicks", 0, 1 << 20)))
    assert not [line for line in single.splitlines() if line.startswith("topic ")]
    found = disk_of(partition_of("orders", 0, 3 << 20), partition_of("orders", 1, 3 << 20), partition_of("x", 0, 1000))
    header, orders, _ = lines_of(str(found), "topic ")
    assert header.split() == ["topic", "partitions", "on", "disk", "share", "logs", "goes", "next"]
    assert orders.split() == ["orders", "2", "6.0", "MiB", "99", "%", "6.0", "MiB", "0", "B"]


def test_of_many_partitions_the_largest_are_shown() -> None:
    found = disk_of(*(partition_of(f"t{number:02}", 0, (40 - number) << 20) for number in range(30)))
    rows = lines_of(str(found), "partition")[1:]
    assert [row.split()[0] for row in rows[:12]] == [f"t{number:02}-0" for number in range(12)]
    assert rows[12:] == ["  ... and 18 more partitions; --all shows them"]
    assert "  ... and 18 more reasons; --all shows them" in str(found).splitlines()
    whole = disk_text(found, everything=True)
    assert "--all" not in whole
    assert len(lines_of(whole, "partition")[1:]) == 30


def test_what_holds_a_topic_is_summed_over_its_partitions() -> None:
    text = str(disk_of(partition_of("orders", 1, 2 << 20), partition_of("orders", 0, 1 << 20)))
    why = "segment 0: neither retention.ms nor retention.bytes sets a limit"
    assert lines_of(text, "what holds it:") == ["what holds it:", f"  3.0 MiB in orders-1 and 1 more partition: {why}"]
    going = disk_of(partition_of("orders", 0, 2 << 20, expired_bytes=1 << 20))
    assert lines_of(str(going), "the next check")[:2] == ["the next check deletes 1.0 MiB", "what holds the rest:"]


def test_remedies_say_what_they_free_and_when() -> None:
    remedies = (
        Remedy("orders", "retention.ms=86400000", 3 << 20, "deletes 3 segments"),
        Remedy("orders", "segment.ms=86400000", 2 << 20, "the next append rolls", from_ms=1_700_000_000_000),
        Remedy("keyed", "min.cleanable.dirty.ratio=0", 1 << 20, "cleans", is_at_most=True),
    )
    _, _, now, later, most = lines_of(str(disk_of(partition_of("orders", 0, 9 << 20), remedies=remedies)), "what would")
    assert now.split() == ["3.0", "MiB", "orders", "retention.ms=86400000", "next", "check", "deletes", "3", "segments"]
    assert "2023-11-14T22:13:20.000Z  the next append rolls" in later
    assert most.startswith("  at most 1.0 MiB")
    none = str(disk_of(partition_of("orders", 0, 9 << 20)))
    assert none.splitlines()[-1] == "no setting of those that were tried would free space"


def test_the_text_of_a_directory_controls_no_terminal() -> None:
    bad = partition_of(HOSTILE, 0, 100, error=f"cannot read {HOSTILE}", held=(HeldBytes("x", 1, HOSTILE),))
    remedies = (Remedy(HOSTILE, "retention.ms=1", 1, HOSTILE),)
    text = str(disk_of(bad, paths=(f"/srv/{HOSTILE}",), note=HOSTILE, remedies=remedies))
    assert not set(HOSTILE) - set("a[31mreversed\n") & set(text)
    plain = disk_of(partition_of("a", 0, 100, error="cannot"), note="x", remedies=remedies)
    assert len(text.splitlines()) == len(str(plain).splitlines())
