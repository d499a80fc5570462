"""The command line `kstore`: finds the subcommand, loads its file alone, and turns errors into one line.

Each subcommand is a file here with `run(arguments) -> exit code`; `COMMANDS` says which. Arguments are taken apart by
argparse, which Python has at hand: nothing else would start faster. Exit codes: 0 when all went well, 2 for a command
line that cannot be understood, 130 after Ctrl-C, 1 for everything else.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kstore.errors import KStoreError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, str] = {
    "append": "append lines or JSON lines from standard input",
    "cat": "print the records of a partition or a topic",
    "config": "list settings, or say what some of them come to and what they will do",
    "describe": "show what is in a directory of logs, a topic, a partition",
    "dump": "print log, index and snapshot files as Kafka's dump tool does",
    "export": "write records to a Parquet, Arrow or JSON lines file",
    "ingest": "append the rows of CSV, JSON lines, Parquet or Arrow files",
    "offsets": "print where partitions start, end, or reach a time",
    "repair": "mend what can be mended, after saying what would be lost",
    "retain": "delete old segments now, or say which would go and why",
    "tail": "print the last records, and those to come",
    "verify": "check everything that can be wrong with logs and their files",
}

_OWN = ("", "-h", "--help", "help", "--version")
"""What the command line itself answers."""

_USAGE = "usage: kstore [--help] [--version] [--debug] COMMAND ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; 1 for whatever went wrong, 2 for a command that is not there."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    name, *rest = [word for word in arguments if word != "--debug"] or [""]
    if name == "help" and rest[:1] and rest[0] in COMMANDS:
        name, rest = rest[0], ["-h"]
    if name not in COMMANDS and name not in _OWN:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        meant = f"do you mean {near[0]}?" if near else f"there is {', '.join(COMMANDS)}"
        print(f"kstore: no command {name!r}: {meant}", file=sys.stderr)
        return 2
    if sys.stdout is None:
        print(f"kstore {name}: standard output is closed", file=sys.stderr)
        return 1
    with _buffered():
        return _run(name, rest, debug)


@contextmanager
def _buffered() -> Iterator[None]:
    """Buffer standard output where Python was told not to: a write that the system took a part of loses the rest."""
    before = sys.stdout
    raw = getattr(before, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        yield
        return
    buffered = io.BufferedWriter(raw)
    sys.stdout = io.TextIOWrapper(buffered, encoding=before.encoding, errors=before.errors, line_buffering=True)
    try:
        yield
    finally:
        with suppress(OSError):  # told by now
            sys.stdout.detach()
            buffered.detach()
        sys.stdout = before


def _run(name: str, arguments: list[str], debug: bool) -> int:
    try:
        with _warnings_in_one_line(name):
            code = _tell(name) if name in _OWN else importlib.import_module(f"kstore.cli.{name}").run(arguments)
        sys.stdout.flush()
        return int(code)
    except SystemExit:
        # The help, which argparse has printed.
        _flush()
        raise
    except BrokenPipeError:
        # Whoever read has had enough.
        _let_go()
        return 1
    except (KStoreError, OSError) as error:
        _flush()
        if debug:
            raise
        print(f"kstore {name}: {_in_one_line(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        _flush()
        print(f"kstore {name}: interrupted", file=sys.stderr)
        return 130


def _tell(name: str) -> int:
    print(f"kstore {_version()}" if name == "--version" else _overview())
    return 0 if name else 2


@contextmanager
def _warnings_in_one_line(name: str) -> Iterator[None]:
    """Tell of settings that bite together as a tool does, without the line of code that met them."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"kstore {name}: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _in_one_line(error: KStoreError | OSError) -> str:
    """Say what is wrong as a tool of Unix does: the file, a colon, the reason."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split("\n"))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _let_go()


def _let_go() -> None:
    """Give up what was not written: the interpreter would flush once more, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kstore")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def _overview() -> str:
    lines = [_USAGE, "", "commands:", *(f"  {name:10}{what}" for name, what in COMMANDS.items())]
    return "\n".join([*lines, "", "kstore COMMAND --help tells more about a command, with examples."])
