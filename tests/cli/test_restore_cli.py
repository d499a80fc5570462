"""`kstore restore`: it says first what it will do, does that, and refuses what does not fit without a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore.cli.command_options import UsageError
from kstore.cli.commands import object_store_options
from kstore.copies.backups.backup import back_up_directory
from tests.support.copycommands import batches, content
from tests.support.copycommands import run as run
from tests.support.handmade import HandmadeBackup

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
FIRST, SECOND = "orders-0", "orders-1"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def backup(source: Path, tmp_path: Path) -> Path:
    """Topic `orders` of two partitions and `payments`, backed up at noon and, with more, an hour later."""
    made = HandmadeBackup(tmp_path / "backup")
    with kstore.Store.open(source, background=False) as store:
        store.create_topic("orders", 2, config={"segment.bytes": "1000"})
        store.create_topic("payments")
        for number in range(100):
            store.log("orders", number % 2).append(b"order %d" % number)
        store.append("payments", b"at noon")
        made.round(store, NOON)
        store.append("payments", b"at one")
        made.round(store, NOON + 3_600_000)
    return made.path


def test_partitions_of_different_moments_are_told_of(
    backup: Path, source: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    into = tmp_path / "restored"
    assert "another process" not in run("restore", backup, into, "--dry-run")
    with kstore.Store.open(source, background=False):
        back_up_directory(source, str(tmp_path / "live")).close()
    assert "a transaction may be in one partition and not in another" in run(
        "restore", tmp_path / "live", into, "--dry-run"
    )
    assert json.loads(run("restore", tmp_path / "live", into, "--json"))["together"] is False


def test_a_restore_says_first_what_it_will_do_and_does_it(
    source: Path, backup: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    *plan, last = run("restore", backup, tmp_path / "restored").splitlines()
    assert plan[0].endswith("round 2, as of 2013-06-01T13:00:00.000Z")
    assert [line.split()[0] for line in plan[1:-1]] == ["partition", FIRST, SECOND, "payments-0"]
    assert plan[4].split()[:3] == ["payments-0", "0", "2"]
    assert plan[-1].endswith(f"into {tmp_path / 'restored'}")
    assert last.startswith("restored round 2, as of 2013-06-01T13:00:00.000Z, ")
    assert batches(tmp_path / "restored") == batches(source)


def test_a_dry_run_says_the_same_and_writes_nothing(backup: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    before = content(backup)
    *plan, last = run("restore", backup, tmp_path / "restored", "--dry-run").splitlines()
    assert last == "nothing was written"
    assert not (tmp_path / "restored").exists()
    assert run("restore", backup, tmp_path / "restored").splitlines()[:-1] == plan
    assert content(backup) == before


def test_json_is_one_object_with_the_same_facts(backup: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    plan = json.loads(run("restore", backup, tmp_path / "restored", "--dry-run", "--json"))
    done = json.loads(run("restore", backup, tmp_path / "restored", "--json"))
    assert (plan.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert plan.pop("fetched_bytes") == 0
    assert done.pop("fetched_bytes") == done["bytes"]
    assert plan.pop("seconds") >= 0
    assert done.pop("seconds") >= 0
    assert plan == done
    assert [(part["topic"], part["partition"]) for part in done["partitions"]] == [
        ("orders", 0),
        ("orders", 1),
        ("payments", 0),
    ]


@pytest.mark.parametrize("until", ["2013-06-01T12:59", str(NOON), "2013-06-01T14:30+02:00"])
def test_one_topic_as_of_a_time(
    source: Path, backup: Path, tmp_path: Path, run: Callable[..., str], until: str
) -> None:
    run("restore", backup, tmp_path / "restored", "--until", until, "--topic", "payments")
    with kstore.Store.open(tmp_path / "restored", "r") as store:
        assert store.topics == ("payments",)
        assert [record.value for record in store.read("payments")] == [b"at noon"]


def test_partitions_up_to_offsets(backup: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    run("restore", backup, tmp_path / "restored", "--until-offset", "orders-0=5", "--until-offset", "orders-1=7")
    with kstore.Store.open(tmp_path / "restored", "r") as store:
        assert [store.log("orders", number).log_end_offset for number in (0, 1)] == [5, 7]


# Bad input: one line, and nothing is overwritten


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["b"], "DIR"),
        (["b", "d", "--until-offset", "orders=1"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", "orders-0"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", "orders-0=x"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", "orders-0=²"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", "../etc-0=1"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", f"t-0={'9' * 5000}"], "TOPIC-P=OFFSET"),
        (["b", "d", "--until-offset", "t-0=1", "--until-offset", "t-0=2"], "twice"),
        (["b", "d", "--option", "region"], "NAME=VALUE"),
        (["b", "d", "--option", "=x"], "NAME=VALUE"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_code_2(
    run: Callable[..., str], arguments: list[str], told: str
) -> None:
    assert told in run("restore", *arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--until", "soon"], "'soon' is no time"),
        (
            ["--until", "2013-06-01T11:59"],
            "11:59:00.000Z: every time is kept from 2013-06-01T12:00:00.000Z on",
        ),
        (["--topic", "none"], "no topic 'none'"),
        (["--until-offset", "none-0=1"], "none-0"),
        (["--until-offset", "orders-0=1000000"], "orders-0"),
    ],
)
def test_what_the_backup_does_not_have_is_told(
    backup: Path, tmp_path: Path, run: Callable[..., str], arguments: list[str], told: str
) -> None:
    assert told in run("restore", backup, tmp_path / "restored", *arguments, code=1)
    assert not (tmp_path / "restored").exists()


def test_a_directory_that_holds_something_else_is_not_written(
    backup: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    assert "full is not empty: it holds 'letter.txt'" in run("restore", backup, tmp_path / "full", code=1)
    assert content(tmp_path / "full") == {"letter.txt": b"dear"}


def test_a_backup_that_is_not_there_is_named(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        assert str(tmp_path / name) in run("restore", tmp_path / name, tmp_path / "restored", code=1)
    assert "'ftp'" in run("restore", "ftp://host/x", tmp_path / "restored", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_manifest_of_a_newer_version_is_refused(backup: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    manifest = backup / "kstore-backup.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":2'))
    assert "version 2" in run("restore", backup, tmp_path / "restored", code=1)
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("what", ["missing", "altered", "shorter"])
def test_an_object_that_is_missing_or_altered_is_named(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    segment = min(backup.glob("orders-0/*.log"))
    data = segment.read_bytes()
    if what == "missing":
        segment.unlink()
    else:
        segment.write_bytes(data[:-1] if what == "shorter" else data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert cli.main(["restore", str(backup), str(tmp_path / "restored")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"orders-0/{segment.name}" in error
    assert cli.main(["describe", str(tmp_path / "restored" / "orders-0")]) == 1  # what is not finished is not opened
    assert "a restore into this directory is not finished" in capsys.readouterr().out
    segment.write_bytes(data)
    assert cli.main(["restore", str(backup), str(tmp_path / "restored")]) == 0
    assert "were there" in capsys.readouterr().out.splitlines()[-1]


def test_options_are_names_and_values() -> None:
    class Given:
        option = ["region=x", "allow_http=true", "endpoint=http://a=b", "timeout=5s"]

    assert object_store_options.options_of(Given) == {  # type: ignore[arg-type]
        "region": "x",
        "allow_http": "true",
        "endpoint": "http://a=b",
        "timeout": "5s",
    }
    Given.option = []
    assert object_store_options.options_of(Given) is None  # type: ignore[arg-type]
    Given.option = ["x"]
    with pytest.raises(UsageError):
        object_store_options.options_of(Given)  # type: ignore[arg-type]
