"""The parts of which every picture is made: text that is measured and escaped, boxes, lines, arrow heads, colours.

Pictures are ASCII, have no scripts and refer to nothing outside. Their colours are classes, whose rules `style`
returns, and follow the reader's choice of light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from kstore.base.terminal import escaped

__all__ = [
    "Sheet",
    "box",
    "document",
    "fitted",
    "label",
    "line",
    "linked",
    "path",
    "polygon",
    "safe",
    "style",
    "text",
    "width_of",
    "wrapped",
]

_SCOPE = ".kstore-picture"

# Class, attribute and colour, in light and in dark surroundings.
_COLOURS = (
    ("paper", "fill", "#ffffff", "#14181d"),
    ("panel", "fill", "#f5f7fa", "#1b2128"),
    ("ink", "fill", "#1b2430", "#e6eaf0"),
    ("soft", "fill", "#566273", "#a3afbf"),
    ("inkline", "stroke", "#1b2430", "#e6eaf0"),
    ("grid", "stroke", "#dfe5ec", "#2c343e"),
    ("edge", "stroke", "#7d93ad", "#6f89a8"),
    ("edgeink", "fill", "#7d93ad", "#6f89a8"),
    ("sealed", "fill", "#d6e4f7", "#2b4160"),
    ("active", "fill", "#fdeac2", "#4a3a14"),
    ("before", "fill", "#e7e9ec", "#2a2f36"),
    ("going", "fill", "#f8d0c8", "#6b2c22"),
    ("goingink", "fill", "#a3260f", "#f5a593"),
    ("goingline", "stroke", "#a3260f", "#f5a593"),
    ("kept", "fill", "#ecf2fa", "#1d2a3a"),
    ("future", "fill", "#e6daf6", "#44325f"),
    ("futureink", "fill", "#6a3aa8", "#c9adf0"),
    ("clean", "fill", "#bfe3cd", "#1f4f37"),
    ("dirty", "fill", "#f6cfa6", "#6a4316"),
    ("bounded", "fill", "#bfe0e6", "#1d4a52"),
    ("uncommitted", "fill", "#ddd3c6", "#4b4238"),
    ("nowink", "fill", "#0b57d0", "#8ab4f8"),
    ("nowline", "stroke", "#0b57d0", "#8ab4f8"),
    ("timeindex", "fill", "#0b7a6f", "#5fd0c2"),
    ("timeline", "stroke", "#0b7a6f", "#5fd0c2"),
    ("offsetindex", "fill", "#b1460f", "#f2a071"),
    ("offsetline", "stroke", "#b1460f", "#f2a071"),
    ("found", "fill", "#ffd36b", "#6b5210"),
)
_FILLS = {"edge": "edgeink", "inkline": "ink", "goingline": "goingink", "nowline": "nowink"}
_FILLS |= {"timeline": "timeindex", "offsetline": "offsetindex"}

# The widths of characters in ems, as in DejaVu Sans and Verdana, which are wider than other fonts of screens.
_EMS = {
    **dict.fromkeys("ijl'|.,:;!I ", 0.33),
    **dict.fromkeys('frt()[]{}-/\\"', 0.42),
    **dict.fromkeys("cksvxyz", 0.59),
    **dict.fromkeys("mwMWOQGD@%&+=<>~\u2192\u2026", 0.9),
}
_BOLD = 1.13

# Characters that XML does not allow, not even as references.
_NOT_XML = re.compile("[\ufffe\uffff]")  # beyond those that `escaped` escapes


class Sheet(NamedTuple):
    """The size of a picture, and what makes its identifiers differ from those of other pictures on the same page."""

    width: int
    height: int
    prefix: str


# --- text -------------------------------------------------------------------------------------------------------------


def safe(string: str) -> str:
    """Return any text as ASCII that XML and HTML show as this text; control characters are shown escaped."""
    return escape(_shown(string)).encode("ascii", "xmlcharrefreplace").decode()


def width_of(string: str, size: float = 13, *, bold: bool = False) -> float:
    """Return how wide a text is at most, in the common fonts."""
    ems = sum(_EMS.get(letter) or _usual(letter) for letter in string)
    return ems * size * (_BOLD if bold else 1)


def _usual(letter: str) -> float:
    if letter.isupper():
        return 0.7
    return 0.64 if letter < "\u0250" or letter in "\u2013\u2022" else 1.05


def fitted(string: str, room: float, size: float = 13, *, bold: bool = False) -> str:
    """Return a text that fits into this width: the text, or its beginning and end with an ellipsis between them."""
    string = _shown(string)
    if width_of(string, size, bold=bold) <= room:
        return string
    low, high = 0, min(len(string) - 1, int(room / size * 4) + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if width_of(_elided(string, middle), size, bold=bold) <= room:
            low = middle
        else:
            high = middle - 1
    return _elided(string, low)


def wrapped(string: str, room: float, size: float = 13, *, bold: bool = False, most: int = 6) -> list[str]:
    """Return the lines of a text that is broken at spaces to fit; what exceeds `most` lines is left out."""
    lines: list[str] = []
    for word in _shown(string).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size, bold=bold) <= room:
            lines[-1] = longer
        else:
            lines.append(fitted(word, room, size, bold=bold))
    if len(lines) > most:
        lines = [*lines[: most - 1], fitted(f"{lines[most - 1]} \u2026", room, size, bold=bold)]
    return lines


def text(
    x: float, y: float, string: str, kind: str = "ink", *, size: float = 13, bold: bool = False, anchor: str = ""
) -> str:
    """Draw a text; `anchor` is "middle" or "end" if x is not its beginning."""
    attributes = (' font-weight="bold"' if bold else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text class="{kind}" x="{x:.1f}" y="{_number(y)}" font-size="{size:g}"{attributes}>{safe(string)}</text>'


def label(x: float, y: float, string: str, kind: str = "ink", *, left: float, right: float, size: float = 12) -> str:
    """Draw a text in the middle of x that stays between `left` and `right`."""
    half = width_of(string, size) / 2
    return text(min(max(x, left + half), right - half), y, string, kind, size=size, anchor="middle")


# --- shapes -----------------------------------------------------------------------------------------------------------


def box(x: float, y: float, width: float, height: float, kind: str, *, dashed: bool = False) -> str:
    """Draw a rectangle."""
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    size = f'width="{max(width, 0):.1f}" height="{_number(height)}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{_number(y)}" {size} rx="3"{dash}/>'


def line(
    x1: float, y1: float, x2: float, y2: float, kind: str, *, width: float = 1.6, dash: str = "", head: str = ""
) -> str:
    """Draw a line; `head` is the prefix of the sheet whose arrow head ends it."""
    return path(f"M{x1:.1f} {_number(y1)}L{x2:.1f} {_number(y2)}", kind, width=width, dash=dash, head=head)


def path(along: str, kind: str, *, width: float = 1.6, dash: str = "", head: str = "") -> str:
    """Draw a line along a path of SVG, with the arrow head of its kind if `head` names the sheet's prefix."""
    more = (f' stroke-dasharray="{dash}"' if dash else "") + (f' marker-end="url(#{head}-{kind})"' if head else "")
    return f'<path class="{kind}" fill="none" stroke-width="{width:g}"{more} d="{along}"/>'


