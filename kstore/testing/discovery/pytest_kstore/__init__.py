"""The pytest plugin of kstore: fixtures for tests of applications that write to kstore or to Kafka.

pytest imports this module in every run where kstore is installed. So it imports nothing but pytest: what a fixture
needs of kstore is imported when the fixture is used. It lies outside of the package `kstore`, whose import would be
part of each run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from kstore import Log, Store
    from kstore.testing import Crashes, ManualClock

__all__ = ["kstore_clock", "kstore_crash", "kstore_log", "kstore_spark", "kstore_store"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kstore_log(**settings): what kstore.Log.open gets for the fixture kstore_log")
    config.addinivalue_line(
        "markers",
        "kstore_store(topics={}, **settings): the topics of the fixture kstore_store, and what kstore.Store.open gets",
    )


def _settings(request: pytest.FixtureRequest, marker: str) -> dict[str, Any]:
    """The keywords of the markers of this name; the nearest to the test wins."""
    settings: dict[str, Any] = {}
    for mark in request.node.iter_markers(marker):
        if mark.args:
            raise pytest.UsageError(f"the marker {marker} takes keywords only, not {mark.args[0]!r}")
        settings = {**mark.kwargs, **settings}
    return settings


@pytest.fixture
def kstore_clock() -> ManualClock:
    """A clock that stands still until `advance` moves it; `kstore_log`, `kstore_store` and `kstore_crash` follow it.

    It begins at the system's time. `kstore_clock.advance(timedelta(days=7))` also does what is due then: retention,
    compaction, deletions.
    """
    from kstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def kstore_log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Iterator[Log]:
    """An empty log `test-0` in a directory of its own; at the end it is closed and verified.

    `@pytest.mark.kstore_log(segment_bytes=1000)` gives it settings.
    """
    from kstore.testing import checked_log

    settings = _settings(request, "kstore_log")
    with checked_log(tmp_path_factory.mktemp("kstore"), kstore_clock, **settings) as log:
        yield log


@pytest.fixture
def kstore_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Iterator[Store]:
    """An empty store in a directory of its own; at the end it is closed and verified.

    `@pytest.mark.kstore_store(topics={"orders": 4}, config={"log.retention.ms": 60000})` gives it topics and settings.
    """
    from kstore.testing import checked_store

    settings = _settings(request, "kstore_store")
    with checked_store(tmp_path_factory.mktemp("kstore"), kstore_clock, **settings) as store:
        yield store


@pytest.fixture
def kstore_crash(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Crashes:
    """Crashes: `for crash in kstore_crash():` cuts the power, or kills the process, before each write and sync.

    `crash.log()` and `crash.store()` take the settings of the markers `kstore_log` and `kstore_store`.
    """
    from kstore.testing import Crashes

    return Crashes(
        tmp_path_factory.mktemp("kstore"),
        kstore_clock,
        log=_settings(request, "kstore_log"),
        store=_settings(request, "kstore_store"),
    )


@pytest.fixture(scope="session")
def kstore_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small Spark session that knows `format("kstore")`; the one that is active, if there is one.

    Without PySpark the test is skipped.
    """
    pytest.importorskip("pyspark", reason="kstore_spark needs PySpark: pip install 'kstore[spark]'")
    from kstore.testing.spark import session

    with session(tmp_path_factory.mktemp("kstore-spark")) as spark:
        yield spark
