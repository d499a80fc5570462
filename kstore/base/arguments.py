"""Checks of callers' arguments: a wrong one raises an error that names the argument, its value, and what is allowed."""

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
    """Return a whole number of `[low, high]`; `TypeError` for anything else (a bool, a float), `ValueError` outside."""
    number = whole(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}; {low} to {high} are allowed")
    return number


def whole(name: str, value: SupportsIndex) -> int:
    """Return a whole number of any size; `TypeError` for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def seconds(name: str, value: float | None) -> float | None:
    """Return a time to wait, None for ever; `ValueError` for one that is negative or NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value}; it must not be negative")
    return None if value > threading.TIMEOUT_MAX else float(value)


def path(name: str, value: object) -> str:
    """Return a path as text; `TypeError` for anything else, `ConfigError` if it is empty or has a null character."""
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
    """Refuse a value that is neither None nor of one of these types."""
    if value is not None and not isinstance(value, kinds):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be one of {allowed} or None, not {type(value).__name__}")


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """A question after the known name that is most like this one; "" where none is alike enough."""
    close = difflib.get_close_matches(name[:200], sorted(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def names_of(call: Callable[..., object]) -> set[str]:
    """The names that a function or method may be given by keyword."""
    code = call.__code__  # a method gives its function's
    return set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def named(method: Callable[P, T]) -> Callable[P, T]:
    """Have a method that takes no other keywords name the nearest one in its error for a misspelt one."""
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
    """Return an iterator over `value`; a `TypeError` for a value without iterator, and for bytes or text."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        raise TypeError(f"{name} must be an iterable of records, not one {type(value).__name__}")
    try:
        return iter(value)
    except TypeError:
        raise TypeError(f"{name} must be an iterable of records, not {type(value).__name__}") from None
