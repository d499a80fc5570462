"""The parts of pictures: any text is escaped and fits, the colours can be read, and style can be left out."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.explained import svg
from tests.support import pictured
from tests.support.explained_facts import HOSTILE

SHEET = svg.Sheet(200, 100, "one")


def drawn(*parts: str, **options: bool) -> str:
    return svg.document(parts, SHEET, title="a title", description="more", **options)


@given(st.text())
def test_any_text_is_ascii_and_sound_xml_and_html(text: str) -> None:
    picture = drawn(svg.text(5, 20, text))
    assert picture.isascii()
    [found] = pictured.texts(picture)
    assert not [letter for letter in found if letter < " " or "\x7f" <= letter <= "\x9f"]
    assert html.unescape(svg.safe(text)) == found


def test_a_hostile_text_is_shown_and_does_nothing() -> None:
    picture = drawn(svg.text(5, 20, HOSTILE), svg.linked(f"?{HOSTILE}", HOSTILE, svg.box(1, 1, 10, 10, "sealed")))
    root = ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert pictured.texts(picture) == ['<script>alert("1")</script>&\\x1b[31m\\u202e\\ufffe\U0001f680']
    assert next(root.iter(f"{pictured.SVG}a")).attrib["href"].startswith("?<script>")


@given(st.text(max_size=400), st.integers(30, 600), st.sampled_from([11, 13, 22]))
def test_a_fitted_text_is_not_wider_than_its_room(text: str, room: int, size: int) -> None:
    found = svg.fitted(text, room, size)
    assert svg.width_of(found, size) <= room
    assert html.escape(found).encode("ascii", "xmlcharrefreplace").decode() == svg.safe(text) or "\u2026" in found


def test_a_text_that_does_not_fit_keeps_its_beginning_and_its_end() -> None:
    found = svg.fitted("a" * 100 + "b" * 100, 200)
    assert re.fullmatch("a+\u2026b+", found)
    assert svg.fitted("short", 200) == "short"


@given(st.text(max_size=400), st.integers(60, 300))
def test_wrapped_lines_fit_and_are_few(text: str, room: int) -> None:
    lines = svg.wrapped(text, room, most=3)
    assert len(lines) <= 3
    assert all(svg.width_of(line) <= room for line in lines)


def test_wrapped_lines_have_all_words_if_there_is_room_for_them() -> None:
    text = "one two three four five six seven eight nine ten"
    lines = svg.wrapped(text, 120)
    assert len(lines) > 2
    assert " ".join(lines) == text
    assert svg.wrapped(text, 120, most=2)[-1].endswith("\u2026")


def test_a_picture_without_style_has_none_at_all() -> None:
    styled, bare = drawn(svg.box(1, 1, 9, 9, "sealed")), drawn(svg.box(1, 1, 9, 9, "sealed"), styled=False)
    assert f"<style>{svg.style()}</style>" in styled
    assert "style" not in bare
    assert styled.replace(f"<style>{svg.style()}</style>\n", "") == bare


def test_identifiers_begin_with_the_prefix_of_the_sheet() -> None:
    arrow = svg.line(1, 1, 50, 50, "edge", head="one")
    pictured.check(svg.document([arrow], SHEET, title="t", description="d", heads=("edge",)))
    assert {"one-title", "one-desc", "one-edge"} == set(
        re.findall(r'id="([^"]+)"', svg.document([arrow], SHEET, title="t", description="d", heads=("edge",)))
    )


def test_a_picture_with_links_is_a_group_whose_parts_can_be_reached() -> None:
    assert 'role="img"' in drawn()
    picture = drawn(svg.linked("/a?b=1&c=2", "Segment 7", svg.box(1, 1, 9, 9, "sealed")), has_links=True)
    assert 'role="group"' in picture
    [link] = ElementTree.fromstring(picture).iter(f"{pictured.SVG}a")
    assert link.attrib == {"href": "/a?b=1&c=2", "aria-label": "Segment 7"}
    assert [each.text for each in link.iter(f"{pictured.SVG}title")] == ["Segment 7"]


def colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"\.kstore-picture \.(\w+)\{\w+:(#\w{6})\}", style))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("surroundings", ["light", "dark"])
def test_texts_can_be_read_on_every_colour_that_they_stand_on(surroundings: str) -> None:
    light, dark = svg.style().split("@media (prefers-color-scheme: dark)")
    found = colours(light if surroundings == "light" else dark)
    fills = (
        "sealed",
        "active",
        "before",
        "going",
        "kept",
        "future",
        "clean",
        "dirty",
        "found",
        "bounded",
        "uncommitted",
    )
    plain = ("paper", "panel")
    assert [name for name in (*fills, *plain) if contrast(found["ink"], found[name]) < 4.5] == []
    for ink in ("soft", "goingink", "futureink", "nowink", "timeindex", "offsetindex"):
        assert [name for name in plain if contrast(found[ink], found[name]) < 4.5] == [], ink
    assert [name for name in ("sealed", "active", "before") if contrast(found["soft"], found[name]) < 4.5] == []


def test_every_colour_is_there_in_light_and_in_dark() -> None:
    light, dark = svg.style().split("@media (prefers-color-scheme: dark)")
    assert colours(light).keys() == colours(dark).keys()
    assert "kstore-picture" in svg.style()
    assert [rule for rule in re.findall(r"([^{}@]+)\{[^{}]*\}", light) if ".kstore-picture" not in rule] == []
