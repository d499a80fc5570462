"""`kstore adopt`: it says what it has appended, and that a job was adopted before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore import cli
from kstore.cli.commands import adopt_command
from tests.support.copycommands import run as run
from tests.support.uploading import stored, upload_job, values

pytestmark = pytest.mark.usefixtures("no_syncs")


def test_a_job_is_appended_once_and_its_offsets_are_told(tmp_path: Path, run: Callable[..., str]) -> None:
    url, root = upload_job(f"file://{tmp_path}/bucket"), tmp_path / "data"
    assert run("adopt", url, "--to", root).splitlines()[:2] == [
        "orders-0: offsets 0 to 99",
        "orders-1: offsets 0 to 99",
    ]
    assert "nothing is appended" in run("adopt", url, "--to", root)
    assert json.loads(run("adopt", url, "--to", root, "--json"))["duplicate"] is True
    other = upload_job(f"file://{tmp_path}/bucket", tasks=1, count=4)
    told = json.loads(run("adopt", other, "--to", root, "--json"))
    assert told["records"] == 4
    assert told["partitions"][1] == {"topic": "orders", "partition": 1, "first_offset": 100, "last_offset": 101}
    assert [len(each) for each in stored(root)] == [102, 102]
    assert [each[:100] for each in stored(root)] == values(2, 100)


def test_a_job_that_is_not_there_is_one_line_and_no_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket" / "job").mkdir(parents=True)
    assert cli.main(["adopt", f"file://{tmp_path}/bucket/job", "--to", str(tmp_path / "data")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no manifest.json: the job is not finished" in line
    assert stored(tmp_path / "data") == []


def test_the_help_names_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        adopt_command.run(["--help"])
    assert ended.value.code == 0
    assert "--to DIR" in capsys.readouterr().out
