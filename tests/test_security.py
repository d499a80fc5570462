"""SECURITY.md: each statement names tests that are there; and the tests of those that no other file holds."""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kstore import KStoreError, Log, StorageError, cli
from kstore.disk import fs
from tests.support import batches
from tests.test_docs import cited_tests

REPOSITORY = Path(__file__).parent.parent
SECURITY = REPOSITORY / "SECURITY.md"
SOURCES = [path for kind in ("*.py", "*.pyx") for path in sorted((REPOSITORY / "kstore").rglob(kind))]
LOG_NAME = f"{0:020d}.log"


def statements() -> list[str]:
    """The points of the page, one a line."""
    found = re.findall(r"^- (.*?)(?=^- |^#|^$|\Z)", SECURITY.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [" ".join(each.split()) for each in found]


@pytest.mark.parametrize("statement", statements(), ids=lambda text: text[:50])
def test_each_statement_names_a_test_that_is_there(statement: str) -> None:
    cited = cited_tests(statement)
    assert cited
    assert all(test for _, test in cited)


def test_the_page_has_statements() -> None:
    assert len(statements()) > 30


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The directory of a closed log of a hundred records, with indexes."""
    path = tmp_path / "root" / "t-0"
    with Log.open(path, index_interval_bytes=100) as made:
        for number in range(100):
            made.append(b"a secret %d" % number, key=b"k")
    return path


def test_a_checksum_is_no_signature(tmp_path: Path) -> None:
    data = batches.v2([batches.record(value=b"pay 10")])
    with Log.open(tmp_path / "root" / "t-0") as made:
        made.append_batch(batches.resealed(data.replace(b"pay 10", b"pay 99")))
        assert [record.value for record in made.read()] == [b"pay 99"]


def test_any_bytes_in_any_file_of_a_log_give_records_or_an_error(log: Path, rng: random.Random) -> None:
    def use() -> None:
        for mode in ("r", "a"):
            with Log.open(log, mode) as opened:  # type: ignore[arg-type]
                list(opened.read())
                opened.read_columns()
                opened.offset_for_timestamp(1)
                opened.batch_table()

    whole = {path: path.read_bytes() for path in (*log.iterdir(), *log.parent.iterdir()) if path.is_file()}
    assert {".log", ".index", ".timeindex", ".snapshot"} <= {path.suffix for path in whole}
    for path, data in whole.items():
        for _ in range(30):
            changed = bytearray(data or bytes(10))
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            path.write_bytes(rng.choice([changed, changed[: rng.randrange(len(changed))], rng.randbytes(50)]))
            with contextlib.suppress(KStoreError):
                use()
            for other, before in whole.items():
                other.write_bytes(before)
            for extra in set(log.iterdir()) - set(whole):
                extra.unlink()


def imports_and_calls(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        return set(re.findall(r"^(?:from|c?import) ([\w.]+)", text, re.MULTILINE))
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
    return found


CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "eval()", "exec()", "compile()", "runpy"}
NETWORK = {
    "socket", "socketserver", "http", "http.server", "http.client", "urllib.request", "ssl", "asyncio", "ftplib",
    "smtplib", "xmlrpc", "requests", "aiohttp", "httpx", "webbrowser",
}  # fmt: skip


def test_no_file_becomes_code() -> None:
    assert {path.name: found for path in SOURCES if (found := imports_and_calls(path) & CODE)} == {}


# It has event loops beside its sockets: one file imports it, and uses what stands here.
LOOPS = {"AbstractEventLoop", "CancelledError", "Future", "get_running_loop", "shield", "sleep", "wait"}


def test_only_the_page_is_served_and_only_known_hosts_are_connected_to() -> None:
    """obstore and urllib are the only libraries here that connect, and uvicorn the only one that listens."""
    found = {path.name: found for path in SOURCES if (found := imports_and_calls(path) & NETWORK)}
    page = {"server.py": {"asyncio", "socket"}, "ui_command.py": {"webbrowser"}}
    page |= {name: {"asyncio"} for name in ("live_events.py", "patience.py")}
    assert found == {"loops.py": {"asyncio"}, "known_schemas.py": {"urllib.request"}, **page}
    naming = [
        path
        for path in SOURCES
        if re.search(r"optional\.obstore\(|(?:import|from) obstore", path.read_text(encoding="utf-8"))
    ]
    assert {path.parent.name for path in naming} == {"objects"}
    serving = [path for path in SOURCES if "optional.uvicorn(" in path.read_text(encoding="utf-8")]
    assert {path.parent.name for path in serving} == {"ui"}


def test_of_asyncio_only_the_event_loop_is_used() -> None:
    (path,) = (path for path in SOURCES if path.name == "loops.py")
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\basyncio\.(\w+)", text)) == LOOPS
    of_loops = set(re.findall(r"\bloop\.(\w+)", text))
    allowed = {"call_later", "call_soon_threadsafe", "create_future", "is_closed", "run_in_executor"}
    assert of_loops <= allowed


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_file_that_is_exchanged_before_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    real = os.open

    def exchange(name: str | os.PathLike[str], *how: int, **named: int) -> int:
        if os.fspath(name) == str(path) and path.is_file() and not path.is_symlink():
            path.unlink()
            os.mkfifo(path) if kind == "pipe" else path.symlink_to("/etc/hostname")
        return real(name, *how, **named)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(StorageError, match="is here, and"):
        fs.read_file(path)


def test_dump_follows_a_link_that_it_is_given_to_a_regular_file_alone(
    log: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / LOG_NAME).symlink_to(log / LOG_NAME)
    assert cli.main(["dump", "--print-data-log", "--files", str(tmp_path / LOG_NAME)]) == 0
    assert b"a secret 7" in capfdbinary.readouterr().out
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipes" / LOG_NAME).symlink_to(tmp_path / "pipe")
    assert cli.main(["dump", "--files", str(tmp_path / "pipes" / LOG_NAME)]) == 1
    assert b"a named pipe is here" in capfdbinary.readouterr().err


def test_records_are_not_encrypted(log: Path) -> None:
    assert b"a secret 7" in (log / LOG_NAME).read_bytes()


def test_a_hard_link_cannot_be_told_from_a_file(log: Path, tmp_path: Path) -> None:
    os.link(log / LOG_NAME, tmp_path / "elsewhere")
    with Log.open(log) as opened:
        opened.append(b"one more")
    assert b"one more" in (tmp_path / "elsewhere").read_bytes()


def test_only_the_writer_maps_files_and_only_indexes(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[str] = []
    real = fs.map
    monkeypatch.setattr(fs, "map", lambda fd, size: (mapped.append(fs.path_of(fd) or ""), real(fd, size))[1])

    def use(mode: str) -> None:
        with Log.open(log, mode) as opened:  # type: ignore[arg-type]
            list(opened.read(50))
            opened.offset_for_timestamp(1)

    use("r")
    assert mapped == []
    use("a")
    assert all(path.endswith(("index", "index (deleted)")) for path in mapped)


def test_an_iterator_holds_a_batch_and_not_the_log(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from kstore import Log
        with Log.open(sys.argv[1], max_message_bytes=8 << 20) as log:
            for _ in range(100):
                log.append(bytes(4 << 20))
            sum(len(record.value) for record in log.read(0, end_offset=5))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert sum(len(record.value) for record in log.read()) == 400 << 20
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "root" / "t-0")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100 << 10  # KiB
