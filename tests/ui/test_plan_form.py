"""The page of plans: what the form says is planned, alone or beside other settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

import kstore
from kstore.planning.plan import plan
from tests.conftest import ManualClock
from tests.ui.conftest import Pages
from tests.ui.test_directory_pages import cells

MINUTE = 60_000
ASKED = {"rate": "0.2", "record_bytes": "150", "segment.bytes": "16384", "retention.ms": "10m", "days": "2"}


def figures(text: str) -> dict[str, list[str]]:
    """The numbers of the plans on a page, by their names."""
    return {row[0]: row[1:] for row in cells(text)}


def test_the_page_begins_with_a_plan(orders: Pages) -> None:
    text = orders.read("/plan")
    assert "<svg" in text
    assert 'name="retention.ms" value="7d"' in text
    assert 'name="keys" inputmode="numeric" value=""' in text


def test_a_plan_is_that_of_the_same_call(orders: Pages) -> None:
    made = plan(
        {"segment.bytes": "16384", "retention.ms": str(10 * MINUTE)}, rate=0.2, record_bytes=150, duration=2880 * MINUTE
    )
    text = orders.read(f"/plan?{urlencode(ASKED)}")
    assert figures(text)["Segments in all"] == [f"{made.segment_count:,}"]
    for sentence in made.advice:
        assert sentence in text.replace("&#x27;", "'")


def test_settings_are_compared_with_those_that_differ(orders: Pages) -> None:
    text = orders.read(f"/plan?{urlencode(ASKED | {'other.segment.ms': '5m'})}")
    assert len(figures(text)["Segments in all"]) == 2
    assert figures(text)["retention.ms"] == ["10 minutes (given)"] * 2
    assert 'name="other.segment.ms" value="5m"' in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"segment.bytes": "3"}, "segment.bytes"),
        ({"cleanup.policy": "compact"}, "keys"),
        ({"cleanup.policy": "<script>"}, "cleanup.policy"),
        ({"idle": "25:00-99:00"}, "25:00"),
        ({"record_bytes": "1"}, "record_bytes"),
        ({"rate": "0"}, "rate"),
        ({"retention.ms": "999999999999w"}, "retention.ms"),
        ({"segment.bytes": "/etc/passwd"}, "segment.bytes"),
    ],
)
def test_what_cannot_be_planned_is_told_beside_the_form(orders: Pages, given: dict[str, str], told: str) -> None:
    answer = orders.ask(f"/plan?{urlencode(ASKED | given)}")
    assert answer.status == 400
    alert = re.search(r'role="alert">([^<]+)<', answer.text)
    assert alert is not None
    assert told in alert[1]
    assert 'name="rate"' in answer.text


def test_settings_that_are_not_in_the_form_are_not_taken(orders: Pages) -> None:
    text = orders.read(f"/plan?{urlencode(ASKED | {'config': '/etc/passwd', 'flush.ms': 'x', 'preallocate': 'true'})}")
    assert figures(text)["Segments in all"]


def test_a_partition_leads_to_a_plan_of_its_load(root: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", partitions=1, config={"segment.bytes": "2000", "retention.ms": "600000"})
        for _ in range(40):
            store.append("orders", b"x" * 80)
            clock.advance(5000)
    served = pages(root, clock=clock)
    link = re.search(r'href="(/plan\?[^"]+)"', served.read("/partition/orders/0"))
    assert link is not None
    text = served.read(link[1].replace("&amp;", "&"))
    assert figures(text)["Records a second"] == ["0.2"]
    assert figures(text)["segment.bytes"] == ["2.0 KiB (given)"]
    assert figures(text)["retention.ms"] == ["10 minutes (given)"]
