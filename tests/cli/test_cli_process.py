"""The command line as a whole: help, exit codes, pipes, signals, terminals; by a process where it counts."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore.cli import output
from kstore.codec.compression import LIBRARIES
from kstore.disk import fs

KSTORE = (sys.executable, "-m", "kstore")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic `big` of 5 MB in one partition, and an empty one `none`."""
    root = tmp_path_factory.mktemp("cli") / "data"
    with kstore.Log.open(root / "big-0", segment_bytes=1 << 20) as log:
        log.append_many([b"x" * 1000] * 5000)
    kstore.Log.open(root / "none-0").close()
    return root


def started(*arguments: object, **how: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*KSTORE, *map(str, arguments)], stderr=subprocess.PIPE, **how)  # type: ignore[call-overload]


def error_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stderr is not None
    with process, process.stderr as stderr:
        return stderr.read()


# Help and mistakes


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([command, "-h"], ["help", command]):
        try:
            code = cli.main(arguments)
        except SystemExit as left:
            code = left.code  # type: ignore[assignment]
        assert code in (0, None)
        said = capsys.readouterr().out
        assert f"kstore {command}" in said.split("examples:")[1]
        assert max(map(len, said.splitlines())) <= 120


def test_the_overview_names_every_command_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^  ([a-z-]+) ", said, re.MULTILINE) == sorted(cli.COMMANDS)
    assert cli.main([]) == 2
    assert capsys.readouterr().out == said
    assert cli.main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("kstore ")
    assert said.splitlines()[1:] == [f"{name}: {library}" for name, library in LIBRARIES.items()]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ofsets"], "do you mean offsets?"),
        (["no-such"], "there is adopt"),
        (["cat"], "required: DIR ('kstore cat --help' tells more)"),
        (["cat", "x-0", "--no-such"], "--no-such"),
        (["cat", "x-0", "--offset", "x"], "--offset"),
        (["cat", "x-0", "--max", "-1"], "it is -1; 0 is the least"),
        (["cat", "x-0", "--max", f"{1 << 63}"], f"it is {1 << 63}; {(1 << 63) - 1} is the most"),
        (["tail", "x-0", "--last", "-1"], "it is -1; 0 is the least"),
        (["tail", "x-0", "-f", "--timeout", "-1"], "it is -1; 0 is the least"),
        (["tail", "x-0", "-f", "--timeout", "nan"], "it is nan; 0 is the least"),
        (["tail", "x-0", "-f", "--timeout", "5s"], "'5s' is no number of seconds"),
        (["append", "x-0", "--key-separator", ""], "--key-separator is empty"),
        (["tail", "x-0", "--json", "--format", "%s"], "not allowed with"),
        (["verify"], "PATH"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_one_line_and_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert told in printed.err


def test_a_traceback_is_for_those_who_ask_for_it(root: Path) -> None:
    with pytest.raises(kstore.KStoreError):
        cli.main(["cat", str(root / "nothing"), "--debug"])
    shown = subprocess.run([*KSTORE, "--debug", "cat", root / "nothing"], capture_output=True, check=False)
    assert b"Traceback" in shown.stderr


TAKES_A_PATH = [
    *(f"{name} {{}}" for name in ("append", "become-leader", "cat", "describe", "dump", "offsets", "repair --yes")),
    *("tail {}", "verify {}", "export {} --to x.jsonl", "compact {}", "compact {} --dry-run", "retain {}"),
    *("replicate {} copy", "replicate data {}", "backup {} --to copy", "backup data --to {}", "restore {} copy"),
    "ingest events.jsonl --to {} --topic t",
]


@pytest.mark.parametrize("line", TAKES_A_PATH)
def test_an_empty_path_is_refused_and_taken_for_no_directory(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `kstore repair --yes "$DIR"` in a script that has not set it."""
    monkeypatch.chdir(tmp_path)
    kstore.Log.open("data/events-0").close()
    Path("events.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    assert cli.main([word.format("") for word in line.split()]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert sorted(map(str, Path().iterdir())) == ["data", "events.jsonl"]


@pytest.mark.parametrize("line", ["become-leader", "retain", "retain --dry-run", "compact", "compact --dry-run"])
def test_a_directory_that_is_named_twice_is_one_line(line: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kstore.Log.open(root / "events-0").close()
    name, *options = line.split()
    assert cli.main([name, str(root), f"{root}/", *options]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "is named twice" in printed.err


def test_a_directory_without_partitions_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    for line in ("cat", "tail", "append", "offsets", "export --to x.jsonl"):
        name, *options = line.split()
        assert cli.main([name, str(tmp_path), *options]) == 1
        assert capsys.readouterr() == ("", f"kstore {name}: there is no partition in {tmp_path}\n")
    assert cli.main(["repair", str(tmp_path)]) == 0
    assert capsys.readouterr() == (f"{tmp_path}: no partition is here\n", "")


def test_a_dump_of_what_is_not_there_names_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nothing"
    assert cli.main(["dump", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"kstore dump: {path}: there is no partition, topic or directory of logs of this name\n"
    )


@pytest.mark.filterwarnings("always::kstore.ConfigWarning")
def test_settings_that_bite_are_told_in_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = warnings.showwarning
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        given = ["-c", "segment.bytes=1000000", "-c", "max.message.bytes=2000000"]
        assert cli.main(["append", str(root / "events-0"), *given]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kstore append: warning: max.message.bytes")
    assert warnings.showwarning is shown


# Pipes


@pytest.mark.parametrize("command", ["cat", "cat --json", "tail -n 4000", "dump --print-data-log --files"])
def test_a_reader_that_has_had_enough_ends_it_quietly(data: Path, command: str) -> None:
    name, *more = command.split()
    path = data / "big-0" / ("00000000000000000000.log" if name == "dump" else "")
    line = f'"{sys.executable}" -m kstore {name} {" ".join(more)} "{path}" | head -n 1'
    shown = subprocess.run(line, shell=True, capture_output=True, check=False)
    assert shown.stdout.count(b"\n") == 1
    assert shown.stderr == b""


@pytest.mark.parametrize("command", ["cat", "describe"])
def test_a_full_disk_behind_standard_output_is_one_line(data: Path, command: str) -> None:
    with open("/dev/full", "wb") as full:
        process = started(command, data / "big-0", stdout=full)
    assert error_of(process) == b"kstore %s: No space left on device\n" % command.encode()
    assert process.returncode == 1


def test_what_a_full_disk_cut_short_is_told_where_python_buffers_nothing(data: Path, tmp_path: Path) -> None:
    """When the system writes only a part of the bytes, the rest must be written, too."""
    line = f'ulimit -f 8; PYTHONUNBUFFERED=1 "{sys.executable}" -m kstore cat "{data / "big-0"}" >"{tmp_path / "out"}"'
    shown = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert (shown.returncode, shown.stderr) == (1, b"kstore cat: File too large\n")


@pytest.mark.parametrize("line", ["cat --max 1", "verify"])
def test_a_closed_standard_error_changes_nothing(data: Path, line: str) -> None:
    name, *options = line.split()
    command = f'"{sys.executable}" -m kstore {name} "{data / "big-0"}" {" ".join(options)}'
    usual = subprocess.run(command, shell=True, capture_output=True, check=False)
    closed = subprocess.run(f"{command} 2>&-", shell=True, capture_output=True, check=False)
    assert (closed.returncode, closed.stdout) == (usual.returncode, usual.stdout)
    assert subprocess.run(f"{command}-none 2>&-", shell=True, capture_output=True, check=False).stdout == b""


LOWEST = """
import os, sys
from kstore import cli
assert cli.main(["offsets", sys.argv[1]]) == 0
fd = os.open(sys.argv[1], os.O_RDONLY)
os._exit(0 if fd > 2 else 1)
"""


def test_no_file_of_a_log_gets_the_number_of_a_closed_standard_stream(data: Path) -> None:
    """What is written to standard error would go into the log."""
    line = f'"{sys.executable}" -c \'{LOWEST}\' "{data}" <&- 2>&-'
    assert subprocess.run(line, shell=True, stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_closed_standard_output_is_one_line(data: Path) -> None:
    line = f'"{sys.executable}" -m kstore cat "{data / "big-0"}" >&-'
    shown = subprocess.run(line, shell=True, capture_output=True, check=False)
    assert (shown.returncode, shown.stderr) == (1, b"kstore cat: standard output is closed\n")


def test_tail_in_a_process_shows_a_record_as_it_comes(tmp_path: Path) -> None:
    kstore.Log.open(tmp_path / "one-0").close()
    process = started("tail", "-f", tmp_path / "one-0", "--timeout", 240, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as shown, kstore.Log.open(tmp_path / "one-0") as log:
        for number in range(3):
            log.append(b"%d" % number)
            assert shown.readline() == b"%d\n" % number
        process.send_signal(signal.SIGINT)
        assert shown.read() == b""
    assert error_of(process) == b""
    assert process.returncode == 130


def test_ctrl_c_ends_a_check_on_several_threads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are told to stop at the next stretch of bytes, not at the end of what they were given."""
    from kstore.tools.check import verify as verifying

    heard: list[int] = []

    def check(target: object, deep: bool, progress: object) -> object:
        assert callable(progress)
        heard.append(0)
        if len(heard) == 1:
            raise KeyboardInterrupt
        until = time.monotonic() + 120
        while time.monotonic() < until:
            progress(1)
            time.sleep(0.001)
        gone_on.append(target)

    gone_on: list[object] = []
    monkeypatch.setattr(verifying, "_check", check)
    assert cli.main(["verify", "--threads", "2", str(data)]) == 130
    assert gone_on == []


# Terminals


def in_a_terminal(*arguments: object) -> str:
    """What a command prints where its standard output is a terminal."""
    ours, theirs = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = started(*arguments, stdout=theirs, env={**known, "TERM": "xterm"})
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # the other end is closed: Linux says so in this way
        while more := os.read(ours, 65536):
            found += more
    os.close(ours)
    assert error_of(process) == b""
    return found.decode()


def test_colours_are_for_terminals_and_those_who_want_them(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_terminal("describe", data).startswith("\033[1mpartition")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value, text in (("X", "", "\033[31mx\033[0m"), ("NO_COLOR", "1", "x"), ("TERM", "dumb", "x")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.delenv("NO_COLOR", raising=False)
            patch.setenv(name, value)
            assert output.painted("x", "red") == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert output.painted("x", "red") == "x"


def test_counts_have_their_plural() -> None:
    assert [output.count(*each) for each in ((0, "topic"), (1, "batch"), (2, "batch"))] == [
        "0 topics",
        "1 batch",
        "2 batches",
    ]


# Repair


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A closed log of three batches, the second of them damaged."""
    path = tmp_path / "data" / "events-0"
    with kstore.Log.open(path) as log:
        for number in range(3):
            log.append_many([b"%d" % number] * 4)
    name = path / "00000000000000000000.log"
    content = bytearray(name.read_bytes())
    content[len(content) // 2] ^= 1
    name.write_bytes(content)
    return path


def test_a_log_is_repaired_by_a_process_once_no_other_uses_it(damaged: Path) -> None:
    holder = (
        "import sys; from kstore.disk import fs; l = fs.lock_partition(sys.argv[1]); print('held', flush=True); input()"
    )
    before = {path.name: path.read_bytes() for path in damaged.iterdir()}
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(damaged)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for arguments in ([], ["--yes"]):
            refused = subprocess.run([*KSTORE, "repair", damaged, *arguments], capture_output=True, check=False)
            assert (refused.returncode, refused.stdout, refused.stderr.count(b"\n")) == (1, b"", 1)
            assert str(other.pid).encode() in refused.stderr
        assert {path.name: path.read_bytes() for path in damaged.iterdir()} == before
        other.communicate()
    assert not list(damaged.parent.parent.glob("*backup*"))

    said = subprocess.run([*KSTORE, "repair", damaged], capture_output=True, check=False, text=True)
    assert said.returncode == 1
    assert "kept: 8 records in 2 batches" in said.stdout
    assert re.search(r"lost: \d+ bytes, offsets 4 to 7, at most 4 records", said.stdout)
    assert "--yes" in said.stdout
    assert {path.name: path.read_bytes() for path in damaged.iterdir()} == before

    done = subprocess.run([*KSTORE, "repair", "--yes", damaged], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (backup,) = damaged.parent.parent.glob("data-backup-*")
    copies = {path.name: path.read_bytes() for path in (backup / "events-0").iterdir()}
    assert copies == {name: before[name] for name in copies}
    assert "00000000000000000000.log" in copies
    checked = subprocess.run([*KSTORE, "verify", damaged.parent], capture_output=True, check=False, text=True)
    assert (checked.returncode, checked.stdout.split(": ")[-1]) == (0, "nothing wrong\n")
    with kstore.Log.open(damaged, "r") as log:
        assert [record.offset for record in log.read()] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_log_in_a_store_that_is_open_is_not_repaired(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fs.lock_root(damaged.parent, shared=False):
        assert cli.main(["repair", "--yes", str(damaged)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
