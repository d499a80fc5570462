"""The command line `kstore`: imports only the module of the subcommand, runs it, and prints an error as one line.

Each subcommand is a module of `commands`, with `run(arguments) -> exit code`. Arguments are parsed by argparse: no
other library starts faster. Exit codes: 0 for success, 2 for an invalid command line, 3 if `ingest` rejected rows,
130 after Ctrl-C, 1 otherwise.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from kstore.base.terminal import escaped
from kstore.cli import output
from kstore.cli.command_names import COMMANDS, module_of
from kstore.errors import KStoreError

__all__ = ["COMMANDS", "main"]

_READING = ("cat", "completion", "config", "describe", "dump", "explain", "offsets", "plan", "tail")
"""Commands that only print. If the reader of their output closes it, they end with success. All others continue,
and their exit code reports the result of their work."""

_OWN = ("", "-h", "--help", "help", "--version")
"""The words that need no subcommand."""

_USAGE = "usage: kstore [--help] [--version] [--debug] COMMAND ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _fill_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    name, *rest = [word for word in arguments if word != "--debug"] or [""]
    if name == "help" and rest[:1] and rest[0] in COMMANDS:
        name, rest = rest[0], ["-h"]
    if name not in COMMANDS and name not in _OWN:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"do you mean {near[0]}?" if near else f"there is {', '.join(COMMANDS)}"
        _complain(f"kstore: no command {name!r}: {hint}")
        return 2
    if sys.stdout is None:
        _complain(f"kstore {name}: standard output is closed")
        return 1
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_uncaught
    with _buffered(), output.guarded(goes_on=name not in _READING and name not in _OWN):
        return _run(name, rest, debug)


def _fill_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller has closed, for example with `2>&-`.

    Otherwise a log's file could get the descriptor of such a stream, and output would be written into the log.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, with risky characters in its messages escaped."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(escaped(text, lines=True), end="", file=sys.stderr)


@contextmanager
def _buffered() -> Iterator[None]:
    """Buffer standard output even with `python -u`: without a buffer, a partial write would lose unwritten bytes."""
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
        with suppress(OSError):  # an earlier flush reported it
            sys.stdout.detach()
            buffered.detach()
        sys.stdout = before


def _run(name: str, arguments: list[str], debug: bool) -> int:
    try:
        with _warnings_in_one_line(name):
            code = _print_own(name) if name in _OWN else importlib.import_module(module_of(name)).run(arguments)
        sys.stdout.flush()
        return int(code)
    except SystemExit:
        # argparse has printed the help.
        _flush()
        raise
    except BrokenPipeError:
        # The reader of the output has closed it because it needs no more, as `head` does.
        output.discard(sys.stdout)
        output.discard(sys.stderr)
        return 0
    except (KStoreError, OSError) as error:
        _flush()
        if debug:
            raise
        _complain(f"kstore {name}: {output.in_one_line(error)}")
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        _flush()
        _complain(f"kstore {name}: interrupted")
        return 130


def _print_own(name: str) -> int:
    print(f"kstore {_version()}" if name == "--version" else _overview())
    return 0 if name else 2


@contextmanager
def _warnings_in_one_line(name: str) -> Iterator[None]:
    """Print warnings about settings in one line, without the source line that issued them."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"kstore {name}: warning: {escaped(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _complain(line: str) -> None:
    """Print a line to standard error, unless its reader has closed it."""
    try:
        print(line, file=sys.stderr)
    except BrokenPipeError:
        output.discard(sys.stderr)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        output.discard(sys.stdout)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    from kstore.codec.compression import LIBRARIES

    try:
        number = version("kstore")
    except PackageNotFoundError:
        number = "(a checkout that is not installed)"
    return "\n".join([number, *(f"{name}: {library}" for name, library in LIBRARIES.items())])


def _overview() -> str:
    lines = [_USAGE, "", "commands:", *(f"  {name:15}{what}" for name, what in COMMANDS.items())]
    return "\n".join([*lines, "", "kstore COMMAND --help describes a command, with examples."])
