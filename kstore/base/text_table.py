"""Lays out rows of text as a table, with numbers aligned to the right and words to the left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["table_lines"]


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, the header first, without spaces at their ends.

    A column is aligned to the right if each of its cells begins with a digit or a dash.
    """
    lines = [tuple(header), *(tuple(map(str, row)) for row in rows)]
    raw = [[line[n] for line in lines[1:]] for n in range(len(header))]
    widths = [max(len(header[n]), *map(len, cells), 0) for n, cells in enumerate(raw)]
    right = [
        bool(cells) and all(cell.replace(" ", "").replace("-", "0")[:1].isdigit() for cell in cells) for cells in raw
    ]
    laid = []
    for line in lines:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        laid.append("  ".join(cells).rstrip())
    return laid
