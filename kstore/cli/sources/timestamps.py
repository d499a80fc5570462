"""Converts times in JSON and text to Kafka's timestamps. Times are numbers of a unit, or ISO 8601."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

__all__ = ["OUT_OF_RANGE", "UNITS", "milliseconds_of"]

UNITS = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
"""The milliseconds in each unit of a timestamp."""

OUT_OF_RANGE = "before the epoch, or beyond 64 bits of milliseconds (-1 alone means none)"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL = re.compile(
    r"\s*[+-]?[0-9]{1,40}\.[0-9]{0,40}(?:[eE][+-]?[0-9]{1,2})?\s*|\s*[+-]?[0-9]{1,40}[eE][+-]?[0-9]{1,2}\s*"
)


def milliseconds_of(value: Any, name: str, unit: str) -> int:
    """Return the milliseconds since the epoch for a number of `unit` or ISO 8601 (in UTC unless it has a zone).

    Raises `ValueError`, which names the column `name`.
    """
    if value is None:
        raise ValueError(f"column {name!r} is null, where each record needs a timestamp")
    milliseconds = _milliseconds(value, unit)
    if milliseconds is None:
        raise ValueError(f"column {name!r} is {str(value)[:60]!r}: no time in ISO 8601, and no number of {unit}")
    if not -1 <= milliseconds < 1 << 63:
        raise ValueError(f"column {name!r} is {str(value)[:60]!r}: {OUT_OF_RANGE}")
    return milliseconds


def _milliseconds(value: Any, unit: str) -> int | None:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = int(value) if value.isascii() else value
    if isinstance(value, int) and not isinstance(value, bool):
        return value * int(UNITS[unit]) if unit in ("s", "ms") else value // round(1 / UNITS[unit])
    if isinstance(value, float) and abs(value) < 1e18:
        return int(value * UNITS[unit] // 1)
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value):
            return math.floor(Fraction(value) * Fraction(str(UNITS[unit])))
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(value.strip())
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    return None
