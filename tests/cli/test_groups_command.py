"""`kstore groups`: positions and lag as the store has them, and changes only of what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.printed import Printed

pytestmark = pytest.mark.usefixtures("no_syncs")

HOUR = 3_600_000
START = 1_370_073_600_000  # 2013-06-01T08:00Z


@pytest.fixture
def data(root: Path) -> Path:
    """`orders` with 10 records in each of two partitions, one an hour; `billing` has read 4 of the first."""
    with kstore.Store.open(root, background=False, clock=lambda: START + 10 * HOUR) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("teas")
        for number in range(2):
            for hour in range(10):
                store.log("orders", number).append(b"v", timestamp=START + hour * HOUR)
        store.log("orders", 1).delete_records(3)
        store.commit_offsets("billing", {("orders", 0): 4}, metadata="invoice\x1b[31m")
        store.commit_offsets("shipping", {("orders", 0): 12, ("orders", 1): 10, ("gone", 0): 5})
    return root


def positions(root: Path, group: str = "billing") -> dict[tuple[str, int], int]:
    with kstore.Store.open(root, "r") as store:
        return {place: int(offset) for place, offset in store.committed_offsets(group).items()}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_list_has_each_group_with_its_total_lag(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    found = Printed(capsys, "groups", data)
    assert (found.code, found.err) == (0, "")
    rows = [line.split() for line in found.out.splitlines()]
    assert rows[0] == ["group", "topics", "partitions", "lag", "last", "commit"]
    assert rows[1] == ["billing", "1", "2", "13", "2013-06-01T18:00:00.000Z"]
    assert rows[2][:4] == ["shipping", "2", "3", "0"]  # -2 counts as 0 in the total
    assert contents(data) == before
    told = Printed(capsys, "groups", data, "--json").json["groups"]
    assert [(each["group"], each["lag"]) for each in told] == [("billing", 13), ("shipping", 0)]
    of_topic = Printed(capsys, "groups", data, "--topic", "gone", "--json").json["groups"]
    assert [each["group"] for each in of_topic] == ["shipping"]


def test_a_group_is_shown_partition_by_partition_with_its_text_escaped(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Printed(capsys, "groups", data, "billing")
    assert found.code == 0
    assert [line.split() for line in found.out.splitlines()[1:]] == [
        ["orders-0", "4", "10", "6", "2013-06-01T18:00:00.000Z", "invoice\\x1b[31m"],
        ["orders-1", "-", "10", "7", "-"],
        ["lag", "13", "in", "2", "partitions"],
    ]
    facts = Printed(capsys, "groups", data, "shipping", "--json").json["partitions"]
    assert [(each["topic"], each["partition"], each["position"], each["lag"]) for each in facts] == [
        ("gone", 0, 5, None),
        ("orders", 0, 12, -2),
        ("orders", 1, 10, 0),
    ]


def test_the_lag_is_that_of_the_statistics_while_a_store_writes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(data, background=False) as store:
        store.append("orders", b"v", partition=1)
        facts = Printed(capsys, "groups", data, "billing", "--json").json
        told = {f"{each['topic']}-{each['partition']}": each["lag"] for each in facts["partitions"]}
        assert told == store.stats()["group_lag"]["billing"] == {"orders-0": 6, "orders-1": 8}


def test_what_a_reading_process_has_committed_counts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(data, "r") as reader, reader.consumer("audit", ["orders"]) as consumer:
        consumer.poll(max_records=500)
        consumer.commit()
        found = Printed(capsys, "groups", data, "audit", "--json")
        assert (found.code, found.json["lag"]) == (0, 0)
    assert Printed(capsys, "groups", data, "audit", "--reset-to", "earliest").code == 0
    assert positions(data, "audit") == {("orders", 0): 0, ("orders", 1): 3}
    assert Printed(capsys, "groups", data, "audit", "--delete").code == 0
    assert positions(data, "audit") == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--reset-to", "earliest"], {0: 0, 1: 3}),
        (["--reset-to", "latest"], {0: 10, 1: 10}),
        (["--reset-to", "5"], {0: 5, 1: 5}),
        (["--reset-to", "1"], {0: 1, 1: 3}),  # moved into the log, as in Kafka's tool
        (["--reset-to", "11"], {0: 10, 1: 10}),
        (["--reset-to", "2013-06-01T14:30"], {0: 7, 1: 7}),
        (["--reset-to", "2033-01-01"], {0: 10, 1: 10}),
        (["--reset-to", "5", "--partition", "1"], {0: 4, 1: 5}),
        (["--reset-to", "5", "--partition", "1", "--topic", "orders"], {0: 4, 1: 5}),
        (["--shift-by", "-3", "--partition", "0"], {0: 1}),
        (["--shift-by", "-5", "--partition", "0"], {0: 0}),
        (["--shift-by", "100", "--partition", "0"], {0: 10}),
    ],
)
def test_a_reset_sets_exactly_these_positions_and_a_dry_run_none(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: dict[int, int]
) -> None:
    before = contents(data)
    planned = Printed(capsys, "groups", data, "billing", *arguments, "--dry-run", "--json")
    assert (planned.code, planned.err) == (0, "")
    assert contents(data) == before
    done = Printed(capsys, "groups", data, "billing", *arguments, "--json")
    assert done.code == 0
    assert done.json["partitions"] == planned.json["partitions"]
    assert positions(data) == {("orders", number): offset for number, offset in expected.items()}


def test_a_reset_of_a_topic_makes_a_new_group(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "groups", data, "new", "--topic", "teas", "--reset-to", "earliest")
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[-1] == "1 position set"
    assert positions(data, "new") == {("teas", 0): 0}


def test_what_cannot_be_reset_is_named_and_the_rest_is_set(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "groups", data, "shipping", "--reset-to", "earliest")
    assert found.code == 1
    assert found.err == "kstore groups: gone-0: the partition is not here, and position 5 stays\n"
    assert positions(data, "shipping") == {("gone", 0): 5, ("orders", 0): 0, ("orders", 1): 3}
    found = Printed(capsys, "groups", data, "billing", "--shift-by", "1")
    assert (found.code, "orders-1: there is no position to shift" in found.err) == (1, True)
    assert positions(data) == {("orders", 0): 5}


def test_positions_are_deleted_by_topic_or_all(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    found = Printed(capsys, "groups", data, "shipping", "--delete", "--topic", "gone", "--dry-run")
    assert (found.code, found.out.splitlines()[-1]) == (0, "1 position would be deleted")
    assert contents(data) == before
    assert Printed(capsys, "groups", data, "shipping", "--delete", "--topic", "gone").code == 0
    assert positions(data, "shipping") == {("orders", 0): 12, ("orders", 1): 10}
    assert Printed(capsys, "groups", data, "shipping", "--delete").code == 0
    assert positions(data, "shipping") == {}
    found = Printed(capsys, "groups", data, "shipping")
    assert found.code == 1
    assert found.err == "kstore groups: group 'shipping' has no position; there is billing\n"


def test_a_store_in_use_is_shown_but_not_changed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(data, background=False):
        assert Printed(capsys, "groups", data, "billing", "--reset-to", "latest", "--dry-run").code == 0
        found = Printed(capsys, "groups", data, "billing", "--reset-to", "latest")
        assert (found.code, found.out) == (1, "")
        assert "locked by this process" in found.err
    assert positions(data) == {("orders", 0): 4}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--reset-to", "latest"], 2, "name the group"),
        (["billing", "--reset-to", "soon"], 2, "'soon' is no time"),
        (["billing", "--reset-to", "9999999999999999999"], 2, "is the most"),
        (["billing", "--reset-to", "latest", "--delete"], 2, "not allowed with"),
        (["billing", "--dry-run"], 2, "--dry-run goes with"),
        (["bill\x1b[0ming"], 1, "group 'bill\\x1b[0ming' has no position; there is billing, shipping"),
        (["billing", "--reset-to", "latest", "--topic", "oders"], 1, "there is no topic 'oders'"),
        (["billing", "--reset-to", "latest", "--topic", "orders", "--partition", "2"], 1, "has no partition 2"),
        (["billing", "--reset-to", "latest", "--partition", "2"], 1, "reads no such partition"),
        (["billing", "--topic", "teas"], 1, "reads no such partition"),
        (["billing", "--delete", "--partition", "1"], 1, "has no position there"),
    ],
)
def test_mistakes_are_named_and_nothing_changes(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    before = contents(data)
    found = Printed(capsys, "groups", data, *arguments)
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert contents(data) == before


def test_a_missing_directory_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["g", "--delete"], ["g", "--reset-to", "latest"]):
        assert Printed(capsys, "groups", tmp_path / "no", *more).code == 1
    assert not (tmp_path / "no").exists()


def test_the_directories_of_one_store_are_given_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with kstore.Store.open(roots, background=False) as store:
        store.create_topic("t", partitions=4)
        for number in range(4):
            store.append("t", b"v", partition=number)
        store.commit_offsets("g", {("t", 0): 1})
    found: Any = Printed(capsys, "groups", roots[0], "--log-dir", roots[1], "g", "--json").json
    assert [each["lag"] for each in found["partitions"]] == [0, 1, 1, 1]
