"""The pictures in docs/ are what `make docs` draws, and each is shown on a page."""

from __future__ import annotations

import importlib

import pytest

from tests.support import pictured
from tests.test_docs import REPOSITORY, text_of

DOCS = REPOSITORY / "docs"
PICTURES = ("append.svg", "compaction.svg", "log.svg", "retention.svg")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_in_the_docs_is_what_is_made_from_a_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    assert importlib.import_module("make_pictures").picture(name) == text_of(DOCS / name), "make docs draws it anew"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_in_the_docs_is_sound(name: str) -> None:
    pictured.check(text_of(DOCS / name))


def test_every_picture_that_is_made_is_shown_on_a_page_with_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    assert set(importlib.import_module("make_pictures").MADE) == set(PICTURES)
    pages = [text_of(page) for page in (*DOCS.glob("*.md"), REPOSITORY / "README.md")]
    for name in PICTURES:
        shown = [part for page in pages for part in page.split("![")[1:] if f"]({name})" in part or f"/{name})" in part]
        assert shown, name
        assert all(len(part.split("](")[0]) > 60 for part in shown), name


def test_the_picture_of_retention_tells_the_story_of_semantics_6_19() -> None:
    found = pictured.texts(text_of(DOCS / "retention.svg"))
    assert "In all: readable for 24 min, on the disk for 25 min (retention.ms: 10 min)." in found
    assert {
        "Written 09:00",
        "Segment ends 09:09",
        "Old enough 09:19",
        "Deleted 09:24",
        "Off the disk 09:25",
    } <= set(found)
    assert {"9 min", "10 min", "5 min", "1 min"} <= set(found)
