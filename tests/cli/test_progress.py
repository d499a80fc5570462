"""How far a command is: a bar on a terminal, plain lines without rich, nothing elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.cli.progress import Progress
from kstore.copies.backups.backup import back_up_directory


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def look(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal from here on."""
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.progress", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)


def test_the_first_second_is_silent_and_lines_come_every_other_second(
    monkeypatch: pytest.MonkeyPatch, now: Time
) -> None:
    screen = look(monkeypatch)
    without_rich(monkeypatch)
    with Progress("retain", unit="partitions") as bar:
        for moment, done in ((100.9, 1), (101.0, 2), (102.9, 3), (103.0, 4)):
            now.now = moment
            bar.reach(done, 4)
    assert screen.getvalue() == (
        "retain: 2 of 4 partitions, 50 %, 2/s\nretain: 4 of 4 partitions, 100 %, 1/s\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("total", "unit", "expected"),
    [
        (4096, "bytes", "1.0 KiB of 4.0 KiB, 25 %, 1.0 KiB/s"),
        (-1, "bytes", "1.0 KiB, 1.0 KiB/s"),
        (-1, "records", "1,024 records, 1,024/s"),
        (512, "records", "1,024 of 512 records, 100 %, 1,024/s"),
        (0, "records", "1,024 of 0 records, 100 %, 1,024/s"),
    ],
)
def test_lines_say_how_much_of_how_much_and_how_fast(
    monkeypatch: pytest.MonkeyPatch, now: Time, total: int, unit: str, expected: str
) -> None:
    screen = look(monkeypatch)
    without_rich(monkeypatch)
    with Progress("x", total, unit) as bar:
        now.now = 101.0
        bar.add(1024)
    assert screen.getvalue() == f"x: {expected}\n"


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    monkeypatch: pytest.MonkeyPatch, now: Time, term: str
) -> None:
    screen = look(monkeypatch)
    monkeypatch.setenv("TERM", term)
    with Progress("x", 10, "records") as bar:
        now.now = 101.0
        bar.add(5)
    assert screen.getvalue() == "x: 5 of 10 records, 50 %, 5/s\n"


def test_nothing_is_shown_without_a_terminal_or_where_results_are_printed(
    monkeypatch: pytest.MonkeyPatch, now: Time
) -> None:
    screen = look(monkeypatch)
    monkeypatch.setattr("sys.stdout", Terminal())
    with Progress("x", 10, aside=True) as bar:
        now.now = 200.0
        bar.add(5)
    assert screen.getvalue() == ""
    monkeypatch.setattr("sys.stderr", blind := io.StringIO())
    with Progress("x", 10) as bar:
        now.now = 300.0
        bar.add(5)
    assert blind.getvalue() == ""


# In a terminal, command by command

# Every command is quick here, so the silent second is left out.
RUN = """
import sys
from kstore.cli import main, progress
progress._QUIET_SECONDS = -1.0
sys.exit(main(sys.argv[1:]))
"""


def in_a_terminal(*arguments: object, **environment: str) -> tuple[int, str]:
    """Run a command whose standard error is a terminal: its exit code, and what is shown there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **environment},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65_536):
            shown += piece
    except OSError:  # the other end is closed: Linux says so in this way
        pass
    os.close(ours)
    return process.wait(), shown.decode()


@pytest.fixture
def data(root: Path) -> Path:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 1)
        store.append_many("events", [b"x" * 100] * 1000)
        store.create_topic("accounts", 1, config={"cleanup.policy": "compact", "segment.bytes": "10000"})
        store.append_many("accounts", [(b"key", b"x" * 100)] * 1000, batch_bytes=1000)
    return root


def _lines(directory: Path) -> Path:
    (directory / "x.jsonl").write_text('{"a":1}\n' * 1000)
    return directory / "x.jsonl"


def _backup(data: Path, path: Path) -> Path:
    back_up_directory(data, str(path)).close()
    return path


Arguments = Callable[[Path, Path], list[object]]
LONG: dict[str, Arguments] = {
    "verify": lambda data, _: [data],
    "repair": lambda data, _: [data],
    "describe": lambda data, _: [data],
    "dump": lambda data, _: [data / "events-0"],
    "retain": lambda data, _: [data, "--dry-run"],
    "compact": lambda data, _: [data, "--dry-run"],
    "cat": lambda data, _: [data / "events-0"],
    "ingest": lambda data, to: [_lines(to), "--to", data, "--topic", "more"],
    "export": lambda data, to: [data / "events", "--to", to / "x.jsonl"],
    "replicate": lambda data, to: [data, to / "copy"],
    "backup": lambda data, to: [data, "--to", to / "backup"],
    "restore": lambda data, to: [_backup(data, to / "backup"), to / "restored"],
}


@pytest.mark.parametrize("command", LONG)
def test_a_long_command_draws_a_bar_and_clears_it(data: Path, tmp_path: Path, command: str) -> None:
    pytest.importorskip("rich")
    code, shown = in_a_terminal(command, *LONG[command](data, tmp_path))
    assert code == 0
    assert "━" in shown
    assert re.search(r"[0-9]+ (%|records)|[0-9.]+ [KM]iB, ", shown)
    assert shown.endswith("\x1b[2K") or "\x1b[2K" in shown[shown.rindex("━") :]


def test_no_color_is_heeded(data: Path) -> None:
    pytest.importorskip("rich")
    assert re.search("\x1b\\[[0-9;]*3[0-9]", in_a_terminal("verify", data)[1])
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", in_a_terminal("verify", data, NO_COLOR="1")[1])
