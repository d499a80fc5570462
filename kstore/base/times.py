"""Converts times between the forms that people read and write and the milliseconds of a log."""

from __future__ import annotations

import re
import time as clocks
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

from kstore.base import arguments
from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.errors import ConfigError, InvalidTimestampError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_AGO = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d|w)")
_AGO_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_UNSURE_NS = 50_000_000  # a file that changed more recently may change again and keep its modification time

TIME_FORMS = (
    "ISO 8601 (2013-06-01, 2013-06-01T12:00, with a zone or in UTC), milliseconds since the epoch, or -1h, -30m, -2d"
)
"""What `parse` reads, in words."""


def parse(text: str, now_ms: int | None = None) -> int:
    """Parse a time to milliseconds since the epoch; raises `ConfigError` for anything else."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now_ms = clocks.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now_ms - int(ago[1]) * _AGO_UNITS[ago[2]]
    if re.fullmatch(r"[0-9]{1,18}", text) and len(text) != 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text[:60]!r} is no time: {TIME_FORMS}") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


def is_settled(changed_ns: int) -> bool:
    """Return whether no later change of a file or directory can have the same modification time."""
    return clocks.time_ns() - changed_ns > _UNSURE_NS


def show(milliseconds: int | None) -> str:
    """Return a time as `2026-11-21T14:00:00.000Z`, `-` for none, or the number if it is beyond the calendar."""
    if milliseconds is None or milliseconds < 0:
        return "-"
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:
        return f"{milliseconds} ms"


def span(milliseconds: int) -> str:
    """Return a duration as text: exactly in milliseconds, and roughly in the two largest units."""
    parts, left = [], milliseconds
    for unit, name in _UNITS:
        if left >= unit:
            parts.append(f"{left // unit} {name}")
            left %= unit
    return f"{milliseconds} ms ({' '.join(parts[:2])})" if parts else f"{milliseconds} ms"


def milliseconds(name: str, time: SupportsIndex | datetime) -> int:
    """Return a caller's time as milliseconds since the epoch; a `datetime` is rounded down to its millisecond.

    Raises `InvalidTimestampError` for a `datetime` without a time zone or before 1970, and `TypeError` for other types.
    """
    if isinstance(time, datetime):
        found = _since_epoch(name, time)
        if found < 0:
            raise InvalidTimestampError(f"{name} is {time}; 1970-01-01T00:00:00Z and later are allowed")
        return found
    try:
        return arguments.whole(name, time)
    except TypeError:
        kind = type(time).__name__
        hints = {"float": "; int(1000 * seconds) makes one of seconds", "str": "; datetime.fromisoformat reads one"}
        raise TypeError(
            f"{name} must be an int of milliseconds or a datetime with a time zone, not {kind}{hints.get(kind, '')}"
        ) from None


def checked_clock(clock: Callable[[], SupportsIndex | datetime] | None) -> Callable[[], int] | None:
    """Return a clock that returns milliseconds, made from a caller's clock (see `milliseconds`); None for None."""
    if clock is None:
        return None
    if not callable(clock):
        raise TypeError(f"clock must be callable, not {type(clock).__name__}")
    return lambda: milliseconds("what the clock gives", clock())


def moment(name: str, time: SupportsIndex | datetime) -> int:
    """Return a time to search for, as `milliseconds` does; a `datetime` before 1970 is 0, since no record is older."""
    if type(time) is int and LONG_MIN <= time <= LONG_MAX:
        return time
    if isinstance(time, datetime):
        return max(_since_epoch(name, time), 0)
    return arguments.integer(name, milliseconds(name, time))


def refuse_naive(name: str, time: datetime) -> None:
    """Raise `InvalidTimestampError` for a `datetime` without a time zone, which is another time on each machine."""
    if time.tzinfo is None or time.utcoffset() is None:
        raise InvalidTimestampError(
            f"{name} is {time}, without a time zone, so it would be another moment on each machine; give one, as in "
            f"datetime.now(timezone.utc), or time.astimezone() for this machine's"
        )


def _since_epoch(name: str, time: datetime) -> int:
    refuse_naive(name, time)
    return (time - _EPOCH) // _MILLISECOND
