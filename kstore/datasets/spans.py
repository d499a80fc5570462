"""Ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """The offsets `[start, end)` of a log."""

    start: int
    end: int


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Join ranges that overlap or follow one another; leave out the empty ones. The result rises."""
    last: Span | None = None
    for span in sorted(span for span in spans if span.start < span.end):
        if last is not None and span.start <= last.end:
            last = Span(last.start, max(last.end, span.end))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
