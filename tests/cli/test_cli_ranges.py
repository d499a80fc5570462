"""Ranges have the same names in `cat`, `tail`, `export` and `dump`, and a reader that goes away ends nothing badly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli

HOUR = 3_600_000
TIMES = ("2013-06-01T01:00", "2013-06-01T03:00")
START_MS = 1_370_044_800_000  # 2013-06-01
KSTORE = (sys.executable, "-m", "kstore")


@pytest.fixture
def events(root: Path) -> Path:
    """Records 0 to 4, an hour apart, each in a batch."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events")
        for number in range(5):
            store.append("events", b"%d" % number, key=b"k", timestamp=START_MS + number * HOUR)
    return root / "events-0"


def printed(command: str, events: Path, arguments: list[str], capsysbinary: Any) -> list[int]:
    """The offsets that a subcommand gives for a range."""
    if command == "export":
        to = events.parent.parent / "out.jsonl"
        assert cli.main([command, str(events), "--to", str(to), "--force", *arguments]) == 0
        capsysbinary.readouterr()
        lines = to.read_bytes().splitlines()
    else:
        how = ["--json", "--deep-iteration"] if command == "dump" else ["--json"]
        assert cli.main([command, str(events), *how, *arguments]) == 0
        lines = capsysbinary.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    return [line["offset"] for line in found if line.get("type", "record") == "record"]


@pytest.mark.parametrize("command", ["cat", "tail", "export", "dump"])
@pytest.mark.parametrize("start", ["--from", "--from-time"])
@pytest.mark.parametrize("end", ["--until", "--to-time"])
def test_a_range_of_times_has_the_same_names_everywhere(
    events: Path, capsysbinary: Any, command: str, start: str, end: str
) -> None:
    assert printed(command, events, [start, TIMES[0], end, TIMES[1]], capsysbinary) == [1, 2]


@pytest.mark.parametrize("command", ["cat", "tail", "export", "dump"])
@pytest.mark.parametrize("start", ["--offset", "--from-offset"])
@pytest.mark.parametrize("end", ["--until-offset", "--to-offset"])
def test_a_range_of_offsets_has_the_same_names_everywhere(
    events: Path, capsysbinary: Any, command: str, start: str, end: str
) -> None:
    assert printed(command, events, [start, "1", end, "3"], capsysbinary) == [1, 2]


def test_names_of_before_and_kafkas_go_on_working(events: Path, capsysbinary: Any) -> None:
    assert printed("cat", events, ["-o", "3"], capsysbinary) == [3, 4]
    assert printed("cat", events, ["--from", TIMES[0], "--to", TIMES[1]], capsysbinary) == [1, 2]
    assert printed("cat", events, ["--max-messages", "2"], capsysbinary) == [0, 1]
    assert printed("dump", events, ["-from-offset=4"], capsysbinary) == [4]


@pytest.mark.parametrize("command", ["cat", "export", "dump"])
def test_a_mistake_names_the_option(
    events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = ["--to", str(tmp_path / "x.jsonl")] if command == "export" else []
    assert cli.main([command, str(events), *more, "--until-offset", "x"]) != 0
    assert "--until-offset" in capsys.readouterr().err
    assert cli.main([command, str(events), *more, "--until", "soon"]) != 0
    assert "'soon' is no time" in capsys.readouterr().err


# --- the reader goes away ---------------------------------------------------------------------------------------------


@pytest.fixture
def large(root: Path) -> Path:
    """More records, topics and partitions than fit into a pipe."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("big")
        store.append_many("big", (b"%090d" % number for number in range(20_000)))
        store.append_many("big", (b"%d" % number for number in range(3000)), batch_bytes=1)
    return root


def unread(*arguments: object, reads: int = 0, stderr: Any = subprocess.PIPE) -> tuple[int, bytes]:
    """A command's exit code and errors when its reader takes so many bytes and goes away."""
    with subprocess.Popen([*KSTORE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdout is not None
        process.stdout.read(reads)
        process.stdout.close()
        errors = b"" if process.stderr is None else process.stderr.read()
        return process.wait(), errors


@pytest.mark.parametrize(
    ("command", "reads"),
    [("cat big-0", 100), ("cat big --json", 0), ("tail big-0 --last 20000", 0), ("dump --deep-iteration big-0", 100),
     ("dump big-0 --json", 0), ("describe .", 0), ("offsets .", 0), ("config", 100), ("cat --help", 0), ("--help", 0)],
)  # fmt: skip
def test_a_command_that_prints_ends_well_when_its_reader_goes_away(large: Path, command: str, reads: int) -> None:
    name, *rest = command.split()
    words = [str(large / word) if word in ("big", "big-0", ".") else word for word in rest]
    assert unread(name, *words, reads=reads) == (0, b"")


def test_cat_into_head_ends_with_0_in_a_shell(large: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m kstore cat {large}/big-0 | head -n 2"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"%090d\n%090d\n" % (0, 1)


def test_a_tail_that_follows_ends_when_it_has_something_to_print_and_no_reader(large: Path) -> None:
    with subprocess.Popen(
        [*KSTORE, "tail", "-f", str(large / "big-0"), "--last", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        with kstore.Log.open(large / "big-0") as log:
            log.append(b"x")
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_a_command_that_works_goes_on_without_its_reader_and_says_how_that_went(large: Path) -> None:
    assert unread("verify", large) == (0, b"")
    with kstore.Log.open(large / "big-0") as log:
        segment = Path(log.segments[0].path)
    with segment.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    assert unread("verify", large) == (1, b"")
    assert unread("compact", "--help") == (0, b"")
    assert unread("nothing")[0] == 2


def test_all_of_the_input_is_appended_when_the_offsets_are_not_read(root: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*KSTORE, "append", str(root / "t-0"), "--json"], input=b'{"value": "x"}\n' * 5000, stdout=write,
        stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    with kstore.Log.open(root / "t-0", "r") as log:
        assert log.log_end_offset == 5000


def test_an_error_that_cannot_be_printed_is_the_exit_code_alone(large: Path) -> None:
    """`kstore ... 2>&1 | head`: both streams are the same pipe."""
    assert unread("cat", large / "big-0", stderr=subprocess.STDOUT)[0] == 0
    assert unread("cat", large / "no-such", stderr=subprocess.STDOUT)[0] == 1
