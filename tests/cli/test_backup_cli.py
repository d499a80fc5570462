"""`kstore backup`: there and back with `kstore restore`, two writers, and what is refused without a trace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.copycommands import batches, content, facts_until
from tests.support.copycommands import run as run
from tests.support.copycommands import source as source

pytestmark = pytest.mark.usefixtures("no_syncs")

KSTORE = (sys.executable, "-m", "kstore")


@pytest.fixture
def backup(source: Path, tmp_path: Path, run: Callable[..., str]) -> Path:
    """A backup of it in a directory."""
    run("backup", source, "--to", tmp_path / "backup")
    return tmp_path / "backup"


# There and back


def test_a_backup_and_its_restore_give_the_same_bytes(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    before = content(source)
    said = run("backup", source, "--to", tmp_path / "backup")
    assert said.startswith("3 partitions, caught up; ")
    assert " sent" in said
    assert content(source) == before
    run("restore", tmp_path / "backup", tmp_path / "restored")
    assert batches(tmp_path / "restored") == batches(source)
    with kstore.Store.open(tmp_path / "restored", background=False) as store:
        assert store.append("payments", b"1.00").offset == 1


def test_a_second_backup_sends_what_is_new(source: Path, backup: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    before = json.loads(run("backup", source, "--to", backup, "--json"))
    assert before["rounds"] == 0
    with kstore.Store.open(source, background=False) as store:
        store.append("payments", b"1.00")
    facts = json.loads(run("backup", source, "--to", backup, "--json"))
    assert (facts["rounds"], facts["round"]) == (1, before["round"] + 1)
    assert facts["partitions"]["payments-0"] == {
        "end_offset": 2,
        "log_end_offset": 2,
        "lag_records": 0,
        "unflushed_records": 0,
    }
    run("restore", backup, tmp_path / "restored")
    assert batches(tmp_path / "restored") == batches(source)


@pytest.mark.parametrize("place", ["", "backup", "orders-0"])
@pytest.mark.parametrize("how", [[], ["--follow"]])
def test_a_backup_into_the_directory_itself_is_refused_without_a_trace(
    source: Path, run: Callable[..., str], place: str, how: list[str]
) -> None:
    """Its objects have the names of the logs' own files."""
    before = content(source)
    said = run("backup", source, "--to", source / place, *how, code=1)
    assert f"would lie in the log directory {source}" in said
    assert content(source) == before


# Following, in a process


def following(source: Path, backup: Path) -> subprocess.Popen[str]:
    command = [*KSTORE, "backup", str(source), "--to", str(backup), "--follow", "--every", "50ms", "--json"]
    return subprocess.Popen(
        [*command, "--show-every", "50ms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def backed_up(facts: dict[str, Any]) -> int:
    end: int = facts["partitions"].get("payments-0", {}).get("end_offset", -1)
    return end


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_backup_that_follows_ends_after_a_last_round_at_a_signal(
    source: Path, tmp_path: Path, run: Callable[..., str], number: int, code: int
) -> None:
    with following(source, tmp_path / "backup") as process:
        facts_until(process, lambda facts: backed_up(facts) == 1)
        with kstore.Store.open(source, background=False) as store:
            store.append("payments", b"1.00")
        facts_until(process, lambda facts: backed_up(facts) == 2)
        process.send_signal(number)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == code
    run("restore", tmp_path / "backup", tmp_path / "restored")
    assert batches(tmp_path / "restored") == batches(source)


def test_a_second_writer_takes_over_and_the_first_one_ends(
    source: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    with following(source, tmp_path / "backup") as process:
        facts_until(process, lambda facts: backed_up(facts) == 1)
        with kstore.Store.open(source, background=False) as store:
            store.append("payments", b"1.00")
            run("backup", source, "--to", tmp_path / "backup")
            store.append("payments", b"2.00")
        assert process.stderr is not None
        error = process.stderr.read()
        assert (process.wait(60), error.count("\n")) == (1, 1)
        assert error.startswith("kstore backup: ")
    run("backup", source, "--to", tmp_path / "backup")
    run("restore", tmp_path / "backup", tmp_path / "restored")
    assert batches(tmp_path / "restored") == batches(source)


# Bad input: one line, exit code 1 or 2, and nothing is overwritten


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["backup", "data"], "--to"),
        (["backup", "data", "--to", "b", "--once", "--follow"], "not allowed with"),
        (["backup", "data", "--to", "b", "--every", "5s"], "--every goes with --follow"),
        (["backup", "data", "--to", "b", "--window", "soon"], "--window"),
        (["backup", "data", "--to", "b", "--option", "region"], "NAME=VALUE"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_code_2(
    run: Callable[..., str], arguments: list[str], told: str
) -> None:
    assert told in run(*arguments, code=2)


def test_a_backup_that_is_not_there_is_named(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    assert "none" in run("restore", tmp_path / "none", tmp_path / "restored", code=1)
    (tmp_path / "empty").mkdir()
    assert "empty" in run("restore", tmp_path / "empty", tmp_path / "restored", code=1)
    assert not (tmp_path / "restored").exists()
    assert "none" in run("backup", tmp_path / "none", "--to", tmp_path / "backup", code=1)
    assert not (tmp_path / "backup").exists()
    assert "ftp" in run("backup", source, "--to", "ftp://host/x", code=1)


def test_a_manifest_of_a_newer_version_is_refused(
    source: Path, backup: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    manifest = backup / "kstore-backup.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":2'))
    before = content(backup)
    for command in (["restore", backup, tmp_path / "restored"], ["backup", source, "--to", backup]):
        assert "version 2" in run(*command, code=1)
    assert content(backup) == before
    assert not (tmp_path / "restored").exists()


@pytest.fixture(scope="module")
def server() -> Iterator[object]:
    objectserver = pytest.importorskip("tests.support.objectserver")
    with objectserver.S3Server() as started:
        yield started


def given(port: int) -> list[str]:
    options = (f"endpoint=http://127.0.0.1:{port}", "region=us-east-1", "access_key_id=test", "secret_access_key=test")
    return [word for option in (*options, "allow_http=true") for word in ("--option", option)]


def test_a_bucket_on_a_server(server: object, source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    url, options = f"s3://{server.bucket}/cli", given(server.port)  # type: ignore[attr-defined]
    run("backup", source, "--to", url, *options)
    run("restore", url, tmp_path / "restored", *options)
    assert batches(tmp_path / "restored") == batches(source)


def test_a_bucket_that_is_not_there_is_named(
    server: object, source: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    options = given(server.port)  # type: ignore[attr-defined]
    assert "no such bucket" in run("backup", source, "--to", "s3://nowhere/x", *options, code=1)
    assert "no such bucket" in run("restore", "s3://nowhere/x", tmp_path / "restored", *options, code=1)
    assert not (tmp_path / "restored").exists()


def test_credentials_that_are_refused_are_told(server: object, source: Path, run: Callable[..., str]) -> None:
    from tests.support.objectserver import Fault, Proxy

    with Proxy(server.port, lambda request: Fault("status", 403)) as proxy:  # type: ignore[attr-defined]
        said = run("backup", source, "--to", "s3://backups/x", *given(proxy.port), code=1)
    assert "credentials" in said
