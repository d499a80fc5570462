"""`kstore delete-records` and `kstore truncate`: what a dry run says would go is what goes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kstore
from tests.support.printed import Printed

pytestmark = pytest.mark.usefixtures("no_syncs")

START = 1_370_073_600_000  # 2013-06-01T08:00Z


@pytest.fixture
def log(root: Path) -> Path:
    """A partition of ten batches of five records, a batch a minute, two batches in a segment."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders")
        log = store.log("orders", 0)
        for minute in range(10):
            log.append_many([(None, b"v", START + minute * 60_000, None)] * 5, atomic=True)
            if minute % 2:
                log.roll()
    return root / "orders-0"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def marks(path: Path) -> tuple[int, int]:
    with kstore.Log.open(path, "r") as log:
        return log.log_start_offset, log.log_end_offset


@pytest.mark.parametrize(
    ("where", "start", "segments"),
    [("0", 0, 0), ("9", 9, 0), ("10", 10, 1), ("23", 23, 2), ("latest", 50, 5), ("earliest", 0, 0),
     ("2013-06-01T08:03", 15, 1), ("2033-01-01", 50, 5)],
)  # fmt: skip
def test_records_are_deleted_up_to_an_offset_or_a_time(
    log: Path, capsys: pytest.CaptureFixture[str], where: str, start: int, segments: int
) -> None:
    before = contents(log.parent)
    planned = Printed(capsys, "delete-records", log, "--before", where, "--dry-run", "--json")
    assert contents(log.parent) == before
    done = Printed(capsys, "delete-records", log.parent / "orders", "--before", where, "--json")
    assert (planned.code, done.code) == (0, 0)
    assert planned.json["partitions"] == done.json["partitions"]
    [facts] = done.json["partitions"]
    assert (facts["before"], facts["log_start_offset"], facts["segments_below"]) == (0, start, segments)
    assert marks(log) == (start, 50)


def test_the_text_says_what_goes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Printed(capsys, "delete-records", log, "--before", 23, "--dry-run").out
    assert told.startswith("orders-0: would delete offsets 0 to 22; log start 23, 2 segments below it, ")
    assert Printed(capsys, "delete-records", log, "--before", 23).out.startswith("orders-0: deleted offsets 0 to 22; ")
    told = Printed(capsys, "delete-records", log, "--before", 7).out
    assert told == "orders-0: nothing to delete: the log starts at 23\n"
    assert Printed(capsys, "truncate", log, "--to", 50).out == "orders-0: nothing to cut: the log ends at 50\n"
    told = Printed(capsys, "truncate", log, "--to", 28, "--dry-run").out.splitlines()
    assert told[0].startswith("orders-0: would cut offsets 25 to 49, ")
    assert told[0].endswith(", 3 segments as a whole; the log ends at 25")
    assert told[1:] == ["  3 offsets below 28 among them, in one batch with it"]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_what_kafka_refuses_to_delete_is_refused(
    log: Path, capsys: pytest.CaptureFixture[str], dry_run: list[str]
) -> None:
    found = Printed(capsys, "delete-records", log, "--before", 51, *dry_run)
    assert (found.code, "offset 51 is above the log end 50" in found.err) == (1, True)
    with kstore.Store.open(log.parent, background=False) as store:
        store.update_topic_config("orders", {"cleanup.policy": "compact"})
        store.commit_offsets("g", {("orders", 0): 1})
    assert "cleanup.policy is compact" in Printed(capsys, "delete-records", log, "--before", 5, *dry_run).err
    internal = log.parent / "__consumer_offsets"
    assert "internal topic" in Printed(capsys, "delete-records", internal, "--before", "latest", *dry_run).err
    assert marks(log) == (0, 50)


def test_a_truncation_does_what_its_dry_run_says_at_any_offset(
    log: Path, capsys: pytest.CaptureFixture[str], rng: random.Random
) -> None:
    """Also after the log was opened again: the log ends between batches."""
    Printed(capsys, "delete-records", log, "--before", 12)
    end = 50
    while end > 12:
        offset = rng.randrange(12, end + 2)
        before = contents(log.parent)
        size = sum(path.stat().st_size for path in log.glob("*.log"))
        planned = Printed(capsys, "truncate", log, "--to", offset, "--dry-run", "--json").json
        assert contents(log.parent) == before
        done = Printed(capsys, "truncate", log, "--to", offset, "--json").json
        assert planned | {"dry_run": False} == done
        end = max(offset // 5 * 5, 12) if offset < end else end
        assert done["log_end_offset"] == end
        assert done["bytes"] == size - sum(path.stat().st_size for path in log.glob("*.log"))
        assert marks(log) == (12, end)
    assert Printed(capsys, "verify", log).code == 0


@pytest.mark.parametrize(
    ("command", "arguments", "code", "message"),
    [
        ("truncate", ["--to", "3"], 1, "offset 3 is below the log start 12"),
        ("truncate", ["--to", "-3"], 2, "0 is the least"),
        ("truncate", ["--to", "x"], 2, "'x' is no whole number"),
        ("truncate", [], 2, "--to"),
        ("delete-records", ["--before", "yesterday"], 2, "'yesterday' is no time"),
        ("delete-records", [], 2, "--before"),
    ],
)
def test_bad_arguments_are_named(
    log: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], code: int, message: str
) -> None:
    Printed(capsys, "delete-records", log, "--before", 12)
    found = Printed(capsys, command, log, *arguments)
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert marks(log) == (12, 50)


def test_a_topic_is_not_truncated_and_a_directory_neither(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (log.parent, log.parent / "orders", log.parent / "oders-0", "s3://bucket/orders-0"):
        assert Printed(capsys, "truncate", path, "--to", 20).code == 1
    for path in (log.parent, log.parent / "oders-0", "s3://bucket/orders-0"):
        assert Printed(capsys, "delete-records", path, "--before", 20).code == 1
    assert marks(log) == (0, 50)


def test_a_log_in_use_is_not_cut(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Store.open(log.parent, background=False):
        for command, option in (("truncate", "--to"), ("delete-records", "--before")):
            assert Printed(capsys, command, log, option, 20, "--dry-run").code == 0
            found = Printed(capsys, command, log, option, 20)
            assert (found.code, "locked by this process" in found.err) == (1, True)
    assert marks(log) == (0, 50)
