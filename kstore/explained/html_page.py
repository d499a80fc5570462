"""One self-contained page of HTML: pictures, tables and sentences, without scripts, and nothing is fetched.

The page is ASCII and follows the reader's choice of light or dark. Wide pictures and tables scroll within the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kstore.explained import svg

__all__ = ["figure", "fragment", "heading", "page", "paragraph", "section", "style", "table"]

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{margin:0;background:#fff;color:#1b2430;font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:60rem;margin:0 auto;padding:1rem 1rem 3rem}"
    "h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0;overflow-wrap:anywhere}"
    "h2{font-size:1.2rem;margin:2rem 0 .5rem}"
    "p{overflow-wrap:anywhere}"
    ".lead{font-size:1.15rem;font-weight:600}"
    ".note{border-left:4px solid #b1460f;padding:.25rem .75rem;background:#f5f7fa}"
    "footer{margin-top:3rem;color:#566273;font-size:.9rem}"
    "@media (prefers-color-scheme:dark){body{background:#14181d;color:#e6eaf0}"
    ".note{border-color:#f2a071;background:#1b2128}footer{color:#a3afbf}}"
)
# Rules of parts that notebooks show too, where they must not touch what is around them.
_PARTS = (
    ".kstore-scroll{overflow-x:auto;max-width:100%;margin:.75rem 0}"
    ".kstore-scroll:focus-visible{outline:2px solid #0b57d0;outline-offset:2px}"
    ".kstore-scroll>svg{display:block;width:100%;min-width:800px;max-width:1100px;height:auto}"
    ".kstore-scroll>table{border-collapse:collapse;font-size:.9rem;line-height:1.4}"
    ".kstore-scroll>table :is(th,td){padding:.3rem .75rem .3rem 0;border-bottom:1px solid #7d93ad66;"
    "text-align:left;vertical-align:top}"
    ".kstore-scroll>table .number{text-align:right;font-variant-numeric:tabular-nums}"
    ".kstore-scroll>table :is(th,td):not(.long){white-space:nowrap}"
    ".kstore-scroll>table .long{min-width:15rem}"
)


def page(title: str, parts: Sequence[str], *, made_by: str = "kstore") -> str:
    """Return a whole page.

    Args:
        title: Its heading, and its name in the browser. Any text.
        parts: What it shows: HTML, made by the other functions of this module, with pictures that are not styled.
        made_by: What the last line says of where the page comes from. Any text.
    """
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{svg.safe(title)}</title>\n<style>{_STYLE}{style()}</style></head>\n"
    )
    body = "\n".join(parts)
    last = f"<footer>{svg.safe(made_by)}. Times are UTC.</footer>"
    return f"{head}<body><main>\n<h1>{svg.safe(title)}</h1>\n{body}\n{last}\n</main></body></html>\n"


def fragment(parts: Sequence[str]) -> str:
    """Return what a notebook shows: parts with pictures that are not styled, and the rules that they need."""
    return f'<div class="kstore"><style>{style()}</style>\n{"".join(parts)}</div>\n'


def style() -> str:
    """Return the rules of CSS for pictures and for what is around them, for a page that has rules of its own."""
    return f"{_PARTS}{svg.style()}"


def section(title: str, parts: Iterable[str]) -> str:
    """Return a part of a page under a heading."""
    return f"<section>\n{heading(title)}\n{''.join(parts)}</section>"


def heading(title: str) -> str:
    """Return the heading of a part."""
    return f"<h2>{svg.safe(title)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is "lead" for what is most important, and "note"."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{svg.safe(text)}</p>\n"


def figure(picture: str, name: str) -> str:
    """Return a picture that scrolls within the page if the window is narrow; the keyboard can scroll it, too."""
    return f'<div class="kstore-scroll" role="region" tabindex="0" aria-label="{svg.safe(name)}">\n{picture}</div>\n'


def table(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    long: Iterable[int] = (),
) -> str:
    """Return a table.

    Args:
        name: What it lists.
        columns: The headings.
        rows: The values, of any type.
        numbers: The columns that hold numbers.
        long: The columns that hold sentences.
    """
    kinds = {**dict.fromkeys(numbers, ' class="number"'), **dict.fromkeys(long, ' class="long"')}
    head = "".join(
        f'<th scope="col"{kinds.get(number, "")}>{svg.safe(column)}</th>' for number, column in enumerate(columns)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kinds.get(number, '')}>{svg.safe(str(value))}</td>" for number, value in enumerate(row))
        + "</tr>"
        for row in rows
    )
    grid = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n"
    return figure(grid, name)
