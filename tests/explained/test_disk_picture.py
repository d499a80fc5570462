"""What takes the space of a store: the largest topics, what holds their bytes, and what would free them."""

from __future__ import annotations

from dataclasses import replace

from kstore.explained.disk_picture import CAUSES, picture
from kstore.explained.explained_disk import DiskExplanation, HeldBytes, Remedy
from tests.support import pictured
from tests.support.explained_facts import HOSTILE, disk


def texts(of: DiskExplanation) -> list[str]:
    return pictured.texts(pictured.check(picture(of)))


def test_topics_are_drawn_with_their_size_the_largest_first() -> None:
    found = texts(disk(3))
    assert found[0] == "1.9 MiB on the disk; 1.0 GiB are free"
    rows = [(name, found[found.index(name) + 1]) for name in ("topic-0", "topic-1", "topic-2", "outside of partitions")]
    assert rows == [
        ("topic-0", "1.0 MiB"),
        ("topic-1", "537.1 KiB"),
        ("topic-2", "358.1 KiB"),
        ("outside of partitions", "4.9 KiB"),
    ]


def test_the_colours_are_explained_with_the_bytes_of_all_topics() -> None:
    of = disk(1)
    assert "585.9 KiB: younger than retention.ms" in texts(of)
    assert "97.7 KiB: the next check deletes it" in texts(of)
    assert "102.5 KiB: indexes and other files" in texts(of)


def test_the_settings_that_free_most_are_told() -> None:
    assert "retention.ms=3600000 for topic-0 would free 488.3 KiB" in texts(disk())


def test_ten_thousand_topics_are_a_small_picture() -> None:
    svg = pictured.check(picture(disk(10_000)))
    assert len(svg) < 30_000
    assert "9,986 other topics" in pictured.texts(svg)


def test_hostile_names_and_every_cause_are_drawn_soundly() -> None:
    of = disk(2)
    held = tuple(HeldBytes(cause, 1000 + number, HOSTILE) for number, cause in enumerate([*CAUSES, "a new cause"]))
    named = replace(of.partitions[0], topic=HOSTILE * 30, held=held)
    of = replace(
        of,
        paths=(HOSTILE * 50,),
        partitions=(named, of.partitions[1]),
        topics={HOSTILE * 30: 50_000, "topic-1": 1000},
        remedies=(Remedy(HOSTILE * 30, "x", 1 << 62, HOSTILE),),
        free_bytes=None,
    )
    assert [each for each in texts(of) if each.endswith("a new cause")]


def test_an_empty_directory_is_drawn() -> None:
    of = replace(disk(0), topics={}, other_bytes=0, disk_bytes=0, remedies=())
    assert texts(of)[0].startswith("0 B on the disk")
