"""Draws docs/layers.svg: the packages of kstore and which imports which. `make docs` runs it.

An arrow that follows from others is left out: where `log` imports `files` and `files` imports `disk`, none is drawn
from `log` to `disk`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY))

from tests.support import layers  # noqa: E402

PICTURE = REPOSITORY / "docs" / "layers.svg"

WORDS = {
    "base": "argument checks, limits, optional imports",
    "c": "plain C: CRC, records, columns",
    "disk": "files, locks, open files",
    "config": "Kafka's settings",
    "codec": "record batches as bytes",
    "columns": "Arrow and NumPy",
    "files": "one module for each kind of file",
    "log": "one partition directory",
    "store": "topics, groups, transactions, loads",
    "tools": "dump, verify, repair",
    "copies": "replicas and backups",
    "metrics": "Prometheus, OpenTelemetry",
    "spark": "ingest and scan",
    "cli": "the command line",
}

WIDTH, BOX, HEIGHT, GAP_X, GAP_Y, MARGIN = 900, 190, 58, 30, 46, 20


def package_arrows() -> dict[str, set[str]]:
    """For each package the packages that its files import; `errors` and `types`, which all use, are left out."""
    graph: dict[str, set[str]] = {package: set() for package in WORDS}
    for importer, imported in layers.arrows():
        low, high = layers.package_of(imported), layers.package_of(importer)
        if low != high and low in graph and high in graph:
            graph[high].add(low)
    return graph


def without_the_obvious(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without each arrow that a longer way stands for."""

    def reach(package: str) -> set[str]:
        return graph[package].union(*(reach(lower) for lower in graph[package])) if graph[package] else set()

    return {
        package: {low for low in lows if not any(low in reach(other) for other in lows - {low})}
        for package, lows in graph.items()
    }


def levels(graph: dict[str, set[str]]) -> list[list[str]]:
    """The packages by height, the lowest first: one stands above all that it imports."""
    height: dict[str, int] = {}
    for package in WORDS:  # lower ones come first in layers.PACKAGES and so in WORDS
        height[package] = 1 + max((height[low] for low in graph[package]), default=-1)
    return [[package for package in WORDS if height[package] == level] for level in range(max(height.values()) + 1)]


def picture() -> str:
    """The SVG as text."""
    graph = without_the_obvious(package_arrows())
    rows = levels(graph)[::-1]
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP_X) / 2
        for column, package in enumerate(row):
            place[package] = (left + column * (BOX + GAP_X), MARGIN + number * (HEIGHT + GAP_Y))
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        "<title>The packages of kstore: an arrow leads from a package to one that it imports</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for package, lows in graph.items():
        for low in sorted(lows):
            (x1, y1), (x2, y2) = place[package], place[low]
            start, end = (x1 + BOX / 2, y1 + HEIGHT), (x2 + BOX / 2, y2)
            bend = (end[1] - start[1]) / 2
            parts.append(
                f'<path d="M{start[0]:g} {start[1]:g}C{start[0]:g} {start[1] + bend:g} {end[0]:g} {end[1] - bend:g} '
                f'{end[0]:g} {end[1]:g}" fill="none" stroke="#667" stroke-width="1.2" marker-end="url(#tip)"/>'
            )
    for package, (x, y) in place.items():
        inside = [name for name in layers.INSIDE.get(package, ()) if (layers.KSTORE / package / name).is_dir()]
        words = WORDS[package] if not inside else f"{' · '.join(inside)}"
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}" rx="6" fill="#eef3fb" stroke="#345"/>',
            f'<text x="{x + BOX / 2:g}" y="{y + 24:g}" text-anchor="middle" font-size="16" font-weight="bold" '
            f'fill="#123">{escape(package)}</text>',
            f'<text x="{x + BOX / 2:g}" y="{y + 43:g}" text-anchor="middle" font-size="10.5" fill="#345">'
            f"{escape(words)}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
