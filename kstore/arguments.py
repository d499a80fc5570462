"""What a caller may pass: numbers are checked at the door, by name, so that nothing below meets one that does not fit.

Python's own complaint about a wrong argument comes late and names an operator; ours names the argument, what was
found and what is allowed.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Iterable, Iterator
from typing import SupportsIndex, TypeVar

T = TypeVar("T")

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
INT_MAX = 2**31 - 1


def integer(name: str, value: SupportsIndex, low: int = LONG_MIN, high: int = LONG_MAX) -> int:
    """Take a whole number of `[low, high]`; `TypeError` for what is none (a bool, a float), `ValueError` outside."""
    number = whole(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}; {low} to {high} are allowed")
    return number


def whole(name: str, value: SupportsIndex) -> int:
    """Take a whole number of any size; `TypeError` for what is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def seconds(name: str, value: float | None) -> float | None:
    """Take a time to wait, None for ever; `ValueError` for one that is negative or not a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value}; it must not be negative")
    return None if value > threading.TIMEOUT_MAX else float(value)


def path(name: str, value: object) -> None:
    """Refuse what is no path as text: a `TypeError` that names the argument."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise TypeError(f"{name} must be a str or an os.PathLike of one, not {type(value).__name__}")


def one_of(name: str, value: object, *kinds: type) -> None:
    """Refuse what is neither None nor of one of these types."""
    if value is not None and not isinstance(value, kinds):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be one of {allowed} or None, not {type(value).__name__}")


def iterator(name: str, value: Iterable[T]) -> Iterator[T]:
    """Iterate over the items of `value`; a `TypeError` where it has none, or is bytes or text."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        raise TypeError(f"{name} must be an iterable of records, not one {type(value).__name__}")
    try:
        return iter(value)
    except TypeError:
        raise TypeError(f"{name} must be an iterable of records, not {type(value).__name__}") from None
