"""How long does an answer of explain, plan and the page take?

Workloads by name (the rest is in `common`):
  year            a plan of 365 days: a busy topic with idle nights, two limits, timestamps that are behind
  many-segments   explain of a log of 10,000 segments that is open: the first question, and one more
  many-partitions the first page of a directory with 10,000 partitions, through a server, from its start
"""

from __future__ import annotations

import http.client
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from common import Question, measure, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

DAY = 86_400_000
YEAR = Question("kstore.plan of 365 days, idle nights, skew, retention by time and size", "time", 1.0)
COMPACTED = Question("kstore.plan of 365 days, cleanup.policy=compact,delete", "time", 1.0)
SEGMENTS = Question("log.explain() of an open log of 10,000 segments", "time", 1.0)
RECORD = Question("log.explain(offset=...) of a log of 10,000 segments", "time", 1.0)
FIRST_PAGE = Question("kstore ui: from the start to the first page of 10,000 partitions", "time", 1.0)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kstore.ConfigWarning)
        yield


def test_plan_of_a_year(benchmark: BenchmarkFixture) -> None:
    def plan() -> kstore.Plan:
        return kstore.plan(
            rate=2000,
            record_bytes=300,
            batch_records=20,
            duration=365 * DAY,
            idle="22:00-06:00",
            skew=60_000,
            segment_bytes=64 << 20,
            retention_ms=7 * DAY,
            retention_bytes=100 << 30,
        )

    assert measure(benchmark, YEAR, "kstore", plan, operations=1).segment_count > 1000


def test_plan_of_a_compacted_year(benchmark: BenchmarkFixture) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(30 * DAY), "segment.bytes": str(64 << 20)}

    def plan() -> kstore.Plan:
        return kstore.plan(settings, rate=500, record_bytes=200, duration=365 * DAY, keys=100_000)

    measure(benchmark, COMPACTED, "kstore", plan, operations=1)


@pytest.fixture(scope="module")
def many_segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kstore.Log]:
    path = tmp_path_factory.mktemp("explain") / "bench-0"
    with kstore.Log.open(path, segment_bytes=100, retention_ms=DAY) as log:
        for _ in range(scaled(10_000)):
            log.append(b"v" * 20)
        yield log


def test_explain_many_segments(benchmark: BenchmarkFixture, many_segments: kstore.Log) -> None:
    found = measure(benchmark, SEGMENTS, "kstore", many_segments.explain, operations=1)
    assert len(found.segments) == len(many_segments.segments)


def test_explain_a_record_of_many_segments(benchmark: BenchmarkFixture, many_segments: kstore.Log) -> None:
    middle = many_segments.log_end_offset // 2
    measure(benchmark, RECORD, "kstore", lambda: many_segments.explain(offset=middle), operations=1)


def test_first_page_of_many_partitions(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    from kstore.ui.server import Server
    from kstore.ui.viewed_store import ViewedStore

    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("orders")
        store.append_many("orders", [b"an order"] * 100)
    for number in range(1, scaled(10_000)):
        copy = tmp_path / "data" / f"orders-{number}"
        copy.mkdir()
        for file in (tmp_path / "data" / "orders-0").glob(f"{0:020d}.*"):
            shutil.copy(file, copy)

    def first_page() -> str:
        viewed = ViewedStore([str(tmp_path / "data")], clock=lambda: time.time_ns() // 1_000_000)
        try:
            with Server(viewed) as server:
                return fetched(server.port, server.token)
        finally:
            viewed.close()

    assert "orders-0" in measure(benchmark, FIRST_PAGE, "kstore", first_page, operations=1)


def fetched(port: int, token: str) -> str:
    """The first page, with the cookie that the token becomes."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", f"/?token={token}")
        answer = connection.getresponse()
        answer.read()
        cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        connection.request("GET", "/", headers={"Cookie": cookie})
        return connection.getresponse().read().decode()
