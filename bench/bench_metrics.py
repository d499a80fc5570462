"""A scrape of 1,000 open partitions: `prometheus_client`'s text of all metrics, and the samples alone.

`compacted` asks for the dirty ratio of each, too.
"""

from __future__ import annotations

from typing import Any

import pytest
from common import Question, measure
from prometheus_client import CollectorRegistry, generate_latest

import kstore
from kstore.metrics.metric_samples import samples_of

PARTITIONS = 1000


@pytest.fixture(scope="module", params=["delete", "compact"])
def store(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with kstore.Store.open(tmp_path_factory.mktemp("store"), background=False) as store:
        store.create_topic("events", PARTITIONS, cleanup_policy=request.param, segment_bytes=5000)
        for number in range(PARTITIONS):
            store.append_many("events", [(b"k", b"v" * 90)] * 100, partition=number, batch_bytes=1000)
        yield store


def test_scrape(benchmark: Any, store: kstore.Store) -> None:
    registry = CollectorRegistry()
    kstore.export_to_prometheus(store, registry)
    measure(benchmark, scrape(store), "kstore", lambda: generate_latest(registry), operations=1, rounds=9)
    assert generate_latest(registry).count(b"kstore_log_end_offset{") == PARTITIONS


def test_samples(benchmark: Any, store: kstore.Store) -> None:
    found = measure(
        benchmark, scrape(store), "the samples alone", lambda: list(samples_of(store)), operations=1, rounds=9
    )
    assert len(found) > 5 * PARTITIONS


def scrape(store: kstore.Store) -> Question:
    policy = ",".join(store.log("events", 0).config.cleanup_policy)
    return Question(f"a scrape of {PARTITIONS:,} open partitions, cleanup.policy {policy}", "time")
