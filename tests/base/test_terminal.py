"""terminal.py, and that everything that the command line prints goes through it: no name, error or record commands a
terminal. Commands run as processes whose standard output and standard error are terminals, or pipes."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import Log, Store
from kstore.base.terminal import escaped, guard_messages

NASTY = "\x1b]0;title\x07\x1b[31m\r\x08\x7f\x9b2J\u202e\u2066\u2028"
"""Sets a title, a colour, goes back, clears the screen, turns the direction of writing."""

RISKY = {chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp")}
RISKY |= {chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in
          ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")} | {"\u200e", "\u200f", "\u061c"}  # fmt: skip


def test_every_risky_character_and_no_other_is_escaped() -> None:
    for character in map(chr, range(0x110000)):
        assert (escaped(character) != character) == (character in RISKY), ascii(character)


@given(st.text(st.characters()))
def test_escaped_text_is_one_line_and_stays_as_it_is_when_escaped_again(text: str) -> None:
    found = escaped(text)
    assert not RISKY & set(found)
    assert found.encode().decode() == found
    assert escaped(found) == found
    assert escaped(text, lines=True) == re.sub(r"[^\n\t]+", lambda part: escaped(part[0]), text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\n\t\r", r"\x0a\x09\x0d"),
        ("\x7f\x9b", r"\u007f\u009b"),
        ("\u202e", r"\u202e"),
        ("\udcff", r"\xff"),
        ("\ud800", r"\ud800"),
        ("é 漢字 😀 \\ \\x1b", "é 漢字 😀 \\ \\x1b"),
    ],
)
def test_what_an_escape_looks_like(text: str, shown: str) -> None:
    assert escaped(text) == shown


# Messages of the log


def test_messages_are_one_line_without_risky_characters(caplog: pytest.LogCaptureFixture) -> None:
    guard_messages()
    logger = logging.getLogger("kstore")
    logger.warning("%s: passed over", f"/a/{NASTY}\nERROR all is well")
    logger.warning("%s: passed over", "/a/b")
    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger("kstore.future").exception("failed")
    assert logger.filters[0].filter(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    first, second, third = caplog.records
    assert not RISKY & set(first.getMessage())
    assert first.args == ()
    assert (second.msg, second.args) == ("%s: passed over", ("/a/b",))
    assert not (RISKY - {"\n"}) & set(third.exc_text or "")
    assert escaped(NASTY) in (third.exc_text or "")
    assert sum(type(each).__name__ == "_OneLine" for each in logger.filters) == 1


def test_every_logger_is_guarded() -> None:
    sources = [path for kind in ("*.py", "*.pyx") for path in (Path(__file__).parents[2] / "kstore").rglob(kind)]
    found = {name for path in sources for name in re.findall(r"getLogger\((.*?)\)", path.read_text())}
    assert found == {'"kstore"', '"kstore.future"', "name"}


def test_a_directory_with_a_nasty_name_is_told_of_without_commanding_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root" / f"{NASTY}\n-0").mkdir(parents=True)
    Store.open(tmp_path / "root", background=False).close()
    (message,) = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert not RISKY & set(message)


# Commands


class Ran:
    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out, err


def run(*arguments: str | Path, terminal: bool, **environment: str) -> Ran:
    """Run a command with terminals, or with pipes; what came to them."""
    command = [sys.executable, "-c", "from kstore import cli; raise SystemExit(cli.main())", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", **environment}
    if not terminal:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
        return Ran(done.returncode, done.stdout, done.stderr)
    ends = [pty.openpty(), pty.openpty()]
    process = subprocess.Popen(command, stdout=ends[0][1], stderr=ends[1][1], env=environment)
    found = [b"", b""]

    def collect(at: int) -> None:
        try:
            while data := os.read(ends[at][0], 65_536):
                found[at] += data
        except OSError:  # the other end was closed
            pass

    threads = [threading.Thread(target=collect, args=(at,)) for at in (0, 1)]
    for _, end in ends:
        os.close(end)
    for thread in threads:
        thread.start()
    code = process.wait(60)
    for thread in threads:
        thread.join()
    for end, _ in ends:
        os.close(end)
    return Ran(code, *(each.replace(b"\r\n", b"\n") for each in found))


OWN_STYLE = re.compile(r"\x1b\[(0|1|31|33)m")


def is_harmless(data: bytes) -> bool:
    return not (RISKY - {"\n", "\t"}) & set(OWN_STYLE.sub("", data.decode()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose records, headers, files and directories all try to command the terminal."""
    nasty = NASTY.encode()
    with Store.open(tmp_path / "root", background=False) as store:
        store.create_topic("t")
        store.append("t", nasty + b"\xff\xfe", key=nasty, headers=[(NASTY, nasty)], partition=0)
        store.append("t", "é 漢字".encode(), partition=0)
    (tmp_path / "root" / f"{NASTY}\nnothing wrong\n-0").mkdir()
    (tmp_path / "root" / "t-0" / f"{NASTY}\nnothing wrong\n.x").touch()
    (tmp_path / "root" / os.fsdecode(b"\xff\xfe-0")).mkdir()
    return tmp_path / "root"


