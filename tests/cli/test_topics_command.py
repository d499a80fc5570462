"""`kstore topics`: lists, creates, changes and deletes topics as the store does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore
from tests.support.printed import Printed

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.fixture
def data(root: Path) -> Path:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=2, config={"segment.bytes": "2000", "retention.ms": "1000"})
        store.create_topic("teas")
        store.append_many("orders", [b"v" * 100] * 30, partition=1)
        store.log("orders", 1).roll()
        store.append_many("orders", [(None, b"v", 1, None)] * 2, partition=1)
        store.commit_offsets("g", {("orders", 1): 3})
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_list_has_sizes_records_and_settings(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    found = Printed(capsys, "topics", data)
    assert (found.code, found.err) == (0, "")
    rows = {line.split()[0]: line for line in found.out.splitlines()}
    assert list(rows) == ["topic", "__consumer_offsets", "orders", "teas"]
    assert rows["orders"].split()[1:3] == ["2", "32"]
    assert rows["orders"].endswith("retention.ms=1000 segment.bytes=2000")
    facts = {each["topic"]: each for each in Printed(capsys, "topics", data, "--json").json["topics"]}
    assert facts["orders"]["size_bytes"] == sum(path.stat().st_size for path in data.glob("orders-*/*.log"))
    assert facts["orders"]["config"] == {"retention.ms": "1000", "segment.bytes": "2000"}
    assert facts["teas"]["records"] == 0
    assert list(Printed(capsys, "topics", data, "teas", "--json").json["topics"]) == [facts["teas"]]
    assert contents(data) == before


def test_a_topic_is_created_changed_and_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "new"
    made = Printed(capsys, "topics", root, "orders", "--create", "--partitions", 3, "-c", "segment.bytes=5000")
    assert (made.code, made.out.splitlines()[-1]) == (
        0,
        "topic orders: created; it has 3 partitions, segment.bytes=5000",
    )
    again = Printed(capsys, "topics", root, "orders", "--create")
    assert (again.code, again.err) == (1, "kstore topics: topic orders exists\n")
    how = ["--partitions", 4, "-c", "retention.ms=7", "--unset", "segment.bytes", "--json"]
    assert Printed(capsys, "topics", root, "orders", "--alter", *how).json["partitions"] == 4
    with kstore.Store.open(root, "r") as store:
        assert store.partitions("orders") == (0, 1, 2, 3)
        assert store.topic_config("orders").explicit == {"retention_ms"}
    assert Printed(capsys, "topics", root, "orders", "--delete", "--yes").code == 0
    assert Printed(capsys, "topics", root).out == "there is no topic\n"


def test_a_deletion_needs_yes_and_leaves_no_file_of_the_topic(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    told = Printed(capsys, "topics", data, "orders", "--delete")
    assert told.code == 1
    assert told.out.splitlines()[-1] == "32 records would be lost; nothing was changed: --yes does it"
    assert contents(data) == before
    done = Printed(capsys, "topics", data, "orders", "--delete", "--yes", "--json")
    assert (done.code, done.json["done"]) == (0, "deleted")
    assert not [path for path in data.iterdir() if path.name.startswith("orders")]
    with kstore.Store.open(data, "r") as store:
        assert store.committed_offsets("g") == {}


def test_a_deletion_runs_no_retention_of_other_topics(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(data.glob("orders-1/*.log"))
    assert Printed(capsys, "topics", data, "teas", "--delete", "--yes").code == 0
    assert sorted(data.glob("orders-1/*.log")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--create"], 2, "name the topic"),
        (["orders", "--create", "--delete"], 2, "not allowed with"),
        (["orders", "--partitions", "3"], 2, "goes with --create or --alter"),
        (["orders", "--delete", "-c", "retention.ms=1"], 2, "--config goes with"),
        (["orders", "--create", "--unset", "retention.ms"], 2, "--unset goes with --alter"),
        (["orders", "--yes"], 2, "--yes goes with --delete"),
        (["orders", "--alter"], 2, "--alter needs"),
        (["orders", "--alter", "--partitions", "2", "-c", "retention.ms=5"], 2, "topic orders has 2 partitions"),
        (["orders", "--alter", "--partitions", "0"], 2, "1 is the least"),
        (["orders", "--alter", "-c", "segment.bites=5"], 1, "segment.bites"),
        (["orders", "--alter", "--unset", "segment.bites"], 1, "segment.bites"),
        (["new", "--create", "-c", "segment.bytes=many"], 1, "'many' is no int"),
        (["a/b", "--create"], 1, "a/b"),
        (["oders"], 1, "there is no topic 'oders'"),
        (["oders", "--alter", "--partitions", "5"], 1, "there is no topic 'oders'"),
        (["oders", "--delete", "--yes"], 1, "there is no topic 'oders'"),
    ],
)
def test_a_mistake_is_named_and_changes_no_topic(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    table = (data / "kstore-topics.json").read_bytes()
    names = sorted(path.name for path in data.glob("*-*"))
    found = Printed(capsys, "topics", data, *arguments)
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert (data / "kstore-topics.json").read_bytes() == table
    assert [name for name in sorted(path.name for path in data.glob("*-*")) if name in names] == names


def test_topics_of_a_store_in_use_are_listed_but_not_changed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(data, background=False) as store:
        assert Printed(capsys, "topics", data).code == 0
        for change in (["new", "--create"], ["teas", "--alter", "--partitions", 2], ["teas", "--delete", "--yes"]):
            found = Printed(capsys, "topics", data, *change)
            assert (found.code, "locked by this process" in found.err) == (1, True)
        assert store.partitions("teas") == (0,)


def test_a_partition_that_cannot_be_read_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(data / "orders-1")
    found = Printed(capsys, "topics", data)
    assert found.code == 1
    assert found.err.startswith("kstore topics: orders-1: ")
    assert "the partition's directory is missing" in found.err
    assert "teas" in found.out
