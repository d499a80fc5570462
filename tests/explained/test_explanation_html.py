"""Pages of explanations and plans: one file, nothing fetched, every fact as text; and what notebooks show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pyarrow
import pytest

from kstore.explained import html_page, svg
from kstore.explained.explanation import DeletedFile, Explanation
from kstore.explained.explanation_html import disk_page, log_page
from kstore.explained.plan_html import plan_page
from kstore.types import CompactionOutlook
from tests.support import pictured
from tests.support.explained_facts import (
    HOSTILE,
    MINUTE,
    NOON,
    OUTLOOK,
    disk,
    explanation,
    plan,
    with_record,
    with_segment,
)

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects what a page consists of; raises AssertionError for elements that are not closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def check(text: str) -> Page:
    """Raise AssertionError unless a text is sound HTML that does nothing and fetches nothing."""
    assert text.isascii()
    page = Page(text)
    assert not {"script", "iframe", "img", "object", "embed", "form", "link", "base"} & {
        tag for tag, _ in page.elements
    }
    names = [name for _, attributes in page.elements for name in attributes]
    assert [name for name in names if name.startswith("on") or name in ("style", "src", "href", "srcset")] == []
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        pictured.check(drawn)
    for found in page.named("div"):
        if found.get("class") == "kstore-scroll":
            assert found["tabindex"] == "0"
            assert found["role"] == "region"
            assert found["aria-label"]
    return page


def hostile_log() -> Explanation:
    of = with_segment(
        explanation(3), 0, explanation=HOSTILE, roll_explanation=HOSTILE, path=HOSTILE, compaction=HOSTILE
    )
    of = replace(of, topic=HOSTILE, path=HOSTILE, note=HOSTILE, deleted=(DeletedFile(HOSTILE, 1, None),))
    of = replace(of, settings={HOSTILE: HOSTILE, **of.settings}, compaction=replace(OUTLOOK, explanation=HOSTILE))
    of = with_record(of, 17, compression=HOSTILE, future=(HOSTILE,))
    assert of.record is not None
    steps = tuple(replace(step, explanation=HOSTILE, path=HOSTILE) for step in of.record.steps)
    return replace(of, record=replace(of.record, steps=steps))


PAGES: dict[str, Callable[[], str]] = {
    "log": lambda: log_page(explanation(5)),
    "record": lambda: log_page(with_record(explanation(5), 17)),
    "hostile": lambda: log_page(hostile_log()),
    "disk": lambda: disk_page(disk(20)),
    "empty disk": lambda: disk_page(disk(0, remedies=())),
    "hostile disk": lambda: disk_page(disk(1, paths=(HOSTILE,), note=HOSTILE)),
    "plan": lambda: plan_page(plan()),
    "plans": lambda: plan_page(plan(), plan(keep_ms=60 * MINUTE), title=HOSTILE),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_sound_file_with_landmark_and_headings(name: str) -> None:
    text = PAGES[name]()
    page = check(text)
    assert text.startswith("<!DOCTYPE html>\n")
    assert page.named("html") == [{"lang": "en"}]
    assert len(page.named("main")) == len(page.named("h1")) == len(page.named("style")) == 1
    assert "width=device-width" in str(page.named("meta"))
    assert page.named("svg")


@pytest.mark.parametrize("made", [explanation(3), with_record(explanation(3), 17), hostile_log(), disk(), plan()])
def test_a_notebook_gets_pictures_with_their_style(made: Explanation) -> None:
    text = made._repr_html_()
    page = check(text)
    assert len(page.named("style")) == 1
    assert svg.style() in text
    assert not page.named("html")


def test_two_outputs_of_a_notebook_have_different_identifiers() -> None:
    one, other = with_record(explanation(3), 17), with_record(explanation(3), 18)
    check(one._repr_html_() + other._repr_html_() + explanation(3)._repr_html_())


def test_the_page_of_a_log_has_every_fact_of_its_segments() -> None:
    page = check(log_page(explanation(3)))
    for segment in explanation(3).segments:
        assert segment.roll_explanation in page.text
        assert segment.explanation.partition("younger")[0][4:] in page.text
    assert "2013-06-01 12:19:00 to 2013-06-01 12:24:00" in page.text
    assert "retention.ms 10 minutes 600000 given" in page.text
    assert "The directory" not in page.text


def test_the_page_of_a_record_says_first_why_it_is_there() -> None:
    page = check(log_page(with_record(explanation(3, NOON + 17 * MINUTE), 17)))
    first = page.text.index("Record 17 is still there because")
    assert first < page.text.index("The log rolled by segment.bytes. A check deletes it.")
    assert page.named("p")[0] == {"class": "lead"}
    assert "5 batch 00000000000000000000.log 2250, 2700" in page.text


def test_a_note_stands_first_on_a_page() -> None:
    for text in (log_page(explanation(2, note="the settings are not known")), disk_page(disk(note="not known"))):
        assert check(text).named("p")[0] == {"class": "note"}


def test_a_log_of_ten_thousand_segments_is_a_page_of_some_rows() -> None:
    text = log_page(explanation(10_000))
    assert len(text) < 300_000
    assert "9,800 of 10,000 rows are left out in the middle." in check(text).text


def test_the_page_of_two_plans_has_both_in_each_row() -> None:
    page = check(plan_page(plan(), plan(keep_ms=60 * MINUTE)))
    assert (
        "Setting retention.ms = 10 minutes retention.ms = 1 hour retention.ms 10 minutes (given) 1 hour (given)"
        in page.text
    )
    assert "A record is readable for 10 min \u2013 14 min 33 s \u2013 24 min 5 s 1 h" in page.text
    assert page.text.count("A smaller segment.bytes makes retention.ms more exact.") == 2


def test_any_text_of_a_page_is_escaped() -> None:
    parts = [
        html_page.section(HOSTILE, [html_page.paragraph(HOSTILE)]),
        html_page.table(HOSTILE, [HOSTILE], [[HOSTILE]], numbers=[0]),
    ]
    page = check(html_page.page(HOSTILE, parts, made_by=HOSTILE))
    assert page.text.count('<script>alert("1")</script>') == 7


def test_segments_are_an_arrow_table_with_times_as_timestamps() -> None:
    table = explanation(3).to_arrow()
    assert table.num_rows == 3
    assert table.schema.field("max_timestamp").type == pyarrow.timestamp("ms", "UTC")
    assert table["base_offset"].to_pylist() == [0, 109, 218]
    assert table["holds"].to_pylist()[0] == ["retention.ms"]
    assert [each and int(each.timestamp() * 1000) for each in table["rolled_ms"].to_pylist()] == [
        each.rolled_ms for each in explanation(3).segments
    ]
    assert not table.schema.field("path").nullable
    assert replace(explanation(1), segments=()).to_arrow().schema == table.schema


def test_partitions_are_an_arrow_table_with_what_holds_their_bytes() -> None:
    table = disk(3).to_arrow()
    assert table["topic"].to_pylist() == ["topic-0", "topic-1", "topic-2"]
    assert table["held"].to_pylist()[0][1]["cause"] == "no_limit"
    assert disk(0).to_arrow().schema == table.schema


@pytest.mark.parametrize("made", [with_record(explanation(3), 17), disk(), plan()])
def test_facts_can_be_written_as_json(made: Explanation) -> None:
    assert json.loads(json.dumps(made.to_dict()))


def test_the_outlook_of_compaction_is_on_the_page() -> None:
    outlook: CompactionOutlook = replace(OUTLOOK, explanation="the dirty part is 20 % of the log")
    assert "The dirty part is 20 % of the log." in check(log_page(explanation(2, compaction=outlook))).text


def test_the_page_of_a_plan_says_where_its_load_is_from() -> None:
    text = plan_page(plan(), known=[f"measured on {HOSTILE}"])
    assert "measured on " in check(text).text
    assert "measured on " not in plan_page(plan())
