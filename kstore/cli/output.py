"""How subcommands print: tables for people, JSON for programs; colours on a terminal alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

__all__ = ["columns", "count", "has_colours", "json_line", "painted", "size"]

_STYLES = {"bold": "1", "red": "31", "yellow": "33"}


def has_colours(stream: TextIO) -> bool:
    """Whether colours may be written: a terminal that knows them, and a user who has not asked for none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def painted(text: str, style: str) -> str:
    """Put text on standard output in a style, where that may be."""
    return f"\033[{_STYLES[style]}m{text}\033[0m" if has_colours(sys.stdout) else text


def count(number: int, noun: str) -> str:
    """Write how many there are: 1 topic, 2 topics, 2 batches."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: numbers to the right, words to the left."""
    lines = [tuple(header), *(tuple(map(str, row)) for row in rows)]
    raw = [[line[n] for line in lines[1:]] for n in range(len(header))]
    widths = [max(len(header[n]), *map(len, cells), 0) for n, cells in enumerate(raw)]
    right = [
        bool(cells) and all(cell.replace(" ", "").replace("-", "0")[:1].isdigit() for cell in cells) for cells in raw
    ]
    for number, line in enumerate(lines):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        text = "  ".join(cells).rstrip()
        print(text if number else painted(text, "bold"))


def json_line(value: Any) -> None:
    """Print one JSON value in one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def size(count: int) -> str:
    """Write a number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
