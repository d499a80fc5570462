"""Parses times on the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from kstore.base.times import show
from kstore.errors import ConfigError

__all__ = ["HELP", "parse", "show"]

HELP = "ISO 8601 (2013-06-01, 2013-06-01T12:00, with a zone or in UTC), milliseconds since the epoch, or -1h, -30m, -2d"

_AGO = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse(text: str, now_ms: int | None = None) -> int:
    """Parse a time to milliseconds since the epoch; raises `ConfigError` for anything else."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now_ms - int(ago[1]) * _UNITS[ago[2]]
    if re.fullmatch(r"[0-9]{1,18}", text) and len(text) != 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text[:60]!r} is no time: {HELP}") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
