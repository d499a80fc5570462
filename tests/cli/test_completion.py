"""`kstore completion`: the scripts name every command and option, and a shell takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kstore import cli
from kstore.cli.commands import completion_command
from tests.support.printed import Printed


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("completion")
    for shell, write in completion_command._SCRIPTS.items():
        (root / shell).write_text(write())
    return root


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f'. {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _kstore; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_the_options_of_each(scripts: Path) -> None:
    script = scripts / "bash"
    assert completed(script, "kstore", "re") == ["repair", "replicate", "restore", "retain"]
    assert completed(script, "kstore", "help", "tr") == ["truncate"]
    assert completed(script, "kstore", "groups", "--r") == ["--reset-to"]
    assert completed(script, "kstore", "dump", "--print") == ["--print-data-log"]
    assert completed(script, "kstore", "truncate", "data/", "--d") == ["--dry-run"]
    assert completed(script, "kstore", "truncate", "da") == []  # bash's own completion of paths follows
    assert completed(script, "kstore", "nonsense", "--") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_one_that_its_shell_can_parse(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    subprocess.run([shell, "-n", scripts / shell], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_every_command_and_the_options_in_its_help(scripts: Path, shell: str) -> None:
    words = set(re.findall(r"[a-z][a-z-]*", (scripts / shell).read_text()))
    assert {*cli.COMMANDS, "reset-to", "print-data-log", "retention-ms", "key", "help"} <= words


def test_a_shell_that_is_not_known_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "completion", "tcsh")
    assert (found.code, found.out) == (2, "")
    assert Printed(capsys, "completion", "fish").out.startswith("complete -c kstore")
