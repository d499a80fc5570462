"""`kstore cat` and `kstore tail` with `--key` and `--grep`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from tests.support.printed import Printed

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.fixture
def data(root: Path) -> Path:
    rows = [(b"a", b"one"), (b"b", b"two\xff"), (None, b"three"), (b"a", None), (b"", b"five"), (b"ab", b"one more")]
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", partitions=2)
        for number in range(2):
            store.log("t", number).append_many(rows)
    return root


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--key", "a"], [0, 3]),
        (["--key", ""], [4]),
        (["--key", "c"], []),
        (["--grep", "o"], [0, 1, 5]),
        (["--grep", "^one$"], [0]),
        (["--grep", "(?i)ONE"], [0, 5]),
        (["--grep", r"\xff"], [1]),
        (["--grep", ""], [0, 1, 2, 4, 5]),
        (["--key", "a", "--grep", "one"], [0]),
        (["--grep", "o", "--max", "2"], [0, 1]),
        (["--grep", "one", "--last", "3"], [5]),
        (["--grep", "one", "--offset", "1"], [5]),
        (["--key", "a", "--until-offset", "3"], [0]),
        (["--latest", "--key", "b"], [1]),
        (["--latest", "--key", "a"], []),
    ],
)
def test_exactly_the_records_that_match_are_printed(
    data: Path, capsysbinary: pytest.CaptureFixture[bytes], arguments: list[str], offsets: list[int]
) -> None:
    assert kstore.cli.main(["cat", str(data / "t-0"), *arguments, "--format", r"%o\n"]) == 0
    assert capsysbinary.readouterr().out == b"".join(b"%d\n" % offset for offset in offsets)


def test_the_records_of_a_topic_and_of_a_tail_are_chosen_too(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "cat", data / "t", "--grep", "^one", "--format", r"%p %o\n")
    assert found.out.splitlines() == ["0 0", "0 5", "1 0", "1 5"]
    found = Printed(capsys, "tail", data / "t-0", "-n", 2, "--grep", "o", "--format", r"%o\n")
    assert found.out.splitlines() == ["5"]
    found = Printed(capsys, "tail", data / "t-0", "-f", "--timeout", 0, "--key", "ab", "--format", r"%o\n")
    assert found.out.splitlines() == ["5"]


@pytest.mark.parametrize("regex", ["(", "[z-a]", "a{99999999999}", "\\", "(?P<x>a)(?P<x>b)", "(" * 5000])
def test_a_bad_regular_expression_is_a_mistake_in_the_command_line(
    data: Path, capsys: pytest.CaptureFixture[str], regex: str
) -> None:
    found = Printed(capsys, "cat", data / "t-0", "--grep", regex)
    assert (found.code, found.out) == (2, "")
    assert "is no regular expression" in found.err


def test_keys_are_compared_as_the_bytes_of_the_command_line(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t")
        store.log("t", 0).append_many([(b"\xff\xfe", b"bytes"), ("\u00e9".encode(), b"text")])
    for key, value in ((b"\xff\xfe", b"bytes\n"), ("\u00e9".encode(), b"text\n")):
        command: list[bytes] = [os.fsencode(sys.executable), b"-m", b"kstore", b"cat"]
        done = subprocess.run([*command, os.fsencode(root / "t-0"), b"--key", key], capture_output=True, check=True)
        assert done.stdout == value
