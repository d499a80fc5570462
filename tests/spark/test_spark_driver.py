"""What `ingest` says on the driver when its cleaning up meets an error; a job of plain calls stands in for Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore import StorageError, Store
from kstore import spark as ks
from kstore.disk import fs


class Rows:
    """What `ingest` needs of an RDD; `after` is called when its tasks have run."""

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self.after = after

    def mapPartitions(self, function: Callable[[Any], Any]) -> Rows:
        self.function = function
        return self

    def collect(self) -> list[Any]:
        found = list(self.function([b"a", b"b"]))
        list(self.function([b"a"]))  # an attempt that loses
        self.after()
        return found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staging directory that cannot be listed any more, once all that is in it has been read."""
    scandir = fs.scandir

    def refuse(path: Any) -> Any:
        if ".kstore-staging" in str(path) and not str(path).rpartition("/")[2].startswith(("task-", "t-")):
            raise StorageError(5, "gone meanwhile", path)
        return scandir(path)

    monkeypatch.setattr(fs, "scandir", refuse)


@pytest.mark.usefixtures("failing")
def test_a_commit_that_took_place_is_told_of_though_cleaning_up_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kstore"):
        done = ks.ingest(Rows(), tmp_path / "logs", topic="t", partitions=1)
    assert (done.records, done.duplicate) == (2, False)
    assert "staged files stay behind" in caplog.text
    with Store.open(tmp_path / "logs", "r") as store:
        assert [record.value for record in store.log("t", 0).read()] == [b"a", b"b"]


@pytest.mark.usefixtures("failing")
def test_a_job_that_failed_raises_its_own_error_though_cleaning_up_fails(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the job's")

    with pytest.raises(RuntimeError, match="the job's"):
        ks.ingest(Rows(fail), tmp_path / "logs", topic="t", partitions=1)
