"""Metrics in Prometheus and OpenTelemetry: the names of the page, the values of `stats()`, at any moment."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import kstore
from kstore.base._histogram import Histogram
from kstore.log.hosted_log import HostedLog
from kstore.metrics.metric_families import FAMILIES
from tests.conftest import ManualClock
from tests.support.parking import park
from tests.test_docs import REPOSITORY, text_of

PLACE = {"topic": "t", "partition": "0"}


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 2)
        yield store


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def pages_table() -> list[tuple[str, ...]]:
    """(Prometheus' name, OpenTelemetry's, kind, labels, what) of each row of the page's table."""
    text = text_of(REPOSITORY / "docs" / "metrics.md").split("## What is exported", 1)[1]
    rows = text.split("|---|---|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [tuple(cell.strip().strip("`") for cell in row.split("|")[1:6]) for row in rows]


def test_the_page_lists_each_metric() -> None:
    assert pages_table() == [
        (
            family.prometheus + ("_total" if family.kind == "counter" else ""),
            family.name,
            family.kind,
            ", ".join(family.labels),
            family.text,
        )
        for family in FAMILIES
    ]


def test_a_store_is_scraped_with_the_values_of_now(
    store: kstore.Store, registry: CollectorRegistry, clock: ManualClock
) -> None:
    kstore.export_to_prometheus(store, registry)
    store.create_topic("compacted", 1, cleanup_policy="compact", segment_bytes=200)
    store.append_many("compacted", [(b"k", b"v" * 60)] * 10, batch_bytes=100)
    store.append("t", b"v", partition=0)
    assert registry.get_sample_value("kstore_log_end_offset", PLACE) == 1
    assert registry.get_sample_value("kstore_log_recovery_point", PLACE) == 0
    store.append_many("t", [b"v"] * 9, partition=0)
    store.commit_offsets("g", {("t", 0): 3})
    store.flush()
    clock.advance(60_000)
    store.run_housekeeping()
    value = registry.get_sample_value
    assert value("kstore_log_end_offset", PLACE) == value("kstore_log_recovery_point", PLACE) == 10
    assert value("kstore_log_size_bytes", PLACE) == store.log("t", 0).stats()["size_bytes"]
    assert value("kstore_group_lag", {"group": "g", **PLACE}) == 7
    assert value("kstore_store_partitions") == store.stats()["partitions"]
    assert value("kstore_log_dirty_ratio", {"topic": "compacted", "partition": "0"}) is not None
    directory = {"directory": store.paths[0]}
    stats = store.stats()["sync_seconds"][store.paths[0]]
    assert value("kstore_sync_duration_seconds_count", directory) == stats["count"] > 0
    assert value("kstore_sync_duration_seconds_sum", directory) == pytest.approx(stats["sum"])
    assert value("kstore_sync_duration_seconds_bucket", {**directory, "le": "+Inf"}) == stats["count"]
    assert (value("kstore_task_duration_seconds_count", {"task": "flush"}) or 0) > 0
    assert value("kstore_directory_offline", directory) == 0
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {family.name for family in families} <= {family.prometheus for family in FAMILIES}


def test_a_scrape_opens_no_log_and_wakes_none(tmp_path: Path, registry: CollectorRegistry) -> None:
    for life in (1, 2):
        with kstore.Store.open(tmp_path / "data", background=False) as store:
            kstore.export_to_prometheus(store, registry)
            if life == 1:
                store.create_topic("t", 3, cleanup_policy="compact", segment_bytes=300)
            else:
                assert registry.get_sample_value("kstore_log_end_offset", PLACE) is None
                assert store.stats()["open_logs"] == 0
            store.append_many("t", [(b"k", b"v" * 50)] * 20, partition=0, batch_bytes=100)
            store.flush()
            log = store.log("t", 0)
            park(log)
            assert registry.get_sample_value("kstore_log_end_offset", PLACE) == 20 * life
            assert registry.get_sample_value("kstore_log_size_bytes", PLACE) == log.stats()["size_bytes"]
            assert registry.get_sample_value("kstore_log_dirty_ratio", PLACE) is not None
            assert HostedLog(log).writer.appender.parked
            assert store.stats()["open_logs"] == 1


def test_a_log_that_is_open_by_itself_is_scraped(tmp_path: Path, registry: CollectorRegistry) -> None:
    for mode in ("a", "r"):
        with kstore.Log.open(tmp_path / "t-0", mode) as log:  # type: ignore[arg-type]
            kstore.export_to_prometheus(log, registry)
            if mode == "a":
                log.append(b"v", sync=True)
                callers = registry.get_sample_value("kstore_sync_callers_count", {"directory": str(tmp_path)})
                assert callers == 1
            assert registry.get_sample_value("kstore_log_end_offset", PLACE) == 1
        assert generate_latest(registry) == b""


def test_a_partition_that_cannot_be_written_is_told(tmp_path: Path, registry: CollectorRegistry) -> None:
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 1)
        store.append("t", b"v" * 50)
    log = tmp_path / "t-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-10])
    with kstore.Store.open(tmp_path, background=False) as store:
        kstore.export_to_prometheus(store, registry)
        assert registry.get_sample_value("kstore_log_failed", PLACE) == 1


def test_copies_tell_their_lag(store: kstore.Store, registry: CollectorRegistry, tmp_path: Path) -> None:
    store.append("t", b"v", partition=0)
    with (
        kstore.replicate(store.paths, tmp_path / "copy", follow=True) as replication,
        kstore.backup(store, str(tmp_path / "backup"), every=1000.0) as backup,
    ):
        backup.flush()
        assert replication.wait_caught_up(60)
        for source in (store, replication, backup):
            kstore.export_to_prometheus(source, registry)
        kstore.export_to_prometheus(replication.store, registry, labels={"copy": "yes"})
        value = registry.get_sample_value
        assert value("kstore_replication_lag", PLACE) == 0
        assert value("kstore_replication_failed", PLACE) == 0
        assert value("kstore_backup_lag", PLACE) == 0
        assert value("kstore_backup_sent_bytes_total") == backup.stats()["sent_bytes"]
        assert value("kstore_backup_requests_total", {"kind": "put"}) == backup.stats()["requests"]["put"]
        assert value("kstore_store_follower", {"copy": "yes"}) == 1
        assert value("kstore_log_end_offset", {**PLACE, "copy": "yes"}) == 1
        assert value("kstore_log_end_offset", PLACE) == 1


def test_two_sources_need_labels_that_differ_until_one_is_closed(tmp_path: Path, registry: CollectorRegistry) -> None:
    first = kstore.Log.open(tmp_path / "a-0")
    second = kstore.Log.open(tmp_path / "b-0")
    kstore.export_to_prometheus(first, registry)
    with pytest.raises(ValueError, match="labels"):
        kstore.export_to_prometheus(second, registry)
    with pytest.raises(ValueError, match="labels"):
        kstore.export_to_prometheus(first, registry)
    first.close()
    kstore.export_to_prometheus(second, registry)
    assert registry.get_sample_value("kstore_log_end_offset", {"topic": "b", "partition": "0"}) == 0
    del second
    gc.collect()
    assert generate_latest(registry) == b""


def observed(reader: InMemoryMetricReader) -> dict[str, dict[frozenset[tuple[str, Any]], Any]]:
    """The values of a round by name and attributes."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: {
            frozenset((point.attributes or {}).items()): point.value  # type: ignore[union-attr]
            for point in metric.data.data_points
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_observes_the_same(store: kstore.Store) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    kstore.export_to_opentelemetry(store, provider, attributes={"service": "a"})
    place, given = frozenset({**PLACE, "service": "a"}.items()), ("service", "a")
    for count in (1, 2, 3):
        store.append("t", b"v", partition=0, sync=True)
        found = observed(reader)
        assert found["kstore.log.end_offset"][place] == count
        assert found["kstore.log.size"][place] == store.log("t", 0).stats()["size_bytes"]
        directory = frozenset([("directory", store.paths[0]), given])
        assert found["kstore.sync.duration.count"][directory] == count
        assert found["kstore.sync.callers.bucket"][directory | {("le", "1.0")}] == count
        assert found["kstore.sync.callers.bucket"][directory | {("le", "+Inf")}] == count
        assert found["kstore.sync.callers.sum"][directory] == count
        assert found["kstore.store.follower"][frozenset([given])] == 0
    with pytest.raises(ValueError, match="labels"):
        kstore.export_to_opentelemetry(store, provider, attributes={"service": "a"})
    store.close()
    assert observed(reader) == {}
    provider.shutdown()


def test_scrapes_go_on_beside_appends_and_close(tmp_path: Path, registry: CollectorRegistry) -> None:
    errors: list[BaseException] = []
    ended = threading.Event()

    def scrape() -> None:
        try:
            while not ended.wait(0.001):
                generate_latest(registry)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for life in range(4):
            with kstore.Store.open(tmp_path / "data", segment_bytes=2000) as store:
                kstore.export_to_prometheus(store, registry)
                if life == 0:
                    store.create_topic("t", 3, cleanup_policy="compact")
                    store.create_topic("u", 3)
                store.append_many("t", [(b"%d" % (n % 9), b"v" * 90) for n in range(60)])
                store.append_many("u", [b"v" * 90] * 60)
                store.commit_offsets("g", {("t", 0): life, ("u", 1): life})
                store.compact("t", roll=True)
                store.delete_topic("u")
                store.create_topic("u", 3)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram([1, 2.5])
    for value in (0, 1, 1.5, 2.5, 3):
        histogram.observe(value)
    assert histogram.stats() == {"count": 5, "sum": 8.0, "buckets": [[1.0, 2], [2.5, 4]]}
    for wrong in ([2, 1], [1, 1], list(range(25))):
        with pytest.raises(ValueError, match="bounds"):
            Histogram(wrong)
    assert Histogram(range(24)).stats()["count"] == 0


def test_threads_that_flush_together_count_as_callers_of_one_sync(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 1)

        def work() -> None:
            for _ in range(20):
                store.append("t", b"v", sync=True)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = store.stats()
        callers, syncs = (stats[key][store.paths[0]] for key in ("sync_callers", "sync_seconds"))  # type: ignore[literal-required]
        assert callers["count"] <= syncs["count"] <= 160
        assert callers["count"] <= callers["sum"] <= 160


@pytest.mark.parametrize(
    ("call", "library", "extra"),
    [
        ("export_to_prometheus", "prometheus_client", "prometheus"),
        ("export_to_opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, call: str, library: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
import kstore
with kstore.Log.open({str(tmp_path / "t-0")!r}) as log:
    try:
        kstore.{call}(log)
    except kstore.ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'kstore[{extra}]'" in done.stdout


def test_importing_kstore_imports_neither_library() -> None:
    code = "import kstore, sys; print([m for m in ('prometheus_client', 'opentelemetry') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("wrong", [None, "store", object()])
def test_what_is_no_source_is_refused_before_a_scrape_would_fail(registry: CollectorRegistry, wrong: Any) -> None:
    with pytest.raises(TypeError, match="source must be a Log, a Store, a Replication or a Backup, not"):
        kstore.export_to_prometheus(wrong, registry)
    with pytest.raises(TypeError, match="source must be a Log, a Store, a Replication or a Backup, not"):
        kstore.export_to_opentelemetry(wrong, MeterProvider())
    assert generate_latest(registry) == b""
