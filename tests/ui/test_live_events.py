"""Streams of a page's values: they follow a log, survive what happens to it, and end with their client or server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

import kstore
from kstore.ui import live_events
from kstore.ui.viewed_store import ViewedStore
from tests.ui.conftest import Pages

LIVE = "/live/partition/orders/0"


def test_an_append_arrives_with_the_new_log_end(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        served = pages(root)
        events = served.events(LIVE)
        first = events.next()
        assert (first["values"]["end"], first["problem"]) == ("0", "")
        store.append("orders", b"x")
        second = events.until(lambda event: event["values"]["end"] == "1")
        assert second["version"] != first["version"]
        store.append_many("orders", [b"x"] * 2000)
        assert events.until(lambda event: event["values"]["end"] == "2,001")["values"]["records"] == "2,001"


def test_the_rate_of_now_is_that_of_the_last_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(live_events.time, "monotonic", lambda: now)
    speed = live_events._Speed()
    assert speed.of(1000) is None
    now = 102.0
    assert speed.of(1500) == 250
    now = 104.0
    assert speed.of(1500) == 125
    assert speed.of(3) == 0


def test_the_rows_of_a_directory_are_followed(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("clicks", partitions=1)
        events = pages(root).events("/live/directory?topic=orders")
        first = events.next()
        assert first["values"]["orders-0/end"] == "0"
        assert "clicks-0/end" not in first["values"]
        store.append("orders", b"x", partition=1)
        assert events.until(lambda event: event["values"]["orders-1/end"] == "1")["version"] == first["version"]
        store.add_partitions("orders", 3)
        assert events.until(lambda event: "orders-2/end" in event["values"])["version"] != first["version"]


def test_a_restart_of_the_writer_is_survived(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"1")
    events = pages(root).events(LIVE)
    assert events.next()["values"]["end"] == "1"
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"2")
        assert events.until(lambda event: event["values"]["end"] == "2")["problem"] == ""


def test_a_partition_that_is_deleted_and_made_again_is_followed(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append_many([b"1", b"2"])
    events = pages(root).events(LIVE)
    assert events.next()["values"]["end"] == "2"
    shutil.rmtree(root / "orders-0")
    assert "orders" in events.until(lambda event: event["problem"])["problem"]
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"3")
        assert events.until(lambda event: event["values"].get("end") == "1")["problem"] == ""


def test_a_partition_that_is_not_there_yet_is_waited_for(root: Path, pages: Callable[..., Pages]) -> None:
    events = pages(root).events(LIVE)
    assert "no topic" in events.next()["problem"]
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"1")
    assert not events.until(lambda event: event["values"].get("end") == "1")["problem"]


def test_a_page_that_does_not_watch_has_one_version(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        events = pages(root).events(f"{LIVE}?watch=no")
        first = events.next()
        log.append(b"1")
        assert events.until(lambda event: event["values"]["end"] == "1")["version"] == first["version"] == ""


def test_the_search_for_what_takes_the_space_is_followed(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"1")
    served = pages(root)
    events = served.events("/live/disk")
    assert events.next() == {"values": {"progress": "0 of 0 partitions"}, "version": "", "problem": ""}
    served.read("/disk")
    assert events.until(lambda event: event["version"])["values"]["progress"].endswith("of 1 partitions")


def test_a_stream_is_for_events_and_text_in_it_is_json(orders: Pages) -> None:
    events = orders.events(LIVE)
    assert events._answer.headers["content-type"].startswith("text/event-stream")
    assert events._answer.readline() == b"retry: 2000\n"


def test_streams_are_limited_and_one_that_ended_makes_room(
    root: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "MAX_STREAMS", 2)
    kstore.Log.open(root / "orders-0").close()
    served = pages(root)
    first, second = served.events(LIVE), served.events(LIVE)
    first.next()
    second.next()
    assert served.ask(LIVE).status == 503
    first.close()
    second.close()
    while (third := served.events(LIVE)).status == 503:  # until the server has noticed
        third.close()
    third.next()
    third.close()


def test_streams_that_are_asked_for_at_once_are_limited_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "MAX_STREAMS", 2)
    kstore.Log.open(root / "orders-0").close()
    viewed = ViewedStore([str(root)], clock=lambda: 0)
    live = live_events.LiveEvents(viewed)
    scope: dict[str, Any] = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
    scope["path_params"] = {"topic": "orders", "number": "0"}

    async def ask() -> list[int]:
        answers = [await live.partition(Request(scope)) for _ in range(5)]  # none of them has begun
        return [getattr(answer, "status_code", 200) for answer in answers]

    with closing(viewed):
        assert asyncio.run(ask()) == [200, 200, 503, 503, 503]


def test_head_of_a_stream_ends(orders: Pages) -> None:
    answer = orders.ask(LIVE, "HEAD")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert not answer.text


def test_a_server_that_stops_ends_its_streams(root: Path, pages: Callable[..., Pages]) -> None:
    kstore.Log.open(root / "orders-0").close()
    served = pages(root)
    events = served.events(LIVE)
    events.next()
    served.server.stop()
    events.rest()


def test_a_hostile_address_of_a_stream_is_refused(orders: Pages) -> None:
    for path, status in (
        ("/live/partition/orders/x", 404),
        ("/live/partition/orders/0?watch=x", 400),
        ("/live/directory?page=0", 400),
        ("/live/partition/%2e%2e/0/0", 404),
    ):
        assert orders.ask(path).status == status
