"""Pages whose blocks run as they stand: programs, files, commands, and what these print.

A section is what is below a heading of the second level; each has a directory of its own, or the whole page has one.
The blocks run in order:

- `python`: the blocks share one process and their names, as if typed one after the other.
- `python NAME` (also `properties NAME` and the like): a file of that name, which later commands use.
- `console`: commands behind `$ `, each with what it prints on standard output and error. An exit code other than 0 is a
  last line `[exit code 1]`, of a command that a signal has ended `[exit code 137]` as in a shell.
- `text`: what the `python` block before it printed.

`...` stands for any part of a line, or for any lines where it stands alone. The directory shows as `/srv`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore import cli
from kstore.cli.command_names import module_of

SECONDS = 120
"""How long a section may take on a slow machine, in a checked build."""


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site make of a page's headings."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


class Block(NamedTuple):
    """A fenced block: its language, the name behind it ("" without one), its text, the page's line where it begins."""

    language: str
    name: str
    text: str
    line: int


def sections(page: Path) -> dict[str, list[Block]]:
    """The blocks of a page by section, of those sections that have any."""
    found: dict[str, list[Block]] = {}
    title, opened, lines = "", None, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.fullmatch(r"```(\w*) ?([\w./-]*)", line)
        if opened is None:
            if line.startswith("## "):
                title = line[3:]
            elif fence:
                opened, lines = (fence[1], fence[2], number), []
        elif line == "```":
            found.setdefault(title, []).append(Block(opened[0], opened[1], "".join(lines), opened[2]))
            opened = None
        else:
            lines.append(line + "\n")
    return found


def run(page: Path, title: str, directory: Path) -> None:
    """Run one section in an empty directory; `AssertionError` for the first thing that is not as the page says."""
    _run(sections(page)[title], f"{page.name}, {title}", directory, {})


def run_whole(page: Path, directory: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run all sections of a page, one after the other, as `run` does one, in one empty directory."""
    blocks = [block for section in sections(page).values() for block in section]
    _run(blocks, page.name, directory, environment or {})


def _run(blocks: list[Block], label: str, directory: Path, more: Mapping[str, str]) -> None:
    work, tools = directory / "work", directory / "bin"
    work.mkdir()
    tools.mkdir()
    for name, arguments in {"python": [], "kstore": ["-m", "kstore"], "gunicorn": ["-m", "gunicorn"]}.items():
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *arguments])} "$@"\n')
        script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    environment |= more
    child = subprocess.Popen(
        [sys.executable, __file__, json.dumps(blocks)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=SECONDS)
    finally:
        stop_group(child.pid)
        child.wait()
    assert child.returncode == 0, f"{label}\n{said}"


def stop_group(group: int) -> None:
    """End what a section has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


# --- in the section's process -----------------------------------------------------------------------------------------


def run_blocks(blocks: list[Block]) -> None:
    """Run the blocks in the working directory."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks:
        if block.name:
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = compile("\n" * block.line + block.text, "the page", "exec")
            printed = caught(lambda code=code: exec(code, names))
        elif block.language == "text":
            compare(block.text, printed, block.line)
        elif block.language == "console":
            for line, command, expected in commands(block):
                compare(expected, caught(lambda command=command: shell(command)), line)
        else:
            raise AssertionError(f"line {block.line}: a block of {block.language!r} is not run")


def commands(block: Block) -> list[tuple[int, str, str]]:
    """The commands of a console, each with its line of the page and what it has to print."""
    found: list[tuple[int, str, str]] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append((number, line[2:], ""))
        else:
            first, command, expected = found[-1]
            if command.endswith("\\") and not expected:
                found[-1] = (first, f"{command[:-1]} {line.strip()}", "")
            else:
                found[-1] = (first, command, f"{expected}{line}\n")
    return found


def shell(command: str) -> None:
    """Run a command; an exit code other than 0 is printed."""
    name, *arguments = command.split()
    assert kstore.Store  # loaded here, once, and not in each child
    is_plain = not set(command) & set("|&;<>$*?'\"`\\") and threading.active_count() == 1
    if is_plain and name == "kstore":
        importlib.import_module(module_of(arguments[0]))
        code = forked(lambda: cli.main(arguments))
    elif is_plain and name == "python":
        code = forked(lambda: script(arguments))
    else:
        code = subprocess.run(["bash", "-c", command], check=False).returncode
    if code:
        os.write(1, b"[exit code %d]\n" % (code if code > 0 else 128 - code))


def script(arguments: list[str]) -> None:
    """Run a program as `python` does, with its arguments, and its directory first in the path of modules."""
    sys.argv = arguments
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path(arguments[0], run_name="__main__")


def forked(function: Callable[[], object]) -> int:
    """Call a function in a process that has this one's imports, which take most of a command's time; its exit code."""
    child = os.fork()
    if child == 0:
        try:
            code = function()
        except SystemExit as left:
            code = left.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def caught(function: Callable[[], object]) -> str:
    """What a call prints, its child processes included; a file holds it, since these may go on."""
    with tempfile.TemporaryFile() as kept:
        sys.stdout.flush()
        before = os.dup(1), os.dup(2)
        os.dup2(kept.fileno(), 1)
        os.dup2(kept.fileno(), 2)
        try:
            function()
        finally:
            sys.stdout.flush()
            os.dup2(before[0], 1)
            os.dup2(before[1], 2)
            os.close(before[0])
            os.close(before[1])
            kept.seek(0)
            printed = kept.read().decode("utf-8", "replace")
            if sys.exc_info()[0] is not None:
                print(printed)
        return printed.replace(str(Path.cwd()), "/srv")


def compare(expected: str, printed: str, line: int) -> None:
    """Raise unless the text is as the page has it."""
    pattern = "".join(
        r"(?:.*\n)*" if each.strip() == "..." else re.escape(each).replace(r"\.\.\.", ".*") + r"\n"
        for each in expected.splitlines()
    )
    printed = "".join(each.rstrip() + "\n" for each in printed.splitlines())
    if not re.fullmatch(pattern, printed):
        raise AssertionError(f"line {line}: the page says\n{expected}\nand this is printed\n{printed}")


if __name__ == "__main__":
    run_blocks([Block(*each) for each in json.loads(sys.argv[1])])