def polygon(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Draw a filled shape."""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {_number(y)}" for x, y in points)}z"/>'


def linked(href: str, name: str, drawn: str) -> str:
    """Make what is drawn a link with this name, which the keyboard reaches."""
    return f'<a href="{safe(href)}" aria-label="{safe(name)}"><title>{safe(name)}</title>{drawn}</a>'


# --- the picture ------------------------------------------------------------------------------------------------------


def document(
    drawn: Iterable[str],
    sheet: Sheet,
    *,
    title: str,
    description: str,
    heads: Sequence[str] = (),
    styled: bool = True,
    has_links: bool = False,
) -> str:
    """Return a whole picture.

    Args:
        drawn: What is in it.
        sheet: Its size, and the prefix of its identifiers.
        title: What it shows, for readers who do not see it.
        description: The same in more words.
        heads: The kinds of lines that have arrow heads.
        styled: Whether it holds the rules for its colours; without, it has no style at all, and the page must have the
            rules that `style` returns.
        has_links: Whether parts of it are links, which a reader who does not see it must be able to reach.
    """
    width, height, prefix = sheet
    role = "group" if has_links else "img"
    marks = "".join(_head(prefix, kind) for kind in heads)
    return "\n".join(
        part
        for part in (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="{_SCOPE[1:]}" '
            f'role="{role}" font-family="system-ui, sans-serif" font-size="13" '
            f'aria-labelledby="{prefix}-title" aria-describedby="{prefix}-desc">',
            f'<title id="{prefix}-title">{safe(title)}</title>',
            f'<desc id="{prefix}-desc">{safe(description)}</desc>',
            f"<style>{style()}</style>" if styled else "",
            f"<defs>{marks}</defs>" if marks else "",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *drawn,
            "</svg>\n",
        )
        if part
    )


def style() -> str:
    """Return the rules of CSS for all pictures; they match nothing outside of pictures."""
    light = "".join(f"{_SCOPE} .{name}{{{where}:{colour}}}" for name, where, colour, _ in _COLOURS)
    dark = "".join(f"{_SCOPE} .{name}{{{where}:{colour}}}" for name, where, _, colour in _COLOURS)
    links = f"{_SCOPE} a:focus-visible rect,{_SCOPE} a:hover rect{{stroke-width:3}}"
    return f"{light}{links}@media (prefers-color-scheme: dark){{{dark}}}"


def _head(prefix: str, kind: str) -> str:
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse"'
    shape = f'<path class="{_FILLS[kind]}" d="M0 0L8 4L0 8z"/>'
    return f'<marker id="{prefix}-{kind}" orient="auto" {size}>{shape}</marker>'


def _shown(string: str) -> str:
    """Return a text whose control characters, and others that XML does not allow, are shown escaped."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped(string))


def _elided(string: str, kept: int) -> str:
    head, tail = (kept + 1) // 2, kept // 2
    return f"{string[:head]}\u2026{string[len(string) - tail :]}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