LOG = "t-0/00000000000000000000.log"

COMMANDS: list[tuple[str, ...]] = [
    ("describe", "."),
    ("describe", "t-0"),
    ("describe", ".", "--json"),
    ("describe", f"missing{NASTY}"),
    ("verify", "--notes", "."),
    ("verify", "--notes", "--json", "."),
    ("verify", f"missing{NASTY}"),
    ("repair", "."),
    ("retain", "--dry-run", "."),
    ("retain", "--dry-run", f"missing{NASTY}"),
    ("offsets", "."),
    ("config", f"missing{NASTY}"),
    ("cat", "t-0"),
    ("cat", "t-0", "--json"),
    ("cat", "t-0", "--format", r"%k %h %s\n"),
    ("cat", "t-0", "-K", NASTY),
    ("cat", f"missing{NASTY}"),
    ("tail", "t-0"),
    ("tail", "-f", "--timeout", "0.1", "t"),
    ("dump", "--files", LOG, "--print-data-log"),
    ("dump", "--files", f"missing{NASTY}.log"),
    ("dump", ".", "--print-data-log"),
    ("dump", "t-0", "--json", "--print-data-log"),
    ("export", "t-0", "--to", f"missing{NASTY}/x.jsonl"),
    ("ingest", f"missing{NASTY}.csv", "--to", ".", "--topic", "t"),
    (f"nothing{NASTY}",),
    ("cat", f"--nothing{NASTY}"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: ascii(" ".join(words))[1:40])
def test_no_command_lets_a_risky_character_reach_a_terminal(
    root: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    ran = run(*command, terminal=True)
    assert is_harmless(ran.out), ran.out
    assert is_harmless(ran.err), ran.err
    assert ran.out + ran.err
    assert b"Traceback" not in ran.err


RAW = [
    ("cat", "t-0"),
    ("cat", "t-0", "--format", r"%k %h %s\n"),
    ("tail", "t-0"),
    ("dump", "--files", LOG, "--print-data-log"),
    ("dump", "t-0", "--print-data-log"),
]


@pytest.mark.parametrize("command", RAW, ids=" ".join)
def test_records_go_to_a_pipe_as_they_are_and_to_a_terminal_escaped(
    root: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    piped, shown = run(*command, terminal=False), run(*command, terminal=True)
    assert NASTY.encode() in piped.out
    assert NASTY.encode() not in shown.out
    assert escaped(NASTY).encode() in shown.out
    assert "é 漢字".encode() in shown.out
    if command[0] != "dump":  # which prints text, with signs in place of what is none
        assert piped.out.startswith(NASTY.encode())
        assert b"\xff\xfe" in piped.out
        assert rb"\xff\xfe" in shown.out


def test_json_on_a_terminal_is_json_of_the_same_records(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with Log.open("t-0") as log:
        log.append(NASTY.encode(), key=NASTY.encode(), headers=[(NASTY, NASTY.encode())])
    piped, shown = (run("cat", "t-0", "--json", terminal=each).out.decode() for each in (False, True))
    assert list(map(json.loads, shown.splitlines())) == [json.loads(line) for line in piped.split("\n") if line]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("command", [("describe", "."), ("verify", "--notes", ".")], ids=" ".join)
def test_a_line_feed_in_a_name_makes_no_line(
    root: Path, command: tuple[str, ...], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    ran = run(*command, terminal=terminal)
    assert rb"\x0anothing wrong\x0a-0" in ran.out
    assert b"nothing wrong" not in ran.out.split(b"\n")


def test_text_that_is_piped_is_escaped_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    for command in (("describe", "."), ("verify", "--notes", "."), ("cat", f"missing{NASTY}")):
        ran = run(*command, terminal=False)
        assert is_harmless(ran.out + ran.err), ran.out + ran.err


def test_a_traceback_is_escaped_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    ran = run("--debug", "cat", f"missing{NASTY}", terminal=True)
    assert b"Traceback" in ran.err
    assert is_harmless(ran.err)


def test_a_warning_of_the_log_is_escaped_on_a_terminal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    ran = run("retain", ".", terminal=True)
    assert b"passed over" in ran.err
    assert is_harmless(ran.err)


def test_colours_of_our_own_are_written_and_those_of_data_are_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "t-0" / "00000000000000000000.log").write_bytes(b"\x1b[31m" * 100)
    ran = run("verify", ".", terminal=True)
    assert b"\x1b[31merror\x1b[0m" in ran.out
    plain = run("verify", ".", terminal=True, NO_COLOR="1")
    assert b"\x1b" not in plain.out


def test_a_terminal_that_knows_ascii_alone_gets_escapes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    ran = run("cat", "t-0", "--last", "1", terminal=True, PYTHONIOENCODING="ascii")
    assert ran.out == rb"\xe9 \u6f22\u5b57" + b"\n"
    assert ran.code == 0
