"""The pytest plugin of kstore: fixtures for tests of applications that write to kstore or to Kafka.

pytest imports this module in every run if kstore is installed. So it is outside of the package `kstore`, and imports
only pytest; kstore is imported when a fixture is used.
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
    """Return the keyword arguments of all markers with this name; those nearest to the test take precedence."""
    settings: dict[str, Any] = {}
    for mark in request.node.iter_markers(marker):
        if mark.args:
            raise pytest.UsageError(f"the marker {marker} takes keywords only, not {mark.args[0]!r}")
        settings = {**mark.kwargs, **settings}
    return settings


@pytest.fixture
def kstore_clock() -> ManualClock:
    """Return the clock of `kstore_log`, `kstore_store` and `kstore_crash`, which stands still until `advance` moves it.

    It starts at the system's time. `kstore_clock.advance(timedelta(days=7))` also does the housekeeping that is due
    then: retention, compaction, deletions.
    """
    from kstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def kstore_log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Iterator[Log]:
    """Yield an empty log `test-0` in a new directory; close and verify it at the end.

    `@pytest.mark.kstore_log(segment_bytes=1000)` sets its settings.
    """
    from kstore.testing import checked_log

    settings = _settings(request, "kstore_log")
    with checked_log(tmp_path_factory.mktemp("kstore"), kstore_clock, **settings) as log:
        yield log


@pytest.fixture
def kstore_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Iterator[Store]:
    """Yield an empty store in a new directory; close and verify it at the end.

    `@pytest.mark.kstore_store(topics={"orders": 4}, config={"log.retention.ms": 60000})` sets its topics and settings.
    """
    from kstore.testing import checked_store

    settings = _settings(request, "kstore_store")
    with checked_store(tmp_path_factory.mktemp("kstore"), kstore_clock, **settings) as store:
        yield store


@pytest.fixture
def kstore_crash(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kstore_clock: ManualClock
) -> Crashes:
    """Return the crashes of a test: a power cut and a kill before each of its writes and syncs.

    Use `for crash in kstore_crash():`. `crash.log()` and `crash.store()` use the settings of the markers `kstore_log`
    and `kstore_store`.
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
    """Yield a small Spark session with `format("kstore")`, or the active session if there is one.

    The test is skipped without PySpark.
    """
    pytest.importorskip("pyspark", reason="kstore_spark needs PySpark: pip install 'kstore[spark]'")
    from kstore.testing.spark import session

    with session(tmp_path_factory.mktemp("kstore-spark")) as spark:
        yield spark
