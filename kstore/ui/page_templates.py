"""Makes HTML of facts with Jinja2, which escapes every value; and the filters that write numbers and times."""

from __future__ import annotations

import pkgutil
from datetime import UTC, datetime, timedelta
from typing import Any

from kstore.base import optional
from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.explained import html_page
from kstore.explained.segment_words import value_words

__all__ = ["Templates", "assets", "clock_time", "count", "lag", "per_second", "seconds", "total"]

USER = "kstore ui"
NONE = "\N{EN DASH}"
"""Stands for a value that is not there."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Templates:
    """The templates of the pages. Thread-safe."""

    def __init__(self) -> None:
        jinja2 = optional.jinja2(USER)
        self._pages = jinja2.Environment(
            loader=jinja2.PackageLoader("kstore.ui"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._pages.filters |= {
            "clean": escaped,
            "clock_time": clock_time,
            "seconds": seconds,
            "count": count,
            "lag": lag,
            "per_second": per_second,
            "size": size,
            "total": total,
            "value_words": value_words,
        }
        self._markup = optional.jinja2(USER).utils.markupsafe.Markup

    def render(self, name: str, **facts: Any) -> bytes:
        """Return a page as UTF-8; lone surrogates are written as question marks."""
        text: str = self._pages.get_template(f"{name}.html").render(**facts)
        return text.encode("utf-8", "replace")

    def svg(self, text: str) -> Any:
        """Mark the text of a picture as HTML. The picture must have escaped what came out of a log."""
        return self._markup(text)


def assets() -> dict[str, tuple[bytes, str]]:
    """Return the files that the pages load: content and type by name."""
    return {
        "page.css": (_file("page.css"), "text/css"),
        "pictures.css": (html_page.style().encode(), "text/css"),
        "live.js": (_file("live.js"), "text/javascript"),
    }


def _file(name: str) -> bytes:
    found = pkgutil.get_data("kstore.ui", f"static/{name}")
    assert found is not None
    return found


def clock_time(milliseconds: int | None) -> str:
    """Return a time as `2026-11-21 14:00:00.000`, in UTC; a dash for none."""
    if milliseconds is None or milliseconds < 0:
        return NONE
    try:
        return f"{_EPOCH + timedelta(milliseconds=milliseconds):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except OverflowError:
        return f"{milliseconds} ms"


def seconds(milliseconds: int | None) -> str:
    """Return a time like `clock_time`, without milliseconds."""
    shown = clock_time(milliseconds)
    return shown[:19] if shown[4:5] == "-" else shown


def count(number: int | None) -> str:
    """Return a number with separators of thousands; a dash for none."""
    return NONE if number is None else f"{number:,}"


def per_second(rate: float | None) -> str:
    """Return a rate of records; a dash for none."""
    if rate is None:
        return NONE
    if rate == 0:
        return "0/s"
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s" if rate >= 0.01 else f"{rate * 3600:.2g}/h"


def total(size_bytes: int | None) -> str:
    """Return a sum of sizes, or that it is not known yet."""
    return "sizes are being added up" if size_bytes is None else size(size_bytes)


def lag(lags: list[tuple[str, int]] | None) -> str:
    """Return the greatest lag of groups in one partition, and how many groups there are."""
    if lags is None:
        return "…"
    if not lags:
        return NONE
    group, greatest = lags[0]
    others = f" (and {len(lags) - 1} more)" if len(lags) > 1 else ""
    return escaped(f"{greatest:,} {group}{others}")
