"""The tutorials: each runs from its first to its last command in an empty directory, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spark.spark_session import environment
from tests.support import pages
from tests.test_docs import REPOSITORY

TUTORIALS = REPOSITORY / "docs" / "tutorials"


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_leads_on_to_headings_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    assert len(links) >= 4
    for file, anchor in links:
        assert (page.parent / file).is_file(), file
        assert not anchor or anchor in pages.anchors(page.parent / file), f"{file}#{anchor}"
    assert f"(tutorials/{page.name})" in (REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["service", "full-disk"])
def test_a_tutorial_runs_in_an_empty_directory_as_it_stands(name: str, tmp_path: Path) -> None:
    pages.run_whole(TUTORIALS / f"{name}.md", tmp_path)


@pytest.mark.spark
def test_the_tutorial_of_spark_runs_in_an_empty_directory_as_it_stands(tmp_path: Path) -> None:
    quick = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=4"
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    submit = f"{quick} --conf 'spark.driver.extraJavaOptions={java}' pyspark-shell"
    pages.run_whole(TUTORIALS / "pipeline.md", tmp_path, {**environment(), "PYSPARK_SUBMIT_ARGS": submit})
