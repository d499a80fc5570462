"""Checks callers' arguments. An error names the argument, its value and the allowed values."""

from __future__ import annotations

import difflib
import functools
import math
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ParamSpec, SupportsIndex, TypeVar

from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kstore.types import Headers

T = TypeVar("T")
P = ParamSpec("P")


def integer(name: str, value: SupportsIndex, low: int = LONG_MIN, high: int = LONG_MAX) -> int:
    """Return a whole number; raise `ValueError` unless `low <= value <= high`, `TypeError` for a bool, a float etc."""
    number = whole(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}; {low} to {high} are allowed")
    return number


def whole(name: str, value: SupportsIndex) -> int:
    """Return a whole number of any size; raise `TypeError` for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def seconds(name: str, value: float | None) -> float | None:
    """Return a time to wait in seconds, None for no limit; raise `ValueError` if it is negative or NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value}; it must not be negative")
    return None if value > threading.TIMEOUT_MAX else float(value)


def path(name: str, value: object) -> str:
    """Return a path as text; raise `TypeError` for anything else, `ConfigError` if it is empty or contains NUL."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str or an os.PathLike of one, not {type(value).__name__}")
    if not text:
        raise ConfigError(f"{name} is empty; '.' is the current directory")
    if "\0" in text:
        raise ConfigError(f"{name} is {text[:200]!r}; a path has no null character")
    return text


def real_path(name: str, value: object) -> str:
    """Return the canonical form of a path; raises as `path` does."""
    return os.path.realpath(path(name, value))


def one_of(name: str, value: object, *kinds: type) -> None:
    """Raise `TypeError` for a value that is neither None nor of one of these types."""
    if value is not None and not isinstance(value, kinds):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be one of {allowed} or None, not {type(value).__name__}")


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return a question that suggests the most similar known name; "" if none is similar enough."""
    close = difflib.get_close_matches(name[:200], sorted(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def names_of(call: Callable[..., object]) -> set[str]:
    """Return the names of the keyword arguments of a method, without `self`."""
    code = call.__code__  # a method returns the code of its function
    return set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def named(method: Callable[P, T]) -> Callable[P, T]:
    """Make a method's error for a misspelt keyword suggest the nearest one; for methods without `**` arguments."""
    names = names_of(method)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in names:
                what = f"{method.__qualname__}() got an unexpected keyword argument {name!r}"
                raise TypeError(f"{what}{nearest(name, names)}")
        return method(*args, **kwargs)

    return call


def header_pairs(headers: Headers) -> list[tuple[str, ReadableBuffer | None]]:
    """Return a record's headers as a new list of pairs."""
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def iterator(name: str, value: Iterable[T]) -> Iterator[T]:
    """Return an iterator over `value`; raise `TypeError` for bytes, text, or a value that is not iterable."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        raise TypeError(f"{name} must be an iterable of records, not one {type(value).__name__}")
    try:
        return iter(value)
    except TypeError:
        raise TypeError(f"{name} must be an iterable of records, not {type(value).__name__}") from None
