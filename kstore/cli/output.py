"""Prints the output of subcommands: tables for people, JSON for programs, colours only on a terminal.

All output goes through the streams that `guarded` installs. Invariant: risky characters are always escaped in text, and
are escaped in records only on a terminal. No control sequence except our own colours reaches a terminal.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.base.text_table import table_lines
from kstore.disk import fs
from kstore.errors import ConfigError, KStoreError

__all__ = [
    "columns",
    "complain",
    "count",
    "failures",
    "guarded",
    "has_colours",
    "in_one_line",
    "json_line",
    "painted",
    "plain",
    "size",
    "write_page",
]

_STYLES = {"bold": "1", "red": "31", "yellow": "33"}


def has_colours(stream: TextIO) -> bool:
    """Whether colours may be written: only to a terminal that supports them, and not if `NO_COLOR` is set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def painted(text: str, style: str) -> str:
    """Put text for standard output in a style if colours may be written."""
    if not has_colours(sys.stdout):
        return text
    begin = _STYLE if isinstance(sys.stdout, _Guard) else "\033["
    return f"{begin}{_STYLES[style]}m{text}{begin}0m"


_STYLE = f"\033{os.urandom(8).hex()}["  # the start of our own styles; random, so that no other text contains it


@contextmanager
def guarded(*, goes_on: bool = False) -> Iterator[None]:
    """Escape risky characters (`terminal.escaped`) in everything that the block writes to standard output and error.

    If the reader of a stream has closed it, a write raises `BrokenPipeError`. With `goes_on` all further output
    is discarded instead.
    """
    before = sys.stdout, sys.stderr
    guards = [None if stream is None else _Guard(stream, goes_on) for stream in before]
    sys.stdout, sys.stderr = cast("list[TextIO]", guards)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def discard(stream: Any) -> None:
    """Discard the buffered and all further output of a stream. Otherwise the interpreter's flush at exit would fail."""
    with suppress(OSError, ValueError, AttributeError):  # the stream is closed, or has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def plain(stream: Any) -> Any:
    """Return the stream that a guard wraps. The progress bar uses it: it moves the cursor and prints only our text."""
    return stream.stream if isinstance(stream, _Guard) else stream


class _Guard:
    """Wraps a stream and escapes the text written to it. Not thread-safe."""

    def __init__(self, stream: TextIO, goes_on: bool = False) -> None:
        self.stream = stream
        self._goes_on = goes_on
        self._bytes: Any = None

    def write(self, text: str) -> int:
        """Write text, escaped except for our own styles."""
        first, *styled = text.split(_STYLE)
        parts = [escaped(first, lines=True)]
        for part in styled:
            code, _, rest = part.partition("m")
            parts.append(f"\033[{code}m{escaped(rest, lines=True)}")
        encoding = self.stream.encoding or "utf-8"
        with self._unread():
            self.stream.write("".join(parts).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._unread():
            self.stream.flush()

    @contextmanager
    def _unread(self) -> Iterator[None]:
        """With `goes_on`, discard output after the reader has closed the stream."""
        try:
            yield
        except BrokenPipeError:
            if not self._goes_on:
                raise
            discard(self.stream)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> Any:
        """The stream for bytes. They are escaped only on a terminal."""
        if not self.stream.isatty():
            return self.stream.buffer
        if self._bytes is None:
            self._bytes = _Bytes(self)
        return self._bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Bytes:
    """Writes bytes to a terminal as UTF-8; bytes that are not UTF-8 are escaped. Not thread-safe."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> int:
        """Write bytes. An incomplete character at the end is written with the next bytes."""
        self._guard.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        self._guard.stream.flush()


class OfPartition(Protocol):
    """A subcommand's result for one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> KStoreError | None: ...


def failures(command: str, results: Iterable[OfPartition]) -> int:
    """Print each partition's error to standard error; return the command's exit code."""
    return complain(command, [f"{each.topic}-{each.partition}: {each.error}" for each in results if each.error])


def complain(command: str, failures: Iterable[str]) -> int:
    """Print each failure to standard error; return 1 if there is a failure, else 0."""
    code = 0
    for failure in failures:
        print(escaped(f"kstore {command}: {failure}"), file=sys.stderr)
        code = 1
    return code


def in_one_line(error: KStoreError | OSError) -> str:
    """Format an error as Unix tools do: the file, a colon, the reason."""
    if isinstance(error, OSError) and error.strerror is not None:
        reason = error.strerror + getattr(error, "advice", "")
        return escaped(reason if error.filename is None else f"{error.filename}: {reason}")
    return escaped(" ".join(str(error).split("\n")))


def count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 topic, 2 topics, 2 batches."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, with numbers aligned to the right and words to the left."""
    first, *others = table_lines(header, rows)
    print(painted(first, "bold"))
    for line in others:
        print(line)


def json_line(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_page(path: str, html: str) -> None:
    """Write a page into a file, and print that. A directory is refused."""
    if fs.exists(path) and fs.is_directory(path):
        raise ConfigError(f"{path} is a directory: name a file in it")
    fs.write_atomically(path, html.encode())
    print(f"written: {escaped(path)}")
