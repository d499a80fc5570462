"""The parameters of a request, each within bounds. Raises `BadRequestError` for any other value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.base.numbers import LONG_MAX
from kstore.errors import ConfigError, KStoreError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = [
    "BadRequestError",
    "NotFoundError",
    "choice",
    "maybe_whole",
    "moment",
    "number",
    "parse_whole",
    "text",
    "whole",
]

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_SHOWN = 60
MAX_TEXT = 1000


class BadRequestError(KStoreError, ValueError):
    """A parameter of a request has a value that is not allowed."""


class NotFoundError(KStoreError, LookupError):
    """What a request names is not there."""


def whole(request: Request, name: str, default: int, low: int = 0, high: int = LONG_MAX) -> int:
    """Return a whole number in `[low, high]`; `default` if the parameter is missing or empty."""
    found = maybe_whole(request, name, low, high)
    return default if found is None else found


def maybe_whole(request: Request, name: str, low: int = 0, high: int = LONG_MAX) -> int | None:
    """Return a whole number in `[low, high]`; None if the parameter is missing or empty."""
    given = text(request, name).strip()
    return parse_whole(name, given, low, high) if given else None


def parse_whole(name: str, given: str, low: int = 0, high: int = LONG_MAX) -> int:
    """Return a whole number in `[low, high]`."""
    if not _WHOLE.fullmatch(given):
        raise BadRequestError(f"{name} is {given[:_SHOWN]!r}, which is no whole number")
    number = int(given)
    if not low <= number <= high:
        raise BadRequestError(f"{name} is {number}; {low} to {high} is allowed")
    return number


def number(request: Request, name: str, default: float, low: float, high: float) -> float:
    """Return a number in `[low, high]`, which may have decimals; `default` if the parameter is missing or empty."""
    given = text(request, name).strip()
    if not given:
        return default
    if not _NUMBER.fullmatch(given):
        raise BadRequestError(f"{name} is {given[:_SHOWN]!r}, which is no number")
    found = float(given)
    if not low <= found <= high:
        raise BadRequestError(f"{name} is {given}; {low:g} to {high:g} is allowed")
    return found


def text(request: Request, name: str, default: str = "") -> str:
    """Return a text of at most `MAX_TEXT` characters."""
    given = str(request.query_params.get(name, default))
    if len(given) > MAX_TEXT:
        raise BadRequestError(f"{name} has {len(given)} characters; {MAX_TEXT} is the most")
    return given


def choice(request: Request, name: str, *allowed: str) -> str:
    """Return one of the allowed words; the first if the parameter is missing or empty."""
    given = str(request.query_params.get(name, "")) or allowed[0]
    if given not in allowed:
        raise BadRequestError(f"{name} is {given[:_SHOWN]!r}; {', '.join(allowed)} is allowed")
    return given


def moment(request: Request, name: str, now_ms: int) -> int | None:
    """Return a time in milliseconds since the epoch; None if the parameter is missing or empty."""
    given = text(request, name).strip()
    if not given:
        return None
    try:
        return times.parse(given, now_ms)
    except ConfigError as error:
        raise BadRequestError(f"{name}: {error}") from None
