"""workers.py and the fixture: which Python Spark's workers are, and whether Spark finds the format."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kstore.errors import ConfigError
from kstore.spark.workers import refuse_other_python
from kstore.testing import spark as testing


def context(python: object, master: str = "local[2]", **more: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{"master": master, "pythonExec": str(python), "_python_includes": [], "listArchives": [], **more}
    )


def interpreter(path: Path, code: int) -> Path:
    """A program that ends with this code."""
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_workers_of_a_python_without_kstore_are_refused_before_the_job(tmp_path: Path) -> None:
    other = interpreter(tmp_path / "python3", 3)
    for spark in (context(other), SimpleNamespace(sparkContext=context(other))):
        with pytest.raises(ConfigError, match=f"PYSPARK_PYTHON={sys.executable}") as refused:
            refuse_other_python(spark)
        assert str(other) in str(refused.value)


def test_workers_that_may_have_kstore_are_not_refused(tmp_path: Path) -> None:
    other = interpreter(tmp_path / "python3", 3)
    has = interpreter(tmp_path / "python4", 0)
    for spark in (
        context(sys.executable),
        context(has),
        context(tmp_path / "none"),
        context(other, "spark://host:7077"),
        context(other, listArchives=["kstore-package.zip"]),
        SimpleNamespace(),  # as Spark Connect, which has no context
        None,
    ):
        refuse_other_python(spark)


def test_the_fixture_asks_as_spark_does_whether_the_format_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What can be imported, as through the finder of an editable install, is not yet in the list.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not testing._is_found()
    (tmp_path / "pyspark_kstore").mkdir()
    (tmp_path / "pyspark_kstore" / "__init__.py").write_text("")
    assert testing._is_found()
