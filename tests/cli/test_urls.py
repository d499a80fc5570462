"""Commands that read take a URL or a backup's directory, and print of it what they print of the directory itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kstore import Store, cli
from kstore.copies.backups.backup import back_up_directory
from tests.conftest import ManualClock

if TYPE_CHECKING:
    from tests.support.objectserver import Request, S3Server

pytest.importorskip("obstore")

START = 1_700_000_000_000
SETTINGS = {"segment.bytes": "4000", "index.interval.bytes": "500", "segment.index.bytes": "1200"}
FIRST_LOG = "orders-0/00000000000000000000.log"
SECRET = "a-secret-that-nobody-sees"

Run = Callable[..., str]


class Made:
    """A directory of logs, its backup in two rounds with two minutes between them, and a plain copy."""

    def __init__(self, at: Path) -> None:
        self.data, self.backup, self.copy = at / "data", at / "backup", at / "copy"
        clock = ManualClock(START)
        with Store.open(self.data, background=False, clock=clock) as store:
            store.create_topic("orders", 2, config=SETTINGS)
            store.create_topic("accounts", config={"cleanup.policy": "compact"})
            self._append(store, 0)
        back_up_directory([self.data], str(self.backup)).close()
        manifest = json.loads((self.backup / "kstore-backup.json").read_text())
        self.first_round_ms = manifest["time_ms"]
        with Store.open(self.data, background=False, clock=clock) as store:
            self._append(store, 400)
        back_up_directory([self.data], str(self.backup)).close()
        shutil.copytree(self.data, self.copy)

    def _append(self, store: Store, first: int) -> None:
        for number in range(first, first + 400):
            value, key = b'{"n": %d, "name": "x\\u001b[31m"}' % number, b"k%d" % (number % 7)
            store.append("orders", value, key=key, timestamp=START + number * 1000)
            store.append("accounts", b"%d" % number, key=key, timestamp=START + number * 1000)

    def places(self) -> dict[str, str]:
        return {
            "backup": str(self.backup),
            "backup's URL": f"file://{self.backup}",
            "copy's URL": f"file://{self.copy}",
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("urls"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """`run("cat", path)`: what the command prints if it ends with `code`; otherwise its complaint too."""

    def go(*arguments: object, code: int = 0) -> str:
        got = cli.main([str(each) for each in arguments])
        out, error = capfd.readouterr()
        assert got == code, error
        assert SECRET not in out + error
        return out if not code else out + error

    return go


COMMANDS = (
    "cat {}/orders",
    "cat {}/orders --json --from 1700000100000 --max 50",
    "cat {}/orders-1 --key-separator = --last 7",
    "cat {}/accounts --latest --key-separator =",
    "cat {}/accounts-0 --latest --as-of 1700000100000",
    "tail {}/orders",
    "offsets {}",
    "offsets {}/orders --time 1700000100000",
    "offsets {}/orders-0 --time max-timestamp --json",
    "verify {}/orders-0/00000000000000000000.log",
    "dump {}/orders-0/00000000000000000000.log --print-data-log",
    "dump --files {}/orders-0/00000000000000000000.log,{}/orders-0/00000000000000000000.timeindex",
    "dump {}/orders-0 --offset 100 --until-offset 110 --json",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_prefix_prints_what_its_directory_prints(made: Made, run: Run, command: str) -> None:
    expected = run(*command.replace("{}", str(made.data)).split())
    for at in made.places().values():
        got = run(*command.replace("{}", at).split())
        for place in (made.backup, made.copy):
            got = got.replace(f"file://{place}", str(made.data)).replace(str(place), str(made.data))
        assert got == expected
    assert expected


@pytest.mark.parametrize("place", ["backup", "backup's URL", "copy's URL"])
def test_an_export_of_a_prefix_has_the_same_rows(made: Made, run: Run, tmp_path: Path, place: str) -> None:
    for source, to in ((made.data, "data"), (made.places()[place], "prefix")):
        run("export", f"{source}/orders", "--to", tmp_path / f"{to}.jsonl", "--from", START + 50_000)
        run("export", f"{source}/orders-0", "--to", tmp_path / f"{to}.csv", "--decode", "json")
    for suffix in ("jsonl", "csv"):
        assert (tmp_path / f"prefix.{suffix}").read_bytes() == (tmp_path / f"data.{suffix}").read_bytes()


def facts(shown: str) -> list[dict[str, Any]]:
    """What `describe --json` says of partitions, without paths, the space they take, and the entries of indexes."""
    found: list[dict[str, Any]] = json.loads(shown)["partitions"]
    for partition in found:
        del partition["path"], partition["disk"]
        for segment in partition["segments"]:
            del segment["path"], segment["offset_index_entries"], segment["time_index_entries"]
    return found


@pytest.mark.parametrize("place", ["backup", "backup's URL", "copy's URL"])
def test_describe_shows_the_partitions_of_a_prefix(made: Made, run: Run, place: str) -> None:
    at = made.places()[place]
    assert facts(run("describe", at, "--json")) == facts(run("describe", made.data, "--json"))
    assert len(facts(run("describe", f"{at}/orders", "--json"))) == 2
    assert run("describe", f"{at}/orders-0").startswith(f"orders-0 at {at if '://' in at else f'file://{at}'}/orders-0")
    assert run("describe", f"{at}/orders-0", "--svg").startswith("<svg")
    if "backup" in place:
        assert json.loads(run("describe", at, "--json"))["prefix"]["layout"] == "backup"
        assert "a backup: round " in run("describe", at)


def test_indexes_that_a_backup_has_not_are_no_damage(made: Made, run: Run) -> None:
    assert "nothing wrong" in run("verify", made.backup, "--records")
    notes = run("verify", made.backup, "--notes")
    assert "the backup has no index of this segment yet; a restore builds it" in notes
    assert "nothing wrong" in run("verify", f"file://{made.copy}")


def test_damage_in_a_prefix_is_told(made: Made, run: Run, tmp_path: Path) -> None:
    shutil.copytree(made.copy, tmp_path / "copy")
    shutil.copytree(made.backup, tmp_path / "backup")
    url = f"file://{tmp_path}/copy"
    with (tmp_path / "copy" / FIRST_LOG).open("r+b") as file:
        file.seek(200)
        file.write(b"?")
    (tmp_path / "copy" / "orders-1" / "00000000000000000000.index").unlink()
    told = run("verify", url, code=1)
    assert "the CRC of the batch does not hold" in told
    assert f"{url}/orders-1/00000000000000000000.index: error: the offset index is missing" in told
    assert "2 errors" in told
    run("dump", url, code=1)
    (tmp_path / "backup" / FIRST_LOG).write_bytes(b"?")
    assert FIRST_LOG in run("cat", tmp_path / "backup" / "orders-0", code=1)
    assert FIRST_LOG in run("verify", tmp_path / "backup", code=1)


def test_a_backup_is_read_as_of_a_time(made: Made, run: Run) -> None:
    whole = run("cat", f"{made.backup}/accounts-0").splitlines()
    before = run("cat", f"{made.backup}/accounts-0", "--backup-until", made.first_round_ms).splitlines()
    assert (len(whole), len(before)) == (800, 400)
    assert whole[:400] == before
    assert run("offsets", f"{made.backup}/accounts", "--until", made.first_round_ms) == "accounts:0:400\n"
    assert "cannot be restored to" in run("describe", made.backup, "--until", "2001-01-01", code=1)
    assert "it has only one state" in run("describe", f"file://{made.copy}", "--until", "2001-01-01", code=1)


def test_deleted_segments_of_a_backup_are_read_if_asked_for(run: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("events", config={**SETTINGS, "file.delete.delay.ms": "0"})
        for number in range(300):
            store.append("events", b"value %d" % number)
    back_up_directory([tmp_path / "data"], str(tmp_path / "backup")).close()
    run("retain", tmp_path / "data", "--retention-bytes", "8000")
    back_up_directory([tmp_path / "data"], str(tmp_path / "backup")).close()
    assert run("offsets", tmp_path / "backup" / "events", "--time", "earliest") != "events:0:0\n"
    kept = run("cat", tmp_path / "backup" / "events", "--with-deleted").splitlines()
    assert kept[0] == "value 0"
    assert len(kept) == 300


def test_explain_reads_nothing_and_tells_requests_and_bytes(made: Made, run: Run, tmp_path: Path) -> None:
    told = json.loads(run("export", f"{made.backup}/orders", "--to", tmp_path / "x.csv", "--explain", "--json"))
    sizes = sum(file.stat().st_size for file in made.data.glob("orders-*/*.log"))
    assert told["bytes"] == sizes
    assert [each["partition"] for each in told["partitions"]] == [0, 1]
    assert sum(each["requests"] for each in told["partitions"]) == told["requests"]
    assert not (tmp_path / "x.csv").exists()
    part = run("cat", f"{made.backup}/orders-0", "--explain", "--offset", "390").split()
    assert int(part[1]) < told["partitions"][0]["requests"]
    assert "is a directory" in run("cat", f"{made.data}/orders", "--explain", code=2)


def test_options_of_a_prefix_are_refused_for_a_directory(made: Made, run: Run, tmp_path: Path) -> None:
    for option in (["--cache", tmp_path], ["--option", "a=b"], ["--backup-until", "0"], ["--with-deleted"]):
        assert f"{option[0]} goes with a URL" in run("cat", made.data / "orders-0", *option, code=2)
        assert f"{option[0]} goes with a URL" in run("verify", made.data, *option, code=2)
        assert f"{option[0]} goes with a URL" in run("dump", made.data, *option, code=2)


def test_what_would_write_to_a_prefix_or_wait_is_refused(made: Made, run: Run, tmp_path: Path) -> None:
    assert "one state" in run("tail", "-f", f"{made.backup}/orders", code=2)
    assert "--group keeps its positions" in run(
        "export", f"{made.backup}/orders", "--group", "a", "--to", tmp_path / "x.csv", code=1
    )


WRITING = (
    "append {}/orders-0",
    "ingest {0}.csv --to {} --topic orders",
    "compact {}",
    "compact {} --dry-run",
    "retain {}",
    "repair {}",
    "become-leader {}",
    "replicate {0} {}",
    "replicate {} {0}",
    "backup {} --to {0}",
    "restore {0} {}",
    "adopt s3://bucket/job --to {}",
    "export {0}/orders --to {}/x.csv",
)


@pytest.mark.parametrize("command", WRITING)
def test_a_command_that_writes_refuses_a_url(
    made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"s3://user:{SECRET}@bucket/prefix", f"file://{made.copy}"):
        words = command.replace("{0}", str(made.data)).replace("{}", url).split()
        assert "an object store is only read" in run(*words, code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_leads_nowhere_is_told(made: Made, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (f"{made.backup}/none", f"file://{made.copy}/none", f"{made.backup}/orders-7"):
        assert "there is no partition, topic or directory of logs of this name" in run("cat", path, code=1)
    assert "has 0 objects and no log" in run("describe", f"file://{tmp_path}/empty", code=1)
    assert "no directory" in run("describe", f"file://{tmp_path}/missing/orders-0", code=1)
    assert "s3, s3a, gs, az" in run("describe", "ftp://host/x", code=1)
    assert "\\x1b[31m" in run("describe", f"file://{tmp_path}/\x1b[31m", code=1)


def test_other_directories_beside_a_backup_are_still_read(made: Made, run: Run, tmp_path: Path) -> None:
    shutil.copytree(made.backup, tmp_path / "backup")
    shutil.copytree(made.data, tmp_path / "backup" / "data")
    assert run("offsets", tmp_path / "backup" / "data") == run("offsets", made.data)
    log = tmp_path / "backup" / FIRST_LOG
    assert run("dump", log).startswith(f"Dumping {log}\n")


# An object store


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    objectserver = pytest.importorskip("tests.support.objectserver")
    with objectserver.S3Server() as started:
        yield started


@pytest.fixture(autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    if "server" in request.fixturenames:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{request.getfixturevalue('server').port}")


@pytest.fixture(scope="module")
def in_bucket(made: Made, server: S3Server) -> str:
    """The URL of a backup on the server."""
    from tests.support.objectserver import options

    url = f"s3://{server.bucket}/a/backup"
    back_up_directory([made.data], url, options=options(server.port)).close()
    return url


def test_every_command_that_reads_reads_a_bucket(
    made: Made, server: S3Server, in_bucket: str, run: Run, tmp_path: Path
) -> None:
    for command in COMMANDS:
        expected = run(*command.replace("{}", str(made.data)).split())
        got = run(*command.replace("{}", in_bucket).split())
        assert got.replace(in_bucket, str(made.data)) == expected
    assert facts(run("describe", in_bucket, "--json")) == facts(run("describe", made.data, "--json"))
    assert "nothing wrong" in run("verify", in_bucket, "--records")
    for source in (made.data, in_bucket):
        run("export", f"{source}/orders", "--to", tmp_path / "x.csv", "--force", "--decode", "json")
        (tmp_path / "x.csv").rename(tmp_path / ("data.csv" if source is made.data else "bucket.csv"))
    assert (tmp_path / "data.csv").read_bytes() == (tmp_path / "bucket.csv").read_bytes()


def test_explain_tells_the_requests_that_a_reading_makes(
    server: S3Server, in_bucket: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.objectserver import Proxy

    with Proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        command = ["export", f"{in_bucket}/orders", "--to", tmp_path / "x.jsonl"]
        told = json.loads(run(*command, "--explain", "--json"))
        to_explain = len(proxy.seen)
        assert not any(request.key.endswith(".log") for request in proxy.seen)
        run(*command, "--cache", tmp_path / "cache")
        assert len(proxy.seen) - 2 * to_explain == told["requests"]
        again = len(proxy.seen)
        run(*command, "--cache", tmp_path / "cache", "--force")
        assert not any(request.key.endswith(".log") for request in proxy.seen[again:])


def test_a_bucket_is_not_listed_for_a_wrong_name(
    server: S3Server, in_bucket: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.objectserver import Proxy

    def listed(request: Request) -> None:
        assert request.kind != "list" or request.key

    with Proxy(server.port, listed) as proxy:  # type: ignore[arg-type]
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        assert "has 0 objects and no log" in run("describe", f"s3://{server.bucket}/wrong", code=1)
        assert "list" in proxy.counts()


def test_a_bucket_that_cannot_be_read_is_told(
    server: S3Server, in_bucket: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.objectserver import Fault, Proxy

    assert "bucket" in run("describe", "s3://there-is-none/x", code=1)
    with Proxy(server.port, lambda request: Fault("status", 403)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        for command in ("describe", "offsets", "cat", "tail", "verify", "dump"):
            told = run(command, f"{in_bucket}/orders-0", code=1)
            assert "refuses the credentials" in told
            assert told.startswith(f"kstore {command}: {in_bucket}")
            assert told.count("\n") == 1


def test_credentials_of_a_url_are_not_printed(server: S3Server, in_bucket: str, run: Run) -> None:
    at = in_bucket.replace("s3://", f"s3://user:{SECRET}@")
    for words in (["describe", at], ["cat", f"{at}/orders"], ["dump", f"{at}/orders-0"], ["verify", at]):
        run(*words)
    for words in (["cat", at], ["cat", f"{at}/none"], ["tail", "-f", f"{at}/orders"]):
        run(*words, code=2 if "-f" in words else 1)
    run("describe", in_bucket, "--option", f"no_such_option={SECRET}", code=1)
