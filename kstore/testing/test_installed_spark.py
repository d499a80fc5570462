"""A test of an installed kstore in Spark: `pytest --pyargs kstore.testing.test_installed_spark`, in half a minute.

Spark lists the modules of a Python to find `format("kstore")`. It finds that of a wheel, and not that of an editable
install, in which the tests of the repository run. The test needs PySpark, PyArrow, pandas, and Java 17.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections import Counter
from pathlib import Path

import pytest

import kstore
from kstore.testing.spark import session

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="PySpark is not installed")

PATIENCE_S = 120


def test_spark_finds_the_format_by_itself_for_loads_scans_and_streams(tmp_path: Path) -> None:
    assert "pyspark_kstore" in {module.name for module in pkgutil.iter_modules()}
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    with session(tmp_path) as spark:
        frame = spark.range(100).selectExpr("CAST(id AS string) AS key", "'value' AS value")
        frame.write.format("kstore").mode("append").option("topic", "t").option("partitions", 2).save(source)
        assert spark.read.format("kstore").option("subscribe", "t").load(source).count() == 100
        rows = spark.readStream.format("kstore").option("subscribe", "t").option("startingOffsets", "earliest")
        query = (
            rows.load(source)
            .writeStream.format("kstore")
            .option("topic", "copy")
            .option("partitions", 2)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(target)
        )
        assert query.awaitTermination(PATIENCE_S)
    with kstore.Store.open(source, "r") as one, kstore.Store.open(target, "r") as other:
        copied = Counter((record.key, record.value) for record in other.read("copy"))
        assert copied == Counter((record.key, record.value) for record in one.read("t"))
        assert copied.total() == 100
