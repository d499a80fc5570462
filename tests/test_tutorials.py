"""The tutorials: each runs from its first to its last command in an empty directory, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.spark_session import environment
from tests.support import pages
from tests.test_docs import REPOSITORY

TUTORIALS = REPOSITORY / "docs" / "tutorials"


@pytest.mark.parametrize("name", ["service", "full-disk"])
def test_a_tutorial_runs_in_an_empty_directory_as_it_stands(name: str, tmp_path: Path) -> None:
    pages.run_whole(TUTORIALS / f"{name}.md", tmp_path)


@pytest.mark.spark
def test_the_tutorial_of_spark_runs_in_an_empty_directory_as_it_stands(tmp_path: Path) -> None:
    quick = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=4"
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    submit = f"{quick} --conf 'spark.driver.extraJavaOptions={java}' pyspark-shell"
    pages.run_whole(TUTORIALS / "pipeline.md", tmp_path, {**environment(), "PYSPARK_SUBMIT_ARGS": submit})
