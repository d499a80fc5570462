"""The fixture `kstore_spark`: a session that knows the format, in runs of pytest of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.spark.spark_session import environment

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]

MORE = """
import pytest
from pyspark.sql import SparkSession
from kstore.testing.spark import session

def test_a_session_that_is_active_is_taken_and_left_open(kstore_spark, tmp_path):
    assert SparkSession.getActiveSession() is kstore_spark
    with session(tmp_path) as taken:
        assert taken is kstore_spark
    assert kstore_spark.range(3).count() == 3
"""


@pytest.fixture
def prepared(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs of pytest in processes of their own, with the plugin and what Spark needs."""
    found = environment()
    found["PYTHONPATH"] += os.pathsep + str(REPOSITORY / "kstore" / "testing" / "discovery")
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return pytester


def test_a_session_reads_and_writes_the_format_as_the_page_shows(prepared: pytest.Pytester) -> None:
    page = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python spark\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    prepared.makepyfile(example + MORE)
    prepared.runpytest_subprocess("-p", "pytest_kstore", "-p", "no:cacheprovider").assert_outcomes(passed=2)
