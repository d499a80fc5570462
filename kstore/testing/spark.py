"""A small Spark session for tests, with `format("kstore")`."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from kstore.base import optional

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""Settings for a session that starts quickly, stays on this machine, and passes filters to the data source."""


@contextmanager
def session(directory: str | os.PathLike[str]) -> Iterator[SparkSession]:
    """Start a session with two cores and with its warehouse in `directory`, and stop it at the end.

    A session that is active already is used instead, and is not stopped. If Spark does not find the format by itself,
    as in an editable install, it is registered. Spark needs Java 17 or newer. Raises `ConfigError` without PySpark.
    """
    sql = optional.pyspark("a Spark session", "pyspark.sql")
    active = sql.SparkSession.getActiveSession()
    if active is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = sql.SparkSession.builder.master("local[2]").appName("kstore-testing")
        places = {"spark.sql.warehouse.dir": os.path.join(directory, "warehouse")}
        for name, value in (SETTINGS | places).items():
            builder = builder.config(name, value)
        started = builder.getOrCreate()
    else:
        started = active
    if not _is_found():
        from kstore.spark.datasource import KStoreSource

        started.dataSource.register(KStoreSource)
    try:
        yield cast("SparkSession", started)
    finally:
        if active is None:
            started.stop()


def _is_found() -> bool:
    """Return whether Spark finds the format by itself: it lists modules, and an editable install is not listed."""
    return any(module.name == "pyspark_kstore" for module in pkgutil.iter_modules())
