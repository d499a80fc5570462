"""Checks what a caller says about a load, and makes it a `Load`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import SupportsIndex, TypeAlias

from kstore.base import arguments
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.explained.explained_plan import Load
from kstore.planning.load_stretches import DAY_MS, batch_bytes_of

Idle: TypeAlias = str | Iterable[str | tuple[int, int]]
Span: TypeAlias = SupportsIndex | timedelta

LONGEST_MS = 36_500 * DAY_MS
"""The longest time that can be planned."""
_LONGEST_SKEW_MS = 3650 * DAY_MS
_MOST_BATCHES = 10**9  # for each second: the least time between two batches is a millionth of a millisecond
_LEAST_BATCH_BYTES, _LEAST_RECORD_BYTES = 61, 7
_PART = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


def make_load(
    *,
    rate: float,
    record_bytes: float,
    batch_records: SupportsIndex = 1,
    skew: Span = 0,
    idle: Idle = (),
    keys: SupportsIndex | None = None,
) -> Load:
    """Return a load; raises `ValueError` or `TypeError` for what cannot be one."""
    records = arguments.integer("batch_records", batch_records, 1, INT_MAX)
    load = Load(
        rate=_positive("rate", rate),
        record_bytes=_positive("record_bytes", record_bytes),
        batch_records=records,
        skew_ms=span_ms("skew", skew, 0, _LONGEST_SKEW_MS),
        idle=idle_parts(idle),
        keys=None if keys is None else arguments.integer("keys", keys, 1),
    )
    if load.rate / records > _MOST_BATCHES:
        raise ValueError(
            f"rate is {load.rate:g} in batches of {records}: at most {_MOST_BATCHES:,} batches a second are planned"
        )
    least = _LEAST_BATCH_BYTES + (_LEAST_RECORD_BYTES if records == 1 else 0)
    if not least <= batch_bytes_of(load) <= INT_MAX:
        raise ValueError(
            f"record_bytes is {load.record_bytes:g}, which makes {batch_bytes_of(load)} bytes of a batch with "
            f"batch_records={records}; {least} to {INT_MAX} are possible"
        )
    return load


def span_ms(name: str, span: Span, least: int, most: int = LONG_MAX) -> int:
    """Return a span that a caller gives as milliseconds or a `timedelta`."""
    if isinstance(span, timedelta):
        span = span // timedelta(milliseconds=1)
    return arguments.integer(name, span, least, most)


def idle_parts(idle: Idle) -> tuple[tuple[int, int], ...]:
    """Return the idle parts of a day in order, given as "22:00-06:00" or as pairs of milliseconds."""
    parts: list[tuple[int, int]] = []
    for part in [idle] if isinstance(idle, str) else idle:
        first, end = _parsed(part) if isinstance(part, str) else part
        if not 0 <= first <= DAY_MS or not 0 <= end <= DAY_MS or first == end:
            raise ValueError(f"idle has {part!r}; two different times from 0 to {DAY_MS} are a part of a day")
        parts += [(first, end)] if first < end else [(first, DAY_MS), (0, end)]
    merged: list[tuple[int, int]] = []
    for first, end in sorted(part for part in parts if part[0] < part[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    if merged == [(0, DAY_MS)]:
        raise ValueError("idle is the whole day: nothing would be appended")
    return tuple(merged)


def _parsed(text: str) -> tuple[int, int]:
    match = _PART.fullmatch(text.strip())
    numbers = [int(group) for group in match.groups()] if match is not None else []
    if match is None or numbers[1] > 59 or numbers[3] > 59:
        raise ValueError(f"idle has {text[:60]!r}; a part of a day is written like '22:00-06:00'")
    return (numbers[0] * 60 + numbers[1]) * 60_000, (numbers[2] * 60 + numbers[3]) * 60_000


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}; it must be above 0")
    return value
