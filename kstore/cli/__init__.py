"""The command line `kstore`: finds the subcommand, loads its file alone, and turns errors into one line.

Each subcommand is a file here with `run(arguments) -> exit code`; `COMMANDS` says which. Arguments are taken apart by
argparse, which Python has at hand: nothing else would start faster.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kstore.errors import KStoreError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, str] = {
    "append": "append lines or JSON lines from standard input",
    "cat": "print the records of a partition or a topic",
    "config": "list settings, or say what some of them come to and what they will do",
    "describe": "show what is in a directory of logs, a topic, a partition",
    "dump": "print log, index and snapshot files as Kafka's dump tool does",
    "repair": "mend what can be mended, after saying what would be lost",
    "retain": "delete old segments now, or say which would go and why",
    "offsets": "print where partitions start, end, or reach a time",
    "tail": "print the last records, and those to come",
    "verify": "check everything that can be wrong with logs and their files",
}

_USAGE = "usage: kstore [--help] [--version] [--debug] COMMAND ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; 1 for whatever went wrong, 2 for a command that is not there."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    debug = "--debug" in arguments
    name, *rest = [word for word in arguments if word != "--debug"] or ["--help"]
    if name == "--version":
        print(f"kstore {_version()}")
        return 0
    if name not in COMMANDS:
        print(f"kstore: no command {name!r}: there is {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return _run(name, rest, debug)


def _run(name: str, arguments: list[str], debug: bool) -> int:
    command = importlib.import_module(f"kstore.cli.{name}")
    try:
        code: int = command.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read has had enough. The interpreter would flush once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KStoreError, OSError) as error:
        _flush()
        if debug:
            raise
        print(f"kstore {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _flush()
        print(f"kstore {name}: interrupted", file=sys.stderr)
        return 130


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kstore")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def _overview() -> str:
    lines = [_USAGE, "", "commands:", *(f"  {name:10}{what}" for name, what in COMMANDS.items())]
    return "\n".join([*lines, "", "kstore COMMAND -h tells more about a command."])
