"""What the tests of `kstore replicate`, `backup` and `restore` share: a source, a call of the command, contents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli

RECORDS = 100


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run("backup", source, "--to", url)`: what is printed; `code=1`: the complaint, which is one line."""

    def go(*arguments: object, code: int = 0) -> str:
        assert cli.main([str(each) for each in arguments]) == code
        printed = capsys.readouterr()
        if code == 0:
            assert printed.err == ""
            return printed.out
        assert printed.err.count("\n") == 1, printed.err
        return printed.err

    return go


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Topic `orders` of two partitions with several segments, and `payments`."""
    root = tmp_path / "data"
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 2, config={"segment.bytes": "1000"})
        store.create_topic("payments")
        for number in range(RECORDS):
            store.append("orders", b"order %d" % number, key=b"customer %d" % (number % 7))
        store.append("payments", b"12.50")
    return root


def content(root: Path) -> dict[str, bytes]:
    """Every file below a directory, with its bytes."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def batches(root: Path) -> dict[str, bytes]:
    """The bytes of each partition's log, over all segments."""
    logs: dict[str, bytes] = {}
    for path in sorted(root.glob("*/*.log")):
        logs[path.parent.name] = logs.get(path.parent.name, b"") + path.read_bytes()
    return logs


def facts_until(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if wanted(json.loads(line)):
            return
    raise AssertionError(f"it ended: {process.stderr.read() if process.stderr else ''}")
