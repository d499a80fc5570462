"""`kstore become-leader`: a copy takes over, with a new leader epoch that is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore.files.follower_file import FollowerRole, follow


@pytest.fixture
def copy(root: Path) -> Path:
    """A follower with topic `orders` of two partitions."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 2)
        for number in range(3):
            store.log("orders", 0).append(b"order %d" % number)
    follow([root], FollowerRole(("/srv/leader",), None))
    return root


def test_a_follower_leads_and_its_epochs_are_told(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["append", str(copy / "orders-0")]) == 1
    assert "/srv/leader" in capsys.readouterr().err
    assert cli.main(["become-leader", str(copy)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["partition", "leader", "epoch", "begins", "at"],
        ["orders-0", "1", "3"],
        ["orders-1", "1", "0"],
        [str(copy), "leads", "now;", "it", "followed", "/srv/leader"],
    ]
    with kstore.Store.open(copy, background=False) as store:
        assert store.log("orders", 0).append(b"goes on") == 3


def test_json_has_the_epochs_and_a_leader_gets_new_ones(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for followed, epoch in ((["/srv/leader"], 1), (None, 2)):
        assert cli.main(["become-leader", "--json", str(copy)]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["followed"] == followed
        assert facts["partitions"] == [
            {"topic": "orders", "partition": 0, "leader_epoch": epoch, "start_offset": 3},
            {"topic": "orders", "partition": 1, "leader_epoch": epoch, "start_offset": 0},
        ]


def test_there_has_to_be_something_to_lead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none", tmp_path):
        assert cli.main(["become-leader", str(path)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_and_a_damaged_role_are_one_line(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(copy, background=False):
        assert cli.main(["become-leader", str(copy)]) == 1
    assert "locked by" in capsys.readouterr().err
    (copy / "kstore-follower.json").write_text("{")
    assert cli.main(["become-leader", str(copy)]) == 1
    assert "kstore-follower.json" in capsys.readouterr().err
